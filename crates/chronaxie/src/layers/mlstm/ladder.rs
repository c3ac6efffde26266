//! `mlstm_ladder`: the steps below the mLSTM, one after the other: a matrix product, all pairs of tokens, the pairs of each token
//! with those before it. Each is an entry's case of its own, so that what a step adds is seen in its time.

use super::reference::ladder as law;
use super::spec::{HEAD_STEP, data_dtype, head_sizes, parse_dtype};
use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::op::{
    Case, CaseSet, Cost, Metric, Op, Pass, Plan, PlanOptions, Problem, Role, Signature, TensorSpec, Tensors, Tolerance,
    Values,
};
use crate::real::Real;
use crate::rng::Rng;
use crate::{Device, Dtype, Error, Result, Shape};
use std::str::FromStr;
use std::sync::Arc;

/// The entry's name.
pub const NAME: &str = "mlstm_ladder";

/// A step of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rung {
    /// `c = a b`.
    Product,
    /// `h = s (q k^T) v`.
    Qkv,
    /// `h = s (q k^T o D) v`, where D is 1 on and below the diagonal and 0 above it.
    Causal,
}

impl FromStr for Rung {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "product" => Ok(Self::Product),
            "qkv" => Ok(Self::Qkv),
            "causal" => Ok(Self::Causal),
            _ => Err(Error::config(format!("{NAME}: step `{s}` is not one of product, qkv, causal"))),
        }
    }
}

/// Which pairs of a row t and another s there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mask {
    /// All of them.
    All,
    /// s up to t.
    Until,
    /// s from t on: backward, where keys look for their queries.
    From,
}

impl Mask {
    /// Whether a pair is there.
    pub(super) fn has(self, t: usize, s: usize) -> bool {
        match self {
            Self::All => true,
            Self::Until => s <= t,
            Self::From => s >= t,
        }
    }
}

/// What is multiplied with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// `to = x y`: `[rows, columns]` from `[rows, terms]` and `[terms, columns]`, either of which may lie as its transpose.
    Product { turned: [bool; 2] },
    /// `to_t = s sum_s (x_t . y_s) z_s` over the pairs (t, s) of the mask: `[rows, columns]` from x `[rows, terms]`, y
    /// `[rows, terms]` and z `[rows, columns]`.
    Pairs(Mask),
}

/// One of the products that a pass is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub form: Form,
    /// x, y, z and `to`; a product has no z, and names y again.
    pub tensors: [&'static str; 4],
    pub rows: usize,
    pub terms: usize,
    pub columns: usize,
}

/// Sizes of a step: B batch, NH heads, T rows (tokens), K terms (of queries and keys), V columns (of values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ladder {
    pub(super) rung: Rung,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) steps: usize,
    pub(super) dqk: usize,
    pub(super) dv: usize,
    pub(super) dtype: Dtype,
}

impl Ladder {
    /// A step on tensors of `dtype` (f32, f16 or bf16).
    ///
    /// # Errors
    /// A sentence with the size or the type that is out of range.
    pub fn new(rung: Rung, [batch, heads, steps, dqk, dv]: [usize; 5], dtype: Dtype) -> Result<Self> {
        data_dtype(NAME, dtype)?;
        if rung != Rung::Product {
            head_sizes(NAME, dqk, dv)?;
        }
        for (axis, size) in [("K", dqk), ("V", dv)] {
            if size == 0 || !size.is_multiple_of(HEAD_STEP) {
                return Err(Error::shape(format!("{NAME}: {axis} = {size} is not a multiple of {HEAD_STEP}")));
            }
        }
        for shape in [[batch, heads, steps, dqk.max(dv)], [batch, heads, dqk, dv]].map(Shape::from) {
            // Sizes of an empty tensor count too.
            let all = shape.iter().try_fold(4usize, |n, &d| n.checked_mul(d.max(1)));
            if all.is_none_or(|n| n > isize::MAX as usize) {
                return Err(Error::shape(format!("{NAME}: a tensor {shape} has more bytes than can be addressed")));
            }
        }
        Ok(Self { rung, batch, heads, steps, dqk, dv, dtype })
    }

