//! Products of small matrices, the one thing that takes time here: rows of a batch times packed weights, and the sums over
//! batch and time that the gradients of weights are.
//!
//! A tile is R = 4 rows by two vectors of columns: a step of its loop loads two vectors of weights, broadcasts 4 numbers
//! and makes 8 multiply-adds, which hide each other's latency. Every element of a result is a sum over one index in its
//! order, whatever tile it lies in, so neither groups nor threads change its bits.

use crate::simd_math::Lanes;

/// Columns of buffers are padded to a multiple of this: two vectors of the widest instructions.
pub(super) const PAD: usize = 32;
/// Rows of buffers are padded to a multiple of this.
pub(super) const TILE: usize = 4;

/// `n` columns with their padding.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(PAD)
}

#[inline(always)]
pub(super) fn load<const N: usize>(from: &[f32]) -> Lanes<N> {
    Lanes(*from.first_chunk::<N>().expect("buffers are padded to whole vectors"))
}

#[inline(always)]
pub(super) fn store<const N: usize>(to: &mut [f32], x: Lanes<N>) {
    *to.first_chunk_mut::<N>().expect("buffers are padded to whole vectors") = x.0;
}

/// Part of a matrix, to be packed: element (k, n) is `data[k * stride_k + n * stride_n]`, times the mask's.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub data: &'a [f32],
    pub mask: Option<&'a [f32]>,
    pub stride_k: usize,
    pub stride_n: usize,
    /// Where it stands in the packed matrix.
    pub first_k: usize,
    pub first_n: usize,
    pub k: usize,
    pub n: usize,
}

