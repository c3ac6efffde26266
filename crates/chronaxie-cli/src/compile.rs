//! `chronaxie compile`: every kernel to cubins, on a machine without a GPU too.

use crate::args::{Common, Compile};
use crate::output::{Out, is_stdout, json_can_be_written, note, table, write_json};
use crate::progress::Terminal;
use crate::version::dotted;
use crate::{Outcome, Stop};
use chronaxie::cuda::{
    COMPARED_ARCHS, CompileOptions, Constant, Cubin, Key, Nvrtc, Specialisation, emitted_source, nvrtc_for,
    set_nvrtc_path, write_pack,
};
use chronaxie::progress::Progress;
use chronaxie::registry;
use chronaxie::{Error, ErrorKind, Result};
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One kernel of one specialisation for one architecture.
#[derive(Debug, Serialize)]
struct Row {
    family: String,
    specialisation: String,
    kernel: String,
    arch: String,
    nvrtc: String,
    registers: u64,
    spill_bytes: u64,
    stack_bytes: u64,
    shared_bytes: u64,
    constant_bytes: u64,
}

struct Job {
    family: &'static str,
    spec: Specialisation,
    arch: String,
    key: Key,
}

struct Done {
    cubin: Cubin,
    nvrtc: String,
}

/// An NVRTC that knows `arch`; the one that the user named may not.
fn compiler(arch: &str) -> Result<Arc<Nvrtc>> {
    let nvrtc = nvrtc_for(arch)?;
    if nvrtc.supports(arch) {
        return Ok(nvrtc);
    }
    let (version, path) = (dotted(nvrtc.version()), nvrtc.path().display());
    Err(Error::unavailable(format!("NVRTC {version} at {path} does not know {arch}")))
}

/// The architectures to compile for: those asked, or the compared ones that some NVRTC here knows.
fn archs(args: &Compile, quiet: bool) -> Result<Vec<String>> {
    if !args.arch.is_empty() {
        args.arch.iter().try_for_each(|arch| compiler(arch).map(|_| ()))?;
        return Ok(args.arch.clone());
    }
    let mut known = Vec::new();
    let mut missing = Vec::new();
    for arch in COMPARED_ARCHS {
        match compiler(arch) {
            Ok(_) => known.push(arch.to_owned()),
            Err(e) => missing.push(e),
        }
    }
    match missing.pop() {
        Some(e) if known.is_empty() => Err(e),
        last => {
            missing.iter().chain(&last).for_each(|e| note(quiet, &format!("note: {e}; left out")));
            Ok(known)
        }
    }
}

/// Of `n` specialisations of one source those that are compiled for the architecture of number `arch`: every `one_in`-th, at
/// least one, and for the next architecture others.
fn chosen(n: usize, arch: usize, one_in: usize) -> impl Iterator<Item = usize> {
    (arch % one_in.min(n.max(1))..n).step_by(one_in)
}

/// For each specialisation of one source, which of `archs` it is able for: which it is compiled for. Every `one_in`-th, at least
/// one, is compiled for one of those, in turn from `first` on.
fn spread(able: &[Vec<usize>], first: usize, one_in: usize) -> Vec<Option<usize>> {
    let mut wanted = vec![None; able.len()];
    let some: Vec<usize> = (0..able.len()).filter(|i| !able[*i].is_empty()).collect();
    for (turn, i) in chosen(some.len(), first, one_in).enumerate() {
        let able = &able[some[i]];
        wanted[some[i]] = Some(able[(first + turn) % able.len()]);
    }
    wanted
}

/// What tells kernels apart: their source, and, if `kinds`, the constants that are no numbers.
fn kernels(spec: &Specialisation, kinds: bool) -> (&str, &[&'static str], Vec<String>) {
    let number = |c: &Constant| matches!(c, Constant::Int(_) | Constant::Long(_) | Constant::F32(_) | Constant::F64(_));
    let kinds = spec.constants.iter().filter(|(_, c)| kinds && !number(c)).map(|c| format!("{c:?}")).collect();
    (&spec.source.name, &spec.entries, kinds)
}

/// The specialisations of one source by kind, those kinds that are asked for.
fn kinds<'a, 'b>(of_source: &'b [&'a Specialisation], args: &Compile) -> Vec<&'b [&'a Specialisation]> {
    let first = of_source.first().map_or(0, |s| first(s));
    if args.sources.is_some_and(|(k, n)| first % n != k - 1) {
        return Vec::new();
    }
    let all: Vec<_> = of_source.chunk_by(|a, b| kernels(a, args.alike) == kernels(b, args.alike)).collect();
    let step = all.len().div_ceil(args.kinds as usize).max(1);
    all.into_iter().skip(first % step).step_by(step).collect()
}

