//! `chronaxie profile FAMILY`: what binds each pass.

use crate::args::{Common, Profile};
use crate::output::{Out, bytes, count, is_stdout, json_can_be_written, table, write_json};
use crate::{Outcome, select};
use chronaxie::op::CaseSet;
use chronaxie::profile::{PassReport, Report, run as profile};
use chronaxie::{Device, Error, registry};

pub(crate) fn run(args: &Profile, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let op = registry::find(&args.family)?;
    let device = select::device(&args.backend, common.quiet)?;
    let set = if matches!(device, Device::Cpu) { CaseSet::Cpu } else { CaseSet::Compared };
    let case = match &args.case {
        Some(case) => case.clone(),
        None => op.cases(set).into_iter().next().ok_or_else(|| {
            Error::config(format!("{} has no case of its own for this backend: give one by --case", op.name()))
        })?,
    };
    let report = profile(op, &case, &device)?;
    if !is_stdout(json) {
        print(&report, out)?;
    }
    write_json(json, &report, out)
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
