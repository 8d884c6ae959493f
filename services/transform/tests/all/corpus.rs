// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes to work on: text that packs, noise that does not, at any alignment.

use memlift_transform::Key;
use std::sync::Arc;

/// Like text: words that come again.
pub fn text(bytes: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["memory ", "lifted ", "off ", "the core, ", "<p>", "page", "</p>\n", "block "];
    let mut state = 1u32;
    let mut made = Vec::with_capacity(bytes + 16);
    while made.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        made.extend_from_slice(WORDS[(state >> 24) as usize % WORDS.len()].as_bytes());
        made.extend_from_slice((state >> 28).to_string().as_bytes());
    }
    made.truncate(bytes);
    made
}

/// Like random bytes.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

pub fn key() -> Arc<Key> {
    Key::new(b"sixteen byte key").unwrap()
}

/// A nonce that framed chains take, too.
pub const NONCE: [u8; 12] = [9, 8, 7, 6, 5, 4, 3, 0, 0, 0, 0, 0];

/// Sizes around those at which something changes.
pub const SIZES: [usize; 22] = [
    0, 1, 15, 16, 17, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 8191, 8193, 12_288, 16_385, 20_479, 20_480,
    20_481, 65_536, 65_537,
];
