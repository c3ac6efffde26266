//! Measures against tables that are filled cell by cell and bin by bin, and against trains whose measures are known.

use super::*;
use crate::rng::Rng;
use crate::spiking::network::Storage;
use crate::spiking::{Delay, Network, Population, Projection, Rule, models};

fn options() -> Options {
    Options { bin: 4, burst_interval: 6, burst_spikes: 3 }
}

/// Random trains of three populations, some silent, some with bursts, from step 50 to 1053: the last bin is cut short.
fn random(seed: u64) -> Trains {
    let mut rng = Rng::new(seed, 0);
    let sizes = vec![7u32, 1, 12];
    let mut spikes = Vec::new();
    for step in 50..1053u64 {
        for cell in 0..20u32 {
            let often = [0, 3, 30, 200][(cell % 4) as usize] + if step % 40 < 5 { 150 } else { 0 };
            if cell % 5 != 4 && rng.below(1000) < often {
                spikes.push(Spike { step, cell });
            }
        }
    }
    Trains { dt_ms: 0.5, start: 50, stop: 1053, sizes, spikes }
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{a} {b}");
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}
fn variance(x: &[f64]) -> f64 {
    mean(&x.iter().map(|v| v * v).collect::<Vec<_>>()) - mean(x) * mean(x)
}

/// Entropy of the tuples that occur, by asking for each how often.
fn brute_entropy<T: PartialEq>(x: &[T]) -> f64 {
    let share = |v: &T| x.iter().filter(|w| *w == v).count() as f64 / x.len() as f64;
    -x.iter().map(|v| share(v).log2()).sum::<f64>() / x.len() as f64
}

#[test]
fn measures_are_those_of_plain_tables() {
    for seed in 0..5 {
        let t = random(seed);
        let found = analyze(&t, &options(), &Device::Cpu).unwrap();
        let bins = (1053 - 50) / 4;
        assert_eq!(found.bins, bins as u64);
        let mut firsts = vec![0];
        t.sizes.iter().for_each(|s| firsts.push(firsts[firsts.len() - 1] + s));
        let count_of = |cells: std::ops::Range<u32>, bin: u64| {
            // Cells that fire in the bin, each once.
            cells.filter(|c| t.spikes.iter().any(|s| s.cell == *c && (s.step - 50) / 4 == bin)).count()
        };
        let counts: Vec<Vec<usize>> =
            (0..3).map(|p| (0..bins as u64).map(|bin| count_of(firsts[p]..firsts[p + 1], bin)).collect()).collect();
        for p in 0..3 {
            let m = &found.populations[p];
            let cells: Vec<u32> = (firsts[p]..firsts[p + 1]).collect();
            let train =
                |c: u32| -> Vec<f64> { t.spikes.iter().filter(|s| s.cell == c).map(|s| s.step as f64 * 0.5).collect() };
            let rates: Vec<f64> = cells.iter().map(|c| train(*c).len() as f64 / 0.5015).collect();
            close(m.rate_hz.mean, mean(&rates));
            close(m.rate_hz.sd, variance(&rates).max(0.0).sqrt());
            close(m.silent, rates.iter().filter(|r| **r == 0.0).count() as f64 / cells.len() as f64);
            let mut intervals = Vec::new();
            let mut cvs = Vec::new();
            for c in &cells {
                let own: Vec<f64> = train(*c).windows(2).map(|w| w[1] - w[0]).collect();
                if own.len() >= 5 {
                    cvs.push(variance(&own).max(0.0).sqrt() / mean(&own));
                }
                intervals.extend(own);
            }
            if intervals.is_empty() {
                assert_eq!((m.interval_ms, m.interval_median_ms, m.cv), (None, None, None));
            } else {
                close(m.interval_ms.unwrap().mean, mean(&intervals));
                let median = m.interval_median_ms.unwrap();
                let below = intervals.iter().filter(|x| **x < median).count();
                let above = intervals.iter().filter(|x| **x > median).count();
                assert!(below * 2 <= intervals.len() && above * 2 <= intervals.len());
                assert_eq!(found.intervals_ms[p].len(), intervals.len());
            }
            match m.cv {
                Some(cv) => close(cv.mean, mean(&cvs)),
                None => assert!(cvs.is_empty()),
            }
            // The matrix cells by bins.
            let x = |c: u32| -> Vec<f64> { (0..bins as u64).map(|b| count_of(c..c + 1, b) as f64).collect() };
            let rows: Vec<Vec<f64>> = cells.iter().map(|c| x(*c)).collect();
            let activity: Vec<f64> =
                (0..bins).map(|b| rows.iter().map(|r| r[b]).sum::<f64>() / cells.len() as f64).collect();
            close(m.synchrony.variance, variance(&activity));
            let own = mean(&rows.iter().map(|r| variance(r)).collect::<Vec<_>>());
            close(m.synchrony.chi, if own > 0.0 { (variance(&activity) / own).sqrt() } else { 0.0 });
            let many: Vec<f64> = counts[p].iter().map(|c| *c as f64).collect();
            close(m.synchrony.fano, if mean(&many) > 0.0 { variance(&many) / mean(&many) } else { 0.0 });
            close(m.entropy_bits.mean, mean(&rows.iter().map(|r| brute_entropy(r)).collect::<Vec<_>>()));
            close(m.population_entropy_bits, brute_entropy(&counts[p]));
            let mut information = Vec::new();
            for a in 0..rows.len() {
                for b in a + 1..rows.len() {
                    let joint: Vec<(f64, f64)> = rows[a].iter().copied().zip(rows[b].iter().copied()).collect();
                    information.push(brute_entropy(&rows[a]) + brute_entropy(&rows[b]) - brute_entropy(&joint));
                }
            }
            match m.mutual_information_bits {
                Some(i) => close(i.mean, mean(&information)),
                None => assert_eq!(cells.len(), 1),
            }
            // Bursts, by looking from each spike whether it begins one.
            let (mut number, mut inside, mut spikes) = (0, 0, 0);
            for c in &cells {
                let train: Vec<u64> = t.spikes.iter().filter(|s| s.cell == *c).map(|s| s.step).collect();
                spikes += train.len();
                for i in 0..train.len() {
                    let begins = i == 0 || train[i] - train[i - 1] > 6;
                    let mut end = i;
                    while end + 1 < train.len() && train[end + 1] - train[end] <= 6 {
                        end += 1;
                    }
                    if begins && end - i + 1 >= 3 {
                        number += 1;
                        inside += end - i + 1;
                    }
                }
            }
            assert_eq!(m.bursts.count, number);
            close(m.bursts.share, if spikes > 0 { inside as f64 / spikes as f64 } else { 0.0 });
            close(m.bursts.rate_hz, number as f64 / cells.len() as f64 / 0.5015);
            for q in 0..3 {
                let joint: Vec<(usize, usize)> = counts[p].iter().copied().zip(counts[q].iter().copied()).collect();
                let want = brute_entropy(&counts[p]) + brute_entropy(&counts[q]) - brute_entropy(&joint);
                close(found.mutual_information_bits[p][q], want);
            }
        }
        assert!(found.populations[0].bursts.count > 0 && found.populations[2].mutual_information_bits.is_some());
    }
}

