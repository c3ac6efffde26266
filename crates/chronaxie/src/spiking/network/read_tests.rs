//! Configurations of networks: what they say, and how they are refused.

use super::*;
use crate::spiking::plasticity::{Dependence, Pairs, Placement};
use crate::spiking::{DriveKind, Plan};

fn settings(text: &str) -> Result<Settings> {
    let config = Config::parse(text, "net.toml")?;
    let settings = read(&config)?;
    // What was resolved says the same.
    let resolved = config.resolved();
    let again = read(&Config::parse(&resolved, "resolved.toml")?).expect("what was resolved is a configuration");
    assert_eq!(format!("{:?}", again.network), format!("{:?}", settings.network), "{resolved}");
    Ok(settings)
}

const NETWORK: &str = r#"schema = 1
[simulation]
dt = 0.1
duration = "2s"
seed = 3
[[population]]
name = "E"
model = "iaf_psc_exp"
size = 80
parameters = { tau_m = 20.0, I_e = { distribution = "normal", mean = 300.0, sd = 10.0 } }
initial = { V = { distribution = "uniform", low = -65.0, high = -50.0 } }
reference = { rate_hz = 5.0, cv = 0.9 }
[[population]]
name = "I"
model = "izhikevich"
preset = "fast_spiking"
box = { x = [0, 3], y = [0, 4], z = [1, 1], w = [-1, 0] }
density = 0.9
[[projection]]
source = ["E", "I"]
target = ["I", "E"]
rule = "fixed_indegree"
indegree = [[8, 0], [4, 2]]
multapses = false
weight = { distribution = "lognormal", mu = 1.0, sigma = 0.3 }
plasticity = { rule = "stdp", A_plus = 0.02, tau_plus = "15ms", w_max = 20.0, w_min = 0.5, dependence = "mixed", pairs = "nearest_neighbour", delay = "axonal", short_term = { U = 0.3, tau_fac = 50.0 } }
delay = { distribution = "normal", mean = 1.5, sd = 0.5, low = 0.1, high = 4.0, outside = "clip" }
[[projection]]
variant = "near"
source = "I"
target = "I"
rule = "distance"
peak = 0.8
length = 1.5
autapses = false
weight = 0.25
plasticity = { rule = "tsodyks_markram", U = 0.4, tau_rec = "100ms" }
delay = { velocity = 2.0, offset = 0.1 }
[[drive]]
target = ["E", "I"]
rate = 8.0
sources = [100, 50]
weight = 0.5
start = "10ms"
[[drive]]
variant = "dc"
target = "I"
kind = "dc"
current = 2.0
[[record]]
population = "I"
variables = ["V", "u"]
cells = [0, 7]
every = "0.5ms"
"#;

