// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the packing method of a page: samples some of its numbers, then tries one or two methods.
//!
//! - **Flow** a block of 128 numbers in the middle of the page is measured, as numbers of 4 and 8 bytes, plain and as differences. If it
//!   packs to half the size or less, that frame is used. Floating-point numbers that are decimals are packed as such. Otherwise LZ4 is
//!   tried; if it saves little and every 4th or 8th byte is alike, planes are tried. For `Effort::Cold` Zstandard is tried with the same
//!   filter, and used if it saves a quarter more.
//! - **Order** a later try gets no more room than the best result so far took, so it gives up early.
//! - **Not here** the methods themselves.

use super::integers;
use super::{Effort, MAX_PACKED_BYTES, Method, PAGE_BYTES, Packer, decimal};

/// A frame that packs the page to this many bytes or less is used without trying LZ4.
const GOOD_BYTES: usize = 1500;

/// Packs by the best method; returns `None` if no method saves enough.
pub(super) fn pack(
    packer: &mut Packer,
    page: &[u8; PAGE_BYTES],
    target: &mut [u8; PAGE_BYTES],
    effort: Effort,
) -> Option<usize> {
    let fast = fast(packer, page, target);
    if effort == Effort::Fast {
        return fast;
    }
    let most = fast.map_or(MAX_PACKED_BYTES, |bytes| bytes - bytes / 4);
    let dense = match fast.and_then(|_| Method::of(target)) {
        Some(Method::Planes4 | Method::Frame4) => Method::DensePlanes4,
        Some(Method::Planes8 | Method::Frame8 | Method::Decimal8) => Method::DensePlanes8,
        Some(Method::Differences4 | Method::FrameDifferences4) => Method::DenseDifferences4,
        Some(Method::Differences8 | Method::FrameDifferences8) => Method::DenseDifferences8,
        _ => Method::Dense,
    };
    attempt(packer, dense, page, target, most).or(fast)
}

/// Tries a method in a buffer on the stack; the target changes only if the result has at most `most` bytes.
fn attempt(
    packer: &mut Packer,
    method: Method,
    page: &[u8; PAGE_BYTES],
    target: &mut [u8; PAGE_BYTES],
    most: usize,
) -> Option<usize> {
    let mut room = [0; PAGE_BYTES];
    let bytes = packer.pack_as(method, page, &mut room[..most])?;
    target[..bytes].copy_from_slice(&room[..bytes]);
    Some(bytes)
}

fn fast(packer: &mut Packer, page: &[u8; PAGE_BYTES], target: &mut [u8; PAGE_BYTES]) -> Option<usize> {
    let mut best = None;
    let mut most = MAX_PACKED_BYTES;
    let (method, sampled) = frame(page);
    if sampled <= MAX_PACKED_BYTES * 3 / 4 {
        best = packer.pack_as(method, page, &mut target[..most]);
    } else if decimal::exponent(page).is_some() {
        best = packer.pack_as(Method::Decimal8, page, &mut target[..most]);
    }
    if let Some(bytes) = best {
        if bytes <= GOOD_BYTES {
            return best;
        }
        most = bytes - bytes / 16;
    }
    let tried = if best.is_none() {
        packer.pack_as(Method::Lz, page, &mut target[..most])
    } else {
        attempt(packer, Method::Lz, page, target, most)
    };
    if let Some(bytes) = tried {
        best = tried;
        most = bytes - bytes / 16;
    }
    if most > PAGE_BYTES / 2
        && let Some(method) = planes(page)
        && let Some(bytes) = attempt(packer, method, page, target, most)
    {
        best = Some(bytes);
    }
    best
}

/// Returns the frame that packs the middle of the page best, and the size of the whole page at that rate, bytes.
fn frame(page: &[u8; PAGE_BYTES]) -> (Method, usize) {
    let eights = &page[1024..2048];
    let fours = &page[2048..2560];
    let sizes = [
        (Method::Frame8, 4 * integers::sample::<u64>(eights, false)),
        (Method::FrameDifferences8, 4 * integers::sample::<u64>(eights, true)),
        (Method::Frame4, 8 * integers::sample::<u32>(fours, false)),
        (Method::FrameDifferences4, 8 * integers::sample::<u32>(fours, true)),
    ];
    // The frames are in the order of their unpacking speed: a later one must be smaller by a sixteenth.
    sizes
        .into_iter()
        .reduce(|best, next| if next.1 + next.1 / 16 < best.1 { next } else { best })
        .unwrap_or(sizes[0])
}

/// Returns planes of 4 or 8 bytes if bytes often equal those of the previous number, else `None`.
fn planes(page: &[u8; PAGE_BYTES]) -> Option<Method> {
    let (words, _) = page.as_chunks::<8>();
    let (mut eights, mut fours) = (0, 0);
    let equal_bytes = |bits: u64| {
        // This gives 0x80 in each byte that is zero.
        let low = 0x7f7f_7f7f_7f7f_7f7fu64;
        (!((bits & low).wrapping_add(low) | bits | low)).count_ones()
    };
    for pair in words.chunks_exact(8).step_by(2) {
        let (first, second) = (u64::from_le_bytes(pair[3]), u64::from_le_bytes(pair[4]));
        eights += equal_bytes(first ^ second);
        fours += equal_bytes(first ^ first.rotate_left(32)) / 2 * 2;
    }
    // 32 pairs of 8 bytes: on average at least 2 bytes of 8 must be equal.
    if eights.max(fours) < 64 {
        None
    } else if eights >= fours {
        Some(Method::Planes8)
    } else {
        Some(Method::Planes4)
    }
}
