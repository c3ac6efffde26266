//! `chronaxie partition CONFIG --parts N`: the ways to share a network out, side by side.

use crate::Outcome;
use crate::args::{Common, Partition};
use crate::output::{Out, count, is_stdout, json_can_be_written, note, table, write_json};
use crate::progress::Terminal;
use chronaxie::config::Config;
use chronaxie::simulate::{PartitionOptions, PartitionReport, partition};

pub(crate) fn run(args: &Partition, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let mut config = Config::read(&args.config)?;
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    let mut options = PartitionOptions::new(args.parts as usize);
    options.method.clone_from(&args.method);
    options.rate_hz = args.rate;
    options.out.clone_from(&args.out);
    let report = partition(&config, &options, &Terminal::new(common.quiet))?;
    report.notes.iter().for_each(|text| note(common.quiet, text));
    if !is_stdout(json) {
        for line in lines(&report) {
            out.line(line)?;
        }
    }
    if let Some(folder) = &report.out {
        note(common.quiet, &format!("the picture is in {}", folder.display()));
    }
    write_json(json, &report, out)
}

/// The least and the greatest.
fn span(values: impl Iterator<Item = f64> + Clone) -> String {
    let (low, high) = values.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), x| (l.min(x), h.max(x)));
    if low == high { count(low) } else { format!("{} to {}", count(low), count(high)) }
}

fn lines(report: &PartitionReport) -> Vec<String> {
    let maybe = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.2}"));
    let row = |m: &chronaxie::simulate::MethodReport| {
        let c = &m.cost;
        let all: f64 = c.synapses.iter().sum();
        vec![
            m.method.clone(),
            span(c.neurons.iter().map(|n| *n as f64)),
            span(c.synapses.iter().map(|n| n.round())),
            count(c.cut_synapses.round()),
            format!("{:.1}", 100.0 * c.cut_synapses / all.max(1.0)),
            format!("{:.2}", c.crossing_spikes),
            maybe(c.min_delay_ms),
            if c.exchange_steps > 0 { c.exchange_steps.to_string() } else { "-".to_owned() },
            maybe(c.mean_delay_ms),
            format!("{:.3}", c.balance),
            format!("{:.1}", c.step_us),
        ]
    };
    let rows: Vec<Vec<String>> = report.methods.iter().map(row).collect();
    let headings = [
        "method",
        "cells a part",
        "synapses a part",
        "cut",
        "%",
        "spikes crossing a step",
        "shortest delay",
        "exchange, steps",
        "mean, ms",
        "balance",
        "step, us",
    ];
    let mut lines = table(&headings, &rows, 1);
    let how = if report.methods.iter().all(|m| m.cost.exact) {
        "synapses were counted one by one"
    } else {
        "synapses are expected, from samples and formulas"
    };
    lines.push(format!("{how}; of least expected cost: {}", report.best));
    lines
}
