//! What `profile` prints of a plan: its kernels, how often and in which shape a pass launches them.

use super::backward::SHARERS;
use super::held::HeldKernel;
use super::launch::CudaPlan;
use super::tune::{self, THREADS};
use crate::Result;
use crate::layers::ltc::spec::{Kept, Mapping};
use crate::op::{LaunchReport, Pass};

impl CudaPlan {
    /// The sensory sums of the forward pass, where the recurrent synapses are folded beside them.
    fn sensory_reports(&self, chunks: usize, rows: usize, fold: (u32, u32, u32)) -> Result<Vec<LaunchReport>> {
        let (f, flat) = (&self.forward, (THREADS, 1, 1));
        if let Some(k) = &self.sensory {
            return Ok(vec![k.report_sensory(chunks, rows, self.p.inputs, self.device.props())?]);
        }
        let groups = (THREADS / self.config.sensory_lanes) as usize;
        let sums = (rows.div_ceil(4) as u32, self.p.hidden.div_ceil(groups) as u32, 1);
        Ok(vec![
            LaunchReport::new(&f.fold, 1, fold, flat, 0)?,
            LaunchReport::new(&f.inputs, chunks, (rows.div_ceil(8) as u32, 1, 1), flat, 0)?,
            LaunchReport::new(&f.sensory, chunks, sums, flat, 0)?,
        ])
    }

