//! Kernels loaded on a device: found in memory, on disk, in a pack, or compiled.

use super::cache::{Compiler, global};
use super::compile::{CompileOptions, Program, Specialisation};
use super::device::CudaDevice;
use super::driver::cu;
use super::nvrtc::{Cubin, Nvrtc, nvrtc_for};
use super::resources::EntryResources;
use super::sys::{CUfunction, CUmodule, code, function as attr};
use super::{lock, search};
use crate::error::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Machine code loaded on a device. It stays loaded as long as the device is open.
pub(super) struct Module {
    handle: usize,
    name: String,
    cubin: Arc<Cubin>,
    kernels: Mutex<HashMap<String, Arc<Loaded>>>,
}

/// A kernel of a module, and what launching it needs to know.
pub(super) struct Loaded {
    pub device: Arc<CudaDevice>,
    pub handle: usize,
    /// `layers/ltc/cuda/forward.cu:ltc_forward`.
    pub label: String,
    /// Size of each parameter, bytes.
    pub parameters: Box<[u32]>,
    pub max_threads: u32,
    pub static_shared: u32,
    /// Dynamic shared memory that a launch may ask for now, bytes.
    pub max_dynamic: AtomicU32,
    registers: u32,
    local_bytes: u32,
    constant_bytes: u32,
    resources: Option<EntryResources>,
}

/// A kernel that is loaded and ready to be launched. Cloning is cheap.
#[derive(Clone)]
pub struct Kernel(pub(super) Arc<Loaded>);

/// NVRTC as the cache asks for it: named by its files first, opened when something must be compiled.
struct ForArch<'a>(&'a str);

impl Compiler for ForArch<'_> {
    fn version(&self) -> Result<(u32, u32)> {
        let found = search::locate(self.0)?;
        found.version.map_or_else(|| Nvrtc::open(&found.path).map(|n| n.version()), Ok)
    }
    fn compile(&self, program: &Program<'_>, arch: &str, options: &CompileOptions) -> Result<Cubin> {
        nvrtc_for(self.0)?.compile_program(program, arch, options)
    }
}

/// The machine code of `spec` for `arch` through the cache of this process: what `kernel` loads, without a device.
///
/// # Errors
/// As [`CudaDevice::kernel`] where it compiles.
pub fn cubin(spec: &Specialisation, arch: &str, options: &CompileOptions) -> Result<Arc<Cubin>> {
    global().obtain(&spec.program(), arch, options, &ForArch(arch))
}

impl CudaDevice {
    /// Kernel `entry` of `spec`, loaded on this device: from memory, the disk cache, a cubin pack, or NVRTC.
    ///
    /// To be called when a plan is made: it hashes the source, and at first use compiles.
    ///
    /// # Errors
    /// [`ErrorKind::Compile`] with the log, [`ErrorKind::Unavailable`] where there is no compiler or the source does
    /// not declare this device's architecture, [`ErrorKind::Cuda`] where the driver refuses the code.
    pub fn kernel(self: &Arc<Self>, spec: &Specialisation, entry: &str) -> Result<Kernel> {
        self.kernel_of(&spec.program(), entry)
    }

    pub(super) fn kernel_of(self: &Arc<Self>, program: &Program<'_>, entry: &str) -> Result<Kernel> {
        // Before any lock: in a forked child the parent's may be held for ever.
        self.driver.check_process()?;
        let arch = self.arch();
        let options = CompileOptions::current();
        let key = program.key(&arch, &options);
        let known = lock(&self.modules).get(&key).cloned();
        let module = match known {
            Some(module) => {
                global().note_from_memory();
                module
            }
            None => {
                let cubin = global().obtain(program, &arch, &options, &ForArch(&arch))?;
                let mut modules = lock(&self.modules);
                // Another thread may have loaded it meanwhile.
                match modules.get(&key) {
                    Some(module) => module.clone(),
                    None => {
                        let module = Arc::new(self.load(program.name, cubin)?);
                        modules.insert(key, module.clone());
                        module
                    }
                }
            }
        };
        let mut kernels = lock(&module.kernels);
        if let Some(loaded) = kernels.get(entry) {
            return Ok(Kernel(loaded.clone()));
        }
        let loaded = Arc::new(self.load_kernel(&module, entry)?);
        kernels.insert(entry.to_string(), loaded.clone());
        Ok(Kernel(loaded))
    }

