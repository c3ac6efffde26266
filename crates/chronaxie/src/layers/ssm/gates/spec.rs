//! `ssm_gates`: names, shapes and tolerances.

use super::super::law;
use super::kind::Kind;
use super::{cpu, cuda, reference};
use crate::op::{
    Cost, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};

/// The entry's name.
pub const NAME: &str = "ssm_gates";

/// One map over `[B, D, T]`, f32 or c64, contiguous, with its channels' parameters `[D]`, f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SsmGates {
    pub(super) kind: Kind,
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) steps: usize,
}

impl SsmGates {
    /// `kind` over `batch` (B) times `channels` (D) rows of `steps` (T); any of them may be 0.
    ///
    /// # Errors
    /// Sizes that cannot be addressed.
    pub fn new(kind: Kind, batch: usize, channels: usize, steps: usize) -> Result<Self> {
        let all = Shape::from([batch.max(1), channels.max(1), steps.max(1)]).checked_elements();
        if !all.is_ok_and(|n| n <= isize::MAX as usize / 64) || channels > i32::MAX as usize {
            let shape = Shape::from([batch, channels, steps]);
            return Err(Error::shape(format!("{NAME}: [B, D, T] = {shape} has more elements than can be addressed")));
        }
        Ok(Self { kind, batch, channels, steps })
    }

    fn sequences(&self, names: &[&'static str], role: Role) -> Vec<TensorSpec> {
        let dtype = if self.kind.form().complex { Dtype::C64 } else { Dtype::F32 };
        let shape = [self.batch, self.channels, self.steps];
        names.iter().map(|&name| TensorSpec::new(name, "[B, D, T]", shape, dtype, role)).collect()
    }
    /// What goes in, sequences first.
    fn inputs(&self) -> Vec<TensorSpec> {
        let form = self.kind.form();
        let own = |&name| TensorSpec::new(name, "[D]", [self.channels], Dtype::F32, Role::Parameter);
        self.sequences(form.inputs, Role::Input).into_iter().chain(form.parameters.iter().map(own)).collect()
    }
    fn outputs(&self) -> Vec<TensorSpec> {
        self.sequences(self.kind.form().outputs, Role::Output)
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let take = |t: &TensorSpec| -> Result<Vec<R>> {
            let v = inputs.get(&t.name)?;
            if v.shape != law::shape(t) {
                return Err(Error::shape(format!(
                    "{NAME}: {}.shape = {} does not match {} = {}",
                    t.name,
                    v.shape,
                    t.axes,
                    law::shape(t)
                )));
            }
            Ok(v.data.iter().map(|&x| R::from_f64(x)).collect())
        };
        let all = |list: &[TensorSpec]| list.iter().map(&take).collect::<Result<Vec<_>>>();
        let given = all(&self.inputs())?;
        let (specs, made) = if pass == Pass::Forward {
            (self.outputs(), reference::forward(self, &given))
        } else {
            let gradients: Vec<_> = self.outputs().iter().map(TensorSpec::gradient).collect();
            let specs = self.inputs().iter().map(TensorSpec::gradient).collect();
            (specs, reference::backward(self, &given, &all(&gradients)?))
        };
        let give = |(t, data): (TensorSpec, Vec<R>)| {
            let data = data.iter().map(|x| x.to_f64()).collect();
            Ok((t.name.to_string(), Values::new(law::shape(&t), data)?))
        };
        specs.into_iter().zip(made).map(give).collect()
    }
}

impl Problem for SsmGates {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        match pass {
            Pass::Forward => Ok(Signature { inputs, outputs }),
            Pass::Backward => {
                let gradients = inputs.iter().map(TensorSpec::gradient).collect();
                let inputs = inputs.into_iter().chain(outputs.iter().map(TensorSpec::gradient)).collect();
                Ok(Signature { inputs, outputs: gradients })
            }
            _ => Err(Error::config(format!("{NAME} has no {} pass; it has forward and backward", pass.name()))),
        }
    }

    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::Cpu::plan(*self, options)?)),
            Device::Cuda(d) => Ok(Box::new(cuda::CudaPlan::new(*self, d, options)?)),
        }
    }

    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let signature = self.signature(pass)?;
        let mut tensors = Tensors::new();
        for (i, t) in signature.inputs.iter().enumerate() {
            if pass == Pass::Backward && t.role != Role::Gradient {
                continue;
            }
            let mut rng = Rng::new(seed, i as u64 + 16 * pass as u64);
            let mut draw = || match t.name.as_ref() {
                // Radii from 0.4 to 0.999, and gates that are nearly as slow.
                "nu" => rng.range(-7.0, -0.1),
                "lambda" => rng.range(1.0, 6.0),
                "phi" => rng.range(-3.0, 1.8),
                "re" => -rng.range(-1.0, 1.0).exp(),
                "im" => rng.range(0.0, 60.0),
                "log_delta" => rng.range(-7.0, -2.0),
                _ => rng.normal(),
            };
            let data = (0..t.shape.elements() * law::width(t.dtype)).map(|_| draw()).collect();
            tensors.insert(t.name.clone(), Values::new(law::shape(t), data)?.rounded(t.dtype));
        }
        Ok(tensors)
    }

    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(pass, inputs) } else { self.law::<f64>(pass, inputs) }
    }

    fn tolerance(&self, pass: Pass, output: &str) -> Option<Tolerance> {
        let spec = self.signature(pass).ok()?.outputs.into_iter().find(|t| t.name == output)?;
        let parameter = spec.shape.len() == 1;
        let (value, reason) = if parameter {
            (4e-6, "a sum over batch and time whose terms may cancel, of one value a channel")
        } else {
            (1e-6, "some roundings, and exponentials of sums that round")
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let elements = (self.batch * self.channels * self.steps) as u64;
        let flops = if pass == Pass::Forward { 4 } else { 12 };
        Cost { bytes, flops: flops * elements, special: 2 * elements, serial_steps: 1 }
    }
}
