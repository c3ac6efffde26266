//! Models and checkpoints as safetensors files, with what they mean in one JSON text of the header.

use crate::op::Values;
use crate::report::write_atomically;
use crate::{Dtype, Error, Result, Shape};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as StDtype, SafeTensors, serialize};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// The key of the header under which the text lies; one key, so that equal contents are equal files.
const KEY: &str = "chronaxie";

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn floats(values: &[f32], shape: impl Into<Shape>) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.into(), bytes }
    }
    pub(super) fn indices(values: &Values) -> Self {
        let bytes = values.data.iter().flat_map(|&v| (v as i32).to_ne_bytes()).collect();
        Self { dtype: Dtype::I32, shape: values.shape, bytes }
    }
    /// The elements as f64, whichever of the two types they have.
    pub(super) fn values(&self) -> Values {
        let words = self.bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let data = match self.dtype {
            Dtype::I32 => words.map(|b| i32::from_ne_bytes(b).into()).collect(),
            _ => words.map(|b| f32::from_ne_bytes(b).into()).collect(),
        };
        Values { shape: self.shape, data }
    }
}

/// A file's tensors by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TensorFile {
    tensors: Vec<(String, Stored)>,
}

impl TensorFile {
    pub(super) fn insert(&mut self, name: impl Into<String>, tensor: Stored) {
        self.tensors.push((name.into(), tensor));
    }
    pub(super) fn find(&self, name: &str) -> Option<&Stored> {
        self.tensors.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Stored)> {
        self.tensors.iter().map(|(n, t)| (n.as_str(), t))
    }
    /// The tensor of that name, type and shape.
    pub(super) fn get(&self, path: &Path, name: &str, dtype: Dtype, shape: &Shape) -> Result<&Stored> {
        let wrong = |what: String| Error::checkpoint(format!("{}: {what}", path.display()));
        let t = self.find(name).ok_or_else(|| wrong(format!("it has no tensor {name}")))?;
        if (t.dtype, &t.shape) != (dtype, shape) {
            return Err(wrong(format!("{name} is {} {}, {dtype} {shape} is needed", t.dtype, t.shape)));
        }
        Ok(t)
    }
    /// Writes the file aside and renames it.
    pub(super) fn write<M: Serialize>(&self, path: &Path, meaning: &M) -> Result<()> {
        let refuse = |e: String| Error::checkpoint(format!("{} cannot be written: {e}", path.display()));
        let text = serde_json::to_string(meaning).map_err(|e| refuse(e.to_string()))?;
        let mut views = Vec::with_capacity(self.tensors.len());
        for (name, t) in &self.tensors {
            let dtype = if t.dtype == Dtype::I32 { StDtype::I32 } else { StDtype::F32 };
            let view = TensorView::new(dtype, t.shape.to_vec(), &t.bytes).map_err(|e| refuse(e.to_string()))?;
            views.push((name.as_str(), view));
        }
        let header = HashMap::from([(KEY.to_owned(), text)]);
        let bytes = serialize(views, Some(header)).map_err(|e| refuse(e.to_string()))?;
        write_atomically(path, &bytes)
    }
    /// Reads a file and what it says it means.
    pub(super) fn read<M: DeserializeOwned>(path: &Path) -> Result<(Self, M)> {
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
        let wrong = |what: String| Error::checkpoint(format!("{}: {what}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes)
            .map_err(|e| wrong(format!("it is not a whole safetensors file ({e})")))?;
        let text =
            header.metadata().as_ref().and_then(|m| m.get(KEY)).ok_or_else(|| {
                wrong("it was not written by chronaxie: its header lacks the key `chronaxie`".to_owned())
            })?;
        let meaning = serde_json::from_str(text).map_err(|e| wrong(format!("its header says something else: {e}")))?;
        let file =
            SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("it is not a whole safetensors file ({e})")))?;
        let mut tensors = Vec::new();
        for (name, view) in file.iter() {
            let dtype = match view.dtype() {
                StDtype::F32 => Dtype::F32,
                StDtype::I32 => Dtype::I32,
                other => return Err(wrong(format!("{name} holds {other:?}, which no model of this version has"))),
            };
            if view.shape().len() > crate::MAX_RANK {
                return Err(wrong(format!("{name} has {} axes", view.shape().len())));
            }
            let (shape, bytes) = (Shape::new(view.shape()), view.data().to_vec());
            tensors.push((name.to_owned(), Stored { dtype, shape, bytes }));
        }
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        Ok((Self { tensors }, meaning))
    }
}

