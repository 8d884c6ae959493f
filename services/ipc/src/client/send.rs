// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending: find room for the data, copy it once (or not at all, if it lies in a loan), publish the call.
//!
//! Flow    credit ─▶ slot (free room, or a new segment, or wait for one) ─▶ copy ─▶ message ─▶ wake the server
//! Order   a segment is announced on the socket before any message names it
//! Owner   a slot is freed when the last of {loan, unanswered call, server's view of it} is gone

use super::collect::Broken;
use super::decide::{FORECAST_FROM, Plan};
use super::jobs::Waiting;
use super::{Inner, lock, memfd};
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::handshake::{self, AddSegment, REQUEST};
use crate::layout::{MAGIC, SERVER_PARK_AT};
use crate::message::{FLAG_CRC, FLAG_PACK, Kind, Message, operation_hash};
use crate::options::{CachePolicy, CallOptions, Device, Mode};
use crate::packed::pack;
use crate::payload::Outgoing;
use crate::pool::{Pool, Slot};
use crate::transfer::{Transfer, crc_of};
use memlift_engine::Lost;
use memlift_engine::complete::{ParkWord, ring};
use memlift_engine::place::GATE_BYTES_MIN;
use memlift_engine::region::Region;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// From this size on, a sleeping server is woken before its request is complete, bytes. A smaller copy would lose more
/// by sharing its cores with the server than the server's wake-up costs.
const EARLY_WAKE_FROM: u64 = 4 << 20;
/// How much of a request is still to be copied when the server is woken, bytes: little enough to stay on this core.
const EARLY_WAKE_TAIL: u64 = 448 << 10;

/// A slot of the request pool, freed when the last holder lets go.
pub(crate) struct RequestSlot {
    pool: Arc<Mutex<Pool>>,
    slot: Option<Slot>,
    pointer: *mut u8,
    _region: Arc<Region>,
}

// SAFETY: the pointer lies in `_region`, which is Send + Sync; who may write is settled by the protocol, not by it.
unsafe impl Send for RequestSlot {}
// SAFETY: as above.
unsafe impl Sync for RequestSlot {}

impl RequestSlot {
    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("only Drop takes the slot")
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            lock(&self.pool).free(slot);
        }
    }
}

/// What sending needs to know beside the call's options.
pub(super) struct Sending {
    pub mode: Mode,
    pub deadline: Option<Instant>,
    /// How long to wait for room.
    pub room_until: Option<Instant>,
    /// Wake the server if it sleeps; else somebody will later.
    pub rings: bool,
}

/// When an answer is expected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// As the last ones.
    Unknown,
    /// Then.
    At(Instant),
    /// Now: look for it.
    Soon,
}

impl Expect {
    /// For the waiter: nanoseconds from now on. `spin`: the longest it may look.
    pub(super) fn predicted_ns(self, spin: Duration) -> Option<u64> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Expect::Unknown => None,
            Expect::At(due) => Some(ns(due.saturating_duration_since(Instant::now()))),
            Expect::Soon => Some(ns(spin / 2)),
        }
    }
}

/// A call that was sent.
pub(super) struct Sent {
    pub id: u64,
    pub expect: Expect,
}

/// Loans by (segment, offset of their start).
pub(crate) type Loans = BTreeMap<(u32, u64), Weak<RequestSlot>>;

/// A part of the request pool, lent to be filled in place. Send it (or a part of it) like any array: it is found by
/// its address and not copied, unless it is so short that it goes in the message. It may be reused after its call's answer has come.
pub struct Loan {
    slot: Arc<RequestSlot>,
    bytes: u64,
}

impl Loan {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address of the first byte, valid as long as the loan or an unanswered call that sent it. The server can read
    /// the bytes at any time, but not change them.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.slot.pointer
    }

    /// Copies `source` to `offset`.
    ///
    /// # Panics
    ///
    /// If it does not fit.
    pub fn write_at(&mut self, offset: u64, source: &[u8]) {
        let end = offset.checked_add(source.len() as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "write beyond the end of the loan");
        // SAFETY: the slot is `bytes` long, the range was checked, and a borrowed slice cannot lie in the pool.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.as_ptr(),
                self.slot.pointer.add(offset as usize),
                source.len(),
            );
        }
    }
}

