//! `plasticity` of a projection.
//!
//! ```toml
//! plasticity = { rule = "stdp", A_plus = 0.01, A_minus = 0.012, tau_plus = 20.0, tau_minus = 20.0, w_max = 80.0,
//!                w_min = 0.0, dependence = "additive", pairs = "all_to_all", delay = "dendritic" }
//! plasticity = { rule = "tsodyks_markram", U = 0.5, tau_rec = 800.0, tau_fac = 0.0 }
//! ```
//! A table `short_term` with the fields of the second beside those of the first has both.

use crate::Result;
use crate::config::{Milliseconds, Section};
use crate::spiking::plasticity::{Dependence, Pairs, Placement, Plasticity, ShortTerm, Stdp};

/// What `section` says of plasticity, if it says something.
pub(super) fn plasticity(section: &Section<'_>, dt_ms: f64) -> Result<Option<Plasticity>> {
    if !section.contains("plasticity") {
        return Ok(None);
    }
    let t = section.table("plasticity")?;
    let what = match t.choice("rule", &["stdp", "tsodyks_markram"], "stdp")? {
        "stdp" => {
            let mut what = Plasticity::stdp(stdp(&t)?);
            if t.contains("short_term") {
                let short_term = t.table("short_term")?;
                what = what.and_short_term(self::short_term(&short_term)?);
                refuse(&short_term, &Plasticity::short_term(self::short_term(&short_term)?), dt_ms)?;
            }
            refuse(&t, &Plasticity { short_term: None, ..what }, dt_ms)?;
            what
        }
        _ => {
            let what = Plasticity::short_term(short_term(&t)?);
            refuse(&t, &what, dt_ms)?;
            what
        }
    };
    Ok(Some(what))
}

fn refuse(section: &Section<'_>, what: &Plasticity, dt_ms: f64) -> Result<()> {
    what.problem(dt_ms).map_or(Ok(()), |(field, problem)| Err(section.refuse(field, &problem)))
}

fn stdp(t: &Section<'_>) -> Result<Stdp> {
    let ms = |key| t.get(key, Milliseconds(20.0)).map(|ms| ms.0);
    Ok(Stdp {
        a_plus: t.get("A_plus", 0.01)?,
        a_minus: t.get("A_minus", 0.012)?,
        tau_plus_ms: ms("tau_plus")?,
        tau_minus_ms: ms("tau_minus")?,
        w_min: t.get("w_min", 0.0)?,
        w_max: t.require("w_max")?,
        dependence: match t.choice("dependence", &["additive", "multiplicative", "mixed"], "additive")? {
            "multiplicative" => Dependence::Multiplicative,
            "mixed" => Dependence::Mixed,
            _ => Dependence::Additive,
        },
        pairs: match t.choice("pairs", &["all_to_all", "nearest_neighbour"], "all_to_all")? {
            "nearest_neighbour" => Pairs::Nearest,
            _ => Pairs::All,
        },
        placement: match t.choice("delay", &["dendritic", "axonal"], "dendritic")? {
            "axonal" => Placement::Axonal,
            _ => Placement::Dendritic,
        },
    })
}

fn short_term(t: &Section<'_>) -> Result<ShortTerm> {
    Ok(ShortTerm {
        u: t.get("U", 0.5)?,
        tau_rec_ms: t.get("tau_rec", Milliseconds(800.0))?.0,
        tau_fac_ms: t.get("tau_fac", Milliseconds(0.0))?.0,
    })
}
