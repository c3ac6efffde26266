//! The operation: what it is, its law, and what eigenvectors say of themselves, which have any sign and may be any of a space.

use super::{cpu, cuda};
use crate::cuda::Specialisation;
use crate::device::Device;
use crate::op::{
    Case, CaseSet, Cost, Metric, Op, Pass, Plan, PlanOptions, Probe, Problem, Role, Signature, TensorSpec, Tensors,
    Tolerance, Values,
};
use crate::optim::inverse_root::InverseRoot;
use crate::optim::inverse_root::reference::eigen;
use crate::optim::inverse_root::spec::{Defect, MOST_BY_LAW};
use crate::real::Real;
use crate::{Dtype, Error, Result};
use std::sync::Arc;

/// The entry's name.
pub(super) const NAME: &str = "eigh";
/// `max |V V^T - I|` of eigenvectors in f32, and what is left of `A - V^T diag(l) V` in parts of ||A||_F.
const ANGLES: f64 = 5e-7;
const LEFT: f64 = 1e-6;

/// `A = V^T diag(l) V` of N symmetric matrices `[N, n, n]`, f32: eigenvalues rise, eigenvectors are rows. Only the mean of A and its transpose
/// counts; of a matrix that is not finite all is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Eigh {
    /// N.
    pub count: usize,
    /// n.
    pub order: usize,
    /// What samples are like.
    sample: InverseRoot,
}

impl Eigh {
    /// Of `count` matrices of `order` rows.
    ///
    /// # Errors
    /// If they cannot be addressed, or n exceeds 32768.
    pub fn new(count: usize, order: usize) -> Result<Self> {
        Self::of(InverseRoot::new(count, order, 4))
    }
    fn of(sample: InverseRoot) -> Result<Self> {
        let sample = sample.build().map_err(|e| e.context(NAME))?;
        Ok(Self { count: sample.count, order: sample.order, sample })
    }
    /// The signature of the one pass.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        if pass != Pass::Forward {
            return Err(Error::config(format!("{NAME}: there is no {} pass", pass.name())));
        }
        let (count, n) = (self.count, self.order);
        Ok(Signature {
            inputs: vec![TensorSpec::new("a", "[N, n, n]", [count, n, n], Dtype::F32, Role::Input)],
            outputs: vec![
                TensorSpec::new("values", "[N, n]", [count, n], Dtype::F32, Role::Output),
                TensorSpec::new("vectors", "[N, n, n]", [count, n, n], Dtype::F32, Role::Output),
            ],
        })
    }
}

/// The mean of a matrix and its transpose.
fn mean(a: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|e| 0.5 * (a[e] + a[e % n * n + e / n])).collect()
}

fn law<R: Real>(p: &Eigh, a: &Values) -> Result<Tensors> {
    let n = p.order;
    let (mut values, mut vectors) = (Vec::new(), Vec::new());
    for a in a.data.chunks_exact((n * n).max(1)).take(p.count) {
        let a: Vec<R> = mean(a, n).into_iter().map(R::from_f64).collect();
        if a.iter().any(|x| !x.to_f64().is_finite()) {
            values.extend(vec![f64::NAN; n]);
            vectors.extend(vec![f64::NAN; n * n]);
            continue;
        }
        let (found, rows) = eigen(&a, n);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&i, &j| found[i].to_f64().total_cmp(&found[j].to_f64()));
        values.extend(order.iter().map(|&k| found[k].to_f64()));
        vectors.extend(order.iter().flat_map(|&k| rows[k * n..(k + 1) * n].iter().map(|x| x.to_f64())));
    }
    let values = Values::new([p.count, n], values)?;
    Ok([("values".to_owned(), values), ("vectors".to_owned(), Values::new([p.count, n, n], vectors)?)]
        .into_iter()
        .collect())
}

/// How far eigenvectors are from right angles and length 1, how far their eigenvalues are from what they do to the matrix, and which
/// matrix was the worst. Of large matrices some rows alone are looked at.
fn probe(p: &Eigh, a: &[f64], values: &[f64], vectors: &[f64]) -> [(f64, usize); 2] {
    let n = p.order;
    let mut worst = [(0.0, 0); 2];
    let mut take = |which: usize, x: f64, i: usize| {
        // A NaN is above everything, and stays.
        if x.is_nan() || x > worst[which].0 {
            worst[which] = (x, i);
        }
    };
    for i in 0..if n > 0 { p.count } else { 0 } {
        let a = mean(&a[i * n * n..(i + 1) * n * n], n);
        let (l, v) = (&values[i * n..(i + 1) * n], &vectors[i * n * n..(i + 1) * n * n]);
        let norm = a.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !norm.is_finite() {
            let none = l.iter().chain(v).all(|x| x.is_nan());
            (0..2).for_each(|which| take(which, if none { 0.0 } else { f64::NAN }, i));
            continue;
        }
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let row = |k: usize| &v[k * n..(k + 1) * n];
        for k in (0..n).step_by(n.div_ceil(MOST_BY_LAW)) {
            for j in 0..n {
                take(0, (dot(row(j), row(k)) - f64::from(u8::from(j == k))).abs(), i);
            }
            let off: f64 = (0..n).map(|r| (dot(&a[r * n..(r + 1) * n], row(k)) - l[k] * row(k)[r]).powi(2)).sum();
            take(1, off.sqrt() / if norm > 0.0 { norm } else { 1.0 }, i);
        }
        for k in 1..n {
            take(1, if l[k] >= l[k - 1] { 0.0 } else { f64::NAN }, i);
        }
    }
    worst
}

