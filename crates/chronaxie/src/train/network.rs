//! A layer, a head and an optimizer on one device: where all their tensors lie, and the passes of one step.
//!
//! All parameters lie in one block and their gradients in another with the same layout, so that the optimizer's step is
//! one call whatever the layer. Passes are planned once for each padded length. What a step logs (loss, logits, norm of
//! the gradient) goes to a place of its own for each step of an epoch, so the host reads once an epoch and a GPU never
//! waits within one.

use super::adamw::AdamW;
use super::bank::{Banks, Call, Layout, Planned, Slot};
use super::batches::{Examples, Task};
use super::head::{LinearHead, Loss, Pooling};
use super::layer::TrainableLayer;
use super::staging::{Noise, Staging};
use crate::op::{Pass, Problem, Role, TensorSpec};
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use std::collections::BTreeMap;
use std::sync::Arc;

const PARAMETERS: usize = 0;
const GRADIENTS: usize = 1;
const OPTIMIZER: usize = 2;
const CONSTANTS: usize = 3;
const BATCH: usize = 4;
const ACTIVATIONS: usize = 5;
const LOGS: usize = 6;

/// The stream of a run's seed from which the head's weights are drawn.
const HEAD: u64 = 0x6865_6164;

/// What a network is made of.
pub(super) struct Parts {
    pub(super) layer: Box<dyn TrainableLayer>,
    pub(super) task: Task,
    pub(super) pooling: Pooling,
    /// D.
    pub(super) channels: usize,
    /// B; a shorter batch is filled up with rows of length 0.
    pub(super) batch: usize,
    /// Lengths that are planned, ascending.
    pub(super) lengths: Vec<usize>,
    /// The most steps between two looks at the logs.
    pub(super) log_steps: usize,
    /// The optimizer's constants, of which the number of elements is filled in; none for a network that only predicts.
    pub(super) optimizer: Option<AdamW>,
}

/// The passes for one padded length.
struct Unit {
    batch: Layout,
    forward: [Call; 2],
    backward: Option<[Call; 2]>,
}

/// A side of the network with what its forward pass reads and leaves in memory.
struct Side {
    planned: Planned,
    outputs: Vec<TensorSpec>,
    inputs: Vec<TensorSpec>,
}

pub(super) struct Network {
    pub(super) banks: Banks,
    pub(super) layer: Box<dyn TrainableLayer>,
    pub(super) task: Task,
    batch: usize,
    parameters: Layout,
    state: Layout,
    logs: Layout,
    units: BTreeMap<usize, Unit>,
    optimizer: Option<Call>,
    staging: Staging,
}

/// What the steps since the last look have logged.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Logged {
    /// `[steps]`.
    pub(super) losses: Vec<f32>,
    /// `[steps]`.
    pub(super) norms: Vec<f32>,
    /// `[steps, B, C]`.
    pub(super) logits: Vec<f32>,
}

fn side(problem: Arc<dyn Problem>, device: &Device) -> Result<Side> {
    let signature = problem.signature(Pass::Forward)?;
    let planned = Planned::new(problem, device)?;
    Ok(Side { planned, outputs: signature.outputs, inputs: signature.inputs })
}

