// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The states that a crash may leave: certain writes, uncertain ones, and those that can be lost apart from each other.
//!
//! - **Flow** the trace, event by event ─▶ pending writes in slots ─▶ a fence or sync makes the front of slots certain
//! - **Layout** a slot is what survives as one prefix: the cached stores of a line; a thread's non-temporal stores to a
//!   word; a sector of a file; a file's size. Slots are independent of each other. The last write of a
//!   surviving prefix may be torn into aligned 8-byte pieces (into none, where the kernel writes a sector
//!   whole)
//! - **Order** what survives is applied in the order of the trace; so non-temporal and cached stores to one word, by
//!   whichever threads, end with the youngest that survived. Pages that a truncation cuts are zero in the cache, and may
//!   become zero on the disk before the size changes there
//! - **Not here** which of the images are tried: select.
//!
//! Sources: Intel SDM vol. 1 §10.4.6.2 (weakly ordered non-temporal stores) and vol. 2 CLWB, SFENCE; Raad et al.,
//! "Persistency semantics of the Intel-x86 architecture" (POPL '20): stores to one line persist in their order,
//! CLWB is ordered by a later SFENCE of its thread; Rebello et al., "Can applications recover from fsync failures?"
//! (ATC '20): pages are clean after a failed fsync.
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::pages::Pages;
use super::trace::{Action, Trace};
use super::world::{Mode, Recording};

/// In which order the 8-byte pieces of one store longer than that reach the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tear {
    /// In any order, as a copy routine may choose: any subset of the pieces of the last store can survive.
    #[default]
    AnyOrder,
    /// From the lowest address up: for code that copies so itself, word by word.
    Ascending,
}

const LINE: u64 = 64;
const WORD: u64 = 8;
const SECTOR: u64 = 512;
/// The owner of words that were written through the file of a memory device: only its sync makes them certain.
const KERNEL: u32 = u32::MAX;
const PAGE: u64 = 4096;
const ZEROS: usize = usize::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Cached stores to a line.
    Line,
    /// A thread's non-temporal stores to a word.
    Word,
    /// Writes to a sector of a file.
    Sector,
    /// The size of a file.
    Size,
    /// A sector, or with cell `u64::MAX` the size, whose sync failed: no later sync makes it certain.
    Limbo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) device: u32,
    pub(crate) kind: Kind,
    /// Offset divided by the kind's size.
    pub(crate) cell: u64,
    /// Word: the thread. Limbo: the event of the failed sync.
    pub(crate) owner: u32,
}

impl Key {
    /// Returns true if a sync of these bytes is about this slot of a file.
    pub(crate) fn is_within(&self, range: Option<(u64, u64)>) -> bool {
        range.is_none_or(|(offset, len)| {
            let cells = cells(offset, len, self.kind.size());
            matches!(self.kind, Kind::Size) || cells.clone().contains(&self.cell)
        })
    }
}

/// A write, or the part of it that lies in one slot's cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) event: u32,
    /// Offset; for a size, the size.
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// Where its bytes are in the trace; [`ZEROS`] where a file was cut.
    data: usize,
    /// Survives whole or not at all.
    whole: bool,
    /// True if it sets the size of a file.
    size: bool,
}

impl Write {
    pub(crate) fn pieces(&self) -> u32 {
        if self.whole { 1 } else { ((self.at + u64::from(self.len) - 1) / WORD - self.at / WORD + 1) as u32 }
    }

    /// Offset and length of the `index`-th piece.
    pub(crate) fn piece(&self, index: u32) -> (u64, u64) {
        if self.whole {
            return (self.at, u64::from(self.len));
        }
        let start = if index == 0 { self.at } else { (self.at / WORD + u64::from(index)) * WORD };
        let end = ((start / WORD + 1) * WORD).min(self.at + u64::from(self.len));
        (start, end - start)
    }

