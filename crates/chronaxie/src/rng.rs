//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A draw is a pure function of (seed, stream, counter), so the same seed gives the same numbers on every machine, in
//! any order and on any number of threads, and a state is two integers in a checkpoint.

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// Ten rounds of Philox 4x32 on `counter` under `key`.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(W0), k[1].wrapping_add(W1)];
        }
        let a = u64::from(M0) * u64::from(c[0]);
        let b = u64::from(M1) * u64::from(c[2]);
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
    }
    c
}

/// A sequence of random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    seed: u64,
    stream: u64,
    position: u64,
    block: [u32; 4],
}

impl Rng {
    /// The sequence that `seed` and `stream` name; different streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, position: 0, block: [0; 4] }
    }
    /// How many 32-bit numbers have been drawn: with seed and stream, the whole state.
    pub fn position(&self) -> u64 {
        self.position
    }
    /// Goes to an earlier or later [`position`](Self::position).
    pub fn seek(&mut self, position: u64) {
        self.position = position;
        if !position.is_multiple_of(4) {
            self.refill(position / 4);
        }
    }
    fn refill(&mut self, block: u64) {
        let counter = [block as u32, (block >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        self.block = philox4x32(counter, [self.seed as u32, (self.seed >> 32) as u32]);
    }
    /// 32 uniform bits.
    pub fn next_u32(&mut self) -> u32 {
        let lane = (self.position % 4) as usize;
        if lane == 0 {
            self.refill(self.position / 4);
        }
        self.position += 1;
        self.block[lane]
    }
    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }
    /// Uniform in [0, 1), with 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
    /// Uniform in [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }
    /// Uniform in 0..count without bias. `count` 0 gives 0.
    pub fn below(&mut self, count: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        // Lemire's rejection: the low half of the product decides whether the draw is in the biased remainder.
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(count);
            if wide as u64 >= count.wrapping_neg() % count {
                return (wide >> 64) as u64;
            }
        }
    }
    /// Standard normal (Box-Muller; two uniforms a draw, so that the position alone is the state).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// A Fisher-Yates shuffle in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the authors published with Random123.
    #[test]
    fn philox_gives_the_published_vectors() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_position_is_the_whole_state() {
        let mut a = Rng::new(7, 3);
        let skipped: Vec<u32> = (0..11).map(|_| a.next_u32()).collect();
        let next: Vec<u32> = (0..9).map(|_| a.next_u32()).collect();
        let mut b = Rng::new(7, 3);
        b.seek(11);
        assert_eq!(next, (0..9).map(|_| b.next_u32()).collect::<Vec<_>>());
        assert_ne!(skipped, (0..11).map(|_| Rng::new(7, 4).next_u32()).collect::<Vec<_>>());
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut r = Rng::new(1, 0);
        let n = 100_000;
        let normal: Vec<f64> = (0..n).map(|_| r.normal()).collect();
        let mean = normal.iter().sum::<f64>() / n as f64;
        let var = normal.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        // Standard errors: 0.0032 for the mean, 0.0045 for the variance; five of each.
        assert!(mean.abs() < 0.016, "{mean}");
        assert!((var - 1.0).abs() < 0.023, "{var}");
        let mut counts = [0usize; 7];
        (0..70_000).for_each(|_| counts[r.below(7) as usize] += 1);
        assert!(counts.iter().all(|&c| (c as f64 - 10_000.0).abs() < 5.0 * 92.6), "{counts:?}");
    }
}
