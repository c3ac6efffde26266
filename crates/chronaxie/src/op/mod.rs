//! The contract of an operation: Problem -> Config -> Plan -> Args.
//!
//! * A [`Problem`] holds sizes, element types, options and which gradients are wanted. It is validated once; every
//!   refusal is a sentence with the values in it. It alone decides the [`Signature`] of each [`Pass`]: names, shapes and
//!   element types of what goes in and comes out.
//! * A configuration is a pure, printable function of (Problem, [`DeviceProps`](crate::DeviceProps)).
//! * A [`Plan`] is the only place that compiles, loads, queries or allocates. Running a pass hashes nothing, allocates
//!   nothing on the device, never synchronises, and can be captured in a CUDA graph.
//! * [`Args`] are views and a stream, in the order of the signature.
//!
//! All memory belongs to the caller, in four kinds: outputs, **saved** tensors (what the backward pass needs: outputs of
//! the forward pass whose shapes depend on the Problem alone), **state** (decode state, optimizer state: an output with
//! [`Role::State`] is read and then overwritten in place), and **scratch** (bytes, laid out by the plan).

mod case;
#[cfg(feature = "layers")]
mod cpu;
mod map;
mod values;
mod variant;

pub use case::Case;
#[cfg(feature = "layers")]
pub(crate) use cpu::{CpuPlan, CpuWork, Planned};
pub use map::{Channels, LinearMap};
pub use values::{Tensors, Values};
pub use variant::problem;

use crate::cuda::{Kernel, Specialisation, StreamRef};
use crate::{Device, Dtype, Error, Layout, Place, Result, Shape, View, ViewMut};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// One direction or verb of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Pass {
    /// Inputs to outputs, saved tensors and the final state.
    Forward,
    /// Gradients of outputs to gradients of inputs.
    Backward,
    /// One time step, or one step of an optimizer, with its state in place.
    Step,
}

impl Pass {
    /// Every pass.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Step];
    /// The name in records: `forward`, `backward`, `step`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Step => "step",
        }
    }
}

/// What a tensor of a signature is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Data.
    Input,
    /// A trainable parameter.
    Parameter,
    /// The result of an explicit `prepare(...)`: derived from weights or masks, owned and remade by the caller.
    Prepared,
    /// A result.
    Output,
    /// State: as an input it is where a recurrence starts; as an output of `forward`, where it ended; as an output of
    /// `step`, it is read and overwritten in place.
    State,
    /// Written by `forward`, read by `backward`.
    Saved,
    /// A gradient: of an output where it goes in, of an input where it comes out. Its name is `grad_` and the name of
    /// the tensor.
    Gradient,
    /// An optional result that the Problem asked for, such as the factors that KFAC or ghost norms need.
    Extra,
}

/// A tensor of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name, the same everywhere.
    pub name: Cow<'static, str>,
    /// The axes in the house's letters, as in `[B, T, H]`.
    pub axes: &'static str,
    /// The sizes.
    pub shape: Shape,
    /// The element type.
    pub dtype: Dtype,
    /// What it is for.
    pub role: Role,
    /// Whether any strides are taken; otherwise the tensor must be contiguous.
    pub strided: bool,
}

impl TensorSpec {
    /// A contiguous tensor.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        axes: &'static str,
        shape: impl Into<Shape>,
        dtype: Dtype,
        role: Role,
    ) -> Self {
        Self { name: name.into(), axes, shape: shape.into(), dtype, role, strided: false }
    }
    /// The same, taking any strides.
    #[must_use]
    pub fn any_strides(mut self) -> Self {
        self.strided = true;
        self
    }
    /// The gradient of this tensor.
    pub fn gradient(&self) -> Self {
        Self { name: format!("grad_{}", self.name).into(), role: Role::Gradient, strided: false, ..self.clone() }
    }
    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

/// What goes in and comes out of a pass, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signature {
    /// What is read.
    pub inputs: Vec<TensorSpec>,
    /// What is written.
    pub outputs: Vec<TensorSpec>,
}

