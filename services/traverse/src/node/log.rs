// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log: every change of a node's memory with what is remembered of its request, so that a restarted node has its data.
//!
//! Flow     change ──[`Log::append`]──▶ one record ─▶ [`Log::commit`], before its answer leaves …… restart: [`Log::replay`]
//! Layout   file: magic, version u32, reserved u32, base u64, bytes u64, zeros up to 64. A record: CRC-32C u32 over the rest,
//!          bytes of the rest u32, then [`Entry`]: change, then request (`write` and `read` below are each other's inverse)
//! Order    change and request are one record: after a crash either both are there or neither. What was stored is logged as the bytes
//!          that were stored, also of an apply: so records may be replayed over a memory that has some of them already (`compact`)
//! Owner    the node's writer; one process at a time (the file is locked)
//! Not here replication: a disk that is lost takes the data with it; how the log is made short again (`compact`)
//!
//! A record that is cut short or broken at the end of the file is what a crash leaves: it is cut off. One that is broken while a
//! good one follows is damage: the node does not start.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memlift_engine::Engine;

use super::once::{Id, Known, Outcome};
use crate::wire::{ApplyOperands, Status};

const MAGIC: [u8; 8] = *b"MLWLOG\0\x01";
const VERSION: u32 = 3;
const HEAD_BYTES: usize = 64;
/// Longest record: what an allocator knows about a range.
const RECORD_BYTES_MAX: usize = 1 << 31;

/// When a change is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// In the system's cache before the answer leaves: a killed node loses nothing, a machine without power may.
    #[default]
    Process,
    /// On the disk before the answer leaves (fdatasync once per batch).
    Disk,
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The system refused.
    #[error("{}: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
    /// Another process has it.
    #[error("{}: another node has this log open: stop it first, or name another file", .0.display())]
    Locked(PathBuf),
    /// Not a log.
    #[error("{}: not a log of `memlift node`: name another file", .0.display())]
    Foreign(PathBuf),
    /// Written by a node with other memory.
    #[error("{}: its node had {bytes} bytes from {base:#x} on: start with the same", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// That node's first address.
        base: u64,
        /// That node's bytes.
        bytes: u64,
    },
    /// Broken in the middle.
    #[error("{}: damaged at byte {at}, with good records behind: restore the file from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
    },
}

/// What was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// Bytes were stored.
    Write(u64, Vec<u8>),
    /// Memory was given: tenant, bytes, address.
    Allocate(u32, u64, u64),
    /// Memory came back: tenant, address, bytes.
    Free(u32, u64, u64),
    /// Something happened to a stretch of addresses: first one, how many.
    Stretch(Stretch, u64, u64),
    /// A program was registered: tenant, upload.
    Program(u32, Vec<u8>),
    /// A range has come, and all that was reserved for it with it: first address, bytes, what its last node's allocator knew.
    Take(u64, u64, Vec<u8>),
    /// Of a snapshot: all that the allocator knows, and its cuts, in words.
    State(Vec<u8>, Vec<u8>),
    /// The map was of this epoch.
    Epoch(u64),
    /// A client's requests before this one are over.
    Settled(Id),
    /// Sessions of a tenant below this number were forgotten.
    Forgotten(u32, u64),
    /// The node's clock was there.
    Clock(u32),
    /// The addresses are this cluster's, or this memory's.
    Cluster(u64),
}

/// What can happen to a stretch of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stretch {
    /// The node has it, all zero.
    Grant = 0,
    /// It is to leave: nothing is given out over its ends.
    Cut = 1,
    /// It is about to leave: nothing of it is given out.
    Detach = 2,
    /// It stays.
    Attach = 3,
    /// It is another node's.
    Give = 4,
    /// One is about to come: there is memory for it.
    Reserve = 5,
    /// It did not come.
    Discard = 6,
    /// Of a snapshot: what was reserved is the node's, and its state follows.
    Keep = 7,
}

