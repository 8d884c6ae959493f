// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recovery: makes a pool of what a crash left, by storing the log's good records to their place, in order.
//!
//! - **Flow** header ─▶ lane heads ─▶ each lane from its head to the first record that is not good ─▶ torn tail or damage
//!   (`tail`) ─▶ all records by sequence ─▶ those beyond what is applied: stored, written back ─▶ harden ─▶ heads, next epoch ─▶
//!   harden
//! - **Order** a lane is a prefix: records behind a torn one were never acknowledged. Between lanes, a record that is missing was
//!   never acknowledged either, and nothing that is there depends on it (`commit`)
//! - **Rule** damage is refused before anything is stored. With [`Loss::Accept`] the order of transactions is cut where it
//!   begins; undo puts back all that is left
//! - **Rule** idempotent: until the heads or the epoch are durable, the same records are stored again, in the same order. The
//!   epoch salts every checksum: what lies behind a torn record now is never good again
//! - **Owner** nobody else has the pool yet. Every number in the file is hostile until it was checked here
//! - **Not here** the directory and the bitmaps: `open` reads them off the recovered heap

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::applier::Applier;
use crate::checksums::{Checksums, Replayed, Taken};
use crate::error::{Error, Result};
use crate::far_record::{self, PARTS_FAR};
use crate::fresh::file_error;
use crate::holes::Holes;
use crate::layout::{COUNTED_MAX, FEATURE_CLAIMS, HEAD_BYTES, HEADER_BYTES, Header, LANES_START, LaneHead};
use crate::medium::{Counters, Medium};
use crate::options::Mechanism;
use crate::record::{self, PARTS_WRAP};
use crate::shadow::Shadow;
use crate::tail::{Found, Log, LogDamage};
use memlift_kernels::log;
use memlift_spec::formats::log::{
    PAGE_BYTES, RECORD_ALIGN, RECORD_LINES, RECORD_RANGES, RECORD_UNDO, RangeWord, RecordHeader,
};

/// Result of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Transactions in the log that were not at their place.
    pub transactions: u64,
    /// Bytes of their records.
    pub log_bytes: u64,
    /// True if the pool had been closed.
    pub clean: bool,
}

/// How recovery treats damage in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Recovery fails with [`Error::LogDamaged`].
    Refuse,
    /// Recovery goes on without the transactions that the damage hits, and those after them.
    Accept,
}

/// A pool's header, lanes and order after recovery.
#[derive(Debug)]
pub(crate) struct State {
    pub header: Header,
    pub positions: Vec<u64>,
    pub applier: Applier,
    pub recovered: Recovered,
    /// Damage in the log that was accepted.
    pub lost: Option<LogDamage>,
    /// Shadow pools: which copies hold.
    pub shadow: Option<Shadow>,
}

/// The header that holds: valid, and the newer one.
pub(crate) fn read_header(medium: &Medium) -> Result<Header> {
    if medium.len() < LANES_START {
        let mut start = vec![0; medium.len().min(HEADER_BYTES) as usize];
        medium.read(0, &mut start)?;
        return Err(match Header::decode(&start) {
            Ok(_) | Err(Error::Corrupt { .. }) => short(medium.len(), LANES_START),
            Err(error) => error,
        });
    }
    let mut page = vec![0; HEADER_BYTES as usize];
    let mut one = |turn: u64| {
        medium.read(turn * HEADER_BYTES, &mut page)?;
        Header::decode(&page)
    };
    let header = newer(one(0), one(1))?;
    if header.devices > 1 && !matches!(medium, Medium::Striped(_)) {
        return Err(alone(&header));
    }
    if medium.len() < header.file_bytes() {
        return Err(short(medium.len(), header.file_bytes()));
    }
    Ok(header)
}

/// The header of a file, before it is mapped.
pub(crate) fn header_of(file: &File, path: &Path) -> Result<Header> {
    let one = |turn: u64| {
        let mut page = vec![0; HEADER_BYTES as usize];
        match file.read_exact_at(&mut page, turn * HEADER_BYTES) {
            Ok(()) => Header::decode(&page),
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => Err(Error::NotAPool),
            Err(source) => Err(file_error("read", path)(source)),
        }
    };
    newer(one(0), one(1)).map_err(|error| match error {
        Error::NotAPool => Error::Argument { what: format!("{} is not a memlift pool", path.display()) },
        Error::Corrupt { what } => Error::corrupt(format!("{}: {what}", path.display())),
        other => other,
    })
}

