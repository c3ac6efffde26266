//! Launches of the kernels whose synapses are divided over the whole device: who holds what (grid.cuh).

mod sums;

pub(super) use sums::{GridSums, specialisation as sums_specialisation};

use super::launch::{args, at, launch_as, out, stride};
use super::on_device::{DeviceWords, pack};
use super::tune::{Config, GRID_THREADS, Grid, deal, lengths};
use super::{CudaPlan, GRID, GRID_ADJOINT, GRID_HEADERS};
use crate::cuda::{
    Archs, Arg, Constant, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef, fill_bytes,
};
use crate::layers::ltc::Synapses;
use crate::layers::ltc::cuda::schedule::NONE;
use crate::op::{Args, LaunchReport};
use crate::{Dtype, Error, Place, Result, Shape, View, ViewMut};
use std::sync::Arc;

/// Which owner, synapse by synapse, belongs to whom, in the words that `struct Shares` reads.
pub(super) struct Shares {
    /// `[steps, streams]`: the place `source H + target` of each synapse, or none.
    pub(super) at: Vec<u32>,
    /// `[steps, streams]`: its other end.
    pub(super) from: Vec<u16>,
    /// `[blocks + 1, 4]`: first step, first piece, first owner.
    pub(super) blocks: Vec<u32>,
    /// `[blocks, warps + 1, 2]`: first step, first piece.
    pub(super) parts: Vec<u32>,
    /// `[pieces, 2]`: steps, the owner's place in its block.
    pub(super) pieces: Vec<u32>,
    /// `[owners + 1, 2]`: neuron, first piece.
    pub(super) owners: Vec<u32>,
}

impl Shares {
    pub(super) fn new(s: &Synapses, g: &Grid) -> Self {
        let (streams, warps) = (g.streams(), g.warps());
        let lengths = lengths(s, g.adjoint);
        let mut made = Self {
            at: Vec::new(),
            from: Vec::new(),
            blocks: Vec::new(),
            parts: Vec::new(),
            pieces: Vec::new(),
            owners: Vec::new(),
        };
        for owners in deal(&lengths, g.blocks) {
            let first = made.at.len() / streams;
            made.begin_block(streams);
            let (all, mut done) = (owners.iter().map(|&j| lengths[j].div_ceil(streams)).sum::<usize>(), 0);
            let mut part = 0;
            let end_of = |part: usize| all * (part + 1) / warps;
            made.parts.extend([first as u32, (made.pieces.len() / 2) as u32]);
            for (place, &j) in owners.iter().enumerate() {
                made.owners.extend([j as u32, (made.pieces.len() / 2) as u32]);
                made.push_owner(s, g, j);
                let end = done + lengths[j].div_ceil(streams);
                while done < end {
                    while end_of(part) <= done {
                        part += 1;
                        made.parts.extend([(first + done) as u32, (made.pieces.len() / 2) as u32]);
                    }
                    let steps = end.min(end_of(part)) - done;
                    made.pieces.extend([steps as u32, place as u32]);
                    done += steps;
                }
            }
            // Parts without a step, and the end of the last one.
            for _ in part..warps {
                made.parts.extend([(first + all) as u32, (made.pieces.len() / 2) as u32]);
            }
        }
        made.begin_block(streams);
        made.owners.extend([NONE, (made.pieces.len() / 2) as u32]);
        made
    }

    fn begin_block(&mut self, streams: usize) {
        let [step, piece, owner] = [self.at.len() / streams, self.pieces.len() / 2, self.owners.len() / 2];
        self.blocks.extend([step as u32, piece as u32, owner as u32, 0]);
    }

    /// The synapses of an owner, in such an order that the streams of a quarter of a warp, which load at once, read different
    /// banks as far as there are others left; a step that is not full is filled where they would not.
    fn push_owner(&mut self, s: &Synapses, g: &Grid, owner: usize) {
        let h = s.targets();
        let banks = 8 / g.lanes;
        let mut left = vec![Vec::new(); banks];
        let (offsets, others) =
            if g.adjoint { (&s.source_offsets, &s.target_of) } else { (&s.target_offsets, &s.source_of) };
        let list = &others[offsets[owner] as usize..offsets[owner + 1] as usize];
        for &other in list.iter().rev() {
            left[other as usize % banks].push(other as usize);
        }
        let mut slots = list.len().div_ceil(g.streams()) * g.streams();
        let mut empty = slots - list.len();
        while slots > 0 {
            let mut taken: Vec<Option<usize>> = left.iter_mut().map(Vec::pop).collect();
            for bank in 0..banks {
                if taken[bank].is_none() && empty > 0 {
                    empty -= 1;
                } else if taken[bank].is_none() {
                    taken[bank] = left.iter_mut().max_by_key(|l| l.len()).and_then(Vec::pop);
                }
                let place = |other: usize| if g.adjoint { owner * h + other } else { other * h + owner };
                self.at.push(taken[bank].map_or(NONE, |other| place(other) as u32));
                self.from.push(taken[bank].unwrap_or(bank.min(h - 1)) as u16);
            }
            slots -= banks;
        }
    }
}

