//! LTC on the CPU: threads over groups of batch rows, rows in the lanes of vectors.
//!
//! A group keeps its states as `[H, R]`, R = 8 rows beside each other (or 4, with two synapses in one vector), and walks
//! through the synapses of each target: `t = a (v - mu)`, `r = 1 / (1 + 2^t)`, `num += q r`, `den += p r`, with the
//! constants a, mu, p, q folded once a call: nothing is gathered, and nothing is reduced across lanes (`gates.rs`). The
//! difference `v - mu` is formed first, so that a large `sigma mu` costs no accuracy.
//!
//! Counts: `B T (K S + SS)` gates forward, 3.1 million in `B24_T8_D128_H64`. A vector of 8 takes 24 instructions, 5 of
//! them loads and one a division, and 9.3 cycles on a Zen 3, which finishes 2.3 of their floating-point operations a
//! cycle however they are ordered. So what counts is their number, and what saved time was: an exponential with one term
//! less (0.87 of the time), two vectors side by side with no bounds on the argument where a target's constants and
//! the largest state show that they are kept (0.82), and shuffles of constants by name for groups of 4 rows (0.70; see
//! `avx.rs`). Those groups take 0.64 of the time of 8 rows forward and 0.67 backward.
//!
//! The backward pass evaluates each gate once more while it rebuilds a step, and keeps it (up to `GATE_CACHE`) for the
//! adjoint and the parameters' sums: 45, 17 and 31 of 100 parts of a group of 8 rows.
//!
//! Times of `B24_T8_D128_H64` on 2 cores of a Zen 3 at 3.2 GHz that other work shared (2026-11-21, the best of some
//! thousands): forward 1.44 ms on one thread and 0.74 on two, backward 3.25 and 1.66. Folding the parameters is 0.08 ms
//! of them and closing the gradients 0.1: columns of matrices, of which every element is a line of the cache.
//!
//! Tried and left: two gates with one division (5 % slower), `rcpps` and a Newton step instead of the division (4 %
//! slower), Estrin's scheme and stages of the next vectors in one turn of the loop (5 and 8 % faster by themselves, not
//! where two vectors go side by side). `a v + b` instead of `a (v - mu)` is 6 % faster, but a `sigma mu` of 7000, as
//! inputs that nobody normalised have, would cost a gate three digits. Constants spread over all lanes in memory are
//! 16 % faster for groups of 4 rows, but take 64 bytes a synapse instead of 16, which large layers would fetch from
//! memory. A group of 12 rows shares the constants of 8 and 4, but would leave B = 24 to two threads at most.
//!
//! Precision `fast` takes the same path: one or two terms of the exponential's polynomial would be all there is to save.
#![allow(unsafe_code)]

mod apart;
mod avx;
mod backward;
mod close;
mod convert;
mod fold;
mod forward;
mod gates;
mod layout;
mod lstm;
mod places;
#[cfg(test)]
mod tests;
mod words;

use super::spec::Ltc;
use crate::layers::memory::Strided;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::shared::Shared;
use crate::simd::level;
use crate::{Error, Layout, Place, Result, View, ViewMut, pool};
use backward::{Given, Gradients};
pub(super) use convert::{round, widen};
use fold::{Room, SideInputs};
use forward::{Call, Outputs};
use layout::{Buffers, Group, Regions, Sums};
use lstm::{Kept, Lstm};
use places::{BackwardPlaces, Inputs, Outputs as OutputPlaces};

/// A plan of LTC on the CPU. The bits of its results do not depend on the number of threads.
#[derive(Debug)]
pub struct CpuPlan {
    problem: Ltc,
    groups: Vec<Group>,
    forward: (Signature, Regions),
    backward: Option<(Signature, Regions)>,
    inputs: Inputs,
    outputs: OutputPlaces,
    gradients: Option<BackwardPlaces>,
    empty: Layout,
}

