//! What `analysis` counts, counted on a GPU: the same numbers, whatever the order of threads.
#![allow(unsafe_code)]

use super::tallies::{Cell, Frame, Pairs, Tallies, begins};
use super::{Joined, Samples};
use crate::cuda::{Arg, CudaDevice, DeviceBuffer, Header, KernelSource, LaunchConfig, Specialisation};
use crate::spiking::connect;
use crate::spiking::device::{Fields, Memory};
use crate::spiking::network::Rule;
use crate::spiking::plan::Plan;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;

const HEADERS: &[Header] = &[("draws.cuh", include_str!("../draws.cuh")), ("table.cuh", include_str!("table.cuh"))];
const THREADS: u32 = 256;
/// Synapses of a list from the host that are on their way at a time: 128 MiB.
const LIST: usize = 1 << 24;

fn trains() -> Specialisation {
    let source = KernelSource::embedded("spiking/analysis/tallies.cu", include_str!("tallies.cu"));
    let entries = [
        "spiking_tally_place",
        "spiking_tally_cells",
        "spiking_tally_pairs",
        "spiking_tally_joint",
        "spiking_tally_entries",
    ];
    Specialisation { headers: HEADERS, fmad: false, ..Specialisation::new(source, &entries) }
}

fn network() -> Specialisation {
    let source = KernelSource::embedded("spiking/analysis/graph.cu", include_str!("graph.cu"));
    let entries = ["spiking_graph", "spiking_graph_sizes"];
    Specialisation { headers: HEADERS, fmad: false, ..Specialisation::new(source, &entries) }
}

/// Everything that an analysis may launch.
pub fn specialisations() -> Vec<Specialisation> {
    vec![trains(), network()]
}

/// Refuses what needs more memory than the device has free, before anything is allocated.
fn require(device: &CudaDevice, asked: u64, what: impl FnOnce() -> String) -> Result<()> {
    if asked > device.memory_info()?.free {
        device.release_cached_memory()?;
    }
    let free = device.memory_info()?.free;
    if asked <= free {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::new(
        ErrorKind::OutOfMemory { asked, free },
        format!("{} needs {:.1} GB on {}, where {:.1} GB are free", what(), gb(asked), device.name(), gb(free)),
    ))
}

/// A kernel of this folder on a stream of its own.
struct Runner {
    memory: Memory,
    specialisation: Specialisation,
    blocks: u32,
}

