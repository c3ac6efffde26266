//! The fast way, `lanes.cu` or `many.cu`, `lanes_backward.cu`, and `carry.cu` where time is cut: for which problems and
//! strides, and how the work is cut.

use super::super::spec::{CHUNK, Discretisation, SelectiveScan, Weights};
use super::{HEADERS, SHARED_HEADERS};
use crate::kernels;
use crate::layers::ssm::cuda::arrays::{RUNS, STORED, constants};
use crate::layers::ssm::packing::Packing;
use crate::op::Pass;
use crate::{DeviceProps, Dtype};
use chronaxie_runtime::cuda::{Header, KernelSource, Specialisation};
use std::fmt;

const FORWARD: KernelSource = KernelSource::embedded("layers/ssm/selective/cuda/lanes.cu", include_str!("lanes.cu"));
const MANY: KernelSource = KernelSource::embedded("layers/ssm/selective/cuda/many.cu", include_str!("many.cu"));
const BACKWARD: KernelSource =
    KernelSource::embedded("layers/ssm/selective/cuda/lanes_backward.cu", include_str!("lanes_backward.cu"));
const CARRY: KernelSource = KernelSource::embedded("layers/ssm/selective/cuda/carry.cu", include_str!("carry.cu"));
const LANES_HEADERS: &[Header] =
    &[HEADERS[0], HEADERS[1], kernels::HALF, STORED, RUNS, SHARED_HEADERS[0], ("lanes.cuh", include_str!("lanes.cuh"))];
/// The kernels: forward, backward, forward where there are many channels, and what segments hand on, forward and backward.
pub(super) const ENTRIES: [&str; 5] = [
    "selective_lanes_forward",
    "selective_lanes_backward",
    "selective_many_forward",
    "selective_carry_forward",
    "selective_carry_backward",
];

/// States of a channel that forward many channels has room for, and that the backward pass and the carries take at a time.
const MOST_STATES: usize = 16;
/// Threads of a block of the backward pass, and blocks a multiprocessor.
pub(super) const BACK_THREADS: u32 = 128;
const BACK_BLOCKS: usize = 2;
const BACK_WARPS: usize = BACK_THREADS as usize / 32;
/// Steps of a lane forward.
const RUN: usize = 16;
/// Words backward of the tiles of B and C, of a warp, and of a channel of a warp (`kOfWarp`, `kOfChannel`).
const BACK_TILES: usize = 2 * MOST_STATES * (CHUNK + 4);
const BACK_WARP: usize = 5 * CHUNK + 12 * (CHUNK + 4) + 16 * (4 * 8 + 4);
const BACK_CHANNEL: usize = 6 * 32 + 2 * MOST_STATES + 4 + 16;
/// More of a channel where its states are taken in turns.
const BACK_SHARES: usize = 3 * CHUNK;
/// Threads of a multiprocessor that run at once forward, as `lanes.cu` bounds its registers.
const AT_ONCE: usize = 512;

/// Of `many.cu`: threads of a block, channels of a warp, words of the tiles of B and C and of a warp, warps that keep a
/// multiprocessor busy.
const MANY_THREADS: u32 = 128;
const MANY_CHANNELS: usize = 8;
const MANY_TILES: usize = 2 * 32 * 2 * MOST_STATES;
const MANY_WARP: usize = 32 * 2 * MANY_CHANNELS + 4 * MANY_CHANNELS * 32;
const MANY_WARPS: usize = 12;
const MANY_BLOCKS: usize = 4;
/// Pieces of 64 steps of a segment, at the least, and segments at the most.
const MANY_PIECES: usize = 8;
const MANY_SEGMENTS: usize = 64;

/// How a problem is cut. Everything follows from the problem and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lanes {
    /// Whether forward is that of `many.cu`.
    pub(super) many: bool,
    /// Lanes of a warp that share a channel's time, forward, if not.
    pub(super) lanes: u32,
    /// Threads a block, forward.
    pub(super) threads: u32,
    /// Parts of time, forward.
    pub(super) forward_segments: usize,
    /// States of a channel.
    states: usize,
    /// Groups of channels with weights of their own.
    groups: usize,
    /// Channels of such a group.
    width: usize,
    /// Channels that a warp takes one after the other, backward.
    pub(super) channels_a_warp: usize,
    /// Parts of a group's channels, a block each, backward.
    pub(super) slices: usize,
    /// Parts of time, backward.
    pub(super) segments: usize,
}

