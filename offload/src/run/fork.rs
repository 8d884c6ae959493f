// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detects that this process is the child of a fork: the parent's threads do not exist here.
//!
//! - **Flow** the first call registers a `pthread_atfork` child handler ──▶ each fork increments a counter in the child
//! - **Why** a getpid per submission would be a system call; a load costs next to nothing

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks between the first process that called this and the present one. Threads, and
/// the work given to them, belong to the generation in which they were started.
pub fn generation() -> u32 {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the handler is a plain function that only adds to an atomic, which is async-signal-safe. If
        // registration fails (out of memory) the count stays 0: forked children then behave as if they had
        // threads, as with every library that has no handler.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}
