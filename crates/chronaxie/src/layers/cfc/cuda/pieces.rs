//! Lists of small jobs that one launch does: parameters to be packed, gradients to be closed.

use crate::cuda::{Arg, Kernel, LaunchConfig, StreamRef};
use crate::layers::cfc::net::{Map, Net};
use crate::op::Signature;
use crate::{Error, Result};

/// The most pieces of a launch, as `kPieces`.
pub(super) const MOST: usize = 24;
/// Bytes of a piece: `Packed` and `Closed` of products.cu.
const BYTES: usize = 48;
/// Threads of a block, and the most blocks of a piece: beyond them a thread has several elements.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 1024;

/// Four 8-byte and four 4-byte fields, in which order the struct has them.
pub(super) type Words = [u64; 6];

/// A struct of `longs` 8-byte and then 4-byte fields.
pub(super) fn words(longs: &[u64], ints: &[usize]) -> Words {
    let mut all = [0; 6];
    all[..longs.len()].copy_from_slice(longs);
    for (to, pair) in all[longs.len()..].iter_mut().zip(ints.chunks(2)) {
        let int = |i: usize| (pair.get(i).copied().unwrap_or(0) as u32).to_ne_bytes();
        let (a, b) = (int(0), int(1));
        *to = u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
    }
    all
}

/// Launches `kernel` over pieces, each with its number of elements, as many at a time as a launch takes.
pub(super) fn launch(
    kernel: &Kernel,
    stream: StreamRef,
    pieces: impl Iterator<Item = (usize, Words)>,
    rest: &[Arg<'_>],
) -> Result<()> {
    let mut pieces = pieces.filter(|(elements, _)| *elements > 0).peekable();
    while pieces.peek().is_some() {
        let (mut list, mut count, mut largest) = ([0u8; MOST * BYTES], 0, 0);
        for (elements, words) in pieces.by_ref().take(MOST) {
            let to = &mut list[count * BYTES..][..BYTES];
            to.iter_mut().zip(words.into_iter().flat_map(u64::to_ne_bytes)).for_each(|(to, from)| *to = from);
            (count, largest) = (count + 1, elements.max(largest));
        }
        let blocks = largest.div_ceil(THREADS).min(MOST_BLOCKS) as u32;
        let config = LaunchConfig::new((blocks, count as u32, 1), (THREADS as u32, 1, 1));
        let mut args = [Arg::Bytes(&list); 3];
        args[1..=rest.len()].copy_from_slice(rest);
        // SAFETY: every pointer in the list was checked against the signature or lies in the scratch layout, and a piece
        // keeps to its sizes.
        unsafe { kernel.launch(stream, &config, &args[..=rest.len()]) }?;
    }
    Ok(())
}

/// How many launches so many pieces are.
pub(super) fn launches(pieces: usize) -> usize {
    pieces.div_ceil(MOST)
}

/// A parameter to be packed: where it stands among the inputs, and where its elements go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pack {
    pub from: usize,
    pub mask: Option<usize>,
    /// The first element in the packed weights, or behind them in the biases.
    pub to: usize,
    pub row_stride: usize,
    pub column_stride: usize,
    pub rows: usize,
    pub columns: usize,
}

/// What is packed for a pass: weights, transposed forward, then at `net.packed` the biases, and w_tau and A.
pub(super) fn packs(net: &Net, inputs: &Signature, backward: bool) -> Result<Vec<Pack>> {
    let place = |name: &str| inputs.input(name).ok_or_else(|| missing(name));
    let mut list = Vec::new();
    for map in &net.maps {
        for s in &map.sources {
            let (row_stride, column_stride) = if backward { (map.inputs, 1) } else { (1, map.outputs) };
            list.push(Pack {
                from: place(&s.weight)?,
                mask: s.mask.as_deref().map(place).transpose()?,
                to: map.packed + s.first_output * row_stride + s.first_input * column_stride,
                row_stride,
                column_stride,
                rows: s.outputs,
                columns: s.inputs,
            });
            if let Some(bias) = s.bias.as_deref() {
                list.push(column(place(bias)?, net.packed + map.bias + s.first_output, s.outputs));
            }
        }
        for (k, name) in map.columns.iter().enumerate() {
            let to = net.packed + map.bias + map.outputs + k * map.column_len;
            list.push(column(place(name)?, to, map.column_len));
        }
    }
    Ok(list)
}

fn column(from: usize, to: usize, rows: usize) -> Pack {
    Pack { from, mask: None, to, row_stride: 1, column_stride: 1, rows, columns: 1 }
}

/// A gradient to be closed: where it stands among the outputs, and which sums it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Close {
    pub map: usize,
    pub to: usize,
    pub mask: Option<usize>,
    /// The first element of a slice.
    pub first: usize,
    pub rows: usize,
    pub columns: usize,
}

/// The gradients of all parameters, of sums `[columns of gradients, inputs + 1]` of each map.
pub(super) fn closes(net: &Net, s: &Signature) -> Result<Vec<Close>> {
    let place = |name: &str| s.output(&format!("grad_{name}")).ok_or_else(|| missing(name));
    let mut list = Vec::new();
    for (m, map) in net.maps.iter().enumerate() {
        let width = map.inputs + 1;
        // Sums of columns stand behind the products of the row.
        let sum = |to: usize, row: usize, rows: usize| Close {
            map: m,
            to,
            mask: None,
            first: row * width + map.inputs,
            rows,
            columns: 1,
        };
        for source in &map.sources {
            list.push(Close {
                map: m,
                to: place(&source.weight)?,
                mask: source.mask.as_deref().map(|n| s.input(n).ok_or_else(|| missing(n))).transpose()?,
                first: source.first_output * width + source.first_input,
                rows: source.outputs,
                columns: source.inputs,
            });
            if let Some(bias) = source.bias.as_deref() {
                list.push(sum(place(bias)?, source.first_output, source.outputs));
            }
        }
        for (k, name) in map.columns.iter().enumerate() {
            list.push(sum(place(name)?, map.outputs + k * map.column_len, map.column_len));
        }
    }
    Ok(list)
}

/// Elements of one slice of the sums of a map.
pub(super) fn slice_len(map: &Map) -> usize {
    map.grads() * (map.inputs + 1)
}

pub(super) fn missing(name: &str) -> Error {
    Error::config(format!("cfc: the signature has no tensor {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_lie_as_the_kernels_declare_them() {
        let packed = words(&[1, 2, 3, 4, 5], &[6, 7]);
        assert_eq!(packed[..5], [1, 2, 3, 4, 5]);
        let ints =
            |w: u64| w.to_ne_bytes().chunks(4).map(|c| i32::from_ne_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
        assert_eq!(ints(packed[5]), [6, 7]);
        let closed = words(&[1, 2, 3, 4], &[5, 6, 7, 8]);
        assert_eq!((ints(closed[4]), ints(closed[5])), (vec![5, 6], vec![7, 8]));
        assert_eq!([launches(0), launches(24), launches(25)], [0, 1, 2]);
    }
}
