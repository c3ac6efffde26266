//! Tiles of sums of products by name of instruction: of arrays of lanes the compiler does not always make registers. Sums of [`TERMS`] terms
//! stay in registers, in the order of the terms, by multiply-adds where the CPU has them, and then those are added up: of n terms the
//! roundings are those of n / TERMS + TERMS additions.
//!
//! Floor: of AVX-512 16 multiply-adds of 16 lanes take two loads and eight broadcasts, so two units at 4.3 GHz do 276 GFLOP a second.
#![allow(unsafe_code)]

use crate::simd::{SimdLevel, level};

/// Rows and columns of a tile: what the registers of AVX-512 hold, and of AVX2 (and of less).
pub(super) const WIDE: (usize, usize) = (8, 32);
pub(super) const NARROW: (usize, usize) = (6, 16);

/// Terms of a sum before it is added to the others.
const TERMS: usize = 64;

/// `c[i][j] = sum_k a[k][i] b[k][j]` of packed panels `a [depth, M]` and `b [depth, N]`, or with `add` that on top of c.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    /// `[M, N]`, rows of `stride` elements.
    pub c: *mut f32,
    pub stride: usize,
    pub add: bool,
}

/// A tile of one size.
///
/// # Safety
/// Nobody else may touch the elements of c, which are there, nor may the CPU lack the instructions.
pub(super) type Kernel = unsafe fn(&Tile<'_>);

/// # Safety
/// As [`Kernel`].
#[inline(always)]
unsafe fn plain<const FMA: bool, const M: usize, const N: usize>(t: &Tile<'_>) {
    for (some, (a, b)) in t.a.chunks(TERMS * M).zip(t.b.chunks(TERMS * N)).enumerate() {
        let mut s = [[0f32; N]; M];
        for (x, y) in a.chunks_exact(M).zip(b.chunks_exact(N)) {
            for i in 0..M {
                for j in 0..N {
                    s[i][j] = if FMA { x[i].mul_add(y[j], s[i][j]) } else { s[i][j] + x[i] * y[j] };
                }
            }
        }
        for (i, s) in s.iter_mut().enumerate() {
            // SAFETY: row i of c.
            let row = unsafe { &mut *t.c.add(i * t.stride).cast::<[f32; N]>() };
            if t.add || some > 0 {
                s.iter_mut().zip(&*row).for_each(|(s, c)| *s += c);
            }
            *row = *s;
        }
    }
}

/// # Safety
/// As [`Kernel`].
unsafe fn wide_plain(t: &Tile<'_>) {
    // SAFETY: as the caller promises. Where the base target has fused multiply-adds they cost nothing, and otherwise too much.
    unsafe { plain::<{ cfg!(target_arch = "aarch64") }, { WIDE.0 }, { WIDE.1 }>(t) }
}
/// # Safety
/// As [`Kernel`].
unsafe fn narrow_plain(t: &Tile<'_>) {
    // SAFETY: as above.
    unsafe { plain::<{ cfg!(target_arch = "aarch64") }, { NARROW.0 }, { NARROW.1 }>(t) }
}

/// The kernel of wide tiles.
pub(super) fn wide() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if level() == SimdLevel::Avx512 {
        return x86::avx512;
    }
    wide_plain
}

/// The kernel of narrow tiles.
pub(super) fn narrow() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if matches!(level(), SimdLevel::Avx2 | SimdLevel::Avx512) {
        return x86::avx2;
    }
    narrow_plain
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{NARROW, TERMS, Tile, WIDE};
    use std::arch::x86_64::*;

    // Rows by number, and addresses that are not checked: what a loop counts the compiler may keep in memory.
    macro_rules! kernel {
        (
            $(#[$meta:meta])* $name:ident, $size:ident, [$($i:literal)*], $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident,
            $add:ident, $mul_add:ident
        ) => {
            /// # Safety
            /// As [`Kernel`](super::Kernel).
            $(#[$meta])*
            pub(super) unsafe fn $name(t: &Tile<'_>) {
                const M: usize = $size.0;
                const { assert!($size.1 == 2 * $lanes && [$($i),*].len() == M) }
                let depth = t.a.len() / M;
                assert!(t.b.len() == depth * $size.1, "panels of {} and {} floats", t.a.len(), t.b.len());
                let row = |i: usize| t.c.wrapping_add(i.wrapping_mul(t.stride));
                // SAFETY: the CPU has the instructions and the elements of c are this call's, as the caller promises; a and b have
                // `depth` times so many floats.
                unsafe {
                    let (mut a, mut b) = (t.a.as_ptr(), t.b.as_ptr());
                    let mut left = depth;
                    while left > 0 {
                        let mut s = [[$zero(); 2]; M];
                        let some = left.min(TERMS);
                        for _ in 0..some {
                            let y = [$load(b), $load(b.wrapping_add($lanes))];
                            $(
                                let x = $splat(*a.wrapping_add($i));
                                s[$i][0] = $mul_add(x, y[0], s[$i][0]);
                                s[$i][1] = $mul_add(x, y[1], s[$i][1]);
                            )*
                            (a, b) = (a.wrapping_add(M), b.wrapping_add($size.1));
                        }
                        if t.add || left < depth {
                            $(
                                s[$i][0] = $add(s[$i][0], $load(row($i)));
                                s[$i][1] = $add(s[$i][1], $load(row($i).wrapping_add($lanes)));
                            )*
                        }
                        $(
                            $store(row($i), s[$i][0]);
                            $store(row($i).wrapping_add($lanes), s[$i][1]);
                        )*
                        left -= some;
                    }
                }
            }
        };
    }
    kernel!(
        #[target_feature(enable = "avx512f")]
        avx512,
        WIDE,
        [0 1 2 3 4 5 6 7],
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_fmadd_ps
    );
    kernel!(
        #[target_feature(enable = "avx2,fma")]
        avx2,
        NARROW,
        [0 1 2 3 4 5],
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_fmadd_ps
    );
}
