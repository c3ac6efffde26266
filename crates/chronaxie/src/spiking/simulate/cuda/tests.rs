//! The CUDA engine against the CPU's: the same spikes and states, bit for bit.

use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::spiking::models;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Edge, Network, Outside, Population, Projection, Rule, Storage,
};
use crate::spiking::simulate::{Checkpoint, CpuEngine};
use crate::{DeviceProps, pool};
use config::Place;

/// Model, mean of I_e and its spread, weight of an excitatory synapse, in the model's units.
const ZOO: [(&str, f64, f64, f64); 8] = [
    ("lif_exp", 520.0, 60.0, 40.0),
    ("lif_exp", 480.0, 60.0, 40.0),
    ("lif_delta", 500.0, 50.0, 0.6),
    ("izhikevich", 9.0, 2.0, 0.8),
    ("lif_alpha", 480.0, 60.0, 20.0),
    ("lif_cond", 250.0, 40.0, 0.8),
    ("adex", 1800.0, 80.0, 60.0),
    ("hodgkin_huxley", 18.0, 2.0, 1.5),
];

/// Cells of these models, a Poisson source and a list of spikes, each joined to each by one rule after the other; delays up to
/// `longest_ms`.
pub(super) fn zoo(which: &[usize], dt_ms: f64, longest_ms: f64, seed: u64) -> Network {
    let mut n = Network::new(dt_ms, seed).unwrap();
    for &i in which {
        let (model, mean, spread, _) = ZOO[i];
        let name = format!("{model}{i}");
        let mut p = Population::new(name, models::find(model).unwrap(), 33 + 7 * i as u32);
        // Every other population has cells of their own kind.
        let current = if i % 2 == 0 { Distribution::normal(mean, spread) } else { mean.into() };
        p = p.parameter("I_e", current).unwrap();
        if i == 1 {
            // Two currents.
            p = p.parameter("tau_syn_in", 1.5).unwrap();
        }
        let low = p.initial[0].mean();
        p.initial[0] = Distribution::uniform(low - 2.0, low + 18.0);
        n.add(p);
    }
    let dynamic = n.populations.len();
    n.add(Population::new("noise", models::find("poisson").unwrap(), 70).parameter("rate", 150.0).unwrap());
    let rates = Distribution::uniform(20.0, 300.0);
    n.add(Population::new("mixed", models::find("poisson").unwrap(), 9).parameter("rate", rates).unwrap());
    let mut list = Population::new("list", models::find("spikes").unwrap(), 40);
    let spikes: Vec<(u64, u32)> = (0..2000u64).map(|k| (k * 7 / 3, (k * 11 % 40) as u32)).collect();
    list.replay = Some(Arc::new(spikes));
    n.add(list);
    let mut k = 0;
    for source in 0..n.populations.len() {
        for target in 0..dynamic {
            let (from, to) = (n.populations[source].size, n.populations[target].size);
            let sign = if source % 3 == 1 { -1.0 } else { 1.0 };
            let mean = sign * ZOO[which[target]].3;
            let weight = Distribution::normal(mean, 0.2 * mean.abs());
            let weight = if sign > 0.0 {
                weight.within(0.0, f64::INFINITY, Outside::Redraw)
            } else {
                weight.within(f64::NEG_INFINITY, 0.0, Outside::Clip)
            };
            let edge = |e: u32| Edge {
                source: e * 5 % from,
                target: e * 3 % to,
                weight: mean as f32,
                delay_ms: (dt_ms * f64::from(1 + e % 9)) as f32,
            };
            let rule = match k % 9 {
                0 => Rule::Total { count: 300, multapses: true },
                1 => Rule::InDegree { count: 4, multapses: true },
                2 => Rule::OutDegree { count: 5, multapses: true },
                3 => Rule::Probability(0.1),
                4 => Rule::InDegree { count: 3, multapses: false },
                5 => Rule::OutDegree { count: 3, multapses: false },
                6 => Rule::Total { count: 200, multapses: false },
                7 => Rule::Edges(Arc::new((0..100).map(edge).collect())),
                _ => Rule::AllToAll,
            };
            let delay = Delay::Drawn(Distribution::uniform(dt_ms, longest_ms));
            let autapses = k % 2 == 0;
            n.projections.push(Projection {
                source,
                target,
                rule,
                weight,
                delay,
                autapses,
                plasticity: None,
                storage: Storage::Stored,
                weight_bits: Default::default(),
            });
            k += 1;
        }
    }
    for target in 0..dynamic {
        for (sign, start_ms, stop_ms) in [(1.0, 0.0, f64::INFINITY), (-1.0, 3.0, 9.0)] {
            let weight = sign * ZOO[which[target]].3;
            let kind = DriveKind::Poisson { rate_hz: 2500.0 - 300.0 * target as f64, weight, start_ms, stop_ms };
            n.drives.push(Drive { target, kind });
        }
    }
    n
}

