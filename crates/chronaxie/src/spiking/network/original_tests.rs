//! A configuration with every field of the original, each read, bounded, and refused where it is wrong.

use crate::config::Config;
use crate::spiking::life::{Life, Living, Make};
use crate::spiking::network::read::read;
use crate::spiking::network::{DriveKind, Rule, Shape};
use crate::spiking::plasticity::ShortTerm;
use crate::spiking::simulate::{Checkpoint, CpuEngine, Engine, Reference, Spike};
use crate::spiking::{Plan, connect};
use crate::{Error, ErrorKind};

const BRAIN: &str = r#"{
  "model_version": 1,
  "dimensions": 4,
  "lattice_shape": [6, 5, 4, 3],
  "neuron_model": {
    "type": "LIF",
    "params_default": {
      "tau_m": 20.0,
      "v_rest": -65.0,
      "v_reset": -70.0,
      "v_threshold": -50.0,
      "refractory_period": 5.0
    }
  },
  "cell_lifecycle": {
    "enable_death": true,
    "enable_reproduction": true,
    "max_age": 100000,
    "health_decay_per_step": 0.0001,
    "mutation_std_params": 0.05,
    "mutation_std_weights": 0.02
  },
  "plasticity": {
    "rule": "hebb_like",
    "learning_rate": 0.001,
    "weight_min": -1.0,
    "weight_max": 1.0,
    "weight_decay": 0.00001,
    "homeostatic": {
      "enabled": true,
      "target_rate": 5.0,
      "time_window": 1000,
      "scaling_rate": 0.01
    },
    "metaplasticity": {
      "enabled": true,
      "bcm_tau": 1000.0,
      "bcm_target_rate": 5.0
    },
    "short_term": {
      "enabled": true,
      "default_type": "mixed",
      "facilitation_fraction": 0.3
    }
  },
  "neuromodulation": {
    "enabled": true,
    "dopamine": {
      "baseline": 0.5,
      "decay_rate": 0.1,
      "learning_rate_modulation": 2.0
    },
    "serotonin": {
      "baseline": 0.5,
      "decay_rate": 0.1,
      "inhibition_strength": 0.5
    },
    "norepinephrine": {
      "baseline": 0.5,
      "decay_rate": 0.1,
      "gain_modulation": 2.0
    }
  },
  "senses": {
    "vision": {
      "areal": "V1_like",
      "w_index": 0,
      "input_size": [6, 5]
    },
    "digital": {
      "areal": "Digital_sensor",
      "w_index": 2,
      "input_description": "any stream",
      "input_size": [3, 2]
    }
  },
  "areas": [
    {
      "name": "V1_like",
      "sense": "vision",
      "coord_ranges": {
        "x": [0, 5],
        "y": [0, 4],
        "z": [0, 3],
        "w": [0, 0]
      }
    },
    {
      "name": "Digital_sensor",
      "sense": "digital",
      "coord_ranges": {
        "x": [0, 2],
        "y": [0, 1],
        "z": [1, 3],
        "w": [2, 2]
      }
    }
  ],
  "simulation": {
    "connection_probability": 0.3
  }
}
"#;

/// Nothing changes.
const STILL: [&str; 6] = [
    "plasticity.learning_rate=0",
    "plasticity.weight_decay=0",
    "plasticity.homeostatic.enabled=false",
    "plasticity.metaplasticity.enabled=false",
    "plasticity.short_term.enabled=false",
    "neuromodulation.enabled=false",
];

/// Input and synapses that make all cells fire now and then, and weights move.
const LIVELY: [&str; 4] =
    ["simulation.input=40", "simulation.weight_mean=20", "plasticity.weight_max=100", "plasticity.weight_min=-100"];

/// Engines by themselves do without.
const UNDYING: &str = "cell_lifecycle.enable_death=false";

/// The test's configuration, changed so, of cells that do not die.
pub(crate) fn brain(set: &[&str]) -> crate::spiking::network::Network {
    read(&config(BRAIN, &[&LIVELY[..], &[UNDYING], set].concat())).unwrap().network
}

fn config(text: &str, set: &[&str]) -> Config {
    let mut config = Config::parse(text, "brain.json").unwrap();
    set.iter().for_each(|s| config.set(s).unwrap());
    config
}

