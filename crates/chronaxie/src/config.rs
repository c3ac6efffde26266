//! Configuration files: TOML (or JSON, where the name ends in `.json`) with `schema = 1`, read key by key.
//!
//! A program asks a [`Section`] for each key that it knows, with a default or as required. What it asked for is
//! remembered, so that [`Config::finish`] can refuse every key that nothing asked for (with its line and the nearest
//! known key), and [`Config::resolved`] can print the whole configuration with its defaults. Command-line overrides
//! (`--set a.b=c`) enter by [`Config::set`]. This module knows no model.
//!
//! ```
//! use chronaxie::config::{Config, Milliseconds};
//!
//! let mut config = Config::parse("schema = 1\n[train]\nepochs = 20\n", "run.toml")?;
//! config.set("train.learning_rate=0.01")?;
//! let train = config.table("train")?;
//! assert_eq!(train.get("epochs", 10u32)?, 20);
//! assert_eq!(train.get("learning_rate", 0.001)?, 0.01);
//! assert_eq!(train.get("log_every", Milliseconds(500.0))?, Milliseconds(500.0));
//! config.finish()?;
//! assert_eq!(
//!     config.resolved(),
//!     "schema = 1\n\n[train]\nepochs = 20\nlearning_rate = 0.01\nlog_every = 500.0\n"
//! );
//! # Ok::<(), chronaxie::Error>(())
//! ```

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use chronaxie_runtime::{Error, ErrorKind, Result};
use toml::de::DeTable;
use toml_writer::ToTomlKey;

use crate::data::sha256_hex;

mod json;
mod value;
pub(crate) use value::quote;
#[cfg(feature = "spiking")]
pub(crate) use value::short;
use value::{Entry, MAX_DEPTH, Origin, convert_table, literal};
pub use value::{Milliseconds, Setting, Table, Value};

#[cfg(test)]
mod tests;

/// The schema that this version reads.
pub const SCHEMA: i64 = 1;

/// A configuration file with its overrides, and what has been asked of it.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    sha256: String,
    root: Table,
    /// One record a section that was asked for; 0 is the root.
    asked: RefCell<Vec<Record>>,
}

/// What was asked of one section.
#[derive(Debug, Clone, Default)]
struct Record {
    /// `train.optimizer`, or `population[2]`; empty for the root.
    name: String,
    /// As a TOML header names it: `train.optimizer`, or `population` for each table of a list.
    header: String,
    /// Where its values come from, and whether it is one of a list.
    in_list: bool,
    keys: Vec<(String, Answer)>,
}

#[derive(Debug, Clone)]
enum Answer {
    /// Known, but neither given nor defaulted.
    Absent,
    Value(Value),
    /// Records of the table, or of each table of a list.
    Sections(Vec<usize>),
}

/// One table of a configuration, or the absence of one: then every key takes its default.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    config: &'a Config,
    record: usize,
    table: Option<&'a Table>,
}

