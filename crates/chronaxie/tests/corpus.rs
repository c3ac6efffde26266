//! Replays the fuzzers' corpus, which lies beside them in `fuzz/corpus`.

use std::fs;
use std::path::Path;

mod readers;

fn replay(target: &str, read: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        // A failure names its file by this line, which the test harness prints.
        println!("{}", path.display());
        read(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 5, "{} holds {count} files", folder.display());
}

#[test]
fn uea() {
    replay("uea", readers::uea);
}

#[test]
fn csv() {
    replay("csv", readers::csv);
}

#[cfg(feature = "spiking")]
#[test]
fn parquet() {
    replay("parquet", readers::parquet);
}

#[test]
fn config() {
    replay("config", readers::config);
}

#[cfg(feature = "spiking")]
#[test]
fn npz() {
    replay("npz", readers::npz);
}

#[cfg(feature = "spiking")]
#[test]
fn checkpoint() {
    replay("checkpoint", readers::checkpoint);
}
