//! Rules as ordered keys and values, under the keyword names of ncps.

use super::{Ncp, Rule};
use crate::{Error, Result};
use std::str::FromStr;

/// Keys and values that are taken one by one.
struct Keys<'a> {
    rule: &'a str,
    left: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    fn take<T: FromStr>(&mut self, key: &'static str) -> Result<Option<T>> {
        self.known.push(key);
        let Some(at) = self.left.iter().position(|(k, _)| *k == key) else { return Ok(None) };
        let (_, value) = self.left.remove(at);
        value
            .parse()
            .map(Some)
            .map_err(|_| Error::config(format!("wiring {}: {key} = {value} is not a valid value for {key}", self.rule)))
    }
    fn need<T: FromStr>(&mut self, key: &'static str) -> Result<T> {
        self.take(key)?.ok_or_else(|| Error::config(format!("wiring {}: {key} is missing", self.rule)))
    }
    fn finish(self) -> Result<()> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(Error::config(format!(
                "wiring {}: key `{key}` is given twice or not one of {}",
                self.rule,
                self.known.join(", ")
            ))),
        }
    }
}

impl Rule {
    /// The rule as keys and values in a fixed order, `type` first: counts and seeds, from which
    /// [`from_config`](Self::from_config) makes the same rule.
    pub fn to_config(&self) -> Vec<(&'static str, String)> {
        match *self {
            Self::FullyConnected { units, output_dim, erev_init_seed, self_connections } => vec![
                ("type", "fully_connected".to_owned()),
                ("units", units.to_string()),
                ("output_dim", output_dim.to_string()),
                ("erev_init_seed", erev_init_seed.to_string()),
                ("self_connections", self_connections.to_string()),
            ],
            Self::Random { units, output_dim, sparsity_level, random_seed } => vec![
                ("type", "random".to_owned()),
                ("units", units.to_string()),
                ("output_dim", output_dim.to_string()),
                ("sparsity_level", sparsity_level.to_string()),
                ("random_seed", random_seed.to_string()),
            ],
            Self::Ncp(ncp) => vec![
                ("type", "ncp".to_owned()),
                ("inter_neurons", ncp.inter_neurons.to_string()),
                ("command_neurons", ncp.command_neurons.to_string()),
                ("motor_neurons", ncp.motor_neurons.to_string()),
                ("sensory_fanout", ncp.sensory_fanout.to_string()),
                ("inter_fanout", ncp.inter_fanout.to_string()),
                ("recurrent_command_synapses", ncp.recurrent_command_synapses.to_string()),
                ("motor_fanin", ncp.motor_fanin.to_string()),
                ("seed", ncp.seed.to_string()),
            ],
            Self::AutoNcp { units, output_size, sparsity_level, seed } => vec![
                ("type", "auto_ncp".to_owned()),
                ("units", units.to_string()),
                ("output_size", output_size.to_string()),
                ("sparsity_level", sparsity_level.to_string()),
                ("seed", seed.to_string()),
            ],
            Self::Bernoulli { units, output_dim, density, sensory_density, seed } => vec![
                ("type", "bernoulli".to_owned()),
                ("units", units.to_string()),
                ("output_dim", output_dim.to_string()),
                ("density", density.to_string()),
                ("sensory_density", sensory_density.to_string()),
                ("seed", seed.to_string()),
            ],
        }
    }
    /// The rule that `pairs` spell, in any order; what may be left out has ncps's default (for `bernoulli`: density 0.5,
    /// `sensory_density` that of `density`, seed 0).
    ///
    /// # Errors
    /// If the type or another key is missing, unknown, given twice, or has a value that is not of its type. Ranges are
    /// checked by [`build`](Self::build).
    pub fn from_config<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut keys = Keys { rule: "", left: pairs.into_iter().collect(), known: Vec::new() };
        let at = keys.left.iter().position(|(k, _)| *k == "type");
        let at = at.ok_or_else(|| Error::config("wiring: type is missing"))?;
        keys.rule = keys.left.remove(at).1;
        let rule = match keys.rule {
            "fully_connected" => {
                let units = keys.need("units")?;
                Self::FullyConnected {
                    units,
                    output_dim: keys.take("output_dim")?.unwrap_or(units),
                    erev_init_seed: keys.take("erev_init_seed")?.unwrap_or(1111),
                    self_connections: keys.take("self_connections")?.unwrap_or(true),
                }
            }
            "random" => {
                let units = keys.need("units")?;
                Self::Random {
                    units,
                    output_dim: keys.take("output_dim")?.unwrap_or(units),
                    sparsity_level: keys.take("sparsity_level")?.unwrap_or(0.0),
                    random_seed: keys.take("random_seed")?.unwrap_or(1111),
                }
            }
            "ncp" => Self::Ncp(Ncp {
                inter_neurons: keys.need("inter_neurons")?,
                command_neurons: keys.need("command_neurons")?,
                motor_neurons: keys.need("motor_neurons")?,
                sensory_fanout: keys.need("sensory_fanout")?,
                inter_fanout: keys.need("inter_fanout")?,
                recurrent_command_synapses: keys.need("recurrent_command_synapses")?,
                motor_fanin: keys.need("motor_fanin")?,
                seed: keys.take("seed")?.unwrap_or(22222),
            }),
            "auto_ncp" => Self::AutoNcp {
                units: keys.need("units")?,
                output_size: keys.need("output_size")?,
                sparsity_level: keys.take("sparsity_level")?.unwrap_or(0.5),
                seed: keys.take("seed")?.unwrap_or(22222),
            },
            "bernoulli" => {
                let units = keys.need("units")?;
                let density = keys.take("density")?.unwrap_or(0.5);
                Self::Bernoulli {
                    units,
                    output_dim: keys.take("output_dim")?.unwrap_or(units),
                    density,
                    sensory_density: keys.take("sensory_density")?.unwrap_or(density),
                    seed: keys.take("seed")?.unwrap_or(0),
                }
            }
            other => {
                return Err(Error::config(format!(
                    "wiring: type `{other}` is not one of fully_connected, random, ncp, auto_ncp, bernoulli"
                )));
            }
        };
        keys.finish()?;
        Ok(rule)
    }
}
