//! What a training step of a configuration costs: each pass as `profile` reports it, the host's share, and the copies.
//!
//! The passes run on the network's own memory, on a batch of the training set. Learning rates are 0, so the parameters
//! stay where training begins, however often a pass is repeated.

use super::bank::{Call, Planned};
use super::batches::{self, Examples, RunData};
use super::cuda::Calls;
use super::network::Network;
use super::run::network;
use super::settings::Settings;
use super::staging::{Noise, fill};
use crate::bench;
use crate::config::Config;
use crate::op::{Case, Pass, Signature};
use crate::profile::{Measured, PassReport, Report, SECONDS, pass_report, report};
use crate::{Device, Error, Place, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Work {
    /// `lay out the batch`, `copy the batch`, `ltc forward`, ...
    pub what: String,
    /// Who is busy: `cpu` or `cuda:N`. The host works ahead of a GPU, so their times do not add up.
    pub place: String,
    /// Milliseconds.
    pub ms: f64,
}

/// One training step on one device. Times are medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepReport {
    /// The configuration's file.
    pub config: String,
    /// `cpu`, `cuda:0`, ...
    pub backend: String,
    /// Series of a batch and the steps that they are padded to, as in `B16_T29`.
    pub case: String,
    /// Steps of the first epoch whose batches are padded to as many.
    pub steps: usize,
    /// All steps of the first epoch.
    pub epoch_steps: usize,
    /// How many numbers are trained.
    pub parameters: usize,
    /// Parts of a step, in their order.
    pub work: Vec<Work>,
    /// What the host does for a step: lay out the batch, and on a GPU queue its copy and the launches.
    pub host_ms: f64,
    /// Bytes of a batch that are copied to a GPU.
    pub transfer_bytes: Option<u64>,
    /// The copy alone.
    pub transfer_ms: Option<f64>,
    /// All passes after each other.
    pub operations_ms: f64,
    /// A step as training runs it, by the wall clock.
    pub measured_ms: f64,
    /// `transfers`, `host`, or the pass that takes longest, such as `ltc backward`.
    pub binds: String,
    /// The verdict in a sentence, with its figures.
    pub verdict: String,
    /// The layer, the head and the optimizer.
    pub operations: Vec<Report>,
}

/// Profiles a training step of `config` on `device`. `case` picks another batch size (B) or padded length (T); the
/// default is the configuration's, and the length that most batches of an epoch have.
///
/// # Errors
/// What [`train::run`](super::run()) refuses of the configuration and the data, and a case that no batch has.
pub fn profile(config: &Config, case: Option<&Case>, device: &Device) -> Result<StepReport> {
    let mut settings = Settings::read(config)?;
    let data = RunData::read(&settings)?;
    if let Some(case) = case {
        case.allow(&["B", "T"], &[])?;
        if let Ok(batch) = case.size("B") {
            let series = data.train.len();
            if batch == 0 || batch > series {
                return Err(Error::config(format!("case `{case}`: B = {batch} is not from 1 to the {series} series")));
            }
            settings.train.batch_size = batch;
        }
    }
    let layer = settings.layer(data.channels, data.timed, None)?;
    let mut network = network(&settings, &data, layer, device)?;
    let t = &settings.train;
    network.initialise(t.seed)?;
    let order = batches::order(&data.train, network.batch(), t.group_lengths, t.seed, 0);
    network.set_rates(&vec![0.0; order.len()])?;
    let (length, batches) = of_one_length(&network, &data.train, &order, case)?;
    let (name, parameters) = (format!("B{}_T{length}", network.batch()), network.parameter_count());
    let (steps, epoch_steps) = (batches.len(), order.len());

    let mut step = Step {
        network: &mut network,
        device,
        settings: &settings,
        examples: &data.train,
        batches,
        length,
        epoch_steps,
    };
    let measured_ms = step.measured_ms()?;
    let (layout_ms, host_ms) = step.host_ms()?;
    let transfer = step.transfer()?;
    let (operations_ms, passes) = step.passes()?;
    let longest = passes.iter().max_by(|a, b| a.report.measured_ms.total_cmp(&b.report.measured_ms));
    let longest = longest.map(|p| (p.name(), &p.report));
    let times = Times { layout_ms, host_ms, transfer, operations_ms, measured_ms };
    let (binds, verdict) = judge(&times, longest);
    Ok(StepReport {
        config: config.path().display().to_string(),
        backend: device.place().to_string(),
        case: name,
        steps,
        epoch_steps,
        parameters,
        work: times.work(&passes, device),
        host_ms,
        transfer_bytes: transfer.map(|(bytes, _)| bytes),
        transfer_ms: transfer.map(|(_, ms)| ms),
        operations_ms,
        measured_ms,
        binds,
        verdict,
        operations: reports(passes, device),
    })
}

