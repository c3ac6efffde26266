//! Launches of norms: ghost.cu.
#![allow(unsafe_code)]

use super::spec::{GhostNorms, NAME, Way};
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation};
use crate::op::{Args, LaunchReport, LinearMap, Pass, Plan, PlanOptions, Signature};
use crate::optim::ongpu::{MAP_HEADERS, THREADS, TILE};
use crate::{Dtype, Error, Layout, Place, RegionId, Result};
use std::sync::Arc;

const ENTRIES: [&str; 6] =
    ["ghost_rows", "ghost_short16", "ghost_short32", "ghost_pairs", "ghost_gradient", "ghost_fold"];
/// A kernel, by its place in [`ENTRIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Rows,
    Short16,
    Short32,
    Pairs,
    Gradient,
    Fold,
}
const SAYS: [&str; 6] = ["T = 1", "pairs, 16 x 16", "pairs, 32 x 32", "pairs, 64 x 64", "gradient, 64 x 64", ""];
/// Samples of a launch: slots are theirs, and more of them come one launch behind the other.
const SAMPLES: usize = 1 << 18;
/// Blocks that a launch is cut into where samples alone are fewer; with [`SAMPLES`] the bound of the slots.
const BLOCKS: usize = 2048;
/// Channels of a side: sums of them and a tile fit an int.
const MOST_CHANNELS: usize = i32::MAX as usize - TILE;
const WARPS: usize = THREADS as usize / 32;

pub(super) fn specialisations() -> Vec<Specialisation> {
    let source = KernelSource::embedded("optim/per_sample/cuda/ghost.cu", include_str!("ghost.cu"));
    let mut spec = Specialisation::new(source, &ENTRIES);
    spec.headers = MAP_HEADERS;
    vec![spec]
}

/// The variants: by the rule, or every map by one way.
fn asked(variant: Option<&str>) -> Result<(Option<Way>, &'static str)> {
    match variant {
        None | Some("simt") => Ok((None, "simt")),
        Some("pairs") => Ok((Some(Way::Pairs), "pairs")),
        Some("gradient") => Ok((Some(Way::Gradient), "gradient")),
        Some(v) => {
            Err(Error::config(format!("{NAME}: variant `{v}` is not one of simt, pairs, gradient on a CUDA device")))
        }
    }
}

/// What a product of long sequences' pairs takes of one of the gradient: on an H200 2.3 at B64 T128 D256 H256, whose 192 tiles of
/// pairs leave multiprocessors idle.
const PAIR_TAKES: u128 = 2;

/// A map's kernel: of pairs and the gradient that whose tiles' products take less, as the CPU's rule counts them without tiles.
fn of(m: &LinearMap, way: Option<Way>) -> Of {
    let (a, h) = (GhostNorms::inputs(m), m.to.count);
    let tiles = |n: usize| n.div_ceil(TILE) as u128;
    let (pairs, products) = match m.steps {
        0..=1 => (Of::Rows, 1),
        2..=16 => (Of::Short16, 16 * 16),
        17..=32 => (Of::Short32, 32 * 32),
        t => (Of::Pairs, tiles(t).saturating_mul(tiles(t) + 1) / 2 * (TILE * TILE) as u128),
    };
    let each = if pairs == Of::Pairs { PAIR_TAKES } else { 1 };
    let by_pairs = products.saturating_mul((a + h) as u128).saturating_mul(each);
    let by_gradient = (tiles(a) * tiles(h)).saturating_mul(m.steps as u128).saturating_mul((TILE * TILE) as u128);
    match way {
        Some(Way::Gradient) => Of::Gradient,
        Some(Way::Pairs) => pairs,
        None if by_pairs <= by_gradient => pairs,
        None => Of::Gradient,
    }
}

/// A map that has something to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    map: usize,
    of: Of,
    /// Slots of a sample that it adds to.
    parts: usize,
}

/// What is launched: a function of the problem and the variant alone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    jobs: Vec<Job>,
    /// Samples of a launch, but for the last.
    samples: usize,
    /// Slots of a sample, and whether the last map writes the results itself.
    stride: usize,
    direct: bool,
}

