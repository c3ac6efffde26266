//! Simulations of spiking networks that Python steers. Columns of numbers go in and out as bytes in the machine's order.

use crate::errors::py_result;
use crate::tools::Signals;
use chronaxie::config::Config;
use chronaxie::simulate;
use chronaxie::spiking::analysis;
use chronaxie::spiking::models as library;
use chronaxie::spiking::network::DriveKind;
use chronaxie::spiking::network::files::Files;
use chronaxie::spiking::network::original_plasticity::described;
use chronaxie::spiking::network::read::{Settings, read_with};
use chronaxie::spiking::simulate::Spike;
use chronaxie::{Backend, Device, Error, Result};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyByteArray;
use std::path::PathBuf;

/// A simulation; its thread ends with it.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Session(simulate::Session);

/// `(name, columns)`, each `(name, f64s)`.
pub(crate) type Table = (String, Vec<(String, PyBackedBytes)>);
/// `(name, model, size, first cell, [(variable, unit)], unit of weights, f32 [size, 4] places)`.
pub(crate) type Population<'py> =
    (String, &'static str, u32, u64, Vec<(&'static str, &'static str)>, &'static str, Option<Bound<'py, PyByteArray>>);
/// `(generation, age, alive, died, born)`.
type Lives<'py> = (Bound<'py, PyByteArray>, Bound<'py, PyByteArray>, Bound<'py, PyByteArray>, u64, u64);
/// `(target, kind, rate or current, weight, from, until)`.
type Drive = (usize, &'static str, f64, f64, f64, f64);
/// `(population, cells, times, [(variable, f32 [samples, cells])])`.
type Trace<'py> = (usize, Vec<u32>, Bound<'py, PyByteArray>, Vec<(&'static str, Bound<'py, PyByteArray>)>);

/// Populations as Python sees them.
pub(crate) fn columns_of<'py>(py: Python<'py>, all: &[simulate::PopulationFacts]) -> PyResult<Vec<Population<'py>>> {
    let one = |p: &simulate::PopulationFacts| {
        let places = p.positions.as_ref().map(|places| column(py, places.as_flattened(), f32::to_ne_bytes));
        Ok((p.name.clone(), p.model, p.size, p.first, p.variables.clone(), p.weight_unit, places.transpose()?))
    };
    all.iter().map(one).collect()
}

pub(crate) fn column<'py, T: Copy, const N: usize>(
    py: Python<'py>,
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, values.len() * N, |out| {
        out.chunks_exact_mut(N).zip(values).for_each(|(out, x)| out.copy_from_slice(&bytes(*x)));
        Ok(())
    })
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().expect("eight bytes"))).collect()
}

