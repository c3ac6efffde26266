//! Numbers stored in 16 bits, f16 and bf16, to and from f32: widened exactly, rounded to the nearest, ties to even.

use crate::dispatch;
use half::{bf16, f16};

/// The number that bits of bf16 stand for.
#[inline(always)]
pub(in crate::layers) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16, ties to even, without a branch but for NaN.
#[inline(always)]
pub(in crate::layers) fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if x.is_nan() { bf16::NAN.to_bits() } else { rounded }
}

/// The number that bits of f16 stand for, without a branch: exponents are moved by a multiplication, which normalises
/// subnormal numbers too.
#[inline(always)]
pub(in crate::layers) fn f16_to_f32(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    let moved = (f32::from_bits(rest) * f32::from_bits(0x7780_0000)).to_bits();
    let magnitude = if rest >= 0x7c00 << 13 { rest | 0x7f80_0000 } else { moved };
    f32::from_bits(sign | magnitude)
}

#[inline(always)]
fn from_bf16_body(from: &[u16], scale: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = scale * bf16_to_f32(x));
}
dispatch! {
    /// `to = scale from`, from the bits of bf16.
    pub(in crate::layers) fn from_bf16(from: &[u16], scale: f32, to: &mut [f32]) = from_bf16_body
}

#[inline(always)]
fn from_f16_body(from: &[u16], scale: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = scale * f16_to_f32(x));
}
dispatch! {
    /// `to = scale from`, from the bits of f16.
    pub(in crate::layers) fn from_f16(from: &[u16], scale: f32, to: &mut [f32]) = from_f16_body
}

#[inline(always)]
fn to_bf16_body(from: &[f32], scale: f32, to: &mut [u16]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = bf16_from_f32(scale * x));
}
dispatch! {
    /// `to = scale from`, rounded once, as the bits of bf16.
    pub(in crate::layers) fn to_bf16(from: &[f32], scale: f32, to: &mut [u16]) = to_bf16_body
}

/// `to = scale from`, rounded once, as the bits of f16.
pub(in crate::layers) fn to_f16(from: &[f32], scale: f32, to: &mut [u16]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = f16::from_f32(scale * x).to_bits());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_what_the_crate_half_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}: {ours} {theirs}");
            let x = bf16_to_f32(bits);
            assert!(x == bf16::from_bits(bits).to_f32() || x.is_nan());
            // Halfway between neighbours and a little beside.
            for low in [0x7fff, 0x8000, 0x8001] {
                let x = f32::from_bits(u32::from(bits) << 16 | low);
                let (ours, theirs) = (bf16_from_f32(x), bf16::from_f32(x));
                assert!(ours == theirs.to_bits() || theirs.is_nan() && bf16_to_f32(ours).is_nan(), "{x}");
            }
        }
    }
}
