//! What a saved model says of a file.

use super::batches::{self, Task};
use super::head::Loss;
use super::metrics::{best, evaluate};
use super::network::{Network, Parts};
use super::run::MODEL;
use super::settings::Settings;
use super::tensors::{ModelMeaning, SCHEMA, TensorFile};
use crate::config::Config;
use crate::data::csv::{CsvOptions, CsvTarget};
use crate::data::{self, Dataset, Standardizer};
use crate::op::Tensors;
use crate::progress::{Progress, Silent};
use crate::{Backend, Device, Dtype, Error, Result};
use std::io::BufRead as _;
use std::path::{Path, PathBuf};

/// Series a batch.
const BATCH: usize = 32;

/// What is said of one series.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// Its place in the file, from 0.
    pub index: usize,
    /// The class's name, or the number.
    pub prediction: String,
    /// The class's probability; none where a number is predicted, or squares were minimised.
    pub score: Option<f64>,
}

/// Runs the model of a run's folder (or a model file) on the series of `data`, in the order of the file.
///
/// Labels in the file are not needed; where there are any, they must be classes of the model.
///
/// # Errors
/// `Checkpoint`, where the model cannot be read; `Data` for the file; and what the backend refuses.
pub fn predict(model: &Path, data: &Path, backend: Backend) -> Result<Vec<Prediction>> {
    predict_with(model, data, backend, &[], &Silent)
}

/// As [`predict`], with values of the model's configuration overridden (`train.precision=fast`); what `backend` auto
/// took is said to `progress`.
///
/// # Errors
/// As [`predict`], and `Config` for an override that the configuration does not take.
pub fn predict_with(
    model: &Path,
    data: &Path,
    backend: Backend,
    overrides: &[String],
    progress: &dyn Progress,
) -> Result<Vec<Prediction>> {
    let (file_path, file, meaning) = open(model)?;
    let wrong = |what: String| Error::checkpoint(format!("{}: {what}", file_path.display()));
    let settings = settings(&file_path, &meaning, overrides)?;
    let task = match meaning.classes.clone() {
        Some(names) if names.is_empty() => return Err(wrong("it has no classes".to_owned())),
        Some(names) => Task::Classes(names),
        None => Task::Value,
    };
    let channels = [meaning.channels].into();
    let floats = |name: &str| -> Result<Vec<f32>> {
        let stored = file.get(&file_path, name, Dtype::F32, &channels)?;
        Ok(stored.values().data.iter().map(|&x| x as f32).collect())
    };
    let standardizer = Standardizer::new(floats("standardizer.mean")?, floats("standardizer.std")?)?;
    let series = read(data, &settings, &meaning, &standardizer)?;
    let prepared: Tensors =
        file.iter().filter_map(|(name, t)| Some((name.strip_prefix("prepared.")?.to_owned(), t.values()))).collect();
    let layer = settings.layer(meaning.channels, meaning.timed, Some(&prepared))?;
    let (device, why) = Device::open(backend)?;
    if let Some(why) = why {
        progress.log(&why);
    }
    let batch = BATCH.min(series.len()).max(1);
    let log_steps = series.len().div_ceil(batch).min(1024);
    let mut network = Network::new(
        &device,
        Parts {
            layer,
            task: task.clone(),
            pooling: settings.train.pooling,
            loss: settings.train.loss,
            channels: meaning.channels,
            batch,
            lengths: batches::padded_lengths(series.longest()),
            log_steps,
            optimizer: None,
        },
    )?;
    let slots = network.parameters().to_vec();
    for (name, slot) in &slots {
        let stored = file.get(&file_path, name, slot.dtype, &slot.shape)?;
        network.banks.write(slot, 0, &stored.bytes)?;
    }
    let examples = batches::Examples::unlabelled(series);
    let (_, logits) = evaluate(&mut network, &examples, log_steps)?;
    let all = logits.chunks(task.outputs()).enumerate().map(|(index, y)| said(index, y, &task));
    // Where squares were minimised the outputs are no logarithms of odds.
    let odds = settings.train.loss == Loss::CrossEntropy;
    Ok(all.map(|p| Prediction { score: p.score.filter(|_| odds), ..p }).collect())
}

