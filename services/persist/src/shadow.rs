// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shadow paging: each page has two copies in the file, and a commit turns pages over.
//!
//! - **Layout** page p of the heap lies at heap_start + (2 p + copy) 4096. The table, between lanes and heap, has a bit per page:
//!   the number of its current copy. A log record of kind pages says which bits a commit changed
//! - **Flow** dirty lines of a page, and those by which its other copy is behind, go to that other copy; the record names page,
//!   copy, lines and their checksum; one harden for all pages and the record. Applying a record sets bits in the table
//! - **Why** the other copy lacks only what the last commit of this page changed: so a commit writes the lines of two
//!   commits, not a page
//! - **Order** a copy is overwritten only when the commit that turned away from it is durable. The last record of the log may be
//!   durable while its lines are not: recovery compares their checksum and drops the record then
//! - **Source** NearPM §4.3 (shadowcpy)

use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{CATALOG_BYTES, Header, LANES_START};
use crate::medium::{Counters, Medium};
use memlift_spec::formats::log::{PAGE_BYTES, PAGE_ENTRY_BYTES, PAGE_SECOND_COPY, RecordHeader};

const PAGE: u64 = PAGE_BYTES as u64;
const _: () = assert!(CATALOG_BYTES.is_multiple_of(PAGE));

/// Words of a line of the table.
const LINE_WORDS: usize = 8;

/// Words of a bitmap with a bit per line of a table.
fn stale_words(words: usize) -> usize {
    words.div_ceil(LINE_WORDS).div_ceil(64)
}

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
    /// Pages of the heap; the table's last word may have bits for more.
    pages: u64,
    /// The current copy of each page, a bit each: as of the last commit, which is durable or about to be.
    current: Vec<u64>,
    /// The same as the table in the file has it, or will have it once `stale` is stored.
    table: Vec<u64>,
    /// Words of the table that the file does not have yet, by line, a bit per line.
    stale: Vec<u64>,
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
        let stale = vec![0; stale_words(words)];
        let pages = header.heap_bytes / PAGE;
        Ok(Shadow { start, pages, current: table.clone(), table, stale, behind: Vec::new() })
    }

    /// Room for a longer heap.
    pub fn grow(&mut self, heap_bytes: u64) {
        self.pages = heap_bytes / PAGE;
        let words = self.pages.div_ceil(64) as usize;
        self.current.resize(words, 0);
        self.table.resize(words, 0);
        self.stale.resize(stale_words(words), 0);
    }

    fn bit(words: &[u64], page: u64) -> u64 {
        words[page as usize / 64] >> (page % 64) & 1
    }

    /// Number of a page's current copy, 0 or 1.
    pub fn copy(&self, page: u64) -> u64 {
        Shadow::bit(&self.current, page)
    }

    /// Writes a page's dirty lines to its other copy and makes that the current one. Gives the record's entry.
    pub fn turn(
        &mut self,
        (image, medium, heap_start): (&Image, &Medium, u64),
        page: u64,
        dirty: u64,
        counters: &mut Counters,
    ) -> Result<(u64, u64, u32)> {
        let lines = self.behind.get(page as usize).copied().unwrap_or(!0) | dirty;
        let copy = 1 - self.copy(page);
        let bytes = image.bytes(page * PAGE, PAGE);
        let target = place(heap_start, page, copy);
        let checksum = medium.write_lines(target, bytes, lines, counters)?;
        if self.behind.len() <= page as usize {
            self.behind.resize(self.current.len() * 64, !0);
        }
        self.behind[page as usize] = dirty;
        self.current[page as usize / 64] ^= 1 << (page % 64);
        Ok((page | copy << 63, lines, checksum))
    }

    /// Sets the bits of a record in the table; in the file, when it is stored.
    pub fn apply(&mut self, record: &[u8]) -> Result<()> {
        for (page, copy, ..) in entries(record)? {
            if page >= self.pages {
                return Err(outside());
            }
            let at = page as usize / 64;
            let word = &mut self.table[at];
            *word = *word & !(1 << (page % 64)) | copy << (page % 64);
            self.stale[at / LINE_WORDS / 64] |= 1 << (at / LINE_WORDS % 64);
        }
        Ok(())
    }

    /// Stores what records have set: durable after the next harden. A line of the table has the bits of 512 pages, so it is
    /// stored once for all that a batch of records says about them.
    pub fn store(&mut self, medium: &Medium, counters: &mut Counters) -> Result<()> {
        for (at, stale) in self.stale.iter_mut().enumerate() {
            while *stale != 0 {
                let first = (at * 64 + stale.trailing_zeros() as usize) * LINE_WORDS;
                let words = &self.table[first..self.table.len().min(first + LINE_WORDS)];
                let mut line = [[0; 8]; LINE_WORDS];
                line.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
                let (offset, bytes) = (self.start + first as u64 * 8, line[..words.len()].as_flattened());
                medium.store(offset, bytes, counters)?;
                medium.write_back(offset, bytes.len() as u64, counters);
                *stale &= *stale - 1;
            }
        }
        Ok(())
    }

    /// Returns true if the copies that a record names hold the lines that it names.
    pub fn verifies(&self, medium: &Medium, heap_start: u64, record: &[u8]) -> Result<bool> {
        for (page, copy, lines, checksum) in entries(record)? {
            if page >= self.pages {
                return Err(outside());
            }
            let mut bytes = vec![0; PAGE_BYTES];
            medium.read(place(heap_start, page, copy), &mut bytes)?;
            if crate::layout::crc_of_lines(&bytes, lines) != checksum {
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

/// Page, copy, lines, checksum of each entry.
fn entries(record: &[u8]) -> Result<impl Iterator<Item = (u64, u64, u64, u32)>> {
    let broken =
        || Error::corrupt("a log record's entries do not fit: it has a good checksum and a wrong content");
    let count = crate::record::entries(record);
    let start = size_of::<RecordHeader>();
    let bytes = record.get(start..start + count * PAGE_ENTRY_BYTES).ok_or_else(broken)?;
    let (entries, _) = bytes.as_chunks::<PAGE_ENTRY_BYTES>();
    Ok(entries.iter().map(|entry| {
        let word = |at: usize| u64::from_le_bytes(entry[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
        let page = word(0);
        (page & !PAGE_SECOND_COPY, page >> 63, word(1), word(2) as u32)
    }))
}
