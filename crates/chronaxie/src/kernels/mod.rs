//! What kernels share: headers that NVRTC takes from memory, as (name in `#include`, text). `defaults.cuh` is for editors.

pub use chronaxie_runtime::cuda::Header;

/// Barriers in shared memory, and bulk copies.
pub const BARRIERS: Header = ("barriers.cuh", include_str!("barriers.cuh"));
/// Clusters: ranks, barriers, stores to other blocks.
pub const CLUSTER: Header = ("cluster.cuh", include_str!("cluster.cuh"));
/// Products of f32 on Hopper's tensor cores.
pub const F16X3: Header = ("f16x3.cuh", include_str!("f16x3.cuh"));
/// Numbers stored in 16 bits.
pub const HALF: Header = ("half.cuh", include_str!("half.cuh"));
/// Blocks that wait for each other.
pub const MEET: Header = ("meet.cuh", include_str!("meet.cuh"));
/// Products of tiles on tensor cores.
pub const MMA: Header = ("mma.cuh", include_str!("mma.cuh"));
/// Affine maps and their scan.
pub const SCAN: Header = ("scan.cuh", include_str!("scan.cuh"));
/// Sums over a warp and over a block.
pub const SUMS: Header = ("sums.cuh", include_str!("sums.cuh"));
/// Products of f32 on tensor cores.
pub const TF32: Header = ("tf32.cuh", include_str!("tf32.cuh"));
/// Products of f32 on f32 units.
pub const TILES: Header = ("tiles.cuh", include_str!("tiles.cuh"));
/// Batch rows through time: a row times a matrix, and the LSTM cell.
pub const WALK: Header = ("walk.cuh", include_str!("walk.cuh"));
/// Products of tiles on Hopper's tensor cores.
pub const WGMMA: Header = ("wgmma.cuh", include_str!("wgmma.cuh"));
/// Every header.
pub const HEADERS: &[Header] = &[BARRIERS, CLUSTER, F16X3, HALF, MEET, MMA, SCAN, SUMS, TF32, TILES, WALK, WGMMA];
