//! The law: plain loops over one row after the other.

use super::spec::{LinearHead, Pooling};
use crate::real::Real;

/// What a row is held against.
#[derive(Debug, Clone, Copy)]
pub enum Targets<'a, R> {
    /// `[B]`.
    Labels(&'a [usize]),
    /// `[B, C]`.
    Values(&'a [R]),
}

/// What goes in.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, R> {
    /// `[B, T, M]`.
    pub h: &'a [R],
    /// `[B]`, each at most T.
    pub lengths: &'a [usize],
    /// `[C, M]`.
    pub weight: &'a [R],
    /// `[C]`.
    pub bias: &'a [R],
    /// What each row is held against.
    pub targets: Targets<'a, R>,
}

/// The weight of the state of step t in the s-th read-out of a row of `len` steps.
fn share<R: Real>(pooling: Pooling, len: usize, s: usize, t: usize) -> R {
    match pooling {
        Pooling::Last if t + 1 == len => R::one(),
        Pooling::Mean if t < len => R::one() / R::from_f64(len as f64),
        Pooling::Every if t == s => R::one(),
        _ => R::zero(),
    }
}

/// The read-outs of row b: `[S, C]` with S = 1 but for [`Pooling::Every`], where it is the row's length.
fn readouts<R: Real>(p: &LinearHead, i: &Inputs<'_, R>, b: usize) -> Vec<Vec<R>> {
    let len = i.lengths[b];
    let count = if p.pooling == Pooling::Every { len } else { len.min(1) };
    let state = |t: usize, m: usize| i.h[(b * p.steps + t) * p.features + m];
    let one = |s: usize| {
        let f: Vec<R> = (0..p.features)
            .map(|m| (0..len).fold(R::zero(), |sum, t| sum + share::<R>(p.pooling, len, s, t) * state(t, m)))
            .collect();
        (0..p.classes)
            .map(|c| f.iter().enumerate().fold(i.bias[c], |sum, (m, &f)| sum + i.weight[c * p.features + m] * f))
            .collect()
    };
    (0..count).map(one).collect()
}

/// The loss of one read-out of row b, and its gradient.
fn loss<R: Real>(p: &LinearHead, i: &Inputs<'_, R>, b: usize, y: &[R]) -> (R, Vec<R>) {
    let classes = R::from_f64(p.classes as f64);
    match i.targets {
        Targets::Labels(labels) => {
            let max = y.iter().fold(y[0], |m, &x| m.max(x));
            let e: Vec<R> = y.iter().map(|&x| (x - max).exp()).collect();
            let sum = e.iter().fold(R::zero(), |s, &x| s + x);
            let hit = |c: usize| if c == labels[b] { R::one() } else { R::zero() };
            (sum.ln() + max - y[labels[b]], e.iter().enumerate().map(|(c, &e)| e / sum - hit(c)).collect())
        }
        Targets::Values(values) => {
            let e: Vec<R> = y.iter().enumerate().map(|(c, &y)| y - values[b * p.classes + c]).collect();
            let sum = e.iter().fold(R::zero(), |s, &e| s + e * e);
            (sum / classes, e.iter().map(|&e| (e + e) / classes).collect())
        }
    }
}

/// `loss` and `logits [B, C]`.
pub fn forward<R: Real>(p: &LinearHead, i: &Inputs<'_, R>) -> (R, Vec<R>) {
    let (mut total, mut logits) = (R::zero(), vec![R::zero(); p.batch * p.classes]);
    for b in 0..p.batch {
        let rows = readouts(p, i, b);
        let share = R::one() / R::from_f64(rows.len().max(1) as f64);
        for y in &rows {
            total = total + share * loss(p, i, b, y).0;
            for (c, &y) in y.iter().enumerate() {
                logits[b * p.classes + c] = logits[b * p.classes + c] + share * y;
            }
        }
    }
    (total / valid_rows(i), logits)
}

fn valid_rows<R: Real>(i: &Inputs<'_, R>) -> R {
    R::from_f64(i.lengths.iter().filter(|&&l| l > 0).count().max(1) as f64)
}

/// The gradients of a scalar with respect to the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<R> {
    /// `[B, T, M]`.
    pub h: Vec<R>,
    /// `[C, M]`.
    pub weight: Vec<R>,
    /// `[C]`.
    pub bias: Vec<R>,
}

