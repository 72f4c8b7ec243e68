//! A small, fast source of chance for RANDOMKEY, SPOP and the like; nothing here is secret.

use std::hash::{BuildHasher, Hasher};

/// An xorshift64* generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        let seed = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        Random(seed | 1)
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
