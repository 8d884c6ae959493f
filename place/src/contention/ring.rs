// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ring of cache lines in random order, for measuring the latency of memory.
//!
//! - **Layout** `next[i * 16]` is the index of the line after line i: one u32 per 64-byte line, one cycle through all lines.
//! - **Order** four walkers start a quarter of the ring apart, so a lap waits for four lines at a time.

/// Memory that is walked line by line.
#[derive(Debug)]
pub(super) struct Ring {
    next: Box<[u32]>,
    lines: usize,
}

const WORDS: usize = 16;
const WALKERS: usize = 4;

impl Ring {
    /// Creates a ring of `bytes` bytes, at least one page.
    pub fn new(bytes: usize) -> Ring {
        let lines = (bytes / 64).max(64);
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for index in (1..lines).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(index, (state >> 33) as usize % (index + 1));
        }
        let mut next = vec![0; lines * WORDS].into_boxed_slice();
        for (index, &line) in order.iter().enumerate() {
            next[line as usize * WORDS] = order[(index + 1) % lines];
        }
        // Walkers start a quarter of the random order apart, not a quarter of the memory apart.
        let starts: Vec<u32> = (0..WALKERS).map(|walker| order[walker * lines / WALKERS]).collect();
        for (walker, start) in starts.into_iter().enumerate() {
            next[1 + walker] = start;
        }
        Ring { next, lines }
    }

    /// Number of lines in the ring.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Walks over `lines` lines of the ring.
    pub fn walk(&self, lines: usize) -> u32 {
        let mut at: [usize; WALKERS] = std::array::from_fn(|walker| self.next[1 + walker] as usize);
        for _ in 0..lines / WALKERS {
            for place in &mut at {
                *place = self.next[*place * WORDS] as usize;
            }
        }
        at.into_iter().fold(0, |sum, place| sum ^ place as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_cycle() {
        let ring = Ring::new(1 << 16);
        let mut at = 0;
        for step in 1..=ring.lines() {
            at = ring.next[at * WORDS] as usize;
            assert_eq!(at == 0, step == ring.lines());
        }
    }
}