#[test]
fn a_configuration_says_what_it_says() {
    let s = settings(NETWORK).unwrap();
    let n = &s.network;
    assert_eq!((s.duration_ms, n.dt_ms, n.seed, n.populations.len()), (2000.0, 0.1, 3, 2));
    assert_eq!((n.populations[0].reference.rate_hz, n.populations[0].reference.cv), (Some(5.0), Some(0.9)));
    assert_eq!(n.populations[0].parameters[1].constant(), Some(20.0));
    // fast_spiking: a = 0.1, d = 2.
    assert_eq!((n.populations[1].parameters[0].mean(), n.populations[1].parameters[3].mean()), (0.1, 2.0));
    let places = n.populations[1].positions.as_ref().unwrap();
    assert!(places.len() > 25 && places.len() <= 40 && places.len() == n.populations[1].size as usize);
    // The zero of the matrix makes no projection, and the variant is not chosen.
    let pairs: Vec<_> = n.projections.iter().map(|p| (p.source, p.target)).collect();
    assert_eq!(pairs, [(0, 1), (0, 0), (1, 0)]);
    assert!(matches!(n.projections[1].rule, Rule::InDegree { count: 4, multapses: false }));
    let learned = n.projections[2].plasticity.unwrap();
    let stdp = learned.stdp.unwrap();
    assert_eq!((stdp.a_plus, stdp.a_minus, stdp.tau_plus_ms, stdp.tau_minus_ms), (0.02, 0.012, 15.0, 20.0));
    assert_eq!((stdp.w_min, stdp.w_max), (0.5, 20.0));
    assert_eq!((stdp.dependence, stdp.pairs, stdp.placement), (Dependence::Mixed, Pairs::Nearest, Placement::Axonal));
    let short = learned.short_term.unwrap();
    assert_eq!((short.u, short.tau_rec_ms, short.tau_fac_ms), (0.3, 800.0, 50.0));
    let fixed = settings(&NETWORK.replace("seed = 3", "seed = 3\nplasticity = false")).unwrap();
    assert!(fixed.network.projections.iter().all(|p| p.plasticity.is_none()));
    let r = &s.recorders[0];
    assert_eq!((r.population, &r.variables[..], &r.cells[..], r.every), (1, &[0, 1][..], &[0, 7][..], 5));
    assert_eq!(n.drives.len(), 2);
    assert!(
        matches!(n.drives[1].kind, DriveKind::Poisson { rate_hz, start_ms, .. } if rate_hz == 400.0 && start_ms == 10.0)
    );
    Plan::new(s.network).unwrap();
    let near = settings(&NETWORK.replace("seed = 3", "seed = 3\nvariant = \"near\"")).unwrap().network;
    assert!(matches!(near.projections[3].rule, Rule::Distance { peak, .. } if peak == 0.8));
    let short = near.projections[3].plasticity.unwrap();
    assert!(short.stdp.is_none() && short.short_term.is_some_and(|s| (s.u, s.tau_rec_ms) == (0.4, 100.0)));
    let plan = Plan::new(near).unwrap();
    // sqrt(9 + 16 + 0 + 1) / 2 + 0.1 ms.
    assert!(plan.max_delay >= 15 && plan.min_delay == 1, "{} {}", plan.min_delay, plan.max_delay);
}

#[test]
fn json_says_the_same() {
    let json = r#"{"schema": 1, "simulation": {"seed": 9}, "population": [{"name": "A", "model": "lif_delta", "size": 5}],
        "projection": [{"source": "A", "target": "A", "rule": "one_to_one", "weight": 1, "delay": 1.0}]}"#;
    let s = read(&Config::parse(json, "net.json").unwrap()).unwrap();
    assert_eq!((s.network.seed, s.network.populations[0].size), (9, 5));
    assert!(matches!(s.network.projections[0].rule, Rule::OneToOne));
}