/// The word of `known` that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A word this long was no slip of the finger, and the distance costs the product of both lengths.
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let allowed = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// `Io` where the file cannot be read, otherwise as [`Config::parse`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let line = line_of(&bytes, error.valid_up_to());
            place_error(path, line, "the file is not UTF-8 text")
        })?;
        Self::parse(text, path)
    }

    /// Reads `text`; `path` is what messages call it.
    ///
    /// # Errors
    /// `Config` with the line: not TOML (or JSON), nested deeper than 32 levels, or `schema` missing or not 1.
    pub fn parse(text: &str, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        let config = Self::parse_as(text, path, json, false)?;
        config.check_schema()?;
        Ok(config)
    }

    /// Reads JSON that a program made, with `schema`; messages say `name` and no line, and files are sought from the working
    /// folder.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn from_code(json: &str, name: &str) -> Result<Self> {
        let config = Self::parse_as(json, name.into(), true, true)?;
        config.check_schema()?;
        Ok(config)
    }

    fn parse_as(text: &str, path: PathBuf, json: bool, code: bool) -> Result<Self> {
        let refuse = |at: usize, message: &str| place_error(&path, line_of(text.as_bytes(), at), message);
        let starts = line_starts(text);
        let line = |at: usize| Origin::Line(starts.partition_point(|start| *start <= at));
        let origin = |at: usize| if code { Origin::Code } else { line(at) };
        let table = if json {
            json::parse(text, &origin)
        } else {
            let document = DeTable::parse(text).map_err(|error| match error.span() {
                Some(span) => refuse(span.start, &one_line(error.message())),
                None => Error::config(format!("{}: {}", path.display(), one_line(error.message()))),
            })?;
            convert_table(document.into_inner(), Origin::Line(1), &origin, 0)
        };
        let root = table.map_err(|(at, message)| refuse(at, &message))?;
        let sha256 = sha256_hex(text.as_bytes());
        Ok(Self { path, sha256, root, asked: RefCell::default() })
    }

    /// The file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the text as read, without overrides, in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Overrides one value: `a.b=c` sets key `b` of table `a`, making the table where there is none; a number in the
    /// path picks a table of a list, from 0. The value is read as TOML, and taken as a string where it is not TOML.
    /// Set before asking: what was asked before is forgotten.
    ///
    /// # Errors
    /// `Config`, where the argument has no `=`, a key is empty, or the path leads through a value that is no table.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        self.override_with(assignment, Origin::Set(assignment.into()))
    }

    /// The same for `flag`, which messages name in its place: what the user wrote, as in `--duration 10s`.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_by(&mut self, flag: &str, assignment: &str) -> Result<()> {
        self.override_with(assignment, Origin::Flag(flag.into()))
    }

    fn override_with(&mut self, assignment: &str, origin: Origin) -> Result<()> {
        let refuse = |message: String| Error::config(format!("--set {}: {message}", quote(assignment)));
        let Some((path, text)) = assignment.split_once('=') else {
            return Err(refuse("write it as table.key=value".into()));
        };
        let keys: Vec<&str> = path.split('.').map(str::trim).collect();
        let plain =
            |key: &&str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if let Some(key) = keys.iter().find(|key| !plain(key)) {
            return Err(refuse(format!("{} is not a key (letters, digits, '_' and '-')", quote(key))));
        }
        if keys.len() > MAX_DEPTH {
            return Err(refuse(format!("its {} keys are nested deeper than {MAX_DEPTH} levels", keys.len())));
        }
        let value = parse_override(text.trim(), &origin);
        let [tables @ .., last] = keys.as_slice() else {
            return Err(refuse("write it as table.key=value".into()));
        };
        let mut root = self.root.clone();
        let mut table = &mut root;
        let mut tables = tables.iter().enumerate();
        while let Some((at, key)) = tables.next() {
            let index = match table.entries.iter().position(|entry| entry.key == **key) {
                Some(index) => index,
                None => {
                    let value = Value::Table(Table { origin: origin.clone(), entries: Vec::new() });
                    table.entries.push(Entry { key: (*key).into(), origin: origin.clone(), value });
                    table.entries.len() - 1
                }
            };
            let mut next = &mut table.entries[index].value;
            if let Value::Array(items) = next {
                let count = items.len();
                let pick = tables.next().and_then(|(_, key)| key.parse::<usize>().ok()).filter(|pick| *pick < count);
                let Some(pick) = pick else {
                    let name = keys[..=at].join(".");
                    return Err(refuse(format!("{name} is a list of {count}; name an item as {name}.0, from 0")));
                };
                next = &mut items[pick];
            }
            table = match next {
                Value::Table(table) => table,
                other => {
                    return Err(refuse(format!("{} is {other}, which holds no keys", keys[..=at].join("."))));
                }
            };
        }
        match table.entries.iter_mut().find(|entry| entry.key == **last) {
            Some(entry) => (entry.origin, entry.value) = (origin, value),
            None => table.entries.push(Entry { key: (*last).into(), origin, value }),
        }
        let changed = Self { root, asked: RefCell::default(), path: self.path.clone(), sha256: self.sha256.clone() };
        changed.check_schema()?;
        *self = changed;
        Ok(())
    }

    /// The keys outside every table.
    pub fn root(&self) -> Section<'_> {
        let mut asked = self.asked.borrow_mut();
        if asked.is_empty() {
            let schema = ("schema".to_owned(), Answer::Value(Value::Integer(SCHEMA.into())));
            asked.push(Record { keys: vec![schema], ..Record::default() });
        }
        Section { config: self, record: 0, table: Some(&self.root) }
    }

    /// The table `[name]`; see [`Section::table`].
    ///
    /// # Errors
    /// `Config` with the line, where `name` is not a table.
    pub fn table(&self, name: &str) -> Result<Section<'_>> {
        self.root().table(name)
    }

    /// The tables `[[name]]`; see [`Section::tables`].
    ///
    /// # Errors
    /// `Config` with the line, where `name` is not a list of tables.
    pub fn tables(&self, name: &str) -> Result<Vec<Section<'_>>> {
        self.root().tables(name)
    }

    /// Refuses every key that nothing has asked for. Call it once all has been asked.
    ///
    /// # Errors
    /// `Config` with the first such line; the message has a line for each key, with the nearest known key of its table.
    pub fn finish(&self) -> Result<()> {
        self.root();
        let asked = self.asked.borrow();
        let mut unknown: Vec<(Origin, String)> = Vec::new();
        // Records hold indices and no references, so their tables are found again from the root.
        let mut open = vec![(0, &self.root)];
        while let Some((record, table)) = open.pop() {
            let record: &Record = &asked[record];
            for entry in &table.entries {
                match record.keys.iter().find(|(key, _)| *key == entry.key) {
                    None => unknown.push((entry.origin.clone(), record.unknown(&entry.key))),
                    Some((_, Answer::Sections(children))) => match &entry.value {
                        Value::Table(table) => open.extend(children.iter().map(|child| (*child, table))),
                        Value::Array(items) => open.extend(children.iter().zip(items).filter_map(|(child, item)| {
                            if let Value::Table(table) = item { Some((*child, table)) } else { None }
                        })),
                        _ => {}
                    },
                    Some(_) => {}
                }
            }
        }
        // Overrides come after the lines of the file.
        unknown.sort_by_key(|(origin, _)| if let Origin::Line(line) = origin { *line } else { usize::MAX });
        let Some((first, _)) = unknown.first() else { return Ok(()) };
        let line = if let Origin::Line(line) = first { Some(*line) } else { None };
        let sentences: Vec<String> =
            unknown.iter().map(|(origin, sentence)| format!("{}: {sentence}", self.place(origin))).collect();
        Err(Error::new(ErrorKind::Config { line }, sentences.join("\n")))
    }

    /// All that was asked for, as TOML: values of the file, overrides and defaults. It parses back to the same answers.
    pub fn resolved(&self) -> String {
        self.root();
        let mut text = String::new();
        write_record(&mut text, &self.asked.borrow(), 0);
        text
    }

    fn check_schema(&self) -> Result<()> {
        let Some(entry) = self.root.get("schema") else {
            // The original 4D-Neural-Cognition's files name no format; no other has this key.
            if self.root.get("lattice_shape").is_some() {
                return Ok(());
            }
            let message = format!("the file does not begin with schema = {SCHEMA}, which names its format");
            return Err(place_error(&self.path, 1, &message));
        };
        if entry.value != Value::Integer(SCHEMA.into()) {
            let message = format!("schema is {}, but this version reads schema = {SCHEMA}", entry.value);
            return Err(self.refuse(&entry.origin, &message));
        }
        Ok(())
    }

    /// `run.toml:3`, the override, or the name alone.
    fn place(&self, origin: &Origin) -> String {
        match origin {
            Origin::Line(line) => format!("{}:{line}", self.path.display()),
            Origin::Set(assignment) => format!("--set {}", quote(assignment)),
            Origin::Flag(flag) => flag.clone(),
            Origin::Code => self.path.display().to_string(),
        }
    }

    fn refuse(&self, origin: &Origin, message: &str) -> Error {
        let line = if let Origin::Line(line) = origin { Some(*line) } else { None };
        Error::new(ErrorKind::Config { line }, format!("{}: {message}", self.place(origin)))
    }
}

