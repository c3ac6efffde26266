//! Clocks between the parts of a step change no spike and no state, and leave no part out.

use super::learning::LearningEngine;
use super::parts::*;
use super::tests::{How, cpu, engine, steps, zoo};
use super::*;
use crate::check::gpu::gpu;
use crate::spiking::Network;
use crate::spiking::simulate::learning_tests::learning;
use crate::spiking::simulate::parts::tests::everything;
use crate::spiking::simulate::procedural_tests::{drawn, network};
use crate::spiking::simulate::reckon::{Load, Rates, reckoned};
use crate::spiking::simulate::rules_tests;

const DENDRITIC: [crate::spiking::plasticity::Placement; 4] = [crate::spiking::plasticity::Placement::Dendritic; 4];

/// Steps without clocks, with, and without: the CPU's spikes and state, all of the step in parts, and these parts.
fn assert_timed(plan: &Plan, engine: &mut dyn Engine, steps: u64, names: &[&str]) {
    let want = cpu(plan, steps);
    let (mut got, third) = (Vec::new(), steps / 3);
    let what = format!("{}, {steps} steps", engine.config());
    engine.advance(third, &mut got).unwrap();
    let before = got.len();
    let shares = engine.advance_in_parts(steps - 2 * third, &mut got).unwrap().unwrap();
    assert!(got.len() > before, "{what}: nothing fired");
    engine.advance(third, &mut got).unwrap();
    let alike = got.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
    assert!(got == want.0, "{what}: {} spikes, not {}; {alike} alike", got.len(), want.0.len());
    assert!(engine.state().unwrap() == want.1, "{what}: state");
    assert_eq!(shares.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [names, &[BESIDE]].concat(), "{what}");
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    assert!(
        (sum - 1.0).abs() < 1e-9 && shares.iter().all(|(_, share)| (0.0..1.0).contains(share)),
        "{what}: {shares:?}"
    );
    // Emulated clocks are no nanoseconds. Clocks are of some warps, and which of a few rows those get is chance: of one kind perhaps none.
    let of_rows = |name: &str| [DELIVERY, ROWS, LEARNING, REDRAWN, AXONS].contains(&name);
    let (rows, done): (Vec<_>, Vec<_>) =
        shares.iter().filter(|(name, _)| *name != BESIDE).partition(|of| of_rows(of.0));
    assert!(done.iter().all(|(_, share)| *share > 0.0), "{what}: {shares:?}");
    assert!(rows.iter().map(|(_, share)| share).sum::<f64>() > 0.0, "{what}: {shares:?}");
    // What each is said to work on.
    let load = Load { spikes: vec![1.0; plan.models.len()], events: 1000.0 };
    let rates = Rates { bytes: 1e12, instructions: 1e12, source: String::new() };
    let parts = reckoned(engine, &[shares], 10.0, &load, &rates);
    for part in &parts {
        let known = ["memory", "compute", "latency", "host", "not reckoned"];
        assert!(known.contains(&part.bound.as_str()) && !part.of.is_empty() && part.count >= 0.0, "{what}: {part:?}");
        let moves = [DELIVERY, CALENDAR, ROWS, LEARNING, AXONS, REDRAWN, BOTH, TELLING, EXCHANGE];
        assert!(part.bytes.is_some_and(|b| b > 0.0) || !moves.contains(&part.what.as_str()), "{what}: {part:?}");
    }
}

const FIXED: [&str; 7] = [HEADERS, DELIVERY, AFTER_DELIVERY, UPDATE, AFTER_UPDATE, TELLING, DRIVES];

