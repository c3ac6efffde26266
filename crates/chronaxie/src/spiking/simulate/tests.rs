//! The engines against the law, against each other, and against themselves.

use super::{CpuEngine, Engine, Reference, Spike};
use crate::spiking::connect::rules;
use crate::spiking::models;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Network, Outside, Population, Projection, Rule, Storage,
};
use crate::spiking::plan::Plan;
use crate::{pool, rng::Rng};

/// Excitation and inhibition in balance, every rule, delays from one step on.
pub(super) fn balanced(size: u32, seed: u64) -> Network {
    let mut n = Network::new(0.1, seed).unwrap();
    let lif = models::find("lif_exp").unwrap();
    for (name, size) in [("E", size * 4), ("I", size)] {
        let mut p = Population::new(name, lif, size).parameter("I_e", Distribution::normal(0.0, 5.0)).unwrap();
        p.initial[0] = Distribution::normal(-58.0, 5.0);
        n.add(p);
    }
    let rules = [
        Rule::Total { count: u64::from(size) * 120, multapses: true },
        Rule::InDegree { count: 40, multapses: false },
        Rule::Probability(0.1),
        Rule::OutDegree { count: 30, multapses: true },
    ];
    for (i, rule) in rules.into_iter().enumerate() {
        let (source, target) = (i / 2, i % 2);
        let mean = if source == 0 { 80.0 } else { -400.0 };
        let bounds = if source == 0 { (0.0, f64::INFINITY) } else { (f64::NEG_INFINITY, 0.0) };
        let weight = Distribution::normal(mean, 8.0).within(bounds.0, bounds.1, Outside::Redraw);
        let delay = Distribution::normal(1.5, 0.75).within(0.05, f64::INFINITY, Outside::Redraw);
        n.projections.push(Projection {
            source,
            target,
            rule,
            weight,
            delay: Delay::Drawn(delay),
            autapses: i % 2 == 0,
            plasticity: None,
            storage: Storage::Stored,
            weight_bits: Default::default(),
        });
    }
    for target in 0..2 {
        let kind = DriveKind::Poisson { rate_hz: 9000.0, weight: 80.0, start_ms: 0.0, stop_ms: f64::INFINITY };
        n.drives.push(Drive { target, kind });
    }
    n
}

/// Every cell of the first population with every one, 1 ms apart.
pub(in crate::spiking) fn joined(weight: Distribution) -> Projection {
    Projection {
        source: 0,
        target: 0,
        rule: Rule::AllToAll,
        weight,
        delay: Delay::Drawn(1.0.into()),
        autapses: true,
        plasticity: None,
        storage: Storage::Stored,
        weight_bits: Default::default(),
    }
}

fn run(engine: &mut dyn Engine, pieces: &[u64]) -> Vec<Spike> {
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    spikes
}

/// The plain loops with the models' f32 bodies, and the engine with 1, 2 and 3 threads, several shards, and steps in
/// pieces: the same spikes, at least 10,000.
#[test]
fn spikes_are_the_same_bits_for_any_threads_shards_and_pieces() {
    let plan = Plan::new(balanced(100, 7)).unwrap();
    let steps = 12_000;
    let mut want = Vec::new();
    Reference::in_f32(&plan).unwrap().advance(steps, &mut want).unwrap();
    assert!(want.len() >= 10_000, "only {} spikes", want.len());
    for (threads, shards, pieces) in [
        (1, 1, vec![steps]),
        (1, 5, vec![1, 2, 3, 4, 5, steps - 15]),
        (2, 2, vec![steps]),
        (3, 3, vec![7000, steps - 7000]),
        (2, 7, vec![steps]),
    ] {
        pool::set_num_threads(threads);
        let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
        let got = run(&mut engine, &pieces);
        assert_eq!(got.len(), want.len(), "{threads} threads, {shards} shards");
        assert!(got == want, "{threads} threads, {shards} shards: spikes differ");
    }
}

/// A state that goes through a checkpoint's bytes into an engine of another shape: the same spikes from there on.
#[test]
fn a_resumed_run_has_the_same_bits() {
    let plan = Plan::new(balanced(100, 8)).unwrap();
    pool::set_num_threads(2);
    let mut whole = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    let want = run(&mut whole, &[12_000]);
    assert!(want.len() >= 10_000, "only {} spikes", want.len());
    for cut in [1, 2, 777, 6002] {
        let mut first = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
        let mut got = run(&mut first, &[cut]);
        let checkpoint = super::Checkpoint {
            fingerprint: [0; 32],
            state: first.state().unwrap(),
            hash: Default::default(),
            replicas: vec![],
            logged: 0,
            counts: vec![],
        };
        let read = super::Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap();
        let mut second = CpuEngine::with_shards(&plan, 4, &|_, _| ()).unwrap();
        // Whatever it did before is forgotten.
        run(&mut second, &[100]);
        second.restore(&read.state).unwrap();
        got.extend(run(&mut second, &[12_000 - cut]));
        assert!(got == want, "cut at {cut}");
        assert_eq!(second.state().unwrap(), whole.state().unwrap());
    }
    let mut wrong = whole.state().unwrap();
    wrong.variables[0][0].pop();
    assert!(whole.restore(&wrong).unwrap_err().to_string().contains("not one of this network"));
}

