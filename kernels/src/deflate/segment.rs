// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A message cut into segments: one block each, found and written with the same scratch memory.

use super::bits::Bits;
use super::block::{Counts, Full, Writer};
use super::codes::WINDOW_BYTES;
use super::matcher::Matcher;

/// The usual size of a segment of a long message. The last one may have up to [`WINDOW_BYTES`].
pub const SEGMENT_BYTES: usize = 24576;

/// Scratch memory of a packer.
pub struct Segments {
    matcher: Matcher,
    writer: Writer,
    counts: Counts,
    tokens: Box<[u32]>,
}

impl Segments {
    pub fn new() -> Segments {
        Segments {
            matcher: Matcher::new(),
            writer: Writer::new(),
            counts: Counts::new(),
            tokens: vec![0; WINDOW_BYTES].into_boxed_slice(),
        }
    }

    /// Forgets the history.
    pub fn clear(&mut self) {
        self.matcher.clear();
    }

    /// The buffer of the next [`one`](Segments::one) starts `bytes` later.
    pub fn rebase(&mut self, bytes: usize) {
        debug_assert!(bytes <= usize::from(u16::MAX));
        self.matcher.rebase(bytes as u16);
    }

    /// Takes `bytes` as history at the base.
    pub fn learn(&mut self, bytes: &[u8]) {
        self.matcher.learn(bytes);
    }

    /// Writes `buffer[start..]`, at most 32 KiB, as one block; what is before it is history.
    pub fn one(
        &mut self,
        buffer: &[u8],
        start: usize,
        window: usize,
        last: bool,
        bits: &mut Bits<'_>,
    ) -> Result<(), Full> {
        self.counts.clear();
        let used = self.matcher.find(buffer, start, window, &mut self.tokens, &mut self.counts);
        self.writer.write(&buffer[start..], &self.tokens[..used], &self.counts, last, bits)
    }

    /// Writes a whole message.
    pub fn all(&mut self, source: &[u8], bits: &mut Bits<'_>) -> Result<(), Full> {
        self.clear();
        let (mut base, mut start) = (0, 0);
        loop {
            let rest = source.len() - start;
            let end = if rest <= WINDOW_BYTES { source.len() } else { start + SEGMENT_BYTES };
            if start - base > WINDOW_BYTES {
                let by = start - base - WINDOW_BYTES;
                self.rebase(by);
                base += by;
            }
            self.one(&source[base..end], start - base, WINDOW_BYTES, end == source.len(), bits)?;
            if end == source.len() {
                return Ok(());
            }
            start = end;
        }
    }
}
