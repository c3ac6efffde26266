//! Parts on GPUs and CPUs against the engine of the whole: the same spikes, weights and states, bit for bit.

use super::super::Asked;
use super::super::config::Place as Lies;
use super::super::layout_tests::scattered;
use super::levels::{Group, Level};
use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::cuda::{Nccl, copy_to_device, copy_to_host};
use crate::pool;
use crate::spiking::device::Memory;
use crate::spiking::network::{Delay, Distribution, Storage};
use crate::spiking::partition::{self, Load};
use crate::spiking::plasticity::Placement;
use crate::spiking::simulate::CpuEngine;
use crate::spiking::simulate::learning_tests::learning;
use crate::spiking::simulate::long_tests::long;
use crate::spiking::simulate::parts::every_tests::areas;
use crate::spiking::simulate::parts::tests::everything;
use crate::spiking::simulate::parts::{
    AllGather, Channels, gather, join, refusal, split, state_bytes, state_from_bytes,
};
use crate::{Dtype, Place, Shape, View, ViewMut};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// On what a part runs.
#[derive(Debug, Clone, Copy)]
enum On {
    Cpu,
    /// Cards, all on one device, blocks of each, where what is under way lies, words of a segment.
    Cards(usize, usize, Lies, usize),
}

fn part<'a>(
    plan: &'a Plan,
    gpu: &Gpu,
    (layout, part): (&Layout, usize),
    on: On,
    exchange: Option<Box<dyn Exchange + 'a>>,
) -> Box<dyn PartEngine + 'a> {
    match on {
        On::Cpu => Box::new(CpuEngine::of_part(plan, layout, part, exchange, &|_, _| ()).unwrap()),
        on => {
            let mut engine = on_cards(plan, gpu, (layout, part), on, exchange);
            // As all parts do, also those on CPUs.
            engine.exchange.iter_mut().for_each(|x| drop(x.share(&refusal("of a test")).unwrap()));
            Box::new(engine)
        }
    }
}

fn on_cards<'a>(
    plan: &'a Plan,
    gpu: &Gpu,
    (layout, part): (&Layout, usize),
    on: On,
    exchange: Option<Box<dyn Exchange + 'a>>,
) -> CudaPart<'a> {
    let On::Cards(here, blocks, place, segment) = on else { panic!("not on the CPU") };
    let own = own_first(plan, layout, part, here).unwrap();
    let mut props = *gpu.device.props();
    let choose = |props: &crate::DeviceProps| Config::cut(plan, props, blocks, &own, here, Asked::default()).unwrap();
    let chosen = choose(&props);
    match place {
        Lies::Shared => {}
        Lies::Calendar => props.shared_per_block_optin = (5120 + 4 * (chosen.pitch + chosen.ring + 384 + 32)) as u32,
        Lies::Global => props.shared_per_block_optin = 0,
    }
    let mut config = choose(&props);
    assert_eq!(config.place, place, "{config}");
    config.segment = segment;
    if let Some(learns) = &mut config.learns {
        // Few in shared memory, so that others are looked up.
        (learns.deep, learns.shallow) = (4, 2);
    }
    if place == Lies::Calendar {
        // Too few entries for some steps.
        config.room = 12;
    }
    let capacity = 3 * config.logged(plan) + 60;
    let engine = CudaEngine::with(plan, std::slice::from_ref(&gpu.device), config, own, capacity, &|_, _| ()).unwrap();
    let part = CudaPart::of_engine(engine, (layout, part), exchange).unwrap();
    CudaPart { settled_after: 40, ..part }
}

struct Ran {
    spikes: Vec<Spike>,
    state: State,
    keys: Keys,
    events: u64,
    every: u64,
    synapses: u64,
}

