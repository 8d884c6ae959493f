// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key prepared for our own routines, and CTR with GHASH over any run of blocks.
//!
//! - **Flow** `pass` runs [`vaes`](super::vaes) for [`Routines::Fours`] and [`pairs`](super::pairs) for [`Routines::Pairs`]: one pass in
//!   registers.
//!   Otherwise it works in chunks of [`CHUNK_BYTES`]: CTR by aws-lc (AES instructions, vector permutations or bitslices, all constant
//!   time), GHASH by [`clmul`](super::clmul) or the portable [`field`](super::field).
//! - **Layout** hash = Σ bᵢ·Hⁿ⁻ⁱ over n blocks, i from 0: the last block is multiplied once. `positions` holds H^−(d·16ᵏ) for each
//!   hexadecimal digit d at place k, so division by H to a block's position costs at most 8 products. The table is made when the first
//!   [`Scatter`](super::Scatter) needs it.
//! - **Owner** boxed once per key, overwritten with zeros on drop. Chunks hold sealed bytes only.
//! - **Order** each byte of a source is read once, so the hash is over the bytes that were ciphered, even if another thread writes meanwhile.

use super::TAG_BYTES;
use super::field::{self, Element};
use crate::Isa;
use aws_lc_sys as lc;
use core::ptr;
use std::sync::OnceLock;

/// Size of the buffer in the first-level cache through which routines without VAES work, bytes.
const CHUNK_BYTES: usize = 1024;

/// Powers of H by the 8 hexadecimal digits of a block's position.
type Positions = [[Element; 16]; 8];

/// Sealing or opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Seal,
    Open,
}

/// Way to store the target: through the caches or past them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Store {
    Cached,
    Streaming,
}

/// Routines for hashing; [`Pairs`](Routines::Pairs) and [`Fours`](Routines::Fours) also cipher in the same pass.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other CPUs have no such routines"))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Routines {
    /// Hashing by [`field`].
    Portable,
    /// Hashing by [`clmul`](super::clmul).
    Single,
    /// Both by [`pairs`](super::pairs).
    Pairs,
    /// Both by [`vaes`](super::vaes).
    Fours,
}

impl Routines {
    /// Returns the best routines up to the level `isa` that this CPU has: `Fours` with AVX-512, `Pairs` and `Single` with AVX2.
    pub(super) fn up_to(isa: Isa) -> Routines {
        #[cfg(target_arch = "x86_64")]
        if super::clmul::available() {
            if isa >= Isa::Avx512 && super::vaes::available() {
                return Routines::Fours;
            }
            if isa >= Isa::Avx2 && super::pairs::available() {
                return Routines::Pairs;
            }
            if isa >= Isa::Avx2 {
                return Routines::Single;
            }
        }
        let _ = isa;
        Routines::Portable
    }

    /// Returns the routines of this process, up to the level that `MEMLIFT_ISA` allows.
    pub(super) fn active() -> Routines {
        static ACTIVE: OnceLock<Routines> = OnceLock::new();
        *ACTIVE.get_or_init(|| Routines::up_to(crate::active().isa))
    }

    /// Returns true if a pass is faster than aws-lc, in hot and cold memory: aws-lc uses AVX-512 itself, but has no code for two
    /// blocks per register.
    pub(super) fn are_faster_than_library(self) -> bool {
        self == Routines::Pairs
    }
}

pub(super) struct Prepared {
    routines: Routines,
    cipher: lc::AES_KEY,
    /// H¹ to H¹⁶.
    powers: [Element; 16],
    positions: OnceLock<Box<Positions>>,
    #[cfg(target_arch = "x86_64")]
    fours: super::vaes::Schedule,
    #[cfg(target_arch = "x86_64")]
    pairs: super::pairs::Schedule,
}

impl Prepared {
    /// Prepares a key of 16 or 32 bytes for the best routines up to the level `isa`.
    pub(super) fn new(key: &[u8], isa: Isa) -> Box<Prepared> {
        Prepared::of(key, Routines::up_to(isa))
    }

    /// Prepares a key of 16 or 32 bytes for `routines`, which this CPU must have.
    pub(super) fn of(key: &[u8], routines: Routines) -> Box<Prepared> {
        // SAFETY: aws-lc's key schedule is plain data, for which zeros are valid.
        let cipher = unsafe { core::mem::zeroed() };
        let mut prepared = Box::new(Prepared {
            routines,
            cipher,
            powers: [0; 16],
            positions: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            fours: super::vaes::Schedule::EMPTY,
            #[cfg(target_arch = "x86_64")]
            pairs: super::pairs::Schedule::EMPTY,
        });
        prepared.fill(key);
        prepared
    }

    /// Returns a copy with the same key and routines.
    pub(super) fn duplicate(&self) -> Box<Prepared> {
        Box::new(Prepared {
            routines: self.routines,
            cipher: self.cipher,
            powers: self.powers,
            positions: OnceLock::new(),
            #[cfg(target_arch = "x86_64")]
            fours: self.fours.clone(),
            #[cfg(target_arch = "x86_64")]
            pairs: self.pairs.clone(),
        })
    }

