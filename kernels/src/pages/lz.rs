// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LZ4 blocks of exactly one page.
//!
//! - **Flow** page ──hash of 4 bytes, last position with that hash──▶ literals and matches; [`unpack`] copies 16 bytes at a time where
//!   there is room.
//! - **Layout** the LZ4 block format: token (literal length, match length − 4), longer lengths in bytes of 255, literals, offset of 2
//!   bytes; the last 5 bytes are literals, and no match starts in the last 12.
//! - **Order** [`pack`] gives up at the end of the target; [`unpack`] checks every length and offset before it copies.
//! - **Not here** blocks of other sizes (`crate::lz4`).
//!
//! Source: the LZ4 block format description of the lz4 project.

use super::PAGE_BYTES;

const HASH_BITS: u32 = 12;

/// Last position of each hash.
pub(super) type Table = [u16; 1 << HASH_BITS];

const MIN_MATCH: usize = 4;
const LAST_LITERALS: usize = 5;
/// A match may not start behind this position.
const MATCH_LIMIT: usize = PAGE_BYTES - 12;

fn word(page: &[u8; PAGE_BYTES], at: usize) -> u32 {
    page.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn long(page: &[u8; PAGE_BYTES], at: usize) -> u64 {
    match page.get(at..at + 8) {
        Some(bytes) => u64::from_le_bytes([
            bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
        ]),
        None => 0,
    }
}

fn hash(word: u32) -> usize {
    (word.wrapping_mul(2_654_435_761) >> (32 - HASH_BITS)) as usize
}

/// Returns how many bytes from `at` on equal those from `candidate` on, which lies before `at`.
fn match_bytes(page: &[u8; PAGE_BYTES], candidate: usize, at: usize) -> usize {
    let end = PAGE_BYTES - LAST_LITERALS;
    let mut bytes = 0;
    while at + bytes + 8 <= end {
        let different = long(page, candidate + bytes) ^ long(page, at + bytes);
        if different != 0 {
            return bytes + (different.trailing_zeros() / 8) as usize;
        }
        bytes += 8;
    }
    while at + bytes < end && page[candidate + bytes] == page[at + bytes] {
        bytes += 1;
    }
    bytes
}

/// The target and the position of the next packed byte.
struct Target<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Target<'_> {
    fn length(&mut self, mut length: usize) {
        while length >= 255 {
            self.bytes[self.at] = 255;
            self.at += 1;
            length -= 255;
        }
        self.bytes[self.at] = length as u8;
        self.at += 1;
    }

    /// Adds literals and, except for the last sequence, a match; returns `None` if there is no room.
    fn sequence(&mut self, literals: &[u8], found: Option<(usize, usize)>) -> Option<()> {
        let most = 1 + literals.len() / 255 + 1 + literals.len() + 2 + PAGE_BYTES / 255 + 1;
        let exact = || {
            let extra = |length: usize| if length < 15 { 0 } else { (length - 15) / 255 + 1 };
            1 + extra(literals.len())
                + literals.len()
                + found.map_or(0, |(_, bytes)| 2 + extra(bytes - MIN_MATCH))
        };
        if self.bytes.len() - self.at < most && self.bytes.len() - self.at < exact() {
            return None;
        }
        let match_length = found.map_or(0, |(_, bytes)| bytes - MIN_MATCH);
        self.bytes[self.at] = (literals.len().min(15) << 4 | match_length.min(15)) as u8;
        self.at += 1;
        if literals.len() >= 15 {
            self.length(literals.len() - 15);
        }
        self.bytes[self.at..self.at + literals.len()].copy_from_slice(literals);
        self.at += literals.len();
        if let Some((offset, _)) = found {
            self.bytes[self.at..self.at + 2].copy_from_slice(&(offset as u16).to_le_bytes());
            self.at += 2;
            if match_length >= 15 {
                self.length(match_length - 15);
            }
        }
        Some(())
    }
}

/// Packs the page into the start of `target`; returns the bytes used, or `None` if it does not fit.
pub(super) fn pack(page: &[u8; PAGE_BYTES], table: &mut Table, target: &mut [u8]) -> Option<usize> {
    table.fill(0);
    let mut target = Target { bytes: target, at: 0 };
    let (mut anchor, mut at) = (0, 1);
    table[hash(word(page, 0))] = 0;
    let mut misses = 0;
    while at <= MATCH_LIMIT {
        let value = word(page, at);
        let slot = &mut table[hash(value)];
        let mut candidate = usize::from(std::mem::replace(slot, at as u16));
        if candidate >= at || word(page, candidate) != value {
            misses += 1;
            at += 1 + (misses >> 5);
            continue;
        }
        misses = 0;
        let mut start = at;
        while start > anchor && candidate > 0 && page[start - 1] == page[candidate - 1] {
            start -= 1;
            candidate -= 1;
        }
        let bytes = match_bytes(page, candidate, start);
        if bytes < MIN_MATCH {
            at += 1;
            continue;
        }
        target.sequence(page.get(anchor..start)?, Some((start - candidate, bytes)))?;
        at = start + bytes;
        anchor = at;
        if at <= MATCH_LIMIT {
            table[hash(word(page, at - 2))] = (at - 2) as u16;
        }
    }
    target.sequence(page.get(anchor..)?, None)?;
    Some(target.at)
}

