//! Leaky integrate-and-fire with alpha-shaped currents (`iaf_psc_alpha` of NEST).
//!
//! ```text
//! C dV/dt = -C (V - E_L) / tau_m + I_ex + I_in + I_e
//! an arrival of weight w (pA) adds w (e / tau) t e^(-t/tau) to its current: w is the peak, after tau
//! ```
//! Linear between spikes, so a step is exact: with J = dI/dt + I/tau, `J' = P11 J + (e / tau) arrivals`,
//! `I' = P11 I + h P11 J`, `u' = P22 u + P32 I + P31 J + P20 I_e`.

use super::lif_exp::{fire, propagator};
use super::{Block, Initial, Model, Parameter, Twin, Variable, cpu, fma, positive, refractory_steps, reset_problem};
use crate::simd_math::Lanes;
use crate::spiking::math;
use std::f64::consts::E;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "pF", default: 250.0 },
    Parameter { name: "tau_m", unit: "ms", default: 10.0 },
    Parameter { name: "E_L", unit: "mV", default: -70.0 },
    Parameter { name: "V_th", unit: "mV", default: -55.0 },
    Parameter { name: "V_reset", unit: "mV", default: -70.0 },
    Parameter { name: "t_ref", unit: "ms", default: 2.0 },
    Parameter { name: "tau_syn_ex", unit: "ms", default: 2.0 },
    Parameter { name: "tau_syn_in", unit: "ms", default: 2.0 },
    Parameter { name: "I_e", unit: "pA", default: 0.0 },
];
const fn zero(name: &'static str, unit: &'static str) -> Variable {
    Variable { name, unit, initial: Initial::Value(0.0) }
}
const VARIABLES: &[Variable] = &[
    Variable { name: "V", unit: "mV", initial: Initial::Parameter("E_L") },
    zero("J_ex", "pA/ms"),
    zero("I_ex", "pA"),
    zero("J_in", "pA/ms"),
    zero("I_in", "pA"),
    zero("refractory", "steps"),
];

/// The model.
#[derive(Debug)]
pub(super) struct LifAlpha;

impl Model for LifAlpha {
    fn name(&self) -> &'static str {
        "lif_alpha"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["iaf_psc_alpha"]
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
        "pA"
    }
    fn problem(&self, p: &[f64], _dt_ms: f64) -> Option<String> {
        positive(PARAMETERS, p, &["C_m", "tau_m", "tau_syn_ex", "tau_syn_in"])
            .or_else(|| reset_problem(PARAMETERS, p, [4, 3, 5]))
    }
    fn enter(&self, p: &[f64], state: &mut [f64]) {
        state[0] -= p[2];
    }
    fn leave(&self, p: &[f64], state: &mut [f64]) {
        state[0] += p[2];
    }
    fn coefficient_count(&self) -> usize {
        15
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let [c, tau_m, e_l, v_th, v_reset, t_ref, ex, inh, i_e] = *p else { unreachable!("nine parameters") };
        let decay = math::exp(-h / tau_m);
        let fixed = [decay, i_e * tau_m / c * (1.0 - decay), v_th - e_l, v_reset - e_l, refractory_steps(t_ref, h)];
        let synapse = |tau: f64| {
            let p11 = math::exp(-h / tau);
            let p31 = decay * h * h * math::phi2((1.0 / tau - 1.0 / tau_m) * h) / c;
            [p11, h * p11, E / tau, propagator(c, tau_m, tau, h), p31]
        };
        let all = fixed.into_iter().chain(synapse(ex)).chain(synapse(inh));
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        let [c, tau_m, e_l, v_th, v_reset, t_ref] = p[..6] else { unreachable!("nine parameters") };
        if state[5] > 0.0 {
            state[5] -= 1.0;
        } else {
            let mut u = state[0] * (-h / tau_m).exp() - p[8] * tau_m / c * (-h / tau_m).exp_m1();
            for k in 0..2 {
                let a = 1.0 / p[6 + k] - 1.0 / tau_m;
                let x = a * h;
                let first = if a == 0.0 { h } else { -(-x).exp_m1() / a };
                // -(expm1(-x) + x e^-x) / a^2; its terms cancel where x is small, and there a series stands in.
                let second = if x.abs() < 1e-3 {
                    h * h * (0.5 - x / 3.0 + x * x / 8.0 - x * x * x / 30.0 + x.powi(4) / 144.0)
                } else {
                    -((-x).exp_m1() + x * (-x).exp()) / (a * a)
                };
                u += (-h / tau_m).exp() / c * (first * state[2 + 2 * k] + second * state[1 + 2 * k]);
            }
            state[0] = u;
        }
        for k in 0..2 {
            let tau = p[6 + k];
            state[2 + 2 * k] = (state[2 + 2 * k] + h * state[1 + 2 * k]) * (-h / tau).exp();
            state[1 + 2 * k] = state[1 + 2 * k] * (-h / tau).exp() + E / tau * input[k];
        }
        let fires = state[0] >= v_th - e_l;
        if fires {
            (state[0], state[5]) = (v_reset - e_l, refractory_steps(t_ref, h));
        }
        fires
    }
    fn twin(&self) -> Twin {
        Twin::LifAlpha
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::lif_alpha::step(block);
    }
    fn charge(&self, p: &[f64], port: usize) -> Option<f64> {
        Some(E * p[6 + port])
    }
}