/// The padded length that `case` names, or else the one that most batches have (the longest of several), and the
/// batches of that length.
pub(super) fn of_one_length<'a>(
    network: &Network,
    examples: &Examples,
    order: &'a [Vec<usize>],
    case: Option<&Case>,
) -> Result<(usize, Vec<&'a [usize]>)> {
    let mut lengths: BTreeMap<usize, Vec<&[usize]>> = BTreeMap::new();
    for batch in order {
        lengths.entry(network.padded(examples, batch)?).or_default().push(batch);
    }
    let Some((case, wanted)) = case.and_then(|case| Some((case, case.size("T").ok()?))) else {
        let most = lengths.into_iter().max_by_key(|(_, batches)| batches.len());
        return most.ok_or_else(|| Error::config("train: there is no batch to profile"));
    };
    let there: Vec<String> = lengths.keys().map(usize::to_string).collect();
    let found = lengths.remove_entry(&wanted);
    found.ok_or_else(|| {
        Error::config(format!(
            "case `{case}`: no batch of the first epoch is padded to T = {wanted}, but to {}",
            there.join(", ")
        ))
    })
}

/// A pass that was timed.
struct Timed {
    planned: Planned,
    report: PassReport,
    ceilings: String,
}

impl Timed {
    fn name(&self) -> String {
        format!("{} {}", self.planned.label, self.report.pass)
    }
}

/// A step on batches of one length.
struct Step<'a> {
    network: &'a mut Network,
    device: &'a Device,
    settings: &'a Settings,
    examples: &'a Examples,
    batches: Vec<&'a [usize]>,
    length: usize,
    epoch_steps: usize,
}

impl Step<'_> {
    fn noise(&self, step: usize) -> Option<Noise> {
        batches::noise(self.settings.train.noise, self.settings.train.seed, step)
    }
    fn learn(&mut self, step: usize) -> Result<()> {
        let noise = self.noise(step);
        self.network.learn(step, self.examples, self.batches[step % self.batches.len()], noise)
    }

    /// Milliseconds of a step by the wall clock: the median of rounds of steps, each of which ends as an epoch does,
    /// when the host reads what was logged.
    fn measured_ms(&mut self) -> Result<f64> {
        let most = self.epoch_steps as f64;
        let mut round = |steps: usize| {
            let since = Instant::now();
            (0..steps).try_for_each(|step| self.learn(step))?;
            self.network.logged(steps)?;
            Ok::<f64, Error>(since.elapsed().as_secs_f64() * 1e3 / steps as f64)
        };
        // The first may load kernels.
        round(1)?;
        let one = round(1)?.min(round(1)?).max(1e-6);
        let steps = (1e3 * SECONDS / 10.0 / one).clamp(1.0, most) as usize;
        let rounds = (1e3 * SECONDS / (one * steps as f64)).clamp(3.0, 1000.0) as usize;
        let ms = (0..rounds).map(|_| round(steps)).collect::<Result<Vec<_>>>()?;
        Ok(bench::spread(ms).0)
    }

    /// Milliseconds of the host for a step: to lay out the batch, and for all that it does. A GPU is idle when the step
    /// begins, so that no wait for it is in them.
    fn host_ms(&mut self) -> Result<(f64, f64)> {
        let layout = self.network.batch_layout(self.length);
        let mut bytes = vec![0; layout.bytes()];
        let mut step = 0;
        let timing = bench::time_on_host(SECONDS / 3.0, &mut || {
            let which = self.batches[step % self.batches.len()];
            fill(&mut bytes, layout, self.examples, which, &mut self.noise(step));
            step += 1;
            Ok(())
        })?;
        let layout_ms = bench::spread(timing.ms).0;
        if matches!(self.device, Device::Cpu) {
            return Ok((layout_ms, layout_ms));
        }
        let mut ms = Vec::new();
        for step in 0..50 {
            self.device.synchronize()?;
            let since = Instant::now();
            self.learn(step % self.epoch_steps)?;
            ms.push(since.elapsed().as_secs_f64() * 1e3);
        }
        self.device.synchronize()?;
        Ok((layout_ms, bench::spread(ms).0.max(layout_ms)))
    }

    /// Bytes of a batch that go to a GPU, and milliseconds of their copy.
    fn transfer(&self) -> Result<Option<(u64, f64)>> {
        let Device::Cuda(device) = self.device else { return Ok(None) };
        let bytes = self.network.batch_layout(self.length).bytes();
        Ok(Some((bytes as u64, bench::transfer_ms(device, bytes)?)))
    }

    /// Milliseconds of all passes after each other, and each by itself, on the batch that was learned from last.
    fn passes(&mut self) -> Result<(f64, Vec<Timed>)> {
        let device = self.device;
        let (calls, banks) = self.network.calls(self.length)?;
        let bytes = |call: &&Call| call.planned.problem.cost(call.pass).bytes;
        device.synchronize()?;
        let mut all = Calls { calls: &calls, banks };
        let together = bench::time_work(&mut all, device, calls.iter().map(bytes).sum(), bench::Pace::new(SECONDS))?;
        let banks = all.banks;
        let mut timed = Vec::new();
        for call in &calls {
            let mut one = Calls { calls: std::slice::from_ref(call), banks: &mut *banks };
            let ms = bench::time_work(&mut one, device, bytes(call), bench::Pace::new(SECONDS))?.ms;
            let Planned { problem, plan, .. } = &call.planned;
            let measured = Measured { pass: call.pass, ms, memory_bytes: call.bytes() as u64 };
            let (report, ceilings) = pass_report(&**problem, &**plan, measured, device)?;
            timed.push(Timed { planned: call.planned.clone(), report, ceilings });
        }
        Ok((bench::spread(together.ms).0, timed))
    }
}

