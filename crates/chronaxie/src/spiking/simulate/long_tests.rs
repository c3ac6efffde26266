//! Weights of 32 bits: what they are, and engines against the law and against each other.

use super::learning_tests::{learning, run, strengths};
use super::parts::tests::everything;
use super::procedural_tests::{drawn, network, stored};
use super::tests::{balanced, joined};
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State, by_replica};
use crate::pool;
use crate::spiking::connect::synapses;
use crate::spiking::draws::{Purpose, draw};
use crate::spiking::life::{Living, Make};
use crate::spiking::models;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Edge, Lifecycle, Network, Outside, Population, Projection, Rule, Shape,
    WeightBits,
};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::Placement;
use std::sync::Arc;

/// With weights of 32 bits, which are no multiples of anything round, in every `every`-th projection whose synapses do not change.
pub(in crate::spiking) fn long(mut n: Network, every: usize) -> Network {
    for p in n.projections.iter_mut().filter(|p| p.plasticity.is_none()).step_by(every) {
        p.weight_bits = WeightBits::ThirtyTwo;
        p.weight = p.weight.scaled(1.0 + 1.0 / 7.3);
        if let Rule::Edges(edges) = &p.rule {
            let scaled = |e: &Edge| Edge { weight: e.weight * 1.137, ..*e };
            p.rule = Rule::Edges(Arc::new(edges.iter().map(scaled).collect()));
        }
    }
    n
}

/// The weights of a projection by source and target.
fn weights(plan: &Plan, projection: usize) -> Vec<(u32, u32, f32)> {
    let table = synapses(plan, projection).unwrap();
    table.source.into_iter().zip(table.target).zip(table.weight).map(|((s, t), w)| (s, t, w)).collect()
}

/// A lognormal of which the largest weight is sixty thousand times the mean one: 16 bits refuse it, 32 have its mean, and each weight is
/// the quantile of the bits that it is drawn by.
#[test]
fn a_heavy_tail_that_16_bits_refuse_has_its_weights_in_32() {
    let heavy = Distribution::new(Shape::Lognormal { mu: -1.0, sigma: 2.5, negative: false });
    let network = |bits| {
        let mut n = Network::new(0.1, 3).unwrap();
        n.add(Population::new("E", models::find("lif_exp").unwrap(), 700));
        n.projections.push(Projection { weight_bits: bits, ..joined(heavy) });
        n
    };
    let e = Plan::new(network(WeightBits::Sixteen)).unwrap_err().to_string();
    assert!(
        e.contains("projection E -> E: weights of 8.3729 in units of") && e.contains("or say weight_bits = 32"),
        "{e}"
    );
    let plan = Plan::new(network(WeightBits::ThirtyTwo)).unwrap();
    let own = &plan.quantisation()[0];
    assert!(own.unit < 1e-2 && own.unit == plan.units[0][0] && plan.shifts[0][0] > 8, "{own:?} {:?}", plan.shifts);
    let largest = heavy.quantile(1.0 - 1e-10);
    assert!((own.largest_error - largest / 2f64.powi(25)).abs() < 1e-12 * largest, "{own:?}");
    let all = weights(&plan, 0);
    assert_eq!(all.len(), 490_000);
    for (s, t, w) in all.iter().step_by(997) {
        let key = plan.network.projection_key(0);
        let bits = draw(key.seed, Purpose::Efficacy, key.owner, u64::from(*t) * 700 + u64::from(*s))[0];
        let want = heavy.quantile((f64::from(bits) + 0.5) / 4_294_967_296.0);
        assert!((f64::from(*w) - want).abs() <= 1e-5 * want + own.unit, "{s} -> {t}: {w} {want}");
    }
    let n = all.len() as f64;
    let mean = all.iter().map(|x| f64::from(x.2)).sum::<f64>() / n;
    let variance = all.iter().map(|x| (f64::from(x.2) - mean).powi(2)).sum::<f64>() / n;
    assert!((mean - heavy.mean()).abs() < 4.0 * (variance / n).sqrt(), "{mean} {}", heavy.mean());
    // Shares below a value are known better.
    for p in [0.1, 0.5, 0.9, 0.99, 0.999, 0.9999] {
        // Between two numbers.
        let at = ((heavy.quantile(p) / own.unit).round() + 0.5) * own.unit;
        let below = all.iter().filter(|x| f64::from(x.2) <= at).count() as f64 / n;
        let want = heavy.cdf(at);
        assert!((below - want).abs() < 4.0 * (want * (1.0 - want) / n).sqrt() + 1e-5, "{p}: {below} {want}");
    }
    let mut engine = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    assert!(engine.shards().all(|s| s.rows.long.len() > 200_000 && s.rows.synapses.is_empty()));
    assert_eq!(engine.table(0).unwrap(), synapses(&plan, 0).unwrap());
    engine.advance(1, &mut Vec::new()).unwrap();
}

