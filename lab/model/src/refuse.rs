// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status that a descriptor ends with instead of running.
//!
//! - **Order** opcode ─▶ flags ─▶ privilege, interrupt, reserved fields ─▶ record's alignment ─▶ the operation's own fields:
//!   reserved ─▶ size ─▶ alignment ─▶ overlap. The first that fails gives the status
//!
//! Source: Intel Data Streaming Accelerator Architecture Specification.

use memlift_spec::{Descriptor, Flags, Opcode, Status};

/// The status that a descriptor ends with instead of running.
pub(crate) fn refuse(d: &Descriptor, in_batch: bool) -> Option<Status> {
    let flags = d.flags_opcode & 0x00ff_ffff;
    let opcode = d.opcode();
    let known: u32 = match opcode {
        Opcode::NOOP => 0x103c,
        Opcode::BATCH if !in_batch => 0x123c,
        Opcode::DRAIN if !in_batch => 0x163c,
        Opcode::MEMMOVE | Opcode::DELTA_APPLY => 0xff3e,
        Opcode::FILL => 0x4_ff3e,
        Opcode::COMPARE | Opcode::COMPARE_PATTERN => 0x1ebe,
        Opcode::DELTA_CREATE => 0xffbe,
        Opcode::DUALCAST => 0x1_ff3e,
        Opcode::TRANSLATION_FETCH | Opcode::CACHE_FLUSH => 0x1f3e,
        Opcode::CRC => 0x7_1e3e,
        Opcode::COPY_CRC => 0x7_ff3e,
        _ => return Some(Status::BAD_OPCODE),
    };
    let known = if in_batch { known | 1 } else { known };
    let (valid, requested) = (flags & 4 != 0, flags & 8 != 0);
    let result = [0x05, 0x06, 0x07, 0x10, 0x11].contains(&opcode.0);
    if flags & !known != 0 || (requested && !valid) || (result && !requested) {
        return Some(Status::BAD_FLAGS);
    }
    if d.pasid >> 31 == 1 {
        return Some(Status::BAD_PRIVILEGE);
    }
    if flags & 0x10 != 0 {
        return Some(Status::BAD_INTERRUPT);
    }
    if d.pasid >> 20 != 0 || d.reserved != 0 || d.interrupt_handle != 0 {
        return Some(Status::BAD_RESERVED);
    }
    if valid && !d.completion_address.is_multiple_of(32) {
        return Some(Status::COMPLETION_ALIGN);
    }
    fields(d, flags)
}

fn fields(d: &Descriptor, flags: u32) -> Option<Status> {
    let [a, b, c] = d.operation;
    let (low, high) = (a & 0xffff_ffff, a >> 32);
    let size = u64::from(d.size);
    let (source, target) = (d.source, d.target);
    let reserved = |dirty: bool| dirty.then_some(Status::BAD_RESERVED);
    let sized = |most: u64| (size == 0 || size > most).then_some(Status::BAD_SIZE);
    let misaligned = |address: u64, to: u64, status| (!address.is_multiple_of(to)).then_some(status);
    let overlap = |x: u64, xn: u64, y: u64, yn: u64| (x < y + yn && y < x + xn).then_some(Status::OVERLAP);
    let most = 1 << 31;
    match d.opcode() {
        Opcode::NOOP | Opcode::DRAIN => reserved((source | target | size | a | b | c) != 0),
        Opcode::BATCH => reserved((target | a | b | c) != 0)
            .or((!(2..=1024).contains(&size)).then_some(Status::BAD_COUNT))
            .or(misaligned(source, 64, Status::LIST_ALIGN)),
        Opcode::MEMMOVE => reserved((a | b | c) != 0).or(sized(most)).or_else(|| {
            (flags & Flags::STRICT_ORDER.0 != 0 && target > source && target < source + size)
                .then_some(Status::OVERLAP)
        }),
        Opcode::FILL => {
            let upper = if flags & Flags::FILL_16.0 != 0 { 0 } else { a };
            reserved((upper | b | c) != 0).or(sized(most))
        }
        Opcode::COMPARE | Opcode::COMPARE_PATTERN => reserved((a >> 1 | b | c) != 0).or(sized(most)),
        Opcode::DELTA_CREATE => {
            let (record, room) = (a, b & 0xffff_ffff);
            reserved(b >> 32 != 0 || c > 7)
                .or(sized(512 * 1024))
                .or((size % 8 != 0).then_some(Status::BAD_SIZE))
                .or((room % 10 != 0 || room < 80).then_some(Status::BAD_DELTA_SIZE))
                .or(misaligned(source | target | record, 8, Status::ADDRESS_ALIGN))
                .or(overlap(record, room, source, size))
                .or(overlap(record, room, target, size))
        }
        Opcode::DELTA_APPLY => reserved(high != 0 || (b | c) != 0)
            .or(sized(512 * 1024))
            .or((size % 8 != 0).then_some(Status::BAD_SIZE))
            .or((low % 10 != 0 || low == 0 || low > most).then_some(Status::BAD_DELTA_SIZE))
            .or(misaligned(source | target, 8, Status::ADDRESS_ALIGN))
            .or(overlap(source, low, target, size)),
        Opcode::DUALCAST => reserved((b | c) != 0)
            .or(sized(most))
            .or(((target ^ a) % 4096 != 0).then_some(Status::DUALCAST_ALIGN))
            .or(overlap(source, size, target, size))
            .or(overlap(source, size, a, size))
            .or(overlap(target, size, a, size)),
        Opcode::TRANSLATION_FETCH => reserved((target | a | b >> 32 | c) != 0).or(sized(most)),
        Opcode::CRC => reserved((target | high | c) != 0).or(sized(most)),
        Opcode::COPY_CRC => reserved((high | c) != 0).or(sized(most)).or(overlap(source, size, target, size)),
        _ => reserved((source | a | b | c) != 0).or(sized(most)),
    }
}
