//! The `.ts` format of the UEA and UCR time-series archives.
//!
//! ```text
//! # a comment
//! @problemName JapaneseVowels
//! @timeStamps false
//! @univariate false
//! @dimensions 2
//! @equalLength false
//! @classLabel true one two        or: @classLabel false        or: @targetLabel true
//! @data
//! 1.5,2.5,3.5:0.1,0.2,0.3:one     one case a line: the channels, then what is to be predicted
//! ```
//! With `@timeStamps true` each value is `(time,value)`, times are numbers that rise, and all channels of a case have
//! the same. Tags are read in any letter case. Tags that the reader does not know are passed over, unless they look
//! like a slip for one that it does. Missing values (`?`, `NaN`, nothing) are refused.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use chronaxie_runtime::{Error, Result};

use super::source::{MAX_RECORD_BYTES, Source, open};
use super::{Classes, Clock, Dataset, Series, Target, number, time};
use crate::config::{nearest, quote};

mod header;
use header::{Header, Label};

#[cfg(test)]
pub(super) mod tests;

/// Reads a training set: class labels are indices into the classes of its own `@classLabel`.
///
/// # Errors
/// `Io` where the file cannot be read; `Data` with the line where it is empty, binary, not UTF-8 or not in the format:
/// no `@data`, no cases, a wrong number of channels, channels of unequal lengths, a value that is missing, infinite or
/// no number, a label that the header does not list.
pub fn read(path: impl AsRef<Path>) -> Result<Dataset> {
    read_file(path.as_ref(), None)
}

/// Reads a test set, or what is to be predicted: class labels are indices into `classes`, those of the training set,
/// whatever the order of this file's own header. A file without labels is taken.
///
/// # Errors
/// As [`read`]; also where a label is not in `classes`, or the file is for regression.
pub fn read_with_classes(path: impl AsRef<Path>, classes: &[String]) -> Result<Dataset> {
    read_file(path.as_ref(), Some(classes))
}

pub(super) fn read_file(path: &Path, classes: Option<&[String]>) -> Result<Dataset> {
    read_from(open(path)?, path, classes)
}

/// Reads from any stream; `path` is what messages call it. Memory beyond the result is bounded by the longest line,
/// and a line of more than 256 MiB is refused.
///
/// # Errors
/// As [`read`], and with `classes` as [`read_with_classes`].
pub fn read_from(reader: impl Read, path: &Path, classes: Option<&[String]>) -> Result<Dataset> {
    let mut lines = Lines {
        reader: BufReader::new(Source::new(reader, MAX_RECORD_BYTES)),
        path,
        number: 0,
        text: Vec::new(),
        done: false,
    };
    let header = Header::read(&mut lines)?;
    let (own, training) = match &header.label {
        Label::Classes(names) => {
            (Some((names.clone(), "@classLabel")), classes.map(|c| (c.to_vec(), "the training set")))
        }
        Label::Value if classes.is_some() => {
            return Err(
                lines.refuse("@targetLabel makes this a file for regression, but the model tells classes apart")
            );
        }
        _ => (None, None),
    };
    let index = |listed: Option<(Vec<String>, &'static str)>| {
        let classes = listed.map(|(names, by)| Classes::new(names, by)).transpose();
        classes.map_err(|message| lines.refuse(message))
    };
    let (own, training) = (index(own)?, index(training)?);
    let mut cases = Cases { header, own, training, first: None, series: vec![], labels: vec![], values: vec![] };
    let mut scratch = Scratch::default();
    while lines.advance()? {
        if let Some(text) = lines.content()? {
            cases.add(text, &mut scratch).map_err(|message| lines.refuse(message))?;
        }
    }
    let Some((channels, _)) = cases.first else {
        return Err(lines.refuse("no case follows @data"));
    };
    let target = match (cases.header.label, cases.training.or(cases.own)) {
        (Label::Classes(_), Some(classes)) => Target::Classes { names: classes.names, labels: cases.labels },
        (Label::Value, _) => Target::Values(cases.values),
        _ => Target::None,
    };
    let sha256 = lines.reader.into_inner().sha256();
    Ok(Dataset { path: path.to_path_buf(), sha256, series: cases.series, channels, target })
}

