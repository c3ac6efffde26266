//! The CPU engine of one part of a network.

use super::{Every, Exchange, Keys, PartEngine, refusal};
use crate::spiking::connect::list::Known;
use crate::spiking::connect::shard;
use crate::spiking::partition::Layout;
use crate::spiking::plan::{MOST_APART, Plan};
use crate::spiking::simulate::crew::CELLS_A_THREAD;
use crate::spiking::simulate::lane::Lane;
use crate::spiking::simulate::{CpuEngine, Spike, learned};
use crate::{Error, Result, pool};
use std::sync::{Mutex, PoisonError};

impl<'a> CpuEngine<'a> {
    /// That of the cells of one part of a layout. What fires elsewhere it hears by `exchange`, and then
    /// [`advance`](crate::spiking::simulate::Engine::advance) lists all spikes of the network; without one, by
    /// [`hear`](Self::hear). Its state has its own cells and synapses alone. With an exchange all parts are made at the same time,
    /// since they agree on how often they exchange.
    ///
    /// # Errors
    /// As [`new`](Self::new); of the exchange.
    pub fn of_part(
        plan: &'a Plan,
        layout: &Layout,
        part: usize,
        mut exchange: Option<Box<dyn Exchange + 'a>>,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self> {
        plan.refuse_life("a part of a network")?;
        let cells = layout.cells(part);
        let redraw = plan.redraw_on_host(cells as f64 / plan.cells() as f64)?;
        let most = (cells / CELLS_A_THREAD).clamp(1, 1 << 16) as usize;
        let count = shard::shards_of(plan, layout.slots(plan, part), pool::num_threads().min(most));
        let ring = (u64::from(plan.max_delay) + MOST_APART + 1).next_power_of_two() as usize;
        let cut = |index: usize| layout.shard(plan, part, index, count);
        let shards = shard::build_cut(plan, count, &cut, (redraw, true), &|done| built(done, count))?;
        let mut every = Every::of(plan, shards.iter(), redraw, Some((layout, part)));
        let lanes = shards.into_iter().map(|s| Lane::new(plan, s, redraw, ring)).collect::<Result<_>>()?;
        if let Some(exchange) = &mut exchange {
            every.across = exchange.agree(every.across)?.clamp(1, every.across);
            every.inside = every.inside.min(every.across);
        }
        if let Some(exchange) = &mut exchange {
            exchange.share(&refusal("it runs on the CPU"))?;
        }
        let mut engine = Self::of_lanes(plan, lanes, every);
        engine.exchange = exchange;
        Ok(engine)
    }

    /// Meets others so often, whatever delays there are.
    #[cfg(test)]
    pub(in crate::spiking) fn meet_every(&mut self, steps: u64) {
        self.every.across = steps;
        self.every.inside = self.every.inside.min(steps);
    }
}

impl PartEngine for CpuEngine<'_> {
    fn most_steps(&self) -> u64 {
        self.every.across
    }

    fn heard(&self) -> Result<()> {
        let what = || Error::value(format!("step {}: what fired elsewhere was not heard yet", self.step));
        if self.untold.is_none() { Ok(()) } else { Err(what()) }
    }

    fn fire(&mut self, steps: u64) -> Result<Vec<Spike>> {
        let most = self.most_steps();
        if self.untold.is_some() || self.exchange.is_some() || !(1..=most).contains(&steps) {
            return Err(Error::value(format!(
                "{steps} steps from step {} on: at most {most} at a time, and what fires elsewhere is heard in between",
                self.step
            )));
        }
        learned::steps_left(self.plan, self.step + steps)?;
        let to = self.step + steps;
        let (mut step, mut all, mut last) = (self.step, Vec::new(), Vec::new());
        let inside = self.every.inside;
        let lanes: Vec<Mutex<&mut Lane<'_>>> = self.lanes.iter_mut().map(Mutex::new).collect();
        while step < to {
            let next = (step + inside).min(to);
            let fired = Mutex::new(Vec::new());
            pool::for_each(lanes.len(), |i| {
                let mut lane = lanes[i].lock().unwrap_or_else(PoisonError::into_inner);
                let mut own = Vec::new();
                take_up(&mut lane, &last, step);
                for now in step..next {
                    lane.deliver(now);
                    lane.update(now, &mut own);
                }
                fired.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
            });
            last = fired.into_inner().unwrap_or_else(PoisonError::into_inner);
            last.sort_unstable();
            all.extend_from_slice(&last);
            step = next;
        }
        for lane in lanes {
            take_up(lane.into_inner().unwrap_or_else(PoisonError::into_inner), &last, to);
        }
        self.untold = Some((self.step, all.clone()));
        self.step = to;
        Ok(all)
    }

    fn hear(&mut self, others: &[Spike]) -> Result<()> {
        let Some((since, own)) = &self.untold else {
            return Err(Error::value(format!("at step {} everything was heard already", self.step)));
        };
        let fits = |s: &&Spike| (*since..self.step).contains(&s.step) && u64::from(s.cell) < self.plan.cells();
        if let Some(bad) = others.iter().find(|s| !fits(s)) {
            let what = format!("cell {} cannot have fired in step {} before step {}", bad.cell, bad.step, self.step);
            return Err(Error::value(what));
        }
        let mut others = others.to_vec();
        others.sort_unstable();
        for lane in &mut self.lanes {
            take_up(lane, &others, self.step);
            lane.rest(self.step);
        }
        let mut all = others;
        all.extend_from_slice(own);
        all.sort_unstable();
        self.untold = None;
        self.remember(&all);
        Ok(())
    }

    fn offer(&self) -> Result<Vec<u8>> {
        Ok(refusal("it runs on the CPU"))
    }

    fn connect(&mut self, _: &[Vec<u8>], _: u64) -> Result<()> {
        Err(Error::unavailable("a part on the CPU has no GPU to be joined to those of others"))
    }

    fn keys(&self) -> Result<Keys> {
        Ok(Self::keys(self))
    }

    fn counted(&self) -> Result<Vec<u64>> {
        Ok(Self::counted(self))
    }

    fn known(&self, projection: usize) -> Result<Vec<Known>> {
        Ok(Self::known(self, projection))
    }
}

fn take_up(lane: &mut Lane<'_>, spikes: &[Spike], now: u64) {
    for spike in spikes {
        lane.schedule(*spike, now);
        lane.learn(*spike, now);
    }
}
