//! Where NVRTC may lie, and which of those found is taken.
//!
//! Nothing is loaded to choose: the version is read from the names of the files, because loading costs up to 0.1 s and
//! a kernel that is cached on disk does not need it.

use super::compile::parse_arch;
use super::driver::Driver;
use super::lock;
use crate::error::{Error, Result};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub(super) const INSTALL_13: &str = "pip install nvidia-cuda-nvrtc==13.0.*";
pub(super) const INSTALL_NCCL: &str = "pip install nvidia-nccl-cu13";
const INSTALL_12: &str = "pip install nvidia-cuda-nvrtc-cu12";

/// An NVRTC that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub path: PathBuf,
    /// From the names of its files; `None` if they do not tell, then it must be opened to know.
    pub version: Option<(u32, u32)>,
}

#[derive(Default)]
struct State {
    explicit: Option<PathBuf>,
    sites: Vec<PathBuf>,
    chosen: Option<HashMap<String, Found>>,
}

static STATE: Mutex<State> = Mutex::new(State { explicit: None, sites: Vec::new(), chosen: None });

pub(super) fn set_explicit(path: Option<PathBuf>) {
    let mut state = lock(&STATE);
    (state.explicit, state.chosen) = (path, None);
}

pub(super) fn set_sites(sites: Vec<PathBuf>) {
    let mut state = lock(&STATE);
    (state.sites, state.chosen) = (sites, None);
}

/// The NVRTC to use for `arch` (any, if empty); remembered until another path is set.
pub(super) fn locate(arch: &str) -> Result<Found> {
    let driver_major = Driver::get().ok().map(|d| d.version().0);
    let mut state = lock(&STATE);
    if let Some(found) = state.chosen.as_ref().and_then(|c| c.get(arch)) {
        return Ok(found.clone());
    }
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let found = match (&state.explicit, variable("CHRONAXIE_NVRTC")) {
        (Some(path), _) => named(path, "set_nvrtc_path", driver_major)?,
        (None, Some(path)) => named(Path::new(&path), "CHRONAXIE_NVRTC", driver_major)?,
        (None, None) => {
            let folders = folders(WHEELS, &state.sites, &variable);
            let all = folders.iter().filter_map(|f| in_folder(f)).collect();
            match choose(all, driver_major, arch) {
                Some(found) => found,
                None => by_loader(driver_major, arch).ok_or_else(|| absent(&folders, driver_major, arch))?,
            }
        }
    };
    state.chosen.get_or_insert_default().insert(arch.to_string(), found.clone());
    Ok(found)
}

/// The library that a person named, which is taken or refused, never passed over.
fn named(path: &Path, by: &str, driver_major: Option<u32>) -> Result<Found> {
    let found = if path.is_dir() {
        in_folder(path).ok_or_else(|| {
            Error::unavailable(format!("{by} names the folder {}, which holds no NVRTC", path.display()))
        })?
    } else if path.is_file() {
        Found { path: path.to_path_buf(), version: version_of(path) }
    } else {
        return Err(Error::unavailable(format!("{by} names {}, which does not exist", path.display())));
    };
    match (found.version, driver_major) {
        (Some((major, minor)), Some(driver)) if major > driver => Err(Error::unavailable(format!(
            "{by} names NVRTC {major}.{minor} at {}, whose code a driver of CUDA {driver} does not load; install one that \
             fits with `{}`",
            found.path.display(),
            install(Some(driver))
        ))),
        _ => Ok(found),
    }
}

fn install(driver_major: Option<u32>) -> &'static str {
    if driver_major == Some(12) { INSTALL_12 } else { INSTALL_13 }
}

fn absent(folders: &[PathBuf], driver_major: Option<u32>, arch: &str) -> Error {
    let found: Vec<_> = folders.iter().filter_map(|f| in_folder(f)).map(|f| f.path.display().to_string()).collect();
    let why = if found.is_empty() {
        "none was found".to_string()
    } else {
        format!("of those found none fits ({})", found.join(", "))
    };
    let driver = driver_major.map(|m| format!(" for a driver of CUDA {m}")).unwrap_or_default();
    let device = if arch.is_empty() { String::new() } else { format!(" and {arch}") };
    let list: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
    Error::unavailable(format!(
        "kernels are compiled by NVRTC{driver}{device}, and {why}; install it with `{}`, or name it in CHRONAXIE_NVRTC, \
         or use a cubin pack (CHRONAXIE_PACK). Looked in: {}, and the loader's path",
        if parse_arch(arch).is_ok_and(|(n, _)| n < 75) { INSTALL_12 } else { install(driver_major) },
        if list.is_empty() { "no folder".to_string() } else { list.join(", ") }
    ))
}

