//! Parts hear of each other once every shortest delay across the cut, and no oftener, and the spikes are those of the whole.

use super::tests::everything;
use super::{AllGather, Channels, Every, Exchange, Keys, PartEngine, join};
use crate::rng::Rng;
use crate::spiking::connect::synapses;
use crate::spiking::models;
use crate::spiking::network::place::Box4;
use crate::spiking::network::{Delay, Distribution, Network, Population, Projection, Rule, Storage};
use crate::spiking::partition::{Layout, shortest_across};
use crate::spiking::plan::{MOST_APART, Plan};
use crate::spiking::plasticity::Placement;
use crate::spiking::simulate::parts::wire::Members;
use crate::spiking::simulate::rules_tests::{mixed, modulated};
use crate::spiking::simulate::{CpuEngine, Engine, Spike, State};
use crate::{Result, pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Areas of `size` cells and two sources each, with delays from one step on inside and from `between` steps on to three others each; the
/// cells of the first population lie in clusters that far from each other, whose delays follow from distances.
pub(in crate::spiking) fn areas(count: usize, size: u32, between: f64, seed: u64) -> (Network, Vec<usize>) {
    let mut n = Network::new(0.1, seed).unwrap();
    let mut rng = Rng::new(seed, 1);
    let (mut area_of, mut cells) = (Vec::new(), Vec::new());
    for area in 0..count {
        let lif = models::find("lif_exp").unwrap();
        let mut p = Population::new(format!("E{area}"), lif, size);
        p = p.parameter("I_e", Distribution::normal(380.0, 60.0)).unwrap();
        p.initial[0] = Distribution::normal(-55.0, 5.0);
        let w = 1000 * area as i32;
        let cluster = Box4 { low: [0, 0, 0, w], high: [3, 3, 3, w + 3] };
        p.positions = Some(Arc::new(cluster.scatter(size, seed, area as u32)));
        cells.push(n.add(p));
        let noise = models::find("poisson").unwrap();
        n.add(Population::new(format!("S{area}"), noise, 2).parameter("rate", 60.0).unwrap());
        area_of.extend([area, area]);
    }
    let mut add = |source, target, rule, weight: f64, delay, storage| {
        let weight = Distribution::uniform(weight, 1.2 * weight);
        n.projections.push(Projection {
            source,
            target,
            rule,
            weight,
            delay,
            autapses: false,
            plasticity: None,
            storage,
            weight_bits: Default::default(),
        });
    };
    let drawn = |low: f64, more: f64| Delay::Drawn(Distribution::uniform(0.1 * low, 0.1 * (low + more)));
    for area in 0..count {
        let own = cells[area];
        let inside = Rule::InDegree { count: 12, multapses: true };
        add(own, own, inside, 60.0, drawn(1.0, 9.0), Storage::Stored);
        add(own + 1, own, Rule::AllToAll, 150.0, drawn(1.0, 3.0), Storage::Stored);
        for k in 0..3 {
            let other = cells[(area + 1 + rng.below(count as u64 - 1) as usize) % count];
            let longer = between + rng.below(9) as f64;
            match k {
                0 => {
                    let rule = Rule::OutDegree { count: 10, multapses: true };
                    add(own, other, rule, 90.0, drawn(longer, 10.0), Storage::Procedural);
                }
                1 => add(own, other, Rule::Probability(0.1), 90.0, drawn(longer, 20.0), Storage::Stored),
                // Clusters are 994 apart at the least.
                _ => {
                    let delay = Delay::Distance { velocity: 994.0 / (0.1 * longer + 0.04), offset_ms: 0.0 };
                    let rule = Rule::InDegree { count: 9, multapses: false };
                    add(own, other, rule, 90.0, delay, Storage::Stored);
                }
            }
        }
    }
    (n, area_of)
}

/// The shortest delay across the cut, by plain loops over all synapses.
fn across(plan: &Plan, layout: &Layout) -> u64 {
    let mut least = MOST_APART;
    for (i, p) in plan.network.projections.iter().enumerate() {
        let table = synapses(plan, i).unwrap();
        for ((s, t), ms) in table.source.iter().zip(&table.target).zip(&table.delay_ms) {
            if layout.owner(p.source, *s) != layout.owner(p.target, *t) {
                least = least.min((f64::from(*ms) / plan.network.dt_ms).round() as u64);
            }
        }
    }
    least
}

/// Counts exchanges.
struct Counted<'a>(Box<dyn Exchange + 'a>, Arc<AtomicU64>);

