//! Spikes on their way to files: a hash of all of them, and a log that survives an interruption.

use crate::data::npz;
use crate::data::parquet::{self, Column, Kind};
use crate::spiking::network::Network;
use crate::spiking::simulate::{Spike, runs};
use crate::{Error, Result, sha256};
use sha2::digest::generic_array::GenericArray;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// SHA-256 over u64 step then u64 cell, little-endian, of spikes sorted by both. Its state can be kept and gone on from. Where nobody
/// asked for it ([`none`](Self::none)), spikes are counted alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpikeHash {
    state: [u32; 8],
    block: Vec<u8>,
    bytes: u64,
}

impl Default for SpikeHash {
    fn default() -> Self {
        // FIPS 180-4, section 5.3.3.
        let state =
            [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
        Self { state, block: Vec::with_capacity(64), bytes: 0 }
    }
}

impl SpikeHash {
    /// One that counts spikes and hashes nothing.
    pub fn none() -> Self {
        // A state that no message is known to have.
        Self { state: [0; 8], block: Vec::new(), bytes: 0 }
    }
    /// Whether spikes are hashed.
    pub fn hashes(&self) -> bool {
        self.state != [0; 8]
    }
    /// Goes on counting alone.
    pub fn stop(&mut self) {
        *self = Self { bytes: self.bytes, ..Self::none() };
    }
    /// Adds spikes, in order.
    pub fn add(&mut self, spikes: &[Spike]) {
        if !self.hashes() {
            self.bytes += 16 * spikes.len() as u64;
            return;
        }
        // Up to a whole block, then blocks of four spikes, then what is left.
        let missing = (64 - self.block.len()) % 64 / 16;
        let (head, rest) = spikes.split_at(missing.min(spikes.len()));
        self.add_each(head);
        let whole = rest.len() / 4;
        let pair = |i: usize| [rest[i].step, rest[i].cell.into()];
        if !sha256::pairs(&mut self.state, whole, pair) {
            self.add_blocks(&rest[..4 * whole]);
        }
        self.bytes += 64 * whole as u64;
        self.add_each(&rest[4 * whole..]);
    }
    /// Blocks of four, where the CPU has no instructions of its own.
    fn add_blocks(&mut self, spikes: &[Spike]) {
        let mut blocks = [[0u8; 64]; 32].map(GenericArray::from);
        let mut filled = 0;
        for four in spikes.chunks_exact(4) {
            for (bytes, spike) in blocks[filled].chunks_exact_mut(16).zip(four) {
                bytes[..8].copy_from_slice(&spike.step.to_le_bytes());
                bytes[8..].copy_from_slice(&u64::from(spike.cell).to_le_bytes());
            }
            filled += 1;
            if filled == blocks.len() {
                sha2::compress256(&mut self.state, &blocks);
                filled = 0;
            }
        }
        sha2::compress256(&mut self.state, &blocks[..filled]);
    }
    fn add_each(&mut self, spikes: &[Spike]) {
        for spike in spikes {
            self.block.extend(spike.step.to_le_bytes());
            self.block.extend(u64::from(spike.cell).to_le_bytes());
            self.bytes += 16;
            self.flush();
        }
    }
    fn flush(&mut self) {
        if self.block.len() == 64 {
            sha2::compress256(&mut self.state, &[*GenericArray::from_slice(&self.block)]);
            self.block.clear();
        }
    }
    /// How many spikes it has seen.
    pub fn spikes(&self) -> u64 {
        self.bytes / 16
    }
    /// The hash of what it has seen, in lower-case hexadecimal; nothing where it has hashed nothing.
    pub fn hex(&self) -> Option<String> {
        if !self.hashes() {
            return None;
        }
        let mut last = self.clone();
        last.block.push(0x80);
        while last.block.len() != 56 {
            if last.block.len() == 64 {
                last.flush();
            } else {
                last.block.push(0);
            }
        }
        last.block.extend((self.bytes * 8).to_be_bytes());
        last.flush();
        Some(last.state.iter().map(|word| format!("{word:08x}")).collect())
    }
    /// Its state: 32 bytes, the number of bytes seen, and what is not hashed yet.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.state.iter().flat_map(|w| w.to_le_bytes());
        let held = if self.hashes() { &self.block[..] } else { &[0; 64][..(self.bytes % 64) as usize] };
        words.chain(self.bytes.to_le_bytes()).chain(held.iter().copied()).collect()
    }
    /// Several, each of which was [`to_bytes`](Self::to_bytes), one after the other.
    pub fn list_from_bytes(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut list = Vec::new();
        while !bytes.is_empty() {
            let count = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
            let (own, rest) = bytes.split_at_checked(40 + (count % 64) as usize)?;
            list.push(Self::from_bytes(own)?);
            bytes = rest;
        }
        Some(list)
    }
    /// The inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, block) = bytes.split_at_checked(40)?;
        let word = |i: usize| u32::from_le_bytes(head[4 * i..4 * i + 4].try_into().expect("four bytes"));
        let count = u64::from_le_bytes(head[32..40].try_into().expect("eight bytes"));
        let fits = block.len() < 64 && block.len() as u64 == count % 64 && count % 16 == 0;
        let read = Self { state: std::array::from_fn(word), block: block.to_vec(), bytes: count };
        fits.then(|| if read.hashes() { read } else { Self { bytes: count, ..Self::none() } })
    }
}