    fn overlaps(&self, other: &Write) -> bool {
        self.size
            || other.size
            || self.at < other.at + u64::from(other.len) && other.at < self.at + u64::from(self.len)
    }
}

/// The part of a slot that survives: its first `writes` writes, and of the next one the pieces in `torn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pick {
    pub(crate) writes: u32,
    pub(crate) torn: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) pending: Vec<Write>,
    /// How many writes left the front since the slot came into being.
    gone: u64,
}

impl Slot {
    fn torn_states(write: &Write, tear: Tear) -> u64 {
        match (write.pieces(), tear) {
            (64.., Tear::AnyOrder) => u64::MAX - 1,
            (n, Tear::AnyOrder) => (1 << n) - 1,
            (n, Tear::Ascending) => u64::from(n),
        }
    }

    /// How many contents the slot may have, counted by its picks.
    pub(crate) fn states(&self, tear: Tear) -> u64 {
        self.pending.iter().fold(1, |n: u64, w| n.saturating_add(Slot::torn_states(w, tear)))
    }

    /// The `index`-th pick: 0 is nothing, the last is everything.
    pub(crate) fn pick(&self, tear: Tear, mut index: u64) -> Pick {
        for (writes, write) in self.pending.iter().enumerate() {
            let states = Slot::torn_states(write, tear);
            if index < states {
                let torn = if tear == Tear::Ascending { (1 << index) - 1 } else { index };
                return Pick { writes: writes as u32, torn };
            }
            index -= states;
        }
        self.full()
    }

    pub(crate) fn full(&self) -> Pick {
        Pick { writes: self.pending.len() as u32, torn: 0 }
    }

    /// Everything before `event`.
    pub(crate) fn before(&self, event: u32) -> Pick {
        Pick { writes: self.pending.iter().take_while(|w| w.event < event).count() as u32, torn: 0 }
    }
}

/// The state of a machine at a point of its trace.
pub(crate) struct Machine<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) tear: Tear,
    modes: Vec<Mode>,
    base: Vec<Pages>,
    pub(crate) slots: BTreeMap<Key, Slot>,
    /// By thread: how far its write-backs will take each line when it fences.
    captured: HashMap<u32, BTreeMap<Key, u64>>,
    /// By thread: words that it stored to past the cache since its last fence.
    words: HashMap<u32, Vec<Key>>,
    /// Writes that are certain, while older ones to the same bytes are not: applied in their turn.
    pinned: Vec<(u32, Write)>,
    /// Lines of the store that is under way on devices whose caches are persistent.
    visible: Vec<Key>,
    /// The size that each device has now.
    sizes: Vec<u64>,
    /// Pages that were cut off a file since its last sync: the cache holds them as new ones when they come back.
    cut: HashSet<(u32, u64)>,
    pub(crate) acked: Vec<u64>,
    pub(crate) in_flight: Vec<u64>,
}

impl<'t> Machine<'t> {
    pub(crate) fn new(recording: &'t Recording, tear: Tear, acked: &[u64], in_flight: &[u64]) -> Self {
        Machine {
            trace: &recording.trace,
            tear,
            modes: recording.devices.iter().map(|d| d.mode).collect(),
            base: recording.devices.iter().map(|d| d.content.clone()).collect(),
            slots: BTreeMap::new(),
            captured: HashMap::new(),
            words: HashMap::new(),
            pinned: Vec::new(),
            visible: Vec::new(),
            sizes: recording.devices.iter().map(|d| d.content.len()).collect(),
            cut: HashSet::new(),
            acked: acked.to_vec(),
            in_flight: in_flight.to_vec(),
        }
    }

    /// Returns true if a fence makes anything certain on any device.
    pub(crate) fn has_memory(&self) -> bool {
        self.modes.iter().any(|m| *m != Mode::File)
    }

    pub(crate) fn mode(&self, device: u32) -> Mode {
        self.modes[device as usize]
    }

