// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of the host to a device (the paper's table 2), and the log records that a unit's metadata generator makes.
//!
//! - **Layout** a record as in `docs/formats/log.md`: header · entries · zeros; a checkpoint's entries are lines of a page of the device
//! - **Order** the checksum is the device's last word: a record that was not written to its end is none
//! - **Not here** when things happen (`device`)

use super::layout::{LINE, Layout, PAGE, Range, word};
use crate::naive;
use memlift_spec::formats::log::{
    PAGE_ENTRY_BYTES, PAGE_SECOND_COPY, RECORD_ALIGN, RECORD_CHECKED_FROM, RECORD_HEADER_BYTES, RECORD_LINES,
    RECORD_PAGES, RECORD_RANGES, RECORD_UNDO, RangeWord,
};

/// The pool's salt.
const SALT: u32 = 0x6e70_6d31;

/// A primitive operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Copy what is there to an undo log.
    UndoLog,
    /// Copy what a redo log has to its place.
    ApplyLog,
    /// Delete a transaction's log: it is committed.
    CommitLog,
    /// Copy pages to a checkpoint.
    Checkpoint,
    /// Copy a page to its other copy.
    ShadowCopy,
}

/// One command. Addresses are virtual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Operation of the command.
    pub primitive: Primitive,
    /// Pool that it works in.
    pub pool: u16,
    /// Thread that issued it.
    pub thread: u16,
    /// Transaction that it belongs to.
    pub sequence: u64,
    /// Number of this command among the thread's.
    pub turn: u64,
    /// Operands: ranges of virtual addresses.
    pub ranges: Vec<Range>,
    /// Devices that got it, bit by bit.
    pub participants: u8,
}

fn seal(mut record: Vec<u8>, kind: u8, entries: usize, position: u64, sequence: u64) -> Vec<u8> {
    record.resize(record.len().next_multiple_of(RECORD_ALIGN), 0);
    let bytes = record.len() as u32;
    record[4..8].copy_from_slice(&bytes.to_le_bytes());
    record[8..16].copy_from_slice(&position.to_le_bytes());
    record[16..24].copy_from_slice(&sequence.to_le_bytes());
    (record[24], record[25]) = (kind, 1);
    record[26..28].copy_from_slice(&(entries as u16).to_le_bytes());
    let checksum = naive::crc32c(&record[RECORD_CHECKED_FROM..], SALT, false, false);
    record[..4].copy_from_slice(&checksum.to_le_bytes());
    record
}

/// A record of ranges of the device's heap: what was there (undo) or what shall be (redo).
#[must_use]
pub fn ranges(undo: bool, position: u64, sequence: u64, entries: &[(Range, &[u8])]) -> Vec<u8> {
    let mut record = vec![0; RECORD_HEADER_BYTES];
    for (range, bytes) in entries {
        let word = RangeWord::new(range.at, range.bytes).map_or(0, |word| word.0);
        record.extend(word.to_le_bytes());
        record.extend(*bytes);
    }
    seal(record, if undo { RECORD_UNDO } else { RECORD_RANGES }, entries.len(), position, sequence)
}

/// A record of whole lines: each entry is a piece of one page.
#[must_use]
pub fn lines(position: u64, sequence: u64, entries: &[(Range, &[u8])]) -> Vec<u8> {
    let mut record = vec![0; RECORD_HEADER_BYTES];
    for (range, bytes) in entries {
        let first = range.at % PAGE / 64;
        let map = (u128::from(u64::MAX) >> (64 - range.bytes / 64) << first) as u64;
        record.extend((range.at / PAGE).to_le_bytes());
        record.extend(map.to_le_bytes());
        record.extend(*bytes);
    }
    seal(record, RECORD_LINES, entries.len(), position, sequence)
}

/// A host's commit record: which copy of each page is valid from now on.
#[must_use]
pub fn pages(sequence: u64, entries: &[(u64, bool)]) -> Vec<u8> {
    let mut record = vec![0; RECORD_HEADER_BYTES];
    for &(page, second) in entries {
        record.extend((page | if second { PAGE_SECOND_COPY } else { 0 }).to_le_bytes());
        record.extend([0; PAGE_ENTRY_BYTES - 8]);
    }
    seal(record, RECORD_PAGES, entries.len(), 0, sequence)
}

/// Bytes and sequence of the record at `at`, if it is whole and says that it is at `position`.
#[must_use]
pub fn whole(memory: &[u8], at: Range, position: u64) -> Option<(u64, u64)> {
    let bytes = word(memory, at.at) >> 32;
    if bytes == 0
        || !bytes.is_multiple_of(RECORD_ALIGN as u64)
        || bytes > at.bytes
        || word(memory, at.at + 8) != position
    {
        return None;
    }
    let record = &memory[at.at as usize..(at.at + bytes) as usize];
    let checksum = naive::crc32c(&record[RECORD_CHECKED_FROM..], SALT, false, false);
    (word(memory, at.at) as u32 == checksum).then(|| (bytes, word(memory, at.at + 16)))
}

