// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Membership in a queue, and whether a member still lives, as the kernel knows it: no timers, no process numbers.
//!
//! - **Flow** open the memfd anew ─▶ lock one byte of it, number by number, until one is free ─▶ a fresh tag into the member's word
//! - **Order** a number belongs to whoever holds the kernel's lock on its byte (`byte_lock`)
//! - **Owner** a fork's child becomes a member of its own at its first use
//! - **Layout** an identity is the number in the low 12 bits and the tag in the next 19; never 0. Tags keep a dead member and its
//!   number's next holder apart

use super::layout::{Header, Ledger, MEMBERS, TAGS_AT, debt};
use crate::byte_lock::ByteLocks;
use crate::error::Error;
use memlift_ground::region::{Region, RegionOffset};
use std::sync::atomic::{AtomicU32, Ordering};

const NUMBER_BITS: u32 = 12;
const TAG_MAX: u32 = (1 << 19) - 1;
const _: () = assert!(MEMBERS == 1 << NUMBER_BITS);

/// This process as a member.
#[derive(Debug)]
pub struct Member {
    /// Number and tag, see the module; never 0.
    pub identity: u32,
    locks: ByteLocks,
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
        let locks = ByteLocks::open(base).map_err(Error::system(doing))?;
        for number in 0..MEMBERS {
            if !locks.try_lock(number).map_err(|source| Error::System { doing, source })? {
                continue;
            }
            let debt = debt(region, number)?;
            if ledger == Ledger::Calls && debt.load(Ordering::Relaxed) != 0 {
                // A dead member's call, which nobody has asked for yet.
                locks.unlock(number);
                continue;
            }
            debt.store(0, Ordering::Relaxed);
            let drawn = head.next_tag.fetch_add(1, Ordering::Relaxed) % TAG_MAX + 1;
            let identity = drawn << NUMBER_BITS | number;
            tag(region, number)?.store(identity, Ordering::SeqCst);
            head.members.fetch_max(number + 1, Ordering::Relaxed);
            return Ok(Member { identity, locks });
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
        self.locks.is_locked(number)
    }

    /// Returns true if a living member has that number.
    pub fn is_number_alive(&self, number: u32) -> bool {
        number == Member::number_of(self.identity) || self.locks.is_locked(number)
    }

    /// The number in an identity.
    pub fn number_of(identity: u32) -> u32 {
        identity & (MEMBERS - 1)
    }

    /// Returns true if nobody had the number of `identity` after it.
    pub fn had_number_last(region: &Region, identity: u32) -> Result<bool, Error> {
        Ok(tag(region, Member::number_of(identity))?.load(Ordering::SeqCst) == identity)
    }
}
