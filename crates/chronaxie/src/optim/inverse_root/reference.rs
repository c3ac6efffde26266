//! The law of an inverse root: eigenvalues by cyclic Jacobi rotations (Golub and Van Loan, "Matrix Computations", 8.5).

use super::spec::InverseRoot;
use crate::real::Real;
use crate::rng::Rng;

/// The eigenvalues of the symmetric `a [n, n]` and, row after row, its eigenvectors.
pub fn eigen<R: Real>(a: &[R], n: usize) -> (Vec<R>, Vec<R>) {
    let mut a = a.to_vec();
    let mut v: Vec<R> = (0..n * n).map(|e| if e / n == e % n { R::one() } else { R::zero() }).collect();
    let square = |x: R| x.to_f64() * x.to_f64();
    let norm: f64 = a.iter().map(|&x| square(x)).sum();
    let mut before = f64::INFINITY;
    for _ in 0..60 {
        let off: f64 = (0..n * n).filter(|e| e / n != e % n).map(|e| square(a[e])).sum();
        // What converges quadratically and no longer falls is what roundings leave.
        if off == 0.0 || (off < 1e-8 * norm && off > 0.1 * before) {
            break;
        }
        before = off;
        for p in 0..n {
            for q in p + 1..n {
                let apq = a[p * n + q];
                if apq.to_f64() == 0.0 {
                    continue;
                }
                let theta = (a[q * n + q] - a[p * n + p]) / (R::from_f64(2.0) * apq);
                let size = theta.abs() + (theta * theta + R::one()).sqrt();
                let t = if theta.to_f64() < 0.0 { -(R::one() / size) } else { R::one() / size };
                let c = R::one() / (t * t + R::one()).sqrt();
                let s = t * c;
                for k in 0..n {
                    let (x, y) = (a[p * n + k], a[q * n + k]);
                    (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
                    let (x, y) = (v[p * n + k], v[q * n + k]);
                    (v[p * n + k], v[q * n + k]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..n {
                    let (x, y) = (a[k * n + p], a[k * n + q]);
                    (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
                (a[p * n + q], a[q * n + p]) = (R::zero(), R::zero());
            }
        }
    }
    ((0..n).map(|k| a[k * n + k]).collect(), v)
}

/// The inverse root of one matrix `a [n, n]`, or none where there is none.
pub fn inverse_root<R: Real>(p: &InverseRoot, a: &[R]) -> Option<Vec<R>> {
    let n = p.order;
    let half = R::from_f64(0.5);
    let mean: Vec<R> = (0..n * n).map(|e| half * (a[e] + a[e % n * n + e / n])).collect();
    if mean.iter().any(|x| !x.to_f64().is_finite()) {
        return None;
    }
    let norm = mean.iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>().sqrt();
    let (values, vectors) = eigen(&mean, n);
    let eps = p.damping_of(norm);
    let least = values.iter().map(|x| x.to_f64()).fold(f64::INFINITY, f64::min);
    let shift = if least + eps < 0.5 * eps { eps - least } else { eps };
    let powers: Option<Vec<R>> = values
        .iter()
        .map(|&x| {
            let damped = x + R::from_f64(shift);
            let power = R::from_f64(-f64::from(p.numerator) / f64::from(p.denominator));
            (damped.to_f64() > 0.0).then(|| (damped.ln() * power).exp())
        })
        .collect();
    let powers = powers?;
    let mut root = vec![R::zero(); n * n];
    for k in 0..n {
        for r in 0..n {
            let x = powers[k] * vectors[k * n + r];
            for c in 0..n {
                root[r * n + c] = root[r * n + c] + x * vectors[k * n + c];
            }
        }
    }
    Some(root)
}

/// Vectors that a probe draws for each matrix.
const VECTORS: usize = 4;

/// The largest `||(A + eps I)^q X^p z - z||` of vectors z of length 1, and of which matrix it was, from `a` and `root` `[N, n, n]`.
///
/// What a shift did to an indefinite matrix is not undone: it shows as a large residual.
pub fn probe(p: &InverseRoot, a: &[f64], root: &[f64]) -> (f64, usize) {
    let n = p.order;
    let mut worst = (0.0, 0);
    for i in 0..p.count {
        let (a, x) = (&a[i * n * n..(i + 1) * n * n], &root[i * n * n..(i + 1) * n * n]);
        let eps = p.damping_of(a.iter().map(|x| x * x).sum::<f64>().sqrt());
        let mut rng = Rng::new(0x7072_6f62, i as u64);
        for _ in 0..VECTORS {
            let mut z: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
            let length = z.iter().map(|z| z * z).sum::<f64>().sqrt();
            z.iter_mut().for_each(|z| *z /= length);
            let times = |m: &[f64], y: &[f64], shift: f64| -> Vec<f64> {
                let row = |r: usize| m[r * n..(r + 1) * n].iter().zip(y).map(|(m, y)| m * y).sum::<f64>();
                (0..n).map(|r| row(r) + shift * y[r]).collect()
            };
            // In turn, so that nothing grows out of range.
            let (mut y, mut roots, mut powers) = (z.clone(), 0, 0);
            while roots < p.denominator || powers < p.numerator {
                if roots * p.numerator <= powers * p.denominator && roots < p.denominator {
                    (y, roots) = (times(x, &y, 0.0), roots + 1);
                } else {
                    (y, powers) = (times(a, &y, eps), powers + 1);
                }
            }
            let off = y.iter().zip(&z).map(|(y, z)| (y - z) * (y - z)).sum::<f64>().sqrt();
            // A NaN is above everything, and stays.
            if off.is_nan() || off > worst.0 {
                worst = (off, i);
            }
        }
    }
    worst
}
