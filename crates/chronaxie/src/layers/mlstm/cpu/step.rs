//! The decode step on the CPU: threads over sequences and heads. A state is read and written once, four rows at a time, so
//! that memory binds.

use super::gates;
use super::gemm::dot;
use super::layout::Block;
use super::pack::Tokens;
use crate::layers::halves::{bf16_from_f32, bf16_to_f32, f16_to_f32};
use crate::layers::mlstm::Gate;
use crate::layers::mlstm::spec::HEAD_MOST;
use crate::layers::mlstm::step::{HeadNorm, MlstmStep};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Dtype, Layout, RegionId, Result, dispatch, pool};
use half::f16;

/// `mlstm_step` on the CPU. The bits of its results do not depend on the number of threads.
#[derive(Debug)]
pub struct StepCpu {
    problem: MlstmStep,
    taken: RegionId,
}

impl StepCpu {
    /// A plan of `problem`.
    ///
    /// # Errors
    /// If the problem is out of range, or `options` names another variant than `simd`.
    pub fn plan(problem: &MlstmStep, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let problem = problem.build()?;
        let mut scratch = Layout::new(options.scratch_gap);
        let taken = scratch.push("taken", Dtype::U8, problem.slots.unwrap_or(0))?;
        CpuPlan::new(&problem, options, [(Pass::Step, scratch)], Self { problem, taken })
    }
}

/// The tensors of a call.
struct Call<'a> {
    p: &'a MlstmStep,
    tokens: [Tokens; 5],
    o: Option<Tokens>,
    weight: Option<&'a [f32]>,
    slots: Option<&'a [i32]>,
    h: Tokens,
    /// The address of c.
    c: usize,
    n: Option<Block<f32>>,
    m: Option<Block<f32>>,
}

impl Call<'_> {
    /// One head of one sequence.
    fn head(&self, b: usize, head: usize) {
        let (p, k, v) = (self.p, self.p.dqk, self.p.dv);
        let (mut q, mut key, mut value) = ([0.0; HEAD_MOST], [0.0; HEAD_MOST], [0.0; HEAD_MOST]);
        let mut out = [0.0; HEAD_MOST];
        let at = [b, head, 0];
        let slot = self.slots.map_or(b as i32, |slots| slots[b]);
        // SAFETY: the signature's check has seen every tensor; slots were checked to be there and to be named once, so a
        // state and an output are this task's alone.
        unsafe {
            let Ok(slot) = usize::try_from(slot) else {
                return self.h.store(at, 1, v, 1.0, &out);
            };
            let s = slot * p.heads + head;
            self.tokens[0].load(at, 1, k, 1.0 / (k as f32).sqrt(), &mut q);
            self.tokens[1].load(at, 1, k, 1.0, &mut key);
            self.tokens[2].load(at, 1, v, 1.0, &mut value);
            let (mut i, mut f, mut b) = ([0.0], [0.0], [0.0]);
            self.tokens[3].load(at, 1, 1, 1.0, &mut i);
            self.tokens[4].load(at, 1, 1, 1.0, &mut f);
            gates::sums(p.gate, &mut i, &mut f, &mut b);
            let start = self.m.map_or(0.0, |m| m.read(s, 1)[0]);
            let mut gauge = [0.0];
            let chunk = if p.gate == Gate::Exponential {
                gates::gauges(&i, &b, start, &mut gauge);
                gates::Chunk { li: &i, b: &b, m: &gauge, start }
            } else {
                gates::Chunk { li: &i, b: &b, m: &[], start: 0.0 }
            };
            let (kept, mut into) = (chunk.kept(), [0.0]);
            chunk.entering(&mut into);
            let floor = (-chunk.gauge(0)).exp() as f32;
            key[..k].iter_mut().for_each(|x| *x *= into[0]);
            let (q, key, value, out) = (&q[..k], &key[..k], &value[..v], &mut out[..v]);
            let c = self.c + s * k * v * p.state_dtype.size();
            match p.state_dtype {
                Dtype::F32 => rows_f32(std::slice::from_raw_parts_mut(c as *mut f32, k * v), kept, q, key, value, out),
                Dtype::Bf16 => {
                    rows_bf16(std::slice::from_raw_parts_mut(c as *mut u16, k * v), kept, q, key, value, out)
                }
                _ => rows_f16(std::slice::from_raw_parts_mut(c as *mut u16, k * v), kept, q, key, value, out),
            }
            if let Some(n) = self.n {
                let n = n.write(s * k, k);
                n.iter_mut().zip(key).for_each(|(n, key)| *n = kept * *n + key);
                let factor = 1.0 / super::forward::denominator(dot(q, n), floor, p.eps as f32);
                out.iter_mut().for_each(|x| *x *= factor);
            }
            if let Some(m) = self.m {
                m.write(s, 1)[0] = gauge[0];
            }
            if let Some(weight) = self.weight {
                norm(p, out, &weight[head * v..(head + 1) * v]);
            }
            if let Some(o) = self.o {
                let mut gate = [0.0; HEAD_MOST];
                o.load(at, 1, v, -1.0, &mut gate);
                // slope(x) is 1 / (1 + e^x).
                gates::slope(&mut gate[..v]);
                out.iter_mut().zip(&gate).for_each(|(x, g)| *x *= g);
            }
            self.h.store(at, 1, v, 1.0, out);
        }
    }
}

