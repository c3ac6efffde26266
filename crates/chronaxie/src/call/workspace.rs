//! The memory of a plan's passes, and calls on it.

use super::memory::Memory;
use super::tensor::{Arrangement, Tensor};
use crate::cuda::StreamRef;
use crate::op::{Args, Pass, Plan, Role, TensorSpec, Values};
use crate::{Device, Error, Result, View, ViewMut};

/// Every tensor that some passes of a plan read and write, by name, and scratch for the largest of them.
///
/// A tensor that one pass writes and another reads (a saved tensor) is one tensor.
#[derive(Debug)]
pub struct Workspace {
    entry: &'static str,
    specs: Vec<TensorSpec>,
    tensors: Vec<Tensor>,
    written: Vec<bool>,
    scratch: Memory,
    device: Device,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Its memory goes back in the order of the default stream, and any stream may have been given it. An error of
        // that work has reached those who waited for it.
        let _ = self.device.synchronize();
    }
}

impl Workspace {
    /// Memory on `device` for `passes` of `plan`.
    ///
    /// # Errors
    /// A pass that the plan does not have, or memory that the device does not have.
    pub fn new(plan: &dyn Plan, passes: &[Pass], device: &Device) -> Result<Self> {
        Self::arranged(plan, passes, device, |_| Arrangement::Contiguous, 0)
    }
    /// As [`new`](Self::new); `arrange` says how an input that takes any strides lies in memory, and `guard` bytes stay
    /// free around each tensor.
    pub(crate) fn arranged(
        plan: &dyn Plan,
        passes: &[Pass],
        device: &Device,
        arrange: impl Fn(&TensorSpec) -> Arrangement,
        guard: usize,
    ) -> Result<Self> {
        let entry = plan.entry();
        let mut specs: Vec<TensorSpec> = Vec::new();
        let mut outputs = Vec::new();
        let mut scratch_bytes = 0;
        for &pass in passes {
            let signature = plan.signature(pass).ok_or_else(|| no_pass(entry, pass))?;
            for t in signature.inputs.iter().chain(&signature.outputs) {
                match specs.iter_mut().find(|s| s.name == t.name) {
                    None => specs.push(t.clone()),
                    Some(s) if (s.shape, s.dtype) != (t.shape, t.dtype) => {
                        return Err(Error::shape(format!(
                            "{entry}: {} is {} {} in one pass and {} {} in another",
                            t.name, s.dtype, s.shape, t.dtype, t.shape
                        )));
                    }
                    Some(s) => s.strided &= t.strided,
                }
            }
            outputs.extend(signature.outputs.iter().map(|t| t.name.clone()));
            scratch_bytes = scratch_bytes.max(plan.scratch(pass).bytes());
        }
        let tensors = specs
            .iter()
            .map(|s| {
                let free = s.strided && !outputs.contains(&s.name);
                let how = if free { arrange(s) } else { Arrangement::Contiguous };
                Tensor::arranged(s.dtype, s.shape, device, how, guard)
            })
            .collect::<Result<Vec<_>>>()?;
        let written = vec![false; specs.len()];
        Ok(Self {
            entry,
            specs,
            tensors,
            written,
            scratch: Memory::new(device, scratch_bytes)?,
            device: device.clone(),
        })
    }
    /// What it holds.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }
    /// Bytes of all tensors and of the scratch.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(Tensor::bytes).sum::<usize>() + self.scratch.bytes()
    }
    /// Bytes of the scratch.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.bytes()
    }
    pub(crate) fn scratch(&self) -> &Memory {
        &self.scratch
    }
    pub(crate) fn scratch_mut(&mut self) -> &mut Memory {
        &mut self.scratch
    }
    /// Whether it holds a tensor of that name.
    pub fn holds(&self, name: &str) -> bool {
        self.specs.iter().any(|s| s.name == name)
    }
    fn position(&self, name: &str) -> Result<usize> {
        self.specs.iter().position(|s| s.name == name).ok_or_else(|| {
            let names: Vec<_> = self.specs.iter().map(|s| s.name.as_ref()).collect();
            Error::shape(format!("{}: no tensor `{name}` among {}", self.entry, names.join(", ")))
        })
    }
    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        Ok(&self.tensors[self.position(name)?])
    }
    /// A tensor by name, to write; it counts as filled.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut Tensor> {
        let i = self.position(name)?;
        self.written[i] = true;
        Ok(&mut self.tensors[i])
    }
    /// Fills a tensor with values, rounded to its element type.
    ///
    /// # Errors
    /// An unknown name or another shape.
    pub fn set(&mut self, name: &str, values: &Values) -> Result<()> {
        let entry = self.entry;
        self.tensor_mut(name)?.set_values(values).map_err(|e| e.context(format!("{entry}: {name}")))
    }
    /// The values of a tensor. On a GPU the work that writes it must have ended.
    pub fn get(&self, name: &str) -> Result<Values> {
        self.tensor(name)?.to_values()
    }
    /// The arguments of one pass, ready to run any number of times.
    ///
    /// # Errors
    /// A tensor that the pass reads and that nobody has filled yet.
    pub fn bind<'a>(&'a mut self, plan: &'a dyn Plan, pass: Pass, stream: StreamRef) -> Result<Bound<'a>> {
        let entry = self.entry;
        let signature = plan.signature(pass).ok_or_else(|| no_pass(entry, pass))?;
        let mut slots: Vec<Option<&'a mut Tensor>> = self.tensors.iter_mut().map(Some).collect();
        let mut outputs = Vec::with_capacity(signature.outputs.len());
        let mut inputs = Vec::with_capacity(signature.inputs.len());
        let specs = &self.specs;
        let mut take = |name: &str| {
            let i = specs.iter().position(|s| s.name == name);
            let tensor = i.and_then(|i| Some((i, slots[i].take()?)));
            tensor.ok_or_else(|| {
                Error::config(format!("{entry}: the {} pass names {name} twice, or it was not planned", pass.name()))
            })
        };
        let empty = |i: usize| {
            Error::config(format!("{entry}: {} must be filled before the {} pass", specs[i].name, pass.name()))
        };
        for t in &signature.outputs {
            let (i, tensor) = take(&t.name)?;
            if pass == Pass::Step && t.role == Role::State && !self.written[i] {
                return Err(empty(i));
            }
            self.written[i] = true;
            outputs.push(tensor.view_mut()?);
        }
        for t in &signature.inputs {
            let (i, tensor) = take(&t.name)?;
            if !self.written[i] {
                return Err(empty(i));
            }
            let tensor: &'a Tensor = tensor;
            inputs.push(tensor.view());
        }
        Ok(Bound { plan, pass, inputs, outputs, scratch: Some(self.scratch.view_mut()), stream })
    }
}

fn no_pass(entry: &str, pass: Pass) -> Error {
    Error::config(format!("{entry}: the plan has no {} pass; ask for it in the problem", pass.name()))
}

/// One pass of a plan with its views made: running it allocates nothing.
pub struct Bound<'a> {
    plan: &'a dyn Plan,
    pass: Pass,
    inputs: Vec<View<'a>>,
    outputs: Vec<ViewMut<'a>>,
    // Empty only while `run` has lent it to the arguments.
    scratch: Option<ViewMut<'a>>,
    stream: StreamRef,
}

impl Bound<'_> {
    /// Runs the pass; on a GPU it is queued on the stream when this returns.
    pub fn run(&mut self) -> Result<()> {
        let Some(scratch) = self.scratch.take() else {
            return Err(Error::config(format!("{}: a call that panicked cannot be run again", self.plan.entry())));
        };
        let mut args = Args { inputs: &self.inputs, outputs: &mut self.outputs, scratch, stream: self.stream };
        let result = self.plan.run(self.pass, &mut args);
        self.scratch = Some(args.scratch);
        result
    }
}
