//! The choice of the kernels whose synapses are divided over the whole device.

use super::Role;
use crate::DeviceProps;
use crate::layers::ltc::Synapses;
use crate::layers::ltc::cuda::wish::Wish;
use crate::layers::ltc::spec::Ltc;
use crate::op::Precision;
use std::fmt;

/// Threads of a block, as grid.cuh says.
pub(in crate::layers::ltc::cuda) const THREADS: usize = 512;
/// Rows of a lane, and lanes that have the rows of a group.
pub(in crate::layers::ltc::cuda) const SHAPES: [(usize, usize); 4] = [(4, 1), (8, 1), (8, 2), (8, 4)];
/// Bytes of a synapse and of where its other end lies.
const SYNAPSE: usize = 18;

/// Synapses divided over teams of blocks that fill the device (grid.cuh).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of a team, which hold all synapses together.
    pub blocks: usize,
    /// Teams, each with rows of its own.
    pub teams: usize,
    /// Batch rows that a lane serves.
    pub rows: usize,
    /// Lanes that have the rows of a group.
    pub lanes: usize,
    /// Groups of rows that a block walks side by side.
    pub groups: usize,
    /// Steps of a warp's part that lie in shared memory.
    pub held: usize,
    /// The most owners of a block, and the most pieces.
    pub owners: usize,
    /// As above.
    pub pieces: usize,
    /// Whether owners are sources.
    pub adjoint: bool,
    /// Dynamic shared memory of a block.
    pub shared: u32,
}

impl Grid {
    /// A shape alone, for the list of what is compiled.
    pub(in crate::layers::ltc::cuda) const fn of((rows, lanes): (usize, usize), adjoint: bool) -> Self {
        Self { blocks: 1, teams: 1, rows, lanes, groups: 1, held: 0, owners: 1, pieces: 1, adjoint, shared: 0 }
    }
    /// Synapses that a warp has at once.
    pub(in crate::layers::ltc::cuda) const fn streams(&self) -> usize {
        32 / self.lanes
    }
    /// Batch rows of a group.
    pub(in crate::layers::ltc::cuda) const fn group_rows(&self) -> usize {
        self.rows * self.lanes
    }
    /// Warps of a group, and parts of a block's list.
    pub(in crate::layers::ltc::cuda) const fn warps(&self) -> usize {
        THREADS / 32 / self.groups
    }
    /// Floats of the tiles that travel between the blocks, and words of the counters of all teams.
    pub(in crate::layers::ltc::cuda) const fn exchanged(&self, hidden: usize) -> (usize, usize) {
        let values = if self.adjoint { 2 } else { 1 };
        (self.teams * self.groups * 2 * values * hidden * self.group_rows(), self.teams * self.groups * 32)
    }
    /// What the kernels' headers say of their shared memory, without held synapses.
    const fn fixed(&self, hidden: usize) -> usize {
        let items = self.owners * self.group_rows();
        let of_group = if self.adjoint {
            8 * hidden * self.group_rows() + (16 * 3 + 4) * items + 4 * self.pieces * self.group_rows()
        } else {
            4 * hidden * self.group_rows() + 16 * 2 * items + 8 * self.pieces * self.group_rows()
        };
        self.groups * of_group + 16 * self.owners + 8 * self.pieces + 4 * (self.owners + 1)
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (c, r, g) = (self.blocks, self.group_rows(), self.groups);
        write!(f, "gridc{c}r{r}g{g} teams={} held={} shared={}", self.teams, self.held, self.shared)
    }
}

/// How many synapses each owner has: by target, or by source.
pub(in crate::layers::ltc::cuda) fn lengths(s: &Synapses, by_source: bool) -> Vec<usize> {
    let offsets = if by_source { &s.source_offsets } else { &s.target_offsets };
    offsets.windows(2).map(|w| (w[1] - w[0]) as usize).collect()
}

/// Owners dealt to `blocks` blocks, longest lists first and there and back, so that all get alike.
pub(in crate::layers::ltc::cuda) fn deal(lengths: &[usize], blocks: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&j| (std::cmp::Reverse(lengths[j]), j));
    let mut dealt = vec![Vec::new(); blocks];
    for (n, j) in order.into_iter().enumerate() {
        let (round, place) = (n / blocks, n % blocks);
        dealt[if round % 2 == 0 { place } else { blocks - 1 - place }].push(j);
    }
    dealt
}

