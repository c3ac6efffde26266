//! The fixed form against the law, and the law against sums over all pairs of spikes.

use super::fixed::{Learning, ONE};
use super::*;
use crate::rng::Rng;

/// Everything but the pairs is what it is in the equation.
fn stdp(dependence: Dependence, pairs: Pairs, placement: Placement) -> Stdp {
    Stdp {
        a_plus: 0.011,
        a_minus: 0.013,
        tau_plus_ms: 17.0,
        tau_minus_ms: 31.0,
        w_min: 2.0,
        w_max: 90.0,
        dependence,
        pairs,
        placement,
    }
}

const DT: f64 = 0.1;

/// Spikes at random, some in bursts.
fn train(rng: &mut Rng, count: usize) -> Vec<u64> {
    let mut step = 0;
    (0..count)
        .map(|_| {
            let most = if rng.below(3) == 0 { 20 } else { 600 };
            step += 1 + rng.below(most);
            step
        })
        .collect()
}

/// The weight by brute force: at each event, the sum over all spikes of the other side that count, one pair after the other.
fn pairwise(s: &Stdp, w: f64, before: &[u64], after: &[u64], delay: u64) -> f64 {
    let (ahead, back) = if s.placement == Placement::Axonal { (delay, 0) } else { (0, delay) };
    let mut events: Vec<(u64, bool)> = before.iter().map(|t| (t + ahead, false)).collect();
    events.extend(after.iter().map(|t| (t + back, true)));
    events.sort_unstable();
    let mut w = w;
    for (now, grows) in events {
        let (list, shift, tau) = if grows { (before, ahead, s.tau_plus_ms) } else { (after, back, s.tau_minus_ms) };
        let seen = list.iter().map(|t| t + shift).filter(|t| *t < now);
        let pair = |t: u64| (-((now - t) as f64) * DT / tau).exp();
        let sum: f64 = match s.pairs {
            Pairs::All => seen.map(pair).sum(),
            Pairs::Nearest => seen.max().map_or(0.0, pair),
        };
        let range = s.w_max - s.w_min;
        let room = match (s.dependence, grows) {
            (Dependence::Additive, _) | (Dependence::Mixed, true) => range,
            (Dependence::Multiplicative, true) => s.w_max - w,
            (_, false) => w - s.w_min,
        };
        let step = if grows { s.a_plus } else { -s.a_minus } * sum * room;
        w = (w + step).clamp(s.w_min, s.w_max);
    }
    w
}

/// The same by entries, as engines have them.
fn by_entries(s: &Stdp, w: f64, before: &[u64], after: &[u64], delay: u64, unit: f64) -> f64 {
    let mut learning = Learning::default();
    let index = learning.add(&Plasticity::stdp(*s), 1, (0, unit, 0), DT).unwrap();
    let rule = &learning.rules[usize::from(index)];
    let pair = rule.stdp.as_ref().unwrap();
    let (ahead, back) = if pair.axonal { (delay, 0) } else { (0, delay) };
    let entries = |list: &[u64]| {
        let mut all: Vec<Vec<u32>> = Vec::new();
        for t in list {
            let mut entry = vec![0; learning.width()];
            learning.entry(all.last().map(|e| &e[..]), *t as u32, &mut entry);
            all.push(entry);
        }
        all
    };
    let (sources, targets) = (entries(before), entries(after));
    let trace = |list: &[Vec<u32>], k: usize, now: u64| {
        let e = list.iter().rev().find(|e| u64::from(e[0]) < now)?;
        let t = &learning.traces[k];
        Some((t.later(t.after(e[1 + k]), (now - u64::from(e[0])) as u32), t.bits))
    };
    let mut events: Vec<(u64, bool)> = before.iter().map(|t| (t + ahead, false)).collect();
    events.extend(after.iter().map(|t| (t + back, true)));
    events.sort_unstable();
    let mut strength = (w / unit * 65_536.0).round() as u32;
    for (now, grows) in events {
        if grows {
            if let Some((x, bits)) = trace(&sources, pair.x, now.saturating_sub(ahead)) {
                strength = rule.grown(pair, strength, x, bits);
            }
        } else if let Some((y, bits)) = trace(&targets, pair.y, now.saturating_sub(back)) {
            strength = rule.shrunk(pair, strength, y, bits);
        }
    }
    f64::from(strength) / 65_536.0 * unit
}

