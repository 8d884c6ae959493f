// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A log: things are put at its end and read by number. Of bytes, it is a byte log.
//!
//! - **Layout** [`AppendLogRoot`]: numbers of the first item kept and of the next one, first and last chunk; a chunk: next, the
//!   number of its first item, an array. Arrays double from 1 KiB to 64 KiB
//! - **Cost** an append logs its items and a number. A new array of 16 KiB or more goes to its place past the log, at the price
//!   of a second fence in that transaction, once in 64 KiB
//! - **Not here** framing of records in a byte log

use std::fmt;
use std::mem::offset_of;

use super::damaged;
use crate::Persist;
use crate::error::Result;
use crate::ptr::{PPtr, PSlice};
use crate::tx::Tx;
use crate::view::View;

const BYTES_MIN: u64 = 1 << 10;
const BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct LogChunk<T: Persist> {
    next: PPtr<LogChunk<T>>,
    from: u64,
    items: PSlice<T>,
}

/// Where a log starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct AppendLogRoot<T: Persist> {
    end: u64,
    start: u64,
    section: u64,
    first: PPtr<LogChunk<T>>,
    last: PPtr<LogChunk<T>>,
}

/// Items in the order in which they were appended, by number.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::AppendLog};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("journal.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let log = pool.tx(|t| {
///     let log: AppendLog<u8> = AppendLog::create(t)?;
///     t.set_root(log.pointer())?;
///     assert_eq!(log.append(t, b"first line\n")?, 0);
///     assert_eq!(log.append(t, b"second line\n")?, 11);
///     Ok::<_, Error>(log)
/// })?;
/// let bytes = pool.read(|r| Ok::<_, Error>(log.slices(r, 6)?.collect::<Result<Vec<_>, _>>()?.concat()))?;
/// assert_eq!(bytes, b"line\nsecond line\n");
/// # Ok::<_, Error>(())
/// ```
pub struct AppendLog<T: Persist> {
    root: PPtr<AppendLogRoot<T>>,
}

impl<T: Persist> Clone for AppendLog<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Persist> Copy for AppendLog<T> {}

impl<T: Persist> fmt::Debug for AppendLog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AppendLog({:#x})", self.root.offset())
    }
}

