//! Izhikevich's model (IEEE Trans. Neural Netw. 14:1569, 2003).
//!
//! ```text
//! dv/dt = 0.04 v^2 + 5 v + 140 - u + I_e,    du/dt = a (b v - u),    v jumps by the weight (mV) of an arrival
//! v >= 30: spike, v = c, u = u + d
//! ```
//! Steps are those of Runge and Kutta, of order four between spikes; the original's are Euler's, of 1 ms.
//!
//! Presets are Izhikevich's, and the named cells of the original by its names, but for its two medium spiny neurons: their
//! a = 0.01, b = -20 are of the form with `v - v_r` of Izhikevich's book (2007), and in this one leave no state of rest.

use super::{Block, Initial, Model, Parameter, Twin, Variable, at_least, cpu, fma, positive, rk4};
use crate::config::short;
use crate::simd_math::Lanes;

const PARAMETERS: &[Parameter] = &[
    Parameter { name: "a", unit: "1/ms", default: 0.02 },
    Parameter { name: "b", unit: "1/ms", default: 0.2 },
    Parameter { name: "c", unit: "mV", default: -65.0 },
    Parameter { name: "d", unit: "mV/ms", default: 8.0 },
    Parameter { name: "V_th", unit: "mV", default: 30.0 },
    Parameter { name: "I_e", unit: "mV/ms", default: 0.0 },
];
const VARIABLES: &[Variable] = &[
    Variable { name: "V", unit: "mV", initial: Initial::Parameter("c") },
    Variable { name: "u", unit: "mV/ms", initial: Initial::Value(-13.0) },
];
type Preset = (&'static str, &'static [(&'static str, f64)]);
const PRESETS: &[Preset] = &[
    ("regular_spiking", &[]),
    ("fast_spiking", &[("a", 0.1), ("d", 2.0)]),
    ("inhibitory", &[("a", 0.1), ("d", 2.0)]),
    ("bursting", &[("c", -55.0), ("d", 4.0)]),
    ("chattering", &[("c", -50.0), ("d", 2.0)]),
    ("low_threshold_spiking", &[("b", 0.25), ("d", 2.0)]),
    ("thalamo_cortical", &[("b", 0.25), ("d", 0.05)]),
    ("resonator", &[("a", 0.1), ("b", 0.26), ("d", 2.0)]),
    ("martinotti", &[("b", 0.25), ("d", 2.0)]),
    ("chandelier", &[("a", 0.1), ("d", 2.0)]),
    ("basket", &[("a", 0.1), ("d", 2.0)]),
    ("bipolar_vip", &[("c", -55.0), ("d", 4.0)]),
    ("double_bouquet", &[("d", 6.0)]),
    ("cajal_retzius", &[]),
    ("spiny_stellate", &[]),
    ("betz_pyramidal", &[("c", -50.0), ("d", 2.0)]),
    ("meynert", &[("c", -55.0), ("d", 4.0)]),
    ("thalamocortical_relay", &[("b", 0.25), ("d", 0.05)]),
    ("reticular", &[("a", 0.1), ("b", 0.25), ("d", 2.0)]),
    ("stn", &[("a", 0.005), ("b", 0.265), ("d", 2.0)]),
    ("snc_dopamine", &[("a", 0.001)]),
    ("purkinje", &[("d", 4.0)]),
    ("granule", &[]),
    ("golgi", &[("a", 0.1), ("d", 2.0)]),
    ("ca1_pyramidal", &[]),
    ("ca3_pyramidal", &[("c", -50.0), ("d", 2.0)]),
    ("dentate_granule", &[]),
];

/// The model.
#[derive(Debug)]
pub(super) struct Izhikevich;

impl Model for Izhikevich {
    fn name(&self) -> &'static str {
        "izhikevich"
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
    fn presets(&self) -> &'static [Preset] {
        PRESETS
    }
    fn problem(&self, p: &[f64], _dt_ms: f64) -> Option<String> {
        if let Some(problem) = positive(PARAMETERS, p, &[]) {
            return Some(problem);
        }
        (p[2] >= p[4]).then(|| {
            format!("has c = {} mV at or above V_th = {} mV, so that it never stops firing", short(p[2]), short(p[4]))
        })
    }
    fn coefficient_count(&self) -> usize {
        9
    }
    fn coefficients(&self, p: &[f64], h: f64, out: &mut [f32]) {
        let all = [h, 0.5 * h, h / 6.0, p[0], p[1], p[2], p[3], p[4], 140.0 + p[5]];
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x as f32);
    }
    fn law(&self, p: &[f64], h: f64, state: &mut [f64], input: &[f64]) -> bool {
        let f = |_, [v, u]: [f64; 2]| [0.04 * v * v + 5.0 * v + 140.0 - u + p[5], p[0] * (p[1] * v - u)];
        let [v, u] = rk4::law([state[0], state[1]], h, f);
        (state[0], state[1]) = (v + input[0], u);
        let fires = state[0] >= p[4];
        if fires {
            (state[0], state[1]) = (p[2], state[1] + p[3]);
        }
        fires
    }
    fn twin(&self) -> Twin {
        Twin::Izhikevich
    }
    fn step(&self, block: &mut Block<'_>) {
        cpu::izhikevich::step(block);
    }
}

/// That of v and u.
struct Change<'a, const N: usize>(&'a [Lanes<N>; 9]);

impl<const N: usize> rk4::Derivative<N, 2> for Change<'_, N> {
    #[inline(always)]
    fn at(&self, _stage: usize, [v, u]: &[Lanes<N>; 2]) -> [Lanes<N>; 2] {
        let (c, quadratic, linear) = (self.0, Lanes::splat(0.04), Lanes::splat(5.0));
        [fma(fma(quadratic, *v, linear), *v, c[8] - *u), c[3] * (c[4] * *v - *u)]
    }
}

/// Coefficients h, h/2, h/6, a, b, c, d, threshold, 140 + I_e.
#[inline(always)]
pub(super) fn body<const N: usize>(c: &[Lanes<N>; 9], s: &mut [Lanes<N>; 2], input: &[Lanes<N>; 1]) -> Lanes<N> {
    let [v, u] = rk4::body(*s, c[0], [c[1], c[2]], &Change(c));
    let v = v + input[0];
    s[0] = at_least(v, c[7], c[5], v);
    s[1] = at_least(v, c[7], u + c[6], u);
    at_least(v, c[7], Lanes::splat(1.0), Lanes::splat(0.0))
}
