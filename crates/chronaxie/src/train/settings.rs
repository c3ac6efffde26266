//! What a training run's configuration says, as values.
//!
//! ```toml
//! schema = 1
//!
//! [data]
//! train = "data/train.ts"      # relative to the configuration's folder; .ts, .csv or .tsv
//! test = "data/test.ts"        # looked at once, after the last epoch
//! standardize = true           # each channel to mean 0 and deviation 1 over the training set
//!
//! [model]
//! layer = "ltc"
//! hidden = 64
//! wiring = "full"              # random, bernoulli, auto_ncp, ncp
//!
//! [train]
//! epochs = 40
//! batch_size = 32
//! optimizer = "adamw"          # or shampoo, soap, muon, kfac, each with a table of its own
//! learning_rate = 0.01
//! seed = 1
//! ```

use super::head::{Loss, Pooling};
use super::layer::{self, Context, TrainableLayer};
use super::optimizer::Optimizer;
use crate::Result;
use crate::config::{Config, Section};
use crate::data::csv::{CsvLayout, CsvOptions, CsvTarget};
use crate::op::{Precision, Tensors};
use std::path::{Path, PathBuf};

/// How the learning rate goes after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Schedule {
    /// Half a cosine down to 0.
    Cosine,
    Constant,
}

/// `[data]`.
#[derive(Debug, Clone)]
pub(super) struct DataSettings {
    pub(super) train: PathBuf,
    pub(super) test: Option<PathBuf>,
    pub(super) csv: CsvOptions,
    pub(super) standardize: bool,
}

/// `[train]`.
#[derive(Debug, Clone)]
pub(super) struct TrainSettings {
    pub(super) epochs: usize,
    pub(super) batch_size: usize,
    pub(super) learning_rate: f64,
    pub(super) schedule: Schedule,
    /// The fraction of all steps in which the rate rises to its full size.
    pub(super) warmup: f64,
    pub(super) optimizer: Optimizer,
    pub(super) seed: u64,
    pub(super) precision: Precision,
    pub(super) pooling: Pooling,
    /// What is minimised where classes are told apart; numbers have squares.
    pub(super) loss: Loss,
    /// The fraction of the training set that is held out.
    pub(super) validation: f64,
    /// The standard deviation of the noise that is added to each value of a batch before it is learned from.
    pub(super) noise: f64,
    /// Whether a batch holds series of similar lengths.
    pub(super) group_lengths: bool,
}

/// A configuration, read.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) data: DataSettings,
    pub(super) train: TrainSettings,
}

/// A number in a range, or a sentence with the line.
pub(super) fn ranged(section: &Section<'_>, key: &str, default: f64, low: f64, high: f64) -> Result<f64> {
    let x = section.get(key, default)?;
    if x >= low && x <= high {
        return Ok(x);
    }
    let range = if high.is_infinite() { format!("at least {low}") } else { format!("from {low} to {high}") };
    Err(section.refuse(key, &format!("must be {range}, but it is {x}")))
}

pub(super) fn counted(section: &Section<'_>, key: &str, default: usize) -> Result<usize> {
    match section.get(key, default)? {
        n if n >= 1 && n <= i32::MAX as usize => Ok(n),
        n => Err(section.refuse(key, &format!("must be from 1 to {}, but it is {n}", i32::MAX))),
    }
}

