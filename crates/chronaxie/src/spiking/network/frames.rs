//! Frames: input from a sense, a matrix of numbers or several one after the other, each shown for a while.
//!
//! ```toml
//! [[drive]]
//! target = "V1"
//! kind = "frames"
//! file = "movie.npz"           # or .npy, or .csv: rows of numbers, without a heading
//! array = "frames"             # of an .npz: [cell], [frame, cell]; with axes [x, y], [frame, x, y]
//! axes = "xy"                  # cells by where they lie: element [i, j] goes to those at x = i, y = j, of any z and w
//! origin = [0, 0]              # where element [0, 0] lies
//! layer = { z = 0 }            # only cells at this z
//! weight = 0.5                 # what a value of 1 adds in each step, in the unit of the model;
//!                              # or current = 300.0: the current that a value of 1 comes to over time, pA
//! hold = "10ms"                # a frame is shown for so long
//! start = "0ms"
//! repeat = 1                   # how often the frames are shown, again from the first
//! weight_bits = 16             # or 32, as of a projection
//! delay = 0.1                  # ms until a frame is felt: a step, or as long as parts are not to exchange spikes
//! ```
//!
//! A frame is a cell of a population `V1 frames`, which fires in the steps in which the frame is shown, and its elements are
//! synapses: so what is exact of synapses is exact of frames, on every engine. What is 0 is no synapse.

use super::files::Files;
use super::{Delay, Edge, Network, Population, Projection, Rule, Storage};
use crate::Result;
use crate::config::{Milliseconds, Section, quote, short};
use crate::data::npz::Array;
use crate::spiking::models;
use std::path::PathBuf;
use std::sync::Arc;

/// The axes of places, by their names.
const AXES: &str = "xyzw";

/// Where the elements of a frame go.
struct Placed {
    /// Indices into a place, one an axis of a frame.
    axes: Vec<usize>,
    origin: Vec<i32>,
    /// An index into a place, and what it must be.
    layer: Vec<(usize, i32)>,
}

/// Adds the population and the projection of `[[drive]]` with `kind = "frames"`.
///
/// # Errors
/// `Config` with the field and the line; `Data` and `Io` of the file.
pub(super) fn frames(
    section: &Section<'_>,
    target: usize,
    network: &mut Network,
    files: &Files,
    use_it: bool,
) -> Result<()> {
    let placed = placed(section)?;
    // In terms of a current where that is asked for, which does not depend on the step.
    let strength = if section.contains("current") { "current" } else { "weight" };
    let size: f64 = section.require(strength)?;
    let hold = section.require::<Milliseconds>("hold")?.0;
    let start = section.get("start", Milliseconds(0.0))?.0;
    let repeat: u32 = section.get("repeat", 1)?;
    let delay = section.get("delay", Milliseconds(network.dt_ms))?.0;
    let weight_bits = super::read::weight_bits(section)?;
    let file: PathBuf = section.require("file")?;
    let array = read(section, files, &file)?;
    if !use_it {
        return Ok(());
    }
    let p = &network.populations[target];
    if p.model.ports().is_empty() {
        return Err(section
            .refuse("target", &format!("is {}, whose cells of {} take no input", quote(&p.name), p.model.name())));
    }
    let dt = network.dt_ms;
    let typical = p.typical();
    let charge = |port: usize| match strength {
        "current" => p.model.charge(&typical, port).map(|charge| dt / charge),
        _ => Some(1.0),
    };
    let Some(of_port) = charge(0).zip(charge(p.model.ports().len() - 1)) else {
        let what = format!("is of currents, which inputs of {} are not; give a weight", p.model.name());
        return Err(section.refuse("current", &what));
    };
    let (hold_steps, first) = ((hold / dt).round(), (start / dt).round());
    for (key, ms) in [("hold", hold), ("delay", delay)] {
        if (ms / dt).round() < 1.0 {
            let what = format!("is {} ms, which is less than the step of {dt} ms", short(ms));
            return Err(section.refuse(key, &what));
        }
    }
    let (count, elements) = elements(section, &array, &placed, p)?;
    let steps = hold_steps * count as f64 * f64::from(repeat);
    if first + steps > 1e15 || count > u32::MAX as usize {
        return Err(section.refuse(
            "hold",
            &format!(
                "of {hold} ms: {steps} steps of frames are more than a simulation has",
                hold = short(hold),
                steps = short(steps)
            ),
        ));
    }
    let in_frame = array.values.len() / count.max(1);
    let synapses = array.values.iter().filter(|x| **x != 0.0).count() as u64;
    let each = elements.len().div_ceil(in_frame.max(1)).max(1) as u64;
    let what = || {
        let list = format!("a list of {steps} steps of frames, and of their numbers,", steps = short(steps));
        format!("{}: {list}", files.path(&file).display())
    };
    // Synapses are listed in a column that grows by doubling.
    let rows = (steps as u64).saturating_add(synapses.saturating_mul(2 * each));
    crate::memory::require(rows.saturating_mul(16), what)?;
    let mut edges = Vec::new();
    for (frame, values) in array.values.chunks(in_frame.max(1)).enumerate().take(count) {
        for &(cell, at) in elements.iter().filter(|(_, at)| values[*at] != 0.0) {
            let w = values[at] * size;
            let w = (w * if w < 0.0 { of_port.1 } else { of_port.0 }) as f32;
            if !w.is_finite() {
                let what = format!(
                    "times {} (frame {frame}, element {at}) is beyond the range of single precision",
                    short(values[at])
                );
                return Err(section.refuse(strength, &format!("{} {what}", short(size))));
            }
            edges.push(Edge { source: frame as u32, target: cell, weight: w, delay_ms: delay as f32 });
        }
    }
    let (first, hold_steps) = (first as u64, hold_steps as u64);
    let mut shown = Vec::with_capacity(steps as usize);
    for k in 0..count as u64 * u64::from(repeat) {
        let begin = first + k * hold_steps;
        shown.extend((begin..begin + hold_steps).map(|step| (step, (k % count as u64) as u32)));
    }
    let model = models::find("spikes").map_err(|e| section.refuse("kind", &e))?;
    let mut source = Population::new(free_name(network, target), model, count as u32);
    source.replay = Some(Arc::new(shown));
    // Partitioners by place keep them beside their cells.
    source.positions =
        network.populations[target].positions.as_ref().and_then(|all| all.first()).map(|at| Arc::new(vec![*at; count]));
    let source = network.add(source);
    network.projections.push(Projection {
        source,
        target,
        rule: Rule::Edges(Arc::new(edges)),
        weight: 0.0.into(),
        delay: Delay::Drawn(delay.into()),
        autapses: true,
        plasticity: None,
        storage: Storage::Stored,
        weight_bits,
    });
    Ok(())
}

