//! Device memory, ordered by streams, and pinned host memory.

use super::device::CudaDevice;
use super::driver::cu;
use super::lock;
use super::stream::{Event, StreamRef};
use super::sys::{CUdeviceptr, code};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Dtype, Place, Shape, View, ViewMut};
use std::ffi::c_void;
use std::sync::Arc;

/// Memory of a device that belongs to one stream: it may be used there from now on, and dropping it frees it after
/// all that was put on that stream.
///
/// It comes from a pool that the library keeps for the device, so a repeated allocation costs about a microsecond.
/// Before another stream uses the buffer, that stream must wait for an event of this one; and before the buffer is
/// dropped, [`DeviceBuffer::used_on`] must say that another stream used it.
pub struct DeviceBuffer {
    device: Arc<CudaDevice>,
    stream: StreamRef,
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` of uninitialised memory, at least 256-byte aligned. Zero bytes are legal and have address 0.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with the bytes asked and free; [`ErrorKind::Cuda`] while `stream` is being captured.
    pub fn alloc(device: &Arc<CudaDevice>, stream: impl Into<StreamRef>, bytes: usize) -> Result<Self> {
        let stream = stream.into();
        let mut buffer = Self { device: device.clone(), stream, address: 0, bytes };
        if bytes == 0 {
            return Ok(buffer);
        }
        let _guard = device.guard()?;
        if stream.is_capturing(device)? {
            return Err(Error::new(
                ErrorKind::Cuda,
                format!("{bytes} bytes cannot be allocated while the stream is being captured: allocate before"),
            ));
        }
        device.free_deferred();
        let mut result = device.raw_alloc(stream, bytes, &mut buffer.address);
        if result == code::OUT_OF_MEMORY {
            // Memory freed on other streams may wait in the pool, and in other sizes. That it cannot be given back
            // (while another thread captures, say) changes nothing about the answer.
            let _ = device.release_cached_memory();
            result = device.raw_alloc(stream, bytes, &mut buffer.address);
        }
        if result == code::SUCCESS {
            return Ok(buffer);
        }
        buffer.address = 0;
        let free = device.memory_info()?.free;
        if result == code::OUT_OF_MEMORY || bytes as u64 > free {
            let (asked, name) = (bytes as u64, device.name());
            return Err(Error::new(
                ErrorKind::OutOfMemory { asked, free },
                format!(
                    "cuda:{} ({name}) is out of memory: {} were asked and {} are free",
                    device.index(),
                    readable(asked),
                    readable(free)
                ),
            ));
        }
        Err(device.driver.check(result, "cuMemAllocFromPoolAsync").err().unwrap_or_else(|| {
            Error::new(ErrorKind::Cuda, format!("an allocation of {bytes} bytes failed without a reason"))
        }))
    }
    /// The address of the first byte; 0 for a buffer of zero bytes.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// The size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Its device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
    /// The stream it belongs to.
    pub fn stream(&self) -> StreamRef {
        self.stream
    }
    fn fits(&self, dtype: Dtype, shape: &Shape) -> Result<()> {
        let want = shape.checked_elements()?.checked_mul(dtype.size());
        if want.is_none_or(|w| w > self.bytes) {
            return Err(Error::shape(format!(
                "a {dtype} tensor of shape {shape} does not fit a buffer of {} bytes",
                self.bytes
            )));
        }
        Ok(())
    }
    /// The first bytes, as a contiguous tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the tensor is larger than the buffer.
    pub fn view(&self, dtype: Dtype, shape: impl Into<Shape>) -> Result<View<'_>> {
        let shape = shape.into();
        self.fits(dtype, &shape)?;
        let place = Place::Cuda(self.device.index());
        // SAFETY: the elements lie within this buffer, which is borrowed; every bit pattern is a value of every dtype.
        Ok(unsafe { View::from_raw(self.address as *const u8, dtype, shape, &shape.contiguous_strides(), place) })
    }
    /// The first bytes, as a contiguous tensor to write.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the tensor is larger than the buffer.
    pub fn view_mut(&mut self, dtype: Dtype, shape: impl Into<Shape>) -> Result<ViewMut<'_>> {
        let shape = shape.into();
        self.fits(dtype, &shape)?;
        let place = Place::Cuda(self.device.index());
        // SAFETY: the elements lie within this buffer, which is exclusively borrowed.
        Ok(unsafe { ViewMut::from_raw(self.address as *mut u8, dtype, shape, &shape.contiguous_strides(), place) })
    }
    /// All of it, as bytes.
    pub fn bytes_view(&self) -> View<'_> {
        let shape = Shape::from([self.bytes]);
        // SAFETY: as in `view`; the elements are exactly this buffer.
        unsafe { View::from_raw(self.address as *const u8, Dtype::U8, shape, &[1], Place::Cuda(self.device.index())) }
    }
    /// All of it, as bytes to write.
    pub fn bytes_view_mut(&mut self) -> ViewMut<'_> {
        let shape = Shape::from([self.bytes]);
        // SAFETY: as in `view_mut`; the elements are exactly this buffer.
        unsafe { ViewMut::from_raw(self.address as *mut u8, Dtype::U8, shape, &[1], Place::Cuda(self.device.index())) }
    }
    /// Says that `other` has used the buffer: its own stream will wait for all that is on `other` now, so that the
    /// memory is not handed out again before.
    pub fn used_on(&self, other: impl Into<StreamRef>) -> Result<()> {
        let other = other.into();
        if other == self.stream {
            return Ok(());
        }
        let event = Event::new(&self.device, false)?;
        event.record(other)?;
        event.block(self.stream)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        let Ok(_guard) = self.device.guard() else { return };
        // A free on a stream that is being captured would become part of the graph.
        if self.stream.is_capturing(&self.device).unwrap_or(false) {
            lock(&self.device.deferred_frees).push((self.address, self.stream));
            return;
        }
        self.device.raw_free(self.address, self.stream);
    }
}

impl CudaDevice {
    fn raw_alloc(&self, stream: StreamRef, bytes: usize, address: &mut CUdeviceptr) -> u32 {
        match self.pool() {
            // SAFETY: pool and stream are live handles of this device; the address is a live integer.
            Some(pool) => unsafe { (self.driver.api.cuMemAllocFromPoolAsync)(address, bytes, pool, stream.handle()) },
            // SAFETY: the address is a live integer, and a context is current.
            None => unsafe { (self.driver.api.cuMemAlloc)(address, bytes) },
        }
    }
    fn raw_free(&self, address: CUdeviceptr, stream: StreamRef) {
        // A failure means that the context is broken, which the next call will say.
        match self.pool() {
            // SAFETY: the memory came from the pool and its owner is gone.
            Some(_) => unsafe { (self.driver.api.cuMemFreeAsync)(address, stream.handle()) },
            // SAFETY: the memory came from cuMemAlloc and its owner is gone; this waits for the work that uses it.
            None => unsafe { (self.driver.api.cuMemFree)(address) },
        };
    }
    /// Frees what was dropped during a capture of its stream, where that capture has ended.
    fn free_deferred(&self) {
        let mut waiting = lock(&self.deferred_frees);
        waiting.retain(|&(address, stream)| {
            let capturing = stream.is_capturing(self).unwrap_or(true);
            if !capturing {
                self.raw_free(address, stream);
            }
            capturing
        });
    }
}

/// Bytes as people read them, with the exact number.
fn readable(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < 4 {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} bytes"),
        _ => format!("{value:.1} {} ({bytes} bytes)", ["", "KiB", "MiB", "GiB", "TiB"][unit]),
    }
}

/// Page-locked host memory: copies between it and a device run without the host.
///
/// Its slices wait for the copies that this buffer itself was given to, so they never show half a copy.
pub struct PinnedBuffer {
    device: Arc<CudaDevice>,
    ptr: *mut u8,
    bytes: usize,
    last_copy: Event,
}

// SAFETY: the memory is this value's own; the driver's calls on it may come from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference the memory is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `bytes` of pinned memory, filled with zeros, for copies to and from `device`. Zero bytes are legal.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] where the system does not give as much.
    pub fn alloc(device: &Arc<CudaDevice>, bytes: usize) -> Result<Self> {
        let _guard = device.guard()?;
        let last_copy = Event::new(device, false)?;
        let mut ptr: *mut c_void = std::ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the argument is a live pointer; no flags.
            let result = unsafe { (device.driver.api.cuMemHostAlloc)(&raw mut ptr, bytes, 0) };
            if result == code::OUT_OF_MEMORY || (result == code::INVALID_VALUE && bytes as u64 > 1 << 47) {
                return Err(Error::new(
                    ErrorKind::OutOfMemory { asked: bytes as u64, free: 0 },
                    format!("the system has no {} to pin", readable(bytes as u64)),
                ));
            }
            device.driver.check(result, "cuMemHostAlloc")?;
            // SAFETY: the driver gave this many writable bytes.
            unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes) };
        }
        Ok(Self { device: device.clone(), ptr: ptr.cast(), bytes, last_copy })
    }
    /// The size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// The address of the first byte, for the host and for kernels of every device; 0 for a buffer of zero bytes.
    pub fn address(&self) -> u64 {
        self.ptr as u64
    }
    fn check_element<T>(&self) -> Result<usize> {
        if !self.bytes.is_multiple_of(size_of::<T>()) {
            return Err(Error::shape(format!(
                "{} bytes are no whole number of elements of {} bytes",
                self.bytes,
                size_of::<T>()
            )));
        }
        Ok(self.bytes / size_of::<T>())
    }
    /// Whether the copies that this buffer was given to have been made.
    pub fn is_copied(&self) -> Result<bool> {
        self.last_copy.is_done()
    }
    /// The memory as elements, after the copies that this buffer was given to.
    pub fn as_slice<T: crate::Element>(&self) -> Result<&[T]> {
        let n = self.check_element::<T>()?;
        self.last_copy.synchronize()?;
        if n == 0 {
            return Ok(&[]);
        }
        // SAFETY: n initialised elements, aligned to a page; copies that write them need `&mut self` and are done.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast(), n) })
    }
    /// The memory as elements to write, after the copies that this buffer was given to.
    pub fn as_mut_slice<T: crate::Element>(&mut self) -> Result<&mut [T]> {
        let n = self.check_element::<T>()?;
        self.last_copy.synchronize()?;
        if n == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `as_slice`, and self is exclusively borrowed.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), n) })
    }
    /// The memory, for a thread that must not ask the driver.
    ///
    /// # Safety
    /// [`is_copied`](Self::is_copied) has said yes since the last `send` or `receive`.
    pub(super) unsafe fn memory(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: initialised bytes of our own, which no copy uses, as the caller vouches; self is exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }
    fn check_copy(&self, other: u64, place: Place, contiguous: bool, bytes: usize) -> Result<()> {
        if place != Place::Cuda(self.device.index()) || !contiguous || bytes > self.bytes {
            return Err(Error::shape(format!(
                "a pinned buffer of {} bytes for cuda:{} and a tensor of {bytes} bytes on {place} at {other:#x} \
                 (contiguous: {contiguous}) cannot be copied",
                self.bytes,
                self.device.index()
            )));
        }
        Ok(())
    }
    /// Copies the first bytes to the contiguous tensor `dst` when `stream` comes to it; returns at once.
    pub fn send(&mut self, dst: &mut ViewMut<'_>, stream: impl Into<StreamRef>) -> Result<()> {
        let bytes = dst.shape().elements() * dst.dtype().size();
        self.check_copy(dst.address(), dst.place(), dst.is_contiguous(), bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let stream = stream.into();
        let _guard = self.device.guard()?;
        self.before_copy(stream)?;
        let driver = self.device.driver;
        // SAFETY: both sides have this many bytes; the slices and the drop of self wait for `last_copy`.
        unsafe { cu!(driver, cuMemcpyHtoDAsync(dst.address(), self.ptr.cast(), bytes, stream.handle())) }?;
        self.after_copy(stream)
    }
    /// Copies the contiguous tensor `src` to the first bytes when `stream` comes to it; returns at once.
    pub fn receive(&mut self, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
        let bytes = src.shape().elements() * src.dtype().size();
        self.check_copy(src.address(), src.place(), src.is_contiguous(), bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let stream = stream.into();
        let _guard = self.device.guard()?;
        self.before_copy(stream)?;
        let driver = self.device.driver;
        // SAFETY: both sides have this many bytes; the slices and the drop of self wait for `last_copy`.
        unsafe { cu!(driver, cuMemcpyDtoHAsync(self.ptr.cast(), src.address(), bytes, stream.handle())) }?;
        self.after_copy(stream)
    }
    /// Lets a copy on `stream` follow the earlier ones, so that the end of the last is the end of all.
    fn before_copy(&self, stream: StreamRef) -> Result<()> {
        if stream.is_capturing(&self.device)? {
            return Err(Error::new(
                ErrorKind::Cuda,
                "a pinned buffer's send and receive cannot be captured: use copy_to_device_async and copy_to_host_async",
            ));
        }
        self.last_copy.block(stream)
    }
    /// Marks the copy just put on `stream`; if that cannot be done, waits for it.
    fn after_copy(&self, stream: StreamRef) -> Result<()> {
        self.last_copy.record(stream).or_else(|_| stream.synchronize(&self.device))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.ptr.is_null() {
            return;
        }
        if let Ok(_guard) = self.device.guard()
            && self.last_copy.synchronize().is_ok()
        {
            // SAFETY: the memory is this value's own, and no copy uses it any more.
            unsafe { (self.device.driver.api.cuMemFreeHost)(self.ptr.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn bytes_are_readable_and_exact() {
        assert_eq!(readable(17), "17 bytes");
        assert_eq!(readable(12 << 30), "12.0 GiB (12884901888 bytes)");
        assert!(readable(u64::MAX).contains("TiB"));
    }
}
