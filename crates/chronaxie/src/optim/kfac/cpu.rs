//! A step of KFAC on the CPU: maps and their matrices over the pool's threads, the largest first, then the other parameters.
#![allow(unsafe_code)]

use super::reference::balance;
use super::spec::{Damping, Kfac, Map, NAME};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::blocks::packed;
use crate::optim::matrix::{self, Operand, multiply, packing_of};
use crate::optim::onblock::unpack;
use crate::optim::soap::basis::order;
use crate::optim::stepper::{self, Runs};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Error, Layout, Place, RegionId, Result};

pub(super) struct CpuPlan {
    problem: Kfac,
    signature: Signature,
    layout: Layout,
    runs: Runs,
    partials: RegionId,
    agreements: RegionId,
    updates: RegionId,
    floats: RegionId,
    /// Maps by falling work, and their sides (0: A, 1: G) by falling order.
    maps: Vec<usize>,
    sides: Vec<(usize, usize)>,
    /// Where each map's update begins.
    starts: Vec<usize>,
    each: usize,
    tasks: usize,
}

/// Elements of a map's weight and bias.
fn elements(m: &Map) -> usize {
    m.rows * m.inputs()
}

impl CpuPlan {
    pub(super) fn new(problem: Kfac, options: &PlanOptions) -> Result<Self> {
        let runs = Runs::new(problem.elements);
        let of = |l: usize| &problem.maps[l];
        let size = |&(l, side): &(usize, usize)| if side == 0 { of(l).inputs() } else { of(l).rows };
        let mut maps: Vec<usize> = (0..problem.maps.len()).collect();
        maps.sort_by_key(|&l| std::cmp::Reverse(elements(of(l)) * (of(l).inputs() + of(l).rows)));
        let mut sides: Vec<_> = (0..problem.maps.len()).flat_map(|l| [(l, 0), (l, 1)]).collect();
        sides.sort_by_key(|side| std::cmp::Reverse(size(side)));
        let (mut starts, mut end) = (Vec::new(), 0);
        for m in &problem.maps {
            starts.push(end);
            end += elements(m);
        }
        let tasks = num_threads().min(sides.len()).max(1);
        let floats_of = |m: &Map| {
            let (a, h) = (m.inputs(), m.rows);
            2 * elements(m) + packing_of([h, a, h]).max(packing_of([h, a, a]))
        };
        let most = problem.maps.iter().map(floats_of).max().unwrap_or(0);
        let each = sides.iter().map(|s| size(s).pow(2)).max().unwrap_or(0).max(most);
        let mut layout = Layout::new(options.scratch_gap);
        let partials = layout.push("partials", Dtype::F64, runs.count)?;
        let agreements = layout.push("agreements", Dtype::F64, problem.maps.len())?;
        let updates = layout.push("updates", Dtype::F32, end)?;
        let floats = layout.push("floats", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Step)?;
        Ok(Self {
            problem,
            signature,
            layout,
            runs,
            partials,
            agreements,
            updates,
            floats,
            maps,
            sides,
            starts,
            each,
            tasks,
        })
    }
}

/// `(F + e I)^-1` in f64, by the Cholesky factor; none where it is not positive.
fn inverse(factor: &[f32], n: usize, e: f64) -> Option<Vec<f64>> {
    let mut low = vec![0f64; n * n];
    for i in 0..n {
        let (above, row) = low.split_at_mut(i * n);
        for j in 0..=i {
            let mut sum = 0.0;
            let given = f64::from(factor[i * n + j]);
            if j < i {
                matrix::dot(&row[..j], &above[j * n..j * n + j], &mut sum);
                row[j] = (given - sum) / above[j * n + j];
            } else {
                matrix::dot(&row[..i], &row[..i], &mut sum);
                let left = given + e - sum;
                if !(left > 0.0 && left.is_finite()) {
                    return None;
                }
                row[i] = left.sqrt();
            }
        }
    }
    // The inverse of the factor, row by row, and its Gram matrix.
    let mut back = vec![0f64; n * n];
    for i in 0..n {
        let (above, row) = back.split_at_mut(i * n);
        row[i] = 1.0;
        for j in 0..i {
            matrix::add(-low[i * n + j], &above[j * n..j * n + j + 1], &mut row[..j + 1]);
        }
        let over = low[i * n + i];
        row[..=i].iter_mut().for_each(|x| *x /= over);
    }
    let mut made = low;
    made.fill(0.0);
    for row in back.chunks_exact(n.max(1)) {
        for (r, to) in made.chunks_exact_mut(n).enumerate() {
            matrix::add(row[r], row, to);
        }
    }
    made.iter().all(|x| x.is_finite()).then_some(made)
}

