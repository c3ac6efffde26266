//! CfC on the CPU: threads over groups of batch rows, units in the lanes of vectors.
//!
//! A group of up to 16 rows walks through all steps with its states beside it: per step and cell it multiplies its rows
//! with packed weights (`gemm.rs`), a tile of 4 rows and two vectors of columns at a time, and passes a row at a time
//! through activations and gates (`units.rs`). Weights are read from the second cache, once for all rows of a group. The
//! four heads of a cell are one product, and so are the two maps of an LSTM. Masks are multiplied into ff1 and ff2 when
//! they are packed: lists of what is left would save at most half of two of four heads, and none of the time's.
//!
//! Backwards a group writes the gradients of what each map gives and copies what it read; then the gradients of the
//! parameters are sums over batch and time, a task some rows of a matrix. Both take chunks of steps that fit 32 MB.
//!
//! Precision `fast` takes the same path: special functions are a fifth of the time, and one or two terms less of their
//! polynomials would be all there is to save.
#![allow(unsafe_code)]

mod backward;
mod forward;
mod gemm;
mod layout;
#[cfg(test)]
mod tests;
mod units;

use super::net::{Map, Net};
use super::spec::{Cfc, MAX_CELLS};
use crate::layers::memory::Strided;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::shared::Shared;
use crate::simd::level;
use crate::{Error, Layout, Place, Result, View, ViewMut, pool};
use backward::{Chunk, Given, Gradients, JOB, Job, Sums};
use forward::{Call, Outputs};
use gemm::{Block, Rows, padded};
use layout::{Buffers, Group, Regions, position};

/// Floats of a cache line.
const LINE: usize = 16;

/// One panel of a packed matrix.
#[derive(Debug, Clone, Copy)]
struct Panel {
    map: usize,
    at: usize,
}

/// Where the tensors of a parameter stand among the inputs: weight, bias, mask.
type Places = (usize, Option<usize>, Option<usize>);

/// A plan of CfC on the CPU. The bits of its results do not depend on the number of threads.
#[derive(Debug)]
pub struct CpuPlan {
    problem: Cfc,
    net: Net,
    groups: Vec<Group>,
    /// Of each source of each map.
    places: Vec<Vec<Places>>,
    /// Of each map's w_tau and A.
    columns: Vec<Vec<usize>>,
    first: [usize; MAX_CELLS],
    forward: (Signature, Regions, Vec<Panel>),
    backward: Option<(Signature, Regions, Vec<Panel>, Vec<Job>)>,
    empty: Layout,
}

impl CpuPlan {
    /// A plan of `problem`; nothing is compiled or loaded.
    ///
    /// # Errors
    /// If the problem is out of range, its scratch exceeds 64-bit sizes, or `options` names another variant than `simd` or
    /// `t` and the steps of a chunk of the backward pass.
    pub fn new(problem: &Cfc, options: &PlanOptions) -> Result<Self> {
        let steps = |v: &str| v.strip_prefix('t')?.parse::<usize>().ok().filter(|&n| n > 0);
        let chunk = match options.variant.as_deref() {
            None | Some("simd") => None,
            Some(v) => Some(steps(v).ok_or_else(|| {
                Error::config(format!("cfc: variant `{v}` is not one of the CPU's: simd, or t and steps of a chunk"))
            })?),
        };
        let problem = problem.clone().build()?;
        let mut net = Net::of(&problem, gemm::PAD);
        // Rows of an odd number of cache lines: those of a column do not all want the same few places of the first cache.
        let odd_lines = |floats: usize| (floats.div_ceil(LINE) | 1) * LINE;
        (net.grads, net.operands) = (odd_lines(net.grads), odd_lines(net.operands));
        let groups = layout::groups(problem.batch);
        let signature = problem.signature_of(Pass::Forward)?;
        let place = |name: &Option<String>| name.as_deref().map(|n| position(&signature, n)).transpose();
        let places = |map: &Map| -> Result<Vec<Places>> {
            let of = map.sources.iter();
            of.map(|s| Ok((position(&signature, &s.weight)?, place(&s.bias)?, place(&s.mask)?))).collect()
        };
        let columns = |map: &Map| map.columns.iter().map(|c| position(&signature, c)).collect::<Result<Vec<_>>>();
        let regions = |pass| Regions::new(&problem, &net, pass, groups.len(), chunk, options.scratch_gap);
        let panels = |width: fn(&Map) -> usize| {
            let of =
                |(map, m): (usize, &Map)| (0..width(m).div_ceil(gemm::panel_width())).map(move |at| Panel { map, at });
            net.maps.iter().enumerate().flat_map(of).collect::<Vec<_>>()
        };
        let backward = if problem.backward {
            let signature = problem.signature_of(Pass::Backward)?;
            let jobs = jobs(&problem, &net, &signature)?;
            Some((signature, regions(Pass::Backward)?, panels(|m| m.inputs), jobs))
        } else {
            None
        };
        let mut first = [0; MAX_CELLS];
        (0..problem.cells.len()).for_each(|l| first[l] = problem.first_neuron(l));
        Ok(Self {
            places: net.maps.iter().map(places).collect::<Result<_>>()?,
            columns: net.maps.iter().map(columns).collect::<Result<_>>()?,
            forward: (signature.clone(), regions(Pass::Forward)?, panels(|m| m.outputs)),
            backward,
            first,
            groups,
            net,
            problem,
            empty: Layout::new(0),
        })
    }

