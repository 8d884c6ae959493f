// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of a process read from outside while its threads bring pages back and evict others: each page that is found is the right one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::pager_child::{Random, start, under_every_mask};
use memlift_zmem::arena::Arena;
use memlift_zmem::block::OnOverflow;
use memlift_zmem::pager::outside::{Contents, Outside};
use memlift_zmem::spill::Spill;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Bytes that pack to any size from a few bytes to nearly a page, and to one word or nothing.
fn contents(page: usize, target: &mut [u8]) {
    let mut random = Random((page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    target.fill(if page.is_multiple_of(11) { 0 } else { page as u8 });
    let length = if page.is_multiple_of(7) { 0 } else { random.below(PAGE) };
    for eight in target[..length].chunks_mut(8) {
        eight.copy_from_slice(&random.next().to_le_bytes()[..eight.len()]);
    }
}

#[test]
fn a_reader_outside_finds_right_pages_only() {
    under_every_mask("outside::a_reader_outside_finds_right_pages_only", || {
        let pager = start(16 * MIB, OnOverflow::Fail);
        // Nobody may have no such folder.
        if let Ok(folder) = tempfile::tempdir_in("/var/tmp")
            && let Ok(spill) = Spill::create(folder.path(), 64 * MIB)
        {
            pager.spill_to(spill).expect("a spill file");
        }
        let pages = 18 * MIB / PAGE;
        let mut arena = Arena::new(pager, pages * PAGE).expect("an arena");
        for page in 0..pages {
            contents(page, &mut arena[page * PAGE..][..PAGE]);
        }
        let (address, over) = (arena.as_ptr() as u64, AtomicBool::new(false));
        let slots: Vec<_> = pager.job().registry().processes(pager.job().block()).collect();
        let view = slots[0].view().expect("a view");
        let mut outside = match Outside::open(std::process::id(), view) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                println!("not run: this user may not read a process's memory");
                return;
            }
            outside => outside.expect("its own memory"),
        };
        assert!(Outside::open(std::process::id(), view + 8).is_err());
        let mut parts: Vec<&mut [u8]> = arena.chunks_mut(pages / 3 * PAGE).collect();
        let (mut found, mut absent, mut missed) = (0, 0, 0);
        std::thread::scope(|scope| {
            for (part, bytes) in parts.drain(..).enumerate() {
                let over = &over;
                scope.spawn(move || {
                    let (mut random, mut expected) = (Random(part as u64 + 1), [0; PAGE]);
                    while !over.load(Ordering::Relaxed) {
                        let page = random.below(bytes.len() / PAGE);
                        contents(part * (pages / 3) + page, &mut expected);
                        let target = &mut bytes[page * PAGE..][..PAGE];
                        assert!(target == expected, "page {page} of part {part}");
                        if random.below(2) == 0 {
                            // The page stays as it is, but its copy is freed.
                            target[77] = expected[77];
                        }
                    }
                });
            }
            let (mut random, mut page, mut expected) = (Random(99), [0; PAGE], [0; PAGE]);
            let began = Instant::now();
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                while began.elapsed() < Duration::from_millis(1500)
                    || absent <= 300 && began.elapsed() < Duration::from_secs(300)
                {
                    let number = random.below(pages);
                    contents(number, &mut expected);
                    match outside.page_at(address + (number * PAGE) as u64, &mut page) {
                        Contents::Moving => missed += 1,
                        kind @ (Contents::Present | Contents::Absent | Contents::Zeros) => {
                            assert!(page == expected, "page {number}, {kind:?}");
                            found += 1;
                            absent += usize::from(kind == Contents::Absent);
                        }
                        kind => panic!("page {number}: {kind:?}"),
                    }
                }
            }));
            over.store(true, Ordering::Relaxed);
            if let Err(error) = checked {
                std::panic::resume_unwind(error);
            }
        });
        println!("{found} pages found, {absent} of them absent, {missed} missed; {:?}", pager.numbers());
        assert!(absent > 300 && missed * 50 < found, "{found} found, {absent} absent, {missed} missed");
        assert_eq!(outside.page_at(0x1000, &mut [0; PAGE]), Contents::None);
    });
}
