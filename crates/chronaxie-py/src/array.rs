//! Arrays of ours and of others, for callers without a framework: NumPy, JAX, CuPy and whatever else speaks DLPack.

use crate::dlpack;
use crate::errors::py_result;
use chronaxie::call::Tensor;
use chronaxie::cuda::{CudaDevice, StreamRef};
use chronaxie::op::Values;
use chronaxie::{Backend, Device, Dtype, Error, MAX_RANK, Place, Result, Shape};
use pyo3::prelude::*;
use std::sync::Arc;

/// A tensor that owns its memory and hands it out by DLPack.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Array(Arc<Tensor>);

/// `(address, dtype, shape, strides, device)`.
type Seen = (u64, &'static str, Vec<usize>, Vec<isize>, String);

/// What the tensor behind a capsule of `__dlpack__` is. It lives as long as the capsule.
#[pyfunction]
pub fn inspect(py: Python<'_>, capsule: &Bound<'_, PyAny>) -> PyResult<Seen> {
    let seen = py_result(py, dlpack::from_capsule(capsule)?)?;
    let strides = seen.strides[..seen.shape.len()].to_vec();
    Ok((seen.address, seen.dtype.name(), seen.shape.to_vec(), strides, seen.place.to_string()))
}

fn named(dtype: &str) -> Result<Dtype> {
    Dtype::from_name(dtype).ok_or_else(|| Error::dtype(format!("there is no type `{dtype}`")))
}

fn checked(sizes: &[usize]) -> Result<Shape> {
    match sizes.len() <= MAX_RANK {
        true => Ok(Shape::from(sizes)),
        false => Err(Error::shape(format!("{} axes were asked for, {MAX_RANK} are the most", sizes.len()))),
    }
}

#[pymethods]
impl Array {
    /// Memory for a tensor: zeros on the CPU, unspecified on a GPU.
    #[new]
    fn new(py: Python<'_>, dtype: &str, shape: Vec<usize>, device: &str) -> PyResult<Self> {
        let make = || {
            let (device, _) = Device::open(device.parse::<Backend>()?)?;
            Tensor::new(named(dtype)?, checked(&shape)?, &device)
        };
        py_result(py, make()).map(|t| Self(Arc::new(t)))
    }
    /// A tensor of these values, row-major.
    #[staticmethod]
    fn of(py: Python<'_>, values: Vec<f64>, dtype: &str, shape: Vec<usize>, device: &str) -> PyResult<Self> {
        let make = || {
            let dtype = named(dtype)?;
            let (device, _) = Device::open(device.parse::<Backend>()?)?;
            Tensor::from_values(&Values::new(checked(&shape)?, values)?, dtype, &device)
        };
        py_result(py, make()).map(|t| Self(Arc::new(t)))
    }
    /// The address of its first element.
    #[getter]
    fn address(&self) -> u64 {
        self.0.view().address()
    }
    /// Sizes.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.0.view().shape().to_vec()
    }
    /// The element type, as in `f32`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.view().dtype().name()
    }
    /// DLPack's kind and index of the device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(self.0.view().place())
    }
    /// A DLPack capsule. Whatever stream asks, the work that writes the array has ended.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Py<PyAny>>,
        max_version: Option<Py<PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        let place = self.0.view().place();
        if copy == Some(true) || dl_device.is_some_and(|d| d != dlpack::device(place)) {
            let e = Error::device(format!("the array lies on {place} and is handed out as it is, without a copy"));
            return py_result(py, Err(e));
        }
        if let Place::Cuda(index) = place {
            py_result(py, CudaDevice::open(index).and_then(|d| StreamRef::LEGACY.synchronize(&d)))?;
        }
        dlpack::to_capsule(py, &self.0)
    }
    fn __repr__(&self) -> String {
        let view = self.0.view();
        format!("chronaxie.Array({} {} on {})", view.dtype(), view.shape(), view.place())
    }
}
