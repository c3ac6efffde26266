//! Snappy's raw format: literals, and copies of what came before.

use super::thrift::varint;

/// No byte of a stream makes more than this many: a copy of 64 bytes has three.
const MOST_EXPANSION: usize = 22;

/// What `bytes` hold, which is `len` bytes.
pub(super) fn decompress(bytes: &[u8], len: usize) -> Result<Vec<u8>, String> {
    let damaged = || "its Snappy stream is damaged".to_owned();
    let (says, mut at) = varint(bytes).ok_or_else(damaged)?;
    if says != len as u64 || len > bytes.len().saturating_mul(MOST_EXPANSION) {
        return Err(format!("{} bytes of Snappy do not hold {len}", bytes.len()));
    }
    let mut out = Vec::with_capacity(len);
    while at < bytes.len() {
        let tag = usize::from(bytes[at]);
        at += 1;
        let little = |at: usize, n: usize| {
            let taken = bytes.get(at..at + n).ok_or_else(damaged)?;
            Ok::<_, String>(taken.iter().rev().fold(0usize, |x, b| x << 8 | usize::from(*b)))
        };
        let (count, back) = match tag & 3 {
            0 => {
                let short = tag >> 2;
                let extra = short.saturating_sub(59);
                let count = if extra == 0 { short } else { little(at, extra)? } + 1;
                at += extra;
                let literal = at.checked_add(count).and_then(|end| bytes.get(at..end)).ok_or_else(damaged)?;
                if count > len - out.len() {
                    return Err(damaged());
                }
                out.extend_from_slice(literal);
                at += count;
                continue;
            }
            1 => {
                let low = little(at, 1)?;
                at += 1;
                ((tag >> 2 & 7) + 4, (tag >> 5) << 8 | low)
            }
            kind => {
                let n = if kind == 2 { 2 } else { 4 };
                let back = little(at, n)?;
                at += n;
                ((tag >> 2) + 1, back)
            }
        };
        if back == 0 || back > out.len() || count > len - out.len() {
            return Err(damaged());
        }
        let from = out.len() - back;
        // A copy may overlap what it makes.
        (0..count).for_each(|i| out.push(out[from + i]));
    }
    if out.len() == len { Ok(out) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_are_taken_apart() {
        // "abcd", a copy of 4 from 4 back (one byte of distance), of 5 from 2 back (two), of 1 from 1 back (four).
        let stream = [14, 3 << 2, b'a', b'b', b'c', b'd', 1, 4, 4 << 2 | 2, 2, 0, 3, 1, 0, 0, 0];
        assert_eq!(decompress(&stream, 14).unwrap(), b"abcdabcdcdcdcc");
        // A literal of 61 bytes has its length in a byte of its own.
        let mut long = vec![61, 60 << 2, 60];
        long.extend([7; 61]);
        assert_eq!(decompress(&long, 61).unwrap(), [7; 61]);
        assert_eq!(decompress(&[0], 0).unwrap(), b"");
        for bad in [&stream[..15], &[14, 1, 4][..], &[4, 3 << 2, 1][..], &[2, 0, 1, 1, 0][..], &[255; 12][..]] {
            assert!(decompress(bad, 14).is_err(), "{bad:?}");
        }
        assert!(decompress(&[0x80, 0x80, 0x80, 0x80, 1, 0], 1 << 28).unwrap_err().contains("do not hold"));
    }
}
