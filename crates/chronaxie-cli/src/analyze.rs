//! `chronaxie analyze RECORDING`: what the spikes of a run are like.

use crate::Outcome;
use crate::args::{Analyze, Common};
use crate::output::{Out, is_stdout, json_can_be_written, note, table, write_json};
use chronaxie::Backend;
use chronaxie::simulate::{AnalysisReport, AnalyzeOptions, analyze};

pub(crate) fn run(args: &Analyze, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let mut options = AnalyzeOptions::new(&args.recording);
    options.network.clone_from(&args.network);
    options.discard_ms = args.discard;
    options.bin_ms = args.bin;
    options.burst_interval_ms = args.burst_interval;
    options.burst_spikes = args.burst_spikes.into();
    options.out.clone_from(&args.out);
    options.backend = args.backend.parse::<Backend>()?;
    let report = analyze(&options)?;
    report.notes.iter().for_each(|text| note(common.quiet, text));
    if !is_stdout(json) {
        for line in lines(&report) {
            out.line(line)?;
        }
    }
    if let Some(folder) = &report.out {
        note(common.quiet, &format!("pictures are in {}", folder.display()));
    }
    write_json(json, &report, out)
}

fn lines(report: &AnalysisReport) -> Vec<String> {
    let number = |x: f64, digits: usize| format!("{x:.digits$}");
    let maybe = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| number(x, digits));
    let mut lines = vec![format!(
        "{} spikes from {:.1} to {:.1} ms; {} bins of {} ms; bursts: {} spikes within {} ms of each other",
        report.spikes,
        report.start_ms,
        report.stop_ms,
        report.bins,
        report.bin_ms,
        report.burst_spikes,
        report.burst_interval_ms
    )];
    let rows = report.populations.iter().map(|p| {
        let m = &p.measures;
        vec![
            p.name.clone(),
            p.size.to_string(),
            number(m.rate_hz.mean, 3),
            number(100.0 * m.silent, 1),
            maybe(m.interval_ms.map(|x| x.mean), 2),
            maybe(m.interval_median_ms, 2),
            maybe(m.cv.map(|cv| cv.mean), 3),
            number(m.synchrony.chi, 4),
            number(m.synchrony.fano, 2),
            number(m.bursts.rate_hz, 3),
            number(100.0 * m.bursts.share, 1),
            number(m.entropy_bits.mean, 4),
            m.mutual_information_bits.map_or("-".to_owned(), |i| format!("{:.2e}", i.mean)),
        ]
    });
    let headings = [
        "population",
        "cells",
        "rate Hz",
        "silent %",
        "ISI ms",
        "median",
        "CV",
        "chi",
        "Fano",
        "bursts Hz",
        "in bursts %",
        "entropy",
        "mutual",
    ];
    lines.extend(table(&headings, &rows.collect::<Vec<_>>(), 1));
    lines.push(format!(
        "entropy and mutual information in bits a bin; unrelated trains would have {:.2e} by counting",
        report.mutual_information_bias_bits
    ));
    if report.populations.iter().any(|p| p.network.is_some()) {
        let rows = report.populations.iter().filter_map(|p| p.network.as_ref().map(|g| (p, g))).map(|(p, g)| {
            let degree = |d: &chronaxie::spiking::analysis::Spread| {
                [number(d.mean, 1), number(d.sd, 1), number(d.min, 0), number(d.max, 0)]
            };
            let mut row = vec![p.name.clone()];
            row.extend(degree(&g.in_degree));
            row.extend(degree(&g.out_degree));
            row.push(maybe(g.clustering, 4));
            row
        });
        let headings = ["population", "in-degree", "sd", "min", "max", "out-degree", "sd", "min", "max", "clustering"];
        lines.push(String::new());
        lines.extend(table(&headings, &rows.collect::<Vec<_>>(), 1));
    }
    lines
}
