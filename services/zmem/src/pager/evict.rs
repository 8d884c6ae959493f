// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eviction: the clock hand moves round the arena, arms native chunks, and evicts cold pages in batches.
//!
//! - **Flow** `Pager::make_room` (a fault without room) or [`super::evictor`] (the block's turn) ──▶ gather: claim pages
//!   without heat or pins ──▶ move them out ([`super::depart`]), or write-protect them in place ──▶ pack ──▶ drop all with
//!   one call ──▶ publish ──▶ uncharge
//! - **Order** a page is moved or protected before it is read, and dropped after its copy is complete. A thread that touches
//!   it meanwhile waits for `Busy` to end. The holder of the hand never waits for a page. Memory by which the store grows is
//!   charged first, and taken from the float if nothing is unused
//! - **Owner** the float: bytes charged in advance, for the time between packing pages and dropping them
//! - **Not here** the other ways to make room, and their order ([`super::room`]); the pages that come back
//!   ([`super::fault`]); the file ([`super::spill`])

use std::cell::Cell;
use std::sync::atomic::Ordering;

use memlift_ground::observe::{self, Work};
use memlift_kernels::pages::{Effort, Packed};
use memlift_spec::formats::trace::Kind;

use super::depart::Way;
use super::entry::{Entry, MAX_HEAT, Tag};
use super::recycle::LEAST_RUN;
use super::seat::{CLUSTER, Page, Seat};
use super::shared::{Owner, Owners};
use super::table::{CHUNK_PAGES, Mode};
use super::{Pager, address_of, kernel};
use crate::block::Counter;
use crate::mapping::PAGE_BYTES;

/// Upper bound of the pages that are evicted together.
pub(super) const BATCH: usize = 64;
/// Upper bound of the pages that are claimed together. Absent pages between those that leave are claimed too, so that one
/// range covers many.
const CLAIMS: usize = 512;
/// Longest gap of absent pages that is claimed along with the pages on its sides.
const GAP: usize = 24;
/// Full size of the float, which is charged in advance, bytes.
const FLOAT_BYTES: usize = 256 << 10;
/// Smallest size of the float, bytes; packing one batch may need that much.
pub(super) const LEAST_FLOAT_BYTES: usize = 64 << 10;
/// Number of pages that eviction always leaves present, because a few instructions may touch that many.
const LEAST_PAGES: usize = 64;
/// Number of rounds of the hand after which every page has lost its heat.
const ROUNDS: u64 = 4;

/// The clock hand and the batch that it gathers.
pub(super) struct Evict {
    hand: usize,
    /// Position of the second hand, that of [`Pager::pack_cold`].
    pub cold_hand: usize,
    pub float: usize,
    batches: u64,
    /// Number of pages that have left after their probation since the round was last counted up.
    left_after_probation: usize,
    count: usize,
    /// Number of claimed pages that are present.
    leaving: usize,
    pages: [u32; CLAIMS],
    old: [Entry; CLAIMS],
    new: [Entry; CLAIMS],
    ways: [Way; CLAIMS],
    owners: Owners,
}

impl Evict {
    pub const fn new() -> Evict {
        Evict {
            hand: 0,
            cold_hand: 0,
            float: 0,
            batches: 0,
            left_after_probation: 0,
            count: 0,
            leaving: 0,
            pages: [0; CLAIMS],
            old: [Entry::EMPTY; CLAIMS],
            new: [Entry::EMPTY; CLAIMS],
            ways: [Way::InPlace; CLAIMS],
            owners: Owners::new(),
        }
    }

    /// Returns true if the page was present and is to be dropped.
    fn left(&self, index: usize) -> bool {
        self.old[index].is_present() && !self.new[index].is_present()
    }

    /// Returns true if the page is to be dropped in place (not from the staging slot).
    fn left_in_place(&self, index: usize) -> bool {
        self.left(index) && self.ways[index] == Way::InPlace
    }

    fn push(&mut self, page: usize, entry: Entry) {
        self.pages[self.count] = page as u32;
        self.old[self.count] = entry;
        self.count += 1;
    }
}

