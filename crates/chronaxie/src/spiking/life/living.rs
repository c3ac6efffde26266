//! An engine of a network whose cells die and are born: any other engine from one death to the next.
//!
//! Between two steps of an engine its state is taken, what dies and is born is changed in it, and it goes on from there, as it would from a
//! checkpoint. The CPU's engine takes other parameters and weights in place; in the place of another a new one is made, of the network as
//! it is then. All of that is on a thread of its own, since an engine borrows its plan.

use super::Lives;
use super::own::{Moved, Own};
use crate::spiking::connect::Synapses;
use crate::spiking::network::Network;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::{Engine, Spike, State, Weights};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Makes an engine of a plan without a life cycle.
pub type Make = Box<dyn for<'p> Fn(&'p Plan) -> Result<Box<dyn Engine + 'p>> + Send>;

/// What the engine's thread is asked for; it is asked again, of another engine, where it hands back a state that this one is to go on from.
type Job = Box<dyn FnMut(&mut Core<'_>) -> Option<State> + Send>;

/// What has come of a job.
enum Turn<T> {
    Done(T),
    /// The engine is to be made anew; then it goes on.
    Anew(Box<State>),
}

/// Runs a network whose cells die and are born.
pub struct Living {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    ended: Arc<Mutex<Option<Error>>>,
    step: u64,
    facts: Facts,
}

/// What does not change.
struct Facts {
    synapses: u64,
    config: String,
    variant: &'static str,
    update_bytes: u64,
    synapse_bytes: Option<f64>,
}

/// An engine, and what its network is beside its state.
struct Core<'a> {
    engine: Box<dyn Engine + 'a>,
    own: &'a mut Own,
    done: &'a mut Done,
}

/// What engines did before this one.
#[derive(Default)]
struct Done {
    /// Beside what this one says.
    events: i64,
    launches: u64,
}

impl std::fmt::Debug for Living {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Living(step {}, {})", self.step, self.facts.config)
    }
}

impl Living {
    /// The network of a plan with a life cycle, run by engines that `make` makes.
    ///
    /// # Errors
    /// Of the network, its memory and the device.
    pub fn new(network: Network, make: Make) -> Result<Self> {
        let ended = Arc::new(Mutex::new(None));
        let (jobs, taken) = sync_channel::<Job>(1);
        let (built, told) = sync_channel(1);
        let fate = ended.clone();
        let work = move || {
            // A job that has no answer yet lives until it is said why.
            let mut left = None;
            if let Err(e) = serve(network, &make, &built, &taken, &mut left) {
                *fate.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
            }
            drop((left, built, taken));
        };
        let thread = std::thread::Builder::new().name("chronaxie-life".into()).spawn(work);
        let thread = thread.map_err(|e| Error::value(format!("a thread for the life cycle cannot be made: {e}")))?;
        let facts = told.recv().map_err(|_| why(&ended))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), ended, step: 0, facts })
    }

    fn ask<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut Core<'_>) -> Result<Turn<T>> + Send + 'static,
    ) -> Result<T> {
        let (answer, told) = sync_channel(1);
        let job: Job = Box::new(move |core| {
            let (said, anew) = match work(core) {
                Ok(Turn::Anew(state)) => return Some(*state),
                Ok(Turn::Done(value)) => (Ok(value), None),
                Err(e) => (Err(e), None),
            };
            let _ = answer.send(said);
            anew
        });
        let jobs = self.jobs.as_ref().ok_or_else(|| why(&self.ended))?;
        jobs.send(job).map_err(|_| why(&self.ended))?;
        told.recv().map_err(|_| why(&self.ended))?
    }

    /// Asks for what needs no other engine.
    fn look<T: Send + 'static>(&self, work: impl Fn(&Core<'_>) -> Result<T> + Send + 'static) -> Result<T> {
        self.ask(move |core| work(core).map(Turn::Done))
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Why the thread is gone.
fn why(ended: &Mutex<Option<Error>>) -> Error {
    let mut told = ended.lock().unwrap_or_else(PoisonError::into_inner);
    told.take().unwrap_or_else(|| Error::value("the network has no state: its engine has ended, by an earlier error"))
}

/// Makes one engine after the other and does what it is asked, until nobody asks any more.
fn serve(
    network: Network,
    make: &Make,
    built: &SyncSender<Facts>,
    jobs: &Receiver<Job>,
    left: &mut Option<Job>,
) -> Result<()> {
    let (mut own, mut done) = (Own::new(Plan::new(network)?)?, Done::default());
    let (mut state, mut told): (Option<State>, bool) = (None, false);
    loop {
        let plan = own.plan()?;
        let mut core = Core { engine: make(&plan)?, own: &mut own, done: &mut done };
        if let Some(state) = state.take() {
            core.go(&state)?;
        }
        if !std::mem::replace(&mut told, true) {
            let _ = built.send(core.facts());
        }
        while state.is_none() {
            let Some(mut job) = left.take().or_else(|| jobs.recv().ok()) else { return Ok(()) };
            state = job(&mut core);
            if state.is_some() {
                core.leave();
                *left = Some(job);
            }
        }
    }
}