#[test]
fn known_trains_have_known_measures() {
    // Cells that are one, firing in every second bin: one bit each, all of it shared, and chi is 1.
    let spikes = (0..96u64).filter(|s| s / 4 % 2 == 0 && s % 4 == 1);
    let spikes = spikes.flat_map(|step| (0..5).map(move |cell| Spike { step, cell })).collect();
    let one = Trains { dt_ms: 1.0, start: 0, stop: 96, sizes: vec![5], spikes };
    let m = &analyze(&one, &options(), &Device::Cpu).unwrap().populations[0];
    close(m.entropy_bits.mean, 1.0);
    close(m.mutual_information_bits.unwrap().mean, 1.0);
    close(m.synchrony.chi, 1.0);
    close(m.synchrony.variance, 0.25);
    assert_eq!((m.interval_ms.unwrap().mean, m.cv.unwrap().mean, m.bursts.count), (8.0, 0.0, 0));
    // Unrelated trains, p a step and P a bin: CV sqrt(1 - p), fano 1 - P, chi 1 / sqrt(cells), information of the bias of
    // counting.
    let mut rng = Rng::new(4, 0);
    let mut spikes = Vec::new();
    for step in 0..40_000u64 {
        spikes.extend((0..50).filter(|_| rng.below(1000) < 40).map(|cell| Spike { step, cell }));
    }
    let t = Trains { dt_ms: 1.0, start: 0, stop: 40_000, sizes: vec![50], spikes };
    let found = analyze(&t, &Options { bin: 2, ..options() }, &Device::Cpu).unwrap();
    let m = &found.populations[0];
    assert!((m.cv.unwrap().mean / 0.96f64.sqrt() - 1.0).abs() < 0.02, "{:?}", m.cv);
    assert!(
        (m.synchrony.fano / 0.9216 - 1.0).abs() < 0.05 && (m.synchrony.chi * 50f64.sqrt() - 1.0).abs() < 0.03,
        "{m:?}"
    );
    assert!((m.mutual_information_bits.unwrap().mean / bias(found.bins) - 1.0).abs() < 0.1, "{m:?}");
    // Nothing at all.
    let none = analyze(&Trains { sizes: vec![3, 0], ..Trains::default() }, &options(), &Device::Cpu).unwrap();
    assert_eq!(none.populations[0].silent, 1.0);
    assert!(none.populations.iter().all(|m| m.synchrony == Synchrony::default() && m.cv.is_none()));
}

