// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A replica of a pool in an object store, a moment behind the pool: it survives the loss of the disk.
//!
//! A *replica* is a set of objects under a URL. It consists of numbered *segments*. Each segment completes the pool's state of one moment: a
//! *snapshot* has all pages in use, and a segment of *changes* has the pages that changed since the segment before.
//!
//! - **Flow** [`Pool::replicate`] starts a thread that ships changes (`ship`), [`Follower`] ships a pool that it does not write ─▶ objects in
//!   the store (`format`, `place`) ─▶ [`history`] says what is there, [`restore`] makes a pool of it, as it was at a moment
//! - **Owner** two processes never mix their segments: the later one to claim the replica has it, and the other one gets [`Error::Fenced`]
//! - **Not here** a copy in a file: [`Pool::backup`]. Undo and shadow pools, and pools of several files

mod chain;
mod follow;
mod format;
mod history;
mod place;
mod restore;
mod scratch;
mod ship;
mod utc;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fresh::file_error;
use crate::lock::lock;
use crate::medium::changed::ChangedPages;
use crate::medium::{Mapped, Medium};
use crate::options::Mechanism;
use crate::pool::Pool;
pub use crate::replicated::ReplicaStatus;
use crate::replicated::Replicated;
use crate::store::Store;
pub use follow::{FollowOptions, Follower};
pub use history::{History, Stretch, Writer, history};
use place::{Place, Stop};
pub use restore::{Fetched, Restored, restore, restore_watched};
pub use ship::Shipped;
use ship::Shipper;
pub use utc::{parse_utc, utc};

/// Attempts to reach the store of a pool that is shipped once.
const ATTEMPTS: u32 = 5;
/// A failure that is not the store's is tried again after this.
const PAUSE: Duration = Duration::from_secs(5);

/// Settings of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaOptions {
    /// A commit is shipped at the latest so long after the segment before it.
    pub interval: Duration,
    /// A restore is possible to any moment of this past time. What is older is removed.
    pub retain: Duration,
}

impl Default for ReplicaOptions {
    fn default() -> ReplicaOptions {
        ReplicaOptions { interval: Duration::from_secs(1), retain: Duration::from_secs(24 * 3600) }
    }
}

/// The thread that ships a pool to its replica; it ends when this is dropped. Drop it before the pool.
#[derive(Debug)]
pub struct Replication {
    store: Weak<Store>,
    replicated: Arc<Replicated>,
    stop: Arc<Stop>,
    handle: Option<JoinHandle<()>>,
    process: u32,
}

impl Pool {
    /// Starts to ship the pool to a replica: `s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH` (keys and settings come from
    /// the environment) or a folder. The replica is made, or taken over from whoever wrote it, before this returns; pages follow.
    ///
    /// A replica that has this pool already gets only pages that differ.
    ///
    /// # Errors
    ///
    /// [`Error::ReplicaStore`] when the store cannot be used; [`Error::Replica`] when its last segment is damaged; [`Error::Argument`] for the
    /// replica of another pool, an undo or shadow pool, a pool of several files, and one that is replicated already; [`Error::ReadOnly`].
    pub fn replicate(&self, url: &str, options: &ReplicaOptions) -> Result<Replication> {
        self.begin(url, options, Stop::default())
    }

