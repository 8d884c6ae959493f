// SPDX-License-Identifier: Apache-2.0 OR MIT
//! LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET in software.
//!
//! - **Flow** operand block ──▶ the kernel of the opcode ──▶ fence, if the block asks for one ──▶ `Completion`
//! - **Order** for a single descriptor, or a batch as a whole, the executor fences before the record (`execute`); a member
//!   that does not ask for a fence is durable with its batch
//! - **Failure** a bad record gives an error status, and nothing was stored. The only exception is a log that another
//!   process changes between check and store: then TORN_RECORD may come after some entries were stored.

use super::record;
use memlift_kernels::persist::{self, Fault};
use memlift_spec::operand::log::PAGE_BYTES;
use memlift_spec::operand::{HINT_CHECKSUM, HINT_STORE_FENCE, HINT_WRITE_BACK};
use memlift_spec::{
    AppendBlock, ApplyBlock, Completion, Descriptor, Opcode, PageCopyBlock, ResetBlock, Status,
};
use std::ptr;

/// Returns true if `opcode` is one of the four, whose fence is left to the caller.
pub(super) fn leaves_fence(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::LOG_APPEND | Opcode::LOG_APPLY | Opcode::PAGE_COPY | Opcode::LOG_RESET)
}

/// Returns the status for a record that was not applied.
fn refused(fault: Fault) -> Status {
    match fault {
        Fault::Position { .. } => Status::STALE_RECORD,
        Fault::Entry { .. } | Fault::Bounds { .. } | Fault::Kind { .. } => Status::RECORD_RANGE,
        _ => Status::TORN_RECORD,
    }
}

/// # Safety
///
/// Validation accepted the block, so it is aligned, and the submitter promises that its memory is readable.
unsafe fn block<T: Copy>(descriptor: &Descriptor) -> T {
    let block = ptr::with_exposed_provenance::<T>(descriptor.operand_address() as usize);
    // SAFETY: validation found the block aligned, and the submitter promises that its `size_of::<T>()` bytes are
    // readable.
    unsafe { block.read() }
}

/// Runs a validated descriptor of one of the four opcodes.
///
/// # Safety
///
/// The descriptor's addresses are valid for their use, and so is the heap whose size is in the block.
pub(super) unsafe fn run(descriptor: &Descriptor) -> Completion {
    let bytes = descriptor.size as usize;
    let source = ptr::with_exposed_provenance_mut::<u8>(descriptor.source as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(descriptor.target as usize);
    let mut done = Completion { bytes_completed: descriptor.size, ..record::ended(Status::SUCCESS) };
    // SAFETY: for every call below: the caller promises the ranges; validation checked sizes and alignment, and that
    // ranges do not overlap if the kernel forbids it.
    let hints = unsafe {
        match descriptor.opcode() {
            Opcode::LOG_APPEND => {
                let AppendBlock { salt, hints, .. } = block(descriptor);
                done.value = u64::from(persist::append(target, source, bytes, salt));
                hints
            }
            Opcode::LOG_APPLY => {
                let ApplyBlock { salt, hints, position, heap_bytes, .. } = block(descriptor);
                let write_back = hints & HINT_WRITE_BACK != 0;
                match persist::apply(source, bytes, salt, position, target, heap_bytes, write_back) {
                    Ok(applied) => {
                        done.bytes_completed = applied.data_bytes as u32;
                        (done.value, done.value2) = (applied.sequence, applied.record_bytes as u64);
                    }
                    Err(fault) => done = record::ended(refused(fault)),
                }
                hints
            }
            Opcode::PAGE_COPY => {
                let PageCopyBlock { salt, hints, lines, .. } = block(descriptor);
                if hints & HINT_CHECKSUM != 0 {
                    done.value = u64::from(persist::copy_lines_crc(target, source, lines, salt));
                } else {
                    persist::copy_lines(target, source, lines);
                }
                done.bytes_completed = (PAGE_BYTES / 64) as u32 * lines.count_ones();
                hints
            }
            _ => {
                let ResetBlock { head, .. } = block(descriptor);
                persist::nt_copy(target, head.as_ptr(), head.len());
                HINT_STORE_FENCE
            }
        }
    };
    if hints & HINT_STORE_FENCE != 0 {
        persist::fence();
    }
    done
}
