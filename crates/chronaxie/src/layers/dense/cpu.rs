//! The CPU: products of tiles on the stack. A tile is 64 steps, of one sequence or of several, by some channels, gathered from
//! whatever layout they have, so that all loops below see steps (or channels) next to each other.
//!
//! A task makes 64 outputs of 64 steps; the gradients of parameters are made by blocks of 32 outputs and 64 inputs over a
//! run of steps, whose sums are added in their order. Who does what depends on sizes alone, so bits do not depend on threads.

#![allow(unsafe_code)]

use super::spec::{Channels, Dense, NAME, RUN};
use crate::op::{Args, CpuPlan, CpuWork, Pass, PlanOptions, Planned};
use crate::shared::Shared;
use crate::simd_math::Lanes;
use crate::{Dtype, Error, Layout, RegionId, Result};
use chronaxie_runtime::pool;

/// Steps of a tile.
const STEPS: usize = 64;
/// Inputs of a tile; sums over more are made of several.
const INPUTS: usize = 128;
/// Outputs of a task.
const OUTPUTS: usize = 64;
/// Outputs and inputs of a task of the parameters' gradients.
const ROWS: usize = 32;
const COLUMNS: usize = 64;

/// `dense` on the CPU.
pub(super) struct Cpu {
    problem: Dense,
    /// `[runs, H, D + 1]`: a run's sums; those of the bias are the last column.
    partial: RegionId,
}

impl Cpu {
    pub(super) fn plan(problem: Dense, options: &PlanOptions) -> Result<CpuPlan<Self>> {
        let mut scratch = Layout::new(options.scratch_gap);
        let each = problem.to.count * (problem.from.count + 1);
        let partial = scratch.push("partial", Dtype::F32, problem.runs().saturating_mul(each))?;
        let passes = [(Pass::Forward, Layout::new(options.scratch_gap)), (Pass::Backward, scratch)];
        CpuPlan::new(&problem, options, passes, Self { problem, partial })
    }
}

/// A sequence in memory.
#[derive(Clone, Copy)]
struct Sequence<'a> {
    data: &'a [f32],
    channels: Channels,
    steps: usize,
}

impl Sequence<'_> {
    /// Steps `first ..` of all B times T, channels `from .. from + count`: `tile[c * STEPS + n]`; what is not there is 0.
    fn channels_first(&self, rows: &[usize], from: usize, count: usize, tile: &mut [f32]) {
        for (c, to) in tile.chunks_exact_mut(STEPS).enumerate().take(count) {
            let at = self.channels.channel(self.steps, from + c);
            to[rows.len()..].fill(0.0);
            to.iter_mut().zip(rows).for_each(|(to, row)| *to = self.data[row + at]);
        }
    }
    /// The same as `tile[n * COLUMNS + c]`.
    fn steps_first(&self, rows: &[usize], from: usize, count: usize, tile: &mut [f32]) {
        for (to, row) in tile.chunks_exact_mut(COLUMNS).zip(rows) {
            to[count..].fill(0.0);
            let channel = |c: usize| row + self.channels.channel(self.steps, from + c);
            to.iter_mut().take(count).enumerate().for_each(|(c, to)| *to = self.data[channel(c)]);
        }
    }
}

/// Where steps `first .. end` of all B times T begin; gives how many there are.
fn rows(c: Channels, steps: usize, first: usize, end: usize, to: &mut [usize; STEPS]) -> usize {
    let count = (end - first).min(STEPS);
    for (n, to) in to.iter_mut().enumerate().take(count) {
        *to = c.row(steps, (first + n) / steps, (first + n) % steps);
    }
    count
}

/// `sums[o * STEPS + n] += sum_i w[o * stride_o + i * stride_i] tile[i * STEPS + n]` for the first `steps` steps.
#[inline(always)]
fn product_body<const FMA: bool, const R: usize, const N: usize>(
    w: &[f32],
    stride_o: usize,
    stride_i: usize,
    outputs: usize,
    inputs: usize,
    tile: &[f32],
    sums: &mut [f32],
    steps: usize,
) {
    let width = 2 * N;
    for o in (0..outputs).step_by(R) {
        let count = R.min(outputs - o);
        for n in (0..steps).step_by(width) {
            let mut acc = [[Lanes::<N>::splat(0.0); 2]; R];
            for (i, row) in tile.chunks_exact(STEPS).enumerate().take(inputs) {
                let x = [load(&row[n..]), load(&row[n + N..])];
                for (r, acc) in acc.iter_mut().enumerate() {
                    // A row that is not there is made as the last one and not stored.
                    let w = Lanes::splat(w[(o + r.min(count - 1)) * stride_o + i * stride_i]);
                    acc[0] = w.mul_add::<FMA>(x[0], acc[0]);
                    acc[1] = w.mul_add::<FMA>(x[1], acc[1]);
                }
            }
            for (r, acc) in acc.into_iter().enumerate().take(count) {
                let to = &mut sums[(o + r) * STEPS + n..];
                let sums = [load(to) + acc[0], load(&to[N..]) + acc[1]];
                store(to, sums[0]);
                store(&mut to[N..], sums[1]);
            }
        }
    }
}
crate::levels!(fn product(w: &[f32], stride_o: usize, stride_i: usize, outputs: usize, inputs: usize, tile: &[f32], sums: &mut [f32], steps: usize) = product_body, 4, [4, 8, 16]);

