//! Products of small matrices: tiles in registers, of six rows by sixteen columns, and under AVX-512 by up to 64.
//!
//! A right-hand side lies in panels of 16 columns, so that a step of the sum reads whole lines of the cache; a left-hand side
//! may lie anyhow, since its elements are broadcast one by one. Under AVX2 a tile is 12 of 16 registers: 12 multiply-adds
//! for 8 loads, which is what keeps both multipliers busy over their latency (8 sums). Under AVX-512 24 of 32 are: 6 x 64 makes
//! 24 multiply-adds by 10 loads, 12 x 32, for long sums, by 14, whereas 12 x 16 waits for loads (13 for 12). Vectors are registers by name
//! (`registers.rs`): of arrays the compiler makes halves of AVX's, which took twice as long. Triangles are cut at the
//! granularity of tiles, so who makes one writes zeros for [`FRINGE`] columns behind the diagonal.

use super::registers::{Register, by_registers};

/// Columns of a panel.
pub(super) const PANEL: usize = 16;
/// Rows of a tile, and of one whose rows are a register or two each.
const ROWS: usize = 6;
const TALL: usize = 2 * ROWS;
/// Terms of a sum up to which 64 columns of the right-hand side leave room in the first cache (32 KB).
const SHORT: usize = 128;
/// How far behind the diagonal a product may read.
pub(super) const FRINGE: usize = TALL - 1;

/// A left-hand side: element (m, k) lies at `m row + k / 16 block + k % 16 col`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    data: &'a [f32],
    row: usize,
    col: usize,
    block: usize,
}

impl<'a> Left<'a> {
    /// Rows one after the other, `width` apart.
    pub(super) fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, row: width, col: 1, block: PANEL }
    }
    /// The transpose of [`rows`](Self::rows).
    pub(super) fn transposed(data: &'a [f32], width: usize) -> Self {
        Self { data, row: 1, col: width, block: PANEL * width }
    }
    /// A matrix of `rows` rows in panels.
    pub(super) fn panels(data: &'a [f32], rows: usize) -> Self {
        Self { data, row: PANEL, col: 1, block: PANEL * rows }
    }
    fn reaches(&self, m: usize, k: usize) -> usize {
        (m - 1) * self.row + (k - 1) / PANEL * self.block + (k - 1) % PANEL * self.col + 1
    }
}

/// Where panels of columns lie: column j of row k at `j / 16 panel + k row + j % 16`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    panel: usize,
    row: usize,
}

impl Place {
    /// A matrix of `rows` rows in panels.
    pub(super) fn panels(rows: usize) -> Self {
        Self { panel: rows * PANEL, row: PANEL }
    }
    /// Rows one after the other, `width` apart.
    pub(super) fn rows(width: usize) -> Self {
        Self { panel: PANEL, row: width }
    }
    fn reaches(&self, rows: usize, panels: usize) -> usize {
        (panels - 1) * self.panel + (rows - 1) * self.row + PANEL
    }
}

/// What the sums are added to.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Nothing.
    Zero,
    /// What is there, each row times a factor.
    Rows(&'a [f32]),
    /// What is there, each column times a factor.
    Columns(&'a [f32]),
    /// What is there, times a factor.
    Kept(f32),
    /// Another matrix that lies alike, times a factor.
    From(&'a [f32], f32),
}

/// Which parts of a product are there.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    /// All.
    Full,
    /// Only the output's lower triangle is wanted.
    LowerOutput,
    /// The left-hand side is a lower triangle,
    LowerLeft,
    /// or an upper one.
    UpperLeft,
    /// The right-hand side is a lower triangle.
    LowerRight,
}

/// What all tiles of a product share.
#[derive(Clone, Copy)]
pub(super) struct Strides<'a> {
    left: Left<'a>,
    right: Place,
    out: Place,
    start: Start<'a>,
}

/// The pointers of one tile, its place, and the terms of its sums.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    from: *const f32,
    r0: usize,
    c0: usize,
    low: usize,
    high: usize,
}

