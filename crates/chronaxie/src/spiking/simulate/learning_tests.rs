//! Synapses that change: the lazy engine against the law that puts nothing off, and against itself.

use super::tests::balanced;
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State};
use crate::pool;
use crate::spiking::network::Network;
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::{Dependence, Pairs, Placement, Plasticity, ShortTerm, Stdp};

/// A balanced network whose four projections each change by a rule of their own; `placement` decides where delays lie.
pub(super) fn learning(size: u32, seed: u64, placement: [Placement; 4]) -> Network {
    let mut n = balanced(size, seed);
    let rule = |w_max: f64, dependence, pairs, placement| Stdp {
        a_plus: 0.02,
        a_minus: 0.023,
        tau_plus_ms: 20.0,
        tau_minus_ms: 15.0,
        w_min: 0.0,
        w_max,
        dependence,
        pairs,
        placement,
    };
    let depressing = ShortTerm { u: 0.5, tau_rec_ms: 30.0, tau_fac_ms: 0.0 };
    let facilitating = ShortTerm { u: 0.6, tau_rec_ms: 5.0, tau_fac_ms: 100.0 };
    let stdp = [
        rule(160.0, Dependence::Multiplicative, Pairs::All, placement[0]),
        rule(120.0, Dependence::Additive, Pairs::Nearest, placement[1]),
        Stdp { tau_plus_ms: 15.0, ..rule(800.0, Dependence::Mixed, Pairs::All, placement[2]) },
        rule(700.0, Dependence::Multiplicative, Pairs::Nearest, placement[3]),
    ];
    for (p, s) in n.projections.iter_mut().zip(stdp) {
        p.plasticity = Some(Plasticity::stdp(s));
    }
    n.projections[1].plasticity = Some(Plasticity::stdp(stdp[1]).and_short_term(facilitating));
    n.projections[3].plasticity = if seed.is_multiple_of(2) { Some(Plasticity::short_term(depressing)) } else { None };
    n
}

const DENDRITIC: [Placement; 4] = [Placement::Dendritic; 4];
const AXONAL: [Placement; 4] = [Placement::Axonal; 4];
const BOTH: [Placement; 4] = [Placement::Dendritic, Placement::Axonal, Placement::Axonal, Placement::Dendritic];

pub(super) fn run(engine: &mut dyn Engine, pieces: &[u64]) -> Vec<Spike> {
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    spikes
}

/// Strengths of the law, in the order of a state.
pub(super) fn strengths(plan: &Plan, reference: &Reference<'_>) -> Vec<u32> {
    let mut all: Vec<(u32, u16, u16, u32, u32)> = Vec::new();
    for (source, target, delay, rule, w) in reference.weights() {
        let p = plan.first.partition_point(|first| *first <= u64::from(target)) - 1;
        let unit = plan.coarse_unit(p, plan.port(p, plan.learning.as_ref().unwrap().rules[usize::from(rule)].sign < 0));
        all.push((source, delay, rule, target, (w.abs() / unit * 65_536.0).round() as u32));
    }
    all.sort_unstable();
    all.into_iter().map(|x| x.4).collect()
}

/// What puts nothing off, in whole numbers, and the engine with 1, 2 and 3 threads, several shards, sweeps between, and steps
/// in pieces: the same spikes, thousands, and the same weights at the end. Threads that meet every step wait long where
/// others work: more than one in one network each.
#[test]
fn weights_and_spikes_are_the_same_bits_however_the_work_is_cut() {
    for (seed, placement, many) in [(21, DENDRITIC, 3), (22, AXONAL, 1), (24, BOTH, 2)] {
        let plan = Plan::new(learning(100, seed, placement)).unwrap();
        let steps = 6000;
        let mut want = Vec::new();
        let mut law = Reference::in_f32(&plan).unwrap();
        // Weights of steps in between, when spikes are under way everywhere.
        law.advance(3000, &mut want).unwrap();
        let between = strengths(&plan, &law);
        law.advance(steps - 3000, &mut want).unwrap();
        let end = strengths(&plan, &law);
        assert!(want.len() >= 3500, "only {} spikes", want.len());
        assert!(between != end);
        let mut state: Option<State> = None;
        for (threads, shards, sweep, pieces) in [
            (1, 1, usize::MAX, vec![3000, steps - 3000]),
            (1, 5, 0, vec![1, 2, 3, 4, 2990, steps - 3000]),
            (many, 3, 300, vec![3000, 2000, steps - 5000]),
        ] {
            pool::set_num_threads(threads);
            let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
            engine.sweep_after(sweep);
            let split = pieces
                .iter()
                .scan(0, |at, n| {
                    *at += n;
                    Some(*at)
                })
                .position(|at| at == 3000)
                .unwrap()
                + 1;
            let mut got = run(&mut engine, &pieces[..split]);
            let what = format!("{placement:?}, {threads} threads, {shards} shards");
            assert!(engine.state().unwrap().learned.unwrap().strengths == between, "{what}: weights at 3000");
            got.extend(run(&mut engine, &pieces[split..]));
            let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
            assert!(got == want, "{what}: {} spikes, not {}, {common} alike", got.len(), want.len());
            assert_eq!(engine.events(), law.events(), "{what}");
            let own = engine.state().unwrap();
            assert!(own.learned.as_ref().unwrap().strengths == end, "{what}: weights");
            assert!(state.as_ref().is_none_or(|s| *s == own), "{what}: state");
            state = Some(own);
        }
    }
}