/// `sums[o * COLUMNS + i] += sum_n g[o * STEPS + n] x[n * COLUMNS + i]`.
#[inline(always)]
fn outer_body<const FMA: bool, const R: usize, const N: usize>(
    g: &[f32],
    x: &[f32],
    steps: usize,
    outputs: usize,
    inputs: usize,
    sums: &mut [f32],
) {
    let width = 2 * N;
    for o in (0..outputs).step_by(R) {
        let count = R.min(outputs - o);
        for i in (0..inputs).step_by(width) {
            let mut acc = [[Lanes::<N>::splat(0.0); 2]; R];
            for (n, row) in x.chunks_exact(COLUMNS).enumerate().take(steps) {
                let x = [load(&row[i..]), load(&row[i + N..])];
                for (r, acc) in acc.iter_mut().enumerate() {
                    let g = Lanes::splat(g[(o + r.min(count - 1)) * STEPS + n]);
                    acc[0] = g.mul_add::<FMA>(x[0], acc[0]);
                    acc[1] = g.mul_add::<FMA>(x[1], acc[1]);
                }
            }
            for (r, acc) in acc.into_iter().enumerate().take(count) {
                let to = &mut sums[(o + r) * COLUMNS + i..];
                let sums = [load(to) + acc[0], load(&to[N..]) + acc[1]];
                store(to, sums[0]);
                store(&mut to[N..], sums[1]);
            }
        }
    }
}
crate::levels!(fn outer(g: &[f32], x: &[f32], steps: usize, outputs: usize, inputs: usize, sums: &mut [f32]) = outer_body, 4, [4, 8, 16]);

#[inline(always)]
fn load<const N: usize>(from: &[f32]) -> Lanes<N> {
    Lanes(*from.first_chunk::<N>().expect("tiles are whole vectors"))
}
#[inline(always)]
fn store<const N: usize>(to: &mut [f32], x: Lanes<N>) {
    *to.first_chunk_mut::<N>().expect("tiles are whole vectors") = x.0;
}

/// A weight `[H, D]` as the map from one side to the other.
#[derive(Clone, Copy)]
struct Map<'a> {
    weight: &'a [f32],
    /// Elements from one output's weights to the next, and from one input's to the next.
    stride: [usize; 2],
    bias: Option<&'a [f32]>,
}

impl Cpu {
    /// `to = map(from)` at all steps.
    fn map(&self, m: Map<'_>, from: &[f32], from_channels: Channels, to: Shared<f32>, to_channels: Channels) {
        let p = &self.problem;
        let (steps, all) = (p.steps, p.rows());
        let (inputs, outputs) = (from_channels.count, to_channels.count);
        let blocks = outputs.div_ceil(OUTPUTS);
        let from = Sequence { data: from, channels: from_channels, steps };
        pool::for_each(all.div_ceil(STEPS) * blocks, |task| {
            let (first, o) = (task / blocks * STEPS, task % blocks * OUTPUTS);
            let count = OUTPUTS.min(outputs - o);
            let (mut from_rows, mut to_rows) = ([0; STEPS], [0; STEPS]);
            let n = rows(from_channels, steps, first, all, &mut from_rows);
            rows(to_channels, steps, first, all, &mut to_rows);
            let (mut tile, mut sums) = ([0f32; INPUTS * STEPS], [0f32; OUTPUTS * STEPS]);
            if let Some(bias) = m.bias {
                sums.chunks_exact_mut(STEPS).zip(&bias[o..]).for_each(|(to, b)| to.fill(*b));
            }
            for i in (0..inputs).step_by(INPUTS) {
                let some = INPUTS.min(inputs - i);
                from.channels_first(&from_rows[..n], i, some, &mut tile);
                let w = &m.weight[o * m.stride[0] + i * m.stride[1]..];
                product(w, m.stride[0], m.stride[1], count, some, &tile, &mut sums, n);
            }
            for (c, sums) in sums.chunks_exact(STEPS).enumerate().take(count) {
                let at = to_channels.channel(steps, o + c);
                for (row, sum) in to_rows[..n].iter().zip(sums) {
                    // SAFETY: these outputs of these steps belong to this task alone.
                    unsafe { to.put(row + at, *sum) };
                }
            }
        });
    }

