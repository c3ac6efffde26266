//! The mLSTM on the CPU: chunks of tokens as small products of matrices, threads over chunks.
//!
//! A window of chunks is taken at a time. First their states, chunk after chunk: threads over heads and, where there are
//! few, over panels of columns, which do not depend on each other. Then everything else, which needs only the state before
//! a chunk (and backward the gradient of the one behind it): threads over heads and chunks. No sum depends on how that was
//! shared out, so the bits are those of one thread. Forward, where there are chains for all threads, each goes through whole
//! chains instead: the same sums, from a state that stays in its cache.
//!
//! Tokens of any strides and element types become rows and panels of f32 first (`pack.rs`), which is 1 / K of the work, unless they
//! are rows of f32 already; products are tiles in registers (`gemm.rs`). The backward pass saves nothing of a chunk but l and m of its tokens, and
//! makes states anew: 2 K V multiply-adds more a token, of about 10 K V.
#![allow(unsafe_code)]

mod backward;
mod call;
mod forward;
mod gates;
mod gemm;
mod ladder;
mod layout;
mod pack;
mod registers;
mod rows;
mod step;

pub use ladder::LadderCpu;
pub use step::StepCpu;

use super::spec::Mlstm;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Error, Layout, Place, Result, View, ViewMut, pool, simd};
use backward::{Gradients, Upstream};
use call::Call;
use forward::Outputs;
use layout::{Block, Cut, Regions};
use pack::Tokens;

/// What one pass needs.
#[derive(Debug)]
struct PassPlan {
    signature: Signature,
    cut: Cut,
    regions: Regions,
}

/// `mlstm_exp` or `mlstm_sig` on the CPU. The bits of its results do not depend on the number of threads.
#[derive(Debug)]
pub struct CpuPlan {
    problem: Mlstm,
    forward: PassPlan,
    backward: Option<PassPlan>,
    empty: Layout,
}

impl CpuPlan {
    /// A plan of `problem`.
    ///
    /// # Errors
    /// If the problem is out of range, its scratch exceeds 64-bit sizes, or `options` names another variant than `simd` and
    /// `simd:wN`, which takes N chunks a window.
    pub fn new(problem: &Mlstm, options: &PlanOptions) -> Result<Self> {
        let problem = problem.build()?;
        let window = match options.variant.as_deref() {
            None | Some("simd") => None,
            Some(v) => {
                let size = v.strip_prefix("simd:w").and_then(|n| n.parse().ok()).filter(|&n: &usize| n > 0);
                let other =
                    || format!("{}: variant `{v}` is not one of simd, simd:wN on the CPU", problem.entry_name());
                Some(size.ok_or_else(|| Error::config(other()))?)
            }
        };
        let plan = |pass| -> Result<PassPlan> {
            let cut = Cut::new(&problem, pass, window);
            let regions = Regions::new(&problem, &cut, pass, options.scratch_gap)?;
            Ok(PassPlan { signature: problem.signature_of(pass)?, cut, regions })
        };
        let backward = if problem.backward { Some(plan(Pass::Backward)?) } else { None };
        Ok(Self { problem, forward: plan(Pass::Forward)?, backward, empty: Layout::new(0) })
    }

    fn pass(&self, pass: Pass) -> Option<&PassPlan> {
        match pass {
            Pass::Forward => Some(&self.forward),
            Pass::Backward => self.backward.as_ref(),
            _ => None,
        }
    }
}

/// The tensors of a call by name.
struct Named<'a, 'v> {
    signature: &'a Signature,
    inputs: &'a [View<'v>],
    outputs: &'a mut [ViewMut<'v>],
}

