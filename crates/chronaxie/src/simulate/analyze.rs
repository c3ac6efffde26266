//! What a recording is like: `chronaxie analyze`.

use super::pictures;
use crate::config::{Config, quote};
use crate::data::{npz, parquet};
use crate::report::RunFolder;
use crate::report::figure::{Axes, Figure, Mark};
use crate::spiking::Plan;
use crate::spiking::analysis::{self, Analysis, Graph, Measures, Options, Trains};
use crate::spiking::network::read::read;
use crate::spiking::record::columns;
use crate::spiking::simulate::Spike;
use crate::{Backend, Device, Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What to analyze, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AnalyzeOptions {
    /// The folder of a run, or an `.npz` or `.parquet` of spikes.
    pub recording: PathBuf,
    /// The configuration of the network [default: that of the run's folder].
    pub network: Option<PathBuf>,
    /// Left out at the start, ms [default: as the run's configuration says, or 0].
    pub discard_ms: Option<f64>,
    /// The width of bins, ms.
    pub bin_ms: f64,
    /// Spikes of a burst follow each other within so many ms.
    pub burst_interval_ms: f64,
    /// A burst has at least so many spikes.
    pub burst_spikes: usize,
    /// Where pictures go [default: `analysis` in the run's folder; none for a file].
    pub out: Option<PathBuf>,
    /// What counts; numbers are the same.
    pub backend: Backend,
}

impl AnalyzeOptions {
    /// Bins of 2 ms, bursts of 3 spikes within 10 ms of each other.
    pub fn new(recording: impl Into<PathBuf>) -> Self {
        Self {
            recording: recording.into(),
            network: None,
            discard_ms: None,
            bin_ms: 2.0,
            burst_interval_ms: 10.0,
            burst_spikes: 3,
            out: None,
            backend: Backend::Auto,
        }
    }
}

/// What was found; `Serialize` gives the JSON of `chronaxie analyze`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AnalysisReport {
    /// The file of the spikes.
    pub recording: PathBuf,
    /// From this time, ms.
    pub start_ms: f64,
    /// Until this time, ms.
    pub stop_ms: f64,
    /// The width of bins, ms.
    pub bin_ms: f64,
    /// How many bins there are.
    pub bins: u64,
    /// Spikes of a burst follow each other within so many ms.
    pub burst_interval_ms: f64,
    /// A burst has at least so many spikes.
    pub burst_spikes: usize,
    /// The spikes that were analyzed.
    pub spikes: u64,
    /// One a population.
    pub populations: Vec<PopulationAnalysis>,
    /// Of the counts of two populations, bits a bin.
    pub mutual_information_bits: Vec<Vec<f64>>,
    /// What mutual information two unrelated binary trains have by counting, bits a bin.
    pub mutual_information_bias_bits: f64,
    /// What a user should know.
    pub notes: Vec<String>,
    /// The folder of the pictures.
    pub out: Option<PathBuf>,
}

/// One population of an [`AnalysisReport`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PopulationAnalysis {
    /// Its name.
    pub name: String,
    /// Its cells.
    pub size: u32,
    /// What was measured of its spikes.
    #[serde(flatten)]
    pub measures: Measures,
    /// Of its synapses, where the network is known.
    pub network: Option<Graph>,
}

/// A recording as a file has it.
struct Recording {
    names: Vec<String>,
    trains: Trains,
}

