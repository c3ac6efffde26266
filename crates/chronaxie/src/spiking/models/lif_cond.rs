//! Leaky integrate-and-fire with exponentially decaying conductances (`iaf_cond_exp` of NEST; COBA of Brette et al., 2007).
//!
//! ```text
//! C dV/dt = -g_L (V - E_L) - g_ex (V - E_ex) - g_in (V - E_in) + I_e,   g jumps by |weight| (nS) of an arrival
//! V >= V_th: spike, V = V_reset, held there for t_ref; the conductances go on
//! ```
//! A step holds the conductances at their values in its middle, where the equation is linear: second order, and stable for
//! any conductance. `V' = V_inf + (V - V_inf) e^(-h G / C)`.

use super::lif_exp::fire;
use super::{Block, Initial, Model, Parameter, Twin, Variable, cpu, fma, positive, refractory_steps, reset_problem};
use crate::simd_math::{Lanes, exp};
use crate::spiking::math;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "pF", default: 200.0 },
    Parameter { name: "g_L", unit: "nS", default: 10.0 },
    Parameter { name: "E_L", unit: "mV", default: -60.0 },
    Parameter { name: "V_th", unit: "mV", default: -50.0 },
    Parameter { name: "V_reset", unit: "mV", default: -60.0 },
    Parameter { name: "t_ref", unit: "ms", default: 5.0 },
    Parameter { name: "tau_syn_ex", unit: "ms", default: 5.0 },
    Parameter { name: "tau_syn_in", unit: "ms", default: 10.0 },
    Parameter { name: "E_ex", unit: "mV", default: 0.0 },
    Parameter { name: "E_in", unit: "mV", default: -80.0 },
    Parameter { name: "I_e", unit: "pA", default: 0.0 },
];
const fn zero(name: &'static str, unit: &'static str) -> Variable {
    Variable { name, unit, initial: Initial::Value(0.0) }
}
const VARIABLES: &[Variable] = &[
    Variable { name: "V", unit: "mV", initial: Initial::Parameter("E_L") },
    zero("g_ex", "nS"),
    zero("g_in", "nS"),
    zero("refractory", "steps"),
];

/// The model.
#[derive(Debug)]
pub(super) struct LifCond;

impl Model for LifCond {
    fn name(&self) -> &'static str {
        "lif_cond"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["iaf_cond_exp"]
    }
    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }
    fn variables(&self) -> &'static [Variable] {
        VARIABLES
    }
    fn ports(&self) -> &'static [&'static str] {
        &["ex", "in"]
    }
    fn weight_unit(&self) -> &'static str {
        "nS"
    }
    fn problem(&self, p: &[f64], _dt_ms: f64) -> Option<String> {
        positive(PARAMETERS, p, &["C_m", "g_L", "tau_syn_ex", "tau_syn_in"])
            .or_else(|| reset_problem(PARAMETERS, p, [4, 3, 5]))
    }
    fn coefficient_count(&self) -> usize {
        12
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let all = [
            -h / p[0],
            p[1],
            p[1] * p[2] + p[10],
            p[3],
            p[4],
            refractory_steps(p[5], h),
            math::exp(-h / p[6]),
            math::exp(-h / p[7]),
            math::exp(-0.5 * h / p[6]),
            math::exp(-0.5 * h / p[7]),
            p[8],
            p[9],
        ];
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        if state[3] > 0.0 {
            state[3] -= 1.0;
        } else {
            let ex = state[1] * (-0.5 * h / p[6]).exp();
            let inh = state[2] * (-0.5 * h / p[7]).exp();
            let total = p[1] + ex + inh;
            let rest = (p[1] * p[2] + ex * p[8] + inh * p[9] + p[10]) / total;
            state[0] = rest + (state[0] - rest) * (-h * total / p[0]).exp();
        }
        state[1] = state[1] * (-h / p[6]).exp() + input[0];
        state[2] = state[2] * (-h / p[7]).exp() - input[1];
        let fires = state[0] >= p[3];
        if fires {
            (state[0], state[3]) = (p[4], refractory_steps(p[5], h));
        }
        fires
    }
    fn twin(&self) -> Twin {
        Twin::LifCond
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::lif_cond::step(block);
    }
}

/// Coefficients -h/C, g_L, g_L E_L + I_e, threshold, reset, refractory steps, decays in a step and in half of one (ex, in),
/// E_ex, E_in.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 12], s: &mut [Lanes<N>; 4], input: &[Lanes<N>; 2]) -> Lanes<N> {
    let (ex, inh) = (c[8] * s[1], c[9] * s[2]);
    let total = c[1] + ex + inh;
    let rest = fma(ex, c[10], fma(inh, c[11], c[2])) / total;
    let moved = fma(s[0] - rest, exp::<true, N>(c[0] * total), rest);
    s[1] = fma(c[6], s[1], input[0]);
    s[2] = fma(c[7], s[2], Lanes::splat(0.0) - input[1]);
    fire(c[3], c[4], c[5], moved, s, 3)
}
