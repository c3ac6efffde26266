//! `[[drive]]`: inputs from outside.

use super::files::Files;
use super::frames::frames;
use super::read::{Numbers, named, numbers};
use super::{Drive, DriveKind, Network};
use crate::Result;
use crate::config::{Milliseconds, Section, short};

/// Adds what `section` says.
///
/// # Errors
/// `Config` with the field and the line; of files that it names, as of [`frames`].
pub(super) fn drives(section: &Section<'_>, network: &mut Network, files: &Files, use_it: bool) -> Result<()> {
    let targets = named(section, "target", network)?;
    let kind = section.choice("kind", &["poisson", "dc", "frames"], "poisson")?;
    if kind == "frames" {
        let &[target] = targets.as_slice() else {
            return Err(section.refuse("target", "must be one population: frames are of its cells"));
        };
        return frames(section, target, network, files, use_it);
    }
    let mut push = |target: usize, kind: DriveKind| {
        if use_it {
            network.drives.push(Drive { target, kind });
        }
    };
    if kind == "dc" {
        let current = numbers(section, "current", targets.len(), 1)?;
        targets.iter().enumerate().for_each(|(t, &target)| push(target, DriveKind::Dc { current: current.at(t, 0) }));
        return Ok(());
    }
    let rate = numbers(section, "rate", targets.len(), 1)?;
    let sources =
        if section.contains("sources") { numbers(section, "sources", targets.len(), 1)? } else { Numbers::One(1.0) };
    let weight = numbers(section, "weight", targets.len(), 1)?;
    let start_ms = section.get("start", Milliseconds(0.0))?.0;
    let stop_ms = section.optional::<Milliseconds>("stop")?.map_or(f64::INFINITY, |ms| ms.0);
    for (t, &target) in targets.iter().enumerate() {
        let rate_hz = rate.at(t, 0) * sources.at(t, 0);
        if rate.at(t, 0) < 0.0 || sources.at(t, 0) < 0.0 {
            return Err(section.refuse(
                "rate",
                &format!("times sources is {rate_hz}, made of a negative number", rate_hz = short(rate_hz)),
            ));
        }
        push(target, DriveKind::Poisson { rate_hz, weight: weight.at(t, 0), start_ms, stop_ms });
    }
    Ok(())
}