/// `out = start + left right`: `[m, 16 panels] = [m, k] [k, 16 panels]`.
///
/// # Panics
/// If a matrix is smaller than that.
#[inline(always)]
fn multiply_body<const FMA: bool, const R: usize, const N: usize>(
    left: Left<'_>,
    right: (&[f32], Place),
    out: (&mut [f32], Place),
    size: [usize; 3],
    start: Start<'_>,
    part: Part,
) {
    by_registers!(FMA, N, product(left, right, out, size, start, part))
}
crate::levels!(pub(super) fn multiply(
    left: Left<'_>,
    right: (&[f32], Place),
    out: (&mut [f32], Place),
    size: [usize; 3],
    start: Start<'_>,
    part: Part,
) = multiply_body, 6, [4, 8, 16]);

/// [`multiply`] by registers of one kind.
///
/// # Safety
/// The CPU must have them.
#[inline(always)]
unsafe fn product<V: Register>(
    left: Left<'_>,
    (right, place): (&[f32], Place),
    (out, target): (&mut [f32], Place),
    [m, panels, k]: [usize; 3],
    start: Start<'_>,
    part: Part,
) {
    if m == 0 || panels == 0 {
        return;
    }
    assert!(k > 0 && left.data.len() >= left.reaches(m, k) && right.len() >= place.reaches(k, panels));
    assert!(out.len() >= target.reaches(m, panels));
    match start {
        Start::Zero | Start::Kept(_) => {}
        Start::Rows(f) => assert!(f.len() >= m),
        Start::Columns(f) => assert!(f.len() >= panels * PANEL),
        Start::From(x, _) => assert!(x.len() >= target.reaches(m, panels)),
    }
    let to = out.as_mut_ptr();
    let strides = Strides { left, right: place, out: target, start };
    // What is behind the diagonal of a right-hand side may be anything, so each of its panels has a sum of its own length.
    let most = match part {
        Part::LowerRight => 1,
        _ if k > SHORT => V::PANELS.min(2),
        _ => V::PANELS,
    };
    let groups = panels.div_ceil(most);
    for group in 0..groups {
        let (first, end) = (panels * group / groups, panels * (group + 1) / groups);
        let mut r0 = if part == Part::LowerOutput { first * PANEL } else { 0 };
        while r0 < m {
            // The panels that reach below the diagonal in the rows of a tile, and, with one or two of them, of a tall one.
            let wide = |rows: usize| match part {
                Part::LowerOutput => ((r0 + rows - 1) / PANEL + 1).min(end) - first,
                _ => end - first,
            };
            let tall = V::TALL && m - r0 >= TALL && wide(TALL) <= 2;
            let rows = if tall { TALL } else { ROWS.min(m - r0) };
            let wide = wide(rows);
            let (low, high) = match part {
                Part::Full | Part::LowerOutput => (0, k),
                Part::LowerLeft => (0, k.min(r0 + rows)),
                Part::UpperLeft => (r0.min(k), k),
                Part::LowerRight => ((first * PANEL).min(k), k),
            };
            // SAFETY: rows r0 to r0 + rows are below m, panels from first on are below `panels`, and sums go from low to high
            // within k: the asserts above have seen the last element of each matrix, and no offset exceeds its own there.
            unsafe {
                let at = first * target.panel + r0 * target.row;
                let tile = Tile {
                    a: left.data.as_ptr().add(r0 * left.row),
                    b: right.as_ptr().add(first * place.panel),
                    out: to.add(at),
                    from: if let Start::From(x, _) = start { x.as_ptr().add(at) } else { to.add(at).cast_const() },
                    r0,
                    c0: first * PANEL,
                    low,
                    high,
                };
                match wide {
                    1 if tall => tall_of::<V, 1>(&tile, &strides),
                    2 if tall => tall_of::<V, 2>(&tile, &strides),
                    1 => rows_of::<V, 1>(&tile, &strides, rows),
                    2 => rows_of::<V, 2>(&tile, &strides, rows),
                    3 => rows_of::<V, 3>(&tile, &strides, rows),
                    _ => rows_of::<V, 4>(&tile, &strides, rows),
                }
            }
            r0 += rows;
        }
    }
}

