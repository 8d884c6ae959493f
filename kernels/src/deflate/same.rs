// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many bytes two places have in common: up to 32 at once, with whatever compares them fastest.
//!
//! - **Order** every implementation gives the same answer, so that what is packed does not depend on the CPU.
//! - **Owner** 32 bytes are read at both places whatever they hold: the caller promises that they are there.

/// Bytes that [`Same::first`] compares.
pub const WIDE_BYTES: usize = 32;

/// A way to compare.
pub trait Same: Copy {
    /// How many bytes at `a` and `b` are equal, counted from the first: 0–32.
    ///
    /// # Safety
    /// 32 bytes can be read at both, and the CPU has what the implementation needs.
    unsafe fn first(a: *const u8, b: *const u8) -> usize;
}

/// Words of eight bytes: any CPU.
#[derive(Clone, Copy)]
pub struct Words;

impl Same for Words {
    #[inline(always)]
    unsafe fn first(a: *const u8, b: *const u8) -> usize {
        for at in (0..WIDE_BYTES).step_by(8) {
            // SAFETY: inside the 32 bytes that the caller promises.
            let difference = unsafe { eight(a.add(at)) ^ eight(b.add(at)) };
            if difference != 0 {
                return at + difference.trailing_zeros() as usize / 8;
            }
        }
        WIDE_BYTES
    }
}

/// Eight bytes, the first one lowest.
///
/// # Safety
/// Eight bytes can be read.
#[inline(always)]
pub unsafe fn eight(at: *const u8) -> u64 {
    // SAFETY: eight bytes at `at` are readable, as the caller vouches.
    u64::from_le(unsafe { at.cast::<u64>().read_unaligned() })
}

/// One vector of 32 bytes: AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Same for Avx2 {
    #[inline(always)]
    unsafe fn first(a: *const u8, b: *const u8) -> usize {
        use core::arch::x86_64::{_mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8};
        // SAFETY: the caller promises the bytes and the CPU.
        let equal = unsafe {
            let (a, b) = (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32
        };
        (u64::from(!equal) | 1 << WIDE_BYTES).trailing_zeros() as usize
    }
}

/// How many bytes at `a` and `b` are equal if the first 32 are: 32 to `most`.
///
/// # Safety
/// `most` bytes can be read at both, at least 32; the CPU has what `S` needs.
#[inline(always)]
pub unsafe fn extend<S: Same>(a: *const u8, b: *const u8, most: usize) -> usize {
    let mut length = WIDE_BYTES;
    while length + WIDE_BYTES <= most {
        // SAFETY: the next 32 bytes are among the `most` that the caller promises.
        let more = unsafe { S::first(a.add(length), b.add(length)) };
        length += more;
        if more < WIDE_BYTES {
            return length;
        }
    }
    // SAFETY: inside the `most` bytes.
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
            // SAFETY: both are 132 bytes long, and the caller asked the CPU.
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
