//! Waiting for several GPUs, one of which may never answer: a wait of the driver has no bound, so the host asks.

use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long a GPU has when the others are done: each of these has waited for it already, as long as a kernel has patience.
const LATE: Duration = Duration::from_secs(12);

/// Waits until all of `count` are done, whose names are given.
///
/// # Errors
/// `Lost`, where one fails, or is not done long after another.
pub(super) fn wait_for_all<'n>(
    count: usize,
    name: impl Fn(usize) -> &'n str,
    is_done: impl Fn(usize) -> Result<bool>,
) -> Result<()> {
    let mut since = None;
    loop {
        let (mut waits_for, mut ended) = (None, false);
        for k in 0..count {
            match is_done(k) {
                Ok(true) => ended = true,
                Ok(false) => waits_for = waits_for.or(Some(k)),
                Err(e) => return Err(Error::lost(format!("GPU {k} of {count} ({}) is lost: {e}", name(k)))),
            }
        }
        let Some(k) = waits_for else { return Ok(()) };
        if ended && since.get_or_insert_with(Instant::now).elapsed() > LATE {
            let s = LATE.as_secs();
            return Err(Error::lost(format!("GPU {k} of {count} ({}) has not answered for {s} s", name(k))));
        }
        std::thread::yield_now();
    }
}

/// Waits for a GPU that has little to do.
///
/// # Errors
/// As [`wait_for_all`].
pub(super) fn wait_for(name: &str, is_done: impl Fn() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    while !is_done()? {
        if since.elapsed() > LATE {
            return Err(Error::lost(format!("a GPU ({name}) has not answered for {} s", LATE.as_secs())));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// What ended a step on one of several GPUs.
pub(super) fn of_several(e: Error, count: usize) -> Error {
    match e.kind() {
        crate::ErrorKind::Lost => e,
        _ if count > 1 => Error::lost(format!("a GPU of {count} is lost: {e}")),
        _ => e,
    }
}
