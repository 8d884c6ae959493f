// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A message cut into segments: one block each, found and written with the same scratch memory.

use super::bits::Bits;
use super::block::{Counts, Full, Writer};
use super::codes::WINDOW_BYTES;
use super::direct::{self, Direct};
use super::matcher::{Matcher, Way};
use super::pack::Effort;
use super::preset::Preset;
use crate::Isa;
use core::mem::MaybeUninit;

/// The usual size of a segment of a long message. The last one may have up to [`WINDOW_BYTES`].
pub const SEGMENT_BYTES: usize = 24576;

/// Messages up to this size remember one place per hash: there is little to choose from, and less to clear.
const ONE_WAY_BYTES: usize = 6144;

/// Bytes that are looked at before the preset code is tried, and what they may take on average, in bits.
const SAMPLES: usize = 64;
const RARE_BITS: u32 = 9;

/// Scratch memory of a packer.
pub struct Segments {
    matcher: Matcher,
    direct: Direct,
    /// Whether the tables hold places.
    matcher_used: bool,
    direct_used: bool,
    way: Way,
    preset: Preset,
    writer: Writer,
    counts: Counts,
    tokens: Box<[u32]>,
    scratch: Box<[u8]>,
}

impl Segments {
    pub fn new(isa: Isa) -> Segments {
        Segments {
            matcher: Matcher::new(isa),
            direct: Direct::new(isa),
            matcher_used: true,
            direct_used: true,
            way: Way::Two,
            preset: Preset::new(),
            writer: Writer::new(isa),
            counts: Counts::new(),
            tokens: vec![0; WINDOW_BYTES].into_boxed_slice(),
            scratch: vec![0; direct::room(WINDOW_BYTES)].into_boxed_slice(),
        }
    }

    /// Begins a message: of at most `bytes` bytes, if that is known.
    pub fn begin(&mut self, bytes: Option<usize>) {
        self.way = if bytes.is_some_and(|bytes| bytes <= ONE_WAY_BYTES) { Way::One } else { Way::Two };
        self.forget();
    }

    /// Forgets the history.
    pub fn forget(&mut self) {
        if core::mem::take(&mut self.direct_used) {
            self.direct.clear();
        }
        if core::mem::take(&mut self.matcher_used) {
            self.matcher.clear();
        }
        self.matcher.set_way(self.way);
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
        self.matcher.learn(bytes);
    }

    /// Writes `buffer[start..]`, at most 32 KiB, as one block; what is before it is history.
    pub fn one(
        &mut self,
        effort: Effort,
        buffer: &[u8],
        start: usize,
        window: usize,
        last: bool,
        bits: &mut Bits<'_>,
    ) -> Result<(), Full> {
        if effort == Effort::Fast && self.direct(buffer, start, window, last, bits) {
            return Ok(());
        }
        self.counts.clear();
        self.matcher_used = true;
        let used = self.matcher.find(buffer, start, window, &mut self.tokens, &mut self.counts);
        let source = &buffer[start..];
        self.writer.write(source, &self.tokens[..used], &self.counts, &self.preset, last, bits)
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
        // Bytes that the code knows as rare will not become smaller by it.
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
        self.begin(Some(source.len()));
        let (mut base, mut start) = (0, 0);
        loop {
            let rest = source.len() - start;
            let end = if rest <= WINDOW_BYTES { source.len() } else { start + SEGMENT_BYTES };
            if start - base > WINDOW_BYTES {
                let by = start - base - WINDOW_BYTES;
                self.rebase(by);
                base += by;
            }
            self.one(effort, &source[base..end], start - base, WINDOW_BYTES, end == source.len(), bits)?;
            if end == source.len() {
                return Ok(());
            }
            start = end;
        }
    }
}
