//! How long work reports to whoever waits for it. The library knows no terminal: the command line implements this.

/// Receives what long work has to say. Every method does nothing by default.
pub trait Progress: Sync {
    /// Work named `task` begins; `total` is its number of steps, 0 where it is not known.
    fn start(&self, task: &str, total: u64) {
        let _ = (task, total);
    }
    /// `done` of the steps are finished; `note` is what is being done.
    fn advance(&self, done: u64, note: &str) {
        let _ = (done, note);
    }
    /// The work has ended.
    fn finish(&self) {}
    /// A line that stays: an epoch's result, a warning.
    fn log(&self, line: &str) {
        let _ = line;
    }
    /// Whether the user asked to stop; long work asks between steps and returns an error of kind `Interrupted`.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Nobody waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// An error if the user asked to stop.
pub(crate) fn stop_if_interrupted(progress: &dyn Progress, doing: &str) -> crate::Result<()> {
    if progress.interrupted() {
        return Err(crate::Error::new(crate::ErrorKind::Interrupted, format!("{doing} was interrupted")));
    }
    Ok(())
}
