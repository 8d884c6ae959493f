// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A span's record: its taken slots and its touched pages.
//!
//! - **Layout** [`Span`] has 160 bytes, one per 64 KiB of data, in a mapping beside the data: class, counts, list links, one
//!   bit per slot, two per page
//! - **Order** a page's bit is set before the page is written, and cleared after the page was given back
//! - **Not here** the lists, the data

use super::class;
use crate::mapping::PAGE_BYTES;

/// Number of pages of a span.
pub(super) const PAGES: usize = class::SPAN_BYTES / PAGE_BYTES;

/// Link that names no span.
pub(super) const NONE: u32 = u32::MAX;

/// The record of one span. An all-zero record is a free span.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct Span {
    /// One bit per slot that is taken.
    pub(super) taken: [u64; 16],
    /// Neighbours in the list of the span's class and fullness, or [`NONE`].
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Number of slots that are taken.
    pub(super) live: u16,
    /// One bit per page that is touched.
    pub(super) touched: u16,
    pub(super) class: u8,
    /// The list that the span is in; see [`Span::fullness`].
    pub(super) list: u8,
    pub(super) in_use: bool,
    pub(super) padding: u8,
    /// One bit per touched page that another process shares since a fork: writing to such a page makes a copy.
    pub(super) shared: u16,
    pub(super) rest: [u8; 14],
}

const _: () = assert!(std::mem::size_of::<Span>() == 160 && PAGES == 16);

/// Number of lists per class, one for each degree of fullness.
pub(super) const LISTS: usize = 5;

/// The list of spans without a free slot.
pub(super) const FULL: u8 = 4;

impl Span {
    /// Returns the list that the span belongs in: 0 to 3 by quarters of its slots that are taken, or [`FULL`].
    pub(super) fn fullness(&self) -> u8 {
        let slots = class::slots(self.class);
        if usize::from(self.live) >= slots { FULL } else { (usize::from(self.live) * 4 / slots) as u8 }
    }

    /// Returns the pages that are touched and belong to this process alone.
    pub(super) fn own_pages(&self) -> u16 {
        self.touched & !self.shared
    }

    /// Returns a free slot: among the first 32 free slots, one whose pages are touched and belong to this process alone; else
    /// the first free slot.
    pub(super) fn free_slot(&self) -> Option<usize> {
        let slots = class::slots(self.class);
        let (mut first, mut looked_at) = (None, 0);
        for (index, word) in self.taken.iter().enumerate().take(slots.div_ceil(64)) {
            let mut free = !word;
            while free != 0 {
                let slot = index * 64 + free.trailing_zeros() as usize;
                if slot >= slots {
                    return first;
                }
                if self.pages_of(slot) & !self.own_pages() == 0 {
                    return Some(slot);
                }
                first = first.or(Some(slot));
                looked_at += 1;
                if looked_at == 32 {
                    return first;
                }
                free &= free - 1;
            }
        }
        first
    }

    /// Returns the pages on which a slot lies, one bit each.
    pub(super) fn pages_of(&self, slot: usize) -> u16 {
        pages_of(self.class, slot)
    }

    /// Marks a slot as taken or free.
    pub(super) fn set(&mut self, slot: usize, taken: bool) {
        let Some(word) = self.taken.get_mut(slot / 64) else { return };
        let bit = 1 << (slot % 64);
        if taken {
            *word |= bit;
            self.live += 1;
        } else {
            *word &= !bit;
            self.live = self.live.saturating_sub(1);
        }
    }

    /// Returns true if a slot is taken.
    pub(super) fn is_taken(&self, slot: usize) -> bool {
        self.taken.get(slot / 64).is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    /// Returns the touched pages on which no slot is taken.
    pub(super) fn idle_pages(&self) -> u16 {
        let mut used = 0;
        for (index, word) in self.taken.iter().enumerate() {
            let mut taken = *word;
            while taken != 0 {
                used |= self.pages_of(index * 64 + taken.trailing_zeros() as usize);
                taken &= taken - 1;
            }
        }
        self.touched & !used
    }
}

/// Returns the pages on which a slot of a span of `class` lies, one bit each.
pub(super) fn pages_of(class: u8, slot: usize) -> u16 {
    let bytes = class::slot_bytes(class);
    let first = slot * bytes / PAGE_BYTES;
    let last = (slot * bytes + bytes - 1) / PAGE_BYTES;
    (((1u32 << (last - first + 1)) - 1) << first) as u16
}
