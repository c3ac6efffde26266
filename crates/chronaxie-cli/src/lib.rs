//! The command line of chronaxie: one file a subcommand. The Python wheel's script calls [`run`] too.
//!
//! Results go to standard output; progress, logs and errors to standard error. Exit codes: 0; 1 something failed; 2
//! usage or input; 130 interrupted, 143 by SIGTERM, 129 by SIGHUP. A closed pipe ends a command in silence.

mod analyze;
mod args;
mod bench;
mod check;
mod compile;
mod completions;
mod devices;
mod output;
mod partition;
mod plan;
mod predict;
mod profile;
mod progress;
mod select;
mod signals;
mod simulate;
mod train;
mod version;

use args::{Cli, Command};
use chronaxie::bench::{Provenance, date_utc};
use chronaxie::cuda::nvrtc;
use chronaxie::{Error, ErrorKind, log, pool};
use clap::{CommandFactory, Parser};
use output::Out;
use std::ffi::OsString;
use std::time::SystemTime;

pub use devices::inventory;

/// How a command ended.
pub(crate) enum Stop {
    /// An error to be printed.
    Error(Error),
    /// What was printed already says that something failed.
    Failed,
    /// Nobody reads the results any more.
    ClosedPipe,
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Error(e)
    }
}

pub(crate) type Outcome = Result<(), Stop>;

/// Runs the command that `argv` spells (the program's name first) and returns its exit code.
pub fn run<I, T>(argv: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(e) => {
            // Help goes to standard output with code 0, usage errors to standard error with code 2.
            let _ = e.print();
            return u8::try_from(e.exit_code()).unwrap_or(2);
        }
    };
    match dispatch(&cli) {
        Ok(()) | Err(Stop::ClosedPipe) => 0,
        Err(Stop::Failed) => 1,
        Err(Stop::Error(e)) => match signals::ended_by().filter(|_| e.kind() == &ErrorKind::Interrupted) {
            Some((signal, name)) => {
                output::error_line(&e.context(name));
                128 + signal
            }
            None => {
                output::error_line(&e);
                e.exit_code()
            }
        },
    }
}

fn dispatch(cli: &Cli) -> Outcome {
    let common = &cli.common;
    match (common.quiet, common.verbose) {
        (true, _) => log::set_level(Some(log::Level::Error)),
        (_, 0) => {}
        (_, 1) => log::set_level(Some(log::Level::Info)),
        _ => log::set_level(Some(log::Level::Debug)),
    }
    if let Some(threads) = common.threads {
        pool::set_num_threads(threads.into());
    }
    let mut out = Out::new();
    match &cli.command {
        _ if cli.version => version::run(cli.version_json.as_ref(), &mut out),
        None => {
            let _ = Cli::command().print_help();
            Err(Error::config("a command is needed, such as `chronaxie devices`").into())
        }
        Some(Command::Devices(a)) => devices::run(a, &mut out),
        Some(Command::Check(a)) => check::run(a, common, &mut out),
        Some(Command::Bench(a)) => bench::run(a, common, &mut out),
        Some(Command::Profile(a)) => profile::run(a, common, &mut out),
        Some(Command::Compile(a)) => compile::run(a, common, &mut out),
        Some(Command::Train(a)) => train::run(a, common, &mut out),
        Some(Command::Predict(a)) => predict::run(a, common, &mut out),
        Some(Command::Simulate(a)) => simulate::run(a, common, &mut out),
        Some(Command::Analyze(a)) => analyze::run(a, common, &mut out),
        Some(Command::Partition(a)) => partition::run(a, common, &mut out),
        Some(Command::Plan(a)) => plan::run(a, common, &mut out),
        Some(Command::Completions(a)) => completions::run(a, &mut out),
    }
}

/// What is known of this build and machine, for records of runs.
pub fn provenance() -> Provenance {
    Provenance {
        date: date_utc(SystemTime::now()),
        commit: commit(),
        driver: version::driver(),
        nvrtc: nvrtc().ok().map(|n| version::dotted(n.version())),
    }
}

/// The commit this was built from, where git knew it.
pub(crate) fn commit() -> Option<String> {
    option_env!("CHRONAXIE_BUILD_COMMIT").map(str::to_owned)
}
