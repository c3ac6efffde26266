//! Parts against the engine of the whole: the same spikes, states and weights, however a network is shared out.

use super::engine::serve;
use super::gather::{AllGather, Channels, Link, neighbours};
use super::tcp::{self, Setup};
use super::wire::{Members, bundle, pack, packets, unpack};
use super::{Keys, PartEngine, PartsEngine, join, split, state_bytes, state_from_bytes};
use crate::rng::Rng;
use crate::spiking::models;
use crate::spiking::network::place::Box4;
use crate::spiking::network::{Delay, Distribution, Edge, Network, Population, Projection, Rule, Storage};
use crate::spiking::partition::{self, Layout, Load};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::Placement;
use crate::spiking::simulate::procedural_tests::drawn;
use crate::spiking::simulate::rules_tests::mixed;
use crate::spiking::simulate::{CpuEngine, Engine, Spike, State};
use crate::{ErrorKind, Result, pool};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Every rule of connection and every rule of synapses, cells with places and without, sources, replays, two ports.
pub(in crate::spiking) fn everything() -> Network {
    let (a, d) = (Placement::Axonal, Placement::Dendritic);
    let mut n = mixed(41, [d, a, d, a]);
    for p in &mut n.projections {
        p.delay = Delay::Drawn(Distribution::uniform(0.5, 3.0));
    }
    for i in 0..2 {
        let space = Box4 { low: [0, 0, 0, 0], high: [9, 7, 5, 11] };
        let size = n.populations[i].size;
        n.populations[i].positions = Some(Arc::new(space.scatter(size, 5, i as u32)));
    }
    let replay = models::find("spikes").unwrap();
    let mut k = Population::new("K", replay, 20);
    k.replay = Some(Arc::new((0..400).map(|i| (3 * i, (i * 7 % 20) as u32)).collect()));
    let k = n.add(k);
    let cond = Population::new("C", models::find("lif_cond").unwrap(), 20);
    let c = n.add(cond.parameter("E_L", Distribution::normal(-65.0, 2.0)).unwrap());
    let edges = (0..300).map(|i| Edge { source: i % 400, target: i * 3 % 20, weight: 1.5, delay_ms: 0.7 });
    let drawn = Delay::Drawn(Distribution::uniform(0.5, 2.0));
    let mut add = |source, target, rule, weight: f64, delay| {
        let weight = Distribution::from(weight);
        n.projections.push(Projection {
            source,
            target,
            rule,
            weight,
            delay,
            autapses: false,
            plasticity: None,
            storage: Storage::Stored,
            weight_bits: Default::default(),
        });
    };
    add(k, c, Rule::OneToOne, 4.0, drawn);
    add(k, 1, Rule::AllToAll, 30.0, drawn);
    add(2, c, Rule::Total { count: 150, multapses: false }, 2.0, drawn);
    add(0, c, Rule::Edges(Arc::new(edges.collect())), 1.5, drawn);
    let near = Rule::Distance { peak: 0.5, length: 2.0, radius: 4.0 };
    add(0, 0, near, 25.0, Delay::Distance { velocity: 2.0, offset_ms: 0.5 });
    add(c, 0, Rule::OutDegree { count: 9, multapses: false }, 40.0, drawn);
    add(1, c, Rule::InDegree { count: 4, multapses: true }, -3.0, drawn);
    n
}

const CUT: u64 = 333;
const STEPS: u64 = 800;

struct Whole {
    spikes: Vec<Spike>,
    cut: State,
    end: State,
    events: u64,
}

fn whole(plan: &Plan) -> Whole {
    let mut engine = CpuEngine::with_shards(plan, 3, &|_, _| ()).unwrap();
    let mut spikes = Vec::new();
    engine.advance(CUT, &mut spikes).unwrap();
    let cut = engine.state().unwrap();
    engine.advance(STEPS - CUT, &mut spikes).unwrap();
    assert!(spikes.len() > 1500, "only {} spikes", spikes.len());
    Whole { spikes, cut, end: engine.state().unwrap(), events: engine.events() }
}

type Ran = (Vec<Spike>, State, Keys, u64);

