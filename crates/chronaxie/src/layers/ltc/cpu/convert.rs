//! x and out in 16 bits: to f32 and back, all threads, vectors where elements lie side by side.

use crate::layers::halves::{bf16_to_f32, f16_to_f32, from_bf16, from_f16, to_bf16, to_f16};
use crate::shared::Shared;
use crate::{Dtype, Error, Result, View, ViewMut, pool};

/// Elements that a thread converts at a time.
const CHUNK: usize = 1 << 14;

fn refuse(dtype: Dtype) -> Error {
    Error::dtype(format!("ltc: x and out of {dtype} are not converted; f16 and bf16 are"))
}

/// The elements of `from`, f16 or bf16 `[B, T, width]` of any strides, as f32 without gaps at `to`.
///
/// # Safety
/// At `to` lie as many f32, aligned, that nobody else uses meanwhile.
pub(in crate::layers::ltc) unsafe fn widen(from: &View<'_>, to: u64) -> Result<()> {
    let count = from.shape().elements();
    if count == 0 {
        return Ok(());
    }
    let rows = match from.dtype() {
        Dtype::Bf16 => from_bf16,
        Dtype::F16 => from_f16,
        other => return Err(refuse(other)),
    };
    let one = if from.dtype() == Dtype::Bf16 { bf16_to_f32 } else { f16_to_f32 };
    let base = from.address() as usize;
    // SAFETY: as the caller promises.
    let to = Shared::new(unsafe { std::slice::from_raw_parts_mut(to as *mut f32, count) });
    if from.is_contiguous() {
        pool::for_each(count.div_ceil(CHUNK), |task| {
            let start = task * CHUNK;
            let len = CHUNK.min(count - start);
            // SAFETY: elements of the view, which the signature's check has seen to be aligned; a task has its own part.
            let (from, to) =
                unsafe { (std::slice::from_raw_parts((base as *const u16).add(start), len), to.part(start, len)) };
            rows(from, 1.0, to);
        });
        return Ok(());
    }
    let &[_, steps, width] = &from.shape()[..] else {
        return Err(Error::shape(format!("ltc: a tensor of shape {} is not [B, T, width]", from.shape())));
    };
    let &[b, t, d] = from.strides() else { return Err(Error::shape("ltc: a tensor without three strides")) };
    let (all, group) = (count / width, CHUNK.div_ceil(width));
    pool::for_each(all.div_ceil(group), |task| {
        for row in task * group..all.min((task + 1) * group) {
            // SAFETY: a task has its own rows.
            let to = unsafe { to.part(row * width, width) };
            let start = (row / steps) as isize * b + (row % steps) as isize * t;
            let start = (base as *const u16).wrapping_offset(start);
            if d == 1 {
                // SAFETY: a row of the view, whose elements are neighbours.
                rows(unsafe { std::slice::from_raw_parts(start, width) }, 1.0, to);
                continue;
            }
            for (at, to) in to.iter_mut().enumerate() {
                // SAFETY: an element of the view.
                *to = one(unsafe { *start.wrapping_offset(at as isize * d) });
            }
        }
    });
    Ok(())
}

/// The f32 at `from`, without gaps, rounded to the elements of `to`, f16 or bf16, without gaps.
///
/// # Safety
/// At `from` lie as many f32 as `to` has elements, aligned, that nobody writes meanwhile.
pub(in crate::layers::ltc) unsafe fn round(from: u64, to: &mut ViewMut<'_>) -> Result<()> {
    let count = to.shape().elements();
    if count == 0 {
        return Ok(());
    }
    let rows = match to.dtype() {
        Dtype::Bf16 => to_bf16,
        Dtype::F16 => to_f16,
        other => return Err(refuse(other)),
    };
    // SAFETY: as the caller promises; the signature's check has seen that the output has no gaps and is aligned.
    let (from, to) = unsafe {
        let to = std::slice::from_raw_parts_mut(to.address() as *mut u16, count);
        (std::slice::from_raw_parts(from as *const f32, count), Shared::new(to))
    };
    pool::for_each(count.div_ceil(CHUNK), |task| {
        let start = task * CHUNK;
        let len = CHUNK.min(count - start);
        // SAFETY: a task has its own part.
        rows(&from[start..start + len], 1.0, unsafe { to.part(start, len) });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, Shape};
    use half::{bf16, f16};

    /// Any strides, more elements than a thread takes, and both types: what the crate `half` makes of each element.
    #[test]
    fn every_element_is_converted_wherever_it_lies() {
        let bits: Vec<u16> = (0..3 * 70_000u32).map(|i| (i.wrapping_mul(40_503) >> 3) as u16).collect();
        for (shape, strides) in [
            ([3, 7, 1000], [7000, 1000, 1]),
            ([3, 7, 1000], [1000, 3000, 1]),
            ([3, 7, 1000], [7, 1, 60]),
            ([1, 1, 50_000], [0, 0, 1]),
            ([1, 3, 50_000], [0, 50_000, 1]),
            ([20_000, 3, 1], [3, 1, 5]),
            ([20_000, 3, 1], [1, 20_000, 5]),
            ([2, 3, 5], [0, 0, 0]),
            ([2, 0, 5], [5, 5, 1]),
        ] {
            let shape = Shape::from(shape);
            for dtype in [Dtype::Bf16, Dtype::F16] {
                // SAFETY: every index lies in the vector.
                let view = unsafe { View::from_raw(bits.as_ptr().cast(), dtype, shape, &strides, Place::Cpu) };
                let mut wide = vec![f32::NAN; shape.elements()];
                // SAFETY: the vector has an element for each.
                unsafe { widen(&view, wide.as_mut_ptr() as u64) }.unwrap();
                let one = |bits| match dtype {
                    Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
                    _ => f16::from_bits(bits).to_f32(),
                };
                let mut places = (0..shape[0]).flat_map(|b| (0..shape[1]).map(move |t| (b, t)));
                for row in wide.chunks(shape[2].max(1)) {
                    let (b, t) = places.next().unwrap();
                    for (d, &x) in row.iter().enumerate() {
                        let want =
                            one(bits[b * strides[0] as usize + t * strides[1] as usize + d * strides[2] as usize]);
                        assert!(x == want || (x.is_nan() && want.is_nan()), "{dtype} ({b}, {t}, {d}) of {shape}");
                    }
                }
                // The way back, of numbers that lie between those of 16 bits.
                wide.iter_mut().for_each(|x| *x *= 1.001);
                let mut narrow = vec![0u16; wide.len()];
                // SAFETY: as above.
                unsafe {
                    let strides = shape.contiguous_strides();
                    let mut to = ViewMut::from_raw(narrow.as_mut_ptr().cast(), dtype, shape, &strides, Place::Cpu);
                    round(wide.as_ptr() as u64, &mut to).unwrap();
                }
                for (&x, &bits) in wide.iter().zip(&narrow) {
                    let want =
                        if dtype == Dtype::Bf16 { bf16::from_f32(x).to_f32() } else { f16::from_f32(x).to_f32() };
                    assert!(one(bits) == want || (x.is_nan() && one(bits).is_nan()), "{dtype}: {x}");
                }
            }
        }
        let x = [0f64; 6];
        let view = View::from_slice(&x, [1, 2, 3]).unwrap();
        // SAFETY: it is refused before anything is written.
        let e = unsafe { widen(&view, 0) }.unwrap_err().to_string();
        assert_eq!(e, "ltc: x and out of f64 are not converted; f16 and bf16 are");
    }
}
