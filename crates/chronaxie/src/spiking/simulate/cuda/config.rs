//! How a plan is cut for a device: a pure, printable function of the plan and the device's properties.

use super::learning::Learns;
use super::narrow::Narrow;
use super::{footprint, kernels};
use crate::cuda::Specialisation;
use crate::spiking::connect::Part;
use crate::spiking::partition::Layout;
use crate::spiking::plan::{MOST_APART, Plan};
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Cells that a block has before there are more blocks.
const CELLS_A_BLOCK: u64 = 256;
/// The most blocks: one header a thread.
const MOST_BLOCKS: usize = 512;
/// The most cards, as `kMostCards`.
pub(crate) const MOST_CARDS: usize = 8;
/// The most cells of a shard: a header has 51 bits for a count of its spikes and one of them.
const MOST_CELLS: usize = (1 << 20) - 1;
/// Shared memory that the kernel has beside what it asks for: a part a warp, and some counters.
const STATIC_SHARED: usize = 5 * 1024;
/// The most slots of a shard with a calendar: 16 bits of its entries.
const CALENDAR_SLOTS: usize = 1 << 16;
/// The most steps of a calendar.
const CALENDAR_STEPS: usize = 1 << 12;
/// The most weights that synapses have the number of.
const MOST_CODES: usize = 2048;
/// Words of a drive in network.cuh.
const DRIVE_WORDS: usize = 12;
/// Words of a drive's guide, and the most thresholds of drives that have one, as `kFewArrivals`; and the most drives.
pub(super) const GUIDE_WORDS: usize = 256;
const MOST_GUIDED: usize = 32;
const MOST_GUIDES: usize = 8;
/// Each cell's mean rate, in Hz, up to which a calendar holds all that is under way.
const CALENDAR_HZ: f64 = 12.0;
/// Bytes of a card's memory for a synapse that narrow ones are to stay within, with what the driver takes beside.
const BYTES_A_SYNAPSE: f64 = 8.0 * 0.98;
/// Spikes of a step for each thread of a block, of cells of so many Hz, from which on the bytes of segments bind and not the trip to
/// them: below that synapses are not narrow, as long as none of such was timed.
const ROUNDS: f64 = 4.0;
/// The shortest and the longest segments; of rows that are spread over a block the shortest.
const SEGMENTS: [usize; 2] = [8, 64];
const SHORTEST_SPREAD: usize = 4;
/// Bytes that a row costs which goes on beyond its segment: a piece of memory of its own, as many as two sectors.
const GOING_ON: f64 = 128.0;
/// The fewest and the most rows that are listed in shared memory, and for how many times those that fire in a step at so many Hz there is room.
const SPREAD: [usize; 2] = [256, 8192];
const SPREAD_HZ: f64 = 6.0;
const SPREAD_TIMES: f64 = 2.0;
/// The most arrivals of a drive in a step that the kernel keeps in a byte, as `kMostArrivals`.
const MOST_ARRIVALS: usize = 255;
/// Bits of a header before its ids, and the most ids in it, as `kTagBits + 1` and `kMostIds`.
const HEAD_BITS: u32 = 13;
const MOST_IDS: u32 = 4;
/// The most steps of a launch: 12 bits of a header are the step's tag, from 1 on.
pub(super) const MOST_STEPS: u64 = 4094;
/// Copies of the headers, as `kReplicas`.
pub(crate) const REPLICAS: usize = 8;

/// Where what is under way lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Sums by step and slot, in shared memory.
    Shared,
    /// Lists by step, in global memory.
    Calendar,
    /// Sums by step and slot, in global memory.
    Global,
}

/// What is asked for in place of what would be chosen; spikes do not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// Bytes of a synapse: 4 or 8.
    pub bytes: Option<usize>,
    /// Words of a segment.
    pub segment: Option<usize>,
}

impl Asked {
    /// By `CHRONAXIE_SYNAPSE_BYTES` and `CHRONAXIE_SEGMENT_WORDS`.
    ///
    /// # Errors
    /// `Config`, for what is no number.
    pub fn of_environment() -> Result<Self> {
        let number = |name: &str| match std::env::var(name) {
            Ok(text) if !text.is_empty() => text
                .parse()
                .map(Some)
                .map_err(|_| Error::config(format!("{name}=`{text}`: what it asks for is a whole number"))),
            _ => Ok(None),
        };
        Ok(Self { bytes: number("CHRONAXIE_SYNAPSE_BYTES")?, segment: number("CHRONAXIE_SEGMENT_WORDS")? })
    }
}

