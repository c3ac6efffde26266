//! What the loops over synapses do by name of instruction where vectors are AVX registers of 8 lanes.
//!
//! The compiler makes such vectors out of arrays by itself, but not where two synapses of 4 rows stand side by side: it
//! computes in halves then, with shuffles between them (3.5 times as long in the adjoint), and not of sums over lanes.
//! Elsewhere the functions are never called, and nothing stands in them.

use super::fold::{PACK, Pack};
use crate::simd_math::Lanes;

/// Whether vectors are AVX registers. `FMA` is only said by bodies that are compiled for AVX2 or more.
pub(super) const fn registers<const FMA: bool, const N: usize>() -> bool {
    cfg!(target_arch = "x86_64") && FMA && N == 8
}

/// Whether each holds two synapses of 4 rows.
pub(super) const fn pairs<const FMA: bool, const R: usize, const N: usize>() -> bool {
    registers::<FMA, N>() && R == 4
}

#[cfg(not(target_arch = "x86_64"))]
mod names {
    use super::*;
    pub unsafe fn constants<const N: usize>(_: &Pack) -> [Lanes<N>; 4] {
        unreachable!()
    }
    pub unsafe fn rows<const N: usize>(_: &[f32], _: &[i32; PACK]) -> Lanes<N> {
        unreachable!()
    }
    pub unsafe fn repeated<const R: usize, const N: usize>(_: &Lanes<R>) -> Lanes<N> {
        unreachable!()
    }
    pub unsafe fn pull<const N: usize>(_: &Pack, _: &[i32; PACK], _: [&Lanes<N>; 3], _: &mut [f32]) {}
    pub unsafe fn add_products<const N: usize>(_: &mut [Lanes<N>; 4], _: &[Lanes<N>; 4], _: [&Lanes<N>; 4]) {}
    pub unsafe fn add_lane_sums<const R: usize, const N: usize>(_: &[[Lanes<N>; 4]; PACK], _: &mut [[f64; 4]; PACK]) {}
}

#[cfg(target_arch = "x86_64")]
mod names {
    use super::super::gates::{A, MU, P, Q};
    use super::*;
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX, and N = 8.
    #[inline(always)]
    unsafe fn register<const N: usize>(x: &Lanes<N>) -> __m256 {
        // SAFETY: 8 elements, as the caller promises.
        unsafe { _mm256_loadu_ps(x.0.as_ptr()) }
    }

    /// # Safety
    /// The CPU has AVX, and N = 8.
    #[inline(always)]
    unsafe fn lanes<const N: usize>(x: __m256) -> Lanes<N> {
        let mut lanes = Lanes([0.0; N]);
        // SAFETY: 8 elements, as the caller promises.
        unsafe { _mm256_storeu_ps(lanes.0.as_mut_ptr(), x) };
        lanes
    }

    /// A pack's constants mu, a, p, q, each over the 4 rows of each synapse.
    ///
    /// # Safety
    /// Vectors must be [`pairs`].
    #[inline(always)]
    pub unsafe fn constants<const N: usize>(pack: &Pack) -> [Lanes<N>; 4] {
        let mut x = [Lanes([0.0; N]); 4];
        // SAFETY: the CPU has AVX; a pack is 8 elements, aligned to 32 bytes. The load is volatile so that it stays one.
        unsafe {
            let both = (&raw const *pack).cast::<__m256>().read_volatile();
            x[MU] = lanes(_mm256_permute_ps::<0x00>(both));
            x[A] = lanes(_mm256_permute_ps::<0x55>(both));
            x[P] = lanes(_mm256_permute_ps::<0xaa>(both));
            x[Q] = lanes(_mm256_permute_ps::<0xff>(both));
        }
        x
    }

    /// Two rows of `v`, `[_, 4]`, side by side.
    ///
    /// # Safety
    /// Vectors must be [`pairs`], and `v` must have the rows.
    #[inline(always)]
    pub unsafe fn rows<const N: usize>(v: &[f32], source: &[i32; PACK]) -> Lanes<N> {
        debug_assert!(source.iter().all(|&i| (i as usize + 1) * 4 <= v.len()));
        // SAFETY: the CPU has AVX, and the rows are in bounds, as the caller promises.
        unsafe {
            let row = source.map(|i| v.as_ptr().add(i as usize * 4));
            lanes(_mm256_set_m128(_mm_loadu_ps(row[1]), _mm_loadu_ps(row[0])))
        }
    }

    /// 4 rows, twice.
    ///
    /// # Safety
    /// Vectors must be [`pairs`].
    #[inline(always)]
    pub unsafe fn repeated<const R: usize, const N: usize>(x: &Lanes<R>) -> Lanes<N> {
        // SAFETY: the CPU has AVX, and there are 4 elements.
        unsafe {
            let x = _mm_loadu_ps(x.0.as_ptr());
            lanes(_mm256_set_m128(x, x))
        }
    }

