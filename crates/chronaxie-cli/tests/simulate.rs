//! `chronaxie simulate` as a user meets it.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/microcircuit.toml");

fn chronaxie(arguments: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_chronaxie"));
    c.args(arguments).stdin(Stdio::null());
    for name in ["CHRONAXIE_BACKEND", "CHRONAXIE_LOG", "CHRONAXIE_NUM_THREADS"] {
        c.env_remove(name);
    }
    c.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn refuses(arguments: &[&str], says: &str) {
    let o = chronaxie(arguments);
    let err = text(&o.stderr);
    assert_eq!((o.status.code(), text(&o.stdout)), (Some(2), ""), "{arguments:?}: {err}");
    assert!(err.contains(says), "{arguments:?}: {err}");
}

#[test]
fn a_run_ends_with_the_promised_object_and_goes_on_from_its_checkpoint() {
    let (a, b) = (scratch("whole"), scratch("parts"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let base =
        ["simulate", EXAMPLE, "--scale", "0.03", "--set", "simulation.discard=50ms", "--seed", "7", "--backend", "cpu"];
    let run = |more: &[&str]| {
        let o = chronaxie(&[&base[..], more].concat());
        assert!(o.status.success(), "{}", text(&o.stderr));
        (serde_json::from_slice::<Value>(&o.stdout).unwrap(), text(&o.stderr).to_owned())
    };
    let (whole, said) = run(&["--duration", "400ms", "--out", a, "--threads", "2"]);
    for field in
        ["model_ms", "wall_ms", "real_time_factor", "spikes", "spikes_sha256", "build_ms", "backend", "rates_hz"]
    {
        assert!(!whole[field].is_null(), "{field}");
    }
    assert_eq!((whole["model_ms"].as_f64(), whole["seed"].as_u64()), (Some(400.0), Some(7)));
    assert_eq!(whole["rates_hz"].as_object().unwrap().len(), 8);
    assert!(said.contains("population") && said.contains("L6I"), "{said}");
    // The same in two runs, the second longer than the first was meant to be.
    run(&["--duration", "150", "--out", b, "--threads", "1", "--quiet"]);
    let checkpoint = format!("{b}/checkpoint/state.bin");
    let (parts, _) = run(&["--duration", "400", "--resume", &checkpoint, "--checkpoint-every", "100"]);
    assert_eq!(parts["spikes_sha256"], whole["spikes_sha256"]);
    assert_eq!(parts["rates_hz"], whole["rates_hz"]);
    let bare = scratch("bare");
    let bare = bare.to_str().unwrap();
    let (counted, _) = run(&["--duration", "400", "--out", bare, "--record", "none", "--hash", "none", "--quiet"]);
    assert!(counted["spikes_sha256"].is_null());
    assert_eq!((&counted["spikes"], &counted["rates_hz"]), (&whole["spikes"], &whole["rates_hz"]));
    // Onto what is there already, only by --resume; and never from another network.
    refuses(&[&base[..], &["--out", a]].concat(), "is not empty");
    refuses(&["simulate", EXAMPLE, "--scale", "0.03", "--seed", "8", "--resume", a], "another network");
    std::fs::write(&checkpoint, b"chrxspk4 and nothing more").unwrap();
    refuses(&[&base[..], &["--resume", b]].concat(), "cut off");
    for folder in [a, b, bare] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// The end of a job and of a terminal stop a run as Ctrl-C does: a sentence, a code of their own, whatever was recorded, and a
/// checkpoint that goes on to the same spikes; what `nohup` has begun does not hear of the terminal's.
#[cfg(unix)]
#[test]
fn the_end_of_a_job_or_a_terminal_stops_a_run_in_order() {
    use std::io::{BufRead, BufReader};
    let base =
        ["simulate", EXAMPLE, "--scale", "0.01", "--set", "simulation.discard=0", "--backend", "cpu", "--threads", "1"];
    for (signals, ignored, code, name) in [
        (&["TERM", "TERM"][..], "", 143, "SIGTERM"),
        (&["HUP"], "", 129, "SIGHUP"),
        (&["HUP", "TERM"], "HUP", 143, "SIGTERM"),
    ] {
        let out = scratch(&format!("end-{}", signals.join("-")));
        let folder = out.to_str().unwrap();
        let own = [&base[..], &["--duration", "1000s", "--out", folder]].concat();
        // What a shell ignores, its children ignore; what a test's parent ignores must not matter.
        let reset = format!(
            "import os, signal, sys\nfor s in 'TERM', 'HUP': signal.signal(getattr(signal, 'SIG' + s), \
             signal.SIG_IGN if s == '{ignored}' else signal.SIG_DFL)\nos.execv(sys.argv[1], sys.argv[1:])"
        );
        let mut c = Command::new("python3");
        c.args(["-c", &reset, env!("CARGO_BIN_EXE_chronaxie")]).args(&own).stdin(Stdio::null());
        let mut child = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|l| l.starts_with("built ")), "it begins");
        std::thread::sleep(std::time::Duration::from_millis(50));
        for signal in signals {
            assert!(
                Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success()
            );
        }
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signals:?}: {rest:?}");
        let says = rest.last().unwrap();
        assert!(says.starts_with(&format!("error: {name}: simulate: interrupted at ")), "{says}");
        assert!(says.ends_with(&format!("go on with --resume {folder}")), "{says}");
        let state: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
        assert_eq!(state["status"], "interrupted", "{state}");
        assert!(out.join("spikes.npz").is_file());
        let at: f64 = says.split("interrupted at ").nth(1).and_then(|l| l.split(' ').next()).unwrap().parse().unwrap();
        let until = format!("{}", at + 20.0);
        let hash = |more: &[&str]| {
            let o = chronaxie(&[&base[..], &["--duration", &until], more].concat());
            assert!(o.status.success(), "{}", text(&o.stderr));
            serde_json::from_slice::<Value>(&o.stdout).unwrap()["spikes_sha256"].clone()
        };
        let whole = scratch("end-whole");
        assert_eq!(hash(&["--resume", folder]), hash(&["--out", whole.to_str().unwrap(), "--record", "none"]));
        for folder in [out, whole] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

/// A disk without room, as a limit of files' sizes has it: a sentence and a code, `run.json` says so, nothing is left half
/// written, and the last checkpoint goes on to the files of a run that never met it.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_a_run_with_what_it_has() {
    // More is sent than the microcircuit's cells get, so that the disk is full soon.
    let base = ["simulate", EXAMPLE, "--scale", "0.02", "--set", "simulation.discard=0", "--set", "drive.0.rate=10"];
    let base = [&base[..], &["--backend", "cpu", "--threads", "1"]].concat();
    let out = scratch("full");
    let folder = out.to_str().unwrap();
    let own = [&base[..], &["--duration", "100s", "--checkpoint-every", "20", "--out", folder]].concat();
    // 32 KiB, some 2,700 spikes of 12 bytes; the signal of the limit is ignored, so that the write fails.
    let mut c = Command::new("sh");
    c.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_chronaxie")]).args(&own);
    let o = c.stdin(Stdio::null()).output().unwrap();
    let said = text(&o.stderr);
    assert_eq!((o.status.code(), text(&o.stdout)), (Some(2), ""), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with(&format!("error: cannot write {folder}/checkpoint/spikes.log: File too large")), "{said}");
    let record: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
    assert_eq!(record["status"], "failed", "{record}");
    assert!(last.ends_with(record["error"].as_str().unwrap()), "{record}");
    let log = std::fs::metadata(out.join("checkpoint/spikes.log")).unwrap().len();
    assert!(log.is_multiple_of(12) && log > 25_000, "{log} bytes");
    for place in [&out, &out.join("checkpoint")] {
        let files = std::fs::read_dir(place).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let halves: Vec<String> = files.filter(|name| name.ends_with(".part")).collect();
        assert!(halves.is_empty(), "{halves:?}");
    }
    // To the end of the 20 ms after the last checkpoint, and beyond.
    let over = chronaxie(&[&base[..], &["--duration", "1", "--resume", folder]].concat());
    let at = text(&over.stderr).split("the run is at ").nth(1).and_then(|l| l.split(' ').next()).unwrap();
    let duration = format!("{}", at.parse::<f64>().unwrap() + 50.0);
    let until = |more: &[&str]| {
        let o = chronaxie(&[&base[..], &["--duration", &duration], more].concat());
        assert!(o.status.success(), "{}", text(&o.stderr));
        (serde_json::from_slice::<Value>(&o.stdout).unwrap()["spikes_sha256"].clone(), text(&o.stderr).to_owned())
    };
    let whole = scratch("full-whole");
    let (want, _) = until(&["--out", whole.to_str().unwrap()]);
    let (got, said) = until(&["--resume", folder]);
    assert!(said.contains("resumed at ") && !said.contains("resumed at 0.0"), "{said}");
    assert_eq!(got, want);
    for file in ["spikes.npz", "spikes.parquet", "checkpoint/spikes.log", "checkpoint/state.bin"] {
        assert!(std::fs::read(out.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap(), "{file}");
    }
    for folder in [out, whole] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn the_resolved_configuration_has_the_flags_in_it() {
    let o =
        chronaxie(&["simulate", EXAMPLE, "--scale", "0.5", "--duration", "3s", "--record", "none", "--print-config"]);
    let out = text(&o.stdout);
    assert!(o.status.success(), "{}", text(&o.stderr));
    for line in ["scale = 0.5", "duration = 3000.0", "record = \"none\"", "tau_syn_ex = 0.5", "rule = \"fixed_total\""]
    {
        assert!(out.contains(line), "{line}:\n{out}");
    }
}

#[test]
fn bad_input_is_a_sentence() {
    refuses(&["simulate", "no-such-file.toml"], "cannot read no-such-file.toml");
    let scale = "simulation.scale is 0, but a scale is above 0";
    refuses(&["simulate", EXAMPLE, "--scale", "0"], &format!("--scale 0: {scale}"));
    refuses(&["simulate", EXAMPLE, "--set", "simulation.scale=0"], &format!("--set \"simulation.scale=0\": {scale}"));
    refuses(&["simulate", EXAMPLE, "--scale", "-1"], "--scale -1: simulation.scale is -1");
    refuses(&["simulate", EXAMPLE, "--duration", "5x"], "--duration 5x: simulation.duration must be a duration");
    for flag in ["--duration", "--checkpoint-every"] {
        refuses(&["simulate", EXAMPLE, flag, "-4"], "a duration is a number of milliseconds from 0 on");
        refuses(&["simulate", EXAMPLE, flag, "--quiet"], "a duration is a number of milliseconds from 0 on");
    }
    refuses(
        &["simulate", EXAMPLE, "--set", "population.0.initial.V=1e300"],
        "population[0].initial.V is 1e300, which is beyond the range of single precision",
    );
    refuses(&["simulate", EXAMPLE, "--set", "simulation.variant=\"cd\""], "there are dc, poisson");
    refuses(
        &["simulate", EXAMPLE, "--set", "population.0.sise=1"],
        "unknown key population[0].sise; did you mean size?",
    );
    refuses(&["simulate", EXAMPLE, "--backend", "gpu"], "is not one of auto, cpu, cuda");
    refuses(&["simulate", EXAMPLE, "--resume", "nowhere"], "no run");
    refuses(&["simulate", EXAMPLE, "--gpus", "2", "--backend", "cpu"], "2 GPUs are cuda:0 and those after it");
    refuses(&["simulate", EXAMPLE, "--gpus", "2", "--backend", "cuda:1"], "is one GPU and --gpus 2 a count");
    refuses(&["simulate", EXAMPLE, "--gpus", "9"], "9 is not in 1..=8");
    let a = scratch("zero");
    refuses(&["simulate", EXAMPLE, "--set", "simulation.dt=0", "--out", a.to_str().unwrap()], "simulation.dt must be");
    assert!(!a.exists(), "nothing is written for a configuration that is refused");
}

/// The parts of a step add up to the step, each says what binds it, and what is no network's is refused.
#[test]
fn a_network_is_profiled_part_by_part() {
    let base =
        ["profile", EXAMPLE, "--backend", "cpu", "--set", "simulation.scale=0.02", "--set", "simulation.discard=20"];
    let o = chronaxie(&[&base[..], &["--json", "-"]].concat());
    assert!(o.status.success(), "{}", text(&o.stderr));
    let r: Value = serde_json::from_slice(&o.stdout).unwrap();
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{v} is no number"));
    let parts = r["parts"].as_array().unwrap();
    let named: Vec<&str> = parts.iter().map(|p| p["what"].as_str().unwrap()).collect();
    for what in ["delivery", "drives", "update", "exchange of spikes", "ordering of spikes"] {
        assert!(named.contains(&what), "{named:?}");
    }
    let (us, share): (f64, f64) =
        parts.iter().fold((0.0, 0.0), |(us, share), p| (us + number(&p["us"]), share + number(&p["share"])));
    assert!((us - number(&r["parts_us"])).abs() < 1e-6 * us && (share - 1.0).abs() < 1e-6, "{r}");
    assert!(number(&r["step_us"]) > 0.0 && number(&r["recorded_us"]) > 0.0 && number(&r["build_ms"]) > 0.0);
    // Cells of three states and one port, all of which have a drive.
    let of = |what: &str| parts.iter().find(|p| p["what"] == what).unwrap();
    let cells = number(&r["cells"]);
    assert_eq!((number(&of("drives")["count"]), number(&of("drives")["bytes"])), (cells, 4.0 * cells));
    assert_eq!(number(&of("update")["bytes"]), 32.0 * cells);
    assert!(
        (number(&of("delivery")["count"]) - number(&r["events_per_step"])).abs() < 1e-6 * number(&r["events_per_step"])
    );
    let known = ["memory", "additions", "compute", "latency", "threads", "files"];
    assert!(parts.iter().all(|p| known.contains(&p["bound"].as_str().unwrap())), "{r}");
    let o = chronaxie(&base);
    let out = text(&o.stdout);
    for line in [
        "  delivery ",
        "  a step by the wall clock, recorded ",
        "hashing them",
        "the longest part is ",
        "real-time factor",
    ] {
        assert_eq!(out.matches(line).count(), 1, "{line} in:\n{out}");
    }
    refuses(&[&base[..], &["--case", "B2"]].concat(), "case `B2`: a network has no cases; --set simulation.scale=0.1");
    refuses(&["profile", "ltc", "--set", "a=1"], "--set a=1: a family has no configuration");
    refuses(&["profile", EXAMPLE, "--set", "population.0.sise=1"], "did you mean size?");
}

#[test]
fn replicas_have_the_spikes_of_runs_of_their_own() {
    let (all, lone) = (scratch("replicas"), scratch("lone"));
    let (all, lone) = (all.to_str().unwrap(), lone.to_str().unwrap());
    let base = [
        "simulate",
        EXAMPLE,
        "--scale",
        "0.02",
        "--duration",
        "200ms",
        "--backend",
        "cpu",
        "--set",
        "simulation.discard=50ms",
    ];
    let run = |more: &[&str]| {
        let o = chronaxie(&[&base[..], more].concat());
        assert!(o.status.success(), "{}", text(&o.stderr));
        (serde_json::from_slice::<Value>(&o.stdout).unwrap(), text(&o.stderr).to_owned())
    };
    let (report, said) = run(&["--seeds", "7,3-4", "--out", all]);
    assert!(said.contains("3 replicas") && said.contains("seed-3") && said.contains("L6I#2"), "{said}");
    let replicas = report["replicas"].as_array().unwrap();
    assert_eq!(replicas.iter().map(|r| r["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [7, 3, 4]);
    let (want, _) = run(&["--seed", "3", "--out", lone]);
    assert!(want["replicas"].is_null() && want["spikes"].as_u64() > Some(100));
    for field in ["spikes", "spikes_sha256", "rates_hz", "populations", "cells"] {
        assert_eq!(replicas[1][field], want[field], "{field}");
    }
    let files = [all.to_owned() + "/seed-3", lone.to_owned()].map(|f| std::fs::read(f + "/spikes.parquet").unwrap());
    assert!(files[0] == files[1]);
    for folder in [all, lone] {
        let _ = std::fs::remove_dir_all(folder);
    }
    let simulate = |more: &[&'static str]| [&["simulate", EXAMPLE], more].concat();
    refuses(&simulate(&["--replicas", "0"]), "0 is not in 1..=4096");
    refuses(&simulate(&["--seeds", "5,5", "--scale", "0.02"]), "replicas 0 and 1 are both seed-5");
    refuses(&simulate(&["--seeds", "8-5"]), "`8-5` is neither a seed nor a range");
    refuses(&simulate(&["--seeds", "1-4096,5000"]), "more than 4096 seeds");
    refuses(&simulate(&["--seeds", "18446744073709551616"]), "is neither a seed nor a range");
    let last = "18446744073709551615";
    refuses(&simulate(&["--seed", last, "--replicas", "2"]), "2 replicas from seed 18446744073709551615 on");
    refuses(&simulate(&["--seeds", "1,2", "--grid", "simulation.seed=1,2"]), "replica 0 sets simulation.seed twice");
    refuses(&simulate(&["--seeds", "1,2", "--seed", "3"]), "cannot be used with");
    refuses(&simulate(&["--replicas", "2", "--parts", "2"]), "cannot be used with");
    refuses(&simulate(&["--grid", "simulation.seed"]), "is not KEY=VALUES");
    refuses(&simulate(&["--replicas", "4000", "--grid", "a=1,2"]), "8000 networks side by side are more than 4096");
    refuses(
        &simulate(&["--grid", "simulation.duration=100,200", "--scale", "0.02"]),
        "networks side by side have the same",
    );
}

#[test]
fn cells_that_never_fired_twice_have_no_intervals() {
    let folder = scratch("silent");
    std::fs::create_dir_all(&folder).unwrap();
    let (file, run) = (folder.join("silent.toml"), folder.join("run"));
    let network =
        "schema = 1\n[simulation]\nduration = 20\n[[population]]\nname = \"E\"\nmodel = \"lif_exp\"\nsize = 4\n";
    std::fs::write(&file, network).unwrap();
    let (file, run) = (file.to_str().unwrap(), run.to_str().unwrap());
    let o = chronaxie(&["simulate", file, "--out", run, "--backend", "cpu", "--quiet"]);
    assert!(o.status.success(), "{}", text(&o.stderr));
    let o = chronaxie(&["analyze", run, "--backend", "cpu", "--quiet"]);
    let row = text(&o.stdout).lines().find(|line| line.starts_with('E')).expect("a row").split_whitespace();
    let row: Vec<&str> = row.collect();
    assert_eq!(row[..7], ["E", "4", "0.000", "100.0", "-", "-", "-"], "{}", text(&o.stdout));
    let o = chronaxie(&["analyze", run, "--backend", "cpu", "--quiet", "--json", "-"]);
    let found: Value = serde_json::from_slice(&o.stdout).expect("JSON");
    let measures = &found["populations"][0];
    assert!(measures["interval_ms"].is_null() && measures["interval_median_ms"].is_null(), "{measures}");
    std::fs::remove_dir_all(folder).unwrap();
}
