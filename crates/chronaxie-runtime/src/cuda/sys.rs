//! The parts of the driver's and of NVRTC's C interface that are used, as tables of function pointers.
//!
//! A table is filled from an opened library; a symbol that is missing is named in the error. The names and signatures
//! are those of CUDA 12.4, which every later driver still exports.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

pub type CUresult = c_uint;
pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUcontext = *mut c_void;
pub type CUstream = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUmodule = *mut c_void;
pub type CUfunction = *mut c_void;
pub type CUgraph = *mut c_void;
pub type CUgraphExec = *mut c_void;
pub type CUgraphNode = *mut c_void;
pub type CUmemoryPool = *mut c_void;

/// Result codes that get an answer of their own.
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const NOT_INITIALIZED: u32 = 3;
    pub const NO_DEVICE: u32 = 100;
    pub const NO_BINARY_FOR_GPU: u32 = 209;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const ILLEGAL_ADDRESS: u32 = 700;
    pub const LAUNCH_OUT_OF_RESOURCES: u32 = 701;
    pub const LAUNCH_FAILED: u32 = 719;
    pub const COOPERATIVE_LAUNCH_TOO_LARGE: u32 = 720;
    pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    pub const STREAM_CAPTURE_IMPLICIT: u32 = 906;
}

/// `CUdevice_attribute`.
pub mod attribute {
    pub const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub const MAX_BLOCK_DIM_X: i32 = 2;
    pub const MAX_GRID_DIM_X: i32 = 5;
    pub const MAX_SHARED_MEMORY_PER_BLOCK: i32 = 8;
    pub const TOTAL_CONSTANT_MEMORY: i32 = 9;
    pub const WARP_SIZE: i32 = 10;
    pub const MAX_REGISTERS_PER_BLOCK: i32 = 12;
    pub const CLOCK_RATE: i32 = 13;
    pub const MULTIPROCESSOR_COUNT: i32 = 16;
    pub const KERNEL_EXEC_TIMEOUT: i32 = 17;
    pub const INTEGRATED: i32 = 18;
    pub const COMPUTE_MODE: i32 = 20;
    pub const ECC_ENABLED: i32 = 32;
    pub const MEMORY_CLOCK_RATE: i32 = 36;
    pub const GLOBAL_MEMORY_BUS_WIDTH: i32 = 37;
    pub const L2_CACHE_SIZE: i32 = 38;
    pub const MAX_THREADS_PER_MULTIPROCESSOR: i32 = 39;
    pub const ASYNC_ENGINE_COUNT: i32 = 40;
    pub const UNIFIED_ADDRESSING: i32 = 41;
    pub const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: i32 = 81;
    pub const MAX_REGISTERS_PER_MULTIPROCESSOR: i32 = 82;
    pub const MANAGED_MEMORY: i32 = 83;
    pub const COMPUTE_PREEMPTION_SUPPORTED: i32 = 90;
    pub const COOPERATIVE_LAUNCH: i32 = 95;
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: i32 = 97;
    pub const MAX_BLOCKS_PER_MULTIPROCESSOR: i32 = 106;
    pub const MEMORY_POOLS_SUPPORTED: i32 = 115;
    pub const CLUSTER_LAUNCH: i32 = 120;
}

/// `CUfunction_attribute`.
pub mod function {
    pub const MAX_THREADS_PER_BLOCK: i32 = 0;
    pub const SHARED_SIZE_BYTES: i32 = 1;
    pub const CONST_SIZE_BYTES: i32 = 2;
    pub const LOCAL_SIZE_BYTES: i32 = 3;
    pub const NUM_REGS: i32 = 4;
    pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    pub const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
}

/// `CUlaunchAttributeID`.
pub mod launch {
    pub const COOPERATIVE: u32 = 2;
    pub const CLUSTER_DIMENSION: u32 = 4;
    pub const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
}

pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
pub const CAPTURE_MODE_RELAXED: c_uint = 2;
pub const MEMPOOL_ATTR_RELEASE_THRESHOLD: c_int = 4;

/// A `CUlaunchAttribute`: the value is a union of 64 bytes, of which integers are used here.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: [u32; 16],
}

/// A `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfigRaw {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: CUstream,
    pub attributes: *mut LaunchAttribute,
    pub num_attributes: c_uint,
}

/// A `CUDA_KERNEL_NODE_PARAMS` of version 2.
#[repr(C)]
pub struct KernelNode {
    pub function: CUfunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kernel: *mut c_void,
    pub context: CUcontext,
}

