//! Rules beyond pairs of spikes: the law against sums over all spikes, the engine against the law, and against itself.

use super::learning_tests::{run, strengths};
use super::tests::balanced;
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State};
use crate::pool;
use crate::rng::Rng;
use crate::spiking::models;
use crate::spiking::network::{Delay, DriveKind, Edge, Network, Population, Projection, Rule};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::{
    Bcm, Coincidence, Dependence, Hebb, Homeostasis, Modulation, Pairs, Placement, Plasticity, ShortTerm, Stdp,
};
use std::sync::Arc;

const DT: f64 = 0.1;
const CELLS: u32 = 5;
/// Of the population whose spikes carry the modulator.
const MODULATOR: usize = 3;

pub(super) fn hebb(w_max: f64, dependence: Dependence, placement: Placement) -> Plasticity {
    let h =
        Hebb { a: 0.01, a_pre: 0.004, a_post: 0.003, tau_ms: 12.0, w_min: 0.1 * w_max, w_max, dependence, placement };
    Plasticity::hebb(h)
}

pub(super) fn bcm(w_max: f64, placement: Placement) -> Plasticity {
    let b = Bcm { a: 0.002, target_hz: 30.0, tau_ms: 40.0, tau_threshold_ms: 300.0, w_min: 0.0, w_max, placement };
    Plasticity::bcm(b)
}

pub(super) fn modulated(w_max: f64, placement: Placement) -> Plasticity {
    let stdp = Stdp {
        a_plus: 0.001,
        a_minus: 0.0007,
        tau_plus_ms: 17.0,
        tau_minus_ms: 25.0,
        w_min: 0.0,
        w_max,
        dependence: Dependence::Additive,
        pairs: Pairs::All,
        placement,
    };
    let m = Modulation { population: MODULATOR, tau_c_ms: 120.0, tau_n_ms: 50.0, baseline_hz: 3.0, delay_ms: 0.7 };
    Plasticity::modulated(stdp, m)
}

pub(super) fn scaling(rate: f64, bounds: Option<(f64, f64)>) -> Homeostasis {
    Homeostasis { target_hz: 35.0, window_ms: 25.0, rate, bounds }
}

pub(super) fn coincidence(bounds: Option<(f64, f64)>) -> Coincidence {
    Coincidence { a: 0.05, a_pre: 0.004, bounds }
}

/// Spikes at random, some in bursts.
fn train(rng: &mut Rng, cells: u32, count: usize, gap: u64) -> Arc<Vec<(u64, u32)>> {
    let mut all = Vec::new();
    for cell in 0..cells {
        let mut step = 0;
        for _ in 0..count {
            let most = if rng.below(3) == 0 { 20 } else { gap };
            step += 1 + rng.below(most);
            all.push((step, cell));
        }
    }
    all.sort_unstable();
    Arc::new(all)
}

/// Cells that fire when a teacher says so and not otherwise, with synapses from replayed cells that do what `what` says: however
/// weights change, spikes stay.
fn taught(what: Plasticity, seed: u64) -> Network {
    let mut rng = Rng::new(seed, 0);
    let mut n = Network::new(DT, seed).unwrap();
    let replay = models::find("spikes").unwrap();
    let mut trains: Vec<Arc<Vec<(u64, u32)>>> = Vec::new();
    for (name, cells, count, gap) in [("pre", CELLS, 100, 400), ("teacher", CELLS, 100, 400)] {
        let mut p = Population::new(name, replay, cells);
        let mut all = train(&mut rng, cells, count, gap);
        if let Some(pre) = trains.first() {
            // The taught fire a step later: some at once with a cell before them.
            let taken = pre.iter().filter(|(step, _)| *step > 0).step_by(4).map(|(step, cell)| (step - 1, *cell));
            let mut more: Vec<_> = all.iter().copied().chain(taken).collect();
            more.sort_unstable();
            more.dedup();
            all = Arc::new(more);
        }
        trains.push(all.clone());
        p.replay = Some(all);
        n.add(p);
    }
    let lif = models::find("lif_delta").unwrap();
    let post = Population::new("post", lif, CELLS).parameter("V_th", 0.0).unwrap();
    n.add(post.parameter("t_ref", 0.0).unwrap());
    let mut da = Population::new("modulator", replay, 2);
    da.replay = Some(train(&mut rng, 2, 25, 1100));
    assert_eq!(n.add(da), MODULATOR);
    let mut join = |source, rule, plasticity| {
        n.projections.push(Projection {
            source,
            target: 2,
            rule,
            weight: 100.0.into(),
            delay: Delay::Drawn(DT.into()),
            autapses: true,
            plasticity,
            storage: crate::spiking::network::Storage::Stored,
            weight_bits: Default::default(),
        });
    };
    join(1, Rule::OneToOne, None);
    let mut edges = Vec::new();
    for i in 0..CELLS * CELLS {
        let delay_ms = (DT * [1.0, 7.0, 40.0][i as usize % 3]) as f32;
        edges.push(Edge { source: i / CELLS, target: i % CELLS, weight: 0.3 + 0.02 * i as f32, delay_ms });
    }
    join(0, Rule::Edges(Arc::new(edges)), Some(what));
    n
}

