// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backend: flights in front of one portal.
//!
//! - **Flow** submit ─▶ a free place ─▶ offered at once ─▶ `poll`: records ─▶ rest to the device, or to the CPU ─▶ the submitter's records
//! - **Order** a portal gets no more than the queue holds, dedicated or not. A shared queue that others keep full, while we have nothing
//!   in it to wait for, costs one refusal: the CPU does it. DRAIN ends when everything submitted before it has
//! - **Owner** places own flights. `poll` takes one out while the CPU works on it, and nobody waits for the lock meanwhile
//! - **Failure** no answer for [`Settings::patience`], while it has something of ours: the device is not used again. What it has ends as
//!   DEVICE_LOST, and its records are leaked, since it may still write; all the rest is the CPU's
//! - **Fork** the page of a portal is not there in a child: a child's work is the CPU's, from a queue of its own

use crate::discover::WorkQueue;
use crate::flight::{Flight, Offer};
use crate::limits::Limits;
use crate::memory::{Home, deliver, members};
use crate::portal::Portal;
use crate::probe::{Untrusted, probe};
use memlift_spec::{Backend, Busy, Capabilities, Completion, Descriptor, Flags, Opcode};
use std::collections::VecDeque;
use std::io;
use std::mem::{ManuallyDrop, replace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Does operations on the core that asks: what the device does not do, and what it leaves.
///
/// # Safety
///
/// An implementor touches nothing but what the descriptor says, and nothing after it has returned.
pub unsafe trait Cpu: Send + Sync {
    /// Returns the operations of the CPU: all that the backend offers.
    fn capabilities(&self) -> Capabilities;

    /// Refuses or does one operation (`in_batch`: as a member of a batch) and says how it ended. Writes no record of its own, but
    /// those of a batch's members.
    ///
    /// # Safety
    ///
    /// The descriptor's memory is lent for the call.
    unsafe fn perform(&self, descriptor: &Descriptor, in_batch: bool) -> Completion;
}

/// How a queue is used.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a device that has work may say nothing. The largest operation takes a tenth of a second.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { patience: Duration::from_secs(5) }
    }
}

/// Counters of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Descriptors that the device took; a batch is one.
    pub offloaded: u64,
    /// Descriptors, or parts behind a fault, that the CPU did.
    pub by_cpu: u64,
    /// Page faults that were continued.
    pub faults: u64,
    /// Times that the queue was full while nothing of ours was in it.
    pub full: u64,
    /// Batches that went member by member, because the kernel lets none through.
    pub unrolled: u64,
    /// Descriptors that the device did not answer.
    pub lost: u64,
    /// True if the device was given up.
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
    /// Ends when everything before it has.
    Drain {
        wish: Box<Descriptor>,
        sequence: u64,
    },
    /// A poller has it.
    Taken {
        sequence: u64,
    },
}

struct State {
    places: Vec<Place>,
    limits: Limits,
    /// Descriptors that the device has.
    away: usize,
    sequence: u64,
    /// Time at which the device last answered, or was first given a descriptor.
    heard: Instant,
    /// True if the portal takes nothing any more.
    closed: bool,
    offer: Offer,
}