/// Outcome of an eviction.
#[derive(Clone, Copy, Default)]
pub(super) struct Evicted {
    /// Number of pages that left and chunks that were armed.
    pub steps: usize,
    /// Bytes that were given back to the job.
    pub bytes: usize,
    /// Number of pages that lie in the seat's slot; they are still charged.
    pub moved: usize,
    /// True if eviction ended early because a signal waits for this thread.
    pub interrupted: bool,
}

impl Pager {
    /// Evicts pages until `want` bytes came back to the job, or until no more pages can leave.
    pub(super) fn evict(&self, seat: &mut Seat, want: usize, batch: usize) -> Evicted {
        self.evict_into(seat, want, batch, false)
    }

    /// Does the same as [`Pager::evict`]. With `recycle`, the first run of pages for which that is possible goes to the
    /// seat's slot, and eviction stops there.
    pub(super) fn evict_into(&self, seat: &mut Seat, want: usize, batch: usize, recycle: bool) -> Evicted {
        let state = &mut *self.evict.lock();
        let last = self.round.load(Ordering::Relaxed) + ROUNDS;
        let mut evicted = Evicted::default();
        while evicted.bytes < want && evicted.moved == 0 {
            self.fill_float(state);
            let armed = self.gather(state, batch.min(BATCH), last);
            evicted.steps += armed.steps;
            evicted.bytes += armed.bytes;
            if state.count > 0 {
                let away = self.put_away(seat, state, recycle);
                evicted.steps += away.steps;
                evicted.moved = away.moved;
                evicted.bytes += away.bytes;
                // All remaining pages are pinned or do not compress: the hand has passed each of them once more.
                if away.steps + armed.steps == 0 && self.round.load(Ordering::Relaxed) >= last + ROUNDS {
                    break;
                }
                // Pages that do not compress may be many. Those that were tried are marked.
                if away.steps == 0 && seat.is_interrupted() {
                    evicted.interrupted = true;
                    break;
                }
            } else if armed.steps == 0 {
                break;
            }
        }
        evicted
    }

    /// Evicts the clean pages without heat that a stream at page `at` left behind, except for those of the last cluster.
    pub(super) fn evict_behind(&self, seat: &mut Seat, at: usize) -> Evicted {
        let state = &mut *self.evict.lock();
        (state.count, state.leaving) = (0, 0);
        let batch = BATCH.min(self.spare_pages());
        for page in at.saturating_sub(2 * CLUSTER)..at.saturating_sub(CLUSTER) {
            if state.leaving == batch || self.table.chunk(page / CHUNK_PAGES).mode() != Mode::Armed {
                break;
            }
            let entry = self.table.load(page);
            let left = entry.tag() == Tag::Clean && entry.heat() == 0 && entry.pins() == 0;
            if left && self.table.claim(page, entry) {
                state.push(page, entry);
                state.leaving += 1;
            }
        }
        if state.count == 0 { Evicted::default() } else { self.put_away(seat, state, true) }
    }

    /// Charges the float in advance, when the process becomes active.
    pub(super) fn start_float(&self) {
        self.fill_float(&mut self.evict.lock());
    }

    fn fill_float(&self, state: &mut Evict) {
        if state.float < FLOAT_BYTES && self.job.try_charge(FLOAT_BYTES - state.float, 0) {
            state.float = FLOAT_BYTES;
        } else if state.float < LEAST_FLOAT_BYTES {
            // Without a float nothing could be packed. The job goes below zero by that little, and recovers by evicting.
            self.job.charge_ahead(LEAST_FLOAT_BYTES - state.float);
            state.float = LEAST_FLOAT_BYTES;
        }
    }

    /// Gives the store's empty pages back; moves at most `budget` objects. Returns the bytes that this freed.
    pub(super) fn compact(&self, budget: usize) -> usize {
        let released = self.store.compact(budget);
        self.settle_store();
        if released > 0 {
            self.job.uncharge(released);
        }
        released
    }

