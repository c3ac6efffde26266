//! What a pass does to a device: launches, resources, the least it must do, the time it takes, and which of memory,
//! compute, latency or transfers binds it.

use crate::bench::{self, Bound, Ceilings};
use crate::check;
use crate::op::{Case, Cost, LaunchReport, Op, Pass, Plan, PlanOptions, Problem, Role};
use crate::{Device, Result};
use serde::Serialize;

/// One kernel of a pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Launch {
    /// Source and entry.
    pub kernel: String,
    /// How often a pass launches it.
    pub launches: u64,
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads a block.
    pub block: (u32, u32, u32),
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of spills and stack a thread.
    pub local_bytes: u32,
    /// Shared memory a block, static and dynamic.
    pub shared_bytes: u32,
    /// Blocks that fit a multiprocessor.
    pub blocks_per_sm: u32,
    /// Resident threads over those that a multiprocessor can hold.
    pub occupancy: f64,
}

/// One pass on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PassReport {
    /// `forward`, `backward`, `step`.
    pub pass: String,
    /// Its kernels, in order; none on the CPU.
    pub kernels: Vec<Launch>,
    /// All launches of a run.
    pub launches: u64,
    /// Bytes at the least.
    pub bytes: u64,
    /// Multiplications and additions at the least.
    pub flops: u64,
    /// Special functions at the least.
    pub special: u64,
    /// Steps that must follow each other.
    pub serial_steps: u64,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
    /// What the bytes alone take at the ceiling.
    pub memory_ms: f64,
    /// What the arithmetic alone takes.
    pub compute_ms: f64,
    /// What the special functions alone take.
    pub special_ms: f64,
    /// What copying the data from the host and the results back takes, on a GPU.
    pub transfer_ms: Option<f64>,
    /// Median of some runs.
    pub measured_ms: f64,
    /// `memory`, `compute` or `latency`, of data that lie on the device.
    pub binds: String,
    /// The same of data that come from the host and go back at each call: `transfers`, if copying takes longest.
    pub binds_from_host: String,
    /// The verdict in a sentence, with its figures.
    pub verdict: String,
}

/// All passes of a case on a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The entry.
    pub family: String,
    /// The case.
    pub case: String,
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// The element type of the data.
    pub dtype: String,
    /// The plan's variant.
    pub variant: String,
    /// The plan's configuration.
    pub config: String,
    /// Where the ceilings come from.
    pub ceilings: String,
    /// Its passes.
    pub passes: Vec<PassReport>,
}

/// Below this share of the measured time, no throughput explains it: latency does.
const EXPLAINS: f64 = 0.5;

/// What binds: the roofline's resource if it explains half of the measured time, otherwise latency.
fn judge(cost: &Cost, ceilings: &Ceilings, launches: u64, measured_ms: f64) -> (&'static str, String) {
    let (bound, shortest) = ceilings.roofline(cost);
    let share = shortest / measured_ms;
    if share >= EXPLAINS {
        let name = if bound == Bound::Memory { "memory" } else { "compute" };
        let verdict = format!(
            "{name} binds: {} alone take {shortest:.4} ms of {measured_ms:.4} ({:.0} %)",
            match bound {
                Bound::Memory => format!("{} bytes", cost.bytes),
                Bound::Compute => format!("{} multiplications and additions", cost.flops),
                Bound::Special => format!("{} special functions", cost.special),
            },
            share * 100.0
        );
        return (name, verdict);
    }
    // What follows each other sets the pace; whichever there is more of is the better measure of it.
    let (count, what) =
        if launches > cost.serial_steps { (launches, "launches") } else { (cost.serial_steps, "steps") };
    let verdict = format!(
        "latency binds: {} alone would take {shortest:.4} ms of {measured_ms:.4} ({:.0} %); {launches} launches, and {} \
         steps that follow each other: {:.3} us for each of {count} {what}",
        bound.name(),
        share * 100.0,
        cost.serial_steps,
        measured_ms * 1e3 / count.max(1) as f64
    );
    ("latency", verdict)
}

/// Profiles a case on a device.
///
/// # Errors
/// What the entry refuses, and what fails while it runs.
pub fn run(op: &dyn Op, case: &Case, device: &Device) -> Result<Report> {
    let problem = crate::op::problem(op, case)?;
    let plan = problem.plan(device, &PlanOptions::default())?;
    let mut passes = Vec::new();
    for &pass in op.passes() {
        let Some(signature) = plan.signature(pass) else { continue };
        let mut workspace = bench::ready(op, case, &*plan, &[pass], device)?;
        let timing =
            bench::time(&*plan, &[pass], &mut workspace, device, problem.cost(pass).bytes, bench::Pace::new(SECONDS))?;
        let measured = Measured { pass, ms: timing.ms, memory_bytes: workspace.bytes() as u64 };
        let (mut report, ceilings) = pass_report(&*problem, &*plan, measured, device)?;
        if let Device::Cuda(d) = device {
            let data = signature.inputs.iter().filter(|t| matches!(t.role, Role::Input | Role::State));
            let results = signature.outputs.iter().filter(|t| matches!(t.role, Role::Output | Role::State));
            let bytes: usize = data.chain(results).map(crate::op::TensorSpec::bytes).sum();
            let transfer_ms = bytes as f64 / bench::transfer_bytes_per_s(d)? * 1e3;
            if transfer_ms > report.measured_ms {
                report.binds_from_host = "transfers".to_owned();
            }
            report.transfer_ms = Some(transfer_ms);
        }
        passes.push((report, ceilings));
    }
    Ok(report(&*problem, &*plan, case.to_string(), passes, device))
}

