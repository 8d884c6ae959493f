// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that a descriptor must respect on every backend. A backend may be narrower (see
//! [`Capabilities`](crate::Capabilities)), never wider.

/// Size and alignment of a [`Descriptor`](crate::Descriptor), bytes.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Size and alignment of a [`Completion`](crate::Completion), bytes.
pub const COMPLETION_BYTES: usize = 32;
/// Most bytes one descriptor may move: 2 GiB, what current DSA silicon reports in GENCAP.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 31;
/// Most descriptors in one batch, what current DSA silicon reports in GENCAP.
pub const BATCH_MAX: u32 = 1024;
/// Fewest descriptors in one batch; one is submitted by itself.
pub const BATCH_MIN: u32 = 2;
/// Most bytes of source that a delta record can describe: offsets are u16 counts of 8-byte words.
pub const DELTA_SOURCE_BYTES_MAX: u32 = 512 * 1024;
/// Bytes of one delta entry: u16 offset in 8-byte words, then the 8 bytes that belong there.
pub const DELTA_ENTRY_BYTES: u32 = 10;
/// Smallest delta record buffer that CREATE_DELTA accepts.
pub const DELTA_RECORD_BYTES_MIN: u32 = 80;
/// Both targets of DUALCAST agree in their address modulo this.
pub const DUALCAST_ALIGN: u64 = 4096;
/// The alignment that moves of whole cache lines want.
pub const CACHE_LINE_BYTES: usize = 64;
