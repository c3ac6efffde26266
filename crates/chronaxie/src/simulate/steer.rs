//! The thread of a session: what it has, and what it does when it is asked.

use super::changes::{Changes, Input};
use super::gpus::{engine, words};
use super::run::fingerprint;
use super::session::{Facts, PopulationFacts, Trace};
use crate::cuda::CudaDevice;
use crate::report::write_atomically;
use crate::spiking::connect::Synapses;
use crate::spiking::life::Lives;
use crate::spiking::network::Drive;
use crate::spiking::network::read::Settings;
use crate::spiking::record::{Recorder, SpikeHash};
use crate::spiking::simulate::{Checkpoint, Engine, Spike, State};
use crate::spiking::{Network, Plan};
use crate::{Device, Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

/// Spikes from which on a thread beside the steps hashes them: it takes 0.5 ms.
const WORTH_A_THREAD: usize = if cfg!(test) { 8 } else { 1 << 16 };

/// A network whose engine is built anew, and the state that it goes on from.
pub(super) type Anew = (Network, State);

/// What a session asks for.
pub(super) type Job = Box<dyn FnOnce(&mut Core<'_>) -> Option<Anew> + Send>;

/// An engine and what belongs to it.
pub(super) struct Core<'a> {
    plan: &'a Plan,
    engine: Box<dyn Engine + 'a>,
    books: &'a mut Books,
    /// Whether steps leave the cores free.
    beside: bool,
}

/// What outlives an engine that is built anew.
pub(super) struct Books {
    /// As it was described, before any change.
    described: Network,
    duration_ms: f64,
    notes: Vec<String>,
    changes: Changes,
    hash: SpikeHash,
    pending: Vec<Spike>,
    recorders: Vec<Recorder>,
    traces: Vec<Trace>,
    /// Steps of a chunk: about a tenth of a second.
    chunk: u64,
    stop: Arc<AtomicBool>,
}

impl Books {
    pub fn new(settings: Settings, notes: Vec<String>, stop: Arc<AtomicBool>) -> Self {
        Self {
            traces: settings.recorders.iter().map(|r| Trace::empty(r, &settings.network)).collect(),
            chunk: (10.0 / settings.network.dt_ms).round().max(1.0) as u64,
            described: settings.network,
            duration_ms: settings.duration_ms,
            notes,
            changes: Changes::default(),
            hash: if settings.hash { SpikeHash::default() } else { SpikeHash::none() },
            pending: Vec::new(),
            recorders: settings.recorders,
            stop,
        }
    }
}

impl Trace {
    fn empty(recorder: &Recorder, network: &Network) -> Self {
        let model = network.populations[recorder.population].model;
        Self {
            population: recorder.population,
            cells: recorder.cells.clone(),
            variables: recorder.variables.iter().map(|v| model.variables()[*v].name).collect(),
            times_ms: Vec::new(),
            values: vec![Vec::new(); recorder.variables.len()],
        }
    }
}

/// Where engines are built: on the CPU, or on GPUs that share the network by a method.
pub(super) struct Place {
    pub device: Device,
    pub cards: Vec<Arc<CudaDevice>>,
    pub method: String,
}

/// Builds one engine after the other and does what it is asked, until nobody asks any more.
pub(super) fn serve(mut books: Books, place: &Place, built: &SyncSender<Facts>, jobs: &Receiver<Job>) -> Result<()> {
    let mut next = Some((books.described.clone(), None));
    let mut told = false;
    while let Some((network, state)) = next.take() {
        let plan = Plan::new(network)?;
        let silent = |_, _| {};
        let (mut engine, method) = engine(&plan, (&place.device, &place.cards, &place.method), &silent)?;
        if let Some(state) = state {
            engine.resume(state, None)?;
        }
        if !std::mem::replace(&mut told, true) {
            let _ = built.send(facts(&plan, (&*engine, method), &place.device, &books));
        }
        let beside = !matches!(place.device, Device::Cpu);
        let mut core = Core { plan: &plan, engine, books: &mut books, beside };
        while let Ok(job) = jobs.recv() {
            if let Some((network, state)) = job(&mut core) {
                next = Some((network, Some(state)));
                break;
            }
        }
    }
    Ok(())
}

/// The populations of a network, in the order of their cells.
pub(super) fn populations(plan: &Plan) -> Vec<PopulationFacts> {
    let population = |(p, first): (&crate::spiking::Population, &u64)| PopulationFacts {
        name: p.name.clone(),
        model: p.model.name(),
        size: p.size,
        first: *first,
        variables: p.model.variables().iter().map(|v| (v.name, v.unit)).collect(),
        weight_unit: p.model.weight_unit(),
        positions: p.positions.clone(),
    };
    plan.network.populations.iter().zip(&plan.first).map(population).collect()
}

fn facts(plan: &Plan, (engine, method): (&dyn Engine, Option<&str>), device: &Device, books: &Books) -> Facts {
    let n = &plan.network;
    Facts {
        dt_ms: n.dt_ms,
        seed: n.seed,
        duration_ms: books.duration_ms,
        populations: populations(plan),
        replicas: n.replicas.iter().map(|r| r.population).collect(),
        projections: n.projections.iter().map(|p| (p.source, p.target)).collect(),
        synapses: engine.synapses(),
        backend: device.place().to_string(),
        engine: words(engine, method),
        notes: books.notes.clone(),
    }
}

impl Core<'_> {
    pub fn run(&mut self, steps: u64, keep: bool) -> Result<Vec<Spike>> {
        let mut waiting = Vec::new();
        let ran = self.chunks(steps, keep, &mut waiting);
        self.books.hash.add(&waiting);
        if keep {
            self.books.pending.append(&mut waiting);
        }
        ran.map(|()| std::mem::take(&mut self.books.pending))
    }

    /// Steps, with the spikes of the last chunk in `waiting`, neither hashed nor kept yet.
    fn chunks(&mut self, steps: u64, keep: bool, waiting: &mut Vec<Spike>) -> Result<()> {
        let begun = self.engine.step();
        let mut spikes = Vec::new();
        let end = begun.checked_add(steps).filter(|end| *end < 1 << 50);
        let Some(end) = end else {
            return Err(Error::config(format!("{steps} steps from step {begun} on are more than a simulation has")));
        };
        while self.engine.step() < end {
            let at = self.engine.step();
            if self.books.stop.swap(false, Ordering::Relaxed) {
                let dt = self.plan.network.dt_ms;
                let what = format!(
                    "the run was interrupted at {:.1} of {:.1} ms; the next run goes on there, and has the spikes so far",
                    at as f64 * dt,
                    end as f64 * dt
                );
                return Err(Error::new(ErrorKind::Interrupted, what));
            }
            let until = self.books.recorders.iter().map(|r| r.next(at)).fold(end, u64::min);
            let steps = self.books.chunk.min(until - at);
            let since = Instant::now();
            let (engine, hash) = (&mut self.engine, &mut self.books.hash);
            let ran = if self.beside && waiting.len() >= WORTH_A_THREAD {
                std::thread::scope(|scope| {
                    scope.spawn(|| hash.add(waiting));
                    engine.advance(steps, &mut spikes)
                })
            } else {
                hash.add(waiting);
                engine.advance(steps, &mut spikes)
            };
            if keep {
                self.books.pending.append(waiting);
            }
            waiting.clear();
            ran?;
            std::mem::swap(waiting, &mut spikes);
            self.sample()?;
            let took = since.elapsed().as_secs_f64();
            if took < 0.05 && steps == self.books.chunk {
                self.books.chunk *= 2;
            } else if took > 0.2 {
                self.books.chunk = (self.books.chunk / 2).max(1);
            }
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<()> {
        let step = self.engine.step();
        for (recorder, trace) in self.books.recorders.iter().zip(&mut self.books.traces) {
            if step.is_multiple_of(recorder.every) {
                let values = recorder.values(self.plan, &*self.engine)?;
                trace.values.iter_mut().zip(values).for_each(|(all, new)| all.extend(new));
                trace.times_ms.push(step as f64 * self.plan.network.dt_ms);
            }
        }
        Ok(())
    }

    /// The next step, how many spikes there were, and their hash.
    pub fn at(&self) -> (u64, u64, String) {
        (self.engine.step(), self.books.hash.spikes(), self.books.hash.hex().unwrap_or_default())
    }

    fn population(&self, index: usize) -> Result<&crate::spiking::Population> {
        let all = &self.plan.network.populations;
        all.get(index).ok_or_else(|| Error::config(format!("population {index}: there are {}", all.len())))
    }

    /// The state of each cell in the description's terms, and its parameters.
    fn described(&self, population: usize, stepped: &[Vec<f32>]) -> Result<Vec<(Vec<f64>, Vec<f64>)>> {
        let size = self.population(population)?.size;
        let parameters = self.engine.parameters(self.plan, population, 0..size)?;
        let cell = |c: usize| {
            let own: Vec<f64> = parameters.iter().map(|p| p[if p.len() == 1 { 0 } else { c }]).collect();
            let mut state: Vec<f64> = stepped.iter().map(|v| f64::from(v[c])).collect();
            self.plan.models[population].leave(&own, &mut state);
            (state, own)
        };
        Ok((0..size as usize).map(cell).collect())
    }

    pub fn state(&self, population: usize) -> Result<Vec<Vec<f32>>> {
        let p = self.population(population)?;
        let variables = self.engine.variables()?;
        let cells = self.described(population, &variables[population])?;
        let stepped = self.plan.models[population].variables();
        let first = self.plan.first[population] as usize;
        let lives = self.engine.lives()?;
        let alive = |c: usize| lives.as_ref().is_none_or(|lives| lives.alive[first + c]);
        let column = |name: &str| match stepped.iter().position(|v| v.name == name) {
            Some(at) => {
                cells.iter().enumerate().map(|(c, (s, _))| if alive(c) { s[at] as f32 } else { f32::NAN }).collect()
            }
            None => vec![f32::NAN; cells.len()],
        };
        Ok(p.model.variables().iter().map(|v| column(v.name)).collect())
    }

    pub fn lives(&self) -> Result<Option<Lives>> {
        self.engine.lives()
    }

    pub fn set_state(&mut self, population: usize, values: &[(String, Vec<f32>)]) -> Result<()> {
        let (name, size) = (self.population(population)?.name.clone(), self.population(population)?.size);
        let model = self.plan.models[population];
        let mut at = Vec::new();
        for (variable, list) in values {
            let refuse = |what: String| Err(Error::config(format!("population {name}: {variable} {what}")));
            let Some(index) = model.variables().iter().position(|v| v.name == variable) else {
                let known: Vec<&str> = model.variables().iter().map(|v| v.name).collect();
                return refuse(format!("is no variable that is stepped; there are {}", known.join(", ")));
            };
            if list.len() != size as usize {
                return refuse(format!("has {} values for {size} cells", list.len()));
            }
            if let Some(cell) = list.iter().position(|x| !x.is_finite()) {
                return refuse(format!("of cell {cell} is {}", list[cell]));
            }
            at.push(index);
        }
        let mut state = self.engine.snapshot()?.collect()?;
        let cells = self.described(population, &state.variables[population])?;
        for (c, (mut own, parameters)) in cells.into_iter().enumerate() {
            at.iter().zip(values).for_each(|(index, (_, list))| own[*index] = list[c].into());
            model.enter(&parameters, &mut own);
            // Only these: what is not set keeps its bits.
            at.iter().for_each(|index| state.variables[population][*index][c] = own[*index] as f32);
        }
        self.engine.resume(state, None)
    }

    pub fn synapses(&self, projection: usize) -> Result<Synapses> {
        let count = self.plan.network.projections.len();
        if projection >= count {
            return Err(Error::config(format!("projection {projection}: there are {count}")));
        }
        self.engine.table(projection)
    }

    pub fn drives(&self) -> Result<Vec<Drive>> {
        self.books.changes.apply(&self.books.described).map(|n| n.drives)
    }

    pub fn set(&mut self, input: Input, values: Vec<f64>) -> Result<Option<Anew>> {
        let changes = self.books.changes.with(input, values);
        self.change(changes)
    }

    /// Goes on with other inputs; what comes back is built anew.
    fn change(&mut self, changes: Changes) -> Result<Option<Anew>> {
        let plan = self.plan.redriven(changes.apply(&self.books.described)?)?;
        let anew =
            if self.engine.redrive(&plan)? { None } else { Some((plan.network, self.engine.snapshot()?.collect()?)) };
        self.books.changes = changes;
        Ok(anew)
    }

    pub fn take_traces(&mut self) -> Vec<Trace> {
        let empty = self.books.recorders.iter().map(|r| Trace::empty(r, &self.plan.network)).collect();
        std::mem::replace(&mut self.books.traces, empty)
    }

    pub fn save(&mut self, path: &Path) -> Result<()> {
        let checkpoint = Checkpoint {
            fingerprint: fingerprint(&self.books.described),
            state: self.engine.snapshot()?.collect()?,
            hash: self.books.hash.clone(),
            replicas: Vec::new(),
            logged: 0,
            counts: Vec::new(),
        };
        write_atomically(path, &self.books.changes.to_bytes(&checkpoint))
    }

    pub fn restore(&mut self, path: &Path) -> Result<Option<Anew>> {
        let bytes =
            std::fs::read(path).map_err(|e| Error::checkpoint(format!("cannot read {}: {e}", path.display())))?;
        let (changes, c) = Changes::from_bytes(&bytes, path)?;
        if c.fingerprint != fingerprint(&self.books.described) {
            return Err(Error::checkpoint(format!(
                "{}: it is of another network than this of {} cells with seed {}",
                path.display(),
                self.plan.cells(),
                self.plan.network.seed
            )));
        }
        let before = self.engine.snapshot()?.collect()?;
        self.engine.resume(c.state, None).map_err(|e| e.context(path.display()))?;
        let anew = match self.change(changes) {
            Ok(anew) => anew,
            Err(e) => {
                self.engine.resume(before, None)?;
                return Err(e);
            }
        };
        self.books.hash = c.hash;
        self.books.pending.clear();
        self.take_traces();
        Ok(anew)
    }
}

/// The next step of a checkpoint, the spikes until then, and their hash.
///
/// # Errors
/// `Checkpoint`, where the file is none that is whole and undamaged.
pub fn checkpoint(path: &Path) -> Result<(u64, u64, String)> {
    let bytes = std::fs::read(path).map_err(|e| Error::checkpoint(format!("cannot read {}: {e}", path.display())))?;
    let (_, c) = Changes::from_bytes(&bytes, path)?;
    Ok((c.state.step, c.hash.spikes(), c.hash.hex().unwrap_or_default()))
}
