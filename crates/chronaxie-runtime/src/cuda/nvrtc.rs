//! NVRTC, the run-time compiler: opened by path, used through our own table.

use super::compile::{CompileOptions, Program, parse_arch};
use super::driver::loader_reason;
use super::resources::{EntryResources, parse_log};
use super::sys::{NvrtcApi, NvrtcProgram};
use super::{lock, search};
use crate::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Machine code for one architecture, with what the assembler said of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Cubin {
    /// The ELF image that the driver loads.
    pub bytes: Vec<u8>,
    /// The compiler's log: warnings and the assembler's figures.
    pub log: String,
    /// Registers, spills and memory of each kernel.
    pub resources: Vec<EntryResources>,
    /// The same of functions that were not inlined; their spills are spills too. They have no registers of their own.
    pub functions: Vec<EntryResources>,
}

impl Cubin {
    /// What the assembler said of kernel `entry`.
    pub fn entry(&self, entry: &str) -> Option<&EntryResources> {
        self.resources.iter().find(|r| r.entry == entry)
    }
    /// Bytes that all its kernels and functions spill, stores and loads.
    pub fn spill_bytes(&self) -> u64 {
        self.resources.iter().chain(&self.functions).map(|r| r.spill_store_bytes + r.spill_load_bytes).sum()
    }
}

/// A loaded NVRTC. Several versions can be loaded at once; none is ever unloaded.
pub struct Nvrtc {
    api: NvrtcApi,
    version: (u32, u32),
    archs: Vec<u32>,
    path: PathBuf,
}

static OPENED: Mutex<Vec<Arc<Nvrtc>>> = Mutex::new(Vec::new());

/// The newest NVRTC of this machine that the driver's major version allows; without a driver, the newest.
///
/// It is looked for in: [`set_nvrtc_path`]; `CHRONAXIE_NVRTC` (a file or a folder); [`set_python_sites`]; the site-packages of the active
/// virtual environment, of conda and of the `python3` on the `PATH` (the wheels of NVIDIA and of PyTorch); the system's
/// CUDA folders; the loader's path.
///
/// # Errors
/// [`ErrorKind::Unavailable`] that says where it was looked for and how to install it.
pub fn nvrtc() -> Result<Arc<Nvrtc>> {
    search::locate("").and_then(|found| Nvrtc::open(&found.path))
}

/// As [`nvrtc`], the newest that knows `arch` (`sm_90a`): NVRTC 13 knows sm_75 and newer, NVRTC 12.4 up to sm_90a.
pub fn nvrtc_for(arch: &str) -> Result<Arc<Nvrtc>> {
    parse_arch(arch)?;
    search::locate(arch).and_then(|found| Nvrtc::open(&found.path))
}

/// Names the NVRTC to use from now on, a file or a folder that holds one; `None` searches again.
pub fn set_nvrtc_path(path: Option<PathBuf>) {
    search::set_explicit(path);
}

/// Names the site-packages of the Python that hosts this process: its wheels come first, whether or not its virtual
/// environment is active.
pub fn set_python_sites(sites: Vec<PathBuf>) {
    search::set_sites(sites);
}

