//! Tensors at fixed places of a few blocks of memory, and passes bound to them.
//!
//! Training keeps everything that lives across passes in blocks whose layout is decided once: a pass is then a list of
//! places, and running it makes views and nothing else.

use crate::call::memory::Memory;
use crate::cuda::StreamRef;
use crate::op::{Args, Pass, Plan, PlanOptions, Problem, TensorSpec};
use crate::scratch::ALIGNMENT;
use crate::{Device, Dtype, Error, Result, Shape, View, ViewMut};
use std::sync::Arc;

/// A tensor's place in a block.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    /// Which block.
    pub(super) bank: usize,
    /// Bytes from the start of the block.
    pub(super) offset: usize,
    /// Bytes from one step's tensor to the next one's: 0 where all steps share one.
    pub(super) stride: usize,
    /// The element type.
    pub(super) dtype: Dtype,
    /// The sizes.
    pub(super) shape: Shape,
}

impl Slot {
    pub(super) fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
    /// The tensors of the first `steps` steps as one.
    pub(super) fn all_steps(&self, steps: usize) -> Self {
        Self { stride: 0, shape: [steps * self.shape.elements()].into(), ..self.clone() }
    }
    /// The same bytes as a tensor of another type and shape.
    pub(super) fn seen_as(&self, t: &TensorSpec) -> Result<Self> {
        if self.bytes() != t.bytes() {
            return Err(Error::shape(format!(
                "training: `{}` {} of {} takes {} bytes, but what it is tied to has {}",
                t.name,
                t.shape,
                t.dtype,
                t.bytes(),
                self.bytes()
            )));
        }
        Ok(Self { dtype: t.dtype, shape: t.shape, ..self.clone() })
    }
    fn at(&self, step: usize) -> usize {
        self.offset + step * self.stride
    }
}

/// Lays tensors out in one block, each from a 256-byte boundary.
#[derive(Debug, Default)]
pub(super) struct Layout {
    bank: usize,
    bytes: usize,
    slots: Vec<(String, Slot)>,
}

impl Layout {
    pub(super) fn new(bank: usize) -> Self {
        Self { bank, ..Self::default() }
    }
    /// A place for one tensor.
    pub(super) fn push(&mut self, name: impl Into<String>, dtype: Dtype, shape: impl Into<Shape>) -> Result<()> {
        self.push_steps(name, dtype, shape, 0)
    }
    /// A place for `steps` tensors of that shape next to each other (0: one for all steps).
    pub(super) fn push_steps(
        &mut self,
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Shape>,
        steps: usize,
    ) -> Result<()> {
        let (name, shape) = (name.into(), shape.into());
        let too_large = || Error::shape(format!("`{name}` of shape {shape} for {steps} steps exceeds 64-bit sizes"));
        let one = shape.checked_elements()?.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let all = one.checked_mul(steps.max(1)).ok_or_else(too_large)?;
        let slot = Slot { bank: self.bank, offset: self.bytes, stride: if steps > 0 { one } else { 0 }, dtype, shape };
        // An empty tensor gets a place of its own too, so that no two tensors start together.
        let end = all.max(1).checked_next_multiple_of(ALIGNMENT).and_then(|a| self.bytes.checked_add(a));
        self.bytes = end.ok_or_else(too_large)?;
        self.slots.push((name, slot));
        Ok(())
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(super) fn slots(&self) -> &[(String, Slot)] {
        &self.slots
    }
    pub(super) fn find(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|(n, _)| n == name).map(|(_, s)| s)
    }
    pub(super) fn get(&self, name: &str) -> Result<&Slot> {
        self.find(name).ok_or_else(|| Error::config(format!("training: no tensor `{name}` was laid out")))
    }
}

/// The blocks, by number.
#[derive(Debug)]
pub(super) struct Banks {
    pub(super) device: Device,
    pub(super) stream: StreamRef,
    pub(super) memory: Vec<Memory>,
}