/// Each part of a layout after these pieces, from the beginning or from a state of the whole.
fn ran(
    plan: &Plan,
    gpu: &Gpu,
    layout: &Layout,
    on: &[On],
    nodes: usize,
    from: Option<&State>,
    pieces: &[u64],
) -> Vec<Ran> {
    let links = Channels::new(layout.parts(), Duration::from_secs(60));
    let keys: Vec<Keys> = match from {
        Some(_) => {
            (0..layout.parts()).map(|k| CpuEngine::of_part(plan, layout, k, None, &|_, _| ()).unwrap().keys()).collect()
        }
        None => Vec::new(),
    };
    let states = from.map(|state| split(plan, layout, state, &keys).unwrap());
    std::thread::scope(|scope| {
        let one = |(k, link): (usize, Channels)| {
            let state = states.as_ref().map(|s| s[k].clone());
            let on = on[k % on.len()];
            scope.spawn(move || {
                let exchange = AllGather::new(link, Members::new(plan, layout), k, nodes);
                let mut engine = part(plan, gpu, (layout, k), on, Some(Box::new(exchange)));
                if let Some(state) = &state {
                    engine.restore(state).unwrap();
                }
                let mut spikes = Vec::new();
                pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
                let (state, keys) = (engine.state().unwrap(), engine.keys().unwrap());
                let (events, every, synapses) = (engine.events(), engine.most_steps(), engine.synapses());
                Ran { spikes, state, keys, events, every, synapses }
            })
        };
        let threads: Vec<_> = links.into_iter().enumerate().map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn joined(plan: &Plan, layout: &Layout, ran: &[Ran]) -> State {
    let keys: Vec<Keys> = ran.iter().map(|r| r.keys.clone()).collect();
    join(plan, layout, ran.iter().map(|r| r.state.clone()).collect(), &keys).unwrap()
}

fn steps(gpu: &Gpu, few: u64, many: u64) -> u64 {
    if gpu.device.name().starts_with("emulated") { few } else { many }
}

/// A run of the whole in two pieces: spikes, the state between them and the last, deliveries.
struct Whole {
    spikes: Vec<Spike>,
    cut: State,
    end: State,
    events: u64,
    synapses: u64,
}

fn whole(plan: &Plan, steps: u64) -> Whole {
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let mut spikes = Vec::new();
    engine.advance(steps / 2, &mut spikes).unwrap();
    let cut = engine.state().unwrap();
    engine.advance(steps - steps / 2, &mut spikes).unwrap();
    Whole { spikes, cut, end: engine.state().unwrap(), events: engine.events(), synapses: engine.synapses() }
}

/// All the way in uneven pieces, and from the middle on.
fn assert_same(plan: &Plan, gpu: &Gpu, layout: &Layout, on: &[On], nodes: usize, steps: u64, want: &Whole) -> u64 {
    let what = format!("{} parts on {nodes} nodes, {on:?}", layout.parts());
    let parts = ran(plan, gpu, layout, on, nodes, None, &[1, 2, steps - 3]);
    for (k, own) in parts.iter().enumerate() {
        let alike = own.spikes.iter().zip(&want.spikes).take_while(|(a, b)| a == b).count();
        let count = own.spikes.len();
        assert!(own.spikes == want.spikes, "{what}: part {k} has {count} spikes, {alike} of them alike");
    }
    assert!(joined(plan, layout, &parts) == want.end, "{what}: state");
    assert_eq!(parts.iter().map(|r| r.events).sum::<u64>(), want.events, "{what}: events");
    assert_eq!(parts.iter().map(|r| r.synapses).sum::<u64>(), want.synapses, "{what}: synapses");
    let every = parts[0].every;
    let parts = ran(plan, gpu, layout, on, nodes, Some(&want.cut), &[steps - steps / 2]);
    let from = want.spikes.partition_point(|s| s.step < want.cut.step);
    assert!(parts.iter().all(|r| r.spikes == want.spikes[from..]), "{what}: from step {}", want.cut.step);
    assert!(joined(plan, layout, &parts) == want.end, "{what}: state from step {}", want.cut.step);
    every
}

/// Areas far from each other: parts meet every many steps. What is under way lies in each of the places, segments hold a row or a
/// piece of it or nothing; parts on GPUs beside parts on CPUs, with one card and with two.
#[test]
fn on_a_gpu_networks_in_parts_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(1);
    let (mut network, area_of) = areas(4, 24, 9.0, 7);
    network.projections.iter_mut().for_each(|p| p.storage = Storage::Stored);
    let plan = Plan::new(network).unwrap();
    let steps = steps(&gpu, 70, 4000);
    let want = whole(&plan, steps);
    assert!(want.spikes.len() > 30, "only {} spikes", want.spikes.len());
    let by_area = |parts: u32| {
        let owners = plan.network.populations.iter().zip(&area_of);
        let owners: Vec<Vec<u32>> = owners.map(|(p, area)| vec![*area as u32 % parts; p.size as usize]).collect();
        Layout::from_owners(&plan.network, parts as usize, &owners).unwrap()
    };
    let (shared, calendar, global) = (Lies::Shared, Lies::Calendar, Lies::Global);
    for (parts, nodes, on) in [
        (2, 1, &[On::Cards(1, 2, shared, 16)][..]),
        (2, 2, &[On::Cards(1, 1, calendar, 8)]),
        (3, 1, &[On::Cards(1, 2, global, 64)]),
        (3, 1, &[On::Cpu, On::Cards(1, 2, calendar, 0)]),
        // Two pretended nodes of two parts, and two of one with two cards.
        (4, 2, &[On::Cards(1, 1, shared, 32)]),
        (2, 2, &[On::Cards(2, 1, shared, 8), On::Cards(2, 2, calendar, 16)]),
    ] {
        let every = assert_same(&plan, &gpu, &by_area(parts), on, nodes, steps, &want);
        assert!(every >= 9, "parts meet every {every} steps");
    }
}

/// Every rule of connection, heavy models, sources of both kinds, in layouts that nobody would make.
#[test]
fn on_a_gpu_networks_in_parts_of_any_layout_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(1);
    let mut network = everything();
    network.projections.iter_mut().for_each(|p| p.plasticity = None);
    let plan = Plan::new(network).unwrap();
    let steps = steps(&gpu, 60, 4000);
    let want = whole(&plan, steps);
    let load = Load::new(&plan, 8.0, false);
    let w_slice = partition::all().iter().find(|by| by.name() == "w_slice").unwrap().layout(&load, 2).unwrap();
    for (layout, on) in [
        (w_slice.clone(), On::Cards(1, 2, Lies::Calendar, 16)),
        (scattered(&plan, 3, Some(1)), On::Cards(1, 2, Lies::Shared, 8)),
        (scattered(&plan, 1, None), On::Cards(1, 2, Lies::Shared, 8)),
    ] {
        assert_same(&plan, &gpu, &layout, &[on], 1, steps, &want);
    }
    // Weights of 32 bits.
    let plan = Plan::new(long(plan.network.clone(), 1)).unwrap();
    let want = whole(&plan, steps);
    let ways = if steps > 60 { 2 } else { 1 };
    for (layout, lies) in
        [(w_slice, Lies::Calendar), (scattered(&plan, 3, Some(1)), Lies::Shared)].into_iter().take(ways)
    {
        assert_same(&plan, &gpu, &layout, &[On::Cards(1, 2, lies, 16)], 1, steps, &want);
    }
}

/// Synapses that change: rows walked later than the cells behind them fired, entries that fill their room.
#[test]
fn on_a_gpu_networks_in_parts_learn_as_the_cpu_does() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(1);
    for (size, few, longest) in [(20, 300, 3.0), (16, 330, 12.0)] {
        let mut network = learning(size, 41, [Placement::Dendritic; 4]);
        for p in &mut network.projections {
            p.delay = Delay::Drawn(Distribution::uniform(0.6, longest));
        }
        let plan = Plan::new(network).unwrap();
        let steps = steps(&gpu, few, 20_000);
        let want = whole(&plan, steps);
        assert!(want.spikes.len() > 30, "only {} spikes", want.spikes.len());
        // Threads that are fibers take minutes for all of them twice: one each, of three parts and of two.
        let (but, ways) = if steps > few { (0, 3) } else { (usize::from(longest <= 3.0), 1) };
        for (parts, on) in [
            (2, &[On::Cards(1, 2, Lies::Shared, 8)][..]),
            (3, &[On::Cards(1, 1, Lies::Shared, 16), On::Cpu]),
            (2, &[On::Cards(2, 1, Lies::Shared, 32)]),
        ]
        .into_iter()
        .skip(but)
        .take(ways)
        {
            let layout = scattered(&plan, parts, None);
            let every = assert_same(&plan, &gpu, &layout, on, 1, steps, &want);
            assert!(every >= 5, "parts meet every {every} steps");
        }
    }
}