    /// The kernels of a pass in the order of their first launch.
    pub(super) fn reports(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let (p, c) = (&self.p, &self.config);
        let (t, h, d) = (p.steps.max(1), p.hidden, p.inputs);
        let (s, ss) = (p.connectivity.recurrent.len(), p.connectivity.sensory.len());
        let chunk = if pass == Pass::Backward { c.backward_chunk } else { c.forward_chunk };
        let (chunks, rows) = (t.div_ceil(chunk), p.batch * chunk);
        let grid = |x: usize, y: usize| (x as u32, y as u32, 1);
        let flat = (THREADS, 1, 1);
        let groups = |lanes: u32| (THREADS / lanes) as usize;
        let f = &self.forward;
        let fold = grid((d.max(h) + h).div_ceil(8), 1);
        let sides = usize::from(s > 0) + usize::from(ss > 0);
        let backward = pass == Pass::Backward;
        if let (Some(r), Some(_), false) = (&self.recurrence, &self.whole_inputs, backward) {
            return Ok(vec![r.report(1)?]);
        }
        if let (Some(r), false) = (&self.recurrence, backward) {
            let slots = (r.folded() + self.sensory.as_ref().map_or(0, HeldKernel::folded)) / 4;
            let mut list = vec![LaunchReport::new(&self.fold, 1, grid(slots.div_ceil(256), 1), flat, 0)?];
            list.extend(self.sensory_reports(chunks, rows, fold)?);
            list.push(r.report(chunks)?);
            return Ok(list);
        }
        if let (Some(k), false) = (&self.levels_row, backward) {
            let slots = k.sides(|_| 0).iter().map(|side| side.1.1).sum::<usize>();
            let slots = slots + self.sensory.as_ref().map_or(0, |k| k.folded() / 4);
            let mut list = vec![LaunchReport::new(&self.fold, 1, grid(slots.div_ceil(256), 1), flat, 0)?];
            list.extend(self.sensory_reports(chunks, rows, fold)?);
            list.push(k.report(chunks)?);
            return Ok(list);
        }
        if let (Some(k), false) = (&self.levels, backward) {
            let own = super::levels::folded(Some(k), None, self.levels_regions.as_ref(), |_| 0);
            let slots = own.iter().map(|side| side.1.1).sum::<usize>();
            let slots = slots + self.sensory.as_ref().map_or(0, |k| k.folded() / 4);
            let mut list = vec![LaunchReport::new(&self.fold, 1, grid(slots.div_ceil(256), 1), flat, 0)?];
            list.extend(self.sensory_reports(chunks, rows, fold)?);
            list.extend(k.reports(chunks, p, rows * p.unfolds, false)?);
            return Ok(list);
        }
        let held = self.held_backward.as_ref().filter(|_| backward);
        if let Some((held, whole)) = held.and_then(|h| Some((h, h.whole.as_ref()?))) {
            let mut list = vec![held.adjoint.report(1)?];
            match &self.samples {
                Some(k) => list.extend(k.report(p, held)?),
                None => list.push(whole.report(p)?),
            }
            return Ok(list);
        }
        if let (Some(k), false) = (&self.grid, backward) {
            let slots = k.folded() / 4 + self.sensory.as_ref().map_or(0, |k| k.folded() / 4);
            let mut list = vec![LaunchReport::new(&self.fold, 1, grid(slots.div_ceil(256), 1), flat, 0)?];
            list.extend(self.sensory_reports(chunks, rows, fold)?);
            list.push(k.report(chunks)?);
            return Ok(list);
        }
        // What belongs to the inputs: once a chunk, or once.
        let all = self.traces.as_ref().is_some_and(|t| backward && t.together);
        let (of_inputs, input_rows) = if all { (1, p.batch * t) } else { (chunks, rows) };
        // Where unfolds were kept no sums over the inputs are made.
        let kept = backward && p.kept() != Kept::States;
        let of_sums = if kept { 0 } else { of_inputs };
        let mut list = vec![
            LaunchReport::new(&f.fold, sides, fold, flat, 0)?,
            LaunchReport::new(&self.fold, 1, grid(h.div_ceil(256), 1), flat, 0)?,
            LaunchReport::new(&f.inputs, of_inputs, grid(input_rows.div_ceil(8), 1), flat, 0)?,
            LaunchReport::new(
                &self.forward.sensory,
                if kept { 0 } else { chunks },
                grid(rows.div_ceil(4), h.div_ceil(groups(c.sensory_lanes))),
                flat,
                0,
            )?,
        ];
        let (row, block) = (grid(p.batch, 1), (c.threads, 1, 1));
        let (Pass::Backward, Some(k)) = (pass, &self.backward) else {
            if let Some(mixed) = &self.mixed {
                list.extend(mixed.report(false, chunks, chunk)?);
            }
            list.push(LaunchReport::new(&f.forward, chunks, row, block, c.forward_shared)?);
            return Ok(list);
        };
        let sum = |n: usize, blocks: usize| grid(blocks, n.div_ceil(tune::slice(n, blocks)));
        let (n, tall) = (rows * p.unfolds, (32, 8, 1));
        let direct = self.traces.as_ref().is_some_and(|t| t.direct);
        let outputs = p.output_mapping != Mapping::None;
        if p.kept() == Kept::Words && c.adjoint.is_none_or(|h| !h.words) {
            list.push(LaunchReport::new(&k.unpack, chunks, grid((rows * h).div_ceil(THREADS as usize), 1), flat, 0)?);
        }
        if let Some(held) = &self.held_backward {
            let kernels = [&held.rebuild, &self.sensory, &held.sums, &held.sensory].map(Option::as_ref);
            let kernels = kernels.into_iter().chain([Some(&held.adjoint)]);
            let regions = self.traces.as_ref().and_then(|t| t.levels.as_ref());
            let levels = super::levels::folded(None, held.levels.as_ref(), regions, |_| 0);
            let sides = kernels.clone().flatten().count() + levels.len();
            let slots = kernels.flatten().map(|k| k.folded() / 4).chain(levels.iter().map(|l| l.1.1)).sum::<usize>();
            let folds = sides.div_ceil(super::held::SIDES);
            list[1] = LaunchReport::new(&self.fold, folds, grid((slots + h).div_ceil(256), 1), flat, 0)?;
            if let Some(k) = &self.sensory {
                list[3] = k.report_sensory(of_sums, input_rows, d, self.device.props())?;
                if direct {
                    list.remove(2);
                }
                list.remove(0);
            }
            if let Some(k) = &held.rebuild {
                list.push(k.report(chunks)?);
            }
            match &held.levels {
                Some(levels) => list.extend(levels.reports(&held.adjoint, chunks, p, n)?),
                None => list.push(held.adjoint.report(chunks)?),
            }
            if let Some(k) = &held.sums {
                list.push(k.report(chunks)?);
            }
            if let Some(k) = &held.sensory {
                list.push(k.report(of_inputs)?);
            } else {
                list.push(LaunchReport::new(&k.gate_sums, chunks, sum(rows, ss.div_ceil(256)), flat, 0)?);
            }
            let added = if held.sensory.is_some() { (of_inputs, d) } else { (2 * chunks, ss) };
            let added = if direct { (usize::from(outputs), p.outputs) } else { added };
            if added.0 > 0 {
                list.push(LaunchReport::new(&k.add_slices, added.0, grid(added.1.div_ceil(256), 1), flat, 0)?);
            }
            if held.sums.is_none() && held.sensory.is_none() {
                list.push(LaunchReport::new(&held.add_neurons, 1, grid(h.div_ceil(256), 1), flat, 0)?);
            }
        } else {
            match &self.grid_backward {
                Some(divided) => {
                    if let Some(k) = &divided.rebuild {
                        list.push(k.report(chunks)?);
                    }
                    list.push(divided.adjoint.report(chunks)?);
                }
                None => list.push(LaunchReport::new(&k.adjoint, chunks, row, block, c.adjoint_shared)?),
            }
            let divided = self.grid_backward.as_ref().and_then(|g| g.sums.as_ref());
            if let Some(k) = divided {
                list.push(k.report(chunks, n)?);
            }
            let sums = (sides - usize::from(divided.is_some())) * chunks;
            list.push(LaunchReport::new(&k.gate_sums, sums, sum(n, s.div_ceil(256)), flat, 0)?);
            list.push(LaunchReport::new(&k.neuron_sums, chunks, sum(n, h.div_ceil(32)), tall, 0)?);
            list.push(LaunchReport::new(&k.add_slices, (sides + 2) * chunks, grid(s.div_ceil(256), 1), flat, 0)?);
        }
        if p.elapsed && self.held_backward.is_none() {
            list.push(LaunchReport::new(&k.elapsed, chunks, grid(rows, 1), flat, 0)?);
        }
        if self.held_backward.as_ref().is_none_or(|h| h.sensory.is_none()) {
            let inputs = grid(rows.div_ceil(4), d.div_ceil(groups(c.sensory_lanes)));
            list.push(LaunchReport::new(&k.input_gradient, chunks, inputs, flat, 0)?);
        }
        if !direct {
            list.push(LaunchReport::new(&k.inputs_backward, of_inputs, grid(input_rows.div_ceil(8), 1), flat, 0)?);
            list.push(LaunchReport::new(&k.input_sums, of_inputs, sum(input_rows, d.div_ceil(32)), tall, 0)?);
        }
        if let Some(mixed) = &self.mixed {
            list.extend(mixed.report(true, chunks, chunk)?);
        }
        if outputs {
            list.push(LaunchReport::new(&k.output_sums, 1, sum(p.batch * t, p.outputs.div_ceil(32)), tall, 0)?);
        }
        // Held synapses are closed with the neurons and the columns.
        let closed =
            [(self.held_backward.is_some(), s), (self.held_backward.as_ref().is_some_and(|h| h.sensory.is_some()), ss)];
        for (_, synapses) in closed.into_iter().filter(|&(held, n)| !held && n > 0) {
            list.push(LaunchReport::new(&k.close_synapses, 1, grid(synapses.div_ceil(256), 1), flat, 0)?);
        }
        let closing = closed.iter().filter(|&&(held, _)| held).map(|&(_, n)| n).sum::<usize>() + h + d;
        let levels = self.held_backward.as_ref().and_then(|h| h.levels.as_ref());
        let to_sinks =
            levels.is_some_and(|l| l.to_sinks.is_some()) && self.grads.as_ref().is_some_and(|g| g.w.is_some());
        let early = self.traces.as_ref().is_some_and(|t| t.closes_early);
        let closes = 1 + usize::from(early) + usize::from(to_sinks);
        match (&self.samples, &self.held_backward) {
            (Some(k), Some(held)) => list.extend(k.report(p, held)?),
            _ => list.push(LaunchReport::new(
                &k.close,
                closes,
                grid((closing * SHARERS as usize).div_ceil(256), 1),
                flat,
                0,
            )?),
        }
        list.retain(|r| r.launches > 0);
        Ok(list)
    }
}