    /// The sums of each run, `[runs, H, D + 1]`, and then all of them.
    fn parameters(&self, x: &[f32], grad_y: &[f32], partial: &mut [f32], grads: (Shared<f32>, Option<Shared<f32>>)) {
        let p = &self.problem;
        let (steps, all, d, h) = (p.steps, p.rows(), p.from.count, p.to.count);
        let (row_blocks, column_blocks) = (h.div_ceil(ROWS), d.div_ceil(COLUMNS).max(1));
        let (x, g) = (Sequence { data: x, channels: p.from, steps }, Sequence { data: grad_y, channels: p.to, steps });
        let to = Shared::new(partial);
        pool::for_each(p.runs() * row_blocks * column_blocks, |task| {
            let (run, block) = (task / (row_blocks * column_blocks), task % (row_blocks * column_blocks));
            let (o, i) = (block / column_blocks * ROWS, block % column_blocks * COLUMNS);
            let (outputs, inputs) = (ROWS.min(h - o), COLUMNS.min(d - i));
            let (mut g_tile, mut x_tile) = ([0f32; ROWS * STEPS], [0f32; STEPS * COLUMNS]);
            let (mut sums, mut bias) = ([0f32; ROWS * COLUMNS], [0f32; ROWS]);
            let (mut g_rows, mut x_rows) = ([0; STEPS], [0; STEPS]);
            let end = all.min((run + 1) * RUN);
            for first in (run * RUN..end).step_by(STEPS) {
                let n = rows(p.to, steps, first, end, &mut g_rows);
                rows(p.from, steps, first, end, &mut x_rows);
                g.channels_first(&g_rows[..n], o, outputs, &mut g_tile);
                x.steps_first(&x_rows[..n], i, inputs, &mut x_tile);
                outer(&g_tile, &x_tile, n, outputs, inputs, &mut sums);
                let tiles = g_tile.chunks_exact(STEPS);
                bias.iter_mut().zip(tiles).for_each(|(to, g)| *to += g[..n].iter().sum::<f32>());
            }
            for r in 0..outputs {
                let row = (run * h + o + r) * (d + 1);
                // SAFETY: this block of this run belongs to this task alone, and the bias to the first of its columns.
                unsafe {
                    to.copy(row + i, &sums[r * COLUMNS..][..inputs]);
                    if i == 0 {
                        to.put(row + d, bias[r]);
                    }
                }
            }
        });
        let partial: &[f32] = partial;
        pool::for_each(h, |o| {
            // SAFETY: this row belongs to this task alone.
            let row = unsafe { grads.0.part(o * d, d) };
            row.fill(0.0);
            let mut bias = 0.0;
            for run in partial.chunks_exact(h * (d + 1)) {
                let sums = &run[o * (d + 1)..][..d + 1];
                row.iter_mut().zip(sums).for_each(|(to, s)| *to += s);
                bias += sums[d];
            }
            if let Some(to) = grads.1 {
                // SAFETY: as above.
                unsafe { to.put(o, bias) };
            }
        });
    }
}

impl CpuWork for Cpu {
    fn execute(&self, pass: Pass, planned: &Planned, args: &mut Args<'_, '_>) -> Result<()> {
        let p = &self.problem;
        let (x, weight) = (args.inputs[0].as_slice::<f32>()?, args.inputs[1].as_slice::<f32>()?);
        if pass == Pass::Forward {
            let bias = if p.bias { Some(args.inputs[2].as_slice::<f32>()?) } else { None };
            let y = Shared::new(args.outputs[0].as_mut_slice::<f32>()?);
            self.map(Map { weight, stride: [p.from.count, 1], bias }, x, p.from, y, p.to);
            return Ok(());
        }
        let grad_y = args.inputs[2].as_slice::<f32>()?;
        // SAFETY: the region is carved once in this call.
        let partial = unsafe { planned.scratch.carve::<f32>(&args.scratch, self.partial)? };
        let mut outputs = args.outputs.iter_mut().map(|v| v.as_mut_slice::<f32>().map(Shared::new));
        let mut next = || outputs.next().unwrap_or_else(|| Err(Error::shape(format!("{NAME}: an output is missing"))));
        let grad_weight = next()?;
        let grad_bias = if p.bias { Some(next()?) } else { None };
        self.parameters(x, grad_y, partial, (grad_weight, grad_bias));
        if p.grad_x {
            let transposed = Map { weight, stride: [1, p.from.count], bias: None };
            self.map(transposed, grad_y, p.to, next()?, p.from);
        }
        Ok(())
    }
}
