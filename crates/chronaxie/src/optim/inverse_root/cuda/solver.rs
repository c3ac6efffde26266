//! Launches of solver.cu: inverse roots by eigenvalues that cuSOLVER's batched solver finds.

use super::by_newton;
use crate::cuda::{Arg, CudaDevice, KernelSource, Specialisation, StreamRef};
use crate::op::LaunchReport;
use crate::optim::inverse_root::spec::InverseRoot;
use crate::optim::jacobi::{self, Jacobi};
use crate::optim::solver::{self, Batched, Region};
use crate::{Dtype, Layout, RegionId, Result};
use std::sync::Arc;

pub(super) fn specialisation() -> Specialisation {
    let source = KernelSource::embedded("optim/inverse_root/cuda/solver.cu", include_str!("solver.cu"));
    let mut spec = Specialisation::new(source, &[jacobi::CLEAR, "solver_begin", "solver_end"]);
    spec.headers = super::eigen::HEADERS;
    spec
}

/// Whether the solver is the faster way.
pub(super) fn is_better(p: &InverseRoot) -> bool {
    !by_newton(p) && solver::is_better(p.count, p.order)
}

/// Whether it takes this problem, or why not.
pub(super) fn takes(p: &InverseRoot) -> std::result::Result<(), String> {
    match () {
        () if by_newton(p) => Err("takes method eigen, or exponents -q/p".to_owned()),
        () if p.count == 0 || p.order == 0 => Err("takes no empty batch".to_owned()),
        () => Ok(()),
    }
}

/// The kernels around the solver.
pub(super) struct Solver {
    solver: Batched,
    begin: Jacobi,
    end: Jacobi,
    /// Damping and the power of two of each matrix of a piece; of each group two vectors, f64, and a matrix, f32.
    known: RegionId,
    vectors: RegionId,
    scaled: RegionId,
}

impl Solver {
    /// None where it would be taken by itself and is not there.
    pub(super) fn new(
        p: &InverseRoot,
        by_name: bool,
        device: &Arc<CudaDevice>,
        layout: &mut Layout,
    ) -> Result<Option<Self>> {
        let n = p.order;
        let Some(solver) = Batched::new(p.entry, by_name, [p.count, n], device, layout)? else { return Ok(None) };
        let kernel = |entry| Jacobi::new(device, &specialisation(), entry, solver.piece(), n);
        let (begin, end) = (kernel("solver_begin")?, kernel("solver_end")?);
        Ok(Some(Self {
            known: layout.push("damping and scales", Dtype::F64, 2 * solver.piece())?,
            vectors: layout.push("vectors", Dtype::F64, 2 * end.groups() * n)?,
            scaled: layout.push("scaled", Dtype::F32, end.groups() * n * n)?,
            solver,
            begin,
            end,
        }))
    }
    /// Numbers of f64 of the matrices that it works on.
    pub(super) fn work(&self, p: &InverseRoot) -> usize {
        self.solver.piece() * p.order * p.order
    }
    /// Counters, of 32 bits.
    pub(super) fn counters(&self) -> usize {
        self.begin.counters().max(self.end.counters())
    }
    pub(super) fn config(&self) -> String {
        format!("inverse_root cusolver: eigen, {}; {}", self.solver.config(), self.end.config())
    }
    pub(super) fn reports(&self) -> Result<Vec<LaunchReport>> {
        let mut list = Vec::new();
        for _ in self.solver.pieces() {
            for of in [&self.begin, &self.end] {
                of.launch([0; 2], false, &[], &mut |kernel, c, _| {
                    list.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
                    Ok(())
                })?;
            }
        }
        Ok(list)
    }
    /// Puts the roots of all matrices on `stream`: the addresses of a, the roots and their records, and of workspace and counters.
    pub(super) fn launch(
        &self,
        p: &InverseRoot,
        tensors: [u64; 3],
        [work, counters]: [u64; 2],
        region: Region<'_>,
        stream: StreamRef,
    ) -> Result<()> {
        let n = p.order;
        self.solver.can_go_to(p.entry, stream)?;
        let [known, vectors, scaled] = [self.known, self.vectors, self.scaled].map(region);
        for (first, count) in self.solver.pieces() {
            let [values, info] = self.solver.found(first, region);
            let matrices = 4 * (first * n * n) as u64;
            let [a, root, record] =
                [tensors[0] + matrices, tensors[1] + matrices, tensors[2] + 16 * first as u64].map(Arg::U64);
            let (many, order) = (Arg::I64(count as i64), Arg::I32(n as i32));
            let own = [Arg::U64(values), Arg::U64(known), a, many, order, Arg::F64(p.absolute), Arg::F64(p.relative)];
            self.begin.launch([work, counters], false, &own, &mut |kernel, config, list| {
                // SAFETY: the arguments are those of the kernels' signatures in solver.cu and jacobi.cuh; the caller's tensors were checked
                // against the signature, and the scratch holds the layout.
                unsafe { kernel.launch(stream, &config, list) }
            })?;
            // SAFETY: as above; the workspace has room for a piece.
            unsafe { self.solver.run(p.entry, stream, (first, count), work, region)? };
            let own = [
                Arg::U64(values),
                Arg::U64(known),
                Arg::U64(info),
                Arg::U64(scaled),
                Arg::U64(vectors),
                a,
                root,
                record,
                many,
                order,
                Arg::I32(p.numerator as i32),
                Arg::I32(p.denominator as i32),
            ];
            self.end.launch([work, counters], false, &own, &mut |kernel, config, list| {
                // SAFETY: as above.
                unsafe { kernel.launch(stream, &config, list) }
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::inverse_root::spec::Method;

    #[test]
    fn newtons_iteration_is_faster() {
        let p = InverseRoot::new(600, 64, 4);
        assert!(!is_better(&p) && is_better(&p.method(Method::Eigen)) && is_better(&p.exponent(2, 3)));
    }
}