impl CpuPlan {
    /// A plan of `problem`; nothing is compiled or loaded.
    ///
    /// # Errors
    /// If the problem is out of range, its scratch exceeds 64-bit sizes, or `options` names another variant than `simd`.
    pub fn new(problem: &Ltc, options: &PlanOptions) -> Result<Self> {
        if let Some(other) = options.variant.as_deref().filter(|v| *v != "simd") {
            return Err(Error::config(format!("ltc: variant `{other}` is not one of the CPU's: simd")));
        }
        let problem = problem.clone().build()?;
        let groups = layout::groups(problem.batch);
        let plan = |pass| -> Result<_> {
            Ok((problem.signature_of(pass)?, Regions::new(&problem, pass, groups.len(), options.scratch_gap)?))
        };
        let forward = plan(Pass::Forward)?;
        let backward = if problem.backward { Some(plan(Pass::Backward)?) } else { None };
        let inputs = Inputs::of(&forward.0)?;
        let outputs = OutputPlaces::of(&forward.0)?;
        let gradients = backward.as_ref().map(|(s, _)| BackwardPlaces::of(&problem, s)).transpose()?;
        Ok(Self { problem, groups, forward, backward, inputs, outputs, gradients, empty: Layout::new(0) })
    }

    /// The tensors of a call, with the parameters folded into scratch.
    fn call<'a>(
        &'a self,
        regions: &Regions,
        inputs: &'a [View<'a>],
        scratch: &ViewMut<'a>,
    ) -> Result<(Call<'a>, [SideInputs<'a>; 2])> {
        let (p, at) = (&self.problem, &self.inputs);
        let floats = |i: usize| inputs[i].as_slice::<f32>();
        let optional = |i: Option<usize>| i.map(floats).transpose();
        let side = |name, sources, [w, mu, sigma, erev, offsets, from]: [usize; 6]| -> Result<SideInputs<'a>> {
            Ok(SideInputs {
                name,
                sources,
                w: floats(w)?,
                mu: floats(mu)?,
                sigma: floats(sigma)?,
                erev: floats(erev)?,
                target_offsets: inputs[offsets].as_slice::<i32>()?,
                source_of: inputs[from].as_slice::<i32>()?,
            })
        };
        let sides = [side("recurrent", p.hidden, at.recurrent)?, side("sensory", p.inputs, at.sensory)?];
        let room = |at: usize| -> Result<Room<'a>> {
            let [packs, sources, first, reach] = regions.sides[at];
            // SAFETY: the block is this layout's, as `run` checked, and each region is carved once a call.
            unsafe {
                Ok(Room {
                    constants: regions.layout.carve::<f32>(scratch, packs)?,
                    source_of: regions.layout.carve::<i32>(scratch, sources)?.as_chunks_mut().0,
                    first: regions.layout.carve::<i32>(scratch, first)?,
                    reach: regions.layout.carve::<f32>(scratch, reach)?.as_chunks_mut().0,
                })
            }
        };
        let [recurrent, sensory] = fold::fold(&sides, p.constraint, [room(0)?, room(1)?])?;
        // SAFETY: as above.
        let neurons = unsafe { regions.layout.carve::<f32>(scratch, regions.neurons)? }.as_chunks_mut().0;
        let positive = p.constraint == super::Constraint::Softplus;
        let (cm, gleak, vleak) = (floats(at.cm)?, floats(at.gleak)?, floats(at.vleak)?);
        fold::fold_neurons(cm, gleak, vleak, positive, p.epsilon as f32, neurons);
        let norm = match at.norm {
            Some([weight, bias]) => Some([floats(weight)?, floats(bias)?]),
            None => None,
        };
        let lstm = match at.lstm {
            None => None,
            Some([input, bias, recurrent]) => Some(Lstm {
                input: floats(input)?,
                bias: floats(bias)?,
                recurrent: floats(recurrent)?,
                c0: at.c0.map(|i| Strided::new(&inputs[i])).transpose()?,
            }),
        };
        let call = Call {
            p,
            recurrent,
            sensory,
            neurons,
            x: Strided::new(&inputs[at.x])?,
            h0: at.h0.map(|i| Strided::new(&inputs[i])).transpose()?,
            elapsed: at.elapsed.map(|i| Strided::new(&inputs[i])).transpose()?,
            norm,
            input_w: optional(at.input_w)?,
            input_b: optional(at.input_b)?,
            output_w: optional(at.output_w)?,
            output_b: optional(at.output_b)?,
            lstm,
        };
        Ok((call, sides))
    }

    fn run_forward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (regions, at) = (&self.forward.1, &self.outputs);
        let (call, _) = self.call(regions, args.inputs, &args.scratch)?;
        // SAFETY: the block is this layout's, as `run` checked, and each region is carved once a call.
        let memory = Shared::new(unsafe { regions.layout.carve::<f32>(&args.scratch, regions.buffers)? });
        let words = at.words.map(|i| Ok(Shared::new(args.outputs[i].as_mut_slice::<i32>()?))).transpose()?;
        let mut written = |i: usize| -> Result<Shared<f32>> { Ok(Shared::new(args.outputs[i].as_mut_slice()?)) };
        let outputs = Outputs {
            out: written(at.out)?,
            final_state: written(at.final_state)?,
            states: at.states.map(&mut written).transpose()?,
            unfolds: match at.unfolds {
                Some([states, dens]) => Some([written(states)?, written(dens)?]),
                None => None,
            },
            words,
            final_cell: at.final_cell.map(&mut written).transpose()?,
            lstm: match at.lstm {
                Some(gates) => Some([written(gates)?, written(gates + 1)?, written(gates + 2)?]),
                None => None,
            },
        };
        let len = regions.sizes.buffers();
        pool::for_each(regions.tasks, |task| {
            for &g in &self.groups[regions.groups_of(task, self.groups.len())] {
                // SAFETY: a task has its own part.
                let memory = unsafe { memory.part(task * len, len) };
                forward::forward(&call, g, Buffers::carve(&regions.sizes, memory), outputs);
            }
        });
        Ok(())
    }

    fn run_backward(&self, regions: &Regions, at: &BackwardPlaces, args: &mut Args<'_, '_>) -> Result<()> {
        if args.outputs.is_empty() {
            return Ok(());
        }
        let p = &self.problem;
        let (call, sides) = self.call(regions, args.inputs, &args.scratch)?;
        // SAFETY: the block is this layout's, as `run` checked, and each region is carved once a call.
        let (memory, sums) = unsafe {
            (
                regions.layout.carve::<f32>(&args.scratch, regions.buffers)?,
                regions.layout.carve::<f64>(&args.scratch, regions.sums)?,
            )
        };
        let unfolds = match at.unfolds {
            Some([states, dens]) => Some([Strided::new(&args.inputs[states])?, Strided::new(&args.inputs[dens])?]),
            None => None,
        };
        let given = Given {
            states: Strided::new(&args.inputs[at.states])?,
            unfolds,
            words: at.words.map(|i| args.inputs[i].as_slice::<i32>()).transpose()?,
            grad_out: Strided::new(&args.inputs[at.grad_out])?,
            grad_final_state: Strided::new(&args.inputs[at.grad_final_state])?,
            lstm: match at.lstm_given {
                None => None,
                Some([grad_final_cell, gates]) => {
                    let kept = Kept {
                        gates: Strided::new(&args.inputs[gates])?,
                        cells: Strided::new(&args.inputs[gates + 1])?,
                        states: Strided::new(&args.inputs[gates + 2])?,
                    };
                    Some((Strided::new(&args.inputs[grad_final_cell])?, kept))
                }
            },
        };
        let mut written = |i: Option<usize>| -> Result<Option<Shared<f32>>> {
            i.map(|i| Ok(Shared::new(args.outputs[i].as_mut_slice()?))).transpose()
        };
        let grads = Gradients {
            x: written(at.x)?,
            h0: written(at.h0)?,
            c0: written(at.c0)?,
            elapsed: written(at.elapsed)?,
            parameters: p.wants.parameters,
        };
        let (len, sums_len) = (regions.sizes.buffers(), regions.sizes.sums());
        let (parts, sum_parts) = (Shared::new(memory), Shared::new(sums));
        pool::for_each(regions.tasks, |task| {
            // SAFETY: a task has its own parts.
            let (memory, sums) = unsafe { (parts.part(task * len, len), sum_parts.part(task * sums_len, sums_len)) };
            sums.fill(0.0);
            let mut buffers = Buffers::carve(&regions.sizes, memory);
            let mut total = Sums::carve(&regions.sizes, sums);
            for &g in &self.groups[regions.groups_of(task, self.groups.len())] {
                backward::backward(&call, g, &regions.sizes, &mut buffers, &mut total, &given, grads);
            }
        });
        if p.wants.parameters {
            let tasks = close::Tasks { memory: sums, len: sums_len };
            self.close(at, regions, args.inputs, args.outputs, &call, &sides, tasks)?;
        }
        Ok(())
    }

    /// Writes the gradients of all parameters from the tasks' sums.
    #[allow(clippy::too_many_arguments)]
    fn close(
        &self,
        at: &BackwardPlaces,
        regions: &Regions,
        inputs: &[View<'_>],
        outputs: &mut [ViewMut<'_>],
        call: &Call<'_>,
        sides: &[SideInputs<'_>; 2],
        tasks: close::Tasks<'_>,
    ) -> Result<()> {
        let (p, sizes) = (&self.problem, &regions.sizes);
        // The four matrices of a side follow each other in every signature.
        let mut gradients = |first: Option<usize>| -> Result<[Shared<f32>; 4]> {
            let first = first.ok_or_else(|| places::missing("grad_w"))?;
            let [w, mu, sigma, erev, ..] = &mut outputs[first..] else { return Err(places::missing("grad_erev")) };
            Ok([
                Shared::new(w.as_mut_slice()?),
                Shared::new(mu.as_mut_slice()?),
                Shared::new(sigma.as_mut_slice()?),
                Shared::new(erev.as_mut_slice()?),
            ])
        };
        let [recurrent, sensory] = sides;
        let mut base = 8 * sizes.recurrent_packs;
        close::close_sides(
            [
                close::Sums { of: recurrent, side: &call.recurrent, base: 0, gradients: gradients(at.w)? },
                close::Sums { of: sensory, side: &call.sensory, base, gradients: gradients(at.sensory_w)? },
            ],
            p.constraint,
            tasks,
        );
        base += 8 * sizes.sensory_packs;
        let (gleak, cm) = (inputs[self.inputs.gleak].as_slice::<f32>()?, inputs[self.inputs.cm].as_slice::<f32>()?);
        let mut write = |to: Option<usize>, value: &dyn Fn(usize) -> f64| -> Result<()> {
            if let Some(to) = to {
                for (j, x) in outputs[to].as_mut_slice::<f32>()?.iter_mut().enumerate() {
                    *x = value(j) as f32;
                }
            }
            Ok(())
        };
        let neuron = |j: usize| tasks.add::<3>(base + 3 * j);
        let leak = |j: usize| f64::from(call.neurons[j][1]) - f64::from(p.epsilon as f32);
        write(at.gleak, &|j| close::slope(p.constraint, gleak[j]) * neuron(j)[0])?;
        write(at.gleak.map(|i| i + 1), &|j| leak(j) * neuron(j)[1])?;
        write(at.gleak.map(|i| i + 2), &|j| close::slope(p.constraint, cm[j]) * neuron(j)[2])?;
        base += 3 * p.hidden;
        for (count, names) in [(p.outputs, at.output), (p.inputs, at.input), (p.inputs, at.norm)] {
            for (of, to) in names.into_iter().enumerate() {
                write(to, &|j| tasks.add::<2>(base + 2 * j)[of])?;
            }
            base += 2 * count;
        }
        let width = p.inputs + 1 + p.hidden;
        let lstm = |of: usize| at.lstm.map(|first| first + of);
        let sum = |row: usize, column: usize| tasks.add::<1>(base + row * width + column)[0];
        write(lstm(0), &|i| sum(i / p.inputs, i % p.inputs))?;
        write(lstm(1), &|i| sum(i, p.inputs))?;
        write(lstm(2), &|i| sum(i / p.hidden, p.inputs + 1 + i % p.hidden))?;
        Ok(())
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        "ltc"
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.forward.0),
            Pass::Backward => self.backward.as_ref().map(|b| &b.0),
            _ => None,
        }
    }
    fn config(&self) -> String {
        let count = |lanes: usize| self.groups.iter().filter(|g| g.lanes == lanes).count();
        let keep = self.backward.as_ref().map_or_else(String::new, |(_, r)| {
            let which = match (r.sizes.keep_recurrent, r.sizes.keep_sensory) {
                (true, true) => "all",
                (true, false) => "recurrent",
                (false, true) => "sensory",
                (false, false) => "no",
            };
            format!(", backward tasks = {}, {which} gates kept", r.tasks)
        });
        format!(
            "simd = {}, groups of 8 rows = {}, of 4 rows = {}, forward tasks = {}{keep}, threads = {}",
            level(),
            count(8),
            count(4),
            self.forward.1.tasks,
            pool::num_threads()
        )
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        match (pass, &self.backward) {
            (Pass::Forward, _) => &self.forward.1.layout,
            (Pass::Backward, Some((_, regions))) => &regions.layout,
            _ => &self.empty,
        }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        match (pass, &self.backward, &self.gradients) {
            (Pass::Forward, ..) => self.run_forward(args),
            (Pass::Backward, Some((_, regions)), Some(at)) => self.run_backward(regions, at, args),
            _ => Err(Error::config(format!("ltc: the plan has no {} pass", pass.name()))),
        }?;
        pool::refuse_if_stopped("ltc")
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
