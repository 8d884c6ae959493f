// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refuses the descriptors that hardware would refuse, with the same status.
//!
//! - **Flow** opcode ─▶ flags ─▶ privilege, interrupt, reserved ─▶ size ─▶ alignment ─▶ overlap
//! - **Order** the first check that fails gives the status, so the order of checks is part of the behaviour
//! - **Not here** page faults: software uses the caller's address space and faults as the caller would
//!
//! | operation | flags allowed beside COMPLETION_VALID, REQUEST_COMPLETION, BLOCK_ON_FAULT¹, FENCE², *_CLASS |
//! |---|---|
//! | MEMMOVE, FILL, DELTA_APPLY, DUALCAST, COPY_CRC | CACHE_CONTROL, STRICT_ORDER, READBACK, TARGET_STEERING |
//! | COMPARE, COMPARE_PATTERN | CHECK_RESULT (a record must be requested) |
//! | DELTA_CREATE | CHECK_RESULT, CACHE_CONTROL, STRICT_ORDER, READBACK, TARGET_STEERING |
//! | CRC, COPY_CRC | bits 16–18 |
//! | FILL | bit 18 |
//! | CACHE_FLUSH | CACHE_CONTROL: write back without evicting |
//!
//! ¹ not NOOP, BATCH, DRAIN  ² only in a member of a batch

use memlift_spec::limits::{
    BATCH_MAX, BATCH_MIN, DELTA_ENTRY_BYTES, DELTA_RECORD_BYTES_MIN, DELTA_SOURCE_BYTES_MAX,
    DESCRIPTOR_BYTES, DUALCAST_ALIGN, TRANSFER_BYTES_MAX,
};
use memlift_spec::{Capabilities, Descriptor, Flags, Opcode, Status};

const ANY: u32 = Flags::COMPLETION_VALID.0
    | Flags::REQUEST_COMPLETION.0
    | Flags::REQUEST_INTERRUPT.0
    | Flags::COMPLETION_STEERING.0
    | Flags::COMPLETION_CLASS.0;
const CLASSES: u32 = Flags::ADDRESS1_CLASS.0 | Flags::ADDRESS2_CLASS.0 | Flags::ADDRESS3_CLASS.0;
const WORKS: u32 = ANY | CLASSES | Flags::BLOCK_ON_FAULT.0;
const WRITES: u32 =
    Flags::CACHE_CONTROL.0 | Flags::STRICT_ORDER.0 | Flags::READBACK.0 | Flags::TARGET_STEERING.0;
const CRC_BITS: u32 = Flags::CRC_SEED_ADDRESS.0 | Flags::CRC_BYPASS_INVERT.0 | Flags::CRC_BYPASS_REFLECT.0;
const DUALCAST_STEERING: u32 = 1 << 16;

/// Place in which a descriptor was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Queue,
    Batch,
}

/// Returns the flags that `opcode` may carry; `None` for an opcode that software does not run.
fn allowed(opcode: Opcode) -> Option<u32> {
    Some(match opcode {
        Opcode::NOOP => ANY,
        Opcode::BATCH => ANY | Flags::ADDRESS1_CLASS.0,
        Opcode::DRAIN => ANY | Flags::ADDRESS1_CLASS.0 | Flags::ADDRESS2_CLASS.0,
        Opcode::MEMMOVE | Opcode::DELTA_APPLY => WORKS | WRITES,
        Opcode::FILL => WORKS | WRITES | Flags::FILL_16.0,
        Opcode::COMPARE | Opcode::COMPARE_PATTERN => WORKS | Flags::CHECK_RESULT.0,
        Opcode::DELTA_CREATE => WORKS | WRITES | Flags::CHECK_RESULT.0,
        Opcode::DUALCAST => WORKS | WRITES | DUALCAST_STEERING,
        Opcode::TRANSLATION_FETCH => WORKS | Flags::CACHE_CONTROL.0,
        Opcode::CRC => WORKS | CRC_BITS,
        Opcode::COPY_CRC => WORKS | WRITES | CRC_BITS,
        Opcode::CACHE_FLUSH => WORKS | Flags::CACHE_CONTROL.0,
        _ => return None,
    })
}

