//! Schedules of synapses in a device's memory, and structs as kernels take them.

use super::schedule::Schedule;
use crate::cuda::{CudaDevice, DeviceBuffer, StreamRef, copy_to_device};
use crate::{Dtype, Place, Result, Shape, View};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A schedule on the device, in one buffer, as long as the plan lives.
pub(super) struct DeviceSchedule {
    _buffer: Lasting,
    /// Where the slots' places in dense matrices are, and how many slots there are.
    at: u64,
    slots: usize,
    from: u64,
    owner: u64,
    warps: u64,
}

impl DeviceSchedule {
    pub(super) fn new(device: &Arc<CudaDevice>, s: &Schedule) -> Result<Self> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut offsets = [0u64; 4];
        let mut push = |n: usize, words: &mut dyn Iterator<Item = u32>| {
            bytes.resize(bytes.len().next_multiple_of(256), 0);
            offsets[n] = bytes.len() as u64;
            bytes.extend(words.flat_map(u32::to_ne_bytes));
        };
        push(0, &mut s.at.iter().copied());
        push(1, &mut s.from.iter().copied());
        push(2, &mut s.owner.iter().map(|&j| j as u32));
        push(3, &mut s.warps.iter().flatten().map(|&n| n as u32));
        let buffer = upload(device, &bytes)?;
        let [at, from, owner, warps] = offsets.map(|o| buffer.0.address() + o);
        Ok(Self { _buffer: buffer, at, slots: s.at.len(), from, owner, warps })
    }
    pub(super) fn at(&self) -> u64 {
        self.at
    }
    pub(super) fn slots(&self) -> usize {
        self.slots
    }
    /// `struct RawSide`: the parameters from input `w` on.
    pub(super) fn raw(&self, x: &[View<'_>], w: usize) -> [u8; 40] {
        let of = |i: usize| x[w + i].address();
        pack([self.at, of(0), of(1), of(2), of(3)])
    }
    /// `struct Schedule`, with the folded synapses at `folded`.
    pub(super) fn bytes(&self, folded: u64) -> [u8; 32] {
        pack([self.from, self.owner, self.warps, folded])
    }
}

/// Memory that launches on any stream may read, as long as the plan lives.
struct Lasting(ManuallyDrop<DeviceBuffer>);

impl Drop for Lasting {
    fn drop(&mut self) {
        // Launches on any stream may still read it. Where waiting is not possible (another thread captures a graph) the
        // memory is given up instead.
        if self.0.device().synchronize().is_ok() {
            // SAFETY: the buffer is not used again.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// These bytes in the memory of `device`.
fn upload(device: &Arc<CudaDevice>, bytes: &[u8]) -> Result<Lasting> {
    let stream = StreamRef::PER_THREAD;
    let mut buffer = DeviceBuffer::alloc(device, stream, bytes.len())?;
    let n = Shape::from([bytes.len()]);
    // SAFETY: the view covers exactly the slice, which outlives the copy: copies from pageable memory have read their source
    // when they return.
    let host = unsafe { View::from_raw(bytes.as_ptr(), Dtype::U8, n, &[1], Place::Cpu) };
    copy_to_device(&mut buffer.bytes_view_mut(), &host, stream)?;
    stream.synchronize(device)?;
    Ok(Lasting(ManuallyDrop::new(buffer)))
}

/// Words on the device, as long as the plan lives.
pub(super) struct DeviceWords(Lasting);

impl DeviceWords {
    pub(super) fn new(device: &Arc<CudaDevice>, words: &[u32]) -> Result<Self> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        Ok(Self(upload(device, &bytes)?))
    }
    pub(super) fn address(&self) -> u64 {
        self.0.0.address()
    }
}

/// Words as a struct of pointers and 64-bit integers lies in memory.
pub(super) fn pack<const N: usize, const M: usize>(words: [u64; N]) -> [u8; M] {
    let mut bytes = [0; M];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
