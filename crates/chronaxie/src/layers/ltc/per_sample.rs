//! What is known of single samples' gradients, on any device: the backward pass over some rows at a time.
//!
//! On a GPU whose kernels leave the sums of each row (`cuda/per_sample.cu`) as many rows as a budget holds; otherwise one row, by the plan of
//! a batch of one, whose gradients are squared where they lie. Scratch is that of a part, and behind it what it leaves: the gradients of
//! the parameters and, of several rows, the sums of squares of their elements.
#![allow(unsafe_code)]

use super::cuda::{self, Added, Adding};
use super::spec::{EACH, Kept, Ltc, PerSample, Save, extras};
use crate::cuda::fill_bytes;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature, TensorSpec};
use crate::{Device, Dtype, Error, Layout, Place, RegionId, Result, Shape, View, ViewMut};

/// A plan whose backward pass goes through parts of the batch.
struct SamplePlan {
    /// The plan of the whole batch, for the forward pass.
    whole: Box<dyn Plan>,
    signature: Signature,
    layout: Layout,
    /// Scratch of a part.
    own: RegionId,
    /// Plans of so many rows each, which are done one after the other; the second of what is left.
    parts: Vec<Part>,
    /// None on the CPU.
    adding: Option<Adding>,
}

struct Part {
    plan: Box<dyn Plan>,
    rows: usize,
    /// How often it runs.
    times: usize,
    /// Whether it squares gradients of single rows itself.
    squares: bool,
    outputs: Vec<To>,
    /// What it adds to the parameters' outputs.
    sums: Vec<Sum>,
}

/// A gradient that is added to an output.
#[derive(Debug, Clone, Copy)]
struct Sum {
    from: RegionId,
    /// Of several rows.
    from_moments: Option<RegionId>,
    /// Outputs.
    grad: usize,
    squares: usize,
    moments: usize,
    elements: usize,
}

/// Where an output of a part goes.
#[derive(Debug, Clone, Copy)]
enum To {
    /// The rows of this output.
    Rows(usize),
    /// Scratch.
    Scratch(RegionId),
}

/// The plan of a problem that asks for what is known of single samples.
///
/// # Errors
/// As for the plan without it.
pub(super) fn plan(p: &Ltc, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
    let at_once = cuda::rows_at_once(p).min(p.batch);
    let part_of = |rows: usize, several: bool| Ltc {
        batch: rows,
        per_sample: if several { p.per_sample } else { PerSample::No },
        // As the forward pass of all rows keeps.
        save: match p.kept() {
            Kept::States => Save::Recompute,
            Kept::Words => Save::Words,
            Kept::Unfolds => Save::Store,
        },
        ..p.clone()
    };
    let leaves_rows = |rows: usize| match device {
        Device::Cuda(d) if rows > 0 => cuda::leaves_rows(&part_of(rows, true), d, options),
        _ => Ok(false),
    };
    let made = |rows: usize, several: bool| -> Result<Box<dyn Plan>> {
        match device {
            Device::Cuda(d) if several => Ok(Box::new(cuda::CudaPlan::new(&part_of(rows, true), d, options)?)),
            _ => part_of(rows, false).plan(device, options),
        }
    };
    let several = leaves_rows(at_once)?;
    if several && at_once == p.batch {
        return made(p.batch, true);
    }
    // Rows of a part, how often, and whether its kernels leave the sums of each; others have one row.
    let each = if several { at_once } else { 1 };
    let (times, rest) = (p.batch / each, p.batch % each);
    let alone = !leaves_rows(rest)?;
    let sizes = [(each, times, several), if alone { (1, rest, false) } else { (rest, 1, true) }];
    let sizes = sizes.into_iter().filter(|&(rows, times, _)| rows > 0 && times > 0);
    let plans = sizes.map(|(rows, times, several)| Ok((made(rows, several)?, rows, times, several)));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    let whole = part_of(p.batch, false).plan(device, options)?;
    let adding = match device {
        Device::Cpu => None,
        Device::Cuda(d) => Some(Adding::new(d)?),
    };
    Ok(Box::new(SamplePlan::new(p, whole, plans, adding, options.scratch_gap)?))
}

