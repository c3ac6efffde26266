//! Which maps there are, and what each reads and writes.

use crate::{Error, Result};
use std::str::FromStr;

/// One map, elementwise in batch and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// minGRU: `a = sigmoid(-k)`, `x = sigmoid(k) v`.
    MinGru,
    /// RG-LRU: `a = sigmoid(lambda)^(8 sigmoid(r))`, `x = sqrt(1 - a^2) sigmoid(i) v`.
    RgLru,
    /// A decay a channel, the same at all times: `a = exp(-exp(nu))`, `x = sqrt(1 - a^2) v`; LRU's, without its angle.
    Decay,
    /// LRU: `a = exp(-exp(nu) + i exp(phi))`, `x = sqrt(1 - |a|^2) v`.
    Lru,
    /// S5: `a = exp(delta (re + i im))`, `x = (a - 1) / (re + i im) v`, `delta = exp(log_delta)`.
    S5,
    /// The time step of a channel, the same at all times: `delta = exp(log_delta)`.
    Hold,
    /// `softplus(raw)`: time steps.
    Softplus,
    /// `-softplus(raw)`: logarithms of radii.
    Decline,
    /// `-exp(raw)`: Mamba's rates.
    Rate,
    /// `-exp(Re raw) + i Im raw`: S4D's rates.
    ComplexRate,
    /// `softplus(Re raw) e^(i Im raw)`: weights in polar form.
    Polar,
}

/// What a map reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Its name in a case.
    pub name: &'static str,
    /// What it reads at every step.
    pub inputs: &'static [&'static str],
    /// What a channel has for all times.
    pub parameters: &'static [&'static str],
    /// What it writes at every step.
    pub outputs: &'static [&'static str],
    /// Whether steps are complex numbers.
    pub complex: bool,
}

impl Kind {
    /// Every map.
    pub const ALL: [Self; 11] = [
        Self::MinGru,
        Self::RgLru,
        Self::Decay,
        Self::Lru,
        Self::S5,
        Self::Hold,
        Self::Softplus,
        Self::Decline,
        Self::Rate,
        Self::ComplexRate,
        Self::Polar,
    ];

    /// What it reads and writes.
    pub const fn form(self) -> Form {
        const STEP: &[&str] = &["a", "x"];
        const RAW: &[&str] = &["raw"];
        let (name, inputs, parameters, outputs, complex): (_, &[&str], &[&str], &[&str], _) = match self {
            Self::MinGru => ("mingru", &["k", "v"], &[], STEP, false),
            Self::RgLru => ("rglru", &["r", "i", "v"], &["lambda"], STEP, false),
            Self::Decay => ("decay", &["v"], &["nu"], STEP, false),
            Self::Lru => ("lru", &["v"], &["nu", "phi"], STEP, true),
            Self::S5 => ("s5", &["v"], &["re", "im", "log_delta"], STEP, true),
            Self::Hold => ("hold", &[], &["log_delta"], &["delta"], false),
            Self::Softplus => ("softplus", RAW, &[], &["y"], false),
            Self::Decline => ("decline", RAW, &[], &["y"], false),
            Self::Rate => ("rate", RAW, &[], &["y"], false),
            Self::ComplexRate => ("complex_rate", RAW, &[], &["y"], true),
            Self::Polar => ("polar", RAW, &[], &["y"], true),
        };
        Form { name, inputs, parameters, outputs, complex }
    }
}

impl FromStr for Kind {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|k| k.form().name == s).ok_or_else(|| {
            let names = Self::ALL.map(|k| k.form().name).join(", ");
            Error::config(format!("ssm_gates: kind `{s}` is not one of {names}"))
        })
    }
}
