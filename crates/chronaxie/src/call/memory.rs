//! A block of bytes on some device.

use crate::cuda::{DeviceBuffer, copy_device, copy_to_device, download};
use crate::{Device, Dtype, Error, HostBuffer, Result, View, ViewMut};
use std::fmt;

/// Bytes that are owned, on the host or on a device.
pub(crate) enum Memory {
    Host(HostBuffer),
    Cuda(DeviceBuffer),
}

impl Memory {
    /// `bytes` bytes: zeros on the host, unspecified on a GPU.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Host(HostBuffer::zeroed(bytes)?)),
            Device::Cuda(d) => {
                let buffer = DeviceBuffer::alloc(d, d.default_stream(), bytes)?;
                // From here on any stream may use it.
                d.default_stream().synchronize(d)?;
                Ok(Self::Cuda(buffer))
            }
        }
    }
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Host(b) => b.bytes(),
            Self::Cuda(b) => b.bytes(),
        }
    }
    /// All of it as a tensor of bytes.
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::Host(b) => b.view(),
            Self::Cuda(b) => b.bytes_view(),
        }
    }
    /// As [`view`](Self::view), to write.
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::Host(b) => b.view_mut(),
            Self::Cuda(b) => b.bytes_view_mut(),
        }
    }
    /// Overwrites all bytes, and returns when they are there. Work of other streams on this memory must have ended.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes() {
            return Err(Error::shape(format!("{} bytes cannot fill a block of {}", bytes.len(), self.bytes())));
        }
        match self {
            Self::Host(b) => b.as_mut_slice().copy_from_slice(bytes),
            Self::Cuda(b) => {
                let stream = b.stream();
                copy_to_device(&mut b.bytes_view_mut(), &View::from_slice(bytes, [bytes.len()])?, stream)?;
            }
        }
        Ok(())
    }
    /// Repeats `pattern` over all bytes.
    pub(crate) fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        self.fill_part(0, self.bytes(), pattern)
    }
    /// Repeats `pattern` over `bytes` bytes from byte `at` on, all of which there are.
    pub(crate) fn fill_part(&mut self, at: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        if bytes > self.bytes().saturating_sub(at) {
            return Err(Error::shape(format!("bytes {at} to {at} + {bytes} do not lie in {}", self.bytes())));
        }
        if pattern.is_empty() || bytes == 0 {
            return Ok(());
        }
        let first = &pattern[..pattern.len().min(bytes)];
        match self {
            Self::Host(b) => {
                for chunk in b.as_mut_slice()[at..at + bytes].chunks_mut(first.len()) {
                    chunk.copy_from_slice(&first[..chunk.len()]);
                }
            }
            Self::Cuda(b) => {
                let stream = b.stream();
                let head = View::from_slice(first, [first.len()])?;
                copy_to_device(&mut b.bytes_view_mut().typed(at, Dtype::U8, [first.len()])?, &head, stream)?;
                // Doubled on the device: what is there already is copied behind itself.
                let mut done = first.len();
                while done < bytes {
                    let n = done.min(bytes - done);
                    let (from, to) = b.bytes_view_mut().split_bytes(at + done)?;
                    let from = from.as_view().typed(at, Dtype::U8, [n], &[1])?;
                    copy_device(&mut to.typed(0, Dtype::U8, [n])?, &from, stream)?;
                    done += n;
                }
                stream.synchronize(b.device())?;
            }
        }
        Ok(())
    }
    /// All bytes, after all work of the device.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Host(b) => Ok(b.as_slice().to_vec()),
            Self::Cuda(b) => download::<u8>(&b.bytes_view()),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {}", self.bytes(), self.view().place())
    }
}
