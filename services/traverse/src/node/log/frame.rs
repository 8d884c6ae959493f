// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of a log: its head, its records, and the rule that tells damage from a torn end.
//!
//! - **Layout** head of 64 bytes: magic, version u32, 0 u32, base u64, bytes u64, salt u64, CRC-32C u32 of these 40 bytes, zeros.
//!   Records start at multiples of 8: CRC-32C u32 of the 20 bytes behind it, CRC-32C u32 of what follows these 24 bytes, bytes of
//!   the entry u32, 0 u32, `durable_to` u64, the entry, zeros to a multiple of 8
//! - **Salt** both checksums of a record start with the file's salt and the record's position. So bytes that a client stored,
//!   blocks of an older file, and a record at a wrong position are not taken for records
//! - **Order** `durable_to` is the position up to which the file was known to be on the disk when the record was written
//! - **Not here** entries (`entry`), writing and syncing (the parent)

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use memlift_offload::Engine;

use super::entry::Entry;

/// Bytes of the head.
pub(in crate::node) const HEAD_BYTES: usize = 64;
/// Bytes of a record in front of its entry.
const FRAME_BYTES: usize = 24;
const MAGIC: [u8; 8] = *b"MLWLOG\0\x01";
/// The versions that this crate reads. A log begins with the first one, and gets the next with the first entry that needs it
/// ([`Entry::version`]), so that a release that does not know the entry refuses the log instead of cutting it off there.
pub(super) const VERSIONS: std::ops::RangeInclusive<u32> = 4..=7;
/// Bytes of the longest entry: an allocator's data about a range.
const ENTRY_BYTES_MAX: usize = 1 << 31;
/// Bytes of the file that a search for records reads at a time.
const WINDOW_BYTES: usize = 1 << 20;

const _: () = assert!(HEAD_BYTES.is_multiple_of(8) && FRAME_BYTES.is_multiple_of(8));

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn sum(bytes: &[u8], seed: u32) -> u32 {
    Engine::global().crc32c(bytes, seed)
}

/// The first bytes of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node) struct Head {
    /// Format version of the file, one of [`VERSIONS`].
    pub version: u32,
    /// First address of the memory that the log was begun for.
    pub base: u64,
    /// Bytes of that memory.
    pub bytes: u64,
    /// Random number that every checksum of this file starts with.
    pub salt: u64,
}

/// Returns true if a file that starts with these bytes is a log.
pub(in crate::node) fn is_log(start: &[u8]) -> bool {
    let length = start.len().min(MAGIC.len());
    start[..length] == MAGIC[..length]
}

/// Reason that bytes are not a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeadFault {
    /// The file is not a log.
    Foreign,
    /// The log has another format version.
    Version(u32),
    /// The bytes of the head have changed.
    Broken,
}

impl Head {
    /// Makes the head of a new file, with a random salt.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn new(base: u64, bytes: u64) -> io::Result<Head> {
        let mut salt = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut salt)?;
        Ok(Head { version: *VERSIONS.start(), base, bytes, salt: u64::from_le_bytes(salt) })
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&self.version.to_le_bytes());
        head[16..24].copy_from_slice(&self.base.to_le_bytes());
        head[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        head[32..40].copy_from_slice(&self.salt.to_le_bytes());
        let sum = sum(&head[..40], 0);
        head[40..44].copy_from_slice(&sum.to_le_bytes());
        head
    }

    pub(super) fn decode(head: &[u8; HEAD_BYTES]) -> Result<Head, HeadFault> {
        if head[..8] != MAGIC {
            return Err(HeadFault::Foreign);
        }
        let version = half(head, 8);
        match version {
            _ if VERSIONS.contains(&version) => {}
            _ if version < *VERSIONS.start() => return Err(HeadFault::Version(version)),
            _ => {
                let known = head[40..44] == sum(&head[..40], 0).to_le_bytes();
                return Err(if known { HeadFault::Version(version) } else { HeadFault::Broken });
            }
        }
        let found = Head { version, base: word(head, 16), bytes: word(head, 24), salt: word(head, 32) };
        if found.encode() == *head { Ok(found) } else { Err(HeadFault::Broken) }
    }

    /// Returns true if these bytes, the whole file, are what a crash leaves of an unfinished head: no record was written
    /// yet.
    pub(super) fn is_torn(file: &[u8]) -> bool {
        file.len() < HEAD_BYTES && (file[..file.len().min(8)] == MAGIC[..file.len().min(8)])
            || file.len() <= HEAD_BYTES && file.iter().all(|byte| *byte == 0)
    }

    fn seed(&self, position: u64) -> u32 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.salt.to_le_bytes());
        bytes[8..].copy_from_slice(&position.to_le_bytes());
        sum(&bytes, 0)
    }

    /// Appends an entry as the record at `position`.
    pub fn put(&self, position: u64, durable_to: u64, entry: &Entry, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&[0; FRAME_BYTES]);
        entry.write(to);
        let bytes = to.len() - start - FRAME_BYTES;
        to.resize(to.len().next_multiple_of(8), 0);
        let seed = self.seed(position);
        let body = sum(&to[start + FRAME_BYTES..], seed);
        to[start + 4..start + 8].copy_from_slice(&body.to_le_bytes());
        to[start + 8..start + 12].copy_from_slice(&(bytes as u32).to_le_bytes());
        to[start + 16..start + 24].copy_from_slice(&durable_to.to_le_bytes());
        let head = sum(&to[start + 4..start + FRAME_BYTES], seed);
        to[start..start + 4].copy_from_slice(&head.to_le_bytes());
    }

    /// If these 24 bytes start the record at `position` of a file of `length` bytes, returns the bytes of its entry, the
    /// checksum of the entry, and `durable_to`.
    fn frame(&self, frame: &[u8], position: u64, length: u64) -> Option<(usize, u32, u64)> {
        let (bytes, durable_to) = (half(frame, 8) as usize, word(frame, 16));
        // Cheap comparisons first: a search tries every multiple of 8 in the file.
        let may = bytes > 0
            && bytes <= ENTRY_BYTES_MAX
            && half(frame, 12) == 0
            && durable_to <= position
            && position < length;
        (may && half(frame, 0) == sum(&frame[4..FRAME_BYTES], self.seed(position))).then_some((
            bytes,
            half(frame, 4),
            durable_to,
        ))
    }

    /// Returns the entry in the first `bytes` bytes of `padded` if the checksum `body` fits it at `position`.
    fn entry(&self, padded: &[u8], bytes: usize, body: u32, position: u64) -> Option<Entry> {
        (sum(padded, self.seed(position)) == body).then(|| Entry::read(&padded[..bytes])).flatten()
    }
}

