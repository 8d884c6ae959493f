// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue: one executor, seen from the submitting side.
//!
//! - **Flow** `submit` ──▶ cheap checks ──▶ flight ──▶ the executor's bounded queue, or `Rejected`
//! - **Owner** clones share the executor. A foreign backend (a device, a model) does not know flights, so the queue
//!   keeps its flights until they settle; dropping the last clone then waits for them.
//! - **Not here** completion: an inline queue runs when it is polled or waited for, never inside submit

use super::flight::Flight;
use super::{Operation, Reason, Rejected, Ticket};
use crate::run::{Inline, Notify, Work, Worker};
use memlift_ground::complete::{Parker, WaitPolicy, Waited, Waiter};
use memlift_ground::observe;
use memlift_spec::{Backend, Busy, Capabilities, Descriptor, Opcode};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A queue to which operations are submitted. Cheap to clone; safe to use from any thread.
#[derive(Clone)]
pub struct Queue {
    core: Arc<Core>,
}

pub(super) struct Core {
    executor: Executor,
    policy: WaitPolicy,
    waiters: Mutex<Vec<Waiter>>,
    /// True once an operation has ended with `DEVICE_LOST`.
    lost: AtomicBool,
}

enum Executor {
    Inline(Box<Inline>),
    Worker(Arc<Worker>),
    /// A backend that does not know flights; `row` is its row in the stats page.
    Foreign {
        backend: Box<dyn Backend>,
        row: observe::Executor,
        flights: Mutex<Vec<Arc<Flight>>>,
    },
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("executor", &self.name()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Makes a queue that runs on the thread that polls it or waits for a ticket.
    pub fn inline(backend: Inline, policy: WaitPolicy) -> Queue {
        Queue::new(Executor::Inline(Box::new(backend)), policy)
    }

    /// Makes a queue for engine threads.
    pub fn worker(backend: Arc<Worker>, policy: WaitPolicy) -> Queue {
        Queue::new(Executor::Worker(backend), policy)
    }

    /// Makes a queue for any backend.
    pub fn foreign(backend: Box<dyn Backend>, policy: WaitPolicy) -> Queue {
        Queue::new(
            Executor::Foreign { backend, row: observe::Executor::Model, flights: Mutex::default() },
            policy,
        )
    }

    /// Makes a queue for the engine's device.
    pub(crate) fn device(backend: Box<dyn Backend>, policy: WaitPolicy) -> Queue {
        Queue::new(
            Executor::Foreign { backend, row: observe::Executor::Idxd, flights: Mutex::default() },
            policy,
        )
    }

    fn new(executor: Executor, policy: WaitPolicy) -> Queue {
        Queue {
            core: Arc::new(Core {
                executor,
                policy,
                waiters: Mutex::default(),
                lost: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the executor's name.
    pub fn name(&self) -> &'static str {
        self.core.backend().name()
    }

    /// Returns true once an operation has ended with [`DEVICE_LOST`](memlift_spec::Status::DEVICE_LOST): the backend does
    /// not answer any more.
    pub fn is_lost(&self) -> bool {
        self.core.lost.load(Ordering::Relaxed)
    }

    /// Notes that the backend does not answer any more.
    pub(crate) fn give_up(&self) {
        self.core.lost.store(true, Ordering::Relaxed);
    }

    /// Returns the operations and limits of the executor.
    pub fn capabilities(&self) -> Capabilities {
        self.core.backend().capabilities()
    }

    /// Lets an executor without threads run one descriptor here; returns how many completed.
    pub fn poll(&self) -> usize {
        self.core.poll()
    }

    /// Queues an operation. When this returns it may not have started, or another core may already have finished it.
    ///
    /// # Errors
    ///
    /// [`Rejected`] with the operation in it: the queue is full, or the buffers do not fit.
    pub fn submit(&self, operation: Operation) -> Result<Ticket, Rejected> {
        let reason = operation.check().and_then(|()| self.supports(operation.opcode())).err();
        if let Some(reason) = reason {
            return Err(Rejected { operation: Box::new(operation), reason });
        }
        let (flight, descriptor) = Flight::new(operation, self.core.counted_as());
        match self.core.send(&flight, descriptor) {
            Ok(()) => Ok(Ticket::new(flight, Arc::clone(&self.core))),
            Err(Full) => Err(Rejected { operation: Box::new(Flight::recall(flight)), reason: Reason::Busy }),
        }
    }

    /// Queues raw descriptors, for callers that keep records of their own.
    ///
    /// # Errors
    ///
    /// [`Busy`] contains the number of descriptors that were accepted.
    ///
    /// # Safety
    ///
    /// The conditions of [`Backend::submit`].
    pub unsafe fn submit_raw(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        // SAFETY: the caller keeps every address valid until its descriptor has completed, as [`Backend::submit`] requires.
        unsafe { self.core.backend().submit(descriptors) }
    }

    fn supports(&self, opcode: Opcode) -> Result<(), Reason> {
        if self.capabilities().supports(opcode) {
            return Ok(());
        }
        Err(Reason::Unsupported { executor: self.name(), opcode })
    }
}

/// The executor's queue is full and accepted nothing.
struct Full;

impl Core {
    fn backend(&self) -> &dyn Backend {
        match &self.executor {
            Executor::Inline(inline) => &**inline,
            Executor::Worker(worker) => &**worker,
            Executor::Foreign { backend, .. } => &**backend,
        }
    }

    /// Returns the executor's row in the stats page.
    fn counted_as(&self) -> observe::Executor {
        match &self.executor {
            Executor::Inline(_) => observe::Executor::InlineTemporal,
            Executor::Worker(_) => observe::Executor::Worker,
            Executor::Foreign { row, .. } => *row,
        }
    }

    fn send(&self, flight: &Arc<Flight>, descriptor: Descriptor) -> Result<(), Full> {
        let work = || Work { descriptor, notify: Some(Arc::clone(flight) as Arc<_>) };
        // SAFETY: every address in the descriptor was taken from the flight, whose operation was checked. The executor (or
        // the list of flights) keeps the flight alive until its record is written.
        unsafe {
            match &self.executor {
                Executor::Inline(inline) => inline.submit_work(work()).then_some(()).ok_or(Full),
                Executor::Worker(worker) => worker.submit_work(work()).then_some(()).ok_or(Full),
                Executor::Foreign { backend, flights, .. } => {
                    let mut flights = flights.lock().unwrap_or_else(PoisonError::into_inner);
                    self.release_settled(&mut flights);
                    backend.submit(&[descriptor]).map_err(|_| Full)?;
                    flights.push(Arc::clone(flight));
                    Ok(())
                }
            }
        }
    }

    fn poll(&self) -> usize {
        let done = self.backend().poll();
        if let Executor::Foreign { flights, .. } = &self.executor {
            self.release_settled(&mut flights.lock().unwrap_or_else(PoisonError::into_inner));
        }
        done
    }

    /// Releases settled flights, and notifies their waiters, because a foreign backend does not.
    fn release_settled(&self, flights: &mut Vec<Arc<Flight>>) {
        flights.retain(|flight| {
            let settled = flight.settled();
            if settled {
                flight.completed();
            }
            if flight.is_lost() {
                self.lost.store(true, Ordering::Relaxed);
                std::mem::forget(Arc::clone(flight));
            }
            !settled
        });
    }

    /// Polls a device that works on its own and wakes no thread. Backends that only work when polled are not polled here.
    pub(super) fn poll_device(&self) {
        if self.counted_as() == observe::Executor::Idxd {
            self.poll();
        }
    }

    /// Waits until the flight settles.
    pub(super) fn wait(&self, flight: &Flight, predicted_ns: Option<u64>) {
        let pooled = self.waiters.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut waiter = pooled.unwrap_or_else(|| Waiter::new(self.policy));
        let ready = || {
            // An executor without threads runs its queue here; other executors need no polling.
            while !flight.settled() && self.poll() > 0 {}
            flight.settled()
        };
        let notified = !matches!(self.executor, Executor::Foreign { .. });
        let futex = flight.parker();
        let parker: &dyn Parker = if notified { &futex } else { &Polling };
        // A foreign backend writes records only when it is polled, and no thread would poll while this one watches a cache
        // line.
        let line = if notified { flight.line() } else { std::ptr::null() };
        while !flight.settled() {
            if let Waited::Broken(_) = waiter.wait(parker, line, ready, predicted_ns, None) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).push(waiter);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let Executor::Foreign { backend, flights, .. } = &mut self.executor else { return };
        let flights = flights.get_mut().unwrap_or_else(PoisonError::into_inner);
        while flights.iter().any(|flight| flight.is_own() && !flight.settled()) {
            if backend.poll() == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        // In a forked child these flights are copies of flights that the parent's backend may still write, so they are
        // leaked.
        flights.drain(..).filter(|flight| !flight.is_own()).for_each(std::mem::forget);
    }
}

/// Sleeps briefly and polls again, for backends that wake no thread.
struct Polling;

impl Parker for Polling {
    fn prepare(&self) {}

    fn park(&self, until: Option<Instant>) -> io::Result<()> {
        let nap = Duration::from_micros(50);
        let left = until.map_or(nap, |until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(nap.min(left));
        Ok(())
    }

    fn finish(&self) {}
}
