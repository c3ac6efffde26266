//! `chronaxie profile FAMILY|CONFIG.toml`: what binds each pass of a family, or a training step.

use crate::args::{Common, Profile};
use crate::output::{Out, bytes, count, is_stdout, json_can_be_written, table, write_json};
use crate::{Outcome, select};
use chronaxie::config::Config;
use chronaxie::op::{CaseSet, Op};
use chronaxie::profile::{PassReport, Report, run as profile};
use chronaxie::train::{StepReport, profile as profile_step};
use chronaxie::{Device, Error, Result, registry};
use std::path::Path;

enum Target {
    Family(&'static dyn Op),
    Config(Config),
}

/// The family of that name, or else the configuration in that file.
fn target(name: &str) -> Result<Target> {
    registry::find(name).map(Target::Family).or_else(|no_family| match Path::new(name) {
        path if path.exists() => Config::read(path).map(Target::Config),
        _ => Err(Error::config(format!("there is no configuration {name}, and {no_family}"))),
    })
}

pub(crate) fn run(args: &Profile, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let target = target(&args.target)?;
    let device = select::device(&args.backend, common.quiet)?;
    match target {
        Target::Family(op) => {
            let report = of_family(op, args, &device)?;
            if !is_stdout(json) {
                print(&report, out)?;
            }
            write_json(json, &report, out)
        }
        Target::Config(config) => {
            let report = profile_step(&config, args.case.as_ref(), &device)?;
            if !is_stdout(json) {
                print_step(&report, out)?;
            }
            write_json(json, &report, out)
        }
    }
}

fn of_family(op: &dyn Op, args: &Profile, device: &Device) -> Result<Report> {
    let set = if matches!(device, Device::Cpu) { CaseSet::Cpu } else { CaseSet::Compared };
    let case = match &args.case {
        Some(case) => case.clone(),
        None => op.cases(set).into_iter().next().ok_or_else(|| {
            Error::config(format!("{} has no case of its own for this backend: give one by --case", op.name()))
        })?,
    };
    profile(op, &case, device)
}

fn print_step(r: &StepReport, out: &mut Out) -> Outcome {
    out.line(format_args!(
        "{} {} on {}: {} of {} steps of an epoch, {} parameters",
        r.config, r.case, r.backend, r.steps, r.epoch_steps, r.parameters
    ))?;
    let share = |ms: f64| format!("{:.0} %", 100.0 * ms / r.measured_ms.max(1e-9));
    let row = |what: &str, place: &str, ms: f64| vec![what.to_owned(), place.to_owned(), format!("{ms:.4}"), share(ms)];
    let mut rows: Vec<_> = r.work.iter().map(|w| row(&format!("  {}", w.what), &w.place, w.ms)).collect();
    rows.push(row("  all passes after each other", &r.backend, r.operations_ms));
    rows.push(row("  a step by the wall clock", "", r.measured_ms));
    for line in table(&["  part", "place", "ms", "of a step"], &rows, 2) {
        out.line(line)?;
    }
    if let Some(n) = r.transfer_bytes {
        out.line(format_args!("a batch is {} to copy; the host works ahead of the GPU", bytes(n)))?;
    }
    out.line(&r.verdict)?;
    for operation in &r.operations {
        out.line("")?;
        print(operation, out)?;
    }
    Ok(())
}

fn print(r: &Report, out: &mut Out) -> Outcome {
    out.line(format_args!("{} {} on {} ({}, variant {})", r.family, r.case, r.backend, r.dtype, r.variant))?;
    out.line(format_args!("configuration: {}", r.config))?;
    out.line(format_args!("ceilings: {}", r.ceilings))?;
    for p in &r.passes {
        out.line("")?;
        print_pass(p, out)?;
    }
    Ok(())
}

fn print_pass(p: &PassReport, out: &mut Out) -> Outcome {
    out.line(format_args!(
        "{}: {:.4} ms, {} launches, {} of scratch",
        p.pass,
        p.measured_ms,
        p.launches,
        bytes(p.scratch_bytes)
    ))?;
    if !p.kernels.is_empty() {
        let rows: Vec<Vec<String>> = p
            .kernels
            .iter()
            .map(|k| {
                vec![
                    format!("  {}", k.kernel),
                    k.launches.to_string(),
                    format!("{}x{}x{}", k.grid.0, k.grid.1, k.grid.2),
                    format!("{}x{}x{}", k.block.0, k.block.1, k.block.2),
                    k.registers.to_string(),
                    bytes(k.local_bytes.into()),
                    bytes(k.shared_bytes.into()),
                    k.blocks_per_sm.to_string(),
                    format!("{:.0} %", k.occupancy * 100.0),
                ]
            })
            .collect();
        let headings =
            ["  kernel", "launches", "grid", "block", "registers", "local", "shared", "blocks/SM", "occupancy"];
        for line in table(&headings, &rows, 1) {
            out.line(line)?;
        }
    }
    out.line(format_args!(
        "  at the least {} ({:.4} ms), {} flop ({:.4} ms), {} special functions ({:.4} ms), {} serial steps",
        bytes(p.bytes),
        p.memory_ms,
        count(p.flops as f64),
        p.compute_ms,
        count(p.special as f64),
        p.special_ms,
        p.serial_steps
    ))?;
    out.line(format_args!("  {}", p.verdict))?;
    match p.transfer_ms {
        Some(ms) => out.line(format_args!(
            "  with data from the host and back at each call, copies add {ms:.4} ms: {} binds",
            p.binds_from_host
        )),
        None => Ok(()),
    }
}
