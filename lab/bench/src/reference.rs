// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fixed reference routines of `limits/`, on parts of areas.

use crate::area::Part;
use crate::machine;

mod c {
    use core::ffi::{c_char, c_void};

    unsafe extern "C" {
        pub fn memlift_reference_xor64(source: *const c_void, bytes: usize) -> u64;
        pub fn memlift_reference_copy_nt(target: *mut c_void, source: *const c_void, bytes: usize);
        pub fn memlift_reference_pattern(target: *mut c_void, bytes: usize, seed: u64);
        pub fn memlift_reference_checksum(source: *const c_void, bytes: usize) -> u64;
        pub fn memlift_reference_chase_build(area: *mut c_void, bytes: usize, seed: u64);
        pub fn memlift_reference_flush_name() -> *const c_char;
        pub fn memlift_reference_copy_flush(target: *mut c_void, source: *const c_void, bytes: usize);
        pub fn memlift_reference_stream_fence(target: *mut c_void, bytes: usize, word: u64);
        pub fn memlift_reference_chase(area: *const c_void, steps: usize) -> u64;
    }
}

/// One read pass: the exclusive or of all 64-bit words.
pub fn xor64(source: Part<'_>) -> u64 {
    // SAFETY: a part is mapped and readable for all its bytes; the routine only reads.
    unsafe { c::memlift_reference_xor64(source.start().cast(), source.bytes()) }
}

/// One copy past the cache.
pub fn copy_nt(target: Part<'_>, source: Part<'_>) {
    assert_eq!(target.bytes(), source.bytes(), "a copy has one size");
    let apart = (target.start() as usize).abs_diff(source.start() as usize);
    assert!(apart >= source.bytes(), "the areas must not overlap");
    // SAFETY: both parts are mapped for `bytes`, the target is writable, and they do not overlap (asserted).
    unsafe { c::memlift_reference_copy_nt(target.start().cast(), source.start().cast(), source.bytes()) }
}

/// Writes every byte, differently for every seed.
pub fn pattern(target: Part<'_>, seed: u64) {
    // SAFETY: a part is mapped and writable for all its bytes.
    unsafe { c::memlift_reference_pattern(target.start().cast(), target.bytes(), seed) }
}

/// [`pattern`] for memory of this process alone.
pub fn pattern_of(target: &mut [u8], seed: u64) {
    // SAFETY: the slice is writable for all its bytes.
    unsafe { c::memlift_reference_pattern(target.as_mut_ptr().cast(), target.len(), seed) }
}

/// [`checksum`] of memory of this process alone.
pub fn checksum_of(source: &[u8]) -> u64 {
    // SAFETY: the slice is readable for all its bytes; the routine only reads.
    unsafe { c::memlift_reference_checksum(source.as_ptr().cast(), source.len()) }
}

/// A checksum that depends on the order of the words.
pub fn checksum(source: Part<'_>) -> u64 {
    // SAFETY: a part is mapped and readable for all its bytes; the routine only reads.
    unsafe { c::memlift_reference_checksum(source.start().cast(), source.bytes()) }
}

/// CRC-32C, by its definition.
pub fn crc32c(source: Part<'_>) -> u64 {
    // SAFETY: a part is mapped and readable for all its bytes, and nothing writes to it meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(source.start(), source.bytes()) };
    let mut table = [0_u32; 256];
    for (byte, entry) in (0_u32..).zip(&mut table) {
        *entry = (0..8).fold(byte, |state, _| state >> 1 ^ (0x82f6_3b78 & (state & 1).wrapping_neg()));
    }
    let step = |state: u32, byte: &u8| state >> 8 ^ table[usize::from(state as u8 ^ byte)];
    u64::from(!bytes.iter().fold(!0, step))
}

/// A copy through the cache whose lines are then written back, and a store fence.
pub fn copy_flush(target: Part<'_>, source: Part<'_>) {
    assert_eq!(target.bytes(), source.bytes(), "a copy has one size");
    let apart = (target.start() as usize).abs_diff(source.start() as usize);
    assert!(apart >= source.bytes(), "the areas must not overlap");
    // SAFETY: both parts are mapped for `bytes`, the target is writable, and they do not overlap (asserted).
    unsafe { c::memlift_reference_copy_flush(target.start().cast(), source.start().cast(), source.bytes()) }
}

/// The instruction with which [`copy_flush`] writes a line back here.
pub fn flush_name() -> &'static str {
    // SAFETY: the routine gives one of its string constants.
    unsafe { core::ffi::CStr::from_ptr(c::memlift_reference_flush_name()) }.to_str().unwrap_or("?")
}

