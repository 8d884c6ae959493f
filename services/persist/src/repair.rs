// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a damaged pool one that opens, on a copy, and says what it changed.
//!
//! - **Flow** copy ─▶ length ─▶ headers ─▶ lane heads ─▶ recovery ─▶ catalog ─▶ directory ─▶ bitmaps ─▶ slots that are pointed to
//!   and not in use ─▶ durable ─▶ named; then `check` says what is left
//! - **Rule** damage in the log that costs transactions is refused, unless the caller accepts the loss
//! - **Rule** the newer good header goes to both places; records that recovery does not take are not taken here either; an entry
//!   that makes no sense becomes what it was, or free (`check::directory`); a slot that the root leads to is in use. No pointer
//!   and no object is changed. Every change is in the list
//! - **Not here** a pool without one good header: there is nothing to go by

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::catalog::Catalog;
use crate::check::directory::{judge, marked};
use crate::check::home::Home;
use crate::check::lost_keys::lost_keys;
use crate::check::objects::{Heap, Place, resolve};
use crate::check::owned::{self, Audit};
use crate::check::snapshot::{Snapshot, lock_file};
use crate::check::types::Types;
use crate::check::{self, Files, Part, Report, directory_words, family, lanes};
use crate::checksums::{Checksums, PAGE, used_pages};
use crate::error::{Error, Result};
use crate::fresh::Fresh;
use crate::holes::Holes;
use crate::interleave;
use crate::layout::{
    CATALOG_BYTES, CATALOG_START, Entry, HEADER_BYTES, Header, LaneHead, SLAB_BYTES, crc32c, slots,
};
use crate::medium::{Counters, Geometry, Mapped, Medium};
use crate::options::{Domain, Mechanism};
use crate::recover::{self, Loss};
use crate::tail;
use memlift_ground::locked_file::LockedFile;

/// One thing that was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The part of the file that was changed.
    pub part: Part,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// A sentence for the user.
    pub what: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}: {}", self.part.name(), self.offset, self.what)
    }
}

/// Result of a repair: the changes, and the findings that are left.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Every change, in order.
    pub changes: Vec<Change>,
    /// Report of a check of the repaired copy.
    pub report: Report,
}

/// Repairs a copy of `source`, which becomes the new file `target`. Of an interleaved pool, the copies of the other files become
/// `target.1`, `target.2`, …
///
/// # Errors
///
/// [`Error::Corrupt`] when neither header is good, or the log says impossible things; [`Error::LogDamaged`]; those of
/// [`crate::check::check`]; [`Error::Exists`] and [`Error::File`] of the target. Then there is no target.
pub fn repair(source: impl Files, target: impl AsRef<Path>) -> Result<Repaired> {
    copy(source, target, Loss::Refuse)
}

/// As [`repair()`], but goes on without the transactions that damage in the log costs: the damaged one and all after it. An undo
/// pool puts back everything that its log still has; what a damaged record would have put back stays as it is.
///
/// # Errors
///
/// As [`repair()`], but never [`Error::LogDamaged`].
pub fn repair_accepting_loss(source: impl Files, target: impl AsRef<Path>) -> Result<Repaired> {
    copy(source, target, Loss::Accept)
}

fn copy(source: impl Files, target: impl AsRef<Path>, loss: Loss) -> Result<Repaired> {
    let (sources, target) = (ordered(&source)?, target.as_ref());
    let guards = sources.iter().map(|source| lock_file(source, false)).collect::<Result<Vec<_>>>()?;
    let mut fresh = Vec::with_capacity(sources.len());
    for (at, source) in sources.iter().enumerate() {
        let one = Fresh::file(&numbered(target, at))?;
        std::fs::copy(source, one.path()).map_err(|error| failed("copy", source, error))?;
        fresh.push(one);
    }
    drop(guards);
    let made: Vec<PathBuf> = fresh.iter().map(|one| one.path()).collect();
    let changes = mend(&made, loss).map_err(|error| named(error, &sources))?;
    let mut repaired = finish(&made, changes)?;
    // The first file last: without it there is no pool.
    for one in fresh.into_iter().rev() {
        one.publish()?;
    }
    let targets: Vec<PathBuf> = (0..made.len()).map(|at| numbered(target, at)).collect();
    repaired.report.guarantee = check::summary(&targets)?.guarantee;
    Ok(repaired)
}