/// Somebody else carries spikes; a part goes on from the bytes of its own state.
#[test]
fn on_a_gpu_networks_in_parts_that_somebody_connects_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(1);
    let mut network = learning(20, 43, [Placement::Dendritic; 4]);
    network.projections.iter_mut().for_each(|p| p.delay = Delay::Drawn(Distribution::uniform(0.5, 2.0)));
    let plan = Plan::new(network).unwrap();
    let last = steps(&gpu, 160, 400);
    let want = whole(&plan, last);
    let layout = scattered(&plan, 2, None);
    let on = On::Cards(1, 2, Lies::Shared, 16);
    let make = |k| part(&plan, &gpu, (&layout, k), on, None);
    let mut parts: Vec<Box<dyn PartEngine + '_>> = (0..2).map(make).collect();
    let every = parts.iter().map(|p| p.most_steps()).min().unwrap();
    assert!(every >= 5 && parts[0].hear(&[]).is_err() && parts[0].fire(65).is_err());
    let (mut all, mut step) = (Vec::new(), 0);
    while step < last {
        let steps = every.min(last - step);
        let fired: Vec<Vec<Spike>> = parts.iter_mut().map(|p| p.fire(steps).unwrap()).collect();
        assert!(parts[0].fire(1).is_err() && parts[0].state().is_err() && parts[0].heard().is_err());
        assert!(parts[0].hear(&[Spike { step: step + steps, cell: 0 }]).is_err());
        parts[0].hear(&fired[1]).unwrap();
        parts[1].hear(&fired[0]).unwrap();
        all.extend(fired.into_iter().flatten());
        step += steps;
        if step == 10 * every {
            // Both are made anew, from bytes.
            let bytes: Vec<Vec<u8>> =
                parts.iter().enumerate().map(|(k, p)| state_bytes(&layout, k, [3; 32], &p.state().unwrap())).collect();
            parts = (0..2).map(make).collect();
            for (k, bytes) in bytes.iter().enumerate() {
                parts[k].restore(&state_from_bytes(&plan, &layout, k, [3; 32], bytes).unwrap()).unwrap();
            }
        }
    }
    all.sort_unstable();
    assert!(all == want.spikes, "{} spikes, not {}", all.len(), want.spikes.len());
    let keys: Vec<Keys> = parts.iter().map(|p| p.keys().unwrap()).collect();
    let states = parts.iter().map(|p| p.state().unwrap()).collect();
    assert!(join(&plan, &layout, states, &keys).unwrap() == want.end);
    let counted: Vec<Vec<u64>> = parts.iter().map(|p| p.counted().unwrap()).collect();
    let mut of_cpu = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    of_cpu.restore(&want.end).unwrap();
    let weights = crate::spiking::simulate::learned::joined(&plan, &counted).unwrap();
    assert_eq!(weights, of_cpu.weights().unwrap());
}