/// Weights of lists are single precision's own, and constants as near as that.
#[test]
fn weights_of_32_bits_are_single_precisions() {
    let mut n = Network::new(0.1, 3).unwrap();
    for (name, model) in [("A", "lif_exp"), ("B", "lif_exp"), ("C", "lif_cond")] {
        n.add(Population::new(name, models::find(model).unwrap(), 50));
    }
    let weight = |k: u32| (f64::from(k) * 0.37).sin() as f32 * 10f32.powi(k as i32 % 4);
    let edge = |k: u32| Edge { source: k % 50, target: k * 7 % 50, weight: weight(k), delay_ms: 1.0 };
    let edges: Vec<Edge> = (0..400).map(edge).collect();
    n.projections.push(Projection {
        target: 1,
        rule: Rule::Edges(Arc::new(edges.clone())),
        weight_bits: WeightBits::ThirtyTwo,
        ..joined(0.0.into())
    });
    n.projections.push(Projection { target: 2, weight_bits: WeightBits::ThirtyTwo, ..joined((2.0 / 3.0).into()) });
    let plan = Plan::new(n.clone()).unwrap();
    for (e, (s, t, w)) in edges.iter().zip(weights(&plan, 0)) {
        let exact = (e.source, e.target) == (s, t) && (e.weight - w).abs() as f64 <= plan.units[1][0] / 2.0;
        // What is large against the unit is the list's to the bit.
        assert!(exact && (e.weight == w || (w.abs() as f64) < plan.units[1][0] * 2f64.powi(24)), "{e:?} {w}");
    }
    assert!(edges.iter().zip(weights(&plan, 0)).filter(|(e, got)| e.weight == got.2).count() > 150);
    assert!(weights(&plan, 1).iter().all(|x| x.2 == 2.0 / 3.0), "{:?}", plan.quantisation()[1]);
    // A network knows how precise its weights are, and one without such says nothing of it.
    let mut other = n.clone();
    other.projections.iter_mut().for_each(|p| p.weight_bits = WeightBits::Sixteen);
    assert!(format!("{n:?}").contains("weight_bits: ThirtyTwo") && !format!("{other:?}").contains("weight_bits"));
}

/// Where projections of 16 and of 32 bits meet, the former and drives have the weights that they have without the latter.
#[test]
fn what_has_16_bits_keeps_its_weights_beside_what_has_32() {
    let n = balanced(60, 5);
    let mut own = n.clone();
    own.projections[0].weight_bits = WeightBits::ThirtyTwo;
    own.projections[3].weight_bits = WeightBits::ThirtyTwo;
    let [plan, other] = [&n, &own].map(|n| Plan::new(n.clone()).unwrap());
    for i in [1, 2] {
        assert_eq!(weights(&plan, i), weights(&other, i), "{i}");
        assert_eq!(plan.quantisation()[i], other.quantisation()[i]);
    }
    for i in [0, 3] {
        let [coarse, fine] = [&plan, &other].map(|p| (p.quantisation()[i].unit, weights(p, i)));
        assert!(fine.0 * 64.0 < coarse.0 && fine.1 != coarse.1, "{} {}", fine.0, coarse.0);
        let near = |(a, b): (&(u32, u32, f32), &(u32, u32, f32))| {
            (a.0, a.1) == (b.0, b.1) && f64::from((a.2 - b.2).abs()) <= coarse.0 * 0.75
        };
        assert!(fine.1.iter().zip(&coarse.1).all(near));
    }
    for (a, b) in plan.poisson.iter().zip(&other.poisson) {
        let unit = |plan: &Plan| plan.units[a.target][a.port];
        assert_eq!(f64::from(a.code) * unit(&plan), f64::from(b.code) * unit(&other));
    }
}

