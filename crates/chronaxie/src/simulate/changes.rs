//! What a program has changed of a network's inputs since it began, and the file that keeps it with a checkpoint.
//!
//! ```text
//! 8 bytes "chrxses1" | u64 length of the rest without the checksum | changes u32, each: kind u8, index u32,
//! values u32, f64s | the bytes of a checkpoint | 32 bytes SHA-256 of all before
//! ```

use crate::config::short;
use crate::spiking::Network;
use crate::spiking::models::Kind;
use crate::spiking::network::DriveKind;
use crate::spiking::simulate::Checkpoint;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

const MAGIC: &[u8; 8] = b"chrxses1";

/// An input that can change between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Input {
    /// The rate (Hz a cell) or current of a drive, by its index.
    Drive(usize),
    /// The current of the cells of a population, or the rate of those of a Poisson source: one value, or one a cell.
    Cells(usize),
}

/// The inputs that are not as the description has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Changes(BTreeMap<Input, Vec<f64>>);

impl Changes {
    /// With one more.
    pub fn with(&self, input: Input, values: Vec<f64>) -> Self {
        let mut all = self.0.clone();
        all.insert(input, values);
        Self(all)
    }

    /// `network` with its inputs changed.
    ///
    /// # Errors
    /// `Config`, where there is no such input or the values are none of its kind.
    pub fn apply(&self, network: &Network) -> Result<Network> {
        let mut network = network.clone();
        for (input, values) in &self.0 {
            match *input {
                Input::Drive(index) => set_drive(&mut network, index, values)?,
                Input::Cells(population) => set_cells(&mut network, population, values)?,
            }
        }
        Ok(network)
    }

    /// The file's bytes.
    pub fn to_bytes(&self, checkpoint: &Checkpoint) -> Vec<u8> {
        let mut b = MAGIC.to_vec();
        b.extend([0; 8]);
        b.extend((self.0.len() as u32).to_le_bytes());
        for (input, values) in &self.0 {
            let (kind, index) = match input {
                Input::Drive(index) => (0u8, *index),
                Input::Cells(index) => (1, *index),
            };
            b.push(kind);
            b.extend((index as u32).to_le_bytes());
            b.extend((values.len() as u32).to_le_bytes());
            b.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        }
        b.extend(checkpoint.to_bytes());
        let len = (b.len() - 16) as u64;
        b[8..16].copy_from_slice(&len.to_le_bytes());
        let sum = Sha256::digest(&b);
        b.extend(sum);
        b
    }

    /// Reads such a file, or the checkpoint of a run; `path` is what messages call it.
    ///
    /// # Errors
    /// `Checkpoint`, where the bytes are neither, whole and undamaged.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<(Self, Checkpoint)> {
        if !bytes.starts_with(MAGIC) {
            return Ok((Self::default(), Checkpoint::from_bytes(bytes, path)?));
        }
        let refuse = |what: &str| Error::checkpoint(format!("{}: {what}", path.display()));
        let told = bytes.get(8..16).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        let Some(body) = bytes.len().checked_sub(48).filter(|len| Some(*len as u64) == told) else {
            return Err(refuse("it is cut off, or more than a checkpoint"));
        };
        let (content, sum) = bytes.split_at(16 + body);
        if Sha256::digest(content).as_slice() != sum {
            return Err(refuse("its checksum does not fit: it is damaged"));
        }
        let mut rest = &content[16..];
        let changes = Self::read(&mut rest).ok_or_else(|| refuse("its parts do not fit together"))?;
        Ok((changes, Checkpoint::from_bytes(rest, path)?))
    }

    fn read(rest: &mut &[u8]) -> Option<Self> {
        fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
            let (head, tail) = rest.split_at_checked(len)?;
            *rest = tail;
            Some(head)
        }
        let number = |rest: &mut &[u8]| Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?) as usize);
        let mut all = BTreeMap::new();
        for _ in 0..number(rest)? {
            let kind = take(rest, 1)?[0];
            let index = number(rest)?;
            let input = match kind {
                0 => Input::Drive(index),
                1 => Input::Cells(index),
                _ => return None,
            };
            let len = number(rest)?.checked_mul(8)?;
            let values = take(rest, len)?.chunks_exact(8);
            let value = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes"));
            all.insert(input, values.map(value).collect());
        }
        Some(Self(all))
    }
}

fn set_drive(network: &mut Network, index: usize, values: &[f64]) -> Result<()> {
    let count = network.drives.len();
    let Some(drive) = network.drives.get_mut(index) else {
        return Err(Error::config(format!("drive {index}: there are {count}")));
    };
    let &[value] = values else {
        return Err(Error::config(format!("drive {index}: {} values were given for one", values.len())));
    };
    let name = &network.populations[drive.target].name;
    match &mut drive.kind {
        DriveKind::Poisson { rate_hz, .. } if value >= 0.0 && value.is_finite() => *rate_hz = value,
        DriveKind::Dc { current } if value.is_finite() => *current = value,
        DriveKind::Poisson { .. } => {
            return Err(Error::config(format!(
                "drive of {name}: a rate of {value} Hz must be finite and at least 0",
                value = short(value)
            )));
        }
        DriveKind::Dc { .. } => {
            return Err(Error::config(format!(
                "drive of {name}: a current of {value} must be finite",
                value = short(value)
            )));
        }
    }
    Ok(())
}

fn set_cells(network: &mut Network, population: usize, values: &[f64]) -> Result<()> {
    let count = network.populations.len();
    let Some(p) = network.populations.get_mut(population) else {
        return Err(Error::config(format!("population {population}: there are {count}")));
    };
    let source = (p.model.kind() == Kind::Poisson).then_some(0);
    let Some(parameter) = p.model.current().or(source) else {
        let what =
            format!("population {}: {} has neither a current nor a rate that could change", p.name, p.model.name());
        return Err(Error::config(what));
    };
    let name = p.model.parameters()[parameter].name;
    if values.len() != 1 && values.len() != p.size as usize {
        let what = format!("population {}: {name} has {} values for {} cells", p.name, values.len(), p.size);
        return Err(Error::config(what));
    }
    if let Some(at) = values.iter().position(|x| !x.is_finite()) {
        return Err(Error::config(format!("population {}: {name} of cell {at} is {}", p.name, values[at])));
    }
    if let &[value] = values {
        p.given.parameters.retain(|(i, _)| *i != parameter);
        p.parameters[parameter] = value.into();
    } else {
        p.given.set_parameter(parameter, values.to_vec());
    }
    Ok(())
}
