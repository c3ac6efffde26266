//! A user's own CUDA C++.
#![allow(unsafe_code)]

use crate::errors::py_result;
use chronaxie::cuda::{Arg, CudaDevice, Kernel as Loaded, LaunchConfig, StreamRef, UserKernel};
use chronaxie::{Error, Result};
use pyo3::prelude::*;

/// One kernel, compiled and loaded on one device.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Kernel(Loaded);

/// An argument as Python gives it; the kernel's parameter says how wide it is.
#[derive(FromPyObject)]
enum Given {
    Int(i64),
    Big(u64),
    Float(f64),
}

fn argument(kernel: &Loaded, at: usize, given: &Given) -> Result<Arg<'static>> {
    let bytes = kernel.parameter_bytes().get(at).copied().unwrap_or(0);
    let refuse = |what: String| Error::value(format!("{}: argument {at} is {what}", kernel.name()));
    Ok(match (given, bytes) {
        (Given::Float(x), 4) => Arg::F32(*x as f32),
        (Given::Float(x), 8) => Arg::F64(*x),
        (Given::Int(x), 4) => match (i32::try_from(*x), u32::try_from(*x)) {
            (Ok(x), _) => Arg::I32(x),
            (_, Ok(x)) => Arg::U32(x),
            _ => return Err(refuse(format!("{x}, which the kernel's 32-bit parameter cannot hold"))),
        },
        (Given::Int(x), 8) => Arg::I64(*x),
        (Given::Big(x), 8) => Arg::U64(*x),
        (_, bytes) => return Err(refuse(format!("a number, and the kernel's parameter has {bytes} bytes"))),
    })
}

#[pymethods]
impl Kernel {
    /// Compiles `source` for the device of that index, or takes it from the cache, and loads kernel `name`.
    #[new]
    fn new(py: Python<'_>, source: String, name: String, file: String, index: usize, fmad: bool) -> PyResult<Self> {
        let make = || UserKernel::new(file, source).fmad(fmad).compile(&CudaDevice::open(index)?, &name);
        py_result(py, py.detach(make)).map(Self)
    }
    /// Registers a thread.
    #[getter]
    fn registers(&self) -> u32 {
        self.0.registers()
    }
    /// Bytes of spills and stack a thread.
    #[getter]
    fn local_bytes(&self) -> u32 {
        self.0.local_bytes()
    }
    /// Puts a launch on `stream`. Addresses among `arguments` are trusted.
    fn launch(
        &self,
        py: Python<'_>,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        arguments: Vec<Given>,
        shared_bytes: u32,
        stream: u64,
    ) -> PyResult<()> {
        let launch = || {
            let count = self.0.parameters();
            if arguments.len() != count {
                let given = arguments.len();
                return Err(Error::value(format!("{} takes {count} arguments and {given} were given", self.0.name())));
            }
            let args: Vec<Arg<'_>> =
                arguments.iter().enumerate().map(|(at, g)| argument(&self.0, at, g)).collect::<Result<_>>()?;
            if shared_bytes > 0 {
                self.0.set_max_dynamic_shared(shared_bytes)?;
            }
            let config = LaunchConfig::new(grid, block).shared(shared_bytes);
            // SAFETY: the Python caller vouches for stream and addresses; sizes of arguments are checked by the launch.
            unsafe { self.0.launch(StreamRef::from_raw(stream), &config, &args) }
        };
        py_result(py, launch())
    }
}
