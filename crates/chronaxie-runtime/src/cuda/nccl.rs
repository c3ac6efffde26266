//! NCCL, which carries bytes between GPUs of several processes and machines: opened at run time, used through our own table.
//!
//! NVLink multicast is never used: `NCCL_NVLS_ENABLE=0` is set before the library is opened.

use super::device::CudaDevice;
use super::driver::loader_reason;
use super::stream::StreamRef;
use super::sys::{NcclApi, NcclComm};
use super::{lock, search};
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of an [`NcclId`].
pub const NCCL_ID_BYTES: usize = 128;
/// How long the end of a communicator is waited for.
const ENDING: Duration = Duration::from_secs(5);
/// `ncclUint8`, and results of calls.
const BYTE: c_int = 1;
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// What the ranks of a communicator know it by; one of them makes it and tells the others.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NcclId(pub [u8; NCCL_ID_BYTES]);

impl std::fmt::Debug for NcclId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclId({:02x}{:02x}..)", self.0[8], self.0[9])
    }
}

/// The loaded NCCL, which is never unloaded.
pub struct Nccl {
    api: NcclApi,
    version: u32,
    path: PathBuf,
}

static OPENED: Mutex<Option<Arc<Nccl>>> = Mutex::new(None);

impl Nccl {
    /// The NCCL of this machine. It is looked for where NVRTC is: `CHRONAXIE_NCCL` (a file or a folder), wheels (of NVIDIA, which PyTorch
    /// brings along), the system's folders, the loader's path.
    ///
    /// # Errors
    /// `Unavailable` that says where it was looked for and how to install it.
    pub fn get() -> Result<Arc<Self>> {
        let mut opened = lock(&OPENED);
        if let Some(nccl) = &*opened {
            return Ok(nccl.clone());
        }
        let nccl = Arc::new(Self::load(search::nccl()?)?);
        crate::log::debug(format_args!("opened NCCL {} at {}", nccl.version_text(), nccl.path.display()));
        *opened = Some(nccl.clone());
        Ok(nccl)
    }

    fn load(path: PathBuf) -> Result<Self> {
        let refused = |why: &dyn std::fmt::Display| {
            Error::unavailable(format!(
                "{} cannot be used as NCCL: {why}; install it with `{}`",
                path.display(),
                search::INSTALL_NCCL
            ))
        };
        // SAFETY: the environment is changed once, before NCCL reads it; the standard library's own readers take its lock.
        unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
        let library = super::nvrtc::open_local(&path).map_err(|e| refused(&loader_reason(&e)))?;
        let api = NcclApi::load(&library).map_err(|s| refused(&format_args!("it has no symbol `{s}`")))?;
        // Resident for ever: it has threads of its own.
        std::mem::forget::<Library>(library);
        let mut version = 0;
        // SAFETY: the argument is a live integer.
        let result = unsafe { (api.ncclGetVersion)(&raw mut version) };
        if result != SUCCESS {
            return Err(refused(&format_args!("it answers with error {result}")));
        }
        Ok(Self { api, version: version.max(0) as u32, path })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, as 2.28.9.
    pub fn version_text(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// What a new communicator is to be known by.
    ///
    /// # Errors
    /// What NCCL refuses, such as where there is no network interface.
    pub fn new_id(&self) -> Result<NcclId> {
        let mut id = NcclId([0; NCCL_ID_BYTES]);
        // SAFETY: the argument is a live struct of the size that the call fills.
        self.check(unsafe { (self.api.ncclGetUniqueId)(&raw mut id) }, "ncclGetUniqueId", std::ptr::null_mut())?;
        Ok(id)
    }

    fn check(&self, result: c_int, call: &str, comm: NcclComm) -> Result<()> {
        if result == SUCCESS || result == IN_PROGRESS {
            return Ok(());
        }
        let text = |p: *const std::ffi::c_char| {
            // SAFETY: NCCL gives null or a terminated string that lives as long as the library.
            if p.is_null() { String::new() } else { unsafe { CStr::from_ptr(p) }.to_string_lossy().trim().to_owned() }
        };
        // SAFETY: any number is allowed; the communicator is null or live.
        let (what, more) =
            unsafe { (text((self.api.ncclGetErrorString)(result)), text((self.api.ncclGetLastError)(comm))) };
        let more = if more.is_empty() { more } else { format!(" ({more})") };
        Err(Error::lost(format!("{call} of NCCL {} failed: {what}{more}", self.version_text())))
    }
}

/// A communicator: rank `rank` of `ranks`, on a device. Every rank puts the same calls on its stream in the same order.
pub struct Communicator {
    nccl: Arc<Nccl>,
    device: Arc<CudaDevice>,
    comm: usize,
    rank: usize,
    ranks: usize,
    ended: bool,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} of {} on {})", self.rank, self.ranks, self.device.name())
    }
}