/// What a model file means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ModelMeaning {
    /// `model`.
    pub(super) kind: String,
    pub(super) schema: u32,
    pub(super) version: String,
    /// The configuration as resolved.
    pub(super) config: String,
    /// The classes; none where a number is predicted.
    pub(super) classes: Option<Vec<String>>,
    /// D.
    pub(super) channels: usize,
    /// Whether the training set had times.
    pub(super) timed: bool,
}

/// What a checkpoint means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CheckpointMeaning {
    /// `checkpoint`.
    pub(super) kind: String,
    pub(super) schema: u32,
    pub(super) version: String,
    pub(super) config_sha256: String,
    pub(super) data_sha256: Vec<(String, String)>,
    /// Whole epochs that are done. The order of the batches follows from the seed and this number.
    pub(super) epochs: usize,
    /// Batches of the next epoch that are done.
    pub(super) batches: usize,
    /// Seconds of training so far.
    pub(super) seconds: f64,
    /// When the run began, UTC.
    pub(super) start: String,
}

/// The layout of both kinds of files.
pub(super) const SCHEMA: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("chronaxie-tensors-{name}-{}", std::process::id()))
    }

    fn file() -> TensorFile {
        let mut f = TensorFile::default();
        f.insert("a", Stored::floats(&[1.0, -0.0, f32::NAN, 3.5], [2, 2]));
        f.insert("b", Stored::indices(&Values::new([3], vec![7.0, -1.0, 0.0]).unwrap()));
        f
    }

    #[test]
    fn what_is_written_comes_back_and_equal_contents_are_equal_files() {
        let (one, two) = (path("one"), path("two"));
        file().write(&one, &"meaning").unwrap();
        file().write(&two, &"meaning").unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        let (back, meaning): (TensorFile, String) = TensorFile::read(&one).unwrap();
        assert_eq!(meaning, "meaning");
        assert_eq!(back.find("a").unwrap().bytes, file().find("a").unwrap().bytes);
        assert_eq!(back.find("b").unwrap().values().data, [7.0, -1.0, 0.0]);
        let e = back.get(&one, "a", Dtype::F32, &[4].into()).unwrap_err().to_string();
        assert!(e.contains("a is f32 (2, 2), f32 (4,) is needed"), "{e}");
        assert!(back.get(&one, "c", Dtype::F32, &[4].into()).unwrap_err().to_string().contains("no tensor c"));
        [one, two].iter().for_each(|p| std::fs::remove_file(p).unwrap());
    }

    #[test]
    fn broken_files_are_refused_in_a_sentence() {
        let p = path("broken");
        file().write(&p, &1u32).unwrap();
        let whole = std::fs::read(&p).unwrap();
        for cut in [0, 4, 8, 20, whole.len() - 1] {
            std::fs::write(&p, &whole[..cut]).unwrap();
            let e = TensorFile::read::<u32>(&p).unwrap_err();
            assert!(e.to_string().contains("not a whole safetensors file"), "{cut}: {e}");
            assert_eq!(e.kind(), &crate::ErrorKind::Checkpoint);
        }
        std::fs::write(&p, &whole).unwrap();
        assert!(TensorFile::read::<String>(&p).unwrap_err().to_string().contains("says something else"));
        std::fs::remove_file(&p).unwrap();
        assert_eq!(TensorFile::read::<u32>(&p).unwrap_err().kind(), &crate::ErrorKind::Io);
    }
}
