//! Delays before synapses and rules beyond the timing of pairs, on CUDA against the CPU: the same bits.

use super::tests::{cpu, on_devices, steps};
use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::spiking::models;
use crate::spiking::network::original::brain;
use crate::spiking::network::{Delay, Distribution, Network, Population, Projection, Rule};
use crate::spiking::plasticity::{Dependence, Modulation, Placement, Plasticity, ShortTerm};
use crate::spiking::simulate::learning_tests::{learning, run};
use crate::spiking::simulate::rules_tests::{self, bcm, coincidence, hebb, modulated, scaling};
use crate::spiking::simulate::{Checkpoint, CpuEngine};

const A: Placement = Placement::Axonal;
const D: Placement = Placement::Dendritic;

/// Blocks, entries of a cell, windows and jumps that are kept: few, so that lists are full often, or many; and devices.
#[derive(Debug, Clone, Copy)]
struct How(u32, usize, usize, usize, usize);

const FEW: How = How(3, 0, 2, 0, 1);
const MANY: How = How(1, 1024, 64, 8192, 1);
/// Likewise few, on as many of two devices and four as there are.
const TWO: How = How(2, 0, 2, 0, 2);
const FOUR: How = How(1, 1024, 64, 8192, 4);

fn engine(plan: &Plan, gpu: &Gpu, how: How) -> LearningEngine<'static> {
    let plan: &'static Plan = Box::leak(Box::new(Plan::new(plan.network.clone()).unwrap()));
    let config = Config::with_blocks(plan, how.0).unwrap();
    let least = (plan.max_delay as usize + 4).next_power_of_two();
    let config = Config { depth: least.max(how.1), windows: how.2, jumps: least.max(how.3), ..config };
    assert!(config.wide, "{config}");
    let capacity = 2 * plan.cells() as usize + 50;
    on_devices(plan, gpu, config, how.4, capacity)
}

/// The spikes, the state and the weights of the CPU, whole and in pieces, and from one engine to the other and back.
fn same_as_the_cpus(network: Network, gpu: &Gpu, steps: u64, least: usize, hows: &[How]) {
    let plan = Plan::new(network).unwrap();
    let want = cpu(&plan, steps);
    assert!(want.0.len() >= least, "only {} spikes", want.0.len());
    let learned = want.1.learned.as_ref().unwrap();
    let mut host = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
    assert!(host.state().unwrap().learned.unwrap().strengths != learned.strengths);
    let mut whole = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    run(&mut whole, &[steps]);
    let changes = (0..plan.network.projections.len()).find(|i| plan.changes(*i)).unwrap();
    let mut got = run(&mut host, &[steps / 3]);
    let (begun, middle) = (got.len(), host.state().unwrap());
    for &how in hows {
        let pieces =
            if how.2 > 2 { vec![steps] } else { vec![1, 2, steps / 4, steps / 4, steps - 3 - 2 * (steps / 4)] };
        let mut device = engine(&plan, gpu, how);
        let mut own = Vec::new();
        for piece in pieces {
            own.extend(run(&mut device, &[piece]));
            // When synapses are brought up to date shows nowhere.
            if how.2 <= 2 {
                device.sweep().unwrap();
            }
        }
        let common = own.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
        assert!(own == want.0, "{how:?}: {} spikes, not {}; {common} alike", own.len(), want.0.len());
        let state = device.state().unwrap();
        let own = state.learned.as_ref().unwrap();
        for (what, same) in [
            ("weights", own.strengths == learned.strengths),
            ("entries", own.entries == learned.entries),
            ("under way", own.under_way == learned.under_way),
            ("eligibilities", own.eligible == learned.eligible),
            ("counts", own.counts == learned.counts),
            ("levels", own.levels == learned.levels),
            ("all", state == want.1),
        ] {
            assert!(same, "{how:?}: {what}");
        }
        assert_eq!(device.events(), whole.events());
        assert_eq!(device.weights().unwrap(), whole.weights().unwrap());
        assert_eq!(device.table(changes).unwrap().weight, whole.table(changes).unwrap().weight);
        // From the CPU through the bytes of a checkpoint, and back.
        let c = Checkpoint {
            fingerprint: [0; 32],
            state: middle.clone(),
            hash: Default::default(),
            replicas: vec![],
            logged: 0,
            counts: vec![],
        };
        let read = Checkpoint::from_bytes(&c.to_bytes(), std::path::Path::new("c")).unwrap().state;
        device.restore(&read).unwrap();
        assert!(device.state().unwrap() == middle, "{how:?}: the state that was restored");
        got.truncate(begun);
        got.extend(run(&mut device, &[1, steps / 3 - 1]));
        let mut back = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        back.restore(&device.state().unwrap()).unwrap();
        got.extend(run(&mut back, &[steps - 2 * (steps / 3)]));
        assert!(got == want.0, "{how:?}: resumed");
        assert!(back.state().unwrap() == want.1, "{how:?}: resumed");
        assert_eq!(back.weights().unwrap(), {
            device.restore(&want.1).unwrap();
            device.weights().unwrap()
        });
    }
}

