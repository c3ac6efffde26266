//! A card of a network whose synapses change: its kernels, what they work on, and how they are launched.

use super::super::memory::{seed_or_seeds, seeds};
use super::super::parts::STREAMING;
use super::super::unit::{Exchange, Mail, PATIENCE_NS, if_there};
use super::drawn::{self, Drawn};
use super::layout::{Rows, describe, places, require_memory, upload};
use super::wide::{self, Wide};
use super::{Config, Spike, config};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Event, Kernel, LaunchConfig, Stream};
use crate::spiking::connect::{Shard, shard};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Learning;
use crate::{Error, Result, pool};
use std::sync::Arc;

/// The most cards, as `kMostCards`.
const MOST_CARDS: usize = 8;

/// Words of `control`.
const WORDS: usize = 6 + STREAMING;

/// A card's share: cells of every population, and the synapses onto them; entries of all cells.
pub(super) struct Card {
    pub number: usize,
    pub memory: Memory,
    _stream: Stream,
    kernels: [Kernel; 3],
    /// The first of them with clocks; made when it is first asked for.
    timed: Option<Kernel>,
    /// Where synapses lie, and what they began with.
    pub shards: Vec<Shard>,
    pub rows: Vec<Rows>,
    drawn: Drawn,
    pub degrees: Vec<u32>,
    pub states: DeviceBuffer,
    pub first_state: Vec<usize>,
    pub ring: DeviceBuffer,
    pub history: DeviceBuffer,
    pub counts: DeviceBuffer,
    pub kept: DeviceBuffer,
    pub wide: Option<Wide>,
    /// Spikes of a launch: how many (u64), blocks at meetings (u32), whether entries fill their room (u32), steps and spikes; then
    /// whether another card is lost; clocks of the parts of a step, and nanoseconds.
    control: DeviceBuffer,
    /// The end of the last launch.
    ended: Event,
    log: DeviceBuffer,
    capacity: usize,
    /// What other cards tell this one.
    mail: Mail,
    owned: DeviceBuffer,
    /// Of each replica.
    seeds: DeviceBuffer,
    /// What the kernels' `Net` points to beside the above, and its first fields.
    _held: Vec<DeviceBuffer>,
    head: Fields,
    task_count: u32,
    pub grown: u32,
}

/// What a launch came to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub done: u64,
    /// Where its spikes end in the log.
    pub count: u64,
    /// Whether entries fill their room.
    pub full: bool,
    /// Whether another card is lost.
    pub lost: bool,
    /// Clocks of the parts of a step, and nanoseconds, where it has such.
    pub laps: [u64; STREAMING],
    pub ns: u64,
}

impl Card {
    /// Part `number` of a layout.
    pub fn new(
        plan: &Plan,
        learning: &Learning,
        config: &Config,
        (layout, number): (&Layout, usize),
        (device, exchange): (&Arc<CudaDevice>, Exchange),
        capacity: usize,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let stream = device.new_stream()?;
        let memory = Memory { device: device.clone(), stream: stream.as_ref() };
        let spec = config::steps(config, !plan.network.has_one_seed(), false);
        let kernel = |name| device.kernel(&spec, name);
        let kernels = [kernel("spiking_learn")?, kernel("spiking_catch_up")?, kernel("spiking_keep")?];
        let resident = device.props().sm_count * kernels[0].max_active_blocks(config.threads, 0)?;
        if resident < config.blocks {
            return Err(Error::value(format!("{} holds {resident} blocks at once: {config}", device.name())));
        }
        require_memory(plan, device, config, learning)?;
        let count = shard::shards_of(plan, layout.slots(plan, number), pool::num_threads());
        let cut = |index: usize| layout.shard(plan, number, index, count);
        // What is drawn again is weighed by the device.
        let make = || shard::build_cut(plan, count, &cut, (config.redraw, false), &|done| built(done, count));
        let shards = if config.keeps { make()? } else { Vec::new() };
        let (rows, mut degrees) = upload(plan, config, &memory, &shards)?;
        if number == 0 {
            drawn::count(plan, config, &mut degrees);
        }
        let drawn = Drawn::new(plan, config, &memory, (layout, number))?;
        drawn.refuse_overflow(plan, config, &memory, (layout, number), &shards)?;
        let cells = plan.cells() as usize;
        let mut held = Vec::new();
        let (head, states, first_state, task_count) =
            describe(plan, learning, &memory, &rows, (layout, number), &mut held)?;
        let mut owned = Fields::default();
        for p in 0..plan.models.len() {
            let own = layout.own(number, p);
            let order = own.order.map(|o| memory.upload(o.cells())).transpose()?;
            owned = owned.u64(order.as_ref().map_or(0, DeviceBuffer::address)).u32(own.high).u32(0);
            held.extend(order);
        }
        let ring = memory.zeros(4 * config.ring * config.ports * cells)?;
        let history = memory.zeros(4 * cells * config.depth * learning.width())?;
        let each = if config.changes { 4 * cells } else { 0 };
        let (counts, kept) = (memory.zeros(each)?, memory.zeros(each)?);
        let wide = |_| Wide::new(plan, learning, config, &memory, &rows, &shards);
        let wide = config.wide.then_some(()).map(wide).transpose()?;
        let (control, log) = (memory.zeros(8 * WORDS)?, memory.room(8 * capacity)?);
        let told = if config.cards > 1 { 8 * 2 * config.cards * (1 + cells) } else { 0 };
        let card = Self {
            number,
            kernels,
            timed: None,
            shards,
            rows,
            drawn,
            degrees,
            states,
            first_state,
            ring,
            history,
            counts,
            kept,
            wide,
            control,
            ended: Event::new(device, false)?,
            log,
            capacity,
            mail: Mail::new(&memory, exchange, told.max(16))?,
            owned: memory.upload(&owned.0)?,
            seeds: seeds(plan, &memory)?,
            _held: held,
            head,
            task_count,
            grown: 0,
            memory,
            _stream: stream,
        };
        card._stream.synchronize()?;
        Ok(card)
    }

