// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refusing LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET.
//!
//! - **Order** reserved words ─▶ block's address ─▶ its opcode, version, size ─▶ its reserved fields, salt and hints ─▶ sizes
//!   ─▶ alignment ─▶ overlaps

use crate::memory::Memory;
use memlift_spec::{Descriptor, Opcode, Status};

/// Refuses a descriptor whose operand block does not start with opcode, version and size.
fn block(memory: &impl Memory, d: &Descriptor, block_bytes: u64) -> Option<Status> {
    let [block, b, c] = d.operation;
    if (b | c) != 0 {
        return Some(Status::BAD_RESERVED);
    }
    if block == 0 || block % 64 != 0 {
        return Some(Status::ADDRESS_ALIGN);
    }
    let header = u64::from(d.opcode().0) | 1 << 8 | block_bytes << 16;
    (memory.number(block, 4) != header).then_some(Status::BAD_OPERAND)
}

pub(super) fn persist(memory: &impl Memory, d: &Descriptor) -> Option<Status> {
    let block_bytes = if d.opcode() == Opcode::LOG_RESET { 128 } else { 64 };
    if let Some(status) = block(memory, d, block_bytes) {
        return Some(status);
    }
    let (at, size) = (d.operation[0], u64::from(d.size));
    let number = |offset: u64, bytes| memory.number(at + offset, bytes);
    let (salt, hints) = (number(8, 4), number(12, 4));
    // Known hints, the start of the reserved words, and the use of a salt.
    let (known, reserved_from, salted) = match d.opcode() {
        Opcode::LOG_APPEND => (2, 16, true),
        Opcode::LOG_APPLY => (2 | 4, 32, true),
        Opcode::PAGE_COPY => (2 | 8, 24, hints & 8 != 0),
        _ => (2, 16, false),
    };
    let clean = (reserved_from..64).step_by(8).all(|offset| number(offset, 8) == 0) && number(4, 4) == 0;
    let sourceless = d.opcode() == Opcode::LOG_RESET;
    if !clean || hints & !known != 0 || (!salted && salt != 0) || (sourceless && d.source != 0) {
        return Some(Status::BAD_RESERVED);
    }
    // Bytes read at the source, bytes written at the target, and of which sizes there are any.
    let (read, written, possible) = match d.opcode() {
        Opcode::LOG_APPEND => (size, size, size % 64 == 0),
        Opcode::LOG_APPLY => (size, number(24, 8), true),
        Opcode::PAGE_COPY => (size, size, size == 4096),
        _ => (0, size, size == 64),
    };
    let wraps = d.source.checked_add(read).is_none() || d.target.checked_add(written).is_none();
    if size == 0 || size > 1 << 31 || !possible || wraps {
        return Some(Status::BAD_SIZE);
    }
    let source_align = if d.opcode() == Opcode::PAGE_COPY { 64 } else { 8 };
    if !d.source.is_multiple_of(source_align) || !d.target.is_multiple_of(64) {
        return Some(Status::ADDRESS_ALIGN);
    }
    let overlap = |x: u64, xn: u64, y: u64, yn: u64| x < y + yn && y < x + xn;
    let both = d.opcode() != Opcode::LOG_APPLY && overlap(d.source, read, d.target, written);
    // LOG_APPEND writes to its source, too.
    let source_block = d.opcode() == Opcode::LOG_APPEND && overlap(at, block_bytes, d.source, read);
    (both || source_block || overlap(at, block_bytes, d.target, written)).then_some(Status::OVERLAP)
}
