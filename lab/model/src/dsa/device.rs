// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device: a shared work queue, engines, batches, and one memory pipe at which engines take turns.
//!
//! - **Flow** submit ─▶ queue ─▶ engine: `start` ─▶ turns at the pipe ─▶ run ─▶ settled. A batch is fetched first, by an engine, and its
//!   members follow in the queue
//! - **Order** descriptors are taken in the order of the queue; the bytes of one are all there when it settles, not before
//! - **Owner** the memory is the caller's; a full queue gives the descriptor back, as ENQCMD's retry does

use super::numbered::Numbered;
use super::timing::Timing;
use crate::event::{Calendar, Time};
use crate::memory::{Image, Memory};
use crate::run;
use memlift_spec::{Completion, Descriptor, Opcode, Status};
use std::collections::VecDeque;

/// One submission: a descriptor, or a batch and its members.
#[derive(Clone, Debug)]
struct Job {
    descriptor: Descriptor,
    /// Members that have not settled; 1 for a descriptor alone.
    left: usize,
    failed: bool,
}

/// Work of an engine.
#[derive(Clone, Copy, Debug)]
struct Work {
    job: usize,
    descriptor: Descriptor,
    /// A batch that is being fetched.
    fetch: bool,
    /// Bytes that have not passed the pipe.
    bytes: u64,
}

/// See the module. Events are engines' numbers.
#[derive(Debug)]
pub struct Device {
    timing: Timing,
    queue: VecDeque<Work>,
    /// Entries of the queue that are free: members of a batch need none.
    room: usize,
    engines: Vec<Option<Work>>,
    pipe: Time,
    /// Those that have not settled.
    jobs: Numbered<Job>,
}

impl Device {
    /// An idle one.
    #[must_use]
    pub fn new(timing: &Timing) -> Device {
        Device {
            timing: timing.clone(),
            queue: VecDeque::new(),
            room: timing.queue_entries,
            engines: vec![None; timing.engines],
            pipe: Time::ZERO,
            jobs: Numbered::default(),
        }
    }

    /// Puts a descriptor, or a batch, into the queue: its number, or nothing if the queue is full.
    pub fn submit<E>(
        &mut self,
        descriptor: &Descriptor,
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        if self.room == 0 {
            return None;
        }
        self.room -= 1;
        let fetch = descriptor.opcode() == Opcode::BATCH;
        let members = if fetch { descriptor.size as usize } else { 1 };
        let job = self.jobs.push(Job { descriptor: *descriptor, left: members, failed: false });
        let bytes = if fetch { 64 * u64::from(descriptor.size) } else { u64::from(descriptor.size) };
        self.queue.push_back(Work { job, descriptor: *descriptor, fetch, bytes });
        self.take(calendar, &event);
        Some(job)
    }

    /// Free engines take what is next.
    fn take<E>(&mut self, calendar: &mut Calendar<E>, event: &impl Fn(usize) -> E) {
        for engine in 0..self.engines.len() {
            if self.engines[engine].is_none()
                && let Some(work) = self.queue.pop_front()
            {
                let member = |job: &mut Job| !work.fetch && job.descriptor.opcode() == Opcode::BATCH;
                if !self.jobs.get_mut(work.job).is_some_and(member) {
                    self.room += 1;
                }
                self.engines[engine] = Some(work);
                calendar.after(self.timing.start, event(engine));
            }
        }
    }

    /// An engine's event: its next turn, or the end of its work. Gives the submission that has settled by it.
    pub fn happen<E>(
        &mut self,
        engine: usize,
        memory: &mut Image<'_>,
        calendar: &mut Calendar<E>,
        event: impl Fn(usize) -> E,
    ) -> Option<usize> {
        let work = self.engines[engine].as_mut()?;
        if work.bytes > 0 {
            let turn = work.bytes.min(self.timing.turn);
            work.bytes -= turn;
            self.pipe = self.pipe.max(calendar.now()) + self.timing.device.time_of(turn);
            calendar.at(self.pipe, event(engine));
            return None;
        }
        let work = *work;
        self.engines[engine] = None;
        let settled = if work.fetch {
            // Members go ahead of what was submitted later.
            for index in (0..u64::from(work.descriptor.size)).rev() {
                let member = memory.descriptor(work.descriptor.source + 64 * index);
                let bytes = u64::from(member.size);
                self.queue.push_front(Work { job: work.job, descriptor: member, fetch: false, bytes });
            }
            None
        } else {
            self.settle(work, memory)
        };
        self.take(calendar, &event);
        settled
    }

    fn settle(&mut self, work: Work, memory: &mut Image<'_>) -> Option<usize> {
        let done = run(memory, &work.descriptor);
        let job = self.jobs.get_mut(work.job)?;
        job.left -= 1;
        job.failed |= done.status() != Status::SUCCESS;
        if job.left > 0 {
            return None;
        }
        let job = self.jobs.take(work.job)?;
        if job.descriptor.opcode() == Opcode::BATCH {
            let status = if job.failed { Status::BATCH_FAILED } else { Status::SUCCESS };
            let record =
                Completion { status: status.0, bytes_completed: job.descriptor.size, ..Completion::PENDING };
            memory.settle(job.descriptor.completion_address, &record);
        }
        Some(work.job)
    }
}
