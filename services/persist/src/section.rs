// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections: parts of a pool that are locked apart, and what each knows of its own free slots.
//!
//! - **Rule** an object belongs to the section that its slab's directory entry names. A transaction sees only objects of sections
//!   that it holds, so two transactions never see one object unless both only read
//! - **Order** sections are locked in ascending order, so that nobody waits in a circle
//! - **Rule** lists are hints. Slots and slabs may be in one that have been taken for something else since: whoever takes one
//!   compares the slab's entry and bits
//! - **Owner** [`Section`] is behind the section's lock and is rebuilt at open: the bitmaps in slabs are the truth

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::biased::{Biased, ReadGuard, WriteGuard};
use crate::layout::SLAB_BYTES;

/// Free slots of one type in one section, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub tag: u32,
    pub stride: u32,
    /// Slots that were freed, and whose freeing is durable.
    pub ready: Vec<u64>,
    /// Slabs with slots whose bits were not read yet.
    pub slabs: Vec<u64>,
    /// The slab that is being used up, and the next slot to look at.
    pub current: Option<(u64, u64)>,
}

/// State that a section's lock guards besides its objects.
#[derive(Debug, Default)]
pub(crate) struct Section {
    shelves: Vec<Shelf>,
    /// Slots that are free but whose freeing is not durable yet, by the position of the shared lane that makes it so.
    /// With tag and stride.
    pub held: HashMap<u64, (u64, u32, u32)>,
    /// Slabs whose last slot was freed, by the position of the shared lane that makes it durable. They serve any type
    /// (`reclaim`).
    pub emptied: BTreeMap<u64, u64>,
    /// Slabs that a compaction empties: nothing is allocated there.
    pub closed: BTreeSet<u64>,
    /// True once the slabs that were there at open have been looked through for empty ones.
    pub searched: bool,
    /// How far the shared lane was durable when `held` was last looked through.
    drained: u64,
}

impl Section {
    /// The shelf of a type; it is made if there is none.
    pub fn shelf(&mut self, tag: u32, stride: u32) -> &mut Shelf {
        let at = self.shelves.iter().position(|shelf| shelf.tag == tag && shelf.stride == stride);
        let at = at.unwrap_or_else(|| {
            self.shelves.push(Shelf { tag, stride, ..Shelf::default() });
            self.shelves.len() - 1
        });
        &mut self.shelves[at]
    }

    /// Slots whose freeing is durable now become ready.
    pub fn drain(&mut self, durable: u64) {
        if durable == self.drained {
            return; // what is held waits for more than this
        }
        self.drained = durable;
        let ready: Vec<(u64, u32, u32)> = self
            .held
            .iter()
            .filter(|(_, (position, ..))| *position <= durable)
            .map(|(offset, (_, tag, stride))| (*offset, *tag, *stride))
            .collect();
        for (offset, tag, stride) in ready {
            self.held.remove(&offset);
            self.ready(offset, tag, stride);
        }
    }

    /// Notes a slot that was freed, durably, unless its slab is closed.
    pub fn ready(&mut self, offset: u64, tag: u32, stride: u32) {
        if !self.is_closed(offset) {
            self.shelf(tag, stride).ready.push(offset);
        }
    }

    /// Returns true if nothing is allocated in the slab of `offset`.
    #[inline]
    pub fn is_closed(&self, offset: u64) -> bool {
        !self.closed.is_empty() && self.closed.contains(&(offset / SLAB_BYTES))
    }

    /// From now on nothing is allocated in `slabs`; and in those that are `empty` only when they are taken anew.
    pub fn close(&mut self, slabs: BTreeSet<u64>, empty: &BTreeSet<u64>) {
        let gone = |slab: &u64| slabs.contains(slab) || empty.contains(slab);
        for shelf in &mut self.shelves {
            shelf.slabs.retain(|slab| !gone(slab));
            shelf.ready.retain(|offset| !gone(&(offset / SLAB_BYTES)));
            if shelf.current.is_some_and(|(slab, _)| gone(&slab)) {
                shelf.current = None;
            }
        }
        self.closed.extend(slabs); // another compaction may have closed some
    }

    /// Returns true if there may be slabs without an object.
    pub fn may_have_emptied(&self) -> bool {
        !self.emptied.is_empty() || !self.searched
    }

