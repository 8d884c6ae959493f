// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to the kernel: operations that make a page absent, bring it back complete, and stop changes to it. Two
//! mechanisms implement them.
//!
//! ```text
//!            userfaultfd                                  mprotect
//! cover      register (MISSING, WP)                       no access
//! place      COPY, write-protected for a read             written through /proc/self/mem, then access granted
//! freeze     write-protect: still readable                no access: not even readable
//! contents   read in place                                read through /proc/self/mem
//! drop       DONTNEED                                     DONTNEED, after access was taken away
//! ```
//!
//! - **Flow** [`Pager::cover`] ──▶ [`Pager::place`] ⇄ [`Pager::freeze`] ──▶ [`Pager::contents`] ──▶ [`Pager::drop_frozen`]
//!   or [`Pager::thaw`] ──▶ [`Pager::uncover`]
//! - **Order** no thread ever sees an incomplete page: it appears by one change of its page table or mapping, after its
//!   contents are there, and it becomes inaccessible before they are dropped
//! - **Layout** with mprotect, neighbouring pages with the same access form one mapping, and the number of a process's
//!   mappings is limited (65,530). If many are in use, a fault brings in a whole unit of [`UNIT`] pages; if too many are,
//!   pages are evicted
//! - **Owner** a userfaultfd and a file of `/proc/self/mem` act on the process that opened them, so the child of a fork opens
//!   its own
//! - **Not here** the choice of pages ([`super::fault`], [`super::evict`])

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use memlift_ground::facility::{Facility, usable};

use super::kernel::{self, end};
use super::seat::{CLUSTER, Page, SEATS};
use super::shared::Owner;
use super::space::Pages;
use super::table::{CHUNK_BYTES, CHUNK_PAGES, Mode};
use super::{ARENA_BASE, Pager, address_of};
use crate::Result;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::uffd::{
    Errno, FEATURE_MOVE, FEATURE_SIGBUS, FEATURE_WP, Progress, REGISTER_MISSING, REGISTER_WP, USER_MODE_ONLY,
    Uffd,
};

/// Number of pages that come back together, and are armed together, while mappings are scarce: 64 KiB.
pub(super) const UNIT: usize = 16;

/// Number of refusals in a row (no mapping or no memory for a page) after which the job ends rather than hang.
const MOST_REFUSALS: u32 = 10_000;

/// Size of one staging slot of a seat, bytes.
const SLOT_BYTES: usize = CLUSTER * PAGE_BYTES;

/// Exit code when the kernel refuses a call that must succeed (`EX_OSERR`).
const KERNEL_EXIT_CODE: i32 = 71;

/// The way in which faults reach the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// userfaultfd in SIGBUS mode: the thread that faults runs the pager itself.
    Sigbus,
    /// userfaultfd with one thread that answers the faults of all; system calls may touch absent pages.
    Thread,
    /// `mprotect` and SIGSEGV, used if there is no userfaultfd: the thread that faults runs the pager itself.
    Protect,
}

impl Mechanism {
    /// Returns the best mechanism that this process may use, or `None`. `handler_thread` is true if the caller would run
    /// [`Pager::serve`] on a thread.
    pub fn available(handler_thread: bool) -> Option<Mechanism> {
        if usable(Facility::Uffd) && usable(Facility::UffdWp) {
            Some(Mechanism::Sigbus)
        } else if handler_thread && usable(Facility::UffdKernel) && usable(Facility::UffdWp) {
            Some(Mechanism::Thread)
        } else {
            Memory::works().then_some(Mechanism::Protect)
        }
    }
}

/// The mechanism in use, and its descriptors.
pub(super) struct Engine {
    pub mechanism: Mechanism,
    pub uffd: Uffd,
    memory: Memory,
    /// Two slots per seat, one for pages that come in and one for pages that leave. `None` if pages cannot be moved.
    slots: Option<Mapping>,
    pub pagemap: Pagemap,
    /// Mappings in use, in thousandths of the process's limit; counted only if the mechanism depends on that.
    mappings: AtomicUsize,
    /// Number of times in a row that the kernel had no mapping or no memory for a page.
    refusals: AtomicU32,
}

