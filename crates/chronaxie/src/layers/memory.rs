//! Views of a call's tensors that the CPU's tasks read.
#![allow(unsafe_code)]

use crate::{Result, View};

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
