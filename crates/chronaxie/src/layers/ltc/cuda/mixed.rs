//! Mixed memory: the launches of what its LSTM makes for all steps of a chunk at once, and what the kernels that walk take of it.

use super::launch::{args, at, launch, launch_as, out, stride};
use super::on_device::pack;
use super::tune::THREADS;
use crate::cuda::{Arg, CudaDevice, Kernel, KernelSource, LaunchConfig, Specialisation, StreamRef};
use crate::kernels;
use crate::layers::ltc::spec::Ltc;
use crate::op::{Args, LaunchReport, Signature};
use crate::{Dtype, Error, Layout, RegionId, Result, View};
use std::sync::Arc;

const SOURCE: KernelSource = KernelSource::embedded("layers/ltc/cuda/lstm.cu", include_str!("lstm.cu"));
const ENTRIES: &[&str] = &["ltc_lstm_map", "ltc_lstm_sums", "ltc_lstm_close"];
/// Rows and columns of a tile, and the most blocks along an axis of a grid but the first.
const TILE: usize = 64;
const MOST_BLOCKS: usize = 65535;
/// The most blocks of the kernel that closes.
const MOST_CLOSING: usize = 4096;
/// Blocks that the sums over rows are cut into, about.
const SUM_BLOCKS: usize = 256;

/// Bytes of the structs of forward.cu and backward.cu.
const AHEAD: usize = 9 * 8;
const BELOW: usize = 12 * 8;

pub(super) fn specialisation() -> Specialisation {
    Specialisation { headers: &[kernels::TILES], ..Specialisation::new(SOURCE, ENTRIES) }
}

/// Rows of a slice of the sums over `rows` rows of a `[m, n]` gradient.
fn slice_rows(rows: usize, m: usize, n: usize) -> usize {
    let tiles = (m.div_ceil(TILE) * n.div_ceil(TILE)).max(1);
    rows.div_ceil((SUM_BLOCKS / tiles).max(1)).next_multiple_of(TILE).max(TILE)
}

/// What the backward pass has of it.
struct Below {
    /// Among its inputs: the gates, behind which cells and states stand, and the gradient of the final cell.
    gates: usize,
    grad_final_cell: usize,
    /// The states after each step.
    states: usize,
    /// Among its outputs: the gradients of x, of c0, and of the three parameters from this on.
    grad_x: Option<usize>,
    grad_c0: Option<usize>,
    grad_weight: Option<usize>,
    /// Scratch: dz of a chunk `[B, steps, 4 H]`, the cell's gradient between chunks, slices of sums.
    dz: RegionId,
    carried: RegionId,
    partial: RegionId,
    slice: usize,
}

/// The LSTM ahead of each step of a plan.
pub(super) struct MixedMemory {
    p: Ltc,
    map: Kernel,
    sums: Kernel,
    close: Kernel,
    x: usize,
    h0: Option<usize>,
    c0: Option<usize>,
    /// The first of its three parameters.
    weight: usize,
    final_cell: usize,
    /// Among the outputs, where they are kept: the gates, behind which cells and states stand.
    kept: Option<usize>,
    /// Else the sums of a chunk before the gates, `[B, steps, 4 H]`.
    gates: RegionId,
    below: Option<Below>,
}

fn missing(name: &str) -> Error {
    Error::config(format!("ltc: the signature has no tensor {name}"))
}

/// A launch of the map: addresses, and how far batch rows, steps and columns lie from each other.
struct Map {
    from: (u64, [usize; 3]),
    weights: (u64, [usize; 2]),
    bias: u64,
    to: (u64, [usize; 3]),
    terms: usize,
    columns: usize,
    add: bool,
}

