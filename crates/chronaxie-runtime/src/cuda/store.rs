//! The folder of compiled kernels, and the form of an entry.

use super::cache::Key;
use super::nvrtc::Cubin;
use super::resources::EntryResources;
use crate::log;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Says what a file is and in which version of the form.
const MAGIC: &[u8; 8] = b"CXCUBIN1";
/// Magic, length of the payload (u64, little-endian), SHA-256 of the payload.
const HEADER: usize = 8 + 8 + 32;
const DEFAULT_LIMIT: u64 = 512 << 20;
const SUFFIX: &str = "cubin";
/// An entry that was used is marked so at most this often.
const MARK_AFTER: Duration = Duration::from_secs(3600);

/// The disk cache. Its methods do not fail: what goes wrong costs a compile, and is said once.
pub(super) struct Store {
    folder: Option<PathBuf>,
    limit: u64,
    prepared: AtomicBool,
    broken: AtomicBool,
}

impl Store {
    pub fn new(folder: Option<PathBuf>, limit: u64) -> Self {
        Self { folder, limit, prepared: AtomicBool::new(false), broken: AtomicBool::new(false) }
    }

    /// The store that the environment asks for. `CHRONAXIE_CACHE_DIR=` (empty) asks for none.
    pub fn from_env(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = match variable("CHRONAXIE_CACHE_DIR") {
            Some(v) if v.is_empty() => None,
            Some(v) => Some(PathBuf::from(v)),
            None if cfg!(windows) => set("LOCALAPPDATA").map(|d| d.join("chronaxie").join("cache")),
            None => set("XDG_CACHE_HOME")
                .filter(|d| d.is_absolute())
                .or_else(|| set("HOME").map(|h| h.join(".cache")))
                .map(|d| d.join("chronaxie")),
        };
        let limit = variable("CHRONAXIE_CACHE_MB")
            .and_then(|v| v.to_str()?.trim().parse::<u64>().ok())
            .map_or(DEFAULT_LIMIT, |mb| mb.saturating_mul(1 << 20));
        Self::new(folder.map(|f| f.join("kernels")), limit)
    }

    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.{SUFFIX}")))
    }

    /// Stops using the folder for writing, and says why once.
    fn give_up(&self, why: &str) {
        if let Some(folder) = &self.folder
            && !self.broken.swap(true, Ordering::Relaxed)
        {
            log::warn_once(
                &format!("cache {}", folder.display()),
                format_args!(
                    "compiled kernels cannot be kept in {}: {why}; they are compiled again in each process (CHRONAXIE_CACHE_DIR \
                     names another folder)",
                    folder.display()
                ),
            );
        }
    }

    /// Makes the folder, for its owner alone.
    fn prepare(&self, folder: &Path) -> std::io::Result<()> {
        if self.prepared.load(Ordering::Relaxed) && folder.is_dir() {
            return Ok(());
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder)?;
        self.prepared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether others could have put something there: machine code from such a folder is not run.
    fn is_private(&self, folder: &Path) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            match std::fs::metadata(folder) {
                Ok(m) if m.mode() & 0o022 != 0 => {
                    self.give_up("others may write to it (its mode should be 0700)");
                    false
                }
                _ => true,
            }
        }
        #[cfg(not(unix))]
        {
            let _ = folder;
            true
        }
    }

    /// The entry of `key` if there is a whole one.
    pub fn read(&self, key: &Key) -> Option<Cubin> {
        let path = self.path(key)?;
        if !self.is_private(path.parent()?) {
            return None;
        }
        let bytes = std::fs::read(&path).ok()?;
        match decode(&bytes, key) {
            Ok(cubin) => {
                mark_used(&path);
                Some(cubin)
            }
            Err(why) => {
                log::debug(format_args!("{}: {why}; it is compiled again", path.display()));
                None
            }
        }
    }

    /// Keeps `cubin`, and removes the oldest entries where the folder has outgrown its bound.
    pub fn write(&self, key: &Key, cubin: &Cubin) {
        let (Some(path), Some(folder)) = (self.path(key), &self.folder) else { return };
        if self.broken.load(Ordering::Relaxed) {
            return;
        }
        let bytes = encode(key, cubin);
        if bytes.len() as u64 > self.limit {
            return;
        }
        let written = self.prepare(folder).and_then(|()| {
            if !self.is_private(folder) {
                return Ok(());
            }
            write_aside(&path, &bytes)
        });
        match written {
            Ok(()) => self.trim(folder),
            Err(e) => self.give_up(&e.to_string()),
        }
    }

    fn trim(&self, folder: &Path) {
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
            let Ok(modified) = meta.modified() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".writing-") {
                // Left by a process that ended while it wrote.
                if modified.elapsed().is_ok_and(|age| age > MARK_AFTER) {
                    let _ = std::fs::remove_file(&path);
                }
            } else if is_entry(&name) {
                entries.push((modified, meta.len(), path));
            }
        }
        let mut total: u64 = entries.iter().map(|e| e.1).sum();
        entries.sort();
        for (_, len, path) in entries {
            if total <= self.limit {
                break;
            }
            // Another process may have removed it already.
            let _ = std::fs::remove_file(path);
            total -= len;
        }
    }
}