/// Degrees and clustering against the matrix of who is joined to whom.
#[test]
fn graphs_are_those_of_the_matrix() {
    for (seed, rule) in [(1, Rule::Probability(0.2)), (2, Rule::Total { count: 300, multapses: true })] {
        let mut n = Network::new(1.0, seed).unwrap();
        for (name, size) in [("a", 30), ("b", 12)] {
            n.add(Population::new(name, models::find("lif_exp").unwrap(), size));
        }
        for (source, target) in [(0, 0), (0, 1), (1, 0)] {
            let (weight, delay) = (1.0.into(), Delay::Drawn(1.0.into()));
            n.projections.push(Projection {
                source,
                target,
                rule: rule.clone(),
                weight,
                delay,
                autapses: true,
                plasticity: None,
                storage: Storage::Stored,
                weight_bits: Default::default(),
            });
        }
        let plan = Plan::new(n).unwrap();
        let mut many = vec![vec![0u32; 42]; 42];
        for i in 0..3 {
            let p = &plan.network.projections[i];
            let table = connect::synapses(&plan, i).unwrap();
            for (s, t) in table.source.iter().zip(&table.target) {
                many[plan.first[p.source] as usize + *s as usize][plan.first[p.target] as usize + *t as usize] += 1;
            }
        }
        assert!(many.iter().flatten().sum::<u32>() > 200);
        let joined = |a: usize, b: usize| a != b && many[a][b] + many[b][a] > 0;
        for (g, cells) in graph(&plan, &Device::Cpu).unwrap().iter().zip([0..30, 30..42]) {
            let out: Vec<f64> = cells.clone().map(|c| f64::from(many[c].iter().sum::<u32>())).collect();
            let onto: Vec<f64> = cells.clone().map(|c| f64::from(many.iter().map(|r| r[c]).sum::<u32>())).collect();
            assert_eq!((g.out_degree, g.in_degree), (Spread::of(&out), Spread::of(&onto)));
            let local: Vec<f64> = cells
                .filter_map(|c| {
                    let own: Vec<usize> = (0..42).filter(|x| joined(c, *x)).collect();
                    let pairs = own.iter().flat_map(|a| own.iter().map(move |b| (*a, *b)));
                    let closed = pairs.filter(|(a, b)| joined(*a, *b)).count() as f64;
                    let k = own.len() as f64;
                    (own.len() > 1).then(|| closed / (k * (k - 1.0)))
                })
                .collect();
            close(g.clustering.unwrap(), mean(&local));
        }
    }
}

/// Sizes that a file may say and that no machine has room for are refused with both numbers; spikes of no cell too.
#[test]
fn sizes_beyond_the_machine_are_refused() {
    let spike = |step, cell| Spike { step, cell };
    let trains = |sizes: Vec<u32>, stop, spikes| Trains { dt_ms: 0.1, start: 0, stop, sizes, spikes };
    let refused = |t: &Trains, bin| analyze(t, &Options { bin, ..options() }, &Device::Cpu).unwrap_err();
    // Counts of 100,000 populations in 2^28 bins are 107 TB.
    let e = refused(&trains(vec![0; 100_000], 1 << 28, vec![]), 1);
    assert!(matches!(e.kind(), crate::ErrorKind::OutOfMemory { asked, .. } if *asked > 100_000_000_000_000), "{e}");
    let says = "an analysis of 0 spikes of 0 cells in 100000 populations, in 268435456 bins, needs 107";
    assert!(e.to_string().contains(says) && e.to_string().contains("GB are free"), "{e}");
    // 2^47 cells, and bins without number.
    let e = refused(&trains(vec![u32::MAX; 1 << 15], 10, vec![spike(3, 7)]), 1);
    assert!(matches!(e.kind(), crate::ErrorKind::OutOfMemory { .. }), "{e}");
    let e = refused(&trains(vec![1], u64::MAX, vec![]), 1).to_string();
    assert!(e.contains("18446744073709551615 steps in bins of 1 make"), "{e}");
    let e = refused(&trains(vec![2, 0, 3], 10, vec![spike(3, 5)]), 1).to_string();
    assert!(e.contains("a spike of cell 5 in step 3 is not one of 5 cells from step 0 to 10"), "{e}");
    let e = refused(&trains(vec![2], 10, vec![spike(10, 1)]), 1).to_string();
    assert!(e.contains("in step 10"), "{e}");
    // The estimate is of what is there.
    let small = trains(vec![2, 300], 100, vec![spike(0, 1), spike(1, 1), spike(4, 9), spike(5, 301)]);
    assert_eq!(bytes(&small, &[0, 2, 302], 10), 64 * 302 + 64 * 4 + 128 * 2 + 10 * 24 + 64 * 4 + 8 * 4);
}

