// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory controller: where each physical page is, compression, allocations, faults.
//!
//! - **Flow** [`Controller::visit`] a page: what it was · [`Controller::compress`]: the compressor's next page · [`Controller::store`]
//!   what the OS stores into reserved memory · [`Controller::fault`]: the next compressed memory fault
//! - **Order** a page is ranked by every `sampled`-th request, and when it has been unpacked; the compressor packs what the fan says
//! - **Rule** a page that packs less than 1.15 times stays plain, off its blade. What blocks have unused, and what their pages take,
//!   add up to the memory ([`Controller::audit`])
//! - **Owner** block 0 has what no other has, also what the free lists cannot use yet; a block below zero borrows from it. Without DMU
//!   every page stays in block 0: TMCC
//! - **Not here** who is next (`fan`); time (`experiment`); what the OS does about a fault (`kernel`)

use super::PAGE;
use super::fan::{self, Fan};
use super::frames::{Frames, rounded};
use super::layout::{BLOCKS, Field, Place, Reserved, State};
use super::pack::{self, Packer};
use std::collections::VecDeque;
use std::fmt;

/// Pages to compress during a visit, until the OS says otherwise.
const VISIT: u32 = 4;

/// Result of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The page's state before; now it is plain.
    pub found: State,
    /// Where its bytes lie now.
    pub address: u64,
}

/// No machine page is free: real machines of this kind stop here and have to be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl fmt::Display for Exhausted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no machine page is free: give `spare` or `low` more, or allocate less")
    }
}

/// Reason why a store of the OS did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The OS may not store there, or nothing is there.
    Place,
    /// More than block 0 has unused, or block 0's own total a second time.
    Allocation,
    /// No such control block.
    Block,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    reserved: Reserved,
    frames: Frames,
    fan: Fan,
    requests: u64,
    sampled: u64,
    faults: VecDeque<u16>,
    /// The part of the free lists' idle bytes that block 0 has been charged for.
    idle: i64,
    packer: Packer,
    /// A packed page that is being unpacked.
    packed: Vec<u8>,
    /// For each physical page what it was packed to last. A page that is only read packs as before: unpacking that and comparing is less
    /// work than packing again.
    known: Vec<Known>,
}

/// A packed page, and the first bytes of the plain one; empty: none is known.
#[derive(Clone, Debug, Default)]
struct Known {
    begin: [u8; 8],
    packed: Vec<u8>,
}

impl Known {
    /// Returns true if this page packs to these bytes.
    fn is_of(&self, plain: &[u8; PAGE]) -> bool {
        let mut page = [0; PAGE];
        plain.starts_with(&self.begin)
            && !self.packed.is_empty()
            && pack::unpack(&self.packed, &mut page).is_ok()
            && page == *plain
    }
}

impl Controller {
    /// A controller of so many machine pages and physical pages, all of them free, after the OS has stored block 0's total.
    #[must_use]
    pub fn new(frames: u32, pages: u32, sampled: u64) -> Controller {
        let mut reserved = Reserved::new(pages);
        let total = u64::from(frames) * PAGE as u64;
        reserved.set_total(0, total);
        reserved.set_unused(0, total as i64);
        (0..BLOCKS).for_each(|block| reserved.set_visit(block, VISIT));
        let sampled = sampled.max(1);
        Controller {
            reserved,
            frames: Frames::new(frames),
            fan: Fan::default(),
            requests: 0,
            sampled,
            faults: VecDeque::new(),
            idle: 0,
            packer: Packer::default(),
            packed: Vec::new(),
            known: vec![Known::default(); pages as usize],
        }
    }

    /// Reserved memory, to be read.
    #[must_use]
    pub fn reserved(&self) -> &Reserved {
        &self.reserved
    }

    /// Free machine pages.
    #[must_use]
    pub fn free(&self) -> usize {
        self.frames.free()
    }

    /// The bytes at what [`Controller::visit`] gave.
    #[must_use]
    pub fn page(&self, visit: Visit) -> &[u8; PAGE] {
        self.frames.page(visit.address)
    }

