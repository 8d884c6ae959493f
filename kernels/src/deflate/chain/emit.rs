// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the blocks of a stream, as far as the output has room.
//!
//! - **Flow** [`Chains::begin_block`] chooses the encoding of a block and puts its header into the pending bytes. [`Chains::drain`]
//!   writes the pending bytes, then the tokens, or the bytes of a stored block from the window, then the end of the block.
//! - **Order** no input is read while a block is being written, so its tokens and bytes stay in place.

use super::level::{SearchMethod, Strategy};
use super::{Chains, Codes, Io, PENDING_BYTES};
use crate::deflate::bits::Bits;
use crate::deflate::block::{Plan, stored_bits};
use crate::deflate::code_table::{FIXED, Table};
use crate::deflate::contents::Contents;
use core::mem::MaybeUninit;

/// The part of a block that is still to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit {
    Idle,
    /// Tokens from index `at` on, by the fixed code or the block's own.
    Tokens {
        at: usize,
        fixed: bool,
        last: bool,
    },
    /// Bytes of the window, as a stored block.
    Stored {
        at: usize,
        end: usize,
        last: bool,
    },
}

/// A block that takes at most this many bits with the fixed code gets no code of its own, whose header would take most of it.
const SMALL_BITS: usize = 256;
/// Most bytes that one token takes, together with the unstored bits before it.
const TOKEN_BYTES: usize = 7;
/// Most bytes of a stored block.
pub(super) const STORED_BYTES: usize = 65535;

