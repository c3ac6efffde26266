//! Sums modulo a number, on sequences far longer than those that were learned from: states that turn keep count, states that
//! decay do not. The formal-language tasks of the adaptive unitary state-space model (arXiv:2507.05238); modulus 2 is parity.
//!
//! `cargo run --release -p chronaxie --example formal_language [DIR] [KEY=VALUE ...]`
//!
//! Without DIR: a short form, to see that all of it works. With it: `examples/parity.toml` for each provider and seed, into DIR with
//! data, models, `results.json` and the picture `accuracy.svg`, `accuracy.png`. Keys: `modulus` (2), `seeds` (3), `longest` (of
//! the training set, 40), `train` and `test` (sequences), `octaves` (of lengths beyond that, 5), `providers` (joined by `+`),
//! `backend`; any other goes to the configuration, as in `train.epochs=10`.

use chronaxie::config::Config;
use chronaxie::progress::Silent;
use chronaxie::report::{Curve, Line, Panel, write_atomically};
use chronaxie::rng::Rng;
use chronaxie::train::{self, RunOptions};
use chronaxie::{Backend, Error, Result};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What was asked for.
struct Wish {
    folder: PathBuf,
    modulus: u64,
    seeds: u64,
    longest: usize,
    train: usize,
    test: usize,
    octaves: u32,
    providers: Vec<String>,
    backend: Backend,
    overrides: Vec<String>,
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| Error::config(format!("formal_language: {key} = `{value}` is not a number")))
}

impl Wish {
    fn read(arguments: &[String]) -> Result<Self> {
        let providers = |list: &str| list.split('+').map(str::to_owned).collect();
        let short = std::env::temp_dir().join(format!("chronaxie-formal-language-{}", std::process::id()));
        let mut wish = Self {
            folder: short,
            modulus: 2,
            seeds: 3,
            longest: 40,
            train: 4096,
            test: 256,
            octaves: 5,
            providers: providers("adaptive_unitary+mamba+mingru+decay"),
            backend: Backend::Cpu,
            overrides: Vec::new(),
        };
        let (folder, rest) = match arguments {
            [first, rest @ ..] if !first.contains('=') => (Some(PathBuf::from(first)), rest),
            all => (None, all),
        };
        match folder {
            Some(folder) => wish.folder = folder,
            None => {
                (wish.seeds, wish.longest, wish.train, wish.test, wish.octaves) = (1, 8, 64, 32, 2);
                wish.overrides.push("train.epochs=2".to_owned());
            }
        }
        for argument in rest {
            let (key, value) = argument
                .split_once('=')
                .ok_or_else(|| Error::config(format!("formal_language: `{argument}` is not KEY=VALUE")))?;
            match key {
                "modulus" => wish.modulus = number(key, value)?,
                "seeds" => wish.seeds = number(key, value)?,
                "longest" => wish.longest = number(key, value)?,
                "train" => wish.train = number(key, value)?,
                "test" => wish.test = number(key, value)?,
                "octaves" => wish.octaves = number(key, value)?,
                "providers" => wish.providers = providers(value),
                "backend" => wish.backend = value.parse()?,
                _ => wish.overrides.push(argument.clone()),
            }
        }
        if wish.modulus < 2 || wish.longest == 0 || wish.train == 0 || wish.test == 0 || wish.octaves > 16 {
            return Err(Error::config(format!(
                "formal_language: modulus = {}, longest = {}, train = {}, test = {}, octaves = {}: the first is at least 2, \
                 the others at least 1, and there are at most 16 octaves",
                wish.modulus, wish.longest, wish.train, wish.test, wish.octaves
            )));
        }
        Ok(wish)
    }
    /// Lengths of the test sets: the longest that was learned from, and its doubles.
    fn lengths(&self) -> Vec<usize> {
        (0..=self.octaves).map(|octave| self.longest << octave).collect()
    }
    fn test_file(&self, length: usize) -> PathBuf {
        self.folder.join(format!("data/test-{length}.ts"))
    }
}

/// Writes `count` sequences of tokens below `modulus`, a channel a token, with their sums as classes; gives the classes.
fn write_data(
    path: &Path,
    wish: &Wish,
    count: usize,
    mut length: impl FnMut(&mut Rng) -> usize,
    seed: u64,
) -> Result<Vec<u64>> {
    let (mut rng, k) = (Rng::new(seed, wish.modulus), wish.modulus);
    let classes = (0..k).map(|c| c.to_string()).collect::<Vec<_>>().join(" ");
    let mut text = format!(
        "@problemName Sum\n@timeStamps false\n@univariate false\n@dimensions {k}\n@equalLength false\n@classLabel true {classes}\n@data\n"
    );
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let tokens: Vec<u64> = (0..length(&mut rng)).map(|_| rng.below(k)).collect();
        let label = tokens.iter().sum::<u64>() % k;
        for channel in 0..k {
            let ones: Vec<&str> = tokens.iter().map(|&t| if t == channel { "1" } else { "0" }).collect();
            let _ = write!(text, "{}:", ones.join(","));
        }
        let _ = writeln!(text, "{label}");
        labels.push(label);
    }
    write_atomically(path, text.as_bytes())?;
    Ok(labels)
}

