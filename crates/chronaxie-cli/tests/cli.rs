//! The command line as a user meets it: what it prints where, and how it ends.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn command(arguments: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_chronaxie"));
    c.args(arguments).stdin(Stdio::null());
    for name in ["CHRONAXIE_BACKEND", "CHRONAXIE_LOG", "CHRONAXIE_NUM_THREADS"] {
        c.env_remove(name);
    }
    c
}

fn end(mut c: Command) -> Ended {
    let o = c.output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
}

fn run(arguments: &[&str]) -> Ended {
    end(command(arguments))
}

/// Ends with code 2, nothing on standard output and one line `error: ...` that says `says`.
fn refuses(arguments: &[&str], says: &str) {
    let e = run(arguments);
    assert_eq!((e.code, e.out.as_str()), (Some(2), ""), "{arguments:?}: {}", e.err);
    assert!(e.err.starts_with("error: ") && e.err.trim_end().lines().count() == 1, "{arguments:?}: {}", e.err);
    assert!(e.err.contains(says), "{arguments:?}: {}", e.err);
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A file of this test's own.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

fn has_nvrtc() -> bool {
    !parse(&run(&["--version", "--json"]).out)["nvrtc"].is_null()
}

#[test]
fn every_command_explains_itself() {
    let main = run(&["--help"]);
    assert_eq!((main.code, main.err.as_str()), (Some(0), ""));
    let commands = [
        "devices",
        "check",
        "bench",
        "profile",
        "compile",
        "train",
        "predict",
        "simulate",
        "analyze",
        "partition",
        "plan",
        "completions",
    ];
    for name in commands {
        assert!(main.out.contains(&format!("\n  {name} ")), "{name} is not listed:\n{}", main.out);
        let help = run(&[name, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.out.contains("Usage: chronaxie") && help.out.contains("--threads"), "{name}:\n{}", help.out);
        assert_eq!(help.out.contains("--json"), name != "completions", "{name}:\n{}", help.out);
    }
}

#[test]
fn no_command_and_unknown_commands_are_usage_errors() {
    let e = run(&[]);
    assert_eq!(e.code, Some(2));
    assert!(e.err.contains("error: a command is needed"), "{}", e.err);
    let e = run(&["chekc"]);
    assert_eq!((e.code, e.out.as_str()), (Some(2), ""));
    assert!(e.err.contains("chekc") && e.err.contains("'check'"), "{}", e.err);
    assert_eq!(run(&["devices", "--threads", "0"]).code, Some(2));
    assert_eq!(run(&["--json"]).code, Some(2), "--json alone belongs to --version");
}

#[test]
fn versions_are_told() {
    let e = run(&["--version"]);
    assert_eq!(e.code, Some(0));
    assert!(e.out.starts_with(concat!("chronaxie ", env!("CARGO_PKG_VERSION"))), "{}", e.out);
    let v = parse(&run(&["--version", "--json"]).out);
    assert_eq!(v["version"], env!("CARGO_PKG_VERSION"));
    assert!(v["simd"].is_string() && v.get("commit").is_some() && v.get("driver").is_some(), "{v}");
}

#[test]
fn devices_say_what_is_there_and_what_is_missing() {
    let e = run(&["devices"]);
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""));
    for part in ["CPU\n", "cores", "simd", "CUDA driver\n", "NVRTC\n"] {
        assert!(e.out.contains(part), "{part:?} is not in:\n{}", e.out);
    }
    let v = parse(&run(&["devices", "--json", "-"]).out);
    assert!(v["cpu"]["cores"].as_u64().is_some_and(|n| n > 0), "{v}");
    // A driver has a version, or its absence a sentence.
    let driver = &v["driver"];
    assert!(driver["version"].is_string() != driver["missing"].is_string(), "{driver}");
    if let Some(list) = v["cuda"].as_array() {
        for d in list {
            assert!(d["sm_count"].is_u64() && d["pci_id"].is_string() && d["max_grid"].is_array(), "{d}");
        }
    }
}

