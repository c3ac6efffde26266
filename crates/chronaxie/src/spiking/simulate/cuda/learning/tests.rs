//! The engines of changing synapses on CUDA against the CPU's: the same spikes, weights and states, bit for bit.

use super::super::layout_tests::scattered;
use super::super::{self as cuda, CudaEngine};
use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::pool;
use crate::spiking::models;
use crate::spiking::network::{Distribution, Network, Population};
use crate::spiking::partition::Layout;
use crate::spiking::plasticity::{Placement, ShortTerm};
use crate::spiking::simulate::learning_tests::{learning, run};
use crate::spiking::simulate::{Checkpoint, CpuEngine, rules_tests};

const DENDRITIC: [Placement; 4] = [Placement::Dendritic; 4];

pub(super) fn steps(gpu: &Gpu, few: u64, many: u64) -> u64 {
    if gpu.device.name().starts_with("emulated") { few } else { many }
}

/// A network of every kind of plasticity, with sources at random and from a list, and two kinds of cells.
pub(super) fn mixed(size: u32, seed: u64) -> Network {
    let mut n = learning(size, seed, DENDRITIC);
    let mut inhibitory = Population::new("I", models::find("lif_alpha").unwrap(), size);
    inhibitory.initial[0] = Distribution::uniform(-65.0, -51.0);
    n.populations[1] = inhibitory;
    let mut list = Population::new("list", models::find("spikes").unwrap(), 20);
    list.replay = Some(Arc::new((0..3000u64).map(|k| (k * 3, (k * 7 % 20) as u32)).collect()));
    n.add(list);
    n.add(Population::new("noise", models::find("poisson").unwrap(), 30).parameter("rate", 60.0).unwrap());
    for source in [2, 3] {
        let mut p = n.projections[0].clone();
        p.source = source;
        p.autapses = true;
        p.rule = crate::spiking::network::Rule::InDegree { count: 3, multapses: true };
        p.plasticity = p.plasticity.map(|x| x.and_short_term(ShortTerm { u: 0.7, tau_rec_ms: 40.0, tau_fac_ms: 0.0 }));
        n.projections.push(p);
    }
    n
}

fn on(plan: &Plan, gpu: &Gpu, blocks: u32, depth: usize, cards: usize) -> LearningEngine<'static> {
    let plan: &'static Plan = Box::leak(Box::new(Plan::new(plan.network.clone()).unwrap()));
    let config = Config::with_blocks(plan, blocks).unwrap();
    let config = Config { depth: config.depth.max(depth), ..config };
    on_devices(plan, gpu, config, cards, plan.cells() as usize + 50)
}

/// On so many devices, or as many as there are; cells are shared out by no rule that anybody would see.
pub(super) fn on_devices(
    plan: &'static Plan,
    gpu: &Gpu,
    config: Config,
    cards: usize,
    capacity: usize,
) -> LearningEngine<'static> {
    let mut devices = vec![gpu.device.clone()];
    devices.extend((1..cards).map_while(|k| CudaDevice::open(k).ok()));
    let layout = match devices.len() {
        1 => Layout::even(&plan.network, 1),
        n => scattered(plan, n, None),
    };
    let config = Config { cards: devices.len(), ..config };
    LearningEngine::with(plan, &devices, config, layout, capacity, &|_, _| ()).unwrap()
}

/// Which kernel runs a network, and with what.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// Blocks, and the least entries of a cell.
    Streaming(u32, usize),
    /// Likewise on several devices.
    Devices(usize, u32, usize),
    /// Blocks, words of a row's segment, entries of a cell in memory, and how many of them in shared memory.
    Resident(usize, usize, usize, usize),
    /// Cards, all on one device, cells of which one has none where there are more than two; of each, the above.
    Cards(usize, [usize; 4]),
}