#[pymethods]
impl Session {
    /// Builds the network of a description, JSON or a file, with the tables that it names.
    #[new]
    #[expect(clippy::too_many_arguments)]
    #[pyo3(signature = (text, path, tables, overrides, backend, gpus=None, method="auto", replicas=Vec::new()))]
    fn new(
        py: Python<'_>,
        text: Option<String>,
        path: Option<PathBuf>,
        tables: Vec<Table>,
        overrides: Vec<String>,
        backend: String,
        gpus: Option<usize>,
        method: &str,
        replicas: Vec<Vec<String>>,
    ) -> PyResult<Self> {
        let signals = Signals::default();
        let work = || -> Result<simulate::Session> {
            let settings = settings_of(text, path, tables, &overrides, &replicas)?;
            simulate::Session::open_on(settings, backend.parse::<Backend>()?, gpus, method, &signals)
        };
        let result = py.detach(work);
        signals.finish(py, result).map(Self)
    }
    /// `(step in ms, seed, duration in ms, synapses, backend, engine, notes)`.
    #[getter]
    fn facts(&self) -> (f64, u64, f64, u64, String, String, Vec<String>) {
        let f = self.0.facts();
        (f.dt_ms, f.seed, f.duration_ms, f.synapses, f.backend.clone(), f.engine.clone(), f.notes.clone())
    }
    /// The populations, in the order of their cells.
    #[getter]
    fn populations<'py>(&self, py: Python<'py>) -> PyResult<Vec<Population<'py>>> {
        columns_of(py, &self.0.facts().populations)
    }
    /// The first population of each of several networks side by side.
    #[getter]
    fn replicas(&self) -> Vec<usize> {
        self.0.facts().replicas.clone()
    }
    /// `(source, target)` of each projection.
    #[getter]
    fn projections(&self) -> Vec<(usize, usize)> {
        self.0.facts().projections.clone()
    }
    /// The next step, how many spikes there were, and their hash.
    fn at(&self, py: Python<'_>) -> PyResult<(u64, u64, String)> {
        let at = py.detach(|| self.0.at());
        py_result(py, at)
    }
    /// Runs; the spikes as u64 steps and u32 cells.
    fn run<'py>(
        &self,
        py: Python<'py>,
        steps: u64,
        keep: bool,
    ) -> PyResult<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
        let signals = Signals::default();
        let result = py.detach(|| self.0.run(steps, keep, &signals));
        let spikes = signals.finish(py, result)?;
        let steps = column(py, &spikes, |s| s.step.to_ne_bytes())?;
        Ok((steps, column(py, &spikes, |s| s.cell.to_ne_bytes())?))
    }
    /// The variables of a population, f32 each.
    fn state<'py>(&self, py: Python<'py>, population: usize) -> PyResult<Vec<Bound<'py, PyByteArray>>> {
        let state = py.detach(|| self.0.state(population));
        py_result(py, state)?.iter().map(|v| column(py, v, f32::to_ne_bytes)).collect()
    }
    /// Of all cells, how many stood there before (u32), their ages in steps (u64) and whether they live (u8); how many have died and
    /// were born. Nothing where no cell can die.
    fn lives<'py>(&self, py: Python<'py>) -> PyResult<Option<Lives<'py>>> {
        let lives = py.detach(|| self.0.lives());
        let one = |l: simulate::Lives| {
            let generation = column(py, &l.generation, u32::to_ne_bytes)?;
            let alive = column(py, &l.alive, |x| [u8::from(x)])?;
            Ok((generation, column(py, &l.age, u64::to_ne_bytes)?, alive, l.died, l.born))
        };
        py_result(py, lives)?.map(one).transpose()
    }
    /// Sets variables of a population, f64 each.
    fn set_state(&self, py: Python<'_>, population: usize, values: Vec<(String, PyBackedBytes)>) -> PyResult<()> {
        let single = |b: &[u8]| doubles(b).into_iter().map(|x| x as f32).collect();
        let values = values.iter().map(|(name, b)| (name.clone(), single(b))).collect();
        let done = py.detach(|| self.0.set_state(population, values));
        py_result(py, done)
    }
    /// Source and target (u32), weight and delay (f32) of the synapses of a projection.
    fn synapses<'py>(&self, py: Python<'py>, projection: usize) -> PyResult<[Bound<'py, PyByteArray>; 4]> {
        let table = py.detach(|| self.0.synapses(projection));
        let t = py_result(py, table)?;
        Ok([
            column(py, &t.source, u32::to_ne_bytes)?,
            column(py, &t.target, u32::to_ne_bytes)?,
            column(py, &t.weight, f32::to_ne_bytes)?,
            column(py, &t.delay_ms, f32::to_ne_bytes)?,
        ])
    }
    /// The drives as they are now.
    fn drives(&self, py: Python<'_>) -> PyResult<Vec<Drive>> {
        let drives = py.detach(|| self.0.drives());
        py_result(py, drives)?
            .iter()
            .map(|d| match d.kind {
                DriveKind::Poisson { rate_hz, weight, start_ms, stop_ms } => {
                    Ok((d.target, "poisson", rate_hz, weight, start_ms, stop_ms))
                }
                DriveKind::Dc { current } => Ok((d.target, "dc", current, f64::NAN, 0.0, f64::INFINITY)),
                _ => py_result(py, Err(Error::value("a drive of a kind that Python does not know"))),
            })
            .collect()
    }
    /// The rate or current of a drive.
    fn set_drive(&self, py: Python<'_>, drive: usize, value: f64) -> PyResult<()> {
        let done = py.detach(|| self.0.set_drive(drive, value));
        py_result(py, done)
    }
    /// The current of a population's cells, or the rate of sources, f64.
    fn set_input(&self, py: Python<'_>, population: usize, values: PyBackedBytes) -> PyResult<()> {
        let done = py.detach(|| self.0.set_input(population, doubles(&values)));
        py_result(py, done)
    }
    /// What recorders gathered since the last time.
    fn take_traces<'py>(&self, py: Python<'py>) -> PyResult<Vec<Trace<'py>>> {
        let traces = py.detach(|| self.0.take_traces());
        let one = |t: &simulate::Trace| {
            let values = t.variables.iter().zip(&t.values);
            let values = values.map(|(name, v)| Ok((*name, column(py, v, f32::to_ne_bytes)?)));
            let times = column(py, &t.times_ms, f64::to_ne_bytes)?;
            Ok((t.population, t.cells.clone(), times, values.collect::<PyResult<_>>()?))
        };
        py_result(py, traces)?.iter().map(one).collect()
    }
    /// Writes a checkpoint.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let done = py.detach(|| self.0.save(path));
        py_result(py, done)
    }
    /// Goes to a checkpoint.
    fn restore(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let done = py.detach(|| self.0.restore(path));
        py_result(py, done)
    }
}

