//! `chronaxie plan`.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");

fn plan(arguments: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_chronaxie"));
    c.arg("plan").args(arguments).stdin(Stdio::null());
    for name in ["CHRONAXIE_LOG", "CHRONAXIE_NUM_THREADS"] {
        c.env_remove(name);
    }
    c.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn example(name: &str) -> String {
    format!("{EXAMPLES}{name}")
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

fn report(arguments: &[&str]) -> Value {
    let o = plan(&[arguments, &["--json", "-"]].concat());
    assert!(o.status.success(), "{}", text(&o.stderr));
    serde_json::from_slice(&o.stdout).unwrap()
}

fn refuses(arguments: &[&str], says: &str) {
    let o = plan(arguments);
    let err = text(&o.stderr);
    assert!(o.status.code() == Some(2) && o.stdout.is_empty() && err.contains(says), "{arguments:?}: {err}");
}

#[test]
fn numbers_of_gpus_stand_side_by_side() {
    let o = plan(&[&example("network.toml"), "--gpu", "h200", "--gpus", "1,4,64"]);
    let (printed, notes) = (text(&o.stdout), text(&o.stderr));
    assert!(o.status.success(), "{notes}");
    for word in [
        "1 GPU ",
        "4 GPUs",
        "64 GPUs",
        "cells a GPU",
        "synapses a GPU",
        "while it is made",
        "while it runs",
        "a GPU tells others",
        "exchange between GPUs, us",
        "delivery, us",
        "calendar, us",
        "host beside it",
        "real-time factor",
        "run of 1500 ms",
        "are a projection",
    ] {
        assert!(printed.contains(word), "{word}:\n{printed}");
    }
    assert!(notes.contains("the description has no rates of E, I: 5 Hz is assumed"), "{notes}");
    let o = plan(&[&example("network.toml"), "--gpu", "h200", "--gpus", "1", "--quiet", "--rate", "5.4"]);
    assert!(o.status.success() && o.stderr.is_empty(), "{}", text(&o.stderr));
}

#[test]
fn the_report_is_json() {
    let file = example("microcircuit.toml");
    let r = report(&[&file, "--gpu", "h200", "--gpus", "1,2"]);
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{v}"));
    assert_eq!((r["cells"].as_u64(), r["rates_hz"]["L4E"].as_f64()), (Some(77_169), Some(4.414)));
    assert_eq!(r["synapses"].as_f64(), Some(298_880_970.0));
    let runs = r["estimates"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, gpus) in runs.iter().zip([1, 2]) {
        assert_eq!((run["gpus"].as_u64(), run["fits"].as_bool()), (Some(gpus), Some(true)));
        assert!((0.03..0.06).contains(&number(&run["real_time_factor"])), "{run}");
        assert!(number(&run["build_bytes"]) > 4.0 * 298_880_970.0 / gpus as f64);
        let parts: f64 = run["step"]["parts"].as_array().unwrap().iter().map(|p| number(&p["us"])).sum();
        assert!((parts - number(&run["step"]["gpu_us"])).abs() < 1e-9);
        assert!(number(&run["wall_ms"]) >= number(&run["real_time_factor"]) * 2000.0);
    }
    // Twice the rate is twice the spikes, and sources keep theirs.
    let faster = report(&[&file, "--gpu", "h200", "--gpus", "1", "--rate", "8", "--rates", "L4E=4, L6I=0"]);
    assert_eq!(["L4E", "L6I", "L5E"].map(|p| number(&faster["rates_hz"][p])), [4.0, 0.0, 8.0]);
    let through = report(&[&file, "--gpu", "h200", "--gpus", "2", "--exchange", "host"]);
    assert!(number(&through["estimates"][0]["real_time_factor"]) > 1.0);
    // To a file, beside the table.
    let out = scratch("plan.json");
    let o = plan(&[&file, "--gpu", "h200", "--gpus", "1,2", "--json", out.to_str().unwrap()]);
    assert!(o.status.success() && text(&o.stdout).contains("real-time factor"), "{}", text(&o.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&std::fs::read(&out).unwrap()).unwrap(), r);
    std::fs::remove_file(out).unwrap();
}

#[test]
fn a_card_of_ones_own_is_a_file() {
    let built_in = include_str!("../../chronaxie/src/spiking/capacity/h200.toml");
    let file = scratch("card.toml");
    let own =
        built_in.replace("name = \"h200\"", "name = \"half\"").replace("multiprocessors = 132", "multiprocessors = 66");
    std::fs::write(&file, own).unwrap();
    let (net, card) = (example("network.toml"), file.to_str().unwrap());
    let r = report(&[&net, "--gpu", "half", "--gpus", "1", "--constants", card]);
    let whole = report(&[&net, "--gpu", "h200", "--gpus", "1"]);
    let factor = |r: &Value| r["estimates"][0]["real_time_factor"].as_f64().unwrap();
    let drives = |r: &Value| {
        let parts = r["estimates"][0]["step"]["parts"].as_array().unwrap();
        let part = parts.iter().find(|p| p["what"] == "drives").unwrap_or_else(|| panic!("{parts:?}"));
        part["us"].as_f64().unwrap()
    };
    // Each of half as many multiprocessors draws for twice the cells; rows are as far away as ever.
    assert!((1.99..2.01).contains(&(drives(&r) / drives(&whole))), "{} {}", drives(&r), drives(&whole));
    assert!((1.1..2.0).contains(&(factor(&r) / factor(&whole))) && r["card"]["name"] == "half");
    refuses(&[&net, "--gpu", "h200", "--gpus", "1", "--constants", card], "has the constants of `half`, not of `h200`");
    std::fs::write(&file, built_in.replace("row_ns = ", "row_ns = -")).unwrap();
    refuses(&[&net, "--gpu", "h200", "--gpus", "1", "--constants", card], "and no time is");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let net = example("network.toml");
    refuses(
        &[&net, "--gpu", "h100", "--gpus", "8"],
        "nothing was measured of a card `h100`; there are constants of h200",
    );
    refuses(&[&net, "--gpu", "h200", "--gpus", "0"], "0 is not in 1..=1024");
    refuses(&[&net, "--gpu", "h200", "--gpus", "1025"], "--gpus");
    refuses(&[&net, "--gpu", "h200"], "--gpus");
    refuses(&[&net, "--gpus", "2"], "--gpu");
    refuses(&["no-such.toml", "--gpu", "h200", "--gpus", "2"], "no-such.toml");
    refuses(&[&net, "--gpu", "h200", "--gpus", "2", "--rate=-1"], "a rate of -1 Hz is none");
    refuses(
        &[&net, "--gpu", "h200", "--gpus", "2", "--rates", "X=1"],
        "a rate is given for `X`, but the populations are E, I",
    );
    refuses(&[&net, "--gpu", "h200", "--gpus", "2", "--rates", "E"], "write it as NAME=HZ");
    refuses(&[&net, "--gpu", "h200", "--gpus", "2", "--constants", "no-such.toml"], "no-such.toml");
    refuses(&[&net, "--gpu", "h200", "--gpus", "2", "--json", "no-such-folder/x.json"], "no-such-folder");
    let learns = [&example("microcircuit.toml"), "--set", "simulation.plasticity=true", "--gpu", "h200"];
    let r = report(&[&learns[..], &["--gpus", "1"]].concat());
    assert!(r["estimates"][0]["real_time_factor"].as_f64().unwrap() < 0.12);
    let r = report(&[&learns[..], &["--gpus", "2"]].concat());
    assert!(r.to_string().contains("synapses that change were measured on one GPU alone"), "{r}");
}

#[test]
fn replicas_take_the_memory_of_all() {
    let file = example("network.toml");
    let one = report(&[&file, "--gpu", "h200", "--gpus", "1", "--rates", "E=5,I=5", "--set", "population.0.size=3200"]);
    let set = "population.0.size=3200";
    let four = report(&[&file, "--gpu", "h200", "--gpus", "1", "--rates", "E=5,I=5", "--set", set, "--replicas", "4"]);
    let times = |field: &str| four[field].as_f64().unwrap() / one[field].as_f64().unwrap();
    assert_eq!((times("cells"), times("synapses")), (4.0, 4.0));
    let memory = |r: &Value| r["estimates"][0]["run_bytes"].as_f64().unwrap();
    assert!(memory(&four) > 3.0 * memory(&one), "{} {}", memory(&four), memory(&one));
}
