//! Sessions: chunks, changes, checkpoints and interruptions do not show in the spikes.

use super::{Session, checkpoint};
use crate::config::Config;
use crate::progress::{Progress, Silent};
use crate::spiking::Plan;
use crate::spiking::network::files::Files;
use crate::spiking::network::read::{read, read_with};
use crate::spiking::network::{DriveKind, Network};
use crate::spiking::simulate::{CpuEngine, Engine, Spike};
use crate::{Backend, Error, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};

const NETWORK: &str = r#"
schema = 1
[simulation]
dt = 0.1
seed = 3
[[population]]
name = "E"
model = "lif_exp"
size = 400
parameters = { I_e = { distribution = "normal", mean = 380.0, sd = 20.0 } }
initial = { V = { distribution = "uniform", low = -65.0, high = -50.0 } }
[[population]]
name = "I"
model = "lif_exp"
size = 100
[[population]]
name = "P"
model = "poisson"
size = 50
parameters = { rate = 20.0 }
[[projection]]
source = ["E", "P"]
target = ["E", "I"]
rule = "fixed_indegree"
indegree = 20
weight = 60.0
delay = { distribution = "uniform", low = 0.3, high = 3.0 }
[[projection]]
source = "I"
target = ["E", "I"]
rule = "fixed_indegree"
indegree = 20
weight = -250.0
delay = 0.8
[[drive]]
target = ["E", "I"]
kind = "poisson"
rate = 8.0
sources = [400, 500]
weight = 60.0
[[drive]]
target = "I"
kind = "dc"
current = 100.0
[[record]]
population = "E"
cells = [0, 7]
every = 0.5
"#;

fn open(text: &str) -> Session {
    Session::open(read(&Config::parse(text, "n.toml").unwrap()).unwrap(), Backend::Cpu, &Silent).unwrap()
}

/// What an engine of its own does with the same inputs, changed at `at`.
fn by_hand(steps: u64, at: u64, change: impl Fn(&mut Network)) -> Vec<Spike> {
    let settings = read(&Config::parse(NETWORK, "n.toml").unwrap()).unwrap();
    let plan = Plan::new(settings.network.clone()).unwrap();
    let mut engine = CpuEngine::with_shards(&plan, 3, &|_, _| {}).unwrap();
    let mut spikes = Vec::new();
    engine.advance(at, &mut spikes).unwrap();
    let mut network = settings.network;
    change(&mut network);
    let other = Plan::new(network).unwrap();
    let mut next = CpuEngine::with_shards(&other, 2, &|_, _| {}).unwrap();
    next.restore(&engine.state().unwrap()).unwrap();
    next.advance(steps - at, &mut spikes).unwrap();
    spikes
}

