// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The field of GHASH, GF(2¹²⁸), in portable constant-time code.
//!
//! - **Layout** an [`Element`] holds the 16 bytes of a block read as a big-endian number. Bit i is then the coefficient of xⁱ
//!   modulo x¹²⁸ + x¹²⁷ + x¹²⁶ + x¹²¹ + 1, and the product that GHASH needs is `a·b·x⁻¹²⁷`. With the key multiplied by x once, it
//!   becomes `a·b·x⁻¹²⁸`, which Montgomery's reduction yields after two folds by 64 bits (RFC 8452, appendix A, has the same
//!   relation between GHASH and POLYVAL).
//! - **Order** under `multiply`, the elements other than zero are a group of 2¹²⁸ − 1 elements with the neutral element [`ONE`], so the
//!   inverse is a power. Zero has no inverse; `inverse` returns zero for it, which is harmless because all its products are zero.
//! - **Not here** branches and indices that depend on values. Bits are spread with holes that absorb the carries of an integer product,
//!   as Pornin does in BearSSL. (Integer multiplication takes constant time on x86-64 and aarch64.)

/// An element of the field, in the representation of the header.
pub(super) type Element = u128;

/// The neutral element: x¹²⁸, reduced.
pub(super) const ONE: Element = 0xc200_0000_0000_0000_0000_0000_0000_0001;

/// x⁶³ + x⁶² + x⁵⁷: the multiplier of one fold of the reduction.
pub(super) const FOLD: u64 = 0xc200_0000_0000_0000;

/// Returns the element by which GHASH multiplies; `block` is the encryption of 16 zero bytes.
pub(super) fn hash_key(block: [u8; 16]) -> Element {
    let plain = u128::from_be_bytes(block);
    (plain << 1) ^ ((plain >> 127).wrapping_neg() & ONE)
}

/// Returns the product `a·b·x⁻¹²⁸`.
pub(super) fn multiply(a: Element, b: Element) -> Element {
    let (a_low, a_high) = (a as u64, (a >> 64) as u64);
    let (b_low, b_high) = (b as u64, (b >> 64) as u64);
    let low = carryless(a_low, b_low);
    let middle = carryless(a_low, b_high) ^ carryless(a_high, b_low);
    let high = carryless(a_high, b_high);
    let folded = middle ^ low.rotate_left(64) ^ carryless(low as u64, FOLD);
    high ^ folded.rotate_left(64) ^ carryless(folded as u64, FOLD)
}

/// Returns `a` to the power of `exponent`; the time depends on the exponent.
pub(super) fn power(
    mut a: Element,
    mut exponent: u128,
    multiply: impl Fn(Element, Element) -> Element,
) -> Element {
    let mut product = ONE;
    while exponent != 0 {
        if exponent & 1 == 1 {
            product = multiply(product, a);
        }
        a = multiply(a, a);
        exponent >>= 1;
    }
    product
}

/// Returns the element whose product with `a` is [`ONE`], or zero for zero.
pub(super) fn inverse(a: Element, multiply: impl Fn(Element, Element) -> Element) -> Element {
    power(a, u128::MAX - 1, multiply)
}

/// Returns the 127-bit product of two polynomials of 64 coefficients.
fn carryless(a: u64, b: u64) -> u128 {
    let high = carryless_low(a.reverse_bits(), b.reverse_bits()).reverse_bits() >> 1;
    u128::from(high) << 64 | u128::from(carryless_low(a, b))
}

/// Returns the lower 64 coefficients of the product. Each factor is split into four parts that have every fourth bit. In the
/// integer product of two parts at most 16 ones meet at one place, so the carries stay in the three unused bits above it.
fn carryless_low(a: u64, b: u64) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let part = |x: u64, i: u32| x & (EVERY_FOURTH << i);
    let mut product = 0;
    for i in 0..4 {
        let mut sum = 0;
        for j in 0..4 {
            sum ^= part(a, j).wrapping_mul(part(b, (i + 4 - j) % 4));
        }
        product |= part(sum, i);
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook product of SP 800-38D, bit by bit.
    fn textbook(x: [u8; 16], y: [u8; 16]) -> [u8; 16] {
        let (x, mut v, mut z) = (u128::from_be_bytes(x), u128::from_be_bytes(y), 0u128);
        for i in 0..128 {
            if x >> (127 - i) & 1 == 1 {
                z ^= v;
            }
            v = if v & 1 == 1 { (v >> 1) ^ (0xe1 << 120) } else { v >> 1 };
        }
        z.to_be_bytes()
    }

    fn numbers() -> impl Iterator<Item = u128> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u128;
        let random = core::iter::repeat_with(move || {
            state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            state ^ state >> 61
        });
        [0, 1, u128::MAX, 1 << 127, ONE].into_iter().chain(random.take(100))
    }

    #[test]
    fn products_are_those_of_the_standard() {
        for key in numbers() {
            for block in numbers() {
                let product = multiply(block, hash_key(key.to_be_bytes()));
                assert_eq!(product.to_be_bytes(), textbook(block.to_be_bytes(), key.to_be_bytes()));
            }
        }
    }

    #[test]
    fn inverses_lead_back() {
        for a in numbers() {
            assert_eq!(multiply(a, ONE), a);
            let inverse = inverse(a, multiply);
            assert_eq!(multiply(a, inverse), if a == 0 { 0 } else { ONE });
            assert_eq!(power(a, 3, multiply), multiply(a, multiply(a, a)));
        }
    }
}