impl<'v> Named<'_, 'v> {
    fn input(&self, name: &str) -> Option<&View<'v>> {
        self.signature.input(name).map(|at| &self.inputs[at])
    }
    fn tokens(&self, name: &str) -> Result<Tokens> {
        self.input(name).map(Tokens::read).ok_or_else(|| Error::config(format!("mlstm: there is no input {name}")))
    }
    fn floats(&self, name: &str) -> Result<Option<&'v [f32]>> {
        self.input(name).map(|v| v.as_slice::<f32>()).transpose()
    }
    /// The three tensors of a state, each empty where it is not there; none if c is not.
    fn state(&self, names: [&str; 3]) -> Result<Option<[&'v [f32]; 3]>> {
        let [c, n, m] = names.map(|name| self.floats(name));
        let Some(c) = c? else { return Ok(None) };
        Ok(Some([c, n?.unwrap_or(&[]), m?.unwrap_or(&[])]))
    }
    fn out_tokens(&self, name: &str) -> Option<Tokens> {
        self.signature.output(name).map(|at| Tokens::write(&self.outputs[at]))
    }
    fn out_floats(&mut self, name: &str) -> Result<Option<Block<f32>>> {
        let Some(at) = self.signature.output(name) else { return Ok(None) };
        Ok(Some(Block::new(self.outputs[at].as_mut_slice::<f32>()?)))
    }
    fn out_state(&mut self, names: [&str; 3]) -> Result<Option<[Block<f32>; 3]>> {
        let [c, n, m] = names.map(|name| self.out_floats(name));
        let Some(c) = c? else { return Ok(None) };
        let none = Block::new(&mut []);
        Ok(Some([c, n?.unwrap_or(none), m?.unwrap_or(none)]))
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        self.problem.entry_name()
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.pass(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        let cut = &self.forward.cut;
        let (simd, threads) = (simd::level(), pool::num_threads());
        format!("cpu simd={simd} threads={threads} chunk={} window={}", layout::chunk_length(&self.problem), cut.window)
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        self.pass(pass).map_or(&self.empty, |p| &p.regions.layout)
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let missing = || Error::config(format!("{}: the {} pass was not planned", self.entry(), pass.name()));
        let plan = self.pass(pass).ok_or_else(missing)?;
        // SAFETY: the block was checked against this layout, and the call has it for itself.
        let memory = unsafe { plan.regions.carve(&args.scratch)? };
        let mut io = Named { signature: &plan.signature, inputs: args.inputs, outputs: args.outputs };
        let cuts = io.input("cu_seqlens").map(|v| v.as_slice::<i32>()).transpose()?;
        if let Some(cuts) = cuts {
            p.check_cuts(cuts)?;
        }
        let saved = if pass == Pass::Forward { io.out_floats("m")? } else { None };
        let given = io.floats("m")?.map(Block::reading);
        let call = Call {
            p,
            cut: plan.cut,
            memory,
            floats: plan.regions.floats,
            q: io.tokens("q")?,
            k: io.tokens("k")?,
            v: io.tokens("v")?,
            i: io.tokens("i")?,
            f: io.tokens("f")?,
            cuts,
            initial: io.state(["c_initial", "n_initial", "m_initial"])?,
            gauge: p.has_gauge().then(|| given.or(saved).unwrap_or(memory.gauge)),
        };
        if pass == Pass::Forward {
            let h = io.out_tokens("h").ok_or_else(missing)?;
            let out = Outputs { h, last: io.out_state(["c_last", "n_last", "m_last"])?, l: io.out_floats("l")? };
            forward::run(&call, &out);
        } else {
            let up = Upstream {
                h: io.input("h").map(Tokens::read),
                l: io.floats("l")?,
                grad_h: io.tokens("grad_h")?,
                grad_last: io.state(["grad_c_last", "grad_n_last", "grad_m_last"])?,
            };
            let out = Gradients {
                q: io.out_tokens("grad_q"),
                k: io.out_tokens("grad_k"),
                v: io.out_tokens("grad_v"),
                i: io.out_tokens("grad_i"),
                f: io.out_tokens("grad_f"),
                initial: io.out_state(["grad_c_initial", "grad_n_initial", "grad_m_initial"])?,
            };
            backward::run(&call, &up, &out);
        }
        pool::refuse_if_stopped(self.entry())
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
