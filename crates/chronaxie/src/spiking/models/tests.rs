//! Every model: its body against its law, and its law against the equation.

use super::*;
use crate::rng::Rng;

#[path = "accuracy_tests.rs"]
mod accuracy;

fn dynamic() -> impl Iterator<Item = &'static dyn Model> {
    all().iter().copied().filter(|m| m.kind() == Kind::Dynamics)
}

fn defaults(model: &dyn Model) -> Vec<f64> {
    model.parameters().iter().map(|p| p.default).collect()
}

fn initial(model: &dyn Model, parameters: &[f64]) -> Vec<f64> {
    let of = |name| model.parameters().iter().position(|p| p.name == name).unwrap();
    let value = |v: &Variable| match v.initial {
        Initial::Value(x) => x,
        Initial::Parameter(name) => parameters[of(name)],
    };
    let mut state: Vec<f64> = model.variables().iter().map(value).collect();
    model.enter(parameters, &mut state);
    state
}

/// Advances 37 cells by the body, each with constants of its own or all with the same.
struct Cells<'a> {
    model: &'a dyn Model,
    coefficients: Vec<f32>,
    states: Vec<Vec<f32>>,
}
const CELLS: usize = 48;

impl<'a> Cells<'a> {
    fn new(model: &'a dyn Model, parameters: &[f64], h: f64, start: &[f64]) -> Self {
        let mut coefficients = vec![0.0; model.coefficient_count()];
        model.coefficients(parameters, h, &mut coefficients);
        Self { model, coefficients, states: start.iter().map(|x| vec![*x as f32; CELLS]).collect() }
    }
    fn step(&mut self, inputs: &[Vec<f32>], each: bool) -> Vec<u8> {
        let mut spikes = vec![7; CELLS];
        let spread: Vec<f32> = self.coefficients.iter().flat_map(|c| [*c; CELLS]).collect();
        let coefficients = if each {
            Coefficients::Each { values: &spread, stride: CELLS, offset: 0 }
        } else {
            Coefficients::Shared(&self.coefficients)
        };
        self.model.step(&mut Block {
            coefficients,
            states: &mut self.states.iter_mut().map(|s| &mut s[..]).collect::<Vec<_>>(),
            inputs: Inputs::Given(&inputs.iter().map(|i| &i[..]).collect::<Vec<_>>()),
            spikes: &mut spikes,
        });
        spikes
    }
}

/// A size of weight that moves a cell of the model by about a millivolt, and no axon to a spike: on its upstroke, of 0.4 V
/// a ms, roundings grow a thousandfold.
fn weight(model: &dyn Model) -> f64 {
    match model.weight_unit() {
        "pA" => 100.0,
        "nS" => 3.0,
        "uA" => 0.2,
        _ => 0.5,
    }
}

/// Random input for 300 steps below the threshold: f32 stays within its rounding, summed over the memory of a membrane.
/// Each lane sees its own input, so lanes that are mixed up show; constants shared and spread give the same bits.
#[test]
fn bodies_follow_their_laws() {
    for model in dynamic() {
        let parameters = defaults(model);
        let h = 0.05;
        let start = initial(model, &parameters);
        let (mut cells, mut twin) =
            (Cells::new(model, &parameters, h, &start), Cells::new(model, &parameters, h, &start));
        let mut laws = vec![start.clone(); CELLS];
        let mut rng = Rng::new(9, 0);
        let ports = model.ports().len();
        let mut worst = 0.0f64;
        for _ in 0..300 {
            let sign = |port: usize| if ports == 2 && port == 1 { -1.0 } else { 1.0 };
            let draw = |rng: &mut Rng, port| {
                if rng.uniform() < 0.02 { sign(port) * weight(model) * rng.uniform() } else { 0.0 }
            };
            let inputs: Vec<Vec<f32>> =
                (0..ports).map(|p| (0..CELLS).map(|_| draw(&mut rng, p) as f32).collect()).collect();
            let fired = cells.step(&inputs, false);
            assert_eq!(twin.step(&inputs, true), fired);
            assert_eq!(twin.states, cells.states, "{}", model.name());
            for (c, law) in laws.iter_mut().enumerate() {
                let input: Vec<f64> = inputs.iter().map(|i| f64::from(i[c])).collect();
                assert_eq!(model.law(&parameters, h, law, &input), fired[c] == 1, "{} fires", model.name());
                worst = worst.max((law[0] - f64::from(cells.states[0][c])).abs());
            }
        }
        // Potentials are some tens of mV, of which f32 keeps 4e-6; twenty roundings that add up.
        assert!(worst < 1e-4 && worst > 0.0, "{}: {worst} mV", model.name());
    }
}

/// Strong input for 3000 steps: laws and bodies fire alike until a rounding decides one spike otherwise, which for a spike
/// in each cell is late.
#[test]
fn bodies_fire_as_their_laws_do() {
    for model in dynamic() {
        let mut parameters = defaults(model);
        let current = model.current().unwrap();
        parameters[current] = match model.weight_unit() {
            "uA" => 15.0,
            "mV" if model.name() == "izhikevich" => 20.0,
            "nS" => 300.0,
            "pA" if model.name() == "adex" => 1000.0,
            _ => 500.0,
        };
        let start = initial(model, &parameters);
        let h = 0.05;
        let mut cells = Cells::new(model, &parameters, h, &start);
        let mut law = start;
        let none = vec![vec![0.0; CELLS]; model.ports().len()];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for step in 0..3000 {
            let fired = cells.step(&none, false);
            assert!(fired.iter().all(|f| *f == fired[0]), "{}: equal cells differ", model.name());
            ours.extend((fired[0] == 1).then_some(step));
            let input = vec![0.0; model.ports().len()];
            theirs.extend(model.law(&parameters, h, &mut law, &input).then_some(step));
        }
        assert!(theirs.len() >= 5, "{} fires {} times", model.name(), theirs.len());
        assert_eq!(ours.len(), theirs.len(), "{}", model.name());
        // A rounding may move a spike by a step, and later ones with it.
        assert!(
            ours.iter().zip(&theirs).all(|(a, b)| (a - b as &i32).abs() <= 2),
            "{}: {ours:?} {theirs:?}",
            model.name()
        );
    }
}

