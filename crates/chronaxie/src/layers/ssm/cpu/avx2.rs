//! Scans of rows contiguous in time with AVX2: eight steps are a vector, and time may run down in memory.

use super::BackwardRow;
use std::arch::x86_64::*;

/// `v` a lane further, and `first` in lane 0 of each half.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn up1(v: __m256, first: __m256) -> __m256 {
    _mm256_blend_ps::<0b0001_0001>(_mm256_permute_ps::<0b10_01_00_00>(v), first)
}
/// `v` two lanes further, and `first` in lanes 0 and 1 of each half.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn up2(v: __m256, first: __m256) -> __m256 {
    _mm256_blend_ps::<0b0011_0011>(_mm256_permute_ps::<0b01_00_00_00>(v), first)
}
/// Lane 3 in the upper half, and `first` in the lower.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn up4(v: __m256, first: __m256) -> __m256 {
    _mm256_permute2f128_ps::<0x02>(_mm256_permute_ps::<0xff>(v), first)
}

/// The maps (a, x) of eight steps become those of all steps up to each (Kogge and Stone).
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inclusive(mut a: __m256, mut x: __m256) -> (__m256, __m256) {
    let (ones, zeros) = (_mm256_set1_ps(1.0), _mm256_setzero_ps());
    x = _mm256_fmadd_ps(a, up1(x, zeros), x);
    a = _mm256_mul_ps(a, up1(a, ones));
    x = _mm256_fmadd_ps(a, up2(x, zeros), x);
    a = _mm256_mul_ps(a, up2(a, ones));
    x = _mm256_fmadd_ps(a, up4(x, zeros), x);
    a = _mm256_mul_ps(a, up4(a, ones));
    (a, x)
}

/// The state behind eight steps, in every lane: the same bits as the last lane of `a carry + x`, and nothing but this
/// one operation waits for the steps before.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn carried(a: __m256, x: __m256, carry: __m256) -> __m256 {
    let last = _mm256_set1_epi32(7);
    _mm256_fmadd_ps(_mm256_permutevar8x32_ps(a, last), carry, _mm256_permutevar8x32_ps(x, last))
}

/// Eight floats in the order of the scan; `REVERSED` where that is the opposite of memory's.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn ordered<const REVERSED: bool>(v: __m256) -> __m256 {
    if REVERSED { _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)) } else { v }
}

/// Stores eight floats, past the caches if `STREAM` and the address allow it.
///
/// # Safety
/// `to` is the address of eight floats that may be written.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store<const STREAM: bool>(to: *mut f32, v: __m256) {
    // SAFETY: eight floats may be written; the streaming stores get the alignment that they need.
    unsafe {
        if STREAM && (to as usize).is_multiple_of(16) {
            _mm_stream_ps(to, _mm256_castps256_ps128(v));
            _mm_stream_ps(to.add(4), _mm256_extractf128_ps::<1>(v));
        } else {
            _mm256_storeu_ps(to, v);
        }
    }
}

/// Orders streaming stores before whatever tells another thread that the work is done.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn publish<const STREAM: bool>() {
    if STREAM {
        _mm_sfence();
    }
}

/// As [`super::scan`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn scan<const DESCENDING: bool, const STREAM: bool>(a: &[f32], x: &[f32], h: &mut [f32], state: f32) -> f32 {
    let n = a.len().min(x.len()).min(h.len());
    let mut carry = _mm256_set1_ps(state);
    for i in 0..n / 8 {
        let at = if DESCENDING { n - 8 * (i + 1) } else { 8 * i };
        // SAFETY: at + 8 <= n, and n is no more than any of the lengths.
        let (a, x) = unsafe { (_mm256_loadu_ps(a.as_ptr().add(at)), _mm256_loadu_ps(x.as_ptr().add(at))) };
        let (a, x) = inclusive(ordered::<DESCENDING>(a), ordered::<DESCENDING>(x));
        let out = _mm256_fmadd_ps(a, carry, x);
        carry = carried(a, x, carry);
        // SAFETY: as above.
        unsafe { store::<STREAM>(h.as_mut_ptr().add(at), ordered::<DESCENDING>(out)) };
    }
    publish::<STREAM>();
    let done = n / 8 * 8;
    let (lo, hi) = if DESCENDING { (0, n - done) } else { (done, n) };
    super::scan_serial(&a[lo..hi], &x[lo..hi], &mut h[lo..hi], _mm256_cvtss_f32(carry), DESCENDING)
}

/// As [`super::backward_row`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn backward<const DESCENDING: bool, const STREAM: bool>(
    row: BackwardRow<'_>,
    grad_a: &mut [f32],
    grad_x: &mut [f32],
    mu: f32,
) -> f32 {
    let n = [row.a.len(), row.h.len(), row.g.len(), grad_a.len(), grad_x.len()].into_iter().min().unwrap_or(0);
    // At least one step is left for the end, which has no state before it in memory.
    let vectors = n.saturating_sub(1) / 8;
    let mut carry = _mm256_set1_ps(mu);
    for i in 0..vectors {
        let at = if DESCENDING { n - 8 * (i + 1) } else { 8 * i };
        // SAFETY: 1 <= at where the scan descends, at + 9 <= n where it ascends, and n is no more than any length.
        let (a, g, before) = unsafe {
            let shifted = if DESCENDING { at - 1 } else { at + 1 };
            (
                _mm256_loadu_ps(row.a.as_ptr().add(at)),
                _mm256_loadu_ps(row.g.as_ptr().add(at)),
                _mm256_loadu_ps(row.h.as_ptr().add(shifted)),
            )
        };
        let (a, g) = (ordered::<DESCENDING>(a), ordered::<DESCENDING>(g));
        let (all, x) = inclusive(a, _mm256_mul_ps(a, g));
        let mus = _mm256_fmadd_ps(all, carry, x);
        // Each step's lambda has the mu of the step before it in the scan.
        let moved = _mm256_permutevar8x32_ps(mus, _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6));
        let lambda = ordered::<DESCENDING>(_mm256_add_ps(g, _mm256_blend_ps::<1>(moved, carry)));
        carry = carried(all, x, carry);
        // SAFETY: as above.
        unsafe {
            store::<STREAM>(grad_x.as_mut_ptr().add(at), lambda);
            store::<STREAM>(grad_a.as_mut_ptr().add(at), _mm256_mul_ps(lambda, before));
        }
    }
    publish::<STREAM>();
    super::backward_serial(row, grad_a, grad_x, 8 * vectors, _mm256_cvtss_f32(carry), DESCENDING)
}
