// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs bytes directly into bits with a code that is known before: no tokens, no counts, no tree.
//!
//! - **Flow** the first six of eight bytes are hashed to the last position that had the same hash. If the six bytes are not equal there,
//!   a literal is written. Otherwise the match is extended, 32 bytes at a time, and written by [`preset`](super::preset). The writing
//!   fills the time in which the search waits for memory.
//! - **Layout** the table holds positions as 16-bit offsets from a base, as [`matcher`](super::matcher) does.
//! - **Owner** the output is scratch memory of the packer, large enough for the worst case. Afterwards the caller decides if the block is
//!   worth it, and where it goes.

use super::code_table::Table;
use super::codes::{MATCH_BYTES, WINDOW_BYTES, matched};
use super::isa::has_avx2;
use super::preset::LONGEST;
use super::room::zeroed;
use super::same::{Same, WIDE_BYTES, Words, eight, extend};
use crate::Isa;

const HASH_BITS: u32 = 12;
const SLOTS: usize = 1 << HASH_BITS;
/// Shortest match that is taken, bytes; also the number of bytes that are hashed.
const SHORTEST: usize = 6;
/// Number of bits of eight bytes that are not hashed.
const OTHER_BITS: usize = 64 - 8 * SHORTEST;
const TAIL_BYTES: usize = WIDE_BYTES + 8;

/// Returns the scratch bytes that `bytes` bytes of input may need, including unstored bits, the end of the block and a wide
/// store.
pub const fn room(bytes: usize) -> usize {
    (bytes * LONGEST).div_ceil(8) + 32
}

/// Result of a write: the number of whole bytes stored, and the unstored bits.
pub struct Written {
    pub bytes: usize,
    pub hold: u64,
    pub count: u32,
}

/// The packer with its table.
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

/// State of one run over one buffer. It is passed by value, so that its fields can stay in registers.
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
    /// The output has room for eight bytes.
    #[inline(always)]
    unsafe fn put(&mut self, value: u64, count: u32) {
        self.hold |= value << self.count;
        self.count += count;
        // SAFETY: the caller guarantees room for eight bytes. At most 7 bits and one literal were unstored, and a match has at
        // most 42 bits (12 + 5 + 12 + 13), so at most 61 are now.
        unsafe {
            self.next.cast::<u64>().write_unaligned(self.hold.to_le());
            self.next = self.next.add((self.count >> 3) as usize);
        }
        self.hold >>= self.count & 56;
        self.count &= 7;
    }

    /// Returns the last position with the same hash as these bytes, and stores `at` in its place.
    ///
    /// # Safety
    /// The table has one slot per hash value.
    #[inline(always)]
    unsafe fn swap_position(&mut self, at: usize, bytes: u64) -> usize {
        // SAFETY: a hash is less than the number of slots.
        unsafe {
            let slot = self.table.add(hash(bytes));
            let from = slot.read() as usize;
            slot.write(at as u16);
            from
        }
    }

    /// Returns true if an earlier position has the same first six bytes and is within the window.
    ///
    /// # Safety
    /// Eight bytes at `from` can be read.
    #[inline(always)]
    unsafe fn same<const FAR: bool>(&self, at: usize, bytes: u64, from: usize) -> bool {
        // SAFETY: the caller guarantees eight readable bytes at `from`.
        let other = unsafe { eight(self.base.add(from)) };
        (bytes ^ other) << OTHER_BITS == 0 && !(FAR && at - from > self.window)
    }

    /// Writes a literal.
    ///
    /// # Safety
    /// The condition of [`put`](Run::put).
    #[inline(always)]
    unsafe fn literal(&mut self, byte: u8) {
        let (code, count) = self.code.literal(byte);
        // SAFETY: the caller guarantees that the output has room for eight bytes.
        unsafe { self.put(code, count) };
    }

    /// Writes a match.
    ///
    /// # Safety
    /// The condition of [`put`](Run::put).
    #[inline(always)]
    unsafe fn matched(&mut self, length: usize, distance: usize) {
        let (code, count) = self.code.pair(matched(length, distance));
        // SAFETY: the caller guarantees that the output has room for eight bytes.
        unsafe { self.put(code, count) };
    }

    /// Packs everything from `start` on.
    ///
    /// # Safety
    /// The output has [`room`] for it; `base` points to `end` bytes; every position in the table is before `start`.
    #[inline(always)]
    unsafe fn pack_all<S: Same, const FAR: bool>(mut self, start: usize) -> Self {
        let mut at = start;
        let stop = self.end.saturating_sub(TAIL_BYTES);
        // Two adjacent literals are stored together.
        // SAFETY: up to `stop`, the buffer has 32 bytes at `at` and behind; a position from the table is before `at`, so the same
        // number of bytes can be read there; every byte of input takes at most LONGEST bits of output.
        unsafe {
            if at == 0 && self.end != 0 {
                self.literal(self.base.read());
                at = 1;
            }
            while at < stop {
                let bytes = eight(self.base.add(at));
                let mut from = self.swap_position(at, bytes);
                if !self.same::<FAR>(at, bytes, from) {
                    let (code, count) = self.code.literal(bytes as u8);
                    self.hold |= code << self.count;
                    self.count += count;
                    at += 1;
                    let bytes = bytes >> 8;
                    from = self.swap_position(at, bytes);
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

/// Does the same as [`Run::pack_all`], compiled for AVX2.
///
/// # Safety
/// The conditions of [`Run::pack_all`]; the CPU has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
unsafe fn pack_all_avx2(run: Run<'_>, start: usize) -> Run<'_> {
    use super::same::Avx2;
    // SAFETY: the caller guarantees the run's buffers and the CPU's features.
    unsafe {
        if run.end > run.window {
            run.pack_all::<Avx2, true>(start)
        } else {
            run.pack_all::<Avx2, false>(start)
        }
    }
}

impl Direct {
    pub fn new(isa: Isa) -> Option<Direct> {
        // SAFETY: zeros are a valid table.
        Some(Direct { table: unsafe { zeroed()? }, fast: has_avx2(isa) })
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Makes all offsets smaller by `bytes`, because the base has moved forward by as much.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.table.iter_mut() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// Packs `buffer[start..]` with this code into `output`, after the unstored bits, without the end of the block. `output` has
    /// [`room`] for it; no code is longer than [`LONGEST`].
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
        // SAFETY: the room was checked; base and end are those of a slice; the table holds positions before the end of an earlier
        // run, which is at or before `start`; `fast` is only true if the CPU has the features.
        let run = unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.fast {
                pack_all_avx2(run, start)
            } else {
                run.pack_all::<Words, true>(start)
            }
            #[cfg(not(target_arch = "x86_64"))]
            run.pack_all::<Words, true>(start)
        };
        Written { bytes: run.next as usize - next as usize, hold: run.hold, count: run.count }
    }
}