pub(super) fn engine(plan: &Plan, gpu: &Gpu, how: How) -> Box<dyn Engine> {
    match how {
        How::Streaming(blocks, depth) => Box::new(on(plan, gpu, blocks, depth, 1)),
        How::Devices(cards, blocks, depth) => Box::new(on(plan, gpu, blocks, depth, cards)),
        How::Resident(blocks, segment, depth, deep) => engine(plan, gpu, How::Cards(1, [blocks, segment, depth, deep])),
        How::Cards(cards, [blocks, segment, depth, deep]) => {
            let plan: &'static Plan = Box::leak(Box::new(Plan::new(plan.network.clone()).unwrap()));
            let layout = match cards {
                1 => Layout::even(&plan.network, 1),
                _ => scattered(plan, cards, (cards > 2).then_some(1)),
            };
            let config = cuda::Config::with_layout(plan, gpu.device.props(), blocks, &layout).unwrap();
            let learns = config.learns.unwrap();
            let (depth, deep) = (learns.depth.min(depth), learns.deep.min(deep));
            // Tables in shared memory or not, as the number of blocks is odd or even.
            let tables = if blocks % 2 == 0 { 0 } else { learns.tables };
            let learns = Learns { depth, deep, shallow: deep / 2, tables, ..learns };
            let config = cuda::Config { segment, learns: Some(learns), ..config };
            let capacity = 3 * plan.cells() as usize + 50;
            let devices = std::slice::from_ref(&gpu.device);
            Box::new(CudaEngine::with(plan, devices, config, layout, capacity, &|_, _| ()).unwrap())
        }
    }
}

pub(super) fn cpu(plan: &Plan, steps: u64) -> (Vec<Spike>, State) {
    pool::set_num_threads(2);
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let spikes = run(&mut engine, &[steps]);
    let state = engine.state().unwrap();
    (spikes, state)
}

/// One block and several, chunks that end early because a log or the room for entries is full, pieces of one step: the CPU's
/// spikes, states and weights.
#[test]
fn on_a_gpu_weights_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    // Replicas draw by seeds of their own.
    let several = [mixed(14, 42), mixed(14, 43), learning(16, 45, DENDRITIC)];
    let several = Network::together(&several).unwrap();
    for (network, few) in [(learning(40, 41, DENDRITIC), 1500), (mixed(30, 42), 700), (several, 500)] {
        let plan = Plan::new(network).unwrap();
        let steps = steps(&gpu, few, 30_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 2000 { 10_000 } else { 200 }, "only {} spikes", want.0.len());
        let learned = want.1.learned.as_ref().unwrap();
        let first = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        assert!(first.state().unwrap().learned.unwrap().strengths != learned.strengths);
        let mut events = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
        run(&mut events, &[steps]);
        let cut = vec![1, 2, steps / 3, steps - 3 - steps / 3];
        for (how, pieces) in [
            (How::Streaming(1, 0), vec![steps]),
            (How::Streaming(3, 1024), cut.clone()),
            (How::Devices(2, 2, 0), vec![steps]),
            (How::Devices(4, 1, 1024), cut.clone()),
            (How::Resident(1, 64, 4096, 16), vec![steps]),
            // Rows that segments do not hold, entries that fill their room, and few in shared memory.
            (How::Resident(2, 8, 128, 2), cut.clone()),
            (How::Resident(3, 16, 128, 4), cut.clone()),
            (How::Cards(2, [2, 8, 128, 2]), vec![steps]),
            (How::Cards(4, [1, 16, 128, 4]), cut),
        ] {
            let mut engine = engine(&plan, &gpu, how);
            let got = run(&mut *engine, &pieces);
            let common = got.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
            let what = format!("{how:?}: {} spikes, not {}; {common} alike", got.len(), want.0.len());
            assert!(got == want.0, "{what}");
            assert_eq!(engine.events(), events.events());
            assert_eq!(engine.synapses(), events.synapses());
            let state = engine.state().unwrap();
            let own = state.learned.as_ref().unwrap();
            assert!(own.strengths == learned.strengths, "{what}: weights");
            assert!(own.entries == learned.entries, "{what}: entries");
            assert!(own.under_way == learned.under_way, "{what}: under way");
            assert!(state == want.1, "{what}: state");
            assert_eq!(engine.weights().unwrap(), events.weights().unwrap());
        }
    }
}

