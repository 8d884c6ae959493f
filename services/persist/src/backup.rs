// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy of a pool that goes on being used.
//!
//! - **Flow** pages in use ─▶ a new file, while transactions commit ─▶ what changed meanwhile, again, until it is little ─▶ the rest,
//!   types and header, while the log waits ─▶ durable, read back and compared ─▶ linked to its name
//! - **Rule** the copy has what was committed before the call, and of what is committed meanwhile a beginning of its order
//! - **Rule** a page in use is changed by the applier only, so holding it holds the heap still; commits go on as long as their lane has
//!   room. What pages should be says which have changed since they were copied, and that none is copied that is damaged
//! - **Rule** the copy is a closed pool with an empty log, in one file. It has the pool's identity
//! - **Undo, shadow** have no checksums, and undo no log to wait in: all of the file is copied, while transactions wait
//! - **Not here** a pool whose owner is another process: the owner copies it

use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::applier::Applier;
use crate::checksums::{Expected, PAGE, SLAB_PAGES, damaged, page_sum};
use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::layout::{
    BODIES_BYTES, BODIES_OFFSET, CATALOG_BYTES, CATALOG_START, Entry, HEADER_BYTES, Header, LaneHead,
    SLAB_BYTES, ZONE_SLABS, is_system,
};
use crate::lock::lock;
use crate::options::Mechanism;
use crate::pool::Pool;
use crate::section::Shared;
use crate::store::Store;

/// Pages that are read and written at once: 1 MiB.
const PIECE_PAGES: u64 = 256;
/// Pages whose checksums are looked up before others may have the applier.
const LOOKED_PAGES: u64 = 1 << 14;
/// So little is copied while the log waits, if the pool changes slowly enough. Bytes.
const LITTLE_BYTES: u64 = 8 << 20;
/// Rounds before the last one, at most: each is for what changed in the one before it.
const ROUNDS_MAX: u32 = 8;

/// How [`Pool::backup`] copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupOptions {
    /// Bytes that are copied in a second, at most. Not the last of them, for which the log waits. None: no limit.
    pub bytes_per_second: Option<NonZeroU64>,
}

/// Result of [`Pool::backup`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackedUp {
    /// Bytes of pages in use: what the copy holds.
    pub bytes: u64,
    /// Bytes that were copied, with what changed meanwhile and was copied again.
    pub copied: u64,
    /// Bytes of these that were copied while the log waited.
    pub held_bytes: u64,
    /// How long it waited.
    pub held: Duration,
    /// Rounds of copying, the last one included.
    pub rounds: u32,
}

impl Pool {
    /// Writes a copy of the pool to the new file `target`, while others use the pool. The copy is a pool of its own: it is opened, checked and
    /// copied back like any other. `goes_on` hears how many bytes of how many are copied, and stops the copying with false.
    ///
    /// Call it outside of transactions: but for redo it waits for all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]: nothing is overwritten; [`Error::Corrupt`] for a page that is damaged; [`Error::Aborted`] when `goes_on` said false;
    /// [`Error::File`], [`Error::Stopped`]. There is no copy then.
    pub fn backup(
        &self,
        target: impl AsRef<Path>,
        options: BackupOptions,
        goes_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<BackedUp> {
        let (store, target) = (self.store(), target.as_ref());
        let fresh = Fresh::file(target)?;
        let mut copy = Copy {
            store,
            file: fresh.open()?,
            path: target,
            sums: Vec::new(),
            base: store.heap_start,
            done: BackedUp::default(),
            pace: Pace { options, start: Instant::now(), bytes: 0 },
            goes_on,
        };
        copy.synced()?;
        match store.mechanism {
            Mechanism::Redo | Mechanism::Checkpoint => copy.heap_and_end()?,
            Mechanism::Undo | Mechanism::Shadow => copy.whole()?,
        }
        copy.file.sync_all().map_err(file_error("sync", target))?;
        copy.compare()?;
        let done = copy.done;
        fresh.publish()?;
        Ok(done)
    }
}

/// Keeps copying below its limit.
struct Pace {
    options: BackupOptions,
    start: Instant,
    bytes: u64,
}

impl Pace {
    fn wait(&mut self, bytes: u64) {
        self.bytes += bytes;
        let Some(limit) = self.options.bytes_per_second else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / limit.get() as f64);
        if let Some(early) = due.checked_sub(self.start.elapsed()) {
            std::thread::sleep(early);
        }
    }
}

