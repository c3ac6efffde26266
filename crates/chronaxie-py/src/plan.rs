//! The one low-level call, for every entry of the registry: a problem by name and case, its signature, a plan on a
//! device, and passes over addresses.

use crate::errors::{py_result, raise};
use crate::layers::Connectivity;
use chronaxie::cuda::StreamRef;
use chronaxie::op::{self, Args, CaseSet, Pass, PlanOptions, Role, Signature, TensorSpec};
use chronaxie::{Backend, Device, Dtype, Error, ErrorKind, Place, Shape, View, ViewMut, pool, registry};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Work on the CPU that takes longer than about this many evaluations of a special function (50 ms and more) runs on a
/// thread of its own, so that the caller's can look for Ctrl-C.
const LONG: u64 = 20_000_000;
/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);

/// The names of all entries.
#[pyfunction]
pub fn families() -> Vec<&'static str> {
    registry::entries().iter().map(|e| e.name()).collect()
}

/// The conformance cases of an entry, as `problem` takes them.
#[pyfunction]
pub fn cases(py: Python<'_>, entry: String) -> PyResult<Vec<String>> {
    let entry = py_result(py, registry::find(&entry))?;
    Ok(entry.cases(CaseSet::Check).iter().map(ToString::to_string).collect())
}

/// The problem that `case` spells for an entry, as in `problem("ltc", "B24_T8_D128_H64,unfolds=6")`; over the caller's
/// own `prepared` synapses the case has no sizes of theirs.
#[pyfunction]
#[pyo3(signature = (entry, case, prepared=None))]
pub fn problem(py: Python<'_>, entry: String, case: String, prepared: Option<&Connectivity>) -> PyResult<Problem> {
    let make = || {
        let (entry, case) = (registry::find(&entry)?, case.parse()?);
        match prepared {
            None => op::problem(entry, &case),
            Some(prepared) => entry.problem_over(&case, prepared.0.clone()),
        }
    };
    py_result(py, make()).map(Problem)
}

/// An operation of given sizes and options.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Problem(Arc<dyn op::Problem>);

/// `(name, axes, shape, dtype, role, strided)`.
type Tensor = (String, &'static str, Vec<usize>, &'static str, &'static str, bool);

fn tensors(specs: &[TensorSpec]) -> Vec<Tensor> {
    let role = |role| match role {
        Role::Input => "input",
        Role::Parameter => "parameter",
        Role::Prepared => "prepared",
        Role::Output => "output",
        Role::State => "state",
        Role::Saved => "saved",
        Role::Gradient => "gradient",
        _ => "extra",
    };
    specs
        .iter()
        .map(|t| (t.name.to_string(), t.axes, t.shape.to_vec(), t.dtype.name(), role(t.role), t.strided))
        .collect()
}

pub fn pass_of(name: &str) -> chronaxie::Result<Pass> {
    Pass::ALL
        .into_iter()
        .find(|p| p.name() == name)
        .ok_or_else(|| Error::config(format!("pass `{name}` is not one of {}", Pass::ALL.map(Pass::name).join(", "))))
}

#[pymethods]
impl Problem {
    /// The entry's name.
    #[getter]
    fn entry(&self) -> &'static str {
        self.0.entry()
    }
    /// What goes into a pass and what comes out, each a list of `(name, axes, shape, dtype, role, strided)`.
    fn signature(&self, py: Python<'_>, pass_name: String) -> PyResult<(Vec<Tensor>, Vec<Tensor>)> {
        let s = py_result(py, pass_of(&pass_name).and_then(|p| self.0.signature(p)))?;
        Ok((tensors(&s.inputs), tensors(&s.outputs)))
    }
    /// The bound that is declared on the error of a pass's output: the metric, its value and the reason, or None where the
    /// output is not compared.
    fn tolerance(
        &self,
        py: Python<'_>,
        pass_name: &str,
        output: &str,
    ) -> PyResult<Option<(&'static str, f64, &'static str)>> {
        let pass = py_result(py, pass_of(pass_name))?;
        if py_result(py, self.0.signature(pass))?.output(output).is_none() {
            let e = Error::config(format!("{}: the {pass_name} pass writes no {output}", self.0.entry()));
            return Err(raise(py, &e));
        }
        Ok(self.0.tolerance(pass, output).map(|t| (t.metric.name(), t.value, t.reason)))
    }
    /// Plans it on `cpu` or `cuda:N`: compiles and loads what it needs.
    fn plan(&self, py: Python<'_>, device: String) -> PyResult<Plan> {
        let make = || {
            let (device, _) = Device::open(device.parse::<Backend>()?)?;
            // A plan may be made at a module's first call, and that be one that PyTorch captures in a graph.
            let _outside = device.outside_capture()?;
            let plan = self.0.plan(&device, &PlanOptions::default())?;
            let long = |pass| plan.place() == Place::Cpu && self.0.cost(pass).special > LONG;
            Ok(Plan { long: Pass::ALL.map(long), plan })
        };
        py_result(py, py.detach(make))
    }
    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// An operation ready to run on one device.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Plan {
    pub plan: Box<dyn op::Plan>,
    /// By pass: whether it is long work on the CPU.
    long: [bool; 3],
}

