// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CTR and GHASH in one pass over memory, two blocks per register: VAES and VPCLMULQDQ on AVX2, for CPUs without
//! AVX-512 (Zen 3, client CPUs), for which aws-lc only has code with one block per register.
//!
//! - **Flow** 16 blocks per loop turn in eight registers: counters ──AES──▶ key stream ⊕ text ──▶ store. Between the rounds of AES, the
//!   sealed blocks of the previous turn are hashed: sum·H¹⁶ + b₀·H¹⁴ + … + b₆·H² + b₇ over registers b of two blocks each, with one
//!   reduction per turn. Each lane sums every other block; at the end the lanes are multiplied by H² and H¹ and added. Up to two last
//!   blocks, the last of them perhaps short, go through a local buffer of 32 bytes.
//! - **Layout** carry-less products are the bottleneck (two cycles each on Zen 3), so a 128-bit product is made of three of them
//!   (Karatsuba): beside each power the sum of its halves is stored. `STREAMS` stores past the caches if the target is a multiple of 16,
//!   and prefetches the source [`AHEAD_BYTES`] ahead, because the hardware's own prefetch stops at each page.
//! - **Order** constant time: the only branches are on lengths and addresses. Non-temporal stores are not fenced: the caller calls
//!   [`fence`](super::vaes::fence).
//! - **Owner** each byte of the source is read once, and the hash is over the values that were read or written in registers.

use super::field::{Element, FOLD};
use super::vaes::{AHEAD_BYTES, SEALS, STREAMS, expand, prefetch};
use core::arch::x86_64::*;

/// Two lanes of 16 bytes, aligned for a register.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Both([u128; 2]);

impl Both {
    const ZERO: Both = Both([0; 2]);

    fn of(value: u128) -> Both {
        Both([value; 2])
    }
}

/// A power of H in each lane, and beside it the sum of its two 64-bit halves, for Karatsuba's product.
#[derive(Clone, Copy)]
struct Factor {
    power: Both,
    halves: Both,
}

impl Factor {
    const ZERO: Factor = Factor { power: Both::ZERO, halves: Both::ZERO };

    fn of(lanes: [Element; 2]) -> Factor {
        Factor {
            power: Both(lanes),
            halves: Both(lanes.map(|power| (power ^ power >> 64) & u128::from(u64::MAX))),
        }
    }
}

/// Registers of a full loop turn.
const REGISTERS: usize = 8;

/// Round keys of AES and powers of H that the routines use.
#[derive(Clone)]
pub(super) struct Schedule {
    rounds: [Both; 15],
    round_count: usize,
    /// H¹⁶, H¹⁴, … H², the same in both lanes.
    strides: [Factor; REGISTERS],
    /// Powers for the last blocks: entry 0 (one block) holds H¹, entry 1 (two blocks) H² and H¹.
    last: [Factor; 2],
}

/// Returns true if this CPU has the instructions that the routines use.
pub(super) fn available() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("vaes") && has!("vpclmulqdq") && has!("aes")
}

impl Schedule {
    /// A schedule that is not filled yet.
    pub(super) const EMPTY: Schedule = Schedule {
        rounds: [Both::ZERO; 15],
        round_count: 10,
        strides: [Factor::ZERO; REGISTERS],
        last: [Factor::ZERO; 2],
    };

    /// Expands a key of 16 or 32 bytes, and takes the powers that the routines use from H¹ to H¹⁶.
    #[target_feature(enable = "aes,sse2")]
    pub(super) fn fill(&mut self, key: &[u8], powers: &[Element; 16]) {
        let mut rounds = [[0; 4]; 15];
        self.round_count = expand(&mut rounds, key);
        for (both, words) in self.rounds.iter_mut().zip(rounds) {
            // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
            *both = Both::of(unsafe { core::mem::transmute::<[u32; 4], u128>(words) });
        }
        for (i, stride) in self.strides.iter_mut().enumerate() {
            *stride = Factor::of([powers[15 - 2 * i]; 2]);
        }
        self.last = [Factor::of([powers[0], 0]), Factor::of([powers[1], powers[0]])];
    }
}

/// Loads a register from aligned memory.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn get(both: &Both) -> __m256i {
    // SAFETY: `Both` is 32 bytes of plain data, aligned to 32.
    unsafe { _mm256_load_si256(both.0.as_ptr().cast()) }
}