impl Network {
    /// Plans every pass and lays out all memory; parameters and the optimizer's state are zeros.
    pub(super) fn new(device: &Device, parts: Parts) -> Result<Self> {
        let Parts { layer, task, pooling, channels, batch, lengths, log_steps, optimizer } = parts;
        let (features, classes) = (layer.features(), task.outputs());
        let loss = if matches!(task, Task::Classes(_)) { Loss::CrossEntropy } else { Loss::Mse };
        let training = optimizer.is_some();
        let mut plans = Vec::new();
        for &steps in &lengths {
            let recurrence = side(layer.problem(batch, steps, training)?, device)?;
            let head = LinearHead::new(batch, steps, features, classes).loss(loss).pooling(pooling).backward(training);
            plans.push((steps, recurrence, side(Arc::new(head.build()?), device)?));
        }
        let Some((_, recurrence, head)) = plans.last() else {
            return Err(Error::config("training: no length was given to plan for"));
        };

        let mut parameters = Layout::new(PARAMETERS);
        for (side, p) in [("layer", recurrence), ("head", head)] {
            for t in p.inputs.iter().filter(|t| t.role == Role::Parameter) {
                parameters.push(format!("{side}.{}", t.name), t.dtype, t.shape)?;
            }
        }
        let elements = parameters.bytes() / Dtype::F32.size();
        let mut constants = Layout::new(CONSTANTS);
        let prepared = layer.prepared();
        for t in recurrence.inputs.iter().filter(|t| t.role == Role::Prepared) {
            constants.push(format!("prepared.{}", t.name), t.dtype, t.shape)?;
        }
        constants.push("one", Dtype::F32, [1])?;
        for (_, recurrence, head) in &plans {
            for t in zeros(recurrence, training)?.iter().chain(&zeros(head, training)?) {
                if constants.find(&zero_name(&t.name, &t.shape)).is_none() {
                    constants.push(zero_name(&t.name, &t.shape), t.dtype, t.shape)?;
                }
            }
        }
        let mut state = Layout::new(OPTIMIZER);
        let mut logs = Layout::new(LOGS);
        logs.push_steps("loss", Dtype::F32, [1], log_steps)?;
        logs.push_steps("logits", Dtype::F32, [batch, classes], log_steps)?;
        let adamw = match optimizer {
            None => None,
            Some(constants) => {
                for name in ["first", "second", "decay"] {
                    state.push(name, Dtype::F32, [elements])?;
                }
                state.push("step", Dtype::I32, [1])?;
                logs.push_steps("rate", Dtype::F32, [1], log_steps)?;
                logs.push_steps("grad_norm", Dtype::F32, [1], log_steps)?;
                let problem = AdamW { elements, ..constants }.build()?;
                Some(Planned::new(Arc::new(problem), device)?)
            }
        };

        let mut builder = Builder {
            parameters: &parameters,
            constants: &constants,
            state: &state,
            logs: &logs,
            batch_bytes: 0,
            activation_bytes: 0,
        };
        let mut units = BTreeMap::new();
        for (steps, recurrence, head) in &plans {
            units.insert(*steps, builder.unit(recurrence, head, [batch, *steps, channels], training)?);
        }
        let optimizer = adamw.map(|planned| builder.optimizer(&planned, elements)).transpose()?;
        let (batch_bytes, activation_bytes) = (builder.batch_bytes, builder.activation_bytes);

        let mut banks = Banks::new(device);
        banks.add(PARAMETERS, parameters.bytes())?;
        banks.add(GRADIENTS, if training { parameters.bytes() } else { 0 })?;
        banks.add(OPTIMIZER, state.bytes())?;
        banks.add(CONSTANTS, constants.bytes())?;
        banks.add(BATCH, batch_bytes)?;
        banks.add(ACTIVATIONS, activation_bytes)?;
        banks.add(LOGS, logs.bytes())?;
        banks.write_f32(constants.get("one")?, [1.0])?;
        for (name, slot) in constants.slots() {
            if let Some(name) = name.strip_prefix("prepared.") {
                let list = &prepared.get(name)?.data;
                let bytes: Vec<u8> = list.iter().flat_map(|&x| (x as i32).to_ne_bytes()).collect();
                banks.write(slot, 0, &bytes)?;
            }
        }
        let staging = Staging::new(device, batch_bytes)?;
        let mut network = Self { banks, layer, task, batch, parameters, state, logs, units, optimizer, staging };
        if training {
            network.write_decay()?;
        }
        Ok(network)
    }

    /// 1 for each parameter that weight decay reaches, 0 elsewhere.
    fn write_decay(&mut self) -> Result<()> {
        let decay = self.state.get("decay")?.clone();
        let mut mask = vec![0f32; decay.shape.elements()];
        for (name, slot) in self.parameters.slots() {
            let decays = match name.strip_prefix("layer.") {
                Some(name) => self.layer.decays(name),
                None => name == "head.weight",
            };
            if decays {
                let first = slot.offset / Dtype::F32.size();
                mask[first..first + slot.shape.elements()].fill(1.0);
            }
        }
        self.banks.write_f32(&decay, mask)
    }

    /// B.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }
    /// How many numbers are trained.
    pub(super) fn parameter_count(&self) -> usize {
        self.parameters.slots().iter().map(|(_, s)| s.shape.elements()).sum()
    }
    /// The parameters' names and places.
    pub(super) fn parameters(&self) -> &[(String, Slot)] {
        self.parameters.slots()
    }
    /// Where the moment `first` or `second` of the parameter at `slot` lies.
    pub(super) fn moment(&self, name: &str, slot: &Slot) -> Result<Slot> {
        let all = self.state.get(name)?;
        Ok(Slot { bank: OPTIMIZER, offset: all.offset + slot.offset, ..slot.clone() })
    }
    /// The optimizer's count of steps.
    pub(super) fn step_slot(&self) -> Result<Slot> {
        self.state.get("step").cloned()
    }

    /// Draws the parameters that training starts from.
    pub(super) fn initialise(&mut self, seed: u64) -> Result<()> {
        let initial = self.layer.initial(seed)?;
        let mut rng = Rng::new(seed, HEAD);
        for (name, slot) in self.parameters.slots() {
            let n = slot.shape.elements();
            let values: Vec<f32> = match name.strip_prefix("layer.") {
                Some(name) => initial.get(name)?.data.iter().map(|&x| x as f32).collect(),
                None if name == "head.weight" => {
                    let bound = 1.0 / (self.layer.features().max(1) as f64).sqrt();
                    (0..n).map(|_| rng.range(-bound, bound) as f32).collect()
                }
                None => vec![0.0; n],
            };
            self.banks.write_f32(slot, values)?;
        }
        Ok(())
    }

