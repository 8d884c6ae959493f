// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes into tokens: the last place with the same four bytes, taken if it is really the same.
//!
//! Flow    four bytes ──hash──▶ the place that had it before ──compare──▶ literal or match, and its counts
//! Layout  the table holds places as offsets from a base that the caller moves along: 16 bits each, 0 for "none". A
//!         wrong candidate is harmless, because the bytes are compared and the distance is checked.
//! Owner   nothing is kept but the table; the history lies before `start` in the caller's buffer.

use super::block::Counts;
use super::codes::{MATCH_BYTES, WINDOW_BYTES, literal, matched};

const HASH_BITS: u32 = 12;
/// The shortest match that is taken, in bytes: as many as are hashed.
const SHORTEST: usize = 4;

/// The places of earlier bytes.
pub struct Matcher {
    table: Box<[u16; 1 << HASH_BITS]>,
}

#[inline(always)]
fn hash(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize
}

impl Matcher {
    pub fn new() -> Matcher {
        Matcher { table: Box::new([0; 1 << HASH_BITS]) }
    }

    /// Forgets all places.
    pub fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Makes all offsets smaller by `bytes`: the base moved forward.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.table.iter_mut() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// Learns the places of `bytes`, which are at the base.
    pub fn learn(&mut self, bytes: &[u8]) {
        for (at, four) in bytes.windows(SHORTEST).enumerate() {
            self.table[hash(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))] = at as u16;
        }
    }

    /// Puts tokens for `buffer[start..]` into `tokens`, which has room for one per byte, and counts them. `buffer`
    /// is at most 65536 bytes long. Distances are at most `window`. Returns the number of tokens.
    pub fn find(
        &mut self,
        buffer: &[u8],
        start: usize,
        window: usize,
        tokens: &mut [u32],
        counts: &mut Counts,
    ) -> usize {
        assert!(buffer.len() <= 1 << 16 && tokens.len() >= buffer.len() - start);
        let window = window.min(WINDOW_BYTES);
        let mut used = 0;
        let mut at = start;
        let end = buffer.len();
        while at + SHORTEST <= end {
            let here = u32::from_le_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]);
            let place = &mut self.table[hash(here)];
            let candidate = *place as usize;
            *place = at as u16;
            let distance = at.wrapping_sub(candidate);
            let mut length = 0;
            if distance.wrapping_sub(1) < window {
                let most = (end - at).min(MATCH_BYTES.1);
                while length < most && buffer[candidate + length] == buffer[at + length] {
                    length += 1;
                }
            }
            let token = if length >= SHORTEST {
                at += length;
                matched(length, distance)
            } else {
                at += 1;
                literal(here as u8)
            };
            tokens[used] = token;
            used += 1;
            counts.index[(token & 511) as usize] += 1;
            counts.distance[(token >> 9 & 31) as usize] += 1;
        }
        for &byte in &buffer[at..] {
            tokens[used] = literal(byte);
            used += 1;
            counts.index[byte as usize] += 1;
        }
        used
    }
}
