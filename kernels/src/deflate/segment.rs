// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a message into segments, and packs one after the other in the same scratch memory.
//!
//! - **Flow** [`survey`](super::survey) checks a segment for matches of three bytes and so chooses the shape of the search, which makes
//!   tokens. They become a block. Few tokens instead wait for those of the next segment, because a code of their own would cost as much
//!   as the tokens.
//! - **Order** the shape is chosen by the message's size, if that is known. The search is deeper if the last bytes gave few tokens,
//!   because then there is more to choose from and more time; it is shallow if they had next to no matches.
//! - **Owner** waiting tokens stay here until a call that does not allow them to wait.

use super::bits::Bits;
use super::block::{Full, Writer};
use super::code_table::Counts;
use super::codes::WINDOW_BYTES;
use super::direct::{self, Direct};
use super::effort::Effort;
use super::matcher::{Depth, Found, Matcher};
use super::preset::Preset;
use super::room::zeros;
use super::slot::{Shape, Ways};
use super::survey::repeats_threes;
use crate::Isa;
use core::mem::MaybeUninit;

/// Usual size of a segment of a long message. The last segment may have up to [`WINDOW_BYTES`].
pub const SEGMENT_BYTES: usize = 24576;

/// Messages up to this size use one position per hash: there is little to choose from, and less memory to clear.
const SMALL_BYTES: usize = 6144;
const SMALL: Shape = Shape { ways: Ways::One, hash_bits: 13, shortest: 5 };
/// Shape for messages of one segment.
const MIDDLE: Shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 5 };
const LARGE: Shape = Shape { ways: Ways::Four, hash_bits: 13, shortest: 5 };
/// Shape of [`Effort::Fast`], for bytes that the preset code does not suit.
const FAST: Shape = Shape { ways: Ways::Two, hash_bits: 12, shortest: 5 };
/// Shape for segments with many matches of three bytes.
const THREES: Shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 3 };
/// Bytes of history that are inserted again when the shape changes.
const AGAIN_BYTES: usize = 16384;

/// The search of a message's first segment is adjusted after each piece of this size; a quarter of it is too little to judge by.
const PIECE_BYTES: usize = 4096;
/// A search is made deep if it gives fewer than one token per `DEEP` bytes in messages of many segments, or per `DEEP_MIDDLE`
/// bytes in shorter ones, where time matters more. With fewer than one token per `WIDE` bytes, long messages use eight
/// positions per hash.
const DEEP_MIDDLE: usize = 9;
const DEEP: usize = 4;
const WIDE: usize = 6;

/// Eight positions per hash are used from `WIDE_FROM` bytes of a message on; before, there is too little to choose from. If their
/// older half gains less than one byte in `NARROW`, they are given up until `WIDE_AGAIN` bytes, and then tried again.
const WIDE_FROM: usize = 16384;
const NARROW: usize = 32;
const WIDE_AGAIN: usize = 4 * SEGMENT_BYTES;

/// A search is made shallow if fewer than one byte in this many shares its token with another byte.
const SHALLOW_RATIO: usize = 64;

/// The tokens of a segment may wait for those of the next if there are fewer than one per this many bytes.
const SPARSE: usize = 16;
/// The tokens of a segment of at least this many bytes may wait, as long as fewer than `WAITING_TOKENS_MAX` tokens wait in all.
const SPARSE_BYTES: usize = 2048;
const WAITING_TOKENS_MAX: usize = 2048;
/// Most bytes of a token, and of a block besides its tokens.
const TOKEN_BYTES: usize = 6;
const BLOCK_BYTES: usize = 512;

/// Most bytes that waiting tokens add to the output of the segment that ends the wait.
pub const WAITING_BYTES_MAX: usize = WAITING_TOKENS_MAX * TOKEN_BYTES + BLOCK_BYTES;

/// Number of bytes that are sampled before the preset code is tried, and the average code length up to which it is, bits.
const SAMPLES: usize = 64;
const RARE_BITS: u32 = 9;

/// Scratch memory of a packer.
pub struct Segments {
    matcher: Matcher,
    direct: Direct,
    /// True if the table of `matcher`, or of `direct`, holds positions.
    matcher_used: bool,
    direct_used: bool,
    /// The shape for most segments of the message.
    shape: Shape,
    /// Depth chosen from the last bytes; `None` before the first segment of a message.
    depth: Option<Depth>,
    /// Number of bytes of the message that were judged, and number from which on eight positions per hash may be used.
    judged: usize,
    wide_from: usize,
    preset: Preset,
    writer: Writer,
    counts: Counts,
    /// The waiting tokens, then those of the segment.
    tokens: Box<[u32]>,
    held: usize,
    held_counts: Counts,
    scratch: Box<[u8]>,
}

