// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes of a device: copied on write, so that an image costs what it changes.
//!
//! - **Layout** chunks of 64 pages of 4 KiB, each behind an `Arc`; an absent page is zero
//! - **Order** the hash is kept up with every write: the exclusive or, over all words that are not zero, of a mix of
//!   the word's place and value, so that equal contents have equal hashes however they came about
//! - **Not here** the bytes that are durable: `machine`
use std::sync::Arc;

const PAGE: usize = 4096;
const FAN: usize = 64;
const SPAN: usize = PAGE * FAN;
const ZERO: [u8; PAGE] = [0; PAGE];

type Chunk = [Option<Arc<[u8; PAGE]>>; FAN];

/// A device's content. Bytes at or beyond `len` may be held (a page that was written before the size was), and
/// read as zero once [`Pages::set_len`] has passed over them.
#[derive(Clone)]
pub(crate) struct Pages {
    chunks: Vec<Option<Arc<Chunk>>>,
    len: u64,
    hash: u128,
}

impl Pages {
    pub(crate) fn new(len: u64) -> Self {
        Pages { chunks: Vec::new(), len, hash: 0 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Hash of content and length; 128 bits, not secure against an adversary.
    pub(crate) fn hash(&self) -> u128 {
        self.hash ^ mix(u64::MAX, self.len | 1 << 63)
    }

    fn page(&self, index: usize) -> Option<&[u8; PAGE]> {
        self.chunks.get(index / FAN)?.as_ref()?[index % FAN].as_deref()
    }

    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        let mut at = offset as usize;
        let mut rest = target;
        while !rest.is_empty() {
            let within = at % PAGE;
            let n = rest.len().min(PAGE - within);
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&self.page(at / PAGE).unwrap_or(&ZERO)[within..within + n]);
            rest = tail;
            at += n;
        }
    }

    pub(crate) fn write(&mut self, offset: u64, source: &[u8]) {
        let mut at = offset as usize;
        let mut rest = source;
        while !rest.is_empty() {
            let within = at % PAGE;
            let n = rest.len().min(PAGE - within);
            self.write_in_page(at / PAGE, within, &rest[..n]);
            rest = &rest[n..];
            at += n;
        }
    }

    fn write_in_page(&mut self, index: usize, within: usize, source: &[u8]) {
        if self.page(index).unwrap_or(&ZERO)[within..within + source.len()] == *source {
            return; // the page stays shared
        }
        if self.chunks.len() <= index / FAN {
            self.chunks.resize(index / FAN + 1, None);
        }
        let chunk = self.chunks[index / FAN].get_or_insert_with(|| Arc::new([const { None }; FAN]));
        let page = Arc::make_mut(chunk)[index % FAN].get_or_insert_with(|| Arc::new(ZERO));
        let page = Arc::make_mut(page);
        let first = within / 8 * 8;
        let last = (within + source.len()).div_ceil(8) * 8;
        let place = (index * PAGE) as u64;
        let before = hash_words(place + first as u64, &page[first..last]);
        page[within..within + source.len()].copy_from_slice(source);
        self.hash ^= before ^ hash_words(place + first as u64, &page[first..last]);
    }

    /// Sets the length; what lies beyond becomes zero.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
        let mut at = len as usize;
        let end = self.chunks.len() * SPAN;
        while at < end {
            let n = PAGE - at % PAGE;
            if self.page(at / PAGE).is_some() {
                self.write_in_page(at / PAGE, at % PAGE, &ZERO[..n]);
            }
            at += n;
        }
    }
}

fn hash_words(place: u64, bytes: &[u8]) -> u128 {
    bytes
        .chunks_exact(8)
        .enumerate()
        .map(|(i, word)| mix(place + 8 * i as u64, u64::from_le_bytes(word.try_into().unwrap_or([0; 8]))))
        .fold(0, |a, b| a ^ b)
}

/// Zero for the value zero, so that absent pages and pages of zeros hash alike.
fn mix(place: u64, value: u64) -> u128 {
    if value == 0 {
        return 0;
    }
    let high = scramble(value ^ scramble(place));
    let low = scramble(value.rotate_left(32) ^ scramble(place ^ 0x5851_f42d_4c95_7f2d));
    u128::from(high) << 64 | u128::from(low)
}

/// The finaliser of splitmix64: a bijection whose output bits each depend on all input bits.
pub(crate) fn scramble(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_an_equal_hash_whatever_its_history() {
        let mut a = Pages::new(SPAN as u64 * 2);
        let mut b = a.clone();
        a.write(4090, b"across a page border");
        a.write(SPAN as u64 - 3, b"chunk");
        assert_ne!(a.hash(), b.hash());
        b.write(SPAN as u64 - 3, b"other");
        b.write(4090, &[7; 20]);
        b.write(SPAN as u64 - 3, b"chunk");
        b.write(4090, b"across a page border");
        assert_eq!(a.hash(), b.hash());
        let mut read = [0; 20];
        b.read(4090, &mut read);
        assert_eq!(&read, b"across a page border");
        b.set_len(4093);
        b.set_len(SPAN as u64 * 2);
        b.read(4090, &mut read);
        assert_eq!(&read[..4], b"acr\0");
        a.write(4093, &[0; 17]);
        a.write(SPAN as u64 - 3, &[0; 5]);
        assert_eq!(a.hash(), b.hash());
    }
}