/// How a plan runs on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Blocks of all cards, each with a shard of every population.
    pub shards: usize,
    /// Cards, each with as many of them.
    pub cards: usize,
    /// How many of the cards, the first ones, meet in each step; what fires on the others is heard of later, from elsewhere.
    pub here: usize,
    /// Threads of a block.
    pub threads: u32,
    /// Whether some model's twin needs the registers of 512 threads.
    pub heavy: bool,
    /// Where future inputs lie.
    pub place: Place,
    /// Whether the state of cells stays in registers: where a thread has one at most, of a light model, with one drive at most.
    pub held: bool,
    /// Steps of the ring.
    pub ring: usize,
    /// Slots of the largest shard.
    pub pitch: usize,
    /// Cells of the largest shard.
    pub cells: usize,
    /// Bits of a synapse's slot.
    pub slot_bits: u32,
    /// Whether a synapse takes eight bytes instead of four.
    pub wide: bool,
    /// How many weights there are, of which synapses of four bytes have the number; 0 where they have the weight.
    pub codes: usize,
    /// How they are packed where four bytes are enough though slot, delay and weight have more than 32 bits.
    pub narrow: Option<Narrow>,
    /// Synapses of a row that lie at a fixed place; with 0 none does.
    pub segment: usize,
    /// Entries of a step of the calendar.
    pub room: usize,
    /// Words of states that a block has in shared memory beside its calendar's sums, and of arrivals; 0 where they lie in global
    /// memory.
    pub near: usize,
    /// Likewise of arrivals.
    pub near_arrivals: usize,
    /// Likewise of drives, their thresholds and tasks.
    pub near_tables: usize,
    /// Whether draws of drives are looked up there by their first bits.
    pub guides: bool,
    /// How synapses that change lie there; `None` where there are none, or where they do not fit.
    pub learns: Option<Learns>,
    /// Rows that fired of which a block has a list in shared memory, to spread them over its threads; 0 where a warp takes what it
    /// hears of.
    pub spread: usize,
    /// Whether networks side by side draw by seeds of their own.
    pub seeds: bool,
    /// Whether weights have 32 bits.
    pub long: bool,
}

impl Config {
    /// As many blocks as there are multiprocessors, or one for every 256 cells; the ring in shared memory where a shard's
    /// fits there, else a calendar, else, for more slots than its entries can name, the ring in global memory; four bytes a
    /// synapse where slot and delay fit in 16 bits, or leave enough to number the weights, or, on one card beside a calendar and
    /// where many cells fire in a step, nearly all of them ([`Narrow`]); segments that hold the mean row and three deviations, up to 64, or shorter ones where these do not fit
    /// in memory. What `Asked` finds in the environment wins.
    ///
    /// # Errors
    /// `Config`, for more cells than shards can have.
    pub fn choose(plan: &Plan, device: &DeviceProps) -> Result<Self> {
        Self::on_cards(plan, device, 1)
    }

    /// Likewise, on `cards` alike devices.
    ///
    /// # Errors
    /// `Config`, likewise, and for more than eight cards.
    pub fn on_cards(plan: &Plan, device: &DeviceProps, cards: usize) -> Result<Self> {
        few(cards)?;
        Self::laid_out(plan, device, &Layout::even(&plan.network, cards))
    }

    /// Likewise, on the cards of a layout, which has a part for each.
    ///
    /// # Errors
    /// As [`on_cards`](Self::on_cards).
    pub fn in_layout(plan: &Plan, device: &DeviceProps, layout: &Layout) -> Result<Self> {
        few(layout.parts())?;
        Self::laid_out(plan, device, layout)
    }

    /// Likewise, where the first `here` cards of a layout are those of this process.
    ///
    /// # Errors
    /// As [`on_cards`](Self::on_cards).
    pub(super) fn apart(plan: &Plan, device: &DeviceProps, layout: &Layout, here: usize) -> Result<Self> {
        few(here)?;
        let cells = (0..here).map(|card| layout.cells(card)).max().unwrap_or(0);
        Self::cut(plan, device, blocks_for(device, cells), layout, here, Asked::of_environment()?)
    }

