//! Partitioners: whole layouts, balance, counts against plain loops, expectations against counts.

use super::sample::{self, Sampled};
use super::*;
use crate::ErrorKind;
use crate::spiking::models;
use crate::spiking::network::place::Box4;
use crate::spiking::network::{Delay, Network, Population, Projection, Rule, Storage};
use crate::spiking::simulate::parts::tests::everything;
use std::collections::HashSet;
use std::sync::Arc;

/// Cells all over a box that is long in w, joined to those near them.
fn space(cells: u32) -> Plan {
    let mut n = Network::new(0.1, 3).unwrap();
    let lif = models::find("lif_exp").unwrap();
    for (i, size) in [(0, cells), (1, cells / 4)] {
        let mut p = Population::new(["E", "I"][i], lif, size);
        let space = Box4 { low: [0, 0, 0, 0], high: [10, 10, 10, 40] };
        p.positions = Some(Arc::new(space.scatter(size, 9, i as u32)));
        n.add(p);
    }
    for (source, target) in [(0, 0), (0, 1), (1, 0)] {
        n.projections.push(Projection {
            source,
            target,
            rule: Rule::Distance { peak: 0.6, length: 1.5, radius: 5.0 },
            weight: 50.0.into(),
            delay: Delay::Distance { velocity: 1.0, offset_ms: 0.3 },
            autapses: false,
            plasticity: None,
            storage: Storage::Stored,
            weight_bits: Default::default(),
        });
    }
    Plan::new(n).unwrap()
}

fn layouts(load: &Load<'_>, parts: usize) -> Vec<(&'static str, Layout)> {
    let mut found = Vec::new();
    for by in all() {
        match by.layout(load, parts) {
            Err(e) if e.kind() == &ErrorKind::Unavailable => assert_eq!(by.name(), "metis"),
            layout => found.push((by.name(), layout.unwrap())),
        }
    }
    found
}

#[test]
fn every_layout_has_every_cell_once_and_equal_work() {
    let plan = space(1000);
    let load = Load::new(&plan, 8.0, false);
    for parts in [1, 2, 5, 16] {
        let found = layouts(&load, parts);
        for (name, layout) in &found {
            let all: Vec<u32> = (0..parts).flat_map(|part| layout.numbers(&plan, part)).collect();
            assert_eq!(all.iter().collect::<HashSet<_>>().len() as u64, plan.cells());
            for part in 0..parts {
                let own: Vec<u32> = layout.numbers(&plan, part).collect();
                assert!(own.is_sorted() && own.len() as u64 == layout.cells(part));
                // Shards of a part have its cells.
                let mut shards: Vec<u32> = Vec::new();
                for i in 0..3 {
                    let (some, slots) = layout.shard(&plan, part, i, 3);
                    let ports = plan.models.iter().map(|m| m.ports().len());
                    assert_eq!(slots, some.iter().zip(ports).map(|(p, n)| p.count() as usize * n).sum::<usize>());
                    let number = |(p, s): (usize, &crate::spiking::connect::Part)| {
                        s.cells().iter().map(|c| plan.first[p] as u32 + c).collect::<Vec<_>>()
                    };
                    shards.extend(some.iter().enumerate().flat_map(number));
                }
                shards.sort_unstable();
                assert_eq!(shards, own);
            }
            for (p, cell) in [(0, 0), (0, 999), (1, 77)] {
                let part = layout.owner(p, cell);
                assert!(layout.own(part, p).contains(cell) && layout.owners(p)[cell as usize] as usize == part);
            }
            assert_eq!(Layout::from_bytes(&plan.network, &layout.to_bytes()).as_ref(), Some(layout));
            let cost = &evaluate(&load, std::slice::from_ref(layout))[0];
            // What slices of points at random cannot cut finer.
            assert!(cost.balance < 1.2, "{name} {parts}: {}", cost.balance);
            assert!(parts > 1 || (cost.cut_synapses, cost.crossing_spikes, cost.min_delay_ms) == (0.0, 0.0, None));
        }
        assert_eq!(found, layouts(&load, parts), "drawn again");
    }
}

