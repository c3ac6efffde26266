//! `run.json`: how a run was made, so that it can be made again.

use crate::bench::{Provenance, date_utc};
use crate::cuda::nvrtc;
use crate::{Device, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment as `YYYY-MM-DDThh:mm:ssZ`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) % 86_400;
    format!("{}T{:02}:{:02}:{:02}Z", date_utc(time), seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// It goes on, or it was killed.
    Running,
    /// The user stopped it.
    Interrupted,
    /// It ended with an error.
    Failed,
    /// It is complete.
    Finished,
}

/// The contents of `run.json`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The layout of this record.
    pub schema: u32,
    /// `train` or `simulate`.
    pub command: &'static str,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// This library's version.
    pub version: &'static str,
    /// The commit it was built from.
    pub commit: Option<String>,
    /// SHA-256 of the configuration as resolved, with overrides and defaults.
    pub config_sha256: String,
    /// SHA-256 of each data file, by what it is for.
    pub data_sha256: BTreeMap<String, String>,
    /// The seed.
    pub seed: u64,
    /// `cpu` or `cuda:N`.
    pub backend: String,
    /// The device's name.
    pub device: String,
    /// The CUDA version that the driver serves.
    pub driver: Option<String>,
    /// The version of NVRTC.
    pub nvrtc: Option<String>,
    /// The vector instructions of the CPU.
    pub simd: String,
    /// Threads of the CPU.
    pub threads: usize,
    /// When the run began (the first time, if it was resumed).
    pub start: String,
    /// When it ended.
    pub end: Option<String>,
    /// Where it stands.
    pub status: RunStatus,
    /// What went wrong.
    pub error: Option<String>,
    /// What came out.
    pub result: Option<serde_json::Value>,
}

impl RunRecord {
    /// A record of a run that begins now on `device`.
    pub fn new(command: &'static str, arguments: Vec<String>, provenance: &Provenance, device: &Device) -> Self {
        let (name, driver, compiler) = match device {
            Device::Cpu => (crate::simd::level().to_string(), None, None),
            Device::Cuda(d) => {
                let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
                let driver = crate::cuda::Driver::get().map(|d| version(d.version())).ok();
                (d.name().to_owned(), driver, nvrtc().map(|n| version(n.version())).ok())
            }
        };
        Self {
            schema: 1,
            command,
            arguments,
            version: env!("CARGO_PKG_VERSION"),
            commit: provenance.commit.clone(),
            config_sha256: String::new(),
            data_sha256: BTreeMap::new(),
            seed: 0,
            backend: device.place().to_string(),
            device: name,
            driver: provenance.driver.clone().or(driver),
            nvrtc: provenance.nvrtc.clone().or(compiler),
            simd: crate::simd::level().to_string(),
            threads: crate::pool::num_threads(),
            start: utc(SystemTime::now()),
            end: None,
            status: RunStatus::Running,
            error: None,
            result: None,
        }
    }
    /// The record as indented JSON.
    ///
    /// # Errors
    /// Never for the types it holds; the signature is the writer's.
    pub fn to_json(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self);
        json.map(|j| j + "\n").map_err(|e| crate::Error::value(format!("run.json: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_are_in_utc() {
        let at = |s| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_795_219_200 + 3661), "2026-11-21T01:01:01Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
    }

    #[test]
    fn the_record_has_the_promised_fields() {
        let record = RunRecord::new("train", vec!["train".into()], &Provenance::default(), &Device::Cpu);
        let json: serde_json::Value = serde_json::from_str(&record.to_json().unwrap()).unwrap();
        for field in [
            "arguments",
            "version",
            "commit",
            "config_sha256",
            "data_sha256",
            "seed",
            "backend",
            "device",
            "driver",
            "nvrtc",
            "simd",
            "threads",
            "start",
            "end",
        ] {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!(json["status"], "running");
        assert_eq!(json["backend"], "cpu");
    }
}
