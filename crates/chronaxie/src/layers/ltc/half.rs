//! x and out in 16 bits, around a plan of f32: x and the gradient of out are widened ahead of a pass, exactly, and out and
//! the gradient of x are rounded behind it, once. What lies between is f32, states and all other gradients too.
//!
//! The states are saved in f32 beside the rounded outputs; where the plan of f32 gives them as its outputs, it writes them
//! there, and no copy of the outputs is made. Scratch is that of the plan of f32, and behind it x `[B, T, D]` and, backward,
//! its gradient and that of out `[B, T, M]`; forward out `[B, T, M]`, where it is not the states.
#![allow(unsafe_code)]

use super::spec::Ltc;
use super::{cpu, cuda};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature, TensorSpec};
use crate::{Device, Dtype, Error, Layout, Place, RegionId, Result, Shape, View, ViewMut};

/// Where a tensor of the plan of f32 lies.
#[derive(Debug, Clone, Copy)]
enum At {
    /// At this place among what the caller gives.
    Given(usize),
    /// In scratch.
    Scratch(RegionId),
}

/// A pass, with the places of all tensors found when the plan is made.
#[derive(Debug)]
struct Halved {
    signature: Signature,
    layout: Layout,
    inputs: Vec<At>,
    outputs: Vec<At>,
    /// Inputs, and where they are widened to.
    widened: Vec<(usize, RegionId)>,
    /// Outputs of f32, and the outputs that they are rounded to.
    rounded: Vec<(At, usize)>,
}

impl Halved {
    fn new(p: &Ltc, pass: Pass, inner: &dyn Plan) -> Result<Self> {
        let signature = p.signature_of(pass)?;
        let single = inner.signature(pass).ok_or_else(|| lacks(pass))?;
        let mut layout = inner.scratch(pass).clone();
        let mut scratch = |name, spec: &TensorSpec| layout.push(name, Dtype::F32, spec.shape.elements());
        let missing = |name: &str| Error::config(format!("ltc: the signature has no tensor {name}"));
        let (mut inputs, mut widened) = (Vec::new(), Vec::new());
        for spec in &single.inputs {
            // The outputs that are states in f32 were saved as such.
            let saved = pass == Pass::Backward && spec.name == "out";
            let name = if saved { "states" } else { &*spec.name };
            let at = signature.input(name).ok_or_else(|| missing(name))?;
            inputs.push(if signature.inputs[at].dtype == spec.dtype {
                At::Given(at)
            } else {
                let region = scratch(if name == "x" { "x" } else { "grad_out" }, spec)?;
                widened.push((at, region));
                At::Scratch(region)
            });
        }
        let (mut outputs, mut rounded) = (Vec::new(), Vec::new());
        for spec in &single.outputs {
            let at = signature.output(&spec.name).ok_or_else(|| missing(&spec.name))?;
            if signature.outputs[at].dtype == spec.dtype {
                outputs.push(At::Given(at));
                continue;
            }
            // Only outputs that are states in f32 leave no tensor of that name to the plan of f32.
            let states = signature.output("states").filter(|_| single.output("states").is_none());
            let to = match states {
                Some(states) => At::Given(states),
                None => At::Scratch(scratch(if spec.name == "out" { "out" } else { "grad_x" }, spec)?),
            };
            rounded.push((to, at));
            outputs.push(to);
        }
        Ok(Self { signature, layout, inputs, outputs, widened, rounded })
    }

    fn address(&self, at: At, args: &Args<'_, '_>) -> u64 {
        match at {
            At::Given(at) => args.outputs[at].address(),
            At::Scratch(region) => self.layout.address(args.scratch.address(), region),
        }
    }
}

/// What widens and rounds.
enum Conversions {
    Cpu(Dtype),
    Cuda(cuda::Conversions),
}

/// A plan of x and out in 16 bits.
pub(super) struct HalfPlan {
    inner: Box<dyn Plan>,
    conversions: Conversions,
    forward: Halved,
    backward: Option<Halved>,
}

fn lacks(pass: Pass) -> Error {
    Error::config(format!("ltc: the plan has no {} pass", pass.name()))
}

