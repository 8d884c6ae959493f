// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where things are in a pool file. `docs/formats/pool.md` says the same in words.
//!
//! - **Layout** by offset in the file:
//!   - 0: header A, 4 KiB: [`Header`], the rest zero
//!   - 4096: header B, the same; the one with a valid CRC and the greater generation holds
//!   - 8192: lane heads: for each of 64 lanes two [`LaneHead`], 64 bytes each
//!   - 16384: the types whose objects are in the pool, 64 KiB: `catalog`
//!   - 81920: lanes, one after the other, [`Header::lane_bytes`] each
//!   - from [`Header::heap_start`] on: the heap, in zones
//! - **Heap** a zone is 64 MiB: its directory (4096 [`Entry`], 64 KiB), then slabs of 16 KiB; the last zone may be shorter. Slab
//!   4 of zone 0 holds the [`Superblock`], and from [`BODIES_OFFSET`] on a bit per zone: 1 = it has no directory, it is the body
//!   of an object of more than a zone (`span`)
//! - **Slab** a bitmap of its slots (1 = in use), padded to 64 bytes, then the slots; all of one type and one section
//! - **Order** little endian; checksums are CRC-32C over everything but themselves
//! - **Not here** log records: `docs/formats/log.md`, `memlift_spec`

use crate::error::Error;

/// First bytes of a header.
pub const MAGIC: [u8; 8] = *b"MLPOOL\0\x01";
/// Bytes of a header's page.
pub const HEADER_BYTES: u64 = 4096;
/// The format's major version: others are refused.
pub const MAJOR: u32 = 1;
/// Upper bound of positions, sequences, generations and epochs: no pool lives that long, so a file with a greater one is damaged.
pub const COUNTED_MAX: u64 = 1 << 62;
/// Most lanes that a pool can have.
pub const LANES_MAX: u32 = 64;
/// Where lane heads are.
pub const HEADS_START: u64 = 8192;
/// Where the first lane is.
pub const LANES_START: u64 = CATALOG_START + CATALOG_BYTES;
/// Where the catalog of types is.
pub const CATALOG_START: u64 = 16384;
/// Bytes of the catalog.
pub const CATALOG_BYTES: u64 = 64 << 10;
/// Bytes of a slab: all of one type and section.
pub const SLAB_BYTES: u64 = 16 << 10;
/// Bytes of a zone: one directory and its slabs.
pub const ZONE_BYTES: u64 = 64 << 20;
/// Most parts that the checksums of pages can have: a slab names them.
pub const CHECKSUM_CHUNKS_MAX: u32 = (SLAB_BYTES / 8) as u32;
/// Slabs of a whole zone, its directory's own included.
pub const ZONE_SLABS: u64 = ZONE_BYTES / SLAB_BYTES;
/// Slabs that hold a zone's directory.
pub const DIRECTORY_SLABS: u64 = ZONE_SLABS * size_of::<Entry>() as u64 / SLAB_BYTES;
/// The slab of the superblock.
pub const SUPERBLOCK_SLAB: u64 = DIRECTORY_SLABS;
/// The superblock's place in the heap.
pub const SUPERBLOCK_OFFSET: u64 = SUPERBLOCK_SLAB * SLAB_BYTES;
/// Where the bitmap of zones without a directory starts in the heap.
pub const BODIES_OFFSET: u64 = SUPERBLOCK_OFFSET + 4096;
/// Bytes of this bitmap.
pub const BODIES_BYTES: u64 = SLAB_BYTES - 4096;
/// Zones that this bitmap has bits for: the first 6 TiB of a heap.
pub const BODIES_ZONES: u64 = BODIES_BYTES * 8;
/// Most slabs of a run: the superblock has one of the first zone's.
pub const RUN_SLABS_MAX: u64 = ZONE_SLABS - DIRECTORY_SLABS - 1;
/// Slabs of an object of more than a zone that lie in its first zone: all but the directory's.
pub const HEAD_SLABS: u64 = ZONE_SLABS - DIRECTORY_SLABS;
/// The smallest heap: a directory, a superblock and one slab.
pub const HEAP_BYTES_MIN: u64 = (SUPERBLOCK_SLAB + 2) * SLAB_BYTES;

