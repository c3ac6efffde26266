//! The plan on every device: the plans of the map and of the scan, one stretch of time after the other.
//!
//! A stretch's angles lie in scratch, and backward their gradients beside them. Forward, a stretch begins with the last state
//! of the one before; backward, with the state that the forward pass saved there, and against time the gradient of that
//! state is the gradient of the last state of the stretch before. Gradients of parameters are added up from the last stretch
//! to the first.

#![allow(unsafe_code)]

use super::parts::{Sums, Whole};
use super::spec::{AdaptiveUnitary, NAME};
use crate::cuda::StreamRef;
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Problem, Signature};
use crate::{Device, Dtype, Error, Layout, Place, RegionId, Result};

/// Steps from one saved state to the next.
const CHUNK: usize = super::super::lanes::STEPS;

/// The regions of scratch; what a pass does not need is empty.
struct Regions {
    theta: RegionId,
    grad_theta: RegionId,
    /// u of a stretch, and its gradient by the map.
    u: RegionId,
    grad_u: RegionId,
    /// Two states (or their gradients) between stretches.
    states: [RegionId; 2],
    /// Of a stretch: the gradients of W, bias, B, C, D.
    parameters: [RegionId; 5],
    /// Scratch of the plan that runs.
    inner: RegionId,
}

/// The plans of one stretch.
struct Stretch {
    from: usize,
    to: usize,
    /// Indices of `maps` and of `scans`.
    map: usize,
    scan: usize,
}

/// `adaptive_unitary` on one device.
pub(super) struct UnitaryPlan {
    problem: AdaptiveUnitary,
    place: Place,
    signatures: [Signature; 2],
    maps: Vec<(usize, Box<dyn Plan>)>,
    scans: Vec<((usize, bool), Box<dyn Plan>)>,
    stretches: Vec<Stretch>,
    sums: Sums,
    layouts: [Layout; 2],
    regions: [Regions; 2],
}

/// The place of `key` in a list of plans, which is made where it is missing.
fn find<K: PartialEq>(
    list: &mut Vec<(K, Box<dyn Plan>)>,
    key: K,
    make: impl FnOnce() -> Result<Box<dyn Plan>>,
) -> Result<usize> {
    if let Some(at) = list.iter().position(|(k, _)| *k == key) {
        return Ok(at);
    }
    list.push((key, make()?));
    Ok(list.len() - 1)
}

impl UnitaryPlan {
    pub(super) fn new(problem: AdaptiveUnitary, device: &Device, options: &PlanOptions) -> Result<Self> {
        let p = &problem;
        let of_scan = PlanOptions { variant: None, ..options.clone() };
        let (mut maps, mut scans, mut stretches) = (Vec::new(), Vec::new(), Vec::new());
        for (from, to) in p.stretches() {
            let steps = to - from;
            let h0 = from > 0 || p.has_initial_state();
            let renamed = |e: Error| e.context(NAME);
            // Variants are those of the map.
            let map = find(&mut maps, steps, || p.map(steps)?.plan(device, options).map_err(renamed))?;
            let scan = find(&mut scans, (steps, h0), || p.scan(steps, h0)?.plan(device, &of_scan).map_err(renamed))?;
            stretches.push(Stretch { from, to, map, scan });
        }
        let mut layouts = [Layout::new(options.scratch_gap), Layout::new(options.scratch_gap)];
        let several = stretches.len() > 1;
        let longest = stretches.iter().map(|s| s.to - s.from).max().unwrap_or_default();
        let (rows, states) = (p.batch() * p.channels(), p.channels() * p.states());
        let mut regions = |pass: Pass| {
            let layout = &mut layouts[usize::from(pass == Pass::Backward)];
            let back = pass == Pass::Backward;
            let inner = maps.iter().map(|(_, plan): &(_, Box<dyn Plan>)| plan.scratch(pass).bytes());
            let inner = inner.chain(maps.iter().map(|(_, plan)| plan.scratch(Pass::Forward).bytes()));
            let inner =
                inner.chain(scans.iter().map(|(_, plan): &(_, Box<dyn Plan>)| plan.scratch(pass).bytes())).max();
            let mut push = |name, dtype, wanted: bool, n: usize| layout.push(name, dtype, if wanted { n } else { 0 });
            let parts = back && several;
            Ok::<_, Error>(Regions {
                theta: push("angles", Dtype::F32, true, rows * p.states() * longest)?,
                grad_theta: push("gradients of angles", Dtype::F32, back, rows * p.states() * longest)?,
                u: push("u", Dtype::F32, several, rows * longest)?,
                grad_u: push("grad_u by angles", Dtype::F32, back, rows * longest)?,
                states: [
                    push("a state between stretches", Dtype::C64, several, rows * p.states())?,
                    push("the next one", Dtype::C64, several, rows * p.states())?,
                ],
                parameters: [
                    push("grad_W", Dtype::F32, parts, states * p.channels())?,
                    push("grad_bias", Dtype::F32, parts, states)?,
                    push("grad_B", Dtype::C64, parts, states)?,
                    push("grad_C", Dtype::C64, parts, states)?,
                    push("grad_D", Dtype::F32, parts, p.channels())?,
                ],
                inner: push("inner", Dtype::U8, true, inner.unwrap_or_default())?,
            })
        };
        let regions = [regions(Pass::Forward)?, regions(Pass::Backward)?];
        Ok(Self {
            problem,
            place: device.place(),
            signatures: [p.signature(Pass::Forward)?, p.signature(Pass::Backward)?],
            maps,
            scans,
            stretches,
            sums: Sums::new(device)?,
            layouts,
            regions,
        })
    }