fn lacks(pass: Pass) -> Error {
    Error::config(format!("ltc: the plan has no {} pass", pass.name()))
}

impl SamplePlan {
    fn new(
        p: &Ltc,
        whole: Box<dyn Plan>,
        plans: Vec<(Box<dyn Plan>, usize, usize, bool)>,
        adding: Option<Adding>,
        gap: usize,
    ) -> Result<Self> {
        let signature = p.signature_of(Pass::Backward)?;
        let mut layout = Layout::new(gap);
        let bytes = plans.iter().map(|(plan, ..)| plan.scratch(Pass::Backward).bytes()).max().unwrap_or(0);
        let own = layout.push("part", Dtype::U8, bytes)?;
        let several = plans.iter().any(|plan| plan.3);
        let mut scratch = vec![None; signature.outputs.len()];
        let extras = extras(&signature);
        for (grad, [_, moments]) in extras.iter().enumerate().filter_map(|(at, e)| Some((at, (*e)?))) {
            let mut region = |name| layout.push(name, Dtype::F32, signature.outputs[grad].shape.elements());
            scratch[grad] = Some(region("gradient")?);
            scratch[moments] = if several { Some(region("moments")?) } else { None };
        }
        let mut parts = Vec::new();
        for (plan, rows, times, squares) in plans {
            let found = plan.signature(Pass::Backward).ok_or_else(|| lacks(Pass::Backward))?;
            let place = |spec: &TensorSpec| {
                // Where each gradient is asked for, one row's are they.
                let each =
                    || spec.name.strip_prefix("grad_").and_then(|name| signature.output(&format!("{EACH}{name}")));
                let at = signature.output(&spec.name).or_else(each).ok_or_else(|| lacks(Pass::Backward))?;
                Ok(scratch[at].map_or(To::Rows(at), To::Scratch))
            };
            let outputs = found.outputs.iter().map(place).collect::<Result<Vec<_>>>()?;
            let sum = |(grad, extra): (usize, &Option<[usize; 2]>)| {
                let ([at_squares, moments], from) = ((*extra)?, scratch[grad]?);
                let elements = signature.outputs[grad].shape.elements();
                let from_moments = scratch[moments].filter(|_| squares);
                Some(Sum { from, from_moments, grad, squares: at_squares, moments, elements })
            };
            let sums = extras.iter().enumerate().filter_map(sum).collect();
            parts.push(Part { plan, rows, times, squares, outputs, sums });
        }
        Ok(Self { whole, signature, layout, own, parts, adding })
    }

    /// What a part that begins at `row` adds to the outputs at these addresses.
    fn added(&self, part: &Part, row: usize, base: u64, outputs: &[u64]) -> Vec<Added> {
        let region = |id| self.layout.address(base, id);
        let of = |s: &Sum| Added {
            from: region(s.from),
            from_moments: s.from_moments.map_or(0, region),
            grad: outputs[s.grad],
            moments: outputs[s.moments],
            squares: if part.squares { 0 } else { outputs[s.squares] + 4 * row as u64 },
            elements: s.elements,
        };
        part.sums.iter().map(of).collect()
    }

