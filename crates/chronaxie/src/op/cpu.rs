//! Plans on the CPU with one way to run, `simd`, and a printed configuration of SIMD level and threads: a family gives the
//! work, and [`CpuPlan`] what all of them say alike.

use super::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Error, Layout, Place, Result};
use chronaxie_runtime::{pool, simd};

/// What a family does on the CPU.
pub(crate) trait CpuWork: Send + Sync {
    /// Runs a pass, one of those that the plan was made with, on arguments that were checked.
    fn execute(&self, pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()>;
}

/// A pass of a plan.
#[derive(Debug)]
pub(crate) struct Planned {
    pub signature: Signature,
    pub scratch: Layout,
}

/// A family's work on the CPU as a [`Plan`].
#[derive(Debug)]
pub(crate) struct CpuPlan<W> {
    entry: &'static str,
    passes: Vec<(Pass, Planned)>,
    none: Layout,
    work: W,
}

impl<W: CpuWork> CpuPlan<W> {
    /// A plan of these passes of `problem`, each with its scratch.
    ///
    /// # Errors
    /// If `options` names another variant than `simd`, or the problem has no such pass.
    pub fn new<const N: usize>(
        problem: &dyn Problem,
        options: &PlanOptions,
        passes: [(Pass, Layout); N],
        work: W,
    ) -> Result<Self> {
        let entry = problem.entry();
        options.only("simd", entry, "the CPU")?;
        let planned = |(pass, scratch)| Ok((pass, Planned { signature: problem.signature(pass)?, scratch }));
        let passes = passes.into_iter().map(planned).collect::<Result<_>>()?;
        Ok(Self { entry, passes, none: Layout::new(options.scratch_gap), work })
    }

    fn planned(&self, pass: Pass) -> Option<&Planned> {
        self.passes.iter().find(|(p, _)| *p == pass).map(|(_, planned)| planned)
    }
}

impl<W: CpuWork> Plan for CpuPlan<W> {
    fn entry(&self) -> &'static str {
        self.entry
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        self.planned(pass).map(|p| &p.signature)
    }
    fn config(&self) -> String {
        format!("cpu simd={} threads={}", simd::level(), pool::num_threads())
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        self.planned(pass).map_or(&self.none, |p| &p.scratch)
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let missing = || Error::config(format!("{}: the plan has no {} pass", self.entry, pass.name()));
        self.work.execute(pass, self.planned(pass).ok_or_else(missing)?, args)?;
        pool::refuse_if_stopped(self.entry)
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
