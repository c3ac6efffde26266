//! The two generators of NumPy that ncps draws wirings from, number for number.
//!
//! * [`Mt19937`] is `numpy.random.RandomState(seed)`: the Mersenne twister of Matsumoto and Nishimura (ACM TOMACS 8, 1998),
//!   bounded draws by masked rejection, samples as the head of a Fisher-Yates permutation. NumPy has frozen this stream.
//! * [`Pcg64`] is `numpy.random.default_rng(seed)`: PCG XSL-RR 128/64 of O'Neill (HMC-CS-2014-0905), seeded through
//!   `SeedSequence`, bounded draws by Lemire's method (ACM TOMACS 29, 2019), samples by Floyd's algorithm or a partial
//!   shuffle. NumPy may change what `Generator` draws; the tests hold the stream of version 2.4.

const MT_SIZE: usize = 624;
const MT_SHIFT: usize = 397;

/// NumPy's `RandomState`.
pub(super) struct Mt19937 {
    state: [u32; MT_SIZE],
    position: usize,
}

impl Mt19937 {
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [seed; MT_SIZE];
        for i in 1..MT_SIZE {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Self { state, position: MT_SIZE }
    }
    fn twist(&mut self) {
        for i in 0..MT_SIZE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % MT_SIZE] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + MT_SHIFT) % MT_SIZE] ^ (y >> 1) ^ odd;
        }
        self.position = 0;
    }
    fn next_u32(&mut self) -> u32 {
        if self.position == MT_SIZE {
            self.twist();
        }
        let mut y = self.state[self.position];
        self.position += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
    /// Uniform in 0 ..= max, which draws nothing where max is 0.
    fn up_to(&mut self, max: u32) -> u32 {
        if max == 0 {
            return 0;
        }
        let mask = u32::MAX >> max.leading_zeros();
        loop {
            let value = self.next_u32() & mask;
            if value <= max {
                return value;
            }
        }
    }
    /// One of `items`: `RandomState.choice(items)`.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.up_to(items.len() as u32 - 1) as usize]
    }
    /// `count` different positions below `n`: `RandomState.choice(n, count, replace=False)`.
    pub(super) fn choose(&mut self, n: usize, count: usize) -> Vec<usize> {
        let mut positions: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            positions.swap(i, self.up_to(i as u32) as usize);
        }
        positions.truncate(count);
        positions
    }
}

/// NumPy's `default_rng`.
pub(super) struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of the last 64 bits, where only the lower one was used.
    half: Option<u32>,
}

impl Pcg64 {
    pub(super) fn new(seed: u64) -> Self {
        let words = seed_sequence(seed);
        let wide = |at: usize| {
            let part = |i: usize| u128::from(words[i]) | u128::from(words[i + 1]) << 32;
            part(at) << 64 | part(at + 2)
        };
        let mut rng = Self { state: 0, increment: wide(4) << 1 | 1, half: None };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(0));
        rng.step();
        rng
    }
    fn step(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }
    fn next_u64(&mut self) -> u64 {
        self.step();
        let high = (self.state >> 64) as u64;
        (high ^ self.state as u64).rotate_right((high >> 58) as u32)
    }
    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_u64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }
    /// Uniform in 0 ..= max, for max < 2^32 - 1; draws nothing where max is 0.
    fn up_to(&mut self, max: u32) -> u32 {
        if max == 0 {
            return 0;
        }
        let count = max + 1;
        let biased = count.wrapping_neg() % count;
        loop {
            let wide = u64::from(self.next_u32()) * u64::from(count);
            if wide as u32 >= biased {
                return (wide >> 32) as u32;
            }
        }
    }
    /// One of `items`: `Generator.choice(items)`.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.up_to(items.len() as u32 - 1) as usize]
    }
    /// `count` different positions below `n`: `Generator.choice(n, count, replace=False)`.
    pub(super) fn choose(&mut self, n: usize, count: usize) -> Vec<usize> {
        // NumPy's threshold between the two algorithms, which give different samples.
        if n > 10_000 && count > n / 50 {
            let mut positions: Vec<usize> = (0..n).collect();
            self.shuffle(&mut positions, (n - count).max(1));
            return positions.split_off(n - count);
        }
        let mut taken = std::collections::HashSet::with_capacity(count);
        let mut positions = Vec::with_capacity(count);
        for j in n - count..n {
            let drawn = self.up_to(j as u32) as usize;
            let value = if taken.insert(drawn) { drawn } else { j };
            taken.insert(value);
            positions.push(value);
        }
        self.shuffle(&mut positions, 1);
        positions
    }
    /// Shuffles the positions from `first` on with all those before them.
    fn shuffle(&mut self, items: &mut [usize], first: usize) {
        for i in (first..items.len()).rev() {
            items.swap(i, self.up_to(i as u32) as usize);
        }
    }
}

