// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pools, transactions and read locks that outlive the call that made them.
//!
//! - **Owner** every [`PoolRef`] keeps the pool open; the last one closes it. [`Handle::close`] waits for calls under way
//! - **Order** an [`OpenTx`] ends on the thread that began it (it is not `Send`: locks are the thread's). Dropped, it never
//!   happened
//! - **Rule** after a fork the child has a copy of the mapping and of the locks, but the file is the parent's: in the child
//!   nothing is written, and what it drops is forgotten

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use crate::commit::Watched;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::pool::Pool;
use crate::section::Shared;
use crate::store::Store;
use crate::tx::{Tx, TxOptions};
use crate::view::{View, locate, root_words};

fn refused<T>(what: &str) -> Result<T> {
    Err(Error::Argument { what: what.to_owned() })
}

/// A share of an open pool.
pub struct PoolRef {
    pool: ManuallyDrop<Arc<Pool>>,
    process: u32,
}

impl PoolRef {
    fn new(pool: Pool) -> PoolRef {
        PoolRef { pool: ManuallyDrop::new(Arc::new(pool)), process: std::process::id() }
    }

    fn ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Starts a transaction on the whole pool.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`], [`Error::ReadOnly`]; [`Error::Argument`] in a forked child.
    pub fn begin(&self, durability: Durability) -> Result<OpenTx> {
        if !self.ours() {
            return refused(
                "the pool was opened before a fork: a pool has one owner, open it in one process",
            );
        }
        let pool = self.clone();
        let store = std::ptr::from_ref::<Store>(pool.store());
        // SAFETY: the store lives in the Arc that `pool` has a share of, and `OpenTx` drops the transaction before `pool`.
        let tx = Tx::begin(unsafe { &*store }, TxOptions { durability, sections: None })?;
        Ok(OpenTx { tx: Some(tx), durability, pool })
    }

    /// Locks the whole pool for reading.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`]; [`Error::Argument`] in a forked child.
    pub fn read(&self) -> Result<OpenRead> {
        if !self.ours() {
            return refused(
                "the pool was opened before a fork: a pool has one owner, open it in one process",
            );
        }
        let pool = self.clone();
        let store = std::ptr::from_ref::<Store>(pool.store());
        // SAFETY: as in `begin`; fields are dropped in order, `held` first.
        let store = unsafe { &*store };
        store.running()?;
        Ok(OpenRead { held: Shared::lock(&store.sections, None), pool })
    }
}

impl Deref for PoolRef {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl Clone for PoolRef {
    fn clone(&self) -> PoolRef {
        PoolRef { pool: self.pool.clone(), process: self.process }
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        if self.ours() {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

impl fmt::Debug for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRef").field("process", &self.process).finish_non_exhaustive()
    }
}

/// A pool that can be closed while others still have a handle.
#[derive(Debug)]
pub struct Handle {
    pool: RwLock<Option<PoolRef>>,
}

impl Handle {
    /// Takes a pool over.
    pub fn new(pool: Pool) -> Handle {
        Handle { pool: RwLock::new(Some(PoolRef::new(pool))) }
    }

    /// Sees what another process has committed since: [`Pool::refresh`]. Shares that are there go on having what they have. None: it is
    /// closed, or this is a forked child.
    ///
    /// # Errors
    ///
    /// As [`Pool::refresh`].
    pub fn refresh(&self) -> Result<Option<()>> {
        let mut held = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let Some(pool) = held.as_mut().filter(|pool| pool.ours()) else { return Ok(None) };
        match Arc::get_mut(&mut pool.pool) {
            Some(pool) => pool.refresh()?,
            None => {
                if let Some(newer) = pool.newer()? {
                    *pool = PoolRef::new(newer);
                }
            }
        }
        Ok(Some(()))
    }

    /// Calls `work` with the pool, which stays open until it returns. None: it is closed, or this is a forked child.
    pub fn with<R>(&self, work: impl FnOnce(&PoolRef) -> R) -> Option<R> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.as_ref().filter(|pool| pool.ours()).map(work)
    }

