//! `chronaxie bench` and `profile` of spiking networks, as a user meets them.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

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

fn refuses(arguments: &[&str], says: &str) {
    let o = chronaxie(arguments);
    let err = text(&o.stderr);
    assert_eq!((o.status.code(), text(&o.stdout)), (Some(2), ""), "{arguments:?}: {err}");
    assert!(err.contains(says), "{arguments:?}: {err}");
}

/// The one record of a case.
fn record(family: &str, case: &str, threads: &str) -> Value {
    let base = ["bench", family, "--case", case, "--threads", threads, "--backend", "cpu", "--seconds", "0.01"];
    let o = chronaxie(&[&base[..], &["--json", "-", "--quiet"]].concat());
    assert!(o.status.success(), "{family} {case}: {}", text(&o.stderr));
    let mut list: Vec<Value> = serde_json::from_slice(&o.stdout).expect("a list");
    assert_eq!(list.len(), 1, "{list:?}");
    list.remove(0)
}

fn number(r: &Value, field: &str) -> f64 {
    r[field].as_f64().unwrap_or_else(|| panic!("{field}: {r}"))
}

/// A family, a small case of it, its pass, and what of a step is timed.
const CASES: [(&str, &str, &str, &str); 7] = [
    ("microcircuit", "full_poisson,scale=0.02,ms=60,discard=30", "simulate", "steps, and spikes to the host"),
    ("microcircuit", "full_dc,scale=0.02,ms=60,discard=30", "simulate", "steps, and spikes to the host"),
    ("microcircuit", "full_poisson_stdp,scale=0.02,ms=60,discard=30", "simulate", "steps, and spikes to the host"),
    ("network", "400x50_dt0.1,ms=50,discard=30", "simulate", "steps, and spikes to the host"),
    ("neuron_update", "N1000,ms=20", "step", "update"),
    ("synaptic_delivery", "1000x100_S3,ms=20", "step", "delivery"),
    ("stdp_update", "500x50_S3,ms=20", "step", "learning + delivery"),
];

#[test]
fn each_family_writes_whole_records_with_the_same_spikes_on_any_threads() {
    for (family, case, pass, timed) in CASES {
        let r = record(family, case, "2");
        for field in "family case pass backend device dtype precision variant clock median_ms min_ms max_ms runs bytes \
                      flops gb_per_s tflop_per_s roofline_fraction workspace_bytes peak_bytes launches max_error schema \
                      date version commit driver nvrtc sm_clock_mhz power_w cells synapses dt_ms seed run_ms discard_ms \
                      build_ms spikes_per_step events_per_step spikes spikes_sha256 rate_hz rate_in_range rates_hz \
                      real_time_factor"
            .split_whitespace()
        {
            assert!(r.get(field).is_some(), "{field}: {r}");
        }
        let words = ["family", "case", "pass", "backend", "dtype", "precision", "variant", "clock", "timed"];
        let want = [family, case, pass, "cpu", "f32", "exact", "shards", "call", timed];
        assert_eq!(words.map(|w| r[w].as_str().unwrap_or_default()), want);
        let [low, median, high] = ["min_ms", "median_ms", "max_ms"].map(|f| number(&r, f));
        assert!(0.0 < low && low <= median && median <= high && number(&r, "runs") >= 3.0, "{r}");
        let fraction = number(&r, "roofline_fraction");
        assert!(fraction > 0.0 && fraction < 1.5 && number(&r, "bytes") > 0.0 && number(&r, "flops") > 0.0, "{r}");
        let gb = number(&r, "bytes") / median / 1e6;
        assert!((number(&r, "gb_per_s") - gb).abs() <= 1e-9 * gb, "{r}");
        // Checked to the bit, and here on the case itself.
        assert_eq!((number(&r, "max_error"), r["max_error_case"].as_str()), (0.0, Some(case)));
        let again = [record(family, case, "2"), record(family, case, "1")];
        for other in again {
            for field in ["spikes", "spikes_sha256", "rate_hz", "rates_hz", "cells", "synapses"] {
                assert_eq!(other[field], r[field], "{family} {case}: {field}");
            }
        }
        if pass == "simulate" {
            assert!(r["spikes_sha256"].as_str().is_some_and(|h| h.len() == 64) && number(&r, "spikes") > 0.0, "{r}");
            assert!((number(&r, "real_time_factor") - median * 1e-3).abs() < 1e-12 * median, "{r}");
        } else {
            assert!(number(&r, "spikes_per_step") > 0.1 && r["spikes_sha256"].is_null(), "{r}");
        }
    }
}

#[test]
fn the_network_of_in_degree_1000_fires_five_times_a_second() {
    let case = "10000x1000_dt1,ms=500";
    let r = record("network", case, "2");
    let rate = number(&r, "rate_hz");
    assert!((4.5..=5.5).contains(&rate) && r["rate_in_range"] == true, "{r}");
    let rates = r["rates_hz"].as_object().expect("rates");
    assert!(rates.len() == 2 && rates.values().all(|x| x.as_f64().is_some_and(|x| (x - rate).abs() < 0.5)), "{r}");
    assert_eq!((number(&r, "synapses"), number(&r, "dt_ms"), number(&r, "seed")), (1e7, 1.0, 1.0));
    // The reference is plain loops: of these sizes it takes a smaller case.
    assert_eq!(r["max_error_case"], "10000x100_dt1,ms=500");
    // Another seed, another network.
    let small = ["400x50_dt1,ms=50,discard=20", "400x50_dt1,ms=50,discard=20,seed=2"];
    let [a, b] = small.map(|case| record("network", case, "2"));
    assert_ne!(a["spikes_sha256"], b["spikes_sha256"]);
    assert_eq!((&a["rate_in_range"], number(&b, "seed")), (&Value::Null, 2.0));
}

