//! Readers of time-series files, and what a training loop needs of them: padded batches and standardisation.
//!
//! [`read`] picks the reader by the file's name: [`uea`] for `.ts`, [`csv`] for `.csv` and `.tsv`. Both stream the
//! file, refuse what a model could not learn from (missing, infinite or unreadable values, ragged cases, unknown
//! labels) in one sentence with the file and the line, and never panic on what a file holds.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use chronaxie_runtime::{Error, Result};

mod batch;
pub mod csv;
#[cfg(feature = "spiking")]
pub mod npz;
#[cfg(feature = "spiking")]
pub mod parquet;
mod source;
pub mod uea;

pub use batch::{Batch, Standardizer, pad};
pub use source::sha256_hex;

/// Recordings with what is to be learned from them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Dataset {
    /// The file that was read.
    pub path: PathBuf,
    /// SHA-256 of the file's bytes, in lower-case hexadecimal.
    pub sha256: String,
    /// One recording each, in the order of the file; at least one.
    pub series: Vec<Series>,
    /// Values a time step, `D`; at least 1.
    pub channels: usize,
    /// What is to be predicted of each series.
    pub target: Target,
}

/// One recording: `[T, D]`, finite.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Series {
    /// `[T, D]`, row-major: the values of a time step lie together.
    pub values: Vec<f32>,
    /// Time steps, `T`.
    pub len: usize,
    /// `[T]`: the time since the previous step, positive, in the file's unit; `None` where the file has no times. The
    /// first step has no previous one and takes the gap that follows it, or 1 in a series of a single step.
    pub elapsed: Option<Vec<f32>>,
}

/// What is to be predicted of each series of a [`Dataset`], in the same order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Target {
    /// Classification.
    Classes {
        /// The classes' names.
        names: Vec<String>,
        /// One index into `names` a series.
        labels: Vec<u32>,
    },
    /// Regression: one finite value a series.
    Values(Vec<f32>),
    /// The file says nothing to predict.
    None,
}

impl Dataset {
    /// How many series there are.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether there is no series; no reader returns such a dataset.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The time steps of the longest series.
    pub fn longest(&self) -> usize {
        self.series.iter().map(|series| series.len).max().unwrap_or(0)
    }
}

impl Series {
    /// A series of `values`, `[T, D]` row-major with `channels` = D, without times.
    ///
    /// # Errors
    /// `Shape`, where `channels` is 0 or does not divide the number of values.
    pub fn new(values: Vec<f32>, channels: usize) -> Result<Self> {
        if channels == 0 || !values.len().is_multiple_of(channels) {
            return Err(Error::shape(format!(
                "series: {} values do not make time steps of {channels} channels",
                values.len()
            )));
        }
        let len = values.len() / channels;
        Ok(Self { values, len, elapsed: None })
    }
}

/// Reads `path` as its name says: `.ts` by [`uea`], `.csv` and `.tsv` by [`csv`] with `options` (of which the delimiter
/// is a tab for `.tsv`). `classes` are those that a model was trained on; see [`uea::read_with_classes`].
///
/// # Errors
/// `Data` where the name ends otherwise; otherwise as the reader.
pub fn read(path: impl AsRef<Path>, options: &csv::CsvOptions, classes: Option<&[String]>) -> Result<Dataset> {
    let path = path.as_ref();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("").to_ascii_lowercase();
    match extension.as_str() {
        "ts" => uea::read_file(path, classes),
        "csv" => csv::read_file(path, options, classes),
        "tsv" => csv::read_file(path, &options.clone().with_delimiter(b'\t'), classes),
        _ => Err(Error::data(path, None, "the name ends in neither .ts (UEA archive) nor .csv or .tsv")),
    }
}

/// The indices of class names.
struct Classes {
    names: Vec<String>,
    index: HashMap<String, u32>,
    /// Who lists them, as in "is not among the classes of {listed_by}".
    listed_by: &'static str,
}

impl Classes {
    /// Refuses a name that comes twice.
    fn new(names: Vec<String>, listed_by: &'static str) -> Result<Self, String> {
        let mut index = HashMap::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            if index.insert(name.clone(), at as u32).is_some() {
                return Err(format!("{listed_by} lists the class {} twice", crate::config::quote(name)));
            }
        }
        Ok(Self { names, index, listed_by })
    }

    /// The index of `name`, or the sentence that refuses it.
    fn label(&self, name: &str) -> Result<u32, String> {
        self.index.get(name).copied().ok_or_else(|| {
            const SHOWN: usize = 20;
            let shown: Vec<&str> = self.names.iter().take(SHOWN).map(String::as_str).collect();
            let more = match self.names.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "class label {} is not among the classes of {}: {}{more}",
                crate::config::quote(name),
                self.listed_by,
                shown.join(", ")
            )
        })
    }
}

/// A finite `f32`, or what is wrong with `token`: the sentence goes on after the place of the value.
fn number(token: &str) -> Result<f32, String> {
    let token = token.trim();
    match token.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(value) if value.is_nan() => Err(missing(token)),
        Ok(_) => Err(format!("{} is infinite, or beyond the range of a 32-bit number", crate::config::quote(token))),
        Err(_) if token.is_empty() || token == "?" => Err(missing(token)),
        Err(_) => Err(format!("{} is not a number", crate::config::quote(token))),
    }
}

fn missing(token: &str) -> String {
    format!("the value is missing ({}); fill it in or leave the series out", crate::config::quote(token))
}

/// Turns the times of a series' steps, which must rise, into the time since the previous step.
#[derive(Default)]
struct Clock {
    last: Option<f64>,
    elapsed: Vec<f32>,
}

impl Clock {
    /// The next step is at `time`, which is finite.
    fn tick(&mut self, time: f64) -> Result<(), String> {
        let step = match self.last {
            None => 1.0,
            Some(last) => {
                let step = (time - last) as f32;
                if !(step > 0.0 && step.is_finite()) {
                    return Err(format!("its time {time} does not come after {last} by a 32-bit number"));
                }
                step
            }
        };
        if let [first] = self.elapsed.as_mut_slice() {
            *first = step;
        }
        self.elapsed.push(step);
        self.last = Some(time);
        Ok(())
    }

    /// `[T]`, as [`Series::elapsed`].
    fn into_elapsed(mut self) -> Vec<f32> {
        self.elapsed.shrink_to_fit();
        self.elapsed
    }
}

/// A finite time, or what is wrong with `token`.
fn time(token: &str) -> Result<f64, String> {
    let token = token.trim();
    match token.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("the time stamp {} is not a finite number (dates are not read)", crate::config::quote(token))),
    }
}
