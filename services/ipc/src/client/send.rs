// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sending: find room for the data, copy it once (or not at all, if it lies in a loan), publish the call.
//!
//! - **Flow** credit ─▶ slot (free room, or a new segment, or wait for one) ─▶ copy ─▶ message ─▶ wake the server
//! - **Order** a segment is announced on the socket before any message names it
//! - **Owner** a slot is freed when the last of {loan, unanswered call, server's view of it} is gone

use super::Inner;
use super::decide::{Decisions, FORECAST_FROM, Plan};
use super::jobs::Waiting;
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::failpoint::{Step, reach};
use crate::handshake::{AddSegment, REQUEST};
use crate::layout::MAGIC;
use crate::message::{FLAG_CRC, FLAG_PACK, Kind, Message, operation_hash};
use crate::options::{CachePolicy, CallOptions, Device, Mode};
use crate::packed::pack;
use crate::payload::Outgoing;
use crate::pool::{Pool, Slot};
use crate::rank::{Lock, Rank, holds_none};
use crate::transfer::{Transfer, Unfinished, crc_of};
use memlift_ground::region::{Region, RegionError};
use memlift_offload::Lost;
use memlift_place::GATE_BYTES_MIN;
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Weak};
use std::time::{Duration, Instant};

/// From this size on, a sleeping server is woken before its request is complete, bytes. A smaller copy would lose more
/// by sharing its cores with the server than the server's wake-up costs.
const EARLY_WAKE_FROM: u64 = 4 << 20;
/// How much of a request is still to be copied when the server is woken, bytes: little enough to stay on this core.
const EARLY_WAKE_TAIL: u64 = 448 << 10;

/// Longest wait for another thread that grows the pool; then the waiting one looks for a slot again.
const GROWTH_LOOK: Duration = Duration::from_millis(10);

/// The request pool, and the right of one thread at a time to make it larger.
pub(crate) struct RequestPool {
    pub(super) pool: Lock<Pool>,
    /// Some thread makes a segment and tells the server of it, without the lock. The others wait for `grown`.
    growing: Lock<bool>,
    pub(super) grown: Condvar,
}

impl RequestPool {
    pub(super) fn new(pool: Pool) -> Arc<RequestPool> {
        Arc::new(RequestPool {
            pool: Lock::new(Rank::Pool, pool),
            growing: Lock::new(Rank::Growing, false),
            grown: Condvar::new(),
        })
    }

    /// Takes the right to grow the pool; `None`: another thread has it, and this one has waited for a moment.
    fn grow(&self, until: Option<Instant>) -> Option<Growing<'_>> {
        let mut growing = self.growing.lock();
        if !*growing {
            *growing = true;
            return Some(Growing(self));
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        drop(growing.wait(&self.grown, Some(left.unwrap_or(GROWTH_LOOK).min(GROWTH_LOOK))));
        None
    }
}

/// The right to grow the pool.
struct Growing<'a>(&'a RequestPool);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.growing.with(|growing| *growing = false);
        self.0.grown.notify_all();
    }
}

/// A slot of the request pool, freed when the last holder lets go.
pub(crate) struct RequestSlot {
    pool: Arc<RequestPool>,
    slot: Option<Slot>,
    pointer: *mut u8,
    _region: Arc<Region>,
}

// SAFETY: the pointer lies in `_region`, which is Send + Sync; the protocol settles which side may write.
unsafe impl Send for RequestSlot {}
// SAFETY: shared references only read the pointer's value; `_region`, which keeps the memory mapped, is Sync.
unsafe impl Sync for RequestSlot {}

impl RequestSlot {
    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("only Drop takes the slot")
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        holds_none("dropping a request slot");
        if let Some(slot) = self.slot.take() {
            self.pool.pool.with(|pool| pool.free(slot));
        }
    }
}

/// Parameters of sending beside the call's options.
pub(super) struct Sending {
    pub mode: Mode,
    pub deadline: Option<Instant>,
    /// How long to wait for room; `None`: for ever.
    pub room_until: Option<Instant>,
    /// True if the server is to be woken when it sleeps; `false`: a later call or a flush wakes it.
    pub rings: bool,
}

/// Time limits for finding room for a call's data.
#[derive(Clone, Copy)]
struct Room {
    /// How long to wait for others; `None`: for ever.
    until: Option<Instant>,
    /// Deadline of the call: work for it is given up then.
    deadline: Option<Instant>,
}

/// When an answer is expected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// Not known: the waiter goes by the last waits.
    Unknown,
    /// At the forecast time.
    At(Instant),
    /// Now: the waiter polls at once.
    Soon,
}

