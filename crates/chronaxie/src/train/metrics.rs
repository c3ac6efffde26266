//! What an epoch came to: lines of `metrics.jsonl`, scores of a set, and the learning curve.

use super::batches::{Examples, Task, in_order};
use super::network::{Logged, Network};
use crate::report::{Curve, Line, Panel};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Loss of a set, and its accuracy where classes are predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    pub(super) loss: f64,
    pub(super) accuracy: Option<f64>,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct EpochMetrics {
    /// From 1.
    pub(super) epoch: usize,
    /// Over the epoch's batches, each before its step.
    pub(super) train_loss: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) train_accuracy: Option<f64>,
    /// Over the held-out series, after the epoch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) validation_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) validation_accuracy: Option<f64>,
    /// Of the epoch's last step.
    pub(super) learning_rate: f64,
    /// The mean over the epoch's steps, before clipping.
    pub(super) grad_norm: f64,
    /// Seconds of training in this epoch.
    pub(super) seconds: f64,
}

/// The score of batches of `examples` from what their steps have logged.
pub(super) fn score(logged: &Logged, batches: &[Vec<usize>], examples: &Examples, network: &Network) -> Score {
    let (classes, rows) = (network.task.outputs(), network.batch());
    let (mut loss, mut hits, mut count) = (0.0, 0usize, 0usize);
    for (step, batch) in batches.iter().enumerate() {
        loss += f64::from(logged.losses[step]) * batch.len() as f64;
        count += batch.len();
        for (b, &i) in batch.iter().enumerate() {
            let logits = &logged.logits[(step * rows + b) * classes..][..classes];
            hits += usize::from(best(logits) == examples.labels[i] as usize);
        }
    }
    let count = count.max(1) as f64;
    let accuracy = matches!(network.task, Task::Classes(_)).then_some(hits as f64 / count);
    Score { loss: loss / count, accuracy }
}

/// The first of the largest.
pub(super) fn best(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (i, x)| if *x > logits[best] { i } else { best })
}

/// Loss and accuracy of a whole set, and its logits `[N, C]` in the order of the file.
pub(super) fn evaluate(network: &mut Network, examples: &Examples, log_steps: usize) -> Result<(Score, Vec<f32>)> {
    let (rows, classes) = (network.batch(), network.task.outputs());
    let batches = in_order(examples.len(), rows);
    let mut all = Logged::default();
    for some in batches.chunks(log_steps.max(1)) {
        for (log, batch) in some.iter().enumerate() {
            network.judge(log, examples, batch)?;
        }
        let logged = network.logged(some.len())?;
        all.losses.extend(logged.losses);
        all.logits.extend(logged.logits);
    }
    let score = score(&all, &batches, examples, network);
    // Only the last batch has rows that are no series.
    all.logits.truncate(examples.len() * classes);
    Ok((score, all.logits))
}

/// Refuses losses and norms that are not finite.
pub(super) fn check_finite(logged: &Logged, epoch: usize) -> Result<()> {
    let wrong = |values: &[f32]| values.iter().position(|x| !x.is_finite());
    let found = wrong(&logged.losses)
        .map(|i| ("loss", i, logged.losses[i]))
        .or_else(|| wrong(&logged.norms).map(|i| ("norm of the gradient", i, logged.norms[i])));
    match found {
        None => Ok(()),
        Some((what, batch, value)) => Err(Error::value(format!(
            "train: the {what} became {value} in batch {} of epoch {}: lower train.learning_rate, or clip the gradient \
             with train.clip",
            batch + 1,
            epoch + 1
        ))),
    }
}

/// The picture of a run.
pub(super) fn curve(title: String, history: &[EpochMetrics], classes: bool, squares: bool) -> Curve {
    let line = |name: &str, value: &dyn Fn(&EpochMetrics) -> Option<f64>| {
        let points: Vec<_> = history.iter().filter_map(|m| Some((m.epoch as f64, value(m)?))).collect();
        (!points.is_empty()).then(|| Line { name: name.to_owned(), points })
    };
    let panel = |label: &str, lines: [Option<Line>; 2], percent: bool| Panel {
        label: label.to_owned(),
        lines: lines.into_iter().flatten().collect(),
        bounds: (Some(0.0), percent.then_some(1.0)),
        percent,
    };
    let loss = if squares { "mean squared error" } else { "cross-entropy" };
    let losses = [line("training", &|m| Some(m.train_loss)), line("validation", &|m| m.validation_loss)];
    let mut panels = vec![panel(loss, losses, false)];
    if classes {
        let accuracies = [line("training", &|m| m.train_accuracy), line("validation", &|m| m.validation_accuracy)];
        panels.push(panel("accuracy", accuracies, true));
    }
    Curve { title, x_label: "epoch".to_owned(), panels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_said_with_its_place() {
        let mut logged = Logged { losses: vec![1.0, 2.0], norms: vec![1.0, 1.0], logits: vec![] };
        assert!(check_finite(&logged, 2).is_ok());
        logged.norms[1] = f32::INFINITY;
        let e = check_finite(&logged, 2).unwrap_err().to_string();
        assert!(e.contains("norm of the gradient became inf in batch 2 of epoch 3"), "{e}");
        logged.losses[0] = f32::NAN;
        assert!(
            check_finite(&logged, 0).unwrap_err().to_string().contains("the loss became NaN in batch 1 of epoch 1")
        );
    }

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(best(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(best(&[f32::NAN, 3.0]), 0);
    }

    #[test]
    fn curves_have_a_line_for_each_set() {
        let m = |epoch, v| EpochMetrics {
            epoch,
            train_loss: 1.0,
            train_accuracy: Some(0.5),
            validation_loss: v,
            validation_accuracy: v,
            learning_rate: 0.1,
            grad_norm: 1.0,
            seconds: 0.1,
        };
        let c = curve("t".into(), &[m(1, Some(0.3)), m(2, Some(0.2))], true, false);
        assert_eq!(c.panels.iter().map(|p| p.lines.len()).collect::<Vec<_>>(), [2, 2]);
        let c = curve("t".into(), &[m(1, None)], false, true);
        assert_eq!(c.panels.iter().map(|p| p.lines.len()).collect::<Vec<_>>(), [1]);
        let text = serde_json::to_string(&m(1, None)).unwrap();
        assert!(!text.contains("validation"));
        assert_eq!(serde_json::from_str::<EpochMetrics>(&text).unwrap(), m(1, None));
    }
}
