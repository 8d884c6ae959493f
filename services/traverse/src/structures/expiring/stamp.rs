// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The eight bytes at the end of each value of an expiring map: when the entry expires, and when it was last used.
//!
//! - **Layout** the value, zeros to a multiple of 8 and to 8 at least, then the stamp: bits 0 to 31 seconds of the nodes' clock from which on
//!   the entry is expired, 0: it does not expire · 32 to 35 number of the zeros, 0 to 8 · 36 to 63 clock of the last use, in units of
//!   [`USED_UNIT_S`] since [`USED_FROM_S`]
//! - **Order** a stamp changes in place, at one compare-and-swap of its eight bytes; the value in front of it never changes, except by an
//!   addition
//! - **Clock** the nodes' clock, which never goes back: an entry that has expired for one client has expired for all that hear of it

use crate::client::{ClientError, Result};

/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 8;
/// Seconds of the clock in one unit of [`Stamp::used`].
pub const USED_UNIT_S: u32 = 8;
/// Clock from which [`Stamp::used`] counts: the start of 2020.
const USED_FROM_S: u32 = 1_577_836_800;
/// The greatest number of [`Stamp::used`], reached in 2088.
const USED_MAX: u32 = (1 << 28) - 1;

const _: () = assert!(STAMP_BYTES == size_of::<u64>() && 32 + 4 + USED_MAX.count_ones() == u64::BITS);

fn used_at(clock: u32) -> u32 {
    (clock.saturating_sub(USED_FROM_S) / USED_UNIT_S).min(USED_MAX)
}

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Clock from which on the entry is expired; 0: it does not expire.
    pub expires: u32,
    /// Zeros between value and stamp.
    pub padding: u8,
    /// Clock of the last use, in units of [`USED_UNIT_S`].
    pub used: u32,
}

impl Stamp {
    pub fn from_word(word: u64) -> Stamp {
        Stamp { expires: word as u32, padding: (word >> 32) as u8 & 15, used: (word >> 36) as u32 }
    }

    pub fn word(self) -> u64 {
        u64::from(self.expires)
            | u64::from(self.padding & 15) << 32
            | u64::from(self.used.min(USED_MAX)) << 36
    }

    /// Returns true if the entry is expired at this clock.
    pub fn is_expired(self, clock: u32) -> bool {
        self.expires != 0 && clock >= self.expires
    }

    /// Returns the stamp with a use at this clock; `None` if that changes nothing.
    pub fn touched(self, clock: u32) -> Option<Stamp> {
        let used = used_at(clock);
        (used > self.used).then_some(Stamp { used, ..self })
    }
}

/// Returns a value with its stamp, as a node stores it.
pub(super) fn stamped(value: &[u8], expires: u32, clock: u32) -> Vec<u8> {
    let whole = value.len().next_multiple_of(8).max(8);
    let stamp = Stamp { expires, padding: (whole - value.len()) as u8, used: used_at(clock) };
    let mut stored = Vec::with_capacity(whole + STAMP_BYTES);
    stored.extend_from_slice(value);
    stored.resize(whole, 0);
    stored.extend_from_slice(&stamp.word().to_le_bytes());
    stored
}

/// Splits what a node stores into the value and its stamp.
///
/// # Errors
/// [`ClientError::Corrupt`]: these bytes end with no stamp.
pub(super) fn split(mut stored: Vec<u8>, address: u64) -> Result<(Vec<u8>, Stamp)> {
    let corrupt = ClientError::Corrupt { address, what: "entry of a map whose entries expire" };
    let Some((value, word)) = stored.split_last_chunk::<STAMP_BYTES>() else { return Err(corrupt) };
    let stamp = Stamp::from_word(u64::from_le_bytes(*word));
    let bytes = value.len().checked_sub(stamp.padding.into());
    match bytes.filter(|_| value.len().is_multiple_of(8) && !value.is_empty()) {
        Some(bytes) => {
            stored.truncate(bytes);
            Ok((stored, stamp))
        }
        None => Err(corrupt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_whatever_its_length() {
        for bytes in 0..40 {
            let value: Vec<u8> = (0..bytes).collect();
            let stored = stamped(&value, 77, USED_FROM_S + 1_000);
            assert!(stored.len().is_multiple_of(8) && stored.len() >= 16);
            let (found, stamp) = split(stored, 0).expect("whole");
            assert_eq!((found, stamp.expires, stamp.used), (value, 77, 1_000 / USED_UNIT_S));
            assert_eq!(Stamp::from_word(stamp.word()), stamp);
        }
    }

    #[test]
    fn an_entry_expires_at_its_second_and_one_without_never() {
        let stamp = Stamp { expires: 100, padding: 0, used: 3 };
        assert!(!stamp.is_expired(99) && stamp.is_expired(100) && stamp.is_expired(u32::MAX));
        assert!(!Stamp { expires: 0, ..stamp }.is_expired(u32::MAX));
        assert_eq!(stamp.touched(USED_FROM_S + 31), None);
        assert_eq!(stamp.touched(USED_FROM_S + 32).map(|stamp| stamp.used), Some(4));
    }

    #[test]
    fn bytes_of_something_else_are_refused() {
        let padded = Stamp { expires: 0, padding: 9, used: 0 }.word().to_le_bytes();
        for wrong in [vec![], vec![0; 7], vec![0; 8], vec![0; 17], [[0; 8], padded].concat()] {
            assert!(matches!(split(wrong, 9), Err(ClientError::Corrupt { address: 9, .. })));
        }
    }
}
