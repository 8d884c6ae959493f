// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Structures that memlift itself keeps in a pool, checked as only their own code can: the tables of Python and C, the store of
//! `memlift pool serve`.
//!
//! - **Flow** a [`View`] of the file that notes each object it hands out ─▶ the structure's own walk over it ─▶ links that do
//!   not agree, objects that are led to and free, objects in use that nothing leads to
//! - **Rule** only memlift writes these links: those that do not agree are damage, and no program's mistake
//! - **Owner** the view borrows the snapshot: its mapping outlives what is handed out
//! - **Not here** pointers that the catalog shows: `objects`; values: they have no checksum

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::objects::{Heap, Place};
use crate::checksums::PAGE;
use crate::error::{Error, Result};
use crate::image::{Image, Kind};
use crate::kv;
use crate::layout::{Entry, Header};
use crate::options::Mechanism;
use crate::persist::Persist;
use crate::persist::slice_tag;
use crate::raw::{ForeignRoot, Table, root};
use crate::view::View;

/// Kinds of named objects.
pub(super) const DICT: u8 = 1;
pub(super) const ARRAY: u8 = 2;
/// Pairs that are looked at together.
const BATCH: usize = 1024;
/// An entry of a table has its header and five words.
const LEAST_ENTRY_BYTES: u64 = 56;

/// Damage in memlift's own structures in a pool.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Places in the heap, and what does not agree there.
    pub broken: Vec<(u64, String)>,
    /// Objects that are led to and marked as free.
    pub free: Vec<Place>,
    /// Objects marked as in use that are none, or that nothing leads to.
    pub stray: Vec<Place>,
}

/// A view of the file: of all bytes as they are, or as a reader has them, who stops at damaged pages.
pub(crate) struct Audit<'h> {
    heap: &'h Heap<'h>,
    base: Rc<Base>,
    heap_bytes: u64,
    root: (u64, u64),
    met: RefCell<BTreeMap<u64, Place>>,
    damaged: Option<&'h BTreeSet<u64>>,
}

impl<'h> Audit<'h> {
    /// Everything as it is.
    pub fn new(heap: &'h Heap<'h>, header: &Header) -> Result<Audit<'h>> {
        let (base, heap_bytes) = (Rc::new(base(heap, header)?), header.heap_bytes);
        Ok(Audit { heap, base, heap_bytes, root: heap.root()?, met: RefCell::default(), damaged: None })
    }

    /// The heap that it is a view of.
    pub fn heap(&self) -> &'h Heap<'h> {
        self.heap
    }

    /// As a reader has it: what lies in one of these pages is an error.
    pub fn reader(&self, damaged: &'h BTreeSet<u64>) -> Audit<'h> {
        Audit { base: self.base.clone(), met: RefCell::default(), damaged: Some(damaged), ..*self }
    }

    /// Returns true if a reader gets an error for these bytes of the heap.
    pub fn is_damaged(&self, offset: u64, bytes: u64) -> bool {
        let pages = offset / PAGE..=(offset + bytes.max(1) - 1) / PAGE;
        self.damaged.is_some_and(|damaged| damaged.range(pages).next().is_some())
    }
}

/// Where the heap's bytes are in memory.
enum Base {
    /// The snapshot's mapping of the file.
    Mapped(*const u8),
    /// A copy: the file has the heap in another order, or in several files.
    Copied(Image),
}

impl View for Audit<'_> {
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8> {
        let fits = |place: &Place| place.start == offset && place.tag == tag && bytes <= place.room;
        let place = self.heap.place(offset).filter(fits).filter(|_| offset.is_multiple_of(align));
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.heap_bytes);
        let Some(place) = place.filter(|_| inside) else {
            return Err(Error::Pointer { wanted: name, offset });
        };
        if self.is_damaged(offset, bytes) {
            return Err(Error::corrupt("its page does not have its checksum"));
        }
        self.met.borrow_mut().insert(offset, place);
        Ok(match &*self.base {
            Base::Mapped(base) => base.wrapping_add(offset as usize),
            Base::Copied(image) => image.at(offset),
        })
    }

    fn root_words(&self) -> (u64, u64) {
        self.root
    }

    fn heap_bytes(&self) -> u64 {
        self.heap_bytes
    }
}

fn base(heap: &Heap<'_>, header: &Header) -> Result<Base> {
    let medium = &heap.snapshot.medium;
    if header.mechanism != Mechanism::Shadow as u8
        && let Some(base) = medium.heap(header.heap_start)
    {
        return Ok(Base::Mapped(base));
    }
    let bytes = header.heap_bytes;
    let mut image = Image::new(medium, header.heap_start, bytes, bytes, Kind::Filled)?;
    image.fill(0, bytes, |target| heap.snapshot.heap(0, target))?;
    Ok(Base::Copied(image))
}