    fn load(&self, name: &str, cubin: Arc<Cubin>) -> Result<Module> {
        let _guard = self.guard()?;
        let mut handle: CUmodule = std::ptr::null_mut();
        // SAFETY: the image is a whole ELF file of the compiler's, whose checksum was verified where it was stored.
        let result = unsafe { (self.driver.api.cuModuleLoadData)(&raw mut handle, cubin.bytes.as_ptr().cast()) };
        self.driver.check(result, "cuModuleLoadData").map_err(|e| {
            let (major, minor) = self.driver.version();
            let hint = if result == code::NO_BINARY_FOR_GPU {
                "; code of a newer NVRTC than the driver's major version is not loaded: update the driver, or use its NVRTC"
            } else {
                ""
            };
            let place = format!("{name} for {} on cuda:{} (driver of CUDA {major}.{minor})", self.arch(), self.index());
            Error::new(e.kind().clone(), format!("{place}: {e}{hint}"))
        })?;
        Ok(Module { handle: handle as usize, name: name.to_string(), cubin, kernels: Mutex::default() })
    }

    fn load_kernel(self: &Arc<Self>, module: &Module, entry: &str) -> Result<Loaded> {
        let _guard = self.guard()?;
        let label = format!("{}:{entry}", module.name);
        let name = CString::new(entry).map_err(|_| Error::value(format!("{label:?} contains a NUL")))?;
        let mut handle: CUfunction = std::ptr::null_mut();
        let module_handle = module.handle as CUmodule;
        // SAFETY: the module is loaded, and the name is terminated.
        let result = unsafe { (self.driver.api.cuModuleGetFunction)(&raw mut handle, module_handle, name.as_ptr()) };
        if result == code::NOT_FOUND {
            let have: Vec<_> = module.cubin.resources.iter().map(|r| r.entry.as_str()).collect();
            return Err(Error::new(
                ErrorKind::Compile { kernel: label, log: String::new() },
                format!(
                    "{} has no kernel `{entry}` (it has: {}); declare it as extern \"C\" __global__ void {entry}(...)",
                    module.name,
                    have.join(", ")
                ),
            ));
        }
        self.driver.check(result, "cuModuleGetFunction").map_err(|e| e.context(&label))?;
        let get = |attribute| {
            let mut value = 0;
            // SAFETY: the function is live, and the value is a live integer. Asking also loads it, which a capture
            // could not do later.
            unsafe { cu!(self.driver, cuFuncGetAttribute(&raw mut value, attribute, handle)) }
                .map(|()| u32::try_from(value).unwrap_or(0))
                .map_err(|e| e.context(&label))
        };
        // First, because it loads the function, which the driver does lazily.
        let max_threads = get(attr::MAX_THREADS_PER_BLOCK)?;
        Ok(Loaded {
            device: self.clone(),
            handle: handle as usize,
            parameters: self.parameters(handle).map_err(|e| e.context(&label))?,
            max_threads,
            static_shared: get(attr::SHARED_SIZE_BYTES)?,
            max_dynamic: AtomicU32::new(get(attr::MAX_DYNAMIC_SHARED_SIZE_BYTES)?),
            registers: get(attr::NUM_REGS)?,
            local_bytes: get(attr::LOCAL_SIZE_BYTES)?,
            constant_bytes: get(attr::CONST_SIZE_BYTES)?,
            resources: module.cubin.entry(entry).cloned(),
            label,
        })
    }