/// One kernel with its shares and its launch.
pub(super) struct GridKernel {
    kernel: Kernel,
    words: DeviceWords,
    /// Where in them each list begins, bytes: at, from, blocks, parts, pieces, owners.
    offsets: [u64; 6],
    slots: usize,
    pub(super) grid: Grid,
    launch: LaunchConfig,
}

pub(super) fn specialisation(g: &Grid, fast: bool) -> Specialisation {
    let (source, entry): (&KernelSource, _) =
        if g.adjoint { (&GRID_ADJOINT, "ltc_grid_adjoint") } else { (&GRID, "ltc_grid") };
    Specialisation {
        headers: GRID_HEADERS,
        constants: vec![
            ("kRows", Constant::Int(g.rows as i32)),
            ("kRowLanes", Constant::Int(g.lanes as i32)),
            ("kThreads", Constant::Int(GRID_THREADS as i32)),
            ("kFast", Constant::Bool(fast)),
            // Of held.cuh, whose slots these kernels have not.
            ("kSlots", Constant::Int(2)),
            ("kPairs", Constant::Bool(false)),
            ("kShared", Constant::Bool(false)),
        ],
        archs: Archs::AtLeast(80),
        ..Specialisation::new(source.clone(), &[entry])
    }
}

impl GridKernel {
    pub(super) fn new(device: &Arc<CudaDevice>, s: &Synapses, grid: Grid, fast: bool) -> Result<Self> {
        let entry = if grid.adjoint { "ltc_grid_adjoint" } else { "ltc_grid" };
        let kernel = device.kernel(&specialisation(&grid, fast), entry)?;
        kernel.set_max_dynamic_shared(grid.shared)?;
        let threads = GRID_THREADS as u32;
        let resident = kernel.max_active_blocks(threads, grid.shared)? * device.props().sm_count;
        let blocks = (grid.blocks * grid.teams) as u32;
        if resident < blocks {
            return Err(Error::unavailable(format!(
                "ltc: {blocks} blocks with {} bytes of shared memory are not resident at once on this device; variant=rows runs",
                grid.shared
            )));
        }
        let launch = LaunchConfig {
            cooperative: true,
            ..LaunchConfig::new((blocks, 1, 1), (threads, 1, 1)).shared(grid.shared)
        };
        let shares = Shares::new(s, &grid);
        let mut words: Vec<u32> = Vec::new();
        let mut offsets = [0; 6];
        let from = shares.from.chunks(2).map(|c| u32::from(c[0]) | u32::from(*c.get(1).unwrap_or(&0)) << 16).collect();
        let slots = shares.at.len();
        let lists = [shares.at, from, shares.blocks, shares.parts, shares.pieces, shares.owners];
        for (offset, list) in offsets.iter_mut().zip(lists) {
            words.resize(words.len().next_multiple_of(64), 0);
            *offset = 4 * words.len() as u64;
            words.extend(list);
        }
        Ok(Self { kernel, words: DeviceWords::new(device, &words)?, offsets, slots, grid, launch })
    }

    /// Where the slots' places in dense matrices are, and how many slots there are.
    pub(super) fn slots(&self) -> (u64, usize) {
        (self.words.address() + self.offsets[0], self.slots)
    }
    /// Floats of scratch that the folded synapses take.
    pub(super) fn folded(&self) -> usize {
        4 * self.slots
    }
    /// `struct Shares`, with the folded synapses at `folded`.
    fn shares(&self, folded: u64) -> [u8; 48] {
        let of = |n: usize| self.words.address() + self.offsets[n];
        pack([folded, of(1), of(2), of(3), of(4), of(5)])
    }
    pub(super) fn report(&self, launches: usize) -> Result<LaunchReport> {
        LaunchReport::new(&self.kernel, launches, self.launch.grid, self.launch.block, self.launch.shared_bytes)
    }
}

/// The kernels of the backward pass whose synapses are divided.
pub(super) struct GridBackward {
    pub(super) adjoint: GridKernel,
    /// None where the forward pass kept the unfolds.
    pub(super) rebuild: Option<GridKernel>,
    /// None where the portable kernel makes the sums of the synapses, too.
    pub(super) sums: Option<GridSums>,
}

