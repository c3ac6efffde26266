//! Properties of training that hold whatever the layer: on small data, on the CPU, from configuration to folder.

use super::bank::Slot;
use super::batches::{self, Examples, RunData};
use super::network::{Network, Parts};
use super::profile::{of_one_length, profile};
use super::settings::Settings;
use super::{Report, RunOptions, predict, run, to_csv};
use crate::check::gpu::gpu;
use crate::check::{self, Options, Status, Target};
use crate::config::Config;
use crate::op::Op;
use crate::progress::{Progress, Silent};
use crate::rng::Rng;
use crate::{Backend, Device, ErrorKind, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

mod curvature;
mod layers;
mod optimizers;

/// What `chronaxie check` would say of the entries of this module on the CPU.
#[test]
fn entries_agree_with_their_laws_on_the_cpu() {
    let entries: [&dyn Op; 2] = [&super::head::LinearHeadOp, &super::adamw::AdamWOp];
    let mut failures = Vec::new();
    let summary = check::run(&entries, &[Target::Ready(Device::Cpu)], &Options::default(), &Silent, &mut |r| {
        if r.status == Status::Failed {
            failures.push(format!("{r:?}"));
        }
    })
    .unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(summary.passed > 100, "{summary:?}");
}

/// A folder that goes when the test is done.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("chronaxie-train-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two channels, 3 to 9 steps; the class is whether the first channel rises or falls, the value its slope.
fn write_data(path: &Path, count: usize, seed: u64, target: &str) {
    let mut rng = Rng::new(seed, 0);
    let mut text = format!("series,x,y{}\n", if target.is_empty() { String::new() } else { format!(",{target}") });
    for series in 0..count {
        let (start, noise) = (0.5 * rng.normal(), 0.1);
        let slope = if series % 2 == 0 { 0.3 } else { -0.3 } + 0.05 * rng.normal();
        for step in 0..3 + rng.below(7) {
            let x = start + slope * step as f64 + noise * rng.normal();
            text.push_str(&format!("{series},{x:.5},{:.5}", rng.normal()));
            match target {
                "label" => text.push_str(if series % 2 == 0 { ",up" } else { ",down" }),
                "slope" => text.push_str(&format!(",{slope:.5}")),
                _ => {}
            }
            text.push('\n');
        }
    }
    fs::write(path, text).unwrap();
}

const MODEL: &str = "[model]\nhidden = 6\nunfolds = 2\ndt = 0.5\n";

fn config_text(extra: &str) -> String {
    config_of(MODEL, extra)
}

fn config_of(model: &str, extra: &str) -> String {
    format!(
        "schema = 1\n[data]\ntrain = \"train.csv\"\ntest = \"test.csv\"\ncsv = {{ layout = \"long\" }}\n{model}[train]\n\
         epochs = 3\nbatch_size = 8\nlearning_rate = 0.03\nvalidation = 0.2\n{extra}"
    )
}

fn setup(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    write_data(&scratch.file("train.csv"), 45, 1, "label");
    write_data(&scratch.file("test.csv"), 21, 2, "label");
    scratch
}

fn config(scratch: &Scratch, text: &str) -> Config {
    Config::parse(text, scratch.file("a.toml")).unwrap()
}

fn train(scratch: &Scratch, text: &str, out: &str, resume: bool, progress: &dyn Progress) -> Result<Report> {
    let options = RunOptions::new(scratch.file(out)).backend(Backend::Cpu).resume(resume);
    run(&config(scratch, text), &options, progress)
}

fn model(scratch: &Scratch, out: &str) -> Vec<u8> {
    fs::read(scratch.file(out).join("model.safetensors")).unwrap()
}

/// Says that the user wants to stop once it was asked so often.
struct StopAfter {
    asked: AtomicUsize,
    after: usize,
}

impl StopAfter {
    fn new(after: usize) -> Self {
        Self { asked: AtomicUsize::new(0), after }
    }
}

impl Progress for StopAfter {
    fn interrupted(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.after
    }
}

#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_was_never_stopped() {
    let scratch = setup("resume");
    let text = config_text("noise = 0.05\n");
    let whole = train(&scratch, &text, "whole", false, &Silent).unwrap();
    // 36 series in batches of 8: 5 batches an epoch. Stopped before anything, within epochs and between them.
    for stops in [vec![0], vec![3], vec![5], vec![7, 0, 2], vec![1, 1, 1, 1, 9]] {
        let out = format!("stopped-{stops:?}");
        for (i, &after) in stops.iter().enumerate() {
            let e = train(&scratch, &text, &out, i > 0, &StopAfter::new(after)).unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Interrupted, "{e}");
            assert!(e.to_string().contains("--resume"), "{e}");
            let record = fs::read_to_string(scratch.file(&out).join("run.json")).unwrap();
            assert!(record.contains("\"status\": \"interrupted\""), "{record}");
        }
        let resumed = train(&scratch, &text, &out, true, &Silent).unwrap();
        assert!(model(&scratch, &out) == model(&scratch, "whole"), "{stops:?}");
        assert_eq!(resumed.test_accuracy, whole.test_accuracy);
        assert_eq!(resumed.validation_loss, whole.validation_loss);
        assert_eq!(metrics(&scratch, &out), metrics(&scratch, "whole"), "{stops:?}");
    }
    // A finished run resumed says the same again.
    let again = train(&scratch, &text, "whole", true, &Silent).unwrap();
    assert_eq!((again.test_loss, again.train_seconds), (whole.test_loss, whole.train_seconds));
}