/// Where the turns of a source's specialisations begin: elsewhere when it changes.
fn first(spec: &Specialisation) -> usize {
    let key = spec.key("sm_90a", &CompileOptions::default()).to_string();
    usize::from_str_radix(&key[..4], 16).unwrap_or(0)
}

/// What is to be compiled, each once.
fn jobs(args: &Compile, archs: &[String]) -> Result<Vec<Job>> {
    let (families, one_in) = (&args.families, args.one_in as usize);
    let mut seen = HashSet::new();
    let mut jobs = Vec::new();
    let all = registry::kernels();
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    if let Some(name) = families.iter().find(|f| !names.contains(&f.as_str())) {
        return Err(registry::unknown(name, &names));
    }
    for (family, specs) in all.iter().filter(|(name, _)| families.is_empty() || families.iter().any(|f| f == name)) {
        let mut specs: Vec<&Specialisation> = specs.iter().collect();
        specs.sort_by(|a, b| kernels(a, args.alike).cmp(&kernels(b, args.alike)));
        let of_sources = specs.chunk_by(|a, b| kernels(a, false) == kernels(b, false));
        for of_one_source in of_sources.flat_map(|of_source| kinds(of_source, args)) {
            let turn = if args.alike { first(of_one_source[0]) } else { 0 };
            let number = |arch: &String| turn + COMPARED_ARCHS.iter().position(|a| a == arch).unwrap_or(0);
            let mut wanted = vec![Vec::new(); of_one_source.len()];
            if args.spread {
                let able = |s: &&Specialisation| (0..archs.len()).filter(|a| s.archs.contains(&archs[*a])).collect();
                let able: Vec<Vec<usize>> = of_one_source.iter().map(able).collect();
                for (wanted, arch) in wanted.iter_mut().zip(spread(&able, first(of_one_source[0]), one_in)) {
                    wanted.extend(arch.map(|a| &archs[a]));
                }
            }
            for arch in archs.iter().filter(|_| !args.spread) {
                let able: Vec<usize> =
                    (0..of_one_source.len()).filter(|i| of_one_source[*i].archs.contains(arch)).collect();
                chosen(able.len(), number(arch), one_in).for_each(|i| wanted[able[i]].push(arch));
            }
            for (spec, archs) in of_one_source.iter().copied().zip(wanted) {
                for arch in archs {
                    let key = spec.key(arch, &CompileOptions::default());
                    if seen.insert(key) {
                        jobs.push(Job { family, spec: spec.clone(), arch: arch.clone(), key });
                    }
                }
            }
        }
    }
    Ok(jobs)
}

fn compile_all(jobs: &[Job], progress: &Terminal) -> Result<Vec<Done>> {
    let slots: Vec<Mutex<Option<Result<Done>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    progress.start("compile", jobs.len() as u64);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(i).filter(|_| !progress.interrupted()) else { return };
            let done = compiler(&job.arch).and_then(|n| {
                let cubin = n.compile(&job.spec, &job.arch, &CompileOptions::default())?;
                Ok(Done { cubin, nvrtc: dotted(n.version()) })
            });
            *slots[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            let n = finished.fetch_add(1, Ordering::Relaxed) + 1;
            progress.advance(n as u64, &format!("{} for {}", job.spec.label(), job.arch));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..chronaxie::pool::num_threads().min(jobs.len()) {
            scope.spawn(work);
        }
    });
    progress.finish();
    slots
        .into_iter()
        .map(|slot| {
            let done = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            done.unwrap_or_else(|| Err(Error::new(ErrorKind::Interrupted, "compile was interrupted")))
        })
        .collect()
}

