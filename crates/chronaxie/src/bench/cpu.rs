//! What this machine's CPU can do at most, measured, and the wall clock.
#![allow(unsafe_code)]

use super::ceiling::Ceilings;
use crate::{Result, pool};
use std::hint::black_box;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Independent sums that hide the latency of a multiply-add: 16 vectors of 16 lanes.
const LANES: usize = 256;
const ROUNDS: usize = 20_000;

#[inline(always)]
fn multiply_add_body(sums: &mut [f32; LANES], a: f32, b: f32) {
    for _ in 0..ROUNDS {
        for s in sums.iter_mut() {
            *s = s.mul_add(a, b);
        }
    }
}
crate::dispatch!(fn multiply_add(sums: &mut [f32; LANES], a: f32, b: f32) = multiply_add_body);

/// The processor's name where the system tells it, with the vector instructions in use and the threads.
pub(super) fn name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim().to_owned()));
    let model = model.unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH));
    format!("{model}, {}, {} threads", crate::simd::level(), pool::num_threads())
}

/// The ceilings of this CPU for work on `bytes` of memory: the bandwidth of a copy that touches as many, so that both have
/// the same share of the caches, and the rate of multiply-adds. Each is measured once, on all threads of the pool.
pub(super) fn ceilings(bytes: u64) -> Ceilings {
    static FLOPS: OnceLock<f64> = OnceLock::new();
    static COPIES: Mutex<Vec<(usize, f64)>> = Mutex::new(Vec::new());
    let flops = *FLOPS.get_or_init(|| best(5, flops_per_s));
    let size = (bytes.clamp(1 << 16, 512 << 20) as usize).next_power_of_two();
    let mut copies = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = copies.iter().find(|(s, _)| *s == size).map(|(_, b)| *b);
    let bytes_per_s = known.unwrap_or_else(|| {
        let measured = copy_bytes_per_s(size);
        copies.push((size, measured));
        measured
    });
    Ceilings {
        bytes_per_s,
        flops_per_s: flops,
        // An exponential or a reciprocal as a polynomial is about 20 multiplications and additions.
        special_per_s: flops / 20.0,
        source: format!("copies of as many bytes and multiply-adds, measured on {} threads", pool::num_threads()),
    }
}

fn best(runs: usize, mut measure: impl FnMut() -> f64) -> f64 {
    (0..runs).map(|_| measure()).fold(0.0, f64::max)
}

fn flops_per_s() -> f64 {
    let threads = pool::num_threads();
    let start = Instant::now();
    pool::for_each(threads, |_| {
        let mut sums = [black_box(1.0f32); LANES];
        multiply_add(&mut sums, black_box(0.999), black_box(1e-3));
        black_box(sums);
    });
    (threads * 2 * LANES * ROUNDS) as f64 / start.elapsed().as_secs_f64()
}

/// Bytes read and written a second by a copy that touches `size` bytes, half of them to read.
fn copy_bytes_per_s(size: usize) -> f64 {
    let parts = pool::num_threads();
    let part = size / 2 / parts;
    let from = vec![1u8; part * parts];
    let to: Vec<Mutex<Vec<u8>>> = (0..parts).map(|_| Mutex::new(vec![2u8; part])).collect();
    // Small copies are repeated, so that starting the threads does not count.
    let repeats = (64 << 20) / size + 1;
    best(5, || {
        let start = Instant::now();
        pool::for_each(parts, |i| {
            if let Ok(mut to) = to[i].lock() {
                for _ in 0..repeats {
                    to.copy_from_slice(black_box(&from[i * part..(i + 1) * part]));
                }
            }
        });
        (2 * part * parts * repeats) as f64 / start.elapsed().as_secs_f64()
    })
}

/// Milliseconds of each run, by the wall clock: warm, then for about `seconds`, at least three.
///
/// A run shorter than 20 us is timed in batches.
pub(super) fn time(seconds: f64, run: &mut dyn FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut warm = 0u32;
    while warm < 2 || (start.elapsed().as_secs_f64() < 0.05 * seconds && warm < 1000) {
        run()?;
        warm += 1;
    }
    let start = Instant::now();
    run()?;
    let one = start.elapsed().as_secs_f64().max(1e-9);
    let batch = (20e-6 / one).ceil().clamp(1.0, 1e4) as usize;
    let samples = (seconds / (one * batch as f64)).clamp(3.0, 2000.0) as usize;
    (0..samples)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..batch {
                run()?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e3 / batch as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_plausible() {
        let c = ceilings(1 << 26);
        assert!(c.bytes_per_s > 1e8 && c.bytes_per_s < 1e13, "{c:?}");
        assert!(c.flops_per_s > 1e8 && c.flops_per_s < 1e14, "{c:?}");
        assert_eq!(c.special_per_s, c.flops_per_s / 20.0);
    }

    #[test]
    fn runs_are_counted_and_errors_returned() {
        let mut calls = 0;
        let ms = time(0.01, &mut || {
            calls += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok(())
        });
        let ms = ms.unwrap();
        assert!(ms.len() >= 3 && calls >= ms.len() + 3, "{} {calls}", ms.len());
        assert!(ms.iter().all(|&t| t >= 1.0), "{ms:?}");
        assert!(time(0.01, &mut || Err(crate::Error::value("no"))).is_err());
    }
}
