//! What a description names and does not hold: columns of numbers, in files beside it or handed over as arrays.

use super::Edge;
use super::distribution::beyond_single;
use crate::config::{Config, Section};
use crate::data::npz::Array;
use crate::spiking::models::{Initial, Model};
use crate::spiking::record::columns;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the files of a description are.
#[derive(Debug, Clone, Default)]
pub struct Files {
    folder: PathBuf,
    arrays: BTreeMap<PathBuf, Vec<(String, Vec<f64>)>>,
}

impl Files {
    /// Files in the folder of `config`.
    pub fn beside(config: &Config) -> Self {
        let folder = config.path().parent().unwrap_or(Path::new("")).to_path_buf();
        Self { folder, arrays: BTreeMap::new() }
    }
    /// These columns in place of the file `name`.
    #[must_use]
    pub fn with(mut self, name: impl Into<PathBuf>, columns: Vec<(String, Vec<f64>)>) -> Self {
        self.arrays.insert(name.into(), columns);
        self
    }
    /// What messages call the file.
    pub fn path(&self, name: &Path) -> PathBuf {
        if self.arrays.contains_key(name) { name.to_path_buf() } else { self.folder.join(name) }
    }
    /// Columns of one length, all values finite.
    ///
    /// # Errors
    /// As [`columns::read`].
    pub fn columns<const N: usize>(&self, name: &Path, names: [&str; N]) -> Result<[Vec<f64>; N]> {
        let Some(table) = self.arrays.get(name) else {
            return columns::read(&self.folder.join(name), names);
        };
        let refuse = |what: String| Error::data(name, None, what);
        let mut found = names.map(|_| Vec::new());
        for (column, found) in names.iter().zip(&mut found) {
            let Some((_, values)) = table.iter().find(|(n, _)| n == column) else {
                return Err(refuse(format!("there is no array {column}")));
            };
            if let Some(row) = values.iter().position(|x| !x.is_finite()) {
                return Err(refuse(format!("{column}[{row}] is {}", values[row])));
            }
            found.clone_from(values);
        }
        let lens: Vec<usize> = found.iter().map(Vec::len).collect();
        if lens.windows(2).any(|w| w[0] != w[1]) {
            return Err(refuse(format!("{} have the lengths {lens:?}", names.join(", "))));
        }
        Ok(found)
    }
    /// An array of any shape, all values finite: `name` of an `.npz` file, the only one of an `.npy` file, the rows of a `.csv`
    /// file without a heading; arrays that are handed over have one dimension.
    ///
    /// # Errors
    /// `Io` and `Data`, with the line where there is one.
    pub fn array(&self, file: &Path, name: &str) -> Result<Array> {
        if self.arrays.contains_key(file) {
            let [values] = self.columns(file, [name])?;
            return Ok(Array { shape: vec![values.len()], values });
        }
        columns::array(&self.folder.join(file), name)
    }
}

/// A value a cell, of some parameters and state variables, by their indices in the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// Of parameters.
    pub parameters: Vec<(usize, Arc<Vec<f64>>)>,
    /// Of state variables at the start.
    pub initial: Vec<(usize, Arc<Vec<f64>>)>,
}

impl Given {
    /// The values of a parameter.
    pub fn parameter(&self, index: usize) -> Option<&[f64]> {
        self.parameters.iter().find(|(i, _)| *i == index).map(|(_, values)| values.as_slice())
    }
    /// The values of a state variable at the start.
    pub fn variable(&self, index: usize) -> Option<&[f64]> {
        self.initial.iter().find(|(i, _)| *i == index).map(|(_, values)| values.as_slice())
    }
    /// In place of what there is of this parameter.
    pub fn set_parameter(&mut self, index: usize, values: Vec<f64>) {
        self.parameters.retain(|(i, _)| *i != index);
        self.parameters.push((index, Arc::new(values)));
    }
    /// Variables that start at a parameter's value start at each cell's own.
    pub(super) fn follow(&mut self, model: &dyn Model) {
        for (i, variable) in model.variables().iter().enumerate() {
            let Initial::Parameter(name) = variable.initial else { continue };
            let Some(parameter) = model.parameters().iter().position(|p| p.name == name) else { continue };
            if let Some((_, values)) = self.parameters.iter().find(|(p, _)| *p == parameter) {
                self.initial.push((i, values.clone()));
            }
        }
    }
    /// A sentence's end that says what is wrong for a population of `size` cells of `model`.
    pub fn problem(&self, model: &dyn Model, size: u32) -> Option<String> {
        let parameters = self.parameters.iter().map(|(i, v)| (model.parameters()[*i].name, v));
        let variables = self.initial.iter().map(|(i, v)| (model.variables()[*i].name, v));
        parameters.chain(variables).find_map(|(name, values)| {
            if values.len() != size as usize {
                return Some(format!("{name} has {} values for {size} cells", values.len()));
            }
            let said = |at: usize| match values[at].is_finite() {
                true => beyond_single(&format!("{name} of cell {at} is"), values[at]),
                false => Some(format!("{name} of cell {at} is {}", values[at])),
            };
            values.iter().position(|x| !(*x as f32).is_finite()).and_then(said)
        })
    }
}

/// A value a cell under `key`, if it is given as `{ file, column }`.
pub(super) fn given(section: &Section<'_>, key: &str, files: &Files, size: u32) -> Result<Option<Arc<Vec<f64>>>> {
    if !section.is_table(key) {
        return Ok(None);
    }
    let t = section.table(key)?;
    if !t.contains("file") {
        return Ok(None);
    }
    let file: PathBuf = t.require("file")?;
    let column: String = t.get("column", key.to_owned())?;
    let [values] = files.columns(&file, [&column])?;
    if values.len() != size as usize {
        return Err(section.refuse(key, &format!("has {} values for {size} cells", values.len())));
    }
    Ok(Some(Arc::new(values)))
}

/// The places of cells: `places = { file }` with columns x, y, z, w.
pub(super) fn places(section: &Section<'_>, files: &Files) -> Result<Vec<[f32; 4]>> {
    let file: PathBuf = section.table("places")?.require("file")?;
    let [x, y, z, w] = files.columns(&file, ["x", "y", "z", "w"])?;
    if x.len() as u64 > u64::from(u32::MAX) {
        return Err(section.refuse("places", &format!("are {}, which is more than 2^32 - 1", x.len())));
    }
    Ok((0..x.len()).map(|i| [x[i] as f32, y[i] as f32, z[i] as f32, w[i] as f32]).collect())
}

/// A list of edges: columns source, target, weight, delay.
pub(super) fn edges(files: &Files, name: &Path) -> Result<Vec<Edge>> {
    let [source, target, weight, delay] = files.columns(name, ["source", "target", "weight", "delay"])?;
    let refuse = |what: String| Error::data(files.path(name), None, what);
    let cell = |x: f64, row: usize, what: &str| {
        if x.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(&x) {
            return Ok(x as u32);
        }
        Err(refuse(format!("edge {row}: {what} is {x}, which is no cell's number")))
    };
    (0..source.len())
        .map(|i| {
            let (weight, delay_ms) = (weight[i] as f32, delay[i] as f32);
            if !weight.is_finite() || !delay_ms.is_finite() {
                return Err(refuse(format!("edge {i} has weight {weight} and delay {delay_ms}")));
            }
            Ok(Edge { source: cell(source[i], i, "source")?, target: cell(target[i], i, "target")?, weight, delay_ms })
        })
        .collect()
}