impl Banks {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), stream: crate::call::default_stream(device), memory: Vec::new() }
    }
    /// Adds a block of zeros; its number must be the next one.
    pub(super) fn add(&mut self, bank: usize, bytes: usize) -> Result<()> {
        debug_assert_eq!(bank, self.memory.len());
        let mut memory = Memory::new(&self.device, bytes)?;
        memory.fill(&[0])?;
        self.memory.push(memory);
        Ok(())
    }
    /// Overwrites a tensor with `bytes` of it, after all work on the stream.
    pub(super) fn write(&mut self, slot: &Slot, step: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() != slot.bytes() {
            return Err(Error::shape(format!(
                "{} bytes cannot fill a {} tensor of shape {}",
                bytes.len(),
                slot.dtype,
                slot.shape
            )));
        }
        let mut to = self.memory[slot.bank].view_mut().typed(slot.at(step), Dtype::U8, [bytes.len()])?;
        match &self.device {
            Device::Cpu => {
                to.as_mut_slice::<u8>()?.copy_from_slice(bytes);
                Ok(())
            }
            Device::Cuda(_) => {
                crate::cuda::copy_to_device(&mut to, &View::from_slice(bytes, [bytes.len()])?, self.stream)
            }
        }
    }
    /// Overwrites a tensor of f32.
    pub(super) fn write_f32(&mut self, slot: &Slot, values: impl IntoIterator<Item = f32>) -> Result<()> {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
        self.write(slot, 0, &bytes)
    }
    /// The first `steps` tensors of a slot as bytes, after all work on the stream.
    pub(super) fn read_steps(&self, slot: &Slot, steps: usize) -> Result<Vec<u8>> {
        let n = slot.bytes() * steps;
        let from = self.memory[slot.bank].view();
        let from = from.typed(slot.offset, Dtype::U8, [n], &[1])?;
        match &self.device {
            Device::Cpu => Ok(from.as_slice::<u8>()?.to_vec()),
            Device::Cuda(_) => {
                let mut bytes = vec![0; n];
                crate::cuda::copy_to_host(&mut ViewMut::from_slice(&mut bytes, [n])?, &from, self.stream)?;
                Ok(bytes)
            }
        }
    }
    /// A tensor of f32.
    pub(super) fn read_f32(&self, slot: &Slot) -> Result<Vec<f32>> {
        self.read_f32_steps(slot, 1)
    }
    /// The first `steps` tensors of f32 of a slot.
    pub(super) fn read_f32_steps(&self, slot: &Slot, steps: usize) -> Result<Vec<f32>> {
        Ok(floats(&self.read_steps(slot, steps)?))
    }
}

/// Bytes of f32 as numbers.
pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[derive(Debug, Clone, Copy)]
enum Use {
    Input(usize),
    Output(usize),
    Scratch,
}

/// A problem with its plan.
#[derive(Clone)]
pub(super) struct Planned {
    /// What it is called in reports: its entry, behind the stage where a layer has several.
    pub(super) label: String,
    pub(super) problem: Arc<dyn Problem>,
    pub(super) plan: Arc<dyn Plan>,
}

impl Planned {
    pub(super) fn new(problem: Arc<dyn Problem>, device: &Device) -> Result<Self> {
        let plan = Arc::from(problem.plan(device, &PlanOptions::default())?);
        Ok(Self { label: problem.entry().to_owned(), problem, plan })
    }
    pub(super) fn labelled(mut self, stage: &str) -> Self {
        if !stage.is_empty() {
            self.label = format!("{stage} {}", self.label);
        }
        self
    }
}

/// One pass of a plan with the place of everything that it reads and writes.
pub(super) struct Call {
    pub(super) planned: Planned,
    pub(super) pass: Pass,
    /// By block and offset.
    places: Vec<(Slot, Use)>,
    inputs: usize,
    outputs: usize,
}