/// Accuracies at each length after training with one provider and seed.
fn run(wish: &Wish, provider: &str, seed: u64, labels: &[Vec<u64>]) -> Result<Vec<f64>> {
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/parity.toml");
    let mut config = Config::read(config)?;
    let own = [
        format!("data.train={}", toml_string(&wish.folder.join("data/train.ts"))),
        format!("data.test={}", toml_string(&wish.test_file(wish.longest))),
        format!("model.provider={provider}"),
        format!("train.seed={seed}"),
    ];
    // The others have one state a channel.
    let several = ["adaptive_unitary", "adaptive_polar", "mamba", "s4d"].contains(&provider);
    let states = several.then(|| "model.states=8".to_owned());
    own.iter().chain(&states).chain(&wish.overrides).try_for_each(|assignment| config.set(assignment))?;
    let out = wish.folder.join(format!("{provider}-{seed}"));
    let report = train::run(&config, &RunOptions::new(&out).backend(wish.backend), &Silent)?;
    let mut accuracies = Vec::new();
    for (length, labels) in wish.lengths().into_iter().zip(labels) {
        let said = train::predict(&out, &wish.test_file(length), wish.backend)?;
        let right = said.iter().zip(labels).filter(|(said, label)| said.prediction == label.to_string()).count();
        accuracies.push(right as f64 / labels.len() as f64);
    }
    let shown: Vec<String> = accuracies.iter().map(|a| format!("{:5.1}", 100.0 * a)).collect();
    println!("{provider:>16} seed {seed}: {} %   ({:.1} s)", shown.join(" "), report.train_seconds);
    Ok(accuracies)
}

/// A length up to `longest`, most of them short: what a few tokens teach is refined by more of them.
fn short(rng: &mut Rng, longest: usize) -> usize {
    1 + ((longest as f64 * rng.uniform().powi(3)) as usize).min(longest - 1)
}

fn toml_string(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    format!("{:?}", path.display().to_string())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wish = Wish::read(&arguments)?;
    let data = wish.folder.join("data");
    std::fs::create_dir_all(&data).map_err(|e| Error::io("make", &data, &e))?;
    let longest = wish.longest;
    let _ = write_data(&data.join("train.ts"), &wish, wish.train, |rng| short(rng, longest), 1)?;
    let lengths = wish.lengths();
    let labels = lengths
        .iter()
        .map(|&length| write_data(&wish.test_file(length), &wish, wish.test, |_| length, 2 + length as u64))
        .collect::<Result<Vec<_>>>()?;
    println!("sums modulo {}: accuracy at {lengths:?} tokens, learned from up to {}", wish.modulus, wish.longest);

    let (mut lines, mut results) = (Vec::new(), Vec::new());
    for provider in &wish.providers {
        let mut mean = vec![0.0; lengths.len()];
        for seed in 1..=wish.seeds {
            let accuracies = run(&wish, provider, seed, &labels)?;
            mean.iter_mut().zip(&accuracies).for_each(|(m, a)| *m += a / wish.seeds as f64);
            let list: Vec<String> = accuracies.iter().map(f64::to_string).collect();
            let accuracies = list.join(", ");
            results.push(format!("{{\"provider\": \"{provider}\", \"seed\": {seed}, \"accuracy\": [{accuracies}]}}"));
        }
        let points = (0..).map(f64::from).zip(mean).collect();
        lines.push(Line { name: provider.clone(), points });
    }
    let picture = Curve {
        title: format!("Sums modulo {}, learned from sequences of up to {} tokens", wish.modulus, wish.longest),
        x_label: format!("length, in doublings of {}", wish.longest),
        panels: vec![Panel {
            label: format!("accuracy, mean of {} seeds", wish.seeds),
            lines,
            bounds: (Some(0.0), Some(1.0)),
            percent: true,
        }],
    };
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    let json = format!(
        "{{\"modulus\": {}, \"lengths\": [{}], \"runs\": [\n  {}\n]}}\n",
        wish.modulus,
        lengths.join(", "),
        results.join(",\n  ")
    );
    write_atomically(&wish.folder.join("results.json"), json.as_bytes())?;
    write_atomically(&wish.folder.join("accuracy.svg"), picture.svg()?.as_bytes())?;
    write_atomically(&wish.folder.join("accuracy.png"), &picture.png()?)?;
    if arguments.is_empty() {
        std::fs::remove_dir_all(&wish.folder).map_err(|e| Error::io("remove", &wish.folder, &e))?;
    } else {
        println!("{}", wish.folder.join("accuracy.svg").display());
    }
    Ok(())
}
