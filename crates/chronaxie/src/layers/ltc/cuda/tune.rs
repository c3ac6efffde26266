//! The choice of configuration: a pure function of the problem and the device's properties.

use crate::layers::ltc::spec::{Ltc, Save};
use crate::op::Precision;
use crate::{DeviceProps, Error, Result};
use std::fmt;

/// Scratch that the traces of one chunk of steps may take.
const CHUNK_BYTES: usize = 64 << 20;
/// Threads of the kernels that are not a block a row.
pub(super) const THREADS: u32 = 256;

/// How one LTC problem runs on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Lanes that share a neuron's recurrent synapses.
    pub lanes: u32,
    /// Lanes that share a neuron's sensory synapses.
    pub sensory_lanes: u32,
    /// Threads of the block that walks a batch row through time.
    pub threads: u32,
    /// `tanh.approx.f32` in the gates.
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
            "row-per-block threads={} lanes={}+{} gate={} chunk={}/{} shared={}/{}",
            self.threads,
            self.lanes,
            self.sensory_lanes,
            if self.fast { "tanh" } else { "ex2+rcp" },
            self.forward_chunk,
            self.backward_chunk,
            self.forward_shared,
            self.adjoint_shared
        )
    }
}

/// The lane count that wastes little on lists of `synapses / nodes` entries. Two values, so that few kernels exist.
fn lanes(synapses: usize, nodes: usize) -> u32 {
    if synapses >= 96 * nodes.max(1) { 32 } else { 8 }
}

/// The configuration of `p` on a device of `props`.
///
/// # Errors
/// If the states of one batch row do not fit the device's shared memory.
pub fn choose(p: &Ltc, props: &DeviceProps) -> Result<Config> {
    let vectors = if p.backward { 3 } else { 2 };
    let limit = props.shared_per_block_optin.max(props.shared_per_block) as usize;
    if p.hidden * 4 * vectors > limit {
        return Err(Error::shape(format!(
            "ltc: hidden = {} is more than {}, which is what {limit} bytes of shared memory hold on this device",
            p.hidden,
            limit / (4 * vectors)
        )));
    }
    let lanes_of = lanes(p.connectivity.recurrent.len(), p.hidden);
    let chunk = |bytes_per_step: usize| (CHUNK_BYTES / bytes_per_step.max(1)).clamp(1, p.steps.max(1));
    let rows = p.batch.max(1);
    let io = rows * (p.inputs * 4 + p.hidden * 8);
    let trace = rows * p.unfolds * p.hidden * if p.save == Save::Store { 8 } else { 12 }
        + rows * (p.hidden * 16 + p.inputs * 8);
    Ok(Config {
        lanes: lanes_of,
        sensory_lanes: lanes(p.connectivity.sensory.len(), p.hidden),
        threads: (p.hidden.max(1) as u32 * lanes_of).next_multiple_of(32).min(1024),
        // tanh.approx exists from sm_75 on; before it, fast is as exact as exact.
        fast: p.precision == Precision::Fast && props.compute_capability >= (7, 5),
        forward_chunk: chunk(io),
        backward_chunk: chunk(trace),
        forward_shared: p.hidden as u32 * 8,
        adjoint_shared: p.hidden as u32 * 12,
    })
}

/// Rows a slice of a sum over `rows` rows has, when each slice keeps `blocks` blocks busy: enough slices to fill a GPU,
/// none shorter than 64 rows or longer than 4096.
pub(super) fn slice(rows: usize, blocks: usize) -> usize {
    (rows * blocks.max(1) / 2048).clamp(64, 4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::ltc::Connectivity;
    use std::sync::Arc;

    fn problem(batch: usize, steps: usize, inputs: usize, hidden: usize) -> Ltc {
        Ltc::new(batch, steps, Arc::new(Connectivity::full(inputs, hidden).unwrap()))
    }

    #[test]
    fn the_choice_is_the_same_on_every_device_but_for_limits() {
        let p = problem(24, 8, 128, 64);
        let c: Vec<Config> = DeviceProps::FIXTURES.iter().map(|d| choose(&p, d).unwrap()).collect();
        assert!(c.iter().all(|x| *x == c[0]));
        assert_eq!((c[0].lanes, c[0].sensory_lanes, c[0].threads), (8, 32, 512));
        assert_eq!((c[0].forward_chunk, c[0].backward_chunk), (8, 8));
        assert!(c[0].to_string().contains("lanes=8+32"));
    }

    #[test]
    fn hidden_of_4096_fits_every_device_and_the_limit_is_said() {
        // A wiring of one synapse a neuron keeps the test's lists small.
        use crate::layers::ltc::Synapses;
        let wide = |h: usize| {
            let ring = Synapses::from_fn(h, h, |i, j| i == j).unwrap();
            Ltc::new(1, 1, Arc::new(Connectivity::new(ring, Synapses::full(0, h).unwrap()).unwrap()))
        };
        assert!(DeviceProps::FIXTURES.iter().all(|d| choose(&wide(4096), d).is_ok()));
        let e = choose(&wide(6000), &DeviceProps::SM_75).unwrap_err().to_string();
        assert!(e.contains("hidden = 6000 is more than 5461"), "{e}");
    }

    #[test]
    fn long_sequences_are_cut() {
        let c = choose(&problem(128, 256, 64, 256), &DeviceProps::SM_90).unwrap();
        assert!(c.backward_chunk < 64 && c.backward_chunk > 8, "{c}");
        assert_eq!(slice(1152, 8), 64);
        assert_eq!(slice(20_000, 128), 1250);
    }
}
