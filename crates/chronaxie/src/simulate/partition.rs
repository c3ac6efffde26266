//! How a network could be shared out: every way beside the others, with a picture.

use super::pictures::save;
use crate::config::Config;
use crate::progress::Progress;
use crate::report::RunFolder;
use crate::report::figure::{Axes, Figure, Mark};
use crate::spiking::network::read::read;
use crate::spiking::partition::{self, Evaluation, Layout, Load};
use crate::spiking::{Network, Plan};
use crate::{Error, Result};
use serde::Serialize;
use std::path::PathBuf;

/// A picture shows about so many cells.
const SHOWN: usize = 20_000;
/// In so many colours.
const COLOURS: usize = 8;

/// What is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartitionOptions {
    /// How many parts.
    pub parts: usize,
    /// One way; `auto` is all that apply.
    pub method: String,
    /// The rate of all cells but sources; else that of the description, or [`RATE_HZ`](super::RATE_HZ).
    pub rate_hz: Option<f64>,
    /// The folder of the pictures.
    pub out: Option<PathBuf>,
}

impl PartitionOptions {
    /// All ways to cut a network into so many parts.
    pub fn new(parts: usize) -> Self {
        Self { parts, method: "auto".into(), rate_hz: None, out: None }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PartitionReport {
    /// How many parts.
    pub parts: usize,
    /// How many cells.
    pub cells: u64,
    /// The way of least cost of those below.
    pub best: String,
    /// Each way that applies.
    pub methods: Vec<MethodReport>,
    /// Why others do not.
    pub notes: Vec<String>,
    /// The folder of the pictures.
    pub out: Option<PathBuf>,
}

/// One way.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MethodReport {
    /// Its name.
    pub method: String,
    /// In words.
    pub about: String,
    /// What it costs.
    #[serde(flatten)]
    pub cost: Evaluation,
}

/// Compares the ways to share out the network of `config`.
///
/// # Errors
/// `Config` for a description, a number of parts or a way that makes no sense; `Unavailable`, where a way was asked for by name
/// whose library is missing; `Io`.
pub fn partition(config: &Config, options: &PartitionOptions, progress: &dyn Progress) -> Result<PartitionReport> {
    let settings = read(config)?;
    if options.parts == 0 || options.parts > partition::MAX_PARTS {
        let most = partition::MAX_PARTS;
        return Err(Error::config(format!("{} parts: a network is shared out among 1 to {most}", options.parts)));
    }
    if let Some(rate) = options.rate_hz.filter(|r| !(r.is_finite() && *r >= 0.0)) {
        return Err(Error::config(format!("a rate of {rate} Hz is none")));
    }
    let folder = options.out.as_ref().map(|out| RunFolder::open(out, false)).transpose()?;
    let plan = Plan::new(settings.network)?;
    let mut notes = settings.notes;
    let methods: Vec<_> = match options.method.as_str() {
        "auto" => partition::all().to_vec(),
        name => vec![partition::find(name)?],
    };
    progress.start("partition", 0);
    progress.advance(0, "weighing cells");
    let load = Load::new(&plan, options.rate_hz.unwrap_or(super::RATE_HZ), options.rate_hz.is_some());
    let (mut layouts, mut used) = (Vec::new(), Vec::new());
    for by in methods {
        progress.advance(0, by.name());
        let layout = partition::applies(&plan, by).and_then(|()| by.layout(&load, options.parts));
        match layout {
            Ok(layout) => {
                layouts.push(layout);
                used.push(by);
            }
            Err(e) if options.method == "auto" => notes.push(e.to_string()),
            Err(e) => return Err(e),
        }
    }
    progress.advance(0, "counting synapses");
    let costs = partition::evaluate(&load, &layouts);
    progress.finish();
    let best = partition::best(&costs).map_or("", |i| used[i].name()).to_owned();
    if let Some(folder) = &folder {
        folder.create()?;
        draw(folder, &plan.network, options.parts, &layouts, &used)?;
    }
    let named = used.iter().zip(costs);
    let methods =
        named.map(|(by, cost)| MethodReport { method: by.name().into(), about: by.about().into(), cost }).collect();
    let out = folder.map(|f| f.path().to_path_buf());
    Ok(PartitionReport { parts: options.parts, cells: plan.cells(), best, methods, notes, out })
}

/// The two coordinates along which cells lie farthest apart; none where they lie nowhere.
fn axes(network: &Network) -> Option<[usize; 2]> {
    let (mut low, mut high) = ([f32::INFINITY; 4], [f32::NEG_INFINITY; 4]);
    for at in network.populations.iter().filter_map(|p| p.positions.as_ref()).flat_map(|p| p.iter()) {
        (0..4).for_each(|d| (low[d], high[d]) = (low[d].min(at[d]), high[d].max(at[d])));
    }
    let mut order = [0, 1, 2, 3];
    order.sort_by(|a, b| (high[*b] - low[*b]).total_cmp(&(high[*a] - low[*a])));
    (low[0] <= high[0]).then_some([order[0].min(order[1]), order[0].max(order[1])])
}

/// A panel a way, a colour a part: cells by two of their coordinates, or by population and number.
fn draw(
    folder: &RunFolder,
    network: &Network,
    parts: usize,
    layouts: &[Layout],
    used: &[&'static dyn partition::Partitioner],
) -> Result<()> {
    let axes = axes(network);
    let every = (network.cells() as usize).div_ceil(SHOWN).max(1);
    let panel = |(layout, by): (&Layout, &&'static dyn partition::Partitioner)| {
        let mut points: Vec<Vec<(f64, f64)>> = vec![Vec::new(); parts.min(COLOURS)];
        for (i, p) in network.populations.iter().enumerate() {
            let owners = layout.owners(i);
            for (cell, part) in owners.iter().enumerate().step_by(every) {
                let at = match (axes, &p.positions) {
                    (Some([x, y]), Some(places)) => (places[cell][x].into(), places[cell][y].into()),
                    (Some(_), None) => continue,
                    (None, _) => (cell as f64 / f64::from(p.size), i as f64),
                };
                points[*part as usize % COLOURS].push(at);
            }
        }
        let mark = |(colour, points): (usize, Vec<(f64, f64)>)| {
            let of: Vec<String> = (colour..parts).step_by(COLOURS).map(|part| part.to_string()).collect();
            let more = if of.len() > 4 { ", ..." } else { "" };
            Mark::Points { name: format!("part {}{more}", of[..of.len().min(4)].join(", ")), points, colour }
        };
        let name = |d: usize| ["x", "y", "z", "w"][d];
        let (x_label, y_label) = match axes {
            Some([x, y]) => (format!("{}: {}", by.name(), name(x)), name(y).to_owned()),
            None => (format!("{}: number over size", by.name()), "population".to_owned()),
        };
        Axes { x_label, y_label, marks: points.into_iter().enumerate().map(mark).collect(), ..Axes::default() }
    };
    let panels = layouts.iter().zip(used).map(panel).collect();
    save(folder, "partition", &Figure { title: format!("{} cells in {parts} parts", network.cells()), panels })
}