    /// Sets the learning rates of the steps of the next epoch.
    pub(super) fn set_rates(&mut self, rates: &[f32]) -> Result<()> {
        let slot = self.logs.get("rate")?.all_steps(rates.len());
        self.banks.write_f32(&slot, rates.iter().copied())
    }

    /// The steps that the batch `which` of `examples` is padded to.
    pub(super) fn padded(&self, examples: &Examples, which: &[usize]) -> Result<usize> {
        let longest = which.iter().map(|&i| examples.series[i].len).max().unwrap_or(0);
        let planned = self.units.range(longest..).next();
        let (&steps, _) =
            planned.ok_or_else(|| Error::config(format!("training: no plan for a series of {longest} steps")))?;
        Ok(steps)
    }

    fn stage(&mut self, examples: &Examples, which: &[usize], mut noise: Option<Noise>) -> Result<usize> {
        let steps = self.padded(examples, which)?;
        self.staging.send(&mut self.banks, BATCH, &self.units[&steps].batch, examples, which, &mut noise)?;
        Ok(steps)
    }

    /// How a batch that is padded to `steps` lies in memory.
    pub(super) fn batch_layout(&self, steps: usize) -> &Layout {
        &self.units[&steps].batch
    }

    /// One optimizer step on the series `which` of `examples` with `noise`, logged as step `log` of the epoch.
    pub(super) fn learn(
        &mut self,
        log: usize,
        examples: &Examples,
        which: &[usize],
        noise: Option<Noise>,
    ) -> Result<()> {
        let steps = self.stage(examples, which, noise)?;
        let (calls, banks) = self.calls(steps)?;
        calls.into_iter().try_for_each(|call| call.run(banks, log))
    }

    /// The passes of an optimizer step on a batch that is padded to `steps`, in order, and the memory that they work on.
    pub(super) fn calls(&mut self, steps: usize) -> Result<([&Call; 5], &mut Banks)> {
        let Self { units, optimizer, banks, .. } = self;
        let Unit { forward: [layer, head], backward: Some([to_states, to_parameters]), .. } = &units[&steps] else {
            return Err(Error::config("training: the network was planned for prediction alone"));
        };
        let no_optimizer = || Error::config("training: the network was planned without an optimizer");
        let optimizer = optimizer.as_ref().ok_or_else(no_optimizer)?;
        Ok(([layer, head, to_states, to_parameters, optimizer], banks))
    }

    /// Loss and logits of the series `which`, logged as step `log`.
    pub(super) fn judge(&mut self, log: usize, examples: &Examples, which: &[usize]) -> Result<()> {
        let steps = self.stage(examples, which, None)?;
        for call in &self.units[&steps].forward {
            call.run(&mut self.banks, log)?;
        }
        Ok(())
    }

    /// What the first `steps` steps have logged, when they are done.
    pub(super) fn logged(&self, steps: usize) -> Result<Logged> {
        let read = |name: &str| self.logs.find(name).map_or(Ok(Vec::new()), |s| self.banks.read_f32_steps(s, steps));
        Ok(Logged { losses: read("loss")?, norms: read("grad_norm")?, logits: read("logits")? })
    }

    /// Puts back what steps before an interruption have logged.
    pub(super) fn restore_logs(&mut self, logged: &Logged) -> Result<()> {
        for (name, values) in [("loss", &logged.losses), ("grad_norm", &logged.norms), ("logits", &logged.logits)] {
            let slot = self.logs.get(name)?;
            let slot = slot.all_steps(values.len() / slot.shape.elements().max(1));
            self.banks.write_f32(&slot, values.iter().copied())?;
        }
        Ok(())
    }
}

fn zero_name(name: &str, shape: &Shape) -> String {
    format!("zero.{name} {shape}")
}

/// What is read but never anything else than 0: initial states, and gradients of outputs that nothing depends on.
fn zeros(p: &Side, training: bool) -> Result<Vec<TensorSpec>> {
    let mut list: Vec<TensorSpec> = p.inputs.iter().filter(|t| t.role == Role::State).cloned().collect();
    if training {
        let plan = &p.planned.plan;
        let signature = plan.signature(Pass::Backward).ok_or_else(|| {
            Error::config(format!("{}: the plan has no backward pass, so it cannot be trained", plan.entry()))
        })?;
        let used = ["grad_out", "grad_loss"];
        let idle = |t: &&TensorSpec| t.role == Role::Gradient && !used.contains(&&*t.name);
        list.extend(signature.inputs.iter().filter(idle).cloned());
    }
    Ok(list)
}

