//! Synapses that are drawn again at each spike: the spikes of those that are stored, bit for bit.

use super::learning_tests::{learning, run};
use super::parts::tests::everything;
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State};
use crate::pool;
use crate::spiking::connect::Redraw;
use crate::spiking::models;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Network, Outside, Population, Projection, Rule, Shape, Storage,
};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::Placement;
use std::sync::Arc;

/// With every projection that can be drawn again so, and how many these are.
pub(in crate::spiking) fn drawn(mut n: Network) -> (Network, usize) {
    let can: Vec<usize> = (0..n.projections.len()).filter(|i| n.projections[*i].not_procedural(&n).is_none()).collect();
    can.iter().for_each(|i| n.projections[*i].storage = Storage::Procedural);
    (n, can.len())
}

/// Every rule that can be drawn again, with and without autapses, between cells with one port and with two, from sources of every kind,
/// by rows shorter and longer than a batch; constant, normal, lognormal and uniform weights of both signs and delays up to
/// `longest_ms`; beside two rules that cannot.
pub(super) fn network(size: u32, longest_ms: f64, seed: u64) -> Network {
    let mut n = Network::new(0.1, seed).unwrap();
    for (name, size, tau) in [("E", 4 * size, 0.5), ("I", size, 1.5)] {
        let lif = Population::new(name, models::find("lif_exp").unwrap(), size);
        let mut p = lif.parameter("tau_syn_in", tau).unwrap();
        p = p.parameter("I_e", Distribution::normal(250.0, 30.0)).unwrap();
        p.initial[0] = Distribution::normal(-58.0, 5.0);
        n.add(p);
    }
    n.add(Population::new("noise", models::find("poisson").unwrap(), 37).parameter("rate", 40.0).unwrap());
    let mut list = Population::new("list", models::find("spikes").unwrap(), size);
    list.replay = Some(Arc::new((0..2000u64).map(|k| (k * 5, (k * 7 % u64::from(size)) as u32)).collect()));
    n.add(list);
    let positive = |mean: f64| Distribution::normal(mean, mean / 5.0).within(0.0, f64::INFINITY, Outside::Redraw);
    let clipped = Distribution::normal(1.5, 0.75).within(0.1, longest_ms, Outside::Clip);
    let lognormal = Distribution::new(Shape::Lognormal { mu: 2.0, sigma: 0.4, negative: true });
    let few = 240.0 / f64::from(size);
    for (source, target, rule, weight, delay, autapses) in [
        (0, 0, Rule::OutDegree { count: 40, multapses: true }, positive(40.0), clipped, false),
        (
            0,
            1,
            Rule::OutDegree { count: 31, multapses: true },
            55.0.into(),
            Distribution::uniform(0.1, longest_ms),
            true,
        ),
        (1, 0, Rule::AllToAll, Distribution::uniform(-30.0 * few, -20.0 * few), 0.8.into(), true),
        (1, 1, Rule::AllToAll, lognormal.scaled(few), Distribution::uniform(0.1, 1.0), false),
        (2, 0, Rule::OutDegree { count: 300, multapses: true }, positive(20.0), Distribution::uniform(0.1, 1.0), true),
        (3, 1, Rule::OneToOne, positive(900.0), 0.3.into(), true),
        (0, 0, Rule::InDegree { count: 5, multapses: true }, positive(30.0), clipped, true),
        (1, 0, Rule::Probability(0.05), Distribution::uniform(-90.0, -50.0), 0.6.into(), true),
    ] {
        let (plasticity, storage, weight_bits) = (None, Storage::Stored, Default::default());
        let delay = Delay::Drawn(delay);
        n.projections.push(Projection {
            source,
            target,
            rule,
            weight,
            delay,
            autapses,
            plasticity,
            storage,
            weight_bits,
        });
    }
    for target in 0..2 {
        let kind = DriveKind::Poisson { rate_hz: 4000.0, weight: 45.0, start_ms: 0.0, stop_ms: f64::INFINITY };
        n.drives.push(Drive { target, kind });
    }
    n
}

/// Spikes, and the state at the end, of the CPU engine that stores every synapse.
pub(super) fn stored(plan: &Plan, pieces: &[u64]) -> (Vec<Spike>, State, u64, u64) {
    pool::set_num_threads(2);
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let spikes = run(&mut engine, pieces);
    let state = engine.state().unwrap();
    (spikes, state, engine.events(), engine.synapses())
}