/// A tile of P panels and at most [`ROWS`] rows.
///
/// # Safety
/// As [`tile_of`].
#[inline(always)]
unsafe fn rows_of<V: Register, const P: usize>(tile: &Tile, strides: &Strides<'_>, rows: usize) {
    // A condition of constants alone: tiles that no register has are not compiled.
    if const { P > V::PANELS } {
        return;
    }
    // SAFETY: as the caller promises.
    unsafe {
        match rows {
            6 => V::tile::<P, 6>(tile, strides),
            5 => V::tile::<P, 5>(tile, strides),
            4 => V::tile::<P, 4>(tile, strides),
            3 => V::tile::<P, 3>(tile, strides),
            2 => V::tile::<P, 2>(tile, strides),
            _ => V::tile::<P, 1>(tile, strides),
        }
    }
}

/// A tile of P panels and [`TALL`] rows.
///
/// # Safety
/// As [`tile_of`].
#[inline(always)]
unsafe fn tall_of<V: Register, const P: usize>(tile: &Tile, strides: &Strides<'_>) {
    if const { V::TALL } {
        // SAFETY: as the caller promises.
        unsafe { V::tile::<P, TALL>(tile, strides) }
    }
}

/// The body for each index below a constant, one after the other: loops so long are only unrolled after arrays have become
/// registers, or not.
macro_rules! unrolled {
    (row $at:ident < $n:expr => $body:block) => { unrolled!([0 1 2 3 4 5 6 7 8 9 10 11] $at < $n => $body) };
    (register $at:ident < $n:expr => $body:block) => { unrolled!([0 1 2 3] $at < $n => $body) };
    ([$($one:literal)*] $at:ident < $n:expr => $body:block) => { $( if const { $one < $n } { let $at = $one; $body } )* };
}

/// One tile of P panels and R rows.
///
/// # Safety
/// The CPU must have the registers. The tile's rows, columns and the sum's terms must lie inside their matrices, as must the
/// start's factors.
#[inline(always)]
pub(super) unsafe fn tile_of<V: Register, const P: usize, const R: usize>(tile: &Tile, strides: &Strides<'_>) {
    let Strides { left, right, out, start } = *strides;
    // Where the registers of a row stand in it.
    let column = |place: Place, w: usize| w * V::LANES / PANEL * place.panel + w * V::LANES % PANEL;
    // From the last term of a block to the first of the next.
    let jump = left.block.wrapping_sub(PANEL * left.col);
    // SAFETY: of every access below, as the caller promises; pointers beside the terms are not followed.
    unsafe {
        let mut acc = [[V::splat(0.0); 4]; R];
        let mut a = tile.a.wrapping_add(tile.low / PANEL * left.block + tile.low % PANEL * left.col);
        let mut b = tile.b.wrapping_add(tile.low * right.row);
        for k in tile.low..tile.high {
            let mut line = [V::splat(0.0); 4];
            unrolled!(register w < P * PANEL / V::LANES => { line[w] = V::load(b.add(column(right, w))); });
            unrolled!(row r < R => {
                let x = V::splat(*a.add(r * left.row));
                unrolled!(register w < P * PANEL / V::LANES => { acc[r][w] = x.mul_add(line[w], acc[r][w]); });
            });
            let ends = k % PANEL == PANEL - 1;
            a = a.wrapping_add(left.col.wrapping_add(if ends { jump } else { 0 }));
            b = b.wrapping_add(right.row);
        }
        unrolled!(row r < R => {
            unrolled!(register w < P * PANEL / V::LANES => {
                let offset = r * out.row + column(out, w);
                let old = || V::load(tile.from.add(offset));
                let sum = acc[r][w];
                let sum = match start {
                    Start::Zero => sum,
                    Start::Rows(f) => V::splat(*f.get_unchecked(tile.r0 + r)).mul_add(old(), sum),
                    Start::Columns(f) => V::load(f.as_ptr().add(tile.c0 + w * V::LANES)).mul_add(old(), sum),
                    Start::Kept(f) | Start::From(_, f) => V::splat(f).mul_add(old(), sum),
                };
                sum.store(tile.out.add(offset));
            });
        });
    }
}

