//! From series to the rectangular arrays that a model takes.

use chronaxie_runtime::{Error, Result};

use super::{Dataset, Series};

/// Series of unequal lengths in one array. What lies beyond a series' length is padding: 0 in `x`, 1 in `elapsed`, so
/// that arithmetic on it stays finite; a model masks it by `lengths`.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Batch {
    /// `[B, T, D]`, row-major.
    pub x: Vec<f32>,
    /// `[B]`: the time steps of each series.
    pub lengths: Vec<i32>,
    /// `[B, T]`: the time since the previous step; `None` where the series have no times.
    pub elapsed: Option<Vec<f32>>,
    /// Time steps of the longest series, `T`.
    pub time: usize,
    /// Channels, `D`.
    pub channels: usize,
}

impl Batch {
    /// Series in the batch, `B`.
    pub fn size(&self) -> usize {
        self.lengths.len()
    }
}

/// Lays `series` of `channels` = D side by side, padded to the longest. No series gives an empty batch.
///
/// # Errors
/// `Shape`, where a series has another number of channels, where some series have times and others have none, or where
/// the array is too large for this machine's addresses or a length for 31 bits.
pub fn pad(series: &[&Series], channels: usize) -> Result<Batch> {
    let time = series.iter().map(|series| series.len).max().unwrap_or(0);
    let timed = series.first().is_some_and(|series| series.elapsed.is_some());
    let mut lengths = Vec::with_capacity(series.len());
    for (index, one) in series.iter().enumerate() {
        if one.len.checked_mul(channels) != Some(one.values.len()) {
            return Err(Error::shape(format!(
                "batch: series {index} holds {} values in {} steps, which are not {channels} channels",
                one.values.len(),
                one.len
            )));
        }
        if one.elapsed.is_some() != timed || one.elapsed.as_ref().is_some_and(|elapsed| elapsed.len() != one.len) {
            return Err(Error::shape(format!(
                "batch: series {index} has {} times for {} steps, while series 0 has {}",
                one.elapsed.as_ref().map_or(0, Vec::len),
                one.len,
                if timed { "times" } else { "none" }
            )));
        }
        let length = i32::try_from(one.len)
            .map_err(|_| Error::shape(format!("batch: series {index} has {} steps, more than 2^31 - 1", one.len)))?;
        lengths.push(length);
    }
    let steps = series.len().checked_mul(time);
    let Some((steps, elements)) = steps.and_then(|steps| Some((steps, steps.checked_mul(channels)?))) else {
        let count = series.len();
        return Err(Error::shape(format!("batch: ({count}, {time}, {channels}) elements exceed the address space")));
    };
    let mut x = vec![0.0; elements];
    let mut elapsed = timed.then(|| vec![1.0; steps]);
    for (index, one) in series.iter().enumerate() {
        let at = index * time * channels;
        x[at..at + one.values.len()].copy_from_slice(&one.values);
        if let (Some(all), Some(own)) = (&mut elapsed, &one.elapsed) {
            all[index * time..index * time + own.len()].copy_from_slice(own);
        }
    }
    Ok(Batch { x, lengths, elapsed, time, channels })
}

