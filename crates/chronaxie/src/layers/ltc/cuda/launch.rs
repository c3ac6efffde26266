//! The plan: kernels loaded once, then launches only.

use super::backward::BackwardCall;
use super::grid::{GridBackward, GridKernel};
use super::held::{HeldKernel, SIDES, Side};
use super::held_backward::HeldBackward;
use super::levels::{self, LevelsForward, LevelsRegions};
use super::levels_row::RowKernel;
use super::mixed::MixedMemory;
pub(super) use super::scratch::{Common, Traces};
use super::tune::{self, Config, THREADS};
use super::{BACKWARD, BACKWARD_ENTRIES, FORWARD, FORWARD_ENTRIES, GradSlots, Slots, specialisation};
use crate::cuda::{Arg, CudaDevice, Kernel, LaunchConfig, StreamRef};
use crate::layers::ltc::spec::{Constraint, Ltc, NORM_EPSILON};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::{Layout, Place, Result, View, ViewMut};
use std::collections::HashMap;
use std::sync::Arc;

/// Kernels of one source, by entry.
struct Kernels(HashMap<&'static str, Kernel>);

impl Kernels {
    fn load(device: &Arc<CudaDevice>, forward: bool, lanes: u32, c: &Config) -> Result<Self> {
        let (source, entries) = if forward { (&FORWARD, FORWARD_ENTRIES) } else { (&BACKWARD, BACKWARD_ENTRIES) };
        let spec = specialisation(source, entries, lanes, c.fast, c.mixed);
        entries.iter().map(|&e| Ok((e, device.kernel(&spec, e)?))).collect::<Result<_>>().map(Self)
    }
    fn take(&mut self, entry: &'static str) -> Kernel {
        self.0.remove(entry).expect("entries are loaded from the list that names them")
    }
}

/// One kernel a field, so that a launch looks nothing up.
pub(super) struct Forward {
    pub(super) fold: Kernel,
    pub(super) inputs: Kernel,
    pub(super) sensory: Kernel,
    pub(super) forward: Kernel,
}

pub(super) struct Backward {
    pub(super) adjoint: Kernel,
    pub(super) gate_sums: Kernel,
    pub(super) add_slices: Kernel,
    pub(super) neuron_sums: Kernel,
    pub(super) elapsed: Kernel,
    pub(super) input_gradient: Kernel,
    pub(super) inputs_backward: Kernel,
    pub(super) input_sums: Kernel,
    pub(super) output_sums: Kernel,
    pub(super) close_synapses: Kernel,
    pub(super) close: Kernel,
    pub(super) unpack: Kernel,
}

/// LTC on one CUDA device.
pub struct CudaPlan {
    pub(super) device: Arc<CudaDevice>,
    pub(super) p: Ltc,
    pub(super) config: Config,
    pub(super) slots: Slots,
    pub(super) grads: Option<GradSlots>,
    pub(super) forward_signature: Signature,
    pub(super) backward_signature: Option<Signature>,
    pub(super) forward: Forward,
    pub(super) fold: Kernel,
    pub(super) held_backward: Option<HeldBackward>,
    pub(super) recurrence: Option<HeldKernel>,
    pub(super) levels: Option<LevelsForward>,
    pub(super) levels_regions: Option<LevelsRegions>,
    pub(super) levels_row: Option<RowKernel>,
    pub(super) grid: Option<GridKernel>,
    pub(super) grid_backward: Option<GridBackward>,
    /// The inputs' schedule, where the recurrence does all of the forward pass.
    pub(super) whole_inputs: Option<super::whole::Inputs>,
    pub(super) sensory: Option<HeldKernel>,
    pub(super) mixed: Option<MixedMemory>,
    pub(super) backward: Option<Backward>,
    /// Where single rows' gradients are asked about, what closes with them.
    pub(super) samples: Option<super::per_sample::Closing>,
    pub(super) forward_scratch: Common,
    pub(super) traces: Option<Traces>,
}

/// One launch: the grid is cut to what CUDA takes by the callers; an empty one is skipped.
pub(super) fn launch(
    k: &Kernel,
    stream: StreamRef,
    grid: (u64, u64),
    block: (u32, u32),
    shared: u32,
    args: &[Arg],
) -> Result<()> {
    if grid.0 == 0 || grid.1 == 0 {
        return Ok(());
    }
    let config = LaunchConfig {
        grid: (grid.0 as u32, grid.1 as u32, 1),
        block: (block.0, block.1, 1),
        shared_bytes: shared,
        ..LaunchConfig::default()
    };
    launch_as(k, stream, &config, args)
}

/// One launch of a given shape.
pub(super) fn launch_as(k: &Kernel, stream: StreamRef, config: &LaunchConfig, args: &[Arg]) -> Result<()> {
    // SAFETY: every pointer among the arguments was checked against the signature, lies in the scratch layout, or
    // belongs to the plan.
    unsafe { k.launch(stream, config, args) }
}

pub(super) fn at(views: &[View<'_>], slot: Option<usize>) -> Arg<'static> {
    Arg::U64(slot.map_or(0, |i| views[i].address()))
}
pub(super) fn stride(views: &[View<'_>], slot: Option<usize>, axis: usize) -> Arg<'static> {
    Arg::I64(slot.map_or(0, |i| views[i].strides()[axis] as i64))
}
pub(super) fn out(views: &[ViewMut<'_>], slot: Option<usize>) -> Arg<'static> {
    Arg::U64(slot.map_or(0, |i| views[i].address()))
}
/// The arguments of a launch, in the order of the kernel's parameters.
macro_rules! args {
    { $($arg:expr),* $(,)? } => { &[$($arg),*] };
}
pub(super) use args;
pub(super) const NULL: Arg<'static> = Arg::U64(0);

impl CudaPlan {
    /// Chooses a configuration, compiles and loads the kernels.
    ///
    /// # Errors
    /// If a kernel does not compile or load, or the states of a row do not fit shared memory.
    pub fn new(p: &Ltc, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let residency = super::held::residency(device)?;
        let variant = options.variant.as_deref();
        let config = if p.asks_per_sample() {
            tune::choose_per_sample(p, device.props(), &residency, variant)?.ok_or_else(super::per_sample::none)?
        } else {
            tune::choose_for(p, device.props(), &residency, variant)?
        };
        let mut k = Kernels::load(device, true, config.lanes, &config)?;
        let forward = Forward {
            fold: k.take("ltc_fold"),
            inputs: k.take("ltc_inputs"),
            sensory: Kernels::load(device, true, config.sensory_lanes, &config)?.take("ltc_sensory"),
            forward: k.take("ltc_forward"),
        };
        forward.forward.set_max_dynamic_shared(config.forward_shared)?;
        let forward_signature = p.signature_of(Pass::Forward)?;
        let backward_signature = if p.backward { Some(p.signature_of(Pass::Backward)?) } else { None };
        let backward = if p.backward {
            let mut k = Kernels::load(device, false, config.lanes, &config)?;
            let b = Backward {
                adjoint: k.take("ltc_adjoint"),
                gate_sums: k.take("ltc_gate_sums"),
                add_slices: k.take("ltc_add_slices"),
                neuron_sums: k.take("ltc_neuron_sums"),
                elapsed: k.take("ltc_elapsed_gradient"),
                input_gradient: Kernels::load(device, false, config.sensory_lanes, &config)?.take("ltc_input_gradient"),
                inputs_backward: k.take("ltc_inputs_backward"),
                input_sums: k.take("ltc_input_sums"),
                output_sums: k.take("ltc_output_sums"),
                close_synapses: k.take("ltc_close_synapses"),
                close: super::ends::close_kernel(device, "ltc_close", config.fast)?,
                unpack: super::ends::close_kernel(device, "ltc_unpack", config.fast)?,
            };
            b.adjoint.set_max_dynamic_shared(config.adjoint_shared)?;
            Some(b)
        } else {
            None
        };
        let asked = backward_signature.as_ref().filter(|_| p.asks_per_sample());
        let samples = asked.map(|s| super::per_sample::Closing::new(device, config.fast, s)).transpose()?;
        let gap = options.scratch_gap;
        let synapses = &p.connectivity;
        let recurrence = config
            .recurrence
            .map(|h| HeldKernel::recurrence(device, &synapses.recurrent, p.batch, h, config.fast))
            .transpose()?;
        let sensory =
            config.sensory.map(|h| HeldKernel::sensory(device, &synapses.sensory, h, config.fast)).transpose()?;
        let held_backward = if p.backward { HeldBackward::new(device, p, &config)? } else { None };
        let grid = config.grid.map(|g| GridKernel::new(device, &synapses.recurrent, g, config.fast)).transpose()?;
        let grid_backward = if p.backward { GridBackward::new(device, &synapses.recurrent, &config)? } else { None };
        let of_levels = config.levels.filter(|l| l.row.is_none());
        let levels = of_levels.map(|l| LevelsForward::new(device, p, &l.sums, p.batch, config.fast)).transpose()?;
        let whole = config.recurrence.filter(|h| h.whole);
        let whole_inputs =
            whole.map(|h| super::whole::Inputs::new(device, &synapses.sensory, h.blocks, false)).transpose()?;
        let folded = |k: &Option<HeldKernel>| k.as_ref().map_or(0, HeldKernel::folded);
        let mut forward_scratch = Common::new(
            p,
            gap,
            if whole.is_some() { 0 } else { config.forward_chunk },
            false,
            [recurrence.is_none() && grid.is_none() && config.levels.is_none(), sensory.is_none() && whole.is_none()],
            [
                folded(&recurrence).max(grid.as_ref().map_or(0, GridKernel::folded)),
                if whole.is_some() { 0 } else { folded(&sensory) },
            ],
            recurrence.as_ref().filter(|k| k.cuts(p.batch)).map_or(0, |_| p.batch * p.hidden),
            config.grid.map_or((0, 0), |g| g.exchanged(p.hidden)),
            false,
            sensory.is_none() && whole.is_none(),
        )?;
        let unfolds = p.batch * config.forward_chunk * p.unfolds;
        let levels_regions =
            levels.as_ref().map(|k| k.regions(&mut forward_scratch.layout, unfolds, None)).transpose()?;
        let levels_row = config.levels.and_then(|l| l.row);
        let layout = &mut forward_scratch.layout;
        let levels_row = levels_row.map(|c| RowKernel::new(device, p, &c, config.fast, layout)).transpose()?;
        let mut traces = match &backward_signature {
            Some(_) => {
                let (held, divided) = (held_backward.as_ref(), grid_backward.as_ref());
                Some(Traces::new(p, gap, &config, held, divided, folded(&sensory))?)
            }
            None => None,
        };
        let mixed = MixedMemory::new(
            device,
            p,
            [config.forward_chunk, config.backward_chunk],
            (&forward_signature, &mut forward_scratch.layout),
            backward_signature.as_ref().zip(traces.as_mut().map(|t| &mut t.common.layout)),
        )?;
        Ok(Self {
            fold: super::ends::fold_kernel(device, config.fast)?,
            samples,
            device: device.clone(),
            slots: Slots::of(&forward_signature.inputs),
            grads: backward_signature.as_ref().map(|s| GradSlots::of(p, s)),
            forward_scratch,
            traces,
            held_backward,
            recurrence,
            levels,
            levels_regions,
            levels_row,
            grid,
            grid_backward,
            whole_inputs,
            sensory,
            mixed,
            p: p.clone(),
            config,
            forward_signature,
            backward_signature,
            forward,
            backward,
        })
    }

    pub(super) fn constrained(&self) -> Arg<'static> {
        Arg::I32(i32::from(self.p.constraint == Constraint::Softplus))
    }

    /// Folds all parameters into the scratch at `base`; for the backward pass where those tensors become zero.
    pub(super) fn fold(
        &self,
        x: &[View<'_>],
        c: &Common,
        base: u64,
        stream: StreamRef,
        backward: Option<&[(u64, usize)]>,
    ) -> Result<()> {
        let (cleared, backward) = (backward.unwrap_or(&[]), backward.is_some());
        let p = &self.p;
        let region = |id| Arg::U64(c.layout.address(base, id));
        let none = None;
        let recurrent = match (&self.held_backward, backward) {
            (Some(h), true) => &h.rebuild,
            (None, true) => &none,
            (_, false) => &self.recurrence,
        };
        let address = |id| c.layout.address(base, id);
        let mut sides = Vec::with_capacity(8);
        for (side, k, id) in [(Side::Recurrent, recurrent, c.folded[0]), (Side::Sensory, &self.sensory, c.folded[1])] {
            if let Some(k) = k.as_ref().filter(|_| c.layout.region(id).len > 0) {
                sides.push((side, k.slots(), address(id)));
            }
        }
        let divided =
            if backward { self.grid_backward.as_ref().and_then(|g| g.rebuild.as_ref()) } else { self.grid.as_ref() };
        sides.extend(divided.map(|k| (Side::Recurrent, k.slots(), address(c.folded[0]))));
        if let (Some(divided), Some(t), true) = (&self.grid_backward, &self.traces, backward) {
            sides.push((Side::Recurrent, divided.adjoint.slots(), address(t.adjoint_folded)));
        }
        if let (Some(held), Some(t), true) = (&self.held_backward, &self.traces, backward) {
            sides.push((Side::Recurrent, held.adjoint.slots(), address(t.adjoint_folded)));
            sides.extend(held.sums.as_ref().map(|k| (Side::Recurrent, k.slots(), address(t.sums_folded))));
            sides.extend(held.sensory.as_ref().map(|k| (Side::Sensory, k.slots(), address(t.sensory_folded))));
        }
        sides.extend(if backward {
            let k = self.held_backward.as_ref().and_then(|h| h.levels.as_ref());
            levels::folded(None, k, self.traces.as_ref().and_then(|t| t.levels.as_ref()), address)
        } else {
            let row = self.levels_row.as_ref().map(|k| k.sides(address));
            row.unwrap_or_else(|| levels::folded(self.levels.as_ref(), None, self.levels_regions.as_ref(), address))
        });
        let carried = c.layout.region(c.carried).len / 4;
        let neurons = if c.layout.region(c.neurons).len > 0 { address(c.neurons) } else { 0 };
        let (sides, more) = sides.split_at(sides.len().min(SIDES));
        self.fold_held(x, sides, (address(c.carried), carried), neurons, cleared, stream)?;
        self.fold_held(x, more, (0, 0), 0, &[], stream)?;
        for (w, lists, ids, sources, synapses) in [
            (self.slots.w, self.slots.recurrent, c.recurrent, p.hidden, p.connectivity.recurrent.len()),
            (self.slots.sensory_w, self.slots.sensory, c.sensory, p.inputs, p.connectivity.sensory.len()),
        ] {
            if synapses == 0 || c.layout.region(ids[0]).len == 0 {
                continue;
            }
            let tensor = |slot: usize| Arg::U64(x[slot].address());
            let by_source = if c.layout.region(ids[2]).len == 0 { NULL } else { region(ids[2]) };
            let warps = (sources + p.hidden) as u64;
            launch(
                &self.forward.fold,
                stream,
                (warps.div_ceil(8), 1),
                (THREADS, 1),
                0,
                args! {
                    tensor(w), tensor(w + 1), tensor(w + 2), tensor(w + 3), tensor(lists), tensor(lists + 1),
                    tensor(lists + 2), tensor(lists + 3), region(ids[0]), region(ids[1]), by_source,
                    Arg::I32(sources as i32), Arg::I32(p.hidden as i32), self.constrained()
                },
            )?;
        }
        Ok(())
    }

    /// u, and Ns and Ds, of the steps `t0 .. t0 + steps`.
    pub(super) fn sensory_sums(
        &self,
        x: &[View<'_>],
        c: &Common,
        base: u64,
        stream: StreamRef,
        t0: usize,
        steps: usize,
    ) -> Result<()> {
        let p = &self.p;
        let rows = (p.batch * steps) as u64;
        let region = |id| Arg::U64(c.layout.address(base, id));
        let s = &self.slots;
        let held = self.sensory.as_ref().filter(|_| c.layout.region(c.folded[1]).len > 0);
        if let (Some(k), true) = (held, rows > 0) {
            self.held_sensory(k, x, c.layout.address(base, c.folded[1]), region(c.sums), stream, (t0, steps))?;
        }
        // The backward pass also reads u itself.
        if held.is_some() && (c.u_late || c.layout.region(c.u).len == 0) {
            return Ok(());
        }
        self.make_inputs(x, c, base, stream, t0, steps)?;
        if held.is_some() {
            return Ok(());
        }
        let groups = u64::from(THREADS / self.config.sensory_lanes);
        launch(
            &self.forward.sensory,
            stream,
            (rows.div_ceil(4).min(1 << 30), (p.hidden as u64).div_ceil(groups)),
            (THREADS, 1),
            0,
            args! {
                region(c.sensory[0]), at(x, Some(s.sensory + 1)), at(x, Some(s.sensory)), region(c.u),
                region(c.sums), Arg::I64(rows as i64), Arg::I32(p.inputs as i32), Arg::I32(p.hidden as i32)
            },
        )
    }

    /// u of the steps `t0 .. t0 + steps`, and the moments of their rows.
    pub(super) fn make_inputs(
        &self,
        x: &[View<'_>],
        c: &Common,
        base: u64,
        stream: StreamRef,
        t0: usize,
        steps: usize,
    ) -> Result<()> {
        let (p, s) = (&self.p, &self.slots);
        let rows = (p.batch * steps) as u64;
        let region = |id| Arg::U64(c.layout.address(base, id));
        launch(
            &self.forward.inputs,
            stream,
            (if p.inputs == 0 { 0 } else { rows.div_ceil(8) }, 1),
            (THREADS, 1),
            0,
            args! {
                at(x, Some(s.x)), stride(x, Some(s.x), 0), stride(x, Some(s.x), 1), stride(x, Some(s.x), 2),
                at(x, s.norm), at(x, s.norm.map(|n| n + 1)), at(x, s.input_w), at(x, s.input_b), region(c.u),
                region(c.stats), Arg::I64(rows as i64), Arg::I64(steps as i64), Arg::I64(t0 as i64),
                Arg::I32(p.inputs as i32), Arg::F32(NORM_EPSILON as f32)
            },
        )
    }

    pub(super) fn elapsed_args(&self, x: &[View<'_>]) -> [Arg<'static>; 4] {
        let e = self.slots.elapsed;
        [at(x, e), stride(x, e, 0), stride(x, e, 1), Arg::F32(self.p.dt as f32)]
    }

    /// Where what is kept of unfolds goes: states and denominators, or words and nothing, or nothing at all.
    fn kept(&self, outputs: &[ViewMut<'_>]) -> [Arg<'static>; 2] {
        let slot = |name| self.forward_signature.output(name);
        match slot("unfolds") {
            Some(words) => [out(outputs, Some(words)), NULL],
            None => [out(outputs, slot("unfold_states")), out(outputs, slot("unfold_dens"))],
        }
    }

    fn run_forward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (p, x, stream, base) = (&self.p, args.inputs, args.stream, args.scratch.address());
        if p.batch == 0 || p.hidden == 0 {
            return Ok(());
        }
        let c = &self.forward_scratch;
        let region = |id| Arg::U64(c.layout.address(base, id));
        let slot = |name| self.forward_signature.output(name);
        let (states, kept) = (slot("states"), self.kept(args.outputs));
        if let (Some(k), Some(inputs)) = (&self.recurrence, &self.whole_inputs) {
            return self.whole_forward(k, inputs, args, states, kept);
        }
        self.fold(x, c, base, stream, None)?;
        let mut t0 = 0;
        loop {
            let steps = self.config.forward_chunk.min(p.steps - t0);
            self.sensory_sums(x, c, base, stream, t0, steps)?;
            let start = if t0 == 0 {
                [at(x, self.slots.h0), stride(x, self.slots.h0, 0), stride(x, self.slots.h0, 1)]
            } else {
                [out(args.outputs, Some(1)), Arg::I64(p.hidden as i64), Arg::I64(1)]
            };
            if let Some(k) = &self.recurrence {
                self.held_recurrence(
                    k,
                    args,
                    (c.layout.address(base, c.folded[0]), region(c.sums), region(c.carried)),
                    start,
                    states,
                    kept,
                    (t0, steps),
                )?;
                t0 += steps;
                if t0 >= p.steps {
                    return Ok(());
                }
                continue;
            }
            if let Some(k) = &self.levels_row {
                self.row_forward(k, args, start, states, (t0, steps))?;
                t0 += steps;
                if t0 >= p.steps {
                    return Ok(());
                }
                continue;
            }
            if let Some(k) = &self.levels {
                self.levels_forward(k, args, start, states, (t0, steps))?;
                t0 += steps;
                if t0 >= p.steps {
                    return Ok(());
                }
                continue;
            }
            if let Some(k) = &self.grid {
                let room = c.room(base, c.folded[0]);
                self.grid_recurrence(k, args, &room, region(c.sums), start, (states, kept), (t0, steps))?;
                t0 += steps;
                if t0 >= p.steps {
                    return Ok(());
                }
                continue;
            }
            let [e0, e1, e2, e3] = self.elapsed_args(x);
            let [s0, s1, s2] = start;
            let lstm = match &self.mixed {
                Some(mixed) => mixed.ahead(args, &c.layout, base, (t0, steps))?,
                None => [0; _],
            };
            launch(
                &self.forward.forward,
                stream,
                (p.batch as u64, 1),
                (self.config.threads, 1),
                self.config.forward_shared,
                args! {
                    region(c.recurrent[0]), at(x, Some(self.slots.recurrent + 1)),
                    at(x, Some(self.slots.recurrent)), region(c.neurons), region(c.sums), s0, s1, s2, e0, e1,
                    e2, e3, at(x, self.slots.output_w), at(x, self.slots.output_b), out(args.outputs, Some(0)),
                    out(args.outputs, states), out(args.outputs, Some(1)), kept[0], kept[1], Arg::I32(p.hidden as i32),
                    Arg::I32(p.outputs as i32), Arg::I32(p.unfolds as i32), Arg::I64(p.steps as i64),
                    Arg::I64(t0 as i64), Arg::I64(steps as i64), Arg::F32(p.epsilon as f32), Arg::Bytes(&lstm)
                },
            )?;
            t0 += steps;
            if t0 >= p.steps {
                return Ok(());
            }
        }
    }

    fn run_backward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (Some(k), Some(traces), Some(g)) = (&self.backward, &self.traces, &self.grads) else {
            return Ok(());
        };
        let call = BackwardCall { plan: self, k, traces, g };
        call.run(args)
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        "ltc"
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.forward_signature),
            Pass::Backward => self.backward_signature.as_ref(),
            _ => None,
        }
    }
    fn config(&self) -> String {
        self.config.to_string()
    }
    fn variant(&self) -> &'static str {
        "simt"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        match (&self.traces, pass) {
            (Some(t), Pass::Backward) => &t.common.layout,
            _ => &self.forward_scratch.layout,
        }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        match pass {
            Pass::Backward => self.run_backward(args),
            _ => self.run_forward(args),
        }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        self.reports(pass)
    }
}
