//! `chronaxie train CONFIG.toml`: a run from its configuration to its folder.

use crate::args::{Common, Train, TrainSettings};
use crate::output::{Out, json_can_be_written, write_json};
use crate::progress::Terminal;
use crate::{Outcome, provenance};
use chronaxie::config::Config;
use chronaxie::train::{RunOptions, default_out, resolved, run as train};
use chronaxie::{Backend, Result};

/// What the flags override, as `--set` spells it; a later one wins.
pub(crate) fn overrides(settings: &TrainSettings) -> Vec<String> {
    let seed = settings.seed.map(|seed| format!("train.seed={seed}"));
    let precision = settings.precision.map(|p| format!("train.precision=\"{}\"", p.name()));
    settings.set.iter().cloned().chain(seed).chain(precision).collect()
}

fn config(args: &Train) -> Result<Config> {
    let mut config = Config::read(&args.config)?;
    overrides(&args.settings).iter().try_for_each(|assignment| config.set(assignment))?;
    Ok(config)
}

pub(crate) fn run(args: &Train, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let config = config(args)?;
    if args.settings.print_config {
        return out.bytes(resolved(&config)?.as_bytes());
    }
    let folder = args.out.clone().unwrap_or_else(|| default_out(&args.config));
    let options = RunOptions::new(folder)
        .backend(args.backend.parse::<Backend>()?)
        .resume(args.resume)
        .arguments(std::env::args().collect())
        .provenance(provenance());
    let report = train(&config, &options, &Terminal::of_run(common.quiet))?;
    match json {
        // The object is what a run ends with; a file gets it besides.
        None => write_json(Some("-".as_ref()), &report, out),
        Some(_) => write_json(json, &report, out),
    }
}
