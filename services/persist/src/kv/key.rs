// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of any length in nodes of a fixed one.
//!
//! - **Layout** the first 8 bytes as a big-endian number, padded with zeros; the others as an array of their own. A key of 8
//!   bytes or less has no array, and its length where the array's place would be
//! - **Why** most comparisons are settled by the number, without leaving the node
//! - **Rule** the order is that of the bytes. Where the numbers are the same, a key of 8 bytes or less is a prefix of the longer
//!   one

use std::cmp::Ordering;

use crate::Persist;
use crate::error::Result;
use crate::ptr::PSlice;
use crate::structures::Key;
use crate::tx::Tx;
use crate::view::View;

const HEAD: usize = 8;

/// A key as it is stored.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct ByteKey {
    head: u64,
    rest: PSlice<u8>,
}

fn head(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk::<HEAD>() {
        return u64::from_be_bytes(*head);
    }
    let mut bytes = [0; HEAD];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

impl ByteKey {
    /// Appends the key's bytes.
    ///
    /// # Errors
    ///
    /// As [`View::slice`].
    pub fn read<W: View>(&self, view: &W, target: &mut Vec<u8>) -> Result<()> {
        let head = self.head.to_be_bytes();
        if self.rest.is_empty() {
            target.extend_from_slice(&head[..self.rest.offset().min(HEAD as u64) as usize]);
            return Ok(());
        }
        let rest = view.slice(self.rest)?;
        target.extend_from_slice(&head);
        target.extend_from_slice(rest);
        Ok(())
    }
}

impl Key for ByteKey {
    type Query = [u8];

    #[inline]
    fn compare<W: View>(&self, view: &W, query: &[u8]) -> Result<Ordering> {
        let order = self.head.cmp(&head(query));
        if order != Ordering::Equal {
            return Ok(order);
        }
        Ok(match (self.rest.is_empty(), query.len() <= HEAD) {
            (true, true) => self.rest.offset().cmp(&(query.len() as u64)),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => view.slice(self.rest)?.cmp(&query[HEAD..]),
        })
    }

    fn store(t: &mut Tx<'_>, section: u16, query: &[u8]) -> Result<ByteKey> {
        let rest = match query.get(HEAD..) {
            Some(rest) if !rest.is_empty() => t.alloc_slice_in(section, rest)?,
            _ => PSlice::from_raw(query.len() as u64, 0),
        };
        Ok(ByteKey { head: head(query), rest })
    }

    fn duplicate(&self, t: &mut Tx<'_>, section: u16) -> Result<ByteKey> {
        if self.rest.is_empty() {
            return Ok(*self);
        }
        let rest = t.slice(self.rest)?.to_vec();
        Ok(ByteKey { head: self.head, rest: t.alloc_slice_in(section, &rest)? })
    }

    fn discard(&self, t: &mut Tx<'_>) -> Result<()> {
        t.free_slice(self.rest)
    }

    fn place(&self) -> u64 {
        if self.rest.is_empty() { 0 } else { self.rest.offset() }
    }
}
