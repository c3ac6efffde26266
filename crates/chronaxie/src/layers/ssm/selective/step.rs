//! `selective_state_update`: one step of a selective scan, its states in place.

use super::super::complex::Complex;
use super::super::law;
use super::super::packing::Marks;
use super::spec::SelectiveScan;
use super::{cpu, cuda, reference};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result};

/// The entry's name.
pub const NAME: &str = "selective_state_update";

/// One step of `scan` for each of its batch rows. The states `[S, D, N]` are read and overwritten in place: row b has the
/// `state_indices[b]`-th of S where a table is given, and else the b-th of B. A row whose index is negative is skipped,
/// and its output is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectiveStateUpdate {
    scan: SelectiveScan,
    slots: Option<usize>,
}

impl SelectiveStateUpdate {
    /// A step of `scan`, which must be of one step; `slots` (S) states and a table, or one state a row.
    ///
    /// # Errors
    /// A scan of other than one step, packed, or with h0.
    pub fn new(scan: SelectiveScan, slots: Option<usize>) -> Result<Self> {
        if scan.steps() != 1 || scan.packing() != Default::default() || scan.inputs()[8].is_some() {
            return Err(Error::config(format!(
                "{NAME}: it is one step of a whole sequence from the state that it holds; T = {}",
                scan.steps()
            )));
        }
        Ok(Self { scan, slots })
    }
    pub(super) fn scan(&self) -> &SelectiveScan {
        &self.scan
    }
    pub(super) fn has_table(&self) -> bool {
        self.slots.is_some()
    }
    /// S.
    pub(super) fn rows(&self) -> usize {
        self.slots.unwrap_or(self.scan.batch())
    }
    /// The same tensor without its axis of time.
    fn at_once(t: TensorSpec) -> TensorSpec {
        let axes = match t.axes {
            "[B, D, T]" => "[B, D]",
            "[B, G, N, T]" => "[B, G, N]",
            other => other,
        };
        let rank = t.shape.len() - usize::from(axes != t.axes);
        TensorSpec { axes, shape: t.shape[..rank].into(), ..t }
    }
    fn inputs(&self) -> Vec<TensorSpec> {
        let table = TensorSpec::new("state_indices", "[B]", [self.scan.batch()], Dtype::I32, Role::Input);
        let given = self.scan.inputs().into_iter().flatten().map(Self::at_once);
        given.chain(self.slots.map(|_| table)).collect()
    }
    fn state(&self) -> TensorSpec {
        let dtype = if self.scan.is_complex() { Dtype::C64 } else { Dtype::F32 };
        let (shape, axes) = ([self.rows(), self.scan.channels(), self.scan.states()], "[S, D, N]");
        TensorSpec::new("state", axes, shape, dtype, Role::State).any_strides()
    }
    fn out(&self) -> TensorSpec {
        let u = Self::at_once(self.scan.inputs().into_iter().flatten().next().expect("u is always given"));
        TensorSpec { name: "out".into(), role: Role::Output, ..u }
    }

    /// Refuses a table in which rows meet or go astray.
    ///
    /// # Errors
    /// An index beyond the states, or one that two rows have. `taken` has a byte a state.
    pub(super) fn check_table(indices: &[i32], taken: &mut [u8]) -> Result<()> {
        taken.fill(0);
        for (b, &i) in indices.iter().enumerate().filter(|(_, i)| **i >= 0) {
            let count = taken.len();
            let Some(taken) = taken.get_mut(i as usize) else {
                return Err(Error::value(format!("{NAME}: state_indices[{b}] = {i} is not below S = {count}")));
            };
            if *taken != 0 {
                return Err(Error::value(format!("{NAME}: state_indices[{b}] = {i} is another row's state too")));
            }
            *taken = 1;
        }
        Ok(())
    }

