//! A CUDA device, opened through its primary context: the one that PyTorch and the CUDA runtime use.

use super::driver::{Driver, cu};
use super::module::Module;
use super::stream::{Stream, StreamRef};
use super::sys::{
    CAPTURE_MODE_RELAXED, CUcontext, CUdevice, CUmemoryPool, MEMPOOL_ATTR_RELEASE_THRESHOLD, MemAccessDesc,
    MemPoolProps, attribute as attr, code,
};
use super::{cache::Key, lock, search};
use crate::device::DeviceProps;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// An opened CUDA device. One exists for each index of a process, and it stays open until the process ends.
pub struct CudaDevice {
    pub(super) driver: &'static Driver,
    index: usize,
    handle: CUdevice,
    // The primary context and the pool, as addresses: they are never dereferenced here, and never released.
    context: usize,
    pool: Option<usize>,
    name: String,
    props: DeviceProps,
    max_threads_per_block: u32,
    pub(super) idle_streams: Mutex<Vec<u64>>,
    pub(super) deferred_frees: Mutex<Vec<(u64, StreamRef)>>,
    pub(super) modules: Mutex<HashMap<Key, Arc<Module>>>,
}

/// Free and total memory of a device, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be allocated, by any process.
    pub free: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// Everything that a device tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The index of this process.
    pub index: usize,
    /// The product's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// The compiler's name for it: `sm_90a`.
    pub arch: String,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// FP32 lanes of all multiprocessors ("CUDA cores").
    pub cores: u32,
    /// Highest clock of the multiprocessors, kHz.
    pub clock_khz: u32,
    /// Highest clock of the memory, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus, bits.
    pub memory_bus_bits: u32,
    /// Memory now free and in all, bytes.
    pub memory: MemoryInfo,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
    /// Constant memory, bytes.
    pub constant_bytes: u32,
    /// Shared memory a block may have, bytes.
    pub shared_per_block: u32,
    /// Shared memory a block may opt in to, bytes.
    pub shared_per_block_optin: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// 32-bit registers a block may have.
    pub registers_per_block: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_sm: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// Threads a block may have.
    pub threads_per_block: u32,
    /// Threads a multiprocessor can hold.
    pub threads_per_sm: u32,
    /// Blocks a multiprocessor can hold.
    pub blocks_per_sm: u32,
    /// Largest block in x, y, z.
    pub max_block: (u32, u32, u32),
    /// Largest grid in x, y, z.
    pub max_grid: (u32, u32, u32),
    /// Engines that copy while kernels run.
    pub copy_engines: u32,
    /// Whether memory is error-corrected.
    pub ecc: bool,
    /// Whether kernels are stopped after a time limit (a display hangs on the device).
    pub run_time_limit: bool,
    /// Whether it shares the host's memory.
    pub integrated: bool,
    /// Whether host and device share one address space.
    pub unified_addressing: bool,
    /// Whether managed memory is supported.
    pub managed_memory: bool,
    /// Whether kernels can be pre-empted at any instruction.
    pub compute_preemption: bool,
    /// PCI address, `0000:19:00.0`.
    pub pci_id: String,
    /// Compute mode: `default`, `prohibited`, `exclusive process`.
    pub compute_mode: &'static str,
    /// Whether cooperative launches (grid-wide barriers) are supported.
    pub cooperative_launch: bool,
    /// Whether cluster launches are supported.
    pub cluster_launch: bool,
    /// Whether stream-ordered memory pools are supported.
    pub memory_pools: bool,
    /// The CUDA version that the driver serves.
    pub driver_version: (u32, u32),
}

static DEVICES: Mutex<Vec<Arc<CudaDevice>>> = Mutex::new(Vec::new());

impl CudaDevice {
    /// How many CUDA devices this process may see; 0 with a driver and no device.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unavailable`] where there is no driver, an old one, or a fork lies between.
    pub fn count() -> Result<usize> {
        Ok(Driver::get()?.device_count())
    }