impl<T: Persist> AppendLog<T> {
    /// A new, empty log in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        AppendLog::create_in(t, t.home())
    }

    /// A new, empty log in a section that the transaction holds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16) -> Result<Self> {
        const { assert!(size_of::<T>() > 0) };
        let root = AppendLogRoot {
            end: 0,
            start: 0,
            section: u64::from(section),
            first: PPtr::NULL,
            last: PPtr::NULL,
        };
        Ok(AppendLog { root: t.alloc_in(section, root)? })
    }

    /// The log that starts at `root`.
    pub fn open(root: PPtr<AppendLogRoot<T>>) -> Self {
        AppendLog { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<AppendLogRoot<T>> {
        self.root
    }

    /// Numbers of the items that are kept.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn numbers<W: View>(&self, view: &W) -> Result<std::ops::Range<u64>> {
        let root = view.get(self.root)?;
        Ok(root.start..root.end)
    }

    /// Puts items at the end; gives back the number of the first.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`]; [`crate::Error::TooLarge`] at the commit.
    pub fn append(&self, t: &mut Tx<'_>, items: &[T]) -> Result<u64> {
        let root = *t.get(self.root)?;
        let (mut end, mut left, mut capacity) = (root.end, items, 0);
        if !root.last.is_null() {
            let last = *t.get(root.last)?;
            capacity = last.items.len();
            let used = end.checked_sub(last.from).filter(|used| *used <= capacity);
            let used = used.ok_or_else(|| damaged("a log's end is not in its last chunk"))?;
            let now = left.len().min((capacity - used) as usize);
            t.slice_part_mut(last.items, used, now as u64)?.copy_from_slice(&left[..now]);
            end = end.checked_add(now as u64).ok_or_else(|| damaged("a log has no numbers left"))?;
            left = &left[now..];
        }
        if !left.is_empty() {
            self.lengthen(t, left, end, capacity)?;
        }
        let end: &mut u64 = t.part_mut(self.root, offset_of!(AppendLogRoot<T>, end))?;
        *end = end.checked_add(items.len() as u64).ok_or_else(|| damaged("a log has no numbers left"))?;
        Ok(root.end)
    }

    /// A new chunk at the end, with `items` in it.
    fn lengthen(&self, t: &mut Tx<'_>, items: &[T], from: u64, before: u64) -> Result<()> {
        let root = *t.get(self.root)?;
        let bytes = before.saturating_mul(size_of::<T>() as u64 * 2).clamp(BYTES_MIN, BYTES_MAX);
        let capacity = (bytes / size_of::<T>() as u64).max(items.len() as u64);
        let mut whole = Vec::with_capacity(capacity as usize);
        whole.extend_from_slice(items);
        whole.resize(capacity as usize, items[0]);
        let section = root.section as u16;
        let items = t.alloc_slice_in(section, &whole)?;
        let chunk = t.alloc_in(section, LogChunk { next: PPtr::NULL, from, items })?;
        let mut first = root.first;
        if root.last.is_null() {
            first = chunk;
        } else {
            *t.part_mut(root.last, offset_of!(LogChunk<T>, next))? = chunk;
        }
        let ends = offset_of!(AppendLogRoot<T>, first);
        *t.part_mut::<_, [u64; 2]>(self.root, ends)? = [first.offset(), chunk.offset()];
        Ok(())
    }

    /// The items that are kept, from number `number` on, array by array. Items are errors when the file is damaged.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn slices<'v, W: View>(
        &self,
        view: &'v W,
        number: u64,
    ) -> Result<impl Iterator<Item = Result<&'v [T]>> + use<'v, W, T>> {
        let root = view.get(self.root)?;
        let number = number.max(root.start);
        let mut at = if number < root.end { root.first } else { PPtr::NULL };
        let mut expected = None;
        let mut step = move || {
            while !at.is_null() {
                let chunk = view.get(at)?;
                if chunk.items.is_empty() || expected.is_some_and(|from| from != chunk.from) {
                    return Err(damaged("the chunks of a log do not follow each other"));
                }
                let end = chunk.from.saturating_add(chunk.items.len());
                expected = Some(end);
                at = if end < root.end { chunk.next } else { PPtr::NULL };
                if end <= number {
                    continue;
                }
                let whole = view.slice(chunk.items)?;
                let (first, last) =
                    (number.saturating_sub(chunk.from), end.min(root.end).saturating_sub(chunk.from));
                return Ok(whole.get(first as usize..last as usize));
            }
            Ok(None)
        };
        let mut done = false;
        Ok(std::iter::from_fn(move || {
            let item = if done { None } else { step().transpose() };
            done = !matches!(item, Some(Ok(_)));
            item
        }))
    }

    /// Items from `number` on, one by one.
    ///
    /// # Errors
    ///
    /// As [`View::get`]; then the iterator ends.
    pub fn iter<'v, W: View>(
        &self,
        view: &'v W,
        number: u64,
    ) -> Result<impl Iterator<Item = Result<&'v T>> + use<'v, W, T>> {
        Ok(self.slices(view, number)?.flat_map(|slice| {
            let (items, error) = match slice {
                Ok(items) => (items, None),
                Err(error) => (&[][..], Some(Err(error))),
            };
            items.iter().map(Ok).chain(error)
        }))
    }

    /// One item. Takes as long as there are chunks before it.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn get<'v, W: View>(&self, view: &'v W, number: u64) -> Result<Option<&'v T>> {
        if number < view.get(self.root)?.start {
            return Ok(None);
        }
        Ok(self.slices(view, number)?.next().transpose()?.and_then(<[T]>::first))
    }

    /// Gives up the items before `number`; their memory goes back chunk by chunk.
    ///
    /// # Errors
    ///
    /// As [`Tx::free`].
    pub fn trim(&self, t: &mut Tx<'_>, number: u64) -> Result<()> {
        let root = *t.get(self.root)?;
        if root.start > root.end {
            return Err(damaged("a log begins behind its end"));
        }
        let number = number.clamp(root.start, root.end);
        let (mut first, mut last) = (root.first, root.last);
        while !first.is_null() {
            let chunk = *t.get(first)?;
            let end = chunk.from.saturating_add(chunk.items.len());
            if end > number {
                break;
            }
            t.free_slice(chunk.items)?;
            t.free(first)?;
            if chunk.next.is_null() {
                last = PPtr::NULL;
            }
            first = chunk.next;
        }
        t.set(self.root, AppendLogRoot { start: number, first, last, ..root })
    }

    /// Gives everything back; numbers go on from where they are.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        let mut at = root.first;
        while !at.is_null() {
            let chunk = *t.get(at)?;
            t.free_slice(chunk.items)?;
            t.free(at)?;
            at = chunk.next;
        }
        t.set(self.root, AppendLogRoot { start: root.end, first: PPtr::NULL, last: PPtr::NULL, ..root })
    }

    /// Gives everything back, and the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`AppendLog::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }
}

const _: () = assert!(offset_of!(AppendLogRoot<u8>, last) == offset_of!(AppendLogRoot<u8>, first) + 8);
