//! What a step of KFAC is: its options, names and shapes of every tensor, and how exact the results must be.

use crate::op::{Metric, Pass, Role, Signature, TensorSpec, Tolerance};
use crate::optim::blocks::{Parameter, packed};
use crate::optim::stepper::{self, Common};
use crate::{Dtype, Error, Result};
use std::sync::Arc;

pub(super) const NAME: &str = "kfac";

/// How far the ratio of factored damping's two parts is from one at the most.
pub const MOST_PI: f64 = 1e4;

/// How damping is added to the curvature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Damping {
    /// To the products of eigenvalues.
    #[default]
    Exact,
    /// A share to each factor (Martens and Grosse, arXiv:1503.05671, 6.3).
    Factored,
}

impl Damping {
    /// Every way's name.
    pub const NAMES: [&'static str; 2] = ["exact", "factored"];
    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl std::str::FromStr for Damping {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "exact" => Ok(Self::Exact),
            "factored" => Ok(Self::Factored),
            _ => Err(Error::config(format!("damping_mode `{s}` is not one of {}", Self::NAMES.join(", ")))),
        }
    }
}

/// A linear map's parameters in the flat vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Map {
    /// The first element of the weight `[H, D]`.
    pub weight: usize,
    /// H.
    pub rows: usize,
    /// D.
    pub columns: usize,
    /// The first element of the bias `[H]`, which is solved with the weight.
    pub bias: Option<usize>,
}

impl Map {
    /// D, and 1 for a bias.
    pub fn inputs(&self) -> usize {
        self.columns + usize::from(self.bias.is_some())
    }
}

/// Where the matrices of a map lie among those of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// A, packed, in the factors.
    pub a: usize,
    /// G, packed, in the factors.
    pub g: usize,
    /// Eigenvectors of A as rows, or its inverse, in the bases.
    pub basis_a: usize,
    /// Likewise of G.
    pub basis_g: usize,
    /// Eigenvalues of A in the values.
    pub values_a: usize,
    /// Likewise of G.
    pub values_g: usize,
    /// `[H, A]` in the squares.
    pub squares: usize,
}

/// The matrices of all maps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// By map.
    pub maps: Vec<Place>,
    /// Elements of all factors.
    pub factors: usize,
    /// Elements of all bases.
    pub bases: usize,
    /// Elements of all eigenvalues.
    pub values: usize,
    /// Elements of all squares.
    pub squares: usize,
}

/// One step of KFAC over a flat vector of N elements.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Kfac {
    /// N.
    pub elements: usize,
    /// What lies in it, in order.
    pub parameters: Vec<Parameter>,
    /// Which of it are linear maps; the other parameters take AdamW's step.
    pub maps: Vec<Map>,
    /// Decay of the sum of steps.
    pub momentum: f64,
    /// Added to the curvature.
    pub damping: f64,
    /// In which way.
    pub mode: Damping,
    /// Whether second moments in the eigenbases take the place of products of eigenvalues.
    pub ekfac: bool,
    /// Decay of the factors.
    pub decay: f64,
    /// Steps between two updates of the factors.
    pub factor_frequency: usize,
    /// Steps between two times that a map's factors are solved.
    pub inverse_frequency: usize,
    /// The most of `rate^2 sum U grad`; 0 for no bound.
    pub kl_clip: f64,
    /// Clipping and weight decay; that of parameters that are no maps is decoupled.
    pub common: Common,
    /// The learning rate of parameters that are no maps, in parts of the others'.
    pub adamw_rate: f64,
    /// Decay of their first moment.
    pub beta1: f64,
    /// Decay of their second moment.
    pub beta2: f64,
    /// Added to the root of their second moment.
    pub epsilon: f64,
    /// Whether this is the first step, which solves the factors of all maps.
    pub opens: bool,
    /// Where the maps' matrices lie; [`build`](Self::build) says.
    pub places: Arc<Places>,
}

