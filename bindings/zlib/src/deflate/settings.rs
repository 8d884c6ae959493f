// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps the arguments of `deflateInit2_` and `deflateParams` to the settings of a stream.
//!
//! - **Layout** on the fast path, levels 1–6 are `Effort::Default` (the output may be up to 1.09 times as long as that of zlib's level
//!   6). Chained are level 0 (stored) and levels 7–9 (smallest output), messages of up to 1 KiB, all strategies but the default, windows
//!   below 8 KiB, and memory levels that leave no room for a session.

use core::ffi::{c_int, c_ulong};
use libz_rs_sys::{
    Z_DEFAULT_COMPRESSION, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FILTERED, Z_FIXED, Z_HUFFMAN_ONLY, Z_RLE,
};
use memlift_kernels::deflate::{Format, Strategy, memory_bytes};

/// Returns the most bytes that wait. Together with the history they are 3.75 windows; zlib has 4.
pub const fn session_bytes(window_bits: u32) -> usize {
    11 << (window_bits - 2)
}

/// Returns the room for `bytes` bytes that do not get smaller, with frame, flush and block headers.
pub const fn with_overhead(bytes: usize) -> usize {
    bytes + bytes / 2048 + 256
}

/// Framing around the deflate stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wrap {
    Raw,
    Zlib,
    Gzip,
}

impl Wrap {
    /// Returns the `adler` field of a stream that has not begun.
    pub const fn first_sum(self) -> c_ulong {
        match self {
            Wrap::Raw | Wrap::Zlib => 1,
            Wrap::Gzip => 0,
        }
    }

    pub const fn format(self) -> Format {
        match self {
            Wrap::Raw => Format::Raw,
            Wrap::Zlib => Format::Zlib,
            Wrap::Gzip => Format::Gzip,
        }
    }
}

/// The checked arguments of `deflateInit2`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub level: c_int,
    /// log2 of the window's bytes, 9–15.
    pub window_bits: u32,
    pub wrap: Wrap,
    pub mem_level: c_int,
    pub strategy: c_int,
}

impl Settings {
    /// Checks the arguments; returns `None` if zlib refuses them.
    pub fn new(
        level: c_int,
        method: c_int,
        bits: c_int,
        mem_level: c_int,
        strategy: c_int,
    ) -> Option<Settings> {
        let (wrap, bits) = match bits {
            ..0 => (Wrap::Raw, bits.checked_neg()?),
            0..16 => (Wrap::Zlib, bits),
            16.. => (Wrap::Gzip, bits - 16),
        };
        let fine = method == Z_DEFLATED
            && (1..=9).contains(&mem_level)
            && (8..=15).contains(&bits)
            && (bits != 8 || wrap == Wrap::Zlib);
        let window_bits = bits.max(9) as u32; // zlib does not use 256-byte windows either
        fine.then_some(Settings { level: 0, window_bits, wrap, mem_level, strategy: 0 })?
            .with(level, strategy)
    }

    /// Returns the settings with another level and strategy; `None` if zlib refuses them.
    pub fn with(&self, level: c_int, strategy: c_int) -> Option<Settings> {
        let level = if level == Z_DEFAULT_COMPRESSION { 6 } else { level };
        let fine = (0..=9).contains(&level) && (0..=Z_FIXED).contains(&strategy);
        fine.then_some(Settings { level, strategy, ..*self })
    }

    /// Returns true if the fast path can pack whole messages with these settings.
    pub fn is_fast(&self) -> bool {
        (1..=6).contains(&self.level) && self.strategy == Z_DEFAULT_STRATEGY
    }

    /// Returns true if the fast path can also pack messages in pieces: its sessions and their output fit into the memory.
    pub fn has_sessions(&self) -> bool {
        let session = session_bytes(self.window_bits);
        self.is_fast() && self.window_bits >= 13 && with_overhead(session) <= self.memory_bytes().1
    }

