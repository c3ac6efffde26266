//! The library's own thread pool: made at first use, made anew for another number of threads and in a forked child.

use crate::error::{Error, ErrorKind, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The largest number of threads that can be asked for.
pub const MAX_THREADS: usize = 1024;

struct Current {
    pid: u32,
    threads: usize,
    pool: Arc<ThreadPool>,
}

static WANTED: Mutex<Option<usize>> = Mutex::new(None);
static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Sets the number of threads (1 to [`MAX_THREADS`]) for all later CPU work of this process.
///
/// The results of every operation are the same bits for any number.
pub fn set_num_threads(threads: usize) {
    *WANTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(threads.clamp(1, MAX_THREADS));
}

/// The number of threads that CPU work uses: [`set_num_threads`], else `CHRONAXIE_NUM_THREADS`, else the cores this
/// process may run on.
pub fn num_threads() -> usize {
    let wanted = *WANTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    wanted
        .or_else(|| std::env::var("CHRONAXIE_NUM_THREADS").ok()?.trim().parse().ok())
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
        .clamp(1, MAX_THREADS)
}

fn current() -> Arc<ThreadPool> {
    let threads = num_threads();
    let pid = std::process::id();
    let mut current = CURRENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*current {
        Some(c) if c.pid == pid && c.threads == threads => c.pool.clone(),
        _ => {
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("chronaxie-{i}"))
                .build()
                .or_else(|_| ThreadPoolBuilder::new().num_threads(1).use_current_thread().build())
                .expect("a thread pool of the calling thread alone needs nothing from the system");
            let pool = Arc::new(pool);
            let old = current.replace(Current { pid, threads, pool: pool.clone() });
            // The threads of the old pool end when the calls under way on it have. A forked child has no such threads,
            // and a lock that one of them held stays held: there the pool is left as it is.
            if let Some(old) = old.filter(|old| old.pid != pid) {
                std::mem::forget(old);
            }
            pool
        }
    }
}

/// What the calling thread of [`for_each`] shares with the pool's threads.
struct Region {
    /// Takes indices until none is left. Valid until the region is closed and no helper is left.
    work: *const (dyn Fn() + Sync),
    /// How many helpers there are, and [`CLOSED`].
    helpers: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    last_left: Condvar,
}
// SAFETY: `work` is a pointer to something that threads may share, and `Region::help` says when it is followed.
unsafe impl Send for Region {}
// SAFETY: as above; the rest is shared by its own means.
unsafe impl Sync for Region {}

/// Set once the caller has found no index left: who comes later must not touch `work`.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// How often the caller looks for its helpers' end before it sleeps: about 40 us, since sleeping and waking takes as long.
const LOOKS: usize = 2000;

impl Region {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn help(&self) {
        if self.helpers.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            // SAFETY: this helper is counted and was so before the region was closed, so the caller still waits for it.
            let work = AssertUnwindSafe(unsafe { &*self.work });
            if let Err(panic) = catch_unwind(work) {
                self.lock().get_or_insert(panic);
            }
        }
        if self.helpers.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            drop(self.lock());
            self.last_left.notify_all();
        }
    }
    /// Keeps later helpers out and waits for those who are in.
    fn close(&self) {
        self.helpers.fetch_or(CLOSED, Ordering::AcqRel);
        for _ in 0..LOOKS {
            if self.helpers.load(Ordering::Acquire) == CLOSED {
                return;
            }
            std::hint::spin_loop();
        }
        let mut lock = self.lock();
        while self.helpers.load(Ordering::Acquire) != CLOSED {
            lock = self.last_left.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs `task(i)` for every `i` in `0..count` on the calling thread and the pool's, and returns when all are done. The
/// next index goes to whichever thread is free, so long tasks should stand first.
///
/// The calling thread begins at once, and does not wait for a thread of the pool that has not begun: to wake one on a
/// virtual machine takes 0.1 ms, as long as a small call. Which thread runs which task is not fixed, so a task must write
/// only what belongs to its index; then the result is the same for any number of threads. A panic in a task reaches the
/// caller.
pub fn for_each(count: usize, task: impl Fn(usize) + Send + Sync) {
    let threads = num_threads().min(count);
    if threads <= 1 {
        for i in 0..count {
            task(i);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    let take = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            task(i);
        }
    };
    let stop = STOP.with_borrow(Clone::clone);
    let work = || stop.as_ref().map_or_else(take, |stop| interruptible(stop, take));
    let shared: &(dyn Fn() + Sync) = &work;
    let region = Arc::new(Region {
        // SAFETY: only the lifetime changes; `work` and what it borrows outlive `close`, after which nothing follows it.
        work: unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(shared) },
        helpers: AtomicUsize::new(0),
        panic: Mutex::new(None),
        last_left: Condvar::new(),
    });
    let pool = current();
    for _ in 1..threads {
        let region = region.clone();
        pool.spawn(move || region.help());
    }
    let own = catch_unwind(AssertUnwindSafe(&work));
    region.close();
    let helpers = region.lock().take();
    if let Some(panic) = own.err().or(helpers) {
        resume_unwind(panic);
    }
}

thread_local! {
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `work`, which ends early, with whatever it has written so far, once `stop` is set: loops over time steps ask
/// [`stopped`], on this thread and on those of the pool that work for it.
pub fn interruptible<R>(stop: &Arc<AtomicBool>, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<AtomicBool>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            STOP.set(self.0.take());
        }
    }
    let _restore = Restore(STOP.replace(Some(stop.clone())));
    work()
}