#[test]
fn chunks_and_changes_are_those_of_engines_made_anew() {
    // Not at a multiple of four steps, of which drives draw four at a time.
    let (steps, at) = (2500, 1202);
    let whole = by_hand(steps, at, |_| {});
    assert!(whole.len() > 2000, "{}", whole.len());
    let session = open(NETWORK);
    let mut chunks = session.run(at, true, &Silent).unwrap();
    assert!(session.run(0, true, &Silent).unwrap().is_empty());
    chunks.extend(session.run(steps - at, true, &Silent).unwrap());
    assert_eq!(chunks, whole);
    assert_eq!(session.at().unwrap().1, whole.len() as u64);

    let rate = |n: &mut Network| {
        let DriveKind::Poisson { rate_hz, .. } = &mut n.drives[0].kind else { panic!("the first is Poisson") };
        *rate_hz = 5000.0;
        n.drives[2].kind = DriveKind::Dc { current: 250.0 };
        n.populations[2].parameters[0] = 90.0.into();
        n.populations[0].given.set_parameter(8, (0..400).map(|i| f64::from(i) + 200.0).collect());
    };
    let changed = by_hand(steps, at, rate);
    assert_ne!(changed, whole);
    let session = open(NETWORK);
    let mut own = session.run(at, true, &Silent).unwrap();
    session.set_drive(0, 5000.0).unwrap();
    session.set_drive(2, 250.0).unwrap();
    session.set_input(2, vec![90.0]).unwrap();
    session.set_input(0, (0..400).map(|i| f64::from(i) + 200.0).collect()).unwrap();
    let path = std::env::temp_dir().join(format!("chronaxie-session-{}", std::process::id()));
    session.save(path.clone()).unwrap();
    own.extend(session.run(steps - at, true, &Silent).unwrap());
    assert_eq!(own, changed);

    // From the file, where the changes are too.
    let resumed = open(NETWORK);
    resumed.run(17, false, &Silent).unwrap();
    resumed.restore(path.clone()).unwrap();
    assert_eq!(resumed.drives().unwrap()[2].kind, DriveKind::Dc { current: 250.0 });
    let rest = resumed.run(steps - at, true, &Silent).unwrap();
    assert_eq!(rest, own[own.partition_point(|s| s.step < at)..]);
    assert_eq!(resumed.at().unwrap(), session.at().unwrap());
    assert_eq!(checkpoint(&path).unwrap().0, at);

    // Another network, and a file that is damaged anywhere.
    let other = open(&NETWORK.replace("seed = 3", "seed = 4"));
    other.run(5, true, &Silent).unwrap();
    let e = other.restore(path.clone()).unwrap_err();
    assert!(e.to_string().contains("another network") && *e.kind() == ErrorKind::Checkpoint, "{e}");
    assert_eq!(other.at().unwrap().0, 5);
    let good = std::fs::read(&path).unwrap();
    let mut rng = crate::rng::Rng::new(8, 0);
    for _ in 0..300 {
        let mut bad = good.clone();
        let bit = rng.below(bad.len() as u64) as usize;
        bad[bit] ^= 1 << rng.below(8);
        std::fs::write(&path, &bad[..]).unwrap();
        assert_eq!(*checkpoint(&path).unwrap_err().kind(), ErrorKind::Checkpoint);
        std::fs::write(&path, &good[..bit]).unwrap();
        assert_eq!(*checkpoint(&path).unwrap_err().kind(), ErrorKind::Checkpoint);
    }
    let _ = std::fs::remove_file(&path);
}

/// Says after some looks that the user asked to stop.
struct Impatient(AtomicUsize);

impl Progress for Impatient {
    fn interrupted(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) >= 2
    }
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped() {
    let session = open(NETWORK);
    let e = session.run(1 << 40, true, &Impatient(AtomicUsize::new(0))).unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Interrupted);
    let at = session.at().unwrap().0;
    assert!(at > 0);
    let spikes = session.run(100, true, &Silent).unwrap();
    assert_eq!(spikes, by_hand(at + 100, at, |_| {}));
}

#[test]
fn looks_and_settings_are_in_the_terms_of_the_description() {
    let session = open(NETWORK);
    let start = session.state(1).unwrap();
    assert!(start[0].iter().all(|v| *v == -65.0));
    assert_eq!(session.facts().populations[1].variables[0].0, "V");
    session.set_state(1, vec![("V".into(), (0..100).map(|i| i as f32 * 0.1 - 60.0).collect())]).unwrap();
    let set = session.state(1).unwrap();
    assert!(set[0].iter().enumerate().all(|(i, v)| (v - (i as f32 * 0.1 - 60.0)).abs() < 1e-5));
    session.run(20, false, &Silent).unwrap();
    let traces = session.take_traces().unwrap();
    assert_eq!((traces[0].times_ms.len(), traces[0].values[0].len(), traces[0].variables[0]), (4, 8, "V"));
    let now = session.state(0).unwrap();
    assert_eq!([traces[0].values[0][6], traces[0].values[0][7]], [now[0][0], now[0][7]]);
    assert!(session.take_traces().unwrap()[0].times_ms.is_empty());

    // Every synapse of the in-degree, with weights of the description.
    let table = session.synapses(0).unwrap();
    assert_eq!(table.source.len(), 400 * 20);
    assert!(table.weight.iter().all(|w| (w - 60.0).abs() < 0.01));
    assert!(table.delay_ms.iter().all(|d| (0.29..3.01).contains(d)));

    let says = |e: Error| e.to_string();
    assert!(says(session.state(9).unwrap_err()).contains("population 9: there are 3"));
    assert!(says(session.synapses(9).unwrap_err()).contains("projection 9"));
    assert!(says(session.set_drive(9, 1.0).unwrap_err()).contains("drive 9: there are 3"));
    assert!(says(session.set_drive(0, -1.0).unwrap_err()).contains("a rate of -1 Hz"));
    assert!(says(session.set_drive(2, f64::NAN).unwrap_err()).contains("a current of NaN must be finite"));
    assert!(says(session.set_drive(0, 1e9).unwrap_err()).contains("arrivals a step are more than 500"));
    assert!(says(session.set_input(0, vec![1.0; 3]).unwrap_err()).contains("3 values for 400 cells"));
    assert!(says(session.set_input(2, vec![f64::NAN]).unwrap_err()).contains("NaN"));
    assert!(says(session.set_state(0, vec![("W".into(), vec![])]).unwrap_err()).contains("no variable"));
    assert!(says(session.set_state(0, vec![("V".into(), vec![0.0])]).unwrap_err()).contains("1 values for 400"));
    // None of which has changed anything.
    assert!(!session.run(1000, true, &Silent).unwrap().is_empty());
}