impl Cut {
    fn new(p: &GhostNorms, way: Option<Way>) -> Self {
        let samples = p.batch.min(SAMPLES);
        let job = |(map, m): (usize, &LinearMap)| {
            let (of, tiles) = (of(m, way), |n: usize| n.div_ceil(TILE) as u128);
            let all = match of {
                Of::Pairs => tiles(m.steps).saturating_mul(tiles(m.steps) + 1) / 2,
                Of::Gradient => tiles(GhostNorms::inputs(m)) * tiles(m.to.count),
                _ => 1,
            };
            let parts = BLOCKS.div_ceil(samples.max(1)).min(usize::try_from(all).unwrap_or(usize::MAX)).max(1);
            Job { map, of, parts }
        };
        let adds = |m: &LinearMap| m.steps > 0 && m.to.count > 0 && GhostNorms::inputs(m) > 0;
        let jobs: Vec<Job> = p.maps.iter().enumerate().filter(|(_, m)| adds(m)).map(job).collect();
        let stride = jobs.iter().map(|j| j.parts).max().unwrap_or(0);
        Self { direct: stride == 1, jobs, samples, stride }
    }
    /// Floats of f64 that the slots of a launch take.
    fn slots(&self) -> usize {
        if self.direct && self.jobs.len() == 1 { 0 } else { self.samples * self.stride }
    }
}

pub(super) struct CudaPlan {
    problem: GhostNorms,
    device: Arc<CudaDevice>,
    kernels: Vec<Kernel>,
    signature: Signature,
    layout: Layout,
    slots: RegionId,
    cut: Cut,
    variant: &'static str,
}

/// Addresses of one call.
struct At<'a> {
    inputs: &'a dyn Fn(usize) -> u64,
    squares: u64,
    slots: u64,
}