/// The configuration of a saved model, with some values overridden and every default filled in.
///
/// # Errors
/// `Checkpoint`, where the model cannot be read, and `Config` for an override that the configuration does not take.
pub fn model_config(model: &Path, overrides: &[String]) -> Result<String> {
    let (file_path, _, meaning) = open(model)?;
    let settings = settings(&file_path, &meaning, overrides)?;
    settings.layer(meaning.channels, meaning.timed, None)?;
    Ok(settings.config.resolved())
}

/// The model of a run's folder, or a model file.
fn open(model: &Path) -> Result<(PathBuf, TensorFile, ModelMeaning)> {
    let path = if model.is_dir() { model.join(MODEL) } else { model.to_path_buf() };
    let (file, meaning): (TensorFile, ModelMeaning) = TensorFile::read(&path)?;
    if (meaning.kind.as_str(), meaning.schema) != ("model", SCHEMA) {
        return Err(Error::checkpoint(format!(
            "{}: it is a {} of schema {}, not a model of {SCHEMA}",
            path.display(),
            meaning.kind,
            meaning.schema
        )));
    }
    Ok((path, file, meaning))
}

fn settings(path: &Path, meaning: &ModelMeaning, overrides: &[String]) -> Result<Settings> {
    let mut config = Config::parse(&meaning.config, path)?;
    overrides.iter().try_for_each(|assignment| config.set(assignment))?;
    Settings::read(&config)
}

fn said(index: usize, y: &[f32], task: &Task) -> Prediction {
    match task {
        Task::Value => Prediction { index, prediction: y[0].to_string(), score: None },
        Task::Classes(names) => {
            let class = best(y);
            let sum: f64 = y.iter().map(|&x| (f64::from(x) - f64::from(y[class])).exp()).sum();
            Prediction { index, prediction: names[class].clone(), score: Some(1.0 / sum) }
        }
    }
}

/// Predictions as CSV with the header `index,prediction,score`.
pub fn to_csv(predictions: &[Prediction]) -> String {
    let mut text = "index,prediction,score\n".to_owned();
    for p in predictions {
        let quoted = if p.prediction.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", p.prediction.replace('"', "\"\""))
        } else {
            p.prediction.clone()
        };
        let score = p.score.map_or(String::new(), |s| format!("{s:.6}"));
        text.push_str(&format!("{},{quoted},{score}\n", p.index));
    }
    text
}

/// The series, standardised as the training set was.
fn read(path: &Path, settings: &Settings, meaning: &ModelMeaning, standardizer: &Standardizer) -> Result<Dataset> {
    let csv = without_missing_target(path, &settings.data.csv);
    let mut dataset = data::read(path, &csv, meaning.classes.as_deref())?;
    standardizer.apply(&mut dataset)?;
    if meaning.timed && dataset.series.iter().any(|s| s.elapsed.is_none()) {
        return Err(Error::data(path, None, "the file has no times, but the training set had"));
    }
    Ok(dataset)
}

/// The options without the target's column where the file's header does not name it.
fn without_missing_target(path: &Path, options: &CsvOptions) -> CsvOptions {
    let (CsvTarget::Class(column) | CsvTarget::Value(column)) = &options.target else { return options.clone() };
    let mut header = String::new();
    let read = std::fs::File::open(path).map(|f| std::io::BufReader::new(f).read_line(&mut header));
    let tab = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("tsv"));
    let delimiter = if tab { '\t' } else { options.delimiter.into() };
    let names = |h: &str| h.trim().split(delimiter).any(|n| n.trim().trim_matches('"') == column);
    match read {
        Ok(Ok(_)) if !names(&header) => options.clone().with_target(CsvTarget::None),
        _ => options.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_belong_to_the_largest_logit() {
        let task = Task::Classes(vec!["a".into(), "b, \"c\"".into()]);
        let p = said(3, &[0.0, 1.0], &task);
        assert!((p.score.unwrap() - 1.0 / (1.0 + (-1f64).exp())).abs() < 1e-12);
        assert_eq!(to_csv(&[p]), "index,prediction,score\n3,\"b, \"\"c\"\"\",0.731059\n");
        assert_eq!(to_csv(&[said(0, &[2.5], &Task::Value)]), "index,prediction,score\n0,2.5,\n");
    }
}
