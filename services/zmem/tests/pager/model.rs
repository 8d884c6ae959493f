// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random calls against a plain shadow: whatever is mapped, moved, dropped, forked or put away, reads give what was
//! written, and the budget holds.

use std::collections::BTreeMap;

use crate::pager_child::{Random, forked, start, under_every_mask};
use memlift_zmem::block::OnOverflow;
use memlift_zmem::pager::Pager;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Expected contents of each page: the seed that it was written from, 0 for zeros.
#[derive(Default)]
struct Shadow {
    pages: BTreeMap<usize, u64>,
    /// Start and pages of each mapping.
    mappings: BTreeMap<usize, usize>,
}

fn word(seed: u64, index: usize) -> u64 {
    if seed == 0 {
        return 0;
    }
    let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    match seed % 8 {
        0 => seed,
        1..=5 => mixed >> (24 + seed % 30),
        6 => {
            if index.is_multiple_of(3) {
                mixed
            } else {
                0
            }
        }
        _ => mixed ^ mixed >> 29,
    }
}

fn write(address: usize, seed: u64) {
    for index in 0..PAGE / 8 {
        // SAFETY: the page is mapped writable in the arena, and this test's.
        unsafe { (address as *mut u64).add(index).write_volatile(word(seed, index)) };
    }
}

fn check(address: usize, seed: u64) {
    for index in 0..PAGE / 8 {
        // SAFETY: the page is mapped readable in the arena.
        let found = unsafe { (address as *const u64).add(index).read_volatile() };
        assert_eq!(found, word(seed, index), "at {address:#x} word {index}");
    }
}

impl Shadow {
    fn any(&self, random: &mut Random) -> Option<(usize, usize)> {
        let at = random.below(self.mappings.len().max(1));
        self.mappings.iter().nth(at).map(|(start, pages)| (*start, *pages))
    }

    fn part(&self, random: &mut Random) -> Option<(usize, usize)> {
        let (start, pages) = self.any(random)?;
        let first = random.below(pages);
        Some((start + first * PAGE, 1 + random.below(pages - first)))
    }

    fn forget(&mut self, start: usize, pages: usize) {
        for page in 0..pages {
            self.pages.remove(&(start + page * PAGE));
        }
        let end = start + pages * PAGE;
        let touched: Vec<_> = self
            .mappings
            .iter()
            .map(|(at, pages)| (*at, *pages))
            .filter(|(at, pages)| *at < end && start < at + pages * PAGE)
            .collect();
        for (at, pages) in touched {
            self.mappings.remove(&at);
            if at < start {
                self.mappings.insert(at, (start - at) / PAGE);
            }
            if at + pages * PAGE > end {
                self.mappings.insert(end, (at + pages * PAGE - end) / PAGE);
            }
        }
    }

    fn add(&mut self, start: usize, pages: usize) {
        self.mappings.insert(start, pages);
        for page in 0..pages {
            self.pages.insert(start + page * PAGE, 0);
        }
    }

    fn check_all(&self) {
        for (address, seed) in &self.pages {
            check(*address, *seed);
        }
    }
}

