//! The driver's library: opened once, checked for its age, never closed.

use super::sys::{DriverApi, DriverProbe, code};
use crate::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

/// The oldest driver that is served, as the driver itself writes versions: 1000 x major + 10 x minor.
const OLDEST: i32 = 12040;

#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// The loaded driver. One a process; a forked child must not use its parent's.
pub struct Driver {
    pub(super) api: DriverApi,
    version: (u32, u32),
    pid: u32,
    devices: usize,
}

/// Calls a function of the driver's table and turns its code into a `Result` that names the function.
///
/// To be used inside `unsafe`: what the arguments point to must be what the C signature asks for.
macro_rules! cu {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $driver.check(($driver.api.$name)($($arg),*), stringify!($name))
    };
}
pub(super) use cu;

impl Driver {
    /// The driver of this process, opened and initialised at the first call.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where no driver is installed, where it is older than CUDA 12.4, where it cannot be
    /// initialised, and in a process forked from one that had initialised it.
    pub fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        let driver = DRIVER.get_or_init(|| Self::open(LIBRARIES)).as_ref().map_err(Clone::clone)?;
        driver.check_process()?;
        Ok(driver)
    }

    /// Opens the first of `libraries` that the loader finds.
    pub(super) fn open(libraries: &[&str]) -> Result<Self> {
        let mut why = Vec::new();
        let library = libraries.iter().find_map(|name| {
            // SAFETY: loading the driver runs its initialisers, which have no requirement on the caller.
            match unsafe { Library::new(*name) } {
                Ok(l) => Some((l, *name)),
                Err(e) => {
                    why.push(loader_reason(&e));
                    None
                }
            }
        });
        let Some((library, name)) = library else {
            return Err(Error::unavailable(format!(
                "no CUDA driver was found: the loader was asked for {} ({}); install the NVIDIA driver (550 or newer, \
                 for CUDA 12.4), or in a container start it with the GPUs (--gpus all)",
                libraries.join(" and "),
                why.join("; ")
            )));
        };
        let missing = |symbol: &str| {
            Error::unavailable(format!(
                "the library {name} that the loader found has no symbol `{symbol}`, so it is not the CUDA driver of 12.4 \
                 or newer; install the NVIDIA driver 550 or newer"
            ))
        };
        let probe = DriverProbe::load(&library).map_err(missing)?;
        let mut version = 0;
        // SAFETY: the argument is a live integer.
        let result = unsafe { (probe.cuDriverGetVersion)(&raw mut version) };
        if result != code::SUCCESS || version < OLDEST {
            return Err(Error::unavailable(format!(
                "the CUDA driver {name} serves CUDA {}.{}, and 12.4 is the oldest that is supported; install the NVIDIA \
                 driver 550 or newer",
                version / 1000,
                version % 1000 / 10
            )));
        }
        let api = DriverApi::load(&library).map_err(missing)?;
        // The driver stays loaded for the life of the process: its own threads and exit handlers rely on it.
        std::mem::forget(library);
        let version = ((version / 1000) as u32, (version % 1000 / 10) as u32);
        let mut driver = Self { api, version, pid: std::process::id(), devices: 0 };
        driver.initialise()?;
        Ok(driver)
    }

    fn initialise(&mut self) -> Result<()> {
        // SAFETY: cuInit takes flags that must be 0.
        let result = unsafe { (self.api.cuInit)(0) };
        if result == code::NO_DEVICE {
            return Ok(());
        }
        self.check(result, "cuInit").map_err(|e| {
            let hint = if result == code::NOT_INITIALIZED {
                "; in a forked process CUDA cannot be used if its parent had used it: start workers with `spawn`"
            } else {
                ""
            };
            Error::unavailable(format!("the CUDA driver is installed but does not start: {e}{hint}"))
        })?;
        let mut count = 0;
        // SAFETY: the argument is a live integer.
        unsafe { cu!(self, cuDeviceGetCount(&raw mut count)) }?;
        self.devices = count.max(0) as usize;
        Ok(())
    }

    /// The CUDA version that the driver serves: (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Devices that this process may see.
    pub fn device_count(&self) -> usize {
        self.devices
    }

    /// Whether this process is the one that initialised the driver.
    pub(super) fn same_process(&self) -> bool {
        std::process::id() == self.pid
    }

    /// Refuses a process that was forked after the driver had been initialised.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.same_process() {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "CUDA cannot be used in process {}: it was forked from process {} after CUDA had been initialised there; \
             start workers with `spawn`, or use CUDA first in the child",
            std::process::id(),
            self.pid
        )))
    }

    #[inline]
    pub(super) fn check(&self, result: u32, call: &str) -> Result<()> {
        if result == code::SUCCESS { Ok(()) } else { Err(self.error(result, call)) }
    }

    #[cold]
    fn error(&self, result: u32, call: &str) -> Error {
        if let Err(forked) = self.check_process() {
            return forked;
        }
        let hint = match result {
            code::ILLEGAL_ADDRESS..=code::LAUNCH_FAILED if result != code::LAUNCH_OUT_OF_RESOURCES => {
                "; an earlier kernel failed, and this process can no longer use the device: run again with \
                 CHRONAXIE_SYNC=1 to learn which"
            }
            _ => "",
        };
        Error::new(ErrorKind::Cuda, format!("{call} failed: {}{hint}", self.describe(result)))
    }

    /// A result code in words: its name and the driver's sentence for it.
    pub(super) fn describe(&self, result: u32) -> String {
        let text = |f: unsafe extern "system" fn(u32, *mut *const c_char) -> u32| {
            let mut p = std::ptr::null();
            // SAFETY: p is a live pointer; the driver writes a string that lives as long as itself, or null.
            unsafe { f(result, &raw mut p) };
            // SAFETY: a string that the driver gave is terminated and static.
            (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
        };
        match (text(self.api.cuGetErrorName), text(self.api.cuGetErrorString)) {
            (Some(name), Some(sentence)) => format!("{name} ({sentence})"),
            _ => format!("CUDA error {result}"),
        }
    }
}

/// What the loader itself said; the error's own words are only that it failed.
pub(super) fn loader_reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(libraries: &[&str]) -> String {
        let e = Driver::open(libraries).err().expect("this library is no driver");
        assert_eq!(e.kind(), &ErrorKind::Unavailable);
        e.to_string()
    }

    #[test]
    fn an_absent_driver_is_a_sentence() {
        let m = refusal(&["libno-such-driver.so.1", "libno-such-driver.so"]);
        assert!(m.contains("libno-such-driver.so.1 and libno-such-driver.so"), "{m}");
        assert!(m.contains("install the NVIDIA driver"), "{m}");
    }

    #[test]
    fn a_file_that_is_no_library_is_a_sentence() {
        let file = std::env::temp_dir().join(format!("chronaxie-fake-driver-{}.so", std::process::id()));
        std::fs::write(&file, "not an ELF file").unwrap();
        let m = refusal(&[file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        assert!(m.contains("no CUDA driver was found") && m.contains("chronaxie-fake-driver"), "{m}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_the_symbols_is_a_sentence() {
        let m = refusal(&["libc.so.6"]);
        assert!(m.contains("libc.so.6") && m.contains("`cuDriverGetVersion`"), "{m}");
    }
}
