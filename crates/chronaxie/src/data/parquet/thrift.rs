//! Thrift's compact protocol, as far as Parquet's footers and page headers use it.

/// How deep lists and structures may lie in each other; Parquet's lie six deep.
const DEEPEST: usize = 16;
/// The most values of a structure: some 300 MB of them.
const MOST_VALUES: usize = 1 << 22;

/// A value as it was read.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Bool(bool),
    Int(i64),
    /// Which nothing here looks at.
    Double,
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    Struct(Vec<(i16, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// A structure's field.
    pub(super) fn get(&self, id: i16) -> Option<&Value<'a>> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(i, _)| *i == id).map(|(_, value)| value),
            _ => None,
        }
    }
    pub(super) fn int(&self, id: i16) -> Option<i64> {
        match self.get(id) {
            Some(Self::Int(x)) => Some(*x),
            _ => None,
        }
    }
    /// A field that counts, or that is a place.
    pub(super) fn size(&self, id: i16) -> Option<usize> {
        self.int(id).and_then(|x| usize::try_from(x).ok())
    }
    pub(super) fn bool(&self, id: i16) -> Option<bool> {
        match self.get(id) {
            Some(Self::Bool(x)) => Some(*x),
            _ => None,
        }
    }
    pub(super) fn text(&self, id: i16) -> Option<&'a str> {
        match self.get(id) {
            Some(Self::Bytes(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
    /// A list's values; none where there is no such field.
    pub(super) fn list(&self, id: i16) -> &[Value<'a>] {
        match self.get(id) {
            Some(Self::List(values)) => values,
            _ => &[],
        }
    }
    /// The one word of a list of words.
    pub(super) fn only_word(&self, id: i16) -> Option<&'a str> {
        match self.list(id) {
            [Self::Bytes(bytes)] => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

/// The structure at the beginning of `bytes`, and how many of them it takes; none where they are damaged.
pub(super) fn structure(bytes: &[u8]) -> Option<(Value<'_>, usize)> {
    let mut input = In { bytes, at: 0, left: MOST_VALUES };
    let value = input.fields(0)?;
    Some((value, input.at))
}

/// A number of seven bits a byte, the low ones first, and how many bytes it takes.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut x = 0u64;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        if i == 9 && *byte > 1 {
            return None;
        }
        x |= u64::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((x, i + 1));
        }
    }
    None
}

struct In<'a> {
    bytes: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> In<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }
    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    fn unsigned(&mut self) -> Option<u64> {
        let (x, len) = varint(self.bytes.get(self.at..)?)?;
        self.at += len;
        Some(x)
    }
    fn int(&mut self) -> Option<i64> {
        self.unsigned().map(|x| (x >> 1) as i64 ^ -((x & 1) as i64))
    }
    fn fields(&mut self, depth: usize) -> Option<Value<'a>> {
        let mut fields = Vec::new();
        let mut last = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(Value::Struct(fields));
            }
            last = match head >> 4 {
                0 => i16::try_from(self.int()?).ok()?,
                delta => last.checked_add(i16::from(delta))?,
            };
            let value = match head & 15 {
                1 => Value::Bool(true),
                2 => Value::Bool(false),
                kind => self.value(kind, depth)?,
            };
            self.left = self.left.checked_sub(1)?;
            fields.push((last, value));
        }
    }
    fn value(&mut self, kind: u8, depth: usize) -> Option<Value<'a>> {
        if depth >= DEEPEST {
            return None;
        }
        Some(match kind {
            1 | 2 => Value::Bool(self.byte()? == 1),
            3 => Value::Int(i64::from(self.byte()? as i8)),
            4..=6 => Value::Int(self.int()?),
            7 => self.take(8).map(|_| Value::Double)?,
            8 => {
                let len = usize::try_from(self.unsigned()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            9 | 10 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
                // Each value has a byte at least.
                let len = usize::try_from(len).ok().filter(|len| *len <= self.bytes.len() - self.at)?;
                self.left = self.left.checked_sub(len)?;
                Value::List((0..len).map(|_| self.value(head & 15, depth + 1)).collect::<Option<_>>()?)
            }
            12 => self.fields(depth + 1)?,
            // Maps, which Parquet has none of.
            _ => return None,
        })
    }
}

/// Structures on their way to bytes.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub(super) bytes: Vec<u8>,
    /// The last field of each structure that is open.
    pub(super) last: Vec<i16>,
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl Out {
    pub(super) fn unsigned(&mut self, mut x: u64) {
        while x > 0x7F {
            self.bytes.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.bytes.push(x as u8);
    }
    fn int(&mut self, x: i64) {
        self.unsigned((x << 1 ^ x >> 63) as u64);
    }
    fn field(&mut self, id: i16, kind: u8) {
        let last = self.last.last_mut().expect("a field is part of a structure");
        // Fields are written in order, and the format's numbers are below 16.
        self.bytes.push(((id - *last) as u8) << 4 | kind);
        *last = id;
    }
    /// Begins a structure that is no field: the outermost, or one of a list.
    pub(super) fn begin(&mut self) {
        self.last.push(0);
    }
    pub(super) fn end(&mut self) {
        self.bytes.push(0);
        self.last.pop();
    }
    pub(super) fn i32(&mut self, id: i16, x: i32) {
        self.field(id, I32);
        self.int(x.into());
    }
    pub(super) fn i64(&mut self, id: i16, x: i64) {
        self.field(id, I64);
        self.int(x);
    }
    pub(super) fn bool(&mut self, id: i16, x: bool) {
        self.field(id, if x { 1 } else { 2 });
    }
    pub(super) fn i8(&mut self, id: i16, x: i8) {
        self.field(id, 3);
        self.bytes.push(x as u8);
    }
    pub(super) fn binary(&mut self, id: i16, x: &[u8]) {
        self.field(id, BINARY);
        self.element_binary(x);
    }
    pub(super) fn structure(&mut self, id: i16, with: impl FnOnce(&mut Self)) {
        self.field(id, STRUCT);
        self.element(with);
    }
    /// A structure of a list.
    pub(super) fn element(&mut self, with: impl FnOnce(&mut Self)) {
        self.begin();
        with(self);
        self.end();
    }
    fn list(&mut self, id: i16, kind: u8, len: usize) {
        self.field(id, LIST);
        if len < 15 {
            self.bytes.push((len as u8) << 4 | kind);
        } else {
            self.bytes.push(0xF0 | kind);
            self.unsigned(len as u64);
        }
    }
    /// The head of a list of so many structures.
    pub(super) fn structures(&mut self, id: i16, len: usize) {
        self.list(id, STRUCT, len);
    }
    pub(super) fn ints(&mut self, id: i16, values: &[i32]) {
        self.list(id, I32, values.len());
        values.iter().for_each(|x| self.int((*x).into()));
    }
    pub(super) fn words(&mut self, id: i16, words: &[&str]) {
        self.list(id, BINARY, words.len());
        words.iter().for_each(|w| self.element_binary(w.as_bytes()));
    }
    fn element_binary(&mut self, x: &[u8]) {
        self.unsigned(x.len() as u64);
        self.bytes.extend(x);
    }
}
