// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refusing SEAL, OPEN, PACK and UNPACK.
//!
//! Order   reserved words ─▶ block's address ─▶ its opcode, version, size ─▶ its reserved fields and hints ─▶ key size, or
//!         format and effort ─▶ sizes ─▶ overlaps

use crate::memory::Memory;
use memlift_spec::{Descriptor, Opcode, Status};

/// What every block that starts with opcode, version and size is refused for first.
pub(super) fn block(memory: &impl Memory, d: &Descriptor, block_bytes: u64) -> Option<Status> {
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

pub(super) fn seal(memory: &impl Memory, d: &Descriptor) -> Option<Status> {
    if let Some(status) = block(memory, d, 128) {
        return Some(status);
    }
    let block = d.operation[0];
    let field = |offset: u64, bytes| memory.number(block + offset, bytes);
    let clean = (80..128).step_by(8).all(|offset| field(offset, 8) == 0) && field(4, 4) == 0;
    if !clean || field(60, 4) > 1 || (field(20, 4) == 0 && field(24, 8) != 0) {
        return Some(Status::BAD_RESERVED);
    }
    let (key, key_bytes, aad, aad_bytes) = (field(8, 8), field(16, 4), field(32, 8), field(40, 8));
    if key_bytes != 16 && key_bytes != 32 {
        return Some(Status::BAD_KEY_SIZE);
    }
    let size = u64::from(d.size);
    if size > 1 << 31 || aad_bytes > 1 << 31 {
        return Some(Status::BAD_SIZE);
    }
    let overlap = |x: u64, xn: u64, y: u64, yn: u64| x < y + yn && y < x + xn;
    let touched = [(block, 128), (key, key_bytes), (aad, aad_bytes)]
        .into_iter()
        .any(|(start, bytes)| overlap(start, bytes, d.target, size));
    let shifted = d.source != d.target && overlap(d.source, size, d.target, size);
    (touched || shifted).then_some(Status::OVERLAP)
}

pub(super) fn pack(memory: &impl Memory, d: &Descriptor) -> Option<Status> {
    if let Some(status) = block(memory, d, 64) {
        return Some(status);
    }
    let block = d.operation[0];
    let field = |offset: u64, bytes| memory.number(block + offset, bytes);
    let unpacks = d.opcode() == Opcode::UNPACK;
    let clean = (24..64).step_by(8).all(|offset| field(offset, 8) == 0);
    let zero = field(4, 4) == 0 && field(10, 2) == 0;
    if !clean || !zero || field(12, 4) > 1 || (unpacks && field(9, 1) != 0) {
        return Some(Status::BAD_RESERVED);
    }
    if field(8, 1) > 5 || field(9, 1) > 2 {
        return Some(Status::BAD_FORMAT);
    }
    let (size, capacity) = (u64::from(d.size), field(16, 8));
    if size > 1 << 31 || capacity > 1 << 31 || (unpacks && size == 0) {
        return Some(Status::BAD_SIZE);
    }
    let overlap = |x: u64, xn: u64| x < d.target + capacity && d.target < x + xn;
    (overlap(block, 64) || overlap(d.source, size)).then_some(Status::OVERLAP)
}