/// The unit is the finest at which the sums that are known fit, and what does not fit in any is refused.
#[test]
fn sums_near_the_bound_are_refused() {
    let network = |count: u32, weight: f64, bits| {
        let mut n = Network::new(0.1, 3).unwrap();
        n.add(Population::new("E", models::find("lif_exp").unwrap(), 4));
        let rule = Rule::InDegree { count, multapses: true };
        n.projections.push(Projection { rule, weight_bits: bits, ..joined(weight.into()) });
        n
    };
    let built = |n: Network| {
        let plan = Plan::new(n).unwrap();
        let shift = plan.shifts[0][0];
        CpuEngine::with_shards(&plan, 1, &|_, _| ()).map(|_| shift).map_err(|e| e.to_string())
    };
    let long = WeightBits::ThirtyTwo;
    // 32,767 times 65,538 is the largest sum; then by halves and one input more.
    assert_eq!(built(network(65_538, 32_767.0, long)), Ok(0));
    let e = built(network(65_539, 32_767.0, long)).unwrap_err();
    assert!(e.contains("the inputs of a cell can add up to 2147516413 units, which is more than 32 bits hold"), "{e}");
    assert_eq!(built(network(65_539, 32_767.0, WeightBits::Sixteen)).unwrap_err(), e);
    for (count, shift) in [(32_769, 0), (32_768, 1), (16_000, 2), (1000, 6), (2, 15), (1, 16)] {
        assert_eq!(built(network(count, 32_767.0, long)), Ok(shift), "{count}");
    }
    // A drive that grows beyond it is for a new engine to refuse.
    let driven = |rate_hz| {
        let mut n = network(30_000, 32_767.0, long);
        let kind = DriveKind::Poisson { rate_hz, weight: 32_767.0, start_ms: 0.0, stop_ms: f64::INFINITY };
        n.drives.push(Drive { target: 0, kind });
        n
    };
    let plan = Plan::new(driven(1000.0)).unwrap();
    let mut engine = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    let more = |rate: f64| {
        let mut n = driven(rate);
        n.drives.push(n.drives[0]);
        plan.redriven((0..60).fold(n, |mut n, _| {
            n.drives.push(n.drives[0]);
            n
        }))
    };
    assert!(engine.redrive(&plan.redriven(driven(2000.0)).unwrap()).unwrap());
    assert!(!engine.redrive(&more(3_000_000.0).unwrap()).unwrap());
    // Synapses that change have their own.
    let mut n = learning(10, 21, [Placement::Dendritic; 4]);
    n.projections[1].weight_bits = long;
    let e = Plan::new(n).unwrap_err().to_string();
    assert!(e.contains("projection E -> I: weight_bits = 32 is of weights that do not change"), "{e}");
}

fn through_bytes(state: State) -> State {
    let (hash, replicas, counts) = (Default::default(), vec![], vec![]);
    let checkpoint = Checkpoint { fingerprint: [0; 32], state, hash, replicas, logged: 0, counts };
    Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap().state
}

