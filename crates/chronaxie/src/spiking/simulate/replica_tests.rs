//! Replicas against runs of their own: the same spikes, states and weights, bit for bit.

use super::parts::tests::everything;
use super::rules_tests::mixed;
use super::tests::balanced;
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State, by_replica};
use crate::pool;
use crate::spiking::network::{Distribution, DriveKind, Network};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::Placement;
use crate::spiking::record::SpikeHash;

const D: Placement = Placement::Dendritic;
const A: Placement = Placement::Axonal;

fn seeded(mut network: Network, seed: u64) -> Network {
    network.seed = seed;
    network
}

/// Every rule of connection and of synapses, sources, drives, cells of their own kind; then other weights, rates, plasticity, sizes
/// and numbers of everything.
pub(super) fn various() -> Vec<Network> {
    let mut other = seeded(mixed(7, [A, D, A, D]), 5);
    other.projections[1].weight = Distribution::uniform(60.0, 70.0);
    for d in &mut other.drives {
        d.kind = DriveKind::Poisson { rate_hz: 15_000.0, weight: 82.5, start_ms: 3.0, stop_ms: f64::INFINITY };
    }
    other.populations[0] = other.populations[0].clone().parameter("I_e", Distribution::normal(20.0, 9.0)).unwrap();
    vec![everything(), seeded(everything(), 5), seeded(everything(), 1 << 40), other, balanced(30, 5)]
}

fn run(engine: &mut dyn Engine, pieces: &[u64]) -> Vec<Spike> {
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    spikes
}

/// The spikes of each replica.
pub(super) fn apart(plan: &Plan, spikes: &[Spike]) -> Vec<Vec<Spike>> {
    let mut lists = vec![Vec::new(); plan.network.replicas.len()];
    by_replica(&plan.network, spikes, &mut lists);
    lists
}

/// What each network does by itself: spikes, the state at the end, the tables of its projections.
type Alone = (Vec<Spike>, State, Vec<Vec<f32>>);

fn tables(plan: &Plan, engine: &dyn Engine) -> Vec<Vec<f32>> {
    (0..plan.network.projections.len()).map(|i| engine.table(i).unwrap().weight).collect()
}

fn alone(network: &Network, steps: u64) -> Alone {
    let plan = Plan::new(network.clone()).unwrap();
    let mut engine = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    let spikes = run(&mut engine, &[steps]);
    (spikes, engine.state().unwrap(), tables(&plan, &engine))
}

#[test]
fn replicas_have_the_spikes_states_and_weights_of_runs_of_their_own() {
    let networks = various();
    let steps = 2000;
    pool::set_num_threads(2);
    let want: Vec<Alone> = networks.iter().map(|n| alone(n, steps)).collect();
    for (i, w) in want.iter().enumerate() {
        assert!(w.0.len() > 500, "replica {i} has {} spikes", w.0.len());
        assert!(want[..i].iter().all(|v| v.0 != w.0), "replica {i} is another's");
    }
    assert!(want.iter().map(|w| w.0.len()).sum::<usize>() > 20_000);
    let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
    for (shards, pieces) in [(1, vec![steps]), (3, vec![1, 2, 700, steps - 703])] {
        let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
        let got = apart(&plan, &run(&mut engine, &pieces));
        let (state, weights) = (engine.state().unwrap(), tables(&plan, &engine));
        for (k, want) in want.iter().enumerate() {
            assert!(got[k] == want.0, "{shards} shards, replica {k}: {} spikes, not {}", got[k].len(), want.0.len());
            assert!(state.variables[plan.network.populations_of(k)] == want.1.variables, "replica {k}: states");
            let first = plan.network.replicas[k].projection;
            assert!(weights[first..first + want.2.len()] == want.2, "replica {k}: weights");
        }
        assert_eq!(engine.synapses(), want.iter().flat_map(|w| &w.2).map(|t| t.len() as u64).sum::<u64>());
    }
}