fn rows(jobs: &[Job], done: &[Done]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (job, done) in jobs.iter().zip(done) {
        // A function that was not inlined spills on behalf of the kernels that call it.
        for r in done.cubin.resources.iter().chain(&done.cubin.functions) {
            rows.push(Row {
                family: job.family.to_owned(),
                specialisation: job.spec.label(),
                kernel: r.entry.clone(),
                arch: job.arch.clone(),
                nvrtc: done.nvrtc.clone(),
                registers: r.registers,
                spill_bytes: r.spill_store_bytes + r.spill_load_bytes,
                stack_bytes: r.stack_bytes,
                shared_bytes: r.shared_bytes,
                constant_bytes: r.constant_bytes,
            });
        }
    }
    rows
}

/// A file's name for a specialisation: the source's, with the constants that tell it from others of that source.
fn file_name(spec: &Specialisation, number: usize) -> String {
    let label = spec.label();
    let (source, constants) = label.split_once(" [").unwrap_or((&label, ""));
    let stem = source.strip_suffix(".cu").unwrap_or(source);
    let constants: String =
        constants.replace(" = ", "").chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
    match constants.len() {
        0 => format!("{stem}.cu"),
        // What a file system may refuse gets a number.
        n if n > 150 => format!("{stem}-{number}.cu"),
        _ => format!("{stem}-{constants}.cu"),
    }
}

/// One file a specialisation, and the headers that they include.
fn emit(folder: &Path, jobs: &[Job]) -> Result<usize> {
    let write = |path: &Path, text: &str| {
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, &e))?;
        std::fs::write(path, text).map_err(|e| Error::io("write", path, &e))
    };
    let mut seen = HashSet::new();
    let mut count = 0;
    for job in jobs {
        let text = emitted_source(&job.spec);
        if seen.insert(text.clone()) {
            write(&folder.join(file_name(&job.spec, count)), &text)?;
            count += 1;
        }
        for (name, text) in job.spec.headers {
            write(&folder.join(name), text)?;
        }
    }
    Ok(count)
}

