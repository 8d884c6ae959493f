// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions: everything in the closure happens, or nothing.
//!
//! - **Flow** sections locked ─▶ a lane ─▶ closure: `get`, `get_mut`, `alloc`, `free` ─▶ commit (`commit`) ─▶ sections released
//! - **Order** an error or a panic in the closure puts the image back as it was; nothing reached the log
//! - **Rule** one `&mut` at a time: `get_mut` borrows the transaction. What it lends is saved before and compared at commit
//! - **Source** NearPM §4.1 (undolog_create, commit_log); libpmemobj's transactions for what users expect of `add_range`

#[expect(unsafe_code, reason = "turns checked places of the image into references")]
mod access;
pub(crate) mod alloc;
mod emptied;
mod moving;
pub(crate) mod overwrite;

use std::mem::ManuallyDrop;

use crate::biased::WriteGuard;
use crate::commit::{Committed, Watched};
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::options::Durability;
use crate::section::Held;
use crate::store::Store;
use crate::writes::Writes;

/// A transaction under way. See [`crate::Pool::tx`].
#[derive(Debug)]
pub struct Tx<'p> {
    pub(crate) store: &'p Store,
    pub(crate) held: Held<'p>,
    lane: &'p Lane<Writes>,
    pub(crate) writes: WriteGuard<'p, Writes>,
    home: u64,
    /// 1 when nothing is left to do or to undo, else 0.
    over: u64,
}

/// An error, or a panic, in the middle.
impl Drop for Tx<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.over == 0 {
            self.abort();
        }
    }
}

/// Options of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxOptions<'a> {
    /// When it counts as done.
    pub durability: Durability,
    /// The sections that it locks; None: all. New objects go to the first named one.
    pub sections: Option<&'a [u16]>,
}

/// Runs a transaction.
pub(crate) fn run<R, E: From<Error>>(
    store: &Store,
    options: TxOptions<'_>,
    work: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
) -> Result<R, E> {
    let home = admit(store, &options)?;
    let mut tx = Tx::start(store, options.sections, home);
    let value = match work(&mut tx) {
        Ok(value) => value,
        Err(error) => {
            drop(tx);
            store.running()?; // it may have seen what the file does not have
            return Err(error);
        }
    };
    let watched = Watched::begin(store, &tx.writes);
    let committed = tx.commit(options.durability)?;
    drop(tx);
    store.finish(committed, options.durability)?;
    if let Some(watched) = watched {
        watched.end();
    }
    Ok(value)
}

/// Checks that a transaction may begin; returns the first of the sections that it names.
#[inline(always)]
fn admit(store: &Store, options: &TxOptions<'_>) -> Result<Option<u16>> {
    store.running()?;
    if store.options.read_only {
        return Err(Error::ReadOnly);
    }
    options.sections.map(|named| first_of(store, named)).transpose()
}

/// The first of the sections that were named, all of which are there.
fn first_of(store: &Store, named: &[u16]) -> Result<u16> {
    if let Some(wrong) = named.iter().find(|at| usize::from(**at) >= store.sections.len()) {
        let what = format!("there is no section {wrong}: the pool has {}", store.sections.len());
        return Err(Error::Argument { what });
    }
    let none = || Error::Argument { what: "a transaction names one section at least".to_owned() };
    named.first().copied().ok_or_else(none)
}

/// A lane that nobody has: the thread's own if it is free.
#[inline(always)]
fn claim(store: &Store) -> (&Lane<Writes>, WriteGuard<'_, Writes>) {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    let count = store.lanes.len();
    let mine = MINE.get();
    let first = if mine < count { mine } else { mine % count };
    let lane = &store.lanes[first];
    match lane.state.try_write() {
        Some(writes) => (lane, writes),
        None => claim_other(store, first),
    }
}

#[cold]
fn claim_other(store: &Store, first: usize) -> (&Lane<Writes>, WriteGuard<'_, Writes>) {
    let count = store.lanes.len();
    let others = (first + 1..first + count).map(|at| &store.lanes[at % count]);
    let free = others.filter_map(|lane| Some((lane, lane.state.try_write()?))).next();
    free.unwrap_or_else(|| (&store.lanes[first], store.lanes[first].state.write()))
}

impl<'p> Tx<'p> {
    /// Locks the sections and starts. The caller ends it on this thread: by [`Tx::commit`], or by a drop, which undoes it.
    pub(crate) fn begin(store: &'p Store, options: TxOptions<'_>) -> Result<Tx<'p>> {
        let home = admit(store, &options)?;
        Ok(Tx::start(store, options.sections, home))
    }

    /// As [`Tx::begin`], after [`admit`]. It cannot fail, so the transaction is built in its final place.
    #[inline(always)]
    fn start(store: &'p Store, sections: Option<&[u16]>, home: Option<u16>) -> Tx<'p> {
        let wanted = if store.by_pages() { None } else { sections };
        // Nothing from here on panics. `ManuallyDrop` removes the unwind path; otherwise the guards are spilled and reloaded with
        // another width, which waits for the fence before (see `Words`).
        let held = ManuallyDrop::new(Held::lock(&store.sections, wanted));
        let home = home.unwrap_or_else(|| held.first());
        let (lane, writes) = claim(store);
        let held = ManuallyDrop::into_inner(held);
        let mut tx = Tx { store, held, lane, writes, home: u64::from(home), over: 0 };
        tx.writes.clear();
        tx
    }

    /// Ends it: the transaction happened, and is to be finished ([`Store::finish`]) once the sections are released. After an
    /// error nothing happened.
    #[inline(always)]
    pub(crate) fn commit(&mut self, durability: Durability) -> Result<Committed> {
        let before = self.writes.counters.log_bytes;
        match self.store.commit(self.lane, &mut self.writes, durability) {
            Ok(committed) => {
                self.store.row.committed(self.writes.counters.log_bytes - before);
                self.settle(committed);
                self.over = 1;
                Ok(committed)
            }
            Err(error) => {
                self.abort();
                Err(error)
            }
        }
    }

    /// Ends the transaction and undoes its changes.
    #[cold]
    fn abort(&mut self) {
        self.over = 1;
        self.store.row.aborted();
        self.store.mark_private(&self.writes);
        self.writes.undo(&self.store.image);
        if self.writes.undo_from.is_some() {
            // If this fails the pool stops: the log keeps the before-images, and the next open puts them back.
            let _ = self.store.commit_undo(self.lane, &mut self.writes);
        }
        self.abandon();
    }

    /// Gives freed slots and slabs back. Where the commit is durable only with the shared lane, they wait for that.
    #[inline]
    fn settle(&mut self, committed: Committed) {
        if self.writes.freed.is_empty() && self.writes.slabs_freed.is_empty() {
            return;
        }
        self.release(committed);
    }

    /// The section in which [`Tx::alloc`] puts new objects.
    pub fn home(&self) -> u16 {
        self.home as u16
    }

    /// An error that aborts the transaction with the caller's own reason.
    pub fn aborted(reason: impl Into<String>) -> Error {
        Error::Aborted(reason.into())
    }
}
