//! Tokens from and to where they lie: any strides and element types become rows and panels of f32.

use super::gemm::PANEL;
use crate::layers::halves::{bf16_from_f32, bf16_to_f32, f16_to_f32, from_bf16, from_f16, to_bf16, to_f16};
use crate::{Dtype, View, ViewMut, dispatch};
use half::f16;

/// A tensor `[B, NH, T, width]` or `[B, NH, T]`: an address, and strides in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    address: usize,
    dtype: Dtype,
    strides: [isize; 4],
}

impl Tokens {
    fn of(address: u64, dtype: Dtype, strides: &[isize]) -> Self {
        let mut all = [1; 4];
        all[..strides.len()].copy_from_slice(strides);
        Self { address: address as usize, dtype, strides: all }
    }
    pub(super) fn read(v: &View<'_>) -> Self {
        Self::of(v.address(), v.dtype(), v.strides())
    }
    pub(super) fn write(v: &ViewMut<'_>) -> Self {
        Self::of(v.address(), v.dtype(), v.strides())
    }
    /// The same of one token: a tensor `[B, NH, width]` or `[B, NH]`, whose only time is 0.
    pub(super) fn of_one(mut self) -> Self {
        (self.strides[3], self.strides[2]) = (self.strides[2], 0);
        self
    }
    /// The address of element (b, head, t, 0).
    fn at(&self, [b, head, t]: [usize; 3]) -> usize {
        let offset = b as isize * self.strides[0] + head as isize * self.strides[1] + t as isize * self.strides[2];
        self.address.wrapping_add_signed(offset * self.dtype.size() as isize)
    }