/// Where cells know their neighbours alone, places make a difference, and the cut that is counted is that of plain loops.
#[test]
fn places_cut_less_and_counts_are_those_of_plain_loops() {
    let plan = space(2000);
    let load = Load::new(&plan, 8.0, false);
    let parts = 4;
    let found = layouts(&load, parts);
    let costs = evaluate(&load, &found.iter().map(|(_, l)| l.clone()).collect::<Vec<_>>());
    for ((name, layout), cost) in found.iter().zip(&costs) {
        let (mut synapses, mut cut, mut delays, mut least) = (vec![0.0; parts], 0.0, 0.0, u16::MAX);
        let mut reached = HashSet::new();
        for (i, p) in plan.network.projections.iter().enumerate() {
            let table = crate::spiking::connect::synapses(&plan, i).unwrap();
            for k in 0..table.source.len() {
                let (s, t) = (table.source[k], table.target[k]);
                let (from, to) = (layout.owner(p.source, s), layout.owner(p.target, t));
                synapses[to] += 1.0;
                if from != to {
                    let delay = (table.delay_ms[k] / 0.1).round() as u16;
                    cut += 1.0;
                    delays += f64::from(delay);
                    least = least.min(delay);
                    reached.insert((p.source, s, to));
                }
            }
        }
        assert!(cost.exact && cost.synapses == synapses && cost.cut_synapses == cut, "{name}");
        assert!((cost.mean_delay_ms.unwrap() - delays / cut * 0.1).abs() < 1e-9);
        assert!((cost.min_delay_ms.unwrap() - f64::from(least) * 0.1).abs() < 1e-9);
        assert_eq!(cost.exchange_steps, u64::from(least).min(64));
        assert!((1..=cost.exchange_steps).contains(&shortest_across(&plan, layout)), "{name}");
        // 8 Hz in steps of 0.1 ms.
        assert!((cost.crossing_spikes - reached.len() as f64 * 8e-4).abs() < 1e-9, "{name}");
    }
    let cut = |name: &str| found.iter().position(|(n, _)| *n == name).map(|i| costs[i].cut_synapses);
    let index = cut("index").unwrap();
    for name in ["w_slice", "morton", "kmeans", "metis"] {
        // A box that is four times as long in w: slices of it are hard to beat.
        assert!(cut(name).is_none_or(|cut| cut < 0.5 * index), "{name} {:?} of {index}", cut(name));
    }
    let (layout, name) = choose(&plan, 8.0, parts, "auto").unwrap();
    let at = best(&costs).unwrap();
    assert!(name == found[at].0 && layout == found[at].1 && name != "index");
}

/// Samples and formulas against counts.
#[test]
fn expectations_are_near_to_counts() {
    let plan = space(5000);
    let exact = Load::new(&plan, 8.0, false);
    let mut rough = Load::new(&plan, 8.0, false);
    (rough.exact, rough.sample) = (false, 6e4);
    rough.weigh();
    let layouts = [morton::Morton.layout(&exact, 4).unwrap(), Layout::even(&plan.network, 3)];
    for (a, b) in evaluate(&exact, &layouts).iter().zip(evaluate(&rough, &layouts)) {
        let near = |a: f64, b: f64, share: f64| assert!((a - b).abs() < share * a, "{a} {b}");
        assert!(a.exact && !b.exact && a.neurons == b.neurons);
        near(a.synapses.iter().sum(), b.synapses.iter().sum(), 0.05);
        near(a.cut_synapses, b.cut_synapses, 0.1);
        near(a.mean_delay_ms.unwrap(), b.mean_delay_ms.unwrap(), 0.05);
        near(a.crossing_spikes, b.crossing_spikes, 0.15);
        near(a.step_us, b.step_us, 0.1);
    }
    // Rules that are not counted at targets.
    let plan = Plan::new(everything()).unwrap();
    let (mut counted, mut sampled) = (vec![0.0; 20], vec![0.0; 20]);
    sample::each(&plan, None, &mut |s: Sampled| counted[s.projection] += s.count);
    sample::each(&plan, Some(3e3), &mut |s: Sampled| sampled[s.projection] += s.count);
    for (a, b) in counted.iter().zip(&sampled) {
        assert!((a - b).abs() <= 0.1 * a, "{counted:?} {sampled:?}");
    }
}

#[test]
fn slices_stay_whole_where_there_are_enough() {
    let mut n = Network::new(0.1, 3).unwrap();
    let mut p = Population::new("E", models::find("lif_exp").unwrap(), 600);
    p.positions = Some(Arc::new((0..600).map(|i| [(i % 7) as f32, 0.0, (i / 100) as f32, (i % 6) as f32]).collect()));
    n.add(p);
    let plan = Plan::new(n).unwrap();
    let load = Load::new(&plan, 5.0, false);
    let layout = w_slice::WSlice.layout(&load, 3).unwrap();
    (0..600).for_each(|i| assert_eq!(layout.owner(0, i), (i % 6 / 2) as usize));
    let layout = w_slice::WSlice.layout(&load, 12).unwrap();
    assert!((0..12).all(|part| layout.cells(part) == 50));
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let mut n = Network::new(0.1, 3).unwrap();
    n.add(Population::new("E", models::find("lif_exp").unwrap(), 6));
    let plan = Plan::new(n).unwrap();
    let says = |parts, method| choose(&plan, 5.0, parts, method).unwrap_err().to_string();
    assert!(says(2, "hash").contains("there are auto, index, w_slice, morton, kmeans, metis"));
    assert!(says(2, "kmeans").contains("kmeans needs cells with places"));
    assert!(says(0, "auto").contains("0 parts"));
    assert_eq!(choose(&plan, 5.0, 9, "auto").unwrap().0.parts(), 9);
    let missing = metis::open(Some("no-such-library".into())).map(drop).unwrap_err();
    assert_eq!(missing.kind(), &ErrorKind::Unavailable);
    assert!(missing.to_string().contains("looked for no-such-library; install it"), "{missing}");
    assert!(Layout::from_owners(&plan.network, 2, &[vec![0; 5]]).is_err());
    assert!(Layout::from_owners(&plan.network, 2, &[vec![2; 6]]).is_err());
}