impl Record {
    fn qualified(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn unknown(&self, key: &str) -> String {
        let known = || self.keys.iter().map(|(known, _)| known.as_str());
        let hint = match nearest(key, known()) {
            Some(near) => format!("did you mean {near}?"),
            None if self.keys.is_empty() => "no key is known there".to_owned(),
            None => format!("known there: {}", known().collect::<Vec<_>>().join(", ")),
        };
        format!("unknown key {}; {hint}", self.qualified(&key.to_toml_key()))
    }
}

impl<'a> Section<'a> {
    /// The name as messages write it: `train.optimizer`, `population[2]`; empty for the root.
    pub fn name(&self) -> String {
        self.config.asked.borrow()[self.record].name.clone()
    }

    /// The keys that the file and overrides give, in their order. Does not count as asking for them.
    pub fn keys(&self) -> Vec<String> {
        self.table.map_or(Vec::new(), |table| table.entries.iter().map(|entry| entry.key.clone()).collect())
    }

    /// Whether the file or an override gives `key`. Does not count as asking for it.
    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Whether `key` is given, as a table. Does not count as asking for it.
    pub fn is_table(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| matches!(entry.value, Value::Table(_)))
    }

    /// The value of `key`, or `default` where it is not given.
    ///
    /// # Errors
    /// `Config` with the line, where the value is not a `T`.
    pub fn get<T: Setting>(&self, key: &str, default: T) -> Result<T> {
        let value = match self.entry(key) {
            Some(entry) => self.typed(entry)?,
            None => default,
        };
        self.answer(key, Answer::Value(value.to_value()));
        Ok(value)
    }