/// All that the original's configuration has, together, and its other rules.
#[test]
fn on_a_gpu_the_original_has_the_cpus_weights() {
    let Some(gpu) = gpu() else { return };
    let set =
        ["plasticity.learning_rate=0.2", "plasticity.weight_decay=0.001", "plasticity.homeostatic.time_window=100"];
    let steps = steps(&gpu, 400, 4000);
    for (more, how) in [("plasticity.rule=hebb_like", FEW), ("plasticity.rule=bcm", TWO)] {
        let network = brain(&[&set[..], &[more]].concat());
        same_as_the_cpus(network, &gpu, steps, 300, &[how]);
    }
}

/// Delays before synapses: all of them, and some; with short-term plasticity.
#[test]
fn on_a_gpu_axonal_delays_have_the_cpus_weights() {
    let Some(gpu) = gpu() else { return };
    for (seed, placement) in [(51, [A; 4]), (52, [D, A, A, D])] {
        let steps = steps(&gpu, 1500, 30_000);
        let least = if steps > 2000 { 10_000 } else { 300 };
        same_as_the_cpus(learning(40, seed, placement), &gpu, steps, least, &[MANY, FEW, TWO]);
    }
}

/// Replicas, which draw by seeds of their own, each with a modulator of its own.
#[test]
fn on_a_gpu_replicas_of_every_rule_have_the_cpus_weights() {
    let Some(gpu) = gpu() else { return };
    let networks = [(61, [D, A, D, A]), (62, [D, A, D, A]), (63, [A, D, A, D])];
    let networks = networks.map(|(seed, placement)| rules_tests::mixed(seed, placement));
    let steps = steps(&gpu, 130, 6000);
    let least = if steps > 2000 { 10_000 } else { 300 };
    same_as_the_cpus(Network::together(&networks).unwrap(), &gpu, steps, least, &[MANY, TWO]);
}

/// Rows of many synapses of one delay, which several warps share, and of many delays, which are looked for in parts.
#[test]
fn on_a_gpu_axons_reach_long_rows() {
    let Some(gpu) = gpu() else { return };
    let mut n = Network::new(0.1, 77).unwrap();
    let mut list = Population::new("list", models::find("spikes").unwrap(), 4);
    list.replay = Some(Arc::new((0..10_000u64).map(|k| (k * 5, (k % 4) as u32)).collect()));
    n.add(list);
    let mut cells = Population::new("T", models::find("lif_exp").unwrap(), 700).parameter("I_e", 420.0).unwrap();
    cells.initial[0] = Distribution::uniform(-65.0, -51.0);
    n.add(cells);
    let stdp = Plasticity { modulation: None, ..modulated(100.0, A) };
    for (delay, plasticity) in [
        (Distribution::from(0.3), stdp),
        (Distribution::uniform(0.1, 9.0), hebb(100.0, Dependence::Mixed, A)),
        (Distribution::uniform(0.1, 2.0), stdp.and_homeostasis(scaling(0.1, None))),
    ] {
        n.projections.push(Projection {
            source: 0,
            target: 1,
            rule: Rule::AllToAll,
            weight: Distribution::uniform(10.0, 50.0),
            delay: Delay::Drawn(delay),
            autapses: true,
            plasticity: Some(plasticity),
            storage: crate::spiking::network::Storage::Stored,
            weight_bits: Default::default(),
        });
    }
    let steps = steps(&gpu, 600, 20_000);
    same_as_the_cpus(n, &gpu, steps, 500, &[MANY, FEW, TWO]);
}

