//! What is special to a linear map: its backward pass against dual numbers, layouts, bad sizes.

use super::reference;
use super::{Channels, Dense};
use crate::Device;
use crate::call::{Workspace, default_stream};
use crate::check::gpu::gpu;
use crate::op::{Pass, PlanOptions, Problem, Tensors, Values};
use crate::real::Dual;
use crate::rng::Rng;

fn dual(x: &Values, direction: &Values) -> Vec<Dual> {
    x.data.iter().zip(&direction.data).map(|(&value, &derivative)| Dual { value, derivative }).collect()
}

#[test]
fn the_backward_pass_is_the_derivative_of_the_forward_pass() {
    let p = Dense::new(2, 3, Channels::grouped(6, 2), Channels::along(5)).unwrap();
    let mut inputs = p.sample(Pass::Forward, 1).unwrap();
    let mut rng = Rng::new(2, 0);
    let directions: Vec<Values> = inputs.iter().map(|(_, v)| Values::from_fn(v.shape, || rng.normal())).collect();
    let d: Vec<Vec<Dual>> = inputs.iter().zip(&directions).map(|((_, v), d)| dual(v, d)).collect();
    let y = reference::forward(&p, &d[0], &d[1], Some(&d[2]));
    for (name, v) in p.sample(Pass::Backward, 1).unwrap().iter() {
        inputs.insert(name, v.clone());
    }
    let seed = inputs.get("grad_y").unwrap().data.clone();
    let want: f64 = y.iter().zip(&seed).map(|(y, g)| y.derivative * g).sum();
    let g: Tensors = p.reference(Pass::Backward, &inputs, false).unwrap();
    let along =
        |name: &str, d: &Values| -> f64 { g.get(name).unwrap().data.iter().zip(&d.data).map(|(g, d)| g * d).sum() };
    let got =
        along("grad_x", &directions[0]) + along("grad_weight", &directions[1]) + along("grad_bias", &directions[2]);
    assert!((got - want).abs() < 1e-12 * want.abs().max(1.0), "{got} {want}");
}

#[test]
fn groups_are_only_another_order() {
    let p = Dense::new(2, 3, Channels::beside(4), Channels::beside(6)).unwrap();
    let inputs = p.sample(Pass::Forward, 4).unwrap();
    let plain = p.reference(Pass::Forward, &inputs, false).unwrap();
    let plain = &plain.get("y").unwrap().data;
    for groups in [2, 3, 6] {
        let q = Dense::new(2, 3, Channels::beside(4), Channels::grouped(6, groups)).unwrap();
        let y = q.reference(Pass::Forward, &inputs, false).unwrap();
        let (y, width) = (&y.get("y").unwrap().data, 6 / groups);
        for (b, t, o) in (0..2).flat_map(|b| (0..3).flat_map(move |t| (0..6).map(move |o| (b, t, o)))) {
            assert_eq!(y[((b * groups + o / width) * 3 + t) * width + o % width], plain[(b * 3 + t) * 6 + o]);
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_with_their_values() {
    let message = |from, to| Dense::new(1, 1, from, to).unwrap_err().to_string();
    let two = Channels::beside(2);
    assert!(message(Channels::grouped(5, 2), two).contains("D = 5 channels do not fall into 2 groups"));
    assert!(message(two, Channels::grouped(5, 0)).contains("H = 5 channels do not fall into 0 groups"));
    assert!(Dense::new(1 << 40, 1 << 40, two, two).unwrap_err().to_string().contains("B = 1099511627776"));
    let p = Dense::new(1, 1, two, two).unwrap();
    assert!(p.signature(Pass::Step).unwrap_err().to_string().contains("no step pass"));
    let wide = Channels::beside(1 << 29);
    assert_eq!(Dense::new(1, 1 << 20, wide, wide).unwrap().cost(Pass::Forward).flops, u64::MAX);
    let options = crate::op::PlanOptions { variant: Some("fast".into()), ..Default::default() };
    let e = p.plan(&crate::Device::Cpu, &options).err().unwrap().to_string();
    assert_eq!(e, "dense: variant `fast` is not one of simd on the CPU");
}

/// Numbers share powers of two there, and one that is none must not take the others' bits; nothing without a GPU.
#[test]
fn on_a_gpu_what_is_no_number_keeps_to_its_row_and_column() {
    let Some(gpu) = gpu() else { return };
    if gpu.device.props().compute_capability != (9, 0) {
        return;
    }
    let (d, h, t) = (70, 130, 90);
    let device = Device::Cuda(gpu.device.clone());
    let p = Dense::new(1, t, Channels::along(d), Channels::along(h)).unwrap();
    let options = PlanOptions { variant: Some("wgmma".into()), ..Default::default() };
    let plan = p.plan(&device, &options).unwrap();
    let mut inputs = p.sample(Pass::Forward, 3).unwrap();
    let y = |inputs: &Tensors| {
        let mut workspace = Workspace::new(&*plan, &[Pass::Forward], &device).unwrap();
        inputs.iter().for_each(|(name, v)| workspace.set(name, v).unwrap());
        workspace.bind(&*plan, Pass::Forward, default_stream(&device)).unwrap().run().unwrap();
        device.synchronize().unwrap();
        workspace.get("y").unwrap().data
    };
    let whole = y(&inputs);
    for bad in [f64::NAN, f64::INFINITY] {
        let mut put = |name: &str, at: usize| {
            let v = inputs.get(name).unwrap();
            let (shape, mut data) = (v.shape, v.data.clone());
            data[at] = bad;
            inputs.insert(name, Values::new(shape, data).unwrap());
        };
        put("x", 5 * t + 66);
        put("weight", 3 * d + 9);
        for (i, (got, want)) in y(&inputs).iter().zip(&whole).enumerate() {
            if i / t == 3 || i % t == 66 {
                assert!(!got.is_finite(), "{i}: {got}");
            } else {
                assert!((got - want).abs() < 1e-5, "{i}: {got} {want}");
            }
        }
    }
}
