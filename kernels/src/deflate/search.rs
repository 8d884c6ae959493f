// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns bytes into tokens: the last positions with the same hash are compared, and the longest match is taken.
//!
//! - **Flow** the first bytes of eight are hashed to the positions that had the same hash before. They are compared, 32 bytes at a time.
//!   The longest match is taken unless the next byte starts a longer one; without a match a literal is taken. The token is added and
//!   counted, and some positions inside of the match are inserted into the table.
//! - **Order** every position in the table is before the current one, and at or after the base. Of equally long matches the nearest is taken.
//! - **Owner** the table is borrowed; the history lies before `start` in the caller's buffer.

use super::code_table::Counts;
use super::codes::{MATCH_BYTES, literal, matched};
use super::same::{Same, WIDE_BYTES, eight, extend};
use super::slot::Slot;
use core::marker::PhantomData;

/// The last bytes of a buffer are searched without wide reads, because these would go past its end.
const TAIL_BYTES: usize = WIDE_BYTES + 8;
/// A match of three or four bytes at a larger distance saves less than it costs.
const NEAR_BYTES: usize = 4096;
/// A match at a smaller distance repeats a few bytes: its inner positions are all alike, and the last few of them are enough.
const PERIOD_BYTES: usize = 8;

/// One search of one buffer: `LOOK` positions per hash are compared, about `INNER` positions inside of a match are inserted, and
/// matches have at least `SHORTEST` bytes. It is passed by value, so that its fields can stay in registers.
pub struct Search<'a, S, T, const LOOK: usize, const INNER: usize, const SHORTEST: usize> {
    /// The table has 2^(64 − `hash_shift`) slots.
    pub table: *mut T,
    pub hash_shift: u32,
    pub base: *const u8,
    pub end: usize,
    /// The search pauses at this position, or one match later. A value of `end` or more means no pause.
    pub pause: usize,
    /// Largest distance of a match.
    pub window: usize,
    /// Address of the next token.
    pub next: *mut u32,
    /// Bytes by which the older half of the eight positions per hash made matches longer.
    pub gain: usize,
    pub counts: *mut Counts,
    pub how: PhantomData<(S, &'a mut Counts)>,
}

/// Returns the index of the slot for eight bytes.
#[inline(always)]
pub fn hash<const SHORTEST: usize>(bytes: u64, shift: u32) -> usize {
    ((bytes << (64 - 8 * SHORTEST)).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (shift & 63)) as usize
}

