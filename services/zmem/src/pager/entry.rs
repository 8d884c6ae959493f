// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of one page, in one word.
//!
//! - **Layout** bits 0–3 tag · 4–5 heat · 6–13 pins (of present pages and of `Empty`) or the round in which the page left (of
//!   the others) · 16–63 handle, slot or short word. Beside a store handle, 48–61 hold the time at which the page left. Bit
//!   63, beside a store handle or in a raw entry: packing the page as a cold one was tried. Bit 62 of a clean page: its copy
//!   is in the spill file, at the slot. An all-zero entry belongs to a chunk that is not armed. A busy entry may contain the
//!   entry from before: bit 4 then means that a thread waits, the old tag is in bits 5, 14 and 15, and the other bits are
//!   unchanged
//! - **Order** the state of a page changes only through `Busy`. Heat and pins are the exception: they change by
//!   compare-and-swap of a word that is not busy. Entries are opened before their chunk becomes armed, and closed before it is
//!   no longer armed. So a thread that decided to work on a page while the chunk was armed, and comes late, claims nothing
//! - **Not here** the table ([`super::table`])

use crate::spill::Slot;

/// The entry of a page: its state in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(pub u64);

/// State of a page: the low four bits of its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Tag {
    /// The chunk is not armed: nothing is known of the page, and no thread claims it.
    Closed = 0,
    /// Present and writable, without a copy.
    Dirty = 1,
    /// Present and write-protected; a copy with the same contents is in the store or in the spill file.
    Clean = 2,
    /// No memory; the contents are in the store, under the handle.
    Stored = 3,
    /// No memory; the contents are one word repeated, which is short enough to lie in the entry.
    Filled = 4,
    /// No memory; the contents are one word repeated, which is stored under the handle.
    Word = 5,
    /// No memory; the contents are in the spill file, at the slot.
    Spilled = 6,
    /// A thread has claimed the page and works on it.
    Busy = 7,
    /// Present and write-protected, without a copy; a process that a fork made may share the same memory.
    Shared = 8,
    /// No memory; reads as zeros.
    Empty = 9,
    /// A tag that nothing writes.
    Unknown = 15,
}

const HEAT: u64 = 3 << 4;
const PINS_SHIFT: u32 = 6;
const PINS: u64 = MAX_PINS << PINS_SHIFT;
const HANDLE_SHIFT: u32 = 16;

/// Upper bound of the pins of a page.
pub(super) const MAX_PINS: u64 = 0xff;
/// Largest time that an entry has room for; larger times wrap around.
pub(super) const MAX_LEFT: u64 = (1 << 14) - 1;
/// Upper bound of the heat of a page.
pub(super) const MAX_HEAT: u64 = 3;
/// In a busy entry: a thread waits for the page.
pub(super) const WAITERS: u64 = 1 << 4;
/// In an entry without a copy: the page did not compress when that was last tried.
const RAW: u64 = 1 << HANDLE_SHIFT;
/// In an entry with a store handle, or a raw entry: packing the page as a cold one was tried.
const TRIED: u64 = 1 << 63;
/// Beside a store handle: the time at which the page left, in steps of the pager's clock.
const LEFT_SHIFT: u32 = 48;
const LEFT: u64 = MAX_LEFT << LEFT_SHIFT;
/// In a clean entry: the copy is in the spill file.
const FILED: u64 = 1 << 62;

impl Entry {
    pub const CLOSED: Entry = Entry(Tag::Closed as u64);
    pub const EMPTY: Entry = Entry(Tag::Empty as u64);

    pub const fn new(tag: Tag, handle: u64) -> Entry {
        Entry(tag as u64 | handle << HANDLE_SHIFT)
    }

    pub fn tag(self) -> Tag {
        match self.0 & 15 {
            0 => Tag::Closed,
            1 => Tag::Dirty,
            2 => Tag::Clean,
            3 => Tag::Stored,
            4 => Tag::Filled,
            5 => Tag::Word,
            6 => Tag::Spilled,
            7 => Tag::Busy,
            8 => Tag::Shared,
            9 => Tag::Empty,
            _ => Tag::Unknown,
        }
    }

