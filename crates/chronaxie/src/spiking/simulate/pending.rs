//! What is under way of synapses that are drawn again: the row of a spike is drawn when the spike is heard of, once for each shard,
//! which keeps what goes to its own cells by the step in which it arrives.
//!
//! Work of a spike with a thousand synapses, in each shard, by reading: a thousand draws of Philox, sixteen at a time in vectors of 512
//! bits (60 instructions a round of them: 4000), a comparison each, and for those that are kept two searches in tables, four bytes
//! written, and read once more. Measured in the README.

use super::Spike;
use crate::spiking::connect::rows::Word;
use crate::spiking::connect::{Part, Redraw, drawn};
use crate::spiking::plan::Plan;

/// Synapses of a step that are listed before they are summed, however few slots there are.
const LISTED: usize = 1024;

/// What arrives in a step: a list, and, where that became longer than there are slots, sums.
struct Arrivals<W> {
    /// As rows have them: slot and weight.
    list: Vec<W>,
    sums: Vec<i32>,
}

impl<W> Default for Arrivals<W> {
    fn default() -> Self {
        Self { list: Vec::new(), sums: Vec::new() }
    }
}

impl<W: Word> Arrivals<W> {
    fn push(&mut self, synapse: W, slots: usize) {
        if self.list.len() >= slots.max(LISTED) {
            self.sums.resize(slots, 0);
            add(&self.list, &mut self.sums);
            self.list.clear();
        }
        self.list.push(synapse);
    }
}

fn add<W: Word>(list: &[W], sums: &mut [i32]) {
    for &synapse in list {
        let sum = &mut sums[usize::from(synapse.slot())];
        *sum = sum.wrapping_add(synapse.weight());
    }
}

/// Synapses under way onto the cells of a shard.
pub(super) struct Pending {
    slots: usize,
    /// Of each population, the projections whose sources it has, with the port of negative weights.
    projections: Vec<Vec<(usize, u32)>>,
    calendar: Calendar,
}

/// `[step % len]`, a power of two; of four or of eight bytes a synapse.
enum Calendar {
    Short(Vec<Arrivals<u32>>),
    Long(Vec<Arrivals<u64>>),
}

fn empty<W>(ring: usize) -> Vec<Arrivals<W>> {
    (0..ring).map(|_| Arrivals::default()).collect()
}

impl Pending {
    /// Nothing, in a calendar of `ring` steps; `None` where no synapse is drawn again.
    pub fn new(plan: &Plan, redraw: Redraw, slots: usize, ring: usize) -> Option<Self> {
        let mut projections = vec![Vec::new(); plan.models.len()];
        for (i, p) in plan.network.projections.iter().enumerate().filter(|(i, _)| plan.draws(*i, redraw)) {
            projections[p.source].push((i, plan.port(p.target, true) as u32));
        }
        let any = projections.iter().any(|own| !own.is_empty());
        let long = plan.has_long(|i| plan.draws(i, redraw));
        let calendar = if long { Calendar::Long(empty(ring)) } else { Calendar::Short(empty(ring)) };
        any.then_some(Self { slots, projections, calendar })
    }

    /// Draws the row of a spike, of which what arrives before `now` has arrived; how many synapses are to come.
    pub fn schedule(&mut self, plan: &Plan, parts: &[Part], spike: Spike, now: u64) -> u64 {
        let (slots, projections) = (self.slots, &self.projections);
        match &mut self.calendar {
            Calendar::Short(calendar) => schedule(calendar, slots, projections, plan, parts, spike, now),
            Calendar::Long(calendar) => schedule(calendar, slots, projections, plan, parts, spike, now),
        }
    }

    /// Adds what arrives in `step`.
    pub fn deliver(&mut self, step: u64, sums: &mut [i32]) {
        match &mut self.calendar {
            Calendar::Short(calendar) => deliver(calendar, step, sums),
            Calendar::Long(calendar) => deliver(calendar, step, sums),
        }
    }

    /// Forgets what is under way.
    pub fn clear(&mut self) {
        match &mut self.calendar {
            Calendar::Short(calendar) => calendar.iter_mut().for_each(|due| *due = Arrivals::default()),
            Calendar::Long(calendar) => calendar.iter_mut().for_each(|due| *due = Arrivals::default()),
        }
    }
}

fn schedule<W: Word>(
    calendar: &mut [Arrivals<W>],
    slots: usize,
    projections: &[Vec<(usize, u32)>],
    plan: &Plan,
    parts: &[Part],
    spike: Spike,
    now: u64,
) -> u64 {
    let population = plan.first.partition_point(|first| *first <= u64::from(spike.cell)) - 1;
    let source = spike.cell - plan.first[population] as u32;
    let mask = calendar.len() as u64 - 1;
    let mut events = 0;
    for &(projection, port) in &projections[population] {
        let part = &parts[plan.network.projections[projection].target];
        drawn::row(plan, projection, source, part.cells(), &mut |target, code, delay| {
            let when = spike.step + u64::from(delay);
            if when >= now {
                let slot = drawn::slot_of(part, port, target, code);
                calendar[(when & mask) as usize].push(W::pack(slot, code), slots);
                events += 1;
            }
        });
    }
    events
}

fn deliver<W: Word>(calendar: &mut [Arrivals<W>], step: u64, sums: &mut [i32]) {
    let at = (step & (calendar.len() as u64 - 1)) as usize;
    let due = &mut calendar[at];
    add(&due.list, sums);
    due.list.clear();
    for (sum, more) in sums.iter_mut().zip(std::mem::take(&mut due.sums)) {
        *sum = sum.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the list becomes, the sums are those of all that was put there.
    #[test]
    fn a_long_list_becomes_sums() {
        let (mut due, mut want) = (Arrivals::<u32>::default(), vec![0i32; 3]);
        for k in 0..5000u32 {
            let (slot, code) = (k % 3, k as i32 % 700 - 300);
            due.push(u32::pack(slot, code), 3);
            want[slot as usize] += code;
            assert!(due.list.len() <= LISTED);
        }
        assert!(due.sums.iter().any(|x| *x != 0));
        let mut pending = Pending { slots: 3, projections: Vec::new(), calendar: Calendar::Short(vec![due]) };
        let mut sums = vec![0; 3];
        pending.deliver(0, &mut sums);
        assert_eq!(sums, want);
        pending.deliver(1, &mut sums);
        assert_eq!(sums, want, "delivered twice");
    }
}
