//! Passes of a network as work that can be captured in a graph and timed.
#![allow(unsafe_code)]

use super::bank::{Banks, Call};
use crate::Result;
use crate::bench::Work;
use crate::cuda::StreamRef;

/// Some passes, one after the other, on the memory of their network.
pub(super) struct Calls<'a> {
    pub(super) calls: &'a [&'a Call],
    pub(super) banks: &'a mut Banks,
}

// SAFETY: a call takes views of the blocks alone, and these are borrowed as long as this lives.
unsafe impl Work for Calls<'_> {
    fn run(&mut self, stream: StreamRef) -> Result<()> {
        let own = std::mem::replace(&mut self.banks.stream, stream);
        let done = self.calls.iter().try_for_each(|call| call.run(self.banks, 0));
        self.banks.stream = own;
        done
    }
}