impl HalfPlan {
    /// The plan of f32, and what it takes to convert.
    ///
    /// # Errors
    /// As for the plan of f32, and if scratch exceeds 64-bit sizes.
    pub(super) fn new(p: &Ltc, device: &Device, options: &PlanOptions) -> Result<Self> {
        let inner = p.widened().plan(device, options)?;
        let conversions = match device {
            Device::Cpu => Conversions::Cpu(p.dtype),
            Device::Cuda(d) => Conversions::Cuda(cuda::Conversions::new(d, p.dtype)?),
        };
        let forward = Halved::new(p, Pass::Forward, &*inner)?;
        let backward = if p.backward { Some(Halved::new(p, Pass::Backward, &*inner)?) } else { None };
        Ok(Self { inner, conversions, forward, backward })
    }

    fn halved(&self, pass: Pass) -> Option<&Halved> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
}

impl Plan for HalfPlan {
    fn entry(&self) -> &'static str {
        self.inner.entry()
    }
    fn place(&self) -> Place {
        self.inner.place()
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.halved(pass).map(|h| &h.signature)
    }
    fn config(&self) -> String {
        let dtype = match &self.conversions {
            Conversions::Cpu(dtype) => *dtype,
            Conversions::Cuda(c) => c.dtype,
        };
        format!("{}, x and out = {dtype}", self.inner.config())
    }
    fn variant(&self) -> &'static str {
        self.inner.variant()
    }
    fn tensor_cores(&self) -> bool {
        self.inner.tensor_cores()
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        self.halved(pass).map_or_else(|| self.inner.scratch(pass), |h| &h.layout)
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (Some(h), Some(single)) = (self.halved(pass), self.inner.signature(pass)) else { return Err(lacks(pass)) };
        let (place, base) = (self.inner.place(), args.scratch.address());
        // Where no gradient is asked for, nothing is read.
        if h.outputs.is_empty() {
            return Ok(());
        }
        for &(from, to) in &h.widened {
            let (from, to) = (&args.inputs[from], h.layout.address(base, to));
            match &self.conversions {
                // SAFETY: the region has an f32 for each element of the input, and nobody else uses it.
                Conversions::Cpu(_) => unsafe { cpu::widen(from, to)? },
                Conversions::Cuda(c) => c.widen(from, to, args.stream)?,
            }
        }
        let inputs = h.inputs.iter().zip(&single.inputs).map(|(&at, spec)| match at {
            At::Given(at) => args.inputs[at],
            At::Scratch(region) => {
                let (ptr, strides) = (h.layout.address(base, region) as *const u8, spec.shape.contiguous_strides());
                // SAFETY: the region has the tensor's size and was written above, in the order of the stream.
                unsafe { View::from_raw(ptr, spec.dtype, spec.shape, &strides, place) }
            }
        });
        let inputs: Vec<_> = inputs.collect();
        let outputs = h.outputs.iter().zip(&single.outputs).map(|(&at, spec)| {
            let (ptr, strides) = (h.address(at, args) as *mut u8, spec.shape.contiguous_strides());
            // SAFETY: the caller's tensor of that shape and type, or a region of its size; each is named once.
            unsafe { ViewMut::from_raw(ptr, spec.dtype, spec.shape, &strides, place) }
        });
        let mut outputs: Vec<_> = outputs.collect();
        let bytes = Shape::from([self.inner.scratch(pass).bytes()]);
        // SAFETY: the part of the block that the layout of f32 describes; the regions above lie behind it.
        let scratch = unsafe { ViewMut::from_raw(base as *mut u8, Dtype::U8, bytes, &[1], place) };
        let mut single = Args { inputs: &inputs, outputs: &mut outputs, scratch, stream: args.stream };
        self.inner.execute(pass, &mut single)?;
        for &(from, to) in &h.rounded {
            let from = h.address(from, args);
            match &self.conversions {
                // SAFETY: as many f32 as the output has elements were written there by this pass.
                Conversions::Cpu(_) => unsafe { cpu::round(from, &mut args.outputs[to])? },
                Conversions::Cuda(c) => c.round(from, &args.outputs[to], args.stream)?,
            }
        }
        Ok(())
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let mut list = self.inner.launches(pass)?;
        if let (Conversions::Cuda(c), Some(h)) = (&self.conversions, self.halved(pass)) {
            let inputs = h.widened.iter().map(|&(at, _)| h.signature.inputs[at].shape.elements());
            let outputs = h.rounded.iter().map(|&(_, at)| h.signature.outputs[at].shape.elements());
            list.splice(0..0, c.report(true, &inputs.collect::<Vec<_>>())?);
            list.extend(c.report(false, &outputs.collect::<Vec<_>>())?);
        }
        Ok(list)
    }
}