impl Core<'_> {
    fn facts(&self) -> Facts {
        let engine = &self.engine;
        Facts {
            synapses: engine.synapses(),
            config: engine.config(),
            variant: engine.variant(),
            update_bytes: engine.update_bytes(),
            synapse_bytes: engine.synapse_bytes(),
        }
    }

    fn events(&self) -> u64 {
        (self.engine.events() as i64 + self.done.events).max(0) as u64
    }

    /// Notes what this engine has done, after which there is another.
    fn leave(&mut self) {
        self.done.events += self.engine.events() as i64;
        self.done.launches += self.engine.launches();
    }

    /// Lets the engine go on from a state of what the network is now. What is under way has been counted.
    fn go(&mut self, state: &State) -> Result<()> {
        let before = self.engine.events() as i64;
        self.engine.restore(&self.own.stepped(state))?;
        self.done.events += before - self.engine.events() as i64;
        Ok(())
    }

    fn state(&self) -> Result<State> {
        let state = self.engine.state()?;
        let step = state.step;
        Ok(self.own.said(state, step))
    }

    /// Goes on from `state` after the network has moved, here, or in an engine that is made anew.
    fn follow(&mut self, state: State, moved: &Moved) -> Result<Option<State>> {
        if moved.back || !moved.weights.is_empty() && !self.engine.reweigh(&moved.weights)? {
            return Ok(Some(state));
        }
        if moved.parameters {
            let inputs = self.own.inputs();
            if !self.engine.redrive(&self.own.base.redriven(inputs)?)? {
                return Ok(Some(state));
            }
        }
        self.go(&state).map(|()| None)
    }

    /// Runs up to step `to`, or to a death after which the engine is to be made anew.
    fn advance(&mut self, to: u64, spikes: &mut Vec<Spike>) -> Result<Option<State>> {
        while self.engine.step() < to {
            let step = self.engine.step();
            let death = self.own.life.next(step).filter(|death| *death <= to);
            self.engine.advance(death.unwrap_or(to) - step, spikes)?;
            let Some(death) = death else { continue };
            let mut state = self.own.said(self.engine.state()?, death - 1);
            let moved = self.own.pass_on(&mut state, death)?;
            if let Some(anew) = self.follow(state, &moved)? {
                return Ok(Some(anew));
            }
        }
        Ok(None)
    }

    /// Goes to a state of any step; true where it has.
    fn restore(&mut self, state: &State) -> Result<Option<State>> {
        // What is none of this network is refused before anything changes.
        self.go(state)?;
        let moved = self.own.go(state.step)?;
        self.follow(state.clone(), &moved)
    }

    /// Goes on with other inputs.
    fn redrive(&mut self, network: Network) -> Result<Option<State>> {
        let before = self.own.redrive(network)?;
        let inputs = self.own.inputs();
        match self.own.base.redriven(inputs).and_then(|plan| self.engine.redrive(&plan)) {
            Ok(true) => Ok(None),
            Ok(false) => self.state().map(Some),
            Err(e) => {
                self.own.redrive(before)?;
                Err(e)
            }
        }
    }
}

impl Engine for Living {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let to = self.step + steps;
        let mut found = Vec::new();
        let all = self.ask(move |core| match core.advance(to, &mut found)? {
            Some(state) => Ok(Turn::Anew(Box::new(state))),
            None => Ok(Turn::Done(std::mem::take(&mut found))),
        })?;
        spikes.extend(all);
        self.step = to;
        Ok(())
    }

    fn state(&self) -> Result<State> {
        self.look(|core| core.state())
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let (state, mut anew) = (state.clone(), false);
        let step = state.step;
        self.ask(move |core| {
            if std::mem::replace(&mut anew, true) {
                return Ok(Turn::Done(()));
            }
            Ok(core.restore(&state)?.map_or(Turn::Done(()), |state| Turn::Anew(Box::new(state))))
        })?;
        self.step = step;
        Ok(())
    }

    fn redrive(&mut self, plan: &Plan) -> Result<bool> {
        let mut network = Some(plan.network.clone());
        self.ask(move |core| {
            let Some(network) = network.take() else { return Ok(Turn::Done(true)) };
            Ok(core.redrive(network)?.map_or(Turn::Done(true), |state| Turn::Anew(Box::new(state))))
        })
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.look(move |core| core.engine.cell(population, cell))
    }

    fn parameters(&self, _plan: &Plan, population: usize, cells: Range<u32>) -> Result<Vec<Vec<f64>>> {
        self.look(move |core| core.own.parameters(population, cells.clone()))
    }

    fn lives(&self) -> Result<Option<Lives>> {
        self.look(|core| Ok(Some(core.own.life.lives(core.engine.step()))))
    }

    fn synapses(&self) -> u64 {
        self.facts.synapses
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        self.look(|core| core.engine.weights())
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        self.look(move |core| core.own.table(projection).map_or_else(|| core.engine.table(projection), Ok))
    }

    fn events(&self) -> u64 {
        self.look(|core| Ok(core.events())).unwrap_or(0)
    }

    fn config(&self) -> String {
        format!("{}, from one death of cells to the next", self.facts.config)
    }

    fn variant(&self) -> &'static str {
        self.facts.variant
    }

    fn launches(&self) -> u64 {
        self.look(|core| Ok(core.done.launches + core.engine.launches())).unwrap_or(0)
    }

    fn update_bytes(&self) -> u64 {
        self.facts.update_bytes
    }

    fn synapse_bytes(&self) -> Option<f64> {
        self.facts.synapse_bytes
    }

    fn floor_us(&self) -> Option<f64> {
        self.look(|core| Ok(core.engine.floor_us())).ok().flatten()
    }
}
