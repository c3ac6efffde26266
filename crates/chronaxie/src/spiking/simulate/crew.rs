//! How many threads step a small network: as many as have shards, or one for all of them, whichever takes less here and now.
//!
//! A step of a few thousand cells takes a microsecond or two, and threads meet after each. On cores of their own two threads halve
//! it; where other programs have the cores too, each waits for the other to be let in again, and a step takes ten times as
//! long. So both are tried, now and then, and spikes depend on neither.

/// Cells of a thread whose work is so long that all threads take part unasked.
pub(super) const CELLS_A_THREAD: u64 = 8192;
/// Steps of a trial.
const TRIAL: u64 = 1024;
/// Steps between two trials: from the first ones on twice as many each time that a trial loses, up to the last.
const BETWEEN: [u64; 2] = [4 * TRIAL, 256 * TRIAL];
/// Most steps of a stretch: after each it is seen whether steps take longer than they did.
const STRETCH: u64 = 16 * TRIAL;
/// What the other way must gain to be taken.
const GAIN: f64 = 0.95;

/// What is known of both ways.
#[derive(Debug)]
pub(super) struct Crew {
    /// Seconds a step, with all threads and with one; 0 before they are known.
    seconds: [f64; 2],
    /// The one that is taken.
    alone: bool,
    /// Steps until the next trial, and between trials.
    left: u64,
    between: u64,
}

/// A stretch of steps on so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub steps: u64,
    pub alone: bool,
}

impl Crew {
    pub fn new() -> Self {
        Self { seconds: [0.0; 2], alone: true, left: 0, between: BETWEEN[0] }
    }

    /// Whether one thread does all the work.
    pub fn alone(&self) -> bool {
        self.alone
    }

    /// The next of `steps` steps.
    pub fn next(&self, steps: u64) -> Stretch {
        if self.left == 0 && steps >= TRIAL {
            // Of two that are not known the one that is not taken comes first.
            return Stretch { steps: TRIAL, alone: !self.alone };
        }
        let most = if self.left == 0 { STRETCH } else { self.left.min(STRETCH) };
        Stretch { steps: steps.min(most), alone: self.alone }
    }

    /// What a stretch took.
    pub fn took(&mut self, stretch: Stretch, seconds: f64) {
        self.left = self.left.saturating_sub(stretch.steps);
        if stretch.steps < TRIAL {
            return;
        }
        self.seconds[usize::from(stretch.alone)] = seconds / stretch.steps as f64;
        let [own, other] = [self.alone, !self.alone].map(|alone| self.seconds[usize::from(alone)]);
        if stretch.alone == self.alone {
            // What was chosen has become slower than what was not: that one is tried now.
            if other > 0.0 && other < GAIN * GAIN * own {
                self.left = 0;
            }
            return;
        }
        // The first stretch of the other way comes right after, and is compared at the next trial.
        let wins = own > 0.0 && other < GAIN * own;
        if wins {
            self.alone = !self.alone;
        }
        self.between = if wins || own == 0.0 { BETWEEN[0] } else { (2 * self.between).min(BETWEEN[1]) };
        self.left = self.between;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that both ways took in a run whose steps take `all` and `one` seconds, in chunks.
    fn run(crew: &mut Crew, chunks: &[u64], seconds: [f64; 2]) -> [u64; 2] {
        let mut taken = [0; 2];
        for chunk in chunks {
            let mut left = *chunk;
            while left > 0 {
                let stretch = crew.next(left);
                assert!((1..=left).contains(&stretch.steps), "{stretch:?} of {left}");
                crew.took(stretch, stretch.steps as f64 * seconds[usize::from(stretch.alone)]);
                taken[usize::from(stretch.alone)] += stretch.steps;
                left -= stretch.steps;
            }
        }
        taken
    }

    #[test]
    fn the_faster_way_is_taken_and_the_slower_one_tried_seldom() {
        let chunks = [100_000; 10];
        let [all, one] = run(&mut Crew::new(), &chunks, [1e-6, 2e-6]);
        assert!(all > 950_000, "{all} {one}");
        let [all, one] = run(&mut Crew::new(), &chunks, [20e-6, 2e-6]);
        assert!(one > 980_000, "{all} {one}");
        // Trials of the slower way cost less than a tenth even where it takes twenty times as long.
        let [all, one] = run(&mut Crew::new(), &[1_000_000], [40e-6, 2e-6]);
        assert!(all as f64 * 40.0 < 0.2 * one as f64 * 2.0, "{all} {one}");
    }

    #[test]
    fn it_follows_what_changes() {
        let mut crew = Crew::new();
        run(&mut crew, &[300_000], [1e-6, 2e-6]);
        assert!(!crew.alone());
        let [all, one] = run(&mut crew, &[1_000_000], [30e-6, 2e-6]);
        assert!(crew.alone() && one > 5 * all, "{all} {one}");
        run(&mut crew, &[1_000_000], [1e-6, 2e-6]);
        assert!(!crew.alone());
    }

    #[test]
    fn short_runs_are_left_alone() {
        let mut crew = Crew::new();
        assert_eq!(run(&mut crew, &[100; 50], [1e-6, 2e-6]), [0, 5000]);
    }
}