/// What each part of a layout has at the end, from the beginning or from a state.
fn apart(plan: &Plan, layout: &Layout, nodes: usize, from: Option<(&State, &[Keys])>, pieces: &[u64]) -> Vec<Ran> {
    let states = from.map(|(state, keys)| split(plan, layout, state, keys).unwrap());
    let links = Channels::new(layout.parts(), Duration::from_secs(20));
    std::thread::scope(|scope| {
        let one = |(part, link): (usize, Channels)| {
            let state = states.as_ref().map(|s| s[part].clone());
            scope.spawn(move || {
                let exchange = AllGather::new(link, Members::new(plan, layout), part, nodes);
                let mut engine = CpuEngine::of_part(plan, layout, part, Some(Box::new(exchange)), &|_, _| ()).unwrap();
                if let Some(state) = &state {
                    engine.restore(state).unwrap();
                }
                let mut spikes = Vec::new();
                pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
                (spikes, engine.state().unwrap(), engine.keys(), engine.events())
            })
        };
        let threads: Vec<_> = links.into_iter().enumerate().map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn joined(plan: &Plan, layout: &Layout, ran: &[Ran]) -> State {
    let keys: Vec<Keys> = ran.iter().map(|r| r.2.clone()).collect();
    join(plan, layout, ran.iter().map(|r| r.1.clone()).collect(), &keys).unwrap()
}

#[test]
fn any_number_of_parts_of_any_layout_has_the_bits_of_the_whole() {
    let plan = Plan::new(everything()).unwrap();
    pool::set_num_threads(1);
    let want = whole(&plan);
    let load = Load::new(&plan, 5.0, false);
    assert!(load.exact);
    for by in partition::all() {
        for (parts, nodes) in [(2, 1), (3, 3), (4, 2), (8, 1), (16, 4)] {
            let layout = match by.layout(&load, parts) {
                Err(e) if e.kind() == &ErrorKind::Unavailable => continue,
                layout => layout.unwrap(),
            };
            let what = format!("{} {parts}", by.name());
            // Parts alone differ in the small ones; the large ones are cut into pieces.
            let pieces = if parts > 4 { vec![CUT, STEPS - CUT] } else { vec![1, 2, STEPS - 3] };
            let ran = apart(&plan, &layout, nodes, None, &pieces);
            for (part, own) in ran.iter().enumerate() {
                assert!(own.0 == want.spikes, "{what}: part {part} has {} spikes", own.0.len());
            }
            assert!(joined(&plan, &layout, &ran) == want.end, "{what}: state");
            assert_eq!(ran.iter().map(|r| r.3).sum::<u64>(), want.events, "{what}: events");
        }
    }
}

/// Each part draws the rows of all spikes again, for its own cells.
#[test]
fn parts_that_draw_synapses_again_have_the_bits_of_the_whole_that_stores_them() {
    let plan = Plan::new(everything()).unwrap();
    pool::set_num_threads(1);
    let want = whole(&plan);
    let (network, count) = drawn(plan.network.clone());
    assert!(count > 1);
    let again = Plan::new(network).unwrap();
    let owners = again.network.populations.iter().map(|p| (0..p.size).map(|cell| cell * 7 % 3).collect());
    let owners: Vec<Vec<u32>> = owners.collect();
    let scattered = Layout::from_owners(&again.network, 3, &owners).unwrap();
    for layout in [Layout::even(&again.network, 2), scattered] {
        let ran = apart(&again, &layout, 1, None, &[CUT, STEPS - CUT]);
        assert!(ran.iter().all(|own| own.0 == want.spikes) && joined(&again, &layout, &ran) == want.end);
        assert_eq!(ran.iter().map(|r| r.3).sum::<u64>(), want.events);
    }
}

/// Any cell anywhere, parts without a cell, more parts than cells; and saved by so many, gone on by others.
#[test]
fn parts_at_random_go_on_from_the_state_of_others() {
    let plan = Plan::new(everything()).unwrap();
    pool::set_num_threads(2);
    let want = whole(&plan);
    let mut rng = Rng::new(3, 0);
    let mut random = |parts: usize, used: u64| {
        let owners = plan.network.populations.iter();
        let owners: Vec<Vec<u32>> = owners.map(|p| (0..p.size).map(|_| rng.below(used) as u32).collect()).collect();
        Layout::from_owners(&plan.network, parts, &owners).unwrap()
    };
    let (five, three) = (random(5, 4), random(3, 3));
    let before = apart(&plan, &five, 2, None, &[CUT]);
    let state = joined(&plan, &five, &before);
    assert!(state == want.cut, "the state at the cut");
    // What each part has goes through bytes.
    for (part, (_, own, ..)) in before.iter().enumerate() {
        let bytes = state_bytes(&five, part, [7; 32], own);
        assert!(&state_from_bytes(&plan, &five, part, [7; 32], &bytes).unwrap() == own);
        assert!(state_from_bytes(&plan, &five, part, [8; 32], &bytes).is_err());
        assert!(state_from_bytes(&plan, &three, part.min(2), [7; 32], &bytes).is_err());
    }
    let keys: Vec<Keys> = apart(&plan, &three, 1, None, &[1]).into_iter().map(|r| r.2).collect();
    for k in &keys {
        let bytes = k.to_bytes();
        assert_eq!(Keys::from_bytes(&bytes).as_ref(), Some(k));
        for end in [0, 3, 8, 9, bytes.len() - 1] {
            assert_eq!(Keys::from_bytes(&bytes[..end]), None);
        }
    }
    let after = apart(&plan, &three, 1, Some((&state, &keys)), &[STEPS - CUT]);
    assert!(joined(&plan, &three, &after) == want.end);
    let mut engine = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    engine.restore(&state).unwrap();
    let mut spikes = Vec::new();
    engine.advance(STEPS - CUT, &mut spikes).unwrap();
    assert!(spikes == after[0].0 && engine.state().unwrap() == want.end);
    // A state of other parts is refused.
    assert!(split(&plan, &five, &state, &keys).is_err());
    let mut bad = state.clone();
    bad.learned.as_mut().unwrap().strengths.pop();
    assert!(split(&plan, &three, &bad, &keys).is_err());

    let mut n = Network::new(0.1, 1).unwrap();
    n.add(Population::new("E", models::find("lif_exp").unwrap(), 2).parameter("I_e", 900.0).unwrap());
    let plan = Plan::new(n).unwrap();
    let mut spikes = Vec::new();
    let mut engine = CpuEngine::new(&plan, &|_, _| ()).unwrap();
    engine.advance(1000, &mut spikes).unwrap();
    assert!(spikes.len() > 10);
    for parts in [1, 2, 7] {
        let layout = Layout::even(&plan.network, parts);
        let ran = apart(&plan, &layout, parts, None, &[1000]);
        assert!(ran.iter().all(|r| r.0 == spikes) && joined(&plan, &layout, &ran) == engine.state().unwrap());
    }
}

/// What fires and what is heard, step by step, without an exchange.
#[test]
fn parts_that_somebody_else_connects_have_the_same_bits() {
    let plan = Plan::new(everything()).unwrap();
    pool::set_num_threads(1);
    let want = whole(&plan);
    let layout = Layout::even(&plan.network, 2);
    let mut parts: Vec<CpuEngine<'_>> =
        (0..2).map(|part| CpuEngine::of_part(&plan, &layout, part, None, &|_, _| ()).unwrap()).collect();
    let most = parts.iter().map(CpuEngine::most_steps).min().unwrap();
    let more = parts[0].most_steps() + 1;
    assert!(most >= u64::from(plan.min_delay));
    assert!(parts[0].hear(&[]).is_err() && parts[0].fire(more).is_err());
    let mut all = Vec::new();
    let mut step = 0;
    while step < STEPS {
        let steps = most.min(STEPS - step);
        let [a, b] = [0, 1].map(|i| parts[i].fire(steps).unwrap());
        assert!(parts[0].fire(1).unwrap_err().to_string().contains("heard in between"));
        assert!(parts[0].hear(&[Spike { step: step + steps, cell: 0 }]).is_err());
        parts[0].hear(&b).unwrap();
        parts[1].hear(&a).unwrap();
        all.extend(a.into_iter().chain(b));
        step += steps;
    }
    all.sort_unstable();
    assert!(all == want.spikes);
    let keys = [parts[0].keys(), parts[1].keys()];
    let states = parts.iter().map(|p| p.state().unwrap()).collect();
    assert!(join(&plan, &layout, states, &keys).unwrap() == want.end);
}

fn setup(part: usize, parts: usize, patience: f64) -> Setup {
    let patience = Duration::from_secs_f64(patience);
    Setup { part, parts, patience, gathering: Duration::from_secs(10), key: "k".into(), fingerprint: [5; 32] }
}

/// The parts of a run, each a thread that knows the others by TCP alone: 2 x 2 on two nodes, and a star.
#[test]
fn parts_over_tcp_have_the_same_bits_and_their_coordinator_all_answers() {
    let plan = Plan::new(everything()).unwrap();
    pool::set_num_threads(1);
    let want = whole(&plan);
    let plain = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    for (parts, nodes) in [(4, 2), (3, 1)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let layout = Layout::even(&plan.network, parts);
        let worker = |part: usize| -> Result<()> {
            let mut mesh = tcp::join(&setup(part, parts, 10.0), &place)?;
            let layout = Layout::from_bytes(&plan.network, &mesh.more).unwrap();
            let exchange = AllGather::new(mesh.spikes(), Members::new(&plan, &layout), part, mesh.nodes);
            let mut engine = CpuEngine::of_part(&plan, &layout, part, Some(Box::new(exchange)), &|_, _| ())?;
            serve(&plan, &layout, part, [5; 32], &mut engine, &mut mesh.control(), &|| false)?;
            mesh.linger();
            Ok(())
        };
        std::thread::scope(|scope| {
            let worker = &worker;
            let others: Vec<_> = (1..parts).map(|part| scope.spawn(move || worker(part))).collect();
            let host = setup(0, parts, 10.0);
            let mut mesh = tcp::host(&host, &listener, nodes, layout.to_bytes(), &mut || Ok(())).unwrap();
            let exchange = AllGather::new(mesh.spikes(), Members::new(&plan, &layout), 0, nodes);
            let own = CpuEngine::of_part(&plan, &layout, 0, Some(Box::new(exchange)), &|_, _| ()).unwrap();
            let link = Box::new(mesh.control());
            let mut engine =
                PartsEngine::new(&plan, layout.clone(), [5; 32], Box::new(own), link, "words".into()).unwrap();
            assert_eq!(engine.synapses(), plain.synapses());
            assert_eq!(engine.weights().unwrap(), plain.weights().unwrap());
            let mut spikes = Vec::new();
            engine.advance(50, &mut spikes).unwrap();
            engine.restore(&want.cut).unwrap();
            assert!(engine.state().unwrap() == want.cut);
            spikes.clear();
            engine.advance(STEPS - CUT, &mut spikes).unwrap();
            let from = want.spikes.partition_point(|s| s.step < CUT);
            assert!(spikes == want.spikes[from..]);
            assert!(engine.state().unwrap() == want.end);
            let mut at_end = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
            at_end.restore(&want.end).unwrap();
            assert_eq!(engine.weights().unwrap(), at_end.weights().unwrap());
            for projection in [0, 3, 8] {
                assert_eq!(engine.table(projection).unwrap(), at_end.table(projection).unwrap());
            }
            for cell in [0, 17, 399] {
                assert_eq!(engine.cell(0, cell).unwrap(), at_end.cell(0, cell).unwrap());
            }
            let mut wrong = want.end.clone();
            wrong.variables[0][0].pop();
            assert!(engine.restore(&wrong).is_err());
            drop(engine);
            drop(mesh);
            for other in others {
                other.join().unwrap().unwrap();
            }
        });
    }
}

/// Whoever disagrees, says nothing or goes ends the run for all, with a sentence and soon.
#[test]
fn faults_end_the_run_everywhere_with_a_sentence() {
    let listen = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        (listener, place)
    };
    // Another network, another number of parts.
    let wrong =
        [(Setup { fingerprint: [6; 32], ..setup(1, 2, 5.0) }, "another network"), (setup(1, 3, 5.0), "one of 3")];
    for (other, says) in wrong {
        let (listener, place) = listen();
        let there = std::thread::spawn(move || tcp::join(&other, &place).map(drop).unwrap_err().to_string());
        let here = tcp::host(&setup(0, 2, 5.0), &listener, 1, vec![], &mut || Ok(())).map(drop).unwrap_err();
        assert!(here.to_string().contains(says), "{here}");
        assert!(there.join().unwrap().contains(says));
    }
    // Strangers, and those who say nonsense, are not let in.
    let (listener, place) = listen();
    let stranger = Setup { key: "other".into(), ..setup(1, 2, 5.0) };
    let at = place.clone();
    let strangers = std::thread::spawn(move || {
        use std::io::Write;
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4], &[255; 64]] {
            let _ = TcpStream::connect(&at).unwrap().write_all(bytes);
        }
        let e = tcp::join(&stranger, &at).map(drop).unwrap_err().to_string();
        assert!(e.contains("cannot hear from part 0"), "{e}");
    });
    let brief = Setup { gathering: Duration::from_millis(700), ..setup(0, 2, 5.0) };
    let e = tcp::host(&brief, &listener, 1, vec![], &mut || Ok(())).map(drop).unwrap_err().to_string();
    assert!(e.contains("part 1 did not join within"), "{e}");
    strangers.join().unwrap();
    // One of three goes in the middle; one of three hangs: the other two are told.
    for hangs in [false, true] {
        let (listener, place) = listen();
        let since = Instant::now();
        let part = |part: usize| {
            let place = place.clone();
            std::thread::spawn(move || {
                let mut mesh = tcp::join(&setup(part, 3, 0.5), &place).unwrap();
                let mut spikes = mesh.spikes();
                if part == 2 && hangs {
                    // It is neither heard of nor does it go.
                    mesh.stop_living();
                    std::thread::sleep(Duration::from_millis(1500));
                    return String::new();
                }
                if part == 2 {
                    return String::new();
                }
                spikes.receive(0).unwrap_err().to_string()
            })
        };
        let others = [part(1), part(2)];
        let mut mesh = tcp::host(&setup(0, 3, 0.5), &listener, 1, vec![], &mut || Ok(())).unwrap();
        let here = mesh.spikes().receive(2).unwrap_err().to_string();
        let says = if hangs { "part 2 of 3 has said nothing for" } else { "part 2 of 3 has" };
        assert!(here.contains(says), "{here}");
        let [one, _] = others.map(|o| o.join().unwrap());
        assert!(one.contains(says), "{one}");
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn packets_read_back_and_no_bytes_make_them_panic() {
    let plan = Plan::new(everything()).unwrap();
    let mut rng = Rng::new(8, 0);
    let owners = plan.network.populations.iter();
    let owners: Vec<Vec<u32>> = owners.map(|p| (0..p.size).map(|_| rng.below(3) as u32).collect()).collect();
    let layout = Layout::from_owners(&plan.network, 3, &owners).unwrap();
    let members = Members::new(&plan, &layout);
    assert_eq!(Layout::from_bytes(&plan.network, &layout.to_bytes()), Some(layout.clone()));
    let cells: Vec<u32> = layout.numbers(&plan, 1).collect();
    let mut sizes = Vec::new();
    for share in [0, 1, 2, 40, 100] {
        let steps = (90..100).flat_map(|step| cells.iter().map(move |cell| Spike { step, cell: *cell }));
        let spikes: Vec<Spike> = steps.filter(|_| rng.below(100) < share).collect();
        let bytes = pack(&members, 1, 100, &spikes).unwrap();
        let mut got = Vec::new();
        assert_eq!(unpack(&members, 100, &bytes, &mut got).unwrap(), 1);
        assert!(got == spikes);
        sizes.push(bytes.len());
        assert!(unpack(&members, 101, &bytes, &mut got).unwrap_err().to_string().contains("is at step 100"));
        for end in 0..bytes.len() {
            assert!(unpack(&members, 100, &bytes[..end], &mut Vec::new()).is_err(), "{share} {end}");
        }
        for _ in 0..3000 {
            let mut bad = bytes.clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bad.len() as u64) as usize;
                bad[at] = rng.next_u32() as u8;
            }
            let mut got = Vec::new();
            if unpack(&members, 100, &bad, &mut got).is_ok() {
                // Whatever reads is spikes that could have been.
                assert!(got.iter().all(|s| s.step < 100 && u64::from(s.cell) < plan.cells()));
            }
        }
    }
    // Lists while few fire, bits when many do: never more than these.
    assert!(sizes[1] < sizes[2] && sizes[3] == sizes[4] && sizes[4] == 14 + 10 * cells.len().div_ceil(8), "{sizes:?}");
    let foreign = layout.numbers(&plan, 2).next().unwrap();
    let list = |cell| vec![Spike { step: 99, cell }];
    let other = pack(&members, 1, 100, &list(foreign));
    assert!(other.is_err() || unpack(&members, 100, &other.unwrap(), &mut Vec::new()).is_err());
    assert!(pack(&members, 1, 99, &list(cells[0])).is_err());
    assert!(pack(&members, 1, 999, &list(cells[0])).is_err());
    let mut both = Vec::new();
    bundle(&mut both, &[1, 2, 3]);
    bundle(&mut both, &[]);
    assert_eq!(packets(&both).unwrap(), [&[1u8, 2, 3][..], &[]]);
    for end in [1, 3, 4, 6, 8, 10] {
        assert!(packets(&both[..end]).is_err(), "{end}");
    }
    let bytes = layout.to_bytes();
    for end in 0..bytes.len() {
        assert_eq!(Layout::from_bytes(&plan.network, &bytes[..end]), None, "{end}");
    }
}

#[test]
fn neighbours_know_each_other() {
    for (parts, nodes) in [(1, 1), (2, 1), (4, 2), (5, 2), (16, 4), (7, 7), (3, 9)] {
        for part in 0..parts {
            let near = neighbours(parts, nodes, part);
            assert!(near.iter().all(|n| *n != part && neighbours(parts, nodes, *n).contains(&part)), "{parts} {nodes}");
            assert!(parts == 1 || !near.is_empty());
        }
    }
    assert_eq!(neighbours(4, 2, 2), [3, 0]);
}
