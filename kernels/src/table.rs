// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of routines: one function pointer per operation, one table per instruction set.
//!
//! - **Owner** every routine is `unsafe`: the caller guarantees that sources are readable and targets writable for the given bytes, and
//!   that they do not overlap unless the routine allows it. Nothing needs to be aligned. Zero bytes are allowed everywhere, with any
//!   pointer.
//! - **Order** routines whose names end in `_nt` store past the cache, for targets that will not be read soon, and end with a store
//!   fence. Below a few hundred bytes they use ordinary stores.
//! - **Not here** the decision when `_nt` pays, and with which shape: callers measure that.

use crate::{Delta, DeltaError, Isa, Shape};

/// `(target, source, bytes)`.
pub type CopyFn = unsafe fn(target: *mut u8, source: *const u8, bytes: usize);

/// `(target, pattern, bytes)`: the 16 bytes of `pattern`, least significant first, are repeated; the last repetition may be cut.
pub type FillFn = unsafe fn(target: *mut u8, pattern: u128, bytes: usize);

/// `(first, second, bytes)`; returns the offset of the first byte that differs, or `None` if all are equal.
pub type CompareFn = unsafe fn(first: *const u8, second: *const u8, bytes: usize) -> Option<usize>;

/// `(source, pattern, bytes)`; returns the offset of the first byte that differs from the repeated 8-byte pattern, or `None`.
pub type ComparePatternFn = unsafe fn(source: *const u8, pattern: u64, bytes: usize) -> Option<usize>;

/// `(source, bytes, seed)`; returns the CRC-32C. Seed 0 gives the standard value; the value of the preceding bytes as seed
/// continues it.
pub type CrcFn = unsafe fn(source: *const u8, bytes: usize, seed: u32) -> u32;

/// `(target, source, bytes, seed)`: copies and returns the CRC-32C of the copied bytes.
pub type CopyCrcFn = unsafe fn(target: *mut u8, source: *const u8, bytes: usize, seed: u32) -> u32;

/// `(target1, target2, source, bytes)`: copies to two targets with one read.
pub type DualcastFn = unsafe fn(target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize);

/// `(record, record_bytes_max, first, second, bytes)`; see [`Kernels::delta_create`].
pub type DeltaCreateFn = unsafe fn(
    record: *mut u8,
    record_bytes_max: usize,
    first: *const u8,
    second: *const u8,
    bytes: usize,
) -> Delta;

/// `(target, target_bytes, record, record_bytes)`; see [`Kernels::delta_apply`].
pub type DeltaApplyFn = unsafe fn(
    target: *mut u8,
    target_bytes: usize,
    record: *const u8,
    record_bytes: usize,
) -> Result<(), DeltaError>;

/// `(target, source, rows, row_bytes, source_stride)`; see [`Kernels::copy_strided`].
pub type CopyStridedFn =
    unsafe fn(target: *mut u8, source: *const u8, rows: usize, row_bytes: usize, source_stride: i64);

/// The routines that store past the cache, with the shape as an argument. The fields of [`Kernels`] that end in `_nt` call
/// these with the shape that [`shape`](crate::shape) returns. Portable routines ignore the shape.
#[derive(Clone, Copy, Debug)]
pub struct Shaped {
    /// See [`Kernels::copy_nt`].
    pub copy: unsafe fn(target: *mut u8, source: *const u8, bytes: usize, shape: Shape),
    /// See [`Kernels::fill_nt`].
    pub fill: unsafe fn(target: *mut u8, pattern: u128, bytes: usize, shape: Shape),
    /// See [`Kernels::copy_crc32c_nt`].
    pub copy_crc32c:
        unsafe fn(target: *mut u8, source: *const u8, bytes: usize, seed: u32, shape: Shape) -> u32,
    /// See [`Kernels::dualcast_nt`].
    pub dualcast:
        unsafe fn(target1: *mut u8, target2: *mut u8, source: *const u8, bytes: usize, shape: Shape),
    /// See [`Kernels::copy_strided_nt`].
    pub copy_strided: unsafe fn(
        target: *mut u8,
        source: *const u8,
        rows: usize,
        row_bytes: usize,
        source_stride: i64,
        shape: Shape,
    ),
}

/// The routines of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// Level that these routines are compiled for.
    pub isa: Isa,
    /// Copies; leaves the target in cache.
    pub copy: CopyFn,
    /// Copies past the cache.
    pub copy_nt: CopyFn,
    /// Copies; source and target may overlap.
    pub move_overlapping: CopyFn,
    /// Fills with a 16-byte pattern; [`repeat_8`] makes one from 8 bytes.
    pub fill: FillFn,
    /// Fills past the cache.
    pub fill_nt: FillFn,
    /// Finds the first difference of two buffers (which may overlap).
    pub compare: CompareFn,
    /// Finds the first difference from an 8-byte pattern.
    pub compare_pattern: ComparePatternFn,
    /// Computes the CRC-32C (Castagnoli) of a buffer.
    pub crc32c: CrcFn,
    /// Copies and computes the CRC-32C in one pass over memory.
    pub copy_crc32c: CopyCrcFn,
    /// Does the same as `copy_crc32c`, past the cache.
    pub copy_crc32c_nt: CopyCrcFn,
    /// Copies to two targets with one read. The targets do not overlap each other.
    pub dualcast: DualcastFn,
    /// Does the same as `dualcast`, past the cache if both targets have the same address modulo 64.
    pub dualcast_nt: DualcastFn,
    /// Writes a record of the changes that turn `first` into `second`: entries of [`DELTA_ENTRY_BYTES`] (`u16` offset in 8-byte
    /// words, then the 8 bytes of `second`), with increasing offsets. `bytes` is a multiple of 8 (a remainder is ignored). A
    /// difference beyond 512 KiB, which no offset can express, is an overflow.
    ///
    /// [`DELTA_ENTRY_BYTES`]: crate::DELTA_ENTRY_BYTES
    pub delta_create: DeltaCreateFn,
    /// Applies a delta record. Each entry is read once, checked, then applied: after an error the entries before the bad one
    /// are applied, and nothing outside the target was changed.
    pub delta_apply: DeltaApplyFn,
    /// Copies `rows` rows of `row_bytes` into a packed target; each row begins `source_stride` bytes after the previous one
    /// (may be negative or zero).
    pub copy_strided: CopyStridedFn,
    /// Does the same as `copy_strided`, past the cache.
    pub copy_strided_nt: CopyStridedFn,
    /// The routines that store past the cache, with a shape of the caller's choice.
    pub shaped: Shaped,
}

/// Returns the pattern of [`FillFn`] that repeats 8 bytes, least significant first.
pub const fn repeat_8(pattern: u64) -> u128 {
    (pattern as u128) << 64 | pattern as u128
}