#[test]
fn refusals_name_the_field_the_line_and_the_nearest_word() {
    for (from, to, says) in [
        ("size = 80", "size = 0", "net.toml:9: population[0].size is 0 cells"),
        ("size = 80", "size = -1", "net.toml:9: population[0].size must be a whole number"),
        (
            "tau_m = 20.0",
            "tau_n = 20.0",
            "net.toml:10: unknown key population[0].parameters.tau_n; did you mean tau_m?",
        ),
        ("tau_m = 20.0", "tau_m = nan", "net.toml:10: population[0].parameters.tau_m must be a finite number"),
        ("sd = 10.0", "sd = -10.0", "net.toml:10: population[0].parameters.I_e has the spread -10"),
        (
            "\"izhikevich\"",
            "\"izikevich\"",
            "net.toml:15: population[1].model is \"izikevich\", which is no model; did you mean \"izhikevich\"?",
        ),
        ("fast_spiking", "fast_spikin", "did you mean \"fast_spiking\"?"),
        ("name = \"I\"", "name = \"E\"", "net.toml:14: population[1].name is \"E\", which another population has"),
        (
            "[\"E\", \"I\"]\ntarget",
            "[\"E\", \"J\"]\ntarget",
            "net.toml:20: projection[0].source names \"J\", which is no population",
        ),
        (
            "[[8, 0], [4, 2]]",
            "[[8, 0]]",
            "net.toml:23: projection[0].indegree has another shape than 2 targets (rows) by 2 sources",
        ),
        ("[[8, 0], [4, 2]]", "[[8.5, 0], [4, 2]]", "must be a whole number from 0"),
        ("fixed_indegree", "fixed_indegre", "did you mean \"fixed_indegree\"?"),
        ("outside = \"clip\"", "outside = \"cut\"", "must be one of \"redraw\", \"clip\""),
        ("density = 0.9", "density = 1.9", "net.toml:18: population[1].density must be from 0 to 1, but it is 1.9"),
        ("x = [0, 3]", "x = [3, 0]", "must be two whole numbers"),
        ("x = [0, 3]", "x = [0, 300000000]", "sites, which is more than 2^26"),
        (
            "seed = 3",
            "seed = 3\nvariant = \"nera\"",
            "net.toml:6: simulation.variant is \"nera\", but there are dc, near",
        ),
        ("dt = 0.1", "dt = 0", "net.toml:3: simulation.dt must be from 0.000001"),
        (
            "seed = 3",
            "checkpoint_every = 0",
            "net.toml:5: simulation.checkpoint_every is 0 ms, which is less than the step of 0.1 ms",
        ),
        ("weight = 0.5", "wieght = 0.5", "lacks the required key weight"),
        (
            "[\"V\", \"u\"]",
            "[\"v\", \"u\"]",
            "record[0].variables names \"v\", which izhikevich has not; did you mean \"V\"?",
        ),
        ("cells = [0, 7]", "cells = [0, 70]", "record wants cell 70 of I, which has"),
        ("every = \"0.5ms\"", "every = 0", "record[0].every must be at least the step"),
        (
            "w_max = 20.0",
            "w_max = 0.2",
            "net.toml:26: projection[0].plasticity.w_max is 0.2 and w_min is 0.5; they must be",
        ),
        ("A_plus = 0.02", "A_plus = 2", "net.toml:26: projection[0].plasticity.A_plus is 2, not from 0 to 1"),
        ("w_max = 20.0, ", "", "net.toml:26: table [projection[0].plasticity] lacks the required key w_max"),
        ("\"mixed\"", "\"mixd\"", "did you mean \"mixed\"?"),
        (
            "\"stdp\"",
            "\"sdtp\"",
            "net.toml:26: projection[0].plasticity.rule must be one of \"stdp\", \"tsodyks_markram\"",
        ),
        (
            "tau_fac = 50.0",
            "tau_fak = 50.0",
            "net.toml:26: unknown key projection[0].plasticity.short_term.tau_fak; did you mean tau_fac?",
        ),
        ("U = 0.3", "U = 0.0", "projection[0].plasticity.short_term.U is 0, so that nothing would pass"),
        ("U = 0.3", "U = 1.5", "projection[0].plasticity.short_term.U is 1.5, not from 0 to 1"),
        ("\"15ms\"", "0", "net.toml:26: projection[0].plasticity.tau_plus is 0 ms, which must be above 0"),
        ("schema = 1", "schema = 2", "this version reads schema = 1"),
    ] {
        assert!(NETWORK.contains(from), "{from}");
        let e = settings(&NETWORK.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(e.contains(says), "{to}: {e}");
    }
}

#[test]
fn what_a_run_leaves_out_altogether_is_noted() {
    let notes = |discard: &str| settings(&NETWORK.replacen("seed = 3", discard, 1)).unwrap().notes;
    assert_eq!(notes("discard = \"1999ms\"").iter().filter(|n| n.contains("discard")).count(), 0);
    assert!(notes("discard = \"2s\"").iter().any(|n| n.starts_with("discard leaves out 2000 ms of 2000 ms")));
}

#[test]
fn what_cannot_be_run_is_refused_with_its_values() {
    for (from, to, says) in [
        ("low = 0.1, ", "", "projection E -> I: delays come down to -17 steps of 0.1 ms"),
        (
            "{ distribution = \"lognormal\", mu = 1.0, sigma = 0.3 }",
            "{ distribution = \"normal\", mean = 1.0, sd = 1.0 }",
            "projection E -> I: plasticity needs weights of one sign",
        ),
        (
            "indegree = [[8, 0], [4, 2]]",
            "indegree = [[81, 0], [4, 2]]",
            "an in-degree of 81 without multapses is more than 80 sources",
        ),
        ("rate = 8.0", "rate = 1e9", "arrivals a step are more than 500"),
        (
            "parameters = { tau_m = 20.0,",
            "parameters = { tau_m = 0.0,",
            "population E: lif_exp has tau_m = 0 ms, which must be above 0",
        ),
        (
            "parameters = { tau_m = 20.0,",
            "parameters = { V_th = -70.0,",
            "has V_reset = -65 mV at or above V_th = -70 mV",
        ),
        ("weight = { distribution = \"lognormal\", mu = 1.0, sigma = 0.3 }", "weight = 1e-9", "projection"),
    ] {
        assert!(NETWORK.contains(from), "{from}");
        let e = settings(&NETWORK.replacen(from, to, 1)).and_then(|s| Plan::new(s.network)).expect_err(to).to_string();
        assert!(e.contains(says), "{to}: {e}");
    }
    let big = "schema = 1\n[[population]]\nname = \"A\"\nmodel = \"lif_exp\"\nsize = 4000000000\n";
    let plan = Plan::new(settings(big).unwrap().network).unwrap();
    let e = crate::spiking::simulate::CpuEngine::new(&plan, &|_, _| ()).unwrap_err();
    assert!(matches!(e.kind(), crate::ErrorKind::OutOfMemory { .. }) && e.to_string().contains("GB are free"), "{e}");
}

/// Whatever is changed in a configuration, reading and planning it end with a network or a sentence.
#[test]
fn no_configuration_makes_it_panic() {
    let mut rng = crate::rng::Rng::new(12, 0);
    let words = [
        "0",
        "-1",
        "1e308",
        "nan",
        "inf",
        "\"E\"",
        "[]",
        "{}",
        "99999999999",
        "0.5",
        "true",
        "[[1]]",
        "\"\"",
        "1e-300",
    ];
    let mut planned = 0;
    for _ in 0..400 {
        let mut text = NETWORK.to_owned();
        for _ in 0..=rng.below(2) {
            let values: Vec<usize> = text.match_indices("= ").map(|(at, _)| at + 2).collect();
            let at = values[rng.below(values.len() as u64) as usize];
            let len = text[at..].find([',', '\n', '}']).unwrap_or(0);
            text.replace_range(at..at + len, words[rng.below(words.len() as u64) as usize]);
        }
        if rng.below(4) == 0 {
            text.truncate(rng.below(text.len() as u64) as usize);
        }
        if let Ok(s) = Config::parse(&text, "net.toml").and_then(|c| read(&c)) {
            planned += u32::from(Plan::new(s.network).is_ok());
        }
    }
    assert!(planned > 8, "only {planned} were whole");
}

#[test]
fn every_rule_of_plasticity_is_read_and_refused_by_its_field() {
    let text = |plasticity: &str| {
        format!(
            r#"
schema = 1
[[population]]
name = "A"
model = "lif_exp"
size = 5
[[projection]]
source = "A"
target = "A"
weight = 1.0
delay = 1.0
plasticity = {{ {plasticity} }}
"#
        )
    };
    let read = |plasticity: &str| settings(&text(plasticity)).map(|s| s.network.projections[0].plasticity.unwrap());
    let hebb = read(r#"rule = "hebb", A = 0.01, w_max = 3.0, tau = "5ms", delay = "axonal""#).unwrap();
    let h = hebb.hebb.unwrap();
    assert_eq!(
        (h.a, h.a_pre, h.a_post, h.tau_ms, h.w_max, h.placement),
        (0.01, 0.005, 0.0, 5.0, 3.0, Placement::Axonal)
    );
    let bcm = read(r#"rule = "bcm", target_rate = 8.0, w_max = 3.0, homeostatic = { window = "2s" }"#).unwrap();
    assert_eq!(bcm.bcm.map(|b| (b.target_hz, b.tau_ms, b.tau_threshold_ms)), Some((8.0, 100.0, 1000.0)));
    assert_eq!(bcm.homeostasis.map(|h| (h.window_ms, h.target_hz, h.bounds)), Some((2000.0, 5.0, None)));
    let alone = read(r#"rule = "homeostatic", w_max = 3.0, short_term = { U = 0.2 }"#).unwrap();
    assert_eq!((alone.bounds(), alone.short_term.map(|s| s.u)), (Some((0.0, 3.0)), Some(0.2)));
    let modulated = read(r#"rule = "modulated_stdp", modulator = "A", w_max = 3.0, baseline = 2.0"#).unwrap();
    assert_eq!(modulated.modulation.map(|m| (m.population, m.baseline_hz, m.delay_ms)), Some((0, 2.0, 1.0)));
    let same = read(r#"rule = "coincidence", w_max = 3.0, weight_decay = 1e-4, short_term = { U = 0.2 }"#).unwrap();
    let c = same.coincidence.unwrap();
    assert_eq!((c.a, c.a_pre, same.bounds(), same.decay_per_ms), (0.001, 0.0005, Some((0.0, 3.0)), 1e-4));
    let beside = read(r#"rule = "bcm", w_max = 3.0, coincidence = { A = 0.02 }, homeostatic = { }"#).unwrap();
    assert_eq!(beside.coincidence.map(|c| (c.a, c.a_pre, c.bounds)), Some((0.02, 0.01, None)));
    assert!(beside.bcm.is_some() && beside.homeostasis.is_some());
    // What is written is read as it was.
    let nearest = r#"A_minus = 0.3, pairs = "nearest_neighbour", dependence = "mixed", w_min = 1.0, w_max = 3.0"#;
    let (stdp, short) = (read(nearest).unwrap(), read(r#"rule = "tsodyks_markram", tau_fac = 5.5"#).unwrap());
    for what in [hebb, bcm, alone, same, beside, stdp, short] {
        let plasticity = super::super::read_plasticity::written(&what);
        let json = format!(
            r#"{{"schema": 1, "population": [{{"name": "A", "model": "lif_exp", "size": 5}}], "projection":
               [{{"source": "A", "target": "A", "weight": 1.0, "delay": 1.0, "plasticity": {plasticity}}}]}}"#
        );
        let again = super::read(&Config::parse(&json, "n.json").unwrap()).unwrap();
        assert_eq!(again.network.projections[0].plasticity, Some(what), "{plasticity}");
    }
    for good in [hebb, bcm, alone, modulated, same, beside] {
        let mut s = settings(&text("w_max = 3.0")).unwrap().network;
        s.projections[0].plasticity = Some(good);
        Plan::new(s).unwrap();
    }
    for (plasticity, says) in [
        (r#"rule = "hebb""#, "lacks the required key w_max"),
        (r#"rule = "hebb", w_max = 3.0, A_pre = 2.0"#, "plasticity.A_pre is 2, not from 0 to 1"),
        (r#"rule = "hebb", w_max = 3.0, tau = 0"#, "plasticity.tau is 0 ms"),
        (r#"rule = "hebb", w_max = 3.0, A_plus = 0.1"#, "unknown key projection[0].plasticity.A_plus"),
        (r#"rule = "bcm", w_max = 3.0, target_rate = 0.0"#, "plasticity.target_rate is 0 Hz, which must be from 0.001"),
        (r#"rule = "bcm", w_max = 3.0, tau = 0.1, target_rate = 0.1"#, "in 0.1 ms a spike comes to 100000 times that"),
        (r#"rule = "homeostatic", w_max = 3.0, window = 0"#, "plasticity.window is 0 ms, which must be from 1"),
        (r#"rule = "homeostatic", w_max = 3.0, scaling_rate = 1.5"#, "plasticity.scaling_rate is 1.5, not from 0 to 1"),
        (r#"rule = "coincidence", A = 0.1"#, "lacks the required key w_max"),
        (r#"rule = "coincidence", w_max = 3.0, A = 1.5"#, "plasticity.A is 1.5, not from 0 to 1"),
        (r#"rule = "coincidence", w_max = 3.0, delay = "axonal""#, "unknown key projection[0].plasticity.delay"),
        (
            r#"rule = "bcm", w_max = 3.0, delay = "axonal", coincidence = { }"#,
            "plasticity.coincidence.delay is axonal, but pairs of the same step know no delay",
        ),
        (r#"rule = "stdp", w_max = 3.0, weight_decay = -1.0"#, "plasticity.weight_decay is -1, which must be finite"),
        (r#"rule = "tsodyks_markram", weight_decay = 1.0"#, "plasticity.weight_decay is of weights that have bounds"),
        (
            r#"rule = "modulated_stdp", modulator = "A", w_max = 3.0, weight_decay = 0.1"#,
            "without homeostatic scaling, coincidence and decay",
        ),
        (r#"rule = "modulated_stdp", w_max = 3.0"#, "lacks the required key modulator"),
        (
            r#"rule = "modulated_stdp", modulator = "B", w_max = 3.0"#,
            "plasticity.modulator names \"B\", which is no population; did you mean \"A\"?",
        ),
        (
            r#"rule = "modulated_stdp", modulator = "A", w_max = 3.0, dependence = "mixed""#,
            "plasticity.modulator goes with the additive dependence alone",
        ),
        (
            r#"rule = "modulated_stdp", modulator = "A", w_max = 3.0, modulator_delay = 0.01"#,
            "plasticity.modulator_delay is 0.01 ms, which must be from 1 to 65,535 steps of 0.1 ms",
        ),
    ] {
        let e = read(plasticity).expect_err(plasticity).to_string();
        assert!(e.contains(says), "{plasticity}: {e}");
    }
}

#[test]
fn projections_say_whether_their_synapses_are_kept() {
    let read = |more: &str| {
        settings(&format!(
            r#"
schema = 1
[[population]]
name = "A"
model = "lif_exp"
size = 5
[[projection]]
source = "A"
target = "A"
rule = "fixed_outdegree"
outdegree = 3
weight = 1.0
delay = 1.0
{more}
"#
        ))
    };
    for (text, storage) in [
        ("", Storage::Stored),
        (r#"synapses = "stored""#, Storage::Stored),
        (r#"synapses = "procedural""#, Storage::Procedural),
        (r#"synapses = "auto""#, Storage::Auto),
    ] {
        let network = read(text).unwrap().network;
        assert_eq!(network.projections[0].storage, storage);
        Plan::new(network).unwrap();
    }
    let e = read(r#"synapses = "procedral""#).unwrap_err().to_string();
    assert!(e.contains("projection[0].synapses") && e.contains("procedural"), "{e}");
    let plastic = "synapses = \"procedural\"\nplasticity = { rule = \"stdp\", w_max = 3.0 }";
    let network = read(plastic).unwrap().network;
    assert!(Plan::new(network).unwrap_err().to_string().contains("which forgets what plasticity made of them"));
    // How precise weights are, which a checkpoint knows and a resolved configuration says.
    for (text, bits) in [
        ("", WeightBits::Sixteen),
        ("weight_bits = 16", WeightBits::Sixteen),
        ("weight_bits = 32", WeightBits::ThirtyTwo),
    ] {
        assert_eq!(read(text).unwrap().network.projections[0].weight_bits, bits);
    }
    let says = |text: &str| read(text).unwrap_err().to_string();
    let e = says("weight_bits = 24");
    assert!(e.contains(":14: projection[0].weight_bits is 24, but weights have 16 or 32 bits"), "{e}");
    assert!(says("weight_bit = 32").contains("unknown key projection[0].weight_bit; did you mean weight_bits?"));
    assert!(says("weight_bits = 32.5").contains("projection[0].weight_bits"));
}

/// What others measured of one variant is not shown beside another.
#[test]
fn a_variant_has_its_own_reference() {
    let of = |table: &str, variant: &str| {
        let text = format!(
            "schema = 1\n[simulation]\nvariant = \"{variant}\"\n[[population]]\nname = \"A\"\nmodel = \"lif_exp\"\nsize = 3\n\
             reference = {{ {table} }}\n[[drive]]\ntarget = \"A\"\nkind = \"dc\"\ncurrent = 1\nvariant = \"dc\"\n[[drive]]\n\
             target = \"A\"\nrate = 1\nweight = 1\nvariant = \"poisson\"\n"
        );
        settings(&text)
            .map(|s| s.network.populations[0].reference)
            .map(|r| (r.rate_hz, r.cv))
            .map_err(|e| e.to_string())
    };
    let both = "rate_hz = 5.0, cv = 0.9, dc = { rate_hz = 6.0 }";
    assert_eq!(of(both, "poisson"), Ok((Some(5.0), Some(0.9))));
    assert_eq!(of(both, "dc"), Ok((Some(6.0), None)));
    assert_eq!(of("dc = { }, rate_hz = 5.0", "dc"), Ok((None, None)));
    assert_eq!(of("poisson = { cv = 0.9 }", "dc"), Ok((None, None)));
    let e = of("rate_hz = 5.0, dc = { rate = 6.0 }", "poisson").unwrap_err();
    assert!(e.contains("unknown key population[0].reference.dc.rate; known there: rate_hz, cv, correlation"), "{e}");
}

/// Weights that would begin at a bound of their plasticity: refused where most would, said where some would.
#[test]
fn weights_beyond_the_bounds_of_their_plasticity_are_not_moved_in_silence() {
    let planned = |weight: &str, rest: &str| {
        let text = format!(
            "schema = 1\n[simulation]\n{rest}\n[[population]]\nname = \"A\"\nmodel = \"lif_exp\"\nsize = 40\n[[projection]]\n\
             source = \"A\"\ntarget = \"A\"\n{weight}\ndelay = 1\nplasticity = {{ rule = \"stdp\", w_min = 1, w_max = 80 }}\n"
        );
        let s = read(&Config::parse(&text, "net.toml").unwrap()).unwrap();
        Plan::new(s.network).map(|_| s.notes).map_err(|e| e.to_string())
    };
    for fits in [
        "weight = 80",
        "weight = -80",
        "weight = { distribution = \"normal\", mean = 40, sd = 4 }",
        "weight = { distribution = \"normal\", mean = -60, sd = 20, low = -80, high = -1, outside = \"clip\" }",
        "weight = { distribution = \"uniform\", low = 1, high = 80 }",
    ] {
        assert_eq!(planned(fits, ""), Ok(Vec::new()), "{fits}");
    }
    for (weight, says) in [
        ("weight = 80.5", "but the weight is 80.5"),
        ("weight = -80.5", "but the weight is 80.5"),
        ("weight = 0.5", "but the weight is 0.5"),
        (
            "weight = { distribution = \"normal\", mean = 100, sd = 10 }",
            "but of the weights, 100 on average, 97.72 % are drawn beyond them",
        ),
    ] {
        let e = planned(weight, "").unwrap_err();
        assert!(e.contains(says), "{e}");
        assert!(e.contains("projection A -> A: plasticity has bounds from w_min = 1 to w_max = 80, "), "{e}");
        assert_eq!(planned(weight, "plasticity = false"), Ok(Vec::new()));
    }
    for weight in [
        "weight = { distribution = \"normal\", mean = 60, sd = 10, low = 1 }",
        "weight = { distribution = \"normal\", mean = -60, sd = 10, high = -1 }",
    ] {
        let notes = planned(weight, "").unwrap();
        let says = "60 on average, 2.28 % are drawn beyond them, and begin at them";
        assert!(notes.len() == 1 && notes[0].contains(says), "{notes:?}");
    }
    // A list says which of it.
    let text = "schema = 1\n[[population]]\nname = \"A\"\nmodel = \"lif_exp\"\nsize = 3\n[[projection]]\nsource = \"A\"\ntarget = \"A\"\n\
                rule = \"edges\"\nfile = \"<e>\"\nplasticity = { rule = \"stdp\", w_max = 3.24 }\n";
    let list = |weights: [f64; 2]| {
        let columns = [("source", [0.0; 2]), ("target", [1.0, 2.0]), ("weight", weights), ("delay", [1.0; 2])];
        let config = Config::parse(text, "net.toml").unwrap();
        let columns = columns.map(|(name, c)| (name.to_owned(), c.to_vec())).to_vec();
        Plan::new(read_with(&config, &Files::beside(&config).with("<e>", columns)).unwrap().network)
            .map_err(|e| e.to_string())
    };
    assert!(list([3.24, 0.0]).is_ok());
    let e = list([3.0, 3.25]).unwrap_err();
    assert!(e.contains("bounds from w_min = 0 to w_max = 3.24, but edge 1 has the weight 3.25"), "{e}");
}

/// Numbers without end are written short, wherever a sentence has one.
#[test]
fn no_sentence_has_a_number_of_300_digits() {
    for (from, to) in [
        ("dt = 0.1", "dt = 1e300"),
        ("duration = \"2s\"", "duration = 1e300"),
        ("seed = 3", "scale = 1e300"),
        ("seed = 3", "checkpoint_every = 1e-300"),
        ("tau_m = 20.0", "tau_m = 1e300"),
        ("size = 80", "size = 1e300"),
        ("indegree = [[8, 0], [4, 2]]", "indegree = 1e300"),
        ("mu = 1.0, sigma = 0.3", "mu = 1e300, sigma = -1e300"),
        ("low = -65.0, high = -50.0", "low = 1e300, high = -1e300"),
        ("A_plus = 0.02", "A_plus = 1e300"),
        ("w_max = 20.0", "w_max = -1e300"),
        ("tau_plus = \"15ms\"", "tau_plus = 1e300"),
        ("mean = 1.5, sd = 0.5, low = 0.1, high = 4.0", "mean = 1e300, sd = 1.0"),
        ("weight = 0.25", "weight = 1e300"),
        ("peak = 0.8", "peak = 1e300"),
        ("length = 1.5", "length = -1e300"),
        ("velocity = 2.0, offset = 0.1", "velocity = -1e300, offset = 1e300"),
        ("velocity = 2.0, offset = 0.1", "velocity = 1e-300, offset = 1e300"),
        ("rate = 8.0", "rate = 1e300"),
        ("rate = 8.0", "rate = -1e300"),
        ("weight = 0.5\n", "weight = 1e300\n"),
        ("current = 2.0", "current = 1e300"),
        ("every = \"0.5ms\"", "every = -1e300"),
    ] {
        assert!(NETWORK.contains(from), "{from}");
        let text = NETWORK.replacen(from, to, 1).replace("variant = \"near\"\n", "").replace("variant = \"dc\"\n", "");
        let planned = settings(&text).and_then(|s| Plan::new(s.network)).map(|_| ());
        let Err(e) = planned else { panic!("{to} is taken") };
        let e = e.to_string();
        assert!(
            e.contains("1e-300") || e.contains("e300") || e.contains("e299") || e.contains("e301") || e.len() < 300,
            "{to}: {e}"
        );
        assert!(!e.contains("00000000000000000000"), "{to}: {e}");
    }
}

#[test]
fn a_life_cycle_is_read() {
    let text = |life: &str| format!("{NETWORK}\n[lifecycle]\n{life}\n");
    let says = |life: &str| settings(&text(life)).map(|_| ()).unwrap_err().to_string();
    let all = "max_age = \"2 s\"\nhealth_decay = 1e-3\nmutation_std_params = 0.05\nmutation_std_weights = 0.02\ninterval = 10.0\n\
               mutating_params = [[\"C_m\", \"tau_m\"], \"izhikevich.a\"]\npopulations = [\"I\", \"E\"]\n\
               initial_age = { distribution = \"uniform\", low = 0.0, high = 900.0 }";
    let n = settings(&text(all)).unwrap().network;
    let life = n.lifecycle.as_ref().unwrap();
    assert_eq!((life.max_age_ms, life.health_decay_per_ms, life.interval_ms), (2000.0, 1e-3, 10.0));
    assert_eq!((&life.populations[..], life.reproduction, life.mutation_std_params), (&[0, 1][..], true, 0.05));
    assert_eq!(life.mutation_std_weights, [0.02; 3]);
    assert_eq!((life.initial_age_ms.mean(), life.groups(&n, 1)), (450.0, vec![(0, vec![0])]));
    // What is left out: all cells, every step of a ms, no mutation; and a projection's own.
    let own = text("max_age = 50.0").replace("peak = 0.8", "peak = 0.8\nmutation_std_weights = 0.5");
    let near = settings(&own.replace("seed = 3", "seed = 3\nvariant = \"near\"")).unwrap().network.lifecycle.unwrap();
    assert_eq!((near.populations, near.interval_ms, near.mutation_std_params), (vec![0, 1], 1.0, 0.0));
    assert_eq!(near.mutation_std_weights, [0.0, 0.0, 0.0, 0.5]);
    assert!(settings(&text("death = false")).unwrap().network.lifecycle.is_none());
    assert!(settings(NETWORK).unwrap().network.lifecycle.is_none());
    let again = Config::parse(&text(all), "n.toml").unwrap();
    read(&again).unwrap();
    let again = read(&Config::parse(&again.resolved(), "n.toml").unwrap()).unwrap().network;
    assert_eq!(format!("{again:?}"), format!("{n:?}"));
    assert!(says("reproduction = true").contains("lifecycle.max_age is missing and health_decay is 0"));
    assert!(says("max_age = -1").contains("lifecycle.max_age must be a duration that is not negative"));
    assert!(says("max_age = 1.0\nmutation_std_weights = -1.0").contains("lifecycle.mutation_std_weights is -1"));
    assert!(says("max_age = 1.0\nmaximum_age = 1.0").contains("maximum_age"));
    assert!(says("max_age = 1.0\npopulations = \"J\"").contains("names \"J\", which is no population"));
}
