// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pool: what users hold.
//!
//! - **Owner** a pool closes when it is dropped: what is buffered becomes durable, the log is applied, the header says clean
//! - **Not here** transactions (`tx`), files (`open`)

use std::path::Path;
use std::sync::Arc;

use crate::catalog::TypeRecord;
use crate::error::{Error, Result};
use crate::layout::Header;
use crate::lock::lock;
use crate::medium::{Counters, Guarantee, Medium};
use crate::open;
use crate::options::{Durability, Mechanism, Options};
use crate::persist::Persist;
use crate::readers::{self, Readers};
use crate::recover::Recovered;
use crate::section::Shared;
use crate::store::Store;
use crate::tx::overwrite::Overwrite;
use crate::tx::{self, Tx, TxOptions};
use crate::view::{TakenBits, View, locate, prefetch_place, root_words};

/// A typed heap in a file.
///
/// ```
/// use memlift_persist::{Options, PPtr, Persist, Pool, View};
///
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Counter {
///     value: u64,
/// }
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("counter.pool");
/// let pool = Pool::create(&path, &Options { heap_bytes: 1 << 20, ..Options::default() })?;
/// pool.tx(|t| {
///     let root = t.root_or(|_| Ok(Counter { value: 0 }))?;
///     t.get_mut(root)?.value += 1;
///     Ok(())
/// })?;
/// let value = pool.read(|r| Ok(r.get(r.root::<Counter>()?.unwrap())?.value))?;
/// assert_eq!(value, 1);
/// # Ok::<(), memlift_persist::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    store: Arc<Store>,
    recovered: Recovered,
}

