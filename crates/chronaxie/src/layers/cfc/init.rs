//! Initial parameters, and random values for checks.

use super::spec::Cfc;
use crate::layers::ltc::init::stream;
use crate::op::{Pass, Role, Tensors, Values};
use crate::rng::Rng;
use crate::{Dtype, Result};

/// The parameters that training starts from, by name, rounded to f32, in the distributions of ncps.
///
/// Weights, `w_tau` and `A` (as matrices of one row) are uniform in Glorot and Bengio's range, biases in `1 / sqrt(fan in)`;
/// of the LSTM, biases in 0.1, and its recurrent matrix has orthonormal columns. The same seed gives a parameter the same
/// values whatever options others have. Masks are not among them.
pub fn initial_parameters(p: &Cfc, seed: u64) -> Tensors {
    let specs: Vec<_> = p.forward_inputs().into_iter().filter(|s| s.role == Role::Parameter).collect();
    let mut parameters = Tensors::new();
    let mut fan_in = 1;
    for spec in specs {
        let mut rng = stream(&spec.name, seed);
        let values = if spec.name == "lstm_recurrent_map_weight" {
            Values { data: orthonormal(spec.shape[0], spec.shape[1], &mut rng), shape: spec.shape }
        } else {
            let (rows, columns) =
                if spec.shape.len() == 2 { (spec.shape[0], spec.shape[1]) } else { (1, spec.shape[0]) };
            let reach = if spec.name == "lstm_input_map_bias" {
                0.1
            } else if spec.name.ends_with("_bias") {
                // A bias follows its weight.
                (fan_in as f64).recip().sqrt()
            } else {
                fan_in = columns.max(1);
                (6.0 / (rows + columns).max(1) as f64).sqrt()
            };
            Values::from_fn(spec.shape, || rng.range(-reach, reach))
        };
        parameters.insert(spec.name, values.rounded(Dtype::F32));
    }
    parameters
}

/// A matrix `[rows, columns]`, rows >= columns, with orthonormal columns: Gram and Schmidt's, each column twice, of random
/// normal ones.
pub(in crate::layers) fn orthonormal(rows: usize, columns: usize, rng: &mut Rng) -> Vec<f64> {
    let mut done: Vec<Vec<f64>> = Vec::new();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for _ in 0..columns {
        let mut v: Vec<f64> = (0..rows).map(|_| rng.normal()).collect();
        for _ in 0..2 {
            for other in &done {
                let along = dot(&v, other);
                v.iter_mut().zip(other).for_each(|(x, o)| *x -= along * o);
            }
        }
        let norm = dot(&v, &v).sqrt();
        done.push(v.iter().map(|x| x / norm).collect());
    }
    (0..rows * columns).map(|at| done[at % columns][at / columns]).collect()
}

/// Random values at unit scale, rounded to f32, for everything that `pass` reads but for what the forward pass wrote.
///
/// Weights keep the scale of what they are multiplied with; half of a mask is 0. Elapsed times are in `[0.1, 2]`.
///
/// # Errors
/// If the problem has no such pass.
pub fn sample(p: &Cfc, pass: Pass, seed: u64) -> Result<Tensors> {
    let signature = p.signature_of(pass)?;
    let drawn = signature.inputs.iter().filter(|s| s.role != Role::Saved && s.role != Role::Output);
    let draw = |spec: &crate::op::TensorSpec| {
        let mut rng = stream(&spec.name, seed);
        let scale = (spec.shape.last().copied().unwrap_or(1).max(1) as f64).recip().sqrt();
        let values = Values::from_fn(spec.shape, || draw(&spec.name, scale, &mut rng));
        (spec.name.to_string(), values.rounded(Dtype::F32))
    };
    Ok(drawn.map(draw).collect())
}

fn draw(name: &str, scale: f64, rng: &mut Rng) -> f64 {
    match name {
        "h0" | "c0" => 0.5 * rng.normal(),
        "elapsed" => rng.range(0.1, 2.0),
        // x and the gradients that arrive.
        _ if name == "x" || name.starts_with("grad_") => rng.normal(),
        _ if name.ends_with("_weight") => scale * rng.normal(),
        _ if name.ends_with("sparsity_mask") => f64::from(u8::from(rng.uniform() < 0.5)),
        _ if name.ends_with('A') => 1.0 + rng.range(-0.5, 0.5),
        // Biases and w_tau.
        _ => rng.range(-0.5, 0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::*;

    #[test]
    fn parameters_start_in_the_ranges_of_ncps() {
        let p = Cfc { mixed_memory: true, mode: Mode::Pure, ..Cfc::new(2, 3, 40, 8) };
        let t = initial_parameters(&p, 7);
        let reach = |name: &str| t.get(name).unwrap().data.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        for (name, bound) in [
            ("backbone_0_weight", (6.0f64 / (128.0 + 48.0)).sqrt()),
            ("backbone_0_bias", 48f64.sqrt().recip()),
            ("ff1_weight", (6.0f64 / (128.0 + 8.0)).sqrt()),
            ("ff1_bias", 128f64.sqrt().recip()),
            ("w_tau", (6.0f64 / 9.0).sqrt()),
            ("A", (6.0f64 / 9.0).sqrt()),
            ("lstm_input_map_weight", (6.0f64 / 72.0).sqrt()),
            ("lstm_input_map_bias", 0.1),
        ] {
            assert!(reach(name) <= bound && reach(name) > 0.7 * bound, "{name}: {} of {bound}", reach(name));
        }
        let r = &t.get("lstm_recurrent_map_weight").unwrap().data;
        for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
            let dot: f64 = (0..32).map(|k| r[k * 8 + i] * r[k * 8 + j]).sum();
            assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-6, "columns {i} and {j}: {dot}");
        }
        // The same seed, fewer options: the same values.
        let u = initial_parameters(&Cfc { mixed_memory: false, ..p.clone() }, 7);
        assert!(u.iter().all(|(name, v)| t.get(name).unwrap() == v));
        assert_ne!(initial_parameters(&p, 8), t);
        assert!(initial_parameters(&Cfc { mixed_memory: true, ..Cfc::new(1, 1, 0, 0) }, 1).iter().count() > 0);
    }

    #[test]
    fn a_sample_is_what_a_pass_reads_but_for_what_the_forward_pass_wrote() {
        for pass in [Pass::Forward, Pass::Backward] {
            let p = Cfc { initial_state: true, mixed_memory: true, ..Cfc::wired(2, 3, 4, &[5, 3, 2]) };
            let (signature, t) = (p.signature_of(pass).unwrap(), sample(&p, pass, 3).unwrap());
            for spec in &signature.inputs {
                let found = t.find(&spec.name);
                assert_eq!(found.is_some(), !matches!(spec.role, Role::Saved | Role::Output), "{}", spec.name);
                assert!(found.is_none_or(|v| v.shape == spec.shape), "{}", spec.name);
            }
            assert!(t.iter().all(|(_, v)| v.data.iter().all(|&x| x == f64::from(x as f32))));
            let mask = &t.get("layer_0_sparsity_mask").unwrap().data;
            assert!(mask.contains(&0.0) && mask.contains(&1.0));
        }
    }
}
