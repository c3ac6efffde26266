//! Synapses of four bytes where slot, delay and weight have more than 32 bits: what their words are, and the CPU's spikes with segments
//! of any length.

use super::config::{Asked, Place};
use super::narrow::{BEYOND, Narrow};
use super::*;
use crate::DeviceProps;
use crate::check::gpu::{Gpu, gpu};
use crate::op::Case;
use crate::spiking::bench;
use crate::spiking::network::{
    Delay, Distribution, Drive, DriveKind, Network, Outside, Population, Projection, Rule, Storage,
};
use crate::spiking::{models, simulate::CpuEngine};

/// What network.cuh makes of a number.
fn weight(n: &Narrow, code: u32) -> i32 {
    match code {
        0 => 0,
        c if c >= n.beyond => (c as i32 - (n.beyond + BEYOND) as i32) * n.scale,
        c => c as i32 + if c < n.negative { n.low } else { n.high },
    }
}

/// The numbers of a weight, as network.cuh has them.
fn numbers(n: &Narrow, weight: i32) -> [u32; 2] {
    let (from, to, base) = if weight > 0 { (1, n.negative, n.low) } else { (n.negative, n.beyond, n.high) };
    if weight == 0 {
        return [0, 0];
    }
    let (code, middle) = (weight - base, (n.beyond + BEYOND) as i32);
    let steps = |excess: i32| (excess + n.scale - 1) / n.scale;
    if code < from as i32 {
        let k = steps(from as i32 - code);
        [(code + k * n.scale) as u32, (middle - k) as u32]
    } else if code >= to as i32 {
        let k = steps(code - to as i32 + 1);
        [(code - k * n.scale) as u32, (middle + k) as u32]
    } else {
        [code as u32, 0]
    }
}

fn case(text: &str) -> Plan {
    Plan::new(bench::find("network").unwrap().network(&text.parse::<Case>().unwrap()).unwrap().0).unwrap()
}

/// Every weight of a plan is what its words add up to, and no word is none of them.
fn assert_whole(plan: &Plan, slot_bits: u32) -> Narrow {
    let n = Narrow::choose(plan, slot_bits).unwrap();
    let most = (1u32 << (32 - slot_bits)) / n.delays;
    assert!(n.beyond <= most && n.negative >= 1 && n.beyond >= n.negative, "{n:?} of {most}");
    for efficacy in &plan.efficacies {
        let codes = efficacy.weight.as_ref().unwrap();
        for w in codes.least()..=codes.greatest() {
            let [own, more] = numbers(&n, w);
            assert!(own < n.beyond && more < most, "{n:?}: {w} is {own} and {more}");
            assert_eq!(weight(&n, own) + weight(&n, more), w, "{n:?}: {own} and {more}");
        }
    }
    n
}

#[test]
fn weights_are_what_their_words_add_up_to() {
    // A million cells on 132 multiprocessors, with slots for one current and, of 14 bits, for two.
    let plan = case("1000000x1000_dt1");
    let n = assert_whole(&plan, 14);
    assert_eq!((n.delays, n.shortest), (20, 1));
    assert!((1..100).contains(&n.in_two) && n.scale <= 64, "{n:?}");
    // Half as many slots leave all weights a number; a quarter of the numbers is too few.
    assert_eq!(assert_whole(&plan, 13).in_two, 0);
    assert!(assert_whole(&plan, 15).in_two > 1000);
    assert_eq!(Narrow::choose(&plan, 16), None);
    // The quotient by which a delay is found is exact.
    for delays in [2u32, 3, 7, 20, 63, 4095] {
        let inverse = (1u64 << 32).div_ceil(delays.into());
        for rest in (0..1u64 << 20).chain([(1 << 20) - 1]) {
            assert_eq!((rest * inverse) >> 32, rest / u64::from(delays), "{rest} / {delays}");
        }
    }
}

