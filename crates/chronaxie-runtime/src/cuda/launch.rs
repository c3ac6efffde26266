//! Launches: the only path that a step of a model takes. Nothing here allocates, hashes or waits.

use super::bundle;
use super::driver::cu;
use super::module::Kernel;
use super::stream::StreamRef;
use super::sys::{CUfunction, LaunchAttribute, LaunchConfigRaw, code, launch as id};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{View, ViewMut};
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The most arguments that a launch can carry.
pub const MAX_ARGS: usize = 96;

/// One argument of a launch, by value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg<'a> {
    /// A pointer, or an unsigned 64-bit integer.
    U64(u64),
    /// A signed 64-bit integer.
    I64(i64),
    /// An unsigned 32-bit integer.
    U32(u32),
    /// A signed 32-bit integer.
    I32(i32),
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// A struct by value, as it lies in memory: a tensor map, packed parameters.
    Bytes(&'a [u8]),
}

macro_rules! arg_from {
    ($($t:ty => $v:ident),*) => { $(impl From<$t> for Arg<'_> { fn from(v: $t) -> Self { Self::$v(v) } })* };
}
arg_from!(u64 => U64, i64 => I64, u32 => U32, i32 => I32, f32 => F32, f64 => F64);

impl From<&View<'_>> for Arg<'_> {
    /// The tensor's address.
    fn from(view: &View<'_>) -> Self {
        Self::U64(view.address())
    }
}
impl From<&ViewMut<'_>> for Arg<'_> {
    /// The tensor's address.
    fn from(view: &ViewMut<'_>) -> Self {
        Self::U64(view.address())
    }
}

impl Arg<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::U64(_) | Self::I64(_) | Self::F64(_) => 8,
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::Bytes(b) => b.len(),
        }
    }
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::U64(v) => (&raw const *v).cast_mut().cast(),
            Self::I64(v) => (&raw const *v).cast_mut().cast(),
            Self::U32(v) => (&raw const *v).cast_mut().cast(),
            Self::I32(v) => (&raw const *v).cast_mut().cast(),
            Self::F32(v) => (&raw const *v).cast_mut().cast(),
            Self::F64(v) => (&raw const *v).cast_mut().cast(),
            Self::Bytes(b) => b.as_ptr().cast_mut().cast(),
        }
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: (u32, u32, u32),
    /// Threads a block in x, y, z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster in x, y, z (sm_90 and newer); the grid is a multiple of it.
    pub cluster: Option<(u32, u32, u32)>,
    /// Whether all blocks must run at once, so that a grid-wide barrier is safe.
    pub cooperative: bool,
    /// Whether the kernel may start before the one ahead of it on the stream has ended (programmatic dependent launch,
    /// sm_90 and newer); it must then wait by itself (`griddepcontrol.wait`).
    pub programmatic: bool,
}

impl Default for LaunchConfig {
    fn default() -> Self {
        Self::new((1, 1, 1), (1, 1, 1))
    }
}

impl LaunchConfig {
    /// A plain launch without dynamic shared memory.
    pub const fn new(grid: (u32, u32, u32), block: (u32, u32, u32)) -> Self {
        Self { grid, block, shared_bytes: 0, cluster: None, cooperative: false, programmatic: false }
    }
    /// Enough blocks of `block` threads for one thread an element, at least one block and at most 2^31 - 1.
    pub fn linear(elements: usize, block: u32) -> Self {
        let blocks = elements.div_ceil(block.max(1) as usize).clamp(1, i32::MAX as usize);
        Self::new((blocks as u32, 1, 1), (block, 1, 1))
    }
    /// The same with `bytes` of dynamic shared memory a block.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// The attributes of the launch; gives how many there are.
    pub(super) fn attributes(&self, list: &mut [LaunchAttribute; 3]) -> u32 {
        let mut count = 0;
        let mut push = |id, a, b, c| {
            list[count].id = id;
            list[count].value[..3].copy_from_slice(&[a, b, c]);
            count += 1;
        };
        if self.cooperative {
            push(id::COOPERATIVE, 1, 0, 0);
        }
        if let Some((x, y, z)) = self.cluster {
            push(id::CLUSTER_DIMENSION, x, y, z);
        }
        if self.programmatic {
            push(id::PROGRAMMATIC_STREAM_SERIALIZATION, 1, 0, 0);
        }
        count as u32
    }