    /// Rows and their width, where rows that follow each other are one long one: a call for each of 64 elements takes as long as
    /// they do.
    fn joined(&self, count: usize, width: usize) -> (usize, usize) {
        let follow = count > 1 && self.strides[3] == 1 && self.strides[2] == width as isize;
        if follow { (1, count * width) } else { (count, width) }
    }
    /// Rows `[count, width]` of tokens from `first` where they lie, and from one to the next, if they are rows of f32.
    ///
    /// # Safety
    /// As [`load`](Self::load), for as long as they are used.
    pub(super) unsafe fn lines<'a>(&self, first: [usize; 3], count: usize, width: usize) -> Option<(&'a [f32], usize)> {
        let [b, head, t] = first;
        let row = usize::try_from(self.strides[2]).ok().filter(|row| *row >= width && count > 0)?;
        (self.dtype == Dtype::F32 && self.strides[3] == 1).then(|| {
            // SAFETY: as the caller promises; the last row ends where the slice does.
            (unsafe { std::slice::from_raw_parts(self.at([b, head, t]) as *const f32, (count - 1) * row + width) }, row)
        })
    }
    /// Rows to write where they lie, if they are rows of f32 with nothing between them.
    ///
    /// # Safety
    /// As [`store`](Self::store), for as long as they are used.
    pub(super) unsafe fn lines_mut<'a>(&self, first: [usize; 3], count: usize, width: usize) -> Option<&'a mut [f32]> {
        let follow = self.strides[3] == 1 && (self.strides[2] == width as isize || count == 1);
        (self.dtype == Dtype::F32 && follow && count > 0).then(|| {
            // SAFETY: as the caller promises.
            unsafe { std::slice::from_raw_parts_mut(self.at(first) as *mut f32, count * width) }
        })
    }
    /// The same tensor from element `from` of the last axis on.
    pub(super) fn columns(mut self, from: usize) -> Self {
        let offset = from as isize * self.strides[3] * self.dtype.size() as isize;
        self.address = self.address.wrapping_add_signed(offset);
        self
    }
    /// `count` elements of a tensor `[B, NH, T]` from `first`.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    pub(super) unsafe fn load_scalars(&self, first: [usize; 3], count: usize, to: &mut [f32]) {
        // Neighbours in time are one row.
        let (rows, width) = if self.strides[2] == 1 { (1, count) } else { (count, 1) };
        // SAFETY: as the caller promises.
        unsafe { self.load(first, rows, width, 1.0, to) }
    }
    /// Writes `count` elements of a tensor `[B, NH, T]` from `first`.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    pub(super) unsafe fn store_scalars(&self, first: [usize; 3], count: usize, from: &[f32]) {
        let (rows, width) = if self.strides[2] == 1 { (1, count) } else { (count, 1) };
        // SAFETY: as the caller promises.
        unsafe { self.store(first, rows, width, 1.0, from) }
    }

    /// Rows `to [count, width] = scale x` of `count` tokens from `first`.
    ///
    /// # Safety
    /// The tokens must be there, `width` elements each, and nobody may write them meanwhile.
    pub(super) unsafe fn load(&self, first: [usize; 3], count: usize, width: usize, scale: f32, to: &mut [f32]) {
        let [b, head, t] = first;
        let (count, width) = self.joined(count, width);
        for (nth, row) in to[..count * width].chunks_exact_mut(width).enumerate() {
            let at = self.at([b, head, t + nth]);
            // SAFETY: as the caller promises; the signature's check has seen the alignment.
            unsafe {
                if self.strides[3] == 1 {
                    match self.dtype {
                        Dtype::F32 => scaled(std::slice::from_raw_parts(at as *const f32, width), scale, row),
                        Dtype::Bf16 => from_bf16(std::slice::from_raw_parts(at as *const u16, width), scale, row),
                        _ => from_f16(std::slice::from_raw_parts(at as *const u16, width), scale, row),
                    }
                    continue;
                }
                for (d, x) in row.iter_mut().enumerate() {
                    let at = at.wrapping_add_signed(d as isize * self.strides[3] * self.dtype.size() as isize);
                    *x = scale
                        * match self.dtype {
                            Dtype::F32 => *(at as *const f32),
                            Dtype::Bf16 => bf16_to_f32(*(at as *const u16)),
                            _ => f16_to_f32(*(at as *const u16)),
                        };
                }
            }
        }
    }
    /// Writes rows `[count, width]`, times `scale`, to `count` tokens from `first`.
    ///
    /// # Safety
    /// The tokens must be there, `width` elements each, and nobody else may touch them meanwhile.
    pub(super) unsafe fn store(&self, first: [usize; 3], count: usize, width: usize, scale: f32, from: &[f32]) {
        let [b, head, t] = first;
        let (count, width) = self.joined(count, width);
        for (nth, row) in from[..count * width].chunks_exact(width).enumerate() {
            let at = self.at([b, head, t + nth]);
            // SAFETY: as the caller promises; the signature's check has seen the alignment.
            unsafe {
                if self.strides[3] == 1 {
                    match self.dtype {
                        Dtype::F32 => scaled(row, scale, std::slice::from_raw_parts_mut(at as *mut f32, width)),
                        Dtype::Bf16 => to_bf16(row, scale, std::slice::from_raw_parts_mut(at as *mut u16, width)),
                        _ => to_f16(row, scale, std::slice::from_raw_parts_mut(at as *mut u16, width)),
                    }
                    continue;
                }
                for (d, &x) in row.iter().enumerate() {
                    let at = at.wrapping_add_signed(d as isize * self.strides[3] * self.dtype.size() as isize);
                    match self.dtype {
                        Dtype::F32 => *(at as *mut f32) = scale * x,
                        Dtype::Bf16 => *(at as *mut u16) = bf16_from_f32(scale * x),
                        _ => *(at as *mut u16) = f16::from_f32(scale * x).to_bits(),
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn scaled_body(from: &[f32], scale: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, &x)| *to = scale * x);
}
dispatch!(fn scaled(from: &[f32], scale: f32, to: &mut [f32]) = scaled_body);

/// Columns of rows `[count, width]` as panels of `count` rows.
pub(super) fn panels(rows: &[f32], count: usize, width: usize, to: &mut [f32]) {
    for (panel, to) in to[..count * width].chunks_exact_mut(count * PANEL).enumerate() {
        for (row, to) in rows.chunks_exact(width).zip(to.as_chunks_mut::<PANEL>().0) {
            *to = *row[panel * PANEL..].first_chunk().expect("rows are whole panels");
        }
    }
}

/// The transpose of rows `[count, width]` as panels of `width` rows: tokens are columns, with zeros behind the last.
pub(super) fn transposed(rows: &[f32], count: usize, width: usize, to: &mut [f32]) {
    let to = &mut to[..count.next_multiple_of(PANEL) * width];
    for (panel, to) in to.chunks_exact_mut(width * PANEL).enumerate() {
        let there = PANEL.min(count - panel * PANEL);
        let rows = &rows[panel * PANEL * width..][..there * width];
        if there == PANEL {
            turn(rows, width, to);
            continue;
        }
        to.fill(0.0);
        for (c, row) in rows.chunks_exact(width).enumerate() {
            row.iter().enumerate().for_each(|(d, &x)| to[d * PANEL + c] = x);
        }
    }
}

/// Sixteen rows of `width` become `width` rows of sixteen.
#[inline(always)]
fn turn_body<const FMA: bool, const R: usize, const N: usize>(rows: &[f32], width: usize, to: &mut [f32]) {
    assert!(rows.len() >= PANEL * width && to.len() >= PANEL * width && width.is_multiple_of(8));
    for d in (0..width).step_by(8) {
        for half in [0, 8] {
            // SAFETY: eight rows of eight elements are there, as asserted, and so many lanes with multiply-adds are those of
            // AVX2 and AVX-512 (`levels!`).
            unsafe {
                let (from, to) = (rows.as_ptr().add(half * width + d), to.as_mut_ptr().add(d * PANEL + half));
                if cfg!(target_arch = "x86_64") && FMA {
                    square_by_name(from, width, to);
                } else {
                    square(from, width, to);
                }
            }
        }
    }
}
crate::levels!(fn turn(rows: &[f32], width: usize, to: &mut [f32]) = turn_body, 1, [4, 8, 16]);

/// Eight rows of eight elements, `width` apart, as their transpose, rows of a panel.
///
/// # Safety
/// They must be there, and nobody else may touch the transpose.
#[inline(always)]
unsafe fn square(from: *const f32, width: usize, to: *mut f32) {
    for r in 0..8 {
        for c in 0..8 {
            // SAFETY: as the caller promises.
            unsafe { *to.add(c * PANEL + r) = *from.add(r * width + c) }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use square as square_by_name;

/// [`square`] in 24 instructions between loads and stores; the compiler makes three times as many of the loops.
///
/// # Safety
/// As [`square`], and the CPU must have AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn square_by_name(from: *const f32, width: usize, to: *mut f32) {
    use std::arch::x86_64::*;
    // SAFETY: as the caller promises.
    unsafe {
        // Elements 0 to 3 of rows r and r + 4, and elements 4 to 7.
        let load = |r: usize, c: usize| {
            let [low, high] = [r, r + 4].map(|r| _mm_loadu_ps(from.add(r * width + c)));
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
        };
        for c in [0, 4] {
            let [r0, r1, r2, r3] = [load(0, c), load(1, c), load(2, c), load(3, c)];
            let (a, b) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (x, y) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            _mm256_storeu_ps(to.add(c * PANEL), _mm256_shuffle_ps::<0x44>(a, x));
            _mm256_storeu_ps(to.add((c + 1) * PANEL), _mm256_shuffle_ps::<0xee>(a, x));
            _mm256_storeu_ps(to.add((c + 2) * PANEL), _mm256_shuffle_ps::<0x44>(b, y));
            _mm256_storeu_ps(to.add((c + 3) * PANEL), _mm256_shuffle_ps::<0xee>(b, y));
        }
    }
}

/// Rows `[width, stride]`, of which `count` columns are tokens, as rows `[count, width]`.
pub(super) fn untransposed(from: &[f32], stride: usize, count: usize, width: usize, to: &mut [f32]) {
    // Eight tokens at a time keep the lines of both sides in the cache.
    for t in (0..count).step_by(8) {
        let there = 8.min(count - t);
        for d in 0..width {
            for (c, &x) in from[d * stride + t..][..there].iter().enumerate() {
                to[(t + c) * width + d] = x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_turned_twice_is_itself() {
        let (count, width) = (37, 32);
        let rows: Vec<f32> = (0..count * width).map(|i| i as f32).collect();
        let mut turned = vec![f32::NAN; 48 * width];
        transposed(&rows, count, width, &mut turned);
        for t in 0..48 {
            for d in 0..width {
                let want = if t < count { rows[t * width + d] } else { 0.0 };
                assert_eq!(turned[(t / 16 * width + d) * 16 + t % 16], want);
            }
        }
        let flat: Vec<f32> = (0..width * 48).map(|i| turned[(i % 48 / 16 * width + i / 48) * 16 + i % 16]).collect();
        let mut back = vec![0.0; count * width];
        untransposed(&flat, 48, count, width, &mut back);
        assert_eq!(back, rows);
    }
}
