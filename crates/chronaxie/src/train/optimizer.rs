//! Which optimizer a run has, and with which options.
//!
//! ```toml
//! [train]
//! optimizer = "shampoo"        # adamw, shampoo, soap, muon, kfac
//!
//! [train.shampoo]              # what this optimizer alone has
//! max_preconditioner_dim = 64
//! ```

use super::adamw::AdamW;
use super::curvature::Seen;
use super::settings::{counted, ranged};
use crate::Result;
use crate::config::Section;
use crate::optim::blocks::Parameter;
use crate::optim::kfac::{Damping, Kfac, Map, Sharing, Terms};
use crate::optim::muon::Muon;
use crate::optim::shampoo::{Grafting, Shampoo, fraction};
use crate::optim::soap::Soap;
use crate::optim::stepper::{Common, DecayMode, Stepper};
use std::sync::Arc;

/// Every optimizer, by the name that configurations use.
pub(super) const NAMES: [&str; 5] = ["adamw", "shampoo", "soap", "muon", "kfac"];

/// An optimizer with its options, without parameters yet.
#[derive(Debug, Clone)]
pub(super) enum Optimizer {
    AdamW(AdamW),
    Shampoo(Shampoo),
    Soap(Soap),
    Muon(Muon),
    /// With what its factors are made of.
    Kfac(Kfac, Seen),
}

/// A step, and itself once more where it takes the factors of linear maps.
pub(super) type Stepping = (Arc<dyn Stepper>, Option<Arc<Kfac>>);

/// The largest decay of a second moment.
const MOST_BETA2: f64 = 0.999_999_9;
const MOST_BETA: f64 = 0.999_999;
const INFINITY: f64 = f64::INFINITY;

impl Optimizer {
    /// The optimizer that `[train]` names, and its learning rate; options of the others are read and have no part.
    pub(super) fn read(train: &Section<'_>) -> Result<(Self, f64)> {
        let name = train.choice("optimizer", &NAMES, "adamw")?;
        for other in NAMES.into_iter().filter(|&other| other != name && train.is_table(other)) {
            own(other, &train.table(other)?, None)?;
        }
        let default_rate = match name {
            "soap" => 3e-3,
            "muon" => 2e-2,
            "kfac" => 1e-1,
            _ => 1e-2,
        };
        let rate = ranged(train, "learning_rate", default_rate, 0.0, INFINITY)?;
        // Only AdamW has no options but those of the table itself.
        let mut made =
            if name == "adamw" { Self::AdamW(AdamW::new(0)) } else { own(name, &train.table(name)?, Some(rate))? };
        let clip = ranged(train, "clip", 1.0, 0.0, INFINITY)?;
        let decay = if name == "adamw" { 0.01 } else { 0.0 };
        let weight_decay = ranged(train, "weight_decay", decay, 0.0, INFINITY)?;
        let mut common = Common { clip, weight_decay, mode: DecayMode::default() };
        if name != "adamw" {
            common.mode = train.choice("weight_decay_mode", &DecayMode::NAMES, "decoupled")?.parse()?;
        }
        let beta1 = |default: f64| ranged(train, "beta1", default, 0.0, MOST_BETA);
        let beta2 = |default: f64, most: f64| ranged(train, "beta2", default, 0.0, most);
        let epsilon = |default: f64| ranged(train, "epsilon", default, 0.0, 1.0);
        match &mut made {
            Self::AdamW(p) => {
                let (b1, b2) = (beta1(p.beta1)?, beta2(p.beta2, MOST_BETA2)?);
                *p = p.betas(b1, b2).epsilon(epsilon(p.epsilon)?).weight_decay(weight_decay).clip(clip);
            }
            Self::Shampoo(p) => (p.common, p.beta1, p.beta2) = (common, beta1(p.beta1)?, beta2(p.beta2, 1.0)?),
            Self::Soap(p) => {
                (p.common, p.beta1, p.beta2) = (common, beta1(p.beta1)?, beta2(p.beta2, MOST_BETA2)?);
                p.epsilon = epsilon(p.epsilon)?;
            }
            Self::Muon(p) => {
                (p.common, p.beta1, p.beta2) = (common, beta1(p.beta1)?, beta2(p.beta2, MOST_BETA2)?);
                p.epsilon = epsilon(p.epsilon)?;
            }
            Self::Kfac(p, _) => {
                (p.common, p.beta1, p.beta2) = (common, beta1(p.beta1)?, beta2(p.beta2, MOST_BETA2)?);
                p.epsilon = epsilon(p.epsilon)?;
            }
        }
        made.stepper(0, Vec::new(), Vec::new())?;
        Ok((made, rate))
    }
    /// How factors are made of a batch, for an optimizer that takes them.
    pub(super) fn seen(&self) -> Option<Seen> {
        if let Self::Kfac(_, seen) = self { Some(*seen) } else { None }
    }
    /// Its step over `parameters` in a vector of `elements`, and itself where it takes the factors of `maps`.
    ///
    /// # Errors
    /// Options that it refuses.
    pub(super) fn stepper(&self, elements: usize, parameters: Vec<Parameter>, maps: Vec<Map>) -> Result<Stepping> {
        let made: Arc<dyn Stepper> = match self.clone() {
            Self::AdamW(p) => Arc::new(AdamW { elements, ..p }.build()?),
            Self::Shampoo(p) => Arc::new(Shampoo { elements, parameters, ..p }.build()?),
            Self::Soap(p) => Arc::new(Soap { elements, parameters, ..p }.build()?),
            Self::Muon(p) => Arc::new(Muon { elements, parameters, ..p }.build()?),
            Self::Kfac(p, _) => {
                let p = Arc::new(Kfac { elements, parameters, maps, ..p }.build()?);
                return Ok((p.clone(), Some(p)));
            }
        };
        Ok((made, None))
    }
}

