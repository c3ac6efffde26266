//! Cubin packs: many compiled kernels in one file, for machines that have the driver alone.

use super::cache::Key;
use super::nvrtc::Cubin;
use super::store::{Reader, decode, encode, write_aside};
use crate::error::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

const MAGIC: &[u8; 8] = b"CXPACK01";

/// A loaded pack. Kernels are known by [`crate::cuda::Specialisation::key`].
pub struct Pack {
    bytes: Vec<u8>,
    index: HashMap<Key, Range<usize>>,
}

impl Pack {
    /// How many kernels it holds.
    pub fn len(&self) -> usize {
        self.index.len()
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
    /// The kernel of `key`, if it is there.
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        decode(&self.bytes[self.index.get(key)?.clone()], key).ok()
    }
}

/// Writes `entries` as one file that appears whole or not at all.
///
/// # Errors
/// [`ErrorKind::Io`] where the file cannot be written.
pub fn write_pack<'a>(path: &Path, entries: impl IntoIterator<Item = (Key, &'a Cubin)>) -> Result<()> {
    let mut payload = Vec::new();
    for (key, cubin) in entries {
        let entry = encode(&key, cubin);
        payload.extend(key.0);
        payload.extend((entry.len() as u64).to_le_bytes());
        payload.extend(entry);
    }
    let mut out = MAGIC.to_vec();
    out.extend((payload.len() as u64).to_le_bytes());
    out.extend(Sha256::digest(&payload));
    out.extend(payload);
    write_aside(path, &out).map_err(|e| Error::io("write", path, &e))
}

/// Reads a pack and verifies its checksum.
///
/// # Errors
/// [`ErrorKind::Io`] where the file cannot be read, [`ErrorKind::Data`] where it is no whole pack.
pub fn load_pack(path: &Path) -> Result<Pack> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    let index = index(&bytes).map_err(|why| {
        Error::new(
            ErrorKind::Data { path: path.into(), line: None },
            format!(
                "{} is no cubin pack that can be used: {why}; make it anew with `chronaxie compile --pack`",
                path.display()
            ),
        )
    })?;
    Ok(Pack { bytes, index })
}

fn index(bytes: &[u8]) -> Result<HashMap<Key, Range<usize>>, &'static str> {
    let mut r = Reader(bytes);
    if r.take(8)? != MAGIC {
        return Err("it does not begin as one");
    }
    let len = r.number()?;
    let sum = r.take(32)?;
    if len != r.0.len() as u64 {
        return Err("its length is not the one it states");
    }
    if sum != Sha256::digest(r.0).as_slice() {
        return Err("its checksum is wrong");
    }
    let mut index = HashMap::new();
    while !r.0.is_empty() {
        let key = Key(r.take(32)?.try_into().map_err(|_| "it is truncated")?);
        let entry = r.block()?;
        let end = bytes.len() - r.0.len();
        index.insert(key, end - entry.len()..end);
    }
    Ok(index)
}
