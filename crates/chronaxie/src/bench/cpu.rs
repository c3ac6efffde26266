//! What this machine's CPU can do at most, measured, and the wall clock.
#![allow(unsafe_code)]

use super::ceiling::Ceilings;
use crate::{Result, pool};
use std::hint::black_box;
use std::sync::OnceLock;
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

/// Copy bandwidth and multiply-add rate of all threads of the pool, best of a few runs, measured once.
pub(super) fn ceilings() -> Ceilings {
    static MEASURED: OnceLock<Ceilings> = OnceLock::new();
    MEASURED
        .get_or_init(|| {
            let flops = best(5, flops_per_s);
            Ceilings {
                bytes_per_s: copy_bytes_per_s(),
                flops_per_s: flops,
                // An exponential or a reciprocal as a polynomial is about 20 multiplications and additions.
                special_per_s: flops / 20.0,
                source: format!("measured copy and multiply-add, {} threads", pool::num_threads()),
            }
        })
        .clone()
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

fn copy_bytes_per_s() -> f64 {
    // Larger than the caches of the CPUs that this runs on, in 64 parts for the threads.
    const PART: usize = 4 << 20;
    const PARTS: usize = 64;
    let from = vec![1u8; PART * PARTS];
    let to: Vec<std::sync::Mutex<Vec<u8>>> = (0..PARTS).map(|_| std::sync::Mutex::new(vec![2u8; PART])).collect();
    best(3, || {
        let start = Instant::now();
        pool::for_each(PARTS, |i| {
            if let Ok(mut to) = to[i].lock() {
                to.copy_from_slice(&from[i * PART..(i + 1) * PART]);
            }
        });
        (2 * PART * PARTS) as f64 / start.elapsed().as_secs_f64()
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
        let c = ceilings();
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
