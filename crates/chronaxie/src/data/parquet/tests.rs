//! Files of pyarrow's (26.0, of `fuzz/corpus/parquet`), files of our own, and bytes that are none.

use super::*;
use crate::rng::Rng;
use std::path::Path;

fn sample(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/parquet");
    std::fs::read(folder.join(name).with_extension("parquet")).unwrap()
}

fn column(bytes: &[u8], name: &str) -> chronaxie_runtime::Result<Vec<f64>> {
    Table::parse(bytes, Path::new("t.parquet"))?.column(name)
}

/// Three row groups: one whose times rise in runs, one of as many times as rows, and one of a row.
fn own(words: usize) -> Vec<u8> {
    let schema = [("time", Kind::F64), ("step", Kind::U64), ("neuron", Kind::U32), ("population", Kind::Text)];
    let mut out = Writer::new(Vec::new(), &schema).unwrap();
    let names: Vec<String> = (0..words).map(|i| format!("population \u{e9} {i}")).collect();
    for (rows, run) in [(1000u32, 40), (77, 1), (0, 1), (1, 1)] {
        let step: Vec<u64> = (0..rows).map(|i| u64::from(i / run) + (1 << 40)).collect();
        let time: Vec<f64> = step.iter().map(|s| *s as f64 * 0.1).collect();
        let neuron: Vec<u32> = (0..rows).map(|i| u32::MAX - 13 * i).collect();
        let of: Vec<u32> = (0..rows).map(|i| i % words as u32).collect();
        let columns = [Column::F64(&time), Column::U64(&step), Column::U32(&neuron), Column::Text(&names, &of)];
        out.group(&columns).unwrap();
    }
    out.finish(&[("dt_ms", "0.1".to_owned()), ("names", "a\nb".to_owned())]).unwrap()
}

#[test]
fn what_is_written_is_read() {
    for words in [1, 2, 3, 8, 9, 300] {
        let bytes = own(words);
        let table = Table::parse(&bytes, Path::new("t.parquet")).unwrap();
        assert_eq!((table.rows(), table.names()), (1078, vec!["time", "step", "neuron", "population"]));
        assert_eq!((table.about("dt_ms"), table.about("names"), table.about("x")), (Some("0.1"), Some("a\nb"), None));
        let [time, step, neuron] = ["time", "step", "neuron"].map(|name| table.column(name).unwrap());
        let base = (1u64 << 40) as f64;
        assert_eq!((step[0], step[39], step[40], step[999]), (base, base, base + 1.0, base + 24.0));
        assert_eq!((step[1000], step[1076], step[1077]), (base, base + 76.0, base));
        assert!(time.iter().zip(&step).all(|(t, s)| *t == s * 0.1));
        assert_eq!((neuron[0], neuron[999], neuron[1001]), (4_294_967_295.0, 4_294_954_308.0, 4_294_967_282.0));
        let e = table.column("population").unwrap_err().to_string();
        assert_eq!(
            e,
            "t.parquet: column \"population\": it is BYTE_ARRAY of a logical type of its own; integers, FLOAT and DOUBLE are read"
        );
    }
    // Runs take few bytes, and a file without rows is one.
    let steps: Vec<u64> = (0..1 << 16).map(|i| i / 64).collect();
    let mut out = Writer::new(Vec::new(), &[("step", Kind::U64)]).unwrap();
    out.group(&[Column::U64(&steps)]).unwrap();
    let bytes = out.finish(&[]).unwrap();
    assert!(bytes.len() < 13_000, "{}", bytes.len());
    assert!(column(&bytes, "step").unwrap().iter().zip(&steps).all(|(a, b)| *a == *b as f64));
    let none = Writer::new(Vec::new(), &[("step", Kind::U64)]).unwrap().finish(&[]).unwrap();
    assert!(column(&none, "step").unwrap().is_empty());
}