/// Cells of which four fifths excite, joined at random by all rules that are drawn, with delays of 0.5 ms to `longest_ms`; and sources.
fn network(cells: u32, each: u32, longest_ms: f64, spread: f64) -> Plan {
    let mut n = Network::new(0.5, 4).unwrap();
    for (name, size) in [("E", cells - cells / 5), ("I", cells / 5)] {
        let mut p = Population::new(name, models::find("lif_exp").unwrap(), size);
        p.initial[0] = Distribution::uniform(-65.0, -49.0);
        n.add(p.parameter("I_e", 420.0).unwrap());
    }
    n.add(Population::new("noise", models::find("poisson").unwrap(), 30).parameter("rate", 100.0).unwrap());
    for (source, mean) in [(0, 40.0), (1, -180.0), (2, 60.0)] {
        for target in 0..2 {
            let (sources, targets) = (n.populations[source].size, n.populations[target].size);
            let rule = match (source + target) % 4 {
                0 => Rule::InDegree { count: each, multapses: true },
                1 => Rule::Total { count: u64::from(each) * u64::from(targets), multapses: true },
                2 => Rule::OutDegree { count: (each * targets).div_ceil(sources), multapses: true },
                _ => Rule::InDegree { count: each.min(sources), multapses: false },
            };
            let weight = Distribution::normal(mean, spread * f64::abs(mean));
            let weight = if mean > 0.0 {
                weight.within(0.0, f64::INFINITY, Outside::Redraw)
            } else {
                weight.within(f64::NEG_INFINITY, 0.0, Outside::Clip)
            };
            let delay = Delay::Drawn(Distribution::uniform(0.5, longest_ms));
            n.projections.push(Projection {
                source,
                target,
                rule,
                weight,
                delay,
                autapses: true,
                plasticity: None,
                storage: Storage::Stored,
                weight_bits: Default::default(),
            });
        }
    }
    for target in 0..2 {
        let kind = DriveKind::Poisson { rate_hz: 3000.0, weight: 40.0, start_ms: 0.0, stop_ms: f64::INFINITY };
        n.drives.push(Drive { target, kind });
    }
    Plan::new(n).unwrap()
}

/// With blocks whose calendars lie beside the states.
fn config(plan: &Plan, gpu: &Gpu, blocks: usize, asked: Asked) -> Result<Config> {
    let mut props = *gpu.device.props();
    let layout = Layout::even(&plan.network, 1);
    let ring = (plan.max_delay as usize + 1).next_power_of_two();
    let wide = Config::asked(plan, &props, blocks, &layout, Asked { bytes: Some(8), segment: None });
    let pitch = wide.map_or(plan.cells() as usize, |c| c.pitch);
    // What a ring of sums in shared memory would not fit into.
    props.shared_per_block_optin = (5120 + 4 * (ring * pitch).min(2 * ring + 24 * pitch + 2000)) as u32;
    Config::asked(plan, &props, blocks, &layout, asked)
}

/// The CPU's spikes and state after `steps`, and after half of them.
fn assert_same(plan: &Plan, gpu: &Gpu, config: Config, steps: u64) {
    pool::set_num_threads(2);
    let mut cpu = CpuEngine::with_shards(plan, 2, &|_, _| ()).unwrap();
    let (mut want, mut got) = (Vec::new(), Vec::new());
    cpu.advance(steps / 2, &mut want).unwrap();
    let (half, cut) = (want.len(), cpu.state().unwrap());
    cpu.advance(steps - steps / 2, &mut want).unwrap();
    assert!(half > 20 && want.len() > half + 20, "only {} spikes", want.len());
    let layout = Layout::even(&plan.network, 1);
    let capacity = 4 * plan.cells() as usize;
    let mut engine =
        CudaEngine::with(plan, std::slice::from_ref(&gpu.device), config, layout, capacity, &|_, _| ()).unwrap();
    let what = format!("{config}, room for {}", config.room);
    assert_eq!(engine.synapses(), cpu.synapses(), "{what}");
    for pieces in [[1, steps - 1], [steps / 3, steps - steps / 3]] {
        got.clear();
        pieces.iter().for_each(|steps| engine.advance(*steps, &mut got).unwrap());
        let alike = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
        assert!(got == want, "{what}: {} spikes, not {}; the first {alike} are alike", got.len(), want.len());
        assert!(engine.state().unwrap() == cpu.state().unwrap(), "{what}: state");
        // What is under way goes back to the device.
        engine.restore(&cut).unwrap();
        got.clear();
        engine.advance(steps - steps / 2, &mut got).unwrap();
        assert!(got == want[half..] && engine.state().unwrap() == cpu.state().unwrap(), "{what}: from its middle");
        let fresh = CpuEngine::with_shards(plan, 1, &|_, _| ()).unwrap();
        engine.restore(&fresh.state().unwrap()).unwrap();
    }
    let mut timed = Vec::new();
    let shares = engine.advance_in_parts(steps, &mut timed).unwrap().unwrap();
    assert!(timed == want && shares.iter().any(|(name, _)| *name == parts::CALENDAR), "{what}: with clocks");
}

/// Rows within their segments, rows much longer, empty ones, and lists with room and without.
#[test]
fn on_a_gpu_narrow_synapses_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let few = gpu.device.name().starts_with("emulated");
    let steps = if few { 60 } else { 4000 };
    for (cells, each, longest, blocks, segment, room) in [
        (120, 30, 300.0, 1, Some(8), None),
        (140, 30, 300.0, 2, Some(10), Some(20)),
        (160, 20, 600.0, 3, Some(12), None),
        (160, 12, 600.0, 3, Some(14), Some(8)),
        (160, 12, 600.0, 4, Some(24), None),
        (200, 25, 600.0, 4, None, None),
    ] {
        let plan = network(cells, each, longest, 0.05);
        let mut config = config(&plan, &gpu, blocks, Asked { bytes: Some(4), segment }).unwrap();
        assert!(config.narrow.is_some() && config.place == Place::Calendar && !config.wide, "{config}");
        config.room = room.unwrap_or(config.room);
        assert_same(&plan, &gpu, config, steps);
    }
}

