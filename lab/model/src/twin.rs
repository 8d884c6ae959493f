// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The twin: the model as a backend that uses every freedom that hardware has. It reorders by seed, and accesses fault by seed, or
//! because a page really cannot be accessed.
//!
//! - **Flow** submit ─▶ bounded queue ─▶ `poll` takes one of those that may go ─▶ part of the work, and a record that says how much
//! - **Order** DRAIN goes when it is the oldest; else any of the queue may go. Members of a batch go in any order between two fences.
//!   A fault lies at a page of the source or of a target: what comes before it was done, the record's `bytes_completed`
//!   says how much, and the top bit of its status that the access was a write. A copy whose target overlaps its source from
//!   above goes backwards: its record's result is 1, and its end was done. A batch whose list faults has run its first members
//! - **Owner** as the model
//!   [`Twin::with_pages`] asks its maker, who knows what the kernel would say, about every page that an operation accesses
//! - **Not here** which bytes a fault leaves done: see `fault`; faults of operations that no hardware has, of descriptors that block on faults (flag), and of those whose record
//!   cannot be written: hardware tells nobody about these, so nobody could go on
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification, page faults and partial completion.

mod fault;

pub use fault::Absent;

use crate::backend::{OPCODES, Process};
use crate::event::Random;
use crate::execute::{ended, record, work};
use crate::memory::Memory;
use crate::refuse::refuse;
use fault::{PAGE, by_access, by_chance, part};
use memlift_spec::{Backend, Busy, Capabilities, Completion, Descriptor, Flags, Opcode, Status};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Kinds of faults, and how often each happens.
#[derive(Clone, Copy, Debug)]
pub struct Fortune {
    /// Seed of the random numbers for faults and order.
    pub seed: u64,
    /// Faults per million descriptors that could fault.
    pub faults: u64,
    /// True if the order is changed where it may be.
    pub reorder: bool,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Descriptor>,
    random: Random,
}

/// The source of an access's fault.
enum Faults<'a> {
    None,
    /// Faults per million descriptors that could fault.
    Chance(u64),
    /// Pages that are not there.
    Access(&'a (dyn Fn(u64, bool) -> bool + Send + Sync)),
}

/// See the module.
pub struct Twin {
    queue: Mutex<Queue>,
    turn: Mutex<()>,
    depth: usize,
    fortune: Fortune,
    absent: Option<Box<Absent>>,
}

impl std::fmt::Debug for Twin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Twin").field("fortune", &self.fortune).finish_non_exhaustive()
    }
}

impl Twin {
    /// A queue of `depth` descriptors (at least one).
    #[must_use]
    pub fn new(depth: usize, fortune: Fortune) -> Twin {
        let queue = Queue { waiting: VecDeque::new(), random: Random::new(fortune.seed) };
        Twin { queue: Mutex::new(queue), turn: Mutex::new(()), depth: depth.max(1), fortune, absent: None }
    }

    /// The same, with faults wherever `absent` says so. Nothing that is absent is accessed.
    #[must_use]
    pub fn with_pages(mut self, absent: Box<Absent>) -> Twin {
        self.absent = Some(absent);
        self
    }
}

/// One that may go, and the chance for what happens to it.
fn take(queue: &mut Queue, reorder: bool) -> Option<(Descriptor, Random)> {
    let free: Vec<usize> = (0..queue.waiting.len())
        .filter(|&index| index == 0 || (reorder && queue.waiting[index].opcode() != Opcode::DRAIN))
        .collect();
    let index = *free.get(queue.random.below(free.len() as u64) as usize)?;
    let descriptor = queue.waiting.remove(index)?;
    Some((descriptor, Random::new(queue.random.word())))
}

// SAFETY: as the model's: only `poll` touches a descriptor's memory, and its last store is the status, with Release.
unsafe impl Backend for Twin {
    fn name(&self) -> &'static str {
        "twin"
    }

    fn capabilities(&self) -> Capabilities {
        OPCODES.into_iter().fold(Capabilities::none(self.depth as u32), Capabilities::with)
    }

    unsafe fn submit(&self, descriptors: &[Descriptor]) -> Result<(), Busy> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = descriptors.len().min(self.depth - queue.waiting.len());
        queue.waiting.extend(&descriptors[..accepted]);
        if accepted < descriptors.len() { Err(Busy { accepted }) } else { Ok(()) }
    }

    fn poll(&self) -> usize {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taken =
            take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner), self.fortune.reorder);
        let Some((descriptor, mut random)) = taken else { return 0 };
        let faults = match &self.absent {
            Some(absent) => Faults::Access(&**absent),
            None => Faults::Chance(self.fortune.faults),
        };
        run(&mut Process, &descriptor, &self.fortune, &faults, &mut random);
        1
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        while self.poll() > 0 {}
    }
}

