// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writer of a replica: claims it, and ships pages of the pool as numbered segments.
//!
//! - **Flow** claim: a segment without pages ─▶ what the replica has already is read from its fronts ─▶ pages that changed, in parts, while
//!   transactions commit ─▶ the log waits, the last pages are read ─▶ a segment that completes a moment's state …… again after the interval
//! - **Rule** a segment has everything that was committed up to its sequence, and nothing later: no page changes while the applier is held
//! - **Rule** of two writers, one creates a number. The other reads the segment that is there, which names its writer, and ends
//! - **Rule** what is damaged is not shipped: a page has to be what its checksum says
//! - **Rule** a segment whose creation had no clear end is created again with the same bytes, and nothing else is, until that is known
//! - **Not here** the thread: `replicate` · reading: `restore`

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use super::ReplicaOptions;
use super::chain::{Front, Walked, numbers, read_front, walk};
use super::format::{
    Digest, FRONT_USUAL, OWNER_MAX, PAGES_MAX, PARTS_MAX, Pages, PartEntry, Segment, SegmentKind, WriterId,
    decode_part, digest, encode_part,
};
use super::place::{Created, Place, part_name, segment_name};
use super::utc::{micros, time, utc};
use crate::apply::Applier;
use crate::backup::used;
use crate::catalog::Catalog;
use crate::checksums::{Checksums, Expected, PAGE, SLAB_PAGES, page_sum};
use crate::error::{Error, Result};
use crate::layout::{CATALOG_BYTES, CATALOG_START, Header, SLAB_BYTES};
use crate::medium::changed::ChangedPages;
use crate::replicated::Replicated;
use crate::store::{Store, lock};
use crate::verify::damaged;

/// Rounds of parts before the log waits for the rest, at most.
const ROUNDS_MAX: u32 = 8;
/// A snapshot is made when segments since the last one have more bytes than it, and at least so many.
const SNAPSHOT_LEAST: u64 = 16 << 20;
/// Segments behind a snapshot that a new writer reads to go on from; beyond, it makes a snapshot.
const RESUME_MAX: usize = 20_000;
/// Attempts of two writers to claim one number before one of them gives up.
const CLAIMS_MAX: u32 = 32;
/// Pauses between attempts to reach the store.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// Segments from this size on are no claims.
const CLAIM_BYTES_MAX: u64 = 4096;
/// Objects that are removed before the next ones.
const REMOVED_AT_ONCE: usize = 256;

/// Contents of one segment in the replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shipped {
    /// Number of the segment.
    pub segment: u64,
    /// True if it has all pages in use.
    pub snapshot: bool,
    /// Pages in it and its parts.
    pub pages: u64,
    /// Bytes of its objects.
    pub bytes: u64,
    /// Transactions up to this one, by the pool's order, are in the replica.
    pub sequence: u64,
    /// The moment whose state it completes.
    pub time: SystemTime,
}

/// State of the pool that the last segment had.
#[derive(Clone, Copy, Debug)]
struct Last {
    sequence: u64,
    header_generation: u64,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Shipper {
    place: Place,
    store: Weak<Store>,
    replicated: Arc<Replicated>,
    changed: Arc<ChangedPages>,
    options: ReplicaOptions,
    /// Attempts to reach the store; None: without end.
    attempts: Option<u32>,
    writer: WriterId,
    owner: String,
    generation: u64,
    /// Number of the segment that comes next, and what it follows.
    next: u64,
    previous: Digest,
    time_us: u64,
    /// Number of the next part.
    serial: u64,
    /// Segments before this writer's claim.
    before: Vec<u64>,
    /// Checksums of pages that the replica had when this writer came, until its first segment.
    known: Option<HashMap<u64, u64>>,
    last: Option<Last>,
    catalog: Option<Digest>,
    wants_snapshot: bool,
    /// Bytes of the last snapshot, and of segments since.
    snapshot_bytes: u64,
    since_bytes: u64,
    /// Number and moment of snapshots, the oldest first.
    snapshots: Vec<(u64, u64)>,
    removed_before: u64,
}

/// The pool, held still.
struct Held<'s> {
    applier: MutexGuard<'s, Applier>,
    _bodies: MutexGuard<'s, ()>,
    header: MutexGuard<'s, Header>,
    _catalog: MutexGuard<'s, Catalog>,
}

/// Pages in use, in runs of first page and count.
struct InUse {
    /// Of objects, directories and the superblock: these have checksums, if the pool has any.
    summed: Vec<(u64, u64)>,
    /// These and the checksums' own, in order.
    all: Vec<(u64, u64)>,
}

