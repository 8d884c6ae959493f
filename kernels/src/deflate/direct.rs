// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes straight into bits, with a code that is known before: no tokens, no counts, no tree.
//!
//! - **Flow** eight bytes ──hash of six──▶ the place that had it before ──six compared──▶ literal, or ──32 compared at once──▶
//!   match ──[`preset`](super::preset)──▶ bits. Writing fills the time that the search waits for memory.
//! - **Layout** the table holds places as 16-bit offsets from a base, as [`matcher`](super::matcher) does.
//! - **Owner** the output is scratch memory of ours, large enough for the worst case; whether the block is worth it, and
//!   where it goes, is decided afterwards.

use super::block::Table;
use super::codes::{MATCH_BYTES, WINDOW_BYTES, matched};
use super::matcher::has_avx2;
use super::preset::LONGEST;
use super::room::zeroed;
use super::same::{Same, WIDE_BYTES, Words, eight, extend};
use crate::Isa;

const HASH_BITS: u32 = 12;
const SLOTS: usize = 1 << HASH_BITS;
/// The shortest match that is taken, in bytes: as many as are hashed.
const SHORTEST: usize = 6;
/// The bits of eight bytes that are not hashed.
const OTHER_BITS: usize = 64 - 8 * SHORTEST;
const TAIL_BYTES: usize = WIDE_BYTES + 8;

/// Scratch bytes that `bytes` bytes of input can take, with what may be in hand, the end and a wide store.
pub const fn room(bytes: usize) -> usize {
    (bytes * LONGEST).div_ceil(8) + 32
}

/// Bits that were written somewhere: whole bytes there, the rest in hand.
pub struct Written {
    pub bytes: usize,
    pub hold: u64,
    pub count: u32,
}

/// The search with its table.
pub struct Direct {
    table: Box<[u16; SLOTS]>,
    /// True if the CPU has AVX2 and may use it.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "asked on x86-64 only"))]
    fast: bool,
}

#[inline(always)]
fn hash(bytes: u64) -> usize {
    ((bytes << OTHER_BITS).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - HASH_BITS)) as usize
}

/// One run over one buffer. It is passed by value, so that its fields can stay in registers.
struct Run<'a> {
    code: &'a Table,
    table: *mut u16,
    base: *const u8,
    end: usize,
    window: usize,
    next: *mut u8,
    hold: u64,
    count: u32,
}

