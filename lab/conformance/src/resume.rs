// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Does the rest of an operation after a fault: from then on a run with faults must have the same bytes and records as one without.
//!
//! - **Flow** records of a queue after the flight ─▶ a fault's own promises are checked ([`finish`]) ─▶ the rest is run by the model on
//!   the arena's bytes ─▶ members that were abandoned because of it, or never fetched, are run ─▶ records as without a fault
//! - **Order** members in the batch's order; a fenced one behind a failure that is none of the fault's stays abandoned
//! - **Rule** after a fault only [0, bytes_completed) counts, or as many bytes at the end of a copy that went backwards
//!   Deltas are done again from their start: offsets in a record that goes on would count from another place
//! - **Not here** how an engine goes on: this is the oracle for that, and shares nothing with it

use memlift_model::{Image, Memory, perform};
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

const PAGE: u64 = 4096;

fn record_of(image: &Image<'_>, d: &Descriptor) -> Completion {
    let at = d.completion_address;
    Completion {
        status: image.byte(at),
        result: image.byte(at + 1),
        fault_info: image.byte(at + 2),
        bytes_completed: image.number(at + 4, 4) as u32,
        fault_address: image.number(at + 8, 8),
        value: image.number(at + 16, 8),
        value2: image.number(at + 24, 8),
        ..Completion::PENDING
    }
}

fn is_told(d: &Descriptor) -> bool {
    d.flags().has(Flags::COMPLETION_VALID) && d.completion_address.is_multiple_of(32)
}

/// The record that there would be without the fault.
fn record(image: &mut Image<'_>, d: &Descriptor, done: &Completion) {
    if !is_told(d) {
        return;
    }
    if d.flags().has(Flags::REQUEST_COMPLETION) || done.status != Status::SUCCESS.0 {
        image.settle(d.completion_address, done);
    } else {
        image.put(d.completion_address, &[0; 32]);
    }
}

/// Operands, and whether each is written.
fn operands(d: &Descriptor) -> Vec<(u64, bool)> {
    let (source, target) = ((d.source, false), (d.target, true));
    match d.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC => vec![source, target],
        Opcode::FILL => vec![target],
        Opcode::COMPARE => vec![source, (d.target, false)],
        Opcode::COMPARE_PATTERN | Opcode::CRC => vec![source],
        Opcode::DUALCAST => vec![source, target, (d.target2(), true)],
        _ => Vec::new(),
    }
}

/// `pattern` as it goes on after `bytes` of it.
fn turned(pattern: u64, bytes: u64) -> u64 {
    pattern.rotate_right((bytes % 8 * 8) as u32)
}

/// The descriptor of what is left, and the place of its first byte in the operands.
fn rest_of(d: &Descriptor, stopped: &Completion) -> (Descriptor, u64) {
    let (size, done) = (u64::from(d.size), u64::from(stopped.bytes_completed));
    let mut rest = *d;
    rest.size = d.size - stopped.bytes_completed;
    if d.opcode() == Opcode::MEMMOVE && stopped.result == 1 {
        return (rest, size - done - 1);
    }
    match d.opcode() {
        Opcode::FILL => rest.target += done,
        _ => rest.source += done,
    }
    match d.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC | Opcode::COMPARE | Opcode::DUALCAST => rest.target += done,
        Opcode::COMPARE_PATTERN => rest.target = turned(d.target, done),
        Opcode::FILL if d.flags().has(Flags::FILL_16) => {
            let both = u128::from(d.source) | u128::from(d.operation[0]) << 64;
            let both = both.rotate_right((done % 16 * 8) as u32);
            (rest.source, rest.operation[0]) = (both as u64, (both >> 64) as u64);
        }
        Opcode::FILL => rest.source = turned(d.source, done),
        _ => {}
    }
    match d.opcode() {
        Opcode::DUALCAST => rest.operation[0] += done,
        Opcode::CRC | Opcode::COPY_CRC => {
            rest.flags_opcode &= !Flags::CRC_SEED_ADDRESS.0;
            (rest.operation[0], rest.operation[1]) = (stopped.value & u64::from(u32::MAX), 0);
        }
        _ => {}
    }
    (rest, done)
}

