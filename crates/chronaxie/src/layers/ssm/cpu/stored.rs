//! Elements of the sequences of a plain scan: f32 where they lie, halves through f32 beside them, widened exactly and
//! rounded once.

use crate::Dtype;
use crate::layers::halves::{from_bf16, from_f16, to_bf16, to_f16};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// Halves that are widened at a time: a multiple of the eight steps of a vector, so that parts change no bits.
const PART: usize = 512;

/// How elements are read and written as f32.
pub(super) trait Stored: Copy + 'static {
    const DTYPE: Dtype;
    /// Elements that a buffer holds.
    const PART: usize;
    /// Room for as many f32, where they are not read and written in place.
    type Buffer;
    fn buffer() -> Self::Buffer;
    fn load(self) -> f32;
    fn store(x: f32) -> Self;
    /// At most [`PART`](Self::PART) elements as f32.
    fn read<'a>(from: &'a [Self], buffer: &'a mut Self::Buffer) -> &'a [f32];
    /// Lets `f` write at most [`PART`](Self::PART) elements as f32.
    fn write<R>(to: &mut [Self], buffer: &mut Self::Buffer, f: impl FnOnce(&mut [f32]) -> R) -> R;
}

impl Stored for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const PART: usize = usize::MAX;
    type Buffer = ();
    fn buffer() {}
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn read<'a>(from: &'a [f32], (): &'a mut ()) -> &'a [f32] {
        from
    }
    #[inline(always)]
    fn write<R>(to: &mut [f32], (): &mut (), f: impl FnOnce(&mut [f32]) -> R) -> R {
        f(to)
    }
}

macro_rules! half {
    ($t:ty, $dtype:ident, $from:path, $to:path) => {
        impl Stored for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            const PART: usize = PART;
            type Buffer = [f32; PART];
            fn buffer() -> Self::Buffer {
                [0.0; PART]
            }
            #[inline(always)]
            fn load(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn store(x: f32) -> Self {
                Self::from_f32(x)
            }
            fn read<'a>(from: &'a [Self], buffer: &'a mut Self::Buffer) -> &'a [f32] {
                let wide = &mut buffer[..from.len()];
                $from(from.reinterpret_cast(), 1.0, wide);
                wide
            }
            fn write<R>(to: &mut [Self], buffer: &mut Self::Buffer, f: impl FnOnce(&mut [f32]) -> R) -> R {
                let wide = &mut buffer[..to.len()];
                let result = f(wide);
                $to(wide, 1.0, to.reinterpret_cast_mut());
                result
            }
        }
    };
}
half!(bf16, Bf16, from_bf16, to_bf16);
half!(f16, F16, from_f16, to_f16);

/// `0..n` in parts that a buffer holds, in the order of a scan; a part cut short is the scan's last.
pub(super) fn parts<T: Stored>(n: usize, descending: bool) -> impl Iterator<Item = Range<usize>> {
    (0..n.div_ceil(T::PART)).map(move |i| {
        let (from, to) = (i * T::PART, n.min(i.saturating_add(1).saturating_mul(T::PART)));
        if descending { n - to..n - from } else { from..to }
    })
}
