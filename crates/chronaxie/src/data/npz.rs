//! NumPy's `.npz`: named arrays in a ZIP archive, read whole and written as a stream; `.npy`: one of them, read.
//!
//! Read: stored or deflated members, little-endian booleans, integers and floats, in C order. Written: stored, below 4 GiB
//! a member and in all. Nothing that a file holds makes it panic or ask for more memory than its own size allows.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use chronaxie_runtime::{Error, Result};

/// An array, its values as f64 (whole numbers beyond 2^53 are refused).
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its values in C order.
    pub values: Vec<f64>,
}

/// A deflated member may be so many times its stored size, which is what deflate can reach.
const MOST_EXPANSION: usize = 1032;

/// The arrays of a file, by their names without `.npy`, in the file's order. `path` is what messages call it.
///
/// # Errors
/// `Data`, in a sentence that says what is wrong with which member.
pub fn parse(bytes: &[u8], path: &Path) -> Result<Vec<(String, Array)>> {
    let refuse = |what: String| Error::data(path, None, what);
    let mut arrays = Vec::new();
    for member in directory(bytes).map_err(refuse)? {
        let name = member.name.strip_suffix(".npy").unwrap_or(&member.name).to_owned();
        let array = member.contents(bytes).and_then(|contents| array(&contents));
        let array = array.map_err(|what| refuse(format!("member {}: {what}", crate::config::quote(&member.name))))?;
        arrays.push((name, array));
    }
    Ok(arrays)
}

/// The arrays of these names that a file has, in its order; others are not looked at.
///
/// # Errors
/// As [`parse`].
pub fn parse_some(bytes: &[u8], path: &Path, names: &[&str]) -> Result<Vec<(String, Array)>> {
    some(bytes, path, names, array)
}

/// The array of an `.npy` file.
///
/// # Errors
/// As [`parse`].
pub fn parse_one(bytes: &[u8], path: &Path) -> Result<Array> {
    array(bytes).map_err(|what| Error::data(path, None, what))
}

/// A list of words (NumPy's `<U`), if a file has one of this name.
///
/// # Errors
/// As [`parse`].
pub fn parse_text(bytes: &[u8], path: &Path, name: &str) -> Result<Option<Vec<String>>> {
    Ok(some(bytes, path, &[name], text)?.pop().map(|(_, words)| words))
}