/// `bench` has the spikes of `simulate`.
#[test]
fn the_hash_is_that_of_a_run() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/microcircuit.toml");
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-bench-networks", std::process::id()));
    let folder = out.to_str().expect("UTF-8");
    let run = ["simulate", example, "--scale", "0.02", "--duration", "90", "--set", "simulation.discard=30ms"];
    let o = chronaxie(&[&run[..], &["--backend", "cpu", "--record", "none", "--quiet", "--out", folder]].concat());
    assert!(o.status.success(), "{}", text(&o.stderr));
    let report: Value = serde_json::from_slice(&o.stdout).expect("an object");
    std::fs::remove_dir_all(&out).expect("the folder can be removed");
    let r = record("microcircuit", "full_poisson,scale=0.02,ms=60,discard=30", "2");
    for field in ["spikes", "spikes_sha256", "cells", "synapses", "seed"] {
        assert_eq!(r[field], report[field], "{field}");
    }
    for (population, rate) in report["rates_hz"].as_object().expect("rates") {
        assert!((number(&r["rates_hz"], population) - rate.as_f64().expect("a rate")).abs() < 1e-9, "{population}");
    }
}

#[test]
fn tables_say_what_was_timed_and_on_what_it_was_checked() {
    let base = ["bench", "network", "--case", "2000x200_dt1,ms=50,discard=20", "--backend", "cpu", "--seconds", "0.01"];
    let o = chronaxie(&[&base[..], &["--precision", "exact"]].concat());
    let out = text(&o.stdout);
    assert!(o.status.success(), "{out}{}", text(&o.stderr));
    for says in ["2000 cells, 400.0 k synapses, made in ", "real-time factor ", " Hz; spikes "] {
        assert!(out.contains(says), "{says} is not in:\n{out}");
    }
    assert!(out.trim_end().ends_with("1 timed, 0 refused, 0 skipped"), "{out}");
}

#[test]
fn what_no_family_has_is_refused_in_a_sentence() {
    refuses(&["bench", "microcircit"], "family `microcircit` is not one of ltc, ");
    refuses(&["bench", "microcircit"], "synaptic_delivery, stdp_update; did you mean `microcircuit`?");
    refuses(
        &["bench", "microcircuit", "--case", "full_poison"],
        "microcircuit: case `full_poison` is not one of full_",
    );
    refuses(&["bench", "network", "--case", "1000x100_dt0.5"], "network: case `1000x100_dt0.5`: dt is 0.1 or 1");
    refuses(&["bench", "network", "--case", "full_dc"], "network: case `full_dc`: `full` is not an axis letter");
    refuses(&["bench", "ltc", "--case", "full_dc"], "ltc: case `full_dc`: `full` is not an axis letter");
    refuses(&["bench", "neuron_update", "--precision", "fast"], "precision=fast: spikes are the same bits everywhere");
    refuses(&["bench", "stdp_update", "--case", "100x10_S60"], "60 spikes a step must lie between 1 and 50");
    refuses(&["bench", "network", "--seconds", "0"], "--seconds 0 must lie between");
    refuses(&["bench", "network", "--json", "no-such-folder/b.json"], "there is no folder no-such-folder");
    refuses(&["profile", "network", "--set", "simulation.scale=0.1"], "a family has no configuration");
    refuses(&["profile", "neuron_updat"], "did you mean `neuron_update`?");
    // What only the run tells is not timed, and an error.
    let case = ["bench", "network", "--backend", "cpu", "--case", "100x10_dt1,gpus=2"];
    let o = chronaxie(&case);
    assert_eq!(o.status.code(), Some(1));
    assert!(text(&o.stdout).contains("gpus=2 is of GPUs, not of the CPU"), "{}", text(&o.stdout));
    let o = chronaxie(&[&case[..], &["--json", "-"]].concat());
    assert_eq!(o.status.code(), Some(1));
    assert!(text(&o.stderr).contains("not timed: network 100x10_dt1,gpus=2 on cpu: "), "{}", text(&o.stderr));
}

#[test]
fn a_family_is_profiled_as_a_network() {
    let o = chronaxie(&["profile", "stdp_update", "--case", "500x50_S3", "--backend", "cpu", "--json", "-"]);
    assert!(o.status.success(), "{}", text(&o.stderr));
    let r: Value = serde_json::from_slice(&o.stdout).expect("an object");
    assert_eq!((r["config"].as_str(), number(&r, "synapses")), (Some("stdp_update 500x50_S3"), 25_000.0));
    let parts = r["parts"].as_array().expect("parts");
    let part = |what: &str| parts.iter().find(|p| p["what"] == what).unwrap_or_else(|| panic!("{what}: {r}"));
    assert!(number(part("learning"), "us") > 0.0 && number(part("learning"), "count") > 0.0, "{r}");
    assert_eq!(number(part("learning"), "count"), number(part("delivery"), "count"));
}
