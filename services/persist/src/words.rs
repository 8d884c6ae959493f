// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of the image that may have been stored just now, read without waiting for these stores.
//!
//! - **Why** a load that spans several stores waits until they have reached the cache; behind a fence that takes a hundred
//!   nanoseconds and more. A load of one word is forwarded from the store itself. So everything is loaded by words
//! - **Why** a store buffer holds a hundred stores or so behind a fence; when it is full, the core stands still. So words are
//!   stored in pairs, which take one place in it, and are compared in registers
//! - **Flow** [`Words::save`] before a range is lent ─▶ [`Words::differing`] at commit ─▶ [`Words::store`] into the record

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{
    __m128i, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
    _mm_storeu_si128,
};

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
}

/// Words of a line.
const LINE: usize = 8;

/// Counts the bits that are set, with the instruction for it where the CPU has one: the build is for CPUs without it, too.
#[inline(always)]
pub(crate) fn ones(bits: u64) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("popcnt") {
        let count: u64;
        // SAFETY: this CPU has the instruction (above), which reads one register and writes another, and flags.
        unsafe {
            core::arch::asm!(
                "popcnt {count}, {bits}",
                count = lateout(reg) count,
                bits = in(reg) bits,
                options(pure, nomem, nostack),
            );
        }
        return count as u32;
    }
    bits.count_ones()
}

impl<'a> Words<'a> {
    /// # Panics
    ///
    /// When the bytes are not whole and aligned words.
    #[inline(always)]
    pub fn new(bytes: &'a [u8]) -> Words<'a> {
        assert!((bytes.as_ptr().addr() | bytes.len()).is_multiple_of(8));
        Words { bytes }
    }

    /// Words of memory.
    #[cfg(test)]
    pub fn of(words: &'a [u64]) -> Words<'a> {
        // SAFETY: the same bytes; a u64 has no padding.
        Words { bytes: unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) } }
    }

    /// How many words.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.bytes.len() / 8
    }

    /// The words [from, to).
    #[inline(always)]
    pub fn part(self, from: usize, to: usize) -> Words<'a> {
        Words { bytes: &self.bytes[from * 8..to * 8] }
    }

    /// The words as bytes.
    #[inline(always)]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    #[inline(always)]
    fn start(self) -> *const u64 {
        self.bytes.as_ptr().cast()
    }

    /// Appends them to `list`.
    #[inline(always)]
    pub fn save(self, list: &mut Vec<u64>) {
        let (words, length) = (self.len(), list.len());
        if list.capacity() - length < words {
            make_room(list, words);
        }
        // SAFETY: the list has room for `words` more, which are written before its length says so.
        unsafe {
            copy(self.start(), list.as_mut_ptr().add(length), words);
            list.set_len(length + words);
        }
    }

    /// Writes them to the start of `target`, little-endian as they are.
    #[inline(always)]
    pub fn store(self, target: &mut [[u8; 8]]) {
        let target = &mut target[..self.len()];
        // SAFETY: both sides have that many words (above); a unique borrow overlaps nothing.
        unsafe { copy(self.start(), target.as_mut_ptr().cast(), self.len()) }
    }

    /// The words that are not as they were, a bit each, for up to 64 words.
    #[inline(always)]
    pub fn differing(self, before: &[u64]) -> u64 {
        assert!(self.len() == before.len() && before.len() <= 64);
        let (mut at, mut all) = (0, 0);
        while before.len() - at >= LINE {
            // SAFETY: both sides have a line of words from `at` on (above).
            all |= unsafe { line_differs(self.start().add(at), before.as_ptr().add(at)) } << at;
            at += LINE;
        }
        while at < before.len() {
            // SAFETY: in bounds (above); words are aligned (`new`).
            let now = u64::from_le(unsafe { self.start().add(at).read_volatile() });
            all |= u64::from(now != before[at]) << at;
            at += 1;
        }
        all
    }
}

#[cold]
#[inline(never)]
fn make_room(list: &mut Vec<u64>, words: usize) {
    list.reserve(words);
}