fn refused(text: &str, set: &[&str]) -> Error {
    read(&config(text, set)).unwrap_err()
}

fn spikes(set: &[&str], steps: u64) -> (Plan, Vec<Spike>) {
    let plan = Plan::new(read(&config(BRAIN, &[&[UNDYING], set].concat())).unwrap().network).unwrap();
    let mut engine = CpuEngine::with_shards(&plan, 2, &|_, _| {}).unwrap();
    let mut found = Vec::new();
    engine.advance(steps, &mut found).unwrap();
    drop(engine);
    (plan, found)
}

#[test]
fn every_field_is_read() {
    let c = config(BRAIN, &[]);
    let s = read(&c).unwrap();
    let n = &s.network;
    let names: Vec<&str> = n.populations.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["V1_like", "V1_like inhibitory", "Digital_sensor", "Digital_sensor inhibitory"]);
    assert_eq!(n.populations[0].size + n.populations[1].size, 120);
    assert_eq!(n.populations[2].size + n.populations[3].size, 18);
    assert_eq!((n.dt_ms, s.duration_ms), (1.0, 1000.0));
    // Each site once, excitatory or inhibitory.
    let mut places: Vec<[i32; 4]> = Vec::new();
    for p in &n.populations[2..] {
        places.extend(p.positions.as_ref().unwrap().iter().map(|x| x.map(|x| x as i32)));
    }
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 18);
    assert!(places.iter().all(|p| p[3] == 2 && (1..=3).contains(&p[2]) && p[0] < 3 && p[1] < 2));
    // C_m, tau_m, E_L, V_th, V_reset, t_ref.
    let own: Vec<f64> = n.populations[0].parameters[..6].iter().map(|p| p.constant().unwrap()).collect();
    assert_eq!(own, [20.0, 20.0, -65.0, -50.0, -70.0, 4.0]);
    assert!(n.drives.iter().all(|d| matches!(d.kind, DriveKind::Dc { .. })));
    // Four populations, all pairs, no cell onto itself, signs by the source; three tenths of the synapses facilitate, the others
    // tire. Norepinephrine doubles what arrives, serotonin takes inhibition up by a quarter.
    assert_eq!(n.projections.len(), 32);
    for (i, p) in n.projections.iter().enumerate() {
        assert!(!p.autapses);
        let sign = if p.source % 2 == 1 { -1.0 } else { 1.0 };
        let Shape::Normal { mean, .. } = p.weight.shape else { panic!("normal") };
        let unit = (1.0 - (-0.05f64).exp()) * if sign < 0.0 { 2.5 } else { 2.0 };
        assert!((mean * sign - 0.1 * unit).abs() < 1e-12);
        let (share, u) = if i % 2 == 0 { (0.3, 0.15) } else { (0.7, 0.6) };
        let Rule::Probability(probability) = p.rule else { panic!("probability") };
        let what = p.plasticity.unwrap();
        assert!((probability - share * 0.3).abs() < 1e-12);
        assert_eq!(what.short_term.map(|s| s.u), Some(u));
        let (c, b, h) = (what.coincidence.unwrap(), what.bcm.unwrap(), what.homeostasis.unwrap());
        assert_eq!((c.a, c.a_pre, b.a), (0.001, 0.0005, 0.001));
        assert_eq!((b.target_hz, b.tau_threshold_ms), (5.0, 1000.0));
        assert_eq!((h.target_hz, h.window_ms, h.rate), (5.0, 1000.0, 0.01));
        let (low, high) = what.bounds().unwrap();
        assert!(low == 0.0 && (high - unit).abs() < 1e-12 && (what.decay_per_ms - 1e-5 * unit).abs() < 1e-18);
    }
    let plan = Plan::new(s.network.clone()).unwrap();
    for i in 0..32 {
        let t = connect::synapses(&plan, i).unwrap();
        assert!(t.weight.iter().all(|w| if plan.network.projections[i].source % 2 == 1 {
            *w <= 0.0
        } else {
            *w >= 0.0
        }));
        assert!(t.delay_ms.iter().all(|d| *d == 1.0));
    }
    let life = n.lifecycle.as_ref().unwrap();
    assert_eq!((life.max_age_ms, life.health_decay_per_ms, life.reproduction), (100_000.0, 0.0001, true));
    assert_eq!((life.interval_ms, life.mutation_std_params, life.populations.len()), (1.0, 0.05, 4));
    for (p, sd) in n.projections.iter().zip(&life.mutation_std_weights) {
        let unit = (1.0 - (-0.05f64).exp()) * if p.source % 2 == 1 { 2.5 } else { 2.0 };
        assert!((sd - 0.02 * unit).abs() < 1e-15);
    }
    // C_m with tau_m, then E_L, V_reset, V_th, t_ref; what goes in is no property.
    let groups: Vec<Vec<usize>> = life.groups(n, 0).into_iter().map(|g| g.1).collect();
    assert_eq!(groups, [vec![0, 1], vec![2], vec![4], vec![3], vec![5]]);
    assert!(brain(&[]).lifecycle.is_none());
    for word in ["homeostatic", "metaplasticity", "short-term", "neuromodulation", "synapses that inhibit"] {
        assert!(s.notes.iter().any(|n| n.contains(word)), "{word}: {:?}", s.notes);
    }
    assert!(!s.notes.iter().any(|n| n.contains("not simulated yet")), "{:?}", s.notes);
    // As resolved it is the same configuration, also as TOML.
    let again = Config::parse(&c.resolved(), "brain.toml").unwrap();
    assert_eq!(format!("{:?}", read(&again).unwrap().network), format!("{n:?}"));
}