/// The weight at the end by sums over all spikes, in ms; `before`, `after` and `modulator` are times at the synapse.
fn summed(what: &Plasticity, w: f64, [before, after, modulator]: &[Vec<u64>; 3], counted: &[u64], end: u64) -> f64 {
    let ms = |a: u64, b: u64| (b - a) as f64 * DT;
    let (low, high) = what.bounds().unwrap();
    let range = high - low;
    // Order at one time: windows end, the spike before, the spike after.
    let mut events: Vec<(u64, u8)> = before.iter().map(|t| (*t, 1)).collect();
    events.extend(after.iter().map(|t| (*t, 2)));
    if let Some(h) = what.homeostasis {
        let window = (h.window_ms / DT).round() as u64;
        events.extend((1..).map(|k| k * window).take_while(|t| *t < end).map(|t| (t, 0)));
    }
    events.sort_unstable();
    let sum = |list: &[u64], now: u64, tau: f64| -> f64 {
        list.iter().filter(|t| **t < now).map(|t| (-ms(*t, now) / tau).exp()).sum()
    };
    // What each spike of the cell behind adds to the squares, where they are asked for.
    let tau = what.bcm.map_or(1.0, |b| b.tau_ms);
    let seen: Vec<f64> = after.iter().filter(|_| what.bcm.is_some()).map(|t| sum(after, *t, tau)).collect();
    // What timing has added to the eligibility, and when.
    let mut added: Vec<(u64, f64)> = Vec::new();
    let mut w = w.clamp(low, high);
    // Decay takes its share at the beginning of each step but the first, before anything else.
    let mut weakened = 0;
    let mut weaken = |w: f64, now: u64| {
        let from = std::mem::replace(&mut weakened, now);
        (w - what.decay_per_ms * ms(from, now)).max(low)
    };
    for (now, kind) in events {
        w = weaken(w, now);
        match (kind, what) {
            (0, Plasticity { homeostasis: Some(h), .. }) => {
                let window = (h.window_ms / DT).round() as u64;
                let spikes = counted.iter().filter(|t| (now - window..now).contains(*t)).count() as f64;
                w = (w * (1.0 + h.rate * (1.0 - spikes / (h.window_ms * 1e-3) / h.target_hz))).clamp(low, high);
            }
            (_, Plasticity { modulation: Some(_), stdp: Some(s), .. }) => {
                added.push(if kind == 1 {
                    (now, -s.a_minus * sum(after, now, s.tau_minus_ms))
                } else {
                    (now, s.a_plus * sum(before, now, s.tau_plus_ms))
                });
            }
            (_, Plasticity { stdp: Some(s), .. }) => {
                w = if kind == 1 {
                    (w - s.a_minus * sum(after, now, s.tau_minus_ms) * range).max(low)
                } else {
                    (w + s.a_plus * sum(before, now, s.tau_plus_ms) * range).min(high)
                };
            }
            (_, Plasticity { hebb: Some(h), .. }) => {
                let other = sum(if kind == 1 { after } else { before }, now, h.tau_ms);
                let soft = h.dependence != Dependence::Additive;
                let room = if h.dependence == Dependence::Multiplicative { high - w } else { range };
                w = (w + h.a * other * room).min(high);
                let room = if soft { w - low } else { range };
                w = (w - if kind == 1 { h.a_pre } else { h.a_post } * room).max(low);
            }
            (1, Plasticity { bcm: Some(b), .. }) => {
                let goal = b.target_hz * 1e-3;
                let r = sum(after, now, b.tau_ms) / (b.tau_ms * goal);
                // Each spike adds what the trace was just before it.
                let past = after.iter().zip(&seen).filter(|(t, _)| **t < now);
                let squares: f64 = past.map(|(t, y)| y * (-ms(*t, now) / b.tau_threshold_ms).exp()).sum();
                let theta = squares / (b.tau_ms * b.tau_threshold_ms * goal * goal);
                w = (w + b.a * r * (r - theta) * range).clamp(low, high);
            }
            _ => {}
        }
        if let (1, Some(c)) = (kind, what.coincidence) {
            let step = if counted.contains(&now) { c.a } else { -c.a_pre };
            w = (w + step * range).clamp(low, high);
        }
    }
    w = weaken(w, end - 1);
    let Some(m) = what.modulation else { return w };
    // The integral of each product of an addition and a spike of the modulator, until the last event.
    let all = [before, after, modulator].into_iter().flatten().filter(|t| **t < end);
    let last = *all.max().unwrap();
    let both = m.tau_c_ms * m.tau_n_ms / (m.tau_c_ms + m.tau_n_ms);
    let mut total = 0.0;
    for (t, c) in added {
        for s in modulator.iter().filter(|s| **s < last) {
            let from = t.max(*s);
            let there = (-ms(t, from) / m.tau_c_ms).exp() * (-ms(*s, from) / m.tau_n_ms).exp();
            total += c / m.tau_n_ms * there * both * (1.0 - (-ms(from, last) / both).exp());
        }
        total -= c * m.baseline_hz * 1e-3 * m.tau_c_ms * (1.0 - (-ms(t, last) / m.tau_c_ms).exp());
    }
    assert!((low..=high).contains(&(w + total * range)), "the sums know no bounds: {}", w + total * range);
    w + total * range
}

