// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the window: the bytes around `cur_ptr` that a program reads.
//!
//! - **Flow** accesses with the proved bounds of their index ──`Hull`──▶ [`Window`], the limits of every guard, the lines
//! - **Order** 1. The bytes of proved accesses, and `cur_ptr` itself, form the hull. 2. It is extended by the bytes that
//!   unproved accesses can reach, if the result is still a valid window. 3. Otherwise the hull is extended down to the least
//!   byte at which such an access is proved to start, and up to the most bytes of a window. 4. Accesses that are not proved to
//!   be inside get a guard
//! - **Not here** bounding the index (`state`)

use super::Rejection;
use memlift_spec::formats::walk::WINDOW_BYTES_MAX;

const MOST: i64 = WINDOW_BYTES_MAX as i64;

/// Bytes that a step may read: `bytes` from `cur_ptr + first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Window {
    /// Offset of the first byte, from -256 to 0.
    pub first: i16,
    /// Number of bytes, up to 256; 0 for a program that does not read its node.
    pub bytes: u16,
}

/// A load from the window.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Place of the load's instruction, counted in units of eight bytes.
    pub at: u32,
    /// The least offset at which the load can start.
    pub first: i64,
    /// Offset one past the highest byte that the load can read.
    pub end: i64,
    /// True if both bounds are proved. Otherwise -256 and 256 stand for unknown bounds.
    pub proved: bool,
}

/// Returns the window of some accesses.
///
/// # Errors
/// No window contains all proved accesses.
pub fn window_of(accesses: &[Access]) -> Result<Window, Rejection> {
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

/// Returns the 64-byte lines from one byte up to another: bit 4 is the line of `cur_ptr` if that is at the start of a line,
/// bit 3 the line before.
#[must_use]
pub fn lines(first: i64, end: i64) -> u8 {
    (-4..4)
        .filter(|line| first < (line + 1) * 64 && end > line * 64)
        .fold(0, |map, line| map | 1 << (line + 4))
}