impl Run<'_> {
    /// Adds bits and stores whole bytes.
    ///
    /// # Safety
    /// There is room for eight bytes.
    #[inline(always)]
    unsafe fn put(&mut self, value: u64, count: u32) {
        self.hold |= value << self.count;
        self.count += count;
        // SAFETY: the caller promises the room; at most 7 bits and one literal were in hand, and a
        // match has at most 42 (12 + 5 + 12 + 13), so that at most 61 are now.
        unsafe {
            self.next.cast::<u64>().write_unaligned(self.hold.to_le());
            self.next = self.next.add((self.count >> 3) as usize);
        }
        self.hold >>= self.count & 56;
        self.count &= 7;
    }

    /// The place that had the hash before this one.
    ///
    /// # Safety
    /// None beyond that of the whole: a hash is less than the number of slots.
    #[inline(always)]
    unsafe fn look(&mut self, at: usize, bytes: u64) -> usize {
        // SAFETY: the slot is inside the table.
        unsafe {
            let slot = self.table.add(hash(bytes));
            let from = slot.read() as usize;
            slot.write(at as u16);
            from
        }
    }

    /// Returns true if an earlier place has the same first bytes and is in reach.
    ///
    /// # Safety
    /// Eight bytes can be read there.
    #[inline(always)]
    unsafe fn same<const FAR: bool>(&self, at: usize, bytes: u64, from: usize) -> bool {
        // SAFETY: eight bytes at the place are readable, as the caller vouches.
        let other = unsafe { eight(self.base.add(from)) };
        (bytes ^ other) << OTHER_BITS == 0 && !(FAR && at - from > self.window)
    }

    /// Writes a literal.
    ///
    /// # Safety
    /// As for [`put`](Run::put).
    #[inline(always)]
    unsafe fn literal(&mut self, byte: u8) {
        let (code, count) = self.code.literal(byte);
        // SAFETY: the output has room for eight bytes, as the caller vouches.
        unsafe { self.put(code, count) };
    }

    /// Writes a match.
    ///
    /// # Safety
    /// As for [`put`](Run::put).
    #[inline(always)]
    unsafe fn matched(&mut self, length: usize, distance: usize) {
        let (code, count) = self.code.pair(matched(length, distance));
        // SAFETY: the output has room for eight bytes, as the caller vouches.
        unsafe { self.put(code, count) };
    }

    /// Everything from `start`.
    ///
    /// # Safety
    /// The output has [`room`] for it; `base` points to `end` bytes; every place in the table is before `start`.
    #[inline(always)]
    unsafe fn all<S: Same, const FAR: bool>(mut self, start: usize) -> Self {
        let mut at = start;
        let stop = self.end.saturating_sub(TAIL_BYTES);
        // Two literals are stored at once, where they follow each other.
        // SAFETY: up to `stop`, 32 bytes at `at` and behind are inside the buffer; a place from the table is before
        // `at`, so that as many bytes can be read there; every byte of input is worth at most LONGEST bits.
        unsafe {
            if at == 0 && self.end != 0 {
                self.literal(self.base.read());
                at = 1;
            }
            while at < stop {
                let bytes = eight(self.base.add(at));
                let mut from = self.look(at, bytes);
                if !self.same::<FAR>(at, bytes, from) {
                    let (code, count) = self.code.literal(bytes as u8);
                    self.hold |= code << self.count;
                    self.count += count;
                    at += 1;
                    let bytes = bytes >> 8;
                    from = self.look(at, bytes);
                    if !self.same::<FAR>(at, bytes, from) {
                        self.literal(bytes as u8);
                        at += 1;
                        continue;
                    }
                }
                let mut length = S::first(self.base.add(from), self.base.add(at));
                if length == WIDE_BYTES {
                    let most = (self.end - at).min(MATCH_BYTES.1);
                    length = extend::<S>(self.base.add(from), self.base.add(at), most);
                }
                self.matched(length, at - from);
                at += length;
            }
            while at < self.end {
                self.literal(self.base.add(at).read());
                at += 1;
            }
        }
        self
    }
}

/// [`Run::all`] for a CPU with AVX2.
///
/// # Safety
/// As for [`Run::all`], and the CPU has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
unsafe fn all_avx2(run: Run<'_>, start: usize) -> Run<'_> {
    use super::same::Avx2;
    // SAFETY: the caller vouches for the run's buffers and for the CPU's features.
    unsafe { if run.end > run.window { run.all::<Avx2, true>(start) } else { run.all::<Avx2, false>(start) } }
}

impl Direct {
    pub fn new(isa: Isa) -> Option<Direct> {
        // SAFETY: zeros are a value of it.
        Some(Direct { table: unsafe { zeroed()? }, fast: has_avx2(isa) })
    }

    /// Forgets all places.
    pub fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Makes all offsets smaller by `bytes`: the base moved forward.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.table.iter_mut() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// Writes `buffer[start..]` in this code to `output`, after the bits in hand, without the end of the block.
    /// `output` has [`room`] for it; the code has no longer codes than the preset ones.
    pub fn write(
        &mut self,
        code: &Table,
        buffer: &[u8],
        start: usize,
        window: usize,
        output: &mut [u8],
        (hold, count): (u64, u32),
    ) -> Written {
        assert!(
            start <= buffer.len() && buffer.len() <= 1 << 16 && output.len() >= room(buffer.len() - start)
        );
        let next = output.as_mut_ptr();
        let run = Run {
            code,
            table: self.table.as_mut_ptr(),
            base: buffer.as_ptr(),
            end: buffer.len(),
            window: window.min(WINDOW_BYTES),
            next,
            hold,
            count,
        };
        // SAFETY: the room was compared; base and end are those of a slice; the table holds places that were before
        // the end of an earlier run, which is at or before `start`; the CPU was asked.
        let run = unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.fast {
                all_avx2(run, start)
            } else {
                run.all::<Words, true>(start)
            }
            #[cfg(not(target_arch = "x86_64"))]
            run.all::<Words, true>(start)
        };
        Written { bytes: run.next as usize - next as usize, hold: run.hold, count: run.count }
    }
}
