//! Networks shared out among cards by any layout: the CPU's spikes and states, bit for bit.

use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::spiking::partition::{self, Load};
use crate::spiking::simulate::CpuEngine;
use crate::spiking::simulate::parts::tests::everything;

/// Every rule, sources of both kinds, cells with places, with values of their own and of a heavy model; no synapse changes.
fn network() -> Plan {
    let mut n = everything();
    n.projections.iter_mut().for_each(|p| p.plasticity = None);
    Plan::new(n).unwrap()
}

fn run(engine: &mut dyn Engine, pieces: &[u64]) -> Vec<Spike> {
    let mut spikes = Vec::new();
    pieces.iter().for_each(|steps| engine.advance(*steps, &mut spikes).unwrap());
    spikes
}

/// All cards on one device, `blocks` blocks each.
fn engine<'a>(plan: &'a Plan, gpu: &Gpu, layout: &Layout, blocks: usize) -> CudaEngine<'a> {
    let config = Config::with_layout(plan, gpu.device.props(), blocks, layout).unwrap();
    let capacity = 4 * plan.cells() as usize;
    CudaEngine::with(plan, std::slice::from_ref(&gpu.device), config, layout.clone(), capacity, &|_, _| ()).unwrap()
}

/// Cells by no rule that anybody would see, and one part with none where `empty` says so.
pub(super) fn scattered(plan: &Plan, parts: usize, empty: Option<usize>) -> Layout {
    let part = |p: usize, cell: u32| {
        let part = (cell.wrapping_mul(2_654_435_761) >> 7) as usize % parts + p;
        let part = part % parts;
        (if Some(part) == empty { (part + 1) % parts } else { part }) as u32
    };
    let sizes = plan.network.populations.iter().map(|p| p.size);
    let owners: Vec<Vec<u32>> =
        sizes.enumerate().map(|(p, size)| (0..size).map(|cell| part(p, cell)).collect()).collect();
    Layout::from_owners(&plan.network, parts, &owners).unwrap()
}

/// Every partitioner and layouts that nobody would make; from one layout to another in mid-run, and back to the CPU.
#[test]
fn on_a_gpu_networks_in_any_layout_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    pool::set_num_threads(2);
    let plan = network();
    let emulated = gpu.device.name().starts_with("emulated");
    let steps = if emulated { 60 } else { 8000 };
    let mut cpu = CpuEngine::with_shards(&plan, 2, &|_, _| ()).unwrap();
    let mut want = run(&mut cpu, &[steps / 2]);
    let (half, cut) = (want.len(), cpu.state().unwrap());
    want.extend(run(&mut cpu, &[steps - steps / 2]));
    assert!(half > 50 && want.len() > half + 50, "only {} spikes", want.len());
    let load = Load::new(&plan, 8.0, false);
    let mut layouts = vec![
        ("scattered", scattered(&plan, 3, None)),
        ("with one part empty", scattered(&plan, 4, Some(2))),
        ("all in one part", scattered(&plan, 2, Some(0))),
        ("one part", scattered(&plan, 1, None)),
    ];
    // A layout is as good as another where each takes seconds.
    if emulated {
        layouts.truncate(2);
    }
    for (k, by) in partition::all().iter().enumerate().step_by(if emulated { 3 } else { 1 }) {
        match by.layout(&load, 2 + k % 3) {
            Err(e) if e.kind() == &ErrorKind::Unavailable => assert_eq!(by.name(), "metis"),
            layout => layouts.push((by.name(), layout.unwrap())),
        }
    }
    let mut before: Option<State> = None;
    for (name, layout) in &layouts {
        let what = format!("{name}, {} cards", layout.parts());
        let mut whole = engine(&plan, &gpu, layout, 2);
        assert_eq!(whole.synapses(), cpu.synapses(), "{what}");
        let got = run(&mut whole, &[1, steps - 1]);
        let alike = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(got == want, "{what}: {} spikes, not {}; the first {alike} are alike", got.len(), want.len());
        assert!(whole.state().unwrap() == cpu.state().unwrap(), "{what}: state");
        assert_eq!(whole.events(), cpu.events(), "{what}");
        for (p, n) in plan.network.populations.iter().enumerate() {
            let values = &cpu.state().unwrap().variables[p];
            for cell in [0, n.size / 3, n.size - 1] {
                let own: Vec<f32> = values.iter().map(|v| v[cell as usize]).collect();
                assert_eq!(whole.cell(p, cell).unwrap(), own, "{what}: cell {cell} of {}", n.name);
            }
        }
        // From the CPU's state, or another layout's.
        let from = before.as_ref().unwrap_or(&cut).clone();
        whole.restore(&from).unwrap();
        let (mut got, middle) = (Vec::new(), (steps - from.step) / 2);
        whole.advance(middle, &mut got).unwrap();
        let state = whole.state().unwrap();
        whole.advance(steps - from.step - middle, &mut got).unwrap();
        let begin = want.partition_point(|s| s.step < from.step);
        assert!(got == want[begin..], "{what}: from step {}", from.step);
        assert!(whole.state().unwrap() == cpu.state().unwrap(), "{what}: state from step {}", from.step);
        before = before.is_none().then_some(state);
    }
}

/// More cards than some population has cells, and more than the network has.
#[test]
fn on_a_gpu_networks_of_fewer_cells_than_cards_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let mut n = everything();
    n.projections.clear();
    n.drives.clear();
    n.populations.truncate(4);
    n.populations.iter_mut().for_each(|p| {
        (p.size, p.positions) = (1, None);
        p.replay = p.replay.as_ref().map(|_| Arc::new((0..40).map(|i| (3 * i, 0)).collect()));
    });
    let plan = Plan::new(n).unwrap();
    let mut cpu = CpuEngine::with_shards(&plan, 1, &|_, _| ()).unwrap();
    let want = run(&mut cpu, &[50]);
    assert!(!want.is_empty());
    for cards in [2, 4, 8] {
        let mut all = engine(&plan, &gpu, &Layout::even(&plan.network, cards), 1);
        assert!(run(&mut all, &[20, 30]) == want && all.state().unwrap() == cpu.state().unwrap(), "{cards} cards");
    }
}

/// Parts and devices that do not go together, and ways that there are not.
#[test]
fn what_cannot_be_shared_out_is_refused() {
    let plan = network();
    for (gpus, method, says) in [
        (2, "morten", "`morten` is no way to share a network out"),
        (0, "index", "0 parts"),
        (1, "slices", "`slices` is no way to share a network out"),
    ] {
        let e = partition::choose_for_gpus(&plan, 5.0, gpus, method).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
    let props = crate::DeviceProps::SM_90;
    let e = Config::in_layout(&plan, &props, &Layout::even(&plan.network, 9)).unwrap_err().to_string();
    assert_eq!(e, "a network runs on 1 to 8 GPUs of a machine, not on 9");
    // Ranges of numbers share this one out as well as any other way.
    assert_eq!(partition::choose_for_gpus(&plan, 5.0, 3, "morton").unwrap().1, "morton");
    let Some(gpu) = gpu() else { return };
    let three = scattered(&plan, 3, None);
    let e = CudaEngine::in_layout(&plan, std::slice::from_ref(&gpu.device), three, &|_, _| ()).unwrap_err();
    assert_eq!(e.to_string(), "3 parts do not go with 1 GPUs");
}
