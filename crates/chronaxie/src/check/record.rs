//! What `check` finds, as it is printed and written to JSON.

use serde::Serialize;

/// How one comparison ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Within the declared tolerance.
    Passed,
    /// Outside it, or not finite, or an error.
    Failed,
    /// Not run; the reason says why.
    Skipped,
}

/// One quantity of one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Record {
    /// The entry.
    pub family: String,
    /// The case, with its options.
    pub case: String,
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// The element type of the data.
    pub dtype: String,
    /// `exact` or `fast`.
    pub precision: String,
    /// `forward.y`, `backward.grad_x`, `bits_repeat`, ...
    pub quantity: String,
    /// `relative_frobenius`, `max_absolute`, or what is counted.
    pub metric: String,
    /// The measured error, or count; none where nothing was measured or it is not a number.
    pub error: Option<f64>,
    /// The declared bound.
    pub tolerance: Option<f64>,
    /// How it ended.
    pub status: Status,
    /// Why it failed or was skipped, or why the tolerance is what it is.
    pub reason: String,
    /// Seconds since the previous record of the case.
    pub seconds: f64,
}

/// How many ended how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Within tolerance.
    pub passed: usize,
    /// Not.
    pub failed: usize,
    /// Not run.
    pub skipped: usize,
}

impl Summary {
    /// Counts a record.
    pub fn add(&mut self, status: Status) {
        match status {
            Status::Passed => self.passed += 1,
            Status::Failed => self.failed += 1,
            Status::Skipped => self.skipped += 1,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