/// Whether the work of this thread was asked to end.
pub fn stopped() -> bool {
    STOP.with_borrow(|stop| stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)))
}

/// An error if the work of this thread was asked to end; to be returned where results would be.
pub fn refuse_if_stopped(doing: &str) -> Result<()> {
    if stopped() { Err(Error::new(ErrorKind::Interrupted, format!("{doing} was interrupted"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once() {
        for threads in [1, 2, 3] {
            set_num_threads(threads);
            let seen: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            for_each(seen.len(), |i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{threads} threads");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_of_earlier_pools_end() {
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.filter(|name| name.starts_with("chronaxie-")).count()
        };
        for round in 0..100 {
            set_num_threads(2 + round % 2);
            for_each(4, |_| {});
        }
        // They end by themselves, soon; each of the other tests has a pool at a time.
        let since = std::time::Instant::now();
        while threads() > 12 {
            assert!(since.elapsed().as_secs() < 20, "{} threads are left of 100 pools", threads());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        set_num_threads(2);
        for bad in 0..8 {
            let caught = catch_unwind(|| for_each(8, |i| assert!(i != bad, "number {i}")));
            let message = caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("number {bad}"));
        }
    }

    #[test]
    fn helpers_that_come_late_find_nothing() {
        set_num_threads(3);
        for round in 0..20_000 {
            // What the tasks borrow ends with each round.
            let sums = [const { AtomicUsize::new(0) }; 4];
            for_each(4, |i| {
                sums[i].fetch_add(round + i, Ordering::Relaxed);
            });
            assert_eq!(sums.map(AtomicUsize::into_inner), [round, round + 1, round + 2, round + 3]);
        }
    }

    #[test]
    fn tasks_may_share_work_themselves() {
        set_num_threads(3);
        let done = AtomicUsize::new(0);
        for_each(20, |_| {
            for_each(10, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(done.into_inner(), 200);
    }

    #[test]
    fn the_caller_waits_for_its_helpers() {
        set_num_threads(2);
        let done = AtomicUsize::new(0);
        for_each(2, |_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    }

    #[test]
    fn a_stop_reaches_the_pool_and_only_its_own_work() {
        for threads in [1, 2] {
            set_num_threads(threads);
            let stop = Arc::new(AtomicBool::new(false));
            let done = AtomicUsize::new(0);
            let e = interruptible(&stop, || {
                for_each(64, |i| {
                    stop.fetch_or(i == 0, Ordering::Relaxed);
                    done.fetch_add(usize::from(!stopped()), Ordering::Relaxed);
                });
                refuse_if_stopped("a test").unwrap_err()
            });
            assert_eq!(e.to_string(), "a test was interrupted");
            assert!(done.load(Ordering::Relaxed) < 64);
            for_each(8, |_| assert!(!stopped()));
        }
    }
}
