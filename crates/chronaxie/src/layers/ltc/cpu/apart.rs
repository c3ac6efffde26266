//! The loops over synapses as functions of their own, one for each number of rows and level of vectors.
//!
//! The backward pass goes through them in ten places, each with and without kept gates. Inlined there they are one function that a
//! compiler spends half a minute on, six times over; a call is nothing beside all synapses of a side.

use super::fold::Side;
use super::gates::{self, Times, source};

#[inline(always)]
fn all_sums<const FMA: bool, const R: usize, const N: usize>(
    keep: bool,
    side: &Side<'_>,
    v: &[f32],
    num: &mut [f32],
    den: &mut [f32],
    gates: &mut [f32],
) {
    if keep {
        gates::sums::<FMA, R, N, true>(side, v, num, den, gates);
    } else {
        gates::sums::<FMA, R, N, false>(side, v, num, den, gates);
    }
}

#[inline(always)]
fn all_adjoints<const FMA: bool, const R: usize, const N: usize>(
    from: u8,
    side: &Side<'_>,
    v: &[f32],
    [alpha, beta]: [&[f32]; 2],
    gates: &mut [f32],
    products: &mut [f32],
    pulled: &mut [f32],
) {
    match from {
        source::READ => gates::adjoint::<FMA, R, N, { source::READ }>(side, v, alpha, beta, gates, products, pulled),
        source::KEEP => gates::adjoint::<FMA, R, N, { source::KEEP }>(side, v, alpha, beta, gates, products, pulled),
        _ => gates::adjoint::<FMA, R, N, { source::EVALUATE }>(side, v, alpha, beta, gates, products, pulled),
    }
}

#[inline(always)]
fn all_parameter_sums<const FMA: bool, const R: usize, const N: usize>(
    read: bool,
    side: &Side<'_>,
    times: &Times<'_>,
    partial: &mut [f32],
    total: &mut [[f64; 4]],
) {
    if read {
        gates::parameter_sums::<FMA, R, N, true>(side, times, partial, total);
    } else {
        gates::parameter_sums::<FMA, R, N, false>(side, times, partial, total);
    }
}

/// For `$rows` rows in vectors of `[portable, AVX2, AVX-512]` lanes, which are those of the passes.
macro_rules! rows {
    ($sums:ident, $adjoint:ident, $parameter_sums:ident, $rows:literal, [$p:literal, $a:literal, $w:literal]) => {
        crate::levels!(
            fn $sums(keep: bool, side: &Side<'_>, v: &[f32], num: &mut [f32], den: &mut [f32], gates: &mut [f32])
                = all_sums, $rows, [$p, $a, $w]
        );
        crate::levels!(
            fn $adjoint(
                from: u8, side: &Side<'_>, v: &[f32], of: [&[f32]; 2], gates: &mut [f32], products: &mut [f32], pulled: &mut [f32]
            ) = all_adjoints, $rows, [$p, $a, $w]
        );
        crate::levels!(
            fn $parameter_sums(read: bool, side: &Side<'_>, times: &Times<'_>, partial: &mut [f32], total: &mut [[f64; 4]])
                = all_parameter_sums, $rows, [$p, $a, $w]
        );
    };
}
rows!(sums8, adjoint8, parameter_sums8, 8, [8, 8, 16]);
rows!(sums4, adjoint4, parameter_sums4, 4, [8, 8, 8]);

/// [`gates::sums`], which keeps the gates where `keep`.
#[inline(always)]
pub(super) fn sums<const R: usize>(
    keep: bool,
    side: &Side<'_>,
    v: &[f32],
    [num, den]: [&mut [f32]; 2],
    gates: &mut [f32],
) {
    match R {
        8 => sums8(keep, side, v, num, den, gates),
        _ => sums4(keep, side, v, num, den, gates),
    }
}

/// [`gates::adjoint`] with gates `from` there.
#[inline(always)]
pub(super) fn adjoint<const R: usize>(
    from: u8,
    side: &Side<'_>,
    v: &[f32],
    of: [&[f32]; 2],
    gates: &mut [f32],
    products: &mut [f32],
    pulled: &mut [f32],
) {
    match R {
        8 => adjoint8(from, side, v, of, gates, products, pulled),
        _ => adjoint4(from, side, v, of, gates, products, pulled),
    }
}

/// [`gates::parameter_sums`], which reads the gates where `read`.
#[inline(always)]
pub(super) fn parameter_sums<const R: usize>(
    read: bool,
    side: &Side<'_>,
    times: &Times<'_>,
    partial: &mut [f32],
    total: &mut [[f64; 4]],
) {
    match R {
        8 => parameter_sums8(read, side, times, partial, total),
        _ => parameter_sums4(read, side, times, partial, total),
    }
}
