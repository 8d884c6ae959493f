// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers of several processes at one address. They have one listening socket, so a connection that waits is nobody's until one accepts it.
//!
//! - **Flow** `join.rs` gives each server the socket and the table of members ─▶ all see that a connection waits ─▶ the one with the fewest
//!   sessions accepts it ([`Turns`])
//! - **Order** a member publishes its standing before it compares. A member that leaves a connection waiting for [`GRACE`] is passed over
//!   until it looks at the socket again, so one that is stopped or busy delays one connection
//! - **Layout** table of 4,096 bytes: 0 magic u64 · 8 version u32 · 12 closed u32 · 16 device u64 · 24 inode u64 of the socket file · 32 tickets
//!   drawn u32 · 36 tags drawn u32; from 64 on 63 members of 64 bytes: 0 state u32 (0 nobody, else tag · 4 + bits) · 4 sessions u32 ·
//!   8 handlers at work and requests that wait u32 · 12 passed over u32 · 16 ticket of its last connection u32
//! - **Owner** a number belongs to the process that has the kernel's lock on its byte (`byte_lock`), so a killed member is nobody at once. The
//!   last member removes the socket file
//! - **Not here** how a server joins: `join.rs`

use crate::byte_lock::ByteLocks;
use crate::error::Error;
use crate::handshake::GROUP_VERSION;
use crate::layout::MAGIC;
use memlift_ground::region::{Access, Region, RegionOffset, RegionOptions};
use memlift_ground::socket_file::SocketFile;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Servers at one address at most.
pub(crate) const MEMBERS: u32 = 63;
/// Time for which a connection may wait for the member whose turn it is.
const GRACE: Duration = Duration::from_millis(20);
/// Tries to lock the table, a millisecond apart. It is held for some system calls.
const LOCK_TRIES: u32 = 200;

const TABLE_BYTES: u64 = 4096;
const VERSION_AT: u64 = 8;
const CLOSED_AT: u64 = 12;
const DEVICE_AT: u64 = 16;
const INODE_AT: u64 = 24;
const TICKETS_AT: u64 = 32;
const TAGS_AT: u64 = 36;
const MEMBERS_AT: u64 = 64;
const MEMBER_BYTES: u64 = 64;
/// Number of the lock that guards joining and leaving.
const TABLE_LOCK: u32 = MEMBERS;

/// Bit of a member's state: it is ready for calls.
const READY: u32 = 1;
/// Bit of a member's state: it has as many sessions as it may.
const FULL: u32 = 2;
/// Tags lie above the bits.
const TAG_SHIFT: u32 = 2;

const _: () = assert!(MEMBERS_AT + MEMBER_BYTES * MEMBERS as u64 == TABLE_BYTES);

/// Membership of this process in the servers of an address.
pub(crate) struct Group {
    table: Region,
    locks: ByteLocks,
    number: u32,
    tag: u32,
}

/// Standing of a member. The least is the next to accept a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Standing {
    passed: bool,
    full: bool,
    unready: bool,
    sessions: u32,
    load: u32,
    ticket: u32,
    number: u32,
}

/// Load of a server, as it publishes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub ready: bool,
    pub full: bool,
    pub sessions: usize,
    /// Handlers at work and requests that wait for one.
    pub calls: usize,
}

/// The words of a member.
struct Member<'a> {
    state: &'a AtomicU32,
    sessions: &'a AtomicU32,
    load: &'a AtomicU32,
    passed: &'a AtomicU32,
    ticket: &'a AtomicU32,
}

impl Group {
    /// Makes the table for a listener that this process has bound, and becomes its first member.
    pub(super) fn found(file: Option<&SocketFile>) -> Result<Group, Error> {
        let table = Region::memfd("memlift-servers", TABLE_BYTES, &RegionOptions::default())?;
        table.whole().window(0, 8)?.write_from(&MAGIC.to_le_bytes())?;
        table.whole().window(VERSION_AT, 4)?.write_from(&GROUP_VERSION.to_le_bytes())?;
        if let Some(file) = file {
            let (device, inode) = file.identity();
            table.layout::<AtomicU64>(RegionOffset(DEVICE_AT))?.store(device, Ordering::Relaxed);
            table.layout::<AtomicU64>(RegionOffset(INODE_AT))?.store(inode, Ordering::Relaxed);
        }
        Group::take_number(table)?.ok_or(Error::Closed { what: "server" })
    }

