//! What the fuzzers and the replay of their corpus do with the bytes of a file: read them every way there is, and check
//! what a reader promises of all that it accepts.

use std::path::Path;

use chronaxie::config::{Config, Milliseconds};
use chronaxie::data::csv::{CsvLayout, CsvOptions, CsvTarget};
use chronaxie::data::{Dataset, Standardizer, Target, csv, pad, uea};
use chronaxie::{Error, ErrorKind, Result};

/// A `.ts` file.
pub fn uea(bytes: &[u8]) {
    let path = Path::new("corpus.ts");
    let read = |classes: Option<&[String]>| uea::read_from(bytes, path, classes);
    check(read(None), |names| read(Some(names)));
}

/// A CSV file: the first byte, a digit from 0 to 5, picks the layout and the kind of target, the rest is the file.
pub fn csv(bytes: &[u8]) {
    let Some((pick, bytes)) = bytes.split_first() else { return };
    let layout = if pick % 2 == 0 { CsvLayout::Wide } else { CsvLayout::Long };
    let target = match pick % 6 / 2 {
        0 => CsvTarget::Class("label".into()),
        1 => CsvTarget::Value("label".into()),
        _ => CsvTarget::None,
    };
    let options = CsvOptions::new(layout).with_target(target);
    let read = |classes: Option<&[String]>| csv::read_from(bytes, Path::new("corpus.csv"), &options, classes);
    check(read(None), |names| read(Some(names)));
}

/// A Parquet file: every column of it.
#[cfg(feature = "spiking")]
pub fn parquet(bytes: &[u8]) {
    use chronaxie::data::parquet::{MOST_EXPANSION, Table};
    let table = match Table::parse(bytes, Path::new("corpus.parquet")) {
        Ok(table) => table,
        Err(error) => return check_message(&error),
    };
    assert!(table.rows() <= MOST_EXPANSION * bytes.len() as u64);
    for name in table.names() {
        match table.column(name) {
            Ok(values) => assert_eq!(values.len() as u64, table.rows()),
            Err(error) => check_message(&error),
        }
    }
}

/// An `.npz` file: every array of it, some by name, and text.
#[cfg(feature = "spiking")]
pub fn npz(bytes: &[u8]) {
    use chronaxie::data::npz::{parse, parse_some, parse_text};
    let path = Path::new("corpus.npz");
    let names = match parse(bytes, path) {
        Ok(arrays) => {
            let elements = |shape: &[usize]| shape.iter().product::<usize>();
            assert!(arrays.iter().all(|(_, array)| array.values.len() == elements(&array.shape)), "{arrays:?}");
            arrays.into_iter().map(|(name, _)| name).collect()
        }
        Err(error) => {
            check_message(&error);
            vec!["a".to_owned(), "population_names".to_owned()]
        }
    };
    let some: Vec<&str> = names.iter().map(String::as_str).collect();
    if let Err(error) = parse_some(bytes, path, &some) {
        check_message(&error);
    }
    for name in some {
        if let Err(error) = parse_text(bytes, path, name) {
            check_message(&error);
        }
    }
}

/// A checkpoint as it is, and what would lie between its head and its checksum.
#[cfg(feature = "spiking")]
pub fn checkpoint(bytes: &[u8]) {
    use chronaxie::data::sha256_hex;
    use chronaxie::spiking::simulate::Checkpoint;
    let read = |bytes: &[u8]| match Checkpoint::from_bytes(bytes, Path::new("corpus.checkpoint")) {
        Ok(read) => {
            let written = read.to_bytes();
            let again =
                Checkpoint::from_bytes(&written, Path::new("again.checkpoint")).expect("what was written is read");
            assert!(again.to_bytes() == written, "{read:?}");
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
            assert!(matches!(error.kind(), ErrorKind::Checkpoint), "{error:?}");
        }
    };
    read(bytes);
    let mut sealed = Checkpoint::MAGIC.to_vec();
    sealed.extend((bytes.len() as u64).to_le_bytes());
    sealed.extend(bytes);
    let sum = sha256_hex(&sealed);
    sealed.extend((0..32).map(|i| u8::from_str_radix(&sum[2 * i..2 * i + 2], 16).unwrap()));
    read(&sealed);
}

