//! The planner against every run of a network on GPUs that was committed.

use super::step::{CALENDAR, DELIVERY, DRIVES, MEETING, UPDATE};
use super::*;
use crate::config::Config as Description;
use crate::op::Case;
use crate::spiking::bench;
use crate::spiking::network::read::read;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How far a prediction may be off.
const TOLERANCE: f64 = 0.2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What was timed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Timed {
    /// A run of `simulate`, hashing and all.
    Run,
    /// Steps of one call of the engine.
    Advance,
    /// These parts of a step.
    Parts(&'static [&'static str]),
}

/// A committed run.
struct Run {
    name: String,
    plan: Plan,
    activity: Activity,
    gpus: usize,
    exchange: Exchange,
    timed: Timed,
    steps: u64,
    /// us a step.
    measured: f64,
    /// Bytes that the first GPU had less free.
    peak: Option<f64>,
    /// How the engine that ran it said that it had cut the network.
    engine: Option<String>,
}

impl Run {
    fn estimate(&self, card: &Card) -> Estimate {
        estimate(&self.plan, &self.activity, card, self.gpus, self.exchange).unwrap()
    }

    /// us a step.
    fn predicted(&self, card: &Card) -> f64 {
        self.of(self.estimate(card).step.as_ref().unwrap())
    }

    fn of(&self, step: &Step) -> f64 {
        match self.timed {
            Timed::Run => step.run_us(self.steps, self.plan.network.dt_ms) / self.steps as f64,
            Timed::Advance => step.advance_us(self.steps) / self.steps as f64,
            Timed::Parts(parts) => parts.iter().map(|p| step.part(p)).sum(),
        }
    }

    /// Whether it ran on an engine that there is no more.
    fn is_earlier(&self, card: &Card) -> bool {
        self.engine.as_ref().is_some_and(|engine| *engine != self.estimate(card).engine)
    }
}

fn number(v: &Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_else(|| panic!("{key} of {v}"))
}

/// Rates that were measured, or, where none were, those of sources by the description and of all others alike.
fn rates(plan: &Plan, record: &Value, spikes: f64) -> Vec<f64> {
    let n = &plan.network;
    let known = |p: &crate::spiking::Population| record["rates_hz"][&p.name].as_f64().filter(|r| *r > 0.0);
    if let Some(all) = n.populations.iter().map(known).collect() {
        return all;
    }
    let mut all = partition::rates(plan, 0.0, true);
    let own = |p: usize| f64::from(n.populations[p].size);
    let told: f64 = all.iter().enumerate().map(|(p, r)| r * own(p)).sum();
    let others: f64 = (0..all.len()).filter(|p| all[*p] == 0.0).map(own).sum();
    let rest = (spikes / (n.dt_ms * 1e-3) - told).max(0.0) / others.max(1.0);
    all.iter_mut().filter(|r| **r == 0.0).for_each(|r| *r = rest);
    all
}

/// The plan of `examples/NAME`, of so many cells and with what the file's name says.
fn example(name: &str, file: &str, cells: Option<f64>) -> Plan {
    let mut config = Description::read(root().join("examples").join(name)).unwrap();
    if name == "network.toml" {
        let scale = cells.map_or(1.0, |c| c / 1e6);
        for (k, size) in [8e5, 2e5].into_iter().enumerate() {
            config.set(&format!("population.{k}.size={}", (size * scale) as u64)).unwrap();
        }
    }
    if file.contains("stdp") {
        config.set("simulation.plasticity=true").unwrap();
    }
    if file.contains("dc") {
        config.set("simulation.variant=dc").unwrap();
    }
    Plan::new(read(&config).unwrap().network).unwrap()
}

fn run(name: &str, plan: Plan, record: &Value, timed: Timed, [steps, measured, spikes]: [f64; 3]) -> Run {
    let gpus = record["gpus"].as_u64().unwrap_or(1) as usize;
    let activity = Activity::new(&plan, rates(&plan, record, spikes));
    let exchange = if name.ends_with("gpus2-host.json") { Exchange::Host } else { Exchange::Peers };
    let engine = record["engine"].as_str().map(str::to_owned);
    let peak = record["peak_bytes"].as_f64();
    let name = name.to_owned();
    Run { name, plan, activity, gpus, exchange, timed, steps: steps as u64, measured, peak, engine }
}

