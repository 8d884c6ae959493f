// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multiplication and hashing in the field of GHASH with PCLMULQDQ, one block per register.
//!
//! - **Flow** four blocks per loop turn: (sum + b₀)·H⁴ + b₁·H³ + b₂·H² + b₃·H, with one reduction per turn.
//! - **Not here** the representation of the elements: see [`field`](super::field).

use super::field::{Element, FOLD};
use core::arch::x86_64::*;

/// Returns true if this CPU has the instructions that the routines use.
pub(super) fn available() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("pclmulqdq") && has!("sse2")
}

/// Returns the product `a·b·x⁻¹²⁸`.
#[target_feature(enable = "pclmulqdq,sse2")]
#[inline]
pub(super) fn multiply(a: Element, b: Element) -> Element {
    reduce(product(register(a), register(b)))
}

/// Returns `sum` hashed on over whole blocks, as [`hash`](super::prepared) does; `powers` begins with H¹.
#[target_feature(enable = "pclmulqdq,sse2")]
pub(super) fn hash(mut sum: Element, blocks: &[[u8; 16]], powers: &[Element; 16]) -> Element {
    let [h1, h2, h3, h4] = [powers[0], powers[1], powers[2], powers[3]].map(register);
    let (fours, rest) = blocks.as_chunks::<4>();
    for four in fours {
        let [b0, b1, b2, b3] = four.map(u128::from_be_bytes);
        let first = product(register(sum ^ b0), h4);
        let second = product(register(b1), h3);
        let third = product(register(b2), h2);
        let fourth = product(register(b3), h1);
        sum = reduce(add(add(first, second), add(third, fourth)));
    }
    for block in rest {
        sum = reduce(product(register(sum ^ u128::from_be_bytes(*block)), h1));
    }
    sum
}

/// A sum of products, not yet reduced.
#[derive(Clone, Copy)]
struct Sum {
    low: __m128i,
    middle: __m128i,
    high: __m128i,
}

#[target_feature(enable = "pclmulqdq,sse2")]
#[inline]
fn product(a: __m128i, b: __m128i) -> Sum {
    Sum {
        low: _mm_clmulepi64_si128::<0x00>(a, b),
        middle: _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b)),
        high: _mm_clmulepi64_si128::<0x11>(a, b),
    }
}

#[target_feature(enable = "pclmulqdq,sse2")]
#[inline]
fn add(a: Sum, b: Sum) -> Sum {
    Sum {
        low: _mm_xor_si128(a.low, b.low),
        middle: _mm_xor_si128(a.middle, b.middle),
        high: _mm_xor_si128(a.high, b.high),
    }
}

/// Reduces a sum of products to an element, by Montgomery's method.
#[target_feature(enable = "pclmulqdq,sse2")]
#[inline]
fn reduce(sum: Sum) -> Element {
    let fold = _mm_set1_epi64x(FOLD as i64);
    let once =
        |x: __m128i| _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(x), _mm_clmulepi64_si128::<0x00>(x, fold));
    let folded = _mm_xor_si128(sum.middle, once(sum.low));
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(_mm_xor_si128(sum.high, once(folded))) }
}

fn register(x: Element) -> __m128i {
    // SAFETY: both types are 16 bytes without padding, and every bit pattern is valid.
    unsafe { core::mem::transmute(x) }
}
