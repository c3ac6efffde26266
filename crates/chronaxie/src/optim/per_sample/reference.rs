//! The law: each sample's gradient, element by element, and the sum of its squares.

use super::spec::GhostNorms;
use crate::real::Real;

/// `sum |sum_t g_t (x_t, 1)^T|^2` over all maps, for each sample; `sequences` are x and the gradient of each map.
pub fn squares<R: Real>(p: &GhostNorms, sequences: &[[Vec<R>; 2]], lengths: &[usize]) -> Vec<R> {
    let mut all = vec![R::zero(); p.batch];
    for (m, [x, grad]) in p.maps.iter().zip(sequences) {
        for (b, sum) in all.iter_mut().enumerate() {
            for h in 0..m.to.count {
                for d in 0..GhostNorms::inputs(m) {
                    let mut element = R::zero();
                    for t in 0..lengths[b] {
                        let g = grad[m.to.row(m.steps, b, t) + m.to.channel(m.steps, h)];
                        let one = d == m.from.count;
                        let x = if one { R::one() } else { x[m.from.row(m.steps, b, t) + m.from.channel(m.steps, d)] };
                        element = element + g * x;
                    }
                    *sum = *sum + element * element;
                }
            }
        }
    }
    all
}
