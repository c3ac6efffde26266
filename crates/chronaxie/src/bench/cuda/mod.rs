//! Time on a GPU: events around replayed graphs.
#![allow(unsafe_code)]

use super::ceiling::Ceilings;
use super::{Pace, Timing};
use crate::call::Workspace;
use crate::cuda::{
    CudaDevice, DeviceBuffer, Event, Graph, PinnedBuffer, Stream, StreamRef, copy_device, fill_bytes, nvml,
};
use crate::op::{Pass, Plan};
use crate::{Dtype, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs shorter than this are timed many to a pair of events, whose step is half a microsecond.
const SHORT_MS: f64 = 0.02;
/// How many.
const BATCH: usize = 32;
/// Milliseconds that so many may take; others are timed one by one.
const LONG_MS: f64 = 10.0;

/// Something that can be timed again and again.
///
/// # Safety
/// The memory of which `run` puts addresses on the stream must stay allocated as long as the value lives: a graph
/// replays what one call has put there.
pub(crate) unsafe trait Work {
    /// Puts the work on `stream`; on the CPU it is done when this returns.
    fn run(&mut self, stream: StreamRef) -> Result<()>;
}

/// Some passes of a plan on a workspace.
pub(super) struct Passes<'a> {
    pub(super) plan: &'a dyn Plan,
    pub(super) passes: &'a [Pass],
    pub(super) workspace: &'a mut Workspace,
}

// SAFETY: a workspace keeps its memory, and is borrowed as long as this lives.
unsafe impl Work for Passes<'_> {
    fn run(&mut self, stream: StreamRef) -> Result<()> {
        // Two passes share tensors, so their views are made anew: under a microsecond.
        self.passes.iter().try_for_each(|&p| self.workspace.bind(self.plan, p, stream)?.run())
    }
}

/// The ceilings of a device, its copy bandwidth measured once a process.
pub(super) fn ceilings(device: &Arc<CudaDevice>, tensor_cores: bool) -> Result<Ceilings> {
    static MEASURED: Mutex<Vec<(usize, f64)>> = Mutex::new(Vec::new());
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = measured.iter().find(|(i, _)| *i == device.index()).map(|(_, b)| *b);
    let bytes_per_s = match known {
        Some(b) => b,
        None => {
            let b = copy_bytes_per_s(device)?;
            measured.push((device.index(), b));
            b
        }
    };
    Ok(Ceilings::of_gpu(device.props(), Some(bytes_per_s), tensor_cores))
}

/// Bytes read and written a second by a copy of 2 GiB (or of a quarter of what is free) within the device.
fn copy_bytes_per_s(device: &Arc<CudaDevice>) -> Result<f64> {
    let bytes = (2usize << 30).min((device.memory_info()?.free / 4) as usize).max(1 << 20);
    let stream = device.new_stream()?;
    let mut from = DeviceBuffer::alloc(device, &stream, bytes)?;
    let mut to = DeviceBuffer::alloc(device, &stream, bytes)?;
    fill_bytes(&mut from.bytes_view_mut(), 1, &stream)?;
    let (start, end) = (Event::new(device, true)?, Event::new(device, true)?);
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        stream.record(&start)?;
        copy_device(&mut to.bytes_view_mut(), &from.bytes_view(), &stream)?;
        stream.record(&end)?;
        best = best.min(f64::from(start.elapsed_ms(&end)?));
    }
    Ok(2.0 * bytes as f64 / (best * 1e-3))
}

/// Bytes a second from pinned host memory to the device.
pub(crate) fn transfer_bytes_per_s(device: &Arc<CudaDevice>) -> Result<f64> {
    let bytes = 64 << 20;
    Ok(bytes as f64 / (transfer_ms(device, bytes)? * 1e-3))
}

/// Milliseconds of the device for one copy of `bytes` from pinned host memory.
pub(crate) fn transfer_ms(device: &Arc<CudaDevice>, bytes: usize) -> Result<f64> {
    let stream = device.new_stream()?;
    let mut host = PinnedBuffer::alloc(device, bytes)?;
    let mut buffer = DeviceBuffer::alloc(device, &stream, bytes)?;
    let (start, end) = (Event::new(device, true)?, Event::new(device, true)?);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        stream.record(&start)?;
        host.send(&mut buffer.view_mut(Dtype::U8, [bytes])?, &stream)?;
        stream.record(&end)?;
        best = best.min(f64::from(start.elapsed_ms(&end)?));
    }
    Ok(best)
}

/// The caches at the start of a timed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// The pass streams many times the L2 cache, so what a run left there does not help the next: runs follow each
    /// other, with an event between them.
    Exceeded,
    /// Twice the L2 cache was overwritten before the run, outside the events.
    Flushed,
    /// Runs follow each other after an untimed one: many between two events, or where they take long one.
    Warm,
}

