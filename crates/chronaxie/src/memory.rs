//! How much memory there is on the host.

use crate::{Error, ErrorKind, Result};

/// Bytes that can be allocated, where the system says.
#[cfg(target_os = "linux")]
pub(crate) fn free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
#[cfg(not(target_os = "linux"))]
pub(crate) fn free() -> Option<u64> {
    None
}

/// What a size that a file says may take where the system does not say what is free: 32 GB.
const UNKNOWN: u64 = 1 << 35;

/// Refuses `asked` bytes if they are not free; the sentence begins with `what` needs them.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn require(asked: u64, what: impl FnOnce() -> String) -> Result<()> {
    let free = room();
    if asked <= free {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfMemory { asked, free }, format!("{} {}", what(), lacking(asked, free))))
}

/// `needs 9.1 GB, but 3.4 GB are free`.
pub(crate) fn lacking(asked: u64, free: u64) -> String {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    format!("needs {:.1} GB, but {:.1} GB are free", gb(asked), gb(free))
}

/// What there is for a size that a file says.
pub(crate) fn room() -> u64 {
    free().unwrap_or(UNKNOWN)
}
