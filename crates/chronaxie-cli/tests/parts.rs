//! `chronaxie partition`, and `chronaxie simulate` with several processes.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/microcircuit.toml");
const BASE: [&str; 7] = ["simulate", EXAMPLE, "--scale", "0.03", "--set", "simulation.discard=20ms", "--threads"];

fn command(arguments: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_chronaxie"));
    c.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["CHRONAXIE_BACKEND", "CHRONAXIE_LOG", "CHRONAXIE_NUM_THREADS", "CHRONAXIE_JOIN_KEY"] {
        c.env_remove(name);
    }
    // Whether it is installed is not to show.
    c.env("CHRONAXIE_METIS", "no-such-library");
    c
}

fn chronaxie(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn scratch(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path.to_str().unwrap().to_owned()
}

fn report(o: &Output) -> Value {
    assert!(o.status.success(), "{}", text(&o.stderr));
    serde_json::from_slice(&o.stdout).unwrap()
}

/// Two processes, four on two pretended nodes, one: the spikes of a run without; and a checkpoint of one goes on in another.
#[test]
fn processes_have_the_spikes_of_one() {
    let run = |name: &str, more: &[&str]| {
        let out = scratch(name);
        let o = chronaxie(&[&BASE[..], &["1", "--out", &out], more].concat());
        (report(&o), out)
    };
    let (alone, a) = run("alone", &["--duration", "120"]);
    let (two, b) = run("two", &["--duration", "60", "--parts", "2", "--backend", "cpu"]);
    assert!(two["engine"].as_str().unwrap().contains("2 parts by index"), "{}", two["engine"]);
    let (four, c) = run("four", &["--duration", "120", "--parts", "4", "--nodes", "2", "--method", "index"]);
    for field in ["spikes_sha256", "spikes", "rates_hz", "synapses", "populations", "events_per_step"] {
        assert_eq!(four[field], alone[field], "{field}");
    }
    for file in ["spikes.npz", "raster.svg", "checkpoint/state.bin"] {
        assert_eq!(
            std::fs::read(format!("{a}/{file}")).unwrap(),
            std::fs::read(format!("{c}/{file}")).unwrap(),
            "{file}"
        );
    }
    let on = chronaxie(&[&BASE[..], &["2", "--duration", "120", "--resume", &b, "--parts", "3"]].concat());
    assert_eq!(report(&on)["spikes_sha256"], alone["spikes_sha256"]);
    let (one, d) = run("one", &["--duration", "120", "--parts", "1", "--record", "none"]);
    assert_eq!(one["spikes_sha256"], alone["spikes_sha256"]);
    for folder in [a, b, c, d] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Areas whose delays between each other are long, in processes: they say how seldom they exchange spikes, which are those of one.
#[test]
fn processes_exchange_as_seldom_as_the_delays_across_the_cut_allow() {
    const AREAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/areas.toml");
    let base = ["simulate", AREAS, "--backend", "cpu", "--threads", "1", "--duration", "60", "--record", "none"];
    let short = ["--set", "simulation.discard=0", "--json", "-"];
    let out = scratch("areas");
    let run = |more: &[&str]| {
        let _ = std::fs::remove_dir_all(&out);
        report(&chronaxie(&[&base[..], &short, &["--out", &out], more].concat()))
    };
    let alone = run(&[]);
    assert!(alone["spikes"].as_u64() > Some(1000), "{}", alone["spikes"]);
    for (more, says) in [
        (&["--parts", "2"][..], "2 parts by w_slice on 1 nodes, which exchange spikes every 32 steps"),
        (&["--parts", "4", "--nodes", "2", "--method", "kmeans"], "which exchange spikes every 32 steps"),
        (&["--parts", "3", "--method", "index"], "which exchange spikes every step"),
    ] {
        let parts = run(more);
        assert!(parts["engine"].as_str().unwrap().contains(says), "{}", parts["engine"]);
        assert_eq!(parts["spikes_sha256"], alone["spikes_sha256"], "{more:?}");
    }
    std::fs::remove_dir_all(&out).unwrap();
    let o = chronaxie(&["partition", AREAS, "--parts", "4", "--json", "-", "--quiet"]);
    let compared = report(&o);
    let of = |name: &str| compared["methods"].as_array().unwrap().iter().find(|m| m["method"] == name).unwrap().clone();
    assert_eq!((&of("index")["exchange_steps"], &of("w_slice")["exchange_steps"]), (&1.into(), &32.into()));
    assert_eq!((of("w_slice")["min_delay_ms"].as_f64().unwrap() * 10.0).round(), 32.0);
    assert_eq!(compared["best"], "w_slice");
}

/// Waits until the program says this on standard error; what it said.
fn until(child: &mut Child, says: &str) -> (String, BufReader<std::process::ChildStderr>) {
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while err.read_line(&mut line).unwrap() > 0 {
        if line.contains(says) {
            return (line, err);
        }
        line.clear();
    }
    panic!("it never said {says}");
}

/// A process that is killed ends the run with a sentence, soon, and the last checkpoint is whole.
#[cfg(unix)]
#[test]
fn a_part_that_dies_ends_the_run_and_leaves_the_checkpoint() {
    let out = scratch("killed");
    let long =
        [&BASE[..], &["1", "--out", &out, "--parts", "3", "--duration", "100s", "--checkpoint-every", "20"]].concat();
    let mut child = command(&long).spawn().unwrap();
    let (line, mut err) = until(&mut child, "part 2 is process ");
    let process = line.trim().rsplit(' ').next().unwrap().to_owned();
    let state = PathBuf::from(&out).join("checkpoint/state.bin");
    let since = Instant::now();
    while !state.is_file() {
        assert!(since.elapsed() < Duration::from_secs(30), "no checkpoint");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-KILL", &process]).status().unwrap().success());
    let since = Instant::now();
    let status = child.wait().unwrap();
    assert!(since.elapsed() < Duration::from_secs(20));
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error: part 2 of 3 has"), "{said}");
    // The one that was left says why it ended.
    assert!(said.contains("part 1 of 3: part 2 of 3 has"), "{said}");
    let short = [&BASE[..], &["1", "--resume", &out, "--duration", "1"]].concat();
    let o = chronaxie(&short);
    // Its duration is over: the checkpoint was read.
    assert!(text(&o.stderr).contains("the run is at"), "{}", text(&o.stderr));
    std::fs::remove_dir_all(out).unwrap();
}

/// A signal to all processes of a run, as schedulers send it: part 0 stops them in order, and the run goes on.
#[cfg(unix)]
#[test]
fn the_end_of_a_job_stops_all_parts_in_order() {
    use std::os::unix::process::CommandExt;
    let out = scratch("ended");
    let long = [&BASE[..], &["1", "--out", &out, "--parts", "3", "--duration", "1000s"]].concat();
    let mut child = command(&long).process_group(0).spawn().unwrap();
    let (_, mut err) = until(&mut child, "built ");
    std::thread::sleep(Duration::from_millis(50));
    let group = format!("-{}", child.id());
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-TERM", "--", &group]).status().unwrap().success());
    }
    let status = child.wait().unwrap();
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(143), "{said}");
    let line = said.trim();
    // Whether part 0 or what another says comes first does not matter.
    assert!(line.starts_with("error: SIGTERM: simulate: interrupted at ") && !line.contains('\n'), "{said}");
    let at =
        |line: &str| line.split(" of 1000000 ms").next().and_then(|l| l.rsplit(' ').next()).unwrap().parse::<f64>();
    let reached = at(line).unwrap();
    // Likewise where one other part alone is asked to, as a batch system takes a node back.
    let more = [&BASE[..], &["1", "--resume", &out, "--parts", "2", "--duration", "1000s"]].concat();
    let mut child = command(&more).spawn().unwrap();
    let (line, mut err) = until(&mut child, "part 1 is process ");
    let process = line.trim().rsplit(' ').next().unwrap().to_owned();
    let mut line = String::new();
    while !line.starts_with("resumed at ") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0, "it never went on");
    }
    assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    let status = child.wait().unwrap();
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.trim().starts_with("error: simulate: interrupted at part 1 at "), "{said}");
    let at = at(said.trim()).unwrap();
    assert!(at > reached, "{at} after {reached}");
    let until = format!("{}", at + 20.0);
    let on = chronaxie(&[&BASE[..], &["1", "--duration", &until, "--resume", &out, "--parts", "2"]].concat());
    let whole = scratch("ended-whole");
    let alone = chronaxie(&[&BASE[..], &["1", "--duration", &until, "--out", &whole, "--record", "none"]].concat());
    assert_eq!(report(&on)["spikes_sha256"], report(&alone)["spikes_sha256"]);
    for folder in [out, whole] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Parts that are begun one by one: the same spikes; another seed is another network.