fn yields_result(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::COMPARE | Opcode::COMPARE_PATTERN | Opcode::DELTA_CREATE | Opcode::CRC | Opcode::COPY_CRC
    )
}

/// Checks a descriptor; if it may not run, returns the status with which it ends as `Err`.
pub(super) fn check(
    descriptor: &Descriptor,
    capabilities: &Capabilities,
    place: Place,
) -> Result<(), Status> {
    let opcode = descriptor.opcode();
    let Some(mut flags_allowed) = allowed(opcode).filter(|_| capabilities.supports(opcode)) else {
        return Err(Status::BAD_OPCODE);
    };
    if place == Place::Batch {
        if matches!(opcode, Opcode::BATCH | Opcode::DRAIN) {
            return Err(Status::BAD_OPCODE);
        }
        flags_allowed |= Flags::FENCE.0;
    }
    check_flags(descriptor, flags_allowed)?;
    check_header(descriptor)?;
    check_operation(descriptor)
}

fn check_flags(descriptor: &Descriptor, flags_allowed: u32) -> Result<(), Status> {
    let flags = descriptor.flags();
    let valid = flags.has(Flags::COMPLETION_VALID);
    let requested = flags.has(Flags::REQUEST_COMPLETION);
    if flags.0 & !flags_allowed != 0 || (requested && !valid) {
        return Err(Status::BAD_FLAGS);
    }
    if yields_result(descriptor.opcode()) && !requested {
        return Err(Status::BAD_FLAGS);
    }
    Ok(())
}

fn check_header(descriptor: &Descriptor) -> Result<(), Status> {
    if descriptor.pasid >> 31 != 0 {
        return Err(Status::BAD_PRIVILEGE);
    }
    if descriptor.flags().has(Flags::REQUEST_INTERRUPT) {
        return Err(Status::BAD_INTERRUPT);
    }
    if descriptor.pasid >> 20 != 0 || descriptor.reserved != 0 || descriptor.interrupt_handle != 0 {
        return Err(Status::BAD_RESERVED);
    }
    if descriptor.flags().has(Flags::COMPLETION_VALID) && !descriptor.completion_address.is_multiple_of(32) {
        return Err(Status::COMPLETION_ALIGN);
    }
    Ok(())
}

fn check_operation(descriptor: &Descriptor) -> Result<(), Status> {
    let Descriptor { source, target, size, operation, .. } = *descriptor;
    let bytes = u64::from(size);
    let zero = |words: &[u64]| words.iter().all(|&word| word == 0).then_some(()).ok_or(Status::BAD_RESERVED);
    match descriptor.opcode() {
        Opcode::NOOP | Opcode::DRAIN => {
            zero(&[source, target, bytes, operation[0], operation[1], operation[2]])
        }
        Opcode::BATCH => {
            zero(&[target, operation[0], operation[1], operation[2]])?;
            if !(BATCH_MIN..=BATCH_MAX).contains(&size) {
                return Err(Status::BAD_COUNT);
            }
            aligned(source, DESCRIPTOR_BYTES as u64, Status::LIST_ALIGN)
        }
        Opcode::MEMMOVE => {
            zero(&operation)?;
            sized(size, &[source, target])?;
            // Ascending stores would overwrite the end of a source that overlaps a target behind its start.
            let ordered = descriptor.flags().has(Flags::STRICT_ORDER);
            if ordered && target > source && overlap(source, bytes, target, bytes) {
                return Err(Status::OVERLAP);
            }
            Ok(())
        }
        Opcode::FILL => {
            let wide = descriptor.flags().has(Flags::FILL_16);
            zero(&operation[usize::from(wide)..])?;
            sized(size, &[target])
        }
        Opcode::COMPARE => {
            zero(&[operation[0] & !1, operation[1], operation[2]])?;
            sized(size, &[source, target])
        }
        Opcode::COMPARE_PATTERN => {
            zero(&[operation[0] & !1, operation[1], operation[2]])?;
            sized(size, &[source])
        }
        Opcode::DELTA_CREATE => check_delta_create(descriptor),
        Opcode::DELTA_APPLY => check_delta_apply(descriptor),
        Opcode::DUALCAST => {
            zero(&operation[1..])?;
            let target2 = descriptor.target2();
            sized(size, &[source, target, target2])?;
            if target % DUALCAST_ALIGN != target2 % DUALCAST_ALIGN {
                return Err(Status::DUALCAST_ALIGN);
            }
            apart(&[(source, bytes), (target, bytes), (target2, bytes)])
        }
        Opcode::TRANSLATION_FETCH => {
            zero(&[target, operation[0], operation[1] >> 32, operation[2]])?;
            sized(size, &[source])
        }
        Opcode::CRC => {
            zero(&[target, operation[0] >> 32, operation[2]])?;
            sized(size, &[source])
        }
        Opcode::COPY_CRC => {
            zero(&[operation[0] >> 32, operation[2]])?;
            sized(size, &[source, target])?;
            apart(&[(source, bytes), (target, bytes)])
        }
        Opcode::CACHE_FLUSH => {
            zero(&[source, operation[0], operation[1], operation[2]])?;
            sized(size, &[target])
        }
        _ => Err(Status::BAD_OPCODE),
    }
}

