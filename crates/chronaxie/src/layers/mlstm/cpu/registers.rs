//! Vectors as registers by name of instruction, for loops that keep many of them from step to step: of arrays of lanes the
//! compiler does not always make whole registers there.

use super::gemm::{PANEL, Strides, Tile, tile_of};
use crate::simd_math::Lanes;

/// A register of floats.
pub(super) trait Register: Copy {
    const LANES: usize;
    /// Panels of 16 columns that six rows of sums have registers for.
    const PANELS: usize;
    /// Whether twelve rows of a panel have.
    const TALL: bool;

    /// All lanes x.
    ///
    /// # Safety
    /// The CPU must have such registers, here and below.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// As many floats must be there.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// As many floats must be there, and nobody else may touch them.
    unsafe fn store(self, to: *mut f32);
    /// `self factor + term`.
    ///
    /// # Safety
    /// As [`splat`](Self::splat).
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The sum of all lanes.
    ///
    /// # Safety
    /// As [`splat`](Self::splat).
    unsafe fn sum(self) -> f32;
    /// [`tile_of`] as a function of its own: with all of them in one the compiler runs out of registers.
    ///
    /// # Safety
    /// As [`tile_of`].
    unsafe fn tile<const P: usize, const R: usize>(tile: &Tile, strides: &Strides<'_>);
}

/// Calls a function of one kind of register with those that a body for `FMA` and `N` lanes has.
macro_rules! by_registers {
    ($fma:ident, $n:ident, $call:ident($($arg:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            if const { $fma && $n == 16 } {
                // SAFETY: a body of so many lanes with multiply-adds is for AVX-512 (`levels!`).
                return unsafe { $call::<std::arch::x86_64::__m512>($($arg),*) };
            }
            if const { $fma && $n == 8 } {
                // SAFETY: and one of so many for AVX2.
                return unsafe { $call::<std::arch::x86_64::__m256>($($arg),*) };
            }
        }
        // SAFETY: arrays need no instructions of their own.
        unsafe { $call::<$crate::layers::mlstm::cpu::registers::Plain<$fma, $n>>($($arg),*) }
    }};
}
pub(super) use by_registers;

/// An array, for whatever the compiler makes of it.
#[derive(Clone, Copy)]
pub(super) struct Plain<const FMA: bool, const N: usize>(Lanes<N>);

impl<const FMA: bool, const N: usize> Register for Plain<FMA, N> {
    const LANES: usize = N;
    const PANELS: usize = 1;
    const TALL: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        const { assert!(PANEL.is_multiple_of(N)) }
        Self(Lanes::splat(x))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as the caller promises.
        Self(Lanes(unsafe { from.cast::<[f32; N]>().read() }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[f32; N]>().write(self.0.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(self.0.mul_add::<FMA>(factor.0, term.0))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.0.into_iter().sum()
    }
    #[inline(never)]
    unsafe fn tile<const P: usize, const R: usize>(tile: &Tile, strides: &Strides<'_>) {
        // SAFETY: as the caller promises.
        unsafe { tile_of::<Self, P, R>(tile, strides) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Register, Strides, Tile, tile_of};
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sum8(x: __m256) -> f32 {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }

    macro_rules! register {
        ($vector:ty, $features:literal, $lanes:literal, $panels:literal, $splat:ident, $load:ident, $store:ident, $mul_add:ident, $sum:ident) => {
            impl Register for $vector {
                const LANES: usize = $lanes;
                const PANELS: usize = $panels;
                const TALL: bool = $panels > 1;

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the CPU has the instruction, as the caller promises.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: as above, and so many floats are there.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: as above.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul_add(self, factor, term) }
                }
                #[inline(always)]
                unsafe fn sum(self) -> f32 {
                    // SAFETY: as above.
                    unsafe { $sum(self) }
                }
                #[inline(always)]
                unsafe fn tile<const P: usize, const R: usize>(tile: &Tile, strides: &Strides<'_>) {
                    #[inline(never)]
                    #[target_feature(enable = $features)]
                    unsafe fn tile_here<const P: usize, const R: usize>(tile: &Tile, strides: &Strides<'_>) {
                        // SAFETY: as the caller promises.
                        unsafe { tile_of::<$vector, P, R>(tile, strides) }
                    }
                    // SAFETY: as above.
                    unsafe { tile_here::<P, R>(tile, strides) }
                }
            }
        };
    }
    register!(__m256, "avx2,fma", 8, 1, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, sum8);
    register!(
        __m512,
        "avx512f,avx512vl,avx512dq,avx512bw,fma",
        16,
        4,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_reduce_add_ps
    );
}