impl Signature {
    /// The position of an input.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|t| t.name == name)
    }
    /// The position of an output.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|t| t.name == name)
    }
    /// Whether `args` are what this signature says, on `place`; otherwise a sentence that names the tensor.
    pub fn check(&self, entry: &str, place: Place, args: &Args<'_, '_>) -> Result<()> {
        let count = |what: &str, got: usize, want: usize| {
            if got == want {
                Ok(())
            } else {
                Err(Error::shape(format!("{entry}: {got} {what} were given, {want} are needed")))
            }
        };
        count("inputs", args.inputs.len(), self.inputs.len())?;
        count("outputs", args.outputs.len(), self.outputs.len())?;
        for (v, t) in args.inputs.iter().zip(&self.inputs) {
            t.check(entry, place, v)?;
        }
        for (v, t) in args.outputs.iter().zip(&self.outputs) {
            t.check(entry, place, &v.as_view())?;
        }
        Ok(())
    }
}

impl TensorSpec {
    fn check(&self, entry: &str, place: Place, view: &View<'_>) -> Result<()> {
        let name = &self.name;
        if view.shape() != &self.shape {
            return Err(Error::shape(format!(
                "{entry}: {name}.shape = {} does not match {} = {}",
                view.shape(),
                self.axes,
                self.shape
            )));
        }
        if view.dtype() != self.dtype {
            return Err(Error::dtype(format!("{entry}: {name} holds {}, {} is needed", view.dtype(), self.dtype)));
        }
        if self.shape.elements() == 0 {
            return Ok(());
        }
        if view.place() != place {
            return Err(Error::device(format!("{entry}: {name} lies on {}, the plan runs on {place}", view.place())));
        }
        if !self.strided && !view.is_contiguous() {
            return Err(Error::shape(format!(
                "{entry}: {name} of shape {} has strides {:?}, but must be contiguous",
                view.shape(),
                view.strides()
            )));
        }
        if !view.address().is_multiple_of(self.dtype.size() as u64) {
            return Err(Error::shape(format!(
                "{entry}: {name} starts at {:#x}, which is not aligned for {}",
                view.address(),
                self.dtype
            )));
        }
        Ok(())
    }
}

/// Accuracy that a user asks of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Within a few roundings of f32.
    #[default]
    Exact,
    /// The hardware's approximations where they are faster; the tolerances are declared in the operation's spec.
    Fast,
}

impl Precision {
    /// `exact` or `fast`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "exact" => Ok(Self::Exact),
            "fast" => Ok(Self::Fast),
            _ => Err(Error::config(format!("precision `{s}` is not one of exact, fast"))),
        }
    }
}

/// How a result is compared with the law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Metric {
    /// `||x - law|| / ||law||` (the absolute norm where the law is zero).
    Relative,
    /// `max |x - law|`.
    MaxAbsolute,
}

impl Metric {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relative => "relative_frobenius",
            Self::MaxAbsolute => "max_absolute",
        }
    }
}

/// A bound on the error of one output, declared once, in the operation's spec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// How the error is measured.
    pub metric: Metric,
    /// The bound.
    pub value: f64,
    /// Why it is not smaller.
    pub reason: &'static str,
}

/// What a probe found of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The output.
    pub output: &'static str,
    /// What was measured, for records.
    pub metric: &'static str,
    /// What it came to.
    pub error: f64,
    /// The most that it may be.
    pub tolerance: f64,
    /// Why.
    pub reason: &'static str,
    /// Where it was the largest.
    pub worst: String,
}

/// What a pass must do at the least: the numerators of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes of device memory: each input read once, each output written once.
    pub bytes: u64,
    /// Multiplications and additions.
    pub flops: u64,
    /// Evaluations of a special function (exp, tanh, reciprocal).
    pub special: u64,
    /// Steps that must follow each other.
    pub serial_steps: u64,
}

/// Options of a plan that change no result.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PlanOptions {
    /// Bytes left free behind each scratch region, for canaries.
    pub scratch_gap: usize,
    /// A variant by name, instead of the one the configuration chooses.
    pub variant: Option<String>,
}

impl PlanOptions {
    /// Refuses any variant but the one that `entry` has `on` a kind of device.
    #[cfg(any(feature = "layers", feature = "optim"))]
    pub(crate) fn only(&self, variant: &str, entry: &str, on: &str) -> Result<()> {
        match self.variant.as_deref().filter(|&v| v != variant) {
            Some(v) => Err(Error::config(format!("{entry}: variant `{v}` is not one of {variant} on {on}"))),
            None => Ok(()),
        }
    }
    /// The same for an entry with one way on each kind of device.
    #[cfg(feature = "optim")]
    pub(crate) fn one_way(&self, entry: &str, device: &Device) -> Result<()> {
        match device {
            Device::Cpu => self.only("simd", entry, "the CPU"),
            Device::Cuda(_) => self.only("simt", entry, "a CUDA device"),
        }
    }
}

