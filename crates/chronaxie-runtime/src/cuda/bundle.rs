//! Launches of a call that is made again and again, put on its stream as one graph.
//!
//! A launch takes the host 2.4 to 3.4 us (H200), a graph of twelve kernels with new arguments not much more than one. So
//! the launches of a call are kept back while it goes its way, laid beside those of the last, and what differs in its arguments is
//! set in the graph, which then goes to the stream at once: the same kernels in the same order, so the same bits.

use super::device::CudaDevice;
use super::driver::cu;
use super::launch::{LaunchConfig, MAX_ARGS, NO_ATTRIBUTE, synchronous};
use super::module::Kernel;
use super::stream::StreamRef;
use super::sys::{CUfunction, CUgraph, CUgraphExec, CUgraphNode, KernelNode, LaunchAttribute};
use crate::error::Result;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock};

/// Calls that go to the stream launch by launch before a graph is made, which takes about as long as thirty launches.
const BEFORE: u32 = 2;
/// Where calls differ so that a graph was made this often in vain, none is made again.
const MOST_GRAPHS: u32 = 8;
/// So many calls on another stream in turn, and the graph is that one's.
const MOVES: u32 = 16;
/// Arguments start at multiples of this, as the strictest of them may want.
const ALIGN: usize = 16;

/// What is remembered of the calls of one pass of a plan.
#[derive(Default)]
pub struct Bundle(Mutex<State>);

#[derive(Default)]
struct State {
    /// Calls since a graph was last given up.
    seen: u32,
    made: u32,
    elsewhere: u32,
    never: bool,
    nodes: Vec<Node>,
    graph: Option<Made>,
}

/// A launch, with its arguments behind each other.
struct Node {
    kernel: Kernel,
    config: LaunchConfig,
    values: Vec<u8>,
    handle: usize,
}

/// A graph, ready for a stream.
struct Made {
    device: Arc<CudaDevice>,
    stream: StreamRef,
    graph: usize,
    exec: usize,
}

impl Drop for Made {
    fn drop(&mut self) {
        if let (Ok(_guard), Ok(_outside)) = (self.device.guard(), self.device.outside_capture()) {
            let api = &self.device.driver.api;
            // SAFETY: both are live and not used afterwards; the driver defers the end of what is in flight.
            unsafe {
                (api.cuGraphExecDestroy)(self.exec as CUgraphExec);
                (api.cuGraphDestroy)(self.graph as CUgraph);
            }
        }
    }
}

/// A call under way on this thread.
struct Call<'a> {
    state: &'a mut State,
    device: &'a CudaDevice,
    stream: StreamRef,
    /// Launches so far.
    count: usize,
    /// Whether they are kept back.
    kept: bool,
    /// Whether there was anything that no graph of kernels can hold.
    other: bool,
}

thread_local! {
    static CALL: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

/// Takes the call out of the thread, also when its work panics.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        CALL.set(null_mut());
    }
}

/// Whether `CHRONAXIE_GRAPHS=0` asks for launches one by one.
fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| !synchronous() && std::env::var_os("CHRONAXIE_GRAPHS").is_none_or(|v| v != "0"))
}

