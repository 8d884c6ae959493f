// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes changed at random, reproducibly: what libFuzzer does, without what it learns.
//!
//! Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.

/// Seeded random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }

    /// Returns `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }
}

/// One of `seeds`, changed in up to eight places; one time in ten it stays as it is.
pub fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    if random.below(10) == 0 {
        return bytes;
    }
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len());
        let run = (1 + random.below(16)).min(bytes.len() - at);
        match random.below(9) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            2 if !bytes.is_empty() => bytes[at] = random.number() as u8,
            3 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            4 => drop(bytes.drain(at..at + run)),
            5 => {
                let more = random.bytes(run);
                bytes.splice(at..at, more);
            }
            6 => bytes.truncate(at),
            7 => {
                let copied = bytes[at..at + run].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copied);
            }
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

/// Messages of several kinds: empty, text, noise, zeros, mixed.
pub fn messages() -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let text = |bytes: usize| -> Vec<u8> {
        b"<p class=\"left\">a page of memory, the page of a copy</p>\n"
            .iter()
            .copied()
            .cycle()
            .take(bytes)
            .collect()
    };
    let mut mixed = text(700);
    mixed.extend(random.bytes(300));
    mixed.extend([0; 900]);
    mixed.extend((0..3000).map(|index: u32| (index / 9 * 37) as u8));
    vec![Vec::new(), vec![b'a'], text(60), text(5000), random.bytes(900), vec![0; 3000], mixed]
}
