// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of ipc sessions in the stats page.
//!
//! - **Flow** [`SessionRow::open`] ──takes a free row──▶ counts ──drop──▶ free again
//! - **Order** `state` goes free → being written (compare-exchange) → open (Release, after name and zeros). A
//!   reader loads it before and after the row and skips what changed.
//! - **Owner** a row belongs to one `SessionRow`. After a fork the child's copy counts nothing.
//! - **Not here** more than 64 sessions: further ones work, are not shown, and are counted as refused.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::layout::{SessionCells, store_text};
use super::page::{Installed, installed, unix_ns};

const FREE: u64 = 0;
const WRITING: u64 = 1;
pub(super) const OPEN: u64 = 2;
pub(super) const STATE_MASK: u64 = 3;

/// The end of a session that a process has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Role {
    /// The end that answers calls.
    Server = 0,
    /// The end that makes calls.
    Client = 1,
}

/// One session's line in `memlift ipc ls` and `memlift top`. Counts with relaxed atomics.
#[derive(Debug)]
pub struct SessionRow {
    place: Option<(&'static Installed, usize)>,
}

impl SessionRow {
    pub(super) fn open(name: &str, role: Role, peer_pid: u32) -> SessionRow {
        let Some(installed) = installed() else { return SessionRow { place: None } };
        let page = installed.page();
        for (index, row) in page.sessions.iter().enumerate() {
            let state = row.state.load(Ordering::Relaxed);
            if state & STATE_MASK != FREE
                || row
                    .state
                    .compare_exchange(state, state | WRITING, Ordering::Acquire, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            fence(Ordering::Release);
            row.role_peer.store(role as u64 | u64::from(peer_pid) << 32, Ordering::Relaxed);
            store_text(&row.name, name.as_bytes());
            for counter in [
                &row.calls,
                &row.replies,
                &row.errors,
                &row.bytes_in,
                &row.bytes_out,
                &row.outstanding,
                &row.pool_bytes,
            ] {
                counter.store(0, Ordering::Relaxed);
            }
            row.opened_unix_ns.store(unix_ns(), Ordering::Relaxed);
            row.state.store((state & !STATE_MASK) | OPEN, Ordering::Release);
            return SessionRow { place: Some((installed, index)) };
        }
        page.header.sessions_refused.fetch_add(1, Ordering::Relaxed);
        SessionRow { place: None }
    }

    fn row(&self) -> Option<&'static SessionCells> {
        let (installed, index) = self.place?;
        installed.is_own().then(|| &installed.page().sessions[index])
    }

    fn add(&self, counter: impl Fn(&SessionCells) -> &AtomicU64, amount: u64) {
        if let Some(row) = self.row() {
            counter(row).fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Returns true if the session is shown in the page.
    pub fn shown(&self) -> bool {
        self.row().is_some()
    }

    /// A call was made or came in, with `bytes` of request. It is outstanding until [`reply`](Self::reply) or
    /// [`error`](Self::error).
    pub fn call(&self, bytes: u64, outgoing: bool) {
        self.add(|row| &row.calls, 1);
        self.add(|row| &row.outstanding, 1);
        self.add(|row| if outgoing { &row.bytes_out } else { &row.bytes_in }, bytes);
    }

    /// A call was answered, with `bytes` of reply.
    pub fn reply(&self, bytes: u64, outgoing: bool) {
        self.add(|row| &row.replies, 1);
        self.settle();
        self.add(|row| if outgoing { &row.bytes_out } else { &row.bytes_in }, bytes);
    }

    /// A call ended in an error.
    pub fn error(&self) {
        self.add(|row| &row.errors, 1);
        self.settle();
    }

    fn settle(&self) {
        if let Some(row) = self.row() {
            let lower = |outstanding: u64| outstanding.checked_sub(1);
            let _ = row.outstanding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
        }
    }

    /// The session's pools now have `bytes` in all.
    pub fn set_pool_bytes(&self, bytes: u64) {
        if let Some(row) = self.row() {
            row.pool_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for SessionRow {
    fn drop(&mut self) {
        if let Some(row) = self.row() {
            let state = row.state.load(Ordering::Relaxed);
            // The next generation, free.
            row.state.store((state & !STATE_MASK).wrapping_add(STATE_MASK + 1), Ordering::Release);
        }
    }
}
