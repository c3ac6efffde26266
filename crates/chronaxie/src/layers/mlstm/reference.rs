//! The law: plain loops over one head of one sequence. [`recurrent`] is the definition; [`parallel`] and [`chunkwise`] are
//! the same function in the forms that fast code takes, each with its own backward pass.
//!
//! `m` is a gauge. In the units `C* = e^m C`, `n* = e^m n` it drops out of
//! `h = s C*^T q / max(|s n*.q|, 1)`, so the gradients hold every m fixed, which is exact where eps = 0 (the rest is of the
//! order of eps), and the only way that m itself enters a loss is the returned last state: `Cell::gauge`.
//!
//! Gates may be -inf. A forget gate of it leaves nothing of the past, an input gate of it writes nothing, and both at once leave a
//! state of zeros; gradients of the gates are then 0. So that m is a number there, it is at least [`GAUGE_LEAST`].

pub mod chunkwise;
pub mod ladder;
pub mod parallel;
pub mod problem;
pub mod recurrent;

use super::spec::{GAUGE_LEAST, Gate};
use crate::real::Real;

/// The function that one head computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// K, the size of queries and keys.
    pub dqk: usize,
    /// V, the size of values and outputs.
    pub dv: usize,
    /// How the input gate opens.
    pub gate: Gate,
    /// Whether outputs are divided by the normaliser; always with the exponential gate.
    pub normalize: bool,
    /// Whether gradients flow through the normaliser.
    pub normalizer_grad: bool,
    /// Added to the normaliser.
    pub eps: f64,
}

/// What one head of one sequence is given.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a, R> {
    /// `[T, K]`
    pub q: &'a [R],
    /// `[T, K]`
    pub k: &'a [R],
    /// `[T, V]`
    pub v: &'a [R],
    /// `[T]`
    pub i: &'a [R],
    /// `[T]`
    pub f: &'a [R],
}

/// Where a head stands. With the sigmoid gate m is 0, and without a normaliser n is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct State<R> {
    /// `[K, V]`
    pub c: Vec<R>,
    /// `[K]`
    pub n: Vec<R>,
    /// The gauge: c and n stand for `e^m c` and `e^m n`.
    pub m: R,
}

/// The gradients of everything that a head was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<R> {
    /// `[T, K]`
    pub q: Vec<R>,
    /// `[T, K]`
    pub k: Vec<R>,
    /// `[T, V]`
    pub v: Vec<R>,
    /// `[T]`
    pub i: Vec<R>,
    /// `[T]`
    pub f: Vec<R>,
    /// Of the initial state.
    pub initial: State<R>,
}

impl<'a, R: Real> Tokens<'a, R> {
    /// T.
    pub fn len(&self) -> usize {
        self.i.len()
    }
    /// Whether T is 0.
    pub fn is_empty(&self) -> bool {
        self.i.is_empty()
    }
    /// The tokens from `from` to before `to`.
    pub fn range(&self, cell: &Cell, from: usize, to: usize) -> Tokens<'a, R> {
        Tokens {
            q: &self.q[from * cell.dqk..to * cell.dqk],
            k: &self.k[from * cell.dqk..to * cell.dqk],
            v: &self.v[from * cell.dv..to * cell.dv],
            i: &self.i[from..to],
            f: &self.f[from..to],
        }
    }
}

impl<R: Real> State<R> {
    /// All zeros.
    pub fn zeros(cell: &Cell) -> Self {
        Self { c: vec![R::zero(); cell.dqk * cell.dv], n: vec![R::zero(); cell.dqk], m: R::zero() }
    }
    /// `<c, other.c> + <n, other.n>`.
    pub fn dot(&self, other: &Self) -> R {
        dot(&self.c, &other.c) + dot(&self.n, &other.n)
    }
}

impl<R: Real> Gradients<R> {
    fn zeros(cell: &Cell, steps: usize, initial: State<R>) -> Self {
        let zeros = |n: usize| vec![R::zero(); n];
        Self {
            q: zeros(steps * cell.dqk),
            k: zeros(steps * cell.dqk),
            v: zeros(steps * cell.dv),
            i: zeros(steps),
            f: zeros(steps),
            initial,
        }
    }
}

/// `sum a b`.
pub(super) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    a.iter().zip(b).fold(R::zero(), |sum, (&a, &b)| sum + a * b)
}

