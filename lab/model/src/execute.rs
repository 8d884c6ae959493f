// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running one descriptor, or a batch of them.
//!
//! - **Flow** refused? ─▶ its status. Else the work, byte by byte ─▶ record, if one is wanted or something went wrong
//! - **Order** a fenced member that comes after a failed one is abandoned, with all behind it
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification. Naive on purpose: no word is moved where
//! a byte would do.

mod delta;

use crate::memory::Memory;
use crate::{naive, refuse};
use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};

/// A record that says only how it ended.
pub(crate) fn ended(status: Status) -> Completion {
    Completion { status: status.0, ..Completion::PENDING }
}

/// Runs one descriptor of a queue, members of a batch in their order; gives what its record says, wanted or not.
pub fn run(memory: &mut impl Memory, descriptor: &Descriptor) -> Completion {
    let done = perform(memory, descriptor, false);
    record(memory, descriptor, done);
    done
}

/// Runs one descriptor and writes no record; `in_batch`: as a member.
pub fn perform(memory: &mut impl Memory, descriptor: &Descriptor, in_batch: bool) -> Completion {
    match refuse::refuse(descriptor, in_batch) {
        Some(status) => ended(status),
        None if descriptor.opcode() == Opcode::BATCH => batch(memory, descriptor),
        None => work(memory, descriptor),
    }
}

fn batch(memory: &mut impl Memory, descriptor: &Descriptor) -> Completion {
    let (mut failed, mut abandoned, mut ran) = (false, false, 0);
    for index in 0..u64::from(descriptor.size) {
        let member = memory.descriptor(descriptor.source + index * 64);
        let fenced = member.flags_opcode & Flags::FENCE.0 != 0;
        abandoned = abandoned || (fenced && failed);
        if abandoned {
            record(memory, &member, ended(Status::ABANDONED));
            continue;
        }
        let done = match refuse::refuse(&member, true) {
            Some(status) => ended(status),
            None => work(memory, &member),
        };
        record(memory, &member, done);
        ran += 1;
        failed = failed || done.status != 1;
    }
    let status = if failed { Status::BATCH_FAILED } else { Status::SUCCESS };
    Completion { bytes_completed: ran, ..ended(status) }
}

/// The work of a descriptor that was not refused.
pub(crate) fn work(memory: &mut impl Memory, d: &Descriptor) -> Completion {
    let size = u64::from(d.size);
    let check = d.flags().has(Flags::CHECK_RESULT);
    let mut done = Completion { bytes_completed: d.size, ..ended(Status::SUCCESS) };
    match d.opcode() {
        Opcode::MEMMOVE => memory.copy(d.source, d.target, size),
        Opcode::FILL => {
            let wide = d.flags().has(Flags::FILL_16);
            for index in 0..size {
                let byte = if wide { index % 16 } else { index % 8 };
                let word = if byte < 8 { d.source } else { d.operation[0] };
                memory.set(d.target + index, (word >> (byte % 8 * 8)) as u8);
            }
        }
        Opcode::COMPARE | Opcode::COMPARE_PATTERN => {
            let pattern = d.opcode() == Opcode::COMPARE_PATTERN;
            let second = |index: u64| {
                if pattern { (d.target >> (index % 8 * 8)) as u8 } else { memory.byte(d.target + index) }
            };
            if let Some(index) = (0..size).find(|&index| memory.byte(d.source + index) != second(index)) {
                (done.result, done.bytes_completed) = (1, index as u32);
            }
            if check && u64::from(done.result) != d.operation[0] {
                done.status = Status::SUCCESS_PREDICATE.0;
            }
        }
        Opcode::DELTA_CREATE => {
            delta::create(memory, d, &mut done);
            if check && d.operation[2] >> done.result & 1 == 0 {
                done.status = Status::SUCCESS_PREDICATE.0;
            }
        }
        Opcode::DELTA_APPLY => return delta::apply(memory, d),
        Opcode::DUALCAST => {
            memory.copy(d.source, d.target, size);
            memory.copy(d.source, d.operation[0], size);
        }
        Opcode::CRC | Opcode::COPY_CRC => {
            if d.opcode() == Opcode::COPY_CRC {
                memory.copy(d.source, d.target, size);
            }
            done.value = u64::from(crc(memory, d));
        }
        _ => {}
    }
    done
}

fn crc(memory: &impl Memory, d: &Descriptor) -> u32 {
    let flags = d.flags();
    let seed = if flags.has(Flags::CRC_SEED_ADDRESS) {
        memory.number(d.operation[1], 4) as u32
    } else {
        d.operation[0] as u32
    };
    let (plain, straight) = (flags.has(Flags::CRC_BYPASS_INVERT), flags.has(Flags::CRC_BYPASS_REFLECT));
    naive::crc32c(&memory.bytes(d.source, u64::from(d.size)), seed, plain, straight)
}

/// Writes the record, if one is wanted or something went wrong.
pub(crate) fn record(memory: &mut impl Memory, d: &Descriptor, done: Completion) {
    let valid = d.flags().has(Flags::COMPLETION_VALID) && d.completion_address.is_multiple_of(32);
    if valid && (d.flags().has(Flags::REQUEST_COMPLETION) || done.status != Status::SUCCESS.0) {
        memory.settle(d.completion_address, &done);
    }
}
