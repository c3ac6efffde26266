//! Memory that the tasks of the CPU share.
#![allow(unsafe_code)]
#![cfg_attr(not(feature = "layers"), allow(dead_code))]

/// A part of memory that several tasks write, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T> {
    ptr: *mut T,
    len: usize,
}
// SAFETY: it is only an address; `Shared::part` states what its users must keep.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len() }
    }
    /// `len` elements from `start`.
    ///
    /// # Safety
    /// The slice that this was made from is still borrowed, and no other part in use overlaps this one.
    #[inline(always)]
    pub unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part of {len} from {start} of {}", self.len);
        // SAFETY: in bounds as asserted; exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
    /// Writes one element, which no other task reads or writes.
    ///
    /// # Safety
    /// As [`Shared::part`].
    #[inline(always)]
    pub unsafe fn put(self, at: usize, value: T) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: in bounds as asserted; exclusive as the caller promises.
        unsafe { self.ptr.add(at).write(value) }
    }
}

impl<T: Copy> Shared<T> {
    /// Writes `from` at `start`.
    ///
    /// # Safety
    /// As [`Shared::part`].
    pub unsafe fn copy(self, start: usize, from: &[T]) {
        // SAFETY: as the caller promises.
        unsafe { self.part(start, from.len()) }.copy_from_slice(from);
    }
}