/// `to += factor * x`.
fn add<R: Real>(to: &mut [R], factor: R, x: &[R]) {
    for (to, &x) in to.iter_mut().zip(x) {
        *to = *to + factor * x;
    }
}

/// The sign of a number that is not 0.
fn sign<R: Real>(x: R) -> R {
    R::from_f64(if x.to_f64() < 0.0 { -1.0 } else { 1.0 })
}

impl Cell {
    /// `K^-1/2`, the factor of q.
    fn scale<R: Real>(&self) -> R {
        R::one() / R::from_f64(self.dqk as f64).sqrt()
    }
    /// The logarithm of the forget gate.
    fn log_forget<R: Real>(&self, f: R) -> R {
        -(-f).softplus()
    }
    /// The logarithm of the input gate.
    fn log_input<R: Real>(&self, i: R) -> R {
        match self.gate {
            Gate::Exponential => i,
            Gate::Sigmoid => -(-i).softplus(),
        }
    }
    /// The gauge behind a token: the larger of two logarithms of weights within bounds, or 0 where none can be positive.
    fn larger<R: Real>(&self, past: R, here: R) -> R {
        match self.gate {
            Gate::Exponential => past.max(here).max(R::from_f64(GAUGE_LEAST)),
            Gate::Sigmoid => R::zero(),
        }
    }
    /// The denominator of h for `l = s n.q` in the gauge m.
    fn denominator<R: Real>(&self, l: R, m: R) -> R {
        if self.normalize { l.abs().max((-m).exp()) + R::from_f64(self.eps) } else { R::one() }
    }
    /// The gradient of l, where h = num / denominator.
    fn grad_l<R: Real>(&self, l: R, m: R, h: &[R], grad_h: &[R]) -> R {
        let open = self.normalize && self.normalizer_grad && l.abs().to_f64() > (-m).exp().to_f64();
        if open { -(dot(grad_h, h) / self.denominator(l, m)) * sign(l) } else { R::zero() }
    }
    /// Turns the gradients of both gates' logarithms into those of their pre-activations.
    fn gates<R: Real>(&self, tokens: &Tokens<'_, R>, g: &mut Gradients<R>) {
        // Forms that take sums of logarithms leave roundings where a gate is shut for good.
        let slope = |x: R| if x.to_f64() == f64::NEG_INFINITY { R::zero() } else { (-x).sigmoid() };
        for t in 0..tokens.len() {
            g.f[t] = g.f[t] * slope(tokens.f[t]);
            if self.gate == Gate::Sigmoid {
                g.i[t] = g.i[t] * slope(tokens.i[t]);
            }
        }
    }
    /// What the gauge of the last state adds to the gradients of the gates' logarithms and of the initial m.
    ///
    /// The returned c and n are `e^(m* - m)` of something that does not know m, so `grad_m - <c, grad_c> - <n, grad_n>`
    /// goes to m itself, and from there to whichever of `log f + m` and `log i` was the larger, back to a token or to the
    /// start, unless the bound is larger than both. Where what follows knows the state only as `e^m c`, it is 0.
    fn gauge<R: Real>(
        &self,
        tokens: &Tokens<'_, R>,
        initial: &State<R>,
        last: &State<R>,
        grad_last: &State<R>,
        g: &mut Gradients<R>,
    ) {
        if self.gate == Gate::Sigmoid {
            return;
        }
        let excess = grad_last.m - last.dot(grad_last);
        let mut m = initial.m;
        let pairs: Vec<(R, R)> = (0..tokens.len())
            .map(|t| {
                let pair = (self.log_forget(tokens.f[t]) + m, self.log_input(tokens.i[t]));
                m = self.larger(pair.0, pair.1);
                pair
            })
            .collect();
        for (t, (past, here)) in pairs.into_iter().enumerate().rev() {
            if past.to_f64().max(here.to_f64()) < GAUGE_LEAST {
                return;
            }
            if here.to_f64() > past.to_f64() {
                g.i[t] = g.i[t] + excess;
                return;
            }
            g.f[t] = g.f[t] + excess;
        }
        g.initial.m = g.initial.m + excess;
    }
    /// The gradient of the initial m, but for what [`gauge`](Self::gauge) adds.
    fn grad_initial_m<R: Real>(&self, initial: &State<R>, grad: &State<R>) -> R {
        if self.gate == Gate::Sigmoid { R::zero() } else { initial.dot(grad) }
    }
}
