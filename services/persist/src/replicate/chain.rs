// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The history in a replica, read backwards: fronts of segments from one of them to the snapshot before it.
//!
//! - **Rule** numbers have no gaps, and each front has the checksum of the one before: what is missing, replaced or damaged ends the part of
//!   the history that can be restored
//! - **Layout** of each front only a [`Link`] of 64 bytes stays in memory; whoever wants more of it gets it once, in passing
//! - **Not here** pages: `restore`

use super::format::{Digest, FRONT_MAX, FRONT_USUAL, Segment, SegmentKind, front_bytes, parts_bytes};
use super::place::{Place, segment_name};
use crate::error::Result;
use crate::layout::Header;

/// Fronts that are asked for at once.
const BATCH: usize = 128;

/// A front that was read, and its checksum.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub segment: Segment,
    pub digest: Digest,
}

/// Fields of a front that a history needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub number: u64,
    pub kind: SegmentKind,
    pub time_us: u64,
    pub digest: Digest,
    pub parts: u32,
    /// Bytes of the object.
    pub object_bytes: u64,
}

const _: () = assert!(size_of::<Link>() <= 72);

impl Link {
    fn of(front: &Front) -> Link {
        let segment = &front.segment;
        Link {
            number: segment.number,
            kind: segment.kind,
            time_us: segment.time_us,
            digest: front.digest,
            parts: segment.parts.len() as u32,
            object_bytes: segment.object_bytes(),
        }
    }

    /// Returns true if it completes a state: it is no claim.
    pub fn is_state(&self) -> bool {
        self.kind != SegmentKind::Claim
    }
}

/// A history that was read backwards.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// From a snapshot on, without a break.
    pub links: Vec<Link>,
    /// Bytes of their objects and parts.
    pub bytes: u64,
    /// The pool's header in the last one that is no claim.
    pub header: Option<Header>,
    /// The segment that breaks the history behind these, and its fault.
    pub broken: Option<(u64, String)>,
}

impl Walked {
    fn cut(&mut self, number: u64, why: String) {
        *self = Walked { broken: Some((number, why)), ..Walked::default() };
    }
}

/// Reads fronts by number. The outer error is the store's; the inner one is the fault of the object.
pub(crate) fn read_front(place: &Place, number: u64) -> Result<std::result::Result<Front, String>> {
    let start = place.start_of(&segment_name(number), FRONT_USUAL)?;
    decode_front(place, number, start)
}

fn decode_front(
    place: &Place,
    number: u64,
    start: Option<Vec<u8>>,
) -> Result<std::result::Result<Front, String>> {
    let Some(mut start) = start else { return Ok(Err("is missing".to_owned())) };
    match front_bytes(&start) {
        Some(bytes) if bytes > FRONT_MAX => {
            return Ok(Err("has a front of a length that cannot be".to_owned()));
        }
        Some(bytes) if bytes > start.len() as u64 => match place.start_of(&segment_name(number), bytes)? {
            Some(whole) => start = whole,
            None => return Ok(Err("is missing".to_owned())),
        },
        _ => {}
    }
    let read = Segment::decode(&start, number).map_err(str::to_owned);
    Ok(read.map(|(segment, digest)| Front { segment, digest }))
}

/// Reads from the last of `numbers`, which ascend, backwards to the newest snapshot, and calls `each` for each front on the way. A front
/// that `each` had may be found to be cut off later: then [`Walked::broken`] says so.
///
/// # Errors
///
/// The store's, and those of `each`.
pub(crate) fn walk(
    place: &Place,
    numbers: &[u64],
    mut each: impl FnMut(&Segment) -> Result<()>,
) -> Result<Walked> {
    let mut walked = Walked::default(); // descending, without a break at its low end
    // The front that was read last: its number, the checksum that it names for the front before it, its moment. Then its pool.
    let mut above: Option<(u64, Digest, u64)> = None;
    let mut state: Option<Header> = None;
    let mut next: Option<u64> = None;
    for batch in numbers.rchunks(BATCH) {
        let names: Vec<String> = batch.iter().rev().map(|number| segment_name(*number)).collect();
        for (number, start) in batch.iter().rev().zip(place.starts_of(&names, FRONT_USUAL)?) {
            if next.is_some_and(|next| next != number + 1) {
                walked.cut(number + 1, "is missing".to_owned());
                (above, state) = (None, None);
            }
            next = Some(*number);
            let front = match decode_front(place, *number, start?)? {
                Ok(front) => front,
                Err(why) => {
                    walked.cut(*number, why);
                    (above, state) = (None, None);
                    continue;
                }
            };
            let segment = &front.segment;
            if let Some((after, previous, time_us)) = above
                && let Some(why) = misfit(&front, previous, time_us)
            {
                walked.cut(after, why);
                state = None;
            }
            if segment.kind != SegmentKind::Claim {
                if state.as_ref().is_some_and(|later| !segment.goes_on_in(later)) {
                    // Segments up to the next one that is no claim lie above this one.
                    let odd = walked.links.iter().rfind(|link| link.is_state()).map(|link| link.number);
                    walked
                        .cut(odd.unwrap_or(number + 1), "is of a pool that is laid out otherwise".to_owned());
                }
                walked.header = walked.header.or(Some(segment.header));
                state = Some(segment.header);
            }
            above = Some((*number, segment.previous, segment.time_us));
            each(segment)?;
            walked.bytes += segment.object_bytes() + parts_bytes(&segment.parts);
            walked.links.push(Link::of(&front));
            if segment.kind == SegmentKind::Snapshot {
                walked.links.reverse();
                return Ok(walked);
            }
        }
    }
    let none = (numbers.last().copied().unwrap_or_default(), "has no snapshot before it".to_owned());
    let broken = walked.broken.take().or(Some(none));
    Ok(Walked { broken, ..Walked::default() })
}

/// The reason that a segment which names `previous` as the one before, and is of the moment `time_us`, does not follow `front`.
fn misfit(front: &Front, previous: Digest, time_us: u64) -> Option<String> {
    if previous != front.digest {
        return Some(format!(
            "does not follow segment {} as it is now: one of the two was replaced",
            front.segment.number
        ));
    }
    (time_us < front.segment.time_us).then(|| "is older than the one before".to_owned())
}

/// The numbers of all segments, ascending.
pub(crate) fn numbers(place: &Place) -> Result<Vec<u64>> {
    Ok(place.list_segments()?.into_iter().map(|one| one.number).collect())
}
