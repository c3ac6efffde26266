//! Rooflines: what a device can do at most, and what that allows a pass.

use crate::DeviceProps;
use crate::op::Cost;

/// What a device can do at most.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceilings {
    /// Bytes of device memory, read and written, a second.
    pub bytes_per_s: f64,
    /// f32 multiplications and additions a second (or bf16 ones of the tensor cores, for variants that use them).
    pub flops_per_s: f64,
    /// Special functions a second.
    pub special_per_s: f64,
    /// Where the figures come from.
    pub source: String,
}

/// The resource that allows least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Bytes of device memory.
    Memory,
    /// Multiplications and additions.
    Compute,
    /// Special functions.
    Special,
}

impl Bound {
    /// `memory`, `compute` or `special`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Special => "special",
        }
    }
}

impl Ceilings {
    /// The ceilings of a GPU: `bytes_per_s` as measured (or the data sheet's, where nothing can be measured), the
    /// arithmetic from its clock and the units of its generation: its tensor cores, or its f32 lanes.
    pub fn of_gpu(props: &DeviceProps, bytes_per_s: Option<f64>, tensor_cores: bool) -> Self {
        let per_sm_and_clock = |n: f64| n * f64::from(props.sm_count) * f64::from(props.clock_khz) * 1e3;
        let (major, minor) = props.compute_capability;
        // CUDA Programming Guide, "Throughput of Native Arithmetic Instructions": f32 lanes and special-function
        // results of a multiprocessor in a clock.
        let lanes = match (major, minor) {
            (6, 0) | (7, _) | (8, 0) => 64.0,
            _ => 128.0,
        };
        let special = if (major, minor) == (6, 1) { 32.0 } else { 16.0 };
        // Dense bf16 (f16 before Ampere) multiply-adds of the tensor cores of a multiprocessor in a clock.
        let tensor = match (major, minor) {
            (7, _) => 512.0,
            (8, 0) => 1024.0,
            (9, _) => 2048.0,
            (10, _) => 4096.0,
            _ => 512.0,
        };
        let uses_tensor_cores = major >= 7 && tensor_cores;
        let (flops, kind) = if uses_tensor_cores { (tensor, "tensor cores") } else { (lanes, "f32") };
        let (bytes, memory) = match bytes_per_s {
            Some(measured) => (measured, "measured device copy"),
            None => (props.memory_bytes_per_s as f64, "memory clock and bus"),
        };
        Self {
            bytes_per_s: bytes,
            flops_per_s: 2.0 * per_sm_and_clock(flops),
            special_per_s: per_sm_and_clock(special),
            source: format!("{memory}; {kind} at {} MHz", props.clock_khz / 1000),
        }
    }

    /// Milliseconds that bytes, arithmetic and special functions need, each alone.
    pub fn times_ms(&self, cost: &Cost) -> [(Bound, f64); 3] {
        [
            (Bound::Memory, cost.bytes as f64 / self.bytes_per_s * 1e3),
            (Bound::Compute, cost.flops as f64 / self.flops_per_s * 1e3),
            (Bound::Special, cost.special as f64 / self.special_per_s * 1e3),
        ]
    }
    /// The shortest time that the roofline allows, ms, and what sets it.
    pub fn roofline(&self, cost: &Cost) -> (Bound, f64) {
        let times = self.times_ms(cost);
        times.into_iter().fold(times[0], |most, t| if t.1 > most.1 { t } else { most })
    }
}

/// What two passes cost one after the other.
pub(crate) fn add(a: Cost, b: Cost) -> Cost {
    Cost {
        bytes: a.bytes + b.bytes,
        flops: a.flops + b.flops,
        special: a.special + b.special,
        serial_steps: a.serial_steps + b.serial_steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_have_their_published_rates() {
        // H200: 67 TFLOP/s f32 and 989 TFLOP/s bf16 at its boost clock of 1980 and 1830 MHz.
        let c = Ceilings::of_gpu(&DeviceProps::SM_90, None, false);
        assert!((c.flops_per_s / 1e12 - 66.9).abs() < 0.1, "{c:?}");
        assert_eq!(c.bytes_per_s, 4.8e12);
        let t = Ceilings::of_gpu(&DeviceProps::SM_90, Some(4.28e12), true);
        assert!((t.flops_per_s / 1e12 * 1830.0 / 1980.0 - 989.0).abs() < 2.0, "{t:?}");
        assert_eq!(t.bytes_per_s, 4.28e12);
        // A100: 19.5 and 312.
        assert!((Ceilings::of_gpu(&DeviceProps::SM_80, None, false).flops_per_s / 1e12 - 19.5).abs() < 0.1);
        assert!((Ceilings::of_gpu(&DeviceProps::SM_80, None, true).flops_per_s / 1e12 - 312.0).abs() < 1.0);
    }

    #[test]
    fn the_slowest_resource_binds() {
        let c = Ceilings { bytes_per_s: 1e9, flops_per_s: 1e10, special_per_s: 1e8, source: String::new() };
        let cost = |bytes, flops, special| Cost { bytes, flops, special, serial_steps: 0 };
        assert_eq!(c.roofline(&cost(1_000_000, 1_000_000, 0)), (Bound::Memory, 1.0));
        assert_eq!(c.roofline(&cost(0, 20_000_000, 0)), (Bound::Compute, 2.0));
        assert_eq!(c.roofline(&cost(1_000_000, 0, 300_000)), (Bound::Special, 3.0));
        assert_eq!(c.roofline(&cost(0, 0, 0)).1, 0.0);
        assert_eq!(add(cost(1, 2, 3), cost(10, 20, 30)), cost(11, 22, 33));
    }
}
