//! Parts of tensors: some steps of a sequence, a chunk's states; and what is added up over them.

#![allow(unsafe_code)]

use super::cuda::Adder;
use crate::cuda::StreamRef;
use crate::shared::Shared;
use crate::{Device, Dtype, Result, Shape, View, ViewMut};
use chronaxie_runtime::pool;

/// A tensor by address, of which parts are taken.
#[derive(Debug, Clone)]
pub(super) struct Whole {
    address: u64,
    dtype: Dtype,
    shape: Shape,
    strides: Vec<isize>,
    place: crate::Place,
}

impl Whole {
    pub(super) fn of(v: &View<'_>) -> Self {
        Self {
            address: v.address(),
            dtype: v.dtype(),
            shape: *v.shape(),
            strides: v.strides().to_vec(),
            place: v.place(),
        }
    }
    /// Contiguous memory at `address`.
    pub(super) fn at(address: u64, dtype: Dtype, shape: impl Into<Shape>, place: crate::Place) -> Self {
        let shape = shape.into();
        let strides = shape.contiguous_strides()[..shape.len()].to_vec();
        Self { address, dtype, shape, strides, place }
    }
    /// Indices `from .. to` of an axis.
    pub(super) fn part(mut self, axis: usize, from: usize, to: usize) -> Self {
        let mut sizes = self.shape.to_vec();
        sizes[axis] = to - from;
        self.shape = Shape::new(&sizes);
        self.moved(axis, from)
    }
    /// One index of an axis, which goes.
    pub(super) fn pick(self, axis: usize, at: usize) -> Self {
        let mut picked = self.moved(axis, at);
        let mut sizes = picked.shape.to_vec();
        sizes.remove(axis);
        picked.strides.remove(axis);
        picked.shape = Shape::new(&sizes);
        picked
    }
    fn moved(mut self, axis: usize, by: usize) -> Self {
        let bytes = self.strides[axis] as i64 * by as i64 * self.dtype.size() as i64;
        self.address = self.address.wrapping_add_signed(bytes);
        self
    }
    /// Contiguous memory with other sizes.
    pub(super) fn shaped(self, shape: impl Into<Shape>) -> Self {
        Self::at(self.address, self.dtype, shape, self.place)
    }
    /// Contiguous memory elsewhere of the same type and sizes.
    pub(super) fn in_place_of(&self, make: impl FnOnce(Dtype, &[usize]) -> Self) -> Self {
        make(self.dtype, &self.shape)
    }
    pub(super) fn is_contiguous(&self) -> bool {
        self.strides[..] == self.shape.contiguous_strides()[..self.shape.len()]
    }
    /// To read, or to write.
    ///
    /// # Safety
    /// The tensor must outlive the view, and nobody else may write it meanwhile (or read it, if it is written) but through
    /// the stream that the view is used on.
    pub(super) unsafe fn view<'v>(&self) -> View<'v> {
        let at = self.address as usize as *const u8;
        // SAFETY: the caller's, of a part that lies within the tensor.
        unsafe { View::from_raw(at, self.dtype, self.shape, &self.strides, self.place) }
    }
    /// # Safety
    /// As [`view`](Self::view).
    pub(super) unsafe fn view_mut<'v>(&self) -> ViewMut<'v> {
        let at = self.address as usize as *mut u8;
        // SAFETY: the caller's, of a part that lies within the tensor.
        unsafe { ViewMut::from_raw(at, self.dtype, self.shape, &self.strides, self.place) }
    }
    /// Rows of contiguous f32, the elements of each, and from one to the next.
    fn rows(&self) -> [usize; 3] {
        let words = self.dtype.size() / 4;
        if self.is_contiguous() {
            let all = self.shape.elements() * words;
            return [1, all, all];
        }
        // A sequence `[B, D, T]` of contiguous memory, of which steps are left out.
        let last = self.shape.len() - 1;
        let length = self.shape[last];
        // An axis of one index may have any stride.
        let stride =
            (0..last).rev().find(|&axis| self.shape[axis] > 1).map_or(length, |axis| self.strides[axis].unsigned_abs());
        [self.shape.elements() / length.max(1), length, stride]
    }
}

/// Copies and sums of f32.
pub(super) enum Sums {
    Cpu,
    Cuda(Adder),
}

impl Sums {
    pub(super) fn new(device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Cpu),
            Device::Cuda(d) => Ok(Self::Cuda(Adder::new(d)?)),
        }
    }
    /// `to = from`, or with `add` `to += from`. At least one of both is contiguous, and both are of one shape.
    ///
    /// # Safety
    /// Both must be valid on `stream`, and `to` must not be read or written by anyone else.
    pub(super) unsafe fn put(&self, from: &Whole, to: &Whole, add: bool, stream: StreamRef) -> Result<()> {
        let [mut a, mut b] = [from.rows(), to.rows()];
        // One long row is as many as the other has.
        if a[0] == 1 {
            a = [b[0], b[1], b[1]];
        } else if b[0] == 1 {
            b = [a[0], a[1], a[1]];
        }
        let [rows, length, from_stride] = a;
        if rows * length == 0 {
            return Ok(());
        }
        match self {
            // SAFETY: the caller's.
            Self::Cuda(adder) => unsafe {
                adder.put([from.address, to.address], [rows, length, from_stride, b[2]], add, stream)
            },
            Self::Cpu => {
                let source = from.address as usize as *const f32;
                // SAFETY: the caller's: from the first element of the first row to the last of the last.
                let (source, target) = unsafe {
                    let target = to.address as usize as *mut f32;
                    (
                        std::slice::from_raw_parts(source, (rows - 1) * from_stride + length),
                        Shared::new(std::slice::from_raw_parts_mut(target, (rows - 1) * b[2] + length)),
                    )
                };
                const RUN: usize = 1 << 14;
                let runs = length.div_ceil(RUN);
                pool::for_each(rows * runs, |task| {
                    let (row, first) = (task / runs, task % runs * RUN);
                    let count = RUN.min(length - first);
                    // SAFETY: this run of this row belongs to this task alone.
                    let to = unsafe { target.part(row * b[2] + first, count) };
                    let from = &source[row * from_stride + first..][..count];
                    if add {
                        to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
                    } else {
                        to.copy_from_slice(from);
                    }
                });
                Ok(())
            }
        }
    }
    /// What `put` launches.
    pub(super) fn launches(&self, elements: usize) -> Result<Vec<crate::op::LaunchReport>> {
        match self {
            Self::Cpu => Ok(Vec::new()),
            Self::Cuda(adder) => Ok(vec![adder.report(elements)?]),
        }
    }
}
