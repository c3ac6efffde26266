//! `chronaxie simulate CONFIG`: a spiking network from its configuration to its folder.

use crate::args::{Common, Side, Simulate};
use crate::output::{Out, is_stdout, json_can_be_written, note, table, write_json};
use crate::progress::Terminal;
use crate::{Outcome, provenance};
use chronaxie::config::Config;
use chronaxie::simulate::{
    MOST_REPLICAS, PartsOptions, Report, RunOptions, grid, join, resolved, run as simulate, seeds,
};
use chronaxie::train::default_out;
use chronaxie::{Backend, Error, Result};
use std::ffi::OsString;

/// What the flags override: as the user wrote them, and as `--set` spells it.
fn flags(args: &Simulate) -> Vec<(String, String)> {
    let flag = |key: &str, written: &str, value: String| {
        (format!("--{} {written}", key.replace('_', "-")), format!("simulation.{key}={value}"))
    };
    let text = |key: &str, value: &Option<String>| value.as_ref().map(|v| flag(key, v, format!("\"{v}\"")));
    // A bare number is in ms; with quotes it would be refused.
    let time = |key: &str, value: &Option<String>| match value {
        Some(v) if v.trim().parse::<f64>().is_ok() => Some(flag(key, v, v.trim().to_owned())),
        other => text(key, other),
    };
    let all = [
        time("duration", &args.duration),
        args.seed.map(|seed| flag("seed", &seed.to_string(), seed.to_string())),
        args.scale.map(|scale| flag("scale", &scale.to_string(), format!("{scale:?}"))),
        text("record", &args.record),
        text("hash", &args.hash),
        time("checkpoint_every", &args.checkpoint_every),
    ];
    all.into_iter().flatten().collect()
}

/// The same with what `--set` says; a flag wins.
fn overrides(args: &Simulate) -> Vec<String> {
    args.set.iter().cloned().chain(flags(args).into_iter().map(|(_, assignment)| assignment)).collect()
}

fn config(args: &Simulate) -> Result<Config> {
    let mut config = Config::read(&args.config)?;
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    flags(args).iter().try_for_each(|(flag, assignment)| config.set_by(flag, assignment))?;
    Ok(config)
}

pub(crate) fn run(args: &Simulate, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let config = config(args)?;
    if args.print_config {
        return out.bytes(resolved(&config)?.as_bytes());
    }
    if let (Some(part @ 1..), Some(of), Some(place)) = (args.part, args.of, &args.join) {
        let on = (args.backend.parse::<Backend>()?, args.gpus.map(|n| n as usize), args.transport.parse()?);
        return Ok(join(&config, part as usize, of as usize, place, on, &Terminal::of_run(common.quiet))?);
    }
    let mut options = match &args.resume {
        Some(path) => RunOptions::resume_from(path)?,
        None => RunOptions::new(args.out.clone().unwrap_or_else(|| default_out(&args.config))),
    };
    options.backend = args.backend.parse::<Backend>()?;
    if let (Some(gpus), true, None) = (args.gpus, args.backend.contains(':'), args.part) {
        return Err(Error::config(format!(
            "--backend {} is one GPU and --gpus {gpus} a count: give one of them",
            args.backend
        ))
        .into());
    }
    options.gpus = args.gpus.map(|n| n as usize);
    if options.gpus.is_some() && args.parts.or(args.of).is_none() {
        options.method.clone_from(&args.method);
    }
    options.arguments = std::env::args().collect();
    options.parts = parts(args)?;
    if options.parts.is_some() && options.backend == Backend::Auto && options.gpus.is_none() {
        options.backend = Backend::Cpu;
    }
    options.replicas = replicas(&args.side, &config)?;
    options.provenance = provenance();
    let report = simulate(&config, &options, &Terminal::of_run(common.quiet))?;
    if !is_stdout(json) {
        rows(&report)
            .iter()
            .chain(&weights(&report))
            .chain(&several(&report))
            .for_each(|line| note(common.quiet, line));
    }
    match json {
        // The object is what a run ends with; a file gets it besides.
        None => write_json(Some("-".as_ref()), &report, out),
        Some(_) => write_json(json, &report, out),
    }
}

