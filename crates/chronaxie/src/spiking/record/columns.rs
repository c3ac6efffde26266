//! Columns of numbers from `.npz`, `.parquet` and `.csv` files: edge lists and spikes.

use crate::data::npz::{self, Array};
use crate::data::parquet::Table;
use crate::{Error, Result};
use std::path::Path;

/// The columns of these names, of one length; all values are finite.
///
/// # Errors
/// `Io` and `Data`, with the line where there is one.
pub fn read<const N: usize>(path: &Path, names: [&str; N]) -> Result<[Vec<f64>; N]> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("npz") => from_npz(&bytes, path, names),
        Some("parquet") => from_parquet(&bytes, path, names),
        Some("csv") => from_csv(&bytes, path, names),
        _ => Err(Error::data(path, None, "the name ends in none of .npz, .parquet and .csv")),
    }
}

/// Of the bytes of a `.parquet` file.
///
/// # Errors
/// As [`read`]; `OutOfMemory` before anything is allocated.
pub fn from_parquet<const N: usize>(bytes: &[u8], path: &Path, names: [&str; N]) -> Result<[Vec<f64>; N]> {
    let table = Table::parse(bytes, path)?;
    // A column grows by doubling.
    let asked = table.rows().saturating_mul(8 * (N as u64 + 1));
    let what = || format!("{}: a table of {} rows of {}", path.display(), table.rows(), names.join(", "));
    crate::memory::require(asked, what)?;
    let mut columns = names.map(|_| Vec::new());
    for (name, column) in names.iter().zip(&mut columns) {
        *column = table.column(name)?;
        if let Some(row) = column.iter().position(|x| !x.is_finite()) {
            return Err(Error::data(path, None, format!("{name}[{row}] is {}", column[row])));
        }
    }
    Ok(columns)
}

/// Of the bytes of an `.npz` file: arrays of one dimension.
///
/// # Errors
/// As [`read`].
pub fn from_npz<const N: usize>(bytes: &[u8], path: &Path, names: [&str; N]) -> Result<[Vec<f64>; N]> {
    let mut arrays = npz::parse(bytes, path)?;
    let mut columns = names.map(|_| Vec::new());
    for (name, column) in names.iter().zip(&mut columns) {
        let Some(at) = arrays.iter().position(|(n, _)| n == name) else {
            let there: Vec<&str> = arrays.iter().map(|(n, _)| n.as_str()).collect();
            return Err(Error::data(path, None, format!("there is no array {name}; there are: {}", there.join(", "))));
        };
        let (_, array) = arrays.swap_remove(at);
        if array.shape.len() != 1 {
            return Err(Error::data(path, None, format!("{name} has the shape {:?}, not one dimension", array.shape)));
        }
        if let Some(row) = array.values.iter().position(|x| !x.is_finite()) {
            return Err(Error::data(path, None, format!("{name}[{row}] is {}", array.values[row])));
        }
        *column = array.values;
    }
    let lens: Vec<usize> = columns.iter().map(Vec::len).collect();
    if lens.windows(2).any(|w| w[0] != w[1]) {
        return Err(Error::data(path, None, format!("{} have the lengths {lens:?}", names.join(", "))));
    }
    Ok(columns)
}

/// Of the bytes of a `.csv` file whose first line has the names.
///
/// # Errors
/// As [`read`].
pub fn from_csv<const N: usize>(bytes: &[u8], path: &Path, names: [&str; N]) -> Result<[Vec<f64>; N]> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).from_reader(bytes);
    let refuse = |line: Option<u64>, what: String| Error::data(path, line.map(|l| l as usize), what);
    let heads = reader.headers().map_err(|e| refuse(Some(1), format!("the heading cannot be read: {}", reason(&e))))?;
    let heads: Vec<String> = heads.iter().map(str::to_owned).collect();
    let mut at = [0; N];
    for (name, at) in names.iter().zip(&mut at) {
        *at = heads
            .iter()
            .position(|h| h == name)
            .ok_or_else(|| refuse(Some(1), format!("there is no column {name}; it needs {}", names.join(", "))))?;
    }
    let mut columns = names.map(|_| Vec::new());
    for record in reader.records() {
        let record = record.map_err(|e| refuse(e.position().map(csv::Position::line), reason(&e)))?;
        let line = record.position().map(csv::Position::line);
        for ((name, at), column) in names.iter().zip(at).zip(&mut columns) {
            let word = record.get(at).unwrap_or("");
            match word.parse::<f64>() {
                Ok(x) if x.is_finite() => column.push(x),
                _ => {
                    return Err(refuse(
                        line,
                        format!("{name} is {}, which is no finite number", crate::config::quote(word)),
                    ));
                }
            }
        }
    }
    Ok(columns)
}

/// An array of any shape, all values finite: `name` of an `.npz` file, the only one of an `.npy` file, or the rows of a `.csv`
/// file without a heading.
///
/// # Errors
/// `Io` and `Data`, with the line where there is one.
pub fn array(path: &Path, name: &str) -> Result<Array> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    let (array, name) = match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("npz") => {
            let mut all = npz::parse(&bytes, path)?;
            let Some(at) = all.iter().position(|(n, _)| n == name) else {
                let there: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
                return Err(Error::data(
                    path,
                    None,
                    format!("there is no array {name}; there are: {}", there.join(", ")),
                ));
            };
            (all.swap_remove(at).1, name)
        }
        Some("npy") => (npz::parse_one(&bytes, path)?, "the array"),
        Some("csv") => return rows_of_csv(&bytes, path),
        _ => return Err(Error::data(path, None, "the name ends in none of .npz, .npy and .csv")),
    };
    match array.values.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::data(path, None, format!("number {at} of {name} is {}", array.values[at]))),
        None => Ok(array),
    }
}

