//! CUDA, opened at run time: devices, memory, streams, compilation with its cache, launches and graphs.
//!
//! One binary serves machines with and without a GPU. The driver and NVRTC are opened through the library's own symbol
//! tables; where one is missing or too old, an error says what was looked for, where, and how to install it.
//!
//! From the bottom: `sys` (types and tables), `driver`, `device`, `stream`, `memory`, `copy`, `carrier` and `cufile` (files), `graph`, `nccl`, `cusolver`; `search` and
//! `nvrtc` (the compiler), `compile` (what is compiled), `store` and `pack` (files), `cache`, `module`, `launch`, `bundle`, `user`.
//!
//! | variable | what it does |
//! |---|---|
//! | `CHRONAXIE_NVRTC` | the NVRTC to use: a file, or a folder that holds one |
//! | `CHRONAXIE_NCCL` | the NCCL to use, where parts of a network exchange spikes by it: a file, or a folder that holds one |
//! | `CHRONAXIE_CUSOLVER` | `0`: eigenvectors are never found by cuSOLVER; the cuSOLVER to use: a file, or a folder that holds one |
//! | `CHRONAXIE_CUFILE` | `0`: files are never read by cuFile; `1`: also where its kernel driver is not seen; the cuFile to use: a file, or a folder that holds one |
//! | `CHRONAXIE_CACHE_DIR` | where compiled kernels are kept; empty for nowhere |
//! | `CHRONAXIE_CACHE_MB` | how much is kept there (512) |
//! | `CHRONAXIE_PACK` | a cubin pack to take kernels from |
//! | `CHRONAXIE_SYNC=1` | waits after each launch, and names the kernel that failed |
//! | `CHRONAXIE_GRAPHS=0` | launches go to their stream one by one, also where a call repeats an earlier one |
//! | `CHRONAXIE_DEBUG_KERNELS=1` | kernels with device asserts |

#![allow(unsafe_code)]

mod bundle;
pub mod cache;
mod carrier;
mod compile;
mod copy;
#[cfg(target_os = "linux")]
mod cufile;
mod cusolver;
mod device;
mod driver;
mod graph;
mod launch;
mod memory;
mod module;
mod nccl;
pub mod nvml;
mod nvrtc;
mod pack;
mod resources;
mod search;
mod store;
mod stream;
#[allow(missing_docs)]
mod sys;
mod tensor_map;
mod user;

#[cfg(test)]
mod tests;

pub use bundle::Bundle;
pub use cache::{Cache, CacheCounts, Key};
pub use carrier::{Carried, Carrier};
pub use compile::{
    Archs, COMPARED_ARCHS, CompileOptions, Constant, Header, KernelSource, Specialisation, emitted_source, parse_arch,
    set_debug_kernels,
};
pub use copy::{
    copy_device, copy_to_device, copy_to_device_async, copy_to_host, copy_to_host_async, download, fill_bytes, upload,
    upload_on,
};
pub use cusolver::Cusolver;
pub use device::{CaptureGuard, ContextGuard, CudaDevice, DeviceAttributes, MemoryInfo};
pub use driver::Driver;
pub use graph::Graph;
pub use launch::{Arg, LaunchConfig, MAX_ARGS};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Kernel, cubin};
pub use nccl::{Communicator, NCCL_ID_BYTES, Nccl, NcclId};
pub use nvrtc::{Cubin, Nvrtc, nvrtc, nvrtc_for, set_nvrtc_path, set_python_sites};
pub use pack::{Pack, load_pack, write_pack};
pub use resources::EntryResources;
pub use stream::{Event, Stream, StreamRef};
pub use tensor_map::{Boxes, TensorMap};
pub use user::UserKernel;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also where a thread panicked with the lock: what it guards here is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