/// Feature: the pool has, or had, objects of more than a zone. Without it the bitmap of zones without a directory does not count.
pub const FEATURE_SPANS: u32 = 1;
/// Feature: log records say how far their lane was durable. A program that does not know it would take them for torn.
pub const FEATURE_CLAIMS: u32 = 2;
/// Feature: pages of the heap have checksums. A program that does not know it would change pages and not their checksums.
pub const FEATURE_CHECKSUMS: u32 = 4;
/// Feature: log records may name records in free slabs of the heap (`far`). A program that does not know it would lose transactions.
pub const FEATURE_FAR: u32 = 8;
/// Features without which a program must not open the pool.
pub const INCOMPAT_KNOWN: u32 = FEATURE_SPANS | FEATURE_CLAIMS | FEATURE_CHECKSUMS | FEATURE_FAR;
/// Features without which a program must not write to the pool.
pub const RO_COMPAT_KNOWN: u32 = 0;

/// A pool's header: its geometry and features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The good header with the greater generation holds.
    pub generation: u64,
    /// Random; a log record of another pool never counts.
    pub uuid: [u8; 16],
    /// Features that a program may ignore.
    pub compat: u32,
    /// Features without which a program must not write.
    pub ro_compat: u32,
    /// Features without which a program must not open.
    pub incompat: u32,
    /// How transactions are made durable: `Mechanism as u8`.
    pub mechanism: u8,
    /// Lanes of the log.
    pub lanes: u32,
    /// Bytes of each lane.
    pub lane_bytes: u64,
    /// Where the heap starts in the file.
    pub heap_start: u64,
    /// Bytes of the heap.
    pub heap_bytes: u64,
    /// Sections, the parts of the pool that are locked apart.
    pub sections: u32,
    /// Goes up with each recovery: records of an earlier one never count again.
    pub epoch: u64,
    /// True if the pool was closed and its log is empty.
    pub clean: bool,
    /// This file's index among the files of an interleaved pool.
    pub device: u16,
    /// Files of the pool; 1 without interleaving.
    pub devices: u16,
    /// Bytes of the heap that lie in one file before the next file's turn.
    pub stripe_bytes: u64,
    /// Slab that names the places of the checksums of pages; 0: there are none.
    pub checksum_index: u32,
    /// Places that it names.
    pub checksum_chunks: u32,
}

const FIELDS_BYTES: usize = 128;

