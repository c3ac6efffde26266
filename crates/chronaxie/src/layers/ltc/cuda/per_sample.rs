//! What is known of single rows' gradients: from the sums that each row left (per_sample.cu), or added up over parts of the rows.

use super::backward::BackwardCall;
use super::held::HeldKernel;
use super::held_backward::HeldBackward;
use super::launch::{args, at, launch, launch_as, stride};
use super::on_device::pack;
use super::tune::{self, Residency};
use super::{GradSlots, HELD_HEADERS, PER_SAMPLE};
use crate::cuda::{Arg, Constant, CudaDevice, Kernel, LaunchConfig, Specialisation, StreamRef};
use crate::layers::ltc::spec::{Ltc, PerSample, extras};
use crate::op::{Args, LaunchReport, PlanOptions, Signature};
use crate::{Error, Result};
use std::sync::Arc;

const ENTRIES: &[&str] = &["ltc_close_samples", "ltc_sample_squares", "ltc_add_samples"];
/// Threads of a block of ltc_close_samples, and places that they have; rows of a block of ltc_sample_squares, a warp each.
const THREADS: usize = 256;
const PLACES: usize = 64;
const ROWS: usize = 4;
/// The most parameters of a launch, as in per_sample.cu: of a layer without an LSTM, and of any.
const SQUARED: usize = 18;
const ADDED: usize = 24;

pub(super) fn specialisation(fast: bool) -> Specialisation {
    Specialisation {
        headers: HELD_HEADERS,
        constants: vec![("kFast", Constant::Bool(fast))],
        ..Specialisation::new(PER_SAMPLE.clone(), ENTRIES)
    }
}

pub(super) fn none() -> Error {
    Error::config("ltc: no kernel leaves the sums of single rows of this problem at once")
}

