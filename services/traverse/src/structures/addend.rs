// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A number that is added to eight bytes, and the sums that fit.
//!
//! - **Layout** operands of a request: the bits, and [`ADD_CHECKED`] plus the number by which the value is read; `docs/formats/packet.md`

use crate::client::ClientError;

/// Second operand of a checked addition, plus the number by which the value is read. Programs leave the operand 0, or as it was.
const ADD_CHECKED: u64 = 0x4d4c_4144_4443_0000;

/// A number to be added to the first eight bytes of a value, and how these are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addend {
    /// Adds to an `i64`.
    Signed(i64),
    /// Adds to a `u64`.
    Unsigned(u64),
    /// Subtracts from a `u64`.
    Less(u64),
}

impl From<i64> for Addend {
    fn from(number: i64) -> Self {
        Addend::Signed(number)
    }
}

impl From<u64> for Addend {
    fn from(number: u64) -> Self {
        Addend::Unsigned(number)
    }
}

impl Addend {
    /// Returns the addend's bits, and the number by which `hash_add` knows how to add it.
    pub(super) fn words(self) -> (u64, u64) {
        match self {
            Addend::Signed(number) => (number.cast_unsigned(), 0),
            Addend::Unsigned(number) => (number, 1),
            Addend::Less(number) => (number, 2),
        }
    }

    /// Returns the operands of a request that has a node add it, and check the sum.
    pub(crate) fn operands(self) -> (u64, u64) {
        let (bits, how) = self.words();
        (bits, ADD_CHECKED | how)
    }

    /// Returns the addend of an operation's operands; `None`: the sum may wrap.
    pub(crate) fn of_operands(a: u64, b: u64) -> Option<Addend> {
        match b.checked_sub(ADD_CHECKED)? {
            0 => Some(Addend::Signed(a.cast_signed())),
            1 => Some(Addend::Unsigned(a)),
            2 => Some(Addend::Less(a)),
            _ => None,
        }
    }

    /// Returns the sum of a value and this addend; `None`: it does not fit.
    pub(crate) fn added_to(self, value: u64) -> Option<u64> {
        match self {
            Addend::Signed(number) => value.cast_signed().checked_add(number).map(i64::cast_unsigned),
            Addend::Unsigned(number) => value.checked_add(number),
            Addend::Less(number) => value.checked_sub(number),
        }
    }

    /// Returns the error that a value and this addend have no sum.
    pub(crate) fn overflow(self, value: u64) -> ClientError {
        let (value, addend) = match self {
            Addend::Signed(number) => (i128::from(value.cast_signed()), i128::from(number)),
            Addend::Unsigned(number) => (i128::from(value), i128::from(number)),
            Addend::Less(number) => (i128::from(value), -i128::from(number)),
        };
        ClientError::Overflow { value, addend }
    }
}