/// An operation of given sizes and options.
pub trait Problem: fmt::Debug + Send + Sync {
    /// The entry's name, for messages and records.
    fn entry(&self) -> &'static str;
    /// What goes in and comes out of `pass`.
    ///
    /// The backward pass takes, in this order: the inputs of the forward pass, those outputs of it that the gradient
    /// needs (saved tensors among them), and the gradients of its outputs and final states; it writes the gradients
    /// that the problem wants. An error if the problem has no such pass.
    fn signature(&self, pass: Pass) -> Result<Signature>;
    /// Chooses a configuration for `device`, compiles and loads what it needs.
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>>;
    /// Random values at unit scale, by name, for everything that `pass` reads, but for what an earlier pass wrote.
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors>;
    /// The law: the outputs of `pass`, by name, from inputs in f64.
    ///
    /// For the backward pass `inputs` are those of the forward pass and the gradients of outputs; what the forward pass
    /// saved is recomputed. With `f32_arithmetic` the same loops run in f32: their distance from f64 is the noise floor
    /// from which tolerances are derived. Saved tensors need not be among the outputs.
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors>;
    /// Whether the law would take too long at these sizes, and [`probe`](Self::probe) looks at the results instead.
    fn probes(&self, pass: Pass) -> bool {
        let _ = pass;
        false
    }
    /// What the results of `pass` say of themselves, in f64: its own equation on vectors that are drawn, say. `values` gives inputs
    /// and outputs by name.
    fn probe(&self, pass: Pass, values: &dyn Fn(&str) -> Result<Values>) -> Result<Vec<Probe>> {
        let (_, entry) = (values, self.entry());
        Err(Error::config(format!("{entry}: there is no probe of the {} pass", pass.name())))
    }
    /// What outputs that are anybody's by the law (a basis of a space, say) say of themselves, beside those that are compared with
    /// it. `before` gives inputs, and state as the pass found it; `after` what it wrote.
    fn beside(
        &self,
        pass: Pass,
        before: &dyn Fn(&str) -> Result<Values>,
        after: &dyn Fn(&str) -> Result<Values>,
    ) -> Result<Vec<Probe>> {
        let _ = (pass, before, after);
        Ok(Vec::new())
    }
    /// The bound on an output's error, or none where it is not compared (saved tensors).
    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance>;
    /// Whether a part of what was drawn has no result, which the law then says by NaN.
    fn has_no_result(&self) -> bool {
        false
    }
    /// What `pass` must do at the least.
    fn cost(&self, pass: Pass) -> Cost;
    /// Values for everything that `pass` reads, by name, where there is too much of it to be drawn: what repeats, and where. None:
    /// [`sample`](Self::sample) is what there is, of this problem or of a smaller one.
    fn repeated(&self, pass: Pass, seed: u64) -> Result<Option<Repeats>> {
        let _ = (pass, seed);
        Ok(None)
    }
    /// The linear map that the problem is, where it is one.
    fn linear_map(&self) -> Option<LinearMap> {
        None
    }
}

/// Elements of a tensor that are some values again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// The first of them.
    pub first: usize,
    /// How many they are.
    pub count: usize,
    /// The values.
    pub values: Values,
}

/// What repeats in tensors, by their names.
pub type Repeats = Vec<(String, Vec<Repeat>)>;

/// The views of one call, in the order of the signature, and the stream that runs it.
pub struct Args<'a, 'v> {
    /// What is read.
    pub inputs: &'a [View<'v>],
    /// What is written.
    pub outputs: &'a mut [ViewMut<'v>],
    /// At least the bytes of the plan's layout for this pass, aligned to 256.
    pub scratch: ViewMut<'v>,
    /// The stream; ignored on the CPU.
    pub stream: StreamRef,
}

/// One kernel that a pass launches, as `profile` prints it.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchReport {
    /// Source and entry.
    pub kernel: String,
    /// How often a pass launches it.
    pub launches: u64,
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads a block.
    pub block: (u32, u32, u32),
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of spills and stack a thread.
    pub local_bytes: u32,
    /// Shared memory a block, static and dynamic.
    pub shared_bytes: u32,
    /// Blocks that fit a multiprocessor.
    pub blocks_per_sm: u32,
}

