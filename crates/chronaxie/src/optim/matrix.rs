//! Products and eigenvalues of symmetric matrices on the CPU.
#![allow(unsafe_code)]

use std::ops::Range;

use super::tile::{Kernel, NARROW, Tile, WIDE, narrow, wide};
use crate::pool::for_each;
use crate::shared::Shared;
use crate::simd::{SimdLevel, level};

/// Terms of a product that are packed at a time: a panel of each matrix stays in the first cache, all of them in the second.
const DEPTH: usize = 256;
/// Panels of rows that go over a panel of columns while that is in the first cache.
const TALL: usize = 8;

/// Floats that [`product`] packs into.
pub(crate) fn packing(n: usize) -> usize {
    packing_of([n, n, n])
}

/// Floats that [`multiply`] of `[m, n]` elements of `depth` terms packs into.
pub(crate) fn packing_of([m, n, depth]: [usize; 3]) -> usize {
    let panels = |n: usize, w: usize, v: usize| n.next_multiple_of(w).max(n.next_multiple_of(v));
    DEPTH.min(depth) * (panels(m, WIDE.0, NARROW.0) + panels(n, WIDE.1, NARROW.1))
}

/// A factor of a product: its element `(k, i)` is `data[k * along + i * across]`.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub data: &'a [f32],
    pub along: usize,
    pub across: usize,
}

impl<'a> Operand<'a> {
    /// Rows of n elements, one for each term of the sums.
    pub fn terms(data: &'a [f32], n: usize) -> Self {
        Self { data, along: n, across: 1 }
    }
    /// Rows of n terms, one for each of what comes out.
    pub fn sums(data: &'a [f32], n: usize) -> Self {
        Self { data, along: 1, across: n }
    }
}

/// What of a product is made.
#[derive(Clone, Copy)]
struct Extent {
    m: usize,
    n: usize,
    depth: usize,
    /// The triangle alone.
    lower: bool,
    /// Whether it is added to what is there.
    add: bool,
}

/// `c[i][j] = sum_k a[k][i] b[k][j]`, all `[n, n]`, where that is symmetric: a Gram matrix, or the product of symmetric
/// matrices that commute. Half of it is made. Every element is summed in the same order, whatever the tiles and threads.
pub(crate) fn product(c: &mut [f32], a: &[f32], b: &[f32], n: usize, pack: &mut [f32], threads: bool) {
    let of = |data| Operand { data, along: n, across: 1 };
    any(c, Extent { m: n, n, depth: n, lower: true, add: false }, of(a), of(b), pack, threads);
    mirror(c, n);
}

/// Calls `f` of squares of indices `(rows, columns)` on and below the diagonal of a matrix, so small that lines of both sides stay in
/// the cache.
pub(crate) fn by_squares(n: usize, mut f: impl FnMut(Range<usize>, Range<usize>)) {
    const SIDE: usize = 8;
    for r in (0..n).step_by(SIDE) {
        for k in (0..=r).step_by(SIDE) {
            f(r..n.min(r + SIDE), k..n.min(k + SIDE));
        }
    }
}

/// The triangle above the diagonal from the one below.
pub(crate) fn mirror(c: &mut [f32], n: usize) {
    by_squares(n, |rows, columns| {
        for k in columns {
            for r in rows.start.max(k + 1)..rows.end {
                c[k * n + r] = c[r * n + k];
            }
        }
    });
}

/// `c[i][j] = sum_k a(k, i) b(k, j)`, c `[m, n]`, or with `add` that on top of c; `pack` holds [`packing_of`] them.
pub(crate) fn multiply(
    c: &mut [f32],
    [m, n, depth]: [usize; 3],
    a: Operand<'_>,
    b: Operand<'_>,
    add: bool,
    pack: &mut [f32],
) {
    any(c, Extent { m, n, depth, lower: false, add }, a, b, pack, false);
}

/// The lower triangle of `c[i][j] = sum_k a(k, i) a(k, j)`, c `[n, n]`, or with `add` that on top of c; above the diagonal
/// c holds nothing of meaning then.
pub(crate) fn gram(c: &mut [f32], [n, depth]: [usize; 2], a: Operand<'_>, add: bool, pack: &mut [f32]) {
    any(c, Extent { m: n, n, depth, lower: true, add }, a, a, pack, false);
}

/// The whole of `a^T a`, a `[depth, n]`, on all threads.
pub(crate) fn gram_on_threads(c: &mut [f32], [n, depth]: [usize; 2], a: &[f32]) {
    let of = Operand { data: a, along: n, across: 1 };
    let mut pack = vec![0f32; packing_of([n, n, depth])];
    any(c, Extent { m: n, n, depth, lower: true, add: false }, of, of, &mut pack, true);
    mirror(c, n);
}

