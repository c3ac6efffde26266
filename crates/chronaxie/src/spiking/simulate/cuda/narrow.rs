//! Synapses of four bytes where slot, delay and weight have more than 32 bits: delays are counted in as many numbers as there are,
//! and weights are numbered in two windows, one of each sign, where nearly all of them lie. A weight beyond them is two synapses, of
//! the same slot and delay: one within its window, and one that makes up for the rest. What synapses add are whole numbers, so nobody
//! can tell.
//!
//! A million cells with a thousand synapses each at dt 1 ms on 132 multiprocessors: 7,577 slots (13 bits; both currents of
//! its cells are one) and 20 delays leave 26,214 numbers for weights, of which there are 3,200 and 16,000 of either sign: all have one. With
//! twice the slots 2,432 and 10,417 of them would lie in the windows, and 12 synapses of a million have two words.

use crate::spiking::device::Fields;
use crate::spiking::plan::Plan;

/// Numbers on either side of nothing by which a weight goes beyond its window.
pub(super) const BEYOND: u32 = 128;
/// The most synapses that may have two words.
const MOST_IN_TWO: f64 = 1.0 / 64.0;
/// Weights are 16 bits.
const CODES: usize = 1 << 16;
const ZERO: usize = CODES / 2;

/// How such synapses are packed, as `Narrow` of network.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Narrow {
    /// How many delays there are, two at the least.
    pub delays: u32,
    /// The shortest delay, in steps.
    pub shortest: u32,
    /// The number of the first negative weight; that of a weight of nothing is 0, and that of the first positive one 1.
    pub negative: u32,
    /// The number of the first that goes beyond a window.
    pub beyond: u32,
    /// What is added to the number of a positive weight.
    pub low: i32,
    /// What is added to the number of a negative weight.
    pub high: i32,
    /// What a number beyond the windows counts in.
    pub scale: i32,
    /// How many synapses of a million have two words.
    pub in_two: u32,
}

/// Weights of one sign, ends included, if there are any.
type Window = Option<(usize, usize)>;

fn count(window: Window) -> u64 {
    window.map_or(0, |(low, high)| (high - low + 1) as u64)
}

/// How often each weight is expected, by weight + [`ZERO`]; `None` where some are in lists.
fn expected(plan: &Plan) -> Option<Vec<f64>> {
    let mut all = vec![0.0; CODES];
    for (projection, efficacy) in plan.efficacies.iter().enumerate() {
        let (weight, synapses) = (efficacy.weight.as_ref()?.codes()?, plan.expected(projection));
        let mut before = 0.0;
        for (k, code) in (weight.least()..=weight.greatest()).enumerate() {
            let below = weight.thresholds().get(k).map_or(1.0, |t| f64::from(*t) / 4_294_967_296.0);
            // What 32 bits never draw may have a place in the table.
            *all.get_mut((code + ZERO as i32) as usize)? += synapses * (below - before).max(1e-12);
            before = below;
        }
    }
    Some(all)
}

impl Narrow {
    /// The windows that hold the most synapses of `plan`, with slots of so many bits; `None` where more than one in 64 would have two
    /// words, or where weights are not known before synapses are made.
    pub fn choose(plan: &Plan, slot_bits: u32) -> Option<Self> {
        let delays = (plan.max_delay - plan.min_delay + 1).max(2);
        let above = 1u64 << 32u32.checked_sub(slot_bits)?;
        // As many or some more, so that a product by 2^32 / delays, rounded up, has the quotient: what is too much in all stays below 1.
        let excess = |delays: u32| (1u64 << 32).next_multiple_of(delays.into()) - (1 << 32);
        let delays = (delays..=delays.next_power_of_two()).find(|n| above * excess(*n) < 1 << 32)?;
        let numbers = above / u64::from(delays);
        let expected = expected(plan)?;
        let ends = |mut some: std::ops::Range<usize>| -> Window {
            let low = some.find(|k| expected[*k] > 0.0)?;
            Some((low, some.rfind(|k| expected[*k] > 0.0).unwrap_or(low)))
        };
        // One after the other, so that the outermost is known.
        let whole = [ends(ZERO + 1..CODES), ends(0..ZERO)];
        let mut windows = whole;
        let room = numbers.checked_sub(1)?;
        if windows.iter().map(|w| count(*w)).sum::<u64>() > room {
            let room = room.checked_sub(u64::from(2 * BEYOND + 1))?;
            // What is expected least goes first.
            while windows.iter().map(|w| count(*w)).sum::<u64>() > room {
                let outer = windows.iter_mut().filter(|w| count(**w) > 1).flatten().flat_map(|(low, high)| {
                    let (at_low, at_high) = (expected[*low], expected[*high]);
                    [(at_low, true, low), (at_high, false, high)]
                });
                let (_, is_low, end) = outer.min_by(|a, b| a.0.total_cmp(&b.0))?;
                *end = if is_low { *end + 1 } else { *end - 1 };
            }
        }
        let sums = |window: Window| window.map_or(0.0, |(low, high)| expected[low..=high].iter().sum::<f64>());
        let all: f64 = whole.iter().map(|w| sums(*w)).sum();
        let within: f64 = windows.iter().map(|w| sums(*w)).sum();
        let in_two = 1.0 - within / all.max(f64::MIN_POSITIVE);
        let excess = whole.iter().zip(windows).filter_map(|(all, own)| all.zip(own));
        let excess = excess.map(|(all, own)| (own.0 - all.0).max(all.1 - own.1)).max().unwrap_or(0) as u32;
        let scale = excess.div_ceil(BEYOND).max(1).next_power_of_two();
        // What is left of a weight beyond its window lies in it.
        let is_wide = |(all, own): (&Window, Window)| all == &own || count(own) >= u64::from(scale);
        if in_two > MOST_IN_TWO || !whole.iter().zip(windows).all(is_wide) {
            return None;
        }
        let [positive, negative] = windows;
        let first_negative = 1 + count(positive) as u32;
        let begin = |window: Window| window.map_or(0, |(low, _)| low as i32 - ZERO as i32);
        Some(Self {
            delays,
            shortest: plan.min_delay,
            negative: first_negative,
            beyond: first_negative + count(negative) as u32,
            low: begin(positive) - 1,
            high: begin(negative) - first_negative as i32,
            scale: scale as i32,
            in_two: (1e6 * in_two).ceil().max(0.0) as u32,
        })
    }

    /// Words of a synapse, about.
    pub fn words(&self) -> f64 {
        1.0 + f64::from(self.in_two) * 1e-6
    }

    /// The struct of network.cuh, with a ring of so many steps.
    pub(super) fn fields(this: Option<&Self>, ring: usize, fields: Fields) -> Fields {
        let Some(n) = this else { return (0..10).fold(fields, |f, _| f.u32(0)) };
        let turns = ((1u64 << 32) / ring.max(2) as u64) as u32;
        let inverse = (1u64 << 32).div_ceil(n.delays.into()) as u32;
        let middle = n.beyond + BEYOND;
        [
            n.delays,
            n.shortest,
            inverse,
            n.negative,
            n.beyond,
            n.low as u32,
            n.high as u32,
            middle,
            n.scale as u32,
            turns,
        ]
        .into_iter()
        .fold(fields, Fields::u32)
    }
}