impl Header {
    /// The bytes in the file.
    pub fn encode(&self) -> [u8; FIELDS_BYTES] {
        let mut bytes = [0; FIELDS_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[12..16].copy_from_slice(&MAJOR.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.uuid);
        bytes[40..44].copy_from_slice(&self.compat.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.ro_compat.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.incompat.to_le_bytes());
        bytes[52] = self.mechanism;
        bytes[53] = u8::from(self.clean);
        bytes[56..60].copy_from_slice(&self.lanes.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.sections.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.lane_bytes.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.heap_start.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.heap_bytes.to_le_bytes());
        bytes[88..96].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[96..98].copy_from_slice(&self.device.to_le_bytes());
        bytes[98..100].copy_from_slice(&self.devices.to_le_bytes());
        bytes[104..112].copy_from_slice(&self.stripe_bytes.to_le_bytes());
        bytes[112..116].copy_from_slice(&self.checksum_index.to_le_bytes());
        bytes[116..120].copy_from_slice(&self.checksum_chunks.to_le_bytes());
        let crc = crc32c(&[&bytes[..8], &bytes[12..]]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one; everything that a file can say is checked here, but for the file's size.
    ///
    /// # Errors
    ///
    /// [`Error::NotAPool`], [`Error::Version`] or [`Error::Feature`]; [`Error::Corrupt`] with the field that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Header, Error> {
        let bytes: &[u8; FIELDS_BYTES] =
            bytes.get(..FIELDS_BYTES).and_then(|b| b.try_into().ok()).ok_or(Error::NotAPool)?;
        if bytes[0..7] != MAGIC[..7] {
            return Err(Error::NotAPool);
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[7] != MAGIC[7] || u32_at(12) != MAJOR {
            return Err(Error::Version { found: u32_at(12), known: MAJOR });
        }
        if crc32c(&[&bytes[..8], &bytes[12..]]) != u32_at(8) {
            return Err(Error::corrupt("the header's checksum does not match"));
        }
        let header = Header {
            generation: u64_at(16),
            uuid: bytes[24..40].try_into().expect("16 bytes"),
            compat: u32_at(40),
            ro_compat: u32_at(44),
            incompat: u32_at(48),
            mechanism: bytes[52],
            clean: bytes[53] == 1,
            lanes: u32_at(56),
            sections: u32_at(60),
            lane_bytes: u64_at(64),
            heap_start: u64_at(72),
            heap_bytes: u64_at(80),
            epoch: u64_at(88),
            device: u16::from_le_bytes([bytes[96], bytes[97]]),
            devices: u16::from_le_bytes([bytes[98], bytes[99]]),
            stripe_bytes: u64_at(104),
            checksum_index: u32_at(112),
            checksum_chunks: u32_at(116),
        };
        if header.incompat & !INCOMPAT_KNOWN != 0 {
            return Err(Error::Feature { bits: header.incompat & !INCOMPAT_KNOWN });
        }
        header.validate()?;
        Ok(header)
    }

    /// Refuses to write to a pool with features that this program does not know.
    ///
    /// # Errors
    ///
    /// [`Error::Feature`] with the bits of `ro_compat` that are unknown.
    pub fn check_writable(&self) -> Result<(), Error> {
        match self.ro_compat & !RO_COMPAT_KNOWN {
            0 => Ok(()),
            bits => Err(Error::Feature { bits }),
        }
    }

    /// Checks that the numbers fit together.
    fn validate(&self) -> Result<(), Error> {
        let lanes_fit = (1..=LANES_MAX).contains(&self.lanes)
            && (4096..=1 << 32).contains(&self.lane_bytes)
            && self.lane_bytes.is_power_of_two();
        let heap_fits = lanes_fit
            && self.heap_start.is_multiple_of(4096)
            && self.heap_start >= LANES_START + u64::from(self.lanes) * self.lane_bytes
            && self.heap_start <= 1 << 44
            && self.heap_bytes.is_multiple_of(SLAB_BYTES)
            && (HEAP_BYTES_MIN..=1 << 43).contains(&self.heap_bytes);
        let rest_fits = (1..=1 << 16).contains(&self.sections)
            && self.mechanism < 4
            && self.generation <= COUNTED_MAX
            && self.epoch <= COUNTED_MAX
            && (!self.has_spans() || self.mechanism < 2)
            && self.devices >= 1
            && self.device < self.devices
            && (self.devices == 1 || (self.stripe_bytes >= 4096 && self.stripe_bytes.is_power_of_two()));
        let index = u64::from(self.checksum_index);
        let rest_fits = rest_fits
            && (!self.has_checksums()
                || ((SUPERBLOCK_SLAB + 1..self.heap_bytes / SLAB_BYTES).contains(&index)
                    && index % ZONE_SLABS >= DIRECTORY_SLABS
                    && (1..=CHECKSUM_CHUNKS_MAX).contains(&self.checksum_chunks)
                    && self.mechanism.is_multiple_of(2)));
        if heap_fits && rest_fits {
            return Ok(());
        }
        Err(Error::corrupt("the header's numbers do not fit together"))
    }

    /// Returns true if there may be objects of more than a zone.
    pub fn has_spans(&self) -> bool {
        self.incompat & FEATURE_SPANS != 0
    }

    /// Returns true if the pages of the heap have checksums.
    pub fn has_checksums(&self) -> bool {
        self.incompat & FEATURE_CHECKSUMS != 0
    }

    /// The same pool without checksums.
    pub fn without_checksums(self) -> Header {
        let incompat = self.incompat & !FEATURE_CHECKSUMS;
        Header { incompat, checksum_index: 0, checksum_chunks: 0, ..self }
    }

    /// Where a lane starts in the file.
    pub fn lane_start(&self, lane: u32) -> u64 {
        LANES_START + u64::from(lane) * self.lane_bytes
    }

    /// Where what has its blocks from the start begins behind the lanes: the heap, or the table of a shadow pool.
    pub fn allocated_from(&self) -> u64 {
        if self.mechanism == 3 { self.lane_start(self.lanes) } else { self.heap_start }
    }

    /// Bytes that the file must have.
    pub fn file_bytes(&self) -> u64 {
        let copies = if self.mechanism == 3 { 2 } else { 1 };
        self.heap_start + self.heap_bytes * copies
    }

    /// Salt of the checksums of this lane's records.
    pub fn salt(&self, lane: u32) -> u32 {
        crc32c(&[&self.uuid, &self.epoch.to_le_bytes(), &lane.to_le_bytes()])
    }
}

/// How far a lane has been applied. Two per lane are written in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneHead {
    /// Records before this position are applied.
    pub position: u64,
    /// Every transaction up to this sequence, of whatever lane, is applied.
    pub applied: u64,
}

/// Bytes of a lane head.
pub const HEAD_BYTES: u64 = 64;

impl LaneHead {
    /// The bytes in the file.
    pub fn encode(&self) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.applied.to_le_bytes());
        bytes[4..8].copy_from_slice(b"HEAD");
        let crc = crc32c(&[&bytes[4..]]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one; None when it was torn.
    pub fn decode(bytes: &[u8; HEAD_BYTES as usize]) -> Option<LaneHead> {
        let crc = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        if crc32c(&[&bytes[4..]]) != crc || &bytes[4..8] != b"HEAD" {
            return None;
        }
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Some(LaneHead { position: u64_at(8), applied: u64_at(16) })
    }

    /// Where the `turn`-th head of a lane is (0 or 1).
    pub fn offset(lane: u32, turn: u64) -> u64 {
        HEADS_START + (u64::from(lane) * 2 + turn % 2) * HEAD_BYTES
    }
}

/// A slab's entry in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Entry {
    /// Tag of the type of all its objects; below 16: the heap's own.
    pub tag: u32,
    /// The section that owns it.
    pub section: u16,
    /// One of the constants below.
    pub state: u8,
    /// Always 0 in the file.
    pub reserved: u8,
    /// Slab: bytes from slot to slot. Run: bytes of an element.
    pub stride: u32,
    /// Run or span: slabs that it covers.
    pub run: u32,
}

impl Entry {
    /// A slab that nobody owns.
    pub const FREE: u8 = 0;
    /// Slots of one type.
    pub const SLOTS: u8 = 1;
    /// First slab of an object that is larger than a slot may be.
    pub const RUN: u8 = 2;
    /// A later slab of such an object.
    pub const RUN_REST: u8 = 3;
    /// Directory or superblock.
    pub const SYSTEM: u8 = 4;
    /// An object of more than a zone; the only entry that it has.
    pub const SPAN: u8 = 5;
    /// Tag of directory and superblock.
    pub const TAG_SYSTEM: u32 = 1;
    /// As the two words in which it is read and written.
    pub const fn words(self) -> [u64; 2] {
        [
            self.tag as u64 | (self.section as u64) << 32 | (self.state as u64) << 48,
            self.stride as u64 | (self.run as u64) << 32,
        ]
    }