/// The first eight words of `SeedSequence(seed).generate_state`.
fn seed_sequence(seed: u64) -> [u32; 8] {
    let scramble = |value: u32, constant: &mut u32, multiplier: u32| {
        let value = value ^ *constant;
        *constant = constant.wrapping_mul(multiplier);
        let value = value.wrapping_mul(*constant);
        value ^ value >> 16
    };
    let mix = |x: u32, y: u32| {
        let value = 0xca01_f9ddu32.wrapping_mul(x).wrapping_sub(0x4973_f715u32.wrapping_mul(y));
        value ^ value >> 16
    };
    let mut constant = 0x43b0_d7e5;
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| scramble(word, &mut constant, 0x931e_8875));
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            pool[to] = mix(pool[to], scramble(pool[from], &mut constant, 0x931e_8875));
        }
    }
    let mut constant = 0x8b51_f9dd;
    std::array::from_fn(|i| scramble(pool[i % 4], &mut constant, 0x58f3_8ded))
}

#[cfg(test)]
mod tests {
    //! All expected numbers were drawn with NumPy 2.4.6.
    use super::*;

    #[test]
    fn mersenne_twister_draws_what_random_state_draws() {
        // RandomState(seed).bytes(...) as little-endian words; 5489 is the authors' default seed.
        let words = |seed, n| {
            let mut r = Mt19937::new(seed);
            (0..n).map(|_| r.next_u32()).collect::<Vec<_>>()
        };
        assert_eq!(words(22222, 4), [294_195_201, 1_847_582_594, 1_342_442_730, 288_109_640]);
        assert_eq!(words(5489, 5), [3_499_211_612, 581_869_302, 3_890_346_734, 3_586_334_585, 545_404_204]);
        // The 10000th word, published in the C++ standard, [rand.predef].
        assert_eq!(words(5489, 10_000)[9_999], 4_123_659_995);
        let mut r = Mt19937::new(7);
        assert_eq!(r.choose(10, 10), [8, 5, 0, 2, 1, 9, 7, 3, 6, 4]);
        let five = [0, 1, 2, 3, 4];
        assert_eq!((0..10).map(|_| r.pick(&five)).collect::<Vec<_>>(), [2, 2, 0, 4, 0, 4, 0, 3, 2, 3]);
        assert_eq!(r.choose(10, 3), [4, 2, 6]);
    }

    #[test]
    fn pcg64_draws_what_default_rng_draws() {
        for (seed, want) in [
            (0, [11_749_869_230_777_074_271, 4_976_686_463_289_251_617, 755_828_109_848_996_024]),
            (1111, [15_852_105_362_585_597_067, 12_115_427_431_398_542_507, 8_887_363_355_600_350_134]),
            // 2^40 + 5: a seed of two words.
            (1_099_511_627_781, [87_427_594_128_977_387, 6_872_972_437_549_564_694, 10_832_470_946_844_950_135]),
        ] {
            let mut r = Pcg64::new(seed);
            assert_eq!([r.next_u64(), r.next_u64(), r.next_u64()], want, "seed {seed}");
        }
        let mut r = Pcg64::new(1111);
        let three = [0, 1, 2];
        assert_eq!((0..12).map(|_| r.pick(&three)).collect::<Vec<_>>(), [2, 2, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1]);
        // Floyd's algorithm, then a partial shuffle twice.
        assert_eq!(r.choose(20, 8), [15, 18, 4, 7, 8, 6, 17, 0]);
        assert_eq!(r.choose(20_000, 900).len(), 900);
        assert_eq!(r.choose(20_000, 900)[..6], [19_304, 7_926, 1_691, 5_363, 19_094, 15_368]);
        assert_eq!([r.pick(&three), r.pick(&three), r.pick(&three)], [2, 2, 0]);
    }

    #[test]
    fn samples_are_different_positions() {
        for (n, count) in [(0, 0), (1, 1), (5, 0), (5, 5), (10_001, 10_001), (10_001, 201), (10_001, 200)] {
            for sample in [Pcg64::new(3).choose(n, count), Mt19937::new(3).choose(n, count)] {
                let mut sorted = sample.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), count);
                assert!(sorted.last().is_none_or(|&last| last < n));
            }
        }
    }
}
