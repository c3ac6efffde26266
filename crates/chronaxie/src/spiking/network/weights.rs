//! How precise the weights of a projection are, and how they are drawn as whole numbers: of 16 bits by a table of all that there are
//! ([`Codes`]), of 32 by lines between the quantiles of their distribution ([`Curve`]).

use super::distribution::{Codes, Distribution, Outside, Shape};
use crate::spiking::math::{exp, normal_quantile};

/// How many bits the weights of a projection have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WeightBits {
    /// 16: multiples of the finest power of two at which the largest weight into the same port fits.
    #[default]
    Sixteen,
    /// 32, as precise as single precision, in a unit as fine as the sums of the port allow.
    ThirtyTwo,
}

impl WeightBits {
    /// What a configuration means by this number of them.
    pub fn of(bits: u32) -> Option<Self> {
        match bits {
            16 => Some(Self::Sixteen),
            32 => Some(Self::ThirtyTwo),
            _ => None,
        }
    }
}

/// A weight of single precision: what a table and a list of edges can say, to the bit.
#[inline(always)]
pub(in crate::spiking) fn single(code: i32) -> i32 {
    code as f32 as i32
}

/// An octave of shares has as many knots, as a power of two.
const FINE: u32 = 8;
/// Octaves of either half: 31 bits, of which the lowest `FINE` have a knot each.
const KNOTS: usize = (32 - FINE as usize) << FINE;

/// Where a share, as 31 bits, lies among knots: after which one, and how far, of a power of two.
#[inline(always)]
fn place(share: u32) -> (usize, u32, u32) {
    let octave = (31 - FINE).saturating_sub(share.leading_zeros());
    let at = ((octave << FINE) + (share >> octave)) as usize;
    (at, share & ((1 << octave) - 1), octave)
}

/// The share of knot `at`, in `2^-32`.
fn share(at: usize) -> u32 {
    let octave = (at >> FINE).saturating_sub(1);
    ((at - (octave << FINE)) as u32) << octave
}

/// The quantiles of a distribution at shares that lie the closer to each other the nearer they are to an end: 256 in each octave, so that a
/// line from one to the next is off by less than a millionth of the distance of two octaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantiles {
    /// From the lower end to the middle, then from the upper one.
    values: [Vec<f64>; 2],
}

impl Quantiles {
    /// Those of `d`, which is one that [`Distribution::problem`] finds none with.
    pub fn new(d: &Distribution) -> Self {
        let one = |upper: bool| {
            let value = |at: usize| {
                let near = (f64::from(share(at)) + 0.5) / 4_294_967_296.0;
                if upper { quantile(d, 1.0 - near, near) } else { quantile(d, near, 1.0 - near) }
            };
            (0..=KNOTS).map(value).collect()
        };
        Self { values: [one(false), one(true)] }
    }

    /// The mean size and the mean square of what lies on the lines.
    pub fn moments(&self) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for knots in &self.values {
            for (at, ends) in knots.windows(2).enumerate() {
                let n = f64::from(share(at + 1) - share(at));
                let (x, d) = (ends[0].abs(), ends[1].abs() - ends[0].abs());
                sums[0] += n * x + d * (n - 1.0) / 2.0;
                sums[1] += n * x * x + x * d * (n - 1.0) + d * d * (n - 1.0) * (2.0 * n - 1.0) / (6.0 * n);
            }
        }
        sums.map(|sum| sum / 4_294_967_296.0)
    }
}

/// The value of `d` below which a share `p` lies and above which `q` does; the smaller one of them is exact.
fn quantile(d: &Distribution, p: f64, q: f64) -> f64 {
    if let Some(x) = d.constant() {
        return x;
    }
    let (mut p, mut q) = (p, q);
    if d.outside == Outside::Redraw {
        let (below, above) = (d.raw(d.low), 1.0 - d.raw(d.high));
        let kept = 1.0 - below - above;
        (p, q) = (below + p * kept, above + q * kept);
    }
    let normal = || if p <= q { normal_quantile(p) } else { -normal_quantile(q) };
    let x = match d.shape {
        Shape::Constant(x) => x,
        Shape::Normal { mean, sd } => mean + sd * normal(),
        Shape::Lognormal { mu, sigma, negative: false } => exp(mu + sigma * normal()),
        Shape::Lognormal { mu, sigma, negative: true } => -exp(mu - sigma * normal()),
        Shape::Uniform { low, high } => low + (high - low) * p,
    };
    x.clamp(d.low, d.high)
}