impl Lanes {
    /// The way for `p`, if it has one on `device`.
    pub(super) fn choose(p: &SelectiveScan, device: &DeviceProps) -> Option<Self> {
        let lanes = Self::of_states(p, device)?;
        let cost = |w: &Self| w.forward_cost(p, device);
        Some(lanes.many(p, device).filter(|many| cost(many) < cost(&lanes)).unwrap_or(lanes))
    }

    /// The same with `lanes.cu` forward.
    pub(super) fn of_states(p: &SelectiveScan, device: &DeviceProps) -> Option<Self> {
        let (Weights::Varying(groups), Weights::Varying(_)) = (p.b(), p.c()) else { return None };
        let plain = !p.is_complex() && p.discretisation() == Discretisation::Exp && p.packing() == Packing::Whole;
        let width = p.channels() / groups;
        if !plain || p.batch() == 0 || width == 0 {
            return None;
        }
        let mut lanes = Self {
            many: false,
            lanes: 8,
            threads: 128,
            forward_segments: 1,
            states: p.states(),
            groups,
            width,
            channels_a_warp: 1,
            slices: 1,
            segments: 1,
        };
        let limit = device.shared_per_block_optin as usize;
        if lanes.forward_bytes(p.states()) > limit {
            lanes = Self { lanes: 4, threads: 64, ..lanes };
        }
        if lanes.forward_bytes(p.states()) > limit {
            return None;
        }
        let wide = Self { lanes: 32, threads: 256, ..lanes };
        if wide.forward_bytes(p.states()) <= limit && wide.forward_cost(p, device) < lanes.forward_cost(p, device) {
            lanes = wide;
        }
        lanes.cut(p, device);
        Some(lanes)
    }

    /// The same with `many.cu` forward, where it has room for the states.
    pub(super) fn many(self, p: &SelectiveScan, device: &DeviceProps) -> Option<Self> {
        let mut many = Self { many: true, threads: MANY_THREADS, ..self };
        let fits = many.forward_bytes(p.states()) <= device.shared_per_block_optin as usize;
        // Where half of the machine would rest, as many parts of time as fill it twice (as many as fill it once are 2 %
        // slower on an H200, half as many 13 %), none too short for the walk that comes before it.
        let most = (p.steps().div_ceil(CHUNK) / MANY_PIECES).clamp(1, MANY_SEGMENTS);
        let (at_once, blocks) = (MANY_BLOCKS * device.sm_count as usize, many.blocks(Pass::Forward, p.batch()).max(1));
        many.forward_segments = if 2 * blocks <= at_once { (2 * at_once / blocks).min(most) } else { 1 };
        (fits && p.states() <= MOST_STATES).then_some(many)
    }

    /// How many channels a warp takes, and in how many parts time.
    fn cut(&mut self, p: &SelectiveScan, device: &DeviceProps) {
        // Where shared memory does not hold two blocks of eight channels a warp, one block takes all of it.
        let (most, half) = (device.shared_per_block_optin as usize, device.shared_per_sm as usize / BACK_BLOCKS - 1024);
        let (limit, resident) = if self.backward_bytes(8) <= half { (most.min(half), BACK_BLOCKS) } else { (most, 1) };
        let at_once = resident * device.sm_count as usize;
        let blocks = |channels: usize| p.batch() * self.groups * self.width.div_ceil(channels * BACK_WARPS);
        let fits = |&channels: &usize| self.backward_bytes(channels) <= limit || channels == 1;
        // A segment of few tiles is not worth the walk that comes before it.
        let tiles = p.steps().div_ceil(CHUNK);
        let segments = |channels| (at_once / blocks(channels).max(1)).clamp(1, (tiles / 4).clamp(1, 32));
        // The rounds of blocks take as long as the channels of a warp; of equal ones the largest, which writes least.
        let cost = |&channels: &usize| (blocks(channels).div_ceil(at_once) * channels, 16 - channels);
        let whole = (8..=16).filter(fits).filter(|&c| 4 * blocks(c) >= 3 * at_once).min_by_key(cost);
        // With few blocks time is cut: as many channels a warp as leave three quarters of the machine busy.
        let busy = |&c: &usize| ((100 * blocks(c) * segments(c) / at_once).min(75), c);
        let parts = [16, 8, 4, 2, 1].into_iter().filter(fits).max_by_key(busy);
        self.channels_a_warp = whole.or(parts).unwrap_or(1);
        self.slices = self.width.div_ceil(self.channels_a_warp * BACK_WARPS);
        self.segments = if whole.is_some() { 1 } else { segments(self.channels_a_warp) };
    }

