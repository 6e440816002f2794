//! Random numbers of our own, so that the order of samples, initial weights and simulations never change with a dependency's version.
//! They are not for secrets.

/// The number that the state grows by: 2^64 over the golden ratio.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea & Flood 2014): small, fast, one word of state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns a stream that belongs to these numbers alone, for example `[seed, epoch]`.
    pub fn new(key: &[u64]) -> Self {
        Self::salted(0x6c6f_6f6e_6766_6f72, key)
    }

    /// Works like [`Rng::new`], with a stream apart from the streams of every other `salt`.
    pub fn salted(salt: u64, key: &[u64]) -> Self {
        Self(key.iter().fold(salt, |state, word| mix(state ^ mix(*word))))
    }

    /// Returns the next 64 bits (SplitMix64).
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Draws a number that is uniform in `0..bound`; `bound` must not be 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number that is uniform in `low..=high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }
}

/// Returns another number than `number` below `count`, by chance, which belongs to `key`; of one there is no other.
pub fn another(number: usize, count: usize, key: &[u64]) -> usize {
    match count {
        0..2 => number,
        _ => (number + 1 + Rng::new(&[key, &[number as u64]].concat()).below(count as u64 - 1) as usize) % count,
    }
}

/// Numbers by their index: each depends on the key and its index alone, so that any of them can be made anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Counter(u64);

impl Counter {
    /// Returns the numbers that belong to these alone, for example `[seed, sample]`.
    pub fn new(key: &[u64]) -> Self {
        Self(Rng::new(key).0)
    }

    /// Returns the numbers that belong to one word, which is spread already.
    pub fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns number `i`, uniform in (0, 1), 53 bits.
    pub fn unit(self, i: u64) -> f64 {
        let bits = mix(self.0.wrapping_add(i.wrapping_add(1).wrapping_mul(STEP)));
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns number `i` of mean 0 and variance 1: Box and Muller's, one of each pair.
    pub fn normal(self, i: u64) -> f64 {
        let radius = (-2.0 * self.unit(2 * i).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit(2 * i + 1)).cos()
    }
}

/// Returns the place of `index` in a shuffle of `0..len` that belongs to `key`, without holding the shuffle: a Feistel network over the
/// next even power of two, walked until it lands inside.
pub fn permute(index: u64, len: u64, key: &[u64]) -> u64 {
    debug_assert!(index < len);
    let bits = (64 - (len.max(2) - 1).leading_zeros()).next_multiple_of(2);
    let half = bits / 2;
    let mask = (1u64 << half) - 1;
    let mut rng = Rng::new(key);
    let round_keys: [u64; 6] = std::array::from_fn(|_| rng.next_u64());
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round_key in round_keys {
            (left, right) = (right, left ^ (mix(right ^ round_key) & mask));
        }
        value = left << half | right;
        if value < len {
            return value;
        }
    }
}

/// Spreads a number over all 64 bits: the last part of SplitMix64.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permute_visits_every_index_once_and_depends_on_the_key() {
        for len in [1, 2, 3, 4, 5, 17, 64, 1000, 4097] {
            let order = |key: &[u64]| (0..len).map(|i| permute(i, len, key)).collect::<Vec<_>>();
            let (a, b) = (order(&[1, 0]), order(&[1, 1]));
            let mut sorted = a.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..len).collect::<Vec<_>>());
            assert!(len < 17 || a != b, "len {len}");
        }
    }

    #[test]
    fn permute_spreads_neighbors() {
        let len = 10_000u64;
        let mean_step: f64 =
            (1..len).map(|i| permute(i, len, &[7]).abs_diff(permute(i - 1, len, &[7])) as f64).sum::<f64>()
                / (len - 1) as f64;
        // Two uniform draws are a third of the range apart on average.
        assert!((mean_step / len as f64 - 1.0 / 3.0).abs() < 0.02, "{mean_step}");
    }

    #[test]
    fn the_stream_is_fixed_for_ever() {
        let mut rng = Rng::new(&[1, 2]);
        let first = [rng.next_u64(), rng.next_u64()];
        assert_eq!(first, FIXED);
        assert_eq!(Rng::salted(0x7369_6d75_6c61_7465, &[1, 2]).next_u64(), 3_236_688_891_661_768_966);
        assert!((0..1000).all(|_| (-3..=3).contains(&rng.between(-3, 3))));
    }
    const FIXED: [u64; 2] = [5_186_429_646_235_134_176, 13_349_237_435_189_605_625];
}
