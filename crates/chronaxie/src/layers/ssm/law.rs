//! What the laws of this folder share: tensors of f64 by name, to and from the numbers that a law runs on.

use super::complex::Field;
use crate::op::{TensorSpec, Tensors, Values};
use crate::{Dtype, Error, Result, Shape};

/// Numbers that an element takes.
pub(super) fn width(dtype: Dtype) -> usize {
    if dtype == Dtype::C64 { 2 } else { 1 }
}

/// The shape of a tensor's values: complex ones have an axis more, of real and imaginary part.
pub(super) fn shape(spec: &TensorSpec) -> Shape {
    let mut dims = spec.shape.to_vec();
    if spec.dtype == Dtype::C64 {
        dims.push(2);
    }
    Shape::new(&dims)
}

/// The elements of an input.
pub(super) fn take<F: Field>(entry: &str, inputs: &Tensors, spec: &TensorSpec) -> Result<Vec<F>> {
    let v = inputs.get(&spec.name)?;
    if v.shape != shape(spec) {
        return Err(Error::shape(format!(
            "{entry}: {}.shape = {} does not match {} = {}",
            spec.name,
            v.shape,
            spec.axes,
            shape(spec)
        )));
    }
    Ok(v.data.chunks_exact(F::WIDTH).map(F::from_parts).collect())
}

/// A result by name.
pub(super) fn give<F: Field>(spec: TensorSpec, data: &[F]) -> Result<(String, Values)> {
    let mut parts = Vec::with_capacity(data.len() * F::WIDTH);
    data.iter().for_each(|x| x.push_parts(&mut parts));
    Ok((spec.name.to_string(), Values::new(shape(&spec), parts)?))
}
