// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fault: brings the page back from wherever its contents are, and in a run of faults also the pages after it.
//!
//! - **Flow** mode of the chunk ──guarded──▶ [`Pager::open`] · ──armed──▶ entry: claim ──▶ make room ──▶ unpack into the seat
//!   ──▶ COPY (write-protected after a read fault: the page's copy stays valid) ──▶ publish
//! - **Order** a page is charged before the kernel allocates it. The further pages of a cluster are claimed only if that
//!   needs no waiting
//! - **Not here** the callers ([`super::signal`], [`super::pin`]); the ways to make room ([`super::room`])

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

use memlift_ground::observe::{self, Work};
use memlift_kernels::pages::{Method, PAGE_BYTES, fill};
use memlift_spec::formats::trace;

use super::engine::{Mechanism, UNIT};
use super::entry::{Entry, MAX_LEFT, MAX_PINS, Tag};
use super::room::Room;
use super::seat::{CLUSTER, Page, Seat};
use super::shared::Owner;
use super::stream::Run;
use super::table::{CHUNK_PAGES, Mode};
use super::{Fault, Pager, kernel, store_handle};
use crate::block::Counter;
use crate::line::Line;
use crate::spill::Slot;
use crate::uffd::{Errno, Progress};

/// Exit code if the copy of a page differs from what was stored (`EX_SOFTWARE`).
const CORRUPT_EXIT_CODE: i32 = 70;

/// Exit code if the kernel refuses a call that must succeed (`EX_OSERR`).
const KERNEL_EXIT_CODE: i32 = 71;

/// Number of faults in a row on one page without an answer after which the job ends; contention does not explain that many.
const MOST_RETRIES: u32 = 1 << 20;

/// Number of counters of such faults; a page's counter is chosen by the low bits of its number.
pub(super) const UNANSWERED: usize = 64;

/// A stream that has brought in more than this part of the present pages is not kept in memory: 1/4.
const PASSING_SHARE: usize = 4;

/// The request of a fault.
#[derive(Clone, Copy)]
struct Want {
    write: bool,
    /// Upper bound of the pages to bring in together.
    window: usize,
    /// True if the pages shall not stay ([`Pager::passes`]).
    passes: bool,
}

/// Source of the contents of absent pages; the pages of one run have the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Packed,
    Words,
    Spilled,
    Nothing,
}

fn kind_of(entry: Entry) -> Option<Kind> {
    match entry.tag() {
        Tag::Stored => Some(Kind::Packed),
        Tag::Filled | Tag::Word => Some(Kind::Words),
        Tag::Spilled => Some(Kind::Spilled),
        Tag::Empty => Some(Kind::Nothing),
        _ => None,
    }
}

impl Pager {
    /// Answers a fault at `address`, for fault handlers: all signals are blocked, and no arena memory is touched.
    ///
    /// # Safety
    ///
    /// The caller is the handler of a fault at that address, and all signals are blocked during the call.
    pub unsafe fn fault(&self, address: usize, write: bool) -> Fault {
        let Some(page) = self.page_of(address) else { return Fault::NotMine };
        self.counts.faults.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        // With a thread that answers faults, the thread that waits gets its signals.
        let since = (self.engine.mechanism != Mechanism::Thread).then_some(began);
        let fault = self.answer_since(page, write, since);
        self.job.count(Counter::Faults, 1);
        self.job.count(Counter::FaultNs, began.elapsed().as_nanos() as u64);
        fault
    }

    /// Does the same as [`Pager::fault`] for a page, for a caller that tries again at once.
    pub(super) fn answer(&self, page: usize, write: bool) -> Fault {
        self.answer_since(page, write, None)
    }

    /// Does the same as [`Pager::fault`] for a page; `since` is for [`Seat::handler_since`]. If the page faults again and again
    /// without an answer, the job ends.
    fn answer_since(&self, page: usize, write: bool, since: Option<Instant>) -> Fault {
        let fault = self.answer_once(page, write, since);
        let last = &self.unanswered[page % UNANSWERED];
        match fault {
            Fault::Retry => {
                let seen = last.load(Ordering::Relaxed);
                let count = if (seen >> 32) as usize == page { (seen as u32).saturating_add(1) } else { 1 };
                last.store((page as u64) << 32 | u64::from(count), Ordering::Relaxed);
                if count >= MOST_RETRIES {
                    kernel::end(
                        "memlift: a page faults again and again though it should be there (is the kernel out of memory?); the job ends rather than hang\n",
                        KERNEL_EXIT_CODE,
                    );
                }
            }
            // The counter is written only if it is not zero, because its cache line is shared by all threads.
            _ if last.load(Ordering::Relaxed) != 0 => last.store(0, Ordering::Relaxed),
            _ => {}
        }
        fault
    }

