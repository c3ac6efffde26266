//! What is compiled of the resident kernel and what stands beside it.

use super::config::{Place, threads};
use crate::cuda::{Constant, Header, KernelSource, Specialisation};

pub(super) const HEADERS: &[Header] = &[
    ("draws.cuh", include_str!("../../draws.cuh")),
    ("codes.cuh", include_str!("../../codes.cuh")),
    ("math.cuh", include_str!("../../math.cuh")),
    ("network.cuh", include_str!("network.cuh")),
    ("laps.cuh", include_str!("laps.cuh")),
    ("launch.cuh", include_str!("launch.cuh")),
    ("cells.cuh", include_str!("cells.cuh")),
    ("rules.cuh", include_str!("learning/rules.cuh")),
    ("learn.cuh", include_str!("learning/learn.cuh")),
    ("drawn.cuh", include_str!("learning/drawn.cuh")),
    ("wide.cuh", include_str!("learning/wide.cuh")),
    ("events.cuh", include_str!("learning/events.cuh")),
    ("rows.cuh", include_str!("learning/rows.cuh")),
    ("walk.cuh", include_str!("learning/walk.cuh")),
    ("block.cuh", include_str!("block.cuh")),
    ("models.cuh", include_str!("models.cuh")),
    ("adex.cuh", include_str!("../../models/adex.cuh")),
    ("hodgkin_huxley.cuh", include_str!("../../models/hodgkin_huxley.cuh")),
    ("izhikevich.cuh", include_str!("../../models/izhikevich.cuh")),
    ("lif_alpha.cuh", include_str!("../../models/lif_alpha.cuh")),
    ("lif_cond.cuh", include_str!("../../models/lif_cond.cuh")),
    ("lif_delta.cuh", include_str!("../../models/lif_delta.cuh")),
    ("lif_exp.cuh", include_str!("../../models/lif_exp.cuh")),
];

/// What runs steps.
pub(super) fn steps(
    place: Place,
    heavy: bool,
    [held, learns, many, timed, near, narrow, seeds, long]: [bool; 8],
) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/steps.cu", include_str!("steps.cu"));
    let constants = vec![
        ("kPlace", Constant::Int(place as i32)),
        ("kHeavy", Constant::Bool(heavy)),
        ("kHeld", Constant::Bool(held)),
        ("kLearns", Constant::Bool(learns)),
        ("kMany", Constant::Bool(many)),
        ("kTimed", Constant::Bool(timed)),
        ("kNear", Constant::Bool(near)),
        ("kNarrow", Constant::Bool(narrow)),
        ("kSeeds", Constant::Bool(seeds)),
        ("kLong", Constant::Bool(long)),
        ("kThreads", Constant::Int(threads(place, heavy, many) as i32)),
    ];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &["spiking_steps"]) }
}

/// What makes networks, on one card or on several, whose weights have 16 bits or 32.
pub(super) fn build(many: bool, long: bool) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/build.cu", include_str!("build.cu"));
    let constants = vec![("kMany", Constant::Bool(many)), ("kLong", Constant::Bool(long))];
    let entries = ["spiking_build", "spiking_scan", "spiking_degrees", "spiking_restore"];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &entries) }
}

/// What puts spikes in order.
pub(super) fn order() -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/order.cu", include_str!("order.cu"));
    Specialisation { headers: HEADERS, fmad: false, ..Specialisation::new(source, &["spiking_count", "spiking_order"]) }
}

/// What fired elsewhere, in parts.
pub(super) fn hear(learns: bool, long: bool) -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/apart/hear.cu", include_str!("apart/hear.cu"));
    let flags = [("kLearns", learns), ("kMany", true), ("kLong", long)];
    let constants = flags.map(|(name, on)| (name, Constant::Bool(on))).to_vec();
    let entries = ["spiking_hear", "spiking_pack", "spiking_shortest", "spiking_room"];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &entries) }
}

/// What the host asks of synapses that change.
pub(super) fn rows() -> Specialisation {
    let source = KernelSource::embedded("spiking/simulate/cuda/learning/rows.cu", include_str!("learning/rows.cu"));
    let entries = ["spiking_visit", "spiking_heads", "spiking_early"];
    let constants = vec![("kLong", Constant::Bool(false))];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &entries) }
}

/// What snapshots take of synapses that change.
pub(super) fn snapshot() -> Specialisation {
    let source =
        KernelSource::embedded("spiking/simulate/cuda/learning/snapshot.cu", include_str!("learning/snapshot.cu"));
    let entries = ["spiking_arrange", "spiking_take", "spiking_put", "spiking_check", "spiking_total", "spiking_last"];
    let constants = vec![("kLong", Constant::Bool(false))];
    Specialisation { headers: HEADERS, constants, fmad: false, ..Specialisation::new(source, &entries) }
}

/// Everything that a simulation may launch.
pub fn specialisations() -> Vec<Specialisation> {
    let places = [Place::Shared, Place::Calendar, Place::Global];
    let kinds = places.into_iter().flat_map(|place| [false, true].map(|heavy| (place, heavy)));
    let kinds = kinds
        .flat_map(|(place, heavy)| [false, true].map(|many| (place, heavy, [false, false, many, false, false, false])));
    let light = [(false, true, false), (false, true, true), (false, false, true), (true, false, true)];
    let kinds = kinds
        .chain(light.map(|(heavy, held, learns)| (Place::Shared, heavy, [held, learns, false, false, false, false])));
    let shared = [false, true].map(|heavy| (Place::Shared, heavy, [false, true, true, false, false, false]));
    let near = [(false, false), (true, false), (false, true)];
    let near = near.map(|(many, narrow)| (Place::Calendar, false, [false, false, many, false, true, narrow]));
    // Held, learns, many, timed, near, narrow: those of a network on one card, and some on several.
    let timed = [
        (Place::Shared, false, [true, false, false, true, false, false]),
        (Place::Shared, false, [true, true, false, true, false, false]),
        (Place::Shared, false, [false, true, false, true, false, false]),
        (Place::Shared, true, [false, false, false, true, false, false]),
        (Place::Shared, true, [false, true, false, true, false, false]),
        (Place::Shared, false, [false, true, true, true, false, false]),
        (Place::Calendar, true, [false, false, false, true, false, false]),
        (Place::Calendar, false, [false, false, false, true, true, false]),
        (Place::Calendar, false, [false, false, false, true, true, true]),
        (Place::Calendar, false, [false, false, true, true, true, false]),
    ];
    let kinds = kinds.chain(shared).chain(near).flat_map(|kind| [false, true].map(|seeds| (kind, seeds)));
    let kinds = kinds.chain(timed.map(|kind| (kind, false)));
    let form = |((place, heavy, [held, learns, many, timed, near, narrow]), seeds): ((_, _, [bool; 6]), _)| {
        let may = !learns && !narrow;
        let long = [false, true].into_iter().filter(move |long| may || !long);
        long.map(move |long| steps(place, heavy, [held, learns, many, timed, near, narrow, seeds, long]))
    };
    let either = [false, true];
    let builds = either.into_iter().flat_map(|many| either.map(|long| build(many, long)));
    let hears = [hear(false, false), hear(true, false), hear(false, true)];
    let steps = kinds.flat_map(form).chain(builds).chain([order(), rows(), snapshot()]).chain(hears);
    steps.chain(super::learning::specialisations()).collect()
}