#[test]
fn families_cases_and_backends_that_do_not_exist_are_named() {
    refuses(&["check", "linear_scn"], "family `linear_scn` is not one of");
    refuses(&["check", "linear_scn"], "did you mean `linear_scan`?");
    refuses(&["bench", "linear_scan", "--case", "B2_Q3_T4"], "linear_scan: case `B2_Q3_T4`: axis Q is not one of");
    refuses(&["profile", "nothing"], "there is no configuration nothing, and family `nothing` is not one of");
    refuses(&["profile", "linear_scn"], "did you mean `linear_scan`?");
    refuses(&["profile", "no-such.toml"], "there is no configuration no-such.toml, and family `no-such.toml` is not");
    refuses(&["check", "--backend", "gpu"], "backend `gpu` is not one of");
    refuses(&["profile", "linear_scan", "--backend", "cuda:-1"], "backend `cuda:-1` is not one of");
    refuses(&["bench", "--seconds", "0"], "--seconds 0 must lie between");
    refuses(&["check", "--json", "no-such-folder/check.json"], "there is no folder no-such-folder");
    let e = run(&["check", "--case", "B"]);
    assert_eq!(e.code, Some(2));
    assert!(e.err.contains("`B` is not an axis letter and a size"), "{}", e.err);
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_where_it_was_asked_for() {
    // No machine has it: either there is no driver, or no such index.
    for arguments in [["check", "--backend", "cuda:97"], ["bench", "--backend", "cuda:97"]] {
        let e = run(&arguments);
        assert_eq!((e.code, e.out.as_str()), (Some(2), ""), "{}", e.err);
        assert!(e.err.contains("no CUDA driver") || e.err.contains("cuda:97 does not exist"), "{}", e.err);
    }
}

#[test]
fn check_ends_with_its_counts() {
    let arguments = ["check", "linear_scan", "--backend", "cpu", "--case", "B2_D3_T7,h0=true"];
    let e = run(&arguments);
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""), "{}", e.out);
    let last = e.out.lines().last().unwrap_or_default();
    let words: Vec<_> = last.split(' ').collect();
    let [passed, "passed,", "0", "failed,", "0", "skipped"] = words[..] else { panic!("{last}") };
    assert!(passed.parse::<u32>().is_ok_and(|n| n >= 8), "{last}");

    let e = run(&[&arguments[..], &["--json", "-"]].concat());
    let records = parse(&e.out);
    let records = records.as_array().expect("a list");
    assert_eq!(records.len().to_string(), passed);
    for field in ["family", "case", "backend", "dtype", "precision", "quantity", "metric", "error", "tolerance"] {
        assert!(records.iter().all(|r| r.get(field).is_some()), "{field}");
    }
    assert!(records.iter().all(|r| r["status"] == "passed" && r["seconds"].is_f64() && r["reason"].is_string()));
    assert!(records.iter().any(|r| r["quantity"] == "bits_threads"));
}

#[test]
fn bench_writes_whole_records() {
    let file = scratch("bench.json");
    let path = file.to_str().expect("a UTF-8 path");
    let case = "B1_D4_T64";
    let short = ["--case", case, "--seconds", "0.01", "--warm", "--json", path];
    let e = run(&[&["bench", "linear_scan", "--backend", "cpu"], &short[..]].concat());
    assert_eq!(e.code, Some(0), "{}{}", e.out, e.err);
    assert!(e.out.lines().last().is_some_and(|l| l.ends_with("timed, 0 refused, 0 skipped")), "{}", e.out);
    let records = parse(&std::fs::read_to_string(&file).expect("the file is there"));
    std::fs::remove_file(&file).expect("the file can be removed");
    let records = records.as_array().expect("a list");
    assert!(records.len() >= 2, "{records:?}");
    for field in "family case pass backend device dtype precision variant clock median_ms mean_ms min_ms max_ms runs bytes \
                  flops gb_per_s tflop_per_s roofline_fraction floors_ms workspace_bytes peak_bytes launches max_error schema \
                  date version commit driver nvrtc sm_clock_mhz power_w"
        .split_whitespace()
    {
        assert!(records.iter().all(|r| r.get(field).is_some()), "{field}");
    }
    assert!(records.iter().all(|r| r["case"] == case && r["median_ms"].as_f64().is_some_and(|t| t > 0.0)));
    assert!(records.iter().all(|r| r.get("spikes_sha256").is_none()), "what networks have besides");
}