impl MixedMemory {
    /// None without mixed memory. Adds its regions to the layouts of both passes.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        p: &Ltc,
        [forward_chunk, backward_chunk]: [usize; 2],
        (forward, layout): (&Signature, &mut Layout),
        backward: Option<(&Signature, &mut Layout)>,
    ) -> Result<Option<Self>> {
        if !p.mixed_memory {
            return Ok(None);
        }
        let spec = specialisation();
        let kernel = |entry| device.kernel(&spec, entry);
        let input = |name: &str| forward.input(name).ok_or_else(|| missing(name));
        let output = |name: &str| forward.output(name).ok_or_else(|| missing(name));
        let (b, d, h) = (p.batch, p.inputs, p.hidden);
        let below = match backward {
            None => None,
            Some((s, layout)) => {
                let given = |name: &str| s.input(name).ok_or_else(|| missing(name));
                let grad_weight = s.output("grad_lstm_input_map_weight");
                let (rows, width) = (b * backward_chunk, d + h + 1);
                let slice = slice_rows(rows, 4 * h, width);
                let slices = if grad_weight.is_some() { rows.div_ceil(slice).max(1) } else { 0 };
                Some(Below {
                    gates: given("lstm_gates")?,
                    grad_final_cell: given("grad_final_cell")?,
                    states: given(if p.outputs_are_states() { "out" } else { "states" })?,
                    grad_x: s.output("grad_x"),
                    grad_c0: s.output("grad_c0"),
                    grad_weight,
                    dz: layout.push("lstm_dz", Dtype::F32, rows * 4 * h)?,
                    carried: layout.push("lstm_carried", Dtype::F32, b * h)?,
                    partial: layout.push("lstm_partial", Dtype::F32, slices.saturating_mul(4 * h * width))?,
                    slice,
                })
            }
        };
        let kept = forward.output("lstm_gates");
        let sums = if kept.is_some() { 0 } else { b * forward_chunk * 4 * h };
        Ok(Some(Self {
            p: p.clone(),
            map: kernel(ENTRIES[0])?,
            sums: kernel(ENTRIES[1])?,
            close: kernel(ENTRIES[2])?,
            x: input("x")?,
            h0: forward.input("h0"),
            c0: forward.input("c0"),
            weight: input("lstm_input_map_weight")?,
            final_cell: output("final_cell")?,
            kept,
            gates: layout.push("lstm_gates", Dtype::F32, sums)?,
            below,
        }))
    }

    fn multiply(&self, m: &Map, steps: usize, stream: StreamRef) -> Result<()> {
        let rows = self.p.batch * steps;
        let strides = |s: [usize; 3]| pack::<3, 24>(s.map(|n| n as u64));
        launch(
            &self.map,
            stream,
            (rows.div_ceil(TILE) as u64, m.columns.div_ceil(TILE).min(MOST_BLOCKS) as u64),
            (THREADS, 1),
            0,
            args! {
                Arg::U64(m.from.0), Arg::Bytes(&strides(m.from.1)), Arg::U64(m.weights.0),
                Arg::I64(m.weights.1[0] as i64), Arg::I64(m.weights.1[1] as i64), Arg::U64(m.bias), Arg::U64(m.to.0),
                Arg::Bytes(&strides(m.to.1)), Arg::I64(rows as i64), Arg::I64(steps as i64), Arg::I32(m.terms as i32),
                Arg::I32(m.columns as i32), Arg::I32(i32::from(m.add))
            },
        )
    }

    /// x from step `t0` on, with its strides as the kernels' words.
    fn x_from(&self, x: &[View<'_>], t0: usize) -> (u64, [usize; 3]) {
        let (view, s) = (&x[self.x], x[self.x].strides());
        (view.address().wrapping_add_signed(4 * t0 as i64 * s[1] as i64), [s[0], s[1], s[2]].map(|n| n as usize))
    }

    /// The sums before the gates of the steps `t0 .. t0 + steps`, but for the state's part; returns `struct Lstm` of forward.cu.
    pub(super) fn ahead(
        &self,
        args: &Args<'_, '_>,
        layout: &Layout,
        base: u64,
        (t0, steps): (usize, usize),
    ) -> Result<[u8; AHEAD]> {
        let (x, outputs, p) = (args.inputs, &args.outputs, &self.p);
        let (d, n) = (p.inputs, 4 * p.hidden);
        let (gates, gates_b) = match self.kept {
            Some(kept) => (outputs[kept].address() + (4 * t0 * n) as u64, p.steps * n),
            None => (layout.address(base, self.gates), steps * n),
        };
        let map = Map {
            from: self.x_from(x, t0),
            weights: (x[self.weight].address(), [d, 1]),
            bias: x[self.weight + 1].address(),
            to: (gates, [gates_b, n, 1]),
            terms: d,
            columns: n,
            add: false,
        };
        self.multiply(&map, steps, args.stream)?;
        let cell = outputs[self.final_cell].address();
        let start = match self.c0 {
            Some(i) if t0 == 0 => [x[i].address(), x[i].strides()[0] as u64, x[i].strides()[1] as u64],
            None if t0 == 0 => [0; 3],
            _ => [cell, p.hidden as u64, 1],
        };
        let [cells, states] = [1, 2].map(|i| self.kept.map_or(0, |kept| outputs[kept + i].address()));
        let recurrent = x[self.weight + 2].address();
        Ok(pack([recurrent, gates, gates_b as u64, start[0], start[1], start[2], cells, states, cell]))
    }

    /// `struct Lstm` of backward.cu for the steps from `t0` on; `last`: no later step is there.
    pub(super) fn below(&self, args: &Args<'_, '_>, layout: &Layout, base: u64, t0: usize, last: bool) -> [u8; BELOW] {
        let Some(below) = &self.below else { return [0; BELOW] };
        let (x, carried) = (args.inputs, layout.address(base, below.carried));
        let strided = |v: &View<'_>| [v.address(), v.strides()[0] as u64, v.strides()[1] as u64];
        let c0 = self.c0.map_or([0; 3], |i| strided(&x[i]));
        let end = if last { strided(&x[below.grad_final_cell]) } else { [carried, self.p.hidden as u64, 1] };
        let start = match below.grad_c0 {
            Some(i) if t0 == 0 => args.outputs[i].address(),
            _ => carried,
        };
        let [gates, cells, states] = [0, 1, 2].map(|i| x[below.gates + i].address());
        let (recurrent, dz) = (x[self.weight + 2].address(), layout.address(base, below.dz));
        pack([recurrent, gates, cells, states, c0[0], c0[1], c0[2], end[0], end[1], end[2], start, dz])
    }

    /// Its part of dL/dx, which the rest has written, and of the gradients of its parameters, from the chunk's dz.
    pub(super) fn gradients(
        &self,
        args: &Args<'_, '_>,
        layout: &Layout,
        base: u64,
        (t0, steps): (usize, usize),
    ) -> Result<()> {
        let (Some(below), x, p) = (&self.below, args.inputs, &self.p) else { return Ok(()) };
        let (b, d, h) = (p.batch, p.inputs, p.hidden);
        let (rows, n, dz) = (b * steps, 4 * h, layout.address(base, below.dz));
        if let Some(grad_x) = below.grad_x {
            let map = Map {
                from: (dz, [steps * n, n, 1]),
                weights: (x[self.weight].address(), [1, d]),
                bias: 0,
                to: (args.outputs[grad_x].address() + (4 * t0 * d) as u64, [p.steps * d, d, 1]),
                terms: n,
                columns: d,
                add: true,
            };
            self.multiply(&map, steps, args.stream)?;
        }
        let (Some(grad), true) = (below.grad_weight, rows > 0) else { return Ok(()) };
        let (slices, of_x) = (rows.div_ceil(below.slice), self.x_from(x, 0));
        let partial = Arg::U64(layout.address(base, below.partial));
        launch_as(
            &self.sums,
            args.stream,
            &self.sums_config(slices),
            args! {
                Arg::U64(dz), Arg::U64(of_x.0), Arg::Bytes(&pack::<3, 24>(of_x.1.map(|n| n as u64))),
                at(x, Some(below.states)), at(x, self.h0), stride(x, self.h0, 0), stride(x, self.h0, 1), partial,
                Arg::I32(rows as i32), Arg::I32(below.slice as i32), Arg::I32(steps as i32), Arg::I64(t0 as i64),
                Arg::I64(p.steps as i64), Arg::I32(d as i32), Arg::I32(h as i32)
            },
        )?;
        let to = |i: usize| out(args.outputs, Some(grad + i));
        let sizes = [slices, d, h].map(|n| Arg::I32(n as i32));
        launch(
            &self.close,
            args.stream,
            (self.closing() as u64, 1),
            (THREADS, 1),
            0,
            &[&[partial, to(0), to(1), to(2)], &sizes[..]].concat(),
        )
    }

    fn sums_config(&self, slices: usize) -> LaunchConfig {
        let (d, h) = (self.p.inputs, self.p.hidden);
        let columns = (d + h + 1).div_ceil(TILE).min(MOST_BLOCKS);
        LaunchConfig::new(((4 * h).div_ceil(TILE) as u32, columns as u32, slices as u32), (THREADS, 1, 1))
    }
    fn closing(&self) -> usize {
        let (d, h) = (self.p.inputs, self.p.hidden);
        (4 * h * (d + h + 1)).div_ceil(THREADS as usize).min(MOST_CLOSING)
    }

    /// What `profile` prints of it, of `chunks` of `steps` steps.
    pub(super) fn report(&self, backward: bool, chunks: usize, steps: usize) -> Result<Vec<LaunchReport>> {
        let (p, flat) = (&self.p, (THREADS, 1, 1));
        let rows = p.batch * steps;
        let map = |columns: usize| {
            let grid = (rows.div_ceil(TILE) as u32, columns.div_ceil(TILE).min(MOST_BLOCKS) as u32, 1);
            LaunchReport::new(&self.map, chunks, grid, flat, 0)
        };
        let Some(below) = self.below.as_ref().filter(|_| backward) else { return Ok(vec![map(4 * p.hidden)?]) };
        let mut list = Vec::new();
        if below.grad_x.is_some() {
            list.push(map(p.inputs)?);
        }
        if below.grad_weight.is_some() {
            let sums = self.sums_config(rows.div_ceil(below.slice));
            list.push(LaunchReport::new(&self.sums, chunks, sums.grid, flat, 0)?);
            list.push(LaunchReport::new(&self.close, chunks, (self.closing() as u32, 1, 1), flat, 0)?);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_rows_and_are_few() {
        for (rows, m, n) in [(0, 4, 5), (1, 0, 1), (192, 256, 129), (32_768, 1024, 321), (1 << 20, 20, 10)] {
            let slice = slice_rows(rows, m, n);
            assert!(
                slice.is_multiple_of(TILE) && rows.div_ceil(slice) <= SUM_BLOCKS,
                "{rows} rows in slices of {slice}"
            );
        }
        assert_eq!(slice_rows(192, 256, 129), 64);
    }
}
