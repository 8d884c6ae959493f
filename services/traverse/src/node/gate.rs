// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate of a replicated node: no answer leaves before the backup has everything that the answer tells of.
//!
//! - **Flow** the writer records a change ([`Gate::record`]): it gets the next position, and waits for the thread that sends records to the
//!   backup. A shard takes the position after the last load of a turn, and sends the turn's packets once the backup has the records
//!   up to there ([`Gate::is_passed`])
//! - **Order** positions are given under the writer's lock, and a shard takes its position under it. So a walk that has seen a change has a
//!   position behind the change's record
//! - **Rule** reads: while a backup may be listed, a packet leaves only if the node's lease held after the last load. Changes need no clock:
//!   a backup that takes over acknowledges nothing any more
//! - **Confirmed** a packet may ask for more than the lease: it leaves once the backup has answered a message that was sent after the last
//!   load ([`Gate::ask`]). A backup that has taken over answers nothing, so this needs no clock
//! - **Not here** the connection to the backup (`replica`), the order of the copies (`map/replicas`)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::log::Entry;
use crate::map::lease::Lease;

/// Bytes of records that may wait for a backup. A backup that falls back further is given up.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// Value of `acknowledged` while no backup may be listed: the node answers alone.
const ALONE: u64 = u64::MAX;

