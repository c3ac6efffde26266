//! Bytes from the GPU of each part to those of all, by NCCL: in one level, or, where several nodes have several parts each, in two:
//! the parts of a node tell each other, their first ones tell each other, and each tells its own.
//!
//! Whether all can is found out by what each says first ([`offer`]), which goes by whatever connects parts already.

use crate::cuda::{Communicator, CudaDevice, NCCL_ID_BYTES, Nccl, NcclId};
use crate::spiking::device::Memory;
use crate::spiking::simulate::parts::gather::node;
use crate::spiking::simulate::parts::{Transport, refusal};
use crate::{Dtype, Error, Place, Result, Shape, View, ViewMut};
use std::sync::Arc;
use std::time::Duration;

/// How long others have to join.
const JOINING: Duration = Duration::from_secs(25);

/// Ranks whose GPUs reach each other's memory.
pub trait Group: Send {
    /// `bytes` bytes from `send` of each rank come to `receive` of all, by rank, when the stream comes to it. `send` may be where
    /// they come to.
    ///
    /// # Safety
    /// The memory is on this device until the stream has passed it.
    unsafe fn all_gather(&mut self, send: u64, receive: u64, bytes: usize, memory: &Memory) -> Result<()>;
    /// `bytes` bytes at `buffer` become those of rank 0, likewise.
    ///
    /// # Safety
    /// Likewise.
    unsafe fn broadcast(&mut self, buffer: u64, bytes: usize, memory: &Memory) -> Result<()>;
    /// Refuses what has failed meanwhile.
    fn failed(&self) -> Result<()>;
    /// Ends what waits for others.
    fn abort(&mut self);
}

impl Group for Communicator {
    unsafe fn all_gather(&mut self, send: u64, receive: u64, bytes: usize, memory: &Memory) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { Communicator::all_gather(self, send, receive, bytes, memory.stream) }
    }
    unsafe fn broadcast(&mut self, buffer: u64, bytes: usize, memory: &Memory) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { Communicator::broadcast(self, buffer, bytes, 0, memory.stream) }
    }
    fn failed(&self) -> Result<()> {
        Communicator::failed(self)
    }
    fn abort(&mut self) {
        Communicator::abort(self);
    }
}

/// Where a part is among all: its number, how many there are, on how many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Where {
    pub part: usize,
    pub parts: usize,
    pub nodes: usize,
}

impl Where {
    /// Whether there are two levels.
    fn is_deep(&self) -> bool {
        self.nodes > 1 && self.nodes < self.parts
    }
    fn node(&self) -> usize {
        (0..self.nodes).find(|n| node(self.parts, self.nodes, *n).contains(&self.part)).unwrap_or(0)
    }
    /// The most parts of a node.
    fn width(&self) -> usize {
        (0..self.nodes).map(|n| node(self.parts, self.nodes, n).len()).max().unwrap_or(1)
    }
    /// Which part's bytes lie in each piece of what is gathered; nobody's where a node has fewer parts than others.
    pub fn pieces(&self) -> Vec<Option<usize>> {
        if !self.is_deep() {
            return (0..self.parts).map(Some).collect();
        }
        let of = |n: usize| {
            let own = node(self.parts, self.nodes, n);
            (0..self.width()).map(move |i| (i < own.len()).then_some(own.start + i))
        };
        (0..self.nodes).flat_map(of).collect()
    }
}

/// All parts.
pub struct Levels {
    at: Where,
    /// By what, as people read it.
    by: String,
    /// Those of this node, where there are two levels and it has several.
    inside: Option<Box<dyn Group>>,
    /// All; of two levels, the first parts of all nodes, where this is one of them.
    between: Option<Box<dyn Group>>,
}

impl Levels {
    /// Over the groups that `make` gives: of the parts of this one's node, and of the first parts of all nodes, or of all parts; each by
    /// rank and number of ranks.
    pub fn new(
        at: Where,
        by: String,
        make: &mut dyn FnMut(Level, usize, usize) -> Result<Box<dyn Group>>,
    ) -> Result<Self> {
        if !at.is_deep() {
            let all = make(Level::Between, at.part, at.parts)?;
            return Ok(Self { at, by, inside: None, between: Some(all) });
        }
        let own = node(at.parts, at.nodes, at.node());
        let inside = if own.len() > 1 { Some(make(Level::Inside, at.part - own.start, own.len())?) } else { None };
        let between = if at.part == own.start { Some(make(Level::Between, at.node(), at.nodes)?) } else { None };
        Ok(Self { at, by, inside, between })
    }

