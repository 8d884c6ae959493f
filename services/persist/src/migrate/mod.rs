// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects of an older layout become those of a new one, in place or by moving, in small transactions.
//!
//! - **Flow** convert: slab by slab, every object of an old type becomes its new one (`step`) ─▶ link: every pointer to something
//!   that moved gets its new place ─▶ release: the old slabs go back ─▶ the root says its new layout
//! - **Rule** objects stay in place if a new value takes a slot as long as the old one's and a slab of them fits a transaction.
//!   Others become new objects, and the old slot keeps the new place until all pointers are changed
//! - **Rule** a slab's type says how far the migration got, so a call after a crash goes on: of the old type (nothing done), of
//!   [`Moving`] (slots in use are yet to be moved; in free ones the first word is the new place, or 0), or of the new type
//! - **Order** a phase begins when the one before is over; transactions are buffered, and what is recovered is a prefix of them.
//!   The root has neither layout meanwhile, so that no program takes a half-done pool for a whole one
//! - **Owner** the caller has the pool for itself
//! - **Not here** which types lead to which: `shapes`

mod shapes;
mod step;

use std::collections::HashMap;
use std::fmt;

use crate::Migrates;
use crate::catalog::MOVING;
use crate::error::{Error, Result};
use crate::layout::{Entry, SLAB_BYTES, slots};
use crate::lock::lock;
use crate::options::Durability;
use crate::persist::{Field, HASH_START, Persist, PointerField, TypeInfo, hash_bytes, hash_u64};
use crate::pool::Pool;
use crate::section::Held;
use crate::store::Store;
use crate::tx::{Tx, TxOptions};
use crate::view::root_words;
use shapes::Shapes;
use step::{Arrays, Step};

/// An object that a migration moves: the type of its slab in the directory meanwhile.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Moving<T>(T);

// SAFETY: the bytes of a T and no others.
unsafe impl<T: Persist> Persist for Moving<T> {
    const LAYOUT: u64 = hash_u64(hash_bytes(HASH_START, b"memlift.moving"), T::LAYOUT);
    const NAME: &'static str = MOVING;
    const FIELDS: &'static [Field] = &[];

    fn pointers(at: u64, each: &mut dyn FnMut(PointerField)) {
        T::pointers(at, each);
    }
}

/// A phase of a migration; phases follow each other in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// Old objects become new ones.
    Convert,
    /// Pointers get the new places.
    Link,
    /// Old slabs go back to the pool.
    Release,
}

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase that is under way.
    pub phase: Phase,
    /// Slabs of 16 KiB that are done in this phase.
    pub done: u64,
    /// Slabs that the phase has to look at.
    pub total: u64,
}

/// Result of one call of [`Pool::migrate`], without the work of interrupted earlier calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Migrated {
    /// Objects that were converted where they were.
    pub in_place: u64,
    /// Objects that were converted to another place.
    pub moved: u64,
    /// Arrays of either kind.
    pub arrays: u64,
    /// Pointers that got a new place.
    pub pointers: u64,
    /// Arrays of an old type that nothing pointed to, so that their length was not known: freed.
    pub dropped: u64,
    /// True if an earlier call was interrupted.
    pub resumed: bool,
}

/// Pairs of an old and a new type, for [`Pool::migrate`].
#[derive(Default)]
pub struct Migration<'a> {
    steps: Vec<Step>,
    named: Vec<TypeInfo>,
    progress: Option<Box<dyn FnMut(Progress) + 'a>>,
}

impl fmt::Debug for Migration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.iter().map(|one| one.name);
        f.debug_struct("Migration").field("named", &named.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl<'a> Migration<'a> {
    /// A migration that names no types yet.
    pub fn new() -> Migration<'a> {
        Migration::default()
    }

    /// Objects and arrays of `New::From` become those of `New`.
    #[must_use]
    pub fn to<New: Migrates>(mut self) -> Self {
        self.steps.push(Step::of::<New>());
        self.named.extend([TypeInfo::of::<New>(), TypeInfo::of::<New::From>()]);
        self
    }

    /// Names `T`, which stays as it is and whose pointers are followed. Types that a named one leads to need not be named.
    #[must_use]
    pub fn holds<T: Persist>(mut self) -> Self {
        self.named.push(TypeInfo::of::<T>());
        self
    }

    /// Sets a callback that gets the progress after each slab.
    #[must_use]
    pub fn progress(mut self, told: impl FnMut(Progress) + 'a) -> Self {
        self.progress = Some(Box::new(told));
        self
    }

    fn tell(&mut self, phase: Phase, done: u64, total: u64) {
        if let Some(told) = &mut self.progress {
            told(Progress { phase, done, total });
        }
    }
}

