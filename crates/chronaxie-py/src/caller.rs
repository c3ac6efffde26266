//! A plan on tensors of a framework: what a call of `chronaxie.torch` does, beside choosing the plan.
//!
//! Every tensor is looked at on every call, so that nothing can be stale: what it holds, where, and its sizes and
//! strides. The library then checks them against the signature, in its own sentences.
#![allow(unsafe_code)]

use crate::dlpack::{Allocated, Exchange, Seen};
use crate::errors::{py_result, raise};
use crate::plan::{Plan, pass_of};
use chronaxie::cuda::{Bundle, CudaDevice, StreamRef};
use chronaxie::op::{Args, Pass, Role, Signature, TensorSpec};
use chronaxie::{Dtype, Error, HostBuffer, MAX_RANK, Place, Shape, View, ViewMut};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// Scratch on the CPU up to this size stays with its thread: the allocator would map and unmap its pages on every call.
const KEEP: usize = 64 << 20;
/// Scratch on a GPU up to this size stays with its plan, for calls on the default stream, which follow each other and are in
/// no graph of PyTorch's: the allocator would take 2 to 3 us on every call.
const KEEP_ON_GPU: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Option<HostBuffer>> = const { Cell::new(None) };
    /// Empty between calls: some kilobytes that the allocator would take and give back on each.
    static VIEWS: Cell<(Vec<View<'static>>, Vec<ViewMut<'static>>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// How tensors of a framework are read and made: through its table of functions where it has one, else by functions in
/// Python.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Framework {
    exchange: Option<Exchange>,
    /// `read(tensor) -> (address, dtype, shape, strides, device index or -1)`.
    read: Py<PyAny>,
    /// `empty_like(pattern) -> tensor`.
    empty_like: Py<PyAny>,
    /// `pattern(shape, dtype, device) -> tensor`, whose memory is never used.
    pattern: Py<PyAny>,
    /// `stream(device index) -> handle`.
    stream: Py<PyAny>,
}

#[pymethods]
impl Framework {
    #[new]
    #[pyo3(signature = (read, empty_like, pattern, stream, exchange=None))]
    fn new(
        read: Py<PyAny>,
        empty_like: Py<PyAny>,
        pattern: Py<PyAny>,
        stream: Py<PyAny>,
        exchange: Option<&Bound<'_, PyCapsule>>,
    ) -> PyResult<Self> {
        let exchange = exchange.map(Exchange::from_capsule).transpose()?.flatten();
        Ok(Self { exchange, read, empty_like, pattern, stream })
    }
    /// Whether the framework's table of functions is used.
    #[getter]
    fn exchanges(&self) -> bool {
        self.exchange.is_some()
    }
}

impl Framework {
    fn read(&self, tensor: &Bound<'_, PyAny>, entry: &str, name: &str) -> PyResult<Seen> {
        let py = tensor.py();
        let seen = match self.exchange {
            Some(exchange) => exchange.read(py, tensor)?,
            None => {
                let read = self.read.bind(py).call1((tensor,))?;
                let (address, dtype, sizes, steps, index): (u64, String, Vec<usize>, Vec<isize>, i64) =
                    read.extract()?;
                let place = usize::try_from(index).map_or(Place::Cpu, Place::Cuda);
                match Dtype::from_name(&dtype) {
                    _ if sizes.len() > MAX_RANK => {
                        Err(Error::shape(format!("{} axes were given, at most {MAX_RANK} are taken", sizes.len())))
                    }
                    None => Err(Error::dtype(format!("it holds {dtype}, which is not taken"))),
                    Some(dtype) => {
                        let mut strides = [0; MAX_RANK];
                        strides[..steps.len()].copy_from_slice(&steps);
                        Ok(Seen { address, dtype, shape: Shape::new(&sizes), strides, place })
                    }
                }
            }
        };
        py_result(py, seen.map_err(|e| e.context(format!("{entry}: {name}"))))
    }

    fn stream(&self, py: Python<'_>, place: Place) -> PyResult<u64> {
        match (place, self.exchange) {
            (Place::Cpu, _) => Ok(0),
            (Place::Cuda(i), Some(exchange)) => exchange.stream(py, i),
            (Place::Cuda(i), None) => self.stream.bind(py).call1((i,))?.extract(),
        }
    }

    fn pattern(&self, py: Python<'_>, dtype: Dtype, shape: &Shape, place: Place) -> PyResult<Py<PyAny>> {
        Ok(match self.exchange {
            Some(exchange) => exchange.pattern(py, dtype, shape, place)?.unbind(),
            None => {
                let shape = PyTuple::new(py, shape.iter())?;
                self.pattern.bind(py).call1((shape, dtype.name(), place_name(place)))?.unbind()
            }
        })
    }

