// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pool made of a replica, as it was at a moment.
//!
//! - **Flow** the last segment of the moment ─▶ fronts back to its snapshot ─▶ pages of the snapshot, then of each segment, into a file
//!   without a name ─▶ types, lane heads, header ─▶ durable ─▶ linked to its name
//! - **Rule** every object is compared with its checksum before a byte of it is used, and the whole history from the snapshot on is there, or
//!   there is no file. The error says up to which moment there could be one
//! - **Rule** nothing is overwritten
//! - **Trust** the store is hostile: pages lie in the heap that the pool's header gives, and that header is checked as a file's is

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use super::chain::{Front, numbers, read_front, walk};
use super::format::{
    Digest, IndexEntry, PART_BYTES_MAX, PartEntry, Segment, SegmentKind, check_pages, decode_part,
};
use super::place::{Place, part_name, segment_name};
use super::utc::{micros, time, utc};
use crate::checksums::PAGE;
use crate::error::{Error, Result};
use crate::fresh::{Fresh, file_error};
use crate::layout::{CATALOG_START, HEADER_BYTES, Header, LaneHead};

/// Objects of a replica that are planned at once.
const BATCH: usize = 1024;

/// Result of [`restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The moment whose state the pool has.
    pub time: SystemTime,
    /// The last transaction in it, by its number in the pool's order.
    pub sequence: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Makes the new file `target` of the replica at `url`: the pool as it was at `at`, or as late as the replica has it.
///
/// # Errors
///
/// [`Error::Exists`]: nothing is overwritten; [`Error::Replica`] when there is no replica, the store fails, or an object is missing or
/// damaged: the text says up to which moment a restore is possible; [`Error::File`].
pub fn restore(url: &str, target: impl AsRef<Path>, at: Option<SystemTime>) -> Result<Restored> {
    let place = Place::of(url, false)?;
    let target = target.as_ref();
    let fresh = Fresh::file(target)?;
    let numbers = numbers(&place)?;
    if numbers.is_empty() {
        return Err(place.error("there is no replica of a pool here"));
    }
    let wanted = match at {
        Some(at) => &numbers[..=last_until(&place, &numbers, micros(at))?],
        None => &numbers[..],
    };
    let walked = walk(&place, wanted)?;
    if let Some((number, why)) = walked.broken {
        return Err(broken(&place, &numbers, number, &why));
    }
    let mut target = Target { place: &place, numbers: &numbers, file: fresh.open()?, path: target, bytes: 0 };
    let mut objects = Vec::new();
    for front in walked.fronts.iter().filter(|front| front.segment.kind != SegmentKind::Claim) {
        objects.extend(front.segment.parts.iter().map(|part| Planned { front, part: Some(part) }));
        objects.push(Planned { front, part: None });
    }
    objects.chunks(BATCH).try_for_each(|some| target.write(some))?;
    let restored = target.finish(&walked.fronts)?;
    fresh.publish()?;
    Ok(restored)
}

/// An object that is read: a part of a segment, or the segment itself.
struct Planned<'a> {
    front: &'a Front,
    part: Option<&'a PartEntry>,
}

impl Planned<'_> {
    fn name(&self) -> String {
        let segment = &self.front.segment;
        self.part.map_or_else(
            || segment_name(segment.number),
            |part| part_name(segment.number, &segment.writer, part.serial),
        )
    }

    fn most(&self) -> u64 {
        self.part.map_or_else(|| self.front.segment.object_bytes(), |_| PART_BYTES_MAX)
    }

    /// Where its pages start, and which they are.
    fn read(&self, object: &[u8]) -> Result<(Vec<IndexEntry>, Digest, usize), &'static str> {
        let segment = &self.front.segment;
        if let Some(part) = self.part {
            return decode_part(object, segment, part);
        }
        let (found, digest) = Segment::decode(object, segment.number)?;
        if digest != self.front.digest {
            return Err("was replaced meanwhile");
        }
        let start = found.object_bytes() - found.index.len() as u64 * PAGE;
        Ok((found.index, found.pages_digest, start as usize))
    }
}

struct Target<'a> {
    place: &'a Place,
    /// The replica's segments.
    numbers: &'a [u64],
    file: File,
    path: &'a Path,
    bytes: u64,
}

impl Target<'_> {
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(file_error("write", self.path))
    }

    /// Reads objects and writes their pages.
    fn write(&mut self, objects: &[Planned<'_>]) -> Result<()> {
        let names: Vec<String> = objects.iter().map(Planned::name).collect();
        let most = objects.iter().map(Planned::most).max().unwrap_or_default();
        let mut fault = None;
        let mut bytes = 0;
        let read = self.place.each_of(&names, most, |at, object| {
            let planned = &objects[at];
            let mut odd = |why: &str| {
                fault = Some((planned.front.segment.number, format!("{why} ({})", names[at])));
                Err(Error::Aborted(String::new()))
            };
            let Some(object) = object else { return odd("lacks an object") };
            let (index, digest, start) = match planned.read(&object) {
                Ok(found) => found,
                Err(why) => return odd(why),
            };
            if let Err(why) = check_pages(&index, &digest, &object[start..]) {
                return odd(why);
            }
            bytes += object.len() as u64;
            let heap_start = planned.front.segment.header.heap_start;
            for run in runs(&index) {
                let from = start + run.start * PAGE as usize;
                let to = start + run.end * PAGE as usize;
                self.write_at(&object[from..to], heap_start + index[run.start].0 * PAGE)?;
            }
            Ok(())
        });
        self.bytes += bytes;
        match fault {
            Some((number, why)) => Err(broken(self.place, self.numbers, number, &why)),
            None => read,
        }
    }

    /// Writes all but the heap.
    fn finish(&self, fronts: &[Front]) -> Result<Restored> {
        let states =
            || fronts.iter().rev().map(|front| &front.segment).filter(|one| one.kind != SegmentKind::Claim);
        let (Some(last), Some(types)) = (states().next(), states().find_map(|one| one.catalog.as_ref()))
        else {
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
            segments: fronts.len() as u64,
            bytes: self.bytes,
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
    let before = walk(place, &numbers[..numbers.partition_point(|one| *one < number)]);
    let state = before.ok().and_then(|walked| {
        walked.fronts.into_iter().rev().find(|front| front.segment.kind != SegmentKind::Claim)
    });
    let rest = match state {
        Some(front) => {
            format!("a restore is possible up to {}", utc(time(front.segment.time_us)))
        }
        None => "no restore is possible from what lies before it".to_owned(),
    };
    place.error(format!("segment {number} {why}; {rest}"))
}
