// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values that a 64-bit integer can have: an interval of unsigned numbers, one of signed numbers, and known low bits.
//!
//! - **Order** every function returns at least all values that are possible, never fewer. Both intervals hold at the same
//!   time, and each narrows the other if the sign is known. Known low bits ([`Stride`]) move the ends inward: a pointer that
//!   advances over records in steps of 8 is known to be at the start of one. `None` means that no value is possible: the code
//!   is never reached
//! - **Not here** the source of values: `state`

use crate::ir::{Alu, Cmp, Size, Width};

/// Known low bits: the value is `rest` modulo 2 to the power of `bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    bits: u32,
    rest: u64,
}

impl Stride {
    const ANY: Stride = Stride { bits: 0, rest: 0 };

    fn new(bits: u32, rest: u64) -> Stride {
        let bits = bits.min(64);
        Stride { bits, rest: rest & Stride::mask(bits) }
    }

    fn mask(bits: u32) -> u64 {
        1_u64.checked_shl(bits).map_or(u64::MAX, |end| end - 1)
    }

    fn join(self, other: Stride) -> Stride {
        let same = (self.rest ^ other.rest).trailing_zeros();
        Stride::new(self.bits.min(other.bits).min(same), self.rest)
    }

    /// Returns the values that satisfy both; `None` if they contradict each other.
    fn intersect(self, other: Stride) -> Option<Stride> {
        let (wide, narrow) = if self.bits < other.bits { (self, other) } else { (other, self) };
        (narrow.rest & Stride::mask(wide.bits) == wide.rest).then_some(narrow)
    }

    fn alu(op: Alu, width: Width, a: Stride, b: Stride) -> Stride {
        let bits = a.bits.min(b.bits);
        let constant = (b.bits == 64).then_some(b.rest);
        let by = constant.map(|value| value as u32 & if width == Width::W32 { 31 } else { 63 });
        let stride = match op {
            Alu::Add => Stride::new(bits, a.rest.wrapping_add(b.rest)),
            Alu::Sub => Stride::new(bits, a.rest.wrapping_sub(b.rest)),
            Alu::Or => Stride::new(bits, a.rest | b.rest),
            Alu::Xor => Stride::new(bits, a.rest ^ b.rest),
            Alu::And => {
                let zeros = constant.map_or(0, u64::trailing_zeros);
                if zeros > bits {
                    Stride::new(zeros, 0)
                } else {
                    Stride::new(bits.max(zeros), a.rest & b.rest)
                }
            }
            Alu::Mul => match constant {
                Some(0) | None => Stride::ANY,
                Some(value) => Stride::new(a.bits + value.trailing_zeros(), a.rest.wrapping_mul(value)),
            },
            Alu::Shl => by.map_or(Stride::ANY, |by| Stride::new(a.bits + by, a.rest << by)),
            _ => Stride::ANY,
        };
        if width == Width::W32 { Stride::new(stride.bits.min(32), stride.rest) } else { stride }
    }
}

/// A set of values, as two intervals with both ends included, and the known low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The values as unsigned numbers.
    pub unsigned: (u64, u64),
    /// The values as signed numbers.
    pub signed: (i64, i64),
    /// The known low bits.
    pub stride: Stride,
}

const HALF: u64 = u32::MAX as u64;

impl Range {
    /// All 64-bit values.
    pub const ALL: Range =
        Range { unsigned: (0, u64::MAX), signed: (i64::MIN, i64::MAX), stride: Stride::ANY };
    /// All values that a 32-bit operation can produce.
    pub const HALF: Range = Range { unsigned: (0, HALF), signed: (0, HALF as i64), stride: Stride::ANY };

    /// Makes the range of one value.
    #[must_use]
    pub fn constant(value: u64) -> Range {
        Range {
            unsigned: (value, value),
            signed: (value as i64, value as i64),
            stride: Stride::new(64, value),
        }
    }