    fn answer_once(&self, page: usize, write: bool, since: Option<Instant>) -> Fault {
        let chunk = page / CHUNK_PAGES;
        match self.table.chunk(chunk).mode() {
            Mode::Vacant => Fault::NotMine,
            Mode::Busy => {
                self.table.wait_chunk(chunk);
                Fault::Retry
            }
            _ if !self.table.allows(page, write) => Fault::NotMine,
            Mode::Native => Fault::Retry,
            Mode::Guarded => {
                let mut seat = self.seats.take();
                seat.handler_since = since;
                self.open(&mut seat, chunk);
                Fault::Retry
            }
            Mode::Armed => self.fetch(page, write, since),
        }
    }

    /// Handles the first touch of a guarded chunk: it becomes native if there is room for all of it, else armed and empty.
    fn open(&self, seat: &mut Seat, chunk: usize) {
        let charge = self.native_charge(chunk);
        self.job.await_watcher(charge);
        if !self.table.chunk(chunk).claim(Mode::Guarded, false) {
            return;
        }
        self.job.slacken(charge);
        if self.job.try_charge(charge, self.native_reserve_bytes()) {
            if self.uncover(chunk).is_ok() {
                self.now_native(chunk);
                self.table.settle(chunk, Mode::Native);
                return;
            }
            self.job.uncharge(charge);
        }
        let armed = self.charge_tables(seat, PAGE_BYTES);
        if armed {
            self.refuse_huge_pages(chunk);
            self.table.open(chunk);
        }
        self.table.settle(chunk, if armed { Mode::Armed } else { Mode::Guarded });
    }

    fn fetch(&self, page: usize, write: bool, since: Option<Instant>) -> Fault {
        let mut seat = self.seats.take();
        seat.handler_since = since;
        let entry = self.table.load(page);
        match entry.tag() {
            Tag::Busy => {
                drop(seat);
                self.table.wait(page);
                Fault::Retry
            }
            // Another thread has brought the page in meanwhile.
            Tag::Dirty => Fault::Retry,
            Tag::Clean | Tag::Shared if !write => Fault::Retry,
            Tag::Clean | Tag::Shared => self.dirty(&mut seat, page, entry),
            Tag::Empty | Tag::Stored | Tag::Filled | Tag::Word | Tag::Spilled => {
                self.bring(&mut seat, page, entry, write)
            }
            // The chunk is no longer armed.
            Tag::Closed => Fault::Retry,
            Tag::Unknown => Fault::NotMine,
        }
    }

    /// Handles the first write to a protected page: its copy is freed. If a fork shares the page, the kernel copies it for
    /// this write, and the copy is charged before.
    fn dirty(&self, seat: &mut Seat, page: usize, entry: Entry) -> Fault {
        if !self.table.claim(page, entry) {
            return Fault::Retry;
        }
        let asks = entry.tag() == Tag::Shared || self.forked();
        let copied = asks && self.owner(page) != Owner::Alone;
        if copied {
            if self.make_room(seat, PAGE_BYTES, true) != Room::Made {
                self.table.publish(page, entry);
                return Fault::Retry;
            }
            self.job.unshare(PAGE_BYTES);
        }
        // Neighbouring pages that are no longer shared are made writable together with this one.
        let mut old = [Entry::EMPTY; CLUSTER];
        let pages = if copied || entry.tag() == Tag::Clean { 1 } else { self.claim_unshared(page, &mut old) };
        let thawed = self.thaw(page, pages, true);
        for (index, old) in old.iter().enumerate().take(pages).skip(1) {
            self.table.publish(page + index, if thawed.is_ok() { old.unshared() } else { *old });
        }
        if let Err(error) = thawed {
            self.table.publish(page, entry);
            return self.retry("make a page writable", error);
        }
        self.free_copy(entry);
        // A page on probation stays on probation, because most programs write soon after they read.
        let heat = if entry.heat() == 0 { 0 } else { (entry.heat() + 1).min(2) };
        self.table.publish(page, Entry::new(Tag::Dirty, 0).with_heat(heat).with_pins(entry.pins()));
        Fault::Done
    }