/// The law with the models' bodies, and the engine by threads, shards and pieces, and from a checkpoint of another: the same spikes, at
/// least `least`, and the same states.
fn are_the_laws(n: Network, steps: u64, least: usize) -> (Vec<Spike>, State) {
    let plan = Plan::new(n).unwrap();
    assert!(plan.has_long(|_| true));
    let (mut want, mut law) = (Vec::new(), Reference::in_f32(&plan).unwrap());
    law.advance(steps, &mut want).unwrap();
    assert!(want.len() >= least, "only {} spikes", want.len());
    let mut state: Option<State> = None;
    for (threads, shards, pieces) in
        [(1, 1, vec![steps]), (2, 5, vec![1, 2, 3, steps - 6]), (3, 3, vec![steps / 2 + 1, steps - steps / 2 - 1])]
    {
        pool::set_num_threads(threads);
        let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
        let got = run(&mut engine, &pieces);
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(got == want, "{threads} threads: {} spikes, not {}, {common} alike", got.len(), want.len());
        assert_eq!(engine.events(), law.events());
        let own = engine.state().unwrap();
        assert!(state.as_ref().is_none_or(|s| *s == own));
        state = Some(own);
    }
    let state = state.unwrap();
    for (p, variables) in state.variables.iter().enumerate() {
        for (c, of) in law.states(p).iter().enumerate() {
            assert!(variables.iter().zip(of).all(|(v, x)| f64::from(v[c]) == *x), "cell {c} of population {p}");
        }
    }
    if let Some(learned) = &state.learned {
        assert!(learned.strengths == strengths(&plan, &law));
    }
    pool::set_num_threads(2);
    let mut first = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    let mut got = run(&mut first, &[steps / 3]);
    let mut second = CpuEngine::with_shards(&plan, 4, &|_, _| ()).unwrap();
    run(&mut second, &[50]);
    second.restore(&through_bytes(first.state().unwrap())).unwrap();
    got.extend(run(&mut second, &[steps - steps / 3]));
    assert!(got == want && second.state().unwrap() == state, "from a checkpoint");
    (want, state)
}

/// All weights of 32 bits, and every other projection's; beside synapses that change by every rule.
#[test]
fn spikes_of_32_bits_are_the_laws_for_any_threads_shards_and_pieces() {
    let (all, _) = are_the_laws(long(balanced(100, 7), 1), 8000, 5000);
    let (some, _) = are_the_laws(long(balanced(100, 7), 2), 2500, 1000);
    assert!(all[..1000] != some[..1000]);
    let mut beside =
        learning(40, 22, [Placement::Dendritic, Placement::Axonal, Placement::Axonal, Placement::Dendritic]);
    for i in 0..4 {
        let p = &beside.projections[i];
        let (weight, rule) = (p.weight.scaled(0.4), Rule::InDegree { count: 30, multapses: true });
        beside.projections.push(Projection { weight, rule, plasticity: None, ..p.clone() });
    }
    are_the_laws(long(beside, 1), 5000, 1000);
    are_the_laws(long(everything(), 1), 800, 1000);
}

/// A network of heavy tails with spikes of its own, in which 16 bits would refuse all weights.
#[test]
fn spikes_of_heavy_tails_are_the_laws() {
    let mut n = balanced(80, 9);
    n.populations = n.populations.into_iter().map(|p| p.parameter("I_e", 500.0).unwrap()).collect();
    for (i, p) in n.projections.iter_mut().enumerate() {
        let negative = i >= 2;
        // Means as before.
        let mu = p.weight.mean().abs().ln() - 0.5 * 2.2 * 2.2;
        p.weight = Distribution::new(Shape::Lognormal { mu, sigma: 2.2, negative });
    }
    let e = Plan::new(n.clone()).unwrap_err().to_string();
    assert!(e.contains("or say weight_bits = 32"), "{e}");
    n.projections.iter_mut().for_each(|p| p.weight_bits = WeightBits::ThirtyTwo);
    are_the_laws(n, 8000, 5000);
}

/// Drawn again at each spike, and stored.
#[test]
fn spikes_of_32_bits_that_are_drawn_again_are_those_of_stored_ones() {
    let n = long(network(60, 6.0, 3), 2);
    let plan = Plan::new(n.clone()).unwrap();
    let want = stored(&plan, &[9000]);
    assert!(want.0.len() >= 3000, "only {} spikes", want.0.len());
    let again = Plan::new(drawn(n).0).unwrap();
    for (threads, shards) in [(1, 1), (2, 3)] {
        pool::set_num_threads(threads);
        let mut engine = CpuEngine::with_shards(&again, shards, &|_, _| ()).unwrap();
        let got = run(&mut engine, &[4000, 5000]);
        assert!(got == want.0 && engine.state().unwrap() == want.1, "{threads} threads");
        assert_eq!((engine.events(), engine.synapses()), (want.2, want.3));
    }
}