    /// A region of scratch as a tensor.
    fn region(&self, pass: Pass, base: u64, id: RegionId, dtype: Dtype, shape: &[usize]) -> Whole {
        let layout = &self.layouts[usize::from(pass == Pass::Backward)];
        Whole::at(layout.address(base, id), dtype, crate::Shape::new(shape), self.place)
    }

    /// Runs a plan on parts of tensors.
    ///
    /// # Safety
    /// The parts must be those of its signature, lie within tensors that are valid on `stream`, and no output may overlap
    /// anything else.
    unsafe fn run(
        &self,
        plan: &dyn Plan,
        pass: Pass,
        inputs: &[Whole],
        outputs: &[Whole],
        scratch: u64,
        stream: StreamRef,
    ) -> Result<()> {
        let scratch = Whole::at(scratch, Dtype::U8, [plan.scratch(pass).bytes()], self.place);
        // SAFETY: the caller's; the scratch region holds the largest of all plans.
        let (inputs, mut outputs, scratch) = unsafe {
            let inputs: Vec<_> = inputs.iter().map(|w| w.view()).collect();
            (inputs, outputs.iter().map(|w| w.view_mut()).collect::<Vec<_>>(), scratch.view_mut())
        };
        plan.execute(pass, &mut Args { inputs: &inputs, outputs: &mut outputs, scratch, stream })
    }

    /// u of a stretch, contiguous.
    fn u(&self, call: &Call<'_>, s: &Stretch) -> Result<Whole> {
        let part = call.input("u")?.part(2, s.from, s.to);
        if part.is_contiguous() {
            return Ok(part);
        }
        let p = &self.problem;
        let regions = &self.regions[usize::from(call.pass == Pass::Backward)];
        let shape = [p.batch(), p.channels(), s.to - s.from];
        let to = self.region(call.pass, call.scratch, regions.u, Dtype::F32, &shape);
        // SAFETY: a stretch's u has a region of its own.
        unsafe { self.sums.put(&part, &to, false, call.stream)? };
        Ok(to)
    }

    /// Angles of a stretch, as the map writes them and as the scan reads them.
    fn theta(&self, call: &Call<'_>, s: &Stretch, u: &Whole) -> Result<[Whole; 2]> {
        let p = &self.problem;
        let regions = &self.regions[usize::from(call.pass == Pass::Backward)];
        let (steps, d, n) = (s.to - s.from, p.channels(), p.states());
        let to = self.region(call.pass, call.scratch, regions.theta, Dtype::F32, &[p.batch(), d * n, steps, 1]);
        let mut inputs = vec![u.clone().shaped([p.batch(), d, steps, 1]), call.input("W")?.shaped([d * n, d])];
        if p.has_bias() {
            inputs.push(call.input("bias")?.shaped([d * n]));
        }
        let inner = self.layouts[usize::from(call.pass == Pass::Backward)].address(call.scratch, regions.inner);
        // SAFETY: angles have a region of their own; the map's shapes are those of its problem.
        unsafe {
            self.run(&*self.maps[s.map].1, Pass::Forward, &inputs, std::slice::from_ref(&to), inner, call.stream)?
        };
        Ok([to.clone(), to.shaped([p.batch(), d, n, steps])])
    }

