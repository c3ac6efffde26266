//! What `profile` prints of a configuration.

use super::{Config, Held};
use std::fmt;

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}r{}s{}g{} threads={}", self.blocks, self.rows, self.slots, self.groups, self.threads)?;
        f.write_str(if self.whole {
            " whole"
        } else if self.lone {
            " lone"
        } else {
            ""
        })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(h) = &self.recurrence {
            write!(f, "held {h} shared={}; ", h.shared)?;
        }
        for (name, held) in [
            ("adjoint", &self.adjoint),
            ("rebuild", &self.rebuild),
            ("its sums", &self.sums),
            ("sensory adjoint", &self.sensory_adjoint),
            ("sensory", &self.sensory),
        ] {
            if let Some(h) = held {
                write!(f, "{name} {h}; ")?;
            }
        }
        for levels in [&self.levels, &self.levels_adjoint].into_iter().flatten() {
            write!(f, "{levels}")?;
        }
        for (name, grid) in [("", &self.grid), ("adjoint ", &self.grid_adjoint), ("rebuild ", &self.grid_rebuild)] {
            if let Some(g) = grid {
                write!(f, "{name}{g}; ")?;
            }
        }
        write!(
            f,
            "row-per-block{} threads={} lanes={}+{} gate={} chunk={}/{} shared={}/{}",
            if self.mixed { " with LSTM" } else { "" },
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
