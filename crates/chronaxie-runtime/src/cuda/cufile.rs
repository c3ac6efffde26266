//! cuFile, the library of GPUDirect Storage, which reads files straight into device memory: opened at run time, used through our own table.
//!
//! It is used where it goes past the host's memory, and nowhere else: in what cuFile calls its compatibility mode it reads by way of the
//! host as a carrier does, with fewer threads, so that mode is left (`CUFILE_ALLOW_COMPAT_MODE=false`, unless something is set). Nor may it
//! leave a log in the working folder, or end the process where it cannot write one (`CUFILE_LOGFILE_PATH`, likewise).

use super::carrier::Span;
use super::device::CudaDevice;
use super::driver::loader_reason;
use super::memory::DeviceBuffer;
use super::sys::{CuFileApi, CuFileDescr, CuFileError, CuFileFd, CuFileHandle};
use super::{lock, search};
use crate::error::{Error, Result};
use crate::log;
use libloading::Library;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Bytes of one read: the most that cuFile passes to the storage at once, as it is configured by default.
const PIECE: usize = 16 << 20;
/// Threads that read: each call waits for its piece.
const THREADS: usize = 4;
/// What GPUDirect Storage's kernel driver shows where it is loaded.
const KERNEL_DRIVER: &str = "/proc/driver/nvidia-fs";

/// `O_DIRECT`, which cuFile asks of the files that it reads straight.
#[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
const O_DIRECT: i32 = 0o200_000;
#[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
const O_DIRECT: i32 = 0o40_000;

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const FILE_DESCRIPTOR: u32 = 1;
const SUCCESS: u32 = 0;

/// The loaded and opened cuFile, which is never closed.
pub(super) struct CuFile {
    api: CuFileApi,
}

/// Why bytes did not come.
pub(super) enum Stop {
    /// Not by cuFile; pinned memory may do.
    Refused(String),
    /// At this byte the file ends.
    Ends(u64),
}

/// What `CHRONAXIE_CUFILE` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Never,
    /// Where its kernel driver is loaded.
    IfLoaded,
    Always,
    Named(PathBuf),
}

impl Wanted {
    fn of(variable: Option<std::ffi::OsString>) -> Self {
        match variable {
            None => Self::IfLoaded,
            Some(v) if v.is_empty() => Self::IfLoaded,
            Some(v) if v == "0" => Self::Never,
            Some(v) if v == "1" => Self::Always,
            Some(v) => Self::Named(v.into()),
        }
    }
    /// Whether somebody asked for it, who is then warned where it cannot be.
    fn is_asked_for(&self) -> bool {
        matches!(self, Self::Always | Self::Named(_))
    }
}

fn wanted() -> Wanted {
    Wanted::of(std::env::var_os("CHRONAXIE_CUFILE"))
}

/// Says why cuFile is not used, once a process for each reason.
pub(super) fn tell(why: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = lock(&TOLD);
    if told.iter().any(|t| t == why) {
        return;
    }
    told.push(why.to_string());
    let level = if wanted().is_asked_for() { log::Level::Warn } else { log::Level::Info };
    log::log(level, format_args!("files are read through pinned memory and not by cuFile: {why}"));
}