impl Stretch {
    fn from_byte(byte: u8) -> Option<Stretch> {
        use Stretch::{Attach, Cut, Detach, Discard, Give, Grant, Keep, Reserve};
        [Grant, Cut, Detach, Attach, Give, Reserve, Discard, Keep].into_iter().find(|one| *one as u8 == byte)
    }
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What was changed.
    pub change: Change,
    /// On which request, and what is known of it now.
    pub request: Option<(Id, Known)>,
}

impl Entry {
    /// Appends it.
    pub fn write(&self, to: &mut Vec<u8>) {
        let words = |to: &mut Vec<u8>, words: &[u64]| {
            words.iter().for_each(|w| to.extend_from_slice(&w.to_le_bytes()))
        };
        let piece = |to: &mut Vec<u8>, bytes: &[u8]| {
            to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            to.extend_from_slice(bytes);
        };
        match &self.change {
            Change::None => to.push(0),
            Change::Write(address, bytes) => {
                to.push(1);
                words(to, &[*address]);
                piece(to, bytes);
            }
            Change::Allocate(tenant, bytes, address) => {
                to.push(2);
                words(to, &[u64::from(*tenant), *bytes, *address]);
            }
            Change::Free(tenant, address, bytes) => {
                to.push(3);
                words(to, &[u64::from(*tenant), *address, *bytes]);
            }
            Change::Stretch(what, base, bytes) => {
                to.extend_from_slice(&[4, *what as u8]);
                words(to, &[*base, *bytes]);
            }
            Change::Program(tenant, upload) => {
                to.push(5);
                words(to, &[u64::from(*tenant)]);
                piece(to, upload);
            }
            Change::Take(base, bytes, part) => {
                to.push(6);
                words(to, &[*base, *bytes]);
                piece(to, part);
            }
            Change::State(part, cuts) => {
                to.push(7);
                piece(to, part);
                piece(to, cuts);
            }
            Change::Epoch(epoch) => {
                to.push(8);
                words(to, &[*epoch]);
            }
            Change::Settled(id) => {
                to.push(9);
                words(
                    to,
                    &[u64::from(id.tenant), id.client, u64::from(id.incarnation), id.settled, id.session],
                );
            }
            Change::Forgotten(tenant, bound) => {
                to.push(10);
                words(to, &[u64::from(*tenant), *bound]);
            }
            Change::Clock(clock) => {
                to.push(11);
                words(to, &[u64::from(*clock)]);
            }
            Change::Cluster(cluster) => {
                to.push(12);
                words(to, &[*cluster]);
            }
        }
        let Some((id, known)) = &self.request else { return };
        let incarnation = u64::from(id.incarnation);
        words(to, &[u64::from(id.tenant), id.client, incarnation, id.sequence, id.settled, id.session]);
        match known {
            Known::Running(attempt) => {
                to.push(0);
                words(to, &[u64::from(*attempt)]);
            }
            Known::Decided(operands, body, since) => {
                to.push(1);
                to.extend_from_slice(&operands.bytes());
                words(to, &[u64::from(*since)]);
                piece(to, body);
            }
            Known::Settled(outcome, since) => {
                to.extend_from_slice(&[2, outcome.status.byte()]);
                words(to, &[outcome.value, outcome.address, u64::from(*since)]);
                piece(to, &outcome.body);
            }
        }
    }