#[test]
fn parts_join_by_themselves_where_they_have_the_same_network() {
    let out = scratch("joined");
    let place = || {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let own = |at: &str, seed: &str| {
        let more = ["1", "--seed", seed, "--duration", "30", "--part", "1", "--of", "2", "--join", at];
        command(&[&BASE[..], &more].concat()).spawn().unwrap()
    };
    let first = |at: &str, out: &str| {
        let more = ["1", "--seed", "7", "--duration", "30", "--part", "0", "--of", "2", "--join", at, "--out", out];
        chronaxie(&[&BASE[..], &more].concat())
    };
    let at = place();
    let other = own(&at, "8");
    let o = first(&at, &out);
    let there = other.wait_with_output().unwrap();
    for o in [&o, &there] {
        assert_eq!(o.status.code(), Some(2));
        assert!(text(&o.stderr).contains("part 1 has another network than part 0"), "{}", text(&o.stderr));
    }
    let at = place();
    let other = own(&at, "7");
    let two = report(&first(&at, &out));
    assert!(other.wait_with_output().unwrap().status.success());
    let alone = scratch("by-itself");
    let one = chronaxie(&[&BASE[..], &["1", "--seed", "7", "--duration", "30", "--out", &alone]].concat());
    assert_eq!(report(&one)["spikes_sha256"], two["spikes_sha256"]);
    for folder in [out, alone] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn ways_to_share_a_network_out_are_compared() {
    let out = scratch("pictures");
    let file = scratch("space.toml");
    let network = "schema = 1\n[simulation]\nduration = 10\n[[population]]\nname = \"E\"\nmodel = \"lif_exp\"\nsize = 400\n\
                   box = { x = [0, 4], y = [0, 4], z = [0, 4], w = [0, 20] }\n[[projection]]\nsource = \"E\"\ntarget = \"E\"\nrule = \"distance\"\n\
                   peak = 0.5\nlength = 1.5\nradius = 4.0\nweight = 50.0\ndelay = 1.5\n";
    std::fs::write(&file, network).unwrap();
    let o = chronaxie(&["partition", &file, "--parts", "3", "--out", &out]);
    let printed = text(&o.stdout);
    assert!(o.status.success(), "{}", text(&o.stderr));
    for word in ["index", "w_slice", "morton", "kmeans", "balance", "counted one by one", "of least expected cost: "] {
        assert!(printed.contains(word), "{word}:\n{printed}");
    }
    let svg = std::fs::read_to_string(format!("{out}/partition.svg")).unwrap();
    assert!(svg.contains("part 2") && svg.contains("400 cells in 3 parts"));
    let o = chronaxie(&["partition", &file, "--parts", "3", "--method", "kmeans", "--rate", "20", "--json", "-"]);
    let r = report(&o);
    assert_eq!((r["methods"].as_array().unwrap().len(), r["best"].as_str()), (1, Some("kmeans")));
    let cells = r["methods"][0]["neurons"].as_array().unwrap();
    assert_eq!(cells.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), 400);
    let refuses = |arguments: &[&str], says: &str| {
        let o = chronaxie(arguments);
        let err = text(&o.stderr);
        assert!(matches!(o.status.code(), Some(1 | 2)) && o.stdout.is_empty() && err.contains(says), "{err}");
    };
    refuses(&["partition", EXAMPLE, "--parts", "2", "--method", "morton"], "morton needs cells with places");
    refuses(&["partition", &file, "--parts", "2", "--method", "x"], "there are auto, index");
    refuses(&["partition", &file, "--parts", "0"], "--parts");
    refuses(&["simulate", EXAMPLE, "--method", "index"], "--method for that or --gpus N");
    refuses(&["simulate", EXAMPLE, "--part", "1"], "--of");
    let missing = Command::new(env!("CARGO_BIN_EXE_chronaxie"))
        .args(["partition", &file, "--parts", "2", "--method", "metis"])
        .env("CHRONAXIE_METIS", "no-such-library")
        .output()
        .unwrap();
    assert!(text(&missing.stderr).contains("looked for no-such-library; install it"), "{}", text(&missing.stderr));
    std::fs::remove_dir_all(out).unwrap();
    std::fs::remove_file(file).unwrap();
}
