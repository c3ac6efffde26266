//! The part of a `.ts` file before its cases.

use std::io::Read;

use chronaxie_runtime::Result;

use super::{Lines, meant};
use crate::config::quote;

/// The tags that are read. `@missing` is a promise that nothing depends on: each value is looked at.
pub(super) const TAGS: [&str; 11] = [
    "@problemName",
    "@timeStamps",
    "@missing",
    "@univariate",
    "@dimension",
    "@dimensions",
    "@equalLength",
    "@seriesLength",
    "@classLabel",
    "@targetLabel",
    "@data",
];

/// What follows the channels of a case.
#[derive(Debug)]
pub(super) enum Label {
    None,
    Classes(Vec<String>),
    Value,
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) time_stamps: bool,
    /// The number of channels and the tag that says it.
    pub(super) dimensions: Option<(usize, &'static str)>,
    pub(super) equal_length: bool,
    pub(super) series_length: Option<usize>,
    pub(super) label: Label,
}

impl Header {
    /// Reads up to and with the line `@data`.
    pub(super) fn read<R: Read>(lines: &mut Lines<'_, R>) -> Result<Self> {
        let mut seen = Seen::default();
        while lines.advance()? {
            let Some(text) = lines.content()? else { continue };
            match seen.take(text) {
                Ok(false) => {}
                Ok(true) => return seen.header().map_err(|message| lines.refuse(message)),
                Err(message) => return Err(lines.refuse(message)),
            }
        }
        let empty = lines.reader.get_ref().is_empty();
        Err(lines.refuse(if empty { "the file is empty" } else { "the file has no @data, so it holds no cases" }))
    }
}

/// The tags so far.
#[derive(Default)]
struct Seen {
    /// Those that are known, in lower case.
    tags: Vec<String>,
    time_stamps: bool,
    univariate: Option<bool>,
    dimensions: Option<usize>,
    equal_length: bool,
    series_length: Option<usize>,
    classes: Option<Vec<String>>,
    value: bool,
}

impl Seen {
    /// Takes one line; true at `@data`.
    fn take(&mut self, text: &str) -> Result<bool, String> {
        if !text.starts_with('@') {
            return Err(format!("{} comes before @data, but is neither a tag (@...) nor a comment (#)", quote(text)));
        }
        let mut words = text.split_whitespace();
        let tag = words.next().unwrap_or_default();
        let mut lower = tag.to_ascii_lowercase();
        if lower == "@dimension" {
            lower.push('s');
        }
        let values: Vec<&str> = words.collect();
        if self.tags.contains(&lower) {
            return Err(format!("{} comes twice in the header", quote(tag)));
        }
        match lower.as_str() {
            "@problemname" => {}
            "@missing" => _ = flag(tag, &values)?,
            "@timestamps" => self.time_stamps = flag(tag, &values)?,
            "@univariate" => self.univariate = Some(flag(tag, &values)?),
            "@equallength" => self.equal_length = flag(tag, &values)?,
            "@dimensions" => self.dimensions = Some(count(tag, &values)?),
            "@serieslength" => self.series_length = Some(count(tag, &values)?),
            "@targetlabel" => self.value = flag(tag, &values[..values.len().min(1)])?,
            "@classlabel" => {
                let (first, names) = values.split_at(values.len().min(1));
                if flag(tag, first)? {
                    if names.is_empty() {
                        return Err(format!("{tag} true lists no classes; write {tag} true NAME NAME ..."));
                    }
                    self.classes = Some(names.iter().map(|name| (*name).to_owned()).collect());
                }
            }
            "@data" if values.is_empty() => return Ok(true),
            "@data" => return Err(format!("{} follows @data on its line", quote(values[0]))),
            _ => {
                if let Some(known) = meant(tag) {
                    return Err(format!("unknown tag {}; did you mean {known}?", quote(tag)));
                }
                return Ok(false);
            }
        }
        self.tags.push(lower);
        Ok(false)
    }

    fn header(self) -> Result<Header, String> {
        let dimensions = match (self.univariate, self.dimensions) {
            (Some(true), Some(channels)) if channels != 1 => {
                return Err(format!("the header says @univariate true, but also {channels} dimensions"));
            }
            (_, Some(channels)) => Some((channels, "@dimensions")),
            (Some(true), None) => Some((1, "@univariate true")),
            _ => None,
        };
        let label = match (self.classes, self.value) {
            (Some(_), true) => return Err("the header says both @classLabel true and @targetLabel true".into()),
            (Some(names), false) => Label::Classes(names),
            (None, true) => Label::Value,
            (None, false) => Label::None,
        };
        // Files of unequal lengths carry @seriesLength too, for their longest.
        let unequal = self.tags.iter().any(|tag| tag == "@equallength") && !self.equal_length;
        Ok(Header {
            time_stamps: self.time_stamps,
            dimensions,
            equal_length: self.equal_length,
            series_length: self.series_length.filter(|_| !unequal),
            label,
        })
    }
}

fn flag(tag: &str, values: &[&str]) -> Result<bool, String> {
    match values {
        [value] if value.eq_ignore_ascii_case("true") => Ok(true),
        [value] if value.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(format!("{tag} takes true or false, not {}", quote(&values.join(" ")))),
    }
}

fn count(tag: &str, values: &[&str]) -> Result<usize, String> {
    let number = if let [value] = values { value.parse().ok() } else { None };
    number
        .filter(|count| *count > 0)
        .ok_or_else(|| format!("{tag} takes a whole number from 1, not {}", quote(&values.join(" "))))
}
