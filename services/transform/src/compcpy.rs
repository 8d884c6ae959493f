// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CompCpy with the paper's rules: a copy of pages that transforms on the way.
//!
//! - **Flow** `compcpy(target, source, size, context, ordered)` ──▶ both page-aligned? ──▶ as many pages of target as of
//!   source ──▶ `Transform::copy_raw`
//! - **Order** ordered: the target's 64-byte lines become visible in ascending order, for readers that keep a state
//! - **Owner** the target has ⌈size / 4096⌉ pages, as the paper registers them, also for what packs: what does not fit
//!   there is an error, and the caller sends the plain bytes
//! - **Not here** flushing: the paper flushes its source to reach the DIMM; placement decides what goes past the cache
//!
//! Source: SmartDIMM, Algorithm 2.

use crate::{Error, Op, Options, Outcome, Transform};

/// The page of the paper, bytes.
pub const PAGE_BYTES: usize = 4096;

/// Does `context` while it copies `size` bytes of pages.
///
/// # Errors
///
/// [`Error::NotAligned`] unless both addresses are multiples of [`PAGE_BYTES`], and as
/// [`Transform::copy_raw`].
///
/// # Safety
///
/// `source` is readable for `size` bytes and `target` writable for `size` rounded up to whole pages; nobody else
/// changes them meanwhile.
pub unsafe fn compcpy<'a>(
    target: *mut u8,
    source: *const u8,
    size: usize,
    context: impl Into<Op<'a>>,
    ordered: bool,
) -> Result<Outcome, Error> {
    for (what, address) in [("target", target.addr()), ("source", source.addr())] {
        if !address.is_multiple_of(PAGE_BYTES) {
            return Err(Error::NotAligned { what, address, align: PAGE_BYTES });
        }
    }
    let capacity = size
        .checked_next_multiple_of(PAGE_BYTES)
        .ok_or(Error::TooLong { bytes: size, most: (usize::MAX - PAGE_BYTES) as u64 })?;
    let options = Options { ordered, ..Options::default() };
    // SAFETY: the caller vouches for `size` readable bytes and as many writable pages; nobody else changes them meanwhile.
    unsafe { Transform::global().copy_raw(context, (source, size), (target, capacity), &options) }
}
