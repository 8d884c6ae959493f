// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packs messages in pieces of any size: [`PackStream`].
//!
//! - **Flow** input is copied to `buffer` (history, then up to 32 KiB that are not packed yet). When these are full or flushed, they
//!   become a block, directly in the caller's output if there is room, else in `pending`, from where the output is filled.
//! - **Layout** `buffer` is 64 KiB: `..done` is history, `done..filled` is not packed yet; when the buffer is full, its upper half moves
//!   down.
//! - **Order** a flush happens after everything before it was read; the next push writes what did not fit into the output.
//! - **Owner** `new` allocates everything; `reset` starts the next message in the same memory.

use super::bits::Bits;
use super::block::stored;
use super::codes::WINDOW_BYTES;
use super::room::{no_memory, zeros};
use super::segment::{Segments, WAITING_BYTES_MAX};
use super::{Effort, Format, checksum, frame};
use core::mem::MaybeUninit;

/// The flush that a push does after its input was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// No flush; the stream may keep bytes back.
    None,
    /// Writes everything that was read, up to a whole byte, so that a reader can unpack all of it (zlib's `Z_SYNC_FLUSH`).
    Sync,
    /// Does the same as `Sync` and forgets the history, so that a reader can start here (zlib's `Z_FULL_FLUSH`).
    Full,
    /// Ends the message.
    Finish,
}

/// Progress of one push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// Bytes of the input that were read.
    pub read: usize,
    /// Bytes of the output that were written.
    pub written: usize,
    /// True if there is more to write: push again with the rest of the input, new output and the same flush.
    pub more: bool,
}

const BUFFER_BYTES: usize = 2 * WINDOW_BYTES;
/// Most bytes that are written at a time: start of the frame, waiting tokens, a stored block of 32 KiB, a flush, end of the
/// frame.
const PENDING_BYTES: usize = WINDOW_BYTES + WAITING_BYTES_MAX + 64;

/// Packs one message after the other, each in pieces of any size, with a fixed amount of memory (about 460 KiB).
pub struct PackStream {
    segments: Segments,
    format: Format,
    effort: Effort,
    window_bits: u32,
    buffer: Box<[u8]>,
    done: usize,
    filled: usize,
    pending: Box<[u8]>,
    pending_at: usize,
    pending_end: usize,
    hold: u64,
    count: u32,
    sum: u32,
    total: u64,
    begun: bool,
    ended: bool,
    /// True if something was read since the last flush.
    unflushed: bool,
}

impl PackStream {
    /// Allocates all memory; ends the process if there is none.
    pub fn new(format: Format, effort: Effort) -> PackStream {
        PackStream::try_new(format, effort).unwrap_or_else(|| no_memory::<PackStream>())
    }

    /// Allocates all memory; returns `None` if there is none.
    pub fn try_new(format: Format, effort: Effort) -> Option<PackStream> {
        Some(PackStream {
            segments: Segments::new(crate::active().isa)?,
            format,
            effort,
            window_bits: 15,
            buffer: zeros(BUFFER_BYTES)?,
            done: 0,
            filled: 0,
            pending: zeros(PENDING_BYTES)?,
            pending_at: 0,
            pending_end: 0,
            hold: 0,
            count: 0,
            sum: checksum::initial(format),
            total: 0,
            begun: false,
            ended: false,
            unflushed: true,
        })
    }

    /// Drops the current message and starts the next one.
    pub fn reset(&mut self, format: Format, effort: Effort) {
        (self.format, self.effort, self.window_bits) = (format, effort, 15);
        (self.done, self.filled, self.pending_at, self.pending_end) = (0, 0, 0, 0);
        (self.hold, self.count) = (0, 0);
        (self.sum, self.total) = (checksum::initial(format), 0);
        (self.begun, self.ended, self.unflushed) = (false, false, true);
    }

    /// Limits distances to 2^`bits` bytes (8–15; 15 by default): the size of the reader's window.
    pub fn set_window_bits(&mut self, bits: u32) {
        self.window_bits = bits.clamp(8, 15);
    }