    /// Packs every map for `product`: forward by outputs, backward by inputs.
    fn pack(&self, inputs: &[View<'_>], panels: &[Panel], backward: bool, packed: &mut [f32]) -> Result<()> {
        let floats = |at: usize| inputs[at].as_slice::<f32>();
        let tensors = |&(weight, _, mask): &Places| Ok((floats(weight)?, mask.map(floats).transpose()?));
        let of_maps = self.places.iter().map(|map| map.iter().map(tensors).collect::<Result<Vec<_>>>());
        let tensors = of_maps.collect::<Result<Vec<_>>>()?;
        let packed = Shared::new(packed);
        let width = gemm::panel_width();
        pool::for_each(panels.len(), |i| {
            let Panel { map: m, at } = panels[i];
            let map = &self.net.maps[m];
            let (rows, columns, start) = if backward {
                (map.outputs, map.inputs, map.packed_back)
            } else {
                (map.inputs, map.outputs, map.packed)
            };
            // SAFETY: a panel belongs to one task.
            let panel = unsafe { packed.part(start + at * rows * width, rows * width) };
            if (at + 1) * width > columns {
                panel.fill(0.0);
            }
            for (source, &(data, mask)) in map.sources.iter().zip(&tensors[m]) {
                let mut block = Block {
                    data,
                    mask,
                    stride_k: 1,
                    stride_n: source.inputs,
                    first_k: source.first_input,
                    first_n: source.first_output,
                    k: source.inputs,
                    n: source.outputs,
                };
                if backward {
                    (block.stride_k, block.stride_n) = (block.stride_n, block.stride_k);
                    (block.first_k, block.first_n) = (block.first_n, block.first_k);
                    (block.k, block.n) = (block.n, block.k);
                }
                gemm::pack(panel, at, &block);
            }
        });
        Ok(())
    }

    /// Copies biases, w_tau and A, padded.
    fn copy_bias(&self, inputs: &[View<'_>], to: &mut [f32]) -> Result<()> {
        to.fill(0.0);
        for (m, map) in self.net.maps.iter().enumerate() {
            for (source, (_, bias, _)) in map.sources.iter().zip(&self.places[m]) {
                if let Some(bias) = bias {
                    to[map.bias + source.first_output..][..source.outputs].copy_from_slice(inputs[*bias].as_slice()?);
                }
            }
            for (k, &at) in self.columns[m].iter().enumerate() {
                let start = map.bias + padded(map.outputs) + k * padded(map.column_len);
                to[start..][..map.column_len].copy_from_slice(inputs[at].as_slice()?);
            }
        }
        Ok(())
    }

    fn call<'a>(
        &'a self,
        signature: &Signature,
        inputs: &[View<'a>],
        packed: &'a [f32],
        bias: &'a [f32],
    ) -> Result<Call<'a>> {
        let find = |name: &str| signature.input(name).map(|i| &inputs[i]);
        Ok(Call {
            p: &self.problem,
            net: &self.net,
            packed,
            bias,
            x: Strided::new(&inputs[position(signature, "x")?])?,
            h0: find("h0").map(Strided::new).transpose()?,
            c0: find("c0").map(Strided::new).transpose()?,
            elapsed: find("elapsed").map(Strided::new).transpose()?,
            first: self.first,
        })
    }

    fn run_forward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let (signature, regions, panels) = &self.forward;
        // SAFETY: the block is this layout's, as `run` checked, and each region is carved once a call.
        let (packed, bias, memory) = unsafe {
            (
                regions.layout.carve::<f32>(&args.scratch, regions.packed)?,
                regions.layout.carve::<f32>(&args.scratch, regions.bias)?,
                Shared::new(regions.layout.carve::<f32>(&args.scratch, regions.buffers)?),
            )
        };
        self.pack(args.inputs, panels, false, packed)?;
        self.copy_bias(args.inputs, bias)?;
        let call = self.call(signature, args.inputs, packed, bias)?;
        let mut output = |name: &str| shared(args.outputs, signature, name);
        let outputs = Outputs {
            out: output("out")?.ok_or_else(|| missing("out"))?,
            final_state: output("final_state")?.ok_or_else(|| missing("final_state"))?,
            final_cell: output("final_cell")?,
            states: output("states")?,
            backbone: output("backbone")?.zip(output("backbone_slopes")?).map(|(a, b)| [a, b]),
            heads: output("heads")?,
            lstm: match (output("lstm_gates")?, output("lstm_cells")?, output("lstm_states")?) {
                (Some(gates), Some(cells), Some(states)) => Some([gates, cells, states]),
                _ => None,
            },
        };
        let len = regions.widths.task();
        pool::for_each(regions.tasks, |task| {
            for &g in &self.groups[regions.groups_of(task, self.groups.len())] {
                // SAFETY: a task has its own part.
                let memory = unsafe { memory.part(task * len, len) };
                forward::forward(&call, g, &regions.widths, Buffers::carve(&regions.widths, memory), &outputs);
            }
        });
        Ok(())
    }