impl LaunchReport {
    /// What `profile` prints of a kernel that a pass launches `launches` times.
    pub fn new(
        kernel: &Kernel,
        launches: usize,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        dynamic_shared: u32,
    ) -> Result<Self> {
        Ok(Self {
            kernel: kernel.name().to_owned(),
            launches: launches as u64,
            grid,
            block,
            registers: kernel.registers(),
            local_bytes: kernel.local_bytes(),
            shared_bytes: kernel.shared_bytes() + dynamic_shared,
            blocks_per_sm: kernel.max_active_blocks(block.0 * block.1 * block.2, dynamic_shared)?,
        })
    }
}

/// An operation ready to run on one device.
pub trait Plan: Send + Sync {
    /// The problem's entry.
    fn entry(&self) -> &'static str;
    /// Where it runs.
    fn place(&self) -> Place;
    /// What goes in and comes out, or none for a pass that was not planned.
    fn signature(&self, pass: Pass) -> Option<&Signature>;
    /// The chosen configuration, printable.
    fn config(&self) -> String;
    /// A short name of the variant for records: `simd`, `simt`, `bulk`, ...
    fn variant(&self) -> &'static str;
    /// Whether tensor cores do its products, so that a roofline is theirs.
    fn tensor_cores(&self) -> bool {
        false
    }
    /// What a pass must do at the least by the way that the plan takes, from the problem's own least: where a product is made of
    /// several, the operations of all of them.
    fn cost(&self, pass: Pass, least: Cost) -> Cost {
        let _ = pass;
        least
    }
    /// The scratch of a pass.
    fn scratch(&self, pass: Pass) -> &Layout;
    /// Runs a pass on arguments that [`Plan::run`](trait@Plan#method.run) has checked.
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()>;
    /// The kernels of a pass, in order; empty on the CPU.
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>>;
}

impl dyn Plan + '_ {
    /// Checks the arguments against the signature and runs the pass.
    ///
    /// On a GPU the call returns when the work is queued on `args.stream`.
    pub fn run(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let entry = self.entry();
        let signature = self.signature(pass).ok_or_else(|| {
            Error::config(format!("{entry}: the plan has no {} pass; ask for it in the problem", pass.name()))
        })?;
        signature.check(entry, self.place(), args)?;
        let need = self.scratch(pass).bytes();
        let have = args.scratch.shape().elements() * args.scratch.dtype().size();
        if have < need {
            return Err(Error::shape(format!("{entry}: {need} bytes of scratch are needed, {have} were given")));
        }
        if need > 0 && (args.scratch.place() != self.place() || !args.scratch.address().is_multiple_of(256)) {
            return Err(Error::device(format!(
                "{entry}: scratch must lie on {} at a multiple of 256 bytes; it lies on {} at {:#x}",
                self.place(),
                args.scratch.place(),
                args.scratch.address()
            )));
        }
        self.execute(pass, args)
    }
}

/// Which list of cases is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaseSet {
    /// The cases that are compared with peers on a GPU.
    Compared,
    /// Smaller ones, named the same way, for `bench` on the CPU.
    Cpu,
    /// The conformance cases of `check`: small and hostile.
    Check,
}

/// An entry of the registry: an operation for any sizes.
pub trait Op: Send + Sync {
    /// The name users type.
    fn name(&self) -> &'static str;
    /// One line.
    fn summary(&self) -> &'static str;
    /// Its passes. `Backward` implies that it belongs to a `Forward`.
    fn passes(&self) -> &'static [Pass];
    /// Its cases.
    fn cases(&self, set: CaseSet) -> Vec<Case>;
    /// A smaller case of the same kind, where there is no T or B that could be halved.
    fn smaller(&self, case: &Case) -> Option<Case> {
        let _ = case;
        None
    }
    /// The problem that a case spells; an unknown letter or option is refused.
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>>;
    /// The problem that a case spells over what the caller prepared (the index lists of the caller's own synapses).
    ///
    /// # Errors
    /// As [`problem`](Self::problem), and where the entry takes nothing prepared, or something else.
    fn problem_over(&self, case: &Case, prepared: Arc<dyn Any + Send + Sync>) -> Result<Arc<dyn Problem>> {
        let _ = prepared;
        Err(Error::config(format!("{} {case}: the entry takes nothing that is prepared", self.name())))
    }
    /// Every kernel it can launch: the compared cases and each axis's corners.
    fn specialisations(&self) -> Vec<Specialisation>;
}
