// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A message cut into segments: found and written with the same scratch memory.
//!
//! - **Flow** segment ──[`survey`](super::survey): matches of three bytes?──▶ the search's shape ──▶ tokens ──▶ a block; or,
//!   where the tokens are few, they wait for the next segment's, because a block's code would cost as much as they
//! - **Order** the shape is chosen by the message's size, if known. The search is made deeper where the last bytes took few
//!   tokens, because there is more to choose from and more time, and shallow where they had next to no matches.
//! - **Owner** tokens that wait stay here until a call that may not hold them.

use super::bits::Bits;
use super::block::{Counts, Full, Writer};
use super::codes::WINDOW_BYTES;
use super::direct::{self, Direct};
use super::matcher::{Depth, Found, Matcher};
use super::pack::Effort;
use super::preset::Preset;
use super::room::zeros;
use super::slot::{Shape, Ways};
use super::survey::repeats_threes;
use crate::Isa;
use core::mem::MaybeUninit;

/// The usual size of a segment of a long message. The last one may have up to [`WINDOW_BYTES`].
pub const SEGMENT_BYTES: usize = 24576;

/// Messages up to this size remember one place per hash: there is little to choose from, and less to clear.
const SMALL_BYTES: usize = 6144;
const SMALL: Shape = Shape { ways: Ways::One, hash_bits: 13, shortest: 5 };
/// The shape for messages of one segment.
const MIDDLE: Shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 5 };
const LARGE: Shape = Shape { ways: Ways::Four, hash_bits: 13, shortest: 5 };
/// The shape of [`Effort::Fast`], for bytes that the preset code does not fit.
const FAST: Shape = Shape { ways: Ways::Two, hash_bits: 12, shortest: 5 };
/// The shape for segments with many matches of three bytes.
const THREES: Shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 3 };
/// Bytes of history that are learned again for another shape.
const AGAIN_BYTES: usize = 16384;

/// The first segment of a message is judged in pieces of this size; a quarter of it is too little to tell.
const PIECE_BYTES: usize = 4096;
/// A search is made deep if it gives fewer tokens than one per this many bytes: `DEEP` in messages of many segments,
/// `DEEP_MIDDLE` in shorter ones, which are short of time. Below one per `WIDE`, long messages use eight places per hash.
const DEEP_MIDDLE: usize = 9;
const DEEP: usize = 4;
const WIDE: usize = 6;

/// Eight places per hash are used from `WIDE_FROM` bytes of a message on; before, there is too little to choose from. If their
/// older half gains less than one byte in `NARROW`, they are given up until `WIDE_AGAIN` bytes, and tried again after.
const WIDE_FROM: usize = 16384;
const NARROW: usize = 32;
const WIDE_AGAIN: usize = 4 * SEGMENT_BYTES;

/// A search is made shallow if fewer than one byte in this many shares its token with another byte.
const DULL: usize = 64;

/// A segment's tokens may wait for those of the next if there are fewer than one per this many bytes.
const SPARSE: usize = 16;
/// A segment of at least this many bytes may wait, as long as fewer than `HELD` tokens wait in all.
const SPARSE_BYTES: usize = 2048;
const HELD: usize = 2048;
/// Bytes of a token, at most, and of a block besides its tokens.
const TOKEN_BYTES: usize = 6;
const BLOCK_BYTES: usize = 512;

/// The most bytes that tokens which waited take, beside what their last segment may.
pub const HELD_BYTES: usize = HELD * TOKEN_BYTES + BLOCK_BYTES;

/// Bytes that are looked at before the preset code is tried, and what they may take on average, in bits.
const SAMPLES: usize = 64;
const RARE_BITS: u32 = 9;

/// Scratch memory of a packer.
pub struct Segments {
    matcher: Matcher,
    direct: Direct,
    /// True if the tables hold places.
    matcher_used: bool,
    direct_used: bool,
    /// The shape for most segments of the message.
    shape: Shape,
    /// The depth that fits the last bytes; `None` before the message's first segment.
    depth: Option<Depth>,
    /// Bytes of the message that were judged, and from how many on a search may be wide.
    judged: usize,
    wide_from: usize,
    preset: Preset,
    writer: Writer,
    counts: Counts,
    /// The tokens that wait, then those of the segment.
    tokens: Box<[u32]>,
    held: usize,
    held_counts: Counts,
    scratch: Box<[u8]>,
}

