// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions: everything in the closure happens, or nothing.
//!
//! Flow     sections locked ─▶ a lane ─▶ closure: `get`, `get_mut`, `alloc`, `free` ─▶ commit (`commit`) ─▶ sections released
//! Order    an error or a panic in the closure puts the image back as it was; nothing reached the log
//! Rule     one `&mut` at a time: `get_mut` borrows the transaction. What it lends is saved before and compared at commit
//! Source   NearPM §4.1 (undolog_create, commit_log); libpmemobj's transactions for what users expect of `add_range`

#[expect(unsafe_code, reason = "turns checked places of the image into references")]
mod access;
pub(crate) mod alloc;
mod moving;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::MutexGuard;

use crate::commit::Committed;
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
    pub(crate) writes: MutexGuard<'p, Writes>,
    home: u16,
}

/// What a transaction may be told.
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
    let mut tx = Tx::begin(store, options)?;
    let outcome = match catch_unwind(AssertUnwindSafe(|| work(&mut tx))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            tx.cancel();
            return Err(error);
        }
        Err(panic) => {
            tx.cancel();
            resume_unwind(panic);
        }
    };
    tx.commit(options.durability)?;
    Ok(outcome)
}

/// A lane that nobody has: the thread's own if it is free.
fn claim(store: &Store) -> (&Lane<Writes>, MutexGuard<'_, Writes>) {
    use std::cell::Cell;
    use std::sync::TryLockError;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    let count = store.lanes.len();
    let mine = MINE.get();
    let first = if mine < count { mine } else { mine % count };
    for at in first..first + count {
        let lane = &store.lanes[if at < count { at } else { at - count }];
        match lane.state.try_lock() {
            Ok(writes) => return (lane, writes),
            Err(TryLockError::Poisoned(poisoned)) => return (lane, poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
    let lane = &store.lanes[first];
    (lane, crate::store::lock(&lane.state))
}

impl<'p> Tx<'p> {
    /// Locks what is named and starts. Whoever begins ends it: by [`Tx::commit`] or [`Tx::cancel`], on this thread.
    #[inline]
    pub(crate) fn begin(store: &'p Store, options: TxOptions<'_>) -> Result<Tx<'p>> {
        store.running()?;
        if store.options.read_only {
            return Err(Error::ReadOnly);
        }
        let named = options.sections.unwrap_or(&[]);
        if let Some(wrong) = named.iter().find(|at| usize::from(**at) >= store.sections.len()) {
            let what = format!("there is no section {wrong}: the pool has {}", store.sections.len());
            return Err(Error::Argument { what });
        }
        if options.sections.is_some_and(<[u16]>::is_empty) {
            return Err(Error::Argument { what: "a transaction names one section at least".to_owned() });
        }
        let wanted = if store.by_pages() { None } else { options.sections };
        let held = Held::lock(&store.sections, wanted);
        let home = named.first().copied().unwrap_or_else(|| held.first());
        let (lane, mut writes) = claim(store);
        writes.clear();
        Ok(Tx { store, held, lane, writes, home })
    }

    /// Ends it: everything happened. After an error nothing did.
    #[inline]
    pub(crate) fn commit(mut self, durability: Durability) -> Result<()> {
        let store = self.store;
        let committed = match store.commit(self.lane, &mut self.writes, durability) {
            Ok(committed) => committed,
            Err(error) => {
                self.abort();
                return Err(error);
            }
        };
        self.settle(committed);
        drop(self);
        store.finish(committed, durability)
    }

    /// Ends it as if it had not been.
    pub(crate) fn cancel(mut self) {
        self.abort();
    }

    /// Ends the transaction as if it had not been.
    fn abort(&mut self) {
        self.store.mark_private(&self.writes);
        self.writes.undo(&self.store.image);
        if self.writes.undo_from.is_some() {
            // Stopped, if this fails: then the log keeps the before-images, and the next open puts them back.
            let _ = self.store.commit_undo(self.lane, &mut self.writes);
        }
        self.abandon();
    }

    /// What was freed may be used again, when it may.
    fn settle(&mut self, committed: Committed) {
        if self.writes.freed.is_empty() && self.writes.slabs_freed.is_empty() {
            return;
        }
        self.release(committed);
    }

    /// The section in which [`Tx::alloc`] puts new objects.
    pub fn home(&self) -> u16 {
        self.home
    }

    /// An error that aborts the transaction with the caller's own reason.
    pub fn aborted(reason: impl Into<String>) -> Error {
        Error::Aborted(reason.into())
    }
}
