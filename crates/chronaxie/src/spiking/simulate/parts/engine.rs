//! The engine of a network whose parts run elsewhere: part 0 here, which says what is done, and [`serve`] in each of the others,
//! which does it.

use super::gather::Link;
use super::{Keys, PartEngine, join, merged, split, state_bytes, state_from_bytes};
use crate::spiking::connect::{Synapses, list};
use crate::spiking::partition::Layout;
use crate::spiking::plan::Plan;
use crate::spiking::simulate::learned::joined;
use crate::spiking::simulate::{Engine, Spike, State, Weights};
use crate::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a part is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Ask {
    /// u64 steps; answered by the events so far, and by a byte: whether somebody asked that process to stop.
    Advance = 1,
    /// Answered by its bytes.
    State,
    /// Answered by what its synapses are known by.
    Keys,
    /// A state's bytes.
    Restore,
    /// Answered by counts of its weights.
    Weights,
    /// u32 projection; answered by its synapses.
    Known,
    /// u32 population, u32 cell; answered by its variables.
    Cell,
    /// Answered by the number of synapses.
    Synapses,
    /// The run is over.
    End,
}

impl Ask {
    const ALL: [Self; 9] = [
        Self::Advance,
        Self::State,
        Self::Keys,
        Self::Restore,
        Self::Weights,
        Self::Known,
        Self::Cell,
        Self::Synapses,
        Self::End,
    ];
}

/// Part 0 of a network, and what the others are told and asked.
pub struct PartsEngine<'a> {
    plan: &'a Plan,
    layout: Layout,
    fingerprint: [u8; 32],
    own: Box<dyn PartEngine + 'a>,
    link: Mutex<Box<dyn Link + 'a>>,
    words: String,
    synapses: u64,
    events: u64,
    asked: Option<usize>,
    broken: bool,
}

fn u64_of(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

fn nonsense(part: usize) -> Error {
    Error::value(format!("part {part} answers what was not asked"))
}

fn answer(link: &mut dyn Link, part: usize) -> Result<Vec<u8>> {
    let mut bytes = link.receive(part)?;
    match bytes.first() {
        Some(0) => {
            bytes.remove(0);
            Ok(bytes)
        }
        Some(1) => Err(Error::value(format!("part {part}: {}", String::from_utf8_lossy(&bytes[1..])))),
        _ => Err(nonsense(part)),
    }
}

impl<'a> PartsEngine<'a> {
    /// Goes on when all parts are built; `words` says how the network is cut, as people read it.
    ///
    /// # Errors
    /// Where a part cannot be built.
    pub fn new(
        plan: &'a Plan,
        layout: Layout,
        fingerprint: [u8; 32],
        own: Box<dyn PartEngine + 'a>,
        link: Box<dyn Link + 'a>,
        words: String,
    ) -> Result<Self> {
        let synapses = own.synapses();
        let (link, events, asked, broken) = (Mutex::new(link), 0, None, false);
        let mut all = Self { plan, layout, fingerprint, own, link, words, synapses, events, asked, broken };
        let others = all.ask_all(Ask::Synapses, &[]).inspect_err(|e| all.lock().fail(e));
        let others = match others {
            Ok(others) => others,
            Err(e) => {
                all.broken = true;
                return Err(e);
            }
        };
        for (i, bytes) in others.iter().enumerate() {
            all.synapses += u64_of(bytes).ok_or_else(|| nonsense(i + 1))?;
        }
        Ok(all)
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Link + 'a>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each of the other parts says to this.
    fn ask_all(&self, ask: Ask, more: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut link = self.lock();
        let message = [&[ask as u8], more].concat();
        (1..self.layout.parts()).try_for_each(|part| link.send(part, &message))?;
        (1..self.layout.parts()).map(|part| answer(&mut **link, part)).collect()
    }

    fn keys(&self) -> Result<Vec<Keys>> {
        let mut keys = vec![self.own.keys()?];
        if self.plan.learning.is_some() {
            for (i, bytes) in self.ask_all(Ask::Keys, &[])?.into_iter().enumerate() {
                keys.push(Keys::from_bytes(&bytes).ok_or_else(|| nonsense(i + 1))?);
            }
        }
        Ok(keys)
    }

    fn step_all(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        {
            let mut link = self.lock();
            let message = [&[Ask::Advance as u8][..], &steps.to_le_bytes()].concat();
            (1..self.layout.parts()).try_for_each(|part| link.send(part, &message))?;
        }
        self.own.advance(steps, spikes)?;
        let mut events = self.own.events();
        let mut asked = self.asked;
        let mut link = self.lock();
        for part in 1..self.layout.parts() {
            let bytes = answer(&mut **link, part)?;
            let (stop, count) = bytes.split_last().ok_or_else(|| nonsense(part))?;
            events += u64_of(count).ok_or_else(|| nonsense(part))?;
            asked = asked.or((*stop != 0).then_some(part));
        }
        drop(link);
        (self.events, self.asked) = (events, asked);
        Ok(())
    }
}

impl Drop for PartsEngine<'_> {
    fn drop(&mut self) {
        if !self.broken {
            let _ = self.ask_all(Ask::End, &[]);
            self.lock().done();
        }
    }
}

impl Engine for PartsEngine<'_> {
    fn step(&self) -> u64 {
        self.own.step()
    }

    fn advance(&mut self, steps: u64, spikes: &mut Vec<Spike>) -> Result<()> {
        let done = self.step_all(steps, spikes);
        if let Err(e) = &done {
            self.broken = true;
            self.lock().fail(e);
        }
        done
    }

    fn state(&self) -> Result<State> {
        let mut states = vec![self.own.state()?];
        for (i, bytes) in self.ask_all(Ask::State, &[])?.into_iter().enumerate() {
            states.push(state_from_bytes(self.plan, &self.layout, i + 1, self.fingerprint, &bytes)?);
        }
        join(self.plan, &self.layout, states, &self.keys()?)
    }

    fn order(&self) -> Result<Option<(&Plan, Keys)>> {
        Ok(Some((self.plan, merged(self.plan, &self.keys()?)?)))
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let states = split(self.plan, &self.layout, state, &self.keys()?)?;
        {
            let mut link = self.lock();
            for (part, state) in states.iter().enumerate().skip(1) {
                let bytes = state_bytes(&self.layout, part, self.fingerprint, state);
                link.send(part, &[&[Ask::Restore as u8][..], &bytes].concat())?;
            }
        }
        self.own.restore(&states[0])?;
        let mut link = self.lock();
        (1..self.layout.parts()).try_for_each(|part| answer(&mut **link, part).map(drop))
    }

    fn cell(&self, population: usize, cell: u32) -> Result<Vec<f32>> {
        let part = self.layout.owner(population, cell);
        if part == 0 {
            return self.own.cell(population, cell);
        }
        let mut link = self.lock();
        link.send(part, &[&[Ask::Cell as u8][..], &(population as u32).to_le_bytes(), &cell.to_le_bytes()].concat())?;
        let bytes = answer(&mut **link, part)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn synapses(&self) -> u64 {
        self.synapses
    }

    fn weights(&self) -> Result<Vec<Weights>> {
        if self.plan.learning.is_none() {
            return Ok(Vec::new());
        }
        let mut counts = vec![self.own.counted()?];
        for bytes in self.ask_all(Ask::Weights, &[])? {
            counts.push(bytes.chunks_exact(8).filter_map(u64_of).collect());
        }
        joined(self.plan, &counts).ok_or_else(|| Error::value("the weights of the parts do not fit together"))
    }

    fn table(&self, projection: usize) -> Result<Synapses> {
        list::changed(self.plan, projection, || {
            let mut known = self.own.known(projection)?;
            for bytes in self.ask_all(Ask::Known, &(projection as u32).to_le_bytes())? {
                let word = |b: &[u8], at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
                let one = |b: &[u8]| ((word(b, 0), word(b, 4) as u16, word(b, 8)), word(b, 12));
                known.extend(bytes.chunks_exact(16).map(one));
            }
            Ok(known)
        })
    }

    fn variant(&self) -> &'static str {
        "parts"
    }

    fn events(&self) -> u64 {
        self.events
    }

    fn asked_to_stop(&self) -> Option<usize> {
        self.asked
    }

    fn config(&self) -> String {
        let every = match self.own.most_steps() {
            _ if self.layout.parts() < 2 => String::new(),
            1 => ", which exchange spikes every step".to_owned(),
            steps => format!(", which exchange spikes every {steps} steps"),
        };
        format!("{}{every}; {} here", self.words, self.own.config())
    }
}

