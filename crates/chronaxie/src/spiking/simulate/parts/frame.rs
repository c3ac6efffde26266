//! What parts say to each other first, and frames.

use super::tcp::Setup;
use sha2::{Digest, Sha256};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Of what is said first.
const MAGIC: &[u8; 8] = b"chrxprt1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Welcome,
    Alive,
    Spikes,
    Control,
    Fail,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Hello, Self::Welcome, Self::Alive, Self::Spikes, Self::Control, Self::Fail];
        all.into_iter().find(|k| *k as u8 == byte)
    }
}

/// Who connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub key: [u8; 32],
    pub part: u32,
    pub parts: u32,
    pub fingerprint: [u8; 32],
    /// Where it listens.
    pub port: u16,
}

impl Hello {
    pub fn of(setup: &Setup, port: u16) -> Self {
        Self {
            key: Sha256::digest(setup.key.as_bytes()).into(),
            part: setup.part as u32,
            parts: setup.parts as u32,
            fingerprint: setup.fingerprint,
            port,
        }
    }
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = MAGIC.to_vec();
        b.extend(self.key);
        b.extend(self.part.to_le_bytes());
        b.extend(self.parts.to_le_bytes());
        b.extend(self.fingerprint);
        b.extend(self.port.to_le_bytes());
        b.extend(env!("CARGO_PKG_VERSION").as_bytes());
        b
    }
    /// With the version of the program; nothing where the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, String)> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (fixed, version) = rest.split_at_checked(74)?;
        let word = |at: usize| Some(u32::from_le_bytes(fixed[at..at + 4].try_into().ok()?));
        let hello = Self {
            key: fixed[..32].try_into().ok()?,
            part: word(32)?,
            parts: word(36)?,
            fingerprint: fixed[40..72].try_into().ok()?,
            port: u16::from_le_bytes([fixed[72], fixed[73]]),
        };
        Some((hello, String::from_utf8(version.to_vec()).ok()?))
    }
}

/// What part 0 tells all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Welcome {
    pub nodes: u32,
    /// Where each part listens.
    pub places: Vec<SocketAddr>,
    /// What the caller wants all to know.
    pub more: Vec<u8>,
}

impl Welcome {
    pub fn to_bytes(&self) -> Vec<u8> {
        let places: Vec<String> = self.places.iter().map(SocketAddr::to_string).collect();
        let places = places.join("\n");
        let mut b = self.nodes.to_le_bytes().to_vec();
        b.extend((places.len() as u32).to_le_bytes());
        b.extend(places.as_bytes());
        b.extend(&self.more);
        b
    }
    pub fn from_bytes(bytes: &[u8], parts: usize) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(8)?;
        let nodes = u32::from_le_bytes(head[..4].try_into().ok()?);
        let len = u32::from_le_bytes(head[4..].try_into().ok()?) as usize;
        let (places, more) = rest.split_at_checked(len)?;
        let places = std::str::from_utf8(places).ok()?.split('\n');
        let places: Vec<SocketAddr> = places.map(|p| p.parse().ok()).collect::<Option<_>>()?;
        (places.len() == parts && nodes > 0).then(|| Self { nodes, places, more: more.to_vec() })
    }
}

pub(super) fn write_frame(mut to: &TcpStream, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let mut head = [0; 9];
    head[..8].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head[8] = kind as u8;
    if bytes.len() < 1 << 16 {
        // One packet.
        return to.write_all(&[&head, bytes].concat());
    }
    to.write_all(&head)?;
    to.write_all(bytes)
}

pub(super) fn read_frame(from: &mut impl Read, most: u64) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let len = u64::from_le_bytes(std::array::from_fn(|i| head[i]));
    let bad = |what: String| io::Error::new(ErrorKind::InvalidData, what);
    let kind = Kind::of(head[8]).ok_or_else(|| bad(format!("a frame of kind {}", head[8])))?;
    if len > most {
        return Err(bad(format!("a frame of {len} bytes")));
    }
    // Memory grows with what comes, not with what is announced.
    let mut bytes = Vec::new();
    if from.take(len).read_to_end(&mut bytes)? as u64 != len {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok((kind, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { key: [3; 32], part: 1, parts: 2, fingerprint: [9; 32], port: 77 }
    }

    #[test]
    fn greetings_read_back_and_bytes_that_are_none_are_refused() {
        let bytes = hello().to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some((hello(), env!("CARGO_PKG_VERSION").to_owned())));
        for end in 0..82 {
            assert_eq!(Hello::from_bytes(&bytes[..end]), None, "{end}");
        }
        let places = vec!["127.0.0.1:1".parse().unwrap(), "[::1]:9".parse().unwrap()];
        let welcome = Welcome { nodes: 2, places, more: vec![1, 2, 3] };
        let bytes = welcome.to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes, 2), Some(welcome));
        for end in 0..bytes.len() - 3 {
            assert_eq!(Welcome::from_bytes(&bytes[..end], 2), None, "{end}");
        }
        assert_eq!(Welcome::from_bytes(&bytes, 3), None);
    }

    #[test]
    fn frames_that_are_cut_off_or_too_long_are_errors_and_take_no_memory() {
        let mut bytes = 5u64.to_le_bytes().to_vec();
        bytes.extend([Kind::Spikes as u8, 1, 2, 3, 4, 5]);
        assert_eq!(read_frame(&mut &bytes[..], 100).unwrap(), (Kind::Spikes, vec![1, 2, 3, 4, 5]));
        for end in 0..bytes.len() {
            assert!(read_frame(&mut &bytes[..end], 100).is_err(), "{end}");
        }
        let mut long = u64::MAX.to_le_bytes().to_vec();
        long.push(Kind::Spikes as u8);
        assert!(read_frame(&mut &long[..], 1 << 44).is_err());
        long[..8].copy_from_slice(&(1u64 << 43).to_le_bytes());
        assert!(read_frame(&mut &long[..], 1 << 44).is_err());
        bytes[8] = 99;
        assert!(read_frame(&mut &bytes[..], 100).is_err());
    }
}
