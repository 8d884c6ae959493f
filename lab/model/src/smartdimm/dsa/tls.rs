// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM over lines that come in any order (§V-A, figure 7).
//!
//! - **Flow** a line of the source ─▶ counter blocks of its place ─▶ the other text; the ciphertext's four blocks are hashed among
//!   themselves, then times the power of H that belongs to the line ─▶ added to the tag so far
//! - **Layout** powers: one for each line, four apart, from the last line back to the first
//! - **Rule** what holds a byte of the tag is put when every line has been read, and the tag with it. A device that sees only some of a
//!   record's lines keeps its part of the tag for the host instead, which adds the parts up

use super::Line;
use crate::naive::{Aes, Multiplier, blocks, times};
use crate::smartdimm::LINE;

/// Bytes of a tag.
pub const TAG: u64 = 16;
const BLOCKS: u64 = LINE / 16;
/// Messages beyond this are refused: a TLS record has 2^14 bytes and some, a call of the model's at most 64 pages.
const LENGTH_MAX: u64 = 1 << 20;

/// The host's parameters of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// 16 or 32 bytes.
    pub key: Vec<u8>,
    /// Nonce of this record.
    pub nonce: [u8; 12],
    /// Additional data, at most one block: TLS has 13 bytes or 5.
    pub aad: Vec<u8>,
    /// Bytes of the text.
    pub length: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Record {
    aes: Aes,
    nonce: [u8; 12],
    h: Multiplier,
    length: u64,
    /// For each line of text the power of H that its last block is multiplied by.
    powers: Vec<u128>,
    tag: u128,
    seen: Vec<bool>,
    /// Lines that have not been read; with `whole`, the last one completes the tag.
    left: u64,
    whole: bool,
    /// Lines that hold bytes of the tag.
    held: Vec<(u64, Line)>,
}

/// The block that is encrypted for a counter.
#[must_use]
pub fn counter(nonce: &[u8; 12], count: u32) -> [u8; 16] {
    let mut block = [0; 16];
    block[..12].copy_from_slice(nonce);
    block[12..].copy_from_slice(&count.to_be_bytes());
    block
}

impl Record {
    /// From the configuration memory. `whole`: this device sees all lines of the record.
    pub(super) fn new(lines: &[Line; 2], key: u32, length: u64, aad: u64, whole: bool) -> Option<Record> {
        if !matches!(key, 16 | 32) || length == 0 || length > LENGTH_MAX || aad > 16 {
            return None;
        }
        let word = |at: usize| u128::from_be_bytes(std::array::from_fn(|byte| lines[1][at + byte]));
        let (h, encrypted) = (word(32), word(48));
        let texts = length.div_ceil(LINE) as usize;
        // The last line's last block is multiplied by H^2, since the lengths' block follows; each line before it by as many more as
        // the line behind it has blocks.
        let (mut next, four) = (power(h, 2), power(h, BLOCKS));
        let stride = power(h, length.div_ceil(16) - BLOCKS * (texts as u64 - 1));
        let mut powers = vec![0; texts];
        let four = Multiplier::new(four);
        for (place, slot) in powers.iter_mut().rev().enumerate() {
            *slot = next;
            next = if place == 0 { times(next, stride) } else { four.times(next) };
        }
        let aad = &lines[0][32..32 + aad as usize];
        let tag = if whole { constant(h, encrypted, aad, length) } else { 0 };
        Some(Record {
            aes: Aes::new(&lines[1][..key as usize]),
            nonce: std::array::from_fn(|byte| lines[0][16 + byte]),
            h: Multiplier::new(h),
            length,
            powers,
            tag,
            seen: vec![false; (length + TAG).div_ceil(LINE) as usize],
            left: texts as u64,
            whole,
            held: Vec::new(),
        })
    }

    /// This device sees all lines of the record.
    #[must_use]
    pub fn whole(&self) -> bool {
        self.whole
    }

    /// The tag, or this device's part of it.
    #[must_use]
    pub fn tag(&self) -> u128 {
        self.tag
    }

    pub(super) fn line(&mut self, index: u64, data: &Line, ready: &mut Vec<(u64, Line)>) {
        let at = index as usize;
        let Some(seen) = self.seen.get_mut(at) else { return ready.push((index, *data)) };
        if std::mem::replace(seen, true) {
            return;
        }
        let mut out = *data;
        if at < self.powers.len() {
            let used = (self.length - index * LINE).min(LINE) as usize;
            for (block, chunk) in out[..used].chunks_mut(16).enumerate() {
                let pad = self.aes.block(counter(&self.nonce, (index * BLOCKS) as u32 + block as u32 + 2));
                chunk.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
            }
            let mut hash = 0;
            for (block, text) in blocks(&out[..used]).enumerate() {
                hash = text ^ if block == 0 { 0 } else { self.h.times(hash) };
            }
            self.tag ^= times(hash, self.powers[at]);
            self.left -= 1;
        }
        if self.whole && (index + 1) * LINE > self.length {
            self.held.push((index, out));
        } else {
            ready.push((index, out));
        }
        if self.left == 0 {
            let tag = self.tag.to_be_bytes();
            for (line, mut held) in std::mem::take(&mut self.held) {
                for (place, byte) in tag.iter().enumerate() {
                    if let Some(at) =
                        (self.length + place as u64).checked_sub(line * LINE).filter(|at| *at < LINE)
                    {
                        held[at as usize] = *byte;
                    }
                }
                ready.push((line, held));
            }
        }
    }
}

