//! x and out in 16 bits on a device: to f32 ahead of a pass, and back behind it.

use super::launch::launch;
use super::tune::THREADS;
use crate::cuda::{Arg, Constant, CudaDevice, Kernel, KernelSource, Specialisation, StreamRef};
use crate::op::LaunchReport;
use crate::{Dtype, Error, Result, View, ViewMut, kernels};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/ltc/cuda/convert.cu", include_str!("convert.cu"));
const ENTRIES: &[&str] = &["ltc_widen", "ltc_round"];
/// Elements that a thread takes before blocks are more than these.
const RUN: u64 = 4;
/// Blocks at most; beyond them threads take more elements.
const MOST_BLOCKS: u64 = 1 << 16;

fn specialisation(dtype: Dtype) -> Specialisation {
    let code = if dtype == Dtype::F16 { 1 } else { 2 };
    Specialisation {
        headers: &[kernels::HALF],
        constants: vec![("kDtype", Constant::Int(code))],
        ..Specialisation::new(SOURCE, ENTRIES)
    }
}

/// Of both types.
pub(super) fn specialisations() -> [Specialisation; 2] {
    [Dtype::F16, Dtype::Bf16].map(specialisation)
}

fn blocks(elements: usize) -> u64 {
    (elements as u64).div_ceil(RUN * u64::from(THREADS)).min(MOST_BLOCKS)
}

/// The kernels of one type.
pub(in crate::layers::ltc) struct Conversions {
    pub(in crate::layers::ltc) dtype: Dtype,
    widen: Kernel,
    round: Kernel,
}

impl Conversions {
    /// Compiles and loads them.
    pub(in crate::layers::ltc) fn new(device: &Arc<CudaDevice>, dtype: Dtype) -> Result<Self> {
        let spec = specialisation(dtype);
        let [widen, round] = [ENTRIES[0], ENTRIES[1]].map(|entry| device.kernel(&spec, entry));
        Ok(Self { dtype, widen: widen?, round: round? })
    }

    /// The elements of `from`, `[B, T, width]` of any strides, as f32 without gaps at `to`.
    pub(in crate::layers::ltc) fn widen(&self, from: &View<'_>, to: u64, stream: StreamRef) -> Result<()> {
        let count = from.shape().elements();
        let (&[_, steps, width], &[b, t, d]) = (&from.shape()[..], from.strides()) else {
            return Err(Error::shape(format!("ltc: a tensor of shape {} is not [B, T, width]", from.shape())));
        };
        let sizes = [count as i64, steps as i64, width as i64, b as i64, t as i64, d as i64].map(Arg::I64);
        let [count_arg, steps, width, b, t, d] = sizes;
        let flat = Arg::I32(i32::from(from.is_contiguous()));
        launch(
            &self.widen,
            stream,
            (blocks(count), 1),
            (THREADS, 1),
            0,
            &[Arg::U64(from.address()), Arg::U64(to), count_arg, steps, width, b, t, d, flat],
        )
    }

    /// The f32 at `from`, without gaps, rounded to the elements of `to`.
    pub(in crate::layers::ltc) fn round(&self, from: u64, to: &ViewMut<'_>, stream: StreamRef) -> Result<()> {
        let count = to.shape().elements();
        let args = [Arg::U64(from), Arg::U64(to.address()), Arg::I64(count as i64)];
        launch(&self.round, stream, (blocks(count), 1), (THREADS, 1), 0, &args)
    }

    /// What `profile` prints of tensors of these numbers of elements that are widened, or else rounded; nothing of none.
    pub(in crate::layers::ltc) fn report(&self, widened: bool, elements: &[usize]) -> Result<Option<LaunchReport>> {
        let (kernel, launches) = (if widened { &self.widen } else { &self.round }, elements.iter().filter(|&&n| n > 0));
        let grid = (launches.clone().map(|&n| blocks(n)).max().unwrap_or(0) as u32, 1, 1);
        let report = LaunchReport::new(kernel, launches.count(), grid, (THREADS, 1, 1), 0)?;
        Ok(Some(report).filter(|r| r.launches > 0))
    }
}