    /// What the scan of a stretch reads, but for the angles: parts of what the whole call reads, in the scan's order.
    fn scan_inputs(&self, call: &Call<'_>, s: &Stretch, h0: Option<Whole>) -> Result<Vec<Whole>> {
        let mut all = vec![call.input("u")?.part(2, s.from, s.to), call.input("delta")?.part(2, s.from, s.to)];
        all.extend([call.input("B")?, call.input("C")?]);
        all.extend(call.find_input("D"));
        all.extend(call.find_input("z").map(|z| z.part(2, s.from, s.to)));
        all.extend(h0);
        all.extend(call.find_input("reset").or_else(|| call.find_input("cu_seqlens")));
        Ok(all)
    }

    fn forward(&self, call: &Call<'_>) -> Result<()> {
        let (p, regions) = (&self.problem, &self.regions[0]);
        let shape = [p.batch(), p.channels(), p.states()];
        let mut h0 = call.find_input("h0");
        for (k, s) in self.stretches.iter().enumerate() {
            let u = self.u(call, s)?;
            let [_, theta] = self.theta(call, s, &u)?;
            let inputs: Vec<_> = [theta].into_iter().chain(self.scan_inputs(call, s, h0.take())?).collect();
            let last = if k + 1 == self.stretches.len() {
                call.output("last_state")?
            } else {
                self.region(call.pass, call.scratch, regions.states[k % 2], Dtype::C64, &shape)
            };
            let outputs = [
                call.output("out")?.part(2, s.from, s.to),
                last.clone(),
                call.output("chunk_states")?.part(1, s.from / CHUNK, s.to.div_ceil(CHUNK)),
                call.output("chunk_phases")?.part(1, s.from / CHUNK, s.to.div_ceil(CHUNK)),
            ];
            let inner = self.layouts[0].address(call.scratch, regions.inner);
            // SAFETY: stretches are disjoint in time, and states between them lie in scratch.
            unsafe { self.run(&*self.scans[s.scan].1, Pass::Forward, &inputs, &outputs, inner, call.stream)? };
            h0 = Some(last);
        }
        Ok(())
    }

