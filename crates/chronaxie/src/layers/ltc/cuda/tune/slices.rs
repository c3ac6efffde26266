//! How much scratch sums over rows may take, and how they are sliced.

use crate::layers::ltc::spec::Ltc;

/// Scratch of the backward pass for what is not as long as the sequence: about as much as its inputs and outputs.
pub(in super::super) fn backward_budget(p: &Ltc) -> usize {
    io_bytes(p).clamp(4 << 20, 32 << 20)
}

/// About what the inputs and outputs of the backward pass take.
pub(super) fn io_bytes(p: &Ltc) -> usize {
    p.batch * p.steps * (p.inputs + p.hidden) * 8
}

/// Rows a slice of a sum over `rows` rows has, when each slice keeps `blocks` blocks busy: enough slices to fill a GPU,
/// none shorter than 64 rows or longer than 4096.
pub(in super::super) fn slice(rows: usize, blocks: usize) -> usize {
    (rows * blocks.max(1) / 2048).clamp(64, 4096)
}

/// The most slices of a sum over `rows` rows or fewer: a last chunk that is shorter may have more than the others, with the
/// most rows of which a slice has 64.
pub(in super::super) fn most_slices(rows: usize, blocks: usize) -> usize {
    let short = rows.min(65 * 2048 / blocks.max(1) + 1);
    rows.div_ceil(slice(rows, blocks)).max(short.div_ceil(64)).max(1)
}