/// The one of two headers that holds; when none does, the more telling reason.
pub(crate) fn newer(a: Result<Header>, b: Result<Header>) -> Result<Header> {
    match (a, b) {
        (Ok(a), Ok(b)) if a.generation >= b.generation => Ok(a),
        (_, Ok(b)) => Ok(b),
        (Ok(a), Err(_)) => Ok(a),
        (Err(a), Err(b)) => Err(if matches!(a, Error::NotAPool) { b } else { a }),
    }
}

/// The error for a file of an interleaved pool that is opened alone.
pub(crate) fn alone(header: &Header) -> Error {
    Error::Argument {
        what: format!(
            "the file is device {} of a pool that is interleaved over {}: open all of them with Pool::open_interleaved",
            header.device, header.devices
        ),
    }
}

fn short(bytes: u64, wanted: u64) -> Error {
    Error::corrupt(format!("the file has {bytes} bytes and should have {wanted}: it was truncated"))
}

/// Reads a lane's two heads: the newer one that is good, and the turn of the next one to write.
fn read_head(medium: &Medium, lane: u32) -> Result<(LaneHead, u64)> {
    let mut heads = [None; 2];
    for (turn, head) in heads.iter_mut().enumerate() {
        let mut bytes = [0; HEAD_BYTES as usize];
        medium.read(LaneHead::offset(lane, turn as u64), &mut bytes)?;
        *head = LaneHead::decode(&bytes);
    }
    // Counters go on from here: none may come near its end.
    let possible = |head: &LaneHead| {
        head.position <= COUNTED_MAX
            && head.position.is_multiple_of(RECORD_ALIGN as u64)
            && head.applied <= COUNTED_MAX
    };
    if !heads.iter().flatten().all(possible) {
        return Err(Error::corrupt(format!("a head of lane {lane} says what cannot have been written")));
    }
    match heads {
        [Some(a), Some(b)] if a.position >= b.position => Ok((a, 1)),
        [Some(a), None] => Ok((a, 1)),
        [_, Some(b)] => Ok((b, 0)),
        [None, None] => Err(Error::corrupt(format!("both heads of lane {lane} are torn"))),
    }
}

/// A lane from its head on, as far as it was read: a log that is nearly empty costs a piece, however large its lane is.
struct Ring<'a> {
    medium: &'a Medium,
    /// Where the lane starts in the file.
    start: u64,
    capacity: u64,
    head: u64,
    /// The bytes from `head` on.
    bytes: Vec<u8>,
}

/// As much of a lane is read at once.
const PIECE_BYTES: u64 = 1 << 20;