fn run(
    memory: &mut impl Memory,
    d: &Descriptor,
    fortune: &Fortune,
    faults: &Faults<'_>,
    random: &mut Random,
) {
    let done = match refuse(d, false) {
        Some(status) => ended(status),
        None if d.opcode() == Opcode::BATCH => batch(memory, d, fortune, faults, random),
        None => some_work(memory, d, faults, random),
    };
    record(memory, d, done);
}

/// Returns true if everything that can happen to a member can be read from its record afterwards.
fn is_told(member: &Descriptor) -> bool {
    member.flags().has(Flags::COMPLETION_VALID) && member.completion_address.is_multiple_of(32)
}

fn batch(
    memory: &mut impl Memory,
    d: &Descriptor,
    fortune: &Fortune,
    faults: &Faults<'_>,
    random: &mut Random,
) -> Completion {
    let mut members: Vec<Descriptor> =
        (0..u64::from(d.size)).map(|index| memory.descriptor(d.source + index * 64)).collect();
    let fenced = |member: &Descriptor| member.flags_opcode & Flags::FENCE.0 != 0;
    // A member that fails without a word, and one that was abandoned because another faulted, must not look the same.
    let told = members.iter().all(is_told) || !members.iter().any(fenced);
    let faults = if told { faults } else { &Faults::None };
    let mut list_fault = None;
    if let Faults::Chance(share) = faults
        && random.one_of_a_million(share / 4)
    {
        // Pages of the list: 64 members each, counted from where the list lies in its first page.
        let first = (PAGE - d.source % PAGE) / 64;
        let pages = (members.len() as u64).saturating_sub(first).div_ceil(64);
        let page = random.below(pages + 1);
        let fetched = if page == 0 { 0 } else { first + (page - 1) * 64 };
        members.truncate(fetched as usize);
        list_fault = Some((fetched, d.source + fetched * 64));
    }
    let (mut failed, mut ran, mut from) = (false, 0, 0);
    while from < members.len() {
        let length = 1 + members[from + 1..].iter().position(fenced).unwrap_or(members.len() - from - 1);
        if fenced(&members[from]) && failed {
            members[from..].iter().for_each(|member| record(memory, member, ended(Status::ABANDONED)));
            break;
        }
        let mut order: Vec<usize> = (from..from + length).collect();
        for index in (1..if fortune.reorder { length } else { 0 }).rev() {
            order.swap(index, random.below(index as u64 + 1) as usize);
        }
        for index in order {
            let member = &members[index];
            let done = match refuse(member, true) {
                Some(status) => ended(status),
                None => some_work(memory, member, faults, random),
            };
            record(memory, member, done);
            ran += 1;
            failed = failed || done.status != Status::SUCCESS.0;
        }
        from += length;
    }
    match list_fault {
        Some((_, address)) => {
            Completion { bytes_completed: ran, fault_address: address, ..ended(Status::BATCH_LIST_FAULT) }
        }
        None => {
            let status = if failed { Status::BATCH_FAILED } else { Status::SUCCESS };
            Completion { bytes_completed: ran, ..ended(status) }
        }
    }
}

/// All of the work, or what comes before a page that faults.
fn some_work(
    memory: &mut impl Memory,
    d: &Descriptor,
    faults: &Faults<'_>,
    random: &mut Random,
) -> Completion {
    if d.flags().has(Flags::BLOCK_ON_FAULT) || !is_told(d) {
        return work(memory, d);
    }
    let stop = match faults {
        Faults::None => None,
        Faults::Chance(share) => random.one_of_a_million(*share).then(|| by_chance(d, random)).flatten(),
        Faults::Access(absent) => by_access(d, absent),
    };
    match stop {
        Some(stop) => part(memory, d, &stop),
        None => work(memory, d),
    }
}