impl Settings {
    /// Reads all tables but `[model]`, which needs the data; [`layer`](Self::layer) reads that and refuses unknown keys.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let folder = config.path().parent().unwrap_or(Path::new("")).to_path_buf();
        let data = config.table("data")?;
        let train_path: PathBuf = data.require("train")?;
        let test: Option<PathBuf> = data.optional("test")?;
        let standardize = data.get("standardize", true)?;
        let csv = csv_options(&data)?;
        let data =
            DataSettings { train: folder.join(train_path), test: test.map(|t| folder.join(t)), csv, standardize };
        let t = config.table("train")?;
        let (optimizer, learning_rate) = Optimizer::read(&t)?;
        let train = TrainSettings {
            epochs: counted(&t, "epochs", 40)?,
            batch_size: counted(&t, "batch_size", 32)?,
            learning_rate,
            schedule: match t.choice("schedule", &["cosine", "constant"], "cosine")? {
                "constant" => Schedule::Constant,
                _ => Schedule::Cosine,
            },
            warmup: ranged(&t, "warmup", 0.05, 0.0, 1.0)?,
            optimizer,
            seed: t.get("seed", 1u64)?,
            precision: t.choice("precision", &["exact", "fast"], "exact")?.parse()?,
            pooling: t.choice("pooling", &["last", "mean", "every"], "last")?.parse()?,
            loss: t.choice("loss", &["cross_entropy", "mse"], "cross_entropy")?.parse()?,
            validation: ranged(&t, "validation", 0.0, 0.0, 0.9)?,
            noise: ranged(&t, "noise", 0.0, 0.0, 1e6)?,
            group_lengths: t.get("group_lengths", true)?,
        };
        Ok(Self { config: config.clone(), data, train })
    }
    /// Builds the layer for data of `inputs` channels, and refuses every key that nothing has asked for.
    pub(super) fn layer(
        &self,
        inputs: usize,
        timed: bool,
        prepared: Option<&Tensors>,
    ) -> Result<Box<dyn TrainableLayer>> {
        let context = Context { inputs, timed, precision: self.train.precision, seed: self.train.seed, prepared };
        let layer = layer::build(&self.config.table("model")?, context)?;
        self.config.finish()?;
        Ok(layer)
    }
    /// The learning rate of each of `steps` steps.
    pub(super) fn rates(&self, steps: usize) -> Vec<f32> {
        let t = &self.train;
        let warm = t.warmup * steps as f64;
        let rate = |step: usize| {
            let done = (step + 1) as f64;
            if done < warm {
                return t.learning_rate * done / warm;
            }
            let part = (done - warm) / (steps as f64 - warm).max(1.0);
            match t.schedule {
                Schedule::Constant => t.learning_rate,
                Schedule::Cosine => t.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * part).cos()),
            }
        };
        (0..steps).map(|s| rate(s) as f32).collect()
    }
}

