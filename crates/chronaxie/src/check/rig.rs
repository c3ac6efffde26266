//! One problem with poisoned memory: runs its passes and looks at what they did to it.

use crate::call::{Arrangement, Workspace};
use crate::cuda::StreamRef;
use crate::op::{Pass, Plan, PlanOptions, Problem, Role, Tensors, Values};
use crate::{Device, Dtype, Layout, Result};

/// Bytes left free around each tensor and behind each scratch region.
const GUARD: usize = 256;
/// What lies there.
const CANARY: u8 = 0xC7;

/// Passes of a problem on one device, with memory for them.
pub(super) struct Rig {
    plan: Box<dyn Plan>,
    passes: Vec<Pass>,
    workspace: Workspace,
    device: Device,
    /// State that a step overwrites, to be set again before each run.
    state: Vec<(String, Values)>,
    /// Names of what the passes write.
    outputs: Vec<(Pass, String)>,
    /// Names of what they only read, and their whole blocks as they were filled.
    inputs: Vec<(String, Vec<u8>)>,
}

/// What one run left behind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The elements of each output.
    pub bytes: Vec<Vec<u8>>,
    /// Sentences on bytes that nobody may write.
    pub trampled: Vec<String>,
}

impl Rig {
    /// Plans `problem`, allocates `passes`, fills the inputs.
    pub(super) fn new(
        problem: &dyn Problem,
        device: &Device,
        passes: &[Pass],
        values: &Tensors,
        arrangement: Arrangement,
    ) -> Result<Self> {
        let options = PlanOptions { scratch_gap: GUARD, ..PlanOptions::default() };
        let plan = problem.plan(device, &options)?;
        let mut workspace = Workspace::arranged(&*plan, passes, device, |_| arrangement, GUARD)?;
        let mut outputs = Vec::new();
        let mut state = Vec::new();
        for &pass in passes {
            for t in &plan.signature(pass).map(|s| s.outputs.clone()).unwrap_or_default() {
                if pass == Pass::Step && t.role == Role::State {
                    state.push((t.name.to_string(), values.get(&t.name)?.clone()));
                }
                outputs.push((pass, t.name.to_string()));
            }
        }
        let names: Vec<(String, Dtype)> = workspace
            .specs()
            .iter()
            .filter(|s| !outputs.iter().any(|(_, n)| *n == s.name))
            .map(|s| (s.name.to_string(), s.dtype))
            .collect();
        let mut inputs = Vec::new();
        for (name, dtype) in names {
            let tensor = workspace.tensor_mut(&name)?;
            // Padding between the elements is NaN and the guards are canaries.
            let (all, within) = (tensor.bytes(), GUARD..tensor.bytes().saturating_sub(GUARD));
            let mut block = vec![CANARY; all];
            fill(&mut block[within], &poison(dtype, 0));
            tensor.set_raw(&block)?;
            tensor.set_values(values.get(&name)?).map_err(|e| e.context(&name))?;
            let block = tensor.raw()?;
            inputs.push((name, block));
        }
        Ok(Self { plan, passes: passes.to_vec(), workspace, device: device.clone(), state, outputs, inputs })
    }

    /// The pass and the name of each output, in the order of [`Outcome::bytes`].
    pub(super) fn outputs(&self) -> &[(Pass, String)] {
        &self.outputs
    }
    /// The values that an output holds now.
    pub(super) fn values(&self, name: &str) -> Result<Values> {
        self.workspace.get(name)
    }
    /// The values of an input, or of state as it was set before the run.
    pub(super) fn before(&self, name: &str) -> Result<Values> {
        let state = self.state.iter().find(|(n, _)| n == name);
        state.map_or_else(|| self.values(name), |(_, values)| Ok(values.clone()))
    }

    /// Poisons everything that the passes write: pattern `which` (0 or 1), NaN in every floating-point type.
    pub(super) fn poison(&mut self, which: usize) -> Result<()> {
        for (_, name) in &self.outputs {
            let tensor = self.workspace.tensor_mut(name)?;
            let mut block = vec![CANARY; tensor.bytes()];
            fill(&mut block[tensor.packed_range()], &poison(tensor.dtype(), which));
            tensor.set_raw(&block)?;
        }
        for (name, values) in &self.state {
            self.workspace.set(name, values)?;
        }
        Ok(())
    }
    fn arm_scratch(&mut self, pass: Pass, which: usize) -> Result<()> {
        let mut block = vec![CANARY; self.workspace.scratch_bytes()];
        for r in self.plan.scratch(pass).regions() {
            fill(&mut block[r.offset..r.offset + r.len], &poison(Dtype::F32, which));
        }
        self.workspace.scratch_mut().write(&block)
    }