/// Milliseconds of a step and of its parts.
struct Times {
    layout_ms: f64,
    host_ms: f64,
    transfer: Option<(u64, f64)>,
    operations_ms: f64,
    measured_ms: f64,
}

impl Times {
    /// The parts in the order of a step.
    fn work(&self, passes: &[Timed], device: &Device) -> Vec<Work> {
        let part = |what: &str, place: Place, ms| Work { what: what.to_owned(), place: place.to_string(), ms };
        let mut work = vec![part("lay out the batch", Place::Cpu, self.layout_ms)];
        if let Some((_, ms)) = self.transfer {
            work.push(part("queue the copy and the launches", Place::Cpu, self.host_ms - self.layout_ms));
            work.push(part("copy the batch", device.place(), ms));
        }
        work.extend(passes.iter().map(|p| part(&p.name(), device.place(), p.report.measured_ms)));
        work
    }
}

/// What binds a step: the host, if it takes longer than what it queues, else the copy or the passes, whichever is longer.
fn judge(t: &Times, longest: Option<(String, &PassReport)>) -> (String, String) {
    let share = |ms: f64| {
        format!("{ms:.4} ms of a step of {:.4} ({:.0} %)", t.measured_ms, 100.0 * ms / t.measured_ms.max(1e-9))
    };
    let transfer_ms = t.transfer.map_or(0.0, |(_, ms)| ms);
    if t.host_ms > t.operations_ms + transfer_ms {
        let layout = format!("the host binds: laying out the batch takes {:.4} ms", t.layout_ms);
        let queue = match t.transfer {
            Some(_) => format!(", queueing the copy and the launches {:.4}", t.host_ms - t.layout_ms),
            None => String::new(),
        };
        let rest = t.operations_ms + transfer_ms;
        return (
            "host".to_owned(),
            format!("{layout}{queue}, together {}; the rest takes {rest:.4}", share(t.host_ms)),
        );
    }
    match (t.transfer, longest) {
        (Some((bytes, ms)), _) if ms > t.operations_ms => {
            let passes = t.operations_ms;
            let verdict = format!("transfers bind: copying {bytes} bytes takes {}; all passes {passes:.4}", share(ms));
            ("transfers".to_owned(), verdict)
        }
        (_, Some((name, pass))) => {
            let verdict = format!("{name} binds: it takes {}; in it {}", share(pass.measured_ms), pass.verdict);
            (name, verdict)
        }
        _ => ("nothing".to_owned(), "there is no pass".to_owned()),
    }
}