/// The law too, in f64 and with the models' bodies.
#[test]
fn the_law_of_replicas_is_that_of_each() {
    let networks = [everything(), seeded(everything(), 5), balanced(30, 5)];
    let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
    for in_f32 in [false, true] {
        let law = |plan: &Plan| {
            let mut spikes = Vec::new();
            let mut law = if in_f32 { Reference::in_f32(plan) } else { Reference::new(plan) }.unwrap();
            law.advance(500, &mut spikes).unwrap();
            spikes
        };
        let got = apart(&plan, &law(&plan));
        for (k, n) in networks.iter().enumerate() {
            let want = law(&Plan::new(n.clone()).unwrap());
            assert!(want.len() > 100 && got[k] == want, "replica {k}, {in_f32}: {} of {}", got[k].len(), want.len());
        }
    }
}

#[test]
fn replicas_go_on_from_a_checkpoint() {
    let networks = various();
    let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
    pool::set_num_threads(2);
    let (cut, steps) = (777, 1500);
    let mut first = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    let mut got = run(&mut first, &[cut]);
    let hash = |spikes: &[Spike]| {
        let mut hash = SpikeHash::default();
        hash.add(spikes);
        hash
    };
    let replicas = apart(&plan, &got).iter().map(|own| hash(own)).collect();
    let state = first.state().unwrap();
    let c = Checkpoint { fingerprint: [0; 32], state, hash: hash(&got), replicas, logged: 0, counts: vec![] };
    let read = Checkpoint::from_bytes(&c.to_bytes(), std::path::Path::new("c")).unwrap();
    assert_eq!(read, c);
    let mut second = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
    second.restore(&read.state).unwrap();
    got.extend(run(&mut second, &[steps - cut]));
    for (k, (own, n)) in apart(&plan, &got).iter().zip(&networks).enumerate() {
        assert!(*own == alone(n, steps).0, "replica {k}");
    }
    // Another list of seeds is another network, and not its state.
    let fewer = Plan::new(Network::together(&networks[1..]).unwrap()).unwrap();
    let mut other = CpuEngine::with_shards(&fewer, 1, &|_, _| ()).unwrap();
    assert!(other.restore(&read.state).unwrap_err().to_string().contains("not one of this network"));
}

#[test]
fn networks_that_do_not_go_together_are_refused() {
    let says = |networks: &[Network]| Network::together(networks).unwrap_err().to_string();
    assert_eq!(says(&[]), "0 networks cannot run side by side; at least 1");
    let mut slow = balanced(10, 2);
    slow.dt_ms = 0.2;
    let want = "replica 1 has steps of 0.2 ms and replica 0 of 0.1 ms; networks side by side have the same";
    assert_eq!(says(&[balanced(10, 1), slow]), want);
    assert_eq!(says(&[balanced(10, 1), Network::new(0.1, 2).unwrap()]), "replica 1 has no population");
    let two = Network::together(&[balanced(10, 1), balanced(10, 2)]).unwrap();
    assert_eq!(says(std::slice::from_ref(&two)), "replica 0 is 2 networks already");
    assert_eq!((two.cells_of(1), two.populations_of(0), two.own_name(3)), (50..100, 0..2, "I"));
    assert!(!two.has_one_seed() && two.seed == 1);
    // A refusal names the replica.
    let mut bad = balanced(10, 3);
    bad.projections[2].delay = crate::spiking::network::Delay::Drawn(0.01.into());
    let said = Plan::new(Network::together(&[balanced(10, 1), bad]).unwrap()).unwrap_err().to_string();
    assert!(said.contains("projection I#1 -> E#1"), "{said}");
    // Equal seeds are allowed, and do the same.
    let same = Plan::new(Network::together(&[balanced(20, 4), balanced(20, 4)]).unwrap()).unwrap();
    assert!(same.network.has_one_seed());
    let spikes = run(&mut CpuEngine::with_shards(&same, 2, &|_, _| ()).unwrap(), &[500]);
    let own = apart(&same, &spikes);
    assert!(own[0].len() > 20 && own[0] == own[1]);
}
