//! How often what fires must be heard of: the shortest delays inside a part, and from other parts into it.

use crate::spiking::connect::{Redraw, Shard};
use crate::spiking::partition::Layout;
use crate::spiking::plan::{MOST_APART, Plan};

/// Steps between two times at which what fired is heard of, at most.
///
/// Both are shortest delays of the synapses that there are, not of the rules that made them: a cut through a network whose delays follow
/// from distances may be bridged by long ones alone, or by few synapses of which none has the shortest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every {
    /// By the threads of a part, of its own cells.
    pub inside: u64,
    /// By a part, of the cells of all others; no less.
    pub across: u64,
}

impl Every {
    /// Of the cells of `shards`, which are all that there are, or those of a part of a layout.
    pub(in crate::spiking::simulate) fn of<'s>(
        plan: &Plan,
        shards: impl Iterator<Item = &'s Shard>,
        redraw: Redraw,
        part: Option<(&Layout, usize)>,
    ) -> Self {
        let n = &plan.network;
        let mut own = vec![part.is_none(); plan.cells() as usize];
        if let Some((layout, part)) = part {
            layout.numbers(plan, part).for_each(|cell| own[cell as usize] = true);
        }
        // From own cells, and from others.
        let mut least = [MOST_APART; 2];
        let mut note = |foreign: bool, steps: u64| {
            let least = &mut least[usize::from(foreign)];
            *least = (*least).min(steps);
        };
        for shard in shards {
            for (cell, own) in own.iter().enumerate() {
                // Groups stand by rising delay.
                shard.rows.own_groups(cell).first().into_iter().for_each(|g| note(!own, g.delay.into()));
                let changing = shard.changing.as_ref().and_then(|c| c.groups(cell as u32).next());
                changing.into_iter().for_each(|(g, _)| note(!own, g.delay.into()));
            }
        }
        // Whether a population has cells here, and elsewhere.
        let lies = |population: usize| {
            let size = n.populations[population].size as usize;
            let here = part.map_or(size, |(layout, part)| layout.own(part, population).len());
            [here > 0, here < size]
        };
        for (i, p) in n.projections.iter().enumerate().filter(|(i, _)| plan.draws(*i, redraw)) {
            let Some(delay) = plan.efficacies.get(i).and_then(|e| e.delay.as_ref()) else { continue };
            for (foreign, some) in lies(p.source).into_iter().enumerate() {
                if some && lies(p.target)[0] {
                    note(foreign == 1, delay.least().max(1) as u64);
                }
            }
        }
        // A modulator must be known before it gets to synapses, and is taken up when all are heard of.
        for m in plan.learning.iter().flat_map(|l| &l.modulators) {
            [false, true].into_iter().for_each(|foreign| note(foreign, m.delay.into()));
        }
        let across = if part.is_some() { least[1] } else { least[0] };
        Self { inside: least[0].min(across), across }
    }
}