    fn run_backward(&self, args: &mut Args<'_, '_>) -> Result<()> {
        let Some((signature, regions, panels, jobs)) = &self.backward else { return Err(missing("grad_out")) };
        let (p, net) = (&self.problem, &self.net);
        if signature.outputs.is_empty() {
            return Ok(());
        }
        // SAFETY: the block is this layout's, as `run` checked, and each region is carved once a call.
        let carve = |id| unsafe { regions.layout.carve::<f32>(&args.scratch, id) };
        let (packed, bias, memory) =
            (carve(regions.packed)?, carve(regions.bias)?, Shared::new(carve(regions.buffers)?));
        let (grads, operands) = (carve(regions.grads)?, carve(regions.operands)?);
        let carried = [Shared::new(carve(regions.carried[0])?), Shared::new(carve(regions.carried[1])?)];
        self.pack(args.inputs, panels, true, packed)?;
        self.copy_bias(args.inputs, bias)?;
        let call = self.call(signature, args.inputs, &[], bias)?;
        let input = |name: &str| signature.input(name).map(|i| &args.inputs[i]);
        let floats = |name: &str| input(name).map_or(Ok(&[][..]), |v| v.as_slice::<f32>());
        let given = Given {
            states: floats(if p.outputs_are_states() { "out" } else { "states" })?,
            backbone: [floats("backbone")?, floats("backbone_slopes")?],
            heads: floats("heads")?,
            lstm: [floats("lstm_gates")?, floats("lstm_cells")?, floats("lstm_states")?],
            grad_out: Strided::new(input("grad_out").ok_or_else(|| missing("grad_out"))?)?,
            grad_final_state: Strided::new(input("grad_final_state").ok_or_else(|| missing("grad_final_state"))?)?,
            grad_final_cell: input("grad_final_cell").map(Strided::new).transpose()?,
        };
        let mut output = |name: &str| shared(args.outputs, signature, name);
        let to = Gradients {
            x: output("grad_x")?,
            h0: output("grad_h0")?,
            c0: output("grad_c0")?,
            elapsed: output("grad_elapsed")?,
        };
        let mut end = p.steps;
        loop {
            let len = regions.chunk.min(end);
            let begin = end - len;
            let len_buffers = regions.widths.task();
            {
                let (grads, operands) = (Shared::new(grads), Shared::new(operands));
                pool::for_each(regions.tasks, |task| {
                    for &g in &self.groups[regions.groups_of(task, self.groups.len())] {
                        // SAFETY: a task has its own buffers, and a group its own rows of the rest.
                        let (memory, chunk) = unsafe {
                            let rows = |of: Shared<f32>, width: usize| of.part(g.row * width, g.tall() * width);
                            let state = regions.widths.state;
                            (
                                memory.part(task * len_buffers, len_buffers),
                                Chunk {
                                    begin,
                                    len,
                                    grads: rows(grads, len * net.grads),
                                    operands: p.wants.parameters.then(|| rows(operands, len * net.operands)),
                                    carried: carried.map(|c| rows(c, state)),
                                },
                            )
                        };
                        let buffers = Buffers::carve(&regions.widths, memory);
                        backward::adjoint(&call, packed, g, &regions.widths, buffers, &given, chunk, &to);
                    }
                });
            }
            let sums = Sums {
                grads: Rows { data: grads, stride: net.grads, first: 0 },
                operands: Rows { data: operands, stride: net.operands, first: 0 },
                rows: p.batch * len,
                add: end < p.steps,
                last: begin == 0,
            };
            self.sum(jobs, &sums, args.inputs, args.outputs)?;
            end = begin;
            if end == 0 {
                return Ok(());
            }
        }
    }