/// From the CPU to a GPU and back, through the bytes of checkpoints.
#[test]
fn on_a_gpu_weights_go_on_from_the_cpu_and_back() {
    let Some(gpu) = gpu() else { return };
    let plan = Plan::new(mixed(30, 44)).unwrap();
    let steps = steps(&gpu, 600, 30_000);
    let want = cpu(&plan, steps);
    let through = |state: State| {
        let c = Checkpoint {
            fingerprint: [0; 32],
            state,
            hash: Default::default(),
            replicas: vec![],
            logged: 0,
            counts: vec![],
        };
        Checkpoint::from_bytes(&c.to_bytes(), std::path::Path::new("c")).unwrap().state
    };
    let mut first = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
    let mut got = run(&mut first, &[steps / 3]);
    let begun = got.len();
    for how in [
        How::Streaming(2, 0),
        How::Devices(3, 2, 0),
        How::Resident(2, 16, 128, 8),
        How::Resident(3, 8, 128, 2),
        How::Cards(3, [2, 16, 128, 4]),
    ] {
        got.truncate(begun);
        let mut second = engine(&plan, &gpu, how);
        run(&mut *second, &[50]);
        second.restore(&through(first.state().unwrap())).unwrap();
        assert!(second.state().unwrap() == first.state().unwrap(), "{how:?}");
        got.extend(run(&mut *second, &[steps / 3]));
        let mut third = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        third.restore(&through(second.state().unwrap())).unwrap();
        got.extend(run(&mut third, &[steps - 2 * (steps / 3)]));
        assert!(got == want.0, "{how:?}: {} spikes, not {}", got.len(), want.0.len());
        assert!(third.state().unwrap() == want.1, "{how:?}");
        let mut wrong = want.1.clone();
        wrong.learned.as_mut().unwrap().strengths.pop();
        assert!(second.restore(&wrong).is_err());
        let mut wrong = want.1.clone();
        wrong.learned.as_mut().unwrap().strengths[7] = u32::MAX;
        assert!(second.restore(&wrong).is_err());
    }
}

/// What this engine does not do is refused by the name of the projection, never done otherwise.
#[test]
fn what_is_not_done_is_refused() {
    let plan = Plan::new(rules_tests::mixed(45, [Placement::Axonal; 4])).unwrap();
    assert_eq!(
        Config::choose(&plan, &crate::DeviceProps::SM_90).unwrap().to_string(),
        "learning: 3 blocks of 512 threads, ring of 64 steps, 128 entries a cell, 12 bytes a synapse, any rule and delay"
    );
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/microcircuit.toml");
    let mut config = crate::config::Config::read(path).unwrap();
    config.set("simulation.plasticity=true").unwrap();
    let plan = Plan::new(crate::spiking::network::read::read(&config).unwrap().network).unwrap();
    assert_eq!(
        Config::choose(&plan, &crate::DeviceProps::SM_90).unwrap().to_string(),
        "learning: 132 blocks of 1024 threads, ring of 64 steps, 128 entries a cell, 8 bytes a synapse"
    );
    let props = crate::DeviceProps::SM_90;
    assert_eq!(
        cuda::Config::choose(&plan, &props).unwrap().to_string(),
        "resident: 132 blocks of 1024 threads with a cell each, ring of 64 steps in shared memory (147 KiB a block), 8 bytes \
         a synapse, segments of 64, 256 entries a cell of which 16 in shared memory"
    );
    assert!(cuda::Config::choose(&plan, &props).unwrap().shared_bytes() + 4096 <= props.shared_per_block_optin);
    // A smaller card has no room for the ring of a shard in shared memory.
    assert_eq!(cuda::Config::choose(&plan, &crate::DeviceProps::SM_75).unwrap().learns, None);
    let Some(gpu) = gpu() else { return };
    let mut n = learning(20, 45, DENDRITIC);
    n.projections
        .iter_mut()
        .for_each(|p| p.delay = crate::spiking::network::Delay::Drawn(Distribution::uniform(0.1, 300.0)));
    let plan = Plan::new(n).unwrap();
    let e = CudaEngine::new(&plan, std::slice::from_ref(&gpu.device), &|_, _| ()).unwrap_err().to_string();
    assert!(e.contains("projection E -> E: its synapses change"), "{e}");
}
