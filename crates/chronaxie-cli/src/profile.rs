//! `chronaxie profile FAMILY|CONFIG`: what binds each pass of a family, a training step, or a step of a network.

use crate::args::{Common, Profile};
use crate::output::{Out, bytes, count, is_stdout, json_can_be_written, table, write_json};
use crate::{Outcome, select};
use chronaxie::bench::Whole;
use chronaxie::config::Config;
use chronaxie::op::{Case, CaseSet, Op};
use chronaxie::profile::{PassReport, Report, run as profile};
use chronaxie::simulate::{NetworkReport, StepPart, is_network, profile as profile_network, profile_case, refuse_case};
use chronaxie::spiking::bench::{self as spiking, Spiking};
use chronaxie::train::{StepReport, profile as profile_step};
use chronaxie::{Device, Error, Result, registry};
use std::path::Path;

enum Target {
    Family(&'static dyn Op),
    Spiking(&'static Spiking),
    Config(Config),
    Network(Config),
}

/// The family of that name.
fn family(name: &str) -> Result<Target> {
    match spiking::find(name) {
        Some(family) => Ok(Target::Spiking(family)),
        // Its error names all families.
        None => registry::family(name).and_then(|_| registry::find(name)).map(Target::Family),
    }
}

/// The family of that name, or else the configuration in that file.
fn target(name: &str, set: &[String]) -> Result<Target> {
    if let (Ok(_), [assignment, ..]) = (family(name), set) {
        return Err(Error::config(format!(
            "--set {assignment}: a family has no configuration; --case gives its sizes"
        )));
    }
    family(name).or_else(|no_family| match Path::new(name) {
        path if path.exists() => {
            let mut config = Config::read(path)?;
            set.iter().try_for_each(|assignment| config.set(assignment))?;
            Ok(if is_network(&config) { Target::Network(config) } else { Target::Config(config) })
        }
        _ => Err(Error::config(format!("there is no configuration {name}, and {no_family}"))),
    })
}

pub(crate) fn run(args: &Profile, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let target = target(&args.target, &args.set)?;
    if let (Some(gpus), false) = (args.gpus, matches!(target, Target::Network(_))) {
        return Err(
            Error::config(format!("--gpus {gpus}: GPUs share networks of a configuration; a case has gpus=N")).into()
        );
    }
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
        Target::Network(config) => {
            args.case.as_ref().map_or(Ok(()), refuse_case)?;
            network(&profile_network(&config, &device, args.gpus.unwrap_or(1) as usize)?, json, out)
        }
        Target::Spiking(family) => {
            let case = args.case.clone().or_else(|| first_case(family.cases(set(&device))));
            let case = case.ok_or_else(|| no_case(family.name()))?;
            network(&profile_case(family, &case, &device)?, json, out)
        }
    }
}

fn network(report: &NetworkReport, json: Option<&Path>, out: &mut Out) -> Outcome {
    if !is_stdout(json) {
        print_network(report, out)?;
    }
    write_json(json, report, out)
}

fn set(device: &Device) -> CaseSet {
    if matches!(device, Device::Cpu) { CaseSet::Cpu } else { CaseSet::Compared }
}

fn first_case(cases: Vec<Case>) -> Option<Case> {
    cases.into_iter().next()
}

fn no_case(family: &str) -> Error {
    Error::config(format!("{family} has no case of its own for this backend: give one by --case"))
}

fn print_network(r: &NetworkReport, out: &mut Out) -> Outcome {
    out.line(format_args!(
        "{} on {}: {} cells, {} synapses, {}; {:.1} spikes and {} deliveries a step of {} ms",
        r.config,
        r.backend,
        r.cells,
        r.synapses,
        r.engine,
        r.spikes_per_step,
        count(r.events_per_step),
        r.dt_ms
    ))?;
    out.line(format_args!(
        "medians of {} windows of {} steps in each way, from {:.1} ms on",
        r.windows, r.window_steps, r.from_ms
    ))?;
    let row = |p: &StepPart| {
        vec![
            format!("  {}", p.what),
            p.bound.clone(),
            format!("{:.3}", p.us),
            p.share.map_or(String::new(), |s| format!("{:.0} %", 100.0 * s)),
            p.bytes.map_or(String::new(), |n| bytes(n.round() as u64)),
            p.ceiling_us().map_or(String::new(), |us| format!("{us:.3}")),
            format!("{} {}", count(p.count), p.of),
        ]
    };
    let whole = |what: &str, us: f64| {
        let mut row = vec![String::new(); 7];
        (row[0], row[2]) = (format!("  {what}"), format!("{us:.3}"));
        row
    };
    let mut rows: Vec<_> = r.parts.iter().map(row).collect();
    if !r.parts.is_empty() {
        rows.push(whole("all parts, with a clock between them", r.parts_us));
    }
    let kernel = if r.parts.is_empty() { " (one kernel, and spikes to the host)" } else { "" };
    rows.push(whole(&format!("a step by the wall clock, not recorded{kernel}"), r.step_us));
    rows.push(whole("a step by the wall clock, recorded", r.recorded_us));
    rows.extend(r.replayed_us.map(|us| whole("a step as a launch of its own, of a graph's replay", us)));
    rows.extend(r.beside.iter().map(row));
    let headings = ["  part", "bound", "us", "of the parts", "moves", "at the ceiling us", "a step has"];
    for line in table(&headings, &rows, 2) {
        out.line(line)?;
    }
    let floor = r.floor_us.map_or(String::new(), |us| format!("; the least that a step can take is {us:.3} us"));
    out.line(format_args!("real-time factor {:.4}{floor}", r.real_time_factor))?;
    out.line(format_args!(
        "once: the network was made in {:.1} ms; its states, {}, are read in {:.2} ms",
        r.build_ms,
        bytes(r.state_bytes),
        r.state_ms
    ))?;
    out.line(format_args!("ceilings: {}", r.ceilings))?;
    out.line(&r.verdict)
}

fn of_family(op: &dyn Op, args: &Profile, device: &Device) -> Result<Report> {
    let case = args.case.clone().or_else(|| first_case(op.cases(set(device))));
    profile(op, &case.ok_or_else(|| no_case(op.name()))?, device)
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
