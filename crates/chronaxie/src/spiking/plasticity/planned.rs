//! What a plan says of synapses that change.

use super::fixed::{Learning, MAX_RULES};
use super::sign_of;
use crate::spiking::plan::Plan;
use crate::{Error, Result};

impl Plan {
    /// Whether the synapses of a projection change.
    pub fn changes(&self, projection: usize) -> bool {
        self.rule(projection).is_some()
    }

    /// The index of what the synapses of a projection do, where they change.
    pub fn rule(&self, projection: usize) -> Option<u16> {
        self.learning.as_ref().and_then(|l| l.of[projection])
    }

    pub(in crate::spiking) fn plan_learning(&mut self) -> Result<()> {
        let mut learning = Learning::default();
        for (i, p) in self.network.projections.iter().enumerate() {
            let Some(plasticity) = &p.plasticity else {
                learning.of.push(None);
                continue;
            };
            let refuse = |what: String| Err(Error::config(format!("projection {}: plasticity {what}", self.label(i))));
            if let Some((field, problem)) = plasticity.problem(self.network.dt_ms) {
                return refuse(format!("has a {field} that {problem}"));
            }
            let Some(sign) = sign_of(&p.weight, &p.rule) else {
                return refuse("needs weights of one sign; bound them on one side of 0".into());
            };
            let port = self.port(p.target, sign < 0);
            let unit = self.units[p.target][port];
            let rule = learning.add(plasticity, sign, (port, unit), self.network.dt_ms);
            if rule.is_none() {
                return refuse(format!("is one of more than {MAX_RULES} different kinds"));
            }
            if let Some(s) = plasticity.stdp
                && (s.w_max - s.w_min) / unit < 64.0
            {
                return refuse(format!(
                    "has bounds from {} to {}, less than 64 of the unit {unit} that the largest weight into the same port \
                     sets",
                    s.w_min, s.w_max
                ));
            }
            learning.of.push(rule);
        }
        self.learning = learning.of.iter().any(Option::is_some).then_some(learning);
        Ok(())
    }
}