/// Writes `block` into panel `panel` of the packed matrix with `k` rows.
#[inline(always)]
fn pack_body<const FMA: bool, const R: usize, const N: usize>(panel: &mut [f32], at: usize, block: &Block<'_>) {
    let width = 2 * N;
    let columns = (at * width).max(block.first_n)..((at + 1) * width).min(block.first_n + block.n);
    if columns.is_empty() || block.k == 0 {
        return;
    }
    let (count, column) = (columns.len(), columns.start - at * width);
    let first = (columns.start - block.first_n) * block.stride_n;
    let to = &mut panel[block.first_k * width..][..block.k * width];
    if block.stride_n == 1 {
        // Rows of the panel lie in the matrix as they are.
        for (k, to) in to.chunks_exact_mut(width).enumerate() {
            let from = first + k * block.stride_k;
            let to = &mut to[column..][..count];
            match block.mask {
                None => to.copy_from_slice(&block.data[from..][..count]),
                Some(mask) => {
                    let pairs = block.data[from..][..count].iter().zip(&mask[from..][..count]);
                    to.iter_mut().zip(pairs).for_each(|(to, (w, m))| *to = w * m);
                }
            }
        }
        return;
    }
    // Columns of the panel are rows of the matrix: squares of N, turned in registers.
    let square = block.stride_k == 1 && block.mask.is_none() && count == width;
    let whole = if square { block.k / N * N } else { 0 };
    for k in (0..whole).step_by(N) {
        for half in [0, N] {
            let rows: [Lanes<N>; N] =
                std::array::from_fn(|n| load(&block.data[first + (half + n) * block.stride_n + k..]));
            for (i, to) in to[k * width..][..N * width].chunks_exact_mut(width).enumerate() {
                store(&mut to[half..], Lanes::<N>(std::array::from_fn(|n| rows[n].0[i])));
            }
        }
    }
    for n in 0..count {
        for k in whole..block.k {
            let from = first + n * block.stride_n + k * block.stride_k;
            let w = block.data[from];
            to[k * width + column + n] = block.mask.map_or(w, |m| w * m[from]);
        }
    }
}
crate::levels!(pub(super) fn pack(panel: &mut [f32], at: usize, block: &Block<'_>) = pack_body, 4, [4, 8, 16]);

/// The number of columns of a panel here.
pub(super) fn panel_width() -> usize {
    fn body<const FMA: bool, const R: usize, const N: usize>(width: &mut usize) {
        *width = 2 * N;
    }
    crate::levels!(fn ask(width: &mut usize) = body, 4, [4, 8, 16]);
    let mut width = 0;
    ask(&mut width);
    width
}

/// `c [rows, n] = bias + a [rows, k] b`, with `b` packed; `rows` is a multiple of [`TILE`], and rows of `c` are padded.
#[inline(always)]
fn product_body<const FMA: bool, const R: usize, const N: usize>(
    a: &[f32],
    lda: usize,
    rows: usize,
    k: usize,
    b: &[f32],
    bias: &[f32],
    c: &mut [f32],
    ldc: usize,
    n: usize,
) {
    let width = 2 * N;
    for panel in 0..n.div_ceil(width) {
        let b = &b[panel * k * width..][..k * width];
        let start: [Lanes<N>; 2] = std::array::from_fn(|v| match bias {
            [] => Lanes::splat(0.0),
            bias => load(&bias[panel * width + v * N..]),
        });
        for first in (0..rows).step_by(R) {
            let a: [&[f32]; R] = std::array::from_fn(|r| &a[(first + r) * lda..][..k]);
            let mut sums = [start; R];
            for (i, b) in b.as_chunks::<N>().0.chunks_exact(2).enumerate() {
                let b = [Lanes(b[0]), Lanes(b[1])];
                for r in 0..R {
                    // SAFETY: i is below k, the length of each row, as `b` has k pairs of vectors.
                    let x = Lanes::splat(unsafe { *a[r].get_unchecked(i) });
                    sums[r][0] = x.mul_add::<FMA>(b[0], sums[r][0]);
                    sums[r][1] = x.mul_add::<FMA>(b[1], sums[r][1]);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                let c = &mut c[(first + r) * ldc + panel * width..];
                store(c, sum[0]);
                store(&mut c[N..], sum[1]);
            }
        }
    }
}
crate::levels!(pub(super) fn product(a: &[f32], lda: usize, rows: usize, k: usize, b: &[f32], bias: &[f32], c: &mut [f32], ldc: usize, n: usize) = product_body, 4, [4, 8, 16]);

/// Rows of a matrix, a row every `stride` floats, from column `first` on.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub first: usize,
}

impl<'a> Rows<'a> {
    /// Rows `begin` to `end`, columns `at` to `at + len`: what an item of them begins with.
    #[inline(always)]
    fn from(self, begin: usize, end: usize, at: usize, len: usize) -> impl Iterator<Item = *const f32> + use<'a> {
        let data = if begin < end { &self.data[begin * self.stride + self.first + at..] } else { &[] };
        let steps = end.saturating_sub(begin + 1);
        assert!(begin >= end || steps * self.stride + len <= data.len());
        let mut next = data.as_ptr();
        (begin..end).map(move |_| {
            let row = next;
            next = next.wrapping_add(self.stride);
            row
        })
    }
}

/// Rows whose products are summed in registers before they are added to memory: an element of X then comes from the first
/// cache, and a long sum is one of short ones.
const SUM_ROWS: usize = 256;

/// `to [outputs, inputs] (+)= sum over rows of dy[row, ..outputs] x[row, ..inputs]`.
///
/// Two vectors of columns stay in the first cache while all outputs take them.
#[inline(always)]
fn outer_body<const FMA: bool, const R: usize, const N: usize>(
    dy: Rows<'_>,
    x: Rows<'_>,
    rows: usize,
    outputs: usize,
    inputs: usize,
    to: &mut [f32],
    add: bool,
) {
    let width = 2 * N;
    for begin in (0..rows.max(1)).step_by(SUM_ROWS) {
        let end = rows.min(begin + SUM_ROWS);
        let add = add || begin > 0;
        let mut i = 0;
        while i < inputs {
            // The last tile begins earlier and makes some columns again, but writes each once.
            let from = if i + width <= inputs { i } else { inputs.saturating_sub(width) };
            let valid = width.min(inputs - from);
            for o in (0..outputs).step_by(R) {
                let count = R.min(outputs - o);
                let mut sums = [[Lanes::<N>::splat(0.0); 2]; R];
                let pairs = dy.from(begin, end, o, count).zip(x.from(begin, end, from, valid));
                if count == R && valid == width {
                    for (dy, x) in pairs {
                        // SAFETY: so many floats stand there, as `from` has asked, and vectors are arrays of them.
                        let x = unsafe { x.cast::<[Lanes<N>; 2]>().read() };
                        for r in 0..R {
                            // SAFETY: as above. One by one: a whole read would cost shuffles.
                            let dy = Lanes::splat(unsafe { dy.add(r).read() });
                            sums[r][0] = dy.mul_add::<FMA>(x[0], sums[r][0]);
                            sums[r][1] = dy.mul_add::<FMA>(x[1], sums[r][1]);
                        }
                    }
                } else {
                    for (dy, x) in pairs {
                        // SAFETY: as above.
                        let (dy, x) =
                            unsafe { (std::slice::from_raw_parts(dy, count), std::slice::from_raw_parts(x, valid)) };
                        let x: [Lanes<N>; 2] = std::array::from_fn(|v| {
                            Lanes(std::array::from_fn(|l| if v * N + l < valid { x[v * N + l] } else { 0.0 }))
                        });
                        for r in 0..R {
                            // Sums of an output that is not there are not written.
                            let dy = Lanes::splat(dy[r.min(count - 1)]);
                            sums[r][0] = dy.mul_add::<FMA>(x[0], sums[r][0]);
                            sums[r][1] = dy.mul_add::<FMA>(x[1], sums[r][1]);
                        }
                    }
                }
                for (r, sum) in sums.into_iter().enumerate().take(count) {
                    let row = &mut to[(o + r) * inputs..][..inputs];
                    if i == from && valid == width {
                        for (v, sum) in sum.into_iter().enumerate() {
                            let to = &mut row[i + v * N..][..N];
                            store(to, if add { load(to) + sum } else { sum });
                        }
                        continue;
                    }
                    let flat = sum[0].0.into_iter().chain(sum[1].0);
                    for (to, s) in row[from..from + valid].iter_mut().zip(flat).skip(i - from) {
                        *to = if add { *to + s } else { s };
                    }
                }
            }
            i = from + valid;
        }
    }
}
crate::levels!(pub(super) fn outer(dy: Rows<'_>, x: Rows<'_>, rows: usize, outputs: usize, inputs: usize, to: &mut [f32], add: bool) = outer_body, 4, [4, 8, 16]);

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|k| ((k * k * 7 + k * 31 + salt) % 17) as f32 - 8.0).collect()
    }

    /// Small integers: every sum is exact, whatever its order.
    #[test]
    fn products_and_sums_are_exact_for_integers() {
        for (rows, k, n) in [(1usize, 1usize, 1usize), (4, 3, 5), (7, 0, 9), (9, 13, 33), (12, 40, 70), (300, 5, 3)] {
            let tall = rows.next_multiple_of(TILE);
            let (a, w) = (numbers(tall * k, 1), numbers(n * k, 2));
            let bias: Vec<f32> = numbers(n, 3).into_iter().chain(std::iter::repeat(0.0)).take(padded(n)).collect();
            let mut packed = vec![0.0; k * padded(n)];
            let width = panel_width();
            let block = Block { data: &w, mask: None, stride_k: 1, stride_n: k, first_k: 0, first_n: 0, k, n };
            for at in 0..n.div_ceil(width) {
                pack(&mut packed[at * k * width..][..k * width], at, &block);
            }
            let mut c = vec![f32::NAN; tall * padded(n)];
            product(&a, k, tall, k, &packed, &bias, &mut c, padded(n), n);
            for (r, o) in (0..rows).flat_map(|r| (0..n).map(move |o| (r, o))) {
                let want: f32 = bias[o] + (0..k).map(|i| a[r * k + i] * w[o * k + i]).sum::<f32>();
                assert_eq!(c[r * padded(n) + o], want, "[{r}, {o}] of {rows} {k} {n}");
            }
            // The gradient of w for c: its rows are the outputs.
            for add in [false, true] {
                let mut grad = vec![if add { 2.0 } else { f32::NAN }; n * k];
                let dy = Rows { data: &c, stride: padded(n), first: 0 };
                outer(dy, Rows { data: &a, stride: k, first: 0 }, rows, n, k, &mut grad, add);
                for (o, i) in (0..n).flat_map(|o| (0..k).map(move |i| (o, i))) {
                    let want: f32 = (0..rows).map(|r| c[r * padded(n) + o] * a[r * k + i]).sum();
                    assert_eq!(grad[o * k + i], want + if add { 2.0 } else { 0.0 }, "[{o}, {i}] of {rows} {k} {n}");
                }
            }
        }
    }
}
