//! When cells die, and what their children are.

use super::weights::{Spread, changes, side};
use super::{Life, births, lifetime};
use crate::spiking::network::{Distribution, Lifecycle, Network, Outside, Population};
use crate::spiking::plan::Plan;
use crate::spiking::{math, models};

/// Cells of one model without synapses, which die of their age.
fn cells(model: &str, size: u32, max_age_ms: f64) -> Network {
    let mut n = Network::new(if model == "hodgkin_huxley" { 0.05 } else { 1.0 }, 11).unwrap();
    n.add(Population::new("A", models::find(model).unwrap(), size));
    n.lifecycle = Some(Lifecycle::new(&n, max_age_ms));
    n
}

/// The original counts health down by a subtraction a step.
#[test]
fn cells_live_as_long_as_the_originals() {
    let steps = [1e-4, 1e-3, 0.05, 0.3, 0.01, 0.002].map(|decay| lifetime(100_000.0, decay));
    assert_eq!(steps, [9001, 900, 18, 3, 90, 450]);
    assert_eq!([lifetime(100.0, 1e-4), lifetime(0.0, 0.0), lifetime(0.0, 2.0)], [101, 1, 1]);
    assert_eq!([lifetime(f64::INFINITY, 1e-9), lifetime(1e15, 0.0)], [900_000_001, 1_000_000_000_000_001]);
}

/// Deaths, generations and ages from the step alone are those of cells that grow older by one step after the other.
#[test]
fn a_life_is_that_of_cells_that_grow_older_step_by_step() {
    for (interval, decay, max_age, reproduction) in [
        (1.0, 0.0, 20.0, true),
        (7.0, 0.0, 20.0, true),
        (4.0, 0.05, 100.0, true),
        (5.0, 0.0, 30.0, false),
        (64.0, 0.0, 9.0, true),
    ] {
        let mut n = cells("lif_delta", 50, max_age);
        let life = n.lifecycle.as_mut().unwrap();
        life.initial_age_ms = Distribution::uniform(0.0, 40.0);
        (life.interval_ms, life.health_decay_per_ms, life.reproduction) = (interval, decay, reproduction);
        let life = Life::of(&Plan::new(n).unwrap()).unwrap();
        let mut now: Vec<(u64, f64, u32, bool)> = life
            .begun
            .iter()
            .map(|age| (u64::from(*age), (0..*age).fold(1.0, |health, _| health - decay), 0, true))
            .collect();
        let mut next = life.next(0);
        for step in 1..300u64 {
            let mut dying = Vec::new();
            for (cell, (age, health, generation, alive)) in now.iter_mut().enumerate().filter(|(_, c)| c.3) {
                (*age, *health) = (*age + 1, *health - decay);
                if step.is_multiple_of(interval as u64) && (*age as f64 > max_age || *health < 0.1) {
                    dying.push(cell as u32);
                    if reproduction {
                        (*age, *health, *generation) = (0, 1.0, *generation + 1);
                    } else {
                        *alive = false;
                    }
                }
            }
            assert_eq!(life.dying(step), dying, "step {step}, interval {interval}");
            if !dying.is_empty() {
                assert_eq!(next, Some(step));
                next = life.next(step);
            }
            let all = life.lives(step);
            for (cell, (age, _, generation, alive)) in now.iter().enumerate() {
                let own = (all.age[cell], all.generation[cell], all.alive[cell]);
                assert_eq!(own, (*age, *generation, *alive), "cell {cell} at {step}");
            }
        }
        let [died, born] = life.counts(299);
        assert!(died >= 50 && (born == died) == reproduction, "{died} {born}");
        assert!(reproduction || life.next(299).is_none());
    }
}