    /// The same, to be written.
    pub fn page_mut(&mut self, visit: Visit) -> &mut [u8; PAGE] {
        self.frames.page_mut(visit.address)
    }

    /// The block whose unused allocation has become negative, one for each time.
    pub fn fault(&mut self) -> Option<u16> {
        self.faults.pop_front()
    }

    /// Returns true if the compressor has something to do.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.fan.block().is_some()
    }

    /// Stores a value of the OS at an offset of reserved memory.
    ///
    /// # Errors
    /// The reason why nothing was stored.
    pub fn store(&mut self, at: u64, value: u64) -> Result<(), Refusal> {
        match Field::named(at, self.reserved.pages()).ok_or(Refusal::Place)? {
            Field::Total(block) => self.allocate(block, value)?,
            Field::Unused(block) => {
                self.reserved.set_unused_objective(block, value);
                self.fan.join(&mut self.reserved, block);
            }
            Field::Cache(block) => {
                self.reserved.set_cache_objective(block, value);
                self.fan.join(&mut self.reserved, block);
            }
            Field::Visit(block) => self.reserved.set_visit(block, (value as u32).max(1)),
            Field::Page(page) => {
                let block = u16::try_from(value).ok().filter(|block| *block < BLOCKS);
                self.map(page, block.ok_or(Refusal::Block)?);
            }
        }
        Ok(())
    }

    fn allocate(&mut self, block: u16, total: u64) -> Result<(), Refusal> {
        let more = i128::from(total) - i128::from(self.reserved.total(block));
        if block == 0 || more > i128::from(self.reserved.unused(0).max(0)) {
            return Err(Refusal::Allocation);
        }
        // It lies between what the block had and what block 0 has, so it is small.
        let more = more as i64;
        self.reserved.set_total(block, total);
        self.reserved.set_unused(0, self.reserved.unused(0) - more);
        self.charge(block, -more);
        Ok(())
    }

    /// A page belongs to another block from now on.
    fn map(&mut self, page: u32, block: u16) {
        let place = self.reserved.place(page);
        if place.state == State::Plain {
            fan::unlink(&mut self.reserved, page);
        }
        let size = size(place);
        self.charge(self.reserved.owner(page), -size);
        self.reserved.set_owner(page, block);
        if place.state == State::Plain {
            fan::link(&mut self.reserved, page);
        }
        self.charge(block, size);
    }

    /// A block takes so many bytes more, and block 0 what the free lists waste more.
    fn charge(&mut self, block: u16, bytes: i64) {
        let idle = self.frames.idle() as i64;
        let wasted = idle - std::mem::replace(&mut self.idle, idle);
        if block == 0 {
            return self.charge_one(0, bytes + wasted);
        }
        self.charge_one(0, wasted);
        self.charge_one(block, bytes);
    }

    fn charge_one(&mut self, block: u16, bytes: i64) {
        let before = self.reserved.unused(block);
        let after = before - bytes;
        self.reserved.set_unused(block, after);
        if block != 0 {
            let borrowed = after.min(0) - before.min(0);
            self.reserved.set_unused(0, self.reserved.unused(0) + borrowed);
            self.fan.join(&mut self.reserved, 0);
        }
        self.fan.join(&mut self.reserved, block);
        if before >= 0 && after < 0 {
            self.faults.push_back(block);
        }
    }

    /// Serves `requests` requests to a page, which is plain afterwards.
    ///
    /// # Errors
    /// If there is no machine page for it.
    pub fn visit(&mut self, page: u32, requests: u64) -> Result<Visit, Exhausted> {
        let before = self.requests;
        self.requests += requests;
        let ranked = before / self.sampled != self.requests / self.sampled;
        let place = self.reserved.place(page);
        let mut address = place.address;
        match place.state {
            State::Plain if ranked => {
                fan::unlink(&mut self.reserved, page);
                fan::link(&mut self.reserved, page);
            }
            State::Stubborn if ranked => {
                self.reserved.set_place(page, Place { state: State::Plain, ..place });
                fan::link(&mut self.reserved, page);
                let block = self.reserved.owner(page);
                self.fan.join(&mut self.reserved, block);
            }
            State::Plain | State::Stubborn => {}
            State::Zero | State::Packed => {
                let block = self.reserved.owner(page);
                address = self.frames.take().ok_or(Exhausted)?;
                if place.state == State::Packed {
                    self.frames.load(place.address, place.bytes, &mut self.packed);
                    pack::unpack(&self.packed, self.frames.page_mut(address))
                        .expect("what was packed can be unpacked");
                    self.frames.drop(place.address);
                    self.reserved.set_accesses(block, self.reserved.accesses(block) + 1);
                } else {
                    self.frames.page_mut(address).fill(0);
                }
                self.reserved.set_place(page, Place { state: State::Plain, bytes: PAGE, address });
                fan::link(&mut self.reserved, page);
                self.charge(block, PAGE as i64 - size(place));
            }
        }
        Ok(Visit { found: place.state, address })
    }

    /// The OS zeroes a page that is free from now on; its bytes, if it had any.
    pub fn free_page(&mut self, page: u32) -> Option<[u8; PAGE]> {
        let place = self.reserved.place(page);
        let mut bytes = [0; PAGE];
        match place.state {
            State::Zero => return None,
            State::Packed => {
                self.frames.load(place.address, place.bytes, &mut self.packed);
                pack::unpack(&self.packed, &mut bytes).expect("what was packed can be unpacked");
                self.frames.drop(place.address);
            }
            State::Plain | State::Stubborn => {
                bytes = *self.frames.page(place.address);
                self.frames.give(place.address);
            }
        }
        if place.state == State::Plain {
            fan::unlink(&mut self.reserved, page);
        }
        self.reserved.set_place(page, Place::ZERO);
        self.charge(self.reserved.owner(page), -size(place));
        self.map(page, 0);
        Some(bytes)
    }

    /// The compressor looks at its next page; whether there was one.
    pub fn compress(&mut self) -> bool {
        let Some(block) = self.fan.block() else { return false };
        let page = self.fan.oldest(&self.reserved, block);
        fan::unlink(&mut self.reserved, page);
        let place = self.reserved.place(page);
        let plain = self.frames.page(place.address);
        let known = &mut self.known[page as usize];
        let mut packs = known.is_of(plain);
        if !packs && let Some(packed) = self.packer.pack(plain) {
            known.begin.copy_from_slice(&plain[..8]);
            packed.clone_into(&mut known.packed);
            packs = true;
        }
        let packed = Some(&known.packed).filter(|_| packs);
        let stored = packed.and_then(|packed| Some((packed.len(), self.frames.store(packed)?)));
        match stored {
            Some((bytes, address)) => {
                self.frames.give(place.address);
                let packed = Place { state: State::Packed, bytes, address };
                self.reserved.set_place(page, packed);
                self.charge(block, size(packed) - size(place));
            }
            None => {
                self.reserved.set_place(page, Place { state: State::Stubborn, ..place });
                self.fan.join(&mut self.reserved, block);
            }
        }
        self.fan.went(&self.reserved, block);
        true
    }

    /// Returns the error of the books, if they do not add up: blades, ring, allocations, machine memory.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        let reserved = &self.reserved;
        let mut used = vec![0_i64; BLOCKS.into()];
        let mut plain = vec![0_u32; BLOCKS.into()];
        for page in 0..reserved.pages() {
            let (block, place) = (usize::from(reserved.owner(page)), reserved.place(page));
            used[block] += size(place);
            plain[block] += u32::from(place.state == State::Plain);
        }
        let mut rest = reserved.total(0) as i64 - used[0] - self.frames.idle() as i64;
        for block in 0..BLOCKS {
            let (mut link, mut length, index) = (reserved.mru(block), 0, usize::from(block));
            while link != 0 && length <= reserved.pages() {
                length += 1;
                link = reserved.older(link - 1);
            }
            if length != plain[index] || reserved.blade(block) != length {
                return Some(format!("block {block}: a blade of {length} pages, {} are plain", plain[index]));
            }
            if block > 0 {
                let unused = reserved.unused(block);
                if unused != reserved.total(block) as i64 - used[index] {
                    return Some(format!("block {block}: {unused} unused, {} used", used[index]));
                }
                rest -= reserved.total(block) as i64 - unused.min(0);
            }
            if (reserved.next(block) != 0) != fan::wants(reserved, block) {
                return Some(format!("block {block}: the ring does not know what it wants"));
            }
        }
        if rest != reserved.unused(0) {
            return Some(format!("block 0: {} unused, {rest} left", reserved.unused(0)));
        }
        let taken = reserved.total(0) as i64 - (self.frames.free() * PAGE + self.frames.idle()) as i64;
        let sum = used.iter().sum::<i64>();
        (taken != sum).then(|| format!("{taken} bytes of machine memory are taken, pages have {sum}"))
    }
}

