//! How large a network will be, and whether there is memory for it on the host.

use super::Plan;
use crate::spiking::connect::Redraw;
use crate::spiking::network::Rule;
use crate::{Error, ErrorKind, Result};

impl Plan {
    /// About how many synapses there will be.
    pub fn expected_synapses(&self) -> f64 {
        (0..self.network.projections.len()).map(|i| self.expected(i)).sum()
    }

    /// About how many synapses a projection will have.
    pub fn expected(&self, projection: usize) -> f64 {
        let p = &self.network.projections[projection];
        let size = |i: usize| f64::from(self.network.populations[i].size);
        let (s, t) = (size(p.source), size(p.target));
        match &p.rule {
            Rule::AllToAll => s * t,
            Rule::OneToOne => s,
            Rule::Probability(x) => x * s * t,
            Rule::InDegree { count, .. } => f64::from(*count) * t,
            Rule::OutDegree { count, .. } => f64::from(*count) * s,
            Rule::Total { count, .. } => *count as f64,
            // An upper bound, which places would have to be counted to better.
            Rule::Distance { peak, .. } => peak * s * t,
            Rule::Edges(edges) => edges.len() as f64,
        }
    }

    /// Bytes of it on the host: four a synapse that is kept, or eight where weights are long, and their place while rows are sorted; the
    /// heads of rows; 64 bytes a cell;
    /// and what is under way of synapses that are drawn again.
    pub(crate) fn bytes(&self, share: f64, redraw: Redraw) -> u64 {
        let kept = if self.has_long(|i| self.keeps(i, redraw)) { 12.0 } else { 6.0 };
        let synapses = |i: usize| {
            self.expected(i) * if self.changes(i) { 12.0 } else { f64::from(u8::from(self.keeps(i, redraw))) * kept }
        };
        let synapses: f64 = (0..self.network.projections.len()).map(synapses).sum();
        ((synapses + self.under_way(redraw)) * share + 64.0 * self.cells() as f64) as u64
    }

    /// Which synapses are drawn again on the host by what has this share of the cells and of their synapses. Refuses what needs more
    /// memory than is free, where the system says how much that is.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn redraw_on_host(&self, share: f64) -> Result<Redraw> {
        let free = crate::memory::free();
        let redraw = self.choose_redraw(|redraw| free.is_none_or(|free| self.bytes(share, redraw) <= free));
        self.require_memory(share, redraw)?;
        Ok(redraw)
    }

    /// Refuses what needs more memory than is free, where the system says how much that is.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn require_memory(&self, share: f64, redraw: Redraw) -> Result<()> {
        let asked = self.bytes(share, redraw);
        let Some(free) = crate::memory::free().filter(|free| asked > *free) else { return Ok(()) };
        let (cells, synapses) = (self.cells(), self.expected_synapses());
        let [needs, has] = [asked, free].map(|bytes| bytes as f64 / 1e9);
        let what = format!(
            "the network of {cells} cells and {synapses:.3e} synapses needs {needs:.1} GB, but {has:.1} GB are free; --scale makes \
             it smaller{}",
            self.procedural_hint(redraw)
        );
        Err(Error::new(ErrorKind::OutOfMemory { asked, free }, what))
    }
}
