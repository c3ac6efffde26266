//! Ranges of numbers: every population in pieces of equal length.

use super::{Layout, Load, Partitioner};
use crate::Result;

/// Likewise.
pub struct Index;

impl Partitioner for Index {
    fn name(&self) -> &'static str {
        "index"
    }
    fn about(&self) -> &'static str {
        "ranges of cells' numbers, of every population alike"
    }
    fn needs_places(&self) -> bool {
        false
    }
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout> {
        Ok(Layout::even(&load.plan.network, parts))
    }
}
