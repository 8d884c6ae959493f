// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Membership in a queue, and whether a member still lives, as the kernel knows it: no timers, no process numbers.
//!
//! - **Flow** open the memfd anew ─▶ lock one byte of it, number by number, until one is free ─▶ a fresh tag into the member's word
//! - **Order** a number belongs to whoever holds the kernel's lock on its byte. The kernel drops the lock with the last descriptor
//!   of that opening: when the process ends, however it ends
//! - **Owner** the descriptor is closed in a fork's child (`fork`), which becomes a member of its own at its first use
//! - **Layout** an identity is the number in the low 12 bits and the tag in the next 19; never 0. Tags keep a dead member and its
//!   number's next holder apart

use super::layout::{Header, Ledger, MEMBERS, TAGS_AT, debt};
use crate::error::Error;
use crate::fork::SessionSocket;
use memlift_ground::region::{Region, RegionOffset};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::{AtomicU32, Ordering};

const NUMBER_BITS: u32 = 12;
const TAG_MAX: u32 = (1 << 19) - 1;
/// Where the bytes to lock lie: behind everything, so that no one confuses them with data. Locks may lie beyond the end.
const BYTES_AT: i64 = 1 << 56;

const _: () = assert!(MEMBERS == 1 << NUMBER_BITS);

/// This process as a member.
#[derive(Debug)]
pub struct Member {
    /// Number and tag, see the module; never 0.
    pub identity: u32,
    lock: SessionSocket,
}

fn lock_of(number: u32, kind: i32) -> libc::flock {
    // SAFETY: plain numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = BYTES_AT + i64::from(number);
    lock.l_len = 1;
    lock
}

fn tag(region: &Region, number: u32) -> Result<&AtomicU32, Error> {
    Ok(region.layout(RegionOffset(TAGS_AT + u64::from(number) * 4))?)
}

impl Member {
    /// Makes this process a member of the queue.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the memfd cannot be opened again (no `/proc`, no descriptors left), or when 4,096 processes use the
    /// queue.
    pub fn join(region: &Region, head: &Header, ledger: Ledger) -> Result<Member, Error> {
        let doing = "joining a queue";
        let base = region.as_fd().ok_or(Error::Closed { what: "queue" })?;
        let own: OwnedFd = rustix::fs::open(
            format!("/proc/self/fd/{}", base.as_raw_fd()),
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(Error::system(doing))?;
        let lock = SessionSocket::new(own);
        for number in 0..MEMBERS {
            let wanted = lock_of(number, libc::F_WRLCK);
            // SAFETY: the descriptor is open and the struct lives as long as the call.
            if unsafe { libc::fcntl(lock.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } == 0 {
                let debt = debt(region, number)?;
                if ledger == Ledger::Calls && debt.load(Ordering::Relaxed) != 0 {
                    // A dead member's call, which nobody has asked for yet.
                    let free = lock_of(number, libc::F_UNLCK);
                    // SAFETY: the descriptor is open and the struct lives as long as the call.
                    unsafe { libc::fcntl(lock.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const free) };
                    continue;
                }
                debt.store(0, Ordering::Relaxed);
                let drawn = head.next_tag.fetch_add(1, Ordering::Relaxed) % TAG_MAX + 1;
                let identity = drawn << NUMBER_BITS | number;
                tag(region, number)?.store(identity, Ordering::SeqCst);
                head.members.fetch_max(number + 1, Ordering::Relaxed);
                return Ok(Member { identity, lock });
            }
            let source = std::io::Error::last_os_error();
            if !matches!(source.raw_os_error(), Some(libc::EAGAIN | libc::EACCES | libc::EINTR)) {
                return Err(Error::System { doing, source });
            }
        }
        let source = std::io::Error::other("4096 processes use the queue already");
        Err(Error::System { doing, source })
    }

    /// Returns true if the member with that identity lives, or if the kernel cannot tell.
    pub fn is_alive(&self, region: &Region, identity: u32) -> bool {
        if identity == self.identity {
            return true;
        }
        let number = Member::number_of(identity);
        if Member::had_number_last(region, identity).is_ok_and(|had| !had) {
            return false;
        }
        self.is_locked(number)
    }

    /// Returns true if a living member has that number.
    pub fn is_number_alive(&self, number: u32) -> bool {
        number == Member::number_of(self.identity) || self.is_locked(number)
    }

    /// The number in an identity.
    pub fn number_of(identity: u32) -> u32 {
        identity & (MEMBERS - 1)
    }

    /// Returns true if nobody had the number of `identity` after it.
    pub fn had_number_last(region: &Region, identity: u32) -> Result<bool, Error> {
        Ok(tag(region, Member::number_of(identity))?.load(Ordering::SeqCst) == identity)
    }

    /// Asks the kernel; true if it cannot tell. A lock of one's own opening is not seen.
    fn is_locked(&self, number: u32) -> bool {
        let mut asked = lock_of(number, libc::F_WRLCK);
        // SAFETY: the descriptor is open and the struct lives as long as the call.
        let ok =
            unsafe { libc::fcntl(self.lock.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) } == 0;
        !ok || asked.l_type != libc::F_UNLCK as libc::c_short
    }
}
