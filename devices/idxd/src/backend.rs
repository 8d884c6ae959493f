// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backend: the flights (submitted descriptors) of one portal.
//!
//! - **Flow** a submitted descriptor gets a free place and is offered to the device. `poll` reads the records, and gives the rest of an
//!   operation to the device or to the CPU, until the submitter's record can be written.
//! - **Order** a portal gets no more descriptors than the queue holds of a program ([`WorkQueue::room`]), whether it is dedicated or not. If
//!   a shared queue is kept full by others while none of our descriptors is in it, the CPU does the operation after one refusal. DRAIN ends
//!   when everything submitted before it has ended.
//! - **Owner** places own flights. `poll` takes a flight out while the CPU works on it, so the lock is free meanwhile.
//! - **Failure** if a device with work gives no answer for [`Settings::patience`], it is not used again. Its descriptors end as
//!   DEVICE_LOST, and their records are leaked, because the device may still write them; all other work is done by the CPU.
//! - **Fork** a forked child does not have the portal's page, so the CPU does the child's work, from a separate queue.

use crate::discover::WorkQueue;
use crate::flight::{Flight, Offer};
use crate::limits::Limits;
use crate::memory::{ForkMark, deliver, members};
use crate::portal::Portal;
use crate::probe::{Untrusted, probe};
use memlift_spec::{Backend, Busy, Capabilities, Completion, Descriptor, Flags, Opcode};
use std::collections::VecDeque;
use std::io;
use std::mem::{ManuallyDrop, replace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Executes operations on the calling core: those that the device does not support, and the rest of those that it did in part.
///
/// # Safety
///
/// An implementor accesses only the memory that the descriptor names, and none of it after it has returned.
pub unsafe trait Cpu: Send + Sync {
    /// Returns the operations of the CPU: all that the backend offers.
    fn capabilities(&self) -> Capabilities;

    /// Refuses or executes one operation and returns how it ended; `in_batch` is true for a member of a batch. Writes no
    /// record, except those of a batch's members.
    ///
    /// # Safety
    ///
    /// The descriptor's memory is lent for the duration of the call.
    unsafe fn perform(&self, descriptor: &Descriptor, in_batch: bool) -> Completion;
}

/// Settings of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Longest time in which a device with work may give no answer. The largest operation takes a tenth of a second.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { patience: Duration::from_secs(5) }
    }
}

/// Counters of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Descriptors that the device accepted; a batch counts as one.
    pub offloaded: u64,
    /// Descriptors, or rests of them after a fault, that the CPU executed.
    pub by_cpu: u64,
    /// Page faults after which an operation was continued.
    pub faults: u64,
    /// Times that the queue was full while none of our descriptors was in it.
    pub full: u64,
    /// Batches that were submitted member by member, because the kernel accepts no batches.
    pub unrolled: u64,
    /// Descriptors that the device did not answer.
    pub lost: u64,
    /// True if the device is not used any more.
    pub quarantined: bool,
}

#[derive(Debug, Default)]
struct Counters {
    offloaded: AtomicU64,
    by_cpu: AtomicU64,
    faults: AtomicU64,
    full: AtomicU64,
    unrolled: AtomicU64,
    lost: AtomicU64,
    quarantined: AtomicBool,
}

enum Place {
    Free,
    Flying(Box<Flight>),
    /// Ends when everything submitted before it has ended.
    Drain {
        submitted: Box<Descriptor>,
        sequence: u64,
    },
    /// A thread in `poll` has taken the flight out.
    Taken {
        sequence: u64,
    },
}

struct State {
    places: Vec<Place>,
    limits: Limits,
    /// Number of descriptors that the device has.
    in_device: usize,
    sequence: u64,
    /// Time at which the device last answered, or was first given a descriptor.
    silent_since: Instant,
    /// True if nothing more is submitted to the portal.
    closed: bool,
    offer: Offer,
}

/// A work queue as a backend. It completes also the operations that the device does not.
pub struct Idxd {
    /// Not dropped in a forked child, where its page does not exist.
    portal: ManuallyDrop<Box<dyn Portal>>,
    cpu: Box<dyn Cpu>,
    settings: Settings,
    size: usize,
    fork_mark: ForkMark,
    state: Mutex<State>,
    /// Queue of a forked child.
    child: OnceLock<Mutex<VecDeque<Descriptor>>>,
    counters: Counters,
}