/// The lines of the metrics but for their times.
fn metrics(scratch: &Scratch, out: &str) -> Vec<String> {
    let text = fs::read_to_string(scratch.file(out).join("metrics.jsonl")).unwrap();
    text.lines().map(|l| l.split(",\"seconds\"").next().unwrap().to_owned()).collect()
}

#[test]
fn a_seed_decides_every_bit_on_any_number_of_threads() {
    let scratch = setup("seeds");
    for (out, threads, seed) in [("one", 1, 7), ("two", 2, 7), ("other", 2, 8)] {
        crate::pool::set_num_threads(threads);
        train(&scratch, &config_text(&format!("seed = {seed}\n")), out, false, &Silent).unwrap();
    }
    // The seed is part of the saved configuration, so only the first two files can be equal.
    assert!(model(&scratch, "one") == model(&scratch, "two"));
    assert_eq!(metrics(&scratch, "one"), metrics(&scratch, "two"));
    assert_ne!(metrics(&scratch, "one"), metrics(&scratch, "other"));
}

#[test]
fn it_learns_and_predicts_what_it_has_learned() {
    let scratch = setup("learns");
    let text = config_text("").replace("epochs = 3", "epochs = 25");
    let report = train(&scratch, &text, "out", false, &Silent).unwrap();
    assert!(report.test_accuracy.unwrap() >= 0.9, "{report:?}");
    assert!(report.test_mse.is_none() && report.samples_per_second > 0.0 && report.epochs == 25);
    let folder = scratch.file("out");
    for name in ["run.json", "config.toml", "metrics.jsonl", "learning_curve.svg", "learning_curve.png"] {
        assert!(folder.join(name).metadata().unwrap().len() > 0, "{name}");
    }
    assert!(folder.join("checkpoint/state.safetensors").exists());
    assert_eq!(fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().count(), 25);

    let said = predict(&folder, &scratch.file("test.csv"), Backend::Cpu).unwrap();
    let right = said.iter().filter(|p| p.prediction == if p.index % 2 == 0 { "up" } else { "down" }).count();
    assert_eq!(right as f64 / said.len() as f64, report.test_accuracy.unwrap());
    assert!(said.iter().all(|p| (0.5..=1.0).contains(&p.score.unwrap())));
    assert!(to_csv(&said).starts_with("index,prediction,score\n0,up,0."));
    // Without labels: the same series, the same predictions.
    write_data(&scratch.file("plain.csv"), 21, 2, "");
    assert_eq!(predict(&folder, &scratch.file("plain.csv"), Backend::Cpu).unwrap(), said);
}