/// State of a step, and the gradient as the maps see it.
struct Whole<'a> {
    p: &'a Kfac,
    step: usize,
    grad: &'a [f32],
    decay: &'a [f32],
    scale: f32,
    pull: f32,
    parameter: Shared<f32>,
    first: Shared<f32>,
    factors: Shared<f32>,
    bases: Shared<f32>,
    values: Shared<f32>,
    squares: Shared<f32>,
    averaged: Shared<f32>,
}

fn mix(to: &mut [f32], from: &[f32], keep: f64) {
    let (keep, new) = (keep as f32, (1.0 - keep) as f32);
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = *to * keep + x * new);
}

fn finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

impl Whole<'_> {
    /// Moves the averages of map `l`, which belong to the caller.
    fn average(&self, l: usize, seen: &[f32], seen_squares: &[f32]) {
        let (p, m, at) = (self.p, &self.p.maps[l], &self.p.places.maps[l]);
        let sides = [(at.a, packed(m.inputs())), (at.g, packed(m.rows))];
        // SAFETY: the counts and averages of this map belong to this task.
        let count = &mut unsafe { self.averaged.part(l, 1) }[0];
        if sides.iter().all(|&(first, n)| finite(&seen[first..first + n])) {
            let before = f64::from(*count);
            let keep = (before / (before + 1.0)).min(p.decay);
            for (first, n) in sides {
                // SAFETY: as above.
                mix(unsafe { self.factors.part(first, n) }, &seen[first..first + n], keep);
            }
            *count += 1.0;
        }
        if p.ekfac {
            let (first, n) = (at.squares, elements(m));
            let seen = &seen_squares[first..first + n];
            if finite(seen) {
                // SAFETY: as above.
                mix(unsafe { self.squares.part(first, n) }, seen, p.decay);
            }
        }
    }
    /// The mean of a packed factor's diagonal.
    fn mean(&self, first: usize, n: usize) -> f64 {
        // SAFETY: nobody writes the factors any more.
        let f = unsafe { self.factors.part(first, packed(n)) };
        (0..n).map(|i| f64::from(f[packed(i) + i])).sum::<f64>() / n.max(1) as f64
    }
    /// Eigenvalues and basis of a side of map `l`, or its inverse, which belong to the caller.
    fn solve(&self, l: usize, side: usize, floats: &mut [f32]) {
        let (p, m, at) = (self.p, &self.p.maps[l], &self.p.places.maps[l]);
        let (a, h) = (m.inputs(), m.rows);
        let (n, first, basis, values) =
            if side == 0 { (a, at.a, at.basis_a, at.values_a) } else { (h, at.g, at.basis_g, at.values_g) };
        let square = &mut floats[..n * n];
        // SAFETY: factors are only read by now; this side's basis and values belong to this task.
        let (factor, basis) = unsafe { (self.factors.part(first, packed(n)), self.bases.part(basis, n * n)) };
        unpack(factor, n, 1.0, square);
        let write = |to: &mut [f32], from: &[f64]| to.iter_mut().zip(from).for_each(|(to, &x)| *to = x as f32);
        if p.mode == Damping::Factored {
            let (of_a, of_g) = balance(self.mean(at.a, a), self.mean(at.g, h), p.damping);
            if let Some(made) = inverse(square, n, if side == 0 { of_a } else { of_g }) {
                write(basis, &made);
            }
        } else if let Some((found, vectors)) = matrix::eigen(square, n) {
            // SAFETY: as above.
            let values = unsafe { self.values.part(values, n) };
            for (k, &from) in order(&found).iter().enumerate() {
                values[k] = found[from].max(0.0) as f32;
                write(&mut basis[k * n..(k + 1) * n], &vectors[from * n..]);
            }
        }
    }
    /// The update of map `l`, which belongs to the caller, and its product with the gradient.
    fn update(&self, l: usize, u: &mut [f32], floats: &mut [f32]) -> f64 {
        let (p, m, at) = (self.p, &self.p.maps[l], &self.p.places.maps[l]);
        let (a, h) = (m.inputs(), m.rows);
        let (x, rest) = floats.split_at_mut(h * a);
        let (t, pack) = rest.split_at_mut(h * a);
        // SAFETY: the elements and matrices of this map belong to this task.
        let (qa, qg) = unsafe { (&*self.bases.part(at.basis_a, a * a), &*self.bases.part(at.basis_g, h * h)) };
        self.rows(m, |first, from| {
            // SAFETY: as above.
            let w = unsafe { self.parameter.part(first, from.len()) };
            for (k, e) in from.enumerate() {
                let n = first + k;
                x[e] = self.grad[n] * self.scale + self.pull * self.decay[n] * w[k];
            }
        });
        multiply(t, [h, a, h], Operand::sums(qg, h), Operand::terms(x, a), false, pack);
        if p.mode == Damping::Exact {
            multiply(u, [h, a, a], Operand::sums(t, a), Operand::sums(qa, a), false, pack);
            let damping = p.damping as f32;
            // SAFETY: as above.
            let (va, vg) = unsafe { (self.values.part(at.values_a, a), self.values.part(at.values_g, h)) };
            for (r, row) in u.chunks_exact_mut(a.max(1)).enumerate() {
                if p.ekfac {
                    // SAFETY: as above.
                    let squares = unsafe { self.squares.part(at.squares + r * a, a) };
                    if p.solves(self.step, l) {
                        squares.iter_mut().zip(&*va).for_each(|(s, &v)| *s = vg[r] * v);
                    }
                    row.iter_mut().zip(squares).for_each(|(u, s)| *u /= *s + damping);
                } else {
                    row.iter_mut().zip(&*va).for_each(|(u, &v)| *u /= vg[r] * v + damping);
                }
            }
            multiply(t, [h, a, h], Operand::terms(qg, h), Operand::terms(u, a), false, pack);
        }
        multiply(u, [h, a, a], Operand::sums(t, a), Operand::terms(qa, a), false, pack);
        u.iter().zip(&*x).map(|(&u, &x)| f64::from(u) * f64::from(x)).sum()
    }
    /// Calls `row` with runs of the map's elements: the first in the vector, and which they are in `[H, A]`.
    fn rows(&self, m: &Map, mut row: impl FnMut(usize, std::ops::Range<usize>)) {
        let a = m.inputs();
        for r in 0..m.rows {
            row(m.weight + r * m.columns, r * a..r * a + m.columns);
            if let Some(b) = m.bias {
                row(b + r, r * a + m.columns..(r + 1) * a);
            }
        }
    }
    /// The step of map `l`, whose elements belong to the caller.
    fn apply(&self, m: &Map, u: &[f32], rate: f32, shrink: f32, shorter: f32) {
        let momentum = self.p.momentum as f32;
        self.rows(m, |start, from| {
            // SAFETY: the elements of this map belong to this task.
            let (w, v) = unsafe { (self.parameter.part(start, from.len()), self.first.part(start, from.len())) };
            for (k, &u) in u[from].iter().enumerate() {
                v[k] = momentum * v[k] + shorter * u;
                w[k] -= rate * v[k] + w[k] * self.decay[start + k] * shrink;
            }
        });
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
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("{NAME} cpu: {} maps over {} threads", self.maps.len(), self.tasks)
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let input = |i: usize| args.inputs[i].as_slice::<f32>();
        let (grad, decay, rate, seen) = (input(0)?, input(1)?, f64::from(input(2)?[0]), input(3)?);
        let seen_squares = if p.ekfac { input(4)? } else { &[] };
        let [parameter, first, second, factors, bases, values, squares, averaged, step, largest, grad_norm] =
            &mut *args.outputs
        else {
            return Err(Error::shape(format!("{NAME}: eleven tensors are written")));
        };
        let step = &mut step.as_mut_slice::<i32>()?[0];
        *step = step.saturating_add(1);
        let largest = &mut largest.as_mut_slice::<f32>()?[0];
        *largest = largest.max(rate as f32);
        // SAFETY: each region is carved once in this call.
        let (partials, agreements, updates, floats) = unsafe {
            (
                self.layout.carve::<f64>(&args.scratch, self.partials)?,
                self.layout.carve::<f64>(&args.scratch, self.agreements)?,
                self.layout.carve::<f32>(&args.scratch, self.updates)?,
                self.layout.carve::<f32>(&args.scratch, self.floats)?,
            )
        };
        let norm = stepper::norm(grad, self.runs, partials);
        grad_norm.as_mut_slice::<f32>()?[0] = norm as f32;
        let scale = p.common.scale(norm) as f32;
        let whole = Whole {
            p,
            step: *step as usize,
            grad,
            decay,
            scale,
            pull: p.common.pull() as f32,
            parameter: Shared::new(parameter.as_mut_slice()?),
            first: Shared::new(first.as_mut_slice()?),
            factors: Shared::new(factors.as_mut_slice()?),
            bases: Shared::new(bases.as_mut_slice()?),
            values: Shared::new(values.as_mut_slice()?),
            squares: Shared::new(squares.as_mut_slice()?),
            averaged: Shared::new(averaged.as_mut_slice()?),
        };
        if p.averages(whole.step) {
            for_each(p.maps.len(), |l| whole.average(l, seen, seen_squares));
        }
        let floats = Shared::new(floats);
        // SAFETY: in each of the two rounds the part of this task.
        let own = |task: usize| unsafe { floats.part(task * self.each, self.each) };
        if (0..p.maps.len()).any(|l| p.solves(whole.step, l)) {
            for_each(self.tasks, |task| {
                let due = self.sides.iter().filter(|(l, _)| p.solves(whole.step, *l));
                due.skip(task).step_by(self.tasks).for_each(|&(l, side)| whole.solve(l, side, own(task)));
            });
        }
        let (to, sums) = (Shared::new(&mut *updates), Shared::new(&mut *agreements));
        for_each(self.tasks, |task| {
            for &l in self.maps.iter().skip(task).step_by(self.tasks) {
                // SAFETY: the update of this map, and its sum, belong to this task.
                let (u, sum) = unsafe { (to.part(self.starts[l], elements(&p.maps[l])), sums.part(l, 1)) };
                sum[0] = whole.update(l, u, own(task));
            }
        });
        let shorter = p.shorter(rate, agreements.iter().sum()) as f32;
        let shrink = p.common.shrink(rate, f64::from(*largest)) as f32;
        let updates: &[f32] = updates;
        for_each(p.maps.len(), |l| {
            let m = &p.maps[l];
            whole.apply(m, &updates[self.starts[l]..][..elements(m)], rate as f32, shrink, shorter);
        });
        let second = Shared::new(second.as_mut_slice::<f32>()?);
        let correction = |beta: f64| 1.0 / (1.0 - beta.powi(*step));
        let (c1, c2) = (correction(p.beta1) as f32, correction(p.beta2) as f32);
        let (b1, b2) = (p.beta1 as f32, p.beta2 as f32);
        let (rest1, rest2) = ((1.0 - p.beta1) as f32, (1.0 - p.beta2) as f32);
        let rate = rate * p.adamw_rate;
        let (rate, shrink, eps) = (rate as f32, (rate * p.common.weight_decay) as f32, p.epsilon as f32);
        let others = p.others();
        for_each(others.len(), |o| {
            let (start, count) = others[o];
            // SAFETY: the elements of this parameter belong to this task.
            let (w, m, v) = unsafe {
                (whole.parameter.part(start, count), whole.first.part(start, count), second.part(start, count))
            };
            for e in 0..count {
                let g = grad[start + e] * scale;
                m[e] = b1 * m[e] + rest1 * g;
                v[e] = b2 * v[e] + rest2 * (g * g);
                let update = m[e] * c1 / ((v[e] * c2).sqrt() + eps);
                w[e] -= rate * update + w[e] * decay[start + e] * shrink;
            }
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::testing::draw;

    /// F F^-1 = I to the roundings of f64, whatever the order; what is not positive has none.
    #[test]
    fn inverses_are_those() {
        for n in [0usize, 1, 2, 7, 33, 90] {
            let x = draw(n as u64, n * (n + 3));
            let f: Vec<f32> = (0..n * n)
                .map(|e| (0..n + 3).map(|k| x[e / n * (n + 3) + k] * x[e % n * (n + 3) + k]).sum::<f64>() as f32)
                .collect();
            let made = inverse(&f, n, 0.5).unwrap();
            for e in 0..n * n {
                let (i, j) = (e / n, e % n);
                let of = |k: usize| f64::from(f[i.max(k) * n + i.min(k)]) + if i == k { 0.5 } else { 0.0 };
                let sum: f64 = (0..n).map(|k| of(k) * made[k * n + j]).sum();
                assert!((sum - f64::from(u8::from(i == j))).abs() < 1e-9, "{n}: {i} {j}: {sum}");
            }
        }
        assert!(inverse(&[-1.0], 1, 0.5).is_none() && inverse(&[f32::NAN], 1, 0.5).is_none());
    }
}