/// In f64 every weight is the sum over all spikes to rounding, and in whole numbers it is the law's to 10^-4 of the range; the
/// table of the engine has the same, in the order of the list of edges.
#[test]
fn weights_are_sums_over_all_spikes() {
    let steps = 16_000;
    let mut all = Vec::new();
    for placement in [Placement::Dendritic, Placement::Axonal] {
        for dependence in [Dependence::Additive, Dependence::Multiplicative, Dependence::Mixed] {
            all.push(hebb(1.0, dependence, placement));
        }
        all.push(hebb(1.0, Dependence::Multiplicative, placement).and_homeostasis(scaling(0.05, None)));
        all.push(bcm(1.0, placement));
        all.push(bcm(1.0, placement).and_homeostasis(scaling(0.01, None)));
        all.push(modulated(1.0, placement));
    }
    all.push(Plasticity::homeostasis(scaling(0.03, Some((0.1, 1.0)))));
    let (alone, d) = (Plasticity::coincidence(coincidence(Some((0.1, 1.0)))), Placement::Dendritic);
    all.push(alone);
    all.push(alone.and_decay(1e-4));
    all.push(alone.and_homeostasis(scaling(0.03, None)).and_decay(3e-5));
    all.push(bcm(1.0, d).and_homeostasis(scaling(0.01, None)).and_coincidence(coincidence(None)).and_decay(2e-5));
    all.push(Plasticity { modulation: None, ..modulated(1.0, d) }.and_coincidence(coincidence(None)));
    all.push(hebb(1.0, Dependence::Mixed, Placement::Axonal).and_decay(1e-4));
    all.push(bcm(1.0, Placement::Axonal).and_decay(1e-5));
    for (k, what) in all.into_iter().enumerate() {
        let network = taught(what, k as u64);
        let plan = Plan::new(network).unwrap();
        let mut law = Reference::new(&plan).unwrap();
        let mut spikes = Vec::new();
        law.advance(steps, &mut spikes).unwrap();
        pool::set_num_threads(1);
        let mut engine = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
        engine.sweep_after(200 + 30 * k);
        assert!(run(&mut engine, &[1000, 2345, steps - 3345]) == spikes, "{what:?}");
        let of =
            |cell: u64| -> Vec<u64> { spikes.iter().filter(|s| u64::from(s.cell) == cell).map(|s| s.step).collect() };
        let table = engine.table(1).unwrap();
        let Rule::Edges(edges) = &plan.network.projections[1].rule else { panic!() };
        let range = what.bounds().map(|(low, high)| high - low).unwrap();
        let jump = what.modulation.map_or(0, |m| (m.delay_ms / DT).round() as u64);
        let (mut moved, mut together, mut laws) = (0.0f64, 0, law.weights());
        laws.sort_by_key(|w| (w.0, w.1));
        for (i, e) in edges.iter().enumerate() {
            let steps_of = (f64::from(e.delay_ms) / DT).round() as u64;
            let (ahead, back) = if what.placement() == Placement::Axonal { (steps_of, 0) } else { (0, steps_of) };
            let shift = |list: Vec<u64>, by: u64| -> Vec<u64> {
                list.into_iter().map(|t| t + by).filter(|t| *t < steps).collect()
            };
            let post = of(plan.first[2] + u64::from(e.target));
            assert!(post.len() > 60, "{} spikes", post.len());
            let mut da: Vec<u64> = (0..2).flat_map(|c| of(plan.first[MODULATOR] + c)).collect();
            da.sort_unstable();
            let times = [shift(of(u64::from(e.source)), ahead), shift(post.clone(), back), shift(da, jump)];
            let w0 = f64::from((e.weight / plan.units[2][0] as f32).round()) * plan.units[2][0];
            let want = summed(&what, w0, &times, &post, steps);
            let own = laws[i].4;
            assert_eq!((table.source[i], table.target[i]), (e.source, e.target));
            assert!((table.delay_ms[i] - e.delay_ms).abs() < 1e-6);
            assert!((own - want).abs() < 1e-9 * range, "{what:?}, {e:?}: the law has {own}, not {want}");
            let got = f64::from(table.weight[i]);
            assert!((got - want).abs() < 1e-4 * range, "{what:?}, {e:?}: {got}, not {want}");
            moved = moved.max((want - w0).abs());
            together += times[0].iter().filter(|t| post.contains(t)).count();
        }
        assert!(
            what.coincidence.is_none() || together > 100,
            "{together} spikes of a source and a target in the same step"
        );
        assert!(moved > 0.02 * range, "{what:?} moved weights by at most {moved}");
    }
}