    /// Back from words.
    pub const fn from_words([word, rest]: [u64; 2]) -> Entry {
        Entry {
            tag: word as u32,
            section: (word >> 32) as u16,
            state: (word >> 48) as u8,
            reserved: 0,
            stride: rest as u32,
            run: (rest >> 32) as u32,
        }
    }

    /// Slabs that it says something about.
    pub fn slabs(self) -> u64 {
        u64::from(self.run.max(1))
    }

    /// How many entries say the same: one for each slab, but one only for an object of more than a zone.
    pub fn copies(self) -> u64 {
        if self.state == Entry::SPAN { 1 } else { self.slabs() }
    }

    /// Where the entry of slab `slab` (counted over all zones) lies in the heap.
    pub const fn offset(slab: u64) -> u64 {
        slab / ZONE_SLABS * ZONE_BYTES + slab % ZONE_SLABS * size_of::<Entry>() as u64
    }
}

/// Bytes from slot to slot of objects of a type.
pub(crate) const fn stride<T>() -> u64 {
    let align = if align_of::<T>() > 16 { align_of::<T>() } else { 16 };
    let bytes = (size_of::<T>() as u64).next_multiple_of(align as u64);
    if bytes > 16 { bytes } else { 16 }
}

/// Slots of `stride` bytes that a slab has, and where the first one is.
pub const fn slots(stride: u64) -> (u64, u64) {
    let mut count = SLAB_BYTES / stride;
    loop {
        let first = count.div_ceil(64).next_multiple_of(8) * 8;
        if first + count * stride <= SLAB_BYTES {
            return (count, first);
        }
        count -= 1;
    }
}

/// The largest stride of a slot; larger objects get a run of slabs.
pub const STRIDE_MAX: u64 = (SLAB_BYTES - 64) / 2;

/// Strides that arrays get: so that arrays of about one length share slabs. In a pool whose pages have checksums, which earlier releases
/// refuse, slots of more than 256 bytes fill their slab; those releases would take their strides for damage.
pub(crate) fn slice_stride(bytes: u64, checksums: bool) -> u64 {
    const ROOM: u64 = SLAB_BYTES - 64;
    let bytes = bytes.next_multiple_of(16).max(16);
    if checksums && (257..=STRIDE_MAX).contains(&bytes) {
        return ROOM / (ROOM / bytes) / 16 * 16;
    }
    let step = (bytes.next_power_of_two() / 8).max(16);
    bytes.next_multiple_of(step)
}

/// The heap's own root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Superblock {
    /// The root object's place; 0: none yet.
    pub root_offset: u64,
    /// Its layout hash.
    pub root_layout: u64,
    /// Always 0 in the file.
    pub reserved: [u64; 6],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Entry>() == 16 && offset_of!(Entry, section) == 4 && offset_of!(Entry, state) == 6);
    assert!(offset_of!(Entry, stride) == 8 && offset_of!(Entry, run) == 12);
    assert!(size_of::<Superblock>() == 64);
    assert!(HEADS_START + LANES_MAX as u64 * 2 * HEAD_BYTES <= CATALOG_START);
    assert!(DIRECTORY_SLABS == 4);
    assert!(BODIES_OFFSET + BODIES_BYTES == (SUPERBLOCK_SLAB + 1) * SLAB_BYTES);
};