    fn raw(&self, stream: StreamRef, list: &mut [LaunchAttribute; 3]) -> LaunchConfigRaw {
        let num_attributes = self.attributes(list);
        LaunchConfigRaw {
            grid: [self.grid.0, self.grid.1, self.grid.2],
            block: [self.block.0, self.block.1, self.block.2],
            shared_bytes: self.shared_bytes,
            stream: stream.handle(),
            attributes: list.as_mut_ptr(),
            num_attributes,
        }
    }
}

pub(super) const NO_ATTRIBUTE: LaunchAttribute = LaunchAttribute { id: 0, pad: 0, value: [0; 16] };

/// Whether `CHRONAXIE_SYNC=1` asks to wait after each launch.
pub(super) fn synchronous() -> bool {
    static SYNC: OnceLock<bool> = OnceLock::new();
    *SYNC.get_or_init(|| std::env::var_os("CHRONAXIE_SYNC").is_some_and(|v| v == "1"))
}

impl Kernel {
    /// Puts one launch on `stream`. With `CHRONAXIE_SYNC=1` it waits for the kernel and reports its failure by name.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for arguments, a block or shared memory that do not fit the kernel; [`ErrorKind::Cuda`] for
    /// what the driver refuses, and for the failure of an earlier kernel.
    ///
    /// # Safety
    /// `stream` must be a stream of the kernel's device. Every pointer among `args` must be valid there for what the
    /// kernel does with it until the launch has run, the arguments must have the types that the kernel declares, and
    /// what it writes must be used by nobody else meanwhile.
    pub unsafe fn launch(&self, stream: impl Into<StreamRef>, config: &LaunchConfig, args: &[Arg<'_>]) -> Result<()> {
        let k = &*self.0;
        let stream = stream.into();
        if args.len() != k.parameters.len() || args.len() > MAX_ARGS {
            return Err(self.wrong_count(args.len()));
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (i, arg) in args.iter().enumerate() {
            if arg.bytes() != k.parameters[i] as usize {
                return Err(self.wrong_size(i, arg));
            }
            pointers[i] = arg.pointer();
        }
        self.check(config)?;
        // SAFETY: there are as many pointers as the kernel has parameters, each to a value of the parameter's size that
        // lives through the call; the caller vouches for what they point to.
        unsafe {
            if bundle::keep(self, stream, config, &pointers[..args.len()])? {
                return Ok(());
            }
            self.launch_at(stream, config, &mut pointers)
        }
    }

    /// Puts a launch that was checked on its stream.
    ///
    /// # Safety
    /// As [`Kernel::launch`], whose arguments' addresses these are.
    pub(super) unsafe fn launch_at(
        &self,
        stream: StreamRef,
        config: &LaunchConfig,
        pointers: &mut [*mut c_void; MAX_ARGS],
    ) -> Result<()> {
        let k = &*self.0;
        let mut list = [NO_ATTRIBUTE; 3];
        let raw = config.raw(stream, &mut list);
        let _guard = k.device.guard_unchecked()?;
        // SAFETY: the function is live, and the caller vouches for the arguments.
        let result = unsafe {
            (k.device.driver.api.cuLaunchKernelEx)(
                &raw const raw,
                k.handle as CUfunction,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if result != code::SUCCESS {
            return Err(self.refused(result, config));
        }
        if synchronous() { self.wait(stream) } else { Ok(()) }
    }

    #[inline]
    fn check(&self, c: &LaunchConfig) -> Result<()> {
        let k = &*self.0;
        let threads = u64::from(c.block.0) * u64::from(c.block.1) * u64::from(c.block.2);
        if threads == 0 || threads > u64::from(k.max_threads) || c.grid.0 == 0 || c.grid.1 == 0 || c.grid.2 == 0 {
            return Err(Error::value(format!(
                "{}: a grid of {:?} blocks of {:?} threads cannot be launched: a block has 1 to {} threads ({} registers \
                 each), and a grid at least one block",
                k.label,
                c.grid,
                c.block,
                k.max_threads,
                self.registers()
            )));
        }
        if c.shared_bytes > k.max_dynamic.load(Ordering::Relaxed) {
            return Err(Error::value(format!(
                "{}: {} bytes of dynamic shared memory were asked for and {} are allowed: call set_max_dynamic_shared first",
                k.label,
                c.shared_bytes,
                k.max_dynamic.load(Ordering::Relaxed)
            )));
        }
        Ok(())
    }

    #[cold]
    fn wrong_count(&self, given: usize) -> Error {
        Error::value(format!(
            "{} takes {} arguments and {given} were given (at most {MAX_ARGS})",
            self.name(),
            self.parameters()
        ))
    }

    #[cold]
    fn wrong_size(&self, i: usize, arg: &Arg<'_>) -> Error {
        Error::value(format!(
            "{}: argument {i} is {arg:?} of {} bytes, and the kernel's parameter has {}",
            self.name(),
            arg.bytes(),
            self.0.parameters[i]
        ))
    }

    #[cold]
    fn refused(&self, result: u32, config: &LaunchConfig) -> Error {
        let hint = match result {
            code::COOPERATIVE_LAUNCH_TOO_LARGE => "; not all blocks of a cooperative launch fit the device at once",
            _ => "",
        };
        match self.device().driver.check(result, "cuLaunchKernelEx") {
            Err(e) => Error::new(e.kind().clone(), format!("{}: {e}{hint} ({config:?})", self.name())),
            Ok(()) => Error::new(ErrorKind::Cuda, format!("{}: refused without a reason", self.name())),
        }
    }

    #[cold]
    fn wait(&self, stream: StreamRef) -> Result<()> {
        if stream.is_capturing(self.device())? {
            return Ok(());
        }
        stream.synchronize(self.device()).map_err(|e| e.context(self.name()))
    }

    /// Clusters of `config` that the device holds at once; `config.cluster` must be set.
    ///
    /// # Errors
    /// Where the device has no clusters or the configuration does not fit.
    pub fn max_active_clusters(&self, config: &LaunchConfig) -> Result<u32> {
        let Some(cluster) = config.cluster else {
            return Err(Error::value(format!("{}: a launch without clusters was asked how many fit", self.name())));
        };
        let mut config = *config;
        // The question is about one cluster, whatever the grid.
        config.grid = cluster;
        let mut list = [NO_ATTRIBUTE; 3];
        let raw = config.raw(StreamRef::LEGACY, &mut list);
        let device = self.device();
        let _guard = device.guard()?;
        let mut clusters = 0;
        // SAFETY: the function is live, and configuration and result live through the call.
        unsafe {
            cu!(
                device.driver,
                cuOccupancyMaxActiveClusters(&raw mut clusters, self.0.handle as CUfunction, &raw const raw)
            )
        }
        .map_err(|e| e.context(self.name()))?;
        Ok(u32::try_from(clusters).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_point_at_their_own_bytes() {
        let block = [1u8, 2, 3];
        let args = [Arg::from(7u64), Arg::from(-1i32), Arg::from(2.5f32), Arg::Bytes(&block)];
        assert_eq!(args.map(|a| a.bytes()), [8, 4, 4, 3]);
        // SAFETY: the pointers are to live values of these types.
        unsafe {
            assert_eq!(*args[0].pointer().cast::<u64>(), 7);
            assert_eq!(*args[1].pointer().cast::<i32>(), -1);
            assert_eq!(*args[2].pointer().cast::<f32>(), 2.5);
            assert_eq!(*args[3].pointer().cast::<[u8; 3]>(), block);
        }
    }

    #[test]
    fn configurations_become_attributes() {
        let mut list = [NO_ATTRIBUTE; 3];
        assert_eq!(LaunchConfig::default().attributes(&mut list), 0);
        let all =
            LaunchConfig { cluster: Some((2, 1, 1)), cooperative: true, programmatic: true, ..LaunchConfig::default() };
        assert_eq!(all.attributes(&mut list), 3);
        assert_eq!(list.map(|a| a.id), [2, 4, 6]);
        assert_eq!(list[1].value[..3], [2, 1, 1]);
        assert_eq!(LaunchConfig::linear(0, 128).grid, (1, 1, 1));
        assert_eq!(LaunchConfig::linear(129, 128).grid, (2, 1, 1));
    }
}