/// Views of foreign memory, in the order of a signature.
///
/// # Safety
/// `addresses` must hold the address of every input and then of every output, each of memory of `place` that has the
/// tensor's shape and element type, contiguous unless `strides` names it, and that stays valid and, for outputs, unused
/// by others for all of `'a`.
unsafe fn from_raw<'a>(
    signature: &Signature,
    addresses: &[u64],
    strides: &[(usize, Vec<isize>)],
    place: Place,
) -> (Vec<View<'a>>, Vec<ViewMut<'a>>) {
    let (inputs, outputs) = addresses.split_at(signature.inputs.len());
    let contiguous = |t: &TensorSpec| t.shape.contiguous_strides();
    let mut inputs: Vec<_> = inputs
        .iter()
        .zip(&signature.inputs)
        // SAFETY: the caller vouches for it.
        .map(|(&a, t)| unsafe { View::from_raw(a as *const u8, t.dtype, t.shape, &contiguous(t), place) })
        .collect();
    for (at, strides) in strides {
        let t = &signature.inputs[*at];
        // SAFETY: as above.
        inputs[*at] = unsafe { View::from_raw(addresses[*at] as *const u8, t.dtype, t.shape, strides, place) };
    }
    let outputs = outputs
        .iter()
        .zip(&signature.outputs)
        // SAFETY: as above.
        .map(|(&a, t)| unsafe { ViewMut::from_raw(a as *mut u8, t.dtype, t.shape, &contiguous(t), place) })
        .collect();
    (inputs, outputs)
}