/// The lines of the file, one at a time.
struct Lines<'a, R> {
    reader: BufReader<Source<R>>,
    path: &'a Path,
    /// Of the current line, from 1.
    number: usize,
    text: Vec<u8>,
    done: bool,
}

impl<R: Read> Lines<'_, R> {
    /// Goes to the next line; false at the end of the file.
    fn advance(&mut self) -> Result<bool> {
        self.text.clear();
        self.reader.get_mut().start_record();
        let read = self.reader.read_until(b'\n', &mut self.text);
        let count = read.map_err(|error| self.reader.get_ref().error(self.path, &error))?;
        if count == 0 {
            self.done = true;
            return Ok(false);
        }
        self.number += 1;
        if self.number == 1 && self.text.starts_with(b"\xef\xbb\xbf") {
            self.text.drain(..3);
        }
        Ok(true)
    }

    /// The current line without the blanks around it; `None` where it is blank or a comment.
    fn content(&self) -> Result<Option<&str>> {
        let text = self.text.trim_ascii();
        // Comments of the archive hold names in other encodings.
        if text.is_empty() || text.starts_with(b"#") {
            return Ok(None);
        }
        match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.refuse("the line is not UTF-8 text; is this a binary file?")),
        }
    }

    fn refuse(&self, message: impl std::fmt::Display) -> Error {
        // At the end of the file no line is at fault.
        let line = (!self.done && self.number > 0).then_some(self.number);
        Error::data(self.path, line, message)
    }
}

/// What has been read of the data.
struct Cases {
    header: Header,
    /// The classes of the header, and those that a model was trained on.
    own: Option<Classes>,
    training: Option<Classes>,
    /// Channels and time steps of the first case.
    first: Option<(usize, usize)>,
    series: Vec<Series>,
    labels: Vec<u32>,
    values: Vec<f32>,
}

/// One case as it is parsed, kept from line to line: `values` is channel by channel.
#[derive(Default)]
struct Scratch {
    values: Vec<f32>,
    times: Vec<f64>,
}

impl Cases {
    fn add(&mut self, text: &str, scratch: &mut Scratch) -> Result<(), String> {
        let case = self.series.len() + 1;
        let place = |message| format!("case {case}: {message}");
        scratch.values.clear();
        scratch.times.clear();
        let (channels, label) = if self.header.time_stamps {
            self.stamped(text, scratch).map_err(place)?
        } else {
            self.plain(text, scratch).map_err(place)?
        };
        let len = scratch.values.len() / channels;
        if let (true, Some((_, expected))) = (self.header.equal_length, self.first)
            && len != expected
        {
            return Err(place(format!("it has {len} time steps, but case 1 has {expected} and @equalLength is true")));
        }
        if let Some(expected) = self.header.series_length
            && len != expected
        {
            return Err(place(format!("it has {len} time steps, but @seriesLength says {expected}")));
        }
        let mut clock = Clock::default();
        for (at, time) in scratch.times.iter().enumerate() {
            clock.tick(*time).map_err(|message| place(format!("position {}: {message}", at + 1)))?;
        }
        let elapsed = self.header.time_stamps.then(|| clock.into_elapsed());
        if let Some(own) = &self.own {
            // The header is this file's own promise, whichever classes the model was trained on.
            let index = own.label(label).map_err(place)?;
            let training = self.training.as_ref().map(|training| training.label(label).map_err(place));
            self.labels.push(training.unwrap_or(Ok(index))?);
        }
        if let Label::Value = self.header.label {
            self.values.push(number(label).map_err(|message| place(format!("the target: {message}")))?);
        }
        let mut values = Vec::with_capacity(scratch.values.len());
        for step in 0..len {
            values.extend(scratch.values[step..].iter().step_by(len));
        }
        self.first.get_or_insert((channels, len));
        self.series.push(Series { values, len, elapsed });
        Ok(())
    }

