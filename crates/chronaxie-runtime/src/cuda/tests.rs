//! The cache under attack, with a compiler that counts and needs no NVRTC.

use super::cache::{Cache, Compiler};
use super::compile::{CompileOptions, KernelSource, Program, Specialisation};
use super::nvrtc::Cubin;
use super::pack::{load_pack, write_pack};
use super::resources::EntryResources;
use super::store::{Store, decode, encode};
use crate::error::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

const LIMIT: u64 = 1 << 20;
const ARCH: &str = "sm_80";

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("chronaxie-cache-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn cache(&self) -> Cache {
        Cache::new(Store::new(Some(self.0.join("kernels")), LIMIT))
    }
    fn files(&self) -> Vec<PathBuf> {
        let mut list: Vec<_> = std::fs::read_dir(self.0.join("kernels"))
            .map(|d| d.map(|e| e.unwrap().path()).collect())
            .unwrap_or_default();
        list.sort();
        list
    }
    fn only_file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// "Compiles" a program to its own text; what it makes of one program is always the same.
#[derive(Default)]
struct Counting {
    calls: AtomicUsize,
}

fn code_of(program: &Program<'_>) -> Cubin {
    let mut cubin = Cubin { bytes: program.text.as_bytes().repeat(50), log: "a log: ü".into(), ..Default::default() };
    cubin.resources.push(EntryResources { entry: "k".into(), registers: 33, constant_bytes: 1, ..Default::default() });
    cubin.functions.push(EntryResources { entry: "f".into(), spill_load_bytes: 4, ..Default::default() });
    cubin
}

impl Compiler for Counting {
    fn version(&self) -> Result<(u32, u32)> {
        Ok((13, 0))
    }
    fn compile(&self, program: &Program<'_>, _: &str, _: &CompileOptions) -> Result<Cubin> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(code_of(program))
    }
}

/// No compiler on this machine.
struct Absent;

impl Compiler for Absent {
    fn version(&self) -> Result<(u32, u32)> {
        Err(Error::unavailable("no NVRTC here"))
    }
    fn compile(&self, _: &Program<'_>, _: &str, _: &CompileOptions) -> Result<Cubin> {
        panic!("there is no compiler to call");
    }
}

fn spec(number: usize) -> Specialisation {
    Specialisation::new(KernelSource::new("toy.cu", format!("// program {number} ")), &["k"])
}

fn obtain(cache: &Cache, number: usize, compiler: &dyn Compiler) -> Result<std::sync::Arc<Cubin>> {
    cache.obtain(&spec(number).program(), ARCH, &CompileOptions::default(), compiler)
}

/// Obtains program 0 in a new cache over `folder` and checks what came; gives how often it was compiled.
fn compiles_in_a_new_cache(folder: &Folder) -> u64 {
    let cache = folder.cache();
    let cubin = obtain(&cache, 0, &Counting::default()).unwrap();
    assert_eq!(*cubin, code_of(&spec(0).program()));
    assert_eq!(cache.compiled() + cache.from_disk(), 1);
    cache.compiled()
}

#[test]
fn a_kernel_comes_from_the_nearest_place() {
    let folder = Folder::new("nearest");
    let compiler = Counting::default();
    let cache = folder.cache();
    for _ in 0..50 {
        obtain(&cache, 0, &compiler).unwrap();
    }
    assert_eq!(compiler.calls.load(Ordering::SeqCst), 1);
    assert_eq!((cache.compiled(), cache.from_memory(), cache.from_disk()), (1, 49, 0));
    assert_eq!(compiles_in_a_new_cache(&folder), 0);
    // Another architecture, option or compiler version is another kernel.
    let cache = folder.cache();
    let program = spec(0);
    cache.obtain(&program.program(), "sm_90a", &CompileOptions::default(), &compiler).unwrap();
    cache.obtain(&program.program(), ARCH, &CompileOptions { debug: true }, &compiler).unwrap();
    assert_eq!((cache.compiled(), cache.from_disk()), (2, 0));
    assert_eq!(folder.files().len(), 3);
}