/// Reverses the bytes of each block.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn swap(v: __m256i) -> __m256i {
    let order =
        _mm256_broadcastsi128_si256(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm256_shuffle_epi8(v, order)
}

/// A sum of products, not yet reduced; `mixed` is the sum of the products of the sums of halves.
#[derive(Clone, Copy)]
struct Sum {
    low: __m256i,
    mixed: __m256i,
    high: __m256i,
}

/// Returns the product of each lane with the factor's lane, not yet reduced.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn product(a: __m256i, factor: &Factor) -> Sum {
    let power = get(&factor.power);
    let halves = _mm256_xor_si256(a, _mm256_shuffle_epi32::<0x4e>(a));
    Sum {
        low: _mm256_clmulepi64_epi128::<0x00>(a, power),
        mixed: _mm256_clmulepi64_epi128::<0x00>(halves, get(&factor.halves)),
        high: _mm256_clmulepi64_epi128::<0x11>(a, power),
    }
}

/// Returns the sum plus one more product.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn add(sum: Sum, a: __m256i, factor: &Factor) -> Sum {
    let more = product(a, factor);
    Sum {
        low: _mm256_xor_si256(sum.low, more.low),
        mixed: _mm256_xor_si256(sum.mixed, more.mixed),
        high: _mm256_xor_si256(sum.high, more.high),
    }
}

/// Reduces each lane by Montgomery's method.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn reduce(sum: Sum) -> __m256i {
    let fold = _mm256_set1_epi64x(FOLD as i64);
    let middle = _mm256_xor_si256(sum.mixed, _mm256_xor_si256(sum.low, sum.high));
    let once = |x: __m256i| {
        _mm256_xor_si256(_mm256_shuffle_epi32::<0x4e>(x), _mm256_clmulepi64_epi128::<0x00>(x, fold))
    };
    let folded = _mm256_xor_si256(middle, once(sum.low));
    _mm256_xor_si256(sum.high, once(folded))
}

/// Returns the sum of the two lanes.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn lanes(v: __m256i) -> u128 {
    let one = _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(one) }
}

/// Returns a register with `x` as its first block and zeros in the other.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn lane_0(x: u128) -> __m256i {
    get(&Both([x, 0]))
}

/// Bytes of a full loop turn.
const TURN_BYTES: usize = 32 * REGISTERS;

