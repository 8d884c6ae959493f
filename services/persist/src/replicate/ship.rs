// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writer of a replica: claims it, and ships pages of the pool as numbered segments.
//!
//! - **Flow** claim: a segment without pages ─▶ what the replica has already is read from its fronts ─▶ pages that changed, in parts, while
//!   transactions commit ─▶ the log waits, the last pages are read ─▶ a segment that completes a moment's state …… again after the interval
//! - **Rule** a segment has everything that was committed up to its sequence, and nothing later: no page changes while the applier is held
//! - **Rule** of two writers, one creates a number. The other reads the segment that is there, which names its writer, and ends
//! - **Rule** what is damaged is not shipped: a page has to be what its checksum says
//! - **Rule** a segment whose creation had no clear end is created again with the same bytes, and nothing else is, until that is known
//! - **Rule** memory does not grow with the pool, however fast it changes: three bits for each page, and a few objects of 8 MiB. What has to be
//!   kept beyond is in files without a name (`scratch`)
//! - **Not here** the thread: `replicate` · pools of other processes: `follow` · reading: `restore`

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::ReplicaOptions;
use super::chain::{numbers, read_front, walk};
use super::format::{
    Digest, FRONT_USUAL, IndexEntry, OWNER_MAX, PAGES_MAX, PARTS_MAX, Pages, PartEntry, Segment, SegmentKind,
    WriterId, decode_part, digest, encode_part, goes_on, parts_bytes,
};
use super::place::{Created, Place, part_name, segment_name};
use super::scratch::{Held as HeldPages, PageSet, PageSums};
use super::utc::{micros, time, utc};
use crate::applier::Applier;
use crate::backup::used;
use crate::catalog::Catalog;
use crate::checksums::damaged;
use crate::checksums::{Checksums, Expected, PAGE, SLAB_PAGES, page_sum};
use crate::error::{Error, Result};
use crate::layout::{CATALOG_BYTES, CATALOG_START, Header, SLAB_BYTES};
use crate::lock::lock;
use crate::medium::changed::ChangedPages;
use crate::replicated::Replicated;
use crate::store::Store;

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
/// Pages whose sums are compared while the log waits.
const COMPARED_AT_ONCE: u64 = 1 << 14;

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
    header: Header,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Shipper {
    place: Place,
    store: Weak<Store>,
    /// The pool's file, and its header when it was claimed.
    path: PathBuf,
    header: Header,
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
    /// Sums of the pages that the replica has: those that it had when this writer came, until its first segment. A writer that follows another
    /// process keeps them, for nobody tells it what changes.
    known: Option<PageSums>,
    /// The pool is another process's, or nobody's, and each segment is of a pool that was opened anew.
    follows: bool,
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

    /// The end of the run that has a page with a checksum.
    fn end_of(&self, page: u64) -> u64 {
        let at = self.summed.partition_point(|(first, _)| *first <= page);
        self.summed[at - 1].0 + self.summed[at - 1].1
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        self.all.iter().flat_map(|(first, count)| *first..first + count)
    }
}

/// Segment under way: parts that were uploaded, and pages that were read for it.
#[derive(Default)]
struct UnderWay {
    parts: Vec<PartEntry>,
    read: PageSet,
    pages: u64,
    bytes: u64,
    /// Pages that are to be sent, as far as is known.
    wanted: u64,
    /// A segment that would say nothing new was left out.
    left_out: bool,
}

/// Contents of a page that was read.
enum ReadPage {
    /// The replica has it, or it was not marked.
    Known,
    /// It is to be sent.
    New(u64),
    /// It is not what its checksum says: it is being stored to, or it is damaged.
    Odd,
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
    let (before, behind) = around_process(store);
    let mut text = format!("{before}{}{behind}", std::process::id());
    while text.len() > OWNER_MAX {
        text.pop();
    }
    text
}

/// The texts before and behind the process's number in such a description.
fn around_process(store: &Store) -> (String, String) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let path = store.medium.paths().into_iter().next().unwrap_or_default();
    let path = std::fs::canonicalize(&path).unwrap_or(path);
    (format!("{}, process ", path.display()), format!(" on {host}"))
}

