//! Tables on their way to a file, one row group after the other.

use super::thrift::Out;
use super::{MAGIC, number};
use crate::data::npz::crc32;
use std::io::{Error, Result, Write};

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `DOUBLE`.
    F64,
    /// `INT64`, as a `UINT_64`.
    U64,
    /// `INT32`, as a `UINT_32`.
    U32,
    /// `BYTE_ARRAY`, as UTF-8.
    Text,
}

/// The values of a column in a row group.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Column<'a> {
    /// Of [`Kind::F64`].
    F64(&'a [f64]),
    /// Of [`Kind::U64`].
    U64(&'a [u64]),
    /// Of [`Kind::U32`].
    U32(&'a [u32]),
    /// Of [`Kind::Text`]: words by their index.
    Text(&'a [String], &'a [u32]),
}

impl Column<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::F64(_) => Kind::F64,
            Self::U64(_) => Kind::U64,
            Self::U32(_) => Kind::U32,
            Self::Text(..) => Kind::Text,
        }
    }
    fn rows(&self) -> usize {
        match self {
            Self::F64(x) => x.len(),
            Self::U64(x) => x.len(),
            Self::U32(x) | Self::Text(_, x) => x.len(),
        }
    }
}

/// What a chunk of a column became.
struct Chunk {
    /// The page of its dictionary, if it has one.
    words: Option<(usize, Vec<u8>)>,
    data: Vec<u8>,
    /// The least and the greatest value.
    ends: Option<[Vec<u8>; 2]>,
}

/// Writes a table.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    at: u64,
    schema: Vec<(String, Kind)>,
    /// The structures of the row groups.
    groups: Vec<u8>,
    count: usize,
    rows: u64,
}

impl<W: Write> Writer<W> {
    /// A table of these columns, to the beginning of `out`.
    ///
    /// # Errors
    /// Of the stream.
    pub fn new(mut out: W, schema: &[(&str, Kind)]) -> Result<Self> {
        out.write_all(MAGIC)?;
        let schema = schema.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect();
        Ok(Self { out, at: MAGIC.len() as u64, schema, groups: Vec::new(), count: 0, rows: 0 })
    }

