// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections: parts of a pool that are locked apart, and what each knows of its own free slots.
//!
//! Rule     an object belongs to the section that its slab's directory entry names. A transaction sees only objects of sections
//!          that it holds, so two transactions never see one object unless both only read
//! Order    sections are locked in ascending order, so that nobody waits in a circle
//! Owner    [`Section`] is behind the section's lock and is rebuilt at open: the bitmaps in slabs are the truth

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Free slots of one type in one section, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub tag: u32,
    pub stride: u32,
    /// Slots that were freed, and whose freeing is durable.
    pub ready: Vec<u64>,
    /// Slabs with slots that nobody has looked at yet.
    pub slabs: Vec<u64>,
    /// The slab that is being used up, and the next slot to look at.
    pub current: Option<(u64, u64)>,
}

/// What a section's lock guards besides its objects.
#[derive(Debug, Default)]
pub(crate) struct Section {
    shelves: Vec<Shelf>,
    /// Slots that are free but whose freeing is not durable yet, by the position of the shared lane that makes it so.
    /// With tag and stride.
    pub held: HashMap<u64, (u64, u32, u32)>,
    /// How far the shared lane was durable when `held` was last looked through.
    drained: u64,
}

impl Section {
    /// The shelf of a type; made when it is not there.
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
            self.shelf(tag, stride).ready.push(offset);
        }
    }

    /// Forgets a slab that is nobody's any more.
    pub fn forget(&mut self, slab: u64, contains: impl Fn(u64) -> bool) {
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

/// Sections held for writing.
#[derive(Debug)]
pub(crate) enum Held<'a> {
    /// Pools with one section need no list.
    One(RwLockWriteGuard<'a, Section>),
    /// By number, ascending.
    Many(Vec<(u16, RwLockWriteGuard<'a, Section>)>),
}

impl<'a> Held<'a> {
    /// All sections, or the named ones.
    pub fn lock(all: &'a [RwLock<Section>], named: Option<&[u16]>) -> Held<'a> {
        if let [only] = all {
            return Held::One(only.write().unwrap_or_else(PoisonError::into_inner));
        }
        let numbers = sorted(all.len(), named);
        let lock = |at: u16| (at, all[at as usize].write().unwrap_or_else(PoisonError::into_inner));
        Held::Many(numbers.into_iter().map(lock).collect())
    }

    /// Whether this section is held.
    #[inline]
    pub fn has(&self, section: u16) -> bool {
        match self {
            Held::One(_) => true,
            Held::Many(held) => held.binary_search_by_key(&section, |(number, _)| *number).is_ok(),
        }
    }

    /// A held section.
    #[inline]
    pub fn get(&mut self, section: u16) -> Option<&mut Section> {
        match self {
            Held::One(guard) => Some(guard),
            Held::Many(held) => {
                let at = held.binary_search_by_key(&section, |(number, _)| *number).ok()?;
                Some(&mut held[at].1)
            }
        }
    }

    /// The first one: where objects go unless told otherwise.
    pub fn first(&self) -> u16 {
        match self {
            Held::One(_) => 0,
            Held::Many(held) => held.first().map_or(0, |(number, _)| *number),
        }
    }
}

/// Sections held for reading.
#[derive(Debug)]
pub(crate) enum Shared<'a> {
    One { _guard: RwLockReadGuard<'a, Section> },
    Many(Vec<(u16, RwLockReadGuard<'a, Section>)>),
}

impl<'a> Shared<'a> {
    pub fn lock(all: &'a [RwLock<Section>], named: Option<&[u16]>) -> Shared<'a> {
        if let [only] = all {
            return Shared::One { _guard: only.read().unwrap_or_else(PoisonError::into_inner) };
        }
        let numbers = sorted(all.len(), named);
        let lock = |at: u16| (at, all[at as usize].read().unwrap_or_else(PoisonError::into_inner));
        Shared::Many(numbers.into_iter().map(lock).collect())
    }

    #[inline]
    pub fn has(&self, section: u16) -> bool {
        match self {
            Shared::One { .. } => true,
            Shared::Many(held) => held.binary_search_by_key(&section, |(number, _)| *number).is_ok(),
        }
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
