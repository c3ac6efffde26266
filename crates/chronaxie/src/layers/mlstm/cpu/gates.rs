//! What comes of the gates alone: sums of logarithms, the gauge of each token, and the weights of a chunk.
//!
//! Sums over a chunk are f64 and differences are taken there, so that long stretches of closed gates cost no accuracy; a
//! difference is then small where its exponential matters, and f32 holds it.

use super::gemm::{FRINGE, PANEL};
use crate::layers::mlstm::Gate;
use crate::layers::mlstm::spec::{CHUNK_MOST, GAUGE_LEAST, LOG_FORGET_LEAST};
use crate::simd_math::{self, Lanes};

/// `log sigmoid(x)` in place.
#[inline(always)]
fn log_sigmoid_body<const FMA: bool, const R: usize, const N: usize>(x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<N>();
    let of = |x: Lanes<N>| simd_math::softplus::<FMA, N>(x.map(|x| -x)).map(|x| -x);
    for x in chunks {
        *x = of(Lanes(*x)).0;
    }
    let mut last = [0.0; N];
    last[..rest.len()].copy_from_slice(rest);
    let last = of(Lanes(last)).0;
    rest.copy_from_slice(&last[..rest.len()]);
}
crate::levels!(fn log_sigmoid(x: &mut [f32]) = log_sigmoid_body, 1, [4, 8, 16]);

/// `1 / (1 + e^x)` in place: the derivative of `log sigmoid` at x.
#[inline(always)]
fn slope_body<const FMA: bool, const R: usize, const N: usize>(x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<N>();
    for x in chunks {
        *x = simd_math::sigmoid::<FMA, N>(Lanes(*x).map(|x| -x)).0;
    }
    let mut last = [0.0; N];
    last[..rest.len()].copy_from_slice(rest);
    let last = simd_math::sigmoid::<FMA, N>(Lanes(last).map(|x| -x)).0;
    rest.copy_from_slice(&last[..rest.len()]);
}
crate::levels!(pub(super) fn slope(x: &mut [f32]) = slope_body, 1, [4, 8, 16]);

/// Turns a chunk's gates into the logarithm of the input gate (in `i`) and `b`, the sum of those of the forget gates up to
/// each token. `f` is overwritten.
pub(super) fn sums(gate: Gate, i: &mut [f32], f: &mut [f32], b: &mut [f64]) {
    if gate == Gate::Sigmoid {
        log_sigmoid(i);
    }
    log_sigmoid(f);
    let mut sum = 0.0;
    for (b, f) in b.iter_mut().zip(f) {
        // NaN stays.
        sum += if f64::from(*f) < LOG_FORGET_LEAST { LOG_FORGET_LEAST } else { f64::from(*f) };
        *b = sum;
    }
}

/// The gauge of each token of a chunk that starts in the gauge `m`; f32, as it is saved, and then exact by definition.
pub(super) fn gauges(li: &[f32], b: &[f64], start: f32, m: &mut [f32]) {
    let mut most = f64::from(start);
    for ((m, b), li) in m.iter_mut().zip(b).zip(li) {
        let here = if f64::from(*li) < GAUGE_LEAST { GAUGE_LEAST } else { f64::from(*li) } - b;
        // NaN stays.
        most = if most > here || most.is_nan() { most } else { here };
        *m = (b + most) as f32;
    }
}

/// A chunk as the products need it.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub li: &'a [f32],
    pub b: &'a [f64],
    /// Empty where the gauge is 0.
    pub m: &'a [f32],
    /// The gauge before the chunk.
    pub start: f32,
}

impl Chunk<'_> {
    pub(super) fn len(&self) -> usize {
        self.b.len()
    }
    pub(super) fn gauge(&self, t: usize) -> f64 {
        self.m.get(t).map_or(0.0, |&m| f64::from(m))
    }
    /// `e^(g + m - m')`: what is left of the state behind the chunk.
    pub(super) fn kept(&self) -> f32 {
        let last = self.len() - 1;
        (self.b[last] + f64::from(self.start) - self.gauge(last)).exp() as f32
    }
    /// `e^(b_t + m - m_t)`: what is left of the state at each token.
    pub(super) fn past(&self, to: &mut [f32]) {
        for (t, (to, b)) in to.iter_mut().zip(self.b).enumerate() {
            *to = (b + f64::from(self.start) - self.gauge(t)) as f32;
        }
        exps(&mut to[..self.len()]);
    }
    /// `e^-m_t`: the least denominator of each token.
    pub(super) fn floors(&self, to: &mut [f32]) {
        let n = self.len();
        if self.m.is_empty() {
            return to[..n].fill(1.0);
        }
        to.iter_mut().zip(self.m).for_each(|(to, m)| *to = -m);
        exps(&mut to[..n]);
        // What is not a normal number is 0 there, and nothing may be divided by it before it must.
        for (to, &m) in to.iter_mut().zip(self.m).filter(|(_, m)| **m > 87.0) {
            *to = (-f64::from(m)).exp() as f32;
        }
    }
    /// `e^(a_s - m')`: what of each token enters the state behind the chunk.
    pub(super) fn entering(&self, to: &mut [f32]) {
        let last = self.len() - 1;
        let end = self.b[last] - self.gauge(last);
        for ((to, b), li) in to.iter_mut().zip(self.b).zip(self.li) {
            *to = (end - b + f64::from(*li)) as f32;
        }
        exps(&mut to[..self.len()]);
    }
}

