// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Building log records: what changed, as entries of one record.
//!
//! - **Layout** `memlift_spec::formats::log`; a WRAP is a record of ranges without entries and with `parts` = 255
//! - **Flow** [`Builder::range`] / [`Builder::changed`] / [`Builder::lines`] ─▶ [`Builder::finish`] ─▶ checksum ─▶ log
//! - **Why** [`Builder::changed`] logs only words that differ from the before-image: an object that was borrowed for writing and
//!   changed in one field costs one field
//! - **Not here** checking records: `memlift_kernels::log`

use std::ops::Range;

use crate::words::Words;
use memlift_kernels::log::PageLines;
use memlift_spec::formats::log::{
    PAGE_ENTRY_BYTES, RECORD_ENTRIES_OPEN, RECORD_LINES, RECORD_PAGES, RECORD_RANGES, RECORD_UNDO, RangeWord,
    RecordHeader,
};

/// `parts` of a record that only says: go on at the ring's start.
pub(crate) const PARTS_WRAP: u8 = 255;
const HEADER_BYTES: usize = size_of::<RecordHeader>();
const PIECE_WORDS: usize = RangeWord::LENGTH_MAX as usize / 8;
const _: () = assert!((RangeWord::LENGTH_MAX as usize).is_multiple_of(8));

/// Bytes that a record needs at most for ranges of this total length.
#[inline]
pub(crate) fn bound(ranges: u64, bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + ranges * 8 + bytes).next_multiple_of(64)
}

/// A record in the making, in memory of its own.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    /// The record's words, little-endian.
    target: &'a mut [[u8; 8]],
    at: usize,
    entries: u32,
    kind: u8,
}

/// A record whose header is still to be written: the numbers that go there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Built {
    /// Whole record, a multiple of 64.
    pub bytes: u64,
    kind: u8,
    parts: u8,
    entries: u16,
}

impl Built {
    /// The same with other `parts` than 1.
    pub fn with_parts(self, parts: u8) -> Built {
        Built { parts, ..self }
    }
}

/// Words of a line.
pub(crate) const LINE_WORDS: usize = 8;
/// Ranges from this many words on are copied as one piece.
const LONG_WORDS: usize = 256;

