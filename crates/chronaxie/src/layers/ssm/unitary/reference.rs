//! The law: the linear map's, and behind it the scan's.

use super::super::adaptive::reference as scan;
use super::super::complex::Complex;
use super::super::packing::Marks;
use super::spec::AdaptiveUnitary;
use crate::Result;
use crate::layers::dense::reference as dense;
use crate::real::Real;

/// What goes in, or its gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs<R> {
    /// W, `[D, N, D]`.
    pub weight: Vec<R>,
    /// `[D, N]`
    pub bias: Option<Vec<R>>,
    /// The rest; its angles are made here.
    pub scan: scan::Inputs<R>,
}

impl<R: Real> Inputs<R> {
    /// With theta `[B, D, N, T]`.
    fn with_angles(&self, p: &AdaptiveUnitary) -> Result<scan::Inputs<R>> {
        let theta = dense::forward(&p.map(p.steps())?, &self.scan.u, &self.weight, self.bias.as_deref());
        Ok(scan::Inputs { theta, ..self.scan.clone() })
    }
}

/// The outputs `[B, D, T]` and the last states `[S, D, N]`.
///
/// # Errors
/// Sizes that cannot be addressed.
pub fn forward<R: Real>(p: &AdaptiveUnitary, marks: &Marks<'_>, i: &Inputs<R>) -> Result<(Vec<R>, Vec<Complex<R>>)> {
    Ok(scan::forward(&p.scan(p.steps(), p.has_initial_state())?, marks, &i.with_angles(p)?))
}

/// The gradients of all that goes in, from those of the outputs `[B, D, T]` and the last states `[S, D, N]`: u sets angles and
/// is what comes in.
///
/// # Errors
/// Sizes that cannot be addressed.
pub fn backward<R: Real>(
    p: &AdaptiveUnitary,
    marks: &Marks<'_>,
    i: &Inputs<R>,
    grad_out: &[R],
    grad_last: &[Complex<R>],
) -> Result<Inputs<R>> {
    let scan = p.scan(p.steps(), p.has_initial_state())?;
    let mut g = scan::backward(&scan, marks, &i.with_angles(p)?, grad_out, grad_last);
    let map = dense::backward(&p.map(p.steps())?, &i.scan.u, &i.weight, &g.theta);
    g.u.iter_mut().zip(map.x).for_each(|(u, x)| *u = *u + x);
    g.theta = Vec::new();
    Ok(Inputs { weight: map.weight, bias: i.bias.as_ref().map(|_| map.bias), scan: g })
}
