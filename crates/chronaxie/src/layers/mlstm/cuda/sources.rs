//! The sources of the kernels, what they are compiled for, and those of a pass.

use super::tune::{Config, H, KEYS, Tiles, walk_columns, walks};
use crate::layers::mlstm::spec::Mlstm;
use crate::{Dtype, Result, kernels};
use chronaxie_runtime::cuda::{Archs, CudaDevice, Header, Kernel, KernelSource, Specialisation};
use std::sync::Arc;

const FORWARD: KernelSource = KernelSource::embedded("layers/mlstm/cuda/forward.cu", include_str!("forward.cu"));
const BACKWARD: KernelSource = KernelSource::embedded("layers/mlstm/cuda/backward.cu", include_str!("backward.cu"));
const TENSOR_FORWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/tensor_forward.cu", include_str!("tensor_forward.cu"));
const TENSOR_BACKWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/tensor_backward.cu", include_str!("tensor_backward.cu"));
const HOPPER_FORWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_forward.cu", include_str!("hopper_forward.cu"));
const HOPPER_BACKWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_backward.cu", include_str!("hopper_backward.cu"));
const HOPPER_WEIGHTS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_weights.cu", include_str!("hopper_weights.cu"));
const HOPPER_PAIRS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_pairs.cu", include_str!("hopper_pairs.cu"));
const HOPPER_WALKS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_walks.cu", include_str!("hopper_walks.cu"));
const HOPPER_KEYS: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/hopper_keys.cu", include_str!("hopper_keys.cu"));
const SMALL_FORWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/small_forward.cu", include_str!("small_forward.cu"));
const SMALL_BACKWARD: KernelSource =
    KernelSource::embedded("layers/mlstm/cuda/small_backward.cu", include_str!("small_backward.cu"));
const SHARED: Header = ("mlstm.cuh", include_str!("mlstm.cuh"));
pub(super) const HEADERS: &[Header] = &[SHARED, kernels::HALF];
const TENSOR: Header = ("tensor.cuh", include_str!("tensor.cuh"));
const GRADIENTS: Header = ("gradients.cuh", include_str!("gradients.cuh"));
const TENSOR_HEADERS: &[Header] = &[SHARED, kernels::HALF, kernels::MMA, TENSOR, GRADIENTS];
const SMALL_HEADERS: &[Header] =
    &[SHARED, kernels::HALF, kernels::MMA, TENSOR, ("small.cuh", include_str!("small.cuh"))];
const HOPPER_HEADERS: &[Header] = &[
    SHARED,
    kernels::HALF,
    kernels::MMA,
    TENSOR,
    GRADIENTS,
    kernels::WGMMA,
    ("hopper.cuh", include_str!("hopper.cuh")),
];
const CHAIN_HEADERS: &[Header] = &[
    SHARED,
    kernels::HALF,
    kernels::MMA,
    TENSOR,
    kernels::WGMMA,
    kernels::BARRIERS,
    kernels::CLUSTER,
    ("hopper_chains.cuh", include_str!("hopper_chains.cuh")),
    ("hopper_walks.cuh", include_str!("hopper_walks.cuh")),
    ("hopper_places.cuh", include_str!("hopper_places.cuh")),
];
const FORWARD_ENTRIES: [&str; 5] = ["gate_sums", "gate_gauge", "gate_tokens", "states", "outputs"];
const BACKWARD_ENTRIES: [&str; 4] = ["tokens", "grad_states", "gradients", "ends"];
const TENSOR_FORWARD_ENTRIES: [&str; 4] = ["gate_scan", "gate_carry", "tensor_states", "tensor_outputs"];
const TENSOR_BACKWARD_ENTRIES: [&str; 4] = ["tensor_tokens", "tensor_grad_states", "tensor_gradients", "gate_grads"];

/// What stands for the last two of `TENSOR_FORWARD_ENTRIES`, and the second and third of `TENSOR_BACKWARD_ENTRIES`.
const HOPPER_FORWARD_ENTRIES: [&str; 2] = ["hopper_states", "hopper_outputs"];
const HOPPER_BACKWARD_ENTRIES: [&str; 2] = ["hopper_grad_states", "hopper_gradients"];

const WEIGHTS_ENTRIES: [&str; 3] = ["chain_weights", "chain_norms", "chain_scales"];
const PAIR_ENTRIES: [&str; 4] = ["chain_pairs", "chain_rates", "chain_totals", "chain_gates"];
const WALK_ENTRIES: [&str; 1] = ["hopper_walk"];
const KEYS_ENTRIES: [&str; 1] = ["hopper_keys"];

const SMALL_FORWARD_ENTRIES: [&str; 3] = ["small_sums", "small_states", "small_outputs"];
const SMALL_BACKWARD_ENTRIES: [&str; 3] = ["small_back_sums", "small_back_states", "small_gradients"];

