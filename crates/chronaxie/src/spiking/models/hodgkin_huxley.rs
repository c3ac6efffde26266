//! Hodgkin and Huxley's squid axon (J. Physiol. 117:500, 1952), in today's sign of the potential, with one exponentially
//! decaying current.
//!
//! ```text
//! C dV/dt = -g_Na m^3 h (V - E_Na) - g_K n^4 (V - E_K) - g_L (V - E_L) + I + I_e,    dx/dt = a_x (1 - x) - b_x x
//! a_m = 0.1 (V + 40) / (1 - e^(-(V + 40) / 10))     b_m = 4 e^(-(V + 65) / 18)
//! a_h = 0.07 e^(-(V + 65) / 20)                     b_h = 1 / (1 + e^(-(V + 35) / 10))
//! a_n = 0.01 (V + 55) / (1 - e^(-(V + 55) / 10))    b_n = 0.125 e^(-(V + 65) / 80)
//! ```
//! All of a square centimetre: uF, mS, uA. A spike is V crossing V_th from below. Steps are those of Runge and Kutta, of
//! order four; they are stable up to about 0.05 ms, and longer ones are refused.

use super::{Block, Initial, Model, Parameter, Twin, Variable, at_least, cpu, fma, positive, rk4};
use crate::simd_math::{Lanes, exp};
use crate::spiking::math;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "uF", default: 1.0 },
    Parameter { name: "g_Na", unit: "mS", default: 120.0 },
    Parameter { name: "g_K", unit: "mS", default: 36.0 },
    Parameter { name: "g_L", unit: "mS", default: 0.3 },
    Parameter { name: "E_Na", unit: "mV", default: 50.0 },
    Parameter { name: "E_K", unit: "mV", default: -77.0 },
    Parameter { name: "E_L", unit: "mV", default: -54.4 },
    Parameter { name: "V_th", unit: "mV", default: 0.0 },
    Parameter { name: "tau_syn", unit: "ms", default: 2.0 },
    Parameter { name: "I_e", unit: "uA", default: 0.0 },
];
const fn at(name: &'static str, unit: &'static str, value: f64) -> Variable {
    Variable { name, unit, initial: Initial::Value(value) }
}
/// The resting state.
const VARIABLES: &[Variable] =
    &[at("V", "mV", -65.0), at("m", "", 0.0529), at("h", "", 0.5961), at("n", "", 0.3177), at("I_syn", "uA", 0.0)];

/// The model.
#[derive(Debug)]
pub(super) struct HodgkinHuxley;

impl Model for HodgkinHuxley {
    fn name(&self) -> &'static str {
        "hodgkin_huxley"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["hh"]
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
        "uA"
    }
    fn problem(&self, p: &[f64], dt_ms: f64) -> Option<String> {
        if dt_ms > 0.05 {
            return Some(format!("needs steps of at most 0.05 ms, not {dt_ms} ms"));
        }
        positive(PARAMETERS, p, &["C_m", "tau_syn"])
    }
    fn coefficient_count(&self) -> usize {
        14
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let decay = [math::exp(-h / p[8]), math::exp(-0.5 * h / p[8])];
        let all = [h, 0.5 * h, h / 6.0, 1.0 / p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], decay[0], decay[1], p[9]];
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        let quotient = |x: f64| if x.abs() < 1e-7 { 1.0 + x / 2.0 } else { x / -(-x).exp_m1() };
        let i_syn = state[4];
        let f = |t: f64, [v, m, hh, n]: [f64; 4]| {
            let current = i_syn * (-t / p[8]).exp() + p[9];
            let na = p[1] * m.powi(3) * hh * (v - p[4]);
            let k = p[2] * n.powi(4) * (v - p[5]);
            let rest = v + 65.0;
            let gate = |x: f64, a: f64, b: f64| a * (1.0 - x) - b * x;
            [
                (current - na - k - p[3] * (v - p[6])) / p[0],
                gate(m, quotient((v + 40.0) / 10.0), 4.0 * (-rest / 18.0).exp()),
                gate(hh, 0.07 * (-rest / 20.0).exp(), 1.0 / (1.0 + (-(v + 35.0) / 10.0).exp())),
                gate(n, 0.1 * quotient((v + 55.0) / 10.0), 0.125 * (-rest / 80.0).exp()),
            ]
        };
        let before = state[0];
        [state[0], state[1], state[2], state[3]] = rk4::law([state[0], state[1], state[2], state[3]], h, f);
        state[4] = i_syn * (-h / p[8]).exp() + input[0];
        before < p[7] && state[0] >= p[7]
    }
    fn twin(&self) -> Twin {
        Twin::HodgkinHuxley
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::hodgkin_huxley::step(block);
    }
    fn charge(&self, p: &[f64], _port: usize) -> Option<f64> {
        Some(p[8])
    }
}