/// Analyzes a recording, and writes pictures.
///
/// # Errors
/// `Data` and `Io` of the recording, `Config` of the network and of widths that make no bins.
pub fn analyze(options: &AnalyzeOptions) -> Result<AnalysisReport> {
    let folder = options.recording.is_dir().then_some(options.recording.as_path());
    let file = folder.map_or(options.recording.clone(), |f| {
        // A long recording is in Parquet alone.
        let names = ["spikes.npz", "spikes.parquet"].map(|name| f.join(name));
        names.iter().find(|path| path.is_file()).unwrap_or(&names[0]).clone()
    });
    let mut notes = Vec::new();
    let beside = folder.map(|f| f.join("config.toml")).filter(|f| f.is_file());
    let settings = match (&options.network, &beside) {
        (Some(path), _) => Some(Config::read(path).and_then(|c| read(&c))?),
        // A run's own configuration may name files that lie elsewhere.
        (None, Some(path)) => Config::read(path)
            .and_then(|c| read(&c))
            .inspect_err(|e| notes.push(format!("without the network, of which --network FILE tells: {e}")))
            .ok(),
        (None, None) => None,
    };
    let mut recording = load(&file)?;
    if let Some(s) = &settings {
        let sizes: Vec<u32> = s.network.populations.iter().map(|p| p.size).collect();
        if sizes != recording.trains.sizes {
            return Err(Error::config(format!(
                "the network has populations of {sizes:?} cells, and {} those of {:?}",
                file.display(),
                recording.trains.sizes
            )));
        }
    }
    let dt = recording.trains.dt_ms;
    let steps = |name: &str, ms: f64, least: f64| {
        let steps = (ms / dt).round();
        if steps.is_finite() && (least..1e15).contains(&steps) {
            return Ok(steps as u64);
        }
        Err(Error::config(format!("{name} = {ms} ms is not from {} ms on, in steps of {dt} ms", least * dt)))
    };
    let discard = options.discard_ms.or(settings.as_ref().map(|s| s.discard_ms)).unwrap_or(0.0);
    let t = &mut recording.trains;
    let begin = t.start.max(steps("discard", discard, 0.0)?);
    if begin >= t.stop {
        let end = t.stop as f64 * dt;
        notes.push(format!("the recording ends at {end} ms, and {discard} ms are left out: nothing is analyzed"));
    }
    t.start = begin.min(t.stop);
    t.spikes.retain(|s| s.step >= t.start);
    let how = Options {
        bin: steps("bin", options.bin_ms, 1.0)?,
        burst_interval: steps("burst interval", options.burst_interval_ms, 1.0)?,
        burst_spikes: options.burst_spikes.max(2),
    };
    let (device, why) = Device::open(options.backend)?;
    notes.extend(why);
    let found = analysis::analyze(t, &how, &device)?;
    let graphs = match settings {
        Some(s) => {
            let plan = Plan::new(s.network)?;
            let graphs = analysis::graph(&plan, &device)?;
            if graphs.iter().all(|g| g.clustering.is_none()) {
                let room = match &device {
                    Device::Cpu => format!("more than {:.1e}", analysis::MOST_SYNAPSES),
                    Device::Cuda(device) => format!("more than {} has memory for", device.name()),
                };
                notes.push(format!("clustering is left out: {:.1e} synapses are {room}", plan.expected_synapses()));
            }
            graphs.into_iter().map(Some).collect()
        }
        None => vec![None; t.sizes.len()],
    };
    let out = options.out.clone().or(folder.map(|f| f.join("analysis")));
    if let Some(out) = &out {
        // The pictures of an earlier analysis are replaced.
        let folder = RunFolder::open(out, true)?;
        folder.create()?;
        draw(&folder, &recording, &found)?;
    }
    let t = &recording.trains;
    let one = |(((name, size), measures), network)| PopulationAnalysis { name, size, measures, network };
    let populations = recording.names.iter().cloned().zip(t.sizes.iter().copied());
    let report = AnalysisReport {
        recording: file,
        start_ms: t.start as f64 * dt,
        stop_ms: t.stop as f64 * dt,
        bin_ms: how.bin as f64 * dt,
        bins: found.bins,
        burst_interval_ms: how.burst_interval as f64 * dt,
        burst_spikes: how.burst_spikes,
        spikes: t.spikes.len() as u64,
        populations: populations.zip(found.populations).zip(graphs).map(one).collect(),
        mutual_information_bits: found.mutual_information_bits,
        mutual_information_bias_bits: analysis::bias(found.bins),
        notes,
        out,
    };
    Ok(report)
}

