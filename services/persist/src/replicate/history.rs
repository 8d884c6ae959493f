// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contents of a replica: from which moment to which a restore is possible, and which processes wrote it.
//!
//! - **Flow** names of all segments ─▶ the first bytes of each, which have kind, number and moment ─▶ [`History`]
//! - **Rule** only fixed fields are read, and no checksum is compared: [`restore`](super::restore) does that

use std::time::SystemTime;

use super::chain::read_front;
use super::format::{SegmentKind, glance};
use super::place::{GoesOn, Place, Stop, segment_name};
use super::utc::time;
use crate::error::{Error, Result};

/// Segments whose first bytes are asked for at once.
const BATCH: usize = 512;

/// Contents of a replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Stretches of time without a gap, the earliest first: a restore is possible to any moment in one of them.
    pub stretches: Vec<Stretch>,
    /// Processes that wrote it, the first one first.
    pub writers: Vec<Writer>,
    /// Segments in it.
    pub segments: u64,
    /// Bytes of all its objects.
    pub bytes: u64,
    /// Numbers of segments that are missing between others, or cannot be read.
    pub missing: Vec<u64>,
}

/// A stretch of the history from a snapshot on in which no segment is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The moment of its first snapshot.
    pub from: SystemTime,
    /// The moment of its last segment; a later state is not known.
    pub until: SystemTime,
    /// Moments of its snapshots.
    pub snapshots: Vec<SystemTime>,
    /// Segments in it.
    pub segments: u64,
}

/// A process that wrote the replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The process's description of itself: file, process and host.
    pub owner: String,
    /// When it began.
    pub since: SystemTime,
}

/// Reads the contents of the replica at `url`.
///
/// # Errors
///
/// [`Error::NoReplica`], [`Error::ReplicaStore`]; [`Error::Aborted`] when `goes_on`, which is asked some ten times a second, said false.
pub fn history(url: &str, goes_on: impl Fn() -> bool + Send + Sync + 'static) -> Result<History> {
    let goes_on: GoesOn = Box::new(goes_on);
    let place = Place::of(url, false, Stop::asking(goes_on))?;
    let listed = place.list_segments()?;
    if listed.is_empty() {
        return Err(Error::NoReplica { url: place.name().to_owned() });
    }
    let mut history = History {
        segments: listed.len() as u64,
        bytes: listed.iter().map(|one| one.bytes).sum::<u64>() + place.list_parts(0)?.1,
        ..History::default()
    };
    let mut open = false; // the last stretch goes on
    let mut next = listed[0].number;
    for some in listed.chunks(BATCH) {
        let names: Vec<String> = some.iter().map(|one| segment_name(one.number)).collect();
        for (listed, start) in some.iter().zip(place.starts_of(&names, glance::BYTES)?) {
            let number = listed.number;
            if number != next {
                // Segments before the oldest snapshot were removed on purpose, but for claims.
                if !history.stretches.is_empty() {
                    history.missing.extend((next..number).take(100));
                }
                open = false;
            }
            next = number + 1;
            let Some((kind, time_us)) = start?.as_deref().and_then(|start| glance::read(start, number))
            else {
                history.missing.push(number);
                open = false;
                continue;
            };
            let moment = time(time_us);
            match kind {
                SegmentKind::Claim => {
                    if let Ok(front) = read_front(&place, number)? {
                        history.writers.push(Writer { owner: front.segment.owner, since: moment });
                    }
                }
                SegmentKind::Snapshot if !open => {
                    open = true;
                    let snapshots = vec![moment];
                    history.stretches.push(Stretch { from: moment, until: moment, snapshots, segments: 1 });
                }
                kind => {
                    if let Some(stretch) = history.stretches.last_mut().filter(|_| open) {
                        stretch.until = moment;
                        stretch.segments += 1;
                        stretch.snapshots.extend((kind == SegmentKind::Snapshot).then_some(moment));
                    }
                }
            }
        }
    }
    Ok(history)
}
