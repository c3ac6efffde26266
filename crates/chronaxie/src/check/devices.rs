//! What only a GPU can get wrong: graphs, streams, a second device, and compiling too often.

use super::case::Collector;
use super::rig::{Outcome, Rig};
use crate::cuda::CudaDevice;
use crate::op::{Case, Op, Pass, Problem, Tensors};
use crate::{Error, Result};
use std::sync::Arc;

pub(super) fn streams_and_graphs(
    d: &Arc<CudaDevice>,
    _rig: &mut Rig,
    _first: &Outcome,
    _passes: &[Pass],
    _to: &mut Collector<'_>,
) -> Result<()> {
    Err(Error::unavailable(d.name()))
}
pub(super) fn second_device(
    _d: &Arc<CudaDevice>,
    _p: &dyn Problem,
    _passes: &[Pass],
    _values: &Tensors,
    _first: &Outcome,
    _to: &mut Collector<'_>,
) -> Result<()> {
    Ok(())
}
pub(super) fn compiles_once(_op: &dyn Op, _case: &Case, _d: &Arc<CudaDevice>, _to: &mut Collector<'_>) -> Result<()> {
    Ok(())
}
