// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scratch pool: a bounded number of slabs for all transforms of a [`Transform`](crate::Transform).
//!
//! - **Flow** `take(patience)` gives a `Lease` on a free slab or on a new one below the limit, waits for one, or gives `Busy`; dropping
//!   the lease frees the slab.
//! - **Layout** a slab has 80 KiB of stage (a block of 64 KiB and what packing may add), a second buffer of 80 KiB, and the codec's tables.
//! - **Owner** slabs are allocated when they are first needed and never given back; a lease owns its slab alone.
//! - **Order** waiting threads are woken in the order of the operating system; no thread waits while a slab is free.
//! - **Not here** small direct paths: sealing without a stage takes no slab.

use crate::codec::Codec;
use crate::{Error, Patience};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that a slab is counted as: its buffers and the codec's tables.
pub const SLAB_BYTES: usize = 512 * 1024;
/// Bytes of a stage: a block of the largest size fits after packing, whatever its contents.
pub(crate) const STAGE_BYTES: usize = 80 * 1024;

/// Private memory of one transform.
#[derive(Debug)]
pub(crate) struct Slab {
    pub stage: Box<[u8]>,
    pub beside: Box<[u8]>,
    pub aad: Vec<u8>,
    pub codec: Codec,
}

impl Slab {
    fn new() -> Box<Slab> {
        let stage = || vec![0; STAGE_BYTES].into_boxed_slice();
        Box::new(Slab { stage: stage(), beside: stage(), aad: Vec::new(), codec: Codec::new() })
    }
}

#[derive(Default)]
struct Shelf {
    free: Vec<Box<Slab>>,
    made: usize,
}

/// Counters of the scratch pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScratchStats {
    /// Limit of the number of slabs.
    pub slabs_max: u64,
    /// Slabs allocated so far.
    pub slabs: u64,
    /// Slabs in use now.
    pub in_use: u64,
    /// Highest number of slabs in use at the same time.
    pub in_use_max: u64,
    /// Leases given so far.
    pub taken: u64,
    /// Leases that had to wait.
    pub waits: u64,
    /// Time that leases waited, nanoseconds.
    pub wait_ns: u64,
    /// Requests that ended with [`Error::Busy`].
    pub refused: u64,
}

/// A bounded pool of slabs.
pub struct Scratch {
    shelf: Mutex<Shelf>,
    freed: Condvar,
    slabs_max: usize,
    in_use_max: AtomicU64,
    taken: AtomicU64,
    waits: AtomicU64,
    wait_ns: AtomicU64,
    refused: AtomicU64,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").field("stats", &self.stats()).finish()
    }
}

impl Scratch {
    /// Creates a pool of at most `bytes` bytes, but at least one slab.
    pub fn new(bytes: usize) -> Scratch {
        Scratch {
            shelf: Mutex::default(),
            freed: Condvar::new(),
            slabs_max: (bytes / SLAB_BYTES).max(1),
            in_use_max: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slab, makes one below the limit, or waits for one.
    pub(crate) fn take(&self, patience: Patience) -> Result<Lease<'_>, Error> {
        let mut shelf = self.shelf();
        let mut begun: Option<Instant> = None;
        loop {
            if let Some(slab) = self.free(&mut shelf) {
                drop(shelf);
                if let Some(begun) = begun {
                    self.wait_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
                self.taken.fetch_add(1, Ordering::Relaxed);
                return Ok(Lease { pool: self, slab: Some(slab) });
            }
            let waited = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            let left = match patience {
                Patience::Wait => Duration::from_secs(3600),
                Patience::None => Duration::ZERO,
                Patience::AtMost(most) => most.saturating_sub(waited),
            };
            if left.is_zero() {
                self.wait_ns.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Busy { slabs: self.slabs_max });
            }
            if begun.is_none() {
                self.waits.fetch_add(1, Ordering::Relaxed);
                begun = Some(Instant::now());
            }
            shelf = self.freed.wait_timeout(shelf, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn free(&self, shelf: &mut Shelf) -> Option<Box<Slab>> {
        let slab = match shelf.free.pop() {
            Some(slab) => slab,
            None if shelf.made < self.slabs_max => {
                shelf.made += 1;
                Slab::new()
            }
            None => return None,
        };
        let in_use = (shelf.made - shelf.free.len()) as u64;
        self.in_use_max.fetch_max(in_use, Ordering::Relaxed);
        Some(slab)
    }

    /// Returns the pool's counters.
    pub fn stats(&self) -> ScratchStats {
        let (made, free) = {
            let shelf = self.shelf();
            (shelf.made as u64, shelf.free.len() as u64)
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScratchStats {
            slabs_max: self.slabs_max as u64,
            slabs: made,
            in_use: made - free,
            in_use_max: load(&self.in_use_max),
            taken: load(&self.taken),
            waits: load(&self.waits),
            wait_ns: load(&self.wait_ns),
            refused: load(&self.refused),
        }
    }
}

/// Exclusive use of a slab until the lease is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    pool: &'a Scratch,
    slab: Option<Box<Slab>>,
}

impl Deref for Lease<'_> {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        self.slab.as_ref().expect("taken only by drop")
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Slab {
        self.slab.as_mut().expect("taken only by drop")
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.pool.shelf().free.push(slab);
            self.pool.freed.notify_one();
        }
    }
}
