// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports the records in each lane of the log, before anything is replayed.
//!
//! - **Flow** both heads ─▶ records from the newer one on, as long as they are good ─▶ the first thing that is no good record ─▶
//!   good records behind it
//! - **Rule** a record is good if recovery says so: both call the same routine
//! - **Not here** replaying: `recover`

use memlift_kernels::log;
use memlift_spec::formats::log::{RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader};

use crate::error::Result;
use crate::layout::{HEAD_BYTES, Header, LANES_START, LaneHead};
use crate::medium::Medium;
use crate::record::{self, PARTS_WRAP};

/// The first thing behind a lane's last good record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tail {
    /// Nothing that claims to be the next record.
    End,
    /// A record that an earlier recovery was done with, of this epoch.
    Epoch(u64),
    /// A record that claims to be the next one and is not whole: torn by a crash, or damaged later.
    Torn,
}

/// A lane of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneReport {
    /// Its number; 0 is shared by groups.
    pub lane: u32,
    /// Its two heads; None: torn.
    pub heads: [Option<LaneHead>; 2],
    /// Records that are good, from the head on.
    pub records: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// Where they end, in the endless stream of the lane.
    pub end: u64,
    /// The first thing behind these records.
    pub tail: Tail,
    /// Good records of this round behind a torn one.
    pub behind: u64,
}

/// Epochs that are tried for a record of an earlier one.
const EPOCHS: u64 = 16;

/// The record at `position`, if it is a good one.
pub(crate) fn good(ring: &[u8], position: u64, salt: u32) -> Option<RecordHeader> {
    let available = &ring[(position % ring.len() as u64) as usize..];
    log::check(available, salt, position).ok()
}

/// Good records of a lane wherever they lie, with their positions, ascending.
pub(crate) fn anywhere(ring: &[u8], salt: u32, from: u64) -> Vec<RecordHeader> {
    let mut found = Vec::new();
    for at in (0..ring.len()).step_by(RECORD_ALIGN) {
        let about = record::header(&ring[at..at + RECORD_HEADER_BYTES]);
        let here = about.position % ring.len() as u64 == at as u64;
        if here && about.position >= from && good(ring, about.position, salt).is_some() {
            found.push(about);
        }
    }
    found.sort_by_key(|one| one.position);
    found
}

/// How far the next record is from this one.
pub(crate) fn step(about: &RecordHeader, capacity: u64) -> u64 {
    if about.parts == PARTS_WRAP {
        return capacity - about.position % capacity;
    }
    u64::from(about.bytes)
}

/// A lane's bytes.
pub(crate) fn ring(medium: &Medium, header: &Header, lane: u32) -> Result<Vec<u8>> {
    let mut ring = vec![0; header.lane_bytes as usize];
    medium.read(LANES_START + u64::from(lane) * header.lane_bytes, &mut ring)?;
    Ok(ring)
}

/// A lane's heads.
pub(crate) fn heads(medium: &Medium, lane: u32) -> Result<[Option<LaneHead>; 2]> {
    let mut heads = [None; 2];
    for (turn, head) in heads.iter_mut().enumerate() {
        let mut bytes = [0; HEAD_BYTES as usize];
        medium.read(LaneHead::offset(lane, turn as u64), &mut bytes)?;
        *head = LaneHead::decode(&bytes);
    }
    Ok(heads)
}

/// The epoch of records that wait at the lanes' heads, when it is a later one than the header's: the newest header is lost.
pub(crate) fn later_epoch(medium: &Medium, header: &Header) -> Result<Option<u64>> {
    for lane in 0..header.lanes {
        let heads = heads(medium, lane)?;
        let Some(head) = heads.iter().flatten().max_by_key(|head| head.position) else { continue };
        let ring = ring(medium, header, lane)?;
        let later = (header.epoch..header.epoch.saturating_add(EPOCHS)).map(|epoch| epoch.saturating_add(1));
        let salt = |epoch| Header { epoch, ..*header }.salt(lane);
        if let Some(epoch) = later.rev().find(|epoch| good(&ring, head.position, salt(*epoch)).is_some()) {
            return Ok(Some(epoch));
        }
    }
    Ok(None)
}

/// Reads a lane and reports its records.
pub(crate) fn inspect(medium: &Medium, header: &Header, lane: u32) -> Result<LaneReport> {
    let heads = heads(medium, lane)?;
    let head = heads.iter().flatten().max_by_key(|head| head.position).copied().unwrap_or_default();
    let ring = ring(medium, header, lane)?;
    let (capacity, salt) = (ring.len() as u64, header.salt(lane));
    let (mut end, mut records, mut bytes) = (head.position, 0, 0);
    // The bound keeps a head near the last position from counting past it.
    let last = head.position.saturating_add(capacity);
    while end < last
        && end.is_multiple_of(RECORD_ALIGN as u64)
        && let Some(about) = good(&ring, end, salt)
    {
        if about.parts != PARTS_WRAP {
            records += 1;
            bytes += u64::from(about.bytes);
        }
        let Some(next) = end.checked_add(step(&about, capacity)) else { break };
        end = next;
    }
    let (mut tail, mut later) = (Tail::End, 0);
    if end < last && end.is_multiple_of(RECORD_ALIGN as u64) {
        let at = (end % capacity) as usize;
        let about = record::header(&ring[at..at + RECORD_HEADER_BYTES]);
        let earlier = (header.epoch.saturating_sub(EPOCHS)..header.epoch)
            .rev()
            .find(|epoch| good(&ring, end, Header { epoch: *epoch, ..*header }.salt(lane)).is_some());
        later = anywhere(&ring, salt, end).len() as u64;
        tail = match earlier {
            Some(epoch) => Tail::Epoch(epoch),
            None if later > 0 || (about.position == end && about.bytes != 0) => Tail::Torn,
            None => Tail::End,
        };
    }
    Ok(LaneReport { lane, heads, records, bytes, end, tail, behind: later })
}