#[test]
fn numbers_are_learned_too() {
    let scratch = Scratch::new("numbers");
    write_data(&scratch.file("train.csv"), 45, 1, "slope");
    write_data(&scratch.file("test.csv"), 20, 2, "slope");
    let text = config_text("pooling = \"every\"\n")
        .replace("layout = \"long\"", "layout = \"long\", target = \"slope\", task = \"values\"")
        .replace("epochs = 3", "epochs = 60");
    let report = train(&scratch, &text, "out", false, &Silent).unwrap();
    // The slopes are +-0.3 with a variance of 0.09, and the first steps of a series cannot tell which.
    assert!(report.test_mse.unwrap() < 0.045 && report.test_accuracy.is_none(), "{report:?}");
    let said = predict(&scratch.file("out"), &scratch.file("test.csv"), Backend::Cpu).unwrap();
    assert!(said.iter().all(|p| p.score.is_none() && p.prediction.parse::<f64>().unwrap().abs() < 1.0));
}

/// A network of the test's configuration with initial parameters, planned for `lengths` and batches of `batch`.
fn network(scratch: &Scratch, extra: &str, lengths: Vec<usize>, batch: usize) -> (Network, RunData) {
    network_of(scratch, &config_text(extra), lengths, batch)
}

fn network_of(scratch: &Scratch, text: &str, lengths: Vec<usize>, batch: usize) -> (Network, RunData) {
    let config = config(scratch, text);
    let settings = Settings::read(&config).unwrap();
    let data = RunData::read(&settings).unwrap();
    let parts = Parts {
        layer: settings.layer(data.channels, data.timed, None).unwrap(),
        task: data.task.clone(),
        pooling: settings.train.pooling,
        loss: settings.train.loss,
        channels: data.channels,
        batch,
        lengths,
        log_steps: 1,
        optimizer: Some(settings.train.optimizer.clone()),
    };
    let mut network = Network::new(&Device::Cpu, parts).unwrap();
    network.initialise(3).unwrap();
    (network, data)
}

/// The gradients of one batch, by name, and the loss. The learning rate is 0, so parameters stay.
fn gradients(network: &mut Network, examples: &Examples, which: &[usize]) -> (Vec<(String, Vec<f32>)>, f32) {
    network.set_rates(&[0.0]).unwrap();
    network.learn(0, examples, which, None).unwrap();
    let slots = network.parameters().to_vec();
    let list = slots
        .iter()
        .map(|(name, slot)| (name.clone(), network.banks.read_f32(&Slot { bank: 1, ..slot.clone() }).unwrap()))
        .collect();
    (list, network.logged(1).unwrap().losses[0])
}

#[test]
fn longer_padding_and_empty_rows_change_no_gradient() {
    let scratch = setup("padding");
    let which = [3, 0, 11, 7, 8];
    for pooling in ["last", "mean", "every"] {
        let extra = format!("pooling = \"{pooling}\"\n");
        let of = |lengths: Vec<usize>, batch: usize| {
            let (mut network, data) = network(&scratch, &extra, lengths, batch);
            gradients(&mut network, &data.train, &which)
        };
        let (tight, loss) = of(vec![9], 5);
        assert!(tight.iter().all(|(name, g)| g.iter().any(|&x| x != 0.0) || name.ends_with("_b")), "{tight:?}");
        for (lengths, batch) in [(vec![23], 5), (vec![9], 8), (vec![13], 16)] {
            let (padded, padded_loss) = of(lengths.clone(), batch);
            assert!((padded_loss - loss).abs() < 1e-6, "{pooling} {lengths:?} {batch}: {padded_loss} {loss}");
            for ((name, a), (_, b)) in tight.iter().zip(&padded) {
                let norm = a.iter().map(|x| x * x).sum::<f32>().sqrt();
                let apart = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f32>().sqrt();
                assert!(apart <= 2e-6 * norm, "{pooling} {lengths:?} {batch}: {name}: {apart} of {norm}");
            }
        }
    }
}

