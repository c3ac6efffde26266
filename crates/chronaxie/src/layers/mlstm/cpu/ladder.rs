//! The ladder's steps on the CPU: threads over tiles of the result, whose products are tiles in registers (`gemm.rs`). The order
//! of a sum depends on sizes alone, so any number of threads gives the same bits.

use super::gemm::{Left, PANEL, Part as Of, Place, Start, multiply};
use super::layout::{Block, Carver, share};
use super::pack::{Tokens, panels, transposed};
use crate::layers::mlstm::ladder::{Form, Ladder, Mask, NAME, Part};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::{Dtype, Error, Layout, RegionId, Result, pool};

/// Rows of a tile: eight tall tiles of a product; and the tokens that they meet at a time.
const ROWS: usize = 96;
/// Terms and columns of a matrix that are packed at a time: 256 KB, of which products read a panel of 16 KB at a time.
const TERMS: usize = 256;
const COLUMNS: usize = 256;

/// A pass: its parts, and where a task keeps its tiles.
struct Work {
    parts: Vec<Part>,
    /// [slots, floats].
    buffers: RegionId,
    floats: usize,
}

/// `mlstm_ladder` on the CPU.
pub struct LadderCpu {
    problem: Ladder,
    slots: usize,
    /// Forward and backward.
    passes: [Work; 2],
}

/// Floats of a task's tiles.
fn floats(p: &Part) -> usize {
    match p.form {
        Form::Product { .. } => {
            let (terms, columns) = (TERMS.min(p.terms), COLUMNS.min(p.columns));
            ROWS * (terms + columns) + 2 * terms * columns
        }
        Form::Pairs(_) => ROWS * (2 * p.terms + 2 * p.columns + p.terms.max(p.columns) + ROWS),
    }
}

/// Tiles of a part's result.
fn tiles(p: &Part) -> [usize; 2] {
    let across = if matches!(p.form, Form::Product { .. }) { p.columns.div_ceil(COLUMNS) } else { 1 };
    [p.rows.div_ceil(ROWS), across]
}

impl LadderCpu {
    /// A plan.
    ///
    /// # Errors
    /// If `options` name another variant than `simd`, or the scratch exceeds 64-bit sizes.
    pub fn plan(p: &Ladder, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let slots = pool::num_threads();
        let work = |pass| -> Result<(Work, Layout)> {
            let parts = p.parts(pass);
            let floats = parts.iter().map(floats).max().unwrap_or(0).next_multiple_of(PANEL);
            let mut layout = Layout::new(options.scratch_gap);
            let buffers = layout.push("buffers", Dtype::F32, slots * floats)?;
            Ok((Work { parts, buffers, floats }, layout))
        };
        let ((forward, of_forward), (backward, of_backward)) = (work(Pass::Forward)?, work(Pass::Backward)?);
        let layouts = [(Pass::Forward, of_forward), (Pass::Backward, of_backward)];
        CpuPlan::new(p, options, layouts, Self { problem: *p, slots, passes: [forward, backward] })
    }

    fn part(&self, p: &Part, [x, y, z, to]: [Tokens; 4], buffers: Block<f32>, floats: usize) {
        let (heads, [down, across]) = (self.problem.heads, tiles(p));
        share(self.slots, self.problem.chains() * down * across, |slot, nth| {
            let (chain, tile) = (nth / (down * across), nth % (down * across));
            let at = [chain / heads, chain % heads, tile / across * ROWS];
            // SAFETY: a slot has one task at a time; the views were checked against the signature, whose sizes are the part's,
            // and a tile of the result is its task's.
            unsafe {
                let buffer = Carver(buffers.write(slot * floats, floats));
                match p.form {
                    Form::Product { turned } => product(p, turned, [x, y, to], at, tile % across * COLUMNS, buffer),
                    Form::Pairs(mask) => pairs(p, mask, self.problem.scale() as f32, [x, y, z, to], at, buffer),
                }
            }
        });
    }
}

