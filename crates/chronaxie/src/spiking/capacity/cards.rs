//! Cards: what they have, and what was measured of the engine on them.

use crate::config::Config;
use crate::{DeviceProps, Error, Result};
use serde::Serialize;
use std::path::Path;

/// Numbers of a card file's table, each with what it means.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a step costs on a card, and the host beside it. `ns` are of a multiprocessor (its block has a share of the cells and
        /// hears of every spike) or, from `merge_ns` on, of the host.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize)]
        #[non_exhaustive]
        pub struct Constants { $($(#[$doc])* pub $name: f64,)* }

        impl Constants {
            /// Their names, as a card's file has them.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn read(section: crate::config::Section<'_>) -> Result<Self> {
                let one = |name: &str| {
                    let x: f64 = section.require(name)?;
                    if x.is_finite() && x >= 0.0 { Ok(x) } else { Err(section.refuse(name, &format!("is {x}, and no time is"))) }
                };
                Ok(Self { $($name: one(stringify!($name))?,)* })
            }

            /// One of them, by its place in [`NAMES`](Self::NAMES).
            #[cfg(test)]
            pub(super) fn of(&mut self, index: usize) -> &mut f64 {
                let all = [$(&mut self.$name),*];
                all.into_iter().nth(index).expect("an index of a name")
            }
        }
    };
}

constants! {
    /// Blocks of a card tell each other what fired and wait for it, us a step.
    meeting_us,
    /// The first rows come out of memory, us a step.
    trip_us,
    /// A pass over a block's cells, us a step at the least.
    sweep_us,
    /// Likewise blocks of several cards, by their memory: us more a step.
    link_us,
    /// A header that a block reads out of the host's memory, where cards cannot write to each other's: ns of the card.
    header_ns,
    /// A cell advances.
    cell_ns,
    /// A drive of a cell is drawn.
    draw_ns,
    /// A spike's row, in every block, where rows have segments, of 1024 threads.
    row_ns,
    /// Likewise where rows are listed alone: most of a block's are empty.
    listed_row_ns,
    /// A synapse delivers to the block's shared memory.
    event_ns,
    /// A synapse goes by way of a list of a calendar.
    append_ns,
    /// A synapse adds to a ring in global memory.
    far_event_ns,
    /// A synapse that changes makes up for a spike of its target.
    entry_ns,
    /// A launch of some thousand steps, with what puts its spikes in order, us.
    launch_us,
    /// The host merges a spike of several cards with the others of its step while the next launch runs; that of one card takes it no time
    /// that shows.
    merge_ns,
    /// The host hashes and counts a spike beside the steps of the next chunk.
    book_ns,
}

/// A card, and how many of them a machine has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Card {
    /// What `--gpu` calls it.
    pub name: String,
    /// Where the constants are from.
    pub measured: String,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may have, KiB.
    pub shared_kib: u32,
    /// The second cache, MiB.
    pub l2_mib: u32,
    /// Memory that is free before a network is made, GB.
    pub memory_gb: f64,
    /// Its bandwidth, GB/s.
    pub memory_gb_per_s: f64,
    /// Cards of a machine, each of which writes to the memory of the others.
    pub gpus_a_machine: u32,
    /// What a step costs.
    pub constants: Constants,
    /// Between machines: an exchange, us. Not measured.
    pub network_us: f64,
    /// Likewise the bandwidth of a machine, GB/s. Not measured.
    pub network_gb_per_s: f64,
}

/// The cards whose constants come with the library.
const KNOWN: &[(&str, &str)] = &[("h200", include_str!("h200.toml"))];

impl Card {
    /// The card of this name.
    ///
    /// # Errors
    /// `Config`, with the names that there are.
    pub fn find(name: &str) -> Result<Self> {
        let names = || KNOWN.iter().map(|(n, _)| *n);
        let Some((_, text)) = KNOWN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
            let near =
                crate::config::nearest(name, names()).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
            return Err(Error::config(format!(
                "nothing was measured of a card `{name}`; there are constants of {}{near}; --constants FILE gives those of another",
                names().collect::<Vec<_>>().join(", ")
            )));
        };
        Self::of(&Config::parse(text, format!("the constants of {name}"))?)
    }

    /// The card that a file describes, TOML or JSON.
    ///
    /// # Errors
    /// `Config`, with file and line; `Io`.
    pub fn read(path: &Path) -> Result<Self> {
        Self::of(&Config::read(path)?)
    }

    #[cfg(test)]
    pub(super) fn read_text(text: &str) -> Result<Self> {
        Self::of(&Config::parse(text, "text")?)
    }

    fn of(config: &Config) -> Result<Self> {
        let (card, network) = (config.table("card")?, config.table("network")?);
        let positive = |section: &crate::config::Section<'_>, key: &str| {
            let x: f64 = section.require(key)?;
            if x.is_finite() && x > 0.0 {
                Ok(x)
            } else {
                Err(section.refuse(key, &format!("is {x}, and must be above 0")))
            }
        };
        let whole = |key: &str, most: u32| {
            let n: u32 = card.require(key)?;
            if (1..=most).contains(&n) {
                Ok(n)
            } else {
                Err(card.refuse(key, &format!("is {n}, not from 1 to {most}")))
            }
        };
        let all = Self {
            name: card.require("name")?,
            measured: card.require("measured")?,
            multiprocessors: whole("multiprocessors", 1024)?,
            shared_kib: whole("shared_kib", 4096)?,
            l2_mib: whole("l2_mib", 65_536)?,
            memory_gb: positive(&card, "memory_gb")?,
            memory_gb_per_s: positive(&card, "memory_gb_per_s")?,
            gpus_a_machine: whole("gpus_a_machine", 1024)?,
            constants: Constants::read(config.table("step")?)?,
            network_us: positive(&network, "latency_us")?,
            network_gb_per_s: positive(&network, "gb_per_s")?,
        };
        config.finish()?;
        Ok(all)
    }

    /// What a network is cut for.
    pub fn device(&self) -> DeviceProps {
        let mut props = DeviceProps::SM_90;
        props.sm_count = self.multiprocessors;
        props.shared_per_block_optin = self.shared_kib << 10;
        props.l2_bytes = self.l2_mib << 20;
        props.memory_bytes_per_s = (self.memory_gb_per_s * 1e9) as u64;
        props
    }
}
