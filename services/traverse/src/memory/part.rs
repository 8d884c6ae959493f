// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an allocator knows about a stretch of addresses: what travels with a range from node to node, and into a snapshot.
//!
//! Layout   five lists, each its length u64 and its entries, all u64: extents (base, bytes, tenant) · free addresses of a class
//!          (tenant, class, how many, addresses) · what of an extent was not given out (tenant, from, to) · allocations that are an
//!          extent of their own (tenant, address) · free runs (base, bytes)
//! Order    lists keep their order: it decides which address is given next
//! Owner    decoding believes nothing: whatever it returns fits together and lies in the stretch that was asked for

use std::collections::BTreeMap;

use super::MARGIN_BYTES;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// First address, bytes, tenant.
    pub(super) extents: Vec<(u64, u64, u32)>,
    /// Tenant, class, addresses.
    pub(super) free: Vec<(u32, u64, Vec<u64>)>,
    /// Tenant, from, to.
    pub(super) fresh: Vec<(u32, u64, u64)>,
    /// Tenant, address; the extent is the one that it lies in.
    pub(super) large: Vec<(u32, u64)>,
    /// First address, bytes.
    pub(super) runs: Vec<(u64, u64)>,
}

impl Part {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut words = Vec::new();
        words.push(self.extents.len() as u64);
        words.extend(self.extents.iter().flat_map(|&(base, bytes, tenant)| [base, bytes, tenant.into()]));
        words.push(self.free.len() as u64);
        for (tenant, class, addresses) in &self.free {
            words.extend([u64::from(*tenant), *class, addresses.len() as u64]);
            words.extend(addresses);
        }
        words.push(self.fresh.len() as u64);
        words.extend(self.fresh.iter().flat_map(|&(tenant, from, to)| [tenant.into(), from, to]));
        words.push(self.large.len() as u64);
        words.extend(self.large.iter().flat_map(|&(tenant, address)| [tenant.into(), address]));
        words.push(self.runs.len() as u64);
        words.extend(self.runs.iter().flat_map(|&(base, bytes)| [base, bytes]));
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// From bytes that may say anything; everything in it lies in `bytes` bytes from `base` on.
    ///
    /// # Errors
    ///
    /// What does not fit, for people to read.
    pub fn decode(encoded: &[u8], base: u64, bytes: u64) -> Result<Part, &'static str> {
        let mut words = Words(encoded);
        let mut part = Part::default();
        for _ in 0..words.next()? {
            part.extents.push((words.next()?, words.next()?, words.tenant()?));
        }
        for _ in 0..words.next()? {
            let (tenant, class, count) = (words.tenant()?, words.next()?, words.next()?);
            let mut addresses = Vec::new();
            for _ in 0..count {
                addresses.push(words.next()?);
            }
            part.free.push((tenant, class, addresses));
        }
        for _ in 0..words.next()? {
            part.fresh.push((words.tenant()?, words.next()?, words.next()?));
        }
        for _ in 0..words.next()? {
            part.large.push((words.tenant()?, words.next()?));
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

    fn check(&self, base: u64, bytes: u64) -> Result<(), &'static str> {
        let inside = |from: u64, length: u64| {
            let offset = from.wrapping_sub(base);
            offset < bytes && length <= bytes - offset
        };
        let mut taken: BTreeMap<u64, (u64, Option<u32>)> = BTreeMap::new();
        let runs = self.runs.iter().map(|&(from, length)| (from, length, None));
        for (from, length, tenant) in self.extents.iter().map(|&(a, b, t)| (a, b, Some(t))).chain(runs) {
            let aligned = from.is_multiple_of(4096) && length.is_multiple_of(4096) && length > 0;
            let before = taken.range(..from.saturating_add(length)).next_back();
            if !aligned || !inside(from, length) || before.is_some_and(|(at, (size, _))| at + size > from) {
                return Err("an extent or a free run does not lie where it can");
            }
            taken.insert(from, (length, tenant));
        }
        // In an extent of its tenant, with what stays empty at both ends.
        let within = |tenant: u32, from: u64, length: u64| {
            taken.range(..=from).next_back().is_some_and(|(at, (size, owner))| {
                *owner == Some(tenant)
                    && from - at >= MARGIN_BYTES
                    && from.checked_add(length).is_some_and(|end| end <= at + size - MARGIN_BYTES)
            })
        };
        let classes = self.free.iter().all(|(tenant, class, addresses)| {
            super::allocate::is_class(*class)
                && addresses.iter().all(|&address| {
                    address.is_multiple_of(super::allocate::align_of(*class))
                        && within(*tenant, address, *class)
                })
        });
        let fresh = self.fresh.iter().all(|&(tenant, from, to)| {
            from.is_multiple_of(16) && from <= to && (from == to || within(tenant, from, to - from))
        });
        let large = self.large.iter().all(|&(tenant, address)| {
            address
                .checked_sub(MARGIN_BYTES)
                .and_then(|extent| taken.get(&extent))
                .is_some_and(|(_, owner)| *owner == Some(tenant))
        });
        if classes && fresh && large {
            Ok(())
        } else {
            Err("an address does not lie in an extent of its tenant")
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
    use super::Part;

    #[test]
    fn what_does_not_fit_together_is_refused_and_never_read_past_its_end() {
        let base = 1 << 32;
        let part = Part {
            extents: vec![(base, 8192, 7), (base + 16384, 1 << 20, 7)],
            free: vec![(7, 64, vec![base + 512, base + 256])],
            fresh: vec![(7, base + 1024, base + 8192 - 256)],
            large: vec![(7, base + 16384 + 256)],
            runs: vec![(base + 8192, 8192)],
        };
        let good = part.encode();
        assert_eq!(Part::decode(&good, base, 2 << 20), Ok(part.clone()));
        assert!(Part::decode(&good, base, 1 << 20).is_err(), "beyond the range");
        assert!((0..good.len()).all(|length| Part::decode(&good[..length], base, 2 << 20).is_err()));
        let mut huge = good.clone();
        huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Part::decode(&huge, base, 2 << 20).is_err(), "a count that cannot be");
        let wrong: [Part; 6] = [
            Part { extents: vec![(base, 8192, 7), (base + 4096, 4096, 7)], ..Part::default() },
            Part { extents: vec![(base + 8, 4096, 7)], ..Part::default() },
            Part { free: vec![(8, 64, vec![base + 512])], ..part.clone() },
            Part { free: vec![(7, 65, vec![base + 512])], ..part.clone() },
            Part { fresh: vec![(7, base + 1024, base + 8192)], ..part.clone() },
            Part { large: vec![(7, base + 16384 + 512)], ..part },
        ];
        for (index, wrong) in wrong.iter().enumerate() {
            assert!(Part::decode(&wrong.encode(), base, 2 << 20).is_err(), "{index}");
        }
    }
}
