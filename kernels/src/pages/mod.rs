// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of 4 KiB, packed by a method that suits their contents: [`Packer`].
//!
//! - **Flow** a page that repeats one word becomes [`Packed::Filled`]. For any other, `choose` samples it and takes a [`Method`], which
//!   gives [`Packed::Bytes`], or [`Packed::Raw`] if packing is not worth it.
//! - **Layout** a packed page is the number of its method in one byte, then the method's own format; the caller stores its length elsewhere.
//! - **Order** unpacking trusts no byte: it writes the page, or reports that the bytes are none.
//! - **Owner** a [`Packer`] holds its tables and workspaces and never allocates, so it can run in signal handlers. A packer of zero bytes
//!   is a new one. Use one per thread.
//! - **Not here** the storage of packed pages.

mod choose;
mod decimal;
mod dense;
mod integers;
mod lz;
mod message;
mod shuffle;

pub use message::{MessageError, bound};
use shuffle::{difference, shuffle, sum, unshuffle};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page that packs to more than this many bytes is not packed: 4096 / 1.15.
pub const MAX_PACKED_BYTES: usize = 3561;

/// How much time the packing of a page may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Packs in some microseconds and unpacks in about one.
    Fast,
    /// For a page that was not accessed for long: may take ten times as long if that saves a quarter.
    Cold,
}

/// Result of packing a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed {
    /// The page is this word, repeated.
    Filled(u64),
    /// The packed page is in the first bytes of the target, this many; at most [`MAX_PACKED_BYTES`].
    Bytes(usize),
    /// Packing would save less than 13 %: store the page unpacked.
    Raw,
}

/// Reason why bytes are not a page. The target's contents are then undefined, but nothing outside it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The bytes are no packed page, or only a part of one.
    #[error("the packed page is corrupt or cut off: its owner must end, or read it from elsewhere")]
    Corrupt,
}

/// Packing method of a page: the first byte of its packed form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Method {
    /// The unchanged page, by LZ4.
    Lz = 1,
    /// Numbers of 2 bytes in planes, by LZ4.
    Planes2 = 2,
    /// Numbers of 4 bytes in planes, by LZ4.
    Planes4 = 3,
    /// Numbers of 8 bytes in planes, by LZ4.
    Planes8 = 4,
    /// Differences of numbers of 4 bytes in planes, by LZ4.
    Differences4 = 5,
    /// Differences of numbers of 8 bytes in planes, by LZ4.
    Differences8 = 6,
    /// Numbers of 4 bytes, by frame of reference.
    Frame4 = 7,
    /// Numbers of 8 bytes, by frame of reference.
    Frame8 = 8,
    /// Differences of numbers of 4 bytes, by frame of reference.
    FrameDifferences4 = 9,
    /// Differences of numbers of 8 bytes, by frame of reference.
    FrameDifferences8 = 10,
    /// The unchanged page, by Zstandard.
    Dense = 11,
    /// Numbers of 4 bytes in planes, by Zstandard.
    DensePlanes4 = 12,
    /// Numbers of 8 bytes in planes, by Zstandard.
    DensePlanes8 = 13,
    /// Differences of numbers of 4 bytes in planes, by Zstandard.
    DenseDifferences4 = 14,
    /// Differences of numbers of 8 bytes in planes, by Zstandard.
    DenseDifferences8 = 15,
    /// Floating-point numbers of 8 bytes that are decimals, by frame of reference.
    Decimal8 = 16,
}

/// Every method, in the order of their numbers.
pub const METHODS: [Method; 16] = [
    Method::Lz,
    Method::Planes2,
    Method::Planes4,
    Method::Planes8,
    Method::Differences4,
    Method::Differences8,
    Method::Frame4,
    Method::Frame8,
    Method::FrameDifferences4,
    Method::FrameDifferences8,
    Method::Dense,
    Method::DensePlanes4,
    Method::DensePlanes8,
    Method::DenseDifferences4,
    Method::DenseDifferences8,
    Method::Decimal8,
];

impl Method {
    /// Returns true if the method needs Zstandard to unpack.
    pub fn is_dense(self) -> bool {
        matches!(
            self,
            Method::Dense
                | Method::DensePlanes4
                | Method::DensePlanes8
                | Method::DenseDifferences4
                | Method::DenseDifferences8
        )
    }

