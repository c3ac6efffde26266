//! Ranges of equal work along a Z-order curve in four dimensions: cells near to each other along it are near in space.

use super::{Layout, Load, Partitioner, groups};
use crate::Result;

/// Likewise.
pub struct Morton;

impl Partitioner for Morton {
    fn name(&self) -> &'static str {
        "morton"
    }
    fn about(&self) -> &'static str {
        "ranges along a Z-order curve in four dimensions"
    }
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout> {
        groups::ranges(load, parts, &groups::along(load.plan))
    }
}