impl Nvrtc {
    /// Opens the library at `path`, a file or a folder that holds one, or the resident one if it was opened before.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where there is none, the loader refuses it, or a symbol is missing.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let mut path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if path.is_dir() {
            path = search::library_in(&path)?;
        }
        let mut opened = lock(&OPENED);
        if let Some(n) = opened.iter().find(|n| n.path == path) {
            return Ok(n.clone());
        }
        let nvrtc = Arc::new(Self::load(path)?);
        opened.push(nvrtc.clone());
        crate::log::debug(format_args!("opened NVRTC {} at {}", nvrtc.version_text(), nvrtc.path.display()));
        Ok(nvrtc)
    }

    fn load(path: PathBuf) -> Result<Self> {
        let refused = |why: &dyn fmt::Display| {
            Error::unavailable(format!(
                "{} cannot be used as NVRTC: {why}; install it with `{}`",
                path.display(),
                search::INSTALL_13
            ))
        };
        // NVRTC opens its builtins by their bare name when it first compiles; from a wheel's folder the loader finds
        // them only if they are resident already.
        if let Some(folder) = path.parent() {
            for builtins in search::builtins_beside(folder) {
                if let Ok(library) = open_global(&builtins) {
                    std::mem::forget(library);
                }
            }
        }
        let library = open_local(&path).map_err(|e| refused(&loader_reason(&e)))?;
        let api = NvrtcApi::load(&library).map_err(|s| refused(&format_args!("it has no symbol `{s}`")))?;
        // Resident for ever: compiles may run on any thread, and its exit handlers expect it.
        std::mem::forget(library);
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the arguments are live integers.
        let results = unsafe {
            [(api.nvrtcVersion)(&raw mut major, &raw mut minor), (api.nvrtcGetNumSupportedArchs)(&raw mut count)]
        };
        let mut archs = vec![0 as c_int; count.max(0) as usize];
        // SAFETY: the list has as many places as the call before said.
        let listed = unsafe { (api.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) };
        if results != [0, 0] || listed != 0 {
            return Err(refused(&format_args!("it answers with errors {results:?} and {listed}")));
        }
        let archs = archs.into_iter().map(|a| a.max(0) as u32).collect();
        Ok(Self { api, version: (major.max(0) as u32, minor.max(0) as u32), archs, path })
    }

    /// Its version: (13, 0).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }
    pub(super) fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }
    /// The compute capabilities that it knows: 75, 80, ..., 120. The `a` variants of 90 and newer are not listed apart.
    pub fn supported_archs(&self) -> &[u32] {
        &self.archs
    }
    /// Whether it can compile for `arch` (`sm_90a`).
    pub fn supports(&self, arch: &str) -> bool {
        parse_arch(arch).is_ok_and(|(n, suffix)| self.archs.contains(&n) && (suffix.is_empty() || n >= 90))
    }
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn compile_program(&self, program: &Program<'_>, arch: &str, options: &CompileOptions) -> Result<Cubin> {
        program.check(arch)?;
        if !self.supports(arch) {
            let known: Vec<_> = self.archs.iter().map(|a| format!("sm_{a}")).collect();
            return Err(Error::unavailable(format!(
                "NVRTC {} at {} does not know {arch} (it knows {}){}",
                self.version_text(),
                self.path.display(),
                known.join(", "),
                search::advice(arch)
            )));
        }
        let c = |s: &str| CString::new(s).map_err(|_| Error::value(format!("{}: a NUL in the source", program.name)));
        let (text, name) = (c(&program.emitted())?, c(program.name)?);
        let strings = |list: &[&str]| list.iter().map(|s| c(s)).collect::<Result<Vec<_>>>();
        let header_names = strings(&program.headers.iter().map(|h| h.0).collect::<Vec<_>>())?;
        let header_texts = strings(&program.headers.iter().map(|h| h.1).collect::<Vec<_>>())?;
        let mut option_texts = program.options(arch, options);
        if self.version >= (13, 0) {
            // From 13.0 on NVRTC has a cache of its own, whose hits come without a log, so without registers and spills.
            option_texts.push("--no-cache".into());
        }
        let option_list = strings(&option_texts.iter().map(String::as_str).collect::<Vec<_>>())?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts, flags) = (pointers(&header_names), pointers(&header_texts), pointers(&option_list));

        let mut handle: NvrtcProgram = std::ptr::null_mut();
        // SAFETY: every string is terminated and outlives the call, and the lists have the lengths that are told.
        let created = unsafe {
            (self.api.nvrtcCreateProgram)(
                &raw mut handle,
                text.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check(created, "nvrtcCreateProgram", program.name)?;
        let guard = ProgramGuard { nvrtc: self, handle };
        let started = std::time::Instant::now();
        // SAFETY: the program is live; the options are terminated strings, as many as told.
        let result = unsafe { (self.api.nvrtcCompileProgram)(handle, flags.len() as c_int, flags.as_ptr()) };
        let log = guard.text(self.api.nvrtcGetProgramLogSize, self.api.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).trim_end().to_string();
        if result != 0 {
            let reason = if log.is_empty() { self.describe(result) } else { log.clone() };
            return Err(Error::new(
                ErrorKind::Compile { kernel: program.name.to_string(), log },
                format!("{} does not compile for {arch} (NVRTC {}):\n{reason}", program.name, self.version_text()),
            ));
        }
        let bytes = guard.text(self.api.nvrtcGetCUBINSize, self.api.nvrtcGetCUBIN)?;
        let (resources, functions) = parse_log(&log);
        crate::log::debug(format_args!(
            "compiled {} for {arch} in {:.0} ms",
            program.name,
            started.elapsed().as_secs_f64() * 1e3
        ));
        for entry in program.entries {
            if !resources.iter().any(|r| r.entry == *entry) {
                let have: Vec<_> = resources.iter().map(|r| r.entry.as_str()).collect();
                return Err(Error::new(
                    ErrorKind::Compile { kernel: program.name.to_string(), log },
                    format!(
                        "{} has no kernel `{entry}` (it has: {}); declare it as extern \"C\" __global__ void {entry}(...)",
                        program.name,
                        if have.is_empty() { "none".to_string() } else { have.join(", ") }
                    ),
                ));
            }
        }
        Ok(Cubin { bytes, log, resources, functions })
    }

    fn describe(&self, result: c_int) -> String {
        // SAFETY: NVRTC gives a static, terminated string for every code.
        let p = unsafe { (self.api.nvrtcGetErrorString)(result) };
        if p.is_null() {
            return format!("NVRTC error {result}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
    }

    fn check(&self, result: c_int, call: &str, name: &str) -> Result<()> {
        if result == 0 {
            return Ok(());
        }
        let reason = self.describe(result);
        Err(Error::new(
            ErrorKind::Compile { kernel: name.to_string(), log: String::new() },
            format!("{name}: {call} of NVRTC {} failed: {reason}", self.version_text()),
        ))
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC {} at {}", self.version_text(), self.path.display())
    }
}

struct ProgramGuard<'a> {
    nvrtc: &'a Nvrtc,
    handle: NvrtcProgram,
}

impl ProgramGuard<'_> {
    /// What a pair of size and content functions gives.
    fn text(
        &self,
        size: unsafe extern "system" fn(NvrtcProgram, *mut usize) -> c_int,
        get: unsafe extern "system" fn(NvrtcProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is live, and the size is a live integer.
        self.nvrtc.check(unsafe { size(self.handle, &raw mut bytes) }, "a size query", "the program")?;
        let mut content = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: the buffer has the size that NVRTC asked for.
            let result = unsafe { get(self.handle, content.as_mut_ptr().cast()) };
            self.nvrtc.check(result, "a content query", "the program")?;
        }
        Ok(content)
    }
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is live and not used afterwards.
        unsafe { (self.nvrtc.api.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

#[cfg(unix)]
fn open_global(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: the initialisers of NVRTC's libraries have no requirement on the caller.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map(Into::into)
}

#[cfg(unix)]
pub(super) fn open_local(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the initialisers of NVRTC's libraries have no requirement on the caller.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

#[cfg(windows)]
fn open_global(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{LOAD_WITH_ALTERED_SEARCH_PATH, Library};
    // With a full path, the flag lets the loader look for what the library needs in the library's own folder.
    let flags = if path.is_absolute() { LOAD_WITH_ALTERED_SEARCH_PATH } else { 0 };
    // SAFETY: the initialisers of NVRTC's libraries have no requirement on the caller.
    unsafe { Library::load_with_flags(path, flags) }.map(Into::into)
}

#[cfg(windows)]
pub(super) fn open_local(path: &Path) -> Result<Library, libloading::Error> {
    open_global(path)
}
