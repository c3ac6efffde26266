//! The pictures of a run: raster, rates, distributions, activity.

use crate::Result;
use crate::report::RunFolder;
use crate::report::figure::{Axes, Figure, Mark};
use crate::spiking::Network;
use crate::spiking::metrics::Statistics;
use crate::spiking::record::SpikeLog;

/// The raster shows the last so many ms.
const RASTER_MS: f64 = 400.0;
/// And about so many cells.
const RASTER_CELLS: u64 = 1500;
/// The activity is counted in so many bins.
const BINS: u64 = 200;

/// Writes all pictures of a run into its folder.
pub(super) fn write(
    folder: &RunFolder,
    network: &Network,
    log: &SpikeLog,
    statistics: &[Statistics],
    discard: u64,
    end: u64,
) -> Result<()> {
    let dt = network.dt_ms;
    let first = network.first_cells();
    let count = network.populations.len();
    let population = |cell: u32| first.partition_point(|f| *f <= u64::from(cell)) - 1;
    let raster_from = end.saturating_sub((RASTER_MS / dt) as u64);
    let every = network.cells().div_ceil(RASTER_CELLS).max(1);
    let mut points: Vec<Vec<(f64, f64)>> = vec![Vec::new(); count];
    let bin = end.div_ceil(BINS).max(1);
    let mut activity = vec![vec![0u64; end.div_ceil(bin) as usize]; count];
    log.read(|spikes| {
        for s in spikes {
            let p = population(s.cell);
            activity[p][(s.step / bin) as usize] += 1;
            if s.step >= raster_from && u64::from(s.cell) % every == 0 {
                // The first population on top, as it is usually drawn.
                points[p].push((s.step as f64 * dt, (network.cells() - u64::from(s.cell)) as f64));
            }
        }
        Ok(())
    })?;
    let names: Vec<String> = network.populations.iter().map(|p| p.name.clone()).collect();
    let marks = |p: usize, points: Vec<(f64, f64)>| Mark::Points { name: names[p].clone(), points, colour: p };
    let shown = if every == 1 { "every cell".to_owned() } else { format!("one cell in {every}") };
    let raster = Figure {
        title: format!("spikes of {shown}"),
        panels: vec![Axes {
            x_label: "time (ms)".into(),
            y_label: "cells, from the last".into(),
            marks: points.into_iter().enumerate().map(|(p, points)| marks(p, points)).collect(),
            ..Axes::default()
        }],
    };
    save(folder, "raster", &raster)?;

    let bars = |name: &str, values: Vec<Option<f64>>, colour: usize, shift: f64| {
        let points = values.into_iter().enumerate().filter_map(|(i, y)| y.map(|y| (i as f64 + shift, y))).collect();
        Mark::Bars { name: name.into(), points, width: 0.38, colour }
    };
    let pair = |label: &str, own: Vec<Option<f64>>, other: Vec<Option<f64>>| {
        let mut marks = vec![bars("this run", own, 0, -0.2)];
        if other.iter().any(Option::is_some) {
            marks.push(bars("reference", other, 1, 0.2));
        }
        Axes { y_label: label.into(), marks, names: names.clone(), ..Axes::default() }
    };
    let own = |f: &dyn Fn(&Statistics) -> Option<f64>| statistics.iter().map(f).collect::<Vec<_>>();
    let reference: Vec<_> = network.populations.iter().map(|p| p.reference).collect();
    let rates = Figure {
        title: "means over cells, and over pairs of cells".into(),
        panels: vec![
            pair("rate (Hz)", own(&|s| Some(s.rate_hz)), reference.iter().map(|r| r.rate_hz).collect()),
            pair("CV of intervals", own(&Statistics::cv), reference.iter().map(|r| r.cv).collect()),
            pair(
                "correlation (2 ms)",
                own(&Statistics::correlation),
                reference.iter().map(|r| r.correlation).collect(),
            ),
        ],
    };
    save(folder, "rates", &rates)?;

    let density = |label: &str, values: &dyn Fn(&Statistics) -> &[f64]| {
        let all = || statistics.iter().flat_map(|s| values(s).iter().copied());
        let mut sorted: Vec<f64> = all().collect();
        sorted.sort_by(f64::total_cmp);
        // The outermost half percent would leave the rest without width.
        let at = |q: f64| sorted.get((q * sorted.len() as f64) as usize).copied().unwrap_or(0.0);
        let (low, high) = (at(0.005), at(0.995));
        let marks = statistics.iter().enumerate().map(|(p, s)| Mark::Line {
            name: names[p].clone(),
            points: histogram(values(s), low, high),
            colour: p,
        });
        Axes { x_label: label.into(), y_label: "density".into(), marks: marks.collect(), ..Axes::default() }
    };
    let distributions = Figure {
        title: "distributions over cells, and over pairs of cells".into(),
        panels: vec![
            density("rate (Hz)", &|s| &s.rates_hz),
            density("CV of intervals", &|s| &s.cvs),
            density("correlation (2 ms)", &|s| &s.correlations),
        ],
    };
    save(folder, "distributions", &distributions)?;

    let seconds = bin as f64 * dt * 1e-3;
    let lines = activity.iter().enumerate().map(|(p, counts)| {
        let size = f64::from(network.populations[p].size);
        // The last bin may be cut short; it is left out.
        let whole = (end / bin) as usize;
        let at = |i: usize| ((i as f64 + 0.5) * bin as f64 * dt, counts[i] as f64 / size / seconds);
        Mark::Line { name: names[p].clone(), points: (0..whole).map(at).collect(), colour: p }
    });
    let activity = Figure {
        title: format!(
            "rates over time, in bins of {:.1} ms; statistics begin at {:.0} ms",
            seconds * 1e3,
            discard as f64 * dt
        ),
        panels: vec![Axes {
            x_label: "time (ms)".into(),
            y_label: "rate (Hz)".into(),
            marks: lines.collect(),
            ..Axes::default()
        }],
    };
    save(folder, "activity", &activity)
}

pub(super) fn save(folder: &RunFolder, name: &str, figure: &Figure) -> Result<()> {
    folder.write(&format!("{name}.svg"), figure.svg()?)?;
    folder.write(&format!("{name}.png"), figure.png()?)
}

/// The density of values in 40 bins.
pub(super) fn histogram(values: &[f64], low: f64, high: f64) -> Vec<(f64, f64)> {
    const BINS: usize = 40;
    if values.is_empty() || low >= high {
        return Vec::new();
    }
    let width = (high - low) / BINS as f64;
    let mut counts = [0u64; BINS];
    for x in values.iter().filter(|x| (low..high).contains(*x)) {
        counts[(((x - low) / width) as usize).min(BINS - 1)] += 1;
    }
    let scale = 1.0 / (values.len() as f64 * width);
    counts.iter().enumerate().map(|(i, n)| (low + (i as f64 + 0.5) * width, *n as f64 * scale)).collect()
}
