//! What engines and the analysis put on a device: structs of kernels, and memory on a stream.
#![allow(unsafe_code)]

use crate::cuda::{CudaDevice, DeviceBuffer, StreamRef, copy_to_device, copy_to_host, fill_bytes};
use crate::{Dtype, Place, Result, Shape, View, ViewMut};
use std::sync::Arc;

/// A struct of a kernel, field after field.
#[derive(Debug, Default, Clone)]
pub(super) struct Fields(pub Vec<u8>);

impl Fields {
    pub fn u64(mut self, x: u64) -> Self {
        self.0.extend(x.to_ne_bytes());
        self
    }
    pub fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_ne_bytes());
        self
    }
    pub fn f32(mut self, x: f32) -> Self {
        self.0.extend(x.to_ne_bytes());
        self
    }
    /// Up to a multiple of eight bytes, as structs that hold pointers are padded.
    pub fn padded(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }
}

/// Numbers that are nothing but their bytes.
pub(super) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for f32 {}
impl Plain for [u32; 2] {}
impl Plain for [u32; 4] {}
impl Plain for [f32; 4] {}

fn bytes<T: Plain>(data: &[T]) -> &[u8] {
    // SAFETY: numbers without padding, seen as their bytes for as long as they are borrowed.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}
fn bytes_mut<T: Plain>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, exclusively borrowed; all bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Memory of a device, on a stream.
#[derive(Clone)]
pub(super) struct Memory {
    pub device: Arc<CudaDevice>,
    pub stream: StreamRef,
}

impl Memory {
    pub fn room(&self, bytes: usize) -> Result<DeviceBuffer> {
        // An address of its own also for what is empty.
        DeviceBuffer::alloc(&self.device, self.stream, bytes.max(16))
    }
    pub fn zeros(&self, bytes: usize) -> Result<DeviceBuffer> {
        let mut buffer = self.room(bytes)?;
        self.clear(&mut buffer)?;
        Ok(buffer)
    }
    pub fn clear(&self, buffer: &mut DeviceBuffer) -> Result<()> {
        fill_bytes(&mut buffer.bytes_view_mut(), 0, self.stream)
    }
    pub fn upload<T: Plain>(&self, data: &[T]) -> Result<DeviceBuffer> {
        let mut buffer = self.room(size_of_val(data))?;
        self.write(&mut buffer, data)?;
        Ok(buffer)
    }
    /// Into the first bytes of `buffer`.
    pub fn write<T: Plain>(&self, buffer: &mut DeviceBuffer, data: &[T]) -> Result<()> {
        let data = bytes(data);
        copy_to_device(
            &mut buffer.view_mut(Dtype::U8, [data.len()])?,
            &View::from_slice(data, [data.len()])?,
            self.stream,
        )
    }
    /// `count` numbers from byte `offset` on.
    pub fn download<T: Plain + Default>(&self, buffer: &DeviceBuffer, offset: usize, count: usize) -> Result<Vec<T>> {
        let mut data = vec![T::default(); count];
        let len = count * size_of::<T>();
        assert!(offset + len <= buffer.bytes(), "{len} bytes at {offset} of {}", buffer.bytes());
        let shape = Shape::from([len]);
        let place = Place::Cuda(self.device.index());
        let at = buffer.address() + offset as u64;
        // SAFETY: the bytes lie within the buffer, which is borrowed, as was just asserted.
        let from = unsafe { View::from_raw(at as *const u8, Dtype::U8, shape, &[1], place) };
        copy_to_host(&mut ViewMut::from_slice(bytes_mut(&mut data), [len])?, &from, self.stream)?;
        Ok(data)
    }
}
