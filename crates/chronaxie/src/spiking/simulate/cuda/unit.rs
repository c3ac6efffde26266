//! A device's share of a network on one or more of them: its cells and synapses, what it is told, and what it logs.

use super::build::Synapses;
use super::config::{Config, MOST_CARDS, MOST_STEPS, REPLICAS};
use super::footprint::require_memory;
use super::kernels;
use super::learning::none;
use super::lost::wait_for;
use super::memory::Cells;
use super::parts::RESIDENT;
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Event, Graph, Kernel, LaunchConfig, PinnedBuffer, Stream};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::{Dtype, Error, ErrorKind, Place, Result, Shape, View};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// As `kFull` and `kLost` of launch.cuh.
pub const FULL: u64 = 1;
pub const LOST: u64 = 2;
/// How long a kernel waits for another card's.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// Words of a launch's result.
const WORDS: usize = 5 + RESIDENT;
/// Spikes that are copied at a time.
const COPY: usize = 1 << 20;

/// Where blocks of other cards write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// In the memory of the card that reads.
    Peers,
    /// In the host's memory, where some card cannot write to another's.
    Host,
}

impl Exchange {
    /// Lets each device write to the memory of the others; `CHRONAXIE_EXCHANGE=host` leaves that.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn between(devices: &[Arc<CudaDevice>]) -> Result<Self> {
        if std::env::var_os("CHRONAXIE_EXCHANGE").is_some_and(|v| v == "host") && devices.len() > 1 {
            return Ok(Self::Host);
        }
        for a in devices {
            for b in devices {
                if a.index() != b.index() && !a.share_memory_with(b)? {
                    return Ok(Self::Host);
                }
            }
        }
        Ok(Self::Peers)
    }
}

/// Headers and boxes of spikes that blocks tell each other.
pub(super) enum Mail {
    Device(DeviceBuffer),
    Host(PinnedBuffer),
}

impl Mail {
    pub fn new(memory: &Memory, exchange: Exchange, bytes: usize) -> Result<Self> {
        Ok(match exchange {
            Exchange::Peers => Self::Device(memory.zeros(bytes)?),
            Exchange::Host => Self::Host(PinnedBuffer::alloc(&memory.device, bytes)?),
        })
    }
    pub fn address(&self) -> u64 {
        match self {
            Self::Device(buffer) => buffer.address(),
            Self::Host(buffer) => buffer.address(),
        }
    }
    /// On the stream, or at once.
    pub fn clear(&mut self, memory: &Memory) -> Result<()> {
        match self {
            Self::Device(buffer) => memory.clear(buffer),
            Self::Host(buffer) => buffer.as_mut_slice::<u8>().map(|bytes| bytes.fill(0)),
        }
    }
}

/// Bytes of the mail of a card, of one launch.
pub fn mail_bytes(config: &Config) -> usize {
    8 * 2 * config.meeting() * (REPLICAS + config.cells)
}

/// A share.
pub struct Card {
    pub number: usize,
    pub cells: Cells,
    pub synapses: Synapses,
    /// `Net` of network.cuh.
    pub net: Vec<u8>,
    /// By the launch's parity: cleared where nobody writes to it, while the other one is in use.
    mails: [Mail; 2],
    /// Likewise, so that one is read while the other is written: spikes as they come; in order; how many in each step.
    logs: [DeviceBuffer; 2],
    sorted: [DeviceBuffer; 2],
    counts: [DeviceBuffer; 2],
    result: DeviceBuffer,
    told: PinnedBuffer,
}

impl Card {
    /// Of a launch, on the device: how many spikes each step had, the cells in order, what it came to.
    pub fn lists(&self, launch: usize) -> [u64; 3] {
        let turn = launch % 2;
        [&self.counts[turn], &self.sorted[turn], &self.result].map(DeviceBuffer::address)
    }
}

/// What a launch came to.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    pub done: u64,
    pub count: u64,
    pub flags: u64,
    pub events: u64,
    /// Clocks of the parts of a step.
    pub laps: [u64; RESIDENT],
    /// Nanoseconds of the launch, where it has clocks.
    pub ns: u64,
}