/// The element types of q, k, v and h, as `kDtype` in the kernels.
pub(super) fn dtype_code(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Bf16 => 2,
        _ => 0,
    }
}

fn specialisation(source: KernelSource, entries: &[&'static str], dtype: Dtype) -> Specialisation {
    let mut spec = Specialisation::new(source, entries);
    spec.headers = HEADERS;
    spec.constants = vec![("kDtype", dtype_code(dtype).into())];
    spec
}

fn tensor(source: KernelSource, entries: &[&'static str], dtype: Dtype, edge: usize, columns: usize) -> Specialisation {
    let mut spec = Specialisation::new(source, entries);
    spec.headers = TENSOR_HEADERS;
    spec.archs = Archs::AtLeast(80);
    spec.constants = vec![
        ("kDtype", dtype_code(dtype).into()),
        ("kEdge", (edge as i32).into()),
        ("kColumns", (columns as i32).into()),
    ];
    spec
}

/// Those for small heads.
fn small(backward: bool, dtype: Dtype) -> Specialisation {
    let (source, entries) =
        if backward { (SMALL_BACKWARD, SMALL_BACKWARD_ENTRIES) } else { (SMALL_FORWARD, SMALL_FORWARD_ENTRIES) };
    let mut spec = tensor(source, &entries, dtype, 64, 64);
    spec.headers = SMALL_HEADERS;
    spec
}

/// The kernels by wgmma, whose blocks have a chunk of up to 128 tokens, or 128 rows of a state.
fn hopper(source: KernelSource, entries: &[&'static str], dtype: Dtype, columns: usize) -> Specialisation {
    let mut spec = tensor(source, entries, dtype, 128, columns);
    spec.headers = HOPPER_HEADERS;
    spec.archs = Archs::Only(&["sm_90a"]);
    spec
}

/// The kernels that go through whole chains, and those around them.
fn of_chains(source: KernelSource, entries: &[&'static str], dtype: Dtype, columns: usize) -> Specialisation {
    let mut spec = tensor(source, entries, dtype, 64, columns);
    spec.headers = CHAIN_HEADERS;
    spec.archs = Archs::Only(&["sm_90a"]);
    spec
}

/// That of the gradient of q, k or v, of h, or of the gradients of k and v: `role` as in [`walk_columns`].
fn walk(dtype: Dtype, columns: usize, role: usize) -> Specialisation {
    if role == KEYS {
        return of_chains(HOPPER_KEYS, &KEYS_ENTRIES, dtype, columns);
    }
    let mut spec = of_chains(HOPPER_WALKS, &WALK_ENTRIES, dtype, columns);
    spec.constants.push(("kRole", (role as i32).into()));
    spec
}

/// What runs before and behind those.
fn around_walks(dtype: Dtype, backward: bool) -> Specialisation {
    if backward {
        of_chains(HOPPER_PAIRS, &PAIR_ENTRIES, dtype, 64)
    } else {
        of_chains(HOPPER_WEIGHTS, &WEIGHTS_ENTRIES, dtype, 64)
    }
}

/// The portable kernels, of which nothing but the element type shapes one (f16 and bf16 differ in how they are loaded), and
/// those on tensor cores in the forms that are chosen by themselves.
pub(in super::super) fn specialisations() -> Vec<Specialisation> {
    let both = |d| [specialisation(FORWARD, &FORWARD_ENTRIES, d), specialisation(BACKWARD, &BACKWARD_ENTRIES, d)];
    let portable = [Dtype::F32, Dtype::Bf16].into_iter().flat_map(both);
    let forward = |d, edge, columns| tensor(TENSOR_FORWARD, &TENSOR_FORWARD_ENTRIES, d, edge, columns);
    let backward = |d, edge, columns| tensor(TENSOR_BACKWARD, &TENSOR_BACKWARD_ENTRIES, d, edge, columns);
    let (f16, bf16) = (Dtype::F16, Dtype::Bf16);
    let mut list: Vec<_> = portable.collect();
    list.extend([forward(bf16, 64, 64), forward(bf16, 128, 128), forward(f16, 64, 64)]);
    list.extend([backward(bf16, 64, 64), backward(bf16, 128, 128)]);
    list.extend([small(false, bf16), small(true, bf16), small(true, f16)]);
    for columns in [128, 256] {
        list.push(hopper(HOPPER_FORWARD, &HOPPER_FORWARD_ENTRIES, bf16, columns));
        list.push(hopper(HOPPER_BACKWARD, &HOPPER_BACKWARD_ENTRIES, bf16, columns));
        list.push(walk(bf16, columns, H));
    }
    list.extend([around_walks(bf16, true), around_walks(bf16, false)]);
    for (columns, role) in [(512, 0), (512, 1), (256, 2), (256, 0), (256, 1), (128, 2), (256, KEYS), (128, KEYS)] {
        list.push(walk(bf16, columns, role));
    }
    list
}

/// The kernels of a pass, in the order in which `PassPlan::visit` counts them.
pub(super) fn kernels_of(p: &Mlstm, backward: bool, config: &Config, device: &Arc<CudaDevice>) -> Result<Vec<Kernel>> {
    let forward = specialisation(FORWARD, &FORWARD_ENTRIES, p.dtype);
    let mut list = Vec::new();
    let Some(tiles) = config.tiles else {
        for entry in FORWARD_ENTRIES {
            list.push(device.kernel(&forward, entry)?);
        }
        if backward {
            let spec = specialisation(BACKWARD, &BACKWARD_ENTRIES, p.dtype);
            for entry in BACKWARD_ENTRIES {
                list.push(device.kernel(&spec, entry)?);
            }
        }
        return Ok(list);
    };
    if config.small.is_some() {
        let entries = if backward { SMALL_BACKWARD_ENTRIES } else { SMALL_FORWARD_ENTRIES };
        for entry in entries {
            list.push(device.kernel(&small(backward, p.dtype), entry)?);
        }
        if backward {
            list.push(device.kernel(&specialisation(BACKWARD, &BACKWARD_ENTRIES, p.dtype), "ends")?);
        }
        return Ok(list);
    }
    let Tiles { edge, columns, state_edge, .. } = tiles;
    let small = tensor(TENSOR_FORWARD, &TENSOR_FORWARD_ENTRIES, p.dtype, tiles.gate_edge(), tiles.gate_edge());
    let by_wgmma = |source, entries, columns| hopper(source, entries, p.dtype, columns);
    list.push(device.kernel(&small, "gate_scan")?);
    list.push(device.kernel(&small, "gate_carry")?);
    if let Some(columns) = config.chains {
        let around = around_walks(p.dtype, backward);
        if !backward {
            for entry in WEIGHTS_ENTRIES {
                list.push(device.kernel(&around, entry)?);
            }
            list.push(device.kernel(&walk(p.dtype, columns, H), WALK_ENTRIES[0])?);
            return Ok(list);
        }
        list.push(device.kernel(&around, PAIR_ENTRIES[0])?);
        for &role in walks(p) {
            let spec = walk(p.dtype, walk_columns(p, role), role);
            list.push(device.kernel(&spec, spec.entries[0])?);
        }
        for entry in &PAIR_ENTRIES[1..] {
            list.push(device.kernel(&around, entry)?);
        }
        list.push(device.kernel(&specialisation(BACKWARD, &BACKWARD_ENTRIES, p.dtype), "ends")?);
        return Ok(list);
    }
    if tiles.hopper_states() {
        let spec = by_wgmma(HOPPER_FORWARD, &HOPPER_FORWARD_ENTRIES, state_edge);
        list.push(device.kernel(&spec, "hopper_states")?);
    } else {
        list.push(device.kernel(&small, "tensor_states")?);
    }
    if !backward {
        list.push(if tiles.hopper {
            device.kernel(&by_wgmma(HOPPER_FORWARD, &HOPPER_FORWARD_ENTRIES, columns), "hopper_outputs")?
        } else {
            let spec = tensor(TENSOR_FORWARD, &TENSOR_FORWARD_ENTRIES, p.dtype, edge, columns);
            device.kernel(&spec, "tensor_outputs")?
        });
        return Ok(list);
    }
    let small = tensor(TENSOR_BACKWARD, &TENSOR_BACKWARD_ENTRIES, p.dtype, tiles.gate_edge(), tiles.gate_edge());
    list.push(device.kernel(&small, "tensor_tokens")?);
    list.push(if tiles.hopper_states() {
        device.kernel(&by_wgmma(HOPPER_BACKWARD, &HOPPER_BACKWARD_ENTRIES, state_edge), "hopper_grad_states")?
    } else {
        device.kernel(&small, "tensor_grad_states")?
    });
    list.push(if tiles.hopper {
        device.kernel(&by_wgmma(HOPPER_BACKWARD, &HOPPER_BACKWARD_ENTRIES, columns), "hopper_gradients")?
    } else {
        let spec = tensor(TENSOR_BACKWARD, &TENSOR_BACKWARD_ENTRIES, p.dtype, edge, columns);
        device.kernel(&spec, "tensor_gradients")?
    });
    list.push(device.kernel(&small, "gate_grads")?);
    list.push(device.kernel(&specialisation(BACKWARD, &BACKWARD_ENTRIES, p.dtype), "ends")?);
    Ok(list)
}
