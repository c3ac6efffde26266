//! Recordings of runs, of a file alone, and of bytes that are none.

use super::{AnalyzeOptions, RunOptions, analyze, run};
use crate::config::Config;
use crate::data::npz;
use crate::progress::Silent;
use crate::{Backend, ErrorKind};

const NETWORK: &str = r#"
schema = 1
[simulation]
duration = 400
discard = 100
seed = 4
[[population]]
name = "E"
model = "lif_exp"
size = 80
parameters = { I_e = 400.0 }
initial = { V = { distribution = "uniform", low = -65.0, high = -50.0 } }
[[population]]
name = "quiet"
model = "lif_exp"
size = 20
[[projection]]
source = "E"
target = ["E", "quiet"]
rule = "fixed_indegree"
indegree = 10
weight = 20.0
delay = 1.5
"#;

#[test]
fn a_run_is_analyzed_with_its_network_and_drawn() {
    let folder = std::env::temp_dir().join(format!("chronaxie-analyze-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let mut options = RunOptions::new(&folder);
    options.backend = Backend::Cpu;
    let report = run(&Config::parse(NETWORK, "n.toml").unwrap(), &options, &Silent).unwrap();
    let found = analyze(&AnalyzeOptions::new(&folder)).unwrap();
    assert_eq!((found.start_ms, found.stop_ms, found.bins), (100.0, 400.0, 150));
    let [e, quiet] = found.populations.as_slice() else { panic!("two populations") };
    // The same numbers as the run's own report.
    assert!((e.measures.rate_hz.mean - report.populations[0].rate_hz).abs() < 1e-9);
    assert!((e.measures.cv.unwrap().mean - report.populations[0].cv.unwrap()).abs() < 1e-9);
    assert!(e.measures.rate_hz.mean > 5.0 && quiet.measures.silent == 1.0 && quiet.name == "quiet");
    let graph = e.network.as_ref().unwrap();
    assert_eq!((graph.in_degree.min, graph.in_degree.max, graph.in_degree.sd), (10.0, 10.0, 0.0));
    assert!((graph.out_degree.mean - 12.5).abs() < 1e-9 && graph.clustering.unwrap() > 0.1);
    for name in ["measures", "information", "intervals"] {
        assert!(folder.join("analysis").join(format!("{name}.svg")).is_file());
        assert!(folder.join("analysis").join(format!("{name}.png")).is_file());
    }
    let json = serde_json::to_value(&found).unwrap();
    assert!(json["populations"][0]["rate_hz"]["mean"].as_f64().unwrap() > 5.0);
    assert_eq!(json["mutual_information_bits"][1][1], 0.0);

    // The file alone: no network, no pictures, the same trains. All of it where nothing is discarded.
    let mut alone = AnalyzeOptions::new(folder.join("spikes.npz"));
    // Of a machine without a GPU, `auto` has a note of its own.
    alone.backend = crate::Backend::Cpu;
    alone.discard_ms = Some(100.0);
    let bare = analyze(&alone).unwrap();
    assert_eq!(bare.populations[0].measures, e.measures);
    assert_eq!((bare.populations[0].network.clone(), bare.out.clone()), (None, None));
    alone.discard_ms = None;
    assert_eq!(analyze(&alone).unwrap().spikes, report.spikes);
    // The same of the Parquet file, and where a folder has that one alone.
    let mut other = alone.clone();
    other.recording = folder.join("spikes.parquet");
    let flat = analyze(&other).unwrap();
    assert_eq!((flat.populations, flat.stop_ms), (analyze(&alone).unwrap().populations, 400.0));
    std::fs::rename(folder.join("spikes.npz"), folder.join("elsewhere.npz")).unwrap();
    let again = analyze(&AnalyzeOptions::new(&folder)).unwrap();
    assert_eq!((&again.populations, again.recording), (&found.populations, other.recording.clone()));
    std::fs::rename(folder.join("elsewhere.npz"), folder.join("spikes.npz")).unwrap();
    alone.discard_ms = Some(400.0);
    assert_eq!(
        analyze(&alone).unwrap().notes,
        ["the recording ends at 400 ms, and 400 ms are left out: nothing is analyzed"]
    );
    alone.discard_ms = None;
    for (bin, says) in [(0.0, "bin = 0 ms"), (f64::NAN, "bin = NaN ms"), (-1.0, "bin = -1 ms")] {
        alone.bin_ms = bin;
        assert!(analyze(&alone).unwrap_err().to_string().contains(says));
    }
    alone.bin_ms = 2.0;
    let other = folder.join("other.toml");
    std::fs::write(&other, NETWORK.replace("size = 80", "size = 81")).unwrap();
    alone.network = Some(other);
    assert!(analyze(&alone).unwrap_err().to_string().contains("populations of [81, 20] cells"));

    // Bytes that are damaged, cut off, or none of a recording: a sentence, and never a panic.
    let mut rng = crate::rng::Rng::new(3, 0);
    for i in 0..600 {
        let kind = if i % 2 == 0 { "npz" } else { "parquet" };
        let good = std::fs::read(folder.join("spikes").with_extension(kind)).unwrap();
        let bad = folder.join("bad").with_extension(kind);
        let mut bytes = good.clone();
        bytes.truncate(rng.below(good.len() as u64) as usize);
        std::fs::write(&bad, &bytes).unwrap();
        let e = analyze(&AnalyzeOptions::new(&bad)).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Data { .. }), "{e}");
        let mut bytes = good.clone();
        let at = rng.below(good.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        std::fs::write(&bad, &bytes).unwrap();
        let _ = analyze(&AnalyzeOptions::new(&bad));
    }
    // A file of 400 KB whose analysis would take 107 TB.
    let mut out = npz::Writer::new(std::io::Cursor::new(Vec::new()));
    out.array("step", "<u8", &[0], []).unwrap();
    out.array("neuron", "<u4", &[0], []).unwrap();
    out.array("population_sizes", "<u4", &[100_000], [Ok(vec![0; 400_000])]).unwrap();
    for (name, value) in [("dt", 0.1), ("start", 0.0), ("stop", 26_843_545.6)] {
        out.array(name, "<f8", &[], [Ok(f64::to_le_bytes(value).to_vec())]).unwrap();
    }
    let bad = folder.join("claims.npz");
    std::fs::write(&bad, out.finish().unwrap().into_inner()).unwrap();
    let mut claims = AnalyzeOptions::new(&bad);
    claims.bin_ms = 0.1;
    let e = analyze(&claims).unwrap_err();
    assert!(e.to_string().contains("in 100000 populations, in 268435456 bins, needs 107"), "{e}");
    let e = analyze(&AnalyzeOptions::new(folder.join("nothing"))).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io), "{e}");
    std::fs::remove_dir_all(&folder).unwrap();
}
