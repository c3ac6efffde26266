//! The kernels that fold ahead of a pass and close behind it, for all that hold synapses.

use super::{CLOSE, FOLD, HELD_HEADERS};
use crate::Result;
use crate::cuda::{Constant, CudaDevice, Kernel, Specialisation};
use std::sync::Arc;

/// The kernel that folds for all of them.
pub(super) fn fold_kernel(device: &Arc<CudaDevice>, fast: bool) -> Result<Kernel> {
    device.kernel(&fold_specialisation(fast), "ltc_fold_held")
}

/// A kernel of close.cu.
pub(super) fn close_kernel(device: &Arc<CudaDevice>, entry: &str, fast: bool) -> Result<Kernel> {
    device.kernel(&close_specialisation(fast), entry)
}

pub(super) fn fold_specialisation(fast: bool) -> Specialisation {
    Specialisation {
        headers: HELD_HEADERS,
        constants: vec![("kFast", Constant::Bool(fast))],
        ..Specialisation::new(FOLD.clone(), &["ltc_fold_held"])
    }
}

pub(super) const CLOSE_ENTRIES: &[&str] = &["ltc_add_neurons", "ltc_close", "ltc_close_elapsed", "ltc_unpack"];

pub(super) fn close_specialisation(fast: bool) -> Specialisation {
    Specialisation {
        headers: HELD_HEADERS,
        constants: vec![("kFast", Constant::Bool(fast))],
        ..Specialisation::new(CLOSE.clone(), CLOSE_ENTRIES)
    }
}
