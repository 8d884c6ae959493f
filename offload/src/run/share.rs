// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy that several cores share: the caller starts immediately, and workers join when they are awake.
//!
//! - **Flow** caller: `Share::new` ─▶ offered to idle workers ─▶ `help` ─▶ wait until all chunks are done. Worker:
//!   `help`, then drop the share
//! - **Order** chunks are claimed by one counter. `finished` is increased with Release after a chunk's bytes are
//!   written, and read with Acquire by the caller, which therefore sees every byte
//! - **Owner** the counters are on the heap and outlive a late worker. Source and target are accessed only for a
//!   claimed chunk, and the caller does not return while a claimed chunk is unfinished
//!
//! Chunks are claimed in order by whichever thread comes first, so a worker that wakes late, or never, costs nothing:
//! the caller copies the rest itself. Only a worker that loses its core in the middle of a chunk makes the caller wait.

use memlift_ground::complete::{FutexParker, ParkWord, WaitPolicy, Waited, Waiter};
use memlift_kernels::Kernels;
use memlift_place::StoreKind;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the chunk size for a shared copy of `bytes`: a few dozen chunks, so that the last one is short, but large
/// enough for streaming stores and for a negligible cost of claims.
pub(crate) fn share_chunk_bytes(bytes: usize) -> usize {
    (bytes / 32).next_multiple_of(64 * 1024).clamp(128 * 1024, 2 << 20)
}

pub(crate) struct Share {
    kernels: &'static Kernels,
    stores: StoreKind,
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    chunk_bytes: usize,
    claimed: AtomicUsize,
    finished: AtomicUsize,
    park: ParkWord,
}

// SAFETY: the pointers are only used for chunks claimed through the atomic counter, each by one thread, and the caller of
// [`Share::new`] keeps both buffers valid until the last chunk has finished.
unsafe impl Send for Share {}
// SAFETY: threads that share it only change atomics, and the counter gives each chunk to one of them.
unsafe impl Sync for Share {}

thread_local! {
    static WAITER: RefCell<Waiter> = RefCell::new(Waiter::new(WaitPolicy::AUTO.predicting()));
}

impl Share {
    /// # Safety
    ///
    /// Both ranges are valid for `bytes` and do not overlap until [`Share::finish`] has returned.
    pub unsafe fn new(
        kernels: &'static Kernels,
        stores: StoreKind,
        target: *mut u8,
        source: *const u8,
        bytes: usize,
        chunk_bytes: usize,
    ) -> Arc<Share> {
        Arc::new(Share {
            kernels,
            stores,
            target,
            source,
            bytes,
            chunk_bytes: chunk_bytes.max(1),
            claimed: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            park: ParkWord::new(),
        })
    }

    fn chunks(&self) -> usize {
        self.bytes.div_ceil(self.chunk_bytes)
    }

    fn done(&self) -> bool {
        self.finished.load(Ordering::Acquire) >= self.chunks()
    }

    /// Copies chunks until none is left to claim; returns how many it copied.
    pub fn help(&self) -> usize {
        let chunks = self.chunks();
        let mut copied = 0;
        loop {
            let chunk = self.claimed.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                break;
            }
            let offset = chunk * self.chunk_bytes;
            let bytes = self.chunk_bytes.min(self.bytes - offset);
            // SAFETY: this thread alone has claimed the chunk and has not finished it, so the caller of `new` still keeps
            // both ranges valid.
            unsafe {
                self.stores.copy(self.kernels, self.target.add(offset), self.source.add(offset), bytes)
            };
            copied += 1;
            if self.finished.fetch_add(1, Ordering::Release) + 1 == chunks {
                FutexParker::new(&self.park, false).wake();
            }
        }
        copied
    }

    /// Copies the remaining chunks and waits for those that others have claimed.
    pub fn finish(&self) {
        self.help();
        self.finish_by_others(20_000);
    }

    /// Waits until others have copied everything, which is predicted to take `predicted_ns`.
    pub fn finish_by_others(&self, predicted_ns: u64) {
        while !self.done() {
            WAITER.with_borrow_mut(|waiter| {
                let parker = FutexParker::new(&self.park, false);
                let waited = waiter.wait(&parker, std::ptr::null(), || self.done(), Some(predicted_ns), None);
                if let Waited::Broken(_) = waited {
                    std::thread::yield_now();
                }
            });
        }
    }
}
