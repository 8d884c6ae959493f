// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool made of a replica, as it was at a moment.
//!
//! - **Flow** the last segment of the moment ─▶ fronts back to its snapshot ─▶ pages of the snapshot, then of each segment, into a file
//!   without a name ─▶ types, lane heads, header ─▶ durable ─▶ linked to its name
//! - **Rule** every object is compared with its checksum before a byte of it is used, and the whole history from the snapshot on is there, or
//!   there is no file. The error says up to which moment there could be one
//! - **Rule** nothing is overwritten
//! - **Rule** memory does not grow with the pool: a few objects of 8 MiB, and 72 bytes for each segment since the snapshot
//! - **Trust** the store is hostile: pages lie in the heap that the pool's header gives, and that header is checked as a file's is

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::chain::{Link, Walked, numbers, read_front, walk};
use super::format::{
    Digest, IndexEntry, PART_BYTES_MAX, PartEntry, Segment, SegmentKind, check_pages, decode_part,
};
use super::place::{GoesOn, Place, Stop, part_name, segment_name};
use super::utc::{micros, time, utc};
use crate::checksums::PAGE;
use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::layout::{CATALOG_START, HEADER_BYTES, Header, LaneHead};

/// Objects that are planned at once.
const BATCH: usize = 1024;

/// Result of [`restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The moment whose state the pool has.
    pub time: SystemTime,
    /// The last transaction in it, by its number in the pool's order; 0 where only the pool's writer knew it.
    pub sequence: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Bytes of a restore that were read, of all that it reads; the second is 0 until the history is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fetched {
    /// Bytes of objects that are in the new file.
    pub done: u64,
    /// Bytes of all objects.
    pub total: u64,
}

/// Makes the new file `target` of the replica at `url`: the pool as it was at `at`, or as late as the replica has it.
///
/// # Errors
///
/// [`Error::Exists`]: nothing is overwritten; [`Error::NoReplica`]; [`Error::ReplicaStore`]; [`Error::Replica`] when an object is missing
/// or damaged: the text says up to which moment a restore is possible; [`Error::File`].
pub fn restore(url: &str, target: impl AsRef<Path>, at: Option<SystemTime>) -> Result<Restored> {
    restore_from(&Place::of(url, false, Stop::default())?, target.as_ref(), at, &Counted::default())
}

/// As [`restore`]; `goes_on` hears some ten times a second how far it is, also while the store does not answer, and ends it by false.
///
/// # Errors
///
/// As [`restore`]; [`Error::Aborted`] when `goes_on` said false: then there is no file.
pub fn restore_watched(
    url: &str,
    target: impl AsRef<Path>,
    at: Option<SystemTime>,
    goes_on: impl Fn(Fetched) -> bool + Send + Sync + 'static,
) -> Result<Restored> {
    let counted = Arc::new(Counted::default());
    let theirs = Arc::clone(&counted);
    let asks: GoesOn = Box::new(move || goes_on(theirs.fetched()));
    let place = Place::of(url, false, Stop::asking(asks))?;
    let aborted = || Error::Aborted("the restore was ended, so there is no file".to_owned());
    match restore_from(&place, target.as_ref(), at, &counted) {
        Err(Error::Aborted(_)) => Err(aborted()),
        done => done,
    }
}

/// How far a restore is, for another thread.
#[derive(Debug, Default)]
struct Counted {
    done: AtomicU64,
    total: AtomicU64,
}

impl Counted {
    fn fetched(&self) -> Fetched {
        Fetched { done: self.done.load(Ordering::Relaxed), total: self.total.load(Ordering::Relaxed) }
    }
}

fn restore_from(place: &Place, target: &Path, at: Option<SystemTime>, counted: &Counted) -> Result<Restored> {
    let fresh = Fresh::file(target)?;
    let numbers = numbers(place)?;
    if numbers.is_empty() {
        return Err(Error::NoReplica { url: place.name().to_owned() });
    }
    let wanted = match at {
        Some(at) => &numbers[..=last_until(place, &numbers, micros(at))?],
        None => &numbers[..],
    };
    let walked = walk(place, wanted, |_| Ok(()))?;
    if let Some((number, why)) = &walked.broken {
        return Err(broken(place, &numbers, *number, why));
    }
    counted.total.store(walked.bytes, Ordering::Relaxed);
    let file = fresh.open()?;
    let mut target =
        Target { place, numbers: &numbers, file, path: target, counted, last: None, types: None };
    target.write_all(&walked)?;
    let restored = target.finish(&walked)?;
    if !place.stop.goes_on() {
        return Err(Error::Aborted(String::new()));
    }
    fresh.publish()?;
    Ok(restored)
}