    /// The value of `key`, or `None` where it is not given.
    ///
    /// # Errors
    /// `Config` with the line, where the value is not a `T`.
    pub fn optional<T: Setting>(&self, key: &str) -> Result<Option<T>> {
        let value = self.entry(key).map(|entry| self.typed::<T>(entry)).transpose()?;
        self.answer(key, value.as_ref().map_or(Answer::Absent, |value| Answer::Value(value.to_value())));
        Ok(value)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// `Config` with the line, where the value is not a `T`; where it is missing, the message names the table.
    pub fn require<T: Setting>(&self, key: &str) -> Result<T> {
        if let Some(value) = self.optional(key)? {
            return Ok(value);
        }
        let name = self.name();
        let place = if name.is_empty() { "the top of the file".to_owned() } else { format!("table [{name}]") };
        let missing = format!("{place} lacks the required key {key} ({})", T::expected());
        let Some(table) = self.table else {
            let message = format!("{}: {missing}; the table is missing too", self.config.path.display());
            return Err(Error::config(message));
        };
        let hint = match nearest(key, table.entries.iter().map(|entry| entry.key.as_str())) {
            Some(near) => format!("; it has {near}, is that meant?"),
            None => String::new(),
        };
        Err(self.config.refuse(&table.origin, &(missing + &hint)))
    }

    /// The value of `key`, one of `choices`, or `default` where it is not given.
    ///
    /// # Errors
    /// `Config` with the line, where the value is not one of them; the message suggests the nearest.
    pub fn choice<'c>(&self, key: &str, choices: &[&'c str], default: &'c str) -> Result<&'c str> {
        let chosen = match self.entry(key) {
            None => default,
            Some(entry) => {
                let word = if let Value::String(word) = &entry.value { word.as_str() } else { "" };
                match choices.iter().find(|choice| **choice == word) {
                    Some(choice) => *choice,
                    None => {
                        let hint = match nearest(word, choices.iter().copied()) {
                            Some(near) if !word.is_empty() => format!("; did you mean {near:?}?"),
                            _ => String::new(),
                        };
                        let listed: Vec<String> = choices.iter().map(|choice| format!("{choice:?}")).collect();
                        let expected = format!("must be one of {}, but it is {}{hint}", listed.join(", "), entry.value);
                        return Err(self.refuse(key, &expected));
                    }
                }
            }
        };
        self.answer(key, Answer::Value(Value::String(chosen.to_owned())));
        Ok(chosen)
    }

