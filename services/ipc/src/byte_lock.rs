// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks on bytes of a memfd: they say if the process that holds a number still lives, as the kernel knows it.
//!
//! - **Flow** open the memfd anew ─▶ lock a byte of it ─▶ others ask the kernel if that byte is locked
//! - **Order** the kernel drops a lock with the last descriptor of its opening: when the process ends, however it ends
//! - **Owner** the descriptor is closed in a fork's child (`fork`), whose locks are its own
//! - **Layout** the bytes lie behind everything, so that no one confuses them with data. Locks may lie beyond the end
#![expect(unsafe_code, reason = "locks on bytes of a file, by fcntl")]

use crate::fork::SessionSocket;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;

/// Offset of the byte of number 0.
const BYTES_AT: i64 = 1 << 56;

/// An opening of a memfd, with the locks of its owner.
#[derive(Debug)]
pub(crate) struct ByteLocks(SessionSocket);

fn lock_of(number: u32, kind: i32) -> libc::flock {
    // SAFETY: plain numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = BYTES_AT + i64::from(number);
    lock.l_len = 1;
    lock
}

impl ByteLocks {
    /// Opens the memfd anew; needs `/proc`.
    pub(crate) fn open(memfd: BorrowedFd<'_>) -> rustix::io::Result<ByteLocks> {
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let own: OwnedFd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(ByteLocks(SessionSocket::new(own)))
    }

    /// Locks a number; returns false if another opening has it.
    pub(crate) fn try_lock(&self, number: u32) -> io::Result<bool> {
        match self.set(number, libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES | libc::EINTR) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Gives a number back.
    pub(crate) fn unlock(&self, number: u32) {
        // It can only fail if the descriptor is closed, and then the lock is gone.
        let _ = self.set(number, libc::F_UNLCK);
    }

    /// Returns true if another opening has that number, or if the kernel cannot tell. One's own lock is not seen.
    pub(crate) fn is_locked(&self, number: u32) -> bool {
        let mut asked = lock_of(number, libc::F_WRLCK);
        // SAFETY: the descriptor is open and the struct lives as long as the call.
        let ok = unsafe { libc::fcntl(self.0.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) } == 0;
        !ok || asked.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Returns true if this process opened it, and not one that it is a fork of.
    pub(crate) fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    fn set(&self, number: u32, kind: i32) -> io::Result<()> {
        let wanted = lock_of(number, kind);
        // SAFETY: the descriptor is open and the struct lives as long as the call.
        match unsafe { libc::fcntl(self.0.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