/// A work queue as a backend. Never loses what the device does not do.
pub struct Idxd {
    /// Not dropped in a forked child, where its page does not exist.
    portal: ManuallyDrop<Box<dyn Portal>>,
    cpu: Box<dyn Cpu>,
    settings: Settings,
    size: usize,
    home: Home,
    state: Mutex<State>,
    /// A forked child's queue.
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

/// Most descriptors of ours at a time, whatever the queue holds.
const DEPTH_MAX: u32 = 256;

enum Step {
    Ended,
    Cpu(usize, Descriptor, bool),
    Waits,
}

impl Idxd {
    /// Takes `portal` for `queue`, if it answers.
    ///
    /// # Errors
    /// [`Untrusted`]: nothing was submitted but NOOPs.
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
        // A kernel may let no batch through and still list them.
        let batches = queue.batch_max >= 2 && queue.supports(Opcode::BATCH);
        if !batches || probe(&*portal, &noop, settings.patience).is_err() {
            limits.batch_max = 0;
        }
        let size = queue.size.clamp(1, DEPTH_MAX) as usize;
        let state = State {
            places: (0..size).map(|_| Place::Free).collect(),
            limits,
            away: 0,
            sequence: 0,
            heard: Instant::now(),
            closed: false,
            offer: Offer::default(),
        };
        Ok(Idxd {
            portal: ManuallyDrop::new(portal),
            cpu,
            settings,
            size,
            home: Home::new().map_err(|error| Untrusted::Memory(error.into()))?,
            state: Mutex::new(state),
            child: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// How descriptors reach the device: `enqcmd`, `movdir64b`, `write`.
    pub fn portal(&self) -> &'static str {
        self.portal.name()
    }

    /// Bit n: the device does opcode n. All others are the CPU's.
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

    /// Offers what may go; what may not, the CPU does in `poll`.
    fn send(&self, state: &mut State, flight: &mut Flight) {
        loop {
            if state.closed {
                return flight.stay();
            }
            let State { limits, away, offer, .. } = state;
            flight.offer(limits, self.size - *away, offer);
            if offer.descriptors.is_empty() {
                return;
            }
            // SAFETY: the submitter vouched for what the descriptors name; records and lists are the flight's, which is kept
            // until the device has answered, or leaked.
            match unsafe { self.portal.offer(&offer.descriptors) } {
                Ok(taken) => {
                    let taken = taken.min(offer.descriptors.len());
                    flight.took(offer, taken);
                    if *away == 0 {
                        state.heard = Instant::now();
                    }
                    *away += taken;
                    self.counters.offloaded.fetch_add(taken as u64, Ordering::Relaxed);
                    if *away == 0 {
                        self.counters.full.fetch_add(1, Ordering::Relaxed);
                        flight.barred(offer);
                        continue;
                    }
                    return;
                }
                Err(error) => {
                    if flight.barred(offer) {
                        limits.batch_max = 0;
                        self.counters.unrolled.fetch_add(1, Ordering::Relaxed);
                    }
                    // EINVAL is about the descriptor; anything else about the portal.
                    state.closed |= error.kind() != io::ErrorKind::InvalidInput;
                }
            }
        }
    }

    fn step(&self, state: &mut State, flight: &mut Flight) -> Step {
        let answers = flight.collect();
        if answers > 0 {
            state.away -= answers;
            state.heard = Instant::now();
        }
        if flight.settle() {
            return Step::Ended;
        }
        if flight.away > 0 && self.counters.quarantined.load(Ordering::Relaxed) {
            state.away -= flight.away;
            self.counters.lost.fetch_add(flight.away as u64, Ordering::Relaxed);
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
        for (wish, done) in flight.endings() {
            // SAFETY: the submitter's memory is lent until the last of these stores, which is the one that it waits for.
            unsafe { deliver(wish, &done) };
        }
        if flight.away > 0 {
            // The device may still write records and read the list.
            std::mem::forget(flight);
        }
    }

    /// Returns true if something before `sequence` has not ended.
    fn waits(state: &State, sequence: u64) -> bool {
        state.places.iter().any(|place| match place {
            Place::Free => false,
            Place::Flying(flight) => flight.sequence < sequence,
            Place::Drain { sequence: other, .. } | Place::Taken { sequence: other } => *other < sequence,
        })
    }

    /// # Safety
    /// The descriptor's memory is lent.
    unsafe fn perform(&self, descriptor: &Descriptor, in_batch: bool) -> Completion {
        self.counters.by_cpu.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the descriptor's memory is lent for the call, as the caller vouches.
        unsafe { self.cpu.perform(descriptor, in_batch) }
    }

    /// Runs the oldest of a child's own.
    fn poll_child(&self) -> usize {
        let Some(wish) = self.child().pop_front() else { return 0 };
        // SAFETY: the child vouched for its memory when it submitted.
        unsafe { deliver(&wish, &self.perform(&wish, false)) };
        1
    }

    /// Brings one flight as far as it comes; gives whether it ended.
    fn fly<'a>(&'a self, mut state: MutexGuard<'a, State>, index: usize) -> (MutexGuard<'a, State>, bool) {
        let mut flight = match replace(&mut state.places[index], Place::Free) {
            Place::Flying(flight) => flight,
            Place::Drain { wish, sequence } if !Idxd::waits(&state, sequence) => {
                // SAFETY: the submitter's memory is lent. DRAIN touches none but its record.
                unsafe { deliver(&wish, &self.perform(&wish, false)) };
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
                    // Only now is it over for a DRAIN.
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

    /// Gives the device up if it has been silent for too long.
    fn judge(&self, state: &mut State) {
        if state.away > 0 && state.heard.elapsed() > self.settings.patience {
            state.closed = true;
            self.counters.quarantined.store(true, Ordering::Relaxed);
        }
    }

    fn is_idle(&self) -> bool {
        self.lock().places.iter().all(|place| matches!(place, Place::Free))
    }
}

// SAFETY: submit offers and completes nothing. A record is delivered when neither the device nor the CPU has the descriptor any
// more, status last with Release, or as DEVICE_LOST.
unsafe impl Backend for Idxd {
    fn name(&self) -> &'static str {
        "idxd"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { queue_depth: self.size as u32, ..self.cpu.capabilities() }
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        if !self.home.is_here() {
            let mut queue = self.child();
            let accepted = descriptors.len().min(self.size - queue.len());
            queue.extend(&descriptors[..accepted]);
            return if accepted < descriptors.len() { Err(Busy { accepted }) } else { Ok(()) };
        }
        let mut state = self.lock();
        let mut place = 0;
        for (accepted, wish) in descriptors.iter().enumerate() {
            while place < state.places.len() && !matches!(state.places[place], Place::Free) {
                place += 1;
            }
            if place == state.places.len() {
                return Err(Busy { accepted });
            }
            state.sequence += 1;
            let sequence = state.sequence;
            if wish.opcode() == Opcode::DRAIN {
                state.places[place] = Place::Drain { wish: Box::new(*wish), sequence };
                continue;
            }
            let mut flight = if Flight::is_batch(wish) {
                // SAFETY: the caller vouches for the list, which is aligned and not too long.
                Flight::batch(wish, &unsafe { members(wish) }, &state.limits, sequence)
            } else {
                Flight::single(wish, &state.limits, sequence)
            };
            self.send(&mut state, &mut flight);
            state.places[place] = Place::Flying(Box::new(flight));
        }
        Ok(())
    }

    fn poll(&self) -> usize {
        if !self.home.is_here() {
            return self.poll_child();
        }
        let mut state = self.lock();
        let mut count = 0;
        for index in 0..self.size {
            if !matches!(state.places[index], Place::Free | Place::Taken { .. }) {
                let ended;
                (state, ended) = self.fly(state, index);
                count += usize::from(ended);
            }
        }
        if count == 0 {
            self.judge(&mut state);
        }
        count
    }
}

impl Drop for Idxd {
    fn drop(&mut self) {
        if !self.home.is_here() {
            while self.poll_child() > 0 {}
            return;
        }
        while !self.is_idle() {
            if self.poll() == 0 {
                std::thread::yield_now();
            }
        }
        // SAFETY: dropped once, here, and not used after it.
        unsafe { ManuallyDrop::drop(&mut self.portal) };
    }
}