impl Communicator {
    /// Meets the other ranks, for which it waits so long.
    ///
    /// # Errors
    /// `Lost`, where they do not come or NCCL refuses, as where two ranks have one device.
    pub fn new(device: &Arc<CudaDevice>, id: NcclId, rank: usize, ranks: usize, patience: Duration) -> Result<Self> {
        let nccl = Nccl::get()?;
        let (send, made) = channel();
        let (on, library) = (device.clone(), nccl.clone());
        // NCCL waits without a bound; a thread that waits in vain is left behind.
        let work = move || {
            let make = || -> Result<usize> {
                let _guard = on.guard()?;
                let mut comm: NcclComm = std::ptr::null_mut();
                // SAFETY: the device is current on this thread, and the argument a live pointer.
                let result =
                    unsafe { (library.api.ncclCommInitRank)(&raw mut comm, ranks as c_int, id, rank as c_int) };
                library.check(result, "ncclCommInitRank", std::ptr::null_mut())?;
                Ok(comm as usize)
            };
            drop(send.send(make()));
        };
        std::thread::Builder::new()
            .name("chronaxie-nccl".into())
            .spawn(work)
            .map_err(|e| Error::lost(format!("a thread for NCCL cannot be made: {e}")))?;
        let comm = made.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Timeout => Error::lost(format!(
                "rank {rank} of {ranks} has waited {:.0} s for the others to join NCCL",
                patience.as_secs_f64()
            )),
            RecvTimeoutError::Disconnected => Error::lost(format!("rank {rank} of {ranks} could not join NCCL")),
        })??;
        Ok(Self { nccl, device: device.clone(), comm, rank, ranks, ended: false })
    }

    fn handle(&self) -> NcclComm {
        self.comm as NcclComm
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Puts on the stream that `bytes` bytes from `send` of each rank come to `receive` of all, one rank's after the other; `send` may be
    /// where they come to.
    ///
    /// # Errors
    /// What NCCL refuses.
    ///
    /// # Safety
    /// `send` has so many bytes and `receive` so many for each rank, on this device, until the stream has passed the call.
    pub unsafe fn all_gather(&self, send: u64, receive: u64, bytes: usize, stream: StreamRef) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: the caller's; the communicator is live.
        let result = unsafe {
            (self.nccl.api.ncclAllGather)(
                send as *const _,
                receive as *mut _,
                bytes,
                BYTE,
                self.handle(),
                stream.raw() as *mut _,
            )
        };
        self.nccl.check(result, "ncclAllGather", self.handle())
    }

    /// Puts on the stream that `bytes` bytes at `buffer` become those of rank `root`.
    ///
    /// # Errors
    /// What NCCL refuses.
    ///
    /// # Safety
    /// `buffer` has so many bytes on this device until the stream has passed the call.
    pub unsafe fn broadcast(&self, buffer: u64, bytes: usize, root: usize, stream: StreamRef) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: the caller's; the communicator is live.
        let result = unsafe {
            (self.nccl.api.ncclBroadcast)(
                buffer as *const _,
                buffer as *mut _,
                bytes,
                BYTE,
                root as c_int,
                self.handle(),
                stream.raw() as *mut _,
            )
        };
        self.nccl.check(result, "ncclBroadcast", self.handle())
    }

    /// Whether anything has failed on its own since, such as the connection to another rank.
    ///
    /// # Errors
    /// `Lost`, where it has.
    pub fn failed(&self) -> Result<()> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is live, and the argument a live integer.
        let result = unsafe { (self.nccl.api.ncclCommGetAsyncError)(self.handle(), &raw mut state) };
        self.nccl.check(result, "ncclCommGetAsyncError", self.handle())?;
        self.nccl.check(state, "a call", self.handle())
    }

    /// Ends what waits for other ranks; nothing can be called afterwards.
    pub fn abort(&mut self) {
        self.end(true);
    }

    /// NCCL waits, without a bound, until other ranks of this machine have ended theirs; a thread that waits in vain is left behind.
    fn end(&mut self, abort: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let (nccl, device, comm) = (self.nccl.clone(), self.device.clone(), self.comm);
        let (send, done) = channel();
        let work = move || {
            let _guard = device.guard();
            let end = if abort { nccl.api.ncclCommAbort } else { nccl.api.ncclCommDestroy };
            // SAFETY: the communicator is live, and nobody uses it afterwards.
            let _ = send.send(unsafe { end(comm as NcclComm) });
        };
        if std::thread::Builder::new().name("chronaxie-nccl".into()).spawn(work).is_ok() {
            let _ = done.recv_timeout(ENDING);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end(false);
    }
}
