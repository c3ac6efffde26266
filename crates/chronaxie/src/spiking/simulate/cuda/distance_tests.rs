//! Delays by distance of synapses that the device draws, and rows that are spread over a block whose lists have little room: the CPU's
//! spikes, bit for bit.

use super::layout_tests::scattered;
use super::tests::{cpu, steps, zoo};
use super::*;
use crate::check::gpu::gpu;
use crate::spiking::network::place::Box4;
use crate::spiking::network::{Delay, Rule};

/// Cells in a box, every synapse drawn by a rule of draws alone, its delay by distance.
fn network(longest_ms: f64, seed: u64) -> Plan {
    let mut n = zoo(&[0, 1, 2, 3], 0.1, longest_ms, seed);
    let space = Box4 { low: [0, -3, 2, 0], high: [4, 5, 9, 16] };
    for (i, p) in n.populations.iter_mut().enumerate() {
        p.positions = Some(Arc::new(space.scatter(p.size, 9, i as u32)));
    }
    n.projections.retain(|p| {
        matches!(
            p.rule,
            Rule::Total { multapses: true, .. }
                | Rule::InDegree { multapses: true, .. }
                | Rule::OutDegree { multapses: true, .. }
        )
    });
    assert!(n.projections.len() > 5);
    // The longest way is 21.
    let velocity = 21.0 / (longest_ms - 0.25);
    n.projections.iter_mut().for_each(|p| p.delay = Delay::Distance { velocity, offset_ms: 0.23 });
    let plan = Plan::new(n).unwrap();
    assert!((0..plan.network.projections.len()).all(|i| !build::is_listed(&plan, i)));
    plan
}

#[test]
fn on_a_gpu_delays_by_distance_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let gpus = std::slice::from_ref(&gpu.device);
    for (longest, cards, spread) in [(6.0, 1, None), (6.0, 2, None), (11.0, 3, Some(2)), (11.0, 2, Some(8))] {
        let plan = network(longest, 5);
        let steps = steps(&gpu, 80, 20_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 100 }, "only {} spikes", want.0.len());
        let layout = if cards == 1 { Layout::even(&plan.network, 1) } else { scattered(&plan, cards, None) };
        let mut props = *gpu.device.props();
        if let Some(rows) = spread {
            // A ring in global memory.
            props.shared_per_block_optin = 0;
            let mut config = Config::with_layout(&plan, &props, 2, &layout).unwrap();
            assert!(config.place == config::Place::Global && config.spread > rows, "{config}");
            (config.spread, config.segment) = (rows, 4);
            let capacity = 4 * plan.cells() as usize;
            let mut engine = CudaEngine::with(&plan, gpus, config, layout, capacity, &|_, _| ()).unwrap();
            super::tests::assert_same(&plan, &mut engine, &[steps / 2, steps - steps / 2], &want);
            continue;
        }
        let config = Config::with_layout(&plan, &props, 3, &layout).unwrap();
        let capacity = 4 * plan.cells() as usize;
        let mut engine = CudaEngine::with(&plan, gpus, config, layout, capacity, &|_, _| ()).unwrap();
        super::tests::assert_same(&plan, &mut engine, &[steps], &want);
    }
}
