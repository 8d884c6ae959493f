// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of a replica's objects: segments, which are numbered, and parts, in which the pages of large segments lie.
//!
//! - **Layout** `docs/formats/replica.md`. An object is a front (fields, tables, its checksum) and the pages that the front lists
//! - **Rule** a segment's front has the checksum of the front before it, and of everything that belongs to the segment: whoever reads fronts
//!   knows the whole history, and no object can be replaced, left out or brought back unnoticed
//! - **Trust** everything that is read is hostile: counts are bounded before memory is taken, and a front has exactly the length that its
//!   counts say

use crate::checksums::{PAGE, page_sum};
use crate::layout::{CATALOG_BYTES, COUNTED_MAX, Header, LANES_MAX};

/// Pages of an object, at most: 8 MiB.
pub(crate) const PAGES_MAX: usize = 2048;
/// Parts of a segment, at most: 8 TiB of pages.
pub(crate) const PARTS_MAX: usize = 1 << 20;
/// Bytes of a writer's description of itself, at most.
pub(crate) const OWNER_MAX: usize = 512;
const SEGMENT_MAGIC: [u8; 8] = *b"MLREPSEG";
const PART_MAGIC: [u8; 8] = *b"MLREPPRT";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 128;
const SEGMENT_FIXED: usize = 144 + HEADER_BYTES;
const PART_FIXED: usize = 80;
const PART_ENTRY: usize = 48;
const INDEX_ENTRY: usize = 16;
/// Fronts of segments without many parts, and of all parts, are within these first bytes of the object.
pub(crate) const FRONT_USUAL: u64 = 128 << 10;
/// Bytes of a part's object, at most.
pub(crate) const PART_BYTES_MAX: u64 = (PART_FIXED + 32 + PAGES_MAX * (INDEX_ENTRY + PAGE as usize)) as u64;

/// Bytes of the objects of parts.
pub(crate) fn parts_bytes(parts: &[PartEntry]) -> u64 {
    let bytes = |part: &PartEntry| PART_FIXED + 32 + part.pages as usize * (INDEX_ENTRY + PAGE as usize);
    parts.iter().map(|part| bytes(part) as u64).sum()
}

/// Bytes of a segment's front, at most.
pub(crate) const FRONT_MAX: u64 = (SEGMENT_FIXED
    + OWNER_MAX
    + LANES_MAX as usize * 8
    + PARTS_MAX * PART_ENTRY
    + CATALOG_BYTES as usize
    + PAGES_MAX * INDEX_ENTRY
    + 32) as u64;

/// A BLAKE3 checksum of 32 bytes.
pub(crate) type Digest = [u8; 32];
pub(crate) type WriterId = [u8; 16];

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// Purpose of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentKind {
    /// A writer begins; there are no pages. Never removed.
    Claim = 0,
    /// All pages in use.
    Snapshot = 1,
    /// Pages that changed since the segment before.
    Changes = 2,
}

/// A part as its segment names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartEntry {
    /// The writer's number of the part, which is in its name.
    pub serial: u64,
    pub pages: u32,
    /// Checksum of the part's front.
    pub front: Digest,
}

/// A page's number in the heap, and its checksum as the pool computes it.
pub(crate) type IndexEntry = (u64, u64);