/// One report for each operation, with its passes in their order.
fn reports(passes: Vec<Timed>, device: &Device) -> Vec<Report> {
    let mut operations: Vec<(Planned, Vec<(PassReport, String)>)> = Vec::new();
    for Timed { planned, report, ceilings } in passes {
        match operations.iter_mut().find(|(p, _)| Arc::ptr_eq(&p.plan, &planned.plan)) {
            Some((_, passes)) => passes.push((report, ceilings)),
            None => operations.push((planned, vec![(report, ceilings)])),
        }
    }
    let of = |(Planned { problem, plan, .. }, passes): (Planned, Vec<(PassReport, String)>)| {
        let first = [Pass::Forward, Pass::Step].into_iter().find_map(|pass| plan.signature(pass));
        report(&*problem, &*plan, first.map(sizes).unwrap_or_default(), passes, device)
    };
    operations.into_iter().map(of).collect()
}

/// The sizes of the axes of what a signature reads, spelled as cases are: `B16_T29_D12_H64`.
fn sizes(signature: &Signature) -> String {
    let mut sizes: Vec<(&str, usize)> = Vec::new();
    for t in &signature.inputs {
        for (axis, &n) in t.axes.trim_matches(['[', ']']).split(", ").zip(t.shape.iter()) {
            let is_letter = !axis.is_empty() && axis.chars().all(|c| c.is_ascii_uppercase());
            if is_letter && !sizes.iter().any(|(known, _)| *known == axis) {
                sizes.push((axis, n));
            }
        }
    }
    sizes.iter().map(|(axis, n)| format!("{axis}{n}")).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::op::{Role, TensorSpec};

    fn pass(ms: f64) -> PassReport {
        PassReport {
            pass: "backward".to_owned(),
            kernels: Vec::new(),
            launches: 1,
            bytes: 0,
            flops: 0,
            special: 0,
            serial_steps: 0,
            scratch_bytes: 0,
            memory_ms: 0.0,
            compute_ms: 0.0,
            special_ms: 0.0,
            transfer_ms: None,
            measured_ms: ms,
            binds: "latency".to_owned(),
            binds_from_host: "latency".to_owned(),
            verdict: "latency binds: 3 steps".to_owned(),
        }
    }

    #[test]
    fn a_step_is_bound_by_its_longest_part() {
        let times = |host_ms, copy: Option<f64>, operations_ms, measured_ms| Times {
            layout_ms: 0.25,
            host_ms,
            transfer: copy.map(|ms| (4096, ms)),
            operations_ms,
            measured_ms,
        };
        let judged = |t: Times| judge(&t, Some(("ltc backward".to_owned(), &pass(1.5))));
        let (binds, verdict) = judged(times(0.5, Some(0.1), 2.0, 2.5));
        assert_eq!(binds, "ltc backward");
        let want = "ltc backward binds: it takes 1.5000 ms of a step of 2.5000 (60 %); in it latency binds: 3 steps";
        assert_eq!(verdict, want);
        let (binds, verdict) = judged(times(0.5, Some(3.0), 2.0, 6.0));
        assert_eq!(binds, "transfers");
        let want = "transfers bind: copying 4096 bytes takes 3.0000 ms of a step of 6.0000 (50 %); all passes 2.0000";
        assert_eq!(verdict, want);
        // A copy and the passes follow each other on the GPU, so the host must be slower than both together.
        assert_eq!(judged(times(4.0, Some(3.0), 2.0, 5.0)).0, "transfers");
        let (binds, verdict) = judged(times(6.0, Some(3.0), 2.0, 6.0));
        assert_eq!(binds, "host");
        assert!(
            verdict.contains("takes 0.2500 ms, queueing the copy and the launches 5.7500, together 6.0000"),
            "{verdict}"
        );
        assert!(verdict.ends_with("(100 %); the rest takes 5.0000"), "{verdict}");
        let (binds, verdict) = judged(times(0.25, None, 0.125, 0.5));
        assert_eq!(binds, "host");
        assert!(!verdict.contains("queueing") && verdict.contains("0.2500 ms of a step of 0.5000 (50 %)"), "{verdict}");
    }

    #[test]
    fn sizes_are_spelled_as_cases() {
        let f = |axes, shape: &[usize]| TensorSpec::new("x", axes, shape, Dtype::F32, Role::Input);
        let inputs = vec![f("[B, T, D]", &[2, 3, 4]), f("[D, H]", &[4, 5]), f("[list]", &[9]), f("[1]", &[1])];
        assert_eq!(sizes(&Signature { inputs, outputs: vec![f("[B, NH]", &[2, 8])] }), "B2_T3_D4_H5");
        assert_eq!(sizes(&Signature::default()), "");
    }
}