/// A tile of a product, from row `at` and column `c0` on.
///
/// # Safety
/// The tensors must have the part's sizes; nobody may write what is read, or touch the tile.
unsafe fn product(p: &Part, turned: [bool; 2], of: [Tokens; 3], at: [usize; 3], c0: usize, mut buffer: Carver<'_>) {
    let ([x, y, to], [b, head, r0]) = (of, at);
    let (n, width) = (ROWS.min(p.rows - r0), COLUMNS.min(p.columns - c0));
    let most = TERMS.min(p.terms);
    let (left, out) = (buffer.take(ROWS * most), buffer.take(n * width));
    let (rows, packed) = (buffer.take(most * width), buffer.take(most * width));
    out.fill(0.0);
    for k0 in (0..p.terms).step_by(TERMS) {
        let terms = TERMS.min(p.terms - k0);
        // SAFETY: as the caller promises.
        unsafe {
            if turned[0] {
                x.columns(r0).load([b, head, k0], terms, n, 1.0, left);
            } else {
                x.columns(k0).load(at, n, terms, 1.0, left);
            }
            if turned[1] {
                y.columns(k0).load([b, head, c0], width, terms, 1.0, rows);
                transposed(rows, width, terms, packed);
            } else {
                y.columns(c0).load([b, head, k0], terms, width, 1.0, rows);
                panels(&rows[..terms * width], terms, width, packed);
            }
        }
        let left = if turned[0] { Left::transposed(left, n) } else { Left::rows(left, terms) };
        let start = Start::Rows(&[1.0; ROWS]);
        multiply(
            left,
            (packed, Place::panels(terms)),
            (out, Place::rows(width)),
            [n, width / PANEL, terms],
            start,
            Of::Full,
        );
    }
    // SAFETY: as the caller promises.
    unsafe { to.columns(c0).store(at, n, width, 1.0, out) }
}

/// The rows from `at` on of a sum over pairs.
///
/// # Safety
/// As [`product`].
unsafe fn pairs(p: &Part, mask: Mask, scale: f32, of: [Tokens; 4], at: [usize; 3], mut buffer: Carver<'_>) {
    let ([x, y, z, to], [b, head, r0]) = (of, at);
    let (n, k, v) = (ROWS.min(p.rows - r0), p.terms, p.columns);
    let (left, turned, square) = (buffer.take(ROWS * k), buffer.take(ROWS * k), buffer.take(ROWS * ROWS));
    let (rows, packed, out) = (buffer.take(ROWS * k.max(v)), buffer.take(ROWS * v), buffer.take(n * v));
    out.fill(0.0);
    // SAFETY: as the caller promises.
    unsafe { x.load(at, n, k, scale, left) };
    // The tokens that some row has: whole tiles of them, since rows begin where tiles do.
    let (first, last) = match mask {
        Mask::All => (0, p.rows),
        Mask::Until => (0, r0 + n),
        Mask::From => (r0, p.rows),
    };
    for s0 in (first..last).step_by(ROWS) {
        let m = ROWS.min(last - s0);
        let stride = m.next_multiple_of(PANEL);
        // SAFETY: as the caller promises.
        unsafe {
            y.load([b, head, s0], m, k, 1.0, rows);
            transposed(rows, m, k, turned);
            z.load([b, head, s0], m, v, 1.0, rows);
        }
        panels(&rows[..m * v], m, v, packed);
        let sizes = [n, stride / PANEL, k];
        let to_square = (&mut *square, Place::rows(stride));
        multiply(Left::rows(left, k), (turned, Place::panels(k)), to_square, sizes, Start::Zero, Of::Full);
        if mask != Mask::All && s0 == r0 {
            for (t, row) in square.chunks_exact_mut(stride).take(n).enumerate() {
                row.iter_mut().enumerate().filter(|(s, _)| !mask.has(t, *s)).for_each(|(_, x)| *x = 0.0);
            }
        }
        let start = Start::Rows(&[1.0; ROWS]);
        let (right, sizes) = ((&*packed, Place::panels(m)), [n, v / PANEL, m]);
        multiply(Left::rows(square, stride), right, (out, Place::rows(v)), sizes, start, Of::Full);
    }
    // SAFETY: as the caller promises.
    unsafe { to.store(at, n, v, 1.0, out) }
}

impl CpuWork for LadderCpu {
    fn execute(&self, pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let work = &self.passes[usize::from(pass == Pass::Backward)];
        // SAFETY: the block was checked against this layout, and the region is carved once in this call.
        let buffers = Block::new(unsafe { planned.scratch.carve::<f32>(&args.scratch, work.buffers)? });
        let find = |name: &str| {
            let input = planned.signature.input(name).map(|at| Tokens::read(&args.inputs[at]));
            let output = || planned.signature.output(name).map(|at| Tokens::write(&args.outputs[at]));
            input.or_else(output).ok_or_else(|| Error::config(format!("{NAME}: there is no tensor {name}")))
        };
        for part in &work.parts {
            let [x, y, z, to] = part.tensors.map(find);
            self.part(part, [x?, y?, z?, to?], buffers, work.floats);
        }
        Ok(())
    }
}