/// As many as networks with few weights have at the most.
const FEW_WEIGHTS: usize = 32;

/// The same with one weight for all synapses of a projection, and no lists.
fn with_few_weights(mut n: Network) -> Network {
    for p in &mut n.projections {
        p.weight = p.weight.mean().into();
        if matches!(p.rule, Rule::Edges(_)) {
            p.rule = Rule::InDegree { count: 5, multapses: true };
        }
    }
    n
}

/// Few steps where threads are fibers of the host.
pub(super) fn steps(gpu: &Gpu, few: u64, many: u64) -> u64 {
    if gpu.device.name().starts_with("emulated") { few } else { many }
}

fn run(engine: &mut dyn Engine, pieces: &[u64]) -> Vec<Spike> {
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    spikes
}

pub(super) fn cpu(plan: &Plan, steps: u64) -> (Vec<Spike>, State) {
    pool::set_num_threads(2);
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let spikes = run(&mut engine, &[steps]);
    let state = engine.state().unwrap();
    (spikes, state)
}

/// What an engine is made with.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Of each card.
    pub blocks: usize,
    pub cards: usize,
    pub place: Place,
    /// Instead of what is chosen.
    pub segment: Option<usize>,
    pub room: usize,
    /// Whether a calendar has states and arrivals in shared memory beside it; heavy models have not.
    pub near: bool,
}

/// As [`CudaEngine::new`], with this many blocks, as little shared memory as asks for this place, and a log of as few spikes
/// as there can be.
pub(super) fn engine<'a>(plan: &'a Plan, gpu: &Gpu, how: How, log: usize) -> CudaEngine<'a> {
    let mut props = *gpu.device.props();
    let choose = |props: &DeviceProps| Config::with_blocks(plan, props, how.blocks, how.cards).unwrap();
    let chosen = choose(&props);
    props.shared_per_block_optin = match how.place {
        Place::Shared => props.shared_per_block_optin,
        Place::Calendar => {
            let tables = plan.poisson.iter().map(|d| 12 + d.thresholds.len()).sum::<usize>();
            // On several cards a list of the fewest rows.
            let listed = if how.cards > 1 { 384 } else { 0 };
            let near = listed + 10 * chosen.cells + tables + 64;
            (5120 + 4 * (chosen.pitch + chosen.ring + FEW_WEIGHTS + if how.near { near } else { listed })) as u32
        }
        Place::Global => 0,
    };
    let mut config = choose(&props);
    assert_eq!(config.place, how.place, "{config}");
    assert_eq!(config.near > 0, how.near && how.place == Place::Calendar && !config.heavy, "{config}");
    config.segment = how.segment.unwrap_or(config.segment);
    if config.place == Place::Calendar {
        config.room = how.room;
    }
    let layout = Layout::even(&plan.network, how.cards);
    let capacity = 3 * plan.cells() as usize + log;
    CudaEngine::with(plan, std::slice::from_ref(&gpu.device), config, layout, capacity, &|_, _| ()).unwrap()
}

pub(super) fn assert_same(plan: &Plan, engine: &mut CudaEngine<'_>, pieces: &[u64], want: &(Vec<Spike>, State)) {
    let got = run(engine, pieces);
    let what = format!("{engine:?}, pieces {pieces:?}");
    let common = got.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
    assert!(got == want.0, "{what}: {} spikes, not {}; the first {common} are alike", got.len(), want.0.len());
    assert_eq!(engine.state().unwrap(), want.1, "{what}");
    for (p, values) in want.1.variables.iter().enumerate() {
        let last = plan.network.populations[p].size - 1;
        let own: Vec<f32> = values.iter().map(|v| v[last as usize]).collect();
        assert_eq!(engine.cell(p, last).unwrap(), own, "{what}");
    }
}