impl Chains {
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is the stream's alone, and callers borrow the stream mutably"
    )]
    fn codes(&self) -> &mut Codes {
        // SAFETY: `new` initialized the codes, in memory that only this stream uses.
        unsafe { &mut *self.codes.as_ptr() }
    }

    /// Writes bits into the pending bytes, which have room for a block's header and for the bytes of a flush.
    fn put(&mut self, write: impl FnOnce(&mut Bits<'_>)) {
        let mut bytes = [MaybeUninit::uninit(); PENDING_BYTES];
        let mut bits = Bits::new(&mut bytes[..PENDING_BYTES - self.pending_end], self.hold, self.count);
        write(&mut bits);
        bits.flush();
        debug_assert!(bits.fits());
        let written = bits.written();
        self.pending[self.pending_end..self.pending_end + written.len()].copy_from_slice(written);
        self.pending_end += written.len();
        (self.hold, self.count) = bits.rest();
    }

    /// Begins one block of the tokens or of stored bytes. The previous block must be written completely.
    pub(super) fn begin_block(&mut self, last: bool) {
        let end = self.start - usize::from(self.available);
        let stored = usize::try_from(self.block).ok().filter(|from| end - from <= STORED_BYTES);
        self.block = end as isize;
        if self.level.method != SearchMethod::Stored && self.contents.is_none() {
            self.contents = Some(Contents::of_literals(&self.codes().counts));
        }
        let counts = &self.codes().counts;
        let stored_size = stored.map_or(usize::MAX, |from| stored_bits(self.count, end - from));
        if self.level.method == SearchMethod::Stored && self.used == 0 {
            return self.begin_stored(stored.unwrap_or(end), end, last);
        }
        let fixed_size = 3 + FIXED.price(counts);
        let plan = (self.strategy != Strategy::Fixed && fixed_size > SMALL_BITS).then(|| Plan::new(counts));
        let own_size = plan.as_ref().map_or(usize::MAX, |plan| plan.bits);
        if let Some(from) = stored
            && stored_size <= own_size.min(fixed_size)
        {
            self.used = 0;
            return self.begin_stored(from, end, last);
        }
        let fixed = fixed_size <= own_size;
        let kind = if fixed { 1 } else { 2 };
        self.put(|bits| {
            bits.put(u64::from(last) | kind << 1, 3);
            bits.flush();
            if let Some(plan) = plan.as_ref().filter(|_| !fixed) {
                plan.header.write(bits);
            }
        });
        if let Some(plan) = plan.filter(|_| !fixed) {
            self.codes().table.fill(&plan.litlen, &plan.distance);
        }
        self.emit = Emit::Tokens { at: 0, fixed, last };
    }

    fn begin_stored(&mut self, at: usize, end: usize, last: bool) {
        self.codes().counts.clear();
        self.put_stored(end - at, last);
        self.emit = Emit::Stored { at, end, last };
    }

    /// Puts the header of a stored block into the pending bytes.
    fn put_stored(&mut self, bytes: usize, last: bool) {
        self.put(|bits| {
            bits.put(last.into(), 3);
            bits.align();
            bits.put((bytes | (bytes ^ 0xffff) << 16) as u64, 32);
        });
    }

    /// Adds an empty stored block, which ends at a whole byte: the mark of a sync flush.
    pub fn put_sync(&mut self) {
        self.put_stored(0, false);
    }

    /// Adds an empty block with the fixed code: the mark of a partial flush.
    pub fn put_align(&mut self) {
        self.put(|bits| bits.put(1 << 1, 10));
    }

    /// Adds whole bytes, at most 512, after the bits so far have been filled up to a whole byte.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.put(|bits| {
            bits.align();
            bits.bytes_from(bytes);
        });
    }

    /// Adds bits; returns false if there is no room for them or a block is being written.
    pub fn put_bits(&mut self, value: u32, count: u32) -> bool {
        let fits = self.emit == Emit::Idle && self.pending_end + 16 <= PENDING_BYTES;
        if fits {
            self.put(|bits| bits.put(value.into(), count));
        }
        fits
    }

    /// Returns true if something is still to be written.
    pub fn has_pending(&self) -> bool {
        self.emit != Emit::Idle || self.pending_at != self.pending_end
    }

    /// Returns the number of bytes that are still to be written, and the number of unstored bits behind them.
    pub fn pending(&self) -> (usize, u32) {
        let pending = self.pending_end - self.pending_at;
        let bits = match self.emit {
            Emit::Idle => self.count as usize,
            Emit::Stored { at, end, .. } => 8 * (end - at),
            Emit::Tokens { at, fixed, last } => {
                let table = if fixed { &FIXED } else { &self.codes().table };
                let bits: usize =
                    self.tokens_from(at).iter().map(|&token| table.pair(token).1 as usize).sum();
                let bits = self.count as usize + bits + table.end_bits();
                if last { bits.next_multiple_of(8) } else { bits }
            }
        };
        (pending + bits / 8, bits as u32 % 8)
    }

    fn tokens_from(&self, at: usize) -> &[u32] {
        // SAFETY: `used` tokens were written.
        unsafe { core::slice::from_raw_parts(self.tokens.as_ptr().add(at), self.used - at) }
    }

    /// Writes as much as the output has room for; returns true if everything was written.
    pub fn drain(&mut self, io: &mut Io<'_>) -> bool {
        loop {
            let take = (self.pending_end - self.pending_at).min(io.room());
            let pending = &self.pending[self.pending_at..self.pending_at + take];
            for (target, byte) in io.output[io.written..].iter_mut().zip(pending) {
                target.write(*byte);
            }
            io.written += take;
            self.pending_at += take;
            if self.pending_at != self.pending_end {
                return false;
            }
            (self.pending_at, self.pending_end) = (0, 0);
            match self.emit {
                Emit::Idle => return true,
                _ if io.room() == 0 => return false,
                Emit::Tokens { at, fixed, last } => self.drain_tokens(io, at, fixed, last),
                Emit::Stored { at, end, last } => {
                    let take = (end - at).min(io.room());
                    // SAFETY: the bytes to store were read into the window, and the output's room was checked.
                    unsafe {
                        let target = io.output.as_mut_ptr().add(io.written).cast::<u8>();
                        target.copy_from_nonoverlapping(self.window.as_ptr().add(at), take);
                    }
                    io.written += take;
                    self.emit =
                        if at + take == end { Emit::Idle } else { Emit::Stored { at: at + take, end, last } };
                }
            }
        }
    }

    fn drain_tokens(&mut self, io: &mut Io<'_>, at: usize, fixed: bool, last: bool) {
        let fast = self.fast;
        // SAFETY: `new` initialized the codes, in memory that only this stream uses; they do not change while tokens are written.
        let table: &Table = if fixed { &FIXED } else { unsafe { &(*self.codes.as_ptr()).table } };
        // SAFETY: `used` tokens were written, and they stay while they are borrowed.
        let tokens = unsafe { core::slice::from_raw_parts(self.tokens.as_ptr().add(at), self.used - at) };
        if tokens.is_empty() {
            self.put(|bits| {
                table.end(bits);
                if last {
                    bits.align();
                }
            });
            self.used = 0;
            self.codes().counts.clear();
            self.emit = Emit::Idle;
            return;
        }
        let take = (io.room() / TOKEN_BYTES).min(tokens.len());
        if take == 0 {
            self.put(|bits| table.write_some(&tokens[..1], fast, bits));
        } else {
            let mut bits = Bits::new(&mut io.output[io.written..], self.hold, self.count);
            table.write_some(&tokens[..take], fast, &mut bits);
            debug_assert!(bits.fits());
            io.written += bits.bytes();
            (self.hold, self.count) = bits.rest();
        }
        self.emit = Emit::Tokens { at: at + take.max(1), fixed, last };
    }
}
