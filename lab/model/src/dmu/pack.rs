// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The LZ part of the compressor: a page to an LZ4 block, greedily, one candidate for each place, in longer and longer steps where
//! nothing matches.
//!
//! - **Order** a match begins twelve bytes before the end at the latest and leaves the last five bytes alone, as the format demands.
//!   It stops as soon as the page is worth nothing: less than [`WORTH`] hundredths
//! - **Not here** unpacking: `naive` has it, from the format's description

use super::PAGE;
use crate::naive::{self, UnpackError};

/// A page has to become smaller by this, in hundredths (§IV-B: 1.15).
pub const WORTH: usize = 115;
/// Most bytes of a packed page.
pub const MOST: usize = PAGE * 100 / WORTH;
/// A match is at least so long.
const LEAST: usize = 4;

fn word(page: &[u8; PAGE], at: usize) -> u32 {
    page[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// How many bytes at `at` are those at `from`, eight at a time, before `end`.
fn same(page: &[u8; PAGE], at: usize, from: usize, end: usize) -> usize {
    let mut length = 0;
    let long = |at: usize| page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    while at + length + 8 <= end {
        let differ = long(at + length) ^ long(from + length);
        if differ != 0 {
            return length + differ.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    length + (length..end - at).take_while(|more| page[at + more] == page[from + more]).count()
}

/// A length's part that its nibble does not hold.
fn more(block: &mut Vec<u8>, length: usize) {
    if let Some(rest) = length.checked_sub(15) {
        block.extend(std::iter::repeat_n(255, rest / 255));
        block.push((rest % 255) as u8);
    }
}

/// Places of the table.
const PLACES: usize = 1024;
/// Bits of one more than a place in a page, and of the number of a page, in an entry of the table.
const AT_BITS: u32 = 13;
const TURN_BITS: u32 = 19;

/// A compressor, which keeps its table from page to page.
#[derive(Clone, Debug)]
pub struct Packer {
    /// By a hash of four bytes: these, the number of the page that had them, and one more than the place where they were last. An entry of
    /// another page is none.
    seen: Box<[u64; PLACES]>,
    turn: u64,
    block: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer { seen: Box::new([0; PLACES]), turn: 0, block: Vec::with_capacity(PAGE) }
    }
}

impl Packer {
    /// The block of a page; `None` if it is not worth it.
    pub fn pack(&mut self, page: &[u8; PAGE]) -> Option<&[u8]> {
        self.turn = (self.turn + 1) % (1 << TURN_BITS);
        if self.turn == 0 {
            // Numbers begin again, and 0 is nobody's.
            (*self.seen, self.turn) = ([0; PLACES], 1);
        }
        let (seen, block, turn) = (&mut *self.seen, &mut self.block, self.turn);
        block.clear();
        let (mut at, mut literals) = (0, 0);
        while at + 12 <= PAGE {
            let wanted = word(page, at);
            let slot = &mut seen[(wanted.wrapping_mul(0x9e37_79b1) >> 22) as usize];
            let own = u64::from(wanted) << TURN_BITS | turn;
            let before = std::mem::replace(slot, own << AT_BITS | (at as u64 + 1));
            if before >> AT_BITS != own {
                at += 1 + (at - literals) / 32;
                continue;
            }
            let candidate = (before & ((1 << AT_BITS) - 1)) as usize;
            let offset = at + 1 - candidate;
            let mut length = LEAST;
            // Bytes that the steps have passed over.
            while at > literals.max(offset) && page[at - 1] == page[at - 1 - offset] {
                at -= 1;
                length += 1;
            }
            if at + length < PAGE - 5 {
                length += same(page, at + length, at + length - offset, PAGE - 5);
            }
            let run = &page[literals..at];
            block.push((run.len().min(15) << 4 | (length - LEAST).min(15)) as u8);
            more(block, run.len());
            block.extend_from_slice(run);
            block.extend_from_slice(&(offset as u16).to_le_bytes());
            more(block, length - LEAST);
            at += length;
            literals = at;
            if block.len() > MOST {
                return None;
            }
        }
        let run = &page[literals..];
        block.push((run.len().min(15) << 4) as u8);
        more(block, run.len());
        block.extend_from_slice(run);
        (block.len() <= MOST).then_some(block)
    }
}

/// A page from its block.
///
/// # Errors
/// If the block is none, or not of a page.
pub fn unpack(block: &[u8], page: &mut [u8]) -> Result<(), UnpackError> {
    let bytes = naive::unpack_lz4(block, page)?;
    if bytes == page.len() { Ok(()) } else { Err(UnpackError::Corrupt) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn pages_of_all_kinds_come_back() {
        let mut random = Random::new(5);
        let (mut packed, mut refused, mut packer) = (0, 0, Packer::default());
        for round in 0..300_u64 {
            let alphabet = 1 + random.below(256);
            let run = 1 + random.below(64) as usize;
            let mut page = [0; PAGE];
            for piece in page.chunks_mut(run) {
                let byte = random.below(alphabet) as u8;
                piece.fill(if round % 3 == 0 { 0 } else { byte });
                piece[0] = random.below(alphabet) as u8;
            }
            let Some(block) = packer.pack(&page) else {
                refused += 1;
                continue;
            };
            assert_eq!(Packer::default().pack(&page), Some(block), "pages before it leave no trace");
            packed += 1;
            let mut back = [1; PAGE];
            unpack(block, &mut back).unwrap();
            assert!(back == page, "round {round}");
            assert!(block.len() <= MOST);
            assert!(unpack(&block[..block.len() - 1], &mut back).is_err());
        }
        assert!(packed > 100 && refused > 5, "{packed} packed, {refused} refused");
        // Numbers of pages come again.
        packer.turn = (1 << TURN_BITS) - 1;
        assert_eq!(packer.pack(&[0; PAGE]).map(<[u8]>::len), Some(26));
        assert_eq!(packer.turn, 1);
    }
}
