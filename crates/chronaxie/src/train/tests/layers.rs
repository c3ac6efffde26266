//! What holds for every layer that can be trained: gradients, padding, bits, resuming, predictions.

use super::*;
use crate::op::{Pass, Problem as _, Role, TensorSpec, Tensors, Values};
use crate::train::layer::{Tie, TrainableLayer};
use crate::{Dtype, Shape};

/// The layers, each with few numbers.
pub(super) fn models() -> Vec<String> {
    let ssm = |provider: &str, rest: &str| format!("layer = \"ssm\"\nprovider = \"{provider}\"\nhidden = 5\n{rest}");
    let mut models = vec!["hidden = 6\nunfolds = 2\ndt = 0.5\n".to_owned()];
    models.extend(["mingru", "rglru", "decay", "lru", "s5"].map(|p| ssm(p, "outputs = 6\n")));
    models.extend(["adaptive_unitary", "adaptive_polar", "mamba", "s4d"].map(|p| ssm(p, "outputs = 6\nstates = 3\n")));
    models.push(ssm("adaptive_unitary", "outputs = 6\nstates = 2\ngate = false\n"));
    models.push(ssm("s4d", "outputs = 6\nstates = 2\ndiscretisation = \"bilinear\"\nfrequencies = \"inverse\"\n"));
    for gate in ["gate = \"exp\"\n", "gate = \"sig\"\nchunk = 16\n", "gate = \"sig\"\nnormalize = true\n"] {
        models.push(format!("layer = \"mlstm\"\nheads = 2\noutputs = 6\n{gate}"));
    }
    models.into_iter().map(|m| format!("[model]\n{m}")).collect()
}

fn law_shape(t: &TensorSpec) -> Shape {
    let mut sizes = t.shape.to_vec();
    sizes.extend((t.dtype == Dtype::C64).then_some(2));
    Shape::new(&sizes)
}

/// What the head reads, by the laws of the layer's stages in f64.
fn states(layer: &dyn TrainableLayer, x: &Values, parameters: &Tensors) -> Values {
    let mut values = Tensors::new();
    values.insert("x", x.clone());
    for stage in layer.stages(x.shape[0], x.shape[1], false).unwrap() {
        let signature = stage.problem.signature(Pass::Forward).unwrap();
        let read = |t: &TensorSpec| {
            let found = match (stage.tie(&t.name), t.role) {
                (Some(Tie::Value(name)), _) => values.get(name).unwrap(),
                (Some(Tie::Parameter(name)), _) => parameters.get(&stage.own(name)).unwrap(),
                (None, Role::State) => &Values::zeros(law_shape(t)),
                (None, Role::Parameter | Role::Prepared) => parameters.get(&stage.own(&t.name)).unwrap(),
                (None, _) => values.get(&stage.own(&t.name)).unwrap(),
            };
            (t.name.to_string(), Values::new(law_shape(t), found.data.clone()).unwrap())
        };
        let inputs: Tensors = signature.inputs.iter().map(read).collect();
        let made = stage.problem.reference(Pass::Forward, &inputs, false).unwrap();
        for (name, v) in made.iter() {
            let name = match stage.tie(name) {
                Some(Tie::Value(name)) => name.to_owned(),
                _ => stage.own(name),
            };
            values.insert(name, v.clone());
        }
    }
    values.get("out").unwrap().clone()
}

