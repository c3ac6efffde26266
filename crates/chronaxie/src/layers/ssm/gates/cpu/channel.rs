//! What a channel has for all times, made once in f64, and the maps that are products with it; and those that have no time.

use super::super::kind::Kind;
use crate::layers::ssm::complex::{Complex, Field as _};

/// The gate and the factor of a channel, with the parameters that they are made of.
pub(super) struct Channel {
    kind: Kind,
    own: [f64; 3],
    gate: Complex<f64>,
    factor: Complex<f64>,
}

/// Sums over batch and time: of the gate's gradient, and of that of the factor; for RG-LRU that of the rate is the first.
#[derive(Default)]
pub(super) struct Sums {
    pub of_gate: [f64; 2],
    pub of_factor: [f64; 2],
}

impl Channel {
    /// Channel `c`, with the parameters `own`.
    pub(super) fn new(kind: Kind, own: &[&[f32]], c: usize) -> Self {
        let own = std::array::from_fn(|i| own.get(i).map_or(0.0, |v| f64::from(v[c])));
        let [first, second, third] = own;
        // LRU's and that of one real decay: both are functions of the rate.
        let decay = |angle: f64| {
            let rate = first.exp();
            (Complex::polar((-rate).exp(), angle), Complex::real((-(-2.0 * rate).exp_m1()).sqrt()))
        };
        let (gate, factor) = match kind {
            Kind::Decay => decay(0.0),
            Kind::Lru => decay(second.exp()),
            Kind::S5 => {
                let delta = third.exp();
                let w = Complex::new(first, second).scale(delta);
                (w.exp(), w.phi1().scale(delta))
            }
            Kind::Hold => (Complex::real(first.exp()), Complex::real(0.0)),
            _ => (Complex::real(0.0), Complex::real(0.0)),
        };
        Self { kind, own, gate, factor }
    }
    /// RG-LRU's: 8 softplus(-lambda).
    pub(super) fn rate(&self) -> f32 {
        let x = -self.own[0];
        (8.0 * (x.max(0.0) + (-x.abs()).exp().ln_1p())) as f32
    }

    /// `a = gate`, `x = factor v` for a row.
    pub(super) fn forward(&self, v: &[f32], a: &mut [f32], x: &mut [f32]) {
        let [gate, factor] = [self.gate, self.factor].map(|c| [c.re as f32, c.im as f32]);
        if !self.kind.form().complex {
            a.fill(gate[0]);
            x.iter_mut().zip(v).for_each(|(x, v)| *x = factor[0] * v);
            return;
        }
        a.as_chunks_mut::<2>().0.fill(gate);
        let [re, im] = factor;
        for (x, v) in x.as_chunks_mut::<2>().0.iter_mut().zip(v.as_chunks::<2>().0) {
            *x = [re * v[0] - im * v[1], re * v[1] + im * v[0]];
        }
    }

    /// The gradient of v, and what the row adds to the sums.
    pub(super) fn backward(&self, v: &[f32], grad_a: &[f32], grad_x: &[f32], grad_v: &mut [f32], sums: &mut Sums) {
        let [re, im] = [self.factor.re as f32, self.factor.im as f32];
        if !self.kind.form().complex {
            sums.of_gate[0] += grad_a.iter().map(|&g| f64::from(g)).sum::<f64>();
            for ((to, v), g) in grad_v.iter_mut().zip(v).zip(grad_x) {
                *to = re * g;
                sums.of_factor[0] += f64::from(*v) * f64::from(*g);
            }
            return;
        }
        for g in grad_a.as_chunks::<2>().0 {
            sums.of_gate[0] += f64::from(g[0]);
            sums.of_gate[1] += f64::from(g[1]);
        }
        let pairs = v.as_chunks::<2>().0.iter().zip(grad_x.as_chunks::<2>().0);
        for (to, (v, g)) in grad_v.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            *to = [re * g[0] + im * g[1], re * g[1] - im * g[0]];
            let [v, g] = [v, g].map(|n| n.map(f64::from));
            sums.of_factor[0] += g[0] * v[0] + g[1] * v[1];
            sums.of_factor[1] += g[1] * v[0] - g[0] * v[1];
        }
    }

    /// The gradients of the channel's parameters, in their order.
    pub(super) fn parameters(&self, sums: &Sums) -> [f64; 3] {
        let [of_gate, of_factor] = [sums.of_gate, sums.of_factor].map(|[re, im]| Complex::new(re, im));
        let [first, second, third] = self.own;
        let decay = || {
            let radial = of_gate.re * self.gate.re + of_gate.im * self.gate.im;
            first.exp() * (of_factor.re * self.gate.norm_squared() / self.factor.re - radial)
        };
        match self.kind {
            // d log a / d lambda is 8 r sigmoid(-lambda); the sum is that of the rate's gradient times r.
            Kind::RgLru => [-8.0 / (1.0 + first.exp()) * of_gate.re, 0.0, 0.0],
            Kind::Decay => [decay(), 0.0, 0.0],
            Kind::Lru => {
                let turning = of_gate.im * self.gate.re - of_gate.re * self.gate.im;
                [decay(), second.exp() * turning, 0.0]
            }
            Kind::S5 => {
                let (lambda, delta) = (Complex::new(first, second), third.exp());
                let w = lambda.scale(delta);
                let of_w = of_gate * self.gate.conj();
                let of_lambda = of_w.scale(delta) + (of_factor * w.phi1_slope().conj()).scale(delta * delta);
                let of_delta = (of_w * lambda.conj()).re + (of_factor * self.gate.conj()).re;
                [of_lambda.re, of_lambda.im, of_delta * delta]
            }
            Kind::Hold => [of_gate.re * self.gate.re, 0.0, 0.0],
            _ => [0.0; 3],
        }
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Rates and weights, which have no time: there are few of them.
pub(super) fn forward(kind: Kind, raw: &[f32], y: &mut [f32]) {
    if kind == Kind::Rate {
        y.iter_mut().zip(raw).for_each(|(y, &raw)| *y = -f64::from(raw).exp() as f32);
        return;
    }
    for (y, raw) in y.as_chunks_mut::<2>().0.iter_mut().zip(raw.as_chunks::<2>().0) {
        let [re, im] = raw.map(f64::from);
        *y = match kind {
            Kind::ComplexRate => [-re.exp(), im],
            _ => [softplus(re) * im.cos(), softplus(re) * im.sin()],
        }
        .map(|x| x as f32);
    }
}

/// The gradients of [`forward`].
pub(super) fn backward(kind: Kind, raw: &[f32], grad_y: &[f32], grad: &mut [f32]) {
    if kind == Kind::Rate {
        let pairs = raw.iter().zip(grad_y);
        grad.iter_mut().zip(pairs).for_each(|(to, (&raw, &g))| *to = (-f64::from(raw).exp() * f64::from(g)) as f32);
        return;
    }
    let pairs = raw.as_chunks::<2>().0.iter().zip(grad_y.as_chunks::<2>().0);
    for (to, (raw, g)) in grad.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        let ([re, im], [g_re, g_im]) = (raw.map(f64::from), g.map(f64::from));
        *to = match kind {
            Kind::ComplexRate => [-re.exp() * g_re, g_im],
            _ => {
                let (sin, cos) = im.sin_cos();
                [(g_re * cos + g_im * sin) / (1.0 + (-re).exp()), softplus(re) * (g_im * cos - g_re * sin)]
            }
        }
        .map(|x| x as f32);
    }
}
