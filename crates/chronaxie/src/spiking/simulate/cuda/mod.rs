//! The CUDA engine: the same spikes as the CPU's, bit for bit.
//!
//! One kernel runs up to 4094 steps without the host (`steps.cu`): one block a shard, all resident. A chunk ends
//! where the log of its spikes might not hold another step, and the host puts its spikes in order while the next one runs.
//! Networks are made on the device (`build.cu`).
#![allow(unsafe_code)]

mod build;
mod config;
pub mod learning;
mod memory;
#[cfg(test)]
mod tests;

use super::cpu::check_state;
use super::{Engine, Spike, State, Weights, learned};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Kernel, LaunchConfig, PinnedBuffer, Stream};
use crate::spiking::connect::{self, list, shard};
use crate::spiking::plan::Plan;
use crate::{Dtype, Error, ErrorKind, Place, Result, Shape, View};
use build::Synapses;
pub use config::{Config, specialisations};
use config::{MOST_STEPS, REPLICAS};
pub use learning::LearningEngine;
use learning::Resident;
use memory::{Cells, Fields, Memory};
use std::sync::Arc;

/// Spikes that a log has room for beside those of four steps in which every cell fires.
const LOG: usize = 1 << 18;
/// Spikes that are copied at a time.
const COPY: usize = 1 << 20;
/// The least and the most steps of a launch, below [`MOST_STEPS`]: a launch more takes some 10 us.
const PIECES: [u64; 2] = [128, 512];
const _: () = assert!(PIECES[1] <= MOST_STEPS);

/// Steps of the next launch of a chunk that has `left` steps. Spikes of a launch are put in order while the next one runs, which
/// may take as long as that one: so they are alike. Those of the last are put in order while nothing runs: so that one is short.
fn piece(left: u64) -> u64 {
    (left / 3 * 2).clamp(PIECES[0], PIECES[1]).min(left)
}

/// Runs a plan on a CUDA device.
pub struct CudaEngine<'a> {
    plan: &'a Plan,
    config: Config,
    memory: Memory,
    kernel: Kernel,
    cells: Cells,
    synapses: Synapses,
    net: Vec<u8>,
    /// Synapses that change.
    resident: Option<Resident<'a>>,
    /// Headers and boxes of the spikes that blocks tell each other.
    mail: DeviceBuffer,
    /// Two, so that one is read while the other is written.
    logs: [DeviceBuffer; 2],
    capacity: usize,
    result: DeviceBuffer,
    told: PinnedBuffer,
    copied: PinnedBuffer,
    stream: Stream,
    copies: Stream,
    /// Which cell each row is, and which row each cell.
    cell_of: Vec<u32>,
    row_of: Vec<u32>,
    step: u64,
    recent: Vec<Spike>,
    /// Why the state is not that of `step`.
    failed: Option<String>,
    /// Of the steps that this engine ran: deliveries, and how many steps.
    events: u64,
    run: u64,
}

impl std::fmt::Debug for CudaEngine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaEngine(step {}, {}, {} synapses)", self.step, self.config, self.synapses.count)
    }
}

impl<'a> CudaEngine<'a> {
    /// Makes the network on `device`; `built(percent, 100)` is told how far it is.
    ///
    /// # Errors
    /// `Config` for a network that cannot be cut for the device or whose inputs can overflow, `OutOfMemory`, and what the
    /// driver or the compiler refuses.
    pub fn new(plan: &'a Plan, device: &Arc<CudaDevice>, built: &(dyn Fn(usize, usize) + Sync)) -> Result<Self> {
        Self::with(plan, device, Config::choose(plan, device.props())?, 4 * plan.cells() as usize + LOG, built)
    }

