// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An open pool's insides: what commit, apply, recovery and transactions share.
//!
//! - **Owner** lane 0 is shared: groups, buffered transactions, and everything where hardening is worth sharing. Lanes from 1 on
//!   belong to one transaction at a time
//! - **Order** locks, outermost first: sections ─▶ lane ─▶ shared lane ─▶ applier ─▶ bodies ─▶ header, free slabs, catalog
//! - **Not here** the public face: `pool`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::applier::Applier;
use crate::biased::Biased;
use crate::bits::Bits;
use crate::catalog::Catalog;
use crate::checksums::Checksums;
use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::fetched::Fetched;
use crate::heap::FreeSlabs;
use crate::holes::Holes;
use crate::image::Image;
use crate::lane::Lane;
use crate::layout::{DIRECTORY_SLABS, Header, SLAB_BYTES, ZONE_SLABS};
use crate::lock::lock;
use crate::medium::{Counters, LOST, Medium};
use crate::options::{Mechanism, Options};
use crate::pool_row::PoolRow;
use crate::pool_thread::PoolThread;
use crate::private_pages::PrivatePages;
use crate::readers::Readers;
use crate::replicated::{ReplicaStatus, Replicated};
use crate::section::Section;
use crate::shadow::{self, Shadow};
use crate::shared_lane::Shared;
use crate::writes::Writes;

/// Least growth of a heap, unless it may not be so large.
const GROWTH_MIN: u64 = 512 << 10;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Store {
    pub medium: Medium,
    pub image: Image,
    /// Private pages of the mirror; None: their number has no limit.
    pub private: Option<PrivatePages>,
    pub mechanism: Mechanism,
    pub options: Options,
    pub header: Mutex<Header>,
    pub heap_start: u64,
    /// Salt of each lane's checksums, for this epoch.
    pub salts: Vec<u32>,
    /// Lane 0, which commits share.
    pub shared: Shared,
    /// Lanes from 1 on.
    pub lanes: Vec<Lane<Writes>>,
    pub sections: Vec<Biased<Section>>,
    /// Checkpoint and shadow: what changed since the last one.
    pub dirty: Biased<Dirty>,
    /// Shadow: the current copy of each page.
    pub shadow: Option<Biased<Shadow>>,
    /// Checksums of the heap's pages.
    pub checksums: Option<Checksums>,
    /// Slabs whose pages are what they should be; None: there are no checksums.
    pub verified: Option<Bits>,
    /// A reader beside another process's writer: slabs that the image has.
    pub fetched: Option<Fetched>,
    /// Slabs that a type has emptied are many, or the pool has grown beside them.
    pub reclaim_due: AtomicBool,
    /// Bytes of slots and slabs that were given back.
    pub freed_bytes: AtomicU64,
    /// Slabs that were scrubbed so far, with each round counted anew.
    pub scrubbed: AtomicU64,
    /// The last sequence that was given out.
    pub sequence: AtomicU64,
    pub applier: Mutex<Applier>,
    pub free_slabs: Mutex<FreeSlabs>,
    /// Free slabs for which the file has no blocks.
    pub holes: Holes,
    /// Lock for changing which zones have a directory.
    pub bodies: Mutex<()>,
    pub catalog: Mutex<Catalog>,
    /// Makes buffered transactions durable in time.
    pub flush_thread: PoolThread,
    /// Applies the log behind the commits, with [`Options::apply_behind`].
    pub apply_thread: PoolThread,
    /// Readers in other processes, if they may come.
    pub readers: OnceLock<Readers>,
    /// How far the replica is, if there is one.
    pub replicated: Mutex<Option<Arc<Replicated>>>,
    /// The line that others see of it.
    pub row: PoolRow,
    stopped: AtomicBool,
    reason: OnceLock<String>,
}

/// The parts from which a store is put together.
pub(crate) struct Parts {
    pub medium: Medium,
    pub image: Image,
    pub header: Header,
    pub options: Options,
    pub positions: Vec<u64>,
    pub sequence: u64,
    pub applier: Applier,
    pub sections: Vec<Biased<Section>>,
    pub free_slabs: FreeSlabs,
    pub holes: Holes,
    pub catalog: Catalog,
    pub shadow: Option<Shadow>,
    pub checksums: Option<Checksums>,
}

