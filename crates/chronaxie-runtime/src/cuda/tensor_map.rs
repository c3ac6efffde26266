//! Tensor maps: what the copy engine of compute capability 9.0 and later must know of a tensor to bring boxes of it.

use super::device::CudaDevice;
use super::driver::cu;
use crate::error::{Error, Result};

/// Of a tensor of 16-bit numbers with up to four axes, the innermost first, boxes of 64 numbers of the innermost axis by
/// `rows` of the second. A box lies in shared memory row after row, 128 bytes each, piece `p` of the eight 16-byte pieces
/// of row `r` at piece `p ^ r % 8`, as `wgmma` takes it; what lies outside of the tensor becomes zeros.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorMap([u64; 16]);

/// Where the tensor lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boxes {
    /// The address of its first number: a multiple of 16.
    pub address: u64,
    /// How many numbers each axis has, the innermost first: at least one, at most 2^32.
    pub sizes: [u64; 4],
    /// Bytes from one to the next of the second axis and those behind it: multiples of 16, below 2^40.
    pub strides: [u64; 3],
    /// Rows of a box, at most 256.
    pub rows: u32,
}

impl TensorMap {
    /// The map of a tensor in memory that `device` reads. Nothing is copied to the device: a map is an argument of a launch.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) where the address, a size or a stride is none that a map can have.
    pub fn new(device: &CudaDevice, of: &Boxes) -> Result<Self> {
        let whole = |x: u64, limit: u64| x.is_multiple_of(16) && x < limit;
        let sized = of.sizes.iter().all(|n| (1..=1 << 32).contains(n)) && (1..=256).contains(&of.rows);
        if !sized || !whole(of.address, u64::MAX) || !of.strides.iter().all(|s| whole(*s, 1 << 40)) {
            return Err(Error::shape(format!(
                "no tensor map has {of:x?}: addresses and strides are multiples of 16 bytes, strides below 2^40, sizes 1 to 2^32"
            )));
        }
        // The driver refuses to make one where no device is current.
        let _guard = device.guard()?;
        let mut map = Self::default();
        let (boxes, steps) = ([64, of.rows, 1, 1], [1; 4]);
        // Of 16-bit unsigned numbers, four axes; not interleaved; swizzled by 128 bytes; L2 takes 256 bytes at once; zeros outside.
        let (numbers, axes, interleave, swizzle, promotion, outside) = (1, 4, 0, 3, 3, 0);
        // SAFETY: the map is 128 bytes at a multiple of 64, and the arrays have an entry for each axis.
        unsafe {
            cu!(
                device.driver,
                cuTensorMapEncodeTiled(
                    (&raw mut map.0).cast(),
                    numbers,
                    axes,
                    of.address as *mut _,
                    of.sizes.as_ptr(),
                    of.strides.as_ptr(),
                    boxes.as_ptr(),
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    outside,
                )
            )
        }?;
        Ok(map)
    }
    /// The map as an argument of a launch.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: sixteen words without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), 128) }
    }
}
