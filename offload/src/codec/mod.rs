// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Codec: sealing and packing by the kernels, with the names of `spec`, for executors and services.
//!
//! - **Flow** `spec` format and effort ──[`Codec`]──▶ the kernel of that format; [`SealKey`] ──▶ `kernels::aead`
//! - **Owner** a [`Codec`] belongs to one thread at a time and keeps its tables: after the first message of a format it
//!   does not allocate. A [`SealKey`] is shared and zeroed when the last owner drops it.
//! - **Not here** shared memory: a codec reads its source more than once, so it must only get private bytes; services copy
//!   shared bytes first

mod key;
#[expect(clippy::module_inception, reason = "the codec of the module codec")]
mod codec;

pub use codec::{Codec, CodecError, Unpacked, bound, supported};
pub use key::SealKey;
pub use memlift_kernels::{aead, deflate, lz4, zstd};
