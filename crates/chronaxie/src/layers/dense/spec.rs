//! `dense`: names, shapes and tolerances.

use super::{cpu, cuda, reference};
pub use crate::op::Channels;
use crate::op::{
    Cost, LinearMap, Metric, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance, Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result};

/// The entry's name.
pub const NAME: &str = "dense";
/// Steps of a run of the sums over steps; the runs' sums are added in their order.
pub(super) const RUN: usize = 512;

/// The problem `y = weight x + bias` at each of B times T steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dense {
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) from: Channels,
    pub(super) to: Channels,
    pub(super) bias: bool,
    pub(super) grad_x: bool,
}

impl Dense {
    /// `batch` (B) sequences of `steps` (T), from D channels to H, with a bias and every gradient.
    ///
    /// # Errors
    /// Channels that do not fall into their groups, or sizes that cannot be addressed.
    pub fn new(batch: usize, steps: usize, from: Channels, to: Channels) -> Result<Self> {
        for (name, c) in [("D", from), ("H", to)] {
            if !c.is_whole() {
                return Err(Error::shape(format!(
                    "{NAME}: {name} = {} channels do not fall into {} groups of the same size",
                    c.count, c.groups
                )));
            }
        }
        let most = isize::MAX as usize / 8;
        let fits = |sizes: [usize; 3]| {
            sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).is_some_and(|n| n <= most)
        };
        let (d, h) = (from.count, to.count);
        // Channels and tiles are counted in 32 bits on a GPU.
        let wide = d.max(h) > i32::MAX as usize / 2 || batch.saturating_mul(steps).div_ceil(64) > i32::MAX as usize;
        if wide || !fits([batch, steps, d]) || !fits([batch, steps, h]) || !fits([1, h, d.saturating_add(1)]) {
            return Err(Error::shape(format!(
                "{NAME}: B = {batch}, T = {steps}, D = {d}, H = {h} have more elements than can be addressed"
            )));
        }
        Ok(Self { batch, steps, from, to, bias: true, grad_x: true })
    }
    /// Whether there is a bias.
    #[must_use]
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }
    /// Whether the gradient of x is wanted.
    #[must_use]
    pub fn with_grad_x(mut self, wanted: bool) -> Self {
        self.grad_x = wanted;
        self
    }
    /// B times T.
    pub(super) fn rows(&self) -> usize {
        self.batch * self.steps
    }
    /// Runs of the sums over steps.
    pub(super) fn runs(&self) -> usize {
        self.rows().div_ceil(RUN)
    }

    fn x(&self) -> TensorSpec {
        let shape = [self.batch, self.from.groups, self.steps, self.from.width()];
        TensorSpec::new("x", "[B, G, T, D / G]", shape, Dtype::F32, Role::Input)
    }
    fn y(&self) -> TensorSpec {
        let shape = [self.batch, self.to.groups, self.steps, self.to.width()];
        TensorSpec::new("y", "[B, K, T, H / K]", shape, Dtype::F32, Role::Output)
    }
    fn parameters(&self) -> Vec<TensorSpec> {
        let (d, h) = (self.from.count, self.to.count);
        let weight = TensorSpec::new("weight", "[H, D]", [h, d], Dtype::F32, Role::Parameter);
        let bias = TensorSpec::new("bias", "[H]", [h], Dtype::F32, Role::Parameter);
        [Some(weight), self.bias.then_some(bias)].into_iter().flatten().collect()
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let take = |spec: &TensorSpec| -> Result<Vec<R>> {
            let v = inputs.get(&spec.name)?;
            if v.shape != spec.shape {
                return Err(Error::shape(format!(
                    "{NAME}: {}.shape = {} does not match {} = {}",
                    spec.name, v.shape, spec.axes, spec.shape
                )));
            }
            Ok(v.data.iter().map(|&x| R::from_f64(x)).collect())
        };
        let give = |spec: TensorSpec, data: &[R]| {
            Ok::<_, Error>((spec.name.to_string(), Values::new(spec.shape, data.iter().map(|x| x.to_f64()).collect())?))
        };
        let (x, parameters) = (take(&self.x())?, self.parameters());
        let weight = take(&parameters[0])?;
        if pass == Pass::Forward {
            let bias = parameters.get(1).map(&take).transpose()?;
            return [give(self.y(), &reference::forward(self, &x, &weight, bias.as_deref()))].into_iter().collect();
        }
        let g = reference::backward(self, &x, &weight, &take(&self.y().gradient())?);
        let mut all = vec![give(parameters[0].gradient(), &g.weight)];
        all.extend(self.bias.then(|| give(parameters[1].gradient(), &g.bias)));
        all.extend(self.grad_x.then(|| give(self.x().gradient(), &g.x)));
        all.into_iter().collect()
    }
}

impl Problem for Dense {
    fn entry(&self) -> &'static str {
        NAME
    }

    fn signature(&self, pass: Pass) -> Result<Signature> {
        let (x, parameters) = (self.x(), self.parameters());
        match pass {
            Pass::Forward => {
                let inputs = [x].into_iter().chain(parameters).collect();
                Ok(Signature { inputs, outputs: vec![self.y()] })
            }
            Pass::Backward => {
                let x_gradient = self.grad_x.then(|| x.gradient());
                let outputs = parameters.iter().map(TensorSpec::gradient).chain(x_gradient).collect();
                // No gradient depends on the bias.
                let inputs = [x, parameters[0].clone(), self.y().gradient()];
                Ok(Signature { inputs: inputs.to_vec(), outputs })
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
            let scale = if t.name == "weight" { 1.0 / (self.from.count.max(1) as f64).sqrt() } else { 1.0 };
            tensors.insert(t.name.clone(), Values::from_fn(t.shape, || scale * rng.normal()).rounded(t.dtype));
        }
        Ok(tensors)
    }

    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(pass, inputs) } else { self.law::<f64>(pass, inputs) }
    }

    fn linear_map(&self) -> Option<LinearMap> {
        Some(LinearMap {
            batch: self.batch,
            steps: self.steps,
            x: "x",
            grad: "grad_y",
            weight: "weight",
            bias: self.bias.then_some("bias"),
            from: self.from,
            to: self.to,
        })
    }

    fn tolerance(&self, _pass: Pass, output: &str) -> Option<Tolerance> {
        // The noise of the law in f32 is 1e-7 to 4e-7 for sums of up to a thousand terms, and of gradients of parameters, whose
        // sums are longer, up to 1e-6; ours are sums of short sums.
        let (value, reason) = match output {
            "y" | "grad_x" => (8e-7, "a sum of up to some thousand products, each of which rounds"),
            _ => (2e-6, "a sum over all steps, whose terms may cancel, in runs of 512"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }

    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let products = if pass == Pass::Forward { 1 } else { 1 + u64::from(self.grad_x) };
        let sizes = [self.rows(), self.from.count, self.to.count];
        let flops = sizes.iter().fold(2 * products, |n, &size| n.saturating_mul(size as u64));
        Cost { bytes, flops, special: 0, serial_steps: 1 }
    }
}
