//! Tensors that own their memory.

use super::codec;
use super::memory::Memory;
use crate::op::Values;
use crate::{Device, Dtype, Error, MAX_RANK, Place, Result, Shape, View, ViewMut};

/// How the elements of a [`Tensor`] lie in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Arrangement {
    /// Row-major without gaps, from a 256-byte boundary.
    #[default]
    Contiguous,
    /// Row-major with three elements of padding behind each row, and not at a 256-byte boundary: one element into it.
    Padded,
    /// Axes in reverse order (column-major), one element into the memory.
    Transposed,
}

/// A tensor that owns its memory on the host or on a device.
#[derive(Debug)]
pub struct Tensor {
    memory: Memory,
    dtype: Dtype,
    shape: Shape,
    strides: [isize; MAX_RANK],
    /// Bytes before element (0, ..., 0).
    offset: usize,
}

/// Where the parts of a tensor lie: offset and size in bytes, strides in elements.
struct Frame {
    offset: usize,
    bytes: usize,
    strides: [isize; MAX_RANK],
}

fn frame(dtype: Dtype, shape: &Shape, arrangement: Arrangement, guard: usize) -> Result<Frame> {
    let too_large =
        || Error::shape(format!("a {dtype} tensor of shape {shape} has more bytes than a 64-bit count can hold"));
    let elements = shape.checked_elements()?;
    let rank = shape.len();
    let mut strides = shape.contiguous_strides();
    let (lead, reach) = match arrangement {
        Arrangement::Contiguous => (0, elements),
        Arrangement::Padded => {
            // Behind each row, so every axis but the last steps over padding.
            let mut n = 1usize;
            for axis in (0..rank).rev() {
                strides[axis] = isize::try_from(n).map_err(|_| too_large())?;
                let row = if axis + 1 == rank { shape[axis].checked_add(3) } else { Some(shape[axis].max(1)) };
                n = row.and_then(|r| n.checked_mul(r)).ok_or_else(too_large)?;
            }
            (1, n)
        }
        Arrangement::Transposed => {
            let mut n = 1usize;
            for axis in 0..rank {
                strides[axis] = isize::try_from(n).map_err(|_| too_large())?;
                n = n.checked_mul(shape[axis].max(1)).ok_or_else(too_large)?;
            }
            (1, n)
        }
    };
    let bytes = reach
        .checked_add(lead)
        .and_then(|n| n.checked_mul(dtype.size())?.checked_add(2 * guard))
        .filter(|&b| isize::try_from(b).is_ok())
        .ok_or_else(too_large)?;
    Ok(Frame { offset: guard + lead * dtype.size(), bytes, strides })
}