impl Segments {
    /// Allocates the memory; returns `None` if there is none.
    pub fn new(isa: Isa) -> Option<Segments> {
        Some(Segments {
            matcher: Matcher::new(isa, LARGE)?,
            direct: Direct::new(isa)?,
            matcher_used: false,
            direct_used: false,
            shape: LARGE,
            depth: None,
            judged: 0,
            wide_from: WIDE_FROM,
            preset: Preset::new(),
            writer: Writer::new(isa),
            counts: Counts::new(),
            tokens: zeros(WINDOW_BYTES + WAITING_TOKENS_MAX + WINDOW_BYTES / SPARSE)?,
            held: 0,
            held_counts: Counts::new(),
            scratch: zeros(direct::room(WINDOW_BYTES))?,
        })
    }

    /// Begins a message of at most `bytes` bytes, or of unknown length.
    pub fn begin(&mut self, effort: Effort, bytes: Option<usize>) {
        self.shape = match (bytes.unwrap_or(usize::MAX), effort) {
            (..=SMALL_BYTES, _) => SMALL,
            (_, Effort::Fast) => FAST,
            (..=WINDOW_BYTES, _) => MIDDLE,
            _ => LARGE,
        };
        self.forget();
    }

    /// Forgets the history, and drops the waiting tokens.
    pub fn forget(&mut self) {
        if core::mem::take(&mut self.direct_used) {
            self.direct.clear();
        }
        if core::mem::take(&mut self.matcher_used) || self.matcher.shape() != self.shape {
            self.matcher.reshape(self.shape);
        }
        self.depth = None;
        (self.judged, self.wide_from) = (0, WIDE_FROM);
        self.held = 0;
    }

    /// Moves the base: the buffer of the next [`pack_segment`](Segments::pack_segment) starts `bytes` later.
    pub fn rebase(&mut self, bytes: usize) {
        debug_assert!(bytes <= usize::from(u16::MAX));
        self.matcher.rebase(bytes as u16);
        self.direct.rebase(bytes as u16);
    }

    /// Inserts `bytes` as history, beginning at the base.
    pub fn learn(&mut self, bytes: &[u8]) {
        self.matcher_used = true;
        self.matcher.learn(bytes, 0);
    }

    /// Returns true if there are waiting tokens.
    pub fn holds(&self) -> bool {
        self.held != 0
    }

    /// Packs `buffer[start..]`, at most 32 KiB, with the history before it. Writes all of it as one block, after the waiting
    /// tokens, unless `may_wait` is true and its tokens are few: then they wait.
    #[expect(clippy::too_many_arguments, reason = "what a block is made of and where it goes")]
    pub fn pack_segment(
        &mut self,
        effort: Effort,
        buffer: &[u8],
        start: usize,
        window: usize,
        last: bool,
        may_wait: bool,
        bits: &mut Bits<'_>,
    ) -> Result<(), Full> {
        let source = &buffer[start..];
        if effort == Effort::Fast {
            if self.holds() {
                self.write_held(false, bits)?;
            }
            if self.direct(buffer, start, window, last, bits) {
                return Ok(());
            }
        }
        self.counts.clear();
        let used = self.find(effort, buffer, start, window);
        let sparse = source.len() >= SPARSE_BYTES && used * SPARSE <= source.len();
        if (sparse && (may_wait || self.holds())) || (source.is_empty() && self.holds()) {
            if !self.holds() {
                self.held_counts.clear();
            }
            self.held_counts.add(&self.counts);
            self.held += used;
            return if may_wait && self.held < WAITING_TOKENS_MAX {
                Ok(())
            } else {
                self.write_held(last, bits)
            };
        }
        let held = self.held;
        if self.holds() {
            self.write_held(false, bits)?;
        }
        let tokens = &self.tokens[held..held + used];
        self.writer.write(Some(source), tokens, &self.counts, &self.preset, last, bits)
    }

    /// Writes the waiting tokens as one block.
    fn write_held(&mut self, last: bool, bits: &mut Bits<'_>) -> Result<(), Full> {
        let tokens = &self.tokens[..core::mem::take(&mut self.held)];
        self.writer.write(None, tokens, &self.held_counts, &self.preset, last, bits)
    }

