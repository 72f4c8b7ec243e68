//! Chance by a seed.

/// A source of random numbers (SplitMix64) that is the same everywhere and forever.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The source of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A source of its own for something named by numbers. What happens elsewhere does not change it, so a world that
    /// lost a client or a fault stays similar.
    pub fn of(seed: u64, path: &[u64]) -> Self {
        let mut dice = Self(seed);
        for step in path {
            dice = Self(dice.next() ^ step.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        dice
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A time from `low` to `high` milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.between(low, high))
    }

    /// True in this many of a thousand cases.
    pub fn per_mille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
