//! Leaky integrate-and-fire with exponentially decaying currents (`iaf_psc_exp` of NEST).
//!
//! ```text
//! C dV/dt = -C (V - E_L) / tau_m + I_ex + I_in + I_e,    dI/dt = -I / tau,    I jumps by the weight (pA) of an arrival
//! V >= V_th: spike, V = V_reset, held there for t_ref; the currents go on
//! ```
//! Linear between spikes, so a step is exact (Rotter and Diesmann, Biol. Cybern. 81, 1999): with u = V - E_L,
//! `u' = P22 u + P21 I + P20 I_e` and `I' = P11 I + arrivals`. Where the two time
//! constants are close, the quotients are taken by expm1 (law) or by their series (body).
//! Where both currents have one time constant their sum obeys the same equation, and one variable holds it.

use super::{
    Block, Initial, Model, Parameter, Twin, Variable, at_least, cpu, fma, positive, refractory_steps, reset_problem,
};
use crate::simd_math::Lanes;
use crate::spiking::math;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "C_m", unit: "pF", default: 250.0 },
    Parameter { name: "tau_m", unit: "ms", default: 10.0 },
    Parameter { name: "E_L", unit: "mV", default: -65.0 },
    Parameter { name: "V_th", unit: "mV", default: -50.0 },
    Parameter { name: "V_reset", unit: "mV", default: -65.0 },
    Parameter { name: "t_ref", unit: "ms", default: 2.0 },
    Parameter { name: "tau_syn_ex", unit: "ms", default: 0.5 },
    Parameter { name: "tau_syn_in", unit: "ms", default: 0.5 },
    Parameter { name: "I_e", unit: "pA", default: 0.0 },
];
const V: Variable = Variable { name: "V", unit: "mV", initial: Initial::Parameter("E_L") };
const REFRACTORY: Variable = Variable { name: "refractory", unit: "steps", initial: Initial::Value(0.0) };
const fn current(name: &'static str) -> Variable {
    Variable { name, unit: "pA", initial: Initial::Value(0.0) }
}
const ONE: &[Variable] = &[V, current("I_syn"), REFRACTORY];
const TWO: &[Variable] = &[V, current("I_ex"), current("I_in"), REFRACTORY];

/// The model, in one current or in two.
#[derive(Debug)]
pub(super) struct LifExp {
    two: bool,
}
/// As configurations name it.
pub(super) static LIF_EXP: LifExp = LifExp { two: true };
static LIF_EXP_ONE: LifExp = LifExp { two: false };

/// What a current of 1 at a step's beginning, which decays with `tau`, adds to u in the step:
/// `tau_m tau / (C (tau_m - tau)) (e^(-h/tau_m) - e^(-h/tau))`, without its pole.
pub(super) fn propagator(c: f64, tau_m: f64, tau: f64, h: f64) -> f64 {
    math::exp(-h / tau_m) * h * math::phi1((1.0 / tau - 1.0 / tau_m) * h) / c
}

impl Model for LifExp {
    fn name(&self) -> &'static str {
        "lif_exp"
    }
    fn aliases(&self) -> &'static [&'static str] {
        &["iaf_psc_exp"]
    }
    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }
    fn variables(&self) -> &'static [Variable] {
        if self.two { TWO } else { ONE }
    }
    fn ports(&self) -> &'static [&'static str] {
        if self.two { &["ex", "in"] } else { &["syn"] }
    }
    fn weight_unit(&self) -> &'static str {
        "pA"
    }
    fn reduced(&self, constants: &[Option<f64>]) -> Option<&'static dyn Model> {
        (constants[6].is_some() && constants[6] == constants[7]).then_some(&LIF_EXP_ONE)
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
        if self.two { 9 } else { 7 }
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let [c, tau_m, e_l, v_th, v_reset, t_ref, ex, inh, i_e] = *p else { unreachable!("nine parameters") };
        let decay = math::exp(-h / tau_m);
        let constant = i_e * tau_m / c * (1.0 - decay);
        let fixed = [decay, constant, v_th - e_l, v_reset - e_l, refractory_steps(t_ref, h)];
        let synapse = |tau: f64| [math::exp(-h / tau), propagator(c, tau_m, tau, h)];
        let all = fixed.into_iter().chain(synapse(ex)).chain(synapse(inh));
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        let currents = if self.two { 2 } else { 1 };
        let [c, tau_m, e_l, v_th, v_reset, t_ref] = p[..6] else { unreachable!("nine parameters") };
        let refractory = state[1 + currents];
        if refractory > 0.0 {
            state[1 + currents] = refractory - 1.0;
        } else {
            let mut u = state[0] * (-h / tau_m).exp() - p[8] * tau_m / c * (-h / tau_m).exp_m1();
            for k in 0..currents {
                let tau = p[6 + k];
                let rate = 1.0 / tau - 1.0 / tau_m;
                let factor = if rate == 0.0 { h } else { -(-rate * h).exp_m1() / rate };
                u += state[1 + k] * (-h / tau_m).exp() * factor / c;
            }
            state[0] = u;
        }
        for k in 0..currents {
            state[1 + k] = state[1 + k] * (-h / p[6 + k]).exp() + input[k];
        }
        let fires = state[0] >= v_th - e_l;
        if fires {
            state[0] = v_reset - e_l;
            state[1 + currents] = refractory_steps(t_ref, h);
        }
        fires
    }
    fn twin(&self) -> Twin {
        if self.two { Twin::LifExp } else { Twin::LifExpOne }
    }
    fn step(&self, block: &mut Block<'_>) {
        if self.two { cpu::lif_exp2::step(block) } else { cpu::lif_exp::step(block) }
    }
    fn charge(&self, p: &[f64], port: usize) -> Option<f64> {
        Some(p[6 + port])
    }
}

