//! Tables from files.

use super::thrift::{Value, structure, varint};
use super::{MAGIC, named, number, snappy};
use crate::config::quote;
use crate::data::npz::crc32;
use chronaxie_runtime::{Error, Result};
use std::path::{Path, PathBuf};

/// A file of so many bytes holds at most this many times as many rows. Numbers of edges and times of spikes need some bits
/// each; only columns that say nothing could be denser.
pub const MOST_EXPANSION: u64 = 1024;

const TYPES: [&str; 8] =
    ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"];
const CODECS: [&str; 8] = ["none", "Snappy", "gzip", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4_RAW"];
const ENCODINGS: [&str; 10] = [
    "PLAIN",
    "1",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
];

/// A file whose footer was read.
#[derive(Debug)]
pub struct Table<'a> {
    bytes: &'a [u8],
    path: PathBuf,
    footer: Value<'a>,
    columns: Vec<Leaf<'a>>,
    rows: u64,
}

/// A column of the schema.
#[derive(Debug, Clone, Copy)]
struct Leaf<'a> {
    name: &'a str,
    physical: i64,
    /// The older name of its type, or that which the newer one has.
    converted: Option<i64>,
    /// Whether values may be missing; none where a row has a list of them.
    optional: Option<bool>,
}

impl<'a> Table<'a> {
    /// Of the bytes of a file; `path` is what messages call it.
    ///
    /// # Errors
    /// `Data`, in a sentence.
    pub fn parse(bytes: &'a [u8], path: &Path) -> Result<Self> {
        Self::opened(bytes, path).map_err(|what| Error::data(path, None, what))
    }