/// `to [i] = sum a [i] b [i]`, a dot product of two rows of `width`, which lie a stride apart (0: one row for all).
#[inline(always)]
fn dots_body<const FMA: bool, const R: usize, const N: usize>(
    a: (&[f32], usize),
    b: (&[f32], usize),
    width: usize,
    to: &mut [f32],
) {
    by_registers!(FMA, N, dots_of(a, b, width, to))
}
crate::levels!(pub(super) fn dots(a: (&[f32], usize), b: (&[f32], usize), width: usize, to: &mut [f32]) = dots_body, 1, [4, 8, 16]);

/// [`dots`] by registers of one kind, two of sums.
///
/// # Safety
/// The CPU must have them.
#[inline(always)]
unsafe fn dots_of<V: Register>(a: (&[f32], usize), b: (&[f32], usize), width: usize, to: &mut [f32]) {
    for (i, to) in to.iter_mut().enumerate() {
        let (a, b) = (&a.0[i * a.1..][..width], &b.0[i * b.1..][..width]);
        let whole = width / (2 * V::LANES) * (2 * V::LANES);
        // SAFETY: whole pairs of registers are below the rows' ends, and the CPU has them, as the caller promises.
        let mut total = unsafe {
            let mut sums = [V::splat(0.0); 2];
            for at in (0..whole).step_by(2 * V::LANES) {
                for (w, sum) in sums.iter_mut().enumerate() {
                    let at = at + w * V::LANES;
                    *sum = V::load(a.as_ptr().add(at)).mul_add(V::load(b.as_ptr().add(at)), *sum);
                }
            }
            V::splat(1.0).mul_add(sums[0], sums[1]).sum()
        };
        for (a, b) in a[whole..].iter().zip(&b[whole..]) {
            total += a * b;
        }
        *to = total;
    }
}

/// `sum a b` of slices of one length.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut out = [0.0];
    dots((a, a.len()), (b, b.len()), a.len(), &mut out);
    out[0]
}