impl Ring<'_> {
    /// Reads the ring so far that it has `bytes` at `position`; gives all that was read from there on. None: the ring ends before.
    fn read_through(&mut self, position: u64, bytes: u64) -> Result<Option<&[u8]>> {
        if bytes > self.capacity - position % self.capacity {
            return Ok(None);
        }
        let wanted = position + bytes;
        while self.head + (self.bytes.len() as u64) < wanted {
            let at = self.head + self.bytes.len() as u64;
            let piece = PIECE_BYTES.min(self.capacity - at % self.capacity);
            let read = self.bytes.len();
            self.bytes.resize(read + piece as usize, 0);
            self.medium.read(self.start + at % self.capacity, &mut self.bytes[read..])?;
        }
        Ok(Some(&self.bytes[(position - self.head) as usize..]))
    }

    /// The header of a good record at a position; None when there is none.
    fn good(&mut self, position: u64, salt: u32) -> Result<Option<RecordHeader>> {
        let Some(start) = self.read_through(position, RECORD_ALIGN as u64)? else { return Ok(None) };
        let bytes = record::header(start).bytes;
        let Some(record) = self.read_through(position, u64::from(bytes))? else { return Ok(None) };
        let available = record.len().min(bytes.max(RECORD_ALIGN as u32) as usize);
        Ok(log::check(&record[..available], salt, position).ok())
    }

    /// Its good records from the head on; gives the position behind the last.
    fn scan(&mut self, lane: usize, salt: u32, applied: u64, found: &mut Vec<Found>) -> Result<u64> {
        let (mut position, mut last) = (self.head, applied);
        while position - self.head < self.capacity {
            let round = position + self.capacity - position % self.capacity;
            let Some(header) = self.good(position, salt)? else {
                // The WRAP record may be the bad one. The next transaction, found behind it, proves that nothing else was there.
                let goes_on = round - self.head < self.capacity
                    && self.good(round, salt)?.is_some_and(|header| {
                        header.kind != RECORD_UNDO && header.sequence == last.saturating_add(1)
                    });
                if !goes_on {
                    break;
                }
                position = round;
                continue;
            };
            if header.parts == PARTS_WRAP {
                position = round;
                continue;
            }
            last = last.max(header.sequence);
            found.push(Found { header, lane });
            position += u64::from(header.bytes);
        }
        Ok(position)
    }

    /// Good records of this round behind the one at `end`, which is not good.
    fn behind(&self, lane: usize, end: u64, salt: u32, behind: &mut Vec<Found>) -> Result<()> {
        let (mut piece, mut record) = (vec![0; PIECE_BYTES as usize], Vec::new());
        let (mut position, last) = (end, self.head + self.capacity);
        while position < last {
            // The part of a lane that was never written is not read: the file may have holes there, which are no records.
            let left = (self.capacity - position % self.capacity).min(last - position);
            let place = self.start + position % self.capacity;
            let skipped =
                (self.medium.data(place, place + left) - place) / RECORD_ALIGN as u64 * RECORD_ALIGN as u64;
            if skipped > 0 {
                position += skipped;
                continue;
            }
            let bytes = PIECE_BYTES.min(left);
            let piece = &mut piece[..bytes as usize];
            self.medium.read(self.start + position % self.capacity, piece)?;
            for (at, start) in piece.chunks_exact(RECORD_ALIGN).enumerate() {
                let (about, here) = (record::header(start), position + (at * RECORD_ALIGN) as u64);
                let most = (self.capacity - here % self.capacity).min(last - here);
                if about.position != here || here == end || u64::from(about.bytes) > most {
                    continue;
                }
                record.resize(about.bytes.max(RECORD_ALIGN as u32) as usize, 0);
                self.medium.read(self.start + here % self.capacity, &mut record)?;
                if let Ok(header) = log::check(&record, salt, here)
                    && header.parts != PARTS_WRAP
                {
                    behind.push(Found { header, lane });
                }
            }
            position += bytes;
        }
        Ok(())
    }
}