#[cfg(unix)]
#[test]
fn the_folder_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("private");
    assert_eq!(compiles_in_a_new_cache(&folder), 1);
    let kernels = folder.0.join("kernels");
    assert_eq!(std::fs::metadata(&kernels).unwrap().permissions().mode() & 0o777, 0o700);
    // Where others may write, nothing is read and nothing is kept.
    std::fs::set_permissions(&kernels, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(compiles_in_a_new_cache(&folder), 1);
    std::fs::set_permissions(&kernels, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(compiles_in_a_new_cache(&folder), 0);
}

#[test]
fn damaged_entries_are_compiled_again_and_repaired() {
    let folder = Folder::new("damage");
    assert_eq!(compiles_in_a_new_cache(&folder), 1);
    let path = folder.only_file();
    let whole = std::fs::read(&path).unwrap();
    let try_with = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(compiles_in_a_new_cache(&folder), 1, "{what}");
        assert_eq!(compiles_in_a_new_cache(&folder), 0, "{what}: it was not repaired");
    };
    for len in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
        try_with(&whole[..len], "truncated");
    }
    for at in (0..whole.len()).step_by(37).chain(0..60) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        try_with(&bytes, "one bit flipped");
    }
    try_with(b"#!/bin/sh\necho foreign\n", "foreign");
    try_with(&[whole.clone(), vec![0]].concat(), "longer");
    // A whole entry of another kernel under this one's name.
    let other = folder.cache();
    obtain(&other, 1, &Counting::default()).unwrap();
    let theirs = folder.files().into_iter().find(|p| *p != path).unwrap();
    try_with(&std::fs::read(theirs).unwrap(), "another kernel's");
}

#[test]
fn entries_read_back_and_no_bytes_make_the_reader_panic() {
    let key = spec(0).key(ARCH, &CompileOptions::default());
    let cubin = code_of(&spec(0).program());
    let bytes = encode(&key, &cubin);
    assert_eq!(decode(&bytes, &key).unwrap(), cubin);
    // With a right checksum, but with lengths that lie: what a hostile writer could make.
    use sha2::{Digest, Sha256};
    for at in (80..bytes.len()).step_by(11) {
        let mut b = bytes.clone();
        b[at..(at + 8).min(bytes.len())].fill(0xff);
        let sum = Sha256::digest(&b[48..]);
        b[16..48].copy_from_slice(&sum);
        let _ = decode(&b, &key);
    }
    let mut b = bytes.clone();
    b[80..88].copy_from_slice(&u64::MAX.to_le_bytes());
    let sum = Sha256::digest(&b[48..]);
    b[16..48].copy_from_slice(&sum);
    assert_eq!(decode(&b, &key).unwrap_err(), "it is truncated");
}

