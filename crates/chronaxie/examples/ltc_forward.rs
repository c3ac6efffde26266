//! A liquid time-constant layer from Rust, without the training loop: a wiring, parameters, one forward and one backward
//! pass, and how far both lie from the float64 reference.
//!
//! `cargo run --release -p chronaxie --example ltc_forward [BACKEND]`, where BACKEND is auto, cpu or cuda[:N].

use chronaxie::call::Session;
use chronaxie::layers::ltc::wirings::Rule;
use chronaxie::layers::ltc::{Ltc, init};
use chronaxie::op::{Pass, Problem, Tensors, Values};
use chronaxie::rng::Rng;
use chronaxie::{Backend, Device, Error, Result};
use std::sync::Arc;

/// Two seconds of a damped oscillation, sampled 30 times a second, as [B, T, D] = [1, 60, 2].
fn recording() -> Result<Values> {
    let samples = (0..60).flat_map(|t| {
        let seconds = f64::from(t) / 30.0;
        [(-seconds).exp() * (6.0 * seconds).sin(), (-seconds).exp() * (6.0 * seconds).cos()]
    });
    Ok(Values::new([1, 60, 2], samples.collect())?.rounded(chronaxie::Dtype::F32))
}

fn relative_error(a: &Values, b: &Values) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.data.iter().zip(&b.data).map(|(a, b)| a - b)) / norm(&mut b.data.iter().copied())
}

fn main() -> Result<()> {
    let backend: Backend = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let (device, why) = Device::open(backend)?;
    println!("{}", why.unwrap_or_else(|| format!("backend {}", device.place())));

    // 16 neurons, 2 of them motor neurons; most synapses are left out, and cost nothing.
    let wiring = Rule::auto_ncp(16, 2).build(2)?;
    let connectivity = Arc::new(wiring.connectivity()?);
    println!(
        "{} synapses among 16 neurons, {} from 2 inputs",
        connectivity.recurrent.len(),
        connectivity.sensory.len()
    );
    let mut problem = Ltc::new(1, 60, connectivity.clone());
    problem.outputs = 2;
    let problem = problem.build()?;

    // Everything that the forward pass reads, by name: the recording, the parameters, the lists of synapses.
    let parameters = init::initial_parameters(&problem, &wiring.adjacency, &wiring.sensory_adjacency, 1)?;
    let mut inputs: Tensors = parameters.iter().map(|(n, v)| (n.to_owned(), v.clone())).collect();
    inputs.insert("x", recording()?);
    for (name, values) in connectivity.values() {
        inputs.insert(name, values);
    }

    let problem: Arc<dyn Problem> = Arc::new(problem);
    let mut session = Session::new(problem.clone(), &device)?;
    println!("plan: {}", session.plan().config());
    let outputs = session.forward(&inputs)?;
    let out = outputs.get("out")?;
    println!("the motor neurons end at {:+.4} and {:+.4}", out.data[118], out.data[119]);

    // The gradient of a scalar that weighs every output by a random number.
    let mut rng = Rng::new(2, 0);
    let signature = problem.signature(Pass::Backward)?;
    for t in signature.inputs.iter().filter(|t| t.name.starts_with("grad_")) {
        let weights = Values::from_fn(t.shape, || if t.name == "grad_out" { rng.normal() } else { 0.0 });
        inputs.insert(t.name.clone(), weights.rounded(t.dtype));
    }
    let weights = inputs.iter().filter(|(n, _)| n.starts_with("grad_")).map(|(n, v)| (n.to_owned(), v.clone()));
    let gradients = session.backward(&weights.collect())?;

    for (pass, got, name) in [(Pass::Forward, &outputs, "out"), (Pass::Backward, &gradients, "grad_sigma")] {
        let error = relative_error(got.get(name)?, problem.reference(pass, &inputs, false)?.get(name)?);
        println!("{name}: relative error {error:.1e} against the float64 reference");
        if error.is_nan() || error > 1e-5 {
            return Err(Error::value(format!("{name} is off by {error:.1e}")));
        }
    }
    Ok(())
}
