//! What the host does with a spike while the engine runs on: nanoseconds of its hash, of its count and of its record in the log, each
//! by itself and all as `chronaxie simulate` does it, and of what a run writes of them at its end. The least of some runs, since
//! other work of the machine only adds to it.
//!
//! `cargo run --release -p chronaxie --example spike_books [CELLS [SPIKES_A_STEP [STEPS [POPULATIONS]]]]`

use chronaxie::spiking::metrics::Gatherer;
use chronaxie::spiking::record::{Books, SpikeHash, SpikeLog};
use chronaxie::spiking::simulate::{Spike, runs};
use chronaxie::spiking::{Network, Population, models};
use chronaxie::{Error, Result, rng::Rng};
use std::hint::black_box;
use std::time::Instant;

/// Runs of each; the least counts.
const RUNS: usize = 9;

/// Nanoseconds that `work` takes for each of `count`.
fn least(count: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let since = Instant::now();
        work()?;
        least = least.min(since.elapsed().as_secs_f64());
    }
    Ok(least * 1e9 / count as f64)
}

/// Nanoseconds of a cycle: a product takes three of them and a sum one, on all cores of some ten years.
fn cycle_ns() -> Result<f64> {
    const MANY: usize = 1 << 22;
    let chain = || {
        let (mut x, by) = (black_box(3u64), black_box(5u64));
        for _ in 0..MANY {
            x = x.wrapping_mul(by) ^ by;
        }
        black_box(x);
        Ok(())
    };
    Ok(least(MANY, chain)? / 4.0)
}

fn main() -> Result<()> {
    let mut sizes = [1_000_000u64, 540, 500, 2];
    for (size, word) in sizes.iter_mut().zip(std::env::args().skip(1)) {
        *size = word.parse().map_err(|_| Error::config(format!("`{word}` is no number of cells, spikes or steps")))?;
    }
    let [cells, each, steps, populations] = sizes.map(|x| x.clamp(1, 1 << 31));
    let mut network = Network::new(0.1, 1)?;
    let model = models::find("lif_exp").map_err(Error::config)?;
    for k in 0..populations {
        network.add(Population::new(format!("p{k}"), model, (cells / populations).max(1) as u32));
    }
    let (all, mut rng) = (network.cells(), Rng::new(7, 0));
    let mut spikes = Vec::new();
    for step in 0..steps {
        let mut fired: Vec<u32> = (0..each).map(|_| rng.below(all) as u32).collect();
        fired.sort_unstable();
        fired.dedup();
        spikes.extend(fired.into_iter().map(|cell| Spike { step, cell }));
    }
    let n = spikes.len();
    println!("{all} cells of {populations} populations, {n} spikes in {steps} steps; ns a spike, least of {RUNS} runs");
    let say = |what: &str, ns: f64| println!("{what:<44} {ns:7.2}");

    let cycle = cycle_ns()?;
    let hash = least(n, || {
        let mut hash = SpikeHash::default();
        hash.add(&spikes);
        black_box(&hash);
        Ok(())
    })?;
    say("hash", hash);
    println!("{:<44} {:7.1} of {cycle:.3} ns; 32 are its chain where a core has SHA-256", "  cycles", hash / cycle);
    let firsts = network.first_cells();
    let mut counts = vec![0u64; firsts.len()];
    say(
        "count",
        least(n, || {
            runs(&spikes, &firsts).for_each(|(p, run)| counts[p] += run.len() as u64);
            Ok(())
        })?,
    );
    let path = std::env::temp_dir().join(format!("chronaxie-spike-books-{}", std::process::id()));
    let mut log = SpikeLog::open(&path, 0)?;
    say("write to the log", least(n, || log.add(&spikes))?);
    for (what, records, hashes) in
        [("--record none", false, true), ("--record spikes", true, true), ("--record none --hash none", false, false)]
    {
        for beside in [false, true] {
            let log = if records { Some(SpikeLog::open(&path, 0)?) } else { None };
            let hash = if hashes { SpikeHash::default() } else { SpikeHash::none() };
            let mut books = Books::new(&network, 0, hash, vec![0; firsts.len()], log);
            let ns = least(n, || books.add(&spikes, beside))?;
            say(&format!("{what}, {}", if beside { "two threads" } else { "one thread" }), ns);
        }
    }

    drop(log);
    let log = SpikeLog::open(&path, n as u64)?;
    let table = path.with_extension("out");
    say("at the end: spikes.npz", least(n, || log.export(&table, &network, steps))?);
    say("at the end: spikes.parquet", least(n, || log.export_parquet(&table, &network, steps))?);
    say(
        "at the end: statistics",
        least(n, || {
            let mut gatherer = Gatherer::new(&network, 0);
            log.read(|spikes| {
                gatherer.add(spikes);
                Ok(())
            })?;
            black_box(gatherer.finish(steps));
            Ok(())
        })?,
    );
    for file in [&path, &table] {
        std::fs::remove_file(file).map_err(|e| Error::io("remove", file, &e))?;
    }
    Ok(())
}
