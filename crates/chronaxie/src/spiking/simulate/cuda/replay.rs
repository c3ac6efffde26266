//! Steps as launches of their own, of a graph, and the least that a step can take: what the resident kernel is measured beside.

use super::CudaEngine;
use super::learning::none;
use super::unit::Given;
use crate::Result;

impl CudaEngine<'_> {
    /// The least that a step can take, us: the exchange of spikes between all blocks (two trips to the second cache, 0.7 us; between cards 2 us), and the bytes of
    /// rows at the memory's bandwidth.
    pub(super) fn floor(&self) -> Option<f64> {
        let events = self.events as f64 / self.run.max(1) as f64 / self.config.here as f64;
        let bytes = events * self.config.synapse() as f64;
        let exchange = match (self.config.here, self.config.meeting()) {
            (1, 1) => 0.0,
            (1, _) => 0.7,
            _ => 2.0,
        };
        let rate = self.units.first()?.memory.device.props().memory_bytes_per_s.max(1) as f64;
        Some(exchange + bytes / rate * 1e6)
    }

    /// As [`Engine::replay`](super::Engine::replay).
    pub(super) fn replayed(&mut self, steps: u64) -> Result<Option<f64>> {
        self.may_reach(self.step.saturating_add(steps))?;
        // Of several cards each launch waits for the others'; what a rule leaves behind is looked at between launches.
        if self.cards().count() != 1 || self.resident.is_some() || self.config.is_apart() {
            return Ok(None);
        }
        let mails: Vec<[u64; 2]> = self.units[0].mails().collect();
        let (from, capacity, launches) = (self.step, self.capacity, self.launches);
        let given = Given { from, steps, capacity, launches, timed: false, learn: &none(), mails: &mails };
        self.unheard = true;
        let ran = self.units[0].replay(&self.config, &given);
        match &ran {
            Ok(_) => (self.step, self.run) = (from + steps, self.run + steps),
            Err(why) => self.failed = Some(why.to_string()),
        }
        self.launches += steps as usize;
        ran.map(Some)
    }
}
