//! Random numbers of networks and drives. Each is a function of the seed and of what it is for (projection and draw,
//! neuron and step), never of who draws it or in which order, so that any number of threads, and a GPU, draw the same.

use super::math;
use crate::rng::philox4x32;

/// What a draw is for: the last word of Philox's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Which cells a synapse joins.
    Pair = 1,
    /// A synapse's weight and delay.
    Efficacy = 2,
    /// The arrivals of a Poisson drive.
    Drive = 3,
    /// Parameters and initial states.
    Cell = 4,
    /// The spikes of a Poisson source.
    Source = 5,
    /// Which sites of a box hold a cell.
    Site = 6,
    /// The rounds of the permutation of pairs.
    Permutation = 7,
    /// How old cells are at the start.
    Age = 8,
    /// The parameters of a child.
    Mutation = 9,
    /// The state that a child begins with.
    Birth = 10,
    /// What is added to the weight of a synapse of a child, where it does not change by itself.
    Weight = 11,
    /// Likewise of one that does.
    Strength = 12,
}

/// 128 uniform bits for number `index` of `owner` (a projection, a drive, a population).
#[inline(always)]
pub fn draw(seed: u64, purpose: Purpose, owner: u32, index: u64) -> [u32; 4] {
    let counter = [index as u32, (index >> 32) as u32, owner, purpose as u32];
    philox4x32(counter, [seed as u32, (seed >> 32) as u32])
}

/// `bits` mapped to 0..count; each value's probability is within 2^-32 of 1/count.
#[inline(always)]
pub fn below(bits: u32, count: u32) -> u32 {
    ((u64::from(bits) * u64::from(count)) >> 32) as u32
}

/// Uniform in (0, 1) with 53 bits: never 0, never 1.
pub fn uniform(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    (bits as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

/// Numbers of one owner one after the other; for what only the host draws.
#[derive(Debug, Clone)]
pub struct Stream {
    seed: u64,
    purpose: Purpose,
    owner: u32,
    index: u64,
    left: u32,
    block: [u32; 4],
}

impl Stream {
    /// The stream that begins at number `index` of `owner`.
    pub fn new(seed: u64, purpose: Purpose, owner: u32, index: u64) -> Self {
        Self { seed, purpose, owner, index, left: 0, block: [0; 4] }
    }
    /// 32 uniform bits.
    pub fn bits(&mut self) -> u32 {
        if self.left == 0 {
            self.block = draw(self.seed, self.purpose, self.owner, self.index);
            self.index += 1;
            self.left = 4;
        }
        self.left -= 1;
        self.block[3 - self.left as usize]
    }
    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        let high = self.bits();
        uniform(high, self.bits())
    }
    /// Standard normal (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (u, v) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let s = u * u + v * v;
            if s < 1.0 && s > 0.0 {
                return u * (-2.0 * math::ln(s) / s).sqrt();
            }
        }
    }
    /// Uniform in 0..count, which is not 0.
    pub fn below(&mut self, count: u32) -> u32 {
        below(self.bits(), count)
    }
}

/// How many draws `pairs` makes at a time.
pub const BATCH: usize = 256;

/// The words of draws `first .. first + BATCH` of `owner`: `words[w][i]` is word w of draw `first + i`.
#[inline(always)]
fn batch_body(seed: u64, purpose: u32, owner: u32, first: u64, words: &mut [[u32; BATCH]; 4]) {
    rounds(seed, purpose, owner, words, |i| first.wrapping_add(i as u64));
}

/// The words of draws `high << 32 | low[i]`, of at most [`BATCH`].
#[inline(always)]
fn listed_body(seed: u64, purpose: u32, owner: u32, high: u64, low: &[u32], words: &mut [[u32; BATCH]; 4]) {
    let mut all = [0; BATCH];
    all[..low.len()].copy_from_slice(low);
    rounds(seed, purpose, owner, words, |i| high << 32 | u64::from(all[i]));
}

