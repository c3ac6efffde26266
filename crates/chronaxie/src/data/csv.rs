//! Time series in CSV, in two layouts; a header row is required in both.
//!
//! [`CsvLayout::Wide`]: one series a row, one channel, equal lengths. The target's column is taken out, every other
//! column is a time step:
//! ```text
//! label,v1,v2,v3
//! a,1.5,2.5,3.5
//! b,0.5,1.5,2.5
//! ```
//! [`CsvLayout::Long`]: one time step a row, any lengths and channels. The rows of a series follow one another, its
//! target is the same in each; every column that is not the series, the time or the target is a channel:
//! ```text
//! series,time,x,y,label
//! 1,0.0,1.5,0.1,a
//! 1,0.5,2.5,0.2,a
//! 2,0.0,0.5,0.3,b
//! ```

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use ::csv::{Position, Reader, ReaderBuilder, StringRecord};
use chronaxie_runtime::{Error, Result};

use super::source::{MAX_RECORD_BYTES, Source, open};
use super::{Classes, Clock, Dataset, Series, Target, number, time};
use crate::config::{nearest, quote};

#[cfg(test)]
mod tests;

/// How the file is laid out; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvLayout {
    /// One series a row.
    Wide,
    /// One time step a row.
    Long,
}

/// The column that is to be predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvTarget {
    /// The file has none.
    None,
    /// The column of this name holds class labels.
    Class(String),
    /// The column of this name holds numbers.
    Value(String),
}

/// How to read a CSV file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CsvOptions {
    /// The layout.
    pub layout: CsvLayout,
    /// The byte between fields, by default a comma.
    pub delimiter: u8,
    /// The column to predict, by default the class labels of column `label`.
    pub target: CsvTarget,
    /// Long layout: the column that tells series apart, by default `series`.
    pub series: String,
    /// Long layout: the column of times. By default `time`, if there is such a column; any other name must be there.
    pub time: String,
}

const DEFAULT_TIME: &str = "time";

impl CsvOptions {
    /// The defaults for `layout`.
    pub fn new(layout: CsvLayout) -> Self {
        let target = CsvTarget::Class("label".into());
        Self { layout, delimiter: b',', target, series: "series".into(), time: DEFAULT_TIME.into() }
    }
    /// Fields are separated by `delimiter`.
    #[must_use]
    pub fn with_delimiter(mut self, delimiter: u8) -> Self {
        self.delimiter = delimiter;
        self
    }
    /// What is to be predicted is `target`.
    #[must_use]
    pub fn with_target(mut self, target: CsvTarget) -> Self {
        self.target = target;
        self
    }
    /// Series are told apart by column `name`.
    #[must_use]
    pub fn with_series(mut self, name: impl Into<String>) -> Self {
        self.series = name.into();
        self
    }
    /// Times are in column `name`.
    #[must_use]
    pub fn with_time(mut self, name: impl Into<String>) -> Self {
        self.time = name.into();
        self
    }
}

