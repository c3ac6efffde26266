//! What `check` does not ask of a GPU.

use super::cpu::{BOTH, assert_law, problem, run_on, sample};
use crate::Device;
use crate::check::gpu::gpu;
use crate::layers::mlstm::Gate;
use crate::op::Values;

/// Windows of chunks, with sequences that end at any of them, change no bit; nothing where there is no GPU.
#[test]
fn on_a_gpu_windows_change_no_bit() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    for gate in [Gate::Exponential, Gate::Sigmoid] {
        let mut p = problem(gate, [1, 2, 150, 16, 32]);
        (p.chunk, p.sequences) = (Some(16), Some(4));
        let mut inputs = sample(&p, 4);
        inputs.insert("cu_seqlens", Values::new([5], vec![0.0, 48.0, 48.0, 49.0, 150.0]).unwrap());
        let whole = run_on(&device, &p, &BOTH, &inputs, None).unwrap();
        assert_law(&p, &inputs, &whole, "one window");
        for variant in ["simt:w1", "simt:w3"] {
            assert_eq!(run_on(&device, &p, &BOTH, &inputs, Some(variant)).unwrap(), whole, "{variant}");
        }
    }
}
