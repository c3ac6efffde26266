//! Families of `bench` that are spiking networks: two that are simulated as a whole, and three that are part of a step.
//!
//! | family | a case | what is timed |
//! |---|---|---|
//! | `microcircuit` | `full_poisson`, `full_dc`, `full_poisson_stdp` | a second of model time |
//! | `network` | `1000000x1000_dt0.1`: cells, synapses onto each, step | a second of model time |
//! | `neuron_update` | `N1000000`: cells of `lif_exp` | a step's update of all states |
//! | `synaptic_delivery` | `1000000x1000_S500`: sources and cells, synapses onto each, spikes a step | a step's delivery |
//! | `stdp_update` | likewise, of synapses that learn | a step's delivery and change |
//!
//! Every case takes `seed`, `discard` and `ms` (model time before the timed runs, and of each); simulations take `gpus` and
//! `replicas` (so many networks side by side, with seeds from `seed` on), the microcircuit takes `scale`, `network` takes `rule` and `synapses`. Nothing is recorded. The first 20 ms are held against another engine, bit for bit, and what differs
//! is not timed: on a GPU the CPU's engine; on the CPU, and on a GPU with more synapses than the host has room for, a smaller
//! case, which the record names.

mod compare;
mod networks;
mod time;
#[cfg(feature = "report")]
pub(crate) use time::others;

#[cfg(test)]
mod tests;

use crate::bench::{Options, Record, Whole};
use crate::op::{Case, CaseSet};
use crate::progress::Progress;
use crate::spiking::Network;
use crate::{Device, Result};
use networks::Workload;

/// A family of spiking networks.
#[derive(Debug)]
pub struct Spiking {
    name: &'static str,
    workload: fn(&Case) -> Result<Workload>,
    compared: &'static [&'static str],
    cpu: &'static [&'static str],
}

static FAMILIES: [Spiking; 5] = [
    Spiking {
        name: "microcircuit",
        workload: networks::microcircuit,
        compared: &["full_poisson", "full_dc", "full_poisson_stdp"],
        // Without noise from outside a tenth of it is silent.
        cpu: &["full_poisson,scale=0.2", "full_dc,scale=0.2", "full_poisson_stdp,scale=0.2"],
    },
    Spiking {
        name: "network",
        workload: networks::network,
        compared: &[
            "1000000x1000_dt0.1",
            "10000x1000_dt1",
            "100000x1000_dt1",
            "1000000x1000_dt1",
            "10000000x1000_dt0.1",
        ],
        cpu: &["10000x1000_dt0.1", "10000x1000_dt1"],
    },
    Spiking {
        name: "neuron_update",
        workload: networks::neuron_update,
        compared: &["N100000", "N1000000"],
        cpu: &["N10000", "N100000"],
    },
    Spiking {
        name: "synaptic_delivery",
        workload: networks::synaptic_delivery,
        compared: &["100000x1000_S50", "1000000x1000_S500"],
        cpu: &["10000x1000_S5"],
    },
    Spiking {
        name: "stdp_update",
        workload: networks::stdp_update,
        compared: &["100000x1000_S50"],
        cpu: &["10000x1000_S5"],
    },
];

/// All of them.
pub fn families() -> &'static [Spiking] {
    &FAMILIES
}

/// The family of that name, if there is one.
pub fn find(name: &str) -> Option<&'static Spiking> {
    FAMILIES.iter().find(|f| f.name == name)
}

impl Spiking {
    /// The network of a case, what is discarded of its run, ms, and the GPUs that share it.
    ///
    /// # Errors
    /// `Config`, for a case that is none of this family.
    pub fn network(&self, case: &Case) -> Result<(Network, f64, usize)> {
        (self.workload)(case).map(|w| (w.network, w.discard_ms, w.gpus)).map_err(|e| e.context(self.name))
    }
}

impl Whole for Spiking {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cases(&self, set: CaseSet) -> Vec<Case> {
        let names = if set == CaseSet::Compared { self.compared } else { self.cpu };
        names.iter().map(|n| n.parse().expect("the cases of a family are well spelt")).collect()
    }
    fn allow(&self, case: &Case) -> Result<()> {
        (self.workload)(case).map(drop)
    }
    fn time(
        &self,
        case: &Case,
        device: &Device,
        options: &Options,
        progress: &dyn Progress,
        sink: &mut dyn FnMut(Record),
    ) -> Result<Option<String>> {
        match time::measure(self, case, device, options.seconds, progress)? {
            time::Outcome::Differs(what) => Ok(Some(what)),
            time::Outcome::Timed(found) => {
                sink(found.record(case, device, options)?);
                Ok(None)
            }
        }
    }
}
