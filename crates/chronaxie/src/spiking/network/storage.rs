//! Whether synapses are kept: those of some rules can be drawn again from their source alone, whenever it fires.

use super::{Delay, Network, Projection, Rule, WeightBits};

/// Where the synapses of a projection come from when a cell fires. Spikes do not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// Out of memory: drawn once.
    #[default]
    Stored,
    /// Drawn again whenever their source fires, by the same draws; they take no memory.
    Procedural,
    /// Stored where they fit in free memory, else procedural if they can be.
    Auto,
}

impl Storage {
    /// The words of a configuration.
    pub const WORDS: [&str; 3] = ["stored", "procedural", "auto"];

    /// What a word of [`WORDS`](Self::WORDS) means.
    pub fn of(word: &str) -> Self {
        match word {
            "procedural" => Self::Procedural,
            "auto" => Self::Auto,
            _ => Self::Stored,
        }
    }
}

/// Checkpoints know a network by this: it says nothing of storage, on which no spike depends, and of the bits of weights where they are
/// those that all had before there were others.
impl std::fmt::Debug for Projection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Projection");
        all.field("source", &self.source)
            .field("target", &self.target)
            .field("rule", &self.rule)
            .field("weight", &self.weight)
            .field("delay", &self.delay)
            .field("autapses", &self.autapses)
            .field("plasticity", &self.plasticity);
        if self.weight_bits != WeightBits::Sixteen {
            all.field("weight_bits", &self.weight_bits);
        }
        all.finish()
    }
}

impl Projection {
    /// Why the synapses of one source cannot be drawn again alone, and what to do; nothing where they can.
    pub fn not_procedural(&self, network: &Network) -> Option<String> {
        if self.plasticity.is_some() {
            return Some("draws synapses again at each spike, which forgets what plasticity made of them".into());
        }
        if matches!(self.delay, Delay::Distance { .. }) {
            return Some("draws delays, and those that follow from distances are not drawn".into());
        }
        let [sources, targets] = [self.source, self.target].map(|p| f64::from(network.populations[p].size));
        let instead = |all: f64| {
            let degree = (all / sources).round().max(1.0);
            format!("fixed_outdegree with outdegree = {degree} has as many synapses and can")
        };
        Some(match self.rule {
            Rule::AllToAll | Rule::OneToOne | Rule::OutDegree { multapses: true, .. } => return None,
            Rule::OutDegree { multapses: false, .. } => {
                "needs targets that are drawn independently, and without multapses each depends on those before it; \
                 multapses = true can"
                    .into()
            }
            Rule::Probability(p) => format!(
                "needs the targets of a source, and fixed_probability draws the sources of a target, one after the other; {}",
                instead(p * sources * targets)
            ),
            Rule::InDegree { count, .. } => format!(
                "needs the targets of a source, and fixed_indegree draws the sources of a target; {}",
                instead(f64::from(count) * targets)
            ),
            Rule::Total { count, .. } => format!(
                "needs the targets of a source, and fixed_total draws the source of each synapse; {}",
                instead(count as f64)
            ),
            Rule::Distance { .. } => {
                "needs the targets of a source, and distance looks for the sources near a target".into()
            }
            Rule::Edges(_) => "draws synapses, and those of a list are not drawn".into(),
        })
    }
}