/// A slab or run of some type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub slab: u64,
    pub entry: Entry,
}

impl Home {
    /// Returns true if it is one object with slabs of its own.
    pub fn is_run(&self) -> bool {
        matches!(self.entry.state, Entry::RUN | Entry::SPAN)
    }

    /// Slots, and where the first one starts; a run is one.
    pub fn slots(&self) -> (u64, u64) {
        if self.is_run() {
            return (1, self.slab * SLAB_BYTES);
        }
        let (count, first) = slots(u64::from(self.entry.stride).max(16));
        (count, self.slab * SLAB_BYTES + first)
    }

    /// Bytes that an object has there.
    pub fn room(&self) -> u64 {
        if self.is_run() {
            return u64::from(self.entry.run) * SLAB_BYTES;
        }
        u64::from(self.entry.stride)
    }

    /// Starts of what is in use.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] when a page there is damaged.
    pub fn in_use(&self, store: &Store) -> Result<Vec<u64>> {
        store.verify(self.slab * SLAB_BYTES, self.entry.slabs() * SLAB_BYTES)?;
        let (count, first) = self.slots();
        let used = |slot: u64| {
            self.is_run() || store.image.word(self.slab * SLAB_BYTES + slot / 64 * 8) >> (slot % 64) & 1 == 1
        };
        Ok((0..count).filter(|slot| used(*slot)).map(|slot| first + slot * self.room()).collect())
    }

    /// The start of the slot that holds the byte at `offset`.
    pub fn start(&self, offset: u64) -> Option<u64> {
        let (count, first) = self.slots();
        let slot = offset.checked_sub(first)? / self.room().max(1);
        (slot < count).then(|| first + slot * self.room())
    }
}

/// Slabs and runs whose tag is one of these.
fn homes(store: &Store, wanted: impl Fn(u32) -> bool) -> Vec<Home> {
    let mut found = Vec::new();
    crate::heap::walk(&store.image, 0, store.image.len() / SLAB_BYTES, |slab, entry| {
        if matches!(entry.state, Entry::SLOTS | Entry::RUN | Entry::SPAN) && wanted(entry.tag) {
            found.push(Home { slab, entry });
        }
    });
    found
}

/// Where the byte at `offset` belongs to.
fn home_of(store: &Store, offset: u64) -> Option<Home> {
    let slab = offset / SLAB_BYTES;
    if offset >= store.image.len() {
        return None;
    }
    let span = crate::span::start_of(slab, |zone| store.image.is_body(zone), |one| store.image.entry(one));
    if let Some((slab, entry)) = span {
        return Some(Home { slab, entry });
    }
    if crate::layout::is_system(slab) {
        return None;
    }
    let entry = store.image.entry(slab);
    match entry.state {
        Entry::SLOTS | Entry::RUN => Some(Home { slab, entry }),
        Entry::RUN_REST => {
            let from = slab.saturating_sub(u64::from(entry.run));
            let first = (from..slab).rev().find(|one| store.image.entry(*one).state == Entry::RUN)?;
            Some(Home { slab: first, entry: store.image.entry(first) })
        }
        _ => None,
    }
}

impl Pool {
    /// Turns every object and array of an old type into one of the new type that `#[persist(from = Old)]` names, the root
    /// included. Without objects of an old type it does nothing and looks at the directory only, so programs call it whenever
    /// they open a pool.
    ///
    /// Where a new value takes a slot as long as the old one's (and a slab of them fits a transaction), objects stay where they
    /// are. Others are made anew, all pointers to them changed, and the old ones freed at the end, so both need room for a while.
    /// For that all types that hold pointers have to be known: those that are named, and what these lead to. Offsets that are
    /// kept as plain numbers are not seen.
    ///
    /// After a crash, or an error, the same call goes on where it was; until it has, [`View::root`](crate::View::root) refuses
    /// both layouts.
    ///
    /// ```
    /// use memlift_persist::{Migration, Options, PPtr, Persist, Pool, View};
    ///
    /// #[derive(Clone, Copy, Persist)]
    /// #[persist(name = "Point")] // what it was called in the file
    /// #[repr(C)]
    /// struct PointV1 {
    ///     x: u32,
    ///     y: u32,
    /// }
    ///
    /// #[derive(Clone, Copy, Persist)]
    /// #[persist(from = PointV1)]
    /// #[repr(C)]
    /// struct Point {
    ///     x: f64,
    ///     y: f64,
    ///     z: f64,
    /// }
    ///
    /// impl From<PointV1> for Point {
    ///     fn from(old: PointV1) -> Point {
    ///         Point { x: old.x.into(), y: old.y.into(), z: 0.0 }
    ///     }
    /// }
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("points.pool");
    /// # let mut pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
    /// # pool.tx(|t| { let root = t.alloc(PointV1 { x: 3, y: 4 })?; t.set_root(root) })?;
    /// pool.migrate(Migration::new().to::<Point>())?;
    /// let x = pool.read(|r| Ok::<_, memlift_persist::Error>(r.get(r.root::<Point>()?.unwrap())?.x))?;
    /// assert_eq!(x, 3.0);
    /// # Ok::<(), memlift_persist::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] when objects would move and there are types that may point to them and are not named; [`Error::Full`];
    /// [`Error::TooLarge`] when one object does not fit a lane; those of a transaction.
    pub fn migrate(&mut self, migration: Migration<'_>) -> Result<Migrated> {
        Run::new(self.store(), migration)?.run()
    }
}

