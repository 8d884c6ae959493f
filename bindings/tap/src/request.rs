// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the requests that arrive on accepted connections, for the thread that answers them.
//!
//! - **Method** a request is answered by the first bytes that are written to an accepted connection after bytes were read from it. So
//!   requests that one read brings together count as one, and each round of a handshake counts as one.
//! - **Layout** a word for each of the first [`FILES`] descriptors: [`NONE`], [`ANSWERED`], or the time of the first byte that was not
//!   answered yet, plus [`FIRST`].
//! - **Owner** a forked child has a copy of the table, so it knows the connections that its parent has accepted.
//! - **Not here** connections from another process or across exec, datagrams, and answers that no write begins (sendfile alone): they are
//!   not counted.

use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::mapping::now;
use crate::thread::current;

/// Number of descriptors that the table has a word for.
const FILES: usize = 1 << 16;
/// The descriptor is no accepted connection.
const NONE: u64 = 0;
/// All bytes that were read from the connection are answered.
const ANSWERED: u64 = 1;
/// Added to a time, so that it differs from the other two.
const FIRST: u64 = 2;

static STATES: [AtomicU64; FILES] = [const { AtomicU64::new(NONE) }; FILES];

fn state(file: c_int) -> Option<&'static AtomicU64> {
    STATES.get(usize::try_from(file).ok()?)
}

fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Notes that `file` is a connection that this process has accepted.
pub fn accepted(file: c_int) {
    if let Some(state) = state(file) {
        state.store(ANSWERED, Relaxed);
    }
}

/// Notes that `file` is no accepted connection: it is closed, or a connection that this process makes.
pub fn forget(file: c_int) {
    if let Some(state) = state(file).filter(|state| state.load(Relaxed) != NONE) {
        state.store(NONE, Relaxed);
    }
}

/// Counts `bytes` that were read from `file`.
#[inline]
pub fn read(file: c_int, bytes: isize) {
    let Some(state) = state(file).filter(|state| bytes > 0 && state.load(Relaxed) != NONE) else { return };
    // Another thread may have answered or read meanwhile: then this is not the first byte.
    let _ = state.compare_exchange(ANSWERED, now().saturating_add(FIRST), Relaxed, Relaxed);
    add(&current().served.read, bytes as u64);
}

/// Counts `bytes` that were written to `file`; `is_stream` is false if it is no pipe or socket.
#[inline]
pub fn written(file: c_int, bytes: isize, is_stream: bool) {
    let Some(state) = state(file).filter(|state| bytes > 0 && state.load(Relaxed) != NONE) else { return };
    if !is_stream {
        state.store(NONE, Relaxed);
        return;
    }
    let served = &current().served;
    add(&served.written, bytes as u64);
    let Some(read_ns) = state.swap(ANSWERED, Relaxed).checked_sub(FIRST) else { return };
    let answered_ns = now();
    if served.requests.load(Relaxed) == 0 {
        served.first_ns.store(read_ns, Relaxed);
    }
    served.first_ns.store(served.first_ns.load(Relaxed).min(read_ns), Relaxed);
    served.last_ns.store(answered_ns, Relaxed);
    add(&served.inside_ns, answered_ns.saturating_sub(read_ns));
    add(&served.requests, 1);
}