/// Machine bytes of a page.
fn size(place: Place) -> i64 {
    match place.state {
        State::Packed => rounded(place.bytes) as i64,
        _ => place.bytes as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::contents;
    use crate::event::Random;

    const BYTES: u64 = PAGE as u64;

    fn fill(controller: &mut Controller, page: u32, block: u16, ratio: u64) {
        controller.store(Field::Page(page).at(), block.into()).unwrap();
        let visit = controller.visit(page, 64).unwrap();
        *controller.page_mut(visit) = contents::page(page.into(), 0, ratio);
    }

    #[test]
    fn each_block_packs_its_own_coldest_pages_and_contents_come_back() {
        let mut controller = Controller::new(256, 300, 1);
        controller.store(Field::Total(1).at(), 8 * BYTES).unwrap();
        controller.store(Field::Unused(1).at(), BYTES).unwrap();
        (0..10).for_each(|page| fill(&mut controller, page, 1, 420));
        (10..20).for_each(|page| fill(&mut controller, page, 0, 420));
        assert_eq!((controller.fault(), controller.fault()), (Some(1), None), "once");
        assert_eq!(controller.reserved().unused(1), -2 * PAGE as i64);
        controller.visit(0, 1).unwrap();
        let mut packed = 0;
        while controller.compress() {
            packed += 1;
            assert_eq!(controller.audit(), None);
        }
        // Each gives three quarters: four of them are three pages.
        assert_eq!((packed, controller.reserved().place(0).state), (4, State::Plain));
        assert!((1..5).all(|page| controller.reserved().place(page).state == State::Packed));
        assert!((10..20).all(|page| controller.reserved().place(page).state == State::Plain));
        let visit = controller.visit(2, 1).unwrap();
        assert_eq!(visit.found, State::Packed);
        assert!(*controller.page(visit) == contents::page(2, 0, 420));
        assert_eq!((controller.reserved().accesses(1), controller.reserved().accesses(0)), (1, 0));
        assert!(controller.free_page(3) == Some(contents::page(3, 0, 420)));
        assert_eq!((controller.free_page(3), controller.reserved().owner(3)), (None, 0));
        assert_eq!(controller.audit(), None);
    }

    #[test]
    fn pages_that_do_not_pack_leave_the_blade_until_they_are_ranked_again() {
        let mut controller = Controller::new(64, 100, 8);
        controller.store(Field::Unused(0).at(), 64 * BYTES).unwrap();
        fill(&mut controller, 5, 0, 100);
        assert!(controller.compress() && !controller.compress());
        assert_eq!(controller.reserved().place(5).state, State::Stubborn);
        assert_eq!(controller.visit(5, 7).unwrap().found, State::Stubborn);
        assert!(!controller.is_short());
        controller.visit(5, 1).unwrap();
        assert!(controller.is_short() && controller.audit().is_none());
    }

    #[test]
    fn the_cache_objective_keeps_young_pages_plain_and_the_ring_is_fair() {
        let mut controller = Controller::new(256, 300, 1);
        for block in 1..4 {
            controller.store(Field::Total(block).at(), 40 * BYTES).unwrap();
            controller.store(Field::Cache(block).at(), 5 * BYTES).unwrap();
            controller.store(Field::Visit(block).at(), u64::from(block)).unwrap();
            (0..20).for_each(|page| fill(&mut controller, u32::from(block) * 30 + page, block, 300));
        }
        (1..4).for_each(|block| controller.store(Field::Unused(block).at(), 1 << 40).unwrap());
        assert!((0..12).all(|_| controller.compress()));
        let plain = |controller: &Controller| [1, 2, 3].map(|block| controller.reserved().blade(block));
        assert_eq!(plain(&controller), [18, 16, 14], "as many in a visit as the OS said");
        while controller.compress() {}
        assert_eq!((plain(&controller), controller.audit()), ([5, 5, 5], None));
        assert_eq!(controller.fault(), None, "objectives are no allocations");
    }

    #[test]
    fn hostile_stores_are_refused() {
        let mut controller = Controller::new(16, 20, 1);
        let refused = |controller: &mut Controller, at, value| controller.store(at, value).unwrap_err();
        assert_eq!(refused(&mut controller, Field::Total(0).at(), 1), Refusal::Allocation);
        assert_eq!(refused(&mut controller, Field::Total(1).at(), 17 * BYTES), Refusal::Allocation);
        assert_eq!(refused(&mut controller, Field::Total(1).at(), u64::MAX), Refusal::Allocation);
        assert_eq!(refused(&mut controller, Field::Total(1).at() + 8, 1), Refusal::Place);
        assert_eq!(refused(&mut controller, Field::Page(20).at(), 1), Refusal::Place);
        assert_eq!(refused(&mut controller, Field::Page(1).at(), BLOCKS.into()), Refusal::Block);
        assert_eq!(refused(&mut controller, Field::Page(1).at(), 1 << 16), Refusal::Block);
        controller.store(Field::Total(1).at(), 16 * BYTES).unwrap();
        assert_eq!(refused(&mut controller, Field::Total(2).at(), 1), Refusal::Allocation);
        controller.store(Field::Total(1).at(), 0).unwrap();
        assert_eq!((controller.audit(), controller.reserved().unused(0)), (None, 16 * PAGE as i64));
        (0..16).for_each(|page| fill(&mut controller, page, 0, 200));
        assert_eq!(controller.visit(17, 1), Err(Exhausted));
    }

    #[test]
    fn the_books_add_up_and_bytes_stay_whatever_happens() {
        for seed in 0..6 {
            let mut random = Random::new(seed);
            let mut controller = Controller::new(120, 200, 3);
            let mut versions = vec![None; 200];
            for step in 1..1500 {
                let (page, block) = (random.below(200) as u32, random.below(4) as u16);
                let ratio = 90 + u64::from(page % 7) * 60;
                match random.below(14) {
                    // A value that block 0 does not have is refused.
                    0 => _ = controller.store(Field::Total(block).at(), random.below(40) * BYTES),
                    1 => controller.store(Field::Unused(block).at(), random.below(10) * BYTES).unwrap(),
                    2 => controller.store(Field::Cache(block).at(), random.below(10) * BYTES).unwrap(),
                    3 => controller.store(Field::Page(page).at(), block.into()).unwrap(),
                    4..8 => _ = controller.compress(),
                    8 | 9 => {
                        let wanted = versions[page as usize].take();
                        let wanted = wanted.map(|version| contents::page(page.into(), version, ratio));
                        assert!(controller.free_page(page) == wanted, "seed {seed}, step {step}");
                    }
                    _ => match controller.visit(page, 1 + random.below(64)) {
                        Err(Exhausted) => {}
                        Ok(visit) => {
                            let version = &mut versions[page as usize];
                            let wanted = version
                                .map_or([0; PAGE], |version| contents::page(page.into(), version, ratio));
                            assert!(*controller.page(visit) == wanted, "seed {seed}, step {step}");
                            *version = Some(step);
                            *controller.page_mut(visit) = contents::page(page.into(), step, ratio);
                        }
                    },
                }
                if step % 8 == 0 {
                    assert_eq!(controller.audit(), None, "seed {seed}, step {step}");
                }
            }
            assert!(controller.reserved().accesses(0) > 0);
        }
    }
}