    fn backward(&self, call: &Call<'_>) -> Result<()> {
        let (p, regions) = (&self.problem, &self.regions[1]);
        let (d, n) = (p.channels(), p.states());
        let several = self.stretches.len() > 1;
        let region = |id, dtype, shape: &[usize]| self.region(call.pass, call.scratch, id, dtype, shape);
        let inner = self.layouts[1].address(call.scratch, regions.inner);
        // Of all steps, and of a stretch's.
        let totals = ["grad_W", "grad_bias", "grad_B", "grad_C", "grad_D"].map(|name| call.find_output(name));
        let mut parts = totals.clone();
        if several {
            for (part, id) in parts.iter_mut().zip(regions.parameters) {
                *part = part.take().map(|t| t.in_place_of(|dtype, shape| region(id, dtype, shape)));
            }
        }
        let missing = || Error::shape(format!("{NAME}: an output is missing"));
        let mut grad_last = call.input("grad_last_state")?;
        for (k, s) in self.stretches.iter().enumerate().rev() {
            let steps = s.to - s.from;
            let u = self.u(call, s)?;
            let [_, theta] = self.theta(call, s, &u)?;
            let saved = |name| Ok::<_, Error>(call.input(name)?.part(1, s.from / CHUNK, s.to.div_ceil(CHUNK)));
            // The state before a stretch was saved with its first chunk.
            let h0 =
                if k == 0 { call.find_input("h0") } else { Some(call.input("chunk_states")?.pick(1, s.from / CHUNK)) };
            let mut inputs: Vec<_> = [theta].into_iter().chain(self.scan_inputs(call, s, h0)?).collect();
            inputs.extend([saved("chunk_states")?, saved("chunk_phases")?]);
            inputs.extend([call.input("grad_out")?.part(2, s.from, s.to), grad_last.clone()]);
            let grad_theta = region(regions.grad_theta, Dtype::F32, &[p.batch(), d, n, steps]);
            let grad_u = call.output("grad_u")?.part(2, s.from, s.to);
            let mut outputs = vec![grad_theta.clone(), grad_u.clone()];
            outputs.push(call.output("grad_delta")?.part(2, s.from, s.to));
            outputs.extend(parts[2..].iter().flatten().cloned());
            outputs.extend(call.find_output("grad_z").map(|z| z.part(2, s.from, s.to)));
            let grad_h0 = match k {
                0 => call.find_output("grad_h0"),
                _ => Some(region(regions.states[k % 2], Dtype::C64, &[p.batch(), d, n])),
            };
            outputs.extend(grad_h0.clone());
            let scan = &*self.scans[s.scan].1;
            // SAFETY: stretches are disjoint in time; what they share lies in scratch, or there is one.
            unsafe { self.run(scan, Pass::Backward, &inputs, &outputs, inner, call.stream)? };
            grad_last = grad_h0.unwrap_or(grad_last);

            let through_angles = region(regions.grad_u, Dtype::F32, &[p.batch(), d, steps]);
            let inputs = [
                u.shaped([p.batch(), d, steps, 1]),
                call.input("W")?.shaped([d * n, d]),
                grad_theta.shaped([p.batch(), d * n, steps, 1]),
            ];
            let mut outputs = vec![parts[0].clone().ok_or_else(missing)?.shaped([d * n, d])];
            outputs.extend(parts[1].clone().map(|bias| bias.shaped([d * n])));
            outputs.push(through_angles.clone().shaped([p.batch(), d, steps, 1]));
            // SAFETY: as above.
            unsafe {
                self.run(&*self.maps[s.map].1, Pass::Backward, &inputs, &outputs, inner, call.stream)?;
                self.sums.put(&through_angles, &grad_u, true, call.stream)?;
                if several {
                    let add = k + 1 < self.stretches.len();
                    for (part, total) in parts.iter().flatten().zip(totals.iter().flatten()) {
                        self.sums.put(part, total, add, call.stream)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The tensors of a call by name.
struct Call<'a> {
    pass: Pass,
    signature: &'a Signature,
    inputs: Vec<Whole>,
    outputs: Vec<Whole>,
    scratch: u64,
    stream: StreamRef,
}

impl Call<'_> {
    fn find_input(&self, name: &str) -> Option<Whole> {
        self.signature.input(name).map(|i| self.inputs[i].clone())
    }
    fn find_output(&self, name: &str) -> Option<Whole> {
        self.signature.output(name).map(|i| self.outputs[i].clone())
    }
    fn input(&self, name: &str) -> Result<Whole> {
        self.find_input(name).ok_or_else(|| Error::shape(format!("{NAME}: {name} is missing")))
    }
    fn output(&self, name: &str) -> Result<Whole> {
        self.find_output(name).ok_or_else(|| Error::shape(format!("{NAME}: {name} is missing")))
    }
}

impl Plan for UnitaryPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        self.place
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        match pass {
            Pass::Forward => Some(&self.signatures[0]),
            Pass::Backward => Some(&self.signatures[1]),
            _ => None,
        }
    }
    fn config(&self) -> String {
        let longest = &self.stretches[0];
        format!(
            "{} of {} steps; {}; {}",
            self.stretches.len(),
            longest.to - longest.from,
            self.maps[longest.map].1.config(),
            self.scans[longest.scan].1.config()
        )
    }
    fn variant(&self) -> &'static str {
        self.maps[0].1.variant()
    }
    fn tensor_cores(&self) -> bool {
        self.maps[0].1.tensor_cores()
    }
    fn scratch(&self, pass: Pass) -> &Layout {
        &self.layouts[usize::from(pass == Pass::Backward)]
    }
    fn execute(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let missing = || Error::config(format!("{NAME}: the plan has no {} pass", pass.name()));
        let call = Call {
            pass,
            signature: self.signature(pass).ok_or_else(missing)?,
            inputs: args.inputs.iter().map(Whole::of).collect(),
            outputs: args.outputs.iter().map(|v| Whole::of(&v.as_view())).collect(),
            scratch: args.scratch.address(),
            stream: args.stream,
        };
        if pass == Pass::Forward { self.forward(&call) } else { self.backward(&call) }
    }
    fn launches(&self, pass: Pass) -> Result<Vec<LaunchReport>> {
        let p = &self.problem;
        let mut all = Vec::new();
        for s in &self.stretches {
            let (map, scan) = (&self.maps[s.map].1, &self.scans[s.scan].1);
            all.extend(map.launches(Pass::Forward)?);
            all.extend(scan.launches(pass)?);
            if pass == Pass::Backward {
                all.extend(map.launches(pass)?);
                all.extend(self.sums.launches(p.batch() * p.channels() * (s.to - s.from))?);
            }
        }
        Ok(all)
    }
}
