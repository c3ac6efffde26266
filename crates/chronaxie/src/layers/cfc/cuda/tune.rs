//! The choice of configuration: a pure function of the problem and the device's properties.

use crate::layers::cfc::net::Net;
use crate::layers::cfc::spec::Cfc;
use crate::op::Precision;
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Threads of the block that walks batch rows through time: enough to have the reads of a step in flight.
pub(super) const THREADS: usize = 512;
/// Batch rows of a block. More of them share each weight that is read, but leave multiprocessors without work.
pub(super) const ROWS: [usize; 3] = [1, 2, 4];
/// Scratch that the values of one chunk of steps may take.
const CHUNK_BYTES: usize = 64 << 20;
/// Blocks that the sums of a map's gradients are cut into, about.
const SUM_BLOCKS: usize = 256;
/// Rows and columns of a tile of the products, and the fewest steps of a slice.
pub(super) const TILE: usize = 64;

/// How one CfC problem runs on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Batch rows of a block.
    pub rows: usize,
    /// `tanh.approx.f32` in tanh and sigmoid.
    pub fast: bool,
    /// Steps of a chunk, forward and backward.
    pub forward_chunk: usize,
    /// As above.
    pub backward_chunk: usize,
    /// Shared memory of the forward and of the adjoint kernel.
    pub forward_shared: u32,
    /// As above.
    pub adjoint_shared: u32,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rows = {}, threads = {THREADS}, chunks of {} and {} steps, {} and {} bytes of shared memory",
            self.rows, self.forward_chunk, self.backward_chunk, self.forward_shared, self.adjoint_shared
        )
    }
}

/// Bytes of shared memory that `rows` rows take, forward and backward; none where they exceed 32 bits.
fn shared(p: &Cfc, net: &Net, rows: usize) -> Option<[u32; 2]> {
    let (h, u) = (p.hidden(), p.backbone_units);
    let forward = 3 * h + u + net.widest_output.max(THREADS);
    let adjoint = 4 * h + net.widest_output + net.widest_input.max(h).max(u).max(THREADS);
    let bytes = |floats: usize| u32::try_from(floats.checked_mul(4 * rows)?).ok();
    Some([bytes(forward)?, bytes(adjoint)?])
}

/// What a variant such as `r2` or `r2t3` asks for: rows of a block, and steps of a chunk.
fn asked(variant: &str) -> Option<(usize, Option<usize>)> {
    let (rows, steps) = match variant.strip_prefix('r')?.split_once('t') {
        Some((rows, steps)) => (rows, Some(steps.parse().ok().filter(|&n| n > 0)?)),
        None => (variant.strip_prefix('r')?, None),
    };
    Some((rows.parse().ok().filter(|r| ROWS.contains(r))?, steps))
}

/// The configuration of `p`, by size, or as `variant` asks for it.
///
/// # Errors
/// If the values of one batch row do not fit the shared memory of a block, a size exceeds 32 bits, or there is no such
/// variant.
pub fn choose(p: &Cfc, device: &DeviceProps, variant: Option<&str>) -> Result<Config> {
    let net = Net::of(p, 1);
    let limit = device.shared_per_block_optin;
    let backward = if p.backward { 1 } else { 0 };
    let fits = |rows: usize| shared(p, &net, rows).filter(|s| s[0] <= limit && s[1] * backward <= limit);
    let named = |v: &str| {
        asked(v).ok_or_else(|| {
            Error::config(format!("cfc: variant `{v}` is not one of CUDA's: r1, r2 or r4, and t with steps of a chunk"))
        })
    };
    let (wanted, steps) = match variant.map(named).transpose()? {
        Some((rows, steps)) => (Some(rows), steps),
        None => (None, None),
    };
    let filling = |rows: &usize| p.batch.div_ceil(*rows) <= device.sm_count as usize;
    let by_size = ROWS.into_iter().find(filling).unwrap_or(ROWS[ROWS.len() - 1]);
    let mut rows = wanted.unwrap_or(by_size);
    while rows > 1 && wanted.is_none() && fits(rows).is_none() {
        rows /= 2;
    }
    let most = i32::MAX as usize;
    let small = net.grads.max(net.operands).max(net.packed) <= most && p.batch <= most;
    let Some([forward_shared, adjoint_shared]) = fits(rows).filter(|_| small) else {
        return Err(Error::config(format!(
            "cfc: {rows} rows of H = {}, U = {} and maps of up to {} outputs do not fit a block's {limit} bytes of shared \
             memory",
            p.hidden(),
            p.backbone_units,
            net.widest_output
        )));
    };
    let lstm = if p.mixed_memory { net.maps[0].outputs } else { 0 };
    let chunk = |width: usize| {
        let a_step = width.saturating_mul(4 * p.batch).max(1);
        steps.unwrap_or(CHUNK_BYTES / a_step).clamp(1, p.steps.max(1))
    };
    Ok(Config {
        rows,
        fast: p.precision == Precision::Fast,
        forward_chunk: chunk(net.cell(p, 0)[0].outputs + lstm),
        backward_chunk: chunk(net.grads + net.operands),
        forward_shared,
        adjoint_shared,
    })
}