fn check_delta_create(descriptor: &Descriptor) -> Result<(), Status> {
    let Descriptor { source, target, size, operation, .. } = *descriptor;
    let (record, record_bytes) = (descriptor.delta_address(), descriptor.delta_bytes_max());
    if operation[1] >> 32 != 0 || operation[2] > 7 {
        return Err(Status::BAD_RESERVED);
    }
    sized(size, &[source, target])?;
    if !size.is_multiple_of(8) || size > DELTA_SOURCE_BYTES_MAX {
        return Err(Status::BAD_SIZE);
    }
    if !record_bytes.is_multiple_of(DELTA_ENTRY_BYTES) || record_bytes < DELTA_RECORD_BYTES_MIN {
        return Err(Status::BAD_DELTA_SIZE);
    }
    aligned(source | target | record, 8, Status::ADDRESS_ALIGN)?;
    let (bytes, record_bytes) = (u64::from(size), u64::from(record_bytes));
    if overlap(record, record_bytes, source, bytes) || overlap(record, record_bytes, target, bytes) {
        return Err(Status::OVERLAP);
    }
    Ok(())
}

fn check_delta_apply(descriptor: &Descriptor) -> Result<(), Status> {
    let Descriptor { source, target, size, operation, .. } = *descriptor;
    let record_bytes = descriptor.delta_record_bytes();
    if operation[0] >> 32 != 0 || operation[1] != 0 || operation[2] != 0 {
        return Err(Status::BAD_RESERVED);
    }
    sized(size, &[target])?;
    if !size.is_multiple_of(8) || size > DELTA_SOURCE_BYTES_MAX {
        return Err(Status::BAD_SIZE);
    }
    if !record_bytes.is_multiple_of(DELTA_ENTRY_BYTES)
        || record_bytes == 0
        || record_bytes > TRANSFER_BYTES_MAX
    {
        return Err(Status::BAD_DELTA_SIZE);
    }
    aligned(source | target, 8, Status::ADDRESS_ALIGN)?;
    apart(&[(source, u64::from(record_bytes)), (target, u64::from(size))])
}

/// Checks that a size is from 1 to the largest transfer, and that no address range wraps.
fn sized(size: u32, addresses: &[u64]) -> Result<(), Status> {
    let fits = |&address: &u64| address.checked_add(u64::from(size)).is_some();
    if size == 0 || size > TRANSFER_BYTES_MAX || !addresses.iter().all(fits) {
        return Err(Status::BAD_SIZE);
    }
    Ok(())
}

fn aligned(address: u64, to: u64, otherwise: Status) -> Result<(), Status> {
    if address.is_multiple_of(to) { Ok(()) } else { Err(otherwise) }
}

fn overlap(a: u64, a_bytes: u64, b: u64, b_bytes: u64) -> bool {
    a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}

fn apart(ranges: &[(u64, u64)]) -> Result<(), Status> {
    for (index, &(a, a_bytes)) in ranges.iter().enumerate() {
        if ranges[index + 1..].iter().any(|&(b, b_bytes)| overlap(a, a_bytes, b, b_bytes)) {
            return Err(Status::OVERLAP);
        }
    }
    Ok(())
}
