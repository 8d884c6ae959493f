// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shadow paging: each page has two copies in the file, and a commit turns pages over.
//!
//! Layout   page p of the heap lies at heap_start + (2 p + copy) 4096. The table, between lanes and heap, has a bit per page: which
//!          copy holds. A log record of kind pages says which bits a commit changed
//! Flow     dirty lines of a page, and those by which its other copy is behind, go to that other copy; the record names page,
//!          copy, lines and their checksum; one harden for all pages and the record. Applying a record sets bits in the table
//! Why      the other copy is behind by what the last commit of this page changed, and no more: so it is brought up to date by two
//!          commits' lines, not by a page
//! Order    a copy is overwritten only when the commit that turned away from it is durable. The last record of the log may be
//!          durable while its lines are not: recovery compares their checksum and drops the record then
//! Source   NearPM §4.3 (shadowcpy)

use crate::error::{Error, Result};
use crate::layout::{CATALOG_BYTES, Header, LANES_START};
use crate::medium::{Counters, Medium};
use crate::store::Store;
use memlift_spec::operand::log::{PAGE_BYTES, PAGE_ENTRY_BYTES, PAGE_SECOND_COPY, RecordHeader};

const PAGE: u64 = PAGE_BYTES as u64;
const _: () = assert!(CATALOG_BYTES.is_multiple_of(PAGE));

/// Bytes of a table for a heap of up to `max_bytes`.
pub(crate) fn table_bytes(max_bytes: u64) -> u64 {
    max_bytes.div_ceil(PAGE).div_ceil(8).next_multiple_of(PAGE)
}

/// Where the table starts.
fn table_start(header: &Header) -> u64 {
    LANES_START + u64::from(header.lanes) * header.lane_bytes
}

/// Heap bytes that the table has bits for.
pub(crate) fn capacity(header: &Header) -> u64 {
    (header.heap_start - table_start(header)) * 8 * PAGE
}

/// Where a copy of a page lies in the file.
pub(crate) fn place(heap_start: u64, page: u64, copy: u64) -> u64 {
    heap_start + (page * 2 + copy) * PAGE
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Shadow {
    start: u64,
    /// Which copy holds, a bit per page: of the last commit, durable or about to be.
    current: Vec<u64>,
    /// The same as the table in the file has it.
    table: Vec<u64>,
    /// By page: lines by which the other copy is behind, as far as is known.
    behind: Vec<u64>,
}

impl Shadow {
    /// Reads the table.
    pub fn read(medium: &Medium, header: &Header) -> Result<Shadow> {
        let start = table_start(header);
        if header.heap_bytes > capacity(header) {
            return Err(Error::corrupt("the shadow table is smaller than the heap"));
        }
        let words = (header.heap_bytes / PAGE).div_ceil(64) as usize;
        let mut bytes = vec![0; words * 8];
        medium.read(start, &mut bytes)?;
        let (chunks, _) = bytes.as_chunks::<8>();
        let table: Vec<u64> = chunks.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Shadow { start, current: table.clone(), table, behind: Vec::new() })
    }

    /// Room for a longer heap.
    pub fn grow(&mut self, heap_bytes: u64) {
        let words = (heap_bytes / PAGE).div_ceil(64) as usize;
        self.current.resize(words, 0);
        self.table.resize(words, 0);
    }

    fn bit(words: &[u64], page: u64) -> u64 {
        words[page as usize / 64] >> (page % 64) & 1
    }

    /// Which copy of a page holds.
    pub fn copy(&self, page: u64) -> u64 {
        Shadow::bit(&self.current, page)
    }

    /// Writes a page's dirty lines to its other copy and makes that the current one. Gives the record's entry.
    pub fn turn(
        &mut self,
        store: &Store,
        page: u64,
        dirty: u64,
        counters: &mut Counters,
    ) -> Result<(u64, u64, u32)> {
        let lines = self.behind.get(page as usize).copied().unwrap_or(!0) | dirty;
        let copy = 1 - self.copy(page);
        let bytes = store.image.bytes(page * PAGE, PAGE);
        let target = place(store.heap_start, page, copy);
        let checksum = store.medium.write_lines(target, bytes, lines, counters)?;
        if self.behind.len() <= page as usize {
            self.behind.resize(self.current.len() * 64, !0);
        }
        self.behind[page as usize] = dirty;
        self.current[page as usize / 64] ^= 1 << (page % 64);
        Ok((page | copy << 63, lines, checksum))
    }

    /// Sets the bits of a record in the table, in memory and in the file.
    pub fn apply(&mut self, medium: &Medium, record: &[u8], counters: &mut Counters) -> Result<()> {
        for (page, copy, ..) in entries(record)? {
            let word = self.table.get_mut(page as usize / 64).ok_or_else(outside)?;
            *word = *word & !(1 << (page % 64)) | copy << (page % 64);
            let offset = self.start + page / 64 * 8;
            medium.store(offset, &word.to_le_bytes(), counters)?;
            medium.write_back(offset, 8, counters);
        }
        Ok(())
    }

    /// Whether the copies that a record names hold the lines that it says.
    pub fn verifies(&self, medium: &Medium, heap_start: u64, record: &[u8]) -> Result<bool> {
        for (page, copy, lines, checksum) in entries(record)? {
            if page as usize / 64 >= self.table.len() {
                return Err(outside());
            }
            let mut bytes = vec![0; PAGE_BYTES];
            medium.read(place(heap_start, page, copy), &mut bytes)?;
            if crc_of_lines(&bytes, lines) != checksum {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// After recovery the table is the truth.
    pub fn settle(&mut self) {
        self.current.clone_from(&self.table);
    }
}

fn outside() -> Error {
    Error::corrupt("a log record names a page outside the heap")
}

/// CRC-32C of the lines of a page, one after the other.
pub(crate) fn crc_of_lines(page: &[u8], lines: u64) -> u32 {
    let pieces: Vec<&[u8]> =
        (0..64).filter(|line| lines >> line & 1 == 1).map(|line| &page[line * 64..line * 64 + 64]).collect();
    crate::layout::crc32c(&pieces)
}

/// Page, copy, lines, checksum of each entry.
fn entries(record: &[u8]) -> Result<Vec<(u64, u64, u64, u32)>> {
    let broken =
        || Error::corrupt("a log record's entries do not fit: it has a good checksum and a wrong content");
    let count = crate::record::header(record).entries;
    let start = size_of::<RecordHeader>();
    let bytes = record.get(start..start + usize::from(count) * PAGE_ENTRY_BYTES).ok_or_else(broken)?;
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    Ok((0..usize::from(count))
        .map(|at| {
            let page = word(at * 3);
            (page & !PAGE_SECOND_COPY, page >> 63, word(at * 3 + 1), word(at * 3 + 2) as u32)
        })
        .collect())
}
