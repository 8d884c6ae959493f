// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records in free slabs, and the record of a lane that names them.
//!
//! - **Layout** the lane's record has `parts` = [`PARTS_FAR`] and the shape of a record of ranges: the places of the records, each with
//!   length and checksum
//! - **Not here** making, storing and applying them: `far`

use crate::error::{Error, Result};
use crate::layout::{Header, SLAB_BYTES};
use crate::medium::Medium;
use crate::record::{self, Builder, Built};
use memlift_kernels::log;
use memlift_spec::formats::log::{RECORD_HEADER_BYTES, RECORD_RANGES, RangeWord};

/// `parts` of a record that names records elsewhere.
pub(crate) const PARTS_FAR: u8 = 254;
/// Bytes of a record elsewhere, at most.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Bytes that a lane's record needs for each record that it names.
const NAME_BYTES: u64 = 8;

/// A record in free slabs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    /// Where in the heap it starts.
    pub offset: u64,
    pub bytes: u32,
    pub checksum: u32,
}

impl Far {
    fn word(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.checksum) << 32
    }

    /// First slab and count.
    pub fn slabs(self) -> (u64, u64) {
        (self.offset / SLAB_BYTES, u64::from(self.bytes).div_ceil(SLAB_BYTES))
    }
}

/// The records that a lane's record names. It has the shape of a record of ranges.
pub(crate) fn named(record: &[u8]) -> impl Iterator<Item = Far> {
    let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
    (0..record::entries(record)).map(move |entry| {
        let at = RECORD_HEADER_BYTES + entry * 16;
        let about = word(at + 8);
        Far { offset: RangeWord(word(at)).offset(), bytes: about as u32, checksum: (about >> 32) as u32 }
    })
}

/// Bytes of the lane's record for so many records elsewhere.
pub(crate) fn bound(far: &[Far]) -> u64 {
    record::bound(far.len() as u64, far.len() as u64 * NAME_BYTES)
}

/// Makes the lane's record.
pub(crate) fn build(far: &[Far], target: &mut [u8]) -> Built {
    let mut builder = Builder::ranges(target);
    far.iter().for_each(|one| builder.range(one.offset, &[one.word()]));
    builder.finish().with_parts(PARTS_FAR)
}

/// Reads the records that a lane's record names, each checked, and calls `each` with them.
///
/// # Errors
///
/// [`Error::Corrupt`] when one is not what the lane's record says.
pub(crate) fn read(
    medium: &Medium,
    header: &Header,
    record: &[u8],
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let broken = || Error::corrupt("part of a large transaction, in free slabs of the heap, is damaged");
    let shaped = |far: &Far| {
        far.offset.is_multiple_of(SLAB_BYTES)
            && far.offset.checked_add(u64::from(far.bytes)).is_some_and(|end| end <= header.heap_bytes)
            && u64::from(far.bytes) <= PIECE_BYTES
    };
    if record.len() < RECORD_HEADER_BYTES + record::entries(record) * 16 {
        return Err(broken());
    }
    for far in named(record) {
        if !shaped(&far) {
            return Err(broken());
        }
        let mut bytes = vec![0; far.bytes as usize];
        medium.read(header.heap_start + far.offset, &mut bytes)?;
        match log::check(&bytes, header.salt(0), far.offset) {
            Ok(about)
                if about.kind == RECORD_RANGES && about.checksum == far.checksum && about.parts == 1 => {}
            _ => return Err(broken()),
        }
        each(&bytes)?;
    }
    Ok(())
}