    fn opened(bytes: &'a [u8], path: &Path) -> Result<Self, String> {
        let end = bytes.len().saturating_sub(8);
        if end < MAGIC.len() || !bytes.starts_with(MAGIC) || !bytes.ends_with(MAGIC) {
            let encrypted = bytes.ends_with(b"PARE");
            return Err(
                if encrypted { "it is encrypted" } else { "it is no Parquet file, or one that is cut off" }.into()
            );
        }
        let damaged = || "its footer is damaged".to_owned();
        let len = u32::from_le_bytes(bytes[end..end + 4].try_into().map_err(|_| damaged())?) as usize;
        let start = end.checked_sub(len).filter(|start| *start >= MAGIC.len()).ok_or_else(damaged)?;
        let (footer, _) = structure(&bytes[start..end]).ok_or_else(damaged)?;
        let schema = footer.list(2);
        let [root, leaves @ ..] = schema else { return Err(damaged()) };
        if leaves.iter().any(|e| e.int(5).is_some_and(|children| children > 0)) || root.size(5) != Some(leaves.len()) {
            return Err("its columns lie in each other; flat tables are read".into());
        }
        let columns = leaves.iter().map(|e| leaf(e).ok_or_else(damaged)).collect::<Result<_, _>>()?;
        let rows = footer.int(3).and_then(|n| u64::try_from(n).ok()).ok_or_else(damaged)?;
        if rows > MOST_EXPANSION * bytes.len() as u64 {
            return Err(format!("{} bytes do not hold {rows} rows", bytes.len()));
        }
        let counted: Option<u64> = footer.list(4).iter().try_fold(0u64, |n, g| n.checked_add(g.size(3)? as u64));
        if counted != Some(rows) {
            return Err(damaged());
        }
        Ok(Self { bytes, path: path.to_path_buf(), footer, columns, rows })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }
    /// The names of the columns.
    pub fn names(&self) -> Vec<&'a str> {
        self.columns.iter().map(|c| c.name).collect()
    }
    /// What the file says about itself under a key.
    pub fn about(&self, key: &str) -> Option<&'a str> {
        self.footer.list(5).iter().find(|e| e.text(1) == Some(key)).and_then(|e| e.text(2))
    }

    /// The values of a column of numbers, as f64.
    ///
    /// # Errors
    /// `Data`: there is no such column, it is of another type, a value is missing or beyond 2^53, it is written as is not
    /// read, or damaged.
    pub fn column(&self, name: &str) -> Result<Vec<f64>> {
        let refuse = |what: String| Error::data(&self.path, None, what);
        let Some(leaf) = self.columns.iter().find(|c| c.name == name) else {
            let there: Vec<String> = self.columns.iter().take(20).map(|c| shown(c.name)).collect();
            let there = there.join(", ");
            return Err(refuse(format!("there is no column {name}; there are: {there}")));
        };
        self.values(leaf).map_err(|what| refuse(format!("column {}: {what}", quote(name))))
    }

    fn values(&self, leaf: &Leaf<'_>) -> Result<Vec<f64>, String> {
        let kind = match (leaf.physical as i32, leaf.converted.map(|c| c as i32)) {
            (number::INT32, None | Some(number::UINT_8..=number::INT_64)) => Number::I32,
            (number::INT64, None | Some(number::UINT_8..=number::INT_64)) => Number::I64,
            (number::FLOAT, None) => Number::F32,
            (number::DOUBLE, None) => Number::F64,
            _ => {
                let of = named(&TYPES, leaf.physical);
                let logical = leaf.converted.map_or(String::new(), |_| " of a logical type of its own".into());
                return Err(format!("it is {of}{logical}; integers, FLOAT and DOUBLE are read"));
            }
        };
        let signed =
            !matches!(leaf.converted, Some(c) if (i64::from(number::UINT_8)..=i64::from(number::UINT_64)).contains(&c));
        let optional = leaf.optional.ok_or("its rows are lists; flat tables are read")?;
        let mut out = Values { kind, signed, optional, words: None, values: Vec::new() };
        // Chunks that lie in each other would make a small file a long work.
        let mut left = self.bytes.len();
        for group in self.footer.list(4) {
            let rows = group.size(3).unwrap_or(0);
            let chunk = group.list(1).iter().find(|c| c.get(3).and_then(|m| m.only_word(3)) == Some(leaf.name));
            let Some(meta) = chunk.and_then(|c| c.get(3)) else { return Err("a row group lacks it".into()) };
            if chunk.is_some_and(|c| c.get(1).is_some()) {
                return Err("its values lie in another file".into());
            }
            if meta.int(1) != Some(leaf.physical) || meta.size(5) != Some(rows) {
                return Err("its row groups contradict the footer".into());
            }
            let codec = meta.int(4).unwrap_or(-1);
            if !(0..=1).contains(&codec) {
                let codec = named(&CODECS, codec);
                return Err(format!("it is compressed by {codec}; Snappy and files that are not compressed are read"));
            }
            let at = [meta.size(9), meta.size(11).filter(|at| *at > 0)].into_iter().flatten().min();
            let (at, len) = at.zip(meta.size(7)).ok_or("its place is missing")?;
            let bytes = at.checked_add(len).and_then(|end| self.bytes.get(at..end)).ok_or("the file is cut off")?;
            left = left.checked_sub(len).ok_or("its row groups lie in each other")?;
            out.chunk(bytes, rows, codec == 1)?;
        }
        Ok(out.values)
    }
}

fn leaf<'a>(e: &Value<'a>) -> Option<Leaf<'a>> {
    // The newer types: 10 is an integer, the others are no plain numbers.
    let logical = e.get(10).map(|l| match l.get(10) {
        Some(int) if int.bool(2) == Some(false) => i64::from(number::UINT_64),
        Some(_) => i64::from(number::INT_64),
        None => -1,
    });
    let optional = match e.int(3) {
        None | Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    Some(Leaf { name: e.text(4)?, physical: e.int(1)?, converted: e.int(6).or(logical), optional })
}

#[derive(Debug, Clone, Copy)]
enum Number {
    I32,
    I64,
    F32,
    F64,
}

/// The values of a column as they come.
struct Values {
    kind: Number,
    signed: bool,
    optional: bool,
    /// The dictionary of the chunk.
    words: Option<Vec<f64>>,
    values: Vec<f64>,
}

