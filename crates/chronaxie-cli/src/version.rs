//! `chronaxie --version`, and with `--json` everything that a report of a fault needs.

use crate::Outcome;
use crate::output::{Out, write_json};
use chronaxie::cuda::{Driver, nvrtc};
use chronaxie::simd;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Version {
    version: &'static str,
    commit: Option<String>,
    target: String,
    simd: String,
    driver: Option<String>,
    nvrtc: Option<String>,
    nvrtc_path: Option<PathBuf>,
}

/// `13.0`, for the version of a driver or of NVRTC.
pub(crate) fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

pub(crate) fn driver() -> Option<String> {
    Driver::get().ok().map(|d| dotted(d.version()))
}

pub(crate) fn run(json: Option<&PathBuf>, out: &mut Out) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let Some(path) = json else {
        let commit = crate::commit().map(|c| format!(" ({})", &c[..c.len().min(12)])).unwrap_or_default();
        return out.line(format_args!("chronaxie {version}{commit}"));
    };
    let nvrtc = nvrtc().ok();
    let value = Version {
        version,
        commit: crate::commit(),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        simd: simd::level().to_string(),
        driver: driver(),
        nvrtc: nvrtc.as_ref().map(|n| dotted(n.version())),
        nvrtc_path: nvrtc.as_ref().map(|n| n.path().to_path_buf()),
    };
    write_json(Some(path), &value, out)
}
