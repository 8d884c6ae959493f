// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How bytes get from the source into a block and from a block into the target.
//!
//! - **Flow** `pull` (source ──▶ stage), `push` (stage ──▶ target), `pass` (source ──▶ target)
//! - **Order** ordered: ascending 64-byte lines, each complete before the next one starts (x86 keeps the order of
//!   stores; elsewhere a release fence stands between lines). Else any order; streaming stores end with a fence.
//! - **Owner** raw addresses that the caller vouches for; stages are private
//!
//! | store | reads | writes | leaves in the second-level cache |
//! |---|---|---|---|
//! | temporal | ordinary | ordinary | source and target |
//! | streaming | ordinary | past the cache | source |
//! | isolated | prefetched without a place in the outer caches | past the cache | next to nothing |

use memlift_ground::observe::Executor;
use memlift_offload::Engine;
use std::sync::atomic::{Ordering, fence};

/// How bytes are read and written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Store {
    /// Through the caches.
    Temporal = 0,
    /// Written past them.
    Streaming = 1,
    /// Read and written past them, as far as the CPU can.
    Isolated = 2,
}

impl Store {
    /// All of them.
    pub const ALL: [Store; 3] = [Store::Temporal, Store::Streaming, Store::Isolated];

    /// Short lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Store::Temporal => "temporal",
            Store::Streaming => "streaming",
            Store::Isolated => "isolated",
        }
    }

    /// Executor that it is counted as.
    pub(crate) const fn executor(self) -> Executor {
        match self {
            Store::Temporal => Executor::InlineTemporal,
            _ => Executor::InlineNt,
        }
    }
}

/// Bytes that are brought in ahead of the copy, and copied at once: they must stay in the first-level cache.
const PIECE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Brings lines near without giving them a place in the outer caches, where the CPU has a way to do so.
///
/// # Safety
///
/// Never faults, whatever the address; `source + bytes` must not wrap.
pub(crate) unsafe fn bring(source: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that can be seen and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(source.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (source, bytes);
}

/// Runs `work(offset, bytes)` over pieces whose lines were brought near before.
///
/// # Safety
///
/// As `work`'s; `source` is a range of `bytes`.
unsafe fn piecewise(source: *const u8, bytes: usize, mut work: impl FnMut(usize, usize)) {
    // SAFETY: see `bring`.
    unsafe { bring(source, bytes.min(PIECE_BYTES)) };
    for offset in (0..bytes).step_by(PIECE_BYTES) {
        let next = offset + PIECE_BYTES;
        if next < bytes {
            // SAFETY: see `bring`.
            unsafe { bring(source.wrapping_add(next), (bytes - next).min(PIECE_BYTES)) };
        }
        work(offset, PIECE_BYTES.min(bytes - offset));
    }
}

/// Copies from the caller's source into a private stage.
///
/// # Safety
///
/// `source` is readable for the stage's length.
pub(crate) unsafe fn pull(engine: &Engine, store: Store, source: *const u8, stage: &mut [u8]) {
    let copy = engine.kernels().copy;
    let stage_bytes = stage.len();
    let stage = stage.as_mut_ptr();
    // SAFETY: pieces lie in both ranges, and a stage is apart from everything.
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
pub(crate) unsafe fn push(engine: &Engine, store: Store, ordered: bool, stage: &[u8], target: *mut u8) {
    let kernels = engine.kernels();
    // SAFETY: `target` is writable for the stage's length, as the caller vouches; a stage is apart from everything.
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

/// Copies, and gives the CRC-32C of what was copied if a seed is given.
///
/// # Safety
///
/// `source` is readable and `target` writable for `bytes`, and they are apart.
pub(crate) unsafe fn pass(
    engine: &Engine,
    store: Store,
    ordered: bool,
    (source, target, bytes): (*const u8, *mut u8, usize),
    seed: Option<u32>,
) -> Option<u32> {
    let kernels = engine.kernels();
    // SAFETY: for every call: the caller vouches for both ranges of `bytes`, which are apart; pieces lie in both.
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

/// Copies line by line in ascending order, as a stateful reader on the other side needs it.
unsafe fn lines_in_order(source: *const u8, target: *mut u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        let part = LINE_BYTES.min(bytes - offset);
        // SAFETY: the line lies in both ranges, for which the caller vouches. Volatile accesses keep their order
        // among each other in the compiled code, and x86 keeps that of the stores.
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
                        // SAFETY: both buffers hold `bytes` from these places on.
                        let crc = unsafe {
                            let place = (source.as_ptr().add(offset), target.as_mut_ptr().add(1), bytes);
                            pass(engine, store, ordered, place, Some(5))
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
