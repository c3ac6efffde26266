//! State variables of chosen cells over time.

use crate::data::npz;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::Engine;
use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What is recorded of a population.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorder {
    /// Index of the population.
    pub population: usize,
    /// Indices of variables of the population's model as it is described.
    pub variables: Vec<usize>,
    /// Cells of the population.
    pub cells: Vec<u32>,
    /// A value each so many steps.
    pub every: u64,
}

/// A recorder's file: for each sample, each variable's values of all cells, f32.
#[derive(Debug)]
pub struct TraceLog {
    recorder: Recorder,
    path: PathBuf,
    file: File,
}

impl TraceLog {
    /// Opens the log; samples of steps after `step` are cut off.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where it holds fewer.
    pub fn open(path: &Path, recorder: &Recorder, step: u64) -> Result<Self> {
        let fail = |e: std::io::Error| Error::io("open", path, &e);
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).map_err(fail)?;
        let keep = step / recorder.every * recorder.row();
        if file.metadata().map_err(fail)?.len() < keep {
            return Err(Error::checkpoint(format!(
                "{} does not reach to the checkpoint's step {step}",
                path.display()
            )));
        }
        file.set_len(keep).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fail)?;
        Ok(Self { recorder: recorder.clone(), path: path.to_path_buf(), file })
    }
    /// The first step after `step` at whose end there is a sample.
    pub fn next(&self, step: u64) -> u64 {
        self.recorder.next(step)
    }
    /// Takes a sample, if there is one at this step of the engine.
    ///
    /// # Errors
    /// `Io`.
    pub fn sample(&mut self, plan: &Plan, engine: &dyn Engine) -> Result<()> {
        let r = &self.recorder;
        if !engine.step().is_multiple_of(r.every) {
            return Ok(());
        }
        let values = r.values(plan, engine)?;
        let bytes: Vec<u8> = values.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        self.file.write_all(&bytes).map_err(|e| Error::io("write", &self.path, &e))
    }
}

impl Recorder {
    /// The present values, `[variable][cell]`; those of a variable that the reduced model has merged away are not numbers.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn values(&self, plan: &Plan, engine: &dyn Engine) -> Result<Vec<Vec<f32>>> {
        let (described, stepped) = (plan.network.populations[self.population].model, plan.models[self.population]);
        let mut values = vec![Vec::with_capacity(self.cells.len()); self.variables.len()];
        for &cell in &self.cells {
            let mut state: Vec<f64> = engine.cell(self.population, cell)?.into_iter().map(f64::from).collect();
            let parameters: Vec<f64> = {
                let own = engine.parameters(plan, self.population, cell..cell + 1)?;
                own.iter().map(|p| p[0]).collect()
            };
            stepped.leave(&parameters, &mut state);
            for (v, values) in self.variables.iter().zip(&mut values) {
                let name = described.variables()[*v].name;
                let at = stepped.variables().iter().position(|x| x.name == name);
                values.push(at.map_or(f32::NAN, |at| state[at] as f32));
            }
        }
        Ok(values)
    }
    /// The first step after `step` at whose end there is a sample.
    pub fn next(&self, step: u64) -> u64 {
        (step / self.every + 1) * self.every
    }
    fn row(&self) -> u64 {
        4 * (self.variables.len() * self.cells.len()) as u64
    }
}

/// Writes all logs as one `.npz`: for each recorder `POPULATION.time` (ms, at the ends of steps), `POPULATION.cells`, and
/// `POPULATION.VARIABLE` as `[samples, cells]`; a second recorder of one population is `POPULATION#1`.
///
/// # Errors
/// `Io`.
pub fn export(logs: &[TraceLog], path: &Path, plan: &Plan) -> Result<()> {
    super::replace(path, |aside| write(logs, aside, plan))
}

fn write(logs: &[TraceLog], path: &Path, plan: &Plan) -> std::io::Result<()> {
    let mut out = npz::Writer::new(BufWriter::new(File::create(path)?));
    for (i, log) in logs.iter().enumerate() {
        let r = &log.recorder;
        let before = logs[..i].iter().filter(|l| l.recorder.population == r.population).count();
        let p = &plan.network.populations[r.population];
        let own = plan.network.own_name(r.population);
        let name = if before == 0 { own.to_owned() } else { format!("{own}#{before}") };
        let mut bytes = Vec::new();
        File::open(&log.path)?.read_to_end(&mut bytes)?;
        let (row, block) = (r.row() as usize, 4 * r.cells.len());
        let samples = bytes.len() / row.max(1);
        let time = (1..=samples as u64).flat_map(|k| ((k * r.every) as f64 * plan.network.dt_ms).to_le_bytes());
        out.array(&format!("{name}.time"), "<f8", &[samples], [Ok(time.collect())])?;
        let cells = r.cells.iter().flat_map(|c| c.to_le_bytes()).collect();
        out.array(&format!("{name}.cells"), "<u4", &[r.cells.len()], [Ok(cells)])?;
        for (v, variable) in r.variables.iter().enumerate() {
            let column = bytes.chunks_exact(row).flat_map(|s| s[v * block..(v + 1) * block].iter().copied());
            let array = format!("{name}.{}", p.model.variables()[*variable].name);
            out.array(&array, "<f4", &[samples, r.cells.len()], [Ok(column.collect())])?;
        }
    }
    out.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}