/// An error over copies names the files that were copied.
fn named(error: Error, sources: &[PathBuf]) -> Error {
    match error {
        Error::LogDamaged { what, transactions, .. } => {
            Error::LogDamaged { what, transactions, files: sources.to_vec() }
        }
        other => other,
    }
}

/// The pool's files, in the order of their devices.
fn ordered(files: &impl Files) -> Result<Vec<PathBuf>> {
    let paths = family(files)?;
    if paths.len() > 1 { interleave::in_order(&paths) } else { Ok(paths) }
}

/// Where the copy of a device goes: what was asked for, and from the second one on with its number behind.
fn numbered(target: &Path, device: usize) -> PathBuf {
    if device == 0 {
        return target.to_owned();
    }
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{device}"));
    PathBuf::from(name)
}

/// Repairs the file itself. What it held before is gone.
///
/// # Errors
///
/// As [`repair()`]; what was changed until then stays changed.
pub fn repair_in_place(files: impl Files) -> Result<Repaired> {
    in_place(files, Loss::Refuse)
}

/// As [`repair_in_place()`], but goes on without what damage in the log costs: see [`repair_accepting_loss()`].
///
/// # Errors
///
/// As [`repair_in_place()`], but never [`Error::LogDamaged`].
pub fn repair_in_place_accepting_loss(files: impl Files) -> Result<Repaired> {
    in_place(files, Loss::Accept)
}

fn in_place(files: impl Files, loss: Loss) -> Result<Repaired> {
    let paths = ordered(&files)?;
    let changes = mend(&paths, loss)?;
    finish(&paths, changes)
}

fn finish(paths: &[PathBuf], changes: Vec<Change>) -> Result<Repaired> {
    Ok(Repaired { changes, report: check::check(paths)? })
}

/// The file in repair.
struct Mend {
    medium: Medium,
    header: Header,
    changes: Vec<Change>,
    counters: Counters,
    /// Pages of the heap that were changed: their checksums have to follow.
    pages: BTreeSet<u64>,
}

