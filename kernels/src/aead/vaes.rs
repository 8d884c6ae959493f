// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CTR and GHASH in one pass over memory, four blocks per register: VAES and VPCLMULQDQ on AVX-512.
//!
//! - **Flow** 32 blocks per loop turn, hashed in groups of 16: counters ──AES──▶ key stream ⊕ text ──▶ store; sum·H¹⁶ + b₀·H¹² + b₁·H⁸ +
//!   b₂·H⁴ + b₃ over registers b of four sealed blocks each, with one reduction per group. So lane l sums the blocks 4i + l; at the end
//!   the lanes are multiplied by H⁴, H³, H², H¹ and added. Up to four last blocks, the last of them perhaps short, are processed under
//!   masks, with as many powers as there are blocks.
//! - **Layout** `STREAMS` stores whole cache lines past the caches at any alignment of the target: line i is the end of register i and
//!   the beginning of register i + 1, put together by one byte permutation (VBMI). The ends of the run, which share cache lines with
//!   other data, are stored under masks, through the caches. `STREAMS` also prefetches the source [`AHEAD_BYTES`] ahead, because the
//!   hardware's own prefetch stops at each page.
//! - **Order** constant time: the only branches are on lengths. Non-temporal stores are not fenced: the caller has work to do while they
//!   drain, and calls [`fence`] afterwards.
//! - **Owner** each byte of the source is read once, and the hash is over the values that were read or written in registers.

use super::field::{Element, FOLD};
use core::arch::x86_64::*;

/// Round keys of AES and powers of H that the routines use.
#[derive(Clone)]
#[repr(C)]
pub(super) struct Schedule {
    rounds: [[u32; 4]; 15],
    round_count: usize,
    /// H¹⁶, H¹², H⁸, H⁴.
    strides: [Element; 4],
    /// H⁴, H³, H², H¹, then zeros: the powers for the last m blocks begin at entry 4 − m.
    last: [Element; 8],
}

/// Returns true if this CPU has the instructions that the routines use.
pub(super) fn available() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f")
        && has!("avx512bw")
        && has!("avx512vl")
        && has!("avx512vbmi")
        && has!("vaes")
        && has!("vpclmulqdq")
        && has!("aes")
}

impl Schedule {
    /// A schedule that is not filled yet.
    pub(super) const EMPTY: Schedule =
        Schedule { rounds: [[0; 4]; 15], round_count: 10, strides: [0; 4], last: [0; 8] };

    /// Expands a key of 16 or 32 bytes, and takes the powers that the routines use from H¹ to H¹⁶.
    #[target_feature(enable = "aes,sse2")]
    pub(super) fn fill(&mut self, key: &[u8], powers: &[Element; 16]) {
        self.round_count = expand(&mut self.rounds, key);
        self.strides = [powers[15], powers[11], powers[7], powers[3]];
        self.last[..4].copy_from_slice(&[powers[3], powers[2], powers[1], powers[0]]);
    }
}

/// Expands a key of 16 or 32 bytes into round keys (FIPS 197, section 5.2); returns the number of rounds.
#[target_feature(enable = "aes,sse2")]
pub(super) fn expand(rounds: &mut [[u32; 4]; 15], key: &[u8]) -> usize {
    let key_words = key.len() / 4;
    let round_count = key_words + 6;
    let words = rounds.as_flattened_mut();
    for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut constant = 1u32;
    for i in key_words..4 * (round_count + 1) {
        let mut word = words[i - 1];
        if i % key_words == 0 {
            word = substitute(word).rotate_right(8) ^ constant;
            constant = (constant << 1) ^ ((constant >> 7) * 0x11b);
        } else if key_words == 8 && i % 8 == 4 {
            word = substitute(word);
        }
        words[i] = words[i - key_words] ^ word;
    }
    round_count
}

/// Applies the S-box to four bytes.
#[target_feature(enable = "aes,sse2")]
fn substitute(word: u32) -> u32 {
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

/// Reverses the bytes of each block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn swap(v: __m512i) -> __m512i {
    let order = _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_shuffle_epi8(v, order)
}