fn some<T>(
    bytes: &[u8],
    path: &Path,
    names: &[&str],
    read: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Vec<(String, T)>> {
    let refuse = |what: String| Error::data(path, None, what);
    let mut found = Vec::new();
    for member in directory(bytes).map_err(refuse)? {
        let name = member.name.strip_suffix(".npy").unwrap_or(&member.name).to_owned();
        if names.contains(&name.as_str()) {
            let value = member.contents(bytes).and_then(|contents| read(&contents));
            let quoted = crate::config::quote(&member.name);
            found.push((name, value.map_err(|what| refuse(format!("member {quoted}: {what}")))?));
        }
    }
    Ok(found)
}

struct Member {
    name: String,
    method: u16,
    crc: u32,
    stored: u64,
    size: u64,
    at: u64,
}

fn number(bytes: &[u8], at: usize, len: usize) -> Result<u64, String> {
    let end = at.checked_add(len).filter(|end| *end <= bytes.len());
    let Some(end) = end else { return Err("the archive is cut off".into()) };
    Ok(bytes[at..end].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn directory(bytes: &[u8]) -> Result<Vec<Member>, String> {
    // The end record is the last thing but for a comment of at most 64 KiB.
    let least = bytes.len().saturating_sub(22 + 65_535);
    let end = (least..bytes.len().saturating_sub(21)).rev().find(|at| bytes[*at..].starts_with(b"PK\x05\x06"));
    let Some(end) = end else { return Err("it is not a ZIP archive, or one that is cut off".into()) };
    let count = number(bytes, end + 10, 2)?;
    let mut at = number(bytes, end + 16, 4)? as usize;
    let mut members = Vec::new();
    for _ in 0..count {
        if number(bytes, at, 4)? != 0x0201_4b50 {
            return Err("its directory is damaged".into());
        }
        let lens: Vec<usize> =
            [28, 30, 32].iter().map(|o| number(bytes, at + o, 2).map(|n| n as usize)).collect::<Result<_, _>>()?;
        let name_at = at + 46;
        let extra_at = name_at + lens[0];
        let Some(name) = bytes.get(name_at..extra_at).and_then(|n| std::str::from_utf8(n).ok()) else {
            return Err("a member's name is not text".into());
        };
        if number(bytes, at + 8, 2)? & 1 != 0 {
            return Err(format!("member {} is encrypted", crate::config::quote(name)));
        }
        let mut member = Member {
            name: name.to_owned(),
            method: number(bytes, at + 10, 2)? as u16,
            crc: number(bytes, at + 16, 4)? as u32,
            stored: number(bytes, at + 20, 4)?,
            size: number(bytes, at + 24, 4)?,
            at: number(bytes, at + 42, 4)?,
        };
        // Sizes that do not fit stand in a field of their own, in this order.
        let (mut e, extra_end) = (extra_at, extra_at + lens[1]);
        while e + 4 <= extra_end {
            let (tag, len) = (number(bytes, e, 2)?, number(bytes, e + 2, 2)? as usize);
            if tag == 1 {
                let mut field = e + 4;
                for value in [&mut member.size, &mut member.stored, &mut member.at] {
                    if *value == 0xFFFF_FFFF && field + 8 <= e + 4 + len {
                        *value = number(bytes, field, 8)?;
                        field += 8;
                    }
                }
            }
            e += 4 + len;
        }
        members.push(member);
        at = extra_end + lens[2];
    }
    Ok(members)
}

impl Member {
    fn contents(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let at = usize::try_from(self.at).map_err(|_| "the archive is cut off".to_owned())?;
        if number(bytes, at, 4)? != 0x0403_4b50 {
            return Err("its header is damaged".into());
        }
        let skip = at + 30 + number(bytes, at + 26, 2)? as usize + number(bytes, at + 28, 2)? as usize;
        let stored =
            usize::try_from(self.stored).ok().and_then(|n| skip.checked_add(n)).and_then(|end| bytes.get(skip..end));
        let Some(stored) = stored else { return Err("the archive is cut off".into()) };
        let size = self.size.min(usize::MAX as u64) as usize;
        // Beyond what deflate can reach, it is refused for that.
        let asked = self.size.min(stored.len().saturating_mul(MOST_EXPANSION) as u64);
        let room = crate::memory::room();
        if asked > room {
            return Err(format!("it {}", crate::memory::lacking(asked, room)));
        }
        let contents = match self.method {
            0 if stored.len() == size => stored.to_vec(),
            8 if size <= stored.len().saturating_mul(MOST_EXPANSION) => {
                miniz_oxide::inflate::decompress_to_vec_with_limit(stored, size)
                    .map_err(|e| format!("it does not decompress: {e}"))?
            }
            0 | 8 => return Err(format!("{} bytes cannot hold {size}", stored.len())),
            other => return Err(format!("it is compressed by method {other}; 0 (stored) and 8 (deflate) are read")),
        };
        if contents.len() != size || crc32(0, &contents) != self.crc {
            return Err("its checksum does not fit: the file is damaged".into());
        }
        Ok(contents)
    }
}

/// The value of `'key':` in a header of NumPy's.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let at = header.find(&format!("'{key}'")).ok_or_else(|| format!("its header lacks {key}"))?;
    header[at + key.len() + 2..]
        .trim_start()
        .strip_prefix(':')
        .map(str::trim_start)
        .ok_or("its header is damaged".into())
}

fn text(npy: &[u8]) -> Result<Vec<String>, String> {
    let (descr, _, data) = opened(npy)?;
    let Some(width) = descr.strip_prefix("<U").and_then(|w| w.parse::<usize>().ok()) else {
        return Err(format!("it is of type {descr:.8}, and not text (<U)"));
    };
    let asked = 64 * (data.len() / (4 * width).max(1)) as u64 + data.len() as u64;
    let room = crate::memory::room();
    if asked > room {
        return Err(format!("it {}", crate::memory::lacking(asked, room)));
    }
    let word = |raw: &[u8]| {
        let codes = raw.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
        codes.take_while(|c| *c != 0).map(|c| char::from_u32(c).ok_or("its text is damaged".to_owned())).collect()
    };
    if width == 0 { Ok(Vec::new()) } else { data.chunks_exact(4 * width).map(word).collect() }
}

/// Type, shape and data of an array whose data are as long as both say.
fn opened(npy: &[u8]) -> Result<(&str, Vec<usize>, &[u8]), String> {
    if !npy.starts_with(b"\x93NUMPY") {
        return Err("it is not an array of NumPy's".into());
    }
    let (len_bytes, start) = if number(npy, 6, 1)? == 1 { (2, 10) } else { (4, 12) };
    let end = start + number(npy, 8, len_bytes)? as usize;
    let header = npy.get(start..end).and_then(|h| std::str::from_utf8(h).ok()).ok_or("its header is damaged")?;
    if !field(header, "fortran_order")?.starts_with("False") {
        return Err("it is in Fortran order; save it in C order".into());
    }
    let descr = field(header, "descr")?.trim_start_matches('\'');
    let descr = descr.split('\'').next().unwrap_or("");
    let shape = field(header, "shape")?.strip_prefix('(').and_then(|s| s.split_once(')')).map(|(s, _)| s);
    let sizes = shape.ok_or("its shape is damaged")?.split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape: Vec<usize> =
        sizes.map(|s| s.parse().map_err(|_| format!("its shape holds {s:.20}"))).collect::<Result<_, _>>()?;
    let data = &npy[end..];
    let width: usize = descr.get(2..).and_then(|w| w.parse().ok()).unwrap_or(0);
    let width = if descr.starts_with("<U") { width.saturating_mul(4) } else { width };
    let count = shape.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).ok_or("its shape is too large")?;
    if count.checked_mul(width) != Some(data.len()) {
        return Err(format!("{} bytes do not hold {count} values of type {descr:.8}", data.len()));
    }
    Ok((descr, shape, data))
}

fn array(npy: &[u8]) -> Result<Array, String> {
    array_within(npy, crate::memory::room())
}

/// In at most `room` bytes: an array of bytes becomes eight times as large.
fn array_within(npy: &[u8], room: u64) -> Result<Array, String> {
    let (descr, shape, data) = opened(npy)?;
    let width: usize = descr.get(2..).and_then(|w| w.parse().ok()).unwrap_or(0);
    let asked = 8 * (data.len() / width.max(1)) as u64;
    if asked > room {
        return Err(format!("it {}", crate::memory::lacking(asked, room)));
    }
    let exact = |x: i128| {
        if x.unsigned_abs() <= 1 << 53 { Ok(x as f64) } else { Err(format!("it holds {x}, beyond 2^53")) }
    };
    let little = |b: &[u8]| b.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let values: Result<Vec<f64>, String> = match (descr.get(..2), width) {
        (Some("<f"), 4) => Ok(data.chunks(4).map(|b| f64::from(f32::from_bits(little(b) as u32))).collect()),
        (Some("<f"), 8) => Ok(data.chunks(8).map(|b| f64::from_bits(little(b))).collect()),
        (Some("<u" | "|u" | "|b"), 1 | 2 | 4 | 8) => data.chunks(width).map(|b| exact(little(b).into())).collect(),
        (Some("<i" | "|i"), 1 | 2 | 4 | 8) => {
            let shift = 64 - 8 * width as u32;
            data.chunks(width).map(|b| exact(((little(b) << shift) as i64 >> shift).into())).collect()
        }
        _ => Err(format!("it is of type {descr:.8}; little-endian booleans, integers, f4 and f8 are read")),
    };
    Ok(Array { shape, values: values? })
}

/// CRC-32 (ISO 3309), carried on from `crc`.
pub fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = tables();
    let mut crc = !crc;
    let mut eights = bytes.chunks_exact(8);
    for b in &mut eights {
        let low = crc ^ u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let word = |t: usize, x: u32| TABLES[t][(x & 0xFF) as usize];
        crc = word(7, low) ^ word(6, low >> 8) ^ word(5, low >> 16) ^ word(4, low >> 24);
        for i in 4..8 {
            crc ^= TABLES[7 - i][usize::from(b[i])];
        }
    }
    for b in eights.remainder() {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(*b)) & 0xFF) as usize];
    }
    !crc
}