    /// Slabs that were there at open, and of which no slot was looked at yet.
    pub fn unseen(&self) -> impl Iterator<Item = u64> {
        self.shelves.iter().flat_map(|shelf| shelf.slabs.iter().copied())
    }

    /// Forgets a slab that is nobody's any more.
    pub fn forget(&mut self, slab: u64, contains: impl Fn(u64) -> bool) {
        self.emptied.remove(&slab);
        for shelf in &mut self.shelves {
            shelf.slabs.retain(|one| *one != slab);
            shelf.ready.retain(|offset| !contains(*offset));
            if shelf.current.is_some_and(|(one, _)| one == slab) {
                shelf.current = None;
            }
        }
        self.held.retain(|offset, _| !contains(*offset));
    }
}

/// Sections held for writing. Whole words only: a transaction is made of it at every commit, and bytes that are copied in other
/// pieces than they were stored in wait for the fence before (see `Words`).
#[derive(Debug)]
pub(crate) struct Held<'a> {
    /// The only section, in a pool with one.
    one: Option<WriteGuard<'a, Section>>,
    /// The held sections by number, ascending, in a pool with several.
    many: Vec<(u16, WriteGuard<'a, Section>)>,
}

impl<'a> Held<'a> {
    /// All sections, or the named ones.
    #[inline(always)]
    pub fn lock(all: &'a [Biased<Section>], named: Option<&[u16]>) -> Held<'a> {
        match all {
            [only] => Held { one: Some(only.write()), many: Vec::new() },
            _ => Held { one: None, many: Held::lock_many(all, named) },
        }
    }

    fn lock_many(all: &'a [Biased<Section>], named: Option<&[u16]>) -> Vec<(u16, WriteGuard<'a, Section>)> {
        if let Some([number]) = named
            && let Some(only) = all.get(usize::from(*number))
        {
            return vec![(*number, only.write())];
        }
        sorted(all.len(), named).into_iter().map(|at| (at, all[at as usize].write())).collect()
    }

    /// Returns true if this section is held.
    #[inline]
    pub fn has(&self, section: u16) -> bool {
        self.one.is_some() || self.many.binary_search_by_key(&section, |(number, _)| *number).is_ok()
    }

    /// The section `at`, if it is held.
    #[inline]
    pub fn get(&mut self, section: u16) -> Option<&mut Section> {
        if let Some(one) = &mut self.one {
            return Some(one);
        }
        let at = self.many.binary_search_by_key(&section, |(number, _)| *number).ok()?;
        Some(&mut self.many[at].1)
    }

    /// The first section that is held: new objects go there by default.
    #[inline]
    pub fn first(&self) -> u16 {
        self.many.first().map_or(0, |(number, _)| *number)
    }
}

/// Sections held for reading.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    /// The only section that is held, with its number where the pool has others.
    one: Option<(Option<u16>, ReadGuard<'a, Section>)>,
    many: Vec<(u16, ReadGuard<'a, Section>)>,
}

impl<'a> Shared<'a> {
    #[inline(always)]
    pub fn lock(all: &'a [Biased<Section>], named: Option<&[u16]>) -> Shared<'a> {
        match (all, named) {
            ([only], _) => Shared { one: Some((None, only.read())), many: Vec::new() },
            (_, Some([number])) if usize::from(*number) < all.len() => {
                Shared { one: Some((Some(*number), all[usize::from(*number)].read())), many: Vec::new() }
            }
            _ => Shared { one: None, many: Shared::lock_many(all, named) },
        }
    }

    fn lock_many(all: &'a [Biased<Section>], named: Option<&[u16]>) -> Vec<(u16, ReadGuard<'a, Section>)> {
        sorted(all.len(), named).into_iter().map(|at| (at, all[at as usize].read())).collect()
    }

    #[inline]
    pub fn has(&self, section: u16) -> bool {
        self.one.as_ref().is_some_and(|(number, _)| number.is_none_or(|number| number == section))
            || self.many.binary_search_by_key(&section, |(number, _)| *number).is_ok()
    }
}

fn sorted(sections: usize, named: Option<&[u16]>) -> Vec<u16> {
    let mut numbers: Vec<u16> = match named {
        Some(named) => named.iter().copied().filter(|number| usize::from(*number) < sections).collect(),
        None => (0..sections).map(|number| number as u16).collect(),
    };
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