/// Mean and deviation of what children differ by, within five standard errors of each, and no two cells or generations alike.
#[test]
fn children_differ_by_the_deviation_that_is_asked_for() {
    let mut n = cells("lif_exp", 1, 100.0);
    n.lifecycle.as_mut().unwrap().mutation_std_params = 0.05;
    let plan = Plan::new(n).unwrap();
    let groups = plan.network.lifecycle.as_ref().unwrap().groups(&plan.network, 0);
    // All but the current.
    assert_eq!(groups.len(), 8);
    let parent = plan.parameters(0, 0..1).unwrap().iter().map(|v| v[0]).collect::<Vec<_>>();
    let (mut sums, mut squares) = (vec![0.0; 9], vec![0.0; 9]);
    let count = 10_000;
    let mut seen = Vec::new();
    for k in 0..count {
        let mut child = parent.clone();
        births::mutate(&plan, 0, &groups, (k % 100, k / 100), &mut child);
        for (i, (own, before)) in child.iter().zip(&parent).enumerate() {
            let x = own / before - 1.0;
            (sums[i], squares[i]) = (sums[i] + x, squares[i] + x * x);
        }
        seen.push(child[0].to_bits());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u32, count);
    let n = f64::from(count);
    for i in (0..8).filter(|i| parent[*i] != 0.0) {
        let (mean, sd) = (sums[i] / n, (squares[i] / n).sqrt());
        // The threshold stays above the reset, so the two are held now and then; all others are as drawn.
        if ![3, 4].contains(&i) {
            assert!(mean.abs() < 5.0 * 0.05 / n.sqrt(), "{i}: {mean}");
            assert!((sd - 0.05).abs() < 5.0 * 0.05 / (2.0 * n).sqrt(), "{i}: {sd}");
        }
    }
}

/// Those of a group go by one draw; what would not run is held where it just does.
#[test]
fn parameters_stay_where_their_model_runs() {
    for (model, groups) in [
        ("lif_delta", Some(vec![vec!["C_m", "tau_m"], vec!["V_th"], vec!["V_reset"], vec!["t_ref"]])),
        ("izhikevich", None),
        ("adex", None),
        ("lif_cond", None),
        ("hodgkin_huxley", None),
    ] {
        let mut n = cells(model, 1, 100.0);
        let life = n.lifecycle.as_mut().unwrap();
        let words = |g: Vec<&str>| g.into_iter().map(str::to_owned).collect();
        (life.mutation_std_params, life.mutating) = (3.0, groups.map(|all| all.into_iter().map(words).collect()));
        let plan = Plan::new(n).unwrap();
        let groups = plan.network.lifecycle.as_ref().unwrap().groups(&plan.network, 0);
        let parent = plan.parameters(0, 0..1).unwrap().iter().map(|v| v[0]).collect::<Vec<_>>();
        let (mut held, described) = (0, plan.network.populations[0].model);
        for cell in 0..200 {
            let mut own = parent.clone();
            for generation in 1..6 {
                births::mutate(&plan, 0, &groups, (cell, generation), &mut own);
                assert_eq!(described.problem(&own, plan.network.dt_ms), None, "{model}: {own:?}");
                let state = births::state(&plan, 0, (cell, generation), &own);
                assert!(state.iter().all(|x| x.is_finite()), "{model}: {state:?}");
            }
            if model == "lif_delta" {
                // Beside 0 differences of numbers that are alike have no digits.
                let ratio = own[0] / own[1] * parent[1] / parent[0];
                assert!(own[0] < 1e-3 * parent[0] || (ratio - 1.0).abs() < 1e-9, "{own:?}");
                held += usize::from((own[3] - own[4]).abs() < 1e-6);
            }
        }
        // With factors of 1 + N(0, 3) the threshold meets the reset in many.
        assert!(model != "lif_delta" || held > 20, "{held}");
    }
}

