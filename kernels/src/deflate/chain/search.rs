// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns bytes into tokens by chains of earlier positions with the same four bytes.
//!
//! - **Flow** each position is inserted into the chain of its first four bytes, and into the table of its first three. The earlier
//!   positions of the chain, as many as the level allows, are compared. The longest match is taken at once, or only if the next byte has
//!   no longer one. Then its token is added and counted.
//! - **Order** of equally long matches the nearest is taken. A match of three bytes is only taken near by: farther away, it costs more
//!   than literals.

use super::emit::STORED_BYTES;
use super::level::{SearchMethod, Strategy};
use super::{AHEAD_BYTES, Chains};
use crate::deflate::codes::{literal, matched};
use core::ptr;

/// Reason why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The block is full.
    Full,
    /// More input is needed.
    Short,
    /// Every byte that was read has a token.
    Empty,
}

/// Three bytes at a larger distance are not taken as a match.
const NEAR_BYTES: usize = 4096;
const SHORTEST: usize = 3;
/// Number of bytes that are examined to choose the shortest match, and number of text bytes among them from which on it is four
/// bytes.
const SAMPLE_BYTES: usize = 250;
const TEXT_BYTES: usize = 240;
const HASH: u32 = 0x9E37_79B1;
/// After this many bytes without a match, only every second position is searched, then every fourth: noise has few matches, and
/// short ones.
const NOISE_BYTES: u32 = 256;
const MUCH_NOISE_BYTES: u32 = 1024;

/// # Safety
/// Four bytes at `at` are readable.
#[inline(always)]
unsafe fn four(at: *const u8) -> u32 {
    // SAFETY: the caller guarantees four readable bytes at `at`.
    u32::from_le(unsafe { at.cast::<u32>().read_unaligned() })
}

impl Chains {
    fn base(&self) -> *const u8 {
        self.window.as_ptr()
    }

    /// Returns the address of the first position in the chain of these four bytes.
    ///
    /// # Safety
    /// The tables are initialized and belong to the stream.
    #[inline(always)]
    unsafe fn head_of(&self, bytes: u32) -> *mut u16 {
        let hash = bytes.wrapping_mul(HASH) >> (32 - self.hash_bits.four);
        // SAFETY: a hash has as many bits as its table.
        unsafe { self.head.as_ptr().add(hash as usize) }
    }

    /// Returns the address of the last position with the first three of these bytes.
    ///
    /// # Safety
    /// The tables are initialized and belong to the stream.
    #[inline(always)]
    unsafe fn third_of(&self, bytes: u32) -> *mut u16 {
        let hash = (bytes << 8).wrapping_mul(HASH) >> (32 - self.hash_bits.three);
        // SAFETY: a hash has as many bits as its table.
        unsafe { self.third.as_ptr().add(hash as usize) }
    }

    /// Returns true if the three bytes at `at` match those at `place`.
    ///
    /// # Safety
    /// Three bytes at `at` were read, and `place` is before it.
    #[inline(always)]
    unsafe fn is_third(&self, at: usize, place: usize) -> bool {
        let limit = at.saturating_sub(self.window_bytes - AHEAD_BYTES);
        // SAFETY: wide reads reach at most the initialized bytes behind the window.
        let differs = || unsafe { (four(self.base().add(place)) ^ four(self.base().add(at))) << 8 != 0 };
        place > limit && at - place <= NEAR_BYTES && !differs()
    }

    /// Returns the match of the last three bytes, which are in no chain yet.
    ///
    /// # Safety
    /// Three bytes at `at` were read.
    #[inline(always)]
    unsafe fn last_three(&self, at: usize) -> (usize, usize) {
        // SAFETY: wide reads reach at most the initialized bytes behind the window.
        unsafe {
            let place = usize::from(self.third_of(four(self.base().add(at))).read());
            if self.shortest == SHORTEST && self.is_third(at, place) { (SHORTEST, place) } else { (0, 0) }
        }
    }

    /// Inserts a position at the front of its chain. Returns the previous positions: with the same four bytes, and with the
    /// same three.
    ///
    /// # Safety
    /// Four bytes at the position were read into the window.
    #[inline(always)]
    unsafe fn insert(&mut self, at: usize) -> (usize, usize) {
        // SAFETY: a hash has as many bits as its table, and the chains have one entry per byte of a window.
        unsafe {
            let bytes = four(self.base().add(at));
            let head = self.head_of(bytes);
            let third = self.third_of(bytes);
            let before = (head.read(), third.read());
            self.prev.as_ptr().add(at & (self.window_bytes - 1)).write(before.0);
            head.write(at as u16);
            third.write(at as u16);
            (before.0.into(), before.1.into())
        }
    }

