// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Encodes numbers and texts as bytes, and decodes bytes that anybody may have sent.
//!
//! - **Layout** a number has 7 bits per byte, lowest first, with the top bit set if more bytes follow, in the shortest form; a
//!   text is its number of bytes in one byte, then UTF-8
//! - **Owner** a reader returns [`MapError::Encoding`] at the end of the bytes, and allocates no more than there are bytes

use super::MapError;

/// Bytes that are being written.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Appends a text: its length in one byte, then at most 255 bytes.
    pub(super) fn text(&mut self, text: &str) {
        self.bytes.push(text.len() as u8);
        self.bytes.extend(text.as_bytes());
    }
}

/// Bytes, and the position up to which they were read.
pub(super) struct Reader<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) at: usize,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    pub(super) fn fault(&self, what: &'static str) -> MapError {
        MapError::Encoding { what, at: self.at }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'b [u8], MapError> {
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)) else {
            return Err(self.fault("more bytes"));
        };
        self.at += count;
        Ok(bytes)
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MapError> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.take(N)?);
        Ok(fixed)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MapError> {
        Ok(self.fixed::<1>()?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, MapError> {
        let mut value = 0u64;
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (place == 9 && bits > 1) || (place > 0 && byte == 0) {
                return Err(self.fault("a number as short as possible"));
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.fault("the end of a number"))
    }

    pub(super) fn text(&mut self) -> Result<String, MapError> {
        let count = self.byte()?.into();
        let bytes = self.take(count)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.fault("text"))
    }

    pub(super) fn end(&self) -> Result<(), MapError> {
        if self.left() == 0 { Ok(()) } else { Err(self.fault("the end")) }
    }
}
