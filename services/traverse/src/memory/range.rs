// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges of addresses that each tenant may access, sorted, so that a binary search finds the range of an address.
//!
//! - **Order** adjacent ranges of a tenant are merged, except at a cut, where a mapping may end
//! - **Owner** immutable; the writer publishes a new value for every change
//! - **Not here** the map of nodes (`map`): these are the ranges within one node

use std::collections::{BTreeMap, BTreeSet};

/// A tenant's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address of the range.
    pub base: u64,
    /// Bytes of the range.
    pub bytes: u64,
    /// True if requests may change the range.
    pub writable: bool,
}

impl Range {
    /// Returns true if all of the `bytes` bytes from `address` on are in the range.
    #[must_use]
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < self.bytes && bytes <= self.bytes - offset
    }
}

/// The ranges of all tenants.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    tenants: BTreeMap<u32, Vec<Range>>,
}

impl Ranges {
    /// Returns the tenant's range that contains all of the `bytes` bytes from `address` on.
    #[must_use]
    pub fn find(&self, tenant: u32, address: u64, bytes: u64) -> Option<Range> {
        let ranges = self.tenants.get(&tenant)?;
        let after = ranges.partition_point(|range| range.base <= address);
        let range = ranges[after.checked_sub(1)?];
        range.holds(address, bytes).then_some(range)
    }

    /// Returns the tenant's ranges in order.
    #[must_use]
    pub fn of(&self, tenant: u32) -> &[Range] {
        self.tenants.get(&tenant).map_or(&[], Vec::as_slice)
    }

    /// Returns the largest range of a tenant.
    #[must_use]
    pub fn largest(&self, tenant: u32) -> Option<Range> {
        self.of(tenant).iter().copied().max_by_key(|range| range.bytes)
    }

    /// Adds addresses that no tenant had to a tenant. They are not merged with neighbours across a cut, which may be mapped
    /// elsewhere.
    pub(super) fn add(&mut self, tenant: u32, base: u64, bytes: u64, cuts: &BTreeSet<u64>) {
        let ranges = self.tenants.entry(tenant).or_default();
        let at = ranges.partition_point(|range| range.base < base);
        ranges.insert(at, Range { base, bytes, writable: true });
        let joined = |left: &Range, right: &Range| {
            left.base + left.bytes == right.base
                && left.writable == right.writable
                && !cuts.contains(&right.base)
        };
        for left in [at, at.saturating_sub(1)] {
            if left + 1 < ranges.len() && joined(&ranges[left], &ranges[left + 1]) {
                ranges[left].bytes += ranges[left + 1].bytes;
                ranges.remove(left + 1);
            }
        }
    }

    /// Removes addresses from a tenant that has them.
    pub(super) fn remove(&mut self, tenant: u32, base: u64, bytes: u64) {
        let ranges = self.tenants.entry(tenant).or_default();
        let Some(at) = ranges.iter().position(|range| range.holds(base, bytes)) else { return };
        let whole = ranges.remove(at);
        let (end, whole_end) = (base + bytes, whole.base + whole.bytes);
        if end < whole_end {
            ranges.insert(at, Range { base: end, bytes: whole_end - end, ..whole });
        }
        if whole.base < base {
            ranges.insert(at, Range { bytes: base - whole.base, ..whole });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_a_hole_parts_them() {
        let mut ranges = Ranges::default();
        for base in [0x3000, 0x1000, 0x2000, 0x9000] {
            ranges.add(7, base, 0x1000, &BTreeSet::new());
        }
        let bases = |ranges: &Ranges| ranges.of(7).iter().map(|r| (r.base, r.bytes)).collect::<Vec<_>>();
        assert_eq!(bases(&ranges), [(0x1000, 0x3000), (0x9000, 0x1000)]);
        assert!(ranges.find(7, 0x1ff8, 0x1000).is_some() && ranges.find(7, 0x3ff8, 9).is_none());
        assert!(ranges.find(7, 0xfff, 2).is_none() && ranges.find(8, 0x1000, 1).is_none());
        assert!(ranges.find(7, u64::MAX, 8).is_none() && ranges.find(7, 0x1000, u64::MAX).is_none());
        ranges.remove(7, 0x2000, 0x800);
        assert_eq!(bases(&ranges), [(0x1000, 0x1000), (0x2800, 0x1800), (0x9000, 0x1000)]);
        ranges.add(7, 0xa000, 0x1000, &BTreeSet::from([0xa000]));
        assert_eq!(bases(&ranges)[2..], [(0x9000, 0x1000), (0xa000, 0x1000)]);
    }
}
