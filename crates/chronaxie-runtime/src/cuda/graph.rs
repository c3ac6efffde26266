//! CUDA graphs: launches recorded once and replayed with one call.

use super::device::CudaDevice;
use super::driver::cu;
use super::launch::synchronous;
use super::stream::{Stream, StreamRef};
use super::sys::{CAPTURE_MODE_THREAD_LOCAL, CUgraph, CUgraphExec};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Launches recorded on a stream, ready to be replayed.
pub struct Graph {
    device: Arc<CudaDevice>,
    exec: usize,
    nodes: usize,
}

impl Graph {
    /// Records what `work` puts on `stream`, which is not run now.
    ///
    /// The capture is ended on every path: also when `work` returns an error or panics. Only this thread's launches
    /// are watched, so other threads may allocate and synchronise meanwhile.
    ///
    /// # Errors
    /// What `work` returned, or what the driver says of it: a capture cannot contain allocations, synchronisation, or
    /// work on streams that do not join `stream` again.
    ///
    /// # Safety
    /// All memory whose addresses the recorded launches carry must stay allocated until the last replay has run.
    pub unsafe fn capture(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let device = stream.device();
        let _guard = device.guard()?;
        let driver = device.driver;
        // SAFETY: the stream is a live one of this device.
        unsafe { cu!(driver, cuStreamBeginCapture(stream.as_ref().handle(), CAPTURE_MODE_THREAD_LOCAL)) }?;
        let mut capture = Capture { stream, open: true };
        let done = work();
        let graph = capture.end();
        done?;
        let graph = graph.map_err(|e| e.context("the captured work cannot be made a graph"))?;
        if graph.is_null() {
            return Err(Error::new(ErrorKind::Cuda, "the captured work cannot be made a graph: it was invalidated"));
        }
        let (mut nodes, mut exec): (usize, CUgraphExec) = (0, std::ptr::null_mut());
        // SAFETY: the graph is live; a null list asks for the number of nodes; the graph is not used after its end.
        let made = unsafe {
            let made = cu!(driver, cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes))
                .and_then(|()| cu!(driver, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)));
            (driver.api.cuGraphDestroy)(graph);
            made
        };
        made?;
        Ok(Self { device: device.clone(), exec: exec as usize, nodes })
    }

    /// How many launches, copies and fills it holds.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Replays it on `stream`. Replays of one graph run one after the other. `CHRONAXIE_SYNC=1` waits for its end.
    pub fn launch(&self, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        super::bundle::other()?;
        let _guard = self.device.guard_unchecked()?;
        // SAFETY: the executable graph is live; who captured it vouched for the memory that it uses.
        let launched = unsafe { cu!(self.device.driver, cuGraphLaunch(self.exec as CUgraphExec, stream.handle())) };
        let done = launched.and_then(|()| if synchronous() { stream.synchronize(&self.device) } else { Ok(()) });
        done.map_err(|e| e.context(format_args!("replay of a graph of {} nodes", self.nodes)))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_guard) = self.device.guard() {
            // SAFETY: the executable graph is live and not used afterwards; the driver defers the end of one in flight.
            unsafe { (self.device.driver.api.cuGraphExecDestroy)(self.exec as CUgraphExec) };
        }
    }
}

/// A capture under way; ends itself when the captured work panics.
struct Capture<'a> {
    stream: &'a Stream,
    open: bool,
}

impl Capture<'_> {
    fn end(&mut self) -> Result<CUgraph> {
        self.open = false;
        let mut graph: CUgraph = std::ptr::null_mut();
        let driver = self.stream.device().driver;
        // SAFETY: this capture was begun on this stream; the argument is a live pointer.
        unsafe { cu!(driver, cuStreamEndCapture(self.stream.as_ref().handle(), &raw mut graph)) }?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open
            && let Ok(graph) = self.end()
            && !graph.is_null()
        {
            // SAFETY: nobody else has the graph.
            unsafe { (self.stream.device().driver.api.cuGraphDestroy)(graph) };
        }
    }
}