/// What to do where an NVRTC does not know `arch`.
pub(super) fn advice(arch: &str) -> String {
    match parse_arch(arch) {
        Ok((n, _)) if n < 75 => format!("; NVRTC 12 knows it: `{INSTALL_12}`"),
        Ok((n, _)) => format!("; NVRTC {}.{} or newer may: `{INSTALL_13}`", known_from(n).0, known_from(n).1),
        Err(_) => String::new(),
    }
}

/// The first NVRTC that knows a compute capability.
fn known_from(number: u32) -> (u32, u32) {
    match number {
        ..=90 => (12, 0),
        100 | 101 | 120 => (12, 8),
        103 | 121 => (12, 9),
        _ => (13, 0),
    }
}

/// Whether an NVRTC of `version` knows `arch`, as far as was known when this was written.
fn knows(version: (u32, u32), arch: &str) -> bool {
    parse_arch(arch).is_ok_and(|(n, _)| version >= known_from(n) && (n >= 75 || version.0 <= 12))
}

/// The newest that the driver and the architecture allow; the first of equal ones.
fn choose(mut all: Vec<Found>, driver_major: Option<u32>, arch: &str) -> Option<Found> {
    all.retain(|f| match f.version {
        Some(v) => driver_major.is_none_or(|d| v.0 <= d) && (arch.is_empty() || knows(v, arch)),
        None => false,
    });
    // The sort is stable, so the order of the search decides between equals.
    all.sort_by_key(|f| Reverse(f.version));
    all.into_iter().next()
}

