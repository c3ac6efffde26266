//! `chronaxie devices`: what this machine can run on, and what is missing.

use crate::Outcome;
use crate::args::Devices;
use crate::output::{self, Out, bytes, is_stdout, json_can_be_written, write_json};
use crate::version::dotted;
use chronaxie::cuda::{CudaDevice, DeviceAttributes, Driver, cache, nvrtc};
use chronaxie::{Error, Result, pool, simd};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// One property: its name in JSON, its value, and how a person reads it.
type Row = (&'static str, Value, String);

fn row(name: &'static str, value: impl Into<Value>, text: impl Into<String>) -> Row {
    (name, value.into(), text.into())
}
fn plain(name: &'static str, value: impl Into<Value>) -> Row {
    let value = value.into();
    let text = match &value {
        Value::String(s) => s.clone(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    };
    (name, value, text)
}
fn size(name: &'static str, n: u64) -> Row {
    row(name, n, bytes(n))
}
fn mhz(name: &'static str, khz: u32) -> Row {
    row(name, khz, format!("{} MHz", khz / 1000))
}
fn extent(name: &'static str, (x, y, z): (u32, u32, u32)) -> Row {
    row(name, json!([x, y, z]), format!("{x} x {y} x {z}"))
}

/// Everything that a CUDA device tells.
fn cuda_rows(a: &DeviceAttributes) -> Vec<Row> {
    vec![
        plain("name", a.name.clone()),
        plain("compute_capability", dotted(a.compute_capability)),
        plain("arch", a.arch.clone()),
        plain("sm_count", a.sm_count),
        plain("cores", a.cores),
        mhz("clock_khz", a.clock_khz),
        mhz("memory_clock_khz", a.memory_clock_khz),
        row("memory_bus_bits", a.memory_bus_bits, format!("{} bits", a.memory_bus_bits)),
        size("memory_total_bytes", a.memory.total),
        size("memory_free_bytes", a.memory.free),
        size("l2_bytes", a.l2_bytes.into()),
        size("constant_bytes", a.constant_bytes.into()),
        size("shared_per_block_bytes", a.shared_per_block.into()),
        size("shared_per_block_optin_bytes", a.shared_per_block_optin.into()),
        size("shared_per_sm_bytes", a.shared_per_sm.into()),
        plain("registers_per_block", a.registers_per_block),
        plain("registers_per_sm", a.registers_per_sm),
        plain("warp_size", a.warp_size),
        plain("threads_per_block", a.threads_per_block),
        plain("threads_per_sm", a.threads_per_sm),
        plain("blocks_per_sm", a.blocks_per_sm),
        extent("max_block", a.max_block),
        extent("max_grid", a.max_grid),
        plain("copy_engines", a.copy_engines),
        plain("ecc", a.ecc),
        plain("run_time_limit", a.run_time_limit),
        plain("integrated", a.integrated),
        plain("unified_addressing", a.unified_addressing),
        plain("managed_memory", a.managed_memory),
        plain("compute_preemption", a.compute_preemption),
        plain("pci_id", a.pci_id.clone()),
        plain("compute_mode", a.compute_mode),
        plain("cooperative_launch", a.cooperative_launch),
        plain("cluster_launch", a.cluster_launch),
        plain("memory_pools", a.memory_pools),
    ]
}

fn cpu_rows() -> Vec<Row> {
    vec![
        plain("cores", std::thread::available_parallelism().map_or(1, usize::from) as u64),
        plain("threads", pool::num_threads() as u64),
        plain("simd", simd::level().to_string()),
        plain("arch", std::env::consts::ARCH),
    ]
}

/// A library that is opened at run time: its version and place, or why it cannot be used.
fn library_rows(found: &Result<(String, String)>) -> Vec<Row> {
    match found {
        Ok((version, place)) => vec![plain("version", version.clone()), plain("path", place.clone())],
        Err(e) => vec![plain("missing", e.to_string())],
    }
}

fn object(rows: &[Row]) -> Value {
    Value::Object(rows.iter().map(|(n, v, _)| ((*n).to_owned(), v.clone())).collect::<Map<_, _>>())
}

fn open_all() -> Result<Vec<DeviceAttributes>> {
    (0..CudaDevice::count()?).map(|i| CudaDevice::open(i)?.attributes()).collect()
}

/// What was found, or why not.
struct Found {
    driver: Result<(String, String)>,
    nvrtc: Result<(String, String)>,
    devices: Result<Vec<DeviceAttributes>>,
    folder: Option<PathBuf>,
}

impl Found {
    fn here() -> Self {
        let driver = Driver::get().map(|d| (dotted(d.version()), "the system's driver library".to_owned()));
        let nvrtc = nvrtc().map(|n| (dotted(n.version()), n.path().display().to_string()));
        let devices = if driver.is_ok() { open_all() } else { Ok(Vec::new()) };
        Self { driver, nvrtc, devices, folder: cache::global().folder() }
    }
    fn value(&self) -> Value {
        let error = |e: &Error| json!({ "missing": e.to_string() });
        json!({
            "cpu": object(&cpu_rows()),
            "driver": object(&library_rows(&self.driver)),
            "nvrtc": object(&library_rows(&self.nvrtc)),
            "cache_dir": self.folder,
            "cuda": self.devices.as_ref().map_or_else(error, |list| {
                Value::Array(list.iter().map(|a| object(&cuda_rows(a))).collect())
            }),
        })
    }
}

/// What `chronaxie devices --json` writes.
pub fn inventory() -> Value {
    Found::here().value()
}

pub(crate) fn run(args: &Devices, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let found = Found::here();
    let Found { driver, nvrtc, devices, folder } = &found;

    if !is_stdout(json) {
        section(out, "CPU", &cpu_rows())?;
        section(out, "CUDA driver", &library_rows(driver))?;
        section(out, "NVRTC", &library_rows(nvrtc))?;
        let place = folder.as_ref().map_or("nowhere".to_owned(), |f| f.display().to_string());
        section(out, "Compiled kernels", &[plain("kept in", place)])?;
        match devices {
            Ok(list) if list.is_empty() && driver.is_ok() => {
                section(out, "CUDA devices", &[plain("missing", "the driver is there, but it has no device")])?;
            }
            Ok(list) => {
                for a in list {
                    section(out, &format!("cuda:{}", a.index), &cuda_rows(a))?;
                }
            }
            Err(e) => section(out, "CUDA devices", &[plain("missing", e.to_string())])?,
        }
    }
    write_json(json, &found.value(), out)
}

fn section(out: &mut Out, title: &str, rows: &[Row]) -> Outcome {
    out.line(title)?;
    let cells: Vec<Vec<String>> =
        rows.iter().map(|(n, _, text)| vec![format!("  {}", n.replace('_', " ")), text.clone()]).collect();
    for line in output::table(&["", ""], &cells, 2).iter().skip(1) {
        out.line(line)?;
    }
    Ok(())
}
