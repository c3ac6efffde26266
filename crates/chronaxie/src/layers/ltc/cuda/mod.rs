//! LTC on CUDA: which kernels, with what memory, in which order.
#![allow(unsafe_code)]

mod backward;
mod chain;
mod convert;
mod ends;
mod grid;
mod held;
mod held_backward;
mod kept;
mod launch;
mod levels;
mod levels_row;
mod mixed;
mod on_device;
mod per_sample;
mod report;
mod schedule;
mod scratch;
mod state_sums;
mod tune;
mod whole;
mod wish;

pub(super) use convert::Conversions;
pub use launch::CudaPlan;
pub(super) use per_sample::{Added, Adding, leaves_rows};
pub(super) use tune::rows_at_once;
pub use tune::{Config, Grid, Held, choose};

use crate::DeviceProps;
use crate::cuda::{Archs, COMPARED_ARCHS, Constant, KernelSource, Specialisation};
use crate::kernels;
use crate::layers::ltc::entry;
use crate::layers::ltc::spec::{EACH, Ltc};
use crate::op::{Precision, Signature, TensorSpec};
use std::sync::Arc;

const FORWARD: KernelSource = KernelSource::embedded("layers/ltc/cuda/forward.cu", include_str!("forward.cu"));
const BACKWARD: KernelSource = KernelSource::embedded("layers/ltc/cuda/backward.cu", include_str!("backward.cu"));
const GRID: KernelSource = KernelSource::embedded("layers/ltc/cuda/grid.cu", include_str!("grid.cu"));
const GRID_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/grid_adjoint.cu", include_str!("grid_adjoint.cu"));
const GRID_SUMS: KernelSource = KernelSource::embedded("layers/ltc/cuda/grid_sums.cu", include_str!("grid_sums.cu"));
const FOLD: KernelSource = KernelSource::embedded("layers/ltc/cuda/fold.cu", include_str!("fold.cu"));
const ADJOINT: KernelSource = KernelSource::embedded("layers/ltc/cuda/adjoint.cu", include_str!("adjoint.cu"));
const SENSORY_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/sensory_adjoint.cu", include_str!("sensory_adjoint.cu"));
const CLOSE: KernelSource = KernelSource::embedded("layers/ltc/cuda/close.cu", include_str!("close.cu"));
const PER_SAMPLE: KernelSource = KernelSource::embedded("layers/ltc/cuda/per_sample.cu", include_str!("per_sample.cu"));
const SENSORY: KernelSource = KernelSource::embedded("layers/ltc/cuda/sensory.cu", include_str!("sensory.cu"));
const RECURRENCE: KernelSource = KernelSource::embedded("layers/ltc/cuda/recurrence.cu", include_str!("recurrence.cu"));
const ROW: KernelSource = KernelSource::embedded("layers/ltc/cuda/row.cu", include_str!("row.cu"));
const LONE: KernelSource = KernelSource::embedded("layers/ltc/cuda/lone.cu", include_str!("lone.cu"));
const LEVELS: KernelSource = KernelSource::embedded("layers/ltc/cuda/levels.cu", include_str!("levels.cu"));
const LEVELS_ROW: KernelSource = KernelSource::embedded("layers/ltc/cuda/levels_row.cu", include_str!("levels_row.cu"));
const LEVELS_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/levels_adjoint.cu", include_str!("levels_adjoint.cu"));
const LEVELS_SUMS: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/levels_sums.cu", include_str!("levels_sums.cu"));
const LEVELS_SUMS_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/levels_sums_adjoint.cu", include_str!("levels_sums_adjoint.cu"));
const QUAD: KernelSource = KernelSource::embedded("layers/ltc/cuda/quad.cu", include_str!("quad.cu"));
const TWO: KernelSource = KernelSource::embedded("layers/ltc/cuda/two.cu", include_str!("two.cu"));
const QUAD_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/quad_adjoint.cu", include_str!("quad_adjoint.cu"));
const TURN_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/turn_adjoint.cu", include_str!("turn_adjoint.cu"));
const ROW_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/row_adjoint.cu", include_str!("row_adjoint.cu"));
const FULL_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/full_adjoint.cu", include_str!("full_adjoint.cu"));
const TRACE_SUMS: KernelSource = KernelSource::embedded("layers/ltc/cuda/trace_sums.cu", include_str!("trace_sums.cu"));
const WHOLE: KernelSource = KernelSource::embedded("layers/ltc/cuda/whole.cu", include_str!("whole.cu"));
const WHOLE_ADJOINT: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/whole_adjoint.cu", include_str!("whole_adjoint.cu"));
const WHOLE_CLOSE: KernelSource =
    KernelSource::embedded("layers/ltc/cuda/whole_close.cu", include_str!("whole_close.cu"));
