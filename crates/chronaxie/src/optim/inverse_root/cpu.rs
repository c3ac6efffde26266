//! Inverse roots on the CPU: where there are as many matrices as threads each thread takes its own, else all of them share the
//! products of one. The bits do not depend on how many there are.
//!
//! The iteration is that of cuda/newton.cuh, of order 5, and where it does not converge Newton's. A product is half of n^3 multiply-adds:
//! 64 x 128^2 at p = 4 and a condition number of 34 are 18 products, 2.4 GFLOP, 4 x 1024^2 77 GFLOP; `tile.rs` says what a core does.
//! By Newton alone, from a bound of the largest eigenvalue that is several times that, 4 x 1024^2 were 44.
#![allow(unsafe_code)]

use super::spec::{InverseRoot, MOST_ITERATIONS, Method, RECORD, Status, WORST_RESIDUAL};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::matrix::{self, packing, product};
use crate::optim::stepper;
use crate::pool::{for_each, num_threads};
use crate::rng::Rng;
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

pub(super) struct CpuPlan {
    problem: InverseRoot,
    signature: Signature,
    layout: Layout,
    /// Of each task.
    floats: RegionId,
    each: usize,
    tasks: usize,
}

/// Matrices that a task works on besides the result.
const MATRICES: usize = 6;
/// Iterations of order 5 at most, as `kMostIterations` in newton.cuh, and what is enough of the root, relative: a third of f32's rounding.
const MOST_DEEP: usize = 24;
const ENOUGH: f64 = 2e-8;
/// Steps of the power method, whose estimate of the largest eigenvalue is at least nine tenths of that but for odd vectors, and what that
/// becomes in M: up to 1.75 of it the iteration converges.
const POWER_STEPS: usize = 16;
const LARGEST: f64 = 1.55;

/// Floats that [`one`] works in.
pub(crate) fn floats(n: usize) -> usize {
    MATRICES * n * n + packing(n)
}

impl CpuPlan {
    pub(super) fn new(problem: InverseRoot, options: &PlanOptions) -> Result<Self> {
        options.only("simd", problem.entry, "the CPU")?;
        let n = problem.order;
        let threads = num_threads();
        let tasks = if problem.count < threads { 1 } else { threads };
        let each = floats(n);
        let mut layout = Layout::new(options.scratch_gap);
        let floats = layout.push("matrices", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, signature, layout, floats, each, tasks })
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        self.problem.entry
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let method = if by_newton(&self.problem) { "newton" } else { "eigen" };
        let threads = if self.tasks > 1 { "a matrix a thread" } else { "all threads on a matrix" };
        format!("inverse_root cpu: {method}, {threads}")
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = self.problem;
        let size = p.order * p.order;
        let a: &[f32] = args.inputs[0].as_slice()?;
        let [root, record] = &mut *args.outputs else {
            return Err(Error::shape("inverse root: two tensors are written"));
        };
        let (root, record) = (Shared::new(root.as_mut_slice::<f32>()?), Shared::new(record.as_mut_slice::<f32>()?));
        // SAFETY: the region is carved once in this call.
        let floats: &mut [f32] = unsafe { self.layout.carve(&args.scratch, self.floats)? };
        let floats = Shared::new(floats);
        let work = |task: usize, threads: bool| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            for i in (task..p.count).step_by(self.tasks) {
                // SAFETY: matrix i and its record belong to this task.
                let (root, record) = unsafe { (root.part(i * size, size), record.part(i * RECORD, RECORD)) };
                one(&p, &a[i * size..(i + 1) * size], root, record, floats, threads);
            }
        };
        if self.tasks > 1 {
            for_each(self.tasks, |task| work(task, false));
        } else {
            work(0, true);
        }
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

fn by_newton(p: &InverseRoot) -> bool {
    p.numerator == 1 && p.method != Method::Eigen
}

