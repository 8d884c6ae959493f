// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deflate of one page, a line in each clock (§V-B), after the pipeline that the paper adapts (its reference 67).
//!
//! - **Flow** a line ─▶ each of its bytes looks up the four from it on in one of eight banks ─▶ candidates are compared ─▶ per window of
//!   eight bytes, matches from left to right ─▶ the line's own substrings are entered ─▶ one block with the fixed code
//! - **Layout** banks have eight ports: a clock's ninth substring of a bank is dropped, it has no candidate and is not entered. 512
//!   entries in each bank, one for each byte of 4 KiB; a new one takes the place of the oldest that it collides with
//! - **Order** lines as they come in the page; a page whose lines do not is left as it is
//! - **Rule** a match has 4 to 8 bytes (a window's), and lies in the page. What a clock enters is found from the next one on. A page that
//!   does not become smaller stays as it is ([`RAW`])
//! - **Not here** dynamic codes, which need a second pass; messages of more than one page, which software cuts

use super::Line;
use crate::naive::Bits;
use crate::smartdimm::{LINE, PAGE};

/// In the place of a packed page's bytes: it is as it was.
pub const RAW: u64 = u64::MAX;
const BANKS: usize = 8;
const PORTS: usize = 8;
const ENTRIES: usize = PAGE as usize / BANKS;
const WINDOW: usize = 8;
const SHORTEST: usize = 4;

/// See the module.
#[derive(Clone, Debug)]
pub struct Page {
    length: usize,
    bytes: Vec<u8>,
    /// Place of a substring in the page, by bank and entry.
    entries: Vec<[Option<u16>; ENTRIES]>,
    packed: Bits,
    /// The first byte that no match covers yet.
    next: usize,
    dropped: u64,
    disorder: bool,
    /// Bytes of the packed page, once it is done.
    size: Option<u64>,
}

impl Page {
    pub(super) fn new(length: u64) -> Option<Page> {
        let mut packed = Bits::default();
        packed.number(1 | 1 << 1, 3);
        (1..=PAGE).contains(&length).then(|| Page {
            length: length as usize,
            bytes: Vec::with_capacity(PAGE as usize),
            entries: vec![[None; ENTRIES]; BANKS],
            packed,
            next: 0,
            dropped: 0,
            disorder: false,
            size: None,
        })
    }

    pub(super) fn result(&self) -> [u8; 16] {
        let words = [self.size.unwrap_or(0), self.dropped];
        std::array::from_fn(|byte| words[byte / 8].to_le_bytes()[byte % 8])
    }

    pub(super) fn line(&mut self, index: u64, data: &Line, ready: &mut Vec<(u64, Line)>) {
        let at = (index * LINE) as usize;
        if self.disorder {
            return ready.push((index, *data));
        }
        if at < self.bytes.len() || self.size.is_some() {
            return;
        }
        if at > self.bytes.len() {
            (self.disorder, self.size) = (true, Some(RAW));
            return ready.extend(self.lines().chain([(index, *data)]));
        }
        self.bytes.extend_from_slice(data);
        self.clock(at);
        if self.bytes.len() < PAGE as usize {
            return;
        }
        self.packed.literal(256);
        let fits = self.packed.bytes.len() < self.length;
        self.size = Some(if fits { self.packed.bytes.len() as u64 } else { RAW });
        if fits {
            self.bytes.clear();
            self.bytes.extend_from_slice(&self.packed.bytes);
            self.bytes.resize(PAGE as usize, 0);
        }
        ready.extend(self.lines());
    }

    /// Lines that have come, or what the page was packed to.
    fn lines(&self) -> impl Iterator<Item = (u64, Line)> {
        (0..).zip(self.bytes.as_chunks().0.iter().copied())
    }

    /// Bank and entry of the substring at a place.
    fn place(&self, at: usize) -> (usize, usize) {
        let word =
            self.bytes[at..at + SHORTEST].iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let hash = word.wrapping_mul(0x9e37_79b1) >> 20;
        (hash as usize % BANKS, hash as usize / BANKS)
    }

    /// One clock: the line at `at` has come.
    fn clock(&mut self, at: usize) {
        let end = (at + LINE as usize).min(self.length);
        // A substring that begins in this line and ends in the next is neither looked up nor entered: its bytes are not there.
        let substrings = at..end.saturating_sub(SHORTEST - 1).max(at);
        let (mut used, mut found) = ([0; BANKS], [None; LINE as usize]);
        let mut enter = Vec::with_capacity(LINE as usize);
        for place in substrings {
            let (bank, entry) = self.place(place);
            used[bank] += 1;
            if used[bank] > PORTS {
                self.dropped += 1;
                continue;
            }
            found[place - at] = self.entries[bank][entry];
            enter.push((bank, entry, place));
        }
        for start in (at..end).step_by(WINDOW) {
            self.window(start, (start + WINDOW).min(end), end, &found[start - at..]);
        }
        for (bank, entry, place) in enter {
            self.entries[bank][entry] = Some(place as u16);
        }
    }

