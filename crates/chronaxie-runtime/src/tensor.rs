//! Element types, shapes and views. A view is a pointer with a shape, strides and a place; it owns nothing.

use crate::error::{Error, Result};
use std::fmt;
use std::marker::PhantomData;

/// The largest number of axes of a tensor.
pub const MAX_RANK: usize = 6;

/// The element type of a tensor as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned byte.
    U8,
    /// Two f32: real, imaginary.
    C64,
}

impl Dtype {
    /// Bytes an element takes.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::C64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 => 1,
        }
    }
    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        use Dtype::{Bf16, C64, F16, F32, F64, I32, I64, U8};
        [F64, F32, Bf16, F16, I64, I32, U8, C64].into_iter().find(|d| d.name() == name)
    }
    /// The name as users write it: `f32`, `bf16`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U8 => "u8",
            Self::C64 => "c64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of some [`Dtype`].
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its element type.
    const DTYPE: Dtype;
}
macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl sealed::Sealed for $t {} impl Element for $t { const DTYPE: Dtype = Dtype::$d; })* };
}
element!(f64 => F64, f32 => F32, i64 => I64, i32 => I32, u8 => U8);

/// Up to [`MAX_RANK`] sizes, without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// A shape of `dims`.
    ///
    /// # Panics
    /// If there are more than [`MAX_RANK`] axes: a mistake of the caller's code, not of its data.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= MAX_RANK, "a shape of {} axes: at most {MAX_RANK} are supported", dims.len());
        let mut s = Self { rank: dims.len() as u8, dims: [0; MAX_RANK] };
        s.dims[..dims.len()].copy_from_slice(dims);
        s
    }
    /// The number of elements (1 for rank 0), or an error when it does not fit 64 bits.
    pub fn checked_elements(&self) -> Result<usize> {
        self.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(|| {
            Error::shape(format!("a tensor of shape {self} has more elements than a 64-bit count can hold"))
        })
    }
    /// The number of elements (1 for rank 0).
    pub fn elements(&self) -> usize {
        self.iter().product()
    }
    /// Row-major strides in elements.
    pub fn contiguous_strides(&self) -> [isize; MAX_RANK] {
        let mut strides = [0isize; MAX_RANK];
        let mut n = 1isize;
        for axis in (0..self.rank as usize).rev() {
            strides[axis] = n;
            n = n.wrapping_mul(self.dims[axis].max(1) as isize);
        }
        strides
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, d) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        if self.len() == 1 {
            f.write_str(",")?;
        }
        f.write_str(")")
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Host memory.
    Cpu,
    /// Memory of the CUDA device with this index.
    Cuda(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(i) => write!(f, "cuda:{i}"),
        }
    }
}

/// The lowest and the highest element offset that an index can reach.
fn reach(shape: &Shape, strides: &[isize]) -> (isize, isize) {
    shape.iter().zip(strides).fold((0, 0), |(lo, hi), (&d, &s)| {
        let far = (d.max(1) as isize - 1) * s;
        (lo + far.min(0), hi + far.max(0))
    })
}

