// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of ordered structures, and the queries that search for them.
//!
//! - **Rule** numbers and other small `Ord` values are their own key and their own query. A key that keeps bytes elsewhere is
//!   searched by the bytes, makes its stored form when it is put in, and frees it when it goes
//! - **Owner** an inner node owns its separators: it copies a key that has bytes elsewhere, so that the entry may go before it

use std::cmp::Ordering;

use crate::Persist;
use crate::error::Result;
use crate::tx::Tx;
use crate::view::View;

/// A key as it is stored. Every `Persist + Ord` type is one.
pub trait Key: Persist {
    /// The form of a key that a search takes.
    type Query: ?Sized;

    /// How the stored key compares with `query`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Pointer`] when bytes that it keeps elsewhere are not there.
    fn compare<W: View>(&self, view: &W, query: &Self::Query) -> Result<Ordering>;

    /// The stored form of a query, its bytes in `section`.
    ///
    /// # Errors
    ///
    /// As [`Tx::alloc_in`].
    fn store(t: &mut Tx<'_>, section: u16, query: &Self::Query) -> Result<Self>;

    /// A stored form of its own with the same meaning.
    ///
    /// # Errors
    ///
    /// As [`Tx::alloc_in`].
    fn duplicate(&self, t: &mut Tx<'_>, section: u16) -> Result<Self>;

    /// Frees what it keeps elsewhere.
    ///
    /// # Errors
    ///
    /// As [`Tx::free`].
    fn discard(&self, t: &mut Tx<'_>) -> Result<()>;

    /// Where in the heap the bytes lie that it keeps elsewhere; 0: it keeps none.
    fn place(&self) -> u64;
}

impl<T: Persist + Ord> Key for T {
    type Query = T;

    #[inline]
    fn compare<W: View>(&self, _view: &W, query: &T) -> Result<Ordering> {
        Ok(self.cmp(query))
    }

    #[inline]
    fn store(_t: &mut Tx<'_>, _section: u16, query: &T) -> Result<T> {
        Ok(*query)
    }

    #[inline]
    fn duplicate(&self, _t: &mut Tx<'_>, _section: u16) -> Result<T> {
        Ok(*self)
    }

    #[inline]
    fn discard(&self, _t: &mut Tx<'_>) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn place(&self) -> u64 {
        0
    }
}

/// The first of `count` sorted keys that is not less than `query`, and whether it is equal. Without branches that depend on
/// keys: a mispredicted one costs more than the steps it would save.
#[inline(always)]
pub(super) fn search<'k, K: Key, W: View>(
    view: &W,
    query: &K::Query,
    count: usize,
    key: impl Fn(usize) -> Result<&'k K>,
) -> Result<(usize, bool)> {
    if count == 0 {
        return Ok((0, false));
    }
    let (mut from, mut left) = (0, count);
    while left > 1 {
        let half = left / 2;
        let less = key(from + half - 1)?.compare(view, query)? == Ordering::Less;
        from = std::hint::select_unpredictable(less, from + half, from);
        left -= half;
    }
    let at = from + usize::from(key(from)?.compare(view, query)? == Ordering::Less);
    Ok((at, at < count && key(at)?.compare(view, query)? == Ordering::Equal))
}