/// A state that goes through a checkpoint's bytes into an engine of another shape, cut where nothing and where everything is
/// under way: the same spikes, weights and state from there on.
#[test]
fn a_resumed_run_has_the_same_weights() {
    for (seed, placement, cuts) in [(31, DENDRITIC, [1, 777]), (32, AXONAL, [2, 6002]), (34, BOTH, [0, 777])] {
        let plan = Plan::new(learning(100, seed, placement)).unwrap();
        // Threads that meet every step wait long where others work.
        pool::set_num_threads(1);
        let mut whole = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
        let want = run(&mut whole, &[12_000]);
        assert!(want.len() >= 10_000, "only {} spikes", want.len());
        for cut in cuts {
            let mut first = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
            first.sweep_after(2000);
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
            let mut second = CpuEngine::with_shards(&plan, 4, &|_, _| ()).unwrap();
            run(&mut second, &[100]);
            second.restore(&read.state).unwrap();
            assert!(second.state().unwrap() == read.state, "cut at {cut}: the state that was restored");
            got.extend(run(&mut second, &[12_000 - cut]));
            assert!(got == want, "cut at {cut}, {placement:?}");
            assert!(second.state().unwrap() == whole.state().unwrap(), "cut at {cut}");
        }
        // What no state of this network is.
        let good = whole.state().unwrap();
        let spoil = |with: &dyn Fn(&mut super::Learned)| {
            let mut bad = good.clone();
            with(bad.learned.as_mut().unwrap());
            bad
        };
        for bad in [
            spoil(&|l| l.strengths.truncate(9)),
            spoil(&|l| l.strengths[5] = u32::MAX),
            spoil(&|l| l.entries[3][0] = 11_999),
            spoil(&|l| l.entries[0].truncate(1)),
            spoil(&|l| l.under_way.push((0, 1 << 50, 1))),
            State { learned: None, ..good.clone() },
        ] {
            assert!(whole.restore(&bad).is_err());
        }
    }
}

/// In f64 and in whole numbers the spikes are the same until rounding decides one otherwise; the weights they lead to are alike
/// as distributions.
#[test]
fn the_law_of_weights_and_the_engine_begin_alike_and_stay_alike() {
    let plan = Plan::new(learning(100, 25, BOTH)).unwrap();
    let mut law = Reference::new(&plan).unwrap();
    let mut spikes = Vec::new();
    law.advance(12_000, &mut spikes).unwrap();
    pool::set_num_threads(2);
    let mut engine = CpuEngine::new(&plan, &|_, _| ()).unwrap();
    let before = engine.weights().unwrap();
    let got = run(&mut engine, &[12_000]);
    let common = spikes.iter().zip(&got).take_while(|(a, b)| a == b).count();
    assert!(common >= 100, "the first {common} spikes are alike");
    let (a, b) = (spikes.len() as f64, got.len() as f64);
    assert!((a - b).abs() < 3.0 * (a + b).sqrt(), "{a} and {b} spikes");
    let after = engine.weights().unwrap();
    assert_eq!(after.len(), 3);
    for (before, after) in before.iter().zip(&after) {
        let name = |cell: u32| plan.first.partition_point(|f| *f <= u64::from(cell)) - 1;
        let of = |s: u32, t: u32| {
            let names = [s, t].map(|c| plan.network.populations[name(c)].name.clone());
            names.join(" -> ")
        };
        let own: Vec<f64> = law.weights().iter().filter(|w| of(w.0, w.1) == after.projection).map(|w| w.4).collect();
        assert_eq!(own.len() as u64, after.count);
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        let sd = (own.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / own.len() as f64).sqrt();
        // Two runs that part have weights as unlike as two samples; ten standard errors, since weights go together.
        let error = 10.0 * sd / (own.len() as f64).sqrt();
        assert!((mean - after.mean).abs() < error, "{}: {mean}, not {after:?}", after.projection);
        assert!((sd - after.sd).abs() < error, "{}: {sd}, not {after:?}", after.projection);
        assert!((after.mean - before.mean).abs() + (after.sd - before.sd).abs() > error, "{before:?} {after:?}");
        assert!(after.quantiles.is_sorted(), "{after:?}");
        let inside = own.iter().filter(|w| **w <= after.quantiles[3] + 1e-9).count() as f64 / own.len() as f64;
        assert!((inside - 0.5).abs() < 0.05, "{inside} of the law's weights lie below the median");
    }
}

/// Before rounding parts the runs, weights are the law's to what roundings add up to.
#[test]
fn weights_follow_the_law_while_spikes_are_the_same() {
    let plan = Plan::new(learning(60, 27, DENDRITIC)).unwrap();
    pool::set_num_threads(1);
    let mut engine = CpuEngine::new(&plan, &|_, _| ()).unwrap();
    let mut law = Reference::new(&plan).unwrap();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut same = 0;
    for _ in 0..40 {
        let (w, l) = (strengths(&plan, &law), engine.state().unwrap().learned.unwrap().strengths);
        // Rules with a trace that both sides know: a weight has seen few spikes yet.
        let worst = w.iter().zip(&l).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst < 64, "{worst} of 65,536 of a unit apart after {} spikes", a.len());
        law.advance(10, &mut a).unwrap();
        engine.advance(10, &mut b).unwrap();
        if a != b {
            break;
        }
        same = a.len();
    }
    assert!(same >= 60, "only {same} spikes were the same");
}
