//! Bases of factors on the CPU: eigenvectors at first, then orthogonal iteration.

use crate::optim::matrix;

/// `v += scale * x`, and dots, in f64.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Eigenvectors of `factor [n, n]` as the columns of `basis`, those of the largest eigenvalues first; I where there are none.
pub(super) fn first(factor: &[f32], n: usize, basis: &mut [f32]) {
    let found = if factor.iter().all(|x| x.is_finite()) { matrix::eigen(factor, n) } else { None };
    let Some((values, vectors)) = found else {
        basis.fill(0.0);
        basis.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
        return;
    };
    for (k, &from) in order(&values).iter().enumerate() {
        for i in 0..n {
            basis[i * n + k] = vectors[from * n + i] as f32;
        }
    }
}

/// Places by falling values; equal ones stay in their order.
pub(in crate::optim) fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order
}

/// One step of orthogonal iteration: the Q of `factor basis`, whose columns are taken by falling estimates of their eigenvalues
/// and stay in their places. Where something is not finite, the basis stays.
///
/// Gram-Schmidt in f64, every column against those before it twice. A column that is spent, as where the factor has no such
/// direction, goes on as the old basis had it.
pub(super) fn next(factor: &[f32], n: usize, basis: &mut [f32]) {
    let old: Vec<f64> = (0..n * n).map(|e| f64::from(basis[e % n * n + e / n])).collect();
    let mut stretched = vec![0f64; n * n];
    for (to, from) in stretched.chunks_exact_mut(n).zip(old.chunks_exact(n)) {
        for (row, &x) in factor.chunks_exact(n).zip(from) {
            to.iter_mut().zip(row).for_each(|(t, &f)| *t += f64::from(f) * x);
        }
    }
    let values: Vec<f64> = stretched.chunks_exact(n).zip(old.chunks_exact(n)).map(|(s, o)| dot(s, o)).collect();
    let order = order(&values);
    let mut made: Vec<Vec<f64>> = Vec::with_capacity(n);
    for &k in &order {
        let row = |of: &[f64]| of[k * n..(k + 1) * n].to_vec();
        let units = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect());
        let candidates = [row(&stretched), row(&old)].into_iter().chain(units);
        let Some(q) = candidates.filter_map(|v| against(v, &made)).next() else { return };
        made.push(q);
    }
    for (q, &k) in made.iter().zip(&order) {
        for i in 0..n {
            basis[i * n + k] = q[i] as f32;
        }
    }
}

/// v of length 1 and at right angles to all of `made`; none where nothing of it is left, or it is not finite.
fn against(mut v: Vec<f64>, made: &[Vec<f64>]) -> Option<Vec<f64>> {
    let before = dot(&v, &v).sqrt();
    for _ in 0..2 {
        for q in made {
            let along = dot(q, &v);
            v.iter_mut().zip(q).for_each(|(v, q)| *v -= along * q);
        }
    }
    let left = dot(&v, &v).sqrt();
    // What f32 has of the product is rounding beyond this.
    if left.is_nan() || left <= 1e-7 * before || left == 0.0 {
        return None;
    }
    v.iter_mut().for_each(|x| *x /= left);
    Some(v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::testing::draw;

    fn gram(n: usize, rank: usize) -> Vec<f32> {
        let a = draw(9, n * rank);
        (0..n * n).map(|e| (0..rank).map(|k| a[e / n * rank + k] * a[e % n * rank + k]).sum::<f64>() as f32).collect()
    }
    fn off(basis: &[f32], n: usize) -> f64 {
        let column = |k: usize| (0..n).map(|i| f64::from(basis[i * n + k])).collect::<Vec<f64>>();
        let product = |e: usize| dot(&column(e / n), &column(e % n)) - f64::from(u8::from(e / n == e % n));
        (0..n * n).map(|e| product(e).abs()).fold(0.0, f64::max)
    }

    /// Bases stay orthogonal, and iterations turn a random one to the eigenvectors of a factor, whatever its rank.
    #[test]
    fn iterations_come_to_eigenvectors() {
        for (n, rank) in [(1, 1), (5, 9), (12, 30), (12, 3), (7, 0)] {
            let a = gram(n, rank);
            let mut basis = vec![0f32; n * n];
            first(&a, n, &mut basis);
            assert!(off(&basis, n) < 1e-6, "{n} {rank}");
            let mut q: Vec<f32> = (0..n * n).map(|e| f32::from(u8::from(e / n == e % n))).collect();
            for _ in 0..3000 {
                next(&a, n, &mut q);
            }
            assert!(off(&q, n) < 1e-6, "{n} {rank}: {}", off(&q, n));
            let norm = a.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            for k in 0..n {
                let v: Vec<f64> = (0..n).map(|i| f64::from(q[i * n + k])).collect();
                let av: Vec<f64> =
                    a.chunks_exact(n).map(|r| r.iter().zip(&v).map(|(&a, v)| f64::from(a) * v).sum()).collect();
                let lambda = dot(&v, &av);
                let left = av.iter().zip(&v).map(|(x, v)| (x - lambda * v).powi(2)).sum::<f64>().sqrt();
                assert!(left <= 2e-3 * norm, "{n} {rank} {k}: {left:e} of {norm:e}");
            }
        }
        let mut basis = vec![1f32, 0.0, 0.0, 1.0];
        next(&[f32::NAN, 0.0, 0.0, 1.0], 2, &mut basis);
        assert_eq!(basis, [1.0, 0.0, 0.0, 1.0]);
        first(&[f32::INFINITY, 0.0, 0.0, 1.0], 2, &mut basis);
        assert_eq!(basis, [1.0, 0.0, 0.0, 1.0]);
    }
}
