//! Families, cases and devices by the names that users give them.

use crate::output::note;
use chronaxie::check::Target;
use chronaxie::op::{Case, Op};
use chronaxie::{Backend, Device, Result, registry};

/// The entries of those names; none is all.
pub(crate) fn families(names: &[String]) -> Result<Vec<&'static dyn Op>> {
    if names.is_empty() {
        return Ok(registry::entries().to_vec());
    }
    names.iter().map(|n| registry::find(n)).collect()
}

/// The cases a user gave, or none where the entries' own are meant. Each must be one of every named family.
pub(crate) fn cases(entries: &[&'static dyn Op], cases: &[Case]) -> Result<Option<Vec<Case>>> {
    for entry in entries {
        for case in cases {
            chronaxie::op::problem(*entry, case).map_err(|e| e.context(entry.name()))?;
        }
    }
    Ok((!cases.is_empty()).then(|| cases.to_vec()))
}

/// What `--backend` names; what `auto` took is said once.
pub(crate) fn targets(backend: &str, quiet: bool) -> Result<Vec<Target>> {
    let (targets, why) = Target::select(backend)?;
    if let Some(why) = why {
        note(quiet, &why);
    }
    Ok(targets)
}

/// The one device that `--backend` names; what `auto` took is said once.
pub(crate) fn device(backend: &str, quiet: bool) -> Result<Device> {
    let (device, why) = Device::open(backend.parse::<Backend>()?)?;
    if let Some(why) = why {
        note(quiet, &why);
    }
    if let Device::Cuda(d) = &device {
        d.require_compiler()?;
    }
    Ok(device)
}
