// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model as a backend: descriptors run on this process's memory, when polled.
//!
//! - **Flow** submit ──▶ bounded queue ──▶ `poll` takes the oldest and runs it
//! - **Order** first in, first out, one at a time even with several pollers, so DRAIN has nothing to wait for
//! - **Owner** the queue holds copies of descriptors; what they point to is the submitter's

use crate::execute::run;
use crate::memory::Memory;
use memlift_spec::{Backend, Busy, Capabilities, Completion, Descriptor, Opcode};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// This process's memory, as long as a submitted descriptor vouches for it.
pub(crate) struct Process;

impl Memory for Process {
    fn byte(&self, address: u64) -> u8 {
        // SAFETY: only addresses of submitted descriptors get here, and their submitter vouched for them.
        unsafe { ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }
    }

    fn set(&mut self, address: u64, byte: u8) {
        // SAFETY: only addresses of submitted descriptors get here, and their submitter vouched for writable bytes.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_volatile(byte) }
    }

    fn settle(&mut self, address: u64, done: &Completion) {
        let record = ptr::with_exposed_provenance_mut::<Completion>(address as usize);
        // SAFETY: the submitter vouched for 32 writable bytes, `record` checked the alignment, and until the status is
        // stored nobody else touches them.
        unsafe {
            (&raw mut (*record).result).write(done.result);
            (&raw mut (*record).fault_info).write(done.fault_info);
            (&raw mut (*record).reserved).write(0);
            (&raw mut (*record).bytes_completed).write(done.bytes_completed);
            (&raw mut (*record).fault_address).write(done.fault_address);
            (&raw mut (*record).value).write(done.value);
            (&raw mut (*record).value2).write(done.value2);
            AtomicU8::from_ptr(&raw mut (*record).status).store(done.status, Ordering::Release);
        }
    }
}

/// Operations of the model.
pub(crate) const OPCODES: [Opcode; 14] = [
    Opcode::NOOP,
    Opcode::BATCH,
    Opcode::DRAIN,
    Opcode::MEMMOVE,
    Opcode::FILL,
    Opcode::COMPARE,
    Opcode::COMPARE_PATTERN,
    Opcode::DELTA_CREATE,
    Opcode::DELTA_APPLY,
    Opcode::DUALCAST,
    Opcode::TRANSLATION_FETCH,
    Opcode::CRC,
    Opcode::COPY_CRC,
    Opcode::CACHE_FLUSH,
];

/// A device in software that does what it should and takes the time it takes.
#[derive(Debug)]
pub struct Model {
    queue: Mutex<VecDeque<Descriptor>>,
    turn: Mutex<()>,
    depth: usize,
}

impl Model {
    /// A queue of `depth` descriptors (at least one).
    pub fn new(depth: usize) -> Model {
        let depth = depth.max(1);
        Model { queue: Mutex::new(VecDeque::with_capacity(depth)), turn: Mutex::new(()), depth }
    }
}

// SAFETY: a descriptor's memory is touched by `run` alone, which stores the status last with Release and nothing after
// it; submit only queues.
unsafe impl Backend for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn capabilities(&self) -> Capabilities {
        OPCODES.into_iter().fold(Capabilities::none(self.depth as u32), Capabilities::with)
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = descriptors.len().min(self.depth - queue.len());
        queue.extend(&descriptors[..accepted]);
        if accepted < descriptors.len() { Err(Busy { accepted }) } else { Ok(()) }
    }

    /// Runs the oldest descriptor (a batch counts as one). A second poller waits for the first.
    fn poll(&self) -> usize {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(descriptor) = oldest else { return 0 };
        run(&mut Process, &descriptor);
        1
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        while self.poll() > 0 {}
    }
}
