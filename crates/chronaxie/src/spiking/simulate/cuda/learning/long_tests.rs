//! Weights of 32 bits in the streaming kernel, and beside synapses that change in both: the CPU's spikes, weights and states, bit for bit.

use super::super::super::long_tests::long;
use super::super::{self as cuda};
use super::tests::{on_devices, steps};
use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::pool;
use crate::spiking::network::{Distribution, Lifecycle, Network, Rule};
use crate::spiking::plasticity::Placement;
use crate::spiking::simulate::CpuEngine;
use crate::spiking::simulate::learning_tests::{learning, run};
use crate::spiking::simulate::parts::tests::everything;
use crate::spiking::simulate::procedural_tests::{drawn, network};
use crate::spiking::simulate::tests::balanced;

fn leak(network: Network) -> &'static Plan {
    let plan = Plan::new(network).unwrap();
    assert!(plan.has_long(|_| true));
    Box::leak(Box::new(plan))
}

/// With a current that lets cells fire early.
fn driven(mut n: Network) -> Network {
    for p in &mut n.populations {
        *p = p.clone().parameter("I_e", 900.0).unwrap();
        p.initial[0] = Distribution::uniform(-65.0, -50.0);
    }
    n
}

/// Synapses that change by every rule, with weights of 32 bits beside them.
fn beside(size: u32, placement: Placement) -> Network {
    let mut n = driven(learning(size, 22, [placement; 4]));
    for i in 0..4 {
        let p = &n.projections[i];
        let (weight, rule) = (p.weight.scaled(0.7), Rule::InDegree { count: 8, multapses: true });
        n.projections.push(crate::spiking::network::Projection { weight, rule, plasticity: None, ..p.clone() });
    }
    long(n, 1)
}

fn assert_cpus(plan: &'static Plan, gpu: &Gpu, few: u64, make: impl Fn(usize) -> Option<Box<dyn Engine>>) {
    let steps = steps(gpu, few, 20_000);
    pool::set_num_threads(2);
    let mut cpu = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let mut want = run(&mut cpu, &[steps / 2]);
    let (half, cut) = (want.len(), cpu.state().unwrap());
    want.extend(run(&mut cpu, &[steps - steps / 2]));
    assert!(half > 20 && want.len() > half + 20, "only {} spikes", want.len());
    for k in 0.. {
        let Some(mut own) = make(k) else { break };
        let got = run(own.as_mut(), &[1, steps - 1]);
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        let what = format!("{}: {} spikes, not {}; {common} alike", own.config(), got.len(), want.len());
        assert!(got == want, "{what}");
        assert!(own.state().unwrap() == cpu.state().unwrap(), "{what}: state");
        assert_eq!((own.events(), own.synapses()), (cpu.events(), cpu.synapses()), "{what}");
        own.restore(&cut).unwrap();
        let rest = run(own.as_mut(), &[steps - steps / 2]);
        assert!(rest == want[half..] && own.state().unwrap() == cpu.state().unwrap(), "{what}: after a restore");
        for i in 0..plan.network.projections.len() {
            assert!(own.table(i).unwrap() == cpu.table(i).unwrap(), "{what}: projection {i}");
        }
    }
}

/// Rows that are kept and rows that are drawn again, of one block and of several, on one device and on two.
#[test]
fn on_a_gpu_weights_of_32_bits_in_the_streaming_kernel_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    for (n, few) in [(long(network(20, 6.0, 2), 1), 120), (long(network(20, 3.0, 9), 2), 120)] {
        let plan = leak(n.clone());
        let again = leak(drawn(n).0);
        let make = |k| {
            let (blocks, cards) = [(1, 1), (3, 1), (2, 2)].get(k).copied()?;
            let config = Config::with_blocks(again, blocks).unwrap();
            assert!(config.long > 0 && config.drawn > 0 && config.keeps, "{config}");
            Some(Box::new(on_devices(again, &gpu, config, cards, plan.cells() as usize + 50)) as Box<dyn Engine>)
        };
        assert_cpus(plan, &gpu, few, make);
    }
}

/// Both kernels, with delays behind synapses, and the streaming one with delays before them and every rule.
#[test]
fn on_a_gpu_weights_of_32_bits_beside_synapses_that_change_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    for (n, few, both) in [
        (beside(16, Placement::Dendritic), 150, true),
        (beside(16, Placement::Axonal), 120, false),
        (long(everything(), 1), 60, false),
    ] {
        let plan = leak(n);
        let make = |k| -> Option<Box<dyn Engine>> {
            if k == 2 && both {
                let engine = cuda::engine(plan, std::slice::from_ref(&gpu.device), &|_, _| ()).unwrap();
                assert_eq!(engine.variant(), "resident", "{}", engine.config());
                return Some(engine);
            }
            let (blocks, cards) = [(3, 1), (2, 2)].get(k).copied()?;
            let config = Config::with_blocks(plan, blocks).unwrap();
            assert!(config.long > 0 && config.changes && config.wide != both, "{config}");
            Some(Box::new(on_devices(plan, &gpu, config, cards, plan.cells() as usize + 50)))
        };
        assert_cpus(plan, &gpu, few, make);
    }
}

/// Cells that die, in the kernel that takes their synapses: a GPU's engine is made anew of lists.
#[test]
fn on_a_gpu_weights_of_32_bits_mutate_as_the_cpus_do() {
    use crate::spiking::life::{Living, Make};
    let Some(gpu) = gpu() else { return };
    let few = steps(&gpu, 90, 4000);
    for mut n in [long(driven(balanced(16, 5)), 2), beside(16, Placement::Dendritic)] {
        n.lifecycle = Some(Lifecycle {
            initial_age_ms: Distribution::uniform(0.0, 6.0),
            mutation_std_weights: n.projections.iter().map(|p| 0.1 * p.weight.mean().abs()).collect(),
            interval_ms: 2.0,
            ..Lifecycle::new(&n, 6.0)
        });
        let device = gpu.device.clone();
        let on_gpu: Make = Box::new(move |plan| cuda::engine(plan, std::slice::from_ref(&device), &|_, _| ()));
        let on_cpu: Make = Box::new(|plan| Ok(Box::new(CpuEngine::with_shards(plan, 2, &|_, _| ())?)));
        let ran = [on_cpu, on_gpu].map(|make| {
            let mut engine = Living::new(n.clone(), make).unwrap();
            let spikes = run(&mut engine, &[few / 3, few - few / 3]);
            let tables: Vec<_> = (0..n.projections.len()).map(|i| engine.table(i).unwrap()).collect();
            (spikes, engine.state().unwrap(), tables)
        });
        assert!(ran[0].0.len() > 30 && ran[0] == ran[1], "{} spikes, not {}", ran[1].0.len(), ran[0].0.len());
    }
}