/// A balanced network whose projections each have another rule, and cells whose spikes carry a modulator.
pub(super) fn mixed(seed: u64, placement: [Placement; 4]) -> Network {
    let mut n = balanced(100, seed);
    // More than balance needs, so that there are many spikes soon.
    for d in &mut n.drives {
        d.kind = DriveKind::Poisson { rate_hz: 16_000.0, weight: 80.0, start_ms: 0.0, stop_ms: f64::INFINITY };
    }
    for (name, size, rate) in [("R", 20, 30.0), ("DA", 3, 40.0)] {
        n.add(Population::new(name, models::find("poisson").unwrap(), size).parameter("rate", rate).unwrap());
    }
    let depressing = ShortTerm { u: 0.5, tau_rec_ms: 30.0, tau_fac_ms: 0.0 };
    n.projections[0].plasticity = Some(modulated(160.0, placement[0]));
    let sliding = bcm(160.0, placement[1]).and_homeostasis(scaling(0.05, None)).and_decay(0.004);
    n.projections[1].plasticity = Some(match placement[1] {
        Placement::Dendritic => sliding.and_coincidence(coincidence(None)),
        Placement::Axonal => sliding,
    });
    n.projections[2].plasticity =
        Some(hebb(800.0, Dependence::Multiplicative, placement[2]).and_short_term(depressing));
    let scaled = Plasticity::homeostasis(scaling(0.02, Some((0.0, 900.0))));
    n.projections[3].plasticity = Some(scaled.and_coincidence(coincidence(None)).and_decay(0.02));
    // Two alike between the same populations: their synapses are told apart.
    for weight in [20.0, 40.0] {
        n.projections.push(Projection {
            source: 2,
            target: 0,
            rule: Rule::InDegree { count: 10, multapses: true },
            weight: crate::spiking::network::Distribution::uniform(weight, weight + 10.0),
            delay: Delay::Drawn(crate::spiking::network::Distribution::uniform(0.1, 0.5)),
            autapses: true,
            plasticity: Some(hebb(80.0, Dependence::Additive, placement[3])),
            storage: crate::spiking::network::Storage::Stored,
            weight_bits: Default::default(),
        });
    }
    n
}

