//! One training run, from a configuration to a folder.

use super::batches::{self, Examples, RunData, Task};
use super::checkpoint;
use super::curvature;
use super::head::Loss;
use super::layer::TrainableLayer;
use super::metrics::{EpochMetrics, Score, check_finite, curve, evaluate, score};
use super::network::{Network, Parts};
use super::settings::Settings;
use super::tensors::{ModelMeaning, SCHEMA, Stored, TensorFile};
use crate::bench::Provenance;
use crate::config::Config;
use crate::data::sha256_hex;
use crate::progress::Progress;
use crate::report::{RunFolder, RunRecord, RunStatus, utc};
use crate::{Backend, Device, Error, ErrorKind, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Where and how to run a configuration.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// The folder that the run is written to: new or empty, or one to resume in.
    pub out: PathBuf,
    /// What to run on.
    pub backend: Backend,
    /// Whether to go on from the checkpoint in `out`.
    pub resume: bool,
    /// The program's arguments, for `run.json`.
    pub arguments: Vec<String>,
    /// What is known of the build, for `run.json`.
    pub provenance: Provenance,
}

impl RunOptions {
    /// A new run into `out`, on a GPU if there is one.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        Self {
            out: out.into(),
            backend: Backend::Auto,
            resume: false,
            arguments: Vec::new(),
            provenance: Provenance::default(),
        }
    }
    /// On this backend.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }
    /// From the checkpoint in the folder, where there is one.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }
    /// With these arguments in `run.json`.
    #[must_use]
    pub fn arguments(mut self, arguments: Vec<String>) -> Self {
        self.arguments = arguments;
        self
    }
    /// With this provenance in `run.json`.
    #[must_use]
    pub fn provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = provenance;
        self
    }
}

/// What a run came to; `Serialize` gives the JSON object that `train` ends with.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Of the test set, where classes are predicted and there is a test set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// Of the test set, where numbers are predicted and there is a test set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_mse: Option<f64>,
    /// Of the test set, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_loss: Option<f64>,
    /// Of the held-out series after the last epoch, where series were held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Likewise, where classes are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// Over the last epoch.
    pub train_loss: f64,
    /// Over the last epoch, where classes are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Seconds in training steps, all parts of a resumed run together; evaluation and files are not in it.
    pub train_seconds: f64,
    /// Series trained on, in all epochs, a second of `train_seconds`.
    pub samples_per_second: f64,
    /// `cpu` or `cuda:N`.
    pub backend: String,
    /// Epochs trained.
    pub epochs: usize,
    /// The seed.
    pub seed: u64,
    /// How many numbers were trained.
    pub parameters: usize,
    /// The folder of the run.
    pub out: PathBuf,
}

/// The state of a run beside the network.
pub(super) struct Run<'a> {
    pub(super) settings: &'a Settings,
    pub(super) data: &'a RunData,
    pub(super) network: Network,
    pub(super) folder: &'a RunFolder,
    pub(super) config_sha256: String,
    pub(super) history: Vec<EpochMetrics>,
    /// Batches of the epoch after `history` that are done.
    pub(super) batches: usize,
    /// Seconds of training in those batches.
    pub(super) epoch_seconds: f64,
    pub(super) start: String,
}

/// Trains as `config` says, and leaves a folder with the model, metrics, pictures and the record of the run.
///
/// Nothing is written before the configuration and the data have been read and everything is planned. A checkpoint is
/// written after each epoch, and when `progress` says that the user asked to stop; a resumed run ends with the same
/// bits as one that was never stopped. The test set is looked at once, at the end.
///
/// # Errors
/// `Config` and `Data` with file and line, `Checkpoint` for a folder that cannot be resumed, `Value` where training
/// diverged, `Interrupted` where the user stopped it, and what the backend refuses.
pub fn run(config: &Config, options: &RunOptions, progress: &dyn Progress) -> Result<Report> {
    let settings = Settings::read(config)?;
    let folder = RunFolder::open(&options.out, options.resume)?;
    let data = RunData::read(&settings)?;
    let layer = settings.layer(data.channels, data.timed, None)?;
    let (device, why) = Device::open(options.backend)?;
    if let Device::Cuda(d) = &device {
        d.require_compiler()?;
    }
    if let Some(why) = why {
        progress.log(&why);
    }
    let network = network(&settings, &data, layer, &device)?;
    if let Some(kfac) = &network.kfac {
        progress.log(&curvature::said(kfac, network.parameters()));
    }
    let config_text = settings.config.resolved();
    let mut run = Run {
        settings: &settings,
        data: &data,
        network,
        folder: &folder,
        config_sha256: sha256_hex(config_text.as_bytes()),
        history: Vec::new(),
        batches: 0,
        epoch_seconds: 0.0,
        start: utc(SystemTime::now()),
    };
    run.network.initialise(settings.train.seed)?;
    if options.resume && checkpoint::resume(&mut run)? {
        progress.log(&format!("resumed after {} epochs and {} batches", run.history.len(), run.batches));
    }

    folder.create()?;
    folder.write("config.toml", &config_text)?;
    let mut record = RunRecord::new("train", options.arguments.clone(), &options.provenance, &device);
    record.config_sha256 = run.config_sha256.clone();
    record.data_sha256 = data.sha256.iter().map(|(what, sha)| ((*what).to_owned(), sha.clone())).collect();
    record.seed = settings.train.seed;
    record.start = run.start.clone();
    folder.write("run.json", record.to_json()?)?;

    let result = run.all(progress).and_then(|()| run.finish(&config_text, &device));
    record.end = Some(utc(SystemTime::now()));
    match &result {
        Ok(report) => {
            record.status = RunStatus::Finished;
            record.result = serde_json::to_value(report).ok();
        }
        Err(e) => {
            let stopped = e.kind() == &ErrorKind::Interrupted;
            record.status = if stopped { RunStatus::Interrupted } else { RunStatus::Failed };
            record.error = Some(e.to_string());
        }
    }
    folder.write("run.json", record.to_json()?)?;
    result
}