    /// Closes it, after the calls that are under way. False: a share is left ([`PoolRef`], [`OpenTx`], [`OpenRead`]); then all is
    /// durable, and the file is released with the last share.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the disk fails.
    pub fn close(&self) -> Result<bool> {
        let taken = self.pool.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut pool) = taken else { return Ok(true) };
        if !pool.ours() {
            return Ok(true);
        }
        if Arc::get_mut(&mut pool.pool).is_none() {
            pool.sync()?;
            return Ok(false);
        }
        // SAFETY: taken out once; `pool` is forgotten right after, so it is not dropped again.
        let inner = unsafe { ManuallyDrop::take(&mut pool.pool) };
        std::mem::forget(pool);
        match Arc::try_unwrap(inner) {
            Ok(pool) => pool.close().map(|()| true),
            Err(_) => Ok(false), // not possible: nobody else had a share, and nobody could get one
        }
    }
}

/// A transaction that stays open from call to call.
pub struct OpenTx {
    /// None once it has ended.
    tx: Option<Tx<'static>>,
    durability: Durability,
    pool: PoolRef,
}

impl OpenTx {
    /// Lends it to `work`. Nothing that `work` gets outlives the call.
    ///
    /// # Panics
    ///
    /// Never: it is there until it is committed or dropped.
    pub fn with<R>(&mut self, work: impl for<'p> FnOnce(&mut Tx<'p>) -> R) -> R {
        work(self.tx.as_mut().expect("open until it is committed or dropped"))
    }

    /// Lends it for reading.
    ///
    /// # Panics
    ///
    /// Never: as [`OpenTx::with`].
    pub fn looking(&self) -> Looking<'_> {
        Looking::Tx(self.tx.as_ref().expect("open until it is committed or dropped"))
    }

    /// A share of the pool, which keeps it open.
    pub fn pool(&self) -> PoolRef {
        self.pool.clone()
    }

    /// Commits the transaction. After an error nothing happened.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Stopped`].
    pub fn commit(mut self) -> Result<()> {
        if !self.pool.ours() {
            return refused("the transaction was begun before a fork: it is the parent's");
        }
        let Some(mut tx) = self.tx.take() else { return Ok(()) };
        let watched = Watched::begin(tx.store, &tx.writes);
        let (store, committed) = (tx.store, tx.commit(self.durability)?);
        drop(tx);
        store.finish(committed, self.durability)?;
        if let Some(watched) = watched {
            watched.end();
        }
        Ok(())
    }
}

impl Drop for OpenTx {
    fn drop(&mut self) {
        if !self.pool.ours() {
            std::mem::forget(self.tx.take());
        }
    }
}

impl fmt::Debug for OpenTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTx").field("durability", &self.durability).finish_non_exhaustive()
    }
}

/// A read lock that stays taken from call to call.
#[derive(Debug)]
pub struct OpenRead {
    held: Shared<'static>,
    pool: PoolRef,
}

impl OpenRead {
    /// A share of the pool, which keeps it open.
    pub fn pool(&self) -> PoolRef {
        self.pool.clone()
    }

    /// Checks that what was read is what the file has.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when a page of the file could not be had.
    pub fn check(&self) -> Result<()> {
        self.pool.store().running()
    }
}

impl View for OpenRead {
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8> {
        let store = self.pool.store();
        let place = locate(store, offset, bytes, align, tag, |section| self.held.has(section), name)?;
        Ok(store.image.at(place.offset))
    }

    fn root_words(&self) -> (u64, u64) {
        root_words(&self.pool.store().image)
    }

    fn heap_bytes(&self) -> u64 {
        self.pool.store().image.len()
    }
}

/// Either of the two, to look at.
#[derive(Debug)]
pub enum Looking<'a> {
    /// A transaction: with what it changed.
    Tx(&'a Tx<'a>),
    /// A read lock.
    Read(&'a OpenRead),
}

impl View for Looking<'_> {
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8> {
        match self {
            Looking::Tx(tx) => tx.find(offset, bytes, align, tag, name),
            Looking::Read(read) => read.find(offset, bytes, align, tag, name),
        }
    }

    fn root_words(&self) -> (u64, u64) {
        match self {
            Looking::Tx(tx) => tx.root_words(),
            Looking::Read(read) => read.root_words(),
        }
    }

    fn heap_bytes(&self) -> u64 {
        match self {
            Looking::Tx(tx) => tx.heap_bytes(),
            Looking::Read(read) => read.heap_bytes(),
        }
    }
}
