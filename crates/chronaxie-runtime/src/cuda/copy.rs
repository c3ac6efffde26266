//! Copies and fills of contiguous tensors.
//!
//! Those between devices' memory are put on a stream and return at once. Those that touch ordinary host memory return
//! when that memory may be used again, because a borrow cannot outlast its call; [`super::PinnedBuffer`] and the
//! `unsafe` forms here do not wait.

use super::device::CudaDevice;
use super::driver::cu;
use super::memory::DeviceBuffer;
use super::stream::StreamRef;
use crate::error::{Error, Result};
use crate::tensor::{Element, Place, Shape, View, ViewMut};
use std::sync::Arc;

/// The checks that every copy shares; gives the bytes to copy.
fn check(what: &str, dst: &View<'_>, src: &View<'_>) -> Result<usize> {
    if dst.dtype() != src.dtype() {
        return Err(Error::dtype(format!("{what}: {} cannot be copied to {}", src.dtype(), dst.dtype())));
    }
    if dst.shape() != src.shape() {
        return Err(Error::shape(format!(
            "{what}: a tensor of shape {} cannot be copied to one of shape {}",
            src.shape(),
            dst.shape()
        )));
    }
    for v in [dst, src] {
        if !v.is_contiguous() {
            return Err(Error::shape(format!(
                "{what}: a tensor of shape {} with strides {:?} is not contiguous",
                v.shape(),
                v.strides()
            )));
        }
    }
    Ok(dst.shape().elements() * dst.dtype().size())
}

fn on_device(what: &str, view: &View<'_>) -> Result<Arc<CudaDevice>> {
    match view.place() {
        Place::Cuda(index) => CudaDevice::open(index),
        Place::Cpu => Err(Error::device(format!("{what}: a tensor in host memory was given for one on a device"))),
    }
}

fn on_host(what: &str, view: &View<'_>) -> Result<()> {
    match view.place() {
        Place::Cpu => Ok(()),
        place => Err(Error::device(format!("{what}: a tensor on {place} was given for one in host memory"))),
    }
}

/// Copies host memory to a device, after what is on `stream`; returns when `src` may be written again.
///
/// # Errors
/// For dtypes, shapes or places that do not fit, for strides with gaps, and while `stream` is being captured.
pub fn copy_to_device(dst: &mut ViewMut<'_>, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
    let stream = stream.into();
    // SAFETY: the host memory is borrowed until the stream has passed the copy.
    unsafe { copy_to_device_async(dst, src, stream) }?;
    on_device("copy_to_device", &dst.as_view()).and_then(|d| stream.synchronize(&d))
}

/// Copies host memory to a device when `stream` comes to it; returns at once, and can be captured.
///
/// # Errors
/// As [`copy_to_device`].
///
/// # Safety
/// `src` must stay allocated and unchanged until `stream` has passed the copy.
pub unsafe fn copy_to_device_async(dst: &mut ViewMut<'_>, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
    const WHAT: &str = "copy_to_device";
    on_host(WHAT, src)?;
    let device = on_device(WHAT, &dst.as_view())?;
    let bytes = check(WHAT, &dst.as_view(), src)?;
    if bytes == 0 {
        return Ok(());
    }
    let _guard = device.guard()?;
    let stream = stream.into().handle();
    // SAFETY: both views have this many contiguous bytes; the caller keeps the host's.
    unsafe { cu!(device.driver, cuMemcpyHtoDAsync(dst.address(), src.address() as *const _, bytes, stream)) }
}

/// Copies a device's memory to the host, after what is on `stream`; returns when `dst` holds it.
///
/// # Errors
/// For dtypes, shapes or places that do not fit, for strides with gaps, and while `stream` is being captured.
pub fn copy_to_host(dst: &mut ViewMut<'_>, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
    let stream = stream.into();
    // SAFETY: the host memory is borrowed until the stream has passed the copy.
    unsafe { copy_to_host_async(dst, src, stream) }?;
    on_device("copy_to_host", src).and_then(|d| stream.synchronize(&d))
}

/// Copies a device's memory to the host when `stream` comes to it; returns at once, and can be captured.
///
/// # Errors
/// As [`copy_to_host`].
///
/// # Safety
/// `dst` must stay allocated, and nobody may look at it, until `stream` has passed the copy.
pub unsafe fn copy_to_host_async(dst: &mut ViewMut<'_>, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
    const WHAT: &str = "copy_to_host";
    on_host(WHAT, &dst.as_view())?;
    let device = on_device(WHAT, src)?;
    let bytes = check(WHAT, &dst.as_view(), src)?;
    if bytes == 0 {
        return Ok(());
    }
    let _guard = device.guard()?;
    let stream = stream.into().handle();
    // SAFETY: both views have this many contiguous bytes; the caller keeps the host's.
    unsafe { cu!(device.driver, cuMemcpyDtoHAsync(dst.address() as *mut _, src.address(), bytes, stream)) }
}

