// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replica of a pool that another process writes, or nobody: each segment is of a snapshot of that moment.
//!
//! - **Flow** is the header in the file another one than in the last segment? ─▶ the pool, opened for reading: beside its writer, or by itself
//!   ─▶ the sums of its pages beside those that the replica has ─▶ pages that differ are read ─▶ the pool is closed ─▶ they are sent
//! - **Rule** the writer is asked for one snapshot per segment, which lasts as long as reading does and not as long as sending. In between
//!   nobody has the pool open, so whoever wants to write it can
//! - **Not here** a process that writes the pool itself: [`Pool::replicate`], which knows what changes

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::place::{GoesOn, Place, Stop};
use super::ship::{Shipped, Shipper, living_writer};
use super::{ReplicaOptions, possible};
use crate::error::{Error, Result};
use crate::fresh::file_error;
use crate::medium::changed::ChangedPages;
use crate::options::Options;
use crate::pool::Pool;
use crate::recover::header_of;
use crate::replicated::{ReplicaStatus, Replicated};

/// Settings of a [`Follower`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FollowOptions {
    /// As for [`Pool::replicate`]; the caller waits between rounds.
    pub replica: ReplicaOptions,
    /// Attempts to reach the store before a round fails; None: without end.
    pub attempts: Option<u32>,
    /// Take the replica over from a process of this machine that is alive.
    pub take_over: bool,
}

/// A process that replicates a pool which it does not write.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    shipper: Shipper,
    replicated: Arc<Replicated>,
    /// Generation of the header of the closed pool that was read last.
    seen: Option<u64>,
}

fn open(path: &Path) -> Result<Pool> {
    let pool = Pool::open(path, &Options { read_only: true, ..Options::default() })?;
    possible(pool.shared_store())?;
    Ok(pool)
}

impl Follower {
    /// Claims the replica at `url` for the pool at `path`, and reads what it has. `goes_on` hears some ten times a second how far it is, also
    /// during [`Follower::round`], and ends everything by false.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] when a process has the pool open and lets nobody read it; [`Error::Argument`] when such a process replicates it to
    /// this place by itself; as [`Pool::replicate`]; [`Error::Aborted`] when `goes_on` said false.
    pub fn begin(
        path: impl AsRef<Path>,
        url: &str,
        options: &FollowOptions,
        goes_on: impl Fn(&ReplicaStatus) -> bool + Send + Sync + 'static,
    ) -> Result<Follower> {
        let path = path.as_ref().to_owned();
        let replicated = Arc::new(Replicated::of(&path));
        let theirs = Arc::clone(&replicated);
        let goes_on: GoesOn = Box::new(move || goes_on(&theirs.status()));
        let pool = open(&path)?;
        let place = Place::of(url, true, Stop::asking(goes_on))?;
        let store = pool.shared_store();
        if !options.take_over
            && let Some(process) = living_writer(&place, store)?
        {
            let what = format!(
                "process {process} of this machine, which is alive, writes the replica {} of this pool: end it first, or take the replica over (--take-over)",
                place.name()
            );
            return Err(Error::Argument { what });
        }
        let changed = Arc::new(ChangedPages::new(store.medium.len()));
        let ours = Arc::clone(&replicated);
        let mut shipper = Shipper::claim(place, store, ours, changed, options.replica, options.attempts)?;
        shipper.follow(store)?;
        drop(pool);
        shipper.resume()?;
        Ok(Follower { path, shipper, replicated, seen: None })
    }

    /// Ships what was committed since the last round; None: nothing was.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`]: another process has the replica; [`Error::InUse`], [`Error::SnapshotGone`]: try again later; as [`Pool::replicate`].
    pub fn round(&mut self) -> Result<Option<Shipped>> {
        let done = self.try_round();
        if let Err(error) = &done {
            self.replicated.fails(error);
        }
        done
    }

    fn try_round(&mut self) -> Result<Option<Shipped>> {
        // A pool that was closed is opened only if it is another one than last time: whoever wants to write it, finds it free.
        let file = File::open(&self.path).map_err(file_error("open", &self.path))?;
        let header = header_of(&file, &self.path)?;
        drop(file);
        if header.clean && self.seen == Some(header.generation) {
            self.shipper.nothing_new();
            return Ok(None);
        }
        let pool = open(&self.path)?;
        let header = pool.header();
        self.shipper.follow(pool.shared_store())?;
        let seen = (header.clean && !pool.is_beside()).then_some(header.generation);
        let shipped = self.shipper.ship(|| drop(pool))?;
        self.seen = seen;
        Ok(shipped)
    }

    /// How far it is.
    pub fn status(&self) -> ReplicaStatus {
        self.replicated.status()
    }
}