/// Every model, rule, port and source, at several steps and delays, in one block and in several, with what is under way in
/// shared memory, in a calendar with and without room and in global memory, synapses of four and of eight bytes, in segments
/// that hold a row, or a part of it, or nothing, and steps in one piece and in many.
#[test]
fn on_a_gpu_networks_of_every_model_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let light = [0, 1, 2, 3].as_slice();
    let all = [0, 1, 2, 3, 4, 5, 6, 7].as_slice();
    let how = |blocks, place, segment, room| How { blocks, cards: 1, place, segment, room, near: room % 2 == 1 };
    for (which, dt, longest, one_drive, how, few) in [
        // Rings of 64 steps, which these go round.
        (light, 0.1, 6.0, false, how(3, Place::Shared, None, 0), 90),
        (light, 0.1, 6.0, true, how(3, Place::Shared, Some(8), 0), 90),
        (light, 0.5, 20.0, true, how(1, Place::Shared, Some(0), 0), 90),
        // More blocks than a block has warps.
        (light, 0.1, 12.0, false, how(33, Place::Global, None, 0), 20),
        (light, 0.1, 12.0, false, how(33, Place::Calendar, None, 5), 20),
        (light, 0.1, 25.0, false, how(2, Place::Calendar, Some(16), 4013), 90),
        (all, 0.05, 4.0, false, how(17, Place::Shared, None, 0), 60),
        (all, 0.05, 4.0, false, how(4, Place::Calendar, None, 30), 60),
        (all, 0.02, 150.0, false, how(3, Place::Global, Some(32), 0), 150),
        (light, 0.1, 150.0, false, how(3, Place::Calendar, None, 20), 90),
    ] {
        let mut network = zoo(which, dt, longest, 5);
        if one_drive {
            let mut driven = vec![false; network.populations.len()];
            network.drives.retain(|d| !std::mem::replace(&mut driven[d.target], true));
        }
        let plan = Plan::new(network).unwrap();
        let steps = steps(&gpu, few, 40_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 100 }, "only {} spikes", want.0.len());
        for p in 0..plan.models.len() {
            let cells = plan.first[p]..plan.first[p] + u64::from(plan.network.populations[p].size);
            let name = &plan.network.populations[p].name;
            assert!(want.0.iter().any(|s| cells.contains(&s.cell.into())), "{name} is silent at dt = {dt}");
        }
        let mut first = engine(&plan, &gpu, how, 4000);
        assert_eq!(first.config.wide, longest > 100.0, "{}", first.config);
        assert_eq!(first.config.held, one_drive, "{}", first.config);
        assert_same(&plan, &mut first, &[steps], &want);
        let mut events = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        assert_eq!(first.synapses(), events.synapses());
        run(&mut events, &[steps]);
        assert_eq!(first.events(), events.events());
        // Blocks are slow where threads are fibers, and one way to lie is then enough.
        if steps < 1000 && (how.blocks != 3 || one_drive) {
            continue;
        }
        // The least log, which ends chunks early, and chunks of one step.
        let how = How { blocks: how.blocks + 1, ..how };
        assert_same(&plan, &mut engine(&plan, &gpu, how, 0), &[1, 2, steps / 3, steps - 3 - steps / 3], &want);
    }
}

/// Synapses that have the number of their weight: in four bytes, what would take eight.
#[test]
fn on_a_gpu_networks_with_few_weights_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let light = [0, 1, 2, 3].as_slice();
    let all = [0, 1, 2, 4, 5, 6, 7].as_slice();
    let how = |cards, blocks, place, segment, near| How { blocks, cards, place, segment, room: 31, near };
    for (which, dt, longest, how, few) in [
        (light, 0.1, 120.0, how(1, 3, Place::Calendar, None, true), 80),
        (light, 0.1, 120.0, how(1, 3, Place::Calendar, Some(8), false), 80),
        (light, 0.1, 120.0, how(1, 2, Place::Global, Some(16), false), 80),
        (all, 0.05, 60.0, how(1, 2, Place::Calendar, Some(0), false), 40),
        (light, 0.1, 120.0, how(2, 2, Place::Calendar, None, true), 80),
        (all, 0.05, 60.0, how(2, 2, Place::Global, Some(8), false), 40),
    ] {
        let plan = Plan::new(with_few_weights(zoo(which, dt, longest, 6))).unwrap();
        let steps = steps(&gpu, few, 40_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 100 }, "only {} spikes", want.0.len());
        let mut first = engine(&plan, &gpu, how, 4000);
        assert!(first.config.codes > 1 && !first.config.wide && first.config.synapse() == 4, "{}", first.config);
        assert_same(&plan, &mut first, &[steps], &want);
        // What is under way goes back to the device.
        let mut second = engine(&plan, &gpu, how, 0);
        let half = cpu(&plan, steps / 2);
        second.restore(&half.1).unwrap();
        let mut spikes = Vec::new();
        second.advance(steps - steps / 2, &mut spikes).unwrap();
        assert!(spikes[..] == want.0[half.0.len()..], "{second:?}");
    }
}

