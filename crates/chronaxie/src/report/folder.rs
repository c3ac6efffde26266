//! Folders of runs: never half-written files, never over somebody's other files.

use crate::files::write_aside;
use crate::{Error, Result};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path` aside, and renames: a reader sees the old file or the new one, also after a crash.
///
/// # Errors
/// `Io`, where the system refuses; then nothing is left behind.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_aside(path, |mut file| file.write_all(bytes).map_err(|e| Error::io("write", path, &e)))
}

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Refuses a folder that holds anything, unless a run is to be `resume`d there. Makes nothing yet.
    ///
    /// # Errors
    /// `Config`, where the folder is not empty or the path is a file.
    pub fn open(path: impl Into<PathBuf>, resume: bool) -> Result<Self> {
        let path = path.into();
        match fs::read_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(Error::config(format!("the output folder {} is a file", path.display())));
            }
            Err(e) => return Err(Error::io("look into", &path, &e)),
            Ok(entries) => {
                if !resume && entries.count() > 0 {
                    return Err(Error::config(format!(
                        "the output folder {} is not empty: go on with the run in it by --resume, or name another by \
                         --out",
                        path.display()
                    )));
                }
            }
        }
        Ok(Self { path })
    }
    /// Makes the folder and its folder for checkpoints.
    ///
    /// # Errors
    /// `Io`, where the system refuses.
    pub fn create(&self) -> Result<()> {
        let checkpoints = self.path.join("checkpoint");
        fs::create_dir_all(&checkpoints).map_err(|e| Error::io("make the folder", &checkpoints, &e))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    /// Writes a file in it as a whole.
    ///
    /// # Errors
    /// As [`write_atomically`].
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        write_atomically(&self.file(name), bytes.as_ref())
    }
    /// Adds a line to a file in it; the file ends with whole lines at any time but during the call.
    ///
    /// # Errors
    /// `Io`, where the system refuses.
    pub fn append_line(&self, name: &str, line: &str) -> Result<()> {
        let path = self.file(name);
        let append =
            || fs::OpenOptions::new().create(true).append(true).open(&path)?.write_all(format!("{line}\n").as_bytes());
        append().map_err(|e| Error::io("write", &path, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("chronaxie-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_folder_with_files_is_refused_unless_resumed() {
        let path = scratch("refused");
        let folder = RunFolder::open(&path, false).unwrap();
        assert!(!path.exists(), "opening makes nothing");
        folder.create().unwrap();
        folder.write("run.json", "{}").unwrap();
        let e = RunFolder::open(&path, false).unwrap_err().to_string();
        assert!(e.contains("is not empty") && e.contains("--resume") && e.contains("refused"), "{e}");
        assert!(RunFolder::open(&path, true).is_ok());
        let e = RunFolder::open(path.join("run.json"), true).unwrap_err().to_string();
        assert!(e.contains("is a file"), "{e}");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn files_are_whole_or_absent() {
        let path = scratch("whole");
        let folder = RunFolder::open(&path, false).unwrap();
        let e = folder.write("a.txt", "a").unwrap_err();
        assert!(e.to_string().contains("cannot write"), "{e}");
        folder.create().unwrap();
        folder.write("a.txt", "first").unwrap();
        folder.write("a.txt", "second").unwrap();
        folder.append_line("b.txt", "1").unwrap();
        folder.append_line("b.txt", "2").unwrap();
        assert_eq!(fs::read_to_string(folder.file("a.txt")).unwrap(), "second");
        assert_eq!(fs::read_to_string(folder.file("b.txt")).unwrap(), "1\n2\n");
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "nothing is left aside: {names:?}");
        fs::remove_dir_all(&path).unwrap();
    }
}
