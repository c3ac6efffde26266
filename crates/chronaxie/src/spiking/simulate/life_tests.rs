//! Cells that die and are born: engines against the law, against each other, and resumed across deaths.

use super::learning_tests::{learning, run, strengths};
use super::rules_tests::{bcm, coincidence, hebb, scaling};
use super::tests::balanced;
use super::{Checkpoint, CpuEngine, Engine, Reference, Spike, State, Weights};
use crate::spiking::connect::{self, Synapses};
use crate::spiking::life::{Life, Living, Make};
use crate::spiking::network::{Distribution, Lifecycle, Network};
use crate::spiking::plan::Plan;
use crate::spiking::plasticity::{Dependence, Placement};
use crate::{Result, pool};

const STEPS: u64 = 12_000;

/// Cells that live for some 300 ms and die one after the other, at multiples of `interval_ms`.
fn mortal(mut n: Network, interval_ms: f64) -> Network {
    n.lifecycle = Some(Lifecycle {
        initial_age_ms: Distribution::uniform(0.0, 300.0),
        mutation_std_params: 0.02,
        mutation_std_weights: n.projections.iter().map(|p| 0.1 * p.weight.mean().abs()).collect(),
        interval_ms,
        ..Lifecycle::new(&n, 300.0)
    });
    n
}

fn living(network: &Network, shards: usize) -> Living {
    let make: Make = Box::new(move |plan| Ok(Box::new(CpuEngine::with_shards(plan, shards, &|_, _| ())?)));
    Living::new(network.clone(), make).unwrap()
}

/// An engine that takes nothing in place.
struct Fixed<'a>(CpuEngine<'a>);

impl Engine for Fixed<'_> {
    fn step(&self) -> u64 {
        self.0.step()
    }
    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        self.0.advance(steps, spikes)
    }
    fn state(&self) -> Result<State> {
        self.0.state()
    }
    fn restore(&mut self, state: &State) -> Result<()> {
        self.0.restore(state)
    }
    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.0.cell(population, cell)
    }
    fn synapses(&self) -> u64 {
        self.0.synapses()
    }
    fn weights(&self) -> Result<Vec<Weights>> {
        self.0.weights()
    }
    fn table(&self, projection: usize) -> Result<Synapses> {
        self.0.table(projection)
    }
    fn events(&self) -> u64 {
        self.0.events()
    }
    fn config(&self) -> String {
        self.0.config()
    }
    fn variant(&self) -> &'static str {
        self.0.variant()
    }
}

fn through_bytes(state: State) -> State {
    let (hash, replicas, counts) = (Default::default(), vec![], vec![]);
    let checkpoint = Checkpoint { fingerprint: [0; 32], state, hash, replicas, logged: 0, counts };
    Checkpoint::from_bytes(&checkpoint.to_bytes(), std::path::Path::new("c")).unwrap().state
}

/// The law, and the engine with 1, 2 and 3 threads, several shards, steps in pieces, and made anew at each death: the same spikes, at least
/// 10,000, the same generations, deliveries and state, as hundreds of cells die and are born while spikes are under way everywhere.
#[test]
fn spikes_of_cells_that_are_born_are_the_same_bits() {
    let network = mortal(balanced(100, 7), 2.5);
    let plan = Plan::new(network.clone()).unwrap();
    let mut law = Reference::in_f32(&plan).unwrap();
    let mut want = Vec::new();
    law.advance(STEPS, &mut want).unwrap();
    assert!(want.len() >= 10_000, "only {} spikes", want.len());
    let [died, born] = Life::of(&plan).unwrap().counts(STEPS);
    assert!(died > 1500 && born == died, "{died} {born}");
    let (mut state, mut tables): (Option<State>, Option<Synapses>) = (None, None);
    for (threads, shards, pieces) in
        [(1, 1, vec![STEPS]), (2, 5, vec![1, 2, 3, 94, 5000, STEPS - 5100]), (3, 3, vec![7001, STEPS - 7001])]
    {
        pool::set_num_threads(threads);
        let mut engine = living(&network, shards);
        if threads == 3 {
            let make: Make = Box::new(|plan| Ok(Box::new(Fixed(CpuEngine::with_shards(plan, 3, &|_, _| ())?))));
            engine = Living::new(network.clone(), make).unwrap();
        }
        let got = run(&mut engine, &pieces);
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(got == want, "{threads} threads: {} spikes, not {}, {common} alike", got.len(), want.len());
        assert_eq!(engine.events(), law.events());
        let lives = engine.lives().unwrap().unwrap();
        assert_eq!((&lives.generation[..], &lives.alive[..]), law.lives().unwrap());
        assert_eq!([lives.died, lives.born], [died, born]);
        let own = engine.state().unwrap();
        assert!(state.as_ref().is_none_or(|s| *s == own));
        state = Some(own);
        // Weights of projections that change have moved, and stay on their side.
        let (begun, now) = (connect::synapses(&plan, 2).unwrap(), engine.table(2).unwrap());
        assert_eq!((&now.source, &now.target, &now.delay_ms), (&begun.source, &begun.target, &begun.delay_ms));
        let other = now.weight.iter().zip(&begun.weight).filter(|(a, b)| a != b).count();
        assert!(2 * other > now.weight.len() && now.weight.iter().all(|w| *w <= 0.0));
        assert!(tables.as_ref().is_none_or(|t| *t == now));
        tables = Some(now);
    }
    // It is the life cycle that all of them have.
    let mut without = network;
    without.lifecycle = None;
    let plan = Plan::new(without).unwrap();
    assert!(run(&mut CpuEngine::new(&plan, &|_, _| ()).unwrap(), &[STEPS]) != want);
}