/// A launch, alike for all units.
pub struct Given<'a> {
    pub from: u64,
    pub steps: u64,
    pub capacity: usize,
    /// How many came before.
    pub launches: usize,
    /// Whether by the kernel with clocks.
    pub timed: bool,
    /// `Learn` of rows.cuh.
    pub learn: &'a [u8],
    /// Of all cards, by the launch's parity.
    pub mails: &'a [[u64; 2]],
}

/// A device, with its cards: one, or, so that a test can do with one device, several.
pub struct Unit {
    pub memory: Memory,
    pub cards: Vec<Card>,
    steps: Kernel,
    /// Likewise with clocks; made when it is first asked for.
    timed: Option<Kernel>,
    count: Kernel,
    order: Kernel,
    /// Which cell each row is, and how many cells there are on all cards.
    cell_of: DeviceBuffer,
    cells: u32,
    /// `Card` of launch.cuh, one after the other.
    table: DeviceBuffer,
    copied: PinnedBuffer,
    /// Whether there are others, here or elsewhere, so that nobody is to wait for this one without a bound.
    several: bool,
    /// The end of the last launch, where there are.
    done: Event,
    copies: Stream,
    stream: Arc<Stream>,
}

impl Unit {
    /// Makes the cards `which` of the configuration; which cell each row of the network is, and which row each cell.
    ///
    /// # Errors
    /// As `CudaEngine::new`.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        plan: &Plan,
        device: &Arc<CudaDevice>,
        (config, layout): (&Config, &Layout),
        which: Range<usize>,
        [cell_of, row_of]: [&[u32]; 2],
        capacity: usize,
        exchange: Exchange,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let (stream, copies) = (device.new_stream()?, device.new_stream()?);
        let memory = Memory { device: device.clone(), stream: stream.as_ref() };
        let steps = device.kernel(&config.steps(), "spiking_steps")?;
        steps.set_max_dynamic_shared(config.shared_bytes())?;
        let resident = device.props().sm_count * steps.max_active_blocks(config.threads, config.shared_bytes())?;
        if (resident as usize) < config.local() * which.len() {
            return Err(Error::value(format!("{} holds {resident} blocks at once: {config}", device.name())));
        }
        require_memory(plan, device, config)?;
        let mut cards = Vec::with_capacity(which.len());
        for number in which {
            let cells = Cells::new(plan, config, layout, &memory)?;
            let synapses = Synapses::new(plan, config, (layout, number), row_of, &cells, &memory, built)?;
            let net = synapses.net(plan, config, &cells);
            let mail = || Mail::new(&memory, exchange, mail_bytes(config));
            let two = |bytes: usize| Ok::<_, Error>([memory.room(bytes)?, memory.room(bytes)?]);
            cards.push(Card {
                number,
                cells,
                synapses,
                net,
                mails: [mail()?, mail()?],
                logs: two(8 * capacity)?,
                sorted: two(4 * capacity)?,
                counts: two(4 * MOST_STEPS as usize)?,
                result: memory.zeros(8 * WORDS)?,
                told: PinnedBuffer::alloc(device, 8 * WORDS)?,
            });
        }
        let order = kernels::order();
        let unit = Self {
            cards,
            steps,
            timed: None,
            count: device.kernel(&order, "spiking_count")?,
            order: device.kernel(&order, "spiking_order")?,
            cell_of: memory.upload(cell_of)?,
            cells: plan.cells() as u32,
            table: memory.room(0)?,
            copied: PinnedBuffer::alloc(device, 4 * capacity.min(COPY).max(MOST_STEPS as usize))?,
            several: config.here > 1 || config.is_apart(),
            done: Event::new(device, false)?,
            copies,
            stream: Arc::new(stream),
            memory,
        };
        unit.stream.synchronize()?;
        Ok(unit)
    }

    /// Gives each card's share to its kernels, with the next of `learns` where synapses change.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn tell<'l>(&mut self, learns: &mut impl Iterator<Item = &'l [u8]>) -> Result<()> {
        let mut table = Fields::default();
        for card in &self.cards {
            table.0.extend(&card.net);
            table = table.u64(card.logs[0].address()).u64(card.logs[1].address()).u64(card.result.address());
            table = table.u64(card.cells.numbers.as_ref().map_or(0, DeviceBuffer::address));
            table.0.extend(learns.next().map_or_else(none, <[u8]>::to_vec));
        }
        self.table = self.memory.upload(&table.0)?;
        Ok(())
    }

    /// Forgets what was told.
    pub fn clear_mails(&mut self) -> Result<()> {
        self.cards.iter_mut().flat_map(|card| &mut card.mails).try_for_each(|mail| mail.clear(&self.memory))
    }

    /// Makes the kernel with clocks, or says that there is no compiler for it, and no pack has it.
    pub fn can_time(&mut self, config: &Config) -> Result<bool> {
        if self.timed.is_none() {
            self.timed = if_there(self.memory.device.kernel(&config.timed(), "spiking_steps"))?;
            self.timed.as_ref().map_or(Ok(()), |kernel| kernel.set_max_dynamic_shared(config.shared_bytes()))?;
        }
        Ok(self.timed.is_some())
    }

    /// Where its cards are told, by the launch's parity.
    pub fn mails(&self) -> impl Iterator<Item = [u64; 2]> {
        self.cards.iter().map(|card| [card.mails[0].address(), card.mails[1].address()])
    }

    /// Puts the steps of a launch on the stream.
    pub fn launch(&mut self, config: &Config, given: &Given<'_>) -> Result<()> {
        let turn = given.launches % 2;
        for card in &mut self.cards {
            // What all cards are done with.
            card.mails[1 - turn].clear(&self.memory)?;
            self.memory.clear(&mut card.result)?;
            self.memory.clear(&mut card.counts[turn])?;
        }
        let first = &self.cards[0];
        let heads = first.mails[turn].address();
        let run = Fields::default()
            .u64(heads)
            .u64(heads + (8 * 2 * REPLICAS * config.meeting()) as u64)
            .u64(first.logs[turn].address())
            .u64(first.result.address())
            .u64(given.from)
            .u64(given.capacity as u64)
            .u64(given.steps);
        let mails = (0..MOST_CARDS).map(|k| given.mails.get(k).map_or(0, |m| m[turn]));
        let many = mails
            .fold(Fields::default().u64(self.table.address()), Fields::u64)
            .u64(PATIENCE_NS)
            .u32(given.mails.len() as u32)
            .u32(first.number as u32)
            .u32(turn as u32)
            .u32(config.meeting() as u32);
        let grid = config.local() * self.cards.len();
        let launch = LaunchConfig {
            cooperative: true,
            shared_bytes: config.shared_bytes(),
            ..LaunchConfig::new((grid as u32, 1, 1), (config.threads, 1, 1))
        };
        let args = [Arg::Bytes(&first.net), Arg::Bytes(&run.0), Arg::Bytes(given.learn), Arg::Bytes(&many.0)];
        let kernel = self.timed.as_ref().filter(|_| given.timed).unwrap_or(&self.steps);
        // SAFETY: the structs are those of network.cuh, rows.cuh and launch.cuh, whose sizes the launch checks; all that they point to
        // belongs to this engine and is used on this stream alone, but for the other turn's log and the mail of other cards, which they
        // do not touch before all of this turn's launches have ended.
        unsafe { kernel.launch(&*self.stream, &launch, &args) }
    }

    /// Puts `steps` launches of one step each on the stream as one graph: the seconds from its launch to its end.
    pub fn replay(&mut self, config: &Config, given: &Given<'_>) -> Result<f64> {
        let stream = self.stream.clone();
        let mut launches = || {
            for k in 0..given.steps {
                let one = Given { from: given.from + k, steps: 1, launches: given.launches + k as usize, ..*given };
                self.launch(config, &one)?;
            }
            Ok(())
        };
        // SAFETY: all memory belongs to this engine, which waits for the only replay.
        let graph = unsafe { Graph::capture(&stream, &mut launches) }?;
        stream.synchronize()?;
        let begun = Instant::now();
        graph.launch(&*stream)?;
        stream.synchronize()?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Puts what orders its spikes and tells the host on the stream.
    pub fn order(&mut self, given: &Given<'_>) -> Result<()> {
        let turn = given.launches % 2;
        let blocks = self.memory.device.props().sm_count;
        for card in &mut self.cards {
            let order = [
                &card.logs[turn],
                &card.result,
                &self.cell_of,
                &card.synapses.degrees,
                &card.counts[turn],
                &card.sorted[turn],
            ];
            let order = order.into_iter().fold(Fields::default(), |f, b| f.u64(b.address()));
            let order = order.u32(given.steps as u32).u32(self.cells);
            let grid = |n: u32| LaunchConfig::new((n.max(1), 1, 1), (256, 1, 1));
            // SAFETY: the struct is that of order.cu; the buffers belong to this engine, and the host reads the sorted spikes of
            // this turn when the stream has passed the launches.
            unsafe {
                self.count.launch(&*self.stream, &grid(blocks), &[Arg::Bytes(&order.0)])?;
                self.order.launch(&*self.stream, &grid(given.steps as u32), &[Arg::Bytes(&order.0)])?;
            }
            card.told.receive(&card.result.view(Dtype::I64, [WORDS])?, &*self.stream)?;
        }
        if self.several { self.done.record(Stream::as_ref(&self.stream)) } else { Ok(()) }
    }

    /// Whether the last launch has ended, of one of several.
    pub fn is_done(&self) -> Result<bool> {
        self.done.is_done()
    }

    /// Waits for the last launch.
    pub fn told(&mut self) -> Result<Vec<Told>> {
        let one = |card: &mut Card| {
            let told = card.told.as_slice::<i64>()?;
            let word = |k: usize| told[k] as u64;
            Ok(Told {
                done: word(0),
                count: word(1),
                flags: word(2),
                events: word(3),
                laps: std::array::from_fn(|k| word(4 + k)),
                ns: word(4 + RESIDENT),
            })
        };
        self.cards.iter_mut().map(one).collect()
    }

    /// How many spikes of a card came in each of the first `steps` steps of a launch that has ended, and which cells', in order.
    pub fn spikes(&mut self, card: usize, launch: usize, steps: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let turn = launch % 2;
        let counts = self.receive(self.cards[card].counts[turn].address(), steps)?;
        let count = counts.iter().map(|n| *n as usize).sum();
        let cells = self.receive(self.cards[card].sorted[turn].address(), count)?;
        Ok((counts, cells))
    }

    /// Numbers on the device, beside what the stream does.
    fn receive(&mut self, address: u64, count: usize) -> Result<Vec<u32>> {
        let mut list: Vec<u32> = Vec::with_capacity(count);
        let most = self.copied.bytes() / 4;
        while list.len() < count {
            let here = (count - list.len()).min(most);
            let at = address + 4 * list.len() as u64;
            let place = Place::Cuda(self.memory.device.index());
            // SAFETY: kernels that have ended have written `count` numbers here.
            let view = unsafe { View::from_raw(at as *const u8, Dtype::I32, Shape::from([here]), &[1], place) };
            self.copied.receive(&view, &self.copies)?;
            if self.several {
                wait_for(self.memory.device.name(), || self.copied.is_copied())?;
            }
            list.extend(self.copied.as_slice::<i32>()?[..here].iter().map(|x| *x as u32));
        }
        Ok(list)
    }
}

/// Nothing for what cannot be compiled here.
pub fn if_there(kernel: Result<Kernel>) -> Result<Option<Kernel>> {
    match kernel {
        Err(e) if e.kind() == &ErrorKind::Unavailable => Ok(None),
        kernel => kernel.map(Some),
    }
}

/// Tells each card how many synapses all of them have of each row.
///
/// # Errors
/// What the device refuses.
pub fn join(units: &mut [Unit]) -> Result<()> {
    let cards: usize = units.iter().map(|u| u.cards.len()).sum();
    if cards == 1 {
        return Ok(());
    }
    let mut all: Vec<u32> = Vec::new();
    for (unit, card) in units.iter().flat_map(|u| u.cards.iter().map(move |c| (u, c))) {
        let degrees = &card.synapses.degrees;
        let own: Vec<u32> = unit.memory.download(degrees, 0, degrees.bytes() / 4)?;
        all.resize(own.len(), 0);
        all.iter_mut().zip(own).for_each(|(a, b)| *a += b);
    }
    for unit in units {
        for card in &mut unit.cards {
            unit.memory.write(&mut card.synapses.degrees, &all)?;
        }
    }
    Ok(())
}