/// `[data.csv]`: how CSV files are laid out.
fn csv_options(data: &Section<'_>) -> Result<CsvOptions> {
    let csv = data.table("csv")?;
    let layout = match csv.choice("layout", &["wide", "long"], "wide")? {
        "long" => CsvLayout::Long,
        _ => CsvLayout::Wide,
    };
    let mut options = CsvOptions::new(layout);
    let delimiter: String = csv.get("delimiter", ",".to_owned())?;
    match delimiter.as_bytes() {
        &[byte] if byte.is_ascii() => options = options.with_delimiter(byte),
        _ => return Err(csv.refuse("delimiter", &format!("must be one ASCII character, but it is {delimiter:?}"))),
    }
    let column: String = csv.get("target", "label".to_owned())?;
    options = options.with_target(match csv.choice("task", &["classes", "values"], "classes")? {
        "values" => CsvTarget::Value(column),
        _ => CsvTarget::Class(column),
    });
    if let Some(series) = csv.optional::<String>("series")? {
        options = options.with_series(series);
    }
    if let Some(time) = csv.optional::<String>("time")? {
        options = options.with_time(time);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings> {
        Settings::read(&Config::parse(&format!("schema = 1\n{text}"), "runs/a.toml")?)
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let s = settings("[data]\ntrain = \"x.ts\"\ntest = \"/data/y.ts\"\n").unwrap();
        assert_eq!(s.data.train, Path::new("runs/x.ts"));
        assert_eq!(s.data.test.as_deref(), Some(Path::new("/data/y.ts")));
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let text = "[data]\ntrain = \"x.ts\"\n[train]\nlearning_rate = 0.5\nwarmup = 0.1\n";
        let rates = settings(text).unwrap().rates(100);
        assert!((rates[0] - 0.05).abs() < 1e-7 && rates[9] == 0.5 && rates[99].abs() < 1e-7);
        assert!(rates[..10].is_sorted() && rates[9..].is_sorted_by(|a, b| a >= b));
        assert!((rates[54] - 0.25).abs() < 1e-3);
        let constant = settings(&format!("{text}schedule = \"constant\"\n")).unwrap().rates(20);
        assert!(constant[2..].iter().all(|&r| r == 0.5));
    }

    /// Each has the defaults of its class in Python; tables of those that are not chosen have no part.
    #[test]
    fn optimizers_have_their_own_defaults() {
        let text = |name: &str| {
            let more = "[train.shampoo]\ngrafting = \"sgd\"\n[train.muon]\nadamw_learning_rate = 0.01\n";
            format!("[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"{name}\"\n{more}")
        };
        let read = |name: &str| {
            let t = settings(&text(name)).unwrap().train;
            (t.optimizer, t.learning_rate)
        };
        assert!(matches!(read("adamw"), (Optimizer::AdamW(p), 0.01) if p.weight_decay == 0.01 && p.clip == 1.0));
        let Optimizer::Shampoo(p) = read("shampoo").0 else { panic!("another one") };
        assert_eq!(
            (p.grafting.name(), p.beta2, p.common.weight_decay, p.precondition_frequency),
            ("sgd", 0.999, 0.0, 10)
        );
        assert!(matches!(read("soap"), (Optimizer::Soap(p), 3e-3) if p.beta1 == 0.95 && p.beta2 == 0.95));
        let Optimizer::Kfac(p, seen) = read("kfac").0 else { panic!("another one") };
        assert_eq!((p.momentum, p.damping, p.mode.name(), p.ekfac, p.decay), (0.9, 1e-3, "exact", false, 0.95));
        assert_eq!((p.factor_frequency, p.inverse_frequency, p.kl_clip, p.common.weight_decay), (1, 10, 1e-2, 0.0));
        assert_eq!((seen.sharing.name(), seen.terms.name(), seen.every), ("expand", "batch", 1));
        assert!(read("kfac").1 == 0.1 && (p.adamw_rate - 1e-2).abs() < 1e-15);
        assert!(matches!(read("muon"), (Optimizer::Muon(p), 2e-2) if p.adamw_rate == 0.5 && p.beta2 == 0.95));
    }

    #[test]
    fn wrong_values_are_refused_with_their_line() {
        for (text, want) in [
            ("[data]\ntrain = \"x.ts\"\n[train]\nepochs = 0\n", "runs/a.toml:5: train.epochs must be from 1"),
            ("[data]\ntrain = \"x.ts\"\n[train]\nclip = -1\n", "train.clip must be at least 0, but it is -1"),
            ("[data]\ntrain = \"x.ts\"\n[train]\nwarmup = 1.5\n", "train.warmup must be from 0 to 1, but it is 1.5"),
            ("[data]\ntrain = \"x.ts\"\n[train]\npooling = \"first\"\n", "train.pooling"),
            ("[data]\ntest = \"x.ts\"\n", "train"),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"shampo\"\n",
                "runs/a.toml:5: train.optimizer must be one of \"adamw\", \"shampoo\", \"soap\", \"muon\", \"kfac\", but it is the string \"shampo\"; did you mean \"shampoo\"?",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"shampoo\"\n[train.shampoo]\ngrafting = \"adan\"\n",
                "runs/a.toml:7: train.shampoo.grafting must be one of \"adam\"",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\n[train.shampoo]\nexponent = \"a\"\n",
                "must be a fraction such as \"1/4\", but it is \"a\"",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\n[train.soap]\nmax_preconditioner_dim = 0\n",
                "train.soap.max_preconditioner_dim must be from 1",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"soap\"\nbeta2 = 1\n",
                "train.beta2 must be from 0 to 0.99",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"muon\"\n[train.muon]\nsteps = 101\n",
                "muon: steps = 101 is not 1 to 100",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"kfac\"\n[train.kfac]\ndamping = 0\n",
                "kfac: damping = 0 is not a positive number",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"kfac\"\n[train.kfac]\nekfac = true\ndamping_mode = \"factored\"\n",
                "kfac: ekfac = true needs damping_mode = \"exact\"",
            ),
            (
                "[data]\ntrain = \"x.ts\"\n[train]\noptimizer = \"kfac\"\n[train.kfac]\nsharing = \"both\"\n",
                "runs/a.toml:7: train.kfac.sharing must be one of \"expand\", \"reduce\"",
            ),
            ("[data]\ntrain = \"x.csv\"\n[data.csv]\ndelimiter = \"ab\"\n", "one ASCII character"),
        ] {
            let message = settings(text).unwrap_err().to_string();
            assert!(message.contains(want), "{text}: {message}");
        }
    }
}