#[test]
fn weights_keep_their_side_and_their_bounds() {
    let mut n = cells("lif_exp", 10, 100.0);
    let weight = |mean: f64, low, high| Distribution::normal(mean, 1.0).within(low, high, Outside::Redraw);
    for weight in [weight(40.0, 10.0, 50.0), weight(-200.0, f64::NEG_INFINITY, 0.0), 3.0.into()] {
        n.projections.push(crate::spiking::simulate::tests::joined(weight));
    }
    n.lifecycle = Some(Lifecycle { mutation_std_weights: vec![20.0; 3], ..Lifecycle::new(&n, 100.0) });
    let plan = Plan::new(n).unwrap();
    let ends = [(10.0, 50.0), (-2.0 * 206.4, 0.0), (0.0, 6.0)];
    for (i, (low, high)) in ends.into_iter().enumerate() {
        let spread = Spread::of(&plan, i);
        let unit = plan.units[0][0];
        let begin = [40.0, -200.0, 3.0][i] / unit;
        let (mut least, mut most, mut sum, mut square) = (0.0f64, -1e9f64, 0.0, 0.0);
        least += 1e9;
        for row in 0..2000 {
            let mut code = begin.round() as i32;
            for number in 0..4 {
                let next = spread.changed(code, row, number);
                let x = f64::from(next - code) * unit;
                (sum, square) = (sum + x, square + x * x);
                code = next;
                let w = f64::from(code) * unit;
                (least, most) = (least.min(w), most.max(w));
            }
        }
        assert!(low - 0.1 < least && most < high + 0.1, "{i}: {least} {most}");
        if i != 1 {
            assert!((least - low).abs() < 0.5 && (most - high).abs() < 0.5, "{i}: {least} {most}");
        } else {
            // None of these meets a bound.
            let (mean, sd) = (sum / 8000.0, (square / 8000.0f64).sqrt());
            assert!(
                mean.abs() < 5.0 * 20.0 / 8000f64.sqrt() && (sd - 20.0).abs() < 5.0 * 20.0 / 16_000f64.sqrt(),
                "{mean} {sd}"
            );
        }
    }
    assert_eq!(
        [side(0, (-5, 7), true), side(0, (-5, 7), false), side(-1, (-5, 7), false), side(1, (2, 7), true)],
        [(-5, 0), (0, 7), (-5, 0), (2, 7)]
    );
    // A synapse of a cell onto itself changes once a death.
    assert_eq!([changes(3, 4, |c| c), changes(4, 4, |c| c)], [7, 4]);
}

#[test]
fn the_quantile_is_the_inverse_of_the_distribution() {
    for x in [-8.0, -6.0, -3.3, -1.4, -1.0, -0.1, 0.0, 0.2, 1.16, 2.5, 5.0] {
        let p = math::normal_cdf(x);
        assert!(
            (math::normal_quantile(p) - x).abs() < 1e-9f64.max(1e-16 / (p.min(1.0 - p))),
            "{x}: {}",
            math::normal_quantile(p)
        );
    }
}

#[test]
fn what_is_wrong_is_said_by_its_field() {
    let says = |change: &dyn Fn(&mut Network)| {
        let mut n = cells("lif_exp", 10, 100.0);
        change(&mut n);
        Plan::new(n).map(|_| ()).unwrap_err().to_string()
    };
    let of = |change: &'static dyn Fn(&mut Lifecycle)| says(&move |n| change(n.lifecycle.as_mut().unwrap()));
    assert!(of(&|l| l.max_age_ms = -1.0).contains("lifecycle.max_age is -1 ms"));
    assert!(of(&|l| l.max_age_ms = f64::INFINITY).contains("health_decay is 0, so that no cell dies"));
    assert!(of(&|l| l.health_decay_per_ms = f64::NAN).contains("lifecycle.health_decay is NaN"));
    assert!(of(&|l| l.mutation_std_params = -0.1).contains("mutation_std_params is -0.1"));
    assert!(of(&|l| l.mutation_std_weights = vec![1.0]).contains("has 1 values for 0 projections"));
    assert!(of(&|l| l.interval_ms = 0.2).contains("lifecycle.interval is 0.2 ms, which must be from one step of 1 ms"));
    assert!(of(&|l| l.initial_age_ms = Distribution::normal(5.0, 5.0)).contains("no cell is younger than 0 ms"));
    assert!(of(&|l| l.populations = vec![]).contains("all are sources"));
    assert!(of(&|l| l.populations = vec![4]).contains("has population 4, but there are 1"));
    let mutating = |names: &'static [&'static str]| {
        says(&move |n| {
            let words = vec![names.iter().map(|name| (*name).to_owned()).collect()];
            n.lifecycle.as_mut().unwrap().mutating = Some(words);
        })
    };
    assert!(mutating(&["tau"]).contains("names \"tau\", which no model"));
    assert!(mutating(&["I_e"]).contains("is an input and no property"));
    assert!(mutating(&["tau_m", "tau_m"]).contains("names \"tau_m\" twice"));
    let sources = says(&|n| {
        n.add(Population::new("P", models::find("poisson").unwrap(), 3));
        n.lifecycle.as_mut().unwrap().populations = vec![0, 1];
    });
    assert!(sources.contains("names P, whose cells are sources"), "{sources}");
}