    /// B NH.
    pub(super) fn chains(&self) -> usize {
        self.batch * self.heads
    }
    /// s: one over the root of K, which is 1 in a product.
    pub(super) fn scale(&self) -> f64 {
        if self.rung == Rung::Product { 1.0 } else { 1.0 / (self.dqk as f64).sqrt() }
    }

    /// The products of a pass. The gradients of pairs are sums over pairs again: that of q with the gradient of h for queries and
    /// values for keys, those of k and v with time turned round; each makes its pairs anew.
    pub(super) fn parts(&self, pass: Pass) -> Vec<Part> {
        let (t, k, v) = (self.steps, self.dqk, self.dv);
        let part = |form, tensors, [rows, terms, columns]: [usize; 3]| Part { form, tensors, rows, terms, columns };
        let product = |x, y, to, sizes, turned| part(Form::Product { turned }, [x, y, y, to], sizes);
        let (until, from) = if self.rung == Rung::Qkv { (Mask::All, Mask::All) } else { (Mask::Until, Mask::From) };
        match (self.rung, pass) {
            (Rung::Product, Pass::Forward) => vec![product("a", "b", "c", [t, k, v], [false, false])],
            (Rung::Product, _) => vec![
                product("grad_c", "b", "grad_a", [t, v, k], [false, true]),
                product("a", "grad_c", "grad_b", [k, t, v], [true, false]),
            ],
            (_, Pass::Forward) => vec![part(Form::Pairs(until), ["q", "k", "v", "h"], [t, k, v])],
            _ => vec![
                part(Form::Pairs(until), ["grad_h", "v", "k", "grad_q"], [t, v, k]),
                part(Form::Pairs(from), ["v", "grad_h", "q", "grad_k"], [t, v, k]),
                part(Form::Pairs(from), ["k", "q", "grad_h", "grad_v"], [t, k, v]),
            ],
        }
    }

    /// What is given, and what comes out.
    fn tensors(&self) -> (Vec<TensorSpec>, TensorSpec) {
        let of = |name, axes, rows, width, role| {
            TensorSpec::new(name, axes, [self.batch, self.heads, rows, width], self.dtype, role).any_strides()
        };
        let (t, k, v) = (self.steps, self.dqk, self.dv);
        if self.rung == Rung::Product {
            let given = [of("a", "[B, NH, T, K]", t, k, Role::Input), of("b", "[B, NH, K, V]", k, v, Role::Input)];
            return (given.to_vec(), of("c", "[B, NH, T, V]", t, v, Role::Output));
        }
        let given = [
            of("q", "[B, NH, T, K]", t, k, Role::Input),
            of("k", "[B, NH, T, K]", t, k, Role::Input),
            of("v", "[B, NH, T, V]", t, v, Role::Input),
        ];
        (given.to_vec(), of("h", "[B, NH, T, V]", t, v, Role::Output))
    }