/// Room behind a page into which [`unpack`] may write, if the caller has it: copies then need no checks near the end.
pub(super) const SLACK_BYTES: usize = 32;

/// Unpacks one page. `target` is the page, and may have up to [`SLACK_BYTES`] of room behind it. Returns `None` if the block is
/// not a page; nothing outside the target is written.
pub(super) fn unpack(block: &[u8], target: &mut [u8]) -> Option<()> {
    debug_assert!(target.len() >= PAGE_BYTES);
    let room = target.len();
    let (source, page) = (block.as_ptr(), target.as_mut_ptr());
    let (mut from, mut to) = (0, 0);
    let longer = |from: &mut usize| -> Option<usize> {
        let mut length = 0;
        loop {
            let byte = *block.get(*from)?;
            *from += 1;
            length += usize::from(byte);
            if byte != 255 {
                return Some(length);
            }
        }
    };
    loop {
        let token = usize::from(*block.get(from)?);
        from += 1;
        let mut literals = token >> 4;
        let short = literals < 15 && block.len() - from >= 18 && room - to >= 48;
        if short {
            // SAFETY: the line above checked 16 bytes to read and to write; fewer than 15 of them are literals.
            unsafe { page.add(to).copy_from_nonoverlapping(source.add(from), 16) };
            from += literals;
            to += literals;
        } else {
            if literals == 15 {
                literals += longer(&mut from)?;
            }
            if literals > block.len() - from || literals > PAGE_BYTES.checked_sub(to)? {
                return None;
            }
            // SAFETY: the lines above checked `literals` bytes to read and to write.
            unsafe { page.add(to).copy_from_nonoverlapping(source.add(from), literals) };
            from += literals;
            to += literals;
            if from == block.len() {
                return (to == PAGE_BYTES).then_some(());
            }
        }
        let offset = usize::from(u16::from_le_bytes([*block.get(from)?, *block.get(from + 1)?]));
        from += 2;
        if offset == 0 || offset > to {
            return None;
        }
        let mut bytes = (token & 15) + MIN_MATCH;
        if short && bytes < 15 + MIN_MATCH && offset >= 8 {
            // SAFETY: before the literals there was room for 48 bytes, and they were fewer than 15, so 18 more fit. Each copy
            // reads at least 8 bytes behind the address it writes to.
            unsafe {
                let (to_byte, from_byte) = (page.add(to), page.add(to - offset));
                to_byte.copy_from_nonoverlapping(from_byte, 8);
                to_byte.add(8).copy_from_nonoverlapping(from_byte.add(8), 8);
                to_byte.add(16).copy_from_nonoverlapping(from_byte.add(16), 2);
            }
            to += bytes;
            continue;
        }
        if bytes == 15 + MIN_MATCH {
            bytes += longer(&mut from)?;
        }
        if to > PAGE_BYTES || bytes > PAGE_BYTES - to {
            return None;
        }
        // SAFETY: the bytes `offset` back are already written, `bytes` ahead lie in the page, and the condition of each copy
        // ensures that its last 16 bytes do, too.
        unsafe {
            let (mut to_byte, mut from_byte) = (page.add(to), page.add(to - offset));
            let end = page.add(to + bytes);
            if offset >= 16 && room - to - bytes >= 16 {
                while to_byte < end {
                    to_byte.copy_from_nonoverlapping(from_byte, 16);
                    to_byte = to_byte.add(16);
                    from_byte = from_byte.add(16);
                }
            } else if offset == 1 {
                to_byte.write_bytes(*from_byte, bytes);
            } else if offset >= 8 && room - to - bytes >= 8 {
                while to_byte < end {
                    to_byte.copy_from_nonoverlapping(from_byte, 8);
                    to_byte = to_byte.add(8);
                    from_byte = from_byte.add(8);
                }
            } else if room - to - bytes >= 8 {
                // Writes eight bytes of the pattern, then steps by the largest multiple of the offset that is at most eight.
                let step = 8 / offset * offset;
                for index in 0..8 {
                    to_byte.add(index).write(*from_byte.add(index));
                }
                let pattern = to_byte.cast::<u64>().read_unaligned();
                while to_byte < end {
                    to_byte.cast::<u64>().write_unaligned(pattern);
                    to_byte = to_byte.add(step);
                }
            } else {
                while to_byte < end {
                    to_byte.write(*from_byte);
                    to_byte = to_byte.add(1);
                    from_byte = from_byte.add(1);
                }
            }
        }
        to += bytes;
    }
}
