//! Launches of eigenvectors: by groups of blocks, or by cuSOLVER's batched solver where that is the faster way, and behind it by them for what
//! it has not solved.
#![allow(unsafe_code)]

use super::op::{Eigh, NAME};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::kernels::{MEET, SUMS};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::jacobi::{self, EIGENBASIS, JACOBI, Jacobi};
use crate::optim::ongpu::Visit;
use crate::optim::solver::{self, Batched, Piece, Region};
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
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

/// What puts the solver on its stream, for the matrices of a piece.
type Solve<'a> = &'a mut dyn FnMut(&Batched, Piece) -> Result<()>;

/// cuSOLVER, and the kernels around it.
struct Solver {
    solver: Batched,
    begin: Jacobi,
    end: Kernel,
    /// Powers of two of a piece.
    scales: RegionId,
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
        let mut layout = Layout::new(options.scratch_gap);
        let solver = match asked {
            true => Batched::new(NAME, variant.is_some(), [count, n], device, &mut layout)?,
            false => None,
        };
        let around = |solver: Batched| {
            Ok::<_, Error>(Solver {
                begin: Jacobi::new(device, &specialisation(), "eigh_begin", solver.piece(), n)?,
                end: device.kernel(&specialisation(), "eigh_end")?,
                scales: layout.push("scales", Dtype::F64, solver.piece())?,
                solver,
            })
        };
        let solver = solver.map(around).transpose()?;
        let eigen = Jacobi::new(device, &specialisation(), "eigh", count, n)?;
        let most = |of: &dyn Fn(&Solver) -> usize| solver.as_ref().map_or(0, of);
        let (matrices, counters) = (most(&|s| s.solver.piece() * n * n), most(&|s| s.begin.counters()));
        let work = layout.push("work", Dtype::F64, eigen.work().max(matrices))?;
        let lengths = layout.push("lengths", Dtype::F64, eigen.groups() * n)?;
        let counters = layout.push("counters", Dtype::I32, eigen.counters().max(counters))?;
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, device: device.clone(), signature, layout, eigen, solver, work, lengths, counters })
    }

    /// Every launch, in order; `solve` puts the solver behind what has prepared a piece.
    fn each(
        &self,
        [a, values, vectors]: [u64; 3],
        region: Region<'_>,
        solve: Solve<'_>,
        visit: Visit<'_>,
    ) -> Result<()> {
        let (count, n) = (self.problem.count, self.problem.order);
        let order = Arg::I32(n as i32);
        let own = [region(self.work), region(self.counters)];
        for (s, (first, many)) in self.solver.iter().flat_map(|s| s.solver.pieces().map(move |piece| (s, piece))) {
            let [found, info] = s.solver.found(first, region).map(Arg::U64);
            let scales = Arg::U64(region(s.scales));
            let matrices = 4 * (first * n * n) as u64;
            let of = [found, scales, Arg::U64(a + matrices), Arg::I64(many as i64), order];
            s.begin.launch(own, false, &of, visit)?;
            solve(&s.solver, (first, many))?;
            let to = [values + 4 * (first * n) as u64, vectors + matrices].map(Arg::U64);
            let list = [Arg::U64(own[0]), found, scales, info, to[0], to[1], Arg::I64(many as i64), order];
            let across = (n * n).div_ceil(THREADS as usize).min(ACROSS) as u32;
            visit(&s.end, LaunchConfig::new((across, many.min(DOWN) as u32, 1), (THREADS, 1, 1)), &list)?;
        }
        let info = self.solver.as_ref().map_or(0, |s| s.solver.found(0, region)[1]);
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
        let mut solve = |solver: &Batched, piece: Piece| {
            // SAFETY: the scratch holds the layout, where `work` has room for a piece.
            unsafe { solver.run(NAME, stream, piece, region(self.work), &region) }
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
        self.each([0; 3], &|_| 0, &mut |_, _| Ok(()), &mut |kernel, c, _| {
            all.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
            Ok(())
        })?;
        Ok(all)
    }
}