    pub fn handle(self) -> u64 {
        self.0 >> HANDLE_SHIFT
    }

    /// Makes the entry of a present page whose copy is in the spill file.
    pub fn filed(slot: Slot) -> Entry {
        Entry(Entry::new(Tag::Clean, slot.0).0 | FILED)
    }

    /// Returns the slot of the page in the spill file, if it has one.
    pub fn slot(self) -> Option<Slot> {
        let filed = self.tag() == Tag::Clean && self.0 & FILED != 0;
        (filed || self.tag() == Tag::Spilled).then_some(Slot((self.0 & !FILED) >> HANDLE_SHIFT))
    }

    /// Returns the entry that a clean page gets when its memory is dropped.
    pub fn away(self) -> Entry {
        match self.slot() {
            Some(slot) => Entry::new(Tag::Spilled, slot.0),
            None => Entry::new(Tag::Stored, self.handle()),
        }
    }

    /// Returns the store's handle of an entry that has one.
    pub fn handle_of_store(self) -> u32 {
        self.handle() as u32
    }

    /// Returns the entry marked as tried by cold packing, for `Stored`, `Shared`, raw and `Clean` entries. In a `Clean` entry
    /// the mark refers to the copy.
    pub fn tried(self) -> Entry {
        Entry(self.0 | TRIED)
    }

    /// Returns true if packing the page as a cold one was tried.
    pub fn was_tried(self) -> bool {
        (matches!(self.tag(), Tag::Stored | Tag::Clean | Tag::Shared) || self.is_raw()) && self.0 & TRIED != 0
    }

    pub fn is_busy(self) -> bool {
        self.tag() == Tag::Busy
    }

    /// Returns true if the page is present in memory.
    pub fn is_present(self) -> bool {
        matches!(self.tag(), Tag::Dirty | Tag::Clean | Tag::Shared)
    }

    /// Returns true if the page is present and no copy of it is kept.
    pub fn has_no_copy(self) -> bool {
        matches!(self.tag(), Tag::Dirty | Tag::Shared)
    }

    /// Returns true if the page is present and a write to it faults.
    pub fn is_protected(self) -> bool {
        matches!(self.tag(), Tag::Clean | Tag::Shared)
    }

    /// Returns a dirty entry as shared, for a page that was write-protected because a fork shares it; other entries are
    /// unchanged.
    pub fn shared(self) -> Entry {
        if self.tag() == Tag::Dirty { Entry(self.0 & !15 | Tag::Shared as u64) } else { self }
    }

    /// Returns a shared entry as dirty, for a page that may be written again; other entries are unchanged.
    pub fn unshared(self) -> Entry {
        if self.tag() == Tag::Shared { Entry(self.0 & !15 | Tag::Dirty as u64) } else { self }
    }

    /// Returns true if the page is not present and its contents are kept elsewhere.
    pub fn is_away(self) -> bool {
        matches!(self.tag(), Tag::Stored | Tag::Filled | Tag::Word | Tag::Spilled)
    }

    pub fn heat(self) -> u64 {
        (self.0 & HEAT) >> 4
    }

    pub fn with_heat(self, heat: u64) -> Entry {
        Entry(self.0 & !HEAT | heat.min(MAX_HEAT) << 4)
    }

    /// Returns the pins of a page that is present or empty, and 0 for others.
    pub fn pins(self) -> u64 {
        if self.is_present() || self.tag() == Tag::Empty { (self.0 & PINS) >> PINS_SHIFT } else { 0 }
    }

    pub fn with_pins(self, pins: u64) -> Entry {
        Entry(self.0 & !PINS | (pins & MAX_PINS) << PINS_SHIFT)
    }

    /// Returns the round of the clock hand, modulo 256, in which the page left memory.
    pub fn round(self) -> u64 {
        (self.0 & PINS) >> PINS_SHIFT
    }

