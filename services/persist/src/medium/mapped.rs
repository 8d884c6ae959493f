// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file, mapped shared into reserved address space, so that it grows without moving.
//!
//! - **Layout** address space for `max_bytes` is reserved without access; the file's part is mapped over its start
//! - **Owner** the descriptor holds an exclusive lock (flock) for as long as the medium lives: one owner at a time. The owner's
//!   process gives it up by itself, since a child that was forked but has not called exec yet has the descriptor too
//! - **Order** the log is written by pwrite in the page domain and by non-temporal stores through the mapping in the line domain;
//!   never both, so a page of the log is not cached twice

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
#[cfg(feature = "replicate")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memlift_ground::locked_file::LockedFile;
use memlift_kernels::log::{self, PageLines};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::LOST;
#[cfg(feature = "replicate")]
use super::changed::ChangedPages;
use super::detect::{self, Guarantee};
use super::direct::{self, DirectLog};
use crate::beside::{OldPages, SnapshotId, WriterSnapshot};
use crate::error::{Error, LOWER_MAX, Result};
use crate::lost::{self, Watch};
use crate::options::{Domain, exceeds_memory};
use crate::record::{self, PAGE_HEAD_WORDS};

/// See the module's header.
#[derive(Debug)]
pub struct Mapped {
    file: LockedFile,
    path: PathBuf,
    base: *mut u8,
    reserved: u64,
    length: AtomicU64,
    /// The kernel reads nothing ahead: the file may not fit into memory.
    by_pages: AtomicBool,
    growing: Mutex<()>,
    /// True once a sync has failed. The kernel reports a failure to one caller of fdatasync only: another that syncs at the
    /// same time, or later, gets success.
    failed: Mutex<bool>,
    guarantee: Guarantee,
    sync_maps: bool,
    pages: bool,
    flush: bool,
    writable: bool,
    /// Stores stay in this process: the file is only read.
    private: bool,
    /// The way of the log past the page cache, where there is one.
    direct: Option<DirectLog>,
    /// The mapping itself is the image of the heap: transactions store to it, too.
    shared: AtomicBool,
    /// Old pages for readers in other processes, if they may come.
    old_pages: Option<Arc<OldPages>>,
    /// Pages that a replica lacks, if there is one.
    #[cfg(feature = "replicate")]
    changed: OnceLock<Arc<ChangedPages>>,
    /// A reader beside another process's writer: what it sees instead of the file as it is now.
    snapshot: Option<WriterSnapshot>,
    /// Ends before the mapping does.
    watch: Option<Watch>,
}

// SAFETY: the mapping lives as long as this medium, on whichever thread. Lanes, locks and the applier each own the ranges that
// they store to.
unsafe impl Send for Mapped {}
// SAFETY: the fields are locked, atomic or fixed; each range has one writer, which holds its lane, section or lock.
unsafe impl Sync for Mapped {}

const NEVER: &str = "page-sized numbers fit";

/// Zeros for holes that the log gets to.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Has the kernel read mappings of a file page by page, if so many bytes may not fit into memory; returns true if it does.
///
/// # Safety
///
/// [base, base + bytes) is mapped, and stays mapped during the call.
pub(crate) unsafe fn read_by_pages(base: *mut u8, bytes: u64) -> bool {
    // SAFETY: the range is mapped, as the caller guarantees, and the advice changes no byte of it.
    exceeds_memory(bytes)
        && unsafe { rustix::mm::madvise(base.cast(), usize::try_from(bytes).expect(NEVER), Advice::Random) }
            .is_ok()
}