/// A configuration: the first line is an override, the rest is the file.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (assignment, text) = text.split_once('\n').unwrap_or(("", text));
    let mut config = match Config::parse(text, "corpus.toml") {
        Ok(config) => config,
        Err(error) => return check_message(&error),
    };
    if let Err(error) = config.set(assignment) {
        check_message(&error);
    }
    let first = answers(&config);
    if let Err(error) = config.finish() {
        error.to_string().lines().for_each(|line| assert!(!line.is_empty()));
    }
    let resolved = config.resolved();
    let again = Config::parse(&resolved, "resolved.toml").expect("what was resolved is a configuration");
    if first.iter().all(Result::is_ok) {
        assert!(answers(&again).iter().all(Result::is_ok), "{resolved}");
        again.finish().expect("what was resolved holds only known keys");
        assert_eq!(again.resolved(), resolved);
    }
}

/// Asks for a table, a list and keys of every type.
fn answers(config: &Config) -> Vec<Result<()>> {
    let mut answers = vec![
        config.root().get("a", 1u64).map(drop),
        config.root().get("b", 1.0f64).map(drop),
        config.root().optional::<String>("c").map(drop),
        config.root().choice("d", &["one", "two"], "one").map(drop),
    ];
    match config.table("t") {
        Err(error) => answers.push(Err(error)),
        Ok(table) => {
            answers.push(table.get("a", true).map(drop));
            answers.push(table.get("b", 0.1f32).map(drop));
            answers.push(table.get("c", vec![1i64]).map(drop));
            answers.push(table.get("d", Milliseconds(2.0)).map(drop));
            answers.push(table.table("t").and_then(|table| table.get("a", vec![String::new()])).map(drop));
        }
    }
    match config.tables("l") {
        Err(error) => answers.push(Err(error)),
        Ok(tables) => answers.extend(tables.iter().map(|table| table.require::<usize>("a").map(drop))),
    }
    answers.iter().filter_map(|answer| answer.as_ref().err()).for_each(check_message);
    answers
}

/// A message is one line, and a refusal of the file's content has the kind that says so.
fn check_message(error: &Error) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
    assert!(matches!(error.kind(), ErrorKind::Data { .. } | ErrorKind::Config { .. }), "{error:?}");
}

fn check(read: Result<Dataset>, again: impl Fn(&[String]) -> Result<Dataset>) {
    let mut data = match read {
        Ok(data) => data,
        Err(error) => return check_message(&error),
    };
    assert!(!data.is_empty() && data.channels > 0);
    for series in &data.series {
        assert!(series.len > 0 && series.values.len() == series.len * data.channels);
        assert!(series.values.iter().all(|value| value.is_finite()));
        if let Some(elapsed) = &series.elapsed {
            assert!(elapsed.len() == series.len && elapsed.iter().all(|step| *step > 0.0 && step.is_finite()));
        }
    }
    match &data.target {
        Target::Classes { names, labels } => {
            assert_eq!(labels.len(), data.len());
            assert!(labels.iter().all(|label| (*label as usize) < names.len()));
            assert_eq!(again(names).expect("a file fits its own classes"), data);
        }
        Target::Values(values) => {
            assert!(values.len() == data.len() && values.iter().all(|value| value.is_finite()));
        }
        _ => {}
    }
    let batch = pad(&data.series.iter().collect::<Vec<_>>(), data.channels).expect("one file makes one batch");
    assert_eq!(batch.x.len(), data.len() * data.longest() * data.channels);
    // Values at the end of the range may have no finite distance from their mean.
    let _ = Standardizer::fit(&data).apply(&mut data);
}