    pub fn with_round(self, round: u64) -> Entry {
        self.with_pins(round)
    }

    /// Returns the time at which a page in the store left, or `None` for other entries, which have no room for it.
    pub fn left(self) -> Option<u64> {
        matches!(self.tag(), Tag::Stored | Tag::Word).then_some((self.0 & LEFT) >> LEFT_SHIFT)
    }

    /// Returns the entry with the time at which the page left, if it has room for that.
    pub fn with_left(self, time: u64) -> Entry {
        match self.left() {
            Some(_) => Entry(self.0 & !LEFT | (time & MAX_LEFT) << LEFT_SHIFT),
            None => self,
        }
    }

    /// Returns a busy entry that contains this one, without its heat.
    pub fn parked(self) -> Entry {
        // Two numbers do not fit into three bits. Entries that are busy or closed are never parked, so theirs are used.
        let tag = match self.tag() {
            Tag::Shared => Tag::Busy as u64,
            Tag::Empty => Tag::Closed as u64,
            tag => tag as u64,
        };
        let rest = self.0 & !(0x3f | 3 << 14);
        Entry(Tag::Busy as u64 | (tag & 1) << 5 | (tag >> 1 & 3) << 14 | rest)
    }

    /// Returns the entry that this busy one contains.
    pub fn unparked(self) -> Entry {
        let parked = self.0 >> 5 & 1 | (self.0 >> 14 & 3) << 1;
        let tag = match parked {
            7 => Tag::Shared as u64,
            0 => Tag::Empty as u64,
            tag => tag,
        };
        Entry(self.0 & !(0x3f | 3 << 14) | tag)
    }

    pub fn is_raw(self) -> bool {
        self.has_no_copy() && self.0 & RAW != 0
    }

    /// Returns the entry, which has no copy, marked as not compressible at `time` of the pager's clock.
    pub fn raw(self, time: u64) -> Entry {
        Entry(self.0 & 0xffff | RAW | time << (HANDLE_SHIFT + 1) & !TRIED)
    }

    /// Returns the time that has passed since compression failed.
    pub fn raw_age(self, time: u64) -> u64 {
        time.wrapping_sub(self.0 >> (HANDLE_SHIFT + 1)) & ((1 << 46) - 1)
    }

    /// Returns the entry of a page that consists of one repeated word, or `None` if the word is too long for an entry.
    pub fn filled(word: u64) -> Option<Entry> {
        if word == 0 {
            return Some(Entry::EMPTY);
        }
        let short = (word as i64) << 16 >> 16;
        (short as u64 == word).then_some(Entry(Tag::Filled as u64 | word << HANDLE_SHIFT))
    }

    /// Returns the word of a `Filled` entry.
    pub fn word(self) -> u64 {
        (self.0 as i64 >> HANDLE_SHIFT) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let entry = Entry::new(Tag::Clean, 0xffff_ffff_ffff).with_heat(3).with_pins(MAX_PINS);
        assert_eq!(
            (entry.tag(), entry.handle(), entry.heat(), entry.pins()),
            (Tag::Clean, 0xffff_ffff_ffff, 3, MAX_PINS)
        );
        let entry = entry.with_heat(0).with_pins(1);
        assert_eq!(
            (entry.tag(), entry.handle(), entry.heat(), entry.pins()),
            (Tag::Clean, 0xffff_ffff_ffff, 0, 1)
        );
        let raw = Entry::new(Tag::Dirty, 0).with_pins(3).raw(1000);
        assert!(raw.is_raw() && raw.pins() == 3 && raw.raw_age(1010) == 10);
        assert!(!Entry::new(Tag::Clean, 1).is_raw());
        let tried = raw.tried();
        assert!(!raw.was_tried() && tried.was_tried() && tried.raw_age(1010) == 10 && tried.pins() == 3);
        assert!(!tried.raw(1 << 46).was_tried());
        let stored = Entry::new(Tag::Stored, 0xffff_fffe).with_round(7);
        assert!(!stored.was_tried() && stored.tried().was_tried());
        assert_eq!((stored.tried().handle_of_store(), stored.tried().round()), (0xffff_fffe, 7));
        assert!(Entry::new(Tag::Clean, stored.tried().handle()).was_tried(), "the mark goes with the copy");
        assert!(!Entry::filled(u64::MAX).expect("a short word").was_tried());
    }