const fn tables() -> [[u32; 256]; 8] {
    let mut t = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let (mut x, mut bit) = (i as u32, 0);
        while bit < 8 {
            x = if x & 1 == 1 { x >> 1 ^ 0xEDB8_8320 } else { x >> 1 };
            bit += 1;
        }
        t[0][i] = x;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        i = 0;
        while i < 256 {
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][(t[k - 1][i] & 0xFF) as usize];
            i += 1;
        }
        k += 1;
    }
    t
}

/// Writes an archive, one array after the other.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    at: u64,
    directory: Vec<u8>,
    members: u16,
}

impl<W: Write + Seek> Writer<W> {
    /// To the beginning of `out`.
    pub fn new(out: W) -> Self {
        Self { out, at: 0, directory: Vec::new(), members: 0 }
    }

    /// Adds an array of NumPy's type `descr` (as `<f8`), whose bytes come piece by piece from `pieces`.
    ///
    /// # Errors
    /// Of the stream; and where the archive would reach 4 GiB.
    pub fn array(
        &mut self,
        name: &str,
        descr: &str,
        shape: &[usize],
        pieces: impl IntoIterator<Item = std::io::Result<Vec<u8>>>,
    ) -> std::io::Result<()> {
        let sizes: String = shape.iter().map(|n| format!("{n},")).collect();
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
        header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
        header.push('\n');
        let mut start = b"\x93NUMPY\x01\x00".to_vec();
        start.extend((header.len() as u16).to_le_bytes());
        start.extend(header.as_bytes());
        let file = format!("{name}.npy");
        let local_at = self.at;
        // CRC and sizes are put in when they are known.
        let mut local = b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00".to_vec();
        local.extend([0; 12]);
        local.extend((file.len() as u16).to_le_bytes());
        local.extend([0; 2]);
        local.extend(file.as_bytes());
        self.out.write_all(&local)?;
        let (mut crc, mut size) = (0, 0u64);
        for piece in std::iter::once(Ok(start)).chain(pieces) {
            let piece = piece?;
            self.out.write_all(&piece)?;
            crc = crc32(crc, &piece);
            size += piece.len() as u64;
        }
        self.at += local.len() as u64 + size;
        if self.at >= 0xFFFF_FFFF {
            return Err(std::io::Error::other("the archive would reach 4 GiB, which .npz files stay below"));
        }
        let mut sizes = crc.to_le_bytes().to_vec();
        sizes.extend((size as u32).to_le_bytes());
        sizes.extend((size as u32).to_le_bytes());
        self.out.seek(SeekFrom::Start(local_at + 14))?;
        self.out.write_all(&sizes)?;
        self.out.seek(SeekFrom::Start(self.at))?;
        let d = &mut self.directory;
        d.extend(b"PK\x01\x02\x14\x00\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00");
        d.extend(sizes);
        d.extend((file.len() as u16).to_le_bytes());
        d.extend([0; 12]);
        d.extend((local_at as u32).to_le_bytes());
        d.extend(file.as_bytes());
        self.members += 1;
        Ok(())
    }

