//! Which cell belongs to which part of a network.

use crate::spiking::connect::{Order, Part, Subset};
use crate::spiking::network::Network;
use crate::spiking::plan::Plan;
use crate::{Error, Result};
use std::sync::Arc;

/// The most parts.
pub const MAX_PARTS: usize = 65_536;

/// Every cell of a network in one of some parts.
///
/// The cells of a population stand in an order in which those of a part follow each other, by rising number; where the order
/// is that of their numbers it is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    parts: usize,
    populations: Vec<Cuts>,
}

/// Where an order of cells is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cuts {
    order: Option<Arc<Order>>,
    /// One more than there are parts.
    at: Vec<u32>,
}

impl Layout {
    /// Every population cut by its cells' numbers into ranges of equal length.
    pub fn even(network: &Network, parts: usize) -> Self {
        let cut = |size: u32, i: usize| (u64::from(size) * i as u64 / parts as u64) as u32;
        let populations = network.populations.iter();
        let populations =
            populations.map(|p| Cuts { order: None, at: (0..=parts).map(|i| cut(p.size, i)).collect() }).collect();
        Self { parts, populations }
    }

    /// `owners[population][cell]` is the part of each cell.
    ///
    /// # Errors
    /// `Value`, where there are as many parts as there cannot be, or a cell has none of them.
    pub fn from_owners(network: &Network, parts: usize, owners: &[Vec<u32>]) -> Result<Self> {
        let sizes = network.populations.iter().map(|p| p.size as usize);
        if parts == 0 || parts > MAX_PARTS || !owners.iter().map(Vec::len).eq(sizes) {
            return Err(Error::value(format!("a layout of {parts} parts does not fit the network")));
        }
        if let Some(bad) = owners.iter().flatten().find(|owner| **owner as usize >= parts) {
            return Err(Error::value(format!("a cell is in part {bad} of {parts}")));
        }
        let cuts = |owners: &Vec<u32>| {
            let mut at = vec![0u32; parts + 1];
            owners.iter().for_each(|owner| at[*owner as usize + 1] += 1);
            (0..parts).for_each(|i| at[i + 1] += at[i]);
            if owners.is_sorted() {
                return Cuts { order: None, at };
            }
            let mut next = at.clone();
            let mut cells = vec![0; owners.len()];
            for (cell, owner) in owners.iter().enumerate() {
                let place = &mut next[*owner as usize];
                cells[*place as usize] = cell as u32;
                *place += 1;
            }
            Cuts { order: Some(Arc::new(Order::new(cells))), at }
        };
        Ok(Self { parts, populations: owners.iter().map(cuts).collect() })
    }

    /// How many parts.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The part of a cell of a population.
    pub fn owner(&self, population: usize, cell: u32) -> usize {
        let cuts = &self.populations[population];
        let place = cuts.order.as_ref().map_or(cell, |o| o.places()[cell as usize]);
        cuts.at.partition_point(|at| *at <= place) - 1
    }

    /// The part of each cell of a population.
    pub fn owners(&self, population: usize) -> Vec<u32> {
        let cuts = &self.populations[population];
        let mut owners = vec![0; cuts.at[self.parts] as usize];
        for part in 0..self.parts {
            self.own(part, population).iter().for_each(|cell| owners[cell as usize] = part as u32);
        }
        owners
    }

    /// The cells of a population in a part.
    pub fn own(&self, part: usize, population: usize) -> Subset<'_> {
        let cuts = &self.populations[population];
        Subset { low: cuts.at[part], high: cuts.at[part + 1], order: cuts.order.as_deref() }
    }

    /// The order in which the cells of a population stand, where it is not that of their numbers.
    pub fn order(&self, population: usize) -> Option<&Order> {
        self.populations[population].order.as_deref()
    }

    /// How many cells a part has.
    pub fn cells(&self, part: usize) -> u64 {
        self.populations.iter().map(|c| u64::from(c.at[part + 1] - c.at[part])).sum()
    }

    /// How many slots (a cell's ports) a part has.
    pub fn slots(&self, plan: &Plan, part: usize) -> u64 {
        let ports = plan.models.iter().map(|m| m.ports().len() as u64);
        self.populations.iter().zip(ports).map(|(c, n)| n * u64::from(c.at[part + 1] - c.at[part])).sum()
    }

    /// The cells of shard `index` of `count` of a part, and how many slots they have.
    pub fn shard(&self, plan: &Plan, part: usize, index: usize, count: usize) -> (Vec<Part>, usize) {
        let mut slot = 0;
        let parts = self.populations.iter().zip(&plan.models).map(|(c, m)| {
            let (low, size) = (c.at[part], c.at[part + 1] - c.at[part]);
            let cut = |i: usize| low + (u64::from(size) * i as u64 / count as u64) as u32;
            let part = Part { low: cut(index), high: cut(index + 1), slot, order: c.order.clone() };
            slot += part.count() * m.ports().len() as u32;
            part
        });
        let parts = parts.collect();
        (parts, slot as usize)
    }

    /// The network's numbers of the cells of a part, rising.
    pub fn numbers<'a>(&'a self, plan: &'a Plan, part: usize) -> impl Iterator<Item = u32> + 'a {
        let first = plan.first.iter().enumerate();
        first.flat_map(move |(p, first)| self.own(part, p).iter().map(move |cell| *first as u32 + cell))
    }

    /// As bytes that [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = (self.parts as u32).to_le_bytes().to_vec();
        for (p, cuts) in self.populations.iter().enumerate() {
            b.push(u8::from(cuts.order.is_some()));
            match &cuts.order {
                None => b.extend(cuts.at.iter().flat_map(|at| at.to_le_bytes())),
                Some(_) => b.extend(self.owners(p).into_iter().flat_map(|owner| (owner as u16).to_le_bytes())),
            }
        }
        b
    }

    /// Nothing where the bytes are no layout of this network.
    pub fn from_bytes(network: &Network, bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(4)?;
        let parts = u32::from_le_bytes(head.try_into().ok()?) as usize;
        let mut owners = Vec::new();
        if parts == 0 || parts > MAX_PARTS {
            return None;
        }
        for p in &network.populations {
            let (kind, more) = rest.split_first()?;
            let size = p.size as usize;
            let width = if *kind == 0 { 4 * (parts + 1) } else { 2 * size };
            let (own, more) = more.split_at_checked(width)?;
            rest = more;
            if *kind == 0 {
                let at: Vec<u32> = own.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                if at[0] != 0 || !at.is_sorted() || at[parts] != p.size {
                    return None;
                }
                let of = at.windows(2).enumerate();
                let of = of.flat_map(|(i, w)| std::iter::repeat_n(i as u32, (w[1] - w[0]) as usize));
                owners.push(of.collect());
            } else {
                owners.push(own.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]).into()).collect());
            }
        }
        Self::from_owners(network, parts, &owners).ok().filter(|_| rest.is_empty())
    }
}
