// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large blocks of arena memory for callers that keep only a block's address: C, numpy.
//!
//! - **Flow** [`allocate`] ──▶ address ──[`resize`], which moves no bytes──▶ address ──[`release`]──▶ gone
//! - **Layout** a block is a mapping of its own: 64 bytes of header (length, a mark), then the block's bytes, which are zero
//!   at first
//! - **Owner** the caller that has the address owns the block; it must pin the pages ([`Pager::pin`]) for a system call on
//!   them
//! - **Not here** small blocks: every block takes at least one page

use std::ptr::NonNull;

use crate::mapping::PAGE_BYTES;
use crate::pager::Pager;

/// Size of the header before the first byte of a block; also the alignment of blocks.
pub const HEADER_BYTES: usize = 64;

/// Second word of the header while the block is allocated.
const MARK: u64 = 0x6d65_6d6c_6966_7421;

/// Returns the address and the size in bytes of a block's mapping.
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
/// `address` is the start of a mapping of `bytes` bytes that belongs to the caller.
unsafe fn mark(address: usize, bytes: usize) -> Option<NonNull<u8>> {
    let start = address as *mut u64;
    // SAFETY: the caller owns the mapping, which has at least one page, so the two words of the header lie in it.
    unsafe {
        start.write(bytes as u64);
        start.add(1).write(MARK);
    }
    NonNull::new(start.cast::<u8>().wrapping_add(HEADER_BYTES))
}

/// Allocates `bytes` bytes, zeroed. Returns `None` if the arena has no room for them.
pub fn allocate(pager: &Pager, bytes: usize) -> Option<NonNull<u8>> {
    let whole = whole(bytes)?;
    let address = pager.map(whole, libc::PROT_READ | libc::PROT_WRITE, None).ok()?;
    // SAFETY: the mapping was just made, with `whole` bytes.
    unsafe { mark(address, whole) }
}

/// Resizes a block to `bytes` bytes; it may move. Returns `None` if there is no room; then the block stays as it is.
///
/// # Safety
///
/// `block` came from this pager's [`allocate`] or [`resize`], was not released, and nobody uses its bytes meanwhile.
pub unsafe fn resize(pager: &Pager, block: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller promises that `block` came from this module and was not released.
    let (address, old) = unsafe { mapping(block) };
    let whole = whole(bytes)?;
    let address = pager.remap(address, old, whole, libc::MREMAP_MAYMOVE, 0).ok()?;
    // SAFETY: the mapping is the block's and has `whole` bytes now.
    unsafe { mark(address, whole) }
}

/// Gives the block back.
///
/// # Safety
///
/// The promises of [`resize`], and nobody uses the block afterwards.
pub unsafe fn release(pager: &Pager, block: NonNull<u8>) {
    // SAFETY: the caller promises that `block` came from this module and was not released.
    let (address, bytes) = unsafe { mapping(block) };
    // If the mapping cannot be unmapped, its memory is not given back; nothing else goes wrong.
    let _ = pager.unmap(address, bytes);
}

/// Returns the number of bytes that the block has room for.
///
/// # Safety
///
/// `block` came from [`allocate`] or [`resize`] and was not released.
pub unsafe fn room(block: NonNull<u8>) -> usize {
    // SAFETY: the caller promises that `block` came from this module and was not released.
    unsafe { mapping(block) }.1 - HEADER_BYTES
}