impl Cache {
    fn choose(run_ms: f64, bytes: u64, l2_bytes: u64, warm: bool) -> Self {
        if warm || run_ms < SHORT_MS {
            Self::Warm
        } else if bytes >= 8 * l2_bytes {
            Self::Exceeded
        } else {
            Self::Flushed
        }
    }
    const fn name(self) -> &'static str {
        match self {
            Self::Exceeded => "exceeded",
            Self::Flushed => "flushed",
            Self::Warm => "warm",
        }
    }
}

/// What is timed: work captured in a graph, and memory that pushes the caches out.
struct Rig {
    stream: Stream,
    graph: Graph,
    flush: DeviceBuffer,
    events: Vec<Event>,
}

impl Rig {
    /// Milliseconds of one replay after a flush.
    ///
    /// The fill also keeps the device busy while the host queues what follows, so no wait for the host is timed.
    fn flushed(&mut self) -> Result<f64> {
        fill_bytes(&mut self.flush.bytes_view_mut(), 0x5A, &self.stream)?;
        self.stream.record(&self.events[0])?;
        self.graph.launch(&self.stream)?;
        self.stream.record(&self.events[1])?;
        Ok(self.events[0].elapsed_ms(&self.events[1])?.into())
    }
    /// Milliseconds of replays that follow each other, one less than there are events; an untimed one goes ahead.
    fn chain(&mut self) -> Result<Vec<f64>> {
        self.graph.launch(&self.stream)?;
        for (i, event) in self.events.iter().enumerate() {
            if i > 0 {
                self.graph.launch(&self.stream)?;
            }
            self.stream.record(event)?;
        }
        self.events.windows(2).map(|pair| Ok(pair[0].elapsed_ms(&pair[1])?.into())).collect()
    }
}

/// Times work that moves `bytes` at the least for about `seconds`.
pub(super) fn time(device: &Arc<CudaDevice>, work: &mut dyn Work, bytes: u64, pace: Pace) -> Result<Timing> {
    let seconds = pace.seconds;
    let stream = device.new_stream()?;
    let mut enqueue = |times: usize| (0..times).try_for_each(|_| work.run(stream.as_ref()));
    // First use outside the capture: it may load modules.
    enqueue(1)?;
    stream.synchronize()?;
    // SAFETY: the work is borrowed until the last replay has ended, in this function, and so long keeps its memory.
    let graph = unsafe { Graph::capture(&stream, || enqueue(1)) }?;
    // SAFETY: as above.
    let batch = unsafe { Graph::capture(&stream, || enqueue(BATCH)) }?;
    let l2 = u64::from(device.props().l2_bytes);
    let flush = DeviceBuffer::alloc(device, &stream, (2 * l2 as usize).max(32 << 20))?;
    let events = (0..9).map(|_| Event::new(device, true)).collect::<Result<Vec<_>>>()?;
    let mut rig = Rig { stream, graph, flush, events };
    for _ in 0..3 {
        rig.flushed()?;
    }
    let one = rig.flushed()?.min(rig.flushed()?);
    let cache = Cache::choose(one, bytes, l2, pace.warm);
    let together = cache == Cache::Warm && one * BATCH as f64 <= LONG_MS;
    let mut ms = Vec::new();
    match cache {
        Cache::Flushed => {
            for _ in 0..(seconds * 1e3 / one.max(0.05)).clamp(5.0, 1000.0) as usize {
                ms.push(rig.flushed()?);
            }
        }
        _ if together => {
            rig.graph = batch;
            for _ in 0..(seconds * 1e3 / (one * BATCH as f64).max(0.05) / 9.0).ceil().clamp(2.0, 100.0) as usize {
                ms.extend(rig.chain()?.into_iter().map(|t| t / BATCH as f64));
            }
        }
        _ => {
            for _ in 0..(seconds * 1e3 / one / 9.0).ceil().clamp(1.0, 100.0) as usize {
                ms.extend(rig.chain()?);
            }
        }
    }
    // Sensors while the device works: they answer in milliseconds, so it is given that much to do.
    for _ in 0..(20.0 / one.max(1e-3)).clamp(1.0, 2000.0) as usize {
        rig.graph.launch(&rig.stream)?;
    }
    let sensors = nvml::read(device);
    rig.stream.synchronize()?;
    Ok(Timing {
        ms,
        clock: "device",
        cache: cache.name(),
        sm_clock_mhz: sensors.and_then(|s| s.sm_clock_mhz),
        power_w: sensors.and_then(|s| s.power_w),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_treated_by_size_and_length() {
        let l2 = 60 << 20;
        assert_eq!(Cache::choose(0.01, 1 << 40, l2, false), Cache::Warm);
        assert_eq!(Cache::choose(0.3, 1 << 30, l2, false), Cache::Exceeded);
        assert_eq!(Cache::choose(0.3, 100 << 20, l2, false), Cache::Flushed);
        assert_eq!([1 << 30, 100 << 20].map(|bytes| Cache::choose(0.3, bytes, l2, true)), [Cache::Warm; 2]);
        assert_eq!([Cache::Warm, Cache::Flushed].map(Cache::name), ["warm", "flushed"]);
    }
}