    /// Where it is told what fired elsewhere.
    pub fn mail(&self) -> u64 {
        self.mail.address()
    }

    /// Forgets what was told, before other steps are run than those that come.
    pub fn clear_mail(&mut self) -> Result<()> {
        self.mail.clear(&self.memory)?;
        self._stream.synchronize()
    }

    /// `Net` of steps.cu.
    fn net(&self, plan: &Plan, learning: &Learning, config: &Config) -> Vec<u8> {
        self.head
            .clone()
            .u64(self.ring.address())
            .u64(self.history.address())
            .u64(self.counts.address())
            .u64(self.kept.address())
            .u64(seed_or_seeds(plan, &self.seeds))
            .u32(plan.cells() as u32)
            .u32(config.ports as u32)
            .u32(self.task_count)
            .u32(self.rows.len() as u32)
            .u32(learning.traces.len() as u32)
            .u32(learning.shorts.len() as u32)
            .u32(learning.width() as u32)
            .u32(config.ring as u32)
            .u32(config.depth as u32)
            .u32(config.cell_bits)
            .u32(config.delay_bits)
            .u32(self.grown)
            .u64(self.drawn.table.address())
            .u32(self.drawn.count)
            .u32(config.long)
            .0
    }

    /// `Wide` of events.cuh.
    fn wide(&self) -> &[u8] {
        self.wide.as_ref().map_or(&wide::NONE, |w| &w.fields)
    }

    fn plain(config: &Config) -> LaunchConfig {
        LaunchConfig::new((config.blocks, 1, 1), (config.threads, 1, 1))
    }

    /// Makes room for `least` spikes, and lists those under way in axons, before the first of the next launch.
    pub fn prepare(&mut self, under_way: &[u64], least: usize) -> Result<()> {
        if least > self.capacity {
            (self.log, self.capacity) = (self.memory.room(8 * least)?, least);
        }
        self.memory.write(&mut self.log, under_way)?;
        let mut control = [0; WORDS];
        control[0] = under_way.len() as u64;
        self.memory.write(&mut self.control, &control)
    }

    /// Makes the kernel with clocks, or says that there is no compiler for it, and no pack has it.
    pub fn can_time(&mut self, config: &Config, seeds: bool) -> Result<bool> {
        if self.timed.is_none() {
            self.timed = if_there(self.memory.device.kernel(&config::steps(config, seeds, true), "spiking_learn"))?;
        }
        Ok(self.timed.is_some())
    }