    /// `1,2,3:4,5,6:label`. Gives the number of channels and the label.
    fn plain<'a>(&self, text: &'a str, scratch: &mut Scratch) -> Result<(usize, &'a str), String> {
        let (text, label) = match (&self.header.label, text.rsplit_once(':')) {
            (Label::None, _) => (text, ""),
            (_, Some((text, label))) => (text, label.trim()),
            (_, None) => return Err("no ':' separates the values from what is to be predicted".into()),
        };
        self.check_channels(text.split(':').count())?;
        let mut len = 0;
        let mut channels = 0;
        for channel in text.split(':') {
            let start = scratch.values.len();
            for (at, token) in channel.split(',').enumerate() {
                let value = number(token)
                    .map_err(|message| format!("channel {}, position {}: {message}", channels + 1, at + 1))?;
                scratch.values.push(value);
            }
            channels += 1;
            len = check_length(channels, scratch.values.len() - start, len)?;
        }
        Ok((channels, label))
    }

    /// `(0,1.5),(1,2.0):(0,3.5),(1,4.0):label`. Read from left to right, since a date may hold the separators.
    fn stamped<'a>(&self, text: &'a str, scratch: &mut Scratch) -> Result<(usize, &'a str), String> {
        let mut rest = text;
        let mut channels = 0;
        let mut len = 0;
        let label = loop {
            if !rest.starts_with('(') {
                break rest;
            }
            let start = scratch.values.len();
            let more = loop {
                let at = scratch.values.len() - start + 1;
                let place = |message: String| format!("channel {}, position {at}: {message}", channels + 1);
                let Some((pair, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) else {
                    return Err(place(format!("{} is not a pair (time,value)", quote(rest))));
                };
                let Some((stamp, value)) = pair.rsplit_once(',') else {
                    return Err(place(format!("{} is not a pair (time,value)", quote(pair))));
                };
                let stamp = time(stamp).map_err(place)?;
                scratch.values.push(number(value).map_err(place)?);
                if channels == 0 {
                    scratch.times.push(stamp);
                } else if scratch.times.get(at - 1).is_some_and(|first| *first != stamp) {
                    return Err(place(format!("its time is {stamp}, but channel 1 has {}", scratch.times[at - 1])));
                }
                let after = after.trim_start();
                if let Some(next) = after.strip_prefix(',') {
                    rest = next.trim_start();
                } else if let Some(next) = after.strip_prefix(':') {
                    rest = next.trim_start();
                    break true;
                } else if after.is_empty() {
                    break false;
                } else {
                    return Err(place(format!("{} follows the pair instead of ',' or ':'", quote(after))));
                }
            };
            channels += 1;
            len = check_length(channels, scratch.values.len() - start, len)?;
            if !more {
                break "";
            }
        };
        if channels == 0 {
            return Err(format!("with @timeStamps true it begins with (time,value), not {}", quote(text)));
        }
        match (&self.header.label, label) {
            (Label::None, "") => {}
            (Label::None, label) => return Err(format!("{} follows the last channel", quote(label))),
            (_, "") => return Err("what is to be predicted is missing at its end".into()),
            _ => {}
        }
        self.check_channels(channels)?;
        Ok((channels, label))
    }

    fn check_channels(&self, channels: usize) -> Result<(), String> {
        let (expected, by) = match (self.header.dimensions, self.first) {
            (Some((expected, tag)), _) => (expected, format!("the header's {tag}")),
            (None, Some((expected, _))) => (expected, "case 1".into()),
            (None, None) => return Ok(()),
        };
        if channels == expected {
            return Ok(());
        }
        Err(format!("it has {channels} channels, but {by} says {expected}"))
    }
}

/// Checks that channel `channel` (from 1) is as long as the first, and gives the length of the case.
fn check_length(channel: usize, len: usize, first: usize) -> Result<usize, String> {
    if channel > 1 && len != first {
        return Err(format!("channel {channel} has {len} values, but channel 1 has {first}"));
    }
    Ok(len)
}

/// The tag of `word` that was probably meant, among those that the reader knows.
fn meant(word: &str) -> Option<&'static str> {
    nearest(word, header::TAGS)
}