impl Tensor {
    /// A contiguous tensor; zeros on the host, unspecified elements on a GPU.
    ///
    /// # Errors
    /// Sizes beyond 64 bits, or memory that the device does not have.
    pub fn new(dtype: Dtype, shape: impl Into<Shape>, device: &Device) -> Result<Self> {
        Self::arranged(dtype, shape, device, Arrangement::Contiguous, 0)
    }
    /// As [`new`](Self::new), arranged, with `guard` bytes (a multiple of 256) left free before and behind it.
    pub(crate) fn arranged(
        dtype: Dtype,
        shape: impl Into<Shape>,
        device: &Device,
        arrangement: Arrangement,
        guard: usize,
    ) -> Result<Self> {
        let shape = shape.into();
        let Frame { offset, bytes, strides } = frame(dtype, &shape, arrangement, guard)?;
        Ok(Self { memory: Memory::new(device, bytes)?, dtype, shape, strides, offset })
    }
    /// A contiguous tensor of `values` rounded to `dtype`.
    ///
    /// A tensor of complex numbers (`c64`) is made of values whose last axis, of size 2, is real and imaginary part; it
    /// has one axis less than they.
    ///
    /// # Errors
    /// As [`new`](Self::new), and values that an integer type cannot hold.
    pub fn from_values(values: &Values, dtype: Dtype, device: &Device) -> Result<Self> {
        Self::from_values_arranged(values, dtype, device, Arrangement::Contiguous, 0)
    }
    /// As [`from_values`](Self::from_values), arranged.
    pub(crate) fn from_values_arranged(
        values: &Values,
        dtype: Dtype,
        device: &Device,
        arrangement: Arrangement,
        guard: usize,
    ) -> Result<Self> {
        let mut t = Self::arranged(dtype, element_shape(values, dtype)?, device, arrangement, guard)?;
        t.set_values(values)?;
        Ok(t)
    }
    /// Overwrites the elements with `values` of the same shape, rounded.
    ///
    /// # Errors
    /// Another shape, or values that an integer type cannot hold.
    pub fn set_values(&mut self, values: &Values) -> Result<()> {
        let shape = element_shape(values, self.dtype)?;
        if shape != self.shape {
            return Err(Error::shape(format!("values of shape {shape} cannot fill a tensor of shape {}", self.shape)));
        }
        let size = self.dtype.size();
        let rounded = values.clone().rounded(self.dtype);
        let mut packed = vec![0u8; self.shape.elements() * size];
        codec::encode(&rounded.data, self.dtype, &mut packed)?;
        if packed.len() == self.memory.bytes() {
            return self.memory.write(&packed);
        }
        // What lies around the elements stays as it is.
        let mut all = self.memory.read()?;
        let mut source = packed.chunks_exact(size);
        self.for_each_offset(|at| all[at..at + size].copy_from_slice(source.next().expect("one chunk an element")));
        self.memory.write(&all)
    }
    /// Fills a contiguous tensor with the elements of `values`, again and again: inputs too large to be drawn one by one.
    pub(crate) fn set_cyclic(&mut self, values: &Values) -> Result<()> {
        let mut packed = vec![0u8; values.data.len() / codec::values_per_element(self.dtype) * self.dtype.size()];
        codec::encode(&values.clone().rounded(self.dtype).data, self.dtype, &mut packed)?;
        self.memory.fill(&packed)
    }
    /// Fills `count` elements of a contiguous tensor from element `first` on with those of `values`, again and again.
    pub(crate) fn set_repeated(&mut self, first: usize, count: usize, values: &Values) -> Result<()> {
        let size = self.dtype.size();
        let mut packed = vec![0u8; values.data.len() / codec::values_per_element(self.dtype) * size];
        codec::encode(&values.clone().rounded(self.dtype).data, self.dtype, &mut packed)?;
        self.memory.fill_part(first.saturating_mul(size), count.saturating_mul(size), &packed)
    }
    /// The elements as f64.
    pub fn to_values(&self) -> Result<Values> {
        let data = codec::decode(&self.to_bytes()?, self.dtype)?;
        let mut dims = self.shape.to_vec();
        if codec::values_per_element(self.dtype) == 2 {
            dims.push(2);
        }
        Values::new(&dims[..], data)
    }
    /// The elements' bytes in row-major order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let size = self.dtype.size();
        let all = self.memory.read()?;
        if self.is_packed() {
            return Ok(all[self.offset..self.offset + self.shape.elements() * size].to_vec());
        }
        let mut packed = Vec::with_capacity(self.shape.elements() * size);
        self.for_each_offset(|at| packed.extend_from_slice(&all[at..at + size]));
        Ok(packed)
    }
    /// The whole block, with what lies around and between the elements.
    pub(crate) fn raw(&self) -> Result<Vec<u8>> {
        self.memory.read()
    }
    /// Overwrites the whole block.
    pub(crate) fn set_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory.write(bytes)
    }
    /// Where the contiguous elements lie in the block, in bytes.
    pub(crate) fn packed_range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.shape.elements() * self.dtype.size()
    }
    fn is_packed(&self) -> bool {
        self.strides[..self.shape.len()] == self.shape.contiguous_strides()[..self.shape.len()]
    }
    /// Calls `f` with the byte offset of every element in row-major order.
    fn for_each_offset(&self, mut f: impl FnMut(usize)) {
        let (rank, size) = (self.shape.len(), self.dtype.size());
        let mut index = [0usize; MAX_RANK];
        for _ in 0..self.shape.elements() {
            let element: usize = (0..rank).map(|a| index[a] * self.strides[a] as usize).sum();
            f(self.offset + element * size);
            for axis in (0..rank).rev() {
                index[axis] += 1;
                if index[axis] < self.shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
    }
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
    /// Where the memory lies.
    pub fn place(&self) -> Place {
        self.memory.view().place()
    }
    /// Bytes of memory it holds.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
    /// The tensor to read.
    pub fn view(&self) -> View<'_> {
        self.memory
            .view()
            .typed(self.offset, self.dtype, self.shape, &self.strides[..self.shape.len()])
            .expect("a tensor's frame was made for its memory")
    }
    /// The tensor to write; it must be contiguous, as every tensor is that this crate hands out.
    ///
    /// # Errors
    /// A tensor with other strides.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        if !self.is_packed() {
            return Err(Error::shape(format!(
                "a tensor of shape {} with strides {:?} cannot be written to: it is not contiguous",
                self.shape,
                &self.strides[..self.shape.len()]
            )));
        }
        self.memory.view_mut().typed(self.offset, self.dtype, self.shape)
    }
}