/// The gradient of the loss through head and layer against central differences of the laws in f64.
#[test]
fn gradients_are_those_of_the_loss() {
    let scratch = setup("differences");
    let which = [3, 0, 11, 7];
    for (model, pooling) in models().iter().flat_map(|m| ["last", "mean", "every"].map(|p| (m, p))) {
        let text = config_of(model, &format!("pooling = \"{pooling}\"\n"));
        let (mut network, data) = network_of(&scratch, &text, vec![9], 4);
        let (found, _) = gradients(&mut network, &data.train, &which);
        let head = super::super::head::LinearHead::new(4, 9, 6, 2).pooling(pooling.parse().unwrap()).backward(false);
        let mut inputs: Tensors = network.layer.prepared();
        let key = |name: &str| name.strip_prefix("layer.").unwrap_or(name).to_owned();
        for (name, slot) in network.parameters().to_vec() {
            let values = network.banks.read_f32(&slot).unwrap().iter().map(|&x| f64::from(x)).collect();
            inputs.insert(key(&name), Values::new(slot.shape, values).unwrap());
        }
        let mut x = Values::zeros([4, 9, 2]);
        let (mut lengths, mut labels) = (Vec::new(), Vec::new());
        for (b, &i) in which.iter().enumerate() {
            let s = &data.train.series[i];
            s.values.iter().enumerate().for_each(|(at, &v)| x.data[b * 18 + at] = f64::from(v));
            lengths.push(s.len as f64);
            labels.push(f64::from(data.train.labels[i]));
        }
        let loss = |inputs: &Tensors| -> f64 {
            let mut of_head = Tensors::new();
            of_head.insert("h", states(&*network.layer, &x, inputs));
            of_head.insert("lengths", Values::new([4], lengths.clone()).unwrap());
            of_head.insert("labels", Values::new([4], labels.clone()).unwrap());
            for name in ["weight", "bias"] {
                of_head.insert(name, inputs.get(&format!("head.{name}")).unwrap().clone());
            }
            head.reference(Pass::Forward, &of_head, false).unwrap().get("loss").unwrap().data[0]
        };
        let mut rng = Rng::new(9, 0);
        for (name, gradient) in found {
            // Along a random direction, so that one pair of evaluations sees every element.
            let direction: Vec<f64> = gradient.iter().map(|_| rng.normal()).collect();
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                let values = inputs.get_mut(&key(&name)).unwrap();
                values.data.iter_mut().zip(&direction).for_each(|(v, d)| *v += by * d);
                loss(&inputs)
            };
            let h = 1e-4;
            let want = (moved(h) - moved(-h)) / (2.0 * h);
            let got: f64 = gradient.iter().zip(&direction).map(|(&g, d)| f64::from(g) * d).sum();
            let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            assert!((got - want).abs() < 2e-5 * norm.max(1e-3), "{model} {pooling} {name}: {got} {want} of {norm}");
        }
    }
}

#[test]
fn padding_changes_no_gradient_of_any_layer() {
    let scratch = setup("layer-padding");
    let which = [3, 0, 11, 7, 8];
    for model in models() {
        let of = |lengths: Vec<usize>, batch: usize| {
            let (mut network, data) = network_of(&scratch, &config_of(&model, ""), lengths, batch);
            gradients(&mut network, &data.train, &which)
        };
        let (tight, loss) = of(vec![9], 5);
        let (padded, padded_loss) = of(vec![13], 16);
        assert!((padded_loss - loss).abs() < 1e-6, "{model}: {padded_loss} {loss}");
        for ((name, a), (_, b)) in tight.iter().zip(&padded) {
            let norm = a.iter().map(|x| x * x).sum::<f32>().sqrt();
            let apart = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f32>().sqrt();
            assert!(norm > 0.0 || name.ends_with("_b"), "{model}: {name} has no gradient");
            assert!(apart <= 4e-6 * norm, "{model}: {name}: {apart} of {norm}");
        }
    }
}

#[test]
fn every_layer_resumes_bit_for_bit_and_predicts_what_it_was_tested_on() {
    let scratch = setup("layer-resume");
    for (at, model) in models().iter().enumerate() {
        let text = config_of(model, "noise = 0.05\n");
        let (whole, cut) = (format!("whole-{at}"), format!("cut-{at}"));
        crate::pool::set_num_threads(2);
        let report = train(&scratch, &text, &whole, false, &Silent).unwrap();
        let e = train(&scratch, &text, &cut, false, &StopAfter::new(7)).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Interrupted, "{model}: {e}");
        crate::pool::set_num_threads(1);
        train(&scratch, &text, &cut, true, &Silent).unwrap();
        let file = |out: &str| fs::read(scratch.file(out).join("model.safetensors")).unwrap();
        assert!(file(&whole) == file(&cut), "{model}: a resumed run has other bits");
        assert_eq!(metrics(&scratch, &whole), metrics(&scratch, &cut), "{model}");
        let said = predict(&scratch.file(&whole), &scratch.file("test.csv"), Backend::Cpu).unwrap();
        let right = said.iter().filter(|p| p.prediction == if p.index % 2 == 0 { "up" } else { "down" }).count();
        assert_eq!(right as f64 / said.len() as f64, report.test_accuracy.unwrap(), "{model}");
    }
}