/// Several cards: here all on one device, in one launch, each with a mailbox, a log and rows of its own.
#[test]
fn on_a_gpu_networks_on_several_cards_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let light = [0, 1, 2, 3].as_slice();
    let all = [0, 1, 2, 4, 5, 6, 7].as_slice();
    let how = |cards, blocks, place, segment, room| How { blocks, cards, place, segment, room, near: cards % 2 == 1 };
    for (which, dt, longest, how, few) in [
        (light, 0.1, 6.0, how(2, 3, Place::Shared, None, 0), 90),
        (light, 0.1, 12.0, how(3, 1, Place::Calendar, Some(16), 30), 80),
        (light, 0.1, 12.0, how(8, 2, Place::Global, None, 0), 30),
        (all, 0.05, 4.0, how(2, 2, Place::Calendar, None, 30), 50),
        (all, 0.05, 4.0, how(2, 9, Place::Shared, Some(0), 0), 30),
    ] {
        let plan = Plan::new(zoo(which, dt, longest, 8)).unwrap();
        let steps = steps(&gpu, few, 40_000);
        let want = cpu(&plan, steps);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 100 }, "only {} spikes", want.0.len());
        let mut first = engine(&plan, &gpu, how, 4000);
        assert_eq!((first.config.cards, first.config.shards), (how.cards, how.cards * how.blocks));
        assert_same(&plan, &mut first, &[steps], &want);
        let mut events = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        assert_eq!(first.synapses(), events.synapses());
        run(&mut events, &[steps]);
        assert_eq!(first.events(), events.events());
        if how.cards * how.blocks > 4 && steps < 1000 {
            continue;
        }
        // The least log, which ends chunks early on all cards at once.
        assert_same(&plan, &mut engine(&plan, &gpu, how, 0), &[1, 2, steps - 3], &want);
    }
}

/// More spikes a step than are sorted by exchanges, of more cells than one map of marks holds; and few of so many.
#[test]
fn on_a_gpu_networks_in_which_thousands_fire_at_once_have_their_spikes_in_order() {
    let Some(gpu) = gpu() else { return };
    let mut n = Network::new(1.0, 8).unwrap();
    for (name, size, rate) in [("many", 200_000, 30.0), ("more", 70_001, 25.0), ("few", 20_000, 0.5)] {
        n.add(Population::new(name, models::find("poisson").unwrap(), size).parameter("rate", rate).unwrap());
    }
    let plan = Plan::new(n).unwrap();
    let steps = 3;
    let want = cpu(&plan, steps);
    assert!(want.0.len() as u64 > 7000 * steps, "{}", want.0.len());
    // Blocks are slow where threads are fibers, and each looks at all spikes.
    let config = Config::with_blocks(&plan, gpu.device.props(), 6, 1).unwrap();
    let capacity = 4 * plan.cells() as usize;
    let (devices, layout) = (std::slice::from_ref(&gpu.device), Layout::even(&plan.network, 1));
    let mut one = CudaEngine::with(&plan, devices, config, layout, capacity, &|_, _| ()).unwrap();
    assert_same(&plan, &mut one, &[1, steps - 1], &want);
}

/// A run that goes from the CPU to a GPU and back, through the bytes of checkpoints, ends as one that did not; and whatever
/// an engine did before is forgotten.
#[test]
fn on_a_gpu_networks_go_on_from_the_cpu_and_back() {
    let Some(gpu) = gpu() else { return };
    let plan = Plan::new(zoo(&[0, 1, 5], 0.1, 7.0, 6)).unwrap();
    let steps = steps(&gpu, 200, 12_000);
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
    for (cuts, place) in [([1, 80], Place::Shared), ([77, 141], Place::Global), ([40, 130], Place::Calendar)] {
        let mut first = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
        let mut got = run(&mut first, &[cuts[0]]);
        let mut second =
            engine(&plan, &gpu, How { blocks: 3, cards: 1, place, segment: None, room: 15, near: false }, 0);
        run(&mut second, &[45]);
        second.restore(&through(first.state().unwrap())).unwrap();
        got.extend(run(&mut second, &[cuts[1] - cuts[0]]));
        let mut third = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        third.restore(&through(second.state().unwrap())).unwrap();
        let half = steps / 2 - cuts[1] / 2;
        got.extend(run(&mut third, &[half]));
        let mut fourth =
            engine(&plan, &gpu, How { blocks: 2, cards: 2, place, segment: None, room: 400, near: true }, 100);
        fourth.restore(&through(third.state().unwrap())).unwrap();
        got.extend(run(&mut fourth, &[steps - cuts[1] - half]));
        assert!(got == want.0, "cut at {cuts:?}");
        assert_eq!(fourth.state().unwrap(), want.1);
        let mut wrong = want.1.clone();
        wrong.variables[0].pop();
        assert!(fourth.restore(&wrong).unwrap_err().to_string().contains("not one of this network"));
    }
}