impl Segments {
    /// Allocates the memory. `None`: there is none.
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
            tokens: zeros(WINDOW_BYTES + HELD + WINDOW_BYTES / SPARSE)?,
            held: 0,
            held_counts: Counts::new(),
            scratch: zeros(direct::room(WINDOW_BYTES))?,
        })
    }

    /// Begins a message: of at most `bytes` bytes, if that is known.
    pub fn begin(&mut self, effort: Effort, bytes: Option<usize>) {
        self.shape = match (bytes.unwrap_or(usize::MAX), effort) {
            (..=SMALL_BYTES, _) => SMALL,
            (_, Effort::Fast) => FAST,
            (..=WINDOW_BYTES, _) => MIDDLE,
            _ => LARGE,
        };
        self.forget();
    }

    /// Forgets the history, and drops tokens that wait.
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

    /// The buffer of the next [`one`](Segments::one) starts `bytes` later.
    pub fn rebase(&mut self, bytes: usize) {
        debug_assert!(bytes <= usize::from(u16::MAX));
        self.matcher.rebase(bytes as u16);
        self.direct.rebase(bytes as u16);
    }

    /// Takes `bytes` as history at the base.
    pub fn learn(&mut self, bytes: &[u8]) {
        self.matcher_used = true;
        self.matcher.learn(bytes, 0);
    }

    /// Returns true if tokens wait.
    pub fn holds(&self) -> bool {
        self.held != 0
    }

    /// Takes `buffer[start..]`, at most 32 KiB, with the history before it. Writes all of it as one block, after the tokens that
    /// waited, unless it `may_wait`.
    #[expect(clippy::too_many_arguments, reason = "what a block is made of and where it goes")]
    pub fn one(
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
            return if may_wait && self.held < HELD { Ok(()) } else { self.write_held(last, bits) };
        }
        let held = self.held;
        if self.holds() {
            self.write_held(false, bits)?;
        }
        let tokens = &self.tokens[held..held + used];
        self.writer.write(Some(source), tokens, &self.counts, &self.preset, last, bits)
    }

    /// Writes the tokens that wait as one block.
    fn write_held(&mut self, last: bool, bits: &mut Bits<'_>) -> Result<(), Full> {
        let tokens = &self.tokens[..core::mem::take(&mut self.held)];
        self.writer.write(None, tokens, &self.held_counts, &self.preset, last, bits)
    }

    /// Puts tokens for `buffer[start..]` behind those that wait, and counts them. Returns how many.
    fn find(&mut self, effort: Effort, buffer: &[u8], start: usize, window: usize) -> usize {
        let source = &buffer[start..];
        self.matcher_used = true;
        if effort != Effort::Fast && repeats_threes(source) {
            self.take_shape(THREES, &buffer[..start]);
        } else if self.matcher.shape().shortest != self.shape.shortest {
            self.take_shape(self.shape, &buffer[..start]);
        }
        // The first segment of a message is judged piece by piece; that of a message with no other only once, early.
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
            self.judge(&found, found.at - at);
            (at, used) = (found.at, used + found.tokens);
        }
        used
    }

    /// Remembers places in this shape from here on, and those of the last bytes of the history.
    fn take_shape(&mut self, shape: Shape, history: &[u8]) {
        if self.matcher.shape() != shape {
            self.matcher.reshape(shape);
            self.matcher.learn(history, history.len().saturating_sub(AGAIN_BYTES));
        }
    }

    /// Judges the last search: chooses depth and places per hash for the next bytes.
    fn judge(&mut self, found: &Found, bytes: usize) {
        self.judged += bytes;
        if bytes < PIECE_BYTES / 4 {
            return;
        }
        let dull = (bytes - found.tokens) * DULL < bytes;
        let deep = found.tokens * if self.shape == LARGE { DEEP } else { DEEP_MIDDLE } < bytes;
        self.depth = Some(if deep {
            Depth::Deep
        } else if dull {
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

    /// Writes `buffer[start..]` with the preset code, if that makes it clearly smaller.
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

    /// Writes a whole message.
    pub fn all(&mut self, effort: Effort, source: &[u8], bits: &mut Bits<'_>) -> Result<(), Full> {
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
            self.one(effort, &source[base..end], start - base, WINDOW_BYTES, last, !last, bits)?;
            if end == source.len() {
                return Ok(());
            }
            start = end;
        }
    }
}