    /// Checks a table that another member gave, and takes a number in it; `None`: its last member has left meanwhile.
    pub(super) fn enter(table: OwnedFd) -> Result<Option<Group>, Error> {
        let table = Region::from_fd(table, Access::ReadWrite, TABLE_BYTES)?;
        let mut header = [0; 12];
        table.whole().read_into(&mut header)?;
        if header[..8] != MAGIC.to_le_bytes() || header[8..] != GROUP_VERSION.to_le_bytes() {
            return Err(Error::peer_fault("a table of servers with a wrong header"));
        }
        Group::take_number(table)
    }

    fn take_number(table: Region) -> Result<Option<Group>, Error> {
        let doing = "joining the servers of an address";
        let failed = |source| Error::System { doing, source };
        let memfd = table.as_fd().ok_or(Error::Closed { what: "server" })?;
        let locks = ByteLocks::open(memfd).map_err(Error::system(doing))?;
        let mut group = Group { table, locks, number: 0, tag: 0 };
        if !group.lock() {
            return Ok(None);
        }
        let taken = (0..MEMBERS).find_map(|number| match group.locks.try_lock(number) {
            Ok(true) => Some(Ok(number)),
            Ok(false) => None,
            Err(error) => Some(Err(failed(error))),
        });
        let closed = group.word(CLOSED_AT).load(Ordering::Acquire) != 0;
        if let Some(Ok(number)) = taken {
            group.number = number;
            group.tag = group.word(TAGS_AT).fetch_add(1, Ordering::Relaxed) % (u32::MAX >> TAG_SHIFT) + 1;
            let own = group.member(number);
            for word in [own.sessions, own.load, own.passed] {
                word.store(0, Ordering::Relaxed);
            }
            own.ticket.store(group.ticket(), Ordering::Relaxed);
            own.state.store(group.tag << TAG_SHIFT, Ordering::Release);
        }
        group.locks.unlock(TABLE_LOCK);
        let full = || failed(std::io::Error::other(format!("{MEMBERS} servers share it already")));
        taken.ok_or_else(full)??;
        Ok((!closed).then_some(group))
    }

    /// Gives the number back; returns true if no other member lives, and none can enter any more.
    pub(super) fn leave(&self) -> bool {
        let locked = self.lock();
        let is_last =
            locked && !(0..MEMBERS).any(|number| number != self.number && self.locks.is_locked(number));
        if is_last {
            self.word(CLOSED_AT).store(1, Ordering::Release);
        }
        self.member(self.number).state.store(0, Ordering::Release);
        self.locks.unlock(self.number);
        if locked {
            self.locks.unlock(TABLE_LOCK);
        }
        is_last
    }

    /// Returns true if this process joined, and not one that it is a fork of.
    pub(super) fn is_ours(&self) -> bool {
        self.locks.is_ours()
    }

