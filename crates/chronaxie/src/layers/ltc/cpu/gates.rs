//! The loops over synapses: R batch rows are the lanes, N / R synapses of one target stand side by side in a vector.
//!
//! Constants of a synapse are broadcast to its lanes, and the states of its source are R neighbours in memory, so that
//! nothing is gathered and nothing is reduced across lanes but once a step. Where two synapses share a vector, results
//! go through memory N lanes at a time: a store of R lanes would let the compiler compute in vectors of R.

use super::avx;
use super::fold::{PACK, Pack, Side};
use crate::simd_math::{Lanes, sigmoid_exp2, sigmoids_exp2};

/// Gates never fall below 2^-64: far below what f32 sums of them resolve, and products stay normal numbers.
const LOW: f32 = -64.0;
const HIGH: f32 = 64.0;
/// Where a target's gates are known to stay within this, holding them changes no bit and is left out: the rounding of
/// the bound is far less than the difference.
const FREE: f32 = 60.0;

/// N elements from `at`.
///
/// # Safety
/// `at + N` must be in bounds.
#[inline(always)]
unsafe fn load<const N: usize>(from: &[f32], at: usize) -> Lanes<N> {
    debug_assert!(at + N <= from.len());
    // SAFETY: in bounds as the caller promises; an array has the alignment of its elements.
    Lanes(unsafe { *from.as_ptr().add(at).cast::<[f32; N]>() })
}

/// Writes N elements from `at`.
///
/// # Safety
/// `at + N` must be in bounds.
#[inline(always)]
unsafe fn store<const N: usize>(to: &mut [f32], at: usize, x: Lanes<N>) {
    debug_assert!(at + N <= to.len());
    // SAFETY: in bounds as the caller promises; an array has the alignment of its elements.
    unsafe { *to.as_mut_ptr().add(at).cast::<[f32; N]>() = x.0 }
}

/// The rows of the N / R sources from half `at` of a pack, side by side.
///
/// # Safety
/// Every source must be a row of `v`, `[I + 1, R]` from `base`.
#[inline(always)]
unsafe fn sources<const FMA: bool, const R: usize, const N: usize>(
    v: &[f32],
    base: usize,
    s: &[i32; PACK],
    at: usize,
) -> Lanes<N> {
    if avx::pairs::<FMA, R, N>() {
        // SAFETY: these are pairs, and the rows are in bounds, as the caller promises.
        return unsafe { avx::rows(&v[base..], s) };
    }
    let mut x = [0.0; N];
    for q in 0..N / R {
        // SAFETY: a row in bounds, as the caller promises.
        let row = unsafe { load::<R>(v, base + s[at + q] as usize * R) };
        x[q * R..(q + 1) * R].copy_from_slice(&row.0);
    }
    Lanes(x)
}

/// The constants mu, a, p, q of the N / R synapses from `half` of a pack, over their R lanes.
#[inline(always)]
fn constants<const FMA: bool, const R: usize, const N: usize>(pack: &Pack, half: usize) -> [Lanes<N>; 4] {
    if avx::pairs::<FMA, R, N>() {
        // SAFETY: these are pairs.
        return unsafe { avx::constants(pack) };
    }
    let mut x = [Lanes([0.0; N]); 4];
    for (which, x) in x.iter_mut().enumerate() {
        for l in 0..N {
            x.0[l] = pack.0[(half + l / R) * 4 + which];
        }
    }
    x
}

/// R lanes, repeated for each synapse of a vector.
#[inline(always)]
fn repeated<const FMA: bool, const R: usize, const N: usize>(x: Lanes<R>) -> Lanes<N> {
    if avx::pairs::<FMA, R, N>() {
        // SAFETY: these are pairs.
        return unsafe { avx::repeated(&x) };
    }
    let mut y = [0.0; N];
    for (l, y) in y.iter_mut().enumerate() {
        *y = x.0[l % R];
    }
    Lanes(y)
}

pub(super) const MU: usize = 0;
pub(super) const A: usize = 1;
pub(super) const P: usize = 2;
pub(super) const Q: usize = 3;

/// The largest magnitude of the sources' values, `[I, R]`, but for NaN.
#[inline(always)]
fn largest<const R: usize>(v: &[f32], sources: usize) -> f32 {
    let mut most = [0.0f32; R];
    for row in &v.as_chunks::<R>().0[..sources] {
        for l in 0..R {
            let x = row[l].abs();
            most[l] = if x > most[l] { x } else { most[l] };
        }
    }
    most.into_iter().fold(0.0, f32::max)
}