/// In f64 and in f32 the spikes are the same until rounding decides one otherwise, and the rates stay alike.
#[test]
fn the_law_and_the_engine_begin_alike_and_stay_alike() {
    let plan = Plan::new(balanced(100, 9)).unwrap();
    let mut law = Vec::new();
    Reference::new(&plan).unwrap().advance(12_000, &mut law).unwrap();
    pool::set_num_threads(2);
    let got = run(&mut CpuEngine::new(&plan, &|_, _| ()).unwrap(), &[12_000]);
    let common = law.iter().zip(&got).take_while(|(a, b)| a == b).count();
    assert!(common >= 300, "the first {common} spikes are alike");
    let (a, b) = (law.len() as f64, got.len() as f64);
    // Spikes of a balanced network are more regular than Poisson; three deviations of the difference of two counts.
    assert!((a - b).abs() < 3.0 * (a + b).sqrt(), "{a} and {b} spikes");
}

/// Every synapse that the rules enumerate is in the rows once, under its source and delay, however shards are cut.
#[test]
fn rows_hold_what_the_rules_enumerate() {
    let plan = Plan::new(balanced(60, 3)).unwrap();
    let mut want: Vec<(u32, u32, i32, u16)> = Vec::new();
    for (i, p) in plan.network.projections.iter().enumerate() {
        let e = &plan.efficacies[i];
        let (w, d) = (e.weight.as_ref().unwrap(), e.delay.as_ref().unwrap());
        rules::visit(&plan, i, 0..plan.network.populations[p.target].size, &mut |s, t, wb, db| {
            let (s, t) = (plan.first[p.source] as u32 + s, plan.first[p.target] as u32 + t);
            want.push((s, t, w.pick(wb), d.pick(db) as u16));
        });
    }
    want.sort_unstable();
    for shards in [1, 2, 5] {
        let engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
        let mut got = Vec::new();
        for shard in engine.shards() {
            for cell in 0..plan.cells() as u32 {
                let mut last = 0;
                for (delay, places) in shard.rows.groups(cell) {
                    assert!(delay > last, "delays of a row rise");
                    last = delay;
                    shard.rows.each(places, |slot, weight| {
                        let slot = u32::from(slot);
                        let p = shard.parts.iter().rposition(|p| p.slot <= slot).unwrap();
                        let t = plan.first[p] as u32 + shard.parts[p].low + slot - shard.parts[p].slot;
                        got.push((cell, t, weight, delay));
                    });
                }
            }
        }
        got.sort_unstable();
        assert!(got == want, "{shards} shards: {} synapses, not {}", got.len(), want.len());
    }
}

/// Random networks of replayed sources onto cells that never fire: what each cell has received in each step is what a list
/// of all (spike, synapse) pairs says, for random delays, thread and shard counts.
#[test]
fn every_spike_is_delivered_once_at_the_right_step() {
    let mut rng = Rng::new(11, 0);
    for case in 0..12u64 {
        let (sources, targets) = (1 + rng.below(40) as u32, 1 + rng.below(60) as u32);
        let longest = [1.0, 6.0, 100.0][case as usize % 3];
        let mut n = Network::new(0.1, case).unwrap();
        let mut replay = Population::new("in", models::find("spikes").unwrap(), sources);
        let mut list: Vec<(u64, u32)> =
            (0..rng.below(200)).map(|_| (rng.below(300), rng.below(sources.into()) as u32)).collect();
        list.sort_unstable();
        list.dedup();
        replay.replay = Some(std::sync::Arc::new(list.clone()));
        n.add(replay);
        // tau_syn so short that the current of a step is what arrived in it.
        let mut cell = Population::new("out", models::find("lif_exp").unwrap(), targets);
        for (name, value) in [("V_th", 1e9), ("tau_syn_ex", 1e-3), ("tau_syn_in", 1e-3)] {
            cell = cell.parameter(name, value).unwrap();
        }
        n.add(cell);
        let delay = Delay::Drawn(Distribution::uniform(0.06, longest));
        let rule = [Rule::Probability(0.3), Rule::OutDegree { count: 5, multapses: true }, Rule::AllToAll]
            [rng.below(3) as usize]
            .clone();
        n.projections.push(Projection {
            source: 0,
            target: 1,
            rule,
            weight: Distribution::uniform(1.0, 100.0),
            delay,
            autapses: true,
            plasticity: None,
            storage: Storage::Stored,
            weight_bits: Default::default(),
        });
        let plan = Plan::new(n).unwrap();
        let e = &plan.efficacies[0];
        let steps = 300 + u64::from(plan.max_delay) + 2;
        let mut want = vec![vec![0i64; targets as usize]; steps as usize + 1];
        rules::visit(&plan, 0, 0..targets, &mut |s, t, w, d| {
            for (step, _) in list.iter().filter(|(_, c)| *c == s) {
                let at = step + e.delay.as_ref().unwrap().pick(d) as u64;
                want[at as usize][t as usize] += i64::from(e.weight.as_ref().unwrap().pick(w));
            }
        });
        pool::set_num_threads(1 + case as usize % 3);
        let mut engine = CpuEngine::with_shards(&plan, 1 + rng.below(4) as usize, &|_, _| ()).unwrap();
        for (step, want) in want.iter().enumerate().take(steps as usize) {
            let mut spikes = Vec::new();
            engine.advance(1, &mut spikes).unwrap();
            let current = &engine.state().unwrap().variables[1][1];
            for (t, want) in want.iter().enumerate() {
                let got = f64::from(current[t]) / plan.units[1][0];
                assert!((got - *want as f64).abs() < 1e-3, "case {case}, step {step}, cell {t}: {got}, not {want}");
            }
        }
        let pairs: u64 = engine.events();
        let row: Vec<u64> = (0..sources)
            .map(|s| engine.shards().map(|sh| sh.rows.first[s as usize + 1] - sh.rows.first[s as usize]).sum())
            .collect();
        assert_eq!(pairs, list.iter().map(|(_, c)| row[*c as usize]).sum::<u64>());
    }
}
