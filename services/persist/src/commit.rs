// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making a transaction durable: one record, one fence.
//!
//! - **Flow** redo, lines, Sync: room in the own lane ─▶ record built in the mirror ─▶ sequence ─▶ log ─▶ fence ─▶ published.
//!   Group, Buffered, and every commit where hardening is a sync: record appended to the shared lane's mirror; the
//!   first commit that waits writes everything that is there and hardens once, for all
//! - **Order** a Sync commit holds its sections through the fence, so a dependent transaction begins after it is durable. Commits
//!   of the shared lane release their sections earlier; a dependent transaction that commits to its own lane flushes the
//!   shared lane first. So what is recovered is closed under dependency
//! - **Rule** room is found before a sequence is taken: a sequence that was given out is published, so the applier meets no gap
//!   that stays
//! - **Source** NearPM §4 (the log is engine-managed memory, it may persist late)
//! - **Not here** the leader that hardens the shared lane: `group` · copying to its place: `apply`

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::far_record::{self, Far};
use crate::lane::Lane;
use crate::layout::SLAB_BYTES;
use crate::lock::lock;
use crate::medium::Counters;
use crate::options::{Durability, Mechanism};
use crate::record::{self, Builder};
use crate::store::Store;
use crate::writes::{Touched, Writes};
use memlift_ground::observe::{self, Work};
use memlift_spec::formats::trace::Kind;

/// New objects from this size on are stored to their place and not through the log.
pub(crate) const LARGE_BYTES: u32 = SLAB_BYTES as u32;

/// Returns true if a range goes to its place and not through the log.
#[inline]
fn large(touched: &Touched) -> bool {
    touched.saved == Touched::FRESH && touched.bytes >= LARGE_BYTES
}

/// Where a commit ended up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Committed {
    /// Durable already, or nothing was changed.
    Durable,
    /// Durable when the shared lane is up to this position.
    At(u64),
    /// Durable with the checkpoint that holds this mark.
    Marked(u64),
}

/// A commit in the trace of `memlift record`: its start and its size.
pub(crate) struct Watched {
    began_ns: u64,
    mechanism: Mechanism,
    ranges: u64,
    bytes: u64,
}

impl Watched {
    /// Returns None if nobody records, or nothing was written.
    #[inline(always)]
    pub fn begin(store: &Store, writes: &Writes) -> Option<Watched> {
        observe::work_begins().and_then(|began_ns| Watched::measure(began_ns, store, writes))
    }

    /// As [`Watched::begin`], of as many ranges and bytes as `size` returns.
    #[inline(always)]
    pub fn start(store: &Store, size: impl FnOnce() -> (u64, u64)) -> Option<Watched> {
        let began_ns = observe::work_begins()?;
        let (ranges, bytes) = size();
        Some(Watched { began_ns, mechanism: store.mechanism, ranges, bytes })
    }

    #[cold]
    fn measure(began_ns: u64, store: &Store, writes: &Writes) -> Option<Watched> {
        if writes.is_empty() {
            return None;
        }
        let (ranges, bytes) = writes.size();
        Some(Watched { began_ns, mechanism: store.mechanism, ranges, bytes })
    }

    /// Records the end: the commit is as durable as was asked for.
    pub fn end(&self) {
        let work = Work {
            kind: Kind::Commit,
            parameter: self.mechanism as u32,
            read: self.bytes,
            written: self.bytes,
            parts: self.ranges,
        };
        observe::work(self.began_ns, &work);
    }
}

impl Store {
    /// Returns true if commits of this durability go to the shared lane.
    pub fn shares(&self, durability: Durability) -> bool {
        self.mechanism == Mechanism::Redo && (self.medium.pages() || durability != Durability::Sync)
    }

    /// Commits what `writes` holds, with the sections still held. `lane` is the caller's.
    ///
    /// The path of every commit is one function. A call saves registers to memory, the next fence waits for these stores, and the
    /// core's store buffer is small.
    #[inline]
    pub fn commit(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        durability: Durability,
    ) -> Result<Committed> {
        self.running()?;
        if writes.is_empty() {
            return Ok(Committed::Durable);
        }
        self.mark_private(writes);
        if self.mechanism == Mechanism::Redo && !self.shares(durability) && !writes.touched.iter().any(large)
        {
            return self.commit_own(lane, writes).map(|()| Committed::Durable);
        }
        self.commit_otherwise(lane, writes, durability)
    }

    #[inline(never)]
    fn commit_otherwise(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        durability: Durability,
    ) -> Result<Committed> {
        self.store_large(writes)?;
        match self.mechanism {
            Mechanism::Redo if self.shares(durability) => self.commit_shared(writes),
            Mechanism::Redo => self.commit_own(lane, writes).map(|()| Committed::Durable),
            Mechanism::Undo => self.commit_undo(lane, writes).map(|()| Committed::Durable),
            Mechanism::Checkpoint | Mechanism::Shadow => self.commit_pages(lane, writes, durability),
        }
    }

