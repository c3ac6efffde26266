//! A barrier for threads that meet every few microseconds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Looks before the processor is offered to others: about 10 us.
const LOOKS: usize = 3000;

/// Where threads wait for each other.
#[derive(Debug)]
pub struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

impl Barrier {
    /// For this many threads.
    pub fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0), round: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }
    /// Returns when all threads have called it; what they wrote before is seen by all.
    ///
    /// # Panics
    /// Where another thread panicked, which would otherwise never come.
    pub fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.round.load(Ordering::Acquire) == round {
            assert!(!self.broken.load(Ordering::Relaxed), "another thread of the simulation panicked");
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
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
