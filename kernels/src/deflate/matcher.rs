// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes into tokens: the last places with the same hash, taken if they are really the same.
//!
//! Flow    eight bytes ──hash of five──▶ the places that had it before ──five compared──▶ literal, or ──32 compared at
//!         once──▶ the longer match, unless the next byte starts a longer one still ──▶ token and its counts
//! Layout  a slot holds places as offsets from a base that the caller moves along, 16 bits each: one place
//!         ([`Way::One`], for messages of a few KiB) or the last two ([`Way::Two`]). 0 also means "none": a wrong
//!         candidate is harmless, because bytes and distance are compared.
//! Order   every place in the table is before the current one, and at or after the base.
//! Owner   nothing is kept but the table; the history lies before `start` in the caller's buffer.

use super::block::Counts;
use super::codes::{MATCH_BYTES, WINDOW_BYTES, literal, matched};
use super::same::{Same, WIDE_BYTES, Words, eight, extend};
use crate::Isa;

/// Slots of the table.
const SLOTS: usize = 1 << HASH_BITS;
const HASH_BITS: u32 = 13;
/// The shortest match that is taken, in bytes: as many as are hashed. Shorter ones save less than they cost.
const SHORTEST: usize = 5;
/// The bits of eight bytes that are not hashed.
const OTHER_BITS: usize = 64 - 8 * SHORTEST;
/// What is left at the end of a buffer is searched without wide reads, which would go past it.
const TAIL_BYTES: usize = WIDE_BYTES + 8;

/// How many places a slot remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    One,
    Two,
}

/// The places of earlier bytes.
pub struct Matcher {
    /// With [`Way::Two`] pairs, the older place second; with [`Way::One`] only the first half is used.
    table: Box<[u16; 2 * SLOTS]>,
    way: Way,
    /// Whether the CPU has AVX2 and may use it.
    fast: bool,
}

#[inline(always)]
fn hash(bytes: u64) -> usize {
    ((bytes << OTHER_BITS).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - HASH_BITS)) as usize
}

/// One search of one buffer. It is passed by value, so that its fields can stay in registers.
struct Search<'a, S> {
    table: *mut u16,
    base: *const u8,
    end: usize,
    window: usize,
    next: *mut u32,
    counts: *mut Counts,
    how: core::marker::PhantomData<(S, &'a mut Counts)>,
}

