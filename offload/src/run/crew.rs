// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads behind `Worker` and the ring they share.
//!
//! - **Flow** push ──▶ ring ──▶ a thread: TAKING ─▶ pop ─▶ at = sequence ─▶ run ─▶ IDLE ─▶ next, or sleep
//! - **Order** DRAIN with sequence s: every job submitted before it was popped before it, so all of them are done once
//!   each other thread is IDLE or at a job after s. A thread that is TAKING may get an earlier job, so it is waited
//!   for. Two DRAINs cannot wait for each other, because only the later one waits for the earlier.
//! - **Owner** the crew is shared by its threads and the `Worker`
//! - **Failure** a panic answers its descriptor with HARDWARE_1, and the thread continues

use super::execute::{Context, execute};
use super::{ExecutorSettings, Share, Work, batch, record};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use memlift_ground::complete::{FutexParker, ParkWord, WaitPolicy, Waited, Waiter};
use memlift_spec::{Capabilities, Completion, Descriptor, Flags, Opcode, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(super) enum Task {
    Descriptor(Work),
    Share(Arc<Share>),
    #[cfg(test)]
    Panic(Work),
}

struct Job {
    sequence: u64,
    task: Task,
}

/// Value of `ThreadState::at`: the thread is between two jobs.
const IDLE: u64 = u64::MAX;
/// Value of `ThreadState::at`: the thread is taking a job, which may be any that was submitted.
const TAKING: u64 = u64::MAX - 1;

/// State of one thread of the crew. Only the thread itself writes `at`.
struct ThreadState {
    /// [`IDLE`], [`TAKING`], or the sequence number of the job that the thread runs.
    at: AtomicU64,
    /// Park word for sleeping until there is work.
    park: ParkWord,
    /// Park word for sleeping, in DRAIN, until other threads are done.
    drained: ParkWord,
}

/// The threads' shared state.
pub(super) struct Crew {
    ring: ArrayQueue<Job>,
    states: Box<[CachePadded<ThreadState>]>,
    stop: AtomicBool,
    sequence: AtomicU64,
    /// Number of DRAINs that are waiting.
    draining: AtomicUsize,
    /// Held while a caller runs a job because there are no threads.
    caller_lock: Mutex<()>,
    pub completed: AtomicU64,
    pub panics: AtomicU64,
    pub capabilities: Capabilities,
    executor_settings: Arc<ExecutorSettings>,
    wait: WaitPolicy,
}

fn parker(word: &ParkWord) -> FutexParker<'_> {
    FutexParker::new(word, false)
}

impl Crew {
    pub fn new(
        threads: usize,
        depth: usize,
        wait: WaitPolicy,
        executor_settings: Arc<ExecutorSettings>,
    ) -> Crew {
        let state =
            || ThreadState { at: AtomicU64::new(IDLE), park: ParkWord::new(), drained: ParkWord::new() };
        Crew {
            ring: ArrayQueue::new(depth.max(1)),
            states: (0..threads).map(|_| CachePadded::new(state())).collect(),
            stop: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            draining: AtomicUsize::new(0),
            caller_lock: Mutex::new(()),
            completed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            capabilities: super::capabilities(depth.max(1) as u32),
            executor_settings,
            wait,
        }
    }

    /// Starts the threads; returns those that could be started.
    pub fn start(self: &Arc<Crew>) -> Vec<JoinHandle<()>> {
        let start = |index| {
            let crew = Arc::clone(self);
            thread::Builder::new()
                // Linux keeps 15 bytes of a thread's name; with a longer name the number would be cut off.
                .name(format!("memlift-work-{index}"))
                .stack_size(256 * 1024)
                .spawn(move || crew.work(index))
                .ok()
        };
        (0..self.states.len()).map_while(start).collect()
    }

    /// Queues a task and wakes one sleeping thread. Returns `false` if the ring is full; then the task is dropped.
    #[must_use]
    pub fn push(&self, task: Task) -> bool {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        if self.ring.push(Job { sequence, task }).is_err() {
            return false;
        }
        // The job is in the ring; a thread that is about to sleep checks the ring after it has set its park word.
        fence(Ordering::SeqCst);
        if let Some(state) = self.states.iter().find(|state| state.park.is_parked()) {
            parker(&state.park).wake();
        }
        true
    }

    /// Returns the number of threads that have nothing to do; it may have changed on return.
    pub fn idle(&self) -> usize {
        if !self.ring.is_empty() {
            return 0;
        }
        self.states.iter().filter(|state| state.at.load(Ordering::Relaxed) == IDLE).count()
    }

