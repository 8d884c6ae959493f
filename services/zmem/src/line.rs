// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A line of text that is put together on the stack and written to standard error.
//!
//! - **Owner** the code runs in fault handlers of foreign programs, so it takes no byte from the heap. Text beyond 384 bytes
//!   is cut off
//! - **Not here** the texts themselves: each is written where its cause is found

use std::fmt;

/// Text of at most 384 bytes.
pub(crate) struct Line {
    bytes: [u8; 384],
    length: usize,
}

impl Line {
    pub fn new() -> Line {
        Line { bytes: [0; 384], length: 0 }
    }

    pub fn text(&mut self, text: &str) {
        for byte in text.bytes() {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
    }

    pub fn write(&self) {
        let _ = rustix::io::write(rustix::stdio::stderr(), &self.bytes[..self.length]);
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn lines_are_cut_not_overrun() {
        let mut line = Line::new();
        for _ in 0..100 {
            let _ = line.write_fmt(format_args!("{}", u64::MAX));
        }
        assert_eq!(line.length, 384);
        assert!(line.bytes.starts_with(b"1844674407370955161518446744"));
    }
}
