// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overwriting parts of arrays: all of them or none, without a look at what they were.
//!
//! - **Flow** all parts are checked and their lines are marked ─▶ room in the log ─▶ record of the new bytes, fence ─▶ the image.
//!   Whole lines of one page are not even marked. Parts of lines, shadow pages and what is durable late go into the image first, and the
//!   record is made of that
//! - **Why** a transaction saves what it lends for writing, and compares it at commit. Who gives all new bytes beforehand needs neither
//! - **Rule** there is no before-image, so the image changes when nothing but the disk can fail; then the pool stops
//! - **Pools** checkpoint and shadow, where a fence makes the commit durable, or where it may be durable late. In others a transaction
//!   does the same
//! - **Source** NearPM §4.2: the program says what it writes

use super::{Tx, TxOptions, admit, claim};
use crate::checkpoint::worst_bytes;
use crate::commit::{Committed, Watched};
use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::persist::Persist;
use crate::ptr::PSlice;
use crate::section::Held;
use crate::store::Store;
use memlift_kernels::log::PageLines;

const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
/// Lines of a page.
const PAGE_LINES: u64 = PAGE_BYTES / LINE_BYTES;

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
    let mut dirty = store.dirty.write();
    let clean = dirty.pages.is_empty();
    if durability == Durability::Buffered {
        store.make_way(&mut dirty, worst)?;
    } else if !clean {
        // All parts are checked first: marks that a refused part leaves would add up with those from before.
        let mut seen = PSlice::EMPTY;
        parts.iter().try_for_each(|part| Tx::locate_part(store, &held, part, &mut seen).map(|_| ()))?;
    }
    let mut of_page = PageLines::default();
    let page = if durability == Durability::Sync && clean && store.shadow.is_none() {
        one_page(store, &held, parts, &mut of_page)?
    } else {
        None
    };
    let lines = if page.is_some() {
        Lines::Whole
    } else {
        let marked = mark(store, &held, &mut dirty, parts).inspect_err(|_| give_up(&mut dirty, clean))?;
        let Some(lines) = marked else { return Ok(()) };
        lines
    };
    let watched = Watched::start(store, || (parts.len() as u64, bytes));
    let before = writes.counters.log_bytes;
    let values = parts.iter().filter(|part| !part.values.is_empty());
    let values = values.map(|part| (offset_of(part), Tx::bytes_of(part.values)));
    let fill = || values.clone().for_each(|(offset, bytes)| store.image.overwrite(offset, bytes));
    dirty.marked += 1;
    let committed = if let Some(page) = page {
        store.commit_page(lane, &mut writes, &mut dirty, page, &of_page).map(|()| Committed::Durable)
    } else if durability == Durability::Buffered {
        fill();
        Ok(Committed::Marked(dirty.marked))
    } else if clean && lines == Lines::Whole && store.shadow.is_none() && dirty.is_few() {
        store.commit_lines(lane, &mut writes, &mut dirty, values).map(|()| Committed::Durable)
    } else {
        store.commit_dirty(lane, &mut writes, &mut dirty, fill).map(|()| Committed::Durable)
    };
    let committed = committed.inspect_err(|_| give_up(&mut dirty, clean))?;
    store.row.committed(writes.counters.log_bytes - before);
    drop((dirty, writes, held));
    store.finish(committed, durability)?;
    if let Some(watched) = watched {
        watched.end();
    }
    Ok(())
}

/// After an error: the image is as it was, or the pool has stopped.
#[cold]
fn give_up(dirty: &mut Dirty, clean: bool) {
    if clean {
        dirty.forget();
    }
}

/// Where a part that was checked lies.
#[inline(always)]
fn offset_of<T: Persist>(part: &Overwrite<'_, T>) -> u64 {
    part.array.offset() + part.from * size_of::<T>() as u64
}

/// Checks the parts as far as they are whole lines of one page, whose values lie at whole words; returns the page if all are.
#[inline(always)]
fn one_page<'v, T: Persist>(
    store: &Store,
    held: &Held<'_>,
    parts: &[Overwrite<'v, T>],
    lines: &mut PageLines<'v>,
) -> Result<Option<u64>> {
    let mut page = None;
    let mut seen = PSlice::EMPTY;
    for part in parts {
        let Some((offset, bytes)) = Tx::locate_part(store, held, part, &mut seen)? else { continue };
        let first = offset / PAGE_BYTES;
        let whole =
            (offset | bytes).is_multiple_of(LINE_BYTES) && part.values.as_ptr().addr().is_multiple_of(8);
        if !whole || *page.get_or_insert(first) != first || (offset + bytes - 1) / PAGE_BYTES != first {
            return Ok(None);
        }
        let values = Tx::bytes_of(part.values).as_chunks::<{ LINE_BYTES as usize }>().0;
        let line = offset % PAGE_BYTES / LINE_BYTES;
        values.iter().zip(line as usize..).for_each(|(bytes, line)| lines.set(line, bytes));
    }
    if let (Some(page), Some(private)) = (page, &store.private) {
        private.mark(page * PAGE_BYTES, PAGE_BYTES);
    }
    Ok(page)
}

/// How parts lie in lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lines {
    /// They are whole lines, and their values lie at whole words.
    Whole,
    /// They are not.
    Parts,
}

/// Checks all parts and marks their lines. None: there is nothing to do.
///
/// It makes no list of places: one that was stored a moment ago and is read in larger pieces waits for the fence before (see `Words`).
#[inline(always)]
fn mark<T: Persist>(
    store: &Store,
    held: &Held<'_>,
    dirty: &mut Dirty,
    parts: &[Overwrite<'_, T>],
) -> Result<Option<Lines>> {
    // The page that is looked at, its lines, and bits that are 0 for whole lines and words.
    let (mut page, mut lines, mut odd) = (0, 0, 0);
    let mut seen = PSlice::EMPTY;
    for part in parts {
        let Some((offset, bytes)) = Tx::locate_part(store, held, part, &mut seen)? else { continue };
        odd |= (offset | bytes) % LINE_BYTES;
        odd |= part.values.as_ptr().addr() as u64 % 8;
        let (mut line, end) = (offset / LINE_BYTES, (offset + bytes).div_ceil(LINE_BYTES));
        while line < end {
            let count = (PAGE_LINES - line % PAGE_LINES).min(end - line);
            if line / PAGE_LINES != page {
                dirty.mark(page, lines);
                (page, lines) = (line / PAGE_LINES, 0);
                if let Some(private) = &store.private {
                    private.mark(page * PAGE_BYTES, PAGE_BYTES);
                }
            }
            lines |= u64::MAX >> (PAGE_LINES - count) << (line % PAGE_LINES);
            line += count;
        }
    }
    dirty.mark(page, lines);
    // Page 0 is the directory's: no object lies there.
    Ok((lines != 0).then_some(if odd == 0 { Lines::Whole } else { Lines::Parts }))
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