/// The gradients from those of the loss and of the logits `[B, C]`.
pub fn backward<R: Real>(p: &LinearHead, i: &Inputs<'_, R>, grad_loss: R, grad_logits: &[R]) -> Gradients<R> {
    let zeros = |n: usize| vec![R::zero(); n];
    let (m, c) = (p.features, p.classes);
    let mut g = Gradients { h: zeros(p.batch * p.steps * m), weight: zeros(c * m), bias: zeros(c) };
    for b in 0..p.batch {
        let (len, rows) = (i.lengths[b], readouts(p, i, b));
        let of_row = R::one() / R::from_f64(rows.len().max(1) as f64);
        for (s, y) in rows.iter().enumerate() {
            let d = loss(p, i, b, y).1;
            for (k, &d) in d.iter().enumerate() {
                let d = of_row * (grad_loss * d / valid_rows(i) + grad_logits[b * c + k]);
                g.bias[k] = g.bias[k] + d;
                for t in 0..len {
                    let d = d * share::<R>(p.pooling, len, s, t);
                    for x in 0..m {
                        let at = (b * p.steps + t) * m + x;
                        g.weight[k * m + x] = g.weight[k * m + x] + d * i.h[at];
                        g.h[at] = g.h[at] + d * i.weight[k * m + x];
                    }
                }
            }
        }
    }
    g
}

#[cfg(test)]
mod tests {
    use super::super::Loss;
    use super::*;
    use crate::real::Dual;
    use crate::rng::Rng;

    /// One scalar of loss and logits, by dual numbers along a random direction, against the hand-written gradients.
    #[test]
    fn gradients_are_the_derivative_of_the_forward_pass() {
        for (loss, pooling) in [Loss::CrossEntropy, Loss::Mse]
            .into_iter()
            .flat_map(|l| [Pooling::Last, Pooling::Mean, Pooling::Every].map(|p| (l, p)))
        {
            let p = LinearHead::new(4, 3, 5, 3).loss(loss).pooling(pooling).build().unwrap();
            let mut rng = Rng::new(5, 0);
            let mut draw = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<f64>>();
            let (h, w, bias, v) = (draw(60), draw(15), draw(3), draw(12));
            let (dh, dw, db) = (draw(60), draw(15), draw(3));
            let (gl, gy) = (draw(1)[0], draw(12));
            let (lengths, labels) = ([3usize, 0, 1, 2], [2usize, 0, 1, 1]);
            let dual = |x: &[f64], d: &[f64]| x.iter().zip(d).map(|(&x, &d)| Dual::new(x, d)).collect::<Vec<_>>();
            let (hd, wd, bd, vd) = (dual(&h, &dh), dual(&w, &dw), dual(&bias, &db), dual(&v, &[0.0; 12]));
            let targets = if loss == Loss::Mse { Targets::Values(&vd) } else { Targets::Labels(&labels) };
            let (l, y) = forward(&p, &Inputs { h: &hd, lengths: &lengths, weight: &wd, bias: &bd, targets });
            let want = gl * l.derivative + y.iter().zip(&gy).map(|(y, g)| y.derivative * g).sum::<f64>();
            let targets = if loss == Loss::Mse { Targets::Values(&v) } else { Targets::Labels(&labels) };
            let i = Inputs { h: &h, lengths: &lengths, weight: &w, bias: &bias, targets };
            let g = backward(&p, &i, gl, &gy);
            let along = |g: &[f64], d: &[f64]| g.iter().zip(d).map(|(g, d)| g * d).sum::<f64>();
            let got = along(&g.h, &dh) + along(&g.weight, &dw) + along(&g.bias, &db);
            assert!((got - want).abs() < 1e-12 * want.abs().max(1.0), "{loss:?} {pooling:?}: {got} {want}");
            assert!(g.h[15..30].iter().all(|&x| x == 0.0), "a row of length 0 has a gradient");
        }
    }

    #[test]
    fn cross_entropy_of_equal_logits_is_the_logarithm_of_the_classes() {
        let p = LinearHead::new(2, 2, 1, 4);
        let i = Inputs {
            h: &[1.0; 4],
            lengths: &[2, 1],
            weight: &[0.0; 4],
            bias: &[0.5; 4],
            targets: Targets::Labels(&[0, 3]),
        };
        assert!((forward::<f64>(&p, &i).0 - 4f64.ln()).abs() < 1e-15);
    }
}
