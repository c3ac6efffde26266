//! Cells of every model that die and are born: the law, the CPU, and a GPU, bit for bit.

use super::super::Reference;
use super::super::learning_tests::{learning, strengths};
use super::super::rules_tests::{bcm, hebb};
use super::super::tests::balanced;
use super::tests::{steps, zoo};
use super::*;
use crate::check::gpu::gpu;
use crate::pool;
use crate::spiking::life::{Living, Make};
use crate::spiking::network::{Distribution, Lifecycle, Network};
use crate::spiking::plasticity::{Dependence, Placement};
use crate::spiking::simulate::CpuEngine;

/// Cells that live for so many ms, with children or without.
fn mortal(mut n: Network, age_ms: f64, reproduction: bool) -> Network {
    n.lifecycle = Some(Lifecycle {
        initial_age_ms: Distribution::uniform(0.0, age_ms),
        mutation_std_params: 0.02,
        mutation_std_weights: n.projections.iter().map(|p| 0.1 * p.weight.mean().abs()).collect(),
        interval_ms: age_ms / 3.0,
        reproduction,
        ..Lifecycle::new(&n, age_ms)
    });
    n
}

fn living(network: &Network, make: Make, pieces: &[u64]) -> (Vec<Spike>, State) {
    let mut engine = Living::new(network.clone(), make).unwrap();
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    let lives = engine.lives().unwrap().unwrap();
    assert!(lives.died > 50 && (lives.born == lives.died || lives.born == 0), "{} {}", lives.died, lives.born);
    (spikes, engine.state().unwrap())
}

fn on_cpu() -> Make {
    Box::new(|plan| Ok(Box::new(CpuEngine::with_shards(plan, 2, &|_, _| ())?)))
}

/// What stands for a dead cell stays silent in every model, and parameters of children run in it.
#[test]
fn cells_of_every_model_die_as_the_law_has_it() {
    pool::set_num_threads(1);
    for (which, dt_ms, reproduction) in [
        (&[0, 1, 2, 3][..], 0.1, true),
        (&[4, 5, 6], 0.1, true),
        (&[7, 0], 0.05, true),
        (&[0, 1, 2, 3], 0.1, false),
        (&[4, 5, 6], 0.1, false),
        (&[7, 0], 0.05, false),
    ] {
        let network = mortal(zoo(which, dt_ms, 5.0, 3), 30.0, reproduction);
        let plan = Plan::new(network.clone()).unwrap();
        let (mut want, mut law) = (Vec::new(), Reference::in_f32(&plan).unwrap());
        law.advance(900, &mut want).unwrap();
        let (got, _) = living(&network, on_cpu(), &[900]);
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(want.len() > 800 && got == want, "{which:?}: {} spikes, not {}, {common} alike", got.len(), want.len());
    }
}

/// Static synapses in the resident kernel, plastic ones there and in the streaming one, and places that stay empty, of every model.
#[test]
fn on_a_gpu_networks_of_cells_that_die_have_the_cpus_bits() {
    let Some(gpu) = gpu() else { return };
    let few = steps(&gpu, 90, 4000);
    let mut wide = balanced(12, 5);
    for (p, what) in wide.projections.iter_mut().zip([
        hebb(160.0, Dependence::Multiplicative, Placement::Axonal),
        bcm(160.0, Placement::Dendritic),
        hebb(800.0, Dependence::Additive, Placement::Dendritic),
        bcm(800.0, Placement::Axonal),
    ]) {
        p.plasticity = Some(what);
    }
    let networks = [
        mortal(zoo(&[0, 1, 3], 0.1, 2.0, 5), 6.0, true),
        mortal(zoo(&[2, 4, 6], 0.1, 2.0, 5), 6.0, false),
        mortal(zoo(&[5, 7], 0.05, 1.0, 5), 4.0, false),
        mortal(learning(20, 22, [Placement::Dendritic; 4]), 6.0, true),
        mortal(wide, 6.0, true),
    ];
    for (k, network) in networks.into_iter().enumerate() {
        let (want, state) = living(&network, on_cpu(), &[few]);
        let device = gpu.device.clone();
        let make: Make = Box::new(move |plan| engine(plan, std::slice::from_ref(&device), &|_, _| ()));
        let (got, own) = living(&network, make, &[few / 3, few - few / 3]);
        assert!(!want.is_empty() && got == want, "network {k}: {} spikes, not {}", got.len(), want.len());
        assert!(own == state, "network {k}: the state");
        if k > 2 {
            let plan = Plan::new(network).unwrap();
            let (mut law, mut spikes) = (Reference::in_f32(&plan).unwrap(), Vec::new());
            law.advance(few.min(90), &mut spikes).unwrap();
            assert!(few > 90 || strengths(&plan, &law) == own.learned.unwrap().strengths, "network {k}: weights");
        }
    }
}