/// A disk that is full after so many bytes.
struct Full(usize);
impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        if n == 0 && !bytes.is_empty() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_and_other_columns_are_errors() {
    let write = |room: usize| {
        let mut out = Writer::new(Full(room), &[("x", Kind::U32)])?;
        out.group(&[Column::U32(&[3, 1, 2])])?;
        out.finish(&[]).map(drop)
    };
    let whole = (0..).find(|room| write(*room).is_ok()).unwrap();
    assert!((100..400).contains(&whole), "{whole}");
    assert_eq!(write(whole - 1).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let mut out = Writer::new(Vec::new(), &[("x", Kind::U32), ("y", Kind::U32)]).unwrap();
    assert!(out.group(&[Column::U32(&[1]), Column::U32(&[])]).is_err());
    assert!(out.group(&[Column::U32(&[1])]).is_err());
    assert!(out.group(&[Column::U32(&[1]), Column::U64(&[1])]).is_err());
    let mut out = Writer::new(Vec::new(), &[("x", Kind::Text)]).unwrap();
    assert!(out.group(&[Column::Text(&["a".to_owned()], &[1])]).is_err());
}

/// Columns that may lack values, of signed and unsigned integers and floats of both widths, by dictionaries and plain,
/// not compressed and by Snappy, in pages of both versions, in one and in several.
#[test]
fn files_of_pyarrow_are_read() {
    let n = 40;
    let source: Vec<f64> = (0..n).map(|i| f64::from(i / 8)).collect();
    let target: Vec<f64> = (0..n).map(|i| f64::from(7 * i % 10)).collect();
    let weight: Vec<f64> = (0..n).map(|i| 1.5 * f64::from(i % 3) - 1.0).collect();
    let delay: Vec<f64> = (0..n).map(|i| if i % 2 == 1 { 0.5 } else { 1.0 }).collect();
    for name in ["default", "second-version", "plain"] {
        let bytes = sample(name);
        let table = Table::parse(&bytes, Path::new("t.parquet")).unwrap();
        assert_eq!((table.rows(), table.names()), (40, vec!["source", "target", "weight", "delay"]));
        for (column, want) in [("source", &source), ("target", &target), ("weight", &weight), ("delay", &delay)] {
            assert_eq!(&table.column(column).unwrap(), want, "{name} {column}");
        }
    }
    let bytes = sample("dictionary");
    assert_eq!((column(&bytes, "weight").unwrap(), column(&bytes, "source").unwrap()), (weight, source));
}

#[test]
fn what_is_not_read_is_a_sentence() {
    let numbers = sample("not-numbers");
    for (bytes, name, says) in [
        (&numbers, "source", "column \"source\": the value of row 1 is missing"),
        (&numbers, "target", "it is BOOLEAN; integers, FLOAT and DOUBLE are read"),
        (&numbers, "when", "it is INT64 of a logical type of its own"),
        (&numbers, "big", "it holds 1152921504606846976, beyond 2^53"),
        (&numbers, "word", "it is BYTE_ARRAY of a logical type of its own"),
        (&numbers, "weight", "there is no column weight; there are: source, target, when, big, word"),
        (&sample("zstd"), "source", "it is compressed by Zstandard; Snappy and files that are not compressed are read"),
        (&sample("delta"), "source", "it is encoded as DELTA_BINARY_PACKED; PLAIN and dictionaries are read"),
        (&sample("nested"), "source", "its columns lie in each other; flat tables are read"),
        (&b"PAR1 and no more".to_vec(), "source", "it is no Parquet file, or one that is cut off"),
        (&b"PAR1\xff\xff\xff\x0fPAR1".to_vec(), "source", "its footer is damaged"),
    ] {
        let e = column(bytes, name).unwrap_err().to_string();
        assert!(e.starts_with("t.parquet: ") && e.contains(says), "{e}");
    }
    // One bit of a page that has a checksum.
    let mut bytes = sample("plain");
    bytes[100] ^= 1;
    assert!(column(&bytes, "source").unwrap_err().to_string().contains("the checksum of a page does not fit"));
}

fn tried(bytes: &[u8]) -> bool {
    let table = match Table::parse(bytes, Path::new("t.parquet")) {
        Ok(table) => table,
        Err(e) => {
            assert!(e.to_string().starts_with("t.parquet: ") && !e.to_string().contains('\n'), "{e}");
            return false;
        }
    };
    assert!(table.rows() <= MOST_EXPANSION * bytes.len() as u64);
    let mut all = true;
    for name in table.names() {
        match table.column(name) {
            Ok(values) => assert_eq!(values.len() as u64, table.rows()),
            Err(e) => {
                assert!(!e.to_string().contains('\n'), "{e}");
                all = false;
            }
        }
    }
    all
}

#[test]
fn damage_is_a_sentence_and_never_a_panic() {
    let mut rng = Rng::new(8, 0);
    let names = ["default", "second-version", "plain", "dictionary", "zstd", "delta", "nested", "not-numbers"];
    let files: Vec<Vec<u8>> = names.iter().map(|name| sample(name)).chain([own(3)]).collect();
    for good in &files {
        for end in 0..good.len() {
            assert!(!tried(&good[..end]), "cut at {end}");
        }
        for _ in 0..3000 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(4) {
                // Half of the damage is in the footer, which says how long everything is.
                let from = if rng.below(2) == 0 { 0 } else { bytes.len() as u64 / 2 };
                let at = (from + rng.below(bytes.len() as u64 - from)) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            tried(&bytes);
        }
        for _ in 0..300 {
            // A piece left out, or noise in its place, and the end where it was.
            let a = 4 + rng.below(good.len() as u64 - 12) as usize;
            let b = a + rng.below((good.len() - 8 - a) as u64 + 1) as usize;
            tried(&[&good[..a], &good[b..]].concat());
            let noise: Vec<u8> = (a..b).map(|_| rng.next_u32() as u8).collect();
            tried(&[&good[..a], &noise, &good[b..]].concat());
        }
    }
}

/// Footers that claim more than a file can hold, or the same place again and again, cost nothing.
#[test]
fn claims_beyond_the_file_are_refused() {
    // A file of one column of one page, whose parts are given.
    let made = |rows: i64, groups: usize, page_rows: i32, body: &[u8], encoding: i32| {
        let mut head = thrift::Out::default();
        head.element(|h| {
            h.i32(1, number::DATA_PAGE);
            h.i32(2, body.len() as i32);
            h.i32(3, body.len() as i32);
            h.structure(5, |p| {
                p.i32(1, page_rows);
                p.i32(2, encoding);
                p.i32(3, number::RLE);
                p.i32(4, number::RLE);
            });
        });
        let mut dictionary = thrift::Out::default();
        dictionary.element(|h| {
            h.i32(1, number::DICTIONARY_PAGE);
            h.i32(2, 4);
            h.i32(3, 4);
            h.structure(7, |p| {
                p.i32(1, 1);
                p.i32(2, number::PLAIN);
            });
        });
        let mut bytes = MAGIC.to_vec();
        bytes.extend([&dictionary.bytes[..], &[7, 0, 0, 0], &head.bytes, body].concat());
        let len = bytes.len() as i64 - 4;
        let mut foot = thrift::Out::default();
        foot.element(|f| {
            f.structures(2, 2);
            f.element(|e| {
                e.binary(4, b"s");
                e.i32(5, 1);
            });
            f.element(|e| {
                e.i32(1, number::INT32);
                e.binary(4, b"x");
            });
            f.i64(3, rows * groups as i64);
            f.structures(4, groups);
            for _ in 0..groups {
                f.element(|g| {
                    g.structures(1, 1);
                    g.element(|c| {
                        c.structure(3, |m| {
                            m.i32(1, number::INT32);
                            m.words(3, &["x"]);
                            m.i32(4, 0);
                            m.i64(5, rows);
                            m.i64(7, len);
                            m.i64(9, 4);
                        });
                    });
                    g.i64(3, rows);
                });
            }
        });
        bytes.extend(&foot.bytes);
        bytes.extend((foot.bytes.len() as u32).to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    };
    let run = [0, 0x80, 0x80, 0x80, 0x80, 0x10];
    // The shape of a good one: a run of sevens.
    let good = made(1000, 1, 1000, &run, number::RLE_DICTIONARY);
    assert_eq!(column(&good, "x").unwrap(), [7.0; 1000]);
    for (bytes, says) in [
        (made(1 << 40, 1, 1000, &run, number::RLE_DICTIONARY), "bytes do not hold 1099511627776 rows"),
        (made(-1, 1, 1000, &run, number::RLE_DICTIONARY), "its footer is damaged"),
        (made(1000, 1, i32::MAX, &run, number::RLE_DICTIONARY), "a page has more values than its group"),
        (made(1000, 1, -5, &run, number::RLE_DICTIONARY), "a page has more values than its group"),
        (made(1000, 9, 1000, &run, number::RLE_DICTIONARY), "its row groups lie in each other"),
        (made(1000, 1, 1000, &run, number::PLAIN), "a page is cut off"),
        (made(1000, 1, 1000, &[40, 0], number::RLE_DICTIONARY), "its indices have 40 bits"),
        (made(1000, 1, 1000, &[8, 2, 9], number::RLE_DICTIONARY), "a value is not in its dictionary"),
        (
            made(1000, 1, 1000, &[1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], number::RLE_DICTIONARY),
            "cut off",
        ),
        (made(1000, 1, 0, &run, number::RLE_DICTIONARY), "the head of a page is damaged"),
    ] {
        let e = column(&bytes, "x").unwrap_err().to_string();
        assert!(e.contains(says), "{says}: {e}");
    }
    // Lists that claim more than there is, and structures in structures.
    assert!(thrift::structure(&[0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0x7F]).is_none());
    assert!(thrift::structure(&[0x1C; 1 << 20]).is_none());
    assert!(thrift::structure(&vec![0x19; 1 << 20]).is_none());
}