    /// Returns the method of a packed page.
    pub fn of(packed: &[u8]) -> Option<Method> {
        METHODS.get(usize::from(*packed.first()?).checked_sub(1)?).copied()
    }
}

/// Packs and unpacks pages. Use one per thread. A packer of zero bytes is a new one.
#[repr(C, align(64))]
pub struct Packer {
    table: lz::Table,
    first: [u8; PAGE_BYTES],
    second: [u8; PAGE_BYTES],
    slack: [u8; lz::SLACK_BYTES],
    dense: dense::Workspace,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

/// Returns the word that the page repeats, if it does.
pub fn filled(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    // The last word differs in most pages that are not filled.
    (words[511] == first && words.iter().all(|word| *word == first)).then(|| u64::from_le_bytes(first))
}

/// Fills a page with the word that [`filled`] returned.
pub fn fill(word: u64, page: &mut [u8; PAGE_BYTES]) {
    page.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
}

/// Returns the checksum (CRC-32C) of a tag followed by a page.
pub fn checksum(tag: u64, page: &[u8; PAGE_BYTES]) -> u32 {
    let crc32c = crate::active().crc32c;
    let tag = tag.to_le_bytes();
    // SAFETY: both are arrays of the given lengths, borrowed for the calls.
    unsafe { crc32c(page.as_ptr(), PAGE_BYTES, crc32c(tag.as_ptr(), tag.len(), 0)) }
}

impl Packer {
    /// Creates a packer of about 100 KiB, of which packing with [`Effort::Fast`] uses 17.
    pub const fn new() -> Packer {
        Packer {
            table: [0; size_of::<lz::Table>() / 2],
            first: [0; PAGE_BYTES],
            second: [0; PAGE_BYTES],
            slack: [0; lz::SLACK_BYTES],
            dense: dense::Workspace::new(),
        }
    }

    /// Packs one page.
    pub fn pack(&mut self, page: &[u8; PAGE_BYTES], target: &mut [u8; PAGE_BYTES], effort: Effort) -> Packed {
        if let Some(word) = filled(page) {
            return Packed::Filled(word);
        }
        match choose::pack(self, page, target, effort) {
            Some(bytes) => Packed::Bytes(bytes),
            None => Packed::Raw,
        }
    }

    /// Packs one page by a given method; returns the bytes written, or `None` if they do not fit into `target` or the method
    /// does not apply to the page ([`Method::Decimal8`]).
    pub fn pack_as(&mut self, method: Method, page: &[u8; PAGE_BYTES], target: &mut [u8]) -> Option<usize> {
        let (tag, room) = target.split_first_mut()?;
        *tag = method as u8;
        let bytes = match method {
            Method::Lz => lz::pack(page, &mut self.table, room)?,
            Method::Dense => dense::pack(&mut self.dense, page, room)?,
            Method::Decimal8 => decimal::pack(page, &mut self.first, room)?,
            Method::Frame4 => integers::pack::<u32>(page, false, room)?,
            Method::Frame8 => integers::pack::<u64>(page, false, room)?,
            Method::FrameDifferences4 => integers::pack::<u32>(page, true, room)?,
            Method::FrameDifferences8 => integers::pack::<u64>(page, true, room)?,
            Method::Planes2
            | Method::Planes4
            | Method::Planes8
            | Method::Differences4
            | Method::Differences8 => {
                self.filter(method, page);
                lz::pack(&self.first, &mut self.table, room)?
            }
            Method::DensePlanes4
            | Method::DensePlanes8
            | Method::DenseDifferences4
            | Method::DenseDifferences8 => {
                self.filter(method, page);
                dense::pack(&mut self.dense, &self.first, room)?
            }
        };
        Some(1 + bytes)
    }

    /// Applies the method's filter to the page; the result is in `first`.
    fn filter(&mut self, method: Method, page: &[u8; PAGE_BYTES]) {
        match method {
            Method::Planes2 => shuffle::<2>(page, &mut self.first),
            Method::Planes4 | Method::DensePlanes4 => shuffle::<4>(page, &mut self.first),
            Method::Planes8 | Method::DensePlanes8 => shuffle::<8>(page, &mut self.first),
            Method::Differences4 | Method::DenseDifferences4 => {
                difference::<4>(page, &mut self.second);
                shuffle::<4>(&self.second, &mut self.first);
            }
            Method::Differences8 | Method::DenseDifferences8 => {
                difference::<8>(page, &mut self.second);
                shuffle::<8>(&self.second, &mut self.first);
            }
            _ => self.first = *page,
        }
    }