/// Each line with a value: a value of another kind, and another name for its key, are refused with that line.
#[test]
fn every_field_is_refused_where_it_is_wrong() {
    let lines: Vec<&str> = BRAIN.lines().collect();
    let mut tried = 0;
    for (i, line) in lines.iter().enumerate() {
        let Some((key, value)) = line.trim().split_once(": ") else { continue };
        let (key, value) = (key.trim_matches('"'), value.trim_end_matches(','));
        let with = |line: String| {
            let mut all: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
            all[i] = line;
            all.join("\n")
        };
        if !value.starts_with(['{']) && value != "[" {
            let wrong = if value.starts_with('"') { "7" } else { "\"seven\"" };
            let e = refused(&with(line.replace(value, wrong)), &[]);
            assert!(e.to_string().contains(&format!("brain.json:{}:", i + 1)), "{key}: {e}");
            assert!(e.to_string().contains(key), "{key}: {e}");
            tried += 1;
        }
        // Names of senses are the user's own.
        if ["vision", "digital"].contains(&key) {
            continue;
        }
        let text = with(line.replace(&format!("\"{key}\""), &format!("\"{key}_x\"")));
        let e = match Config::parse(&text, "brain.json") {
            Ok(c) => read(&c).unwrap_err(),
            Err(e) => e,
        };
        assert!(matches!(e.kind(), ErrorKind::Config { .. }), "{key}: {e}");
        assert!(e.to_string().contains(key) || key == "lattice_shape", "{key}: {e}");
    }
    assert!(tried > 45, "{tried}");
    for (set, says) in [
        ("lattice_shape=[6,5,4]", "must have 4 sizes"),
        ("dimensions=3", "is 3, but 4"),
        ("neuron_model.type=Izhikevic", "there are LIF"),
        ("neuron_model.params_default.tau_m=0", "above 0 ms"),
        ("plasticity.weight_min=2", "above weight_max"),
        ("plasticity.rule=oja", "is \"oja\", but there are hebb_like, stdp, bcm, none"),
        ("plasticity.rule=stdp", "a threshold slides under the rules hebb_like and bcm"),
        ("plasticity.learning_rate=-1", "plasticity.learning_rate must be finite and not negative"),
        ("plasticity.learning_rate=3", "more than from weight_min = -1 to weight_max = 1"),
        ("plasticity.weight_decay=-1", "plasticity.weight_decay must be finite and not negative"),
        ("plasticity.homeostatic.target_rate=0", "plasticity.homeostatic.target_rate is 0 Hz"),
        ("plasticity.homeostatic.time_window=0", "plasticity.homeostatic.time_window is 0 ms"),
        ("plasticity.homeostatic.scaling_rate=2", "plasticity.homeostatic.scaling_rate is 2, not from 0 to 1"),
        ("plasticity.metaplasticity.bcm_tau=0", "plasticity.metaplasticity.bcm_tau is 0 ms"),
        ("plasticity.metaplasticity.bcm_target_rate=2000", "plasticity.metaplasticity.bcm_target_rate is 2000 Hz"),
        ("plasticity.short_term.facilitation_fraction=2", "must be from 0 to 1, but it is 2"),
        ("neuromodulation.dopamine.baseline=2", "must be from 0 to 1, but it is 2"),
        ("neuromodulation.serotonin.inhibition_strength=-1", "finite and not negative, but it is -1"),
        ("cell_lifecycle.health_decay_per_step=-1", "cell_lifecycle.health_decay_per_step is -1 a ms"),
        ("cell_lifecycle.mutation_std_params=-1", "cell_lifecycle.mutation_std_params is -1"),
        ("cell_lifecycle.mutation_std_weights=-1", "cell_lifecycle.mutation_std_weights is -"),
        ("simulation.lifecycle_interval=0", "simulation.lifecycle_interval is 0 ms"),
        ("simulation.initial_age=-3", "simulation.initial_age comes down to -3 ms"),
        ("areas.0.coord_ranges.x=[0,6]", "within 0 and 5"),
        ("areas.0.coord_ranges.x=[3,2]", "the first and the last site"),
        ("areas.1.name=V1_like", "which another area has"),
        ("areas.1.sense=smell", "there are vision, digital"),
        ("senses.vision.areal=V9", "which is no area"),
        ("senses.vision.w_index=3", "slices from 0 to 2"),
        ("senses.vision.input_size=[6]", "two sizes"),
        ("simulation.density=1.5", "must be from 0 to 1"),
        ("simulation.weight_std=-1", "must not be negative"),
        ("simulation.scale=0.1", "unknown key simulation.scale"),
    ] {
        let e = refused(BRAIN, &[set]);
        assert!(e.to_string().contains(says), "{set}: {e}");
    }
    for (set, says) in [
        ("senses.vision.input_size=[5,5]", "[5, 5]"),
        ("senses.vision.areal=Digital_sensor", "the area Digital_sensor, whose sense is \"digital\""),
    ] {
        let notes = read(&config(BRAIN, &[set])).unwrap().notes;
        assert!(notes.iter().any(|n| n.contains(says)), "{set}: {notes:?}");
    }
}