/// A `CUmemPoolProps`.
#[repr(C)]
pub struct MemPoolProps {
    pub alloc_type: c_int,
    pub handle_types: c_int,
    pub location_type: c_int,
    pub location_id: c_int,
    pub security_attributes: *mut c_void,
    pub max_size: usize,
    pub reserved: [u8; 56],
}

impl MemPoolProps {
    /// Ordinary device memory, shared with no other process.
    pub fn of_device(ordinal: CUdevice) -> Self {
        Self {
            alloc_type: 1,
            handle_types: 0,
            location_type: 1,
            location_id: ordinal,
            security_attributes: std::ptr::null_mut(),
            max_size: 0,
            reserved: [0; 56],
        }
    }
}

/// A `CUmemAccessDesc`.
#[repr(C)]
pub struct MemAccessDesc {
    pub location_type: c_int,
    pub location_id: c_int,
    pub flags: c_int,
}

impl MemAccessDesc {
    /// A device reads and writes.
    pub fn of_device(ordinal: CUdevice) -> Self {
        Self { location_type: 1, location_id: ordinal, flags: 3 }
    }
}

/// A `CUfileError_t`, which calls return by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CuFileError {
    pub err: c_uint,
    pub cu_err: CUresult,
}

/// The union of a `CUfileDescr_t`; other systems than Linux have a pointer in it.
#[repr(C)]
pub union CuFileFd {
    pub fd: c_int,
    pub handle: *mut c_void,
}

/// A `CUfileDescr_t`.
#[repr(C)]
pub struct CuFileDescr {
    pub kind: c_uint,
    pub handle: CuFileFd,
    pub fs_ops: *const c_void,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && size_of::<MemPoolProps>() == 88);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<LaunchConfigRaw>() == 56 && size_of::<KernelNode>() == 72);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<CuFileDescr>() == 24 && size_of::<CuFileError>() == 8);

macro_rules! table {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:literal ($($arg:ty),*) -> $ret:ty;)* }) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        pub struct $name { $(pub $field: unsafe extern "system" fn($($arg),*) -> $ret,)* }
        impl $name {
            /// The table of `library`, which the caller never closes, or the name of the first symbol that it lacks.
            pub fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self { $($field: {
                    // SAFETY: the symbol has this signature in every CUDA from 12.4 on, and the library stays open.
                    let symbol = unsafe {
                        library.get::<unsafe extern "system" fn($($arg),*) -> $ret>($symbol.as_bytes())
                    };
                    *symbol.map_err(|_| $symbol)?
                },)* })
            }
        }
    };
}

table! {
    /// What a driver of any age has: enough to say how old it is.
    DriverProbe {
        cuDriverGetVersion = "cuDriverGetVersion" (*mut c_int) -> CUresult;
    }
}