/// Coefficients P22, P20 I_e, threshold, reset, refractory steps, then for each port P11, h P11, e / tau, P32, P31.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 15], s: &mut [Lanes<N>; 6], input: &[Lanes<N>; 2]) -> Lanes<N> {
    let inhibited = fma(c[13], s[4], fma(c[14], s[3], c[1]));
    let moved = fma(c[0], s[0], fma(c[8], s[2], fma(c[9], s[1], inhibited)));
    for k in 0..2 {
        let (j, i) = (s[1 + 2 * k], s[2 + 2 * k]);
        s[2 + 2 * k] = fma(c[5 + 5 * k], i, c[6 + 5 * k] * j);
        s[1 + 2 * k] = fma(c[5 + 5 * k], j, c[7 + 5 * k] * input[k]);
    }
    fire(c[2], c[3], c[4], moved, s, 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The current has its peak w at tau; the potential is the integral of the membrane's response, by Simpson's rule.
    #[test]
    fn one_arrival_gives_the_analytic_potential() {
        for (tau_m, tau) in [(10.0, 2.0), (10.0, 0.32582722), (10.0, 10.0), (5.0, 5.002)] {
            let mut p: Vec<f64> = PARAMETERS.iter().map(|p| p.default).collect();
            (p[1], p[6], p[3]) = (tau_m, tau, 1e6);
            let (h, w) = (0.1, 50.0);
            let mut s = [0.0; 6];
            LifAlpha.law(&p, h, &mut s, &[w, 0.0]);
            for n in 1..=120 {
                LifAlpha.law(&p, h, &mut s, &[0.0, 0.0]);
                let t = f64::from(n) * h;
                assert!((s[2] - w * E / tau * t * (-t / tau).exp()).abs() < 1e-11);
                if n % 30 == 0 {
                    let m = 4000;
                    let f = |i: u32| {
                        let x = t * f64::from(i) / f64::from(m);
                        w * E / tau * x * (-x / tau).exp() * (-(t - x) / tau_m).exp() / p[0]
                    };
                    let weight = |i: u32| if i == 0 || i == m { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
                    let want = (0..=m).map(|i| weight(i) * f(i)).sum::<f64>() * t / f64::from(3 * m);
                    assert!((s[0] - want).abs() < 1e-9, "{tau_m} {tau} {n}: {} {want}", s[0]);
                }
            }
        }
    }
}