fn any(c: &mut [f32], e: Extent, a: Operand<'_>, b: Operand<'_>, pack: &mut [f32], threads: bool) {
    if e.depth == 0 && !e.add {
        c.fill(0.0);
    } else if level() == SimdLevel::Avx512 {
        tiles::<{ WIDE.0 }, { WIDE.1 }>(c, e, a, b, pack, threads, wide());
    } else {
        tiles::<{ NARROW.0 }, { NARROW.1 }>(c, e, a, b, pack, threads, narrow());
    }
}

fn tiles<const M: usize, const N: usize>(
    c: &mut [f32],
    e: Extent,
    a: Operand<'_>,
    b: Operand<'_>,
    pack: &mut [f32],
    threads: bool,
    kernel: Kernel,
) {
    let Extent { m, n, .. } = e;
    let (rows, columns) = (m.div_ceil(M), n.div_ceil(N));
    if rows == 0 || columns == 0 {
        return;
    }
    let each =
        |tasks: usize, f: &(dyn Fn(usize) + Sync)| if threads { for_each(tasks, f) } else { (0..tasks).for_each(f) };
    for k0 in (0..e.depth).step_by(DEPTH) {
        let depth = DEPTH.min(e.depth - k0);
        let (pa, pb) = pack.split_at_mut(depth * rows * M);
        let (pa, pb) = (Shared::new(pa), Shared::new(&mut pb[..depth * columns * N]));
        each(rows + columns, &|p| {
            // SAFETY: panel p belongs to this task.
            unsafe {
                match p.checked_sub(rows) {
                    None => pack_panel::<M>(a, m, k0, p, pa.part(p * depth * M, depth * M)),
                    Some(p) => pack_panel::<N>(b, n, k0, p, pb.part(p * depth * N, depth * N)),
                }
            }
        });
        // SAFETY: nobody writes panels any more.
        let (pa, pb) = unsafe { (&*pa.part(0, depth * rows * M), &*pb.part(0, depth * columns * N)) };
        let (to, add) = (Shared::new(c), k0 > 0 || e.add);
        let some_rows = |i0: usize| {
            let (first, last) = (i0 * M, ((i0 + TALL) * M).min(m));
            // SAFETY: the rows of these panels belong to this task.
            let to = unsafe { to.part(first * n, (last - first) * n) };
            let columns = if e.lower { columns.min((last - 1) / N + 1) } else { columns };
            for j in 0..columns {
                let (b, width) = (&pb[j * depth * N..(j + 1) * depth * N], N.min(n - j * N));
                for (i, to) in (i0..).zip(to.chunks_mut(M * n)) {
                    let height = to.len() / n;
                    if e.lower && j * N >= i * M + height {
                        continue;
                    }
                    let a = &pa[i * depth * M..(i + 1) * depth * M];
                    if height == M && width == N {
                        let c = to[j * N..].as_mut_ptr();
                        // SAFETY: M rows of N elements of this task, and `any` takes what the CPU has.
                        unsafe { kernel(&Tile { a, b, c, stride: n, add }) };
                        continue;
                    }
                    let mut part = [[0f32; N]; M];
                    for (part, row) in part.iter_mut().zip(to.chunks_exact(n)) {
                        part[..width].copy_from_slice(&row[j * N..j * N + width]);
                    }
                    // SAFETY: as above.
                    unsafe { kernel(&Tile { a, b, c: part.as_mut_ptr().cast(), stride: N, add }) };
                    for (part, row) in part.iter().zip(to.chunks_exact_mut(n)) {
                        row[j * N..j * N + width].copy_from_slice(&part[..width]);
                    }
                }
            }
        };
        // The last rows have the most columns.
        let blocks = rows.div_ceil(TALL);
        each(blocks, &|i| some_rows((blocks - 1 - i) * TALL));
    }
}

/// Columns of panel p of W, of the rows from k0 on, side by side; zeros beyond the last of n.
fn pack_panel<const W: usize>(m: Operand<'_>, n: usize, k0: usize, p: usize, to: &mut [f32]) {
    let (width, from) = (W.min(n - p * W), k0 * m.along + p * W * m.across);
    if width < W {
        to.fill(0.0);
    }
    if m.across == 1 {
        for (k, to) in to.chunks_exact_mut(W).enumerate() {
            let row = &m.data[from + k * m.along..][..width];
            match (<&[f32; W]>::try_from(row), <&mut [f32; W]>::try_from(&mut *to)) {
                (Ok(row), Ok(to)) => *to = *row,
                _ => to[..width].copy_from_slice(row),
            }
        }
    } else {
        for i in 0..width {
            let column = m.data[from + i * m.across..].iter().step_by(m.along);
            to[i..].iter_mut().step_by(W).zip(column).for_each(|(to, &x)| *to = x);
        }
    }
}

