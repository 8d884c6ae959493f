// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large blocks of arena memory by address, for callers that keep nothing but the address: C, numpy.
//!
//! - **Flow** [`allocate`] ──▶ address ──[`resize`], which moves no bytes──▶ address ──[`release`]──▶ gone
//! - **Layout** a block is a mapping of its own: 64 bytes of header (length, a mark), then the bytes, which are zero at first
//! - **Owner** the caller that has the address; a system call on it needs the pages pinned ([`Pager::pin`])
//! - **Not here** small blocks: a page each is the least

use std::ptr::NonNull;

use crate::mapping::PAGE_BYTES;
use crate::pager::Pager;

/// Bytes before a block's first one; also how blocks are aligned.
pub const HEADER_BYTES: usize = 64;

/// In the header of a block that is allocated.
const MARK: u64 = 0x6d65_6d6c_6966_7421;

/// The mapping of a block: address, bytes.
///
/// # Safety
///
/// `block` came from [`allocate`] or [`resize`] and was not released.
unsafe fn mapping(block: NonNull<u8>) -> (usize, usize) {
    let start = block.as_ptr().wrapping_sub(HEADER_BYTES).cast::<u64>();
    // SAFETY: the header lies before the block, in the same mapping.
    let [bytes, mark] = unsafe { [start.read(), start.add(1).read()] };
    assert!(mark == MARK, "the address is no block of zmem, or one that was freed");
    (start.addr(), bytes as usize)
}

fn whole(bytes: usize) -> Option<usize> {
    bytes.checked_add(HEADER_BYTES)?.checked_next_multiple_of(PAGE_BYTES)
}

/// # Safety
///
/// A mapping of `bytes` at `address` belongs to the caller.
unsafe fn mark(address: usize, bytes: usize) -> Option<NonNull<u8>> {
    let start = address as *mut u64;
    // SAFETY: the caller's; a mapping has a page at least.
    unsafe {
        start.write(bytes as u64);
        start.add(1).write(MARK);
    }
    NonNull::new(start.cast::<u8>().wrapping_add(HEADER_BYTES))
}

/// `bytes` bytes, zero; none if the arena has no such room.
pub fn allocate(pager: &Pager, bytes: usize) -> Option<NonNull<u8>> {
    let whole = whole(bytes)?;
    let address = pager.map(whole, libc::PROT_READ | libc::PROT_WRITE, None).ok()?;
    // SAFETY: it was just mapped.
    unsafe { mark(address, whole) }
}

/// The block with `bytes` bytes, perhaps elsewhere; none if there is no room, and the block stays as it is.
///
/// # Safety
///
/// `block` came from this pager's [`allocate`] or [`resize`], was not released, and nobody uses its bytes meanwhile.
pub unsafe fn resize(pager: &Pager, block: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller's.
    let (address, old) = unsafe { mapping(block) };
    let whole = whole(bytes)?;
    let address = pager.remap(address, old, whole, libc::MREMAP_MAYMOVE, 0).ok()?;
    // SAFETY: the mapping is the block's.
    unsafe { mark(address, whole) }
}

/// Gives the block back.
///
/// # Safety
///
/// As for [`resize`]; nobody uses the block after this.
pub unsafe fn release(pager: &Pager, block: NonNull<u8>) {
    // SAFETY: the caller's.
    let (address, bytes) = unsafe { mapping(block) };
    // If the mapping cannot be unmapped, its memory is not given back; nothing else goes wrong.
    let _ = pager.unmap(address, bytes);
}

/// How many bytes the block has room for.
///
/// # Safety
///
/// `block` came from [`allocate`] or [`resize`] and was not released.
pub unsafe fn room(block: NonNull<u8>) -> usize {
    // SAFETY: the caller's.
    unsafe { mapping(block) }.1 - HEADER_BYTES
}