/// A migration under way.
struct Run<'p, 'a> {
    store: &'p Store,
    migration: Migration<'a>,
    shapes: Shapes,
    did: Migrated,
}

impl<'p, 'a> Run<'p, 'a> {
    fn new(store: &'p Store, migration: Migration<'a>) -> Result<Run<'p, 'a>> {
        for (at, step) in migration.steps.iter().enumerate() {
            if migration.steps[..at].iter().any(|other| other.old.tag == step.old.tag) {
                let what = format!("two new types come from one {}: name one of them", step.old.name);
                return Err(Error::Argument { what });
            }
            if migration.steps.iter().any(|other| other.new.tag == step.old.tag) {
                let what = format!(
                    "{} is both what comes of a type and what another one comes from: migrate twice, the older step first",
                    step.old.name
                );
                return Err(Error::Argument { what });
            }
        }
        let shapes = Shapes::of(&migration.named);
        Ok(Run { store, migration, shapes, did: Migrated::default() })
    }

    fn run(mut self) -> Result<Migrated> {
        let store = self.store;
        let old = |tag: u32| self.migration.steps.iter().any(|step| step.is_old(tag));
        let moving = |tag: u32| self.migration.steps.iter().any(|step| step.is_moving(tag));
        let (_, root) = root_words(&store.image);
        let root_old = self.migration.steps.iter().any(|step| root == step.old.layout);
        let root_moving = self.migration.steps.iter().any(|step| root == step.moving.layout);
        let some_moving = !homes(store, moving).is_empty();
        if !root_old && !root_moving && !some_moving && homes(store, old).is_empty() {
            return Ok(self.did);
        }
        self.did.resumed = root_moving || some_moving;
        if some_moving || homes(store, old).iter().any(|home| !self.stays(home)) {
            let unknown = self.shapes.unknown(store);
            if !unknown.is_empty() {
                return Err(Error::Argument {
                    what: format!(
                        "objects of the migration have to move, and these types of the pool may point to them: {}. Name them with Migration::holds",
                        unknown.join(", ")
                    ),
                });
            }
        }
        self.mark_root(|step| step.old.layout, |step| step.moving.layout)?;
        self.convert()?;
        self.link()?;
        self.release()?;
        self.mark_root(|step| step.moving.layout, |step| step.new.layout)?;
        store.sync()?;
        Ok(self.did)
    }

    /// Returns true if what is there need not move.
    fn stays(&self, home: &Home) -> bool {
        let step = self.migration.steps.iter().find(|step| step.is_old(home.entry.tag));
        step.is_some_and(|step| step.stays(self.store, home))
    }

    /// Changes the root's layout, if it is one of those.
    fn mark_root(&self, from: impl Fn(&Step) -> u64, to: impl Fn(&Step) -> u64) -> Result<()> {
        let (offset, layout) = root_words(&self.store.image);
        let Some(step) = self.migration.steps.iter().find(|step| from(step) == layout) else { return Ok(()) };
        tx(self.store, |t| {
            (step.announce)(t)?;
            t.set_root_words(offset, to(step))
        })
    }

    fn convert(&mut self) -> Result<()> {
        let arrays = self.lengths()?;
        let steps = std::mem::take(&mut self.migration.steps);
        let of = |tag: u32| steps.iter().find(|step| step.is_old(tag) || step.is_moving(tag));
        let todo = homes(self.store, |tag| of(tag).is_some());
        let total = todo.len() as u64;
        for (at, home) in todo.into_iter().enumerate() {
            let step = of(home.entry.tag).expect("asked for");
            let context = step::Context { store: self.store, arrays: &arrays };
            (step.convert)(step, &context, home, &mut self.did)?;
            self.migration.tell(Phase::Convert, at as u64 + 1, total);
        }
        self.migration.steps = steps;
        Ok(())
    }

