// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tracks which bytes of a message have arrived: ranges in any order, each byte once.
//!
//! - **Layout** `ranges` is sorted and disjoint, and adjacent ranges are merged. If ranges arrive in order, there is never more than one.
//! - **Owner** the list has one entry more than there are holes, and keeps its memory for the next message.

use core::ops::Range;

/// A set of bytes.
#[derive(Clone, Default, Debug)]
pub(super) struct Coverage {
    ranges: Vec<Range<u64>>,
}

impl Coverage {
    /// Adds a range that is not empty; returns false and changes nothing if one of its bytes is already in the set.
    #[must_use]
    pub(super) fn add(&mut self, range: Range<u64>) -> bool {
        // In most cases the range continues where the last one ended.
        let next = match self.ranges.last() {
            Some(last) if last.start > range.start => {
                self.ranges.partition_point(|other| other.start <= range.start)
            }
            _ => self.ranges.len(),
        };
        let before = next.checked_sub(1).map(|i| self.ranges[i].end);
        let after = self.ranges.get(next).map(|other| other.start);
        if before.is_some_and(|end| end > range.start) || after.is_some_and(|start| start < range.end) {
            return false;
        }
        match (before == Some(range.start), after == Some(range.end)) {
            (true, true) => self.ranges[next - 1].end = self.ranges.remove(next).end,
            (true, false) => self.ranges[next - 1].end = range.end,
            (false, true) => self.ranges[next].start = range.start,
            (false, false) => self.ranges.insert(next, range),
        }
        true
    }

    /// Returns true if the set is exactly the bytes before `end`.
    pub(super) fn is_up_to(&self, end: u64) -> bool {
        match &self.ranges[..] {
            [] => end == 0,
            [one] => *one == (0..end),
            _ => false,
        }
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::Coverage;

    #[test]
    fn every_order_of_small_ranges_covers_once() {
        let pieces = [0..16, 16..48, 48..64, 64..65, 80..96];
        for mut order in 0..120 {
            let mut left: Vec<_> = pieces.to_vec();
            let mut coverage = Coverage::default();
            while !left.is_empty() {
                let piece = left.remove(order % left.len());
                order /= left.len() + 1;
                assert!(coverage.add(piece.clone()));
                assert!(!coverage.add(piece.clone()));
                assert!(!coverage.add(piece.end - 1..piece.end + 1));
                assert!(!coverage.add(piece.start..piece.start + 1));
            }
            assert_eq!(coverage.ranges, [0..65, 80..96]);
            assert!(!coverage.add(0..200) && !coverage.add(70..81));
            assert!(!coverage.is_up_to(96) && !coverage.is_up_to(65));
            assert!(coverage.add(65..80));
            assert!(coverage.is_up_to(96) && !coverage.is_up_to(95));
            coverage.clear();
            assert!(coverage.is_up_to(0) && !coverage.is_up_to(1));
        }
    }
}
