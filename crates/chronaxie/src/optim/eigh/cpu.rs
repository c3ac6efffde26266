//! Eigenvectors on the CPU: Householder's reflections and implicit QL steps in f64 (`matrix::eigen`), a matrix a thread.
#![allow(unsafe_code)]

use super::op::{Eigh, NAME};
use crate::op::{Args, LaunchReport, Pass, Plan, PlanOptions, Signature};
use crate::optim::matrix;
use crate::pool::for_each;
use crate::shared::Shared;
use crate::{Error, Layout, Place, Result};

pub(super) struct CpuPlan {
    problem: Eigh,
    signature: Signature,
    layout: Layout,
}

impl CpuPlan {
    pub(super) fn new(problem: Eigh, options: &PlanOptions) -> Result<Self> {
        options.only("simd", NAME, "the CPU")?;
        let signature = problem.signature_of(Pass::Forward)?;
        Ok(Self { problem, signature, layout: Layout::new(options.scratch_gap) })
    }
}

/// Of one matrix.
fn one(a: &[f32], n: usize, values: &mut [f32], vectors: &mut [f32]) {
    let mean: Vec<f32> = (0..n * n).map(|e| 0.5 * (a[e] + a[e % n * n + e / n])).collect();
    let found = if mean.iter().all(|x| x.is_finite()) { matrix::eigen(&mean, n) } else { None };
    let Some((l, v)) = found else {
        values.fill(f32::NAN);
        return vectors.fill(f32::NAN);
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| l[i].total_cmp(&l[j]));
    for (k, &from) in order.iter().enumerate() {
        values[k] = l[from] as f32;
        vectors[k * n..(k + 1) * n].iter_mut().zip(&v[from * n..]).for_each(|(to, x)| *to = *x as f32);
    }
}

impl Plan for CpuPlan {
    fn entry(&self) -> &'static str {
        NAME
    }
    fn place(&self) -> Place {
        Place::Cpu
    }
    fn signature(&self, pass: Pass) -> Option<&Signature> {
        (pass == Pass::Forward).then_some(&self.signature)
    }
    fn config(&self) -> String {
        format!("{NAME} cpu: a matrix a thread")
    }
    fn variant(&self) -> &'static str {
        "simd"
    }
    fn scratch(&self, _: Pass) -> &Layout {
        &self.layout
    }
    fn execute(&self, _: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (count, n) = (self.problem.count, self.problem.order);
        let a: &[f32] = args.inputs[0].as_slice()?;
        let [values, vectors] = &mut *args.outputs else {
            return Err(Error::shape("eigh: two tensors are written"));
        };
        let (values, vectors) =
            (Shared::new(values.as_mut_slice::<f32>()?), Shared::new(vectors.as_mut_slice::<f32>()?));
        for_each(count, |i| {
            // SAFETY: what belongs to matrix i.
            let (values, vectors) = unsafe { (values.part(i * n, n), vectors.part(i * n * n, n * n)) };
            one(&a[i * n * n..(i + 1) * n * n], n, values, vectors);
        });
        Ok(())
    }
    fn launches(&self, _: Pass) -> Result<Vec<LaunchReport>> {
        Ok(Vec::new())
    }
}
