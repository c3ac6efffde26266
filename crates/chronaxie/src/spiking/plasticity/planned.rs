//! What a plan says of synapses that change.

use super::fixed::{Learning, MAX_RULES, Rule};
use super::sign_of;
use crate::config::short;
use crate::spiking::network::{Network, Projection, Rule as Pairs};
use crate::spiking::plan::Plan;
use crate::{Error, Result};

/// Less of the weights than this beyond the bounds of their plasticity is not worth a word.
const NOTABLE: f64 = 1e-4;

/// Which share of a projection's weights begins at a bound of its plasticity, since it was drawn beyond it, in a sentence's end that says so;
/// all of a list of which one does. Nothing where none does.
fn beyond(p: &Projection) -> Option<(f64, String)> {
    let (low, high) = p.plasticity.as_ref()?.bounds()?;
    let bounds = format!("w_min = {} to w_max = {}", short(low), short(high));
    if let Pairs::Edges(edges) = &p.rule {
        // As precise as the list.
        let inside = low as f32..=high as f32;
        let at = edges.iter().position(|e| !inside.contains(&e.weight.abs()))?;
        return Some((1.0, format!("has bounds from {bounds}, but edge {at} has the weight {}", edges[at].weight)));
    }
    // Sizes of weights of one sign.
    let (w, size) = (&p.weight, |x: f64| x.abs());
    let share = match sign_of(w, &p.rule)? {
        -1 => w.cdf((-high).next_down()) + (1.0 - w.cdf(-low)),
        _ => w.cdf(low.next_down()) + (1.0 - w.cdf(high)),
    };
    let says = match w.constant() {
        Some(x) => format!("has bounds from {bounds}, but the weight is {}", short(size(x))),
        None => format!(
            "has bounds from {bounds}, but of the weights, {} on average, {:.2} % are drawn beyond them",
            rounded(size(w.mean())),
            100.0 * share
        ),
    };
    (share > 0.0).then_some((share, says))
}

/// To five digits.
fn rounded(x: f64) -> String {
    short(format!("{x:.4e}").parse().unwrap_or(x))
}

/// A sentence for each projection of which some weights are drawn beyond the bounds of their plasticity.
pub(in crate::spiking) fn notes(network: &Network) -> Vec<String> {
    let name = |i: usize| &network.populations[i].name;
    let note = |p: &Projection| {
        let (_, says) = beyond(p).filter(|(share, _)| (NOTABLE..=0.5).contains(share))?;
        Some(format!("projection {} -> {}: plasticity {says}, and begin at them", name(p.source), name(p.target)))
    };
    network.projections.iter().filter_map(note).collect()
}

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
            let (unit, shift) = (self.coarse_unit(p.target, port), self.shifts[p.target][port]);
            let rule = learning.add(plasticity, sign, (port, unit, shift), self.network.dt_ms);
            // Others between the same populations that do the same.
            let alike = |j: &usize| {
                let q = &self.network.projections[*j];
                let same = |(a, b): (u16, u16)| {
                    let [a, b] = [a, b].map(|r| &learning.rules[usize::from(r)]);
                    Rule { copy: 0, ..a.clone() } == *b
                };
                (q.source, q.target) == (p.source, p.target) && learning.of[*j].zip(rule).is_some_and(same)
            };
            let copies = (0..i).filter(alike).count();
            let rule = rule.and_then(|rule| learning.copy(rule, copies));
            if rule.is_none() {
                return refuse(format!("is one of more than {MAX_RULES} different kinds"));
            }
            if let Some((low, high)) = plasticity.bounds()
                && (high - low) / unit < 64.0
            {
                return refuse(format!(
                    "has bounds from {low} to {high}, less than 64 of the unit {unit} that the largest weight into the same \
                     port sets"
                ));
            }
            if let Some(problem) = beyond(p).and_then(|(share, what)| (share > 0.5).then_some(what)) {
                return refuse(problem);
            }
            if let Some(m) = plasticity.modulation {
                let populations = self.network.populations.len();
                if m.population >= populations {
                    return refuse(format!(
                        "has population {} for a modulator, but there are {populations}",
                        m.population
                    ));
                }
                // What carries the modulator must be known everywhere before it gets there, and not be forgotten before.
                let steps = (m.delay_ms / self.network.dt_ms).round() as u32;
                self.min_delay = self.min_delay.min(steps);
                self.max_delay = self.max_delay.max(steps);
            }
            learning.of.push(rule);
        }
        self.learning = learning.of.iter().any(Option::is_some).then_some(learning);
        Ok(())
    }
}
