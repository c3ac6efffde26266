//! Which gradients a recurrence's backward pass writes.

use crate::{Error, Result};

/// Which gradients the backward pass writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Of the inputs x.
    pub x: bool,
    /// Of the initial state, with the LSTM's where there is one, where they are given.
    pub h0: bool,
    /// Of the elapsed times, where they are given.
    pub elapsed: bool,
    /// Of all parameters.
    pub parameters: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Self { x: true, h0: true, elapsed: true, parameters: true }
    }
}

impl std::str::FromStr for Wants {
    type Err = Error;
    /// Names joined by `+`, as in `x+parameters`, or `none`.
    fn from_str(s: &str) -> Result<Self> {
        let mut wants = Self { x: false, h0: false, elapsed: false, parameters: false };
        for name in s.split('+').filter(|n| *n != "none") {
            *match name {
                "x" => &mut wants.x,
                "h0" => &mut wants.h0,
                "elapsed" => &mut wants.elapsed,
                "parameters" => &mut wants.parameters,
                _ => {
                    return Err(Error::config(format!(
                        "a gradient of `{name}` is not one of x, h0, elapsed, parameters, none"
                    )));
                }
            } = true;
        }
        Ok(wants)
    }
}