/// What parts do not take is refused in a sentence, and nothing runs elsewhere instead.
#[test]
fn on_a_gpu_networks_in_parts_say_what_they_do_not_take() {
    let Some(gpu) = gpu() else { return };
    let (network, _) = areas(2, 10, 9.0, 7);
    for network in [network, learning(10, 41, [Placement::Axonal; 4])] {
        let plan = Plan::new(network).unwrap();
        let layout = Layout::even(&plan.network, 2);
        let devices = std::slice::from_ref(&gpu.device);
        let e = CudaPart::new(&plan, devices, &layout, 0, (None, Transport::Tcp), &|_, _| ()).unwrap_err().to_string();
        assert!(e.contains("parts of a network run on GPUs only where"), "{e}");
    }
}

/// What ranks of one process gather by, in place of NCCL.
struct Hub {
    said: Mutex<Vec<Vec<u8>>>,
    meet: Barrier,
}

impl Hub {
    fn new(ranks: usize) -> Arc<Self> {
        Arc::new(Self { said: Mutex::new(vec![Vec::new(); ranks]), meet: Barrier::new(ranks) })
    }
}

struct Rank(Arc<Hub>, usize);

fn view(memory: &Memory, at: u64, bytes: usize) -> View<'static> {
    let place = Place::Cuda(memory.device.index());
    // SAFETY: as the callers of a group say.
    unsafe { View::from_raw(at as *const u8, Dtype::U8, Shape::from([bytes]), &[1], place) }
}