/// # Safety
///
/// `source` has `words` aligned words, `target` room for as many; they do not overlap.
#[inline(always)]
unsafe fn copy(source: *const u64, target: *mut u64, words: usize) {
    let mut at = 0;
    // SAFETY: `source` and `target` have `words` words each and `at` stays below that. Volatile, so that the compiler does not
    // make one load of several.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        while words - at >= LINE {
            for pair_at in [at, at + 2, at + 4, at + 6] {
                _mm_storeu_si128(target.add(pair_at).cast(), pair(source.add(pair_at)));
            }
            at += LINE;
        }
        #[cfg(target_arch = "x86_64")]
        while words - at >= 2 {
            _mm_storeu_si128(target.add(at).cast(), pair(source.add(at)));
            at += 2;
        }
        while at < words {
            target.add(at).write_unaligned(u64::from_le(source.add(at).read_volatile()));
            at += 1;
        }
    }
}

/// Two words, loaded one by one.
///
/// # Safety
///
/// Both are readable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pair(source: *const u64) -> __m128i {
    let both: __m128i;
    // SAFETY: two loads of the words at `source`, both readable as the caller vouches; no flags, no stack. In assembly, because
    // the compiler would make one load of them.
    unsafe {
        core::arch::asm!(
            "movq {both}, qword ptr [{source}]",
            "movhps {both}, qword ptr [{source} + 8]",
            both = out(xmm_reg) both,
            source = in(reg) source,
            options(readonly, nostack, preserves_flags),
        );
    }
    both
}

/// The words of a line that differ, a bit each.
///
/// # Safety
///
/// Both sides have a line of words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn line_differs(now: *const u64, before: *const u64) -> u64 {
    // SAFETY: both sides have a line of eight words, as the caller vouches, and `at` goes to 6 in pairs.
    let same = unsafe {
        let same = |at: usize| _mm_cmpeq_epi32(pair(now.add(at)), _mm_loadu_si128(before.add(at).cast()));
        let halves = [_mm_packs_epi32(same(0), same(2)), _mm_packs_epi32(same(4), same(6))];
        _mm_movemask_epi8(_mm_packs_epi16(halves[0], halves[1])) as u64
    };
    // Two bits of each word, one for each half of it: first both to the lower one, then those side by side.
    let halves = !same & 0xffff;
    let differ = (halves | halves >> 1) & 0x5555;
    let differ = (differ | differ >> 1) & 0x3333;
    let differ = (differ | differ >> 2) & 0x0f0f;
    (differ | differ >> 4) & 0xff
}

/// # Safety
///
/// Both sides have a line of words.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn line_differs(now: *const u64, before: *const u64) -> u64 {
    (0..LINE).fold(0, |all, at| {
        // SAFETY: both sides have `LINE` words, as the caller vouches, and `at` is less.
        let (now, before) = unsafe { (now.add(at).read_volatile(), before.add(at).read()) };
        all | u64::from(u64::from_le(now) != before) << at
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn bits_are_counted(bits: u64) {
            proptest::prop_assert_eq!(ones(bits), bits.count_ones());
        }

        #[test]
        fn words_that_differ_are_found(words in proptest::collection::vec(0u64.., 0..65), bits: u64, half: bool) {
            let mut before = words.clone();
            for (at, word) in before.iter_mut().enumerate() {
                *word ^= (bits >> at & 1) << if half { 63 } else { at / 2 };
            }
            let mask = if words.len() == 64 { u64::MAX } else { (1 << words.len()) - 1 };
            proptest::prop_assert_eq!(Words::of(&words).differing(&before), bits & mask);
        }

        #[test]
        fn words_are_copied_as_they_are(words in proptest::collection::vec(0u64.., 0..40), from in 0usize..40) {
            let all = Words::of(&words);
            let part = all.part(from.min(words.len()), words.len());
            let mut list = vec![7];
            part.save(&mut list);
            proptest::prop_assert_eq!(&list[1..], &words[from.min(words.len())..]);
            let mut target = vec![[0; 8]; part.len() + 1];
            part.store(&mut target);
            let stored: Vec<u64> = target.iter().map(|word| u64::from_le_bytes(*word)).collect();
            proptest::prop_assert_eq!(&stored[..part.len()], &list[1..]);
            proptest::prop_assert_eq!(stored[part.len()], 0);
        }
    }
}
