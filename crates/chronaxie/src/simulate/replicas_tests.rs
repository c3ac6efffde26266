//! Runs of several networks side by side: each leaves what a run of its own leaves.

use super::*;
use crate::config::Config;
use crate::progress::{Progress, Silent};
use crate::{Backend, pool};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

fn example(name: &str, set: &[String]) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let mut config = Config::read(path).unwrap();
    set.iter().for_each(|s| config.set(s).unwrap());
    config
}

fn words(set: &[&str]) -> Vec<String> {
    set.iter().map(|s| (*s).to_owned()).collect()
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("chronaxie-replicas-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

struct StopAt(AtomicU32);
impl Progress for StopAt {
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

fn on_cpu(out: &Path, replicas: &[Vec<String>]) -> RunOptions {
    RunOptions { backend: Backend::Cpu, replicas: replicas.to_vec(), ..RunOptions::new(out) }
}

/// A network, what replicas of it have alike, and what each has of its own: all that a run of its own leaves.
fn as_alone(name: &str, set: &[&str], replicas: &[Vec<String>], files: &[&str]) {
    let out = scratch(&format!("all-{name}"));
    let common = words(set);
    let got = run(&example(name, &common), &on_cpu(&out, replicas), &Silent).unwrap();
    assert_eq!(got.replicas.len(), replicas.len());
    for (own, set) in got.replicas.iter().zip(replicas) {
        let lone = scratch(&format!("lone-{name}"));
        let all = [common.clone(), set.clone()].concat();
        let want = run(&example(name, &all), &on_cpu(&lone, &[]), &Silent).unwrap();
        assert!(want.spikes > 300 && want.replicas.is_empty(), "{name} {set:?}: {}", want.spikes);
        assert_eq!((own.spikes, &own.spikes_sha256), (want.spikes, &want.spikes_sha256), "{name} {set:?}");
        assert_eq!((&own.populations, &own.rates_hz), (&want.populations, &want.rates_hz));
        assert_eq!((&own.weights, own.seed, own.cells), (&want.weights, want.seed, want.cells));
        for file in files.iter().chain(&["config.toml", "spikes.npz", "spikes.parquet", "raster.svg"]) {
            let [a, b] = [&own.out, &lone].map(|folder| std::fs::read(folder.join(file)).unwrap());
            assert!(a == b, "{name} {set:?}: {file}");
        }
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(own.out.join("run.json")).unwrap()).unwrap();
        assert_eq!(record["status"], "finished");
        assert_eq!((&record["seed"], &record["result"]["spikes"]), (&own.seed.into(), &own.spikes.into()));
        // Whatever reads the folder of a run reads this one.
        let [a, b] = [&own.out, &lone].map(|folder| analyze(&AnalyzeOptions::new(folder.clone())).unwrap());
        assert!(a.spikes > 200 && (a.spikes, &a.populations) == (b.spikes, &b.populations));
        let _ = std::fs::remove_dir_all(lone);
    }
    assert_eq!(got.spikes, got.replicas.iter().map(|r| r.spikes).sum::<u64>());
    let _ = std::fs::remove_dir_all(out);
}

#[test]
fn replicas_leave_what_runs_of_their_own_leave() {
    pool::set_num_threads(2);
    let short = ["simulation.scale=0.03", "simulation.duration=\"500ms\"", "simulation.discard=\"100ms\""];
    as_alone("microcircuit.toml", &short, &grid(&[55, 7, 9], &[]), &[]);
    let values = vec!["0.5".to_owned(), "1.5".to_owned()];
    let replicas = grid(&[1, 2], &[("projection.0.weight".into(), values)]);
    assert_eq!(replicas.len(), 4);
    as_alone("plasticity.toml", &["simulation.duration=\"300ms\""], &replicas, &[]);
}

/// On a GPU's host the networks are booked side by side, beside the hash of all.
#[test]
fn on_a_gpu_networks_side_by_side_leave_what_the_cpu_leaves() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let (scale, ms) = if gpu.device.name().starts_with("emulated") { ("0.05", "40ms") } else { ("0.5", "200ms") };
    pool::set_num_threads(2);
    let set = [format!("simulation.scale={scale}"), format!("simulation.duration=\"{ms}\"")];
    let config = example("cuba.toml", &[&set[..], &words(&["simulation.discard=1"])].concat());
    let replicas = grid(&[1, 2, 3], &[]);
    let [want, got] = [Backend::Cpu, Backend::Cuda(0)].map(|backend| {
        let options = RunOptions::new(scratch(&format!("on-{backend}")));
        run(&config, &RunOptions { backend, replicas: replicas.clone(), ..options }, &Silent).unwrap()
    });
    assert!(want.spikes > 300, "{} spikes", want.spikes);
    assert_eq!((got.spikes, &got.spikes_sha256), (want.spikes, &want.spikes_sha256));
    for (a, b) in got.replicas.iter().zip(&want.replicas) {
        assert_eq!((a.spikes, &a.spikes_sha256, &a.populations), (b.spikes, &b.spikes_sha256, &b.populations));
        for file in ["spikes.npz", "spikes.parquet"] {
            let [x, y] = [&a.out, &b.out].map(|folder| std::fs::read(folder.join(file)).unwrap());
            assert!(x == y, "{file} of {}", a.out.display());
        }
    }
    [got.out, want.out].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
}

#[test]
fn replicas_that_were_stopped_go_on_as_they_would_have() {
    pool::set_num_threads(2);
    let config = example("microcircuit.toml", &words(&["simulation.scale=0.02", "simulation.duration=\"800ms\""]));
    let replicas = grid(&[3, 4, 5], &[]);
    let (whole, parts) = (scratch("whole"), scratch("parts"));
    let want = run(&config, &on_cpu(&whole, &replicas), &Silent).unwrap();
    run(&config, &on_cpu(&parts, &replicas), &StopAt(AtomicU32::new(3))).unwrap_err();
    let resume = |replicas: &[Vec<String>]| {
        let options = RunOptions { backend: Backend::Cpu, ..RunOptions::resume_from(&parts).unwrap() };
        run(&config, &RunOptions { replicas: replicas.to_vec(), ..options }, &Silent)
    };
    let says = |replicas: &[Vec<String>]| resume(replicas).unwrap_err().to_string();
    assert!(says(&[]).contains("it is of 3 replicas, and these are 0"), "{}", says(&[]));
    assert!(says(&grid(&[3, 4], &[])).contains("it is of 3 replicas, and these are 2"));
    assert!(says(&grid(&[3, 4, 6], &[])).contains("or of other replicas"));
    assert!(says(&grid(&[3, 5, 4], &[])).contains("or of other replicas"));
    let got = resume(&replicas).unwrap();
    assert_eq!(got.spikes_sha256, want.spikes_sha256);
    for (a, b) in got.replicas.iter().zip(&want.replicas) {
        assert_eq!((&a.spikes_sha256, &a.populations), (&b.spikes_sha256, &b.populations));
        let [x, y] = [&a.out, &b.out].map(|folder| std::fs::read(folder.join("spikes.parquet")).unwrap());
        assert!(a.spikes > 300 && x == y);
    }
    assert!(RunOptions::resume_from(&got.replicas[0].out).is_err());
    for folder in [whole, parts] {
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[test]
fn what_cannot_run_side_by_side_is_refused() {
    let config = example("microcircuit.toml", &words(&["simulation.scale=0.02"]));
    let says = |replicas: &[Vec<String>]| {
        let out = scratch("refused");
        let said = run(&config, &on_cpu(&out, replicas), &Silent).unwrap_err().to_string();
        assert!(!out.exists(), "{said}");
        said
    };
    let twice = says(&grid(&[5, 6, 5], &[]));
    assert_eq!(twice, "replicas 0 and 2 are both seed-5; each needs another seed or other values");
    let times = says(&grid(&[5], &[("simulation.duration".into(), vec!["100.0".into(), "200.0".into()])]));
    assert!(
        times.contains("duration = 200 ms and") && times.ends_with("networks side by side have the same"),
        "{times}"
    );
    let unknown = says(&grid(&[5], &[("projektion.0.weight".into(), vec!["1".into()])]));
    assert!(unknown.contains("seed-5,projektion.0.weight=1"), "{unknown}");
    assert_eq!(seeds(&config, 3).unwrap(), [55, 56, 57]);
    for count in [0, 4097, u64::MAX] {
        let said = seeds(&config, count).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{count} replicas from seed 55 on: 1 to 4096")), "{said}");
    }
    let last = example("microcircuit.toml", &words(&["simulation.seed=18446744073709551615"]));
    assert_eq!(seeds(&last, 1).unwrap(), [u64::MAX]);
    assert!(seeds(&last, 2).unwrap_err().to_string().ends_with("at most 18446744073709551615"));
    let many: Vec<u64> = (0..4097).collect();
    assert_eq!(says(&grid(&many, &[])), "4097 networks side by side are more than 4096");
    let twice = says(&grid(&[5], &[("simulation.seed".into(), words(&["1", "2"]))]));
    assert_eq!(twice, "replica 0 sets simulation.seed twice: simulation.seed=5, simulation.seed=1");
    assert_eq!(grid(&[], &[("a".into(), words(&["1", "2"]))]), [words(&["a=1"]), words(&["a=2"])]);
}
