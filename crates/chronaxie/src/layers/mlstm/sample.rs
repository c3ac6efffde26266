//! Random values at unit scale for whatever a pass reads.

use super::spec::{Gates, Mlstm};
use crate::op::{Pass, Role, TensorSpec, Tensors, Values};
use crate::rng::Rng;
use crate::{Dtype, Result};

impl Gates {
    /// One pre-activation of an input gate, or of a forget gate.
    pub(super) fn draw(self, forget: bool, rng: &mut Rng) -> f64 {
        let mean = match (self, forget) {
            (Self::Trained | Self::Reset | Self::Faint, true) => 3.0,
            (Self::Faint, false) => 14.0,
            (Self::Slow, true) => 7.0,
            (Self::Slow, false) => -4.0,
            _ => 0.0,
        };
        let choices = if self == Self::Reset { 24 } else { 3 };
        match (self, rng.below(choices)) {
            (Self::Extreme, 0) => -40.0,
            (Self::Extreme, 1) => 40.0,
            (Self::Reset, 0) => f64::NEG_INFINITY,
            (Self::Reset, 1) => -1e4,
            _ => mean + rng.normal(),
        }
    }
}

/// What `pass` reads and no earlier pass writes.
pub(super) fn sample(p: &Mlstm, pass: Pass, seed: u64) -> Result<Tensors> {
    let signature = p.signature_of(pass)?;
    let drawn = signature.inputs.iter().filter(|t| pass == Pass::Forward || t.role == Role::Gradient);
    Ok(drawn
        .enumerate()
        .map(|(nth, t)| {
            let mut rng = Rng::new(seed, nth as u64 + 32 * pass as u64);
            (t.name.to_string(), values(p, t, &mut rng).rounded(t.dtype))
        })
        .collect())
}

fn values(p: &Mlstm, t: &TensorSpec, rng: &mut Rng) -> Values {
    if t.dtype == Dtype::I32 {
        // Cuts anywhere, so that some sequences are empty.
        let mut cuts: Vec<f64> =
            t.shape.iter().flat_map(|&n| 0..n).map(|_| rng.below(p.steps as u64 + 1) as f64).collect();
        let last = cuts.len() - 1;
        (cuts[0], cuts[last]) = (0.0, p.steps as f64);
        cuts.sort_by(f64::total_cmp);
        return Values { shape: t.shape, data: cuts };
    }
    let (forget, input) = (t.name == "f", t.name == "i");
    let size = p.gates.size_of(&t.name);
    Values::from_fn(t.shape, || if forget || input { p.gates.draw(forget, rng) } else { size * rng.normal() })
}
