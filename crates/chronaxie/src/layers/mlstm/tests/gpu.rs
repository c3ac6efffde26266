//! What `check` does not ask of a GPU.

use super::cpu::{BOTH, assert_law, problem, relative, run_on, sample};
use crate::check::gpu::gpu;
use crate::layers::mlstm::{Gate, Gates};
use crate::op::{Pass, Problem, Values};
use crate::{Device, Dtype};

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

/// A gate that is no number makes h none from there on, in f16 too, whose weights have a largest; nothing without a GPU.
#[test]
fn on_a_gpu_gates_that_are_no_numbers_show() {
    let Some(gpu) = gpu() else { return };
    let cc = gpu.device.props().compute_capability;
    if cc < (8, 0) {
        return;
    }
    let device = Device::Cuda(gpu.device.clone());
    let variants = ["small", "mma", "wgmma", "chains"];
    for (dtype, gate, name) in [
        (Dtype::F16, Gate::Exponential, "i"),
        (Dtype::F16, Gate::Exponential, "f"),
        (Dtype::F16, Gate::Sigmoid, "f"),
        (Dtype::Bf16, Gate::Exponential, "i"),
    ] {
        for variant in variants.into_iter().filter(|v| cc == (9, 0) || ["small", "mma"].contains(v)) {
            let mut p = problem(gate, [1, 1, 200, 32, 48]);
            (p.dtype, p.normalize) = (dtype, true);
            let mut inputs = sample(&p, 4);
            inputs.get_mut(name).unwrap().data[70] = f64::NAN;
            let h = run_on(&device, &p, &[Pass::Forward], &inputs, Some(variant)).unwrap();
            let h = &h.get("h").unwrap().data;
            let what = format!("{variant}, {dtype}, {gate:?}, {name}");
            assert!(h[..70 * 48].iter().all(|x| x.is_finite()), "{what}: before");
            let shown = h[70 * 48..].iter().position(|x| !x.is_nan());
            assert!(
                shown.is_none(),
                "{what}: {:?} at {:?}",
                shown.map(|at| h[70 * 48 + at]),
                shown.map(|at| 70 + at / 48)
            );
        }
    }
}

/// A normaliser's state is f32 whatever q is: keys of one sign and gates that forget nothing bring it beyond what f16 holds; nothing
/// without a GPU of compute capability 9.0.
#[test]
fn on_a_gpu_normalisers_exceed_f16() {
    let Some(gpu) = gpu() else { return };
    if gpu.device.props().compute_capability != (9, 0) {
        return;
    }
    let device = Device::Cuda(gpu.device.clone());
    let mut p = problem(Gate::Exponential, [1, 1, 200, 32, 48]);
    (p.dtype, p.backward) = (Dtype::F16, false);
    let mut inputs = sample(&p, 4);
    let mut each =
        |name: &str, f: fn(f64) -> f64| inputs.get_mut(name).unwrap().data.iter_mut().for_each(|x| *x = f(*x));
    each("k", |x| 512.0 + 16.0 * (x.clamp(-4.0, 4.0) * 16.0).round() / 16.0);
    each("q", |x| x.abs());
    each("i", |_| 0.0);
    each("f", |_| 20.0);
    each("n_initial", |x| 1e5 * x.abs());
    let got = run_on(&device, &p, &[Pass::Forward], &inputs, Some("chains")).unwrap();
    assert!(got.get("n_last").unwrap().data.iter().any(|x| *x > 1.5e5), "n is what f16 holds");
    let law = p.reference(Pass::Forward, &inputs, false).unwrap();
    for name in ["h", "n_last", "c_last"] {
        let (error, most) =
            (relative(got.get(name).unwrap(), law.get(name).unwrap()), p.tolerance(Pass::Forward, name).unwrap().value);
        assert!(error <= most, "{name} is off by {error:e}");
    }
}

/// How many chains the kernels for small heads take at a time changes no bit, nor do sequences of any length; nothing without
/// a GPU.
#[test]
fn on_a_gpu_groups_of_small_heads_change_no_bit() {
    let Some(gpu) = gpu() else { return };
    if gpu.device.props().compute_capability < (8, 0) {
        return;
    }
    let device = Device::Cuda(gpu.device.clone());
    for gate in [Gate::Exponential, Gate::Sigmoid] {
        let mut p = problem(gate, [1, 2, 300, 48, 64]);
        (p.dtype, p.sequences) = (Dtype::F16, Some(4));
        let mut inputs = sample(&p, 4);
        inputs.insert("cu_seqlens", Values::new([5], vec![0.0, 131.0, 131.0, 259.0, 300.0]).unwrap());
        let run = |v: &str| run_on(&device, &p, &BOTH, &inputs, Some(v)).unwrap();
        let whole = run("small");
        assert_law(&p, &inputs, &whole, "small");
        for variant in ["small:g1", "small:g3", "small:g8"] {
            assert_eq!(run(variant), whole, "{variant}");
        }
        // Those by larger tiles, which such heads have on request alone.
        assert_law(&p, &inputs, &run("mma"), "mma");
        // Chunks that nothing enters: the first of one sequence, a later one of another, and all of the last.
        let i = inputs.get("i").unwrap();
        let (shape, mut gates) = (i.shape, i.data.to_vec());
        for head in 0..2 {
            for t in (0..64).chain(195..259).chain(259..300) {
                gates[head * 300 + t] = f64::NEG_INFINITY;
            }
        }
        inputs.insert("i", Values::new(shape, gates).unwrap());
        let shut = run_on(&device, &p, &BOTH, &inputs, Some("small")).unwrap();
        assert_law(&p, &inputs, &shut, "small, input gates shut");
    }
}

