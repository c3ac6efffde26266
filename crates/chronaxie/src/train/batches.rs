//! Which series go into which batch, and how they lie there.

use super::settings::Settings;
use super::staging::Noise;
use crate::data::{self, Dataset, Series, Standardizer, Target};
use crate::rng::Rng;
use crate::{Error, Result};
use std::path::Path;

/// Streams of random numbers of one run's seed; each epoch's order and each step's noise adds its number.
const HELD_OUT: u64 = 0x6865_6c64;
const ORDER: u64 = 0x6f72_6465_7200_0000;
const NOISE: u64 = 0x6e6f_6973_6500_0000;
/// Lengths that batches are padded to: each costs a plan, and padding costs time.
const MOST_LENGTHS: usize = 16;
/// Batches whose series are sorted by length together.
const GROUP: usize = 16;

/// What a model predicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// One of these classes.
    Classes(Vec<String>),
    /// One number.
    Value,
}

impl Task {
    /// C.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Classes(names) => names.len(),
            Self::Value => 1,
        }
    }
}

/// Series with what is to be learned of each.
#[derive(Debug, Clone)]
pub(super) struct Examples {
    pub(super) series: Vec<Series>,
    /// The class's index, or 0.
    pub(super) labels: Vec<i32>,
    /// The value, or 0.
    pub(super) values: Vec<f32>,
}

impl Examples {
    fn new(dataset: Dataset) -> Self {
        let n = dataset.series.len();
        let (labels, values) = match dataset.target {
            Target::Classes { labels, .. } => (labels.iter().map(|&l| l as i32).collect(), vec![0.0; n]),
            Target::Values(values) => (vec![0; n], values),
            _ => (vec![0; n], vec![0.0; n]),
        };
        Self { series: dataset.series, labels, values }
    }
    /// Series of which nothing is asked.
    pub(super) fn unlabelled(dataset: Dataset) -> Self {
        let n = dataset.series.len();
        Self { series: dataset.series, labels: vec![0; n], values: vec![0.0; n] }
    }
    pub(super) fn len(&self) -> usize {
        self.series.len()
    }
    fn longest(&self) -> usize {
        self.series.iter().map(|s| s.len).max().unwrap_or(0)
    }
    fn pick(&self, which: &[usize]) -> Self {
        Self {
            series: which.iter().map(|&i| self.series[i].clone()).collect(),
            labels: which.iter().map(|&i| self.labels[i]).collect(),
            values: which.iter().map(|&i| self.values[i]).collect(),
        }
    }
}