    /// The store that was under way is complete: where caches are persistent, it is certain.
    pub(crate) fn complete_store(&mut self) {
        let lines = std::mem::take(&mut self.visible);
        self.make_certain(lines.into_iter().map(|key| (key, u64::MAX)));
    }

    /// Takes the next event.
    pub(crate) fn step(&mut self, index: usize) {
        let event = self.trace.events[index];
        let thread = event.thread.0;
        let data = self.trace.starts[index];
        let number = index as u32;
        match event.action {
            Action::Store { device, offset, len } => match self.mode(device) {
                Mode::File => self.add(device, Kind::Sector, 0, (number, offset, len, data), false),
                mode => {
                    self.add(device, Kind::Line, 0, (number, offset, len, data), false);
                    if mode == Mode::Eadr {
                        self.visible.extend(cells(offset, len, LINE).map(|cell| line(device, cell)));
                    }
                }
            },
            Action::NtStore { device, offset, len } => match self.mode(device) {
                Mode::File => self.add(device, Kind::Sector, 0, (number, offset, len, data), false),
                _ => {
                    self.add(device, Kind::Word, thread, (number, offset, len, data), false);
                    let words =
                        cells(offset, len, WORD).map(|cell| Key { owner: thread, ..word(device, cell) });
                    self.words.entry(thread).or_default().extend(words);
                }
            },
            Action::Pwrite { device, offset, len } => match self.mode(device) {
                Mode::File => self.add(device, Kind::Sector, 0, (number, offset, len, data), true),
                _ => self.add(device, Kind::Word, KERNEL, (number, offset, len, data), false),
            },
            Action::SetLen { device, len } => {
                let key = Key { device, kind: Kind::Size, cell: 0, owner: 0 };
                let write = Write { event: number, at: len, len: 0, data, whole: true, size: true };
                self.slots.entry(key).or_default().pending.push(write);
                self.cut(device, len, number);
            }
            Action::WriteBack { device, offset, len } => {
                for key in cells(offset, len, LINE).map(|cell| line(device, cell)) {
                    if let Some(slot) = self.slots.get(&key) {
                        let upto = slot.gone + slot.pending.len() as u64;
                        self.captured.entry(thread).or_default().insert(key, upto);
                    }
                }
            }
            Action::Fence => {
                let lines = self.captured.remove(&thread).unwrap_or_default();
                let words = self.words.remove(&thread).unwrap_or_default();
                self.make_certain(lines.into_iter().chain(words.into_iter().map(|key| (key, u64::MAX))));
            }
            Action::Fdatasync { device, succeeded: true, within } => {
                let own = |k: &Key| {
                    (k.kind != Kind::Word || k.owner == KERNEL || k.owner == thread) && k.is_within(within)
                };
                let keys: Vec<Key> = self
                    .slots
                    .keys()
                    .filter(|k| k.device == device && k.kind != Kind::Limbo && own(k))
                    .copied()
                    .collect();
                self.make_certain(keys.into_iter().map(|key| (key, u64::MAX)));
                if within.is_none() {
                    self.cut.retain(|(d, _)| *d != device);
                }
            }
            Action::Fdatasync { device, succeeded: false, .. } => self.fail(device, number),
            Action::Begin { step } => self.in_flight.push(step),
            Action::Done { step } => {
                self.in_flight.retain(|s| *s != step);
                self.acked.push(step);
            }
            Action::Settle => {
                let keys: Vec<Key> = self.slots.keys().copied().collect();
                self.make_certain(keys.into_iter().map(|key| (key, u64::MAX)));
                self.captured.clear();
                self.words.clear();
            }
            Action::Recovered => {}
        }
    }