pub(crate) fn run(args: &Compile, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    if let Some(path) = &args.nvrtc {
        set_nvrtc_path(Some(path.clone()));
    }
    let archs = archs(args, common.quiet)?;
    let jobs = jobs(args, &archs)?;
    let progress = Terminal::new(common.quiet);
    let done = compile_all(&jobs, &progress)?;
    let rows = rows(&jobs, &done);

    let print = !is_stdout(json);
    if print && args.report {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|r| {
                let kernel = format!("{} {}", r.specialisation, r.kernel);
                let numbers = [r.registers, r.spill_bytes, r.stack_bytes, r.shared_bytes].map(|n| n.to_string());
                [[r.family.clone(), kernel, r.arch.clone(), r.nvrtc.clone()].as_slice(), &numbers].concat()
            })
            .collect();
        let headings = ["family", "kernel", "arch", "nvrtc", "registers", "spills", "stack", "shared"];
        for line in table(&headings, &cells, 4) {
            out.line(line)?;
        }
    }
    if let Some(folder) = &args.emit {
        let count = emit(folder, &jobs)?;
        note(common.quiet, &format!("{count} sources in {}", folder.display()));
    }
    if let Some(path) = &args.pack {
        write_pack(path, jobs.iter().zip(&done).map(|(j, d)| (j.key, &d.cubin)))?;
        note(common.quiet, &format!("{} cubins in {}", jobs.len(), path.display()));
    }
    write_json(json, &rows, out)?;
    let spilling: Vec<String> = rows
        .iter()
        .filter(|r| r.spill_bytes > 0)
        .map(|r| format!("{} of {} for {}", r.kernel, r.specialisation, r.arch))
        .collect();
    if print {
        let size: usize = done.iter().map(|d| d.cubin.bytes.len()).sum();
        out.line(format_args!(
            "{} cubins for {}, {}, {} with spills",
            jobs.len(),
            archs.join(", "),
            crate::output::bytes(size as u64),
            spilling.len()
        ))?;
    }
    if (args.report || args.deny_spills) && !spilling.is_empty() {
        crate::output::error_line(&Error::config(format!("registers spill in {}", spilling.join("; "))));
        return Err(Stop::Failed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronaxie::cuda::KernelSource;

    #[test]
    fn a_sample_has_something_of_every_source_and_everything_in_turn() {
        for n in 1..9 {
            let of = |arch| chosen(n, arch, 4).collect::<Vec<_>>();
            assert!((0..6).all(|arch| !of(arch).is_empty()), "{n}");
            let mut all: Vec<usize> = (0..4).flat_map(of).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            assert_eq!(chosen(n, 5, 1).count(), n);
        }
        assert_eq!(chosen(0, 3, 4).count(), 0);
    }

    #[test]
    fn what_is_spread_has_one_of_every_source_and_all_architectures_in_turn() {
        for n in 1..9 {
            for first in 0..12 {
                let wanted = spread(&vec![vec![0, 1, 2]; n], first, 4);
                let turns: Vec<usize> = wanted.into_iter().flatten().collect();
                assert!(
                    !turns.is_empty() && turns.windows(2).all(|w| (w[0] + 1) % 3 == w[1]),
                    "{n} {first}: {turns:?}"
                );
            }
        }
        // All of them with no other wish, and every architecture is somebody's first.
        assert_eq!(spread(&[vec![0, 1], vec![], vec![1], vec![0, 1]], 1, 1), [Some(1), None, Some(1), Some(1)]);
        assert_eq!([0, 1, 2].map(|first| spread(&[vec![4, 5, 6]], first, 8)), [[Some(4)], [Some(5)], [Some(6)]]);
        assert_eq!(spread(&[vec![]], 3, 8), [None]);
    }

    /// Of eight kinds of one source as many as are asked for, and each source in one part of all.
    #[test]
    fn kinds_and_sources_are_left_out_by_number() {
        let spec = |text: &'static str, number: i32, of: usize| {
            let mut spec = Specialisation::new(KernelSource::embedded("toy.cu", text), &["toy"]);
            let bit = |n: usize| (of >> n & 1 == 1).into();
            spec.constants = vec![("kRows", number.into()), ("kA", bit(0)), ("kB", bit(1)), ("kC", bit(2))];
            spec
        };
        let args = |given: &[&str]| {
            let line = ["chronaxie", "compile"].iter().chain(given);
            match <crate::args::Cli as clap::Parser>::try_parse_from(line).unwrap().command {
                Some(crate::args::Command::Compile(c)) => c,
                _ => unreachable!("compile was asked for"),
            }
        };
        for text in ["", "1", "22"] {
            let all: Vec<_> = (0..16).map(|n| spec(text, n as i32 / 8, n % 8)).collect();
            let mut all: Vec<&Specialisation> = all.iter().collect();
            all.sort_by(|a, b| kernels(a, true).cmp(&kernels(b, true)));
            let count = |given: &[&str]| kinds(&all, &args(given)).len();
            assert_eq!([count(&[]), count(&["--alike"])], [1, 8]);
            assert_eq!(count(&["--alike", "--kinds", "4"]), 4);
            assert!((2..=3).contains(&count(&["--alike", "--kinds", "3"])));
            assert_eq!((1..=3).map(|k| count(&["--sources", &format!("{k}/3")])).sum::<usize>(), 1);
        }
    }

    #[test]
    fn what_differs_in_numbers_alone_is_alike() {
        let of = |number: i32, is: bool| {
            let mut spec = Specialisation::new(KernelSource::embedded("toy.cu", ""), &["toy"]);
            spec.constants = vec![("kRows", number.into()), ("kMasked", is.into())];
            spec
        };
        assert_eq!(kernels(&of(1, true), true), kernels(&of(2, true), true));
        assert_ne!(kernels(&of(1, true), true), kernels(&of(1, false), true));
        assert_eq!(kernels(&of(1, true), false), kernels(&of(2, false), false));
    }

    #[test]
    fn sources_are_named_by_their_constants() {
        let source = KernelSource::embedded("layers/toy/cuda/toy.cu", "");
        let mut spec = Specialisation::new(source, &["toy"]);
        assert_eq!(file_name(&spec, 0), "layers/toy/cuda/toy.cu");
        spec.constants = vec![("kHidden", Constant::Int(128)), ("kScalar", Constant::Type("float"))];
        assert_eq!(file_name(&spec, 0), "layers/toy/cuda/toy-kHidden128kScalarfloat.cu");
        spec.constants = vec![("kLong", Constant::Int(1)); 40];
        assert_eq!(file_name(&spec, 7), "layers/toy/cuda/toy-7.cu");
    }
}
