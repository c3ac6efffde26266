//! Spikes of a part as bytes: a list of cells, or a bit for each cell of the part, whichever is smaller.
//!
//! ```text
//! part u32 | step u64: the one after the last | kind u8: 0 list, 1 bits | steps u8: so many before `step` |
//! list: cells a step, u32 each; then the cells, u32 each | bits: for each step a bit for each cell of the part, in whole bytes
//! ```
//! A bundle is packets, each after its length (u32).

use super::Spike;
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::{Error, Result};

const HEAD: usize = 14;

/// Where the cells of each part stand, and how many there are.
#[derive(Debug, Clone)]
pub struct Members {
    layout: Layout,
    /// The network's number of each population's first cell, and of all cells.
    first: Vec<u64>,
    /// `[part][population]`: how many cells of the part lie in populations before.
    before: Vec<Vec<u64>>,
}

impl Members {
    /// Those of a layout.
    pub fn new(plan: &Plan, layout: &Layout) -> Self {
        let mut first = plan.first.clone();
        first.push(plan.cells());
        let before = |part: usize| {
            let counts = (0..plan.first.len()).map(|p| layout.own(part, p).len() as u64);
            let ends = counts.scan(0, |sum, n| {
                *sum += n;
                Some(*sum)
            });
            std::iter::once(0).chain(ends).collect()
        };
        Self { before: (0..layout.parts()).map(before).collect(), layout: layout.clone(), first }
    }
    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    fn cells(&self, part: usize) -> usize {
        self.before[part].last().map_or(0, |n| *n as usize)
    }
    /// Where a cell stands among those of a part, if it is one.
    fn find(&self, part: usize, cell: u32) -> Option<usize> {
        let p = self.first.partition_point(|first| *first <= u64::from(cell)).checked_sub(1)?;
        if p + 1 == self.first.len() {
            return None;
        }
        let at = self.layout.own(part, p).find(cell - self.first[p] as u32)?;
        Some((self.before[part][p] + u64::from(at)) as usize)
    }
    fn at(&self, part: usize, index: usize) -> u32 {
        let p = self.before[part].partition_point(|n| *n <= index as u64) - 1;
        self.first[p] as u32 + self.layout.own(part, p).at(index - self.before[part][p] as usize)
    }
}

/// Whether so many spikes of a part of `cells` cells in so many steps are told as bits, and in how many bytes.
pub fn size(cells: usize, steps: usize, spikes: usize) -> (bool, usize) {
    let (bits, list) = (cells.div_ceil(8) * steps, 4 * (steps + spikes));
    (bits < list, HEAD + bits.min(list))
}

/// The spikes of `part` before `step`, sorted, of at most 255 steps.
///
/// # Errors
/// `Value`, where a spike is none of these.
pub fn pack(members: &Members, part: usize, step: u64, spikes: &[Spike]) -> Result<Vec<u8>> {
    let wrong = || Error::value(format!("spikes before step {step} are not those of part {part}"));
    let steps = spikes.first().map_or(0, |s| step.wrapping_sub(s.step));
    let (first, count) = (step.wrapping_sub(steps), u8::try_from(steps).map_err(|_| wrong())?);
    if !spikes.is_sorted() || spikes.last().is_some_and(|s| s.step >= step) {
        return Err(wrong());
    }
    let row = members.cells(part).div_ceil(8);
    let (bits, _) = size(members.cells(part), count.into(), spikes.len());
    let mut b = (part as u32).to_le_bytes().to_vec();
    b.extend(step.to_le_bytes());
    b.extend([u8::from(bits), count]);
    if bits {
        b.resize(HEAD + row * usize::from(count), 0);
        for spike in spikes {
            let at = members.find(part, spike.cell).ok_or_else(wrong)?;
            b[HEAD + (spike.step - first) as usize * row + at / 8] |= 1 << (at % 8);
        }
        return Ok(b);
    }
    let mut counts = vec![0u32; usize::from(count)];
    spikes.iter().for_each(|s| counts[(s.step - first) as usize] += 1);
    b.extend(counts.iter().flat_map(|n| n.to_le_bytes()));
    b.extend(spikes.iter().flat_map(|s| s.cell.to_le_bytes()));
    Ok(b)
}

/// Adds the spikes of a packet to `spikes`; the part that it is from.
///
/// # Errors
/// `Value`, where the bytes are no packet of this layout before `step`.
pub fn unpack(members: &Members, step: u64, bytes: &[u8], spikes: &mut Vec<Spike>) -> Result<usize> {
    let wrong =
        |what: &str| Error::value(format!("a packet of {} bytes of spikes before step {step} {what}", bytes.len()));
    let (head, body) = bytes.split_at_checked(HEAD).ok_or_else(|| wrong("is cut off"))?;
    let part = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let told = u64::from_le_bytes(std::array::from_fn(|i| head[4 + i]));
    let (kind, count) = (head[12], usize::from(head[13]));
    if part >= members.layout.parts() {
        return Err(wrong(&format!("is from part {part}, but there are {}", members.layout.parts())));
    }
    if told != step {
        return Err(wrong(&format!("is from part {part}, which is at step {told}")));
    }
    let Some(first) = step.checked_sub(count as u64) else { return Err(wrong("begins before the first step")) };
    match kind {
        0 => {
            let (counts, cells) = body.split_at_checked(4 * count).ok_or_else(|| wrong("is cut off"))?;
            let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let sum: u64 = counts.chunks_exact(4).map(|b| u64::from(word(b))).sum();
            if cells.len() as u64 != 4 * sum {
                return Err(wrong("does not have the cells that it counts"));
            }
            let mut cells = cells.chunks_exact(4);
            for (i, n) in counts.chunks_exact(4).enumerate() {
                let mut last = None;
                for cell in cells.by_ref().take(word(n) as usize).map(word) {
                    if last >= Some(cell) || members.find(part, cell).is_none() {
                        return Err(wrong(&format!("has cell {cell}, which is not the next of part {part}")));
                    }
                    last = Some(cell);
                    spikes.push(Spike { step: first + i as u64, cell });
                }
            }
        }
        1 => {
            let own = members.cells(part);
            let row = own.div_ceil(8);
            if body.len() != row * count {
                return Err(wrong("has not a bit for each cell and step"));
            }
            for (i, bits) in body.chunks_exact(row.max(1)).enumerate() {
                for (byte, some) in bits.iter().enumerate().filter(|(_, b)| **b != 0) {
                    for at in (0..8).filter(|bit| some >> bit & 1 == 1).map(|bit| byte * 8 + bit) {
                        if at >= own {
                            return Err(wrong("has bits beyond the last cell"));
                        }
                        spikes.push(Spike { step: first + i as u64, cell: members.at(part, at) });
                    }
                }
            }
        }
        _ => return Err(wrong(&format!("is of kind {kind}"))),
    }
    Ok(part)
}

/// Adds a packet, or several that are bundled already, to a bundle.
pub fn bundle(all: &mut Vec<u8>, packet: &[u8]) {
    all.extend((packet.len() as u32).to_le_bytes());
    all.extend(packet);
}

/// The packets of a bundle.
///
/// # Errors
/// `Value`, where the bytes are none.
pub fn packets(mut bundle: &[u8]) -> Result<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bundle.is_empty() {
        let cut = || Error::value(format!("a bundle of spikes is cut off, {} bytes before its end", bundle.len()));
        let (head, rest) = bundle.split_at_checked(4).ok_or_else(cut)?;
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (packet, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        all.push(packet);
        bundle = rest;
    }
    Ok(all)
}
