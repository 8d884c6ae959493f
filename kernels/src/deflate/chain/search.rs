// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes into tokens, by chains of earlier places with the same four bytes.
//!
//! - **Flow** a place joins the chain of its first four bytes, and the table of its first three ──▶ the places before it in the chain, as many as
//!   the level allows, compared ──▶ the longest match, taken at once or when the next byte has no longer one ──▶ token and its counts
//! - **Order** of equally long matches the nearest is taken. Three bytes are a match only near by: farther, they cost more than literals.

use super::emit::STORED_BYTES;
use super::level::{Kind, Strategy};
use super::{AHEAD_BYTES, Chains};
use crate::deflate::codes::{literal, matched};
use core::ptr;

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A block is full.
    Full,
    /// More input is wanted.
    Short,
    /// Everything has a token.
    Empty,
}

/// Three bytes farther than this are no match.
const NEAR_BYTES: usize = 4096;
const SHORTEST: usize = 3;

/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn four(at: *const u8) -> u32 {
    // SAFETY: four bytes at `at` are readable, as the caller vouches.
    u32::from_le(unsafe { at.cast::<u32>().read_unaligned() })
}

impl Chains {
    fn base(&self) -> *const u8 {
        self.window.as_ptr()
    }

    /// Puts a place at the front of its chain. Returns the places before it: with the same four bytes, and with the same three.
    ///
    /// # Safety
    /// Four bytes at the place were read into the window.
    #[inline(always)]
    unsafe fn insert(&mut self, at: usize) -> (usize, usize) {
        // SAFETY: a hash has as many bits as its table, and the chains have a place for each byte of a window.
        unsafe {
            let bytes = four(self.base().add(at));
            let shift = 32 - self.hash_bits;
            let head = self.head.as_ptr().add((bytes.wrapping_mul(0x9E37_79B1) >> shift) as usize);
            let third = self.third.as_ptr().add(((bytes << 8).wrapping_mul(0x9E37_79B1) >> shift) as usize);
            let before = (head.read(), third.read());
            self.prev.as_ptr().add(at & (self.window_bytes - 1)).write(before.0);
            head.write(at as u16);
            third.write(at as u16);
            (before.0.into(), before.1.into())
        }
    }

    /// Puts places into the chains that were left out because their bytes were not all there.
    pub(super) fn catch_up(&mut self) {
        while self.hashed < self.start && self.hashed + 4 <= self.filled {
            // SAFETY: four bytes are there.
            unsafe { self.insert(self.hashed) };
            self.hashed += 1;
        }
    }

    /// Puts the places before `end` into the chains as far as their bytes are there.
    ///
    /// # Safety
    /// `at` to `end` lie in what was read.
    #[inline(always)]
    unsafe fn insert_to(&mut self, at: usize, end: usize) {
        let stop = end.min((self.filled + 1).saturating_sub(4));
        for place in at..stop {
            // SAFETY: four bytes are there.
            unsafe { self.insert(place) };
        }
        self.hashed = stop.max(at);
    }

    /// The longest match that is longer than `best`, and where it is; a length of `best` means none.
    ///
    /// # Safety
    /// `most` bytes can be compared at `at`; the places are in order.
    #[inline(always)]
    unsafe fn longest(
        &self,
        at: usize,
        (first, third): (usize, usize),
        mut best: usize,
        mut depth: u32,
        most: usize,
    ) -> (usize, usize) {
        // SAFETY: places are before `at`, so wide reads there stay before those at `at`, which end in the bytes behind the window at most.
        unsafe {
            let limit = at.saturating_sub(self.window_bytes - AHEAD_BYTES);
            let (base, here) = (self.base(), self.base().add(at));
            let (word, mut from) = (four(here), 0);
            let nice = (self.level.nice as usize).min(most);
            if best < SHORTEST
                && third > limit
                && at - third <= NEAR_BYTES
                && (four(base.add(third)) ^ word) << 8 == 0
            {
                (best, from) = (SHORTEST, third);
            }
            if best >= most {
                return (best, from);
            }
            let (mut place, mut tail) = (first, four(here.add(best.max(SHORTEST) - 3)));
            while place > limit {
                let there = base.add(place);
                if four(there.add(best.max(SHORTEST) - 3)) == tail && four(there) == word {
                    let length = same(there, here, most);
                    if length > best {
                        (best, from) = (length, place);
                        if length >= nice {
                            break;
                        }
                        tail = four(here.add(best - 3));
                    }
                }
                depth -= 1;
                if depth == 0 {
                    break;
                }
                place = self.prev.as_ptr().add(place & (self.window_bytes - 1)).read().into();
            }
            (best, from)
        }
    }

    /// # Safety
    /// There is room for a token.
    #[inline(always)]
    unsafe fn push(&mut self, token: u32) {
        // SAFETY: the caller promises the room; nine and five bits are less than the tables have.
        unsafe {
            self.tokens.add(self.used).write(token);
            let counts = &raw mut (*self.codes.as_ptr()).counts;
            *(*counts).index.as_mut_ptr().add((token & 511) as usize) += 1;
            *(*counts).distance.as_mut_ptr().add((token >> 9 & 31) as usize) += 1;
        }
        self.used += 1;
    }