/// Every rule at once, each projection another, and two that are told apart; at least 10,000 spikes.
#[test]
fn on_a_gpu_rules_together_have_the_cpus_weights() {
    let Some(gpu) = gpu() else { return };
    for (seed, placement, few) in [(41, [D, A, D, A], FEW), (42, [A, D, A, D], TWO)] {
        let steps = steps(&gpu, 5000, 20_000);
        let hows = if steps > 5000 { &[MANY, FEW, TWO, FOUR][..] } else { &[few] };
        same_as_the_cpus(rules_tests::mixed(seed, placement), &gpu, steps, 10_000, hows);
    }
}

/// Each rule alone, with the delay on either side, under a modulator that is there a step later and one that takes longer.
#[test]
fn on_a_gpu_each_rule_has_the_cpus_weights() {
    let Some(gpu) = gpu() else { return };
    let modulator = |what: Plasticity, population, delay_ms| {
        let m = Modulation { population, delay_ms, ..what.modulation.unwrap() };
        Plasticity { modulation: Some(m), ..what }
    };
    let depressing = ShortTerm { u: 0.5, tau_rec_ms: 30.0, tau_fac_ms: 0.0 };
    for (k, placement) in [(0, A), (1, D)] {
        let stdp = Plasticity { modulation: None, ..modulated(160.0, placement) };
        let rules = [
            [Some(hebb(160.0, Dependence::Additive, placement)); 2],
            [Some(hebb(160.0, Dependence::Mixed, placement).and_homeostasis(scaling(0.05, None))), None],
            [Some(bcm(160.0, placement)), None],
            [Some(bcm(160.0, placement).and_homeostasis(scaling(0.04, None))); 2],
            [Some(stdp.and_homeostasis(scaling(0.03, None)).and_short_term(depressing)), None],
            [Some(Plasticity::homeostasis(scaling(0.02, Some((0.0, 200.0))))), None],
            // Two modulators, one of which every cell carries; and a delay of one step, of 30.
            [
                Some(modulator(modulated(160.0, placement), 3, 0.1)),
                Some(modulator(modulated(160.0, placement), 0, 3.0)),
            ],
            [Some(modulator(modulated(160.0, placement), 1, 0.1).and_short_term(depressing)), None],
        ];
        // Spikes of the same step know no delay.
        let alone = Plasticity::coincidence(coincidence(Some((0.0, 160.0))));
        let beside = bcm(160.0, D).and_homeostasis(scaling(0.04, None)).and_coincidence(coincidence(None));
        let together = [
            [Some(alone), Some(alone.and_decay(0.05))],
            [Some(beside.and_decay(0.01).and_short_term(depressing)), Some(stdp.and_decay(0.02))],
        ];
        for (i, rules) in rules.into_iter().chain(together).enumerate() {
            let mut n = rules_tests::mixed(60 + 20 * k + i as u64, [placement; 4]);
            n.projections.iter_mut().for_each(|p| p.plasticity = None);
            n.projections.truncate(5);
            n.projections[0].plasticity = rules[0];
            n.projections[1].plasticity = rules[1];
            // Models that need the other kernel.
            if i % 2 == 1 {
                let size = n.populations[1].size;
                let mut inhibitory = Population::new("I", models::find("lif_alpha").unwrap(), size);
                inhibitory.initial[0] = Distribution::uniform(-65.0, -51.0);
                n.populations[1] = inhibitory;
            }
            let (steps, least) = (steps(&gpu, 400, 20_000), 200);
            let hows = if steps > 5000 {
                &[MANY, FEW, TWO, FOUR][..]
            } else {
                &[[FEW], [MANY], [TWO], [FOUR]][(i / 2 + i) % 4]
            };
            same_as_the_cpus(n, &gpu, steps, least, hows);
        }
    }
}
