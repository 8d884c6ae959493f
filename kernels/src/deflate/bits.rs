// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bit writer: bits into bytes, lowest bit first, never past the end of the target.
//!
//! - **Flow** `put` adds bits to a 64-bit buffer, `hold`; `flush` stores its whole bytes. After a `flush` at most 7 bits are in `hold`,
//!   so 57 bits fit between two flushes.
//! - **Owner** the caller of [`Bits::new`] lends the target. A write that does not fit is dropped and remembered: [`Bits::fits`] then
//!   returns false, and the caller checks it before it starts a block.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// A writer of bits.
pub struct Bits<'a> {
    start: *mut u8,
    next: *mut u8,
    end: *mut u8,
    hold: u64,
    count: u32,
    overflow: bool,
    target: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> Bits<'a> {
    /// Starts at the target's first byte; `hold` has `count` bits already (at most 7).
    pub fn new(target: &'a mut [MaybeUninit<u8>], hold: u64, count: u32) -> Bits<'a> {
        let span = target.as_mut_ptr_range();
        let start = span.start.cast();
        Bits { start, next: start, end: span.end.cast(), hold, count, overflow: false, target: PhantomData }
    }

    /// Returns the number of bytes stored so far.
    pub fn bytes(&self) -> usize {
        self.next as usize - self.start as usize
    }

    /// Returns the whole bytes stored so far.
    pub fn written(&self) -> &[u8] {
        // SAFETY: everything from `start` to `next` was written, and the target is borrowed by this writer.
        unsafe { core::slice::from_raw_parts(self.start, self.bytes()) }
    }

    /// Appends the output of another writer that started with this writer's unstored bits: its whole bytes and its unstored bits.
    pub fn adopt(&mut self, bytes: &[u8], hold: u64, count: u32) {
        (self.hold, self.count) = (0, 0);
        self.bytes_from(bytes);
        (self.hold, self.count) = (hold, count);
    }

    /// Returns the number of bytes that still fit into the target.
    pub fn room(&self) -> usize {
        self.end as usize - self.next as usize
    }

    /// Returns the bits that are not stored yet (at most 7 after a flush), and their number.
    pub fn rest(&self) -> (u64, u32) {
        (self.hold, self.count)
    }

    /// Returns true if everything fitted so far.
    pub fn fits(&self) -> bool {
        !self.overflow
    }

    /// Adds the low `count` bits of `value`, whose other bits are zero.
    #[inline(always)]
    pub fn put(&mut self, value: u64, count: u32) {
        debug_assert!(self.count + count <= 64);
        self.hold |= value << self.count;
        self.count += count;
    }

    /// Stores the whole bytes.
    #[inline(always)]
    pub fn flush(&mut self) {
        if self.room() >= 8 {
            // SAFETY: eight bytes of the target, which is borrowed for `'a`, are left.
            unsafe { self.flush_wide() }
        } else {
            self.flush_narrow();
        }
    }

    /// Stores the whole bytes without a check of the room.
    ///
    /// # Safety
    /// At least eight bytes of the target are left.
    #[inline(always)]
    pub unsafe fn flush_wide(&mut self) {
        debug_assert!(self.room() >= 8);
        let bytes = self.count >> 3;
        // SAFETY: the caller guarantees room for eight bytes, of which at most 7 count as written (8 if `count` is 64).
        unsafe {
            self.next.cast::<u64>().write_unaligned(self.hold.to_le());
            self.next = self.next.add(bytes as usize);
        }
        self.hold = if bytes == 8 { 0 } else { self.hold >> (bytes * 8) };
        self.count &= 7;
    }

    /// Adds the code that `code` returns for each token (a value of at most 56 bits whose other bits are zero, and its length)
    /// and stores the whole bytes.
    #[inline(always)]
    pub fn put_each(&mut self, tokens: &[u32], code: impl Fn(u32) -> (u64, u32)) {
        for some in tokens.chunks(16) {
            if self.room() < 16 * 8 {
                for &token in some {
                    let (value, count) = code(token);
                    self.put(value, count);
                    self.flush();
                }
                continue;
            }
            let (mut next, mut hold, mut count) = (self.next, self.hold, self.count);
            for &token in some {
                let (value, bits) = code(token);
                hold |= value << count;
                count += bits;
                // SAFETY: each token advances by at most 7 bytes, and there are at most 16 tokens; 16 × 8 bytes are left.
                unsafe {
                    next.cast::<u64>().write_unaligned(hold.to_le());
                    next = next.add((count >> 3 & 7) as usize);
                }
                hold >>= count & 56;
                count &= 7;
            }
            (self.next, self.hold, self.count) = (next, hold, count);
        }
    }

    #[cold]
    fn flush_narrow(&mut self) {
        while self.count >= 8 {
            if self.next == self.end {
                self.overflow = true;
            } else {
                // SAFETY: `next` is before the end of the target.
                unsafe {
                    self.next.write(self.hold as u8);
                    self.next = self.next.add(1);
                }
            }
            self.hold >>= 8;
            self.count -= 8;
        }
    }

    /// Fills up with zero bits to a whole byte and stores it.
    pub fn align(&mut self) {
        self.count = self.count.next_multiple_of(8);
        self.flush();
    }

    /// Copies whole bytes. The writer is aligned and flushed.
    pub fn bytes_from(&mut self, source: &[u8]) {
        debug_assert_eq!(self.count, 0);
        if self.room() < source.len() {
            self.overflow = true;
            return;
        }
        // SAFETY: the room was checked; the target is borrowed mutably, so it does not overlap the source.
        unsafe {
            self.next.copy_from_nonoverlapping(source.as_ptr(), source.len());
            self.next = self.next.add(source.len());
        }
    }
}
