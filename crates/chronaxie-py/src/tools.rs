//! Devices, checks, benchmarks and the command line: what the library has for every face.

use crate::errors::{py_result, raise};
use chronaxie::bench::{self, Event, Family};
use chronaxie::check::{self, Target};
use chronaxie::cuda::CudaDevice;
use chronaxie::op::{Case, Op};
use chronaxie::progress::Progress;
use chronaxie::{Backend, Device, Error, ErrorKind, Result, pool, registry};
use pyo3::prelude::*;
use std::sync::Mutex;

/// The library's version.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs the command line on `argv` (the program's name first) and returns its exit code.
#[pyfunction]
pub fn run(py: Python<'_>, argv: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| chronaxie_cli::run(argv))
}

/// What `chronaxie devices --json` writes.
#[pyfunction]
pub fn devices(py: Python<'_>) -> String {
    py.detach(chronaxie_cli::inventory).to_string()
}

/// Names the folders whose wheels may hold NVRTC.
#[pyfunction]
pub fn set_python_sites(sites: Vec<std::path::PathBuf>) {
    chronaxie::cuda::set_python_sites(sites);
}

/// Free and total bytes of the CUDA device of that index.
#[pyfunction]
pub fn memory_info(py: Python<'_>, index: usize) -> PyResult<(u64, u64)> {
    let found = py.detach(|| CudaDevice::open(index)?.memory_info());
    py_result(py, found).map(|m| (m.free, m.total))
}

/// Raises if work cannot run on `device` (`cpu`, `cuda:N`): no driver, no such device, or no way to have kernels.
#[pyfunction]
pub fn require_device(py: Python<'_>, device: String) -> PyResult<()> {
    let found = py.detach(|| match Device::open(device.parse::<Backend>()?)?.0 {
        Device::Cuda(d) => d.require_compiler(),
        Device::Cpu => Ok(()),
    });
    py_result(py, found)
}

/// The number of threads of CPU work.
#[pyfunction]
pub fn num_threads() -> usize {
    pool::num_threads()
}

/// Sets the number of threads of CPU work; results are the same bits for any number.
#[pyfunction]
pub fn set_num_threads(threads: usize) {
    pool::set_num_threads(threads);
}

/// Looks for Ctrl-C between the steps of long work; a signal that raised is kept for the caller.
#[derive(Default)]
pub(crate) struct Signals(Mutex<Option<PyErr>>);

impl Signals {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<PyErr>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    pub(crate) fn finish<T>(self, py: Python<'_>, result: Result<T>) -> PyResult<T> {
        let signal = self.lock().take();
        match (signal, result) {
            (Some(e), _) => Err(e),
            (None, result) => py_result(py, result),
        }
    }
}

impl Progress for Signals {
    fn interrupted(&self) -> bool {
        // Only one may hold the lock and wait for the GIL: the work asks from one thread.
        let raised = Python::attach(|py| py.check_signals()).err();
        let mut kept = self.lock();
        *kept = kept.take().or(raised);
        kept.is_some()
    }
}

/// The cases, each of which must be one of every family.
fn select(families: &[Family<'_>], cases: &[String]) -> Result<Option<Vec<Case>>> {
    let cases: Vec<Case> = cases.iter().map(|c| c.parse()).collect::<Result<_>>()?;
    families.iter().try_for_each(|family| cases.iter().try_for_each(|case| family.allow(case)))?;
    Ok((!cases.is_empty()).then_some(cases))
}

fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| raise(py, &Error::value(format!("JSON: {e}"))))
}

/// The records of `chronaxie check`, as JSON.
#[pyfunction]
pub fn run_check(
    py: Python<'_>,
    families: Vec<String>,
    cases: Vec<String>,
    backend: String,
    repeats: usize,
    seed: u64,
) -> PyResult<String> {
    let signals = Signals::default();
    let mut records = Vec::new();
    let work = || -> Result<()> {
        let entries: Vec<&'static dyn Op> = match &families[..] {
            [] => registry::entries().to_vec(),
            names => names.iter().map(|n| registry::find(n)).collect::<Result<_>>()?,
        };
        let cases = select(&entries.iter().map(|op| Family::Op(*op)).collect::<Vec<_>>(), &cases)?;
        let mut options = check::Options::default();
        (options.cases, options.repeats, options.seed) = (cases, repeats.max(2), seed);
        let (targets, _) = Target::select(&backend)?;
        check::run(&entries, &targets, &options, &signals, &mut |r| records.push(r.clone())).map(|_| ())
    };
    let result = py.detach(work);
    signals.finish(py, result)?;
    json(py, &records)
}

/// The records of `chronaxie bench`, as JSON. A case that fails its check is an error: nothing wrong is timed.
#[pyfunction]
pub fn run_bench(
    py: Python<'_>,
    families: Vec<String>,
    cases: Vec<String>,
    backend: String,
    precision: Option<String>,
    seconds: f64,
) -> PyResult<String> {
    let signals = Signals::default();
    let (mut records, mut refused) = (Vec::new(), Vec::new());
    let work = || -> Result<()> {
        if !(seconds.is_finite() && seconds > 0.0 && seconds <= 3600.0) {
            return Err(Error::config(format!("seconds = {seconds} must lie between 0 and 3600")));
        }
        let families = match &families[..] {
            [] => registry::families(),
            names => names.iter().map(|n| registry::family(n)).collect::<Result<_>>()?,
        };
        let cases = select(&families, &cases)?;
        let mut options = bench::Options::default();
        (options.cases, options.seconds) = (cases, seconds);
        options.precision = precision.map(|p| p.parse()).transpose()?;
        options.provenance = chronaxie_cli::provenance();
        let (targets, _) = Target::select(&backend)?;
        bench::run_families(&families, &targets, &options, &signals, &mut |event| match event {
            Event::Timed(record) => records.push((**record).clone()),
            Event::Refused { family, case, backend, reason } => {
                refused.push(format!("{family} {case} on {backend}: {reason}"));
            }
            Event::Skipped { .. } => {}
        })?;
        match refused.is_empty() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Cuda, format!("not timed: {}", refused.join("; ")))),
        }
    };
    let result = py.detach(work);
    signals.finish(py, result)?;
    json(py, &records)
}