/// Chunks, tiles, windows and copies of other shapes, on tensor cores: the same but for roundings; nothing without a GPU.
#[test]
fn on_a_gpu_every_tile_is_right() {
    let Some(gpu) = gpu() else { return };
    if gpu.device.props().compute_capability < (8, 0) {
        return;
    }
    let device = Device::Cuda(gpu.device.clone());
    for gate in [Gate::Exponential, Gate::Sigmoid] {
        let mut p = problem(gate, [1, 2, 300, 80, 144]);
        (p.dtype, p.sequences) = (Dtype::Bf16, Some(3));
        let mut inputs = sample(&p, 4);
        inputs.insert("cu_seqlens", Values::new([4], vec![0.0, 131.0, 131.0, 300.0]).unwrap());
        let by_mma = ["mma:e64s64", "mma:e64c128s128g2", "mma:e128c128r2", "mma:e128c256g2"];
        let by_wgmma = ["wgmma:c128s128g2", "wgmma:c256s256r2", "wgmma:c128s64"];
        let hopper = gpu.device.props().compute_capability == (9, 0);
        if hopper {
            let whole = run_on(&device, &p, &BOTH, &inputs, Some("chains")).unwrap();
            assert_law(&p, &inputs, &whole, "chains");
        }
        for variant in by_mma.into_iter().chain(by_wgmma.into_iter().filter(|_| hopper)) {
            let run = |v: &str| run_on(&device, &p, &BOTH, &inputs, Some(v));
            let whole = match run(variant) {
                Ok(outputs) => outputs,
                // A device of little shared memory has not all of them.
                Err(e) if e.to_string().contains("no tiles of that variant fit") => continue,
                Err(e) => panic!("{variant}: {e}"),
            };
            assert_law(&p, &inputs, &whole, variant);
            assert_eq!(run(&format!("{variant}w1")).unwrap(), whole, "{variant}, a chunk a window");
        }
    }
}

/// Gates that are shut for good, on every kind of kernels, as the last tokens too, whose states are zeros; nothing without a GPU.
#[test]
fn on_a_gpu_shut_gates_reset_and_write_nothing() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let capability = gpu.device.props().compute_capability;
    for (gate, normalize) in [(Gate::Exponential, true), (Gate::Sigmoid, false), (Gate::Sigmoid, true)] {
        for (sizes, variants) in [
            ([1, 2, 150, 48, 32], &["simt", "small", "mma"][..]),
            ([1, 2, 150, 80, 144], &["mma:e128c128s128", "wgmma:c128s128", "wgmma:c256s256", "chains"]),
        ] {
            let mut p = problem(gate, sizes);
            (p.dtype, p.gates, p.normalize) = (Dtype::F16, Gates::Reset, normalize);
            let mut inputs = sample(&p, 12);
            for name in ["i", "f"] {
                let gates = inputs.get_mut(name).unwrap();
                gates.data.chunks_mut(150).for_each(|of_head| {
                    of_head[146..].fill(f64::NEG_INFINITY);
                    // What the initial state is owed is made of more than a token.
                    of_head[..12].fill(1.0);
                });
            }
            for variant in variants {
                let least = if variant.starts_with("simt") { (0, 0) } else { (8, 0) };
                let hopper = variant.starts_with("wgmma") || *variant == "chains";
                if capability < least || (hopper && capability != (9, 0)) {
                    continue;
                }
                let got = match run_on(&device, &p, &BOTH, &inputs, Some(variant)) {
                    Err(e) if e.to_string().contains("no tiles of that variant fit") => continue,
                    got => got.unwrap(),
                };
                assert_law(&p, &inputs, &got, variant);
                assert!(got.get("c_last").unwrap().data.iter().all(|x| x.abs() < 1e-7), "{variant}");
                for (gate, of) in [("f", "grad_f"), ("i", "grad_i")] {
                    let given = &inputs.get(gate).unwrap().data;
                    let owed = got.get(of).unwrap().data.iter().zip(given).filter(|(_, x)| **x == f64::NEG_INFINITY);
                    assert!(owed.into_iter().all(|(g, _)| *g == 0.0), "{variant}: {of}");
                }
            }
        }
    }
}