    fn with(
        plan: &'a Plan,
        device: &Arc<CudaDevice>,
        config: Config,
        capacity: usize,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        let changing = (0..plan.network.projections.len()).find(|i| plan.changes(*i));
        if let Some(i) = changing.filter(|_| config.learns.is_none()) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "projection {}: its synapses change and do not fit the resident kernel; LearningEngine takes them: {config}",
                    plan.label(i)
                ),
            ));
        }
        let (stream, copies) = (device.new_stream()?, device.new_stream()?);
        let memory = Memory { device: device.clone(), stream: stream.as_ref() };
        let kernel = device.kernel(&config.steps(), "spiking_steps")?;
        kernel.set_max_dynamic_shared(config.shared_bytes())?;
        let resident = device.props().sm_count * kernel.max_active_blocks(config.threads, config.shared_bytes())?;
        if resident < config.shards as u32 {
            return Err(Error::value(format!("{} holds {resident} blocks at once: {config}", device.name())));
        }
        require_memory(plan, device, &config)?;
        let cells = Cells::new(plan, &config, &memory)?;
        let synapses = Synapses::new(plan, &config, &cells, &memory, built)?;
        let net = synapses.net(plan, &config, &cells);
        let (cell_of, row_of) = rows(plan, &config);
        let resident = Resident::new(plan, config, &memory, &net, [&row_of, &cell_of])?;
        let mail = memory.room(8 * 2 * config.shards * (REPLICAS + config.cells))?;
        let logs = [memory.room(8 * capacity)?, memory.room(8 * capacity)?];
        let result = memory.zeros(24)?;
        let told = PinnedBuffer::alloc(device, 24)?;
        let copied = PinnedBuffer::alloc(device, 8 * capacity.min(COPY))?;
        stream.synchronize()?;
        Ok(Self {
            plan,
            config,
            memory,
            kernel,
            cells,
            synapses,
            net,
            resident,
            mail,
            logs,
            capacity,
            result,
            told,
            copied,
            stream,
            copies,
            cell_of,
            row_of,
            step: 0,
            recent: Vec::new(),
            failed: None,
            events: 0,
            run: 0,
        })
    }

    /// Puts up to `steps` steps from the present one on the stream, with the log of this `turn`.
    fn launch(&mut self, from: u64, steps: u64, turn: usize) -> Result<()> {
        self.memory.clear(&mut self.mail)?;
        self.memory.clear(&mut self.result)?;
        let heads = self.mail.address();
        let run = Fields::default()
            .u64(heads)
            .u64(heads + (8 * 2 * REPLICAS * self.config.shards) as u64)
            .u64(self.logs[turn].address())
            .u64(self.result.address())
            .u64(from)
            .u64(self.capacity as u64)
            .u64(steps);
        let config = LaunchConfig {
            cooperative: true,
            shared_bytes: self.config.shared_bytes(),
            ..LaunchConfig::new((self.config.shards as u32, 1, 1), (self.config.threads, 1, 1))
        };
        let learn = self.resident.as_ref().map_or_else(Resident::none, |r| r.learn.clone());
        let args = [Arg::Bytes(&self.net), Arg::Bytes(&run.0), Arg::Bytes(&learn)];
        // SAFETY: the structs are those of network.cuh, rows.cuh and steps.cu, whose sizes the launch checks; all that they point to
        // belongs to this engine and is used on this stream alone, but for the other turn's log.
        unsafe { self.kernel.launch(&self.stream, &config, &args) }?;
        self.told.receive(&self.result.view(Dtype::I64, [3])?, &self.stream)
    }

    /// The spikes of a chunk of `steps` steps from step `from` on, in order; counts what they deliver.
    fn collect(&mut self, turn: usize, count: usize, from: u64, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let mut list: Vec<u64> = Vec::with_capacity(count);
        while list.len() < count {
            let here = (count - list.len()).min(COPY);
            let at = self.logs[turn].address() + 8 * list.len() as u64;
            let place = Place::Cuda(self.memory.device.index());
            // SAFETY: the kernel has logged `count` spikes here, and it has ended.
            let view = unsafe { View::from_raw(at as *const u8, Dtype::I64, Shape::from([here]), &[1], place) };
            self.copied.receive(&view, &self.copies)?;
            list.extend(self.copied.as_slice::<i64>()?[..here].iter().map(|x| *x as u64));
        }
        // They come nearly by step: each step's are counted and put in their place, and then ordered by cell.
        let mut ends = vec![0usize; steps as usize + 1];
        for x in &list {
            let (step, row) = ((x >> 32) as usize, *x as u32 as usize);
            let (Some(end), Some(degree)) = (ends.get_mut(step + 1), self.synapses.degrees.get(row)) else {
                return Err(Error::value(format!("a chunk of {steps} steps logs a spike of row {row} in step {step}")));
            };
            *end += 1;
            self.events += u64::from(*degree);
        }
        (0..steps as usize).for_each(|step| ends[step + 1] += ends[step]);
        let mut cells = vec![0u32; count];
        for x in &list {
            let at = &mut ends[(x >> 32) as usize];
            cells[*at] = self.cell_of[*x as u32 as usize];
            *at += 1;
        }
        let mut begin = 0;
        for (step, end) in ends[..steps as usize].iter().enumerate() {
            let here = &mut cells[begin..*end];
            here.sort_unstable();
            spikes.extend(here.iter().map(|cell| Spike { step: from + step as u64, cell: *cell }));
            begin = *end;
        }
        Ok(())
    }

    fn run(&mut self, to: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        // What has run and is not collected: turn, spikes, first step, steps.
        let mut waiting: Option<(usize, usize, u64, u64)> = None;
        let mut turn = 0;
        while self.step < to {
            let from = self.step;
            let steps = piece(to - from);
            self.launch(from, steps, turn)?;
            if let Some((turn, count, from, steps)) = waiting.take() {
                self.collect(turn, count, from, steps, spikes)?;
            }
            // Waits for the chunk.
            let told = self.told.as_slice::<i64>()?;
            let (done, count, full) = (told[0] as u64, told[1] as usize, told[2] != 0);
            if done == 0 || done > steps || count > self.capacity {
                return Err(Error::value(format!("a chunk of {steps} steps says that it ran {done}")));
            }
            self.step = from + done;
            self.run += done;
            if let Some(resident) = self.resident.as_ref().filter(|_| full) {
                resident.settle(self.step)?;
            }
            waiting = Some((turn, count, from, done));
            turn = 1 - turn;
        }
        waiting.map_or(Ok(()), |(turn, count, from, steps)| self.collect(turn, count, from, steps, spikes))
    }

    /// Spikes as steps and rows.
    fn rows(&self, spikes: &[Spike]) -> Vec<u64> {
        spikes.iter().map(|s| s.step << 32 | u64::from(self.row_of[s.cell as usize])).collect()
    }

    /// Refuses what a step that failed has left behind.
    fn whole(&self) -> Result<()> {
        let Some(why) = &self.failed else { return Ok(()) };
        Err(Error::value(format!("the network on {} has no state: a step failed: {why}", self.memory.device.name())))
    }
}

