// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker: engine threads that run descriptors from one bounded ring.
//!
//! - **Flow** submit ──▶ ring ──wake one parked thread──▶ pop ─▶ execute ─▶ record ─▶ notify
//! - **Order** the ring is first in, first out, but threads finish in any order; DRAIN waits for the descriptors
//!   submitted before it (`crew`)
//! - **Owner** threads start with the first submission and end with the `Worker`, after they have run the queued
//!   descriptors. In a forked child there are no threads: the child leaves the parent's ring alone and starts its own.
//! - **Idle** a thread without work spins within its learned budget and then sleeps on a futex, without periodic
//!   wake-ups
//!
//! If no thread can be started (a full task table, a seccomp filter), `poll` runs the ring on the caller.

use super::crew::{Crew, Task};
use super::{ExecutorSettings, Share, Work, fork, share_chunk_bytes};
use memlift_ground::complete::WaitPolicy;
use memlift_place::{Helpers, StoreKind};
use memlift_spec::{Backend, Busy, Capabilities, Descriptor};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// Settings of a [`Worker`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerSettings {
    /// Number of engine threads; with 0, descriptors only run in `poll`.
    pub threads: usize,
    /// Number of descriptors that the ring holds.
    pub queue_depth: usize,
    /// Policy for the waits of an idle thread.
    pub wait: WaitPolicy,
}

/// Statistics of the threads' work so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Number of descriptors and shares of copies that ran.
    pub completed: u64,
    /// Number of panics that were caught and answered with [`Status::HARDWARE_1`](memlift_spec::Status::HARDWARE_1).
    pub panics: u64,
    /// Number of running threads.
    pub threads: usize,
}

/// The backend of engine threads.
pub struct Worker {
    settings: WorkerSettings,
    executor_settings: Arc<ExecutorSettings>,
    /// A boxed `CrewOfProcess`. It is replaced only in a forked child, which leaks the parent's.
    of_process: AtomicPtr<CrewOfProcess>,
}

/// The crew of one process generation (see `fork`).
struct CrewOfProcess {
    generation: u32,
    crew: Arc<Crew>,
    threads: OnceLock<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("settings", &self.settings).field("stats", &self.stats()).finish()
    }
}

impl Worker {
    /// Makes a worker; its threads start with the first submission.
    pub fn new(settings: WorkerSettings, executor_settings: Arc<ExecutorSettings>) -> Worker {
        let of_process = AtomicPtr::new(Self::fresh(settings, &executor_settings));
        Worker { settings, executor_settings, of_process }
    }

    /// Returns the statistics of this process; a forked child starts from zero.
    pub fn stats(&self) -> WorkerStats {
        let of_process = self.of_process();
        WorkerStats {
            completed: of_process.crew.completed.load(Ordering::Relaxed),
            panics: of_process.crew.panics.load(Ordering::Relaxed),
            threads: of_process.threads.get().map_or(0, Vec::len),
        }
    }

    /// Returns the configured number of threads.
    pub fn threads(&self) -> usize {
        self.settings.threads
    }

    /// Returns the number of threads that have nothing to do; it may have changed on return.
    pub fn idle(&self) -> usize {
        self.of_process().crew.idle()
    }

    /// Starts the threads now instead of with the first submission.
    pub fn start(&self) {
        self.started();
    }

    /// Queues one descriptor with its `notify`. Returns `false` if the ring is full; then nothing will be notified.
    ///
    /// # Safety
    ///
    /// The conditions of [`Backend::submit`]; memory that `notify` keeps alive counts as valid.
    #[must_use]
    pub(crate) unsafe fn submit_work(&self, work: Work) -> bool {
        self.started().push(Task::Descriptor(work))
    }

    /// Offers a share of a copy to up to `helpers` threads; returns how many offers were queued.
    pub(crate) fn offer(&self, share: &Arc<Share>, helpers: usize) -> usize {
        let crew = self.started();
        (0..helpers).take_while(|_| crew.push(Task::Share(Arc::clone(share)))).count()
    }

    fn fresh(settings: WorkerSettings, executor_settings: &Arc<ExecutorSettings>) -> *mut CrewOfProcess {
        let WorkerSettings { threads, queue_depth, wait } = settings;
        Box::into_raw(Box::new(CrewOfProcess {
            generation: fork::generation(),
            crew: Arc::new(Crew::new(threads, queue_depth, wait, Arc::clone(executor_settings))),
            threads: OnceLock::new(),
        }))
    }

    fn started(&self) -> &Crew {
        let of_process = self.of_process();
        of_process.threads.get_or_init(|| of_process.crew.start());
        &of_process.crew
    }

    fn of_process(&self) -> &CrewOfProcess {
        let current = self.of_process.load(Ordering::Acquire);
        // SAFETY: the pointer came from `Box::into_raw`. It is replaced only in a forked child, which leaks the old
        // one, and freed only by drop, which has `&mut self`.
        let of_process = unsafe { &*current };
        if of_process.generation == fork::generation() { of_process } else { self.of_child(current) }
    }

