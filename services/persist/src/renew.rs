// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots of a pool: taking one for readers in other processes, and renewing the one that a reader has.
//!
//! - **Order** nobody changes what a reader sees while the applier, the bodies, the header and the catalog are locked
//! - **Not here** talking to readers: `readers`

use std::sync::Mutex;

use crate::beside::{OldPages, PAGE, SnapshotId};
use crate::bits::Bits;
use crate::catalog::Catalog;
use crate::checksums::{Checksums, Expected, SLAB_PAGES, damaged, page_sum};
use crate::error::Result;
use crate::image::Image;
use crate::layout::{Header, SLAB_BYTES, ZONE_SLABS, is_system};
use crate::lock::lock;
use crate::medium::Medium;
use crate::recover::read_header;
use crate::span::marked;
use crate::store::Store;

impl Store {
    /// Takes a snapshot for these indices, of everything that is committed by now.
    pub fn snapshot(&self, indices: &[usize], old: &OldPages) -> Result<u64> {
        self.sync()?;
        self.place_all()?;
        // Nobody changes what a reader sees while all of these are held.
        let _held = (lock(&self.applier), lock(&self.bodies), lock(&self.header), lock(&self.catalog));
        self.running()?;
        Ok(old.begin(indices))
    }
}

/// The directory of a snapshot, and what else is looked at without a pointer: slabs that `wanted` says, and their content.
fn directory(medium: &Medium, header: &Header, wanted: impl Fn(u64) -> bool) -> Result<Vec<(u64, Vec<u8>)>> {
    let read = |offset: u64, target: &mut [u8]| medium.read(header.heap_start + offset, target);
    let bodies = marked(header, |at| {
        let mut word = [0; 8];
        read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    })?;
    let slabs = header.heap_bytes / SLAB_BYTES;
    let mut found = Vec::new();
    let system = |slab: &u64| is_system(*slab) && !bodies.contains(&(slab / ZONE_SLABS));
    for slab in (0..slabs).filter(system).filter(|slab| wanted(*slab)) {
        let mut content = vec![0; SLAB_BYTES as usize];
        read(slab * SLAB_BYTES, &mut content)?;
        found.push((slab, content));
    }
    Ok(found)
}

/// Reads the directory of a snapshot into its image.
pub(crate) fn fill_directory(image: &Image, medium: &Medium, header: &Header) -> Result<()> {
    for (slab, content) in directory(medium, header, |_| true)? {
        image.write_bytes(slab * SLAB_BYTES, &content);
    }
    Ok(())
}

impl Store {
    /// Takes a new snapshot in place of the one that it has; nobody else has the store. What did not change is kept.
    ///
    /// # Errors
    ///
    /// As [`WriterSnapshot::renew`](crate::beside::WriterSnapshot::renew). The store is as it was then.
    pub(crate) fn renew(&mut self) -> Result<()> {
        let Some(before) = self.medium.renew_snapshot()? else { return Ok(()) };
        let renewed = self.renew_since(before);
        if renewed.is_err() {
            self.medium.put_snapshot_back(before);
        }
        renewed
    }

    fn renew_since(&mut self, before: SnapshotId) -> Result<()> {
        let (Some(snapshot), Some(fetched)) = (self.medium.writer_snapshot(), &self.fetched) else {
            return Ok(());
        };
        let page = |slab: u64| (self.heap_start + slab * SLAB_BYTES) / PAGE;
        let changed = |slab: u64| (0..SLAB_PAGES).any(|at| snapshot.changed(before, page(slab) + at));
        let header = read_header(&self.medium)?;
        let checksums = Checksums::read(&self.medium, &header)?;
        let catalog = Catalog::read(&self.medium)?;
        let had = self.image.len() / SLAB_BYTES;
        let mut directory = directory(&self.medium, &header, |slab| slab >= had || changed(slab))?;
        let stale: Vec<u64> = fetched.there.all().filter(|slab| changed(*slab)).collect();
        // Looked at afterwards: if it was there all the time, so was every page that it needs.
        let is_gone = snapshot.is_gone(before);
        if is_gone {
            directory = self::directory(&self.medium, &header, |_| true)?;
        }
        for (slab, content) in &directory {
            for (page, content) in (slab * SLAB_PAGES..).zip(content.chunks_exact(PAGE as usize)) {
                let sum = Expected::Sum(page_sum(content));
                if checksums.as_ref().map_or(Ok(sum), |all| all.expected(&self.medium, page))? != sum {
                    return Err(damaged(page));
                }
            }
        }
        if header.heap_bytes > self.image.len() {
            self.image.grow(&self.medium, self.heap_start, header.heap_bytes)?;
        }
        if is_gone {
            fetched.there.clear();
            fetched.good.clear();
        } else {
            for slab in stale {
                fetched.there.forget(slab);
                fetched.good.forget(slab);
            }
        }
        self.verified.iter().for_each(Bits::clear);
        for (slab, content) in &directory {
            self.image.write_bytes(slab * SLAB_BYTES, content);
        }
        let bodies = marked(&header, |at| Ok(self.image.word(at)))?;
        bodies.first().into_iter().for_each(|zone| self.image.bodies_from(*zone));
        self.checksums = checksums;
        self.catalog = Mutex::new(catalog);
        self.header = Mutex::new(header);
        Ok(())
    }
}