#[inline(always)]
fn dot_body(x: &[f64], y: &[f64], out: &mut f64) {
    let mut lanes = [0f64; 8];
    let (xs, ys) = (x.chunks_exact(8), y.chunks_exact(8));
    let rest: f64 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i];
        }
    }
    *out = lanes.iter().sum::<f64>() + rest;
}
#[inline(always)]
fn add_body(scale: f64, x: &[f64], y: &mut [f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}
#[inline(always)]
fn add_two_body(s: f64, x: &[f64], t: f64, y: &[f64], z: &mut [f64]) {
    for ((z, x), y) in z.iter_mut().zip(x).zip(y) {
        *z += s * x + t * y;
    }
}
#[inline(always)]
fn turn_body(c: f64, s: f64, x: &mut [f64], y: &mut [f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}
crate::dispatch!(pub(super) fn dot(x: &[f64], y: &[f64], out: &mut f64) = dot_body);
crate::dispatch!(pub(super) fn add(scale: f64, x: &[f64], y: &mut [f64]) = add_body);
crate::dispatch!(fn add_two(s: f64, x: &[f64], t: f64, y: &[f64], z: &mut [f64]) = add_two_body);
crate::dispatch!(fn turn(c: f64, s: f64, x: &mut [f64], y: &mut [f64]) = turn_body);

/// The eigenvalues of a symmetric matrix and, row after row, its eigenvectors; none if they do not settle.
///
/// Householder's reflections to a tridiagonal matrix, then implicit QL steps (Golub and Van Loan, "Matrix Computations",
/// 8.3), in f64: 2 n^3 operations and about 6 n^3 in the steps, one thread.
pub(crate) fn eigen(a: &[f32], n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let mut a: Vec<f64> = a.iter().map(|&x| f64::from(x)).collect();
    let (mut d, mut e) = (vec![0f64; n], vec![0f64; n]);
    // Reflection k is I - v v^T with v[k + 1 ..] in row k of `reflections`.
    let mut reflections = vec![0f64; n * n];
    let (mut v, mut w) = (vec![0f64; n], vec![0f64; n]);
    for k in 0..n {
        d[k] = a[k * n + k];
        if k + 1 == n {
            break;
        }
        let column = &a[k * n + k + 1..(k + 1) * n];
        let m = column.len();
        let v = &mut v[..m];
        v.copy_from_slice(column);
        let largest = v.iter().fold(0f64, |l, x| l.max(x.abs()));
        if m == 1 || largest == 0.0 {
            e[k] = v[0];
            continue;
        }
        let norm = largest * v.iter().map(|x| (x / largest) * (x / largest)).sum::<f64>().sqrt();
        e[k] = if v[0] > 0.0 { -norm } else { norm };
        v[0] -= e[k];
        // |v|^2 / 2 = norm (norm + |x_0|): v is scaled so that its square is 2.
        let scale = 1.0 / (norm * (norm + (v[0] + e[k]).abs())).sqrt();
        v.iter_mut().for_each(|x| *x *= scale);
        let w = &mut w[..m];
        for (i, w) in w.iter_mut().enumerate() {
            let row = (k + 1 + i) * n;
            dot(&a[row + k + 1..row + n], v, w);
        }
        let mut along = 0.0;
        dot(v, w, &mut along);
        add(-0.5 * along, v, w);
        for i in 0..m {
            let row = (k + 1 + i) * n;
            add_two(-v[i], w, -w[i], v, &mut a[row + k + 1..row + n]);
        }
        reflections[k * n + k + 1..(k + 1) * n].copy_from_slice(v);
    }
    drop(a);
    let mut z = vec![0f64; n * n];
    (0..n).for_each(|k| z[k * n + k] = 1.0);
    for l in 0..n {
        let mut steps = 0;
        loop {
            let m = (l..n - 1)
                .find(|&m| e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs()) || e[m].abs() < f64::MIN_POSITIVE)
                .unwrap_or(n - 1);
            if m == l {
                break;
            }
            steps += 1;
            if steps > 100 {
                return None;
            }
            let half = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let mut g = d[m] - d[l] + e[l] / (half + half.hypot(1.0).copysign(half));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut split = false;
            for i in (l..m).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    split = true;
                    break;
                }
                (s, c) = (f / r, g / r);
                let x = d[i + 1] - p;
                let y = (d[i] - x) * s + 2.0 * c * b;
                p = s * y;
                d[i + 1] = x + p;
                g = c * y - b;
                let (low, high) = z[i * n..(i + 2) * n].split_at_mut(n);
                turn(c, s, low, high);
            }
            if !split {
                d[l] -= p;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
    for row in z.chunks_exact_mut(n.max(1)) {
        for k in (0..n.saturating_sub(2)).rev() {
            let v = &reflections[k * n + k + 1..(k + 1) * n];
            let mut along = 0.0;
            dot(v, &row[k + 1..], &mut along);
            add(-along, v, &mut row[k + 1..]);
        }
    }
    d.iter().all(|x| x.is_finite()).then_some((d, z))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// A product of every size around the tiles and depths, by one thread and by many, against plain sums of f64.
    #[test]
    fn products_are_sums() {
        for n in [1, 2, 5, 6, 7, 16, 31, 33, 64, 255, 257, 300] {
            let mut rng = Rng::new(n as u64, 0);
            let a: Vec<f32> = (0..n * n).map(|_| rng.normal() as f32).collect();
            let mut pack = vec![f32::NAN; packing(n)];
            let (mut one, mut many) = (vec![f32::NAN; n * n], vec![f32::NAN; n * n]);
            product(&mut one, &a, &a, n, &mut pack, false);
            product(&mut many, &a, &a, n, &mut pack, true);
            assert!(one == many, "{n}");
            for e in (0..n * n).step_by(1 + n / 7) {
                let (i, j) = (e / n, e % n);
                let sum: f64 = (0..n).map(|k| f64::from(a[k * n + i]) * f64::from(a[k * n + j])).sum();
                assert!((f64::from(one[e]) - sum).abs() < 1e-5 * n as f64, "{n}: {i} {j}");
            }
        }
    }

    /// Rectangles from any side, and on top of what is there.
    #[test]
    fn rectangles_are_sums_too() {
        for [m, n, depth] in [[1, 1, 1], [5, 33, 9], [40, 7, 300], [9, 64, 0], [0, 3, 4], [65, 31, 257]] {
            let mut rng = Rng::new((m + n) as u64, 1);
            let mut draw = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
            let (a, b, before) = (draw(m * depth), draw(n * depth), draw(m * n));
            // a as [m, depth], b as [depth, n].
            let (ka, kb) = (Operand { data: &a, along: 1, across: depth }, Operand { data: &b, along: n, across: 1 });
            let mut pack = vec![f32::NAN; packing_of([m, n, depth])];
            for add in [false, true] {
                let mut c = if add { before.clone() } else { vec![f32::NAN; m * n] };
                multiply(&mut c, [m, n, depth], ka, kb, add, &mut pack);
                for e in 0..m * n {
                    let (i, j) = (e / n, e % n);
                    let sum: f64 = (0..depth).map(|k| f64::from(a[i * depth + k]) * f64::from(b[k * n + j])).sum();
                    let want = sum + if add { f64::from(before[e]) } else { 0.0 };
                    assert!((f64::from(c[e]) - want).abs() < 2e-5 * (depth + 1) as f64, "{m} {n} {depth}: {i} {j}");
                }
            }
        }
    }

    /// A v = lambda v to the roundings of f64, also where eigenvalues repeat and where the matrix falls apart.
    #[test]
    fn eigenvectors_are_turned_into_themselves() {
        let mut rng = Rng::new(1, 0);
        for n in [0usize, 1, 2, 3, 10, 65, 150] {
            for kind in 0..4 {
                let mut a = vec![0f32; n * n];
                for r in 0..n {
                    for c in 0..=r {
                        let x = match kind {
                            0 => rng.normal() as f32,
                            1 => f32::from(u8::from(r == c)),
                            2 => 1.0,
                            _ => {
                                if r / 3 == c / 3 {
                                    rng.normal() as f32 * 1e-3f32.powi(r as i32 % 3)
                                } else {
                                    0.0
                                }
                            }
                        };
                        (a[r * n + c], a[c * n + r]) = (x, x);
                    }
                }
                let (d, v) = eigen(&a, n).unwrap();
                let size = a.iter().map(|&x| f64::from(x * x)).sum::<f64>().sqrt().max(1.0);
                for k in 0..n {
                    let v = &v[k * n..(k + 1) * n];
                    assert!((v.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-12, "{n} {kind} {k}");
                    for r in 0..n {
                        let sum: f64 = (0..n).map(|c| f64::from(a[r * n + c]) * v[c]).sum();
                        assert!((sum - d[k] * v[r]).abs() < 1e-13 * size * n as f64, "{n} {kind} {k}");
                    }
                }
            }
        }
        assert!(eigen(&[f32::NAN, 1.0, 1.0, 1.0], 2).is_none_or(|(d, _)| d.iter().any(|x| x.is_nan())));
    }
}
