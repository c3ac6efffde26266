//! States of the CUDA engine on their way to files and from them.

use super::super::cpu::check_state;
use super::super::snapshot::{self, Captured, Snapshot, Stored};
use super::{CudaEngine, Engine as _, State};
use crate::Result;

impl CudaEngine<'_> {
    /// As [`snapshot`](super::Engine::snapshot).
    pub(super) fn taken(&mut self) -> Result<Box<dyn Snapshot>> {
        self.whole()?;
        if self.config.is_apart() || self.unheard || self.prepared(1)? == 0 {
            return Ok(Box::new(Captured(self.state()?)));
        }
        let rows = self.rows(&self.recent);
        let cells: Vec<_> = self.cards().map(|(_, card)| (&card.cells.states, &card.synapses.ring)).collect();
        let taken = self.resident.as_ref().and_then(|r| r.snapshot(&cells, (&self.recent, &rows), self.step));
        taken.unwrap_or_else(|| Ok(Box::new(Captured(self.state()?))))
    }

    /// As [`resume`](super::Engine::resume).
    pub(super) fn resumed(&mut self, state: State, stored: Option<&Stored>) -> Result<()> {
        check_state(self.plan, &state)?;
        self.present()?;
        let first = self.first_state();
        let resumed = match self.resident.as_mut().filter(|_| !self.config.is_apart()) {
            Some(resident) => resident.resume(&state, stored, &first)?,
            None => false,
        };
        if resumed { self.go_on(&state) } else { snapshot::resume(self, state, stored) }
    }

    /// Refuses to go anywhere where what there was is left to the driver.
    pub(super) fn present(&self) -> Result<()> {
        if self.units.is_empty() { self.whole() } else { Ok(()) }
    }

    /// Where the states of each population begin.
    fn first_state(&self) -> Vec<usize> {
        self.cards().next().map_or_else(Vec::new, |(_, card)| card.cells.first_state.clone())
    }

    /// Makes room for so many snapshots of synapses that change; how many there is room for.
    pub(super) fn prepared(&mut self, snapshots: usize) -> Result<usize> {
        let first = self.first_state();
        let cells =
            self.units.iter().flat_map(|unit| &unit.cards).map(|card| (&card.cells.states, &card.synapses.ring));
        let cells: Vec<_> = cells.collect();
        self.resident.as_mut().map_or(Ok(0), |r| r.prepare(&cells, &first, snapshots))
    }

    /// Goes on from a state, whose synapses that change are where they were.
    pub(super) fn go_on(&mut self, state: &State) -> Result<()> {
        let mut values: Vec<f32> = Vec::new();
        for (p, variables) in state.variables.iter().enumerate() {
            for own in variables {
                match self.layout.order(p) {
                    None => values.extend(own),
                    Some(order) => values.extend(order.cells().iter().map(|cell| own[*cell as usize])),
                }
            }
        }
        let recent = self.rows(&state.recent);
        for unit in &mut self.units {
            // A launch that was lost may have left some of its own.
            unit.clear_mails()?;
            for card in &mut unit.cards {
                unit.memory.write(&mut card.cells.states, &values)?;
                match &self.resident {
                    Some(resident) => resident.restore_ring(card.number, &mut card.synapses.ring, state, &recent)?,
                    None => {
                        card.synapses.restore(&unit.memory, &card.net, self.config.local(), &recent, state.step)?;
                    }
                }
            }
        }
        self.step = state.step;
        self.recent.clone_from(&state.recent);
        (self.failed, self.unheard) = (None, false);
        Ok(())
    }
}