    /// Stores new objects of many slabs to their place and makes them durable, before the record that makes them known. Nobody
    /// can see their place until then, so they need no log. Older records for their slabs are applied first: they must not
    /// come after.
    fn store_large(&self, writes: &mut Writes) -> Result<()> {
        if self.mechanism != Mechanism::Redo || !writes.touched.iter().any(large) {
            return Ok(());
        }
        self.apply_all()?;
        let stored = (|| {
            for touched in writes.touched.iter().filter(|touched| large(touched)) {
                let place = self.heap_start + touched.offset;
                let bytes = self.image.bytes(touched.offset, u64::from(touched.bytes));
                self.medium.store(place, bytes, &mut writes.counters)?;
                self.medium.write_back(place, u64::from(touched.bytes), &mut writes.counters);
            }
            self.medium.harden(&mut writes.counters)
        })();
        stored.map_err(|error| self.stop(error))?;
        writes.touched.retain(|touched| !large(touched));
        Ok(())
    }

    /// Returns true if commits are by pages: then every transaction locks all sections.
    pub fn by_pages(&self) -> bool {
        matches!(self.mechanism, Mechanism::Checkpoint | Mechanism::Shadow)
    }

    /// Makes everything that is committed durable. The caller holds no section.
    pub fn sync(&self) -> Result<()> {
        self.running()?;
        if self.by_pages() {
            self.checkpoint(u64::MAX)?;
        }
        self.flush(u64::MAX)
    }

    fn fits(&self, capacity: u64, bound: u64) -> Result<()> {
        if bound > capacity / 2 {
            return Err(Error::TooLarge { bytes: bound, lane_bytes: capacity });
        }
        Ok(())
    }

    /// Where in its own lane a record of up to `bound` bytes goes.
    #[inline(always)]
    pub fn room(&self, lane: &Lane<Writes>, tail: u64, bound: u64, counters: &mut Counters) -> Result<u64> {
        match lane.room(tail, bound) {
            Some(at) if at == tail && bound <= lane.capacity / 2 && lane.is_allocated(at, bound) => Ok(at),
            _ => self.make_room(lane, tail, bound, counters),
        }
    }

    /// Allocates blocks in the file for a record that goes to `position` of a lane, and for a WRAP at `tail`, where that was not
    /// done before.
    ///
    /// # Errors
    ///
    /// The file system's, when the disk is full. Nothing was written to the log.
    #[inline]
    pub fn allocate<S>(&self, lane: &Lane<S>, tail: u64, position: u64, bytes: u64) -> Result<()> {
        if lane.is_allocated(position, bytes) && lane.is_allocated(tail, 64) {
            return Ok(());
        }
        for (offset, bytes) in lane.unallocated(tail, position, bytes) {
            self.medium.allocate(offset, bytes)?;
            lane.set_allocated(offset);
        }
        Ok(())
    }

    /// Room for a record where the ring has none now, or wraps.
    #[cold]
    #[inline(never)]
    fn make_room(&self, lane: &Lane<Writes>, tail: u64, bound: u64, counters: &mut Counters) -> Result<u64> {
        self.fits(lane.capacity, bound)?;
        let at = loop {
            match lane.room(tail, bound) {
                Some(at) => break at,
                None => {
                    self.flush(u64::MAX)?;
                    self.apply()?;
                }
            }
        };
        self.allocate(lane, tail, at, bound)?;
        if at != tail {
            let skip = lane.free(tail, 64);
            record::wrap(skip, tail);
            record::seal(skip, self.salts[lane.index as usize]);
            self.medium.append(lane.offset(tail), skip, counters).map_err(|error| self.stop(error))?;
        }
        Ok(at)
    }

    #[inline(always)]
    fn commit_own(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        if self.shared.unflushed.load(Ordering::Acquire) != 0 {
            self.flush(u64::MAX)?;
        }
        let (ranges, bytes) = writes.size();
        let bound = record::bound(ranges, bytes);
        if bound > lane.capacity / 2 {
            return self.commit_far(lane, writes);
        }
        let tail = lane.tail();
        let at = self.room(lane, tail, bound, &mut writes.counters)?;
        let target = lane.free(at, bound);
        // A WRAP before it is not published: nothing made it durable, and no later record may claim it.
        let Some(built) = self.build(writes, target) else { return Ok(()) };
        self.harden_own(lane, writes, &mut target[..built.bytes as usize], built, at)?;
        self.relieve(lane.tail() - lane.head(), lane.capacity)
    }

    /// Commits what its lane does not take.
    #[cold]
    #[inline(never)]
    fn commit_far(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        let far = self.store_far(writes)?;
        if far.is_empty() {
            return Ok(());
        }
        let committed = (|| {
            let (bound, tail) = (far_record::bound(&far), lane.tail());
            let at = self.room(lane, tail, bound, &mut writes.counters)?;
            let target = lane.free(at, bound);
            let built = far_record::build(&far, target);
            self.harden_own(lane, writes, &mut target[..built.bytes as usize], built, at)
        })();
        if let Err(error) = committed {
            self.give_far(&far);
            return Err(error);
        }
        self.apply() // so the slabs are free again
    }

