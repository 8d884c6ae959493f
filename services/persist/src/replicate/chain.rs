// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The history in a replica, read backwards: fronts of segments from one of them to the snapshot before it.
//!
//! - **Rule** numbers have no gaps, and each front has the checksum of the one before: what is missing, replaced or damaged ends the part of
//!   the history that can be restored
//! - **Not here** pages: `restore`

use super::format::{Digest, FRONT_MAX, FRONT_USUAL, Segment, SegmentKind, front_bytes};
use super::place::{Place, segment_name};
use crate::error::Result;

/// Fronts that are asked for at once.
const BATCH: usize = 128;

/// A front that was read, and its checksum.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub segment: Segment,
    pub digest: Digest,
}

/// A history that was read backwards.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// From a snapshot on, without a break.
    pub fronts: Vec<Front>,
    /// The segment that breaks the history behind these, and its fault.
    pub broken: Option<(u64, String)>,
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

/// Reads from the last of `numbers`, which ascend, backwards to the newest snapshot.
///
/// # Errors
///
/// The store's.
pub(crate) fn walk(place: &Place, numbers: &[u64]) -> Result<Walked> {
    let mut found: Vec<Front> = Vec::new(); // descending, without a break at its low end
    let mut broken: Option<(u64, String)> = None;
    let mut above: Option<u64> = None;
    for batch in numbers.rchunks(BATCH) {
        let names: Vec<String> = batch.iter().rev().map(|number| segment_name(*number)).collect();
        for (number, start) in batch.iter().rev().zip(place.starts_of(&names, FRONT_USUAL)?) {
            if above.is_some_and(|above| above != number + 1) {
                (found, broken) = (Vec::new(), Some((number + 1, "is missing".to_owned())));
            }
            above = Some(*number);
            let front = match decode_front(place, *number, start?)? {
                Ok(front) => front,
                Err(why) => {
                    (found, broken) = (Vec::new(), Some((*number, why)));
                    continue;
                }
            };
            if let Some(after) = found.last()
                && let Some(why) = misfit(&front, after)
            {
                broken = Some((after.segment.number, why));
                found.clear();
            }
            let is_snapshot = front.segment.kind == SegmentKind::Snapshot;
            found.push(front);
            if is_snapshot {
                found.reverse();
                let broken = layout_break(&found).or(broken);
                if let Some((number, _)) = &broken {
                    found.retain(|front| front.segment.number < *number);
                }
                return Ok(Walked { fronts: found, broken });
            }
        }
    }
    let none = || (numbers.last().copied().unwrap_or_default(), "has no snapshot before it".to_owned());
    Ok(Walked { fronts: Vec::new(), broken: broken.or_else(|| Some(none())) })
}

/// The reason that `after` does not follow `front`.
fn misfit(front: &Front, after: &Front) -> Option<String> {
    if after.segment.previous != front.digest {
        return Some(format!(
            "does not follow segment {} as it is now: one of the two was replaced",
            front.segment.number
        ));
    }
    (after.segment.time_us < front.segment.time_us).then(|| "is older than the one before".to_owned())
}

/// The first segment whose pool is laid out otherwise than that of the snapshot.
fn layout_break(fronts: &[Front]) -> Option<(u64, String)> {
    let states: Vec<&Front> =
        fronts.iter().filter(|front| front.segment.kind != SegmentKind::Claim).collect();
    let odd = states.windows(2).find(|pair| !pair[0].segment.goes_on_in(&pair[1].segment.header))?;
    Some((odd[1].segment.number, "is of a pool that is laid out otherwise".to_owned()))
}

/// The numbers of all segments, ascending.
pub(crate) fn numbers(place: &Place) -> Result<Vec<u64>> {
    let mut numbers: Vec<u64> = place.list("log")?.into_iter().map(|one| one.number).collect();
    numbers.dedup();
    Ok(numbers)
}