/// What launches: a kernel, its grid, its arguments.
type Put<'a> = &'a mut dyn FnMut(Of, [usize; 2], &[Arg<'_>]) -> Result<()>;

impl CudaPlan {
    pub(super) fn new(problem: GhostNorms, device: &Arc<CudaDevice>, options: &PlanOptions) -> Result<Self> {
        let (way, variant) = asked(options.variant.as_deref())?;
        for (nth, m) in problem.maps.iter().enumerate() {
            for (name, n) in [("D", m.from.count), ("H", m.to.count)] {
                if n >= MOST_CHANNELS {
                    return Err(Error::shape(format!(
                        "{NAME}: map {nth}: {name} = {n} is beyond {}",
                        MOST_CHANNELS - 1
                    )));
                }
            }
        }
        let cut = Cut::new(&problem, way);
        let [spec] = &specialisations()[..] else { return Err(Error::config(format!("{NAME}: one source is wanted"))) };
        let mut layout = Layout::new(options.scratch_gap);
        let slots = layout.push("slots", Dtype::F64, cut.slots())?;
        Ok(Self {
            device: device.clone(),
            kernels: ENTRIES.iter().map(|e| device.kernel(spec, e)).collect::<Result<_>>()?,
            signature: problem.signature_of(Pass::Step)?,
            layout,
            slots,
            cut,
            variant,
            problem,
        })
    }
    /// Every launch of a call, in order.
    fn each(&self, at: &At<'_>, put: Put<'_>) -> Result<()> {
        let (p, cut) = (&self.problem, &self.cut);
        let (slots, stride) = (Arg::U64(at.slots), Arg::I32(cut.stride as i32));
        let lengths = Arg::U64((at.inputs)(2 * p.maps.len()));
        for first in (0..p.batch).step_by(cut.samples.max(1)) {
            let samples = cut.samples.min(p.batch - first);
            let (begin, count) = (Arg::I64(first as i64), Arg::I64(samples as i64));
            // Slots of a sample that a map has written to.
            let mut started = 0;
            for (nth, job) in cut.jobs.iter().enumerate() {
                let m = &p.maps[job.map];
                let last = cut.direct && nth + 1 == cut.jobs.len();
                let size = |n: usize| Arg::I32(n as i32);
                let mut list = vec![
                    Arg::U64((at.inputs)(2 * job.map)),
                    Arg::U64((at.inputs)(2 * job.map + 1)),
                    lengths,
                    slots,
                    Arg::U64(if last { at.squares } else { 0 }),
                    begin,
                    count,
                ];
                match job.of {
                    Of::Rows => list.extend([size(m.from.count), size(m.to.count)]),
                    _ => list.extend([
                        Arg::I64(m.steps as i64),
                        size(m.from.count),
                        size(m.from.width().max(1)),
                        size(m.to.count),
                        size(m.to.width().max(1)),
                    ]),
                }
                list.extend([size(GhostNorms::inputs(m)), stride, size(started)]);
                let blocks = match job.of {
                    Of::Rows => samples.div_ceil(WARPS),
                    Of::Short16 => samples.div_ceil(THREADS as usize / 16),
                    Of::Short32 => samples.div_ceil(THREADS as usize / 64),
                    _ => samples,
                };
                put(job.of, [blocks, job.parts], &list)?;
                started = started.max(job.parts);
            }
            if !cut.direct {
                let list = [slots, Arg::U64(at.squares), begin, count, stride];
                put(Of::Fold, [samples.div_ceil(WARPS), 1], &list)?;
            }
        }
        Ok(())
    }
}

impl Plan for CudaPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cuda(self.device.index())
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let says = |j: &Job| format!("map {}: {} ({} parts a sample)", j.map, SAYS[j.of as usize], j.parts);
        let all: Vec<String> = self.cut.jobs.iter().map(says).collect();
        format!("{NAME} {}, {} samples a launch: {}", self.variant, self.cut.samples, all.join("; "))
    }
    fn variant(&self) -> &'static str {
        self.variant
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let slots = self.layout.address(args.scratch.address(), self.slots);
        let (inputs, stream) = (&args.inputs, args.stream);
        let at = At { inputs: &|i| inputs[i].address(), squares: args.outputs[0].address(), slots };
        self.each(&at, &mut |which, [x, y], list| {
            let config = LaunchConfig::new((x as u32, y as u32, 1), (THREADS, 1, 1));
            // SAFETY: the arguments are those of the kernel's signature in ghost.cu; the views were checked against the signature
            // and the scratch holds the layout.
            unsafe { self.kernels[which as usize].launch(stream, &config, list) }
        })
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        let mut all = Vec::new();
        self.each(&At { inputs: &|_| 0, squares: 0, slots: 0 }, &mut |which, [x, y], _| {
            let grid = (x as u32, y as u32, 1);
            all.push(LaunchReport::new(&self.kernels[which as usize], 1, grid, (THREADS, 1, 1), 0)?);
            Ok(())
        })?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Channels;

    fn map(batch: usize, steps: usize, d: usize, h: usize) -> LinearMap {
        let (from, to) = (Channels::beside(d), Channels::beside(h));
        LinearMap { batch, steps, x: "x", grad: "g", weight: "w", bias: None, from, to }
    }

    /// Slots are bounded whatever the batch, and cover what is launched.
    #[test]
    fn slots_are_bounded() {
        for batch in [0, 1, 3, 300, 2047, 2048, SAMPLES, SAMPLES + 1, 1 << 24] {
            for (t, d) in [(0, 3), (1, 8), (20, 3), (500, 300), (1 << 20, 2)] {
                let p = GhostNorms::new(batch, vec![map(batch, t, d, d), map(batch, t, d, 3 * d)]);
                for way in [None, Some(Way::Pairs), Some(Way::Gradient)] {
                    let cut = Cut::new(&p, way);
                    assert!(cut.slots() <= SAMPLES + BLOCKS && cut.stride <= BLOCKS, "{cut:?}");
                    assert!(cut.jobs.iter().all(|j| j.parts >= 1 && j.parts <= cut.stride), "{cut:?}");
                    assert_eq!(cut.jobs.len(), if t == 0 { 0 } else { 2 });
                }
            }
        }
        let alone = Cut::new(&GhostNorms::new(4096, vec![map(4096, 1, 8, 8)]), None);
        assert_eq!((alone.slots(), alone.direct), (0, true));
    }

    /// What is short goes by pairs, long sequences through narrow maps by the gradient, unless a way is asked for.
    #[test]
    fn the_way_whose_products_in_tiles_take_less_is_taken() {
        for (t, d, h, want) in [
            (1, 784, 512, Of::Rows),
            (8, 256, 256, Of::Short16),
            (20, 256, 256, Of::Short32),
            (128, 512, 512, Of::Pairs),
            (128, 256, 256, Of::Gradient),
            (512, 256, 256, Of::Gradient),
            (12, 30, 30, Of::Short16),
            (65, 64, 64, Of::Gradient),
        ] {
            let m = map(1, t, d, h);
            assert_eq!(of(&m, None), want, "T = {t}, D = {d}, H = {h}");
            assert_eq!(of(&m, Some(Way::Gradient)), Of::Gradient);
            assert_ne!(of(&m, Some(Way::Pairs)), Of::Gradient);
        }
        assert!(asked(Some("rows")).unwrap_err().to_string().contains("not one of simt, pairs, gradient"));
    }

    /// Names stand where their kernels are looked up.
    #[test]
    fn kernels_have_their_places() {
        let places =
            [Of::Rows, Of::Short16, Of::Short32, Of::Pairs, Of::Gradient, Of::Fold].map(|of| ENTRIES[of as usize]);
        assert_eq!(places, ENTRIES);
    }
}