impl Pool {
    /// Creates a pool and opens it. A crash meanwhile leaves a whole pool or none.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::File`]; [`Error::Argument`] for options that make no sense.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Pool> {
        open::create(path.as_ref(), options)?;
        Pool::open(path, options)
    }

    /// Opens a pool and recovers it. Sizes, mechanism and sections are those that it was created with.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`], [`Error::NotAPool`], [`Error::Version`], [`Error::Feature`], [`Error::Corrupt`], [`Error::File`].
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Pool> {
        let pool = Pool::of_files(open::open(path.as_ref(), options)?);
        pool.let_read(path.as_ref())?;
        Ok(pool)
    }

    /// Opens it, or creates it when there is no file.
    ///
    /// # Errors
    ///
    /// As [`Pool::open`] and [`Pool::create`].
    pub fn open_or_create(path: impl AsRef<Path>, options: &Options) -> Result<Pool> {
        match Pool::create(path.as_ref(), options) {
            Err(Error::Exists { .. }) => Pool::open(path, options),
            other => other,
        }
    }

    /// Runs a transaction that locks the whole pool and is durable when this returns. An error or a panic in `work` undoes
    /// everything.
    ///
    /// # Errors
    ///
    /// The error that `work` returns; [`Error::Full`], [`Error::TooLarge`], [`Error::Stopped`] of the commit.
    #[inline]
    pub fn tx<R, E: From<Error>>(&self, work: impl FnOnce(&mut Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        tx::run(&self.store, TxOptions::default(), work)
    }

    /// Runs a transaction with another durability, or on some sections only.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    #[inline]
    pub fn tx_with<R, E: From<Error>>(
        &self,
        options: TxOptions<'_>,
        work: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        tx::run(&self.store, options, work)
    }

    /// Overwrites parts of arrays, all of them or none. It does what a transaction does that writes them, and in a checkpoint or shadow
    /// pool in less time: nothing is saved for an abort, and nothing is compared, so every line of the parts is logged.
    ///
    /// # Errors
    ///
    /// [`Error::Pointer`] when a part does not lie in its array, which then is of another type or shorter; as [`Pool::tx`].
    #[inline]
    pub fn overwrite<T: Persist>(&self, parts: &[Overwrite<'_, T>], durability: Durability) -> Result<()> {
        tx::overwrite::run(&self.store, parts, durability)
    }

    /// Reads, with all sections locked for reading.
    ///
    /// # Errors
    ///
    /// The error that `work` returns; [`Error::Stopped`].
    #[inline]
    pub fn read<R, E: From<Error>>(&self, work: impl FnOnce(&Reader<'_>) -> Result<R, E>) -> Result<R, E> {
        self.store.running()?;
        let done = work(&Reader { store: &self.store, held: Shared::lock(&self.store.sections, None) });
        self.store.running()?; // what was read is what the file has
        done
    }

    /// Reads objects of some sections.
    ///
    /// # Errors
    ///
    /// As [`Pool::read`].
    pub fn read_in<R, E: From<Error>>(
        &self,
        sections: &[u16],
        work: impl FnOnce(&Reader<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.store.running()?;
        let held = Shared::lock(&self.store.sections, Some(sections));
        let done = work(&Reader { store: &self.store, held });
        self.store.running()?;
        done
    }

    /// Makes everything durable that was committed before, buffered transactions included.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the disk fails.
    pub fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    /// Brings everything that is in the log to its place, now.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the disk fails.
    pub fn apply(&self) -> Result<()> {
        self.store.sync()?;
        self.store.apply_all()
    }

    /// The crashes that acknowledged transactions survive on this machine.
    pub fn guarantee(&self) -> Guarantee {
        self.store.medium.guarantee()
    }

    /// Result of the recovery when the pool was opened.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// How transactions are made durable.
    pub fn mechanism(&self) -> Mechanism {
        self.store.mechanism
    }

    /// The header as it is in the file.
    pub fn header(&self) -> Header {
        *lock(&self.store.header)
    }

    /// Fences, bytes and lines that commits asked for since the pool was opened; the applier's are [`Pool::applier_counters`].
    pub fn counters(&self) -> Counters {
        self.store.counters()
    }

    /// As [`Pool::counters`], for the applier.
    pub fn applier_counters(&self) -> Counters {
        lock(&self.store.applier).counters
    }

    /// Types whose objects are, or were, in this pool.
    pub fn types(&self) -> Vec<TypeRecord> {
        lock(&self.store.catalog).records().to_vec()
    }

    /// Closes the pool as a drop does, but returns the error.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the disk fails. What was acknowledged is in the log and comes back at the next open.
    pub fn close(self) -> Result<()> {
        self.finish()
    }

    /// Lets readers in other processes come, if that is wanted.
    fn let_read(&self, path: &Path) -> Result<()> {
        if let Medium::Mapped(mapped) = &self.store.medium
            && let Some(old) = mapped.old_pages()
        {
            let store = Arc::downgrade(&self.store);
            let snapshot: readers::Snapshot =
                Box::new(move |places, old| Some(store.upgrade()?.snapshot(places, old)));
            let readers = Readers::start(snapshot, Arc::clone(old), mapped.file(), path)?;
            let _ = self.store.readers.set(readers); // once
        }
        Ok(())
    }

    /// Returns true if it is a snapshot of a pool that is open for writing elsewhere.
    pub fn is_beside(&self) -> bool {
        self.store.medium.is_beside()
    }

    /// Sees what other processes have committed since: a pool that was opened for reading, beside the process that writes it, gets a new
    /// snapshot. One that is nobody's, or this process's own, stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotGone`] when nobody writes the pool any more, and as [`Pool::open`]. The pool stays as it was.
    pub fn refresh(&mut self) -> Result<()> {
        if let Some(store) = Arc::get_mut(&mut self.store).filter(|store| store.medium.is_beside()) {
            match store.renew() {
                // It has grown beyond the addresses that are kept for it here; or perhaps there is a new writer.
                Err(Error::Full { .. } | Error::SnapshotGone { .. }) => {}
                renewed => return renewed,
            }
        }
        if let Some(newer) = self.newer()? {
            *self = newer;
        }
        Ok(())
    }

    /// A newer snapshot; None: this pool is none.
    pub(crate) fn newer(&self) -> Result<Option<Pool>> {
        let Medium::Mapped(mapped) = &self.store.medium else { return Ok(None) };
        if !mapped.is_beside() {
            return Ok(None);
        }
        match open::open_beside(mapped.path(), &self.store.options) {
            Err(Error::InUse { .. }) => {
                Err(Error::SnapshotGone { why: "no process that lets others read has the pool open" })
            }
            parts => parts.map(|parts| Some(Pool::of_files(parts))),
        }
    }

    fn finish(&self) -> Result<()> {
        self.store.flush_thread.stop();
        self.store.apply_thread.stop();
        if let Some(readers) = self.store.readers.get() {
            readers.stop();
        }
        if self.store.options.read_only {
            return Ok(());
        }
        self.store.running()?;
        self.store.sync()?;
        self.store.apply_all()?;
        let mut header = lock(&self.store.header);
        header.clean = true;
        header.generation += 1;
        let written = self.store.medium.write_header(&header, &mut Counters::default());
        self.store.intact(written)
    }

    /// The store, for handles that keep transactions open across calls (`raw`).
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The store, for a thread that may outlive the pool.
    #[cfg(feature = "replicate")]
    pub(crate) fn shared_store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A pool without threads: buffered transactions wait until a call makes them durable.
    pub(crate) fn from_parts((store, recovered): (Store, Recovered)) -> Pool {
        Pool { store: Arc::new(store), recovered }
    }

    /// A pool whose threads make buffered transactions durable, and apply the log if its options say so.
    pub(crate) fn of_files(parts: (Store, Recovered)) -> Pool {
        let pool = Pool::from_parts(parts);
        if !pool.store.options.read_only {
            // The threads hold the store while they work only. An error stops the pool, and callers get it from there.
            let store = Arc::downgrade(&pool.store);
            pool.store.flush_thread.bind(move || {
                let Some(store) = store.upgrade() else { return false };
                store.flush_thread.disarm();
                let _ = store.sync();
                true
            });
            let store = Arc::downgrade(&pool.store);
            pool.store.apply_thread.bind(move || {
                let Some(store) = store.upgrade() else { return false };
                let _ = store.apply_so_far();
                store.apply_thread.disarm();
                true
            });
        }
        pool
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !lock(&self.store.header).clean {
            let _ = self.finish(); // what was acknowledged is in the log
        }
    }
}

/// Reads objects, which nobody changes meanwhile. See [`Pool::read`].
#[derive(Debug)]
pub struct Reader<'p> {
    store: &'p Store,
    held: Shared<'p>,
}

impl View for Reader<'_> {
    #[inline]
    fn find(&self, offset: u64, bytes: u64, align: u64, tag: u32, name: &'static str) -> Result<*const u8> {
        let has = |section| self.held.has(section);
        let place = locate(self.store, offset, bytes, align, tag, has, name)?;
        Ok(self.store.image.at(place.offset))
    }

    #[inline]
    fn read_soon(&self, offset: u64, bytes: usize) {
        prefetch_place(&self.store.image, offset, bytes);
    }

    #[inline]
    fn taken_bits(&self) -> Option<TakenBits<'_>> {
        Some(TakenBits(&self.store.image))
    }

    fn root_words(&self) -> (u64, u64) {
        root_words(&self.store.image)
    }

    #[inline]
    fn heap_bytes(&self) -> u64 {
        self.store.image.len()
    }
}
