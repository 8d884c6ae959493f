// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bell: a descriptor that is readable while an item waits, for members that wait for several things at once.
//!
//! - **Flow** a member asks for it ─▶ the queue is marked as watched ─▶ the put that ends emptiness rings, the take that begins it silences
//! - **Layout** an eventfd that goes along with the memfd; its count says nothing, only whether it is zero
//! - **Order** both happen under the queue's lock, ringing before the item is there. So a member that dies in between leaves a bell that
//!   rings for nothing, never an item without a bell; who hears it looks under the lock, and silences it if the queue is empty
//! - **Not here** queues that nobody watches: they make no system call for it

use crate::error::Error;
use memlift_ground::complete::ring;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;

/// An eventfd, non-blocking.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> Result<Bell, Error> {
        let fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        Ok(Bell(fd))
    }

    /// Takes over a descriptor that another member passed on.
    pub fn from_fd(fd: OwnedFd) -> Result<Bell, Error> {
        let doing = "looking at a queue's bell";
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(Error::system(doing))?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(Error::system(doing))?;
        Ok(Bell(fd))
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes the descriptor readable if `waits`, else not.
    pub fn set(&self, waits: bool) {
        if waits {
            ring(&self.0);
        } else {
            // EAGAIN: it was silent.
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
        }
    }
}