    /// Adds a row group: the values of every column, as many of each.
    ///
    /// # Errors
    /// Of the stream; and for columns that are not those of the table, or too long for one group.
    pub fn group(&mut self, columns: &[Column<'_>]) -> Result<()> {
        let rows = columns.first().map_or(0, Column::rows);
        let kinds = self.schema.iter().map(|(_, kind)| *kind);
        if !kinds.eq(columns.iter().map(Column::kind)) || columns.iter().any(|c| c.rows() != rows) || rows > 1 << 27 {
            return Err(Error::other("the columns of a row group are not those of its table"));
        }
        if rows == 0 {
            return Ok(());
        }
        let start = self.at;
        let mut heads = Out::default();
        heads.begin();
        heads.structures(1, columns.len());
        for (i, column) in columns.iter().enumerate() {
            let chunk = chunk(column)?;
            let at = self.at;
            let words = match &chunk.words {
                Some((count, words)) => {
                    self.page(words, number::DICTIONARY_PAGE, *count, number::PLAIN)?;
                    true
                }
                None => false,
            };
            let data_at = self.at;
            let encoding = if words { number::RLE_DICTIONARY } else { number::PLAIN };
            self.page(&chunk.data, number::DATA_PAGE, rows, encoding)?;
            let bytes = (self.at - at) as i64;
            let (name, kind) = &self.schema[i];
            heads.element(|c| {
                c.i64(2, at as i64);
                c.structure(3, |m| {
                    m.i32(1, physical(*kind));
                    m.ints(
                        2,
                        if words { &[number::PLAIN, number::RLE, number::RLE_DICTIONARY] } else { &[number::PLAIN] },
                    );
                    m.words(3, &[name]);
                    m.i32(4, 0);
                    m.i64(5, rows as i64);
                    m.i64(6, bytes);
                    m.i64(7, bytes);
                    m.i64(9, data_at as i64);
                    if words {
                        m.i64(11, at as i64);
                    }
                    m.structure(12, |s| {
                        s.i64(3, 0);
                        if let Some([least, most]) = &chunk.ends {
                            s.binary(5, most);
                            s.binary(6, least);
                        }
                    });
                });
            });
        }
        heads.i64(2, (self.at - start) as i64);
        heads.i64(3, rows as i64);
        heads.i64(5, start as i64);
        heads.i64(6, (self.at - start) as i64);
        heads.end();
        self.groups.extend(heads.bytes);
        self.count += 1;
        self.rows += rows as u64;
        Ok(())
    }

    fn page(&mut self, body: &[u8], kind: i32, values: usize, encoding: i32) -> Result<()> {
        let size = i32::try_from(body.len()).map_err(|_| Error::other("a page of a row group is beyond 2 GiB"))?;
        let mut head = Out::default();
        head.element(|h| {
            h.i32(1, kind);
            h.i32(2, size);
            h.i32(3, size);
            h.i32(4, crc32(0, body) as i32);
            let dictionary = kind == number::DICTIONARY_PAGE;
            h.structure(if dictionary { 7 } else { 5 }, |p| {
                p.i32(1, values as i32);
                p.i32(2, encoding);
                if !dictionary {
                    p.i32(3, number::RLE);
                    p.i32(4, number::RLE);
                }
            });
        });
        self.out.write_all(&head.bytes)?;
        self.out.write_all(body)?;
        self.at += (head.bytes.len() + body.len()) as u64;
        Ok(())
    }

    /// Writes the footer, with words about the table by their keys.
    ///
    /// # Errors
    /// Of the stream.
    pub fn finish(mut self, about: &[(&str, String)]) -> Result<W> {
        let mut foot = Out::default();
        foot.begin();
        foot.i32(1, 2);
        foot.structures(2, self.schema.len() + 1);
        foot.element(|e| {
            e.binary(4, b"schema");
            e.i32(5, self.schema.len() as i32);
        });
        for (name, kind) in &self.schema {
            foot.element(|e| {
                e.i32(1, physical(*kind));
                e.i32(3, 0);
                e.binary(4, name.as_bytes());
                // The older name of a type, and then the newer.
                match kind {
                    Kind::F64 => {}
                    Kind::Text => {
                        e.i32(6, number::UTF8);
                        e.structure(10, |l| l.structure(1, |_| {}));
                    }
                    Kind::U32 | Kind::U64 => {
                        let (old, bits) =
                            if *kind == Kind::U32 { (number::UINT_32, 32) } else { (number::UINT_64, 64) };
                        e.i32(6, old);
                        e.structure(10, |l| {
                            l.structure(10, |int| {
                                int.i8(1, bits);
                                int.bool(2, false);
                            });
                        });
                    }
                }
            });
        }
        foot.i64(3, self.rows as i64);
        foot.structures(4, self.count);
        foot.bytes.append(&mut self.groups);
        foot.structures(5, about.len());
        for (key, value) in about {
            foot.element(|e| {
                e.binary(1, key.as_bytes());
                e.binary(2, value.as_bytes());
            });
        }
        foot.binary(6, concat!("chronaxie version ", env!("CARGO_PKG_VERSION")).as_bytes());
        // Least and greatest are by the order of each column's type.
        foot.structures(7, self.schema.len());
        self.schema.iter().for_each(|_| foot.element(|e| e.structure(1, |_| {})));
        foot.end();
        let len = u32::try_from(foot.bytes.len()).map_err(|_| Error::other("the footer is beyond 4 GiB"))?;
        self.out.write_all(&foot.bytes)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn physical(kind: Kind) -> i32 {
    match kind {
        Kind::F64 => number::DOUBLE,
        Kind::U64 => number::INT64,
        Kind::U32 => number::INT32,
        Kind::Text => number::BYTE_ARRAY,
    }
}

fn chunk(column: &Column<'_>) -> Result<Chunk> {
    Ok(match column {
        Column::F64(x) => {
            let ends = x.iter().all(|x| x.is_finite()).then(|| ends(x, f64::total_cmp)).flatten();
            numbers(x, ends, f64::to_le_bytes)
        }
        Column::U64(x) => numbers(x, ends(x, u64::cmp), u64::to_le_bytes),
        Column::U32(x) => numbers(x, ends(x, u32::cmp), u32::to_le_bytes),
        Column::Text(words, index) => {
            if index.iter().any(|i| *i as usize >= words.len()) {
                return Err(Error::other(format!("a word's index is not below {}", words.len())));
            }
            let word = |w: &String| {
                let len = (w.len() as u32).to_le_bytes();
                len.into_iter().chain(w.bytes()).collect::<Vec<u8>>()
            };
            let dictionary = words.iter().flat_map(word).collect();
            Chunk { words: Some((words.len(), dictionary)), data: packed(index, width(words.len())), ends: None }
        }
    })
}

fn ends<T: Copy>(values: &[T], order: impl Fn(&T, &T) -> std::cmp::Ordering) -> Option<[T; 2]> {
    Some([values.iter().copied().min_by(&order)?, values.iter().copied().max_by(&order)?])
}

/// Plain, or, where values rise and most follow one of the same value, each once and how often it comes.
fn numbers<T: Copy + PartialOrd, const N: usize>(
    values: &[T],
    ends: Option<[T; 2]>,
    bytes: impl Fn(T) -> [u8; N],
) -> Chunk {
    // Two zeros are not the same.
    let same = |a: &T, b: &T| bytes(*a) == bytes(*b);
    let ends = ends.map(|ends| ends.map(|x| bytes(x).to_vec()));
    let runs = values.chunk_by(same).count();
    if runs > values.len() / 3 || !values.is_sorted() {
        let mut data = vec![0; N * values.len()];
        data.chunks_exact_mut(N).zip(values).for_each(|(place, x)| place.copy_from_slice(&bytes(*x)));
        return Chunk { words: None, data, ends };
    }
    let width = width(runs);
    let (mut words, mut data) = (Vec::with_capacity(N * runs), Out { bytes: vec![width], last: Vec::new() });
    for (i, run) in values.chunk_by(same).enumerate() {
        words.extend(bytes(run[0]));
        data.unsigned((run.len() as u64) << 1);
        data.bytes.extend(&(i as u32).to_le_bytes()[..usize::from(width).div_ceil(8)]);
    }
    Chunk { words: Some((runs, words)), data: data.bytes, ends }
}

/// The bits that an index below `n` needs.
fn width(n: usize) -> u8 {
    (usize::BITS - n.saturating_sub(1).leading_zeros()) as u8
}

/// Indices of so many bits each, which the page begins with.
fn packed(index: &[u32], width: u8) -> Vec<u8> {
    let mut out = Out { bytes: vec![width], last: Vec::new() };
    if width == 0 {
        // A run of zeros has no bytes but its length.
        out.unsigned((index.len() as u64) << 1);
        return out.bytes;
    }
    // In groups of eight, of which the last is filled up with zeros.
    let groups = index.len().div_ceil(8);
    out.unsigned((groups as u64) << 1 | 1);
    let (mut held, mut bits) = (0u64, 0u32);
    for i in index.iter().copied().chain(std::iter::repeat(0)).take(8 * groups) {
        held |= u64::from(i) << bits;
        bits += u32::from(width);
        while bits >= 8 {
            out.bytes.push(held as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    out.bytes
}