/// What the loader finds by name: resident already (PyTorch), or on its path.
fn by_loader(driver_major: Option<u32>, arch: &str) -> Option<Found> {
    let names: &[(u32, &str)] = if cfg!(windows) {
        &[(13, "nvrtc64_130_0.dll"), (12, "nvrtc64_120_0.dll")]
    } else {
        &[(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12")]
    };
    names.iter().filter(|(major, _)| driver_major.is_none_or(|d| *major <= d)).find_map(|(_, name)| {
        let nvrtc = super::nvrtc::Nvrtc::open(Path::new(name)).ok()?;
        (arch.is_empty() || nvrtc.supports(arch))
            .then(|| Found { path: PathBuf::from(name), version: Some(nvrtc.version()) })
    })
}

/// The NCCL of this machine: a file, or the name that the loader knows it by.
///
/// # Errors
/// `Unavailable` that says where it was looked for and how to install it.
pub(super) fn nccl() -> Result<PathBuf> {
    const NAMES: &[&str] = &["libnccl.so.2"];
    if let Some(path) = std::env::var_os("CHRONAXIE_NCCL").filter(|v| !v.is_empty()) {
        return library_at(Path::new(&path), "CHRONAXIE_NCCL", NAMES);
    }
    library_of(NAMES, &["nvidia/nccl/lib"]).map_err(|looked| {
        Error::unavailable(format!(
            "GPUs of several processes exchange spikes by NCCL, and no {} was found; install it with `{INSTALL_NCCL}` (a driver of CUDA \
             12: nvidia-nccl-cu12), which PyTorch brings along, or name it in CHRONAXIE_NCCL. {looked}",
            NAMES[0]
        ))
    })
}

/// The cuSOLVER of this machine, likewise: that of the driver's CUDA, or an older one.
///
/// # Errors
/// `Unavailable` that says where it was looked for, or that none is wanted.
pub(super) fn cusolver() -> Result<PathBuf> {
    let all: &[&str] = &["libcusolver.so.12", "libcusolver.so.11"];
    let names = if Driver::get().is_ok_and(|d| d.version().0 < 13) { &all[1..] } else { all };
    match std::env::var_os("CHRONAXIE_CUSOLVER").filter(|v| !v.is_empty()) {
        Some(v) if v == "0" => Err(Error::unavailable("CHRONAXIE_CUSOLVER=0")),
        Some(path) => library_at(Path::new(&path), "CHRONAXIE_CUSOLVER", names),
        None => library_of(names, &["nvidia/cu13/lib", "nvidia/cusolver/lib"]).map_err(|looked| {
            Error::unavailable(format!("no {} was found, which PyTorch brings along. {looked}", names.join(" or ")))
        }),
    }
}

/// The cuFile of this machine, likewise; or that at `named`, a file or a folder.
///
/// # Errors
/// `Unavailable` that says where it was looked for.
#[cfg(target_os = "linux")]
pub(super) fn cufile(named: Option<&Path>) -> Result<PathBuf> {
    const NAMES: &[&str] = &["libcufile.so.0", "libcufile.so"];
    if let Some(path) = named {
        return library_at(path, "CHRONAXIE_CUFILE", NAMES);
    }
    library_of(NAMES, &["nvidia/cu13/lib", "nvidia/cufile/lib"])
        .map_err(|looked| Error::unavailable(format!("no {} was found. {looked}", NAMES[0])))
}

/// The library that a person named: a file, or a folder that holds one of `names`.
fn library_at(path: &Path, by: &str, names: &[&str]) -> Result<PathBuf> {
    let within = |folder: &Path| {
        let list: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
        list.iter().find(|f| f.is_file()).unwrap_or(&list[0]).clone()
    };
    let file = if path.is_dir() { within(path) } else { path.to_path_buf() };
    let absent = || Error::unavailable(format!("{by} names {}, which does not exist", file.display()));
    if file.is_file() { Ok(file) } else { Err(absent()) }
}

/// The first of `names` in a folder or, by its name alone, on the loader's path; else where it was looked for.
fn library_of(names: &[&str], wheels: &[&str]) -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let folders = folders(wheels, &lock(&STATE).sites, &variable);
    if let Some(file) = folders.iter().flat_map(|f| names.iter().map(move |n| f.join(n))).find(|f| f.is_file()) {
        return Ok(file);
    }
    if let Some(name) = names.iter().find(|n| super::nvrtc::open_local(Path::new(n)).map(std::mem::forget).is_ok()) {
        return Ok(name.into());
    }
    let list: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
    let list = if list.is_empty() { "no folder".to_string() } else { list.join(", ") };
    Err(format!("Looked in: {list}, and the loader's path"))
}

/// The folders that may hold a library, in the order of the search, each once; `wheels` are those of its wheels.
fn folders(wheels: &[&str], sites: &[PathBuf], variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = sites.iter().flat_map(|s| wheels.iter().map(move |wheel| s.join(wheel))).collect();
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| variable(v)).map(PathBuf::from).collect();
    if let Some(python) = variable("PATH").and_then(|path| first_python(&path)) {
        // In a virtual environment `bin/python3` is a link to the python that it was made from: both count.
        let real = python.canonicalize().ok();
        for p in [Some(python), real].into_iter().flatten() {
            prefixes.extend(p.parent().and_then(Path::parent).map(Path::to_path_buf));
        }
    }
    if let Some(home) = variable("HOME") {
        prefixes.push(Path::new(&home).join(".local"));
    }
    if let Some(data) = variable("APPDATA") {
        prefixes.push(Path::new(&data).join("Python"));
    }
    for prefix in &prefixes {
        for site in site_packages(prefix) {
            list.extend(wheels.iter().map(|wheel| site.join(wheel)));
        }
        // Conda puts the library of its own package here.
        list.push(prefix.join(if cfg!(windows) { "Library/bin" } else { "lib" }));
    }
    for name in ["CUDA_PATH", "CUDA_HOME"] {
        if let Some(root) = variable(name) {
            list.extend(TOOLKIT.iter().map(|sub| Path::new(&root).join(sub)));
        }
    }
    list.extend(toolkits().iter().flat_map(|root| TOOLKIT.iter().map(move |sub| root.join(sub))));
    if cfg!(target_os = "linux") {
        list.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"].map(PathBuf::from));
    }
    let mut seen = std::collections::HashSet::new();
    list.retain(|f| f.is_dir() && seen.insert(f.clone()));
    list
}

#[cfg(windows)]
const WHEELS: &[&str] = &[
    "nvidia/cu13/bin/x86_64",
    "nvidia/cu13/bin",
    "nvidia/cuda_nvrtc/bin",
    "nvidia/cuda_nvrtc/bin/x86_64",
    "torch/lib",
];
#[cfg(not(windows))]
const WHEELS: &[&str] = &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"];