table! {
    /// The driver.
    DriverApi {
        cuInit = "cuInit" (c_uint) -> CUresult;
        cuGetErrorName = "cuGetErrorName" (CUresult, *mut *const c_char) -> CUresult;
        cuGetErrorString = "cuGetErrorString" (CUresult, *mut *const c_char) -> CUresult;
        cuDeviceGet = "cuDeviceGet" (*mut CUdevice, c_int) -> CUresult;
        cuDeviceGetCount = "cuDeviceGetCount" (*mut c_int) -> CUresult;
        cuDeviceGetName = "cuDeviceGetName" (*mut c_char, c_int, CUdevice) -> CUresult;
        cuDeviceTotalMem = "cuDeviceTotalMem_v2" (*mut usize, CUdevice) -> CUresult;
        cuDeviceGetAttribute = "cuDeviceGetAttribute" (*mut c_int, c_int, CUdevice) -> CUresult;
        cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId" (*mut c_char, c_int, CUdevice) -> CUresult;
        cuDeviceCanAccessPeer = "cuDeviceCanAccessPeer" (*mut c_int, CUdevice, CUdevice) -> CUresult;
        cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess" (CUcontext, c_uint) -> CUresult;
        cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice) -> CUresult;
        cuCtxPushCurrent = "cuCtxPushCurrent_v2" (CUcontext) -> CUresult;
        cuCtxPopCurrent = "cuCtxPopCurrent_v2" (*mut CUcontext) -> CUresult;
        cuCtxGetCurrent = "cuCtxGetCurrent" (*mut CUcontext) -> CUresult;
        cuCtxSynchronize = "cuCtxSynchronize" () -> CUresult;
        cuMemGetInfo = "cuMemGetInfo_v2" (*mut usize, *mut usize) -> CUresult;
        cuMemAlloc = "cuMemAlloc_v2" (*mut CUdeviceptr, usize) -> CUresult;
        cuMemFree = "cuMemFree_v2" (CUdeviceptr) -> CUresult;
        cuMemPoolCreate = "cuMemPoolCreate" (*mut CUmemoryPool, *const MemPoolProps) -> CUresult;
        cuMemPoolSetAttribute = "cuMemPoolSetAttribute" (CUmemoryPool, c_int, *mut c_void) -> CUresult;
        cuMemPoolSetAccess = "cuMemPoolSetAccess" (CUmemoryPool, *const MemAccessDesc, usize) -> CUresult;
        cuMemPoolTrimTo = "cuMemPoolTrimTo" (CUmemoryPool, usize) -> CUresult;
        cuMemAllocFromPoolAsync = "cuMemAllocFromPoolAsync" (*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> CUresult;
        cuMemFreeAsync = "cuMemFreeAsync" (CUdeviceptr, CUstream) -> CUresult;
        cuMemHostAlloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint) -> CUresult;
        cuMemFreeHost = "cuMemFreeHost" (*mut c_void) -> CUresult;
        cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
        cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult;
        cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2" (CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult;
        cuMemsetD8Async = "cuMemsetD8Async" (CUdeviceptr, u8, usize, CUstream) -> CUresult;
        cuStreamCreate = "cuStreamCreate" (*mut CUstream, c_uint) -> CUresult;
        cuStreamSynchronize = "cuStreamSynchronize" (CUstream) -> CUresult;
        cuStreamWaitEvent = "cuStreamWaitEvent" (CUstream, CUevent, c_uint) -> CUresult;
        cuStreamIsCapturing = "cuStreamIsCapturing" (CUstream, *mut c_uint) -> CUresult;
        cuStreamBeginCapture = "cuStreamBeginCapture_v2" (CUstream, c_uint) -> CUresult;
        cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode" (*mut c_uint) -> CUresult;
        cuStreamEndCapture = "cuStreamEndCapture" (CUstream, *mut CUgraph) -> CUresult;
        cuEventCreate = "cuEventCreate" (*mut CUevent, c_uint) -> CUresult;
        cuEventDestroy = "cuEventDestroy_v2" (CUevent) -> CUresult;
        cuEventRecord = "cuEventRecord" (CUevent, CUstream) -> CUresult;
        cuEventSynchronize = "cuEventSynchronize" (CUevent) -> CUresult;
        cuEventQuery = "cuEventQuery" (CUevent) -> CUresult;
        cuEventElapsedTime = "cuEventElapsedTime" (*mut f32, CUevent, CUevent) -> CUresult;
        cuGraphCreate = "cuGraphCreate" (*mut CUgraph, c_uint) -> CUresult;
        cuGraphAddKernelNode = "cuGraphAddKernelNode_v2" (*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const KernelNode) -> CUresult;
        cuGraphKernelNodeSetAttribute = "cuGraphKernelNodeSetAttribute" (CUgraphNode, c_uint, *const u32) -> CUresult;
        cuGraphExecKernelNodeSetParams = "cuGraphExecKernelNodeSetParams_v2" (CUgraphExec, CUgraphNode, *const KernelNode) -> CUresult;
        cuGraphInstantiateWithFlags = "cuGraphInstantiateWithFlags" (*mut CUgraphExec, CUgraph, u64) -> CUresult;
        cuGraphGetNodes = "cuGraphGetNodes" (CUgraph, *mut *mut c_void, *mut usize) -> CUresult;
        cuGraphDestroy = "cuGraphDestroy" (CUgraph) -> CUresult;
        cuGraphExecDestroy = "cuGraphExecDestroy" (CUgraphExec) -> CUresult;
        cuGraphLaunch = "cuGraphLaunch" (CUgraphExec, CUstream) -> CUresult;
        cuModuleLoadData = "cuModuleLoadData" (*mut CUmodule, *const c_void) -> CUresult;
        cuModuleGetFunction = "cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char) -> CUresult;
        cuFuncGetAttribute = "cuFuncGetAttribute" (*mut c_int, c_int, CUfunction) -> CUresult;
        cuFuncSetAttribute = "cuFuncSetAttribute" (CUfunction, c_int, c_int) -> CUresult;
        cuFuncGetParamInfo = "cuFuncGetParamInfo" (CUfunction, usize, *mut usize, *mut usize) -> CUresult;
        cuLaunchKernelEx = "cuLaunchKernelEx" (*const LaunchConfigRaw, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult;
        cuTensorMapEncodeTiled = "cuTensorMapEncodeTiled" (*mut c_void, c_int, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int) -> CUresult;
        cuOccupancyMaxActiveBlocksPerMultiprocessor = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, CUfunction, c_int, usize) -> CUresult;
        cuOccupancyMaxActiveClusters = "cuOccupancyMaxActiveClusters" (*mut c_int, CUfunction, *const LaunchConfigRaw) -> CUresult;
    }
}