/// Reads a training set: the classes are the labels that occur, by number where all are numbers, else by name.
///
/// # Errors
/// `Io` where the file cannot be read; `Config` where the delimiter cannot be one; `Data` with the line where the file
/// is empty, binary or not UTF-8, lacks a column that the options name, has two columns of one name, rows of unequal
/// numbers of fields or no rows, a value that is missing, infinite or no number, times that do not rise, or a series
/// whose rows are apart or whose target changes.
pub fn read(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Dataset> {
    read_file(path.as_ref(), options, None)
}

/// Reads a test set: class labels are indices into `classes`, those of the training set.
///
/// # Errors
/// As [`read`]; also where a label is not in `classes`, or the target of the options is a number.
pub fn read_with_classes(path: impl AsRef<Path>, options: &CsvOptions, classes: &[String]) -> Result<Dataset> {
    read_file(path.as_ref(), options, Some(classes))
}

pub(super) fn read_file(path: &Path, options: &CsvOptions, classes: Option<&[String]>) -> Result<Dataset> {
    read_from(open(path)?, path, options, classes)
}

/// Reads from any stream; `path` is what messages call it. Memory beyond the result is bounded by the longest row, and
/// a row of more than 256 MiB is refused.
///
/// # Errors
/// As [`read`], and with `classes` as [`read_with_classes`].
pub fn read_from(reader: impl Read, path: &Path, options: &CsvOptions, classes: Option<&[String]>) -> Result<Dataset> {
    let delimiter = options.delimiter;
    // Letters, digits and these signs occur in numbers and names.
    let taken = delimiter.is_ascii_alphanumeric() || b"\0\"\n\r.+-".contains(&delimiter);
    if taken || !delimiter.is_ascii() {
        let shown = char::from(delimiter);
        return Err(Error::config(format!("csv: {shown:?} cannot separate fields; use one such as ',', ';' or a tab")));
    }
    let reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        .from_reader(Source::new(reader, MAX_RECORD_BYTES).tracking_lines());
    let mut rows = Rows { reader, path, record: StringRecord::new(), line: 0 };
    if !rows.advance()? {
        let empty = rows.reader.get_ref().is_empty();
        let message = if empty { "the file is empty" } else { "the file has no header row" };
        return Err(Error::data(path, None, message));
    }
    let columns = Columns::find(&rows.record, options).map_err(|message| rows.refuse(message))?;
    let mut labels = match (classes, &options.target) {
        (Some(_), CsvTarget::Value(name)) => {
            let message = format!("column {} is for regression, but the model tells classes apart", quote(name));
            return Err(rows.refuse(message));
        }
        (Some(names), CsvTarget::Class(_)) => {
            Labels::Known(Classes::new(names.to_vec(), "the training set").map_err(|message| rows.refuse(message))?)
        }
        _ => Labels::Found(Classes::new(Vec::new(), "the file").map_err(|message| rows.refuse(message))?),
    };
    let mut found = match options.layout {
        CsvLayout::Wide => wide(&mut rows, &columns, &mut labels)?,
        CsvLayout::Long => long(&mut rows, &columns, &mut labels)?,
    };
    if found.series.is_empty() {
        return Err(Error::data(path, None, "no row follows the header"));
    }
    let target = match options.target {
        CsvTarget::None => Target::None,
        CsvTarget::Value(_) => Target::Values(found.values),
        CsvTarget::Class(_) => {
            let names = labels.into_names(&mut found.labels);
            Target::Classes { names, labels: found.labels }
        }
    };
    let channels = if options.layout == CsvLayout::Wide { 1 } else { columns.values.len() };
    let sha256 = rows.reader.into_inner().sha256();
    Ok(Dataset { path: path.to_path_buf(), sha256, series: found.series, channels, target })
}

struct Rows<'a, R> {
    reader: Reader<Source<R>>,
    path: &'a Path,
    record: StringRecord,
    /// Of the current row, from 1.
    line: usize,
}

impl<R: Read> Rows<'_, R> {
    /// Goes to the next row; false at the end of the file.
    fn advance(&mut self) -> Result<bool> {
        self.reader.get_mut().start_record();
        match self.reader.read_record(&mut self.record) {
            Ok(more) => {
                let start = self.record.position().map(Position::byte);
                let line = start.and_then(|start| self.reader.get_mut().line_at(start));
                self.line = line.unwrap_or(self.line);
                Ok(more)
            }
            Err(error) => {
                let start = error.position().map(Position::byte);
                let line = start.and_then(|start| self.reader.get_mut().line_at(start));
                Err(match error.into_kind() {
                    ::csv::ErrorKind::Io(error) => self.reader.get_ref().error(self.path, &error),
                    ::csv::ErrorKind::Utf8 { .. } => {
                        Error::data(self.path, line, "the row is not UTF-8 text; is this a binary file?")
                    }
                    _ => Error::data(self.path, line, "the row cannot be read as CSV"),
                })
            }
        }
    }

    fn refuse(&self, message: impl std::fmt::Display) -> Error {
        Error::data(self.path, (self.line > 0).then_some(self.line), message)
    }
}

