// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arithmetic of CRC-32C: powers of x modulo the Castagnoli polynomial, for tables and for folding constants.
//!
//! - **Layout** a polynomial below degree 32 is a `u32`, reflected: bit 31 is the coefficient of x^0.
//!
//! Carry-less multiplication of two reflected 64-bit values gives their product times x; a 32-bit constant in the low half of a
//! 64-bit lane represents itself times x^32. Hence the 33 in [`fold`] and [`shift`].
//!
//! Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.

/// The Castagnoli polynomial, reflected, without x^32.
pub(crate) const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns x^`exponent` modulo the polynomial.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn power(exponent: u32) -> u32 {
    let mut value = 1 << 31;
    let mut i = 0;
    while i < exponent {
        value = value >> 1 ^ if value & 1 != 0 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    value
}

/// Returns the two multipliers (low and high 8 bytes) that move a 16-byte remainder by `bytes` bytes, at least 16.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn fold(bytes: u32) -> [u64; 2] {
    [power(8 * bytes + 31) as u64, power(8 * bytes - 33) as u64]
}

/// Returns the multiplier that moves a CRC state over `bytes` zero bytes, at least 8: the new state is the CRC of the 8-byte
/// carry-less product of state and multiplier.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn shift(bytes: u32) -> u32 {
    power(8 * bytes - 33)
}