/// What puts nothing off, in whole numbers, and the engine however it is cut and wherever it is resumed: the same spikes,
/// thousands, the same weights, the same state.
#[test]
fn the_same_bits_however_the_work_is_cut_and_resumed() {
    let (a, d) = (Placement::Axonal, Placement::Dendritic);
    for (seed, placement) in [(41, [d, a, d, a]), (42, [a, d, a, d])] {
        let plan = Plan::new(mixed(seed, placement)).unwrap();
        let (cut, steps) = (1700, 3600);
        let mut want = Vec::new();
        let mut law = Reference::in_f32(&plan).unwrap();
        law.advance(cut, &mut want).unwrap();
        let between = strengths(&plan, &law);
        let before = want.len();
        law.advance(steps - cut, &mut want).unwrap();
        let end = strengths(&plan, &law);
        assert!(want.len() >= 7000, "only {} spikes", want.len());
        let mut state: Option<[State; 2]> = None;
        for (threads, shards, sweep, pieces) in
            [(1, 1, usize::MAX, vec![cut]), (2, 3, 500, vec![1, 2, 3, 4, cut - 10]), (1, 4, 0, vec![cut])]
        {
            pool::set_num_threads(threads);
            let mut engine = CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
            engine.sweep_after(sweep);
            let what = format!("{placement:?}, {threads} threads, {shards} shards");
            let mut got = run(&mut engine, &pieces);
            let half = engine.state().unwrap();
            assert!(half.learned.as_ref().unwrap().strengths == between, "{what}: weights at {cut}");
            let checkpoint = Checkpoint {
                fingerprint: [0; 32],
                state: half,
                hash: Default::default(),
                replicas: vec![],
                logged: 0,
                counts: vec![],
            };
            let read = Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap();
            // Half of it goes on in an engine of another shape.
            let mut other = CpuEngine::with_shards(&plan, 6 - shards, &|_, _| ()).unwrap();
            other.sweep_after(900);
            run(&mut other, &[30]);
            other.restore(&read.state).unwrap();
            assert!(other.state().unwrap() == read.state, "{what}: the state that was restored");
            got.truncate(before);
            got.extend(run(&mut other, &[steps - cut]));
            assert!(got == want, "{what}: {} spikes, not {}", got.len(), want.len());
            let last = other.state().unwrap();
            assert!(last.learned.as_ref().unwrap().strengths == end, "{what}: weights");
            let own = [read.state, last];
            assert!(state.as_ref().is_none_or(|s| *s == own), "{what}: states");
            state = Some(own);
        }
        tables_are_by_synapse(&plan, &state.unwrap()[1]);
        refuse(&plan, &state_of(&plan, 200));
    }
}

fn state_of(plan: &Plan, steps: u64) -> State {
    let mut engine = CpuEngine::with_shards(plan, 1, &|_, _| ()).unwrap();
    engine.advance(steps, &mut Vec::<Spike>::new()).unwrap();
    engine.state().unwrap()
}