fn read(memory: &Memory, at: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    let mut to = ViewMut::from_slice(&mut data, [bytes]).unwrap();
    copy_to_host(&mut to, &view(memory, at, bytes), memory.stream).unwrap();
    data
}

fn write(memory: &Memory, at: u64, data: &[u8]) {
    let (place, shape) = (Place::Cuda(memory.device.index()), Shape::from([data.len()]));
    // SAFETY: as above.
    let mut to = unsafe { ViewMut::from_raw(at as *mut u8, Dtype::U8, shape, &[1], place) };
    copy_to_device(&mut to, &View::from_slice(data, [data.len()]).unwrap(), memory.stream).unwrap();
}

impl Group for Rank {
    unsafe fn all_gather(&mut self, send: u64, receive: u64, bytes: usize, memory: &Memory) -> Result<()> {
        self.0.said.lock().unwrap()[self.1] = read(memory, send, bytes);
        self.0.meet.wait();
        let all = self.0.said.lock().unwrap().concat();
        write(memory, receive, &all);
        self.0.meet.wait();
        Ok(())
    }
    unsafe fn broadcast(&mut self, buffer: u64, bytes: usize, memory: &Memory) -> Result<()> {
        if self.1 == 0 {
            self.0.said.lock().unwrap()[0] = read(memory, buffer, bytes);
        }
        self.0.meet.wait();
        let all = self.0.said.lock().unwrap()[0].clone();
        write(memory, buffer, &all);
        self.0.meet.wait();
        Ok(())
    }
    fn failed(&self) -> Result<()> {
        Ok(())
    }
    fn abort(&mut self) {}
}

/// The groups of `parts` parts on `nodes` nodes, as NCCL would have them.
struct Hubs {
    inside: Vec<Arc<Hub>>,
    between: Arc<Hub>,
    at: (usize, usize),
}

impl Hubs {
    fn new(parts: usize, nodes: usize) -> Self {
        let inside = (0..nodes).map(|n| Hub::new(gather::node(parts, nodes, n).len())).collect();
        let between = Hub::new(if nodes > 1 && nodes < parts { nodes } else { parts });
        Self { inside, between, at: (parts, nodes) }
    }
    fn levels(&self, part: usize) -> (Levels, Where) {
        let (parts, nodes) = self.at;
        let at = Where { part, parts, nodes };
        let own = (0..nodes).find(|n| gather::node(parts, nodes, *n).contains(&part)).unwrap();
        let made = Levels::new(at, "threads".into(), &mut |level, rank, _| {
            let hub = if level == Level::Inside { &self.inside[own] } else { &self.between };
            Ok(Box::new(Rank(hub.clone(), rank)))
        });
        (made.unwrap(), at)
    }
}