    /// Gives the stream history that the reader has as well (its preset dictionary, which ends with `bytes`). Call it before
    /// the first push. A zlib frame does not tell the reader about the dictionary, so use it with `Format::Raw`.
    pub fn set_history(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(WINDOW_BYTES)..];
        self.segments.begin(self.effort, None);
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        self.segments.learn(&self.buffer[..bytes.len()]);
        (self.done, self.filled) = (bytes.len(), bytes.len());
    }

    /// Returns true if the message has ended and all of it was written.
    pub fn is_finished(&self) -> bool {
        self.ended && self.pending_at == self.pending_end
    }

    /// Reads input and writes output, as far as there is both. A flush takes effect after all input was read; a second flush
    /// without input in between writes nothing. After the end of the message nothing is read.
    pub fn push(&mut self, input: &[u8], output: &mut [u8], flush: Flush) -> Pushed {
        let bytes = output.len();
        // SAFETY: the slice has the same bytes, and only initialized bytes are written to them.
        let output = unsafe { core::slice::from_raw_parts_mut(output.as_mut_ptr().cast(), bytes) };
        self.push_uninit(input, output, flush)
    }

    /// Does the same as [`push`](PackStream::push), into memory that need not be initialized.
    pub fn push_uninit(&mut self, input: &[u8], output: &mut [MaybeUninit<u8>], flush: Flush) -> Pushed {
        let (mut read, mut written) = (0, 0);
        loop {
            written += self.drain(&mut output[written..]);
            let more = self.pending_at != self.pending_end;
            if more || self.ended {
                return Pushed { read, written, more };
            }
            if self.filled == BUFFER_BYTES && self.done == BUFFER_BYTES {
                self.buffer.copy_within(WINDOW_BYTES.., 0);
                self.segments.rebase(WINDOW_BYTES);
                (self.done, self.filled) = (WINDOW_BYTES, WINDOW_BYTES);
            }
            let room = (BUFFER_BYTES - self.filled).min(WINDOW_BYTES - (self.filled - self.done));
            let take = room.min(input.len() - read);
            let piece = &input[read..read + take];
            self.buffer[self.filled..self.filled + take].copy_from_slice(piece);
            self.sum = checksum::update(self.format, self.sum, piece);
            self.total += take as u64;
            self.filled += take;
            read += take;
            self.unflushed |= take != 0;
            let flush_now = if read == input.len() { flush } else { Flush::None };
            let full = take == room && self.filled != self.done;
            match flush_now {
                Flush::None if !full => return Pushed { read, written, more: false },
                Flush::Sync | Flush::Full if !self.unflushed => return Pushed { read, written, more: false },
                _ => written += self.write(&mut output[written..], flush_now),
            }
        }
    }

    /// Moves pending output to `output`; returns the number of bytes.
    fn drain(&mut self, output: &mut [MaybeUninit<u8>]) -> usize {
        let waiting = &self.pending[self.pending_at..self.pending_end];
        let take = waiting.len().min(output.len());
        for (target, source) in output.iter_mut().zip(waiting) {
            target.write(*source);
        }
        self.pending_at += take;
        take
    }

    /// Writes the unpacked bytes as one block, and then the flush. Returns the number of bytes that went to `output`.
    fn write(&mut self, output: &mut [MaybeUninit<u8>], flush: Flush) -> usize {
        let held = if self.segments.holds() { WAITING_BYTES_MAX } else { 0 };
        let direct = output.len() >= self.filled - self.done + held + 64;
        let pending = &mut *self.pending;
        // SAFETY: the slice has the same bytes, and only initialized bytes are written to them.
        let pending = unsafe { core::slice::from_raw_parts_mut(pending.as_mut_ptr().cast(), pending.len()) };
        let mut bits = Bits::new(if direct { output } else { pending }, self.hold, self.count);
        if !self.begun {
            if self.done == 0 {
                let all = (flush == Flush::Finish).then_some(self.filled);
                self.segments.begin(self.effort, all);
            }
            frame::front(self.format, self.effort, self.window_bits, &mut bits);
            self.begun = true;
        }
        let last = flush == Flush::Finish;
        if self.done != self.filled || last || self.segments.holds() {
            let buffer = &self.buffer[..self.filled];
            let (window, may_wait) = (1 << self.window_bits, flush == Flush::None);
            let done =
                self.segments.pack_segment(self.effort, buffer, self.done, window, last, may_wait, &mut bits);
            debug_assert!(done.is_ok(), "there is room for a stored block");
            self.done = self.filled;
        }
        match flush {
            Flush::None => {}
            Flush::Sync | Flush::Full => {
                stored(&[], false, &mut bits);
                self.unflushed = false;
                if flush == Flush::Full {
                    self.segments.forget();
                    (self.done, self.filled) = (0, 0);
                }
            }
            Flush::Finish => {
                bits.align();
                frame::back(self.format, self.sum, self.total, &mut bits);
                self.ended = true;
            }
        }
        debug_assert!(bits.fits());
        (self.hold, self.count) = bits.rest();
        let bytes = bits.bytes();
        if direct {
            return bytes;
        }
        (self.pending_at, self.pending_end) = (0, bytes);
        0
    }
}
