//! Norms against gradients, and what they may not depend on.

use super::reference::squares;
use super::{GhostNorms, GhostNormsOp, Way};
use crate::call::Session;
use crate::check::gpu::gpu;
use crate::op::{Channels, LinearMap, Pass, Problem, Tensors, Values, problem};
use crate::optim::testing::draw;
use crate::{Device, Dtype};
use std::sync::Arc;

fn map(batch: usize, steps: usize, from: Channels, to: Channels) -> LinearMap {
    LinearMap { batch, steps, x: "x", grad: "grad_y", weight: "w", bias: Some("b"), from, to }
}

fn run(p: &Arc<dyn Problem>, device: &Device, inputs: &Tensors) -> Vec<f64> {
    let mut session = Session::new(p.clone(), device).unwrap();
    session.run(Pass::Step, inputs).unwrap().get("squares").unwrap().data.clone()
}

/// The law is the sum over pairs of steps, of all maps.
#[test]
fn norms_are_sums_over_pairs_of_steps() {
    let (b, t) = (3, 5);
    let maps = vec![
        map(b, t, Channels::beside(4), Channels::beside(3)),
        LinearMap { bias: None, ..map(b, t, Channels::beside(3), Channels::beside(2)) },
    ];
    let p = GhostNorms::new(b, maps).build().unwrap();
    let sequences: Vec<[Vec<f64>; 2]> = p
        .maps
        .iter()
        .zip([1, 3])
        .map(|(m, seed)| [draw(seed, b * t * m.from.count), draw(seed + 1, b * t * m.to.count)])
        .collect();
    let lengths = [5, 0, 3];
    let got = squares(&p, &sequences, &lengths);
    for (row, (got, len)) in got.iter().zip(lengths).enumerate() {
        let mut want = 0.0;
        for (m, [x, g]) in p.maps.iter().zip(&sequences) {
            let dot = |of: &[f64], n: usize, r: usize, s: usize| -> f64 {
                let at = |t: usize| &of[(row * m.steps + t) * n..][..n];
                at(r).iter().zip(at(s)).map(|(a, b)| a * b).sum()
            };
            let one = if m.bias.is_some() { 1.0 } else { 0.0 };
            for r in 0..len {
                for s in 0..len {
                    want += (dot(x, m.from.count, r, s) + one) * dot(g, m.to.count, r, s);
                }
            }
        }
        assert!((got - want).abs() <= 1e-12 * want.abs(), "{got} against {want}");
    }
}

/// Both ways, by threads and padding that change nothing.
#[test]
fn padding_has_no_part() {
    for (t, way) in [(6, Way::Pairs), (400, Way::Gradient)] {
        let made = |steps: usize, lengths: [f64; 3], fill: f64| {
            let m = map(3, steps, Channels::along(6), Channels::beside(7));
            let p = GhostNorms::new(3, vec![m]).build().unwrap();
            let (mut x, mut g) = (vec![fill; 3 * 6 * steps], vec![fill; 3 * 7 * steps]);
            for (b, len) in [t, 0, t / 2].into_iter().enumerate() {
                for t in 0..len {
                    (0..6).for_each(|k| x[(b * 6 + k) * steps + t] = ((3 * b + 5 * k + 7 * t) % 11) as f64 - 5.0);
                    (0..7).for_each(|k| g[(b * steps + t) * 7 + k] = 0.5 - ((2 * b + k + 3 * t) % 5) as f64);
                }
            }
            let mut all = Tensors::new();
            for (t, data) in p.signature_of(Pass::Step).unwrap().inputs.iter().zip([x, g, lengths.to_vec()]) {
                all.insert(t.name.to_string(), Values::new(t.shape, data).unwrap().rounded(Dtype::F32));
            }
            run(&(Arc::new(p) as Arc<dyn Problem>), &Device::Cpu, &all)
        };
        let half = (t / 2) as f64;
        let tight = made(t, [t as f64, 0.0, half], 0.0);
        assert_eq!(GhostNorms::way(&map(3, t, Channels::along(6), Channels::beside(7))), way);
        assert!(tight[1] == 0.0 && tight[0] > 0.0 && tight[2] > 0.0);
        assert_eq!(made(t, [t as f64 + 3.0, -1.0, half], f64::NAN), tight);
    }
}