/// Adds `sum q r` to `num` and `sum p r` to `den`, `[H, N]` each, from the sources' values `v`, `[I + 1, R]`.
///
/// With `KEEP` the gates r go to `gates`, `[packs, 2, R]`.
#[inline(always)]
pub(super) fn sums<const FMA: bool, const R: usize, const N: usize, const KEEP: bool>(
    side: &Side<'_>,
    v: &[f32],
    num: &mut [f32],
    den: &mut [f32],
    gates: &mut [f32],
) {
    let hidden = side.first.len() - 1;
    assert!(v.len() >= (side.sources + 1) * R && num.len() >= hidden * N && den.len() >= hidden * N);
    assert!(!KEEP || gates.len() >= side.packs.len() * PACK * R);
    let most = largest::<R>(v, side.sources);
    for j in 0..hidden {
        // A NaN among the bounds must lead to the gates that are held within theirs.
        let [steepest, offset] = side.reach[j];
        let free = steepest * most + offset <= FREE;
        // SAFETY: j * N + N is at most hidden * N, asserted above, as are the lengths of v and gates.
        unsafe {
            let (n, d) = (load::<N>(num, j * N), load::<N>(den, j * N));
            let (n, d) = if free {
                target_sums::<FMA, R, N, KEEP, false>(side, j, v, n, d, gates)
            } else {
                target_sums::<FMA, R, N, KEEP, true>(side, j, v, n, d, gates)
            };
            store(num, j * N, n);
            store(den, j * N, d);
        }
    }
}

/// The sums of one target, added to `n` and `d`. Without `HOLD` the bounds on gates are known to be kept.
///
/// # Safety
/// `v` must have I + 1 rows and, with `KEEP`, `gates` must hold all packs' gates.
#[inline(always)]
unsafe fn target_sums<const FMA: bool, const R: usize, const N: usize, const KEEP: bool, const HOLD: bool>(
    side: &Side<'_>,
    j: usize,
    v: &[f32],
    mut n: Lanes<N>,
    mut d: Lanes<N>,
    gates: &mut [f32],
) -> (Lanes<N>, Lanes<N>) {
    let range = side.packs_of(j);
    let mut at = range.start;
    // Two vectors go side by side: one pack, or two where its synapses share a vector.
    let step = if R == N { 1 } else { 2 };
    while at + step <= range.end {
        // SAFETY: the packs are this target's; the rest as the caller promises.
        (n, d) = unsafe {
            if R == N {
                pack_sums::<FMA, R, N, KEEP, HOLD, 1>(side, at, v, n, d, gates)
            } else {
                pack_sums::<FMA, R, N, KEEP, HOLD, 2>(side, at, v, n, d, gates)
            }
        };
        at += step;
    }
    if R != N && at < range.end {
        // SAFETY: as above.
        (n, d) = unsafe { pack_sums::<FMA, R, N, KEEP, HOLD, 1>(side, at, v, n, d, gates) };
    }
    (n, d)
}

/// The sums of `COUNT` packs from `at`, of two vectors at most.
///
/// # Safety
/// As [`target_sums`], and the packs must be there.
#[inline(always)]
unsafe fn pack_sums<
    const FMA: bool,
    const R: usize,
    const N: usize,
    const KEEP: bool,
    const HOLD: bool,
    const COUNT: usize,
>(
    side: &Side<'_>,
    at: usize,
    v: &[f32],
    mut n: Lanes<N>,
    mut d: Lanes<N>,
    gates: &mut [f32],
) -> (Lanes<N>, Lanes<N>) {
    let (beside, each) = (N / R, PACK * R / N);
    let (mut r, mut of) = ([Lanes::splat(0.0); 2], [[Lanes::splat(0.0); 4]; 2]);
    debug_assert!(at + COUNT <= side.packs.len());
    for m in 0..COUNT * each {
        let (pack, half) = (at + m / each, m % each * beside);
        // SAFETY: the pack is there, a Side's sources are at most I, and v has I + 1 rows, as the caller promises.
        let x = unsafe {
            of[m] = constants::<FMA, R, N>(side.packs.get_unchecked(pack), half);
            sources::<FMA, R, N>(v, 0, side.source_of.get_unchecked(pack), half)
        };
        r[m] = of[m][A] * (x - of[m][MU]);
        if HOLD {
            r[m] = r[m].clamped(LOW, HIGH);
        }
    }
    sigmoids_exp2::<FMA, N>(&mut r[..COUNT * each]);
    for m in 0..COUNT * each {
        if KEEP {
            // SAFETY: gates holds 2 R for each pack, as the caller promises.
            unsafe { store(gates, (at * PACK + m * beside) * R, r[m]) };
        }
        n = of[m][Q].mul_add::<FMA>(r[m], n);
        d = of[m][P].mul_add::<FMA>(r[m], d);
    }
    (n, d)
}

