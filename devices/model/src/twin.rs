// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The twin: the model as a backend that uses every freedom that hardware has. It reorders, and accesses fault, by seed.
//!
//! Flow     submit ─▶ bounded queue ─▶ `poll` takes one of those that may go ─▶ part of the work, and a record that says how much
//! Order    DRAIN goes when it is the oldest; else any of the queue may go. Members of a batch go in any order between two fences.
//!          A fault lies at a page of the source or of a target: what comes before it was done, the record's `bytes_completed`
//!          says how much, and the top bit of its status that the access was a write. A copy whose target overlaps its source from
//!          above goes backwards: its record's result is 1, and its end was done. A batch whose list faults has run its first members
//! Owner    as the model
//! Not here faults of operations that no hardware has, of descriptors that block on faults (flag), and of those whose record
//!          cannot be written: hardware tells nobody about these, so nobody could go on
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification, page faults and partial completion.

use crate::backend::{OPCODES, Process};
use crate::event::Random;
use crate::execute::{ended, record, work};
use crate::memory::Memory;
use crate::refuse::refuse;
use memlift_spec::{Backend, Busy, Capabilities, Completion, Descriptor, Flags, Opcode, Status};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const PAGE: u64 = 4096;

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Fortune {
    /// Of everything that chance decides.
    pub seed: u64,
    /// Of a million descriptors that could fault, how many do.
    pub faults: u64,
    /// Whether the order is changed where it may be.
    pub reorder: bool,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Descriptor>,
    random: Random,
}

/// See the module.
#[derive(Debug)]
pub struct Twin {
    queue: Mutex<Queue>,
    turn: Mutex<()>,
    depth: usize,
    fortune: Fortune,
}

impl Twin {
    /// A queue of `depth` descriptors (at least one).
    #[must_use]
    pub fn new(depth: usize, fortune: Fortune) -> Twin {
        let queue = Queue { waiting: VecDeque::new(), random: Random::new(fortune.seed) };
        Twin { queue: Mutex::new(queue), turn: Mutex::new(()), depth: depth.max(1), fortune }
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
        run(&mut Process, &descriptor, &self.fortune, &mut random);
        1
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        while self.poll() > 0 {}
    }
}

fn run(memory: &mut impl Memory, d: &Descriptor, fortune: &Fortune, random: &mut Random) {
    let done = match refuse(memory, d, false) {
        Some(status) => ended(status),
        None if d.opcode() == Opcode::BATCH => batch(memory, d, fortune, random),
        None => some_work(memory, d, fortune, random),
    };
    record(memory, d, done);
}

/// Whether everything that can happen to a member can be read from its record afterwards.
fn is_told(member: &Descriptor) -> bool {
    member.flags().has(Flags::COMPLETION_VALID) && member.completion_address.is_multiple_of(32)
}

fn batch(memory: &mut impl Memory, d: &Descriptor, fortune: &Fortune, random: &mut Random) -> Completion {
    let mut members: Vec<Descriptor> =
        (0..u64::from(d.size)).map(|index| memory.descriptor(d.source + index * 64)).collect();
    let fenced = |member: &Descriptor| member.flags_opcode & Flags::FENCE.0 != 0;
    // A member that fails without a word, and one that was abandoned because another faulted, must not look the same.
    let calm = Fortune { faults: 0, ..*fortune };
    let told = members.iter().all(is_told) || !members.iter().any(fenced);
    let fortune = if told { fortune } else { &calm };
    let mut list_fault = None;
    if random.one_of_a_million(fortune.faults / 4) {
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
            let done = match refuse(memory, member, true) {
                Some(status) => ended(status),
                None => some_work(memory, member, fortune, random),
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

/// What an operation accesses, and whether it writes there.
fn operands(d: &Descriptor) -> Vec<(u64, bool)> {
    match d.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC => vec![(d.source, false), (d.target, true)],
        Opcode::FILL => vec![(d.target, true)],
        Opcode::COMPARE => vec![(d.source, false), (d.target, false)],
        Opcode::COMPARE_PATTERN | Opcode::CRC => vec![(d.source, false)],
        Opcode::DUALCAST => vec![(d.source, false), (d.target, true), (d.target2(), true)],
        _ => Vec::new(),
    }
}

/// All of the work, or what comes before a page that faults.
fn some_work(memory: &mut impl Memory, d: &Descriptor, fortune: &Fortune, random: &mut Random) -> Completion {
    let (size, blocks) = (u64::from(d.size), d.flags().has(Flags::BLOCK_ON_FAULT));
    let places = operands(d);
    if places.is_empty() || blocks || !is_told(d) || !random.one_of_a_million(fortune.faults) {
        return work(memory, d);
    }
    let (address, write) = places[random.below(places.len() as u64) as usize];
    let backward = d.opcode() == Opcode::MEMMOVE && d.target > d.source && d.target < d.source + size;
    // Pages that it touches, in its direction; the first one may be there in part.
    let (first, last) = (address / PAGE, (address + size - 1) / PAGE);
    let page = first + random.below(last - first + 1);
    let (done_bytes, fault_address) = if backward {
        ((address + size).saturating_sub((page + 1) * PAGE).min(size), (page * PAGE).max(address))
    } else {
        ((page * PAGE).saturating_sub(address), (page * PAGE).max(address))
    };
    let mut part = *d;
    part.size = done_bytes as u32;
    if backward {
        (part.source, part.target) = (d.source + size - done_bytes, d.target + size - done_bytes);
    }
    let mut done = if done_bytes > 0 { work(memory, &part) } else { unchanged(memory, d) };
    if done.result != 0 {
        // A comparison that ended before it came to the page.
        return done;
    }
    done.status = Status::PAGE_FAULT.0 | if write { Status::FAULT_WAS_WRITE } else { 0 };
    (done.bytes_completed, done.fault_address, done.result) = (part.size, fault_address, u8::from(backward));
    done
}

/// The record of an operation that has done nothing: a checksum is still its seed.
fn unchanged(memory: &impl Memory, d: &Descriptor) -> Completion {
    let mut done = ended(Status::PAGE_FAULT);
    if matches!(d.opcode(), Opcode::CRC | Opcode::COPY_CRC) {
        done.value = match d.flags().has(Flags::CRC_SEED_ADDRESS) {
            true => memory.number(d.crc_seed_address(), 4),
            false => u64::from(d.crc_seed()),
        };
    }
    done
}