/// Steps that were launches of a graph go on like any others; nobody has their spikes, nor the state behind them.
#[test]
fn on_a_gpu_networks_go_on_from_a_replay() {
    let Some(gpu) = gpu() else { return };
    let plan = Plan::new(zoo(&[0, 1, 5], 0.1, 7.0, 6)).unwrap();
    let (before, replayed, after) = (21, steps(&gpu, 12, 500), steps(&gpu, 40, 500));
    let mut want = Vec::new();
    let mut law = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    let start = law.state().unwrap();
    run(&mut law, &[before + replayed]);
    law.advance(after, &mut want).unwrap();
    for place in [Place::Shared, Place::Global, Place::Calendar] {
        let how = How { blocks: 3, cards: 1, place, segment: None, room: 400, near: false };
        let mut engine = engine(&plan, &gpu, how, 0);
        run(&mut engine, &[before]);
        assert!(engine.replay(replayed).unwrap().is_some_and(|seconds| seconds > 0.0));
        assert_eq!(engine.step(), before + replayed);
        assert!(run(&mut engine, &[after]) == want, "{engine:?}");
        assert!(engine.state().unwrap_err().to_string().contains("nobody got the spikes of a replay"));
        engine.restore(&start).unwrap();
        assert_eq!(engine.state().unwrap(), start);
    }
    let several = How { blocks: 2, cards: 2, place: Place::Global, segment: None, room: 0, near: false };
    assert_eq!(self::engine(&plan, &gpu, several, 0).replay(4).unwrap(), None);
}

/// What the CPU refuses is refused here in the same words, and what the device's memory does not hold.
#[test]
fn on_a_gpu_networks_that_do_not_fit_are_refused() {
    let Some(gpu) = gpu() else { return };
    let mut n = zoo(&[0], 0.1, 3.0, 7);
    n.projections.truncate(1);
    n.projections[0].rule = Rule::InDegree { count: 300_000, multapses: true };
    let plan = Plan::new(n).unwrap();
    let said = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap_err().to_string();
    assert!(said.contains("more than 32 bits hold"), "{said}");
    let got = CudaEngine::new(&plan, std::slice::from_ref(&gpu.device), &|_, _| ()).unwrap_err().to_string();
    // Which cell is named differs.
    assert_eq!(got.split(" can ").next(), said.split(" can ").next());
    assert!(got.ends_with("more than 32 bits hold"), "{got}");

    let mut n = zoo(&[0], 0.1, 3.0, 7);
    n.projections.truncate(1);
    n.projections[0].rule = Rule::Total { count: 1 << 45, multapses: true };
    let plan = Plan::new(n).unwrap();
    let e = CudaEngine::new(&plan, std::slice::from_ref(&gpu.device), &|_, _| ()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { asked, .. } if *asked > 1 << 47), "{e}");
}

/// The full microcircuit's and a larger network's choice on an H200 and on a smaller card.
#[test]
fn the_choice_is_a_function_of_plan_and_device() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/microcircuit.toml");
    let settings = crate::spiking::network::read::read(&crate::config::Config::read(path).unwrap()).unwrap();
    let plan = Plan::new(settings.network).unwrap();
    let says = |device: &DeviceProps| Config::choose(&plan, device).unwrap().to_string();
    assert_eq!(
        says(&DeviceProps::SM_90),
        "resident: 132 blocks of 1024 threads with a cell each, ring of 64 steps in shared memory (147 KiB a block), 4 bytes \
         a synapse, segments of 64"
    );
    assert_eq!(
        says(&DeviceProps::SM_75),
        "resident: 40 blocks of 1024 threads with states in shared memory, calendar of 64 steps in global memory (2724 KiB a block), \
         8 bytes a synapse, segments of 64"
    );
    for device in DeviceProps::FIXTURES {
        for blocks in [1, 7, 132, 10_000] {
            let c = Config::with_blocks(&plan, &device, blocks, 1).unwrap();
            assert!(c.shared_bytes() <= device.shared_per_block_optin && c.shards <= 512);
            // What lies in shared memory is always narrow: the kernel relies on it.
            assert!(!(c.place == Place::Shared && c.wide) && c.pitch < 1 << c.slot_bits, "{c}");
            assert!(c.wide || c.codes > 0 || c.narrow.is_some() || c.slot_bits + c.ring.trailing_zeros() <= 16);
        }
    }
}
