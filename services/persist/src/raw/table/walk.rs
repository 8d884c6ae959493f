// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Going through a whole table: in batches, or to see whether its links agree.
//!
//! - **Order** a batch begins behind a key and not at a place: between two batches entries may move
//! - **Rule** a walk is as long as the table says that it is, at most

use super::{CHAIN_MAX, Entry, FIRST, HASH, LAST, Link, NEXT, PREVIOUS, SEED, Table, damaged, mix};
use crate::error::Result;
use crate::view::View;

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

impl Table {
    /// Keys with their values in the order of insertion, from behind `after` on: until there are `pairs` of them, or they have
    /// `bytes` bytes; one at least, unless there is none. None: there is no key `after`.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    pub fn batch<V: View>(
        self,
        view: &V,
        after: Option<&[u8]>,
        pairs: usize,
        bytes: usize,
    ) -> Result<Option<Vec<Pair>>> {
        let mut at = match after {
            None => self.head(view, FIRST)?,
            Some(key) => match self.find(view, key)?.1 {
                Some((_, at)) => Entry::of(view, at)?.at(NEXT)?,
                None => return Ok(None),
            },
        };
        let (mut found, mut sum) = (Vec::new(), 0);
        let pairs = pairs.min(usize::try_from(self.len(view)?).unwrap_or(usize::MAX));
        while at != 0 && found.len() < pairs && (sum < bytes || found.is_empty()) {
            let entry = Entry::of(view, at)?;
            found.push((entry.key.to_vec(), entry.value.to_vec()));
            sum += entry.key.len() + entry.value.len();
            at = entry.at(NEXT)?;
        }
        Ok(Some(found))
    }

    /// The key that was inserted last.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    pub fn last<V: View>(self, view: &V) -> Result<Option<Vec<u8>>> {
        match self.head(view, LAST)? {
            0 => Ok(None),
            at => Ok(Some(Entry::of(view, at)?.key.to_vec())),
        }
    }

    /// Follows every link and compares them with each other: each entry is in its bucket's chain and in the order once.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Corrupt`], [`crate::Error::Pointer`].
    pub fn check<V: View>(self, view: &V) -> Result<()> {
        let (count, buckets, seed) = (self.len(view)?, self.buckets(view)?, self.head(view, SEED)?);
        let (mut at, mut previous, mut seen) = (self.head(view, FIRST)?, 0, 0);
        while at != 0 && seen < count {
            let entry = Entry::of(view, at)?;
            let hash = mix(seed, entry.key);
            let (_, found) = self.find(view, entry.key)?;
            if entry.at(PREVIOUS)? != previous
                || entry.at(HASH)? != hash
                || found.is_none_or(|(_, is)| is != at)
            {
                return Err(damaged());
            }
            (previous, at, seen) = (at, entry.at(NEXT)?, seen + 1);
        }
        let mut chained = 0;
        for bucket in 0..buckets {
            let mut link = Link::Bucket(bucket);
            for _ in 0..CHAIN_MAX {
                let at = self.follow(view, link)?;
                if at == 0 {
                    break;
                }
                chained += 1;
                link = Link::Chain(at);
            }
        }
        if at != 0 || seen != count || chained != count || self.head(view, LAST)? != previous {
            return Err(damaged());
        }
        Ok(())
    }
}
