//! cuSOLVER, whose batched eigensolver serves where it is the faster one: opened at run time, used through our own table.

use super::device::CudaDevice;
use super::driver::loader_reason;
use super::stream::StreamRef;
use super::sys::{CusolverApi, CusolverHandle, CusolverParams};
use super::{lock, search};
use crate::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// `CUSOLVER_EIG_MODE_VECTOR`, `CUBLAS_FILL_MODE_LOWER`, `CUDA_R_64F`, and results of calls.
const VECTORS: c_int = 1;
const LOWER: c_int = 0;
const F64: c_int = 1;
const SUCCESS: c_int = 0;

/// The loaded cuSOLVER, which is never unloaded, and how it is called in messages. It is looked for where NVRTC is:
/// `CHRONAXIE_CUSOLVER` (a file or a folder; `0` for none), wheels (of NVIDIA, which PyTorch brings along), the system's folders, the
/// loader's path.
fn api() -> Result<(&'static CusolverApi, &'static str)> {
    static OPENED: OnceLock<Result<(CusolverApi, String), String>> = OnceLock::new();
    let open = || search::cusolver().and_then(load).map_err(|e| e.to_string());
    match OPENED.get_or_init(open) {
        Ok((api, name)) => Ok((api, name)),
        Err(why) => Err(Error::unavailable(why.clone())),
    }
}

fn load(path: PathBuf) -> Result<(CusolverApi, String)> {
    let refused = |why: &dyn std::fmt::Display| {
        Error::unavailable(format!("{} cannot be used as cuSOLVER: {why}", path.display()))
    };
    let library = super::nvrtc::open_local(&path).map_err(|e| refused(&loader_reason(&e)))?;
    let api = CusolverApi::load(&library)
        .map_err(|s| refused(&format_args!("it has no symbol `{s}`, which CUDA 12.6.2 and newer have")))?;
    // Resident for ever: it has state of its own on devices.
    std::mem::forget::<Library>(library);
    let mut version = 0;
    // SAFETY: the argument is a live integer.
    let result = unsafe { (api.cusolverGetVersion)(&raw mut version) };
    if result != SUCCESS {
        return Err(refused(&format_args!("it answers with status {result}")));
    }
    let name = format!("cuSOLVER {}.{}.{}", version / 1000, version / 100 % 10, version % 100);
    let name = format!("{name} at {}", path.display());
    crate::log::debug(format_args!("opened {name}"));
    Ok((api, name))
}

/// cuSOLVER on a device.
pub struct Cusolver {
    api: &'static CusolverApi,
    name: &'static str,
    device: Arc<CudaDevice>,
    /// The handle and its parameters, as addresses: one call at a time.
    state: Mutex<(usize, usize)>,
}

impl std::fmt::Debug for Cusolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cusolver({} on {})", self.name, self.device.name())
    }
}

impl Cusolver {
    /// That of `device`, which lives as long as the process.
    ///
    /// # Errors
    /// `Unavailable` that says where it was looked for, or what it answers.
    pub fn of(device: &Arc<CudaDevice>) -> Result<Arc<Self>> {
        static ALL: Mutex<Vec<(usize, Arc<Cusolver>)>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        if let Some((_, found)) = all.iter().find(|(index, _)| *index == device.index()) {
            return Ok(found.clone());
        }
        let made = Arc::new(Self::new(device)?);
        all.push((device.index(), made.clone()));
        Ok(made)
    }

    fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        let (api, name) = api()?;
        let _guard = device.guard()?;
        let (mut handle, mut params): (CusolverHandle, CusolverParams) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the device is current, and the arguments are live pointers.
        let result = unsafe {
            match (api.cusolverDnCreate)(&raw mut handle) {
                SUCCESS => (api.cusolverDnCreateParams)(&raw mut params),
                other => other,
            }
        };
        if result != SUCCESS {
            return Err(Error::unavailable(format!("{name} makes no handle on {}: status {result}", device.name())));
        }
        Ok(Self { api, name, device: device.clone(), state: Mutex::new((handle as usize, params as usize)) })
    }

    /// Its version, as 12.0.4.
    pub fn version(&self) -> &str {
        self.name.split(' ').nth(1).unwrap_or_default()
    }

    /// Bytes of the device that [`Cusolver::eigenvectors`] needs beside its arguments.
    ///
    /// # Errors
    /// What cuSOLVER refuses, as too many matrices at once, and where it wants memory of the host.
    pub fn eigenvectors_bytes(&self, count: usize, order: usize) -> Result<usize> {
        let _guard = self.device.guard()?;
        let state = lock(&self.state);
        let (mut on_device, mut on_host) = (0usize, 0usize);
        let none = std::ptr::null::<c_void>();
        // SAFETY: the handle and its parameters are live, the sizes' addresses too; nothing is read of the matrices.
        let result = unsafe {
            (self.api.cusolverDnXsyevBatched_bufferSize)(
                state.0 as CusolverHandle,
                state.1 as CusolverParams,
                VECTORS,
                LOWER,
                order as i64,
                F64,
                none,
                order as i64,
                F64,
                none,
                F64,
                &raw mut on_device,
                &raw mut on_host,
                count as i64,
            )
        };
        self.check(result, "cusolverDnXsyevBatched_bufferSize")?;
        match on_host {
            0 => Ok(on_device),
            // Calls in flight and graphs would hold its address.
            _ => Err(Error::unavailable(format!(
                "cusolverDnXsyevBatched of {} wants {on_host} bytes of the host for {count} matrices of {order} rows, which it is not given",
                self.name
            ))),
        }
    }

    /// Puts on `stream` that `count` symmetric matrices `a [count, order, order]` of f64 become their eigenvectors, row after row, and
    /// `values [count, order]` their eigenvalues, which rise; `info [count]`, i32, is not 0 where it has failed. May wait for the device,
    /// where matrices are large.
    ///
    /// # Errors
    /// What cuSOLVER refuses.
    ///
    /// # Safety
    /// The addresses are of this device, and have what is said; `work` has as many bytes as [`Cusolver::eigenvectors_bytes`] said.
    pub unsafe fn eigenvectors(
        &self,
        stream: StreamRef,
        [count, order]: [usize; 2],
        [a, values, info]: [u64; 3],
        work: (u64, usize),
    ) -> Result<()> {
        let _guard = self.device.guard()?;
        let state = lock(&self.state);
        let (handle, params) = (state.0 as CusolverHandle, state.1 as CusolverParams);
        // SAFETY: the handle and its parameters are live; the addresses are the caller's.
        let result = unsafe {
            match (self.api.cusolverDnSetStream)(handle, stream.raw() as usize as *mut c_void) {
                SUCCESS => (self.api.cusolverDnXsyevBatched)(
                    handle,
                    params,
                    VECTORS,
                    LOWER,
                    order as i64,
                    F64,
                    a as usize as *mut c_void,
                    order as i64,
                    F64,
                    values as usize as *mut c_void,
                    F64,
                    work.0 as usize as *mut c_void,
                    work.1,
                    std::ptr::null_mut(),
                    0,
                    info as usize as *mut c_int,
                    count as i64,
                ),
                other => other,
            }
        };
        self.check(result, "cusolverDnXsyevBatched")
    }

    fn check(&self, result: c_int, call: &str) -> Result<()> {
        if result == SUCCESS {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Cuda, format!("{call} of {} failed: status {result}", self.name)))
    }
}
