// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Noticing that this process is the child of a fork: the parent's threads do not exist here.
//!
//! - **Flow** first call registers a `pthread_atfork` child handler ──▶ each fork adds one in the child
//! - **Why** a getpid per submission would be a system call; a load is free

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between the first process that asked and this one. Threads, and whatever they were asked
/// to do, belong to the generation that they were started in.
pub fn generation() -> u32 {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the handler is a plain function that only adds to an atomic, which is async-signal-safe.
        // Failure (out of memory) leaves the count at 0: forked children then behave as if they had threads,
        // which is how every library without a handler behaves.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}
