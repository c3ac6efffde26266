//! What `bench` measures, as it is printed and written to JSON.

use serde::Serialize;
use std::collections::BTreeMap;

/// The version of these records; it grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// One pass of one case on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Record {
    /// The entry.
    pub family: String,
    /// The case, with its options.
    pub case: String,
    /// `forward`, `backward`, `forward_backward`, `step` or `simulate`.
    pub pass: String,
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// The product's name.
    pub device: String,
    /// The element type of the data.
    pub dtype: String,
    /// `exact` or `fast`.
    pub precision: String,
    /// The plan's variant.
    pub variant: String,
    /// `device` (between two events on the stream) or `call` (the wall clock around the call).
    pub clock: String,
    /// Median of the runs; of a simulation of each second of model time, as is all that a run moves.
    pub median_ms: f64,
    /// Their mean.
    pub mean_ms: f64,
    /// The fastest run.
    pub min_ms: f64,
    /// The slowest run.
    pub max_ms: f64,
    /// How many were timed.
    pub runs: usize,
    /// Bytes that the pass must move at the least.
    pub bytes: u64,
    /// Multiplications and additions at the least; where one product is made of three, all of them.
    pub flops: u64,
    /// Special functions at the least.
    pub special: u64,
    /// `bytes` over the median.
    pub gb_per_s: f64,
    /// `flops` over the median.
    pub tflop_per_s: f64,
    /// `special` over the median: sigmoids a second for an LTC.
    pub special_per_s: f64,
    /// The shortest time that the roofline allows over the median.
    pub roofline_fraction: f64,
    /// What bytes, arithmetic and special functions would take one after the other, each at its ceiling: the bound of a pass whose
    /// parts have to follow each other.
    pub floors_ms: f64,
    /// What sets that time: `memory`, `compute` or `special`.
    pub bound: String,
    /// Where the ceilings come from.
    pub ceilings: String,
    /// The caches at the start of a run: `flushed`, `exceeded` (the pass streams many times the cache) or `warm`.
    pub cache: String,
    /// Bytes of scratch.
    pub workspace_bytes: u64,
    /// Bytes of all tensors and scratch.
    pub peak_bytes: u64,
    /// Kernel launches a run; 0 on the CPU, and where a launch runs many steps and one of them is timed.
    pub launches: u64,
    /// The largest error of an output against the law, in its own metric; on `max_error_case`.
    pub max_error: Option<f64>,
    /// The case on which it was measured: this one, or a shorter one of the same kind where the law would take too long.
    pub max_error_case: String,
    /// [`SCHEMA`].
    pub schema: u32,
    /// The day, UTC.
    pub date: String,
    /// This library's version.
    pub version: String,
    /// The commit it was built from.
    pub commit: Option<String>,
    /// The CUDA version that the driver serves.
    pub driver: Option<String>,
    /// The version of NVRTC.
    pub nvrtc: Option<String>,
    /// Clock of the multiprocessors right after the timed runs.
    pub sm_clock_mhz: Option<u32>,
    /// Power draw right after the timed runs.
    pub power_w: Option<f64>,
    /// Of a spiking network.
    #[serde(flatten)]
    pub network: Option<NetworkRecord>,
}

/// What the record of a spiking network has besides.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NetworkRecord {
    /// Cells.
    pub cells: u64,
    /// Synapses.
    pub synapses: u64,
    /// A step, ms.
    pub dt_ms: f64,
    /// Names every random number of the network.
    pub seed: u64,
    /// What was timed: a whole step, or the parts of it.
    pub timed: String,
    /// Model time of a run, ms.
    pub run_ms: f64,
    /// Model time before the first of them, ms.
    pub discard_ms: f64,
    /// Making the network, ms, once.
    pub build_ms: f64,
    /// What fires in a step of the timed runs.
    pub spikes_per_step: f64,
    /// Synapses that are delivered in a step of the timed runs.
    pub events_per_step: f64,
    /// Spikes from the first step to the end of the first timed run; `spikes_sha256` is over them. Of simulations, whose runs
    /// have the same length on every machine.
    pub spikes: Option<u64>,
    /// Their SHA-256, as `simulate` has it.
    pub spikes_sha256: Option<String>,
    /// Mean rate in the first timed run, Hz.
    pub rate_hz: Option<f64>,
    /// Whether that is what the case is meant to have, where it is meant to have a rate.
    pub rate_in_range: Option<bool>,
    /// Of each population, Hz.
    pub rates_hz: BTreeMap<String, f64>,
    /// Wall time over model time, of the median.
    pub real_time_factor: Option<f64>,
    /// Networks side by side, of which the other figures are together.
    pub replicas: usize,
    /// Wall time over the model time of all of them.
    pub real_time_factor_per_replica: Option<f64>,
    /// Of a family of a step's parts on a GPU: all of them, by the kernel with clocks, as shares of a step that was run with them.
    pub parts: Vec<StepPart>,
}

/// A part of a step, or what is done with what it leaves.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepPart {
    /// `delivery`, `drives`, `update`, ...
    pub what: String,
    /// Microseconds a step: the median of the windows; of each the mean over threads.
    pub us: f64,
    /// Of all parts that follow each other; none for what is done beside them.
    pub share: Option<f64>,
    /// Bytes a step, by the plan's sizes and by what fired; none where it moves none.
    pub bytes: Option<f64>,
    /// What these bytes alone take at the bandwidth of a copy that touches as much memory; on a GPU those that no cache holds.
    pub memory_us: Option<f64>,
    /// On a GPU: what its instructions take that somebody counted.
    pub compute_us: Option<f64>,
    /// On a GPU: what trips take that follow each other.
    pub latency_us: Option<f64>,
    /// How many there are a step of what the part works on.
    pub count: f64,
    /// What those are: `synapses`, `draws`, `cells`, `spikes`.
    pub of: String,
    /// What binds it: `memory`, `additions`, `compute`, `latency`, `threads`, `files`, `host`, or that it is `not reckoned`.
    pub bound: String,
}

impl StepPart {
    /// The longest of what was reckoned of its time, us.
    pub fn ceiling_us(&self) -> Option<f64> {
        [self.memory_us, self.compute_us, self.latency_us].into_iter().flatten().reduce(f64::max)
    }
}

/// What does not change within one run of `bench`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The day, UTC.
    pub date: String,
    /// The commit that was built.
    pub commit: Option<String>,
    /// The CUDA version that the driver serves.
    pub driver: Option<String>,
    /// The version of NVRTC.
    pub nvrtc: Option<String>,
}

/// The day of a moment, as `YYYY-MM-DD` in UTC.
pub fn date_utc(time: std::time::SystemTime) -> String {
    let seconds = time.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Days to a civil date (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let z = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Median, smallest and largest of some times.
pub(crate) fn spread(mut ms: Vec<f64>) -> (f64, f64, f64) {
    ms.sort_by(f64::total_cmp);
    let n = ms.len();
    match n {
        0 => (f64::NAN, f64::NAN, f64::NAN),
        _ if n % 2 == 1 => (ms[n / 2], ms[0], ms[n - 1]),
        _ => ((ms[n / 2 - 1] + ms[n / 2]) / 2.0, ms[0], ms[n - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn days_are_civil_dates() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_799, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_219_200, "2026-11-21"),
            (4_107_542_399, "2100-02-28"),
        ] {
            assert_eq!(date_utc(UNIX_EPOCH + Duration::from_secs(seconds)), date);
        }
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
        assert!(spread(vec![]).0.is_nan());
    }
}