impl Exchange for Counted<'_> {
    fn agree(&mut self, steps: u64) -> Result<u64> {
        self.0.agree(steps)
    }
    fn exchange(&mut self, step: u64, own: &[Spike]) -> Result<Vec<Spike>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.exchange(step, own)
    }
    fn share(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.share(own)
    }
}

struct Ran {
    spikes: Vec<Spike>,
    state: State,
    keys: Keys,
    every: u64,
    exchanges: u64,
}

/// Each part of a layout after these pieces; `forced` steps between exchanges, where that is asked for.
fn ran(plan: &Plan, layout: &Layout, nodes: usize, pieces: &[u64], forced: Option<u64>) -> Vec<Ran> {
    let links = Channels::new(layout.parts(), Duration::from_secs(60));
    std::thread::scope(|scope| {
        let one = |(part, link): (usize, Channels)| {
            scope.spawn(move || {
                let count = Arc::new(AtomicU64::new(0));
                let gather = AllGather::new(link, Members::new(plan, layout), part, nodes);
                let exchange = Box::new(Counted(Box::new(gather), count.clone()));
                let mut engine = CpuEngine::of_part(plan, layout, part, Some(exchange), &|_, _| ()).unwrap();
                let every = engine.most_steps();
                forced.into_iter().for_each(|steps| engine.meet_every(steps));
                engine.sweep_after(300);
                let mut spikes = Vec::new();
                pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
                let (state, keys) = (engine.state().unwrap(), engine.keys());
                Ran { spikes, state, keys, every, exchanges: count.load(Ordering::Relaxed) }
            })
        };
        let threads: Vec<_> = links.into_iter().enumerate().map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn whole(plan: &Plan, steps: u64) -> (Vec<Spike>, State) {
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let mut spikes = Vec::new();
    engine.advance(steps, &mut spikes).unwrap();
    (spikes, engine.state().unwrap())
}

fn check(plan: &Plan, layout: &Layout, nodes: usize, pieces: &[u64], want: &(Vec<Spike>, State), what: &str) -> u64 {
    let all = ran(plan, layout, nodes, pieces, None);
    let every = all[0].every;
    for (part, own) in all.iter().enumerate() {
        assert!(own.spikes == want.0, "{what}: part {part} has {} spikes, not {}", own.spikes.len(), want.0.len());
        assert_eq!(own.every, every, "{what}: parts agree");
        assert_eq!(own.exchanges, pieces.iter().map(|p| p.div_ceil(every)).sum::<u64>(), "{what}: exchanges");
    }
    let keys: Vec<Keys> = all.iter().map(|r| r.keys.clone()).collect();
    let states = all.into_iter().map(|r| r.state).collect();
    assert!(join(plan, layout, states, &keys).unwrap() == want.1, "{what}: state");
    every
}

/// Random areas in 2 to 16 parts: cut between areas, spikes are exchanged as seldom as the delays between them allow; cut through
/// them, every step.
#[test]
fn spikes_are_exchanged_once_every_shortest_delay_across_the_cut() {
    pool::set_num_threads(1);
    let steps = 500;
    let mut seen = Vec::new();
    for (seed, between) in [(1, 5.0), (2, 17.0), (3, 90.0)] {
        let (network, area_of) = areas(16, 25, between, seed);
        let plan = Plan::new(network).unwrap();
        assert_eq!(plan.min_delay, 1);
        let want = whole(&plan, steps);
        assert!(want.0.len() > 700, "only {} spikes", want.0.len());
        for (parts, nodes) in [(2, 1), (3, 3), (4, 2), (8, 2), (16, 4)] {
            let what = format!("seed {seed}, {parts} parts");
            let owners = plan.network.populations.iter().zip(&area_of);
            let owners: Vec<Vec<u32>> =
                owners.map(|(p, area)| vec![(area * parts / 16) as u32; p.size as usize]).collect();
            let layout = Layout::from_owners(&plan.network, parts, &owners).unwrap();
            let exact = across(&plan, &layout);
            let every = check(&plan, &layout, nodes, &[7, 200, steps - 207], &want, &what);
            // Of synapses that are drawn again it is known how short their delays can be, not how short they are.
            let known = shortest_across(&plan, &layout);
            assert!((known..=exact).contains(&every), "{what}: every {every} steps of {exact}, at least {known}");
            assert!(known >= between.min(64.0) as u64, "{what}: {known}");
            seen.push(every);
            if parts <= 4 {
                let even = Layout::even(&plan.network, parts);
                assert_eq!(across(&plan, &even), 1);
                assert_eq!(shortest_across(&plan, &even), 1);
                assert_eq!(check(&plan, &even, nodes, &[100], &whole(&plan, 100), &what), 1);
            }
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() >= 4 && seen.last() == Some(&MOST_APART), "{seen:?}");
}

/// What the test above would see: one step more between exchanges than there may be, and spikes come too late.
#[test]
fn a_step_more_between_exchanges_loses_spikes() {
    pool::set_num_threads(1);
    let (network, area_of) = areas(4, 40, 6.0, 9);
    let plan = Plan::new(network).unwrap();
    let owners = plan.network.populations.iter().zip(&area_of);
    let owners: Vec<Vec<u32>> = owners.map(|(p, area)| vec![*area as u32; p.size as usize]).collect();
    let layout = Layout::from_owners(&plan.network, 4, &owners).unwrap();
    let exact = across(&plan, &layout);
    let want = whole(&plan, 600);
    for steps in [1, exact] {
        assert!(ran(&plan, &layout, 1, &[600], Some(steps))[0].spikes == want.0, "{steps}");
    }
    for steps in [exact + 1, exact + 4] {
        assert!(ran(&plan, &layout, 1, &[600], Some(steps))[0].spikes != want.0, "{steps}");
    }
}

/// Every rule of synapses that change, in a cut that only long delays cross: spikes of other parts are heard of later than own ones, and
/// a modulator that comes from elsewhere bounds how much later.
#[test]
fn synapses_that_change_are_the_same_bits_however_late_others_are_heard_of() {
    pool::set_num_threads(1);
    let (a, d) = (Placement::Axonal, Placement::Dendritic);
    for (seed, placement, modulator_ms, most) in
        [(41, [d, a, d, a], 6.0, 31), (42, [a, d, a, d], 6.0, 31), (43, [d, d, d, d], 1.3, 13)]
    {
        let mut n = mixed(seed, placement);
        for p in &mut n.projections {
            let low = if p.source == p.target { 0.1 } else { 3.1 };
            p.delay = Delay::Drawn(Distribution::uniform(low, low + 0.9));
            if let Some(m) = p.plasticity.as_mut().and_then(|x| x.modulation.as_mut()) {
                m.delay_ms = modulator_ms;
            }
        }
        n.projections[3].plasticity = Some(modulated(900.0, d));
        if let Some(m) = n.projections[3].plasticity.as_mut().and_then(|x| x.modulation.as_mut()) {
            m.delay_ms = modulator_ms;
        }
        n.projections[3].weight = Distribution::uniform(80.0, 90.0);
        let plan = Plan::new(n).unwrap();
        assert_eq!(plan.min_delay, 1);
        let want = whole(&plan, 900);
        assert!(want.0.len() > 1000, "only {} spikes", want.0.len());
        for (parts, of) in [(2, [0, 1, 0, 1]), (3, [2, 1, 0, 1]), (4, [0, 1, 2, 3])] {
            let owners: Vec<Vec<u32>> =
                plan.network.populations.iter().zip(of).map(|(p, part)| vec![part; p.size as usize]).collect();
            let layout = Layout::from_owners(&plan.network, parts, &owners).unwrap();
            let exact = across(&plan, &layout);
            let every = check(&plan, &layout, 1, &[333, 567], &want, &format!("{placement:?}, {parts} parts"));
            assert_eq!((every, exact >= 31), (most, true), "{placement:?}, {parts} parts");
        }
    }
}

/// Somebody else carries spikes: parts ask for the shortest delay onto their own cells, which differ; the least of them holds for all.
#[test]
fn parts_that_somebody_else_connects_advance_by_the_least_that_they_ask_for() {
    pool::set_num_threads(1);
    let (network, area_of) = areas(6, 30, 8.0, 5);
    let plan = Plan::new(network).unwrap();
    let owners = plan.network.populations.iter().zip(&area_of);
    let owners: Vec<Vec<u32>> = owners.map(|(p, area)| vec![*area as u32 % 3; p.size as usize]).collect();
    let layout = Layout::from_owners(&plan.network, 3, &owners).unwrap();
    let mut parts: Vec<CpuEngine<'_>> =
        (0..3).map(|part| CpuEngine::of_part(&plan, &layout, part, None, &|_, _| ()).unwrap()).collect();
    let every = parts.iter().map(CpuEngine::most_steps).min().unwrap();
    assert!(every >= 8 && every <= across(&plan, &layout), "{every}");
    let longest = parts.iter().map(CpuEngine::most_steps).max().unwrap();
    assert!(parts[0].fire(longest + 1).is_err());
    let want = whole(&plan, 400);
    let (mut all, mut step) = (Vec::new(), 0);
    while step < 400 {
        let steps = every.min(400 - step);
        let fired: Vec<Vec<Spike>> = parts.iter_mut().map(|p| p.fire(steps).unwrap()).collect();
        assert!(parts[0].fire(1).unwrap_err().to_string().contains("heard in between"));
        if step > 0 {
            assert!(parts[0].hear(&[Spike { step: step - 1, cell: 0 }]).is_err(), "of a step before these");
        }
        for (i, part) in parts.iter_mut().enumerate() {
            let others = fired.iter().enumerate().filter(|(k, _)| *k != i);
            part.hear(&others.flat_map(|(_, f)| f.iter().copied()).collect::<Vec<_>>()).unwrap();
        }
        all.extend(fired.into_iter().flatten());
        step += steps;
    }
    all.sort_unstable();
    assert!(all == want.0);
    let keys: Vec<Keys> = parts.iter().map(CpuEngine::keys).collect();
    let states = parts.iter().map(|p| p.state().unwrap()).collect();
    assert!(join(&plan, &layout, states, &keys).unwrap() == want.1);
}

/// Threads of one engine meet by the synapses that there are, too: delays by distance come down to their offset in no rule's words.
#[test]
fn threads_meet_by_the_synapses_that_there_are() {
    let plan = Plan::new(everything()).unwrap();
    let engine = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
    let mut least = MOST_APART;
    for i in 0..plan.network.projections.len() {
        let table = synapses(&plan, i).unwrap();
        least = table.delay_ms.iter().fold(least, |l, ms| l.min((f64::from(*ms) / 0.1).round() as u64));
    }
    let modulators = plan.learning.iter().flat_map(|l| &l.modulators).map(|m| u64::from(m.delay));
    least = modulators.fold(least, u64::min);
    assert_eq!(engine.most_steps(), least);
    let every = Every::of(&plan, engine.shards(), Default::default(), Some((&Layout::even(&plan.network, 1), 0)));
    assert_eq!((every.inside, every.across >= least), (least, true));
}
