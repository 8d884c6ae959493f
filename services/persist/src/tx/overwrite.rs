// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overwriting parts of arrays: all of them or none, without a look at what they were.
//!
//! - **Flow** all parts are checked ─▶ their lines are marked ─▶ room in the log ─▶ the new bytes go into the image ─▶ record, fence
//! - **Why** a transaction saves what it lends for writing, and compares it at commit. Who gives all new bytes beforehand needs neither
//! - **Rule** there is no before-image, so the image changes when nothing but the disk can fail; then the pool stops
//! - **Pools** checkpoint and shadow, where a fence makes the commit durable, or where it may be durable late. In others a transaction
//!   does the same
//! - **Source** NearPM §4.2: the program says what it writes

use super::{Tx, TxOptions, admit, claim};
use crate::checkpoint::worst_bytes;
use crate::commit::Watched;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::persist::Persist;
use crate::ptr::PSlice;
use crate::section::Held;
use crate::store::Store;

/// New values for elements of an array.
#[derive(Debug)]
pub struct Overwrite<'v, T: Persist> {
    /// The array that has the elements.
    pub array: PSlice<T>,
    /// Its first element that is overwritten.
    pub from: u64,
    /// The new values.
    pub values: &'v [T],
}

/// Overwrites parts of arrays.
pub(crate) fn run<T: Persist>(
    store: &Store,
    parts: &[Overwrite<'_, T>],
    durability: Durability,
) -> Result<()> {
    // A transaction refuses, or logs at once, what is larger than a record or than what may be missing after a crash.
    let bytes = parts.iter().map(|part| size_of_val(part.values) as u64).sum();
    let worst = worst_bytes(parts.len() as u64, bytes);
    let fits = worst <= store.shared.lane.capacity / 4;
    let direct = match durability {
        Durability::Sync => fits && !store.medium.pages(),
        Durability::Buffered => fits && worst <= store.options.buffered_bytes,
        Durability::Group | Durability::Replicated => false,
    };
    // Elements that are no whole words would need the words around them.
    if !direct || !store.by_pages() || !size_of::<T>().is_multiple_of(8) {
        return by_transaction(store, parts, durability);
    }
    admit(store, &TxOptions::default())?;
    let held = Held::lock(&store.sections, None);
    let (lane, mut writes) = claim(store);
    writes.clear();
    for part in parts {
        Tx::note_part(store, &held, &mut writes, part)?;
    }
    if writes.is_empty() {
        return Ok(());
    }
    store.mark_private(&writes);
    let watched = Watched::begin(store, &writes);
    let before = writes.counters.log_bytes;
    let committed = store.commit_overwritten(lane, &mut writes, durability, |places| {
        let parts = parts.iter().filter(|part| !part.values.is_empty());
        places.iter().zip(parts).for_each(|(place, part)| Tx::put(store, place, part.values));
    })?;
    store.row.committed(writes.counters.log_bytes - before);
    drop((writes, held));
    store.finish(committed, durability)?;
    if let Some(watched) = watched {
        watched.end();
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn by_transaction<T: Persist>(
    store: &Store,
    parts: &[Overwrite<'_, T>],
    durability: Durability,
) -> Result<()> {
    super::run(store, TxOptions { durability, sections: None }, |t| {
        for part in parts {
            let place = t.slice_part_mut(part.array, part.from, part.values.len() as u64)?;
            place.copy_from_slice(part.values);
        }
        Ok::<_, Error>(())
    })
}
