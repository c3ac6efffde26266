//! The law of what is known of single samples' gradients: each sample is a batch of its own.

use super::{gradients, lower};
use crate::Result;
use crate::layers::ltc::spec::{EACH, Ltc, MOMENTS, PerSample, SQUARES};
use crate::op::{Pass, Tensors, Values};
use crate::real::Real;

/// Adds each sample's gradients; or sums of their squares, `[B]` for each parameter, and over samples those of each element.
pub(super) fn add<R: Real>(p: &Ltc, inputs: &Tensors, results: &mut Tensors) -> Result<()> {
    let signature = p.signature_of(Pass::Backward)?;
    let one = Ltc { batch: 1, per_sample: PerSample::No, ..p.clone() };
    let found = (0..p.batch).map(|b| gradients::<R>(&one, &sample_of(p, inputs, b)?)).collect::<Result<Vec<_>>>()?;
    for spec in &signature.outputs {
        if let Some(name) = spec.name.strip_prefix(EACH) {
            let of = |sample: &Tensors| Ok(sample.get(&format!("grad_{name}"))?.data.clone());
            let all = found.iter().map(of).collect::<Result<Vec<Vec<f64>>>>()?;
            results.insert(spec.name.clone(), Values::new(spec.shape, all.concat())?);
            continue;
        }
        let Some(name) = spec.name.strip_prefix(MOMENTS) else { continue };
        let (mut squares, mut moments) = (Vec::new(), vec![R::zero(); spec.shape.elements()]);
        for of_sample in &found {
            let mut total = R::zero();
            for (moment, &g) in moments.iter_mut().zip(&of_sample.get(&format!("grad_{name}"))?.data) {
                let square = R::from_f64(g) * R::from_f64(g);
                *moment = *moment + square;
                total = total + square;
            }
            squares.push(total);
        }
        results.insert(format!("{SQUARES}{name}"), lower([p.batch].into(), &squares)?);
        results.insert(format!("{MOMENTS}{name}"), lower(spec.shape, &moments)?);
    }
    Ok(())
}

/// What a backward pass reads, of batch row `b` alone.
fn sample_of(p: &Ltc, inputs: &Tensors, b: usize) -> Result<Tensors> {
    let mut own = Tensors::new();
    for spec in p.signature_of(Pass::Backward)?.inputs {
        let Some(values) = inputs.find(&spec.name) else { continue };
        let values = if spec.axes.starts_with("[B") {
            let each = values.data.len() / p.batch.max(1);
            let mut shape = spec.shape.to_vec();
            shape[0] = 1;
            Values::new(crate::Shape::new(&shape), values.data[b * each..][..each].to_vec())?
        } else {
            values.clone()
        };
        own.insert(spec.name.into_owned(), values);
    }
    Ok(own)
}
