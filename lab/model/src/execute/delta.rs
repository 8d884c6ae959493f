// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delta records: where two buffers differ, 8 bytes at a time.
//!
//! - **Layout** an entry: u16 offset in 8-byte words · the second buffer's 8 bytes

use super::ended;
use crate::memory::Memory;
use memlift_spec::{Completion, Descriptor, Status};

pub(super) fn create(memory: &mut impl Memory, d: &Descriptor, done: &mut Completion) {
    let (record, room) = (d.operation[0], d.operation[1] & 0xffff_ffff);
    let mut used = 0;
    for word in 0..u64::from(d.size) / 8 {
        let (first, second) = (memory.number(d.source + word * 8, 8), memory.number(d.target + word * 8, 8));
        if first == second {
            continue;
        }
        if used + 10 > room {
            (done.result, done.value) = (2, used);
            return;
        }
        memory.put(record + used, &(word as u16).to_le_bytes());
        memory.put(record + used + 2, &second.to_le_bytes());
        used += 10;
    }
    (done.result, done.value) = (u8::from(used > 0), used);
}

pub(super) fn apply(memory: &mut impl Memory, d: &Descriptor) -> Completion {
    let mut next = 0;
    for entry in 0..(d.operation[0] & 0xffff_ffff) / 10 {
        let offset = memory.number(d.source + entry * 10, 2);
        let failed = |status| Completion { bytes_completed: entry as u32 * 10, ..ended(status) };
        if offset < next {
            return failed(Status::DELTA_ORDER);
        }
        if (offset + 1) * 8 > u64::from(d.size) {
            return failed(Status::DELTA_RANGE);
        }
        memory.copy(d.source + entry * 10 + 2, d.target + offset * 8, 8);
        next = offset + 1;
    }
    Completion { bytes_completed: d.size, ..ended(Status::SUCCESS) }
}