/// The cell of the main loop: 20 mV from rest reach the threshold after 28 steps, from the reset after 33, with 4 steps held.
#[test]
fn cells_are_those_of_the_main_loop() {
    let (plan, found) = spikes(&["simulation.connection_probability=0"], 200);
    let first: Vec<u64> = found.iter().filter(|s| s.cell == found[0].cell).map(|s| s.step).collect();
    assert_eq!(first, [27, 64, 101, 138, 175]);
    // The first z-layer of each area and no other, whether it excites or inhibits.
    let mut fired: Vec<u32> = found.iter().map(|s| s.cell).collect();
    fired.sort_unstable();
    fired.dedup();
    let mut driven = Vec::new();
    for (p, first) in plan.network.populations.iter().zip(&plan.first) {
        let low = if p.name.starts_with("V1") { 0.0 } else { 1.0 };
        let cells = p.positions.as_ref().unwrap().iter().enumerate().filter(|(_, x)| x[2] == low);
        driven.extend(cells.map(|(i, _)| *first as u32 + i as u32));
    }
    assert_eq!(fired, driven);
    assert_eq!(driven.len(), 30 + 6);
}

/// Inhibition and excitation arrive, after the delay, with their signs; other models run.
#[test]
fn what_the_original_promised_runs() {
    let strong =
        [&STILL[..], &["simulation.weight_mean=400", "plasticity.weight_max=1000", "plasticity.weight_min=-1000"]]
            .concat();
    let alone = |inhibitory: &str| {
        let set = format!("simulation.inhibitory_fraction={inhibitory}");
        spikes(&[&strong[..], &[set.as_str(), "simulation.delay=3"]].concat(), 60).1
    };
    let excited = alone("0");
    // Who is driven fires in step 27; who is not, three steps later.
    let steps: Vec<u64> = excited.iter().map(|s| s.step).take_while(|s| *s < 60).collect();
    assert_eq!((steps[0], steps.iter().find(|s| **s > 27)), (27, Some(&30)));
    // All inhibit: nobody but the driven ever fires, and those once less.
    let inhibited = alone("1");
    assert!(inhibited.iter().all(|s| s.step == 27) && inhibited.len() == 36, "{}", inhibited.len());
    for model in ["Izhikevich", "Hodgkin-Huxley"] {
        let (plan, found) = spikes(&[format!("neuron_model.type={model}").as_str()], 4000);
        assert!(found.len() > 36, "{model}: {}", found.len());
        assert_eq!(plan.network.dt_ms, if model == "Izhikevich" { 1.0 } else { 0.05 });
    }
    // Fewer cells, and the same again from the same seed.
    let thin = read(&config(BRAIN, &["simulation.density=0.5", "simulation.seed=9"])).unwrap().network;
    assert!((40..100).contains(&thin.cells()), "{}", thin.cells());
    assert_eq!(spikes(&strong, 100).1, spikes(&strong, 100).1);
}