/// Windows so narrow that one synapse in a hundred has two words; and a count that the last word of a segment cannot say.
#[test]
fn on_a_gpu_synapses_of_two_words_are_one() {
    let Some(gpu) = gpu() else { return };
    let steps = if gpu.device.name().starts_with("emulated") { 60 } else { 4000 };
    let plan = network(120, 30, 300.0, 0.15);
    let mut some = config(&plan, &gpu, 1, Asked { bytes: Some(4), segment: Some(12) }).unwrap();
    let bits = (some.slot_bits..20).rev().find(|bits| Narrow::choose(&plan, *bits).is_some()).unwrap();
    some.narrow = Narrow::choose(&plan, bits);
    some.slot_bits = bits;
    let synapses = plan.expected_synapses() * f64::from(some.narrow.unwrap().in_two) * 1e-6;
    assert!(synapses > 10.0, "{synapses} have two words: {some}");
    assert_whole(&plan, bits);
    assert_same(&plan, &gpu, some, steps);

    // Two delays and two weights take three bits.
    let mut n = network(120, 30, 1.0, 0.05).network.clone();
    n.projections.iter_mut().for_each(|p| p.weight = if p.weight.mean() > 0.0 { 40.0 } else { -180.0 }.into());
    let plan = Plan::new(n).unwrap();
    let mut long = some;
    (long.ring, long.segment, long.slot_bits) = (plan.max_delay as usize + 1, 8, 29);
    long.narrow = Narrow::choose(&plan, long.slot_bits);
    assert!(long.narrow.is_some_and(|n| n.in_two == 0), "{:?}", long.narrow);
    assert_same(&plan, &gpu, long, steps);
}

/// What the bench's cases take, by what is asked for.
#[test]
fn a_million_cells_at_a_step_of_a_millisecond_take_eight_gigabytes() {
    let device = DeviceProps::SM_90;
    let says = |text: &str, asked: Asked| {
        let plan = case(text);
        let config = Config::asked(&plan, &device, 132, &Layout::even(&plan.network, 1), asked);
        config.map(|c| (c.synapse(), c.segment, c.footprint(&plan).most() * 1e-9)).map_err(|e| e.to_string())
    };
    let own = Asked::default();
    let asked = |bytes, segment| Asked { bytes, segment };
    let (bytes, segment, gb) = says("1000000x1000_dt1", own).unwrap();
    assert!((bytes, segment) == (4, 12) && (7.0..7.85).contains(&gb), "{bytes}, {segment}, {gb}");
    let (bytes, segment, gb) = says("1000000x1000_dt1", asked(Some(8), None)).unwrap();
    assert!((bytes, segment) == (8, 16) && gb > 19.0, "{bytes}, {segment}, {gb}");
    let mut before = 0.0;
    for words in [8, 10, 12, 14, 16, 24] {
        let (bytes, segment, gb) = says("1000000x1000_dt1", asked(None, Some(words))).unwrap();
        println!("segments of {words} words: {gb:.2} GB");
        assert!((bytes, segment) == (4, words) && gb > before, "{words}: {gb}");
        before = gb;
    }
    // What was measured is as it was.
    for (text, want) in [("1000000x1000_dt0.1", (8, 16)), ("100000x1000_dt1", (4, 16)), ("10000x1000_dt1", (4, 16))] {
        let (bytes, segment, _) = says(text, own).unwrap();
        assert_eq!((bytes, segment), want, "{text}");
    }
    let two = case("1000000x1000_dt1");
    let two = Config::asked(&two, &device, 132, &Layout::even(&two.network, 2), own).unwrap();
    assert!(two.wide && two.narrow.is_none(), "{two}");
    for (text, asked, says_so) in [
        (
            "1000000x1000_dt1",
            asked(None, Some(9)),
            "segments of 9 words were asked for; there are such of 8 to 64, by twos",
        ),
        ("1000000x1000_dt1", asked(None, Some(66)), "segments of 66 words"),
        ("1000000x1000_dt0.1", asked(None, Some(12)), "by powers of two"),
        ("100000x1000_dt1", asked(Some(8), None), "8 bytes a synapse were asked for, but this one's have 4"),
    ] {
        let e = says(text, asked).unwrap_err();
        assert!(e.contains(says_so), "{e}");
    }
}
