// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares pages with their checksums before they are believed: once since the pool was opened, or since the mirror gave them back.
//!
//! - **Flow** a pointer is followed, or a slot taken ─▶ a bit for its slab: compared already ─▶ else the pages are compared in the file,
//!   under the applier's lock ─▶ the bit, if all are good
//! - **Rule** a page that differs is an error for the objects that lie in it, and nothing is allocated in its slab. The rest goes on
//! - **Why in the file** the mirror's page is the file's until the first store to it, which comes after the comparison
//! - **Scrub** on request, slab by slab, whatever was compared before: the file's directory says what is in use, and damage clears the bit
//! - **Not here** what pages should be: `checksums`; finding all damage: `check`

use std::sync::atomic::Ordering;

use crate::checksums::{Expected, PAGE, SLAB_PAGES, damaged, page_sum};
use crate::error::Result;
use crate::fetched::Fetched;
use crate::layout::{Entry, SLAB_BYTES, ZONE_SLABS, is_system};
use crate::lock::lock;
use crate::pool::Pool;
use crate::store::Store;

impl Pool {
    /// Compares the next slabs (16 KiB each) in use with their checksums, going on where the last call ended and around; returns where
    /// in the heap pages of 4 KiB are damaged. What lies there is an error from now on, also where it could be read before. A pool
    /// without checksums has none.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Stopped`] when a page of the file cannot be had.
    pub fn scrub(&self, slabs: u64) -> Result<Vec<u64>> {
        let store = self.store();
        let mut damaged = Vec::new();
        store.running()?;
        for _ in 0..slabs.min(store.image.len() / SLAB_BYTES) {
            let slab = store.scrubbed.fetch_add(1, Ordering::Relaxed) % (store.image.len() / SLAB_BYTES);
            store.scrub(slab, &mut damaged)?;
        }
        store.row.damaged(damaged.len() as u64);
        store.running()?;
        Ok(damaged)
    }
}

impl Store {
    /// Compares what starts in a slab.
    fn scrub(&self, slab: u64, damaged: &mut Vec<u64>) -> Result<()> {
        let (Some(checksums), Some(verified)) = (&self.checksums, &self.verified) else { return Ok(()) };
        if is_system(slab) || self.image.is_body(slab / ZONE_SLABS) {
            return Ok(());
        }
        let _applier = lock(&self.applier);
        let mut words = [0; 16];
        self.medium.load(self.heap_start + Entry::offset(slab), &mut words)?;
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"));
        let entry = Entry::from_words([word(0), word(8)]);
        let count = match entry.state {
            Entry::SLOTS => 1,
            Entry::RUN | Entry::SPAN => entry.slabs().min(self.image.len() / SLAB_BYTES - slab),
            _ => return Ok(()),
        };
        for page in slab * SLAB_PAGES..(slab + count) * SLAB_PAGES {
            if !checksums.holds(&self.medium, page)? {
                damaged.push(page * PAGE);
                verified.forget(slab);
                verified.forget(page / SLAB_PAGES);
            }
        }
        Ok(())
    }

    /// Slabs that a transaction took from the free ones: whatever was there before does not count.
    pub(crate) fn set_verified(&self, first: u64, count: u64) {
        if let Some(verified) = &self.verified {
            (first..first + count).for_each(|slab| verified.set(slab));
        }
    }

    /// Returns true if all pages of a slab are what they should be.
    #[inline]
    pub(crate) fn is_verified(&self, slab: u64) -> bool {
        let Some(verified) = &self.verified else { return true };
        verified.has(slab) || self.verify(slab * SLAB_BYTES, SLAB_BYTES).is_ok()
    }

    /// Brings a slab of a snapshot into the image, once. The caller holds the applier.
    fn fetch(&self, slab: u64, fetched: &Fetched) -> Result<()> {
        if !fetched.there.has(slab) {
            let mut content = vec![0; SLAB_BYTES as usize];
            self.medium.read(self.heap_start + slab * SLAB_BYTES, &mut content)?;
            self.image.write_bytes(slab * SLAB_BYTES, &content);
            fetched.there.set(slab);
        }
        Ok(())
    }

    /// Returns true if a page is what it should be: in the file, or in the image of a snapshot, which has what is read.
    fn holds(&self, page: u64) -> Result<bool> {
        let Some(checksums) = &self.checksums else { return Ok(true) };
        if self.fetched.is_none() {
            return checksums.holds(&self.medium, page);
        }
        let sum = page_sum(self.image.bytes(page * PAGE, PAGE));
        Ok(checksums.expected(&self.medium, page)? == Expected::Sum(sum))
    }

    /// Compares the pages of the slab, or of the object of many slabs, in which [offset, offset + bytes) lies.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Corrupt`] when a page of that range is damaged.
    #[cold]
    pub(crate) fn verify(&self, offset: u64, bytes: u64) -> Result<()> {
        let Some(verified) = &self.verified else { return Ok(()) };
        let first = offset / SLAB_BYTES;
        let entry = self.image.entry(first);
        let slabs = if matches!(entry.state, Entry::RUN | Entry::SPAN) { entry.slabs() } else { 1 };
        let (mut odd, mut all) = (None, true);
        // From the last one on: the first one's bit stands for all of them.
        for slab in (first..first + slabs).rev().filter(|slab| !verified.has(*slab)) {
            // The applier stores pages and entries one after the other.
            let _applier = lock(&self.applier);
            let mut good = true;
            if let Some(fetched) = &self.fetched {
                self.fetch(slab, fetched)?;
            }
            // A slab that an earlier snapshot had is compared already.
            let known = self.fetched.as_ref().is_some_and(|fetched| fetched.good.has(slab));
            let pages = if known { 0..0 } else { slab * SLAB_PAGES..(slab + 1) * SLAB_PAGES };
            self.medium.will_load(self.heap_start + slab * SLAB_BYTES, SLAB_BYTES);
            for page in pages {
                if !self.holds(page)? {
                    good = false;
                    let inside = page * PAGE < offset + bytes && offset < (page + 1) * PAGE;
                    odd = if inside { Some(page) } else { odd };
                }
            }
            if let Some(fetched) = self.fetched.as_ref().filter(|_| good) {
                fetched.good.set(slab);
            }
            all &= good;
            if good && (all || slab != first) {
                verified.set(slab);
            }
        }
        odd.map_or(Ok(()), |page| {
            self.row.damaged(1);
            Err(damaged(page))
        })
    }
}