/// Cells that die and are born, whose weights mutate.
#[test]
fn spikes_of_32_bits_of_cells_that_die_are_the_laws() {
    let mut n = long(balanced(80, 7), 2);
    n.lifecycle = Some(Lifecycle {
        initial_age_ms: Distribution::uniform(0.0, 300.0),
        mutation_std_params: 0.02,
        mutation_std_weights: n.projections.iter().map(|p| 0.1 * p.weight.mean().abs()).collect(),
        interval_ms: 2.5,
        ..Lifecycle::new(&n, 300.0)
    });
    let plan = Plan::new(n.clone()).unwrap();
    assert!(plan.has_long(|_| true));
    let (mut want, mut law) = (Vec::new(), Reference::in_f32(&plan).unwrap());
    law.advance(9000, &mut want).unwrap();
    assert!(want.len() >= 5000, "only {} spikes", want.len());
    let mut tables = Vec::new();
    for shards in [1, 3] {
        pool::set_num_threads(shards);
        let make: Make = Box::new(move |plan| Ok(Box::new(CpuEngine::with_shards(plan, shards, &|_, _| ())?)));
        let mut engine = Living::new(n.clone(), make).unwrap();
        let got = run(&mut engine, &[1, 4000, 4999]);
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(got == want, "{} spikes, not {}, {common} alike", got.len(), want.len());
        tables.push(engine.table(0).unwrap());
    }
    let begun = synapses(&plan, 0).unwrap();
    assert!(tables[0] == tables[1] && tables[0].weight != begun.weight);
}

/// Side by side, each has the spikes of a run of its own.
#[test]
fn replicas_of_32_bits_have_the_spikes_of_runs_of_their_own() {
    let networks = [long(balanced(40, 7), 2), long(balanced(40, 8), 1), balanced(40, 9)];
    let plan = Plan::new(Network::together(&networks).unwrap()).unwrap();
    pool::set_num_threads(2);
    let all = run(&mut CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap(), &[4000]);
    let mut apart = vec![Vec::new(); 3];
    by_replica(&plan.network, &all, &mut apart);
    for (n, own) in networks.into_iter().zip(apart) {
        let alone = run(&mut CpuEngine::with_shards(&Plan::new(n).unwrap(), 2, &|_, _| ()).unwrap(), &[4000]);
        assert!(alone.len() > 200 && alone == own, "{} spikes, not {}", own.len(), alone.len());
    }
}

/// What can be known before is what is there: a clipped tail, delays by distance, both signs into one port.
#[test]
fn units_are_as_fine_as_the_sums_allow() {
    let mut n = Network::new(0.1, 3).unwrap();
    n.add(Population::new("E", models::find("lif_exp").unwrap(), 500));
    let one = |weight: Distribution, count| Projection {
        rule: Rule::InDegree { count, multapses: true },
        weight_bits: WeightBits::ThirtyTwo,
        delay: Delay::Drawn(1.0.into()),
        ..joined(weight)
    };
    let heavy = Distribution::new(Shape::Lognormal { mu: 0.0, sigma: 1.5, negative: false });
    for (weight, count) in [
        (heavy, 100),
        (heavy.within(0.0, 50.0, Outside::Clip), 400),
        (Distribution::normal(1.0, 3.0), 300),
        (Distribution::uniform(0.0, 1.0), 20),
    ] {
        let mut n = n.clone();
        n.projections.push(one(weight, count));
        let plan = Plan::new(n).unwrap();
        let engine = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        let heaviest = f64::from(engine.shards().map(|s| s.rows.heaviest).max().unwrap());
        // Of what there is and of two of the largest weight: a bit of margin, one since the unit is a power of two, and two since the
        // heaviest cell is not what might have been.
        let might = 2.0 * weight.quantile(1.0 - 1e-10) / plan.units[0][0];
        let unused = (f64::from(i32::MAX) / heaviest.max(might)).log2();
        assert!((0.0..4.0).contains(&unused), "{weight:?}: {unused} bits are unused, of {:?}", plan.shifts);
        assert!(plan.shifts[0][0] >= 8, "{:?}", plan.shifts);
    }
}
