//! `chronaxie completions SHELL`.

use crate::Outcome;
use crate::args::{Cli, Completions};
use crate::output::Out;
use clap::CommandFactory;

pub(crate) fn run(args: &Completions, out: &mut Out) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "chronaxie", &mut script);
    out.bytes(&script)
}