    /// Literals and matches of a window; a match may reach into the next one.
    fn window(&mut self, start: usize, stop: usize, end: usize, found: &[Option<u16>]) {
        while self.next < stop {
            let at = self.next.max(start);
            let candidate = found[at - start].map(usize::from);
            let length = candidate.map_or(0, |from| {
                let most = WINDOW.min(end - at);
                (0..most).take_while(|step| self.bytes[from + step] == self.bytes[at + step]).count()
            });
            match candidate {
                Some(from) if length >= SHORTEST => {
                    self.packed.literal(254 + length as u32);
                    self.distance(at - from);
                    self.next = at + length;
                }
                _ => {
                    self.packed.literal(u32::from(self.bytes[at]));
                    self.next = at + 1;
                }
            }
        }
    }

    /// A distance in the fixed code: 5 bits, and what is beside it.
    fn distance(&mut self, distance: usize) {
        let less = distance as u32 - 1;
        if less < 4 {
            return self.packed.code(less, 5);
        }
        let extra = less.ilog2() - 1;
        self.packed.code(2 * (extra + 1) + (less >> extra & 1), 5);
        self.packed.number(less & ((1 << extra) - 1), extra);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Context, Dsa};
    use super::*;
    use crate::event::Random;
    use crate::naive::unpack;
    use crate::smartdimm::message::text;
    use memlift_spec::Format;

    /// Packs a page: returns its bytes, how many of them count, and how many candidates were dropped.
    fn packed(message: &[u8]) -> (Vec<u8>, u64, u64) {
        let mut dsa = Dsa::new(&Context::Deflate(message.len() as u64).lines(1)).unwrap();
        let mut source = message.to_vec();
        source.resize(PAGE as usize, 0);
        let mut out = Vec::new();
        for (index, line) in source.as_chunks::<64>().0.iter().enumerate() {
            assert!(out.is_empty(), "nothing before the last line");
            for (place, line) in dsa.ready(index as u64, line) {
                assert_eq!(place as usize * 64, out.len());
                out.extend(line);
            }
        }
        let result = dsa.result();
        let word = |at: usize| u64::from_le_bytes(result[at..at + 8].try_into().unwrap());
        (out, word(0), word(8))
    }

    #[test]
    fn what_is_packed_unpacks() {
        let mut random = Random::new(9);
        let mut messages = vec![
            vec![0; 4096],
            b"a".to_vec(),
            b"abcabcabcabcabc".to_vec(),
            vec![7; 63],
            vec![7; 64],
            vec![7; 65],
        ];
        messages.extend([20, 200, 2000].map(|words| text(&mut random, words, PAGE)));
        messages.push((0..4096).map(|at| (at / 7 % 11) as u8).collect());
        messages.extend((0..40).map(|_| {
            let length = 1 + random.below(PAGE);
            text(&mut random, 300, length)
        }));
        let mut smaller = 0;
        for message in messages {
            let (out, size, _) = packed(&message);
            if size == RAW {
                assert_eq!(out[..message.len()], message);
                continue;
            }
            smaller += 1;
            assert!(size < message.len() as u64);
            let unpacked = unpack(Format::Deflate, &out[..size as usize], 4096).unwrap();
            assert_eq!((unpacked.bytes, unpacked.read as u64), (message, size));
            assert!(out[size as usize..].iter().all(|byte| *byte == 0));
        }
        assert!(smaller > 40, "{smaller}");
    }

    #[test]
    fn noise_stays_and_text_becomes_smaller() {
        let mut random = Random::new(5);
        let noise: Vec<u8> = (0..4096).map(|_| random.word() as u8).collect();
        let (out, size, dropped) = packed(&noise);
        assert_eq!((out, size), (noise, RAW));
        assert!(dropped > 0, "64 substrings never fall into eight banks evenly");
        let (_, size, _) = packed(&text(&mut random, 100, PAGE));
        assert!(size < 2200, "{size}");
        // A bank per substring, eight ports: of 61 equal substrings 8 are looked up.
        let (_, size, dropped) = packed(&[0; 4096]);
        assert!(dropped == 64 * (61 - 8) && size < 4096, "{dropped} {size}");
    }

    #[test]
    fn lines_out_of_order_leave_the_page_as_it_is() {
        let mut dsa = Dsa::new(&Context::Deflate(4096).lines(1)).unwrap();
        assert_eq!(dsa.ready(0, &[1; 64]), []);
        assert_eq!(dsa.ready(2, &[3; 64]), [(0, [1; 64]), (2, [3; 64])]);
        assert_eq!(dsa.ready(1, &[2; 64]), [(1, [2; 64])]);
        assert_eq!(dsa.result()[..8], RAW.to_le_bytes());
        assert!(Dsa::new(&Context::Deflate(0).lines(1)).is_none());
        assert!(Dsa::new(&Context::Deflate(4097).lines(1)).is_none());
    }
}