impl Plan {
    fn call(
        &self,
        pass: Pass,
        addresses: &[u64],
        strides: &[(usize, Vec<isize>)],
        scratch: u64,
        stream: u64,
    ) -> chronaxie::Result<()> {
        let entry = self.plan.entry();
        let signature = self.signature_of(pass)?;
        let wanted = signature.inputs.len() + signature.outputs.len();
        if addresses.len() != wanted {
            return Err(Error::shape(format!(
                "{entry}: {} addresses were given, the {} pass has {wanted} tensors",
                addresses.len(),
                pass.name()
            )));
        }
        for (at, s) in strides {
            if signature.inputs.get(*at).is_none_or(|t| t.shape.len() != s.len()) {
                return Err(Error::shape(format!("{entry}: strides {s:?} do not fit input {at}")));
            }
        }
        let place = self.plan.place();
        // SAFETY: the Python caller vouches for the addresses, as `Plan.run` documents.
        let (inputs, mut outputs) = unsafe { from_raw(signature, addresses, strides, place) };
        let bytes = Shape::from([self.plan.scratch(pass).bytes()]);
        // SAFETY: as above, for the bytes that `scratch_bytes` names.
        let scratch = unsafe { ViewMut::from_raw(scratch as *mut u8, Dtype::U8, bytes, &[1], place) };
        // SAFETY: as above.
        let stream = unsafe { StreamRef::from_raw(stream) };
        self.plan.run(pass, &mut Args { inputs: &inputs, outputs: &mut outputs, scratch, stream })
    }
    /// Does the work of a pass: on the CPU without the GIL, and if it is long with a look for Ctrl-C.
    pub fn work(
        &self,
        py: Python<'_>,
        pass: Pass,
        call: impl FnOnce() -> chronaxie::Result<()> + Send,
    ) -> PyResult<()> {
        match (self.plan.place(), self.long[pass as usize]) {
            (Place::Cuda(_), _) => py_result(py, call()),
            (Place::Cpu, false) => py_result(py, py.detach(call)),
            (Place::Cpu, true) => interruptible(py, call),
        }
    }
    pub fn signature_of(&self, pass: Pass) -> chronaxie::Result<&Signature> {
        self.plan
            .signature(pass)
            .ok_or_else(|| Error::config(format!("{}: the plan has no {} pass", self.plan.entry(), pass.name())))
    }
}

/// Runs `work` on another thread; this one looks for Ctrl-C, and then asks the work to end and waits for that.
fn interruptible(py: Python<'_>, work: impl FnOnce() -> chronaxie::Result<()> + Send) -> PyResult<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let (done, ended) = mpsc::channel();
    let (signal, result) = py.detach(move || {
        std::thread::scope(|scope| {
            let mut signal = None;
            let stop = &stop;
            let worker = scope.spawn(move || {
                let result = pool::interruptible(stop, work);
                // Nobody can have gone: the receiver outlives the scope.
                let _ = done.send(());
                result
            });
            while ended.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                if signal.is_none()
                    && let Err(e) = Python::attach(|py| py.check_signals())
                {
                    signal = Some(e);
                    stop.store(true, Ordering::Relaxed);
                }
            }
            (signal, worker.join())
        })
    });
    match (signal, result) {
        (Some(e), _) => Err(e),
        (None, Ok(result)) => py_result(py, result),
        (None, Err(_)) => Err(raise(py, &Error::new(ErrorKind::Cuda, "a thread of the CPU's work panicked"))),
    }
}

#[pymethods]
impl Plan {
    /// The chosen configuration.
    #[getter]
    fn config(&self) -> String {
        self.plan.config()
    }
    /// A short name of the variant.
    #[getter]
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }
    /// Bytes of scratch that a pass needs, at an address that is a multiple of 256.
    fn scratch_bytes(&self, py: Python<'_>, pass_name: String) -> PyResult<usize> {
        let pass = py_result(py, pass_of(&pass_name))?;
        py_result(py, self.signature_of(pass))?;
        Ok(self.plan.scratch(pass).bytes())
    }
    /// Runs a pass: `addresses` of every input and then of every output in the order of the signature, `strides` as
    /// `(input, strides in elements)` of those inputs that are not contiguous, the address of the scratch, and the
    /// stream's handle.
    ///
    /// Nothing is known of the memory behind an address: a wrong one ends the process, as in C. On a GPU the call
    /// returns when the work is queued. The GIL is released on the CPU only.
    #[pyo3(signature = (pass_name, addresses, strides=Vec::new(), scratch=0, stream=0))]
    fn run(
        &self,
        py: Python<'_>,
        pass_name: String,
        addresses: Vec<u64>,
        strides: Vec<(usize, Vec<isize>)>,
        scratch: u64,
        stream: u64,
    ) -> PyResult<()> {
        let pass = py_result(py, pass_of(&pass_name))?;
        self.work(py, pass, || self.call(pass, &addresses, &strides, scratch, stream))
    }
}