/// Whether one pass over all rows of `p` leaves what is known of each.
///
/// # Errors
/// As for the choice of a configuration.
pub(in crate::layers::ltc) fn leaves_rows(p: &Ltc, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<bool> {
    let resident: Residency = super::held::residency(device)?;
    Ok(tune::choose_per_sample(p, device.props(), &resident, options.variant.as_deref())?.is_some())
}

/// Blocks of ltc_close_samples for each kind of sum: recurrent and sensory synapses, neurons, inputs, outputs.
pub(super) struct Blocks {
    counts: [usize; 5],
}

impl Blocks {
    pub(super) fn of(p: &Ltc, held: Option<&HeldBackward>) -> Self {
        let sides = match held {
            Some(HeldBackward { whole: Some(_), .. }) | None => [p.hidden * p.hidden, p.inputs * p.hidden],
            Some(k) => [k.adjoint.summed().1, k.sensory.as_ref().map_or(0, |s| s.summed().1)],
        };
        Self { counts: [sides[0], sides[1], p.hidden, p.inputs, p.outputs] }
    }
    /// The first block of each kind, and how many there are.
    fn firsts(&self) -> ([usize; 5], usize) {
        let mut first = [0; 5];
        let mut all = 0;
        for (first, n) in first.iter_mut().zip(self.counts) {
            *first = all;
            all += n.div_ceil(PLACES);
        }
        (first, all)
    }
    /// Floats that they leave of all rows.
    pub(super) fn floats(&self, p: &Ltc) -> usize {
        4 * self.firsts().1 * p.batch
    }
}

/// The kernels that end a pass of whose rows the sums are there.
pub(super) struct Closing {
    close: Kernel,
    squares: Kernel,
    /// Of each output that is a parameter's gradient, where its squares and moments are, if it has them.
    extras: Vec<Option<[usize; 2]>>,
}

impl Closing {
    pub(super) fn new(device: &Arc<CudaDevice>, fast: bool, backward: &Signature) -> Result<Self> {
        let spec = specialisation(fast);
        Ok(Self {
            close: device.kernel(&spec, ENTRIES[0])?,
            squares: device.kernel(&spec, ENTRIES[1])?,
            extras: extras(backward),
        })
    }
    pub(super) fn report(&self, p: &Ltc, held: &HeldBackward) -> Result<Vec<LaunchReport>> {
        let blocks = Blocks::of(p, Some(held)).firsts().1 as u32;
        let rows = (p.batch.div_ceil(ROWS) as u32, parameters(p) as u32, 1);
        let squares = usize::from(p.per_sample == PerSample::Squares);
        let mut list = vec![
            LaunchReport::new(&self.close, 1, (blocks, 1, 1), (THREADS as u32, 1, 1), 0)?,
            LaunchReport::new(&self.squares, squares, rows, (32 * ROWS as u32, 1, 1), 0)?,
        ];
        list.truncate(1 + squares);
        Ok(list)
    }
}

/// How many parameters a layer without an LSTM has.
fn parameters(p: &Ltc) -> usize {
    11 + p.input_mapping.weights() + p.output_mapping.weights() + 2 * usize::from(p.layer_norm)
}

impl BackwardCall<'_> {
    /// From the sums of all rows to every output that belongs to parameters.
    pub(super) fn close_samples(
        &self,
        k: &Closing,
        held: &HeldBackward,
        args: &mut Args<'_, '_>,
        base: u64,
    ) -> Result<()> {
        let (p, x, plan, t, s) = (&self.plan.p, args.inputs, self.plan, self.traces, &self.plan.slots);
        let g: &GradSlots = self.g;
        let address = |id| t.common.layout.address(base, id);
        let (w, sensory_w, gleak) = match (g.w, g.sensory_w, g.gleak) {
            (Some(w), Some(sensory_w), Some(gleak)) => (w, sensory_w, gleak),
            _ => return Err(none()),
        };
        // Sums of the outputs: a slice is a row.
        let outputs = g.output_w.map(|_| (p.outputs.div_ceil(32) as u64, p.batch as u64));
        if let (Some(grid), None) = (outputs, &held.whole) {
            launch(
                &self.k.output_sums,
                args.stream,
                grid,
                (32, 8),
                0,
                args! {
                    at(x, Some(g.states)), at(x, Some(g.grad_out)), stride(x, Some(g.grad_out), 0),
                    stride(x, Some(g.grad_out), 1), stride(x, Some(g.grad_out), 2), Arg::U64(address(t.partial)),
                    Arg::I64((p.batch * p.steps) as i64), Arg::I64(p.steps as i64), Arg::I64(p.steps as i64),
                    Arg::I32(p.hidden as i32), Arg::I32(p.outputs as i32)
                },
            )?;
        }
        let blocks = Blocks::of(p, Some(held));
        let (first, all) = blocks.firsts();
        let mut table = [0u8; 24 * SQUARED];
        let mut tables = 0;
        let each = p.per_sample == PerSample::Gradients;
        // Gradients and moments of parameters that follow each other, whose squares are those of one kind of block.
        let mut written = |kind: usize, grads: &[Option<usize>]| -> Vec<u64> {
            let mut to = Vec::new();
            for &grad in grads {
                to.push(grad.map_or(0, |i| args.outputs[i].address()));
            }
            for (which, &grad) in grads.iter().enumerate() {
                let Some([squares, moments]) = grad.and_then(|grad| k.extras[grad]) else {
                    to.push(0);
                    continue;
                };
                to.push(args.outputs[moments].address());
                let part = first[kind] as u64 | (blocks.counts[kind].div_ceil(PLACES) as u64) << 32;
                table[24 * tables..][..24].copy_from_slice(&pack::<3, 24>([
                    args.outputs[squares].address(),
                    part,
                    which as u64,
                ]));
                tables += 1;
            }
            to
        };
        let side =
            |map: u64, sums: u64, from: usize, to: &[u64], kind: usize, pitch: usize, by_element: bool| -> [u8; 152] {
                let of = [0, 1, 2, 3].map(|i| x[from + i].address());
                let mut all = [0u64; 19];
                all[..2].copy_from_slice(&[map, sums]);
                all[2..6].copy_from_slice(&of);
                all[6..14].copy_from_slice(to);
                let elements = x[from].shape().elements();
                let counts = [blocks.counts[kind], pitch, first[kind], usize::from(by_element), elements];
                all[14..].copy_from_slice(&counts.map(|n| n as u64));
                pack(all)
            };
        let four = |first: usize| [0, 1, 2, 3].map(|i| Some(first + i));
        let (to_recurrent, to_sensory) = (written(0, &four(w)), written(1, &four(sensory_w)));
        let to_neurons = written(2, &[0, 1, 2].map(|i| Some(gleak + i)));
        let to_inputs = written(3, &[g.input_w, g.input_b, g.norm, g.norm.map(|n| n + 1)]);
        let to_outputs = written(4, &[g.output_w, g.output_b, None, None]);
        let (sides, columns) = match &held.whole {
            Some(whole) => {
                let [recurrent, inputs] = whole.slots();
                let (map, of_inputs) = (whole.slot_of(), whole.slot_of() + 4 * (p.hidden * p.hidden) as u64);
                let sides = [
                    side(map, address(t.gate_sums), s.w, &to_recurrent, 0, recurrent, true),
                    side(of_inputs, address(t.sensory_sums), s.sensory_w, &to_sensory, 1, inputs, true),
                ];
                (sides, [(address(t.inputs), 2 * p.inputs, 2), (address(t.outputs), 2 * p.hidden, 2)])
            }
            None => {
                let sensory: &HeldKernel = held.sensory.as_ref().ok_or_else(none)?;
                let ((map, slots), (of_inputs, inputs)) = (held.adjoint.summed(), sensory.summed());
                let sides = [
                    side(map, address(t.gate_sums), s.w, &to_recurrent, 0, slots, false),
                    side(of_inputs, address(t.sensory_sums), s.sensory_w, &to_sensory, 1, inputs, false),
                ];
                (sides, [(address(t.inputs), 4 * p.inputs, 4), (address(t.partial), 4 * p.outputs, 4)])
            }
        };
        let of = |i: usize| x[s.gleak + i].address();
        let mut neurons = [0u64; 12];
        neurons[..4].copy_from_slice(&[address(t.cluster_sums), of(0), of(1), of(2)]);
        neurons[4..10].copy_from_slice(&to_neurons);
        neurons[10..].copy_from_slice(&[p.hidden as u64, first[2] as u64]);
        let neurons: [u8; 96] = pack(neurons);
        let column = |(sums, pitch, each): (u64, usize, usize), to: &[u64], kind: usize| -> [u8; 104] {
            // Where none of them is asked for, none is looked at.
            let count = if to.iter().all(|&a| a == 0) { 0 } else { blocks.counts[kind] };
            let counts = [count, pitch, each, first[kind]].map(|n| n as u64);
            let mut all = [0u64; 13];
            all[0] = sums;
            all[1..9].copy_from_slice(to);
            all[9..].copy_from_slice(&counts);
            pack(all)
        };
        let (inputs, outputs) = (column(columns[0], &to_inputs, 3), column(columns[1], &to_outputs, 4));
        launch_as(
            &k.close,
            args.stream,
            &LaunchConfig::new((all as u32, 1, 1), (THREADS as u32, 1, 1)),
            args! {
                Arg::Bytes(&sides[0]), Arg::Bytes(&sides[1]), Arg::Bytes(&neurons), Arg::Bytes(&inputs),
                Arg::Bytes(&outputs), Arg::U64(address(t.squares)), Arg::I32(p.batch as i32),
                Arg::I32(p.hidden as i32), plan.constrained(), Arg::I32(i32::from(each))
            },
        )?;
        if each {
            return Ok(());
        }
        launch_as(
            &k.squares,
            args.stream,
            &LaunchConfig::new((p.batch.div_ceil(ROWS) as u32, tables as u32, 1), (32 * ROWS as u32, 1, 1)),
            args! { Arg::Bytes(&table), Arg::U64(address(t.squares)), Arg::I32(p.batch as i32) },
        )
    }
}

