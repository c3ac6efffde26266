//! The law: one element after the other.

use super::spec::AdamW;
use crate::real::Real;

/// What a step reads and overwrites.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[N]`.
    pub parameter: Vec<R>,
    /// `[N]`, the mean of gradients.
    pub first: Vec<R>,
    /// `[N]`, the mean of squared gradients.
    pub second: Vec<R>,
    /// Steps taken.
    pub step: u32,
}

/// One step in place from `grad [N]`, `decay [N]` and the learning rate; gives the norm of the gradient.
pub fn step<R: Real>(p: &AdamW, s: &mut State<R>, grad: &[R], decay: &[R], rate: R) -> R {
    let k = R::from_f64;
    let norm = grad.iter().fold(R::zero(), |sum, &g| sum + g * g).sqrt();
    let scale = if p.clip > 0.0 && norm.to_f64() > p.clip { k(p.clip) / norm } else { R::one() };
    s.step += 1;
    let correction = |beta: f64| k(1.0 - beta.powi(s.step as i32));
    let (c1, c2) = (correction(p.beta1), correction(p.beta2));
    for n in 0..p.elements {
        let g = grad[n] * scale;
        s.first[n] = k(p.beta1) * s.first[n] + k(1.0 - p.beta1) * g;
        s.second[n] = k(p.beta2) * s.second[n] + k(1.0 - p.beta2) * g * g;
        let kept = s.parameter[n] * (R::one() - rate * k(p.weight_decay) * decay[n]);
        s.parameter[n] = kept - rate / c1 * s.first[n] / ((s.second[n] / c2).sqrt() + k(p.epsilon));
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step moves each parameter by the rate against the sign of its gradient, whatever the gradient's size.
    #[test]
    fn the_first_step_is_the_rate() {
        let p = AdamW::new(3).weight_decay(0.0);
        let mut s = State { parameter: vec![1.0; 3], first: vec![0.0; 3], second: vec![0.0; 3], step: 0 };
        let norm = step(&p, &mut s, &[3.0, -4e-3, 0.0], &[1.0; 3], 0.1);
        assert!((norm - (9.0f64 + 1.6e-5).sqrt()).abs() < 1e-15);
        let want = [0.9, 1.1, 1.0];
        assert!(s.parameter.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", s.parameter);
        assert_eq!(s.step, 1);
    }

    /// Clipping scales the gradient, so the moments are those of a gradient of norm `clip`.
    #[test]
    fn a_clipped_gradient_has_the_norm_of_the_clip() {
        let p = AdamW::new(2).clip(0.5);
        let mut s = State { parameter: vec![0.0; 2], first: vec![0.0; 2], second: vec![0.0; 2], step: 0 };
        assert_eq!(step(&p, &mut s, &[3.0, 4.0], &[0.0; 2], 0.1), 5.0);
        let g: Vec<f64> = s.first.iter().map(|m| m / (1.0 - p.beta1)).collect();
        assert!((g[0] - 0.3).abs() < 1e-15 && (g[1] - 0.4).abs() < 1e-15, "{g:?}");
    }

    /// Decoupled: with no gradient a parameter shrinks by rate x decay, and one without decay stays.
    #[test]
    fn weight_decay_does_not_pass_through_the_moments() {
        let p = AdamW::new(2).weight_decay(0.5);
        let mut s = State { parameter: vec![1.0f64, 1.0], first: vec![0.0; 2], second: vec![0.0; 2], step: 7 };
        step(&p, &mut s, &[0.0, 0.0], &[1.0, 0.0], 0.1);
        assert_eq!((s.parameter[0], s.parameter[1]), (0.95, 1.0));
        assert_eq!(s.first, [0.0, 0.0]);
    }
}
