//! cuSOLVER's batched eigensolver, for so many matrices at a time.
#![allow(unsafe_code)]

use crate::cuda::{CudaDevice, Cusolver, StreamRef};
use crate::{Error, Result};
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
    order: usize,
    /// Matrices at a time.
    pub piece: usize,
    /// Bytes that the solver takes beside them.
    pub bytes: usize,
}

impl Batched {
    /// For `count` matrices of one order.
    ///
    /// # Errors
    /// Where there is no cuSOLVER, or it does not take one matrix.
    pub(super) fn new(count: usize, order: usize, device: &Arc<CudaDevice>) -> Result<Self> {
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
        Ok(Self { device: device.clone(), solver, order, piece, bytes })
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
    /// Puts on `stream` that `count` matrices of f64 become their eigenvectors, row after row, by rising eigenvalues: the addresses of the
    /// matrices, of their eigenvalues, of what says 0 where it has not failed, and of `bytes` of memory.
    ///
    /// # Safety
    /// The addresses are of the device and have room for `count` matrices, at most `piece`, and for `bytes`.
    pub(super) unsafe fn run(&self, entry: &str, stream: StreamRef, count: usize, at: [u64; 4]) -> Result<()> {
        let [a, values, info, memory] = at;
        // SAFETY: the caller's.
        unsafe { self.solver.eigenvectors(stream, [count, self.order], [a, values, info], (memory, self.bytes)) }
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