impl Expect {
    /// Nanoseconds from now until the answer is expected, for the waiter. `spin`: the longest time that it may poll.
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
        let mut message = Message::new(Kind::Call, 0);
        message.operation = operation_hash(operation);
        message.deadline_ns = deadline.map_or(0, monotonic_ns);
        message.flags = if options.crc { FLAG_CRC } else { 0 } | if options.pack { FLAG_PACK } else { 0 };
        let mut waiting = Waiting::new(operation);
        if bytes == 0 {
            message.describe(&data.shape, 0, 0, 0);
        } else {
            let plan = self.plan(message.operation, mode, bytes, options)?;
            message.flags |= plan.flags;
            match data.embed(&mut message, options.crc) {
                Some(crc) => message.crc = crc.unwrap_or(0),
                None => {
                    // Without credit the data is not copied yet.
                    self.credit(room_until)?;
                    let room = Room { until: room_until, deadline };
                    waiting.slot = Some(self.place(&mut message, &mut waiting, data, options, plan, room)?);
                }
            }
        }
        let due = waiting.sent_at().and_then(|sent| {
            let forecast = |decisions: &mut Decisions| decisions.forecast(message.operation, bytes);
            self.decisions.with(forecast).map(|expected| sent + expected)
        });
        let id = loop {
            match self.jobs.with(|jobs| jobs.start(waiting, self.outstanding_max)) {
                Ok(id) => break id,
                Err(refused) => waiting = refused,
            }
            self.check()?;
            self.credit(room_until)?;
        };
        message.job = id;
        reach(Step::CallEntered);
        if let Err(error) = self.publish(&message, room_until, rings) {
            drop(self.jobs.with(|jobs| jobs.forget(id)));
            return Err(error);
        }
        self.row.call(bytes);
        let expect = match options.defer {
            true => due.map_or(Expect::Unknown, Expect::At),
            false => Expect::Soon,
        };
        Ok(Sent { id, expect })
    }

    /// Copies the data into a slot, unless it lies in a loan, and describes its place in the message.
    fn place(
        &self,
        message: &mut Message,
        waiting: &mut Waiting,
        data: &Outgoing<'_>,
        options: &CallOptions,
        plan: Plan,
        room: Room,
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
                let (slot, crc) = self.fill_slot(sent, transfer, room)?;
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

    /// Copies the data into a slot. If a device is lost during the copy, that slot is never used again, and another one is filled
    /// without the device.
    fn fill_slot(
        &self,
        data: &Outgoing<'_>,
        transfer: Transfer,
        room: Room,
    ) -> Result<(Arc<RequestSlot>, Option<u32>), Error> {
        let slot = self.take_slot(data.bytes(), room)?;
        reach(Step::RequestSlotTaken);
        // SAFETY: the slot is long enough and nobody else holds it; an outgoing in the pool itself belongs to another slot. A slot
        // that is forgotten stays taken in its pool, and its segment mapped.
        match unsafe { self.copy_in(data, slot.pointer, transfer, room.deadline) } {
            Ok(crc) => Ok((slot, crc)),
            Err(Unfinished::Stopped) => {
                self.check()?;
                Err(Error::Busy { outstanding: self.outstanding() })
            }
            Err(Unfinished::Lost) => {
                std::mem::forget(slot);
                self.fill_slot(data, Transfer { how: Transfer::PLAIN.how, ..transfer }, room)
            }
        }
    }

    /// Plans how a request is copied. Small ones of which nothing is fixed are copied at once.
    fn plan(&self, operation: u64, mode: Mode, bytes: u64, options: &CallOptions) -> Result<Plan, Error> {
        let open = options.device == Device::Auto && options.cache == CachePolicy::Auto;
        // The cost of packing tells nothing about copies.
        if open && (options.pack || bytes < GATE_BYTES_MIN as u64) {
            return Ok(Plan::PLAIN);
        }
        let cached = self.begins_cached(mode);
        self.decisions.with(|decisions| decisions.begin(operation, mode, bytes, options, cached))
    }

    /// Returns true if the cache policy is `On` before anything was measured.
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

    /// Copies the data into its slot. A sleeping server is woken while the last part is still being copied: it takes about as
    /// long to wake as that part takes to copy. If it finds no message then, it polls for a moment.
    ///
    /// # Safety
    ///
    /// `target` is writable for the data's bytes, and nobody else uses it; after [`Lost`] nobody ever does.
    unsafe fn copy_in(
        &self,
        data: &Outgoing<'_>,
        target: *mut u8,
        transfer: Transfer,
        deadline: Option<Instant>,
    ) -> Result<Option<u32>, Unfinished> {
        let nearly = || {
            self.wake_server();
            reach(Step::RequestHalfFilled);
        };
        // SAFETY: the caller vouches that `target` is writable for the data's bytes and used by nobody else, so not the data's
        // source.
        unsafe {
            match data.bytes() < EARLY_WAKE_FROM {
                true => data.copy_to(target, transfer).map_err(|Lost| Unfinished::Lost),
                false => {
                    data.copy_to_then(target, transfer, EARLY_WAKE_TAIL, nearly, || self.is_in_vain(deadline))
                }
            }
        }
    }

    /// Returns true if nobody will wait for what is made for a call: its time is up, or the server is gone.
    fn is_in_vain(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || self.poll_hang_up(Duration::ZERO).is_err()
    }

    /// Returns the loan in which all of the data lies, and the data's offset in it.
    fn lent(&self, data: &Outgoing<'_>) -> Option<(Arc<RequestSlot>, u64)> {
        if !data.is_contiguous() {
            return None;
        }
        let (segment, offset, slot) = self.loans.with(|loans| {
            if loans.is_empty() {
                return None;
            }
            let (segment, offset) = self.requests.pool.with(|pool| pool.locate(data.source()))?;
            let (_, slot) = loans.range(..=(segment, offset)).next_back()?;
            Some((segment, offset, Weak::clone(slot)))
        })?;
        // Not under the lock: this may become the last holder of the slot, whose drop takes a lock.
        let slot = slot.upgrade()?;
        let start = slot.slot();
        let inside = offset - start.offset;
        (start.segment == segment && inside + data.bytes() <= start.bytes).then_some((slot, inside))
    }

    pub(super) fn loan(&self, bytes: u64, deadline: Option<Instant>) -> Result<Loan, Error> {
        self.check()?;
        if bytes > self.message_bytes_max {
            return Err(Error::MessageTooLarge { bytes, limit: self.message_bytes_max });
        }
        let slot = self.take_slot(bytes.max(1), Room { until: deadline, deadline })?;
        let (place, lent) = ((slot.slot().segment, slot.slot().offset), Arc::downgrade(&slot));
        self.loans.with(|loans| {
            loans.retain(|_, slot| slot.strong_count() > 0);
            loans.insert(place, lent);
        });
        Ok(Loan { slot, bytes })
    }

    /// A free slot: from what is mapped, else from a new segment, else from what unanswered calls give back.
    fn take_slot(&self, bytes: u64, room: Room) -> Result<Arc<RequestSlot>, Error> {
        loop {
            self.check()?;
            if let Some((slot, region)) = self.requests.pool.with(|pool| pool.allocate(bytes)) {
                let pointer = region.base().cast_mut().wrapping_add(slot.offset as usize);
                let pool = Arc::clone(&self.requests);
                return Ok(Arc::new(RequestSlot { pool, slot: Some(slot), pointer, _region: region }));
            }
            let (growth, used, limit) =
                self.requests.pool.with(|pool| (pool.growth(bytes), pool.used(), pool.limit()));
            let has_passed = room.until.is_some_and(|until| Instant::now() >= until);
            if growth.is_some() {
                match self.requests.grow(room.until) {
                    Some(_growing) if self.grow_requests(bytes, room)? => {}
                    None if !has_passed => {}
                    _ => return Err(Error::Busy { outstanding: self.outstanding() }),
                }
                continue;
            }
            let outstanding = self.outstanding();
            if outstanding == 0 {
                self.check()?;
                return Err(Error::PoolFull { wanted: bytes, used, limit });
            }
            if !self.wait_any(room.until)? {
                return Err(Error::Busy { outstanding });
            }
        }
    }

    /// Makes a segment, tells the server of it and adds it to the pool, unless another thread has made room meanwhile; `false`: time
    /// is up, and nothing has changed.
    fn grow_requests(&self, bytes: u64, room: Room) -> Result<bool, Error> {
        let found = self.requests.pool.with(|pool| match pool.allocate(bytes) {
            Some((slot, _)) => {
                pool.free(slot);
                None
            }
            None => pool.growth(bytes).map(|growth| (growth, pool.next())),
        });
        let Some((growth, index)) = found else { return Ok(true) };
        self.poll_hang_up(Duration::ZERO)?;
        let (region, fd) = match super::request_segment(growth, &|| self.is_in_vain(room.deadline)) {
            Err(RegionError::Stopped { .. }) => {
                self.check()?;
                return Ok(false);
            }
            made => made?,
        };
        reach(Step::RequestSegmentMade);
        let packet = AddSegment { magic: MAGIC, direction: REQUEST, index, bytes: region.bytes() };
        if !self.announce(&packet, fd.as_fd(), room.until)? {
            return Ok(false);
        }
        reach(Step::RequestSegmentSent);
        let unused = self.requests.pool.with(|pool| pool.add(Arc::new(region)));
        drop(unused);
        self.row.set_pool_bytes(self.pool_bytes());
        self.gives_back_later();
        Ok(true)
    }

    /// Waits until fewer calls are unanswered than the session allows.
    fn credit(&self, deadline: Option<Instant>) -> Result<(), Error> {
        loop {
            let outstanding = self.outstanding();
            if outstanding < self.outstanding_max {
                return Ok(());
            }
            if !self.wait_any(deadline)? {
                return Err(Error::Busy { outstanding });
            }
        }
    }
}