/// A distribution over whole numbers: 32 uniform bits become the number that lies on the line between two quantiles, rounded to single
/// precision.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Of the lower half, then of the upper.
    knots: Vec<i32>,
}

impl Curve {
    /// Over multiples of `unit`, of which all quantiles have less than 2^31.
    pub fn new(quantiles: &Quantiles, unit: f64) -> Self {
        Self { knots: quantiles.values.iter().flatten().map(|x| (x / unit).round() as i32).collect() }
    }
    /// The number that `bits` mean.
    #[inline(always)]
    pub fn pick(&self, bits: u32) -> i32 {
        let upper = bits >> 31;
        let (at, past, octave) = place(if upper > 0 { !bits } else { bits });
        let at = at + upper as usize * (KNOTS + 1);
        let (from, to) = (i64::from(self.knots[at]), i64::from(self.knots[at + 1]));
        single((from + (((to - from) * i64::from(past) + (1 << octave >> 1)) >> octave)) as i32)
    }
    /// The mean, but for rounding.
    pub fn mean(&self) -> f64 {
        let halves = self.knots.chunks_exact(KNOTS + 1);
        let sum = halves.flat_map(|knots| knots.windows(2).enumerate()).map(|(at, ends)| {
            let n = f64::from(share(at + 1) - share(at));
            let [from, to] = [ends[0], ends[1]].map(f64::from);
            n * from + (to - from) * (n - 1.0) / 2.0
        });
        sum.sum::<f64>() / 4_294_967_296.0
    }
    /// The least number, and the greatest.
    pub fn ends(&self) -> (i32, i32) {
        (single(self.knots[0]), single(self.knots[KNOTS + 1]))
    }
}

/// The weights of a projection, drawn by 32 bits each as a whole number.
#[derive(Debug, Clone, PartialEq)]
pub enum Weights {
    /// Multiples of a unit that is `2^shift` of the numbers'.
    Codes {
        /// Of that unit.
        codes: Codes,
        /// 0 where the port has no finer weights.
        shift: u32,
    },
    /// Of 32 bits.
    Curve(Curve),
}