/// The root of one matrix and its record.
pub(crate) fn one(p: &InverseRoot, a: &[f32], root: &mut [f32], record: &mut [f32], floats: &mut [f32], threads: bool) {
    let n = p.order;
    let (mean, rest) = floats.split_at_mut(n * n);
    matrix::by_squares(n, |rows, columns| {
        for c in columns {
            for r in rows.clone() {
                let x = 0.5 * (a[r * n + c] + a[c * n + r]);
                (mean[r * n + c], mean[c * n + r]) = (x, x);
            }
        }
    });
    let norm = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let eps = p.damping_of(norm);
    let found = if !norm.is_finite() {
        None
    } else if by_newton(p) {
        deep(p, mean, eps, root, rest, threads)
            .or_else(|| newton(p, mean, norm, eps, root, rest, threads))
            .or_else(|| eigen(p, mean, eps, root, rest, threads))
    } else {
        eigen(p, mean, eps, root, rest, threads)
    };
    let found = found.unwrap_or_else(|| {
        root.fill(f32::NAN);
        Record { status: Status::Failed, iterations: 0, residual: f64::NAN }
    });
    record.copy_from_slice(&[found.status as i32 as f32, found.iterations as f32, found.residual as f32, eps as f32]);
}

fn eigen(p: &InverseRoot, a: &[f32], eps: f64, root: &mut [f32], rest: &mut [f32], threads: bool) -> Option<Record> {
    let n = p.order;
    let (values, vectors) = matrix::eigen(a, n)?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let shifted = least + eps < 0.5 * eps;
    let shift = if shifted { eps - least } else { eps };
    let power = -0.5 * f64::from(p.numerator) / f64::from(p.denominator);
    let (w, pack) = rest.split_at_mut(n * n);
    for ((value, from), to) in values.iter().zip(vectors.chunks_exact(n.max(1))).zip(w.chunks_exact_mut(n.max(1))) {
        let damped = value + shift;
        if damped.is_nan() || damped <= 0.0 {
            return None;
        }
        let scale = damped.powf(power);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = (scale * from) as f32);
    }
    product(root, w, w, n, pack, threads);
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

/// Calls `f` for each row of `to`, on all threads where there are many.
fn by_rows(to: &mut [f32], n: usize, threads: bool, f: impl Fn(usize, &mut [f32]) + Sync) {
    const BAND: usize = 32;
    let each = |(band, rows): (usize, &mut [f32])| {
        rows.chunks_exact_mut(n).enumerate().for_each(|(r, row)| f(band * BAND + r, row));
    };
    if threads {
        let len = to.len();
        let to = Shared::new(to);
        for_each(n.div_ceil(BAND), |band| {
            let first = band * BAND * n;
            // SAFETY: the rows of this band.
            each((band, unsafe { to.part(first, len.min(first + BAND * n) - first) }));
        });
    } else {
        to.chunks_mut(BAND * n).enumerate().for_each(each);
    }
}

/// The length of A z behind some steps of the power method, z of unit length from signs.
fn largest(a: &[f32], n: usize, shift: f64) -> f64 {
    let mut rng = Rng::new(0x6c61_7267, n as u64);
    let mut z: Vec<f32> = (0..n).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    let mut length = 0.0;
    for _ in 0..POWER_STEPS {
        let by = 1.0 / z.iter().map(|&z| f64::from(z) * f64::from(z)).sum::<f64>().sqrt();
        z.iter_mut().for_each(|z| *z = (f64::from(*z) * by) as f32);
        // Of symmetric A the sum of rows, which needs no sum across lanes.
        let mut to: Vec<f32> = z.iter().map(|z| (shift * f64::from(*z)) as f32).collect();
        for (row, &z) in a.chunks_exact(n).zip(&z) {
            to.iter_mut().zip(row).for_each(|(to, a)| *to += z * a);
        }
        length = to.iter().map(|&z| f64::from(z) * f64::from(z)).sum::<f64>().sqrt();
        z = to;
    }
    length
}

