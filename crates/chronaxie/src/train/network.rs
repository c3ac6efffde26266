//! A layer, a head and an optimizer on one device: where all their tensors lie, and the passes of one step.
//!
//! All parameters lie in one block and their gradients in another with the same layout, so that the optimizer's step is
//! one call whatever the layer. Passes are planned once for each padded length. What a step logs (loss, logits, norm of
//! the gradient) goes to a place of its own for each step of an epoch, so the host reads once an epoch and a GPU never
//! waits within one.

use super::bank::{Banks, Call, Layout, Planned, Slot};
use super::batches::{Examples, Task};
use super::curvature::{Curved, Seen};
use super::head::{LinearHead, Loss, Pooling};
use super::layer::{Stage, Tie, TrainableLayer};
use super::optimizer::Optimizer;
use super::staging::{Noise, Staging};
use crate::op::{Pass, Problem, Role, Signature, TensorSpec};
use crate::optim::blocks::Parameter;
use crate::optim::kfac::Kfac;
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
    /// What is minimised where classes are told apart.
    pub(super) loss: Loss,
    /// D.
    pub(super) channels: usize,
    /// B; a shorter batch is filled up with rows of length 0.
    pub(super) batch: usize,
    /// Lengths that are planned, ascending.
    pub(super) lengths: Vec<usize>,
    /// The most steps between two looks at the logs.
    pub(super) log_steps: usize,
    /// The optimizer; none for a network that only predicts.
    pub(super) optimizer: Option<Optimizer>,
}

/// The passes for one padded length, in their orders.
struct Unit {
    batch: Layout,
    forward: Vec<Call>,
    backward: Vec<Call>,
    /// Factors for KFAC.
    factors: Vec<Call>,
}

/// A stage with its plan and what its forward pass reads and leaves in memory; the head is one, too.
struct Side {
    stage: Stage,
    /// Stands before the names of its parameters.
    prefix: &'static str,
    planned: Planned,
    outputs: Vec<TensorSpec>,
    inputs: Vec<TensorSpec>,
    /// What the backward pass reads and writes; nothing in a network that only predicts.
    backward: Signature,
    /// Its factors, if it is a linear map and the optimizer takes them.
    curved: Option<Curved>,
}

/// What a tensor of a stage is in the network.
enum Place {
    Parameter(String),
    Prepared(String),
    Value(String),
}

impl Side {
    fn new(stage: Stage, prefix: &'static str, device: &Device, training: bool, seen: Option<Seen>) -> Result<Self> {
        let problem = stage.problem.clone();
        let Signature { inputs, outputs } = problem.signature(Pass::Forward)?;
        let planned = Planned::new(problem, device)?;
        let backward = match training {
            false => Signature::default(),
            true => planned.plan.signature(Pass::Backward).cloned().ok_or_else(|| {
                let entry = planned.plan.entry();
                Error::config(format!("{entry}: the plan has no backward pass, so it cannot be trained"))
            })?,
        };
        let planned = if prefix.is_empty() { planned } else { planned.labelled(stage.name) };
        let curved = seen.map(|seen| Curved::new(&*stage.problem, stage.name, seen, device)).transpose()?.flatten();
        Ok(Self { stage, prefix, planned, outputs, inputs, backward, curved })
    }