const REPLACED: &str = "was replaced meanwhile";

/// Pages in an object that was read: which they are, their checksum, where in the object they start, and where in the file the heap does.
struct PagesAt {
    index: Vec<IndexEntry>,
    digest: Digest,
    start: usize,
    heap_start: u64,
}

struct Target<'a> {
    place: &'a Place,
    /// The replica's segments.
    numbers: &'a [u64],
    file: File,
    path: &'a Path,
    counted: &'a Counted,
    /// The last segment whose pages were written, without them, and the last catalog.
    last: Option<Segment>,
    types: Option<Vec<u8>>,
}

impl Target<'_> {
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(file_error("write", self.path))
    }

    /// Writes pages of a history, oldest first.
    fn write_all(&mut self, walked: &Walked) -> Result<()> {
        // Segments without parts are read many at a time.
        let states: Vec<Link> = walked.links.iter().copied().filter(Link::is_state).collect();
        for some in states.chunk_by(|one, next| one.parts == 0 && next.parts == 0) {
            for some in some.chunks(BATCH) {
                if some[0].parts > 0 {
                    self.write_parts(some[0])?;
                }
                self.write_segments(some)?;
            }
        }
        Ok(())
    }

    /// Writes the pages of a segment's parts.
    fn write_parts(&mut self, link: Link) -> Result<()> {
        let front = read_front(self.place, link.number)?
            .map_err(|why| broken(self.place, self.numbers, link.number, &why))?;
        let segment = front.segment;
        if front.digest != link.digest {
            return Err(broken(self.place, self.numbers, link.number, REPLACED));
        }
        for parts in segment.parts.chunks(BATCH) {
            let name = |part: &PartEntry| part_name(segment.number, &segment.writer, part.serial);
            let names = parts.iter().map(|part| (segment.number, name(part))).collect();
            self.write(names, PART_BYTES_MAX, |_, at, object| {
                let (index, digest, start) = decode_part(object, &segment, &parts[at])?;
                Ok(PagesAt { index, digest, start, heap_start: segment.header.heap_start })
            })?;
        }
        Ok(())
    }

    /// Writes the pages that lie in the segments' own objects.
    fn write_segments(&mut self, links: &[Link]) -> Result<()> {
        let names = links.iter().map(|link| (link.number, segment_name(link.number))).collect();
        let most = links.iter().map(|link| link.object_bytes).max().unwrap_or_default();
        self.write(names, most, |target, at, object| {
            let (mut segment, digest) = Segment::decode(object, links[at].number)?;
            if digest != links[at].digest {
                return Err(REPLACED);
            }
            let start = segment.object_bytes() - segment.index.len() as u64 * PAGE;
            let pages = PagesAt {
                index: std::mem::take(&mut segment.index),
                digest: segment.pages_digest,
                start: start as usize,
                heap_start: segment.header.heap_start,
            };
            segment.parts = Vec::new();
            target.types = segment.catalog.take().or(target.types.take());
            target.last = Some(segment);
            Ok(pages)
        })
    }

    /// Reads objects, each given by the number of its segment and its name, and writes the pages that `read` finds in them.
    fn write(
        &mut self,
        objects: Vec<(u64, String)>,
        most: u64,
        mut read: impl FnMut(&mut Self, usize, &[u8]) -> std::result::Result<PagesAt, &'static str>,
    ) -> Result<()> {
        let (numbers, names): (Vec<u64>, Vec<String>) = objects.into_iter().unzip();
        let (place, mut fault) = (self.place, None);
        let done = place.each_of(&names, most, |at, object| {
            let mut odd = |why: &str| {
                fault = Some((numbers[at], format!("{why} ({})", names[at])));
                Err(Error::Aborted(String::new()))
            };
            let Some(object) = object else { return odd("lacks an object") };
            let PagesAt { index, digest, start, heap_start } = match read(self, at, &object) {
                Ok(found) => found,
                Err(why) => return odd(why),
            };
            if let Err(why) = check_pages(&index, &digest, &object[start..]) {
                return odd(why);
            }
            for run in runs(&index) {
                let from = start + run.start * PAGE as usize;
                let to = start + run.end * PAGE as usize;
                self.write_at(&object[from..to], heap_start + index[run.start].0 * PAGE)?;
            }
            self.counted.done.fetch_add(object.len() as u64, Ordering::Relaxed);
            Ok(())
        });
        match fault {
            Some((number, why)) => Err(broken(self.place, self.numbers, number, &why)),
            None => done,
        }
    }

    /// Writes all but the heap.
    fn finish(&self, walked: &Walked) -> Result<Restored> {
        let (Some(last), Some(types)) = (&self.last, &self.types) else {
            return Err(self.place.error("the snapshot lacks the catalog of types"));
        };
        self.write_at(types, CATALOG_START)?;
        for (lane, position) in (0..).zip(&last.positions) {
            let head = LaneHead { position: *position, applied: last.sequence };
            for turn in 0..2 {
                self.write_at(&head.encode(), LaneHead::offset(lane, turn))?;
            }
        }
        let header = Header { clean: true, devices: 1, device: 0, stripe_bytes: 0, ..last.header };
        self.file.set_len(header.file_bytes()).map_err(file_error("size", self.path))?;
        for place in 0..2 {
            self.write_at(&header.encode(), place * HEADER_BYTES)?;
        }
        Ok(Restored {
            time: time(last.time_us),
            sequence: last.sequence,
            segments: walked.links.len() as u64,
            bytes: self.counted.fetched().done,
        })
    }
}