impl<S: Same> Search<'_, S> {
    /// Adds a token.
    ///
    /// # Safety
    /// There is room for it.
    #[inline(always)]
    unsafe fn push(&mut self, token: u32) {
        // SAFETY: the caller promises the room; nine bits are less than 512, five less than 32.
        unsafe {
            self.next.write(token);
            self.next = self.next.add(1);
            *(*self.counts).index.as_mut_ptr().add((token & 511) as usize) += 1;
        }
    }

    /// Counts the distance of a match.
    ///
    /// # Safety
    /// None beyond that of the whole: five bits are less than 32.
    #[inline(always)]
    unsafe fn count_distance(&mut self, token: u32) {
        // SAFETY: the counts are borrowed for as long as the search, and the index is in bounds.
        unsafe { *(*self.counts).distance.as_mut_ptr().add((token >> 9 & 31) as usize) += 1 };
    }

    /// Puts a place at the front of its slot and returns what the slot held.
    ///
    /// # Safety
    /// Eight bytes can be read at the place, which is before `end`.
    #[inline(always)]
    unsafe fn learn<const TWO: bool>(&mut self, at: usize, bytes: u64) -> u32 {
        // SAFETY: a hash is less than the number of slots, and each has its places.
        unsafe {
            if TWO {
                let slot = self.table.add(2 * hash(bytes)).cast::<u32>();
                let before = slot.read_unaligned();
                slot.write_unaligned(before << 16 | at as u32);
                before
            } else {
                let slot = self.table.add(hash(bytes));
                let before = slot.read();
                slot.write(at as u16);
                u32::from(before)
            }
        }
    }

    /// Whether a slot has a place with the same first bytes: the answer that most literals need, and soon.
    ///
    /// # Safety
    /// The slot's places are before `end` − 8.
    #[inline(always)]
    unsafe fn any<const TWO: bool>(&self, bytes: u64, slot: u32) -> bool {
        // SAFETY: the caller promises that the bytes are there.
        unsafe {
            let recent = (bytes ^ eight(self.base.add((slot & 0xffff) as usize))) << OTHER_BITS;
            if !TWO {
                return recent == 0;
            }
            recent.min((bytes ^ eight(self.base.add((slot >> 16) as usize))) << OTHER_BITS) == 0
        }
    }

    /// The longest match at a place among those of a slot, up to 32 bytes, and where it is.
    ///
    /// # Safety
    /// 32 bytes can be read at the place; the slot's places are before it.
    #[inline(always)]
    unsafe fn longest<const TWO: bool, const FAR: bool>(&self, at: usize, slot: u32) -> (usize, usize) {
        let recent = (slot & 0xffff) as usize;
        // SAFETY: the caller's promise; an earlier place has as many bytes behind it, and more.
        let mut length = unsafe { S::first(self.base.add(recent), self.base.add(at)) };
        if FAR && at - recent > self.window {
            length = 0;
        }
        if !TWO {
            return (length, recent);
        }
        let older = (slot >> 16) as usize;
        // SAFETY: as above.
        let mut longer = unsafe { S::first(self.base.add(older), self.base.add(at)) };
        if FAR && at - older > self.window {
            longer = 0;
        }
        if longer > length { (longer, older) } else { (length, recent) }
    }

    /// Searches from `at`, which is not 0, as far as wide reads go; returns how far.
    ///
    /// # Safety
    /// The token buffer has room for one token per byte; `base` points to `end` bytes; the table is in order.
    #[inline(always)]
    unsafe fn run<const TWO: bool, const FAR: bool>(mut self, mut at: usize) -> (Self, usize) {
        let stop = self.end.saturating_sub(TAIL_BYTES);
        while at < stop {
            // SAFETY: `at` is before `stop`, so that 32 bytes at `at` and behind it, and eight bytes at `at + 2`, are
            // inside the buffer; after a match, places are only learned before `stop`. A token stands for at least
            // one byte.
            unsafe {
                let bytes = eight(self.base.add(at));
                let slot = self.learn::<TWO>(at, bytes);
                if !self.any::<TWO>(bytes, slot) {
                    self.push(literal(bytes as u8));
                    at += 1;
                    continue;
                }
                let (mut length, mut from) = self.longest::<TWO, FAR>(at, slot);
                if FAR && length < SHORTEST {
                    self.push(literal(bytes as u8));
                    at += 1;
                    continue;
                }
                if length < WIDE_BYTES {
                    let slot = self.learn::<TWO>(at + 1, eight(self.base.add(at + 1)));
                    let (longer, place) = self.longest::<false, FAR>(at + 1, slot & 0xffff);
                    if longer > length {
                        self.push(literal(bytes as u8));
                        at += 1;
                        (length, from) = (longer, place);
                    }
                }
                if length == WIDE_BYTES {
                    let most = (self.end - at).min(MATCH_BYTES.1);
                    length = extend::<S>(self.base.add(from), self.base.add(at), most);
                }
                let token = matched(length, at - from);
                self.push(token);
                self.count_distance(token);
                at += length;
                if at < stop {
                    self.learn::<TWO>(at - 2, eight(self.base.add(at - 2)));
                    self.learn::<TWO>(at - 1, eight(self.base.add(at - 1)));
                }
            }
        }
        (self, at)
    }

    /// Searches the last bytes with narrow reads.
    ///
    /// # Safety
    /// As for [`run`](Search::run).
    unsafe fn tail<const TWO: bool>(&mut self, mut at: usize) {
        while at < self.end {
            let rest = self.end - at;
            // SAFETY: eight bytes are read only where they are inside the buffer, and single ones before its end.
            unsafe {
                let (mut length, mut from) = (0, 0);
                if rest >= 8 {
                    let slot = self.learn::<TWO>(at, eight(self.base.add(at)));
                    from = (slot & 0xffff) as usize;
                    if at - from <= self.window {
                        let (a, b) = (self.base.add(from), self.base.add(at));
                        while length < rest.min(MATCH_BYTES.1) && a.add(length).read() == b.add(length).read()
                        {
                            length += 1;
                        }
                    }
                }
                if length < SHORTEST {
                    self.push(literal(self.base.add(at).read()));
                    at += 1;
                } else {
                    let token = matched(length, at - from);
                    self.push(token);
                    self.count_distance(token);
                    at += length;
                }
            }
        }
    }

    /// Searches everything from `start`; returns where the tokens end.
    ///
    /// # Safety
    /// As for [`run`](Search::run).
    #[inline(always)]
    unsafe fn all(mut self, start: usize, way: Way) -> *mut u32 {
        let mut at = start;
        // SAFETY: handed down; the first byte of a buffer has nothing before it.
        unsafe {
            if at == 0 && self.end != 0 {
                self.push(literal(self.base.read()));
                at = 1;
            }
            let (mut rest, at) = match (way, self.end > self.window) {
                (Way::One, false) => self.run::<false, false>(at),
                (Way::One, true) => self.run::<false, true>(at),
                (Way::Two, false) => self.run::<true, false>(at),
                (Way::Two, true) => self.run::<true, true>(at),
            };
            match way {
                Way::One => rest.tail::<false>(at),
                Way::Two => rest.tail::<true>(at),
            }
            rest.next
        }
    }
}