impl Engine {
    /// Makes an engine that is not attached yet.
    pub fn new(mechanism: Mechanism) -> Result<Engine> {
        let moves = mechanism != Mechanism::Protect && usable(Facility::UffdMove);
        let slots =
            if moves { Some(Mapping::reserve("pages on their way", 2 * SEATS * SLOT_BYTES)?) } else { None };
        if let Some(slots) = &slots {
            let _ = kernel::advise(slots.pointer().as_ptr() as usize, slots.bytes(), libc::MADV_NOHUGEPAGE);
        }
        Ok(Engine {
            mechanism,
            uffd: Uffd::closed(),
            memory: Memory::closed(),
            slots,
            pagemap: Pagemap::closed(),
            mappings: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
        })
    }

    /// Opens the descriptors for this process's memory, replacing inherited ones.
    pub fn attach(&self) -> Result<(), Errno> {
        let moves = if self.slots.is_some() { FEATURE_MOVE } else { 0 };
        match self.mechanism {
            Mechanism::Sigbus => self.uffd.open(USER_MODE_ONLY, FEATURE_SIGBUS | FEATURE_WP | moves)?,
            Mechanism::Thread => self.uffd.open(0, FEATURE_WP | moves)?,
            Mechanism::Protect => self.memory.open()?,
        }
        self.pagemap.open();
        match &self.slots {
            Some(slots) => {
                let address = slots.pointer().as_ptr() as usize;
                self.uffd.register(address, slots.bytes(), REGISTER_MISSING | REGISTER_WP)
            }
            None => Ok(()),
        }
    }

    /// Returns the address of a seat's slot in which the memory of leaving pages is reused for pages that come in, or `None` if
    /// pages cannot be moved.
    pub fn slot(&self, seat: usize) -> Option<usize> {
        self.slots.as_ref().map(|slots| slots.pointer().as_ptr() as usize + 2 * seat * SLOT_BYTES)
    }

    /// Returns the address of a seat's slot for pages that leave, or `None` if pages cannot be moved.
    pub fn staging(&self, seat: usize) -> Option<usize> {
        self.slot(seat).map(|slot| slot + SLOT_BYTES)
    }

    /// Closes the userfaultfd and the files of `/proc`.
    pub fn detach(&self) {
        self.uffd.close();
        self.memory.close();
        self.pagemap.close();
    }

    /// Returns true if a page is made absent by taking its access away, instead of by marks of the kernel.
    pub fn revokes_access(&self) -> bool {
        self.mechanism == Mechanism::Protect
    }

    /// Returns true if the process has so many mappings (over half of its limit) that pages must be evicted to have fewer.
    pub fn needs_fewer_mappings(&self) -> bool {
        self.mappings.load(Ordering::Relaxed) > 500
    }

    /// Returns true if the process has so many mappings (over a quarter of its limit) that a fault brings in a whole unit of
    /// pages.
    pub fn mappings_are_scarce(&self) -> bool {
        self.mappings.load(Ordering::Relaxed) > 250
    }

    /// Notes that the kernel had no mapping or no memory for a page, so that others are evicted first. Ends the job after too
    /// many refusals in a row.
    pub fn note_refusal(&self) {
        if self.revokes_access() {
            self.mappings.store(1000, Ordering::Relaxed);
        }
        if self.refusals.fetch_add(1, Ordering::Relaxed) > MOST_REFUSALS {
            end(
                if self.revokes_access() {
                    "memlift: no mappings are left to bring pages back; raise vm.max_map_count; the job ends\n"
                } else {
                    "memlift: the kernel has no memory to bring pages back (is a limit of the memory cgroup below the budget?); the job ends\n"
                },
                KERNEL_EXIT_CODE,
            );
        }
    }

    /// Ends a row of refusals, because a page came back: the kernel has mappings and memory again.
    pub fn clear_refusals(&self) {
        if self.was_refused() {
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    /// Returns true if the kernel refused the last page that it was asked for.
    pub fn was_refused(&self) -> bool {
        self.refusals.load(Ordering::Relaxed) > 0
    }

    /// Counts the process's mappings, if the mechanism depends on that.
    pub fn count_mappings(&self) {
        if self.revokes_access() {
            let share = kernel::mappings() * 1000 / kernel::mappings_limit();
            self.mappings.store(share, Ordering::Relaxed);
        }
    }
}

/// The process's own memory as a file, which can be read and written regardless of the access that the program has.
struct Memory {
    descriptor: AtomicI32,
}

impl Memory {
    const fn closed() -> Memory {
        Memory { descriptor: AtomicI32::new(-1) }
    }

    fn open(&self) -> Result<(), Errno> {
        self.close();
        self.descriptor
            .store(kernel::open(c"/proc/self/mem", libc::O_RDWR | libc::O_CLOEXEC)?, Ordering::Release);
        Ok(())
    }

    fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            kernel::close(descriptor);
        }
    }

