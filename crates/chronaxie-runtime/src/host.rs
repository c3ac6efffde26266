//! Host memory that the library owns: bytes of no particular element type, aligned for any vector load.

use crate::error::{Error, ErrorKind, Result};
use crate::scratch::ALIGNMENT;
use crate::tensor::{Dtype, View, ViewMut};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Zeroed host memory at a 256-byte boundary.
pub struct HostBuffer {
    // Dangling and never read when `bytes` is 0.
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its memory; access follows the borrow of the buffer.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `bytes` bytes of zeros.
    ///
    /// # Errors
    /// Out of memory, with the bytes that were asked for.
    pub fn zeroed(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { ptr: NonNull::dangling(), bytes });
        }
        let refused = || {
            Error::new(
                ErrorKind::OutOfMemory { asked: bytes as u64, free: 0 },
                format!("out of host memory: {bytes} bytes were asked for"),
            )
        };
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| refused())?;
        // SAFETY: the layout has a size above zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { ptr, bytes })
    }
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// The memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes are ours while self is borrowed; a dangling pointer serves an empty slice.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }
    /// The memory, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }
    /// All of it as a tensor of bytes; [`View::typed`] gives it an element type.
    pub fn view(&self) -> View<'_> {
        View::from_slice(self.as_slice(), [self.bytes]).expect("a slice has the length of its buffer")
    }
    /// As [`view`](Self::view), to write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let n = self.bytes;
        ViewMut::from_slice(self.as_mut_slice(), [n]).expect("a slice has the length of its buffer")
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let layout = Layout::from_size_align(self.bytes, ALIGNMENT).expect("the layout it was made with");
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes on cpu", Dtype::U8, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_tensors() {
        let mut b = HostBuffer::zeroed(1024).unwrap();
        assert_eq!(b.view().address() % ALIGNMENT as u64, 0);
        assert!(b.as_slice().iter().all(|&x| x == 0));
        let mut v = b.view_mut().typed(256, Dtype::F32, [3, 4]).unwrap();
        v.as_mut_slice::<f32>().unwrap()[5] = 2.5;
        let t = b.view().typed(256, Dtype::F32, [4, 3], &[1, 4]).unwrap();
        assert_eq!(t.strides(), &[1, 4]);
        let (low, high) = b.view_mut().split_bytes(300).unwrap();
        assert_eq!((low.shape().elements(), high.shape().elements()), (300, 724));
        assert_eq!(high.address() - low.address(), 300);
        assert_eq!(b.view().typed(256 + 20, Dtype::F32, [1], &[1]).unwrap().as_slice::<f32>().unwrap(), &[2.5]);
    }

    #[test]
    fn what_reaches_outside_is_refused() {
        let mut b = HostBuffer::zeroed(64).unwrap();
        let e = b.view().typed(4, Dtype::F64, [2], &[1]).unwrap_err();
        assert!(e.to_string().contains("aligned"), "{e}");
        let e = b.view().typed(16, Dtype::F32, [4, 4], &[4, 1]).unwrap_err();
        assert!(e.to_string().contains("64 bytes"), "{e}");
        assert!(b.view().typed(0, Dtype::F32, [2], &[-1]).is_err());
        assert!(b.view().typed(0, Dtype::F32, [usize::MAX, 2], &[1, 1]).is_err());
        assert!(b.view_mut().typed(0, Dtype::F32, [17]).is_err());
        assert!(HostBuffer::zeroed(0).unwrap().view().typed(0, Dtype::F32, [0, 3], &[3, 1]).is_ok());
        assert!(b.view_mut().split_bytes(65).is_err());
        let e = HostBuffer::zeroed(usize::MAX).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::OutOfMemory { asked: u64::MAX, free: 0 });
    }
}
