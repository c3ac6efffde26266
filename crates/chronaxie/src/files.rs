//! Files that are never half-written.

use crate::{Error, Result};
use std::fs;
use std::path::Path;

/// Writes what `write` writes to `path` aside, and renames: a reader sees the old file or the new one, also after a crash.
///
/// # Errors
/// `Io`, where the system refuses, and what `write` says; then nothing is left behind.
pub fn write_aside(path: &Path, write: impl FnOnce(&fs::File) -> Result<()>) -> Result<()> {
    let name = path.file_name().map_or_else(|| "file".into(), |n| n.to_string_lossy().into_owned());
    let aside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let fail = |e: std::io::Error| Error::io("write", path, &e);
    let all = || {
        let file = fs::File::create(&aside).map_err(fail)?;
        write(&file)?;
        file.sync_all().and_then(|()| fs::rename(&aside, path)).map_err(fail)
    };
    all().inspect_err(|_| drop(fs::remove_file(&aside)))
}
