//! Sequences stored in 16 bits: what f32 gives, rounded once, by every way through memory.

use super::super::Packing;
use super::super::testing;
use super::*;

const HALVES: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];
const LENGTHS: [usize; 9] = [0, 1, 31, 32, 33, 511, 512, 1000, 2049];

/// The same problem over f32, from the same numbers.
fn in_f32(p: &LinearScan) -> LinearScan {
    p.with_dtype(Dtype::F32).unwrap()
}

/// Asserts that h is that of f32 rounded once, and h_last that of f32, to the bit.
fn rounded_once(p: &LinearScan, seed: u64, run: impl Fn(&LinearScan, &Tensors) -> Tensors, what: &str) {
    let inputs = p.sample(Pass::Forward, seed).unwrap();
    let (got, wide) = (run(p, &inputs), run(&in_f32(p), &inputs));
    assert_eq!(got.get("h").unwrap(), &wide.get("h").unwrap().clone().rounded(p.dtype()), "{what} {p:?}");
    assert_eq!(got.get("h_last").unwrap(), wide.get("h_last").unwrap(), "{what} {p:?}");
}

#[test]
fn halves_are_what_f32_gives_rounded_once() {
    let lying = |memory: Memory| move |p: &LinearScan, i: &Tensors| run(p, Pass::Forward, i, |_| memory);
    let mixed = |p: &LinearScan, i: &Tensors| run(p, Pass::Forward, i, |i| MEMORIES[i % 4]);
    let packed = |p: &LinearScan, i: &Tensors| testing::run(p, Pass::Forward, i).unwrap();
    for (dtype, reverse) in HALVES.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for (i, t) in LENGTHS.into_iter().enumerate() {
            let gates = [Gates::Uniform, Gates::Slow, Gates::Signed, Gates::Extreme][i % 4];
            let p = LinearScan::new(2, 5, t).unwrap().with_dtype(dtype).unwrap();
            let p = p.with_reverse(reverse).with_initial_state(i % 3 > 0).with_gates(gates);
            for memory in MEMORIES {
                rounded_once(&p, t as u64, lying(memory), &format!("{memory:?}"));
            }
            rounded_once(&p, t as u64, mixed, "mixed");
            rounded_once(&p.with_packing(Packing::Reset).unwrap(), t as u64, packed, "reset");
            let one = LinearScan::new(1, 5, t).unwrap().with_dtype(dtype).unwrap().with_reverse(reverse);
            let one = one.with_initial_state(true).with_packing(Packing::Sequences(3)).unwrap();
            rounded_once(&one, t as u64, packed, "packed");
        }
        // More channels than a task takes side by side.
        let p = LinearScan::new(1, 700, 9).unwrap().with_dtype(dtype).unwrap().with_reverse(reverse);
        rounded_once(&p, 3, lying(Memory::ChannelsLast), "many channels");
    }
}

/// lambda knows no stored state: it is that of f32 to the last rounding, and the gradient of h0 is not rounded at all.
#[test]
fn gradients_keep_to_the_law_however_memory_lies() {
    for (dtype, reverse) in HALVES.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for t in LENGTHS {
            let p = LinearScan::new(2, 5, t).unwrap().with_dtype(dtype).unwrap();
            let p = p.with_reverse(reverse).with_initial_state(true).with_gates(Gates::Slow);
            for memory in MEMORIES {
                check(&p, t as u64, |_| memory, &format!("{memory:?}"));
            }
            check(&p, t as u64, |i| MEMORIES[i % 4], "mixed");
        }
    }
}

/// What is handed on is f32, so a cut costs no rounding of a half.
#[test]
fn a_split_anywhere_is_the_whole_in_halves() {
    let (d, t) = (3, 70);
    for (dtype, reverse) in HALVES.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let of = |steps: usize| {
            let p = LinearScan::new(1, d, steps).unwrap().with_dtype(dtype).unwrap();
            p.with_initial_state(true).with_reverse(reverse)
        };
        let inputs = of(t).with_gates(Gates::Slow).sample(Pass::Forward, 9).unwrap();
        let all = run(&of(t), Pass::Forward, &inputs, |_| Memory::Contiguous);
        for at in 0..=t {
            let part = |from: usize, to: usize, h0: &Values| {
                let mut own = Tensors::new();
                own.insert("a", testing::cut(inputs.get("a").unwrap(), 2, from, to));
                own.insert("x", testing::cut(inputs.get("x").unwrap(), 2, from, to));
                own.insert("h0", h0.clone());
                run(&of(to - from), Pass::Forward, &own, |_| Memory::Contiguous)
            };
            let cuts = if reverse { [(at, t), (0, at)] } else { [(0, at), (at, t)] };
            let first = part(cuts[0].0, cuts[0].1, inputs.get("h0").unwrap());
            let second = part(cuts[1].0, cuts[1].1, first.get("h_last").unwrap());
            let error = relative(second.get("h_last").unwrap(), all.get("h_last").unwrap());
            assert!(error < 1e-6, "{dtype} cut at {at}: {error:e}");
        }
    }
}

