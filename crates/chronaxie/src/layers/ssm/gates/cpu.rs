//! The CPU: a task takes some channels, all their rows, in time order, so that the sums of a channel's gradients have one order.
//!
//! Three sorts of maps: those whose gate and factor a channel has for all times (made once in f64; what is left is a product,
//! and backward a sum of products in f64), those of every step by itself (SIMD), and the few that have no time (f64).

#![allow(unsafe_code)]

mod channel;
mod steps;

use super::kind::Kind;
use super::spec::SsmGates;
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::shared::Shared;
use crate::{Dtype, Layout, Result, View, ViewMut};
use channel::{Channel, Sums};
use chronaxie_runtime::pool;

/// Elements that a task takes at the least.
const ELEMENTS: usize = 4096;
/// Sequences, and parameters of a channel, at the most.
const MOST: usize = 3;

/// `ssm_gates` on the CPU.
pub(super) struct Cpu {
    problem: SsmGates,
}

impl Cpu {
    pub(super) fn plan(problem: SsmGates, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let passes = [Pass::Forward, Pass::Backward].map(|pass| (pass, Layout::new(options.scratch_gap)));
        CpuPlan::new(&problem, options, passes, Self { problem })
    }

    /// Calls `task` for every channel.
    fn channels(&self, task: impl Fn(usize) + Send + Sync) {
        let p = &self.problem;
        let some = (ELEMENTS / (p.batch * p.steps).max(1)).clamp(1, 256);
        pool::for_each(p.channels.div_ceil(some), |block| {
            (block * some..p.channels.min((block + 1) * some)).for_each(&task);
        });
    }

    fn run_forward(&self, inputs: &[&[f32]], outputs: &[Shared<f32>]) {
        let p = &self.problem;
        let form = p.kind.form();
        let (length, (sequences, own)) = (self.length(), inputs.split_at(form.inputs.len()));
        self.channels(|c| {
            let channel = Channel::new(p.kind, own, c);
            for b in 0..p.batch {
                let at = (b * p.channels + c) * length;
                let rows = read(sequences, at, length);
                let [a, x] = std::array::from_fn(|i| match outputs.get(i) {
                    // SAFETY: the rows of a channel belong to this task alone.
                    Some(to) => unsafe { to.part(at, length) },
                    None => Default::default(),
                });
                match p.kind {
                    Kind::MinGru => steps::mingru(rows[0], rows[1], a, x),
                    Kind::RgLru => steps::rglru(channel.rate(), rows[0], rows[1], rows[2], a, x),
                    Kind::Softplus => steps::softplus(1.0, rows[0], a),
                    Kind::Decline => steps::softplus(-1.0, rows[0], a),
                    Kind::Decay | Kind::Hold | Kind::Lru | Kind::S5 => channel.forward(rows[0], a, x),
                    Kind::Rate | Kind::ComplexRate | Kind::Polar => channel::forward(p.kind, rows[0], a),
                }
            }
        });
    }

    fn run_backward(&self, inputs: &[&[f32]], outputs: &[Shared<f32>]) {
        let p = &self.problem;
        let form = p.kind.form();
        let (length, (sequences, rest)) = (self.length(), inputs.split_at(form.inputs.len()));
        let (own, grads) = rest.split_at(form.parameters.len());
        let (to_sequences, to_own) = outputs.split_at(form.inputs.len());
        self.channels(|c| {
            let channel = Channel::new(p.kind, own, c);
            let mut sums = Sums::default();
            for b in 0..p.batch {
                let at = (b * p.channels + c) * length;
                let (rows, grads) = (read(sequences, at, length), read(grads, at, length));
                let [x, y, z] = std::array::from_fn(|i| match to_sequences.get(i) {
                    // SAFETY: the rows of a channel belong to this task alone.
                    Some(to) => unsafe { to.part(at, length) },
                    None => Default::default(),
                });
                let [ga, gx, _] = grads;
                match p.kind {
                    Kind::MinGru => steps::mingru_backward([rows[0], rows[1], ga, gx], x, y),
                    Kind::RgLru => {
                        let mut sum = 0.0;
                        steps::rglru_backward(channel.rate(), [rows[0], rows[1], rows[2], ga, gx], x, y, z, &mut sum);
                        sums.of_gate[0] += f64::from(sum);
                    }
                    Kind::Softplus => steps::softplus_backward(1.0, rows[0], ga, x),
                    Kind::Decline => steps::softplus_backward(-1.0, rows[0], ga, x),
                    Kind::Decay | Kind::Hold | Kind::Lru | Kind::S5 => channel.backward(rows[0], ga, gx, x, &mut sums),
                    Kind::Rate | Kind::ComplexRate | Kind::Polar => channel::backward(p.kind, rows[0], ga, x),
                }
            }
            for (to, g) in to_own.iter().zip(channel.parameters(&sums)) {
                // SAFETY: this channel's gradients belong to this task alone.
                unsafe { to.put(c, g as f32) };
            }
        });
    }

    /// Numbers of a row.
    fn length(&self) -> usize {
        self.problem.steps * if self.problem.kind.form().complex { 2 } else { 1 }
    }
}

/// A row of each sequence; empty ones beyond those that there are.
fn read<'a>(sequences: &[&'a [f32]], at: usize, length: usize) -> [&'a [f32]; MOST] {
    std::array::from_fn(|i| sequences.get(i).map_or(&[][..], |s| &s[at..][..length]))
}

impl CpuWork for Cpu {
    fn execute(&self, pass: Pass, _planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        const TENSORS: usize = 8;
        let (mut inputs, mut outputs) = ([&[][..]; TENSORS], [Shared::new(&mut []); TENSORS]);
        for (to, view) in inputs.iter_mut().zip(args.inputs) {
            *to = numbers(view)?;
        }
        for (to, view) in outputs.iter_mut().zip(&mut *args.outputs) {
            *to = numbers_mut(view)?;
        }
        let (inputs, outputs) = (&inputs[..args.inputs.len()], &outputs[..args.outputs.len()]);
        match pass {
            Pass::Forward => self.run_forward(inputs, outputs),
            _ => self.run_backward(inputs, outputs),
        }
        Ok(())
    }
}

/// The numbers of a contiguous tensor; complex ones are two each.
fn numbers<'a>(view: &View<'a>) -> Result<&'a [f32]> {
    if view.dtype() != Dtype::C64 {
        return view.as_slice::<f32>();
    }
    let count = 2 * view.shape().elements();
    // SAFETY: the signature's check has seen contiguous host memory, where a complex number is two f32 side by side; an empty
    // tensor may have no address.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(view.address() as *const f32, count) } })
}

fn numbers_mut(view: &mut ViewMut<'_>) -> Result<Shared<f32>> {
    if view.dtype() != Dtype::C64 {
        return Ok(Shared::new(view.as_mut_slice::<f32>()?));
    }
    let count = 2 * view.shape().elements();
    if count == 0 {
        return Ok(Shared::new(&mut []));
    }
    // SAFETY: as above, and exclusive as the view is.
    Ok(Shared::new(unsafe { std::slice::from_raw_parts_mut(view.address() as *mut f32, count) }))
}