pub type NvrtcProgram = *mut c_void;

table! {
    /// The run-time compiler.
    NvrtcApi {
        nvrtcVersion = "nvrtcVersion" (*mut c_int, *mut c_int) -> c_int;
        nvrtcGetErrorString = "nvrtcGetErrorString" (c_int) -> *const c_char;
        nvrtcGetNumSupportedArchs = "nvrtcGetNumSupportedArchs" (*mut c_int) -> c_int;
        nvrtcGetSupportedArchs = "nvrtcGetSupportedArchs" (*mut c_int) -> c_int;
        nvrtcCreateProgram = "nvrtcCreateProgram" (*mut NvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
        nvrtcDestroyProgram = "nvrtcDestroyProgram" (*mut NvrtcProgram) -> c_int;
        nvrtcCompileProgram = "nvrtcCompileProgram" (NvrtcProgram, c_int, *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize = "nvrtcGetProgramLogSize" (NvrtcProgram, *mut usize) -> c_int;
        nvrtcGetProgramLog = "nvrtcGetProgramLog" (NvrtcProgram, *mut c_char) -> c_int;
        nvrtcGetCUBINSize = "nvrtcGetCUBINSize" (NvrtcProgram, *mut usize) -> c_int;
        nvrtcGetCUBIN = "nvrtcGetCUBIN" (NvrtcProgram, *mut c_char) -> c_int;
    }
}

pub type NcclComm = *mut c_void;

table! {
    /// What carries bytes between GPUs of several processes.
    NcclApi {
        ncclGetVersion = "ncclGetVersion" (*mut c_int) -> c_int;
        ncclGetUniqueId = "ncclGetUniqueId" (*mut super::nccl::NcclId) -> c_int;
        ncclGetErrorString = "ncclGetErrorString" (c_int) -> *const c_char;
        ncclGetLastError = "ncclGetLastError" (NcclComm) -> *const c_char;
        ncclCommInitRank = "ncclCommInitRank" (*mut NcclComm, c_int, super::nccl::NcclId, c_int) -> c_int;
        ncclCommDestroy = "ncclCommDestroy" (NcclComm) -> c_int;
        ncclCommAbort = "ncclCommAbort" (NcclComm) -> c_int;
        ncclCommGetAsyncError = "ncclCommGetAsyncError" (NcclComm, *mut c_int) -> c_int;
        ncclAllGather = "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, NcclComm, CUstream) -> c_int;
        ncclBroadcast = "ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, NcclComm, CUstream) -> c_int;
    }
}

pub type CusolverHandle = *mut c_void;
pub type CusolverParams = *mut c_void;

table! {
    /// What finds eigenvectors of many matrices at once. Handle, parameters, what is wanted, which triangle, n, type and matrices, their pitch, type and
    /// eigenvalues, type of arithmetic, memory on the device and on the host, ..., how many.
    CusolverApi {
        cusolverGetVersion = "cusolverGetVersion" (*mut c_int) -> c_int;
        cusolverDnCreate = "cusolverDnCreate" (*mut CusolverHandle) -> c_int;
        cusolverDnCreateParams = "cusolverDnCreateParams" (*mut CusolverParams) -> c_int;
        cusolverDnSetStream = "cusolverDnSetStream" (CusolverHandle, CUstream) -> c_int;
        cusolverDnXsyevBatched_bufferSize = "cusolverDnXsyevBatched_bufferSize" (CusolverHandle, CusolverParams, c_int, c_int, i64, c_int, *const c_void, i64, c_int, *const c_void, c_int, *mut usize, *mut usize, i64) -> c_int;
        cusolverDnXsyevBatched = "cusolverDnXsyevBatched" (CusolverHandle, CusolverParams, c_int, c_int, i64, c_int, *mut c_void, i64, c_int, *mut c_void, c_int, *mut c_void, usize, *mut c_void, usize, *mut c_int, i64) -> c_int;
    }
}

pub type CuFileHandle = *mut c_void;

table! {
    /// What reads files straight into device memory.
    CuFileApi {
        cuFileDriverOpen = "cuFileDriverOpen" () -> CuFileError;
        cuFileHandleRegister = "cuFileHandleRegister" (*mut CuFileHandle, *mut CuFileDescr) -> CuFileError;
        cuFileHandleDeregister = "cuFileHandleDeregister" (CuFileHandle) -> ();
        cuFileRead = "cuFileRead" (CuFileHandle, *mut c_void, usize, i64, i64) -> isize;
    }
}