/// A launch on this thread: whether it was kept back for its call.
///
/// # Safety
/// As [`Kernel::launch`], whose arguments' addresses these are, checked against the kernel.
#[inline]
pub(super) unsafe fn keep(
    kernel: &Kernel,
    stream: StreamRef,
    config: &LaunchConfig,
    args: &[*mut c_void],
) -> Result<bool> {
    let call = CALL.get();
    if call.is_null() {
        return Ok(false);
    }
    // SAFETY: `Bundle::run` put it there, which waits on this thread, and no other reference to it is alive: what is called
    // from here does not come back here.
    let call = unsafe { &mut *call.cast::<Call<'_>>() };
    // SAFETY: as the caller's.
    unsafe { call.launch(kernel, stream, config, args) }
}

/// Something else than a launch is about to go to a stream, or to be waited for.
#[inline]
pub(super) fn other() -> Result<()> {
    let call = CALL.get();
    if call.is_null() {
        return Ok(());
    }
    // SAFETY: as in `keep`.
    let call = unsafe { &mut *call.cast::<Call<'_>>() };
    call.other = true;
    call.release()
}

impl Bundle {
    /// Does `work`, whose launches on `stream` of `device` go there one by one, or where earlier calls were alike at
    /// its end as one graph. While the stream is captured, and with `CHRONAXIE_SYNC=1` or `CHRONAXIE_GRAPHS=0`, nothing is kept back.
    ///
    /// # Errors
    /// What `work` returned, and what the driver says of the graph.
    pub fn run(&self, device: &Arc<CudaDevice>, stream: StreamRef, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let (true, true, Ok(mut state)) = (wanted(), CALL.get().is_null(), self.0.try_lock()) else {
            return work();
        };
        if state.never {
            return work();
        }
        let _guard = device.guard_unchecked()?;
        if stream.is_capturing_unguarded(device)? {
            return work();
        }
        let state = &mut *state;
        let mine = match &state.graph {
            Some(made) if made.stream != stream => {
                state.elsewhere += 1;
                if state.elsewhere <= MOVES {
                    return work();
                }
                state.give_up();
                false
            }
            graph => graph.is_some(),
        };
        state.elsewhere = 0;
        let kept = mine || state.seen >= BEFORE;
        let mut call = Call { state, device, stream, count: 0, kept, other: false };
        CALL.set((&raw mut call).cast());
        let ends = Ends;
        let done = work();
        drop(ends);
        call.end(device, done)
    }

    /// Whether calls go to their stream as a graph now.
    pub fn is_graph(&self) -> bool {
        super::lock(&self.0).graph.is_some()
    }
}

impl State {
    fn give_up(&mut self) {
        self.graph = None;
        self.nodes.clear();
        self.seen = 0;
    }
}

impl Call<'_> {
    /// # Safety
    /// As [`keep`].
    unsafe fn launch(
        &mut self,
        kernel: &Kernel,
        stream: StreamRef,
        config: &LaunchConfig,
        args: &[*mut c_void],
    ) -> Result<bool> {
        if stream != self.stream || !std::ptr::eq(&raw const *kernel.0.device, self.device) || config.programmatic {
            self.other = true;
            self.release()?;
        }
        let at = self.count;
        self.count += 1;
        if !self.kept {
            return Ok(false);
        }
        if self.state.graph.is_none() {
            // SAFETY: as the caller's.
            self.state.nodes.push(unsafe { Node::of(kernel, config, args) });
            return Ok(true);
        }
        let alike = self.state.nodes.get_mut(at).filter(|n| Arc::ptr_eq(&n.kernel.0, &kernel.0) && n.config == *config);
        let (Some(node), Some(made)) = (alike, &self.state.graph) else {
            self.count = at;
            self.release()?;
            self.count = at + 1;
            return Ok(false);
        };
        // SAFETY: as the caller's.
        if unsafe { node.set(args) } && node.renew(made, args).is_err() {
            // Whatever the driver had against it, it can say so of a launch.
            self.release()?;
        }
        Ok(true)
    }

    /// Sends what was kept back, and keeps nothing more.
    fn release(&mut self) -> Result<()> {
        if !self.kept {
            return Ok(());
        }
        self.kept = false;
        for node in self.state.nodes.iter_mut().take(self.count) {
            node.launch(self.stream)?;
        }
        Ok(())
    }

    fn end(mut self, device: &Arc<CudaDevice>, done: Result<()>) -> Result<()> {
        self.state.seen = self.state.seen.saturating_add(1);
        if done.is_err() || !self.kept {
            if self.kept || self.state.graph.is_some() || !self.state.nodes.is_empty() {
                self.state.give_up();
            }
            // One launch is no less as a graph.
            self.state.never |= done.is_ok() && (self.other || self.count < 2 || self.state.made >= MOST_GRAPHS);
            return done;
        }
        if self.state.graph.is_none() && self.count > 1 {
            self.state.made += 1;
            let made = Made::of(device, self.stream, &mut self.state.nodes);
            self.state.never = made.is_err();
            self.state.graph = made.ok();
        }
        if self.count == self.state.nodes.len()
            && let Some(made) = &self.state.graph
        {
            if made.launch().is_ok() {
                return Ok(());
            }
            self.state.never = true;
        }
        // Whatever the driver has against the graph, it can say so of a launch.
        let sent = self.release();
        self.state.give_up();
        sent
    }
}

/// Where each argument lies, and behind the last the end.
fn offsets(kernel: &Kernel) -> impl Iterator<Item = (usize, usize)> {
    let mut end = 0usize;
    kernel.0.parameters.iter().map(move |&bytes| {
        let at = end.next_multiple_of(ALIGN);
        end = at + bytes as usize;
        (at, bytes as usize)
    })
}

impl Node {
    /// # Safety
    /// `args` must be the addresses of the kernel's arguments.
    unsafe fn of(kernel: &Kernel, config: &LaunchConfig, args: &[*mut c_void]) -> Self {
        let bytes = offsets(kernel).last().map_or(0, |(at, bytes)| at + bytes);
        let mut node = Self { kernel: kernel.clone(), config: *config, values: vec![0; bytes], handle: 0 };
        // SAFETY: as the caller's.
        unsafe { node.set(args) };
        node
    }

    /// Takes the arguments over; gives whether one has changed.
    ///
    /// # Safety
    /// `args` must be the addresses of the kernel's arguments.
    unsafe fn set(&mut self, args: &[*mut c_void]) -> bool {
        let mut changed = false;
        let values = &mut self.values[..];
        for ((at, bytes), arg) in offsets(&self.kernel).zip(args) {
            // SAFETY: a value of this size, which the caller holds.
            let value = unsafe { std::slice::from_raw_parts(arg.cast::<u8>().cast_const(), bytes) };
            let kept = &mut values[at..at + bytes];
            // Most are pointers and integers, of which a comparison of any length takes several times as long.
            let same = match (<[u8; 8]>::try_from(&*kept), <[u8; 8]>::try_from(value)) {
                (Ok(a), Ok(b)) => u64::from_ne_bytes(a) == u64::from_ne_bytes(b),
                _ => kept == value,
            };
            if !same {
                kept.copy_from_slice(value);
                changed = true;
            }
        }
        changed
    }

    /// The addresses of the arguments that are kept.
    fn pointers(&mut self) -> [*mut c_void; MAX_ARGS] {
        let mut pointers = [null_mut(); MAX_ARGS];
        let base = self.values.as_mut_ptr();
        for ((at, _), p) in offsets(&self.kernel).zip(&mut pointers) {
            *p = base.wrapping_add(at).cast();
        }
        pointers
    }

    fn params(&self, args: *mut *mut c_void) -> KernelNode {
        let c = &self.config;
        KernelNode {
            function: self.kernel.0.handle as CUfunction,
            grid: [c.grid.0, c.grid.1, c.grid.2],
            block: [c.block.0, c.block.1, c.block.2],
            shared_bytes: c.shared_bytes,
            params: args,
            extra: null_mut(),
            kernel: null_mut(),
            context: null_mut(),
        }
    }

    /// Sets the arguments in the graph.
    fn renew(&self, made: &Made, args: &[*mut c_void]) -> Result<()> {
        let params = self.params(args.as_ptr().cast_mut());
        let driver = made.device.driver;
        let (exec, node) = (made.exec as CUgraphExec, self.handle as CUgraphNode);
        // SAFETY: the graph and its node are live, and the driver copies what the parameters point to.
        unsafe { cu!(driver, cuGraphExecKernelNodeSetParams(exec, node, &raw const params)) }
    }

    fn launch(&mut self, stream: StreamRef) -> Result<()> {
        let mut args = self.pointers();
        // SAFETY: the arguments are those of a launch that was kept back, whose caller vouched for them until it has run.
        unsafe { self.kernel.launch_at(stream, &self.config, &mut args) }
    }

    /// Adds it to a graph behind `last`.
    ///
    /// # Safety
    /// `graph` must be a live graph, and `last` its node or null.
    unsafe fn add(&mut self, device: &CudaDevice, graph: CUgraph, last: CUgraphNode) -> Result<CUgraphNode> {
        let mut args = self.pointers();
        let params = self.params(args.as_mut_ptr());
        let mut node: CUgraphNode = null_mut();
        let mut attributes: [LaunchAttribute; 3] = [NO_ATTRIBUTE; 3];
        let count = self.config.attributes(&mut attributes) as usize;
        // SAFETY: everything that is pointed to lives through the calls.
        unsafe {
            let (before, many) = if last.is_null() { (null(), 0) } else { (&raw const last, 1) };
            cu!(device.driver, cuGraphAddKernelNode(&raw mut node, graph, before, many, &raw const params))?;
            for a in &attributes[..count] {
                cu!(device.driver, cuGraphKernelNodeSetAttribute(node, a.id, a.value.as_ptr()))?;
            }
        }
        self.handle = node as usize;
        Ok(node)
    }
}

impl Made {
    fn of(device: &Arc<CudaDevice>, stream: StreamRef, nodes: &mut [Node]) -> Result<Self> {
        let (mut graph, mut exec): (CUgraph, CUgraphExec) = (null_mut(), null_mut());
        let driver = device.driver;
        // Another thread may capture in the global mode, and what is made here may take memory.
        let _outside = device.outside_capture()?;
        // SAFETY: the arguments are live, and the flags must be 0.
        unsafe { cu!(driver, cuGraphCreate(&raw mut graph, 0)) }?;
        let mut last: CUgraphNode = null_mut();
        let built = nodes.iter_mut().try_for_each(|node| {
            // SAFETY: the graph was made above, and the node is its last.
            last = unsafe { node.add(device, graph, last) }?;
            Ok(())
        });
        // SAFETY: a live graph; on an error nobody else has it.
        let built = built
            .and_then(|()| unsafe { cu!(driver, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)) })
            .inspect_err(|_| unsafe {
                (driver.api.cuGraphDestroy)(graph);
            });
        built.map(|()| Self { device: device.clone(), stream, graph: graph as usize, exec: exec as usize })
    }

    fn launch(&self) -> Result<()> {
        // SAFETY: the executable graph is live; who made the launches vouched for the memory that they use.
        unsafe { cu!(self.device.driver, cuGraphLaunch(self.exec as CUgraphExec, self.stream.handle())) }
    }
}