#[cfg(windows)]
const TOOLKIT: &[&str] = &["bin/x64", "bin"];
#[cfg(not(windows))]
const TOOLKIT: &[&str] = &["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];

fn first_python(path: &OsString) -> Option<PathBuf> {
    let names: &[&str] = if cfg!(windows) { &["python.exe"] } else { &["python3", "python"] };
    std::env::split_paths(path).flat_map(|d| names.iter().map(move |n| d.join(n))).find(|p| p.is_file())
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let mut list: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    list.sort();
    list
}

/// `<prefix>/lib/python3.12/site-packages` of whichever versions there are; Windows has no version in it.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut list = vec![prefix.join("Lib").join("site-packages")];
    for folder in subfolders(&prefix.join("lib")).into_iter().chain(subfolders(prefix)).rev() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        if name.starts_with("python3") {
            list.extend(["site-packages", "dist-packages"].map(|s| folder.join(s)));
        }
    }
    list
}

/// The system's CUDA folders, the newest first.
fn toolkits() -> Vec<PathBuf> {
    let (parent, start) = if cfg!(windows) {
        ("C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA", "v")
    } else {
        ("/usr/local", "cuda")
    };
    let mut list = subfolders(Path::new(parent));
    list.retain(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)));
    list.push(PathBuf::from("/opt/cuda"));
    list
}

/// Whether `name` is the main library's, and the major version in it: `libnvrtc.so.13`, `nvrtc64_130_0.dll`, and
/// PyTorch's older `libnvrtc-1ea278b5.so.12`.
fn major_of(name: &str) -> Option<u32> {
    if name.contains("builtins") || name.contains(".alt.") {
        return None;
    }
    if let Some(rest) = name.strip_prefix("nvrtc64_") {
        // 130_0 is 13.0; the last digit of the first number is the minor.
        let digits = rest.strip_suffix(".dll")?.split('_').next()?;
        return digits.get(..digits.len().checked_sub(1)?)?.parse().ok();
    }
    let (_, version) = name.strip_prefix("libnvrtc")?.split_once(".so.")?;
    version.split('.').next()?.parse().ok()
}

/// The newest NVRTC of one folder.
fn in_folder(folder: &Path) -> Option<Found> {
    let mut list: Vec<(u32, PathBuf)> = subfolders(folder)
        .into_iter()
        .filter_map(|p| Some((major_of(&p.file_name()?.to_string_lossy())?, p)))
        .filter(|(_, p)| p.is_file())
        .collect();
    // Among the names of one library the shortest is its soname.
    list.sort_by_key(|(major, p)| (Reverse(*major), p.as_os_str().len()));
    let (_, path) = list.into_iter().next()?;
    let version = version_of(&path);
    Some(Found { path, version })
}

/// The newest NVRTC of a folder that somebody named.
pub(super) fn library_in(folder: &Path) -> Result<PathBuf> {
    let found = in_folder(folder);
    found.map(|f| f.path).ok_or_else(|| Error::unavailable(format!("the folder {} holds no NVRTC", folder.display())))
}

/// The builtins libraries in a folder, which NVRTC opens by their bare names.
pub(super) fn builtins_beside(folder: &Path) -> Vec<PathBuf> {
    let mut list = subfolders(folder);
    list.retain(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        (name.starts_with("libnvrtc-builtins") || name.starts_with("nvrtc-builtins64_")) && !name.contains(".alt.")
    });
    list
}

