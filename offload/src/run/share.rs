// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy that several cores share: the caller starts at once, workers join when they are awake.
//!
//! - **Flow** caller: `Share::new` ─▶ offered to idle workers ─▶ `help` ─▶ wait until all chunks are done
//!   worker: `help` ─▶ forget it
//! - **Order** chunks are claimed by one counter; `finished` is added to with Release after a chunk's bytes are
//!   written, and read with Acquire by the caller, who therefore sees every byte
//! - **Owner** the counters live on the heap and outlive a late worker; source and target are touched only for a
//!   claimed chunk, and the caller does not return while one is claimed and unfinished
//!
//! Because claims are first come, first served, a worker that wakes late, or never, costs nothing: the caller
//! copies the rest itself. Only a worker that loses its core in the middle of a chunk makes the caller wait.

use memlift_ground::complete::{FutexParker, ParkWord, WaitPolicy, Waited, Waiter};
use memlift_kernels::Kernels;
use memlift_place::Stores;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How large the chunks of a shared copy of `bytes` are: some tens of them, so that the last one is short, but
/// long enough for streams of stores and for the claim to cost nothing.
pub(crate) fn share_chunk_bytes(bytes: usize) -> usize {
    (bytes / 32).next_multiple_of(64 * 1024).clamp(128 * 1024, 2 << 20)
}

pub(crate) struct Share {
    kernels: &'static Kernels,
    stores: Stores,
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
// SAFETY: threads that share it change atomics only, and the counter gives each chunk to one of them.
unsafe impl Sync for Share {}

thread_local! {
    static WAITER: RefCell<Waiter> = RefCell::new(Waiter::new(WaitPolicy::AUTO.predicting()));
}

impl Share {
    /// # Safety
    ///
    /// Both ranges are valid for `bytes` and apart until [`Share::finish`] has returned.
    pub unsafe fn new(
        kernels: &'static Kernels,
        stores: Stores,
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

    /// Copies chunks until none is left to claim; gives how many.
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
            // SAFETY: the chunk was claimed by this thread alone and is not finished, so the caller of `new`
            // still keeps both ranges valid.
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

    /// Copies what is left and waits for the chunks that others claimed.
    pub fn finish(&self) {
        self.help();
        self.finish_by_others(20_000);
    }

    /// Waits until others have done all of it, which is predicted to take `predicted_ns`.
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