impl<'a> Builder<'a> {
    #[inline(always)]
    fn new(target: &'a mut [u8], kind: u8) -> Builder<'a> {
        let (target, _) = target.as_chunks_mut::<8>();
        Builder { target, at: HEADER_BYTES / 8, entries: 0, kind }
    }

    #[inline(always)]
    pub fn ranges(target: &'a mut [u8]) -> Builder<'a> {
        Builder::new(target, RECORD_RANGES)
    }

    pub fn undo(target: &'a mut [u8]) -> Builder<'a> {
        Builder::new(target, RECORD_UNDO)
    }

    pub fn of_lines(target: &'a mut [u8]) -> Builder<'a> {
        Builder::new(target, RECORD_LINES)
    }

    #[inline(always)]
    fn word(&mut self, word: u64) {
        self.target[self.at] = word.to_le_bytes();
        self.at += 1;
    }

    /// A range with its words.
    #[inline(always)]
    pub fn range(&mut self, offset: u64, words: &[u64]) {
        for (at, piece) in words.chunks(PIECE_WORDS).enumerate() {
            self.head(offset + (at * PIECE_WORDS * 8) as u64, piece.len());
            piece.iter().for_each(|word| self.word(*word));
        }
    }

    /// Appends a range with its current content.
    #[inline(always)]
    pub fn range_of(&mut self, offset: u64, words: Words<'_>) {
        let mut done = 0;
        while done < words.len() {
            let piece = (words.len() - done).min(PIECE_WORDS);
            self.head(offset + done as u64 * 8, piece);
            let target = &mut self.target[self.at..self.at + piece];
            if piece < LONG_WORDS {
                words.part(done, done + piece).store(target);
            } else {
                target.as_flattened_mut().copy_from_slice(words.part(done, done + piece).bytes());
            }
            self.at += piece;
            done += piece;
        }
    }

    #[inline(always)]
    fn head(&mut self, offset: u64, words: usize) {
        let word = RangeWord::new(offset, words as u64 * 8).expect("ranges are whole words of a heap");
        self.word(word.0);
        self.entries += 1;
    }

    /// The words of a range that are not as they were. Runs of changed words are joined over a gap of one word: the gap
    /// costs no more than another entry.
    #[inline(always)]
    pub fn changed(&mut self, offset: u64, before: &[u64], now: Words<'_>) {
        assert!(before.len() == now.len());
        let mut log = |run: &Range<usize>| {
            self.range_of(offset + run.start as u64 * 8, now.part(run.start, run.end));
        };
        let (mut run, mut base) = (0..0, 0);
        for before in before.chunks(64) {
            let mut differ = now.part(base, base + before.len()).differing(before);
            while differ != 0 {
                let from = differ.trailing_zeros();
                let words = (differ >> from).trailing_ones();
                differ &= u64::MAX.checked_shl(from + words).unwrap_or(0);
                let (start, end) = (base + from as usize, base + (from + words) as usize);
                if !run.is_empty() && start - run.end < 2 {
                    run.end = end;
                    continue;
                }
                if !run.is_empty() {
                    log(&run);
                }
                run = start..end;
            }
            base += before.len();
        }
        if !run.is_empty() {
            log(&run);
        }
    }

    /// Lines of a page, taken from the page's 4 KiB.
    pub fn lines(&mut self, page: u64, lines: u64, bytes: Words<'_>) {
        self.word(page);
        self.word(lines);
        let mut left = lines;
        while left != 0 {
            let line = left.trailing_zeros() as usize * 8;
            bytes.part(line, line + 8).store(&mut self.target[self.at..]);
            self.at += 8;
            left &= left - 1;
        }
        self.entries += 1;
    }

    /// Leaves room for lines of a page, each of which [`Builder::line`] fills. Returns the place of the first.
    #[inline(always)]
    pub fn open_lines(&mut self, page: u64, lines: u64) -> usize {
        self.word(page);
        self.word(lines);
        let first = self.at;
        self.at += lines.count_ones() as usize * LINE_WORDS;
        self.entries += 1;
        first
    }

    /// Fills the line at `place`.
    #[inline(always)]
    pub fn line(&mut self, place: usize, line: Words<'_>) {
        assert!(line.len() == LINE_WORDS);
        line.store(&mut self.target[place..place + LINE_WORDS]);
    }

    /// A page's turn to the copy in bit 63, and the checksum of the lines written there.
    pub fn page(&mut self, page: u64, lines: u64, checksum: u32) {
        self.kind = RECORD_PAGES;
        self.word(page);
        self.word(lines);
        self.word(u64::from(checksum));
        self.entries += 1;
    }

    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Pads with zeros; the header is still to be filled ([`place`]).
    #[inline(always)]
    pub fn finish(self) -> Built {
        let words = self.at.next_multiple_of(8);
        self.target[self.at..words].iter_mut().for_each(|word| *word = [0; 8]);
        let entries = u16::try_from(self.entries).unwrap_or(RECORD_ENTRIES_OPEN);
        Built { bytes: words as u64 * 8, kind: self.kind, parts: 1, entries }
    }
}

/// Fills a finished record's header but for the checksum; its lane is durable up to `durable_to`. In whole words: see [`Words`].
#[inline(always)]
pub(crate) fn place(record: &mut [u8], built: Built, position: u64, sequence: u64, durable_to: u64) {
    header_words(record, built, position, sequence, RecordHeader::claim(position, durable_to));
}

#[inline(always)]
fn header_words(record: &mut [u8], built: Built, position: u64, sequence: u64, claim: u32) {
    let (words, _) = record.as_chunks_mut::<8>();
    for (target, word) in words.iter_mut().zip(header_of(built, position, sequence, claim)) {
        *target = word.to_le_bytes();
    }
}

#[inline(always)]
fn header_of(built: Built, position: u64, sequence: u64, claim: u32) -> [u64; HEADER_BYTES / 8] {
    let rest = u64::from(built.kind)
        | u64::from(built.parts) << 8
        | u64::from(built.entries) << 16
        | u64::from(claim) << 32;
    [built.bytes << 32, position, sequence, rest]
}

/// Bytes of a record of lines of one page: its head, and padding behind the last line, are a line together.
#[inline(always)]
pub(crate) fn page_bytes(lines: &PageLines<'_>) -> u64 {
    const { assert!(PAGE_HEAD_WORDS <= LINE_WORDS) };
    (lines.count() as u64 + 1) * LINE_WORDS as u64 * 8
}

/// Count of the words before the lines of a record of one page.
pub(crate) const PAGE_HEAD_WORDS: usize = HEADER_BYTES / 8 + 2;

/// The words before the lines of a record of one page, without the checksum; its lane is durable up to `durable_to`.
#[inline(always)]
pub(crate) fn head_of_page(
    page: u64,
    lines: &PageLines<'_>,
    position: u64,
    sequence: u64,
    durable_to: u64,
) -> [u64; PAGE_HEAD_WORDS] {
    let built = Built { bytes: page_bytes(lines), kind: RECORD_LINES, parts: 1, entries: 1 };
    let claim = RecordHeader::claim(position, durable_to);
    let [size, position, sequence, rest] = header_of(built, position, sequence, claim);
    [size, position, sequence, rest, page, lines.bits()]
}

/// Makes `record` (64 bytes) a WRAP.
pub(crate) fn wrap(record: &mut [u8], position: u64) {
    record.fill(0);
    let built = Built { bytes: record.len() as u64, kind: RECORD_RANGES, parts: PARTS_WRAP, entries: 0 };
    header_words(record, built, position, 0, 0);
}

/// Fills the checksum.
pub(crate) fn seal(record: &mut [u8], salt: u32) {
    let crc = memlift_kernels::log::crc32c(&record[4..], salt);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The header of a record that was checked.
pub(crate) fn header(record: &[u8]) -> RecordHeader {
    RecordHeader::from_bytes(record.first_chunk().expect("a record is longer than its header"))
}

/// How many entries a record has whose shape was checked.
#[inline(always)]
pub(crate) fn entries(record: &[u8]) -> usize {
    match header(record).entries {
        RECORD_ENTRIES_OPEN => count(record),
        entries => usize::from(entries),
    }
}

/// Counts entries up to the first that is all zeros.
#[cold]
#[inline(never)]
fn count(record: &[u8]) -> usize {
    let kind = header(record).kind;
    let word = |at: usize| {
        let bytes = record.get(at..at + 8);
        bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    };
    let (mut at, mut entries) = (HEADER_BYTES, 0);
    loop {
        let bytes = match kind {
            RECORD_LINES => 16 + u64::from(word(at + 8).count_ones()) * 64,
            RECORD_PAGES => PAGE_ENTRY_BYTES as u64,
            _ => 8 + RangeWord(word(at)).length(),
        };
        // Of lines and pages, the first word may be that of page 0.
        let second = if matches!(kind, RECORD_LINES | RECORD_PAGES) { word(at + 8) } else { 0 };
        if word(at) == 0 && second == 0 {
            return entries;
        }
        at += bytes as usize;
        entries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entries_than_the_header_counts_end_at_the_zeros() {
        for ranges in [65_534, 65_535, 65_536, 70_000] {
            let mut memory = vec![0xee; bound(ranges, ranges * 8) as usize];
            let mut builder = Builder::ranges(&mut memory);
            (0..ranges).for_each(|one| builder.range(one * 16, &[one]));
            let built = builder.finish();
            place(&mut memory, built, 0, 1, 0);
            seal(&mut memory, 7);
            let record = &memory[..built.bytes as usize];
            assert_eq!(entries(record), ranges as usize);
            let checked = memlift_kernels::log::check(record, 7, 0);
            assert!(checked.is_ok(), "{ranges}: {checked:?}");
        }
    }

    /// Entries of a record of ranges, read naively.
    fn read(record: &[u8]) -> Vec<(u64, Vec<u8>)> {
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
            let (chunks, _) = before.as_chunks::<8>();
            let before = chunks.as_flattened();
            let words: Vec<u64> = chunks.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let mut changed = words.clone();
            for bit in 0..64 {
                if seed >> bit & 1 == 1 {
                    let at = bit * 7 % before.len();
                    changed[at / 8] ^= 1 << (at % 8 * 8);
                }
            }
            let now: Vec<u8> = changed.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut memory = vec![0xee; bound(1, now.len() as u64) as usize];
            let mut builder = Builder::ranges(&mut memory);
            builder.changed(4096, &words, Words::of(&changed));
            let built = builder.finish();
            assert!(built.bytes as usize <= memory.len());
            place(&mut memory, built, 0, 1, 0);
            let mut replayed = before.to_vec();
            for (offset, data) in read(&memory) {
                let at = (offset - 4096) as usize;
                replayed[at..at + data.len()].copy_from_slice(&data);
            }
            assert_eq!(replayed, now);
        }
    }
}