/// The error of the law at a fixed time against steps a hundred times finer, halved and halved again: its fall is the order.
#[test]
fn orders_of_convergence_are_those_of_the_methods() {
    for (name, order, h, current) in [
        ("lif_cond", 2.0, 0.4, 0.0),
        ("izhikevich", 4.0, 0.5, 3.0),
        ("adex", 4.0, 0.5, 300.0),
        ("hodgkin_huxley", 4.0, 0.05, 1.0),
    ] {
        let model = find(name).unwrap();
        let mut parameters = defaults(model);
        parameters[model.current().unwrap()] = current;
        let end = 12.0;
        let at_end = |h: f64| {
            let mut state = initial(model, &parameters);
            // An arrival at the start, so that conductances and currents take part.
            state[0] += 3.0;
            match name {
                "lif_cond" => (state[1], state[2]) = (4.0, 8.0),
                "adex" => (state[2], state[3]) = (150.0, -80.0),
                "hodgkin_huxley" => state[4] = 1.0,
                _ => {}
            }
            let input = vec![0.0; model.ports().len()];
            for _ in 0..(end / h).round() as usize {
                assert!(!model.law(&parameters, h, &mut state, &input), "{name} fires");
            }
            state[0]
        };
        // The two faster time constants of adex are 0.2 ms: its steps must be below them to show their order.
        let h = if name == "adex" { 0.1 } else { h };
        let exact = at_end(h / 128.0);
        let errors: Vec<f64> = [h, h / 2.0, h / 4.0].iter().map(|h| (at_end(*h) - exact).abs()).collect();
        for pair in errors.windows(2) {
            let measured = (pair[0] / pair[1]).log2();
            assert!((measured - order).abs() < 0.4, "{name}: order {measured}, errors {errors:?}");
        }
    }
}

/// The regular-spiking and fast-spiking presets under 10 mV/ms fire at rates in the known proportion.
#[test]
fn presets_are_what_they_are_called() {
    let model = find("izhikevich").unwrap();
    let count = |preset: &str| {
        let mut p = defaults(model);
        let (_, values) = model.presets().iter().find(|(name, _)| *name == preset).unwrap();
        for (name, value) in *values {
            p[model.parameters().iter().position(|x| x.name == *name).unwrap()] = *value;
        }
        p[5] = 10.0;
        let mut state = initial(model, &p);
        (0..10_000).filter(|_| model.law(&p, 0.1, &mut state, &[0.0])).count()
    };
    // Izhikevich's eight and what the original has names for.
    assert_eq!(model.presets().len(), 27);
    assert!(model.presets().iter().all(|(name, _)| count(name) > 0));
    let (regular, fast, bursting) = (count("regular_spiking"), count("fast_spiking"), count("bursting"));
    assert!((15..40).contains(&regular) && fast > 3 * regular && bursting > regular, "{regular} {fast} {bursting}");
}

#[test]
fn names_are_found_or_suggested() {
    assert_eq!(find("iaf_psc_exp").unwrap().name(), "lif_exp");
    assert!(find("lif_epx").unwrap_err().contains("did you mean \"lif_exp\"?"));
    assert!(find("neuron").unwrap_err().contains("there are lif_exp, iaf_psc_exp"));
    let mut names: Vec<&str> = all().iter().map(|m| m.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().len());
    for model in all() {
        assert!(model.parameters().len() <= 32 && model.variables().len() <= 8 && model.ports().len() <= 2);
        assert_eq!(model.problem(&defaults(*model), 0.05), None, "{}", model.name());
        let bad: Vec<f64> = model.parameters().iter().map(|_| f64::NAN).collect();
        assert_eq!(model.problem(&bad, 0.05).is_some(), !bad.is_empty(), "{}", model.name());
    }
}

/// Every model with a reset and a refractory time says the same of both.
#[test]
fn resets_and_refractory_times_are_checked_alike() {
    let mut checked = 0;
    for model in all() {
        let list = model.parameters();
        let at = |name: &str| list.iter().position(|p| p.name == name);
        let (Some(reset), Some(t_ref)) = (at("V_reset"), at("t_ref")) else { continue };
        let threshold = at("V_peak").or_else(|| at("V_th")).unwrap();
        let mut p: Vec<f64> = list.iter().map(|p| p.default).collect();
        p[reset] = p[threshold];
        let said = model.problem(&p, 0.1).unwrap();
        let want = format!("at or above {} = {} mV, so that it never stops firing", list[threshold].name, p[threshold]);
        assert!(said.starts_with("has V_reset = ") && said.ends_with(&want), "{}: {said}", model.name());
        (p[reset], p[t_ref]) = (list[reset].default, -1.0);
        assert_eq!(model.problem(&p, 0.1).unwrap(), "has t_ref = -1 ms, which must not be negative");
        checked += 1;
    }
    assert_eq!(checked, 5);
}