impl<S: Same, T: Slot, const LOOK: usize, const INNER: usize, const SHORTEST: usize>
    Search<'_, S, T, LOOK, INNER, SHORTEST>
{
    /// Number of bits of eight bytes that are not hashed.
    const OTHER_BITS: usize = 64 - 8 * SHORTEST;

    /// True if the search takes the time to find the longest match. With one position per slot there is no choice.
    const DEEP: bool = T::WAYS > 1 && INNER > 4;

    /// True if the search measures the gain of the older half of the positions: a table with eight of them may go back to fewer.
    const MEASURES_GAIN: bool = LOOK > 4;

    /// In a long match, one position in this many is inserted into the table.
    const STRIDE: usize = if Self::DEEP { 2 } else { 4 };

    /// Adds a token.
    ///
    /// # Safety
    /// There is room for the token.
    #[inline(always)]
    unsafe fn push(&mut self, token: u32) {
        // SAFETY: the caller guarantees the room; an index of nine bits is less than 512.
        unsafe {
            self.next.write(token);
            self.next = self.next.add(1);
            *(*self.counts).index.as_mut_ptr().add((token & 511) as usize) += 1;
        }
    }

    /// Adds the token of a match.
    ///
    /// # Safety
    /// The condition of [`push`](Search::push).
    #[inline(always)]
    unsafe fn push_match(&mut self, length: usize, distance: usize) {
        let token = matched(length, distance);
        // SAFETY: the caller guarantees room for a token; an index of five bits is less than 32.
        unsafe {
            self.push(token);
            *(*self.counts).distance.as_mut_ptr().add((token >> 9 & 31) as usize) += 1;
        }
    }

    /// Inserts a position at the front of its slot and returns the previous content of the slot.
    ///
    /// # Safety
    /// The position is before `end`, and `bytes` are the bytes there.
    #[inline(always)]
    unsafe fn learn(&mut self, at: usize, bytes: u64) -> T {
        // SAFETY: a hash is less than the number of slots.
        unsafe {
            let slot = self.table.add(hash::<SHORTEST>(bytes, self.hash_shift));
            let before = slot.read();
            slot.write(before.with(at));
            before
        }
    }

    /// Returns true if a slot has a position with the same first bytes. For most literals this quick check is all that is needed.
    ///
    /// # Safety
    /// Every position of the slot is before `end` − 8.
    #[inline(always)]
    unsafe fn any(&self, bytes: u64, slot: T) -> bool {
        let mut least = u64::MAX;
        for way in 0..LOOK {
            // SAFETY: the caller guarantees eight bytes behind each position.
            let other = unsafe { eight(self.base.add(slot.place(way))) };
            least = least.min((bytes ^ other) << Self::OTHER_BITS);
        }
        least == 0
    }

    /// Returns the longest match at `at` among the positions of a slot, up to 32 bytes, as length and position. Less than
    /// `SHORTEST` bytes are no match.
    ///
    /// # Safety
    /// 32 bytes can be read at `at`; the slot's positions are before it.
    #[inline(always)]
    unsafe fn longest<const FAR: bool>(&mut self, at: usize, slot: T) -> (usize, usize) {
        // Length and position in one number: of equal lengths, the later position gives the larger number.
        let (mut best, mut half) = (0, 0);
        for way in 0..LOOK {
            if Self::MEASURES_GAIN && way == LOOK / 2 {
                half = best;
            }
            let from = slot.place(way);
            // SAFETY: the caller guarantees 32 bytes at `at`, and an earlier position has more bytes behind it.
            let mut length = unsafe { S::first(self.base.add(from), self.base.add(at)) };
            if FAR && at - from > self.window {
                length = 0;
            }
            best = best.max(length << 16 | from);
        }
        if Self::MEASURES_GAIN {
            self.gain += (best >> 16) - (half >> 16);
        }
        let (length, from) = (best >> 16, best & 0xffff);
        if SHORTEST < 5 && length < 5 && at - from > NEAR_BYTES { (0, from) } else { (length, from) }
    }

    /// Returns the longest match of at least 32 bytes among the positions of a slot, each compared up to its end.
    ///
    /// # Safety
    /// The conditions of [`longest`](Search::longest).
    #[inline(always)]
    unsafe fn longest_beyond_32<const FAR: bool>(&self, at: usize, slot: T) -> (usize, usize) {
        let most = (self.end - at).min(MATCH_BYTES.1);
        let mut best = (0, 0);
        for way in 0..LOOK {
            let from = slot.place(way);
            // SAFETY: the caller guarantees 32 bytes at `at`; `most` bytes are left there, and more at an earlier position.
            unsafe {
                let (old, new) = (self.base.add(from), self.base.add(at));
                if S::first(old, new) < WIDE_BYTES || FAR && at - from > self.window {
                    continue;
                }
                let length = extend::<S>(old, new, most);
                if length > best.0 {
                    best = (length, from);
                }
            }
            if best.0 == most {
                break;
            }
        }
        best
    }

    /// Searches from `at`, which is not 0, to the pause or to the last position where wide reads fit; returns the end position.
    ///
    /// # Safety
    /// The token buffer has room for one token per byte; `base` points to `end` bytes; the positions in the table are before
    /// `at`.
    #[inline(always)]
    unsafe fn run<const FAR: bool>(mut self, mut at: usize) -> (Self, usize) {
        let stop = self.end.saturating_sub(TAIL_BYTES);
        let pause = stop.min(self.pause);
        while at < pause {
            // SAFETY: `at` is before `stop` (every lookahead checks it again), so the buffer has 32 bytes at `at + 1` and
            // behind; positions are only inserted before `stop` and before the next position of the search. A token stands for
            // at least one byte.
            unsafe {
                let bytes = eight(self.base.add(at));
                let slot = self.learn(at, bytes);
                if !self.any(bytes, slot) {
                    self.push(literal(bytes as u8));
                    at += 1;
                    continue;
                }
                let (mut length, mut from) = self.longest::<FAR>(at, slot);
                let mut slot = slot;
                if length < SHORTEST {
                    self.push(literal(bytes as u8));
                    at += 1;
                    continue;
                }
                while length < WIDE_BYTES && at + 1 < stop {
                    let bytes = eight(self.base.add(at + 1));
                    let next = self.learn(at + 1, bytes);
                    let (longer, place) = self.longest::<FAR>(at + 1, next);
                    if longer <= length {
                        break;
                    }
                    self.push(literal(self.base.add(at).read()));
                    at += 1;
                    (length, from, slot) = (longer, place, next);
                }
                if length == WIDE_BYTES {
                    // If matches are long, comparing all of them to their ends pays.
                    if Self::DEEP {
                        (length, from) = self.longest_beyond_32::<FAR>(at, slot);
                    } else {
                        let most = (self.end - at).min(MATCH_BYTES.1);
                        length = extend::<S>(self.base.add(from), self.base.add(at), most);
                    }
                }
                let distance = at - from;
                self.push_match(length, distance);
                // The position after `at` was inserted above, or is one of the few that are not inserted.
                let first = at + 2;
                at += length;
                if at <= stop {
                    let step = (length + INNER - 3) / INNER;
                    if length < WIDE_BYTES && !Self::DEEP {
                        // The same number of positions for each match, spread over it, so that no branch depends on its length.
                        // In a short match some are inserted twice.
                        for back in (0..INNER).rev() {
                            let place = (at - 1).saturating_sub(back * step);
                            self.learn(place, eight(self.base.add(place)));
                        }
                    } else {
                        // The last position is always inserted: it is the nearest to the bytes that follow.
                        let (mut place, step) = match (length < WIDE_BYTES, distance < PERIOD_BYTES) {
                            (true, _) => (first + (length - 3) % step, step),
                            (false, true) => (at - PERIOD_BYTES, 1),
                            (false, false) => (first + (length - 3) % Self::STRIDE, Self::STRIDE),
                        };
                        while place < at {
                            self.learn(place, eight(self.base.add(place)));
                            place += step;
                        }
                    }
                }
            }
        }
        (self, at)
    }

    /// Searches the last bytes with narrow reads.
    ///
    /// # Safety
    /// The conditions of [`run`](Search::run).
    unsafe fn tail(&mut self, mut at: usize) {
        while at < self.end {
            let rest = self.end - at;
            // SAFETY: eight bytes are read only if they are inside the buffer, and single ones before its end.
            unsafe {
                let (mut length, mut from) = (0, 0);
                if rest >= 8 {
                    from = self.learn(at, eight(self.base.add(at))).place(0);
                    if at - from <= self.window {
                        let (a, b) = (self.base.add(from), self.base.add(at));
                        while length < rest.min(MATCH_BYTES.1) && a.add(length).read() == b.add(length).read()
                        {
                            length += 1;
                        }
                    }
                }
                if length < SHORTEST || length < 5 && at - from > NEAR_BYTES {
                    self.push(literal(self.base.add(at).read()));
                    at += 1;
                } else {
                    self.push_match(length, at - from);
                    at += length;
                }
            }
        }
    }

    /// Searches from `start` to the pause or the end; returns the end position, the end of the tokens, and the gain.
    ///
    /// # Safety
    /// The conditions of [`run`](Search::run).
    #[inline(always)]
    pub unsafe fn all(mut self, start: usize) -> (usize, *mut u32, usize) {
        let mut at = start;
        // SAFETY: the caller guarantees the tokens' room, the buffer and the table. Byte 0 is a literal, as nothing precedes it.
        unsafe {
            if at == 0 && self.end != 0 {
                self.push(literal(self.base.read()));
                at = 1;
            }
            let (mut rest, at) =
                if self.end > self.window { self.run::<true>(at) } else { self.run::<false>(at) };
            if rest.pause < rest.end {
                return (at, rest.next, rest.gain);
            }
            rest.tail(at);
            (rest.end, rest.next, rest.gain)
        }
    }
}

/// Does the same as [`Search::all`], compiled for AVX2.
///
/// # Safety
/// The conditions of [`Search::all`]; the CPU has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub unsafe fn all_avx2<T: Slot, const LOOK: usize, const INNER: usize, const SHORTEST: usize>(
    search: Search<'_, super::same::Avx2, T, LOOK, INNER, SHORTEST>,
    start: usize,
) -> (usize, *mut u32, usize) {
    // SAFETY: the caller guarantees the tokens' room, the buffer, the table and the CPU's features.
    unsafe { search.all(start) }
}
