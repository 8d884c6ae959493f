// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refusing SEAL, OPEN, PACK and UNPACK before they run.
//!
//! Order   reserved words of the descriptor (BAD_RESERVED) ─▶ block address (ADDRESS_ALIGN) ─▶ block's opcode, version
//!         and size (BAD_OPERAND) ─▶ its reserved fields and hints (BAD_RESERVED) ─▶ key size (BAD_KEY_SIZE), or
//!         format and effort (BAD_FORMAT) ─▶ sizes and address ranges that wrap (BAD_SIZE) ─▶ overlaps (OVERLAP)
//! Owner   the block is read once; what runs afterwards works on that copy
//!
//! Sizes: 0 bytes are allowed but for UNPACK, since no stream is empty. A target's capacity is at most 2 GiB.
//! Overlaps: SEAL and OPEN allow source and target to be equal. The target must be apart from key, additional data
//! and block, and for PACK and UNPACK its whole capacity from the source.

use super::{block_address, fits, overlap};
use memlift_spec::limits::TRANSFER_BYTES_MAX;
use memlift_spec::operand::{HINT_PRIVATE, PREPARED_NONE};
use memlift_spec::{Descriptor, Effort, Format, Opcode, PackBlock, SealBlock, Status};
use std::ptr;

/// # Safety
///
/// The operand block is readable.
pub(super) unsafe fn check_seal(descriptor: &Descriptor) -> Result<(), Status> {
    let address = block_address(descriptor)?;
    // SAFETY: the address is aligned, and the caller vouches for the memory.
    let block = unsafe { ptr::with_exposed_provenance::<SealBlock>(address).read() };
    let header = (block.opcode, block.version, usize::from(block.block_bytes));
    if header != (descriptor.opcode().0, SealBlock::VERSION, SealBlock::BYTES) {
        return Err(Status::BAD_OPERAND);
    }
    let unprepared = block.prepared_kind == PREPARED_NONE && block.prepared_address != 0;
    let reserved = block.reserved != 0 || block.reserved2 != [0; 6] || block.hints & !HINT_PRIVATE != 0;
    if reserved || unprepared {
        return Err(Status::BAD_RESERVED);
    }
    if !matches!(block.key_bytes, 16 | 32) {
        return Err(Status::BAD_KEY_SIZE);
    }
    let Descriptor { source, target, size, .. } = *descriptor;
    if size > TRANSFER_BYTES_MAX || block.aad_bytes > u64::from(TRANSFER_BYTES_MAX) {
        return Err(Status::BAD_SIZE);
    }
    let bytes = u64::from(size);
    let key_bytes = u64::from(block.key_bytes);
    fits(source, bytes)?;
    fits(target, bytes)?;
    fits(block.key_address, key_bytes)?;
    fits(block.aad_address, block.aad_bytes)?;
    let others = [
        (address as u64, SealBlock::BYTES as u64),
        (block.key_address, key_bytes),
        (block.aad_address, block.aad_bytes),
    ];
    let shifted = source != target && overlap(source, bytes, target, bytes);
    if shifted || others.iter().any(|&(other, length)| overlap(other, length, target, bytes)) {
        return Err(Status::OVERLAP);
    }
    Ok(())
}

/// # Safety
///
/// The operand block is readable.
pub(super) unsafe fn check_pack(descriptor: &Descriptor) -> Result<(), Status> {
    let address = block_address(descriptor)?;
    // SAFETY: the address is aligned, and the caller vouches for the memory.
    let block = unsafe { ptr::with_exposed_provenance::<PackBlock>(address).read() };
    let header = (block.opcode, block.version, usize::from(block.block_bytes));
    if header != (descriptor.opcode().0, PackBlock::VERSION, PackBlock::BYTES) {
        return Err(Status::BAD_OPERAND);
    }
    let unpacks = descriptor.opcode() == Opcode::UNPACK;
    let reserved = block.reserved != 0 || block.reserved2 != 0 || block.reserved3 != [0; 5];
    if reserved || block.hints & !HINT_PRIVATE != 0 || (unpacks && block.effort != 0) {
        return Err(Status::BAD_RESERVED);
    }
    let known = Format::from_code(block.format).is_some_and(crate::codec::supported);
    if !known || Effort::from_code(block.effort).is_none() {
        return Err(Status::BAD_FORMAT);
    }
    let Descriptor { source, target, size, .. } = *descriptor;
    let capacity = block.target_capacity;
    if size > TRANSFER_BYTES_MAX || capacity > u64::from(TRANSFER_BYTES_MAX) || (unpacks && size == 0) {
        return Err(Status::BAD_SIZE);
    }
    fits(source, u64::from(size))?;
    fits(target, capacity)?;
    let own = overlap(address as u64, PackBlock::BYTES as u64, target, capacity);
    if own || overlap(source, u64::from(size), target, capacity) {
        return Err(Status::OVERLAP);
    }
    Ok(())
}
