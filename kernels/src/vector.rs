// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations that `arch/generic` needs of a vector register of 16, 32 or 64 bytes.
//!
//! - **Flow** `arch/generic` calls `Vector`; `arch/x86_64/{sse2,avx2,avx512}` implement it.
//! - **Owner** all methods are `unsafe`, not only for their pointers: they must be called inside a function that enables the instruction
//!   set. They are `#[inline(always)]`, so that they are compiled into that function.

/// A vector register.
///
/// # Safety
///
/// Methods that take a pointer need `BYTES` readable or writable bytes there (aligned to `BYTES` where the method says so), and
/// all need a CPU that has the instruction set.
pub(crate) trait Vector: Copy {
    /// Size of the register, bytes.
    const BYTES: usize;
    /// Vector of half the size; the type itself if there is none. Halving twice always gives 16 bytes.
    type Half: Vector;

    /// Reads `BYTES` bytes, aligned or not.
    unsafe fn load(source: *const u8) -> Self;
    /// Writes `BYTES` bytes, aligned or not.
    unsafe fn store(self, target: *mut u8);
    /// Writes `BYTES` bytes to an aligned target.
    unsafe fn store_aligned(self, target: *mut u8);
    /// Writes `BYTES` bytes to an aligned target, past the cache.
    unsafe fn stream(self, target: *mut u8);
    /// Does the same as `stream` in two stores of half the size, if there are such stores.
    unsafe fn stream_halves(self, target: *mut u8);
    /// Repeats a 16-byte pattern.
    unsafe fn splat(pattern: u128) -> Self;
    /// Returns one bit per byte that differs, lowest address first.
    unsafe fn differing_bytes(self, other: Self) -> u64;
    /// Returns one bit per 8-byte word that differs, lowest address first.
    unsafe fn differing_words(self, other: Self) -> u32;
    /// Returns the bits in which the two differ, as a vector.
    unsafe fn xor(self, other: Self) -> Self;
    /// Returns the bits that are set in either.
    unsafe fn or(self, other: Self) -> Self;
    /// Returns true if no bit is set.
    unsafe fn is_zero(self) -> bool;
    /// Prefetches a line into all caches. Never faults.
    unsafe fn prefetch(source: *const u8);
    /// Orders streamed stores before all later stores.
    unsafe fn fence();
    /// Copies at most 8 vectors; everything is loaded before anything is stored. Returns false and copies nothing for more.
    unsafe fn short(target: *mut u8, source: *const u8, bytes: usize) -> bool;
    /// Returns the size from which `repeat` is faster than vectors.
    fn repeat_from() -> usize;
    /// Copies with the CPU's string instruction.
    unsafe fn repeat(target: *mut u8, source: *const u8, bytes: usize);
}

/// The vector of 16 bytes that belongs to `V`.
pub(crate) type Sixteen<V> = <<V as Vector>::Half as Vector>::Half;