/// A name that no population has yet.
fn free_name(network: &Network, target: usize) -> String {
    let base = format!("{} frames", network.populations[target].name);
    let mut name = base.clone();
    let mut k = 1;
    while network.find(&name).is_some() {
        k += 1;
        name = format!("{base} {k}");
    }
    name
}

fn placed(section: &Section<'_>) -> Result<Placed> {
    let words = section.get("axes", String::new())?;
    let axes: Option<Vec<usize>> = words.chars().map(|c| AXES.find(c)).collect();
    let axes = axes.filter(|all| all.iter().enumerate().all(|(i, a)| !all[..i].contains(a)));
    let Some(axes) = axes else {
        return Err(section.refuse(
            "axes",
            &format!("is {}, but axes are some of x, y, z and w, each once, as in \"xy\"", quote(&words)),
        ));
    };
    let origin = section.get("origin", vec![0i32; axes.len()])?;
    if origin.len() != axes.len() {
        let what = format!("has {} numbers for {} axes ({})", origin.len(), axes.len(), quote(&words));
        return Err(section.refuse("origin", &what));
    }
    let mut layer = Vec::new();
    if section.contains("layer") {
        if axes.is_empty() {
            return Err(section.refuse("layer", "is of places, by which frames go with axes alone"));
        }
        let t = section.table("layer")?;
        for (axis, name) in AXES.chars().enumerate() {
            if let Some(at) = t.optional::<i32>(&name.to_string())? {
                layer.push((axis, at));
            }
        }
    }
    Ok(Placed { axes, origin, layer })
}

/// The numbers, in the shape that they have or are said to have.
fn read(section: &Section<'_>, files: &Files, file: &std::path::Path) -> Result<Array> {
    let name = section.get("array", "frames".to_owned())?;
    let mut array = files.array(file, &name)?;
    if let Some(shape) = section.optional::<Vec<usize>>("shape")? {
        let numbers = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        if numbers != Some(array.values.len()) {
            let what = format!("is {shape:?}, but {} has {} numbers", files.path(file).display(), array.values.len());
            return Err(section.refuse("shape", &what));
        }
        array.shape = shape;
    }
    Ok(array)
}

/// How many frames there are, and which element of a frame goes to which cell.
fn elements(
    section: &Section<'_>,
    array: &Array,
    placed: &Placed,
    p: &Population,
) -> Result<(usize, Vec<(u32, usize)>)> {
    let shape = &array.shape;
    let own = placed.axes.len().max(1);
    let dims = match shape.len().checked_sub(own) {
        Some(0) => &shape[..],
        Some(1) => &shape[1..],
        _ => {
            let want = if placed.axes.is_empty() {
                "[cell] or [frame, cell]".to_owned()
            } else {
                format!("one of {own} axes, or of frames of these")
            };
            return Err(section.refuse("file", &format!("has an array of shape {shape:?}, which is not {want}")));
        }
    };
    let count = if shape.len() == own { 1 } else { shape[0] };
    if array.values.is_empty() {
        return Err(section.refuse("file", &format!("has an array of shape {shape:?}, which holds no number")));
    }
    if placed.axes.is_empty() {
        if dims[0] != p.size as usize {
            let what = format!(
                "has frames of {} numbers for the {} cells of {}; with axes they go by places",
                dims[0],
                p.size,
                quote(&p.name)
            );
            return Err(section.refuse("file", &what));
        }
        return Ok((count, (0..p.size).map(|cell| (cell, cell as usize)).collect()));
    }
    let Some(places) = &p.positions else {
        return Err(section
            .refuse("axes", &format!("are of places, and the cells of {} have none (box, places)", quote(&p.name))));
    };
    let element = |place: &[f32; 4]| -> Option<usize> {
        if placed.layer.iter().any(|(axis, at)| place[*axis] != *at as f32) {
            return None;
        }
        let mut at = 0;
        for ((axis, origin), size) in placed.axes.iter().zip(&placed.origin).zip(dims) {
            let i = (f64::from(place[*axis]) - f64::from(*origin)).floor();
            if !(0.0..*size as f64).contains(&i) {
                return None;
            }
            at = at * size + i as usize;
        }
        Some(at)
    };
    let found = places.iter().enumerate().filter_map(|(cell, place)| Some((cell as u32, element(place)?)));
    let found: Vec<(u32, usize)> = found.collect();
    if found.is_empty() {
        let what = format!("of shape {dims:?} from {:?} on lie at no cell of {}", placed.origin, quote(&p.name));
        return Err(section.refuse("file", &format!("has frames that {what}")));
    }
    Ok((count, found))
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