/// The process of this machine that is alive and wrote the last segment of the replica of a pool in this file, if it is another one.
pub(crate) fn living_writer(place: &Place, store: &Store) -> Result<Option<u32>> {
    let Some(last) = numbers(place)?.last().copied() else { return Ok(None) };
    let Ok(front) = read_front(place, last)? else { return Ok(None) };
    let (before, behind) = around_process(store);
    let number = front.segment.owner.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&behind));
    let alive =
        |process: &u32| *process != std::process::id() && Path::new(&format!("/proc/{process}")).exists();
    Ok(number.and_then(|number| number.parse().ok()).filter(alive))
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
        let header = *lock(&store.header);
        let mut shipper = Shipper {
            place,
            store: Arc::downgrade(store),
            path: store.medium.paths().into_iter().next().unwrap_or_default(),
            header,
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
            follows: false,
            last: None,
            catalog: None,
            wants_snapshot: true,
            snapshot_bytes: 0,
            since_bytes: 0,
            snapshots: Vec::new(),
            removed_before: 0,
        };
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
        if self.place.create(&segment_name(claim.number), &bytes.into())? == Created::Before {
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
        let before = std::mem::take(&mut self.before);
        let mut known = PageSums::new(&self.path)?;
        let (mut fronts, mut useless, mut catalog, mut sizes) = (0, false, None, Vec::new());
        let walked = walk(&self.place, &before, |segment| {
            fronts += 1;
            // The newest comes first; a page's last occurrence in a segment holds.
            useless = fronts > RESUME_MAX
                || !{
                    known.put_new(&segment.index)?;
                    self.known_parts(segment, &mut known)?
                };
            sizes.push(segment.object_bytes() + parts_bytes(&segment.parts));
            catalog = catalog.or_else(|| segment.catalog.as_deref().map(digest));
            if useless { Err(Error::Aborted(String::new())) } else { Ok(()) }
        });
        let walked = match walked {
            Ok(walked) => walked,
            Err(_) if useless => return Ok(()),
            Err(error) => {
                self.before = before; // it is read again by the next attempt
                return Err(error);
            }
        };
        let first = walked.links.first().filter(|link| link.kind == SegmentKind::Snapshot);
        let fits = walked.header.is_some_and(|state| goes_on(&state, &self.header));
        let (Some(snapshot), true) = (first, walked.broken.is_none() && fits) else {
            return Ok(());
        };
        (self.known, self.wants_snapshot) = (Some(known), false);
        self.catalog = catalog;
        self.snapshot_bytes = sizes.pop().unwrap_or_default();
        self.since_bytes = sizes.iter().sum();
        self.snapshots = vec![(snapshot.number, snapshot.time_us)];
        Ok(())
    }

    /// Adds the sums of the pages in a segment's parts; false: a part is not whole.
    fn known_parts(&self, segment: &Segment, known: &mut PageSums) -> Result<bool> {
        for parts in segment.parts.rchunks(REMOVED_AT_ONCE) {
            let names: Vec<String> = parts
                .iter()
                .rev()
                .map(|part| part_name(segment.number, &segment.writer, part.serial))
                .collect();
            let starts = self.place.starts_of(&names, FRONT_USUAL)?;
            for (part, start) in parts.iter().rev().zip(starts) {
                let Some(start) = start? else { return Ok(false) };
                let Ok((index, ..)) = decode_part(&start, segment, part) else { return Ok(false) };
                known.put_new(&index)?;
            }
        }
        Ok(true)
    }

    /// Goes on with a pool that was opened anew: the one that it follows, as it is now.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`]: it is another pool.
    pub fn follow(&mut self, store: &Arc<Store>) -> Result<()> {
        let header = *lock(&store.header);
        if self.header.uuid != header.uuid {
            let what = format!(
                "{}: the file is another pool than the one whose replica {} is: choose another place for it",
                self.path.display(),
                self.place.name()
            );
            return Err(Error::Argument { what });
        }
        // Laid out anew, by a conversion: the history begins anew, too.
        self.wants_snapshot |= self.last.is_some_and(|last| !goes_on(&last.header, &header));
        self.store = Arc::downgrade(store);
        self.changed = Arc::new(ChangedPages::new(store.medium.len()));
        self.follows = true;
        if self.known.is_none() {
            self.known = Some(PageSums::new(&self.path)?);
        }
        Ok(())
    }

    /// Says that the pool is what the replica has.
    pub fn nothing_new(&self) {
        self.replicated.has(0, (SystemTime::now(), Instant::now()));
    }

    /// Ships what was committed since the last segment; None: nothing was. When the pool is not needed any more, `all_is_read` is called.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`]; [`Error::Corrupt`] for a damaged page; [`Error::Aborted`] when the replicator or the pool ends;
    /// [`Error::ReplicaStore`] with a limit of attempts; [`Error::Stopped`]. What was not shipped is shipped by the next call.
    pub fn ship(&mut self, all_is_read: impl FnOnce()) -> Result<Option<Shipped>> {
        let store = self.store()?;
        let complete = (SystemTime::now(), Instant::now());
        if !store.options.read_only {
            store.sync()?;
        }
        let (sequence, generation) = (store.sequence.load(Ordering::Acquire), lock(&store.header).generation);
        drop(store);
        let same = |last: &Last| last.sequence == sequence && last.header.generation == generation;
        if !self.follows && self.last.as_ref().is_some_and(same) {
            self.replicated.has(sequence, complete);
            return Ok(None);
        }
        let now = micros(SystemTime::now());
        let old =
            |(_, made): &(u64, u64)| now.saturating_sub(*made) >= self.options.retain.as_micros() as u64;
        let snapshot = self.wants_snapshot
            || self.since_bytes > self.snapshot_bytes.max(SNAPSHOT_LEAST)
            || self.snapshots.last().is_some_and(old);
        if snapshot {
            self.known = if self.follows { Some(PageSums::new(&self.path)?) } else { None };
            self.wants_snapshot = true; // until there is one
            self.changed.mark_all();
        }
        let mut under_way = UnderWay::default();
        let heap_start = self.store()?.heap_start;
        let shipped = self.ship_pages(snapshot, &mut under_way, all_is_read);
        self.replicated.under_way(None);
        match shipped {
            Ok(shipped) => {
                if !self.follows {
                    self.known = None;
                }
                self.replicated.has(shipped.sequence, complete);
                if under_way.left_out {
                    return Ok(None);
                }
                self.replicated.sent(shipped.segment, snapshot);
                self.retire();
                Ok(Some(shipped))
            }
            Err(error) => {
                for page in under_way.read.iter() {
                    self.changed.mark(heap_start + page * PAGE, 1);
                    if let Some(known) = self.known.as_mut().filter(|_| self.follows) {
                        known.forget(page); // it may be noted, and be in no segment
                    }
                }
                Err(error)
            }
        }
    }

    fn ship_pages(
        &mut self,
        snapshot: bool,
        under_way: &mut UnderWay,
        all_is_read: impl FnOnce(),
    ) -> Result<Shipped> {
        self.skip_known()?;
        // The pool of another process is not held longer than it takes to read it.
        for _ in 0..if self.follows { 0 } else { ROUNDS_MAX } {
            let in_use = self.in_use()?;
            let marked = self.marked(&in_use)?;
            under_way.wanted = under_way.pages + marked;
            self.replicated.under_way(Some((under_way.pages, under_way.wanted)));
            if marked <= PAGES_MAX as u64 {
                break;
            }
            let mut pages = in_use.pages();
            loop {
                let some = self.some_pages(&in_use, &mut pages, under_way)?;
                if some.is_empty() {
                    break;
                }
                self.put_part(&some, under_way)?;
            }
        }
        let kind = if snapshot { SegmentKind::Snapshot } else { SegmentKind::Changes };
        let (mut segment, rest) = self.last_pages(kind, under_way)?;
        all_is_read();
        under_way.wanted = under_way.pages + rest.pages();
        let inline = rest.drain(|some| self.put_part(some, under_way))?;
        segment.parts = std::mem::take(&mut under_way.parts);
        if segment.parts.len() > PARTS_MAX {
            return Err(self.place.error("the pool changed too much while it was copied"));
        }
        let shipped = Shipped {
            segment: segment.number,
            snapshot,
            pages: under_way.pages + inline.index.len() as u64,
            bytes: 0,
            sequence: segment.sequence,
            time: time(segment.time_us),
        };
        let alike = |header: &Header| Header { generation: 0, epoch: 0, clean: true, ..*header };
        let same_pool = |last: &Last| alike(&last.header) == alike(&segment.header);
        if self.follows
            && kind == SegmentKind::Changes
            && shipped.pages == 0
            && segment.catalog.is_none()
            && self.last.as_ref().is_some_and(same_pool)
        {
            under_way.left_out = true;
            return Ok(shipped);
        }
        segment.index.clone_from(&inline.index);
        segment.pages_digest = digest(&inline.bytes);
        let catalog = segment.catalog.as_deref().map(digest).or(self.catalog);
        self.create(&segment, &inline.bytes, under_way)?;
        self.note(&inline.index)?;
        self.last = Some(Last { sequence: segment.sequence, header: segment.header });
        self.catalog = catalog;
        if snapshot {
            self.wants_snapshot = false;
            (self.snapshot_bytes, self.since_bytes) = (under_way.bytes, 0);
            self.snapshots.push((segment.number, segment.time_us));
        } else {
            self.since_bytes += under_way.bytes;
        }
        Ok(Shipped { bytes: under_way.bytes, ..shipped })
    }

    /// Notes that the replica has pages, for a writer that follows.
    fn note(&mut self, index: &[IndexEntry]) -> Result<()> {
        match self.known.as_mut().filter(|_| self.follows) {
            Some(known) => known.put(index),
            None => Ok(()),
        }
    }

    /// Pages in use at this moment; everything that was committed is in its place.
    fn in_use(&self) -> Result<InUse> {
        let store = self.store()?;
        if !store.options.read_only {
            store.place_all()?;
        }
        let held = hold(&store)?;
        InUse::of(&store, &held.header)
    }

    /// Takes the marks off pages whose checksum in the pool is the one that the replica has: they are not read.
    fn skip_known(&self) -> Result<()> {
        let store = self.store()?;
        let (Some(known), Some(checksums)) = (&self.known, &store.checksums) else { return Ok(()) };
        let in_use = self.in_use()?;
        for (first, count) in &in_use.summed {
            for first in (*first..first + count).step_by(COMPARED_AT_ONCE as usize) {
                let count = COMPARED_AT_ONCE.min(in_use.end_of(first) - first);
                let sums = known.get(first, count)?;
                if sums.iter().all(Option::is_none) {
                    continue;
                }
                // No page and its checksum are stored to while the applier waits.
                let held = hold(&store)?;
                let expected = checksums.expected_run(&store.medium, first, count)?;
                let same =
                    |(sum, expected): (&Option<u64>, &Expected)| sum.map(Expected::Sum) == Some(*expected);
                for (page, pair) in (first..).zip(sums.iter().zip(&expected)) {
                    if same(pair) {
                        self.changed.clear(Shipper::file_page(&store, page));
                    }
                }
                drop(held);
                if !self.place.stop.goes_on() {
                    return Err(Error::Aborted("replication was ended".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Number of a page of the heap among those of the file.
    fn file_page(store: &Store, page: u64) -> u64 {
        store.heap_start / PAGE + page
    }

    /// Number of pages that the replica may lack.
    fn marked(&self, in_use: &InUse) -> Result<u64> {
        let store = self.store()?;
        let marked = in_use.pages().filter(|page| self.changed.is_marked(Shipper::file_page(&store, *page)));
        Ok(marked.count() as u64)
    }

    /// Reads marked pages, up to one object's. They may be changed meanwhile; then they are marked again.
    fn some_pages(
        &self,
        in_use: &InUse,
        pages: &mut impl Iterator<Item = u64>,
        under_way: &mut UnderWay,
    ) -> Result<Pages> {
        let store = self.store()?;
        store.running()?;
        if !self.place.stop.goes_on() {
            return Err(Error::Aborted("replication was ended".to_owned()));
        }
        let mut found = Pages::default();
        let mut bytes = [0; PAGE as usize];
        while found.index.len() < PAGES_MAX
            && let Some(page) = pages.next()
        {
            match self.read_page(&store, in_use, page, &mut bytes)? {
                ReadPage::Known => {}
                ReadPage::New(sum) => {
                    under_way.read.insert(page);
                    found.push(page, sum, &bytes);
                }
                // It is read again when nothing is stored to.
                ReadPage::Odd => self.changed.mark(store.heap_start + page * PAGE, 1),
            }
        }
        Ok(found)
    }

    /// Reads a page if it is marked, and takes the mark off.
    fn read_page(
        &self,
        store: &Store,
        in_use: &InUse,
        page: u64,
        bytes: &mut [u8; PAGE as usize],
    ) -> Result<ReadPage> {
        if !self.changed.is_marked(Shipper::file_page(store, page)) {
            return Ok(ReadPage::Known);
        }
        self.changed.clear(Shipper::file_page(store, page));
        store.medium.read(store.heap_start + page * PAGE, bytes)?;
        let sum = page_sum(bytes);
        if let Some(checksums) = store.checksums.as_ref().filter(|_| in_use.is_summed(page))
            && checksums.expected(&store.medium, page)? != Expected::Sum(sum)
        {
            return Ok(ReadPage::Odd);
        }
        let has = self.known.as_ref().map_or(Ok(false), |known| known.has(page, sum))?;
        Ok(if has { ReadPage::Known } else { ReadPage::New(sum) })
    }

    /// Uploads pages as a part.
    fn put_part(&mut self, pages: &Pages, under_way: &mut UnderWay) -> Result<()> {
        let (object, entry) = encode_part(self.next, self.serial, &self.writer, pages);
        let (name, bytes) = (part_name(self.next, &self.writer, self.serial), object.len() as u64);
        let object = object.into();
        self.insist(|| self.place.put(&name, &object))?;
        self.serial += 1;
        under_way.parts.push(entry);
        under_way.bytes += bytes;
        under_way.pages += pages.index.len() as u64;
        self.replicated.uploaded(bytes);
        self.replicated.under_way(Some((under_way.pages, under_way.wanted)));
        self.note(&pages.index)
    }

    /// Holds the pool still and reads what is marked: the segment of this moment, and its pages.
    fn last_pages(&self, kind: SegmentKind, under_way: &mut UnderWay) -> Result<(Segment, HeldPages)> {
        let store = self.store()?;
        if !store.options.read_only {
            store.sync()?;
            store.place_all()?;
        }
        let mut found = HeldPages::new(&self.path);
        let held = hold(&store)?;
        let in_use = InUse::of(&store, &held.header)?;
        let mut segment = self.segment(kind, &held.header);
        (segment.sequence, segment.positions) = (held.applier.applied, held.applier.positions.clone());
        let mut types = vec![0; CATALOG_BYTES as usize];
        store.medium.read(CATALOG_START, &mut types)?;
        if kind == SegmentKind::Snapshot || self.catalog != Some(digest(&types)) {
            segment.catalog = Some(types);
        }
        let mut bytes = [0; PAGE as usize];
        for page in in_use.pages() {
            match self.read_page(&store, &in_use, page, &mut bytes)? {
                ReadPage::Known => {}
                ReadPage::New(sum) => {
                    under_way.read.insert(page);
                    found.push(page, sum, &bytes)?;
                }
                ReadPage::Odd => {
                    self.changed.mark(store.heap_start + page * PAGE, 1);
                    return Err(damaged(page));
                }
            }
        }
        Ok((segment, found))
    }

    /// Creates a segment's object.
    fn create(&mut self, segment: &Segment, pages: &[u8], under_way: &mut UnderWay) -> Result<()> {
        let (mut object, front) = segment.encode();
        object.extend_from_slice(pages);
        let (name, bytes) = (segment_name(segment.number), object.len() as u64);
        let object = object.into();
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
        under_way.bytes += bytes;
        self.replicated.uploaded(bytes);
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
        let listed = self.place.list_segments()?;
        for some in listed[..listed.partition_point(|one| one.number < number)].chunks(REMOVED_AT_ONCE) {
            let mut names = Vec::with_capacity(some.len());
            for listed in some {
                // A claim stays: a writer that was fenced by it finds it, however late.
                if listed.bytes < CLAIM_BYTES_MAX
                    && !read_front(&self.place, listed.number)?
                        .is_ok_and(|front| front.segment.kind != SegmentKind::Claim)
                {
                    continue;
                }
                names.push(segment_name(listed.number));
            }
            self.place.remove(&names)?;
        }
        let (parts, _) = self.place.list_parts(number)?;
        parts.chunks(REMOVED_AT_ONCE).try_for_each(|some| self.place.remove(some))
    }

    /// The place, for ending its calls.
    pub fn place(&self) -> &Place {
        &self.place
    }
}