impl std::fmt::Debug for Idxd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idxd")
            .field("portal", &self.portal.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Most of our descriptors that the device has at a time, whatever the queue holds.
const DEPTH_MAX: u32 = 256;

enum Step {
    Ended,
    Cpu(usize, Descriptor, bool),
    Waits,
}

impl Idxd {
    /// Creates a backend of `portal` to `queue`, if the device answers.
    ///
    /// # Errors
    /// [`Untrusted`] if it does not; only NOOPs were submitted.
    pub fn new(
        queue: &WorkQueue,
        portal: Box<dyn Portal>,
        cpu: Box<dyn Cpu>,
        settings: Settings,
    ) -> Result<Idxd, Untrusted> {
        let noop = [Opcode::NOOP; 2].map(|opcode| Descriptor::new(opcode, Flags::NONE));
        probe(&*portal, &noop[..1], settings.patience)?;
        let mut limits = Limits {
            opcodes: queue.opcodes,
            transfer_bytes_max: queue.transfer_bytes_max,
            batch_max: queue.batch_max,
            blocks_on_fault: queue.blocks_on_fault,
            cache_control: queue.cache_control,
            overlap: queue.overlap,
        };
        // A kernel may refuse batches and still list them as supported.
        let batches = queue.batch_max >= 2 && queue.supports(Opcode::BATCH);
        if !batches || probe(&*portal, &noop, settings.patience).is_err() {
            limits.batch_max = 0;
        }
        let size = queue.room().clamp(1, DEPTH_MAX) as usize;
        let state = State {
            places: (0..size).map(|_| Place::Free).collect(),
            limits,
            in_device: 0,
            sequence: 0,
            silent_since: Instant::now(),
            closed: false,
            offer: Offer::default(),
        };
        Ok(Idxd {
            portal: ManuallyDrop::new(portal),
            cpu,
            settings,
            size,
            fork_mark: ForkMark::new().map_err(|error| Untrusted::Memory(error.into()))?,
            state: Mutex::new(state),
            child: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// Returns the way by which descriptors reach the device: `enqcmd`, `movdir64b`, `write`.
    pub fn portal(&self) -> &'static str {
        self.portal.name()
    }

    /// Returns a bitmap in which bit n is set if the device executes opcode n; the CPU executes all others.
    pub fn opcodes(&self) -> [u64; 4] {
        self.lock().limits.opcodes
    }

    /// Returns the queue's counters.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            offloaded: read(&counters.offloaded),
            by_cpu: read(&counters.by_cpu),
            faults: read(&counters.faults),
            full: read(&counters.full),
            unrolled: read(&counters.unrolled),
            lost: read(&counters.lost),
            quarantined: counters.quarantined.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn child(&self) -> MutexGuard<'_, VecDeque<Descriptor>> {
        self.child.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the device what it may execute; the rest is left to the CPU in `poll`.
    fn send(&self, state: &mut State, flight: &mut Flight) {
        loop {
            if state.closed {
                return flight.leave_to_cpu();
            }
            let State { limits, in_device, offer, .. } = state;
            flight.offer(limits, self.size - *in_device, offer);
            if offer.descriptors.is_empty() {
                return;
            }
            // SAFETY: the submitter guarantees the memory that the descriptors name; records and lists belong to the flight,
            // which is kept until the device has answered, or leaked.
            match unsafe { self.portal.offer(&offer.descriptors) } {
                Ok(taken) => {
                    let taken = taken.min(offer.descriptors.len());
                    flight.note_accepted(offer, taken);
                    if *in_device == 0 {
                        state.silent_since = Instant::now();
                    }
                    *in_device += taken;
                    self.counters.offloaded.fetch_add(taken as u64, Ordering::Relaxed);
                    if *in_device == 0 {
                        self.counters.full.fetch_add(1, Ordering::Relaxed);
                        flight.note_kernel_refusal(offer);
                        continue;
                    }
                    return;
                }
                Err(error) => {
                    if flight.note_kernel_refusal(offer) {
                        limits.batch_max = 0;
                        self.counters.unrolled.fetch_add(1, Ordering::Relaxed);
                    }
                    // EINVAL means that the descriptor is refused; any other error, that the portal cannot be used.
                    state.closed |= error.kind() != io::ErrorKind::InvalidInput;
                }
            }
        }
    }

    fn step(&self, state: &mut State, flight: &mut Flight) -> Step {
        let answers = flight.collect();
        if answers > 0 {
            state.in_device -= answers;
            state.silent_since = Instant::now();
        }
        if flight.settle() {
            return Step::Ended;
        }
        if flight.in_device > 0 && self.counters.quarantined.load(Ordering::Relaxed) {
            state.in_device -= flight.in_device;
            self.counters.lost.fetch_add(flight.in_device as u64, Ordering::Relaxed);
            return Step::Ended;
        }
        self.send(state, flight);
        match flight.for_cpu() {
            Some((index, work, in_batch)) => Step::Cpu(index, work, in_batch),
            None => Step::Waits,
        }
    }

    fn end(&self, flight: Box<Flight>) {
        self.counters.faults.fetch_add(flight.faults(), Ordering::Relaxed);
        for (submitted, done) in flight.endings() {
            // SAFETY: the submitter waits for the last of these stores, and lends its memory until then.
            unsafe { deliver(submitted, &done) };
        }
        if flight.in_device > 0 {
            // The device may still write the records and read the list, so they are leaked.
            std::mem::forget(flight);
        }
    }

    /// Returns true if something submitted before `sequence` has not ended.
    fn waits(state: &State, sequence: u64) -> bool {
        state.places.iter().any(|place| match place {
            Place::Free => false,
            Place::Flying(flight) => flight.sequence < sequence,
            Place::Drain { sequence: other, .. } | Place::Taken { sequence: other } => *other < sequence,
        })
    }

    /// Executes an operation on the CPU, and counts it.
    ///
    /// # Safety
    /// The descriptor's memory is lent for the duration of the call.
    unsafe fn perform(&self, descriptor: &Descriptor, in_batch: bool) -> Completion {
        self.counters.by_cpu.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees that the descriptor's memory is lent for the call.
        unsafe { self.cpu.perform(descriptor, in_batch) }
    }

    /// Executes the oldest descriptor of a forked child's queue.
    fn poll_child(&self) -> usize {
        let Some(submitted) = self.child().pop_front() else { return 0 };
        // SAFETY: the child guaranteed its memory when it submitted the descriptor.
        unsafe { deliver(&submitted, &self.perform(&submitted, false)) };
        1
    }

    /// Continues one flight as far as possible; returns true if it has ended.
    fn advance<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        index: usize,
    ) -> (MutexGuard<'a, State>, bool) {
        let mut flight = match replace(&mut state.places[index], Place::Free) {
            Place::Flying(flight) => flight,
            Place::Drain { submitted, sequence } if !Idxd::waits(&state, sequence) => {
                // SAFETY: the submitter's memory is lent. DRAIN accesses only its record.
                unsafe { deliver(&submitted, &self.perform(&submitted, false)) };
                return (state, true);
            }
            other => {
                state.places[index] = other;
                return (state, false);
            }
        };
        state.places[index] = Place::Taken { sequence: flight.sequence };
        loop {
            match self.step(&mut state, &mut flight) {
                Step::Ended => {
                    drop(state);
                    self.end(flight);
                    // The place becomes free only now, so a DRAIN waits until the record was delivered.
                    let mut state = self.lock();
                    state.places[index] = Place::Free;
                    return (state, true);
                }
                Step::Waits => {
                    state.places[index] = Place::Flying(flight);
                    return (state, false);
                }
                Step::Cpu(member, work, in_batch) => {
                    drop(state);
                    // SAFETY: the submitter's memory is lent until the record that it waits for is delivered.
                    let done = unsafe { self.perform(&work, in_batch) };
                    flight.performed(member, &done);
                    state = self.lock();
                }
            }
        }
    }

    /// Stops using the device if it has not answered for too long.
    fn give_up_if_silent(&self, state: &mut State) {
        if state.in_device > 0 && state.silent_since.elapsed() > self.settings.patience {
            state.closed = true;
            self.counters.quarantined.store(true, Ordering::Relaxed);
        }
    }

    fn is_idle(&self) -> bool {
        self.lock().places.iter().all(|place| matches!(place, Place::Free))
    }
}

// SAFETY: `submit` completes nothing. A record is delivered when neither the device nor the CPU works on the descriptor any
// more, with its status last and with Release, or as DEVICE_LOST.
unsafe impl Backend for Idxd {
    fn name(&self) -> &'static str {
        "idxd"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { queue_depth: self.size as u32, ..self.cpu.capabilities() }
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        if !self.fork_mark.is_here() {
            let mut queue = self.child();
            let accepted = descriptors.len().min(self.size - queue.len());
            queue.extend(&descriptors[..accepted]);
            return if accepted < descriptors.len() { Err(Busy { accepted }) } else { Ok(()) };
        }
        let mut state = self.lock();
        let mut place = 0;
        for (accepted, submitted) in descriptors.iter().enumerate() {
            while place < state.places.len() && !matches!(state.places[place], Place::Free) {
                place += 1;
            }
            if place == state.places.len() {
                return Err(Busy { accepted });
            }
            state.sequence += 1;
            let sequence = state.sequence;
            if submitted.opcode() == Opcode::DRAIN {
                state.places[place] = Place::Drain { submitted: Box::new(*submitted), sequence };
                continue;
            }
            let mut flight = if Flight::is_batch(submitted) {
                // SAFETY: the caller guarantees the list; `is_batch` checked its alignment and length.
                Flight::batch(submitted, &unsafe { members(submitted) }, &state.limits, sequence)
            } else {
                Flight::single(submitted, &state.limits, sequence)
            };
            self.send(&mut state, &mut flight);
            state.places[place] = Place::Flying(Box::new(flight));
        }
        Ok(())
    }

    fn poll(&self) -> usize {
        if !self.fork_mark.is_here() {
            return self.poll_child();
        }
        let mut state = self.lock();
        let mut count = 0;
        for index in 0..self.size {
            if !matches!(state.places[index], Place::Free | Place::Taken { .. }) {
                let ended;
                (state, ended) = self.advance(state, index);
                count += usize::from(ended);
            }
        }
        if count == 0 {
            self.give_up_if_silent(&mut state);
        }
        count
    }
}

impl Drop for Idxd {
    fn drop(&mut self) {
        if !self.fork_mark.is_here() {
            while self.poll_child() > 0 {}
            return;
        }
        while !self.is_idle() {
            if self.poll() == 0 {
                std::thread::yield_now();
            }
        }
        // SAFETY: this is the only place that drops the portal, and it is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.portal) };
    }
}