    /// Makes the record that was built at `at` of the caller's own lane durable, with one fence.
    #[inline(always)]
    pub(crate) fn harden_own(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        record: &mut [u8],
        built: record::Built,
        at: u64,
    ) -> Result<()> {
        writes.sequence = self.next_sequence();
        record::place(record, built, at, writes.sequence, lane.tail());
        let salt = self.salts[lane.index as usize];
        let appended = self.medium.append_record(lane.offset(at), record, salt, &mut writes.counters);
        self.harden_appended(lane, writes, appended, at + built.bytes)
    }

    /// Makes what was appended to the caller's own lane up to `end` durable, with one fence.
    #[inline(always)]
    pub(crate) fn harden_appended(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        appended: Result<()>,
        end: u64,
    ) -> Result<()> {
        appended
            .and_then(|()| self.medium.harden_log(&mut writes.counters))
            .map_err(|error| self.stop(error))?;
        lane.publish(end);
        Ok(())
    }

    /// The record of what changed; None when nothing did.
    #[inline(always)]
    fn build(&self, writes: &Writes, target: &mut [u8]) -> Option<record::Built> {
        let mut builder = Builder::ranges(target);
        for touched in &writes.touched {
            let now = self.image.words(touched.offset, u64::from(touched.bytes));
            match writes.before(touched) {
                Some(before) => builder.changed(touched.offset, before, now),
                None => builder.range_of(touched.offset, now),
            }
        }
        for (slab, _) in &writes.entries {
            builder.range(crate::layout::Entry::offset(*slab), &self.image.entry(*slab).words());
        }
        (!builder.is_empty()).then(|| builder.finish())
    }

    fn commit_shared(&self, writes: &mut Writes) -> Result<Committed> {
        let (ranges, bytes) = writes.size();
        let bound = record::bound(ranges, bytes);
        if bound <= self.shared.lane.capacity / 2 {
            return self.append_shared(writes, bound, None);
        }
        let far = self.store_far(writes)?;
        if far.is_empty() {
            return Ok(Committed::Durable);
        }
        let committed = self.append_shared(writes, far_record::bound(&far), Some(&far));
        if committed.is_err() {
            self.give_far(&far);
        } else {
            self.flush(u64::MAX)?;
            self.apply()?; // so the slabs are free again
        }
        committed
    }

    /// Appends a record of up to `bound` bytes to the shared lane: of what changed, or of where that is.
    fn append_shared(&self, writes: &mut Writes, bound: u64, far: Option<&[Far]>) -> Result<Committed> {
        let lane = &self.shared.lane;
        self.fits(lane.capacity, bound)?;
        let mut state = lock(&self.shared.state);
        let at = loop {
            match lane.room(state.appended, bound) {
                Some(at) => break at,
                None => {
                    drop(state);
                    self.flush(u64::MAX)?;
                    self.apply()?;
                    state = lock(&self.shared.state);
                }
            }
        };
        self.allocate(lane, state.appended, at, bound)?;
        let salt = self.salts[0];
        if at != state.appended {
            let skip = lane.free(state.appended, 64);
            record::wrap(skip, state.appended);
            record::seal(skip, salt);
        }
        let target = lane.free(at, bound);
        let built = match far {
            Some(far) => Some(far_record::build(far, target)),
            None => self.build(writes, target),
        };
        let Some(built) = built else {
            return Ok(Committed::Durable);
        };
        let record = &mut target[..built.bytes as usize];
        writes.sequence = self.next_sequence();
        record::place(record, built, at, writes.sequence, state.durable);
        record::seal(record, salt);
        self.shared.unflushed.fetch_add(at + built.bytes - state.appended, Ordering::AcqRel);
        state.appended = at + built.bytes;
        Ok(Committed::At(state.appended))
    }

    /// Has the log applied when a lane is half full: by the pool's own thread with [`Options::apply_behind`](crate::Options::apply_behind),
    /// or here.
    #[inline(always)]
    pub fn relieve(&self, used: u64, capacity: u64) -> Result<()> {
        if used > capacity / 2 {
            return self.relieve_now();
        }
        Ok(())
    }
}

impl Store {
    #[cold]
    fn relieve_now(&self) -> Result<()> {
        // A shadow pool's page table has a lock that is cheap for one thread only, the one that commits.
        let behind = self.options.apply_behind && self.shadow.is_none();
        if behind && self.apply_thread.arm(Duration::ZERO) { Ok(()) } else { self.apply() }
    }

    /// Called when ranges were announced and nothing was stored to them yet. With a mirror nothing is to be done.
    #[inline]
    pub fn before_store(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        if self.mechanism == Mechanism::Undo {
            return self.log_before(lane, writes);
        }
        Ok(())
    }
}
