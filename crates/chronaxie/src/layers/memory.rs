//! Views of a call's tensors that the CPU's tasks share.
#![allow(unsafe_code)]

use crate::{Result, View};

/// A part of memory that several tasks write, each its own elements.
#[derive(Clone, Copy)]
pub(in crate::layers) struct Shared<T> {
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

/// A tensor of A axes and any strides.
#[derive(Clone, Copy)]
pub(in crate::layers) struct Strided<'a, const A: usize> {
    ptr: *const f32,
    strides: [isize; A],
    shape: [usize; A],
    view: std::marker::PhantomData<&'a [f32]>,
}
// SAFETY: shared, read-only access to memory that outlives it, as `&[f32]` has.
unsafe impl<const A: usize> Send for Strided<'_, A> {}
// SAFETY: as above.
unsafe impl<const A: usize> Sync for Strided<'_, A> {}

impl<'a, const A: usize> Strided<'a, A> {
    /// The elements of `view`, which has A axes.
    pub fn new(view: &View<'a>) -> Result<Self> {
        let (mut strides, mut shape) = ([0; A], [0; A]);
        strides.copy_from_slice(view.strides());
        shape.copy_from_slice(view.shape());
        Ok(Self { ptr: view.as_ptr::<f32>()?, strides, shape, view: std::marker::PhantomData })
    }
    /// The element at `index`.
    pub fn at(&self, index: [usize; A]) -> f32 {
        assert!(index.iter().zip(self.shape).all(|(&i, n)| i < n), "{index:?} of {:?}", self.shape);
        let offset: isize = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
        // SAFETY: the view reaches every element of its shape.
        unsafe { *self.ptr.offset(offset) }
    }
    /// The element at `index`, for loops over every element.
    ///
    /// # Safety
    /// Every index must be below the size of its axis.
    #[inline(always)]
    pub unsafe fn at_unchecked(&self, index: [usize; A]) -> f32 {
        debug_assert!(index.iter().zip(self.shape).all(|(&i, n)| i < n));
        let offset: isize = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
        // SAFETY: the view reaches every element of its shape.
        unsafe { *self.ptr.offset(offset) }
    }
    /// Copies the elements from `index` on along the last axis.
    pub fn copy(&self, index: [usize; A], to: &mut [f32]) {
        if to.is_empty() {
            return;
        }
        let end = index[A - 1] + to.len();
        let within = index[..A - 1].iter().zip(self.shape).all(|(&i, n)| i < n) && end <= self.shape[A - 1];
        assert!(within, "{} elements from {index:?} of {:?}", to.len(), self.shape);
        let offset: isize = index.iter().zip(self.strides).map(|(&i, stride)| i as isize * stride).sum();
        let stride = self.strides[A - 1];
        if stride == 1 {
            // SAFETY: the view reaches every element of its shape, and these lie beside each other.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(self.ptr.offset(offset), to.len()) });
            return;
        }
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: as above.
            *to = unsafe { *self.ptr.offset(offset + i as isize * stride) };
        }
    }
}