#[test]
fn spikes_are_those_of_stored_synapses_for_any_threads_shards_and_pieces() {
    let steps = 26_000;
    let plan = Plan::new(network(60, 6.0, 3)).unwrap();
    let mut law = Vec::new();
    Reference::in_f32(&plan).unwrap().advance(4000, &mut law).unwrap();
    let want = stored(&plan, &[steps]);
    assert!(law.len() > 500 && want.0.starts_with(&law), "stored synapses differ from the law");
    assert!(want.0.len() >= 10_000, "only {} spikes", want.0.len());
    for (first, p) in plan.first.iter().zip(&plan.network.populations) {
        let own = *first..*first + u64::from(p.size);
        assert!(want.0.iter().filter(|s| own.contains(&s.cell.into())).count() > 300, "{} is silent", p.name);
    }
    let (network, count) = drawn(plan.network.clone());
    assert_eq!(count, 6);
    let again = Plan::new(network).unwrap();
    // The law stores what the engine draws again.
    let mut same = Vec::new();
    Reference::in_f32(&again).unwrap().advance(2000, &mut same).unwrap();
    assert!(law.starts_with(&same));
    for (threads, shards, pieces) in
        [(1, 1, vec![steps]), (2, 2, vec![9000, steps - 9000]), (2, 5, vec![1, 2, 3, steps - 6])]
    {
        pool::set_num_threads(threads);
        let mut engine = CpuEngine::with_shards(&again, shards, &|_, _| ()).unwrap();
        let got = run(&mut engine, &pieces);
        let common = got.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
        assert!(got == want.0, "{engine:?}: {} spikes, not {}; {common} alike", got.len(), want.0.len());
        assert_eq!(engine.state().unwrap(), want.1);
        assert_eq!((engine.events(), engine.synapses()), (want.2, want.3));
        assert!(engine.config().contains("synapses drawn at each spike"), "{}", engine.config());
        let kept: usize = engine.shards().map(|s| s.rows.len()).sum();
        assert!(kept > 0 && (kept as f64) < 0.2 * want.3 as f64, "{kept} synapses are stored");
    }
}

/// Saved by one kind and gone on with by the other: what is under way is drawn again, or read again.
#[test]
fn a_run_goes_on_from_the_state_of_the_other_kind() {
    let plan = Plan::new(network(50, 20.0, 5)).unwrap();
    let again = Plan::new(drawn(plan.network.clone()).0).unwrap();
    assert_eq!(format!("{:?}", plan.network), format!("{:?}", again.network), "checkpoints know it by this");
    let steps = 12_000;
    let want = stored(&plan, &[steps]);
    assert!(want.0.len() >= 5000, "only {} spikes", want.0.len());
    for (cut, from, to) in [(1, &again, &plan), (777, &again, &again), (4000, &plan, &again)] {
        let mut first = CpuEngine::with_shards(from, 3, &|_, _| ()).unwrap();
        let mut got = run(&mut first, &[cut]);
        let checkpoint = Checkpoint {
            fingerprint: [0; 32],
            state: first.state().unwrap(),
            hash: Default::default(),
            replicas: vec![],
            logged: 0,
            counts: vec![],
        };
        let read = Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap();
        let mut second = CpuEngine::with_shards(to, 4, &|_, _| ()).unwrap();
        // Whatever it did before is forgotten.
        run(&mut second, &[100]);
        second.restore(&read.state).unwrap();
        got.extend(run(&mut second, &[steps - cut]));
        assert!(got == want.0, "cut at {cut}");
        assert_eq!(second.state().unwrap(), want.1);
    }
}

/// Nothing is stored at all; and synapses that change beside some that are drawn again.
#[test]
fn networks_of_drawn_synapses_alone_and_beside_changing_ones_have_the_same_spikes() {
    let mut alone = network(40, 3.0, 9);
    alone.projections.truncate(6);
    let mut beside =
        learning(60, 21, [Placement::Dendritic, Placement::Axonal, Placement::Axonal, Placement::Dendritic]);
    assert!(matches!(beside.projections[3].rule, Rule::OutDegree { .. }) && beside.projections[3].plasticity.is_none());
    beside.projections[3].autapses = true;
    for (network, steps) in [(alone, 6000), (beside, 4000), (everything(), 1200)] {
        let plan = Plan::new(network).unwrap();
        let (network, count) = drawn(plan.network.clone());
        assert!(count > 0);
        let again = Plan::new(network).unwrap();
        let want = stored(&plan, &[steps]);
        assert!(want.0.len() > 1000, "only {} spikes", want.0.len());
        let got = stored(&again, &[steps / 2, steps - steps / 2]);
        assert!(
            got == want,
            "{} of {} projections: {} spikes, not {}",
            count,
            plan.efficacies.len(),
            got.0.len(),
            want.0.len()
        );
    }
}