    /// The memfd of the table, for a process that joins.
    pub(super) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_fd()
    }

    /// Counts the servers that live, this one included.
    pub(super) fn living(&self) -> usize {
        let lives = |number: &u32| *number == self.number || self.locks.is_locked(*number);
        (0..MEMBERS).filter(lives).count()
    }

    /// Tells the others how this server stands.
    pub(super) fn publish(&self, load: Load) {
        let own = self.member(self.number);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        own.sessions.store(count(load.sessions), Ordering::Relaxed);
        own.load.store(count(load.calls), Ordering::Relaxed);
        own.passed.store(0, Ordering::Relaxed);
        let bits = if load.ready { READY } else { 0 } | if load.full { FULL } else { 0 };
        own.state.store(self.tag << TAG_SHIFT | bits, Ordering::SeqCst);
    }

    /// Notes that this server has accepted a connection.
    pub(super) fn accepted(&self) {
        self.member(self.number).ticket.store(self.ticket(), Ordering::Relaxed);
    }

    /// The member that is the next to accept a connection. Dead ones that are found on the way are struck off.
    fn next(&self) -> Option<Standing> {
        let mut standings: Vec<(Standing, u32)> =
            (0..MEMBERS).filter_map(|number| self.standing(number)).collect();
        standings.sort_unstable();
        standings.into_iter().find_map(|(standing, state)| {
            if standing.number == self.number || self.locks.is_locked(standing.number) {
                return Some(standing);
            }
            // The state has a tag, so a server that takes the number at this moment stays.
            let state_word = self.member(standing.number).state;
            let _ = state_word.compare_exchange(state, 0, Ordering::Relaxed, Ordering::Relaxed);
            None
        })
    }

    fn standing(&self, number: u32) -> Option<(Standing, u32)> {
        let member = self.member(number);
        let state = member.state.load(Ordering::SeqCst);
        let standing = Standing {
            passed: member.passed.load(Ordering::Relaxed) != 0,
            full: state & FULL != 0,
            unready: state & READY == 0,
            sessions: member.sessions.load(Ordering::Relaxed),
            load: member.load.load(Ordering::Relaxed),
            ticket: member.ticket.load(Ordering::Relaxed),
            number,
        };
        (state != 0).then_some((standing, state))
    }

    fn pass_over(&self, number: u32) {
        self.member(number).passed.store(1, Ordering::Relaxed);
    }

    fn ticket(&self) -> u32 {
        self.word(TICKETS_AT).fetch_add(1, Ordering::Relaxed)
    }

    /// Locks the table; false: somebody has it for longer than any member does.
    fn lock(&self) -> bool {
        (0..LOCK_TRIES).any(|_| {
            let locked = self.locks.try_lock(TABLE_LOCK).unwrap_or(false);
            if !locked {
                std::thread::sleep(Duration::from_millis(1));
            }
            locked
        })
    }

    fn member(&self, number: u32) -> Member<'_> {
        let at = MEMBERS_AT + u64::from(number) * MEMBER_BYTES;
        Member {
            state: self.word(at),
            sessions: self.word(at + 4),
            load: self.word(at + 8),
            passed: self.word(at + 12),
            ticket: self.word(at + 16),
        }
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        self.table.layout(RegionOffset(offset)).expect("the table has its full length")
    }

    /// Returns true if the table is that of the socket file.
    pub(super) fn is_of(&self, file: &SocketFile) -> bool {
        let says = |at| self.table.whole().load_u64(at, Ordering::Relaxed).ok();
        let (device, inode) = file.identity();
        (says(DEVICE_AT), says(INODE_AT)) == (Some(device), Some(inode))
    }
}

/// The decision who accepts the connection that waits.
#[derive(Default)]
pub(super) struct Turns {
    /// The member that is waited for, the ticket of its last connection, and since when.
    waiting: Option<(u32, u32, Instant)>,
}

impl Turns {
    /// Returns true if this server accepts the connection that waits now. False: another one is to, so look again soon.
    pub(super) fn is_ours(&mut self, group: &Group, now: Instant) -> bool {
        loop {
            let Some(next) = group.next().filter(|next| next.number != group.number) else {
                self.waiting = None;
                return true;
            };
            match self.waiting {
                Some((number, ticket, since)) if (number, ticket) == (next.number, next.ticket) => {
                    if now.saturating_duration_since(since) < GRACE || next.passed {
                        return next.passed;
                    }
                    group.pass_over(next.number);
                    self.waiting = None;
                }
                _ => {
                    self.waiting = Some((next.number, next.ticket, now));
                    return false;
                }
            }
        }
    }