/// Does what part 0 asks part `part` to do, until the run is over. `engine` has an exchange; part 0 hears after each of its chunks
/// whether this process was `asked` to stop.
///
/// # Errors
/// Where a step or a state fails, which part 0 is told; where part 0 has gone.
pub fn serve(
    plan: &Plan,
    layout: &Layout,
    part: usize,
    fingerprint: [u8; 32],
    engine: &mut dyn PartEngine,
    link: &mut dyn Link,
    asked: &dyn Fn() -> bool,
) -> Result<()> {
    loop {
        let message = link.receive(0)?;
        let (ask, more) = message.split_first().map_or((0, &[][..]), |(ask, more)| (*ask, more));
        let Some(ask) = Ask::ALL.into_iter().find(|a| *a as u8 == ask) else {
            return Err(Error::value(format!("part {part} does not know what it is asked for ({ask})")));
        };
        let mut work = || -> Result<Vec<u8>> {
            let word = |at: usize| more.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            Ok(match ask {
                Ask::Advance => {
                    let steps = u64_of(more).ok_or_else(|| Error::value("a number of steps is cut off"))?;
                    engine.advance(steps, &mut Vec::new())?;
                    engine.events().to_le_bytes().into_iter().chain([u8::from(asked())]).collect()
                }
                Ask::State => state_bytes(layout, part, fingerprint, &engine.state()?),
                Ask::Keys => engine.keys()?.to_bytes(),
                Ask::Restore => {
                    engine.restore(&state_from_bytes(plan, layout, part, fingerprint, more)?)?;
                    Vec::new()
                }
                Ask::Weights => engine.counted()?.into_iter().flat_map(u64::to_le_bytes).collect(),
                Ask::Known => {
                    let projection = word(0) as usize;
                    if projection >= plan.network.projections.len() {
                        return Err(Error::value(format!("there is no projection {projection}")));
                    }
                    let one = |((s, d, t), w): list::Known| [s, d.into(), t, w].into_iter().flat_map(u32::to_le_bytes);
                    engine.known(projection)?.into_iter().flat_map(one).collect()
                }
                Ask::Cell => {
                    let population = word(0) as usize;
                    if population >= plan.models.len() {
                        return Err(Error::value(format!("there is no population {population}")));
                    }
                    engine.cell(population, word(4))?.into_iter().flat_map(f32::to_le_bytes).collect()
                }
                Ask::Synapses => engine.synapses().to_le_bytes().to_vec(),
                Ask::End => Vec::new(),
            })
        };
        let result = work();
        if ask == Ask::End {
            link.done();
        }
        match &result {
            Ok(bytes) => link.send(0, &[&[0][..], bytes].concat())?,
            Err(e) => {
                link.fail(e);
                let _ = link.send(0, &[&[1][..], e.to_string().as_bytes()].concat());
            }
        }
        result?;
        if ask == Ask::End {
            return Ok(());
        }
    }
}