    /// Brings a page back, and in a run of faults also the pages after it.
    fn bring(&self, seat: &mut Seat, page: usize, entry: Entry, write: bool) -> Fault {
        let run = self.streams.at(page);
        let (first, window) = if self.engine.mappings_are_scarce() {
            self.unit_around(page, entry, write, run.window)
        } else {
            (page, run.window)
        };
        let entry = if first == page { entry } else { self.table.load(first) };
        let want = Want { write, window, passes: !write && self.passes(run) };
        match self.bring_run(seat, first, entry, want) {
            // The kernel may keep the neighbouring pages apart: try the page alone.
            (Fault::Retry, 2..) => {
                self.streams.advance(run, page, 1);
                let entry = self.table.load(page);
                self.bring_run(seat, page, entry, Want { write, window: 1, passes: false }).0
            }
            (fault, pages) => {
                self.streams.advance(run, first, pages.max(1));
                if self.engine.was_refused() {
                    self.evict(seat, UNIT * PAGE_BYTES, UNIT);
                }
                fault
            }
        }
    }

    /// Returns true if a stream is so long that pages behind it are better evicted than kept: it has brought in a good part
    /// of the number of pages that can be present.
    fn passes(&self, run: Run) -> bool {
        run.window == CLUSTER && run.length * PASSING_SHARE > self.counts.present.load(Ordering::Relaxed)
    }

    /// Extends a fault to the page's unit, while mappings are scarce. Returns the first page and the number of pages to bring
    /// in: those of the unit that have the same source.
    fn unit_around(&self, page: usize, entry: Entry, write: bool, window: usize) -> (usize, usize) {
        let (kind, mut first) = (kind_of(entry), page);
        while first % UNIT != 0
            && kind_of(self.table.load(first - 1)) == kind
            && kind != Some(Kind::Spilled)
            && self.table.allows(first - 1, write)
        {
            first -= 1;
        }
        let end = (page / UNIT + 1) * UNIT;
        (first, (end - first).max(page - first + window).min(CLUSTER))
    }

    /// Brings back up to a window of pages with the same source. Returns the number of pages that it tried.
    fn bring_run(&self, seat: &mut Seat, page: usize, entry: Entry, want: Want) -> (Fault, usize) {
        let Want { write, window, passes } = want;
        let Some(kind) = kind_of(entry) else { return (Fault::Retry, 0) };
        let mut old = [Entry::EMPTY; CLUSTER];
        if !self.table.claim(page, entry) {
            return (Fault::Retry, 0);
        }
        // This is checked after the claim, because the page may have been unmapped before it.
        if !self.table.allows(page, write) {
            self.table.publish(page, entry);
            return (Fault::Retry, 0);
        }
        old[0] = entry;
        let most = window.min(CHUNK_PAGES - page % CHUNK_PAGES);
        let mut pages = 1;
        while pages < most {
            let next = self.table.load(page + pages);
            // Pages from the spill file must be neighbours there, so that one read brings them in.
            let follows = kind != Kind::Spilled || next.slot() == old[pages - 1].slot().map(Slot::next);
            if kind_of(next) != Some(kind) || !follows || !self.table.claim(page + pages, next) {
                break;
            }
            if !self.table.allows(page + pages, write) {
                self.table.publish(page + pages, next);
                break;
            }
            old[pages] = next;
            pages += 1;
        }
        if pages > seat.reached
            && kind != Kind::Nothing
            && self.charge_tables(seat, (pages - seat.reached) * PAGE_BYTES)
        {
            // Making room may have used, and charged, more pages of the seat.
            seat.reached = seat.reached.max(pages);
        }
        let moved = match kind {
            Kind::Nothing => 0,
            _ => self.recycle(seat, pages, passes.then_some(page)),
        };
        let mut room = if moved >= pages {
            Room::Made
        } else {
            self.make_room(seat, (pages - moved) * PAGE_BYTES, pages == 1)
        };
        if room != Room::Made && pages > 1 {
            for (index, old) in old.iter().enumerate().take(pages).skip(1) {
                self.table.publish(page + index, *old);
            }
            pages = 1;
            room = if moved > 0 { Room::Made } else { self.make_room(seat, PAGE_BYTES, true) };
        }
        if room != Room::Made {
            self.table.publish(page, old[0]);
            return (Fault::Retry, 1);
        }
        if kind != Kind::Nothing {
            self.job.note_return(self.absence_bytes(old[0]), pages as u64);
        }
        let stays = !passes && self.shall_stay(old[0], window > 1);
        let recorded = match kind {
            Kind::Packed | Kind::Words => self.begin_record(&old[..pages]),
            Kind::Spilled | Kind::Nothing => None,
        };
        // The copy of a page that is only read and will not stay is kept, because dropping the page is then cheap. For other
        // pages the memory is better used for pages than for copies. A run from the spill file keeps its slots there; a
        // single page gives its slot up.
        let keep = !write
            && match kind {
                Kind::Packed => !stays,
                Kind::Spilled => window > 1,
                Kind::Words | Kind::Nothing => false,
            };
        let (progress, changed) = match kind {
            Kind::Nothing => (self.place_zeros(page, pages), 0),
            _ => {
                let mut numbers = [0; CLUSTER];
                for (index, number) in numbers.iter_mut().enumerate() {
                    *number = page + index;
                }
                self.unpack(seat, &numbers[..pages], &old[..pages]);
                self.place_cluster(seat, page, pages, keep, moved)
            }
        };
        if let Some((began_ns, read)) = recorded {
            let (read, written, parts) = (read as u64, (pages * PAGE_BYTES) as u64, pages as u64);
            let work = Work { kind: trace::Kind::PageIn, parameter: 0, read, written, parts };
            observe::work(began_ns, &work);
        }
        if window == 1 {
            self.update_credit(old[0]);
        }
        let keep = if keep { !changed } else { 0 };
        (self.settle_pages(page, &old[..pages], progress, keep, stays), pages)
    }

