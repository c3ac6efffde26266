//! The output's gate silu(z) over a tile, and its derivative.

#![allow(unsafe_code)]

use super::lanes::LANES;
use crate::levels;
use crate::simd_math::{self, Lanes};

/// Sixteen real numbers at each step of a tile.
pub(super) type Row = [[f32; LANES]];

/// `out = (kappa y + D u) silu(z)` in the place of y.
#[inline(always)]
fn finish_body<const FMA: bool, const GATE: usize, const N: usize>(
    y: &mut Row,
    u: &Row,
    z: &Row,
    skip: &[f32; LANES],
    kappa: f32,
) {
    for ((y, u), z) in y.iter_mut().zip(u).zip(z) {
        let mut out = Lanes(*u).mul_add::<FMA>(Lanes(*skip), Lanes(*y) * Lanes([kappa; LANES]));
        if GATE == 1 {
            out = out * (Lanes(*z) * simd_math::sigmoid::<FMA, LANES>(Lanes(*z)));
        }
        *y = out.0;
    }
}
levels!(pub(super) fn finish_plain(y: &mut Row, u: &Row, z: &Row, skip: &[f32; LANES], kappa: f32)
    = finish_body, 0, [16, 16, 16]);
levels!(pub(super) fn finish_gated(y: &mut Row, u: &Row, z: &Row, skip: &[f32; LANES], kappa: f32)
    = finish_body, 1, [16, 16, 16]);

/// From the gradient of the output: that of y times kappa, in its place, and `silu'(z)` times it in z's.
#[inline(always)]
fn ungate_body<const FMA: bool, const GATE: usize, const N: usize>(g: &mut Row, z: &mut Row, kappa: f32) {
    for (g, z) in g.iter_mut().zip(z) {
        let mut dy = Lanes(*g);
        if GATE == 1 {
            let (x, one) = (Lanes(*z), Lanes([1.0; LANES]));
            let s = simd_math::sigmoid::<FMA, LANES>(x);
            *z = (dy * s * x.mul_add::<FMA>(one - s, one)).0;
            dy = dy * (x * s);
        }
        *g = (dy * Lanes([kappa; LANES])).0;
    }
}
levels!(pub(super) fn ungate_plain(g: &mut Row, z: &mut Row, kappa: f32) = ungate_body, 0, [16, 16, 16]);
levels!(pub(super) fn ungate_gated(g: &mut Row, z: &mut Row, kappa: f32) = ungate_body, 1, [16, 16, 16]);