    /// Finds tokens. `more`: input may follow, which a match could grow into.
    pub(super) fn search(&mut self, more: bool) -> Ended {
        self.catch_up();
        match (self.strategy, self.level.kind) {
            (Strategy::HuffmanOnly, _) => self.literals(more),
            (Strategy::Runs, _) => self.runs(more),
            (_, Kind::Lazy) => self.lazy(more),
            _ => self.greedy(more),
        }
    }

    /// Returns why a search ends at `start`; `None` if it goes on.
    #[inline(always)]
    fn ends(&self, more: bool) -> Option<Ended> {
        let rest = self.filled - self.start;
        if self.used == self.most {
            Some(Ended::Full)
        } else if more && rest < AHEAD_BYTES {
            Some(Ended::Short)
        } else {
            (rest == 0).then_some(Ended::Empty)
        }
    }

    fn greedy(&mut self, more: bool) -> Ended {
        loop {
            if let Some(ended) = self.ends(more) {
                return ended;
            }
            let (at, rest) = (self.start, self.filled - self.start);
            let (mut length, mut from) = (0, 0);
            // SAFETY: what is compared and inserted was read; a block that is not full has room.
            unsafe {
                if rest >= 4 {
                    let before = self.insert(at);
                    self.hashed = at + 1;
                    (length, from) = self.longest(at, before, 2, self.level.depth.max(1), rest.min(258));
                }
                if length < SHORTEST {
                    self.push(literal(*self.base().add(at)));
                    self.start += 1;
                    continue;
                }
                self.push(matched(length, at - from));
                self.start += length;
                if length <= self.level.lazy as usize {
                    self.insert_to(at + 1, self.start);
                } else {
                    self.hashed = self.start;
                }
            }
        }
    }

    fn lazy(&mut self, more: bool) -> Ended {
        loop {
            if let Some(ended) = self.ends(more) {
                if ended == Ended::Empty && self.available {
                    // SAFETY: a block that is not full has room; the byte was read.
                    unsafe { self.push(literal(*self.base().add(self.start - 1))) };
                    (self.available, self.length) = (false, 0);
                }
                return ended;
            }
            let (at, rest) = (self.start, self.filled - self.start);
            let (before, before_from) = (self.length, self.from);
            self.length = 0;
            // SAFETY: what is compared and inserted was read; a block that is not full has room.
            unsafe {
                if rest >= 4 {
                    let places = self.insert(at);
                    self.hashed = at + 1;
                    if before < self.level.lazy as usize {
                        let depth = self.level.depth;
                        let depth = if before >= self.level.good as usize { depth >> 2 } else { depth };
                        // A match of the same length may be nearer, and one that is shorter by one much nearer.
                        let best = (before.max(3)) - 1;
                        let (length, from) = self.longest(at, places, best, depth.max(1), rest.min(258));
                        if length > best && !(length <= 5 && self.strategy == Strategy::Filtered) {
                            (self.length, self.from) = (length, from);
                        }
                    }
                }
                if before >= SHORTEST && !self.is_better(at, before, before_from) {
                    self.push(matched(before, at - 1 - before_from));
                    self.start = at - 1 + before;
                    if rest >= 4 {
                        self.insert_to(at + 1, self.start);
                    }
                    (self.available, self.length) = (false, 0);
                    continue;
                }
                if self.available {
                    self.push(literal(*self.base().add(at - 1)));
                }
                self.available = true;
                self.start += 1;
            }
        }
    }

    /// Returns true if the match at `at` is worth a literal more than the one before it: a byte of a match saves about four bits, and twice the
    /// distance costs one.
    #[inline(always)]
    fn is_better(&self, at: usize, before: usize, before_from: usize) -> bool {
        if self.length < SHORTEST {
            return false;
        }
        let longer = 4 * (self.length as i32 - before as i32);
        let nearer = (at - 1 - before_from).ilog2() as i32 - (at - self.from).ilog2() as i32;
        longer + nearer > 2
    }

    fn literals(&mut self, more: bool) -> Ended {
        loop {
            if let Some(ended) = self.ends(more) {
                self.hashed = self.start;
                return ended;
            }
            // SAFETY: the byte was read; a block that is not full has room.
            unsafe { self.push(literal(*self.base().add(self.start))) };
            self.start += 1;
        }
    }

    fn runs(&mut self, more: bool) -> Ended {
        loop {
            if let Some(ended) = self.ends(more) {
                self.hashed = self.start;
                return ended;
            }
            let (at, most) = (self.start, (self.filled - self.start).min(258));
            // SAFETY: the bytes were read; a block that is not full has room.
            unsafe {
                let here = self.base().add(at);
                let length = if at == 0 { 0 } else { same(here.sub(1), here, most) };
                if length < SHORTEST {
                    self.push(literal(*here));
                    self.start += 1;
                } else {
                    self.push(matched(length, 1));
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

/// How many bytes are the same at both places, at most `most`.
///
/// # Safety
/// `most` bytes and eight more can be read at both.
#[inline(always)]
unsafe fn same(there: *const u8, here: *const u8, most: usize) -> usize {
    let mut at = 0;
    // SAFETY: reads begin before `most`.
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