    fn empty_like<'py>(&self, pattern: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.empty_like.bind(pattern.py()).call1((pattern,))
    }
}

fn place_name(place: Place) -> String {
    place.to_string()
}

/// What a pass writes.
struct Written {
    /// Of each output, from which the framework makes others alike.
    patterns: Vec<Py<PyAny>>,
    /// The first output of those, up to the end, that may share one allocation: gradients of parameters.
    block_from: usize,
    block: Vec<(Dtype, Shape)>,
    /// Of scratch on a GPU.
    scratch: Py<PyAny>,
    scratch_bytes: usize,
    kept: OnceLock<Allocated>,
    /// Its launches on a GPU, which go there as one graph.
    bundle: Bundle,
}

/// A plan that takes tensors.
#[pyclass(frozen, module = "chronaxie._native")]
pub struct Caller {
    plan: Py<Plan>,
    framework: Py<Framework>,
    /// A zero on the plan's device, of which an output's missing gradient is made by strides of 0.
    zero: Py<PyAny>,
    passes: [Option<Written>; 3],
    /// Where the plan is of a GPU.
    device: Option<Arc<CudaDevice>>,
    /// What `backward` returns: at each place an output of the pass, or None.
    layout: Vec<Option<usize>>,
}

fn written(py: Python<'_>, plan: &Plan, framework: &Framework, pass: Pass) -> PyResult<Option<Written>> {
    let Some(signature) = plan.plan.signature(pass) else { return Ok(None) };
    let place = plan.plan.place();
    let patterns = signature
        .outputs
        .iter()
        .map(|t| framework.pattern(py, t.dtype, &t.shape, place))
        .collect::<PyResult<Vec<_>>>()?;
    let of_parameter = |t: &TensorSpec| {
        let of = t.name.strip_prefix("grad_").and_then(|n| signature.input(n));
        t.role == Role::Gradient && of.is_some_and(|i| signature.inputs[i].role == Role::Parameter)
    };
    let block_from = signature.outputs.iter().rposition(|t| !of_parameter(t)).map_or(0, |at| at + 1);
    let block = signature.outputs[block_from..].iter().map(|t| (t.dtype, t.shape)).collect();
    let scratch_bytes = plan.plan.scratch(pass).bytes();
    let scratch = framework.pattern(py, Dtype::U8, &Shape::from([scratch_bytes]), place)?;
    Ok(Some(Written {
        patterns,
        block_from,
        block,
        scratch,
        scratch_bytes,
        kept: OnceLock::new(),
        bundle: Bundle::default(),
    }))
}

/// Views of what was given, and what must be held while they are used.
struct Given<'py> {
    views: Vec<View<'static>>,
    held: Vec<Bound<'py, PyAny>>,
}

/// A view of a tensor.
///
/// # Safety
/// The view must not be used once the tensor may be gone.
unsafe fn view(seen: &Seen) -> View<'static> {
    // SAFETY: the framework says that this memory is there while the object is held.
    unsafe { View::from_raw(seen.address as *const u8, seen.dtype, seen.shape, &seen.strides, seen.place) }
}