#[test]
fn arrays_take_the_place_of_files() {
    let text = r#"{"schema": 1, "simulation": {"dt": 1.0, "seed": 1}, "population": [
        {"name": "S", "model": "spikes", "size": 2, "file": "spikes"},
        {"name": "A", "model": "lif_delta", "places": {"file": "places"},
         "parameters": {"E_L": {"file": "cells", "column": "E_L"}, "V_reset": -80.0}}],
        "projection": [{"source": "S", "target": "A", "rule": "edges", "file": "edges"}]}"#;
    let columns = |list: &[(&str, &[f64])]| list.iter().map(|(n, v)| ((*n).to_owned(), v.to_vec())).collect::<Vec<_>>();
    let config = Config::from_code(text, "network").unwrap();
    let edges: [(&str, &[f64]); 4] =
        [("source", &[0.0, 1.0]), ("target", &[2.0, 0.0]), ("weight", &[30.0, 2.0]), ("delay", &[2.0, 1.0])];
    let places: [(&str, &[f64]); 4] = [("x", &[0.0, 1.0, 2.0]), ("y", &[0.0; 3]), ("z", &[0.0; 3]), ("w", &[5.0; 3])];
    let files = Files::beside(&config)
        .with("spikes", columns(&[("time", &[3.0, 4.0]), ("cell", &[0.0, 1.0])]))
        .with("places", columns(&places))
        .with("cells", columns(&[("E_L", &[-65.0, -66.0, -67.0])]))
        .with("edges", columns(&edges));
    let session = Session::open(read_with(&config, &files).unwrap(), Backend::Cpu, &Silent).unwrap();
    assert_eq!(session.facts().populations[1].positions.as_ref().unwrap()[2], [2.0, 0.0, 0.0, 5.0]);
    // Cells begin at rest, each at its own.
    assert_eq!(session.state(1).unwrap()[0], [-65.0, -66.0, -67.0]);
    // 30 mV lift cell 2 over -50 at step 3 + 2.
    let fired: Vec<(u64, u32)> = session.run(8, true, &Silent).unwrap().iter().map(|s| (s.step, s.cell)).collect();
    assert_eq!(fired, [(3, 0), (4, 1), (5, 4)]);

    let refuse = |name: &str, table: Vec<(String, Vec<f64>)>| {
        read_with(&config, &files.clone().with(name.to_owned(), table)).unwrap_err().to_string()
    };
    assert!(refuse("cells", columns(&[("E_L", &[1.0])])).contains("E_L has 1 values for 3 cells"));
    assert!(refuse("cells", columns(&[("E_L", &[1.0, f64::NAN, 0.0])])).contains("E_L[1] is NaN"));
    assert!(refuse("cells", columns(&[("x", &[])])).contains("there is no array E_L"));
    assert!(
        refuse("edges", columns(&[("source", &[0.5]), edges[1], edges[2], edges[3]])).contains("lengths [1, 2, 2, 2]")
    );
    let e = Config::from_code(&text.replace("lif_delta", "lif_delt"), "network").map(|c| read_with(&c, &files));
    let e = e.unwrap().unwrap_err();
    assert!(e.to_string().starts_with("network: population[1].model is \"lif_delt\""), "{e}");
    assert!(e.to_string().contains("did you mean \"lif_delta\"?"), "{e}");
    assert_eq!(*e.kind(), ErrorKind::Config { line: None });
}