fn power(h: u128, exponent: u64) -> u128 {
    /// x^0 is the highest bit.
    const ONE: u128 = 1 << 127;
    (0..64 - exponent.leading_zeros()).rev().fold(ONE, |product, bit| {
        let square = times(product, product);
        if exponent >> bit & 1 == 1 { times(square, h) } else { square }
    })
}

/// The part of a tag beside its text: additional data, lengths, the encrypted counter block.
fn constant(h: u128, encrypted: u128, aad: &[u8], length: u64) -> u128 {
    let header = blocks(aad).next().map_or(0, |block| times(block, power(h, length.div_ceil(16) + 2)));
    let lengths = (aad.len() as u128 * 8) << 64 | u128::from(length * 8);
    header ^ times(lengths, h) ^ encrypted
}

/// The tag of a record whose lines several devices have seen: their parts, added up, and what belongs to no line.
#[must_use]
pub fn whole(keys: &Keys, parts: impl Iterator<Item = u128>) -> u128 {
    let aes = Aes::new(&keys.key);
    let [h, encrypted] =
        [[0; 16], counter(&keys.nonce, 1)].map(|block| u128::from_be_bytes(aes.block(block)));
    parts.fold(constant(h, encrypted, &keys.aad, keys.length), |sum, part| sum ^ part)
}

#[cfg(test)]
mod tests {
    use super::super::{Context, Dsa};
    use super::*;
    use crate::event::Random;
    use crate::naive::{CASE_3, bytes, gcm};

    fn shuffled(count: u64, random: &mut Random) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
        order
    }

    fn keys(random: &mut Random, length: u64) -> (Keys, Vec<u8>) {
        let key = (0..if random.below(2) == 0 { 16 } else { 32 }).map(|_| random.word() as u8).collect();
        let aad = (0..random.below(17)).map(|_| random.word() as u8).collect();
        let nonce = std::array::from_fn(|_| random.word() as u8);
        (Keys { key, nonce, aad, length }, (0..length).map(|_| random.word() as u8).collect())
    }

    #[test]
    fn lines_in_any_order_seal_as_the_standard_says() {
        let mut random = Random::new(3);
        for length in (1..400).chain([4080, 4096, 16_368, 16_384]) {
            let (keys, text) = keys(&mut random, length);
            let mut dsa = Dsa::new(&Context::Tls(keys.clone()).lines(1)).unwrap();
            let mut source = text.clone();
            let lines = (length + TAG).div_ceil(LINE);
            source.resize((lines * LINE) as usize, 0xee);
            let mut target = vec![0; source.len()];
            for index in shuffled(lines, &mut random) {
                let at = (index * LINE) as usize;
                let line = source[at..at + 64].try_into().unwrap();
                for (place, line) in dsa.ready(index, &line) {
                    target[(place * LINE) as usize..][..64].copy_from_slice(&line);
                }
                assert_eq!(dsa.ready(index, &line), [], "a line that comes again");
            }
            let (mut wanted, tag) = gcm(true, &keys.key, &keys.nonce, &keys.aad, &text);
            wanted.extend(tag);
            assert_eq!(target[..wanted.len()], wanted, "{length}");
            assert!(target[wanted.len()..].iter().all(|byte| *byte == 0xee), "behind it nothing changes");
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let [key, nonce, text, cipher, tag] = CASE_3.map(bytes);
        let keys = Keys { key, nonce: nonce.try_into().unwrap(), aad: Vec::new(), length: 64 };
        let mut dsa = Dsa::new(&Context::Tls(keys).lines(1)).unwrap();
        // The tag's line comes first, and waits.
        assert_eq!(dsa.ready(1, &[0; 64]), []);
        let lines = dsa.ready(0, &text.try_into().unwrap());
        assert_eq!(lines.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((&lines[0].1[..], &lines[1].1[..16]), (&cipher[..], &tag[..]));
    }

    #[test]
    fn parts_of_several_devices_add_up() {
        let mut random = Random::new(4);
        for (length, devices) in [(4096, 2), (5000, 4), (65, 4), (16_368, 4)] {
            let (keys, text) = keys(&mut random, length);
            let mut parts: Vec<Dsa> =
                (0..devices).map(|_| Dsa::new(&Context::Tls(keys.clone()).lines(devices)).unwrap()).collect();
            for (index, chunk) in text.chunks(64).enumerate() {
                let mut line = [0; 64];
                line[..chunk.len()].copy_from_slice(chunk);
                parts[index % devices as usize].ready(index as u64, &line);
            }
            let tag = whole(&keys, parts.iter().map(|part| u128::from_be_bytes(part.result())));
            assert_eq!(tag.to_be_bytes(), gcm(true, &keys.key, &keys.nonce, &keys.aad, &text).1, "{length}");
        }
    }

    #[test]
    fn what_is_no_context_is_refused() {
        let (keys, _) = keys(&mut Random::new(1), 100);
        for broken in [
            Keys { key: vec![0; 24], ..keys.clone() },
            Keys { length: 0, ..keys.clone() },
            Keys { length: 1 << 40, ..keys },
        ] {
            assert!(Dsa::new(&Context::Tls(broken).lines(1)).is_none());
        }
        assert!(Dsa::new(&[[0; 64]; 2]).is_none());
    }
}
