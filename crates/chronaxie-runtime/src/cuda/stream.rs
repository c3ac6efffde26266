//! Streams and events.

use super::device::CudaDevice;
use super::driver::cu;
use super::lock;
use super::sys::{CUevent, CUstream, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, code};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A stream of some device, by its driver handle: the library's own, PyTorch's current one, or a default stream.
///
/// It is a plain number that can be copied; streams of this library are never destroyed, so it never dangles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRef(u64);

impl StreamRef {
    /// The legacy default stream (0).
    pub const LEGACY: Self = Self(0);
    /// The calling thread's default stream (2).
    pub const PER_THREAD: Self = Self(2);

    /// A foreign stream, as `torch.cuda.current_stream().cuda_stream` gives it; 0 and 2 are the default streams.
    ///
    /// # Safety
    /// It must be a stream of the device on which it is used, and live as long as this value and its copies are used.
    pub const unsafe fn from_raw(stream: u64) -> Self {
        Self(stream)
    }
    /// The driver's handle as a number.
    pub const fn raw(self) -> u64 {
        self.0
    }
    pub(super) fn handle(self) -> CUstream {
        self.0 as usize as CUstream
    }
    /// Waits until the stream has done all that was put on it.
    pub fn synchronize(self, device: &CudaDevice) -> Result<()> {
        let _guard = device.guard()?;
        // SAFETY: the stream is one of this device, as its maker vouched.
        unsafe { cu!(device.driver, cuStreamSynchronize(self.handle())) }
    }
    /// Whether launches on the stream are being recorded into a graph.
    pub fn is_capturing(self, device: &CudaDevice) -> Result<bool> {
        let _guard = device.guard()?;
        self.is_capturing_unguarded(device)
    }
    /// The same where the device's context is current.
    pub(super) fn is_capturing_unguarded(self, device: &CudaDevice) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream is one of this device, and the status is a live integer.
        let result = unsafe { (device.driver.api.cuStreamIsCapturing)(self.handle(), &raw mut status) };
        // The legacy stream answers so while another stream that it would wait for is being captured.
        if result == code::STREAM_CAPTURE_IMPLICIT {
            return Ok(true);
        }
        device.driver.check(result, "cuStreamIsCapturing")?;
        Ok(status != 0)
    }
}

/// A stream of the library's own that waits for no other.
///
/// When it is dropped, its handle goes back to the device and is handed out again, so that buffers and [`StreamRef`]s
/// that outlive it stay valid.
pub struct Stream {
    device: Arc<CudaDevice>,
    raw: u64,
}

impl Stream {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        let _guard = device.guard()?;
        if let Some(raw) = lock(&device.idle_streams).pop() {
            return Ok(Self { device: device.clone(), raw });
        }
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: the argument is a live pointer, and a context is current.
        unsafe { cu!(device.driver, cuStreamCreate(&raw mut stream, STREAM_NON_BLOCKING)) }?;
        Ok(Self { device: device.clone(), raw: stream as u64 })
    }
    /// The stream, to launch on.
    #[allow(clippy::should_implement_trait)]
    pub fn as_ref(&self) -> StreamRef {
        StreamRef(self.raw)
    }
    /// Its device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
    /// Waits until all that was put on the stream is done.
    pub fn synchronize(&self) -> Result<()> {
        self.as_ref().synchronize(&self.device)
    }
    /// Marks this point of the stream in `event`.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.record(self.as_ref())
    }
    /// Lets what is put on the stream from now on wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.block(self.as_ref())
    }
}

impl From<&Stream> for StreamRef {
    fn from(stream: &Stream) -> Self {
        stream.as_ref()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.driver.same_process() {
            lock(&self.device.idle_streams).push(self.raw);
        }
    }
}

/// A point in a stream that others can wait for, and with `timing` a clock.
pub struct Event {
    device: Arc<CudaDevice>,
    raw: usize,
    timing: bool,
}

impl Event {
    /// An event of `device`. Without `timing` it is cheaper and only orders streams.
    pub fn new(device: &Arc<CudaDevice>, timing: bool) -> Result<Self> {
        let _guard = device.guard()?;
        let mut event: CUevent = std::ptr::null_mut();
        let flags = if timing { 0 } else { EVENT_DISABLE_TIMING };
        // SAFETY: the argument is a live pointer, and a context is current.
        unsafe { cu!(device.driver, cuEventCreate(&raw mut event, flags)) }?;
        Ok(Self { device: device.clone(), raw: event as usize, timing })
    }
    fn handle(&self) -> CUevent {
        self.raw as CUevent
    }
    /// Its device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
    /// Marks this point of `stream`; a later record replaces an earlier one.
    pub fn record(&self, stream: StreamRef) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: event and stream are live handles of one device.
        unsafe { cu!(self.device.driver, cuEventRecord(self.handle(), stream.handle())) }
    }
    /// Lets what is put on `stream` from now on wait for this event.
    pub fn block(&self, stream: StreamRef) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: event and stream are live handles; the flags must be 0.
        unsafe { cu!(self.device.driver, cuStreamWaitEvent(stream.handle(), self.handle(), 0)) }
    }
    /// Waits on the host until the event has come; returns at once if it was never recorded.
    pub fn synchronize(&self) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: the event is live.
        unsafe { cu!(self.device.driver, cuEventSynchronize(self.handle())) }
    }
    /// Whether the event has come.
    pub fn is_done(&self) -> Result<bool> {
        let _guard = self.device.guard()?;
        // SAFETY: the event is live.
        match unsafe { (self.device.driver.api.cuEventQuery)(self.handle()) } {
            code::NOT_READY => Ok(false),
            result => self.device.driver.check(result, "cuEventQuery").map(|()| true),
        }
    }
    /// Milliseconds of device time from this event to `end`, for both of which it waits; its step is about 0.5 us.
    ///
    /// # Errors
    /// For events made without timing, or never recorded.
    pub fn elapsed_ms(&self, end: &Self) -> Result<f32> {
        if !self.timing || !end.timing {
            return Err(Error::value("an event was made without timing, so there is no time between it and another"));
        }
        end.synchronize()?;
        let _guard = self.device.guard()?;
        let mut ms = 0.0;
        // SAFETY: both events are live and made with timing; the result is a live float.
        unsafe { cu!(self.device.driver, cuEventElapsedTime(&raw mut ms, self.handle(), end.handle())) }?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_guard) = self.device.guard() {
            // SAFETY: the event is live and nobody can use it afterwards; the driver defers the end of one in use.
            unsafe { (self.device.driver.api.cuEventDestroy)(self.handle()) };
        }
    }
}