    fn law<R: Real>(&self, inputs: &Tensors) -> Result<Tensors> {
        let s = &self.scan;
        let mut i = Tensors::new();
        for (full, now) in s.inputs().into_iter().flatten().zip(self.inputs()) {
            let v = inputs.get(&now.name)?;
            if v.shape != law::shape(&now) {
                return Err(Error::shape(format!(
                    "{NAME}: {}.shape = {} does not match {} = {}",
                    now.name, v.shape, now.axes, now.shape
                )));
            }
            i.insert(now.name, Values::new(law::shape(&full), v.data.clone())?);
        }
        let table: Vec<i32> = match self.slots {
            Some(_) => inputs.get("state_indices")?.data.iter().map(|&x| x as i32).collect(),
            None => (0..s.batch() as i32).collect(),
        };
        Self::check_table(&table, &mut vec![0; self.rows()])?;
        let parts = |v: &Values| -> Vec<Complex<R>> {
            match s.is_complex() {
                true => v.data.chunks(2).map(|c| Complex::new(R::from_f64(c[0]), R::from_f64(c[1]))).collect(),
                false => v.data.iter().map(|&x| Complex::real(R::from_f64(x))).collect(),
            }
        };
        let mut states = parts(inputs.get("state")?);
        let row = s.channels() * s.states();
        let mut given = s.law_inputs::<R>(&i)?;
        let of = |b: usize| usize::try_from(table[b]).ok();
        let before = (0..s.batch()).flat_map(|b| match of(b) {
            Some(k) => states[k * row..(k + 1) * row].to_vec(),
            None => vec![Complex::real(R::zero()); row],
        });
        given.h0 = Some(before.collect());
        let (mut out, after) = reference::forward(s, &Marks::whole(s.batch(), 1), &given);
        for b in 0..s.batch() {
            match of(b) {
                Some(k) => states[k * row..(k + 1) * row].copy_from_slice(&after[b * row..(b + 1) * row]),
                None => out[b * s.channels()..(b + 1) * s.channels()].fill(R::zero()),
            }
        }
        let state = match s.is_complex() {
            true => law::give(self.state(), &states),
            false => law::give(self.state(), &states.iter().map(|x| x.re).collect::<Vec<_>>()),
        };
        [state, law::give(self.out(), &out)].into_iter().collect()
    }
}

impl Problem for SelectiveStateUpdate {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Step {
            return Err(Error::config(format!("{NAME} has no {} pass; it is a step", pass.name())));
        }
        Ok(Signature { inputs: self.inputs(), outputs: vec![self.state(), self.out()] })
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::StepCpu::plan(*self, options)?)),
            Device::Cuda(d) => Ok(Box::new(cuda::CudaPlan::step(*self, d, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        self.signature(pass)?;
        let mut tensors = Tensors::new();
        let scan = self.scan.sample(Pass::Forward, seed)?;
        for t in self.inputs() {
            if t.name != "state_indices" {
                let data = scan.get(&t.name)?.data.clone();
                tensors.insert(t.name.clone(), Values::new(law::shape(&t), data)?);
            }
        }
        let mut rng = Rng::new(seed, 77);
        let state = self.state();
        let count = state.shape.elements() * law::width(state.dtype);
        let values = (0..count).map(|_| rng.normal()).collect();
        tensors.insert("state", Values::new(law::shape(&state), values)?.rounded(state.dtype));
        if let Some(slots) = self.slots {
            // Different states, in any order; one row in four has none.
            let mut order: Vec<usize> = (0..slots).collect();
            rng.shuffle(&mut order);
            let pick = |b: usize| match order.get(b) {
                Some(&k) if b % 4 != 3 => k as f64,
                _ => -1.0,
            };
            let table = (0..self.scan.batch()).map(pick).collect();
            tensors.insert("state_indices", Values::new([self.scan.batch()], table)?);
        }
        Ok(tensors)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(inputs) } else { self.law::<f64>(inputs) }
    }
    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        let spec = self.signature(pass).ok()?.outputs.into_iter().find(|t| t.name == output)?;
        let (value, reason) = match spec.dtype {
            Dtype::Bf16 => (2.5e-3, "each stored element is rounded"),
            Dtype::F16 => (3e-4, "each stored element is rounded"),
            _ if output == "state" => (5e-7, "a gate and an input, each a few roundings"),
            _ => (1e-6, "a gate, a product and a sum over the states each round"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes: usize = signature.inputs.iter().chain(&signature.outputs).map(TensorSpec::bytes).sum();
        let states = (self.scan.batch() * self.scan.channels() * self.scan.states()) as u64;
        // The states of the rows are read too, and those of other rows not touched.
        let wide = if self.scan.is_complex() { 8 } else { 4 };
        let untouched = (self.rows() * self.scan.channels() * self.scan.states()) as u64 * wide;
        Cost {
            bytes: bytes as u64 - untouched + 2 * wide * states,
            flops: 7 * states,
            special: states,
            serial_steps: 1,
        }
    }
}