/// Spikes of a row group of Parquet.
const GROUP: usize = 1 << 20;

/// Bytes of a spike in the log: u64 step, u32 cell.
const RECORD: u64 = 12;

/// Spikes that are written at a time: few enough for a near cache.
const PIECE: usize = 1 << 14;

/// The spikes of a run as they come, in a file beside its checkpoint.
#[derive(Debug)]
pub struct SpikeLog {
    path: PathBuf,
    file: File,
    count: u64,
    /// What is written next.
    piece: Vec<u8>,
}

impl SpikeLog {
    /// Opens the log; what it holds beyond the first `keep` spikes is cut off.
    ///
    /// # Errors
    /// `Io`; `Checkpoint`, where it holds fewer.
    pub fn open(path: &Path, keep: u64) -> Result<Self> {
        let fail = |e: &std::io::Error| Error::io("open", path, e);
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).map_err(|e| fail(&e))?;
        let held = file.metadata().map_err(|e| fail(&e))?.len() / RECORD;
        if held < keep {
            return Err(Error::checkpoint(format!(
                "{} holds {held} spikes, not the {keep} of the checkpoint",
                path.display()
            )));
        }
        file.set_len(keep * RECORD).map_err(|e| fail(&e))?;
        file.seek(std::io::SeekFrom::End(0)).map_err(|e| fail(&e))?;
        Ok(Self { path: path.to_path_buf(), file, count: keep, piece: vec![0; PIECE * RECORD as usize] })
    }
    /// How many spikes it holds.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// Adds spikes; where the disk is full, what was there before stays whole.
    ///
    /// # Errors
    /// `Io`.
    pub fn add(&mut self, spikes: &[Spike]) -> Result<()> {
        for spikes in spikes.chunks(PIECE) {
            let bytes = &mut self.piece[..spikes.len() * RECORD as usize];
            for (bytes, spike) in bytes.chunks_exact_mut(RECORD as usize).zip(spikes) {
                bytes[..8].copy_from_slice(&spike.step.to_le_bytes());
                bytes[8..].copy_from_slice(&spike.cell.to_le_bytes());
            }
            if let Err(e) = self.file.write_all(bytes) {
                let _ = self.file.set_len(self.count * RECORD);
                let _ = self.file.seek(std::io::SeekFrom::End(0));
                return Err(Error::io("write", &self.path, &e));
            }
        }
        self.count += spikes.len() as u64;
        Ok(())
    }
    /// The file, as somebody else can make sure that the disk has it, and what it is called.
    ///
    /// # Errors
    /// `Io`.
    pub fn handle(&self) -> Result<(PathBuf, File)> {
        let file = self.file.try_clone().map_err(|e| Error::io("open", &self.path, &e))?;
        Ok((self.path.clone(), file))
    }
    /// Calls `with` for pieces of the log, in order.
    ///
    /// # Errors
    /// `Io`, and what `with` returns.
    pub fn read(&self, mut with: impl FnMut(&[Spike]) -> Result<()>) -> Result<()> {
        let fail = |e: &std::io::Error| Error::io("read", &self.path, e);
        let mut reader = BufReader::new(File::open(&self.path).map_err(|e| fail(&e))?);
        let mut left = self.count;
        while left > 0 {
            let here = left.min(1 << 16);
            let mut bytes = vec![0; (here * RECORD) as usize];
            reader.read_exact(&mut bytes).map_err(|e| fail(&e))?;
            let spikes: Vec<Spike> = bytes.chunks_exact(RECORD as usize).map(record).collect();
            with(&spikes)?;
            left -= here;
        }
        Ok(())
    }
    /// Writes the log as `.npz`: `time` (ms), `step`, `neuron` (the cell's number), `population` (an index into
    /// `population_names`), `population_sizes`, `dt`, and the time from `start` (0) to `stop` (the end of step `stop`), ms.
    ///
    /// # Errors
    /// `Io`; then no file of that name is left half-written.
    pub fn export(&self, path: &Path, network: &Network, stop: u64) -> Result<()> {
        super::replace(path, |aside| self.export_to(aside, network, stop))
    }

    /// Whether [`export`](Self::export) has room for them in an archive of 4 GiB.
    pub fn fits_npz(&self) -> bool {
        const ROW: u64 = 8 + 8 + 4 + 2;
        self.count < (0xFFFF_FFFF - (1 << 24)) / ROW
    }

    /// Writes the log as Parquet, of any length: columns `time` (ms), `step`, `neuron` (the cell's number) and `population` (its
    /// name), sorted by step and neuron, a row group each 2^20 spikes. What else [`export`](Self::export) writes is
    /// words about the file: `dt_ms`, `start_ms`, `stop_ms`, `population_sizes` with commas between, and `population_names`, of which
    /// each is a line of its own.
    ///
    /// # Errors
    /// `Io`; then no file of that name is left half-written.
    pub fn export_parquet(&self, path: &Path, network: &Network, stop: u64) -> Result<()> {
        super::replace(path, |aside| self.parquet_to(aside, network, stop))
    }

    fn parquet_to(&self, path: &Path, network: &Network, stop: u64) -> std::io::Result<()> {
        let firsts = network.first_cells();
        let names: Vec<String> = network.populations.iter().map(|p| p.name.clone()).collect();
        let schema = [("time", Kind::F64), ("step", Kind::U64), ("neuron", Kind::U32), ("population", Kind::Text)];
        let mut out = parquet::Writer::new(BufWriter::new(File::create(path)?), &schema)?;
        let (mut time, mut step, mut cell, mut of) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut left = self.count as usize;
        for piece in self.pieces(|spikes| spikes.to_vec())? {
            let piece = piece?;
            left -= piece.len();
            time.extend(piece.iter().map(|s| s.step as f64 * network.dt_ms));
            step.extend(piece.iter().map(|s| s.step));
            cell.extend(piece.iter().map(|s| s.cell));
            of.extend(runs(&piece, &firsts).flat_map(|(p, run)| std::iter::repeat_n(p as u32, run.len())));
            if step.len() >= GROUP || left == 0 {
                let population = Column::Text(&names, &of);
                out.group(&[Column::F64(&time), Column::U64(&step), Column::U32(&cell), population])?;
                time.clear();
                step.clear();
                cell.clear();
                of.clear();
            }
        }
        let sizes: Vec<String> = network.populations.iter().map(|p| p.size.to_string()).collect();
        let about = [
            ("dt_ms", network.dt_ms.to_string()),
            ("start_ms", "0".to_owned()),
            ("stop_ms", (stop as f64 * network.dt_ms).to_string()),
            ("population_sizes", sizes.join(",")),
            ("population_names", names.iter().map(|n| n.replace('\n', " ")).collect::<Vec<_>>().join("\n")),
        ];
        out.finish(&about)?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    }

    fn export_to(&self, path: &Path, network: &Network, stop: u64) -> std::io::Result<()> {
        let firsts = network.first_cells();
        let dt = network.dt_ms;
        let mut out = npz::Writer::new(BufWriter::new(File::create(path)?));
        let n = [self.count as usize];
        let time = |s: &Spike| (s.step as f64 * dt).to_le_bytes();
        out.array("time", "<f8", &n, self.pieces(move |spikes| column(spikes, time))?)?;
        out.array("step", "<u8", &n, self.pieces(|spikes| column(spikes, |s| s.step.to_le_bytes()))?)?;
        out.array("neuron", "<u4", &n, self.pieces(|spikes| column(spikes, |s| s.cell.to_le_bytes()))?)?;
        let populations = |spikes: &[Spike]| {
            let mut bytes = vec![0; 2 * spikes.len()];
            let mut places = bytes.chunks_exact_mut(2);
            for (p, run) in runs(spikes, &firsts) {
                let own = places.by_ref().take(run.len());
                own.for_each(|place| place.copy_from_slice(&(p as u16).to_le_bytes()));
            }
            bytes
        };
        out.array("population", "<u2", &n, self.pieces(populations)?)?;
        let names: Vec<Vec<u32>> =
            network.populations.iter().map(|p| p.name.chars().map(u32::from).collect()).collect();
        let width = names.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let text = names.iter().flat_map(|name| name.iter().copied().chain(std::iter::repeat(0)).take(width));
        out.array(
            "population_names",
            &format!("<U{width}"),
            &[names.len()],
            [Ok(text.flat_map(u32::to_le_bytes).collect())],
        )?;
        let sizes = network.populations.iter().flat_map(|p| p.size.to_le_bytes()).collect();
        out.array("population_sizes", "<u4", &[names.len()], [Ok(sizes)])?;
        for (name, value) in [("dt", dt), ("start", 0.0), ("stop", stop as f64 * dt)] {
            out.array(name, "<f8", &[], [Ok(value.to_le_bytes().to_vec())])?;
        }
        out.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    }

    fn pieces<'a, T>(
        &'a self,
        with: impl Fn(&[Spike]) -> Vec<T> + 'a,
    ) -> std::io::Result<impl Iterator<Item = std::io::Result<Vec<T>>> + 'a> {
        let mut reader = BufReader::new(File::open(&self.path)?);
        let mut left = self.count;
        Ok(std::iter::from_fn(move || {
            let here = left.min(1 << 16);
            left -= here;
            (here > 0).then(|| {
                let mut raw = vec![0; (here * RECORD) as usize];
                reader.read_exact(&mut raw)?;
                Ok(with(&raw.chunks_exact(RECORD as usize).map(record).collect::<Vec<_>>()))
            })
        }))
    }
}