#[inline(always)]
fn exps_body<const FMA: bool, const R: usize, const N: usize>(x: &mut [f32]) {
    let (chunks, rest) = x.as_chunks_mut::<N>();
    for x in chunks {
        *x = simd_math::exp::<FMA, N>(Lanes(*x)).0;
    }
    let mut last = [0.0; N];
    last[..rest.len()].copy_from_slice(rest);
    let last = simd_math::exp::<FMA, N>(Lanes(last)).0;
    rest.copy_from_slice(&last[..rest.len()]);
}
crate::levels!(fn exps(x: &mut [f32]) = exps_body, 1, [4, 8, 16]);

/// Sums of logarithms that are this far apart have weights beside each other that f32 makes of one base.
const NEAR: f64 = 16.0;

/// Weighs the pairs of a chunk: `s [L, stride]` becomes `P = scale s D` with zeros behind the diagonal, as far as products read,
/// and `sums` gets the sums of its rows. Where `ds` is not empty it becomes `(ds + dl_t) D` alike.
#[inline(always)]
fn weigh_body<const FMA: bool, const R: usize, const N: usize>(
    chunk: Chunk<'_>,
    scale: f32,
    stride: usize,
    s: &mut [f32],
    sums: &mut [f32],
    ds: &mut [f32],
    dl: &[f32],
) {
    let n = chunk.len();
    let both = !ds.is_empty();
    assert!(n <= CHUNK_MOST && stride >= n && stride.is_multiple_of(PANEL) && stride <= CHUNK_MOST);
    let mut w = [f32::NEG_INFINITY; CHUNK_MOST];
    // No array::from_fn in here: it is not always inlined.
    let mut lane = Lanes([0.0; N]);
    lane.0.iter_mut().enumerate().for_each(|(l, x)| *x = l as f32);
    let scale = Lanes::<N>::splat(scale);
    for block in (0..n).step_by(PANEL) {
        // Relative to the block's start, or to a row behind gates that are shut, both parts of an exponent that matters are small.
        let mut base = f64::INFINITY;
        for t in block..n.min(block + PANEL) {
            let near = base - chunk.b[t] <= NEAR;
            if !near {
                base = chunk.b[t];
                for r in 0..n.min(block + PANEL) {
                    w[r] = (f64::from(chunk.li[r]) - (chunk.b[r] - base)) as f32;
                }
            }
            let u = Lanes::<N>::splat((chunk.b[t] - base - chunk.gauge(t)) as f32);
            let add = Lanes::<N>::splat(if both { dl[t] } else { 0.0 });
            let width = ((t + FRINGE) / PANEL * PANEL + PANEL).min(stride);
            let row = &mut s[t * stride..][..width];
            let mut total = Lanes::<N>::splat(0.0);
            for (at, x) in row.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                let first = at * N;
                let there = (t + 1) as f32 - first as f32;
                let weights = Lanes(*w[first..].first_chunk::<N>().expect("w is as wide as a row"));
                let d = simd_math::exp::<FMA, N>(weights + u);
                // What lies behind the diagonal may be anything, so it is chosen away and not multiplied by 0.
                let keep = |x: Lanes<N>| x.zip(lane, |x, l| if l < there { x } else { 0.0 });
                let p = keep(Lanes(*x) * (d * scale));
                *x = p.0;
                total = total + p;
                if both {
                    let y = ds[t * stride + first..].first_chunk_mut::<N>().expect("ds is as wide as s");
                    *y = keep((Lanes(*y) + add) * d).0;
                }
            }
            sums[t] = total.0.iter().sum();
        }
    }
}
crate::levels!(pub(super) fn weigh(
    chunk: Chunk<'_>,
    scale: f32,
    stride: usize,
    s: &mut [f32],
    sums: &mut [f32],
    ds: &mut [f32],
    dl: &[f32],
) = weigh_body, 1, [4, 8, 16]);

/// `to += factor x`.
pub(super) fn add(to: &mut [f32], factor: f32, x: &[f32]) {
    crate::dispatch!(fn axpy(to: &mut [f32], factor: f32, x: &[f32]) = axpy_body);
    axpy(to, factor, x);
}
#[inline(always)]
fn axpy_body(to: &mut [f32], factor: f32, x: &[f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}