/// Checks what a fault's record says, and does the rest of `d`.
fn finish(image: &mut Image<'_>, d: &Descriptor, in_batch: bool) -> Result<Completion, String> {
    let stopped = record_of(image, d);
    let wrong = |what: &str| Err(format!("{what}: {stopped:x?} of {d:x?}"));
    let whole = if d.opcode() == Opcode::DELTA_APPLY { d.delta_record_bytes() } else { d.size };
    if stopped.bytes_completed >= whole {
        return wrong("a fault after everything was done");
    }
    if d.flags().has(Flags::BLOCK_ON_FAULT) {
        return wrong("a fault of a descriptor that blocks on faults");
    }
    if matches!(d.opcode(), Opcode::DELTA_CREATE | Opcode::DELTA_APPLY) {
        // The part that was done is done again, with the same result.
        return Ok(perform(image, d, in_batch));
    }
    let (rest, place) = rest_of(d, &stopped);
    let write = stopped.status & Status::FAULT_WAS_WRITE != 0;
    let there = |&(address, writes): &(u64, bool)| {
        writes == write && (address + place) / PAGE == stopped.fault_address / PAGE
    };
    if !operands(d).iter().any(there) {
        return wrong("a fault at a page that it was not about to access");
    }
    let done = perform(image, &rest, in_batch);
    if !done.status().is_success() {
        return wrong("what was left is refused");
    }
    let ended_early = matches!(d.opcode(), Opcode::COMPARE | Opcode::COMPARE_PATTERN) && done.result == 1;
    let bytes_completed = if ended_early { stopped.bytes_completed + done.bytes_completed } else { d.size };
    Ok(Completion { bytes_completed, ..done })
}

/// Does what faults left of `d`, a descriptor of the queue, in the arena's bytes after the flight.
///
/// # Errors
/// A record that promises what it does not hold.
pub(crate) fn resume(image: &mut Image<'_>, d: &Descriptor) -> Result<(), String> {
    let stopped = record_of(image, d);
    let code = stopped.status().code();
    if d.opcode() != Opcode::BATCH {
        if code == Status::PAGE_FAULT.0 {
            let done = finish(image, d, false)?;
            record(image, d, &done);
        }
        return Ok(());
    }
    let members: Vec<Descriptor> = match Status(code) {
        Status::BATCH_FAILED | Status::BATCH_LIST_FAULT => {
            (0..u64::from(d.size)).map(|index| image.descriptor(d.source + index * 64)).collect()
        }
        _ => return Ok(()),
    };
    let fetched = match Status(code) {
        Status::BATCH_LIST_FAULT => {
            let offset = stopped.fault_address.checked_sub(d.source).filter(|offset| offset % 64 == 0);
            match offset.map(|offset| offset / 64).filter(|&index| index < members.len() as u64) {
                Some(index) if u64::from(stopped.bytes_completed) <= index => index as usize,
                _ => return Err(format!("a fault outside of the list: {stopped:x?} of {d:x?}")),
            }
        }
        _ => members.len(),
    };
    let status = |image: &Image<'_>, member: &Descriptor| {
        if is_told(member) { record_of(image, member).status().code() } else { 0 }
    };
    let faulted = members[..fetched].iter().any(|member| status(image, member) == Status::PAGE_FAULT.0);
    if !faulted && fetched == members.len() {
        return Ok(());
    }
    let (mut failed, mut ran) = (false, 0);
    for (index, member) in members.iter().enumerate() {
        if failed && member.flags_opcode & Flags::FENCE.0 != 0 {
            let abandoned = Completion { status: Status::ABANDONED.0, ..Completion::PENDING };
            members[index..].iter().for_each(|member| record(image, member, &abandoned));
            break;
        }
        ran += 1;
        let done = match Status(status(image, member)) {
            Status::PAGE_FAULT => finish(image, member, true)?,
            // Abandoned because of a fault, or not fetched.
            Status::ABANDONED => perform(image, member, true),
            _ if index >= fetched => perform(image, member, true),
            // It ran: what it said stands, and silence is success; the twin keeps to members that can be told apart.
            Status(0) => continue,
            _ => {
                failed = failed || record_of(image, member).status != Status::SUCCESS.0;
                continue;
            }
        };
        failed = failed || done.status != Status::SUCCESS.0;
        record(image, member, &done);
    }
    let status = if failed { Status::BATCH_FAILED } else { Status::SUCCESS };
    // A member without a record that failed: only the batch knows, and only a batch without fences has such members.
    let silent = members.iter().any(|member| {
        !is_told(member)
            && memlift_model::perform(&mut Untouched(image), member, true).status != Status::SUCCESS.0
    });
    let status = if silent { Status::BATCH_FAILED } else { status };
    record(image, d, &Completion { status: status.0, bytes_completed: ran, ..Completion::PENDING });
    Ok(())
}

/// Memory that can be read: what is written is dropped.
struct Untouched<'a, 'b>(&'a Image<'b>);

impl Memory for Untouched<'_, '_> {
    fn byte(&self, address: u64) -> u8 {
        self.0.byte(address)
    }

    fn set(&mut self, _: u64, _: u8) {}
}