fn mend(paths: &[PathBuf], loss: Loss) -> Result<Vec<Change>> {
    let files = paths.iter().map(|path| lock_file(path, true)).collect::<Result<Vec<_>>>()?;
    let clone = |(file, path): (&LockedFile, &PathBuf)| {
        file.try_clone().map(LockedFile::from).map_err(|source| failed("open", path, source))
    };
    let mut changes = Vec::new();
    let (medium, header) = if let ([file], [path]) = (&files[..], paths) {
        let header = Snapshot::read(clone((file, path))?, path)?.header().ok_or_else(|| {
            Error::corrupt("neither of its headers is good: sizes and mechanism are unknown, take a backup")
        })?;
        lengthen(file, path, header.file_bytes(), &mut changes)?;
        let bytes = file.metadata().map_err(|source| failed("stat", path, source))?.len();
        (Medium::Mapped(Mapped::new(clone((file, path))?, path, bytes, Domain::Pages, true)?), header)
    } else {
        let header = recover::header_of(&files[0], &paths[0])?;
        let geometry = Geometry::of(&header)?;
        for (at, (file, path)) in files.iter().zip(paths).enumerate() {
            lengthen(file, path, geometry.device_bytes(at as u64, header.file_bytes()), &mut changes)?;
        }
        let clones = files.iter().zip(paths).map(clone).collect::<Result<Vec<_>>>()?;
        let medium = interleave::of_files(clones, paths, |file, path, bytes| {
            let have = file.metadata().map_err(|source| failed("stat", path, source))?.len();
            Mapped::new(file, path, bytes.max(have), Domain::Pages, true)
        })?;
        (medium, header)
    };
    let mut mend = Mend { medium, header, changes, counters: Counters::default(), pages: BTreeSet::new() };
    mend.epoch()?;
    mend.headers()?;
    mend.heads()?;
    mend.checksums()?;
    mend.log(loss)?;
    mend.catalog()?;
    mend.heap(paths, loss)?;
    mend.close()?;
    Ok(mend.changes)
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

fn lengthen(file: &File, path: &Path, wanted: u64, changes: &mut Vec<Change>) -> Result<()> {
    let bytes = file.metadata().map_err(|source| failed("stat", path, source))?.len();
    if bytes < wanted {
        file.set_len(wanted).map_err(|source| failed("lengthen", path, source))?;
        let what = format!(
            "{} bytes were missing at the end and are zeros now: what was there is lost",
            wanted - bytes
        );
        changes.push(Change { part: Part::File, offset: bytes, what });
    }
    Ok(())
}

impl Mend {
    fn change(&mut self, part: Part, offset: u64, what: impl Into<String>) {
        self.changes.push(Change { part, offset, what: what.into() });
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.medium.store(offset, bytes, &mut self.counters)?;
        self.medium.write_back(offset, bytes.len() as u64, &mut self.counters);
        Ok(())
    }

    fn harden(&mut self) -> Result<()> {
        self.medium.harden(&mut self.counters)
    }

    /// When the newest header is lost, what it said last is in the log: its epoch.
    fn epoch(&mut self) -> Result<()> {
        let Some(epoch) = lanes::later_epoch(&self.medium, &self.header)? else { return Ok(()) };
        let what = format!(
            "epoch {} instead of {epoch}, which the log is of: the newest header was lost",
            self.header.epoch
        );
        self.change(Part::Header, self.header.generation % 2 * HEADER_BYTES, what);
        self.header.epoch = epoch;
        self.header.generation += 1;
        self.medium.write_header(&self.header, &mut self.counters)
    }

    /// Without the places of its checksums, a pool has none.
    fn checksums(&mut self) -> Result<()> {
        if Checksums::read(&self.medium, &self.header).is_ok() {
            return Ok(());
        }
        let place = self.header.heap_start + u64::from(self.header.checksum_index) * SLAB_BYTES;
        let what = "the places of the checksums of pages are damaged: there are none any more, until `pool convert` makes them anew";
        self.change(Part::Pages, place, what);
        self.header = self.header.without_checksums();
        self.header.generation += 1;
        self.medium.write_header(&self.header, &mut self.counters)?;
        self.harden()
    }

    /// Stores to the heap.
    fn put(&mut self, home: &Home, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pages.insert(offset / PAGE);
        home.store(&self.medium, offset, bytes, &mut self.counters)
    }

    /// Pages that do not have their checksum, but for those that were mended.
    fn damaged(&self, directory: &[Entry], marked: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let Some(checksums) = Checksums::read(&self.medium, &self.header)? else {
            return Ok(BTreeSet::new());
        };
        let mut damaged = BTreeSet::new();
        for page in used_pages(directory, marked).filter(|page| !self.pages.contains(page)) {
            if !checksums.holds(&self.medium, page)? {
                damaged.insert(page);
            }
        }
        Ok(damaged)
    }

    /// Sums the pages that were changed. Where the caller accepts the loss, what is in damaged pages holds from now on.
    fn sums(&mut self, directory: &[Entry], marked: &BTreeSet<u64>, loss: Loss) -> Result<()> {
        let Some(checksums) = Checksums::read(&self.medium, &self.header)? else { return Ok(()) };
        for page in std::mem::take(&mut self.pages) {
            checksums.renew(&self.medium, page, &mut self.counters)?;
        }
        if loss == Loss::Refuse {
            return Ok(());
        }
        for page in used_pages(directory, marked) {
            if !checksums.holds(&self.medium, page)? {
                let what = "it does not have its checksum: what it holds now is taken as it is, as accepted";
                self.change(Part::Pages, self.header.heap_start + page * PAGE, what);
                checksums.renew(&self.medium, page, &mut self.counters)?;
            }
        }
        Ok(())
    }

    /// Both places get the header that holds.
    fn headers(&mut self) -> Result<()> {
        for turn in 0..2 {
            let mut page = vec![0; HEADER_BYTES as usize];
            self.medium.read(turn * HEADER_BYTES, &mut page)?;
            if let Err(error) = Header::decode(&page) {
                // A new pool has one header until it is opened.
                if self.header.generation > 1 {
                    let generation = self.header.generation;
                    let what = format!(
                        "not good ({error}); written anew from the other one, generation {generation}"
                    );
                    self.change(Part::Header, turn * HEADER_BYTES, what);
                }
                let mut page = vec![0; HEADER_BYTES as usize];
                let bytes = self.header.encode();
                page[..bytes.len()].copy_from_slice(&bytes);
                self.store(turn * HEADER_BYTES, &page)?;
            }
        }
        self.harden()
    }

    /// A lane with both heads torn starts where its records that are not applied start.
    fn heads(&mut self) -> Result<()> {
        let mut heads = Vec::new();
        for lane in 0..self.header.lanes {
            heads.push(lanes::heads(&self.medium, lane)?);
        }
        let mut applied = heads.iter().flatten().flatten().map(|head| head.applied).max().unwrap_or(0);
        let newest =
            |pair: &[Option<LaneHead>; 2]| pair.iter().flatten().max_by_key(|head| head.position).copied();
        let mut good: Vec<Option<LaneHead>> = heads.iter().map(newest).collect();
        for lane in 0..self.header.lanes {
            let torn = heads[lane as usize].iter().any(Option::is_none);
            let head = &mut good[lane as usize];
            if torn && !head.map_or(Ok(false), |head| self.leads_on(lane, &head))? {
                *head = Some(self.lost_head(lane, applied)?);
            }
        }
        let good: Vec<LaneHead> = good.into_iter().flatten().collect();
        if heads.iter().flatten().any(Option::is_none) && tail::one_order(&self.header) {
            applied = applied.max(self.applied_before(&good)?);
        }
        for (lane, pair) in (0..self.header.lanes).zip(heads) {
            let torn: Vec<u64> = (0..2).filter(|turn| pair[*turn as usize].is_none()).collect();
            if torn.is_empty() {
                continue;
            }
            let head = LaneHead { applied, ..good[lane as usize] };
            for turn in torn {
                let offset = LaneHead::offset(lane, turn);
                let what = format!(
                    "torn; lane {lane} starts at position {}, and everything up to transaction {} is applied",
                    head.position, head.applied
                );
                self.change(Part::Log, offset, what);
                self.store(offset, &head.encode())?;
            }
        }
        self.harden()
    }

    /// Returns true if a lane's only good head is the one that recovery starts from. The torn head may have been newer: then the
    /// records behind this one are of a later round, and good ones lie further on.
    fn leads_on(&self, lane: u32, head: &LaneHead) -> Result<bool> {
        if self.header.mechanism == Mechanism::Undo as u8 {
            return Ok(true);
        }
        let (ring, salt) = (lanes::ring(&self.medium, &self.header, lane)?, self.header.salt(lane));
        let later =
            || lanes::anywhere(&ring, salt, head.position).iter().any(|one| one.sequence > head.applied);
        Ok(lanes::good(&ring, head.position, salt).is_some() || !later())
    }

    /// The last transaction before those that wait without a gap, up to the latest one.
    fn applied_before(&self, heads: &[LaneHead]) -> Result<u64> {
        let mut waiting = BTreeSet::new();
        for (lane, head) in (0..self.header.lanes).zip(heads) {
            let ring = lanes::ring(&self.medium, &self.header, lane)?;
            let found = lanes::anywhere(&ring, self.header.salt(lane), head.position);
            waiting.extend(found.iter().map(|one| one.sequence).filter(|sequence| *sequence > 0));
        }
        let Some(last) = waiting.last() else { return Ok(0) };
        let run = waiting.iter().rev().zip(0..).take_while(|(sequence, back)| **sequence == last - back);
        Ok(run.last().map_or(0, |(first, _)| first - 1))
    }

    fn lost_head(&self, lane: u32, applied: u64) -> Result<LaneHead> {
        if self.header.mechanism == Mechanism::Undo as u8 {
            return Err(Error::corrupt(format!(
                "both heads of lane {lane} are torn: which of its before-images were committed cannot be told; take a backup"
            )));
        }
        let ring = lanes::ring(&self.medium, &self.header, lane)?;
        let found = lanes::anywhere(&ring, self.header.salt(lane), 0);
        // Backwards from the last one, as long as each ends where the next begins and is not applied.
        let mut start =
            found.last().map_or(0, |last| last.position.saturating_add(lanes::step(last, ring.len() as u64)));
        for one in found.iter().rev() {
            let end = one.position.checked_add(lanes::step(one, ring.len() as u64));
            let wrap = one.sequence == 0;
            if end != Some(start) || (!wrap && one.sequence <= applied) {
                break;
            }
            start = one.position;
        }
        Ok(LaneHead { position: start, applied })
    }

    /// The pool's own recovery.
    fn log(&mut self, loss: Loss) -> Result<()> {
        let header = recover::read_header(&self.medium)?;
        header.check_writable()?;
        let state = recover::recover(&self.medium, true, loss, &Holes::find(&self.medium, &header)?)?;
        if let Some(lost) = state.lost {
            let what = format!(
                "{}: {} transactions from {} on are lost, as accepted",
                lost.what, lost.transactions, lost.from
            );
            self.change(Part::Log, crate::layout::LANES_START, what);
        }
        if state.recovered.transactions > 0 {
            let what = format!(
                "{} transactions ({} bytes) were replayed",
                state.recovered.transactions, state.recovered.log_bytes
            );
            self.change(Part::Log, crate::layout::LANES_START, what);
        }
        self.header = state.header;
        Ok(())
    }

    /// Types behind a record that is not whole move up.
    fn catalog(&mut self) -> Result<()> {
        let end = Catalog::read(&self.medium)?.end() as usize;
        let mut bytes = vec![0; CATALOG_BYTES as usize];
        self.medium.read(CATALOG_START, &mut bytes)?;
        if bytes[end..].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let (mut kept, mut at, mut names) = (bytes[..end].to_vec(), end, Vec::new());
        while let Some(head) = bytes.get(at..at + 8) {
            let length = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
            let crc = u32::from_le_bytes(head[4..].try_into().expect("4 bytes"));
            let text = (at + 8).checked_add(length).and_then(|to| bytes.get(at + 8..to));
            match text.filter(|text| length > 0 && crc32c(&[text]) == crc) {
                Some(text) => {
                    let next = (at + 8 + length.next_multiple_of(8)).min(bytes.len());
                    let line = String::from_utf8_lossy(text);
                    names.push(
                        line.lines()
                            .next()
                            .and_then(|line| line.splitn(4, ' ').nth(3))
                            .unwrap_or("?")
                            .to_owned(),
                    );
                    kept.extend_from_slice(&bytes[at..next]);
                    at = next;
                }
                None => at += 8,
            }
        }
        let what = format!(
            "a record that is not whole was taken out; behind it are: {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        );
        self.change(Part::Catalog, CATALOG_START + end as u64, what);
        kept.resize(bytes.len(), 0);
        self.store(CATALOG_START, &kept)?;
        self.harden()
    }

    /// Directory and bitmaps.
    fn heap(&mut self, paths: &[PathBuf], loss: Loss) -> Result<()> {
        self.harden()?;
        let open = |path: &PathBuf| {
            File::open(path).map(LockedFile::from).map_err(|source| failed("open", path, source))
        };
        let mut snapshot = Snapshot::read_all(paths.iter().map(open).collect::<Result<_>>()?, paths)?;
        snapshot.recover()?;
        let home = Home::of(&self.medium, &self.header)?;
        let types = Types::new(Catalog::read(&self.medium)?.records());
        let words = directory_words(&snapshot, &self.header)?;
        let marked = marked(&snapshot, &self.header)?;
        let (mut directory, mut odd) = judge(&words, &marked, &self.header, &types);
        resolve(&snapshot, &mut directory, &mut odd, &types)?;
        for one in odd {
            let first = one.proposed.first().map_or(0, |(offset, _)| home.place(*offset));
            self.change(Part::Directory, first, one.what);
            for (offset, word) in one.proposed {
                self.put(&home, offset, &word.to_le_bytes())?;
            }
        }
        let (heap, beyond) = Heap::new(&snapshot, directory, &types)?;
        for one in beyond {
            for (offset, found, proposed) in one.words {
                let bits = (found ^ proposed).count_ones();
                let what = format!("{bits} bits of slots that slab {} does not have were cleared", one.slab);
                self.change(Part::Bitmap, home.place(offset), what);
                self.put(&home, offset, &proposed.to_le_bytes())?;
            }
        }
        for one in heap.reach(true)?.dangling {
            let Some(place) = one.free else { continue };
            let entry = heap.directory[place.slab as usize];
            debug_assert!(place.slot < slots(entry.stride.into()).0);
            let what = format!(
                "the {} at {:#x} of the heap was free, and {} points to it: in use again",
                types.name(place.tag),
                place.start,
                one.field
            );
            self.mark(&home, &place, true, what)?;
        }
        let audit = Audit::new(&heap, &self.header)?;
        if loss == Loss::Accept {
            let damaged = self.damaged(&heap.directory, &marked)?;
            for lost in lost_keys(&audit, &damaged)? {
                let what = format!("{}: what is there now is taken as it is, as accepted", lost.what);
                self.change(Part::Keys, self.header.heap_start, what);
            }
        }
        let owned = owned::scan(&audit)?;
        for place in owned.free {
            let what =
                format!("the object at {:#x} of the heap was free, and is led to: in use again", place.start);
            self.mark(&home, &place, true, what)?;
        }
        for place in
            owned.stray.iter().filter(|place| heap.directory[place.slab as usize].state == Entry::SLOTS)
        {
            let what = format!(
                "the slot at {:#x} of the heap was in use, and nothing leads to it: free",
                place.start
            );
            self.mark(&home, place, false, what)?;
        }
        self.sums(&heap.directory, &marked, loss)?;
        self.harden()
    }

    /// Marks a slot as in use or free, if it is not yet.
    fn mark(&mut self, home: &Home, place: &Place, used: bool, what: String) -> Result<()> {
        let offset = place.slab * SLAB_BYTES + place.slot / 64 * 8;
        let mut word = [0; 8];
        home.read(&self.medium, offset, &mut word)?;
        let (before, bit) = (u64::from_le_bytes(word), 1 << (place.slot % 64));
        let after = if used { before | bit } else { before & !bit };
        if after == before {
            return Ok(());
        }
        self.change(Part::Bitmap, home.place(offset), what);
        self.put(home, offset, &after.to_le_bytes())
    }

    fn close(&mut self) -> Result<()> {
        for _ in 0..2 {
            self.header.generation += 1;
            self.header.clean = true;
            self.medium.write_header(&self.header, &mut self.counters)?;
        }
        Ok(())
    }
}
