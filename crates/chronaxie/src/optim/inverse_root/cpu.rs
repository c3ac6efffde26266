//! Inverse roots on the CPU: a task takes every so-many-th matrix, by faer's eigenvalue solver or by Newton on its matrix
//! products, each on one thread: the bits do not depend on how many there are.
#![allow(unsafe_code)]

use super::op::NAME;
use super::spec::{InverseRoot, MOST_ITERATIONS, Method, RECORD, Status, WORST_RESIDUAL};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::pool::{for_each, num_threads};
use crate::rng::Rng;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use faer::diag::DiagMut;
use faer::dyn_stack::MemStack;
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, MatMut, MatRef, Par};
use std::mem::MaybeUninit;

pub(super) struct CpuPlan {
    problem: InverseRoot,
    signature: Signature,
    layout: Layout,
    /// Matrices of each task, and bytes for the eigenvalue solver.
    floats: RegionId,
    solver: RegionId,
    solver_bytes: usize,
    tasks: usize,
}

/// Matrices that a task works on besides the result.
const MATRICES: usize = 4;

impl CpuPlan {
    pub(super) fn new(problem: InverseRoot, options: &PlanOptions) -> Result<Self> {
        let n = problem.order;
        let tasks = problem.count.min(num_threads()).max(1);
        let need =
            self_adjoint_evd_scratch::<f32>(n, ComputeEigenvectors::Yes, Par::Seq, Default::default()).unaligned_bytes_required();
        let solver_bytes = need.next_multiple_of(256);
        let mut layout = Layout::new(options.scratch_gap);
        let floats = layout.push("matrices", Dtype::F32, tasks * (MATRICES * n * n + 2 * n))?;
        let solver = layout.push("solver", Dtype::U8, tasks * solver_bytes)?;
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, signature, layout, floats, solver, solver_bytes, tasks })
    }
}

/// Memory that tasks share, each its own part of it.
#[derive(Clone, Copy)]
struct Parts<T>(*mut T);

// SAFETY: each task uses only its own part.
unsafe impl<T> Send for Parts<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Parts<T> {}

