//! Training: heads, losses, optimizer steps, and the loop from a configuration to a folder with a model.
//!
//! ```no_run
//! use chronaxie::{config::Config, progress::Silent, train};
//!
//! let config = Config::read("examples/japanese-vowels.toml")?;
//! let report = train::run(&config, &train::RunOptions::new("runs/vowels"), &Silent)?;
//! println!("{:?} of the test set", report.test_accuracy);
//! for said in train::predict("runs/vowels".as_ref(), "some.ts".as_ref(), Default::default())? {
//!     println!("{}: {}", said.index, said.prediction);
//! }
//! # Ok::<(), chronaxie::Error>(())
//! ```
//!
//! On a GPU everything runs there: the layer, the head and its loss, the gradient's norm and the optimizer. The host
//! lays out batches and reads what was logged once an epoch.

pub mod adamw;
mod bank;
mod batches;
mod checkpoint;
mod cuda;
mod curvature;
pub mod head;
mod layer;
mod metrics;
mod network;
mod optimizer;
mod predict;
mod profile;
mod run;
mod settings;
mod staging;
mod tensors;

pub use layer::{Stage, Tie, TrainableLayer};
pub use predict::{Prediction, model_config, predict, predict_with, to_csv};
pub use profile::{StepReport, Work, profile};
pub use run::{Report, RunOptions, default_out, run};

/// A configuration with every default filled in, as a run would take it: the data are read, because some defaults of a
/// layer follow from them.
///
/// # Errors
/// `Config` and `Data` with file and line, for what a run would refuse.
pub fn resolved(config: &crate::config::Config) -> crate::Result<String> {
    let settings = settings::Settings::read(config)?;
    let data = batches::RunData::read(&settings)?;
    settings.layer(data.channels, data.timed, None)?;
    Ok(settings.config.resolved())
}

#[cfg(test)]
mod tests;
