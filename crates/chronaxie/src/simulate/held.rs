//! A part of a network that a program holds, and connects to the others by means of its own.

use super::gpus::{part_devices, part_engine};
use super::run::fingerprint;
use super::session::PopulationFacts;
use super::steer::populations;
use crate::spiking::Plan;
use crate::spiking::network::read::Settings;
use crate::spiking::partition::{self, Layout};
use crate::spiking::simulate::parts::{state_bytes, state_from_bytes};
use crate::spiking::simulate::{PartEngine, Spike, Transport};
use crate::{Backend, Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// What a part is asked to do, on the thread that has it.
type Job = Box<dyn FnOnce(&mut Core<'_>) + Send>;

struct Core<'a> {
    plan: &'a Plan,
    layout: &'a Layout,
    part: usize,
    fingerprint: [u8; 32],
    engine: Box<dyn PartEngine + 'a>,
    /// Whether its GPU is joined to those of the others.
    joined: bool,
}

/// What does not change about a part.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HeldFacts {
    /// The step, ms.
    pub dt_ms: f64,
    /// The populations of the whole network, in the order of their cells.
    pub populations: Vec<PopulationFacts>,
    /// The network's numbers of its cells, rising.
    pub cells: Vec<u32>,
    /// How many synapses lie on them.
    pub synapses: u64,
    /// The most steps at a time that this part asks for; the least of all parts holds for all.
    pub min_delay: u64,
    /// How the network was shared out.
    pub method: &'static str,
    /// `cpu` or `cuda:N`.
    pub backend: String,
}

/// One part of a network; dropping it ends it.
#[derive(Debug)]
pub struct HeldPart {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    facts: HeldFacts,
}

impl HeldPart {
    /// Part `part` of `parts` of the network of `settings`, shared out by `method`, which all parts are to name alike, on the CPU, or on
    /// a GPU and, of `gpus`, those after it.
    ///
    /// # Errors
    /// `Config` for numbers or a method that there are not; of the network, the devices and their memory.
    pub fn open(
        settings: Settings,
        part: usize,
        parts: usize,
        method: &str,
        (backend, gpus): (Backend, Option<usize>),
    ) -> Result<Self> {
        if part >= parts {
            return Err(Error::config(format!("part {part} of {parts}: parts are counted from 0")));
        }
        let (built, told) = sync_channel(1);
        let (jobs, taken) = sync_channel::<Job>(1);
        let method = method.to_owned();
        let work = move || {
            if let Err(e) = serve(settings, (part, parts), &method, (backend, gpus), &built, &taken) {
                let _ = built.send(Err(e));
            }
        };
        let thread = std::thread::Builder::new().name(format!("chronaxie-part-{part}")).spawn(work);
        let thread = thread.map_err(|e| Error::value(format!("a thread for part {part} cannot be made: {e}")))?;
        let facts = told.recv().map_err(|_| Error::value(format!("part {part} ended while it was built")))??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), facts })
    }

    /// What does not change.
    pub fn facts(&self) -> &HeldFacts {
        &self.facts
    }

    fn ask<T: Send + 'static>(&self, job: impl FnOnce(&mut Core<'_>) -> Result<T> + Send + 'static) -> Result<T> {
        let gone = || Error::value("the part has ended, by an earlier error");
        let (answer, told) = sync_channel(1);
        let job: Job = Box::new(move |core| drop(answer.send(job(core))));
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        told.recv().map_err(|_| gone())?
    }

    /// The next step.
    ///
    /// # Errors
    /// Where the part has ended.
    pub fn step(&self) -> Result<u64> {
        self.ask(|core| Ok(core.engine.step()))
    }

    /// As [`PartEngine::fire`].
    ///
    /// # Errors
    /// As there.
    pub fn advance(&self, steps: u64) -> Result<Vec<Spike>> {
        self.ask(move |core| core.engine.fire(steps))
    }

    /// As [`PartEngine::offer`].
    ///
    /// # Errors
    /// As there.
    pub fn offer(&self) -> Result<Vec<u8>> {
        self.ask(|core| core.engine.offer())
    }

    /// As [`PartEngine::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&self, offers: Vec<Vec<u8>>, steps: u64) -> Result<()> {
        self.ask(move |core| {
            core.joined = false;
            core.engine.connect(&offers, steps)?;
            core.joined = true;
            Ok(())
        })
    }

    /// Goes on together with all parts, which were joined by [`connect`](Self::connect); what fired here, by rising step and cell.
    ///
    /// # Errors
    /// `Lost`, where another part has gone; `Value`, where it is not joined.
    pub fn advance_together(&self, steps: u64) -> Result<Vec<Spike>> {
        self.ask(move |core| {
            if !core.joined {
                return Err(Error::value("the part hears nobody: it is to be joined to the others first"));
            }
            let mut all = Vec::new();
            core.engine.advance(steps, &mut all)?;
            let populations = &core.plan.first;
            all.retain(|spike| {
                let p = populations.partition_point(|first| *first <= u64::from(spike.cell)) - 1;
                core.layout.owner(p, spike.cell - populations[p] as u32) == core.part
            });
            Ok(all)
        })
    }

    /// As [`PartEngine::hear`]; spikes in any order.
    ///
    /// # Errors
    /// As there.
    pub fn hear(&self, others: Vec<Spike>) -> Result<()> {
        self.ask(move |core| core.engine.hear(&others))
    }

    /// The state of its cells and of the synapses onto them, as bytes.
    ///
    /// # Errors
    /// `Value`, where it has yet to hear.
    pub fn state(&self) -> Result<Vec<u8>> {
        self.ask(|core| {
            core.engine.heard()?;
            Ok(state_bytes(core.layout, core.part, core.fingerprint, &core.engine.state()?))
        })
    }

    /// Goes to the state of this part of the same network.
    ///
    /// # Errors
    /// `Checkpoint`, where the bytes are none.
    pub fn restore(&self, bytes: Vec<u8>) -> Result<()> {
        self.ask(move |core| {
            let state = state_from_bytes(core.plan, core.layout, core.part, core.fingerprint, &bytes)?;
            core.engine.restore(&state)
        })
    }
}

impl Drop for HeldPart {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    settings: Settings,
    (part, parts): (usize, usize),
    method: &str,
    (backend, gpus): (Backend, Option<usize>),
    built: &SyncSender<Result<HeldFacts>>,
    jobs: &Receiver<Job>,
) -> Result<()> {
    let plan = Plan::new(settings.network)?;
    let (layout, method) = partition::choose(&plan, super::RATE_HZ, parts, method)?;
    let backend = if backend == Backend::Auto && gpus.is_none() { Backend::Cpu } else { backend };
    let (device, cards, _) = part_devices(backend, gpus)?;
    let engine = part_engine(&plan, &layout, part, &cards, (None, Transport::Tcp), &|_, _| ())?;
    let facts = HeldFacts {
        dt_ms: plan.network.dt_ms,
        populations: populations(&plan),
        cells: layout.numbers(&plan, part).collect(),
        synapses: engine.synapses(),
        min_delay: engine.most_steps(),
        method,
        backend: device.place().to_string(),
    };
    let fingerprint = fingerprint(&plan.network);
    let mut core = Core { plan: &plan, layout: &layout, part, fingerprint, engine, joined: false };
    let _ = built.send(Ok(facts));
    while let Ok(job) = jobs.recv() {
        job(&mut core);
    }
    Ok(())
}