/// Binds the passes of each length to their places.
struct Builder<'a> {
    parameters: &'a Layout,
    constants: &'a Layout,
    state: &'a Layout,
    logs: &'a Layout,
    batch_bytes: usize,
    activation_bytes: usize,
}

impl Builder<'_> {
    fn unit(
        &mut self,
        recurrence: &Side,
        head: &Side,
        [batch, steps, channels]: [usize; 3],
        training: bool,
    ) -> Result<Unit> {
        let mut data = Layout::new(BATCH);
        data.push("x", Dtype::F32, [batch, steps, channels])?;
        if recurrence.inputs.iter().any(|t| t.name == "elapsed") {
            data.push("elapsed", Dtype::F32, [batch, steps])?;
        }
        data.push("lengths", Dtype::I32, [batch])?;
        for t in head.inputs.iter().filter(|t| matches!(&*t.name, "labels" | "values")) {
            data.push(t.name.to_string(), t.dtype, t.shape)?;
        }

        let passes = if training { vec![Pass::Forward, Pass::Backward] } else { vec![Pass::Forward] };
        let mut activations = Layout::new(ACTIVATIONS);
        for t in &recurrence.outputs {
            activations.push(t.name.to_string(), t.dtype, t.shape)?;
        }
        for t in head.outputs.iter().filter(|t| t.role == Role::Saved) {
            activations.push(t.name.to_string(), t.dtype, t.shape)?;
        }
        let states = recurrence.outputs.iter().find(|t| t.name == "out").ok_or_else(|| {
            Error::config(format!("{}: the layer has no output `out`", recurrence.planned.plan.entry()))
        })?;
        activations.push("grad_out", states.dtype, states.shape)?;
        let scratch = |p: &Side| passes.iter().map(|&pass| p.planned.plan.scratch(pass).bytes()).max().unwrap_or(0);
        activations.push("scratch", Dtype::U8, [scratch(recurrence).max(scratch(head))])?;

        self.batch_bytes = self.batch_bytes.max(data.bytes());
        self.activation_bytes = self.activation_bytes.max(activations.bytes());
        let call = |p: &Side, side: &str, pass: Pass| {
            Call::new(&p.planned, pass, activations.get("scratch")?, |t, _| self.place(side, t, &data, &activations))
        };
        let forward = [call(recurrence, "layer", Pass::Forward)?, call(head, "head", Pass::Forward)?];
        let backward = match training {
            true => Some([call(head, "head", Pass::Backward)?, call(recurrence, "layer", Pass::Backward)?]),
            false => None,
        };
        Ok(Unit { batch: data, forward, backward })
    }

    /// Where a tensor of a pass lies.
    fn place(&self, side: &str, t: &TensorSpec, data: &Layout, activations: &Layout) -> Result<Slot> {
        // What the layer calls its output is the head's input.
        let name = match &*t.name {
            "h" if side == "head" => "out",
            "grad_h" if side == "head" => "grad_out",
            name => name,
        };
        if t.role == Role::Parameter {
            return self.parameters.get(&format!("{side}.{name}")).cloned();
        }
        let gradient = name.strip_prefix("grad_").and_then(|p| self.parameters.find(&format!("{side}.{p}")));
        if let Some(slot) = gradient {
            return Ok(Slot { bank: GRADIENTS, ..slot.clone() });
        }
        if t.role == Role::Prepared {
            return self.constants.get(&format!("prepared.{name}")).cloned();
        }
        if name == "grad_loss" {
            return self.constants.get("one").cloned();
        }
        let found = activations.find(name).or_else(|| data.find(name)).or_else(|| self.logs.find(name));
        match found.or_else(|| self.constants.find(&zero_name(name, &t.shape))) {
            Some(slot) => Ok(slot.clone()),
            None => Err(Error::config(format!("{side}: `{name}` is a tensor that training does not know"))),
        }
    }

    /// The optimizer's step over all parameters.
    fn optimizer(&mut self, planned: &Planned, elements: usize) -> Result<Call> {
        let mut own = Layout::new(ACTIVATIONS);
        own.push("scratch", Dtype::U8, [planned.plan.scratch(Pass::Step).bytes()])?;
        self.activation_bytes = self.activation_bytes.max(own.bytes());
        let all = |bank| Slot { bank, offset: 0, stride: 0, dtype: Dtype::F32, shape: [elements].into() };
        Call::new(planned, Pass::Step, own.get("scratch")?, |t, _| match &*t.name {
            "parameter" => Ok(all(PARAMETERS)),
            "grad" => Ok(all(GRADIENTS)),
            name => match self.state.find(name) {
                Some(slot) => Ok(slot.clone()),
                None => self.logs.get(name).cloned(),
            },
        })
    }
}
