//! Parts of networks that Python holds. Spikes go in and out as bytes in the machine's order.

use crate::errors::py_result;
use crate::session::{Population, Table, column, columns_of, settings_of};
use chronaxie::simulate;
use chronaxie::spiking::simulate::Spike;
use chronaxie::{Backend, Error, Result};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes};
use std::path::PathBuf;

/// One part of a network; its thread ends with it.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Part(simulate::HeldPart);

#[pymethods]
impl Part {
    /// Builds part `part` of `parts` of the network of a description, JSON or a file, with the tables that it names.
    #[new]
    #[pyo3(signature = (text, path, tables, overrides, part, parts, method, backend, gpus=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        text: Option<String>,
        path: Option<PathBuf>,
        tables: Vec<Table>,
        overrides: Vec<String>,
        part: usize,
        parts: usize,
        method: String,
        backend: String,
        gpus: Option<usize>,
    ) -> PyResult<Self> {
        let made = py.detach(|| -> Result<simulate::HeldPart> {
            let on = (backend.parse::<Backend>()?, gpus);
            simulate::HeldPart::open(settings_of(text, path, tables, &overrides, &[])?, part, parts, &method, on)
        });
        py_result(py, made).map(Self)
    }
    /// `(step in ms, u32 cells, synapses, most steps at a time, method)`.
    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<(f64, Bound<'py, PyByteArray>, u64, u64, &'static str)> {
        let f = self.0.facts();
        Ok((f.dt_ms, column(py, &f.cells, u32::to_ne_bytes)?, f.synapses, f.min_delay, f.method))
    }
    /// `cpu` or `cuda:N`.
    #[getter]
    fn backend(&self) -> &str {
        &self.0.facts().backend
    }
    /// The populations of the whole network, in the order of their cells.
    #[getter]
    fn populations<'py>(&self, py: Python<'py>) -> PyResult<Vec<Population<'py>>> {
        columns_of(py, &self.0.facts().populations)
    }
    /// The next step.
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        let step = py.detach(|| self.0.step());
        py_result(py, step)
    }
    /// Runs; what fired here as u64 steps and u32 cells.
    fn advance<'py>(
        &self,
        py: Python<'py>,
        steps: u64,
    ) -> PyResult<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
        let fired = py.detach(|| self.0.advance(steps));
        let spikes = py_result(py, fired)?;
        let steps = column(py, &spikes, |s| s.step.to_ne_bytes())?;
        Ok((steps, column(py, &spikes, |s| s.cell.to_ne_bytes())?))
    }
    /// What it says of itself to all parts before `connect`.
    fn offer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let offer = py.detach(|| self.0.offer());
        Ok(PyBytes::new(py, &py_result(py, offer)?))
    }
    /// Joins the GPUs of all parts, which meet every `steps` steps.
    fn connect(&self, py: Python<'_>, offers: Vec<PyBackedBytes>, steps: u64) -> PyResult<()> {
        let offers = offers.iter().map(|b| b.to_vec()).collect();
        let done = py.detach(|| self.0.connect(offers, steps));
        py_result(py, done)
    }
    /// Goes on with all parts at the same time; what fired here as u64 steps and u32 cells.
    fn advance_together<'py>(
        &self,
        py: Python<'py>,
        steps: u64,
    ) -> PyResult<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
        let fired = py.detach(|| self.0.advance_together(steps));
        let spikes = py_result(py, fired)?;
        let steps = column(py, &spikes, |s| s.step.to_ne_bytes())?;
        Ok((steps, column(py, &spikes, |s| s.cell.to_ne_bytes())?))
    }
    /// What fired elsewhere, u64 steps and u32 cells.
    fn hear(&self, py: Python<'_>, steps: PyBackedBytes, cells: PyBackedBytes) -> PyResult<()> {
        let done = py.detach(|| {
            if steps.len() / 8 != cells.len() / 4 {
                let (a, b) = (steps.len() / 8, cells.len() / 4);
                return Err(Error::shape(format!("{a} steps do not match {b} cells")));
            }
            let step = steps.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes")));
            let cell = cells.chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")));
            self.0.hear(step.zip(cell).map(|(step, cell)| Spike { step, cell }).collect())
        });
        py_result(py, done)
    }
    /// The state of its cells.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = py.detach(|| self.0.state());
        Ok(PyBytes::new(py, &py_result(py, state)?))
    }
    /// Goes to such a state.
    fn restore(&self, py: Python<'_>, state: PyBackedBytes) -> PyResult<()> {
        let done = py.detach(|| self.0.restore(state.to_vec()));
        py_result(py, done)
    }
}