/// One current; coefficients P22, P20 I_e, threshold, reset, refractory steps, P11, P21.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 7], s: &mut [Lanes<N>; 3], input: &[Lanes<N>; 1]) -> Lanes<N> {
    let moved = fma(c[0], s[0], fma(c[6], s[1], c[1]));
    s[1] = fma(c[5], s[1], input[0]);
    fire(c[2], c[3], c[4], moved, s, 2)
}

/// Two currents; then also P11 and P21 of the second.
#[inline(always)]
pub(super) fn body2<const N: usize>(c: &[Lanes<N>; 9], s: &mut [Lanes<N>; 4], input: &[Lanes<N>; 2]) -> Lanes<N> {
    let moved = fma(c[0], s[0], fma(c[6], s[1], fma(c[8], s[2], c[1])));
    s[1] = fma(c[5], s[1], input[0]);
    s[2] = fma(c[7], s[2], input[1]);
    fire(c[2], c[3], c[4], moved, s, 3)
}

/// Holds a refractory cell, fires one at or above `threshold`, and returns 1 where it fires.
#[inline(always)]
pub(super) fn fire<const N: usize, const S: usize>(
    threshold: Lanes<N>,
    reset: Lanes<N>,
    steps: Lanes<N>,
    moved: Lanes<N>,
    s: &mut [Lanes<N>; S],
    refractory: usize,
) -> Lanes<N> {
    let (zero, one) = (Lanes::splat(0.0), Lanes::splat(1.0));
    let left = s[refractory];
    let v = at_least(left, one, s[0], moved);
    let fired = at_least(v, threshold, one, zero);
    s[0] = at_least(v, threshold, reset, v);
    s[refractory] = at_least(v, threshold, steps, at_least(left, one, left - one, zero));
    fired
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the microcircuit, from its published propagators.
    #[test]
    fn propagators_are_the_published_ones() {
        let p: Vec<f64> = PARAMETERS.iter().map(|p| p.default).collect();
        let mut c = [0.0; 7];
        LIF_EXP_ONE.coefficients(&p, 0.1, &mut c);
        let want = [0.990_049_833_7, 0.0, 15.0, 0.0, 20.0, 0.818_730_753_1, 3.606_717_5e-4];
        for (c, want) in c.iter().zip(want) {
            assert!((f64::from(*c) - want).abs() <= 1e-7 * want.max(1e-4), "{c} {want}");
        }
        let with_dc: Vec<f64> = p[..8].iter().copied().chain([1.0]).collect();
        LIF_EXP_ONE.coefficients(&with_dc, 0.1, &mut c);
        assert!((f64::from(c[1]) - 3.980_066_5e-4).abs() < 1e-10);
    }

    /// u(t) = w/C (e^(-t/tau_m) - e^(-t/tau)) / (1/tau - 1/tau_m) after one arrival, at any tau, also where both are
    /// equal; the law is exact at every step, for every size of step.
    #[test]
    fn one_arrival_gives_the_analytic_potential() {
        for (tau_m, tau, h) in
            [(10.0, 0.5, 0.1), (10.0, 5.0, 1.0), (10.0, 10.0, 0.1), (10.0, 10.0 + 1e-7, 0.1), (2.0, 8.0, 0.7)]
        {
            let mut p: Vec<f64> = PARAMETERS.iter().map(|p| p.default).collect();
            (p[1], p[6], p[7], p[3]) = (tau_m, tau, tau, 1e6);
            let (mut s, mut two) = ([0.0; 3], [0.0; 4]);
            LIF_EXP_ONE.law(&p, h, &mut s, &[87.8]);
            LIF_EXP.law(&p, h, &mut two, &[0.0, 87.8]);
            for n in 1..200 {
                LIF_EXP_ONE.law(&p, h, &mut s, &[0.0]);
                LIF_EXP.law(&p, h, &mut two, &[0.0, 0.0]);
                let t = f64::from(n) * h;
                let want = if tau == tau_m {
                    87.8 / p[0] * t * (-t / tau).exp()
                } else {
                    87.8 / p[0] * ((-t / tau_m).exp() - (-t / tau).exp()) / (1.0 / tau - 1.0 / tau_m)
                };
                // Here the formula itself cancels to 1e-9 where the constants are close.
                let allowed = if (tau - tau_m).abs() < 1e-3 && tau != tau_m { 1e-7 } else { 1e-11 };
                assert!((s[0] - want).abs() < allowed && (two[0] - want).abs() < allowed, "{tau} {n}: {} {want}", s[0]);
            }
        }
    }

    /// Under DC the time to the threshold is tau_m ln(R I / (R I - theta)), and the next spike comes t_ref later.
    #[test]
    fn direct_current_fires_at_the_analytic_times() {
        let mut p: Vec<f64> = PARAMETERS.iter().map(|p| p.default).collect();
        p[8] = 500.0;
        let (h, r) = (0.1f64, 40.0e-3f64);
        let rise = 10.0 * (r * 500.0 / (r * 500.0 - 15.0)).ln();
        let mut s = [0.0; 3];
        let spikes: Vec<i32> = (1..2000).filter(|_| LIF_EXP_ONE.law(&p, h, &mut s, &[0.0])).collect();
        let interval = (rise / h).ceil() as i32 + 20;
        assert_eq!(spikes[0], (rise / h).ceil() as i32);
        assert!(spikes.len() > 10 && spikes.windows(2).all(|w| w[1] - w[0] == interval), "{spikes:?} {interval}");
    }
}