impl Weights {
    /// The number that `bits` mean.
    #[inline(always)]
    pub fn pick(&self, bits: u32) -> i32 {
        match self {
            Self::Codes { codes, shift } => codes.pick(bits) << shift,
            Self::Curve(curve) => curve.pick(bits),
        }
    }
    /// The table of all that there are, where they are as many as it says.
    pub fn codes(&self) -> Option<&Codes> {
        match self {
            Self::Codes { codes, shift: 0 } => Some(codes),
            _ => None,
        }
    }
    /// The least number.
    pub fn least(&self) -> i32 {
        match self {
            Self::Codes { codes, shift } => codes.least() << shift,
            Self::Curve(curve) => curve.ends().0,
        }
    }
    /// The greatest.
    pub fn greatest(&self) -> i32 {
        match self {
            Self::Codes { codes, shift } => codes.greatest() << shift,
            Self::Curve(curve) => curve.ends().1,
        }
    }
    /// The mean.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Codes { codes, shift } => codes.mean() * f64::from(1u32 << shift),
            Self::Curve(curve) => curve.mean(),
        }
    }
    /// As kernels have them (`Codes` of codes.cuh): words, how many, and the first code; where weights are long, the upper
    /// eight bits of the number of words are the shift, or all ones for a curve.
    pub(in crate::spiking) fn words(&self) -> (Vec<u32>, u32, i32) {
        match self {
            Self::Codes { codes, shift } => {
                let (words, count, first) = codes.words();
                (words, shift << 24 | count, first)
            }
            Self::Curve(curve) => (curve.knots.iter().map(|x| *x as u32).collect(), 0xFF << 24, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::draws::{Purpose, Stream};

    /// Every share lies between two knots, and knots meet.
    #[test]
    fn shares_lie_between_their_knots() {
        assert_eq!((share(0), share(511), share(512), share(513)), (0, 511, 512, 514));
        assert_eq!(share(KNOTS), 1 << 31);
        for bits in (0..31).flat_map(|k| [1u32 << k, (1 << k) + 1, (1 << k) - 1 + (1 << k)]).chain([0, (1 << 31) - 1]) {
            let (at, past, octave) = place(bits);
            assert!(at < KNOTS, "{bits}");
            assert_eq!((share(at) + past, share(at + 1) - share(at)), (bits, 1 << octave), "{bits}");
        }
    }

    fn shapes() -> Vec<Distribution> {
        let lognormal = |sigma, negative| Distribution::new(Shape::Lognormal { mu: -0.5, sigma, negative });
        vec![
            lognormal(0.5, false),
            lognormal(2.5, false),
            lognormal(1.5, true),
            lognormal(1.0, false).within(0.1, 20.0, Outside::Redraw),
            Distribution::normal(1.0, 0.5).within(0.0, f64::INFINITY, Outside::Redraw),
            Distribution::normal(1.0, 0.5).within(0.5, 1.25, Outside::Clip),
            Distribution::normal(-3.0, 0.1),
            Distribution::uniform(-2.0, -0.5),
        ]
    }

    /// Numbers on the lines are the distribution's quantiles, found by bisection of its distribution function, at any bits.
    #[test]
    fn a_curve_is_the_distribution() {
        for d in shapes() {
            let quantiles = Quantiles::new(&d);
            let largest = d.quantile(1e-10).abs().max(d.quantile(1.0 - 1e-10).abs());
            let unit = largest / 2f64.powi(30);
            let curve = Curve::new(&quantiles, unit);
            let mut bits = Stream::new(3, Purpose::Cell, 0, 0);
            let some: Vec<u32> =
                (0..400).map(|i| bits.bits() >> (i % 20)).flat_map(|b| [b, !b]).chain([0, u32::MAX]).collect();
            let spread = d.quantile(0.75) - d.quantile(0.25);
            for bits in some {
                let p = (f64::from(bits) + 0.5) / 4_294_967_296.0;
                let (got, want) = (f64::from(curve.pick(bits)) * unit, d.quantile(p));
                // A line, a unit, single precision, and that p is near 1 and a kink where it is clipped.
                let allowed = 1e-5 * (want.abs() + spread) + unit;
                assert!((got - want).abs() <= allowed, "{d:?} at {p}: {got} {want}");
            }
            let mut last = i32::MIN;
            for bits in (0..1u64 << 32).step_by(65_537) {
                let code = curve.pick(bits as u32);
                assert!(code >= last && code == single(code), "{d:?} falls at {bits}");
                last = code;
            }
            // Means by the distribution's own formula, where it has one, else by quantiles.
            let exact = d.low.is_infinite() && d.high.is_infinite();
            let by_quantiles = || (0..4096).map(|i| d.quantile((f64::from(i) + 0.5) / 4096.0)).sum::<f64>() / 4096.0;
            let (near, mean) = if exact { (2e-5, d.mean()) } else { (1e-3, by_quantiles()) };
            let [size, square] = quantiles.moments();
            assert!((curve.mean() * unit / mean - 1.0).abs() < near, "{} {mean}", curve.mean() * unit);
            assert!((size / mean.abs() - 1.0).abs() < near && square >= size * size);
            if let Shape::Lognormal { mu, sigma, .. } = d.shape
                && exact
                && sigma < 2.0
            {
                let want = exp(2.0 * mu + 2.0 * sigma * sigma);
                assert!((square / want - 1.0).abs() < 1e-3, "{square} {want}");
            }
        }
    }

    #[test]
    fn whole_numbers_of_single_precision_are_their_own() {
        assert_eq!(single(16_777_217), 16_777_216);
        for code in [0, 1, -1, 32_767 << 16, -(32_767 << 16), 16_777_216, -16_777_215] {
            assert_eq!(single(code), code);
        }
    }
}
