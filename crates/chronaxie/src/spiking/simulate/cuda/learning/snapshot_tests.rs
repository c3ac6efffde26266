//! Snapshots on CUDA: what an engine was at when it was taken, whatever it does meanwhile, and a file from which any engine goes on.

use super::super::super::snapshot::in_order;
use super::tests::{How, cpu, engine, mixed, steps};
use super::*;
use crate::check::gpu::gpu;
use crate::spiking::simulate::learning_tests::run;
use crate::spiking::simulate::{Around, Checkpoint, CpuEngine};
use std::path::{Path, PathBuf};

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("chronaxie-snapshots-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn around() -> Around {
    Around { fingerprint: [0; 32], hash: Default::default(), replicas: vec![], logged: 0, counts: vec![] }
}

/// Goes on from a file.
fn resume(engine: &mut dyn Engine, path: &Path) -> Result<()> {
    let (c, stored) = Checkpoint::open(path)?;
    engine.resume(c.state, Some(&stored))
}

#[test]
fn on_a_gpu_networks_are_written_while_they_go_on() {
    let Some(gpu) = gpu() else { return };
    let plan = Plan::new(mixed(30, 46)).unwrap();
    let steps = steps(&gpu, 180, 20_000);
    let cpu = cpu(&plan, 2 * (steps / 3)).1;
    let folder = scratch("moment");
    let path = folder.join("state.bin");
    // One of them is enough where each takes seconds.
    let all = [How::Cards(3, [2, 16, 128, 4]), How::Resident(2, 16, 128, 8), How::Resident(3, 8, 128, 2)];
    let few = if gpu.device.name().starts_with("emulated") { 1 } else { 3 };
    for how in all.into_iter().take(few) {
        let mut first = engine(&plan, &gpu, how);
        run(&mut *first, &[steps / 3]);
        first.prepare(2).unwrap();
        let state = first.state().unwrap();
        // Two at a time, while the engine goes on.
        let taken = [first.snapshot().unwrap(), first.snapshot().unwrap()];
        run(&mut *first, &[steps / 3]);
        let [a, b] = taken;
        assert_eq!((a.step(), b.step()), (state.step, state.step));
        let whole = a.collect().unwrap();
        assert!(whole.learned.as_ref().unwrap().behind.is_some(), "{how:?}");
        assert!(in_order(whole, || first.order()).unwrap() == state, "{how:?}");
        around().write(b, &path).unwrap();
        // What the device has summed is what the host sums.
        let (mut c, stored) = Checkpoint::open(&path).unwrap();
        stored.fill(&mut c.state).unwrap();
        assert!(in_order(c.state, || first.order()).unwrap() == state, "{how:?}");
        let want = first.state().unwrap();
        assert!(want == cpu, "{how:?}");
        // The same cut, another one, the streaming kernel, the CPU.
        let others = [how, How::Streaming(2, 0), How::Resident(4, 16, 128, 8)];
        for other in others.into_iter().take(few.max(2)) {
            let mut second = engine(&plan, &gpu, other);
            run(&mut *second, &[50]);
            resume(&mut *second, &path).unwrap();
            assert!(second.state().unwrap() == state, "{how:?} {other:?}");
            run(&mut *second, &[steps / 3]);
            assert!(second.state().unwrap() == want, "{how:?} {other:?}");
        }
        let mut third = CpuEngine::with_shards(&plan, 3, &|_, _| ()).unwrap();
        resume(&mut third, &path).unwrap();
        assert!(third.state().unwrap() == state, "{how:?}");
        // What is damaged on its way to the device is found there.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4096 + 4 * 77] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let mut fourth = engine(&plan, &gpu, how);
        let e = resume(&mut *fourth, &path).unwrap_err().to_string();
        assert!(e.contains("the sum of its synapses does not fit"), "{how:?}: {e}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
