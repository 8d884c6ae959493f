// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue: in at the back, out at the front.
//!
//! - **Layout** [`QueueRoot`]: how many ever went in and came out, first and last chunk; a chunk: next, number, 30 places. Item i
//!   lies at place i mod 30 of its chunk
//! - **Cost** in: an item and a number; out: a number. A chunk comes and goes once in 30 items

use std::fmt;
use std::mem::offset_of;

use super::damaged;
use crate::Persist;
use crate::error::Result;
use crate::ptr::PPtr;
use crate::tx::Tx;
use crate::view::View;

const ITEMS: u64 = 30;

#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
struct QueueChunk<T> {
    next: PPtr<QueueChunk<T>>,
    /// Its place among all chunks that ever were: a damaged file leads to another one, or in a circle.
    number: u64,
    items: [T; ITEMS as usize],
}

/// Where a queue starts; kept in the pool.
#[derive(Clone, Copy, Persist)]
#[persist(crate = crate)]
#[repr(C)]
pub struct QueueRoot<T: Persist> {
    pushed: u64,
    popped: u64,
    section: u64,
    first: PPtr<QueueChunk<T>>,
    last: PPtr<QueueChunk<T>>,
}

/// Items in the order in which they came.
///
/// ```
/// use memlift_persist::{Error, Options, Pool, structures::Queue};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("jobs.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// let jobs = pool.tx(|t| {
///     let jobs: Queue<u64> = Queue::create(t)?;
///     t.set_root(jobs.pointer())?;
///     jobs.push(t, 1)?;
///     jobs.push(t, 2)?;
///     Ok::<_, Error>(jobs)
/// })?;
/// assert_eq!(pool.tx(|t| jobs.pop(t))?, Some(1));
/// # Ok::<_, Error>(())
/// ```
pub struct Queue<T: Persist> {
    root: PPtr<QueueRoot<T>>,
}

impl<T: Persist> Clone for Queue<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Persist> Copy for Queue<T> {}

impl<T: Persist> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({:#x})", self.root.offset())
    }
}

/// Item `number`, which is in `chunk`, and the chunk after it.
fn place<T: Persist, W: View>(
    view: &W,
    chunk: PPtr<QueueChunk<T>>,
    number: u64,
) -> Result<(&T, PPtr<QueueChunk<T>>)> {
    let chunk = view.get(chunk)?;
    if chunk.number != number / ITEMS {
        return Err(damaged("the chunks of a queue do not follow each other"));
    }
    Ok((&chunk.items[(number % ITEMS) as usize], chunk.next))
}

impl<T: Persist> QueueRoot<T> {
    fn len(&self) -> Result<u64> {
        self.pushed.checked_sub(self.popped).ok_or_else(|| damaged("a queue gave out more than went in"))
    }
}

impl<T: Persist> Queue<T> {
    /// A new, empty queue in the transaction's home section.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`].
    pub fn create(t: &mut Tx<'_>) -> Result<Self> {
        Queue::create_in(t, t.home())
    }

    /// A new, empty queue in a section that the transaction holds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`], [`crate::Error::Section`].
    pub fn create_in(t: &mut Tx<'_>, section: u16) -> Result<Self> {
        let root = QueueRoot {
            pushed: 0,
            popped: 0,
            section: u64::from(section),
            first: PPtr::NULL,
            last: PPtr::NULL,
        };
        Ok(Queue { root: t.alloc_in(section, root)? })
    }

    /// The queue that starts at `root`.
    pub fn open(root: PPtr<QueueRoot<T>>) -> Self {
        Queue { root }
    }

    /// Where it starts; keep this.
    pub fn pointer(&self) -> PPtr<QueueRoot<T>> {
        self.root
    }