    /// Returns the number of pages that may leave: those above the minimum that must stay.
    fn spare_pages(&self) -> usize {
        let present = self.counts.present.load(Ordering::Relaxed);
        let native = self.native_bytes() / PAGE_BYTES;
        let floor = usize::try_from(self.job.min_uncompressed()).unwrap_or(usize::MAX) / PAGE_BYTES;
        (present + native).saturating_sub(floor.max(LEAST_PAGES))
    }

    /// Moves the hand on until the batch is full, a chunk was armed, or round `last` begins.
    fn gather(&self, state: &mut Evict, batch: usize, last: u64) -> Evicted {
        let mut armed = Evicted::default();
        state.count = 0;
        state.leaving = 0;
        state.owners.forget();
        let batch = batch.min(self.spare_pages());
        self.gather_probation(state, batch);
        let reached = self.reached.load(Ordering::Acquire);
        while state.leaving < batch && state.count + 1 < CLAIMS {
            let chunk = state.hand / CHUNK_PAGES;
            if chunk >= reached {
                state.hand = 0;
                if self.round.fetch_add(1, Ordering::Relaxed) + 1 >= last {
                    break;
                }
                continue;
            }
            let next = (chunk + 1) * CHUNK_PAGES;
            let record = self.table.chunk(chunk);
            match record.mode() {
                Mode::Native => {
                    let paid = self.job.try_charge(PAGE_BYTES, 0);
                    if !paid && state.float < PAGE_BYTES {
                        break;
                    }
                    state.float -= if paid { 0 } else { PAGE_BYTES };
                    if let Some(bytes) = self.arm(chunk) {
                        armed.steps += 1;
                        armed.bytes += bytes;
                        if bytes > 0 {
                            break;
                        }
                    } else {
                        self.job.uncharge(PAGE_BYTES);
                        state.hand = next;
                    }
                }
                Mode::Armed if record.present.load(Ordering::Relaxed) > 0 => {
                    while state.hand < next && state.leaving < batch && state.count + 1 < CLAIMS {
                        self.consider(state, state.hand);
                        state.hand += 1;
                    }
                }
                _ => state.hand = next,
            }
        }
        armed
    }