    /// The table `key` of this table; where it is not given, a section without values.
    ///
    /// # Errors
    /// `Config` with the line, where `key` is not a table.
    pub fn table(&self, key: &str) -> Result<Section<'a>> {
        let table = match self.entry(key) {
            None => None,
            Some(Entry { value: Value::Table(table), .. }) => Some(table),
            Some(entry) => return Err(self.refuse(key, &format!("must be a table, but it is {}", entry.value))),
        };
        let record = self.sections(key, 1, false)[0];
        Ok(Section { config: self.config, record, table })
    }

    /// The tables of the list `key` (`[[key]]`); none where it is not given.
    ///
    /// # Errors
    /// `Config` with the line, where `key` is not a list of tables.
    pub fn tables(&self, key: &str) -> Result<Vec<Section<'a>>> {
        let items: &[Value] = match self.entry(key) {
            None => &[],
            Some(Entry { value: Value::Array(items), .. }) => items,
            Some(entry) => {
                let message = format!("must be a list of tables ([[{key}]]), but it is {}", entry.value);
                return Err(self.refuse(key, &message));
            }
        };
        let mut tables = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let Value::Table(table) = item else {
                let message = format!("must be a list of tables ([[{key}]]), but its item {index} is {item}");
                return Err(self.refuse(key, &message));
            };
            tables.push(table);
        }
        let records = self.sections(key, tables.len(), true);
        let section = |(table, record)| Section { config: self.config, record, table: Some(table) };
        Ok(tables.into_iter().zip(records).map(section).collect())
    }

    /// An error about `key` for a check that its type cannot make: the place, the key's full name, then `problem`, as
    /// in `run.toml:3: train.epochs must be at least 1, but it is 0`.
    pub fn refuse(&self, key: &str, problem: &str) -> Error {
        let message = format!("{} {problem}", self.config.asked.borrow()[self.record].qualified(key));
        match (self.entry(key), self.table) {
            (Some(entry), _) => self.config.refuse(&entry.origin, &message),
            (None, Some(table)) => self.config.refuse(&table.origin, &message),
            (None, None) => Error::config(format!("{}: {message}", self.config.path.display())),
        }
    }

    fn entry(&self, key: &str) -> Option<&'a Entry> {
        self.table.and_then(|table| table.get(key))
    }

    fn typed<T: Setting>(&self, entry: &Entry) -> Result<T> {
        T::from_value(&entry.value)
            .ok_or_else(|| self.refuse(&entry.key, &format!("must be {}, but it is {}", T::expected(), entry.value)))
    }

    fn answer(&self, key: &str, answer: Answer) {
        let keys = &mut self.config.asked.borrow_mut()[self.record].keys;
        match keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = answer,
            None => keys.push((key.to_owned(), answer)),
        }
    }

    /// The records of `count` sections under `key`, made where they are new.
    fn sections(&self, key: &str, count: usize, in_list: bool) -> Vec<usize> {
        let mut asked = self.config.asked.borrow_mut();
        let parent = &asked[self.record];
        if let Some((_, Answer::Sections(records))) = parent.keys.iter().find(|(known, _)| known == key)
            && records.len() == count
        {
            return records.clone();
        }
        let name = parent.qualified(key);
        let quoted = key.to_toml_key();
        let header = if parent.header.is_empty() { quoted } else { format!("{}.{quoted}", parent.header) };
        let first = asked.len();
        asked.extend((0..count).map(|index| Record {
            name: if in_list { format!("{name}[{index}]") } else { name.clone() },
            header: header.clone(),
            in_list,
            keys: Vec::new(),
        }));
        let records: Vec<usize> = (first..first + count).collect();
        drop(asked);
        self.answer(key, Answer::Sections(records.clone()));
        records
    }
}

fn write_record(text: &mut String, records: &[Record], index: usize) {
    let record = &records[index];
    if !record.header.is_empty() {
        let (open, close) = if record.in_list { ("[[", "]]") } else { ("[", "]") };
        let _ = write!(text, "\n{open}{}{close}\n", record.header);
    }
    for (key, answer) in &record.keys {
        if let Answer::Value(value) = answer {
            let _ = writeln!(text, "{} = {}", key.to_toml_key(), literal(value));
        }
    }
    for (_, answer) in &record.keys {
        if let Answer::Sections(children) = answer {
            children.iter().for_each(|child| write_record(text, records, *child));
        }
    }
}

/// The value of an override: TOML, or the text itself.
fn parse_override(text: &str, origin: &Origin) -> Value {
    let document = format!("value = {text}");
    let table = DeTable::parse(&document)
        .ok()
        .and_then(|table| convert_table(table.into_inner(), origin.clone(), &|_| origin.clone(), 0).ok());
    match table {
        // More than one entry means that the text held lines of its own.
        Some(mut table) if table.entries.len() == 1 => table.entries.remove(0).value,
        _ => Value::String(text.to_owned()),
    }
}

fn place_error(path: &Path, line: usize, message: &str) -> Error {
    Error::new(ErrorKind::Config { line: Some(line) }, format!("{}:{line}: {message}", path.display()))
}

/// The parser's messages may span lines; ours do not.
fn one_line(message: &str) -> String {
    message.split('\n').map(str::trim).collect::<Vec<_>>().join("; ")
}

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0)
        .chain(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1))
        .collect()
}

/// The line of byte `at`, from 1.
fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count()
}