    /// Device `index` through its primary context; every call returns the same device.
    ///
    /// # Errors
    /// As [`CudaDevice::count`], and [`crate::ErrorKind::Device`] for an index that does not exist.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        // Before the lock: in a forked child the parent's lock may be held for ever.
        let driver = Driver::get()?;
        let mut devices = lock(&DEVICES);
        if let Some(d) = devices.iter().find(|d| d.index == index) {
            return Ok(d.clone());
        }
        let device = Arc::new(Self::create(driver, index)?);
        devices.push(device.clone());
        Ok(device)
    }

    fn create(driver: &'static Driver, index: usize) -> Result<Self> {
        let count = driver.device_count();
        if index >= count {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES")
                .map(|v| format!(" (CUDA_VISIBLE_DEVICES is `{v}`)"))
                .unwrap_or_default();
            let have = match count {
                0 => "no CUDA device".to_string(),
                1 => "one CUDA device, index 0".to_string(),
                n => format!("{n} CUDA devices, indices 0 to {}", n - 1),
            };
            return Err(Error::device(format!("cuda:{index} does not exist: this process sees {have}{visible}")));
        }
        let mut handle = 0;
        // SAFETY: the argument is a live integer, and the index exists.
        unsafe { cu!(driver, cuDeviceGet(&raw mut handle, index as i32)) }?;
        let mut name = [0u8; 256];
        // SAFETY: the buffer holds 256 bytes; the driver ends the name with a zero.
        unsafe { cu!(driver, cuDeviceGetName(name.as_mut_ptr().cast(), 256, handle)) }?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let get = |a| get_attribute(driver, handle, a);
        let mut memory = 0usize;
        // SAFETY: the argument is a live integer.
        unsafe { cu!(driver, cuDeviceTotalMem(&raw mut memory, handle)) }?;
        let memory_clock = u64::from(get(attr::MEMORY_CLOCK_RATE)?);
        let bus_bytes = u64::from(get(attr::GLOBAL_MEMORY_BUS_WIDTH)?) / 8;
        let props = DeviceProps {
            compute_capability: (get(attr::COMPUTE_CAPABILITY_MAJOR)?, get(attr::COMPUTE_CAPABILITY_MINOR)?),
            sm_count: get(attr::MULTIPROCESSOR_COUNT)?,
            shared_per_block: get(attr::MAX_SHARED_MEMORY_PER_BLOCK)?,
            shared_per_block_optin: get(attr::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_per_sm: get(attr::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers_per_sm: get(attr::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_sm: get(attr::MAX_THREADS_PER_MULTIPROCESSOR)?,
            l2_bytes: get(attr::L2_CACHE_SIZE)?,
            memory_bytes: memory as u64,
            // Two transfers a clock: the driver reports the command clock of double-data-rate memory.
            memory_bytes_per_s: 2 * memory_clock * 1000 * bus_bytes,
            clock_khz: get(attr::CLOCK_RATE)?,
        };
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the argument is a live pointer. The context is kept until the process ends.
        unsafe { cu!(driver, cuDevicePrimaryCtxRetain(&raw mut context, handle)) }
            .map_err(|e| e.context(format_args!("cuda:{index} ({name})")))?;
        let mut device = Self {
            driver,
            index,
            handle,
            context: context as usize,
            pool: None,
            name,
            props,
            max_threads_per_block: get(attr::MAX_THREADS_PER_BLOCK)?,
            idle_streams: Mutex::default(),
            deferred_frees: Mutex::default(),
            modules: Mutex::default(),
        };
        if get(attr::MEMORY_POOLS_SUPPORTED)? != 0 {
            device.pool = Some(device.create_pool()?);
        }
        Ok(device)
    }

    /// A pool of the library's own, so that keeping freed memory changes nothing for others who use the device's
    /// default pool.
    fn create_pool(&self) -> Result<usize> {
        let _guard = self.guard()?;
        let props = MemPoolProps::of_device(self.handle);
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        let mut keep_all = u64::MAX;
        // SAFETY: the pointers are live; the attribute takes a u64.
        unsafe {
            cu!(self.driver, cuMemPoolCreate(&raw mut pool, &raw const props))?;
            let value = (&raw mut keep_all).cast();
            cu!(self.driver, cuMemPoolSetAttribute(pool, MEMPOOL_ATTR_RELEASE_THRESHOLD, value))?;
        }
        Ok(pool as usize)
    }

    /// Lets kernels of `peer` read and write the memory of this device; false where the two have no way to each other.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Cuda`], what the driver refuses.
    pub fn share_memory_with(&self, peer: &Self) -> Result<bool> {
        let mut able = 0;
        // SAFETY: the argument is a live integer, and both devices exist.
        unsafe { cu!(self.driver, cuDeviceCanAccessPeer(&raw mut able, peer.handle, self.handle)) }?;
        if able == 0 {
            return Ok(false);
        }
        {
            let _guard = peer.guard()?;
            // SAFETY: both contexts live as long as the process; the one that gains access is current.
            let result = unsafe { (self.driver.api.cuCtxEnablePeerAccess)(self.context as CUcontext, 0) };
            if result != code::PEER_ACCESS_ALREADY_ENABLED {
                self.driver.check(result, "cuCtxEnablePeerAccess")?;
            }
        }
        if let Some(pool) = self.pool {
            let access = MemAccessDesc::of_device(peer.handle);
            // SAFETY: the pool is this device's own and lives as long as the process; one description.
            unsafe { cu!(self.driver, cuMemPoolSetAccess(pool as CUmemoryPool, &raw const access, 1)) }?;
        }
        Ok(true)
    }

    /// The index by which this process knows the device.
    pub fn index(&self) -> usize {
        self.index
    }
    /// The product's name, `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// What a choice of configuration may depend on.
    pub fn props(&self) -> &DeviceProps {
        &self.props
    }
    /// The compiler's name for the exact device: `sm_90a`.
    pub fn arch(&self) -> String {
        self.props.arch()
    }
    /// Threads that a block may have.
    pub fn max_threads_per_block(&self) -> u32 {
        self.max_threads_per_block
    }
    pub(super) fn pool(&self) -> Option<CUmemoryPool> {
        self.pool.map(|p| p as CUmemoryPool)
    }
    pub(super) fn context(&self) -> CUcontext {
        self.context as CUcontext
    }

    /// Free and total memory now. Memory that the library keeps in its pool counts as taken.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _guard = self.guard()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the arguments are live integers.
        unsafe { cu!(self.driver, cuMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Gives memory that the pool keeps and nobody uses back to the device. Waits for all work.
    pub fn release_cached_memory(&self) -> Result<()> {
        let Some(pool) = self.pool() else { return Ok(()) };
        let _guard = self.guard()?;
        self.synchronize()?;
        // SAFETY: the pool is this device's own.
        unsafe { cu!(self.driver, cuMemPoolTrimTo(pool, 0)) }
    }

    /// Everything that the device tells about itself.
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        self.driver.check_process()?;
        let get = |a| get_attribute(self.driver, self.handle, a);
        let triple = |a| Ok::<_, Error>((get(a)?, get(a + 1)?, get(a + 2)?));
        let flag = |a| get(a).map(|v| v != 0);
        let mut pci = [0u8; 32];
        // SAFETY: the buffer holds 32 bytes; the driver ends the address with a zero.
        unsafe { cu!(self.driver, cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), 32, self.handle)) }?;
        let mut memory = self.memory_info()?;
        let p = &self.props;
        memory.total = p.memory_bytes;
        Ok(DeviceAttributes {
            index: self.index,
            name: self.name.clone(),
            compute_capability: p.compute_capability,
            arch: self.arch(),
            sm_count: p.sm_count,
            cores: p.sm_count * cores_per_sm(p.compute_capability),
            clock_khz: p.clock_khz,
            memory_clock_khz: get(attr::MEMORY_CLOCK_RATE)?,
            memory_bus_bits: get(attr::GLOBAL_MEMORY_BUS_WIDTH)?,
            memory,
            l2_bytes: p.l2_bytes,
            constant_bytes: get(attr::TOTAL_CONSTANT_MEMORY)?,
            shared_per_block: p.shared_per_block,
            shared_per_block_optin: p.shared_per_block_optin,
            shared_per_sm: p.shared_per_sm,
            registers_per_block: get(attr::MAX_REGISTERS_PER_BLOCK)?,
            registers_per_sm: p.registers_per_sm,
            warp_size: get(attr::WARP_SIZE)?,
            threads_per_block: self.max_threads_per_block,
            threads_per_sm: p.threads_per_sm,
            blocks_per_sm: get(attr::MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            max_block: triple(attr::MAX_BLOCK_DIM_X)?,
            max_grid: triple(attr::MAX_GRID_DIM_X)?,
            copy_engines: get(attr::ASYNC_ENGINE_COUNT)?,
            ecc: flag(attr::ECC_ENABLED)?,
            run_time_limit: flag(attr::KERNEL_EXEC_TIMEOUT)?,
            integrated: flag(attr::INTEGRATED)?,
            unified_addressing: flag(attr::UNIFIED_ADDRESSING)?,
            managed_memory: flag(attr::MANAGED_MEMORY)?,
            compute_preemption: flag(attr::COMPUTE_PREEMPTION_SUPPORTED)?,
            pci_id: CStr::from_bytes_until_nul(&pci).unwrap_or_default().to_string_lossy().into_owned(),
            compute_mode: match get(attr::COMPUTE_MODE)? {
                0 => "default",
                2 => "prohibited",
                3 => "exclusive process",
                _ => "unknown",
            },
            cooperative_launch: flag(attr::COOPERATIVE_LAUNCH)?,
            cluster_launch: flag(attr::CLUSTER_LAUNCH)?,
            memory_pools: self.pool.is_some(),
            driver_version: self.driver.version(),
        })
    }

    /// Makes this device's context the calling thread's until the guard is dropped, which restores the caller's.
    ///
    /// # Errors
    /// In a process that was forked after CUDA had been initialised.
    pub fn guard(&self) -> Result<ContextGuard> {
        self.driver.check_process()?;
        super::bundle::other()?;
        self.guard_unchecked()
    }

    /// As [`CudaDevice::guard`] without asking which process this is: that is a system call, and in a forked child
    /// the driver itself refuses.
    #[inline]
    pub(super) fn guard_unchecked(&self) -> Result<ContextGuard> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the argument is a live pointer.
        unsafe { cu!(self.driver, cuCtxGetCurrent(&raw mut current)) }?;
        let pushed = current != self.context();
        if pushed {
            // SAFETY: the primary context is retained for the life of the process.
            unsafe { cu!(self.driver, cuCtxPushCurrent(self.context())) }?;
        }
        Ok(ContextGuard { driver: self.driver, pushed, thread: PhantomData })
    }

    /// Until the guard is dropped, the calling thread may allocate, load modules and wait for streams that are not being
    /// captured, although a graph is being captured: by this thread, or in the global mode (PyTorch's) by another one.
    /// What it does so is not part of the graph.
    pub fn outside_capture(&self) -> Result<CaptureGuard> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the argument is a live integer, which takes the thread's earlier mode.
        unsafe { cu!(self.driver, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
        Ok(CaptureGuard { driver: self.driver, mode, thread: PhantomData })
    }

    /// Waits for all work on the device, of every stream and every user of its primary context.
    ///
    /// # Errors
    /// For an earlier kernel that failed, and while any stream of the device is being captured.
    pub fn synchronize(&self) -> Result<()> {
        let _guard = self.guard()?;
        // SAFETY: a context is current.
        unsafe { cu!(self.driver, cuCtxSynchronize()) }
    }

    /// A stream that waits for no other.
    pub fn new_stream(self: &Arc<Self>) -> Result<Stream> {
        Stream::new(self)
    }

    /// The legacy default stream, which waits for and is waited for by every stream that was not made non-blocking.
    pub fn default_stream(&self) -> StreamRef {
        StreamRef::LEGACY
    }

    /// Whether kernels can be had here: from a cubin pack, or by an NVRTC that fits the driver and the device.
    ///
    /// # Errors
    /// The sentence says what was looked for, where, and how to install it.
    pub fn require_compiler(&self) -> Result<()> {
        if super::cache::global().has_pack()? {
            return Ok(());
        }
        search::locate(&self.arch()).map(|_| ())
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.index, self.name)
    }
}

/// While it lives, a device's context is the calling thread's; dropping it restores what was there before.
pub struct ContextGuard {
    driver: &'static Driver,
    pushed: bool,
    // The current context is a property of a thread.
    thread: PhantomData<*const ()>,
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = std::ptr::null_mut();
            // SAFETY: this guard pushed a context on this thread. A failure leaves nothing to undo.
            unsafe { (self.driver.api.cuCtxPopCurrent)(&raw mut popped) };
        }
    }
}

/// While it lives, its thread may do what a capture forbids; dropping it restores the thread's mode.
pub struct CaptureGuard {
    driver: &'static Driver,
    mode: std::ffi::c_uint,
    // The mode is a property of a thread.
    thread: PhantomData<*const ()>,
}

impl Drop for CaptureGuard {
    fn drop(&mut self) {
        // SAFETY: the argument is a live integer that holds the thread's earlier mode.
        unsafe { (self.driver.api.cuThreadExchangeStreamCaptureMode)(&raw mut self.mode) };
    }
}

fn get_attribute(driver: &Driver, handle: CUdevice, attribute: i32) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the argument is a live integer.
    unsafe { cu!(driver, cuDeviceGetAttribute(&raw mut value, attribute, handle)) }
        .map_err(|e| e.context(format_args!("device attribute {attribute}")))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// FP32 lanes of a multiprocessor, which the driver does not tell.
fn cores_per_sm(compute_capability: (u32, u32)) -> u32 {
    match compute_capability {
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}