/// Stores all lines of a part past the cache, then fences.
pub fn stream_fence(target: Part<'_>, word: u64) {
    assert!(
        target.bytes().is_multiple_of(64) && (target.start() as usize).is_multiple_of(64),
        "whole lines are stored"
    );
    // SAFETY: the part is mapped and writable for all its bytes, and aligned as the stores want it (asserted).
    unsafe { c::memlift_reference_stream_fence(target.start().cast(), target.bytes(), word) }
}

/// Links all lines of a part into one random cycle and follows it for `steps`, `runs` times; gives the least time of a
/// step, seconds of this thread's CPU time.
pub fn chase(area: Part<'_>, steps: usize, runs: usize) -> f64 {
    // SAFETY: the part is mapped and writable; the routine writes whole words inside `bytes`.
    unsafe { c::memlift_reference_chase_build(area.start().cast(), area.bytes(), 0x1234_5678_9abc_def1) };
    let follow = |steps: usize| {
        // SAFETY: the cycle just built holds only indices of lines inside the part.
        std::hint::black_box(unsafe { c::memlift_reference_chase(area.start().cast(), steps) });
    };
    follow((area.bytes() / 64).min(2 * steps));
    let mut least = f64::INFINITY;
    for _ in 0..runs {
        let start = machine::thread_cpu_seconds();
        follow(steps);
        least = least.min(machine::thread_cpu_seconds() - start);
    }
    least / steps as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Area;

    #[test]
    fn routines_agree_with_plain_rust() {
        let area = Area::private(1 << 16).expect("mmap");
        for bytes in [0, 1, 7, 8, 9, 63, 64, 65, 4095, 4096, 5001, 20_000] {
            let (source, target) = (area.part(3, bytes), area.part(32_768 + 5, bytes));
            pattern(source, 42);
            copy_nt(target, source);
            // SAFETY: nothing else touches the area while these two shared slices live.
            let (read, copied) = unsafe {
                (
                    std::slice::from_raw_parts(source.start(), bytes),
                    std::slice::from_raw_parts(target.start(), bytes),
                )
            };
            assert_eq!(read, copied, "{bytes}");
            let expected = read.chunks(8).fold(0, |sum, chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                sum ^ u64::from_le_bytes(word)
            });
            assert_eq!(xor64(source), expected, "{bytes}");
            assert_eq!(checksum(source), checksum(target), "{bytes}");
        }
    }

    #[test]
    fn the_crc_is_the_published_one() {
        let area = Area::private(4096).expect("mmap");
        // SAFETY: the nine bytes lie inside the area and nothing else uses them.
        unsafe { area.part(0, 9).start().copy_from_nonoverlapping(b"123456789".as_ptr(), 9) };
        assert_eq!(crc32c(area.part(0, 9)), 0xe306_9283);
    }

    #[test]
    fn durable_copies_are_copies() {
        let area = Area::private(1 << 16).expect("mmap");
        let (source, target) = (area.part(0, 4096), area.part(8192, 4096));
        pattern(source, 7);
        copy_flush(target, source);
        assert_eq!(checksum(target), checksum(source));
        assert!(flush_name().len() > 3);
        stream_fence(target, u64::from_ne_bytes([1; 8]));
        let ones = area.part(16_384, 4096);
        // SAFETY: the range lies inside the area and nothing else uses it.
        unsafe { std::ptr::write_bytes(ones.start(), 1, 4096) };
        assert_eq!(checksum(target), checksum(ones));
    }

    #[test]
    fn checksum_sees_order_and_single_bits() {
        let area = Area::private(1 << 16).expect("mmap");
        let part = area.part(0, 1024);
        pattern(part, 1);
        let sum = checksum(part);
        for at in [0, 8, 511, 1023] {
            // SAFETY: the byte lies inside the part and nothing else uses it.
            unsafe { *part.start().add(at) ^= 4 };
            assert_ne!(checksum(part), sum, "bit at {at}");
            // SAFETY: the byte lies inside the part and nothing else uses it.
            unsafe { *part.start().add(at) ^= 4 };
        }
        assert_eq!(checksum(part), sum);
        // SAFETY: both words lie inside the part and do not overlap.
        unsafe { std::ptr::swap_nonoverlapping(part.start(), part.start().add(64), 8) };
        assert_ne!(checksum(part), sum, "two words swapped");
    }
}