/// Where the gates of an adjoint come from.
pub(super) mod source {
    /// They are read.
    pub const READ: u8 = 0;
    /// They are evaluated.
    pub const EVALUATE: u8 = 1;
    /// They are evaluated and written.
    pub const KEEP: u8 = 2;
}

/// The gradient of `z = sigma (v - mu)`: `(alpha q + beta p) r (1 - r)`.
#[inline(always)]
fn gradient<const FMA: bool, const N: usize>(
    r: Lanes<N>,
    alpha: Lanes<N>,
    beta: Lanes<N>,
    p: Lanes<N>,
    q: Lanes<N>,
) -> Lanes<N> {
    let minus = r.map(|r| -r);
    alpha.mul_add::<FMA>(q, beta * p) * minus.mul_add::<FMA>(r, r)
}

/// Adds the sum of `dz a` over targets to `pulled`, `[I + 1, R]`; times -ln 2 it is the sum of `dz sigma`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn adjoint<const FMA: bool, const R: usize, const N: usize, const GATES: u8>(
    side: &Side<'_>,
    v: &[f32],
    alpha: &[f32],
    beta: &[f32],
    gates: &mut [f32],
    products: &mut [f32],
    pulled: &mut [f32],
) {
    let hidden = side.first.len() - 1;
    let rows = (side.sources + 1) * R;
    assert!(v.len() >= rows && pulled.len() >= rows && alpha.len() >= hidden * R && beta.len() >= hidden * R);
    assert!(GATES == source::EVALUATE || gates.len() >= side.packs.len() * PACK * R);
    for j in 0..hidden {
        let range = side.packs_of(j);
        assert!(R == N || products.len() >= range.len() * PACK * R);
        // SAFETY: j is below H, and both hold H R, asserted above.
        let (al, be) = unsafe { (load::<R>(alpha, j * R), load::<R>(beta, j * R)) };
        let (al, be) = (repeated::<FMA, R, N>(al), repeated::<FMA, R, N>(be));
        let lists = side.packs[range.clone()].iter().zip(&side.source_of[range.clone()]);
        for (local, (pack, from)) in lists.clone().enumerate() {
            let at = range.start + local;
            for half in (0..PACK).step_by(N / R) {
                let [mu, a, p, q] = constants::<FMA, R, N>(pack, half);
                let r = if GATES == source::READ {
                    // SAFETY: at is below the number of packs, and gates holds 2 R for each, asserted above.
                    unsafe { load::<N>(gates, (at * PACK + half) * R) }
                } else {
                    // SAFETY: a Side's sources are at most I, and v has I + 1 rows.
                    let x = unsafe { sources::<FMA, R, N>(v, 0, from, half) };
                    sigmoid_exp2::<FMA, N>(a * (x - mu), LOW, HIGH)
                };
                if GATES == source::KEEP {
                    // SAFETY: as for the load.
                    unsafe { store(gates, (at * PACK + half) * R, r) };
                }
                if avx::pairs::<FMA, R, N>() {
                    // SAFETY: these are pairs, sources are at most I, and pulled has I + 1 rows.
                    unsafe { avx::pull(pack, from, [&r, &al, &be], pulled) };
                    continue;
                }
                let dz = gradient::<FMA, N>(r, al, be, p, q);
                if R == N {
                    let row = from[half] as usize * R;
                    // SAFETY: a Side's sources are at most I, and pulled has I + 1 rows.
                    unsafe { store(pulled, row, dz.mul_add::<FMA>(a, load::<N>(pulled, row))) };
                } else {
                    // SAFETY: local is below the packs of this target, for which products was asserted to hold 2 R each.
                    unsafe { store(products, (local * PACK + half) * R, dz * a) };
                }
            }
        }
        if R != N && !avx::pairs::<FMA, R, N>() {
            for (local, (_, from)) in lists.enumerate() {
                for (half, &i) in from.iter().enumerate() {
                    let row = i as usize * R;
                    // SAFETY: as above, and products was written so far.
                    unsafe {
                        let sum = load::<R>(pulled, row) + load::<R>(products, (local * PACK + half) * R);
                        store(pulled, row, sum);
                    }
                }
            }
        }
    }
}

/// What [`parameter_sums`] sums over: `count` unfolds, or steps.
pub(super) struct Times<'a> {
    pub count: usize,
    /// `[count, I + 1, R]`.
    pub v: &'a [f32],
    /// `[count, H, R]`.
    pub alpha: &'a [f32],
    /// `[count, H, R]`.
    pub beta: &'a [f32],
    /// `[count, packs, 2, R]`, or unused.
    pub gates: &'a [f32],
}