/// `sum a b` of long slices, rounded once a stretch.
pub(super) fn long_dot(a: &[f32], b: &[f32]) -> f64 {
    a.chunks(256).zip(b.chunks(256)).map(|(a, b)| f64::from(dot(a, b))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * i * 7 + i * 31 + salt) % 17) as f32 - 8.0).collect()
    }

    /// What a start adds to row r, column c.
    type Law<'a> = &'a dyn Fn(usize, usize) -> f32;

    /// What a product of rows by rows must be, where its right-hand side, start and left-hand side are whole.
    fn law(a: &[f32], b: &[f32], [m, n, k]: [usize; 3], start: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let of = |i: usize| {
            let (r, c) = (i / n, i % n);
            start(r, c) + (0..k).map(|k_at| a[r * k + k_at] * b[k_at * n + c]).sum::<f32>()
        };
        (0..m * n).map(of).collect()
    }

    /// Small integers: every sum is exact, whatever its order. Triangles are zeros behind the diagonal as far as tiles may read.
    #[test]
    fn products_of_integers_are_exact() {
        for m in [1usize, 5, 6, 12, 13, 37, 48] {
            for (panels, k) in [(1usize, 1usize), (1, 15), (2, 16), (3, 48), (4, 17), (5, 64), (7, 130), (9, 33)] {
                let n = panels * PANEL;
                let (a, b, old) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
                let (rows, columns) = (numbers(m, 4), numbers(n, 5));
                let starts: [(Start<'_>, Law<'_>); 5] = [
                    (Start::Zero, &|_, _| 0.0),
                    (Start::Rows(&rows), &|r, c| rows[r] * old[r * n + c]),
                    (Start::Columns(&columns), &|r, c| columns[c] * old[r * n + c]),
                    (Start::Kept(3.0), &|r, c| 3.0 * old[r * n + c]),
                    (Start::From(&old, 2.0), &|r, c| 2.0 * old[r * n + c]),
                ];
                let turned: Vec<f32> = (0..m * k).map(|i| a[i % m * k + i / m]).collect();
                let mut a_panels = vec![0.0; k.next_multiple_of(PANEL) * m];
                (0..m * k).for_each(|i| a_panels[i % k / PANEL * PANEL * m + i / k * PANEL + i % k % PANEL] = a[i]);
                let b_panels: Vec<f32> =
                    (0..k * n).map(|i| b[i / PANEL % k * n + i / PANEL / k * PANEL + i % PANEL]).collect();
                let lefts = [Left::rows(&a, k), Left::transposed(&turned, m), Left::panels(&a_panels, m)];
                for (start, of) in starts {
                    let want = law(&a, &b, [m, n, k], of);
                    for left in lefts {
                        for right in [(&b[..], Place::rows(n)), (&b_panels[..], Place::panels(k))] {
                            let mut out = old.clone();
                            multiply(left, right, (&mut out, Place::rows(n)), [m, panels, k], start, Part::Full);
                            assert_eq!(out, want, "{m} {panels} {k}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn triangles_are_what_whole_matrices_with_zeros_are() {
        for m in [1usize, 7, 12, 16, 31, 48, 80] {
            let stride = m.next_multiple_of(PANEL);
            let (panels, n) = (stride / PANEL, stride);
            // Lower triangles, with anything further behind the diagonal than products may read.
            let mut p = numbers(m * stride, 1);
            let mut zeros = p.clone();
            for (i, x) in p.iter_mut().enumerate() {
                let (r, c) = (i / stride, i % stride);
                if c > r {
                    zeros[i] = 0.0;
                    *x = if c < (r + FRINGE) / PANEL * PANEL + PANEL { 0.0 } else { f32::NAN };
                }
            }
            let square: Vec<f32> = (0..m * m).map(|i| zeros[i / m * stride + i % m]).collect();
            let x = numbers(m * n, 2);
            let run = |left: Left<'_>, right: &[f32], sizes: [usize; 3], part: Part| {
                let mut out = vec![f32::NAN; sizes[0] * n];
                multiply(left, (right, Place::rows(n)), (&mut out, Place::rows(n)), sizes, Start::Zero, part);
                out
            };
            let lower = run(Left::rows(&p, stride), &x, [m, panels, m], Part::LowerLeft);
            assert_eq!(lower, law(&square, &x, [m, n, m], |_, _| 0.0), "lower left, {m}");
            let upper: Vec<f32> = (0..m * m).map(|i| square[i % m * m + i / m]).collect();
            let got = run(Left::transposed(&p, stride), &x, [m, panels, m], Part::UpperLeft);
            assert_eq!(got, law(&upper, &x, [m, n, m], |_, _| 0.0), "upper left, {m}");
            let a = numbers(9 * m, 3);
            let got = run(Left::rows(&a, m), &p, [9, panels, m], Part::LowerRight);
            let want = law(&a, &zeros, [9, n, m], |_, _| 0.0);
            // Columns behind the last token are nobody's.
            for (i, (got, want)) in got.iter().zip(&want).enumerate().filter(|(i, _)| i % n < m) {
                assert_eq!(got, want, "lower right, {m}, {i}");
            }
            let got = run(Left::rows(&square, m), &x, [m, panels, m], Part::LowerOutput);
            let want = law(&square, &x, [m, n, m], |_, _| 0.0);
            for (i, (got, want)) in got.iter().zip(&want).enumerate().filter(|(i, _)| i % n <= i / n) {
                assert_eq!(got, want, "lower output, {m}, {i}");
            }
        }
    }

    #[test]
    fn dots_of_integers_are_exact() {
        for width in [1, 15, 16, 31, 32, 48, 64, 100] {
            let (a, b) = (numbers(5 * (width + 3), 1), numbers(5 * width, 2));
            for b_stride in [0, width] {
                let mut got = [f32::NAN; 5];
                dots((&a, width + 3), (&b, b_stride), width, &mut got);
                for (i, got) in got.iter().enumerate() {
                    let want: f32 = (0..width).map(|w| a[i * (width + 3) + w] * b[i * b_stride + w]).sum();
                    assert_eq!(*got, want, "{width} {i}");
                }
            }
        }
    }
}