/// What a run trains and is judged on.
#[derive(Debug)]
pub(super) struct RunData {
    pub(super) task: Task,
    /// D.
    pub(super) channels: usize,
    pub(super) timed: bool,
    pub(super) standardizer: Standardizer,
    pub(super) train: Examples,
    pub(super) validation: Examples,
    pub(super) test: Option<Examples>,
    /// SHA-256 of each file, by what it is for.
    pub(super) sha256: Vec<(&'static str, String)>,
}

/// Reads a file with the settings of a run, in the channels and the task of its training set.
pub(super) fn read_like(path: &Path, settings: &Settings, task: &Task, standardizer: &Standardizer) -> Result<Dataset> {
    let classes = if let Task::Classes(names) = task { Some(names.as_slice()) } else { None };
    let mut dataset = data::read(path, &settings.data.csv, classes)?;
    standardizer.apply(&mut dataset)?;
    Ok(dataset)
}

impl RunData {
    /// Reads the files of `settings`, holds out the validation set and standardises by the rest of the training set.
    pub(super) fn read(settings: &Settings) -> Result<Self> {
        let mut dataset = data::read(&settings.data.train, &settings.data.csv, None)?;
        let task = match &dataset.target {
            Target::Classes { names, .. } => Task::Classes(names.clone()),
            Target::Values(_) => Task::Value,
            _ => return Err(Error::data(&settings.data.train, None, "the file has no labels or values to learn")),
        };
        let channels = dataset.channels;
        let timed = dataset.series.iter().all(|s| s.elapsed.is_some());
        let mut sha256 = vec![("train", dataset.sha256.clone())];
        let all = Examples::new(dataset.clone());
        let (kept, held_out) = split(&all, &task, settings.train.validation, settings.train.seed);
        if kept.is_empty() {
            return Err(Error::data(
                &settings.data.train,
                None,
                format!("validation = {} leaves none of {} series to train on", settings.train.validation, all.len()),
            ));
        }
        let standardizer = if settings.data.standardize {
            let mut training = dataset.clone();
            training.series = all.pick(&kept).series;
            Standardizer::fit(&training)
        } else {
            Standardizer::new(vec![0.0; channels], vec![1.0; channels])?
        };
        standardizer.apply(&mut dataset)?;
        let all = Examples::new(dataset);
        let test = match &settings.data.test {
            None => None,
            Some(path) => {
                let test = read_like(path, settings, &task, &standardizer)?;
                if matches!(test.target, Target::None) {
                    return Err(Error::data(path, None, "the file has no labels or values to test against"));
                }
                if timed && test.series.iter().any(|s| s.elapsed.is_none()) {
                    return Err(Error::data(path, None, "the file has no times, but the training set has"));
                }
                sha256.push(("test", test.sha256.clone()));
                Some(Examples::new(test))
            }
        };
        let (train, validation) = (all.pick(&kept), all.pick(&held_out));
        Ok(Self { task, channels, timed, standardizer, train, validation, test, sha256 })
    }
    /// Steps of the longest series of any set.
    pub(super) fn longest(&self) -> usize {
        let test = self.test.as_ref().map_or(0, Examples::longest);
        self.train.longest().max(self.validation.longest()).max(test)
    }
}

/// The indices to train on and those held out, each in the order of the file; a class keeps its share on both sides.
fn split(all: &Examples, task: &Task, fraction: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut held = vec![false; all.len()];
    let mut rng = Rng::new(seed, HELD_OUT);
    for class in 0..if let Task::Classes(names) = task { names.len() } else { 1 } {
        let mut members: Vec<usize> = (0..all.len()).filter(|&i| all.labels[i] as usize == class).collect();
        rng.shuffle(&mut members);
        let count = (members.len() as f64 * fraction).round() as usize;
        members[..count.min(members.len())].iter().for_each(|&i| held[i] = true);
    }
    (0..all.len()).partition(|&i| !held[i])
}

/// The lengths that batches are padded to, ascending; the last is `longest`.
pub(super) fn padded_lengths(longest: usize) -> Vec<usize> {
    let step = longest.div_ceil(MOST_LENGTHS).max(1);
    let mut lengths: Vec<usize> = (1..).map(|i| i * step).take_while(|&l| l < longest).collect();
    lengths.push(longest);
    lengths
}

/// The batches of an epoch: indices into `examples`, each batch at most `size` long.
///
/// A pure function of the seed and the epoch. Where lengths are grouped, series of similar lengths share a batch: the
/// shuffled order is cut into groups of [`GROUP`] batches, each group is sorted by length (equal lengths stay
/// shuffled), and then the batches are shuffled.
pub(super) fn order(examples: &Examples, size: usize, group_lengths: bool, seed: u64, epoch: usize) -> Vec<Vec<usize>> {
    let mut rng = Rng::new(seed, ORDER + epoch as u64);
    let mut indices: Vec<usize> = (0..examples.len()).collect();
    rng.shuffle(&mut indices);
    if group_lengths {
        indices.chunks_mut(size.saturating_mul(GROUP)).for_each(|g| g.sort_by_key(|&i| examples.series[i].len));
    }
    let mut batches: Vec<Vec<usize>> = indices.chunks(size).map(<[usize]>::to_vec).collect();
    if group_lengths {
        rng.shuffle(&mut batches);
    }
    batches
}

/// The noise of a step, counted from the run's first; none where the deviation is 0.
pub(super) fn noise(deviation: f64, seed: u64, step: usize) -> Option<Noise> {
    (deviation > 0.0).then(|| Noise { deviation, rng: Rng::new(seed, NOISE + step as u64) })
}

/// Batches in the order of the file, for evaluation.
pub(super) fn in_order(count: usize, size: usize) -> Vec<Vec<usize>> {
    (0..count).collect::<Vec<_>>().chunks(size).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples(count: usize) -> Examples {
        let mut rng = Rng::new(1, 0);
        let mut series = || Series::new(vec![0.0; 2 * (5 + rng.below(20) as usize)], 2).unwrap();
        Examples {
            series: (0..count).map(|_| series()).collect(),
            labels: (0..count).map(|i| (i % 3) as i32).collect(),
            values: vec![0.0; count],
        }
    }

    #[test]
    fn an_epoch_visits_each_series_once_in_an_order_of_its_own() {
        let e = examples(100);
        for grouped in [false, true] {
            let a = order(&e, 16, grouped, 7, 0);
            assert_eq!(a.iter().map(Vec::len).collect::<Vec<_>>().iter().sum::<usize>(), 100);
            let mut seen: Vec<usize> = a.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
            assert_eq!(a, order(&e, 16, grouped, 7, 0));
            assert_ne!(a, order(&e, 16, grouped, 7, 1));
            assert_ne!(a, order(&e, 16, grouped, 8, 0));
        }
        let padding = |batches: &[Vec<usize>]| -> usize {
            let longest = |b: &Vec<usize>| b.iter().map(|&i| e.series[i].len).max().unwrap();
            batches.iter().map(|b| b.len() * longest(b)).sum()
        };
        assert!(padding(&order(&e, 16, true, 7, 0)) * 10 < padding(&order(&e, 16, false, 7, 0)) * 9);
    }

    #[test]
    fn held_out_series_are_drawn_from_every_class() {
        let e = examples(90);
        let task = Task::Classes(vec!["a".into(), "b".into(), "c".into()]);
        let (kept, held) = split(&e, &task, 0.2, 3);
        assert_eq!((kept.len(), held.len()), (72, 18));
        (0..3).for_each(|c| assert_eq!(held.iter().filter(|&&i| e.labels[i] == c).count(), 6));
        assert_eq!(split(&e, &task, 0.0, 3).1.len(), 0);
        assert_ne!(split(&e, &task, 0.2, 4).1, held);
        let numbers = Examples { labels: vec![0; 90], ..e };
        assert_eq!(split(&numbers, &Task::Value, 0.5, 3).1.len(), 45);
    }

    #[test]
    fn padded_lengths_are_few_and_end_with_the_longest() {
        assert_eq!(padded_lengths(0), [0]);
        assert_eq!(padded_lengths(5), [1, 2, 3, 4, 5]);
        assert_eq!(padded_lengths(29).len(), 15);
        for longest in [1, 16, 17, 1000, 4097] {
            let l = padded_lengths(longest);
            assert!(l.len() <= MOST_LENGTHS && l.is_sorted() && *l.last().unwrap() == longest, "{longest}: {l:?}");
        }
    }
}