/// `E = I - M`, `Y <- Y T`, `M <- T^p M` with four terms in E of `T = (I - E)^(-1/p)`, as cuda/newton.cuh has it; none where it does
/// not converge.
fn deep(p: &InverseRoot, a: &[f32], eps: f64, y: &mut [f32], rest: &mut [f32], threads: bool) -> Option<Record> {
    let n = p.order;
    if n == 0 {
        return Some(Record { status: Status::Newton, iterations: 0, residual: 0.0 });
    }
    let root_of = f64::from(p.denominator);
    let mut c = [1.0; 6];
    (0..5).for_each(|i| c[i + 1] = c[i] * (1.0 / root_of + i as f64) / (i + 1) as f64);
    let zeta = LARGEST / largest(a, n, eps);
    if !zeta.is_finite() || zeta <= 0.0 {
        return None;
    }
    let (matrices, pack) = rest.split_at_mut(5 * n * n);
    let mut matrices = matrices.chunks_exact_mut(n * n);
    let mut next = || matrices.next().unwrap_or_default();
    let (mut m, e, mut one, mut two, three) = (next(), next(), next(), next(), next());
    by_rows(m, n, threads, |r, row| {
        row.iter_mut().zip(&a[r * n..]).for_each(|(m, &a)| *m = (zeta * f64::from(a)) as f32);
        row[r] = (zeta * (f64::from(a[r * n + r]) + eps)) as f32;
    });
    let mut before = f64::INFINITY;
    let mut iterations = 0;
    let residual = loop {
        by_rows(e, n, threads, |r, row| {
            row.iter_mut().zip(&m[r * n..]).for_each(|(e, m)| *e = -m);
            row[r] = 1.0 - m[r * n + r];
        });
        let mut squares = 0.0;
        stepper::squares(e, &mut squares);
        let now = squares.sqrt();
        // Only an eigenvalue below 0, or roundings of one that is as good as 0, takes E further from 0; NaN ends it too.
        let falls = now <= (1.001 * before).min(1e4);
        if !falls || iterations == MOST_DEEP {
            return None;
        }
        // What the terms that are left out leave of the root.
        let left = |terms: usize| c[terms + 1] * now.powi(terms as i32 + 1);
        let terms = [1, 2].into_iter().find(|&terms| left(terms) <= ENOUGH).unwrap_or(4);
        let last = left(terms) <= ENOUGH;
        let [_, c1, c2, c3, c4, _] = c.map(|c| c as f32);
        // F = T - I.
        if terms == 1 {
            by_rows(three, n, threads, |r, row| row.iter_mut().zip(&e[r * n..]).for_each(|(f, e)| *f = c1 * e));
        } else {
            product(one, e, e, n, pack, threads);
            if terms == 2 {
                let of = |r: usize| e[r * n..].iter().zip(&one[r * n..]);
                by_rows(three, n, threads, |r, row| {
                    row.iter_mut().zip(of(r)).for_each(|(f, (e, e2))| *f = c2 * e2 + c1 * e);
                });
            } else {
                let of = |r: usize| e[r * n..].iter().zip(&one[r * n..]);
                by_rows(two, n, threads, |r, row| {
                    row.iter_mut().zip(of(r)).for_each(|(g, (e, e2))| *g = c4 * e2 + c3 * e);
                    row[r] += c2;
                });
                product(three, one, two, n, pack, threads);
                by_rows(three, n, threads, |r, row| row.iter_mut().zip(&e[r * n..]).for_each(|(f, e)| *f += c1 * e));
            }
        }
        if iterations == 0 {
            by_rows(y, n, threads, |r, row| {
                row.copy_from_slice(&three[r * n..][..n]);
                row[r] += 1.0;
            });
        } else {
            product(one, y, three, n, pack, threads);
            by_rows(y, n, threads, |r, row| row.iter_mut().zip(&one[r * n..]).for_each(|(y, yf)| *y += yf));
        }
        iterations += 1;
        before = now;
        if last {
            break root_of * left(terms);
        }
        // T^p - I = r, by the bits of p behind the first: 2 r + r r, and r + f + r f; f stays where it is.
        let mut begun = false;
        for bit in (0..p.denominator.ilog2()).rev() {
            for times in 0..=(p.denominator >> bit & 1) {
                let r = if begun { &*one } else { &*three };
                product(two, r, if times == 0 { r } else { three }, n, pack, threads);
                let (own, other) = if times == 0 { (2.0, 0.0) } else { (1.0, 1.0) };
                by_rows(two, n, threads, |i, row| {
                    let of = r[i * n..].iter().zip(&three[i * n..]);
                    row.iter_mut().zip(of).for_each(|(to, (r, f))| *to += own * r + other * f);
                });
                std::mem::swap(&mut one, &mut two);
                begun = true;
            }
        }
        product(two, if begun { one } else { three }, m, n, pack, threads);
        by_rows(two, n, threads, |r, row| row.iter_mut().zip(&m[r * n..]).for_each(|(to, m)| *to += m));
        std::mem::swap(&mut m, &mut two);
    };
    let size = zeta.powf(1.0 / root_of) as f32;
    by_rows(y, n, threads, |_, row| row.iter_mut().for_each(|y| *y *= size));
    let good = y.iter().all(|x| x.is_finite());
    good.then_some(Record { status: Status::Newton, iterations, residual })
}

