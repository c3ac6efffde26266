//! The values of a configuration, each with the place that it came from, and the types that a program asks for.

use std::fmt;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};
use toml_writer::{ToTomlKey, ToTomlValue};

/// Tables and lists inside one another beyond this are refused, so that walking a value never exhausts the stack.
pub(super) const MAX_DEPTH: usize = 32;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Line of the file, from 1.
    Line(usize),
    /// The argument of `--set`.
    Set(String),
    /// A flag with its value.
    Flag(String),
    /// A program.
    Code,
}

/// A value as a configuration holds it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number; wide enough for every `i64` and `u64`.
    Integer(i128),
    /// A number with a fraction or an exponent, or `inf` or `nan`.
    Float(f64),
    /// A string.
    String(String),
    /// A date or a time, as written.
    Datetime(String),
    /// A list.
    Array(Vec<Value>),
    /// A table.
    Table(Table),
}

/// Keys and their values in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub(super) origin: Origin,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) origin: Origin,
    pub(super) value: Value,
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

/// What a value is, as an error message says it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Boolean(value) => write!(f, "{value}"),
            Value::Integer(value) => write!(f, "the number {value}"),
            Value::Float(value) => write!(f, "the number {}", short(*value)),
            Value::String(value) => write!(f, "the string {}", quote(value)),
            Value::Datetime(value) => write!(f, "the date or time {value}"),
            Value::Array(values) => match values.as_slice() {
                [] => write!(f, "an empty list"),
                [only] => write!(f, "a list that holds {only}"),
                [first, rest @ ..] => write!(f, "a list that holds {first} and {} more", rest.len()),
            },
            Value::Table(_) => write!(f, "a table"),
        }
    }
}

/// `text` in double quotes with control characters escaped, cut where it is long, so that a message stays one line.
pub(crate) fn quote(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A number as messages write it: 1e300 without its zeros.
pub(crate) fn short(x: f64) -> String {
    const LONGEST: usize = 20;
    let all = x.to_string();
    if all.len() <= LONGEST { all } else { format!("{x:e}") }
}

/// The value as TOML on one line.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::Boolean(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => value.to_toml_value(),
        Value::String(value) => value.to_toml_value(),
        Value::Datetime(value) => value.clone(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        Value::Table(table) => {
            let entries: Vec<String> = table
                .entries
                .iter()
                .map(|entry| format!("{} = {}", entry.key.to_toml_key(), literal(&entry.value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

/// Turns the parser's tree into ours; `origin` gives the place of a byte offset. The error is an offset and a sentence.
pub(super) fn convert_table(
    table: DeTable<'_>,
    own: Origin,
    origin: &dyn Fn(usize) -> Origin,
    depth: usize,
) -> Result<Table, (usize, String)> {
    // The parser keeps tables sorted by key; the file's order is what a reader of the resolved text expects.
    let mut pairs: Vec<_> = table.into_iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    let mut entries = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let at = key.span().start;
        let value = convert(value.into_inner(), at, origin, depth + 1)?;
        entries.push(Entry { key: key.into_inner().into_owned(), origin: origin(at), value });
    }
    Ok(Table { origin: own, entries })
}

fn convert(
    value: DeValue<'_>,
    at: usize,
    origin: &dyn Fn(usize) -> Origin,
    depth: usize,
) -> Result<Value, (usize, String)> {
    if depth > MAX_DEPTH {
        return Err((at, format!("tables and lists are nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(match value {
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Integer(value) => match i128::from_str_radix(value.as_str(), value.radix()) {
            Ok(number) if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number) => Value::Integer(number),
            _ => return Err((at, format!("the whole number {value} does not fit in 64 bits"))),
        },
        DeValue::Float(value) => match value.as_str().parse::<f64>() {
            Ok(number) => Value::Float(number),
            Err(_) => return Err((at, format!("{value} is not a number"))),
        },
        DeValue::String(value) => Value::String(value.into_owned()),
        DeValue::Datetime(value) => Value::Datetime(value.to_string()),
        DeValue::Array(values) => {
            let mut items = Vec::with_capacity(values.len());
            for item in values {
                let at = item.span().start;
                items.push(convert(item.into_inner(), at, origin, depth + 1)?);
            }
            Value::Array(items)
        }
        DeValue::Table(table) => Value::Table(convert_table(table, origin(at), origin, depth)?),
    })
}

/// A type that a configuration can hold.
pub trait Setting: Sized {
    /// What is taken, as in "must be {expected}".
    fn expected() -> String;
    /// The setting in `value`, or `None` where the value is not one.
    fn from_value(value: &Value) -> Option<Self>;
    /// The value that [`Setting::from_value`] reads back as this setting.
    fn to_value(&self) -> Value;
}

impl Setting for bool {
    fn expected() -> String {
        "true or false".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Boolean(value) => Some(*value),
            _ => None,
        }
    }
    fn to_value(&self) -> Value {
        Value::Boolean(*self)
    }
}

impl Setting for String {
    fn expected() -> String {
        "a string".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(value) => Some(value.clone()),
            _ => None,
        }
    }
    fn to_value(&self) -> Value {
        Value::String(self.clone())
    }
}

impl Setting for PathBuf {
    fn expected() -> String {
        "a string that names a file or a folder".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(value) if !value.is_empty() => Some(value.into()),
            _ => None,
        }
    }
    fn to_value(&self) -> Value {
        Value::String(self.to_string_lossy().into_owned())
    }
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl Setting for $number {
            fn expected() -> String {
                format!("a whole number from {} to {}", <$number>::MIN, <$number>::MAX)
            }
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Integer(value) => (*value).try_into().ok(),
                    _ => None,
                }
            }
            fn to_value(&self) -> Value {
                // No type listed here is wider than 64 bits.
                Value::Integer(*self as i128)
            }
        }
    )*};
}
whole_numbers!(i32, u32, i64, u64, usize);

