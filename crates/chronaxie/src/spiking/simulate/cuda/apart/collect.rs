//! What fired goes from GPU to GPU, and from there to the host, behind the steps: the lists that order.cu makes are gathered as they lie
//! (hear.cu, `spiking_pack`), a whole window of them in one call of as many bytes for each part, and taken in before the host has seen
//! them. Where some part's list has no room, or its window ended early, all see so in what they gathered, and gather once more, by the
//! host, as long as the longest packet (parts/wire.rs: a list, or a bit for each cell and step) asks for. The room follows what fired.

use super::levels::{Levels, Where};
use super::{CudaPart, Lists};
use crate::cuda::{Arg, DeviceBuffer, Event, Kernel, LaunchConfig, PinnedBuffer};
use crate::spiking::device::{Fields, Memory};
use crate::spiking::simulate::Spike;
use crate::spiking::simulate::cuda::kernels;
use crate::spiking::simulate::parts::wire::{Members, pack, unpack};
use crate::{Dtype, Error, Result};
use std::time::{Duration, Instant};

/// How long a part may be waited for.
const PATIENCE: Duration = Duration::from_secs(15);
/// Words before the counts of a list: whether it is all that fired ([`WHOLE`]), and how many spikes.
const HEAD: usize = 2;
const WHOLE: u32 = 1;
/// Spikes that a list has room for at first, and at the least.
const ROOM: usize = 1 << 10;

/// What is gathered, and where.
pub(super) struct Collector {
    levels: Levels,
    /// Whose each piece is, and which is this part's.
    pieces: Vec<Option<usize>>,
    own: usize,
    members: Members,
    part: usize,
    pack: Kernel,
    /// Words of a list, the spikes that it has room for, and these at the least.
    pitch: usize,
    room: usize,
    pub least: usize,
    send: DeviceBuffer,
    gathered: DeviceBuffer,
    copied: PinnedBuffer,
    done: Event,
    /// Others have gone, and nothing can be gathered any more.
    pub gone: bool,
}

impl Collector {
    /// Of the first card; lists are of `across` steps at most.
    pub fn new(
        levels: Levels,
        at: Where,
        members: Members,
        memory: &Memory,
        across: u64,
        [learns, long]: [bool; 2],
    ) -> Result<Self> {
        let pieces = at.pieces();
        let own = pieces.iter().position(|piece| *piece == Some(at.part)).unwrap_or(0);
        let pack = memory.device.kernel(&kernels::hear(learns, long), "spiking_pack")?;
        let device = &memory.device;
        let mut all = Self {
            levels,
            pieces,
            own,
            members,
            part: at.part,
            pack,
            pitch: 0,
            room: 0,
            least: ROOM,
            send: memory.room(0)?,
            gathered: memory.room(0)?,
            copied: PinnedBuffer::alloc(device, 16)?,
            done: Event::new(device, false)?,
            gone: false,
        };
        all.make_room(memory, ROOM, across)?;
        // What carries it connects at its first calls, which it has to do while no kernel fills the GPU.
        for _ in 0..2 {
            // SAFETY: the buffers have as many bytes, and live until the stream has passed it.
            unsafe { all.levels.all_gather(all.send.address(), all.gathered.address(), 4 * all.pitch, memory) }?;
            all.done.record(memory.stream)?;
            all.wait(&|| None)?;
            all.gather(memory, &[0; 8], &|| None)?;
        }
        crate::log::debug(format_args!("part {} of {} is joined by {}", at.part, at.parts, all.levels));
        Ok(all)
    }

    /// As if nothing had been gathered; what pieces of nobody hold is zeros.
    pub fn make_room(&mut self, memory: &Memory, room: usize, across: u64) -> Result<()> {
        (self.room, self.pitch) = (room, HEAD + across as usize + room);
        let bytes = 4 * self.pitch;
        self.send = memory.zeros(bytes)?;
        self.gathered = memory.zeros(bytes * self.pieces.len())?;
        self.copied = PinnedBuffer::alloc(&memory.device, bytes * self.pieces.len())?;
        Ok(())
    }

