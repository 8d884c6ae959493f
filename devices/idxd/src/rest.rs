// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a descriptor for the rest of an operation that was done in part.
//!
//! - **Flow** the submitted descriptor and its [`Progress`] ──[`rest`]──▶ the rest ──[`cut`]──▶ a piece of it, for the device or the CPU.
//! - **Rule** addresses and size move by the bytes that are done, patterns are rotated, and the seed of a checksum is the value so far. A
//!   copy that goes backwards (its target overlaps its source from above) has its end done, so only its size shrinks.
//! - **Not here** operations that cannot be continued after a part: they are repeated as a whole, which gives the same result
//!   ([`is_repeatable`]).

use memlift_spec::{Descriptor, Flags, Opcode};

/// Progress of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes that are done from the start.
    pub front: u32,
    /// Bytes that are done at the end, in a copy that goes backwards.
    pub back: u32,
    /// Checksum of the part that is done.
    pub crc: u32,
}

impl Progress {
    pub fn is_none(&self) -> bool {
        self.front == 0 && self.back == 0
    }
}

/// Returns true if an operation of this opcode can be continued after a part of it was done.
pub(crate) const fn is_resumable(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::MEMMOVE
            | Opcode::FILL
            | Opcode::COMPARE
            | Opcode::COMPARE_PATTERN
            | Opcode::CRC
            | Opcode::COPY_CRC
            | Opcode::DUALCAST
    )
}

/// Returns true if repeating the operation after any part of it was done gives the same result: all but a copy onto itself.
pub(crate) const fn is_repeatable(d: &Descriptor) -> bool {
    !(matches!(d.opcode(), Opcode::MEMMOVE) && d.source.abs_diff(d.target) < d.size as u64)
}

/// Returns the rest of `submitted`; if anything was done, the operation must be resumable ([`is_resumable`]).
pub(crate) fn rest(submitted: &Descriptor, progress: &Progress) -> Descriptor {
    let mut rest = *submitted;
    rest.size -= progress.front + progress.back;
    let front = u64::from(progress.front);
    if front == 0 {
        return rest;
    }
    match submitted.opcode() {
        Opcode::MEMMOVE | Opcode::COMPARE => {
            (rest.source, rest.target) = (submitted.source + front, submitted.target + front)
        }
        Opcode::FILL => {
            rest.target += front;
            if submitted.flags().has(Flags::FILL_16) {
                let pattern = u128::from(submitted.pattern_upper()) << 64 | u128::from(submitted.source);
                let turned = pattern.rotate_right((front % 16 * 8) as u32);
                (rest.source, rest.operation[0]) = (turned as u64, (turned >> 64) as u64);
            } else {
                rest.source = submitted.source.rotate_right((front % 8 * 8) as u32);
            }
        }
        Opcode::COMPARE_PATTERN => {
            rest.source += front;
            rest.target = submitted.target.rotate_right((front % 8 * 8) as u32);
        }
        Opcode::DUALCAST => {
            (rest.source, rest.target) = (submitted.source + front, submitted.target + front);
            rest.operation[0] += front;
        }
        Opcode::CRC | Opcode::COPY_CRC => {
            rest.source += front;
            if submitted.opcode() == Opcode::COPY_CRC {
                rest.target += front;
            }
            rest.flags_opcode &= !Flags::CRC_SEED_ADDRESS.0;
            (rest.operation[0], rest.operation[1]) = (u64::from(progress.crc), 0);
        }
        _ => {}
    }
    rest
}

/// Returns the first `bytes` bytes of a rest, or all of it if it must not be cut.
pub(crate) fn cut(rest: &Descriptor, bytes: u64) -> Descriptor {
    let mut piece = *rest;
    if is_resumable(rest.opcode()) && is_repeatable(rest) {
        piece.size = u64::from(rest.size).min(bytes) as u32;
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_seeds_go_on_where_they_were() {
        let mut fill = Descriptor::new(Opcode::FILL, Flags::NONE);
        (fill.source, fill.target, fill.size) = (0x0807_0605_0403_0201, 1000, 100);
        let left = rest(&fill, &Progress { front: 11, ..Progress::default() });
        assert_eq!((left.source, left.target, left.size), (0x0302_0108_0706_0504, 1011, 89));
        let mut crc = Descriptor::new(Opcode::CRC, Flags::CRC_SEED_ADDRESS);
        (crc.source, crc.size, crc.operation) = (64, 50, [0, 4096, 0]);
        let left = rest(&crc, &Progress { front: 20, back: 0, crc: 7 });
        assert_eq!((left.source, left.size, left.operation), (84, 30, [7, 0, 0]));
        assert!(!left.flags().has(Flags::CRC_SEED_ADDRESS));
    }

    #[test]
    fn a_backward_copy_only_shrinks_and_is_never_cut() {
        let mut copy = Descriptor::new(Opcode::MEMMOVE, Flags::NONE);
        (copy.source, copy.target, copy.size) = (1000, 1050, 100);
        let left = rest(&copy, &Progress { back: 40, ..Progress::default() });
        assert_eq!((left.source, left.target, left.size), (1000, 1050, 60));
        assert_eq!(cut(&left, 10).size, 60);
        assert!(is_repeatable(&rest(&copy, &Progress { back: 50, ..Progress::default() })));
    }
}