    /// Returns the time and the packed bytes of these pages, for `memlift record`. Returns `None` if nothing records.
    fn begin_record(&self, old: &[Entry]) -> Option<(u64, usize)> {
        let began_ns = observe::work_begins()?;
        Some((began_ns, old.iter().map(|entry| self.packed_bytes(*entry)).sum()))
    }

    /// Returns the bytes of the compressed copy of a page, or 0 if the entry has none.
    pub(super) fn packed_bytes(&self, entry: Entry) -> usize {
        let handle = if entry.tag() == Tag::Stored { store_handle(entry) } else { None };
        handle.map_or(0, |handle| self.store.get(handle, <[u8]>::len))
    }

    /// Publishes the entries of a cluster's pages. `keep` has a bit for each page whose copy stays. The pages are put on
    /// probation unless they `stay`.
    fn settle_pages(&self, page: usize, old: &[Entry], progress: Progress, keep: u64, stays: bool) -> Fault {
        let done = (progress.bytes / PAGE_BYTES).min(old.len());
        self.table.chunk(page / CHUNK_PAGES).present.fetch_add(done as u32, Ordering::AcqRel);
        self.counts.present.fetch_add(done, Ordering::Relaxed);
        self.counts.pages_in.fetch_add(done as u64, Ordering::Relaxed);
        for (index, old) in old.iter().enumerate() {
            let new = if index >= done {
                *old
            } else {
                let heat = match old.tag() {
                    Tag::Empty => 1,
                    _ if stays => 2,
                    _ => {
                        self.probation.enter(page + index);
                        0
                    }
                };
                let pins = old.pins();
                if old.tag() == Tag::Stored {
                    self.job.compressed_access();
                }
                if keep >> index & 1 != 0 {
                    old.slot().map_or(Entry::new(Tag::Clean, old.handle()), Entry::filed).with_heat(heat)
                } else {
                    self.free_copy(*old);
                    Entry::new(Tag::Dirty, 0).with_heat(heat).with_pins(pins)
                }
            };
            self.table.publish(page + index, new);
        }
        let missing = (old.len() - done) * PAGE_BYTES;
        if missing > 0 {
            self.job.uncharge(missing);
        }
        match (done, progress.error) {
            (1.., _) => {
                self.engine.clear_refusals();
                Fault::Done
            }
            // The page is present without any entry that says so: the program used a system call that bypassed the pager.
            (_, libc::EEXIST) => kernel::end(
                "memlift: a page of the arena was filled by somebody else; the program's memory is not to be trusted\n",
                CORRUPT_EXIT_CODE,
            ),
            // A run may extend over mappings that the kernel keeps apart; its first page is then tried alone.
            _ if old.len() > 1 => Fault::Retry,
            (_, error) => self.retry("bring a page back", error),
        }
    }

