//! `plasticity` of a projection.
//!
//! ```toml
//! plasticity = { rule = "stdp", A_plus = 0.01, A_minus = 0.012, tau_plus = 20.0, tau_minus = 20.0, w_max = 80.0,
//!                w_min = 0.0, dependence = "additive", pairs = "all_to_all", delay = "dendritic" }
//! plasticity = { rule = "tsodyks_markram", U = 0.5, tau_rec = 800.0, tau_fac = 0.0 }
//! plasticity = { rule = "hebb", A = 0.001, A_pre = 0.0005, A_post = 0.0, tau = 20.0, w_max = 80.0, w_min = 0.0,
//!                dependence = "additive", delay = "dendritic" }
//! plasticity = { rule = "bcm", A = 0.001, target_rate = 5.0, tau = 100.0, tau_threshold = 1000.0, w_max = 80.0,
//!                w_min = 0.0, delay = "dendritic" }
//! plasticity = { rule = "coincidence", A = 0.001, A_pre = 0.0005, w_max = 80.0, w_min = 0.0, weight_decay = 1e-5 }
//! plasticity = { rule = "homeostatic", target_rate = 5.0, window = 1000.0, scaling_rate = 0.01, w_max = 80.0, w_min = 0.0 }
//! plasticity = { rule = "modulated_stdp", modulator = "DA", tau_eligibility = 1000.0, tau_modulator = 200.0,
//!                baseline = 0.0, modulator_delay = 1.0, A_plus = 0.01, ... as of stdp, but additive alone }
//! ```
//! A table `short_term` with the fields of the second beside those of another has both; so have `homeostatic` and `coincidence`,
//! without bounds; `weight_decay`, in the weight's unit a ms, goes with any rule but a modulated one.

use super::Network;
use crate::Result;
use crate::config::{Milliseconds, Section, nearest, quote};
use crate::spiking::plasticity::{
    Bcm, Coincidence, Dependence, Hebb, Homeostasis, Modulation, Pairs, Placement, Plasticity, ShortTerm, Stdp,
};

const RULES: [&str; 7] = ["stdp", "tsodyks_markram", "hebb", "bcm", "coincidence", "homeostatic", "modulated_stdp"];

/// What `section` says of plasticity, if it says something.
pub(super) fn plasticity(section: &Section<'_>, network: &Network) -> Result<Option<Plasticity>> {
    if !section.contains("plasticity") {
        return Ok(None);
    }
    let dt_ms = network.dt_ms;
    let t = section.table("plasticity")?;
    let mut what = match t.choice("rule", &RULES, "stdp")? {
        "stdp" => Plasticity::stdp(stdp(&t)?),
        "modulated_stdp" => Plasticity::modulated(stdp(&t)?, modulation(&t, network)?),
        "hebb" => Plasticity::hebb(hebb(&t)?),
        "bcm" => Plasticity::bcm(bcm(&t)?),
        "coincidence" => {
            let bounds = (t.get("w_min", 0.0)?, t.require("w_max")?);
            Plasticity::coincidence(Coincidence { bounds: Some(bounds), ..coincidence(&t)? })
        }
        "homeostatic" => {
            let bounds = (t.get("w_min", 0.0)?, t.require("w_max")?);
            Plasticity::homeostasis(Homeostasis { bounds: Some(bounds), ..homeostasis(&t)? })
        }
        _ => Plasticity::short_term(short_term(&t)?),
    };
    what.decay_per_ms = t.get("weight_decay", 0.0)?;
    refuse(&t, &what, dt_ms)?;
    if what.bounds().is_some() && what.coincidence.is_none() && t.contains("coincidence") {
        let own = t.table("coincidence")?;
        what = what.and_coincidence(coincidence(&own)?);
        refuse(&own, &what, dt_ms)?;
    }
    if what.short_term.is_none() && t.contains("short_term") {
        let own = t.table("short_term")?;
        what = what.and_short_term(short_term(&own)?);
        refuse(&own, &what, dt_ms)?;
    }
    if what.bounds().is_some() && what.homeostasis.is_none() && t.contains("homeostatic") {
        let own = t.table("homeostatic")?;
        what = what.and_homeostasis(homeostasis(&own)?);
        refuse(&own, &what, dt_ms)?;
    }
    Ok(Some(what))
}

fn refuse(section: &Section<'_>, what: &Plasticity, dt_ms: f64) -> Result<()> {
    what.problem(dt_ms).map_or(Ok(()), |(field, problem)| Err(section.refuse(field, &problem)))
}

fn modulation(t: &Section<'_>, network: &Network) -> Result<Modulation> {
    let name: String = t.require("modulator")?;
    let names = || network.populations.iter().map(|p| p.name.as_str());
    let Some(population) = network.find(&name) else {
        let hint = match nearest(&name, names()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
        };
        return Err(t.refuse("modulator", &format!("names {}, which is no population; {hint}", quote(&name))));
    };
    let ms = |key, default| t.get(key, Milliseconds(default)).map(|ms| ms.0);
    Ok(Modulation {
        population,
        tau_c_ms: ms("tau_eligibility", 1000.0)?,
        tau_n_ms: ms("tau_modulator", 200.0)?,
        baseline_hz: t.get("baseline", 0.0)?,
        delay_ms: ms("modulator_delay", 1.0_f64.max(network.dt_ms))?,
    })
}

fn dependence(t: &Section<'_>) -> Result<Dependence> {
    Ok(match t.choice("dependence", &["additive", "multiplicative", "mixed"], "additive")? {
        "multiplicative" => Dependence::Multiplicative,
        "mixed" => Dependence::Mixed,
        _ => Dependence::Additive,
    })
}

