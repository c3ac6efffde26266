//! What is done to the rows of a chunk beside products, all rows in one call: of one for each of 64 elements the call takes as long.

/// `to [i] = factor [i] from [i]`, rows of `width` that lie `stride` apart in `from`.
#[inline(always)]
fn scale_body(from: &[f32], stride: usize, factors: &[f32], width: usize, to: &mut [f32]) {
    for ((from, to), &factor) in from.chunks(stride).zip(to.chunks_exact_mut(width)).zip(factors) {
        to.iter_mut().zip(&from[..width]).for_each(|(to, &x)| *to = factor * x);
    }
}
crate::dispatch!(pub(super) fn scale(from: &[f32], stride: usize, factors: &[f32], width: usize, to: &mut [f32]) = scale_body);

/// Rows of `width`, each times its factor.
#[inline(always)]
fn rescale_body(rows: &mut [f32], factors: &[f32], width: usize) {
    for (row, &factor) in rows.chunks_exact_mut(width).zip(factors) {
        row.iter_mut().for_each(|x| *x *= factor);
    }
}
crate::dispatch!(pub(super) fn rescale(rows: &mut [f32], factors: &[f32], width: usize) = rescale_body);

/// `to = kept to + sum of rows`, of `to`'s width.
#[inline(always)]
fn gather_body(to: &mut [f32], kept: f32, rows: &[f32]) {
    to.iter_mut().for_each(|to| *to *= kept);
    for row in rows.chunks_exact(to.len()) {
        to.iter_mut().zip(row).for_each(|(to, &x)| *to += x);
    }
}
crate::dispatch!(pub(super) fn gather(to: &mut [f32], kept: f32, rows: &[f32]) = gather_body);