fn step(pager: &'static Pager, shadow: &mut Shadow, random: &mut Random) {
    let mapped = shadow.pages.len();
    match random.below(100) {
        0..=9 if mapped < 24 * MIB / PAGE => {
            let pages = if random.below(4) == 0 { 1 + random.below(1500) } else { 1 + random.below(100) };
            let start = pager.map(pages * PAGE, READ_WRITE, None).expect("mapped");
            for page in 0..pages {
                assert!(!shadow.pages.contains_key(&(start + page * PAGE)), "mapped twice");
            }
            shadow.add(start, pages);
        }
        10..=11 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            assert_eq!(pager.map(pages * PAGE, READ_WRITE, Some(start)), Ok(start));
            shadow.forget(start, pages);
            shadow.add(start, pages);
        }
        12..=17 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            assert_eq!(pager.unmap(start, pages * PAGE), Ok(()));
            assert!(pager.pin(start, 1, false).is_err());
            shadow.forget(start, pages);
        }
        18..=23 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            assert_eq!(pager.advise(start, pages * PAGE, libc::MADV_DONTNEED), Ok(()));
            for page in 0..pages {
                shadow.pages.insert(start + page * PAGE, 0);
            }
        }
        24..=31 if mapped > 0 && mapped < 24 * MIB / PAGE => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            let wanted = 1 + random.below(pages * 2 + 20);
            let to = pager.remap(start, pages * PAGE, wanted * PAGE, libc::MREMAP_MAYMOVE, 0).expect("moved");
            let seeds: Vec<_> = (0..pages).map(|page| shadow.pages[&(start + page * PAGE)]).collect();
            shadow.forget(start, pages);
            shadow.add(to, wanted);
            for (page, seed) in seeds.into_iter().take(wanted).enumerate() {
                shadow.pages.insert(to + page * PAGE, seed);
            }
        }
        32..=35 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            for prot in [libc::PROT_NONE, libc::PROT_READ] {
                assert_eq!(pager.protect(start, pages * PAGE, prot), Ok(()));
                assert_eq!(pager.accessible(start, PAGE, true), 0);
            }
            check(start, shadow.pages[&start]);
            assert_eq!(pager.protect(start, pages * PAGE, READ_WRITE), Ok(()));
        }
        36..=38 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            let pages = pages.min(40);
            let pins = pager.pin(start, pages * PAGE, random.below(2) == 0).expect("pinned");
            for _ in 0..3 {
                let (other, _) = shadow.part(random).expect("something is mapped");
                check(other, shadow.pages[&other]);
            }
            let mut bytes = vec![0u8; pages * PAGE];
            let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let remote = libc::iovec { iov_base: start as *mut _, iov_len: bytes.len() };
            // SAFETY: the kernel reads pinned memory of this process into the vector.
            let read = unsafe {
                libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
            };
            assert_eq!(read as usize, bytes.len(), "a pinned page was absent");
            drop(pins);
            check(start, shadow.pages[&start]);
        }
        39 if random.below(10) == 0 => {
            let child = forked(pager, || {
                shadow.check_all();
                for (address, seed) in shadow.pages.iter().take(300) {
                    write(*address, seed + 1);
                    check(*address, seed + 1);
                }
            });
            for (address, seed) in shadow.pages.iter_mut().take(100) {
                *seed += 7;
                write(*address, *seed);
            }
            child.wait();
        }
        40..=69 if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            for page in 0..pages.min(200) {
                let seed = random.next() | 1;
                write(start + page * PAGE, seed);
                shadow.pages.insert(start + page * PAGE, seed);
            }
        }
        _ if mapped > 0 => {
            let (start, pages) = shadow.part(random).expect("something is mapped");
            for page in 0..pages.min(200) {
                check(start + page * PAGE, shadow.pages[&(start + page * PAGE)]);
            }
        }
        _ => {}
    }
}

fn run(seed: u64, steps: usize) {
    let (pager, spilled) = (start(14 * MIB, OnOverflow::Fail), tempfile::tempdir_in("/var/tmp"));
    let folder = spilled.expect("a folder");
    let spill = memlift_zmem::spill::Spill::create(folder.path(), 1 << 30).expect("a spill file");
    pager.spill_to(spill).expect("the first");
    let (mut shadow, mut random) = (Shadow::default(), Random(seed));
    for _ in 0..steps {
        step(pager, &mut shadow, &mut random);
    }
    shadow.check_all();
    println!("{:?}", pager.numbers());
    let all: Vec<_> = shadow.mappings.iter().map(|(start, pages)| (*start, *pages)).collect();
    for (start, pages) in all {
        assert_eq!(pager.unmap(start, pages * PAGE), Ok(()));
    }
    let numbers = pager.numbers();
    assert_eq!((numbers.present_bytes, numbers.native_bytes, numbers.mapped_bytes), (0, 0, 0));
    assert_eq!(pager.job().ledger().events(), 0, "the budget was exceeded");
}

#[test]
fn the_arena_is_what_was_written() {
    under_every_mask("model::the_arena_is_what_was_written", || run(0x1234_5678_9abc_def1, 2000));
}

#[test]
fn the_arena_is_what_was_written_otherwise() {
    under_every_mask("model::the_arena_is_what_was_written_otherwise", || run(0x0fed_cba9_8765_4321, 2000));
}