    /// Writes the directory.
    ///
    /// # Errors
    /// Of the stream.
    pub fn finish(mut self) -> std::io::Result<W> {
        self.out.write_all(&self.directory)?;
        let mut end = b"PK\x05\x06\x00\x00\x00\x00".to_vec();
        end.extend(self.members.to_le_bytes());
        end.extend(self.members.to_le_bytes());
        end.extend((self.directory.len() as u32).to_le_bytes());
        end.extend((self.at as u32).to_le_bytes());
        end.extend([0; 2]);
        self.out.write_all(&end)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// `numpy.savez_compressed` of `a = arange(6, dtype="i2").reshape(2, 3)`.
    fn sample() -> Vec<u8> {
        let mut w = Writer::new(Cursor::new(Vec::new()));
        let bytes = |values: &[i16]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        w.array("a", "<i2", &[2, 3], [Ok(bytes(&[0, 1, -2])), Ok(bytes(&[3, 4, 5]))]).unwrap();
        w.array("b", "<f8", &[1], [Ok(2.5f64.to_le_bytes().to_vec())]).unwrap();
        w.array("none", "<u4", &[0], []).unwrap();
        w.finish().unwrap().into_inner()
    }

    #[test]
    fn what_is_written_is_read() {
        let arrays = parse(&sample(), Path::new("x.npz")).unwrap();
        let names: Vec<&str> = arrays.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["a", "b", "none"]);
        assert_eq!(arrays[0].1, Array { shape: vec![2, 3], values: vec![0.0, 1.0, -2.0, 3.0, 4.0, 5.0] });
        assert_eq!(arrays[1].1, Array { shape: vec![1], values: vec![2.5] });
        assert_eq!(arrays[2].1, Array { shape: vec![0], values: vec![] });
        // Six numbers of two bytes are 48 as f64.
        let file = sample();
        let npy = directory(&file).unwrap()[0].contents(&file).unwrap();
        assert!(array_within(&npy, 48).is_ok());
        assert_eq!(array_within(&npy, 47).unwrap_err(), "it needs 0.0 GB, but 0.0 GB are free");
        assert_eq!(crc32(0, b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(crc32(0, b"1234"), b"56789"), 0xCBF4_3926);
    }

    /// A deflated member, as `numpy.savez_compressed` makes it.
    #[test]
    fn deflated_members_are_read() {
        let plain = sample();
        let members = directory(&plain).unwrap();
        let contents = members[0].contents(&plain).unwrap();
        let packed = miniz_oxide::deflate::compress_to_vec(&contents, 6);
        let mut bytes = b"PK\x03\x04".to_vec();
        bytes.extend([0; 22]);
        bytes.extend([5, 0, 0, 0]);
        bytes.extend(b"a.npy");
        let at = bytes.len();
        bytes.extend(&packed);
        let member = |size: u64| Member {
            name: "a.npy".into(),
            method: 8,
            crc: members[0].crc,
            stored: packed.len() as u64,
            size,
            at: at as u64 - 35,
        };
        assert_eq!(member(contents.len() as u64).contents(&bytes).unwrap(), contents);
        assert!(member(contents.len() as u64 - 1).contents(&bytes).unwrap_err().contains("decompress"));
        assert!(member(1 << 40).contents(&bytes).unwrap_err().contains("cannot hold"));
    }

    #[test]
    fn damage_is_a_sentence_and_never_a_panic() {
        let good = sample();
        for end in 0..good.len() {
            assert!(parse(&good[..end], Path::new("x.npz")).is_err(), "cut at {end}");
        }
        let mut rng = crate::rng::Rng::new(4, 0);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            if let Err(e) = parse(&bytes, Path::new("x.npz")) {
                assert!(e.to_string().starts_with("x.npz: ") && !e.to_string().contains('\n'), "{e}");
            }
        }
    }
}