    /// From bytes; `None` when they are none.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Entry> {
        let mut rest = Cut(bytes);
        let change = match rest.byte()? {
            0 => Change::None,
            1 => Change::Write(rest.word()?, rest.piece()?),
            2 => Change::Allocate(rest.tenant()?, rest.word()?, rest.word()?),
            3 => Change::Free(rest.tenant()?, rest.word()?, rest.word()?),
            4 => Change::Stretch(Stretch::from_byte(rest.byte()?)?, rest.word()?, rest.word()?),
            5 => Change::Program(rest.tenant()?, rest.piece()?),
            6 => Change::Take(rest.word()?, rest.word()?, rest.piece()?),
            7 => Change::State(rest.piece()?, rest.piece()?),
            8 => Change::Epoch(rest.word()?),
            9 => {
                let (tenant, client, incarnation) = (rest.tenant()?, rest.word()?, rest.tenant()?);
                let (settled, session) = (rest.word()?, rest.word()?);
                Change::Settled(Id { tenant, client, incarnation, sequence: settled, settled, session })
            }
            10 => Change::Forgotten(rest.tenant()?, rest.word()?),
            11 => Change::Clock(rest.tenant()?),
            12 => Change::Cluster(rest.word()?),
            _ => return None,
        };
        if rest.0.is_empty() {
            return Some(Entry { change, request: None });
        }
        let id = Id {
            tenant: rest.tenant()?,
            client: rest.word()?,
            incarnation: rest.tenant()?,
            sequence: rest.word()?,
            settled: rest.word()?,
            session: rest.word()?,
        };
        let known = match rest.byte()? {
            0 => Known::Running(rest.tenant()?),
            1 => {
                let (operands, since) = (rest.operands()?, rest.tenant()?);
                Known::Decided(operands, rest.piece()?, since)
            }
            2 => {
                let (status, value, address) = (Status::from_byte(rest.byte()?)?, rest.word()?, rest.word()?);
                let since = rest.tenant()?;
                Known::Settled(Outcome { status, value, address, body: rest.piece()? }, since)
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(Entry { change, request: Some((id, known)) })
    }
}

/// Bytes that are used up from the front.
struct Cut<'a>(&'a [u8]);

impl Cut<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn tenant(&mut self) -> Option<u32> {
        self.word()?.try_into().ok()
    }

    fn operands(&mut self) -> Option<ApplyOperands> {
        Some(ApplyOperands { kind: self.word()?, address: self.word()?, a: self.word()?, b: self.word()? })
    }

    fn piece(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(piece.to_vec())
    }
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    pub(super) file: File,
    pub(super) path: PathBuf,
    durability: Durability,
    waiting: Vec<u8>,
    pub(super) bytes: u64,
    /// Of which so many are those of the last snapshot.
    pub(super) snapshot_bytes: u64,
    /// Base and bytes that its head says.
    pub(super) head_of: (u64, u64),
}

/// The first bytes of a log of the memory of `bytes` from `base` on.
pub(super) fn head(base: u64, bytes: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..24].copy_from_slice(&base.to_le_bytes());
    head[24..32].copy_from_slice(&bytes.to_le_bytes());
    head
}

/// Appends an entry as a record.
pub(super) fn record(entry: &Entry, to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(&[0; 8]);
    entry.write(to);
    let bytes = (to.len() - start - 8) as u32;
    to[start + 4..start + 8].copy_from_slice(&bytes.to_le_bytes());
    let crc = Engine::global().crc32c(&to[start + 4..], 0);
    to[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Keeps other processes away from a log.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), LogError> {
    match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::AGAIN) => Err(LogError::Locked(path.to_owned())),
        Err(error) => Err(LogError::System { path: path.to_owned(), error: error.into() }),
    }
}

/// What was in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Records.
    pub records: u64,
    /// Bytes at the end that a crash had left, and that were cut off.
    pub cut_bytes: u64,
}

/// Returns true if a file that starts like this is a log.
pub(super) fn is_log(start: &[u8]) -> bool {
    let length = start.len().min(MAGIC.len());
    start[..length] == MAGIC[..length]
}