/// Weights too, of steps just before, at and after a death, when spikes are under way everywhere; and what goes on from one of them in an
/// engine of another shape that was elsewhere.
fn weights_are_those_of_the_law(network: Network, pieces: [u64; 5], cut: usize, least: usize) {
    let network = mortal(network, 20.0);
    let plan = Plan::new(network.clone()).unwrap();
    let mut law = Reference::in_f32(&plan).unwrap();
    let (mut want, mut weights) = (Vec::new(), Vec::new());
    for steps in pieces {
        law.advance(steps, &mut want).unwrap();
        weights.push(strengths(&plan, &law));
    }
    assert!(want.len() >= least, "only {} spikes", want.len());
    pool::set_num_threads(1 + cut % 2);
    let mut engine = living(&network, 3);
    let mut got = Vec::new();
    for (i, steps) in pieces.into_iter().enumerate() {
        engine.advance(steps, &mut got).unwrap();
        let common = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(common == got.len(), "piece {i}: {} spikes, {common} alike", got.len());
        let state = engine.state().unwrap();
        assert!(state.learned.as_ref().unwrap().strengths == weights[i], "piece {i}: weights");
        if i == cut {
            engine = living(&network, 2);
            run(&mut engine, &[1700]);
            engine.restore(&through_bytes(state.clone())).unwrap();
            assert!(engine.state().unwrap() == state, "piece {i}: the state that was restored");
        }
    }
    assert!(got == want, "{} spikes, not {}", got.len(), want.len());
}

const PIECES: [u64; 5] = [4999, 1, 1, 3333, STEPS - 8334];

#[test]
fn weights_of_children_are_those_of_the_law_with_delays_behind() {
    weights_are_those_of_the_law(learning(100, 21, [Placement::Dendritic; 4]), PIECES, 0, 10_000);
}

#[test]
fn weights_of_children_are_those_of_the_law_with_delays_ahead() {
    weights_are_those_of_the_law(learning(100, 22, [Placement::Axonal; 4]), PIECES, 1, 10_000);
}

#[test]
fn weights_of_children_are_those_of_the_law_by_every_rule() {
    let (behind, ahead) = (Placement::Dendritic, Placement::Axonal);
    let mut network = balanced(100, 9);
    let what = [
        hebb(160.0, Dependence::Multiplicative, ahead).and_homeostasis(scaling(0.4, None)),
        bcm(160.0, behind).and_coincidence(coincidence(None)),
        hebb(800.0, Dependence::Additive, behind),
        bcm(800.0, ahead),
    ];
    for (p, mut what) in network.projections.iter_mut().zip(what) {
        what.decay_per_ms = 0.002;
        p.plasticity = Some(what);
    }
    // The law lets every synapse decay in every step.
    weights_are_those_of_the_law(network, [999, 1, 1, 800, 1199], 2, 2000);
}