/// About how long the timed runs of a pass take together.
pub(crate) const SECONDS: f64 = 0.3;

/// A pass that was timed.
pub(crate) struct Measured {
    pub(crate) pass: Pass,
    /// Milliseconds of each run.
    pub(crate) ms: Vec<f64>,
    /// Bytes of the tensors and the scratch that it works on.
    pub(crate) memory_bytes: u64,
}

/// What is said of a pass whose data lie on the device, and where the ceilings come from.
pub(crate) fn pass_report(
    problem: &dyn Problem,
    plan: &dyn Plan,
    measured: Measured,
    device: &Device,
) -> Result<(PassReport, String)> {
    let Measured { pass, ms, memory_bytes } = measured;
    let (measured_ms, ..) = bench::spread(ms);
    let cost = plan.cost(pass, problem.cost(pass));
    let kernels: Vec<Launch> = plan.launches(pass)?.into_iter().map(|l| launch(l, device)).collect();
    let launches = kernels.iter().map(|k| k.launches).sum();
    let ceilings = bench::ceilings(device, plan.tensor_cores(), memory_bytes)?;
    let (binds, verdict) = judge(&cost, &ceilings, launches, measured_ms);
    let [memory_ms, compute_ms, special_ms] = ceilings.times_ms(&cost).map(|(_, ms)| ms);
    let report = PassReport {
        pass: pass.name().to_owned(),
        kernels,
        launches,
        bytes: cost.bytes,
        flops: cost.flops,
        special: cost.special,
        serial_steps: cost.serial_steps,
        scratch_bytes: plan.scratch(pass).bytes() as u64,
        memory_ms,
        compute_ms,
        special_ms,
        transfer_ms: None,
        measured_ms,
        binds: binds.to_owned(),
        binds_from_host: binds.to_owned(),
        verdict,
    };
    Ok((report, ceilings.source))
}

/// What is said of a case, or of a problem as `case` describes it, whose passes were profiled.
pub(crate) fn report(
    problem: &dyn Problem,
    plan: &dyn Plan,
    case: String,
    passes: Vec<(PassReport, String)>,
    device: &Device,
) -> Report {
    let (passes, ceilings): (Vec<_>, Vec<_>) = passes.into_iter().unzip();
    Report {
        family: plan.entry().to_owned(),
        case,
        backend: device.place().to_string(),
        dtype: check::data_dtype(problem),
        variant: plan.variant().to_owned(),
        config: plan.config(),
        ceilings: ceilings.into_iter().next_back().unwrap_or_default(),
        passes,
    }
}

fn launch(l: LaunchReport, device: &Device) -> Launch {
    let threads = u64::from(l.block.0) * u64::from(l.block.1) * u64::from(l.block.2);
    let most = match device {
        Device::Cpu => 0,
        Device::Cuda(d) => d.props().threads_per_sm,
    };
    Launch {
        kernel: l.kernel,
        launches: l.launches,
        grid: l.grid,
        block: l.block,
        registers: l.registers,
        local_bytes: l.local_bytes,
        shared_bytes: l.shared_bytes,
        blocks_per_sm: l.blocks_per_sm,
        occupancy: (threads * u64::from(l.blocks_per_sm)) as f64 / f64::from(most.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::toy::{Fault, Toy};

    #[test]
    fn verdicts_follow_the_figures() {
        let c = Ceilings { bytes_per_s: 1e9, flops_per_s: 1e9, special_per_s: 1e9, source: String::new() };
        let cost = |bytes, flops, special| Cost { bytes, flops, special, serial_steps: 7 };
        assert_eq!(judge(&cost(1_000_000, 0, 0), &c, 1, 1.25).0, "memory");
        assert_eq!(judge(&cost(0, 1_000_000, 0), &c, 1, 1.25).0, "compute");
        assert_eq!(judge(&cost(0, 0, 1_000_000), &c, 1, 1.25).0, "compute");
        let (binds, verdict) = judge(&cost(1_000_000, 0, 0), &c, 3, 4.0);
        assert_eq!(binds, "latency");
        assert!(verdict.ends_with("571.429 us for each of 7 steps"), "{verdict}");
        assert!(verdict.contains("1.0000 ms of 4.0000 (25 %); 3 launches, and 7 steps"), "{verdict}");
    }

    #[test]
    fn a_report_has_every_pass() {
        let report = run(&Toy(Fault::None), &"B4_T64".parse().unwrap(), &Device::Cpu).unwrap();
        let names: Vec<_> = report.passes.iter().map(|p| p.pass.as_str()).collect();
        assert_eq!(names, ["forward", "backward", "step"]);
        assert!(report.passes.iter().all(|p| p.measured_ms > 0.0 && p.transfer_ms.is_none()), "{report:?}");
        assert_eq!((report.passes[0].bytes, report.config.as_str()), (12 * 256, "rows 4"));
        assert!(run(&Toy(Fault::None), &"B4_Q1".parse().unwrap(), &Device::Cpu).is_err());
    }
}
