//! What only a GPU can get wrong: graphs, streams, a second device, and compiling too often.
#![allow(unsafe_code)]

use super::case::{Collector, against_law, differing, label};
use super::rig::{Outcome, Rig};
use crate::call::Arrangement;
use crate::cuda::{CudaDevice, Graph, cache};
use crate::op::{Case, Op, Pass, PlanOptions, Problem, Tensors};
use crate::{Device, Result};
use std::sync::Arc;

/// The same bits on another stream, and from a graph that is replayed twice.
pub(super) fn streams_and_graphs(
    device: &Arc<CudaDevice>,
    rig: &mut Rig,
    first: &Outcome,
    passes: &[Pass],
    to: &mut Collector<'_>,
) -> Result<()> {
    let stream = device.new_stream()?;
    let run = rig.run(stream.as_ref(), 1)?;
    let names = differing(rig, first, &run);
    to.count(&label("side_stream", passes), "outputs", names.len(), &names);

    rig.poison(0)?;
    device.synchronize()?;
    // SAFETY: the rig keeps its memory until the replays below have ended.
    let graph = match unsafe { Graph::capture(&stream, || rig.enqueue(stream.as_ref())) } {
        Ok(graph) => graph,
        Err(e) => {
            to.error(&label("graph_replay", passes), &e);
            return Ok(());
        }
    };
    let mut complaints = Vec::new();
    for replay in 1..=2 {
        rig.poison(replay % 2)?;
        device.synchronize()?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        let run = rig.outcome()?;
        complaints.extend(differing(rig, first, &run).into_iter().map(|n| format!("replay {replay}: {n}")));
    }
    to.count(&label("graph_replay", passes), "outputs", complaints.len(), &complaints);
    Ok(())
}

/// The law holds on the next device too, while another one is current.
pub(super) fn second_device(
    device: &Arc<CudaDevice>,
    problem: &dyn Problem,
    passes: &[Pass],
    values: &Tensors,
    laws: &[(Pass, Tensors)],
    to: &mut Collector<'_>,
) -> Result<()> {
    let quantity = label("device_index", passes);
    let count = CudaDevice::count()?;
    if count < 2 {
        to.skip(&quantity, "this process sees one CUDA device");
        return Ok(());
    }
    let other = CudaDevice::open((device.index() + 1) % count)?;
    let _current = device.guard()?;
    let other = Device::Cuda(other);
    let mut rig = Rig::new(problem, &other, passes, values, Arrangement::Contiguous)?;
    let mut trouble = rig.run(crate::call::default_stream(&other), 0)?.trampled;
    for c in against_law(problem, &rig, laws)? {
        if c.status() != super::Status::Passed {
            trouble.push(format!("{} on {other:?}: {}", c.quantity, c.reason()));
        }
    }
    to.count(&quantity, "outputs", trouble.len(), &trouble);
    Ok(())
}

/// Fifty other lengths compile nothing new.
pub(super) fn compiles_once(op: &dyn Op, case: &Case, device: &Arc<CudaDevice>, to: &mut Collector<'_>) -> Result<()> {
    if case.size("T").is_err() {
        return Ok(());
    }
    let device = Device::Cuda(device.clone());
    let plan =
        |t: usize| crate::op::problem(op, &case.clone().with_size("T", t))?.plan(&device, &PlanOptions::default());
    // Lengths up to 491; the ends first, because a configuration may turn on the length once or twice.
    plan(1)?;
    plan(500)?;
    let before = cache::global().compiled();
    for i in 0..50 {
        plan(1 + 10 * i)?;
    }
    let new = cache::global().compiled() - before;
    let complaint = format!("{new} kernels were compiled for 50 lengths from 1 to 491");
    to.count("compiles_once", "kernels", new as usize, &[complaint][..usize::from(new > 0)]);
    Ok(())
}
