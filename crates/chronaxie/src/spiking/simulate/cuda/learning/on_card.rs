//! Synapses that change in the resident kernel, those of one card: what its kernels are asked between launches.

use super::super::Config;
use super::super::kernels::rows;
use super::layout::tables;
use super::snapshots::Taker;
use crate::cuda::{Arg, DeviceBuffer, Kernel, LaunchConfig};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::fixed::Learning;
use crate::{Error, Result};
use std::ops::Range;

const THREADS: u32 = 256;

/// What the kernels of rows.cu do.
#[derive(Clone, Copy)]
pub(super) enum What {
    Count,
    List,
    Set,
    Settle,
}

/// The synapses of a card that change.
pub(super) struct OnCard {
    pub memory: Memory,
    /// `Net` of network.cuh.
    pub(super) net: Vec<u8>,
    /// `Learn` of rows.cuh.
    pub learn: Vec<u8>,
    visit: Kernel,
    heads: Kernel,
    early: Kernel,
    pub(super) blocks: u32,
    /// Blocks of the card, and rows of its own cells.
    pub(super) local: usize,
    pub(super) rows: usize,
    /// Numbers of a row's entries.
    numbers: usize,
    history: DeviceBuffer,
    counts: DeviceBuffer,
    kept: DeviceBuffer,
    /// Of each cell of the network its row, and of each row its cell.
    pub(super) row_of: DeviceBuffer,
    pub(super) cell_of: DeviceBuffer,
    pub(super) taker: Taker,
    _held: Vec<DeviceBuffer>,
}

/// What the launches of steps.cu have where no synapse changes.
pub(in super::super) fn none() -> Vec<u8> {
    vec![0; 8 * 8 + 4 * 10]
}

impl OnCard {
    /// Goes with the synapses of `net`, whose rows begin to know nothing.
    pub fn new(
        plan: &Plan,
        learning: &Learning,
        config: &Config,
        (layout, card): (&Layout, usize),
        memory: &Memory,
        net: &[u8],
        [row_of, cell_of]: [&[u32]; 2],
    ) -> Result<Self> {
        let learns = config.learns.ok_or_else(|| Error::value("no synapse of the network changes"))?;
        let mut held = Vec::new();
        let mut keep = |buffer: DeviceBuffer| {
            let address = buffer.address();
            held.push(buffer);
            address
        };
        let (local, rows_here) = (config.local(), config.local() * config.cells);
        let tables = tables(learning, memory, &mut keep)?;
        // Of each slot, its cell's number in the shard.
        let mut cells: Vec<u16> = Vec::with_capacity(local * config.pitch);
        for k in 0..local {
            let begin = cells.len();
            let mut before = 0;
            for (part, model) in config.shard(plan, layout, card * local + k).0.iter().zip(&plan.models) {
                for _ in model.ports() {
                    cells.extend((before..before + part.count()).map(|i| i as u16));
                }
                before += part.count();
            }
            cells.resize(begin + config.pitch, 0);
        }
        let history = memory.zeros(4 * rows_here * learns.depth * learns.width)?;
        let (counts, kept) = (memory.zeros(4 * rows_here)?, memory.zeros(4 * rows_here)?);
        let mut learn = Fields::default();
        for table in tables {
            learn = learn.u64(keep(memory.upload(&table.0)?));
        }
        let learn = [&history, &counts, &kept].into_iter().fold(learn, |f, buffer| f.u64(buffer.address()));
        let more = memory.room(4 * local * config.shards * config.cells)?;
        let learn = learn.u64(keep(memory.upload(&cells)?)).u64(keep(more));
        let numbers = [
            learning.rules.len(),
            learns.traces,
            learning.shorts.len(),
            learns.width,
            learns.depth,
            learns.deep,
            learns.shallow,
            learns.rule_bits as usize,
            learns.tables,
            0,
        ];
        let learn = numbers.into_iter().fold(learn, |f, x| f.u32(x as u32)).0;
        let (spec, device) = (rows(), &memory.device);
        let all = Self {
            memory: memory.clone(),
            net: net.to_vec(),
            learn,
            taker: Taker::new(device, &learns)?,
            visit: device.kernel(&spec, "spiking_visit")?,
            heads: device.kernel(&spec, "spiking_heads")?,
            early: device.kernel(&spec, "spiking_early")?,
            blocks: device.props().sm_count * 8,
            local,
            rows: rows_here,
            numbers: learns.depth * learns.width,
            history,
            counts,
            kept,
            row_of: memory.upload(row_of)?,
            cell_of: memory.upload(cell_of)?,
            _held: held,
        };
        all.begin(0)?;
        // Rows lie as threads made them; from now on as the network has them.
        all.arrange(plan.cells() as usize, true)?;
        Ok(all)
    }

