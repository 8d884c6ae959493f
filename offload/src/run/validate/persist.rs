// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refuses invalid LOG_APPEND, LOG_APPLY, PAGE_COPY and LOG_RESET descriptors before they run.
//!
//! - **Order** reserved words of the descriptor (BAD_RESERVED) ─▶ block address (ADDRESS_ALIGN) ─▶ block's opcode, version
//!   and size (BAD_OPERAND) ─▶ its reserved fields, salt and hints (BAD_RESERVED) ─▶ sizes and address ranges that wrap
//!   (BAD_SIZE) ─▶ alignment (ADDRESS_ALIGN) ─▶ overlaps (OVERLAP)
//! - **Owner** the block lies in the submitter's own memory, and is read again when the descriptor runs
//! - **Not here** the contents of the log: they are checked when they are applied
//!
//! A log may lie inside the range to which its records' offsets refer, so source and heap of LOG_APPLY may overlap. An
//! entry that names bytes of its own record is refused when it runs.

use super::{aligned, apart, block_address, fits, sized};
use memlift_spec::limits::CACHE_LINE_BYTES;
use memlift_spec::operand::log::{PAGE_BYTES, RECORD_ALIGN};
use memlift_spec::operand::{HINT_CHECKSUM, HINT_STORE_FENCE, HINT_WRITE_BACK};
use memlift_spec::{AppendBlock, ApplyBlock, Descriptor, Opcode, PageCopyBlock, ResetBlock, Status};
use std::ptr;

const LINE: u64 = CACHE_LINE_BYTES as u64;
const WORD: u64 = 8;

/// # Safety
///
/// The operand block is readable.
pub(super) unsafe fn check(descriptor: &Descriptor) -> Result<(), Status> {
    let address = block_address(descriptor)?;
    // SAFETY: the address is aligned, and the caller promises that the block is readable. Every block has a head of 8
    // bytes; the checks below read the rest only after the head has shown the block's size.
    unsafe {
        let head = ptr::with_exposed_provenance::<u64>(address).read();
        let bytes = match descriptor.opcode() {
            Opcode::LOG_APPEND => AppendBlock::BYTES,
            Opcode::LOG_APPLY => ApplyBlock::BYTES,
            Opcode::PAGE_COPY => PageCopyBlock::BYTES,
            _ => ResetBlock::BYTES,
        };
        if head as u32 != u32::from(descriptor.opcode().0) | 1 << 8 | (bytes as u32) << 16 {
            return Err(Status::BAD_OPERAND);
        }
        if head >> 32 != 0 {
            return Err(Status::BAD_RESERVED);
        }
        let block = (address as u64, bytes as u64);
        match descriptor.opcode() {
            Opcode::LOG_APPEND => {
                append(descriptor, &ptr::with_exposed_provenance::<AppendBlock>(address).read(), block)
            }
            Opcode::LOG_APPLY => {
                apply(descriptor, &ptr::with_exposed_provenance::<ApplyBlock>(address).read(), block)
            }
            Opcode::PAGE_COPY => {
                page_copy(descriptor, &ptr::with_exposed_provenance::<PageCopyBlock>(address).read(), block)
            }
            _ => reset(descriptor, &ptr::with_exposed_provenance::<ResetBlock>(address).read(), block),
        }
    }
}

/// Checks that reserved words are 0, and that `hints` has no unknown bits.
fn clean(reserved: &[u64], hints: u32, known: u32) -> Result<(), Status> {
    let clean = reserved.iter().all(|&word| word == 0) && hints & !known == 0;
    if clean { Ok(()) } else { Err(Status::BAD_RESERVED) }
}

fn append(descriptor: &Descriptor, block: &AppendBlock, own: (u64, u64)) -> Result<(), Status> {
    let Descriptor { source, target, size, .. } = *descriptor;
    clean(&block.reserved2, block.hints, HINT_STORE_FENCE)?;
    sized(size, &[source, target])?;
    if !(size as usize).is_multiple_of(RECORD_ALIGN) {
        return Err(Status::BAD_SIZE);
    }
    aligned(source, WORD, Status::ADDRESS_ALIGN)?;
    aligned(target, LINE, Status::ADDRESS_ALIGN)?;
    apart(&[(source, u64::from(size)), (target, u64::from(size)), own])
}

fn apply(descriptor: &Descriptor, block: &ApplyBlock, own: (u64, u64)) -> Result<(), Status> {
    let Descriptor { source, target, size, .. } = *descriptor;
    clean(&block.reserved2, block.hints, HINT_STORE_FENCE | HINT_WRITE_BACK)?;
    sized(size, &[source])?;
    fits(target, block.heap_bytes)?;
    aligned(source, WORD, Status::ADDRESS_ALIGN)?;
    aligned(target, LINE, Status::ADDRESS_ALIGN)?;
    apart(&[(target, block.heap_bytes), own])
}

fn page_copy(descriptor: &Descriptor, block: &PageCopyBlock, own: (u64, u64)) -> Result<(), Status> {
    let Descriptor { source, target, size, .. } = *descriptor;
    clean(&block.reserved2, block.hints, HINT_STORE_FENCE | HINT_CHECKSUM)?;
    if block.salt != 0 && block.hints & HINT_CHECKSUM == 0 {
        return Err(Status::BAD_RESERVED);
    }
    if size as usize != PAGE_BYTES {
        return Err(Status::BAD_SIZE);
    }
    sized(size, &[source, target])?;
    aligned(source | target, LINE, Status::ADDRESS_ALIGN)?;
    let page = PAGE_BYTES as u64;
    apart(&[(source, page), (target, page)])?;
    apart(&[(target, page), own])
}

fn reset(descriptor: &Descriptor, block: &ResetBlock, own: (u64, u64)) -> Result<(), Status> {
    let Descriptor { source, target, size, .. } = *descriptor;
    if source != 0 || block.salt != 0 {
        return Err(Status::BAD_RESERVED);
    }
    clean(&block.reserved2, block.hints, HINT_STORE_FENCE)?;
    if u64::from(size) != LINE {
        return Err(Status::BAD_SIZE);
    }
    sized(size, &[target])?;
    aligned(target, LINE, Status::ADDRESS_ALIGN)?;
    apart(&[(target, LINE), own])
}