/// The network of a run, planned for every length that its data has.
pub(super) fn network(
    settings: &Settings,
    data: &RunData,
    layer: Box<dyn TrainableLayer>,
    device: &Device,
) -> Result<Network> {
    let t = &settings.train;
    let batch = t.batch_size.min(data.train.len());
    Network::new(
        device,
        Parts {
            layer,
            task: data.task.clone(),
            pooling: t.pooling,
            loss: t.loss,
            channels: data.channels,
            batch,
            lengths: batches::padded_lengths(data.longest()),
            log_steps: data.train.len().div_ceil(batch),
            optimizer: Some(t.optimizer.clone()),
        },
    )
}

impl Run<'_> {
    /// The batches of an epoch, from 0.
    fn order(&self, epoch: usize) -> Vec<Vec<usize>> {
        let t = &self.settings.train;
        batches::order(&self.data.train, self.network.batch(), t.group_lengths, t.seed, epoch)
    }

    /// All epochs that are not done yet.
    fn all(&mut self, progress: &dyn Progress) -> Result<()> {
        let epochs = self.settings.train.epochs;
        let per_epoch = self.data.train.len().div_ceil(self.network.batch());
        let rates = self.settings.rates(epochs * per_epoch);
        progress.start("train", (epochs * per_epoch) as u64);
        while self.history.len() < epochs {
            let epoch = self.history.len();
            self.epoch(epoch, &rates[epoch * per_epoch..][..per_epoch], progress)?;
        }
        progress.finish();
        Ok(())
    }

    fn epoch(&mut self, epoch: usize, rates: &[f32], progress: &dyn Progress) -> Result<()> {
        let (epochs, data) = (self.settings.train.epochs, self.data);
        let order = self.order(epoch);
        self.network.set_rates(rates)?;
        let since = Instant::now();
        for (i, batch) in order.iter().enumerate().skip(self.batches) {
            if progress.interrupted() {
                self.batches = i;
                let logged = self.network.logged(i)?;
                self.epoch_seconds += since.elapsed().as_secs_f64();
                checkpoint::write(self, &logged)?;
                return Err(Error::new(
                    ErrorKind::Interrupted,
                    format!(
                        "train: interrupted in epoch {} of {epochs} after {i} of {} batches; go on with --resume --out {}",
                        epoch + 1,
                        order.len(),
                        self.folder.path().display()
                    ),
                ));
            }
            let done = (epoch * order.len() + i) as u64;
            progress.advance(done, &format!("epoch {} of {epochs}", epoch + 1));
            let noise = batches::noise(self.settings.train.noise, self.settings.train.seed, done as usize);
            self.network.learn(i, &data.train, batch, noise)?;
        }
        let logged = self.network.logged(order.len())?;
        let seconds = self.epoch_seconds + since.elapsed().as_secs_f64();
        progress.advance(((epoch + 1) * order.len()) as u64, &format!("epoch {} of {epochs}", epoch + 1));
        check_finite(&logged, epoch)?;
        let train = score(&logged, &order, &data.train, &self.network);
        let validation = self.judge(&data.validation)?;
        let metrics = EpochMetrics {
            epoch: epoch + 1,
            train_loss: train.loss,
            train_accuracy: train.accuracy,
            validation_loss: validation.map(|s| s.loss),
            validation_accuracy: validation.and_then(|s| s.accuracy),
            learning_rate: rates.last().copied().unwrap_or(0.0).into(),
            grad_norm: logged.norms.iter().map(|&n| f64::from(n)).sum::<f64>() / logged.norms.len().max(1) as f64,
            seconds,
        };
        progress.log(&line(&metrics, epochs));
        let text = serde_json::to_string(&metrics).map_err(|e| Error::value(format!("metrics.jsonl: {e}")))?;
        self.folder.append_line("metrics.jsonl", &text)?;
        self.history.push(metrics);
        (self.batches, self.epoch_seconds) = (0, 0.0);
        checkpoint::write(self, &Default::default())
    }

    /// The score of a set, or none where it has no series.
    fn judge(&mut self, examples: &Examples) -> Result<Option<Score>> {
        if examples.len() == 0 {
            return Ok(None);
        }
        let steps = self.data.train.len().div_ceil(self.network.batch());
        Ok(Some(evaluate(&mut self.network, examples, steps)?.0))
    }

    /// The test set, the model, the pictures.
    fn finish(&mut self, config: &str, device: &Device) -> Result<Report> {
        let data = self.data;
        let test = data.test.as_ref().map(|t| self.judge(t)).transpose()?.flatten();
        let (model, meaning) = self.model(config)?;
        model.write(&self.folder.file(MODEL), &meaning)?;
        let classes = matches!(data.task, Task::Classes(_));
        let t = &self.settings.train;
        let title = format!("{}, seed {}", self.network.layer.name(), t.seed);
        let squares = !classes || t.loss == Loss::Mse;
        let picture = curve(title, &self.history, classes, squares);
        self.folder.write("learning_curve.svg", picture.svg()?)?;
        self.folder.write("learning_curve.png", picture.png()?)?;
        let last = self.history.last().ok_or_else(|| Error::config("train: no epoch was trained"))?;
        let train_seconds: f64 = self.history.iter().map(|m| m.seconds).sum();
        Ok(Report {
            test_accuracy: test.and_then(|s| s.accuracy),
            test_mse: test.filter(|_| !classes).map(|s| s.loss),
            test_loss: test.map(|s| s.loss),
            validation_loss: last.validation_loss,
            validation_accuracy: last.validation_accuracy,
            train_loss: last.train_loss,
            train_accuracy: last.train_accuracy,
            train_seconds,
            samples_per_second: (data.train.len() * t.epochs) as f64 / train_seconds.max(1e-9),
            backend: device.place().to_string(),
            epochs: t.epochs,
            seed: t.seed,
            parameters: self.network.parameter_count(),
            out: self.folder.path().to_path_buf(),
        })
    }

    /// The model as a file, with all that prediction needs.
    fn model(&self, config: &str) -> Result<(TensorFile, ModelMeaning)> {
        let mut file = TensorFile::default();
        for (name, slot) in self.network.parameters() {
            file.insert(name, Stored::floats(&self.network.banks.read_f32(slot)?, slot.shape));
        }
        for (name, values) in self.network.layer.prepared().iter() {
            file.insert(format!("prepared.{name}"), Stored::indices(values));
        }
        let standardizer = &self.data.standardizer;
        let channels = self.data.channels;
        file.insert("standardizer.mean", Stored::floats(standardizer.mean(), [channels]));
        file.insert("standardizer.std", Stored::floats(standardizer.std(), [channels]));
        let classes = match &self.data.task {
            Task::Classes(names) => Some(names.clone()),
            Task::Value => None,
        };
        let meaning = ModelMeaning {
            kind: "model".to_owned(),
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.to_owned(),
            classes,
            channels,
            timed: self.data.timed,
        };
        Ok((file, meaning))
    }
}

/// The model's file in a run's folder.
pub(super) const MODEL: &str = "model.safetensors";

/// An epoch in a line.
fn line(m: &EpochMetrics, epochs: usize) -> String {
    let percent = |a: Option<f64>| a.map_or(String::new(), |a| format!(" accuracy {:.2} %", 100.0 * a));
    let width = epochs.to_string().len();
    let validation = match m.validation_loss {
        Some(loss) => format!("  validation loss {loss:.4}{}", percent(m.validation_accuracy)),
        None => String::new(),
    };
    let train = format!("loss {:.4}{}", m.train_loss, percent(m.train_accuracy));
    format!("epoch {:width$}/{epochs}  {train}{validation}  {:.2} s", m.epoch, m.seconds)
}

/// The default folder of a run: `runs/<configuration's name>-<moment>`.
pub fn default_out(config: &Path) -> PathBuf {
    let name = config.file_stem().map_or_else(|| "train".into(), |n| n.to_string_lossy().into_owned());
    let moment: String = utc(SystemTime::now()).chars().filter(char::is_ascii_alphanumeric).collect();
    Path::new("runs").join(format!("{name}-{moment}"))
}