impl InUse {
    fn of(store: &Store, header: &Header) -> Result<InUse> {
        let summed = used(store, header)?;
        let within = |(first, count): &(u64, u64)| (first + count) * SLAB_BYTES <= header.heap_bytes;
        let own = store.checksums.iter().flat_map(Checksums::slabs).filter(within);
        let mut all = summed.clone();
        all.extend(own.map(|(first, count)| (first * SLAB_PAGES, count * SLAB_PAGES)));
        all.sort_unstable();
        Ok(InUse { summed, all })
    }

    fn is_summed(&self, page: u64) -> bool {
        let at = self.summed.partition_point(|(first, _)| *first <= page);
        at > 0 && page < self.summed[at - 1].0 + self.summed[at - 1].1
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        self.all.iter().flat_map(|(first, count)| *first..first + count)
    }
}

/// Segment under way: parts that were uploaded, and pages in them with their checksums.
#[derive(Default)]
struct UnderWay {
    parts: Vec<PartEntry>,
    sent: HashMap<u64, u64>,
    bytes: u64,
}

fn hold(store: &Store) -> Result<Held<'_>> {
    let applier = lock(&store.applier);
    let (bodies, header) = (lock(&store.bodies), lock(&store.header));
    let held = Held { applier, _bodies: bodies, header, _catalog: lock(&store.catalog) };
    store.running()?;
    Ok(held)
}

fn is_aborted(error: &Error) -> bool {
    matches!(error, Error::Aborted(_))
}

fn closed() -> Error {
    Error::Aborted("the pool was closed".to_owned())
}

/// Describes this process to another writer.
fn describe(store: &Store) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let path = store.medium.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
    let mut text = format!("{path}, process {} on {host}", std::process::id());
    while text.len() > OWNER_MAX {
        text.pop();
    }
    text
}

impl Shipper {
    /// Claims the replica for this process: whoever wrote it before ends with [`Error::Fenced`].
    ///
    /// # Errors
    ///
    /// [`Error::Replica`]: the store cannot be reached, or its last segment is damaged; [`Error::Argument`]: it is the replica of another
    /// pool.
    pub fn claim(
        place: Place,
        store: &Arc<Store>,
        replicated: Arc<Replicated>,
        changed: Arc<ChangedPages>,
        options: ReplicaOptions,
        attempts: Option<u32>,
    ) -> Result<Shipper> {
        let mut shipper = Shipper {
            place,
            store: Arc::downgrade(store),
            replicated,
            changed,
            options,
            attempts,
            writer: crate::open::random_uuid()?,
            owner: describe(store),
            generation: 1,
            next: 1,
            previous: [0; 32],
            time_us: 0,
            serial: 0,
            before: Vec::new(),
            known: None,
            last: None,
            catalog: None,
            wants_snapshot: true,
            snapshot_bytes: 0,
            since_bytes: 0,
            snapshots: Vec::new(),
            removed_before: 0,
        };
        let header = *lock(&store.header);
        for _ in 0..CLAIMS_MAX {
            if shipper.claim_next(&header)? {
                return Ok(shipper);
            }
        }
        Err(shipper.place.error("many processes claim it at once: let one of them replicate the pool"))
    }

    /// Tries to claim the number behind the last segment.
    fn claim_next(&mut self, header: &Header) -> Result<bool> {
        let before = numbers(&self.place)?;
        if let Some(last) = before.last().copied() {
            let front = read_front(&self.place, last)?.map_err(|why| {
                self.place.error(format!("segment {last} {why}: nothing is written behind it. Restore what can be restored, and replicate to another place"))
            })?;
            if front.segment.writer == self.writer {
                // An attempt to create it succeeded without an answer.
                (self.next, self.previous) = (last + 1, front.digest);
                return Ok(true);
            }
            if front.segment.header.uuid != header.uuid {
                return Err(Error::Argument {
                    what: format!(
                        "{} is the replica of another pool (last written by {}): choose another place",
                        self.place.name(),
                        front.segment.owner
                    ),
                });
            }
            (self.next, self.previous, self.before) = (last + 1, front.digest, before);
            (self.generation, self.time_us) = (front.segment.generation + 1, front.segment.time_us);
        }
        let claim = self.segment(SegmentKind::Claim, header);
        let claim = Segment { positions: vec![0; header.lanes as usize], ..claim };
        let (bytes, front) = claim.encode();
        if self.place.create(&segment_name(claim.number), &bytes)? == Created::Before {
            return Ok(false);
        }
        (self.next, self.previous, self.time_us) = (claim.number + 1, front, claim.time_us);
        Ok(true)
    }