impl GridBackward {
    pub(super) fn new(device: &Arc<CudaDevice>, s: &Synapses, c: &Config) -> Result<Option<Self>> {
        let kernel = |g| GridKernel::new(device, s, g, c.fast);
        let Some(adjoint) = c.grid_adjoint else { return Ok(None) };
        let (adjoint, rebuild) = (kernel(adjoint)?, c.grid_rebuild.map(kernel).transpose()?);
        Ok(Some(Self { adjoint, rebuild, sums: GridSums::new(device, s, c.fast)? }))
    }
}

/// What a kernel reads beside its tensors: folded synapses, tiles and counters.
pub(super) struct Room {
    pub(super) folded: u64,
    pub(super) exchange: u64,
    pub(super) arrivals: u64,
}

impl CudaPlan {
    /// No block has arrived anywhere.
    fn clear_arrivals(&self, k: &GridKernel, room: &Room, stream: StreamRef) -> Result<()> {
        let (bytes, place) = (4 * k.grid.exchanged(0).1, Place::Cuda(self.device.index()));
        // SAFETY: the region lies in the scratch block that Args holds, and no other view of it is alive.
        let mut view =
            unsafe { ViewMut::from_raw(room.arrivals as *mut u8, Dtype::U8, Shape::from([bytes]), &[1], place) };
        fill_bytes(&mut view, 0, stream)
    }

    fn grid_args(k: &GridKernel, room: &Room) -> [Arg<'static>; 7] {
        let g = &k.grid;
        let n = |x: usize| Arg::I32(x as i32);
        [
            Arg::U64(room.exchange),
            Arg::U64(room.arrivals),
            n(g.blocks),
            n(g.groups),
            n(g.held),
            n(g.owners),
            n(g.pieces),
        ]
    }

    /// The recurrence over the steps `t0 .. t0 + steps` from `start`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn grid_recurrence(
        &self,
        k: &GridKernel,
        args: &Args<'_, '_>,
        room: &Room,
        sums: Arg<'_>,
        [s0, s1, s2]: [Arg<'_>; 3],
        (states, kept): (Option<usize>, [Arg<'static>; 2]),
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s, x) = (&self.p, &self.slots, args.inputs);
        self.clear_arrivals(k, room, args.stream)?;
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let common = args! {
            Arg::Bytes(&k.shares(room.folded)), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)),
            sums, s0, s1, s2, e0, e1, e2, e3, at(x, s.output_w), at(x, s.output_b), out(args.outputs, Some(0)),
            out(args.outputs, states), out(args.outputs, Some(1)), kept[0],
            kept[1], Arg::I32(p.batch as i32), Arg::I32(p.hidden as i32),
            Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64), Arg::I64(t0 as i64),
            Arg::I32(steps as i32), self.constrained(), Arg::F32(p.epsilon as f32), Arg::U64(0), Arg::I32(1)
        };
        launch_as(&k.kernel, args.stream, &k.launch, &[common.as_slice(), &Self::grid_args(k, room)].concat())
    }

    /// States and denominators of the unfolds of the steps `t0 .. t0 + steps`, from the states after each step.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn grid_unfolds(
        &self,
        k: &GridKernel,
        x: &[View<'_>],
        room: &Room,
        sums: Arg<'_>,
        states: Arg<'_>,
        [v, den]: [Arg<'_>; 2],
        stream: StreamRef,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (p, s) = (&self.p, &self.slots);
        self.clear_arrivals(k, room, stream)?;
        let [e0, e1, e2, e3] = self.elapsed_args(x);
        let null = Arg::U64(0);
        let common = args! {
            Arg::Bytes(&k.shares(room.folded)), at(x, Some(s.gleak)), at(x, Some(s.gleak + 1)), at(x, Some(s.gleak + 2)),
            sums, at(x, s.h0), stride(x, s.h0, 0), stride(x, s.h0, 1), e0, e1, e2, e3, null, null, null, null, null, v,
            den, Arg::I32((p.batch * steps) as i32), Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32),
            Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64), Arg::I64(t0 as i64), Arg::I32(1), self.constrained(),
            Arg::F32(p.epsilon as f32), states, Arg::I32(steps as i32)
        };
        launch_as(&k.kernel, stream, &k.launch, &[common.as_slice(), &Self::grid_args(k, room)].concat())
    }

    /// A launch of the adjoint: `common` are its arguments but for the shares and what is beside its tensors.
    pub(super) fn grid_adjoint(
        &self,
        k: &GridKernel,
        room: &Room,
        common: &[Arg<'_>],
        stream: StreamRef,
    ) -> Result<()> {
        self.clear_arrivals(k, room, stream)?;
        let shares = k.shares(room.folded);
        launch_as(&k.kernel, stream, &k.launch, &[&[Arg::Bytes(&shares)], common, &Self::grid_args(k, room)].concat())
    }
}

#[cfg(test)]
mod tests;