/// The version of the library at `path`: from its own name if that has a minor, else from the builtins beside it.
fn version_of(path: &Path) -> Option<(u32, u32)> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = real.file_name()?.to_string_lossy().into_owned();
    let major = major_of(&name)?;
    if let Some((_, version)) = name.split_once(".so.")
        && let Some(minor) = version.split('.').nth(1)
    {
        return Some((major, minor.parse().ok()?));
    }
    let mut versions: Vec<(u32, u32)> = builtins_beside(real.parent()?)
        .iter()
        .filter_map(|p| {
            let name = p.file_name()?.to_string_lossy().into_owned();
            if let Some(digits) = name.strip_prefix("nvrtc-builtins64_").and_then(|r| r.strip_suffix(".dll")) {
                let number: u32 = digits.parse().ok()?;
                return Some((number / 10, number % 10));
            }
            let mut parts = name.split_once(".so.")?.1.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .filter(|v| v.0 == major)
        .collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [only] => Some(only),
        // Several toolkits share the folder: only the library itself knows which is its own.
        _ => super::nvrtc::Nvrtc::open(&real).ok().map(|n| n.version()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("chronaxie-search-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
        fn touch(&self, path: &str) -> PathBuf {
            let p = self.0.join(path);
            std::fs::create_dir_all(p.parent().unwrap()).unwrap();
            std::fs::write(&p, "").unwrap();
            p
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_tell_the_major_version() {
        for (name, major) in [
            ("libnvrtc.so.13", Some(13)),
            ("libnvrtc.so.12.4.127", Some(12)),
            ("libnvrtc-1ea278b5.so.12", Some(12)),
            ("nvrtc64_130_0.dll", Some(13)),
            ("nvrtc64_120_0.dll", Some(12)),
            ("libnvrtc-builtins.so.13.0", None),
            ("libnvrtc.alt.so.13", None),
            ("nvrtc-builtins64_130.dll", None),
            ("libnvrtc.so", None),
            ("libcudart.so.13", None),
        ] {
            assert_eq!(major_of(name), major, "{name}");
        }
    }

    #[cfg(not(windows))]
    #[test]
    fn the_newest_that_fits_is_taken() {
        let f = Folder::new("newest");
        let old = f.touch("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        f.touch("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.4");
        let new = f.touch("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        f.touch("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0");
        let root = f.0.clone();
        let variable = move |name: &str| (name == "VIRTUAL_ENV").then(|| root.join("venv").into_os_string());
        let all = || -> Vec<Found> {
            folders(WHEELS, &[], &variable)
                .iter()
                .filter(|d| d.starts_with(&f.0))
                .filter_map(|d| in_folder(d))
                .collect()
        };
        assert_eq!(all().len(), 2);
        let site = f.0.join("venv/lib/python3.11/site-packages");
        assert_eq!(
            folders(WHEELS, std::slice::from_ref(&site), &|_| None).first(),
            Some(&site.join("nvidia/cu13/lib"))
        );
        let pick = |driver, arch| choose(all(), driver, arch).map(|f| f.path);
        assert_eq!(pick(None, ""), Some(new.clone()));
        assert_eq!(pick(Some(13), "sm_90a"), Some(new));
        assert_eq!(pick(Some(12), "sm_90a"), Some(old.clone()));
        assert_eq!(pick(Some(13), "sm_70"), Some(old));
        assert_eq!(pick(Some(12), "sm_120"), None);
    }

    #[test]
    fn what_is_named_is_taken_or_refused() {
        let f = Folder::new("named");
        let m = named(&f.0, "CHRONAXIE_NVRTC", None).unwrap_err().to_string();
        assert!(m.contains("CHRONAXIE_NVRTC names the folder") && m.contains("holds no NVRTC"), "{m}");
        let m = named(&f.0.join("gone.so"), "CHRONAXIE_NVRTC", None).unwrap_err().to_string();
        assert!(m.contains("gone.so") && m.contains("does not exist"), "{m}");
        let file = f.touch("libnvrtc.so.13.0.88");
        assert_eq!(named(&f.0, "x", Some(13)).unwrap(), Found { path: file.clone(), version: Some((13, 0)) });
        let m = named(&file, "set_nvrtc_path", Some(12)).unwrap_err().to_string();
        assert!(m.contains("NVRTC 13.0") && m.contains("driver of CUDA 12") && m.contains(INSTALL_12), "{m}");
    }

    #[test]
    fn absence_says_where_and_how() {
        let m = absent(&[PathBuf::from("/a/b")], Some(13), "sm_90a").to_string();
        for part in ["/a/b", INSTALL_13, "CUDA 13", "sm_90a", "CHRONAXIE_NVRTC", "CHRONAXIE_PACK"] {
            assert!(m.contains(part), "{part} in {m}");
        }
        assert!(absent(&[], Some(12), "").to_string().contains(INSTALL_12));
        assert!(absent(&[], Some(13), "sm_70").to_string().contains(INSTALL_12));
        assert!(advice("sm_120").contains("12.8"));
    }

    #[test]
    fn a_file_that_is_no_library_is_a_sentence() {
        let f = Folder::new("fake");
        let file = f.touch("libnvrtc.so.13");
        let m = super::super::nvrtc::Nvrtc::open(&file).unwrap_err().to_string();
        assert!(m.contains("libnvrtc.so.13") && m.contains("pip install"), "{m}");
    }
}