    fn plain(&self) -> LaunchConfig {
        LaunchConfig::new((self.blocks, 1, 1), (THREADS, 1, 1))
    }

    /// Rows know these entries, one a row of the network, or with 0 nothing.
    fn begin(&self, entries: u64) -> Result<()> {
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&self.learn), Arg::U64(entries)];
        // SAFETY: the structs are those of the headers, whose sizes the launch checks; `entries` has a row's width for each.
        unsafe { self.heads.launch(self.memory.stream, &self.plain(), &args) }
    }

    /// Visits the rows of `cells`; `begin`, `keys` and `strengths` as `Ask` has them.
    pub fn visit(&self, what: What, cells: Range<usize>, [now, oldest]: [u64; 2], at: [u64; 4]) -> Result<()> {
        let ask = Fields::default().u64(self.row_of.address()).u64(self.cell_of.address());
        let ask = at.into_iter().fold(ask, Fields::u64);
        let ask = ask.u32(what as u32).u32(cells.start as u32).u32(cells.end as u32).u32(now as u32).u32(oldest as u32);
        let ask = ask.padded();
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&self.learn), Arg::Bytes(&ask.0)];
        // SAFETY: the structs are those of the headers, whose sizes the launch checks; what they point to has a number for
        // each synapse of the cells, on this stream.
        unsafe { self.visit.launch(self.memory.stream, &self.plain(), &args) }
    }

    /// Where the synapses here of each of the network's cells begin in a list of all that change, and their number.
    pub fn begins(&self, cells: usize) -> Result<Vec<u64>> {
        let counts = self.memory.zeros(4 * cells)?;
        self.visit(What::Count, 0..cells, [0; 2], [0, 0, 0, counts.address()])?;
        let mut begin = vec![0u64];
        let mut sum = 0;
        begin.extend(self.memory.download::<u32>(&counts, 0, cells)?.into_iter().map(|n| {
            sum += u64::from(n);
            sum
        }));
        Ok(begin)
    }

    /// The entries of its cells, and how many each ever left.
    pub fn past(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let history = self.memory.download::<u32>(&self.history, 0, self.rows * self.numbers)?;
        Ok((history, self.memory.download::<u32>(&self.counts, 0, self.rows)?))
    }

    /// Goes to such entries; `heads` is what all rows of the network know.
    pub fn restore(&mut self, history: &[u32], counts: &[u32], heads: &[u32]) -> Result<()> {
        self.memory.write(&mut self.history, history)?;
        self.memory.write(&mut self.counts, counts)?;
        self.memory.clear(&mut self.kept)?;
        self.begin(self.memory.upload(heads)?.address())
    }

    /// Adds to `ring` what `recent` sends to step `now` and later by synapses that do not change, times `sign`.
    pub fn early(&self, ring: &DeviceBuffer, recent: &[u64], now: u64, sign: i32) -> Result<()> {
        let list = self.memory.upload(recent)?;
        let args = [
            Arg::Bytes(&self.net),
            Arg::Bytes(&self.learn),
            Arg::U64(ring.address()),
            Arg::U64(list.address()),
            Arg::U64(recent.len() as u64),
            Arg::U64(now),
            Arg::I32(sign),
        ];
        let plain = LaunchConfig::new((self.local as u32, 1, 1), (THREADS, 1, 1));
        // SAFETY: the ring has the card's shape; it and the list live on this stream until it has passed the launch.
        unsafe { self.early.launch(self.memory.stream, &plain, &args) }
    }
}
