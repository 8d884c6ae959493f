// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts how many bytes at two addresses are equal, up to 32 at a time, with the fastest comparison of the CPU.
//!
//! - **Order** every implementation gives the same result, so the packed bytes do not depend on the CPU.
//! - **Owner** 32 bytes are read at both addresses, whatever they hold: the caller guarantees that they are readable.

/// Bytes that [`Same::first`] compares.
pub const WIDE_BYTES: usize = 32;

/// A method of comparison.
pub trait Same: Copy {
    /// Returns how many bytes at `a` and `b` are equal before the first difference: 0–32.
    ///
    /// # Safety
    /// 32 bytes can be read at both addresses, and the CPU has the instructions of the implementation.
    unsafe fn first(a: *const u8, b: *const u8) -> usize;
}

/// Compares words of eight bytes; works on any CPU.
#[derive(Clone, Copy)]
pub struct Words;

impl Same for Words {
    #[inline(always)]
    unsafe fn first(a: *const u8, b: *const u8) -> usize {
        for at in (0..WIDE_BYTES).step_by(8) {
            // SAFETY: the eight bytes are inside the 32 that the caller guarantees.
            let difference = unsafe { eight(a.add(at)) ^ eight(b.add(at)) };
            if difference != 0 {
                return at + difference.trailing_zeros() as usize / 8;
            }
        }
        WIDE_BYTES
    }
}

/// Reads eight bytes as a number, the first one lowest.
///
/// # Safety
/// Eight bytes can be read at `at`.
#[inline(always)]
pub unsafe fn eight(at: *const u8) -> u64 {
    // SAFETY: the caller guarantees eight readable bytes at `at`.
    u64::from_le(unsafe { at.cast::<u64>().read_unaligned() })
}

/// Compares one vector of 32 bytes with AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Same for Avx2 {
    #[inline(always)]
    unsafe fn first(a: *const u8, b: *const u8) -> usize {
        use core::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};
        // SAFETY: the caller guarantees 32 readable bytes at both addresses and a CPU with AVX2.
        let equal = unsafe {
            let (a, b) = (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32
        };
        (u64::from(!equal) | 1 << WIDE_BYTES).trailing_zeros() as usize
    }
}

/// Returns how many bytes at `a` and `b` are equal if the first 32 are: 32 to `most`.
///
/// # Safety
/// `most` bytes, at least 32, can be read at both addresses; the CPU has the instructions of `S`.
#[inline(always)]
pub unsafe fn extend<S: Same>(a: *const u8, b: *const u8, most: usize) -> usize {
    let mut length = WIDE_BYTES;
    while length + WIDE_BYTES <= most {
        // SAFETY: the next 32 bytes are among the `most` that the caller guarantees.
        let more = unsafe { S::first(a.add(length), b.add(length)) };
        length += more;
        if more < WIDE_BYTES {
            return length;
        }
    }
    // SAFETY: `length` is below `most`.
    while length < most && unsafe { a.add(length).read() == b.add(length).read() } {
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<S: Same>() {
        for bytes in 0..=100 {
            let a = [7u8; 132];
            let mut b = a;
            b[bytes] = 8;
            // SAFETY: both are 132 bytes long, and the caller of this closure has checked the CPU.
            unsafe {
                assert_eq!(S::first(a.as_ptr(), b.as_ptr()), bytes.min(32));
                if bytes >= 32 {
                    assert_eq!(extend::<S>(a.as_ptr(), b.as_ptr(), 132), bytes);
                    assert_eq!(extend::<S>(a.as_ptr(), b.as_ptr(), 50.min(bytes)), bytes.min(50));
                }
            }
        }
    }

    #[test]
    fn every_way_counts_the_same() {
        check::<Words>();
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            check::<Avx2>();
        }
    }
}
