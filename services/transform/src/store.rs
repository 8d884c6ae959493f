// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies bytes from the source into a stage and from a stage into the target, through the caches or past them.
//!
//! - **Flow** `load_stage` (source ──▶ stage), `store_stage` (stage ──▶ target), `copy_through` (source ──▶ target).
//! - **Order** ordered: the 64-byte lines are written in ascending order, each complete before the next one starts (x86 keeps the order
//!   of stores; elsewhere a release fence stands between lines). Not ordered: in any order. Streaming stores end with a fence.
//! - **Owner** source and target are raw addresses that the caller guarantees; stages are private.
//!
//! | store | reads | writes | leaves in the second-level cache |
//! |---|---|---|---|
//! | temporal | ordinary | ordinary | source and target |
//! | streaming | ordinary | past the cache | source |
//! | isolated | prefetched without a place in the outer caches | past the cache | next to nothing |

use memlift_offload::Engine;
use memlift_place::Store;
use std::sync::atomic::{Ordering, fence};

/// Bytes that are prefetched ahead of the copy, and then copied: they must stay in the first-level cache.
const PIECE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Prefetches lines into the first-level cache but not into the outer ones, where the CPU has a way to do so.
///
/// # Safety
///
/// Never faults, whatever the address; `source + bytes` must not wrap around.
pub(crate) unsafe fn prefetch_near(source: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        // SAFETY: a prefetch has no effect that a program can observe, and does not fault on any address.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (source, bytes);
}

/// Runs `work(offset, bytes)` for one piece after the other, each prefetched before.
///
/// # Safety
///
/// The conditions of `work` for each piece; `source` is a valid range of `bytes`.
unsafe fn piecewise(source: *const u8, bytes: usize, mut work: impl FnMut(usize, usize)) {
    // SAFETY: `prefetch_near` never faults, and `source + bytes` does not wrap, as it is a valid range.
    unsafe { prefetch_near(source, bytes.min(PIECE_BYTES)) };
    for offset in (0..bytes).step_by(PIECE_BYTES) {
        let next = offset + PIECE_BYTES;
        if next < bytes {
            // SAFETY: `prefetch_near` never faults, and `source + bytes` does not wrap, as it is a valid range.
            unsafe { prefetch_near(source.wrapping_add(next), (bytes - next).min(PIECE_BYTES)) };
        }
        work(offset, PIECE_BYTES.min(bytes - offset));
    }
}

/// Copies from the caller's source into a private stage.
///
/// # Safety
///
/// `source` is readable for the stage's length.
pub(crate) unsafe fn load_stage(engine: &Engine, store: Store, source: *const u8, stage: &mut [u8]) {
    let copy = engine.kernels().copy;
    let stage_bytes = stage.len();
    let stage = stage.as_mut_ptr();
    // SAFETY: pieces lie in `source` (which the caller guarantees for the stage's length) and in `stage`, a unique borrow that
    // overlaps nothing.
    unsafe {
        if store == Store::Isolated {
            piecewise(source, stage_bytes, |offset, bytes| {
                copy(stage.add(offset), source.add(offset), bytes);
            });
        } else {
            copy(stage, source, stage_bytes);
        }
    }
}

/// Copies from a private stage to the caller's target.
///
/// # Safety
///
/// `target` is writable for the stage's length.
pub(crate) unsafe fn store_stage(
    engine: &Engine,
    store: Store,
    ordered: bool,
    stage: &[u8],
    target: *mut u8,
) {
    let kernels = engine.kernels();
    // SAFETY: the caller guarantees that `target` is writable for the stage's length; the private stage does not overlap it.
    unsafe {
        if ordered {
            lines_in_order(stage.as_ptr(), target, stage.len());
        } else if store == Store::Temporal {
            (kernels.copy)(target, stage.as_ptr(), stage.len());
        } else {
            (kernels.copy_nt)(target, stage.as_ptr(), stage.len());
        }
    }
}

/// Copies, and returns the CRC-32C of the copied bytes if a seed is given.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`, and they do not overlap.
pub(crate) unsafe fn copy_through(
    engine: &Engine,
    store: Store,
    ordered: bool,
    (source, target, bytes): (*const u8, *mut u8, usize),
    seed: Option<u32>,
) -> Option<u32> {
    let kernels = engine.kernels();
    // SAFETY: for every call: the caller guarantees both ranges of `bytes` and that they do not overlap; pieces lie in both.
    unsafe {
        if ordered {
            lines_in_order(source, target, bytes);
            return seed.map(|seed| (kernels.crc32c)(target, bytes, seed));
        }
        match (store, seed) {
            (Store::Temporal, None) => (kernels.copy)(target, source, bytes),
            (Store::Streaming, None) => (kernels.copy_nt)(target, source, bytes),
            (Store::Temporal, Some(seed)) => {
                return Some((kernels.copy_crc32c)(target, source, bytes, seed));
            }
            (Store::Streaming, Some(seed)) => {
                return Some((kernels.copy_crc32c_nt)(target, source, bytes, seed));
            }
            (Store::Isolated, mut value) => {
                piecewise(source, bytes, |offset, part| {
                    let (source, target) = (source.add(offset), target.add(offset));
                    match &mut value {
                        Some(value) => *value = (kernels.copy_crc32c_nt)(target, source, part, *value),
                        None => (kernels.copy_nt)(target, source, part),
                    }
                });
                return value;
            }
        }
    }
    None
}

/// Copies line by line in ascending order, for a target whose reader depends on that order.
unsafe fn lines_in_order(source: *const u8, target: *mut u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        let part = LINE_BYTES.min(bytes - offset);
        // SAFETY: the line lies in both ranges, which the caller guarantees. The compiler keeps volatile accesses in their order,
        // and x86 keeps the order of stores.
        unsafe {
            if part == LINE_BYTES {
                let line = source.add(offset).cast::<[u64; 8]>().read_unaligned();
                let place = target.add(offset).cast::<u64>();
                for (index, word) in line.into_iter().enumerate() {
                    let place = place.add(index);
                    if place.is_aligned() {
                        place.write_volatile(word);
                    } else {
                        place.cast::<[u8; 8]>().write_volatile(word.to_ne_bytes());
                    }
                }
            } else {
                for index in offset..bytes {
                    target.add(index).write_volatile(source.add(index).read());
                }
            }
        }
        fence(Ordering::Release);
        offset += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_copies_every_size_and_gives_the_same_checksum() {
        let engine = Engine::global();
        let source: Vec<u8> = (0..5 * 4096 + 1u32).map(|index| ((index * 31) >> 3) as u8).collect();
        for bytes in [0, 1, 63, 64, 65, 4095, 4096, 4097, 2 * 4096 + 17, 5 * 4096 + 1] {
            for offset in [0, 1, 7, 33] {
                let bytes = bytes.min(source.len() - offset);
                let want = engine.crc32c(&source[offset..offset + bytes], 5);
                for store in Store::ALL {
                    for ordered in [false, true] {
                        let mut target = vec![0xee; bytes + 2];
                        // SAFETY: both buffers hold `bytes` from these addresses on.
                        let crc = unsafe {
                            let place = (source.as_ptr().add(offset), target.as_mut_ptr().add(1), bytes);
                            copy_through(engine, store, ordered, place, Some(5))
                        };
                        assert_eq!(crc, Some(want));
                        assert_eq!(target[1..=bytes], source[offset..offset + bytes]);
                        assert_eq!((target[0], target[bytes + 1]), (0xee, 0xee));
                    }
                }
            }
        }
    }
}
