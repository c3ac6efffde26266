//! Families, cases and devices by the names that users give them.

use crate::output::note;
use chronaxie::bench::Family;
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

/// What is timed under those names; none is all.
pub(crate) fn timed(names: &[String]) -> Result<Vec<Family<'static>>> {
    if names.is_empty() {
        return Ok(registry::families());
    }
    names.iter().map(|n| registry::family(n)).collect()
}

/// The cases a user gave, or none where the families' own are meant. Each must be one of every named family.
pub(crate) fn cases(families: &[Family<'static>], cases: &[Case]) -> Result<Option<Vec<Case>>> {
    families.iter().try_for_each(|family| cases.iter().try_for_each(|case| family.allow(case)))?;
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