/// Steps of rows that one slice of the sums of a `[m, n]` gradient takes, of `rows` in all.
pub(super) fn slice_rows(rows: usize, m: usize, n: usize) -> usize {
    let tiles = (m.div_ceil(TILE) * n.div_ceil(TILE)).max(1);
    let slices = (SUM_BLOCKS / tiles).max(1);
    rows.div_ceil(slices).next_multiple_of(TILE).max(TILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::cfc::spec::Mode;

    #[test]
    fn rows_fill_the_device_and_fit_a_block() {
        for device in DeviceProps::FIXTURES {
            let choose = |p: &Cfc| choose(p, &device, None);
            let sms = device.sm_count as usize;
            assert_eq!(choose(&Cfc::new(sms, 4, 3, 5)).unwrap().rows, 1);
            assert_eq!(choose(&Cfc::new(sms + 1, 4, 3, 5)).unwrap().rows, 2);
            assert_eq!(choose(&Cfc::new(100 * sms, 4, 3, 5)).unwrap().rows, 4);
            // As many rows as fit.
            let wide = choose(&Cfc::new(100 * sms, 4, 3, 1500)).unwrap();
            assert!(wide.adjoint_shared <= device.shared_per_block_optin && wide.rows <= 4);
            let e = choose(&Cfc::new(1, 1, 1, 30_000)).unwrap_err().to_string();
            assert!(e.contains("cfc: 1 rows of H = 30000, U = 128 and maps of up to 120000 outputs do not fit"), "{e}");
            // Without heads of time, and without the adjoint, more fits.
            let pure = Cfc { mode: Mode::Pure, backward: false, ..Cfc::new(1, 1, 1, 3500) };
            assert!(choose(&pure).is_ok());
        }
    }

    #[test]
    fn variants_are_named() {
        let device = DeviceProps::SM_80;
        let p = Cfc::new(3, 4, 5, 6);
        assert_eq!(choose(&p, &device, Some("r4")).unwrap().rows, 4);
        let c = choose(&p, &device, Some("r2t3")).unwrap();
        assert_eq!((c.rows, c.forward_chunk, c.backward_chunk), (2, 3, 3));
        for bad in ["r3", "rows2", "r2t0", "t3", "r2tx"] {
            let e = choose(&p, &device, Some(bad)).unwrap_err().to_string();
            assert_eq!(
                e,
                format!("cfc: variant `{bad}` is not one of CUDA's: r1, r2 or r4, and t with steps of a chunk")
            );
        }
        assert!(
            choose(&p, &device, None).unwrap().to_string().starts_with("rows = 1, threads = 512, chunks of 4 and 4")
        );
    }

    #[test]
    fn slices_cover_all_rows_and_are_few() {
        for (rows, m, n) in [(0, 5, 5), (192, 256, 129), (32_768, 1024, 129), (1 << 20, 20, 10)] {
            let slice = slice_rows(rows, m, n);
            assert!(slice.is_multiple_of(TILE) && rows.div_ceil(slice) <= SUM_BLOCKS);
        }
        assert_eq!(slice_rows(192, 256, 129), 64);
    }
}
