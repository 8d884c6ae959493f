// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for the tests: bytes that look random, targets with guard bytes, and the misalignments that are tried.
#![allow(dead_code, reason = "each test file uses a part of it")]

use memlift_kernels::{Isa, Kernels, for_isa};

/// Guard bytes on each side of a target.
pub const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xa5;
const PAGE_BYTES: usize = 4096;

/// All levels above the scalar one that this CPU has. Says which ones it lacks.
pub fn vector_levels() -> Vec<&'static Kernels> {
    let levels = Isa::ALL.into_iter().filter(|isa| *isa != Isa::Scalar);
    levels
        .filter_map(|isa| {
            let kernels = for_isa(isa);
            if kernels.is_none() {
                println!("not run: this CPU lacks {isa}");
            }
            kernels
        })
        .collect()
}

/// The table of the scalar level, to which all others are compared.
pub fn scalar() -> &'static Kernels {
    for_isa(Isa::Scalar).expect("the scalar level is always there")
}

/// A number generator (xorshift64*): the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Bytes that start at a page boundary.
pub struct Bytes {
    store: Vec<u8>,
    start: usize,
    count: usize,
}

impl Bytes {
    pub fn filled(count: usize, byte: u8) -> Bytes {
        let store = vec![byte; count + PAGE_BYTES];
        let start = store.as_ptr().align_offset(PAGE_BYTES);
        Bytes { store, start, count }
    }

    pub fn random(count: usize, seed: u64) -> Bytes {
        let mut bytes = Bytes::filled(count, 0);
        let mut random = Random(seed);
        for byte in bytes.slice_mut() {
            *byte = (random.next() >> 56) as u8;
        }
        bytes
    }

    pub fn slice(&self) -> &[u8] {
        &self.store[self.start..][..self.count]
    }

    pub fn slice_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.start..][..self.count]
    }

    pub fn at(&self, offset: usize) -> *const u8 {
        self.slice()[offset..].as_ptr()
    }
}

/// A target between guard bytes. Offset 0 is page-aligned.
pub struct Target(Bytes);

impl Target {
    /// Room for `count` bytes at every misalignment below 64.
    pub fn new(count: usize) -> Target {
        Target(Bytes::filled(PAGE_BYTES + count + 64 + GUARD_BYTES, GUARD))
    }

    pub fn at(&mut self, offset: usize) -> *mut u8 {
        self.0.slice_mut()[PAGE_BYTES + offset..].as_mut_ptr()
    }

    pub fn written(&self, offset: usize, count: usize) -> &[u8] {
        &self.0.slice()[PAGE_BYTES + offset..][..count]
    }

    /// Checks what was written at `offset` and the guard bytes around it, then makes everything guard bytes again.
    #[track_caller]
    pub fn expect(&mut self, offset: usize, expected: &[u8], what: impl Fn() -> String) {
        let start = PAGE_BYTES + offset;
        let end = start + expected.len();
        let bytes = self.0.slice_mut();
        if bytes[start..end] != *expected {
            let at = (0..expected.len()).find(|i| bytes[start + i] != expected[*i]);
            panic!("{}: wrong at {at:?}", what());
        }
        assert!(
            bytes[start - GUARD_BYTES..start] == [GUARD; GUARD_BYTES],
            "{}: wrote before the target",
            what()
        );
        assert!(bytes[end..end + GUARD_BYTES] == [GUARD; GUARD_BYTES], "{}: wrote after the target", what());
        bytes[start..end].fill(GUARD);
    }
}

/// Largest size of the full sweep, in bytes.
pub const SWEEP_BYTES: usize = 4097;
/// Largest size of the sweep over all pairs of misalignments, in bytes.
pub const PAIRS_BYTES: usize = 256;

/// Every `(bytes, source offset, target offset)` of the sweep: all sizes to `SWEEP_BYTES`; 64 × 64 misalignments to
/// `PAIRS_BYTES`, 64 + 64 beyond.
pub fn sweep(mut each: impl FnMut(usize, usize, usize)) {
    for bytes in 0..=PAIRS_BYTES {
        for source in 0..64 {
            for target in 0..64 {
                each(bytes, source, target);
            }
        }
    }
    for bytes in PAIRS_BYTES + 1..=SWEEP_BYTES {
        for offset in 0..64 {
            each(bytes, offset, 0);
            each(bytes, 0, offset);
        }
    }
}

/// Sizes around the thresholds of long routines, in bytes.
pub const LONG_BYTES: [usize; 12] = [
    4096 + 63,
    12288 + 1,
    16384 - 1,
    16384 + 64,
    32768,
    49152 + 777,
    65536 - 1,
    65536,
    65536 + 1,
    131072 + 4095,
    (1 << 20) + 1,
    (1 << 20) + 12345,
];

/// Every `(bytes, source offset, target offset)` of the long sizes, a few misalignments each.
pub fn long(mut each: impl FnMut(usize, usize, usize)) {
    for bytes in LONG_BYTES {
        for (source, target) in [(0, 0), (3, 0), (0, 7), (15, 15), (1, 63), (63, 1), (32, 16)] {
            each(bytes, source, target);
        }
    }
}