/// A sum of products, not yet reduced.
#[derive(Clone, Copy)]
struct Sum {
    low: __m512i,
    middle: __m512i,
    high: __m512i,
}

/// Returns the product of each lane, not yet reduced.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn product(a: __m512i, b: __m512i) -> Sum {
    Sum {
        low: _mm512_clmulepi64_epi128::<0x00>(a, b),
        middle: _mm512_xor_si512(
            _mm512_clmulepi64_epi128::<0x01>(a, b),
            _mm512_clmulepi64_epi128::<0x10>(a, b),
        ),
        high: _mm512_clmulepi64_epi128::<0x11>(a, b),
    }
}

/// Returns the sum plus one more product.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn add(sum: Sum, a: __m512i, b: __m512i) -> Sum {
    Sum {
        low: _mm512_xor_si512(sum.low, _mm512_clmulepi64_epi128::<0x00>(a, b)),
        middle: _mm512_ternarylogic_epi64::<0x96>(
            sum.middle,
            _mm512_clmulepi64_epi128::<0x01>(a, b),
            _mm512_clmulepi64_epi128::<0x10>(a, b),
        ),
        high: _mm512_xor_si512(sum.high, _mm512_clmulepi64_epi128::<0x11>(a, b)),
    }
}

/// Reduces each lane by Montgomery's method.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn reduce(sum: Sum) -> __m512i {
    let fold = _mm512_set1_epi64(FOLD as i64);
    let folded = _mm512_ternarylogic_epi64::<0x96>(
        sum.middle,
        _mm512_shuffle_epi32::<0x4e>(sum.low),
        _mm512_clmulepi64_epi128::<0x00>(sum.low, fold),
    );
    _mm512_ternarylogic_epi64::<0x96>(
        sum.high,
        _mm512_shuffle_epi32::<0x4e>(folded),
        _mm512_clmulepi64_epi128::<0x00>(folded, fold),
    )
}

/// Returns the sum of the four lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn lanes(v: __m512i) -> u128 {
    let half = _mm256_xor_si256(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64::<1>(v));
    let one = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(one) }
}

/// Returns a register with `x` as its first block and zeros in the others.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
fn lane_0(x: u128) -> __m512i {
    _mm512_zextsi128_si512(block(x))
}

/// Loads 64 bytes at any alignment.
///
/// # Safety
/// `at` must be readable for 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
#[inline]
unsafe fn load(at: *const u128) -> __m512i {
    // SAFETY: the caller guarantees 64 readable bytes at `at`.
    unsafe { _mm512_loadu_si512(at.cast()) }
}

/// Mode bit: hashes the bytes written to the target; without it, the bytes read from the source.
pub(super) const SEALS: u8 = 1;
/// Mode bit: stores past the caches, and prefetches the source.
pub(super) const STREAMS: u8 = 2;

/// Distance by which the source is prefetched ahead of its loads.
pub(super) const AHEAD_BYTES: usize = 2048;