/// The step of a checkpoint, its number of spikes and their hash.
#[pyfunction]
pub fn checkpoint(py: Python<'_>, path: PathBuf) -> PyResult<(u64, u64, String)> {
    let found = py.detach(|| simulate::checkpoint(&path));
    py_result(py, found)
}

/// Reads a description, JSON or a file, and says what a user should know of it.
#[pyfunction]
pub fn description_notes(py: Python<'_>, text: Option<String>, path: Option<PathBuf>) -> PyResult<Vec<String>> {
    let found = py.detach(|| {
        let config = parsed(text, path)?;
        read_with(&config, &Files::beside(&config)).map(|settings| settings.notes)
    });
    py_result(py, found)
}

/// Of those that excite and those that inhibit: what a weight of 1 is, and shares with their plasticity as JSON.
type Kinds = Vec<(f64, Vec<(f64, Option<String>)>)>;

/// What an original configuration says of synapses at steps of `dt_ms`.
#[pyfunction]
pub fn original_plasticity(py: Python<'_>, text: String, dt_ms: f64) -> PyResult<Kinds> {
    let found = py.detach(|| described(&parsed(Some(text), None)?, dt_ms).map(Vec::from));
    py_result(py, found)
}

/// A description with its tables, read.
pub(crate) fn settings_of(
    text: Option<String>,
    path: Option<PathBuf>,
    tables: Vec<Table>,
    overrides: &[String],
    replicas: &[Vec<String>],
) -> Result<Settings> {
    let mut config = parsed(text, path)?;
    overrides.iter().try_for_each(|assignment| config.set(assignment))?;
    let mut files = Files::beside(&config);
    for (name, columns) in tables {
        files = files.with(name, columns.into_iter().map(|(name, b)| (name, doubles(&b))).collect());
    }
    let read = |config: &Config| read_with(config, &files);
    if replicas.is_empty() { read(&config) } else { simulate::described(&config, replicas, &read) }
}

fn parsed(text: Option<String>, path: Option<PathBuf>) -> Result<Config> {
    match (text, path) {
        (Some(text), _) => Config::from_code(&text, "network"),
        (None, Some(path)) => Config::read(path),
        (None, None) => Err(Error::config("neither a description nor a file was given")),
    }
}

/// What spikes (u64 steps, u32 cells) of populations of these sizes are like, as JSON; times are steps.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn analyze_spikes(
    py: Python<'_>,
    steps: PyBackedBytes,
    cells: PyBackedBytes,
    sizes: Vec<u32>,
    dt_ms: f64,
    start: u64,
    stop: u64,
    bin: u64,
    burst_interval: u64,
    burst_spikes: usize,
    backend: String,
) -> PyResult<String> {
    let work = || -> Result<String> {
        let step = steps.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes")));
        let cell = cells.chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")));
        let mut spikes: Vec<Spike> = step.zip(cell).map(|(step, cell)| Spike { step, cell }).collect();
        spikes.sort_unstable();
        if bin == 0 {
            return Err(Error::config("a bin of 0 steps makes no bins"));
        }
        let trains = analysis::Trains { dt_ms, start, stop, sizes, spikes };
        let (device, _) = Device::open(backend.parse()?)?;
        let found = analysis::analyze(&trains, &analysis::Options { bin, burst_interval, burst_spikes }, &device)?;
        let json = serde_json::json!({
            "populations": found.populations,
            "mutual_information_bits": found.mutual_information_bits,
            "mutual_information_bias_bits": analysis::bias(found.bins),
            "bins": found.bins,
        });
        Ok(json.to_string())
    };
    let found = py.detach(work);
    py_result(py, found)
}

/// `(name, unit, default)` of a parameter.
type Parameter = (&'static str, &'static str, f64);
/// `(name, parameters, [(variable, unit)], unit of weights, presets)`.
type Model = (&'static str, Vec<Parameter>, Vec<(&'static str, &'static str)>, &'static str, Vec<&'static str>);

/// Every model of cells.
#[pyfunction]
pub fn models() -> Vec<Model> {
    let one = |m: &&'static dyn library::Model| {
        let parameters = m.parameters().iter().map(|p| (p.name, p.unit, p.default)).collect();
        let variables = m.variables().iter().map(|v| (v.name, v.unit)).collect();
        (m.name(), parameters, variables, m.weight_unit(), m.presets().iter().map(|(name, _)| *name).collect())
    };
    library::all().iter().map(one).collect()
}
