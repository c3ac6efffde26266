//! Eigenvalues and eigenvectors of a small Hermitian matrix, by Jacobi's rotations.

use crate::layers::ssm::complex::{Complex, Field};

/// Eigenvalues in ascending order, and unit eigenvectors: `vectors[k * n + i]` is the i-th part of the k-th.
pub(super) struct Eigen {
    pub values: Vec<f64>,
    pub vectors: Vec<Complex<f64>>,
}

/// Of the Hermitian matrix `h` `[n, n]`.
pub(super) fn eigen(mut h: Vec<Complex<f64>>, n: usize) -> Eigen {
    let mut v = vec![Complex::<f64>::zero(); n * n];
    (0..n).for_each(|i| v[i * n + i] = Complex::one());
    let size: f64 = h.iter().map(|x| x.norm_squared()).sum();
    // Each sweep squares what is off the diagonal once it is small: ten are more than enough for any n here.
    for _ in 0..60 {
        let off: f64 = (0..n * n).filter(|k| k / n != k % n).map(|k| h[k].norm_squared()).sum();
        if off <= 1e-30 * size {
            break;
        }
        for (p, q) in (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))) {
            rotate(&mut h, &mut v, n, p, q);
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| h[a * n + a].re.total_cmp(&h[b * n + b].re));
    Eigen {
        values: order.iter().map(|&k| h[k * n + k].re).collect(),
        vectors: order.iter().flat_map(|&k| (0..n).map(move |i| (k, i))).map(|(k, i)| v[i * n + k]).collect(),
    }
}

/// The rotation of columns and rows p and q that makes `h[p, q]` zero.
fn rotate(h: &mut [Complex<f64>], v: &mut [Complex<f64>], n: usize, p: usize, q: usize) {
    let of = h[p * n + q];
    let size = of.norm_squared().sqrt();
    if size == 0.0 {
        return;
    }
    // The phase makes the element real; then it is the rotation of a real symmetric matrix.
    let phase = of.scale(1.0 / size);
    let tau = (h[q * n + q].re - h[p * n + p].re) / (2.0 * size);
    let t = tau.signum() / (tau.abs() + (1.0 + tau * tau).sqrt());
    let t = if tau == 0.0 { 1.0 } else { t };
    let c = 1.0 / (1.0 + t * t).sqrt();
    let s = t * c;
    let columns = |m: &mut [Complex<f64>]| {
        for i in 0..n {
            let (x, y) = (m[i * n + p], m[i * n + q]);
            m[i * n + p] = x.scale(c) - (y * phase.conj()).scale(s);
            m[i * n + q] = (x * phase).scale(s) + y.scale(c);
        }
    };
    columns(h);
    columns(v);
    for i in 0..n {
        let (x, y) = (h[p * n + i], h[q * n + i]);
        h[p * n + i] = x.scale(c) - (y * phase).scale(s);
        h[q * n + i] = (x * phase.conj()).scale(s) + y.scale(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn eigenvectors_are_unit_and_diagonalise() {
        for n in [1, 2, 5, 16] {
            let mut rng = Rng::new(2, n as u64);
            let raw: Vec<_> = (0..n * n).map(|_| Complex::new(rng.normal(), rng.normal())).collect();
            let h: Vec<_> = (0..n * n).map(|k| raw[k] + raw[k % n * n + k / n].conj()).collect();
            let e = eigen(h.clone(), n);
            for (k, l) in (0..n).flat_map(|k| (0..n).map(move |l| (k, l))) {
                let (u, w) = (&e.vectors[k * n..][..n], &e.vectors[l * n..][..n]);
                let dot = (0..n).fold(Complex::zero(), |sum, i| sum + u[i].conj() * w[i]);
                let image = |i: usize| (0..n).fold(Complex::zero(), |sum, j| sum + h[i * n + j] * w[j]);
                let form = (0..n).fold(Complex::zero(), |sum, i| sum + u[i].conj() * image(i));
                let same = if k == l { 1.0 } else { 0.0 };
                assert!((dot - Complex::real(same)).norm_squared() < 1e-24);
                assert!((form - Complex::real(same * e.values[k])).norm_squared() < 1e-22 * (n * n) as f64);
            }
        }
    }
}