    fn law<R: Real>(&self, pass: Pass, inputs: &Tensors) -> Result<Tensors> {
        let take = |spec: &TensorSpec| -> Result<Vec<R>> {
            let values = inputs.get(&spec.name)?;
            if values.shape != spec.shape {
                let (name, got, want) = (&spec.name, values.shape, spec.shape);
                return Err(Error::shape(format!(
                    "{NAME}: {name}.shape = {got} does not match {} = {want}",
                    spec.axes
                )));
            }
            Ok(values.data.iter().map(|&x| R::from_f64(x)).collect())
        };
        let (given, out) = self.tensors();
        let tensors: Vec<Vec<R>> = given.iter().map(&take).collect::<Result<_>>()?;
        let upstream = if pass == Pass::Forward { Vec::new() } else { take(&out.gradient())? };
        let mut specs =
            if pass == Pass::Forward { vec![out] } else { given.iter().map(TensorSpec::gradient).collect() };
        let mut all: Vec<Vec<R>> = specs.iter().map(|_| Vec::new()).collect();
        for nth in 0..self.chains() {
            let own = |x: &[R]| -> Vec<R> {
                let each = x.len() / self.chains();
                x[nth * each..(nth + 1) * each].to_vec()
            };
            let head: Vec<Vec<R>> = tensors.iter().map(|x| own(x)).collect();
            let results = match pass {
                Pass::Forward => vec![law::forward(self, &head)],
                _ => law::backward(self, &head, &own(&upstream)),
            };
            all.iter_mut().zip(results).for_each(|(to, x)| to.extend(x));
        }
        let values = |(spec, data): (TensorSpec, Vec<R>)| {
            Ok((spec.name.into_owned(), Values::new(spec.shape, data.iter().map(|x| x.to_f64()).collect())?))
        };
        specs.drain(..).zip(all).map(values).collect()
    }
}

