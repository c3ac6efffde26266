//! The structs of `number.cuh` as they lie in memory.

use super::super::packing::Packing;
use crate::Dtype;
use crate::View;
use chronaxie_runtime::cuda::{Constant, Header};

/// An `Array`: an address and four strides; none is all zeros.
pub(in super::super) fn array(v: Option<&View<'_>>) -> [u8; 40] {
    let mut bytes = [0; 40];
    if let Some(v) = v {
        bytes[..8].copy_from_slice(&v.address().to_ne_bytes());
        for (to, &stride) in bytes[8..].chunks_exact_mut(8).zip(v.strides()) {
            to.copy_from_slice(&(stride as i64).to_ne_bytes());
        }
    }
    bytes
}

/// `Marks`, from the packing's tensor where it has one.
pub(in super::super) fn marks(packing: Packing, tensor: Option<&View<'_>>, batch: usize, steps: usize) -> [u8; 32] {
    let address = tensor.map_or(0, View::address);
    let words = match packing {
        Packing::Whole => [0, 0],
        Packing::Reset => [address, 0],
        Packing::Sequences(_) => [0, address],
    };
    let words = [words[0], words[1], packing.states(batch) as u64, steps as u64];
    let mut bytes = [0; 32];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    bytes
}

/// `kStored`.
pub(super) fn stored(dtype: Dtype) -> (&'static str, Constant) {
    let number = match dtype {
        Dtype::Bf16 => 1,
        Dtype::F16 => 2,
        _ => 0,
    };
    ("kStored", Constant::Int(number))
}

/// `kStored` and `kComplex`.
pub(in super::super) fn constants(dtype: Dtype, complex: bool) -> Vec<(&'static str, Constant)> {
    vec![stored(dtype), ("kComplex", Constant::Bool(complex))]
}

/// Elements of the storage types, which takes `kernels::HALF` too.
pub(in super::super) const STORED: Header = ("stored.cuh", include_str!("stored.cuh"));
/// What the kernels include that keep runs of steps in registers, with `STORED`.
pub(in super::super) const RUNS: Header = ("runs.cuh", include_str!("runs.cuh"));

/// How well views suit the kernels that want contiguous time: not at all (`None`), or whether vectors of 16 bytes may be
/// used.
pub(in super::super) fn suits<'a>(views: impl IntoIterator<Item = &'a View<'a>>) -> Option<bool> {
    let mut aligned = true;
    for v in views {
        let (shape, strides) = (v.shape(), v.strides());
        let last = strides.len() - 1;
        if shape[last] > 1 && strides[last] != 1 {
            return None;
        }
        let vector = 16 / v.dtype().size() as isize;
        aligned &= v.address() % 16 == 0;
        aligned &= (0..last).all(|i| shape[i] <= 1 || strides[i] % vector == 0);
    }
    Some(aligned)
}