    /// What the tensor `t` is, or the one whose gradient it is.
    fn place(&self, t: &TensorSpec) -> Place {
        let name = match t.role {
            Role::Gradient => t.name.strip_prefix("grad_").unwrap_or(&t.name),
            _ => &t.name,
        };
        let has = |role: Role| self.inputs.iter().any(|i| i.name == name && i.role == role);
        match self.stage.tie(name) {
            Some(Tie::Parameter(own)) => Place::Parameter(format!("{}{}", self.prefix, self.stage.own(own))),
            Some(Tie::Value(value)) => Place::Value(value.to_owned()),
            None if has(Role::Parameter) => Place::Parameter(format!("{}{}", self.prefix, self.stage.own(name))),
            None if has(Role::Prepared) => Place::Prepared(format!("prepared.{name}")),
            None => Place::Value(self.stage.own(name)),
        }
    }
    /// The first element of one of its parameters among all.
    fn first(&self, name: &str, parameters: &Layout) -> Result<usize> {
        match self.inputs.iter().find(|t| t.name == name).map(|t| self.place(t)) {
            Some(Place::Parameter(name)) => Ok(parameters.get(&name)?.offset / Dtype::F32.size()),
            _ => Err(Error::config(format!("{}: `{name}` is no parameter", self.planned.plan.entry()))),
        }
    }
    /// The name of a value, or of its gradient; none for parameters and what was prepared.
    fn value(&self, t: &TensorSpec) -> Option<String> {
        match self.place(t) {
            Place::Value(name) if t.role == Role::Gradient => Some(format!("grad_{name}")),
            Place::Value(name) => Some(name),
            _ => None,
        }
    }
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
    /// The number of the step that the optimizer takes otherwise, and that step.
    opening: Option<(u64, Call)>,
    /// Steps between two times that factors are made.
    factors_every: u64,
    pub(super) kfac: Option<Arc<Kfac>>,
    /// What of the optimizer's state does not start from zeros.
    initial: Vec<(String, Vec<f32>)>,
    /// State with an element for each of the parameters'.
    vectors: Vec<String>,
    /// Steps taken.
    taken: u64,
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

impl Network {
    /// Plans every pass and lays out all memory; parameters and the optimizer's state are zeros.
    pub(super) fn new(device: &Device, parts: Parts) -> Result<Self> {
        let Parts { layer, task, pooling, loss, channels, batch, lengths, log_steps, optimizer } = parts;
        let (features, classes) = (layer.features(), task.outputs());
        let loss = if matches!(task, Task::Classes(_)) { loss } else { Loss::Mse };
        let training = optimizer.is_some();
        let seen = optimizer.as_ref().and_then(Optimizer::seen);
        let mut plans = Vec::new();
        for &steps in &lengths {
            let mut sides = Vec::new();
            for stage in layer.stages(batch, steps, training)? {
                sides.push(Side::new(stage, "layer.", device, training, seen)?);
            }
            let head = LinearHead::new(batch, steps, features, classes).loss(loss).pooling(pooling).backward(training);
            sides.push(Side::new(Stage::head(head.build()?), "", device, training, seen)?);
            plans.push((steps, sides));
        }
        let Some((_, sides)) = plans.last() else {
            return Err(Error::config("training: no length was given to plan for"));
        };

        let mut parameters = Layout::new(PARAMETERS);
        let mut constants = Layout::new(CONSTANTS);
        for (side, t) in sides.iter().flat_map(|side| side.inputs.iter().map(move |t| (side, t))) {
            match side.place(t) {
                Place::Parameter(name) => parameters.push(name, Dtype::F32, real_shape(t))?,
                Place::Prepared(name) => constants.push(name, t.dtype, t.shape)?,
                Place::Value(_) => {}
            }
        }
        let elements = parameters.bytes() / Dtype::F32.size();
        let prepared = layer.prepared();
        constants.push("one", Dtype::F32, [1])?;
        for (_, sides) in &plans {
            for (name, t) in zeros(sides) {
                if constants.find(&zero_name(&name, &t.shape)).is_none() {
                    constants.push(zero_name(&name, &t.shape), t.dtype, t.shape)?;
                }
            }
        }
        let mut state = Layout::new(OPTIMIZER);
        let mut logs = Layout::new(LOGS);
        logs.push_steps("loss", Dtype::F32, [1], log_steps)?;
        logs.push_steps("logits", Dtype::F32, [batch, classes], log_steps)?;
        let (mut planned, mut opening, mut initial, mut vectors) = (None, None, Vec::new(), Vec::new());
        let mut kfac = None;
        if let Some(optimizer) = optimizer {
            let list = parameters.slots().iter().map(|(_, s)| Parameter::new(s.offset / Dtype::F32.size(), s.shape));
            let of = |s: &Side| Some(s.curved.as_ref()?.place(|name| s.first(name, &parameters)));
            let maps = sides.iter().filter_map(of);
            let (stepper, found) = optimizer.stepper(elements, list.collect(), maps.collect::<Result<_>>()?)?;
            kfac = found;
            let signature = stepper.signature(Pass::Step)?;
            // What the batch said of the curvature lies beside the state, and is no part of it.
            for t in signature.inputs.iter().filter(|t| t.name.starts_with("seen")) {
                state.push(t.name.to_string(), t.dtype, t.shape)?;
            }
            for t in signature.outputs.iter().filter(|t| t.role == Role::State) {
                if t.name != "parameter" {
                    state.push(t.name.to_string(), t.dtype, t.shape)?;
                    if t.axes == "[N]" && t.shape.elements() == elements {
                        vectors.push(t.name.to_string());
                    }
                    initial.extend(stepper.initial(&t.name).map(|values| (t.name.to_string(), values)));
                }
            }
            state.push("decay", Dtype::F32, [elements])?;
            logs.push_steps("rate", Dtype::F32, [1], log_steps)?;
            logs.push_steps("grad_norm", Dtype::F32, [1], log_steps)?;
            opening = stepper.opening().map(|(at, p)| Planned::new(p, device).map(|p| (at, p))).transpose()?;
            let problem: Arc<dyn Problem> = stepper;
            planned = Some(Planned::new(problem, device)?);
        }

        let mut builder = Builder {
            parameters: &parameters,
            constants: &constants,
            state: &state,
            logs: &logs,
            kfac: kfac.as_deref(),
            batch_bytes: 0,
            activation_bytes: 0,
        };
        let mut units = BTreeMap::new();
        for (steps, sides) in &plans {
            units.insert(*steps, builder.unit(sides, [batch, *steps, channels], training)?);
        }
        let optimizer = planned.map(|planned| builder.optimizer(&planned, elements)).transpose()?;
        let opening = opening.map(|(at, p)| builder.optimizer(&p, elements).map(|call| (at, call))).transpose()?;
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
        let mut network = Self {
            banks,
            layer,
            task,
            batch,
            parameters,
            state,
            logs,
            units,
            optimizer,
            opening,
            factors_every: seen.map_or(1, |seen| seen.every),
            kfac,
            initial,
            vectors,
            taken: 0,
            staging,
        };
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
    /// The optimizer's state, but for its count of steps: by parameter where it has an element for each of theirs, as
    /// `first.layer.w`, and whole otherwise, as `state.factors`.
    pub(super) fn optimizer_state(&self) -> Vec<(String, Slot)> {
        let mut list = Vec::new();
        let beside = |name: &str| matches!(name, "decay" | "step" | "seen" | "seen_squares");
        for (name, all) in self.state.slots().iter().filter(|(name, _)| !beside(name)) {
            if self.vectors.contains(name) {
                let of = |slot: &Slot| Slot { bank: OPTIMIZER, offset: all.offset + slot.offset, ..slot.clone() };
                list.extend(self.parameters.slots().iter().map(|(p, slot)| (format!("{name}.{p}"), of(slot))));
            } else {
                list.push((format!("state.{name}"), all.clone()));
            }
        }
        list
    }
    /// The optimizer's count of steps.
    pub(super) fn step_slot(&self) -> Result<Slot> {
        self.state.get("step").cloned()
    }
    /// Says how many steps the optimizer has taken.
    pub(super) fn set_taken(&mut self, taken: u64) {
        self.taken = taken;
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
        for (name, values) in &self.initial {
            self.banks.write_f32(self.state.get(name)?, values.iter().copied())?;
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
        let next = self.taken + 1;
        let Self { units, optimizer, opening, banks, factors_every, .. } = self;
        let opening = opening.as_ref().filter(|(at, _)| *at == next).map(|(_, call)| call);
        let optimizer = opening.or(optimizer.as_ref()).ok_or_else(no_optimizer)?;
        let unit = &units[&steps];
        let factors = if self.taken.is_multiple_of(*factors_every) { &unit.factors[..] } else { &[] };
        let mut calls = unit.forward.iter().chain(&unit.backward).chain(factors).chain([optimizer]);
        calls.try_for_each(|call| call.run(banks, log))?;
        self.taken = next;
        Ok(())
    }

    /// The passes of an optimizer step on a batch that is padded to `steps`, in order, and the memory that they work on.
    pub(super) fn calls(&mut self, steps: usize) -> Result<(Vec<&Call>, &mut Banks)> {
        let Self { units, optimizer, banks, .. } = self;
        let optimizer = optimizer.as_ref().ok_or_else(no_optimizer)?;
        let unit = &units[&steps];
        Ok((unit.forward.iter().chain(&unit.backward).chain(&unit.factors).chain([optimizer]).collect(), banks))
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

fn no_optimizer() -> Error {
    Error::config("training: the network was planned for prediction alone")
}

fn zero_name(name: &str, shape: &Shape) -> String {
    format!("zero.{name} {shape}")
}

/// The sizes of a parameter; a complex one is a real one with real and imaginary parts side by side.
fn real_shape(t: &TensorSpec) -> Shape {
    let mut sizes = t.shape.to_vec();
    if t.dtype == Dtype::C64 {
        sizes.push(2);
    }
    Shape::new(&sizes)
}

/// What is read but never anything else than 0: initial states, and gradients of what nothing depends on.
fn zeros(sides: &[Side]) -> Vec<(String, TensorSpec)> {
    let written: Vec<String> =
        sides.iter().flat_map(|side| side.backward.outputs.iter().filter_map(|t| side.value(t))).collect();
    let of = |side: &Side| {
        let states = side.inputs.iter().filter(|t| t.role == Role::State);
        let gradients = side.backward.inputs.iter().filter(|t| t.role == Role::Gradient && t.name != "grad_loss");
        let named = |t: &TensorSpec| Some((side.value(t)?, t.clone()));
        states.chain(gradients).filter_map(named).filter(|(name, _)| !written.contains(name)).collect::<Vec<_>>()
    };
    sides.iter().flat_map(of).collect()
}

/// Binds the passes of each length to their places.
struct Builder<'a> {
    parameters: &'a Layout,
    constants: &'a Layout,
    state: &'a Layout,
    logs: &'a Layout,
    kfac: Option<&'a Kfac>,
    batch_bytes: usize,
    activation_bytes: usize,
}

impl Builder<'_> {
    fn unit(&mut self, sides: &[Side], [batch, steps, channels]: [usize; 3], training: bool) -> Result<Unit> {
        let mut data = Layout::new(BATCH);
        data.push("x", Dtype::F32, [batch, steps, channels])?;
        let reads = |name: &str| {
            let read = sides.iter().flat_map(|side| side.inputs.iter().map(move |t| (side, t)));
            read.into_iter().find(|(side, t)| side.value(t).as_deref() == Some(name)).map(|(_, t)| t.clone())
        };
        for name in ["elapsed", "lengths", "labels", "values"] {
            if let Some(t) = reads(name) {
                data.push(name, t.dtype, t.shape)?;
            }
        }

        let passes = if training { &[Pass::Forward, Pass::Backward][..] } else { &[Pass::Forward] };
        let mut values = Layout::new(ACTIVATIONS);
        for side in sides {
            let gradients = side.backward.outputs.iter();
            for (name, t) in side.outputs.iter().chain(gradients).filter_map(|t| Some((side.value(t)?, t))) {
                if values.find(&name).is_some() {
                    let entry = side.planned.plan.entry();
                    return Err(Error::config(format!("{entry}: two stages of the layer write `{name}`")));
                }
                if self.logs.find(&name).is_none() {
                    values.push(name, t.dtype, t.shape)?;
                }
            }
        }
        if values.find("out").is_none() {
            return Err(Error::config("training: no stage of the layer writes `out`"));
        }
        let need = |side: &Side| {
            let own = side.curved.iter().map(|c| c.planned.plan.scratch(Pass::Forward).bytes());
            passes.iter().map(|&pass| side.planned.plan.scratch(pass).bytes()).chain(own).max()
        };
        values.push("scratch", Dtype::U8, [sides.iter().filter_map(need).max().unwrap_or(0)])?;

        self.batch_bytes = self.batch_bytes.max(data.bytes());
        self.activation_bytes = self.activation_bytes.max(values.bytes());
        let call = |side: &Side, pass: Pass| {
            Call::new(&side.planned, pass, values.get("scratch")?, |t, _| self.slot(side, t, &data, &values))
        };
        let forward = sides.iter().map(|side| call(side, Pass::Forward)).collect::<Result<_>>()?;
        let backward = sides.iter().rev().filter(|_| training).map(|side| call(side, Pass::Backward));
        let backward = backward.collect::<Result<_>>()?;
        let mut factors = Vec::new();
        for (side, curved) in sides.iter().filter_map(|side| Some((side, side.curved.as_ref()?))) {
            let Some(kfac) = self.kfac else { break };
            let of_backward = |name: &str| match side.backward.inputs.iter().find(|t| t.name == name) {
                Some(t) => self.slot(side, t, &data, &values),
                None => Err(Error::config(format!("{}: there is no `{name}`", side.planned.plan.entry()))),
            };
            let (scratch, lengths) = (values.get("scratch")?, data.get("lengths")?);
            factors.push(curved.call(factors.len(), kfac, self.state, scratch, lengths, of_backward)?);
        }
        Ok(Unit { batch: data, forward, backward, factors })
    }

    /// Where a tensor of a pass lies.
    fn slot(&self, side: &Side, t: &TensorSpec, data: &Layout, values: &Layout) -> Result<Slot> {
        let gradient = t.role == Role::Gradient;
        let name = match side.place(t) {
            Place::Parameter(name) => {
                let slot = self.parameters.get(&name)?.seen_as(t)?;
                return Ok(if gradient { Slot { bank: GRADIENTS, ..slot } } else { slot });
            }
            Place::Prepared(name) => return self.constants.get(&name).cloned(),
            Place::Value(name) if gradient => format!("grad_{name}"),
            Place::Value(name) => name,
        };
        if name == "grad_loss" {
            return self.constants.get("one").cloned();
        }
        let found = values.find(&name).or_else(|| data.find(&name)).or_else(|| self.logs.find(&name));
        match found.or_else(|| self.constants.find(&zero_name(&name, &t.shape))) {
            Some(slot) => slot.seen_as(t),
            None => {
                let entry = side.planned.plan.entry();
                Err(Error::config(format!("{entry}: nothing writes `{name}`, which `{}` is tied to", t.name)))
            }
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