/// [`Search::all`] for a CPU with AVX2.
///
/// # Safety
/// As for [`Search::run`], and the CPU has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
unsafe fn all_avx2(search: Search<'_, super::same::Avx2>, start: usize, way: Way) -> *mut u32 {
    // SAFETY: handed down.
    unsafe { search.all(start, way) }
}

/// Whether [`Avx2`](super::same::Avx2) can be used at this level.
pub fn has_avx2(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        isa >= Isa::Avx2 && isa.available() && has!("bmi1") && has!("bmi2") && has!("lzcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}

impl Matcher {
    pub fn new(isa: Isa) -> Matcher {
        Matcher { table: Box::new([0; 2 * SLOTS]), way: Way::Two, fast: has_avx2(isa) }
    }

    /// Forgets all places.
    pub fn clear(&mut self) {
        let used = if self.way == Way::Two { 2 * SLOTS } else { SLOTS };
        self.table[..used].fill(0);
    }

    /// Slots remember this many places from here on. There are none yet.
    pub fn set_way(&mut self, way: Way) {
        self.way = way;
    }

    /// Makes all offsets smaller by `bytes`: the base moved forward.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.table.iter_mut() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// Learns the places of `bytes`, which are at the base: less than 64 KiB.
    pub fn learn(&mut self, bytes: &[u8]) {
        for (at, eight) in bytes.windows(8).enumerate() {
            let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
            match self.way {
                Way::One => self.table[hash(eight)] = at as u16,
                Way::Two => {
                    let slot = 2 * hash(eight);
                    self.table[slot + 1] = self.table[slot];
                    self.table[slot] = at as u16;
                }
            }
        }
    }

    /// Puts tokens for `buffer[start..]` into `tokens`, which has room for one per byte, and counts them. `buffer`
    /// is at most 65536 bytes long and what is before `start` is what the table knows. Distances are at most
    /// `window`. Returns the number of tokens.
    pub fn find(
        &mut self,
        buffer: &[u8],
        start: usize,
        window: usize,
        tokens: &mut [u32],
        counts: &mut Counts,
    ) -> usize {
        assert!(start <= buffer.len() && buffer.len() <= 1 << 16 && tokens.len() >= buffer.len() - start);
        let first = tokens.as_mut_ptr();
        macro_rules! search {
            () => {
                Search {
                    table: self.table.as_mut_ptr(),
                    base: buffer.as_ptr(),
                    end: buffer.len(),
                    window: window.min(WINDOW_BYTES),
                    next: first,
                    counts,
                    how: core::marker::PhantomData,
                }
            };
        }
        #[cfg(target_arch = "x86_64")]
        if self.fast {
            let search: Search<'_, super::same::Avx2> = search!();
            // SAFETY: the assertion above is about the room; base and end are those of a slice; the CPU was asked.
            let end = unsafe { all_avx2(search, start, self.way) };
            return (end as usize - first as usize) / size_of::<u32>();
        }
        let search: Search<'_, Words> = search!();
        // SAFETY: as above.
        let end = unsafe { search.all(start, self.way) };
        (end as usize - first as usize) / size_of::<u32>()
    }
}
