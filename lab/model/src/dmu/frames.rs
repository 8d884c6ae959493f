// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machine-physical memory: pages, and free lists by size for what is packed, after Linux's zsmalloc.
//!
//! - **Layout** 64 sizes, multiples of 64 B. Packed pages of a size lie one behind another in spans of one to four machine pages, which
//!   need not be neighbours: as many as waste least. One may lie across two pages of its span
//! - **Order** machine pages come from the top of their list; a packed page goes to the fullest span that has room, so that others
//!   run empty; an empty span gives its pages back at once
//! - **Rule** what is read at an address is what was written there; an address that is nobody's is a defect and panics
//! - **Not here** who has what (`controller`)

use super::PAGE;
use std::collections::BTreeSet;

/// Sizes of packed pages are multiples of this.
pub const CLASS: usize = 64;
const CLASSES: usize = PAGE / CLASS;
const NOBODY: u32 = u32::MAX;

/// Bytes that a packed page of so many takes.
#[must_use]
pub const fn rounded(bytes: usize) -> usize {
    bytes.div_ceil(CLASS) * CLASS
}

#[derive(Clone, Debug)]
struct Span {
    size: usize,
    frames: Vec<u32>,
    /// Bit by bit, what is free.
    free: u64,
}

/// The memory. See the module.
#[derive(Clone, Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    free: Vec<u32>,
    spans: Vec<Span>,
    /// Places in `spans` that are nobody's.
    vacant: Vec<u32>,
    /// The span of each machine page.
    owner: Vec<u32>,
    /// By size: spans with room, by how much.
    open: Vec<BTreeSet<(u32, u32)>>,
    /// Bytes in spans that hold nothing.
    idle: usize,
}

/// Machine pages of a span: the fewest that waste least.
fn pages(size: usize) -> usize {
    (1..=4).min_by_key(|pages| (pages * PAGE % size) * 12 / pages).unwrap_or(1)
}

impl Frames {
    /// `frames` machine pages, all free.
    #[must_use]
    pub fn new(frames: u32) -> Frames {
        Frames {
            bytes: vec![0; frames as usize * PAGE],
            free: (0..frames).rev().collect(),
            spans: Vec::new(),
            vacant: Vec::new(),
            owner: vec![NOBODY; frames as usize],
            open: vec![BTreeSet::new(); CLASSES + 1],
            idle: 0,
        }
    }

    /// Free machine pages.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Bytes in spans that hold nothing.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// A machine page, with whatever it held; `None` if none is free.
    pub fn take(&mut self) -> Option<u64> {
        self.free.pop().map(|frame| u64::from(frame) * PAGE as u64)
    }

    /// A machine page is free.
    pub fn give(&mut self, address: u64) {
        self.free.push((address / PAGE as u64) as u32);
    }

    /// The page at an address.
    #[must_use]
    pub fn page(&self, address: u64) -> &[u8; PAGE] {
        self.bytes[address as usize..].first_chunk().expect("machine pages are whole")
    }

    /// The same, to be written.
    pub fn page_mut(&mut self, address: u64) -> &mut [u8; PAGE] {
        self.bytes[address as usize..].first_chunk_mut().expect("machine pages are whole")
    }

    /// Stores a packed page: its address; `None` if there is no room.
    pub fn store(&mut self, packed: &[u8]) -> Option<u64> {
        let size = rounded(packed.len().max(1));
        let open = &mut self.open[size / CLASS];
        let (room, number) = match open.pop_first() {
            Some(fullest) => fullest,
            None => self.span(size)?,
        };
        let span = &mut self.spans[number as usize];
        let slot = span.free.trailing_zeros();
        span.free &= !(1 << slot);
        self.idle -= size;
        if room > 1 {
            self.open[size / CLASS].insert((room - 1, number));
        }
        let span = &self.spans[number as usize];
        let (first, second) = halves(span, slot as usize * size, packed.len());
        let (head, tail) = packed.split_at(first.len());
        self.bytes[first.clone()].copy_from_slice(head);
        self.bytes[second].copy_from_slice(tail);
        Some(first.start as u64)
    }