impl Problem for Eigh {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn signature(&self, pass: Pass) -> Result<Signature> {
        self.signature_of(pass)
    }
    fn plan(&self, device: &Device, options: &PlanOptions) -> Result<Box<dyn Plan>> {
        match device {
            Device::Cpu => Ok(Box::new(cpu::CpuPlan::new(*self, options)?)),
            Device::Cuda(device) => Ok(Box::new(cuda::CudaPlan::new(*self, device, options)?)),
        }
    }
    fn sample(&self, pass: Pass, seed: u64) -> Result<Tensors> {
        self.signature_of(pass)?;
        self.sample.sample_of(seed)
    }
    fn reference(&self, pass: Pass, inputs: &Tensors, f32_arithmetic: bool) -> Result<Tensors> {
        self.signature_of(pass)?;
        let a = inputs.get("a")?;
        if f32_arithmetic { law::<f32>(self, a) } else { law::<f64>(self, a) }
    }
    fn probes(&self, _: Pass) -> bool {
        self.order > MOST_BY_LAW
    }
    fn probe(&self, _: Pass, _: &dyn Fn(&str) -> Result<Values>) -> Result<Vec<Probe>> {
        // `beside` says it of all sizes.
        Ok(Vec::new())
    }
    fn beside(
        &self,
        _: Pass,
        before: &dyn Fn(&str) -> Result<Values>,
        after: &dyn Fn(&str) -> Result<Values>,
    ) -> Result<Vec<Probe>> {
        let [angles, left] = probe(self, &before("a")?.data, &after("values")?.data, &after("vectors")?.data);
        let probe = |metric, found: (f64, usize), tolerance, reason| Probe {
            output: "vectors",
            metric,
            error: found.0,
            tolerance,
            reason,
            worst: format!("matrix {}: {:e}", found.1, found.0),
        };
        Ok(vec![
            probe("right_angles", angles, ANGLES, "8 x what rounding vectors of f64 to f32 leaves of a length"),
            probe("residual", left, LEFT, "||A v - l v|| in parts of ||A||: 16 x what rounding v and l to f32 leaves"),
        ])
    }
    fn tolerance(&self, _: Pass, output: &str) -> Option<Tolerance> {
        (output == "values").then_some(Tolerance {
            metric: Metric::Relative,
            value: 1e-6,
            reason: "16 x the roundings of the values themselves: they are found in f64",
        })
    }
    fn has_no_result(&self) -> bool {
        matches!(self.sample.defect, Defect::Nan | Defect::Infinite)
    }
    fn cost(&self, _: Pass) -> Cost {
        let (count, n) = (self.count as u64, self.order as u64);
        // Householder's reflections there and back, and rotations of QL.
        Cost { bytes: 4 * count * n * (2 * n + 1), flops: 9 * count * n * n * n, special: 0, serial_steps: n }
    }
}

/// The entry.
#[derive(Debug, Clone, Copy)]
pub struct EighOp;

impl Op for EighOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn summary(&self) -> &'static str {
        "eigenvalues and eigenvectors of symmetric matrices, for bases of KFAC and SOAP"
    }
    fn passes(&self) -> &'static [Pass] {
        &[Pass::Forward]
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let list: &[&str] = match set {
            CaseSet::Compared => &["64x128", "16x512", "4x1024", "1x512"],
            CaseSet::Cpu => &["64x128", "2x512"],
            CaseSet::Check => &[
                "0x5",
                "3x0",
                "40x1",
                "5x2",
                "3x17,kappa=1e6",
                "18x33",
                "2x65,kappa=1e3",
                "1x130",
                "3x16,defect=zero",
                "3x20,defect=rank1",
                "3x21,defect=indefinite",
                "3x18,defect=nan",
                "17x34,defect=infinite",
            ],
        };
        Case::list(list)
    }
    fn problem(&self, case: &Case) -> Result<Arc<dyn Problem>> {
        case.allow(&["", "x"], &["kappa", "defect"])?;
        let mut sample = InverseRoot::new(case.size("")?, case.size("x")?, 4);
        sample.kappa = case.get("kappa", 0.0)?;
        sample.defect = case.option("defect").map_or(Ok(Defect::None), str::parse)?;
        Ok(Arc::new(Eigh::of(sample)?))
    }
    fn specialisations(&self) -> Vec<Specialisation> {
        vec![cuda::specialisation()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_are_no_eigenvectors_is_found() {
        let p = Eigh::new(1, 2).unwrap();
        let a = [2.0, 0.0, 0.0, 3.0];
        let of = |values: [f64; 2], vectors: [f64; 4]| probe(&p, &a, &values, &vectors).map(|found| found.0);
        assert_eq!(of([2.0, 3.0], [1.0, 0.0, 0.0, -1.0]), [0.0, 0.0]);
        // A length, an angle, a value, an order, a NaN.
        assert!(of([2.0, 3.0], [1.01, 0.0, 0.0, 1.0])[0] > ANGLES);
        assert!(of([2.0, 3.0], [1.0, 0.01, 0.0, 1.0])[0] > ANGLES);
        assert!(of([2.1, 3.0], [1.0, 0.0, 0.0, 1.0])[1] > LEFT);
        assert!(of([3.0, 2.0], [0.0, 1.0, 1.0, 0.0])[1].is_nan());
        assert!(of([2.0, 3.0], [f64::NAN, 0.0, 0.0, 1.0])[0].is_nan());
        let a = [f64::NAN, 0.0, 0.0, 3.0];
        let of = |x: f64| probe(&p, &a, &[x; 2], &[x; 4])[0].0;
        assert!(of(f64::NAN) == 0.0 && of(1.0).is_nan());
    }
}
