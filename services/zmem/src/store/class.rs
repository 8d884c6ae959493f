// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Size classes of the store: the slot size of each class, and the number of slots that a span is divided into.
//!
//! - **Flow** bytes of an object ──[`of`]──▶ class ──[`slot_bytes`], [`slots`]──▶ places of its slots in a span
//! - **Layout** a span has [`SPAN_BYTES`]. For each number n there is a class whose slots are the largest multiple of 16 that
//!   fits n times, until two neighbouring classes differ by less than 32 bytes; below that there is one class every 32 bytes
//!   down to 64
//! - **Not here** the choice of a span that has room

/// Bytes of a span, the unit that a class takes and gives back as a whole.
pub(super) const SPAN_BYTES: usize = 64 << 10;

/// Bytes of the largest slot.
pub(super) const MAX_SLOT_BYTES: usize = 4096;

/// Number of classes.
pub(super) const CLASSES: usize = count();

/// Bytes of a slot of each class, smallest class first.
pub(super) static SLOT_BYTES: [u16; CLASSES] = table();

/// The class for each object size, in steps of 16 bytes.
static BY_SIZE: [u8; MAX_SLOT_BYTES / 16 + 1] = by_size();

/// Returns the next smaller slot size after `bytes`.
const fn below(bytes: usize) -> usize {
    let mut slots = SPAN_BYTES / bytes + 1;
    loop {
        let next = SPAN_BYTES / slots / 16 * 16;
        if next < bytes {
            return if bytes - next < 32 { (bytes - 1) / 32 * 32 } else { next };
        }
        slots += 1;
    }
}

const fn count() -> usize {
    let (mut bytes, mut classes) = (MAX_SLOT_BYTES, 1);
    while bytes > 64 {
        bytes = below(bytes);
        classes += 1;
    }
    classes
}

const fn table() -> [u16; CLASSES] {
    let mut table = [0; CLASSES];
    let (mut bytes, mut class) = (MAX_SLOT_BYTES, CLASSES - 1);
    table[class] = bytes as u16;
    while class > 0 {
        bytes = below(bytes);
        class -= 1;
        table[class] = bytes as u16;
    }
    table
}

const fn by_size() -> [u8; MAX_SLOT_BYTES / 16 + 1] {
    let table = table();
    let mut classes = [0; MAX_SLOT_BYTES / 16 + 1];
    let (mut step, mut class) = (0, 0);
    while step < classes.len() {
        while (table[class] as usize) < step * 16 {
            class += 1;
        }
        classes[step] = class as u8;
        step += 1;
    }
    classes
}

/// Returns the class for an object of `bytes` bytes, its header included, or `None` above [`MAX_SLOT_BYTES`].
pub(super) fn of(bytes: usize) -> Option<u8> {
    BY_SIZE.get(bytes.div_ceil(16)).copied()
}

/// Returns the bytes of a slot of `class`.
pub(super) fn slot_bytes(class: u8) -> usize {
    SLOT_BYTES.get(usize::from(class)).map_or(MAX_SLOT_BYTES, |bytes| usize::from(*bytes))
}

/// Returns the number of slots of a span of `class`.
pub(super) fn slots(class: u8) -> usize {
    SPAN_BYTES / slot_bytes(class)
}

const _: () = assert!(CLASSES <= 128 && SPAN_BYTES / 64 <= 1024);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        for bytes in 1..=MAX_SLOT_BYTES {
            let class = of(bytes).expect("not too large");
            assert!(slot_bytes(class) >= bytes);
            assert!(class == 0 || slot_bytes(class - 1) < bytes, "{bytes}");
            assert!(slots(class) * slot_bytes(class) <= SPAN_BYTES);
        }
        assert_eq!(of(MAX_SLOT_BYTES + 1), None);
    }

    #[test]
    fn little_is_lost_in_a_slot() {
        let lost: f64 = (64..3600usize)
            .map(|bytes| 1.0 - bytes as f64 / slot_bytes(of(bytes).expect("not too large")) as f64)
            .sum::<f64>()
            / 3536.0;
        assert!(lost < 0.03, "{lost}");
    }
}
