// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chance that can be repeated: SplitMix64, integers only.
//!
//! Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.

/// A sequence that its seed determines.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Below `bound`; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// True with the probability `parts` of a million.
    pub fn one_of_a_million(&mut self, parts: u64) -> bool {
        self.below(1_000_000) < parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_published_ones() {
        // The first outputs for seed 1234567 of the reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.word(), random.word()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert!((0..1000).all(|_| random.below(7) < 7) && random.below(0) == 0);
        assert!(!random.one_of_a_million(0) && random.one_of_a_million(1_000_000));
    }
}
