//! Replicas on a GPU: the spikes of runs of their own on the CPU.

use super::tests::{How, assert_same, cpu, engine, steps, zoo};
use super::*;
use crate::check::gpu::gpu;
use crate::spiking::network::{Drive, DriveKind, Network};
use crate::spiking::simulate::by_replica;
use config::Place;

/// Wherever states and what is under way lie, on one card and on two, of light models and of heavy ones; of arrivals that are kept
/// and of so many that they are drawn at each step.
#[test]
fn on_a_gpu_replicas_have_the_spikes_of_runs_of_their_own() {
    let Some(gpu) = gpu() else { return };
    let how = |cards, blocks, place, near| How { blocks, cards, place, segment: None, room: 31, near };
    for (which, one_drive, how, few) in [
        ([0, 1].as_slice(), true, how(1, 3, Place::Shared, false), 100),
        (&[0, 2], false, how(1, 2, Place::Shared, false), 80),
        (&[0, 3], false, how(1, 3, Place::Calendar, true), 80),
        (&[0, 1], false, how(1, 2, Place::Calendar, false), 80),
        (&[1, 2], false, how(1, 2, Place::Global, false), 80),
        (&[0, 5], false, how(1, 2, Place::Shared, false), 60),
        (&[0, 1], false, how(2, 2, Place::Calendar, true), 60),
    ] {
        let seeds = [5, 6, 7 << 33];
        let mut networks = seeds.map(|seed| zoo(which, 0.1, 5.0, seed)).to_vec();
        // Other parameters and other drives than the first, by the same seed.
        networks.push(networks[0].clone());
        networks[3].populations[0].parameters[0] = 180.0.into();
        for (k, n) in networks.iter_mut().enumerate() {
            if one_drive {
                let mut driven = vec![false; n.populations.len()];
                n.drives.retain(|d| !std::mem::replace(&mut driven[d.target], true));
            } else if k > 1 {
                let kind = DriveKind::Poisson { rate_hz: 2.2e6, weight: 0.01, start_ms: 0.3, stop_ms: f64::INFINITY };
                n.drives.push(Drive { target: 0, kind });
            }
        }
        let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
        let steps = steps(&gpu, few, 20_000);
        let want = cpu(&plan, steps);
        let mut apart = vec![Vec::new(); networks.len()];
        by_replica(&plan.network, &want.0, &mut apart);
        for (k, (n, own)) in networks.iter().zip(&apart).enumerate() {
            let lone = cpu(&Plan::new(n.clone()).unwrap(), steps).0;
            assert!(lone.len() > 50 && lone == *own, "replica {k} has {} spikes, not {}", own.len(), lone.len());
            assert!(apart[..k].iter().all(|other| other != own), "replica {k} is another's");
        }
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 300 }, "only {} spikes", want.0.len());
        let mut first = engine(&plan, &gpu, how, 4000);
        assert!(first.config.seeds && first.config.held == one_drive, "{}", first.config);
        assert_same(&plan, &mut first, &[1, steps - 1], &want);
        // What is under way goes back to the device.
        let half = cpu(&plan, steps / 2);
        first.restore(&half.1).unwrap();
        let mut spikes = Vec::new();
        first.advance(steps - steps / 2, &mut spikes).unwrap();
        assert!(spikes[..] == want.0[half.0.len()..], "{first:?}");
    }
}

/// Replicas of one seed take the kernels of one network.
#[test]
fn on_a_gpu_replicas_of_one_seed_have_one() {
    let Some(gpu) = gpu() else { return };
    let mut networks = vec![zoo(&[0, 1], 0.1, 5.0, 4); 2];
    networks[1].populations[0].parameters[0] = 180.0.into();
    let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
    let steps = steps(&gpu, 60, 5000);
    let want = cpu(&plan, steps);
    let how = How { blocks: 2, cards: 1, place: Place::Shared, segment: None, room: 0, near: false };
    let mut one = engine(&plan, &gpu, how, 4000);
    assert!(!one.config.seeds, "{}", one.config);
    assert_same(&plan, &mut one, &[steps], &want);
}