#[test]
fn profile_gives_a_verdict() {
    let e = run(&["profile", "linear_scan", "--backend", "cpu", "--case", "B1_D4_T64"]);
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""), "{}", e.out);
    assert!(e.out.contains("\nforward: ") && e.out.contains(" binds: "), "{}", e.out);
}

#[test]
fn a_configuration_is_profiled_as_the_step_that_it_trains() {
    let (folder, config) = tiny_run("profile");
    let e = run(&["profile", &config, "--backend", "cpu"]);
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""), "{}", e.out);
    assert!(e.out.starts_with(&format!("{config} B4_T3 on cpu: 2 of 2 steps of an epoch, ")), "{}", e.out);
    for part in ["lay out the batch", "ltc forward", "linear_head backward", "adamw step", "a step by the wall clock"] {
        assert_eq!(e.out.matches(&format!("\n  {part}  ")).count(), 1, "{part} in:\n{}", e.out);
    }
    assert!(e.out.contains(" binds: "), "{}", e.out);
    assert!(!e.out.contains("copy") && !e.out.contains("queue"), "nothing is copied on the CPU:\n{}", e.out);

    let r = parse(&run(&["profile", &config, "--backend", "cpu", "--case", "B2_T3", "--json", "-"]).out);
    assert_eq!((&r["case"], &r["steps"], &r["transfer_ms"]), (&"B2_T3".into(), &4.into(), &Value::Null));
    let operations = r["operations"].as_array().expect("a list");
    let named = |o: &Value| {
        let passes = o["passes"].as_array().expect("a list").iter().map(|p| p["pass"].as_str().expect("a name"));
        format!(
            "{} {} {}",
            o["family"].as_str().expect("a name"),
            o["case"].as_str().expect("a case"),
            passes.collect::<Vec<_>>().join("+")
        )
    };
    // One input, four neurons, two classes: the sizes of the run, not those of a case in the registry.
    assert_eq!(r["parameters"], 4 * (16 + 4) + 3 * 4 + 2 + 2 * 4 + 2);
    // In memory each of the 15 tensors begins at a multiple of 256 bytes, and the optimizer steps over the gaps too.
    let parameters = 15 * 64;
    let want = [
        "ltc B2_T3_D1_H4 forward+backward".to_owned(),
        "linear_head B2_T3_M4_C2 forward+backward".to_owned(),
        format!("adamw N{parameters} step"),
    ];
    assert_eq!(operations.iter().map(named).collect::<Vec<_>>(), want);
    let ms = |v: &Value| v.as_f64().filter(|ms| *ms > 0.0).expect("milliseconds");
    let parts: f64 =
        operations.iter().flat_map(|o| o["passes"].as_array().expect("a list")).map(|p| ms(&p["measured_ms"])).sum();
    let listed: f64 = r["work"].as_array().expect("a list").iter().map(|w| ms(&w["ms"])).sum();
    assert!((listed - parts - ms(&r["host_ms"])).abs() < 1e-9 * listed, "{r}");
    assert!(ms(&r["measured_ms"]) > 0.0 && ms(&r["operations_ms"]) > 0.0);

    for (case, says) in [
        ("B9", "case `B9`: B = 9 is not from 1 to the 8 series"),
        ("B2_T4", "case `B2_T4`: no batch of the first epoch is padded to T = 4, but to 3"),
        ("H8", "case `H8`: axis H is not one of B, T"),
    ] {
        refuses(&["profile", &config, "--backend", "cpu", "--case", case], says);
    }
    let data = folder.join("tiny.ts");
    refuses(&["profile", data.to_str().expect("UTF-8"), "--backend", "cpu"], "tiny.ts:1: ");
    std::fs::remove_file(&data).expect("the data can be removed");
    refuses(&["profile", &config, "--backend", "cpu"], "tiny.ts");
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn auto_says_once_what_it_took_unless_quiet() {
    let arguments = ["profile", "linear_scan", "--case", "B1_D4_T64", "--json", "-"];
    let e = run(&arguments);
    assert_eq!(e.code, Some(0), "{}", e.err);
    assert_eq!(e.err.matches("backend auto: ").count(), 1, "{}", e.err);
    parse(&e.out);
    let e = run(&[&arguments[..], &["--quiet"]].concat());
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""));
}