/// A state that goes through a checkpoint's bytes, before, at and after a death, and back to an earlier one.
#[test]
fn a_run_resumes_across_deaths_to_the_same_bits() {
    pool::set_num_threads(2);
    let network = mortal(balanced(100, 8), 10.0);
    let mut whole = living(&network, 2);
    let want = run(&mut whole, &[STEPS]);
    assert!(want.len() >= 10_000, "only {} spikes", want.len());
    let end = whole.state().unwrap();
    let mut second = living(&network, 3);
    for cut in [7003, 1, 6000, 5999] {
        let mut first = living(&network, 4);
        let mut got = run(&mut first, &[cut]);
        second.restore(&through_bytes(first.state().unwrap())).unwrap();
        got.extend(run(&mut second, &[STEPS - cut]));
        assert!(got == want, "cut at {cut}");
        assert!(second.state().unwrap() == end, "cut at {cut}");
    }
    let mut wrong = end.clone();
    wrong.variables[0][0].pop();
    assert!(second.restore(&wrong).is_err());
    assert!(second.state().unwrap() == end);
}

/// Without children a site stays empty: nothing fires there again, which the law and the engine agree on, and the last cell's death
/// ends all.
#[test]
fn cells_without_children_are_gone() {
    let pair = [balanced(160, 11), learning(160, 24, [Placement::Axonal; 4])];
    for mut network in pair {
        network = mortal(network, 1.0);
        let life = network.lifecycle.as_mut().unwrap();
        (life.reproduction, life.max_age_ms, life.populations) = (false, 1050.0, vec![0]);
        life.initial_age_ms = Distribution::uniform(0.0, 100.0);
        let plan = Plan::new(network.clone()).unwrap();
        let (mut want, mut law) = (Vec::new(), Reference::in_f32(&plan).unwrap());
        law.advance(STEPS, &mut want).unwrap();
        let mut engine = living(&network, 2);
        let mut got = run(&mut engine, &[9900]);
        let half = through_bytes(engine.state().unwrap());
        assert!(half.variables.iter().flatten().flatten().all(|x| x.is_finite()));
        let lives = engine.lives().unwrap().unwrap();
        let dead = lives.alive.iter().position(|alive| !alive).unwrap() as u32;
        assert!(engine.cell(0, dead).unwrap()[0].is_nan());
        engine = living(&network, 3);
        engine.restore(&half).unwrap();
        got.extend(run(&mut engine, &[STEPS - 9900]));
        assert!(want.len() >= 10_000 && got == want, "{} spikes, not {}", got.len(), want.len());
        let life = Life::of(&plan).unwrap();
        assert!(want.iter().all(|s| life.alive(s.cell, s.step)));
        let late = |s: &&Spike| s.step > 10_510;
        assert!(want.iter().filter(late).count() > 50 && want.iter().filter(late).all(|s| s.cell >= 640));
        assert_eq!(life.counts(STEPS), [640, 0]);
        assert_eq!(engine.lives().unwrap().unwrap().alive.iter().filter(|alive| **alive).count(), 160);
    }
}

/// The law in f64: no bit the same, but rates.
#[test]
fn rates_are_those_of_the_law_in_double_precision() {
    let network = mortal(balanced(100, 13), 5.0);
    let plan = Plan::new(network.clone()).unwrap();
    let mut want = Vec::new();
    Reference::new(&plan).unwrap().advance(STEPS, &mut want).unwrap();
    let got = run(&mut living(&network, 1), &[STEPS]);
    let (a, b) = (want.len() as f64, got.len() as f64);
    assert!(a > 10_000.0 && (a - b).abs() < 0.03 * a, "{a} {b}");
}

/// What runs by itself does not leave the life cycle out.
#[test]
fn an_engine_by_itself_refuses_cells_that_die() {
    let plan = Plan::new(mortal(balanced(20, 1), 1.0)).unwrap();
    let e = CpuEngine::new(&plan, &|_, _| ()).unwrap_err().to_string();
    assert!(e.contains("does not let cells die") && e.contains("lifecycle.death = false"), "{e}");
    let networks = [mortal(balanced(20, 1), 1.0), balanced(20, 1)];
    let e = Network::together(&networks).unwrap_err().to_string();
    assert!(e.contains("replica 0 has a life cycle"), "{e}");
}