impl Store {
    pub fn new(parts: Parts) -> Result<Store> {
        let Parts {
            medium,
            image,
            header,
            options,
            positions,
            sequence,
            applier,
            sections,
            free_slabs,
            holes,
            catalog,
            shadow,
            checksums,
        } = parts;
        let mechanism = Mechanism::from_byte(header.mechanism)
            .ok_or_else(|| Error::corrupt("the header names no known mechanism"))?;
        let start = |lane: u32| crate::layout::LANES_START + u64::from(lane) * header.lane_bytes;
        // A pool that is only read logs nothing, and the memory of lanes takes a while to make.
        let (lanes, lane_bytes) =
            if options.read_only { (1, 4096) } else { (header.lanes, header.lane_bytes) };
        let lane = |index: u32| {
            let mut writes = Writes::default();
            writes.turn = applier.turns[index as usize];
            Lane::new(index, start(index), lane_bytes, 0, positions[index as usize], writes)
        };
        let limit = if image.is_mirror() { options.mirror_limit() } else { None };
        Ok(Store {
            private: PrivatePages::new(image.max(), limit),
            verified: (checksums.is_some() || medium.is_beside()).then(|| Bits::new(image.max())),
            fetched: medium.is_beside().then(|| Fetched::new(image.max())),
            reclaim_due: AtomicBool::new(false),
            freed_bytes: AtomicU64::new(0),
            scrubbed: AtomicU64::new(0),
            image,
            mechanism,
            heap_start: header.heap_start,
            salts: (0..header.lanes).map(|lane| header.salt(lane)).collect(),
            shared: Shared::new(
                Lane::new(0, start(0), lane_bytes, medium.log_gap(), positions[0], ()),
                positions[0],
            ),
            lanes: (1..lanes).map(lane).collect(),
            sections,
            dirty: Biased::new(Dirty::default()),
            shadow: shadow.map(Biased::new),
            checksums,
            sequence: AtomicU64::new(sequence),
            applier: Mutex::new(applier),
            free_slabs: Mutex::new(free_slabs),
            holes,
            bodies: Mutex::new(()),
            catalog: Mutex::new(catalog),
            flush_thread: PoolThread::new("memlift-flush"),
            apply_thread: PoolThread::new("memlift-apply"),
            readers: OnceLock::new(),
            replicated: Mutex::default(),
            row: PoolRow::open(&medium, options.read_only),
            stopped: AtomicBool::new(false),
            reason: OnceLock::new(),
            header: Mutex::new(header),
            options,
            medium,
        })
    }

    /// Returns [`Error::Stopped`] if the disk has failed.
    #[inline]
    pub fn running(&self) -> Result<()> {
        if self.stopped.load(Ordering::Acquire) || self.image.lost() || self.medium.lost() {
            return Err(self.stopped_error());
        }
        Ok(())
    }

    #[cold]
    fn stopped_error(&self) -> Error {
        Error::Stopped { reason: self.reason.get().map_or(LOST, String::as_str).to_owned() }
    }

    /// Stops the pool for good: what the file holds is not known any more.
    #[cold]
    pub fn stop(&self, error: Error) -> Error {
        let reason = match error {
            Error::Stopped { reason } => reason,
            other => other.to_string(),
        };
        let _ = self.reason.set(reason);
        self.row.stopped();
        self.stopped.store(true, Ordering::Release);
        self.stopped_error()
    }