impl Values {
    fn chunk(&mut self, mut bytes: &[u8], rows: usize, snappy: bool) -> Result<(), String> {
        self.words = None;
        let mut left = rows;
        while left > 0 {
            let (head, len) = structure(bytes).ok_or("the head of a page is damaged")?;
            let (Some(kind), Some(size), Some(stored)) = (head.int(1), head.size(2), head.size(3)) else {
                return Err("the head of a page is damaged".into());
            };
            let rest = &bytes[len..];
            let body = rest.get(..stored).ok_or("a page is cut off")?;
            bytes = &rest[stored..];
            if head.int(4).is_some_and(|crc| crc as i32 as u32 != crc32(0, body)) {
                return Err("the checksum of a page does not fit: the file is damaged".into());
            }
            match kind as i32 {
                number::DATA_PAGE => {
                    let page = head.get(5).ok_or("the head of a page is damaged")?;
                    let n = page.size(1).filter(|n| *n <= left).ok_or("a page has more values than its group")?;
                    let body = inflated(body, size, snappy)?;
                    let mut values = body.as_ref();
                    if self.optional {
                        let levels = match page.int(3) {
                            Some(3) => values.split_at_checked(4),
                            other => return Err(format!("its levels are encoded as {}", encoding(other))),
                        };
                        let (len, after) = levels.ok_or("a page is cut off")?;
                        let len = u32::from_le_bytes(len.try_into().map_err(|_| "a page is cut off")?) as usize;
                        let (levels, after) = after.split_at_checked(len).ok_or("a page is cut off")?;
                        self.present(levels, n)?;
                        values = after;
                    }
                    self.page(values, n, page.int(2))?;
                    left -= n;
                }
                number::DATA_PAGE_V2 => {
                    let page = head.get(8).ok_or("the head of a page is damaged")?;
                    let n = page.size(1).filter(|n| *n <= left).ok_or("a page has more values than its group")?;
                    let (repeated, defined) = (page.size(6).unwrap_or(0), page.size(5).unwrap_or(0));
                    let levels = body.get(repeated..).and_then(|b| b.split_at_checked(defined));
                    let (levels, values) = levels.ok_or("a page is cut off")?;
                    if self.optional {
                        self.present(levels, n)?;
                    }
                    let size = size.checked_sub(repeated + defined).ok_or("the head of a page is damaged")?;
                    let values = inflated(values, size, snappy && page.bool(7) != Some(false))?;
                    self.page(&values, n, page.int(4))?;
                    left -= n;
                }
                number::DICTIONARY_PAGE => {
                    let page = head.get(7).ok_or("the head of a page is damaged")?;
                    if !matches!(page.int(2), Some(0 | 2)) {
                        return Err(format!("its dictionary is encoded as {}", encoding(page.int(2))));
                    }
                    let body = inflated(body, size, snappy)?;
                    let mut words = Vec::new();
                    self.plain(&body, page.size(1).unwrap_or(0), &mut words)?;
                    self.words = Some(words);
                }
                number::INDEX_PAGE => {}
                other => return Err(format!("it has a page of kind {other}")),
            }
        }
        Ok(())
    }

    /// Refuses values that are missing.
    fn present(&self, levels: &[u8], n: usize) -> Result<(), String> {
        let mut row = self.values.len();
        runs(levels, 1, n, |level, count| {
            if level == 0 {
                return Err(format!("the value of row {row} is missing"));
            }
            row += count;
            Ok(())
        })
    }

    fn page(&mut self, bytes: &[u8], n: usize, kind: Option<i64>) -> Result<(), String> {
        let mut values = std::mem::take(&mut self.values);
        match kind.map(|k| k as i32) {
            Some(number::PLAIN) => self.plain(bytes, n, &mut values)?,
            Some(number::PLAIN_DICTIONARY | number::RLE_DICTIONARY) => {
                let words = self.words.as_deref().ok_or("a page has no dictionary")?;
                let (width, indices) = bytes.split_first().ok_or("a page is cut off")?;
                runs(indices, *width, n, |index, count| {
                    let word = words.get(index as usize).ok_or("a value is not in its dictionary")?;
                    values.resize(values.len() + count, *word);
                    Ok(())
                })?;
            }
            _ => return Err(format!("it is encoded as {}; PLAIN and dictionaries are read", encoding(kind))),
        }
        self.values = values;
        Ok(())
    }