struct Copy<'s, F> {
    store: &'s Store,
    file: File,
    path: &'s Path,
    /// Sums of pages as they were copied, from `base` in the file on; None: not copied.
    sums: Vec<Option<u64>>,
    base: u64,
    done: BackedUp,
    pace: Pace,
    goes_on: F,
}

impl<F: FnMut(u64, u64) -> bool> Copy<'_, F> {
    /// Everything that is committed by now comes into the copy.
    fn synced(&self) -> Result<()> {
        if self.store.options.read_only {
            return self.store.running();
        }
        self.store.sync()?;
        self.store.apply_all()
    }

    /// Says how far it is, and stops it if somebody wants that.
    fn tell(&mut self, done: u64, total: u64) -> Result<()> {
        if (self.goes_on)(done, total) {
            return Ok(());
        }
        Err(Error::Aborted("the pool was not copied to its end, so there is no copy".to_owned()))
    }

    fn write(&self, bytes: &[u8], place: u64) -> Result<()> {
        self.file.write_all_at(bytes, place).map_err(file_error("write", self.path))
    }

    /// The copy of a pool with a log.
    fn heap_and_end(&mut self) -> Result<()> {
        let mut last = u64::MAX;
        while self.store.checksums.is_some() && self.done.rounds < ROUNDS_MAX {
            let pages = self.changed()?;
            let bytes = pages.iter().map(|run| run.1).sum::<u64>() * PAGE;
            if self.done.rounds > 0 && (bytes <= LITTLE_BYTES || bytes > last / 2) {
                break; // or it changes as fast as it is copied
            }
            last = bytes;
            let mut done = 0;
            for (first, count) in pieces(&pages) {
                self.tell(done, bytes)?;
                self.copy_pages(first, count)?;
                self.pace.wait(count * PAGE);
                done += count * PAGE;
            }
            self.done.rounds += 1;
            self.synced()?;
        }
        self.end()
    }

    /// The rest, while the applier waits.
    fn end(&mut self) -> Result<()> {
        let store = self.store;
        let applier = lock(&store.applier);
        let start = Instant::now();
        // Whoever lets the pool grow now, or adds a type, is no earlier than what is applied.
        let (bodies, header) = (lock(&store.bodies), *lock(&store.header));
        store.running()?;
        let used = used(store, &header)?;
        self.sums.resize((header.heap_bytes / PAGE) as usize, None);
        self.done.bytes = used.iter().map(|run| run.1).sum::<u64>() * PAGE;
        let before = self.done.copied;
        for (first, count) in pieces(&self.differing(&used)?) {
            self.copy_pages(first, count)?;
            for page in first..first + count {
                if let Some(checksums) = &store.checksums
                    && checksums.expected(&store.medium, page)? != self.sum(page)
                {
                    return Err(damaged(page));
                }
            }
        }
        let within = |(first, count): &(u64, u64)| (first + count) * SLAB_BYTES <= header.heap_bytes;
        for (first, count) in store.checksums.iter().flat_map(|checksums| checksums.slabs()).filter(within) {
            for (first, count) in pieces(&[(first * SLAB_PAGES, count * SLAB_PAGES)]) {
                self.copy_pages(first, count)?;
            }
        }
        self.types()?;
        self.heads(&applier)?;
        self.header(Header { clean: true, devices: 1, device: 0, stripe_bytes: 0, ..header })?;
        drop((bodies, applier));
        self.done.held = start.elapsed();
        self.done.held_bytes = self.done.copied - before;
        self.done.rounds += 1;
        Ok(())
    }

    /// Pages in use that the copy lacks, or has as they were: runs of them.
    fn changed(&mut self) -> Result<Vec<(u64, u64)>> {
        let store = self.store;
        let used = {
            let _applier = lock(&store.applier);
            let (_bodies, header) = (lock(&store.bodies), lock(&store.header));
            self.sums.resize((header.heap_bytes / PAGE) as usize, None);
            used(store, &header)?
        };
        let mut changed = Vec::new();
        for piece in pieces_of(&used, LOOKED_PAGES) {
            let _applier = lock(&store.applier);
            changed.extend(self.differing(&[piece])?);
        }
        Ok(changed)
    }

    /// Of these pages, those that the copy lacks, or has as they were. The caller holds the applier.
    fn differing(&self, pages: &[(u64, u64)]) -> Result<Vec<(u64, u64)>> {
        let Some(checksums) = &self.store.checksums else { return Ok(pages.to_vec()) };
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in pages.iter().flat_map(|(first, count)| *first..first + count) {
            let copied = self.sums[page as usize].is_some();
            if copied && checksums.expected(&self.store.medium, page)? == self.sum(page) {
                continue;
            }
            match runs.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => runs.push((page, 1)),
            }
        }
        Ok(runs)
    }

    /// The sum of a page as it was copied, if it was.
    fn sum(&self, page: u64) -> Expected {
        self.sums[page as usize].map_or(Expected::Unknown, Expected::Sum)
    }

    /// Copies pages of the heap as they are in the file. One that is stored to meanwhile is copied again later.
    fn copy_pages(&mut self, first: u64, count: u64) -> Result<()> {
        let mut bytes = vec![0; (count * PAGE) as usize];
        self.store.medium.read(self.store.heap_start + first * PAGE, &mut bytes)?;
        for (page, content) in (first..).zip(bytes.chunks_exact(PAGE as usize)) {
            self.sums[page as usize] = Some(page_sum(content));
        }
        self.write(&bytes, self.store.heap_start + first * PAGE)?;
        self.done.copied += count * PAGE;
        Ok(())
    }

    fn types(&self) -> Result<()> {
        let _catalog = lock(&self.store.catalog);
        let mut types = vec![0; CATALOG_BYTES as usize];
        self.store.medium.read(CATALOG_START, &mut types)?;
        self.write(&types, CATALOG_START)
    }

    /// Lanes are holes; each head says that everything before it is applied.
    fn heads(&self, applier: &Applier) -> Result<()> {
        for (lane, position) in (0..).zip(&applier.positions) {
            let head = LaneHead { position: *position, applied: applier.applied };
            for turn in 0..2 {
                self.write(&head.encode(), LaneHead::offset(lane, turn))?;
            }
        }
        Ok(())
    }

    fn header(&self, header: Header) -> Result<()> {
        self.file.set_len(header.file_bytes()).map_err(file_error("size", self.path))?;
        for place in 0..2 {
            self.write(&header.encode(), place * HEADER_BYTES)?;
        }
        Ok(())
    }

    /// All of the file, while transactions wait. The copy is a pool that was not closed.
    fn whole(&mut self) -> Result<()> {
        let store = self.store;
        // A checkpoint holds what is dirty while it writes.
        let held = (Shared::lock(&store.sections, None), store.dirty.write(), lock(&store.applier));
        store.running()?;
        let start = Instant::now();
        let header = *lock(&store.header);
        let total = header.file_bytes();
        let zeros = [0; PAGE as usize];
        (self.base, self.sums) = (0, vec![None; (total / PAGE) as usize]);
        let mut at = 2 * HEADER_BYTES;
        while at < total {
            self.tell(at, total)?;
            let mut bytes = vec![0; (PIECE_PAGES * PAGE).min(total - at) as usize];
            store.medium.read(at, &mut bytes)?;
            for (page, content) in (at / PAGE..).zip(bytes.chunks_exact(PAGE as usize)) {
                self.sums[page as usize] = Some(page_sum(content));
                if content != zeros {
                    self.write(content, page * PAGE)?;
                    self.done.copied += PAGE;
                }
            }
            at += bytes.len() as u64;
        }
        self.header(Header { devices: 1, device: 0, stripe_bytes: 0, ..header })?;
        drop(held);
        self.done = BackedUp { bytes: total, held_bytes: self.done.copied, rounds: 1, ..self.done };
        self.done.held = start.elapsed();
        Ok(())
    }

    /// Compares what the disk gives back with what was written.
    fn compare(&mut self) -> Result<()> {
        // Else the pages come from memory. Where the system does not do it, they do.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        let sums = std::mem::take(&mut self.sums);
        let mut bytes = vec![0; (PIECE_PAGES * PAGE) as usize];
        for (sums, at) in sums.chunks(PIECE_PAGES as usize).zip((self.base..).step_by(bytes.len())) {
            if sums.iter().all(Option::is_none) {
                continue;
            }
            self.tell(self.done.bytes, self.done.bytes)?;
            let bytes = &mut bytes[..sums.len() * PAGE as usize];
            self.file.read_exact_at(bytes, at).map_err(file_error("read back", self.path))?;
            for (page, (content, sum)) in bytes.chunks_exact(PAGE as usize).zip(sums).enumerate() {
                if sum.is_some_and(|sum| sum != page_sum(content)) {
                    return Err(Error::corrupt(format!(
                        "{}: the disk gave other bytes back at {:#x} than were written there",
                        self.path.display(),
                        at + page as u64 * PAGE
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The same pages, in runs of at most [`PIECE_PAGES`].
fn pieces(runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    pieces_of(runs, PIECE_PAGES)
}

fn pieces_of(runs: &[(u64, u64)], most: u64) -> Vec<(u64, u64)> {
    let piece = |first: u64, count: u64| {
        (0..count).step_by(most as usize).map(move |at| (first + at, most.min(count - at)))
    };
    runs.iter().flat_map(|(first, count)| piece(*first, *count)).collect()
}

/// Pages in use as the file's directory says: runs of them. The caller holds the applier and the zones.
pub(crate) fn used(store: &Store, header: &Header) -> Result<Vec<(u64, u64)>> {
    let slabs = header.heap_bytes / SLAB_BYTES;
    let heap = |offset: u64, target: &mut [u8]| store.medium.read(store.heap_start + offset, target);
    let mut bodies = vec![0; BODIES_BYTES as usize];
    if header.has_spans() {
        heap(BODIES_OFFSET, &mut bodies)?;
    }
    let is_body = |zone: u64| bodies.get(zone as usize / 8).is_some_and(|byte| byte >> (zone % 8) & 1 == 1);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut note = |slab: u64, count: u64| {
        let count = count.min(slabs - slab);
        match runs.last_mut() {
            Some((first, have)) if *first + *have == slab => *have += count,
            _ => runs.push((slab, count)),
        }
    };
    for zone in (0..slabs.div_ceil(ZONE_SLABS)).filter(|zone| !is_body(*zone)) {
        let first = zone * ZONE_SLABS;
        let count = ZONE_SLABS.min(slabs - first);
        let mut directory = vec![0; (count * 16).min((slabs - first) * SLAB_BYTES) as usize];
        heap(Entry::offset(first), &mut directory)?;
        for (slab, bytes) in (first..).zip(directory.as_chunks::<16>().0) {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            let entry = Entry::from_words([word(0), word(8)]);
            match entry.state {
                _ if is_system(slab) => note(slab, 1),
                Entry::FREE => {}
                Entry::SPAN => note(slab, entry.slabs()),
                _ => note(slab, 1),
            }
        }
    }
    Ok(runs.into_iter().map(|(slab, count)| (slab * SLAB_PAGES, count * SLAB_PAGES)).collect())
}