fn rows_of_csv(bytes: &[u8], path: &Path) -> Result<Array> {
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).flexible(true).has_headers(false).from_reader(bytes);
    let refuse = |line: Option<u64>, what: String| Error::data(path, line.map(|l| l as usize), what);
    let (mut values, mut width, mut rows) = (Vec::new(), 0, 0);
    for record in reader.records() {
        let record = record.map_err(|e| refuse(e.position().map(csv::Position::line), reason(&e)))?;
        let line = record.position().map(csv::Position::line);
        if rows == 0 {
            width = record.len();
        } else if record.len() != width {
            return Err(refuse(line, format!("{} numbers after rows of {width}", record.len())));
        }
        rows += 1;
        for word in &record {
            match word.parse::<f64>() {
                Ok(x) if x.is_finite() => values.push(x),
                _ => return Err(refuse(line, format!("{} is no finite number", crate::config::quote(word)))),
            }
        }
    }
    Ok(Array { shape: vec![rows, width], values })
}

fn reason(e: &csv::Error) -> String {
    match e.kind() {
        csv::ErrorKind::Utf8 { .. } => "it is not UTF-8 text".into(),
        _ => "a record cannot be read".into(),
    }
}

/// Spikes to replay, as (step, cell), sorted: columns `time` (ms) and `cell` (from 0, below `size`).
///
/// # Errors
/// As [`read`]; and for times that are negative, cells that do not exist, and a cell that fires twice in a step.
pub fn spikes(path: &Path, dt_ms: f64, size: u32) -> Result<Vec<(u64, u32)>> {
    replayed(read(path, ["time", "cell"])?, path, dt_ms, size)
}

/// Likewise of the columns `time` and `cell`; `path` is what messages call them.
///
/// # Errors
/// As [`spikes`].
pub fn replayed([time, cell]: [Vec<f64>; 2], path: &Path, dt_ms: f64, size: u32) -> Result<Vec<(u64, u32)>> {
    let mut list = Vec::with_capacity(time.len());
    for (row, (t, c)) in time.iter().zip(&cell).enumerate() {
        let step = (t / dt_ms).round();
        if !(0.0..1e15).contains(&step) || c.fract() != 0.0 || !(0.0..f64::from(size)).contains(c) {
            let what = format!(
                "spike {row} is of cell {c} at {t} ms; there are cells from 0 to {} and times from 0",
                size - 1
            );
            return Err(Error::data(path, None, what));
        }
        list.push((step as u64, *c as u32));
    }
    list.sort_unstable();
    if let Some(twice) = list.windows(2).find(|w| w[0] == w[1]) {
        let (step, cell) = twice[0];
        return Err(Error::data(
            path,
            None,
            format!("cell {cell} fires twice in the step at {} ms", step as f64 * dt_ms),
        ));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::parquet::{Column, Kind};

    #[test]
    fn columns_are_found_by_name_and_refused_by_line() {
        let path = Path::new("e.csv");
        let text = "weight,source,delay,target\n 1.5, 0, 0.1, 2\n-2,1,1,0\n";
        let [s, t, w, d] = from_csv(text.as_bytes(), path, ["source", "target", "weight", "delay"]).unwrap();
        assert_eq!((s, t, w, d), (vec![0.0, 1.0], vec![2.0, 0.0], vec![1.5, -2.0], vec![0.1, 1.0]));
        for (text, says) in [
            ("a,b\n1,2\n", "e.csv:1: there is no column x"),
            ("x\n1\nnan\n", "e.csv:3: x is \"nan\""),
            ("x,y\n1,2\n,3\n", "e.csv:3: x is \"\""),
            ("x\n1e999\n", "e.csv:2: x is \"1e999\""),
        ] {
            let e = from_csv(text.as_bytes(), path, ["x"]).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
        let mut out = crate::data::parquet::Writer::new(Vec::new(), &[("x", Kind::F64)]).unwrap();
        out.group(&[Column::F64(&[1.0, f64::NAN])]).unwrap();
        let bytes = out.finish(&[]).unwrap();
        let refused = |name| from_parquet(&bytes, Path::new("e.parquet"), [name]).unwrap_err().to_string();
        assert_eq!(
            (refused("x"), refused("y")),
            ("e.parquet: x[1] is NaN".to_owned(), "e.parquet: there is no column y; there are: x".to_owned())
        );
        assert!(from_npz(text.as_bytes(), Path::new("e.npz"), ["x"]).unwrap_err().to_string().contains("not a ZIP"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let good = b"weight,source,delay,target\n 1.5, 0, 0.1, 2\n-2,1,1,0\n".to_vec();
        let mut rng = crate::rng::Rng::new(5, 0);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..rng.below(4).min(bytes.len() as u64) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            let _ = from_csv(&bytes, Path::new("e.csv"), ["source", "target", "weight", "delay"]);
        }
    }
}