/// Ciphers `bytes` bytes from `source` to `target`, beginning with the counter block `counter` (a big-endian number). Returns the
/// hash that continues `hash` over the sealed blocks, the last of them filled up with zeros: each block is multiplied by H to
/// the power of the number of blocks from it to the end, itself included.
///
/// # Safety
/// The CPU must have what [`available`] checks; `source` must be readable and `target` writable for `bytes` bytes, equal or
/// disjoint. After `STREAMS`, the caller must call [`fence`] before another thread is told of the result.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
pub(super) unsafe fn pass<const MODE: u8>(
    schedule: &Schedule,
    counter: u128,
    hash: Element,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> Element {
    // SAFETY: `pass_rounds` has the same conditions on CPU and memory, which the caller guarantees.
    unsafe {
        if schedule.round_count == 10 {
            pass_rounds::<MODE, 10>(schedule, counter, hash, source, target, bytes)
        } else {
            pass_rounds::<MODE, 14>(schedule, counter, hash, source, target, bytes)
        }
    }
}

/// Does the same as [`pass`], with a fixed number of rounds.
///
/// # Safety
/// The conditions of [`pass`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
unsafe fn pass_rounds<const MODE: u8, const ROUNDS: usize>(
    schedule: &Schedule,
    counter: u128,
    hash: Element,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> Element {
    let keys: [__m512i; 15] = core::array::from_fn(|i| _mm512_broadcast_i32x4(round(schedule.rounds[i])));
    let mut run = PassState::<MODE, ROUNDS> {
        strides: core::array::from_fn(|i| _mm512_broadcast_i32x4(block(schedule.strides[i]))),
        counters: _mm512_add_epi32(
            _mm512_broadcast_i32x4(block(counter)),
            _mm512_set_epi32(0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0),
        ),
        first: lane_0(hash),
        sum: _mm512_setzero_si512(),
    };
    let mut hash = hash;
    let mut done = 0;
    // SAFETY: every access lies inside `bytes` bytes of source or target, by the conditions of the loops and masks.
    unsafe {
        if bytes >= 64 {
            let mut lines = Lines::<MODE>::new(target);
            if MODE & STREAMS != 0 {
                prefetch(source, AHEAD_BYTES.min(bytes) / 64);
            }
            while bytes - done >= 512 {
                if MODE & STREAMS != 0 && bytes - done >= AHEAD_BYTES + 512 {
                    prefetch(source.add(done + AHEAD_BYTES), 8);
                }
                run.turn::<8>(&keys, source.add(done), &mut lines);
                done += 512;
            }
            if bytes - done >= 256 {
                run.turn::<4>(&keys, source.add(done), &mut lines);
                done += 256;
            }
            while bytes - done >= 64 {
                run.turn::<1>(&keys, source.add(done), &mut lines);
                done += 64;
            }
            lines.finish();
            hash = lanes(reduce(product(run.sum, load(schedule.last.as_ptr()))));
        }
        let rest_bytes = bytes - done;
        if rest_bytes > 0 {
            let mask = u64::MAX >> (64 - rest_bytes);
            let text = _mm512_maskz_loadu_epi8(mask, source.add(done).cast());
            let mut pad = _mm512_xor_si512(swap(run.counters), keys[0]);
            for key in &keys[1..ROUNDS] {
                pad = _mm512_aesenc_epi128(pad, *key);
            }
            pad = _mm512_aesenclast_epi128(pad, _mm512_xor_si512(keys[ROUNDS], text));
            _mm512_mask_storeu_epi8(target.add(done).cast(), mask, pad);
            let sealed = if MODE & SEALS != 0 { _mm512_maskz_mov_epi8(mask, pad) } else { text };
            let sealed = _mm512_xor_si512(swap(sealed), lane_0(hash));
            // At most four blocks are left, so the powers lie inside the eight entries.
            let powers = load(schedule.last.as_ptr().add(4 - rest_bytes.div_ceil(16)));
            hash = lanes(reduce(product(sealed, powers)));
        }
    }
    hash
}

/// The values that one turn of the loop passes to the next.
struct PassState<const MODE: u8, const ROUNDS: usize> {
    strides: [__m512i; 4],
    /// The next four counter blocks.
    counters: __m512i,
    /// The hash so far, until it is added to the first block; then zero.
    first: __m512i,
    sum: __m512i,
}

impl<const MODE: u8, const ROUNDS: usize> PassState<MODE, ROUNDS> {
    /// Ciphers and hashes `REGISTERS` registers of four blocks each; `REGISTERS` is 1 or a multiple of 4.
    ///
    /// # Safety
    /// `source` must be readable, and the rest of `lines`' target writable, for 64 bytes per register.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn turn<const REGISTERS: usize>(
        &mut self,
        keys: &[__m512i; 15],
        source: *const u8,
        lines: &mut Lines<MODE>,
    ) {
        let step = _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4);
        let mut text = [_mm512_setzero_si512(); REGISTERS];
        let mut pad = [_mm512_setzero_si512(); REGISTERS];
        for i in 0..REGISTERS {
            // SAFETY: the caller guarantees 64 readable bytes per register at `source`.
            text[i] = unsafe { _mm512_loadu_si512(source.add(64 * i).cast()) };
            pad[i] = _mm512_xor_si512(swap(self.counters), keys[0]);
            self.counters = _mm512_add_epi32(self.counters, step);
        }
        for key in &keys[1..ROUNDS] {
            for pad in &mut pad {
                *pad = _mm512_aesenc_epi128(*pad, *key);
            }
        }
        for i in 0..REGISTERS {
            pad[i] = _mm512_aesenclast_epi128(pad[i], _mm512_xor_si512(keys[ROUNDS], text[i]));
            // SAFETY: the caller guarantees that the target of `lines` has 64 bytes for this register, too.
            unsafe { lines.push(pad[i]) };
        }
        let sealed = if MODE & SEALS != 0 { pad } else { text };
        for group in sealed.chunks(4) {
            let strides = &self.strides[4 - group.len()..];
            let mut products = product(self.sum, strides[0]);
            let mut block = _mm512_xor_si512(swap(group[0]), self.first);
            self.first = _mm512_setzero_si512();
            for i in 1..group.len() {
                products = add(products, block, strides[i]);
                block = swap(group[i]);
            }
            self.sum = _mm512_xor_si512(reduce(products), block);
        }
    }
}

