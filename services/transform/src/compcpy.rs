// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CompCpy with the rules of the paper: a copy of pages that transforms them on the way.
//!
//! - **Flow** `compcpy(target, source, size, context, ordered)` checks that both are page-aligned, takes as many pages of target as of
//!   source, and calls `Transform::copy_raw`.
//! - **Order** with `ordered`, the target's 64-byte lines become visible in ascending order, for readers that keep a state.
//! - **Owner** the target has ⌈size / 4096⌉ pages, as the paper registers them, also for operations that pack. If the result does not
//!   fit, the call gives an error and the caller sends the plain bytes.
//! - **Not here** flushing: the paper flushes its source so that the DIMM sees it; here the placement decides what goes past the cache.
//!
//! Source: SmartDIMM, Algorithm 2.

use crate::{Error, Op, Options, Outcome, Transform};

/// Size of a page in the paper, bytes.
pub const PAGE_BYTES: usize = 4096;

/// Copies `size` bytes of pages and does `context` on the way.
///
/// # Errors
///
/// [`Error::NotAligned`] unless both addresses are multiples of [`PAGE_BYTES`]; otherwise the errors of
/// [`Transform::copy_raw`].
///
/// # Safety
///
/// `source` is readable for `size` bytes, `target` is writable for `size` rounded up to whole pages, and nobody else
/// changes them during the call.
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
    // SAFETY: the caller guarantees `size` readable bytes at `source`, `capacity` writable ones at `target`, and that nobody
    // else changes them.
    unsafe { Transform::global().copy_raw(context, (source, size), (target, capacity), &options) }
}