/// Texts that are damaged: a sentence or a network, and never a panic.
#[test]
fn no_text_makes_it_panic() {
    let mut rng = crate::rng::Rng::new(21, 0);
    let words =
        ["0", "-1", "1e308", "\"E\"", "[]", "{}", "99999999999", "0.5", "true", "[[1]]", "\"\"", "1e-300", "[0, 1]"];
    let mut planned = 0;
    for _ in 0..300 {
        let mut text = BRAIN.to_owned();
        for _ in 0..=rng.below(2) {
            let values: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
            let at = values[rng.below(values.len() as u64) as usize];
            let len = text[at..].find([',', '\n', '}']).unwrap_or(0);
            text.replace_range(at..at + len, words[rng.below(words.len() as u64) as usize]);
        }
        if rng.below(4) == 0 {
            text.truncate(rng.below(text.len() as u64) as usize);
        }
        if let Ok(s) = Config::parse(&text, "brain.json").and_then(|c| read(&c)) {
            planned += u32::from(Plan::new(s.network).is_ok());
        }
    }
    assert!(planned > 8, "only {planned} were whole");
}

/// The original's main loop: in each step, of every synapse, Hebb's rule by what fired in it, the bounds, then decay towards 0.
#[test]
fn weights_are_those_of_the_main_loop() {
    let of = |rate: &str, decay: &str| {
        let (rate, decay) = (format!("plasticity.learning_rate={rate}"), format!("plasticity.weight_decay={decay}"));
        let network = brain(&[&STILL[2..], &[rate.as_str(), decay.as_str(), "simulation.delay=3"]].concat());
        let (rate, decay) = (rate.split_once('=').unwrap().1, decay.split_once('=').unwrap().1);
        (Plan::new(network).unwrap(), rate.parse::<f64>().unwrap(), decay.parse::<f64>().unwrap())
    };
    for (plan, rate, decay) in [of("0.5", "0.002"), of("3", "0"), of("0", "0.05")] {
        let steps = 1500;
        let mut engine = CpuEngine::with_shards(&plan, 3, &|_, _| {}).unwrap();
        let before: Vec<_> = (0..16).map(|i| engine.table(i).unwrap()).collect();
        let mut spikes = Vec::new();
        engine.advance(steps, &mut spikes).unwrap();
        let mut fired = vec![vec![false; plan.cells() as usize]; steps as usize];
        spikes.iter().for_each(|s| fired[s.step as usize][s.cell as usize] = true);
        let unit = 1.0 - (-0.05f64).exp();
        let (mut moved, mut ends, mut together) = (0f64, 0, 0);
        for (i, before) in before.iter().enumerate() {
            let p = &plan.network.projections[i];
            let after = engine.table(i).unwrap();
            for k in 0..before.weight.len() {
                let pre = plan.first[p.source] as usize + before.source[k] as usize;
                let post = plan.first[p.target] as usize + before.target[k] as usize;
                let begun = f64::from(before.weight[k].abs()) / unit;
                let mut w = begun;
                for (n, fired) in fired.iter().enumerate() {
                    w += match (fired[pre], fired[post]) {
                        (true, true) => rate,
                        (true, false) => -0.5 * rate,
                        _ => 0.0,
                    };
                    together += usize::from(fired[pre] && fired[post]);
                    w = w.clamp(0.0, 100.0);
                    // What the last step's end takes is at the beginning of the one to come.
                    if n + 1 < steps as usize {
                        w = (w - decay).max(0.0);
                    }
                }
                let got = f64::from(after.weight[k].abs()) / unit;
                assert!((got - w).abs() < 2e-4, "synapse {k} of {i}: {got}, not {w}");
                (moved, ends) = (moved.max((w - begun).abs()), ends + usize::from(w == 0.0));
            }
        }
        assert!(spikes.len() > 3000 && moved > 5.0, "{} spikes, {moved}", spikes.len());
        assert!(together > 500 && (rate < 1.0 || ends > 20), "{together} in the same step, {ends} at an end");
    }
}

