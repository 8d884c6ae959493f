// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inline executor: descriptors run on the caller's own core when it polls or waits, never when it submits.
//!
//! - **Flow** submit ──▶ bounded queue ──▶ `poll` takes one and runs it on the calling thread
//! - **Order** first in, first out, one at a time even with several pollers; so a DRAIN never has to wait
//! - **Owner** the queue holds descriptors and the owners of their memory; dropping the queue runs the remaining
//!   descriptors

use super::execute::{Context, execute};
use super::{ExecutorSettings, Notify, Work, capabilities};
use crossbeam_queue::ArrayQueue;
use memlift_spec::{Backend, Busy, Capabilities, Descriptor};
use std::sync::{Arc, Mutex, PoisonError};

/// The backend whose descriptors run on the thread that polls it.
pub struct Inline {
    queue: ArrayQueue<Work>,
    poll_lock: Mutex<()>,
    executor_settings: Arc<ExecutorSettings>,
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inline")
            .field("queued", &self.queue.len())
            .field("depth", &self.queue.capacity())
            .finish()
    }
}

impl Inline {
    /// Makes a queue of `depth` descriptors (at least one).
    pub fn new(depth: usize, executor_settings: Arc<ExecutorSettings>) -> Inline {
        Inline { queue: ArrayQueue::new(depth.max(1)), poll_lock: Mutex::new(()), executor_settings }
    }

    /// Queues one descriptor with its `notify`. Returns `false` if the queue is full; then nothing will be
    /// notified.
    ///
    /// # Safety
    ///
    /// The conditions of [`Backend::submit`]; memory that `notify` keeps alive counts as valid.
    #[must_use]
    pub(crate) unsafe fn submit_work(&self, work: Work) -> bool {
        self.queue.push(work).is_ok()
    }

    fn run(&self, descriptor: &Descriptor, notify: Option<&Arc<dyn Notify>>) {
        let context =
            Context { capabilities: self.capabilities(), executor_settings: &self.executor_settings };
        // SAFETY: the submitter promised that the descriptor's memory is valid until its record is written.
        unsafe { execute(descriptor, &context) };
        if let Some(notify) = notify {
            notify.completed();
        }
    }
}

// SAFETY: only `execute` accesses a descriptor's memory, and it stores the status last with Release and
// nothing after it; submit only queues.
unsafe impl Backend for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.queue.capacity() as u32)
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        for (accepted, &descriptor) in descriptors.iter().enumerate() {
            if self.queue.push(Work { descriptor, notify: None }).is_err() {
                return Err(Busy { accepted });
            }
        }
        Ok(())
    }

    /// Runs the oldest descriptor (a batch counts as one). A second poller waits for the first.
    fn poll(&self) -> usize {
        let _locked = self.poll_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Work { descriptor, notify }) = self.queue.pop() else { return 0 };
        self.run(&descriptor, notify.as_ref());
        1
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        while self.poll() > 0 {}
    }
}