impl Caller {
    fn given<'py>(
        &self,
        signature: &Signature,
        entry: &str,
        place: Place,
        tensors: &Bound<'py, PyTuple>,
        prepared: Option<&Bound<'py, PyAny>>,
        gradients: Option<&Bound<'py, PyTuple>>,
        mut views: Vec<View<'static>>,
    ) -> PyResult<Given<'py>> {
        let py = tensors.py();
        let framework = self.framework.get();
        views.reserve(signature.inputs.len());
        let mut given = Given { views, held: Vec::new() };
        let mut tensors = tensors.iter().filter(|t| !t.is_none());
        let mut gradients = gradients.map(|g| g.iter());
        let mut lists: Option<(Seen, u64)> = None;
        let count = |what: &str| {
            let missing = Error::shape(format!("{entry}: {} tensors are needed, {what}", signature.inputs.len()));
            raise(py, &missing)
        };
        for spec in &signature.inputs {
            if let (Role::Prepared, Some(packed)) = (spec.role, prepared) {
                let seen = match &lists {
                    Some((seen, _)) => *seen,
                    None => framework.read(packed, entry, "the prepared lists")?,
                };
                let offset = lists.map_or(0, |(_, offset)| offset);
                let end = offset + spec.bytes() as u64;
                if seen.dtype != spec.dtype
                    || seen.place != place
                    || seen.shape.len() != 1
                    || (seen.strides[0] != 1 && seen.shape.elements() > 1)
                    || end > (seen.shape.elements() * seen.dtype.size()) as u64
                {
                    let e = Error::device(format!(
                        "{entry}: the prepared lists ({} elements on {}) are not those of the call, on {place}",
                        seen.shape.elements(),
                        seen.place
                    ));
                    return Err(raise(py, &e));
                }
                let strides = spec.shape.contiguous_strides();
                let address = seen.address + offset;
                // SAFETY: inside the packed lists, which the caller holds.
                given.views.push(unsafe { view(&Seen { address, shape: spec.shape, strides, ..seen }) });
                lists = Some((seen, end));
                continue;
            }
            let tensor = match (spec.role, gradients.as_mut()) {
                (Role::Gradient, Some(gradients)) => gradients.next(),
                _ => tensors.next(),
            };
            let Some(tensor) = tensor else { return Err(count(&format!("and {} is not given", spec.name))) };
            if tensor.is_none() {
                let zero = framework.read(self.zero.bind(py), entry, "zero")?;
                // The bits of a zero are those of any type that is no larger.
                let dtype = if spec.dtype.size() <= zero.dtype.size() { spec.dtype } else { zero.dtype };
                // SAFETY: one element, which the plan holds.
                given.views.push(unsafe { view(&Seen { dtype, shape: spec.shape, strides: [0; MAX_RANK], ..zero }) });
                continue;
            }
            let mut seen = framework.read(&tensor, entry, &spec.name)?;
            // SAFETY: the tensor is held by the caller's tuple.
            let mut v = unsafe { view(&seen) };
            if !spec.strided && !v.is_contiguous() {
                let whole = tensor.call_method0("contiguous")?;
                seen = framework.read(&whole, entry, &spec.name)?;
                // SAFETY: held below.
                v = unsafe { view(&seen) };
                given.held.push(whole);
            }
            given.views.push(v);
        }
        if let Some((seen, end)) = lists
            && end != (seen.shape.elements() * seen.dtype.size()) as u64
        {
            let e = format!("{entry}: the prepared lists have {} elements, not {}", seen.shape.elements(), end / 4);
            return Err(raise(py, &Error::device(e)));
        }
        if tensors.next().is_some() {
            return Err(count("and more were given"));
        }
        Ok(given)
    }
}

#[pymethods]
impl Caller {
    /// A caller of `plan`; `zero` is an f32 scalar on its device, `layout` what `backward` returns, its gradients in the
    /// order of the signature by default.
    #[new]
    #[pyo3(signature = (plan, framework, zero, layout=None))]
    fn new(
        py: Python<'_>,
        plan: Py<Plan>,
        framework: Py<Framework>,
        zero: Py<PyAny>,
        layout: Option<Vec<Option<usize>>>,
    ) -> PyResult<Self> {
        let [a, b, c] = Pass::ALL.map(|pass| written(py, plan.get(), framework.get(), pass));
        let passes = [a?, b?, c?];
        let outputs = passes[Pass::Backward as usize].as_ref().map_or(0, |w| w.patterns.len());
        let layout = layout.unwrap_or_else(|| (0..outputs).map(Some).collect());
        if let Some(at) = layout.iter().flatten().find(|&&at| at >= outputs) {
            return Err(raise(py, &Error::config(format!("the layout names gradient {at} of {outputs}"))));
        }
        let device = match plan.get().plan.place() {
            Place::Cuda(index) => Some(py_result(py, CudaDevice::open(index))?),
            Place::Cpu => None,
        };
        Ok(Self { passes, plan, framework, zero, device, layout })
    }

    /// Runs a pass and returns what it writes, made by the framework.
    ///
    /// `tensors` are those of the signature in order, without the prepared ones where `prepared` holds all of them behind
    /// each other, and `gradients`, of the outputs, None where one is zero. None among `tensors` is passed over. With `block`
    /// the gradients of parameters share one allocation, where the framework has a table of functions.
    #[pyo3(signature = (pass_name, tensors, prepared=None, gradients=None, block=false))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        pass_name: &str,
        tensors: &Bound<'py, PyTuple>,
        prepared: Option<&Bound<'py, PyAny>>,
        gradients: Option<&Bound<'py, PyTuple>>,
        block: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.call(py, py_result(py, pass_of(pass_name))?, tensors, prepared, gradients, block)
    }

    /// The forward pass, as `run` has it.
    #[pyo3(signature = (tensors, prepared=None))]
    fn forward<'py>(
        &self,
        py: Python<'py>,
        tensors: &Bound<'py, PyTuple>,
        prepared: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.call(py, Pass::Forward, tensors, prepared, None, false)
    }

    /// The backward pass, as `run` has it with `block`; its gradients lie as the layout says.
    #[pyo3(signature = (tensors, prepared, gradients))]
    fn backward<'py>(
        &self,
        py: Python<'py>,
        tensors: &Bound<'py, PyTuple>,
        prepared: Option<&Bound<'py, PyAny>>,
        gradients: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let made = self.call(py, Pass::Backward, tensors, prepared, Some(gradients), true)?;
        PyTuple::new(py, self.layout.iter().map(|at| at.map(|at| &made[at])))
    }
}