/// Which cell each row is, and which row each cell.
fn rows(plan: &Plan, config: &Config) -> (Vec<u32>, Vec<u32>) {
    let (mut cell_of, mut row_of) = (vec![0; config.shards * config.cells], vec![0; plan.cells() as usize]);
    for k in 0..config.shards {
        let mut row = k * config.cells;
        for (part, first) in shard::parts(plan, k, config.shards).0.iter().zip(&plan.first) {
            for cell in part.low..part.high {
                let cell = *first as u32 + cell;
                cell_of[row] = cell;
                row_of[cell as usize] = row as u32;
                row += 1;
            }
        }
    }
    (cell_of, row_of)
}

/// The engine that runs `plan` on `device`.
///
/// # Errors
/// As [`CudaEngine::new`] and [`LearningEngine::new`].
pub fn engine<'a>(
    plan: &'a Plan,
    device: &Arc<CudaDevice>,
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<Box<dyn Engine + 'a>> {
    let config = Config::choose(plan, device.props())?;
    Ok(if plan.learning.is_some() && config.learns.is_none() {
        Box::new(LearningEngine::new(plan, device, built)?)
    } else {
        Box::new(CudaEngine::new(plan, device, built)?)
    })
}

/// Refuses what needs more memory than the device has free, before anything is allocated.
fn require_memory(plan: &Plan, device: &CudaDevice, config: &Config) -> Result<()> {
    let asked = (config.bytes(plan) + 128.0 * plan.cells() as f64) as u64;
    if asked > device.memory_info()?.free {
        device.release_cached_memory()?;
    }
    let free = device.memory_info()?.free;
    if asked <= free {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::new(
        ErrorKind::OutOfMemory { asked, free },
        format!(
            "the network of {} cells and {:.3e} synapses needs {:.1} GB on {}, where {:.1} GB are free; --scale makes it smaller",
            plan.cells(),
            plan.expected_synapses(),
            gb(asked),
            device.name(),
            gb(free)
        ),
    ))
}