/// The front of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub number: u64,
    /// Number of the writer among those that the replica has had.
    pub generation: u64,
    pub kind: SegmentKind,
    /// The moment whose state it completes, in microseconds since 1970.
    pub time_us: u64,
    /// Transactions up to this one are in it.
    pub sequence: u64,
    pub writer: WriterId,
    /// The writer's description of itself: host, process, file.
    pub owner: String,
    /// Checksum of the front before; zeros for the first.
    pub previous: Digest,
    pub header: Header,
    /// How far each lane is applied.
    pub positions: Vec<u64>,
    pub parts: Vec<PartEntry>,
    /// The catalog of types, where it is another than in the segment before.
    pub catalog: Option<Vec<u8>>,
    pub index: Vec<IndexEntry>,
    pub pages_digest: Digest,
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_half(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn put_index(bytes: &mut Vec<u8>, index: &[IndexEntry]) {
    for (page, sum) in index {
        bytes.extend_from_slice(&page.to_le_bytes());
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
}

/// Reads an index; its pages ascend and lie in the heap.
fn read_index(bytes: &[u8], heap_bytes: u64) -> Result<Vec<IndexEntry>, &'static str> {
    let index: Vec<IndexEntry> =
        bytes.as_chunks::<INDEX_ENTRY>().0.iter().map(|entry| (word(entry, 0), word(entry, 8))).collect();
    let ascends = index.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let inside = index.last().is_none_or(|last| last.0 < heap_bytes / PAGE);
    if ascends && inside { Ok(index) } else { Err("lists pages that cannot be") }
}

/// Ends a front with its checksum; returns the checksum.
fn seal(front: &mut Vec<u8>) -> Digest {
    let found = digest(front);
    front.extend_from_slice(&found);
    found
}

/// The length that an object's first bytes give for its front, if they are of a segment or part.
pub(crate) fn front_bytes(start: &[u8]) -> Option<u64> {
    if start.len() < SEGMENT_FIXED || start[..8] != SEGMENT_MAGIC {
        return None;
    }
    Some(u64::from(half(start, 12)))
}

/// Kind and moment of a segment by its first bytes, without its checksum.
pub(crate) mod glance {
    use super::{SEGMENT_MAGIC, SegmentKind, VERSION, half, word};

    /// Bytes that it takes.
    pub const BYTES: u64 = 64;

    pub fn read(start: &[u8], number: u64) -> Option<(SegmentKind, u64)> {
        let fits = start.len() as u64 >= BYTES && start[..8] == SEGMENT_MAGIC && half(start, 8) == VERSION;
        if !fits || word(start, 16) != number {
            return None;
        }
        Some((SegmentKind::from_byte(start[32])?, word(start, 48)))
    }
}

impl SegmentKind {
    fn from_byte(byte: u8) -> Option<SegmentKind> {
        match byte {
            0 => Some(SegmentKind::Claim),
            1 => Some(SegmentKind::Snapshot),
            2 => Some(SegmentKind::Changes),
            _ => None,
        }
    }
}

impl Segment {
    fn front_length(owner: usize, lanes: usize, parts: usize, catalog: bool, pages: usize) -> usize {
        let catalog = if catalog { CATALOG_BYTES as usize } else { 0 };
        SEGMENT_FIXED + owner + lanes * 8 + parts * PART_ENTRY + catalog + pages * INDEX_ENTRY + 32
    }

    /// The bytes of the front, and their checksum.
    pub fn encode(&self) -> (Vec<u8>, Digest) {
        let mut bytes = vec![0; SEGMENT_FIXED];
        let length = Segment::front_length(
            self.owner.len(),
            self.positions.len(),
            self.parts.len(),
            self.catalog.is_some(),
            self.index.len(),
        );
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        put_half(&mut bytes, 8, VERSION);
        put_half(&mut bytes, 12, length as u32);
        put(&mut bytes, 16, self.number);
        put(&mut bytes, 24, self.generation);
        bytes[32] = self.kind as u8;
        bytes[33] = u8::from(self.catalog.is_some());
        bytes[34..36].copy_from_slice(&(self.owner.len() as u16).to_le_bytes());
        put_half(&mut bytes, 36, self.index.len() as u32);
        put_half(&mut bytes, 40, self.parts.len() as u32);
        put_half(&mut bytes, 44, self.positions.len() as u32);
        put(&mut bytes, 48, self.time_us);
        put(&mut bytes, 56, self.sequence);
        bytes[64..80].copy_from_slice(&self.writer);
        bytes[80..112].copy_from_slice(&self.previous);
        bytes[112..144].copy_from_slice(&self.pages_digest);
        bytes[144..144 + HEADER_BYTES].copy_from_slice(&self.header.encode());
        bytes.extend_from_slice(self.owner.as_bytes());
        self.positions.iter().for_each(|position| bytes.extend_from_slice(&position.to_le_bytes()));
        for part in &self.parts {
            bytes.extend_from_slice(&part.serial.to_le_bytes());
            bytes.extend_from_slice(&part.pages.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&part.front);
        }
        bytes.extend_from_slice(self.catalog.as_deref().unwrap_or_default());
        put_index(&mut bytes, &self.index);
        let front = seal(&mut bytes);
        debug_assert_eq!(bytes.len(), length);
        (bytes, front)
    }

    /// Reads a front; `object` starts with it. Returns the checksum, too.
    ///
    /// # Errors
    ///
    /// The fault, as the rest of a sentence about the object.
    pub fn decode(object: &[u8], number: u64) -> Result<(Segment, Digest), &'static str> {
        if object.len() < SEGMENT_FIXED || object[..8] != SEGMENT_MAGIC {
            return Err("is no segment");
        }
        if half(object, 8) != VERSION {
            return Err("has another version of the format: use the release that wrote it");
        }
        let owner = usize::from(u16::from_le_bytes([object[34], object[35]]));
        let (pages, parts) = (half(object, 36) as usize, half(object, 40) as usize);
        let (lanes, has_catalog) = (half(object, 44) as usize, object[33] == 1);
        if owner > OWNER_MAX || pages > PAGES_MAX || parts > PARTS_MAX || lanes > LANES_MAX as usize {
            return Err("has counts that cannot be");
        }
        let length = Segment::front_length(owner, lanes, parts, has_catalog, pages);
        if half(object, 12) as usize != length || object.len() < length {
            return Err("is cut off, or has counts that do not fit its length");
        }
        let front: Digest = object[length - 32..length].try_into().expect("32 bytes");
        if digest(&object[..length - 32]) != front {
            return Err("is damaged: its checksum does not match");
        }
        let kind = SegmentKind::from_byte(object[32]).ok_or("is of no known kind")?;
        let header =
            Header::decode(&object[144..144 + HEADER_BYTES]).map_err(|_| "has no good pool header")?;
        let mut at = SEGMENT_FIXED;
        let mut take = |bytes: usize| {
            at += bytes;
            &object[at - bytes..at]
        };
        let owner: String = String::from_utf8_lossy(take(owner))
            .chars()
            .map(|letter| if letter.is_control() { '?' } else { letter })
            .collect();
        let positions: Vec<u64> = take(lanes * 8).as_chunks::<8>().0.iter().map(|one| word(one, 0)).collect();
        let parts: Vec<PartEntry> = take(parts * PART_ENTRY)
            .as_chunks::<PART_ENTRY>()
            .0
            .iter()
            .map(|one| PartEntry {
                serial: word(one, 0),
                pages: half(one, 8),
                front: one[16..48].try_into().expect("32 bytes"),
            })
            .collect();
        let catalog = has_catalog.then(|| take(CATALOG_BYTES as usize).to_vec());
        let index = read_index(take(pages * INDEX_ENTRY), header.heap_bytes)?;
        let segment = Segment {
            number: word(object, 16),
            generation: word(object, 24),
            kind,
            time_us: word(object, 48),
            sequence: word(object, 56),
            writer: object[64..80].try_into().expect("16 bytes"),
            owner,
            previous: object[80..112].try_into().expect("32 bytes"),
            header,
            positions,
            parts,
            catalog,
            index,
            pages_digest: object[112..144].try_into().expect("32 bytes"),
        };
        segment.check(number)?;
        Ok((segment, front))
    }

    fn check(&self, number: u64) -> Result<(), &'static str> {
        if self.number != number {
            return Err("is another segment than its name says");
        }
        let counted = self.number.max(self.generation).max(self.sequence).max(self.time_us) <= COUNTED_MAX
            && self.positions.iter().all(|one| *one <= COUNTED_MAX && one.is_multiple_of(64));
        let parts = self.parts.iter().all(|part| (1..=PAGES_MAX as u32).contains(&part.pages));
        let claim = self.kind != SegmentKind::Claim || (self.parts.is_empty() && self.index.is_empty());
        let pool = self.header.devices == 1
            && self.header.mechanism.is_multiple_of(2)
            && self.positions.len() == self.header.lanes as usize;
        if counted && parts && claim && pool { Ok(()) } else { Err("has numbers that cannot be") }
    }

    /// Returns true if `next` can follow it in one history: the pool is the same and was not laid out anew.
    pub fn goes_on_in(&self, next: &Header) -> bool {
        goes_on(&self.header, next)
    }

    /// Bytes of the object.
    pub fn object_bytes(&self) -> u64 {
        let lanes = self.positions.len();
        let catalog = self.catalog.is_some();
        let front =
            Segment::front_length(self.owner.len(), lanes, self.parts.len(), catalog, self.index.len());
        front as u64 + self.index.len() as u64 * PAGE
    }
}

