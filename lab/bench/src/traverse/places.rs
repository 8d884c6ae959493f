// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a structure's nodes lie: a bijection scatters their numbers over places side by side.
//!
//! - **Order** two numbers that follow each other are nowhere near; the inverse lets memory be written from its start to its end

/// Numbers of nodes ↔ places, both below a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    base: u64,
    bits: u32,
    stride: u64,
}

const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

impl Places {
    /// `2^bits` places of `stride` bytes from `base` on.
    pub fn new(base: u64, bits: u32, stride: u64) -> Places {
        Places { base, bits, stride }
    }

    /// Returns the number of places.
    pub fn count(&self) -> u64 {
        1 << self.bits
    }

    /// Where a number lies.
    pub fn address(&self, number: u64) -> u64 {
        let (mask, half) = (self.count() - 1, self.bits / 2);
        let mut word = number;
        for odd in ODD {
            word = word.wrapping_mul(odd) & mask;
            word ^= word >> half;
        }
        self.base + word * self.stride
    }

    /// The number that lies at this place, counted from the base.
    pub fn number(&self, place: u64) -> u64 {
        let (mask, half) = (self.count() - 1, self.bits / 2);
        let mut word = place;
        for odd in ODD.into_iter().rev() {
            // A shift is undone by as many steps as it takes to shift all bits out.
            let mut undone = word;
            for _ in 0..self.bits.div_ceil(half.max(1)) {
                undone = word ^ undone >> half;
            }
            word = undone.wrapping_mul(inverse(odd)) & mask;
        }
        word
    }
}

/// Inverse of an odd number modulo 2^64 (Newton).
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |guess, _| guess.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(guess))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_bijection() {
        for bits in [8, 13, 20] {
            let places = Places::new(1 << 32, bits, 64);
            let mut seen = vec![false; 1 << bits];
            for number in 0..1 << bits {
                let place = (places.address(number) - (1 << 32)) / 64;
                assert!(!std::mem::replace(&mut seen[place as usize], true));
                assert_eq!(places.number(place), number);
            }
        }
    }
}
