//! Distributions of weights, delays, parameters and initial values, and how they become whole numbers.

use crate::config::short;
use crate::spiking::draws::Stream;
use crate::spiking::math::{exp, ln, normal_cdf};
use std::cell::RefCell;
use std::collections::VecDeque;

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Shape {
    /// Always this value.
    Constant(f64),
    /// Normal with this mean and standard deviation.
    Normal {
        /// Mean before bounds.
        mean: f64,
        /// Standard deviation before bounds.
        sd: f64,
    },
    /// `e^x` (or `-e^x`) for a normal x.
    Lognormal {
        /// Mean of x.
        mu: f64,
        /// Standard deviation of x.
        sigma: f64,
        /// Whether the values are negative.
        negative: bool,
    },
    /// Uniform.
    Uniform {
        /// The lower end.
        low: f64,
        /// The upper end.
        high: f64,
    },
}

/// What becomes of a value outside of the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// It is drawn again.
    Redraw,
    /// It becomes the bound.
    Clip,
}

/// A distribution with bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distribution {
    /// What is drawn.
    pub shape: Shape,
    /// The least value, or minus infinity.
    pub low: f64,
    /// The greatest value, or infinity.
    pub high: f64,
    /// What becomes of values beyond them.
    pub outside: Outside,
}

/// `verb` x and why that is refused, of a number beyond single precision.
pub(super) fn beyond_single(verb: &str, x: f64) -> Option<String> {
    let most = f32::MAX;
    (!(x as f32).is_finite())
        .then(|| format!("{verb} {x:e}, which is beyond the range of single precision, -{most:e} to {most:e}"))
}

impl From<f64> for Distribution {
    fn from(value: f64) -> Self {
        Self::new(Shape::Constant(value))
    }
}