const HEADERS: &[(&str, &str)] = &[("ltc.cuh", include_str!("ltc.cuh")), kernels::WALK];

const HELD_HEADERS: &[(&str, &str)] = &[
    ("ltc.cuh", include_str!("ltc.cuh")),
    ("held.cuh", include_str!("held.cuh")),
    ("row.cuh", include_str!("row.cuh")),
    ("row_adjoint.cuh", include_str!("row_adjoint.cuh")),
    ("whole.cuh", include_str!("whole.cuh")),
    ("whole_walk.cuh", include_str!("whole_walk.cuh")),
    ("whole_gather.cuh", include_str!("whole_gather.cuh")),
    ("exchange.cuh", include_str!("exchange.cuh")),
    ("parts.cuh", include_str!("parts.cuh")),
    ("quad.cuh", include_str!("quad.cuh")),
    ("levels.cuh", include_str!("levels.cuh")),
    ("gate_sums.cuh", include_str!("gate_sums.cuh")),
    kernels::BARRIERS,
    kernels::CLUSTER,
];

const GRID_HEADERS: &[(&str, &str)] = &[
    ("ltc.cuh", include_str!("ltc.cuh")),
    ("held.cuh", include_str!("held.cuh")),
    ("grid.cuh", include_str!("grid.cuh")),
];

const FORWARD_ENTRIES: &[&str] = &["ltc_fold", "ltc_inputs", "ltc_sensory", "ltc_forward"];
const BACKWARD_ENTRIES: &[&str] = &[
    "ltc_adjoint",
    "ltc_gate_sums",
    "ltc_add_slices",
    "ltc_neuron_sums",
    "ltc_elapsed_gradient",
    "ltc_input_gradient",
    "ltc_inputs_backward",
    "ltc_input_sums",
    "ltc_output_sums",
    "ltc_close_synapses",
];