    /// Replaces the parent's crew in a forked child: its threads only exist in the parent, perhaps in the middle of a
    /// job.
    #[cold]
    fn of_child(&self, current: *mut CrewOfProcess) -> &CrewOfProcess {
        let fresh = Self::fresh(self.settings, &self.executor_settings);
        match self.of_process.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` is live, and `self` owns it now.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: `fresh` was not published, so this is its only owner; `other` is the published one, which is
                // live.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*other
                }
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let of_process = *self.of_process.get_mut();
        // SAFETY: the pointer came from `Box::into_raw` and is freed only below, in this drop.
        if unsafe { (*of_process).generation } != fork::generation() {
            // The crew is the parent's, and this is a child: its jobs belong to threads that do not exist here.
            return;
        }
        // SAFETY: the pointer came from `Box::into_raw` and is only taken back here, once.
        let of_process = unsafe { Box::from_raw(of_process) };
        of_process.crew.stop();
        let me = thread::current().id();
        for thread in of_process.threads.into_inner().into_iter().flatten() {
            // A thread of the crew can be the last owner, through a notification; it must not join itself.
            if thread.thread().id() != me {
                // The thread catches panics, so joining does not fail because of one.
                let _ = thread.join();
            }
        }
        while of_process.crew.run_one() {}
    }
}

// SAFETY: only `execute` accesses a descriptor's memory, and it stores the status last with Release and nothing after
// it; submit only queues.
unsafe impl Backend for Worker {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn capabilities(&self) -> Capabilities {
        self.of_process().crew.capabilities
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        let crew = self.started();
        for (accepted, &descriptor) in descriptors.iter().enumerate() {
            if !crew.push(Task::Descriptor(Work { descriptor, notify: None })) {
                return Err(Busy { accepted });
            }
        }
        Ok(())
    }

    /// Runs one job on this thread if there are no threads; otherwise does nothing, because the threads need no help.
    fn poll(&self) -> usize {
        let of_process = self.of_process();
        let threads = of_process.threads.get().map_or(0, Vec::len);
        usize::from(threads == 0 && of_process.crew.run_one())
    }
}

impl Helpers for Worker {
    fn threads(&self) -> usize {
        Worker::threads(self)
    }

    fn start(&self) {
        Worker::start(self);
    }

    fn awake(&self) -> usize {
        let of_process = self.of_process();
        of_process.crew.awake(of_process.threads.get().map_or(0, Vec::len))
    }

    fn round_trip(&self) {
        let (target, source) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: with `StoreKind::None` no byte is copied, so neither address is accessed.
        let share =
            unsafe { Share::new(self.executor_settings.kernels(), StoreKind::None, target, source, 1, 1) };
        if self.offer(&share, 1) == 1 {
            share.finish_by_others(20_000);
        }
    }

    unsafe fn share(&self, stores: StoreKind, target: *mut u8, source: *const u8, bytes: usize) {
        let chunk_bytes = share_chunk_bytes(bytes);
        // SAFETY: the caller keeps both ranges valid until this returns, which is after `finish`.
        let share = unsafe {
            Share::new(self.executor_settings.kernels(), stores, target, source, bytes, chunk_bytes)
        };
        self.offer(&share, 1);
        share.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record;
    use memlift_spec::{Completion, Flags, Opcode, Status};
    use std::ptr;

    fn settings(threads: usize, queue_depth: usize) -> WorkerSettings {
        WorkerSettings { threads, queue_depth, wait: WaitPolicy::AUTO }
    }

    #[test]
    fn a_panic_is_answered_and_the_thread_goes_on() {
        let worker = Worker::new(
            settings(1, 8),
            Arc::new(ExecutorSettings::new(memlift_kernels::active(), usize::MAX)),
        );
        let mut records = [Completion::PENDING; 2];
        let records = ptr::from_mut(&mut records).cast::<Completion>();
        let noop = |index: usize| {
            let mut noop =
                Descriptor::new(Opcode::NOOP, Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
            noop.completion_address = records.wrapping_add(index).expose_provenance() as u64;
            Work { descriptor: noop, notify: None }
        };
        let crew = worker.started();
        assert!(crew.push(Task::Panic(noop(0))));
        assert!(crew.push(Task::Descriptor(noop(1))));
        // SAFETY: both records outlive the loop and are written only by the worker, status atomically.
        while unsafe { record::load(records.add(1)) }.is_pending() {
            thread::yield_now();
        }
        // SAFETY: both records outlive this block, and the worker wrote them before the second status became final.
        let statuses = unsafe { [record::load(records), record::load(records.add(1))] };
        assert_eq!(statuses, [Status::HARDWARE_1, Status::SUCCESS]);
        assert_eq!(worker.stats().panics, 1);
    }

    #[test]
    fn without_threads_the_caller_runs_the_ring() {
        let worker = Worker::new(
            settings(0, 2),
            Arc::new(ExecutorSettings::new(memlift_kernels::active(), usize::MAX)),
        );
        let noop = [Descriptor::new(Opcode::NOOP, Flags::NONE); 3];
        // SAFETY: a NOOP without a record touches no memory.
        assert_eq!(unsafe { worker.submit(&noop) }, Err(Busy { accepted: 2 }));
        assert_eq!((worker.poll(), worker.poll(), worker.poll()), (1, 1, 0));
    }
}
