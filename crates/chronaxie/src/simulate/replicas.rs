//! Several networks of one configuration side by side: other seeds, other values.

use crate::config::Config;
use crate::spiking::Network;
use crate::spiking::network::read::{Settings, read};
use crate::{Error, Result};

/// The most networks side by side: far more fill any device, and each has its own name, folder and files.
pub const MOST_REPLICAS: usize = 4096;
/// The longest name of a replica's folder, in bytes.
const MOST_NAME: usize = 120;

/// What runs: the network of a configuration, or several of it.
pub(super) struct Described {
    /// Of all together.
    pub settings: Settings,
    /// The configuration, resolved.
    pub text: String,
    /// Each of several; nothing for one network.
    pub replicas: Vec<One>,
}

/// One of several.
pub(super) struct One {
    /// What it overrides.
    pub set: Vec<String>,
    /// Its folder, in the run's.
    pub name: String,
    /// Its configuration, resolved.
    pub text: String,
    pub settings: Settings,
}

impl Described {
    /// Reads a configuration once by `read`, and, with what each overrides, once for each of several.
    ///
    /// # Errors
    /// As [`read`]; `Config` for those that cannot run side by side.
    pub fn new(config: &Config, replicas: &[Vec<String>], read: &dyn Fn(&Config) -> Result<Settings>) -> Result<Self> {
        let settings = read(config)?;
        let text = config.resolved();
        if replicas.is_empty() {
            return Ok(Self { settings, text, replicas: Vec::new() });
        }
        if replicas.len() > MOST_REPLICAS {
            let count = replicas.len();
            return Err(Error::config(format!("{count} networks side by side are more than {MOST_REPLICAS}")));
        }
        let mut all: Vec<One> = Vec::with_capacity(replicas.len());
        for set in replicas {
            let name = name_of(set, all.len());
            let key = |assignment: &String| assignment.split('=').next().unwrap_or("").trim().to_owned();
            let keys: Vec<String> = set.iter().map(key).collect();
            if let Some((_, key)) = keys.iter().enumerate().find(|(i, key)| keys[..*i].contains(key)) {
                return Err(Error::config(format!("replica {} sets {key} twice: {}", all.len(), set.join(", "))));
            }
            if let Some(k) = all.iter().position(|one| one.name == name) {
                return Err(Error::config(format!(
                    "replicas {k} and {} are both {name}; each needs another seed or other values",
                    all.len()
                )));
            }
            let mut own = config.clone();
            set.iter().try_for_each(|assignment| own.set(assignment))?;
            let settings = read(&own).map_err(|e| e.context(&name))?;
            all.push(One { set: set.clone(), name, text: own.resolved(), settings });
        }
        Ok(Self { settings: together(all.iter().map(|one| (one.name.as_str(), &one.settings)))?, text, replicas: all })
    }
}

/// Settings of several networks side by side.
fn together<'s>(all: impl Iterator<Item = (&'s str, &'s Settings)>) -> Result<Settings> {
    let all: Vec<_> = all.collect();
    let networks: Vec<Network> = all.iter().map(|(_, s)| s.network.clone()).collect();
    let network = Network::together(&networks)?;
    let first = all[0].1;
    let (mut recorders, mut notes) = (Vec::new(), Vec::<String>::new());
    for (k, (name, s)) in all.iter().enumerate() {
        let times = [
            ("duration", Some(s.duration_ms), Some(first.duration_ms)),
            ("discard", Some(s.discard_ms), Some(first.discard_ms)),
            ("checkpoint_every", s.checkpoint_every_ms, first.checkpoint_every_ms),
        ];
        if let Some((what, own, other)) = times.into_iter().find(|(_, own, other)| own != other) {
            let ms = |x: Option<f64>| x.map_or("none".to_owned(), |x| format!("{x} ms"));
            return Err(Error::config(format!(
                "{name} has {what} = {} and {} {}; networks side by side have the same",
                ms(own),
                all[0].0,
                ms(other)
            )));
        }
        if s.record != first.record {
            return Err(Error::config(format!(
                "{name} and {} differ in whether spikes are recorded; networks side by side do not",
                all[0].0
            )));
        }
        if s.hash != first.hash {
            return Err(Error::config(format!(
                "{name} and {} differ in whether spikes are hashed; networks side by side do not",
                all[0].0
            )));
        }
        recorders.extend(s.recorders.iter().cloned().map(|mut r| {
            r.population += network.replicas[k].population;
            r
        }));
        notes.extend(s.notes.iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
    }
    let (duration_ms, discard_ms) = (first.duration_ms, first.discard_ms);
    let (record, hash, checkpoint_every_ms) = (first.record, first.hash, first.checkpoint_every_ms);
    Ok(Settings { network, duration_ms, discard_ms, record, hash, recorders, checkpoint_every_ms, notes })
}

/// `seed-5`, `seed-5,drive.0.rate=8`: what number `k` overrides, as a folder is called.
fn name_of(set: &[String], k: usize) -> String {
    let word = |assignment: &String| match assignment.split_once('=') {
        Some(("simulation.seed", seed)) => format!("seed-{}", seed.trim()),
        _ => assignment.clone(),
    };
    let name = set.iter().map(word).collect::<Vec<_>>().join(",");
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_=.,+".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    // Too long for some file systems, or a folder that is there already.
    if name.is_empty() || name.len() > MOST_NAME || name.starts_with('.') { format!("replica-{k}") } else { name }
}

/// What each of several networks overrides: every combination of these seeds, if there are any, with these values, as of
/// `simulation.seed=5`. The last of them changes first.
pub fn grid(seeds: &[u64], values: &[(String, Vec<String>)]) -> Vec<Vec<String>> {
    let seeds = (!seeds.is_empty()).then(|| seeds.iter().map(|seed| format!("simulation.seed={seed}")).collect());
    let rest = values.iter().map(|(key, list)| list.iter().map(|v| format!("{key}={v}")).collect::<Vec<_>>());
    let mut all = vec![Vec::new()];
    for column in seeds.into_iter().chain(rest) {
        let with = |row: &Vec<String>| {
            let row = row.clone();
            column.iter().map(move |value| row.iter().chain([value]).cloned().collect())
        };
        all = all.iter().flat_map(with).collect::<Vec<Vec<String>>>();
    }
    all
}

/// So many seeds, from the configuration's on.
///
/// # Errors
/// As [`read`]; `Config` for none, for more than [`MOST_REPLICAS`], and for seeds of more than 64 bits.
pub fn seeds(config: &Config, count: u64) -> Result<Vec<u64>> {
    let first = read(config)?.network.seed;
    let last = (1..=MOST_REPLICAS as u64).contains(&count).then(|| first.checked_add(count - 1)).flatten();
    match last {
        Some(last) => Ok((first..=last).collect()),
        None => Err(Error::config(format!(
            "{count} replicas from seed {first} on: 1 to {MOST_REPLICAS}, with seeds of at most {}",
            u64::MAX
        ))),
    }
}

/// The network of a configuration as `read` reads it, or several of it, each with what it overrides ([`grid`]).
///
/// # Errors
/// As for a run of them.
pub fn described(
    config: &Config,
    replicas: &[Vec<String>],
    read: &dyn Fn(&Config) -> Result<Settings>,
) -> Result<Settings> {
    Described::new(config, replicas, read).map(|d| d.settings)
}
