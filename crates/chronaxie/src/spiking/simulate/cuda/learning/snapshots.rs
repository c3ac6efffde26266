//! Snapshots of synapses that change in the resident kernel: what is taken on a card between two launches of steps, and brought to the
//! host, or to a file, while the next ones run.
//!
//! Strengths lie in the order that `snapshot.cu` has them in: by shard, in it by source, delay, rule and target. Which cell is of which
//! shard goes with them ([`Behind`]), and what synapses have yet to hear of, so that any engine can put them in order and up to date.

use super::super::Config;
use super::super::kernels::snapshot;
use super::on_card::OnCard;
use super::resident::{Learns, slots};
use crate::cuda::{Arg, Carrier, CudaDevice, DeviceBuffer, Event, Kernel, LaunchConfig, Stream, copy_device};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::learned::Behind;
use crate::spiking::simulate::snapshot::{Section, Snapshot, Stored};
use crate::spiking::simulate::{Learned, Spike, State};
use crate::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Threads of a block, as `kTakers`, and blocks a multiprocessor.
const TAKERS: u32 = 512;
const AT_ONCE: u32 = 3;
/// The kernels of snapshot.cu on a card.
pub(super) struct Taker {
    arrange: Kernel,
    take: Kernel,
    put: Kernel,
    check: Kernel,
    total: Kernel,
    last: Kernel,
    width: usize,
    depth: usize,
}

impl Taker {
    pub fn new(device: &Arc<CudaDevice>, learns: &Learns) -> Result<Self> {
        let spec = snapshot();
        let kernel = |name: &str| device.kernel(&spec, name);
        Ok(Self {
            arrange: kernel("spiking_arrange")?,
            take: kernel("spiking_take")?,
            put: kernel("spiking_put")?,
            check: kernel("spiking_check")?,
            total: kernel("spiking_total")?,
            last: kernel("spiking_last")?,
            width: learns.width,
            depth: learns.depth,
        })
    }
}

/// Where a card's strengths lie in a list.
struct Begins {
    /// `[local, cells + 1]` in a shard's list, and `[local]` where those begin.
    begin: DeviceBuffer,
    base: DeviceBuffer,
    cells: usize,
    /// The number of the first, of those of all cards, and how many there are.
    first: u64,
    count: usize,
}

/// What a kernel is asked, of strengths, counts, steps and sums that lie at these addresses.
#[derive(Default)]
struct Asked<'b> {
    begins: Option<&'b Begins>,
    cells: usize,
    settled: u64,
    oldest: u64,
    at: [u64; 4],
    sorts: bool,
}

impl OnCard {
    fn plainly(&self) -> LaunchConfig {
        LaunchConfig::new((self.blocks, 1, 1), (256, 1, 1))
    }

