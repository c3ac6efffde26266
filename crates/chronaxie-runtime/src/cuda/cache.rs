//! Compiled kernels in memory and on disk.
//!
//! A disk entry is written aside and renamed, so a reader sees a whole entry or none; its checksum is verified before
//! anyone uses it, so a truncated, foreign or damaged one is compiled again. Where the folder cannot be used, kernels
//! are compiled without it and one warning says so.

use super::compile::{CompileOptions, Program};
use super::lock;
use super::nvrtc::Cubin;
use super::pack::Pack;
use super::store::Store;
use crate::error::Result;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// SHA-256 over all that the compiler gets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(super) [u8; 32]);

impl Key {
    /// The key on disk: the compiler's version decides about the code too.
    pub(super) fn with_version(&self, version: (u32, u32)) -> Self {
        let mut h = Sha256::new();
        h.update(self.0);
        h.update(version.0.to_le_bytes());
        h.update(version.1.to_le_bytes());
        Self(h.finalize().into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who compiles what is found nowhere: NVRTC, opened only when it is needed.
pub(super) trait Compiler {
    /// The version, without loading the compiler where that can be known.
    fn version(&self) -> Result<(u32, u32)>;
    fn compile(&self, program: &Program<'_>, arch: &str, options: &CompileOptions) -> Result<Cubin>;
}

/// How often kernels came from where, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Compiled by NVRTC.
    pub compiled: u64,
    /// Read from the disk cache.
    pub from_disk: u64,
    /// Taken from a cubin pack.
    pub from_pack: u64,
    /// Already in memory.
    pub from_memory: u64,
}

type Slot = Arc<Mutex<Option<Arc<Cubin>>>>;

/// The cache of a process, or one of a test's own.
pub struct Cache {
    store: Store,
    pack: Mutex<Option<Arc<Pack>>>,
    pack_named: OnceLock<Result<()>>,
    memory: Mutex<HashMap<Key, Slot>>,
    compiled: AtomicU64,
    from_disk: AtomicU64,
    from_pack: AtomicU64,
    from_memory: AtomicU64,
}

/// The cache that every device uses: its folder is `CHRONAXIE_CACHE_DIR`, else the system's place for caches, its
/// bound `CHRONAXIE_CACHE_MB` (512), its pack `CHRONAXIE_PACK`.
pub fn global() -> &'static Cache {
    static GLOBAL: OnceLock<Cache> = OnceLock::new();
    GLOBAL.get_or_init(|| Cache::new(Store::from_env(&|name| std::env::var_os(name))))
}

impl Cache {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            pack: Mutex::default(),
            pack_named: OnceLock::new(),
            memory: Mutex::default(),
            compiled: AtomicU64::new(0),
            from_disk: AtomicU64::new(0),
            from_pack: AtomicU64::new(0),
            from_memory: AtomicU64::new(0),
        }
    }

    /// How often kernels came from where.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            compiled: self.compiled(),
            from_disk: self.from_disk(),
            from_pack: self.from_pack.load(Ordering::Relaxed),
            from_memory: self.from_memory(),
        }
    }
    /// Kernels that NVRTC compiled.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }
    /// Kernels that were read from disk.
    pub fn from_disk(&self) -> u64 {
        self.from_disk.load(Ordering::Relaxed)
    }
    /// Kernels that were already in memory.
    pub fn from_memory(&self) -> u64 {
        self.from_memory.load(Ordering::Relaxed)
    }
    pub(super) fn note_from_memory(&self) {
        self.from_memory.fetch_add(1, Ordering::Relaxed);
    }
    /// The folder of the disk cache, if there is one.
    pub fn folder(&self) -> Option<PathBuf> {
        self.store.folder().map(PathBuf::from)
    }

    /// Uses `pack` for what is neither in memory nor on disk; it replaces the one before.
    pub fn set_pack(&self, pack: Pack) {
        let _ = self.pack_named.set(Ok(()));
        *lock(&self.pack) = Some(Arc::new(pack));
    }

    fn pack(&self) -> Result<Option<Arc<Pack>>> {
        self.pack_named
            .get_or_init(|| {
                if let Some(path) = std::env::var_os("CHRONAXIE_PACK").filter(|v| !v.is_empty()) {
                    let pack = super::pack::load_pack(path.as_ref()).map_err(|e| e.context("CHRONAXIE_PACK"))?;
                    *lock(&self.pack) = Some(Arc::new(pack));
                }
                Ok(())
            })
            .clone()?;
        Ok(lock(&self.pack).clone())
    }

    /// Whether a pack is in use.
    ///
    /// # Errors
    /// Where `CHRONAXIE_PACK` names a file that cannot be used.
    pub fn has_pack(&self) -> Result<bool> {
        Ok(self.pack()?.is_some())
    }

    /// The machine code of `program`: from memory, disk, the pack, or `compiler`, in this order. Two threads that ask
    /// for the same compile it once; for different ones they compile at the same time.
    pub(super) fn obtain(
        &self,
        program: &Program<'_>,
        arch: &str,
        options: &CompileOptions,
        compiler: &dyn Compiler,
    ) -> Result<Arc<Cubin>> {
        program.check(arch)?;
        let key = program.key(arch, options);
        let slot = lock(&self.memory).entry(key).or_default().clone();
        let mut place = lock(&slot);
        if let Some(cubin) = &*place {
            self.note_from_memory();
            return Ok(cubin.clone());
        }
        let cubin = Arc::new(self.obtain_outside_memory(key, program, arch, options, compiler)?);
        *place = Some(cubin.clone());
        Ok(cubin)
    }

    fn obtain_outside_memory(
        &self,
        key: Key,
        program: &Program<'_>,
        arch: &str,
        options: &CompileOptions,
        compiler: &dyn Compiler,
    ) -> Result<Cubin> {
        let version = compiler.version();
        let disk_key = version.as_ref().ok().map(|v| key.with_version(*v));
        if let Some(cubin) = disk_key.and_then(|k| self.store.read(&k)) {
            self.from_disk.fetch_add(1, Ordering::Relaxed);
            return Ok(cubin);
        }
        if let Some(cubin) = self.pack()?.and_then(|p| p.get(&key)) {
            self.from_pack.fetch_add(1, Ordering::Relaxed);
            return Ok(cubin);
        }
        version.map_err(|e| e.context(program.name))?;
        let cubin = compiler.compile(program, arch, options)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if let Some(k) = disk_key {
            self.store.write(&k, &cubin);
        }
        Ok(cubin)
    }
}
