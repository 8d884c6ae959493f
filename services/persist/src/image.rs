// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heap as transactions see it: one range of addresses that never moves.
//!
//! - **Kinds** Mirror: a private mapping of the file's heap. A page that was never written is the file's page cache; changes
//!   reach the file only through the log. In place: the medium's shared mapping itself (undo). Filled: memory that is read in
//!   when the pool is opened (shadow, whose pages do not lie in order, and the simulator), or slab by slab (a snapshot of another
//!   process's pool)
//! - **Owner** the holder of a section's lock owns the section's bytes; the directory's words are read by all, with atomic loads
//! - **Order** growth maps behind the end and then publishes the new length with Release
//! - **Layout** of a pool over several files: a mapping per stripe, side by side, so as many as [`MAPPINGS_MAX`] at most
//! - **Not here** when a mirror's pages may be dropped again: `trim`

use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memlift_kernels::log::{self, PageLines};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, LOWER_MAX, Result};
use crate::layout::{BODIES_OFFSET, BODIES_ZONES, Entry, ZONE_SLABS};
use crate::lost::Watch;
use crate::medium::{Mapped, Medium, Striped, read_by_pages};
use crate::words::Words;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Image {
    base: *mut u8,
    length: AtomicU64,
    /// Slabs from here on may lie in zones without a directory. Never raised: see [`Image::entry_word`].
    bodies: AtomicU64,
    /// Goes up before a zone loses its directory.
    changes: AtomicU64,
    reserved: u64,
    owned: bool,
    filled: bool,
    /// Ends before the reservation does. None: a mapping of the medium, which is watched itself, or memory.
    watch: Option<Watch>,
    /// Bytes of a stripe, if its size and [`MAPPINGS_MAX`] limit the reservation; None: the reservation is what was asked for.
    crowded: Option<u64>,
}

/// The memory behind an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A private mapping of the file's heap.
    Mirror,
    /// The medium's shared mapping.
    InPlace,
    /// Memory that its maker fills.
    Filled,
}

// SAFETY: the mapping is not bound to a thread; the locks of sections settle which thread may touch which bytes.
unsafe impl Send for Image {}
// SAFETY: fields are atomics or never change; bytes of the heap are written only by the holder of their section's lock.
unsafe impl Sync for Image {}

/// Mappings that an image of stripes may take: the kernel lets a process have 65,530 (vm.max_map_count).
pub(crate) const MAPPINGS_MAX: u64 = 30_000;

const NEVER: &str = "page-sized numbers fit";

impl Image {
    /// The image of a heap of `heap_bytes` at `heap_start` in the file.
    pub fn new(
        medium: &Medium,
        heap_start: u64,
        heap_bytes: u64,
        max_bytes: u64,
        kind: Kind,
    ) -> Result<Image> {
        let reserved = max_bytes.max(heap_bytes).next_multiple_of(4096);
        match medium {
            Medium::Mapped(mapped) if kind == Kind::InPlace => Ok(Image {
                base: mapped.image(heap_start),
                length: AtomicU64::new(heap_bytes),
                bodies: AtomicU64::new(u64::MAX),
                changes: AtomicU64::new(0),
                reserved,
                owned: false,
                filled: false,
                watch: None,
                crowded: None,
            }),
            Medium::Striped(striped) if kind != Kind::Filled && striped.mapped(0).is_some() => {
                let stripe = striped.geometry().stripe;
                let most = MAPPINGS_MAX.saturating_mul(stripe);
                let mut image = Image::reserve(reserved.min(most))?;
                image.crowded = (reserved > most).then_some(stripe);
                if heap_bytes > most {
                    return Err(image.crowded().expect("heap_bytes is no more than reserved"));
                }
                image.map_stripes(striped, 0, heap_bytes)?;
                image.read_by_pages(heap_bytes);
                image.length.store(heap_bytes, Ordering::Release);
                Ok(image)
            }
            Medium::Mapped(mapped) if kind != Kind::Filled => {
                let image = Image::reserve(reserved)?;
                image.map_file(mapped, heap_start, 0, heap_bytes)?;
                image.read_by_pages(heap_bytes);
                image.length.store(heap_bytes, Ordering::Release);
                Ok(image)
            }
            _ => {
                let mut image = Image::reserve(reserved)?;
                (image.filled, image.watch) = (true, None);
                image.map_memory(0, heap_bytes)?;
                image.length.store(heap_bytes, Ordering::Release);
                Ok(image)
            }
        }
    }