/// Reads what `SpikeLog::export` and Python's `Spikes.save` write; sizes and times are guessed where a file lacks them.
fn load(path: &Path) -> Result<Recording> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    let refuse = |what: String| Error::data(path, None, what);
    let parquet = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"));
    let (mut arrays, words) = if parquet { from_parquet(&bytes, path)? } else { from_npz(&bytes, path)? };
    let mut take = |name: &str| {
        let at = arrays.iter().position(|(n, _)| n == name);
        at.map(|at| arrays.swap_remove(at).1)
    };
    let mut need = |name: &str| take(name).ok_or_else(|| refuse(format!("there is no array {name}")));
    let (step, neuron, dt) = (need("step")?, need("neuron")?, need("dt")?);
    let population = take("population");
    let &[dt_ms] = dt.as_slice() else { return Err(refuse(format!("dt has {} values", dt.len()))) };
    if !(dt_ms > 0.0 && dt_ms.is_finite()) || step.len() != neuron.len() {
        return Err(refuse(format!("dt is {dt_ms} ms, and there are {} steps of {} cells", step.len(), neuron.len())));
    }
    let whole = |x: f64, most: f64| x.fract() == 0.0 && (0.0..most).contains(&x);
    let mut spikes = Vec::with_capacity(step.len());
    for (row, (s, c)) in step.iter().zip(&neuron).enumerate() {
        if !whole(*s, 1e15) || !whole(*c, f64::from(u32::MAX)) {
            return Err(refuse(format!("spike {row} is of cell {c} in step {s}")));
        }
        spikes.push(Spike { step: *s as u64, cell: *c as u32 });
    }
    spikes.sort_unstable();
    let cells = spikes.iter().map(|s| u64::from(s.cell) + 1).max().unwrap_or(0);
    let sizes: Vec<u32> = match take("population_sizes") {
        Some(sizes) if sizes.iter().all(|x| whole(*x, f64::from(u32::MAX))) => {
            sizes.iter().map(|x| *x as u32).collect()
        }
        Some(sizes) => return Err(refuse(format!("population_sizes are {sizes:?}"))),
        None if population.is_none_or(|p| p.iter().all(|p| *p == 0.0)) => vec![cells as u32],
        None => {
            return Err(refuse("there is no array population_sizes: say --network FILE of what was simulated".into()));
        }
    };
    let all: u64 = sizes.iter().map(|s| u64::from(*s)).sum();
    if cells > all || all > 1 << 31 {
        return Err(refuse(format!("there is a spike of cell {}, and there are {all} cells", cells.max(1) - 1)));
    }
    let time = |values: Option<Vec<f64>>, name: &str, other: u64| match values.as_deref() {
        Some([ms]) if (ms / dt_ms).round() >= 0.0 && (ms / dt_ms) < 1e15 => Ok((ms / dt_ms).round() as u64),
        Some(values) => Err(refuse(format!("{name} is {values:?}"))),
        None => Ok(other),
    };
    let last = spikes.last().map_or(0, |s| s.step + 1);
    let (start, stop) = (time(take("start"), "start", 0)?, time(take("stop"), "stop", last)?);
    if spikes.first().is_some_and(|s| s.step < start) || last > stop {
        return Err(refuse(format!("there are spikes outside of the steps {start} to {stop}")));
    }
    let names = words.unwrap_or_else(|| (0..sizes.len()).map(|i| format!("population {i}")).collect());
    if names.len() != sizes.len() {
        return Err(refuse(format!("{} populations have {} names", sizes.len(), names.len())));
    }
    Ok(Recording { names, trains: Trains { dt_ms, start, stop, sizes, spikes } })
}

type Arrays = Vec<(String, Vec<f64>)>;

