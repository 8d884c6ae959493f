// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where in the file a byte of the heap lies.
//!
//! - **Layout** everywhere but with shadow paging: heap_start + offset. There: page p has two copies at heap_start + (2 p + copy)
//!   4096, and a table between lanes and heap has a bit for each page that says which one holds
//! - **Rule** the table is the one of a file whose log was replayed
//! - **Not here** turning pages over: `shadow`

use crate::error::{Error, Result};
use crate::layout::{Header, LANES_START};
use crate::medium::{Counters, Medium};
use crate::options::Mechanism;

const PAGE: u64 = 4096;

/// See the module's header.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    start: u64,
    heap_bytes: u64,
    /// A bit per page; none: pages have one copy.
    table: Option<Vec<u64>>,
}

impl Home {
    /// Reads the table, if there is one.
    pub fn of(medium: &Medium, header: &Header) -> Result<Home> {
        let (start, heap_bytes) = (header.heap_start, header.heap_bytes);
        if header.mechanism != Mechanism::Shadow as u8 {
            return Ok(Home { start, heap_bytes, table: None });
        }
        let table_start = LANES_START + u64::from(header.lanes) * header.lane_bytes;
        let words = (heap_bytes / PAGE).div_ceil(64);
        if start.saturating_sub(table_start) < words * 8 {
            return Err(Error::corrupt("the shadow table is smaller than the heap"));
        }
        let mut bytes = vec![0; (words * 8) as usize];
        medium.read(table_start, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let table = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Home { start, heap_bytes, table: Some(table) })
    }

    /// Where a byte of the heap is.
    pub fn place(&self, offset: u64) -> u64 {
        let Some(table) = &self.table else { return self.start + offset };
        let page = offset / PAGE;
        let copy = table.get(page as usize / 64).map_or(0, |word| word >> (page % 64) & 1);
        self.start + (page * 2 + copy) * PAGE + offset % PAGE
    }

    /// Calls `each` with the place in the file and the part of [0, bytes) for every piece that lies together.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.heap_bytes) {
            return Err(Error::corrupt(format!("bytes at {offset:#x} lie outside the heap")));
        }
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let left = if self.table.is_some() { (PAGE - at % PAGE) as usize } else { bytes };
            let piece = left.min(bytes - done);
            each(self.place(at), done..done + piece)?;
            done += piece;
        }
        Ok(())
    }

    /// Reads bytes of the heap.
    pub fn read(&self, medium: &Medium, offset: u64, target: &mut [u8]) -> Result<()> {
        self.pieces(offset, target.len(), |place, part| medium.read(place, &mut target[part]))
    }

    /// Stores bytes of the heap to where they hold; durable after the next harden.
    pub fn store(&self, medium: &Medium, offset: u64, source: &[u8], counters: &mut Counters) -> Result<()> {
        self.pieces(offset, source.len(), |place, part| {
            let bytes = part.len() as u64;
            medium.store(place, &source[part], counters)?;
            medium.write_back(place, bytes, counters);
            Ok(())
        })
    }
}