/// Mean and standard deviation of each channel over the training set, and their removal from any set.
#[derive(Debug, Clone, PartialEq)]
pub struct Standardizer {
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Standardizer {
    /// The statistics of `training`: each time step of each series counts once. A channel that never changes, or by
    /// less than a 32-bit standard deviation can say, gets 1, so that it becomes 0 rather than noise.
    pub fn fit(training: &Dataset) -> Self {
        let channels = training.channels;
        let mut sum = vec![0.0f64; channels];
        let mut steps = 0usize;
        let each_step = || training.series.iter().flat_map(|series| series.values.chunks_exact(channels.max(1)));
        for step in each_step() {
            steps += 1;
            sum.iter_mut().zip(step).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let count = steps.max(1) as f64;
        let mean: Vec<f64> = sum.iter().map(|sum| sum / count).collect();
        // Two passes in 64 bits: the one-pass formula cancels where the mean is large beside the deviation.
        let mut squares = vec![0.0f64; channels];
        let mut range = vec![(f32::INFINITY, f32::NEG_INFINITY); channels];
        for step in each_step() {
            for (channel, value) in step.iter().enumerate() {
                squares[channel] += (f64::from(*value) - mean[channel]).powi(2);
                range[channel] = (range[channel].0.min(*value), range[channel].1.max(*value));
            }
        }
        let std = squares.iter().zip(&range).map(|(squares, (low, high))| {
            let std = (squares / count).sqrt() as f32;
            if low < high && std.is_normal() { std } else { 1.0 }
        });
        Self { std: std.collect(), mean: mean.iter().map(|mean| *mean as f32).collect() }
    }

    /// The statistics that a model was saved with.
    ///
    /// # Errors
    /// `Shape` where the lengths differ, `Value` where a mean is not finite or a deviation not finite and positive.
    pub fn new(mean: Vec<f32>, std: Vec<f32>) -> Result<Self> {
        if mean.len() != std.len() {
            return Err(Error::shape(format!("standardizer: {} means but {} deviations", mean.len(), std.len())));
        }
        for (channel, (mean, std)) in mean.iter().zip(&std).enumerate() {
            if !mean.is_finite() || !std.is_finite() || *std <= 0.0 {
                return Err(Error::value(format!(
                    "standardizer: channel {channel} has mean {mean} and deviation {std}; the mean must be finite, the \
                     deviation finite and positive"
                )));
            }
        }
        Ok(Self { mean, std })
    }

    /// `[D]`: the mean of each channel.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// `[D]`: the standard deviation of each channel, positive.
    pub fn std(&self) -> &[f32] {
        &self.std
    }

    /// Turns every value `v` of channel `c` into `(v - mean[c]) / std[c]`.
    ///
    /// # Errors
    /// `Shape`, where `data` has another number of channels; `Value`, where a result is beyond 32 bits. Then `data` is
    /// as it was.
    pub fn apply(&self, data: &mut Dataset) -> Result<()> {
        if data.channels != self.mean.len() {
            return Err(Error::shape(format!(
                "{}: it has {} channels, but the training set had {}",
                data.path.display(),
                data.channels,
                self.mean.len()
            )));
        }
        let scaled = |value: f32, channel: usize| {
            ((f64::from(value) - f64::from(self.mean[channel])) / f64::from(self.std[channel])) as f32
        };
        for (index, series) in data.series.iter().enumerate() {
            for (at, value) in series.values.iter().enumerate() {
                let channel = at % data.channels;
                if !scaled(*value, channel).is_finite() {
                    return Err(Error::value(format!(
                        "{}: series {index}, channel {channel}: {value} is too far from the training set's mean {} to \
                         divide by its deviation {}",
                        data.path.display(),
                        self.mean[channel],
                        self.std[channel]
                    )));
                }
            }
        }
        for series in &mut data.series {
            for step in series.values.chunks_exact_mut(data.channels) {
                step.iter_mut().enumerate().for_each(|(channel, value)| *value = scaled(*value, channel));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Target;

    fn dataset(channels: usize, series: &[&[f32]]) -> Dataset {
        let series = series.iter().map(|values| Series::new(values.to_vec(), channels).unwrap()).collect();
        Dataset { path: "a.ts".into(), sha256: String::new(), series, channels, target: Target::None }
    }

    #[test]
    fn unequal_lengths_are_padded() {
        let mut data = dataset(2, &[&[1.0, 2.0], &[3.0, 4.0, 5.0, 6.0]]);
        let batch = pad(&[&data.series[0], &data.series[1]], 2).unwrap();
        assert_eq!(batch.x, [1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((batch.lengths.as_slice(), batch.time, batch.size()), ([1, 2].as_slice(), 2, 2));
        assert_eq!(batch.elapsed, None);
        data.series[0].elapsed = Some(vec![0.5]);
        data.series[1].elapsed = Some(vec![0.25, 0.75]);
        let batch = pad(&[&data.series[0], &data.series[1]], 2).unwrap();
        assert_eq!(batch.elapsed.unwrap(), [0.5, 1.0, 0.25, 0.75]);
        assert!(pad(&[], 2).unwrap().x.is_empty());
    }

    #[test]
    fn batches_refuse_what_does_not_fit() {
        let mut data = dataset(2, &[&[1.0, 2.0], &[3.0, 4.0, 5.0, 6.0]]);
        let error = pad(&[&data.series[1]], 3).unwrap_err().to_string();
        assert_eq!(error, "batch: series 0 holds 4 values in 2 steps, which are not 3 channels");
        data.series[1].elapsed = Some(vec![1.0, 1.0]);
        let error = pad(&[&data.series[0], &data.series[1]], 2).unwrap_err().to_string();
        assert_eq!(error, "batch: series 1 has 2 times for 2 steps, while series 0 has none");
        let error = Series::new(vec![1.0; 5], 2).unwrap_err().to_string();
        assert_eq!(error, "series: 5 values do not make time steps of 2 channels");
        assert!(Series::new(vec![], 0).is_err());
    }

    #[test]
    fn statistics_come_from_all_steps() {
        let mut data = dataset(2, &[&[1.0, 0.1], &[3.0, 0.1, 5.0, 0.1]]);
        let statistics = Standardizer::fit(&data);
        assert_eq!(statistics.mean()[0], 3.0);
        assert_eq!(statistics.std(), [(8.0f32 / 3.0).sqrt(), 1.0]);
        statistics.apply(&mut data).unwrap();
        assert_eq!(data.series[1].values[0], 0.0);
        assert!(data.series.iter().flat_map(|series| series.values.chunks(2)).all(|step| step[1].abs() < 1e-7));
        let again = Standardizer::fit(&data);
        assert!(again.mean()[0].abs() < 1e-7 && (again.std()[0] - 1.0).abs() < 1e-6);
        assert_eq!(Standardizer::new(statistics.mean().to_vec(), statistics.std().to_vec()).unwrap(), statistics);
    }

    #[test]
    fn a_large_mean_does_not_hide_a_small_deviation() {
        let statistics = Standardizer::fit(&dataset(1, &[&[1e6, 1e6 + 1.0]]));
        assert_eq!(statistics.std(), [0.5]);
    }

    #[test]
    fn statistics_refuse_what_does_not_fit() {
        let statistics = Standardizer::new(vec![0.0], vec![1e-30]).unwrap();
        let mut data = dataset(1, &[&[0.0, 1e30]]);
        let before = data.clone();
        let error = statistics.apply(&mut data).unwrap_err().to_string();
        assert!(error.starts_with("a.ts: series 0, channel 0: 1000000000000000000000000000000 is too far"), "{error}");
        assert_eq!(data, before);
        let error = statistics.apply(&mut dataset(2, &[&[0.0, 1.0]])).unwrap_err().to_string();
        assert_eq!(error, "a.ts: it has 2 channels, but the training set had 1");
        let error = Standardizer::new(vec![0.0], vec![0.0]).unwrap_err().to_string();
        assert!(error.contains("channel 0 has mean 0 and deviation 0"), "{error}");
        assert!(Standardizer::new(vec![0.0], vec![]).is_err());
    }
}