    /// As much as the longest list asked for: the same on all parts, which all know its length. Beyond as many spikes a step as there are
    /// 32 cells in the largest part, bits are shorter.
    fn follow(&mut self, memory: &Memory, longest: usize, across: u64) -> Result<()> {
        let layout = self.members.layout();
        let cells = (0..layout.parts()).map(|part| layout.cells(part)).max().unwrap_or(0) as usize;
        let most = (cells / 32 * across as usize).max(self.least);
        let room = (2 * longest).next_power_of_two().clamp(self.least, most);
        if room > self.room || 8 * room < self.room {
            self.make_room(memory, room, across)?;
        }
        Ok(())
    }

    /// Waits until the stream has come to `done`.
    fn wait(&mut self, fate: &dyn Fn() -> Option<Error>) -> Result<()> {
        let since = Instant::now();
        let mut looked = since;
        while !self.done.is_done()? {
            let now = Instant::now();
            if now - looked > Duration::from_millis(2) {
                looked = now;
                let late = || {
                    Error::lost(format!(
                        "part {} has waited {} s for what fired elsewhere",
                        self.part,
                        PATIENCE.as_secs()
                    ))
                };
                let failed = fate().or_else(|| self.levels.failed().err());
                if let Some(e) = failed.or_else(|| (now - since > PATIENCE).then(late)) {
                    self.levels.abort();
                    return Err(e);
                }
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Bytes of each part, all as many, by pieces.
    fn gather(&mut self, memory: &Memory, own: &[u8], fate: &dyn Fn() -> Option<Error>) -> Result<Vec<u8>> {
        crate::log::debug(format_args!("part {} gathers {} bytes of each by the host", self.part, own.len()));
        let (send, receive) = (memory.upload(own)?, memory.zeros(own.len() * self.pieces.len())?);
        // SAFETY: both are as long as is said, and outlive the wait below.
        unsafe { self.levels.all_gather(send.address(), receive.address(), own.len(), memory) }?;
        self.done.record(memory.stream)?;
        if let Err(e) = self.wait(fate) {
            // What NCCL still writes to is not freed.
            std::mem::forget((send, receive));
            return Err(e);
        }
        memory.download(&receive, 0, own.len() * self.pieces.len())
    }

    /// What fired elsewhere before step `to`, by the host; and the longest list of all.
    fn by_host(
        &mut self,
        memory: &Memory,
        to: u64,
        own: &[Spike],
        fate: &dyn Fn() -> Option<Error>,
    ) -> Result<(Vec<Spike>, usize)> {
        let mut packet = pack(&self.members, self.part, to, own)?;
        let lengths = self.gather(memory, &(packet.len() as u64).to_le_bytes(), fate)?;
        let length = |k: usize| u64::from_le_bytes(std::array::from_fn(|i| lengths[8 * k + i])) as usize;
        let longest = (0..self.pieces.len()).map(length).max().unwrap_or(0);
        packet.resize(longest, 0);
        let all = self.gather(memory, &packet, fate)?;
        let (mut others, mut most) = (Vec::new(), own.len());
        for (k, piece) in self.pieces.iter().enumerate().filter(|(k, piece)| piece.is_some() && *k != self.own) {
            let before = others.len();
            let bytes = all[k * longest..].get(..length(k));
            let from = unpack(&self.members, to, bytes.unwrap_or_default(), &mut others)?;
            if Some(from) != *piece {
                return Err(Error::value(format!("part {from} says what fired in place of another before step {to}")));
            }
            most = most.max(others.len() - before);
        }
        Ok((others, most))
    }
}

impl CudaPart<'_> {
    /// The steps to `to`, and all that fired in them: on one card without the host between, of several by the host.
    pub(super) fn meet_on_device(&mut self, to: u64) -> Result<Vec<Spike>> {
        let Some(mut collector) = self.collector.take() else { return Err(Error::value("nothing connects the parts")) };
        let all = self.collect(&mut collector, to);
        self.collector = Some(collector);
        all
    }

    fn collect(&mut self, c: &mut Collector, to: u64) -> Result<Vec<Spike>> {
        let (from, across) = (self.engine.step, self.across);
        let memory = self.engine.units[0].memory.clone();
        self.make_room(to - from)?;
        let mut own = Vec::new();
        if self.engine.config.here == 1 {
            self.engine.launch(0..1, from, to - from)?;
            let launch = self.engine.launches - 1;
            crate::log::debug(format_args!("part {}: steps {from} to {to}, lists of {} spikes", c.part, c.room));
            let lists = self.gather_lists(c, &memory, launch, [from, to]).inspect_err(|_| c.gone = true)?;
            let (done, _) = self.engine.account(from, to - from)?;
            if let Some((all, longest)) = lists {
                if done != to - from {
                    return Err(Error::value(format!("a chunk of {} steps says that it ran {done}", to - from)));
                }
                self.remember(&all);
                c.follow(&memory, longest, across)?;
                return Ok(all);
            }
            super::super::collect(&mut self.engine.units, launch, from, done, &mut own)?;
        }
        self.engine.run(to, &mut own)?;
        let exchange = self.exchange.as_deref();
        let heard = c.by_host(&memory, to, &own, &|| exchange.and_then(|e| e.fate()));
        let (others, longest) = heard.inspect_err(|_| c.gone = true)?;
        c.follow(&memory, longest, across)?;
        self.take_up(from, own, &others)
    }

    /// Gathers the lists of a launch and takes them in; all that fired, and the longest list, or nothing, where some list is not whole.
    fn gather_lists(
        &mut self,
        c: &mut Collector,
        memory: &Memory,
        launch: usize,
        [from, to]: [u64; 2],
    ) -> Result<Option<(Vec<Spike>, usize)>> {
        let steps = (to - from) as usize;
        let [counts, cells, result] = self.engine.units[0].cards[0].lists(launch);
        let packed = [result, counts, cells, c.send.address()].into_iter().fold(Fields::default(), Fields::u64);
        let packed = packed.u32(steps as u32).u32(c.room as u32);
        let blocks = (c.room / 1024).clamp(1, 64) as u32;
        // SAFETY: the struct is that of hear.cu; what it points to is this engine's, on this stream.
        unsafe {
            c.pack.launch(memory.stream, &LaunchConfig::new((blocks, 1, 1), (256, 1, 1)), &[Arg::Bytes(&packed.0)])
        }?;
        // SAFETY: the buffers have as many bytes, and live until the stream has passed it.
        unsafe { c.levels.all_gather(c.send.address(), c.gathered.address(), 4 * c.pitch, memory) }?;
        let lists = Lists {
            address: c.gathered.address(),
            pitch: c.pitch,
            count: c.pieces.len(),
            own: c.own as u32,
            head: HEAD,
        };
        self.hear_on(0, 0, [from, to], &lists)?;
        c.copied.receive(&c.gathered.view(Dtype::I32, [c.pitch * c.pieces.len()])?, memory.stream)?;
        c.done.record(memory.stream)?;
        let exchange = self.exchange.as_deref();
        c.wait(&|| exchange.and_then(|e| e.fate()))?;
        let words = c.copied.as_slice::<i32>()?;
        let list = |k: usize| &words[k * c.pitch..][..c.pitch];
        let here = || (0..c.pieces.len()).filter(|k| c.pieces[*k].is_some());
        if !here().all(|k| list(k)[0] as u32 == WHOLE) {
            return Ok(None);
        }
        let total: usize = here().map(|k| list(k)[1] as usize).sum();
        let longest = here().map(|k| list(k)[1] as usize).max().unwrap_or(0);
        let mut all = Vec::with_capacity(total);
        let mut at: Vec<usize> = vec![HEAD + steps; c.pieces.len()];
        for step in 0..steps {
            let begun = all.len();
            for k in here() {
                let n = list(k)[HEAD + step] as usize;
                let cells = list(k).get(at[k]..at[k] + n).ok_or_else(|| Error::value("a list of spikes is cut off"))?;
                all.extend(cells.iter().map(|cell| Spike { step: from + step as u64, cell: *cell as u32 }));
                at[k] += n;
            }
            // Finds what is in order already.
            all[begun..].sort();
        }
        Ok(Some((all, longest)))
    }
}