#[inline(always)]
fn rounds(seed: u64, purpose: u32, owner: u32, words: &mut [[u32; BATCH]; 4], number: impl Fn(usize) -> u64) {
    const LANES: usize = 16;
    const M: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for at in (0..BATCH).step_by(LANES) {
        let mut c = [[0u32; LANES]; 4];
        for l in 0..LANES {
            let index = number(at + l);
            c[0][l] = index as u32;
            c[1][l] = (index >> 32) as u32;
            c[2][l] = owner;
            c[3][l] = purpose;
        }
        let mut k = [seed as u32, (seed >> 32) as u32];
        for _ in 0..10 {
            let mut next = [[0u32; LANES]; 4];
            for l in 0..LANES {
                let a = M[0] * u64::from(c[0][l]);
                let b = M[1] * u64::from(c[2][l]);
                next[0][l] = (b >> 32) as u32 ^ c[1][l] ^ k[0];
                next[1][l] = b as u32;
                next[2][l] = (a >> 32) as u32 ^ c[3][l] ^ k[1];
                next[3][l] = a as u32;
            }
            c = next;
            k = [k[0].wrapping_add(W[0]), k[1].wrapping_add(W[1])];
        }
        for w in 0..4 {
            words[w][at..at + LANES].copy_from_slice(&c[w]);
        }
    }
}

#[allow(unsafe_code)]
mod wide {
    use super::{BATCH, batch_body, listed_body};
    crate::dispatch!(
        /// [`draw`](super::draw) of [`BATCH`] numbers in a row, word by word.
        pub fn batch(seed: u64, purpose: u32, owner: u32, first: u64, words: &mut [[u32; BATCH]; 4]) = batch_body
    );
    crate::dispatch!(
        /// [`draw`](super::draw) of the numbers `high << 32 | low[i]`, of at most [`BATCH`], word by word.
        pub fn listed(
            seed: u64,
            purpose: u32,
            owner: u32,
            high: u64,
            low: &[u32],
            words: &mut [[u32; BATCH]; 4],
        ) = listed_body
    );
}
pub use wide::{batch, listed};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_its_draws() {
        let mut words = [[0; BATCH]; 4];
        for first in [0, 77, u64::from(u32::MAX) - 100] {
            batch(0x1234_5678_9abc_def0, Purpose::Pair as u32, 9, first, &mut words);
            for i in 0..BATCH {
                let one = draw(0x1234_5678_9abc_def0, Purpose::Pair, 9, first + i as u64);
                assert_eq!([0, 1, 2, 3].map(|w| words[w][i]), one);
            }
        }
        let low = [5, 9, u32::MAX, 0];
        listed(77, Purpose::Drive as u32, 3, 6, &low, &mut words);
        for (i, low) in low.iter().enumerate() {
            let one = draw(77, Purpose::Drive, 3, 6 << 32 | u64::from(*low));
            assert_eq!([0, 1, 2, 3].map(|w| words[w][i]), one);
        }
    }

    #[test]
    fn streams_have_the_moments_of_their_distributions() {
        let mut s = Stream::new(3, Purpose::Cell, 0, 0);
        let n = 100_000;
        let x: Vec<f64> = (0..n).map(|_| s.normal()).collect();
        let mean = x.iter().sum::<f64>() / f64::from(n);
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        // Standard errors 0.0032 and 0.0045; five of each.
        assert!(mean.abs() < 0.016 && (variance - 1.0).abs() < 0.023, "{mean} {variance}");
        let below = x.iter().filter(|x| **x < 1.0).count() as f64 / f64::from(n);
        assert!((below - math::normal_cdf(1.0)).abs() < 5.0 * 0.0012, "{below}");
        let uniform: f64 = (0..n).map(|_| s.uniform()).sum::<f64>() / f64::from(n);
        assert!((uniform - 0.5).abs() < 5.0 * 0.000_92, "{uniform}");
    }
}