    /// Up to `steps` steps from `from` on, or with 0 nothing, by the kernel with clocks where it is `timed`, behind `begun` spikes of the log;
    /// `mails` are those of all cards.
    pub fn launch(
        &mut self,
        (plan, learning, config): (&Plan, &Learning, &Config),
        ([from, steps], timed): ([u64; 2], bool),
        begun: usize,
        mails: &[u64],
    ) -> Result<()> {
        let control = self.control.address();
        let run = Fields::default()
            .u64(self.log.address())
            .u64(control)
            .u64(control + 8)
            .u64(control + 12)
            .u64(control + 16)
            .u64(from)
            .u64(self.capacity as u64)
            .u32(steps as u32)
            .u32(begun as u32);
        let all = (0..MOST_CARDS).map(|k| mails.get(k).copied().unwrap_or(0));
        let many = all.fold(Fields::default().u64(self.owned.address()), Fields::u64);
        let many = many.u64(control + 32).u64(PATIENCE_NS).u32(mails.len() as u32).u32(self.number as u32);
        let launch = LaunchConfig { cooperative: true, ..Self::plain(config) };
        let net = self.net(plan, learning, config);
        let args = [Arg::Bytes(&net), Arg::Bytes(&run.0), Arg::Bytes(self.wide()), Arg::Bytes(&many.0)];
        let kernel = self.timed.as_ref().filter(|_| timed).unwrap_or(&self.kernels[0]);
        // SAFETY: the structs are those of learn.cuh, whose sizes the launch checks; all that they point to belongs to this
        // engine and is used on this stream alone, but for the mail, which other cards write as words.
        unsafe { kernel.launch(self.memory.stream, &launch, &args) }?;
        self.ended.record(self.memory.stream)
    }

    /// Whether the last launch has ended.
    pub fn is_done(&self) -> Result<bool> {
        self.ended.is_done()
    }

    /// Waits for the last launch.
    pub fn told(&self) -> Result<Told> {
        let told = self.memory.download::<u64>(&self.control, 0, WORDS)?;
        Ok(Told {
            done: told[2],
            count: told[3],
            full: told[1] >> 32 != 0,
            lost: told[4] != 0,
            laps: std::array::from_fn(|k| told[5 + k]),
            ns: told[5 + STREAMING],
        })
    }

    /// How many spikes the log has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Spikes of the log, step since the launch's first << 32 | cell.
    pub fn spikes(&self, begin: usize, end: usize) -> Result<Vec<u64>> {
        self.memory.download(&self.log, 8 * begin, end - begin)
    }

    /// The strengths of rows `index` before step `now`, into `out`, and their eligibilities, where that is not 0.
    pub fn catch_up(
        &self,
        (plan, learning, config): (&Plan, &Learning, &Config),
        now: u64,
        index: usize,
        [out, eligible]: [u64; 2],
    ) -> Result<()> {
        let net = self.net(plan, learning, config);
        let args = [Arg::Bytes(&net), Arg::Bytes(self.wide()), Arg::U32(index as u32), Arg::U32(now as u32)];
        let args = [&args[..], &[Arg::U64(out), Arg::U64(eligible)]].concat();
        // SAFETY: `out` and `eligible` have as many numbers as the rows have synapses, on this stream.
        unsafe { self.kernels[1].launch(self.memory.stream, &Self::plain(config), &args) }
    }

    /// Brings all synapses up to date and makes room for entries.
    pub fn sweep(&mut self, (plan, learning, config): (&Plan, &Learning, &Config), now: u64) -> Result<()> {
        let mut eligible = self.wide.iter().flat_map(|w| &w.eligible).map(DeviceBuffer::address);
        for (i, rows) in self.rows.iter().enumerate() {
            if let Some((strengths, _)) = &rows.strengths {
                let at = [strengths.address(), eligible.next().unwrap_or(0)];
                self.catch_up((plan, learning, config), now, i, at)?;
            }
        }
        self.grown = now as u32;
        let net = self.net(plan, learning, config);
        let oldest = now as i64 - i64::from(plan.max_delay);
        let args = [Arg::Bytes(&net), Arg::Bytes(self.wide()), Arg::I64(oldest)];
        // SAFETY: the entries are this engine's, on this stream.
        unsafe { self.kernels[2].launch(self.memory.stream, &Self::plain(config), &args) }
    }

    /// Adds to `ring` what the synapses that do not change have under way from `recent`.
    pub fn add_static(
        &self,
        (plan, config): (&Plan, &Config),
        recent: &[Spike],
        now: u64,
        sign: i32,
        ring: &mut [i32],
    ) {
        let pitch = config.ports * plan.cells() as usize;
        for shard in &self.shards {
            let places = places(plan, shard);
            for spike in recent {
                for (delay, synapses) in shard.rows.groups(spike.cell) {
                    let when = spike.step + u64::from(delay);
                    if when < now {
                        continue;
                    }
                    let base = (when & (config.ring as u64 - 1)) as usize * pitch;
                    shard.rows.each(synapses, |slot, weight| {
                        let at = &mut ring[base + places[usize::from(slot)] as usize];
                        *at = at.wrapping_add(sign * weight);
                    });
                }
            }
        }
    }
}