    /// The next segment, without what is in it.
    fn segment(&self, kind: SegmentKind, header: &Header) -> Segment {
        Segment {
            number: self.next,
            generation: self.generation,
            kind,
            time_us: micros(SystemTime::now()).max(self.time_us),
            sequence: 0,
            writer: self.writer,
            owner: self.owner.clone(),
            previous: self.previous,
            header: *header,
            positions: Vec::new(),
            parts: Vec::new(),
            catalog: None,
            index: Vec::new(),
            pages_digest: digest(&[]),
        }
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(closed)
    }

    /// Calls the store until it answers.
    fn insist<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        let ([mut pause, most], mut attempts) = (PAUSES, 0);
        loop {
            let error = match call() {
                Err(error) if !is_aborted(&error) => error,
                done => return done,
            };
            attempts += 1;
            if self.attempts.is_some_and(|most| attempts >= most) {
                return Err(error);
            }
            self.replicated.fails(&error);
            self.place.pause(pause)?;
            pause = (pause * 2).min(most);
        }
    }

    /// Reads which pages the replica has, if its history is whole, so that only others are shipped first. Otherwise the first segment is a
    /// snapshot.
    pub fn resume(&mut self) -> Result<()> {
        if self.before.is_empty() {
            return Ok(());
        }
        let Walked { fronts, broken } = self.insist(|| walk(&self.place, &self.before))?;
        let header = *lock(&self.store()?.header);
        let state = fronts.iter().rev().find(|front| front.segment.kind != SegmentKind::Claim);
        let goes_on = state.is_some_and(|state| state.segment.goes_on_in(&header));
        if broken.is_some() || !goes_on || fronts.len() > RESUME_MAX {
            return Ok(());
        }
        let Some(known) = self.known_pages(&fronts)? else { return Ok(()) };
        let bytes = |front: &Front| {
            let parts = front.segment.parts.iter().map(|part| u64::from(part.pages) * PAGE);
            front.segment.object_bytes() + parts.sum::<u64>()
        };
        let snapshot = &fronts[0].segment;
        (self.known, self.wants_snapshot) = (Some(known), false);
        self.catalog = fronts.iter().rev().find_map(|front| front.segment.catalog.as_deref()).map(digest);
        (self.snapshot_bytes, self.since_bytes) = (bytes(&fronts[0]), fronts[1..].iter().map(bytes).sum());
        self.snapshots = vec![(snapshot.number, snapshot.time_us)];
        Ok(())
    }

    /// Checksums of the pages that a history leaves; None: a part is not whole.
    fn known_pages(&self, fronts: &[Front]) -> Result<Option<HashMap<u64, u64>>> {
        let mut known = HashMap::new();
        for Front { segment, .. } in fronts {
            for parts in segment.parts.chunks(REMOVED_AT_ONCE) {
                let names: Vec<String> = parts
                    .iter()
                    .map(|part| part_name(segment.number, &segment.writer, part.serial))
                    .collect();
                let starts = self.insist(|| self.place.starts_of(&names, FRONT_USUAL))?;
                for (part, start) in parts.iter().zip(starts) {
                    let Ok(Some(start)) = start else { return Ok(None) };
                    let Ok((index, ..)) = decode_part(&start, segment, part) else { return Ok(None) };
                    known.extend(index);
                }
            }
            known.extend(segment.index.iter().copied());
        }
        Ok(Some(known))
    }

    /// Ships what was committed since the last segment; None: nothing was.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`]; [`Error::Corrupt`] for a damaged page; [`Error::Aborted`] when the replicator or the pool ends;
    /// [`Error::Replica`] with a limit of attempts; [`Error::Stopped`]. What was not shipped is shipped by the next call.
    pub fn ship(&mut self) -> Result<Option<Shipped>> {
        let store = self.store()?;
        if !store.options.read_only {
            store.sync()?;
        }
        let (sequence, generation) = (store.sequence.load(Ordering::Acquire), lock(&store.header).generation);
        drop(store);
        let same = |last: &Last| last.sequence == sequence && last.header_generation == generation;
        if self.last.as_ref().is_some_and(same) {
            self.replicated.has(sequence);
            return Ok(None);
        }
        let now = micros(SystemTime::now());
        let old =
            |(_, made): &(u64, u64)| now.saturating_sub(*made) >= self.options.retain.as_micros() as u64;
        let snapshot = self.wants_snapshot
            || self.since_bytes > self.snapshot_bytes.max(SNAPSHOT_LEAST)
            || self.snapshots.last().is_some_and(old);
        if snapshot {
            self.known = None;
            self.wants_snapshot = true; // until there is one
            self.changed.mark_all();
        }
        let mut under_way = UnderWay::default();
        let shipped = self.ship_pages(snapshot, &mut under_way);
        match shipped {
            Ok(shipped) => {
                self.known = None;
                self.replicated.has(shipped.sequence);
                self.retire();
                Ok(Some(shipped))
            }
            Err(error) => {
                if let Ok(store) = self.store() {
                    let first = store.heap_start;
                    under_way.sent.keys().for_each(|page| self.changed.mark(first + page * PAGE, 1));
                }
                Err(error)
            }
        }
    }

    fn ship_pages(&mut self, snapshot: bool, under_way: &mut UnderWay) -> Result<Shipped> {
        for _ in 0..ROUNDS_MAX {
            let in_use = {
                let store = self.store()?;
                if !store.options.read_only {
                    store.place_all()?;
                }
                let held = hold(&store)?;
                InUse::of(&store, &held.header)?
            };
            if self.marked(&in_use)? <= PAGES_MAX {
                break;
            }
            let mut pages = in_use.pages();
            loop {
                let some = self.some_pages(&mut pages, under_way)?;
                if some.is_empty() {
                    break;
                }
                self.put_part(&some, under_way)?;
            }
        }
        let kind = if snapshot { SegmentKind::Snapshot } else { SegmentKind::Changes };
        let (mut segment, mut rest) = self.last_pages(kind, under_way)?;
        let inline = rest.pop().unwrap_or_default();
        for some in &rest {
            self.put_part(some, under_way)?;
        }
        segment.parts = std::mem::take(&mut under_way.parts);
        if segment.parts.len() > PARTS_MAX {
            return Err(self.place.error("the pool changed too much while it was copied"));
        }
        segment.index.clone_from(&inline.index);
        segment.pages_digest = digest(&inline.bytes);
        let catalog = segment.catalog.as_deref().map(digest).or(self.catalog);
        self.create(&segment, &inline.bytes, under_way)?;
        self.last = Some(Last { sequence: segment.sequence, header_generation: segment.header.generation });
        self.catalog = catalog;
        if snapshot {
            self.wants_snapshot = false;
            (self.snapshot_bytes, self.since_bytes) = (under_way.bytes, 0);
            self.snapshots.push((segment.number, segment.time_us));
        } else {
            self.since_bytes += under_way.bytes;
        }
        Ok(Shipped {
            segment: segment.number,
            snapshot,
            pages: under_way.sent.len() as u64,
            bytes: under_way.bytes,
            sequence: segment.sequence,
            time: time(segment.time_us),
        })
    }

    /// Number of a page of the heap among those of the file.
    fn file_page(store: &Store, page: u64) -> u64 {
        store.heap_start / PAGE + page
    }

    /// Pages that the replica may lack; the count stops above one object's.
    fn marked(&self, in_use: &InUse) -> Result<usize> {
        let store = self.store()?;
        let marked = in_use.pages().filter(|page| self.changed.is_marked(Shipper::file_page(&store, *page)));
        Ok(marked.take(PAGES_MAX + 1).count())
    }

    /// Reads marked pages, up to one object's. They may be changed meanwhile; then they are marked again.
    fn some_pages(&self, pages: &mut impl Iterator<Item = u64>, under_way: &mut UnderWay) -> Result<Pages> {
        let store = self.store()?;
        store.running()?;
        let mut found = Pages::default();
        while found.index.len() < PAGES_MAX
            && let Some(page) = pages.next()
        {
            self.read_page(&store, page, &mut found, under_way)?;
        }
        Ok(found)
    }

    /// Reads a page if it is marked, and adds it if the replica lacks it.
    fn read_page(
        &self,
        store: &Store,
        page: u64,
        found: &mut Pages,
        under_way: &mut UnderWay,
    ) -> Result<Option<u64>> {
        if !self.changed.is_marked(Shipper::file_page(store, page)) {
            return Ok(None);
        }
        self.changed.clear(Shipper::file_page(store, page));
        let mut bytes = [0; PAGE as usize];
        store.medium.read(store.heap_start + page * PAGE, &mut bytes)?;
        let sum = page_sum(&bytes);
        let had = under_way.sent.get(&page).or_else(|| self.known.as_ref()?.get(&page));
        if had != Some(&sum) {
            under_way.sent.insert(page, sum);
            found.push(page, sum, &bytes);
        }
        Ok(Some(sum))
    }

    /// Uploads pages as a part.
    fn put_part(&mut self, pages: &Pages, under_way: &mut UnderWay) -> Result<()> {
        let (object, entry) = encode_part(self.next, self.serial, &self.writer, pages);
        let name = part_name(self.next, &self.writer, self.serial);
        self.insist(|| self.place.put(&name, &object))?;
        self.serial += 1;
        under_way.parts.push(entry);
        under_way.bytes += object.len() as u64;
        Ok(())
    }

    /// Holds the pool still and reads what is marked: the segment of this moment, and its pages.
    fn last_pages(&self, kind: SegmentKind, under_way: &mut UnderWay) -> Result<(Segment, Vec<Pages>)> {
        let store = self.store()?;
        if !store.options.read_only {
            store.sync()?;
            store.place_all()?;
        }
        let held = hold(&store)?;
        let in_use = InUse::of(&store, &held.header)?;
        let mut segment = self.segment(kind, &held.header);
        (segment.sequence, segment.positions) = (held.applier.applied, held.applier.positions.clone());
        let mut types = vec![0; CATALOG_BYTES as usize];
        store.medium.read(CATALOG_START, &mut types)?;
        if kind == SegmentKind::Snapshot || self.catalog != Some(digest(&types)) {
            segment.catalog = Some(types);
        }
        let expected = |page: u64, sum: u64| match &store.checksums {
            Some(checksums) if in_use.is_summed(page) => {
                if checksums.expected(&store.medium, page)? == Expected::Sum(sum) {
                    Ok(())
                } else {
                    Err(damaged(page))
                }
            }
            _ => Ok(()),
        };
        for (page, sum) in &under_way.sent {
            if !self.changed.is_marked(Shipper::file_page(&store, *page)) {
                expected(*page, *sum)?;
            }
        }
        let mut found = vec![Pages::default()];
        for page in in_use.pages() {
            if found.last().is_some_and(|last| last.index.len() == PAGES_MAX) {
                found.push(Pages::default());
            }
            let last = found.last_mut().expect("one at least");
            if let Some(sum) = self.read_page(&store, page, last, under_way)? {
                expected(page, sum)?;
            }
        }
        Ok((segment, found))
    }

    /// Creates a segment's object.
    fn create(&mut self, segment: &Segment, pages: &[u8], under_way: &mut UnderWay) -> Result<()> {
        let (mut object, front) = segment.encode();
        object.extend_from_slice(pages);
        let name = segment_name(segment.number);
        while self.insist(|| self.place.create(&name, &object))? == Created::Before {
            match self.insist(|| read_front(&self.place, segment.number))? {
                // An attempt before had succeeded without an answer.
                Ok(there) if there.digest == front => break,
                Ok(there) => {
                    return Err(Error::Fenced {
                        url: self.place.name().to_owned(),
                        owner: there.segment.owner,
                        since: utc(time(there.segment.time_us)),
                    });
                }
                // Some stores answer so while another creates it, who may fail.
                Err(why) if self.attempts.is_none() => {
                    self.replicated.fails(&self.place.error(format!("segment {} {why}", segment.number)));
                    self.place.pause(PAUSES[1])?;
                }
                Err(why) => return Err(self.place.error(format!("segment {} {why}", segment.number))),
            }
        }
        (self.next, self.previous, self.time_us) = (segment.number + 1, front, segment.time_us);
        under_way.bytes += object.len() as u64;
        Ok(())
    }

    /// Removes what lies before the newest snapshot that is old enough. What cannot be removed now is removed later.
    fn retire(&mut self) {
        let horizon = micros(SystemTime::now()).saturating_sub(self.options.retain.as_micros() as u64);
        let Some(at) = self.snapshots.iter().rposition(|(_, made)| *made <= horizon) else { return };
        let (oldest, _) = self.snapshots[at];
        if oldest <= self.removed_before {
            return;
        }
        if self.remove_before(oldest).is_ok() {
            self.removed_before = oldest;
            self.snapshots.drain(..at);
        }
    }

    fn remove_before(&self, number: u64) -> Result<()> {
        let mut segments = Vec::new();
        for listed in self.place.list("log")?.into_iter().filter(|one| one.number < number) {
            // A claim stays: a writer that was fenced by it finds it, however late.
            if listed.bytes < CLAIM_BYTES_MAX
                && !read_front(&self.place, listed.number)?
                    .is_ok_and(|front| front.segment.kind != SegmentKind::Claim)
            {
                continue;
            }
            segments.push(listed.name);
        }
        let parts =
            self.place.list("parts")?.into_iter().filter(|one| one.number < number).map(|one| one.name);
        let names: Vec<String> = segments.into_iter().chain(parts).collect();
        names.chunks(REMOVED_AT_ONCE).try_for_each(|some| self.place.remove(some))
    }

    /// The place, for ending its calls.
    pub fn place(&self) -> &Place {
        &self.place
    }
}