    fn ask(&self, kernel: &Kernel, launch: &LaunchConfig, asked: &Asked<'_>) -> Result<()> {
        let (begin, base) = asked.begins.map_or((0, 0), |b| (b.begin.address(), b.base.address()));
        let [strengths, counts, steps, sum] = asked.at;
        let fields = [self.row_of.address(), self.cell_of.address(), begin, base, strengths, counts, steps, sum];
        let fields = fields.into_iter().fold(Fields::default(), Fields::u64).u64(asked.begins.map_or(0, |b| b.first));
        let fields = fields.u32(asked.cells as u32).u32(asked.settled as u32).u32(asked.oldest as u32);
        let fields = fields.u32(asked.sorts.into()).padded();
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&self.learn), Arg::Bytes(&fields.0)];
        // SAFETY: the structs are those of the headers, whose sizes the launch checks; what they point to has as many numbers as the
        // card has synapses, cells of the network or rows, and is used on this stream.
        unsafe { kernel.launch(self.memory.stream, launch, &args) }
    }

    /// Puts each row in order, or leaves it; how many of its synapses change, `[local, cells]`.
    pub(super) fn arrange(&self, cells: usize, sorts: bool) -> Result<DeviceBuffer> {
        let counts = self.memory.room(4 * self.local * cells)?;
        let asked = Asked { cells, at: [0, counts.address(), 0, 0], sorts, ..Asked::default() };
        self.ask(&self.taker.arrange, &self.plainly(), &asked)?;
        Ok(counts)
    }

    /// Where its strengths lie; those of the cards before it are `first`.
    fn begins_of(&self, cells: usize, first: u64) -> Result<Begins> {
        let counts: Vec<u32> = self.memory.download(&self.arrange(cells, false)?, 0, self.local * cells)?;
        let (mut begin, mut base) = (Vec::with_capacity(self.local * (cells + 1)), Vec::with_capacity(self.local));
        let mut all = 0u64;
        for own in counts.chunks(cells.max(1)) {
            base.push(all);
            let mut sum = 0u32;
            begin.push(0);
            begin.extend(own.iter().map(|n| {
                sum += n;
                sum
            }));
            all += u64::from(sum);
        }
        let (begin, base) = (self.memory.upload(&begin)?, self.memory.upload(&base)?);
        Ok(Begins { begin, base, cells, first, count: all as usize })
    }

    /// Takes, checks or puts strengths, which are up to date as of step `settled`.
    fn walk(&self, kernel: &Kernel, begins: &Begins, settled: u64, [strengths, sum]: [&DeviceBuffer; 2]) -> Result<()> {
        let slices = (AT_ONCE * self.memory.device.props().sm_count).div_ceil(self.local as u32);
        let launch = LaunchConfig::new((slices * self.local as u32, 1, 1), (TAKERS, 1, 1));
        let at = [strengths.address(), 0, 0, sum.address()];
        let asked = Asked { begins: Some(begins), cells: begins.cells, settled, at, ..Asked::default() };
        self.ask(kernel, &launch, &asked)
    }
}

/// What the host reads snapshots by; alike for all cards but where it says so.
struct Tables {
    layout: Layout,
    /// Of each population: cells, variables, and where its states begin.
    populations: Vec<(usize, usize, usize)>,
    /// Of each card, the network's slot of each of its own.
    slots: Vec<Vec<u64>>,
    /// The shard and the row of each cell of the network.
    groups: Vec<u32>,
    row_of: Vec<u32>,
    /// Of each card.
    begins: Vec<Begins>,
    /// Rows of a card's own cells, numbers of an entry, entries of a cell.
    own: usize,
    width: usize,
    depth: usize,
    /// Of sums of what is under way: shards, steps, slots; and the longest delay.
    ring: [usize; 3],
    max_delay: u32,
    /// Brings strengths to files and from them, a card each.
    carriers: Mutex<Vec<Carrier>>,
}

/// What lies on a card, taken.
struct Held {
    strengths: DeviceBuffer,
    ring: DeviceBuffer,
    states: DeviceBuffer,
    last: DeviceBuffer,
    steps: DeviceBuffer,
    sum: DeviceBuffer,
    taken: Event,
    /// What brings it to the host beside the steps.
    beside: Stream,
}

/// Room for snapshots.
#[derive(Default)]
struct Pool {
    free: Mutex<Vec<Vec<Held>>>,
    given: Condvar,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Held>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that goes back to where it came from.
struct Lent {
    held: Vec<Held>,
    pool: Arc<Pool>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.lock().push(std::mem::take(&mut self.held));
        self.pool.given.notify_one();
    }
}

/// Snapshots of the synapses of all cards.
pub(super) struct Snapshots {
    tables: Arc<Tables>,
    pool: Arc<Pool>,
    made: usize,
}

/// On a card: the states of its cells, and its sums of what is under way.
pub(in super::super) type OfCells<'c> = (&'c DeviceBuffer, &'c DeviceBuffer);

