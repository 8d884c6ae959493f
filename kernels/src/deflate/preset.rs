// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A code for markup and text that is known before the message: [`Preset`].
//!
//! - **Layout** code lengths in bits, by symbol. They come from the tokens of [`Effort::Fast`](super::Effort) over pages of the
//!   documentation that ships with Rust (HTML). Every symbol is counted once more than it occurs, so every byte has a code. `cargo test
//!   --features deflate train -- --ignored --nocapture` with `PAGES` naming a folder prints them again.
//! - **Order** no code is longer than [`LONGEST`].

use super::bits::Bits;
use super::code_table::Table;
use super::codes::{DISTANCE_SYMBOLS, LITLEN_SYMBOLS};
use super::header::Header;
use core::mem::MaybeUninit;

/// Length of the longest code, bits.
pub const LONGEST: usize = 12;

/// Code lengths of literals, the end of a block, and match lengths.
const LITLEN: [u8; LITLEN_SYMBOLS] = [
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 8, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 3, 12, 7, 12, 12, 12, 12, 12, 8, 11, 12, 12, 8, 5, 5, 7, 6, 5, 6, 6, 6, 6, 6, 7,
    7, 7, 12, 12, 7, 7, 7, 12, 12, 12, 12, 11, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 5, 7, 6, 6, 4, 7, 7, 6, 5, 12, 8, 6, 6, 5, 5, 6,
    12, 5, 5, 5, 7, 7, 8, 12, 7, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 5, 6, 6, 7, 8, 6, 7, 7, 8, 7, 8, 8, 12, 9,
    12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12,
];
/// Code lengths of distances.
const DISTANCE: [u8; DISTANCE_SYMBOLS] =
    [9, 11, 8, 10, 8, 8, 7, 7, 5, 6, 5, 5, 4, 4, 4, 5, 4, 5, 4, 4, 4, 4, 4, 4, 4, 5, 4, 6, 12, 12];

/// The code with its header.
pub struct Preset {
    /// The header; only its size is used.
    pub header: Header,
    /// The code that the header describes.
    pub code: Table,
    /// The header's bits as they are written, 48 per word except the last.
    words: [u64; 24],
    rest: u32,
    used: usize,
}

impl Preset {
    pub fn new() -> Preset {
        let mut code = Table::new();
        code.fill(&LITLEN, &DISTANCE);
        let header = Header::plan(&LITLEN, &DISTANCE);
        let mut bytes = [MaybeUninit::new(0); 24 * 6];
        let mut bits = Bits::new(&mut bytes, 0, 0);
        header.write(&mut bits);
        bits.align();
        debug_assert!(bits.fits());
        let mut words = [0; 24];
        let used = header.bits.div_ceil(48);
        for (word, six) in words.iter_mut().zip(bits.written().chunks(6)) {
            *word = six.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        Preset { rest: (header.bits - 48 * (used - 1)) as u32, header, code, words, used }
    }

    /// Begins a block with this code.
    pub fn begin(&self, last: bool, bits: &mut Bits<'_>) {
        bits.put(u64::from(last) | 2 << 1, 3);
        bits.flush();
        for (at, &word) in self.words[..self.used].iter().enumerate() {
            bits.put(word, if at + 1 == self.used { self.rest } else { 48 });
            bits.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::codes::{END_OF_BLOCK, LENGTH_BASE, matched};
    use crate::deflate::huffman;
    use std::path::Path;

    #[test]
    fn the_code_is_complete_and_short() {
        for lengths in [&LITLEN[..], &DISTANCE] {
            let space: usize = lengths.iter().map(|&bits| 1 << (LONGEST - bits as usize)).sum();
            assert_eq!(space, 1 << LONGEST);
            assert!(lengths.iter().all(|&bits| bits != 0));
        }
    }

    fn pages(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                pages(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                found.push(path);
            }
        }
    }

    /// The greedy search of `direct`, written in the simplest way.
    fn count(page: &[u8], litlen: &mut [u32], distances: &mut [u32]) {
        let mut places = std::collections::HashMap::new();
        let mut at = 0;
        while at < page.len() {
            let length = page.get(at..at + 6).and_then(|six| places.insert(six, at)).map(|from| {
                let same = page[from..].iter().zip(&page[at..]).take_while(|(a, b)| a == b).count();
                (same.min(258), at - from)
            });
            if let Some((length, distance)) = length {
                let base = LENGTH_BASE.iter().rposition(|&base| usize::from(base) + 3 <= length);
                litlen[257 + base.expect("at least 3")] += 1;
                distances[(matched(length, distance) >> 9 & 31) as usize] += 1;
                at += length;
            } else {
                litlen[usize::from(page[at])] += 1;
                at += 1;
            }
        }
        litlen[END_OF_BLOCK] += 1;
    }

    #[test]
    #[ignore = "prints the tables above from the pages in the folder PAGES"]
    fn train() {
        let folder = std::env::var("PAGES").expect("PAGES names a folder with .html files");
        let (mut litlen, mut distances) = (vec![1u32; LITLEN_SYMBOLS], vec![1u32; DISTANCE_SYMBOLS]);
        let mut found = Vec::new();
        pages(Path::new(&folder), &mut found);
        found.sort();
        let mut left = 4 << 20;
        for path in found.iter().step_by(3) {
            let page = std::fs::read(path).expect("a page");
            for message in page.chunks_exact(16384).take(4) {
                if left > 0 {
                    left -= message.len();
                    count(message, &mut litlen, &mut distances);
                }
            }
        }
        let mut bits = [0; LITLEN_SYMBOLS];
        huffman::lengths::<288>(&litlen, LONGEST, &mut bits);
        println!("const LITLEN: [u8; LITLEN_SYMBOLS] = {bits:?};");
        let mut bits = [0; DISTANCE_SYMBOLS];
        huffman::lengths::<32>(&distances, LONGEST, &mut bits);
        println!("const DISTANCE: [u8; DISTANCE_SYMBOLS] = {bits:?};");
    }
}