/// Returns true if a pool's header can follow another one in one history.
pub(crate) fn goes_on(before: &Header, next: &Header) -> bool {
    let same = |one: &Header| (one.uuid, one.mechanism, one.lanes, one.lane_bytes, one.heap_start);
    same(before) == same(next) && before.heap_bytes <= next.heap_bytes
}

/// Pages that are uploaded together.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub index: Vec<IndexEntry>,
    pub bytes: Vec<u8>,
}

impl Pages {
    pub fn push(&mut self, page: u64, sum: u64, bytes: &[u8]) {
        self.index.push((page, sum));
        self.bytes.extend_from_slice(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

/// The object of a part, and its entry in its segment.
pub(crate) fn encode_part(
    number: u64,
    serial: u64,
    writer: &WriterId,
    pages: &Pages,
) -> (Vec<u8>, PartEntry) {
    let mut bytes = vec![0; PART_FIXED];
    bytes[..8].copy_from_slice(&PART_MAGIC);
    put_half(&mut bytes, 8, VERSION);
    put_half(&mut bytes, 12, pages.index.len() as u32);
    put(&mut bytes, 16, number);
    put(&mut bytes, 24, serial);
    bytes[32..48].copy_from_slice(writer);
    bytes[48..80].copy_from_slice(&digest(&pages.bytes));
    put_index(&mut bytes, &pages.index);
    let front = seal(&mut bytes);
    bytes.extend_from_slice(&pages.bytes);
    (bytes, PartEntry { serial, pages: pages.index.len() as u32, front })
}

/// Reads the front of a part that a segment names; returns its index, the checksum of its pages and where they start.
///
/// # Errors
///
/// As [`Segment::decode`].
pub(crate) fn decode_part(
    object: &[u8],
    segment: &Segment,
    entry: &PartEntry,
) -> Result<(Vec<IndexEntry>, Digest, usize), &'static str> {
    let length = PART_FIXED + entry.pages as usize * INDEX_ENTRY + 32;
    if object.len() < length || object[..8] != PART_MAGIC {
        return Err("is no part, or is cut off");
    }
    if object[length - 32..length] != entry.front || digest(&object[..length - 32]) != entry.front {
        return Err("is damaged: its checksum does not match");
    }
    if half(object, 12) != entry.pages || word(object, 16) != segment.number {
        return Err("belongs to another segment");
    }
    let index = read_index(&object[PART_FIXED..length - 32], segment.header.heap_bytes)?;
    Ok((index, object[48..80].try_into().expect("32 bytes"), length))
}

/// Checks the pages behind a front against their checksums.
///
/// # Errors
///
/// As [`Segment::decode`].
pub(crate) fn check_pages(index: &[IndexEntry], wanted: &Digest, bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.len() as u64 != index.len() as u64 * PAGE || digest(bytes) != *wanted {
        return Err("has damaged pages: their checksum does not match");
    }
    let fits =
        index.iter().zip(bytes.chunks_exact(PAGE as usize)).all(|((_, sum), page)| page_sum(page) == *sum);
    if fits { Ok(()) } else { Err("has pages that are not what its index says") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            generation: 3,
            uuid: [7; 16],
            compat: 0,
            ro_compat: 0,
            incompat: 2,
            mechanism: 0,
            lanes: 2,
            lane_bytes: 4096,
            heap_start: 1 << 20,
            heap_bytes: 1 << 20,
            sections: 1,
            epoch: 1,
            clean: true,
            device: 0,
            devices: 1,
            stripe_bytes: 0,
            checksum_index: 0,
            checksum_chunks: 0,
        }
    }

    fn segment() -> (Segment, Vec<u8>) {
        let bytes: Vec<u8> = (0..2 * PAGE).map(|at| at as u8).collect();
        let sums = bytes.chunks_exact(PAGE as usize).map(page_sum);
        let segment = Segment {
            number: 12,
            generation: 2,
            kind: SegmentKind::Changes,
            time_us: 1 << 50,
            sequence: 99,
            writer: [1; 16],
            owner: "host process 1".to_owned(),
            previous: [2; 32],
            header: header(),
            positions: vec![64, 128],
            parts: vec![PartEntry { serial: 5, pages: 1, front: [9; 32] }],
            catalog: Some(vec![4; CATALOG_BYTES as usize]),
            index: [3, 8].into_iter().zip(sums).collect(),
            pages_digest: digest(&bytes),
        };
        (segment, bytes)
    }

    #[test]
    fn what_is_written_is_read() {
        let (segment, pages) = segment();
        let (mut object, front) = segment.encode();
        let length = object.len();
        object.extend_from_slice(&pages);
        assert_eq!(segment.object_bytes(), object.len() as u64);
        assert_eq!(front_bytes(&object), Some(length as u64));
        assert_eq!(Segment::decode(&object, 12), Ok((segment.clone(), front)));
        assert_eq!(check_pages(&segment.index, &segment.pages_digest, &object[length..]), Ok(()));
        assert!(Segment::decode(&object, 13).is_err());
        let some = Pages { index: segment.index.clone(), bytes: pages };
        let (object, entry) = encode_part(12, 4, &[1; 16], &some);
        let (index, wanted, start) = decode_part(&object, &segment, &entry).unwrap();
        assert_eq!(index, some.index);
        assert_eq!(check_pages(&index, &wanted, &object[start..]), Ok(()));
        assert!(object.len() as u64 <= PART_BYTES_MAX);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let (segment, pages) = segment();
        let (front, _) = Segment { catalog: None, ..segment.clone() }.encode();
        for bit in 0..front.len() * 8 {
            let mut bad = front.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::decode(&bad, 12).is_err(), "bit {bit}");
        }
        (0..front.len()).for_each(|end| assert!(Segment::decode(&front[..end], 12).is_err()));
        for bit in (0..pages.len() * 8).step_by(257) {
            let mut bad = pages.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check_pages(&segment.index, &segment.pages_digest, &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_with_a_good_checksum() {
        let bad: [fn(&mut Segment); 8] = [
            |one| one.number = 13,
            |one| one.sequence = u64::MAX,
            |one| one.positions = vec![64],
            |one| one.positions[1] = 65,
            |one| one.parts[0].pages = 0,
            |one| one.index[1].0 = 3,
            |one| one.index[1].0 = (1 << 20) / PAGE,
            |one| one.kind = SegmentKind::Claim,
        ];
        for (at, change) in bad.into_iter().enumerate() {
            let (mut segment, _) = segment();
            change(&mut segment);
            assert!(Segment::decode(&segment.encode().0, 12).is_err(), "change {at}");
        }
    }
}