    /// How long a forward pass takes, in some unit: the rounds of the blocks that are resident at once, times the channels
    /// and steps of a round. A scan over 32 lanes costs a tenth more than one over 8.
    fn forward_cost(&self, p: &SelectiveScan, device: &DeviceProps) -> f64 {
        if self.many {
            // A multiprocessor's blocks run side by side; few warps wait for their own results. What segments hand on
            // costs a half more.
            let blocks = self.blocks(Pass::Forward, p.batch()).div_ceil(device.sm_count as usize);
            let warps = blocks * self.threads as usize / 32;
            let channels = (warps.max(MANY_WARPS) * MANY_CHANNELS) as f64;
            let steps = p.steps().div_ceil(self.forward_segments).next_multiple_of(32).max(32) as f64;
            return if self.forward_segments > 1 { 0.9 } else { 0.6 } * channels * steps;
        }
        let at_once = if self.lanes == 32 { 1 } else { AT_ONCE / self.threads as usize };
        let rounds = self.blocks(Pass::Forward, p.batch()).div_ceil(at_once * device.sm_count as usize);
        let tile = self.lanes as usize * RUN;
        let scan = if self.lanes == 8 { 1.0 } else { 1.1 };
        scan * (rounds * at_once * self.channels()) as f64 * p.steps().next_multiple_of(tile).max(tile) as f64
    }
    /// Channels of a block, forward.
    fn channels(&self) -> usize {
        if self.many { self.threads as usize / 32 * MANY_CHANNELS } else { (self.threads / self.lanes) as usize }
    }
    /// Bytes of shared memory of a block.
    pub(super) fn forward_bytes(&self, states: usize) -> usize {
        if self.many {
            return 4 * (MANY_TILES + self.threads as usize / 32 * MANY_WARP);
        }
        // 32 lanes have two states at work at a time.
        let states = if self.lanes == 32 { states.next_multiple_of(2) } else { states };
        4 * 2 * (states * self.lanes as usize * (RUN + 4) + self.channels() * (states + 1))
    }
    /// The same backward.
    pub(super) fn backward_bytes(&self, channels: usize) -> usize {
        let channel = BACK_CHANNEL + if self.split() { BACK_SHARES } else { 0 };
        4 * (BACK_TILES + BACK_WARPS * (BACK_WARP + channels * channel))
    }
    /// Whether the backward pass takes a channel's states in turns.
    pub(super) fn split(&self) -> bool {
        self.states > MOST_STATES
    }
    /// Blocks of a pass; those of the kernel before it where time is cut.
    pub(super) fn blocks(&self, pass: Pass, batch: usize) -> usize {
        match pass {
            Pass::Forward => batch * self.groups * self.width.div_ceil(self.channels()) * self.cuts(pass),
            _ => batch * self.groups * self.slices * self.segments,
        }
    }
    pub(super) fn carry_blocks(&self, pass: Pass, batch: usize) -> usize {
        let channels = MANY_THREADS as usize / 32 * MANY_CHANNELS;
        let sixteens = self.states.div_ceil(MOST_STATES);
        batch * self.groups * self.width.div_ceil(channels) * sixteens * (self.cuts(pass) - 1)
    }
    /// Parts of time of a pass.
    pub(super) fn cuts(&self, pass: Pass) -> usize {
        match pass {
            Pass::Forward if !self.many => 1,
            Pass::Forward => self.forward_segments,
            _ => self.segments,
        }
    }
    /// Parts of what has no time.
    pub(super) fn parts(&self, batch: usize) -> usize {
        batch * self.segments
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.many {
            true => write!(f, "many threads={} segments={}", self.threads, self.forward_segments)?,
            false => write!(f, "lanes={} threads={}", self.lanes, self.threads)?,
        }
        let (c, s, r) = (self.channels_a_warp, self.slices, self.segments);
        write!(f, "; backward channels_a_warp={c} slices={s} segments={r}")
    }
}

