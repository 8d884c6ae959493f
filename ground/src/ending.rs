// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends a server by Ctrl-C or SIGTERM: it finishes the requests that it has begun, so that every stored change is also
//! answered.
//!
//! - **Order** must be called before any other thread starts: threads inherit that the signals are blocked

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes SIGINT and SIGTERM set the returned flag; a second signal ends the process as usual.
///
/// # Errors
///
/// The system's error: the signals cannot be blocked, or the thread cannot be started.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    // SAFETY: a signal set is plain integers, for which zeros are valid; it is filled by the calls that follow.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` lives during the calls, and both numbers are signals.
    let blocked = unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
    };
    // SAFETY: ignoring a signal runs no code. With SIGXFSZ ignored, a write beyond the file size limit fails like one on
    // a full disk.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    let flag = stop.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signal = 0;
        // SAFETY: `set` was filled above, and `signal` is a local of this thread.
        while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
        flag.store(true, Ordering::Relaxed);
        // SAFETY: `set` is this thread's own copy, filled above. Unblocked, the next signal ends the process.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
        loop {
            std::thread::park();
        }
    })?;
    Ok(stop)
}
