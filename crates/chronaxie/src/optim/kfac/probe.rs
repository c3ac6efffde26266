//! What eigenbases say of themselves, where the law cannot say which: eigenvectors have any sign, and those of equal values any angle.

use super::spec::{Damping, Kfac};
use crate::op::{Probe, Values};
use crate::optim::blocks::packed;

/// `max |Q Q^T - I|` of a basis in f32.
const ANGLES: f64 = 6e-7;
/// Of a factor's norm what is beside the diagonal of its values in its basis.
const BESIDE: f64 = 4e-7;

/// Of every basis that step `step` made of `factors`: right angles, and that the factor is diagonal in it, with its values.
pub(super) fn bases(p: &Kfac, step: usize, factors: &Values, bases: &Values, values: &Values) -> Vec<Probe> {
    let (mut angles, mut beside) = ((0.0, "no basis".to_owned()), (0.0, "no basis".to_owned()));
    let worse = |worst: &mut (f64, String), error: f64, at: String| {
        // A NaN is above everything, and stays.
        if error.is_nan() || error > worst.0 {
            *worst = (error, at);
        }
    };
    for (l, (m, at)) in p.maps.iter().zip(&p.places.maps).enumerate() {
        if p.mode != Damping::Exact || !p.solves(step, l) {
            continue;
        }
        let sides = [("A", m.inputs(), at.a, at.basis_a, at.values_a), ("G", m.rows, at.g, at.basis_g, at.values_g)];
        for (name, n, first, basis, value) in sides {
            let factor = |i: usize, j: usize| factors.data[first + packed(i.max(j)) + i.min(j)];
            let norm = (0..n * n).map(|e| factor(e / n, e % n).powi(2)).sum::<f64>().sqrt();
            let q = |k: usize| &bases.data[basis + k * n..][..n];
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            for k in 0..n {
                let stretched: Vec<f64> = (0..n).map(|i| (0..n).map(|j| factor(i, j) * q(k)[j]).sum()).collect();
                for j in 0..n {
                    let on = f64::from(u8::from(j == k));
                    worse(&mut angles, (dot(q(j), q(k)) - on).abs(), format!("map {l}, {name}, rows {j} and {k}"));
                    let off = (dot(q(j), &stretched) - on * values.data[value + k]).abs();
                    worse(
                        &mut beside,
                        off / if norm > 0.0 { norm } else { 1.0 },
                        format!("map {l}, {name}, {j} and {k}"),
                    );
                }
            }
        }
    }
    let probe = |metric, (error, worst): (f64, String), tolerance, reason| Probe {
        output: "bases",
        metric,
        error,
        tolerance,
        reason,
        worst,
    };
    vec![
        probe("right_angles", angles, ANGLES, "8 x the roundings of f32 in products of some hundred columns"),
        probe("diagonal", beside, BESIDE, "8 x the roundings of f32 of a basis, twice, in parts of the factor's norm"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::blocks::Parameter;
    use crate::optim::kfac::Map;

    /// Of A = diag(3, 2) and G = 5: what a step made, and by how much each probe is over its bound.
    fn found(basis: [f64; 4], values: [f64; 2]) -> (f64, f64) {
        let map = Map { weight: 0, rows: 1, columns: 2, bias: None };
        let p = Kfac::new(2, vec![Parameter::new(0, [1, 2])], vec![map]).build().unwrap();
        let at = p.places.maps[0];
        let list = |n: usize, parts: &[(usize, &[f64])]| {
            let mut data = vec![0.0; n];
            parts.iter().for_each(|&(first, part)| data[first..first + part.len()].copy_from_slice(part));
            Values::new([n], data).unwrap()
        };
        let factors = list(p.places.factors, &[(at.a, &[3.0, 0.0, 2.0]), (at.g, &[5.0])]);
        let bases = list(p.places.bases, &[(at.basis_a, &basis), (at.basis_g, &[-1.0])]);
        let values = list(p.places.values, &[(at.values_a, &values), (at.values_g, &[5.0])]);
        let all = super::bases(&p, 1, &factors, &bases, &values);
        (all[0].error / all[0].tolerance, all[1].error / all[1].tolerance)
    }

    #[test]
    fn bases_that_are_none_are_found() {
        assert_eq!(found([1.0, 0.0, 0.0, -1.0], [3.0, 2.0]), (0.0, 0.0));
        // Another value, a length, an angle, rows in each other's place, a NaN.
        assert!(found([1.0, 0.0, 0.0, 1.0], [3.0, 2.1]).1 > 1.0);
        assert!(found([1.0, 0.0, 0.0, 1.01], [3.0, 2.0]).0 > 1.0);
        assert!(found([1.0, 0.01, 0.0, 1.0], [3.0, 2.0]).1 > 1.0);
        assert!(found([0.0, 1.0, 1.0, 0.0], [3.0, 2.0]).1 > 1.0);
        assert!(found([f64::NAN; 4], [3.0, 2.0]).0.is_nan());
    }
}