    /// Returns true if a page without access can be written through the file. A kernel may be built or started so that it
    /// cannot.
    fn works() -> bool {
        let memory = Memory::closed();
        let Ok(page) = Mapping::reserve("a try", PAGE_BYTES) else { return false };
        let (address, mut word) = (page.pointer().as_ptr() as usize, [0; 2]);
        let wrote = kernel::protect(address, PAGE_BYTES, libc::PROT_NONE).is_ok()
            && memory.open().is_ok()
            // SAFETY: the page belongs to this function, and the source is an array of two bytes.
            && unsafe { memory.write(address, [3, 5].as_ptr(), 2) } == 2
            && memory.read(address, &mut word) == 2;
        memory.close();
        wrote && word == [3, 5]
    }

    /// Writes to memory of this process. Returns the number of bytes written.
    ///
    /// # Safety
    ///
    /// `source` is readable for `bytes` bytes, and nothing in the program relies on the contents of the target.
    unsafe fn write(&self, target: usize, source: *const u8, bytes: usize) -> usize {
        let mut done = 0;
        while done < bytes {
            // SAFETY: the caller promises `bytes` readable bytes at `source`, of which `done` are written.
            let wrote = unsafe {
                let descriptor = self.descriptor.load(Ordering::Relaxed);
                libc::syscall(libc::SYS_pwrite64, descriptor, source.add(done), bytes - done, target + done)
            };
            match usize::try_from(wrote) {
                Ok(wrote @ 1..) => done += wrote,
                _ => break,
            }
        }
        done
    }

    /// Reads memory of this process. Returns the number of bytes read.
    fn read(&self, source: usize, target: &mut [u8]) -> usize {
        let mut done = 0;
        while done < target.len() {
            let rest = &mut target[done..];
            // SAFETY: `rest` is borrowed mutably for the call, and its length is passed.
            let got = unsafe {
                let descriptor = self.descriptor.load(Ordering::Relaxed);
                libc::syscall(libc::SYS_pread64, descriptor, rest.as_mut_ptr(), rest.len(), source + done)
            };
            match usize::try_from(got) {
                Ok(got @ 1..) => done += got,
                _ => break,
            }
        }
        done
    }
}

/// The file `/proc/self/pagemap`, which has one word for each page of this process.
pub(super) struct Pagemap {
    descriptor: AtomicI32,
}

impl Pagemap {
    const fn closed() -> Pagemap {
        Pagemap { descriptor: AtomicI32::new(-1) }
    }

    /// Opens the file, replacing an open one. If that fails, every later read of it fails.
    fn open(&self) {
        self.close();
        let opened = kernel::open(c"/proc/self/pagemap", libc::O_RDONLY | libc::O_CLOEXEC);
        self.descriptor.store(opened.unwrap_or(-1), Ordering::Release);
    }

    fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Ordering::AcqRel);
        if descriptor >= 0 {
            kernel::close(descriptor);
        }
    }

    /// Returns the word of the page at `address`, or `None` if it cannot be read.
    pub fn word(&self, address: usize) -> Option<u64> {
        let mut word = [0];
        self.words(address, &mut word).then_some(word[0])
    }

    /// Reads the words of the pages from `address` on. Returns false and fills `words` with zeros if they cannot be read.
    pub fn words(&self, address: usize, words: &mut [u64]) -> bool {
        let descriptor = self.descriptor.load(Ordering::Relaxed);
        let bytes = size_of_val(words);
        // SAFETY: `words` is borrowed mutably for the call, and its length is passed.
        let got = unsafe {
            libc::syscall(
                libc::SYS_pread64,
                descriptor,
                words.as_mut_ptr(),
                bytes,
                address / PAGE_BYTES * size_of::<u64>(),
            )
        };
        let whole = got == bytes as i64;
        if !whole {
            words.fill(0);
        }
        whole
    }
}

impl Pager {
    /// Makes absent pages of the chunks fault from now on. The caller has made the chunks busy, or no thread has access to
    /// them.
    pub(super) fn cover(&self, chunk: usize, chunks: usize) -> Result<(), Errno> {
        let (address, bytes) = (address_of(chunk * CHUNK_PAGES), chunks * CHUNK_BYTES);
        if self.engine.revokes_access() {
            kernel::protect(address, bytes, libc::PROT_NONE)
        } else {
            self.engine.uffd.register(address, bytes, REGISTER_MISSING | REGISTER_WP)
        }
    }