fn record_of<'a>(one: &Found, rings: &'a [Ring<'_>]) -> &'a [u8] {
    let ring = &rings[one.lane];
    let at = (one.header.position - ring.head) as usize;
    &ring.bytes[at..at + one.header.bytes as usize]
}

fn shadow_of(medium: &Medium, header: &Header) -> Result<Option<Shadow>> {
    if header.mechanism == Mechanism::Shadow as u8 {
        return Shadow::read(medium, header).map(Some);
    }
    Ok(None)
}

/// The state of another process's snapshot: everything in it is applied, and the log is of what came later.
fn applied(medium: &Medium) -> Result<State> {
    let header = read_header(medium)?;
    let lanes = header.lanes as usize;
    let none = vec![0; lanes];
    let applier =
        Applier { positions: none.clone(), settled: none.clone(), turns: none, ..Applier::default() };
    let recovered = Recovered { clean: true, ..Recovered::default() };
    Ok(State { header, positions: vec![0; lanes], applier, recovered, lost: None, shadow: None })
}

/// Recovers. With `write` false nothing is stored, and a pool that has something to recover is refused.
pub(crate) fn recover(medium: &Medium, write: bool, loss: Loss, holes: &Holes) -> Result<State> {
    if medium.is_beside() {
        return applied(medium);
    }
    let mut header = read_header(medium)?;
    let (mut heads, mut turns) = (Vec::new(), Vec::new());
    for lane in 0..header.lanes {
        let (head, turn) = read_head(medium, lane)?;
        heads.push(head);
        turns.push(turn);
    }
    let applied = heads.iter().map(|head| head.applied).max().unwrap_or(0);
    let (mut rings, mut positions) = (Vec::new(), Vec::new());
    let (mut found, mut behind) = (Vec::new(), Vec::new());
    for (lane, head) in heads.iter().enumerate() {
        let (start, capacity) = (header.lane_start(lane as u32), header.lane_bytes);
        let mut ring = Ring { medium, start, capacity, head: head.position, bytes: Vec::new() };
        let salt = header.salt(lane as u32);
        let end = ring.scan(lane, salt, applied, &mut found)?;
        // The log of a pool that was closed is empty.
        if !header.clean {
            ring.behind(lane, end, salt, &mut behind)?;
        }
        positions.push(end);
        rings.push(ring);
    }
    found.retain(|one| one.header.sequence > applied);
    behind.retain(|one: &Found| one.header.sequence > applied);
    if found.iter().any(|one| one.header.sequence > COUNTED_MAX) {
        return Err(Error::corrupt(
            "a log record claims a place in the order that cannot have been given out",
        ));
    }
    let undo = header.mechanism == Mechanism::Undo as u8;
    found.sort_by_key(|one| (one.header.sequence, one.header.position));
    if undo {
        found.reverse();
    } else if found.windows(2).any(|pair| pair[0].header.sequence == pair[1].header.sequence) {
        return Err(Error::corrupt("two log records claim one place in the order"));
    }
    let log = Log { header: &header, applied, found: &found, behind: &behind, ends: &positions };
    let mut lost = log.damage();
    match &lost {
        Some(damage) if loss == Loss::Refuse => {
            return Err(Error::LogDamaged {
                what: damage.what.clone(),
                transactions: damage.transactions,
                files: medium.paths(),
            });
        }
        Some(_) if undo => {
            for one in &behind {
                rings[one.lane].read_through(one.header.position, u64::from(one.header.bytes))?;
            }
            found.append(&mut behind);
            found.sort_by_key(|one| std::cmp::Reverse((one.header.sequence, one.header.position)));
        }
        Some(damage) => found.retain(|one| one.header.sequence < damage.from),
        None => {}
    }
    let is_broken = |one: &Found| {
        one.header.parts == PARTS_FAR
            && far_record::read(medium, &header, record_of(one, &rings), |_| Ok(())).is_err()
    };
    if let Some(at) = found.iter().position(is_broken).filter(|_| !undo) {
        let damage = LogDamage {
            what: format!(
                "what transaction {} changed lies in free slabs of the heap and is damaged",
                found[at].header.sequence
            ),
            transactions: (found.len() - at) as u64,
            from: found[at].header.sequence,
        };
        if loss == Loss::Refuse {
            let LogDamage { what, transactions, .. } = damage;
            return Err(Error::LogDamaged { what, transactions, files: medium.paths() });
        }
        found.truncate(at);
        lost = Some(damage);
    }
    let mut shadow = shadow_of(medium, &header)?;
    if let Some(shadow) = &shadow
        && lost.is_none() // else transactions after the last one may have had its copies
        && let Some(last) = found.last()
        && !shadow.verifies(medium, header.heap_start, record_of(last, &rings))?
    {
        found.pop(); // its fence was not reached
    }
    let recovered = Recovered {
        transactions: found.len() as u64,
        log_bytes: found.iter().map(|one| u64::from(one.header.bytes)).sum(),
        clean: header.clean,
    };
    let last = if undo { 0 } else { found.last().map_or(applied, |one| one.header.sequence) };
    let mut applier = Applier {
        positions: positions.clone(),
        settled: positions.clone(),
        applied: last,
        turns,
        counters: Counters::default(),
        taken: Taken::default(),
        far: Vec::new(),
    };
    if !write {
        if recovered.transactions > 0 {
            return Err(Error::Argument {
                what: format!(
                    "the pool was not closed: {} transactions wait in its log; open it for writing once",
                    recovered.transactions
                ),
            });
        }
        return Ok(State { header, positions, applier, recovered, lost, shadow });
    }
    // All are checked before the first is stored.
    let mut replayed = Replayed::default();
    for store in [false, true] {
        for one in &found {
            let record = record_of(one, &rings);
            match &mut shadow {
                Some(shadow) if store => shadow.apply(record)?,
                Some(_) => {}
                None => {
                    let home = Home { medium, holes, header: &header };
                    replay(&home, record, &one.header, store, &mut replayed, &mut applier.counters)?;
                }
            }
        }
    }
    if let Some(shadow) = &mut shadow {
        shadow.store(medium, &mut applier.counters)?;
        shadow.settle();
    }
    if let Some(checksums) = Checksums::read(medium, &header)? {
        let word = |at: u64| {
            let mut bytes = [0; 8];
            medium.load(header.heap_start + at, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let bodies = crate::span::marked(&header, word)?;
        checksums.recovered(medium, &header, replayed, &bodies, &mut applier.counters)?;
        if !header.clean {
            checksums.renew_bodies(medium, &mut applier.counters)?;
        }
    }
    medium.harden(&mut applier.counters)?;
    for lane in 0..header.lanes {
        let head = LaneHead { position: positions[lane as usize], applied: last };
        if head != heads[lane as usize] {
            write_head(medium, lane, &mut applier, head)?;
        }
    }
    // Heads and header become durable together, in whichever order. With the new epoch the records behind old heads do not count
    // any more, and their content is in its place.
    header.epoch += 1;
    header.generation += 1;
    header.clean = false;
    // Records of this epoch have claims; the older ones count no more.
    header.incompat |= FEATURE_CLAIMS;
    medium.write_header(&header, &mut applier.counters)?;
    Ok(State { header, positions, applier, recovered, lost, shadow })
}

fn write_head(medium: &Medium, lane: u32, applier: &mut Applier, head: LaneHead) -> Result<()> {
    let turn = &mut applier.turns[lane as usize];
    let offset = LaneHead::offset(lane, *turn);
    *turn += 1;
    medium.store(offset, &head.encode(), &mut applier.counters)?;
    medium.write_back(offset, HEAD_BYTES, &mut applier.counters);
    Ok(())
}

/// The heap that records are stored to.
struct Home<'a> {
    medium: &'a Medium,
    holes: &'a Holes,
    header: &'a Header,
}

/// Checks a record's ranges against the heap, and with `store` stores them and notes them for the checksums.
fn replay(
    home: &Home<'_>,
    record: &[u8],
    about: &RecordHeader,
    store: bool,
    replayed: &mut Replayed,
    counters: &mut Counters,
) -> Result<()> {
    let Home { medium, holes, header } = *home;
    if about.parts == PARTS_FAR {
        return far_record::read(medium, header, record, |record| {
            replay(home, record, &record::header(record), store, replayed, counters)
        });
    }
    let u64_at = |at: usize| {
        record.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    };
    let broken =
        || Error::corrupt("a log record's entries do not fit: it has a good checksum and a wrong content");
    let mut put = |offset: u64, data: &[u8]| {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > header.heap_bytes) {
            return Err(Error::corrupt("a log record names bytes outside the heap"));
        }
        if store {
            if header.has_checksums() {
                replayed.note(offset, data.len() as u64);
            }
            holes.reserve_bytes(medium, header, offset, data.len() as u64)?;
            medium.store(header.heap_start + offset, data, counters)?;
            medium.write_back(header.heap_start + offset, data.len() as u64, counters);
        }
        Ok(())
    };
    let mut at = size_of::<RecordHeader>();
    for _ in 0..record::entries(record) {
        match about.kind {
            RECORD_RANGES | RECORD_UNDO => {
                let word = RangeWord(u64_at(at).ok_or_else(broken)?);
                let end = at + 8 + word.length() as usize;
                put(word.offset(), record.get(at + 8..end).ok_or_else(broken)?)?;
                at = end;
            }
            RECORD_LINES => {
                let (page, mut lines) = (u64_at(at).ok_or_else(broken)?, u64_at(at + 8).ok_or_else(broken)?);
                at += 16;
                while lines != 0 {
                    let line = u64::from(lines.trailing_zeros()) * 64;
                    let offset = page.checked_mul(PAGE_BYTES as u64).ok_or_else(broken)? + line;
                    put(offset, record.get(at..at + 64).ok_or_else(broken)?)?;
                    at += 64;
                    lines &= lines - 1;
                }
            }
            kind => {
                return Err(Error::corrupt(format!("a log record of kind {kind} in a pool that has none")));
            }
        }
    }
    Ok(())
}