    /// No connection waits.
    pub(super) fn rest(&mut self) {
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of a table of their own, as if each were a process.
    fn members(count: usize) -> Vec<Group> {
        let first = Group::found(None).unwrap();
        let memfd = || rustix::io::dup(first.table().unwrap()).unwrap();
        let others: Vec<Group> = (1..count).map(|_| Group::enter(memfd()).unwrap().unwrap()).collect();
        std::iter::once(first).chain(others).collect()
    }

    fn load(sessions: usize) -> Load {
        Load { ready: true, full: false, sessions, calls: 0 }
    }

    #[test]
    fn the_one_with_the_fewest_sessions_is_next_and_equals_take_turns() {
        let members = members(3);
        let mut sessions = [4, 0, 0];
        members.iter().zip(sessions).for_each(|(member, sessions)| member.publish(load(sessions)));
        for _ in 0..11 {
            let next = members[0].next().unwrap().number as usize;
            assert_eq!(members[2].next().unwrap().number as usize, next, "all see the same");
            sessions[next] += 1;
            members[next].publish(load(sessions[next]));
            members[next].accepted();
        }
        assert_eq!(sessions, [5, 5, 5]);
        let order: Vec<u32> = (0..6)
            .map(|_| {
                let next = members[0].next().unwrap().number;
                members[next as usize].accepted();
                next
            })
            .collect();
        assert_eq!(order[..3], order[3..], "{order:?}");
        assert_eq!(order[..3].iter().sum::<u32>(), 3, "{order:?}");
    }

    #[test]
    fn ready_ones_with_room_come_first() {
        let members = members(3);
        members[0].publish(Load { ready: false, ..load(0) });
        members[1].publish(Load { full: true, ..load(0) });
        members[2].publish(load(9));
        assert_eq!(members[0].next().unwrap().number, 2);
        members[2].publish(Load { full: true, ..load(9) });
        assert_eq!(members[0].next().unwrap().number, 0);
        members[0].publish(Load { ready: true, calls: 1, ..load(0) });
        members[2].publish(load(0));
        assert_eq!(members[0].next().unwrap().number, 2, "of equals, the one with less to do");
    }

    #[test]
    fn one_that_does_not_look_is_passed_over_once() {
        let members = members(2);
        members[0].publish(load(1));
        members[1].publish(load(0));
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert!(!turns.is_ours(&members[0], now));
        assert!(!turns.is_ours(&members[0], now + GRACE / 2));
        assert!(turns.is_ours(&members[0], now + GRACE));
        assert!(turns.is_ours(&members[0], now + GRACE), "it still does not look");
        members[1].publish(load(0));
        assert!(!turns.is_ours(&members[0], now + GRACE), "it looks again");
        // Each connection that it takes begins its time anew.
        members[1].accepted();
        assert!(!turns.is_ours(&members[0], now + GRACE * 3 / 2));
        assert!(!turns.is_ours(&members[0], now + GRACE * 2));
        assert!(turns.is_ours(&members[0], now + GRACE * 5 / 2));
    }

    #[test]
    fn a_number_comes_back_with_its_holder_and_nobody_joins_those_who_have_ended() {
        let mut all = members(3);
        assert_eq!(all[0].living(), 3);
        all.iter().for_each(|member| member.publish(load(7)));
        all[1].publish(load(0));
        assert_eq!(all[0].next().unwrap().number, 1);
        // As a kill does: the kernel closes the descriptor.
        drop(all.remove(1));
        assert_eq!(all[0].living(), 2);
        assert_ne!(all[0].next().unwrap().number, 1, "the dead one is struck off");
        assert_eq!(all[0].member(1).state.load(Ordering::Relaxed), 0);
        let memfd = rustix::io::dup(all[0].table().unwrap()).unwrap();
        let again = || Group::enter(rustix::io::dup(&memfd).unwrap()).unwrap();
        let second = again().unwrap();
        assert_eq!(second.number, 1);
        assert!(!second.leave() && !all[1].leave());
        drop(second);
        assert!(all[0].leave(), "the last one");
        assert!(again().is_none(), "closed");
    }

    #[test]
    fn there_are_numbers_for_so_many_and_no_more() {
        let all = members(MEMBERS as usize);
        assert_eq!(all[0].living(), MEMBERS as usize);
        let more = Group::enter(rustix::io::dup(all[0].table().unwrap()).unwrap());
        assert!(more.err().unwrap().to_string().contains("63 servers"));
    }

    #[test]
    fn a_table_full_of_nonsense_delays_and_does_no_more() {
        let members = members(2);
        for byte in [0xff, 0x80, 0x01, 0xa5] {
            let bytes = [byte; (TABLE_BYTES - MEMBERS_AT) as usize];
            members[0]
                .table
                .whole()
                .window(MEMBERS_AT, bytes.len() as u64)
                .unwrap()
                .write_from(&bytes)
                .unwrap();
            let (mut turns, begun) = (Turns::default(), Instant::now());
            let mut now = begun;
            loop {
                members[0].publish(load(3));
                if turns.is_ours(&members[0], now) {
                    break;
                }
                now += GRACE;
                assert!(now - begun <= GRACE * 2 * MEMBERS, "{byte:#x}");
            }
        }
    }
}