impl Mapped {
    /// Maps `file`, which has its final size for now; `max_bytes` is what it may grow to.
    pub fn new(
        file: impl Into<LockedFile>,
        path: &Path,
        max_bytes: u64,
        wanted: Domain,
        writable: bool,
    ) -> Result<Mapped> {
        let file = file.into();
        let failed = |action| {
            move |source: Errno| Error::File { action, path: path.to_owned(), source: source.into() }
        };
        let length = file
            .metadata()
            .map_err(|source| Error::File { action: "stat", path: path.to_owned(), source })?
            .len();
        let reserved = max_bytes.max(length).max(1).next_multiple_of(4096);
        // SAFETY: a fresh reservation at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                usize::try_from(reserved).expect(NEVER),
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|errno| Error::Argument {
            what: format!(
                "no address space for the {reserved} bytes that {} may have ({errno}): {LOWER_MAX}",
                path.display()
            ),
        })?
        .cast::<u8>();
        let mut mapped = Mapped {
            file,
            path: path.to_owned(),
            base,
            reserved,
            length: AtomicU64::new(0),
            by_pages: AtomicBool::new(false),
            growing: Mutex::new(()),
            failed: Mutex::new(false),
            guarantee: detect::Guarantee {
                survives: detect::Survives::Process,
                domain: Domain::Pages,
                by: "",
                reason: String::new(),
            },
            sync_maps: false,
            pages: true,
            flush: true,
            writable,
            private: false,
            direct: None,
            shared: AtomicBool::new(false),
            old_pages: None,
            #[cfg(feature = "replicate")]
            changed: OnceLock::new(),
            snapshot: None,
            watch: Some(Watch::over(base, reserved)),
        };
        mapped.sync_maps = length > 0 && mapped.maps_sync();
        if length > 0 {
            mapped.map(0, length).map_err(failed("map"))?;
        }
        mapped.length.store(length, Ordering::Release);
        mapped.guarantee = detect::detect(&mapped.file, wanted, mapped.sync_maps);
        mapped.pages = mapped.guarantee.domain == Domain::Pages;
        mapped.flush = !mapped.guarantee.by.contains("eADR");
        Ok(mapped)
    }

    /// Lets readers in other processes have pages as they were before a store.
    pub fn keeping_old_pages(mut self, old: Option<Arc<OldPages>>) -> Mapped {
        self.old_pages = old;
        self
    }

    /// Has the log of a file on a disk written past the page cache, if the file system can: what is appended is durable at once, and
    /// hardening the log does nothing more. Not for what is neither redo nor checkpoint: only these leave the room that it needs
    /// ([`Medium::log_gap`](super::Medium::log_gap)).
    pub fn with_direct_log(mut self) -> Mapped {
        if self.pages && self.guarantee.survives == detect::Survives::PowerFailure {
            self.direct = DirectLog::open(&self.file);
        }
        self
    }

    /// Bytes behind the log's end that an append may overwrite.
    pub(super) fn log_gap(&self) -> u64 {
        if self.direct.is_some() { direct::GAP_BYTES } else { 0 }
    }

    /// The file as another process's snapshot has it: it is only read, and never through the mapping.
    pub fn beside(file: File, path: &Path, snapshot: WriterSnapshot) -> Result<Mapped> {
        let mut mapped = Mapped::new(file, path, 0, Domain::Auto, false)?;
        mapped.snapshot = Some(snapshot);
        Ok(mapped)
    }

    /// Maps `file` privately, for recovery without a change to it: what is stored is seen through this medium only, and the
    /// file, which may be open for reading only, stays as it is.
    pub fn private_view(file: impl Into<LockedFile>, path: &Path) -> Result<Mapped> {
        let mut mapped = Mapped::new(file, path, 0, Domain::Auto, false)?;
        (mapped.private, mapped.sync_maps, mapped.pages, mapped.flush) = (true, false, false, false);
        let length = mapped.len();
        if length > 0 {
            mapped.map(0, length).map_err(|e| mapped.failed("map")(e.into()))?;
        }
        // Reading a hole of a full memory file system would be a fault: it allocates the page.
        let mut at = 0;
        while let Some((hole, after)) = mapped.hole(at, length / 4096 * 4096) {
            mapped.map_zeros(hole.next_multiple_of(4096), after / 4096 * 4096)?;
            at = after;
        }
        Ok(mapped)
    }

    /// Maps memory over a hole of the file, in whole pages.
    fn map_zeros(&self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        // SAFETY: [from, to) lies in this medium's reservation, and nothing refers to it yet.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.base.add(usize::try_from(from).expect(NEVER)).cast(),
                usize::try_from(to - from).expect(NEVER),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }
        .map(drop)
        .map_err(|errno| self.failed("map")(errno.into()))
    }

    /// Returns true if the file can be mapped with MAP_SYNC. Tried at an address of the kernel's choice: at a fixed address, a
    /// failure may leave a hole in the reservation, which another thread's mapping would take.
    fn maps_sync(&self) -> bool {
        // SAFETY: a fresh mapping overlaps nothing.
        let tried = unsafe {
            let kind = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
            rustix::mm::mmap(ptr::null_mut(), 4096, ProtFlags::READ, kind, self.file.as_fd(), 0)
        };
        // SAFETY: the mapping was made above, and nothing refers to it.
        tried.is_ok_and(|base| unsafe { rustix::mm::munmap(base, 4096) }.is_ok())
    }

    fn map(&self, from: u64, to: u64) -> Result<(), Errno> {
        let kind = match (self.private, self.sync_maps) {
            (true, _) => MapFlags::PRIVATE | MapFlags::NORESERVE,
            (false, true) => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            (false, false) => MapFlags::SHARED,
        };
        let writable = self.writable || self.private;
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: [from, to) lies in this medium's reservation and holds nothing but pages of the same file, or zeros in the place of
        // such pages.
        unsafe {
            rustix::mm::mmap(
                self.base.add(usize::try_from(from).expect(NEVER)).cast(),
                usize::try_from(to - from).expect(NEVER),
                access,
                kind | MapFlags::FIXED,
                self.file.as_fd(),
                from,
            )
        }?;
        // A private view is read once, from its start to its end.
        if !self.private {
            // SAFETY: the file is mapped up to `to` now.
            self.by_pages.store(unsafe { read_by_pages(self.base, to) }, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The address of a range.
    ///
    /// # Panics
    ///
    /// When the range is not in the file: that is a fault of this crate, and a panic is better than an access to foreign memory.
    #[inline(always)]
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes).expect("in the file");
        assert!(end <= self.length.load(Ordering::Relaxed), "pool: {offset}+{bytes} is not in the file");
        // SAFETY: the file's length is mapped from base on, and the range is within it.
        unsafe { self.base.add(offset as usize) }
    }

    /// The address of the heap, for an image that is the mapping itself.
    pub fn image(&self, heap_start: u64) -> *mut u8 {
        self.shared.store(true, Ordering::Release);
        self.at(heap_start, 0)
    }

    /// The address of the heap that starts at `heap_start`; it may grow, and does not move.
    pub fn heap(&self, heap_start: u64) -> *mut u8 {
        self.at(heap_start, 0)
    }

    /// The pool's open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if stores stay in this process.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Old pages for readers in other processes, if they may come.
    pub fn old_pages(&self) -> Option<&Arc<OldPages>> {
        self.old_pages.as_ref()
    }

    /// Another process's snapshot, if it is one.
    pub fn snapshot(&self) -> Option<&WriterSnapshot> {
        self.snapshot.as_ref()
    }

    /// Returns true if it is another process's snapshot.
    pub fn is_beside(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Takes a new snapshot; gives the one before. None: it is no snapshot.
    pub(super) fn renew_snapshot(&mut self) -> Result<Option<SnapshotId>> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(None) };
        let before = snapshot.renew(&self.file, &self.path)?;
        // The file may have grown. It is not read through the mapping, which stays as it is.
        let length = self.file.metadata().map_err(self.failed("stat"))?.len();
        self.length.fetch_max(length, Ordering::AcqRel);
        Ok(Some(before))
    }

    /// Goes back to the snapshot before.
    pub(super) fn put_snapshot_back(&mut self, before: SnapshotId) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.put_back(before);
        }
    }

    /// Copies the pages that readers need of what is about to be stored to.
    #[inline]
    pub(super) fn before_store(&self, offset: u64, bytes: u64) {
        if let Some(old) = &self.old_pages {
            old.before_store(offset, bytes, |at, target| self.load(at, target));
        }
    }

    /// Marks pages that were stored to, for the replica.
    #[inline]
    #[cfg_attr(not(feature = "replicate"), expect(clippy::unused_self, reason = "only a replica has marks"))]
    pub(super) fn after_store(&self, offset: u64, bytes: u64) {
        #[cfg(feature = "replicate")]
        if let Some(changed) = self.changed.get() {
            changed.mark(offset, bytes);
        }
        #[cfg(not(feature = "replicate"))]
        let _ = (offset, bytes);
    }

    /// Marks the pages that are stored to from now on, and all that are there. The caller holds the applier.
    #[cfg(feature = "replicate")]
    pub fn watch_changes(&self) -> Arc<ChangedPages> {
        let changed = self.changed.get_or_init(|| Arc::new(ChangedPages::new(self.reserved)));
        changed.mark_all();
        Arc::clone(changed)
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn pages(&self) -> bool {
        self.pages
    }

    pub(super) fn len(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::File { action, path, source }
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        if let Some(snapshot) = &self.snapshot {
            return snapshot.read(&self.file, &self.path, offset, target);
        }
        if self.private {
            let source = self.at(offset, target.len() as u64);
            // SAFETY: the range is mapped (`at`), and nobody stores to a snapshot while its one owner, the caller, reads.
            unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
            return Ok(());
        }
        self.file.read_exact_at(target, offset).map_err(self.failed("read"))
    }

    /// Starts reading a range of whole pages that is loaded next, in one request to the disk.
    pub(super) fn will_load(&self, offset: u64, bytes: u64) {
        if !self.by_pages.load(Ordering::Relaxed) {
            return;
        }
        let start = self.at(offset, bytes);
        // SAFETY: the advice changes no byte of the file, in which the range lies (`at`).
        let advised = unsafe {
            rustix::mm::madvise(start.cast(), usize::try_from(bytes).expect(NEVER), Advice::WillNeed)
        };
        let _ = advised; // without it each page is read when it is loaded
    }

    /// Reads through the mapping. The caller holds the lock under which the range is stored to.
    #[inline]
    pub(super) fn load(&self, offset: u64, target: &mut [u8]) {
        let source = self.at(offset, target.len() as u64);
        // SAFETY: the range is mapped (`at`), and nobody stores to it meanwhile: the caller holds its lock.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    #[inline]
    pub(super) fn append(&self, offset: u64, source: &[u8]) -> Result<()> {
        if self.pages {
            self.whole()?;
            return self.append_page(offset, source);
        }
        debug_assert!(offset.is_multiple_of(64) && source.len().is_multiple_of(64));
        let target = self.at(offset, source.len() as u64);
        // SAFETY: the range is mapped (`at`), whole lines, and owned by the lane whose lock the caller holds.
        unsafe { log::nt_copy(target, source.as_ptr(), source.len()) };
        Ok(())
    }

    fn append_page(&self, offset: u64, source: &[u8]) -> Result<()> {
        let write_all = || self.file.write_all_at(source, offset).map_err(self.failed("write the log of"));
        let Some(direct) = &self.direct else { return write_all() };
        match direct.write(offset, source) {
            Ok(true) => Ok(()),
            Ok(false) => write_all().and_then(|()| self.sync()),
            Err(error) => {
                *self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
                Err(Error::Stopped { reason: format!("writing the log: {error}") })
            }
        }
    }

    #[inline(always)]
    pub(super) fn append_record(&self, offset: u64, record: &mut [u8], salt: u32) -> Result<()> {
        debug_assert!(offset.is_multiple_of(64) && record.len().is_multiple_of(64));
        let target = self.at(offset, record.len() as u64);
        // SAFETY: the range is mapped (`at`), whole lines, and owned by the lane whose lock the caller holds; the record is
        // a unique borrow.
        unsafe { log::append(target, record.as_mut_ptr(), record.len(), salt) };
        Ok(())
    }

    #[inline(always)]
    pub(super) fn append_lines(
        &self,
        offset: u64,
        record: &mut [u8],
        head: &[u64; PAGE_HEAD_WORDS],
        lines: &PageLines<'_>,
        salt: u32,
    ) -> Result<()> {
        assert!(
            record.len() as u64 == record::page_bytes(lines) && record.as_ptr().addr().is_multiple_of(64)
        );
        debug_assert!(offset.is_multiple_of(64));
        let target = self.at(offset, record.len() as u64);
        // SAFETY: the range is mapped (`at`), whole lines, and owned by the lane whose lock the caller holds; the record is a unique
        // borrow of as many lines as it takes (above).
        unsafe { log::append_lines(target, record.as_mut_ptr(), head, lines, salt) };
        Ok(())
    }

    pub(super) fn write_lines(&self, offset: u64, page: &[u8], lines: u64) -> Result<u32> {
        assert!(page.len() == 4096 && offset.is_multiple_of(4096));
        let target = self.at(offset, 4096);
        // SAFETY: the page is mapped (`at`) and is the copy that nobody reads now; the source is a page of its own.
        Ok(unsafe { log::copy_lines_crc(target, page.as_ptr(), lines, 0) })
    }

    /// Stores lines of a page past the caches; `source` has them one behind the other.
    #[inline]
    pub(super) fn place_lines(&self, offset: u64, lines: u64, source: &[u8]) {
        assert!(offset.is_multiple_of(4096) && source.len() == lines.count_ones() as usize * 64);
        let target = self.at(offset, 4096);
        // SAFETY: the page is mapped (`at`), and only the holder of the applier's lock stores there; the source has as many lines
        // (above), and is memory of this process.
        unsafe { log::scatter_lines(target, source.as_ptr(), lines) };
    }

    #[inline]
    pub(super) fn store(&self, offset: u64, source: &[u8]) -> Result<()> {
        let target = self.at(offset, source.len() as u64);
        if !self.pages || self.shared.load(Ordering::Relaxed) {
            // SAFETY: the range is mapped (`at`); only the holder of the applier's or the header's lock stores outside the log.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
            return Ok(());
        }
        // SAFETY: as above; but for undo, whose image is the mapping, each page outside the log belongs to one such lock, or to one
        // transaction that stores to free slabs.
        if unsafe { lost::store(target, source) } { Ok(()) } else { self.store_by_write(offset, source) }
    }

    /// Writes what could not be stored. The kernel holds a file in memory in blocks of one or more pages, and before a store to one of
    /// them all holes in its block get room on the disk; a write asks for room for its own bytes only, and they have theirs.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the file is shorter than it was, or has no room for these bytes either.
    #[cold]
    fn store_by_write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let end = offset + source.len() as u64;
        let (from, to) = (offset / 4096 * 4096, end.next_multiple_of(4096).min(self.len()));
        let written = self.whole().is_ok()
            && self.file.write_all_at(source, offset).is_ok()
            && self.map(from, to).is_ok();
        if !written {
            if let Some(watch) = &self.watch {
                watch.lose();
            }
            return Err(Error::Stopped { reason: LOST.to_owned() });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn write_back(&self, offset: u64, bytes: u64) {
        if !self.pages && self.flush {
            // SAFETY: the range is mapped (`at`).
            unsafe { log::write_back(self.at(offset, bytes), bytes as usize) };
        }
    }

    #[inline(always)]
    pub(super) fn harden(&self) -> Result<()> {
        if self.pages {
            self.sync()?;
        } else {
            log::fence();
        }
        if self.lost() { Err(Error::Stopped { reason: LOST.to_owned() }) } else { Ok(()) }
    }

    /// As [`Mapped::harden`], for the log alone.
    #[inline(always)]
    pub(super) fn harden_log(&self) -> Result<()> {
        if self.direct.is_none() {
            return self.harden();
        }
        if self.lost() { Err(Error::Stopped { reason: LOST.to_owned() }) } else { Ok(()) }
    }

    /// Checks that nobody has truncated the file: a write behind its end would make it longer, with zeros in between.
    fn whole(&self) -> Result<()> {
        // Not by its metadata: since Linux 6.13 the next write gives a file whose times were asked for new ones, which a sync writes.
        let bytes =
            rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(|e| self.failed("seek in")(e.into()))?;
        if bytes < self.len() { Err(Error::Stopped { reason: LOST.to_owned() }) } else { Ok(()) }
    }

    /// Returns true if a page was asked for that the file could not give.
    #[inline]
    pub(super) fn lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::lost)
    }

    /// Syncs the file, one caller at a time, and never again after a failure.
    #[cold]
    fn sync(&self) -> Result<()> {
        let mut failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *failed {
            return Err(Error::Stopped { reason: "an fdatasync has failed before".to_owned() });
        }
        rustix::fs::fdatasync(&self.file).map_err(|errno| {
            *failed = true;
            Error::Stopped { reason: format!("fdatasync: {errno}") }
        })
    }

    /// Writes zeros where a range has holes: what is written there later costs the file system's journal nothing.
    pub(super) fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let (mut at, end) = (offset, offset + bytes);
        while let Some((hole, after)) = self.hole(at, end) {
            let mut place = hole;
            while place < after {
                let piece = (after - place).min(ZEROS.len() as u64);
                self.append_page(place, &ZEROS[..piece as usize])?;
                place += piece;
            }
            at = after;
        }
        Ok(())
    }

    /// Gives ranges blocks where they have holes.
    pub(super) fn allocate_all(&self, ranges: &[(u64, u64)]) -> Result<()> {
        for (from, to) in ranges {
            if self.hole(*from, *to).is_some() {
                self.reserve(*from, *to)?;
            }
        }
        Ok(())
    }

    /// The holes of a range.
    pub fn holes(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (mut found, mut at) = (Vec::new(), from);
        while let Some((hole, after)) = self.hole(at, to) {
            found.push((hole, after));
            at = after;
        }
        found
    }

    /// Gives [from, to) blocks, as far as it has none. A file system that cannot has no holes to fill.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the disk is full.
    pub fn reserve(&self, from: u64, to: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to.min(self.len()) - from) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.failed("allocate the blocks of")(errno.into())),
        }
    }

    /// Gives the blocks of a range back to the file system: it reads as zeros. False: the file system cannot.
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<bool> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, how, offset, bytes) {
            Ok(()) => {
                self.after_store(offset, bytes);
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(self.failed("give back blocks of")(errno.into())),
        }
    }

    /// The first hole of a range. A file system that does not tell has none.
    fn hole(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        if from >= to {
            return None;
        }
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(from)).ok().filter(|hole| *hole < to)?;
        let data = rustix::fs::seek(&self.file, SeekFrom::Data(hole)).unwrap_or(to);
        Some((hole, data.min(to)))
    }

    /// The first place of [from, to) that may have other bytes than zeros; `to` if there is none.
    pub(super) fn data(&self, from: u64, to: u64) -> u64 {
        match rustix::fs::seek(&self.file, SeekFrom::Data(from)) {
            Ok(data) => data.min(to),
            Err(Errno::NXIO) => to, // there is no data up to the end
            Err(_) => from,
        }
    }

    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        let _growing = self.growing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let length = self.len();
        if bytes <= length {
            return Ok(());
        }
        if bytes > self.reserved {
            return Err(Error::Argument {
                what: format!("the file may grow to {} bytes at most", self.reserved),
            });
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), length, bytes - length) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                rustix::fs::ftruncate(&self.file, bytes).map_err(|e| self.failed("grow")(e.into()))?;
            }
            Err(errno) => {
                // Some file systems keep what they found until the disk was full: nobody would have that.
                let _ = rustix::fs::ftruncate(&self.file, length);
                return Err(self.failed("grow")(errno.into()));
            }
        }
        // A fence does not make the length durable, not even on persistent memory.
        self.sync()?;
        self.map(length / 4096 * 4096, bytes).map_err(|e| self.failed("map")(e.into()))?;
        self.length.store(bytes, Ordering::Release);
        Ok(())
    }

    pub(super) fn guarantee(&self) -> Guarantee {
        self.guarantee.clone()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.watch = None;
        // SAFETY: the reservation is this medium's, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), usize::try_from(self.reserved).expect(NEVER)) };
    }
}