    /// Returns the sizes of the two pieces of memory of a stream.
    pub const fn memory_bytes(&self) -> (usize, usize) {
        memory_bytes(self.window_bits, self.mem_level as u32)
    }

    pub fn chain_strategy(&self) -> Strategy {
        match self.strategy {
            Z_FILTERED => Strategy::Filtered,
            Z_HUFFMAN_ONLY => Strategy::HuffmanOnly,
            Z_RLE => Strategy::Runs,
            Z_FIXED => Strategy::Fixed,
            _ => Strategy::Default,
        }
    }

    pub const fn window_bytes(&self) -> usize {
        1 << self.window_bits
    }

    /// Returns the start of the frame, and how many of its bytes count.
    pub fn front(&self) -> ([u8; 10], usize) {
        match self.wrap {
            Wrap::Raw => ([0; 10], 0),
            Wrap::Zlib => {
                let level = match self.level {
                    _ if self.strategy >= Z_HUFFMAN_ONLY => 0,
                    0 | 1 => 0,
                    2..6 => 1,
                    6 => 2,
                    _ => 3,
                };
                let word = (self.window_bits as u16 - 8) << 12 | 8 << 8 | level << 6;
                let [high, low] = (word + 31 - word % 31).to_be_bytes();
                ([high, low, 0, 0, 0, 0, 0, 0, 0, 0], 2)
            }
            Wrap::Gzip => {
                let extra = match self.level {
                    9 => 2,
                    level if level < 2 || self.strategy >= Z_HUFFMAN_ONLY => 4,
                    _ => 0,
                };
                ([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, extra, 3], 10)
            }
        }
    }

    /// Returns the end of the frame, and how many of its bytes count.
    pub fn back(&self, sum: u32, total: u64) -> ([u8; 8], usize) {
        let mut back = [0; 8];
        match self.wrap {
            Wrap::Raw => (back, 0),
            Wrap::Zlib => {
                back[..4].copy_from_slice(&sum.to_be_bytes());
                (back, 4)
            }
            Wrap::Gzip => {
                back[..4].copy_from_slice(&sum.to_le_bytes());
                back[4..].copy_from_slice(&(total as u32).to_le_bytes());
                (back, 8)
            }
        }
    }

    /// Returns the most bytes that the fast path makes of `bytes` bytes, in any number of pieces without flushes; at least
    /// zlib's bound.
    pub fn bound(&self, bytes: c_ulong) -> c_ulong {
        let session = session_bytes(self.window_bits) as c_ulong;
        let ours =
            bytes.saturating_add(bytes / session * 10).saturating_add(bytes / 2048).saturating_add(256);
        ours.max(compress_bound(bytes).saturating_add(12))
    }
}

/// Returns zlib's `compressBound`.
pub const fn compress_bound(bytes: c_ulong) -> c_ulong {
    let extra = (bytes >> 12) + (bytes >> 14) + (bytes >> 25) + 13;
    bytes.saturating_add(extra)
}

/// Returns an upper bound of the packed size of `bytes` bytes with any settings.
pub const fn any_bound(bytes: c_ulong) -> c_ulong {
    let extra = (bytes >> 3) + (bytes >> 6) + 32;
    bytes.saturating_add(extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts_are_those_of_zlib() {
        let front = |level, bits| Settings::new(level, 8, bits, 8, 0).map(|settings| settings.front());
        assert_eq!(front(6, 15).map(|(bytes, _)| [bytes[0], bytes[1]]), Some([0x78, 0x9c]));
        assert_eq!(front(1, 15).map(|(bytes, _)| [bytes[0], bytes[1]]), Some([0x78, 0x01]));
        assert_eq!(front(5, 9).map(|(bytes, _)| [bytes[0], bytes[1]]), Some([0x18, 0x57]));
        assert_eq!(front(-1, -9).map(|(_, bytes)| bytes), Some(0));
        assert!(front(10, 15).is_none() && front(6, -8).is_none() && front(6, 24).is_none());
    }
}
