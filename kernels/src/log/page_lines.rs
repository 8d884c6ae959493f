// SPDX-License-Identifier: Apache-2.0 OR MIT
//! New lines of one page: where each of them is read from.

use super::LINE_BYTES;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

const LINES: usize = 64;

/// New lines of a page of 4 KiB, wherever the caller has them.
#[derive(Debug)]
pub struct PageLines<'a> {
    bits: u64,
    /// The start of each line whose bit is set.
    from: [MaybeUninit<*const u8>; LINES],
    borrows: PhantomData<&'a [u8]>,
}

impl Default for PageLines<'_> {
    fn default() -> Self {
        PageLines { bits: 0, from: [const { MaybeUninit::uninit() }; LINES], borrows: PhantomData }
    }
}

impl<'a> PageLines<'a> {
    /// Sets where line `line` of the page is read from, in place of what was set before.
    ///
    /// # Panics
    ///
    /// If the page has no such line, or `bytes` is not aligned to 8.
    #[inline(always)]
    pub fn set(&mut self, line: usize, bytes: &'a [u8; LINE_BYTES]) {
        assert!(bytes.as_ptr().addr().is_multiple_of(8), "lines are made of words");
        self.from[line] = MaybeUninit::new(bytes.as_ptr());
        self.bits |= 1 << line;
    }

    /// Returns which lines are set: bit i stands for bytes 64 i to 64 i + 63.
    #[inline(always)]
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Returns how many lines are set.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.bits.count_ones() as usize
    }

    /// Returns the numbers and starts of the lines, lowest first: each start is aligned to 8, and readable for a line.
    #[inline(always)]
    pub(super) fn starts(&self) -> impl Iterator<Item = (usize, *const u8)> {
        let mut left = self.bits;
        core::iter::from_fn(move || {
            let line = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            // SAFETY: `set` has filled the place of each line whose bit is set.
            Some((line, unsafe { self.from[line].assume_init() }))
        })
    }
}