#[test]
fn a_folder_that_cannot_be_is_done_without() {
    let folder = Folder::new("blocked");
    // A file where the folder should be stops every user, also root.
    std::fs::write(folder.0.join("kernels"), "in the way").unwrap();
    let cache = folder.cache();
    let compiler = Counting::default();
    for number in 0..3 {
        assert_eq!(*obtain(&cache, number, &compiler).unwrap(), code_of(&spec(number).program()));
    }
    assert_eq!(cache.compiled(), 3);
    assert_eq!(std::fs::read(folder.0.join("kernels")).unwrap(), b"in the way");
    let without = Cache::new(Store::new(None, LIMIT));
    obtain(&without, 0, &compiler).unwrap();
    assert_eq!(without.compiled(), 1);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("read-only");
    assert_eq!(compiles_in_a_new_cache(&folder), 1);
    let kernels = folder.0.join("kernels");
    std::fs::set_permissions(&kernels, std::fs::Permissions::from_mode(0o500)).unwrap();
    let cache = folder.cache();
    obtain(&cache, 0, &Counting::default()).unwrap();
    let other = obtain(&cache, 1, &Counting::default()).unwrap();
    assert_eq!(*other, code_of(&spec(1).program()));
    assert_eq!((cache.from_disk(), cache.compiled()), (1, 1));
    std::fs::set_permissions(&kernels, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_folder_stays_within_its_bound() {
    let folder = Folder::new("bound");
    let cache = folder.cache();
    obtain(&cache, 0, &Counting::default()).unwrap();
    let size = std::fs::metadata(folder.only_file()).unwrap().len();
    let oldest = folder.only_file();
    let foreign = folder.0.join("kernels").join("notes.txt");
    std::fs::write(&foreign, vec![0; 4096]).unwrap();
    let hour_ago = SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::options().append(true).open(&oldest).unwrap().set_modified(hour_ago).unwrap();
    // Room for five entries of this size.
    let small = Cache::new(Store::new(Some(folder.0.join("kernels")), 5 * size + size / 2));
    for number in 1..5 {
        obtain(&small, number, &Counting::default()).unwrap();
    }
    assert!(oldest.exists() && folder.files().len() == 6);
    obtain(&small, 5, &Counting::default()).unwrap();
    assert!(!oldest.exists(), "the oldest entry goes first");
    assert!(foreign.exists(), "files that are no entries are left alone");
    assert_eq!(folder.files().len(), 6);
    // Use makes an old entry young: the next to go is another.
    let kept = folder
        .0
        .join("kernels")
        .join(format!("{}.cubin", spec(1).key(ARCH, &CompileOptions::default()).with_version((13, 0))));
    std::fs::File::options().append(true).open(&kept).unwrap().set_modified(hour_ago).unwrap();
    let reader = folder.cache();
    obtain(&reader, 1, &Counting::default()).unwrap();
    assert_eq!(reader.from_disk(), 1);
    obtain(&small, 6, &Counting::default()).unwrap();
    assert!(kept.exists());
    // One that could never fit is not kept at all.
    let tiny = Cache::new(Store::new(Some(folder.0.join("tiny")), size - 1));
    obtain(&tiny, 0, &Counting::default()).unwrap();
    assert!(!folder.0.join("tiny").exists());
}

#[test]
fn threads_compile_one_kernel_once_and_different_ones_together() {
    struct Meeting {
        inside: AtomicU32,
        most: AtomicU32,
        calls: AtomicU32,
    }
    impl Compiler for Meeting {
        fn version(&self) -> Result<(u32, u32)> {
            Ok((13, 0))
        }
        fn compile(&self, program: &Program<'_>, _: &str, _: &CompileOptions) -> Result<Cubin> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            let started = Instant::now();
            while self.most.load(Ordering::SeqCst) < 2 && started.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            Ok(code_of(program))
        }
    }
    let folder = Folder::new("threads");
    let cache = folder.cache();
    let compiler = Meeting { inside: 0.into(), most: 0.into(), calls: 0.into() };
    std::thread::scope(|s| {
        for thread in 0..8 {
            let (cache, compiler) = (&cache, &compiler);
            s.spawn(move || obtain(cache, thread % 2, compiler).unwrap());
        }
    });
    assert_eq!(compiler.calls.load(Ordering::SeqCst), 2);
    assert_eq!(compiler.most.load(Ordering::SeqCst), 2);
    assert_eq!((cache.compiled(), cache.from_memory()), (2, 6));
}

/// Runs one test of this binary again, as another process, over `folder`.
fn child(test: &str, folder: &Path) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args([test, "--exact", "--nocapture"]).env("CHRONAXIE_TEST_FOLDER", folder);
    c
}

#[test]
fn processes_share_the_folder() {
    const TEST: &str = "cuda::tests::processes_share_the_folder";
    let work = |root: &Path| {
        for round in 0..10 {
            let cache = Cache::new(Store::new(Some(root.join("kernels")), LIMIT));
            for number in 0..20 {
                let cubin = obtain(&cache, number, &Counting::default()).unwrap();
                assert_eq!(*cubin, code_of(&spec(number).program()), "round {round}");
                // Now and then somebody destroys an entry under the others.
                if (number + round) % 7 == 0 {
                    let key = spec(number).key(ARCH, &CompileOptions::default()).with_version((13, 0));
                    let _ = std::fs::write(root.join("kernels").join(format!("{key}.cubin")), "broken");
                }
            }
        }
    };
    if let Some(root) = std::env::var_os("CHRONAXIE_TEST_FOLDER") {
        work(Path::new(&root));
        return;
    }
    let folder = Folder::new("processes");
    let mut children: Vec<_> = (0..3).map(|_| child(TEST, &folder.0).spawn().unwrap()).collect();
    work(&folder.0);
    for c in &mut children {
        assert!(c.wait().unwrap().success());
    }
    let left: Vec<_> = folder.files().into_iter().filter(|p| p.extension().is_none_or(|e| e != "cubin")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(folder.files().len(), 20);
}

/// A limit on the size of files fails a write half-way, as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_once_and_leaves_nothing() {
    const TEST: &str = "cuda::tests::a_full_disk_is_said_once_and_leaves_nothing";
    if let Some(root) = std::env::var_os("CHRONAXIE_TEST_FOLDER") {
        let cache = Cache::new(Store::new(Some(Path::new(&root).join("kernels")), LIMIT));
        for number in 0..3 {
            assert_eq!(*obtain(&cache, number, &Counting::default()).unwrap(), code_of(&spec(number).program()));
        }
        assert_eq!(cache.compiled(), 3);
        return;
    }
    let folder = Folder::new("full");
    let mut shell = Command::new("sh");
    // One block of 512 bytes, less than an entry; the signal of the limit is ignored, so that the write fails.
    shell.arg("-c").arg("trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"");
    shell.arg(std::env::current_exe().unwrap()).args([TEST, "--exact", "--nocapture"]);
    let out = shell.env("CHRONAXIE_TEST_FOLDER", &folder.0).env_remove("CHRONAXIE_LOG").output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    assert_eq!(stderr.matches("cannot be kept").count(), 1, "{stderr}");
    assert!(stderr.contains("CHRONAXIE_CACHE_DIR"), "{stderr}");
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_pack_serves_a_machine_without_a_compiler() {
    let folder = Folder::new("pack");
    let path = folder.0.join("kernels.pack");
    let options = CompileOptions::default();
    let cubins: Vec<_> = (0..3).map(|n| (spec(n).key(ARCH, &options), code_of(&spec(n).program()))).collect();
    write_pack(&path, cubins.iter().map(|(k, c)| (*k, c))).unwrap();
    let pack = load_pack(&path).unwrap();
    assert_eq!(pack.len(), 3);
    let cache = Cache::new(Store::new(None, LIMIT));
    cache.set_pack(pack);
    assert!(cache.has_pack().unwrap());
    for (n, (_, cubin)) in cubins.iter().enumerate() {
        assert_eq!(*obtain(&cache, n, &Absent).unwrap(), *cubin);
    }
    assert_eq!(cache.counts().from_pack, 3);
    // What is not in it needs a compiler, and the error is the one that says how to get it.
    let e = obtain(&cache, 7, &Absent).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (&ErrorKind::Unavailable, "toy.cu: no NVRTC here"));
    // Failures are not remembered: with a compiler the same kernel is made.
    assert!(obtain(&cache, 7, &Counting::default()).is_ok());

    let whole = std::fs::read(&path).unwrap();
    for bytes in [&whole[..whole.len() - 1], &whole[..20], b"", &[whole.clone(), vec![1]].concat()] {
        std::fs::write(&path, bytes).unwrap();
        let m = load_pack(&path).err().unwrap().to_string();
        assert!(m.contains("kernels.pack") && m.contains("compile --pack"), "{m}");
    }
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    std::fs::write(&path, flipped).unwrap();
    assert!(load_pack(&path).err().unwrap().to_string().contains("checksum"));
    assert!(matches!(load_pack(&folder.0.join("none")).err().unwrap().kind(), ErrorKind::Io));
    write_pack(&path, []).unwrap();
    assert!(load_pack(&path).unwrap().is_empty());
}

#[test]
fn the_environment_names_the_folder() {
    let with = |pairs: &'static [(&str, &str)]| {
        let store = Store::from_env(&|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.into()));
        store.folder().map(|f| f.to_string_lossy().replace('\\', "/"))
    };
    assert_eq!(with(&[("CHRONAXIE_CACHE_DIR", "/a"), ("HOME", "/h")]).as_deref(), Some("/a/kernels"));
    assert_eq!(with(&[("CHRONAXIE_CACHE_DIR", ""), ("HOME", "/h")]), None);
    assert_eq!(with(&[]), None);
    if cfg!(windows) {
        assert_eq!(with(&[("LOCALAPPDATA", "C:/l")]).as_deref(), Some("C:/l/chronaxie/cache/kernels"));
    } else {
        assert_eq!(with(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]).as_deref(), Some("/x/chronaxie/kernels"));
        assert_eq!(with(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/chronaxie/kernels"));
        assert_eq!(
            with(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]).as_deref(),
            Some("/h/.cache/chronaxie/kernels")
        );
    }
}