impl Log {
    /// Opens a log, or begins one, for the memory of `bytes` from `base` on; hands out what it holds, in order.
    ///
    /// # Errors
    ///
    /// See [`LogError`]; nothing was changed then.
    pub fn replay(
        path: &Path,
        base: u64,
        bytes: u64,
        durability: Durability,
        mut take: impl FnMut(Entry),
    ) -> Result<(Log, Replayed), LogError> {
        let system = |error: io::Error| LogError::System { path: path.to_owned(), error };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(system)?;
        let stat = file.metadata().map_err(system)?;
        if !stat.is_file() {
            // A FIFO would be waited for, and a device written to.
            return Err(LogError::Foreign(path.to_owned()));
        }
        lock(&file, path)?;
        let length = file.metadata().map_err(system)?.len();
        let head = head(base, bytes);
        let mut replayed = Replayed::default();
        let mut at = HEAD_BYTES as u64;
        if length < HEAD_BYTES as u64 {
            // Nothing, or a head that a crash cut short: there was no record yet.
            let mut there = Vec::new();
            file.read_to_end(&mut there).map_err(system)?;
            if there[..] != head[..there.len()] {
                return Err(LogError::Foreign(path.to_owned()));
            }
            file.set_len(0).map_err(system)?;
            file.seek(SeekFrom::Start(0)).map_err(system)?;
            file.write_all(&head).map_err(system)?;
            file.sync_all().map_err(system)?;
        } else {
            let mut reader = BufReader::with_capacity(1 << 20, &mut file);
            let mut there = [0; HEAD_BYTES];
            reader.read_exact(&mut there).map_err(system)?;
            if there[..16] != head[..16] || there[32..] != head[32..] {
                return Err(LogError::Foreign(path.to_owned()));
            }
            if there != head {
                let word = |at: usize| u64::from_le_bytes(there[at..at + 8].try_into().expect("eight bytes"));
                return Err(LogError::Other { path: path.to_owned(), base: word(16), bytes: word(24) });
            }
            let mut record = Vec::new();
            while let Some(entry) = next_record(&mut reader, &mut record, length - at).map_err(system)? {
                at += 8 + record.len() as u64;
                replayed.records += 1;
                take(entry);
            }
            if follows(&mut file, at, length).map_err(system)? {
                return Err(LogError::Damaged { path: path.to_owned(), at });
            }
            replayed.cut_bytes = length - at;
            file.set_len(at).map_err(system)?;
            file.seek(SeekFrom::Start(at)).map_err(system)?;
        }
        let log = Log {
            file,
            path: path.to_owned(),
            durability,
            waiting: Vec::new(),
            bytes: at,
            snapshot_bytes: 0,
            head_of: (base, bytes),
        };
        Ok((log, replayed))
    }

    /// Takes a record; it is written by [`Log::commit`].
    pub fn append(&mut self, entry: &Entry) {
        record(entry, &mut self.waiting);
    }

