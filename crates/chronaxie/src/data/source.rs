//! The bytes of a file on their way to a reader: hashed, and refused where they are no text.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use chronaxie_runtime::{Error, Result};
use sha2::{Digest, Sha256};

/// A line, or a quoted field that spans lines, longer than this is refused, which bounds the memory of a reader.
pub(super) const MAX_RECORD_BYTES: u64 = 256 << 20;

/// SHA-256 of `bytes`, in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::io("open", path, &error))
}

/// A stream that hashes what passes through it and ends with an error at a zero byte or a record without end.
pub(super) struct Source<R> {
    inner: R,
    hash: Sha256,
    /// Line ends that have passed.
    lines: usize,
    /// Bytes since the last call of [`Source::start_record`], and the most that there may be.
    record: u64,
    limit: u64,
    refusal: Option<(usize, String)>,
    /// With [`Source::tracking_lines`]: where lines that are not blank begin, and their numbers.
    starts: Option<VecDeque<(u64, usize)>>,
    passed: u64,
    blank_so_far: bool,
}

impl<R: Read> Source<R> {
    pub(super) fn new(inner: R, limit: u64) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            lines: 0,
            record: 0,
            limit,
            refusal: None,
            starts: None,
            passed: 0,
            blank_so_far: true,
        }
    }

    /// Notes where lines begin, for [`Source::line_at`].
    pub(super) fn tracking_lines(mut self) -> Self {
        self.starts = Some(VecDeque::new());
        self
    }

    /// The line of the first byte at or after `byte` that ends no line. Call it with rising `byte`: what lies before is
    /// forgotten. (The position of a record in the csv crate lies before blank lines, and before the second byte of a
    /// `\r\n` of the previous record.)
    pub(super) fn line_at(&mut self, byte: u64) -> Option<usize> {
        let starts = self.starts.as_mut()?;
        while starts.front().is_some_and(|(start, _)| *start < byte) {
            starts.pop_front();
        }
        starts.front().map(|(_, line)| *line)
    }

    /// The reader has taken one more record.
    pub(super) fn start_record(&mut self) {
        self.record = 0;
    }

    /// Whether the stream has given no byte so far.
    pub(super) fn is_empty(&self) -> bool {
        self.passed == 0
    }

    /// The error that a failed read stands for.
    pub(super) fn error(&self, path: &Path, error: &io::Error) -> Error {
        match &self.refusal {
            Some((line, message)) => Error::data(path, Some(*line), message),
            None => Error::io("read", path, error),
        }
    }

    /// SHA-256 of all that has passed; of the file, once it has been read to its end.
    pub(super) fn sha256(self) -> String {
        hex(self.hash.finalize().as_slice())
    }

    fn refuse(&mut self, line: usize, message: String) -> io::Error {
        self.refusal = Some((line, message));
        io::ErrorKind::InvalidData.into()
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let bytes = &buffer[..count];
        self.hash.update(bytes);
        self.record += count as u64;
        let line_ends = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            let line = self.lines + line_ends(&bytes[..at]) + 1;
            return Err(self.refuse(line, "a zero byte: this is a binary file, not text".into()));
        }
        if let Some(starts) = &mut self.starts {
            let mut line = self.lines + 1;
            for (at, byte) in bytes.iter().enumerate() {
                if *byte == b'\n' {
                    line += 1;
                    self.blank_so_far = true;
                } else if *byte != b'\r' && self.blank_so_far {
                    starts.push_back((self.passed + at as u64, line));
                    self.blank_so_far = false;
                }
            }
        }
        self.passed += count as u64;
        let first_line = self.lines + 1;
        self.lines += line_ends(bytes);
        if self.record > self.limit {
            let limit = self.limit;
            return Err(self.refuse(first_line, format!("a line, or a quoted field, is longer than {limit} bytes")));
        }
        Ok(count)
    }
}