impl Distribution {
    /// `shape` without bounds.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, low: f64::NEG_INFINITY, high: f64::INFINITY, outside: Outside::Redraw }
    }
    /// Normal with this mean and standard deviation.
    pub const fn normal(mean: f64, sd: f64) -> Self {
        Self::new(Shape::Normal { mean, sd })
    }
    /// Uniform from `low` to `high`.
    pub const fn uniform(low: f64, high: f64) -> Self {
        Self::new(Shape::Uniform { low, high })
    }
    /// With these bounds.
    #[must_use]
    pub const fn within(mut self, low: f64, high: f64, outside: Outside) -> Self {
        (self.low, self.high, self.outside) = (low, high, outside);
        self
    }
    /// The one value there is, if there is one.
    pub fn constant(&self) -> Option<f64> {
        match self.shape {
            Shape::Constant(x) => Some(x),
            Shape::Normal { mean, sd: 0.0 } => Some(mean),
            Shape::Uniform { low, high } if low == high => Some(low),
            _ => None,
        }
        .map(|x| x.clamp(self.low, self.high))
    }
    /// Every value times `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let shape = match self.shape {
            Shape::Constant(x) => Shape::Constant(x * factor),
            Shape::Normal { mean, sd } => Shape::Normal { mean: mean * factor, sd: sd * factor.abs() },
            Shape::Lognormal { mu, sigma, negative } => {
                Shape::Lognormal { mu: mu + ln(factor.abs()), sigma, negative: negative != (factor < 0.0) }
            }
            Shape::Uniform { low, high } => {
                let ends = (low * factor, high * factor);
                Shape::Uniform { low: ends.0.min(ends.1), high: ends.0.max(ends.1) }
            }
        };
        let ends = if factor < 0.0 { (self.high, self.low) } else { (self.low, self.high) };
        let bound = |x: f64| if x.is_finite() { x * factor } else { x * factor.signum() };
        Self { shape, low: bound(ends.0), high: bound(ends.1), outside: self.outside }
    }
    /// A sentence's end that says what is wrong with the numbers, if something is.
    pub fn problem(&self) -> Option<String> {
        let spread = match self.shape {
            Shape::Constant(_) => 0.0,
            Shape::Normal { sd, .. } => sd,
            Shape::Lognormal { sigma, .. } => sigma,
            Shape::Uniform { low, high } => high - low,
        };
        if spread.is_nan() || spread < 0.0 {
            return Some(format!("has the spread {spread}, which must be at least 0", spread = short(spread)));
        }
        if self.low.is_nan() || self.high.is_nan() || self.low > self.high {
            return Some(format!(
                "has the bounds {} and {}, of which none can be met",
                short(self.low),
                short(self.high)
            ));
        }
        if let Some(x) = self.constant().filter(|x| !x.is_finite()) {
            return Some(format!("is {x}"));
        }
        let Shape::Constant(x) = self.shape else {
            let kept = self.raw(self.high) - self.raw(self.low);
            let thin = self.constant().is_none() && self.outside == Outside::Redraw && kept < 1e-6;
            return thin.then(|| {
                format!(
                    "leaves {kept:.1e} of the distribution between its bounds {} and {}",
                    short(self.low),
                    short(self.high)
                )
            });
        };
        (x < self.low || x > self.high).then(|| {
            format!(
                "is the constant {x}, outside of its bounds {} and {}",
                short(self.low),
                short(self.high),
                x = short(x)
            )
        })
    }
    /// A sentence's end that says which value is beyond single precision, in which cells are kept.
    pub fn beyond_single(&self) -> Option<String> {
        [self.quantile(1e-10), self.quantile(1.0 - 1e-10)].into_iter().find_map(|x| beyond_single("is", x))
    }
    /// P(value <= x) before bounds.
    pub(super) fn raw(&self, x: f64) -> f64 {
        if x.is_infinite() {
            return if x < 0.0 { 0.0 } else { 1.0 };
        }
        let step = |at: f64| f64::from(u8::from(x >= at));
        match self.shape {
            Shape::Constant(value) => step(value),
            Shape::Normal { mean, sd: 0.0 } => step(mean),
            Shape::Normal { mean, sd } => normal_cdf((x - mean) / sd),
            Shape::Lognormal { mu, sigma, negative } => {
                let below = |y: f64| {
                    if y <= 0.0 {
                        0.0
                    } else if sigma == 0.0 {
                        f64::from(u8::from(ln(y) >= mu))
                    } else {
                        normal_cdf((ln(y) - mu) / sigma)
                    }
                };
                if negative { 1.0 - below(-x) } else { below(x) }
            }
            Shape::Uniform { low, high } if low == high => step(low),
            Shape::Uniform { low, high } => ((x - low) / (high - low)).clamp(0.0, 1.0),
        }
    }
    /// P(value <= x) with bounds.
    pub fn cdf(&self, x: f64) -> f64 {
        self.cdf_with(self.ends(), x)
    }
    /// What lies below the bounds, where values beyond them are drawn again; asked for once where [`cdf`](Self::cdf) is asked for often.
    fn ends(&self) -> (f64, f64) {
        match self.outside {
            Outside::Clip => (0.0, 1.0),
            Outside::Redraw => (self.raw(self.low), self.raw(self.high)),
        }
    }
    fn cdf_with(&self, (low, high): (f64, f64), x: f64) -> f64 {
        if x < self.low {
            return 0.0;
        }
        if x >= self.high {
            return 1.0;
        }
        match self.outside {
            Outside::Clip => self.raw(x),
            Outside::Redraw => ((self.raw(x) - low) / (high - low)).clamp(0.0, 1.0),
        }
    }
    /// The value below which a fraction `p` lies, by bisection of [`cdf`](Self::cdf).
    pub fn quantile(&self, p: f64) -> f64 {
        if let Some(x) = self.constant() {
            return x;
        }
        let (mut low, mut high) = match self.shape {
            Shape::Normal { mean, sd } => (mean - 9.0 * sd, mean + 9.0 * sd),
            Shape::Lognormal { mu, sigma, negative } => {
                let (a, b) = (exp(mu - 9.0 * sigma), exp(mu + 9.0 * sigma));
                if negative { (-b, -a) } else { (a, b) }
            }
            Shape::Uniform { low, high } => (low, high),
            Shape::Constant(x) => (x, x),
        };
        (low, high) = (low.clamp(self.low, self.high), high.clamp(self.low, self.high));
        let ends = self.ends();
        for _ in 0..64 {
            let middle = 0.5 * (low + high);
            if self.cdf_with(ends, middle) < p { low = middle } else { high = middle }
        }
        high
    }
    /// The mean, of the distribution with its bounds.
    pub fn mean(&self) -> f64 {
        if let Some(x) = self.constant() {
            return x;
        }
        // Bounds that cut nothing off leave the mean where it is.
        if self.raw(self.low) < 1e-12 && self.raw(self.high) > 1.0 - 1e-12 {
            match self.shape {
                Shape::Normal { mean, .. } => return mean,
                Shape::Uniform { low, high } => return 0.5 * (low + high),
                Shape::Lognormal { mu, sigma, negative } => {
                    return exp(mu + 0.5 * sigma * sigma) * if negative { -1.0 } else { 1.0 };
                }
                Shape::Constant(_) => {}
            }
        }
        // That takes milliseconds, and a plan asks for each of its projections several times, most of which are alike.
        const KEPT: usize = 32;
        thread_local!(static MEANS: RefCell<VecDeque<(Distribution, f64)>> = const { RefCell::new(VecDeque::new()) });
        if let Some(mean) = MEANS.with_borrow(|kept| kept.iter().find(|(d, _)| d == self).map(|(_, mean)| *mean)) {
            return mean;
        }
        let mean = self.mean_of_quantiles();
        MEANS.with_borrow_mut(|kept| {
            kept.truncate(KEPT - 1);
            kept.push_front((*self, mean));
        });
        mean
    }
    fn mean_of_quantiles(&self) -> f64 {
        const POINTS: u32 = 256;
        (0..POINTS).map(|i| self.quantile((f64::from(i) + 0.5) / f64::from(POINTS))).sum::<f64>() / f64::from(POINTS)
    }
    /// A value, for the host alone; what a GPU draws too goes by a [`Codes`] table.
    pub fn sample(&self, stream: &mut Stream) -> f64 {
        // A distribution of which too little lies within its bounds was refused, so this ends.
        loop {
            let x = match self.shape {
                Shape::Constant(x) => x,
                Shape::Normal { mean, sd } => mean + sd * stream.normal(),
                Shape::Lognormal { mu, sigma, negative } => {
                    let x = exp(mu + sigma * stream.normal());
                    if negative { -x } else { x }
                }
                Shape::Uniform { low, high } => low + (high - low) * stream.uniform(),
            };
            if (self.low..=self.high).contains(&x) {
                return x;
            }
            if self.outside == Outside::Clip || self.constant().is_some() {
                return x.clamp(self.low, self.high);
            }
        }
    }
}