    /// Returns the value if there is only one.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        (self.unsigned.0 == self.unsigned.1).then_some(self.unsigned.0)
    }

    fn new(unsigned: (u64, u64), signed: (i64, i64), stride: Stride) -> Option<Range> {
        // Moves both ends inward to the next value with these low bits.
        let inward = |first: i128, last: i128| {
            let mask = Stride::mask(stride.bits);
            let up = stride.rest.wrapping_sub(first as u64) & mask;
            let down = (last as u64).wrapping_sub(stride.rest) & mask;
            (first + i128::from(up), last - i128::from(down))
        };
        let (mut u, mut s) = (unsigned, signed);
        for _ in 0..2 {
            let (u0, u1) = inward(u.0.into(), u.1.into());
            let (s0, s1) = inward(s.0.into(), s.1.into());
            if u0 > u1 || s0 > s1 {
                return None;
            }
            // The ends are still in order and only moved inward, so they fit their types.
            (u, s) = ((u0 as u64, u1 as u64), (s0 as i64, s1 as i64));
            if (s.0 < 0) == (s.1 < 0) {
                u = (u.0.max(s.0 as u64), u.1.min(s.1 as u64));
            }
            if u.0 > u.1 {
                return None;
            }
            if ((u.0 as i64) < 0) == ((u.1 as i64) < 0) {
                s = (s.0.max(u.0 as i64), s.1.min(u.1 as i64));
            }
        }
        (u.0 <= u.1 && s.0 <= s.1).then_some(Range { unsigned: u, signed: s, stride })
    }

    /// Narrows the range to values with these low bits; returns it unchanged if it has none.
    fn with_stride(self, stride: Stride) -> Range {
        let both = self.stride.intersect(stride);
        both.and_then(|stride| Range::new(self.unsigned, self.signed, stride)).unwrap_or(self)
    }

    /// Returns the same values, each interval as narrow as the other allows.
    #[must_use]
    pub fn narrowed(self) -> Range {
        Range::new(self.unsigned, self.signed, self.stride).unwrap_or(self)
    }

    /// Returns the range of all values from one unsigned number to another.
    #[must_use]
    pub fn unsigned(first: u64, last: u64) -> Range {
        Range::new((first, last), Range::ALL.signed, Stride::ANY).unwrap_or(Range::ALL)
    }

    /// Returns the range of all values from one signed number to another.
    #[must_use]
    pub fn signed(first: i64, last: i64) -> Range {
        Range::new(Range::ALL.unsigned, (first, last), Stride::ANY).unwrap_or(Range::ALL)
    }

    /// Returns the values in both ranges; `None` if there are none.
    #[must_use]
    pub fn intersect(self, other: Range) -> Option<Range> {
        let (a, b) = (self, other);
        Range::new(
            (a.unsigned.0.max(b.unsigned.0), a.unsigned.1.min(b.unsigned.1)),
            (a.signed.0.max(b.signed.0), a.signed.1.min(b.signed.1)),
            a.stride.intersect(b.stride)?,
        )
    }

    /// Returns the least range that contains all values of both.
    #[must_use]
    pub fn join(self, other: Range) -> Range {
        let (a, b) = (self, other);
        Range {
            unsigned: (a.unsigned.0.min(b.unsigned.0), a.unsigned.1.max(b.unsigned.1)),
            signed: (a.signed.0.min(b.signed.0), a.signed.1.max(b.signed.1)),
            stride: a.stride.join(b.stride),
        }
    }

    /// Joins two ranges. Each end that has grown moves to the next of `thresholds` (ascending) or, if there is none, to the
    /// limit.
    #[must_use]
    pub fn widen(self, new: Range, thresholds: &[i64]) -> Range {
        let above = |value: i64| {
            let at = thresholds.partition_point(|&threshold| threshold < value);
            thresholds.get(at).copied()
        };
        let below = |value: i64| {
            let at = thresholds.partition_point(|&threshold| threshold <= value);
            at.checked_sub(1).map(|at| thresholds[at])
        };
        let mut wide = self.join(new);
        if wide.signed.0 < self.signed.0 {
            wide.signed.0 = below(wide.signed.0).unwrap_or(i64::MIN);
        }
        if wide.signed.1 > self.signed.1 {
            wide.signed.1 = above(wide.signed.1).unwrap_or(i64::MAX);
        }
        if wide.unsigned.0 < self.unsigned.0 {
            wide.unsigned.0 = 0;
        }
        if wide.unsigned.1 > self.unsigned.1 {
            let next = i64::try_from(wide.unsigned.1).ok().and_then(above);
            wide.unsigned.1 = next.map_or(u64::MAX, |next| next as u64);
        }
        wide
    }

    /// Returns the values that a load of `size` bytes can produce.
    #[must_use]
    pub fn loaded(size: Size, signed: bool) -> Range {
        let bits = size.bytes() * 8;
        match (bits, signed) {
            (64, _) => Range::ALL,
            (_, false) => Range::unsigned(0, (1 << bits) - 1),
            (_, true) => Range::signed(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        }
    }

    /// Returns the values of the low half, zero-extended.
    #[must_use]
    pub fn low_half(self) -> Range {
        let stride = Stride::new(self.stride.bits.min(32), self.stride.rest);
        let (first, last) = self.unsigned;
        if first >> 32 == last >> 32 {
            return Range::unsigned(first & HALF, last & HALF).with_stride(stride);
        }
        let (first, last) = self.signed;
        if first >> 32 == last >> 32 {
            return Range::unsigned(first as u64 & HALF, last as u64 & HALF).with_stride(stride);
        }
        Range::HALF.with_stride(stride)
    }

    /// Returns the values after sign extension of the low `bits`.
    #[must_use]
    pub fn sign_extended(self, bits: u8, width: Width) -> Range {
        let half = 1_i64 << (bits - 1);
        let wide = if self.signed.0 >= -half && self.signed.1 < half {
            self
        } else if self.signed.0 >= half && self.signed.1 < 2 * half {
            Range::signed(self.signed.0 - 2 * half, self.signed.1 - 2 * half)
        } else {
            Range::signed(-half, half - 1)
        };
        let wide = wide.with_stride(Stride::new(self.stride.bits.min(bits.into()), self.stride.rest));
        if width == Width::W32 { wide.low_half() } else { wide }
    }

    /// Returns the values of `a op b`.
    #[must_use]
    pub fn alu(op: Alu, width: Width, a: Range, b: Range) -> Range {
        let (a, b) = if width == Width::W32 { (a.low_half(), b.low_half()) } else { (a, b) };
        if let (Some(a), Some(b)) = (a.value(), b.value()) {
            return Range::constant(crate::interp::alu(op, width, a, b));
        }
        let range = match width {
            Width::W64 => Range::wide(op, a, b),
            Width::W32 => Range::narrow(op, a, b),
        };
        range.with_stride(Stride::alu(op, width, a.stride, b.stride))
    }

    /// Returns bounds that hold for any width if nothing can wrap; `None` if something may.
    fn unwrapped(op: Alu, a: Range, b: Range) -> Option<Range> {
        let ((a0, a1), (b0, b1)) = (a.unsigned, b.unsigned);
        let ones = |value: u64| if value == 0 { 0 } else { u64::MAX >> value.leading_zeros() };
        Some(match op {
            Alu::Div if b0 == 0 => Range::unsigned(0, a1),
            Alu::Div => Range::unsigned(a0 / b1, a1 / b0),
            Alu::Rem if b0 == 0 => Range::unsigned(0, a1),
            Alu::Rem if a1 < b0 => a,
            Alu::Rem => Range::unsigned(0, a1.min(b1 - 1)),
            Alu::And => Range::unsigned(0, a1.min(b1)),
            // `or` and `xor` are never more than the sum.
            Alu::Or => Range::unsigned(a0.max(b0), ones(a1 | b1).min(a1.saturating_add(b1))),
            Alu::Xor => Range::unsigned(0, ones(a1 | b1).min(a1.saturating_add(b1))),
            Alu::Shl if b1 < 64 && a1.leading_zeros() as u64 >= b1 => Range::unsigned(a0 << b0, a1 << b1),
            Alu::Mul => Range::unsigned(a0.checked_mul(b0)?, a1.checked_mul(b1)?),
            Alu::Shr if b1 < 64 => Range::unsigned(a0 >> b1, a1 >> b0),
            _ => return None,
        })
    }

    fn wide(op: Alu, a: Range, b: Range) -> Range {
        let signed = |first: i128, last: i128| match (i64::try_from(first), i64::try_from(last)) {
            (Ok(first), Ok(last)) => (first, last),
            _ => Range::ALL.signed,
        };
        let ((a0, a1), (b0, b1)) = (a.signed, b.signed);
        let (x0, x1, y0, y1) = (i128::from(a0), i128::from(a1), i128::from(b0), i128::from(b1));
        let signed = match op {
            Alu::Add => signed(x0 + y0, x1 + y1),
            Alu::Sub => signed(x0 - y1, x1 - y0),
            Alu::Mul => {
                let products = [x0 * y0, x0 * y1, x1 * y0, x1 * y1];
                signed(products.into_iter().min().unwrap_or(0), products.into_iter().max().unwrap_or(0))
            }
            Alu::Shl if b0 == b1 && (0..63).contains(&b0) => signed(x0 << b0, x1 << b0),
            Alu::Sar if b0 == b1 => (a0 >> (b0 & 63), a1 >> (b0 & 63)),
            Alu::Sar => (a0.min(0), a1.max(-1)),
            _ => Range::ALL.signed,
        };
        let ((u0, u1), (v0, v1)) = (a.unsigned, b.unsigned);
        let unsigned = match op {
            // The interval is exact if both ends wrap or neither does.
            Alu::Add if u0.checked_add(v0).is_some() == u1.checked_add(v1).is_some() => {
                (u0.wrapping_add(v0), u1.wrapping_add(v1))
            }
            Alu::Sub if (u0 < v1) == (u1 < v0) => (u0.wrapping_sub(v1), u1.wrapping_sub(v0)),
            _ => Range::unwrapped(op, a, b).map_or(Range::ALL.unsigned, |range| range.unsigned),
        };
        Range::new(unsigned, signed, Stride::ANY).unwrap_or(Range::ALL)
    }

    /// Returns the values of a 32-bit `a op b`; `a` and `b` are low halves.
    fn narrow(op: Alu, a: Range, b: Range) -> Range {
        let ((a0, a1), (b0, b1)) = (a.unsigned, b.unsigned);
        match op {
            Alu::Add => Range::unsigned(a0 + b0, a1 + b1).low_half(),
            Alu::Sub => Range::signed(a0 as i64 - b1 as i64, a1 as i64 - b0 as i64).low_half(),
            Alu::Shl | Alu::Shr if b1 >= 32 => Range::HALF,
            Alu::Sar if b0 == b1 && a1 < 1 << 31 => Range::unsigned(a0 >> (b0 & 31), a1 >> (b0 & 31)),
            _ => Range::unwrapped(op, a, b)
                .map_or(Range::HALF, |range| if range.unsigned.1 <= HALF { range } else { range.low_half() }),
        }
    }

    /// Narrows two values by a comparison that was true; `None` if it cannot be true.
    #[must_use]
    pub fn compared(cmp: Cmp, width: Width, a: Range, b: Range) -> Option<(Range, Range)> {
        if width == Width::W64 {
            return Range::compared_wide(cmp, a, b);
        }
        let (low_a, low_b) = (a.low_half(), b.low_half());
        let (left, right) = match cmp {
            Cmp::SGt | Cmp::SGe | Cmp::SLt | Cmp::SLe => {
                let left = low_a.sign_extended(32, Width::W64);
                let right = low_b.sign_extended(32, Width::W64);
                let (left, right) = Range::compared_wide(cmp, left, right)?;
                (left.low_half(), right.low_half())
            }
            _ => Range::compared_wide(cmp, low_a, low_b)?,
        };
        // A bound on the low half narrows the whole value only if the whole value fits in the low half.
        let narrowed = |whole: Range, half: Range| {
            if whole.unsigned.1 <= HALF { whole.intersect(half) } else { Some(whole) }
        };
        Some((narrowed(a, left)?, narrowed(b, right)?))
    }

    fn compared_wide(cmp: Cmp, a: Range, b: Range) -> Option<(Range, Range)> {
        let at_least = |first: u64| Range::ALL.with_unsigned(first, u64::MAX);
        let at_most = |last: u64| Range::ALL.with_unsigned(0, last);
        let signed_least = |first: i64| Range::ALL.with_signed(first, i64::MAX);
        let signed_most = |last: i64| Range::ALL.with_signed(i64::MIN, last);
        Some(match cmp {
            Cmp::Eq => {
                let both = a.intersect(b)?;
                (both, both)
            }
            Cmp::Ne => (a.without(b.value())?, b.without(a.value())?),
            Cmp::Ge => (a.intersect(at_least(b.unsigned.0)?)?, b.intersect(at_most(a.unsigned.1)?)?),
            Cmp::Gt => (
                a.intersect(at_least(b.unsigned.0.checked_add(1)?)?)?,
                b.intersect(at_most(a.unsigned.1.checked_sub(1)?)?)?,
            ),
            Cmp::SGe => (a.intersect(signed_least(b.signed.0)?)?, b.intersect(signed_most(a.signed.1)?)?),
            Cmp::SGt => (
                a.intersect(signed_least(b.signed.0.checked_add(1)?)?)?,
                b.intersect(signed_most(a.signed.1.checked_sub(1)?)?)?,
            ),
            Cmp::Lt | Cmp::Le | Cmp::SLt | Cmp::SLe => {
                let mirrored = match cmp {
                    Cmp::Lt => Cmp::Gt,
                    Cmp::Le => Cmp::Ge,
                    Cmp::SLt => Cmp::SGt,
                    _ => Cmp::SGe,
                };
                let (b, a) = Range::compared_wide(mirrored, b, a)?;
                (a, b)
            }
            Cmp::Set => {
                if a.unsigned.1 == 0 || b.unsigned.1 == 0 {
                    return None;
                }
                (a.without(Some(0))?, b.without(Some(0))?)
            }
        })
    }

    /// Narrows two values by a comparison that was false; `None` if it cannot be false.
    #[must_use]
    pub fn refuted(cmp: Cmp, width: Width, a: Range, b: Range) -> Option<(Range, Range)> {
        let Some(opposite) = cmp.negated() else {
            // No bit of the mask is set in the value. If the mask contains all bits from some bit on, the value is below
            // that bit.
            let mask = b.value().unwrap_or(0);
            let mask = if width == Width::W32 { mask | !HALF } else { mask };
            let fits = width == Width::W64 || a.unsigned.1 <= HALF;
            if fits && (!mask).wrapping_add(1) & !mask == 0 {
                return Some((a.intersect(Range::unsigned(0, !mask))?, b));
            }
            return Some((a, b));
        };
        Range::compared(opposite, width, a, b)
    }

    fn with_unsigned(self, first: u64, last: u64) -> Option<Range> {
        Range::new((first, last), self.signed, self.stride)
    }

    fn with_signed(self, first: i64, last: i64) -> Option<Range> {
        Range::new(self.unsigned, (first, last), self.stride)
    }

    /// Removes one value if it is an end of the range; `None` if no value is left.
    fn without(self, value: Option<u64>) -> Option<Range> {
        let Some(value) = value else { return Some(self) };
        let (mut u, mut s) = (self.unsigned, self.signed);
        if u == (value, value) {
            return None;
        }
        if u.0 == value {
            u.0 += 1;
        } else if u.1 == value {
            u.1 -= 1;
        }
        let value = value as i64;
        if s.0 == value {
            s.0 = s.0.checked_add(1)?;
        } else if s.1 == value {
            s.1 = s.1.checked_sub(1)?;
        }
        Range::new(u, s, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp;
    use proptest::prelude::*;

    fn has(range: Range, value: u64) -> bool {
        (range.unsigned.0..=range.unsigned.1).contains(&value)
            && (range.signed.0..=range.signed.1).contains(&(value as i64))
            && value & Stride::mask(range.stride.bits) == range.stride.rest
    }

    /// Returns numbers near the limits of all widths, so that wrapping happens.
    fn number() -> impl Strategy<Value = u64> {
        let corner = prop::sample::select(vec![0, 1 << 7, 1 << 8, 1 << 31, 1 << 32, 1 << 63, 300, u64::MAX]);
        prop_oneof![
            (corner, -20_i64..20).prop_map(|(at, by)| at.wrapping_add(by as u64)),
            0..200_u64,
            any::<u64>()
        ]
    }

    /// Returns a range and a value in it.
    fn range() -> impl Strategy<Value = (Range, u64)> {
        (number(), number(), any::<bool>(), any::<u64>(), 0..70_u32).prop_map(|(a, b, signed, pick, bits)| {
            let strided = |(range, value): (Range, u64)| {
                let range = range.with_stride(Stride::new(bits.saturating_sub(5), value));
                assert!(has(range, value), "{range:x?} {value:x}");
                (range, value)
            };
            let pick =
                |first: u64, span: u64| first.wrapping_add(span.checked_add(1).map_or(pick, |n| pick % n));
            if signed {
                let (first, last) = ((a as i64).min(b as i64), (a as i64).max(b as i64));
                strided((Range::signed(first, last), pick(first as u64, last.wrapping_sub(first) as u64)))
            } else {
                strided((Range::unsigned(a.min(b), a.max(b)), pick(a.min(b), a.max(b) - a.min(b))))
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn arithmetic_stays_in_its_range(a in range(), b in range(), op in prop::sample::select(Alu::ALL.to_vec()),
                                         half in any::<bool>()) {
            let width = if half { Width::W32 } else { Width::W64 };
            let value = interp::alu(op, width, a.1, b.1);
            let range = Range::alu(op, width, a.0, b.0);
            prop_assert!(has(range, value), "{a:x?} {op:?} {b:x?} = {value:x}, not in {range:x?}");
        }

        #[test]
        fn comparisons_keep_what_passes(a in range(), b in range(), cmp in prop::sample::select(Cmp::ALL.to_vec()),
                                        half in any::<bool>()) {
            let width = if half { Width::W32 } else { Width::W64 };
            let holds = interp::compare(cmp, width, a.1, b.1);
            let left = if holds { Range::compared(cmp, width, a.0, b.0) } else { Range::refuted(cmp, width, a.0, b.0) };
            let (left, right) = left.expect("the values are there");
            prop_assert!(has(left, a.1) && has(right, b.1), "{a:x?} {cmp:?} {b:x?}: {left:x?} {right:x?}");
        }

        #[test]
        fn joins_widenings_and_extensions_hold_both(a in range(), b in range(), bits in prop::sample::select(vec![8_u8, 16, 32]),
                                                    half in any::<bool>()) {
            let width = if half { Width::W32 } else { Width::W64 };
            for wide in [a.0.join(b.0), a.0.widen(b.0, &[]), a.0.widen(b.0, &[-5, 14, 300])] {
                prop_assert!(has(wide, a.1) && has(wide, b.1), "{a:x?} {b:x?} {wide:x?}");
            }
            prop_assert!(has(a.0.low_half(), a.1 & HALF));
            prop_assert!(has(a.0.narrowed(), a.1));
            let extended = interp::sign_extend(width, a.1, bits);
            prop_assert!(has(a.0.sign_extended(bits, width), extended), "{a:x?} {bits}");
        }
    }
}
