//! What others measured of a population, from a configuration.

use super::Reference;
use crate::Result;
use crate::config::Section;

/// What others measured: of any variant, or in a table of the variant's name of that one alone.
pub(super) fn reference(section: &Section<'_>, variant: &str) -> Result<Reference> {
    let read = |t: &Section<'_>| -> Result<Reference> {
        let [rate_hz, cv, correlation] = ["rate_hz", "cv", "correlation"].map(|key| t.optional(key));
        Ok(Reference { rate_hz: rate_hz?, cv: cv?, correlation: correlation? })
    };
    let t = section.table("reference")?;
    let mut reference = read(&t)?;
    for key in t.keys().iter().filter(|key| t.is_table(key)) {
        let own = read(&t.table(key)?)?;
        if key == variant {
            reference = own;
        }
    }
    Ok(reference)
}