/// Fields shared by [`View`] and [`ViewMut`].
macro_rules! view_accessors {
    () => {
        /// The address of element (0, ..., 0).
        pub fn address(&self) -> u64 {
            self.ptr as u64
        }
        /// The element type.
        pub fn dtype(&self) -> Dtype {
            self.dtype
        }
        /// The sizes.
        pub fn shape(&self) -> &Shape {
            &self.shape
        }
        /// The strides, in elements, one an axis.
        pub fn strides(&self) -> &[isize] {
            &self.strides[..self.shape.len()]
        }
        /// Where the memory lies.
        pub fn place(&self) -> Place {
            self.place
        }
        /// Whether the elements lie in row-major order without gaps (axes of size 1 may have any stride).
        pub fn is_contiguous(&self) -> bool {
            let want = self.shape.contiguous_strides();
            self.shape.elements() == 0
                || self.shape.iter().enumerate().all(|(i, &d)| d == 1 || self.strides[i] == want[i])
        }
        /// The last element's stride is 1 (or the axis has at most one element).
        pub fn is_row_contiguous(&self) -> bool {
            match self.shape.len() {
                0 => true,
                n => self.shape[n - 1] <= 1 || self.strides[n - 1] == 1,
            }
        }
        /// The bytes from the lowest to behind the highest element that the view reaches, relative to its address.
        pub fn byte_span(&self) -> (isize, isize) {
            if self.shape.elements() == 0 {
                return (0, 0);
            }
            let size = self.dtype.size() as isize;
            let (lo, hi) = reach(&self.shape, self.strides());
            (lo * size, (hi + 1) * size)
        }
        fn host_slice_check(&self, dtype: Dtype, what: &str) -> Result<usize> {
            if self.dtype != dtype {
                return Err(Error::dtype(format!("{what}: the tensor holds {}, not {dtype}", self.dtype)));
            }
            if self.place != Place::Cpu {
                return Err(Error::device(format!("{what}: the tensor lies on {}, not in host memory", self.place)));
            }
            if !self.is_contiguous() {
                return Err(Error::shape(format!(
                    "{what}: a tensor of shape {} with strides {:?} is not contiguous",
                    self.shape,
                    self.strides()
                )));
            }
            Ok(self.shape.elements())
        }
    };
}

/// A read-only tensor somewhere in memory. Copying a view copies no elements.
#[derive(Clone, Copy)]
pub struct View<'a> {
    ptr: *const u8,
    dtype: Dtype,
    shape: Shape,
    strides: [isize; MAX_RANK],
    place: Place,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: a View gives shared, read-only access to memory that outlives it, as `&[T]` does.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// A view of foreign memory.
    ///
    /// # Safety
    /// For the whole of `'a`, every element that `shape` and `strides` (in elements) reach from `ptr` must be
    /// initialised memory of `place`, aligned for `dtype`, and not written by anyone but through the stream on
    /// which the view is used.
    pub unsafe fn from_raw(ptr: *const u8, dtype: Dtype, shape: Shape, strides: &[isize], place: Place) -> Self {
        let mut s = [0; MAX_RANK];
        s[..shape.len()].copy_from_slice(&strides[..shape.len()]);
        Self { ptr, dtype, shape, strides: s, place, lifetime: PhantomData }
    }
    /// A contiguous host slice seen as a tensor of `shape`.
    pub fn from_slice<T: Element>(data: &'a [T], shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.checked_elements()? != data.len() {
            return Err(Error::shape(format!("{} elements cannot be seen as a tensor of shape {shape}", data.len())));
        }
        let strides = shape.contiguous_strides();
        Ok(Self {
            ptr: data.as_ptr().cast(),
            dtype: T::DTYPE,
            shape,
            strides,
            place: Place::Cpu,
            lifetime: PhantomData,
        })
    }
    view_accessors!();
    /// The elements of a contiguous host tensor.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        let n = self.host_slice_check(T::DTYPE, "as_slice")?;
        if n == 0 {
            return Ok(&[]);
        }
        // SAFETY: the constructor guarantees initialised, aligned elements for 'a; they are contiguous host f32 as checked.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast(), n) })
    }
    /// The element type's host pointer, for strided loops in a CPU backend.
    pub fn as_ptr<T: Element>(&self) -> Result<*const T> {
        if self.dtype != T::DTYPE || self.place != Place::Cpu {
            return Err(Error::dtype(format!(
                "a {} tensor on {} was used as host {}",
                self.dtype,
                self.place,
                T::DTYPE
            )));
        }
        Ok(self.ptr.cast())
    }
    /// The same memory with other sizes and strides (in elements), which must reach no element outside this view.
    pub fn restride(&self, shape: impl Into<Shape>, strides: &[isize]) -> Result<View<'a>> {
        let shape = shape.into();
        let (lo, hi) = reach(&self.shape, self.strides());
        let (l, h) = reach(&shape, strides);
        if strides.len() != shape.len() || (shape.elements() > 0 && (self.shape.elements() == 0 || l < lo || h > hi)) {
            return Err(Error::shape(format!(
                "shape {shape} with strides {strides:?} reaches outside a tensor of shape {}",
                self.shape
            )));
        }
        // SAFETY: every element reached lies within the memory of self, which lives for 'a.
        Ok(unsafe { Self::from_raw(self.ptr, self.dtype, shape, strides, self.place) })
    }
    /// Part of a contiguous block of bytes seen as a tensor that starts `offset` bytes into it.
    ///
    /// # Errors
    /// A block of other elements than bytes, a misaligned start, or strides that reach outside the block.
    pub fn typed(&self, offset: usize, dtype: Dtype, shape: impl Into<Shape>, strides: &[isize]) -> Result<View<'a>> {
        let shape = shape.into();
        typed_check(self, offset, dtype, &shape, strides)?;
        // SAFETY: every element reached lies within the bytes of self, which live for 'a; any bits are a valid element.
        Ok(unsafe { Self::from_raw(self.ptr.add(offset), dtype, shape, strides, self.place) })
    }
}

