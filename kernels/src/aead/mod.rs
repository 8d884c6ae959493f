// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM (NIST SP 800-38D): copy that seals or opens on the way, with AES-128 and AES-256 and tags of 16 bytes.
//!
//! - **Flow** whole message     ──▶ [`Key`]: one call, no allocation, any number of threads at once
//!   … from and to cold memory ──▶ [`Key::seal_streaming`]: prefetch, and stores past the caches
//!   pieces in order   ──▶ [`Stream`]: one message at a time, restarted without allocation
//!   ranges in any order ──▶ [`Scatter`]; [`Untrusted`] if the target is a slice that is being opened
//! - **Layout** a message is as long sealed as open; the tag travels apart. Source and target are equal or do not
//!   overlap: anything else is refused, as is a message longer than [`MESSAGE_BYTES_MAX`].
//! - **Owner** the memory of source and target belongs to the caller and may be shared with other threads, but what is
//!   opened must not change meanwhile: aws-lc reads the source once for the tag and, with AES instructions of
//!   one block, once more for the bytes. Whoever opens memory of a peer copies it to private memory first.
//! - **Order** constant time: AES and GHASH run on the CPU's AES and carry-less multiplication instructions, else on
//!   bitsliced or vector-permutation code (aws-lc's) and on integer products (`field`); none of it branches
//!   on, or indexes by, secret bytes. Lengths, addresses, places in a message and the verdict of a tag are
//!   not secret. Tags are compared by [`tags_equal`].
//! - **Choice** with AVX-512, [`Key`] and [`Stream`] are aws-lc, which chooses by the CPU alone; [`Key::seal_streaming`] and
//!   [`Scatter`] are routines of our own, which `MEMLIFT_ISA` masks. Measured by `examples/aead_speed`,
//!   Granite-Rapids class Xeon, AES-128, against memcpy and sealing in place: hot, [`Key::seal`] 1.07× at 4 KiB (8.6
//!   GB/s), 1.09× at 16 KiB (11.5 GB/s) and our own one pass 0.8×, so aws-lc does it; cold, [`Key::seal`] 1.2 to
//!   1.3×, [`Key::seal_streaming`] 1.57× at 4 KiB, 1.64× at 16 KiB, 1.72× at 64 KiB, whatever the target's
//!   alignment. Tried for cold messages and left out: aws-lc into a buffer in the first-level cache and
//!   non-temporal copies from there (1.0 to 1.15×), aws-lc in pieces of 4 KiB with prefetches (1.0×), our
//!   pass with prefetches but cached stores (1.35×), `prefetchnta` (0.9×).
//!   With VAES but without AVX-512 (Zen 3, client CPUs) aws-lc has code for one block per register only, and our
//!   own two blocks per register ([`pairs`]) do all of it. Zen 3, AES-128, hot, against aws-lc 0.47: 1.4 to 1.7× up
//!   to 200 bytes, 2.0× at 1 KiB, 2.1× at 4 KiB (8.1 GB/s), 2.2× at 16 KiB (9.1 GB/s). ring 0.17, which has BoringSSL's
//!   code for these CPUs, took 1.13 times as long as ours at 4 and 16 KiB, in place; it would have been a third library.
//! - **Not here** a choice of nonces: a (key, nonce) pair seals one message, ever; the caller answers for that.

#[cfg(target_arch = "x86_64")]
mod clmul;
mod coverage;
mod field;
mod key;
mod own;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod prepared;
mod scatter;
mod stream;
mod streaming;
mod untrusted;
#[cfg(target_arch = "x86_64")]
mod vaes;

pub use key::Key;
pub use scatter::Scatter;
pub use stream::Stream;
pub use untrusted::Untrusted;

/// The longest message of GCM: 2³² − 2 blocks of 16 bytes.
pub const MESSAGE_BYTES_MAX: u64 = (1 << 36) - 32;

/// A tag's length in bytes.
pub const TAG_BYTES: usize = 16;

/// The length in bytes of a nonce for [`Key`]. ([`Stream`] takes others, too.)
pub const NONCE_BYTES: usize = 12;

/// The key is neither 16 nor 32 bytes long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a key of {bytes} bytes: give 16 (AES-128) or 32 (AES-256)")]
pub struct KeyLength {
    /// The length that was given.
    pub bytes: usize,
}

/// The message is not what was sealed with this key, nonce and additional data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tag does not belong to this message, key, nonce and additional data: discard the message")]
pub struct WrongTag;

/// Why a message, or a piece of one, was not processed. The target is untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// More bytes than GCM allows under one nonce.
    #[error("a message of more than 2^36 - 32 bytes: split it into messages with nonces of their own")]
    TooLong,
    /// Source and target overlap without being equal.
    #[error("source and target overlap: make them equal or disjoint")]
    Overlap,
    /// Additional data after message bytes, or either after the tag.
    #[error("out of order: first all additional data, then the message, then the tag, then restart")]
    Order,
    /// A range that begins inside a block.
    #[error("a range that does not begin at a multiple of 16: begin it where a block begins")]
    Misaligned,
    /// A range with bytes that came before.
    #[error("some bytes of this range came before: give each byte of a message once")]
    Again,
    /// Bytes that have not come, or lie beyond the length.
    #[error(
        "not exactly the bytes of the message have come: give those that are missing, then ask for the tag"
    )]
    Missing,
}

/// Returns true if two tags are the same, in a time that depends on the lengths only.
pub fn tags_equal(a: &[u8], b: &[u8]) -> bool {
    // SAFETY: both are readable for the length of `a`, because the lengths are equal.
    a.len() == b.len()
        && unsafe { aws_lc_sys::CRYPTO_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) } == 0
}

/// The rules that every routine shares: not too long, and equal or disjoint.
fn allowed(source: usize, target: usize, bytes: usize, before_bytes: u64) -> Result<(), Refused> {
    if before_bytes > MESSAGE_BYTES_MAX || bytes as u64 > MESSAGE_BYTES_MAX - before_bytes {
        return Err(Refused::TooLong);
    }
    if source != target && source.abs_diff(target) < bytes {
        return Err(Refused::Overlap);
    }
    Ok(())
}
