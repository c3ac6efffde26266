//! Where threads that step a network meet every few microseconds, and what they tell each other there.
//!
//! Each thread writes to cache lines of its own alone, so that a meeting moves one line from each thread to each other: some
//! 100 ns between two cores, where a shared counter and locks around lists take five times that.
#![allow(unsafe_code)]

use super::Spike;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Looks before the processor is offered to others: about 10 us.
const LOOKS: usize = 3000;

/// Lines that a core asks for together are two.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// Where threads wait for each other.
#[derive(Debug)]
pub struct Barrier {
    /// How often each thread has come.
    rounds: Vec<Apart<AtomicUsize>>,
    broken: AtomicBool,
}

impl Barrier {
    /// For this many threads.
    pub fn new(threads: usize) -> Self {
        Self { rounds: (0..threads).map(|_| Apart::default()).collect(), broken: AtomicBool::new(false) }
    }
    /// Returns when all threads have called it, each with its own number; what they wrote before is seen by all.
    ///
    /// # Panics
    /// Where another thread panicked, which would otherwise never come.
    pub fn wait(&self, own: usize) {
        // Others may have come once more: counts are compared by their distance.
        let round = self.rounds[own].0.load(Ordering::Relaxed).wrapping_add(1);
        self.rounds[own].0.store(round, Ordering::Release);
        let mut looks = 0;
        for other in &self.rounds {
            while other.0.load(Ordering::Acquire).wrapping_sub(round) > usize::MAX / 2 {
                assert!(!self.broken.load(Ordering::Relaxed), "another thread of the simulation panicked");
                looks += 1;
                if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }
    /// While it lives, a panic of this thread breaks the barrier for the others.
    pub fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

/// See [`Barrier::guard`].
#[derive(Debug)]
pub struct Guard<'a>(&'a Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// What each thread tells the others, in turn in one of two lists, so that one is read while the other is written.
#[derive(Debug)]
pub struct Mail(Vec<Apart<[UnsafeCell<Vec<Spike>>; 2]>>);

// SAFETY: whoever reaches a list keeps to the rules of `post` and `read`, by which none is written while another thread has it.
unsafe impl Sync for Mail {}

impl Mail {
    /// For this many threads.
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Apart::default()).collect())
    }
    /// Takes thread `own`'s list of this turn away, for what is in `spikes`.
    ///
    /// # Safety
    /// Thread `own` alone calls it, and threads meet between this and every [`read`](Self::read) of the same turn, before and after.
    pub unsafe fn post(&self, own: usize, turn: usize, spikes: &mut Vec<Spike>) {
        // SAFETY: by the contract nobody has the list.
        std::mem::swap(unsafe { &mut *self.0[own].0[turn].get() }, spikes);
    }
    /// The lists of all threads of this turn.
    ///
    /// # Safety
    /// The lists are not used beyond the next meeting, and threads met since they were posted.
    pub unsafe fn read(&self, turn: usize) -> impl Iterator<Item = &[Spike]> {
        // SAFETY: by the contract nobody writes to them.
        self.0.iter().map(move |lists| unsafe { (*lists.0[turn].get()).as_slice() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every thread reads what all wrote before the meeting, for many rounds, and nothing of the next.
    #[test]
    fn what_was_posted_is_read_by_all() {
        for threads in [1, 2, 3, 7] {
            let (barrier, mail) = (Barrier::new(threads), Mail::new(threads));
            std::thread::scope(|scope| {
                for own in 0..threads {
                    let (barrier, mail) = (&barrier, &mail);
                    scope.spawn(move || {
                        let _guard = barrier.guard();
                        let mut list = Vec::new();
                        for step in 0..2000 {
                            list.clear();
                            list.extend((0..step % 5).map(|i| Spike { step, cell: (own * 10) as u32 + i as u32 }));
                            let turn = (step % 2) as usize;
                            // SAFETY: a turn's lists are posted before a meeting and read before the next one.
                            unsafe { mail.post(own, turn, &mut list) };
                            barrier.wait(own);
                            // SAFETY: as above.
                            for (from, got) in unsafe { mail.read(turn) }.enumerate() {
                                assert_eq!(got.len() as u64, step % 5);
                                assert!(got.iter().all(|s| s.step == step && s.cell as usize / 10 == from));
                            }
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_thread_that_panics_ends_the_waiting_of_others() {
        let barrier = Barrier::new(2);
        let ended = std::thread::scope(|scope| {
            let lost = scope.spawn(|| {
                let _guard = barrier.guard();
                panic!("lost");
            });
            let waits = scope.spawn(|| barrier.wait(0));
            [lost.join().is_err(), waits.join().is_err()]
        });
        assert_eq!(ended, [true, true]);
    }
}