    /// The size becomes `len`. What is cut off the last page is zero in the cache, and may reach the file before
    /// the size does.
    fn cut(&mut self, device: u32, len: u64, event: u32) {
        let before = std::mem::replace(&mut self.sizes[device as usize], len);
        if self.mode(device) != Mode::File || before <= len {
            return;
        }
        let page_end = len.next_multiple_of(PAGE).min(before);
        self.add(device, Kind::Sector, 0, (event, len, page_end - len, ZEROS), true);
        self.cut.extend(cells(page_end, before - page_end, PAGE).map(|page| (device, page)));
    }

    fn add(&mut self, device: u32, kind: Kind, owner: u32, write: (u32, u64, u64, usize), whole: bool) {
        let (event, offset, len, data) = write;
        let size = kind.size();
        if kind == Kind::Sector && !self.cut.is_empty() {
            for page in cells(offset, len, PAGE) {
                if self.cut.remove(&(device, page)) {
                    self.add(device, kind, owner, (event, page * PAGE, PAGE, ZEROS), true);
                }
            }
        }
        for cell in cells(offset, len, size) {
            let at = offset.max(cell * size);
            let end = (offset + len).min((cell + 1) * size);
            let data = if data == ZEROS { ZEROS } else { data + (at - offset) as usize };
            let write = Write { event, at, len: (end - at) as u32, data, whole, size: false };
            self.slots.entry(Key { device, kind, cell, owner }).or_default().pending.push(write);
        }
    }

    /// The writes of each slot up to its count (since it came into being) are certain.
    fn make_certain(&mut self, slots: impl Iterator<Item = (Key, u64)>) {
        let mut certain = Vec::new();
        for (key, upto) in slots {
            if let Entry::Occupied(mut entry) = self.slots.entry(key) {
                let slot = entry.get_mut();
                let n = upto.saturating_sub(slot.gone).min(slot.pending.len() as u64);
                certain.extend(slot.pending.drain(..n as usize).map(|write| (key.device, write)));
                slot.gone += n;
                // An empty slot stays while another thread's write-back may still refer to its count.
                if slot.pending.is_empty() && !self.captured.values().any(|lines| lines.contains_key(&key)) {
                    entry.remove();
                }
            }
        }
        // Pinned writes are in the base already. They are applied again over an older write that is certain only now.
        certain.append(&mut self.pinned);
        certain.sort_by_key(|(device, write)| (*device, write.event, !write.size));
        let mut pinned: Vec<(u32, Write)> = Vec::new();
        for (device, write) in certain {
            apply(&mut self.base[device as usize], self.trace, &write, None);
            let over_pinned = pinned.iter().any(|(d, older)| *d == device && older.overlaps(&write));
            if over_pinned || self.has_older(device, &write) {
                pinned.push((device, write));
            }
        }
        self.pinned = pinned;
    }

    /// Returns true if an older write to the same bytes is still uncertain.
    fn has_older(&self, device: u32, write: &Write) -> bool {
        let older = |kind: Kind, from: u64, to: u64| {
            let from = Key { device, kind, cell: from, owner: 0 };
            let to = Key { device, kind, cell: to, owner: u32::MAX };
            self.slots
                .range(from..=to)
                .flat_map(|(_, slot)| &slot.pending)
                .any(|w| w.event < write.event && w.overlaps(write))
        };
        if write.size {
            return [Kind::Line, Kind::Word, Kind::Limbo].iter().any(|kind| older(*kind, 0, u64::MAX));
        }
        let end = write.at + u64::from(write.len) - 1;
        older(Kind::Limbo, u64::MAX, u64::MAX)
            || [Kind::Line, Kind::Word, Kind::Limbo]
                .iter()
                .any(|kind| older(*kind, write.at / kind.size(), end / kind.size()))
    }

    /// A sync of this device failed: what was dirty is lost or not, whatever is synced later.
    fn fail(&mut self, device: u32, event: u32) {
        let dirty = |k: &Key| k.device == device && matches!(k.kind, Kind::Sector | Kind::Size);
        let keys: Vec<Key> = self.slots.keys().filter(|k| dirty(k)).copied().collect();
        for key in keys {
            if let Some(slot) = self.slots.remove(&key) {
                let cell = if key.kind == Kind::Size { u64::MAX } else { key.cell };
                self.slots.insert(Key { device, kind: Kind::Limbo, cell, owner: event }, slot);
            }
        }
    }