    fn backward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (place, base) = (self.whole.place(), args.scratch.address());
        for (view, spec) in args.outputs.iter_mut().zip(&self.signature.outputs) {
            // What is added to; rows are written.
            let rows = spec.axes.starts_with("[B");
            if rows || spec.shape.elements() == 0 {
                continue;
            }
            match &self.adding {
                Some(_) => fill_bytes(view, 0, args.stream)?,
                None => view.as_mut_slice::<f32>()?.fill(0.0),
            }
        }
        let outputs: Vec<u64> = args.outputs.iter().map(ViewMut::address).collect();
        let mut row = 0;
        for part in &self.parts {
            let found = part.plan.signature(Pass::Backward).ok_or_else(|| lacks(Pass::Backward))?;
            for _ in 0..part.times {
                let inputs = args.inputs.iter().zip(&found.inputs).map(|(view, spec)| {
                    if !spec.axes.starts_with("[B") {
                        return *view;
                    }
                    let by = row as isize * view.strides()[0] * spec.dtype.size() as isize;
                    let ptr = view.address().wrapping_add_signed(by as i64) as *const u8;
                    // SAFETY: rows of the view, from `row` on, of which there are as many.
                    unsafe { View::from_raw(ptr, spec.dtype, spec.shape, view.strides(), place) }
                });
                let inputs: Vec<_> = inputs.collect();
                let written = part.outputs.iter().zip(&found.outputs).map(|(&to, spec)| {
                    let address = match to {
                        To::Rows(at) => {
                            let each = spec.bytes() / part.rows;
                            outputs[at] + (row * each) as u64
                        }
                        To::Scratch(region) => self.layout.address(base, region),
                    };
                    let strides = spec.shape.contiguous_strides();
                    // SAFETY: rows of the caller's output, or a region of the tensor's size; each is named once.
                    unsafe { ViewMut::from_raw(address as *mut u8, spec.dtype, spec.shape, &strides, place) }
                });
                let mut written: Vec<_> = written.collect();
                let bytes = Shape::from([part.plan.scratch(Pass::Backward).bytes()]);
                let at = self.layout.address(base, self.own) as *mut u8;
                // SAFETY: the region of the part's scratch, which nobody else uses meanwhile.
                let scratch = unsafe { ViewMut::from_raw(at, Dtype::U8, bytes, &[1], place) };
                let mut own = Args { inputs: &inputs, outputs: &mut written, scratch, stream: args.stream };
                part.plan.execute(Pass::Backward, &mut own)?;
                let list = self.added(part, row, base, &outputs);
                row += part.rows;
                match &self.adding {
                    Some(adding) => adding.add(&list, args.stream)?,
                    // SAFETY: addresses of the caller's outputs and of regions, of which each has that many f32 and is used here alone.
                    None => list.iter().for_each(|a| unsafe { add(a) }),
                }
            }
        }
        Ok(())
    }
}

/// Adds one row's gradient and its squares on the host.
///
/// # Safety
/// The addresses are of `elements` f32 each, but for `squares` of one, which nobody else uses.
unsafe fn add(a: &Added) {
    // SAFETY: as above.
    let (from, grad, moments) = unsafe {
        (
            std::slice::from_raw_parts(a.from as *const f32, a.elements),
            std::slice::from_raw_parts_mut(a.grad as *mut f32, a.elements),
            std::slice::from_raw_parts_mut(a.moments as *mut f32, a.elements),
        )
    };
    let mut squares = 0.0f64;
    for ((grad, moment), &g) in grad.iter_mut().zip(moments).zip(from) {
        *grad += g;
        *moment += g * g;
        squares += f64::from(g) * f64::from(g);
    }
    // SAFETY: as above.
    unsafe { *(a.squares as *mut f32) = squares as f32 };
}

impl Plan for SamplePlan {
    fn entry(&self) -> &'static str {
        self.whole.entry()
    }
    fn place(&self) -> Place {
        self.whole.place()
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        if pass == Pass::Backward { Some(&self.signature) } else { self.whole.signature(pass) }
    }
    fn config(&self) -> String {
        let of = |part: &Part| format!("{} x {} rows: {}", part.times, part.rows, part.plan.config());
        let parts: Vec<String> = self.parts.iter().map(of).collect();
        format!("{}; backward by sample, {}", self.whole.config(), parts.join("; "))
    }
    fn variant(&self) -> &'static str {
        self.whole.variant()
    }
    fn tensor_cores(&self) -> bool {
        self.whole.tensor_cores()
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        if pass == Pass::Backward { &self.layout } else { self.whole.scratch(pass) }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        if pass == Pass::Backward { self.backward(args) } else { self.whole.execute(pass, args) }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let (Pass::Backward, Some(adding)) = (pass, &self.adding) else { return self.whole.launches(pass) };
        let mut all = Vec::new();
        for part in &self.parts {
            for mut report in part.plan.launches(pass)? {
                report.launches *= part.times as u64;
                all.push(report);
            }
            let list = self.added(part, 0, 0, &vec![4; self.signature.outputs.len()]);
            if !list.is_empty() {
                all.push(adding.report(&list, part.times)?);
            }
        }
        Ok(all)
    }
}
