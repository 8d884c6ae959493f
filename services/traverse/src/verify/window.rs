// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The window: which bytes around `cur_ptr` a program reads.
//!
//! - **Flow** accesses with what is proved about their index ──`Hull`──▶ [`Window`], the limits of every guard, the lines
//! - **Order** 1. bytes that are proved, and `cur_ptr` itself, make the hull. 2. Accesses that are not proved make it larger by
//!   the bytes that their index can reach, if that still is a window. 3. Otherwise the hull grows down to the least
//!   byte that such an access is proved to start at, and up to the most bytes that a window may have. 4. What is not
//!   proved to be inside is guarded to be
//! - **Not here** how the index was bounded (`state`)

use super::Rejection;
use memlift_spec::operand::walk::WINDOW_BYTES_MAX;

const MOST: i64 = WINDOW_BYTES_MAX as i64;

/// Bytes that a step may read: `bytes` from `cur_ptr + first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Window {
    /// From -256 to 0.
    pub first: i16,
    /// Up to 256; none for a program that does not look at its node.
    pub bytes: u16,
}

/// A load from the window.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Place of its instruction, counted in eight bytes.
    pub at: u32,
    /// The least offset that it can start at.
    pub first: i64,
    /// One past the highest byte that it can read.
    pub end: i64,
    /// True if both are proved. If not, -256 and 256 stand for what is not known.
    pub proved: bool,
}

/// The window of some accesses.
///
/// # Errors
/// If no window holds all that is proved.
pub fn hull(accesses: &[Access]) -> Result<Window, Rejection> {
    let (mut first, mut end) = (0, 0);
    for access in accesses.iter().filter(|access| access.proved) {
        let (lower, upper) = (first.min(access.first), end.max(access.end));
        if upper - lower > MOST {
            let reason = format!(
                "reads bytes {}..{} of the node; a window is at most {MOST} B, and this one reaches from {lower} to {upper}",
                access.first, access.end
            );
            return Err(Rejection::new(access.at, reason));
        }
        (first, end) = (lower, upper);
    }
    let (lower, upper) = accesses
        .iter()
        .fold((first, end), |(lower, upper), access| (lower.min(access.first), upper.max(access.end)));
    if upper - lower <= MOST {
        (first, end) = (lower, upper);
    } else {
        let known = accesses.iter().map(|access| access.first).filter(|&first| first > -MOST);
        first = known.fold(first, i64::min).max(end - MOST);
        end = first + MOST;
    }
    Ok(Window { first: first as i16, bytes: (end - first) as u16 })
}

/// The 64-byte lines from one byte up to another: bit 4 is the line of `cur_ptr`, if that starts one, bit 3 the one before.
#[must_use]
pub fn lines(first: i64, end: i64) -> u8 {
    (-4..4)
        .filter(|line| first < (line + 1) * 64 && end > line * 64)
        .fold(0, |map, line| map | 1 << (line + 4))
}
