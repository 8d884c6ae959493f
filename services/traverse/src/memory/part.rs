// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of an allocator for a stretch of addresses; it is sent with a range from node to node, and stored in a snapshot.
//!
//! - **Layout** four lists, each its length u64 and its entries, all u64: extents (base, bytes, tenant) · free blocks (tenant,
//!   address, bytes) · retired blocks (tenant, address, bytes) · free runs (base, bytes)
//! - **Owner** decoding checks everything: all entries of the result fit together and lie in the expected stretch

use std::collections::BTreeMap;

use super::blocks::GRAIN_BYTES;
use super::{MARGIN_BYTES, PAGE_BYTES};

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorState {
    /// First address, bytes, tenant.
    pub(super) extents: Vec<(u64, u64, u32)>,
    /// Tenant, address, bytes.
    pub(super) free: Vec<(u32, u64, u64)>,
    /// Tenant, address, bytes.
    pub(super) retired: Vec<(u32, u64, u64)>,
    /// First address, bytes.
    pub(super) runs: Vec<(u64, u64)>,
}

impl AllocatorState {
    /// Encodes the four lists.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut words = Vec::new();
        words.push(self.extents.len() as u64);
        words.extend(self.extents.iter().flat_map(|&(base, bytes, tenant)| [base, bytes, tenant.into()]));
        for blocks in [&self.free, &self.retired] {
            words.push(blocks.len() as u64);
            words.extend(blocks.iter().flat_map(|&(tenant, address, bytes)| [tenant.into(), address, bytes]));
        }
        words.push(self.runs.len() as u64);
        words.extend(self.runs.iter().flat_map(|&(base, bytes)| [base, bytes]));
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes bytes from another node; everything in the result lies in the `bytes` bytes from `base` on.
    ///
    /// # Errors
    ///
    /// The reason that the lists do not fit together, for people to read.
    pub fn decode(encoded: &[u8], base: u64, bytes: u64) -> Result<AllocatorState, &'static str> {
        let mut words = Words(encoded);
        let mut part = AllocatorState::default();
        for _ in 0..words.next()? {
            part.extents.push((words.next()?, words.next()?, words.tenant()?));
        }
        for blocks in [&mut part.free, &mut part.retired] {
            for _ in 0..words.next()? {
                blocks.push((words.tenant()?, words.next()?, words.next()?));
            }
        }
        for _ in 0..words.next()? {
            part.runs.push((words.next()?, words.next()?));
        }
        if !words.0.is_empty() {
            return Err("something follows the allocator's lists");
        }
        part.check(base, bytes)?;
        Ok(part)
    }

    /// Returns the stretches of pages that the lists are about: first address, bytes.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.extents.iter().map(|&(base, bytes, _)| (base, bytes)).chain(self.runs.iter().copied())
    }

    fn check(&self, base: u64, bytes: u64) -> Result<(), &'static str> {
        let inside = |from: u64, length: u64| {
            let offset = from.wrapping_sub(base);
            offset < bytes && length <= bytes - offset
        };
        let mut taken: BTreeMap<u64, (u64, Option<u32>)> = BTreeMap::new();
        let runs = self.runs.iter().map(|&(from, length)| (from, length, None));
        for (from, length, tenant) in self.extents.iter().map(|&(a, b, t)| (a, b, Some(t))).chain(runs) {
            let aligned = from.is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES) && length > 0;
            let before = taken.range(..from.saturating_add(length)).next_back();
            if !aligned || !inside(from, length) || before.is_some_and(|(at, (size, _))| at + size > from) {
                return Err("an extent or a free run does not lie where it can");
            }
            taken.insert(from, (length, tenant));
        }
        // True for a block in an extent of its tenant, without the unused bytes at both ends.
        let within = |tenant: u32, from: u64, length: u64| {
            taken.range(..=from).next_back().is_some_and(|(at, (size, owner))| {
                *owner == Some(tenant)
                    && from - at >= MARGIN_BYTES
                    && from.checked_add(length).is_some_and(|end| end <= at + size - MARGIN_BYTES)
            })
        };
        let mut blocks: Vec<(u32, u64, u64)> = [&self.free[..], &self.retired].concat();
        blocks.sort_unstable_by_key(|block| block.1);
        let good = blocks.iter().all(|&(tenant, at, length)| {
            at.is_multiple_of(GRAIN_BYTES)
                && length.is_multiple_of(GRAIN_BYTES)
                && length > 0
                && within(tenant, at, length)
        });
        // Each block ends in its extent, so no sum wraps.
        if good && blocks.windows(2).all(|pair| pair[0].1 + pair[0].2 <= pair[1].1) {
            Ok(())
        } else {
            Err("a block does not lie where it can")
        }
    }
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Result<u64, &'static str> {
        let (word, rest) = self.0.split_first_chunk().ok_or("the allocator's lists end too early")?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn tenant(&mut self) -> Result<u32, &'static str> {
        self.next()?.try_into().map_err(|_| "a tenant's number is too large")
    }
}

#[cfg(test)]
mod tests {
    use super::AllocatorState;

    #[test]
    fn what_does_not_fit_together_is_refused_and_never_read_past_its_end() {
        let base = 1 << 32;
        let part = AllocatorState {
            extents: vec![(base, 8192, 7), (base + 16384, 1 << 20, 7)],
            free: vec![(7, base + 256, 512), (7, base + 16384 + 256, 16)],
            retired: vec![(7, base + 768, 64)],
            runs: vec![(base + 8192, 8192)],
        };
        let good = part.encode();
        assert_eq!(AllocatorState::decode(&good, base, 2 << 20), Ok(part.clone()));
        assert!(AllocatorState::decode(&good, base, 1 << 20).is_err(), "beyond the range");
        assert!(
            (0..good.len()).all(|length| AllocatorState::decode(&good[..length], base, 2 << 20).is_err())
        );
        let mut huge = good.clone();
        huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(AllocatorState::decode(&huge, base, 2 << 20).is_err(), "a count that cannot be");
        let wrong: [AllocatorState; 7] = [
            AllocatorState {
                extents: vec![(base, 8192, 7), (base + 4096, 4096, 7)],
                ..AllocatorState::default()
            },
            AllocatorState { extents: vec![(base + 8, 4096, 7)], ..AllocatorState::default() },
            AllocatorState { free: vec![(8, base + 512, 64)], ..part.clone() },
            AllocatorState { free: vec![(7, base + 512, 65)], ..part.clone() },
            AllocatorState { free: vec![(7, base + 1024, 8192 - 256 - 1024 + 16)], ..part.clone() },
            AllocatorState { retired: vec![(7, base + 752, 64)], ..part.clone() },
            AllocatorState { retired: vec![(7, u64::MAX - 15, u64::MAX - 15)], ..part },
        ];
        for (index, wrong) in wrong.iter().enumerate() {
            assert!(AllocatorState::decode(&wrong.encode(), base, 2 << 20).is_err(), "{index}");
        }
    }
}