fn is_entry(name: &str) -> bool {
    name.strip_suffix(SUFFIX)
        .and_then(|n| n.strip_suffix('.'))
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Says that the entry was used, so that the oldest to be removed is the one unused for longest.
fn mark_used(path: &Path) {
    let stale =
        std::fs::metadata(path).and_then(|m| m.modified()).is_ok_and(|t| t.elapsed().is_ok_and(|age| age > MARK_AFTER));
    if stale && let Ok(file) = std::fs::File::options().append(true).open(path) {
        // A folder that cannot be written keeps its order of age.
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Writes a file that appears whole or not at all.
pub(super) fn write_aside(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let aside = path.with_file_name(format!(".writing-{}-{number}-{nanos}", std::process::id()));
    let result = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(&aside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&aside, path));
    if result.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    result
}

/// The bytes of an entry: a header with a checksum, the key, and the code with its figures.
pub(super) fn encode(key: &Key, cubin: &Cubin) -> Vec<u8> {
    let mut payload = key.0.to_vec();
    let put = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(bytes);
    };
    put(&mut payload, &cubin.bytes);
    put(&mut payload, cubin.log.as_bytes());
    for list in [&cubin.resources, &cubin.functions] {
        payload.extend((list.len() as u64).to_le_bytes());
        for r in list {
            put(&mut payload, r.entry.as_bytes());
            for n in
                [r.registers, r.spill_store_bytes, r.spill_load_bytes, r.stack_bytes, r.shared_bytes, r.constant_bytes]
            {
                payload.extend(n.to_le_bytes());
            }
        }
    }
    let mut out = Vec::with_capacity(HEADER + payload.len());
    out.extend(MAGIC);
    out.extend((payload.len() as u64).to_le_bytes());
    out.extend(Sha256::digest(&payload));
    out.extend(payload);
    out
}

/// Reads numbers and strings off the front of a payload.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let (head, tail) = self.0.split_at_checked(bytes).ok_or("it is truncated")?;
        self.0 = tail;
        Ok(head)
    }
    pub fn number(&mut self) -> Result<u64, &'static str> {
        let bytes = self.take(8)?.try_into().map_err(|_| "it is truncated")?;
        Ok(u64::from_le_bytes(bytes))
    }
    pub fn block(&mut self) -> Result<&'a [u8], &'static str> {
        let len = usize::try_from(self.number()?).map_err(|_| "a length is too large")?;
        self.take(len)
    }
    fn text(&mut self) -> Result<String, &'static str> {
        String::from_utf8(self.block()?.to_vec()).map_err(|_| "a text is not UTF-8")
    }
}

/// The code of an entry that is whole and belongs to `key`.
pub(super) fn decode(bytes: &[u8], key: &Key) -> Result<Cubin, &'static str> {
    let mut r = Reader(bytes);
    if r.take(8)? != MAGIC {
        return Err("it is no entry of this cache");
    }
    let len = r.number()?;
    let sum = r.take(32)?;
    if len != r.0.len() as u64 {
        return Err("its length is not the one it states");
    }
    if sum != Sha256::digest(r.0).as_slice() {
        return Err("its checksum is wrong");
    }
    if r.take(32)? != key.0 {
        return Err("it belongs to another kernel");
    }
    let mut cubin = Cubin { bytes: r.block()?.to_vec(), log: r.text()?, ..Default::default() };
    for list in [&mut cubin.resources, &mut cubin.functions] {
        for _ in 0..r.number()? {
            list.push(EntryResources {
                entry: r.text()?,
                registers: r.number()?,
                spill_store_bytes: r.number()?,
                spill_load_bytes: r.number()?,
                stack_bytes: r.number()?,
                shared_bytes: r.number()?,
                constant_bytes: r.number()?,
            });
        }
    }
    if r.0.is_empty() { Ok(cubin) } else { Err("there is more in it than an entry has") }
}