    /// Makes absent pages of the busy chunk read as zeros from now on, without a fault.
    pub(super) fn uncover(&self, chunk: usize) -> Result<(), Errno> {
        if self.engine.revokes_access() {
            self.show(chunk * CHUNK_PAGES, CHUNK_PAGES, true)
        } else {
            self.engine.uffd.unregister(address_of(chunk * CHUNK_PAGES), CHUNK_BYTES)
        }
    }

    /// Gives the program the access that it asked for, but no write access if `writable` is false.
    fn show(&self, page: usize, pages: usize, writable: bool) -> Result<(), Errno> {
        let access = |page: usize| {
            let prot = i32::from(self.table.access(page)) & 7;
            if writable { prot } else { prot & !libc::PROT_WRITE }
        };
        let (mut first, last) = (page, page + pages);
        while first < last {
            let (prot, start) = (access(first), first);
            while first < last && access(first) == prot {
                first += 1;
            }
            kernel::protect(address_of(start), (first - start) * PAGE_BYTES, prot)?;
        }
        Ok(())
    }

    /// Copies pages from plain memory to their place in the arena, where each appears complete. With `protect`, a later write
    /// to them faults.
    ///
    /// # Safety
    ///
    /// `source` is readable for `pages` pages; the target pages are absent, and this thread has made them busy.
    pub(super) unsafe fn place(
        &self,
        page: usize,
        source: *const Page,
        pages: usize,
        protect: bool,
    ) -> Progress {
        if self.engine.revokes_access() {
            // SAFETY: the caller promises `pages` readable pages at `source`, and absent, busy target pages.
            let bytes =
                unsafe { self.engine.memory.write(address_of(page), source.cast(), pages * PAGE_BYTES) };
            return self.appear(page, bytes / PAGE_BYTES, !protect);
        }
        let mut done = 0;
        loop {
            let bytes = (pages - done) * PAGE_BYTES;
            let (target, source) = (address_of(page + done), source.wrapping_add(done).cast());
            // SAFETY: the caller promises `pages` readable pages at `source`, and absent, busy target pages.
            let step = unsafe { self.engine.uffd.copy(target, source, bytes, protect) };
            done += step.bytes / PAGE_BYTES;
            if done >= pages || (step.error != libc::EAGAIN && step.error != 0) {
                return Progress { bytes: done * PAGE_BYTES, error: step.error };
            }
        }
    }

    /// Does the same as [`Pager::place`] with pages of zeros.
    pub(super) fn place_zeros(&self, page: usize, pages: usize) -> Progress {
        /// Pages of zeros.
        static ZEROS: [Page; 16] = [[0; PAGE_BYTES]; 16];
        if self.engine.revokes_access() {
            return self.appear(page, pages, true);
        }
        let mut done = 0;
        while done < pages {
            let part = (pages - done).min(ZEROS.len());
            // SAFETY: the zeros are a constant; the caller has made the target pages busy, and they are absent.
            let step = unsafe { self.place(page + done, ZEROS.as_ptr(), part, false) };
            done += step.bytes / PAGE_BYTES;
            if step.error != 0 {
                return Progress { bytes: done * PAGE_BYTES, error: step.error };
            }
        }
        Progress { bytes: done * PAGE_BYTES, error: 0 }
    }

    /// Gives access to pages whose contents are complete. If that fails, the pages become absent again.
    fn appear(&self, page: usize, pages: usize, writable: bool) -> Progress {
        let error = match self.show(page, pages, writable) {
            Ok(()) if pages > 0 => {
                return Progress { bytes: pages * PAGE_BYTES, error: 0 };
            }
            Ok(()) => libc::EIO,
            Err(error) => error,
        };
        self.hide(Pages { first: page, count: pages });
        kernel::drop_range(address_of(page), pages * PAGE_BYTES);
        Progress { bytes: 0, error }
    }

    /// Takes the access to pages of armed chunks away before they are dropped, if the mechanism makes pages absent in that
    /// way.
    pub(super) fn hide(&self, pages: Pages) {
        if !self.engine.revokes_access() || pages.count == 0 {
            return;
        }
        match kernel::protect(pages.address(), pages.bytes(), libc::PROT_NONE) {
            Ok(()) => {}
            Err(libc::ENOMEM) => end(
                "memlift: no mappings are left to put pages away; raise vm.max_map_count; the job ends\n",
                KERNEL_EXIT_CODE,
            ),
            Err(error) => self.end_refused("put pages away", error),
        }
    }

