// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a pool's bytes are kept, and what makes them stay: the only door to the file.
//!
//! - **Flow** append (log: past the caches) · store + write_back (home: through them) ──▶ [`Medium::harden`] ──▶ durable
//! - **Domain** lines: non-temporal stores, write-back of cache lines, harden is a store fence.
//!   pages: stores into a shared mapping of the file, harden is fdatasync. The log is written past the page cache, where a write is durable
//!   at once (`direct`), or else by pwrite
//! - **Rule** nothing counts as durable before the harden that follows it, by the same thread, returned Ok. After a failed
//!   fdatasync the kernel may call pages clean that never reached the disk: the pool stops and never retries
//! - **Owner** the mapping and the descriptor live as long as the medium
//! - **Not here** what the bytes mean

#[cfg(feature = "replicate")]
pub(crate) mod changed;
mod detect;
mod direct;
#[expect(unsafe_code, reason = "maps files and stores past the caches")]
mod mapped;
#[cfg(feature = "sim")]
mod simulated;
mod striped;

use std::ops::AddAssign;
use std::path::PathBuf;
use std::sync::Arc;

use crate::beside::{OldPages, SnapshotId, WriterSnapshot};
use crate::error::Result;
use crate::layout::{HEADER_BYTES, Header, LANES_START};
use crate::options::Mechanism;
use crate::record::PAGE_HEAD_WORDS;
pub use detect::{Guarantee, Survives};
pub(crate) use mapped::{Mapped, read_by_pages};
use memlift_kernels::log::{self, PageLines};
#[cfg(feature = "sim")]
pub(crate) use simulated::Simulated;
pub(crate) use striped::{DEVICES_MAX, Geometry, STRIPE_MAX, STRIPE_MIN, Striped, stripe_fits};

/// Why a pool stops that was shown zeros where its file could not give a page.
pub(crate) const LOST: &str =
    "a page of the file could not be had: it was truncated, or its disk is full or broken";

const PAGE_BYTES: u64 = memlift_spec::formats::log::PAGE_BYTES as u64;

/// Requests to a medium so far; exact, on any machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Store fences or fdatasyncs: one per harden.
    pub hardens: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Bytes stored to their place.
    pub home_bytes: u64,
    /// Cache lines written back.
    pub write_backs: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.hardens += other.hardens;
        self.log_bytes += other.log_bytes;
        self.home_bytes += other.home_bytes;
        self.write_backs += other.write_backs;
    }
}

/// The bytes of a pool. Offsets are those of its file, or of the one that several files stand for.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a pool has one")]
pub(crate) enum Medium {
    /// A file of the system.
    Mapped(Mapped),
    /// A device of the simulator.
    #[cfg(feature = "sim")]
    Simulated(Simulated),
    /// Several of them.
    Striped(Striped),
}

macro_rules! each {
    ($self:ident, $medium:ident => $call:expr) => {
        match $self {
            Medium::Mapped($medium) => $call,
            #[cfg(feature = "sim")]
            Medium::Simulated($medium) => $call,
            Medium::Striped($medium) => $call,
        }
    };
}

impl Medium {
    /// Returns true if harden is a file system's sync, which is worth sharing, and not a fence.
    #[inline]
    pub fn pages(&self) -> bool {
        each!(self, medium => medium.pages())
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        each!(self, medium => medium.len())
    }

