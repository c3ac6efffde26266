//! A simulation that a program steers: so many steps, a look at the state, other inputs, a checkpoint, and on.
//!
//! The engine lives on a thread of its own, so that whoever waits for it can look for Ctrl-C, and hands over what it is asked
//! for. Chunks, looks and checkpoints do not show in the spikes.

use super::changes::Input;
use super::gpus::{check_method, devices};
use super::steer::{Anew, Books, Core, Job, Place, serve};
use crate::progress::{Progress, Silent};
use crate::spiking::connect::Synapses;
use crate::spiking::life::Lives;
use crate::spiking::network::Drive;
use crate::spiking::network::read::Settings;
use crate::spiking::simulate::Spike;
use crate::{Backend, Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(20);

/// What does not change about a session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Facts {
    /// The step, ms.
    pub dt_ms: f64,
    /// The seed.
    pub seed: u64,
    /// How long the description says to run, ms.
    pub duration_ms: f64,
    /// In the order of their cells' numbers.
    pub populations: Vec<PopulationFacts>,
    /// The first population of each of several networks side by side; nothing for one network.
    pub replicas: Vec<usize>,
    /// `(source, target)` of each projection.
    pub projections: Vec<(usize, usize)>,
    /// How many synapses.
    pub synapses: u64,
    /// `cpu` or `cuda:N`.
    pub backend: String,
    /// How the network is cut for it.
    pub engine: String,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// A population of a session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PopulationFacts {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: &'static str,
    /// How many cells.
    pub size: u32,
    /// The number of its first cell.
    pub first: u64,
    /// `(name, unit)` of each variable that a look at the state gives.
    pub variables: Vec<(&'static str, &'static str)>,
    /// The unit of weights onto its cells.
    pub weight_unit: &'static str,
    /// Where its cells lie, if they lie somewhere.
    pub positions: Option<Arc<Vec<[f32; 4]>>>,
}

/// What a recorder has gathered.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Trace {
    /// Index of the population.
    pub population: usize,
    /// Cells of the population.
    pub cells: Vec<u32>,
    /// The names of the variables.
    pub variables: Vec<&'static str>,
    /// The times of the samples, ms: at the ends of steps.
    pub times_ms: Vec<f64>,
    /// `[variable][sample, cell]`.
    pub values: Vec<Vec<f32>>,
}

/// A running simulation. Dropping it ends it.
#[derive(Debug)]
pub struct Session {
    jobs: SyncSender<Job>,
    stop: Arc<AtomicBool>,
    /// Why the thread has ended, if it has.
    ended: Ended,
    facts: Facts,
    process: u32,
}

pub(super) type Ended = Arc<Mutex<Option<Error>>>;

impl Session {
    /// Builds the network of `settings`; `progress` is asked whether to stop, and then the session is not made.
    ///
    /// # Errors
    /// Of the device, the network (`Config`), its memory (`OutOfMemory`); `Interrupted`.
    pub fn open(settings: Settings, backend: Backend, progress: &dyn Progress) -> Result<Self> {
        Self::open_on(settings, backend, None, "auto", progress)
    }