    /// How long arrays of an old type are: as far as any pointer to them says.
    fn lengths(&self) -> Result<Arrays> {
        let store = self.store;
        let mut arrays = Arrays::new();
        let step = |tag: u32| self.migration.steps.iter().find(|step| step.is_old_array(tag));
        if homes(store, |tag| step(tag).is_some()).is_empty() {
            return Ok(arrays);
        }
        for home in homes(store, |tag| self.shapes.points(tag)) {
            let fields = self.shapes.fields(&home);
            for start in home.in_use(store)? {
                for field in fields.of(start).filter(|field| field.array) {
                    let (offset, elements) = (store.image.word(field.at), store.image.word(field.at + 8));
                    let Some(target) = home_of(store, offset) else { continue };
                    let Some(step) = step(target.entry.tag) else { continue };
                    let Some(first) = target.start(offset) else { continue };
                    let end = elements.saturating_add((offset - first).div_ceil(step.old.bytes.max(1)));
                    if end <= target.room() / step.old.bytes.max(1) {
                        let known = arrays.entry(first).or_default();
                        *known = end.max(*known);
                    }
                }
            }
        }
        Ok(arrays)
    }

    /// The new place that a pointer leads to; None: its target stays.
    fn moved(&self, offset: u64, array: bool) -> Option<u64> {
        let home = home_of(self.store, offset)?;
        let steps = &self.migration.steps;
        let step = steps.iter().find(|step| step.is_moving(home.entry.tag))?;
        if (home.entry.tag == step.moving.array_tag) != array {
            return None;
        }
        let start = home.start(offset)?;
        let inside = offset - start;
        match self.store.image.word(start) {
            0 => Some(0),
            new if array => Some(new + inside / step.old.bytes * step.new.bytes),
            new if inside == 0 => Some(new),
            _ => None,
        }
    }

    fn link(&mut self) -> Result<()> {
        let store = self.store;
        let steps = &self.migration.steps;
        if homes(store, |tag| steps.iter().any(|step| step.is_moving(tag))).is_empty() {
            return Ok(());
        }
        let todo =
            homes(store, |tag| self.shapes.points(tag) && !steps.iter().any(|step| step.is_moving(tag)));
        let (total, most) = (todo.len() as u64, step::budget(store) / 256);
        for (at, home) in todo.into_iter().enumerate() {
            let fields = self.shapes.fields(&home);
            let mut words = Vec::new();
            for start in home.in_use(store)? {
                for field in fields.of(start) {
                    let offset = store.image.word(field.at);
                    if let Some(new) = self.moved(offset, field.array).filter(|_| offset != 0) {
                        if new == 0 && field.array {
                            words.push((field.at + 8, 0)); // first: without elements, any place will do
                        }
                        words.push((field.at, new));
                    }
                }
            }
            for some in words.chunks(most.max(2) as usize) {
                tx(store, |t| t.set_words(some))?;
            }
            self.did.pointers += words.len() as u64;
            self.migration.tell(Phase::Link, at as u64 + 1, total);
        }
        let (offset, layout) = root_words(&store.image);
        if let Some(new) = self.moved(offset, false) {
            tx(store, |t| t.set_root_words(new, layout))?;
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        let steps = std::mem::take(&mut self.migration.steps);
        let todo = homes(self.store, |tag| steps.iter().any(|step| step.is_moving(tag)));
        let total = todo.len() as u64;
        for (at, home) in todo.into_iter().enumerate() {
            tx(self.store, |t| t.give_slabs(home.slab))?;
            self.migration.tell(Phase::Release, at as u64 + 1, total);
        }
        self.migration.steps = steps;
        Ok(())
    }
}

/// A transaction of a migration.
fn tx<R>(store: &Store, work: impl FnOnce(&mut Tx<'_>) -> Result<R>) -> Result<R> {
    crate::tx::run(store, TxOptions { durability: Durability::Buffered, sections: None }, work)
}

/// A slab's free slots are looked for under another type, or not at all.
fn reshelve(store: &Store, home: &Home, to: Option<u32>) {
    let mut held = Held::lock(&store.sections, None);
    if let Some(section) = held.get(home.entry.section) {
        section.forget(home.slab, |offset| offset / SLAB_BYTES == home.slab);
        if let Some(tag) = to {
            section.shelf(tag, home.entry.stride).slabs.push(home.slab);
        }
    }
}

/// Types with objects: tag, and whether the catalog knows of pointers in them.
fn in_pool(store: &Store) -> HashMap<u32, u64> {
    let mut tags = HashMap::new();
    for home in homes(store, |_| true) {
        *tags.entry(home.entry.tag).or_insert(0) += 1;
    }
    tags
}

/// The types that the catalog lists.
fn catalog(store: &Store) -> crate::check::types::Types {
    crate::check::types::Types::new(lock(&store.catalog).records())
}
