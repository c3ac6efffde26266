//! Launches of eigenvectors: by groups of blocks, or by cuSOLVER's batched solver where that is the faster way, and behind it by them for what
//! it has not solved.
#![allow(unsafe_code)]

use super::op::{Eigh, NAME};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::kernels::{MEET, SUMS};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::jacobi::{self, EIGENBASIS, JACOBI, Jacobi};
use crate::optim::ongpu::Visit;
use crate::optim::solver::{self, Batched};
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use chronaxie_runtime::log;
use std::sync::Arc;

/// As `kJacobiThreads`.
const THREADS: u32 = 128;
/// Blocks that carry a matrix over, and matrices side by side.
const ACROSS: usize = 16;
const DOWN: usize = 4096;

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/eigh/cuda/eigh.cu", include_str!("eigh.cu"));
    let mut spec = Specialisation::new(source, &[jacobi::CLEAR, "eigh", "eigh_begin", "eigh_end"]);
    spec.headers = &[MEET, SUMS, JACOBI, EIGENBASIS];
    spec
}

/// cuSOLVER, and the kernels around it.
struct Solver {
    solver: Batched,
    begin: Jacobi,
    end: Kernel,
    /// Eigenvalues, powers of two and what has failed of a piece, and memory.
    found: RegionId,
    scales: RegionId,
    info: RegionId,
    memory: RegionId,
}

pub(super) struct CudaPlan {
    problem: Eigh,
    device: Arc<CudaDevice>,
    signature: Signature,
    layout: Layout,
    eigen: Jacobi,
    solver: Option<Solver>,
    work: RegionId,
    lengths: RegionId,
    counters: RegionId,
}

impl CudaPlan {
    pub(super) fn new(problem: Eigh, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let (count, n) = (problem.count, problem.order);
        let variant = options.variant.as_deref();
        let asked = match variant {
            None => solver::is_better(count, n),
            Some("simt") => false,
            Some("cusolver") if count > 0 && n > 0 => true,
            Some("cusolver") => return Err(Error::config(format!("{NAME}: variant cusolver takes no empty batch"))),
            Some(other) => {
                return Err(Error::config(format!("{NAME}: variant `{other}` is not one of simt, cusolver, on CUDA")));
            }
        };
        let batched = match asked.then(|| Batched::new(count, n, device)).transpose() {
            // Nobody asked for it.
            Err(e) if variant.is_none() => {
                log::info(format_args!("{NAME}: eigenvectors are found without cuSOLVER: {e}"));
                None
            }
            made => made?,
        };
        let eigen = Jacobi::new(device, &specialisation(), "eigh", count, n)?;
        let begin =
            batched.as_ref().map(|b| Jacobi::new(device, &specialisation(), "eigh_begin", b.piece, n)).transpose()?;
        let mut layout = Layout::new(options.scratch_gap);
        let matrices = batched.as_ref().map_or(0, |b| b.piece * n * n);
        let work = layout.push("work", Dtype::F64, eigen.work().max(matrices))?;
        let lengths = layout.push("lengths", Dtype::F64, eigen.groups() * n)?;
        let of_begin = begin.as_ref().map_or(0, Jacobi::counters);
        let counters = layout.push("counters", Dtype::I32, eigen.counters().max(of_begin))?;
        let solver = match batched.zip(begin) {
            None => None,
            Some((solver, begin)) => Some(Solver {
                found: layout.push("eigenvalues", Dtype::F64, solver.piece * n)?,
                scales: layout.push("scales", Dtype::F64, solver.piece)?,
                info: layout.push("info", Dtype::I32, count)?,
                memory: layout.push("memory", Dtype::F64, solver.bytes.div_ceil(8))?,
                end: device.kernel(&specialisation(), "eigh_end")?,
                solver,
                begin,
            }),
        };
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, device: device.clone(), signature, layout, eigen, solver, work, lengths, counters })
    }

    /// Every launch, in order; `solve` puts the solver behind what has prepared so many matrices, and says 0 of them where `info` begins.
    fn each(
        &self,
        [a, values, vectors]: [u64; 3],
        region: &dyn Fn(RegionId) -> u64,
        solve: &mut dyn FnMut(&Solver, usize, u64) -> Result<()>,
        visit: Visit<'_>,
    ) -> Result<()> {
        let (count, n) = (self.problem.count, self.problem.order);
        let order = Arg::I32(n as i32);
        let own = [region(self.work), region(self.counters)];
        let pieces = self.solver.iter().flat_map(|s| (0..count).step_by(s.solver.piece).map(move |first| (s, first)));
        for (s, first) in pieces {
            let many = s.solver.piece.min(count - first);
            let [found, scales] = [s.found, s.scales].map(|id| Arg::U64(region(id)));
            let info = region(s.info) + 4 * first as u64;
            let matrices = 4 * (first * n * n) as u64;
            let of = [found, scales, Arg::U64(a + matrices), Arg::I64(many as i64), order];
            s.begin.launch(own, false, &of, visit)?;
            solve(s, many, info)?;
            let to = [values + 4 * (first * n) as u64, vectors + matrices].map(Arg::U64);
            let list = [Arg::U64(own[0]), found, scales, Arg::U64(info), to[0], to[1], Arg::I64(many as i64), order];
            let across = (n * n).div_ceil(THREADS as usize).min(ACROSS) as u32;
            visit(&s.end, LaunchConfig::new((across, many.min(DOWN) as u32, 1), (THREADS, 1, 1)), &list)?;
        }
        let info = self.solver.as_ref().map_or(0, |s| region(s.info));
        let list = [
            Arg::U64(region(self.lengths)),
            Arg::U64(a),
            Arg::U64(values),
            Arg::U64(vectors),
            Arg::U64(info),
            Arg::I64(count as i64),
            order,
        ];
        self.eigen.launch(own, false, &list, visit)
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        match &self.solver {
            Some(s) => format!("{NAME} cusolver: {}", s.solver.config()),
            None => format!("{NAME} simt: {}", self.eigen.config()),
        }
    }
    fn variant(&self) -> &'static str {
        if self.solver.is_some() { "cusolver" } else { "simt" }
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        if self.problem.count == 0 || self.problem.order == 0 {
            return Ok(());
        }
        let (base, stream) = (args.scratch.address(), args.stream);
        let region = |id| self.layout.address(base, id);
        if let Some(s) = &self.solver {
            s.solver.can_go_to(NAME, stream)?;
        }
        let mut solve = |s: &Solver, many: usize, info: u64| {
            let at = [region(self.work), region(s.found), info, region(s.memory)];
            // SAFETY: the scratch holds the layout, whose regions have room for a piece, and `info` for all.
            unsafe { s.solver.run(NAME, stream, many, at) }
        };
        let tensors = [args.inputs[0].address(), args.outputs[0].address(), args.outputs[1].address()];
        self.each(tensors, &region, &mut solve, &mut |kernel, config, list| {
            // SAFETY: the arguments are those of the kernels' signatures in eigh.cu and jacobi.cuh; the views were checked against the
            // signature and the scratch holds the layout.
            unsafe { kernel.launch(stream, &config, list) }
        })
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut all = Vec::new();
        if self.problem.count == 0 || self.problem.order == 0 {
            return Ok(all);
        }
        self.each([0; 3], &|_| 0, &mut |_, _, _| Ok(()), &mut |kernel, c, _| {
            all.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        })?;
        Ok(all)
    }
}