    /// Fills a range of an image that nobody else has yet.
    pub fn fill(
        &mut self,
        offset: u64,
        bytes: u64,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds (above), writable, and this is the only reference: `self` is borrowed uniquely.
        read(unsafe { std::slice::from_raw_parts_mut(self.at(offset), bytes as usize) })
    }

    /// Returns true if it is the file's own mapping.
    pub fn in_place(&self) -> bool {
        !self.owned
    }

    /// Returns true if it has private pages of a file.
    pub fn is_mirror(&self) -> bool {
        self.owned && !self.filled
    }

    /// Returns true if a page was asked for that the file could not give.
    #[inline]
    pub fn lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::lost)
    }

    /// Returns true if its maker has to fill it.
    pub fn is_filled(&self) -> bool {
        self.filled
    }

    fn reserve(reserved: u64) -> Result<Image> {
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
            what: format!("no address space for an image of {reserved} bytes ({errno}): {LOWER_MAX}"),
        })?;
        Ok(Image {
            base: base.cast(),
            length: AtomicU64::new(0),
            bodies: AtomicU64::new(u64::MAX),
            changes: AtomicU64::new(0),
            reserved,
            owned: true,
            filled: false,
            watch: Some(Watch::over(base.cast(), reserved)),
            crowded: None,
        })
    }

    /// Maps [from, to) to the file's bytes from `place` on.
    fn map_file(&self, mapped: &Mapped, place: u64, from: u64, to: u64) -> Result<()> {
        // SAFETY: [from, to) lies in this image's reservation; nothing refers to it yet.
        unsafe {
            rustix::mm::mmap(
                self.base.add(usize::try_from(from).expect(NEVER)).cast(),
                usize::try_from(to - from).expect(NEVER),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
                mapped.file().as_fd(),
                place,
            )
        }
        .map_err(|errno| Error::File { action: "map", path: mapped.path().to_owned(), source: errno.into() })
        .map(drop)
    }

    /// Has the kernel read the image page by page, if its file may not fit into memory. Called once for all mappings up to `bytes`.
    fn read_by_pages(&self, bytes: u64) {
        // SAFETY: the image is mapped up to `bytes`, as the callers have just done.
        let _ = unsafe { read_by_pages(self.base, bytes) }; // without it the image is as right, and slower
    }

    /// Maps [from, to) stripe by stripe.
    fn map_stripes(&self, striped: &Striped, from: u64, to: u64) -> Result<()> {
        let mut at = from;
        while at < to {
            let (device, place, left) = striped.geometry().place(striped.geometry().heap_start + at);
            let end = to.min(at.saturating_add(left));
            let mapped = striped.mapped(device).expect("all devices are files when the first one is");
            self.map_file(mapped, place, at, end)?;
            at = end;
        }
        Ok(())
    }

    /// Returns the error for a heap that cannot grow further because its stripes are too small.
    pub fn crowded(&self) -> Option<Error> {
        let stripe = self.crowded?;
        Some(Error::Argument {
            what: format!(
                "stripes of {stripe} bytes allow a heap of {} bytes ({MAPPINGS_MAX} mappings): create the pool with larger Options::stripe_bytes, or free something",
                MAPPINGS_MAX * stripe
            ),
        })
    }

    fn map_memory(&self, from: u64, to: u64) -> Result<()> {
        // SAFETY: [from, to) lies in this image's reservation; nothing refers to it yet.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.base.add(usize::try_from(from).expect(NEVER)).cast(),
                usize::try_from(to - from).expect(NEVER),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }
        .map(|_| ())
        .map_err(|errno| Error::Argument { what: format!("no memory for an image: {errno}") })
    }

    /// Makes it longer; the file is that long already and its new part zero.
    pub fn grow(&self, medium: &Medium, heap_start: u64, heap_bytes: u64) -> Result<()> {
        let length = self.len();
        if heap_bytes > self.reserved {
            return Err(Error::Full { bytes: heap_bytes - length, heap_bytes: length });
        }
        if self.owned {
            match medium {
                Medium::Mapped(mapped) if !self.filled => {
                    self.map_file(mapped, heap_start + length, length, heap_bytes)?
                }
                Medium::Striped(striped) if !self.filled => self.map_stripes(striped, length, heap_bytes)?,
                _ => self.map_memory(length, heap_bytes)?,
            }
            if !self.filled {
                self.read_by_pages(heap_bytes);
            }
        }
        self.length.store(heap_bytes, Ordering::Release);
        Ok(())
    }

    /// Gives private pages back: what is read next is what the file has. The caller holds all sections for writing, and has
    /// brought everything to the file.
    pub fn drop_private(&self) {
        // Pages that are locked into memory stay.
        let _ = self.drop_pages(0, self.len());
    }

    /// Makes a range of whole pages what the file has there now: zeros. The caller owns it.
    pub fn emptied(&self, offset: u64, bytes: u64) {
        assert!(
            offset.is_multiple_of(4096) && offset.checked_add(bytes).is_some_and(|end| end <= self.len())
        );
        if self.drop_pages(offset, bytes).is_err() {
            self.write_words(offset, &vec![0; bytes as usize / 8]);
        }
    }

    /// Gives private pages of a range back, if they are of a file.
    fn drop_pages(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        if !self.is_mirror() {
            return Ok(());
        }
        // SAFETY: the range is in this image's private mapping of the file. Its bytes are the file's (the callers have applied
        // everything and nobody writes), or nobody reads them, so no reader, of a word of the directory say, can tell the difference.
        unsafe {
            rustix::mm::madvise(
                self.at(offset).cast(),
                usize::try_from(bytes).expect(NEVER),
                Advice::LinuxDontNeed,
            )
        }
    }

    /// Touches every page for writing, so that no transaction pays for it.
    pub fn prefault(&self) {
        // SAFETY: populating changes no byte.
        let _ = unsafe {
            rustix::mm::madvise(
                self.base.cast(),
                usize::try_from(self.len()).expect(NEVER),
                Advice::LinuxPopulateWrite,
            )
        };
    }

    /// Bytes of the heap.
    #[inline]
    pub fn len(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Most bytes that it can have.
    pub fn max(&self) -> u64 {
        self.reserved
    }

    /// The address of a byte of the heap; valid for as many bytes as the heap has from there.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.len());
        // SAFETY: callers have checked `offset` against `len`; the reservation covers it.
        unsafe { self.base.add(offset as usize) }
    }

    /// First word of a slab's directory entry: tag, section and state.
    #[inline]
    pub fn entry_word(&self, slab: u64) -> u64 {
        let offset = Entry::offset(slab);
        if offset + 16 > self.len() {
            return 0;
        }
        // SAFETY: in bounds (above), 8-byte aligned, and only ever stored to as a whole word while others may read; where an
        // object's bytes lie instead, what was read is not used.
        let word = unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.load(Ordering::Acquire);
        if slab >= self.bodies.load(Ordering::Relaxed) {
            return self.word_unless_body(slab, offset);
        }
        word
    }

    /// Reads a word of the directory, or 0 where the zone has none. Zones lose and get their directories while others read, and a
    /// stale pointer may lead anywhere. So the word counts only if no zone lost its directory between check and read.
    #[cold]
    fn word_unless_body(&self, slab: u64, offset: u64) -> u64 {
        loop {
            let before = self.changes.load(Ordering::Acquire);
            if self.is_body(slab / ZONE_SLABS) {
                return 0;
            }
            // SAFETY: as in `entry_word`, which checked the bounds.
            let word = unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.load(Ordering::Acquire);
            if self.changes.load(Ordering::Relaxed) == before {
                return word;
            }
        }
    }

    /// Returns true if a zone has no directory.
    pub fn is_body(&self, zone: u64) -> bool {
        let at = BODIES_OFFSET + zone / 64 * 8;
        if zone * ZONE_SLABS < self.bodies.load(Ordering::Relaxed) || zone >= BODIES_ZONES {
            return false;
        }
        debug_assert!(at + 8 <= self.len());
        // SAFETY: the superblock's slab is in every heap, and the word is aligned.
        let word = unsafe { AtomicU64::from_ptr(self.at(at).cast()) }.load(Ordering::Acquire);
        word >> (zone % 64) & 1 == 1
    }

    /// Zones from this one on may be without a directory.
    pub fn bodies_from(&self, zone: u64) {
        self.bodies.fetch_min(zone * ZONE_SLABS, Ordering::AcqRel);
    }

    /// Announces that a zone loses its directory: a reader that read an entry there meanwhile reads again.
    pub fn body_changes(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Second word: stride and run.
    #[inline]
    pub fn entry_rest(&self, slab: u64) -> u64 {
        let offset = Entry::offset(slab) + 8;
        if offset + 8 > self.len() {
            return 0;
        }
        // SAFETY: in bounds (above), 8-byte aligned, and only ever stored to as a whole word while others may read; where an
        // object's bytes lie instead, what was read is not used.
        let word = unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.load(Ordering::Acquire);
        if slab >= self.bodies.load(Ordering::Relaxed) {
            return self.word_unless_body(slab, offset);
        }
        word
    }

    /// Stores a directory entry; the caller owns the slab.
    pub fn set_entry(&self, slab: u64, entry: Entry) {
        let [word, rest] = entry.words();
        let offset = Entry::offset(slab);
        assert!(offset + 16 <= self.len());
        debug_assert!(!self.is_body(slab / ZONE_SLABS));
        // SAFETY: in bounds (above) and 8-byte aligned.
        unsafe {
            AtomicU64::from_ptr(self.at(offset).cast()).store(word, Ordering::Relaxed);
            AtomicU64::from_ptr(self.at(offset + 8).cast()).store(rest, Ordering::Relaxed);
        }
    }

    /// A slab's directory entry.
    pub fn entry(&self, slab: u64) -> Entry {
        Entry::from_words([self.entry_word(slab), self.entry_rest(slab)])
    }

    /// Reads a word without its lock; it is only ever stored to as a whole.
    pub fn word(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len());
        // SAFETY: in bounds and aligned (above).
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.load(Ordering::Relaxed)
    }

    /// Stores such a word; the caller holds its lock.
    pub fn set_word(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len());
        // SAFETY: in bounds and aligned (above).
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }.store(value, Ordering::Relaxed);
    }

    /// The bytes of a range that the caller has locked.
    #[inline(always)]
    pub fn bytes(&self, offset: u64, bytes: u64) -> &[u8] {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.len()), "image: {offset}+{bytes}");
        // SAFETY: in bounds (above), mapped readable; the caller holds the lock under which nobody writes there.
        unsafe { std::slice::from_raw_parts(self.at(offset), bytes as usize) }
    }

    /// As [`Image::bytes`], word by word; both are multiples of 8.
    #[inline(always)]
    pub fn words(&self, offset: u64, bytes: u64) -> Words<'_> {
        Words::new(self.bytes(offset, bytes))
    }

    /// Stores what a reader's image lacked. The caller is the only one who has these bytes so far.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.len()),
            "image: {offset}"
        );
        // SAFETY: in bounds (above), mapped writable; nobody reads them before the caller says that they are there.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// Puts words back.
    pub fn write_words(&self, offset: u64, words: &[u64]) {
        let bytes = words.len() as u64 * 8;
        assert!(
            offset.is_multiple_of(8) && offset.checked_add(bytes).is_some_and(|end| end <= self.len()),
            "image: {offset}+{bytes}"
        );
        for (at, word) in words.iter().enumerate() {
            // SAFETY: in bounds and aligned (above), mapped writable; the caller holds the lock of these bytes.
            unsafe { self.at(offset).cast::<u64>().add(at).write(word.to_le()) };
        }
    }

    /// Stores new lines of the page at `offset`.
    #[inline(always)]
    pub fn fill_lines(&self, offset: u64, lines: &PageLines<'_>) {
        assert!(
            offset.is_multiple_of(4096) && offset.checked_add(4096).is_some_and(|end| end <= self.len()),
            "image: page {offset}"
        );
        // SAFETY: in bounds (above), mapped writable; the caller holds the lock of these bytes, so nobody else refers to them, and
        // the new lines lie elsewhere.
        unsafe { log::fill_lines(self.at(offset), lines) }
    }

    /// Stores new bytes of objects: word by word if they are words, for the caller may have stored them a moment ago.
    #[inline(always)]
    pub fn overwrite(&self, offset: u64, values: &[u8]) {
        let bytes = values.len();
        assert!(
            offset.checked_add(bytes as u64).is_some_and(|end| end <= self.len()),
            "image: {offset}+{bytes}"
        );
        // SAFETY: in bounds (above), mapped writable; the caller holds the lock of these bytes, so nobody else refers to them, and
        // `values` lies elsewhere.
        unsafe {
            if (values.as_ptr().addr() | bytes).is_multiple_of(8) {
                let target = std::slice::from_raw_parts_mut(self.at(offset).cast::<[u8; 8]>(), bytes / 8);
                Words::new(values).store(target);
            } else {
                ptr::copy_nonoverlapping(values.as_ptr(), self.at(offset), bytes);
            }
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.watch = None;
        if self.owned {
            // SAFETY: the reservation is this image's, and nothing refers to it any more.
            let _ =
                unsafe { rustix::mm::munmap(self.base.cast(), usize::try_from(self.reserved).expect(NEVER)) };
        }
    }
}