/// NaN in padding, then in all of sample 1, that of all layouts, changes no bit of any other sample.
fn nan_stays_where_it_is(device: &Device, cases: &[&str]) {
    for case in cases {
        let p = problem(&GhostNormsOp, &case.parse().unwrap()).unwrap();
        let mut inputs = p.sample(Pass::Step, 3).unwrap();
        let steps = inputs.get("x0").unwrap().shape[2];
        let lengths = inputs.get_mut("lengths").unwrap();
        lengths.data[1] = (steps / 2).max(1) as f64;
        let lengths = lengths.data.clone();
        let clean = run(&p, device, &inputs);
        assert!(clean.iter().all(|x| x.is_finite()) && clean[0] > 0.0 && clean[1] > 0.0, "{case}: {clean:?}");
        for whole in [false, true] {
            let mut with = inputs.clone();
            for name in ["x0", "grad0", "x1", "grad1"] {
                let Some(values) = with.get_mut(name) else { continue };
                let [_, groups, _, width] = values.shape[..] else { panic!("{name} has four axes") };
                for (i, x) in values.data.iter_mut().enumerate() {
                    let (b, t) = (i / (groups * steps * width), i / width % steps);
                    if t >= lengths[b] as usize || (whole && b == 1) {
                        *x = f64::NAN;
                    }
                }
            }
            let mut got = run(&p, device, &with);
            if whole {
                assert!(got[1].is_nan(), "{case}: {got:?}");
                got[1] = clean[1];
            }
            assert_eq!(got, clean, "{case}");
        }
    }
}

#[test]
fn nan_harms_no_other_sample() {
    nan_stays_where_it_is(&Device::Cpu, &["B9_T1_D33_H7,layers=2", "B5_T20_D6_H9,from=6", "B3_T90_D6_H7,to=7"]);
}

#[test]
fn on_a_gpu_nan_harms_no_other_sample() {
    let Some(gpu) = gpu() else { return };
    let cases = [
        "B9_T1_D33_H7,layers=2",
        "B18_T7_D20_H12,from=5,to=12",
        "B5_T20_D6_H9,from=6,layers=2",
        "B3_T90_D6_H7,to=7,variant=pairs",
        "B3_T70_D66_H7,from=66,variant=gradient",
    ];
    nan_stays_where_it_is(&Device::Cuda(gpu.device.clone()), &cases);
}

/// What a call takes beside its tensors does not grow with the batch, once every thread has a sample, or a launch all that it may.
#[test]
fn scratch_does_not_grow_with_the_batch() {
    let scratch = |device: &Device, batch: usize| {
        let m = map(batch, 100, Channels::beside(50), Channels::beside(70));
        let p = GhostNorms::new(batch, vec![m, m]).build().unwrap();
        p.plan(device, &Default::default()).unwrap().scratch(Pass::Step).bytes()
    };
    assert_eq!(scratch(&Device::Cpu, 4096), scratch(&Device::Cpu, 1 << 14));
    let Some(gpu) = gpu() else { return };
    let gpu = Device::Cuda(gpu.device.clone());
    assert_eq!(scratch(&gpu, 1 << 18), scratch(&gpu, 1 << 22));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let says = |batch, maps: Vec<LinearMap>, want: &str| {
        let e = GhostNorms::new(batch, maps).build().unwrap_err().to_string();
        assert!(e.contains(want), "{e}");
    };
    let (five, three) = (Channels::beside(5), Channels::beside(3));
    says(2, vec![map(2, 4, five, three), map(2, 5, three, three)], "map 1 has B = 2, T = 5, not B = 2, T = 4");
    says(2, vec![map(2, 4, Channels::grouped(5, 2), three)], "D = 5 channels do not fall into 2 groups");
    says(usize::MAX / 8, vec![map(usize::MAX / 8, 4, five, three)], "T = 4, D = 5, H = 3 have more elements");
    let p = GhostNorms::new(2, vec![map(2, 4, five, three)]).build().unwrap();
    assert!(p.signature_of(Pass::Forward).unwrap_err().to_string().contains("no forward pass"));
}

/// The bound is at most 8 times what f32 costs the law.
#[test]
fn the_bound_is_the_noise_of_f32() {
    let mut worst = 0.0f64;
    for (t, d, h) in [(1, 33, 7), (70, 100, 90), (130, 70, 65), (500, 5, 130)] {
        let p = GhostNorms::new(4, vec![map(4, t, Channels::beside(d), Channels::beside(h))]).build().unwrap();
        let inputs = p.sample(Pass::Step, 1).unwrap();
        let [law, in_f32] = [false, true].map(|f| p.reference(Pass::Step, &inputs, f).unwrap());
        let of = |t: &Tensors| t.get("squares").unwrap().data.clone();
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let error = norm(&mut of(&law).iter().zip(of(&in_f32)).map(|(a, b)| a - b)) / norm(&mut of(&law).into_iter());
        worst = worst.max(error);
    }
    let bound = GhostNorms::new(1, Vec::new()).tolerance_of().value;
    assert!(bound <= 8.0 * worst, "{bound:e} against noise of {worst:e}");
}