/// What each of several networks side by side overrides; nothing for one.
pub(crate) fn replicas(side: &Side, config: &Config) -> Result<Vec<Vec<String>>> {
    let own = match (side.replicas, &side.seeds) {
        (Some(count), _) => seeds(config, count)?,
        (None, Some(list)) => list.0.clone(),
        (None, None) if side.grid.is_empty() => return Ok(Vec::new()),
        (None, None) => Vec::new(),
    };
    let counts = side.grid.iter().map(|(_, values)| values.0.len());
    let all = counts.fold(own.len().max(1), usize::saturating_mul);
    if all > MOST_REPLICAS {
        return Err(Error::config(format!("{all} networks side by side are more than {MOST_REPLICAS}")));
    }
    let values: Vec<_> = side.grid.iter().map(|(key, values)| (key.clone(), values.0.clone())).collect();
    Ok(grid(&own, &values))
}

/// How the network is shared out.
fn parts(args: &Simulate) -> Result<Option<PartsOptions>> {
    let Some(count) = args.parts.or(args.of) else {
        let alone = (args.method == "auto" || args.gpus.is_some()) && args.nodes == 1 && args.transport == "auto";
        let why = "--nodes and --transport are for --parts N, and --method for that or --gpus N";
        return if alone { Ok(None) } else { Err(Error::config(why)) };
    };
    let mut parts = PartsOptions::new(count as usize, program(args));
    parts.method.clone_from(&args.method);
    parts.nodes = args.nodes as usize;
    parts.listen.clone_from(&args.join);
    parts.transport = args.transport.parse()?;
    parts.spread = !args.backend.contains(':');
    Ok(Some(parts))
}

/// What begins another part: this program, with whatever comes before the command (a Python script may), and the same
/// configuration.
fn program(args: &Simulate) -> Vec<OsString> {
    let own = std::env::current_exe().map_or_else(|_| "chronaxie".into(), OsString::from);
    let before = std::env::args_os().skip(1).take_while(|a| a != "simulate");
    let mut all: Vec<OsString> = std::iter::once(own).chain(before).collect();
    all.extend(["simulate".into(), args.config.clone().into_os_string(), "--quiet".into()]);
    all.extend(overrides(args).into_iter().flat_map(|set| ["--set".into(), set.into()]));
    all
}

/// The weights that change, at the start and at the end.
fn weights(report: &Report) -> Vec<String> {
    if report.weights.is_empty() {
        return Vec::new();
    }
    let cells = |w: &chronaxie::spiking::simulate::Weights| {
        let [_, low, _, middle, _, high, _] = w.quantiles;
        [w.mean, w.sd, low, middle, high].map(|x| format!("{x:.3}"))
    };
    let row = |w: &chronaxie::simulate::WeightReport| {
        let head = [w.projection.clone(), w.after.count.to_string()];
        head.into_iter().chain(cells(&w.before)).chain(cells(&w.after)).collect()
    };
    let rows: Vec<Vec<String>> = report.weights.iter().map(row).collect();
    let headings =
        ["projection", "synapses", "mean", "sd", "5 %", "median", "95 %", "mean now", "sd", "5 %", "median", "95 %"];
    table(&headings, &rows, 1)
}

/// What each of several networks came to.
fn several(report: &Report) -> Vec<String> {
    if report.replicas.is_empty() {
        return Vec::new();
    }
    let row = |(k, r): (usize, &chronaxie::simulate::ReplicaReport)| {
        let rate = r.spikes as f64 / (r.cells.max(1) as f64 * r.model_ms * 1e-3);
        let folder = r.out.file_name().map(|name| name.to_string_lossy().into_owned());
        vec![format!("#{k}"), r.spikes.to_string(), format!("{rate:.3}"), folder.unwrap_or_default()]
    };
    let rows: Vec<Vec<String>> = report.replicas.iter().enumerate().map(row).collect();
    table(&["replica", "spikes", "rate Hz", "folder"], &rows, 1)
}

/// The statistics of each population, with what others measured beside them.
fn rows(report: &Report) -> Vec<String> {
    let number = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    let rows: Vec<Vec<String>> = report
        .populations
        .iter()
        .map(|p| {
            vec![
                p.name.clone(),
                p.size.to_string(),
                number(Some(p.rate_hz), 3),
                number(p.reference_rate_hz, 3),
                number(p.cv, 3),
                number(p.reference_cv, 3),
                number(p.correlation, 4),
                number(p.reference_correlation, 4),
            ]
        })
        .collect();
    let headings = ["population", "cells", "rate Hz", "reference", "CV", "reference", "correlation", "reference"];
    table(&headings, &rows, 1)
}