    /// Returns [`Fault::Retry`] if the kernel's error may go away; ends the job if not.
    fn retry(&self, act: &str, error: Errno) -> Fault {
        match error {
            // There is no mapping or no memory. Other pages are evicted and this is tried again, a limited number of times.
            libc::ENOMEM | libc::EIO => self.engine.note_refusal(),
            // The process is being killed.
            libc::ESRCH | libc::ENOSPC => {}
            // Mappings are being changed at the same time.
            0 | libc::EAGAIN | libc::EINTR | libc::EBUSY | libc::ENOENT => {}
            error => self.end_refused(act, error),
        }
        Fault::Retry
    }

    /// Returns the bytes that came in since an absent page left. For entries that have no room for the time, they are
    /// estimated by the rounds of the clock hand since then.
    fn absence_bytes(&self, entry: Entry) -> u64 {
        let pages = match entry.left() {
            Some(left) => (self.steps().wrapping_sub(left) & MAX_LEFT) << self.step_shift(),
            None => {
                let rounds = self.round.load(Ordering::Relaxed).wrapping_sub(entry.round()) & MAX_PINS;
                rounds * self.counts.present.load(Ordering::Relaxed) as u64
            }
        };
        pages * PAGE_BYTES as u64
    }

    /// Returns true if an absent page that is needed now shall stay. `run` is true if it comes in a run.
    fn shall_stay(&self, entry: Entry, run: bool) -> bool {
        match entry.left() {
            Some(left) => self.probation.admit(self.steps().wrapping_sub(left) & MAX_LEFT, run),
            // A single page from the spill file stays, because reading it takes long.
            None => entry.tag() == Tag::Spilled && !run,
        }
    }

    /// Returns true if an absent page left in the current round of the hand or in the one before.
    pub(super) fn left_soon(&self, entry: Entry) -> bool {
        let round = self.round.load(Ordering::Relaxed);
        entry.is_away() && round.wrapping_sub(entry.round()) & MAX_PINS <= 1
    }

    /// Writes the contents of claimed pages to the seat's buffers: absent pages from wherever their contents are, present
    /// ones as they are.
    pub(super) fn unpack(&self, seat: &mut Seat, pages: &[usize], old: &[Entry]) {
        self.unpack_from(seat, pages, old, |_| None);
    }

    /// Does the same as [`Pager::unpack`]; `staged` returns the staging slot and the index of a present page that was moved
    /// out.
    pub(super) fn unpack_from(
        &self,
        seat: &mut Seat,
        pages: &[usize],
        old: &[Entry],
        staged: impl Fn(usize) -> Option<(usize, u8)>,
    ) {
        let (packer, _, room) = seat.parts();
        let (mut dense, mut read) = (false, 0);
        for (index, (page, entry)) in pages.iter().zip(old).enumerate() {
            if index < read {
                continue;
            }
            if entry.tag() == Tag::Spilled {
                read = index + self.unspill(&pages[index..], &old[index..], &mut room[index..]);
                continue;
            }
            let target = &mut room[index];
            let whole = match entry.tag() {
                Tag::Dirty | Tag::Shared => {
                    match staged(index) {
                        Some((slot, index)) => target.copy_from_slice(self.staged(slot, index)),
                        None => self.copy_out(*page, target),
                    }
                    true
                }
                Tag::Filled => {
                    fill(entry.word(), target);
                    true
                }
                Tag::Word => store_handle(*entry).is_some_and(|handle| {
                    self.store.get(handle, |word| {
                        word.try_into().map(|word| fill(u64::from_le_bytes(word), target)).is_ok()
                    })
                }),
                Tag::Stored => store_handle(*entry).is_some_and(|handle| {
                    self.store.get(handle, |packed| {
                        dense |= Method::of(packed).is_some_and(Method::is_dense);
                        packer.unpack(packed, target).is_ok()
                    })
                }),
                _ => false,
            };
            if !whole {
                corrupt();
            }
        }
        if dense {
            self.count_workspace(seat, true);
        }
    }

    /// Reads the first of these pages, and those after it whose slots follow in the spill file. Returns their number.
    fn unspill(&self, pages: &[usize], old: &[Entry], room: &mut [Page]) -> usize {
        let follows = |index: &usize| {
            pages[*index] == pages[index - 1] + 1
                && old[*index].tag() == Tag::Spilled
                && old[*index].slot() == old[index - 1].slot().map(Slot::next)
        };
        let run = 1 + (1..pages.len().min(old.len())).take_while(follows).count();
        let read = self.spill.file().zip(old[0].slot());
        let began = Instant::now();
        let read = read.map(|(spill, slot)| spill.read_run(slot, pages[0] as u64, &mut room[..run]));
        self.job.count(Counter::UnspillNs, began.elapsed().as_nanos() as u64);
        if let Some(Err(error)) = read {
            let mut line = Line::new();
            let _ = writeln!(
                line,
                "memlift: a page could not be read back, the job ends before it reads wrong data: {error}"
            );
            line.write();
            kernel::end("", CORRUPT_EXIT_CODE);
        }
        if read.is_none() {
            corrupt();
        }
        self.job.count(Counter::PagesUnspilled, run as u64);
        run
    }