/// Objects of Python and C whose links only memlift knows: parts of tables, which [`scan`] checks, and what the pool's names lead to.
pub(super) struct Known {
    foreign: bool,
    named: BTreeSet<u64>,
}

impl Known {
    pub fn of(audit: &Audit<'_>) -> Known {
        let foreign = audit.root.1 == ForeignRoot::LAYOUT;
        Known { foreign, named: if foreign { names(audit).into_keys().collect() } else { BTreeSet::new() } }
    }

    pub fn has(&self, heap: &Heap<'_>, place: &Place) -> Result<bool> {
        let bytes = self.foreign && place.tag == slice_tag::<u8>();
        Ok(bytes && (self.named.contains(&place.start) || Table::has(heap.snapshot.word(place.start)?)))
    }
}

/// Checks what memlift keeps in a pool; nothing is wrong with a pool of other things.
pub(crate) fn scan(audit: &Audit<'_>) -> Result<Owned> {
    let (mut owned, heap, root_words) = (Owned::default(), audit.heap, audit.root);
    if !(root_words.1 == ForeignRoot::LAYOUT || root_words.1 == kv::LAYOUT) {
        return Ok(owned);
    }
    audit.met.take();
    if root_words.1 == kv::LAYOUT {
        if let Err(error) = kv::audit(audit) {
            owned.broken.push((root_words.0, format!("the store: {error}")));
        }
    } else {
        foreign(audit, &mut owned)?;
    }
    let met = audit.met.take();
    owned.free = met.values().filter(|place| !place.used).copied().collect();
    if owned.broken.is_empty() {
        // A walk that broke off has not met everything.
        let whole = root_words.1 == kv::LAYOUT;
        for place in heap.in_use().filter(|place| !met.contains_key(&place.start)) {
            let first = heap.snapshot.word(place.start)?;
            let untyped = place.tag == slice_tag::<u8>() && (first == 0 || Table::has(first));
            if whole || untyped || place.tag == ForeignRoot::TAG {
                owned.stray.push(place);
            }
        }
    }
    Ok(owned)
}

/// Tables lie anywhere: values name them in ways that only the bindings know. A table that was freed has lost its type.
fn foreign(audit: &Audit<'_>, owned: &mut Owned) -> Result<()> {
    let named = match root(audit) {
        Ok(root) => vec![("names", root.names), ("limbo", root.limbo), ("types", root.types)],
        Err(error) => {
            owned.broken.push((audit.root.0, format!("the root: {error}")));
            Vec::new()
        }
    };
    for (name, offset) in named.into_iter().filter(|(_, offset)| *offset != 0) {
        if let Err(error) = Table::at(offset).check(audit) {
            owned.broken.push((offset, format!("the table of {name}: {error}")));
        }
    }
    for (slab, entry) in audit.heap.directory.iter().enumerate() {
        if entry.tag != slice_tag::<u8>() || entry.state != Entry::SLOTS {
            continue;
        }
        for place in audit.heap.slots_of(slab as u64) {
            if !Table::is_head(audit.heap.snapshot.word(place.start)?) {
                continue;
            }
            if let Err(error) = Table::at(place.start).check(audit)
                && !owned.broken.iter().any(|(offset, _)| *offset == place.start)
            {
                owned.broken.push((place.start, format!("a table: {error}")));
            }
        }
    }
    Ok(())
}

/// The pool's names by the places that they lead to, each with its kind.
pub(super) fn names(view: &Audit<'_>) -> BTreeMap<u64, (u8, Vec<u8>)> {
    let mut names = BTreeMap::new();
    let Ok(root) = root(view) else { return names };
    if root.names != 0 {
        let _ = each_pair(Table::at(root.names), view, |name, value| {
            if let Some((kind, place)) = value.split_first()
                && let Some(place) = place.first_chunk()
            {
                names.insert(u64::from_le_bytes(*place), (*kind, name.to_vec()));
            }
        });
    }
    names
}

/// Gives each key of a table with its value, in the order of insertion. An error where there are fewer than the table says, or it says
/// more than a heap of this size has room for: a circle of links ends there.
pub(super) fn each_pair<V: View>(table: Table, view: &V, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
    let wrong = || Error::corrupt("a table's links make no sense");
    let (mut after, mut seen) = (None::<Vec<u8>>, 0);
    let count = table.len(view)?;
    if count > view.heap_bytes() / LEAST_ENTRY_BYTES {
        return Err(wrong());
    }
    while seen < count {
        let pairs = table.batch(view, after.as_deref(), BATCH, usize::MAX)?.unwrap_or_default();
        after = Some(pairs.last().ok_or_else(wrong)?.0.clone());
        seen += pairs.len() as u64;
        pairs.iter().for_each(|(key, value)| each(key, value));
    }
    Ok(())
}