    /// `(alpha q + beta p) r (1 - r)`.
    ///
    /// # Safety
    /// The CPU has AVX and FMA.
    #[inline(always)]
    unsafe fn gradient(r: __m256, alpha: __m256, beta: __m256, p: __m256, q: __m256) -> __m256 {
        // SAFETY: as the caller promises.
        unsafe { _mm256_mul_ps(_mm256_fmadd_ps(alpha, q, _mm256_mul_ps(beta, p)), _mm256_fnmadd_ps(r, r, r)) }
    }

    /// Adds `dz a` of both synapses to their sources' rows of `pulled`, `[I + 1, 4]`, from r, alpha and beta.
    ///
    /// # Safety
    /// Vectors must be [`pairs`], and `pulled` must have the rows.
    #[inline(always)]
    pub unsafe fn pull<const N: usize>(
        pack: &Pack,
        source: &[i32; PACK],
        [r, alpha, beta]: [&Lanes<N>; 3],
        pulled: &mut [f32],
    ) {
        debug_assert!(source.iter().all(|&i| (i as usize + 1) * 4 <= pulled.len()));
        // SAFETY: the CPU has AVX and FMA, and the rows are in bounds, as the caller promises.
        unsafe {
            let [_, a, p, q] = constants::<N>(pack);
            let dz = gradient(register(r), register(alpha), register(beta), register(&p), register(&q));
            let x = _mm256_mul_ps(dz, register(&a));
            for (&i, x) in source.iter().zip([_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)]) {
                let row = pulled.as_mut_ptr().add(i as usize * 4);
                _mm_storeu_ps(row, _mm_add_ps(_mm_loadu_ps(row), x));
            }
        }
    }

    /// Adds `alpha r`, `beta r`, dz and `dz (v - mu)` to the four sums, from v, r, alpha and beta.
    ///
    /// # Safety
    /// Vectors must be [`pairs`].
    #[inline(always)]
    pub unsafe fn add_products<const N: usize>(
        sum: &mut [Lanes<N>; 4],
        of: &[Lanes<N>; 4],
        [v, r, alpha, beta]: [&Lanes<N>; 4],
    ) {
        // SAFETY: the CPU has AVX and FMA.
        unsafe {
            let (r, alpha, beta) = (register(r), register(alpha), register(beta));
            let dz = gradient(r, alpha, beta, register(&of[P]), register(&of[Q]));
            let far = _mm256_sub_ps(register(v), register(&of[MU]));
            sum[0] = lanes(_mm256_fmadd_ps(alpha, r, register(&sum[0])));
            sum[1] = lanes(_mm256_fmadd_ps(beta, r, register(&sum[1])));
            sum[2] = lanes(_mm256_add_ps(register(&sum[2]), dz));
            sum[3] = lanes(_mm256_fmadd_ps(dz, far, register(&sum[3])));
        }
    }

    /// Adds the four sums over the lanes of each of a pack's synapses to their totals, in the order of
    /// [`lane_sum`](super::super::gates::lane_sum): as eight sums each by itself they took as long as what they sum.
    ///
    /// # Safety
    /// Vectors must be [`registers`] of 4 or 8 rows.
    #[inline(always)]
    pub unsafe fn add_lane_sums<const R: usize, const N: usize>(
        both: &[[Lanes<N>; 4]; PACK],
        total: &mut [[f64; 4]; PACK],
    ) {
        // SAFETY: the CPU has AVX; totals have 4 elements.
        unsafe {
            // Four lanes of each synapse, side by side, of each quantity.
            let mut x = [_mm256_setzero_ps(); 4];
            for (x, (first, second)) in x.iter_mut().zip(both[0].iter().zip(&both[1])) {
                let (first, second) = (register(first), register(second));
                *x = if R == 4 {
                    first
                } else {
                    let low = _mm256_permute2f128_ps::<0x20>(first, second);
                    _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(first, second))
                };
            }
            let x01 = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
            let x23 = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
            let x = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(x01, x23), _mm256_shuffle_ps::<0xee>(x01, x23));
            let [first, second] = total;
            for (total, x) in [(first, _mm256_castps256_ps128(x)), (second, _mm256_extractf128_ps::<1>(x))] {
                let sum = _mm256_add_pd(_mm256_loadu_pd(total.as_ptr()), _mm256_cvtps_pd(x));
                _mm256_storeu_pd(total.as_mut_ptr(), sum);
            }
        }
    }
}

pub(super) use names::*;