/// A GPU counts what the CPU counts, to the last one: trains of many lengths, bursts across the lanes of a warp, a population without
/// cells and one of more than are looked at in pairs, bins of one step and of more than there are.
#[test]
fn on_a_gpu_networks_and_their_trains_are_counted_alike() {
    let Some(gpu) = crate::check::gpu::gpu() else { return };
    let mut rng = Rng::new(7, 0);
    let sizes = vec![3u32, 0, PAIRED as u32 + 9, 1];
    let mut spikes = Vec::new();
    for step in 20..777u64 {
        for cell in 0..sizes.iter().sum() {
            let often = [2, 0, 40, 990][(cell % 4) as usize];
            // Of the first cells some fire in nearly every step, so that their runs pass from one 32 to the next.
            if rng.below(1000) < if !(3..=250).contains(&cell) { often } else { often / 6 } {
                spikes.push(Spike { step, cell });
            }
        }
    }
    let trains = Trains { dt_ms: 0.5, start: 20, stop: 777, sizes, spikes };
    assert!(trains.spikes.len() > 10_000);
    let mut first = vec![0u64];
    trains.sizes.iter().for_each(|size| first.push(first[first.len() - 1] + u64::from(*size)));
    for (bin, burst_interval, burst_spikes) in [(4, 6, 3), (1, 1, 2), (33, 700, 40), (2000, 6, 3)] {
        let options = Options { bin, burst_interval, burst_spikes };
        let frame = Frame { trains: &trains, options: &options, first: &first, bins: (777 - 20) / bin };
        let (want, got) = (Tallies::on_cpu(&frame), cuda::tallies(&frame, &gpu.device).unwrap());
        assert!(want.cells.iter().any(|c| c.bursts > u32::from(burst_interval < 100)));
        assert!(bin > 100 || want.together[2].iter().sum::<u32>() > 100);
        assert!(want == got, "bins of {bin} steps: {:?}", first_difference(&want, &got));
    }
    let none = Trains { sizes: vec![3, 0], ..Trains::default() };
    let (how, device) = (options(), Device::Cuda(gpu.device.clone()));
    assert_eq!(analyze(&none, &how, &device).unwrap(), analyze(&none, &how, &Device::Cpu).unwrap());
    // Every rule that is drawn, with and without cells joined to themselves, and two that the host enumerates.
    let mut n = Network::new(1.0, 3).unwrap();
    for (name, size) in [("a", 300), ("b", 40), ("c", 1)] {
        n.add(Population::new(name, models::find("lif_exp").unwrap(), size));
    }
    let rules = [
        (0, 0, Rule::InDegree { count: 20, multapses: true }, false),
        (0, 1, Rule::OutDegree { count: 3, multapses: true }, true),
        (1, 0, Rule::Total { count: 2000, multapses: true }, true),
        (1, 1, Rule::Total { count: 300, multapses: true }, false),
        (0, 0, Rule::Probability(0.02), true),
        (2, 1, Rule::AllToAll, true),
    ];
    for (source, target, rule, autapses) in rules {
        let (weight, delay, plasticity) = (1.0.into(), Delay::Drawn(1.0.into()), None);
        n.projections.push(Projection {
            source,
            target,
            rule,
            weight,
            delay,
            autapses,
            plasticity,
            storage: Storage::Stored,
            weight_bits: Default::default(),
        });
    }
    let plan = Plan::new(n).unwrap();
    let samples = Samples::new(&plan);
    let (want, got) = (Joined::on_cpu(&plan, &samples).unwrap(), cuda::joined(&plan, &samples, &gpu.device).unwrap());
    assert!(want.samples.as_ref().unwrap().iter().map(|[_, closed]| closed).sum::<u32>() > 10_000);
    assert_eq!(want, got);
}

fn first_difference(a: &Tallies, b: &Tallies) -> String {
    let at = |name: &str, differs: bool| if differs { format!("{name} ") } else { String::new() };
    at("begin", a.begin != b.begin)
        + &at("steps", a.steps != b.steps)
        + &at("cells", a.cells != b.cells)
        + &at("counts", a.counts != b.counts)
        + &at("together", a.together != b.together)
        + &at("joint", a.joint != b.joint)
}