    /// The sizes of a kernel's parameters, so that a launch with other arguments is refused instead of reading past them.
    fn parameters(&self, handle: CUfunction) -> Result<Box<[u32]>> {
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is live, and the results are live integers.
            let result =
                unsafe { (self.driver.api.cuFuncGetParamInfo)(handle, sizes.len(), &raw mut offset, &raw mut size) };
            if result == code::INVALID_VALUE {
                return Ok(sizes.into());
            }
            self.driver.check(result, "cuFuncGetParamInfo")?;
            sizes.push(size as u32);
        }
    }
}

impl Kernel {
    /// Its name in errors and reports: `layers/ltc/cuda/forward.cu:ltc_forward`.
    pub fn name(&self) -> &str {
        &self.0.label
    }
    /// Its device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.0.device
    }
    /// Registers a thread.
    pub fn registers(&self) -> u32 {
        self.0.registers
    }
    /// Local memory a thread, bytes: arrays that are not in registers, and spills.
    pub fn local_bytes(&self) -> u32 {
        self.0.local_bytes
    }
    /// Static shared memory a block, bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.0.static_shared
    }
    /// Constant memory, bytes.
    pub fn constant_bytes(&self) -> u32 {
        self.0.constant_bytes
    }
    /// Threads that a block may have with this kernel's registers.
    pub fn max_threads(&self) -> u32 {
        self.0.max_threads
    }
    /// How many arguments it takes.
    pub fn parameters(&self) -> usize {
        self.0.parameters.len()
    }
    /// The size of each argument, bytes.
    pub fn parameter_bytes(&self) -> &[u32] {
        &self.0.parameters
    }
    /// What the assembler said when it was compiled; also from the cache and from a pack.
    pub fn resources(&self) -> Option<&EntryResources> {
        self.0.resources.as_ref()
    }

    fn handle(&self) -> CUfunction {
        self.0.handle as CUfunction
    }

    fn named(&self, error: Error) -> Error {
        error.context(&self.0.label)
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory; more than 48 KiB with the static part needs this.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] where a block of the device cannot have as much.
    pub fn set_max_dynamic_shared(&self, bytes: u32) -> Result<()> {
        let limit = self.0.device.props().shared_per_block_optin;
        if u64::from(bytes) + u64::from(self.0.static_shared) > u64::from(limit) {
            return Err(Error::value(format!(
                "{}: {bytes} bytes of dynamic and {} of static shared memory exceed the {limit} that a block of {} may have",
                self.0.label,
                self.0.static_shared,
                self.0.device.name()
            )));
        }
        if bytes <= self.0.max_dynamic.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.set(attr::MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes as i32)?;
        self.0.max_dynamic.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Lets launches use clusters of more than 8 blocks.
    ///
    /// # Errors
    /// Where the device has no clusters.
    pub fn allow_large_clusters(&self) -> Result<()> {
        self.set(attr::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    }

    fn set(&self, attribute: i32, value: i32) -> Result<()> {
        let _guard = self.0.device.guard()?;
        // SAFETY: the function is live; the attribute takes an integer.
        unsafe { cu!(self.0.device.driver, cuFuncSetAttribute(self.handle(), attribute, value)) }
            .map_err(|e| self.named(e))
    }

    /// Blocks of `block` threads with `dynamic_shared` bytes that a multiprocessor holds at once.
    pub fn max_active_blocks(&self, block: u32, dynamic_shared: u32) -> Result<u32> {
        let device = &self.0.device;
        let _guard = device.guard()?;
        let mut blocks = 0;
        // SAFETY: the function is live, and the result is a live integer.
        unsafe {
            cu!(
                device.driver,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    self.handle(),
                    i32::try_from(block).unwrap_or(i32::MAX),
                    dynamic_shared as usize
                )
            )
        }
        .map_err(|e| self.named(e))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// The part of a multiprocessor's threads that `block` threads a block with `dynamic_shared` bytes can fill.
    pub fn occupancy(&self, block: u32, dynamic_shared: u32) -> Result<f64> {
        let threads = f64::from(self.max_active_blocks(block, dynamic_shared)?) * f64::from(block);
        Ok(threads / f64::from(self.0.device.props().threads_per_sm.max(1)))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}", self.0.label, self.0.device)
    }
}
