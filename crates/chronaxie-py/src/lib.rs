//! The Python face of chronaxie: thin, and all that is generic about it is driven by the registry. `python/chronaxie`
//! holds the packages; this is their module `chronaxie._native`.
//!
//! The library knows no framework. A caller hands over addresses of memory that it keeps alive, and a stream; see
//! [`plan`].

mod array;
mod caller;
mod dlpack;
mod errors;
mod kernel;
mod layers;
mod part;
#[allow(unsafe_code)]
mod plan;
mod session;
mod tools;

use pyo3::prelude::*;

/// The native part of the package `chronaxie`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::array::{Array, inspect};
    #[pymodule_export]
    use super::caller::{Caller, Framework};
    #[pymodule_export]
    use super::kernel::Kernel;
    #[pymodule_export]
    use super::layers::{Connectivity, draw_wiring, prepare};
    #[pymodule_export]
    use super::part::Part;
    #[pymodule_export]
    use super::plan::{Plan, Problem, cases, families, problem};
    #[pymodule_export]
    use super::session::{Session, analyze_spikes, checkpoint, description_notes, models, original_plasticity};
    #[pymodule_export]
    use super::tools::{
        devices, memory_info, num_threads, require_device, run, run_bench, run_check, set_num_threads,
        set_python_sites, version,
    };
}