    /// Fills `target` with the bytes from `offset` on.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        each!(self, medium => medium.read(offset, target))
    }

    /// As [`Medium::read`], for bytes outside the log that this process stores to: without a system call where they are mapped.
    #[inline]
    pub fn load(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        match self {
            Medium::Mapped(mapped) if mapped.is_beside() => mapped.read(offset, target),
            Medium::Mapped(mapped) => {
                mapped.load(offset, target);
                Ok(())
            }
            Medium::Striped(striped) => striped.load(offset, target),
            #[cfg(feature = "sim")]
            Medium::Simulated(simulated) => simulated.read(offset, target),
        }
    }

    /// Says that a range of whole pages is loaded next: where pages are read one by one, the disk gets one request for all of them.
    pub fn will_load(&self, offset: u64, bytes: u64) {
        if let Medium::Mapped(mapped) = self
            && !mapped.is_beside()
        {
            mapped.will_load(offset, bytes);
        }
    }

    /// The first place of [from, to) that may have other bytes than zeros, as far as that is known without reading; `to` if there is
    /// none.
    pub fn data(&self, from: u64, to: u64) -> u64 {
        match self {
            Medium::Mapped(mapped) if !mapped.is_beside() => mapped.data(from, to),
            _ => from,
        }
    }

    /// Writes to the log; 64-byte aligned, whole lines.
    #[track_caller]
    #[inline]
    pub fn append(&self, offset: u64, source: &[u8], counters: &mut Counters) -> Result<()> {
        counters.log_bytes += source.len() as u64;
        each!(self, medium => medium.append(offset, source))
    }

    /// Fills a record's checksum and writes the record to the log.
    #[track_caller]
    #[inline(always)]
    pub fn append_record(
        &self,
        offset: u64,
        record: &mut [u8],
        salt: u32,
        counters: &mut Counters,
    ) -> Result<()> {
        match self {
            Medium::Mapped(mapped) if !mapped.pages() => {
                counters.log_bytes += record.len() as u64;
                return mapped.append_record(offset, record, salt);
            }
            Medium::Striped(striped) => {
                counters.log_bytes += record.len() as u64;
                return striped.append_record(offset, record, salt);
            }
            _ => {}
        }
        crate::record::seal(record, salt);
        self.append(offset, record, counters)
    }

    /// Makes a record of `head` and new lines of a page in `record`, fills its checksum, and writes it to the log.
    #[track_caller]
    #[inline(always)]
    pub fn append_lines(
        &self,
        offset: u64,
        record: &mut [u8],
        head: &[u64; PAGE_HEAD_WORDS],
        lines: &PageLines<'_>,
        salt: u32,
        counters: &mut Counters,
    ) -> Result<()> {
        if let Medium::Mapped(mapped) = self
            && !mapped.pages()
        {
            counters.log_bytes += record.len() as u64;
            return mapped.append_lines(offset, record, head, lines, salt);
        }
        log::make_lines(record, head, lines);
        self.append_record(offset, record, salt, counters)
    }

    /// Writes lines of a page to a copy of it, past the caches; gives their CRC-32C. Where pages are what the disk keeps, the
    /// whole page is written: its other lines are equal.
    #[track_caller]
    pub fn write_lines(&self, offset: u64, page: &[u8], lines: u64, counters: &mut Counters) -> Result<u32> {
        counters.log_bytes +=
            if self.pages() { page.len() as u64 } else { u64::from(lines.count_ones()) * 64 };
        match self {
            Medium::Mapped(mapped) if !mapped.pages() => mapped.write_lines(offset, page, lines),
            Medium::Mapped(mapped) => {
                mapped.append(offset, page)?;
                Ok(crate::layout::crc_of_lines(page, lines))
            }
            #[cfg(feature = "sim")]
            Medium::Simulated(simulated) => {
                for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                    simulated
                        .append(offset + line * 64, &page[line as usize * 64..line as usize * 64 + 64])?;
                }
                Ok(crate::layout::crc_of_lines(page, lines))
            }
            Medium::Striped(_) => unreachable!("shadow pools have one file"),
        }
    }

    /// Bytes behind the end of an append that it may overwrite: a lane keeps them free of what counts.
    pub fn log_gap(&self) -> u64 {
        match self {
            Medium::Mapped(mapped) => mapped.log_gap(),
            #[cfg(feature = "sim")]
            Medium::Simulated(simulated) => simulated.log_gap(),
            Medium::Striped(_) => 0,
        }
    }

    /// Stores to a place outside the log, through the caches.
    #[track_caller]
    #[inline]
    pub fn store(&self, offset: u64, source: &[u8], counters: &mut Counters) -> Result<()> {
        counters.home_bytes += source.len() as u64;
        self.before_store(offset, source.len() as u64);
        let stored = each!(self, medium => medium.store(offset, source));
        self.after_store(offset, source.len() as u64);
        stored
    }

    /// Brings bytes to their place: durable after the next harden. Whole lines go past the caches: nobody reads them there, and a
    /// line that is overwritten whole need not be fetched.
    #[track_caller]
    #[inline]
    pub fn place(&self, offset: u64, source: &[u8], counters: &mut Counters) -> Result<()> {
        if !self.pages() && offset.is_multiple_of(64) && source.len().is_multiple_of(64) {
            counters.home_bytes += source.len() as u64;
            self.before_store(offset, source.len() as u64);
            let stored = each!(self, medium => medium.append(offset, source));
            self.after_store(offset, source.len() as u64);
            return stored;
        }
        self.store(offset, source, counters)?;
        self.write_back(offset, source.len() as u64, counters);
        Ok(())
    }

    /// Brings lines of the page at `offset` to their place, as [`Medium::place`]: `source` has them one behind the other.
    #[track_caller]
    pub fn place_lines(&self, offset: u64, lines: u64, source: &[u8], counters: &mut Counters) -> Result<()> {
        if let Medium::Mapped(mapped) = self
            && !mapped.pages()
        {
            counters.home_bytes += source.len() as u64;
            mapped.before_store(offset, PAGE_BYTES);
            mapped.place_lines(offset, lines, source);
            mapped.after_store(offset, PAGE_BYTES);
            return Ok(());
        }
        let (mut left, mut at) = (lines, 0);
        while left != 0 {
            // Lines side by side are one store.
            let first = left.trailing_zeros();
            let count = (left >> first).trailing_ones();
            let bytes = count as usize * 64;
            self.place(offset + u64::from(first) * 64, &source[at..at + bytes], counters)?;
            at += bytes;
            left &= u64::MAX.checked_shl(first + count).unwrap_or(0);
        }
        Ok(())
    }

    /// Keeps what readers in other processes need of what is about to be stored to.
    #[inline]
    fn before_store(&self, offset: u64, bytes: u64) {
        if let Medium::Mapped(mapped) = self {
            mapped.before_store(offset, bytes);
        }
    }

    /// Marks what was stored to, if there is a replica.
    #[inline]
    fn after_store(&self, offset: u64, bytes: u64) {
        if let Medium::Mapped(mapped) = self {
            mapped.after_store(offset, bytes);
        }
    }

    /// Starts to write back the lines of a range; durable after the next harden.
    #[track_caller]
    #[inline]
    pub fn write_back(&self, offset: u64, bytes: u64, counters: &mut Counters) {
        counters.write_backs += (offset + bytes).div_ceil(64) - offset / 64;
        each!(self, medium => medium.write_back(offset, bytes));
    }

    /// Makes durable what this thread appended, and what it stored and wrote back.
    ///
    /// # Errors
    ///
    /// The disk's error. Nothing since the last success may be relied on, ever.
    #[track_caller]
    #[inline]
    pub fn harden(&self, counters: &mut Counters) -> Result<()> {
        if let Medium::Striped(striped) = self {
            counters.hardens += striped.harden()?;
            return Ok(());
        }
        counters.hardens += 1;
        self.harden_one()
    }

    /// Makes durable what this thread appended to the log. What was stored to its place may not be durable: that takes
    /// [`Medium::harden`].
    ///
    /// # Errors
    ///
    /// As [`Medium::harden`].
    #[track_caller]
    #[inline(always)]
    pub fn harden_log(&self, counters: &mut Counters) -> Result<()> {
        if let Medium::Striped(striped) = self {
            counters.hardens += striped.harden_log()?;
            return Ok(());
        }
        counters.hardens += 1;
        match self {
            Medium::Mapped(mapped) => mapped.harden_log(),
            #[cfg(feature = "sim")]
            Medium::Simulated(simulated) => simulated.harden_log(),
            Medium::Striped(_) => self.harden_one(),
        }
    }

    #[track_caller]
    #[inline(always)]
    fn harden_one(&self) -> Result<()> {
        match self {
            Medium::Mapped(mapped) => mapped.harden(),
            #[cfg(feature = "sim")]
            Medium::Simulated(simulated) => simulated.harden(),
            Medium::Striped(striped) => striped.harden().map(drop),
        }
    }

    /// Stores the pool's header in one of its two places: durable after the next harden.
    #[track_caller]
    pub fn store_header(&self, header: &Header, place: u64, counters: &mut Counters) -> Result<()> {
        if let Medium::Striped(striped) = self {
            return striped.store_header(header, place, counters);
        }
        let offset = place % 2 * HEADER_BYTES;
        let bytes = header.encode();
        self.store(offset, &bytes, counters)?;
        self.write_back(offset, bytes.len() as u64, counters);
        Ok(())
    }

    /// Writes a header over the older of the two, and then over the other one.
    #[track_caller]
    pub fn write_header(&self, header: &Header, counters: &mut Counters) -> Result<()> {
        self.store_header(header, header.generation, counters)?;
        self.harden(counters)?;
        self.store_header(header, header.generation + 1, counters)
    }

    /// The address of the heap that starts at `heap_start`, where it is mapped as one.
    pub fn heap(&self, heap_start: u64) -> Option<*mut u8> {
        match self {
            Medium::Mapped(mapped) => Some(mapped.heap(heap_start)),
            _ => None,
        }
    }

    /// Returns true if stores stay in this process: see [`Mapped::private_view`].
    pub fn is_private(&self) -> bool {
        matches!(self, Medium::Mapped(mapped) if mapped.is_private())
    }

    /// Returns true if it is a snapshot of a pool that another process writes.
    pub fn is_beside(&self) -> bool {
        matches!(self, Medium::Mapped(mapped) if mapped.is_beside())
    }

    /// That snapshot, if it is one.
    pub fn writer_snapshot(&self) -> Option<&WriterSnapshot> {
        match self {
            Medium::Mapped(mapped) => mapped.snapshot(),
            _ => None,
        }
    }

    /// Takes a new snapshot; gives the one before. None: it is no snapshot.
    ///
    /// # Errors
    ///
    /// As [`WriterSnapshot::renew`].
    pub fn renew_snapshot(&mut self) -> Result<Option<SnapshotId>> {
        match self {
            Medium::Mapped(mapped) => mapped.renew_snapshot(),
            _ => Ok(None),
        }
    }

    /// Goes back to the snapshot before.
    pub fn put_snapshot_back(&mut self, before: SnapshotId) {
        if let Medium::Mapped(mapped) = self {
            mapped.put_snapshot_back(before);
        }
    }

    /// Old pages for readers in other processes, if they may come.
    pub fn old_pages(&self) -> Option<&Arc<OldPages>> {
        match self {
            Medium::Mapped(mapped) => mapped.old_pages(),
            _ => None,
        }
    }

    /// Returns true if no program has it but a test's simulator.
    pub fn is_simulated(&self) -> bool {
        match self {
            #[cfg(feature = "sim")]
            Medium::Simulated(_) => true,
            _ => false,
        }
    }

    /// The files, in the order of their devices.
    pub fn paths(&self) -> Vec<PathBuf> {
        match self {
            Medium::Mapped(mapped) => vec![mapped.path().to_owned()],
            #[cfg(feature = "sim")]
            Medium::Simulated(_) => vec![PathBuf::from("simulated")],
            Medium::Striped(striped) => striped.paths(),
        }
    }

    /// Syncs of each device.
    pub fn device_syncs(&self) -> Vec<u64> {
        match self {
            Medium::Striped(striped) => striped.syncs(),
            _ => Vec::new(),
        }
    }

    /// Makes the file at least this long, durably; the new part is zero.
    ///
    /// # Errors
    ///
    /// As [`Medium::harden`]; [`Error::Argument`](crate::Error::Argument) beyond what was reserved.
    #[track_caller]
    pub fn grow(&self, bytes: u64) -> Result<()> {
        each!(self, medium => medium.grow(bytes))
    }

    /// Gives a range of the log blocks in the file where it has none: they read as zeros, and later stores cannot fail for want
    /// of room.
    ///
    /// # Errors
    ///
    /// [`Error::File`](crate::Error::File) when the disk is full.
    pub fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        match self {
            Medium::Mapped(mapped) => mapped.allocate(offset, bytes),
            #[cfg(feature = "sim")]
            Medium::Simulated(_) => Ok(()),
            Medium::Striped(striped) => striped.allocate(offset, bytes),
        }
    }

    /// Allocates what has blocks from the start and may lack them in a sparse copy of the file: a store to a hole that the disk has no
    /// room for would be a fault (SIGBUS). Not here: lanes, and the heap of a pool that `Holes` look after.
    ///
    /// # Errors
    ///
    /// As [`Medium::allocate`].
    pub fn allocate_fixed(&self, header: &Header) -> Result<()> {
        match self {
            Medium::Mapped(mapped) => {
                let heap = if header.mechanism == Mechanism::Shadow as u8 { mapped.len() } else { 0 };
                mapped.allocate_all(&[(0, LANES_START), (header.allocated_from(), heap)])
            }
            #[cfg(feature = "sim")]
            Medium::Simulated(_) => Ok(()),
            Medium::Striped(striped) => striped.allocate_fixed(header),
        }
    }

    /// Returns true if a page was asked for that a file could not give: it was truncated, or its disk is full or broken.
    #[inline]
    pub fn lost(&self) -> bool {
        match self {
            Medium::Mapped(mapped) => mapped.lost(),
            #[cfg(feature = "sim")]
            Medium::Simulated(_) => false,
            Medium::Striped(striped) => striped.lost(),
        }
    }

    /// The crashes that acknowledged transactions survive on this medium.
    pub fn guarantee(&self) -> Guarantee {
        each!(self, medium => medium.guarantee())
    }
}