    /// Unpacks the bytes that [`Packer::pack`] returned as [`Packed::Bytes`].
    ///
    /// # Errors
    ///
    /// [`PageError::Corrupt`] if the bytes are no packed page.
    pub fn unpack(&mut self, packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> Result<(), PageError> {
        self.unpack_page(packed, page).ok_or(PageError::Corrupt)
    }

    fn unpack_page(&mut self, packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<()> {
        let method = Method::of(packed)?;
        let block = &packed[1..];
        match method {
            Method::Lz => return lz::unpack(block, page),
            Method::Dense => return dense::unpack(&mut self.dense, block, page),
            Method::Decimal8 => return decimal::unpack(block, page),
            Method::Frame4 => return integers::unpack::<u32>(block, false, page),
            Method::Frame8 => return integers::unpack::<u64>(block, false, page),
            Method::FrameDifferences4 => return integers::unpack::<u32>(block, true, page),
            Method::FrameDifferences8 => return integers::unpack::<u64>(block, true, page),
            Method::DensePlanes4
            | Method::DensePlanes8
            | Method::DenseDifferences4
            | Method::DenseDifferences8 => dense::unpack(&mut self.dense, block, &mut self.second)?,
            _ => self.unpack_planes(block)?,
        }
        match method {
            Method::Planes2 => unshuffle::<2>(&self.second, page),
            Method::Planes4 | Method::DensePlanes4 => unshuffle::<4>(&self.second, page),
            Method::Planes8 | Method::DensePlanes8 => unshuffle::<8>(&self.second, page),
            Method::Differences4 | Method::DenseDifferences4 => {
                unshuffle::<4>(&self.second, page);
                sum::<4>(page);
            }
            _ => {
                unshuffle::<8>(&self.second, page);
                sum::<8>(page);
            }
        }
        Some(())
    }

    /// Unpacks LZ4 planes into `second`, which has `slack` behind it.
    fn unpack_planes(&mut self, block: &[u8]) -> Option<()> {
        const { assert!(std::mem::offset_of!(Packer, slack) == std::mem::offset_of!(Packer, second) + PAGE_BYTES) };
        let start = (&raw mut self.second).cast::<u8>();
        // SAFETY: `slack` lies directly behind `second`, as asserted; both belong to this packer and are not used otherwise
        // while the slice lives.
        let room = unsafe {
            let start = (&raw mut *self).cast::<u8>().add(start.addr() - (&raw const *self).addr());
            std::slice::from_raw_parts_mut(start, PAGE_BYTES + lz::SLACK_BYTES)
        };
        lz::unpack(block, room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back() {
        let mut packer = Packer::new();
        let (mut target, mut again) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let mut page = [0; PAGE_BYTES];
        fill(0x0123_4567_89ab_cdef, &mut page);
        assert_eq!(packer.pack(&page, &mut target, Effort::Fast), Packed::Filled(0x0123_4567_89ab_cdef));
        for (index, byte) in page.iter_mut().enumerate() {
            *byte = (index / 7 % 50) as u8;
        }
        for effort in [Effort::Fast, Effort::Cold] {
            let Packed::Bytes(bytes) = packer.pack(&page, &mut target, effort) else { panic!("it repeats") };
            assert!(bytes < 1000);
            packer.unpack(&target[..bytes], &mut again).expect("our own bytes");
            assert_eq!(page, again);
        }
        for method in METHODS {
            if method == Method::Decimal8 {
                continue; // these pages are no decimals; `decimal` has its own test
            }
            let mut room = [0; 2 * PAGE_BYTES];
            let bytes = packer.pack_as(method, &page, &mut room).expect("there is room");
            assert_eq!(Method::of(&room), Some(method));
            again.fill(0);
            packer.unpack(&room[..bytes], &mut again).expect("our own bytes");
            assert!(page == again, "{method:?}");
            assert_eq!(packer.pack_as(method, &page, &mut room[..bytes - 1]), None, "{method:?}");
        }
    }

    #[test]
    fn noise_is_left_alone() {
        let mut packer = Packer::new();
        let mut random = 1u64;
        let page = std::array::from_fn(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        });
        for effort in [Effort::Fast, Effort::Cold] {
            assert_eq!(packer.pack(&page, &mut [0; PAGE_BYTES], effort), Packed::Raw);
        }
    }
}