#[test]
fn a_flag_beats_the_environment() {
    let mut c = command(&["check", "linear_scan", "--case", "B1_D1_T1"]);
    c.env("CHRONAXIE_BACKEND", "gpu");
    let e = end(c);
    assert!(e.code == Some(2) && e.err.contains("backend `gpu`"), "{}", e.err);
    let mut c = command(&["check", "linear_scan", "--case", "B1_D1_T1", "--backend", "cpu"]);
    c.env("CHRONAXIE_BACKEND", "gpu");
    assert_eq!(end(c).code, Some(0));
}

#[test]
fn a_closed_pipe_is_silent() {
    for arguments in [
        &["devices"][..],
        &["completions", "bash"],
        &["check", "linear_scan", "--backend", "cpu", "-v", "--case", "B1_D1_T1"],
        &["devices", "--json", "-"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut c = command(arguments);
        c.stdout(writer).stderr(Stdio::piped());
        let o = c.spawn().and_then(std::process::Child::wait_with_output).expect("the command runs");
        assert_eq!((o.status.code(), &o.stderr[..]), (Some(0), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let e = run(&["completions", shell]);
        assert_eq!((e.code, e.err.as_str()), (Some(0), ""));
        assert!(e.out.contains("chronaxie") && e.out.contains("bench"), "{shell}");
    }
    assert_eq!(run(&["completions", "tcsh"]).code, Some(2));
}

#[test]
fn compile_needs_no_gpu() {
    refuses(&["compile", "--nvrtc", "no-such-place"], "no-such-place");
    if !has_nvrtc() {
        refuses(&["compile"], "pip install nvidia-cuda-nvrtc");
        return;
    }
    refuses(&["compile", "--arch", "sm_"], "`sm_` is no architecture");
    let (folder, pack) = (scratch("emit"), scratch("kernels.pack"));
    let arguments = ["compile", "linear_scan", "--arch", "sm_80", "--report", "--json", "-", "--emit"];
    let places = [folder.to_str().expect("UTF-8"), "--pack", pack.to_str().expect("UTF-8")];
    let e = run(&[&arguments[..], &places].concat());
    assert_eq!(e.code, Some(0), "{}", e.err);
    let rows = parse(&e.out);
    let rows = rows.as_array().expect("a list");
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|r| r["registers"].as_u64().is_some() && r["spill_bytes"] == 0), "{rows:?}");
    assert!(rows.iter().all(|r| r["arch"] == "sm_80" && r["family"] == "linear_scan"));
    assert!(std::fs::metadata(&pack).is_ok_and(|m| m.len() > 1000));
    let emitted = std::fs::read_dir(folder.join("layers")).expect("sources were written").count();
    assert!(emitted > 0);
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    std::fs::remove_file(&pack).expect("the pack can be removed");
}

/// A folder with a tiny data set of two classes and a configuration that trains on it.
fn tiny_run(name: &str) -> (PathBuf, String) {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut data =
        "@problemName Tiny\n@univariate true\n@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n"
            .to_owned();
    for i in 0..8 {
        let x = if i % 2 == 0 { 1.0 } else { -1.0 };
        data += &format!("{x},{},{x}:{}\n", x * 0.5, if i % 2 == 0 { "a" } else { "b" });
    }
    std::fs::write(folder.join("tiny.ts"), data).expect("the data");
    let config = "schema = 1\n[data]\ntrain = \"tiny.ts\"\ntest = \"tiny.ts\"\n[model]\nlayer = \"ltc\"\nhidden = 4\n\
                  [train]\nepochs = 2\nbatch_size = 4\n";
    std::fs::write(folder.join("tiny.toml"), config).expect("the configuration");
    let path = folder.join("tiny.toml").to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn a_run_is_trained_resumed_and_used() {
    let (folder, config) = tiny_run("train");
    let run_folder = folder.join("run");
    let out = run_folder.to_str().expect("UTF-8");
    let arguments = ["train", &config, "--backend", "cpu", "--out", out, "--seed", "5", "--set", "train.epochs=3"];
    let e = run(&arguments);
    assert_eq!(e.code, Some(0), "{}", e.err);
    let report = parse(&e.out);
    assert_eq!((&report["epochs"], &report["seed"], &report["backend"]), (&3.into(), &5.into(), &"cpu".into()));
    assert!(report["test_accuracy"].is_f64() && report["samples_per_second"].is_f64(), "{report}");
    assert!(report["train_seconds"].is_f64());
    assert_eq!(e.err.lines().filter(|l| l.starts_with("epoch ")).count(), 3, "a line an epoch:\n{}", e.err);

    let again = run(&arguments);
    assert_eq!((again.code, again.out.as_str()), (Some(2), ""), "a folder that is not empty: {}", again.err);
    let resumed = run(&[&arguments[..], &["--resume", "--quiet"]].concat());
    assert_eq!((resumed.code, resumed.err.as_str()), (Some(0), ""));
    assert_eq!(parse(&resumed.out)["test_accuracy"], report["test_accuracy"]);

    let data = folder.join("tiny.ts");
    let said = run(&["predict", out, data.to_str().expect("UTF-8"), "--backend", "cpu"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!((lines[0], lines.len()), ("index,prediction,score", 9), "{}", said.out);
    assert!(lines[1].starts_with("0,a,") || lines[1].starts_with("0,b,"), "{}", said.out);
    let records = parse(&run(&["predict", out, data.to_str().expect("UTF-8"), "--json", "-", "--quiet"]).out);
    assert_eq!(records.as_array().map(Vec::len), Some(8));
    let printed = run(&["predict", out, "unused", "--print-config"]);
    assert!(printed.code == Some(0) && printed.err.is_empty(), "{}", printed.err);
    assert!(printed.out.contains("epochs = 3") && printed.out.contains("hidden = 4"), "{}", printed.out);
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn a_configuration_is_printed_as_resolved_and_mistakes_are_named() {
    let (folder, config) = tiny_run("config");
    let e = run(&["train", &config, "--print-config", "--seed", "9", "--precision", "fast", "--set", "model.hidden=7"]);
    assert_eq!((e.code, e.err.as_str()), (Some(0), ""));
    for line in ["seed = 9", "precision = \"fast\"", "hidden = 7", "learning_rate = "] {
        assert!(e.out.contains(line), "{line} is not in:\n{}", e.out);
    }
    refuses(&["train", &config, "--set", "train.epoch=3"], "epochs");
    refuses(&["train", &config, "--set", "train.epochs"], "write it as table.key=value");
    refuses(&["train", "no-such.toml"], "no-such.toml");
    refuses(&["train", &config, "--backend", "cuda:97"], "cuda");
    refuses(&["predict", "no-such-model", "data.ts"], "no-such-model");
    assert_eq!(run(&["train", &config, "--resume"]).code, Some(2), "--resume needs --out");
    assert!(!PathBuf::from("runs").exists(), "nothing was written");
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_ends_with_its_signals_code_and_says_so() {
    use std::io::{BufRead, BufReader};
    for (signal, code, says) in
        [("INT", 130, "error: train: interrupted"), ("TERM", 143, "error: SIGTERM: train: interrupted")]
    {
        let (folder, config) = tiny_run(&format!("interrupt-{signal}"));
        let run_folder = folder.join("run");
        let out = run_folder.to_str().expect("UTF-8");
        let arguments = ["train", &config, "--backend", "cpu", "--out", out, "--set", "train.epochs=1000000"];
        // A child of something that ignores the signal (nohup, a job in the background) ignores it, too, as it should: so it is
        // started by something that resets it.
        let plain = command(&arguments);
        let mut c = Command::new("python3");
        let reset =
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])";
        c.args(["-c", reset]).arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        let mut child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        assert!(lines.any(|l| l.starts_with("epoch ")), "it trains");
        let kill = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status();
        assert!(kill.is_ok_and(|s| s.success()));
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{rest:?}");
        assert!(rest.last().is_some_and(|l| l.starts_with(says) && l.contains("go on with --resume")), "{rest:?}");

        let state = parse(&std::fs::read_to_string(run_folder.join("run.json")).expect("run.json is there"));
        assert_eq!(state["status"], "interrupted", "{state}");
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