    fn plain(&self, bytes: &[u8], n: usize, out: &mut Vec<f64>) -> Result<(), String> {
        let width = if matches!(self.kind, Number::I32 | Number::F32) { 4 } else { 8 };
        let bytes = n.checked_mul(width).and_then(|len| bytes.get(..len)).ok_or("a page is cut off")?;
        out.reserve(n);
        for b in bytes.chunks_exact(width) {
            let raw = b.iter().rev().fold(0u64, |x, b| x << 8 | u64::from(*b));
            out.push(match self.kind {
                Number::F64 => f64::from_bits(raw),
                Number::F32 => f32::from_bits(raw as u32).into(),
                Number::I32 if self.signed => (raw as u32 as i32).into(),
                Number::I32 => (raw as u32).into(),
                Number::I64 => {
                    let x = if self.signed { i128::from(raw as i64) } else { i128::from(raw) };
                    if x.unsigned_abs() > 1 << 53 {
                        return Err(format!("it holds {x}, beyond 2^53"));
                    }
                    x as f64
                }
            });
        }
        Ok(())
    }
}

/// A name of a file, on one line.
fn shown(name: &str) -> String {
    if name.chars().all(|c| c.is_alphanumeric() || "_-. ".contains(c)) {
        name.chars().take(80).collect()
    } else {
        quote(name)
    }
}

fn encoding(of: Option<i64>) -> String {
    named(&ENCODINGS, of.unwrap_or(-1))
}

fn inflated(body: &[u8], size: usize, snappy: bool) -> Result<std::borrow::Cow<'_, [u8]>, String> {
    if snappy {
        snappy::decompress(body, size).map(Into::into)
    } else if body.len() == size {
        Ok(body.into())
    } else {
        Err("the sizes of a page contradict each other".into())
    }
}

/// Takes apart runs and packed groups of numbers of `width` bits until there are `n`: each, and how often it comes.
fn runs(
    mut bytes: &[u8],
    width: u8,
    n: usize,
    mut with: impl FnMut(u32, usize) -> Result<(), String>,
) -> Result<(), String> {
    let cut = || "a page is cut off".to_owned();
    if width > 32 {
        return Err(format!("its indices have {width} bits"));
    }
    let width = usize::from(width);
    let mut left = n;
    while left > 0 {
        let (head, len) = varint(bytes).ok_or_else(cut)?;
        bytes = &bytes[len..];
        let count = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        if head & 1 == 0 {
            let (value, rest) = bytes.split_at_checked(width.div_ceil(8)).ok_or_else(cut)?;
            bytes = rest;
            let here = count.min(left);
            let value = value.iter().rev().fold(0u64, |x, b| x << 8 | u64::from(*b));
            with(u32::try_from(value).unwrap_or(u32::MAX), here)?;
            left -= here;
            continue;
        }
        let here = count.saturating_mul(8).min(left);
        // The last group may be cut where its values end.
        let needed = (here * width).div_ceil(8);
        if here == 0 || bytes.len() < needed {
            return Err(cut());
        }
        let (mut held, mut bits) = (0u64, 0);
        let mut next = bytes.iter();
        for _ in 0..here {
            while bits < width {
                held |= u64::from(*next.next().ok_or_else(cut)?) << bits;
                bits += 8;
            }
            with((held & ((1 << width) - 1)) as u32, 1)?;
            held >>= width;
            bits -= width;
        }
        bytes = &bytes[count.saturating_mul(width).min(bytes.len())..];
        left -= here;
    }
    Ok(())
}
