//! The library's own thread pool: made at first use, made anew for another number of threads and in a forked child.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Mutex};

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

/// Runs `task(i)` for every `i` in `0..count` on the pool's threads and returns when all are done.
///
/// Which thread runs which task is not fixed, so a task must write only what belongs to its index; then the result
/// is the same for any number of threads. A panic in a task reaches the caller.
pub fn for_each(count: usize, task: impl Fn(usize) + Send + Sync) {
    if count <= 1 || num_threads() == 1 {
        for i in 0..count {
            task(i);
        }
        return;
    }
    use rayon::prelude::*;
    current().install(|| (0..count).into_par_iter().with_max_len(1).for_each(&task));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
        let caught = std::panic::catch_unwind(|| for_each(8, |i| assert!(i != 5, "five")));
        assert!(caught.is_err());
    }
}
