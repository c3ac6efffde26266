//! That the families are what they say, and are checked before they are timed.

use super::networks::{MICROCIRCUIT, smaller};
use super::time::{Measured, Outcome, measure};
use super::*;
use crate::check::gpu::gpu;
use crate::config::Config;
use crate::progress::Silent;
use crate::spiking::network::read::read;
use crate::spiking::simulate::cuda;
use crate::spiking::simulate::measure::Runner;
use crate::spiking::{Engine, Plan};
use crate::{DeviceProps, ErrorKind};

fn case(text: &str) -> Case {
    text.parse().unwrap()
}

fn example(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn timed(family: &str, text: &str, device: &Device) -> Measured {
    match measure(find(family).unwrap(), &case(text), device, 0.01, &Silent).unwrap() {
        Outcome::Timed(found) => *found,
        Outcome::Differs(what) => panic!("{family} {text}: {what}"),
    }
}

#[test]
fn networks_are_those_of_the_examples() {
    assert_eq!(MICROCIRCUIT, example("microcircuit.toml"));
    let settings = read(&Config::parse(&example("network.toml"), "network.toml").unwrap()).unwrap();
    let (network, discard, _) = find("network").unwrap().network(&case("1000000x1000_dt0.1")).unwrap();
    assert_eq!((format!("{network:?}"), discard), (format!("{:?}", settings.network), settings.discard_ms));
    let mut other = Config::parse(MICROCIRCUIT, "m.toml").unwrap();
    for set in ["simulation.variant=\"dc\"", "simulation.scale=0.2", "simulation.seed=9"] {
        other.set(set).unwrap();
    }
    let (network, ..) = find("microcircuit").unwrap().network(&case("full_dc,scale=0.2,seed=9")).unwrap();
    assert_eq!(format!("{network:?}"), format!("{:?}", read(&other).unwrap().network));
    let (network, ..) = find("microcircuit").unwrap().network(&case("full_poisson_stdp")).unwrap();
    assert!(network.projections.iter().any(|p| p.plasticity.is_some()) && network.cells() == 77_169);
}

#[test]
fn cases_of_each_family_are_its_own_and_can_be_made_smaller() {
    for family in families() {
        for set in [CaseSet::Compared, CaseSet::Cpu] {
            let cases = family.cases(set);
            assert!(!cases.is_empty());
            for case in cases {
                family.allow(&case).unwrap();
                assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
                let (mut small, mut steps) = (case.clone(), 0);
                while let Some(next) = smaller(&small) {
                    (small, steps) = (next, steps + 1);
                    family.allow(&small).unwrap();
                }
                let plan = Plan::new(family.network(&small).unwrap().0).unwrap();
                assert!(steps > 2 && plan.cells() < 1000 && plan.expected_synapses() < 1e5, "{small}");
            }
        }
    }
}

#[test]
fn other_cases_are_refused_with_their_values() {
    for (family, text, says) in [
        (
            "microcircuit",
            "full_poison",
            "is not one of full_poisson, full_dc, full_poisson_stdp; did you mean `full_poisson`?",
        ),
        ("microcircuit", "B4", "case `B4` is not one of full_poisson"),
        ("microcircuit", "full_dc_N4", "axis N is not one of none"),
        ("microcircuit", "full_dc,scale=2", "scale=2 must lie between 0.001 and 1"),
        ("microcircuit", "full_dc,scale=x", "scale=x is not a valid value"),
        ("microcircuit", "full_dc,sclae=0.1", "option sclae is not one of scale, gpus, replicas, seed, ms, discard"),
        ("network", "1000x100", "has no size dt"),
        ("network", "1000x100_dt0.2", "dt is 0.1 or 1, for which the drive is tuned, not 0.2"),
        ("network", "1000x100_dt1_full", "`full` is not an axis letter"),
        ("network", "4x100_dt1", "4 cells must lie between 10 and 4000000000"),
        ("network", "100x2_dt1", "2 synapses a cell must lie between 5 and 100000"),
        ("network", "100x10_dt1,ms=0", "ms=0 must lie between 1 and 1000000"),
        ("network", "100x10_dt1,discard=1", "discard=1 must lie between 20 and"),
        ("network", "100x10_dt1,discard=NaN", "discard=NaN must lie between"),
        ("network", "100x10_dt1,gpus=9", "gpus=9 must lie between 1 and 8"),
        ("network", "100x10_dt1,replicas=0", "replicas=0 must lie between 1 and 4096"),
        ("network", "100x10_dt1,rule=edges", "rule=edges is fixed_indegree or fixed_outdegree"),
        ("network", "100x10_dt1,synapses=none", "synapses=none is one of stored, procedural, auto"),
        ("network", "100x10_dt1,precision=fast", "precision=fast: spikes are the same bits everywhere"),
        ("neuron_update", "100x10", "axis  is not one of N"),
        ("neuron_update", "N100,scale=0.1", "option scale is not one of seed, ms, discard"),
        ("synaptic_delivery", "100x10", "has no size S"),
        ("synaptic_delivery", "100x10_S51", "51 spikes a step must lie between 1 and 50"),
        ("stdp_update", "100x0_S1", "0 synapses a cell must lie between 1 and"),
    ] {
        let e = find(family).unwrap().allow(&case(text)).unwrap_err();
        assert!(e.to_string().contains(says) && matches!(e.kind(), ErrorKind::Config { .. }), "{family} {text}: {e}");
    }
    let e = measure(find("network").unwrap(), &case("100x10_dt1,gpus=2"), &Device::Cpu, 0.01, &Silent).err().unwrap();
    assert!(e.to_string().contains("gpus=2 is of GPUs"), "{e}");
    find("network").unwrap().allow(&case("100x10_dt1,precision=exact")).unwrap();
}

/// Small cases of all, short.
const SMALL: [(&str, &str); 8] = [
    ("microcircuit", "full_poisson,scale=0.02,ms=60,discard=30"),
    // Without noise from outside a tenth of it and less is silent.
    ("microcircuit", "full_dc,scale=0.2,ms=60,discard=30"),
    ("microcircuit", "full_poisson_stdp,scale=0.02,ms=60,discard=30"),
    ("network", "400x50_dt1,ms=200,discard=50"),
    ("network", "100x20_dt1,ms=200,discard=50,replicas=4"),
    ("neuron_update", "N1000,ms=20"),
    ("synaptic_delivery", "1000x100_S3,ms=20"),
    ("stdp_update", "500x50_S3,ms=20"),
];

#[test]
fn small_cases_are_timed_and_repeat_their_spikes() {
    for (family, text) in SMALL {
        let runs = [(); 2].map(|()| timed(family, text, &Device::Cpu));
        for m in &runs {
            assert!(m.ms.len() >= 3 && m.ms.iter().all(|t| *t > 0.0), "{family} {text}: {:?}", m.ms);
            assert!(
                m.cost.bytes > 0 && m.cost.flops > 0 && m.peak_bytes > 0 && m.launches == 0,
                "{text}: {:?}",
                m.cost
            );
            let checked = if text.starts_with("full_dc") { "full_dc,ms=60,discard=30,scale=0.025" } else { text };
            assert_eq!((m.checked.to_string(), m.variant), (checked.to_owned(), "shards"));
            assert!(m.network.spikes_per_step > 0.0 && m.network.events_per_step > 0.0, "{text}: {:?}", m.network);
        }
        let [a, b] = runs.map(|m| m.network);
        assert_eq!((&a.spikes_sha256, &a.rates_hz), (&b.spikes_sha256, &b.rates_hz));
        let replicas = if text.ends_with("replicas=4") { 4 } else { 1 };
        assert_eq!(a.replicas, replicas);
        assert_eq!(a.real_time_factor_per_replica, a.real_time_factor.map(|x| x / replicas as f64));
        let whole = ["microcircuit", "network"].contains(&family);
        assert_eq!((a.spikes_sha256.is_some(), a.real_time_factor.is_some()), (whole, whole));
        let parts =
            [("neuron_update", "update"), ("synaptic_delivery", "delivery"), ("stdp_update", "learning + delivery")];
        let part = parts.iter().find(|(f, _)| *f == family).map_or("steps, and spikes to the host", |(_, part)| part);
        assert_eq!(a.timed, part);
    }
    // Of a step: states of three variables and a port, and a spike through a hundred synapses three times.
    let m = timed("neuron_update", "N1000,ms=20", &Device::Cpu);
    assert_eq!((m.cost.bytes, m.cost.flops), (1000 * 8 * 4, 1000 * 6));
    let m = timed("synaptic_delivery", "1000x100_S3,ms=20", &Device::Cpu);
    assert!((150.0..600.0).contains(&m.network.events_per_step), "{:?}", m.network);
    assert!((m.cost.flops as f64 - m.network.events_per_step).abs() <= 1.0 && m.cost.bytes > 4 * m.cost.flops);
    // Each changes, which is most of what there is to move.
    let m = timed("stdp_update", "500x50_S3,ms=20", &Device::Cpu);
    assert!(m.cost.bytes >= 18 * m.cost.flops - 18, "{:?}", m.cost);
}

/// The hash is that of a run from the first step on, and the rate of the network with its in-degree is in its range.
#[test]
fn the_network_fires_as_it_is_meant_to() {
    let text = "10000x1000_dt1,ms=1000";
    let m = timed("network", text, &Device::Cpu);
    assert_eq!(m.checked, case("10000x100_dt1,ms=1000"));
    let rate = m.network.rate_hz.unwrap();
    assert!(m.network.rate_in_range == Some(true) && (4.5..=5.5).contains(&rate), "{rate}");
    let plan = Plan::new(find("network").unwrap().network(&case(text)).unwrap().0).unwrap();
    let mut engine = crate::spiking::simulate::CpuEngine::new(&plan, &|_, _| ()).unwrap();
    let (mut spikes, mut hash) = (Vec::new(), crate::spiking::record::SpikeHash::default());
    engine.advance(1500, &mut spikes).unwrap();
    hash.add(&spikes);
    assert_eq!((m.network.spikes, m.network.spikes_sha256), (Some(spikes.len() as u64), hash.hex()));
    assert_eq!(rate, spikes.iter().filter(|s| s.step >= 500).count() as f64 / 10_000.0);
    // Where half of the cells join each they fire as they like, and the record says so.
    let m = timed("network", "2000x1000_dt1,ms=200", &Device::Cpu);
    assert!(m.network.rate_in_range == Some(false) && m.network.rate_hz < Some(4.5), "{:?}", m.network);
    // Another in-degree is meant to have no rate.
    assert_eq!(timed("network", "400x50_dt1,ms=50,discard=20", &Device::Cpu).network.rate_in_range, None);
}

#[test]
fn what_differs_is_said() {
    let plan = |text: &str| Plan::new(find("network").unwrap().network(&case(text)).unwrap().0).unwrap();
    let (a, b) = (plan("200x20_dt1"), plan("200x20_dt1,seed=2"));
    let mut spikes = Vec::new();
    let mut runner = Runner::new(&a, &Device::Cpu, &[]).unwrap();
    let what = compare::differs(&mut runner, &b, &mut spikes).unwrap().expect("other networks have other spikes");
    assert!(what.starts_with("its spikes are not those of the reference: "), "{what}");
    // The same cells and no spike, another drive: states alone differ.
    let mut n = find("synaptic_delivery").unwrap().network(&case("100x10_S1")).unwrap().0;
    n.projections.clear();
    n.populations.remove(0);
    n.drives.push(crate::spiking::Drive { target: 0, kind: crate::spiking::DriveKind::Dc { current: 1.0 } });
    let a = Plan::new(n.clone()).unwrap();
    n.drives.clear();
    let b = Plan::new(n).unwrap();
    let mut runner = Runner::new(&a, &Device::Cpu, &[]).unwrap();
    let what = compare::differs(&mut runner, &b, &mut Vec::new()).unwrap().expect("a current moves states");
    assert_eq!(what, "after 200 steps states of cells are not the reference's");
}

/// On an H200 rows that learn lie in the resident kernel.
#[test]
fn compared_cases_run_in_the_resident_kernel() {
    for (family, learns) in [("neuron_update", false), ("synaptic_delivery", false), ("stdp_update", true)] {
        let family = find(family).unwrap();
        for case in family.cases(CaseSet::Compared) {
            let plan = Plan::new(family.network(&case).unwrap().0).unwrap();
            let config = cuda::Config::choose(&plan, &DeviceProps::SM_90).unwrap();
            assert_eq!(config.learns.is_some(), learns, "{case}: {config}");
        }
    }
}

/// Ten million cells fit on an H200 with segments of 8 words, and not with the 16 that hold nearly all rows.
#[test]
fn segments_are_shorter_where_memory_is_short() {
    let family = find("network").unwrap();
    for (cells, segment, gb) in [(1_000_000, 16, 17.0..21.0), (10_000_000, 8, 100.0..125.0)] {
        let case = format!("{cells}x1000_dt0.1").parse().unwrap();
        let plan = Plan::new(family.network(&case).unwrap().0).unwrap();
        let config = cuda::Config::choose(&plan, &DeviceProps::SM_90).unwrap();
        assert_eq!(config.segment, segment, "{case}: {config}");
        let asked = config.footprint(&plan).most() / 1e9;
        assert!(gb.contains(&asked), "{case}: {asked} GB");
    }
}

#[test]
fn on_a_gpu_networks_of_the_benchmarks_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let device = Device::Cuda(gpu.device.clone());
    let few = gpu.device.name().starts_with("emulated");
    let cases: &[(&str, &str)] = if few {
        &[
            ("microcircuit", "full_poisson,scale=0.005,ms=2,discard=20"),
            ("network", "300x20_dt1,ms=10,discard=20"),
            ("network", "300x20_dt1,rule=fixed_outdegree,synapses=procedural,ms=10,discard=20"),
            ("neuron_update", "N300,ms=2,discard=20"),
            ("synaptic_delivery", "200x20_S3,ms=2"),
            ("stdp_update", "200x20_S3,ms=2,discard=20"),
        ]
    } else {
        &SMALL
    };
    for (family, text) in cases {
        let m = timed(family, text, &device);
        assert_eq!(m.checked.to_string(), *text);
        assert!(m.ms.len() >= 3 && m.ms.iter().all(|t| *t > 0.0) && m.cost.flops > 0, "{text}: {:?}", m.ms);
        let cpu = timed(family, text, &Device::Cpu).network;
        assert_eq!((&m.network.spikes_sha256, m.network.rate_hz), (&cpu.spikes_sha256, cpu.rate_hz), "{text}");
        assert!(m.network.spikes.is_none_or(|n| n > 0) && m.launches > 0 || m.pass == "step", "{text}");
        // Of a step's parts all are told, with what is timed among them.
        let (parts, timed) = (&m.network.parts, &m.network.timed);
        let has = |name: &str| parts.iter().any(|p| p.what == name && p.us > 0.0);
        let want = match *family {
            "neuron_update" => timed == "a whole step" && has("update"),
            "synaptic_delivery" => timed.split(" + ").all(has) && has("update"),
            "stdp_update" => timed == "a whole step" && has("learning and delivery") && has("reading rows"),
            _ => parts.is_empty() && !has("update"),
        };
        assert!(want, "{text}: {timed}: {parts:?}");
    } // Of many synapses that change, sums and some cells.
    let plan = |text: &str| Plan::new(find("stdp_update").unwrap().network(&case(text)).unwrap().0).unwrap();
    let (a, b) = (plan("200x20_S3"), plan("200x21_S3"));
    for (other, same) in [(&a, true), (&b, false)] {
        let mut runner = Runner::new(&a, &device, &[]).unwrap();
        let what = compare::differs_by(&mut runner, other, &mut Vec::new(), 0.0).unwrap();
        assert_eq!(what.is_none(), same, "{what:?}");
    }
}