    /// Inserts the positions into the chains that were left out because not all of their four bytes had been read.
    pub(super) fn catch_up(&mut self) {
        while self.hashed < self.start && self.hashed + 4 <= self.filled {
            // SAFETY: four bytes at the position were read, as the loop checks.
            unsafe { self.insert(self.hashed) };
            self.hashed += 1;
        }
    }

    /// Inserts the positions from `at` to `end` into the chains, as far as their four bytes have been read.
    ///
    /// # Safety
    /// All bytes from `at` to `end` were read.
    #[inline(always)]
    unsafe fn insert_to(&mut self, at: usize, end: usize) {
        let stop = end.min((self.filled + 1).saturating_sub(4));
        for place in at..stop {
            // SAFETY: four bytes at the position were read, since `stop` leaves out the last three.
            unsafe { self.insert(place) };
        }
        self.hashed = stop.max(at);
    }

    /// Returns the longest match that is longer than `best`, as length and position; a length of `best` means none.
    ///
    /// A match longer than `best` also has the last four of its first `best + 1` bytes. If all positions are in chains (`ALL`),
    /// the chain of those four bytes is followed instead if it leads farther back: it skips positions that are not longer
    /// matches.
    ///
    /// # Safety
    /// `most` bytes can be compared at `at`; all positions in the chains are before `at`.
    #[inline(always)]
    unsafe fn longest<const ALL: bool>(
        &self,
        at: usize,
        (first, third): (usize, usize),
        mut best: usize,
        mut depth: u32,
        most: usize,
    ) -> (usize, usize) {
        // SAFETY: positions are before `at`, so wide reads there end before those at `at`, which reach at most the bytes behind
        // the window.
        unsafe {
            let limit = at.saturating_sub(self.window_bytes - AHEAD_BYTES);
            let (base, here) = (self.base(), self.base().add(at));
            let (word, mut from) = (four(here), 0);
            let nice = (self.level.nice as usize).min(most);
            if best < SHORTEST && self.shortest == SHORTEST && self.is_third(at, third) {
                (best, from) = (SHORTEST, third);
            }
            if best >= most {
                return (best, from);
            }
            // `place` is in the chain of the four bytes at `offset`; a match there begins `offset` bytes before it.
            let (mut place, mut offset) = (first, 0);
            if ALL && best > SHORTEST {
                (place, offset) = self.farther(at, place, offset, best);
            }
            let mut tail = four(here.add(best.max(SHORTEST) - 3));
            while place > limit + offset {
                let there = base.add(place - offset);
                let mut longer = false;
                if four(there.add(best.max(SHORTEST) - 3)) == tail && four(there) == word {
                    let length = same(there, here, most);
                    if length > best {
                        (best, from) = (length, place - offset);
                        if length >= nice {
                            break;
                        }
                        tail = four(here.add(best - 3));
                        longer = true;
                    }
                }
                depth -= 1;
                if depth == 0 {
                    break;
                }
                place = self.prev.as_ptr().add(place & (self.window_bytes - 1)).read().into();
                if ALL && longer {
                    (place, offset) = self.farther(at, place, offset, best);
                }
            }
            (best, from)
        }
    }

    /// Returns the chain of the last four of `best + 1` bytes at `at`, if its first position is farther back than `place` of
    /// the chain at `offset`; else the chain at `offset`. Positions from `at` on are in no chain, so matches that overlap `at`
    /// are left to the chain in use.
    ///
    /// # Safety
    /// `best + 1` bytes at `at` were read, and `best` is at least 3.
    #[inline(always)]
    unsafe fn farther(&self, at: usize, place: usize, offset: usize, best: usize) -> (usize, usize) {
        // SAFETY: the caller guarantees that the four bytes were read.
        unsafe {
            let to = best - 3;
            let other = usize::from(self.head_of(four(self.base().add(at + to))).read());
            let here = place + to;
            if here <= at + offset && other + offset < here { (other, to) } else { (place, offset) }
        }
    }