impl Runner {
    /// Launches `name` for so many threads, or fewer that take several each.
    fn run(&self, name: &str, threads: u64, args: &[Arg<'_>]) -> Result<()> {
        if threads == 0 {
            return Ok(());
        }
        let blocks = threads.div_ceil(THREADS.into()).clamp(1, self.blocks.into()) as u32;
        let config = LaunchConfig::new((blocks, 1, 1), (THREADS, 1, 1));
        let kernel = self.memory.device.kernel(&self.specialisation, name)?;
        // SAFETY: the arguments are those of the kernels of this folder, whose sizes the launch checks; what they point to lives
        // until the stream has passed the launch, since its memory is freed on the stream.
        unsafe { kernel.launch(self.memory.stream, &config, args) }
    }
}

/// What [`Tallies::on_cpu`] counts.
pub(super) fn tallies(f: &Frame<'_>, device: &Arc<CudaDevice>) -> Result<Tallies> {
    let (spikes, cells) = (f.trains.spikes.len(), f.first[f.first.len() - 1] as usize);
    if spikes >= 1 << 31 {
        return Err(Error::config(format!("{spikes} spikes are more than the 2^31 - 1 that a GPU analyzes at once")));
    }
    let (populations, bins) = (f.trains.sizes.len(), f.bins as usize);
    let words = bins.div_ceil(32);
    let most = (0..populations).map(|p| f.paired(p)).max().unwrap_or(0);
    let table = (2 * bins.max(1)).next_power_of_two();
    let all = 12 * spikes + 28 * (cells + 1) + 4 * bins * populations + most * (4 * words + 4 * most) + 28 * table;
    require(device, all as u64, || format!("an analysis of {spikes} spikes of {cells} cells in {bins} bins"))?;
    let stream = device.new_stream()?;
    let memory = Memory { device: device.clone(), stream: stream.as_ref() };
    let r = Runner { memory: memory.clone(), specialisation: trains(), blocks: 16 * device.props().sm_count };

    let mut t = Tallies { begin: begins(f), ..Tallies::default() };
    let begin = memory.upload(&t.begin)?;
    let steps = memory.room(4 * spikes)?;
    {
        let list: Vec<[u32; 2]> = f.trains.spikes.iter().map(|s| [(s.step - f.trains.start) as u32, s.cell]).collect();
        let (list, at) = (memory.upload(&list)?, memory.upload(&t.begin)?);
        let args = [list.address(), spikes as u64, at.address(), steps.address()].map(Arg::U64);
        r.run("spiking_tally_place", spikes as u64, &args)?;
    }
    let found = memory.room(12 * cells)?;
    let counts = memory.zeros(4 * bins * populations)?;
    let mut marks = memory.room(4 * most * words)?;
    for p in 0..populations {
        let (range, paired) = (f.cells(p), f.paired(p));
        if !range.is_empty() {
            memory.clear(&mut marks)?;
            let at = |buffer: &DeviceBuffer, bytes: usize| buffer.address() + bytes as u64;
            let args = Fields::default()
                .u64(steps.address())
                .u64(at(&begin, 8 * range.start))
                .u64(at(&found, 12 * range.start))
                .u64(at(&counts, 4 * bins * p))
                .u64(marks.address())
                .u32(range.len() as u32)
                .u32(paired as u32)
                .u32(words as u32)
                .u32(bins as u32)
                .u32(f.bin().min(u32::MAX.into()) as u32)
                .u32(f.options.burst_interval.min(u32::MAX.into()) as u32)
                .u32(f.options.burst_spikes.min(u32::MAX as usize) as u32)
                .padded();
            r.run("spiking_tally_cells", 32 * range.len() as u64, &[Arg::Bytes(&args.0)])?;
        }
        let together = memory.zeros(4 * paired * paired)?;
        let args =
            [Arg::U64(marks.address()), Arg::U32(paired as u32), Arg::U32(words as u32), Arg::U64(together.address())];
        r.run("spiking_tally_pairs", 32 * (paired * paired) as u64, &args)?;
        t.together.push(memory.download(&together, 0, paired * paired)?);
    }
    t.steps = memory.download(&steps, 0, spikes)?;
    drop(steps);
    let numbers: Vec<u32> = memory.download(&found, 0, 3 * cells)?;
    let cell = |n: &[u32]| Cell { bursts: n[0], in_bursts: n[1], fired: n[2] };
    t.cells = numbers.chunks_exact(3).map(cell).collect();
    let of_all: Vec<u32> = memory.download(&counts, 0, bins * populations)?;
    t.counts = (0..populations).map(|p| of_all[bins * p..bins * (p + 1)].to_vec()).collect();
    t.joint = joint(&r, &t.counts, &counts, bins)?;
    Ok(t)
}

/// How often there is each pair of counts of two populations.
fn joint(r: &Runner, counts: &[Vec<u32>], on_device: &DeviceBuffer, bins: usize) -> Result<Vec<Vec<Pairs>>> {
    let memory = &r.memory;
    let values: Vec<usize> = counts.iter().map(|c| c.iter().max().map_or(1, |most| *most as usize + 1)).collect();
    let mut joint = Vec::with_capacity(counts.len());
    for a in 0..counts.len() {
        let mut row = Vec::with_capacity(a + 1);
        for b in 0..=a {
            // No more than there are bins, nor than there are pairs of values.
            let entries = bins.min(values[a].saturating_mul(values[b]));
            let size = (2 * entries.max(1)).next_power_of_two();
            let mut keys = memory.room(8 * size)?;
            crate::cuda::fill_bytes(&mut keys.bytes_view_mut(), 0xff, memory.stream)?;
            let (often, found, count) = (memory.zeros(4 * size)?, memory.room(16 * entries)?, memory.zeros(4)?);
            let of = |p: usize| Arg::U64(on_device.address() + (4 * bins * p) as u64);
            let [at_keys, at_often] = [&keys, &often].map(|buffer| Arg::U64(buffer.address()));
            let args = [of(a), of(b), Arg::U32(bins as u32), at_keys, at_often, Arg::U64(size as u64 - 1)];
            r.run("spiking_tally_joint", bins as u64, &args)?;
            let [at_keys, at_often] = [&keys, &often].map(|buffer| Arg::U64(buffer.address()));
            let args = [at_keys, at_often, Arg::U64(size as u64), Arg::U64(found.address()), Arg::U64(count.address())];
            r.run("spiking_tally_entries", size as u64, &args)?;
            let there = memory.download::<u32>(&count, 0, 1)?[0] as usize;
            let words: Vec<u64> = memory.download(&found, 0, 2 * there)?;
            let mut pairs: Vec<(u64, u32)> = words.chunks_exact(2).map(|w| (w[0], w[1] as u32)).collect();
            pairs.sort_unstable();
            row.push(pairs);
        }
        joint.push(row);
    }
    Ok(joint)
}

/// What [`Joined::on_cpu`] counts, and clustering as far as memory goes.
pub(super) fn joined(plan: &Plan, samples: &Samples, device: &Arc<CudaDevice>) -> Result<Joined> {
    let (cells, synapses) = (plan.cells() as usize, plan.expected_synapses());
    let words = samples.cells.len().div_ceil(32);
    // Twice as many places as there are synapses, which are drawn: a little more than are expected.
    let size = (2.0 * synapses + 1024.0) as u64;
    let table = size.checked_next_power_of_two().unwrap_or(u64::MAX);
    let asked = 12 * cells as u64 + 8 * LIST as u64;
    let more = (4 * words as u64 * cells as u64).saturating_add(table.saturating_mul(8));
    require(device, asked, || format!("the degrees of {cells} cells"))?;
    let cluster = asked.saturating_add(more) <= device.memory_info()?.free;
    let (words, table) = if cluster { (words, table) } else { (0, 1) };
    let stream = device.new_stream()?;
    let memory = Memory { device: device.clone(), stream: stream.as_ref() };
    let r = Runner { memory: memory.clone(), specialisation: network(), blocks: 16 * device.props().sm_count };
    let (ins, outs) = (memory.zeros(4 * cells)?, memory.zeros(4 * cells)?);
    let mut number = vec![u32::MAX; cells];
    samples.cells.iter().enumerate().for_each(|(k, cell)| number[*cell as usize] = k as u32);
    let (number, marks) = (memory.upload(&number)?, memory.zeros(4 * words * cells)?);
    let mut pairs = memory.room(8 * table as usize)?;
    crate::cuda::fill_bytes(&mut pairs.bytes_view_mut(), 0xff, memory.stream)?;
    let (closed, full) = (memory.zeros(128 * words)?, memory.zeros(4)?);
    for second in 0..if cluster { 2 } else { 1 } {
        let graph = [&ins, &outs, &number, &marks, &pairs].map(DeviceBuffer::address);
        let graph = graph.into_iter().fold(Fields::default(), Fields::u64).u64(table - 1);
        let graph = graph.u64(closed.address()).u64(full.address()).u32(words as u32).u32(second);
        (0..plan.network.projections.len()).try_for_each(|i| projection(plan, i, &r, &graph.0))?;
    }
    if memory.download::<u32>(&full, 0, 1)?[0] > 0 {
        return Err(Error::value(format!("{synapses:.3e} expected synapses were more than {table} pairs of cells")));
    }
    let mut found =
        Joined { ins: memory.download(&ins, 0, cells)?, outs: memory.download(&outs, 0, cells)?, samples: None };
    if cluster {
        let sizes = memory.zeros(128 * words)?;
        let (all, sizes_at) = (cells as u64, Arg::U64(sizes.address()));
        let args = [Arg::U64(marks.address()), Arg::U64(all), Arg::U32(words as u32), sizes_at];
        r.run("spiking_graph_sizes", all * words as u64, &args)?;
        let sizes: Vec<u32> = memory.download(&sizes, 0, samples.cells.len())?;
        let closed: Vec<u32> = memory.download(&closed, 0, samples.cells.len())?;
        found.samples = Some(sizes.into_iter().zip(closed).map(|(k, closed)| [k, closed]).collect());
    }
    Ok(found)
}

/// Counts the synapses of a projection.
fn projection(plan: &Plan, index: usize, r: &Runner, graph: &[u8]) -> Result<()> {
    let (n, p) = (&plan.network, &plan.network.projections[index]);
    let (key, sizes) = (n.projection_key(index), [p.source, p.target].map(|population| n.populations[population].size));
    let launch = |list: u64, count: u64, [rule, degree]: [u32; 2]| {
        let source = Fields::default()
            .u64(list)
            .u64(key.seed)
            .u64(count)
            .u32(rule)
            .u32(degree)
            .u32(key.owner)
            .u32(sizes[0])
            .u32(sizes[1])
            .u32(u32::from(p.source == p.target && !p.autapses))
            .u32(plan.first[p.source] as u32)
            .u32(plan.first[p.target] as u32)
            .padded();
        r.run("spiking_graph", count, &[Arg::Bytes(&source.0), Arg::Bytes(graph)])
    };
    let (of_sources, of_targets) = (u64::from(sizes[0]), u64::from(sizes[1]));
    match p.rule {
        Rule::Total { count, multapses: true } => return launch(0, count, [1, 1]),
        Rule::InDegree { count, multapses: true } => return launch(0, u64::from(count) * of_targets, [2, count]),
        Rule::OutDegree { count, multapses: true } => return launch(0, u64::from(count) * of_sources, [3, count]),
        _ => {}
    }
    // The host enumerates what is not drawn synapse by synapse, so many targets at a time that their list has about `LIST` entries.
    let pieces = (plan.expected(index) / LIST as f64).ceil().clamp(1.0, f64::from(sizes[1].max(1))) as u64;
    let cut = |i: u64| (of_targets * i / pieces) as u32;
    for piece in 0..pieces {
        let mut list: Vec<[u32; 2]> = Vec::new();
        connect::rows::enumerate(plan, index, cut(piece)..cut(piece + 1), &mut |s, t, _, _| list.push([s, t]));
        let buffer = r.memory.upload(&list)?;
        launch(buffer.address(), list.len() as u64, [0, 1])?;
    }
    Ok(())
}