    /// The same on `gpus` GPUs, from `cuda:0` on, which share the network by `method`: `auto`, or the name of a partitioner.
    ///
    /// # Errors
    /// As [`open`](Self::open); GPUs that are not there, a method that there is not, or that has no GPUs to serve.
    pub fn open_on(
        settings: Settings,
        backend: Backend,
        gpus: Option<usize>,
        method: &str,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (device, cards, why) = devices(backend, gpus)?;
        check_method(method, &device)?;
        let place = Place { device, cards, method: method.into() };
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Ended::default();
        let (jobs, taken) = sync_channel::<Job>(1);
        let (built, told) = sync_channel(1);
        let mut notes = settings.notes.clone();
        notes.extend(why);
        let books = Books::new(settings, notes, stop.clone());
        let fate = ended.clone();
        std::thread::Builder::new()
            .name("chronaxie-session".into())
            .spawn(move || {
                if let Err(e) = serve(books, &place, &built, &taken) {
                    *fate.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                }
            })
            .map_err(|e| Error::value(format!("a thread for the simulation cannot be made: {e}")))?;
        let facts = wait(&told, progress, &stop, &ended)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "building the network was interrupted"));
        }
        Ok(Self { jobs, stop, ended, facts, process: std::process::id() })
    }

    /// What does not change.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Does `job` on the session's thread.
    fn ask<T: Send + 'static>(
        &self,
        progress: &dyn Progress,
        job: impl FnOnce(&mut Core<'_>) -> (T, Option<Anew>) + Send + 'static,
    ) -> Result<T> {
        if self.process != std::process::id() {
            return Err(Error::unavailable("a simulation does not live on in a forked process; make it anew there"));
        }
        self.stop.store(false, Ordering::Relaxed);
        let (answer, told) = sync_channel(1);
        let job: Job = Box::new(move |core| {
            let (value, anew) = job(core);
            let _ = answer.send(value);
            anew
        });
        self.jobs.send(job).map_err(|_| why(&self.ended))?;
        wait(&told, progress, &self.stop, &self.ended)
    }

    /// Runs `steps` steps; their spikes, with those of a run that was interrupted ahead, in order. `keep` is whether there are
    /// any: they are hashed in any case.
    ///
    /// # Errors
    /// `Interrupted`, at a chunk's end: the session can go on from there. What the device refuses.
    pub fn run(&self, steps: u64, keep: bool, progress: &dyn Progress) -> Result<Vec<Spike>> {
        self.ask(progress, move |core| (core.run(steps, keep), None))?
    }

    /// The next step, and how many spikes there were, and their hash.
    ///
    /// # Errors
    /// Where the session has ended.
    pub fn at(&self) -> Result<(u64, u64, String)> {
        self.ask(&Silent, |core| (core.at(), None))
    }

    /// The state variables of a population, as its model describes them, `[variable][cell]`; not a number where the reduced
    /// model has merged one away, and of a cell that is dead.
    ///
    /// # Errors
    /// `Config`, where there is no such population; what the device refuses.
    pub fn state(&self, population: usize) -> Result<Vec<Vec<f32>>> {
        self.ask(&Silent, move |core| (core.state(population), None))?
    }

    /// The generations and ages of all cells; nothing where none can die.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn lives(&self) -> Result<Option<Lives>> {
        self.ask(&Silent, |core| (core.lives(), None))?
    }

    /// Sets state variables of a population, a value a cell each.
    ///
    /// # Errors
    /// `Config`, where there is no such population or variable or the values do not fit; what the device refuses.
    pub fn set_state(&self, population: usize, values: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.ask(&Silent, move |core| (core.set_state(population, &values), None))?
    }

    /// The synapses of a projection.
    ///
    /// # Errors
    /// `Config`, where there is no such projection; `OutOfMemory`.
    pub fn synapses(&self, projection: usize) -> Result<Synapses> {
        self.ask(&Silent, move |core| (core.synapses(projection), None))?
    }

    /// The drives as they are now.
    ///
    /// # Errors
    /// Where the session has ended.
    pub fn drives(&self) -> Result<Vec<Drive>> {
        self.ask(&Silent, |core| (core.drives(), None))?
    }

    /// Sets the rate (arrivals a second and cell) or the current of a drive, from the next step on.
    ///
    /// # Errors
    /// `Config`, where there is no such drive or the value is none; what building anew refuses.
    pub fn set_drive(&self, drive: usize, value: f64) -> Result<()> {
        self.change(Input::Drive(drive), vec![value])
    }

    /// Sets the current of the cells of a population, or the rate of Poisson sources: one value, or one a cell.
    ///
    /// # Errors
    /// As [`set_drive`](Self::set_drive).
    pub fn set_input(&self, population: usize, values: Vec<f64>) -> Result<()> {
        self.change(Input::Cells(population), values)
    }

    fn change(&self, input: Input, values: Vec<f64>) -> Result<()> {
        self.ask(&Silent, move |core| split(core.set(input, values)))??;
        // Where the engine is built anew: until it is.
        self.at().map(|_| ())
    }

    /// What recorders gathered since this was last called.
    ///
    /// # Errors
    /// Where the session has ended.
    pub fn take_traces(&self) -> Result<Vec<Trace>> {
        self.ask(&Silent, |core| (core.take_traces(), None))
    }

    /// Writes a checkpoint, atomically.
    ///
    /// # Errors
    /// `Io`; what the device refuses.
    pub fn save(&self, path: PathBuf) -> Result<()> {
        self.ask(&Silent, move |core| (core.save(&path), None))?
    }

    /// Goes to the checkpoint of a session, or of a run, of the same network.
    ///
    /// # Errors
    /// `Checkpoint`, where it does not fit; then the session is where it was.
    pub fn restore(&self, path: PathBuf) -> Result<()> {
        self.ask(&Silent, move |core| split(core.restore(&path)))??;
        self.at().map(|_| ())
    }
}

fn split(result: Result<Option<Anew>>) -> (Result<()>, Option<Anew>) {
    match result {
        Ok(anew) => (Ok(()), anew),
        Err(e) => (Err(e), None),
    }
}

/// Why the thread is gone.
fn why(ended: &Ended) -> Error {
    // It says so before it lets go of its ends of the channels.
    let mut told = ended.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = Error::value("the simulation has ended, by an earlier error");
    told.take().unwrap_or(gone)
}

/// Waits for an answer, and asks every now and then whether to stop.
fn wait<T>(told: &Receiver<T>, progress: &dyn Progress, stop: &AtomicBool, ended: &Ended) -> Result<T> {
    loop {
        match told.recv_timeout(LOOK) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) if progress.interrupted() => stop.store(true, Ordering::Relaxed),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(why(ended)),
        }
    }
}