/// The smallest f16 is a gate like another, and what f16 cannot hold is infinite where it is stored but not in the state.
#[test]
fn the_ends_of_the_range_of_f16() {
    for steps in [3, 40] {
        let p = LinearScan::new(1, 1, steps).unwrap().with_dtype(Dtype::F16).unwrap().with_initial_state(true);
        let (mut a, mut x) = (vec![1.0; steps], vec![0.0; steps]);
        (a[0], x[1], x[2]) = (2f64.powi(-24), 60000.0, -60000.0);
        let mut inputs = Tensors::new();
        inputs.insert("a", Values::new([1, 1, steps], a).unwrap());
        inputs.insert("x", Values::new([1, 1, steps], x).unwrap());
        inputs.insert("h0", Values::new([1, 1], vec![1.5 * 2f64.powi(38)]).unwrap());
        let out = run(&p, Pass::Forward, &inputs, |_| Memory::Contiguous);
        let h = &out.get("h").unwrap().data;
        assert_eq!((h[0], h[1], h[2]), (24576.0, f64::INFINITY, 24576.0));
        assert_eq!(out.get("h_last").unwrap().data, [24576.0]);
    }
}

/// Within what is asked of halves: 2e-3 of f16 and 1.5e-2 of bf16, and twice that of gradients.
#[test]
fn the_tolerances_of_halves_are_those_of_their_rounding() {
    for (dtype, bound) in [(Dtype::Bf16, 1.5e-2), (Dtype::F16, 2e-3)] {
        let p = LinearScan::new(1, 4, 9).unwrap().with_dtype(dtype).unwrap();
        let of = |pass, name| p.tolerance(pass, name).unwrap().value;
        assert!(of(Pass::Forward, "h") <= bound / 4.0);
        assert!(of(Pass::Backward, "grad_a").max(of(Pass::Backward, "grad_x")) <= bound / 2.0);
        let wide = in_f32(&p);
        for (pass, name) in [(Pass::Forward, "h_last"), (Pass::Backward, "grad_h0")] {
            assert_eq!(of(pass, name), wide.tolerance(pass, name).unwrap().value, "states are f32");
        }
    }
}

/// Every kernel on every layout and around every boundary of its tiles; nothing where there is no GPU.
#[test]
fn on_a_gpu_every_kernel_keeps_to_the_law_in_halves() {
    let Some(gpu) = gpu() else { return };
    let device = &gpu.device;
    let bulk = device.props().compute_capability.0 >= 9;
    let variants = [None, Some("rows"), Some("strided"), Some("channels"), Some("bulk"), Some("bulk:t32:v1:s2:b4:p")];
    for variant in variants.into_iter().filter(|v| bulk || !v.is_some_and(|v| v.starts_with("bulk"))) {
        let at = Where { device: Device::Cuda(device.clone()), variant };
        for (i, t) in [0, 1, 4, 7, 31, 32, 33, 248, 256, 264, 1000, 1024, 1032, 2049, 5000].into_iter().enumerate() {
            let p = LinearScan::new(2, 33, t).unwrap().with_dtype(HALVES[i / 2 % 2]).unwrap();
            let p = p.with_reverse(i % 2 == 1).with_initial_state(i % 3 > 0);
            for memory in MEMORIES {
                check_on(&at, &p, t as u64, |_| memory, &format!("{variant:?} {memory:?}"));
            }
            check_on(&at, &p, t as u64, |i| MEMORIES[i % 4], &format!("{variant:?} mixed"));
        }
        // More than one wave of blocks.
        for dtype in HALVES {
            let p = LinearScan::new(3, 1000, 2056).unwrap().with_dtype(dtype).unwrap().with_gates(Gates::Slow);
            let inputs = p.sample(Pass::Forward, 1).unwrap();
            let first = run_on(&at, &p, Pass::Forward, &inputs, |_| Memory::Contiguous);
            for _ in 0..3 {
                let again = run_on(&at, &p, Pass::Forward, &inputs, |_| Memory::Contiguous);
                assert_eq!(first, again, "{variant:?}");
            }
        }
    }
}