/// As a run of the command line does: the CPU's spikes from GPUs that share the network by any method.
#[test]
fn on_a_gpu_networks_of_a_session_are_shared() {
    let settings = || read(&Config::parse(NETWORK, "n.toml").unwrap()).unwrap();
    let refused = |backend, gpus, method: &str| {
        Session::open_on(settings(), backend, gpus, method, &Silent).map(|_| ()).unwrap_err().to_string()
    };
    let says = refused(Backend::Cpu, None, "index");
    assert!(says.contains("index says how GPUs share a network, and this runs on cpu"), "{says}");
    let says = refused(Backend::Cpu, Some(2), "auto");
    assert!(says.contains("2 GPUs are cuda:0 and those after it, and the backend is cpu"), "{says}");
    let says = refused(Backend::Auto, Some(0), "auto");
    assert!(says.contains("0 GPUs cannot share a network"), "{says}");
    let Some(_gpu) = crate::check::gpu::gpu() else { return };
    let alone = open(NETWORK);
    let want = alone.run(120, true, &Silent).unwrap();
    for gpus in [1, 2] {
        if gpus > crate::cuda::CudaDevice::count().unwrap_or(0) {
            continue;
        }
        let session = Session::open_on(settings(), Backend::Auto, Some(gpus), "index", &Silent).unwrap();
        assert_eq!(session.run(120, true, &Silent).unwrap(), want, "{gpus} GPUs");
        // The hash is made beside the next steps, and whole when they have ended.
        assert_eq!(session.at().unwrap(), alone.at().unwrap());
        assert_eq!(session.facts().engine.contains("cells by index"), gpus > 1, "{}", session.facts().engine);
    }
}

/// A life cycle between runs: lives, states and recorders of children, inputs that change, and the way back.
#[test]
fn a_session_has_cells_that_die_and_are_born() {
    let text = format!(
        "{NETWORK}\n[lifecycle]\nmax_age = 40.0\ninitial_age = {{ distribution = \"uniform\", low = 0.0, high = 40.0 }}\n\
         mutation_std_params = 0.03\nmutation_std_weights = 5.0\ninterval = 4.0"
    );
    let session = open(&text);
    let first = session.run(777, true, &Silent).unwrap();
    let lives = session.lives().unwrap().unwrap();
    assert!(lives.died == lives.born && lives.died > 500 && lives.alive.iter().all(|alive| *alive));
    // Sources stay what they are.
    assert!(lives.generation[500..].iter().all(|g| *g == 0) && lives.generation[..500].contains(&2));
    let path = std::env::temp_dir().join(format!("chronaxie-session-life-{}", std::process::id()));
    session.save(path.clone()).unwrap();
    session.set_drive(2, 130.0).unwrap();
    session.set_input(0, (0..400).map(|i| 360.0 + f64::from(i) / 10.0).collect()).unwrap();
    let last = session.run(700, true, &Silent).unwrap();
    let (state, traces) = (session.state(0).unwrap(), session.take_traces().unwrap());
    assert!(first.len() > 300 && last.len() > 300 && traces[0].values[0].iter().all(|v| v.is_finite()));
    // In another session, and in this one, from before the changes.
    let other = open(&text);
    for again in [&other, &session] {
        again.restore(path.clone()).unwrap();
        assert!(again.lives().unwrap().unwrap() == lives);
        again.set_input(0, (0..400).map(|i| 360.0 + f64::from(i) / 10.0).collect()).unwrap();
        again.set_drive(2, 130.0).unwrap();
        assert!(again.run(700, true, &Silent).unwrap() == last);
        assert_eq!(again.state(0).unwrap(), state);
        assert_eq!(again.synapses(1).unwrap(), session.synapses(1).unwrap());
    }
    std::fs::remove_file(path).unwrap();
    assert!(open(NETWORK).lives().unwrap().is_none());
}
