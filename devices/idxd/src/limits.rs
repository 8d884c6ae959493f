// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of a queue, and the choice of the descriptors that it gets.
//!
//! - **Rule** a device only gets descriptors whose end it can report, within the queue's limits, and with every field valid. If an
//!   operation may have to be refused as a whole, it is not cut into parts that would be accepted.
//! - **Not here** refusals: what a device does not get, the CPU executes or refuses.

use crate::memory::has_record;
use crate::rest::{cut, is_repeatable, is_resumable};
use memlift_spec::limits::TRANSFER_BYTES_MAX;
use memlift_spec::{Descriptor, Flags, Opcode};

/// The limits of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub opcodes: [u64; 4],
    pub transfer_bytes_max: u64,
    pub batch_max: u32,
    pub blocks_on_fault: bool,
    pub cache_control: bool,
    pub overlap: bool,
}

impl Limits {
    pub fn supports(&self, opcode: Opcode) -> bool {
        self.opcodes[(opcode.0 >> 6) as usize] >> (opcode.0 & 63) & 1 == 1
    }

    /// Returns true if the device may get `submitted`. Invalid descriptors, and those whose end could not be observed, are left
    /// to the CPU.
    pub fn takes(&self, submitted: &Descriptor, in_batch: bool) -> bool {
        let (flags, opcode) = (submitted.flags(), submitted.opcode());
        let known = matches!(
            opcode,
            Opcode::NOOP
                | Opcode::DELTA_CREATE
                | Opcode::DELTA_APPLY
                | Opcode::TRANSLATION_FETCH
                | Opcode::CACHE_FLUSH
        ) || is_resumable(opcode);
        let has_result = matches!(
            opcode,
            Opcode::COMPARE | Opcode::COMPARE_PATTERN | Opcode::DELTA_CREATE | Opcode::CRC | Opcode::COPY_CRC
        );
        let requested = flags.has(Flags::REQUEST_COMPLETION);
        let silent = in_batch
            && !has_result
            && flags.0 & (Flags::COMPLETION_VALID.0 | Flags::REQUEST_COMPLETION.0) == 0;
        let told = has_record(submitted) && (requested || (in_batch && !has_result));
        let plain = submitted.pasid == 0 && submitted.reserved == 0 && submitted.interrupt_handle == 0;
        let odd = flags.has(Flags::REQUEST_INTERRUPT) || (!in_batch && flags.has(Flags::FENCE));
        let fits = u64::from(submitted.size) <= self.transfer_bytes_max
            || (self.transfer_bytes_max > 0 && is_resumable(opcode) && is_sound(submitted));
        let overlap = is_repeatable(submitted) || (self.overlap && !flags.has(Flags::STRICT_ORDER));
        let sized = submitted.size > 0 || opcode == Opcode::NOOP;
        known && self.supports(opcode) && (told || silent) && plain && !odd && fits && overlap && sized
    }

    /// Returns `part` in the form for the device: it always reports its end, in a record of ours.
    pub fn for_device(&self, part: &Descriptor, record: u64, fenced: bool) -> Descriptor {
        let mut piece = cut(part, self.transfer_bytes_max);
        piece.add_flags(Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
        let writes = matches!(
            part.opcode(),
            Opcode::MEMMOVE
                | Opcode::FILL
                | Opcode::COPY_CRC
                | Opcode::DUALCAST
                | Opcode::DELTA_CREATE
                | Opcode::DELTA_APPLY
        );
        // Removes hints that this queue does not support. For an opcode that has no such hints, the device refuses them.
        let waits = !self.blocks_on_fault && part.opcode() != Opcode::NOOP;
        for (drops, flag) in [
            (!fenced, Flags::FENCE),
            (waits, Flags::BLOCK_ON_FAULT),
            (!self.cache_control && writes, Flags::CACHE_CONTROL),
        ] {
            piece.flags_opcode &= if drops { !flag.0 } else { u32::MAX };
        }
        piece.completion_address = record;
        piece
    }
}

/// Returns true if cutting `submitted` into parts could not let through an operation that is refused as a whole.
fn is_sound(submitted: &Descriptor) -> bool {
    let size = u64::from(submitted.size);
    let (source, target) = (submitted.source, submitted.target);
    let ranges = match submitted.opcode() {
        Opcode::MEMMOVE | Opcode::COPY_CRC | Opcode::COMPARE => vec![source, target],
        Opcode::DUALCAST => vec![source, target, submitted.target2()],
        Opcode::FILL => vec![target],
        _ => vec![source],
    };
    let apart = |index: usize| ranges[index + 1..].iter().all(|other| other.abs_diff(ranges[index]) >= size);
    size <= u64::from(TRANSFER_BYTES_MAX)
        && ranges.iter().all(|range| range.checked_add(size).is_some())
        && (0..ranges.len()).all(apart)
}
