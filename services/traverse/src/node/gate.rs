// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate of a replicated node: no answer leaves before the backup has everything that the answer tells of.
//!
//! - **Flow** the writer records a change ([`Gate::record`]): it gets the next position, and waits to be sent to the backup. A shard takes the
//!   position after the last load of a turn, sends the records itself if that cannot block ([`Gate::push`]; else a thread of the
//!   primary does), receives what the backup has ([`Gate::sleep`]), and sends the turn's packets once that is enough
//!   ([`Gate::is_passed`])
//! - **Order** positions are given under the writer's lock, and a shard takes its position under it. So a walk that has seen a change has a
//!   position behind the change's record
//! - **Rule** reads: while a backup may be listed, a packet leaves only if the node's lease held after the last load. Changes need no clock:
//!   a backup that takes over acknowledges nothing any more
//! - **Confirmed** a packet may ask for more than the lease: it leaves once the backup has answered a message that was sent after the last
//!   load ([`Gate::ask`]). A backup that has taken over answers nothing, so this needs no clock
//! - **Not here** the connection to the backup (`replica`), the order of the copies (`map/replicas`)

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::log::Entry;
use crate::map::lease::Lease;

/// Bytes of records that may wait for a backup. A backup that falls back further is given up.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// Bytes of records that a shard sends itself, and messages without an answer up to which it does: together less than the least buffer of a
/// socket, so that it never waits for the backup to read.
const PUSH_BYTES_MAX: usize = 2 << 10;
const PUSH_MESSAGES_MAX: u64 = 4;
/// Time between two looks for messages while shards receive them.
const LOOK: Duration = Duration::from_millis(5);
/// Waiting records for which the thread that sends them is woken at once.
const FILLED_BYTES: usize = 64 << 10;

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
    /// True if a shard has left the records to the thread.
    is_left: bool,
}

/// The way to the backup.
pub(super) trait Outlet: Send + fmt::Debug {
    /// Sends a batch of records, in messages that it numbers ([`Gate::begin_message`]); an empty batch is one message.
    fn send(&mut self, gate: &Gate, records: &[u8]) -> io::Result<()>;
}

