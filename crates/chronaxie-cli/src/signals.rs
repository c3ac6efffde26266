//! What asks a command to stop: Ctrl-C all of them, the end of a job and of a terminal those whose runs can go on.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
/// The first of the signals that asked, where it was not Ctrl-C.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

/// Lets the first Ctrl-C ask the work to stop, and the second end the process.
pub(crate) fn watch_interrupts() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // A host that has a handler of its own (Python) keeps it; then Ctrl-C is its business.
        let _ = ctrlc::try_set_handler(|| {
            if ASKED.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
    });
}

/// Whether something has asked the work to stop.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Acquire)
}

/// The signal that asked first, with its name; nothing for Ctrl-C.
pub(crate) fn ended_by() -> Option<(u8, &'static str)> {
    match ENDED_BY.load(Ordering::Relaxed) {
        1 => Some((1, "SIGHUP")),
        15 => Some((15, "SIGTERM")),
        _ => None,
    }
}

#[cfg(not(unix))]
pub(crate) fn watch_ends() {}

/// Lets SIGTERM and SIGHUP ask the work to stop, too.
#[cfg(unix)]
pub(crate) fn watch_ends() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        watch(nix::sys::signal::Signal::SIGTERM);
        watch(nix::sys::signal::Signal::SIGHUP);
    });
}

/// What is ignored (by `nohup`) stays so, and a host's own handler stays, too.
#[cfg(unix)]
#[allow(unsafe_code)]
fn watch(signal: nix::sys::signal::Signal) {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
    let own = SigAction::new(SigHandler::Handler(end), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does what may be done in one, and what was there before is put back as it was.
    unsafe {
        if let Ok(before) = sigaction(signal, &own)
            && !matches!(before.handler(), SigHandler::SigDfl)
        {
            let _ = sigaction(signal, &before);
        }
    }
}

/// Only the first signal counts, and a later one if it comes more than a second after it: `timeout` sends two at once, and so does
/// a shell whose terminal closes.
#[cfg(unix)]
#[allow(unsafe_code)]
extern "C" fn end(signal: i32) {
    use nix::libc::{_exit, CLOCK_MONOTONIC, clock_gettime, timespec};
    use std::sync::atomic::AtomicI64;
    static FIRST: AtomicI64 = AtomicI64::new(-1);
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is where the clock's time goes; the call, `_exit` and the atomics are safe in a handler.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &mut now) };
    // Words of 32 bits on some systems.
    #[allow(clippy::useless_conversion)]
    let ms = i64::from(now.tv_sec) * 1000 + i64::from(now.tv_nsec) / 1_000_000;
    match FIRST.compare_exchange(-1, ms, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            if !ASKED.load(Ordering::Relaxed) {
                ENDED_BY.store(signal, Ordering::Relaxed);
            }
            ASKED.store(true, Ordering::Release);
        }
        // SAFETY: as above.
        Err(first) if ms - first > 1000 => unsafe { _exit(128 + signal) },
        Err(_) => {}
    }
}
