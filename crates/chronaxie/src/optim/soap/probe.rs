//! What bases say of themselves, where the law cannot say which: eigenvectors have any sign, and where a factor lacks rank the columns
//! beyond it are any that are at right angles to the others.

use super::spec::Soap;
use crate::op::{Probe, Values};
use crate::optim::blocks::packed;

/// `max |Q^T Q - I|` of a basis in f32.
const ANGLES: f64 = 3e-6;
/// Of a factor's norm what is left of it outside of the triangle of R, or beside the diagonal of Q^T L Q.
const LEFT: f64 = 2e-6;

struct Worst {
    error: f64,
    at: String,
}

impl Worst {
    fn new() -> Self {
        Self { error: 0.0, at: "no basis".to_owned() }
    }
    fn take(&mut self, error: f64, at: impl FnOnce() -> String) {
        // A NaN is above everything, and stays.
        if error.is_nan() || error > self.error {
            (self.error, self.at) = (error, at());
        }
    }
}

/// Of every basis that step `step` made from `factors` and `old` bases: right angles; of a first one that L is diagonal in it and falls,
/// of a later one that L times the old one is triangular in it, its columns by falling estimates.
pub(super) fn bases(p: &Soap, step: usize, old: &Values, factors: &Values, new: &Values) -> Vec<Probe> {
    let (mut angles, mut left) = (Worst::new(), Worst::new());
    for (nth, b) in p.grid.blocks.iter().enumerate() {
        if !p.opens && !b.due(step, p.precondition_frequency) {
            continue;
        }
        for (axis, &at) in b.factors.iter().enumerate() {
            let (n, root) = (b.sizes[axis], b.roots[axis]);
            let place = |what: f64| format!("block {nth}, axis {axis}: {what:e}");
            let factor = |i: usize, j: usize| factors.data[at + packed(i.max(j)) + i.min(j)];
            let norm = (0..n * n).map(|e| factor(e / n, e % n).powi(2)).sum::<f64>().sqrt();
            let columns = |of: &Values| -> Vec<Vec<f64>> {
                (0..n).map(|k| (0..n).map(|i| of.data[root + i * n + k]).collect()).collect()
            };
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            let made = columns(new);
            for k in 0..n {
                for j in 0..=k {
                    let off = (dot(&made[j], &made[k]) - f64::from(u8::from(j == k))).abs();
                    angles.take(off, || place(off));
                }
            }
            let from = if p.opens { made.clone() } else { columns(old) };
            let stretched: Vec<Vec<f64>> =
                from.iter().map(|q| (0..n).map(|i| (0..n).map(|j| factor(i, j) * q[j]).sum()).collect()).collect();
            let values: Vec<f64> = stretched.iter().zip(&from).map(|(s, q)| dot(s, q)).collect();
            let mut order: Vec<usize> = (0..n).collect();
            if !p.opens {
                order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
            }
            for (rank, &k) in order.iter().enumerate() {
                // Also of a column that was spent: what it came from lies in the span of those before it.
                let others = if p.opens { &order[..rank] } else { &order[rank + 1..] };
                let beyond = others.iter().map(|&j| dot(&made[j], &stretched[k]).powi(2)).sum::<f64>().sqrt();
                let rise = if p.opens && rank > 0 { (values[k] - values[order[rank - 1]]).max(0.0) } else { 0.0 };
                let error = beyond.max(rise) / if norm > 0.0 { norm } else { 1.0 };
                left.take(error, || place(error));
            }
        }
    }
    let probe = |metric, worst: Worst, tolerance, reason| Probe {
        output: "bases",
        metric,
        error: worst.error,
        tolerance,
        reason,
        worst: worst.at,
    };
    vec![
        probe("right_angles", angles, ANGLES, "8 x the roundings of two passes in f32 over some hundred columns"),
        probe("triangle", left, LEFT, "a column of which 1e-6 is left is spent, and roundings of f32 in its product"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::blocks::Parameter;

    /// Of a factor diag(3, 2, 0) and I as the old basis: what a step made, and by how much each probe is over its bound.
    fn found(opens: bool, new: [f64; 9]) -> (f64, f64) {
        let mut p = Soap::new(3, vec![Parameter::new(0, [3])]);
        (p.precondition_vectors, p.precondition_frequency, p.opens) = (true, 1, opens);
        let p = p.build().unwrap();
        let values = |data: &[f64]| Values::new([data.len()], data.to_vec()).unwrap();
        let eye = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let all = bases(&p, 1, &values(&eye), &values(&[3.0, 0.0, 2.0, 0.0, 0.0, 0.0]), &values(&new));
        (all[0].error / all[0].tolerance, all[1].error / all[1].tolerance)
    }

    #[test]
    fn bases_that_are_none_are_found() {
        for opens in [false, true] {
            let good = found(opens, [1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0]);
            assert_eq!(good, (0.0, 0.0));
            // A length, an angle, two columns in each other's place, a NaN.
            assert!(found(opens, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.01]).0 > 1.0);
            assert!(found(opens, [1.0, 0.01, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]).0 > 1.0);
            assert!(found(opens, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]).1 > 1.0);
            assert!(found(opens, [f64::NAN; 9]).0.is_nan());
        }
    }
}
