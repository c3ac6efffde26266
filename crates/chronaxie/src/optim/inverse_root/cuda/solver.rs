//! Launches of solver.cu: inverse roots by eigenvalues that cuSOLVER's batched solver finds.

use super::by_newton;
use crate::Result;
use crate::cuda::{Arg, CudaDevice, KernelSource, Specialisation, StreamRef};
use crate::op::LaunchReport;
use crate::optim::inverse_root::spec::InverseRoot;
use crate::optim::jacobi::{self, Jacobi};
use crate::optim::solver::{self, Batched};
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

/// Where things lie in the workspace, by f64 from its beginning, and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    values: usize,
    known: usize,
    vectors: usize,
    scaled: usize,
    info: usize,
    memory: usize,
    end: usize,
}

impl Places {
    fn new(piece: usize, order: usize, groups: usize, bytes: usize) -> Self {
        let mut at = piece * order * order;
        let mut next = |len: usize| {
            let here = at.next_multiple_of(32);
            at = here + len;
            here
        };
        let values = next(piece * order);
        let known = next(2 * piece);
        let vectors = next(2 * groups * order);
        let scaled = next((groups * order * order).div_ceil(2));
        let info = next(piece.div_ceil(2));
        let memory = next(bytes.div_ceil(8));
        Self { values, known, vectors, scaled, info, memory, end: memory + bytes.div_ceil(8) }
    }
}

/// The kernels around the solver, for so many matrices at a time.
pub(super) struct Solver {
    solver: Batched,
    begin: Jacobi,
    end: Jacobi,
    places: Places,
}

impl Solver {
    pub(super) fn new(p: &InverseRoot, device: &Arc<CudaDevice>) -> Result<Self> {
        let solver = Batched::new(p.count, p.order, device)?;
        let kernel = |entry| Jacobi::new(device, &specialisation(), entry, solver.piece, p.order);
        let (begin, end) = (kernel("solver_begin")?, kernel("solver_end")?);
        let places = Places::new(solver.piece, p.order, end.groups(), solver.bytes);
        Ok(Self { solver, begin, end, places })
    }
    /// Numbers of f64 of its workspace.
    pub(super) fn work(&self) -> usize {
        self.places.end
    }
    /// Counters, of 32 bits.
    pub(super) fn counters(&self) -> usize {
        self.begin.counters().max(self.end.counters())
    }
    pub(super) fn config(&self) -> String {
        format!("inverse_root cusolver: eigen, {}; {}", self.solver.config(), self.end.config())
    }
    pub(super) fn reports(&self, p: &InverseRoot) -> Result<Vec<LaunchReport>> {
        let mut list = Vec::new();
        for _ in 0..p.count.div_ceil(self.solver.piece) {
            for of in [&self.begin, &self.end] {
                of.launch([0; 2], false, &[], &mut |kernel, c, _| {
                    list.push(LaunchReport::new(kernel, 1, c.grid, c.block, c.shared_bytes)?);
                    Ok(())
                })?;
            }
        }
        Ok(list)
    }
    /// Puts the roots of all matrices on `stream`: the addresses of a, the roots and their records, of the workspace and of counters.
    pub(super) fn launch(
        &self,
        p: &InverseRoot,
        tensors: [u64; 3],
        [work, counters]: [u64; 2],
        stream: StreamRef,
    ) -> Result<()> {
        let (n, at) = (p.order, &self.places);
        self.solver.can_go_to(p.entry, stream)?;
        let [values, known, vectors, scaled, info, memory] =
            [at.values, at.known, at.vectors, at.scaled, at.info, at.memory].map(|at| work + 8 * at as u64);
        for first in (0..p.count).step_by(self.solver.piece) {
            let count = self.solver.piece.min(p.count - first);
            let matrices = 4 * (first * n * n) as u64;
            let [a, root, record] =
                [tensors[0] + matrices, tensors[1] + matrices, tensors[2] + 16 * first as u64].map(Arg::U64);
            let (many, order) = (Arg::I64(count as i64), Arg::I32(n as i32));
            let own = [Arg::U64(values), Arg::U64(known), a, many, order, Arg::F64(p.absolute), Arg::F64(p.relative)];
            self.begin.launch([work, counters], false, &own, &mut |kernel, config, list| {
                // SAFETY: the arguments are those of the kernels' signatures in solver.cu and jacobi.cuh; the caller's tensors were checked
                // against the signature, and the workspace holds what `places` says.
                unsafe { kernel.launch(stream, &config, list) }
            })?;
            // SAFETY: as above; the workspace has room for `piece` matrices, their eigenvalues, what is said of them and `bytes`.
            unsafe { self.solver.run(p.entry, stream, count, [work, values, info, memory])? };
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

    #[test]
    fn places_follow_each_other() {
        let p = Places::new(3, 5, 2, 17);
        assert_eq!(p, Places { values: 96, known: 128, vectors: 160, scaled: 192, info: 224, memory: 256, end: 259 });
    }
}
