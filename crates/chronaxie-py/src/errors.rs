//! The one table from the library's errors to Python's classes, which `python/chronaxie/_errors.py` defines.

use chronaxie::{Error, ErrorKind};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The class of an error, by its kind alone.
fn class(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Shape => "ShapeError",
        ErrorKind::Dtype => "DtypeError",
        ErrorKind::Device | ErrorKind::Cuda => "DeviceError",
        ErrorKind::Unavailable => "BackendUnavailableError",
        ErrorKind::Config { .. } | ErrorKind::Value => "ConfigError",
        ErrorKind::Data { .. } => "DataError",
        ErrorKind::Compile { .. } => "CompileError",
        ErrorKind::OutOfMemory { .. } => "OutOfMemoryError",
        ErrorKind::Checkpoint => "CheckpointError",
        _ => "ChronaxieError",
    }
}

/// The exception that says `error`, with what its kind carries as attributes.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    if *error.kind() == ErrorKind::Interrupted {
        return PyKeyboardInterrupt::new_err(error.to_string());
    }
    let make = || -> PyResult<Bound<'_, PyAny>> {
        let module = MODULE.get_or_try_init(py, || py.import("chronaxie._errors").map(Bound::unbind))?;
        let exception = module.bind(py).getattr(class(error.kind()))?.call1((error.to_string(),))?;
        match error.kind() {
            ErrorKind::Config { line } => exception.setattr("line", line)?,
            ErrorKind::Data { path, line } => {
                exception.setattr("path", path)?;
                exception.setattr("line", line)?;
            }
            ErrorKind::Compile { kernel, log } => {
                exception.setattr("kernel", kernel)?;
                exception.setattr("log", log)?;
            }
            ErrorKind::OutOfMemory { asked, free } => {
                exception.setattr("asked", asked)?;
                exception.setattr("free", free)?;
            }
            _ => {}
        }
        Ok(exception)
    };
    match make() {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => PyRuntimeError::new_err(format!("{error} (and its class could not be had: {e})")),
    }
}

/// `result` with its error as a Python exception.
pub fn py_result<T>(py: Python<'_>, result: chronaxie::Result<T>) -> PyResult<T> {
    result.map_err(|e| raise(py, &e))
}
