// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The buffer device's transforms of a source's lines: AES-GCM for TLS, Deflate for bodies.
//!
//! - **Flow** [`Context`] in two lines of the configuration memory ─▶ [`Dsa::new`] ─▶ [`Dsa::line`] for each line that is read ─▶ lines
//!   for the scratchpad, which may be more or fewer than came in
//! - **Layout** two lines. The first: what, u32 (1 TLS, 2 Deflate) · bytes of the key, u32 · bytes of the message, u64 · nonce, 12 B and 4
//!   unused · first block of additional data, 16 B · its bytes, u64 · channels, u32 · unused, 4 B. The second: key, 32 B · H,
//!   16 B · encrypted initial counter block, 16 B
//! - **Order** TLS takes lines in any order (§V-A); Deflate as they come in the page (`ordered`, §V-B)
//! - **Rule** H and the encrypted counter block are computed by the CPU (§V-A), which has the instruction for it

pub mod deflate;
pub mod tls;

use super::Line;
use crate::naive::Aes;

/// The transform of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// AES-GCM: bytes of the message and the lines behind them, 16 of which become the tag.
    Tls(tls::Keys),
    /// One page, of which so many bytes are a message.
    Deflate(u64),
}

impl Context {
    /// As it is written into the configuration memory, for a device that is one of so many channels.
    #[must_use]
    pub fn lines(&self, channels: u32) -> [Line; 2] {
        let mut lines = [[0; 64]; 2];
        let mut put =
            |line: usize, at: usize, bytes: &[u8]| lines[line][at..at + bytes.len()].copy_from_slice(bytes);
        put(0, 56, &channels.to_le_bytes());
        match self {
            Context::Deflate(length) => {
                put(0, 0, &2_u32.to_le_bytes());
                put(0, 8, &length.to_le_bytes());
            }
            Context::Tls(keys) => {
                put(0, 0, &1_u32.to_le_bytes());
                put(0, 4, &(keys.key.len() as u32).to_le_bytes());
                put(0, 8, &keys.length.to_le_bytes());
                put(0, 16, &keys.nonce);
                put(0, 32, &keys.aad);
                put(0, 48, &(keys.aad.len() as u64).to_le_bytes());
                put(1, 0, &keys.key);
                let aes = Aes::new(&keys.key);
                put(1, 32, &aes.block([0; 16]));
                put(1, 48, &aes.block(tls::counter(&keys.nonce, 1)));
            }
        }
        lines
    }
}

/// A message on its way.
#[derive(Clone, Debug)]
pub enum Dsa {
    /// Encrypts a TLS record.
    Tls(Box<tls::Record>),
    /// Compresses a page.
    Deflate(Box<deflate::Page>),
}

impl Dsa {
    /// From the configuration memory; `None` if that says nothing that the device knows.
    #[must_use]
    pub fn new(lines: &[Line; 2]) -> Option<Dsa> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| lines[0][at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        match word(0) {
            1 => tls::Record::new(lines, word(4), long(8), long(48), word(56) == 1)
                .map(|record| Dsa::Tls(Box::new(record))),
            2 => deflate::Page::new(long(8)).map(|page| Dsa::Deflate(Box::new(page))),
            _ => None,
        }
    }

    /// A line of the message was read, counted from its first page on: adds to `ready` what can now be put into the scratchpad, with its place
    /// in the message. What was put once stays: a line may come again.
    pub fn line(&mut self, index: u64, data: &Line, ready: &mut Vec<(u64, Line)>) {
        match self {
            Dsa::Tls(record) => record.line(index, data, ready),
            Dsa::Deflate(page) => page.line(index, data, ready),
        }
    }

    /// The same, for tests.
    #[cfg(test)]
    fn ready(&mut self, index: u64, data: &Line) -> Vec<(u64, Line)> {
        let mut ready = Vec::new();
        self.line(index, data, &mut ready);
        ready
    }

    /// Every line of its pages comes to this device.
    #[must_use]
    pub fn alone(&self) -> bool {
        match self {
            Dsa::Tls(record) => record.whole(),
            Dsa::Deflate(_) => true,
        }
    }

    /// The sixteen bytes that the host may ask for: the tag so far, or the bytes of the packed page ([`deflate::RAW`] if it did not
    /// become smaller) once it is packed, and how many candidates were dropped.
    #[must_use]
    pub fn result(&self) -> [u8; 16] {
        match self {
            Dsa::Tls(record) => record.tag().to_be_bytes(),
            Dsa::Deflate(page) => page.result(),
        }
    }
}