    /// How many items are waiting.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn len<W: View>(&self, view: &W) -> Result<u64> {
        view.get(self.root)?.len()
    }

    /// Returns true if the queue has no items.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn is_empty<W: View>(&self, view: &W) -> Result<bool> {
        Ok(self.len(view)? == 0)
    }

    /// Puts an item at the back.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Full`]; as [`Tx::get_mut`].
    #[inline]
    pub fn push(&self, t: &mut Tx<'_>, item: T) -> Result<()> {
        let root = t.get(self.root)?;
        let (place, last) = ((root.pushed % ITEMS) as usize, root.last);
        if place == 0 {
            self.lengthen(t, item)?;
        } else {
            *t.part_mut(last, offset_of!(QueueChunk<T>, items) + place * size_of::<T>())? = item;
        }
        let pushed: &mut u64 = t.part_mut(self.root, offset_of!(QueueRoot<T>, pushed))?;
        *pushed = pushed.wrapping_add(1);
        Ok(())
    }

    /// A new chunk at the back, with its first item.
    fn lengthen(&self, t: &mut Tx<'_>, item: T) -> Result<()> {
        let root = *t.get(self.root)?;
        let number = root.pushed / ITEMS;
        let chunk = QueueChunk { next: PPtr::NULL, number, items: [item; ITEMS as usize] };
        let chunk = t.alloc_in(root.section as u16, chunk)?;
        let mut first = root.first;
        if root.last.is_null() {
            first = chunk;
        } else {
            *t.part_mut(root.last, offset_of!(QueueChunk<T>, next))? = chunk;
        }
        *t.part_mut::<_, [u64; 2]>(self.root, offset_of!(QueueRoot<T>, first))? =
            [first.offset(), chunk.offset()];
        Ok(())
    }

    /// The item at the front.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn peek<'v, W: View>(&self, view: &'v W) -> Result<Option<&'v T>> {
        let root = view.get(self.root)?;
        if root.len()? == 0 {
            return Ok(None);
        }
        Ok(Some(place(view, root.first, root.popped)?.0))
    }

    /// Takes the item at the front out.
    ///
    /// # Errors
    ///
    /// As [`Tx::get_mut`].
    #[inline]
    pub fn pop(&self, t: &mut Tx<'_>) -> Result<Option<T>> {
        let Some(item) = self.peek(t)?.copied() else { return Ok(None) };
        let root = t.get(self.root)?;
        let (first, popped) = (root.first, root.popped + 1);
        if popped.is_multiple_of(ITEMS) {
            let next = t.get(first)?.next;
            let last = if next.is_null() { PPtr::NULL } else { root.last };
            t.free(first)?;
            *t.part_mut::<_, [u64; 2]>(self.root, offset_of!(QueueRoot<T>, first))? =
                [next.offset(), last.offset()];
        }
        *t.part_mut(self.root, offset_of!(QueueRoot<T>, popped))? = popped;
        Ok(Some(item))
    }

    /// All items, the front first. Items are errors when the file is damaged.
    ///
    /// # Errors
    ///
    /// As [`View::get`].
    pub fn iter<'v, W: View>(
        &self,
        view: &'v W,
    ) -> Result<impl Iterator<Item = Result<&'v T>> + use<'v, W, T>> {
        let root = view.get(self.root)?;
        root.len()?;
        let (mut number, mut chunk) = (root.popped, root.first);
        Ok(std::iter::from_fn(move || {
            if number == root.pushed {
                return None;
            }
            match place(view, chunk, number) {
                Ok((item, next)) => {
                    number += 1;
                    if number.is_multiple_of(ITEMS) {
                        chunk = next;
                    }
                    Some(Ok(item))
                }
                Err(error) => {
                    number = root.pushed;
                    Some(Err(error))
                }
            }
        }))
    }

    /// Takes everything out, in one transaction.
    ///
    /// # Errors
    ///
    /// [`crate::Error::TooLarge`] at the commit; as [`Tx::free`].
    pub fn clear(&self, t: &mut Tx<'_>) -> Result<()> {
        let root = *t.get(self.root)?;
        let mut at = root.first;
        while !at.is_null() {
            let next = t.get(at)?.next;
            t.free(at)?; // a circle ends here: nothing is freed twice
            at = next;
        }
        t.set(self.root, QueueRoot { pushed: 0, popped: 0, first: PPtr::NULL, last: PPtr::NULL, ..root })
    }

    /// Takes everything out and gives back the root; the pointer is stale then.
    ///
    /// # Errors
    ///
    /// As [`Queue::clear`].
    pub fn destroy(self, t: &mut Tx<'_>) -> Result<()> {
        self.clear(t)?;
        t.free(self.root)
    }
}

const _: () = assert!(offset_of!(QueueRoot<u64>, last) == offset_of!(QueueRoot<u64>, first) + 8);