impl Problem for Ladder {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        let (given, out) = self.tensors();
        let gradient = |t: &TensorSpec| t.gradient().any_strides();
        match pass {
            Pass::Forward => Ok(Signature { inputs: given, outputs: vec![out] }),
            Pass::Backward => {
                let outputs = given.iter().map(gradient).collect();
                let inputs = given.into_iter().chain([gradient(&out)]).collect();
                Ok(Signature { inputs, outputs })
            }
            _ => Err(Error::config(format!("{NAME} has no {} pass; it has forward and backward", pass.name()))),
        }
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::LadderCpu::plan(self, options)?)),
            Device::Cuda(d) => Ok(Box::new(cuda::LadderPlan::new(self, d, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        let signature = self.signature(pass)?;
        let drawn = signature.inputs.iter().filter(|t| pass == Pass::Forward || t.role == Role::Gradient);
        Ok(drawn
            .enumerate()
            .map(|(nth, t)| {
                let mut rng = Rng::new(seed, nth as u64 + 8 * pass as u64);
                (t.name.to_string(), Values::from_fn(t.shape, || rng.normal()).rounded(t.dtype))
            })
            .collect())
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature(pass)?;
        if f32_arithmetic { self.law::<f32>(pass, inputs) } else { self.law::<f64>(pass, inputs) }
    }
    fn tolerance(&self, _pass: Pass, _output: &str) -> Option<Tolerance> {
        let (value, reason) = match (self.dtype, self.rung) {
            (Dtype::F32, Rung::Product) => (6e-7, "a sum of products, each of which rounds, in any order"),
            (Dtype::F32, _) => (8e-7, "a sum of products, of which each factor is such a sum"),
            (Dtype::F16, Rung::Product) => (4e-4, "the result is rounded to 11 bits"),
            (Dtype::F16, _) => (6e-4, "the result is rounded to 11 bits, and so may pairs be"),
            (_, Rung::Product) => (3e-3, "the result is rounded to 8 bits"),
            _ => (4e-3, "the result is rounded to 8 bits, and so may pairs be"),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
    fn cost(&self, pass: Pass) -> Cost {
        let Ok(signature) = self.signature(pass) else { return Cost::default() };
        let bytes = signature.inputs.iter().chain(&signature.outputs).map(|t| t.bytes() as u64).sum();
        let [chains, t, k, v] = [self.chains(), self.steps, self.dqk, self.dv].map(|n| n as u64);
        let forward = pass == Pass::Forward;
        let pairs = match self.rung {
            Rung::Product => 0,
            Rung::Qkv => t.saturating_mul(t),
            Rung::Causal => t.saturating_mul(t.saturating_add(1)) / 2,
        };
        // Backward pairs and their gradients are needed once; three sums are made with them.
        let flops = match (self.rung, forward) {
            (Rung::Product, _) => t.saturating_mul(k).saturating_mul(if forward { 2 * v } else { 4 * v }),
            (_, true) => pairs.saturating_mul(2 * (k + v)),
            (_, false) => pairs.saturating_mul(2 * (3 * k + 2 * v)),
        };
        Cost { bytes, flops: flops.saturating_mul(chains), special: 0, serial_steps: 1 }
    }
}

/// The entry `mlstm_ladder`.
#[derive(Debug)]
pub struct LadderOp;

const COMPARED: &[&str] = &[
    "B1_NH1_T4096_K4096_V4096,step=product",
    "B4_NH8_T2048_K64_V64,step=qkv",
    "B4_NH8_T2048_K64_V64,step=causal",
    "B8_NH8_T8192_K256_V512,step=qkv",
    "B8_NH8_T8192_K256_V512,step=causal",
];
const CPU: &[&str] = &[
    "B1_NH1_T512_K512_V512,step=product,dtype=f32",
    "B1_NH4_T1024_K64_V64,step=qkv,dtype=f32",
    "B1_NH4_T1024_K64_V64,step=causal,dtype=f32",
];
/// Around every boundary of tiles, each element type, and nothing.
const CHECK: &[&str] = &[
    "B1_NH1_T1_K16_V16,step=product,dtype=f32",
    "B2_NH2_T65_K32_V48,step=product,dtype=f32",
    "B1_NH2_T200_K272_V80,step=product,dtype=f32",
    "B1_NH1_T130_K144_V272,step=product,dtype=f16",
    "B1_NH1_T129_K80_V16,step=product,dtype=bf16",
    "B1_NH1_T150_K528_V400,step=product,dtype=bf16",
    "B0_NH2_T5_K16_V16,step=product,dtype=f32",
    "B2_NH1_T0_K16_V32,step=product,dtype=f32",
    "B2_NH1_T0_K32_V16,step=product,dtype=bf16",
    "B1_NH1_T1_K16_V16,step=qkv,dtype=f32",
    "B2_NH2_T65_K32_V48,step=qkv,dtype=f32",
    "B1_NH1_T200_K80_V272,step=qkv,dtype=f32",
    "B1_NH2_T127_K64_V64,step=qkv,dtype=f16",
    "B1_NH1_T130_K16_V512,step=qkv,dtype=bf16",
    "B1_NH1_T193_K512_V16,step=qkv,dtype=bf16",
    "B2_NH0_T5_K16_V16,step=qkv,dtype=f32",
    "B2_NH2_T0_K16_V16,step=qkv,dtype=bf16",
    "B1_NH1_T1_K16_V16,step=causal,dtype=f32",
    "B2_NH2_T65_K32_V48,step=causal,dtype=f32",
    "B1_NH1_T500_K64_V80,step=causal,dtype=f32",
    "B1_NH2_T500_K64_V64,step=causal,dtype=bf16",
    "B1_NH1_T257_K144_V208,step=causal,dtype=f16",
    "B1_NH1_T140_K272_V400,step=causal,dtype=bf16",
    "B2_NH2_T0_K16_V16,step=causal,dtype=f32",
];

impl Op for LadderOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "the steps below the mLSTM: a matrix product, all pairs of tokens, and those with tokens before"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward, Pass::Backward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        Case::list(match set {
            CaseSet::Compared => COMPARED,
            CaseSet::Cpu => CPU,
            CaseSet::Check => CHECK,
        })
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["B", "NH", "T", "K", "V"], &["step", "dtype"])?;
        let mut sizes = [0; 5];
        for (size, axis) in sizes.iter_mut().zip(["B", "NH", "T", "K", "V"]) {
            *size = case.size(axis)?;
        }
        let dtype = parse_dtype(NAME, case.option("dtype").unwrap_or("bf16"))?;
        let rung = case.option("step").map_or(Ok(Rung::Product), str::parse)?;
        Ok(Arc::new(Ladder::new(rung, sizes, dtype)?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        cuda::ladder_specialisations()
    }
}
