//! Scratch memory: one layout that is read both by the size and by the carver.

use crate::error::{Error, Result};
use crate::tensor::{Dtype, Element, Place, ViewMut};

/// Every region starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 256;

/// A named part of a scratch block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// What it holds, for reports.
    pub name: &'static str,
    /// Byte offset from the block's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// The regions of a scratch block, in order.
///
/// `gap` bytes are left free behind each region; `check` fills them with a pattern and looks at them afterwards, so a
/// kernel that writes past its region is found. Plans must take offsets from here and nowhere else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    regions: Vec<Region>,
    bytes: usize,
    gap: usize,
}

/// A region's handle: the position at which [`Layout::push`] put it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionId(usize);

impl Layout {
    /// An empty layout with `gap` bytes behind each region (rounded up to [`ALIGNMENT`]).
    pub fn new(gap: usize) -> Self {
        Self { regions: Vec::new(), bytes: 0, gap: gap.next_multiple_of(ALIGNMENT) }
    }
    /// Adds `elements` of `dtype`.
    pub fn push(&mut self, name: &'static str, dtype: Dtype, elements: usize) -> Result<RegionId> {
        let too_large =
            || Error::shape(format!("scratch `{name}`: {elements} elements of {dtype} exceed 64-bit sizes"));
        let len = elements.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let end = len
            .checked_next_multiple_of(ALIGNMENT)
            .and_then(|l| self.bytes.checked_add(l)?.checked_add(self.gap))
            .ok_or_else(too_large)?;
        self.regions.push(Region { name, offset: self.bytes, len });
        self.bytes = end;
        Ok(RegionId(self.regions.len() - 1))
    }
    /// Bytes of the whole block.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// The regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
    /// The region that `id` names.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.0]
    }
    /// The address of a region in a block that starts at `base`.
    pub fn address(&self, base: u64, id: RegionId) -> u64 {
        base + self.regions[id.0].offset as u64
    }
    /// A host region as a slice.
    ///
    /// Several regions can be carved at once because they are disjoint.
    ///
    /// # Safety
    /// `block` must be this layout's block, and the same region must not be carved twice at a time.
    pub unsafe fn carve<'a, T: Element>(&self, block: &ViewMut<'a>, id: RegionId) -> Result<&'a mut [T]> {
        let r = &self.regions[id.0];
        if block.place() != Place::Cpu || block.shape().elements() * block.dtype().size() < self.bytes {
            return Err(Error::shape(format!(
                "scratch of {} bytes on {} does not hold {} bytes of host memory",
                block.shape().elements() * block.dtype().size(),
                block.place(),
                self.bytes
            )));
        }
        if r.len == 0 {
            return Ok(&mut []);
        }
        let ptr = (block.address() as usize + r.offset) as *mut T;
        // SAFETY: the region lies inside the block, is aligned to 256 bytes with it, and the caller carves it once.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, r.len / size_of::<T>()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_and_apart() {
        let mut l = Layout::new(1);
        let a = l.push("a", Dtype::F32, 3).unwrap();
        let b = l.push("b", Dtype::F64, 40).unwrap();
        assert_eq!((l.region(a).offset, l.region(a).len), (0, 12));
        assert_eq!(l.region(b).offset, 512);
        assert_eq!(l.bytes(), 512 + 512 + 256);
        assert!(l.push("c", Dtype::F64, usize::MAX).unwrap_err().to_string().contains("scratch `c`"));
    }
}
