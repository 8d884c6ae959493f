// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Claims of threads: a transaction or read lock that a thread has open in a pool.
//!
//! - **Order** a thread can have one per pool: a second one would wait for the first for ever

use crate::fault::Fault;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

thread_local! {
    /// Pools in which this thread has a transaction or a read lock, by the address of their counter.
    static OPEN_HERE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Records that a thread has a transaction or read lock open, until it is dropped.
pub(crate) struct Claim {
    open: Arc<AtomicUsize>,
    thread: ThreadId,
}

impl Claim {
    /// Claims the pool whose counter `open` is.
    pub(crate) fn new(open: &Arc<AtomicUsize>) -> Result<Claim, Fault> {
        let place = Arc::as_ptr(open).addr();
        OPEN_HERE.with_borrow_mut(|mine| {
            if mine.contains(&place) {
                return Err(Fault::order(
                    "this thread has a transaction or read lock of the pool open: end it first",
                ));
            }
            mine.push(place);
            Ok(())
        })?;
        open.fetch_add(1, Ordering::AcqRel);
        Ok(Claim { open: Arc::clone(open), thread: std::thread::current().id() })
    }

    /// Refuses another thread than the one that began.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.thread == std::thread::current().id() {
            return Ok(());
        }
        Err(Fault::order("a transaction or read lock is used by the thread that began it, and by no other"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let place = Arc::as_ptr(&self.open).addr();
        OPEN_HERE.with_borrow_mut(|mine| mine.retain(|one| *one != place));
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns true if this thread has a transaction or read lock of the pool whose counter `open` is.
pub(crate) fn is_held(open: &Arc<AtomicUsize>) -> bool {
    OPEN_HERE.with_borrow(|mine| mine.contains(&Arc::as_ptr(open).addr()))
}