impl CuFile {
    /// The cuFile of this process, opened at the first call, with the context of a device current. `None` where there is none, or none is
    /// wanted; why is said once.
    pub(super) fn get() -> Option<&'static Self> {
        static OPENED: OnceLock<Option<CuFile>> = OnceLock::new();
        let open = || match Self::open(&wanted()) {
            Ok(cufile) => Some(cufile),
            Err(e) => {
                tell(&e.to_string());
                None
            }
        };
        OPENED.get_or_init(open).as_ref()
    }

    fn open(wanted: &Wanted) -> Result<Self> {
        match wanted {
            Wanted::Never => return Err(Error::unavailable("CHRONAXIE_CUFILE=0")),
            Wanted::IfLoaded if !Path::new(KERNEL_DRIVER).exists() => {
                return Err(Error::unavailable(format!(
                    "its kernel driver nvidia-fs is not loaded ({KERNEL_DRIVER} does not exist); CHRONAXIE_CUFILE=1 tries nevertheless"
                )));
            }
            _ => {}
        }
        for (name, value) in [("CUFILE_ALLOW_COMPAT_MODE", "false"), ("CUFILE_LOGFILE_PATH", "/dev/null")] {
            if std::env::var_os(name).is_none() {
                // SAFETY: the environment is changed once, before cuFile reads it; the standard library's own readers take its lock.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let named = if let Wanted::Named(path) = wanted { Some(path.as_path()) } else { None };
        let path = search::cufile(named)?;
        let refused = |why: &dyn std::fmt::Display| {
            Error::unavailable(format!("{} cannot be used as cuFile: {why}", path.display()))
        };
        let library = super::nvrtc::open_local(&path).map_err(|e| refused(&loader_reason(&e)))?;
        let api = CuFileApi::load(&library).map_err(|s| refused(&format_args!("it has no symbol `{s}`")))?;
        // Resident for ever: it has threads of its own.
        std::mem::forget::<Library>(library);
        // SAFETY: the call has no arguments, and is made once.
        check(unsafe { (api.cuFileDriverOpen)() }, "cuFileDriverOpen").map_err(|why| refused(&why))?;
        log::debug(format_args!("opened cuFile at {}", path.display()));
        Ok(Self { api })
    }

    /// Reads the span of a file to byte `at` of `target` and on, which no stream uses meanwhile.
    pub(super) fn read(
        &self,
        device: &CudaDevice,
        span: &Span<'_>,
        target: &mut DeviceBuffer,
        at: usize,
    ) -> Result<(), Stop> {
        let handle = Handle::new(&self.api, span.file).map_err(Stop::Refused)?;
        let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        let stop: Mutex<Option<Stop>> = Mutex::new(None);
        let base = target.address();
        let work = || {
            while !ended.load(Ordering::Relaxed) {
                let from = next.fetch_add(PIECE, Ordering::Relaxed);
                if from >= span.bytes {
                    return;
                }
                // SAFETY: the span was checked to lie in the target from byte `at` on, and pieces do not overlap.
                if let Err(why) = unsafe { handle.read(span.offset, base, at, from, PIECE.min(span.bytes - from)) } {
                    ended.store(true, Ordering::Relaxed);
                    lock(&stop).get_or_insert(why);
                }
            }
        };
        let others = THREADS.min(span.bytes.div_ceil(PIECE)) - 1;
        std::thread::scope(|scope| {
            for _ in 0..others {
                let thread = std::thread::Builder::new().name("chronaxie-cufile".into());
                // One that cannot be made, or has no context, leaves its pieces to the others.
                let _ = thread.spawn_scoped(scope, || {
                    if let Ok(_guard) = device.guard() {
                        work();
                    }
                });
            }
            work();
        });
        stop.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// A file as cuFile knows it.
struct Handle<'a> {
    api: &'a CuFileApi,
    handle: CuFileHandle,
    // Closed after the handle has ended.
    _file: Option<File>,
}

// SAFETY: cuFile's calls may come from any thread, on one handle too.
unsafe impl Sync for Handle<'_> {}

impl<'a> Handle<'a> {
    fn new(api: &'a CuFileApi, file: &'a File) -> Result<Self, String> {
        // Straight reads go past the system's cache, for which the file is opened once more; where that is refused, cuFile decides.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = File::options().read(true).custom_flags(O_DIRECT).open(own).ok();
        let fd = direct.as_ref().unwrap_or(file).as_raw_fd();
        let mut handle: CuFileHandle = std::ptr::null_mut();
        let mut descr = CuFileDescr { kind: FILE_DESCRIPTOR, handle: CuFileFd { fd }, fs_ops: std::ptr::null() };
        // SAFETY: both arguments are live, and the descriptor stays open for as long as the handle.
        let result = unsafe { (api.cuFileHandleRegister)(&raw mut handle, &raw mut descr) };
        check(result, "cuFileHandleRegister")?;
        Ok(Self { api, handle, _file: direct })
    }

    /// Reads `bytes` bytes at `from` of a span that begins at `offset` of the file and at `at` of the buffer at `base`.
    ///
    /// # Safety
    /// The buffer has these bytes, and nobody uses them meanwhile.
    unsafe fn read(&self, offset: u64, base: u64, at: usize, from: usize, bytes: usize) -> Result<(), Stop> {
        let mut done = 0;
        while done < bytes {
            let (in_file, in_buffer) = (offset + (from + done) as u64, at + from + done);
            // SAFETY: the handle is live, and the caller vouches for the memory.
            let count = unsafe {
                (self.api.cuFileRead)(self.handle, base as *mut c_void, bytes - done, in_file as i64, in_buffer as i64)
            };
            match count {
                0 => return Err(Stop::Ends(in_file)),
                1.. => done += (count as usize).min(bytes - done),
                -1 => return Err(Stop::Refused(format!("cuFileRead failed: {}", io::Error::last_os_error()))),
                _ => {
                    return Err(Stop::Refused(format!("cuFileRead failed: {}", describe(count.unsigned_abs() as u32))));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and no read uses it any more.
        unsafe { (self.api.cuFileHandleDeregister)(self.handle) };
    }
}

fn check(result: CuFileError, call: &str) -> Result<(), String> {
    match result.err {
        SUCCESS => Ok(()),
        CUDA_ERROR => Err(format!("{call} failed: error {} of CUDA", result.cu_err)),
        code => Err(format!("{call} failed: {}", describe(code))),
    }
}

const CUDA_ERROR: u32 = 5011;

/// A code of cuFile in words, where it is one that tells what a machine lacks.
fn describe(code: u32) -> String {
    let words = match code {
        5001 => "its kernel driver nvidia-fs is not loaded",
        5004 | 5005 => "its kernel driver nvidia-fs is of another version",
        5007 => "GPUDirect Storage does not serve this platform",
        5008 => "GPUDirect Storage does not serve this file",
        5009 => "GPUDirect Storage does not serve this GPU",
        5012..=5014 => "it does not take this device memory",
        5018 => "it does not take this kind of file",
        5019 | 5020 => "the file cannot be read past the system's cache",
        5025 => "permission is denied",
        5033 => "it does not start",
        5034 => "it is switched off",
        5036 => "device memory cannot be pinned",
        _ => return format!("cuFile error {code}"),
    };
    format!("{words} (cuFile error {code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_asks_for_it_or_against_it() {
        for (value, want) in [
            (None, Wanted::IfLoaded),
            (Some(""), Wanted::IfLoaded),
            (Some("0"), Wanted::Never),
            (Some("1"), Wanted::Always),
            (Some("/opt/x"), Wanted::Named("/opt/x".into())),
        ] {
            assert_eq!(Wanted::of(value.map(Into::into)), want);
        }
    }

    #[test]
    fn what_is_named_and_is_no_cufile_is_a_sentence() {
        let refusal =
            |path: &Path| CuFile::open(&Wanted::Named(path.into())).err().expect("this is no cuFile").to_string();
        let folder = std::env::temp_dir().join(format!("chronaxie-cufile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let m = refusal(&folder);
        assert!(m.contains("CHRONAXIE_CUFILE names") && m.contains("libcufile.so.0"), "{m}");
        let file = folder.join("libcufile.so.0");
        std::fs::write(&file, "not an ELF file").unwrap();
        for path in [&folder, &file] {
            let m = refusal(path);
            assert!(m.contains("libcufile.so.0 cannot be used as cuFile"), "{m}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let m = refusal(&file);
        assert!(m.contains("does not exist"), "{m}");
        let m = refusal(Path::new("libc.so.6"));
        assert!(m.contains("does not exist"), "{m}");
    }
}
