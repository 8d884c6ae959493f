// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that hold for a descriptor on every backend. The limits of a backend may be narrower (see
//! [`Capabilities`](crate::Capabilities)), never wider.

/// Size and alignment of a [`Descriptor`](crate::Descriptor), bytes.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Size and alignment of a [`Completion`](crate::Completion), bytes.
pub const COMPLETION_BYTES: usize = 32;
/// Most bytes of one descriptor: 2 GiB, the value that current DSA devices report in GENCAP.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 31;
/// Most descriptors in one batch, the value that current DSA devices report in GENCAP.
pub const BATCH_MAX: u32 = 1024;
/// Fewest descriptors in one batch; a single descriptor is submitted by itself.
pub const BATCH_MIN: u32 = 2;
/// Most bytes of source that a delta record can describe: its offsets are u16, in units of 8 bytes.
pub const DELTA_SOURCE_BYTES_MAX: u32 = 512 * 1024;
/// Bytes of one delta entry: u16 offset in 8-byte words, then the 8 bytes of the second buffer.
pub const DELTA_ENTRY_BYTES: u32 = 10;
/// Smallest buffer for a delta record that DELTA_CREATE accepts, bytes.
pub const DELTA_RECORD_BYTES_MIN: u32 = 80;
/// The addresses of both targets of DUALCAST are equal modulo this.
pub const DUALCAST_ALIGN: u64 = 4096;
/// Size of a cache line, and the alignment for copies of whole lines, bytes.
pub const CACHE_LINE_BYTES: usize = 64;