impl Caller {
    fn call<'py>(
        &self,
        py: Python<'py>,
        pass: Pass,
        tensors: &Bound<'py, PyTuple>,
        prepared: Option<&Bound<'py, PyAny>>,
        gradients: Option<&Bound<'py, PyTuple>>,
        block: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (plan, framework) = (self.plan.get(), self.framework.get());
        let signature = py_result(py, plan.signature_of(pass))?;
        let (entry, place) = (plan.plan.entry(), plan.plan.place());
        let Some(written) = &self.passes[pass as usize] else {
            return Err(raise(py, &Error::config(format!("{entry}: the plan has no {} pass", pass.name()))));
        };
        let (views, mut outputs) = VIEWS.take();
        let mut given = self.given(signature, entry, place, tensors, prepared, gradients, views)?;
        let stream = framework.stream(py, place)?;
        let default = stream == 0;

        // A block's parts are not the allocator's own, which then cannot wait for the streams that use them: on a side
        // stream each gradient is an allocation of its own.
        let shared = match framework.exchange {
            Some(exchange) if block && default => exchange.block(py, &written.block, place)?,
            _ => None,
        };
        let separate = if shared.is_some() { written.block_from } else { written.patterns.len() };
        let mut made = Vec::with_capacity(written.patterns.len());
        outputs.reserve(written.patterns.len());
        let mut push = |spec: &TensorSpec, tensor: Bound<'py, PyAny>, address: u64| {
            let strides = spec.shape.contiguous_strides();
            // SAFETY: made of this size and type, and `made` holds it.
            outputs.push(unsafe { ViewMut::from_raw(address as *mut u8, spec.dtype, spec.shape, &strides, place) });
            made.push(tensor);
        };
        for (spec, pattern) in signature.outputs.iter().zip(&written.patterns).take(separate) {
            let tensor = framework.empty_like(pattern.bind(py))?;
            let address = framework.read(&tensor, entry, &spec.name)?.address;
            push(spec, tensor, address);
        }
        for (spec, (tensor, address)) in signature.outputs[separate..].iter().zip(shared.into_iter().flatten()) {
            push(spec, tensor, address);
        }

        let bytes = Shape::from([written.scratch_bytes]);
        // SAFETY: the framework's current stream.
        let stream = unsafe { StreamRef::from_raw(stream) };
        if place == Place::Cpu {
            let kept = SCRATCH.take().filter(|b| b.bytes() >= written.scratch_bytes);
            let mut block = py_result(py, kept.map_or_else(|| HostBuffer::zeroed(written.scratch_bytes), Ok))?;
            let address = block.view_mut().address();
            // SAFETY: the buffer's own memory, which nobody else uses until it goes back below.
            let scratch = unsafe { ViewMut::from_raw(address as *mut u8, Dtype::U8, bytes, &[1], place) };
            let mut args = Args { inputs: &given.views, outputs: &mut outputs, scratch, stream };
            let ran = plan.work(py, pass, || plan.plan.run(pass, &mut args));
            if block.bytes() <= KEEP {
                SCRATCH.set(Some(block));
            }
            given.views.clear();
            outputs.clear();
            VIEWS.set((given.views, outputs));
            ran?;
            return Ok(made);
        }
        let allocate = || framework.exchange.and_then(|e| e.allocate(written.scratch_bytes, place));
        let small = default && written.scratch_bytes <= KEEP_ON_GPU;
        let first = || allocate().map(|block| written.kept.get_or_init(|| block));
        let kept = if small { written.kept.get().or_else(first) } else { None };
        // Whatever the block is, it goes back in the order of the stream on which it was taken.
        let taken = if kept.is_some() { None } else { allocate() };
        let (address, _held) = match kept.or(taken.as_ref()) {
            Some(block) => (block.address(), None),
            None => {
                let block = framework.empty_like(written.scratch.bind(py))?;
                (framework.read(&block, entry, "scratch")?.address, Some(block))
            }
        };
        // SAFETY: held above.
        let scratch = unsafe { ViewMut::from_raw(address as *mut u8, Dtype::U8, bytes, &[1], place) };
        let mut args = Args { inputs: &given.views, outputs: &mut outputs, scratch, stream };
        let run = || plan.plan.run(pass, &mut args);
        let ran = self.device.as_ref().map_or_else(|| Ok(()), |device| written.bundle.run(device, stream, run));
        given.views.clear();
        outputs.clear();
        VIEWS.set((given.views, outputs));
        py_result(py, ran)?;
        Ok(made)
    }
}