fn placement(t: &Section<'_>) -> Result<Placement> {
    Ok(match t.choice("delay", &["dendritic", "axonal"], "dendritic")? {
        "axonal" => Placement::Axonal,
        _ => Placement::Dendritic,
    })
}

fn hebb(t: &Section<'_>) -> Result<Hebb> {
    let a = t.get("A", 0.001)?;
    Ok(Hebb {
        a,
        a_pre: t.get("A_pre", a / 2.0)?,
        a_post: t.get("A_post", 0.0)?,
        tau_ms: t.get("tau", Milliseconds(20.0))?.0,
        w_min: t.get("w_min", 0.0)?,
        w_max: t.require("w_max")?,
        dependence: dependence(t)?,
        placement: placement(t)?,
    })
}

fn bcm(t: &Section<'_>) -> Result<Bcm> {
    Ok(Bcm {
        a: t.get("A", 0.001)?,
        target_hz: t.get("target_rate", 5.0)?,
        tau_ms: t.get("tau", Milliseconds(100.0))?.0,
        tau_threshold_ms: t.get("tau_threshold", Milliseconds(1000.0))?.0,
        w_min: t.get("w_min", 0.0)?,
        w_max: t.require("w_max")?,
        placement: placement(t)?,
    })
}

fn coincidence(t: &Section<'_>) -> Result<Coincidence> {
    let a = t.get("A", 0.001)?;
    Ok(Coincidence { a, a_pre: t.get("A_pre", a / 2.0)?, bounds: None })
}

fn homeostasis(t: &Section<'_>) -> Result<Homeostasis> {
    Ok(Homeostasis {
        target_hz: t.get("target_rate", 5.0)?,
        window_ms: t.get("window", Milliseconds(1000.0))?.0,
        rate: t.get("scaling_rate", 0.01)?,
        bounds: None,
    })
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
        dependence: dependence(t)?,
        pairs: match t.choice("pairs", &["all_to_all", "nearest_neighbour"], "all_to_all")? {
            "nearest_neighbour" => Pairs::Nearest,
            _ => Pairs::All,
        },
        placement: placement(t)?,
    })
}

fn short_term(t: &Section<'_>) -> Result<ShortTerm> {
    Ok(ShortTerm {
        u: t.get("U", 0.5)?,
        tau_rec_ms: t.get("tau_rec", Milliseconds(800.0))?.0,
        tau_fac_ms: t.get("tau_fac", Milliseconds(0.0))?.0,
    })
}

/// `what` as it is read: a mapping in JSON. Not what goes by a modulator, which has its population's name.
pub fn written(what: &Plasticity) -> String {
    let mut all = vec![format!("\"rule\": \"{}\"", what.name())];
    let number = |key: &str, x: f64| format!("\"{key}\": {x:?}");
    let word = |key: &str, x: &str| format!("\"{key}\": \"{x}\"");
    let table = |key: &str, fields: Vec<String>| format!("\"{key}\": {{{}}}", fields.join(", "));
    let dependence = |d| match d {
        Dependence::Additive => "additive",
        Dependence::Multiplicative => "multiplicative",
        Dependence::Mixed => "mixed",
    };
    let placement = |p| if p == Placement::Axonal { "axonal" } else { "dendritic" };
    let short =
        |s: &ShortTerm| vec![number("U", s.u), number("tau_rec", s.tau_rec_ms), number("tau_fac", s.tau_fac_ms)];
    let scaling = |h: &Homeostasis| {
        vec![number("target_rate", h.target_hz), number("window", h.window_ms), number("scaling_rate", h.rate)]
    };
    let same_step = |c: &Coincidence| vec![number("A", c.a), number("A_pre", c.a_pre)];
    match what {
        Plasticity { stdp: Some(s), .. } => all.extend([
            number("A_plus", s.a_plus),
            number("A_minus", s.a_minus),
            number("tau_plus", s.tau_plus_ms),
            number("tau_minus", s.tau_minus_ms),
            word("dependence", dependence(s.dependence)),
            word("pairs", if s.pairs == Pairs::Nearest { "nearest_neighbour" } else { "all_to_all" }),
            word("delay", placement(s.placement)),
        ]),
        Plasticity { hebb: Some(h), .. } => all.extend([
            number("A", h.a),
            number("A_pre", h.a_pre),
            number("A_post", h.a_post),
            number("tau", h.tau_ms),
            word("dependence", dependence(h.dependence)),
            word("delay", placement(h.placement)),
        ]),
        Plasticity { bcm: Some(b), .. } => all.extend([
            number("A", b.a),
            number("target_rate", b.target_hz),
            number("tau", b.tau_ms),
            number("tau_threshold", b.tau_threshold_ms),
            word("delay", placement(b.placement)),
        ]),
        Plasticity { coincidence: Some(c), .. } => all.extend(same_step(c)),
        Plasticity { homeostasis: Some(h), .. } => all.extend(scaling(h)),
        Plasticity { short_term: Some(s), .. } => all.extend(short(s)),
        _ => {}
    }
    if let Some((low, high)) = what.bounds() {
        all.extend([number("w_min", low), number("w_max", high), number("weight_decay", what.decay_per_ms)]);
    }
    let own = what.name();
    all.extend(what.coincidence.iter().filter(|_| own != "coincidence").map(|c| table("coincidence", same_step(c))));
    all.extend(what.homeostasis.iter().filter(|_| own != "homeostatic").map(|h| table("homeostatic", scaling(h))));
    all.extend(what.short_term.iter().filter(|_| own != "tsodyks_markram").map(|s| table("short_term", short(s))));
    format!("{{{}}}", all.join(", "))
}