    /// A result of the medium: when the disk has failed, the pool stops.
    pub fn intact<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error {
            Error::Stopped { .. } => self.stop(error),
            other => other,
        })
    }

    /// Waits until the replica has everything that was committed before; the caller has made it durable.
    ///
    /// # Errors
    ///
    /// [`Error::NotReplicated`]; [`Error::Argument`] for a pool without a replica.
    pub(crate) fn await_replica(&self) -> Result<()> {
        let Some(replicated) = lock(&self.replicated).clone() else {
            let what = "Durability::Replicated: the pool has no replica; start one first (Pool::replicate)";
            return Err(Error::Argument { what: what.to_owned() });
        };
        replicated.wait(self.sequence.load(Ordering::Acquire), self.options.replica_wait)
    }

    /// How far the replica is, if this process has begun to write one.
    pub(crate) fn replica_status(&self) -> Option<ReplicaStatus> {
        lock(&self.replicated).as_ref().map(|replicated| replicated.status())
    }

    /// The next place in the order of commits. The caller holds a section, or all of them for reading and what is dirty; so with
    /// one section there is one caller at a time, and no locked instruction is needed.
    #[inline]
    pub fn next_sequence(&self) -> u64 {
        if self.sections.len() != 1 {
            return self.sequence.fetch_add(1, Ordering::AcqRel) + 1;
        }
        let next = self.sequence.load(Ordering::Relaxed) + 1;
        self.sequence.store(next, Ordering::Release);
        next
    }

    /// Stores what the pool's row says of its sizes.
    pub fn show_sizes(&self) {
        let waits = |head: u64, tail: u64| tail.saturating_sub(head);
        let lanes = self.lanes.iter().map(|lane| waits(lane.head(), lane.tail()));
        let shared = &self.shared.lane;
        let waiting = lanes.sum::<u64>() + waits(shared.head(), shared.tail());
        let free = self.free_slabs.try_lock().ok().map(|free| free.free() * SLAB_BYTES);
        self.row.store_sizes(self.image.len(), free, waiting);
    }

    /// Sum over lanes and applier.
    pub fn counters(&self) -> Counters {
        let mut sum = lock(&self.shared.state).counters;
        for lane in &self.lanes {
            sum += lane.state.write().counters;
        }
        sum
    }

    /// Makes the heap larger by at least `slabs` slabs.
    pub fn grow(&self, slabs: u64) -> Result<()> {
        let header = lock(&self.header);
        let least = header.heap_bytes + (slabs + DIRECTORY_SLABS) * SLAB_BYTES;
        self.grow_header(header, least, slabs * SLAB_BYTES, least / SLAB_BYTES)
    }

    /// Makes the heap at least so large, for something of `bytes`.
    pub fn grow_to(&self, heap_bytes: u64, bytes: u64) -> Result<()> {
        let header = lock(&self.header);
        if header.heap_bytes >= heap_bytes {
            return Ok(()); // somebody else did
        }
        // Whole zones are wanted.
        let zone_end = (heap_bytes / SLAB_BYTES).next_multiple_of(ZONE_SLABS);
        self.grow_header(header, heap_bytes, bytes, zone_end)
    }

    /// Makes the heap at least `least` bytes long. Checksums that this takes lie from slab `behind` on.
    fn grow_header(
        &self,
        mut header: MutexGuard<'_, Header>,
        least: u64,
        bytes: u64,
        behind: u64,
    ) -> Result<()> {
        let full = |header: &Header| Error::Full { bytes, heap_bytes: header.heap_bytes };
        let room = if self.shadow.is_some() { shadow::capacity(&header) } else { u64::MAX };
        let most = self.image.max().min(room) / SLAB_BYTES * SLAB_BYTES;
        let more = (header.heap_bytes / 8).max(GROWTH_MIN);
        let plan = |heap_bytes: u64| {
            self.checksums.as_ref().map(|checksums| checksums.plan(heap_bytes / SLAB_BYTES, behind))
        };
        let next = |heap_bytes: u64| {
            let plan = plan(heap_bytes);
            let (slabs, chunks) = plan.map_or((0, 0), |plan| (plan.slabs, plan.chunks.len()));
            Header {
                heap_bytes: heap_bytes.max(slabs * SLAB_BYTES),
                checksum_chunks: header.checksum_chunks + chunks as u32,
                generation: header.generation + 1,
                ..*header
            }
        };
        let needed = next(least.next_multiple_of(SLAB_BYTES));
        let wanted = next((header.heap_bytes + more).next_multiple_of(SLAB_BYTES).max(least).min(most));
        let fits = (needed.heap_bytes..=most).contains(&wanted.heap_bytes);
        let wanted = if fits { wanted } else { needed };
        if needed.heap_bytes > most {
            return Err(self.image.crowded().unwrap_or_else(|| full(&header)));
        }
        let mut counters = Counters::default();
        let next = match self.medium.grow(wanted.file_bytes()) {
            // The disk has no room for so much, but perhaps for what is needed.
            Err(Error::File { ref source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull
                    && needed.heap_bytes < wanted.heap_bytes =>
            {
                self.intact(self.medium.grow(needed.file_bytes()))?;
                needed
            }
            grown => self.intact(grown).map(|()| wanted)?,
        };
        let wanted = next.heap_bytes;
        let plan = plan(wanted).filter(|plan| !plan.chunks.is_empty());
        if let (Some(checksums), Some(plan)) = (&self.checksums, &plan) {
            let stored = checksums.add(&self.medium, plan, &mut counters);
            self.intact(stored.and_then(|()| self.medium.harden(&mut counters)))?;
        }
        self.intact(self.medium.write_header(&next, &mut counters))?;
        if let Some(shadow) = &self.shadow {
            shadow.write().grow(wanted);
        }
        self.image.grow(&self.medium, self.heap_start, wanted)?;
        let from = header.heap_bytes / SLAB_BYTES;
        *header = next;
        let mut free = lock(&self.free_slabs);
        free.grow(wanted / SLAB_BYTES);
        let none = |slab: u64| crate::layout::is_system(slab) || self.image.is_body(slab / ZONE_SLABS);
        for slab in (from..wanted / SLAB_BYTES).filter(|slab| !none(*slab)) {
            free.give(slab, 1);
        }
        for (first, count) in
            self.checksums.iter().flat_map(Checksums::slabs).filter(|(first, _)| *first >= from)
        {
            free.withhold(first, count);
        }
        drop(free);
        self.show_sizes();
        Ok(())
    }
}