/// A distribution over multiples of a unit, as a table from 32 uniform bits to the multiple: value x becomes the whole
/// number nearest to `x / unit`, exactly as if it had been drawn, redrawn or clipped, and then rounded.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    /// The number that the first entry stands for.
    first: i32,
    /// `thresholds[i]` is `2^32 P(code <= first + i)`, rounded; that of the last, 2^32, is left out.
    thresholds: Vec<u32>,
    /// By the upper bits: the least entry that they can mean. A larger guide would save steps and leave the cache.
    guide: Vec<u16>,
}

/// How many upper bits the guide goes by.
const GUIDE: u32 = 12;

/// The most codes a table has: a code is 16 bits.
pub const MOST_CODES: i64 = 65_536;

impl Codes {
    /// The table of `distribution` over multiples of `unit`; `None` where it would need more than [`MOST_CODES`].
    pub fn new(distribution: &Distribution, unit: f64) -> Option<Self> {
        // What 32 bits cannot tell from 0 is left out of the table, not of the sum.
        let tail = 0.5 / 4_294_967_296.0;
        let code = |x: f64| (x / unit).round();
        let (low, high) = (code(distribution.quantile(tail)), code(distribution.quantile(1.0 - tail)));
        if !(low.abs() < 2e9 && high.abs() < 2e9) || high - low + 1.0 > MOST_CODES as f64 {
            return None;
        }
        let (first, last) = (low as i32, high as i32);
        let mut thresholds: Vec<u32> = Vec::with_capacity((last - first) as usize);
        let ends = distribution.ends();
        for code in first..last {
            let p = distribution.cdf_with(ends, (f64::from(code) + 0.5) * unit);
            let t = (p * 4_294_967_296.0).round().min(4_294_967_295.0) as u32;
            // Rounding must not let the table fall.
            thresholds.push(thresholds.last().map_or(t, |before| t.max(*before)));
        }
        let guide =
            (0..1 << GUIDE).map(|b: u32| thresholds.partition_point(|t| *t <= b << (32 - GUIDE)) as u16).collect();
        Some(Self { first, thresholds, guide })
    }
    /// Always `code`.
    pub fn one(code: i32) -> Self {
        Self { first: code, thresholds: Vec::new(), guide: vec![0; 1 << GUIDE] }
    }
    /// The code that `bits` mean.
    #[inline(always)]
    pub fn pick(&self, bits: u32) -> i32 {
        let mut i = usize::from(self.guide[(bits >> (32 - GUIDE)) as usize]);
        while i < self.thresholds.len() && bits >= self.thresholds[i] {
            i += 1;
        }
        self.first + i as i32
    }
    /// `2^32 P(code <= least + i)`, rising.
    pub fn thresholds(&self) -> &[u32] {
        &self.thresholds
    }
    /// As kernels have them (`Codes` of codes.cuh): thresholds, how many, and the first code.
    pub(in crate::spiking) fn words(&self) -> (Vec<u32>, u32, i32) {
        (self.thresholds.clone(), self.thresholds.len() as u32, self.first)
    }
    /// The least code.
    pub fn least(&self) -> i32 {
        self.first
    }
    /// The greatest code.
    pub fn greatest(&self) -> i32 {
        self.first + self.thresholds.len() as i32
    }
    /// The mean code.
    pub fn mean(&self) -> f64 {
        // The mean is the last code less the probabilities of being below each one after the first.
        let below: f64 = self.thresholds.iter().map(|t| f64::from(*t)).sum();
        f64::from(self.greatest()) - below / 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::draws::Purpose;

    /// The codes are the distribution of values that are drawn, redrawn or clipped, and rounded.
    #[test]
    fn codes_are_drawn_as_values_are_that_are_rounded() {
        let cases = [
            (Distribution::normal(1.5, 0.75).within(0.05, f64::INFINITY, Outside::Redraw), 0.1),
            (Distribution::normal(1.5, 0.75).within(0.1, f64::INFINITY, Outside::Clip), 0.1),
            (Distribution::uniform(-2.0, 3.0), 0.25),
            (Distribution::new(Shape::Lognormal { mu: 0.2, sigma: 0.5, negative: true }), 0.125),
            (Distribution::from(7.3), 0.5),
        ];
        for (d, unit) in cases {
            assert_eq!(d.problem(), None);
            let codes = Codes::new(&d, unit).unwrap();
            let (mut values, mut bits) = (Stream::new(1, Purpose::Cell, 0, 0), Stream::new(2, Purpose::Cell, 0, 0));
            let n = 200_000;
            let mut counts = std::collections::BTreeMap::<i32, [f64; 2]>::new();
            for _ in 0..n {
                counts.entry((d.sample(&mut values) / unit).round() as i32).or_default()[0] += 1.0;
                counts.entry(codes.pick(bits.bits())).or_default()[1] += 1.0;
            }
            // Two samples of one distribution: chi-square over the codes that are common, within five deviations.
            let common: Vec<_> = counts.values().filter(|c| c[0] + c[1] > 40.0).collect();
            let chi: f64 = common.iter().map(|c| (c[0] - c[1]).powi(2) / (c[0] + c[1])).sum();
            let free = common.len() as f64;
            assert!(chi < free + 5.0 * (2.0 * free).sqrt(), "{d:?}: {chi} for {free}");
            // A constant is rounded as a whole, what is spread over many codes hardly moves.
            let allowed = if d.constant().is_some() { 0.5 * unit } else { 0.01 * d.mean().abs() };
            assert!((codes.mean() * unit - d.mean()).abs() <= allowed, "{} {}", codes.mean() * unit, d.mean());
        }
    }

    /// The microcircuit's delays: 2.7 % are redrawn, and the means become 1.547 and 0.777 ms.
    #[test]
    fn delays_that_are_redrawn_have_the_published_means() {
        for (mean, sd, want) in [(1.5, 0.75, 1.547), (0.75, 0.375, 0.777)] {
            let d = Distribution::normal(mean, sd).within(0.05, f64::INFINITY, Outside::Redraw);
            let codes = Codes::new(&d, 0.1).unwrap();
            assert_eq!(codes.least(), 1);
            assert!((codes.mean() * 0.1 - want).abs() < 1e-3, "{}", codes.mean());
        }
    }

    /// A mean that was asked for before has the bits that it had, and is no other distribution's.
    #[test]
    fn means_that_are_kept_are_those_of_their_distributions() {
        let bounded = |k: u32| {
            let outside = if k.is_multiple_of(2) { Outside::Redraw } else { Outside::Clip };
            Distribution::normal(0.25 * f64::from(k / 2), 2.0).within(0.0, f64::INFINITY, outside)
        };
        // More than are kept, then some that still are and some that are not.
        let all = (0..36).chain(30..36).chain(0..2).map(bounded);
        for d in all {
            assert_eq!(d.mean().to_bits(), d.mean_of_quantiles().to_bits(), "{d:?}");
        }
        assert!(bounded(2).mean() > bounded(3).mean() && bounded(3).mean() > 0.9);
    }

    #[test]
    fn wrong_distributions_say_what_is_wrong() {
        let says = |d: Distribution| d.problem().unwrap_or_default();
        assert!(says(Distribution::normal(0.0, -1.0)).contains("spread -1"));
        assert!(says(Distribution::normal(0.0, 1.0).within(2.0, 1.0, Outside::Clip)).contains("none can be met"));
        assert!(
            says(Distribution::normal(0.0, 1.0).within(20.0, 30.0, Outside::Redraw)).contains("between its bounds")
        );
        assert!(says(Distribution::from(f64::NAN)).contains("NaN"));
        assert!(says(Distribution::from(1.0).within(2.0, 3.0, Outside::Clip)).contains("outside of its bounds"));
        assert!(Codes::new(&Distribution::uniform(0.0, 1e6), 1.0).is_none());
    }
}
