//! `chronaxie plan CONFIG --gpu NAME --gpus N`: what a network would be on so many GPUs.

use crate::Outcome;
use crate::args::{Common, Planned};
use crate::output::{Out, bytes, count, is_stdout, json_can_be_written, note, table, write_json};
use crate::simulate::replicas;
use chronaxie::config::Config;
use chronaxie::simulate::{CapacityOptions, CapacityReport, PlannedRun, capacity};
use chronaxie::spiking::capacity::Exchange;
use chronaxie::{Error, Result};

pub(crate) fn run(args: &Planned, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let mut config = Config::read(&args.config)?;
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    let gpus: Vec<usize> = args.gpus.iter().map(|n| *n as usize).collect();
    let mut options = CapacityOptions::new(args.gpu.as_str(), gpus);
    options.constants.clone_from(&args.constants);
    options.rate_hz = args.rate;
    options.rates_hz = args.rates.iter().map(|text| named(text)).collect::<Result<_>>()?;
    if args.exchange == "host" {
        options.exchange = Exchange::Host;
    }
    options.replicas = replicas(&args.side, &config)?;
    let report = capacity(&config, &options)?;
    report.notes.iter().for_each(|text| note(common.quiet, text));
    if !is_stdout(json) {
        for line in lines(&report) {
            out.line(line)?;
        }
    }
    write_json(json, &report, out)
}

/// `L4E=4.4`.
fn named(text: &str) -> Result<(String, f64)> {
    let read =
        || text.split_once('=').and_then(|(name, rate)| Some((name.trim().to_owned(), rate.trim().parse().ok()?)));
    read().ok_or_else(|| Error::config(format!("--rates {text}: write it as NAME=HZ, with commas between")))
}

fn lines(report: &CapacityReport) -> Vec<String> {
    let all = &report.estimates;
    let named = |n: usize| if n == 1 { "1 GPU".to_owned() } else { format!("{n} GPUs") };
    let heads: Vec<String> = all.iter().map(|e| named(e.estimate.gpus)).collect();
    let headings: Vec<&str> = std::iter::once("").chain(heads.iter().map(String::as_str)).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |what: &str, cell: &dyn Fn(&PlannedRun) -> String| {
        rows.push(std::iter::once(what.to_owned()).chain(all.iter().map(cell)).collect());
    };
    let size = |x: f64| bytes(x as u64);
    let us = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
    row("cells a GPU", &|e| count(e.estimate.neurons.round()));
    row("synapses a GPU", &|e| count(e.estimate.synapses.round()));
    row("memory a GPU, while it is made", &|e| size(e.estimate.build_bytes));
    row("memory a GPU, while it runs", &|e| size(e.estimate.run_bytes));
    row("  of which synapses", &|e| e.estimate.memory.map_or("-".to_owned(), |m| size(m.synapses)));
    row("a GPU tells others, a step", &|e| size(e.estimate.told.peer_bytes_per_step));
    row("  a second", &|e| e.estimate.told.peer_bytes_per_s.map_or("-".to_owned(), size));
    if all.iter().any(|e| e.estimate.machines > 1) {
        row("machines", &|e| e.estimate.machines.to_string());
        row("a machine tells others, a step", &|e| size(e.estimate.told.network_bytes_per_step));
        row("  once in so many steps", &|e| e.estimate.told.network_steps.to_string());
    }
    // All parts that some number of GPUs has, in the order of those that have most.
    let mut parts: Vec<&str> = Vec::new();
    let mut steps: Vec<_> = all.iter().filter_map(|e| e.estimate.step.as_ref()).collect();
    steps.sort_by_key(|s| std::cmp::Reverse(s.parts.len()));
    for part in steps.into_iter().flat_map(|s| &s.parts) {
        if !parts.contains(&part.what) {
            parts.push(part.what);
        }
    }
    for what in parts {
        row(&format!("{what}, us"), &|e| us(e.estimate.step.as_ref().map(|s| s.part(what))));
    }
    row("GPU, us a step", &|e| us(e.estimate.step.as_ref().map(|s| s.gpu_us)));
    row("host beside it, us", &|e| us(e.estimate.step.as_ref().map(|s| s.host_us)));
    row("step, us", &|e| us(e.estimate.step.as_ref().map(|s| s.us)));
    row("real-time factor", &|e| e.estimate.real_time_factor.map_or("-".to_owned(), |x| format!("{x:.4}")));
    row(&format!("run of {} ms, s", report.duration_ms), &|e| us(e.wall_ms.map(|ms| ms * 1e-3)));
    let mut lines = vec![format!(
        "{} cells, {} synapses, dt {} ms; {} spikes and {} events a step; {}: {}",
        count(report.cells as f64),
        count(report.synapses.round()),
        report.dt_ms,
        count(report.spikes_per_step),
        count(report.events_per_step.round()),
        report.card.name,
        report.card.measured
    )];
    lines.extend(table(&headings, &rows, 1));
    for (e, head) in all.iter().zip(&heads) {
        if let Some(step) = &e.estimate.step {
            lines.push(format!("{head}: {} binds", step.binds));
        }
        lines.extend(e.estimate.notes.iter().map(|text| format!("{head}: {text}")));
    }
    lines
}
