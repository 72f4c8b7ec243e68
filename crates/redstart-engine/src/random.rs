//! A small, fast source of random numbers for RANDOMKEY, SPOP and similar commands; not for secrets.

use std::hash::{BuildHasher, Hasher};

/// An xorshift64* generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        #[cfg(feature = "sim")]
        if let Some(seed) = crate::sim::next_seed() {
            return Random(seed | 1);
        }
        let seed = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        Random(seed | 1)
    }

    /// Numbers that are the same for the same seed.
    #[cfg(test)]
    pub(crate) fn seeded(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Something that members can be drawn from by their place.
pub(crate) trait Draw {
    fn len(&self) -> usize;

    /// Places are below this.
    fn places(&self) -> usize;

    fn is_taken(&self, place: u32) -> bool;

    fn draw(&self, random: &mut Random) -> Option<u32>;

    /// `count` different places, or all of them if there are fewer.
    fn sample(&self, random: &mut Random, count: usize) -> Vec<u32> {
        if count.saturating_mul(3) < self.len() {
            let mut seen = hashbrown::HashSet::with_capacity(count);
            let mut drawn = Vec::with_capacity(count);
            while drawn.len() < count {
                let Some(place) = self.draw(random) else {
                    break;
                };
                if seen.insert(place) {
                    drawn.push(place);
                }
            }
            return drawn;
        }
        let mut all: Vec<u32> = (0..self.places() as u32)
            .filter(|&place| self.is_taken(place))
            .collect();
        if count >= all.len() {
            return all;
        }
        for at in 0..count {
            let other = at + random.below(all.len() - at);
            all.swap(at, other);
        }
        all.truncate(count);
        all
    }

    /// `count` places, the same one perhaps several times.
    fn sample_with_repeats(&self, random: &mut Random, count: usize) -> Vec<u32> {
        (0..count).map_while(|_| self.draw(random)).collect()
    }
}
