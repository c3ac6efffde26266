//! cuSOLVER's batched eigensolver, for so many matrices at a time.
#![allow(unsafe_code)]

use crate::cuda::{CudaDevice, Cusolver, StreamRef};
use crate::{Dtype, Error, Layout, RegionId, Result};
use chronaxie_runtime::log;
use std::sync::Arc;

/// Matrices at once, at the most: cuSOLVER refuses some tens of thousands.
const MOST: usize = 8192;
/// Bytes that matrices of f64, and what the solver takes beside them, may have at once, if that holds one.
const BYTES: usize = 2 << 30;
/// The most rows that the solver takes without waiting for the host, so that a graph can hold it (cuSOLVER 12.0: 512 are seen to be held, 1024 are not).
const HELD: usize = 512;

/// Whether it is faster than jacobi.cuh, as measured on an H200 (inverse_root/cuda/solver.cu), a graph can hold it and the host does not wait as
/// long for it as the device, as from some 200 rows on, but where there is one matrix.
pub(super) fn is_better(count: usize, order: usize) -> bool {
    (256..=HELD).contains(&order) && count == 1 || (32..=128).contains(&order) && count >= 8
}

/// The solver of a device.
pub(super) struct Batched {
    device: Arc<CudaDevice>,
    solver: Arc<Cusolver>,
    count: usize,
    order: usize,
    /// Matrices at a time.
    piece: usize,
    /// Bytes that the solver takes beside them, and where.
    bytes: usize,
    memory: RegionId,
    /// Eigenvalues of a piece, f64, and of all matrices what is not 0 where the solver has failed.
    values: RegionId,
    info: RegionId,
}

/// The first matrix of a piece, and how many it has.
pub(super) type Piece = (usize, usize);
/// Where a region of the scratch lies.
pub(super) type Region<'a> = &'a dyn Fn(RegionId) -> u64;

impl Batched {
    /// For `count` matrices of one order, with memory of its own in `layout`; none where `entry` would take it by itself and there is no
    /// cuSOLVER or it does not take one matrix, which the log then says.
    ///
    /// # Errors
    /// The same, where it was asked for by its name.
    pub(super) fn new(
        entry: &str,
        by_name: bool,
        [count, order]: [usize; 2],
        device: &Arc<CudaDevice>,
        layout: &mut Layout,
    ) -> Result<Option<Self>> {
        match Self::made(count, order, device, layout) {
            Err(e) if !by_name => {
                log::info(format_args!("{entry}: eigenvectors are found without cuSOLVER: {e}"));
                Ok(None)
            }
            made => made.map(Some),
        }
    }
    fn made(count: usize, order: usize, device: &Arc<CudaDevice>, layout: &mut Layout) -> Result<Self> {
        let solver = Cusolver::of(device)?;
        let mut pieces = count.div_ceil(MOST).max(1);
        let (piece, bytes) = loop {
            let piece = count.div_ceil(pieces);
            // The last one may be shorter.
            let lengths = [piece, count % piece.max(1)].into_iter().filter(|&count| count > 0);
            let bytes = lengths.map(|count| solver.eigenvectors_bytes(count, order)).collect::<Result<Vec<_>>>();
            match bytes.map(|all| all.into_iter().max().unwrap_or(0)) {
                Ok(bytes) if piece <= 1 || 8 * piece * order * order + bytes <= BYTES => break (piece, bytes),
                Err(e) if piece <= 1 => return Err(e),
                _ => pieces *= 2,
            }
        };
        let memory = layout.push("memory of cuSOLVER", Dtype::F64, bytes.div_ceil(8))?;
        let values = layout.push("eigenvalues", Dtype::F64, piece * order)?;
        let info = layout.push("what cuSOLVER has failed", Dtype::I32, count)?;
        Ok(Self { device: device.clone(), solver, count, order, piece, bytes, memory, values, info })
    }
    /// Matrices at a time, at the most.
    pub(super) const fn piece(&self) -> usize {
        self.piece
    }
    /// All pieces.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        (0..self.count).step_by(self.piece.max(1)).map(|first| (first, self.piece.min(self.count - first)))
    }
    /// The addresses of a piece's eigenvalues, and of what is not 0 where it has failed.
    pub(super) fn found(&self, first: usize, region: Region<'_>) -> [u64; 2] {
        [region(self.values), region(self.info) + 4 * first as u64]
    }
    /// How it goes.
    pub(super) fn config(&self) -> String {
        format!("{} matrices at a time, cuSOLVER {}", self.piece, self.solver.version())
    }
    /// Refuses a stream that is captured where no graph holds it.
    pub(super) fn can_go_to(&self, entry: &str, stream: StreamRef) -> Result<()> {
        if self.order > HELD && stream.is_capturing(&self.device)? {
            return Err(Error::config(format!(
                "{entry}: cuSOLVER waits for the host where matrices have {} rows, more than {HELD}, which a graph that is captured \
                 cannot hold; variant simt can be captured",
                self.order
            )));
        }
        Ok(())
    }
    /// Puts on `stream` that the `count` matrices of f64 at `matrices`, a piece from `first` on, become their eigenvectors, row after row,
    /// by rising eigenvalues.
    ///
    /// # Safety
    /// `matrices` has room for them, and the regions are those of the layout.
    pub(super) unsafe fn run(
        &self,
        entry: &str,
        stream: StreamRef,
        (first, count): Piece,
        matrices: u64,
        region: Region<'_>,
    ) -> Result<()> {
        let [values, info] = self.found(first, region);
        let memory = (region(self.memory), self.bytes);
        // SAFETY: the caller's; the layout has room for a piece.
        unsafe { self.solver.eigenvectors(stream, [count, self.order], [matrices, values, info], memory) }
            .map_err(|e| e.context(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::is_better;

    #[test]
    fn it_is_for_many_small_matrices_and_for_one_of_hundreds_of_rows() {
        for (count, n) in [(8, 32), (600, 128), (1, 256), (1, 512)] {
            assert!(is_better(count, n), "{count} {n}");
        }
        for (count, n) in [(7, 33), (600, 31), (600, 129), (2, 512), (1, 513), (34, 1024), (0, 0)] {
            assert!(!is_better(count, n), "{count} {n}");
        }
    }
}
