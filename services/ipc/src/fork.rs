// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions and fork: a child must not keep its parent's sockets open, or nobody would notice the parent's death.
//!
//! - **Flow** every session socket is registered here ─▶ after a fork, the child closes its copies
//! - **Order** the child handler runs between fork and anything else; it only calls close(2) and stores atomics
//! - **Owner** a [`SessionSocket`] closes its descriptor only in the process that opened it
#![expect(unsafe_code, reason = "pthread_atfork, and closing descriptors by number in the child")]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Sockets that a child would have to close. More than this are kept open by a child, which only delays hang-ups.
const SOCKETS: usize = 4096;
static OPEN: [AtomicI32; SOCKETS] = [const { AtomicI32::new(-1) }; SOCKETS];
static INSTALL: Once = Once::new();
/// How many forks lie between this process and the one that first opened a session.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Forks of this process and of those that it comes from.
static FORKED: AtomicU32 = AtomicU32::new(0);

/// Forks between this process and the one that first opened a session or a queue.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Forks so far: another number than before means that some child has a copy of what this process had.
pub fn forks() -> u32 {
    FORKED.load(Ordering::SeqCst)
}

/// Notices forks from now on.
pub fn watch() {
    INSTALL.call_once(|| {
        // SAFETY: the handlers are plain functions that live for ever and are async-signal-safe.
        unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
    });
}

extern "C" fn before() {
    FORKED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in &OPEN {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: close is async-signal-safe. The number is the child's copy of a socket that only a SessionSocket
            // owns, and that one will not close it in this process.
            unsafe { libc::close(fd) };
        }
    }
}

/// A socket that a fork's child does not keep.
#[derive(Debug)]
pub struct SessionSocket {
    fd: RawFd,
    pid: u32,
    generation: u32,
    place: Option<usize>,
}

impl SessionSocket {
    /// Takes the socket over.
    pub fn new(socket: OwnedFd) -> SessionSocket {
        watch();
        let fd = socket.into_raw_fd();
        let place = OPEN
            .iter()
            .position(|place| place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        SessionSocket { fd, pid: std::process::id(), generation: GENERATION.load(Ordering::Relaxed), place }
    }

    /// The process that opened it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns true if this process opened it.
    pub fn is_ours(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }
}

impl AsFd for SessionSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as self in the process that opened it; callers check `is_ours`
        // before they use a session after a fork.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl AsRawFd for SessionSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for SessionSocket {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if let Some(place) = self.place {
            OPEN[place].store(-1, Ordering::Relaxed);
        }
        // SAFETY: this process opened the descriptor, and nobody else closes it.
        drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
    }
}