/// Adds, for each synapse, the sums over times and lanes of `alpha r`, `beta r`, `dz` and `dz (v - mu)` to `total`,
/// `[packs, 2]`. With `READ` the gates are read.
#[inline(always)]
pub(super) fn parameter_sums<const FMA: bool, const R: usize, const N: usize, const READ: bool>(
    side: &Side<'_>,
    times: &Times<'_>,
    partial: &mut [f32],
    total: &mut [[f64; 4]],
) {
    let hidden = side.first.len() - 1;
    let (rows, count, used) = ((side.sources + 1) * R, times.count, side.packs.len() * PACK);
    let kept = used * R;
    assert!(times.v.len() >= count * rows && times.alpha.len() >= count * hidden * R);
    assert!(times.beta.len() >= count * hidden * R && (!READ || times.gates.len() >= count * kept));
    assert!(total.len() >= used);
    for j in 0..hidden {
        let range = side.packs_of(j);
        assert!(partial.len() >= range.len() * PACK * 4 * R);
        let lists = side.packs[range.clone()].iter().zip(&side.source_of[range.clone()]);
        for (local, (pack, from)) in lists.enumerate() {
            let at = range.start + local;
            let mut both = [[Lanes::<N>::splat(0.0); 4]; PACK];
            for (m, sum) in both[..PACK * R / N].iter_mut().enumerate() {
                let half = m * (N / R);
                let of = constants::<FMA, R, N>(pack, half);
                for k in 0..count {
                    let neuron = (k * hidden + j) * R;
                    // SAFETY: k and j are below count and H, sources at most I, and all lengths are asserted above.
                    let (x, al, be) = unsafe {
                        (
                            sources::<FMA, R, N>(times.v, k * rows, from, half),
                            load::<R>(times.alpha, neuron),
                            load::<R>(times.beta, neuron),
                        )
                    };
                    let r = if READ {
                        // SAFETY: at is below the number of packs; the length is asserted above.
                        unsafe { load::<N>(times.gates, k * kept + (at * PACK + half) * R) }
                    } else {
                        sigmoid_exp2::<FMA, N>(of[A] * (x - of[MU]), LOW, HIGH)
                    };
                    let (al, be) = (repeated::<FMA, R, N>(al), repeated::<FMA, R, N>(be));
                    if avx::pairs::<FMA, R, N>() {
                        // SAFETY: these are pairs.
                        unsafe { avx::add_products(sum, &of, [&x, &r, &al, &be]) };
                        continue;
                    }
                    let d = x - of[MU];
                    let dz = gradient::<FMA, N>(r, al, be, of[P], of[Q]);
                    sum[0] = al.mul_add::<FMA>(r, sum[0]);
                    sum[1] = be.mul_add::<FMA>(r, sum[1]);
                    sum[2] = sum[2] + dz;
                    sum[3] = dz.mul_add::<FMA>(d, sum[3]);
                }
            }
            if avx::registers::<FMA, N>() {
                let Some(total) = total[at * PACK..].first_chunk_mut::<PACK>() else { return };
                // SAFETY: these are registers.
                unsafe { avx::add_lane_sums::<R, N>(&both, total) };
                continue;
            }
            for (m, sum) in both[..PACK * R / N].iter().enumerate() {
                for (quantity, &sum) in sum.iter().enumerate() {
                    let base = (local * PACK + m * (N / R)) * 4 * R;
                    // SAFETY: the packs of this target have 4 times 2 R elements each, asserted above.
                    unsafe { store(partial, base + quantity * N, sum) };
                }
            }
        }
        if avx::registers::<FMA, N>() {
            continue;
        }
        for (local, total) in total[range.start * PACK..range.end * PACK].iter_mut().enumerate() {
            let beside = N / R;
            let base = local / beside * 4 * N + local % beside * R;
            for (quantity, total) in total.iter_mut().enumerate() {
                // SAFETY: written above for every synapse of this target.
                let x = unsafe { load::<R>(partial, base + quantity * N) };
                *total += f64::from(lane_sum(x));
            }
        }
    }
}

/// The sum of all lanes, as a tree.
#[inline(always)]
pub(super) fn lane_sum<const R: usize>(x: Lanes<R>) -> f32 {
    let mut x = x.0;
    let mut width = R / 2;
    while width > 0 {
        for l in 0..width {
            x[l] += x[l + width];
        }
        width /= 2;
    }
    x[0]
}