    /// Likewise, on as many devices as might be.
    ///
    /// # Errors
    /// `Config`, for more cells than shards can have.
    pub(super) fn laid_out(plan: &Plan, device: &DeviceProps, layout: &Layout) -> Result<Self> {
        let cells = (0..layout.parts()).map(|card| layout.cells(card)).max().unwrap_or(0);
        Self::asked(plan, device, blocks_for(device, cells), layout, Asked::of_environment()?)
    }

    /// Likewise with `blocks` blocks a card, which spikes do not depend on.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn with_blocks(plan: &Plan, device: &DeviceProps, blocks: usize, cards: usize) -> Result<Self> {
        Self::with_layout(plan, device, blocks, &Layout::even(&plan.network, cards))
    }

    /// Likewise, on the cards of a layout.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(super) fn with_layout(plan: &Plan, device: &DeviceProps, blocks: usize, layout: &Layout) -> Result<Self> {
        Self::asked(plan, device, blocks, layout, Asked::default())
    }

    /// Likewise, as it is asked for.
    ///
    /// # Errors
    /// As [`choose`](Self::choose), and where what is asked for there is not.
    pub(crate) fn asked(
        plan: &Plan,
        device: &DeviceProps,
        blocks: usize,
        layout: &Layout,
        asked: Asked,
    ) -> Result<Self> {
        Self::cut(plan, device, blocks, layout, layout.parts(), asked)
    }

    /// Likewise, for the first `here` cards of the layout.
    pub(super) fn cut(
        plan: &Plan,
        device: &DeviceProps,
        blocks: usize,
        layout: &Layout,
        here: usize,
        asked: Asked,
    ) -> Result<Self> {
        let (local, cards) = (blocks.clamp(1, MOST_BLOCKS), layout.parts());
        let shards = local * cards;
        let ring = (plan.max_delay as usize + 1).next_power_of_two();
        let (mut pitch, mut cells, mut tasks) = (1, 1, 0);
        let mut drives = vec![0; plan.models.len()];
        plan.poisson.iter().for_each(|d| drives[d.target] += 1);
        let (mut near, mut near_arrivals) = (0, 0);
        for k in 0..shards {
            let (parts, slots) = layout.shard(plan, k / local, k % local, local);
            cells = cells.max(parts.iter().map(|p| p.count() as usize).sum());
            if k >= here * local {
                // Of those elsewhere there are rows alone.
                continue;
            }
            pitch = pitch.max(slots);
            tasks = tasks.max(parts.iter().map(|p| p.count().div_ceil(32) as usize).sum());
            let words = |each: &dyn Fn(usize) -> usize| -> usize {
                parts.iter().enumerate().map(|(p, part)| part.count() as usize * each(p)).sum()
            };
            near = near.max(words(&|p| plan.models[p].variables().len()));
            near_arrivals = near_arrivals.max(words(&|p| 2 * drives[p]));
        }
        if cells > MOST_CELLS {
            return Err(Error::config(format!(
                "network: {} cells on {shards} multiprocessors are more than {MOST_CELLS} on one",
                plan.cells()
            )));
        }
        // One slot more than there are, which marks rows that are not all in their segments.
        let slot_bits = usize::BITS - pitch.leading_zeros();
        let room = (device.shared_per_block_optin as usize).saturating_sub(STATIC_SHARED);
        let heavy = plan.models.iter().any(|m| m.twin().is_heavy());
        let listed = if cards > 1 { words_of(SPREAD[0]) } else { 0 };
        let place = if 4 * ring * pitch <= room {
            Place::Shared
        } else if pitch <= CALENDAR_SLOTS && ring <= CALENDAR_STEPS && 4 * (pitch + ring + listed) <= room {
            Place::Calendar
        } else {
            Place::Global
        };
        let (low, long) = (slot_bits + ring.trailing_zeros(), plan.has_long(|_| true));
        if long && low > 32 {
            return Err(Error::config(format!(
                "network: {pitch} inputs of a multiprocessor and delays of up to {} steps take {low} bits of a synapse, which has 32 \
                 beside a weight of as many; use more GPUs, shorter delays, or weight_bits = 16",
                plan.max_delay
            )));
        }
        let codes = match place {
            _ if long => 0,
            Place::Shared => 0,
            _ if low <= 16 || low >= 32 => 0,
            _ => distinct(plan, MOST_CODES.min((1 << (32 - low)) - 1)).map_or(0, |w| w.len()),
        };
        let codes = if place == Place::Calendar && 4 * (pitch + ring + codes + listed) > room { 0 } else { codes };
        let thresholds: usize = plan.poisson.iter().map(|d| d.thresholds.len()).sum();
        let mut near_tables = DRIVE_WORDS * plan.poisson.len() + thresholds + 2 * tasks + 2;
        let sums = if place == Place::Calendar { pitch + ring } else { 0 } + codes + 4;
        let beside = sums + near + near_arrivals + listed;
        if place != Place::Calendar || heavy || 4 * (beside + near_tables) > room {
            (near, near_arrivals, near_tables) = (0, 0, 0);
        }
        let more = GUIDE_WORDS * plan.poisson.len();
        let guides = near > 0
            && (1..=MOST_GUIDES).contains(&plan.poisson.len())
            && plan.poisson.iter().all(|d| d.thresholds.len() <= MOST_GUIDED)
            && 4 * (beside + near_tables + more) <= room;
        near_tables += if guides { more } else { 0 };
        let left = (room / 4).saturating_sub(sums + near + near_arrivals + near_tables);
        let spread = if cards > 1 && place != Place::Shared { spread(plan, left) } else { 0 };
        let threads = threads(place, heavy, cards > 1);
        let few =
            drives.iter().all(|count| *count <= 1) && plan.poisson.iter().all(|d| d.thresholds.len() <= MOST_ARRIVALS);
        let late = if here < cards { MOST_APART as usize } else { 0 };
        let learns = if place == Place::Shared { Learns::choose(plan, [ring, pitch, cells, late], room) } else { None };
        let synapses = plan.expected_synapses();
        let row = synapses / (shards as f64 * plan.cells().max(1) as f64);
        let head = learns.map_or(0, |l| l.head);
        let rounds = CALENDAR_HZ * 1e-3 * plan.network.dt_ms * plan.cells() as f64 / f64::from(threads);
        let narrow = (cards == 1 && near > 0 && codes == 0 && low > 16 && row >= 1.0 && !long)
            .then(|| Narrow::choose(plan, slot_bits))
            .flatten()
            .filter(|_| asked.bytes.map_or(rounds > ROUNDS, |bytes| bytes == 4));
        let row_words = row * narrow.map_or(1.0, |n| n.words());
        let words = row_words + 3.0 * row_words.sqrt() + head as f64;
        let least = if learns.is_some() { 16 } else { SEGMENTS[0] };
        let segment = match narrow {
            Some(_) => (words as usize).next_multiple_of(2).clamp(least, SEGMENTS[1]),
            None if spread > 0 => cheapest(row),
            None => [8, 16, 32].into_iter().find(|n| words <= *n as f64 && *n >= least).unwrap_or(SEGMENTS[1]),
        };
        let hz = synapses / shards as f64 * plan.network.dt_ms * 1e-3;
        let entries = (CALENDAR_HZ * hz).clamp(64.0, 1e8) as usize;
        let mut config = Self {
            shards,
            cards,
            here,
            threads,
            heavy,
            place,
            held: cards == 1 && place == Place::Shared && !heavy && few && 32 * tasks <= threads as usize,
            // Lists one after the other, of which there need be no more than there are delays.
            ring: if narrow.is_some() { plan.max_delay as usize + 1 } else { ring },
            pitch,
            cells,
            slot_bits,
            wide: (low > 16 && codes == 0 && narrow.is_none()) || (long && learns.is_none()),
            codes,
            narrow,
            segment: if row < 1.0 && learns.is_none() { 0 } else { segment },
            room: if place == Place::Calendar { entries } else { 0 },
            near,
            near_arrivals,
            near_tables,
            guides,
            learns,
            spread,
            seeds: !plan.network.has_one_seed(),
            long,
        };
        let most = 0.9 * device.memory_bytes as f64;
        if let Some(segment) = asked.segment {
            config.segment = config.may_have(segment)?;
        } else if narrow.is_some() {
            let most = most.min(BYTES_A_SYNAPSE * synapses / cards as f64);
            while config.segment > SEGMENTS[0] && config.footprint(plan).most() > most {
                config.segment -= 2;
            }
        }
        if let Some(bytes) = asked.bytes.filter(|bytes| *bytes != config.synapse()) {
            return Err(Error::config(format!(
                "network: {bytes} bytes a synapse were asked for, but this one's have {}: {config}",
                config.synapse()
            )));
        }
        // Segments half as long, of which more go on elsewhere, or none, where memory is short.
        let chosen = asked.segment.is_none() && narrow.is_none();
        while chosen && learns.is_none() && config.segment > 0 && config.footprint(plan).most() > most {
            config.segment = if config.segment > config.shortest() { config.segment / 2 } else { 0 };
        }
        Ok(config)
    }

    /// Words of a segment that somebody asks for: of narrow synapses any even number of them, of others a power of two.
    fn may_have(&self, words: usize) -> Result<usize> {
        let within = (self.shortest()..=SEGMENTS[1]).contains(&words) && self.learns.is_none();
        let is_one = if self.narrow.is_some() { words.is_multiple_of(2) } else { words.is_power_of_two() };
        if within && is_one {
            return Ok(words);
        }
        Err(Error::config(format!(
            "network: segments of {words} words were asked for; there are such of {} to {}, by {}, where no synapse changes",
            self.shortest(),
            SEGMENTS[1],
            if self.narrow.is_some() { "twos" } else { "powers of two" }
        )))
    }

    /// Words of the shortest segment.
    fn shortest(&self) -> usize {
        if self.spread > 0 { SHORTEST_SPREAD } else { SEGMENTS[0] }
    }

    /// Words of what is listed in shared memory.
    fn listed(&self) -> usize {
        words_of(self.spread)
    }

    /// Lanes that take a segment, two words each or, of some, one.
    pub(super) fn lane_bits(&self) -> u32 {
        (self.segment.max(2).next_power_of_two() / 2).trailing_zeros()
    }

    /// The cells of a shard of all cards, and how many slots they have.
    pub(super) fn shard(&self, plan: &Plan, layout: &Layout, shard: usize) -> (Vec<Part>, usize) {
        layout.shard(plan, shard / self.local(), shard % self.local(), self.local())
    }

    /// Blocks of a card.
    pub fn local(&self) -> usize {
        self.shards / self.cards
    }

    /// Blocks that meet in each step.
    pub(super) fn meeting(&self) -> usize {
        self.here * self.local()
    }

    /// Cells that may fire on a card in a step.
    pub(super) fn logged(&self, plan: &Plan) -> usize {
        if self.is_apart() { self.local() * self.cells } else { plan.cells() as usize }
    }

    /// Whether some cells are elsewhere.
    pub(super) fn is_apart(&self) -> bool {
        self.here < self.cards
    }

    /// How many bits the number of a cell in its shard has in a header, and how many numbers.
    pub(crate) fn header(&self) -> (u32, u32) {
        let bits = usize::BITS - self.cells.leading_zeros();
        (bits, ((64 - HEAD_BITS - bits) / bits).min(MOST_IDS))
    }

    /// Bytes that a block has in shared memory for what is under way, and for what its cells did.
    pub fn shared_bytes(&self) -> u32 {
        match self.place {
            Place::Shared => {
                let learns = self.learns.map_or(0, |l| l.shared_bytes(self.cells, self.pitch));
                (4 * self.ring * self.pitch + learns) as u32
            }
            Place::Calendar => {
                let near = self.near + self.near_arrivals + self.near_tables;
                // The list begins at a whole piece of 16 bytes.
                (4 * ((self.ring + self.pitch + near + self.codes).next_multiple_of(4) + self.listed())) as u32
            }
            Place::Global => (4 * (self.codes.next_multiple_of(4) + self.listed())) as u32,
        }
    }

    /// Bytes that a block has in shared memory while it hears so many lists.
    pub(super) fn hear_bytes(&self, lists: usize) -> u32 {
        4 * (lists + if self.room > 0 { self.ring } else { 0 }) as u32
    }

    /// Where a block's shared memory has the weights that synapses name, in words.
    pub(super) fn weights_at(&self) -> usize {
        self.spread_at() - self.codes
    }

    /// Where it has the list of rows that fired, in words.
    pub(super) fn spread_at(&self) -> usize {
        self.shared_bytes() as usize / 4 - self.listed()
    }

    /// Bits of a synapse of four bytes below its weight, or the number of its weight.
    pub(super) fn code_shift(&self) -> u32 {
        if self.codes > 0 { self.slot_bits + self.ring.trailing_zeros() } else { 16 }
    }

    pub(super) fn steps(&self) -> Specialisation {
        self.kernel(false)
    }

    /// Likewise with clocks between the parts of a step.
    pub(super) fn timed(&self) -> Specialisation {
        self.kernel(true)
    }

    fn kernel(&self, timed: bool) -> Specialisation {
        let (narrow, near, many) = (self.narrow.is_some(), self.near > 0, self.cards > 1);
        let flags = [self.held, self.learns.is_some(), many, timed, near, narrow, self.seeds, self.hears_long()];
        kernels::steps(self.place, self.heavy, flags)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, kib) = match self.place {
            Place::Shared => ("ring", 4 * self.ring * self.pitch / 1024),
            Place::Calendar => ("calendar", self.ring * (4 * self.pitch + self.due() * self.room) / 1024),
            Place::Global => ("ring", 4 * self.ring * self.pitch / 1024),
        };
        write!(
            f,
            "resident: {}{} blocks of {} threads{}, {what} of {} steps in {} memory ({kib} KiB a block), {} bytes a synapse, \
             segments of {}",
            if self.here > 1 { format!("{} GPUs, each of ", self.here) } else { String::new() },
            self.local(),
            self.threads,
            if self.held {
                " with a cell each"
            } else if self.near > 0 {
                " with states in shared memory"
            } else {
                ""
            },
            self.ring,
            if self.place == Place::Shared { "shared" } else { "global" },
            self.synapse(),
            self.segment
        )?;
        if let Some(n) = &self.narrow {
            write!(f, ", {:.2} % of them in two words", f64::from(n.in_two) * 1e-4)?;
        }
        let Some(l) = &self.learns else { return Ok(()) };
        write!(f, ", {} entries a cell of which {} in shared memory", l.depth, l.deep)
    }
}