    /// Writes what was taken, as durably as was asked for.
    ///
    /// # Errors
    ///
    /// What the system says. What was to be written is not, or not known to be: the node must answer nothing more.
    pub fn commit(&mut self) -> Result<(), LogError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut done = self.file.write_all(&self.waiting);
        if self.durability == Durability::Disk {
            done = done.and_then(|()| self.file.sync_data());
        }
        done.map_err(|error| LogError::System { path: self.path.clone(), error })?;
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Bytes in the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The next record, if a whole and good one is there.
fn next_record(reader: &mut impl Read, record: &mut Vec<u8>, left: u64) -> io::Result<Option<Entry>> {
    let mut head = [0; 8];
    if left < 8 {
        return Ok(None);
    }
    reader.read_exact(&mut head)?;
    let bytes = u32::from_le_bytes(head[4..].try_into().expect("four bytes")) as usize;
    if bytes == 0 || bytes > RECORD_BYTES_MAX || bytes as u64 > left - 8 {
        return Ok(None);
    }
    record.resize(bytes, 0);
    reader.read_exact(record)?;
    let engine = Engine::global();
    let crc = engine.crc32c(record, engine.crc32c(&head[4..], 0));
    Ok((crc.to_le_bytes() == head[..4]).then(|| Entry::read(record)).flatten())
}

/// Whether a good record starts where the broken one at `at` says that it ends.
fn follows(file: &mut File, at: u64, length: u64) -> io::Result<bool> {
    let mut head = [0; 8];
    if length - at < 8 {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut head)?;
    let next = at + 8 + u64::from(u32::from_le_bytes(head[4..].try_into().expect("four bytes")));
    if next >= length {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(next))?;
    Ok(next_record(&mut BufReader::new(file), &mut Vec::new(), length - next)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let id = Id { tenant: 1, client: 2, incarnation: 3, sequence: 4, settled: 2, session: 9 };
        let operands = ApplyOperands { kind: 1, address: 1 << 32, a: 5, b: 6 };
        let outcome = Outcome { status: Status::Applied, value: 5, address: 0, body: vec![1, 2, 3] };
        vec![
            Entry { change: Change::Write(1 << 32, vec![7; 33]), request: Some((id, Known::Running(3))) },
            Entry { change: Change::Allocate(1, 64, 1 << 32), request: None },
            Entry { change: Change::Free(1, 1 << 32, 64), request: None },
            Entry { change: Change::Stretch(Stretch::Reserve, 1 << 32, 4096), request: None },
            Entry { change: Change::Take(1 << 32, 4096, vec![3; 40]), request: None },
            Entry { change: Change::State(vec![1; 9], vec![]), request: None },
            Entry { change: Change::Epoch(77), request: None },
            Entry { change: Change::Settled(Id { sequence: 2, ..id }), request: None },
            Entry {
                change: Change::Write(1 << 32, vec![6; 8]),
                request: Some((id, Known::Settled(outcome, 6))),
            },
            Entry { change: Change::None, request: Some((id, Known::Decided(operands, vec![9], 5))) },
            Entry { change: Change::Forgotten(1, 77), request: None },
            Entry { change: Change::Clock(78), request: None },
            Entry { change: Change::Cluster(79), request: None },
            Entry { change: Change::Program(1, vec![1; 300]), request: None },
        ]
    }

    fn replayed(path: &Path) -> Result<(Vec<Entry>, Replayed), LogError> {
        let mut all = Vec::new();
        Log::replay(path, 1 << 32, 4096, Durability::Process, |entry| all.push(entry))
            .map(|(_, what)| (all, what))
    }

    #[test]
    fn what_was_logged_comes_back_and_a_torn_end_is_cut_off_wherever_it_tears() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("node.log");
        let (mut log, _) =
            Log::replay(&path, 1 << 32, 4096, Durability::Disk, |_| panic!("empty")).expect("new");
        assert!(matches!(replayed(&path), Err(LogError::Locked(_))));
        let mut ends = vec![log.bytes()];
        for entry in entries() {
            log.append(&entry);
            log.commit().expect("written");
            ends.push(log.bytes());
        }
        drop(log);
        let whole = std::fs::read(&path).expect("the log");
        for length in HEAD_BYTES..=whole.len() {
            std::fs::write(&path, &whole[..length]).expect("cut");
            let (all, what) = replayed(&path).expect("a torn end is no damage");
            let good = ends.iter().filter(|end| **end <= length as u64).count() - 1;
            assert_eq!(all, entries()[..good], "cut at {length}");
            assert_eq!(what, Replayed { records: good as u64, cut_bytes: length as u64 - ends[good] });
            assert_eq!(std::fs::metadata(&path).expect("there").len(), ends[good]);
        }
        for at in HEAD_BYTES..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0x10;
            std::fs::write(&path, &broken).expect("broken");
            let hit = ends.iter().filter(|end| **end <= at as u64).count() - 1;
            match replayed(&path) {
                Ok((all, _)) => assert_eq!(all, entries()[..hit], "byte {at}"),
                Err(LogError::Damaged { at: found, .. }) => assert_eq!(found, ends[hit], "byte {at}"),
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        std::fs::write(&path, b"something else").expect("foreign");
        assert!(matches!(replayed(&path), Err(LogError::Foreign(_))));
        std::fs::write(&path, &whole).expect("whole");
        let other = Log::replay(&path, 1 << 33, 4096, Durability::Process, |_| {});
        assert!(matches!(other, Err(LogError::Other { bytes: 4096, .. })));
    }
}