/// The tables of all projections have each synapse in its row, and together the weights of the state.
fn tables_are_by_synapse(plan: &Plan, state: &State) {
    let mut engine = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let begun: Vec<_> = (0..6).map(|i| engine.table(i).unwrap()).collect();
    for (i, table) in begun.iter().enumerate() {
        let mut drawn = crate::spiking::connect::synapses(plan, i).unwrap();
        let (low, high) = plan.network.projections[i].plasticity.unwrap().bounds().unwrap();
        drawn.weight.iter_mut().for_each(|w| *w = w.signum() * w.abs().clamp(low as f32, high as f32));
        assert_eq!(table.source, drawn.source);
        assert_eq!((&table.target, &table.delay_ms), (&drawn.target, &drawn.delay_ms));
        let worst = table.weight.iter().zip(&drawn.weight).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst < 1e-3, "{worst}");
    }
    engine.restore(state).unwrap();
    let mut all: Vec<u32> = Vec::new();
    for (i, begun) in begun.iter().enumerate() {
        let table = engine.table(i).unwrap();
        assert_eq!((&table.source, &table.target, &table.delay_ms), (&begun.source, &begun.target, &begun.delay_ms));
        assert!(table.weight != begun.weight, "{}", plan.label(i));
        let rule = &plan.learning.as_ref().unwrap().rules[usize::from(plan.rule(i).unwrap())];
        let unit = plan.units[plan.network.projections[i].target][rule.port];
        all.extend(table.weight.iter().map(|w| (f64::from(w.abs()) / unit * 65_536.0).round() as u32 >> 8));
    }
    let mut want: Vec<u32> = state.learned.as_ref().unwrap().strengths.iter().map(|s| s >> 8).collect();
    all.sort_unstable();
    want.sort_unstable();
    // As f32 a strength of 31 bits keeps 24.
    assert!(all.iter().zip(&want).all(|(a, b)| a.abs_diff(*b) <= 1) && all.len() == want.len());
    // Of two alike between the same populations the stronger stays the stronger.
    let mean = |i: usize| engine.table(i).unwrap().weight.iter().map(|w| f64::from(*w)).sum::<f64>();
    assert!(mean(4) < mean(5), "{} {}", mean(4), mean(5));
}

/// What no state of this network is.
fn refuse(plan: &Plan, good: &State) {
    let mut engine = CpuEngine::with_shards(plan, 1, &|_, _| ()).unwrap();
    let spoil = |with: &dyn Fn(&mut super::Learned)| {
        let mut bad = good.clone();
        with(bad.learned.as_mut().unwrap());
        bad
    };
    engine.restore(good).unwrap();
    for bad in [
        spoil(&|l| l.eligible.truncate(3)),
        spoil(&|l| l.eligible[7] = i32::MIN),
        spoil(&|l| l.counts.clear()),
        spoil(&|l| l.counts[0].truncate(1)),
        spoil(&|l| l.levels.clear()),
        spoil(&|l| l.levels[0] = [10_000, 1]),
    ] {
        assert!(engine.restore(&bad).is_err());
    }
}

/// A cell that fires at its target is left alone, one that is silent gets stronger weights, one that fires too much weaker
/// ones.
#[test]
fn scaling_goes_towards_the_target() {
    let scaled = |gap: u64| {
        let what = Plasticity::homeostasis(Homeostasis {
            target_hz: 50.0,
            window_ms: 200.0,
            rate: 0.1,
            bounds: Some((0.01, 10.0)),
        });
        let mut n = taught(what, 3);
        let times = (1..).map(|k| k * gap).take_while(|t| *t < 40_000);
        n.populations[1].replay = Some(Arc::new(times.flat_map(|t| (0..CELLS).map(move |c| (t, c))).collect()));
        let plan = Plan::new(n).unwrap();
        let mut engine = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
        let before = engine.table(1).unwrap();
        run(&mut engine, &[40_001]);
        let after = engine.table(1).unwrap();
        f64::from(after.weight[7]) / f64::from(before.weight[7])
    };
    // 20 windows have ended by then.
    assert!((scaled(200) - 1.0).abs() < 0.02, "{}", scaled(200));
    let silent = 1.1f64.powi(20);
    assert!((scaled(100_000) / silent - 1.0).abs() < 1e-3, "{} {silent}", scaled(100_000));
    let double = 0.9f64.powi(20);
    assert!((scaled(100) / double - 1.0).abs() < 0.02, "{} {double}", scaled(100));
}