fn from_npz(bytes: &[u8], path: &Path) -> Result<(Arrays, Option<Vec<String>>)> {
    let names = ["step", "neuron", "population", "population_sizes", "dt", "start", "stop"];
    let arrays = npz::parse_some(bytes, path, &names)?;
    let words = npz::parse_text(bytes, path, "population_names")?;
    Ok((arrays.into_iter().map(|(name, array)| (name, array.values)).collect(), words))
}

/// What `SpikeLog::export_parquet` writes: columns, and the rest as words about the file.
fn from_parquet(bytes: &[u8], path: &Path) -> Result<(Arrays, Option<Vec<String>>)> {
    let table = parquet::Table::parse(bytes, path)?;
    let [step, neuron] = columns::from_parquet(bytes, path, ["step", "neuron"])?;
    let mut arrays = vec![("step".to_owned(), step), ("neuron".to_owned(), neuron)];
    for (key, name) in
        [("dt_ms", "dt"), ("start_ms", "start"), ("stop_ms", "stop"), ("population_sizes", "population_sizes")]
    {
        let Some(text) = table.about(key) else { continue };
        let values = text.split(',').map(str::parse).collect::<Result<Vec<f64>, _>>();
        let what = || Error::data(path, None, format!("{key} is {}, which is no number", quote(text)));
        arrays.push((name.to_owned(), values.map_err(|_| what())?));
    }
    if table.about("population_sizes").is_none() && table.names().contains(&"population") {
        return Err(Error::data(path, None, "it says nothing of population_sizes, and has a column population"));
    }
    Ok((arrays, table.about("population_names").map(|names| names.split('\n').map(str::to_owned).collect())))
}

fn draw(folder: &RunFolder, recording: &Recording, found: &Analysis) -> Result<()> {
    let names = &recording.names;
    let bars = |label: &str, value: &dyn Fn(&Measures) -> Option<f64>| {
        let values = found.populations.iter().map(value).enumerate();
        let points = values.filter_map(|(i, y)| y.map(|y| (i as f64, y))).collect();
        let marks = vec![Mark::Bars { name: label.into(), points, width: 0.6, colour: 0 }];
        Axes { y_label: label.into(), marks, names: names.clone(), ..Axes::default() }
    };
    let measures = Figure {
        title: "regularity, synchrony, bursts".into(),
        panels: vec![
            bars("CV of intervals", &|m| m.cv.map(|cv| cv.mean)),
            bars("chi", &|m| Some(m.synchrony.chi)),
            bars("share of spikes in bursts", &|m| Some(m.bursts.share)),
        ],
    };
    pictures::save(folder, "measures", &measures)?;
    let information = Figure {
        title: "information in a bin, bits".into(),
        panels: vec![
            bars("entropy of a cell", &|m| Some(m.entropy_bits.mean)),
            bars("entropy of the count", &|m| Some(m.population_entropy_bits)),
            bars("mutual, of two cells", &|m| m.mutual_information_bits.map(|i| i.mean)),
        ],
    };
    pictures::save(folder, "information", &information)?;
    let mut sorted: Vec<f64> = found.intervals_ms.iter().flatten().copied().collect();
    sorted.sort_by(f64::total_cmp);
    // The longest intervals would leave the rest without width.
    let high = sorted.get(sorted.len() * 19 / 20).copied().unwrap_or(0.0);
    let line = |(colour, values): (usize, &Vec<f64>)| Mark::Line {
        name: names[colour].clone(),
        points: pictures::histogram(values, 0.0, high),
        colour,
    };
    let marks: Vec<Mark> = found.intervals_ms.iter().enumerate().map(line).collect();
    let intervals = Figure {
        title: "intervals between the spikes of a cell".into(),
        panels: vec![Axes { x_label: "interval (ms)".into(), y_label: "density".into(), marks, ..Axes::default() }],
    };
    pictures::save(folder, "intervals", &intervals)
}
