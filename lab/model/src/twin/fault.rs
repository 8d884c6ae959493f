// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where an operation stops because a page is not there, and the part of it that comes before.
//!
//! - **Flow** what it accesses ([`operands`]) ─▶ a page that chance picks, or the first that really cannot be accessed ─▶ bytes before it
//!   ─▶ [`part`]: that much work, and the record that says so
//! - **Rule** all operands advance together: whichever meets its page first stops them all. A copy whose target overlaps its source from
//!   above goes from its end
//! - **Source** Intel Data Streaming Accelerator Architecture Specification, page faults and partial completion

use crate::event::Random;
use crate::execute::{ended, work};
use crate::memory::Memory;
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

pub(super) const PAGE: u64 = 4096;

/// Says of a page (by an address in it) and a direction (`true`: written) whether that access would fault.
pub type Absent = dyn Fn(u64, bool) -> bool + Send + Sync;

/// Where an operation stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stop {
    address: u64,
    write: bool,
    /// Bytes of the operand before it, in the operation's direction.
    before: u64,
    operand: usize,
}

/// A range that an operation accesses.
struct Operand {
    address: u64,
    bytes: u64,
    write: bool,
}

fn operands(d: &Descriptor) -> Vec<Operand> {
    let size = u64::from(d.size);
    let read = |address| Operand { address, bytes: size, write: false };
    let written = |address| Operand { address, bytes: size, write: true };
    match d.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC => vec![read(d.source), written(d.target)],
        Opcode::FILL => vec![written(d.target)],
        Opcode::COMPARE => vec![read(d.source), read(d.target)],
        Opcode::COMPARE_PATTERN | Opcode::CRC => vec![read(d.source)],
        Opcode::DUALCAST => vec![read(d.source), written(d.target), written(d.target2())],
        Opcode::DELTA_CREATE => {
            let room = u64::from(d.delta_bytes_max());
            vec![read(d.source), read(d.target), Operand { bytes: room, ..written(d.delta_address()) }]
        }
        Opcode::DELTA_APPLY => {
            let record = Operand { bytes: u64::from(d.delta_record_bytes()), ..read(d.source) };
            vec![record, written(d.target)]
        }
        _ => Vec::new(),
    }
}

fn goes_backward(d: &Descriptor) -> bool {
    d.opcode() == Opcode::MEMMOVE && d.target > d.source && d.target < d.source + u64::from(d.size)
}

/// The stop of operand number `operand` at the page with number `page`.
fn at(d: &Descriptor, operand: usize, of: &Operand, page: u64) -> Stop {
    let (start, end) = (of.address, of.address + of.bytes);
    let before = match goes_backward(d) {
        true => end.saturating_sub((page + 1) * PAGE).min(of.bytes),
        false => (page * PAGE).saturating_sub(start),
    };
    Stop { address: (page * PAGE).max(start), write: of.write, before, operand }
}

/// A page that chance picks; `None` for operations that do not fault.
pub(super) fn by_chance(d: &Descriptor, random: &mut Random) -> Option<Stop> {
    let operands = operands(d);
    let operand = random.below(operands.len() as u64) as usize;
    let of = operands.get(operand)?;
    let (first, last) = (of.address / PAGE, (of.address + of.bytes - 1) / PAGE);
    Some(at(d, operand, of, first + random.below(last - first + 1)))
}

/// The first page that really cannot be accessed.
pub(super) fn by_access(d: &Descriptor, absent: impl Fn(u64, bool) -> bool) -> Option<Stop> {
    let mut stops = Vec::new();
    for (operand, of) in operands(d).iter().enumerate() {
        let pages = of.address / PAGE..=(of.address + of.bytes - 1) / PAGE;
        stops.extend(
            pages.map(|page| at(d, operand, of, page)).filter(|stop| absent(stop.address, stop.write)),
        );
    }
    let first = stops.into_iter().min_by_key(|stop| stop.before)?;
    // The accesses of a delta depend on its bytes, which may not be looked at: it stops before its first.
    let delta = matches!(d.opcode(), Opcode::DELTA_CREATE | Opcode::DELTA_APPLY);
    Some(if delta { Stop { before: 0, operand: 0, ..first } } else { first })
}

/// Does the part before `stop` and writes its record. An operation that ends before that point ends as it would have.
pub(super) fn part(memory: &mut impl Memory, d: &Descriptor, stop: &Stop) -> Completion {
    match d.opcode() {
        Opcode::DELTA_CREATE => return part_of_create(memory, d, stop),
        Opcode::DELTA_APPLY => return part_of_apply(memory, d, stop),
        _ => {}
    }
    let backward = goes_backward(d);
    let size = u64::from(d.size);
    let mut part = *d;
    part.size = stop.before as u32;
    if backward {
        (part.source, part.target) = (d.source + size - stop.before, d.target + size - stop.before);
    }
    let mut done = if part.size > 0 { work(memory, &part) } else { unchanged(memory, d) };
    if done.result != 0 {
        // A comparison that ended before it came to the page.
        return done;
    }
    done.result = u8::from(backward);
    faulted(done, part.size, stop)
}

fn faulted(done: Completion, bytes_completed: u32, stop: &Stop) -> Completion {
    let status = Status::PAGE_FAULT.0 | if stop.write { Status::FAULT_WAS_WRITE } else { 0 };
    Completion { status, bytes_completed, fault_address: stop.address, ..done }
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

/// Words are compared up to the page; a record whose next entry would touch it ends before that entry.
fn part_of_create(memory: &mut impl Memory, d: &Descriptor, stop: &Stop) -> Completion {
    let words = u64::from(d.size) / 8;
    let reached = if stop.operand < 2 {
        stop.before / 8
    } else {
        let word_of = |start: u64, word: u64| memory.number(start + word * 8, 8);
        let mut used = 0;
        let crosses = |&word: &u64| {
            used += if word_of(d.source, word) == word_of(d.target, word) { 0 } else { 10 };
            used > stop.before
        };
        (0..words).find(crosses).unwrap_or(words)
    };
    let mut part = *d;
    part.size = (reached * 8) as u32;
    part.flags_opcode &= !Flags::CHECK_RESULT.0;
    let done = work(memory, &part);
    if reached == words || done.result == 2 {
        return work(memory, d);
    }
    faulted(Completion { result: 0, ..done }, part.size, stop)
}

/// Entries are applied up to the one that touches the page.
fn part_of_apply(memory: &mut impl Memory, d: &Descriptor, stop: &Stop) -> Completion {
    let entries = u64::from(d.delta_record_bytes()) / 10;
    let page = stop.address / PAGE;
    let touches = |entry: u64| match stop.operand {
        0 => (entry + 1) * 10 > stop.before,
        _ => (d.target + memory.number(d.source + entry * 10, 2) * 8) / PAGE == page,
    };
    let reached = (0..entries).find(|&entry| touches(entry)).unwrap_or(entries);
    let mut part = *d;
    part.operation[0] = reached * 10;
    let done = if reached > 0 { work(memory, &part) } else { ended(Status::SUCCESS) };
    if reached == entries || done.status != Status::SUCCESS.0 {
        return if reached == entries { work(memory, d) } else { done };
    }
    faulted(done, (reached * 10) as u32, stop)
}
