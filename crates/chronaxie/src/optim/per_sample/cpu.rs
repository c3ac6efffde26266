//! Norms on the CPU: samples over the pool's threads, each by tiles of pairs of its steps or by tiles of its gradient, whichever takes
//! fewer products. What a thread has beside its inputs is a few tiles, whatever the batch.
#![allow(unsafe_code)]

use super::spec::{GhostNorms, NAME, Way};
use crate::op::{Args, LaunchReport, LinearMap, Pass, Plan, PlanOptions, Signature};
use crate::optim::matrix::{Operand, multiply, packing_of};
use crate::pool::{for_each, num_threads};
use crate::shared::Shared;
use crate::{Dtype, Layout, Place, RegionId, Result};

/// Steps of a tile, and rows of a tile of a gradient.
const TILE: usize = 64;

pub(super) struct CpuPlan {
    problem: GhostNorms,
    signature: Signature,
    layout: Layout,
    floats: RegionId,
    /// Floats of a task.
    each: usize,
    tasks: usize,
}

impl CpuPlan {
    pub(super) fn new(problem: GhostNorms, options: &PlanOptions) -> Result<Self> {
        let needs = |m: &LinearMap| {
            let (a, h) = (GhostNorms::inputs(m), m.to.count);
            match GhostNorms::way(m) {
                Way::Pairs => {
                    let pack = packing_of([TILE, TILE, a]).max(packing_of([TILE, TILE, h]));
                    2 * TILE * (a + h) + 2 * TILE * TILE + pack
                }
                Way::Gradient => TILE * (a + h) + TILE * a + packing_of([TILE, a, TILE]),
            }
        };
        let each = problem.maps.iter().map(needs).max().unwrap_or(0);
        let tasks = num_threads().min(problem.batch).max(1);
        let mut layout = Layout::new(options.scratch_gap);
        let floats = layout.push("floats", Dtype::F32, tasks * each)?;
        let signature = problem.signature_of(Pass::Step)?;
        Ok(Self { problem, signature, layout, floats, each, tasks })
    }
}

/// Steps `first ..` of row b of a sequence, one after the other, each with the bias's one behind it where `one`; how many there are.
fn tile(of: &[f32], m: &LinearMap, x: bool, b: usize, [first, len]: [usize; 2], to: &mut [f32]) -> usize {
    let c = if x { m.from } else { m.to };
    let one = x && m.bias.is_some();
    let count = TILE.min(len - first);
    for (t, to) in to.chunks_exact_mut((c.count + usize::from(one)).max(1)).take(count).enumerate() {
        c.read(of, m.steps, [b, first + t], &mut to[..c.count]);
        if one {
            to[c.count] = 1.0;
        }
    }
    count
}

/// `sum a b` in f64, in four sums.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0f64; 4];
    let (a, rest_a) = a.as_chunks::<4>();
    let (b, rest_b) = b.as_chunks::<4>();
    for (a, b) in a.iter().zip(b) {
        for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
            *s += f64::from(*a) * f64::from(*b);
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

/// `sum_rs (x_r.x_s) (g_r.g_s)`.
fn by_pairs(m: &LinearMap, [x, grad]: [&[f32]; 2], b: usize, len: usize, floats: &mut [f32]) -> f64 {
    let (a, h) = (GhostNorms::inputs(m), m.to.count);
    let (left_x, rest) = floats.split_at_mut(TILE * a);
    let (left_g, rest) = rest.split_at_mut(TILE * h);
    let (right_x, rest) = rest.split_at_mut(TILE * a);
    let (right_g, rest) = rest.split_at_mut(TILE * h);
    let (xx, rest) = rest.split_at_mut(TILE * TILE);
    let (gg, pack) = rest.split_at_mut(TILE * TILE);
    let mut sum = 0.0;
    for i in (0..len).step_by(TILE) {
        let rows = tile(x, m, true, b, [i, len], left_x);
        tile(grad, m, false, b, [i, len], left_g);
        if len == 1 {
            return dot(&left_x[..a], &left_x[..a]) * dot(&left_g[..h], &left_g[..h]);
        }
        for j in (0..=i).step_by(TILE) {
            let columns = tile(x, m, true, b, [j, len], right_x);
            tile(grad, m, false, b, [j, len], right_g);
            let (xx, gg) = (&mut xx[..rows * columns], &mut gg[..rows * columns]);
            let sizes = |n: usize| [rows, columns, n];
            multiply(xx, sizes(a), Operand::sums(left_x, a), Operand::sums(right_x, a), false, pack);
            multiply(gg, sizes(h), Operand::sums(left_g, h), Operand::sums(right_g, h), false, pack);
            sum += if i == j { 1.0 } else { 2.0 } * dot(xx, gg);
        }
    }
    sum
}

/// `sum_hd (sum_t g_th x_td)^2`, TILE rows of the gradient at a time.
fn by_gradient(m: &LinearMap, [x, grad]: [&[f32]; 2], b: usize, len: usize, floats: &mut [f32]) -> f64 {
    let (a, h) = (GhostNorms::inputs(m), m.to.count);
    let (of_x, rest) = floats.split_at_mut(TILE * a);
    let (of_g, rest) = rest.split_at_mut(TILE * h);
    let (gradient, pack) = rest.split_at_mut(TILE * a);
    let mut sum = 0.0;
    for first in (0..h).step_by(TILE) {
        let rows = TILE.min(h - first);
        let gradient = &mut gradient[..rows * a];
        gradient.fill(0.0);
        for t in (0..len).step_by(TILE) {
            let count = tile(x, m, true, b, [t, len], of_x);
            tile(grad, m, false, b, [t, len], of_g);
            let terms = Operand { data: &of_g[first..], along: h, across: 1 };
            multiply(gradient, [rows, a, count], terms, Operand::terms(of_x, a), true, pack);
        }
        sum += dot(gradient, gradient);
    }
    sum
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Step).then_some(&self.signature)
    }
    fn config(&self) -> String {
        let ways: Vec<_> =
            self.problem.maps.iter().map(|m| format!("{:?}", GhostNorms::way(m)).to_lowercase()).collect();
        format!("{NAME} cpu: {} over {} threads", ways.join(", "), self.tasks)
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let sequences = (0..p.maps.len())
            .map(|nth| Ok([args.inputs[2 * nth].as_slice::<f32>()?, args.inputs[2 * nth + 1].as_slice::<f32>()?]))
            .collect::<Result<Vec<_>>>()?;
        let lengths = args.inputs[2 * p.maps.len()].as_slice::<i32>()?;
        // SAFETY: the region is carved once in this call.
        let floats = Shared::new(unsafe { self.layout.carve::<f32>(&args.scratch, self.floats)? });
        let squares = Shared::new(args.outputs[0].as_mut_slice::<f32>()?);
        for_each(self.tasks, |task| {
            // SAFETY: the part of this task.
            let floats = unsafe { floats.part(task * self.each, self.each) };
            for b in (task..p.batch).step_by(self.tasks) {
                let len = usize::try_from(lengths[b]).unwrap_or(0).min(p.steps());
                let mut sum = 0.0;
                for (m, of) in p.maps.iter().zip(&sequences) {
                    sum += match GhostNorms::way(m) {
                        Way::Pairs => by_pairs(m, *of, b, len, floats),
                        Way::Gradient => by_gradient(m, *of, b, len, floats),
                    };
                }
                // SAFETY: this sample belongs to this task.
                unsafe { squares.part(b, 1)[0] = sum as f32 };
            }
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