impl Setting for f64 {
    fn expected() -> String {
        "a finite number".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        let number = match value {
            Value::Integer(value) => *value as f64,
            Value::Float(value) => *value,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }
    fn to_value(&self) -> Value {
        Value::Float(*self)
    }
}

impl Setting for f32 {
    fn expected() -> String {
        "a finite number that fits in 32 bits".into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        f64::from_value(value).map(|number| number as f32).filter(|number| number.is_finite())
    }
    fn to_value(&self) -> Value {
        // The shortest decimal that names this f32: 0.001, where widening would print 0.0010000000474974513.
        Value::Float(self.to_string().parse().unwrap_or(f64::from(*self)))
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn expected() -> String {
        format!("a list, each item {}", T::expected())
    }
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(values) => values.iter().map(T::from_value).collect(),
            _ => None,
        }
    }
    fn to_value(&self) -> Value {
        Value::Array(self.iter().map(T::to_value).collect())
    }
}

/// A span of time in milliseconds, finite and not negative. Written as a bare number (milliseconds) or as a string
/// with one of the units `us`, `ms`, `s`, `min`, `h`: `"10s"`, `"1.5 s"`, `500`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Milliseconds(pub f64);

impl Setting for Milliseconds {
    fn expected() -> String {
        "a duration that is not negative: milliseconds as a number, or a string with a unit (us, ms, s, min, h) such as \
         \"500ms\" or \"10s\""
            .into()
    }
    fn from_value(value: &Value) -> Option<Self> {
        let milliseconds = match value {
            Value::String(text) => {
                let text = text.trim();
                let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let scale = match &text[digits.len()..] {
                    "us" => 1e-3,
                    "" | "ms" => 1.0,
                    "s" => 1e3,
                    "min" => 6e4,
                    "h" => 3.6e6,
                    _ => return None,
                };
                digits.trim_end().parse::<f64>().ok()? * scale
            }
            other => f64::from_value(other)?,
        };
        (milliseconds.is_finite() && milliseconds >= 0.0).then_some(Self(milliseconds))
    }
    fn to_value(&self) -> Value {
        Value::Float(self.0)
    }
}