/// The way back from the backup.
pub(super) trait Inlet: Send + fmt::Debug {
    /// Receives a message and notes what the backup has ([`Gate::acknowledge`], [`Gate::confirm`]); waits for it at most this long.
    fn receive(&mut self, gate: &Gate, at_most: Duration) -> io::Result<()>;
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
    /// Locked before the queue, and until what was taken from it is sent: batches keep their order.
    outlet: Mutex<Option<Box<dyn Outlet>>>,
    /// Locked by the one thread that receives.
    inlet: Mutex<Option<Box<dyn Inlet>>>,
    /// True if a shard has received, or would have.
    shards_receive: AtomicBool,
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
            outlet: Mutex::default(),
            inlet: Mutex::default(),
            shards_receive: AtomicBool::new(false),
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
            if !queue.is_open || (start..queue.bytes.len()).contains(&FILLED_BYTES) {
                self.filled.notify_one();
            }
        }
        self.position.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of records so far. Call it under the writer's lock, after the last load.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::SeqCst)
    }

    /// From now on records wait for a backup. Returns the position of the first one. Call it under the writer's lock.
    pub(super) fn open(&self) -> u64 {
        *self.outlet() = None; // of a connection that ended while its snapshot was sent
        *self.inlet() = None;
        *self.queue() = Queue { is_open: true, ..Queue::default() };
        self.position()
    }

    /// From now on records may be sent: what the backup needs before them has been.
    pub(super) fn connect(&self, outlet: Box<dyn Outlet>) {
        *self.outlet() = Some(outlet);
    }

    /// From now on [`Gate::receive`] receives, as do shards that wait.
    pub(super) fn listen(&self, inlet: Box<dyn Inlet>) {
        *self.inlet() = Some(inlet);
    }

    fn inlet(&self) -> MutexGuard<'_, Option<Box<dyn Inlet>>> {
        self.inlet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives messages for the shards, for about this long: while shards receive themselves, it looks now and then.
    pub(super) fn receive(&self, at_most: Duration) -> io::Result<()> {
        let wait = match self.shards_receive.swap(false, Ordering::Relaxed) {
            true => {
                std::thread::sleep(LOOK.min(at_most));
                Duration::ZERO
            }
            false => at_most,
        };
        match &mut *self.inlet() {
            Some(inlet) => inlet.receive(self, wait),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn outlet(&self) -> MutexGuard<'_, Option<Box<dyn Outlet>>> {
        self.outlet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the queue: records are numbered and dropped. The connection must have ended, so that nobody sends for long.
    pub(super) fn close(&self) {
        *self.outlet() = None;
        *self.inlet() = None;
        *self.queue() = Queue::default();
        self.filled.notify_all();
    }

    /// Has [`Gate::push`] send a message although there are no records; returns the number of one that begins from now on. Call it after the
    /// last load.
    pub(super) fn ask(&self) -> u64 {
        let wanted = self.begun.load(Ordering::SeqCst) + 1;
        let mut queue = self.queue();
        queue.is_asked = queue.is_open;
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

    /// Waits until packets of this position may leave that ask for an answer to this message, and at most `at_most`. One shard of those that
    /// wait receives for all.
    pub(super) fn sleep(&self, position: u64, message: u64, at_most: Duration) {
        self.shards_receive.store(true, Ordering::Relaxed);
        if let Ok(mut inlet) = self.inlet.try_lock()
            && let Some(open) = &mut *inlet
        {
            if !self.is_passed(position, message)
                && !self.is_replaced()
                && open.receive(self, at_most).is_err()
            {
                *inlet = None; // the thread of the connection ends it
            }
            drop(inlet);
            self.wake(); // another one receives now
            return;
        }
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

    /// Waits until there is much to send, or a shard cannot send it, and at most `at_most`. Returns true if nothing waits to be sent, and
    /// `None` if the queue was closed.
    pub(super) fn wait(&self, at_most: Duration) -> Option<bool> {
        let until = Instant::now() + at_most;
        let mut queue = self.queue();
        while queue.is_open && !queue.is_left && queue.bytes.len() < FILLED_BYTES {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.filled.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.is_left = false;
        queue.is_open.then_some(queue.bytes.is_empty())
    }

    /// Sends the waiting records, or an empty message if there are none; waits for the backup to read if it must.
    pub(super) fn send(&self) -> io::Result<()> {
        self.send_by(&mut self.outlet())
    }

    fn send_by(&self, outlet: &mut Option<Box<dyn Outlet>>) -> io::Result<()> {
        let Some(open) = outlet else { return Err(io::ErrorKind::NotConnected.into()) };
        let records = {
            let mut queue = self.queue();
            queue.is_asked = false;
            std::mem::take(&mut queue.bytes)
        };
        let sent = open.send(self, &records);
        if sent.is_err() {
            *outlet = None; // a part of a message may be on the way
        }
        sent
    }

    /// Sends the waiting records at once if that cannot block; else the thread does that waits for them ([`Gate::wait`]).
    pub(super) fn push(&self) {
        loop {
            let queue = self.queue();
            if !queue.is_open || (queue.bytes.is_empty() && !queue.is_asked) {
                return;
            }
            let is_little = queue.bytes.len() <= PUSH_BYTES_MAX;
            drop(queue);
            let unanswered = self.messages().saturating_sub(self.answered.load(Ordering::SeqCst));
            // Whoever has the outlet may have taken records before these.
            if !is_little || unanswered >= PUSH_MESSAGES_MAX {
                break;
            }
            let Ok(mut outlet) = self.outlet.try_lock() else { break };
            if self.send_by(&mut outlet).is_err() {
                break;
            }
        }
        self.queue().is_left = true;
        self.filled.notify_one();
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
        assert_eq!(gate.wait(Duration::ZERO), Some(false));
        gate.close();
        gate.record(&entry(3));
        assert_eq!(gate.wait(Duration::from_secs(1000)), None);
        assert!(gate.send().is_err());
        assert!(!gate.is_passed(3, 0), "a backup that is gone is listed until etcd says otherwise");
        gate.release();
        assert!(gate.is_passed(3, 0));
        gate.acknowledge(1);
        assert!(gate.is_passed(3, 0), "late words of the old backup");
        gate.replace();
        assert!(gate.is_fenced());
    }

    /// Keeps the batches that it is given.
    #[derive(Clone, Debug, Default)]
    struct Sent {
        batches: Arc<Mutex<Vec<Vec<u8>>>>,
        fails: bool,
    }

    impl Outlet for Sent {
        fn send(&mut self, gate: &Gate, records: &[u8]) -> io::Result<()> {
            gate.begin_message();
            self.batches.lock().expect("kept").push(records.to_vec());
            if self.fails { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn shards_send_what_cannot_block_and_leave_the_rest() {
        let (gate, sent) = (Gate::new(Arc::new(Lease::default())), Sent::default());
        let count = || sent.batches.lock().expect("kept").len();
        gate.push();
        gate.open();
        gate.record(&entry(1));
        gate.push();
        assert_eq!(
            (count(), gate.wait(Duration::from_secs(1000))),
            (0, Some(false)),
            "the snapshot is on its way"
        );
        gate.connect(Box::new(sent.clone()));
        gate.push();
        gate.push();
        assert_eq!(count(), 1, "nothing waits any more");
        for value in 1..20 {
            gate.record(&entry(value));
            gate.push();
        }
        assert_eq!(count() as u64, PUSH_MESSAGES_MAX, "the backup answers nothing");
        assert_eq!(gate.wait(Duration::from_secs(1000)), Some(false));
        gate.send().expect("sent");
        gate.confirm(gate.messages());
        assert_eq!(gate.wait(Duration::ZERO), Some(true));
        let all: usize = sent.batches.lock().expect("kept").iter().map(Vec::len).sum();
        let one = sent.batches.lock().expect("kept")[0].len();
        assert_eq!(all, 20 * one, "each record once");
        for _ in 0..=PUSH_BYTES_MAX / one {
            gate.record(&entry(0));
        }
        let before = count();
        gate.push();
        assert_eq!((count(), gate.wait(Duration::from_secs(1000))), (before, Some(false)), "much at once");
        gate.connect(Box::new(Sent { fails: true, ..sent.clone() }));
        assert!(
            gate.send().is_err() && gate.send().is_err() && count() == before + 1,
            "nothing behind a part of a message"
        );
        gate.close();
        gate.record(&entry(1));
        gate.push();
        gate.connect(Box::new(sent.clone()));
        gate.open();
        assert!(gate.send().is_err(), "the outlet of a connection before");
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
        let (wanted, sent) = (gate.ask(), Sent::default());
        gate.confirm(gate.messages());
        assert!(gate.is_passed(0, 0) && !gate.is_passed(0, wanted));
        gate.connect(Box::new(sent.clone()));
        gate.push();
        assert_eq!(*sent.batches.lock().expect("kept"), [[0; 0]], "it is sent at once");
        gate.confirm(gate.messages());
        gate.confirm(1);
        assert!(gate.is_passed(0, wanted));
        gate.ask();
        gate.release();
        assert!(gate.is_passed(0, u64::MAX), "no backup is listed");
    }
}