    /// Runs all passes on `stream`, each with poisoned scratch, and looks at every byte afterwards.
    pub(super) fn run(&mut self, stream: StreamRef, which: usize) -> Result<Outcome> {
        self.poison(which)?;
        let mut trampled = Vec::new();
        for pass in self.passes.clone() {
            self.arm_scratch(pass, which)?;
            self.device.synchronize()?;
            self.workspace.bind(&*self.plan, pass, stream)?.run()?;
            self.device.synchronize()?;
            let block = self.workspace.scratch().read()?;
            trampled.extend(scratch_damage(pass, self.plan.scratch(pass), &block));
        }
        let mut outcome = self.outcome()?;
        trampled.append(&mut outcome.trampled);
        outcome.trampled = trampled;
        Ok(outcome)
    }
    /// The outputs as they are now, and what lies around them.
    pub(super) fn outcome(&self) -> Result<Outcome> {
        let mut outcome = Outcome { bytes: Vec::new(), trampled: Vec::new() };
        for (pass, name) in &self.outputs {
            let tensor = self.workspace.tensor(name)?;
            let (block, range) = (tensor.raw()?, tensor.packed_range());
            for (side, guard) in [("before", &block[..range.start]), ("behind", &block[range.end..])] {
                let n = guard.iter().filter(|&&b| b != CANARY).count();
                if n > 0 {
                    outcome.trampled.push(format!("{}: {n} bytes {side} {name} were overwritten", pass.name()));
                }
            }
            outcome.bytes.push(block[range].to_vec());
        }
        Ok(outcome)
    }
    /// Queues all passes on `stream` without looking at anything: for capture in a graph.
    pub(super) fn enqueue(&mut self, stream: StreamRef) -> Result<()> {
        for pass in self.passes.clone() {
            self.workspace.bind(&*self.plan, pass, stream)?.run()?;
        }
        Ok(())
    }
    /// How many elements of each output carry the poison of both runs: nobody wrote them. (A step's state starts from
    /// values; whether it was written, the law tells.)
    pub(super) fn unwritten(&self, first: &Outcome, second: &Outcome) -> Result<Vec<usize>> {
        let mut counts = Vec::new();
        for (i, (_, name)) in self.outputs.iter().enumerate() {
            let dtype = self.workspace.tensor(name)?.dtype();
            let (p, q) = (poison(dtype, 0), poison(dtype, 1));
            let pairs = first.bytes[i].chunks_exact(p.len()).zip(second.bytes[i].chunks_exact(p.len()));
            counts.push(pairs.filter(|(a, b)| *a == p && *b == q).count());
        }
        Ok(counts)
    }
    /// Sentences on inputs whose bytes have changed.
    pub(super) fn changed_inputs(&self) -> Result<Vec<String>> {
        let mut changed = Vec::new();
        for (name, before) in &self.inputs {
            let now = self.workspace.tensor(name)?.raw()?;
            let n = now.iter().zip(before).filter(|(a, b)| a != b).count();
            if n > 0 {
                changed.push(format!("{n} bytes of the input {name} have changed"));
            }
        }
        Ok(changed)
    }
}

fn fill(block: &mut [u8], pattern: &[u8]) {
    for (b, p) in block.iter_mut().zip(pattern.iter().cycle()) {
        *b = *p;
    }
}

/// The bytes of one poisoned element: NaN with a payload of its own, or an unlikely integer.
fn poison(dtype: Dtype, which: usize) -> Vec<u8> {
    let w = which as u8;
    match dtype {
        Dtype::F32 => vec![0xAD, 0xDE + w, 0xC0, 0x7F],
        Dtype::C64 => [0xAD, 0xDE + w, 0xC0, 0x7F].repeat(2),
        Dtype::F64 => vec![0xAD, 0xDE + w, 0xAD, 0xDE, 0xAD, 0xDE, 0xF8, 0x7F],
        Dtype::Bf16 => vec![0xC1 + w, 0x7F],
        Dtype::F16 => vec![0x01 + w, 0x7E],
        other => vec![0xA5 ^ (0xFF * w); other.size()],
    }
}

fn scratch_damage(pass: Pass, layout: &Layout, block: &[u8]) -> Vec<String> {
    let mut damage = Vec::new();
    let ends = layout.regions().iter().skip(1).map(|r| r.offset).chain([block.len()]);
    for (r, end) in layout.regions().iter().zip(ends) {
        let n = block[r.offset + r.len..end].iter().filter(|&&b| b != CANARY).count();
        if n > 0 {
            damage.push(format!("{}: {n} bytes behind the scratch region `{}` were overwritten", pass.name(), r.name));
        }
    }
    damage
}