/// Of one parameter what a part of the rows left, and where it is added: addresses, 0 for none.
#[derive(Debug, Clone, Copy)]
pub(in crate::layers::ltc) struct Added {
    pub(in crate::layers::ltc) from: u64,
    pub(in crate::layers::ltc) from_moments: u64,
    pub(in crate::layers::ltc) grad: u64,
    pub(in crate::layers::ltc) moments: u64,
    pub(in crate::layers::ltc) squares: u64,
    pub(in crate::layers::ltc) elements: usize,
}

/// The kernel that adds what parts of the rows left.
pub(in crate::layers::ltc) struct Adding(Kernel);

impl Adding {
    pub(in crate::layers::ltc) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        Ok(Self(device.kernel(&specialisation(false), ENTRIES[2])?))
    }
    fn grid(list: &[Added]) -> (u32, u32, u32) {
        let longest = list.iter().map(|a| a.elements).max().unwrap_or(0);
        let blocks = if list.iter().any(|a| a.squares != 0) { 1 } else { longest.div_ceil(8192).clamp(1, 256) };
        (blocks as u32, list.len() as u32, 1)
    }
    pub(in crate::layers::ltc) fn add(&self, list: &[Added], stream: StreamRef) -> Result<()> {
        for list in list.chunks(ADDED) {
            let mut table = [0u8; 48 * ADDED];
            for (to, a) in table.chunks_exact_mut(48).zip(list) {
                to.copy_from_slice(&pack::<6, 48>([
                    a.from,
                    a.from_moments,
                    a.grad,
                    a.moments,
                    a.squares,
                    a.elements as u64,
                ]));
            }
            let config = LaunchConfig::new(Self::grid(list), (1024, 1, 1));
            launch_as(&self.0, stream, &config, args! { Arg::Bytes(&table) })?;
        }
        Ok(())
    }
    pub(in crate::layers::ltc) fn report(&self, list: &[Added], launches: usize) -> Result<LaunchReport> {
        LaunchReport::new(&self.0, launches, Self::grid(list), (1024, 1, 1), 0)
    }
}