#[test]
fn what_cannot_be_trained_is_refused_in_a_sentence_and_leaves_nothing() {
    let scratch = setup("refused");
    let text = config_text("");
    let refused = |text: &str, out: &str, want: &str| {
        let e = train(&scratch, text, out, false, &Silent).unwrap_err().to_string();
        assert!(e.contains(want), "{want}: {e}");
        assert!(!scratch.file(out).exists(), "{out} was made, but {e}");
    };
    refused(&text.replace("hidden = 6", "hiden = 6"), "a", "unknown key model.hiden; did you mean hidden?");
    refused(&text.replace("hidden = 6", "hidden = 0"), "a", "model.hidden must be at least 1");
    refused(&text.replace("unfolds = 2", "unfolds = 0"), "a", "unfolds = 0 is not in 1 ..= 1024");
    refused(&text.replace("dt = 0.5", "dt = -0.5"), "a", "dt = -0.5 is not a positive number");
    refused(&text.replace("dt = 0.5", "elapsed = true"), "a", "model.elapsed is true, but the data has no times");
    refused(&text.replace("dt = 0.5", "wiring = \"auto\""), "a", "model.wiring must be one of");
    refused(&text.replace("train.csv", "no.csv"), "a", "no.csv");
    refused(&text.replace("epochs = 3", "epochs = \"three\""), "a", ":11: train.epochs must be");
    fs::write(scratch.file("other.csv"), "series,x,y,label\n1,0,0,sideways\n1,0,0,sideways\n").unwrap();
    refused(&text.replace("test.csv", "other.csv"), "a", "sideways");
    fs::write(scratch.file("narrow.csv"), "series,x,label\n1,0,up\n1,0,up\n").unwrap();
    refused(&text.replace("test.csv", "narrow.csv"), "a", "1 channels, but the training set had 2");

    train(&scratch, &text, "full", false, &Silent).unwrap();
    let e = train(&scratch, &text, "full", false, &Silent).unwrap_err().to_string();
    assert!(e.contains("is not empty") && e.contains("--resume"), "{e}");
    let e = train(&scratch, &text.replace("epochs = 3", "epochs = 4"), "full", true, &Silent).unwrap_err();
    assert!(e.to_string().contains("another configuration") && e.kind() == &ErrorKind::Checkpoint, "{e}");
    write_data(&scratch.file("train.csv"), 45, 5, "label");
    let e = train(&scratch, &text, "full", true, &Silent).unwrap_err().to_string();
    assert!(e.contains("data files have changed"), "{e}");
    fs::create_dir(scratch.file("foreign")).unwrap();
    fs::write(scratch.file("foreign/thesis.txt"), "all of it").unwrap();
    let e = train(&scratch, &text, "foreign", true, &Silent).unwrap_err().to_string();
    assert!(e.contains("no checkpoint") || e.contains("holds files but no run"), "{e}");
    assert_eq!(fs::read_dir(scratch.file("foreign")).unwrap().count(), 1);
}

