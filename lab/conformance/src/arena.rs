// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that descriptors of a case point into, by offset until they are submitted.
//!
//! - **Layout** one stretch, aligned to 4096: data, then descriptor lists, then completion records
//! - **Owner** the arena owns its bytes; the backend gets addresses (`base` + offset), the model an image

/// Bytes of data.
pub(crate) const DATA_BYTES: usize = 256 * 1024;
/// Where descriptor lists start.
pub(crate) const LISTS: usize = DATA_BYTES;
/// Bytes for descriptor lists.
pub(crate) const LIST_BYTES: usize = 1100 * 64;
/// Offset of the completion records in the arena.
pub(crate) const RECORDS: usize = LISTS + LIST_BYTES;
/// Number of completion records.
pub(crate) const RECORD_COUNT: usize = 1100;
/// Bytes of the whole arena.
pub(crate) const ARENA_BYTES: usize = RECORDS + RECORD_COUNT * 32;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Zeroed memory at a page boundary.
pub(crate) struct Arena {
    pages: Vec<Page>,
}

impl Arena {
    pub fn new() -> Arena {
        Arena { pages: vec![Page([0; 4096]); ARENA_BYTES.div_ceil(4096)] }
    }

    /// The first byte. The pointer's provenance is exposed: descriptors carry it as a number.
    pub fn base(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }

    pub fn to_vec(&self) -> Vec<u8> {
        self.pages.iter().flat_map(|page| page.0).collect()
    }

    pub fn fill_from(&mut self, bytes: &[u8]) {
        for (page, bytes) in self.pages.iter_mut().zip(bytes.chunks(4096)) {
            page.0[..bytes.len()].copy_from_slice(bytes);
        }
    }
}