    /// The gradients of all parameters.
    fn sum(&self, jobs: &[Job], sums: &Sums<'_>, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let all = outputs.iter_mut().map(|v| Ok(Shared::new(v.as_mut_slice::<f32>()?))).collect::<Result<Vec<_>>>()?;
        let masks = |job: &Job| match *job {
            Job::Rows { mask: Some(at), .. } => inputs[at].as_slice::<f32>().map(Some),
            _ => Ok(None),
        };
        let masks = jobs.iter().map(masks).collect::<Result<Vec<_>>>()?;
        pool::for_each(jobs.len(), |i| {
            match jobs[i] {
                Job::Rows { map, source, first, weight, bias, .. } => {
                    let map = &self.net.maps[map];
                    sums.of_rows(map, &map.sources[source], first, masks[i], all[weight], bias.map(|at| all[at]));
                }
                Job::Column { map, column, to } => {
                    let map = &self.net.maps[map];
                    // SAFETY: a column belongs to one task.
                    let to = unsafe { all[to].part(0, map.column_len) };
                    sums.columns(map.grad + map.outputs + column * map.column_len, to);
                }
            }
        });
        Ok(())
    }
}

/// Who makes the gradients of which parameters.
fn jobs(p: &Cfc, net: &Net, signature: &Signature) -> Result<Vec<Job>> {
    if !p.wants.parameters {
        return Ok(Vec::new());
    }
    let output = |name: &str| signature.output(&format!("grad_{name}")).ok_or_else(|| missing(name));
    let mut jobs = Vec::new();
    for (m, map) in net.maps.iter().enumerate() {
        for (s, source) in map.sources.iter().enumerate() {
            let weight = output(&source.weight)?;
            let bias = source.bias.as_deref().map(output).transpose()?;
            let mask = source.mask.as_deref().map(|n| position(signature, n)).transpose()?;
            let rows = (0..source.outputs).step_by(JOB);
            jobs.extend(rows.map(|first| Job::Rows { map: m, source: s, first, weight, bias, mask }));
        }
        for (column, name) in map.columns.iter().enumerate() {
            jobs.push(Job::Column { map: m, column, to: output(name)? });
        }
    }
    Ok(jobs)
}

fn missing(name: &str) -> Error {
    Error::config(format!("cfc: the signature has no tensor {name}"))
}

/// An output by name, for tasks that write disjoint parts of it.
fn shared(outputs: &mut [ViewMut<'_>], signature: &Signature, name: &str) -> Result<Option<Shared<f32>>> {
    signature.output(name).map(|i| Ok(Shared::new(outputs[i].as_mut_slice()?))).transpose()
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        "cfc"
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.forward.0),
            Pass::Backward => self.backward.as_ref().map(|b| &b.0),
            _ => None,
        }
    }
    fn config(&self) -> String {
        let rows = self.groups.first().map_or(0, |g| g.rows);
        let chunk = self.backward.as_ref().map_or_else(String::new, |(_, r, _, jobs)| {
            format!(", backward chunks of {} steps, tasks of parameters = {}", r.chunk, jobs.len())
        });
        format!(
            "simd = {}, groups = {} of up to {rows} rows, tasks = {}{chunk}, threads = {}",
            level(),
            self.groups.len(),
            self.forward.1.tasks,
            pool::num_threads()
        )
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        match (pass, &self.backward) {
            (Pass::Forward, _) => &self.forward.1.layout,
            (Pass::Backward, Some((_, regions, ..))) => &regions.layout,
            _ => &self.empty,
        }
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        match pass {
            Pass::Forward => self.run_forward(args),
            Pass::Backward => self.run_backward(args),
            _ => Err(Error::config(format!("cfc: the plan has no {} pass", pass.name()))),
        }?;
        pool::refuse_if_stopped("cfc")
    }
    fn launches(&self, _pass: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