fn newton(
    p: &InverseRoot,
    a: &[f32],
    norm: f64,
    eps: f64,
    root: &mut [f32],
    rest: &mut [f32],
    threads: bool,
) -> Option<Record> {
    let n = p.order;
    let root_of = f64::from(p.denominator);
    let (matrices, pack) = rest.split_at_mut(4 * n * n);
    let mut matrices = matrices.chunks_exact_mut((n * n).max(1));
    let mut next = || matrices.next().unwrap_or_default();
    let (mut x, mut m, mut t, mut spare) = (next(), next(), next(), next());
    // Both bound the largest eigenvalue.
    let rows = a.chunks_exact(n.max(1)).map(|r| r.iter().map(|x| f64::from(x.abs())).sum::<f64>());
    let scale = norm.min(rows.fold(0.0, f64::max)) + eps;
    if n == 0 {
        return Some(Record { status: Status::Newton, iterations: 0, residual: 0.0 });
    }
    if scale <= 0.0 {
        return None;
    }
    let z = (root_of + 1.0) / (2.0 * scale);
    x.fill(0.0);
    x.iter_mut().step_by(n + 1).for_each(|x| *x = z.powf(1.0 / root_of) as f32);
    m.iter_mut().zip(a).for_each(|(m, &a)| *m = (z * f64::from(a)) as f32);
    m.iter_mut().zip(a).step_by(n + 1).for_each(|(m, &a)| *m = (z * (f64::from(a) + eps)) as f32);
    root.copy_from_slice(x);
    // ||M - I||_F. It is at least 1 while an eigenvalue of M is near 0, where the largest element may be small, and stand still.
    let distance = |m: &[f32]| {
        let of_row = |(r, row): (usize, &[f32])| {
            let (mut before, mut behind, here) = (0.0, 0.0, f64::from(row[r]) - 1.0);
            stepper::squares(&row[..r], &mut before);
            stepper::squares(&row[r + 1..], &mut behind);
            before + behind + here * here
        };
        m.chunks_exact(n).enumerate().map(of_row).sum::<f64>().sqrt()
    };
    let (mut error, mut iterations) = (distance(m), 0);
    let (on_diagonal, slope) = ((1.0 + 1.0 / root_of) as f32, (-1.0 / root_of) as f32);
    while iterations < MOST_ITERATIONS {
        t.iter_mut().zip(&*m).for_each(|(t, &m)| *t = slope * m);
        t.iter_mut().step_by(n + 1).for_each(|t| *t += on_diagonal);
        product(spare, x, t, n, pack, threads);
        std::mem::swap(&mut x, &mut spare);
        let mut power = p.denominator;
        loop {
            if power & 1 == 1 {
                product(spare, t, m, n, pack, threads);
                std::mem::swap(&mut m, &mut spare);
            }
            power >>= 1;
            if power == 0 {
                break;
            }
            product(spare, t, t, n, pack, threads);
            std::mem::swap(&mut t, &mut spare);
        }
        iterations += 1;
        let now = distance(m);
        // What no longer falls has come to what f32 can do.
        let ends = now.is_nan() || (error < 0.5 && now >= 0.9 * error);
        if !ends || now <= error {
            root.copy_from_slice(x);
            error = now;
        }
        if ends {
            break;
        }
    }
    let good = error <= WORST_RESIDUAL && root.iter().all(|x| x.is_finite());
    good.then_some(Record { status: Status::Newton, iterations, residual: error })
}