/// Whether a tensor at `offset` in a block of bytes stays inside it.
fn typed_check(block: &View<'_>, offset: usize, dtype: Dtype, shape: &Shape, strides: &[isize]) -> Result<()> {
    let bytes = block.shape.elements();
    if block.dtype != Dtype::U8 || !block.is_contiguous() || strides.len() != shape.len() {
        return Err(Error::dtype(format!(
            "a tensor of shape {shape} and strides {strides:?} can be made of contiguous bytes only, not of {} elements",
            block.dtype
        )));
    }
    let outside = || {
        Error::shape(format!(
            "a {dtype} tensor of shape {shape} and strides {strides:?} at byte {offset} reaches outside a block of \
             {bytes} bytes"
        ))
    };
    if shape.checked_elements()? == 0 {
        return if offset <= bytes { Ok(()) } else { Err(outside()) };
    }
    if !block.address().wrapping_add(offset as u64).is_multiple_of(dtype.size() as u64) {
        return Err(Error::shape(format!("byte {offset} of a block is not aligned for {dtype}")));
    }
    let (mut low, mut high) = (0i128, 0i128);
    for (&d, &s) in shape.iter().zip(strides) {
        let far = (d as i128 - 1).saturating_mul(s as i128);
        low = low.saturating_add(far.min(0));
        high = high.saturating_add(far.max(0));
    }
    let size = dtype.size() as i128;
    let start = offset as i128;
    let end = high.saturating_add(1).saturating_mul(size).saturating_add(start);
    if low.saturating_mul(size).saturating_add(start) < 0 || end > bytes as i128 {
        return Err(outside());
    }
    Ok(())
}