/// The head norm; its sums are f64, since they are short beside the state.
fn norm(p: &MlstmStep, h: &mut [f32], weight: &[f32]) {
    let count = h.len() as f64;
    let middle =
        if p.head_norm == HeadNorm::Layer { h.iter().map(|&x| f64::from(x)).sum::<f64>() / count } else { 0.0 };
    let square = h.iter().map(|&x| (f64::from(x) - middle).powi(2)).sum::<f64>() / count;
    let factor = 1.0 / (square + p.norm_eps).sqrt();
    h.iter_mut().zip(weight).for_each(|(x, w)| *x = ((f64::from(*x) - middle) * factor) as f32 * w);
}

macro_rules! rows {
    ($name:ident, $body:ident, $t:ty, $load:expr, $store:expr) => {
        /// `c = kept c + key value^T` and `out += c^T q`.
        #[inline(always)]
        fn $body(c: &mut [$t], kept: f32, q: &[f32], key: &[f32], value: &[f32], out: &mut [f32]) {
            let v = value.len();
            for (nth, four) in c.chunks_exact_mut(4 * v).enumerate() {
                let (a, rest) = four.split_at_mut(v);
                let (b, rest) = rest.split_at_mut(v);
                let (c, d) = rest.split_at_mut(v);
                let (q, k) = (&q[4 * nth..4 * nth + 4], &key[4 * nth..4 * nth + 4]);
                let rows = a.iter_mut().zip(b).zip(c.iter_mut().zip(d));
                for ((((a, b), (c, d)), x), out) in rows.zip(value).zip(out.iter_mut()) {
                    let new = [
                        kept * $load(*a) + k[0] * x,
                        kept * $load(*b) + k[1] * x,
                        kept * $load(*c) + k[2] * x,
                        kept * $load(*d) + k[3] * x,
                    ];
                    (*a, *b, *c, *d) = ($store(new[0]), $store(new[1]), $store(new[2]), $store(new[3]));
                    *out += (q[0] * new[0] + q[1] * new[1]) + (q[2] * new[2] + q[3] * new[3]);
                }
            }
        }
        dispatch!(fn $name(c: &mut [$t], kept: f32, q: &[f32], key: &[f32], value: &[f32], out: &mut [f32]) = $body);
    };
}
rows!(rows_f32, rows_f32_body, f32, (|x: f32| x), (|x: f32| x));
rows!(rows_bf16, rows_bf16_body, u16, bf16_to_f32, bf16_from_f32);
rows!(rows_f16, rows_f16_body, u16, f16_to_f32, (|x: f32| f16::from_f32(x).to_bits()));

impl CpuWork for StepCpu {
    fn execute(&self, _pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let find = |name: &str| planned.signature.input(name).map(|at| &args.inputs[at]);
        let slots = find("slot").map(|v| v.as_slice::<i32>()).transpose()?;
        if let Some(slots) = slots {
            // SAFETY: the block was checked against this layout, and the call has it for itself.
            p.check_slots(slots, unsafe { planned.scratch.carve::<u8>(&args.scratch, self.taken)? })?;
        }
        let tokens = [0, 1, 2, 3, 4].map(|at: usize| Tokens::read(&args.inputs[at]).of_one());
        let weight = find("norm_weight").map(|v| v.as_slice::<f32>()).transpose()?;
        let o = find("o").map(|o| Tokens::read(o).of_one());
        let [n, m] = ["n", "m"].map(|name| planned.signature.output(name));
        let mut block = |at: Option<usize>| -> Result<Option<Block<f32>>> {
            at.map(|at| Ok(Block::new(args.outputs[at].as_mut_slice::<f32>()?))).transpose()
        };
        let (n, m) = (block(n)?, block(m)?);
        let (h, c) = (Tokens::write(&args.outputs[0]).of_one(), args.outputs[1].address() as usize);
        let call = Call { p, tokens, o, weight, slots, h, c, n, m };
        pool::for_each(p.batch * p.heads, |i| call.head(i / p.heads, i % p.heads));
        Ok(())
    }
}