/// Where in a row to find what.
struct Columns {
    names: Vec<String>,
    target: Option<(usize, bool)>,
    series: usize,
    time: Option<usize>,
    values: Vec<usize>,
}

impl Columns {
    fn find(header: &StringRecord, options: &CsvOptions) -> Result<Self, String> {
        let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
        let mut seen = HashSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(format!("the header names the column {} twice", quote(name)));
        }
        let find = |name: &str| names.iter().position(|column| column == name);
        let require = |name: &str, role: &str| {
            find(name).ok_or_else(|| {
                let hint = match nearest(name, names.iter().map(String::as_str)) {
                    Some(near) => format!("; did you mean {}?", quote(near)),
                    None => format!("; the columns are {}", quote(&names.join(","))),
                };
                format!("the header has no column {} for {role}{hint}", quote(name))
            })
        };
        let target = match &options.target {
            CsvTarget::None => None,
            CsvTarget::Class(name) => Some((require(name, "the class labels")?, true)),
            CsvTarget::Value(name) => Some((require(name, "the target values")?, false)),
        };
        let (series, time) = match options.layout {
            CsvLayout::Wide => (None, None),
            CsvLayout::Long => {
                let series = require(&options.series, "the series")?;
                let time = match find(&options.time) {
                    None if options.time != DEFAULT_TIME => Some(require(&options.time, "the times")?),
                    found => found,
                };
                (Some(series), time)
            }
        };
        let special = [target.map(|(column, _)| column), series, time];
        if special.iter().enumerate().any(|(at, one)| one.is_some() && special[..at].contains(one)) {
            return Err("the options give two roles to one column".into());
        }
        let values: Vec<usize> = (0..names.len()).filter(|column| !special.contains(&Some(*column))).collect();
        if values.is_empty() {
            return Err("the header has no column of values".into());
        }
        Ok(Self { target, series: series.unwrap_or(0), time, values, names })
    }

    /// Appends the values of a row.
    fn values(&self, row: &StringRecord, into: &mut Vec<f32>) -> Result<(), String> {
        if row.len() != self.names.len() {
            return Err(format!("the row has {} fields, but the header has {}", row.len(), self.names.len()));
        }
        for column in &self.values {
            let value = number(&row[*column])
                .map_err(|message| format!("column {} ({}): {message}", column + 1, quote(&self.names[*column])))?;
            into.push(value);
        }
        Ok(())
    }
}

/// Class labels: those of the training set, or those that have occurred so far.
enum Labels {
    Known(Classes),
    Found(Classes),
}

impl Labels {
    fn label(&mut self, name: &str) -> Result<u32, String> {
        if name.is_empty() {
            return Err("the class label is missing".into());
        }
        match self {
            Labels::Known(classes) => classes.label(name),
            Labels::Found(classes) => {
                if let Some(label) = classes.index.get(name) {
                    return Ok(*label);
                }
                let label = u32::try_from(classes.names.len()).map_err(|_| "more than 2^32 classes".to_owned())?;
                classes.names.push(name.to_owned());
                classes.index.insert(name.to_owned(), label);
                Ok(label)
            }
        }
    }