/// Pages side by side, as ranges of an index.
fn runs(index: &[IndexEntry]) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, (page, _)) in index.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if index[run.end - 1].0 + 1 == *page => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// The index of the last segment whose moment is not after `wanted`.
fn last_until(place: &Place, numbers: &[u64], wanted: u64) -> Result<usize> {
    let (mut low, mut high) = (0, numbers.len());
    let mut found: Option<(usize, u64)> = None;
    while low < high {
        let middle = low + (high - low) / 2;
        // Of damaged segments, the moment is not known: the one before is looked at.
        let mut at = middle;
        let good = loop {
            match read_front(place, numbers[at])? {
                Ok(front) => break Some(front),
                Err(_) if at > low => at -= 1,
                Err(_) => break None,
            }
        };
        match good {
            Some(front) if front.segment.time_us > wanted => high = at,
            Some(front) => {
                low = middle + 1;
                found = Some((at, front.segment.time_us));
            }
            None => low = middle + 1,
        }
    }
    let Some((at, time_us)) = found else {
        return Err(place.error(match oldest(place, numbers)? {
            Some(from) => {
                format!("it begins at {}: nothing is known of {}", utc(time(from)), utc(time(wanted)))
            }
            None => "it has no whole segment of that time".to_owned(),
        }));
    };
    // A segment that is missing or damaged may be of that time, too.
    if let Some(next) = numbers.get(at + 1).filter(|_| time_us < wanted) {
        let missing = *next != numbers[at] + 1;
        let fault = if missing { Err("is missing".to_owned()) } else { read_front(place, *next)?.map(drop) };
        fault.map_err(|why| broken(place, numbers, numbers[at] + 1, &why))?;
    }
    Ok(at)
}

/// The moment of the oldest snapshot.
fn oldest(place: &Place, numbers: &[u64]) -> Result<Option<u64>> {
    for number in numbers {
        if let Ok(front) = read_front(place, *number)?
            && front.segment.kind == SegmentKind::Snapshot
        {
            return Ok(Some(front.segment.time_us));
        }
    }
    Ok(None)
}

/// The error for a segment that breaks the history: it names the moment up to which a restore is possible.
fn broken(place: &Place, numbers: &[u64], number: u64, why: &str) -> Error {
    let before = walk(place, &numbers[..numbers.partition_point(|one| *one < number)], |_| Ok(()));
    let state = before.ok().and_then(|walked| walked.links.into_iter().rev().find(Link::is_state));
    let rest = match state {
        Some(link) => {
            format!("a restore is possible up to {}", utc(time(link.time_us)))
        }
        None => "no restore is possible from what lies before it".to_owned(),
    };
    place.error(format!("segment {number} {why}; {rest}"))
}