impl Kfac {
    /// A step over `parameters` in a vector of `elements`, of which `maps` are solved, with the defaults of `chronaxie.optim.KFAC`:
    /// momentum 0.9, exact damping of 1e-3, averages that decay by 0.95, factors every step and their eigenvalues every 10, `kl_clip`
    /// 1e-2, and for other parameters a hundredth of the learning rate, betas 0.9 and 0.999.
    pub fn new(elements: usize, parameters: Vec<Parameter>, maps: Vec<Map>) -> Self {
        Self {
            elements,
            parameters,
            maps,
            momentum: 0.9,
            damping: 1e-3,
            mode: Damping::Exact,
            ekfac: false,
            decay: 0.95,
            factor_frequency: 1,
            inverse_frequency: 10,
            kl_clip: 1e-2,
            common: Common::default(),
            adamw_rate: 1e-2,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            opens: false,
            places: Arc::default(),
        }
    }
    /// Checks the options and places the matrices.
    ///
    /// # Errors
    /// An option out of range, parameters that overlap and maps that are none of them, each with its values.
    pub fn build(mut self) -> Result<Self> {
        for (name, x) in
            [("momentum", self.momentum), ("decay", self.decay), ("beta1", self.beta1), ("beta2", self.beta2)]
        {
            stepper::below_1(NAME, name, x, false)?;
        }
        for (name, x) in [("kl_clip", self.kl_clip), ("adamw_rate", self.adamw_rate), ("epsilon", self.epsilon)] {
            stepper::at_least_0(NAME, name, x)?;
        }
        if !(self.damping > 0.0 && self.damping.is_finite()) {
            return Err(Error::value(format!("{NAME}: damping = {} is not a positive number", self.damping)));
        }
        if self.ekfac && self.mode != Damping::Exact {
            return Err(Error::config(format!(
                "{NAME}: ekfac = true needs damping_mode = \"exact\", which has eigenbases, but it is \"{}\"",
                self.mode.name()
            )));
        }
        stepper::counted(NAME, "factor_frequency", self.factor_frequency)?;
        stepper::counted(NAME, "inverse_frequency", self.inverse_frequency)?;
        self.common.check(NAME)?;
        stepper::fit(NAME, &self.parameters, self.elements)?;
        let mut taken: Vec<usize> = Vec::new();
        for m in &self.maps {
            let too_large =
                || Error::shape(format!("{NAME}: a map of {} by {} exceeds 64-bit sizes", m.rows, m.columns));
            let sizes =
                [Some((m.weight, m.rows.checked_mul(m.columns).ok_or_else(too_large)?)), m.bias.map(|b| (b, m.rows))];
            for (first, count) in sizes.into_iter().flatten() {
                let is = |p: &Parameter| p.first == first && p.shape.elements() == count;
                if taken.contains(&first) || !self.parameters.iter().any(is) {
                    return Err(Error::shape(format!(
                        "{NAME}: a map's {count} elements from element {first} on are no parameter, or another map's"
                    )));
                }
                taken.push(first);
            }
            let n = m.inputs().max(m.rows);
            n.checked_mul(n).filter(|&n| n <= isize::MAX as usize / 64).ok_or_else(too_large)?;
        }
        self.places = Arc::new(self.placed());
        Ok(self)
    }
    /// Every matrix begins at a multiple of 256 bytes.
    fn placed(&self) -> Places {
        let mut all = Places::default();
        let take = |end: &mut usize, n: usize| std::mem::replace(end, (*end + n).next_multiple_of(64));
        for m in &self.maps {
            let (a, h) = (m.inputs(), m.rows);
            let mut place = Place {
                a: take(&mut all.factors, packed(a)),
                g: take(&mut all.factors, packed(h)),
                basis_a: take(&mut all.bases, a * a),
                basis_g: take(&mut all.bases, h * h),
                ..Place::default()
            };
            if self.mode == Damping::Exact {
                place.values_a = take(&mut all.values, a);
                place.values_g = take(&mut all.values, h);
            }
            if self.ekfac {
                place.squares = take(&mut all.squares, h * a);
            }
            all.maps.push(place);
        }
        all
    }
    /// Whether step `step`, from 1, moves the factors.
    pub fn averages(&self, step: usize) -> bool {
        step.saturating_sub(1).is_multiple_of(self.factor_frequency)
    }
    /// Whether step `step` solves the factors of map `map`.
    pub fn solves(&self, step: usize, map: usize) -> bool {
        self.opens || (step.saturating_sub(1) + map).is_multiple_of(self.inverse_frequency)
    }
    /// What the step is made shorter by so that `rate^2 agreement` stays within its bound.
    pub(super) fn shorter(&self, rate: f64, agreement: f64) -> f64 {
        if self.kl_clip == 0.0 {
            return 1.0;
        }
        let ratio = self.kl_clip / (rate * rate * agreement).max(1e-30);
        ratio.sqrt().min(1.0)
    }
    /// First element and length of the parameters that are no maps.
    pub(super) fn others(&self) -> Vec<(usize, usize)> {
        let solved = |first: usize| self.maps.iter().any(|m| m.weight == first || m.bias == Some(first));
        let of = |p: &Parameter| (p.first, p.shape.elements());
        self.parameters.iter().map(of).filter(|&(first, count)| count > 0 && !solved(first)).collect()
    }
    /// The signature of the step: beside what every one reads, `seen [F]`, the factors of this batch, and with `ekfac` its
    /// `seen_squares [S]`, laid out as the averages of them are.
    ///
    /// # Errors
    /// If the pass is another one.
    pub fn signature_of(&self, pass: Pass) -> Result<Signature> {
        let (n, p) = (self.elements, &self.places);
        let state = [
            ("first", "[N]", n),
            ("second", "[N]", n),
            ("factors", "[F]", p.factors),
            ("bases", "[R]", p.bases),
            ("values", "[E]", p.values),
            ("squares", "[S]", p.squares),
            ("averaged", "[L]", self.maps.len()),
        ];
        let mut all = stepper::signature(NAME, pass, n, &state)?;
        let seen = |name: &'static str, axes, n: usize| TensorSpec::new(name, axes, [n], Dtype::F32, Role::Input);
        all.inputs.push(seen("seen", "[F]", p.factors));
        if self.ekfac {
            all.inputs.push(seen("seen_squares", "[S]", p.squares));
        }
        Ok(all)
    }
    /// The bound on the error of one output; none for eigenvectors, whose signs are anybody's.
    pub fn tolerance_of(&self, output: &str) -> Option<Tolerance> {
        let (value, reason) = match output {
            "bases" if self.mode == Damping::Exact => return None,
            "first" => {
                (4e-6, "8 x the noise of four products in f32 over factors that are solved in f64, where it is largest")
            }
            "bases" => (8e-7, "8 x the rounding to f32 of an inverse that is made in f64"),
            _ => (
                4e-7,
                "8 x the roundings of f32 in averages and products of two terms; a step is a hundredth of the parameter",
            ),
        };
        Some(Tolerance { metric: Metric::Relative, value, reason })
    }
}