/// `x`, or 1 near 0, where [`quotient`] takes its series.
#[inline(always)]
fn away<const N: usize>(x: Lanes<N>) -> Lanes<N> {
    at_least(x.map(f32::abs), Lanes::splat(0.01), x, Lanes::splat(1.0))
}

/// `x / (1 - e^-x)` of `e`, the exponential of `-away(x)`; by its series near 0, where the quotient would be 0 by 0.
#[inline(always)]
fn quotient<const N: usize>(x: Lanes<N>, e: Lanes<N>) -> Lanes<N> {
    let one = Lanes::splat(1.0);
    let near = fma(x, fma(x, Lanes::splat(1.0 / 12.0), Lanes::splat(0.5)), one);
    at_least(x.map(f32::abs), Lanes::splat(0.01), away(x) / (one - e), near)
}

/// `a (1 - x) - b x`.
#[inline(always)]
fn gate<const N: usize>(x: Lanes<N>, a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    fma(a, Lanes::splat(1.0) - x, Lanes::splat(0.0) - b * x)
}

/// That of V, m, h and n.
struct Change<'a, const N: usize> {
    c: &'a [Lanes<N>; 14],
    /// Of each stage.
    currents: [Lanes<N>; 4],
}

impl<const N: usize> rk4::Derivative<N, 4> for Change<'_, N> {
    #[inline(always)]
    fn at(&self, stage: usize, [v, m, h, n]: &[Lanes<N>; 4]) -> [Lanes<N>; 4] {
        let (c, v, m, h, n) = (self.c, *v, *m, *h, *n);
        let (one, number) = (Lanes::splat(1.0), Lanes::splat);
        let na = c[4] * (m * m * m * h) * (v - c[7]);
        let square = n * n;
        let k = c[5] * (square * square) * (v - c[8]);
        let leak = c[6] * (v - c[9]);
        let (zero, rest) = (number(0.0), v + number(65.0));
        let (x_m, x_n) = ((v + number(40.0)) * number(0.1), (v + number(55.0)) * number(0.1));
        let mut e = [
            zero - away(x_m),
            zero - away(x_n),
            rest * number(-1.0 / 18.0),
            rest * number(-1.0 / 20.0),
            (v + number(35.0)) * number(-0.1),
            rest * number(-1.0 / 80.0),
        ];
        // A loop, so that the compiler has one exponential before it at a time: of six it makes numbers one by one.
        for e in &mut e {
            *e = exp::<true, N>(*e);
        }
        [
            (self.currents[stage] - na - k - leak) * c[3],
            gate(m, quotient(x_m, e[0]), number(4.0) * e[2]),
            gate(h, number(0.07) * e[3], one / (one + e[4])),
            gate(n, number(0.1) * quotient(x_n, e[1]), number(0.125) * e[5]),
        ]
    }
}

/// Coefficients as [`Model::coefficients`] lists them.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 14], s: &mut [Lanes<N>; 5], input: &[Lanes<N>; 1]) -> Lanes<N> {
    let (zero, one) = (Lanes::splat(0.0), Lanes::splat(1.0));
    let (middle, end) = (fma(c[12], s[4], c[13]), c[11] * s[4]);
    let currents = [s[4] + c[13], middle, middle, end + c[13]];
    let before = s[0];
    let [v, m, h, n] = rk4::body([s[0], s[1], s[2], s[3]], c[0], [c[1], c[2]], &Change { c, currents });
    (s[0], s[1], s[2], s[3], s[4]) = (v, m, h, n, end + input[0]);
    let above = at_least(v, c[10], one, zero);
    at_least(before, c[10], zero, above)
}