/// The file with its life cycle: all cells die in the step of the original, or one by one where they begin at ages of their own; spikes
/// and weights are the law's.
#[test]
fn cells_of_the_file_die_and_are_born() {
    let short = "cell_lifecycle.health_decay_per_step=0.004";
    let ages = "simulation.initial_age={ distribution = \"uniform\", low = 0.0, high = 220.0 }";
    for (set, deaths) in [(&[short][..], 138 * 5), (&[short, ages, "simulation.plasticity=false"][..], 700)] {
        let network = read(&config(BRAIN, &[&LIVELY[..], set].concat())).unwrap().network;
        let plan = Plan::new(network.clone()).unwrap();
        let steps = 1300;
        let (mut want, mut got) = (Vec::new(), Vec::new());
        let mut law = Reference::in_f32(&plan).unwrap();
        law.advance(steps, &mut want).unwrap();
        let make: Make = Box::new(|plan| Ok(Box::new(CpuEngine::with_shards(plan, 2, &|_, _| ())?)));
        let mut engine = Living::new(network, make).unwrap();
        engine.advance(steps, &mut got).unwrap();
        let lives = engine.lives().unwrap().unwrap();
        assert!(want.len() > 3000 && got == want, "{} spikes, not {}", got.len(), want.len());
        assert!(lives.died >= deaths && lives.died == lives.born, "{lives:?}");
        assert_eq!(lives.generation, law.lives().unwrap().0);
        if set.len() == 1 {
            // 1 - 225 * 0.004 is below a tenth, as doubles are subtracted.
            let life = Life::of(&plan).unwrap();
            assert_eq!((life.next(0), life.next(225), life.dying(450).len()), (Some(225), Some(450), 138));
        }
    }
}

/// All of the file at once, and each rule: the law's bits on any number of threads and shards, and from a checkpoint.
#[test]
fn all_that_changes_has_the_same_bits_however_it_is_cut_and_resumed() {
    let rules: [&[&str]; 4] = [
        &[],
        &["plasticity.rule=bcm", "neuromodulation.dopamine.baseline=1"],
        &["plasticity.rule=stdp", "plasticity.metaplasticity.enabled=false"],
        &["plasticity.rule=none", "plasticity.metaplasticity.enabled=false", "plasticity.homeostatic.enabled=false"],
    ];
    for set in rules {
        let rate =
            ["plasticity.learning_rate=0.2", "plasticity.weight_decay=0.001", "plasticity.homeostatic.time_window=100"];
        let plan = Plan::new(brain(&[&rate[..], set].concat())).unwrap();
        let (half, steps) = (777, 2000);
        let mut want = Vec::new();
        let mut law = Reference::in_f32(&plan).unwrap();
        law.advance(steps, &mut want).unwrap();
        assert!(want.len() > 2000, "{set:?}: {}", want.len());
        let mut last = None;
        for (threads, shards) in [(1, 1), (2, 3), (1, 4)] {
            crate::pool::set_num_threads(threads);
            let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| {}).unwrap();
            let begun = engine.state().unwrap();
            let mut got = Vec::new();
            engine.advance(half, &mut got).unwrap();
            let checkpoint = Checkpoint {
                fingerprint: [0; 32],
                state: engine.state().unwrap(),
                hash: Default::default(),
                replicas: vec![],
                logged: 0,
                counts: vec![],
            };
            let read = Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap();
            let mut other = CpuEngine::with_shards(&plan, 5 - shards, &|_, _| {}).unwrap();
            other.restore(&read.state).unwrap();
            other.advance(steps - half, &mut got).unwrap();
            assert!(got == want, "{set:?}: {} spikes, not {}", got.len(), want.len());
            let own = other.state().unwrap();
            let strengths = |s: &crate::spiking::simulate::State| s.learned.as_ref().unwrap().strengths.clone();
            assert_ne!(strengths(&own), strengths(&begun));
            assert!(last.as_ref().is_none_or(|l| *l == own), "{set:?}: the state at the end");
            last = Some(own);
        }
    }
}