/// Does the same as [`vaes::pass`](super::vaes::pass).
///
/// # Safety
/// The CPU must have what [`available`] checks; `source` must be readable and `target` writable for `bytes` bytes, equal or
/// disjoint. After `STREAMS`, the caller must call [`fence`](super::vaes::fence) before another thread is told of the result.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
pub(super) unsafe fn pass<const MODE: u8>(
    schedule: &Schedule,
    counter: u128,
    hash: Element,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> Element {
    // SAFETY: `pass_rounds` has the same conditions on CPU and memory. A target that is no multiple of 16 is stored through the
    // caches.
    unsafe {
        match (schedule.round_count, MODE & STREAMS != 0 && target.addr().is_multiple_of(16)) {
            (10, false) => pass_rounds::<MODE, 10, false>(schedule, counter, hash, source, target, bytes),
            (10, true) => pass_rounds::<MODE, 10, true>(schedule, counter, hash, source, target, bytes),
            (_, false) => pass_rounds::<MODE, 14, false>(schedule, counter, hash, source, target, bytes),
            (_, true) => pass_rounds::<MODE, 14, true>(schedule, counter, hash, source, target, bytes),
        }
    }
}

/// Emits no instruction, but is a barrier in the order of instructions: without it LLVM ciphers one or two registers to the end
/// before it begins the next, and each of them then waits for its own last round.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
#[inline]
fn together(pad: &mut [__m256i; REGISTERS], sum: &mut Sum) {
    let [a, b, c, d, e, f, g, h] = pad;
    // SAFETY: the assembly text is a comment; no instruction is executed.
    unsafe {
        core::arch::asm!(
            "/* {} {} {} {} {} {} {} {} {} {} {} */",
            inout(ymm_reg) *a, inout(ymm_reg) *b, inout(ymm_reg) *c, inout(ymm_reg) *d,
            inout(ymm_reg) *e, inout(ymm_reg) *f, inout(ymm_reg) *g, inout(ymm_reg) *h,
            inout(ymm_reg) sum.low, inout(ymm_reg) sum.mixed, inout(ymm_reg) sum.high,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Does the same as [`pass`], with a fixed number of rounds.
///
/// # Safety
/// The conditions of [`pass`]; if `PAST`, `target` is a multiple of 16.
#[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
unsafe fn pass_rounds<const MODE: u8, const ROUNDS: usize, const PAST: bool>(
    schedule: &Schedule,
    counter: u128,
    hash: Element,
    source: *const u8,
    target: *mut u8,
    bytes: usize,
) -> Element {
    let mut run = PassState::<MODE, ROUNDS, PAST> {
        schedule,
        counters: _mm256_add_epi32(get(&Both::of(counter)), _mm256_set_epi32(0, 0, 0, 1, 0, 0, 0, 0)),
        sum: _mm256_setzero_si256(),
    };
    let mut hash = hash;
    let mut done = 0;
    // SAFETY: every access lies inside `bytes` bytes of source or target, by the conditions of the loops.
    unsafe {
        if bytes >= 32 {
            let mut first = lane_0(hash);
            if bytes >= TURN_BYTES {
                if MODE & STREAMS != 0 {
                    prefetch(source, AHEAD_BYTES.min(bytes) / 64);
                }
                let mut sealed = run.cipher::<REGISTERS>(source, target);
                sealed[0] = _mm256_xor_si256(sealed[0], first);
                first = _mm256_setzero_si256();
                done = TURN_BYTES;
                while bytes - done >= TURN_BYTES {
                    if MODE & STREAMS != 0 && bytes - done >= AHEAD_BYTES + TURN_BYTES {
                        prefetch(source.add(done + AHEAD_BYTES), TURN_BYTES / 64);
                    }
                    sealed = run.turn(&sealed, source.add(done), target.add(done));
                    done += TURN_BYTES;
                }
                run.hash(&sealed);
            }
            if bytes - done >= 128 {
                let mut sealed = run.cipher::<4>(source.add(done), target.add(done));
                sealed[0] = _mm256_xor_si256(sealed[0], first);
                first = _mm256_setzero_si256();
                run.hash(&sealed);
                done += 128;
            }
            while bytes - done >= 32 {
                let mut sealed = run.cipher::<1>(source.add(done), target.add(done));
                sealed[0] = _mm256_xor_si256(sealed[0], first);
                first = _mm256_setzero_si256();
                run.hash(&sealed);
                done += 32;
            }
            hash = lanes(reduce(product(run.sum, &schedule.last[1])));
        }
        if bytes > done {
            hash = run.rest(hash, source.add(done), target.add(done), bytes - done);
        }
    }
    hash
}

/// The values that one turn of the loop passes to the next.
struct PassState<'key, const MODE: u8, const ROUNDS: usize, const PAST: bool> {
    schedule: &'key Schedule,
    /// The next two counter blocks.
    counters: __m256i,
    sum: __m256i,
}

impl<const MODE: u8, const ROUNDS: usize, const PAST: bool> PassState<'_, MODE, ROUNDS, PAST> {
    /// Returns the next counter blocks combined with the first round key.
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    fn begin<const COUNT: usize>(&mut self) -> [__m256i; COUNT] {
        let step = _mm256_set_epi32(0, 0, 0, 2, 0, 0, 0, 2);
        let mut pad = [_mm256_setzero_si256(); COUNT];
        for pad in &mut pad {
            *pad = _mm256_xor_si256(swap(self.counters), get(&self.schedule.rounds[0]));
            self.counters = _mm256_add_epi32(self.counters, step);
        }
        pad
    }

    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    fn round(&self, round: usize, pad: &mut [__m256i]) {
        let key = get(&self.schedule.rounds[round]);
        for pad in pad {
            *pad = _mm256_aesenc_epi128(*pad, key);
        }
    }

    /// Applies the last round and the text; returns the sealed blocks with their bytes reversed.
    ///
    /// # Safety
    /// `source` must be readable, and `target` writable, for 32 bytes per register.
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn end<const COUNT: usize>(
        &self,
        pad: [__m256i; COUNT],
        source: *const u8,
        target: *mut u8,
    ) -> [__m256i; COUNT] {
        let key = get(&self.schedule.rounds[ROUNDS]);
        let mut sealed = pad;
        for i in 0..COUNT {
            // SAFETY: the caller guarantees that the source is readable for 32 bytes per register.
            let text = unsafe { _mm256_loadu_si256(source.add(32 * i).cast()) };
            let made = _mm256_aesenclast_epi128(pad[i], _mm256_xor_si256(key, text));
            // SAFETY: the caller guarantees that the target is writable for 32 bytes per register, and a multiple of 16 if
            // `PAST`.
            unsafe {
                let at = target.add(32 * i);
                if PAST {
                    _mm_stream_si128(at.cast(), _mm256_castsi256_si128(made));
                    _mm_stream_si128(at.add(16).cast(), _mm256_extracti128_si256::<1>(made));
                } else {
                    _mm256_storeu_si256(at.cast(), made);
                }
            }
            sealed[i] = swap(if MODE & SEALS != 0 { made } else { text });
        }
        sealed
    }

    /// Ciphers `COUNT` registers of two blocks each and returns the sealed blocks.
    ///
    /// # Safety
    /// The conditions of [`end`](PassState::end).
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn cipher<const COUNT: usize>(&mut self, source: *const u8, target: *mut u8) -> [__m256i; COUNT] {
        let mut pad = self.begin();
        for round in 1..ROUNDS {
            self.round(round, &mut pad);
        }
        // SAFETY: the caller guarantees 32 bytes per register on both sides.
        unsafe { self.end(pad, source, target) }
    }

    /// Hashes sealed blocks.
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    fn hash<const COUNT: usize>(&mut self, sealed: &[__m256i; COUNT]) {
        let strides = &self.schedule.strides[REGISTERS - COUNT..];
        let mut products = product(self.sum, &strides[0]);
        for i in 1..COUNT {
            products = add(products, sealed[i - 1], &strides[i]);
        }
        self.sum = _mm256_xor_si256(reduce(products), sealed[COUNT - 1]);
    }

    /// Does the [`cipher`](PassState::cipher) of this turn, interleaved with the [`hash`](PassState::hash) of the previous turn.
    ///
    /// # Safety
    /// The conditions of [`end`](PassState::end).
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn turn(
        &mut self,
        sealed: &[__m256i; REGISTERS],
        source: *const u8,
        target: *mut u8,
    ) -> [__m256i; REGISTERS] {
        let strides = &self.schedule.strides;
        let mut pad = self.begin();
        let mut products = product(self.sum, &strides[0]);
        for round in 1..ROUNDS {
            self.round(round, &mut pad);
            if round < REGISTERS {
                products = add(products, sealed[round - 1], &strides[round]);
            }
            together(&mut pad, &mut products);
        }
        self.sum = _mm256_xor_si256(reduce(products), sealed[REGISTERS - 1]);
        // SAFETY: the caller guarantees 32 bytes per register on both sides.
        unsafe { self.end(pad, source, target) }
    }

    /// Ciphers and hashes the last bytes, less than two blocks.
    ///
    /// # Safety
    /// `source` must be readable, and `target` writable, for `bytes` bytes, 1 to 31.
    #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes")]
    #[inline]
    unsafe fn rest(&mut self, hash: Element, source: *const u8, target: *mut u8, bytes: usize) -> Element {
        let mut mask = Both::ZERO;
        let mut text = Both::ZERO;
        // SAFETY: `bytes` is less than the 32 bytes of `mask` and `text`; the caller guarantees a readable source.
        unsafe {
            core::ptr::write_bytes(mask.0.as_mut_ptr().cast::<u8>(), 0xff, bytes);
            core::ptr::copy_nonoverlapping(source, text.0.as_mut_ptr().cast::<u8>(), bytes);
        }
        let mut pad = self.begin::<1>();
        for round in 1..ROUNDS {
            self.round(round, &mut pad);
        }
        let last = _mm256_xor_si256(get(&self.schedule.rounds[ROUNDS]), get(&text));
        let made = _mm256_and_si256(_mm256_aesenclast_epi128(pad[0], last), get(&mask));
        let sealed = if MODE & SEALS != 0 { made } else { get(&text) };
        // SAFETY: `text` has 32 bytes, and the target `bytes`, as the caller guarantees. The volatile store erases the plaintext.
        unsafe {
            let own = text.0.as_mut_ptr();
            _mm256_store_si256(own.cast(), made);
            core::ptr::copy_nonoverlapping(own.cast::<u8>(), target, bytes);
            core::ptr::write_volatile(own.cast(), _mm256_setzero_si256());
        }
        let blocks = _mm256_xor_si256(swap(sealed), lane_0(hash));
        lanes(reduce(product(blocks, &self.schedule.last[bytes.div_ceil(16) - 1])))
    }
}
