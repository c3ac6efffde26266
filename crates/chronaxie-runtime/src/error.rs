//! One error type for the runtime. Every message is a sentence that carries the values.

use std::fmt;
use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a program asks it; the sentence is in [`Error`]'s `Display`.
///
/// Exit codes and Python exception classes are derived from this kind alone.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Sizes or strides that do not fit together.
    Shape,
    /// An element type that the operation does not take.
    Dtype,
    /// A tensor on the wrong device, or a device index that does not exist.
    Device,
    /// A library, driver or capability that this machine lacks.
    Unavailable,
    /// A wrong setting; `line` is the line of the configuration file where one is known.
    Config {
        /// Line in the configuration file, from 1.
        line: Option<usize>,
    },
    /// A data file that cannot be used.
    Data {
        /// The file.
        path: PathBuf,
        /// Line in the file, from 1, where one is known.
        line: Option<usize>,
    },
    /// A kernel that did not compile.
    Compile {
        /// The kernel's source name.
        kernel: String,
        /// The compiler's log.
        log: String,
    },
    /// The device has not enough memory.
    OutOfMemory {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// A call of the CUDA driver that failed, or a kernel that did.
    Cuda,
    /// Another process that shares the work has gone or hangs.
    Lost,
    /// A checkpoint or model file that does not fit.
    Checkpoint,
    /// The operating system refused a file operation.
    Io,
    /// The user interrupted the work.
    Interrupted,
    /// A value that is NaN, infinite or out of its range.
    Value,
}

/// An error: a kind for programs and a sentence for people.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
    /// What went wrong, for programs.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
    /// The same error with `prefix: ` before its sentence.
    #[must_use]
    pub fn context(mut self, prefix: impl fmt::Display) -> Self {
        self.message = format!("{prefix}: {}", self.message);
        self
    }
    /// Shapes that do not fit.
    pub fn shape(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Shape, message)
    }
    /// An element type that is not taken.
    pub fn dtype(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Dtype, message)
    }
    /// A wrong or missing device.
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, message)
    }
    /// Something this machine lacks.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }
    /// A wrong setting, without a line.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config { line: None }, message)
    }
    /// A value that is out of its range.
    pub fn value(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Value, message)
    }
    /// A data file that cannot be used; the sentence gets `path:line: ` before it.
    pub fn data(path: impl Into<PathBuf>, line: Option<usize>, message: impl fmt::Display) -> Self {
        let path = path.into();
        let place = match line {
            Some(n) => format!("{}:{n}", path.display()),
            None => path.display().to_string(),
        };
        Self::new(ErrorKind::Data { path, line }, format!("{place}: {message}"))
    }
    /// A file operation on `path` that failed while `doing` (as in "read", "write").
    pub fn io(doing: &str, path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("cannot {doing} {}: {error}", path.into().display()))
    }
    /// Another process that shares the work has gone or hangs.
    pub fn lost(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Lost, message)
    }
    /// A checkpoint or model file that does not fit.
    pub fn checkpoint(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Checkpoint, message)
    }
    /// The exit code of a program that ends with this error: 1 (something failed), 2 (usage or input), 130 (interrupted).
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Interrupted => 130,
            ErrorKind::Compile { .. } | ErrorKind::OutOfMemory { .. } | ErrorKind::Cuda | ErrorKind::Lost => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_carry_place_and_values() {
        let e = Error::data("a.ts", Some(7), "value '?' is missing");
        assert_eq!(e.to_string(), "a.ts:7: value '?' is missing");
        assert_eq!(e.kind(), &ErrorKind::Data { path: "a.ts".into(), line: Some(7) });
        assert_eq!(e.context("train").to_string(), "train: a.ts:7: value '?' is missing");
    }

    #[test]
    fn exit_codes_follow_kinds() {
        assert_eq!(Error::shape("x").exit_code(), 2);
        assert_eq!(Error::new(ErrorKind::Interrupted, "x").exit_code(), 130);
        assert_eq!(Error::new(ErrorKind::OutOfMemory { asked: 1, free: 0 }, "x").exit_code(), 1);
    }
}
