// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws that decide what is written: both sides of a row draw the same numbers from the same seed.
//!
//! - **Draw** splitmix64: no value comes twice from one seed
//!
//! The rivals in engines/persist/ have the same, in C and in Rust.

/// Bytes of a record and of a value.
pub const RECORD_BYTES: usize = 64;
/// Seed of the transactions that are stepped through. No timed run has it: a transaction that writes the bytes that are already
/// there changes nothing, and then it needs no fence.
pub const STEP_SEED: u64 = 1 << 63;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Seeded random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// From this seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// Returns the draws after the next `count` numbers.
    #[must_use]
    pub fn skip(&self, count: u64) -> Draw {
        Draw(self.0.wrapping_add(count.wrapping_mul(STEP)))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_splitmix64() {
        // Source: the reference implementation by Sebastiano Vigna, seed 1234567.
        let mut draw = Draw::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([draw.next(), draw.next(), draw.next()], first);
    }
}
