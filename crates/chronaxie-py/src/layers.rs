//! Wirings and prepared synapses of the LTC family.

use crate::errors::py_result;
use chronaxie::layers::ltc::{Synapses, connectivity, wirings::Rule};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// The synapses of a layer as lists: what `prepare` makes of masks.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Connectivity(pub Arc<connectivity::Connectivity>);

/// Compacts 0/1 masks, one byte an element: `recurrent` `[H, H]` and `sensory` `[D, H]`, row-major by source.
#[pyfunction]
pub fn prepare(
    py: Python<'_>,
    recurrent: &[u8],
    sensory: &[u8],
    inputs: usize,
    hidden: usize,
) -> PyResult<Connectivity> {
    let made = py.detach(|| {
        let floats = |mask: &[u8]| -> Vec<f32> { mask.iter().map(|&m| m.into()).collect() };
        connectivity::prepare(&floats(recurrent), &floats(sensory), inputs, hidden)
    });
    py_result(py, made).map(|c| Connectivity(Arc::new(c)))
}

fn bytes<'py>(py: Python<'py>, list: &[i32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = list.iter().flat_map(|x| x.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

#[pymethods]
impl Connectivity {
    /// D.
    #[getter]
    fn inputs(&self) -> usize {
        self.0.sensory.sources()
    }
    /// H.
    #[getter]
    fn hidden(&self) -> usize {
        self.0.recurrent.targets()
    }
    /// Synapses between neurons.
    #[getter]
    fn recurrent(&self) -> usize {
        self.0.recurrent.len()
    }
    /// Synapses from inputs.
    #[getter]
    fn sensory(&self) -> usize {
        self.0.sensory.len()
    }
    /// The index lists in the order of every signature, each the bytes of 32-bit integers.
    fn lists<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        let side = |name: &str, s: &Synapses| {
            s.lists().map(|(list, data)| (format!("{name}_{list}"), bytes(py, data))).into_iter().collect::<Vec<_>>()
        };
        [side("recurrent", &self.0.recurrent), side("sensory", &self.0.sensory)].concat()
    }
}

/// A drawn wiring: `(units, outputs, command neurons, adjacency [H, H], sensory adjacency [D, H])`, the last two a
/// signed byte an element.
type Drawn<'py> = (usize, usize, usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Draws the wiring that `rule`'s keys and values spell, for `inputs` inputs.
#[pyfunction]
pub fn draw_wiring<'py>(py: Python<'py>, rule: Vec<(String, String)>, inputs: usize) -> PyResult<Drawn<'py>> {
    let draw = || Rule::from_config(rule.iter().map(|(k, v)| (k.as_str(), v.as_str())))?.build(inputs);
    let w = py_result(py, draw())?;
    let bytes = |m: &[i8]| PyBytes::new(py, &m.iter().map(|x| x.to_ne_bytes()[0]).collect::<Vec<u8>>());
    Ok((w.units, w.output_dim, w.command_neurons, bytes(&w.adjacency), bytes(&w.sensory_adjacency)))
}
