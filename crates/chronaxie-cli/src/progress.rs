//! Progress on standard error: a bar on a terminal; elsewhere a line when work begins and one every ten seconds.

use crate::signals;
use chronaxie::log;
use chronaxie::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a line is printed where there is no terminal.
const EVERY: Duration = Duration::from_secs(10);

struct State {
    task: String,
    total: u64,
    since: Instant,
    printed: Instant,
}

/// Reports to whoever sits at the terminal, or reads the log.
pub(crate) struct Terminal {
    quiet: bool,
    bar: ProgressBar,
    on_terminal: bool,
    state: Mutex<State>,
    /// Set where the results have no reader any more.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Terminal {
    pub(crate) fn new(quiet: bool) -> Self {
        signals::watch_interrupts();
        let on_terminal = std::io::stderr().is_terminal() && !quiet;
        let target = if on_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if on_terminal {
            // Log lines go above the bar.
            let above = bar.clone();
            log::set_hook(move |level, message| {
                above.suspend(|| {
                    let _ = writeln!(std::io::stderr(), "chronaxie: {level}: {message}");
                });
            });
        }
        let now = Instant::now();
        let state = Mutex::new(State { task: String::new(), total: 0, since: now, printed: now });
        Self { quiet, bar, on_terminal, state, stop: Arc::default() }
    }
    /// Of a run that can go on later: SIGTERM and SIGHUP stop it as Ctrl-C does.
    pub(crate) fn of_run(quiet: bool) -> Self {
        signals::watch_ends();
        Self::new(quiet)
    }
    /// Runs `print` with the bar out of the way.
    pub(crate) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
    fn say(&self, line: &str) {
        if !self.quiet {
            self.bar.suspend(|| {
                let _ = writeln!(std::io::stderr(), "{line}");
            });
        }
    }
}

impl Progress for Terminal {
    fn start(&self, task: &str, total: u64) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { task: task.to_owned(), total, since: now, printed: now };
        self.bar.reset();
        if total > 0 {
            self.bar.set_length(total);
        }
        let template = if total > 0 {
            "{prefix} [{bar:24}] {pos}/{len} {eta} {wide_msg}"
        } else {
            "{prefix} {spinner} {wide_msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_prefix(task.to_owned());
    }
    fn advance(&self, done: u64, note: &str) {
        self.bar.set_position(done);
        self.bar.set_message(note.to_owned());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.on_terminal && state.printed.elapsed() >= EVERY {
            state.printed = Instant::now();
            let of = if state.total > 0 { format!("{done}/{}", state.total) } else { done.to_string() };
            self.say(&format!("{}: {of} after {:.0} s: {note}", state.task, state.since.elapsed().as_secs_f64()));
        }
    }
    fn finish(&self) {
        self.bar.finish_and_clear();
    }
    fn log(&self, line: &str) {
        self.say(line);
    }
    fn interrupted(&self) -> bool {
        signals::asked() || self.stop.load(Ordering::Relaxed)
    }
}