/// From GPU to GPU, in one level and in two: by lists with room enough, with none, and by the host where a part has several cards.
#[test]
fn on_a_gpu_networks_in_parts_whose_gpus_tell_each_other_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(1);
    let (mut still, _) = areas(4, 20, 9.0, 7);
    still.projections.iter_mut().for_each(|p| p.storage = Storage::Stored);
    let mut learns = learning(16, 41, [Placement::Dendritic; 4]);
    learns.projections.iter_mut().for_each(|p| p.delay = Delay::Drawn(Distribution::uniform(0.6, 3.0)));
    let [still, learns] = [still, learns].map(|n| Plan::new(n).unwrap());
    for (plan, few, parts, nodes, on, room, carrier) in [
        (&still, 80, 2, 1, On::Cards(1, 2, Lies::Shared, 16), 1 << 10, "threads"),
        (&still, 70, 4, 2, On::Cards(1, 1, Lies::Calendar, 8), 16, "threads in two levels, inside 2 nodes first"),
        (&still, 50, 3, 2, On::Cards(1, 1, Lies::Shared, 16), 1, "in two levels"),
        (&still, 50, 2, 2, On::Cards(2, 1, Lies::Shared, 16), 1, "threads"),
        (&learns, 240, 2, 1, On::Cards(1, 2, Lies::Shared, 16), 2, "threads"),
        (&learns, 240, 3, 2, On::Cards(1, 1, Lies::Shared, 16), 1 << 10, "in two levels"),
    ] {
        let steps = steps(&gpu, few, 4000);
        let want = whole(plan, steps);
        assert!(want.spikes.len() > 10, "only {} spikes", want.spikes.len());
        let layout = scattered(plan, parts, None);
        let (links, hubs) = (Channels::new(parts, Duration::from_secs(60)), Hubs::new(parts, nodes));
        let ran: Vec<Ran> = std::thread::scope(|scope| {
            let one = |(k, link): (usize, Channels)| {
                let (layout, gpu, hubs) = (&layout, &gpu, &hubs);
                scope.spawn(move || {
                    let exchange = AllGather::new(link, Members::new(plan, layout), k, nodes);
                    let mut engine = on_cards(plan, gpu, (layout, k), on, Some(Box::new(exchange)));
                    let (levels, at) = hubs.levels(k);
                    engine.by_device(levels, at).unwrap();
                    let (memory, across) = (engine.engine.units[0].memory.clone(), engine.across);
                    let collector = engine.collector.as_mut().unwrap();
                    collector.least = room;
                    collector.make_room(&memory, room, across).unwrap();
                    let mut spikes = Vec::new();
                    [1, 2, steps - 3].iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
                    assert!(engine.config().contains(carrier), "{}", engine.config());
                    assert!(engine.fire(1).is_err(), "joined parts do not go on alone");
                    let (state, keys) = (engine.state().unwrap(), engine.keys().unwrap());
                    let (events, every, synapses) = (engine.events(), engine.across, engine.synapses());
                    Ran { spikes, state, keys, events, every, synapses }
                })
            };
            let threads: Vec<_> = links.into_iter().enumerate().map(one).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let what = format!("{parts} parts on {nodes} nodes, {on:?}, room for {room}");
        assert!(ran.iter().all(|r| r.spikes == want.spikes), "{what}: spikes");
        assert!(joined(plan, &layout, &ran) == want.end, "{what}: state");
        assert_eq!(ran.iter().map(|r| r.events).sum::<u64>(), want.events, "{what}: events");
    }
}

/// By NCCL, on two GPUs of this machine.
#[test]
fn on_a_gpu_networks_in_parts_on_two_gpus_meet_by_nccl() {
    let Some(gpu) = gpu() else { return };
    let other = CudaDevice::open(1);
    let (Ok(other), Ok(_), false) = (other, Nccl::get(), gpu.device.name().starts_with("emulated")) else {
        println!("skipped: it takes two GPUs and NCCL");
        return;
    };
    pool::set_num_threads(1);
    let (mut network, _) = areas(4, 200, 9.0, 7);
    network.projections.iter_mut().for_each(|p| p.storage = Storage::Stored);
    let plan = Plan::new(network).unwrap();
    let want = whole(&plan, 4000);
    let layout = scattered(&plan, 2, None);
    let links = Channels::new(2, Duration::from_secs(60));
    std::thread::scope(|scope| {
        for (k, link) in links.into_iter().enumerate() {
            let (plan, layout, want) = (&plan, &layout, &want);
            let device = [&gpu.device, &other][k].clone();
            scope.spawn(move || {
                let exchange = Box::new(AllGather::new(link, Members::new(plan, layout), k, 1));
                let carried = (Some(exchange as Box<dyn Exchange>), Transport::Nccl);
                let mut engine = CudaPart::new(plan, &[device], layout, k, carried, &|_, _| ()).unwrap();
                assert!(engine.config().contains("by NCCL 2."), "{}", engine.config());
                let mut spikes = Vec::new();
                [1, 2, 3997].iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
                assert!(spikes == want.spikes, "{} spikes, not {}", spikes.len(), want.spikes.len());
            });
        }
    });
}

/// A part that is waited for in vain ends the others with a sentence.
#[test]
fn on_a_gpu_networks_in_parts_end_where_a_gpu_is_lost() {
    let Some(gpu) = gpu() else { return };
    let (mut network, _) = areas(2, 10, 9.0, 7);
    network.projections.iter_mut().for_each(|p| p.storage = Storage::Stored);
    let plan = Plan::new(network).unwrap();
    let layout = Layout::even(&plan.network, 2);
    let mut engine = on_cards(&plan, &gpu, (&layout, 0), On::Cards(1, 1, Lies::Shared, 16), None);
    struct Gone(usize);
    impl Group for Gone {
        unsafe fn all_gather(&mut self, _: u64, _: u64, _: usize, _: &Memory) -> Result<()> {
            // The first calls connect.
            self.0 += 1;
            if self.0 > 4 { Err(Error::lost("rank 1 of 2 has gone")) } else { Ok(()) }
        }
        unsafe fn broadcast(&mut self, _: u64, _: usize, _: &Memory) -> Result<()> {
            Ok(())
        }
        fn failed(&self) -> Result<()> {
            Ok(())
        }
        fn abort(&mut self) {}
    }
    let before = engine.state().unwrap();
    let at = Where { part: 0, parts: 2, nodes: 1 };
    let levels = Levels::new(at, "nobody".into(), &mut |_, _, _| Ok(Box::new(Gone(0)))).unwrap();
    engine.by_device(levels, at).unwrap();
    let e = engine.advance(10, &mut Vec::new()).unwrap_err();
    assert!(e.kind() == &ErrorKind::Lost && e.to_string().contains("rank 1 of 2 has gone"), "{e}");
    // Until it goes to a state, it has none.
    assert!(engine.state().unwrap_err().to_string().contains("has gone"));
    engine.restore(&before).unwrap();
    assert!(engine.state().unwrap() == before);
}

/// Who says what, and what comes of it.
#[test]
fn parts_are_joined_where_all_can_be() {
    let offer = |device: &str, id: u8| {
        let ids = [[id; 128], [id + 1; 128]].concat();
        [&[1, device.len() as u8], device.as_bytes(), &ids].concat()
    };
    let ids = levels::agreed(&[offer("a 0", 3), offer("a 1", 5), offer("b 0", 7)]).unwrap();
    assert_eq!((ids.len(), ids[1][0].0[0], ids[2][1].0[127]), (3, 5, 8));
    let says = |offers: &[Vec<u8>]| levels::agreed(offers).unwrap_err();
    assert_eq!(says(&[offer("a", 1), refusal("it runs on the CPU")]), "part 1 cannot: it runs on the CPU");
    assert_eq!(says(&[offer("a", 1), offer("b", 1), offer("a", 1)]), "parts 0 and 2 have one GPU");
    assert!(says(&[offer("a", 1), vec![1, 9]]).contains("makes no sense"));
    assert!(says(&[Vec::new()]).contains("makes no sense"));
    let at = |part, parts, nodes| Where { part, parts, nodes };
    assert_eq!(at(0, 3, 1).pieces(), [Some(0), Some(1), Some(2)]);
    assert_eq!(at(0, 3, 3).pieces(), [Some(0), Some(1), Some(2)]);
    assert_eq!(at(2, 3, 2).pieces(), [Some(0), None, Some(1), Some(2)]);
}