    /// Returns how many of the first `started` threads spin while they wait for work; the number may have changed on
    /// return.
    pub fn awake(&self, started: usize) -> usize {
        let waits = |state: &&CachePadded<ThreadState>| {
            state.at.load(Ordering::Relaxed) == IDLE && !state.park.is_parked()
        };
        self.states.iter().take(started).filter(waits).count()
    }

    /// Makes the threads end once the ring is empty.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for state in &self.states {
            parker(&state.park).wake();
        }
    }

    /// Runs one job on the calling thread, which does not belong to the crew; returns false if there is none.
    pub fn run_one(&self) -> bool {
        let _locked = self.caller_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = self.ring.pop() else { return false };
        self.run(job, None);
        true
    }

    fn work(&self, index: usize) {
        let state = &self.states[index];
        let mut waiter = Waiter::new(self.wait);
        loop {
            state.at.store(TAKING, Ordering::SeqCst);
            let job = self.ring.pop();
            state.at.store(job.as_ref().map_or(IDLE, |job| job.sequence), Ordering::SeqCst);
            self.tell_drains();
            if let Some(job) = job {
                self.run(job, Some(index));
                continue;
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let ready = || !self.ring.is_empty() || self.stop.load(Ordering::Acquire);
            match waiter.wait(&parker(&state.park), ptr::null(), ready, None, None) {
                Waited::Ready | Waited::TimedOut => {}
                // The kernel refuses futexes: poll slowly instead of spinning.
                Waited::Broken(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn run(&self, job: Job, index: Option<usize>) {
        let Job { sequence, task } = job;
        match task {
            Task::Share(share) => {
                share.help();
            }
            Task::Descriptor(work) => {
                if work.descriptor.opcode() == Opcode::DRAIN {
                    self.drain(sequence, index);
                }
                self.run_descriptor(work, |descriptor, context| {
                    // SAFETY: the submitter promised that the descriptor's memory is valid until its record is written.
                    unsafe { execute(descriptor, context) };
                });
            }
            #[cfg(test)]
            Task::Panic(work) => self.run_descriptor(work, |_, _| panic!("asked for by a test")),
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    fn run_descriptor(&self, work: Work, execute: impl FnOnce(&Descriptor, &Context<'_>)) {
        let Work { descriptor, notify } = work;
        let context = Context { capabilities: self.capabilities, executor_settings: &self.executor_settings };
        if catch_unwind(AssertUnwindSafe(|| execute(&descriptor, &context))).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            // SAFETY: `execute` panicked before it stored the record (storing cannot panic), so the memory is still
            // lent to this thread.
            unsafe { answer(&descriptor) };
        }
        if let Some(notify) = notify {
            let told = catch_unwind(AssertUnwindSafe(|| notify.completed()));
            self.panics.fetch_add(u64::from(told.is_err()), Ordering::Relaxed);
        }
    }

    fn drain(&self, sequence: u64, me: Option<usize>) {
        let waits = |index: usize| {
            let at = self.states[index].at.load(Ordering::SeqCst);
            Some(index) != me && (at == TAKING || at < sequence)
        };
        let done = || !(0..self.states.len()).any(waits);
        let Some(me) = me else {
            // A caller runs this job: then there are no threads, and callers run one at a time.
            return;
        };
        if done() {
            return;
        }
        self.draining.fetch_add(1, Ordering::SeqCst);
        let mut waiter = Waiter::new(self.wait);
        let park = &self.states[me].drained;
        while !done() {
            if let Waited::Broken(_) = waiter.wait(&parker(park), ptr::null(), done, None, None) {
                thread::yield_now();
            }
        }
        self.draining.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes waiting DRAINs after this thread's state has changed.
    fn tell_drains(&self) {
        fence(Ordering::SeqCst);
        if self.draining.load(Ordering::SeqCst) == 0 {
            return;
        }
        for state in &self.states {
            parker(&state.drained).wake();
        }
    }
}

/// Answers a descriptor whose execution panicked, and every member of a batch that has no answer yet.
///
/// # Safety
///
/// The descriptor's memory is still lent to the caller.
unsafe fn answer(descriptor: &Descriptor) {
    let address = descriptor.completion_address;
    let record = ptr::with_exposed_provenance::<Completion>(address as usize);
    let usable = descriptor.flags().has(Flags::COMPLETION_VALID) && !record.is_null() && record.is_aligned();
    // SAFETY: the memory is still lent to the caller; a batch's list is only read if validation could have accepted it.
    unsafe {
        if descriptor.opcode() == Opcode::BATCH
            && descriptor.source.is_multiple_of(64)
            && descriptor.size <= 1024
        {
            batch::give_up(descriptor);
        }
        if usable && record::load(record).is_pending() {
            record::store(descriptor, record::ended(Status::HARDWARE_1));
        }
    }
}