    /// As [`Pool::replicate`]; until that returns, `goes_on` is asked some ten times a second, and ends it by false.
    ///
    /// # Errors
    ///
    /// As [`Pool::replicate`]; [`Error::Aborted`] when `goes_on` said false.
    pub fn replicate_watched(
        &self,
        url: &str,
        options: &ReplicaOptions,
        goes_on: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Replication> {
        let begun = Arc::new(AtomicBool::new(false));
        let has_begun = Arc::clone(&begun);
        let asks = move || has_begun.load(Ordering::Acquire) || goes_on();
        let replication = self.begin(url, options, Stop::asking(Box::new(asks)));
        begun.store(true, Ordering::Release);
        replication
    }

    fn begin(&self, url: &str, options: &ReplicaOptions, stop: Stop) -> Result<Replication> {
        let store = self.shared_store();
        if store.options.read_only {
            return Err(Error::ReadOnly);
        }
        possible(store)?;
        let place = Place::of(url, true, stop)?;
        let replicated = register(store)?;
        let claimed = watch(store).and_then(|changed| {
            Shipper::claim(place, store, Arc::clone(&replicated), changed, *options, None)
        });
        let shipper = claimed.inspect_err(|error| {
            replicated.end(error.to_string());
            lock(&store.replicated).take();
        })?;
        let stop = Arc::clone(&shipper.place().stop);
        let (theirs, interval) = (Arc::clone(&replicated), options.interval);
        let handle = std::thread::Builder::new()
            .name("memlift-replica".to_owned())
            .spawn(move || run(shipper, &theirs, interval))
            .map_err(file_error("start the replicator of", &store.medium.paths()[0]))
            .inspect_err(|error| replicated.end(error.to_string()))?;
        let (store, process) = (Arc::downgrade(store), std::process::id());
        Ok(Replication { store, replicated, stop, handle: Some(handle), process })
    }

    /// Ships the pool as it is, once: for a pool that nobody writes, which may be open for reading only. One that another process writes is a
    /// [`Follower`]'s.
    ///
    /// # Errors
    ///
    /// As [`Pool::replicate`]; [`Error::Corrupt`] for a damaged page; [`Error::InUse`] for a pool that another process has open: that one
    /// ships it.
    pub fn replicate_once(&self, url: &str, options: &ReplicaOptions) -> Result<Shipped> {
        let store = self.shared_store();
        possible(store)?;
        if self.is_beside() {
            return Err(Error::InUse { path: store.medium.paths().remove(0) });
        }
        let place = Place::of(url, true, Stop::default())?;
        if store.options.read_only {
            let changed = Arc::new(ChangedPages::new(store.medium.len()));
            return once(store, place, Arc::default(), changed, *options);
        }
        let replicated = register(store)?;
        let changed = watch(store);
        let shipped =
            changed.and_then(|changed| once(store, place, Arc::clone(&replicated), changed, *options));
        replicated.stop();
        replicated.end("the pool was replicated once".to_owned());
        shipped
    }
}

fn once(
    store: &Arc<Store>,
    place: Place,
    replicated: Arc<Replicated>,
    changed: Arc<ChangedPages>,
    options: ReplicaOptions,
) -> Result<Shipped> {
    let mut shipper = Shipper::claim(place, store, replicated, changed, options, Some(ATTEMPTS))?;
    shipper.resume()?;
    let shipped = shipper.ship(|| ())?;
    shipped.ok_or_else(|| Error::Argument { what: "the first segment is never empty".to_owned() })
}

/// Makes the pool's replicator known; there is one at a time.
fn register(store: &Store) -> Result<Arc<Replicated>> {
    let mut slot = lock(&store.replicated);
    if slot.as_ref().is_some_and(|before| before.ended().is_none()) {
        let what = "the pool has a replica already: end that replication first";
        return Err(Error::Argument { what: what.to_owned() });
    }
    let path = store.medium.paths().into_iter().next().unwrap_or_default();
    Ok(Arc::clone(slot.insert(Arc::new(Replicated::of(&path)))))
}

fn possible(store: &Store) -> Result<&Mapped> {
    if let (Mechanism::Redo | Mechanism::Checkpoint, Medium::Mapped(mapped)) =
        (store.mechanism, &store.medium)
    {
        return Ok(mapped);
    }
    let what = "only redo and checkpoint pools in one file can be replicated: see `memlift pool convert`";
    Err(Error::Argument { what: what.to_owned() })
}

/// Marks pages that are stored to from now on.
fn watch(store: &Store) -> Result<Arc<ChangedPages>> {
    let _applier = lock(&store.applier);
    possible(store).map(Mapped::watch_changes)
}

/// Ships until it is told to end, or fenced, or the pool is gone.
fn run(mut shipper: Shipper, replicated: &Replicated, interval: Duration) {
    let mut resumed = false;
    loop {
        let started = Instant::now();
        let shipped = if resumed { Ok(()) } else { shipper.resume() }.and_then(|()| {
            resumed = true;
            shipper.ship(|| ())
        });
        let next = match shipped {
            Ok(_) => started + interval,
            Err(error @ (Error::Fenced { .. } | Error::Aborted(_) | Error::Stopped { .. })) => {
                return replicated.end(error.to_string());
            }
            Err(error) => {
                replicated.fails(&error);
                Instant::now() + PAUSE
            }
        };
        if !replicated.next(next) {
            return replicated.end("replication was ended".to_owned());
        }
    }
}

impl Replication {
    /// Reason that nothing was shipped lately; None: the replica is no further behind than the interval and the store's own time.
    pub fn trouble(&self) -> Option<String> {
        self.replicated.trouble()
    }

    /// Reason that nothing will be shipped any more: another process has the replica, or the pool's disk failed.
    pub fn ended(&self) -> Option<String> {
        self.replicated.ended()
    }

    /// How far the replica is.
    pub fn status(&self) -> ReplicaStatus {
        let committed = self.store.upgrade().map(|store| store.sequence.load(Ordering::Acquire));
        ReplicaStatus { committed, ..self.replicated.status() }
    }

    /// Waits until the replica has everything that was committed before, and no longer than `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::NotReplicated`] with the reason; [`Error::Stopped`].
    pub fn wait(&self, patience: Duration) -> Result<()> {
        let Some(store) = self.store.upgrade() else { return Ok(()) };
        store.sync()?;
        let sequence = store.sequence.load(Ordering::Acquire);
        drop(store);
        self.replicated.wait(sequence, patience)
    }

    /// As [`Replication::wait`], and ends the thread.
    ///
    /// # Errors
    ///
    /// As [`Replication::wait`]; the thread is ended in any case.
    pub fn finish(self, patience: Duration) -> Result<()> {
        self.wait(patience)
    }
}

impl Drop for Replication {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // in a forked child there is no thread
        }
        self.replicated.stop();
        self.stop.set();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join(); // it does not panic
        }
    }
}