/// Copies between tensors on devices when `stream` comes to it; returns at once, and can be captured.
///
/// # Errors
/// For dtypes, shapes or places that do not fit, and for strides with gaps.
pub fn copy_device(dst: &mut ViewMut<'_>, src: &View<'_>, stream: impl Into<StreamRef>) -> Result<()> {
    const WHAT: &str = "copy_device";
    on_device(WHAT, src)?;
    let device = on_device(WHAT, &dst.as_view())?;
    let bytes = check(WHAT, &dst.as_view(), src)?;
    if bytes == 0 {
        return Ok(());
    }
    let _guard = device.guard()?;
    let stream = stream.into().handle();
    // SAFETY: both views have this many contiguous bytes of device memory, freed in stream order.
    unsafe { cu!(device.driver, cuMemcpyDtoDAsync(dst.address(), src.address(), bytes, stream)) }
}

/// Sets every byte of a contiguous tensor on a device when `stream` comes to it; returns at once, can be captured.
///
/// # Errors
/// For a tensor in host memory or with gaps.
pub fn fill_bytes(dst: &mut ViewMut<'_>, byte: u8, stream: impl Into<StreamRef>) -> Result<()> {
    const WHAT: &str = "fill_bytes";
    let device = on_device(WHAT, &dst.as_view())?;
    let bytes = check(WHAT, &dst.as_view(), &dst.as_view())?;
    if bytes == 0 {
        return Ok(());
    }
    let _guard = device.guard()?;
    // SAFETY: the view has this many contiguous bytes of device memory.
    unsafe { cu!(device.driver, cuMemsetD8Async(dst.address(), byte, bytes, stream.into().handle())) }
}

/// A new buffer of the default stream that holds `data`; returns when it does.
///
/// # Errors
/// If `shape` does not have as many elements as `data`, or the device has not the memory.
pub fn upload<T: Element>(device: &Arc<CudaDevice>, data: &[T], shape: impl Into<Shape>) -> Result<DeviceBuffer> {
    upload_on(device, StreamRef::LEGACY, data, shape)
}

/// As [`upload`], a buffer of `stream`.
pub fn upload_on<T: Element>(
    device: &Arc<CudaDevice>,
    stream: impl Into<StreamRef>,
    data: &[T],
    shape: impl Into<Shape>,
) -> Result<DeviceBuffer> {
    let stream = stream.into();
    let src = View::from_slice(data, shape)?;
    let mut buffer = DeviceBuffer::alloc(device, stream, size_of_val(data))?;
    copy_to_device(&mut buffer.view_mut(T::DTYPE, *src.shape())?, &src, stream)?;
    Ok(buffer)
}

/// The elements of a contiguous tensor on a device, after all work of that device. Where a stream is known,
/// [`copy_to_host`] waits for that one alone.
///
/// # Errors
/// If `T` is not the tensor's element type, if the tensor has gaps or lies in host memory, and while any stream of the
/// device is being captured.
pub fn download<T: Element>(view: &View<'_>) -> Result<Vec<T>> {
    let device = on_device("download", view)?;
    let mut data = vec![T::default(); view.shape().checked_elements()?];
    device.synchronize()?;
    copy_to_host(&mut ViewMut::from_slice(&mut data, *view.shape())?, view, StreamRef::LEGACY)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    #[test]
    fn copies_that_do_not_fit_are_sentences() {
        let (a, b) = ([0f32; 6], [0f32; 4]);
        let (a, b) = (View::from_slice(&a, [2, 3]).unwrap(), View::from_slice(&b, [2, 2]).unwrap());
        assert_eq!(check("c", &a, &a).unwrap(), 24);
        let m = check("c", &a, &b).unwrap_err().to_string();
        assert!(m.contains("(2, 2)") && m.contains("(2, 3)"), "{m}");
        let gaps = a.restride([2, 2], &[3, 1]).unwrap();
        assert!(check("c", &gaps, &gaps).unwrap_err().to_string().contains("not contiguous"));
        let d = [0f64; 6];
        let d = View::from_slice(&d, [2, 3]).unwrap();
        assert_eq!(d.dtype(), Dtype::F64);
        assert!(check("c", &a, &d).unwrap_err().to_string().contains("f64 cannot be copied to f32"));
        assert!(on_device("c", &a).unwrap_err().to_string().contains("host memory"));
        assert!(download::<f32>(&a).is_err());
    }
}