pub(super) fn forward_specialisation(dtype: Dtype, lanes: u32, threads: u32) -> Specialisation {
    let mut spec = Specialisation::new(FORWARD, &ENTRIES[..1]);
    spec.headers = LANES_HEADERS;
    spec.constants = constants(dtype, false);
    spec.constants.extend([("kThreads", (threads as i32).into()), ("kLanes", (lanes as i32).into())]);
    spec
}
pub(super) fn many_specialisation(dtype: Dtype) -> Specialisation {
    let mut spec = Specialisation::new(MANY, &ENTRIES[2..3]);
    spec.headers = LANES_HEADERS;
    spec.constants = constants(dtype, false);
    spec.constants.push(("kThreads", (MANY_THREADS as i32).into()));
    spec
}
pub(super) fn carry_specialisation(dtype: Dtype) -> Specialisation {
    let mut spec = Specialisation::new(CARRY, &ENTRIES[3..]);
    spec.headers = LANES_HEADERS;
    spec.constants = constants(dtype, false);
    spec.constants.push(("kThreads", (MANY_THREADS as i32).into()));
    spec
}
pub(super) fn backward_specialisation(dtype: Dtype, split: bool) -> Specialisation {
    let mut spec = Specialisation::new(BACKWARD, &ENTRIES[1..2]);
    spec.headers = LANES_HEADERS;
    spec.constants = constants(dtype, false);
    spec.constants.extend([("kThreads", (BACK_THREADS as i32).into()), ("kSplit", split.into())]);
    spec
}
/// Each kernel and each mapping; f32 holds more registers between a load and its use.
pub(super) fn specialisations() -> Vec<Specialisation> {
    vec![
        forward_specialisation(Dtype::Bf16, 8, 128),
        forward_specialisation(Dtype::F32, 32, 256),
        many_specialisation(Dtype::Bf16),
        many_specialisation(Dtype::F32),
        backward_specialisation(Dtype::Bf16, false),
        backward_specialisation(Dtype::F32, false),
        backward_specialisation(Dtype::Bf16, true),
        backward_specialisation(Dtype::F32, true),
        carry_specialisation(Dtype::Bf16),
        carry_specialisation(Dtype::F32),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mamba(batch: usize, channels: usize, steps: usize, states: usize) -> SelectiveScan {
        SelectiveScan::new(batch, channels, steps, states).unwrap()
    }

    #[test]
    fn every_device_has_a_way_that_fits_it() {
        for device in DeviceProps::FIXTURES {
            for p in [mamba(8, 2048, 2048, 16), mamba(1, 1024, 65536, 16), mamba(1, 3, 70, 5), mamba(3, 7, 0, 1)] {
                let way = Lanes::choose(&p, &device).unwrap();
                assert!(way.forward_bytes(p.states()) <= device.shared_per_block_optin as usize);
                assert!(way.backward_bytes(way.channels_a_warp) <= device.shared_per_block_optin as usize);
                assert!(way.channels_a_warp * BACK_WARPS * way.slices >= p.channels());
                assert!(way.segments <= p.steps().div_ceil(64).max(1));
            }
        }
    }

    #[test]
    fn what_the_kernels_have_not_is_left_to_the_others() {
        let h200 = DeviceProps::FIXTURES.into_iter().find(|d| d.compute_capability == (9, 0)).unwrap();
        let way = |p: SelectiveScan| Lanes::choose(&p, &h200);
        let plain = mamba(2, 6, 100, 16);
        assert!(way(plain).is_some_and(|w| !w.split()));
        assert!(way(plain.with_complex(true)).is_none());
        assert!(way(plain.with_discretisation(Discretisation::Zoh)).is_none());
        assert!(way(plain.with_packing(Packing::Reset).unwrap()).is_none());
        assert!(way(plain.with_weights(Weights::Constant, Weights::Varying(1)).unwrap()).is_none());
        assert!(way(mamba(2, 6, 100, 17)).is_some_and(|w| w.split()));
        assert!(way(mamba(2, 6, 100, 256)).is_some_and(|w| w.lanes == 4));
    }

    #[test]
    fn long_sequences_of_few_channels_are_cut_in_time() {
        let h200 = DeviceProps::FIXTURES.into_iter().find(|d| d.compute_capability == (9, 0)).unwrap();
        let long = Lanes::choose(&mamba(1, 1024, 65536, 16), &h200).unwrap();
        assert_eq!((long.many, long.forward_segments, long.channels_a_warp), (true, 33, 16), "{long}");
        assert!(long.segments >= 4 && long.blocks(Pass::Backward, 1) <= 264, "{long}");
        let many = Lanes::choose(&mamba(8, 2048, 2048, 16), &h200).unwrap();
        assert_eq!((many.many, many.forward_segments, many.channels_a_warp, many.segments), (true, 1, 16, 1), "{many}");
        // 768 blocks of sixteen channels would be a round and a half.
        let uneven = Lanes::choose(&mamba(8, 1536, 8192, 16), &h200).unwrap();
        assert_eq!((uneven.many, uneven.channels_a_warp, uneven.segments), (true, 12, 1), "{uneven}");
    }
}