    /// Returns true if copies of pages that are only read are worth their memory. They are not if few pages are present
    /// beside the store.
    pub(super) fn keeps_copies(&self) -> bool {
        let held = self.counts.present.load(Ordering::Relaxed) * PAGE_BYTES + self.native_bytes();
        held >= self.store.bytes() / 8
    }
}

/// Ends the process: the copy of a page differs from what was stored, and nothing can replace it.
fn corrupt() -> ! {
    kernel::end(
        "memlift: a stored page is corrupt; the job ends before it reads wrong data\n",
        CORRUPT_EXIT_CODE,
    )
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Quiet;
    use super::super::signal;
    use super::*;
    use crate::block::{Job, Objectives, OnOverflow, Registry};
    use crate::pager::{Mechanism, Options};

    const MIB: usize = 1 << 20;
    const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

    /// The only pager of this test program.
    fn pager(total: usize) -> &'static Pager {
        let registry = Registry::create(1 << 40).expect("a registry");
        let objectives = Objectives { total, unused: 0, min_uncompressed: 0, on_overflow: OnOverflow::Fail };
        let admission = Box::leak(Box::new(registry.admit("test", &objectives).expect("admitted")));
        let job = Box::leak(Box::new(Job::attach(registry, admission.block()).expect("attached")));
        let pager = Pager::start(job, Options::default()).expect("a pager");
        signal::install().expect("handlers");
        pager
    }

    /// The thread that answers faults may have read of a fault long before it answers it; the page may be unmapped meanwhile.
    #[test]
    fn a_fault_that_is_answered_after_its_page_was_unmapped_claims_nothing() {
        if Mechanism::available(false).is_none() {
            println!("not run: this machine has no faults");
            return;
        }
        let pager = pager(10 * MIB);
        let full = pager.map(16 * MIB, READ_WRITE, None).expect("mapped");
        for page in 0..16 * MIB / PAGE_BYTES {
            // SAFETY: the page is mapped, and this test's.
            unsafe { ((full + page * PAGE_BYTES) as *mut usize).write_volatile(page) };
        }
        let bytes = 8 * PAGE_BYTES;
        let start = pager.map(bytes, READ_WRITE, None).expect("mapped");
        // SAFETY: the page is mapped, and this test's.
        unsafe { (start as *mut usize).write_volatile(1) };
        let page = pager.page_of(start).expect("of the arena");
        let chunk = pager.table.chunk(page / CHUNK_PAGES);
        assert_eq!(chunk.mode(), Mode::Armed, "there is no room for all of the chunk");
        pager.seats.close();
        let late = std::thread::spawn(move || {
            let _quiet = Quiet::new();
            // SAFETY: all signals are blocked, and this thread holds nothing of the pager's.
            unsafe { pager.fault(start + PAGE_BYTES, true) }
        });
        // The thread has decided what to do and waits for a seat. If it is slower than that, it does something else that is right.
        std::thread::sleep(std::time::Duration::from_millis(200));
        pager.unmap(start, bytes).expect("unmapped");
        assert_eq!(pager.map(bytes, READ_WRITE, None), Ok(start));
        // SAFETY: this thread closed the seats.
        unsafe { pager.seats.open() };
        assert_ne!(late.join().expect("it ends"), Fault::Done);
        assert!(!pager.table.load(page + 1).is_present(), "the chunk is {:?}", chunk.mode());
        // The memory may be used, and the pages after it, which were there before.
        for page in 0..8 {
            // SAFETY: the page is mapped, and this test's.
            let found = unsafe { ((start + page * PAGE_BYTES) as *mut usize).read_volatile() };
            assert_eq!(found, 0);
        }
        for page in 0..16 * MIB / PAGE_BYTES {
            // SAFETY: the page is mapped, and this test's.
            let found = unsafe { ((full + page * PAGE_BYTES) as *mut usize).read_volatile() };
            assert_eq!(found, page);
        }
    }
}