    /// A new span: how many packed pages it takes, and its number.
    fn span(&mut self, size: usize) -> Option<(u32, u32)> {
        let begin = self.free.len().checked_sub(pages(size))?;
        let frames = self.free.split_off(begin);
        let slots = slots(size);
        let span = Span { size, frames, free: u64::MAX >> (64 - slots) };
        let number = self.vacant.pop().unwrap_or(self.spans.len() as u32);
        span.frames.iter().for_each(|frame| self.owner[*frame as usize] = number);
        self.idle += span.frames.len() * PAGE;
        if number as usize == self.spans.len() {
            self.spans.push(span);
        } else {
            self.spans[number as usize] = span;
        }
        Some((slots as u32, number))
    }

    /// Returns the span of an address, and the place in it.
    fn find(&self, address: u64) -> (u32, usize) {
        let frame = (address / PAGE as u64) as u32;
        let number = self.owner[frame as usize];
        let span = &self.spans[number as usize];
        let before = span.frames.iter().position(|own| *own == frame).expect("the span has its pages");
        (number, (before * PAGE + address as usize % PAGE) / span.size)
    }

    /// Reads the packed page at an address, of so many bytes.
    pub fn load(&self, address: u64, bytes: usize, packed: &mut Vec<u8>) {
        let (number, slot) = self.find(address);
        let span = &self.spans[number as usize];
        let (first, second) = halves(span, slot * span.size, bytes);
        packed.clear();
        packed.extend_from_slice(&self.bytes[first]);
        packed.extend_from_slice(&self.bytes[second]);
    }

    /// A packed page is no longer needed.
    ///
    /// # Panics
    /// If there is none.
    pub fn drop(&mut self, address: u64) {
        let (number, slot) = self.find(address);
        let span = &mut self.spans[number as usize];
        assert_eq!(span.free >> slot & 1, 0, "nothing is packed at {address:#x}");
        let (room, all) = (span.free.count_ones(), slots(span.size) as u32);
        span.free |= 1 << slot;
        self.idle += span.size;
        let open = &mut self.open[span.size / CLASS];
        open.remove(&(room, number));
        if room + 1 < all {
            open.insert((room + 1, number));
        } else {
            self.idle -= span.frames.len() * PAGE;
            for frame in span.frames.drain(..) {
                self.owner[frame as usize] = NOBODY;
                self.free.push(frame);
            }
            self.vacant.push(number);
        }
    }
}

/// Packed pages in a span.
fn slots(size: usize) -> usize {
    pages(size) * PAGE / size
}

/// Where bytes of a span lie, from `at` on: in one machine page, and in the next one.
fn halves(span: &Span, at: usize, bytes: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let place = |at: usize| span.frames[at / PAGE] as usize * PAGE + at % PAGE;
    let here = (PAGE - at % PAGE).min(bytes);
    let first = place(at);
    let second = if here < bytes { place(at + here) } else { 0 };
    (first..first + here, second..second + bytes - here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Random;

    #[test]
    fn spans_waste_little_and_fit_their_bits() {
        for size in (CLASS..=PAGE).step_by(CLASS) {
            let (pages, slots) = (pages(size), slots(size));
            assert!((1..=64).contains(&slots) && slots * size <= pages * PAGE);
            // Of what packs worth its while, and zsmalloc's limit of four pages is to blame.
            assert!(size > 3584 || (pages * PAGE - slots * size) * 5 <= pages * PAGE, "{size}");
        }
    }

    #[test]
    fn what_is_packed_stays_until_it_is_dropped_and_all_memory_comes_back() {
        let (mut frames, mut random) = (Frames::new(60), Random::new(9));
        let mut held: Vec<(u64, Vec<u8>)> = Vec::new();
        let (mut full, mut found) = (0, Vec::new());
        for step in 0..20_000 {
            if random.below(100) < 52 {
                let packed: Vec<u8> = vec![step as u8; 1 + random.below(3561) as usize];
                match frames.store(&packed) {
                    Some(address) => {
                        assert!(address % 64 == 0);
                        held.push((address, packed));
                    }
                    None => full += 1,
                }
            } else if !held.is_empty() {
                let (address, packed) = held.swap_remove(random.below(held.len() as u64) as usize);
                frames.load(address, packed.len(), &mut found);
                assert_eq!(found, packed, "step {step}");
                frames.drop(address);
            }
        }
        assert!(full > 0);
        for (address, packed) in held {
            frames.load(address, packed.len(), &mut found);
            assert_eq!(found, packed);
            frames.drop(address);
        }
        assert_eq!((frames.free(), frames.idle()), (60, 0));
        assert!((0..60).all(|_| frames.take().is_some()) && frames.take().is_none());
        assert!(frames.store(&[1]).is_none());
    }
}