    /// Appends tokens for `buffer[start..]` to the waiting ones, and counts them. Returns their number.
    fn find(&mut self, effort: Effort, buffer: &[u8], start: usize, window: usize) -> usize {
        let source = &buffer[start..];
        self.matcher_used = true;
        if effort != Effort::Fast && repeats_threes(source) {
            self.take_shape(THREES, &buffer[..start]);
        } else if self.matcher.shape().shortest != self.shape.shortest {
            self.take_shape(self.shape, &buffer[..start]);
        }
        // The search of a message's first segment is adjusted after each piece, that of a message with one segment only once,
        // early.
        let known =
            self.judged >= SEGMENT_BYTES - PIECE_BYTES || self.shape == SMALL || effort == Effort::Fast;
        let (mut at, mut used) = (start, 0);
        while at < buffer.len() {
            let rest = buffer.len() - at;
            let later = self.shape == MIDDLE && used != 0;
            let pause =
                if known || later || rest < 2 * PIECE_BYTES { buffer.len() } else { at + PIECE_BYTES };
            let depth = self.depth.unwrap_or(Depth::Usual);
            let tokens = &mut self.tokens[self.held + used..];
            let found = self.matcher.find(buffer, at, pause, window, depth, tokens, &mut self.counts);
            self.adjust_search(&found, found.at - at);
            (at, used) = (found.at, used + found.tokens);
        }
        used
    }

    /// Changes the shape of the table, and inserts the positions of the last bytes of the history again.
    fn take_shape(&mut self, shape: Shape, history: &[u8]) {
        if self.matcher.shape() != shape {
            self.matcher.reshape(shape);
            self.matcher.learn(history, history.len().saturating_sub(AGAIN_BYTES));
        }
    }

    /// Chooses depth and positions per hash for the next bytes from the result of the last search.
    fn adjust_search(&mut self, found: &Found, bytes: usize) {
        self.judged += bytes;
        if bytes < PIECE_BYTES / 4 {
            return;
        }
        let shallow = (bytes - found.tokens) * SHALLOW_RATIO < bytes;
        let deep = found.tokens * if self.shape == LARGE { DEEP } else { DEEP_MIDDLE } < bytes;
        self.depth = Some(if deep {
            Depth::Deep
        } else if shallow {
            Depth::Shallow
        } else {
            Depth::Usual
        });
        let shape = self.matcher.shape();
        if self.shape != LARGE || shape.shortest != self.shape.shortest {
            return;
        }
        if shape.ways == Ways::Eight && self.judged < WIDE_AGAIN && found.gain * NARROW < bytes {
            self.wide_from = WIDE_AGAIN;
        }
        if found.tokens * WIDE < bytes && self.judged >= self.wide_from {
            self.matcher.set_ways(Ways::Eight);
        } else if !deep || self.judged < self.wide_from {
            self.matcher.set_ways(self.shape.ways);
        }
    }

    /// Writes `buffer[start..]` with the preset code and returns true, if that makes it clearly smaller.
    fn direct(
        &mut self,
        buffer: &[u8],
        start: usize,
        window: usize,
        last: bool,
        bits: &mut Bits<'_>,
    ) -> bool {
        let bytes = buffer.len() - start;
        // If the sampled bytes have long codes on average, the preset code will not make them smaller.
        let sample = |at: usize| self.preset.code.literal(buffer[start + at * bytes / SAMPLES]).1;
        if bytes == 0 || (0..SAMPLES).map(sample).sum::<u32>() > RARE_BITS * SAMPLES as u32 {
            return false;
        }
        let (hold, count) = bits.rest();
        let mut front = [MaybeUninit::uninit(); 256];
        let mut front = Bits::new(&mut front, hold, count);
        self.preset.begin(last, &mut front);
        self.direct_used = true;
        let body =
            self.direct.write(&self.preset.code, buffer, start, window, &mut self.scratch, front.rest());
        let total = front.bytes() + body.bytes + 8;
        if total > bytes / 8 * 5 || total > bits.room() {
            return false;
        }
        bits.adopt(front.written(), 0, 0);
        bits.adopt(&self.scratch[..body.bytes], body.hold, body.count);
        self.preset.code.end(bits);
        true
    }

    /// Packs a whole message.
    pub fn pack_message(&mut self, effort: Effort, source: &[u8], bits: &mut Bits<'_>) -> Result<(), Full> {
        self.begin(effort, Some(source.len()));
        let (mut base, mut start) = (0, 0);
        loop {
            let rest = source.len() - start;
            let end = if rest <= WINDOW_BYTES { source.len() } else { start + SEGMENT_BYTES };
            if start - base > WINDOW_BYTES {
                let by = start - base - WINDOW_BYTES;
                self.rebase(by);
                base += by;
            }
            let last = end == source.len();
            self.pack_segment(effort, &source[base..end], start - base, WINDOW_BYTES, last, !last, bits)?;
            if end == source.len() {
                return Ok(());
            }
            start = end;
        }
    }
}