impl<'a> From<&'a Loan> for Outgoing<'a> {
    fn from(loan: &'a Loan) -> Outgoing<'a> {
        // SAFETY: the slot is `bytes` long and lives as long as the loan.
        unsafe { Outgoing::from_raw(crate::message::Shape::Bytes, loan.slot.pointer, loan.bytes, None) }
    }
}

impl Inner {
    /// Sends a call that has to be answered by `deadline`. Waits for room until `room_until`.
    pub(super) fn send(
        &self,
        operation: &str,
        data: &Outgoing<'_>,
        options: &CallOptions,
        sending: Sending,
    ) -> Result<Sent, Error> {
        self.check()?;
        let Sending { mode, deadline, room_until, rings } = sending;
        let bytes = data.bytes();
        if bytes > self.message_bytes_max {
            return Err(Error::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        self.credit(room_until)?;
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let mut message = Message::new(Kind::Call, id);
        message.operation = operation_hash(operation);
        message.deadline_ns = deadline.map_or(0, monotonic_ns);
        message.flags = if options.crc { FLAG_CRC } else { 0 } | if options.pack { FLAG_PACK } else { 0 };
        let mut waiting = Waiting::new(operation);
        if bytes == 0 {
            message.describe(&data.shape, 0, 0, 0);
        } else {
            let plan = self.plan(message.operation, mode, bytes, options)?;
            message.flags |= plan.flags;
            if !embed(&mut message, data, options.crc) {
                waiting.slot =
                    Some(self.place(&mut message, &mut waiting, data, options, plan, room_until)?);
            }
        }
        let due = waiting.sent_at().and_then(|sent| {
            lock(&self.decisions).forecast(message.operation, bytes).map(|expected| sent + expected)
        });
        lock(&self.jobs).start(id, waiting);
        reach(Step::CallEntered);
        if let Err(error) = self.publish(&message, room_until, rings) {
            lock(&self.jobs).forget(id);
            return Err(error);
        }
        self.row.call(bytes, true);
        let expect = match options.defer {
            true => due.map_or(Expect::Unknown, Expect::At),
            false => Expect::Soon,
        };
        Ok(Sent { id, expect })
    }

    /// Puts the data into a slot, unless it lies in one, and says so in the message.
    fn place(
        &self,
        message: &mut Message,
        waiting: &mut Waiting,
        data: &Outgoing<'_>,
        options: &CallOptions,
        plan: Plan,
        room_until: Option<Instant>,
    ) -> Result<Arc<RequestSlot>, Error> {
        let bytes = data.bytes();
        let begun = (bytes >= FORECAST_FROM).then(Instant::now);
        let lent = self.lent(data);
        let packed = if options.pack && lent.is_none() { pack(data, options.crc) } else { None };
        let stream = packed.as_ref().map(|packed| packed.outgoing(data));
        let sent = stream.as_ref().unwrap_or(data);
        let (slot, offset, crc) = match lent {
            Some((slot, offset)) => {
                // SAFETY: the data lies in a slot, which is held here.
                let crc = options.crc.then(|| unsafe { crc_of(data.source(), bytes) });
                (slot, offset, crc)
            }
            None => {
                let transfer = Transfer { how: plan.how, crc: options.crc && packed.is_none() };
                let (slot, crc) = self.fill_slot(sent, transfer, room_until)?;
                reach(Step::RequestFilled);
                (slot, 0, packed.as_ref().map_or(crc, |packed| packed.crc))
            }
        };
        message.crc = crc.unwrap_or(0);
        let place = slot.slot();
        message.describe(&data.shape, place.segment, place.offset + offset, sent.bytes());
        if packed.is_some() {
            message.describe_packed(bytes);
        }
        if let Some(begun) = begun {
            waiting.measure(message.operation, bytes, plan.trial, begun);
        }
        Ok(slot)
    }

    /// Copies the data into a slot. When a device is lost over it, that slot is nobody's any more, and another one is filled without it.
    fn fill_slot(
        &self,
        data: &Outgoing<'_>,
        transfer: Transfer,
        room_until: Option<Instant>,
    ) -> Result<(Arc<RequestSlot>, Option<u32>), Error> {
        let slot = self.take_slot(data.bytes(), room_until)?;
        reach(Step::RequestSlotTaken);
        // SAFETY: the slot is long enough and nobody else holds it; an outgoing in the pool itself belongs to another slot. A slot
        // that is forgotten stays taken in its pool, and its segment mapped.
        match unsafe { self.copy_in(data, slot.pointer, transfer) } {
            Ok(crc) => Ok((slot, crc)),
            Err(Lost) => {
                std::mem::forget(slot);
                self.fill_slot(data, Transfer { how: Transfer::PLAIN.how, ..transfer }, room_until)
            }
        }
    }

    /// How a request is copied: at once for small ones with nothing to choose.
    fn plan(&self, operation: u64, mode: Mode, bytes: u64, options: &CallOptions) -> Result<Plan, Error> {
        let open = options.device == Device::Auto && options.cache == CachePolicy::Auto;
        // What packing costs says nothing about copies.
        if open && (options.pack || bytes < GATE_BYTES_MIN as u64) {
            return Ok(Plan::PLAIN);
        }
        let cached = self.begins_cached(mode);
        lock(&self.decisions).begin(operation, mode, bytes, options, cached)
    }

    /// What the cache policy is before anything was measured.
    pub(super) fn begins_cached(&self, mode: Mode) -> bool {
        match mode {
            Mode::Sync => true,
            Mode::Async => {
                let load = self.load();
                load.sessions <= 1 && load.busy_handlers <= 1
            }
            Mode::Pipelined => false,
        }
    }

    /// Copies the data into its slot. A server that sleeps is woken while the last of it is still being copied: it takes
    /// about as long to wake as that takes, and looks out for the message for a moment when it finds none.
    ///
    /// # Safety
    ///
    /// `target` is writable for the data's bytes, and nobody else uses it; after [`Lost`] nobody ever does.
    unsafe fn copy_in(
        &self,
        data: &Outgoing<'_>,
        target: *mut u8,
        transfer: Transfer,
    ) -> Result<Option<u32>, Lost> {
        // SAFETY: passed on from the caller.
        unsafe {
            match data.bytes() < EARLY_WAKE_FROM {
                true => data.copy_to(target, transfer),
                false => data.copy_to_then(target, transfer, EARLY_WAKE_TAIL, || {
                    self.wake_server();
                    reach(Step::RequestHalfFilled);
                }),
            }
        }
    }

    /// The loan that the data lies in, and where, if all of it does.
    fn lent(&self, data: &Outgoing<'_>) -> Option<(Arc<RequestSlot>, u64)> {
        let loans = lock(&self.loans);
        if loans.is_empty() || !data.is_contiguous() {
            return None;
        }
        let (segment, offset) = lock(&self.requests).locate(data.source())?;
        let (_, slot) = loans.range(..=(segment, offset)).next_back()?;
        let slot = slot.upgrade()?;
        let start = slot.slot();
        let inside = offset - start.offset;
        (start.segment == segment && inside + data.bytes() <= start.bytes).then_some((slot, inside))
    }

    pub(super) fn loan(&self, bytes: u64) -> Result<Loan, Error> {
        self.check()?;
        if bytes > self.message_bytes_max {
            return Err(Error::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        let slot = self.take_slot(bytes.max(1), None)?;
        let mut loans = lock(&self.loans);
        loans.retain(|_, slot| slot.strong_count() > 0);
        loans.insert((slot.slot().segment, slot.slot().offset), Arc::downgrade(&slot));
        Ok(Loan { slot, bytes })
    }

    /// A free slot: from what is mapped, else from a new segment, else from what unanswered calls give back.
    fn take_slot(&self, bytes: u64, deadline: Option<Instant>) -> Result<Arc<RequestSlot>, Error> {
        loop {
            let full = {
                let mut pool = lock(&self.requests);
                if let Some(slot) = pool.allocate(bytes) {
                    let region = Arc::clone(pool.region(slot.segment));
                    let pointer = region.base().cast_mut().wrapping_add(slot.offset as usize);
                    return Ok(Arc::new(RequestSlot {
                        pool: Arc::clone(&self.requests),
                        slot: Some(slot),
                        pointer,
                        _region: region,
                    }));
                }
                match pool.growth(bytes) {
                    Some(growth) => {
                        self.grow_requests(&mut pool, growth)?;
                        continue;
                    }
                    None => Error::PoolFull { wanted: bytes, used: pool.used(), limit: pool.limit() },
                }
            };
            let outstanding = lock(&self.jobs).outstanding();
            if outstanding == 0 {
                return Err(full);
            }
            if !self.wait_any(deadline)? {
                return Err(Error::Busy { outstanding });
            }
        }
    }

    fn grow_requests(&self, pool: &mut Pool, bytes: u64) -> Result<(), Error> {
        let region = Arc::new(super::request_segment(bytes)?);
        reach(Step::RequestSegmentMade);
        let index = pool.add(Arc::clone(&region));
        self.row.set_pool_bytes(pool.total());
        self.announce(REQUEST, index, &region)
    }

    /// Sends a segment to the server.
    pub(super) fn announce(&self, direction: u32, index: u32, region: &Region) -> Result<(), Error> {
        let packet = AddSegment { magic: MAGIC, direction, index, bytes: region.bytes() };
        handshake::send(&self.socket, &packet, &[memfd(region)]).map_err(|_| {
            self.break_off(Broken::Died);
            Error::PeerDied { peer: "server", doing: Some("growing the pool") }
        })
    }

    /// Waits until fewer calls are unanswered than may be.
    fn credit(&self, deadline: Option<Instant>) -> Result<(), Error> {
        loop {
            let outstanding = lock(&self.jobs).outstanding();
            if outstanding < self.outstanding_max {
                return Ok(());
            }
            if !self.wait_any(deadline)? {
                return Err(Error::Busy { outstanding });
            }
        }
    }

    /// Puts a message into the request ring, with the releases that are due; if it `rings`, wakes the server in case it sleeps.
    pub(super) fn publish(
        &self,
        message: &Message,
        deadline: Option<Instant>,
        rings: bool,
    ) -> Result<(), Error> {
        let mut nap = Duration::from_micros(20);
        loop {
            {
                let mut producer = lock(&self.producer);
                let pushed = self.flush(&mut producer).and_then(|flushed| match flushed {
                    true => producer.push(message),
                    false => Ok(false),
                });
                match pushed {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => {
                        self.break_off(Broken::fault(&error));
                        return Err(error);
                    }
                }
            }
            // The server is behind by a whole ring. It is not worth a handshake of its own: sleep a little.
            self.wake_server();
            self.check()?;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::Busy { outstanding: lock(&self.jobs).outstanding() });
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
        if rings {
            self.wake_server();
        }
        Ok(())
    }

    fn flush(&self, producer: &mut crate::ring::Producer) -> Result<bool, Error> {
        let mut releases = lock(&self.releases);
        while let Some(release) = releases.last() {
            if !producer.push(release)? {
                return Ok(false);
            }
            releases.pop();
        }
        Ok(true)
    }

    /// Tells the server that a response slot is free: now if that is easy, else with the next message. The server is
    /// not woken for it; it looks when it needs room.
    pub(super) fn release(&self, release: Message) {
        if !self.socket.is_ours() || self.broken.get().is_some() {
            return;
        }
        lock(&self.releases).push(release);
        reach(Step::ReleaseNoted);
        if let Ok(mut producer) = self.producer.try_lock()
            && let Err(error) = self.flush(&mut producer)
        {
            drop(producer);
            self.break_off(Broken::fault(&error));
        }
    }

    pub(super) fn wake_server(&self) {
        ParkWord::from_atomic(self.word(SERVER_PARK_AT)).wake(|| ring(&self.server_event));
        reach(Step::PeerRung);
    }
}

/// Puts the data into the message itself, if it is short enough.
fn embed(message: &mut Message, data: &Outgoing<'_>, crc: bool) -> bool {
    let Some(place) = message.embed(&data.shape, data.bytes()) else { return false };
    // SAFETY: the place is as long as the data, and this frame's.
    let crc = unsafe { data.copy_here(place.as_mut_ptr(), Transfer { crc, ..Transfer::PLAIN }) };
    message.crc = crc.unwrap_or(0);
    true
}