/// `mixed`: with an LSTM in the kernels that walk.
fn specialisation(
    source: &KernelSource,
    entries: &[&'static str],
    lanes: u32,
    fast: bool,
    mixed: bool,
) -> Specialisation {
    Specialisation {
        headers: HEADERS,
        constants: vec![
            ("kLanes", Constant::Int(lanes as i32)),
            ("kFast", Constant::Bool(fast)),
            ("kMixed", Constant::Bool(mixed)),
        ],
        archs: if fast { Archs::AtLeast(75) } else { Archs::All },
        ..Specialisation::new(source.clone(), entries)
    }
}

/// What is compiled ahead, exact and fast: two list lengths of the portable kernels; of those that hold their synapses,
/// each shape in one block and in a cluster, and everything that the compared cases launch.
pub fn specialisations() -> Vec<Specialisation> {
    let mut all = convert::specialisations().to_vec();
    all.push(mixed::specialisation());
    for fast in [false, true] {
        for (lanes, mixed) in [(8, false), (32, false), (8, true), (32, true)] {
            all.push(specialisation(&FORWARD, FORWARD_ENTRIES, lanes, fast, mixed));
            all.push(specialisation(&BACKWARD, BACKWARD_ENTRIES, lanes, fast, mixed));
        }
        all.push(ends::fold_specialisation(fast));
        all.extend(levels::specialisations(fast));
        all.push(levels_row::row_specialisation(fast));
        all.push(ends::close_specialisation(fast));
        all.push(per_sample::specialisation(fast));
        for (slots, threads) in tune::SENSORY_SHAPES {
            let h = Held::of((tune::SENSORY_ROWS, slots, threads));
            all.push(held::specialisation(&SENSORY, &["ltc_sensory_sums"], &h, fast, false));
        }
        if fast {
            let row = |s: tune::RowShape| held::specialisation(&ROW, &["ltc_row"], &Held::row(s), fast, s.cluster);
            all.extend(tune::ROW_SHAPES.map(row));
            let lone = |s| held::specialisation(&LONE, &["ltc_lone"], &Held::lone(s), fast, false);
            all.extend(tune::LONE_SHAPES.map(lone));
            for blocks in tune::WHOLE_BLOCKS {
                all.push(held::specialisation(&WHOLE, &["ltc_whole"], &Held::whole(blocks), fast, false));
                for adjoint in [false, true].map(|words| Held::whole_adjoint(blocks, words)) {
                    all.push(held::specialisation(&WHOLE_ADJOINT, &["ltc_whole_adjoint"], &adjoint, fast, false));
                }
            }
            all.push(whole::close_specialisation());
        }
        for four in tune::FOURS.map(Held::quad) {
            for rebuild in [false, true].into_iter().filter(|&rebuild| fast || rebuild) {
                all.push(held::specialisation(&QUAD, &["ltc_quad"], &Held { rebuild, ..four }, fast, true));
            }
            let adjoint = Held { pairs: true, ..four };
            all.push(held::specialisation(&QUAD_ADJOINT, &["ltc_quad_adjoint"], &adjoint, fast, true));
        }
        for turns in tune::FOURS.map(Held::in_turn) {
            all.push(held::specialisation(&TURN_ADJOINT, &["ltc_turn_adjoint"], &turns, fast, true));
        }
        for rebuild in [false, true] {
            let two = Held { rebuild, ..Held::two() };
            all.push(held::specialisation(&TWO, &["ltc_two"], &two, fast, true));
        }
        for shape in tune::RECURRENCES {
            let plain = Held::of(shape);
            let rebuild = Held { groups: 2, rebuild: true, ..plain };
            all.push(held::specialisation(&RECURRENCE, &["ltc_recurrence"], &plain, fast, false));
            if tune::rebuilds(shape) {
                all.push(held::specialisation(&RECURRENCE, &["ltc_recurrence"], &rebuild, fast, true));
            }
        }
        let adjoint = |source: KernelSource, entry, shape, cluster| {
            let h = Held { pairs: true, ..Held::of(shape) };
            held::specialisation(&source, &[entry], &h, fast, cluster)
        };
        for adjoint in [false, true] {
            all.extend(tune::GRIDS.map(|shape| grid::specialisation(&Grid::of(shape, adjoint), fast)));
        }
        all.push(grid::sums_specialisation(fast));
        all.extend(tune::ADJOINTS.map(|s| adjoint(ADJOINT, "ltc_adjoint_held", s, true)));
        all.extend(tune::BLOCK_ADJOINTS.map(|s| adjoint(ADJOINT, "ltc_adjoint_held", s, false)));
        for h in tune::ROW_ADJOINTS.map(Held::row_adjoint) {
            let (source, entry) =
                if h.full() { (&FULL_ADJOINT, "ltc_full_adjoint") } else { (&ROW_ADJOINT, "ltc_row_adjoint") };
            for words in [false, true].into_iter().filter(|&words| !words || h.full() && fast) {
                all.push(held::specialisation(source, &[entry], &Held { words, ..h }, fast, true));
            }
        }
        all.push(held::trace_specialisation(fast));
        for shape in tune::SENSORY_ADJOINTS {
            all.push(adjoint(SENSORY_ADJOINT, "ltc_sensory_adjoint", shape, false));
            let h = Held { pairs: true, per_sample: true, ..Held::of(shape) };
            all.push(held::specialisation(&SENSORY_ADJOINT, &["ltc_sensory_adjoint"], &h, fast, false));
        }
    }
    // What else the compared cases launch, each for the architectures on which they do.
    static ARCHS: [&str; 6] = COMPARED_ARCHS;
    let key = |s: &Specialisation| (s.source.name.clone(), format!("{:?}", s.constants));
    let everywhere: Vec<_> = all.iter().map(key).collect();
    for (device, arch) in DeviceProps::FIXTURES.iter().zip(ARCHS.chunks(1)) {
        debug_assert_eq!(device.arch(), arch[0]);
        let mut seen = everywhere.clone();
        for mut s in
            compared().iter().filter_map(|p| tune::choose(p, device, None).ok()).flat_map(|c| held::of_config(&c))
        {
            let key = key(&s);
            if !seen.contains(&key) {
                seen.push(key);
                s.archs = Archs::Only(arch);
                all.push(s);
            }
        }
    }
    all
}

/// The problems of the compared cases, exact and fast.
fn compared() -> Vec<Ltc> {
    let mut list = Vec::new();
    for (batch, steps, inputs, hidden) in [(24, 8, 128, 64), (32, 64, 128, 128), (128, 256, 64, 256)] {
        let Ok(c) = entry::random_connectivity(inputs, hidden, 0.5, 1) else { continue };
        let exact = Ltc::new(batch, steps, Arc::new(c));
        list.push(Ltc { precision: Precision::Fast, ..exact.clone() });
        list.push(exact);
    }
    list
}

/// Where each tensor stands in a signature; resolved once, in the plan.
#[derive(Debug, Clone, Copy)]
struct Slots {
    x: usize,
    h0: Option<usize>,
    elapsed: Option<usize>,
    w: usize,
    sensory_w: usize,
    gleak: usize,
    input_w: Option<usize>,
    input_b: Option<usize>,
    norm: Option<usize>,
    output_w: Option<usize>,
    output_b: Option<usize>,
    recurrent: usize,
    sensory: usize,
}

impl Slots {
    fn of(inputs: &[TensorSpec]) -> Self {
        let find = |name: &str| inputs.iter().position(|t| t.name == name);
        let must = |name: &str| find(name).expect("every LTC signature has its data, parameters and lists");
        Self {
            x: must("x"),
            h0: find("h0"),
            elapsed: find("elapsed"),
            w: must("w"),
            sensory_w: must("sensory_w"),
            gleak: must("gleak"),
            input_w: find("input_w"),
            input_b: find("input_b"),
            norm: find("norm_weight"),
            output_w: find("output_w"),
            output_b: find("output_b"),
            recurrent: must("recurrent_target_offsets"),
            sensory: must("sensory_target_offsets"),
        }
    }
}

/// Positions of the backward pass that the forward pass does not have.
#[derive(Debug, Clone, Copy)]
struct GradSlots {
    states: usize,
    /// States and denominators of unfolds, or words.
    stored: Option<usize>,
    words: Option<usize>,
    grad_out: usize,
    grad_final: usize,
    x: Option<usize>,
    h0: Option<usize>,
    elapsed: Option<usize>,
    w: Option<usize>,
    sensory_w: Option<usize>,
    gleak: Option<usize>,
    input_w: Option<usize>,
    input_b: Option<usize>,
    norm: Option<usize>,
    output_w: Option<usize>,
    output_b: Option<usize>,
}

impl GradSlots {
    fn of(p: &Ltc, s: &Signature) -> Self {
        let must = |name: &str| s.input(name).expect("every LTC backward signature has states and gradients");
        // Of parameters the batch's, or each row's.
        let grad = |name: &str| s.output(&format!("grad_{name}")).or_else(|| s.output(&format!("{EACH}{name}")));
        Self {
            states: must(if p.outputs_are_states() { "out" } else { "states" }),
            stored: s.input("unfold_states"),
            words: s.input("unfolds"),
            grad_out: must("grad_out"),
            grad_final: must("grad_final_state"),
            x: s.output("grad_x"),
            h0: s.output("grad_h0"),
            elapsed: s.output("grad_elapsed"),
            w: grad("w"),
            sensory_w: grad("sensory_w"),
            gleak: grad("gleak"),
            input_w: grad("input_w"),
            input_b: grad("input_b"),
            norm: grad("norm_weight"),
            output_w: grad("output_w"),
            output_b: grad("output_b"),
        }
    }
}