/// CRC-32C of the pieces, one after the other.
pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    pieces.iter().fold(0, |crc, piece| memlift_kernels::log::crc32c(piece, crc))
}

/// CRC-32C of the lines of a page, one after the other.
pub(crate) fn crc_of_lines(page: &[u8], lines: u64) -> u32 {
    let pieces: Vec<&[u8]> =
        (0..64).filter(|line| lines >> line & 1 == 1).map(|line| &page[line * 64..line * 64 + 64]).collect();
    crc32c(&pieces)
}

/// Returns true if a slab holds a directory or the superblock.
pub(crate) fn is_system(slab: u64) -> bool {
    slab % ZONE_SLABS < DIRECTORY_SLABS || slab == SUPERBLOCK_SLAB
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
            incompat: 0,
            mechanism: 0,
            lanes: 8,
            lane_bytes: 1 << 20,
            heap_start: 16 << 20,
            heap_bytes: 64 << 20,
            sections: 1,
            epoch: 9,
            clean: true,
            device: 0,
            devices: 1,
            stripe_bytes: 0,
            checksum_index: 0,
            checksum_chunks: 0,
        }
    }

    #[test]
    fn headers_survive_and_each_flipped_bit_is_seen() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes).expect("valid"), header());
        for bit in 0..bytes.len() * 8 {
            let mut spoilt = bytes;
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&spoilt).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lane_heads_survive_and_each_flipped_bit_is_seen() {
        let head = LaneHead { position: 12345, applied: 99 };
        let bytes = head.encode();
        assert_eq!(LaneHead::decode(&bytes), Some(head));
        for bit in 0..bytes.len() * 8 {
            let mut spoilt = bytes;
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LaneHead::decode(&spoilt), None, "bit {bit}");
        }
    }

    #[test]
    fn slots_fit_their_slab() {
        for stride in (16..=STRIDE_MAX).step_by(16) {
            let (count, first) = slots(stride);
            assert!(count >= 2 && first * 8 >= count && first % 64 == 0);
            assert!(first + count * stride <= SLAB_BYTES);
        }
    }
}
