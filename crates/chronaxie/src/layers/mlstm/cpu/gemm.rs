//! Products of small matrices: tiles of six rows by sixteen columns in registers, under AVX-512 of twelve.
//!
//! A right-hand side lies in panels of 16 columns, so that a step of the sum reads one line of the cache; a left-hand side
//! may lie anyhow, since its elements are broadcast one by one. A tile is 12 of the 16 registers of AVX2: 12 multiply-adds
//! for 8 loads, which is what keeps both multipliers busy over their latency (8 sums). AVX-512 has six rows in six registers: 1.5
//! multiply-adds a clock; twelve make 12 in 6.5, by 13 loads. Triangles are cut at the granularity of tiles,
//! so who makes one writes zeros for [`FRINGE`] columns behind the diagonal.

use crate::simd_math::{Lanes, mul_add};

/// Columns of a panel.
pub(super) const PANEL: usize = 16;
/// Rows of a tile, and of one whose rows are a register each.
const ROWS: usize = 6;
const TALL: usize = 2 * ROWS;
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

/// The pointers of one tile.
#[derive(Clone, Copy)]
struct Tile {
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    from: *const f32,
}

/// `out = start + left right`: `[m, 16 panels] = [m, k] [k, 16 panels]`.
///
/// # Panics
/// If a matrix is smaller than that.
#[inline(always)]
fn multiply_body<const FMA: bool, const R: usize, const N: usize>(
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
    assert!(R == ROWS && PANEL.is_multiple_of(N));
    assert!(k > 0 && left.data.len() >= left.reaches(m, k) && right.len() >= place.reaches(k, panels));
    assert!(out.len() >= target.reaches(m, panels));
    match start {
        Start::Zero => {}
        Start::Rows(f) => assert!(f.len() >= m),
        Start::Columns(f) => assert!(f.len() >= panels * PANEL),
        Start::From(x, _) => assert!(x.len() >= target.reaches(m, panels)),
    }
    let to = out.as_mut_ptr();
    for panel in 0..panels {
        let mut next = if part == Part::LowerOutput { panel * PANEL } else { 0 };
        while next < m {
            let r0 = next;
            let rows = if N == PANEL && m - r0 >= TALL { TALL } else { ROWS.min(m - r0) };
            next += rows;
            let (low, high) = match part {
                Part::Full | Part::LowerOutput => (0, k),
                Part::LowerLeft => (0, k.min(r0 + rows)),
                Part::UpperLeft => (r0.min(k), k),
                Part::LowerRight => ((panel * PANEL).min(k), k),
            };
            // SAFETY: rows r0 to r0 + rows are below m, panel is below panels, and sums go from low to high within k:
            // the asserts above have seen the last element of each matrix, and no offset exceeds its own there.
            unsafe {
                let at = panel * target.panel + r0 * target.row;
                let tile = Tile {
                    a: left.data.as_ptr().add(r0 * left.row),
                    b: right.as_ptr().add(panel * place.panel),
                    out: to.add(at),
                    from: if let Start::From(x, _) = start { x.as_ptr().add(at) } else { to.add(at).cast_const() },
                };
                let strides = (left, place.row, target.row);
                let scale = (start, r0, panel * PANEL);
                match rows {
                    TALL => tile_of::<FMA, TALL, N>(tile, strides, low, high, scale),
                    6 => tile_of::<FMA, 6, N>(tile, strides, low, high, scale),
                    5 => tile_of::<FMA, 5, N>(tile, strides, low, high, scale),
                    4 => tile_of::<FMA, 4, N>(tile, strides, low, high, scale),
                    3 => tile_of::<FMA, 3, N>(tile, strides, low, high, scale),
                    2 => tile_of::<FMA, 2, N>(tile, strides, low, high, scale),
                    _ => tile_of::<FMA, 1, N>(tile, strides, low, high, scale),
                }
            }
        }
    }
}
crate::levels!(pub(super) fn multiply(
    left: Left<'_>,
    right: (&[f32], Place),
    out: (&mut [f32], Place),
    size: [usize; 3],
    start: Start<'_>,
    part: Part,
) = multiply_body, 6, [4, 8, 16]);

/// One tile of R rows.
///
/// # Safety
/// Its rows, columns and the sum's terms must lie inside their matrices, as must the start's factors.
#[inline(always)]
unsafe fn tile_of<const FMA: bool, const R: usize, const N: usize>(
    tile: Tile,
    (left, b_row, out_row): (Left<'_>, usize, usize),
    low: usize,
    high: usize,
    (start, r0, c0): (Start<'_>, usize, usize),
) {
    // SAFETY: of every access below, as the caller promises.
    unsafe {
        let mut acc = [[Lanes::<N>::splat(0.0); 4]; R];
        let mut at = low;
        while at < high {
            let end = high.min((at / PANEL + 1) * PANEL);
            let a = tile.a.add(at / PANEL * left.block);
            for k in at..end {
                let (a, b) = (a.add(k % PANEL * left.col), tile.b.add(k * b_row));
                let mut line = [Lanes::<N>::splat(0.0); 4];
                for w in 0..PANEL / N {
                    line[w] = Lanes(*b.add(w * N).cast::<[f32; N]>());
                }
                for r in 0..R {
                    let x = Lanes::splat(*a.add(r * left.row));
                    for w in 0..PANEL / N {
                        acc[r][w] = x.mul_add::<FMA>(line[w], acc[r][w]);
                    }
                }
            }
            at = end;
        }
        for r in 0..R {
            for w in 0..PANEL / N {
                let offset = r * out_row + w * N;
                let out = tile.out.add(offset).cast::<[f32; N]>();
                let old = || Lanes(*tile.from.add(offset).cast::<[f32; N]>());
                let sum = acc[r][w];
                let sum = match start {
                    Start::Zero => sum,
                    Start::Rows(f) => Lanes::splat(*f.get_unchecked(r0 + r)).mul_add::<FMA>(old(), sum),
                    Start::Columns(f) => {
                        let f = Lanes(*f.as_ptr().add(c0 + w * N).cast::<[f32; N]>());
                        f.mul_add::<FMA>(old(), sum)
                    }
                    Start::From(_, f) => Lanes::splat(f).mul_add::<FMA>(old(), sum),
                };
                *out = sum.0;
            }
        }
    }
}

/// `sum a b`, in eight sums side by side.
#[inline(always)]
fn dot_body<const FMA: bool, const R: usize, const N: usize>(a: &[f32], b: &[f32], out: &mut f32) {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<N>(), b.as_chunks::<N>());
    let mut sum = [Lanes::<N>::splat(0.0); R];
    for (nth, (a, b)) in a.iter().zip(b).enumerate() {
        sum[nth % R] = Lanes(*a).mul_add::<FMA>(Lanes(*b), sum[nth % R]);
    }
    let mut total = 0.0;
    for sum in sum {
        total += sum.0.iter().sum::<f32>();
    }
    for (a, b) in rest_a.iter().zip(rest_b) {
        total = mul_add::<FMA>(*a, *b, total);
    }
    *out = total;
}
crate::levels!(fn dot_into(a: &[f32], b: &[f32], out: &mut f32) = dot_body, 2, [4, 8, 16]);

/// `sum a b` of slices of one length.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut out = 0.0;
    dot_into(a, b, &mut out);
    out
}

/// `sum a b` of long slices, rounded once a stretch.
pub(super) fn long_dot(a: &[f32], b: &[f32]) -> f64 {
    a.chunks(256).zip(b.chunks(256)).map(|(a, b)| f64::from(dot(a, b))).sum()
}