/// The runs of a file: a report of `simulate`, one of `profile` with its parts, or records of `bench`.
fn read_runs(name: &str, v: &Value, all: &mut Vec<Run>) {
    let gpu = |v: &Value| v["backend"].as_str().is_some_and(|b| b.starts_with("cuda"));
    if gpu(v) && v["model_ms"].is_number() {
        let file = Path::new(name).file_name().unwrap().to_str().unwrap();
        let cells = number(v, "cells");
        let example_of = if cells == 77169.0 { "microcircuit.toml" } else { "network.toml" };
        let plan = example(example_of, file, Some(cells));
        let steps = number(v, "model_ms") / plan.network.dt_ms;
        let measured = number(v, "wall_ms") * 1e3 / steps;
        all.push(run(name, plan, v, Timed::Run, [steps, measured, number(v, "spikes") / steps]));
    } else if gpu(v) && v["step_us"].is_number() {
        let config = v["config"].as_str().unwrap().trim_start_matches("examples/");
        let spikes = number(v, "spikes_per_step");
        let own = |timed, what: &str, us: f64| {
            let plan = example(config, "", None);
            run(&format!("{name}{what}"), plan, v, timed, [number(v, "window_steps"), us, spikes])
        };
        all.push(own(Timed::Advance, "", number(v, "step_us")));
        let part = |names: &[&str]| -> f64 {
            let parts = v["parts"].as_array().unwrap();
            parts.iter().filter(|p| names.contains(&p["what"].as_str().unwrap())).map(|p| number(p, "us")).sum()
        };
        let behind = |what: &str| format!("waiting for the block's warps after {what}");
        let calendar = if config == "network.toml" { "calendar" } else { "" };
        let parts: [(&'static [&'static str], f64); 4] = [
            (&[MEETING], part(&["waiting for other blocks", "telling and logging", calendar_of_none(config)])),
            (&[UPDATE], part(&["update", &behind("their update")])),
            (&[DRIVES], part(&["drives"])),
            (&[DELIVERY, CALENDAR], part(&["delivery", &behind("delivery"), calendar])),
        ];
        all.extend(
            parts.into_iter().map(|(which, us)| own(Timed::Parts(which), &format!(": {}", which.join(" + ")), us)),
        );
    } else if let Some(records) = v.as_array() {
        for r in records.iter().filter(|r| gpu(r)) {
            let Some(family) = r["family"].as_str().and_then(bench::find) else { continue };
            let text = r["case"].as_str().unwrap();
            let case: Case = text.parse().unwrap();
            let plan = Plan::new(family.network(&case).unwrap().0).unwrap();
            let steps = number(r, "run_ms") / plan.network.dt_ms;
            let per = if r["pass"] == "simulate" { 1e3 / plan.network.dt_ms } else { 1.0 };
            let timed = if r["timed"].as_str().unwrap().starts_with("delivery") {
                Timed::Parts(&[DELIVERY, CALENDAR])
            } else {
                Timed::Advance
            };
            let name = format!("{name}: {text}");
            let measured = number(r, "median_ms") * 1e3 / per;
            all.push(run(&name, plan, r, timed, [steps, measured, number(r, "spikes_per_step")]));
        }
    }
}

/// The clock itself, in a profile of a network without a calendar.
fn calendar_of_none(config: &str) -> &'static str {
    if config == "network.toml" { "" } else { "calendar" }
}

/// Every run of a network on GPUs under bench-results, in order.
fn runs() -> Vec<Run> {
    let mut folders = vec![root().join("bench-results")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(e) if e == "json" => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let name = path.strip_prefix(root().join("bench-results")).unwrap().to_str().unwrap().to_owned();
        read_runs(&name, &serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(), &mut all);
    }
    assert!(all.len() > 40, "{} runs", all.len());
    all
}

/// Prints the constants of least error and what they make of every run:
/// `cargo test -p chronaxie --features spiking capacity::tests::fit -- --ignored --nocapture`.
#[test]
#[ignore = "prints, asserts nothing"]
fn fit() {
    let mut card = Card::find("h200").unwrap();
    let runs: Vec<Run> = runs().into_iter().filter(|r| !r.is_earlier(&card)).collect();
    let error = |card: &Card| -> f64 {
        let one = |r: &Run| {
            let weight = if matches!(r.timed, Timed::Parts(_)) { 0.3 } else { 1.0 };
            weight * (r.predicted(card) / r.measured).ln().powi(2)
        };
        runs.iter().map(one).sum()
    };
    let mut best = error(&card);
    let mut stride = 0.2f64;
    while stride > 0.002 {
        let before = best;
        for k in 0..Constants::NAMES.len() {
            for factor in [stride.exp(), (-stride).exp()] {
                let mut other = card.clone();
                *other.constants.of(k) *= factor;
                let found = error(&other);
                if found < best {
                    (card, best) = (other, found);
                }
            }
        }
        if before - best < 1e-4 * best {
            stride /= 2.0;
        }
    }
    for (k, name) in Constants::NAMES.iter().enumerate() {
        println!("{name} = {:.4}", card.constants.of(k));
    }
    for r in &runs {
        let predicted = r.predicted(&card);
        println!("{:7.3} {:9.3} {:9.3} {}", predicted / r.measured, r.measured, predicted, r.name);
    }
    println!("{best}");
}
