//! A block of bytes on some device.

use crate::{Device, Error, HostBuffer, Result, View, ViewMut};

/// Bytes that are owned, on the host or on a device.
#[derive(Debug)]
pub(crate) enum Memory {
    Host(HostBuffer),
}

impl Memory {
    /// `bytes` bytes; their contents are not specified on a GPU.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Host(HostBuffer::zeroed(bytes)?)),
            Device::Cuda(d) => Err(Error::unavailable(format!("no memory on cuda:{}", d.index()))),
        }
    }
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Host(b) => b.bytes(),
        }
    }
    /// All of it as a tensor of bytes.
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::Host(b) => b.view(),
        }
    }
    /// As [`view`](Self::view), to write.
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        match self {
            Self::Host(b) => b.view_mut(),
        }
    }
    /// Overwrites all bytes and returns when they are there.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes() {
            return Err(Error::shape(format!("{} bytes cannot fill a block of {}", bytes.len(), self.bytes())));
        }
        match self {
            Self::Host(b) => b.as_mut_slice().copy_from_slice(bytes),
        }
        Ok(())
    }
    /// All bytes, after the work that writes them has ended.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Host(b) => Ok(b.as_slice().to_vec()),
        }
    }
}