#[test]
fn every_layer_learns_which_way_a_series_goes() {
    let scratch = setup("layer-learns");
    for (at, model) in models().iter().enumerate() {
        let text = config_of(model, "").replace("epochs = 3", "epochs = 30");
        let report = train(&scratch, &text, &format!("out-{at}"), false, &Silent).unwrap();
        assert!(report.test_accuracy.unwrap() >= 0.85, "{model}: {report:?}");
    }
}

#[test]
fn models_that_do_not_exist_are_refused_with_their_values() {
    let scratch = setup("layer-refused");
    let refused = |model: &str, want: &str| {
        let layer = if model.contains("layer") { "" } else { "layer = \"ssm\"\n" };
        let text = config_of(&format!("[model]\n{layer}{model}\n"), "");
        let e = train(&scratch, &text, "a", false, &Silent).unwrap_err().to_string();
        assert!(e.contains(want), "{want}: {e}");
        assert!(!scratch.file("a").exists());
    };
    refused("provider = \"mambo\"", "did you mean \"mamba\"?");
    refused("hidden = 0", "model.hidden must be at least 1");
    refused("states = 300", "N = 300 is not within 1 to 256");
    refused("provider = \"mingru\"\nstates = 3", "unknown key model.states");
    refused("provider = \"lru\"\nradius_max = 1.0", "model.radius_max must be from 0 to below 1, but it is 1");
    refused(
        "provider = \"decay\"\nradius_min = 0.9\nradius_max = 0.5",
        "model.radius_min is 0.9, above radius_max = 0.5",
    );
    refused("provider = \"lru\"\nangle = -1.0", "model.angle must be a positive number of radians, but it is -1");
    refused("provider = \"mamba\"\ndelta_min = 0.0", "model.delta_min must be a positive number, but it is 0");
    refused("layer = \"mlstm\"\nkey_size = 20", "head size K = 20 is not a multiple of 16");
    refused("layer = \"mlstm\"\nnormalize = false", "normalize = false is not offered");
    refused("layer = \"mlstm\"\ngate = \"tanh\"", "model.gate must be one of");
    refused("provider = \"s4d\"\ndiscretisation = \"euler\"", "model.discretisation must be one of");
}

/// Squares of classes as numbers, one of which is 1: for tasks that have an exact solution, to which their gradient leads.
#[test]
fn classes_can_be_learned_by_squares() {
    let scratch = setup("layer-squares");
    let text = config_of("[model]\nlayer = \"ssm\"\nprovider = \"mingru\"\nhidden = 8\n", "loss = \"mse\"\n");
    let report = train(&scratch, &text.replace("epochs = 3", "epochs = 30"), "out", false, &Silent).unwrap();
    assert!(report.test_accuracy.unwrap() >= 0.85 && report.test_loss.unwrap() < 0.2, "{report:?}");
    let said = predict(&scratch.file("out"), &scratch.file("test.csv"), Backend::Cpu).unwrap();
    let right = said.iter().filter(|p| p.prediction == if p.index % 2 == 0 { "up" } else { "down" }).count();
    assert_eq!(right as f64 / said.len() as f64, report.test_accuracy.unwrap());
    assert!(said.iter().all(|p| p.score.is_none()));
    let e = train(&scratch, &text.replace("\"mse\"", "\"hinge\""), "a", false, &Silent).unwrap_err().to_string();
    assert!(e.contains("train.loss must be one of"), "{e}");
}