/// The table of an optimizer's own options.
fn own(name: &str, t: &Section<'_>, rate: Option<f64>) -> Result<Optimizer> {
    let dim = |key: &str, default: usize| match counted(t, key, default)? {
        n if n <= 1 << 15 => Ok(n),
        n => Err(t.refuse(key, &format!("must be from 1 to {}, but it is {n}", 1 << 15))),
    };
    Ok(match name {
        "shampoo" => {
            let mut p = Shampoo::new(0, Vec::new());
            p.absolute = ranged(t, "absolute", p.absolute, 0.0, INFINITY)?;
            p.relative = ranged(t, "relative", p.relative, 0.0, INFINITY)?;
            p.max_preconditioner_dim = dim("max_preconditioner_dim", p.max_preconditioner_dim)?;
            p.precondition_frequency = dim("precondition_frequency", p.precondition_frequency)?;
            p.start_preconditioning_step = dim("start_preconditioning_step", p.start_preconditioning_step)?;
            p.grafting = t.choice("grafting", &Grafting::NAMES, p.grafting.name())?.parse()?;
            p.grafting_eps = ranged(t, "grafting_eps", p.grafting_eps, 0.0, 1.0)?;
            p.precondition_vectors = t.get("precondition_vectors", p.precondition_vectors)?;
            p.precision = t.choice("precision", &["exact", "fast"], p.precision.name())?.parse()?;
            let exponent: Option<String> = t.optional("exponent")?;
            p.exponent = match exponent {
                None => None,
                Some(text) => match fraction(&text) {
                    Ok(e) => Some(e),
                    Err(_) => {
                        return Err(
                            t.refuse("exponent", &format!("must be a fraction such as \"1/4\", but it is {text:?}"))
                        );
                    }
                },
            };
            Optimizer::Shampoo(p)
        }
        "soap" => {
            let mut p = Soap::new(0, Vec::new());
            p.max_preconditioner_dim = dim("max_preconditioner_dim", p.max_preconditioner_dim)?;
            p.merge_dims = t.get("merge_dims", p.merge_dims)?;
            p.precondition_frequency = dim("precondition_frequency", p.precondition_frequency)?;
            p.precondition_vectors = t.get("precondition_vectors", p.precondition_vectors)?;
            p.correct_bias = t.get("correct_bias", p.correct_bias)?;
            let beta: Option<f64> = t.optional("shampoo_beta")?;
            p.shampoo_beta = match beta {
                None => None,
                Some(_) => Some(ranged(t, "shampoo_beta", 0.0, 0.0, MOST_BETA2)?),
            };
            Optimizer::Soap(p)
        }
        "muon" => {
            let mut p = Muon::new(0, Vec::new());
            p.momentum = ranged(t, "momentum", p.momentum, 0.0, MOST_BETA)?;
            p.nesterov = t.get("nesterov", p.nesterov)?;
            p.steps = counted(t, "steps", p.steps)?;
            p.precision = t.choice("precision", &["exact", "fast"], p.precision.name())?.parse()?;
            // The schedule scales both rates.
            let other = ranged(t, "adamw_learning_rate", 3e-4, 0.0, INFINITY)?;
            let rate = rate.unwrap_or(2e-2);
            p.adamw_rate = if rate > 0.0 { other / rate } else { 0.0 };
            Optimizer::Muon(p)
        }
        "kfac" => {
            let mut p = Kfac::new(0, Vec::new(), Vec::new());
            p.momentum = ranged(t, "momentum", p.momentum, 0.0, MOST_BETA)?;
            p.damping = ranged(t, "damping", p.damping, 0.0, INFINITY)?;
            p.mode = t.choice("damping_mode", &Damping::NAMES, p.mode.name())?.parse()?;
            p.ekfac = t.get("ekfac", p.ekfac)?;
            p.decay = ranged(t, "decay", p.decay, 0.0, MOST_BETA)?;
            p.factor_frequency = dim("factor_frequency", p.factor_frequency)?;
            p.inverse_frequency = dim("inverse_frequency", p.inverse_frequency)?;
            p.kl_clip = ranged(t, "kl_clip", p.kl_clip, 0.0, INFINITY)?;
            let sharing = t.choice("sharing", &Sharing::NAMES, Sharing::default().name())?.parse()?;
            let terms = t.choice("terms", &Terms::NAMES, Terms::default().name())?.parse()?;
            let other = ranged(t, "adamw_learning_rate", 1e-3, 0.0, INFINITY)?;
            let rate = rate.unwrap_or(1e-1);
            p.adamw_rate = if rate > 0.0 { other / rate } else { 0.0 };
            let seen = Seen { sharing, terms, squares: p.ekfac, every: p.factor_frequency as u64 };
            Optimizer::Kfac(p, seen)
        }
        _ => return Err(t.refuse("optimizer", "has no options of its own")),
    })
}