/// Every dependence, pairing and placement: whole numbers follow the sum over pairs to a part in 10^5 of the range over 600
/// spikes, which is what roundings of 2^-17 of a unit (1/360 of the range here) and 2^-23 of a trace add up to.
#[test]
fn whole_numbers_follow_the_pairwise_formula() {
    let mut rng = Rng::new(21, 0);
    for dependence in [Dependence::Additive, Dependence::Multiplicative, Dependence::Mixed] {
        for pairs in [Pairs::All, Pairs::Nearest] {
            for placement in [Placement::Dendritic, Placement::Axonal] {
                let s = stdp(dependence, pairs, placement);
                let mut moved = 0.0f64;
                for delay in [1, 15, 60] {
                    let (before, after) = (train(&mut rng, 300), train(&mut rng, 300));
                    let want = pairwise(&s, 40.0, &before, &after, delay);
                    let got = by_entries(&s, 40.0, &before, &after, delay, 0.25);
                    let range = s.w_max - s.w_min;
                    assert!((got - want).abs() < 1e-5 * range, "{s:?}, delay {delay}: {got}, not {want}");
                    moved = moved.max((want - 40.0).abs());
                }
                assert!(moved > 1.0, "{s:?} moved a weight by {moved}");
            }
        }
    }
}

/// Spikes at once in both cells count for nothing where there is no delay between them, and bounds hold.
#[test]
fn pairs_of_the_same_time_count_nothing_and_bounds_hold() {
    for placement in [Placement::Dendritic, Placement::Axonal] {
        let s = stdp(Dependence::Additive, Pairs::All, placement);
        // Axonal: before at 10 arrives at 15, after at 15. Dendritic: before at 15, after at 10 comes back at 15.
        let (before, after) = if placement == Placement::Axonal { ([10], [15]) } else { ([15], [10]) };
        assert_eq!(pairwise(&s, 40.0, &before, &after, 5), 40.0);
        assert_eq!(by_entries(&s, 40.0, &before, &after, 5, 0.25), 40.0);
        // One pair, by hand: 3 steps apart at the synapse.
        let want = 40.0 + 0.011 * (-0.3f64 / 17.0).exp() * 88.0;
        let (before, after) = if placement == Placement::Axonal { ([10], [18]) } else { ([10], [8]) };
        assert!((pairwise(&s, 40.0, &before, &after, 5) - want).abs() < 1e-12, "{placement:?}");
        assert!((by_entries(&s, 40.0, &before, &after, 5, 0.25) - want).abs() < 1e-5, "{placement:?}");
    }
    let mut s = stdp(Dependence::Additive, Pairs::All, Placement::Dendritic);
    (s.a_plus, s.a_minus) = (1.0, 0.0);
    let (before, after): (Vec<u64>, Vec<u64>) = (0..50).map(|k| (7 * k, 7 * k + 3)).unzip();
    assert_eq!(by_entries(&s, 40.0, &before, &after, 1, 0.25), s.w_max);
    (s.a_plus, s.a_minus) = (0.0, 1.0);
    assert_eq!(by_entries(&s, 40.0, &before, &after, 1, 0.25), s.w_min);
}

/// Short-term plasticity: whole numbers against the law, and the law against what a train at a constant rate settles at.
#[test]
fn short_term_plasticity_follows_its_law() {
    for of in [
        ShortTerm { u: 0.5, tau_rec_ms: 800.0, tau_fac_ms: 0.0 },
        ShortTerm { u: 0.15, tau_rec_ms: 130.0, tau_fac_ms: 530.0 },
        ShortTerm { u: 1.0, tau_rec_ms: 50.0, tau_fac_ms: 20.0 },
    ] {
        let mut learning = Learning::default();
        let index = learning.add(&Plasticity::short_term(of), 1, (0, 1.0, 0), DT).unwrap();
        let rule = &learning.rules[usize::from(index)];
        let mut rng = Rng::new(3, 0);
        let mut entry: Option<Vec<u32>> = None;
        let mut state = [of.u, 1.0];
        let mut last = 0;
        for (k, t) in train(&mut rng, 400).into_iter().enumerate() {
            let mut next = vec![0; learning.width()];
            learning.entry(entry.as_deref(), t as u32, &mut next);
            if k > 0 {
                state = law::short_term(&of, state, (t - last) as f64 * DT);
            }
            let got = f64::from(learning.effect(rule, &next)) / f64::from(ONE);
            assert!((got - state[0] * state[1]).abs() < 1e-7, "{of:?}, spike {k}: {got}, not {state:?}");
            (entry, last) = (Some(next), t);
        }
        // At a constant interval u and x settle where a step leaves them.
        let ms = 25.0;
        let mut state = [of.u, 1.0];
        (0..2000).for_each(|_| state = law::short_term(&of, state, ms));
        let fac = if of.tau_fac_ms > 0.0 { (-ms / of.tau_fac_ms).exp() } else { 0.0 };
        let rec = (-ms / of.tau_rec_ms).exp();
        let u = of.u / (1.0 - (1.0 - of.u) * fac);
        let x = (1.0 - rec) / (1.0 - rec * (1.0 - u));
        assert!((state[0] - u).abs() < 1e-12 && (state[1] - x).abs() < 1e-12, "{state:?}, not {u} and {x}");
    }
}

