//! Standard output, JSON files, tables.

use crate::{Outcome, Stop};
use chronaxie::Error;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Standard output. A closed pipe ends the command; any other failure is an error.
pub(crate) struct Out {
    stream: io::StdoutLock<'static>,
    colour: bool,
}

impl Out {
    pub(crate) fn new() -> Self {
        let stream = io::stdout().lock();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let colour = wanted && stream.is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Self { stream, colour }
    }
    /// Prints a line and flushes it, so that a reader sees results as they come.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) -> Outcome {
        writeln!(self.stream, "{line}").and_then(|()| self.stream.flush()).map_err(refused)
    }
    /// Prints bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Outcome {
        self.stream.write_all(bytes).and_then(|()| self.stream.flush()).map_err(refused)
    }
    /// `text` in red, on a terminal that wants colours.
    pub(crate) fn red(&self, text: &str) -> String {
        if self.colour { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn refused(e: io::Error) -> Stop {
    if e.kind() == io::ErrorKind::BrokenPipe {
        return Stop::ClosedPipe;
    }
    Error::io("write", "standard output", &e).into()
}

/// Whether results go to standard output as JSON, so that no table may.
pub(crate) fn is_stdout(json: Option<&Path>) -> bool {
    json.is_some_and(|p| p == Path::new("-"))
}

/// Writes `value` to the file that `--json` names, whole or not at all; `-` is standard output.
pub(crate) fn write_json(json: Option<&Path>, value: &impl Serialize, out: &mut Out) -> Outcome {
    let Some(path) = json else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::value(format!("JSON: {e}")))?;
    text.push('\n');
    if is_stdout(Some(path)) {
        return out.bytes(text.as_bytes());
    }
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.part", std::process::id()));
    let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&aside);
        Error::io("write", path, &e).into()
    })
}

/// Fails before long work if `--json` names a file that cannot be written.
pub(crate) fn json_can_be_written(json: Option<&Path>) -> Outcome {
    let Some(path) = json.filter(|p| *p != Path::new("-")) else { return Ok(()) };
    if path.is_dir() {
        return Err(Error::config(format!("--json {} is a folder, not a file", path.display())).into());
    }
    match path.parent().filter(|p| !p.as_os_str().is_empty() && !p.is_dir()) {
        Some(folder) => {
            Err(Error::config(format!("--json {}: there is no folder {}", path.display(), folder.display())).into())
        }
        None => Ok(()),
    }
}

/// `error: ...` on standard error; a closed one is no reason to fail.
pub(crate) fn error_line(e: &Error) {
    let _ = writeln!(io::stderr(), "error: {e}");
}

/// A note on standard error, unless `--quiet`.
pub(crate) fn note(quiet: bool, text: &str) {
    if !quiet {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Rows under headings, in columns as wide as their widest cell; numbers (all but the first `left`) to the right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>], left: usize) -> Vec<String> {
    let width = |c: usize| {
        let cells = rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count());
        cells.chain([headings[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let render = |cells: &[&str]| {
        let mut line = String::new();
        for (c, cell) in cells.iter().enumerate() {
            let w = widths[c];
            line += &if c < left { format!("{cell:<w$}  ") } else { format!("{cell:>w$}  ") };
        }
        line.trim_end().to_owned()
    };
    let heading = render(headings);
    let body = rows.iter().map(|r| render(&r.iter().map(String::as_str).collect::<Vec<_>>()));
    std::iter::once(heading).chain(body).collect()
}

/// `1234567` as `1.2 MB`.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "KiB", "MiB", "GiB", "TiB"], 1024.0)
}

/// A count or a rate with a decimal prefix: `3.1 G`.
pub(crate) fn count(n: f64) -> String {
    scaled(n, &["", "k", "M", "G", "T", "P"], 1000.0).trim_end().to_owned()
}

fn scaled(n: f64, units: &[&str], base: f64) -> String {
    let (mut n, mut i) = (n, 0);
    while n >= base && i + 1 < units.len() {
        n /= base;
        i += 1;
    }
    if i == 0 && n.fract() == 0.0 { format!("{n} {}", units[0]) } else { format!("{n:.1} {}", units[i]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let rows = vec![vec!["ltc".to_owned(), "1.5".to_owned()], vec!["linear_scan".to_owned(), "12".to_owned()]];
        assert_eq!(table(&["family", "ms"], &rows, 1), ["family        ms", "ltc          1.5", "linear_scan   12"]);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(140 << 30), "140.0 GiB");
        assert_eq!((count(12.0), count(3.1e9)), ("12".to_owned(), "3.1 G".to_owned()));
    }
}