    /// Replaces the key by another of 16 or 32 bytes.
    pub(super) fn fill(&mut self, key: &[u8]) {
        // SAFETY: `key` is readable for its length, which is one of AES (16 or 32 bytes).
        let failed = unsafe { lc::AES_set_encrypt_key(key.as_ptr(), 8 * key.len() as u32, &mut self.cipher) };
        assert!(failed == 0, "aws-lc refused a key of {} bytes", key.len());
        let hash_key = field::hash_key(self.block([0; 16]));
        let mut power = hash_key;
        for i in 0..16 {
            self.powers[i] = power;
            power = self.multiply(power, hash_key);
        }
        self.wipe_positions();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Routines::up_to` has checked that the CPU has the instructions.
        unsafe {
            match self.routines {
                Routines::Fours => self.fours.fill(key, &self.powers),
                Routines::Pairs => self.pairs.fill(key, &self.powers),
                Routines::Single | Routines::Portable => {}
            }
        }
    }

    /// Erases the table that belongs to the previous key.
    fn wipe_positions(&mut self) {
        if let Some(mut positions) = self.positions.take() {
            // SAFETY: the table is plain data that this owns.
            unsafe { lc::OPENSSL_cleanse(positions.as_mut_ptr().cast(), size_of::<Positions>()) };
        }
    }

    /// Encrypts the first counter block; the tag is the result combined with the hash.
    pub(super) fn pad(&self, first_counter: u128) -> u128 {
        u128::from_be_bytes(self.block(first_counter.to_be_bytes()))
    }

    /// Returns the tag: hashes the lengths in bits after additional data and message, and combines the hash with `pad`.
    pub(super) fn tag(
        &self,
        pad: u128,
        hash: Element,
        aad_bytes: u64,
        message_bytes: u64,
    ) -> [u8; TAG_BYTES] {
        let lengths = u128::from(aad_bytes) << 67 | u128::from(message_bytes) << 3;
        (self.multiply(hash ^ lengths, self.powers[0]) ^ pad).to_be_bytes()
    }

    /// Returns true if [`Store::Streaming`] makes a difference.
    pub(super) fn streams(&self) -> bool {
        self.routines >= Routines::Pairs
    }

    /// Returns true if [`pass`](Prepared::pass) is faster than aws-lc for every message.
    pub(super) fn is_faster_than_library(&self) -> bool {
        self.routines.are_faster_than_library()
    }

    /// Encrypts one block.
    pub(super) fn block(&self, block: [u8; 16]) -> [u8; 16] {
        let mut target = [0; 16];
        // SAFETY: both arrays have 16 bytes; the key schedule is initialised.
        unsafe { lc::AES_encrypt(block.as_ptr(), target.as_mut_ptr(), &self.cipher) };
        target
    }

    /// Returns the product in the field of GHASH.
    pub(super) fn multiply(&self, a: Element, b: Element) -> Element {
        #[cfg(target_arch = "x86_64")]
        if self.routines >= Routines::Single {
            // SAFETY: `Routines::up_to` has checked that the CPU has the instructions.
            return unsafe { super::clmul::multiply(a, b) };
        }
        field::multiply(a, b)
    }

    /// Returns H to the power of `exponent`.
    pub(super) fn power(&self, exponent: u64) -> Element {
        field::power(self.powers[0], u128::from(exponent), |a, b| self.multiply(a, b))
    }

    /// Returns `a·H^−exponent`.
    pub(super) fn divide_by_power(&self, mut a: Element, exponent: u64) -> Element {
        let positions = self.positions.get_or_init(|| self.positions());
        for (k, powers) in positions.iter().enumerate() {
            let digit = (exponent >> (4 * k)) as usize % 16;
            if digit != 0 {
                a = self.multiply(a, powers[digit]);
            }
        }
        a
    }

    fn positions(&self) -> Box<Positions> {
        let mut positions = Box::new([[field::ONE; 16]; 8]);
        let mut base = field::inverse(self.powers[0], |a, b| self.multiply(a, b));
        for powers in positions.iter_mut() {
            for digit in 1..16 {
                powers[digit] = self.multiply(powers[digit - 1], base);
            }
            base = self.multiply(powers[15], base);
        }
        positions
    }

    /// Returns the hash that continues `sum` over whole blocks.
    fn hash_blocks(&self, mut sum: Element, blocks: &[[u8; 16]]) -> Element {
        #[cfg(target_arch = "x86_64")]
        if self.routines >= Routines::Single {
            // SAFETY: `Routines::up_to` has checked that the CPU has the instructions.
            return unsafe { super::clmul::hash(sum, blocks, &self.powers) };
        }
        for block in blocks {
            sum = field::multiply(sum ^ u128::from_be_bytes(*block), self.powers[0]);
        }
        sum
    }

    /// Returns the hash that continues `sum` over `bytes`, filled up with zeros to whole blocks.
    pub(super) fn hash(&self, sum: Element, bytes: &[u8]) -> Element {
        let (blocks, rest) = bytes.as_chunks::<16>();
        let sum = self.hash_blocks(sum, blocks);
        if rest.is_empty() {
            return sum;
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        self.hash_blocks(sum, &[last])
    }

    /// Ciphers `bytes` bytes from `source` to `target`, beginning with the counter block `counter`. Returns the hash that
    /// continues `hash` over the sealed bytes, filled up with zeros to whole blocks.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes; they must be equal or disjoint. After
    /// [`Store::Streaming`], the caller must call [`fence`](Prepared::fence) before another thread is told of the result.
    pub(super) unsafe fn pass(
        &self,
        (direction, store): (Direction, Store),
        counter: u128,
        hash: Element,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Element {
        #[cfg(target_arch = "x86_64")]
        {
            use super::vaes::{SEALS, STREAMS};
            use super::{pairs, vaes};
            macro_rules! pass {
                ($routines:ident, $schedule:expr) => {{
                    use $routines::pass;
                    let schedule = $schedule;
                    // SAFETY: `Routines::up_to` has checked the instructions; the caller guarantees `bytes` bytes on both
                    // sides, equal or disjoint.
                    return unsafe {
                        match (direction, store) {
                            (Direction::Open, Store::Cached) => {
                                pass::<0>(schedule, counter, hash, source, target, bytes)
                            }
                            (Direction::Seal, Store::Cached) => {
                                pass::<SEALS>(schedule, counter, hash, source, target, bytes)
                            }
                            (Direction::Open, Store::Streaming) => {
                                pass::<STREAMS>(schedule, counter, hash, source, target, bytes)
                            }
                            (Direction::Seal, Store::Streaming) => {
                                pass::<{ SEALS | STREAMS }>(schedule, counter, hash, source, target, bytes)
                            }
                        }
                    };
                }};
            }
            match self.routines {
                Routines::Fours => pass!(vaes, &self.fours),
                Routines::Pairs => pass!(pairs, &self.pairs),
                Routines::Single | Routines::Portable => {}
            }
        }
        let _ = store;
        // SAFETY: `pass_chunks` has the same conditions: `bytes` bytes on both sides, equal or disjoint.
        unsafe { self.pass_chunks(direction, counter, hash, source, target, bytes) }
    }

    /// Makes the stores of [`Store::Streaming`] visible before any later store.
    pub(super) fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.streams() {
            super::vaes::fence();
        }
    }

    /// Does the same as [`pass`](Prepared::pass), chunk by chunk through a buffer.
    ///
    /// # Safety
    /// The conditions of [`pass`](Prepared::pass).
    unsafe fn pass_chunks(
        &self,
        direction: Direction,
        counter: u128,
        mut hash: Element,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
    ) -> Element {
        let mut counter = counter.to_be_bytes();
        let mut chunk = [0; CHUNK_BYTES];
        let mut done = 0;
        while done < bytes {
            let chunk_bytes = CHUNK_BYTES.min(bytes - done);
            let chunk = &mut chunk[..chunk_bytes];
            // SAFETY: the chunk lies inside source and target, as the caller guarantees, and our buffer is as long.
            unsafe {
                match direction {
                    Direction::Seal => {
                        self.cipher(&mut counter, source.add(done), chunk.as_mut_ptr(), chunk_bytes);
                        hash = self.hash(hash, chunk);
                        ptr::copy_nonoverlapping(chunk.as_ptr(), target.add(done), chunk_bytes);
                    }
                    Direction::Open => {
                        ptr::copy_nonoverlapping(source.add(done), chunk.as_mut_ptr(), chunk_bytes);
                        hash = self.hash(hash, chunk);
                        self.cipher(&mut counter, chunk.as_ptr(), target.add(done), chunk_bytes);
                    }
                }
            }
            done += chunk_bytes;
        }
        hash
    }

    /// Runs CTR. (aws-lc counts in 128 bits, GCM in 32; the counter starts at 2, so the longest message ends before they differ.)
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `bytes` bytes.
    unsafe fn cipher(&self, counter: &mut [u8; 16], source: *const u8, target: *mut u8, bytes: usize) {
        let (mut pad, mut pad_bytes) = ([0; 16], 0);
        // SAFETY: the caller guarantees `bytes` bytes on both sides; counter and pad are locals of 16 bytes.
        unsafe {
            lc::AES_ctr128_encrypt(
                source,
                target,
                bytes,
                &self.cipher,
                counter.as_mut_ptr(),
                pad.as_mut_ptr(),
                &mut pad_bytes,
            );
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.wipe_positions();
        // SAFETY: all of them are plain data that this owns and that nobody reads any more.
        unsafe {
            lc::OPENSSL_cleanse(self.powers.as_mut_ptr().cast(), size_of_val(&self.powers));
            lc::OPENSSL_cleanse(ptr::from_mut(&mut self.cipher).cast(), size_of::<lc::AES_KEY>());
            #[cfg(target_arch = "x86_64")]
            lc::OPENSSL_cleanse(ptr::from_mut(&mut self.fours).cast(), size_of_val(&self.fours));
            #[cfg(target_arch = "x86_64")]
            lc::OPENSSL_cleanse(ptr::from_mut(&mut self.pairs).cast(), size_of_val(&self.pairs));
        }
    }
}
