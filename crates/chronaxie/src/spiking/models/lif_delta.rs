//! Leaky integrate-and-fire whose potential jumps with each arrival (`iaf_psc_delta` of NEST).
//!
//! ```text
//! dV/dt = -(V - E_L) / tau_m + I_e / C,    V jumps by the weight (mV) of an arrival
//! V >= V_th: spike, V = V_reset, held there for t_ref; arrivals meanwhile are lost
//! ```
//! A step is exact: with u = V - E_L, `u' = P22 u + P20 I_e + arrivals`.

use super::lif_exp::fire;
use super::{Block, Initial, Model, Parameter, Twin, Variable, cpu, fma, positive, refractory_steps, reset_problem};
use crate::simd_math::Lanes;
use crate::spiking::math;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "pF", default: 250.0 },
    Parameter { name: "tau_m", unit: "ms", default: 10.0 },
    Parameter { name: "E_L", unit: "mV", default: -65.0 },
    Parameter { name: "V_th", unit: "mV", default: -50.0 },
    Parameter { name: "V_reset", unit: "mV", default: -65.0 },
    Parameter { name: "t_ref", unit: "ms", default: 2.0 },
    Parameter { name: "I_e", unit: "pA", default: 0.0 },
];
const VARIABLES: &[Variable] = &[
    Variable { name: "V", unit: "mV", initial: Initial::Parameter("E_L") },
    Variable { name: "refractory", unit: "steps", initial: Initial::Value(0.0) },
];

/// The model.
#[derive(Debug)]
pub(super) struct LifDelta;

impl Model for LifDelta {
    fn name(&self) -> &'static str {
        "lif_delta"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["iaf_psc_delta"]
    }
    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }
    fn variables(&self) -> &'static [Variable] {
        VARIABLES
    }
    fn ports(&self) -> &'static [&'static str] {
        &["syn"]
    }
    fn weight_unit(&self) -> &'static str {
        "mV"
    }
    fn problem(&self, p: &[f64], _dt_ms: f64) -> Option<String> {
        positive(PARAMETERS, p, &["C_m", "tau_m"]).or_else(|| reset_problem(PARAMETERS, p, [4, 3, 5]))
    }
    fn enter(&self, p: &[f64], state: &mut [f64]) {
        state[0] -= p[2];
    }
    fn leave(&self, p: &[f64], state: &mut [f64]) {
        state[0] += p[2];
    }
    fn coefficient_count(&self) -> usize {
        5
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let decay = math::exp(-h / p[1]);
        let all = [decay, p[6] * p[1] / p[0] * (1.0 - decay), p[3] - p[2], p[4] - p[2], refractory_steps(p[5], h)];
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        if state[1] > 0.0 {
            state[1] -= 1.0;
        } else {
            state[0] = state[0] * (-h / p[1]).exp() - p[6] * p[1] / p[0] * (-h / p[1]).exp_m1() + input[0];
        }
        let fires = state[0] >= p[3] - p[2];
        if fires {
            (state[0], state[1]) = (p[4] - p[2], refractory_steps(p[5], h));
        }
        fires
    }
    fn twin(&self) -> Twin {
        Twin::LifDelta
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::lif_delta::step(block);
    }
    fn charge(&self, p: &[f64], _port: usize) -> Option<f64> {
        Some(p[0])
    }
}

/// Coefficients P22, P20 I_e, threshold, reset, refractory steps.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 5], s: &mut [Lanes<N>; 2], input: &[Lanes<N>; 1]) -> Lanes<N> {
    let moved = fma(c[0], s[0], c[1]) + input[0];
    fire(c[2], c[3], c[4], moved, s, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A jump decays as e^(-t/tau_m), exactly; one into a refractory cell is lost.
    #[test]
    fn a_jump_decays_exactly() {
        let mut p: Vec<f64> = PARAMETERS.iter().map(|p| p.default).collect();
        let mut s = [0.0; 2];
        LifDelta.law(&p, 0.5, &mut s, &[7.0]);
        for n in 1..100 {
            assert!(!LifDelta.law(&p, 0.5, &mut s, &[0.0]));
            assert!((s[0] - 7.0 * (-0.05 * f64::from(n)).exp()).abs() < 1e-13);
        }
        p[5] = 1.0;
        assert!(LifDelta.law(&p, 0.5, &mut s, &[20.0]));
        assert!(!LifDelta.law(&p, 0.5, &mut s, &[20.0]) && !LifDelta.law(&p, 0.5, &mut s, &[20.0]));
        assert!(LifDelta.law(&p, 0.5, &mut s, &[20.0]));
    }
}
