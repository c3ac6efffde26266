//! What is special to the gates: every backward pass against dual numbers, extremes, names.

use super::reference;
use super::{Kind, SsmGates};
use crate::op::{Pass, PlanOptions, Problem};
use crate::real::Dual;
use crate::rng::Rng;

#[test]
fn every_backward_pass_is_the_derivative_of_its_forward_pass() {
    for kind in Kind::ALL {
        let p = SsmGates::new(kind, 2, 3, 4).unwrap();
        let mut rng = Rng::new(5, kind as u64);
        let given = p.sample(Pass::Forward, 1).unwrap();
        let dual: Vec<Vec<Dual>> = given
            .iter()
            .map(|(_, v)| v.data.iter().map(|&value| Dual { value, derivative: rng.normal() }).collect())
            .collect();
        let made = reference::forward(&p, &dual);
        let grads: Vec<Vec<f64>> = made.iter().map(|v| v.iter().map(|_| rng.normal()).collect()).collect();
        let want: f64 = made.iter().flatten().zip(grads.iter().flatten()).map(|(y, g)| y.derivative * g).sum();
        let values: Vec<Vec<f64>> = given.iter().map(|(_, v)| v.data.clone()).collect();
        let back = reference::backward(&p, &values, &grads);
        let terms: Vec<f64> = back.iter().flatten().zip(dual.iter().flatten()).map(|(g, x)| g * x.derivative).collect();
        let (got, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
        assert!((got - want).abs() < 1e-12 * size.max(1.0), "{kind:?}: {got} {want}");
    }
}

/// Gates far open and far shut: no infinity, no NaN, and gates within 0 and 1.
#[test]
fn extremes_stay_finite() {
    for kind in [Kind::MinGru, Kind::RgLru] {
        let p = SsmGates::new(kind, 1, 1, 6).unwrap();
        let mut given = p.sample(Pass::Forward, 3).unwrap();
        for name in kind.form().inputs.iter().filter(|n| **n != "v") {
            given.get_mut(name).unwrap().data = vec![-1e4, -80.0, -1.0, 1.0, 80.0, 1e4];
        }
        let y = p.reference(Pass::Forward, &given, false).unwrap();
        assert!(y.get("a").unwrap().data.iter().all(|a| (0.0..=1.0).contains(a)), "{kind:?}");
        assert!(y.get("x").unwrap().data.iter().all(|x| x.is_finite()), "{kind:?}");
    }
}

#[test]
fn kinds_are_spelt_as_they_are_listed() {
    for kind in Kind::ALL {
        assert_eq!(kind.form().name.parse::<Kind>().unwrap(), kind);
    }
    let e = "gru".parse::<Kind>().unwrap_err().to_string();
    assert!(e.contains("kind `gru` is not one of mingru, rglru"), "{e}");
    let e = SsmGates::new(Kind::Lru, usize::MAX, 2, 2).unwrap_err().to_string();
    assert!(e.contains("[B, D, T] = (18446744073709551615, 2, 2)"), "{e}");
    let options = PlanOptions { variant: Some("fast".into()), ..Default::default() };
    let p = SsmGates::new(Kind::Lru, 1, 1, 1).unwrap();
    let e = p.plan(&crate::Device::Cpu, &options).err().unwrap().to_string();
    assert!(e.contains("variant `fast` is not one of simd"), "{e}");
}