    /// Claims pages whose probation is over, oldest first. The pages that leave in this way count towards the rounds of the
    /// hand.
    fn gather_probation(&self, state: &mut Evict, batch: usize) {
        let present = self.counts.present.load(Ordering::Relaxed);
        while state.leaving < batch && state.count + 1 < CLAIMS {
            let Some(page) = self.probation.next(present) else { break };
            let is_armed = self.table.chunk(page / CHUNK_PAGES).mode() == Mode::Armed;
            if is_armed && self.table.load(page).heat() == 0 {
                self.consider(state, page);
            }
        }
        state.left_after_probation += state.leaving;
        if state.left_after_probation > present {
            state.left_after_probation = 0;
            self.round.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the time of the pager's clock: the number of pages brought in so far.
    pub(super) fn time(&self) -> u64 {
        self.counts.pages_in.load(Ordering::Relaxed)
    }

    /// Returns the same time as entries store it: in steps of about 1/1024 of the pages in the job's total.
    pub(super) fn steps(&self) -> u64 {
        self.time() >> self.step_shift()
    }

    /// Returns the binary logarithm of the pages in one step of the clock.
    pub(super) fn step_shift(&self) -> u32 {
        let pages = u64::try_from(self.job.total()).unwrap_or(0) / PAGE_BYTES as u64;
        (pages / 1024).max(1).ilog2()
    }

    /// Returns the time of the pager's clock (in pages brought in) for which a page that did not compress is left alone.
    fn raw_rest(&self) -> u64 {
        8 * self.counts.present.load(Ordering::Relaxed) as u64 + 1024
    }

    /// Claims a page, if it shall leave.
    fn consider(&self, state: &mut Evict, page: usize) {
        let entry = self.table.load(page);
        if !entry.is_present() || entry.pins() > 0 {
            return;
        }
        // The page did not compress last time. That is tried again after memory has been turned over several times.
        let raw = entry.is_raw() && entry.raw_age(self.time()) < self.raw_rest();
        // Evicting a page that another process shares frees nothing here, and costs a copy.
        let leaves = !raw && (entry.tag() != Tag::Shared || self.is_alone(&mut state.owners, page));
        let was_cold = self.age(page, entry);
        if was_cold && leaves && self.table.claim(page, entry) {
            self.cover_gap(state, page);
            state.push(page, entry);
            state.leaving += 1;
        }
    }

    /// Takes one unit of heat from a page. Returns true if the page had none.
    pub(super) fn age(&self, page: usize, entry: Entry) -> bool {
        let Some(heat) = entry.heat().checked_sub(1) else { return true };
        let word = self.table.entry(page);
        let colder = entry.with_heat(heat);
        let _ = word.compare_exchange(entry.0, colder.0, Ordering::AcqRel, Ordering::Relaxed);
        false
    }

    /// Claims the absent pages between the last claimed page and this one, if they are few and none is present or busy.
    fn cover_gap(&self, state: &mut Evict, page: usize) {
        let Some(last) = state.count.checked_sub(1).map(|last| state.pages[last] as usize) else { return };
        // The hand may have begun another round since.
        let Some(gap) = page.checked_sub(last + 1) else { return };
        if gap == 0
            || gap > GAP
            || last / CHUNK_PAGES != page / CHUNK_PAGES
            || state.count + gap + 1 >= CLAIMS
        {
            return;
        }
        if self.engine.staging(0).is_some() {
            // Pages that were moved are dropped from the staging slot, all together, so gaps in the arena do not matter.
            return;
        }
        let before = state.count;
        for between in last + 1..page {
            let entry = self.table.load(between);
            if !(entry.is_away() || entry.tag() == Tag::Empty) || !self.table.claim(between, entry) {
                for index in before..state.count {
                    self.table.publish(state.pages[index] as usize, state.old[index]);
                }
                state.count = before;
                return;
            }
            state.push(between, entry);
        }
    }

    /// Evicts the batch. With `recycle`, the first pages that leave stay in the seat's slot.
    fn put_away(&self, seat: &mut Seat, state: &mut Evict, recycle: bool) -> Evicted {
        let began_ns = observe::work_begins();
        let count = state.count;
        let recycle = recycle && self.recycles();
        let slot = if recycle { self.engine.slot(seat.index) } else { self.engine.staging(seat.index) };
        let staged = self.depart_batch(state, slot);
        let no_copy = |state: &Evict, index: usize| state.old[index].has_no_copy();
        let in_place =
            |state: &Evict, index: usize| state.ways[index] == Way::InPlace && state.old[index].is_present();
        let revokes_access = self.engine.revokes_access();
        let frozen = self.for_runs(
            state,
            count,
            |state, index| in_place(state, index) && (no_copy(state, index) || revokes_access),
            |page, pages| self.freeze(page, pages).is_ok(),
        );
        let (round, now) = (self.round.load(Ordering::Relaxed), self.steps());
        let float = Cell::new(state.float);
        for index in 0..count {
            let (page, old, way) = (state.pages[index] as usize, state.old[index], state.ways[index]);
            let readable = way != Way::InPlace || frozen && self.table.allows(page, false);
            state.new[index] = match old.tag() {
                _ if way == Way::Pinned => old.with_heat(MAX_HEAT),
                Tag::Clean if frozen || !revokes_access => {
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                    old.away().with_round(round).with_left(now)
                }
                Tag::Dirty | Tag::Shared if readable => {
                    let staged = match (slot, way) {
                        (Some(slot), Way::Staged(index)) => Some(self.staged(slot, index)),
                        _ => None,
                    };
                    self.pack(seat, (page, staged), old, round, &float).with_left(now)
                }
                _ => old,
            };
        }
        state.float = float.get();
        for writable in [true, false] {
            self.for_runs(
                state,
                count,
                |state, index| {
                    let stays = in_place(state, index) && state.new[index].is_present();
                    stays && state.old[index].is_protected() != writable
                },
                |page, pages| {
                    self.thaw_again(page, pages, writable);
                    true
                },
            );
        }
        if let Some(began_ns) = began_ns {
            self.tell(began_ns, state);
        }
        let moved = slot.map_or(0, |slot| self.clear_staging(state, slot, staged, recycle));
        let gone = (0..count).filter(|index| state.left(*index)).count();
        let shared = self.shared_leaving(state);
        self.drop_pages(state, count);
        for index in 0..count {
            let (page, new) = (state.pages[index] as usize, state.new[index]);
            if state.left(index) {
                self.table.chunk(page / CHUNK_PAGES).present.fetch_sub(1, Ordering::AcqRel);
            }
            self.table.publish(page, new);
        }
        self.settle_store();
        state.batches += 1;
        self.counts.present.fetch_sub(gone, Ordering::Relaxed);
        // These pages are another process's memory from now on.
        self.job.unshare(shared * PAGE_BYTES);
        let given = (gone - moved - shared) * PAGE_BYTES;
        let refill = (FLOAT_BYTES.saturating_sub(state.float)).min(given);
        state.float += refill;
        let bytes = given - refill;
        self.job.uncharge(bytes);
        if state.batches.is_multiple_of(64) {
            self.compact(64);
        }
        Evicted { steps: gone, bytes, moved, interrupted: false }
    }

    /// Returns the number of the batch's pages that leave in place and are shared with other processes.
    fn shared_leaving(&self, state: &Evict) -> usize {
        if !self.forked() {
            return 0;
        }
        let shared = |index: &usize| {
            state.left_in_place(*index) && self.owner(state.pages[*index] as usize) != Owner::Alone
        };
        (0..state.count).filter(shared).count()
    }

    /// Moves the batch's present pages to the staging slot, as far as that is possible. Returns the number of pages in the
    /// slot.
    fn depart_batch(&self, state: &mut Evict, slot: Option<usize>) -> usize {
        let (mut next, mut index) = (0, 0);
        while index < state.count {
            let first = index;
            while index < state.count
                && state.old[index].is_present()
                && state.pages[index] as usize == state.pages[first] as usize + (index - first)
            {
                index += 1;
            }
            let (old, ways) = (&mut state.old[first..index], &mut state.ways[first..index]);
            self.depart(slot, state.pages[first] as usize, &mut next, old, ways);
            if index == first {
                state.ways[index] = Way::InPlace;
                index += 1;
            }
        }
        next
    }

    /// Puts pages that stay back in their place, and drops the others of the `staged` pages from the slot. With `keep`, the
    /// first run of the others stays in the slot if it is long enough. Returns the length of that run.
    fn clear_staging(&self, state: &Evict, slot: usize, staged: usize, keep: bool) -> usize {
        let (mut kept, mut whole) = (0, keep);
        for index in 0..state.count {
            let Way::Staged(place) = state.ways[index] else { continue };
            if state.new[index].is_present() {
                self.bring_back(slot, place, state.pages[index] as usize);
                whole = false;
            }
            kept += usize::from(whole);
        }
        let kept = if kept < LEAST_RUN { 0 } else { kept };
        if kept < staged {
            kernel::drop_range(slot + kept * PAGE_BYTES, (staged - kept) * PAGE_BYTES);
        }
        kept
    }

    /// Tells `memlift record` which pages of the batch were packed. Pages whose copy was still valid cost nothing and are
    /// left out.
    #[cold]
    fn tell(&self, began_ns: u64, state: &Evict) {
        let packed = |&index: &usize| state.left(index) && state.old[index].has_no_copy();
        let away = (0..state.count).filter(packed).map(|index| state.new[index]);
        let (parts, written) = away
            .fold((0, 0), |(parts, written), entry| (parts + 1, written + self.packed_bytes(entry) as u64));
        if parts > 0 {
            let read = parts * PAGE_BYTES as u64;
            observe::work(began_ns, &Work { kind: Kind::PageOut, parameter: 0, read, written, parts });
        }
    }

    /// Packs one page that cannot change: its copy in `staged`, or the page in place, protected. Returns its new entry, or
    /// the old one with a mark if the page does not compress.
    fn pack(
        &self,
        seat: &mut Seat,
        (page, staged): (usize, Option<&Page>),
        old: Entry,
        round: u64,
        float: &Cell<usize>,
    ) -> Entry {
        let (packer, packed, room) = seat.parts();
        let contents = staged.unwrap_or_else(|| self.contents(page, &mut room[0]));
        let charge = |bytes: usize| self.charge_or_float(float, bytes);
        match packer.pack(contents, packed, Effort::Fast) {
            Packed::Filled(word) => {
                self.job.count(Counter::PagesFilled, 1);
                match Entry::filled(word) {
                    Some(Entry::EMPTY) => Entry::EMPTY,
                    Some(entry) => entry.with_round(round),
                    None => {
                        let handle = self.store.put_charged(&word.to_le_bytes(), charge);
                        handle.map_or(old, |handle| {
                            Entry::new(Tag::Word, u64::from(handle.0.get())).with_round(round)
                        })
                    }
                }
            }
            Packed::Bytes(bytes) => {
                let handle = packed.get(..bytes).and_then(|object| self.store.put_charged(object, charge));
                let Some(handle) = handle else { return old };
                self.counts.packed.fetch_add(1, Ordering::Relaxed);
                self.job.count(Counter::PagesStored, 1);
                self.job.count(Counter::BytesStored, bytes as u64);
                Entry::new(Tag::Stored, u64::from(handle.0.get())).with_round(round)
            }
            Packed::Raw => {
                self.counts.raw.fetch_add(1, Ordering::Relaxed);
                self.job.count(Counter::PagesIncompressible, 1);
                old.raw(self.time()).with_heat(1)
            }
        }
    }

    /// Charges memory by which the store grows, or takes it from the float if nothing is unused. Returns false if the float
    /// has too little.
    pub(super) fn charge_or_float(&self, float: &Cell<usize>, bytes: usize) -> bool {
        self.job.try_charge(bytes, 0)
            || match float.get().checked_sub(bytes) {
                Some(left) => {
                    float.set(left);
                    true
                }
                None => false,
            }
    }

    /// Calls `act` (first page, number of pages) for each run of neighbouring pages of the batch that fulfil `which`. Returns
    /// false if one of the calls did.
    fn for_runs(
        &self,
        state: &Evict,
        count: usize,
        which: impl Fn(&Evict, usize) -> bool,
        mut act: impl FnMut(usize, usize) -> bool,
    ) -> bool {
        let (mut index, mut all) = (0, true);
        while index < count {
            if !which(state, index) {
                index += 1;
                continue;
            }
            let first = index;
            while index + 1 < count
                && state.pages[index + 1] == state.pages[index] + 1
                && which(state, index + 1)
            {
                index += 1;
            }
            index += 1;
            all &= act(state.pages[first] as usize, index - first);
        }
        all
    }

    /// Drops the memory of the batch's pages that leave in place.
    fn drop_pages(&self, state: &mut Evict, count: usize) {
        let mut ranges = [kernel::Range { address: 0, bytes: 0 }; BATCH];
        let mut used = 0;
        if !(0..count).any(|index| state.left_in_place(index)) {
            return;
        }
        // There is at most one range per page that leaves, because each gap lies between two of them.
        self.for_runs(
            state,
            count,
            |state, index| !state.new[index].is_present(),
            |page, pages| {
                if let Some(range) = ranges.get_mut(used) {
                    *range = kernel::Range { address: address_of(page), bytes: pages * PAGE_BYTES };
                    used += 1;
                }
                true
            },
        );
        let ranges = &ranges[..used];
        if used > 1 && self.vectored.load(Ordering::Relaxed) && kernel::drop_ranges(ranges) {
            return;
        }
        for range in ranges {
            kernel::drop_range(range.address, range.bytes);
        }
    }

    /// Returns the bytes that native chunks are charged with.
    pub(super) fn native_bytes(&self) -> usize {
        self.counts.native.load(Ordering::Relaxed)
    }
}
