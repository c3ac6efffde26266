//! Initial parameters, and random values for checks.

use super::connectivity::Synapses;
use super::spec::{Constraint, Ltc};
use crate::layers::cfc::init::orthonormal;
use crate::op::{Pass, Role, Tensors, Values};
use crate::rng::Rng;
use crate::{Dtype, Error, Result};

/// The range that a parameter is drawn from, uniformly; a single value where both ends are equal.
///
/// The ranges of Hasani et al.'s implementations, which ncps and ltc-cuda share.
fn initial_range(name: &str) -> Option<(f64, f64)> {
    Some(match name.trim_start_matches("sensory_") {
        "w" | "gleak" => (0.001, 1.0),
        "mu" => (0.3, 0.8),
        "sigma" => (3.0, 8.0),
        "vleak" => (-0.2, 0.2),
        "cm" => (0.4, 0.6),
        "input_w" | "norm_weight" | "output_w" => (1.0, 1.0),
        "input_b" | "norm_bias" | "output_b" => (0.0, 0.0),
        "lstm_input_map_bias" => (-0.1, 0.1),
        _ => return None,
    })
}

/// Random numbers for the tensor `name`, which do not depend on what other tensors there are.
pub(in crate::layers) fn stream(name: &str, seed: u64) -> Rng {
    // FNV-1a: a stream for each name.
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    Rng::new(seed, name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

/// The parameters that training starts from, by name, rounded to f32.
///
/// `polarity` `[H, H]` and `sensory_polarity` `[D, H]` (+1 excitatory, -1 inhibitory, 0 no synapse; as a wiring gives
/// them) become `erev` and `sensory_erev`. The same seed gives a parameter the same values whatever options others have.
///
/// # Errors
/// If a polarity has the wrong number of elements or is not one of -1, 0, 1.
pub fn initial_parameters(p: &Ltc, polarity: &[i8], sensory_polarity: &[i8], seed: u64) -> Result<Tensors> {
    let mut parameters = Tensors::new();
    for spec in p.forward_inputs().into_iter().filter(|s| s.role == Role::Parameter) {
        let name = &*spec.name;
        let values = match (name, initial_range(name)) {
            ("lstm_recurrent_map_weight", _) => {
                let data = orthonormal(spec.shape[0], spec.shape[1], &mut stream(name, seed));
                Values::new(spec.shape, data)?
            }
            ("lstm_input_map_weight", _) => {
                let (mut rng, reach) = (stream(name, seed), (6.0 / (spec.shape[0] + spec.shape[1]) as f64).sqrt());
                Values::from_fn(spec.shape, || rng.range(-reach, reach))
            }
            (_, Some((low, high))) => {
                let mut rng = stream(name, seed);
                Values::from_fn(spec.shape, || rng.range(low, high))
            }
            (_, None) => {
                let from = if name == "erev" { polarity } else { sensory_polarity };
                if from.len() != spec.shape.elements() {
                    return Err(Error::shape(format!(
                        "ltc: {} polarities do not match {name}.shape = {} = {}",
                        from.len(),
                        spec.axes,
                        spec.shape
                    )));
                }
                if let Some(bad) = from.iter().find(|p| !matches!(p, -1..=1)) {
                    return Err(Error::value(format!("ltc: a polarity of {bad} for {name} is not one of -1, 0, 1")));
                }
                Values::new(spec.shape, from.iter().map(|&e| f64::from(e)).collect())?
            }
        };
        parameters.insert(name, values.rounded(Dtype::F32));
    }
    Ok(parameters)
}

/// Random values at unit scale, rounded to what is stored, for everything that `pass` reads but for what the forward pass wrote.
///
/// Parameters are spread wider than where training starts: sigma has both signs, and under softplus so have w, gleak and
/// cm. Elapsed times are in `[0.01, 0.1]`. Parameters of masked synapses are as random as the others: nothing may read
/// them.
///
/// # Errors
/// If the problem has no such pass.
pub fn sample(p: &Ltc, pass: Pass, seed: u64) -> Result<Tensors> {
    let signature = p.signature_of(pass)?;
    let saved = |s: &&crate::op::TensorSpec| s.role != Role::Saved && s.role != Role::Output;
    let mut tensors = Tensors::new();
    for spec in signature.inputs.iter().filter(saved).filter(|s| s.role != Role::Prepared) {
        let mut rng = stream(&spec.name, seed);
        let values = Values::from_fn(spec.shape, || draw(p, &spec.name, &mut rng));
        tensors.insert(spec.name.clone(), values.rounded(spec.dtype));
    }
    for (name, list) in p.connectivity.values() {
        tensors.insert(name, list);
    }
    Ok(tensors)
}

fn draw(p: &Ltc, name: &str, rng: &mut Rng) -> f64 {
    let free = p.constraint == Constraint::Softplus;
    match name.trim_start_matches("sensory_") {
        "h0" | "c0" => 0.5 * rng.normal(),
        // The sums behind the LSTM's gates at unit scale.
        "lstm_input_map_weight" => rng.range(-1.0, 1.0) * (3.0 / (1 + p.inputs) as f64).sqrt(),
        "lstm_recurrent_map_weight" => rng.range(-1.0, 1.0) * (3.0 / (1 + p.hidden) as f64).sqrt(),
        "lstm_input_map_bias" => rng.range(-0.5, 0.5),
        "elapsed" => rng.range(0.01, 0.1),
        "w" | "gleak" if free => rng.range(-1.5, 1.5),
        "w" | "gleak" => rng.range(0.1, 1.5),
        "cm" if free => rng.range(-1.0, 1.0),
        "cm" => rng.range(0.3, 1.2),
        "mu" => rng.range(-0.2, 0.8),
        // A quarter of the gates open downwards.
        "sigma" => rng.range(1.0, 8.0) * if rng.uniform() < 0.25 { -1.0 } else { 1.0 },
        "erev" => (if rng.uniform() < 0.8 { 1.0 } else { -1.0 }) + rng.range(-0.3, 0.3),
        "vleak" => rng.range(-0.5, 0.5),
        "input_w" | "norm_weight" | "output_w" => 1.0 + rng.range(-0.5, 0.5),
        "input_b" | "norm_bias" | "output_b" => rng.range(-0.5, 0.5),
        // x and the gradients that arrive.
        _ => rng.normal(),
    }
}

/// Polarities for synapses without a wiring: 1 with probability 0.8 and else -1 where there is a synapse, 0 elsewhere.
///
/// `[sources, targets]` row-major.
pub fn random_polarity(synapses: &Synapses, rng: &mut Rng) -> Vec<i8> {
    let mut polarity = vec![0; synapses.sources() * synapses.targets()];
    for (i, row) in polarity.chunks_mut(synapses.targets().max(1)).enumerate().take(synapses.sources()) {
        let out = synapses.source_offsets[i] as usize..synapses.source_offsets[i + 1] as usize;
        for &j in &synapses.target_of[out] {
            row[j as usize] = if rng.uniform() < 0.8 { 1 } else { -1 };
        }
    }
    polarity
}

#[cfg(test)]
mod tests {
    use super::super::{Connectivity, Mapping};
    use super::*;
    use std::sync::Arc;

    fn problem() -> Ltc {
        let mut p = Ltc::new(2, 3, Arc::new(Connectivity::full(4, 5).unwrap()));
        p.initial_state = true;
        p.elapsed = true;
        p.layer_norm = true;
        p.output_mapping = Mapping::Affine;
        p
    }

    #[test]
    fn parameters_start_in_their_ranges() {
        let p = problem();
        let t = initial_parameters(&p, &[1; 25], &[-1; 20], 7).unwrap();
        for (name, values) in t.iter() {
            let (low, high) = initial_range(name).unwrap_or((-1.0, 1.0));
            assert!(values.data.iter().all(|&x| x >= low && x <= high && x == f64::from(x as f32)), "{name}");
        }
        assert!(t.get("erev").unwrap().data.iter().all(|&e| e == 1.0));
        assert!(t.get("sensory_erev").unwrap().data.iter().all(|&e| e == -1.0));
        let spread = |name: &str| t.get(name).unwrap().data.iter().fold(0.0, |a: f64, &x| a.max(x));
        assert!(spread("sigma") > 7.0 && spread("w") > 0.8, "draws fill their range");
        assert_ne!(t.get("w").unwrap().data[..20], t.get("sensory_w").unwrap().data[..]);
        // The same seed, fewer options: the same values.
        let mut plain = problem();
        (plain.layer_norm, plain.output_mapping) = (false, Mapping::None);
        let u = initial_parameters(&plain, &[1; 25], &[-1; 20], 7).unwrap();
        assert!(u.iter().all(|(name, v)| t.get(name).unwrap() == v));
        assert_ne!(initial_parameters(&p, &[1; 25], &[-1; 20], 8).unwrap(), t);
    }

    #[test]
    fn wrong_polarities_are_refused() {
        let p = problem();
        let e = initial_parameters(&p, &[1; 24], &[1; 20], 7).unwrap_err().to_string();
        assert_eq!(e, "ltc: 24 polarities do not match erev.shape = [H, H] = (5, 5)");
        let e = initial_parameters(&p, &[1; 25], &[3; 20], 7).unwrap_err().to_string();
        assert_eq!(e, "ltc: a polarity of 3 for sensory_erev is not one of -1, 0, 1");
    }

    #[test]
    fn a_sample_is_what_a_pass_reads_but_for_what_the_forward_pass_wrote() {
        for pass in [Pass::Forward, Pass::Backward] {
            let p = problem();
            let (signature, t) = (p.signature_of(pass).unwrap(), sample(&p, pass, 3).unwrap());
            for spec in &signature.inputs {
                let found = t.find(&spec.name);
                assert_eq!(found.is_some(), !matches!(spec.role, Role::Saved | Role::Output), "{}", spec.name);
                assert!(found.is_none_or(|v| v.shape == spec.shape), "{}", spec.name);
            }
            assert!(t.iter().all(|(_, v)| v.data.iter().all(|&x| x == f64::from(x as f32))));
        }
    }

    #[test]
    fn random_polarities_follow_the_synapses() {
        let s = Synapses::from_fn(40, 30, |i, j| (i + j) % 3 != 0).unwrap();
        let polarity = random_polarity(&s, &mut Rng::new(1, 0));
        assert!((0..40 * 30).all(|at| (polarity[at] != 0) == ((at / 30 + at % 30) % 3 != 0)));
        let positive = polarity.iter().filter(|&&p| p == 1).count() as f64 / s.len() as f64;
        // 800 draws: a standard error of 0.014.
        assert!((positive - 0.8).abs() < 0.07, "{positive}");
        assert!(random_polarity(&Synapses::full(0, 3).unwrap(), &mut Rng::new(1, 0)).is_empty());
        assert!(random_polarity(&Synapses::full(3, 0).unwrap(), &mut Rng::new(1, 0)).is_empty());
    }
}
