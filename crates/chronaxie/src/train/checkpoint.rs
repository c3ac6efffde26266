//! Checkpoints: everything from which the rest of a run follows, bit for bit.
//!
//! Random numbers are counted, not stepped: the order of an epoch follows from the seed and the epoch's number, so a
//! checkpoint holds the parameters, the optimizer's state, how far the run is, and what the begun epoch has logged.

use super::bank::floats;
use super::metrics::EpochMetrics;
use super::network::Logged;
use super::run::Run;
use super::tensors::{CheckpointMeaning, SCHEMA, Stored, TensorFile};
use crate::{Dtype, Error, Result};

const FILE: &str = "checkpoint/state.safetensors";

/// Writes the state of `run`, with what the batches of a begun epoch have logged.
pub(super) fn write(run: &Run<'_>, logged: &Logged) -> Result<()> {
    let network = &run.network;
    let mut file = TensorFile::default();
    for (name, slot) in network.parameters() {
        file.insert(format!("parameter.{name}"), Stored::floats(&network.banks.read_f32(slot)?, slot.shape));
    }
    for (name, slot) in network.optimizer_state() {
        file.insert(name, Stored::floats(&network.banks.read_f32(&slot)?, slot.shape));
    }
    let step = network.banks.read_steps(&network.step_slot()?, 1)?;
    file.insert("step", Stored { dtype: Dtype::I32, shape: [1].into(), bytes: step });
    for (name, values) in [("loss", &logged.losses), ("grad_norm", &logged.norms), ("logits", &logged.logits)] {
        file.insert(format!("log.{name}"), Stored::floats(values, [values.len()]));
    }
    let meaning = CheckpointMeaning {
        kind: "checkpoint".to_owned(),
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config_sha256: run.config_sha256.clone(),
        data_sha256: data_sha256(run),
        epochs: run.history.len(),
        batches: run.batches,
        seconds: run.epoch_seconds,
        start: run.start.clone(),
    };
    file.write(&run.folder.file(FILE), &meaning)
}

fn data_sha256(run: &Run<'_>) -> Vec<(String, String)> {
    run.data.sha256.iter().map(|(what, sha)| ((*what).to_owned(), sha.clone())).collect()
}

/// Puts a run where its checkpoint left it. False where the folder holds no run yet.
pub(super) fn resume(run: &mut Run<'_>) -> Result<bool> {
    let path = run.folder.file(FILE);
    if !path.exists() {
        if run.folder.file("run.json").exists() || !run.folder.path().exists() {
            // Begun and stopped before the first epoch's end, or never begun: both start anew.
            return Ok(false);
        }
        if std::fs::read_dir(run.folder.path()).is_ok_and(|entries| entries.count() == 0) {
            return Ok(false);
        }
        return Err(Error::checkpoint(format!(
            "{} holds files but no run: there is no {FILE} to resume from",
            run.folder.path().display()
        )));
    }
    let (file, meaning): (TensorFile, CheckpointMeaning) = TensorFile::read(&path)?;
    let refuse = |what: &str| Err(Error::checkpoint(format!("{}: {what}", path.display())));
    if (meaning.kind.as_str(), meaning.schema) != ("checkpoint", SCHEMA) {
        return refuse(&format!("it is a {} of schema {}, not a checkpoint of {SCHEMA}", meaning.kind, meaning.schema));
    }
    if meaning.config_sha256 != run.config_sha256 {
        return refuse("it belongs to another configuration; compare config.toml beside it with --print-config");
    }
    if meaning.data_sha256 != data_sha256(run) {
        return refuse("the data files have changed since it was written");
    }
    let slots: Vec<_> = run.network.parameters().to_vec();
    for (name, slot) in &slots {
        let stored = file.get(&path, &format!("parameter.{name}"), slot.dtype, &slot.shape)?;
        run.network.banks.write(slot, 0, &stored.bytes)?;
    }
    for (name, slot) in run.network.optimizer_state() {
        let stored = file.get(&path, &name, slot.dtype, &slot.shape)?;
        run.network.banks.write(&slot, 0, &stored.bytes)?;
    }
    let step = file.get(&path, "step", Dtype::I32, &[1].into())?;
    let place = run.network.step_slot()?;
    run.network.banks.write(&place, 0, &step.bytes)?;
    let taken = step.values().data[0];
    if taken < 0.0 {
        return refuse(&format!("it says that {taken} steps were taken"));
    }
    run.network.set_taken(taken as u64);
    let log = |name: &str| file.find(&format!("log.{name}")).map_or_else(Vec::new, |t| floats(&t.bytes));
    let logged = Logged { losses: log("loss"), norms: log("grad_norm"), logits: log("logits") };
    if logged.losses.len() != meaning.batches || meaning.epochs > run.settings.train.epochs {
        return refuse(&format!("it says {} epochs and {} batches, but holds other", meaning.epochs, meaning.batches));
    }
    run.network.restore_logs(&logged)?;
    run.history = metrics(run, meaning.epochs)?;
    (run.batches, run.epoch_seconds, run.start) = (meaning.batches, meaning.seconds, meaning.start);
    Ok(true)
}

/// The first `epochs` lines of `metrics.jsonl`; later ones, of an epoch whose checkpoint was not written any more, go.
fn metrics(run: &Run<'_>, epochs: usize) -> Result<Vec<EpochMetrics>> {
    const NAME: &str = "metrics.jsonl";
    if epochs == 0 && !run.folder.file(NAME).exists() {
        return Ok(Vec::new());
    }
    let path = run.folder.file(NAME);
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, &e))?;
    let mut history: Vec<EpochMetrics> = Vec::with_capacity(epochs);
    let mut kept = String::new();
    for (i, line) in text.lines().take(epochs).enumerate() {
        let metrics = serde_json::from_str::<EpochMetrics>(line).ok().filter(|m| m.epoch == i + 1);
        let wrong =
            || Error::checkpoint(format!("{}:{}: it is not the line of epoch {}", path.display(), i + 1, i + 1));
        history.push(metrics.ok_or_else(wrong)?);
        kept.push_str(line);
        kept.push('\n');
    }
    if history.len() < epochs {
        return Err(Error::checkpoint(format!(
            "{} has {} lines, but the checkpoint was written after {epochs} epochs",
            path.display(),
            history.len()
        )));
    }
    if kept != text {
        run.folder.write(NAME, kept)?;
    }
    Ok(history)
}