/// Reads a commit record.
#[must_use]
pub fn page_entries(memory: &[u8], at: Range) -> Option<(u64, Vec<(u64, bool)>)> {
    let (bytes, sequence) = whole(memory, at, 0)?;
    let kind = memory[at.at as usize + 24];
    let count = word(memory, at.at + 24) >> 16 & 0xffff;
    let room = (bytes - RECORD_HEADER_BYTES as u64) / PAGE_ENTRY_BYTES as u64;
    (kind == RECORD_PAGES && count <= room).then(|| {
        let entry =
            |index| word(memory, at.at + (RECORD_HEADER_BYTES + index as usize * PAGE_ENTRY_BYTES) as u64);
        let entries =
            (0..count).map(entry).map(|word| (word & !PAGE_SECOND_COPY, word & PAGE_SECOND_COPY != 0));
        (sequence, entries.collect())
    })
}

/// Returns the offsets and bytes that a whole record of ranges or lines stores. None: an entry leaves the record.
fn stores(record: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let (kind, entries) = (record[24], u16::from_le_bytes([record[26], record[27]]));
    let mut rest = &record[RECORD_HEADER_BYTES..];
    let mut next = |bytes: u64| rest.split_off(..bytes as usize);
    let mut stores = Vec::new();
    for _ in 0..entries {
        let first = word(next(8)?, 0);
        if kind == RECORD_LINES {
            let lines = word(next(8)?, 0);
            for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                stores.push((first * PAGE + line * LINE, next(LINE)?));
            }
        } else {
            let range = RangeWord(first);
            stores.push((range.offset(), next(range.length())?));
        }
    }
    Some(stores)
}

/// Stores to the heap what the record at `at` says, or nothing: then it returns false.
pub fn apply(layout: &Layout, memory: &mut [u8], at: Range, position: u64) -> bool {
    let Some((bytes, _)) = whole(memory, at, position) else { return false };
    let record = memory[at.at as usize..(at.at + bytes) as usize].to_vec();
    let in_heap = |(offset, bytes): &(u64, &[u8])| offset + bytes.len() as u64 <= layout.heap_local();
    let Some(stores) = stores(&record).filter(|stores| stores.iter().all(in_heap)) else { return false };
    for (offset, bytes) in stores {
        memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    true
}

/// Stores a lane's head: transactions up to `sequence` have no log any more.
pub fn reset(layout: &Layout, memory: &mut [u8], thread: usize, sequence: u64) {
    let head = &mut memory[layout.head(thread).at as usize..][..LINE as usize];
    head.fill(0);
    head[..8].copy_from_slice(&sequence.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { devices: 1, interleave: 4096, heap: 1 << 14, copies: false, lanes: 1, half: 8192 };

    #[test]
    fn records_are_the_formats_and_put_back_what_they_hold() {
        let half = LAYOUT.half(0, 0);
        let mut memory = vec![0; LAYOUT.local_bytes()];
        memory[4096..4096 + 2048].fill(7);
        let page = memory[4096 + 1024..4096 + 2048].to_vec();
        let range = Range::new(8, 16);
        for (record, changed) in [
            (ranges(true, 0, 5, &[(range, &[1; 16])]), range),
            (ranges(false, 0, 5, &[(range, &[1; 16])]), range),
            (lines(0, 5, &[(Range::new(4096 + 1024, 1024), &page)]), Range::new(4096 + 1024, 1024)),
        ] {
            let mut memory = memory.clone();
            memory[half.at as usize..][..record.len()].copy_from_slice(&record);
            assert_eq!(whole(&memory, half, 0), Some((record.len() as u64, 5)));
            let mut wanted = memory[..LAYOUT.heap as usize].to_vec();
            memory[changed.at as usize..changed.end() as usize].fill(0xee);
            assert!(apply(&LAYOUT, &mut memory, half, 0));
            if changed == range {
                wanted[8..24].fill(1);
            }
            assert_eq!(memory[..LAYOUT.heap as usize], wanted);
            assert!(!apply(&LAYOUT, &mut memory, half, 64));
            memory[half.at as usize + 40] ^= 1;
            assert_eq!((whole(&memory, half, 0), apply(&LAYOUT, &mut memory, half, 0)), (None, false));
        }
        reset(&LAYOUT, &mut memory, 0, 9);
        assert_eq!(word(&memory, LAYOUT.head(0).at), 9);
        let record = pages(3, &[(1, true), (2, false)]);
        let at = LAYOUT.commit(0);
        memory[at.at as usize..][..record.len()].copy_from_slice(&record);
        assert_eq!(page_entries(&memory, at), Some((3, vec![(1, true), (2, false)])));
    }
}