impl<T> Parts<T> {
    /// # Safety
    /// `start .. start + len` must lie inside the memory and be used by one task only.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let method = if self.problem.method == Method::Newton { "newton" } else { "eigen" };
        format!("inverse_root cpu: {method}, a matrix a thread")
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = self.problem;
        let (n, size) = (p.order, p.order * p.order);
        let a: &[f32] = args.inputs[0].as_slice()?;
        let [root, record] = &mut *args.outputs else {
            return Err(Error::shape("inverse root: two tensors are written"));
        };
        let (root, record) = (Parts(root.as_mut_ptr::<f32>()?), Parts(record.as_mut_ptr::<f32>()?));
        // SAFETY: each region is carved once in this call.
        let (floats, solver): (&mut [f32], &mut [u8]) =
            unsafe { (self.layout.carve(&args.scratch, self.floats)?, self.layout.carve(&args.scratch, self.solver)?) };
        let (floats, solver) = (Parts(floats.as_mut_ptr()), Parts(solver.as_mut_ptr().cast::<MaybeUninit<u8>>()));
        let each = MATRICES * size + 2 * n;
        for_each(self.tasks, |task| {
            // SAFETY: the parts of this task.
            let (floats, solver) =
                unsafe { (floats.part(task * each, each), solver.part(task * self.solver_bytes, self.solver_bytes)) };
            for i in (task..p.count).step_by(self.tasks) {
                // SAFETY: matrix i and its record belong to this task.
                let (root, record) = unsafe { (root.part(i * size, size), record.part(i * RECORD, RECORD)) };
                one(&p, &a[i * size..(i + 1) * size], root, record, floats, solver);
            }
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}

/// What is written of a matrix beside its root.
struct Record {
    status: Status,
    iterations: usize,
    residual: f64,
}

fn one(p: &InverseRoot, a: &[f32], root: &mut [f32], record: &mut [f32], floats: &mut [f32], solver: &mut [MaybeUninit<u8>]) {
    let n = p.order;
    let (mean, rest) = floats.split_at_mut(n * n);
    for r in 0..n {
        for c in 0..n {
            mean[r * n + c] = 0.5 * (a[r * n + c] + a[c * n + r]);
        }
    }
    let norm = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let eps = p.damping_of(norm);
    let found = if !norm.is_finite() {
        None
    } else if p.method == Method::Newton {
        newton(p, mean, norm, eps, root, rest).or_else(|| eigen(p, mean, eps, root, rest, solver))
    } else {
        eigen(p, mean, eps, root, rest, solver)
    };
    let found = found.unwrap_or_else(|| {
        root.fill(f32::NAN);
        Record { status: Status::Failed, iterations: 0, residual: f64::NAN }
    });
    record.copy_from_slice(&[found.status as i32 as f32, found.iterations as f32, found.residual as f32, eps as f32]);
}

/// c = alpha a b of symmetric matrices that commute.
fn product(c: &mut [f32], a: &[f32], b: &[f32], alpha: f32, n: usize) {
    let lower = BlockStructure::TriangularLower;
    let all = BlockStructure::Rectangular;
    // By columns the lower triangle is the upper one by rows.
    matmul(
        MatMut::from_column_major_slice_mut(c, n, n),
        lower,
        Accum::Replace,
        MatRef::from_column_major_slice(a, n, n),
        all,
        MatRef::from_column_major_slice(b, n, n),
        all,
        alpha,
        Par::Seq,
    );
    mirror(c, n);
}

/// The other triangle of a matrix of which columns below the diagonal were made.
fn mirror(c: &mut [f32], n: usize) {
    for r in 0..n {
        for k in 0..r {
            c[r * n + k] = c[k * n + r];
        }
    }
}

fn eigen(
    p: &InverseRoot,
    a: &[f32],
    eps: f64,
    root: &mut [f32],
    rest: &mut [f32],
    solver: &mut [MaybeUninit<u8>],
) -> Option<Record> {
    let n = p.order;
    let (vectors, rest) = rest.split_at_mut(n * n);
    let (values, rest) = rest.split_at_mut(n);
    let w = &mut rest[..n * n];
    self_adjoint_evd(
        MatRef::from_column_major_slice(a, n, n),
        DiagMut::from_slice_mut(values),
        Some(MatMut::from_column_major_slice_mut(vectors, n, n)),
        Par::Seq,
        MemStack::new(solver),
        Default::default(),
    )
    .ok()?;
    let least = values.iter().map(|&x| f64::from(x)).fold(f64::INFINITY, f64::min);
    let shifted = least + eps < 0.5 * eps;
    let shift = if shifted { eps - least } else { eps };
    let power = -0.5 * f64::from(p.numerator) / f64::from(p.denominator);
    for (k, (from, to)) in vectors.chunks_exact(n.max(1)).zip(w.chunks_exact_mut(n.max(1))).enumerate() {
        let damped = f64::from(values[k]) + shift;
        if damped.is_nan() || damped <= 0.0 {
            return None;
        }
        let scale = damped.powf(power) as f32;
        to.iter_mut().zip(from).for_each(|(to, from)| *to = scale * from);
    }
    matmul(
        MatMut::from_column_major_slice_mut(&mut *root, n, n),
        BlockStructure::TriangularLower,
        Accum::Replace,
        MatRef::from_column_major_slice(&*w, n, n),
        BlockStructure::Rectangular,
        MatRef::from_column_major_slice(&*w, n, n).transpose(),
        BlockStructure::Rectangular,
        1.0,
        Par::Seq,
    );
    mirror(root, n);
    let status = if shifted { Status::Shifted } else { Status::Eigen };
    let finite = root.iter().all(|x| x.is_finite());
    finite.then(|| Record { status, iterations: 0, residual: residual(p, a, shift, root) })
}

/// ||(A + shift I)^q X^p z - z|| / ||z|| of a vector z of signs.
fn residual(p: &InverseRoot, a: &[f32], shift: f64, root: &[f32]) -> f64 {
    let n = p.order;
    let mut rng = Rng::new(0x726f_6f74, n as u64);
    let z: Vec<f64> = (0..n).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    let times = |m: &[f32], x: &[f64], shift: f64| -> Vec<f64> {
        let dot = |r: usize| m[r * n..(r + 1) * n].iter().zip(x).map(|(&m, x)| f64::from(m) * x).sum::<f64>();
        (0..n).map(|r| dot(r) + shift * x[r]).collect()
    };
    let mut x = z.clone();
    // In turn, so that nothing grows out of range.
    let (mut roots, mut powers) = (0, 0);
    while roots < p.denominator || powers < p.numerator {
        if roots * p.numerator <= powers * p.denominator && roots < p.denominator {
            x = times(root, &x, 0.0);
            roots += 1;
        } else {
            x = times(a, &x, shift);
            powers += 1;
        }
    }
    let off: f64 = x.iter().zip(&z).map(|(x, z)| (x - z) * (x - z)).sum();
    (off / n.max(1) as f64).sqrt()
}

fn newton(p: &InverseRoot, a: &[f32], norm: f64, eps: f64, root: &mut [f32], rest: &mut [f32]) -> Option<Record> {
    let n = p.order;
    let root_of = f64::from(p.denominator);
    let (mut m, rest) = rest.split_at_mut(n * n);
    let (mut t, rest) = rest.split_at_mut(n * n);
    let mut spare = &mut rest[..n * n];
    // Both bound the largest eigenvalue.
    let rows = a.chunks_exact(n.max(1)).map(|r| r.iter().map(|x| f64::from(x.abs())).sum::<f64>());
    let scale = norm.min(rows.fold(0.0, f64::max)) + eps;
    if scale <= 0.0 {
        return (n == 0).then_some(Record { status: Status::Newton, iterations: 0, residual: 0.0 });
    }
    let z = (root_of + 1.0) / (2.0 * scale);
    root.fill(0.0);
    for k in 0..n {
        root[k * n + k] = z.powf(1.0 / root_of) as f32;
    }
    for (e, (m, &a)) in m.iter_mut().zip(a).enumerate() {
        *m = (z * (f64::from(a) + if e / n == e % n { eps } else { 0.0 })) as f32;
    }
    let distance = |m: &[f32]| {
        let one = |e: usize, x: f32| (x - if e / n == e % n { 1.0 } else { 0.0 }).abs();
        m.iter().enumerate().map(|(e, &x)| one(e, x)).fold(0.0, |a: f32, b| if b.is_nan() { b } else { a.max(b) })
    };
    let (mut error, mut iterations) = (distance(m), 0);
    let (on_diagonal, slope) = ((1.0 + 1.0 / root_of) as f32, (-1.0 / root_of) as f32);
    while iterations < MOST_ITERATIONS {
        for (e, (t, &m)) in t.iter_mut().zip(&*m).enumerate() {
            *t = slope * m + if e / n == e % n { on_diagonal } else { 0.0 };
        }
        product(spare, root, t, 1.0, n);
        // Kept until the next residual is known.
        let mut power = p.denominator;
        let mut next = spare;
        let kept: Vec<f32> = root.to_vec();
        root.copy_from_slice(next);
        loop {
            if power & 1 == 1 {
                product(next, t, m, 1.0, n);
                std::mem::swap(&mut next, &mut m);
            }
            power >>= 1;
            if power == 0 {
                break;
            }
            product(next, t, t, 1.0, n);
            std::mem::swap(&mut next, &mut t);
        }
        spare = next;
        iterations += 1;
        let now = distance(m);
        if now.is_nan() {
            return None;
        }
        // What no longer falls has come to what f32 can do.
        if error < 0.5 && now >= 0.9 * error {
            if now > error {
                root.copy_from_slice(&kept);
            }
            error = error.min(now);
            break;
        }
        error = now;
    }
    let finite = root.iter().all(|x| x.is_finite());
    let good = finite && f64::from(error) <= WORST_RESIDUAL;
    good.then_some(Record { status: Status::Newton, iterations, residual: f64::from(error) })
}
