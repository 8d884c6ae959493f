// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AES-GCM (NIST SP 800-38D): copies that seal or open on the way, with AES-128 and AES-256 and tags of 16 bytes.
//!
//! - **Flow** [`Key`]: a whole message in one call, without allocation, from any number of threads at a time.
//!   [`Key::seal_streaming`]: the same from and to cold memory, with prefetches and stores past the caches.
//!   [`Stream`]: a message in pieces in order, restarted without allocation.
//!   [`Scatter`]: a message in ranges in any order.
//! - **Layout** a message has the same length sealed and open; the tag is separate. Source and target are equal or do not overlap:
//!   anything else is refused, as is a message longer than [`MESSAGE_BYTES_MAX`].
//! - **Owner** source and target belong to the caller and may be shared with other threads, but a message must not change while it is
//!   opened: aws-lc reads the source once for the tag and, on CPUs with AES instructions for one block only, again for the bytes. Copy a
//!   peer's memory to private memory before you open it.
//! - **Order** constant time: AES and GHASH run on the CPU's AES and carry-less multiplication instructions, else on bitsliced or
//!   vector-permutation code (aws-lc's) and on integer products (`field`). None of them branches on, or indexes by, secret bytes.
//!   Lengths, addresses, positions in a message and the result of a tag check are not secret. Tags are compared by [`tags_equal`].
//! - **Choice** with AVX-512, [`Key`] and [`Stream`] use aws-lc, which chooses its code by the CPU alone; [`Key::seal_streaming`] and
//!   [`Scatter`] use our own routines, which `MEMLIFT_ISA` can restrict. Measured by `examples/aead_speed`, Granite-Rapids class Xeon,
//!   AES-128, as a factor over memcpy followed by sealing in place. Hot memory: [`Key::seal`] 1.07× at 4 KiB (8.6 GB/s) and 1.09× at 16
//!   KiB (11.5 GB/s), our own single pass 0.8×, so aws-lc is used. Cold memory: [`Key::seal`] 1.2 to 1.3×, [`Key::seal_streaming`] 1.57×
//!   at 4 KiB, 1.64× at 16 KiB, 1.72× at 64 KiB, at any alignment of the target. Tried for cold messages and left out: aws-lc into a
//!   buffer in the first-level cache and non-temporal copies from there (1.0 to 1.15×), aws-lc in pieces of 4 KiB with prefetches (1.0×),
//!   our pass with prefetches but cached stores (1.35×), `prefetchnta` (0.9×).
//!   With VAES but without AVX-512 (Zen 3, client CPUs) aws-lc has code for one block per register only, and our own code for two blocks
//!   per register ([`pairs`]) is used for everything. Zen 3, AES-128, hot memory, speed relative to aws-lc 0.47: 1.4 to 1.7× up to 200
//!   bytes, 2.0× at 1 KiB, 2.1× at 4 KiB (8.1 GB/s), 2.2× at 16 KiB (9.1 GB/s). ring 0.17, which has BoringSSL's code for these CPUs, took
//!   1.13 times as long as ours at 4 and 16 KiB in place; using it would have added a third library.
//! - **Not here** a choice of nonces: the caller ensures that a (key, nonce) pair seals one message only.

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
#[cfg(target_arch = "x86_64")]
mod vaes;

pub use key::Key;
pub use scatter::Scatter;
pub use stream::Stream;

/// The longest message of GCM: 2³² − 2 blocks of 16 bytes.
pub const MESSAGE_BYTES_MAX: u64 = (1 << 36) - 32;

/// Length of a tag, bytes.
pub const TAG_BYTES: usize = 16;

/// Length of a nonce for [`Key`], bytes. ([`Stream`] also takes other lengths.)
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

/// Reason why a message, or a piece of one, was not processed. The target is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// More bytes than GCM allows under one nonce.
    #[error("a message of more than 2^36 - 32 bytes: split it into messages with nonces of their own")]
    TooLong,
    /// Source and target overlap without being equal.
    #[error("source and target overlap: make them equal or disjoint")]
    Overlap,
    /// Additional data came after message bytes, or either came after the tag.
    #[error("out of order: first all additional data, then the message, then the tag, then restart")]
    Order,
    /// The range begins inside a block.
    #[error("a range that does not begin at a multiple of 16: begin it where a block begins")]
    Misaligned,
    /// The range contains bytes that were already given.
    #[error("some bytes of this range came before: give each byte of a message once")]
    Repeated,
    /// Bytes of the message are missing, or bytes beyond its length were given.
    #[error(
        "not exactly the bytes of the message have come: give those that are missing, then ask for the tag"
    )]
    Missing,
}

/// Returns true if two tags are equal; the time depends on the lengths only.
pub fn tags_equal(a: &[u8], b: &[u8]) -> bool {
    // SAFETY: both are readable for the length of `a`, because the lengths are equal.
    a.len() == b.len()
        && unsafe { aws_lc_sys::CRYPTO_memcmp(a.as_ptr().cast(), b.as_ptr().cast(), a.len()) } == 0
}

/// Checks the rules of every routine: the message is not too long, and source and target are equal or disjoint.
fn allowed(source: usize, target: usize, bytes: usize, before_bytes: u64) -> Result<(), Refused> {
    if before_bytes > MESSAGE_BYTES_MAX || bytes as u64 > MESSAGE_BYTES_MAX - before_bytes {
        return Err(Refused::TooLong);
    }
    if source != target && source.abs_diff(target) < bytes {
        return Err(Refused::Overlap);
    }
    Ok(())
}