/// The shape of a tensor of `dtype` that holds `values`.
fn element_shape(values: &Values, dtype: Dtype) -> Result<Shape> {
    if codec::values_per_element(dtype) == 1 {
        return Ok(values.shape);
    }
    match values.shape.split_last() {
        Some((2, rest)) => Ok(rest.into()),
        _ => Err(Error::shape(format!(
            "values of shape {} cannot be {dtype}: the last axis must be 2, real and imaginary",
            values.shape
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_in_every_arrangement() {
        let mut k = 0.0;
        let v = Values::from_fn([2, 3, 4], || {
            k += 1.0;
            k
        });
        for a in [Arrangement::Contiguous, Arrangement::Padded, Arrangement::Transposed] {
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::U8] {
                let t = Tensor::from_values_arranged(&v, dtype, &Device::Cpu, a, 256).unwrap();
                assert_eq!(t.to_values().unwrap(), v, "{a:?} {dtype}");
                assert_eq!(t.view().is_contiguous(), a == Arrangement::Contiguous);
            }
        }
        let t = Tensor::from_values_arranged(&v, Dtype::F32, &Device::Cpu, Arrangement::Padded, 0).unwrap();
        assert_eq!(t.view().strides(), &[21, 7, 1]);
        assert_eq!(t.view().address() % 256, 4);
    }

    #[test]
    fn complex_elements_are_pairs() {
        let v = Values::new([2, 2], vec![1.0, -1.0, 0.5, 2.0]).unwrap();
        let t = Tensor::from_values(&v, Dtype::C64, &Device::Cpu).unwrap();
        assert_eq!((t.shape(), t.bytes()), (&Shape::from([2]), 16));
        assert_eq!(t.to_values().unwrap(), v);
        let e = Tensor::from_values(&Values::zeros([3]), Dtype::C64, &Device::Cpu).unwrap_err();
        assert!(e.to_string().contains("(3,) cannot be c64"), "{e}");
    }

    #[test]
    fn empty_tensors_and_scalars_are_tensors() {
        for a in [Arrangement::Contiguous, Arrangement::Padded, Arrangement::Transposed] {
            let t = Tensor::from_values_arranged(&Values::zeros([0, 3]), Dtype::F32, &Device::Cpu, a, 0).unwrap();
            assert_eq!(t.to_values().unwrap().data.len(), 0);
            assert_eq!(t.view().shape().elements(), 0);
        }
        let s = Values::new(Shape::new(&[]), vec![2.5]).unwrap();
        assert_eq!(Tensor::from_values(&s, Dtype::F32, &Device::Cpu).unwrap().to_values().unwrap(), s);
        assert!(Tensor::new(Dtype::F32, [usize::MAX / 8, 4], &Device::Cpu).is_err());
    }
}