/// Records that wait to be sent.
#[derive(Debug, Default)]
struct Queue {
    /// Entries, each behind its length u32.
    bytes: Vec<u8>,
    /// True while a backup takes the records.
    is_open: bool,
    /// True if a message must be sent although there are no records.
    is_asked: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Gate {
    /// Number of records so far.
    position: AtomicU64,
    /// Number of records that the backup has; [`ALONE`] without a backup.
    acknowledged: AtomicU64,
    /// Number of messages with records that were begun, over all connections.
    begun: AtomicU64,
    /// Number of the newest of them that the backup has answered.
    answered: AtomicU64,
    /// True once another copy has taken over, or may have.
    is_replaced: AtomicBool,
    lease: Arc<Lease>,
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Number of shards that sleep until packets may leave.
    asleep: Mutex<usize>,
    passed: Condvar,
}

impl Gate {
    pub(super) fn new(lease: Arc<Lease>) -> Gate {
        Gate {
            position: AtomicU64::new(0),
            acknowledged: AtomicU64::new(ALONE),
            begun: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
            lease,
            queue: Mutex::default(),
            filled: Condvar::new(),
            asleep: Mutex::default(),
            passed: Condvar::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a record the next position. Only the writer calls this.
    pub(super) fn record(&self, entry: &Entry) {
        let mut queue = self.queue();
        if queue.is_open {
            let start = queue.bytes.len();
            queue.bytes.extend_from_slice(&[0; 4]);
            entry.write(&mut queue.bytes);
            let length = (queue.bytes.len() - start - 4) as u32;
            queue.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
            if queue.bytes.len() > QUEUE_BYTES_MAX {
                *queue = Queue::default();
            }
            self.filled.notify_one();
        }
        self.position.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of records so far. Call it under the writer's lock, after the last load.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::SeqCst)
    }

    /// From now on records wait for a backup. Returns the position of the first one. Call it under the writer's lock.
    pub(super) fn open(&self) -> u64 {
        *self.queue() = Queue { bytes: Vec::new(), is_open: true, is_asked: false };
        self.position()
    }

    /// Ends the queue: records are numbered and dropped.
    pub(super) fn close(&self) {
        *self.queue() = Queue::default();
        self.filled.notify_all();
    }

    /// Has a message sent to the backup; returns the number of one that begins from now on. Call it after the last load.
    pub(super) fn ask(&self) -> u64 {
        let wanted = self.begun.load(Ordering::SeqCst) + 1;
        self.queue().is_asked = true;
        self.filled.notify_one();
        wanted
    }

    /// Numbers the next message with records. Call it before the message is sent.
    pub(super) fn begin_message(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of messages begun so far.
    pub(super) fn messages(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Notes the newest message that the backup has answered.
    pub(super) fn confirm(&self, message: u64) {
        self.answered.fetch_max(message, Ordering::SeqCst);
        self.wake();
    }

    /// Sleeps until packets of this position may leave that ask for an answer to this message, and at most `at_most`.
    pub(super) fn sleep(&self, position: u64, message: u64, at_most: Duration) {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that what happens from here on wakes this thread.
        if self.is_passed(position, message) || self.is_replaced() {
            return;
        }
        *asleep += 1;
        let waited = self.passed.wait_timeout(asleep, at_most).unwrap_or_else(PoisonError::into_inner);
        asleep = waited.0;
        *asleep -= 1;
    }

    fn wake(&self) {
        if *self.asleep.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            self.passed.notify_all();
        }
    }

    /// Takes the waiting records; waits up to `at_most` for the first one, or for [`Gate::ask`]. Returns `None` if the queue was closed.
    pub(super) fn take(&self, at_most: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + at_most;
        let mut queue = self.queue();
        loop {
            if !queue.is_open {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !queue.bytes.is_empty() || queue.is_asked || left.is_zero() {
                queue.is_asked = false;
                return Some(std::mem::take(&mut queue.bytes));
            }
            queue = self.filled.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From now on answers wait for the backup, which has `acknowledged` records. Call it under the writer's lock; the backup may be
    /// listed once it has all records up to the returned position.
    pub(super) fn hold(&self, acknowledged: u64) -> u64 {
        self.acknowledged.store(acknowledged.min(ALONE - 1), Ordering::SeqCst);
        self.position()
    }

    /// Notes the number of records that the backup has, if answers wait for it.
    pub(super) fn acknowledge(&self, records: u64) {
        let _ = self.acknowledged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
            (before != ALONE && records > before && records != ALONE).then_some(records)
        });
        self.wake();
    }

    /// Lets all answers pass: no backup is listed.
    pub(super) fn release(&self) {
        self.acknowledged.store(ALONE, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that another copy has taken over: nothing passes any more.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns true once another copy has taken over.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::SeqCst)
    }

    /// Returns true if another copy may be the primary by now, so that nothing may be answered.
    pub(super) fn is_fenced(&self) -> bool {
        self.is_replaced() || (self.acknowledged.load(Ordering::SeqCst) != ALONE && !self.lease.holds())
    }

    /// Returns true if packets of this position may leave that ask for an answer to this message; 0: to none.
    pub(super) fn is_passed(&self, position: u64, message: u64) -> bool {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        // Without a listed backup nobody else can be the primary.
        acknowledged == ALONE || (acknowledged >= position && self.answered.load(Ordering::SeqCst) >= message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Change;
    use super::*;
    use crate::map::lease::now;

    fn entry(value: u64) -> Entry {
        Entry { change: Change::Epoch(value), request: None }
    }

    #[test]
    fn nothing_passes_before_the_backup_has_it() {
        let lease = Arc::new(Lease::default());
        let gate = Gate::new(lease.clone());
        gate.record(&entry(1));
        assert!(gate.is_passed(gate.position(), 0) && !gate.is_fenced(), "alone, and no lease is needed");
        assert_eq!(gate.open(), 1);
        gate.record(&entry(2));
        assert!(gate.is_passed(2, 0), "copying: the backup is not listed");
        assert_eq!(gate.hold(1), 2);
        assert!(gate.is_passed(1, 0) && !gate.is_passed(2, 0));
        assert!(gate.is_fenced(), "there is no lease");
        lease.renew(now(), Duration::from_secs(1000));
        assert!(!gate.is_fenced());
        gate.acknowledge(2);
        gate.acknowledge(1);
        gate.acknowledge(u64::MAX);
        assert!(gate.is_passed(2, 0) && !gate.is_passed(3, 0));
        assert!(!gate.take(Duration::ZERO).expect("open").is_empty());
        gate.close();
        gate.record(&entry(3));
        assert!(gate.take(Duration::from_secs(1)).is_none());
        assert!(!gate.is_passed(3, 0), "a backup that is gone is listed until etcd says otherwise");
        gate.release();
        assert!(gate.is_passed(3, 0));
        gate.acknowledge(1);
        assert!(gate.is_passed(3, 0), "late words of the old backup");
        gate.replace();
        assert!(gate.is_fenced());
    }

    #[test]
    fn what_is_to_be_confirmed_waits_for_an_answer_to_a_later_message() {
        let gate = Gate::new(Arc::new(Lease::default()));
        gate.begin_message();
        assert!(gate.is_passed(0, gate.ask()), "alone");
        gate.open();
        gate.hold(0);
        // This message was begun before the load.
        gate.begin_message();
        let wanted = gate.ask();
        assert!(gate.take(Duration::from_secs(1000)).expect("open").is_empty(), "it is sent at once");
        assert!(gate.is_passed(0, 0) && !gate.is_passed(0, wanted));
        gate.confirm(gate.messages());
        assert!(!gate.is_passed(0, wanted));
        gate.begin_message();
        gate.confirm(gate.messages());
        gate.confirm(1);
        assert!(gate.is_passed(0, wanted));
        gate.ask();
        gate.release();
        assert!(gate.is_passed(0, u64::MAX), "no backup is listed");
    }
}