#[test]
fn divergence_ends_the_run_and_keeps_the_last_checkpoint() {
    let scratch = setup("diverges");
    let text = config_text("clip = 0\nwarmup = 0\n").replace("learning_rate = 0.03", "learning_rate = 1e30");
    let e = train(&scratch, &text, "out", false, &Silent).unwrap_err();
    assert!(e.kind() == &ErrorKind::Value && e.to_string().contains("lower train.learning_rate"), "{e}");
    let record = fs::read_to_string(scratch.file("out").join("run.json")).unwrap();
    assert!(record.contains("\"status\": \"failed\"") && record.contains("became"), "{record}");
    assert!(!scratch.file("out").join("model.safetensors").exists());
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let scratch = setup("models");
    train(&scratch, &config_text(""), "out", false, &Silent).unwrap();
    let folder = scratch.file("out");
    let message = |model: &Path, data: &str| predict(model, &scratch.file(data), Backend::Cpu).unwrap_err().to_string();
    assert!(message(&scratch.file("nowhere"), "test.csv").contains("cannot read"));
    assert!(message(&folder.join("checkpoint/state.safetensors"), "test.csv").contains("says something else"));
    assert!(message(&folder.join("run.json"), "test.csv").contains("not a whole safetensors file"));
    fs::write(scratch.file("narrow.csv"), "series,x\n1,0\n1,0\n").unwrap();
    assert!(message(&folder, "narrow.csv").contains("1 channels, but the training set had 2"));
    fs::write(scratch.file("empty.csv"), "").unwrap();
    assert!(message(&folder, "empty.csv").contains("empty.csv"));
}

#[test]
fn a_profiled_step_has_the_length_of_most_batches_or_the_one_that_was_asked_for() {
    let scratch = setup("length");
    let (network, data) = network(&scratch, "", batches::padded_lengths(9), 4);
    let order = batches::order(&data.train, 4, true, 1, 0);
    let pick = |case: Option<&str>| {
        let case = case.map(|c| c.parse().unwrap());
        of_one_length(&network, &data.train, &order, case.as_ref())
    };
    let (most, found) = pick(None).unwrap();
    let mut all = 0;
    for length in 1..=9 {
        match pick(Some(&format!("T{length}"))) {
            Ok((steps, batches)) => {
                assert_eq!(steps, length);
                let longest = |b: &&[usize]| b.iter().map(|&i| data.train.series[i].len).max() == Some(length);
                assert!(batches.iter().all(longest), "{length}: {batches:?}");
                assert!(batches.len() < found.len() || (batches.len() == found.len() && length <= most));
                all += batches.len();
            }
            Err(e) => assert!(e.to_string().contains(&format!("padded to T = {length}, but to ")), "{e}"),
        }
    }
    assert_eq!(all, order.len());
    assert_eq!(pick(Some("B4")).unwrap(), (most, found));
}

#[test]
fn on_a_gpu_a_profiled_step_shows_its_kernels_and_its_copy() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let scratch = setup("gpu-profile");
    let r = profile(&config(&scratch, &config_text("noise = 0.1\n")), Some(&"B7".parse().unwrap()), &device).unwrap();
    let steps: usize = r.case.strip_prefix("B7_T").unwrap().parse().unwrap();
    // x, lengths and labels, each to a multiple of 256 bytes.
    let bytes = (7 * steps * 2 * 4).next_multiple_of(256) + 256 + 256;
    assert_eq!((r.backend.as_str(), r.transfer_bytes), ("cuda:0", Some(bytes as u64)));
    assert!(r.transfer_ms.is_some_and(|ms| ms > 0.0) && r.host_ms > 0.0 && r.operations_ms > 0.0, "{r:?}");
    let on_gpu = r.work.iter().filter(|w| w.place == "cuda:0").map(|w| w.what.as_str()).collect::<Vec<_>>();
    let passes = ["ltc forward", "linear_head forward", "linear_head backward", "ltc backward", "adamw step"];
    assert_eq!(on_gpu, [&["copy the batch"], &passes[..]].concat());
    let kernels: Vec<_> = r.operations.iter().flat_map(|o| &o.passes).flat_map(|p| &p.kernels).collect();
    assert!(kernels.len() >= 5, "{kernels:?}");
    assert!(kernels.iter().all(|k| k.registers > 0 && k.blocks_per_sm > 0 && k.occupancy > 0.0), "{kernels:?}");
}
