//! Weights of 32 bits on CUDA: the spikes and states of the CPU, bit for bit, wherever what is under way lies, and which kernel takes them.

use super::super::long_tests::long;
use super::config::{Asked, Place};
use super::tests::{How, assert_same, cpu, engine, steps, zoo};
use super::*;
use crate::DeviceProps;
use crate::check::gpu::gpu;
use crate::spiking::bench;
use crate::spiking::network::{Rule, WeightBits};
use crate::spiking::simulate::CpuEngine;

/// Resident: with a cell a thread and without, sums in shared memory, calendars with states beside them and without, with room and
/// without, sums in global memory, light models and heavy ones, one card and two; some weights of 32 bits or all; rows in their segments and
/// beyond.
#[test]
fn on_a_gpu_weights_of_32_bits_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let light = [0, 1, 2, 3].as_slice();
    let heavy = [0, 2, 4, 6].as_slice();
    let how = |cards, blocks, place, segment, room| How { blocks, cards, place, segment, room, near: room % 2 == 1 };
    for (which, every, longest, one_drive, how, few) in [
        (light, 1, 6.0, false, how(1, 3, Place::Shared, None, 0), 120),
        (&[0, 1][..], 2, 6.0, true, how(1, 3, Place::Shared, Some(8), 0), 120),
        (light, 3, 25.0, false, how(1, 2, Place::Calendar, Some(16), 4012), 120),
        (light, 1, 120.0, false, how(1, 3, Place::Calendar, None, 31), 120),
        (light, 2, 12.0, false, how(1, 4, Place::Global, Some(0), 0), 80),
        (heavy, 1, 4.0, false, how(1, 2, Place::Calendar, None, 30), 60),
        (heavy, 2, 4.0, false, how(1, 2, Place::Shared, None, 0), 60),
        (light, 1, 6.0, false, how(2, 2, Place::Shared, None, 0), 60),
        (light, 1, 12.0, false, how(2, 2, Place::Calendar, None, 31), 60),
        (light, 2, 12.0, false, how(2, 2, Place::Global, None, 0), 40),
    ] {
        let mut network = zoo(which, 0.1, longest, 5);
        if one_drive {
            let mut driven = vec![false; network.populations.len()];
            network.drives.retain(|d| !std::mem::replace(&mut driven[d.target], true));
        }
        let plan = Plan::new(long(network, every)).unwrap();
        let steps = steps(&gpu, few, 40_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 80 }, "only {} spikes", want.0.len());
        let mut first = engine(&plan, &gpu, how, 4000);
        let config = first.config;
        assert!(config.long && config.wide && config.narrow.is_none() && config.codes == 0, "{config}");
        assert_eq!((config.held, config.synapse()), (one_drive, 8), "{config}");
        assert_same(&plan, &mut first, &[1, steps - 1], &want);
        assert_eq!(first.synapses(), CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap().synapses());
        // What is under way goes back to the device.
        let half = cpu(&plan, steps / 2);
        first.restore(&half.1).unwrap();
        let mut spikes = Vec::new();
        first.advance(steps - steps / 2, &mut spikes).unwrap();
        assert!(spikes[..] == want.0[half.0.len()..], "{first:?}");
        let begun = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap().state().unwrap();
        first.restore(&begun).unwrap();
        let mut timed = Vec::new();
        if first.advance_in_parts(steps, &mut timed).unwrap().is_some() {
            assert!(timed == want.0, "{first:?}: with clocks");
        }
    }
}

/// A network of the bench, how its synapses lie and what it takes, with weights of 16 bits and of 32.
#[test]
fn synapses_take_eight_bytes_where_weights_have_32_bits_and_four_where_not() {
    let device = DeviceProps::SM_90;
    let case = "100000x1000_dt1".parse().unwrap();
    let mut network = bench::find("network").unwrap().network(&case).unwrap().0;
    let taken = |network: &crate::spiking::network::Network| {
        let plan = Plan::new(network.clone()).unwrap();
        let config = Config::asked(&plan, &device, 132, &Layout::even(&plan.network, 1), Asked::default()).unwrap();
        (
            config.synapse(),
            config.footprint(&plan).most() * 1e-9,
            plan.bytes(1.0, Default::default()) as f64 * 1e-9,
            config,
        )
    };
    let short = taken(&network);
    assert!(short.0 == 4 && !short.3.long && !short.3.wide, "{}", short.3);
    network.projections[0].weight_bits = WeightBits::ThirtyTwo;
    let own = taken(&network);
    assert!(own.0 == 8 && own.3.long && own.3.to_string().contains("8 bytes a synapse"), "{}", own.3);
    // A hundred million of them.
    assert!(own.1 > short.1 + 0.35 && own.2 > short.2 + 0.55, "{} {} GB, {} {}", own.1, short.1, own.2, short.2);
    // More inputs and steps than 32 bits name.
    let mut n = zoo(&[0], 0.001, 60.0, 5);
    n.populations[0].size = 1_000_000;
    n.projections.iter_mut().for_each(|p| p.rule = Rule::InDegree { count: 1, multapses: true });
    let plan = Plan::new(long(n, 1)).unwrap();
    let e =
        Config::asked(&plan, &device, 1, &Layout::even(&plan.network, 1), Asked::default()).unwrap_err().to_string();
    assert!(e.contains("bits of a synapse, which has 32 beside a weight of as many"), "{e}");
    let e = super::learning::Config::with_blocks(&plan, 1).unwrap_err().to_string();
    assert!(e.contains("on the CUDA backend; use --backend cpu, or weight_bits = 16"), "{e}");
}
