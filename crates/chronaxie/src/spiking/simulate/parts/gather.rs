//! All parts have all spikes: a part tells the first part of its node, the first parts of all nodes tell each other, and each
//! tells its own. With one node that is a star, with a node a part everyone tells everyone.

use super::wire::{Members, bundle, pack, packets, unpack};
use super::{Exchange, Spike};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Takes bytes from this part to others, in order.
pub trait Link: Send {
    /// Sends to part `to`.
    ///
    /// # Errors
    /// Where it has gone.
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()>;
    /// The next bytes from part `from`.
    ///
    /// # Errors
    /// Where it has gone, or says nothing for long.
    fn receive(&mut self, from: usize) -> Result<Vec<u8>>;
    /// From now on it is no fault that others go.
    fn done(&mut self) {}
    /// Tells all that the run cannot go on.
    fn fail(&mut self, error: &Error) {
        let _ = error;
    }
    /// Why the run cannot go on, where that is known.
    fn fate(&self) -> Option<Error> {
        None
    }
}

/// The parts of node `node` of `nodes`.
pub fn node(parts: usize, nodes: usize, node: usize) -> Range<usize> {
    let cut = |i: usize| parts * i / nodes;
    cut(node)..cut(node + 1)
}

/// The parts that a part sends to and hears from.
pub fn neighbours(parts: usize, nodes: usize, part: usize) -> Vec<usize> {
    let nodes = nodes.clamp(1, parts);
    let own = (0..nodes).map(|n| node(parts, nodes, n)).find(|n| n.contains(&part)).unwrap_or(0..parts);
    if part != own.start {
        return vec![own.start];
    }
    let leaders = (0..nodes).map(|n| node(parts, nodes, n).start).filter(|l| *l != part);
    own.clone().skip(1).chain(leaders).collect()
}

/// An exchange over links.
pub struct AllGather<L> {
    link: L,
    members: Members,
    part: usize,
    nodes: usize,
}

impl<L: Link> AllGather<L> {
    /// That of a part; the parts lie on so many nodes, each with parts that follow each other.
    pub fn new(link: L, members: Members, part: usize, nodes: usize) -> Self {
        let nodes = nodes.clamp(1, members.layout().parts());
        Self { link, members, part, nodes }
    }

    fn all(&mut self, packet: &[u8]) -> Result<Vec<u8>> {
        let parts = self.members.layout().parts();
        let mut all = Vec::new();
        bundle(&mut all, packet);
        let own = (0..self.nodes).map(|n| node(parts, self.nodes, n)).find(|n| n.contains(&self.part));
        let own = own.unwrap_or(0..parts);
        if self.part != own.start {
            self.link.send(own.start, &all)?;
            return self.link.receive(own.start);
        }
        for member in own.clone().skip(1) {
            all.extend(self.link.receive(member)?);
        }
        let here = all.clone();
        let leaders = (0..self.nodes).map(|n| node(parts, self.nodes, n).start).filter(|l| *l != self.part);
        let leaders: Vec<usize> = leaders.collect();
        leaders.iter().try_for_each(|other| self.link.send(*other, &here))?;
        for other in leaders {
            all.extend(self.link.receive(other)?);
        }
        own.skip(1).try_for_each(|member| self.link.send(member, &all))?;
        Ok(all)
    }
}

impl<L: Link> Exchange for AllGather<L> {
    fn agree(&mut self, steps: u64) -> Result<u64> {
        let said = self.share(&steps.to_le_bytes())?;
        let steps =
            said.iter().map(|b| b.as_slice().try_into().map(u64::from_le_bytes).ok().filter(|steps| *steps > 0));
        let least = steps.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min());
        least.ok_or_else(|| Error::value("what parts say of how often they exchange makes no sense"))
    }

    fn share(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.all(&[&(self.part as u32).to_le_bytes()[..], own].concat())?;
        let mut said: Vec<Option<Vec<u8>>> = vec![None; self.members.layout().parts()];
        for packet in packets(&all)? {
            let (part, bytes) = packet.split_at_checked(4).unwrap_or_default();
            let part = part.try_into().map_or(usize::MAX, |b| u32::from_le_bytes(b) as usize);
            match said.get_mut(part) {
                Some(place @ None) => *place = Some(bytes.to_vec()),
                _ => return Err(Error::value("what parts say of themselves makes no sense")),
            }
        }
        match said.iter().position(Option::is_none) {
            Some(part) => Err(Error::value(format!("part {part} says nothing of itself"))),
            None => Ok(said.into_iter().flatten().collect()),
        }
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn fate(&self) -> Option<Error> {
        self.link.fate()
    }

    fn exchange(&mut self, step: u64, own: &[Spike]) -> Result<Vec<Spike>> {
        let packet = pack(&self.members, self.part, step, own)?;
        let all = self.all(&packet)?;
        let mut seen = vec![false; self.members.layout().parts()];
        let mut spikes = Vec::new();
        for packet in packets(&all)? {
            let before = spikes.len();
            let from = unpack(&self.members, step, packet, &mut spikes)?;
            if std::mem::replace(&mut seen[from], true) {
                return Err(Error::value(format!("part {from} says twice what fired before step {step}")));
            }
            if from == self.part {
                spikes.truncate(before);
            }
        }
        match seen.iter().position(|seen| !seen) {
            Some(part) => Err(Error::value(format!("nobody says what fired in part {part} before step {step}"))),
            None => Ok(spikes),
        }
    }
}

/// Links between the threads of a process.
pub struct Channels {
    part: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    patience: Duration,
}

impl Channels {
    /// Those of each of `parts` parts, which wait so long for each other.
    pub fn new(parts: usize, patience: Duration) -> Vec<Self> {
        let mut all: Vec<Self> =
            (0..parts).map(|part| Self { part, to: Vec::new(), from: Vec::new(), patience }).collect();
        for (i, j) in (0..parts).flat_map(|i| (0..parts).map(move |j| (i, j))) {
            let (send, receive) = channel();
            all[i].to.push(send);
            all[j].from.push(receive);
        }
        all
    }
}

impl Link for Channels {
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        let gone = |_| Error::lost(format!("part {to} has gone, which part {} tells what fired", self.part));
        self.to[to].send(bytes.to_vec()).map_err(gone)
    }
    fn receive(&mut self, from: usize) -> Result<Vec<u8>> {
        self.from[from].recv_timeout(self.patience).map_err(|e| match e {
            RecvTimeoutError::Disconnected => {
                Error::lost(format!("part {from} has gone, for which part {} waits", self.part))
            }
            RecvTimeoutError::Timeout => Error::lost(format!(
                "part {from} has said nothing for {:.0} s, for which part {} waits",
                self.patience.as_secs_f64(),
                self.part
            )),
        })
    }
}