/// Checkpoints know a network by its description: of what there was before there was coincidence it says the same.
#[test]
fn a_description_says_nothing_of_what_is_not_there() {
    let what = Plasticity::short_term(ShortTerm { u: 0.5, tau_rec_ms: 1.0, tau_fac_ms: 0.0 });
    let text = "Plasticity { stdp: None, modulation: None, hebb: None, bcm: None, homeostasis: None, short_term: \
                Some(ShortTerm { u: 0.5, tau_rec_ms: 1.0, tau_fac_ms: 0.0 }) }";
    assert_eq!(format!("{what:?}"), text);
    let c = Coincidence { a: 0.5, a_pre: 0.25, bounds: None };
    let more = format!("{:?}", what.and_coincidence(c).and_decay(0.5));
    let end = ", coincidence: Coincidence { a: 0.5, a_pre: 0.25, bounds: None }, decay_per_ms: 0.5 }";
    assert!(more.ends_with(end), "{more}");
}

/// Decay in whole numbers: the same in one go and in any pieces, that of the law, and no further than the least.
#[test]
fn decay_is_the_same_in_one_go_and_in_pieces() {
    let mut rng = Rng::new(5, 0);
    for (per_ms, unit) in [(1e-5, 1e-3), (0.013, 0.25), (1e-9, 0.25), (40.0, 0.25)] {
        let what = Plasticity::coincidence(Coincidence { a: 0.0, a_pre: 0.0, bounds: Some((2.0, 90.0)) });
        let mut learning = Learning::default();
        let index = learning.add(&what.and_decay(per_ms), 1, (0, unit, 0), DT).unwrap();
        let rule = &learning.rules[usize::from(index)];
        for _ in 0..200 {
            let from = rng.below(1 << 20) as i64;
            let cuts: Vec<i64> = [0, 100, 10_000].iter().map(|most| from + rng.below(most + 1) as i64).collect();
            let (begun, end) = ((40.0 / unit * 65_536.0).round() as u32, from + 20_000);
            let whole = rule.weakened(begun, from, end);
            let (mut now, mut at) = (begun, from);
            for cut in cuts.into_iter().chain([end]) {
                now = rule.weakened(now, at, cut);
                at = at.max(cut);
            }
            assert_eq!(now, whole);
            let want = law::weakened(per_ms, 40.0, 20_000.0 * DT, 2.0);
            let got = f64::from(whole) / 65_536.0 * unit;
            assert!((got - want).abs() < 1e-6 * 88.0, "{per_ms}: {got}, not {want}");
        }
        assert_eq!(rule.weakened(rule.low, 5, 1_000_000), rule.low);
    }
}

#[test]
fn wrong_numbers_are_named() {
    let good = stdp(Dependence::Additive, Pairs::All, Placement::Dendritic);
    assert_eq!(Plasticity::stdp(good).problem(DT), None);
    for (s, field) in [
        (Stdp { a_plus: -0.1, ..good }, "A_plus"),
        (Stdp { a_minus: f64::NAN, ..good }, "A_minus"),
        (Stdp { tau_plus_ms: 0.0, ..good }, "tau_plus"),
        (Stdp { tau_minus_ms: 1e9, ..good }, "tau_minus"),
        (Stdp { w_max: 1.0, ..good }, "w_max"),
        (Stdp { w_min: -1.0, ..good }, "w_max"),
    ] {
        assert_eq!(Plasticity::stdp(s).problem(DT).map(|p| p.0), Some(field), "{s:?}");
    }
    for (u, rec, fac, field) in
        [(0.0, 1.0, 0.0, "U"), (1.1, 1.0, 0.0, "U"), (0.5, 0.0, 0.0, "tau_rec"), (0.5, 1.0, -1.0, "tau_fac")]
    {
        let s = ShortTerm { u, tau_rec_ms: rec, tau_fac_ms: fac };
        assert_eq!(Plasticity::short_term(s).problem(DT).map(|p| p.0), Some(field), "{s:?}");
    }
}