    /// Stops all changes to present pages, which are busy or which no thread works on. With userfaultfd they stay readable.
    pub(super) fn freeze(&self, page: usize, pages: usize) -> Result<(), Errno> {
        if self.engine.revokes_access() {
            kernel::protect(address_of(page), pages * PAGE_BYTES, libc::PROT_NONE)
        } else {
            self.engine.uffd.protect(address_of(page), pages * PAGE_BYTES, true)
        }
    }

    /// Gives the program access to present, busy pages again: for reading and writing, or for reading only.
    pub(super) fn thaw(&self, page: usize, pages: usize, writable: bool) -> Result<(), Errno> {
        if self.engine.revokes_access() {
            self.show(page, pages, writable)
        } else if writable {
            self.engine.uffd.protect(address_of(page), pages * PAGE_BYTES, false)
        } else {
            Ok(())
        }
    }

    /// Does the same as [`Pager::thaw`] for pages that this thread froze. If the kernel refuses, the job ends.
    pub(super) fn thaw_again(&self, page: usize, pages: usize, writable: bool) {
        match self.thaw(page, pages, writable) {
            Ok(()) => {}
            Err(libc::ENOMEM) => end(
                "memlift: no mappings are left to give a page back; raise vm.max_map_count; the job ends\n",
                KERNEL_EXIT_CODE,
            ),
            Err(error) => self.end_refused("give a page back", error),
        }
    }

    /// Returns the contents of a present, busy, frozen page: in place, or copied to `room`.
    pub(super) fn contents<'a>(&'a self, page: usize, room: &'a mut Page) -> &'a Page {
        if let Some(contents) = self.contents_in_place(page) {
            return contents;
        }
        if self.engine.memory.read(address_of(page), room) != PAGE_BYTES {
            end("memlift: a page of the arena cannot be read; the job ends\n", KERNEL_EXIT_CODE);
        }
        room
    }

    /// Does the same as [`Pager::contents`], but in place only. Returns `None` if the page cannot be read in place.
    pub(super) fn contents_in_place(&self, page: usize) -> Option<&Page> {
        if self.engine.revokes_access() {
            return None;
        }
        // At a page that is gone, the thread that answers faults would wait for itself.
        if self.engine.mechanism == Mechanism::Thread
            && self.table.chunk(page / CHUNK_PAGES).mode() == Mode::Armed
            && self.owner(page) == Owner::None
        {
            Pager::end_gone();
        }
        // SAFETY: the page is present, readable and write-protected. It is busy, so only this thread, which claimed it, may
        // change or drop it.
        Some(unsafe { &*(address_of(page) as *const Page) })
    }

    /// Drops one frozen page.
    pub(super) fn drop_frozen(&self, page: usize) {
        self.hide(Pages { first: page, count: 1 });
        kernel::drop_range(address_of(page), PAGE_BYTES);
    }

    /// Does `mprotect` for held pages. Absent pages stay absent.
    pub(super) fn grant(&self, pages: Pages, prot: i32) -> Result<(), Errno> {
        debug_assert!(pages.address() >= ARENA_BASE);
        if !self.engine.revokes_access() {
            return kernel::protect(pages.address(), pages.bytes(), prot);
        }
        for (chunk, part) in pages.by_chunk() {
            let record = self.table.chunk(chunk);
            let mode = match record.mode() {
                Mode::Busy => record.mode_before(),
                mode => mode,
            };
            match mode {
                Mode::Native => kernel::protect(part.address(), part.bytes(), prot)?,
                Mode::Armed => {
                    let tag = |page: usize| {
                        let entry = self.table.parked(page);
                        (entry.is_present(), entry.is_protected())
                    };
                    let mut page = part.first;
                    while page < part.end() {
                        let (start, (present, protected)) = (page, tag(page));
                        while page < part.end() && tag(page) == (present, protected) {
                            page += 1;
                        }
                        if present {
                            let prot = if protected { prot & !libc::PROT_WRITE } else { prot };
                            kernel::protect(address_of(start), (page - start) * PAGE_BYTES, prot)?;
                        }
                    }
                }
                Mode::Guarded | Mode::Vacant | Mode::Busy => {}
            }
        }
        Ok(())
    }
}
