// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that no tenant has, and whose bytes may be left in them.
//!
//! - **Layout** runs of whole pages; adjacent runs are merged, except at cuts
//! - **Contents** pages are cleared when a tenant gets them, and only if bytes of another tenant may be in them

use std::collections::{BTreeMap, BTreeSet};

/// Contents of free pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageContents {
    /// All bytes are zero.
    Clean,
    /// Bytes that this tenant has left, or zeros.
    Of(u32),
    /// Bytes of any tenant, or unknown ones.
    Mixed,
}

impl PageContents {
    fn with(self, other: PageContents) -> PageContents {
        match (self, other) {
            (PageContents::Clean, other) | (other, PageContents::Clean) => other,
            (one, other) if one == other => one,
            _ => PageContents::Mixed,
        }
    }

    /// Returns true if the pages may hold bytes that the tenant must not see.
    pub fn is_foreign_to(self, tenant: u32) -> bool {
        !matches!(self, PageContents::Clean) && self != PageContents::Of(tenant)
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<u64, (u64, PageContents)>);

impl Runs {
    /// Adds pages that a tenant has given back.
    pub fn give(&mut self, mut base: u64, mut bytes: u64, mut contents: PageContents, cuts: &BTreeSet<u64>) {
        if let Some((&before, &(length, old))) = self.0.range(..base).next_back()
            && before + length == base
            && !cuts.contains(&base)
        {
            self.0.remove(&before);
            (base, bytes, contents) = (before, bytes + length, contents.with(old));
        }
        let end = base + bytes;
        if !cuts.contains(&end)
            && let Some((length, old)) = self.0.remove(&end)
        {
            bytes += length;
            contents = contents.with(old);
        }
        self.0.insert(base, (bytes, contents));
    }

    /// Returns the shortest run of at least `bytes` bytes: first address, bytes.
    pub fn find(&self, bytes: u64) -> Option<(u64, u64)> {
        let runs = self.0.iter().map(|(&base, &(length, _))| (base, length));
        runs.filter(|(_, length)| *length >= bytes).min_by_key(|(_, length)| *length)
    }

    /// Takes pages that all lie in one run, and returns their state.
    pub fn take(&mut self, base: u64, bytes: u64) -> PageContents {
        let Some((at, length)) = self.around(base) else { return PageContents::Mixed };
        let Some((_, contents)) = self.0.remove(&at) else { return PageContents::Mixed };
        if at < base {
            self.0.insert(at, (base - at, contents));
        }
        if base + bytes < at + length {
            self.0.insert(base + bytes, (at + length - base - bytes, contents));
        }
        contents
    }

    /// Returns the run that contains an address: first, bytes.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&at, &(length, _)) = self.0.range(..=address).next_back()?;
        (address < at + length).then_some((at, length))
    }

    /// Splits the run that crosses this address, if one does.
    pub fn cut(&mut self, at: u64) {
        if let Some((base, length)) = self.around(at).filter(|(base, _)| *base < at) {
            let contents = self.take(base, length);
            self.0.insert(base, (at - base, contents));
            self.0.insert(at, (base + length - at, contents));
        }
    }

    /// Returns the runs that start in a stretch of addresses, in order: first, bytes.
    pub fn within(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.0.range(base..end).map(|(&at, &(length, _))| (at, length))
    }

    /// Returns the bytes of all runs, and of the longest one.
    pub fn bytes(&self) -> (u64, u64) {
        self.0.values().fold((0, 0), |(all, most), (length, _)| (all + length, most.max(*length)))
    }
}