    /// The names in their final order, which does not depend on the order of rows; `labels` follow.
    fn into_names(self, labels: &mut [u32]) -> Vec<String> {
        let names = match self {
            Labels::Known(classes) => return classes.names,
            Labels::Found(classes) => classes.names,
        };
        let numbers: Option<Vec<f64>> =
            names.iter().map(|name| name.parse::<f64>().ok().filter(|number| !number.is_nan())).collect();
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by(|a, b| {
            let by_number = numbers.as_ref().map_or(std::cmp::Ordering::Equal, |n| n[*a].total_cmp(&n[*b]));
            by_number.then_with(|| names[*a].cmp(&names[*b]))
        });
        let mut rank = vec![0u32; names.len()];
        order.iter().enumerate().for_each(|(at, old)| rank[*old] = at as u32);
        labels.iter_mut().for_each(|label| *label = rank[*label as usize]);
        order.into_iter().map(|old| names[old].clone()).collect()
    }
}

#[derive(Default)]
struct Found {
    series: Vec<Series>,
    labels: Vec<u32>,
    values: Vec<f32>,
}

impl Found {
    fn target(&mut self, row: &StringRecord, columns: &Columns, labels: &mut Labels) -> Result<(), String> {
        match columns.target {
            None => {}
            Some((column, true)) => self.labels.push(labels.label(row[column].trim())?),
            Some((column, false)) => {
                self.values.push(number(&row[column]).map_err(|message| format!("the target: {message}"))?);
            }
        }
        Ok(())
    }
}

fn wide<R: Read>(rows: &mut Rows<'_, R>, columns: &Columns, labels: &mut Labels) -> Result<Found> {
    let mut found = Found::default();
    while rows.advance()? {
        let mut values = Vec::with_capacity(columns.values.len());
        let row = &rows.record;
        columns
            .values(row, &mut values)
            .and_then(|()| found.target(row, columns, labels))
            .map_err(|message| rows.refuse(message))?;
        found.series.push(Series { len: values.len(), values, elapsed: None });
    }
    Ok(found)
}

/// The series that is being read.
struct Open {
    id: String,
    target: String,
    first_line: usize,
    values: Vec<f32>,
    clock: Clock,
}

fn long<R: Read>(rows: &mut Rows<'_, R>, columns: &Columns, labels: &mut Labels) -> Result<Found> {
    let mut found = Found::default();
    let mut ended: HashSet<String> = HashSet::new();
    let mut open: Option<Open> = None;
    while rows.advance()? {
        let row = &rows.record;
        // The number of fields is checked with the values; until then a field may be absent.
        let id = row.get(columns.series).unwrap_or("").trim();
        let target = columns.target.and_then(|(column, _)| row.get(column)).unwrap_or("").trim();
        if open.as_ref().is_some_and(|open| open.id != id)
            && let Some(done) = open.take()
        {
            ended.insert(done.id.clone());
            found.series.push(close(done, columns));
        }
        let series = open.get_or_insert_with(|| Open {
            id: id.to_owned(),
            target: target.to_owned(),
            first_line: rows.line,
            values: Vec::new(),
            clock: Clock::default(),
        });
        let mut add = || -> Result<(), String> {
            columns.values(row, &mut series.values)?;
            if id.is_empty() {
                return Err("the name of the series is missing".into());
            }
            let place = |message| format!("series {}: {message}", quote(id));
            if ended.contains(id) {
                return Err(place("its rows are apart; sort the file by series".into()));
            }
            if series.target != target {
                let (first, line) = (quote(&series.target), series.first_line);
                return Err(place(format!("its target is {}, but {first} on line {line}", quote(target))));
            }
            if let Some(column) = columns.time {
                time(&row[column]).and_then(|time| series.clock.tick(time)).map_err(place)?;
            }
            if series.values.len() == columns.values.len() {
                found.target(row, columns, labels).map_err(place)?;
            }
            Ok(())
        };
        add().map_err(|message| rows.refuse(message))?;
    }
    if let Some(done) = open {
        found.series.push(close(done, columns));
    }
    Ok(found)
}

fn close(done: Open, columns: &Columns) -> Series {
    let mut values = done.values;
    values.shrink_to_fit();
    let len = values.len() / columns.values.len();
    let elapsed = columns.time.map(|_| done.clock.into_elapsed());
    Series { values, len, elapsed }
}