/// Clocks of a step of all lanes' gates on one multiprocessor: of the special-function unit, or of shared memory's loads
/// where those are more, and what is lost beside them.
const fn step_clocks(rows: usize, adjoint: bool, fast: bool) -> usize {
    let (special, loads) = (if fast { 2 * rows } else { 4 * rows }, if adjoint { 2 * rows + 5 } else { rows + 5 });
    (if special > loads { special } else { loads }) * 4 / 3
}

/// The configuration that takes the fewest clocks for `batch` rows, by a model of one unfold.
pub(super) fn hold(p: &Ltc, props: &DeviceProps, wish: &Wish, role: Role, batch: usize) -> Option<Grid> {
    let adjoint = role == Role::Adjoint;
    let (h, processors) = (p.hidden, props.sm_count as usize);
    let many = p.steps > i32::MAX as usize || batch > i32::MAX as usize || h > 1 << 16;
    // Places in dense matrices are 32 bits, all ones being none.
    if h == 0 || many || h * h >= u32::MAX as usize || props.compute_capability < (8, 0) {
        return None;
    }
    let fast = p.precision == Precision::Fast;
    let lengths = lengths(&p.connectivity.recurrent, adjoint);
    let limit = props.shared_per_block_optin as usize;
    // What is rebuilt is many rows, as many as its chunk has steps; the choice is for any number.
    let batch = if role == Role::Rebuild { 1 << 14 } else { batch };
    let wanted = |x: usize, wish: Option<usize>| wish.is_none_or(|w| w == x);
    let mut teams: Vec<usize> = (1..=processors).map(|n| processors / n).collect();
    teams.extend(wish.blocks);
    teams.sort_unstable();
    teams.dedup();
    let mut best: Option<(usize, Grid)> = None;
    for &blocks in teams.iter().filter(|&&m| m <= h.min(processors) && wanted(m, wish.blocks)) {
        let dealt = deal(&lengths, blocks);
        let owners = dealt.iter().map(Vec::len).max().unwrap_or(0);
        for (rows, lanes) in SHAPES.into_iter().filter(|&(r, l)| wanted(r * l, wish.rows)) {
            let streams = 32 / lanes;
            let of_block = |owners: &Vec<usize>| owners.iter().map(|&j| lengths[j].div_ceil(streams)).sum::<usize>();
            let steps = dealt.iter().map(of_block).max().unwrap_or(0);
            for groups in [1, 2].into_iter().filter(|&g| wanted(g, wish.groups)) {
                let warps = THREADS / 32 / groups;
                let all_groups = batch.div_ceil(rows * lanes).max(1);
                let teams = (processors / blocks).min(all_groups.div_ceil(groups));
                // A part's ends cut at most one owner each.
                let mut g =
                    Grid { blocks, teams, groups, owners, pieces: owners + warps, ..Grid::of((rows, lanes), adjoint) };
                let Some(room) = limit.checked_sub(g.fixed(h)) else { continue };
                let part = steps.div_ceil(warps);
                g.held = (room / (warps * streams * SYNAPSE)).min(part).min(wish.slots.unwrap_or(usize::MAX));
                g.shared = (g.fixed(h) + g.held * warps * streams * SYNAPSE) as u32;
                // Bytes a clock and multiprocessor of L2, or of memory where L2 does not keep what is streamed.
                let streamed = (part - g.held) * warps * streams * SYNAPSE;
                let slow = props.memory_bytes_per_s / u64::from(props.clock_khz.max(1)) / 1000 / processors as u64;
                let kept = streamed * blocks <= props.l2_bytes as usize * 3 / 4;
                let rate = if kept { 26 } else { (slow as usize).clamp(1, 26) };
                // The sums over the streams of a piece take about as many instructions as there are values, six times.
                let ends = (owners + warps) * 6 * rows * if adjoint { 1 } else { 2 } / 4;
                let gates = (part * warps * step_clocks(rows, adjoint, fast) + ends).max(streamed / rate);
                let tile = h * rows * lanes * if adjoint { 8 } else { 4 } / 40;
                let items = (owners * rows * lanes).div_ceil(THREADS / groups);
                // What states take from block to block: the ends of the sums, a barrier of the team, and the copy of a tile (H100,
                // measured). Groups that begin together also wait together: one's wait hides little of the other's gates.
                let chain = 3000 + 4 * blocks + tile + items * if adjoint { 250 } else { 120 };
                let unfold = groups * gates + chain;
                let clocks = unfold * all_groups.div_ceil(teams * groups);
                if best.is_none_or(|(least, _)| clocks < least) {
                    best = Some((clocks, g));
                }
            }
        }
    }
    best.map(|(_, g)| g)
}