/// Light and heavy models, wherever sums lie, on one card and on several, and replicas that draw by seeds of their own.
#[test]
fn on_a_gpu_networks_are_timed_in_parts() {
    let Some(gpu) = gpu() else { return };
    let (light, all) = ([0, 1, 2, 3].as_slice(), [0, 1, 2, 3, 4, 5, 6, 7].as_slice());
    let how = |cards, blocks, place, near| How { blocks, cards, place, segment: None, room: 31, near };
    for (which, one_drive, seeds, how) in [
        (light, true, false, how(1, 2, Place::Shared, false)),
        (light, true, true, how(1, 1, Place::Shared, false)),
        (light, false, false, how(1, 2, Place::Calendar, true)),
        (light, false, false, how(2, 1, Place::Calendar, true)),
        (light, false, false, how(1, 2, Place::Global, false)),
        (all, false, false, how(1, 2, Place::Shared, false)),
        (all, false, false, how(1, 1, Place::Calendar, false)),
        (all, false, true, how(2, 1, Place::Global, false)),
    ] {
        let mut networks: Vec<Network> = [5, 6].map(|seed| zoo(which, 0.05, 4.0, seed)).to_vec();
        networks.truncate(if seeds { 2 } else { 1 });
        for n in networks.iter_mut().filter(|_| one_drive) {
            let mut driven = vec![false; n.populations.len()];
            n.drives.retain(|d| !std::mem::replace(&mut driven[d.target], true));
        }
        let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
        let mut own = engine(&plan, &gpu, how, 4000);
        assert_eq!((own.config.held, own.config.seeds, own.config.heavy), (one_drive, seeds, which.len() > 4));
        let calendar = if how.place == Place::Calendar { &[CALENDAR][..] } else { &[] };
        assert_timed(&plan, &mut own, steps(&gpu, 36, 20_000), &[&FIXED[..], calendar].concat());
    }
}

/// Synapses that change, in rows of the resident kernel.
#[test]
fn on_a_gpu_networks_that_learn_are_timed_in_parts() {
    let Some(gpu) = gpu() else { return };
    let devices = std::slice::from_ref(&gpu.device);
    let several = Network::together(&[learning(14, 42, DENDRITIC), learning(14, 43, DENDRITIC)]).unwrap();
    for (network, few) in [(learning(40, 41, DENDRITIC), 450), (several, 300)] {
        let plan = Plan::new(network).unwrap();
        let mut own = CudaEngine::new(&plan, devices, &|_, _| ()).unwrap();
        assert!(own.config.learns.is_some(), "{}", own.config);
        let mut names = vec![HEADERS, LISTING, AFTER_LIST, UPDATE, AFTER_UPDATE, TELLING];
        names.extend(if plan.poisson.is_empty() { None } else { Some(DRIVES) });
        names.extend([ROWS, LEARNING, AFTER_LEARNING]);
        assert_timed(&plan, &mut own, steps(&gpu, few, 30_000), &names);
    }
}

/// The streaming kernel: pairs, other rules and axons, synapses that are drawn again, and several cards.
#[test]
fn on_a_gpu_networks_of_the_streaming_kernel_are_timed_in_parts() {
    let Some(gpu) = gpu() else { return };
    let axonal = [crate::spiking::plasticity::Placement::Axonal; 4];
    let mut alone = network(12, 2.0, 4);
    alone.projections.truncate(6);
    let (alone, some) = (drawn(alone).0, drawn(network(20, 9.0, 2)).0);
    let pairs = &[DELIVERY, LEARNING][..];
    for (network, cards, middle, few) in [
        (learning(30, 41, DENDRITIC), 1, pairs, 450),
        (learning(30, 41, DENDRITIC), 2, pairs, 450),
        (rules_tests::mixed(45, axonal), 1, &[LEARNING, AXONS], 300),
        (some, 1, &[DELIVERY, REDRAWN], 90),
        (alone, 1, &[REDRAWN], 90),
        (drawn(everything()).0, 1, &[DELIVERY, LEARNING, REDRAWN, AXONS], 60),
    ] {
        let plan = Plan::new(network).unwrap();
        let mut devices = vec![gpu.device.clone()];
        devices.extend((1..cards).map_while(|k| CudaDevice::open(k).ok()));
        let cards = devices.len();
        let layout = Layout::even(&plan.network, cards);
        let mut own = LearningEngine::in_layout(&plan, &devices, layout, &|_, _| ()).unwrap();
        let exchange = if cards > 1 { &[EXCHANGE][..] } else { &[] };
        let (before, after) = ([BOTH, AFTER_UPDATE, OTHERS_UPDATE], [AFTER_DELIVERY, OTHERS_DELIVERY]);
        let names = [&before[..], exchange, &[LISTING], middle, &after].concat();
        assert_timed(&plan, &mut own, steps(&gpu, few, 20_000), &names);
    }
}