/// What the tables beside the rule are, one by one.
#[test]
fn each_table_says_what_synapses_do() {
    let first = |set: &[&str]| brain(set).projections[0].plasticity;
    assert_eq!(first(&STILL), None);
    assert_eq!(
        (first(&["simulation.plasticity=false"]), brain(&["simulation.plasticity=false"]).projections.len()),
        (None, 16)
    );
    let kept = read(&config(BRAIN, &["simulation.plasticity=false"])).unwrap().notes;
    assert!(kept.len() == 1 && kept[0].starts_with("neuromodulation"), "{kept:?}");
    let still = |set: &[&str]| first(&[&STILL[..], set].concat());
    let decay = still(&["plasticity.weight_decay=0.5"]).unwrap();
    let unit = 1.0 - (-0.05f64).exp();
    assert!((decay.decay_per_ms - 0.5 * unit).abs() < 1e-12 && decay.coincidence.is_some_and(|c| c.a == 0.0));
    // The bounds of both signs, from 0 or from what is beyond it.
    let bounded = |low: &str, high: &str, at: usize| {
        let ends = [format!("plasticity.weight_min={low}"), format!("plasticity.weight_max={high}")];
        let set = [&STILL[1..], &ends.each_ref().map(String::as_str)].concat();
        let (low, high) = brain(&set).projections[at].plasticity?.bounds().unwrap();
        Some(((low / unit).round(), (high / unit).round()))
    };
    assert_eq!(bounded("-30", "50", 0), Some((0.0, 50.0)));
    assert_eq!(bounded("-30", "50", 5), Some((0.0, 30.0)));
    assert_eq!(bounded("10", "50", 0), Some((10.0, 50.0)));
    let short = |kind: &str| {
        let kind = format!("plasticity.short_term.default_type={kind}");
        let n = brain(&[&STILL[..4], &["plasticity.short_term.enabled=true", &kind]].concat());
        (n.projections.len(), n.projections[0].plasticity.and_then(|p| p.short_term))
    };
    let facilitating = ShortTerm { u: 0.15, tau_rec_ms: 50.0, tau_fac_ms: 750.0 };
    let depressing = ShortTerm { u: 0.6, tau_rec_ms: 800.0, tau_fac_ms: 20.0 };
    assert_eq!(short("facilitating"), (16, Some(facilitating)));
    assert_eq!(short("depressing"), (16, Some(depressing)));
    assert_eq!(short("mixed"), (32, Some(facilitating)));
    assert_eq!(short("none"), (16, None));
    // How many facilitate is what the fraction says.
    let plan = Plan::new(brain(&["plasticity.short_term.facilitation_fraction=0.8"])).unwrap();
    let count =
        |odd: usize| -> usize { (0..16).map(|i| connect::synapses(&plan, 2 * i + odd).unwrap().weight.len()).sum() };
    let share = count(0) as f64 / (count(0) + count(1)) as f64;
    assert!((share - 0.8).abs() < 0.02, "{share}");
    // Dopamine is the rate of learning.
    let rates = |level: &str| {
        let what =
            first(&["plasticity.learning_rate=1", &format!("neuromodulation.dopamine.baseline={level}")]).unwrap();
        (what.coincidence.unwrap().a, what.bcm.unwrap().a)
    };
    assert_eq!((rates("0.5"), rates("1")), ((0.01, 0.01), (0.02, 0.02)));
    assert!(
        first(&["neuromodulation.dopamine.baseline=0"]).is_some_and(|p| p.bcm.is_none() && p.homeostasis.is_some())
    );
    let stdp =
        first(&["plasticity.rule=stdp", "plasticity.metaplasticity.enabled=false", "plasticity.learning_rate=1"]);
    assert_eq!(stdp.unwrap().stdp.map(|s| (s.a_plus, s.a_minus)), Some((0.01, 0.012)));
}