    /// Adds a token and counts it.
    ///
    /// # Safety
    /// There is room for a token.
    #[inline(always)]
    unsafe fn push(&self, used: &mut usize, token: u32) {
        // SAFETY: the caller guarantees the room; indices of nine and five bits are within the tables.
        unsafe {
            self.tokens.add(*used).write(token);
            let counts = &raw mut (*self.codes.as_ptr()).counts;
            *(*counts).index.as_mut_ptr().add((token & 511) as usize) += 1;
            *(*counts).distance.as_mut_ptr().add((token >> 9 & 31) as usize) += 1;
        }
        *used += 1;
    }

    /// Makes tokens. `more` says that input may follow, by which the last match could grow.
    pub(super) fn search(&mut self, more: bool) -> Ended {
        self.catch_up();
        if self.used == 0 {
            self.shortest = self.shortest_match();
        }
        match (self.strategy, self.level.method) {
            (Strategy::HuffmanOnly, _) => self.literals(more),
            (Strategy::Runs, _) => self.runs(more),
            (_, SearchMethod::Lazy) => self.lazy(more),
            _ => self.greedy(more),
        }
    }

    /// Returns the length of the shortest match that a block takes. Text has short codes for letters, so three of them cost
    /// less than a match.
    /// A block of few bytes uses the fixed code, whose literals are long, so there three bytes are taken.
    fn shortest_match(&self) -> usize {
        if self.filled - self.start < SAMPLE_BYTES {
            return SHORTEST;
        }
        // SAFETY: `SAMPLE_BYTES` bytes from `start` on were read, as the line above checks.
        let bytes = unsafe { core::slice::from_raw_parts(self.base().add(self.start), SAMPLE_BYTES) };
        let is_text = |byte: &&u8| matches!(**byte, 9..=13 | 32..=126);
        if bytes.iter().filter(is_text).count() >= TEXT_BYTES { SHORTEST + 1 } else { SHORTEST }
    }

    /// Returns the reason why a search ends at a position with `rest` bytes left and `used` tokens so far; `None` if it continues.
    #[inline(always)]
    fn ends(&self, used: usize, rest: usize, more: bool) -> Option<Ended> {
        if used == self.block_tokens {
            Some(Ended::Full)
        } else if more && rest < AHEAD_BYTES {
            Some(Ended::Short)
        } else {
            (rest == 0).then_some(Ended::Empty)
        }
    }

    fn greedy(&mut self, more: bool) -> Ended {
        let (mut at, mut used, mut misses) = (self.start, self.used, self.misses);
        let ended = loop {
            let rest = self.filled - at;
            if let Some(ended) = self.ends(used, rest, more) {
                break ended;
            }
            let (mut length, mut from) = (0, 0);
            // SAFETY: all bytes that are compared and inserted were read; a block that is not full has room for a token.
            unsafe {
                if rest >= 4 {
                    if is_searched(misses) {
                        let before = self.insert(at);
                        let depth = self.level.depth.max(1);
                        (length, from) = self.longest::<false>(at, before, 2, depth, rest.min(258));
                    }
                    self.hashed = at + 1;
                } else if rest == SHORTEST {
                    (length, from) = self.last_three(at);
                }
                if length < SHORTEST {
                    self.push(&mut used, literal(*self.base().add(at)));
                    at += 1;
                    misses = misses.saturating_add(1);
                    continue;
                }
                self.push(&mut used, matched(length, at - from));
                misses = 0;
                let begin = at;
                at += length;
                if length <= self.level.lazy as usize {
                    self.insert_to(begin + 1, at);
                } else {
                    self.hashed = at;
                }
            }
        };
        (self.start, self.used, self.misses) = (at, used, misses);
        ended
    }

