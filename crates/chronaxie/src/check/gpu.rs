//! The GPU that tests run on.

use crate::cuda::CudaDevice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A GPU for one test at a time: waiting for a whole device is not legal while another thread captures on it.
pub(crate) struct Gpu {
    pub(crate) device: Arc<CudaDevice>,
    _turn: MutexGuard<'static, ()>,
}

/// The first GPU; where there is none says so, which with `CHRONAXIE_REQUIRE_GPU=1` is a failure.
pub(crate) fn gpu() -> Option<Gpu> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::open(0) {
        Ok(device) => Some(Gpu { device, _turn: turn }),
        Err(e) if std::env::var_os("CHRONAXIE_REQUIRE_GPU").is_some_and(|v| v == "1") => panic!("{e}"),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}