/// Prefetches `lines` cache lines from `from` on.
pub(super) fn prefetch(from: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: a prefetch has no effect that a program can observe; every x86-64 CPU has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64 * line).cast()) };
    }
}

/// Stores a run of registers to the target; with `STREAMS`, as whole cache lines.
struct Lines<const MODE: u8> {
    target: *mut u8,
    /// `STREAMS`: bytes of the target before its first whole cache line.
    head_bytes: usize,
    /// `STREAMS`: byte permutation that makes a line of two neighbouring registers.
    order: __m512i,
    previous: __m512i,
    /// Registers that were pushed so far.
    count: usize,
}

impl<const MODE: u8> Lines<MODE> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
    #[inline]
    fn new(target: *mut u8) -> Self {
        let head_bytes = target.addr().wrapping_neg() % 64;
        let mut order = [0u8; 64];
        for (i, from) in order.iter_mut().enumerate() {
            *from = (head_bytes + i) as u8;
        }
        // SAFETY: `order` is an array of 64 bytes.
        let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
        Lines { target, head_bytes, order, previous: _mm512_setzero_si512(), count: 0 }
    }

    /// # Safety
    /// The target must be writable for 64 bytes for each register pushed so far and for this one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn push(&mut self, register: __m512i) {
        // SAFETY: the caller guarantees 64 bytes of the target for this register; a line ends before its second register does.
        unsafe {
            if MODE & STREAMS == 0 {
                _mm512_storeu_si512(self.target.add(64 * self.count).cast(), register);
            } else if self.count == 0 {
                _mm512_mask_storeu_epi8(self.target.cast(), (1u64 << self.head_bytes) - 1, register);
            } else {
                let line = _mm512_permutex2var_epi8(self.previous, self.order, register);
                _mm512_stream_si512(self.target.add(64 * (self.count - 1) + self.head_bytes).cast(), line);
            }
        }
        self.previous = register;
        self.count += 1;
    }

    /// # Safety
    /// The conditions of the last [`push`](Lines::push); there must have been at least one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn finish(self) {
        if MODE & STREAMS != 0 {
            let rest = _mm512_permutex2var_epi8(self.previous, self.order, self.previous);
            // SAFETY: the mask leaves only the bytes up to the end of the last register, for which `push` had room.
            unsafe {
                let at = self.target.add(64 * (self.count - 1) + self.head_bytes);
                _mm512_mask_storeu_epi8(at.cast(), u64::MAX >> self.head_bytes, rest);
            }
        }
    }
}

/// Store fence: makes the stores of `STREAMS` visible before any later store.
pub(super) fn fence() {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _mm_sfence() };
}

/// Returns a number as a register.
fn block(x: u128) -> __m128i {
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(x) }
}

/// Returns a round key as a register.
fn round(words: [u32; 4]) -> __m128i {
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(words) }
}
