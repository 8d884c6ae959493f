// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts objects of one old type into the new one, a slab or a run at a time.
//!
//! - **Flow** stays: all of a slab's objects in one transaction, its type with them ─▶ or moves: the slab becomes [`Moving`], its
//!   free slots 0; then some objects per transaction, each of which leaves its new place in the old slot, which is free then ─▶ a
//!   run is moved in one transaction
//! - **Rule** `From` gets values that were stored, and nothing else: elements behind an array's end are not converted
//! - **Not here** pointers: `migrate`

use std::collections::HashMap;

use super::{Home, Migrated, Moving, reshelve, tx};
use crate::Migrates;
use crate::error::Result;
use crate::layout::{Entry, SLAB_BYTES, stride};
use crate::persist::slice_tag;
use crate::persist::{Persist, TypeInfo};
use crate::ptr::{PPtr, PSlice};
use crate::store::Store;
use crate::tx::Tx;
use crate::view::View;

/// Elements of arrays that something points to, by their place.
pub(super) type Arrays = HashMap<u64, u64>;

/// The pool that a step works on, and its arrays' lengths.
pub(super) struct Context<'c> {
    pub store: &'c Store,
    pub arrays: &'c Arrays,
}

type Convert = fn(&Step, &Context<'_>, Home, &mut Migrated) -> Result<()>;

/// See the module's header.
pub(super) struct Step {
    pub old: TypeInfo,
    pub new: TypeInfo,
    pub moving: TypeInfo,
    /// Writes the moving type down.
    pub announce: fn(&mut Tx<'_>) -> Result<()>,
    /// Converts a slab or run of the old type, or goes on with one that is moving.
    pub convert: Convert,
    /// True if an object's slot is as long as before.
    same_slot: bool,
}

/// Bytes that a transaction of a migration changes, about.
pub(super) fn budget(store: &Store) -> u64 {
    store.lanes[0].capacity / 16
}

impl Step {
    pub fn of<New: Migrates>() -> Step {
        Step {
            old: TypeInfo::of::<New::From>(),
            new: TypeInfo::of::<New>(),
            moving: TypeInfo::of::<Moving<New::From>>(),
            announce: |t| t.announce::<Moving<New::From>>(),
            convert: convert::<New>,
            same_slot: stride::<New>() == stride::<New::From>(),
        }
    }

    pub fn is_old(&self, tag: u32) -> bool {
        tag == self.old.tag || tag == self.old.array_tag
    }

    pub fn is_moving(&self, tag: u32) -> bool {
        tag == self.moving.tag || tag == self.moving.array_tag
    }

    /// Returns true if it is an array that has not moved, or not wholly.
    pub fn is_old_array(&self, tag: u32) -> bool {
        tag == self.old.array_tag || tag == self.moving.array_tag
    }

    /// Returns true if what is there keeps its place.
    pub fn stays(&self, store: &Store, home: &Home) -> bool {
        let stride = u64::from(home.entry.stride);
        if home.entry.state != Entry::SLOTS || stride == 0 {
            return false;
        }
        let fits = if home.entry.tag == self.old.array_tag {
            self.old.bytes == self.new.bytes && stride.is_multiple_of(self.new.align)
        } else {
            self.same_slot
        };
        // All objects of a slab, as the most careful mechanism counts them.
        let most = (SLAB_BYTES + SLAB_BYTES / stride * 128) / 64 * 88;
        fits && most <= store.lanes[0].capacity / 4
    }
}

fn convert<New: Migrates>(step: &Step, context: &Context<'_>, home: Home, did: &mut Migrated) -> Result<()> {
    let array = step.is_old_array(home.entry.tag);
    match (home.entry.state, step.is_moving(home.entry.tag)) {
        (Entry::RUN | Entry::SPAN, true) => Ok(()), // done by one transaction
        (Entry::RUN | Entry::SPAN, false) => run::<New>(context, home, array, did),
        (_, false) if step.stays(context.store, &home) => in_place::<New>(context, home, array, did),
        (_, false) => {
            start::<New>(context.store, home, array)?;
            some::<New>(context, home, array, did)
        }
        (_, true) => some::<New>(context, home, array, did),
    }
}

/// Converts a slab where it is.
fn in_place<New: Migrates>(context: &Context<'_>, home: Home, array: bool, did: &mut Migrated) -> Result<()> {
    let store = context.store;
    let starts = home.in_use(store)?;
    let (mut count, mut dropped) = (0, 0);
    tx(store, |t| {
        if array {
            let mut values = Vec::with_capacity(starts.len());
            for start in &starts {
                let Some(elements) = context.arrays.get(start) else {
                    dropped += 1;
                    t.vacate(home.slab, (start - home.slots().1) / home.room())?;
                    continue;
                };
                let old = t.slice(PSlice::<New::From>::from_raw(*start, *elements))?;
                values.push((*start, old.iter().map(|one| New::from(*one)).collect::<Vec<New>>()));
            }
            t.retag::<New>(home.slab, true)?;
            count = values.len() as u64;
            for (start, new) in values {
                let slice = PSlice::<New>::from_raw(start, new.len() as u64);
                t.slice_mut(slice)?.copy_from_slice(&new);
            }
            return Ok(());
        }
        let mut values = Vec::with_capacity(starts.len());
        for start in &starts {
            values.push(New::from(*t.get(PPtr::<New::From>::from_offset(*start))?));
        }
        t.retag::<New>(home.slab, false)?;
        let pointers: Vec<PPtr<New>> = starts.iter().map(|start| PPtr::from_offset(*start)).collect();
        t.declare(&pointers)?;
        for (pointer, new) in pointers.into_iter().zip(values) {
            t.set(pointer, new)?;
        }
        count = starts.len() as u64;
        Ok(())
    })?;
    reshelve(store, &home, Some(if array { slice_tag::<New>() } else { New::TAG }));
    did.dropped += dropped;
    *(if array { &mut did.arrays } else { &mut did.in_place }) += count;
    Ok(())
}

/// Prepares a slab for moving: zeros its free slots, which then name no new place.
fn start<New: Migrates>(store: &Store, home: Home, array: bool) -> Result<()> {
    let (count, first) = home.slots();
    tx(store, |t| {
        t.retag::<Moving<New::From>>(home.slab, array)?;
        let free = (0..count).filter(|slot| !t.in_use(home.slab, *slot));
        let words: Vec<(u64, u64)> = free
            .map(|slot| (first + slot * home.room(), 0))
            .filter(|(at, _)| store.image.word(*at) != 0)
            .collect();
        t.set_words(&words)
    })?;
    reshelve(store, &home, None);
    Ok(())
}

/// Moves the objects of a slab that is moving, some per transaction.
fn some<New: Migrates>(context: &Context<'_>, home: Home, array: bool, did: &mut Migrated) -> Result<()> {
    let store = context.store;
    let first = home.slots().1;
    let mut left = home.in_use(store)?.into_iter().peekable();
    while left.peek().is_some() {
        let (mut moved, mut arrays, mut dropped) = (0, 0, 0);
        tx(store, |t| {
            let mut spent = 0;
            while let Some(start) = left.next_if(|_| spent < budget(store)) {
                let slot = (start - first) / home.room();
                let new = match (array, context.arrays.get(&start)) {
                    (true, None) => {
                        dropped += 1;
                        0
                    }
                    (true, Some(elements)) => {
                        arrays += 1;
                        let old = t.slice(PSlice::<Moving<New::From>>::from_raw(start, *elements))?;
                        let new: Vec<New> = old.iter().map(|one| New::from(one.0)).collect();
                        spent += size_of_val(&new[..]) as u64;
                        t.alloc_slice_in(home.entry.section, &new)?.offset()
                    }
                    (false, _) => {
                        moved += 1;
                        let new = New::from(t.get(PPtr::<Moving<New::From>>::from_offset(start))?.0);
                        spent += size_of::<New>() as u64;
                        t.alloc_in(home.entry.section, new)?.offset()
                    }
                };
                t.set_words(&[(start, new)])?;
                t.vacate(home.slab, slot)?;
                spent += 512;
            }
            Ok(())
        })?;
        did.moved += moved;
        did.arrays += arrays;
        did.dropped += dropped;
    }
    Ok(())
}

/// Moves an object, or an array, that has slabs of its own.
fn run<New: Migrates>(context: &Context<'_>, home: Home, array: bool, did: &mut Migrated) -> Result<()> {
    let (store, start, section) = (context.store, home.slab * SLAB_BYTES, home.entry.section);
    let elements = context.arrays.get(&start).copied();
    if array && elements.is_none() {
        did.dropped += 1;
        return tx(store, |t| t.give_slabs(home.slab));
    }
    tx(store, |t| {
        let new = if array {
            let old = t.slice(PSlice::<New::From>::from_raw(start, elements.unwrap_or(0)))?;
            let new: Vec<New> = old.iter().map(|one| New::from(*one)).collect();
            t.alloc_slice_in(section, &new)?.offset()
        } else {
            let new = New::from(*t.get(PPtr::<New::From>::from_offset(start))?);
            t.alloc_in(section, new)?.offset()
        };
        t.retag::<Moving<New::From>>(home.slab, array)?;
        t.set_words(&[(start, new)])
    })?;
    *(if array { &mut did.arrays } else { &mut did.moved }) += 1;
    Ok(())
}

const _: () = assert!(<Moving<u64> as Persist>::TAG != <u64 as Persist>::TAG);
