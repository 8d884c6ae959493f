// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways in which a message or a copy can store: through the cache or past it.

use memlift_ground::observe::Executor;
use memlift_kernels::{Kernels, Shape};

/// How a message's bytes are read and written: through the caches or past them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Store {
    /// Reads and writes through the caches.
    Temporal = 0,
    /// Reads through the caches and writes past them.
    Streaming = 1,
    /// Reads and writes past the caches, as far as the CPU can.
    Isolated = 2,
}

impl Store {
    /// All stores, in the order of their numbers.
    pub const ALL: [Store; 3] = [Store::Temporal, Store::Streaming, Store::Isolated];

    /// Returns the short lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Store::Temporal => "temporal",
            Store::Streaming => "streaming",
            Store::Isolated => "isolated",
        }
    }

    /// Returns the executor that statistics count this store as.
    pub(crate) const fn executor(self) -> Executor {
        match self {
            Store::Temporal => Executor::InlineTemporal,
            _ => Executor::InlineNt,
        }
    }
}

/// The way in which a copy stores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StoreKind {
    /// Through the cache.
    Temporal,
    /// Past the cache, in this shape.
    Streaming(Shape),
    /// Not at all, to measure only the hand-off to a worker.
    None,
}

impl StoreKind {
    /// Copies `bytes`.
    ///
    /// # Safety
    ///
    /// `source` is readable and `target` writable for `bytes`, and they do not overlap.
    pub unsafe fn copy(self, kernels: &Kernels, target: *mut u8, source: *const u8, bytes: usize) {
        // SAFETY: the caller promises that both ranges have `bytes` and do not overlap.
        unsafe {
            match self {
                StoreKind::Temporal => (kernels.copy)(target, source, bytes),
                StoreKind::Streaming(shape) => (kernels.shaped.copy)(target, source, bytes, shape),
                StoreKind::None => {}
            }
        }
    }
}