#[test]
fn what_cannot_be_drawn_again_is_refused_in_a_sentence() {
    let one = |change: &dyn Fn(&mut Projection)| {
        let mut n = network(20, 3.0, 1);
        n.projections.truncate(1);
        change(&mut n.projections[0]);
        n.projections[0].storage = Storage::Procedural;
        Plan::new(n).map(drop).map_err(|e| e.to_string()).err().unwrap_or_default()
    };
    assert_eq!(one(&|_| ()), "");
    let rule = |rule: Rule| one(&|p| p.rule = rule.clone());
    for (got, says) in [
        (rule(Rule::InDegree { count: 7, multapses: true }), "fixed_outdegree with outdegree = 7 has as many synapses"),
        (
            rule(Rule::Probability(0.1)),
            "fixed_probability draws the sources of a target, one after the other; fixed_outdegree with outdegree = 8",
        ),
        (
            rule(Rule::Total { count: 160, multapses: true }),
            "fixed_total draws the source of each synapse; fixed_outdegree with outdegree = 2",
        ),
        (rule(Rule::Total { count: 160, multapses: false }), "fixed_total"),
        (rule(Rule::OutDegree { count: 7, multapses: false }), "multapses = true can"),
        (rule(Rule::Edges(Arc::new(vec![]))), "those of a list are not drawn"),
        (
            one(&|p| p.plasticity = learning(20, 21, [Placement::Axonal; 4]).projections[0].plasticity),
            "forgets what plasticity made",
        ),
    ] {
        assert!(got.starts_with("projection E -> E: synapses = \"procedural\" ") && got.contains(says), "{got}");
        assert!(got.ends_with("or let it be synapses = \"stored\""), "{got}");
    }
    let mut n = everything();
    let near = n.projections.iter().position(|p| matches!(p.rule, Rule::Distance { .. })).unwrap();
    n.projections[near].storage = Storage::Procedural;
    assert!(Plan::new(n.clone()).unwrap_err().to_string().contains("those that follow from distances are not drawn"));
    n.projections[near].delay = Delay::Drawn(1.0.into());
    assert!(Plan::new(n).unwrap_err().to_string().contains("distance looks for the sources near a target"));
}

/// Inputs that can add up beyond 32 bits are refused, stored or drawn, by the same sentence.
#[test]
fn inputs_of_drawn_synapses_can_be_too_much_too() {
    let heavy = |storage| {
        let mut n = Network::new(0.1, 1).unwrap();
        n.add(Population::new("A", models::find("poisson").unwrap(), 200_000));
        n.add(Population::new("B", models::find("lif_exp").unwrap(), 1));
        n.projections.push(Projection {
            source: 0,
            target: 1,
            rule: Rule::AllToAll,
            weight: 1.0.into(),
            delay: Delay::Drawn(1.0.into()),
            autapses: true,
            plasticity: None,
            storage,
            weight_bits: Default::default(),
        });
        let plan = Plan::new(n).unwrap();
        CpuEngine::new(&plan, &|_, _| ()).map(drop).unwrap_err().to_string()
    };
    let (a, b) = (heavy(Storage::Stored), heavy(Storage::Procedural));
    assert!(a.contains("population B: the inputs of a cell can add up to") && a == b, "{a}\n{b}");
}

/// What is drawn again takes no memory, is offered where memory is short, and is chosen where that is left to it.
#[test]
fn memory_is_reckoned_without_drawn_synapses_and_decides_where_it_may() {
    let size = 1_000_000;
    let mut n = Network::new(0.1, 1).unwrap();
    n.add(Population::new("E", models::find("lif_exp").unwrap(), size));
    for (count, storage) in [(8000, Storage::Auto), (1000, Storage::Stored), (3000, Storage::Procedural)] {
        n.projections.push(Projection {
            source: 0,
            target: 0,
            rule: Rule::OutDegree { count, multapses: true },
            weight: 1.0.into(),
            delay: Delay::Drawn(1.0.into()),
            autapses: true,
            plasticity: None,
            storage,
            weight_bits: Default::default(),
        });
    }
    let mut plan = Plan::new(n).unwrap();
    let kept = [Redraw::Nothing, Redraw::Asked, Redraw::Possible].map(|r| plan.expected_kept(r));
    assert_eq!(kept, [12e9, 9e9, 1e9]);
    let gb = [Redraw::Nothing, Redraw::Asked, Redraw::Possible].map(|r| plan.bytes(1.0, r) as f64 / 1e9);
    assert!((72.0..73.0).contains(&gb[0]) && (54.0..55.0).contains(&gb[1]) && (6.0..7.0).contains(&gb[2]), "{gb:?}");
    assert_eq!(plan.choose_redraw(|r| plan.bytes(1.0, r) < 60_000_000_000), Redraw::Asked);
    assert_eq!(plan.choose_redraw(|r| plan.bytes(1.0, r) < 50_000_000_000), Redraw::Possible);
    let hint = plan.procedural_hint(Redraw::Asked);
    assert!(
        hint.contains("synapses = \"procedural\" in 2 projections, of which E -> E is the largest, draws 9.000e9"),
        "{hint}"
    );
    let e = plan.require_memory(1e6, Redraw::Asked).unwrap_err().to_string();
    assert!(e.ends_with(&hint), "{e}");
    plan.network.projections.iter_mut().for_each(|p| p.storage = Storage::Stored);
    assert_eq!(plan.choose_redraw(|_| false), Redraw::Asked);
    // What leaves it to the memory is stored where it cannot be drawn again.
    plan.network.projections[0].storage = Storage::Auto;
    plan.network.projections[0].rule = Rule::InDegree { count: 8000, multapses: true };
    assert_eq!((plan.choose_redraw(|_| false), plan.draws_any(Redraw::Possible)), (Redraw::Possible, false));
    assert!(plan.procedural_hint(Redraw::Possible).contains("in 2 projections"));
}
