// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compaction: the objects of a class's emptiest span are moved to its other spans, and pages without objects are given back.
//!
//! - **Flow** next class ──its free slots would fill a span──▶ its emptiest span ──object by object──▶ free slots on pages
//!   that are touched already ──▶ the empty span is given back; then the pages of partly filled spans on which no slot is
//!   taken
//! - **Order** for each object: lock, hold its entry, copy, release the entry, unlock. An object that another thread holds
//!   stays where it is
//! - **Not here** the time to compact: callers that need room decide that

use super::span::{FULL, NONE};
use super::{CLASSES, HEADER_BYTES, Place, SPAN_BYTES, State, Store, class};

/// Upper bound of the spans of one list that are compared to find the emptiest or one with a free slot.
const SPANS_LOOKED_AT: usize = 16;

impl Store {
    /// Moves up to `budget` objects and gives empty pages back. Returns the bytes of memory that this freed. No page is
    /// touched for the first time.
    pub fn compact(&self, budget: usize) -> usize {
        let (mut left, mut released) = (budget, 0);
        for _ in 0..CLASSES {
            if left == 0 {
                break;
            }
            let class = {
                let mut state = self.state.lock();
                let class = state.cursor;
                state.cursor = (class + 1) % CLASSES as u8;
                class
            };
            while let Some(index) = self.emptiest(class) {
                let (moved, bytes) = self.empty(class, index, left);
                left = left.saturating_sub(moved);
                released += bytes;
                if left == 0 || bytes == 0 {
                    break;
                }
            }
            released += self.trim(class, &mut left);
        }
        released
    }

    /// Returns the class's emptiest span, if the other spans have room for its objects.
    fn emptiest(&self, class: u8) -> Option<u32> {
        let state = self.state.lock();
        let record = state.classes.get(usize::from(class))?;
        let slots = class::slots(class);
        if record.spans < 2 || (record.spans as usize * slots).saturating_sub(record.live as usize) < slots {
            return None;
        }
        let first = *record.lists.iter().take(usize::from(FULL)).find(|first| **first != NONE)?;
        let (mut best, mut index) = (None, first);
        for _ in 0..SPANS_LOOKED_AT {
            let Some(span) = self.span(index) else { break };
            if best.is_none_or(|(live, _)| span.live < live) {
                best = Some((span.live, index));
            }
            index = span.next;
        }
        best.map(|(_, index)| index)
    }

    /// Moves up to `budget` objects out of a span. Returns their number, and the bytes that this freed.
    fn empty(&self, class: u8, source: u32, budget: usize) -> (usize, usize) {
        let (mut moved, mut released) = (0, 0);
        for slot in 0..class::slots(class) {
            if moved >= budget {
                break;
            }
            let state = &mut *self.state.lock();
            let Some(span) = self.span(source) else { break };
            if !span.in_use || span.class != class {
                break;
            }
            if !span.is_taken(slot) {
                continue;
            }
            match self.move_object(state, class, source, slot) {
                Some(bytes) => {
                    moved += 1;
                    released += bytes;
                }
                None => continue,
            }
            self.publish(state);
        }
        (moved, released)
    }

    /// Moves one object to a touched slot of another span. Returns the bytes that this freed.
    fn move_object(&self, state: &mut State, class: u8, source: u32, slot: usize) -> Option<usize> {
        let slot_bytes = class::slot_bytes(class);
        let from = source as usize * SPAN_BYTES + slot * slot_bytes;
        let (target, room) = self.touched_slot(state, class, source)?;
        // SAFETY: the slot is taken, so its header was written under the lock.
        let handle = unsafe { self.data.pointer().as_ptr().add(from).cast::<u32>().read() };
        let place = self.table.try_hold(handle)?;
        if place.offset != from {
            self.table.release_at(handle, place);
            return None;
        }
        let to = target as usize * SPAN_BYTES + room * slot_bytes;
        self.take_slot(state, target, room);
        // SAFETY: both slots lie in the data and have the size of this class; the source's entry is held, and the target was
        // free.
        unsafe {
            let start = self.data.pointer().as_ptr();
            start.add(to).copy_from_nonoverlapping(start.add(from), HEADER_BYTES + place.bytes);
        }
        self.table.release_at(handle, Place { offset: to, ..place });
        Some(self.give_slot(state, source, slot))
    }

    /// Finds a free slot, in the fullest spans other than `source`, all of whose pages are touched and belong to this process
    /// alone.
    fn touched_slot(&self, state: &State, class: u8, source: u32) -> Option<(u32, usize)> {
        let lists = state.classes.get(usize::from(class))?.lists;
        for first in lists.iter().take(usize::from(FULL)).rev() {
            let mut index = *first;
            for _ in 0..SPANS_LOOKED_AT {
                let Some(span) = self.span(index) else { break };
                if index != source
                    && let Some(slot) = span.free_slot()
                    && span.pages_of(slot) & !span.own_pages() == 0
                {
                    return Some((index, slot));
                }
                index = span.next;
            }
        }
        None
    }

    /// Gives back the pages of partly filled spans on which no slot is taken. Each span that is checked costs one of
    /// `budget`.
    fn trim(&self, class: u8, budget: &mut usize) -> usize {
        let state = &mut *self.state.lock();
        let Some(lists) = state.classes.get(usize::from(class)).map(|class| class.lists) else { return 0 };
        let mut released = 0;
        for first in lists.iter().take(usize::from(FULL)) {
            let mut index = *first;
            while *budget > 0 {
                let Some(span) = self.span(index) else { break };
                *budget -= 1;
                let (idle, next) = (span.idle_pages(), span.next);
                released += self.release_pages(state, index, idle);
                index = next;
            }
        }
        self.publish(state);
        released
    }
}