impl Engine for CudaEngine<'_> {
    fn step(&self) -> u64 {
        self.step
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let to = self.step + steps;
        learned::steps_left(self.plan, to)?;
        if to >= 1 << 32 {
            return Err(Error::value(format!("step {to} is beyond the 2^32 that a run on a GPU has")));
        }
        self.whole()?;
        let begun = spikes.len();
        if let Err(e) = self.run(to, spikes) {
            self.failed = Some(e.to_string());
            return Err(e);
        }
        let found = &spikes[begun..];
        let oldest = self.step.saturating_sub(self.plan.max_delay.into());
        self.recent.drain(..self.recent.partition_point(|s| s.step < oldest));
        self.recent.extend(&found[found.partition_point(|s| s.step < oldest)..]);
        Ok(())
    }

    fn state(&self) -> Result<State> {
        self.whole()?;
        let mut variables = Vec::new();
        for (p, model) in self.plan.models.iter().enumerate() {
            let (size, count) = (self.plan.network.populations[p].size as usize, model.variables().len());
            let values: Vec<f32> =
                self.memory.download(&self.cells.states, 4 * self.cells.first_state[p], size * count)?;
            variables.push((0..count).map(|v| values[v * size..(v + 1) * size].to_vec()).collect());
        }
        let learned =
            |r: &Resident<'_>| r.learned(&self.synapses.ring, &self.rows(&self.recent), &self.row_of, self.step);
        let learned = self.resident.as_ref().map(learned).transpose()?;
        Ok(State { step: self.step, variables, recent: self.recent.clone(), learned })
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        check_state(self.plan, state)?;
        let values: Vec<f32> = state.variables.iter().flatten().flatten().copied().collect();
        self.memory.write(&mut self.cells.states, &values)?;
        let recent = self.rows(&state.recent);
        match &mut self.resident {
            Some(resident) => resident.restore(&mut self.synapses.ring, state, &recent, &self.row_of)?,
            None => self.synapses.restore(&self.memory, &self.net, self.config.shards, &recent, state.step)?,
        }
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        self.failed = None;
        Ok(())
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        self.whole()?;
        let size = self.plan.network.populations[population].size as usize;
        let first = self.cells.first_state[population] + cell as usize;
        let variables = 0..self.plan.models[population].variables().len();
        let one = |v: usize| self.memory.download::<f32>(&self.cells.states, 4 * (first + v * size), 1);
        variables.map(|v| one(v).map(|x| x[0])).collect()
    }

    fn synapses(&self) -> u64 {
        self.synapses.count
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        self.whole()?;
        self.resident.as_ref().map_or_else(|| Ok(Vec::new()), |r| r.weights(self.step))
    }

    fn table(&self, projection: usize) -> Result<connect::Synapses> {
        self.whole()?;
        match &self.resident {
            Some(r) => list::changed(self.plan, projection, || r.known(projection, self.step)),
            None => connect::synapses(self.plan, projection),
        }
    }

    fn events(&self) -> u64 {
        self.events
    }

    fn config(&self) -> String {
        self.config.to_string()
    }

    /// The exchange of spikes between all blocks (two trips to the second cache, 0.7 us), and the bytes of rows at the
    /// memory's bandwidth.
    fn floor_us(&self) -> Option<f64> {
        let events = self.events as f64 / self.run.max(1) as f64;
        let bytes = events * self.config.synapse() as f64;
        let exchange = if self.config.shards > 1 { 0.7 } else { 0.0 };
        Some(exchange + bytes / self.memory.device.props().memory_bytes_per_s.max(1) as f64 * 1e6)
    }
}