/// Where the host has strengths.
pub(super) enum Source<'s> {
    Here(&'s [u32]),
    File(&'s Stored),
}

impl Snapshots {
    pub fn new(
        plan: &Plan,
        config: &Config,
        layout: &Layout,
        cards: &[OnCard],
        row_of: &[u32],
        first_state: &[usize],
    ) -> Result<Self> {
        let cells = plan.cells() as usize;
        let mut begins = Vec::with_capacity(cards.len());
        let mut first = 0;
        for card in cards {
            let own = card.begins_of(cells, first)?;
            first += own.count as u64;
            begins.push(own);
        }
        let populations = plan.models.iter().zip(&plan.network.populations).zip(first_state);
        let tables = Tables {
            layout: layout.clone(),
            populations: populations.map(|((m, p), first)| (p.size as usize, m.variables().len(), *first)).collect(),
            slots: (0..cards.len()).map(|card| slots(plan, config, (layout, card))).collect(),
            groups: row_of.iter().map(|row| row / config.cells as u32).collect(),
            row_of: row_of.to_vec(),
            begins,
            own: config.local() * config.cells,
            width: cards.first().map_or(1, |card| card.taker.width),
            depth: cards.first().map_or(1, |card| card.taker.depth),
            ring: [config.local(), config.ring, config.pitch],
            max_delay: plan.max_delay,
            carriers: Mutex::new(Vec::new()),
        };
        Ok(Self { tables: Arc::new(tables), pool: Arc::default(), made: 0 })
    }

    /// Whether a state has its strengths as these cards have them.
    pub fn fits(&self, behind: &Behind) -> bool {
        behind.groups == self.tables.groups
    }

    /// Makes room for `most` at a time; how many there is room for.
    pub fn prepare(&mut self, cards: &[OnCard], cells: &[OfCells<'_>], most: usize) -> Result<usize> {
        while self.made < most {
            let held = cards.iter().zip(cells).zip(&self.tables.begins).map(|((card, (states, ring)), begins)| {
                let (memory, device) = (&card.memory, &card.memory.device);
                Ok(Held {
                    strengths: memory.room(4 * begins.count)?,
                    ring: memory.room(ring.bytes())?,
                    states: memory.room(states.bytes())?,
                    last: memory.room(4 * self.tables.own * self.tables.width)?,
                    steps: memory.room(4 * self.tables.own * (1 + self.tables.depth))?,
                    sum: memory.room(8)?,
                    taken: Event::new(device, false)?,
                    beside: device.new_stream()?,
                })
            });
            match held.collect::<Result<Vec<_>>>() {
                Ok(held) => self.pool.lock().push(held),
                Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => break,
                Err(e) => return Err(e),
            }
            self.made += 1;
            // Before steps run beside them; who writes a snapshot holds them all that time, but there is none yet.
            if self.made == 1 {
                drop(self.tables.carriers(cards)?);
            }
        }
        Ok(self.made)
    }

    /// Takes one before step `now`, of these recent spikes, as the network's cells and as rows; waits for room.
    pub fn take(
        &self,
        cards: &[OnCard],
        cells: &[OfCells<'_>],
        (recent, rows): (&[Spike], &[u64]),
        [now, settled]: [u64; 2],
    ) -> Result<Box<dyn Snapshot>> {
        let mut free = self.pool.lock();
        let held = loop {
            if let Some(held) = free.pop() {
                break held;
            }
            free = self.pool.given.wait(free).unwrap_or_else(PoisonError::into_inner);
        };
        drop(free);
        let mut lent = Lent { held, pool: self.pool.clone() };
        let of_all = cards.iter().zip(cells).zip(&self.tables.begins).zip(&mut lent.held);
        for (((card, (states, ring)), begins), held) in of_all {
            let (memory, stream) = (&card.memory, card.memory.stream);
            memory.clear(&mut held.sum)?;
            card.walk(&card.taker.take, begins, settled, [&held.strengths, &held.sum])?;
            copy_device(&mut held.states.bytes_view_mut(), &states.bytes_view(), stream)?;
            copy_device(&mut held.ring.bytes_view_mut(), &ring.bytes_view(), stream)?;
            card.early(&held.ring, rows, now, -1)?;
            let oldest = now.saturating_sub(self.tables.max_delay.into());
            let at = [0, held.last.address(), held.steps.address(), 0];
            let asked = Asked { oldest, at, ..Asked::default() };
            card.ask(&card.taker.last, &card.plainly(), &asked)?;
            held.taken.record(stream)?;
        }
        let (tables, recent) = (self.tables.clone(), recent.to_vec());
        Ok(Box::new(Taken { tables, lent, step: now, settled, recent }))
    }

    /// Brings strengths to the cards, as [`put`](Self::put) takes them.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where they are damaged, or not those of this network.
    pub fn bring(&self, cards: &[OnCard], source: &Source<'_>) -> Result<Vec<DeviceBuffer>> {
        let all: u64 = self.tables.begins.iter().map(|b| b.count as u64).sum();
        let count = match source {
            Source::Here(all) => all.len() as u64,
            Source::File(stored) => stored.strengths.count,
        };
        let misfit = || Error::checkpoint("the synapses of the state are not those of this network");
        if count != all {
            return Err(misfit());
        }
        let mut carriers = self.tables.carriers(cards)?;
        let (mut brought, mut sum, mut beyond) = (Vec::new(), 0u64, 0u64);
        for ((card, begins), carrier) in cards.iter().zip(&self.tables.begins).zip(carriers.iter_mut()) {
            let (memory, mut numbers) = (&card.memory, card.memory.room(4 * begins.count)?);
            let mut sums = memory.zeros(16)?;
            match source {
                Source::Here(all) => memory.write(&mut numbers, &all[begins.first as usize..][..begins.count])?,
                Source::File(stored) => {
                    // The memory is the stream's from where it was asked for on.
                    memory.stream.synchronize(&memory.device)?;
                    let at = stored.strengths.offset + 4 * begins.first;
                    carrier.load(&stored.file, &stored.path, at, &mut numbers, 0, 4 * begins.count)?;
                }
            }
            let args = [
                Arg::U64(numbers.address()),
                Arg::U64(begins.count as u64),
                Arg::U64(begins.first),
                Arg::U64(sums.address()),
            ];
            // SAFETY: there are as many numbers, which live on this stream until it has passed the launch.
            unsafe { card.taker.total.launch(memory.stream, &card.plainly(), &args)? };
            sum = sum.wrapping_add(memory.download::<u64>(&sums, 0, 1)?[0]);
            memory.clear(&mut sums)?;
            card.walk(&card.taker.check, begins, 0, [&numbers, &sums])?;
            beyond += memory.download::<u64>(&sums, 0, 1)?[0];
            brought.push(numbers);
        }
        match source {
            Source::File(stored) if stored.strengths.sum != sum => Err(stored.damaged()),
            _ if beyond > 0 => Err(Error::checkpoint("the state has weights beyond the bounds of this network")),
            _ => Ok(brought),
        }
    }

    /// Gives the synapses such strengths, which are up to date as of step `settled`.
    pub fn put(&self, cards: &[OnCard], brought: &[DeviceBuffer], settled: u64) -> Result<()> {
        let mut all = cards.iter().zip(&self.tables.begins).zip(brought);
        all.try_for_each(|((card, begins), x)| card.walk(&card.taker.put, begins, settled, [x, x]))
    }
}

impl Tables {
    /// A card each; made when they are first needed.
    fn carriers(&self, cards: &[OnCard]) -> Result<MutexGuard<'_, Vec<Carrier>>> {
        let mut carriers = self.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        for card in &cards[carriers.len()..] {
            carriers.push(Carrier::new(&card.memory.device)?);
        }
        Ok(carriers)
    }
}

/// A snapshot on the cards.
struct Taken {
    tables: Arc<Tables>,
    lent: Lent,
    step: u64,
    settled: u64,
    recent: Vec<Spike>,
}

impl Taken {
    /// What brings a card's share to the host, once it is there.
    fn beside(held: &Held) -> Result<Memory> {
        held.beside.wait(&held.taken)?;
        Ok(Memory { device: held.beside.device().clone(), stream: held.beside.as_ref() })
    }

    /// The state without strengths, and their sum.
    fn rest(&self) -> Result<(State, u64)> {
        let t = &*self.tables;
        let mut variables: Vec<Vec<Vec<f32>>> =
            t.populations.iter().map(|(size, count, _)| vec![vec![0.0; *size]; *count]).collect();
        let (mut learned, cells) = (Learned::default(), t.row_of.len());
        learned.entries = vec![Vec::new(); cells];
        let mut behind =
            Behind { groups: t.groups.clone(), settled: self.settled as u32, past: vec![Vec::new(); cells] };
        // What synapses have yet to hear of, and what will be known as recent spikes.
        let since = self.settled.saturating_sub(t.max_delay.into());
        let until = self.step.saturating_sub(t.max_delay.into());
        let mut sum = 0u64;
        for (number, held) in self.lent.held.iter().enumerate() {
            let memory = Self::beside(held)?;
            sum = sum.wrapping_add(memory.download::<u64>(&held.sum, 0, 1)?[0]);
            let states: Vec<f32> = memory.download(&held.states, 0, held.states.bytes() / 4)?;
            for (p, (size, _, first)) in t.populations.iter().enumerate() {
                let own = t.layout.own(number, p);
                for (v, values) in variables[p].iter_mut().enumerate() {
                    let here = &states[first + v * size + own.low as usize..];
                    own.iter().zip(here).for_each(|(cell, x)| values[cell as usize] = *x);
                }
            }
            let last: Vec<u32> = memory.download(&held.last, 0, t.own * t.width)?;
            let steps: Vec<u32> = memory.download(&held.steps, 0, t.own * (1 + t.depth))?;
            for (cell, row) in t.row_of.iter().enumerate() {
                if let Some(row) = (*row as usize).checked_sub(number * t.own).filter(|row| *row < t.own) {
                    learned.entries[cell] = last[row * t.width..][..t.width].to_vec();
                    let own = &steps[row * (1 + t.depth)..][..1 + t.depth];
                    let kept = own[1..][..t.depth.min(own[0] as usize)].iter().copied();
                    behind.past[cell].extend(kept.filter(|step| (since..until).contains(&u64::from(*step))));
                }
            }
            let ring: Vec<u32> = memory.download(&held.ring, 0, t.ring.iter().product())?;
            under_way(&ring, &t.slots[number], t.ring, (self.step, t.max_delay), &mut learned.under_way);
        }
        learned.under_way.sort_unstable();
        learned.behind = Some(Box::new(behind));
        let (step, recent) = (self.step, self.recent.clone());
        Ok((State { step, variables, recent, learned: Some(learned) }, sum))
    }
}

impl Snapshot for Taken {
    fn step(&self) -> u64 {
        self.step
    }

    fn collect(self: Box<Self>) -> Result<State> {
        let (mut state, _) = self.rest()?;
        let mut all = Vec::new();
        for (held, begins) in self.lent.held.iter().zip(&self.tables.begins) {
            all.extend(Self::beside(held)?.download::<u32>(&held.strengths, 0, begins.count)?);
        }
        state.learned.as_mut().into_iter().for_each(|l| l.strengths = std::mem::take(&mut all));
        Ok(state)
    }

    fn write(self: Box<Self>, file: &File, path: &Path, from: u64) -> Result<(State, [Section; 2])> {
        let since = Instant::now();
        let mut carriers = self.tables.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for ((held, begins), carrier) in self.lent.held.iter().zip(&self.tables.begins).zip(carriers.iter_mut()) {
            let at = from + 4 * begins.first;
            carrier.save(&held.strengths, 0, 4 * begins.count, &held.taken, file, path, at)?;
            count += begins.count as u64;
        }
        drop(carriers);
        let carried = since.elapsed().as_secs_f64() * 1e3;
        let (state, sum) = self.rest()?;
        let all = since.elapsed().as_secs_f64() * 1e3;
        crate::log::debug(format_args!("step {}: {count} strengths in {carried:.1} ms, all in {all:.1} ms", self.step));
        let strengths = Section { offset: from, count, sum };
        let eligible = Section { offset: strengths.next(), ..Section::default() };
        Ok((state, [strengths, eligible]))
    }
}

/// Adds what is under way in a card's sums `[shards, steps, slots]` to a list: steps from `now` on, the network's slot, units.
pub(super) fn under_way(
    ring: &[u32],
    slots: &[u64],
    [_, steps, pitch]: [usize; 3],
    (now, max_delay): (u64, u32),
    to: &mut Vec<(u32, u64, i32)>,
) {
    for (k, slots) in slots.chunks(pitch).enumerate() {
        for ahead in 0..max_delay {
            let step = (now + u64::from(ahead)) as usize & (steps - 1);
            let here = &ring[(k * steps + step) * pitch..][..pitch];
            let some = here.iter().zip(slots).filter(|(sum, _)| **sum != 0);
            to.extend(some.map(|(sum, slot)| (ahead, *slot, *sum as i32)));
        }
    }
}
