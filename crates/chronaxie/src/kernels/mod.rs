//! What kernels share: headers that NVRTC takes from memory.

/// Every header by the name that `#include` uses.
pub const HEADERS: &[(&str, &str)] = &[
    ("barriers.cuh", include_str!("barriers.cuh")),
    ("defaults.cuh", include_str!("defaults.cuh")),
    ("scan.cuh", include_str!("scan.cuh")),
];
