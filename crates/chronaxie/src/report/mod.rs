//! What a run leaves behind: its folder, a record of how it was made, and pictures.

mod canvas;
mod curve;
pub mod figure;
mod folder;
mod record;

pub use curve::{Curve, Line, Panel};
pub use folder::{RunFolder, write_atomically};
pub use record::{RunRecord, RunStatus, utc};