    fn lazy(&mut self, more: bool) -> Ended {
        let (mut at, mut used) = (self.start, self.used);
        let (mut length, mut from, mut available) = (self.length, self.match_at, self.available);
        let mut misses = self.misses;
        let ended = loop {
            let rest = self.filled - at;
            if let Some(ended) = self.ends(used, rest, more) {
                if ended == Ended::Empty && available {
                    // SAFETY: a block that is not full has room for a token; the byte was read.
                    unsafe { self.push(&mut used, literal(*self.base().add(at - 1))) };
                    (available, length) = (false, 0);
                }
                break ended;
            }
            let (before, before_from) = (length, from);
            length = 0;
            // SAFETY: all bytes that are compared and inserted were read; a block that is not full has room for a token.
            unsafe {
                if rest >= 4 {
                    if is_searched(misses) {
                        let places = self.insert(at);
                        if before < self.level.lazy as usize {
                            let depth = self.level.depth;
                            let depth = if before >= self.level.good as usize { depth >> 2 } else { depth };
                            // A match of the same length may be better if it is nearer, and one that is a byte shorter if it is
                            // much nearer.
                            let best = (before.max(3)) - 1;
                            let found = self.longest::<true>(at, places, best, depth.max(1), rest.min(258));
                            if found.0 > best && !(found.0 <= 5 && self.strategy == Strategy::Filtered) {
                                (length, from) = found;
                            }
                        }
                    }
                    self.hashed = at + 1;
                } else if rest == SHORTEST && before < SHORTEST {
                    (length, from) = self.last_three(at);
                }
                if before >= SHORTEST && !is_better(at, (before, before_from), (length, from)) {
                    self.push(&mut used, matched(before, at - 1 - before_from));
                    let begin = at;
                    at += before - 1;
                    if rest >= 4 {
                        self.insert_to(begin + 1, at);
                    }
                    (available, length, misses) = (false, 0, 0);
                    continue;
                }
                if available {
                    self.push(&mut used, literal(*self.base().add(at - 1)));
                }
                misses = if length == 0 { misses.saturating_add(1) } else { 0 };
                available = true;
                at += 1;
            }
        };
        (self.start, self.used) = (at, used);
        (self.length, self.match_at, self.available, self.misses) = (length, from, available, misses);
        ended
    }

    fn literals(&mut self, more: bool) -> Ended {
        let mut used = self.used;
        loop {
            if let Some(ended) = self.ends(used, self.filled - self.start, more) {
                self.used = used;
                self.hashed = self.start;
                return ended;
            }
            // SAFETY: the byte was read; a block that is not full has room for a token.
            unsafe { self.push(&mut used, literal(*self.base().add(self.start))) };
            self.start += 1;
        }
    }

    fn runs(&mut self, more: bool) -> Ended {
        let mut used = self.used;
        loop {
            if let Some(ended) = self.ends(used, self.filled - self.start, more) {
                self.used = used;
                self.hashed = self.start;
                return ended;
            }
            let (at, most) = (self.start, (self.filled - self.start).min(258));
            // SAFETY: the bytes were read; a block that is not full has room for a token.
            unsafe {
                let here = self.base().add(at);
                let length = if at == 0 { 0 } else { same(here.sub(1), here, most) };
                if length < SHORTEST {
                    self.push(&mut used, literal(*here));
                    self.start += 1;
                } else {
                    self.push(&mut used, matched(length, 1));
                    self.start += length;
                }
            }
        }
    }

    /// Advances by as many bytes as one stored block may hold, without making tokens.
    pub(super) fn store(&mut self, more: bool) -> Ended {
        let begin = usize::try_from(self.block).unwrap_or(0);
        self.start = self.filled.min(begin + STORED_BYTES);
        self.hashed = self.start;
        let full = self.start - begin + AHEAD_BYTES >= self.window_bytes;
        match (self.start != self.filled || full && more, more) {
            (true, _) => Ended::Full,
            (_, true) => Ended::Short,
            _ => Ended::Empty,
        }
    }
}

/// Returns true if the position after this many bytes without a match is searched.
fn is_searched(misses: u32) -> bool {
    let skipped = match misses {
        0..NOISE_BYTES => 0,
        NOISE_BYTES..MUCH_NOISE_BYTES => 1,
        _ => 3,
    };
    misses & skipped == 0
}

/// Returns true if the match at `at` is better than the one at the byte before it, although it costs a literal more: a byte of
/// a match saves about four bits, and twice the distance costs one bit. Both matches are a length and a position.
#[inline(always)]
fn is_better(at: usize, (before, before_from): (usize, usize), (length, from): (usize, usize)) -> bool {
    if length < SHORTEST {
        return false;
    }
    let longer = 4 * (length as i32 - before as i32);
    let nearer = (at - 1 - before_from).ilog2() as i32 - (at - from).ilog2() as i32;
    longer + nearer > 2
}

/// Returns how many bytes are equal at both addresses, at most `most`.
///
/// # Safety
/// `most` bytes and eight more can be read at both addresses.
#[inline(always)]
unsafe fn same(there: *const u8, here: *const u8, most: usize) -> usize {
    let mut at = 0;
    // SAFETY: reads of eight bytes begin before `most`.
    unsafe {
        while at < most {
            let eight = |place: *const u8| u64::from_le(ptr::read_unaligned(place.add(at).cast::<u64>()));
            let other = eight(there) ^ eight(here);
            if other != 0 {
                return (at + other.trailing_zeros() as usize / 8).min(most);
            }
            at += 8;
        }
    }
    most
}