    #[test]
    fn a_clean_page_knows_where_its_copy_is() {
        let slot = Slot(31 << 40 | ((1 << 36) - 1));
        let filed = Entry::filed(slot).with_heat(1).with_pins(7);
        assert!(filed.tag() == Tag::Clean && filed.is_present() && filed.slot() == Some(slot));
        assert!(Entry(filed.parked().0 | WAITERS).unparked().slot() == Some(slot));
        assert!(filed.away() == Entry::new(Tag::Spilled, slot.0) && filed.away().slot() == Some(slot));
        let kept = Entry::new(Tag::Clean, u64::from(u32::MAX)).tried();
        assert!(kept.slot().is_none());
        assert!(kept.away().was_tried() && kept.away().handle_of_store() == u32::MAX);
    }

    #[test]
    fn a_page_in_the_store_knows_when_it_left() {
        for stored in [Entry::new(Tag::Stored, 0xffff_fffe).with_round(7).tried(), Entry::new(Tag::Word, 1)] {
            let left = stored.with_left(MAX_LEFT + 1 + 77);
            assert_eq!(left.left(), Some(77));
            assert_eq!((left.handle_of_store(), left.round()), (stored.handle_of_store(), stored.round()));
            assert_eq!((left.tag(), left.was_tried()), (stored.tag(), stored.was_tried()));
            let clean = Entry::new(Tag::Clean, left.with_left(MAX_LEFT).handle());
            assert!(clean.slot().is_none() && clean.handle_of_store() == stored.handle_of_store());
        }
        let spilled = Entry::new(Tag::Spilled, (1 << 45) - 1);
        assert!(spilled.with_left(5) == spilled && spilled.left().is_none());
    }

    #[test]
    fn a_parked_entry_comes_back() {
        let tags = [
            Tag::Empty,
            Tag::Dirty,
            Tag::Clean,
            Tag::Stored,
            Tag::Filled,
            Tag::Word,
            Tag::Spilled,
            Tag::Shared,
        ];
        for tag in tags {
            let entry = Entry::new(tag, 0x8000_1234_5678).with_pins(200);
            let parked = Entry(entry.parked().0 | WAITERS);
            assert!(parked.is_busy());
            assert!(parked.unparked() == entry);
        }
    }

    #[test]
    fn a_shared_entry_keeps_what_it_was() {
        let raw = Entry::new(Tag::Dirty, 0).with_heat(2).with_pins(1).raw(77).tried();
        let shared = raw.shared();
        assert!(
            shared.tag() == Tag::Shared
                && shared.is_present()
                && shared.is_protected()
                && shared.has_no_copy()
        );
        assert!(shared.is_raw() && shared.was_tried() && shared.raw_age(80) == 3);
        assert_eq!((shared.heat(), shared.pins()), (2, 1));
        assert!(shared.unshared() == raw);
        let clean = Entry::new(Tag::Clean, 7);
        assert!(clean.shared() == clean && clean.unshared() == clean);
    }

    #[test]
    fn short_words_come_back_and_long_ones_are_refused() {
        for word in [1, 0x7fff_ffff_ffff, u64::MAX, -5i64 as u64] {
            assert_eq!(Entry::filled(word).map(Entry::word), Some(word));
        }
        assert!(Entry::filled(0) == Some(Entry::EMPTY));
        assert!(Entry::filled(0x8000_0000_0000).is_none());
        assert!(Entry::filled(0x0101_0101_0101_0101).is_none());
    }
}