    /// The slots with pending writes: the part of the state that only a crash decides.
    pub(crate) fn uncertain(&self) -> Vec<(Key, &Slot)> {
        self.slots.iter().filter(|(_, slot)| !slot.pending.is_empty()).map(|(k, s)| (*k, s)).collect()
    }

    /// The devices after a crash that left of each slot what is picked.
    pub(crate) fn image(&self, slots: &[(Key, &Slot)], picks: &[Pick]) -> Vec<Pages> {
        let mut survivors: Vec<(u32, Write, Option<u64>)> =
            self.pinned.iter().map(|(device, write)| (*device, *write, None)).collect();
        for ((key, slot), pick) in slots.iter().zip(picks) {
            let whole = pick.writes as usize;
            survivors.extend(slot.pending[..whole].iter().map(|w| (key.device, *w, None)));
            if pick.torn != 0 {
                survivors.push((key.device, slot.pending[whole], Some(pick.torn)));
            }
        }
        survivors.sort_by_key(|(device, write, _)| (*device, write.event, !write.size));
        let mut image = self.base.clone();
        for (device, write, torn) in survivors {
            apply(&mut image[device as usize], self.trace, &write, torn);
        }
        for pages in &mut image {
            pages.set_len(pages.len()); // what was written beyond the size that survived is not there
        }
        image
    }
}

fn apply(pages: &mut Pages, trace: &Trace, write: &Write, torn: Option<u64>) {
    if write.size {
        return pages.set_len(write.at);
    }
    if write.data == ZEROS {
        return pages.write(write.at, &[0; SECTOR as usize][..write.len as usize]);
    }
    for index in (0..write.pieces()).filter(|i| torn.is_none_or(|mask| mask >> i & 1 == 1)) {
        let (at, len) = if torn.is_none() { (write.at, u64::from(write.len)) } else { write.piece(index) };
        let start = write.data + (at - write.at) as usize;
        pages.write(at, &trace.bytes[start..start + len as usize]);
        if torn.is_none() {
            return;
        }
    }
}

impl Kind {
    pub(crate) fn size(self) -> u64 {
        match self {
            Kind::Line => LINE,
            Kind::Word => WORD,
            Kind::Sector | Kind::Limbo => SECTOR,
            Kind::Size => u64::MAX,
        }
    }
}

pub(crate) fn line(device: u32, cell: u64) -> Key {
    Key { device, kind: Kind::Line, cell, owner: 0 }
}

fn word(device: u32, cell: u64) -> Key {
    Key { device, kind: Kind::Word, cell, owner: 0 }
}

/// The cells that hold a byte of the range; none where it is empty.
pub(crate) fn cells(offset: u64, len: u64, size: u64) -> std::ops::Range<u64> {
    if len == 0 { 0..0 } else { offset / size..(offset + len - 1) / size + 1 }
}

impl Machine<'_> {
    /// Returns true if the thread has nothing for a fence to complete.
    pub(crate) fn fence_is_idle(&self, thread: u32) -> bool {
        let captured = self.captured.get(&thread).is_none_or(BTreeMap::is_empty);
        captured && self.words.get(&thread).is_none_or(Vec::is_empty)
    }

    /// Returns true if a write-back of this line by this thread would start nothing.
    pub(crate) fn line_is_clean(&self, thread: u32, key: Key) -> bool {
        self.slots.get(&key).is_none_or(|slot| {
            let upto = slot.gone + slot.pending.len() as u64;
            slot.pending.is_empty() || self.captured.get(&thread).and_then(|l| l.get(&key)) == Some(&upto)
        })
    }
}
