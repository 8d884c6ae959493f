// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Building log records: what changed, as entries of one record.
//!
//! Layout   `memlift_spec::operand::log`; a WRAP is a record of ranges without entries and with `parts` = 255
//! Flow     [`Builder::range`] / [`Builder::changed`] / [`Builder::lines`] ─▶ [`Builder::finish`] ─▶ checksum ─▶ log
//! Why      [`Builder::changed`] logs only words that differ from the before-image: an object that was borrowed for writing and
//!          changed in one field costs one field
//! Not here reading records: `memlift_engine::persist`

use memlift_spec::operand::log::{RECORD_LINES, RECORD_RANGES, RECORD_UNDO, RangeWord, RecordHeader};

/// `parts` of a record that only says: go on at the ring's start.
pub(crate) const PARTS_WRAP: u8 = 255;
const HEADER_BYTES: usize = size_of::<RecordHeader>();

/// Bytes that a record needs at most for ranges of this total length.
#[inline]
pub(crate) fn bound(ranges: u64, bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + ranges * 8 + bytes).next_multiple_of(64)
}

/// A record in the making, in memory of its own.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    target: &'a mut [u8],
    at: usize,
    entries: u32,
    kind: u8,
}

/// What is left before a record is sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Built {
    /// Whole record, a multiple of 64.
    pub bytes: u64,
}

impl<'a> Builder<'a> {
    pub fn ranges(target: &'a mut [u8]) -> Builder<'a> {
        Builder { target, at: HEADER_BYTES, entries: 0, kind: RECORD_RANGES }
    }

    pub fn undo(target: &'a mut [u8]) -> Builder<'a> {
        Builder { target, at: HEADER_BYTES, entries: 0, kind: RECORD_UNDO }
    }

    pub fn of_lines(target: &'a mut [u8]) -> Builder<'a> {
        Builder { target, at: HEADER_BYTES, entries: 0, kind: RECORD_LINES }
    }

    fn word(&mut self, word: u64) {
        self.target[self.at..self.at + 8].copy_from_slice(&word.to_le_bytes());
        self.at += 8;
    }

    /// A range with its bytes; both multiples of 8.
    #[inline]
    pub fn range(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let piece = (data.len() - done).min(RangeWord::LENGTH_MAX as usize);
            let word =
                RangeWord::new(offset + done as u64, piece as u64).expect("ranges are whole words of a heap");
            self.word(word.0);
            self.target[self.at..self.at + piece].copy_from_slice(&data[done..done + piece]);
            self.at += piece;
            self.entries += 1;
            done += piece;
        }
    }

    /// The words of a range that are not as they were. Runs of changed words are joined over a gap of one word: the gap
    /// costs no more than another entry.
    #[inline]
    pub fn changed(&mut self, offset: u64, before: &[u8], now: &[u8]) {
        debug_assert!(before.len() == now.len() && now.len().is_multiple_of(8));
        let (before, _) = before.as_chunks::<8>();
        let (words, _) = now.as_chunks::<8>();
        let mut at = 0;
        while at < words.len() {
            if before[at] == words[at] {
                at += 1;
                continue;
            }
            let start = at;
            let mut end = at + 1;
            at += 1;
            while at < words.len() && at - end < 2 {
                if before[at] != words[at] {
                    end = at + 1;
                }
                at += 1;
            }
            self.range(offset + start as u64 * 8, &now[start * 8..end * 8]);
        }
    }

    /// Lines of a page, taken from the page's 4 KiB.
    pub fn lines(&mut self, page: u64, lines: u64, bytes: &[u8]) {
        self.word(page);
        self.word(lines);
        let mut left = lines;
        while left != 0 {
            let line = left.trailing_zeros() as usize * 64;
            self.target[self.at..self.at + 64].copy_from_slice(&bytes[line..line + 64]);
            self.at += 64;
            left &= left - 1;
        }
        self.entries += 1;
    }

    /// A page's turn to the copy in bit 63, and the checksum of the lines written there.
    pub fn page(&mut self, page: u64, lines: u64, checksum: u32) {
        self.kind = memlift_spec::operand::log::RECORD_PAGES;
        self.word(page);
        self.word(lines);
        self.word(u64::from(checksum));
        self.entries += 1;
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Pads with zeros; the header still lacks its place in the order.
    pub fn finish(self) -> Option<Built> {
        let bytes = self.at.next_multiple_of(64);
        self.target[self.at..bytes].fill(0);
        self.target[24] = self.kind;
        let entries = u16::try_from(self.entries).ok()?;
        self.target[26..28].copy_from_slice(&entries.to_le_bytes());
        Some(Built { bytes: bytes as u64 })
    }
}

/// Fills a finished record's header but for the checksum.
#[inline]
pub(crate) fn place(record: &mut [u8], position: u64, sequence: u64, parts: u8) {
    let bytes = record.len() as u32;
    record[4..8].copy_from_slice(&bytes.to_le_bytes());
    record[8..16].copy_from_slice(&position.to_le_bytes());
    record[16..24].copy_from_slice(&sequence.to_le_bytes());
    record[25] = parts;
    record[28..32].fill(0);
}

/// Makes `record` (64 bytes) a WRAP.
pub(crate) fn wrap(record: &mut [u8], position: u64) {
    record.fill(0);
    record[24] = RECORD_RANGES;
    place(record, position, 0, PARTS_WRAP);
}

/// Fills the checksum.
pub(crate) fn seal(record: &mut [u8], salt: u32) {
    let crc = memlift_engine::Engine::global().crc32c(&record[4..], salt);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The header of a record that was checked.
pub(crate) fn header(record: &[u8]) -> RecordHeader {
    let u32_at = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
    RecordHeader {
        checksum: u32_at(0),
        bytes: u32_at(4),
        position: u64_at(8),
        sequence: u64_at(16),
        kind: record[24],
        parts: record[25],
        entries: u16::from_le_bytes([record[26], record[27]]),
        reserved: u32_at(28),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of a record of ranges, read naively.
    fn entries(record: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let (mut at, mut all) = (HEADER_BYTES, Vec::new());
        for _ in 0..header(record).entries {
            let word = RangeWord(u64::from_le_bytes(record[at..at + 8].try_into().unwrap()));
            let length = word.length() as usize;
            all.push((word.offset(), record[at + 8..at + 8 + length].to_vec()));
            at += 8 + length;
        }
        all
    }

    proptest::proptest! {
        #[test]
        fn what_changed_is_logged_and_not_more_than_it_was(before in proptest::collection::vec(0u8..3, 8..400), seed: u64) {
            let whole = before.len() / 8 * 8;
            let before = &before[..whole];
            let mut now = before.to_vec();
            for bit in 0..64 {
                if seed >> bit & 1 == 1 {
                    now[bit * 7 % whole] ^= 1;
                }
            }
            let mut memory = vec![0xee; bound(1, whole as u64) as usize];
            let mut builder = Builder::ranges(&mut memory);
            builder.changed(4096, before, &now);
            let built = builder.finish().unwrap();
            assert!(built.bytes as usize <= memory.len());
            let mut replayed = before.to_vec();
            for (offset, data) in entries(&memory) {
                let at = (offset - 4096) as usize;
                replayed[at..at + data.len()].copy_from_slice(&data);
            }
            assert_eq!(replayed, now);
        }
    }
}