/// A value of so many bytes of each spike.
fn column<const N: usize>(spikes: &[Spike], value: impl Fn(&Spike) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; N * spikes.len()];
    bytes.chunks_exact_mut(N).zip(spikes).for_each(|(bytes, spike)| bytes.copy_from_slice(&value(spike)));
    bytes
}

fn record(bytes: &[u8]) -> Spike {
    let step = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    Spike { step, cell: u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spikes(n: u32) -> Vec<Spike> {
        (0..n).map(|i| Spike { step: u64::from(i / 3), cell: i % 3 * 1000 }).collect()
    }

    #[test]
    fn the_hash_is_sha256_of_the_bytes_and_goes_on_from_its_state() {
        for n in [0, 1, 2, 3, 4, 5, 7, 100, 1001] {
            let all = spikes(n);
            let bytes: Vec<u8> = all
                .iter()
                .flat_map(|s| s.step.to_le_bytes().into_iter().chain(u64::from(s.cell).to_le_bytes()))
                .collect();
            let mut hash = SpikeHash::default();
            let (a, b) = all.split_at(all.len() / 3);
            hash.add(a);
            let mut hash = SpikeHash::from_bytes(&hash.to_bytes()).unwrap();
            hash.add(b);
            assert_eq!(hash.hex(), Some(crate::data::sha256_hex(&bytes)), "{n}");
            assert_eq!(hash.spikes(), u64::from(n));
        }
        // Whole blocks by either way.
        let (mut own, mut portable) = (SpikeHash::default(), SpikeHash::default());
        own.add(&spikes(1000));
        portable.add_blocks(&spikes(1000));
        assert_eq!(own.state, portable.state);
        assert_eq!(SpikeHash::from_bytes(&[0; 39]), None);
        assert_eq!(SpikeHash::from_bytes(&[0; 41]), None);
    }

    #[test]
    fn a_log_is_cut_exported_and_read_again() {
        let folder = std::env::temp_dir().join(format!("chronaxie-spikes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("spikes.log");
        let mut log = SpikeLog::open(&path, 0).unwrap();
        log.add(&spikes(5000)).unwrap();
        drop(log);
        let mut log = SpikeLog::open(&path, 3000).unwrap();
        log.add(&spikes(5000)[3000..]).unwrap();
        let mut back = Vec::new();
        log.read(|s| {
            back.extend_from_slice(s);
            Ok(())
        })
        .unwrap();
        assert_eq!(back, spikes(5000));
        let model = crate::spiking::models::find("lif_exp").unwrap();
        let mut network = Network::new(0.1, 1).unwrap();
        network.add(crate::spiking::Population::new("a", model, 1500));
        network.add(crate::spiking::Population::new("b\u{e9}", model, 1500));
        let out = folder.join("spikes.npz");
        log.export(&out, &network, 5000).unwrap();
        // Text is not read back; the numbers are.
        let e = npz::parse(&std::fs::read(&out).unwrap(), &out).unwrap_err().to_string();
        assert!(e.contains("population_names") && e.contains("<U2"), "{e}");
        let out = folder.join("spikes.parquet");
        log.export_parquet(&out, &network, 5000).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let table = parquet::Table::parse(&bytes, &out).unwrap();
        let [time, step, neuron] = ["time", "step", "neuron"].map(|name| table.column(name).unwrap());
        for (i, s) in spikes(5000).iter().enumerate() {
            assert_eq!((step[i], neuron[i], time[i]), (s.step as f64, f64::from(s.cell), s.step as f64 * 0.1));
        }
        let about =
            ["dt_ms", "start_ms", "stop_ms", "population_sizes", "population_names"].map(|key| table.about(key));
        assert_eq!(about, ["0.1", "0", "500", "1500,1500", "a\nb\u{e9}"].map(Some));
        // Where the folder cannot take it, nothing is left beside what was there.
        std::fs::create_dir(folder.join("taken")).unwrap();
        let e = log.export_parquet(&folder.join("taken"), &network, 5000).unwrap_err().to_string();
        assert!(e.contains("cannot write") && !folder.join("taken.tmp").exists(), "{e}");
        assert!(log.fits_npz());
        log.count = 195_000_000;
        assert!(!log.fits_npz());
        log.count = 5000;
        drop(log);
        assert!(SpikeLog::open(&path, 5001).unwrap_err().to_string().contains("holds 5000 spikes, not the 5001"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
