//! The few messages that are not results: levels by `CHRONAXIE_LOG`, written to standard error or to a hook.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// How much a message matters. `CHRONAXIE_LOG` names the least that is shown: `off`, `error`, `warn` (the default),
/// `info`, `debug`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something works, but not as it should.
    Warn,
    /// What was chosen, and why.
    Info,
    /// What happens inside: compiles, cache hits, libraries opened.
    Debug,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

type Hook = Box<dyn Fn(Level, &str) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

fn parse(name: Option<&str>) -> Option<Level> {
    match name {
        Some("off" | "none") => None,
        Some("error") => Some(Level::Error),
        Some("info") => Some(Level::Info),
        Some("debug" | "trace") => Some(Level::Debug),
        _ => Some(Level::Warn),
    }
}

/// 0: as `CHRONAXIE_LOG` says; 1: nothing; 2 and above: up to the level of that number.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Shows messages up to `level` from now on, or none, whatever `CHRONAXIE_LOG` says.
pub fn set_level(level: Option<Level>) {
    CHOSEN.store(level.map_or(1, |l| l as u8 + 2), Ordering::Relaxed);
}

fn threshold() -> Option<Level> {
    match CHOSEN.load(Ordering::Relaxed) {
        0 => {}
        1 => return None,
        n => return [Level::Error, Level::Warn, Level::Info, Level::Debug].get(usize::from(n) - 2).copied(),
    }
    static THRESHOLD: OnceLock<Option<Level>> = OnceLock::new();
    *THRESHOLD.get_or_init(|| parse(std::env::var("CHRONAXIE_LOG").ok().as_deref()))
}

/// Whether a message of `level` is shown, so that a costly one need not be built.
pub fn enabled(level: Level) -> bool {
    threshold().is_some_and(|t| level <= t)
}

/// Sends all later messages to `hook` instead of standard error (a progress bar, Python's logging).
pub fn set_hook(hook: impl Fn(Level, &str) + Send + Sync + 'static) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
}

/// Shows `message` if `level` is enabled.
pub fn log(level: Level, message: impl fmt::Display) {
    if !enabled(level) {
        return;
    }
    match &*HOOK.read().unwrap_or_else(PoisonError::into_inner) {
        Some(hook) => hook(level, &message.to_string()),
        None => {
            use std::io::Write;
            // A closed standard error is no reason to fail: the message is lost, the work is not.
            let _ = writeln!(std::io::stderr(), "chronaxie: {level}: {message}");
        }
    }
}

/// A warning.
pub fn warn(message: impl fmt::Display) {
    log(Level::Warn, message);
}

/// A choice and its reason.
pub fn info(message: impl fmt::Display) {
    log(Level::Info, message);
}

/// A detail.
pub fn debug(message: impl fmt::Display) {
    log(Level::Debug, message);
}

/// A warning that is shown once a process for each `key`; returns whether this was the time.
pub fn warn_once(key: &str, message: impl fmt::Display) -> bool {
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let first =
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(HashSet::new).insert(key.to_string());
    if first {
        warn(message);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_parse_and_order() {
        assert_eq!(parse(None), Some(Level::Warn));
        assert_eq!(parse(Some("nonsense")), Some(Level::Warn));
        assert_eq!(parse(Some("off")), None);
        assert!(Level::Error < Level::Warn && Level::Info < Level::Debug);
    }

    #[test]
    fn a_warning_for_a_key_comes_once() {
        assert!(warn_once("log::tests::key", "said once by a test"));
        assert!(!warn_once("log::tests::key", "never said"));
    }
}