/// A record as it was read from the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::node) struct Record {
    pub position: u64,
    /// Position of the first byte behind it.
    pub end: u64,
    pub durable_to: u64,
    pub entry: Entry,
}

/// Reads records in order, up to the first bytes that are not a record.
pub(in crate::node) struct Records<R> {
    reader: R,
    head: Head,
    /// Where the next record starts.
    pub position: u64,
    length: u64,
    bytes: Vec<u8>,
}

impl<R: Read> Records<R> {
    /// Makes a reader of records. `reader` must stand at `position` of a file of `length` bytes.
    pub fn new(reader: R, head: Head, position: u64, length: u64) -> Records<R> {
        Records { reader, head, position, length, bytes: Vec::new() }
    }

    /// Returns the next record; `None` at the end of the file, or at bytes that are not a record.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        let left = self.length - self.position;
        if left < FRAME_BYTES as u64 {
            return Ok(None);
        }
        let mut frame = [0; FRAME_BYTES];
        self.reader.read_exact(&mut frame)?;
        let Some((bytes, body, durable_to)) = self.head.frame(&frame, self.position, self.length) else {
            return Ok(None);
        };
        let whole = bytes.next_multiple_of(8);
        if whole as u64 > left - FRAME_BYTES as u64 {
            return Ok(None);
        }
        self.bytes.resize(whole, 0);
        self.reader.read_exact(&mut self.bytes)?;
        let Some(entry) = self.head.entry(&self.bytes, bytes, body, self.position) else {
            return Ok(None);
        };
        let position = self.position;
        self.position += (FRAME_BYTES + whole) as u64;
        Ok(Some(Record { position, end: self.position, durable_to, entry }))
    }
}

/// A record, or part of one, found behind a bad record.
pub(super) enum Behind {
    /// The frame is good and the entry is not; holds the frame's `durable_to`.
    Frame(u64),
    /// Frame and entry are good.
    Whole(Record),
}

/// Passes the records behind a bad one at `from` to `take`, in order. Every multiple of 8 is tried as the start of a record.
pub(super) fn behind(
    file: &File,
    head: &Head,
    from: u64,
    length: u64,
    mut take: impl FnMut(Behind) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = from;
    let (mut window, mut window_at) = (Vec::new(), u64::MAX);
    let mut bytes = Vec::new();
    while at + (FRAME_BYTES as u64) <= length {
        let inside = at.wrapping_sub(window_at);
        if inside > window.len() as u64 || window.len() as u64 - inside < FRAME_BYTES as u64 {
            window.resize(WINDOW_BYTES.min((length - at) as usize), 0);
            file.read_exact_at(&mut window, at)?;
            window_at = at;
        }
        let start = (at - window_at) as usize;
        let Some((count, body, durable_to)) = head.frame(&window[start..start + FRAME_BYTES], at, length)
        else {
            at += 8;
            continue;
        };
        let end = at + (FRAME_BYTES + count.next_multiple_of(8)) as u64;
        let mut entry = None;
        if end <= length {
            bytes.resize(count.next_multiple_of(8), 0);
            file.read_exact_at(&mut bytes, at + FRAME_BYTES as u64)?;
            entry = head.entry(&bytes, count, body, at);
        }
        match entry {
            Some(entry) => {
                take(Behind::Whole(Record { position: at, end, durable_to, entry }))?;
                at = end;
            }
            None => {
                take(Behind::Frame(durable_to))?;
                at += 8;
            }
        }
    }
    Ok(())
}