    /// `bytes` bytes from `send` of each part come to `receive` of all, as [`Where::pieces`] says; pieces of nobody stay as they are.
    ///
    /// # Safety
    /// Both are on this device until the stream has passed it, `receive` with room for all pieces.
    pub unsafe fn all_gather(&mut self, send: u64, receive: u64, bytes: usize, memory: &Memory) -> Result<()> {
        if !self.at.is_deep() {
            let Some(all) = &mut self.between else { return Ok(()) };
            // SAFETY: the caller's.
            return unsafe { all.all_gather(send, receive, bytes, memory) };
        }
        let width = self.at.width() * bytes;
        let own = receive + (self.at.node() * width) as u64;
        match &mut self.inside {
            // SAFETY: the caller's; a node has a piece for each of its parts.
            Some(inside) => unsafe { inside.all_gather(send, own, bytes, memory) }?,
            None => copy(memory, send, own, bytes)?,
        }
        if let Some(between) = &mut self.between {
            // SAFETY: the caller's.
            unsafe { between.all_gather(own, receive, width, memory) }?;
        }
        match &mut self.inside {
            // SAFETY: the caller's.
            Some(inside) => unsafe { inside.broadcast(receive, self.at.nodes * width, memory) },
            None => Ok(()),
        }
    }

    pub fn failed(&self) -> Result<()> {
        [&self.inside, &self.between].into_iter().flatten().try_for_each(|group| group.failed())
    }

    pub fn abort(&mut self) {
        [&mut self.inside, &mut self.between].into_iter().flatten().for_each(|group| group.abort());
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.by)?;
        if self.at.is_deep() { write!(f, " in two levels, inside {} nodes first", self.at.nodes) } else { Ok(()) }
    }
}

/// Which ranks a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Inside,
    Between,
}

fn copy(memory: &Memory, from: u64, to: u64, bytes: usize) -> Result<()> {
    let place = Place::Cuda(memory.device.index());
    let shape = Shape::from([bytes]);
    // SAFETY: both have so many bytes on this device, as the caller of `all_gather` says.
    let (from, mut to) = unsafe {
        (
            View::from_raw(from as *const u8, Dtype::U8, shape, &[1], place),
            ViewMut::from_raw(to as *mut u8, Dtype::U8, shape, &[1], place),
        )
    };
    crate::cuda::copy_device(&mut to, &from, memory.stream)
}

/// What a part says of itself before all decide how spikes go: that it can (1: its device, and what groups are known by that it is the first
/// of), or why not (0).
pub fn offer(device: &Arc<CudaDevice>, at: Where, wanted: Transport) -> Vec<u8> {
    let able = || -> Result<Vec<u8>> {
        let nccl = Nccl::get()?;
        // The same in all containers of a machine.
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let device = format!("{} {}", machine.trim(), device.attributes()?.pci_id);
        let mut all = vec![1, device.len() as u8];
        all.extend(device.as_bytes());
        let first = at.is_deep() && node(at.parts, at.nodes, at.node()).start == at.part;
        for makes in [first, at.part == 0] {
            all.extend(if makes { nccl.new_id()?.0 } else { [0; NCCL_ID_BYTES] });
        }
        Ok(all)
    };
    if wanted == Transport::Tcp {
        return refusal("it was to go another way");
    }
    // That of the tests.
    if device.name().starts_with("emulated ") {
        return refusal("the emulated GPU has no NCCL");
    }
    able().unwrap_or_else(|e| refusal(&e.to_string()))
}

/// What an offer says: the device, and the two names.
fn understood(offer: &[u8]) -> std::result::Result<(&[u8], [NcclId; 2]), String> {
    let nonsense = || "what it says makes no sense".to_owned();
    match offer.split_first() {
        Some((0, why)) => Err(String::from_utf8_lossy(why).into_owned()),
        Some((1, rest)) => {
            let (len, rest) = rest.split_first().ok_or_else(nonsense)?;
            let (device, ids) = rest.split_at_checked((*len).into()).ok_or_else(nonsense)?;
            let (a, b) = ids.split_at_checked(NCCL_ID_BYTES).ok_or_else(nonsense)?;
            let id = |bytes: &[u8]| bytes.try_into().map(NcclId).map_err(|_| nonsense());
            Ok((device, [id(a)?, id(b)?]))
        }
        _ => Err(nonsense()),
    }
}

/// Whether all can, by what all said: what groups are known by, of each part, or why not.
pub fn agreed(offers: &[Vec<u8>]) -> std::result::Result<Vec<[NcclId; 2]>, String> {
    let mut devices: Vec<&[u8]> = Vec::new();
    let mut ids = Vec::new();
    for (part, offer) in offers.iter().enumerate() {
        let (device, own) = understood(offer).map_err(|why| format!("part {part} cannot: {why}"))?;
        if let Some(other) = devices.iter().position(|d| *d == device) {
            return Err(format!("parts {other} and {part} have one GPU"));
        }
        devices.push(device);
        ids.push(own);
    }
    Ok(ids)
}

/// Joins the others.
///
/// # Errors
/// `Lost`, where they do not come.
pub fn connect(device: &Arc<CudaDevice>, at: Where, ids: &[[NcclId; 2]]) -> Result<Levels> {
    let first = node(at.parts, at.nodes, at.node()).start;
    let by = format!("NCCL {}", Nccl::get()?.version_text());
    Levels::new(at, by, &mut |level, rank, ranks| {
        let id = match level {
            Level::Inside => ids[first][0],
            Level::Between => ids[0][1],
        };
        let named = |e: Error| e.context(format!("part {} of {}", at.part, at.parts));
        Ok(Box::new(Communicator::new(device, id, rank, ranks, JOINING).map_err(named)?))
    })
}
