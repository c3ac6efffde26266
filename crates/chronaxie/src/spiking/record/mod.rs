//! What goes in and out as tables: edge lists, spikes, their hash, traces.

pub mod books;
pub mod columns;
pub mod spikes;
pub mod traces;

pub use books::Books;
pub use spikes::{SpikeHash, SpikeLog};
pub use traces::{Recorder, TraceLog};

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Lets `write` write a file aside, and puts it in the place of `path` when it is whole.
///
/// # Errors
/// `Io`; then what was at `path` is still there, and nothing beside it.
fn replace(path: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = PathBuf::from(aside);
    write(&aside).and_then(|()| std::fs::rename(&aside, path)).map_err(|e| {
        let _ = std::fs::remove_file(&aside);
        Error::io("write", path, &e)
    })
}