/// A writable tensor somewhere in memory.
pub struct ViewMut<'a> {
    ptr: *mut u8,
    dtype: Dtype,
    shape: Shape,
    strides: [isize; MAX_RANK],
    place: Place,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: a ViewMut gives exclusive access to memory that outlives it, as `&mut [T]` does.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: through a shared reference only addresses can be read.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// A writable view of foreign memory.
    ///
    /// # Safety
    /// As [`View::from_raw`], and nobody else may read or write the elements during `'a` but through the stream on
    /// which the view is used; no two indices may reach the same element.
    pub unsafe fn from_raw(ptr: *mut u8, dtype: Dtype, shape: Shape, strides: &[isize], place: Place) -> Self {
        let mut s = [0; MAX_RANK];
        s[..shape.len()].copy_from_slice(&strides[..shape.len()]);
        Self { ptr, dtype, shape, strides: s, place, lifetime: PhantomData }
    }
    /// A contiguous host slice seen as a writable tensor of `shape`.
    pub fn from_slice<T: Element>(data: &'a mut [T], shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.checked_elements()? != data.len() {
            return Err(Error::shape(format!("{} elements cannot be seen as a tensor of shape {shape}", data.len())));
        }
        let strides = shape.contiguous_strides();
        Ok(Self {
            ptr: data.as_mut_ptr().cast(),
            dtype: T::DTYPE,
            shape,
            strides,
            place: Place::Cpu,
            lifetime: PhantomData,
        })
    }
    view_accessors!();
    /// The elements of a contiguous host tensor, to write.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let n = self.host_slice_check(T::DTYPE, "as_mut_slice")?;
        if n == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the constructor guarantees exclusive, aligned elements; they are contiguous host memory as checked.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), n) })
    }
    /// The element type's host pointer, for loops in a CPU backend that write disjoint parts from several threads.
    pub fn as_mut_ptr<T: Element>(&mut self) -> Result<*mut T> {
        if self.dtype != T::DTYPE || self.place != Place::Cpu {
            return Err(Error::dtype(format!(
                "a {} tensor on {} was used as host {}",
                self.dtype,
                self.place,
                T::DTYPE
            )));
        }
        Ok(self.ptr.cast())
    }
    /// The same memory, read-only, while this view is not written.
    pub fn as_view(&self) -> View<'_> {
        // SAFETY: the borrow of self keeps the exclusive access from being used meanwhile.
        unsafe { View::from_raw(self.ptr, self.dtype, self.shape, self.strides(), self.place) }
    }
    /// Part of a contiguous block of bytes seen as a contiguous tensor that starts `offset` bytes into it.
    ///
    /// # Errors
    /// As [`View::typed`].
    pub fn typed(self, offset: usize, dtype: Dtype, shape: impl Into<Shape>) -> Result<ViewMut<'a>> {
        let shape = shape.into();
        let strides = shape.contiguous_strides();
        typed_check(&self.as_view(), offset, dtype, &shape, &strides[..shape.len()])?;
        // SAFETY: every element lies within the bytes of self, whose exclusive access passes on to the result.
        Ok(unsafe { ViewMut::from_raw(self.ptr.add(offset), dtype, shape, &strides, self.place) })
    }
    /// A contiguous block of bytes as two: what lies before byte `at`, and the rest.
    ///
    /// # Errors
    /// A block of other elements than bytes, or one that is shorter.
    pub fn split_bytes(self, at: usize) -> Result<(ViewMut<'a>, ViewMut<'a>)> {
        let bytes = self.shape.elements();
        typed_check(&self.as_view(), 0, Dtype::U8, &Shape::from([at]), &[1])?;
        let part = |from: usize, len: usize| {
            // SAFETY: the parts lie within self, whose exclusive access they share out without overlap.
            unsafe { ViewMut::from_raw(self.ptr.add(from), Dtype::U8, Shape::from([len]), &[1], self.place) }
        };
        Ok((part(0, at), part(at, bytes - at)))
    }
    /// A shorter exclusive borrow of the same memory.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        // SAFETY: self is mutably borrowed for the life of the result.
        unsafe { ViewMut::from_raw(self.ptr, self.dtype, self.shape, &self.strides, self.place) }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} strides {:?} on {}", self.dtype, self.shape, self.strides(), self.place)
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_view(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_print_as_users_write_them() {
        assert_eq!(Shape::from([24, 64]).to_string(), "(24, 64)");
        assert_eq!(Shape::from([3]).to_string(), "(3,)");
        assert_eq!(Shape::new(&[]).to_string(), "()");
        assert_eq!(Shape::new(&[]).elements(), 1);
        let e = Shape::from([usize::MAX, 2]).checked_elements().unwrap_err();
        assert!(e.to_string().contains("18446744073709551615"), "{e}");
    }

    #[test]
    fn slices_come_back_and_mismatches_are_refused() {
        let data = [1f32, 2., 3., 4., 5., 6.];
        let v = View::from_slice(&data, [2, 3]).unwrap();
        assert_eq!(v.as_slice::<f32>().unwrap(), &data);
        assert_eq!(v.strides(), &[3, 1]);
        assert!(View::from_slice(&data, [2, 2]).unwrap_err().to_string().contains("(2, 2)"));
        assert!(v.as_slice::<f64>().unwrap_err().to_string().contains("f32"));
        let t = v.restride([3, 2], &[1, 3]).unwrap();
        assert!(!t.is_contiguous());
        assert!(t.as_slice::<f32>().unwrap_err().to_string().contains("not contiguous"));
        assert!(v.restride([3, 3], &[3, 1]).is_err());
    }

    #[test]
    fn empty_tensors_have_slices() {
        let v = View::from_slice::<f32>(&[], [0, 3]).unwrap();
        assert!(v.is_contiguous());
        assert_eq!(v.as_slice::<f32>().unwrap().len(), 0);
    }
}
