//! The adaptive exponential integrate-and-fire model with exponentially decaying currents (`aeif_psc_exp` of NEST; Brette
//! and Gerstner, J. Neurophysiol. 94:3637, 2005).
//!
//! ```text
//! C dV/dt = -g_L (V - E_L) + g_L D e^((V - V_T) / D) - w + I_ex + I_in + I_e,    tau_w dw/dt = a (V - E_L) - w
//! I decays with tau_syn and jumps by the weight (pA) of an arrival
//! V >= V_peak: spike, V = V_reset, w = w + b, V held for t_ref while w goes on
//! ```
//! Steps are those of Runge and Kutta, of order four between spikes. The potential in the exponent stops at V_peak: above
//! it the cell fires whatever the rest of the step would be.

use super::{
    Block, Initial, Model, Parameter, Twin, Variable, at_least, cpu, fma, positive, refractory_steps, reset_problem,
    rk4,
};
use crate::simd_math::{Lanes, exp};
use crate::spiking::math;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "pF", default: 281.0 },
    Parameter { name: "g_L", unit: "nS", default: 30.0 },
    Parameter { name: "E_L", unit: "mV", default: -70.6 },
    Parameter { name: "V_T", unit: "mV", default: -50.4 },
    Parameter { name: "Delta_T", unit: "mV", default: 2.0 },
    Parameter { name: "V_peak", unit: "mV", default: 0.0 },
    Parameter { name: "V_reset", unit: "mV", default: -60.0 },
    Parameter { name: "t_ref", unit: "ms", default: 0.0 },
    Parameter { name: "a", unit: "nS", default: 4.0 },
    Parameter { name: "b", unit: "pA", default: 80.5 },
    Parameter { name: "tau_w", unit: "ms", default: 144.0 },
    Parameter { name: "tau_syn_ex", unit: "ms", default: 0.2 },
    Parameter { name: "tau_syn_in", unit: "ms", default: 2.0 },
    Parameter { name: "I_e", unit: "pA", default: 0.0 },
];
const fn zero(name: &'static str, unit: &'static str) -> Variable {
    Variable { name, unit, initial: Initial::Value(0.0) }
}
const VARIABLES: &[Variable] = &[
    Variable { name: "V", unit: "mV", initial: Initial::Parameter("E_L") },
    zero("w", "pA"),
    zero("I_ex", "pA"),
    zero("I_in", "pA"),
    zero("refractory", "steps"),
];

/// The model.
#[derive(Debug)]
pub(super) struct AdEx;

impl Model for AdEx {
    fn name(&self) -> &'static str {
        "adex"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["aeif_psc_exp"]
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
        let above_zero = ["C_m", "g_L", "Delta_T", "tau_w", "tau_syn_ex", "tau_syn_in"];
        let problem = positive(PARAMETERS, p, &above_zero).or_else(|| reset_problem(PARAMETERS, p, [6, 5, 7]));
        if problem.is_some() {
            return problem;
        }
        let exponent = (p[5] - p[3]) / p[4];
        (exponent > 80.0)
            .then(|| format!("has e^((V_peak - V_T) / Delta_T) = e^{exponent:.0}, beyond what 32 bits hold"))
    }
    fn coefficient_count(&self) -> usize {
        20
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let all = [
            h,
            0.5 * h,
            h / 6.0,
            1.0 / p[0],
            -p[1],
            p[2],
            p[1] * p[4],
            1.0 / p[4],
            p[3],
            p[5],
            p[6],
            refractory_steps(p[7], h),
            p[8],
            p[9],
            1.0 / p[10],
            math::exp(-h / p[11]),
            math::exp(-h / p[12]),
            math::exp(-0.5 * h / p[11]),
            math::exp(-0.5 * h / p[12]),
            p[13],
        ];
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        let [c, g, e_l, v_t, delta, peak, reset, t_ref, a, b, tau_w, ex, inh, i_e] = *p else {
            unreachable!("fourteen parameters")
        };
        let (i_ex, i_in, held) = (state[2], state[3], state[4] > 0.0);
        let f = |t: f64, [v, w]: [f64; 2]| {
            let current = i_ex * (-t / ex).exp() + i_in * (-t / inh).exp() + i_e;
            let v = v.min(peak);
            let rise = (-g * (v - e_l) + g * delta * ((v - v_t) / delta).exp() - w + current) / c;
            [if held { 0.0 } else { rise }, (a * (v - e_l) - w) / tau_w]
        };
        [state[0], state[1]] = rk4::law([state[0], state[1]], h, f);
        state[2] = i_ex * (-h / ex).exp() + input[0];
        state[3] = i_in * (-h / inh).exp() + input[1];
        state[4] = (state[4] - 1.0).max(0.0);
        let fires = state[0] >= peak;
        if fires {
            (state[0], state[1], state[4]) = (reset, state[1] + b, refractory_steps(t_ref, h));
        }
        fires
    }
    fn twin(&self) -> Twin {
        Twin::AdEx
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::adex::step(block);
    }
    fn charge(&self, p: &[f64], port: usize) -> Option<f64> {
        Some(p[11 + port])
    }
}

/// That of V and w.
struct Change<'a, const N: usize> {
    c: &'a [Lanes<N>; 20],
    /// Of each stage.
    currents: [Lanes<N>; 4],
    /// Steps for which V is still held.
    left: Lanes<N>,
}

impl<const N: usize> rk4::Derivative<N, 2> for Change<'_, N> {
    #[inline(always)]
    fn at(&self, stage: usize, [v, w]: &[Lanes<N>; 2]) -> [Lanes<N>; 2] {
        let (c, zero, one) = (self.c, Lanes::splat(0.0), Lanes::splat(1.0));
        let v = at_least(*v, c[9], c[9], *v);
        let off = v - c[5];
        let spike = c[6] * exp::<true, N>((v - c[8]) * c[7]);
        let rise = (fma(c[4], off, spike) - *w + self.currents[stage]) * c[3];
        [at_least(self.left, one, zero, rise), fma(c[12], off, zero - *w) * c[14]]
    }
}

/// Coefficients as [`Model::coefficients`] lists them.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 20], s: &mut [Lanes<N>; 5], input: &[Lanes<N>; 2]) -> Lanes<N> {
    let (zero, one) = (Lanes::splat(0.0), Lanes::splat(1.0));
    let (i_ex, i_in, left) = (s[2], s[3], s[4]);
    let (end_ex, end_in) = (c[15] * i_ex, c[16] * i_in);
    let middle = fma(c[17], i_ex, fma(c[18], i_in, c[19]));
    let currents = [i_ex + i_in + c[19], middle, middle, end_ex + end_in + c[19]];
    let [v, w] = rk4::body([s[0], s[1]], c[0], [c[1], c[2]], &Change { c, currents, left });
    s[2] = end_ex + input[0];
    s[3] = end_in + input[1];
    let waited = at_least(left, one, left - one, zero);
    s[0] = at_least(v, c[9], c[10], v);
    s[1] = at_least(v, c[9], w + c[13], w);
    s[4] = at_least(v, c[9], c[11], waited);
    at_least(v, c[9], one, zero)
}