impl Call {
    /// Binds `pass`: `place` gives each tensor of its signature a slot, `scratch` is one of at least the plan's bytes.
    pub(super) fn new(
        planned: &Planned,
        pass: Pass,
        scratch: &Slot,
        mut place: impl FnMut(&TensorSpec, bool) -> Result<Slot>,
    ) -> Result<Self> {
        let entry = planned.plan.entry();
        let signature = planned
            .plan
            .signature(pass)
            .ok_or_else(|| Error::config(format!("{entry}: the plan has no {} pass", pass.name())))?
            .clone();
        let mut places = vec![(scratch.clone(), Use::Scratch)];
        for (i, t) in signature.inputs.iter().enumerate() {
            places.push((place(t, false)?, Use::Input(i)));
        }
        for (i, t) in signature.outputs.iter().enumerate() {
            places.push((place(t, true)?, Use::Output(i)));
        }
        places.sort_by_key(|(s, _)| (s.bank, s.offset));
        if let Some(pair) = places.windows(2).find(|p| (p[0].0.bank, p[0].0.offset) == (p[1].0.bank, p[1].0.offset)) {
            return Err(Error::config(format!(
                "{entry}: two tensors of the {} pass lie at byte {} of block {}",
                pass.name(),
                pair[0].0.offset,
                pair[0].0.bank
            )));
        }
        Ok(Self {
            planned: planned.clone(),
            pass,
            places,
            inputs: signature.inputs.len(),
            outputs: signature.outputs.len(),
        })
    }
    /// Bytes of all that it reads and writes, and of its scratch.
    pub(super) fn bytes(&self) -> usize {
        self.places.iter().map(|(slot, _)| slot.bytes()).sum()
    }
    /// Runs the pass on the tensors of `step`; on a GPU it is queued on the stream when this returns.
    pub(super) fn run(&self, banks: &mut Banks, step: usize) -> Result<()> {
        let stream = banks.stream;
        let mut pieces = self.pieces(banks, step)?;
        let mut inputs: Vec<Option<View<'_>>> = (0..self.inputs).map(|_| None).collect();
        let mut outputs: Vec<Option<ViewMut<'_>>> = (0..self.outputs).map(|_| None).collect();
        let mut scratch = None;
        for (piece, (_, what)) in pieces.iter_mut().zip(&self.places) {
            match *what {
                Use::Input(i) => inputs[i] = Some(piece.as_view()),
                Use::Output(i) => outputs[i] = Some(piece.reborrow()),
                Use::Scratch => scratch = Some(piece.reborrow()),
            }
        }
        let inputs: Vec<View<'_>> = inputs.into_iter().flatten().collect();
        let mut outputs: Vec<ViewMut<'_>> = outputs.into_iter().flatten().collect();
        let scratch = scratch.ok_or_else(|| Error::config("training: a pass without scratch"))?;
        self.planned.plan.run(self.pass, &mut Args { inputs: &inputs, outputs: &mut outputs, scratch, stream })
    }
    /// A view of each place, in their order: blocks are cut from front to back.
    fn pieces<'m>(&self, banks: &'m mut Banks, step: usize) -> Result<Vec<ViewMut<'m>>> {
        let mut pieces = Vec::with_capacity(self.places.len());
        let mut next = 0;
        for (number, memory) in banks.memory.iter_mut().enumerate() {
            let (mut rest, mut start) = (memory.view_mut(), 0);
            while let Some((slot, _)) = self.places.get(next).filter(|(s, _)| s.bank == number) {
                let (at, bytes) = (slot.at(step), slot.bytes());
                let (_, from) = rest.split_bytes(at - start)?;
                let (piece, behind) = from.split_bytes(bytes)?;
                pieces.push(piece.typed(0, slot.dtype, slot.shape)?);
                (rest, start, next) = (behind, at + bytes, next + 1);
            }
        }
        Ok(pieces)
    }
}