/// As many blocks as there are multiprocessors, or one for every 256 of a card's cells.
fn blocks_for(device: &DeviceProps, cells: u64) -> usize {
    let most = (device.sm_count as usize).clamp(1, MOST_BLOCKS);
    (cells.div_ceil(CELLS_A_BLOCK) as usize).clamp(1, most)
}

/// Words of a list of rows, and of one of the places where a quarter of them go on.
fn words_of(rows: usize) -> usize {
    rows + 2 * (rows / 4)
}

/// Room for the rows that fire in a step, of the whole network, of so many words if they are enough for the fewest.
fn spread(plan: &Plan, most: usize) -> usize {
    let expected = SPREAD_TIMES * SPREAD_HZ * 1e-3 * plan.network.dt_ms * plan.cells() as f64;
    let most = most / words_of(SPREAD[0]) * SPREAD[0];
    (expected as usize).next_multiple_of(SPREAD[0]).min(most).clamp(SPREAD[0], SPREAD[1])
}

/// Words of the segments that cost the fewest bytes, of rows with so many synapses on the average whose sources are drawn at random.
fn cheapest(mean: f64) -> usize {
    let cost = |words: usize| 8.0 * words as f64 + GOING_ON * footprint::longer(mean, words);
    [4, 8, 16, 32].into_iter().find(|words| cost(*words) <= cost(2 * words)).unwrap_or(SEGMENTS[1])
}

/// Refuses more cards than a launch knows.
pub(super) fn few(cards: usize) -> Result<()> {
    if (1..=MOST_CARDS).contains(&cards) {
        return Ok(());
    }
    Err(Error::config(format!("a network runs on 1 to {MOST_CARDS} GPUs of a machine, not on {cards}")))
}

/// The weights that synapses can have, ascending; `None` where they are more than `most`, or in lists.
pub(super) fn distinct(plan: &Plan, most: usize) -> Option<Vec<i32>> {
    let mut all = std::collections::BTreeSet::new();
    for weight in plan.efficacies.iter().map(|e| e.weight.as_ref()) {
        let weight = weight?.codes()?;
        if (weight.greatest() - weight.least()) as usize > most {
            return None;
        }
        all.extend(weight.least()..=weight.greatest());
        if all.len() > most {
            return None;
        }
    }
    all.remove(&0);
    Some(all.into_iter().collect())
}

/// Threads of a block: fewer where a kernel needs more registers.
pub(super) fn threads(place: Place, heavy: bool, many: bool) -> u32 {
    let few = match place {
        Place::Shared => many,
        Place::Calendar => false,
        Place::Global => !many,
    };
    if heavy || few { 512 } else { 1024 }
}
