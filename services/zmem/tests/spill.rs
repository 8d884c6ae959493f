// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The spill file against a plain map; refused directories; damage; a full file, a full disk; forks.

use std::os::unix::fs::FileExt;
use std::path::Path;

use memlift_zmem::mapping::PAGE_BYTES;
use memlift_zmem::spill::{Slot, Spill, SpillError};
use proptest::prelude::*;

type Page = [u8; PAGE_BYTES];

/// A page on a page boundary.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Aligned(Page);

fn page(seed: u64) -> Aligned {
    let mut page = Aligned([0; PAGE_BYTES]);
    for (index, byte) in page.0.iter_mut().enumerate() {
        *byte = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64 * 7) >> 11) as u8;
    }
    page
}

/// A directory on a disk: the one that holds the build.
fn directory() -> tempfile::TempDir {
    let target = option_env!("CARGO_TARGET_TMPDIR").unwrap_or(".");
    tempfile::tempdir_in(target).expect("the build's folder can be written")
}

fn spill(directory: &tempfile::TempDir, bytes: usize) -> Spill {
    Spill::create(directory.path(), bytes).expect("the build's folder lies on a disk")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_holds_what_was_written(steps in proptest::collection::vec((any::<u16>(), 1..80usize, any::<bool>()), 1..60)) {
        let directory = directory();
        let spill = spill(&directory, 4 << 20);
        let mut held: Vec<(Slot, u64)> = Vec::new();
        let mut seed = 0;
        for (pick, count, aligned) in steps {
            if pick % 3 != 0 || held.is_empty() {
                let pages: Vec<Aligned> = (0..count as u64).map(|index| page(seed + index)).collect();
                let bytes: Vec<u8> = [0].into_iter().chain(pages.iter().flat_map(|page| page.0)).collect();
                let (odd, _) = bytes[1..].as_chunks::<PAGE_BYTES>();
                let given: Vec<(u64, &Page)> = pages
                    .iter()
                    .zip(odd)
                    .enumerate()
                    .map(|(index, (even, odd))| (seed + index as u64, if aligned { &even.0 } else { odd }))
                    .collect();
                let mut slots = vec![Slot::default(); count];
                match spill.write(&given, &mut slots) {
                    Ok(()) => held.extend(slots.into_iter().zip(seed..)),
                    Err(error) => {
                        prop_assert_eq!(error, SpillError::Full { max_bytes: 4 << 20 });
                        prop_assert!(held.len() + count > 1024);
                    }
                }
                seed += count as u64;
            } else {
                for _ in 0..count.min(held.len()) {
                    spill.free(held.swap_remove(usize::from(pick) % held.len()).0);
                }
            }
            prop_assert_eq!(spill.disk_bytes(), held.len() * PAGE_BYTES);
        }
        let mut odd = vec![0u8; PAGE_BYTES + 1];
        for (slot, seed) in held {
            let mut found = Aligned([0; PAGE_BYTES]);
            spill.read(slot, seed, &mut found.0).expect("it was written");
            prop_assert!(found.0 == page(seed).0);
            let odd: &mut Page = (&mut odd[1..]).try_into().expect("a page");
            spill.read(slot, seed, odd).expect("it was written");
            prop_assert!(*odd == found.0);
            prop_assert_eq!(spill.read(slot, seed + 1, odd), Err(SpillError::Corrupt));
        }
    }
}

#[test]
fn memory_is_no_disk() {
    let error = Spill::create(Path::new("/dev/shm"), 1 << 20).err().expect("a tmpfs is refused").to_string();
    assert!(error.contains("tmpfs") && error.contains("local disk"), "{error}");
    let error = Spill::create(Path::new("/no/such"), 1 << 20).err().expect("there is none").to_string();
    assert!(error.contains("/no/such"), "{error}");
}

/// The spill file of this process that lies in `directory`.
fn open_file(directory: &Path) -> std::fs::File {
    let fd = std::fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .flatten()
        .find(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|path| path.starts_with(directory) && path.to_string_lossy().contains("deleted"))
        })
        .expect("the file is open");
    std::fs::OpenOptions::new().read(true).write(true).open(fd.path()).expect("it is ours")
}

#[test]
fn damage_and_misplaced_pages_are_noticed() {
    let directory = directory();
    let spill = Spill::create(directory.path(), 1 << 20).expect("a disk");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it exists").count(), 0, "the file has no name");
    let mut slots = [Slot::default(); 2];
    spill.write(&[(0, &page(0).0), (1, &page(1).0)], &mut slots).expect("room");
    let file = open_file(directory.path());
    file.write_at(&[page(0).0[5] ^ 1], slots[0].0 * 4096 + 5).expect("ours");
    file.sync_all().expect("a disk");
    let mut found = Aligned([0; PAGE_BYTES]);
    assert_eq!(spill.read(slots[0], 0, &mut found.0), Err(SpillError::Corrupt));
    spill.read(slots[1], 1, &mut found.0).expect("untouched");
    file.set_len(0).expect("ours");
    assert_eq!(spill.read(slots[1], 1, &mut found.0), Err(SpillError::Corrupt));
    // Slots that were never given out.
    assert_eq!(spill.read(Slot(u64::MAX), 1, &mut found.0), Err(SpillError::Corrupt));
    spill.free(Slot(u64::MAX));
    spill.free(Slot(200));
}

#[test]
fn freed_space_goes_back_to_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let directory = directory();
    let spill = Spill::create(directory.path(), 16 << 20).expect("a disk");
    let data = page(3);
    let mut slots = vec![Slot::default(); 1024];
    spill.write(&vec![(0, &data.0); 1024], &mut slots).expect("room");
    let file = open_file(directory.path());
    assert!(file.metadata().expect("ours").blocks() * 512 >= 4 << 20);
    for slot in slots {
        spill.free(slot);
    }
    assert!(file.metadata().expect("ours").blocks() * 512 < 1 << 20);
}

/// Runs `child` in a forked process, `meanwhile` here while it waits, then lets it go on; whether it was content.
fn forked(spill: &Spill, meanwhile: impl FnOnce(), child: impl FnOnce() -> bool) -> bool {
    let mut ends = [0; 2];
    // SAFETY: the child of a process with other threads calls only what is made for that, and leaves by `_exit`.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        spill.before_fork();
        let process = libc::fork();
        if process == 0 {
            spill.after_fork_child();
            let mut byte = 0u8;
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1);
            libc::_exit(i32::from(!child()));
        }
        spill.after_fork_parent();
        meanwhile();
        libc::close(ends[1]);
        libc::close(ends[0]);
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn parent_and_child_do_not_write_over_each_other() {
    let directory = directory();
    let spill = spill(&directory, 1 << 20);
    let mut slots = [Slot::default(); 100];
    let pages: Vec<Aligned> = (0..100).map(page).collect();
    let given: Vec<(u64, &Page)> =
        pages.iter().enumerate().map(|(index, page)| (index as u64, &page.0)).collect();
    spill.write(&given, &mut slots).expect("room");
    let others: Vec<Aligned> = (1000..1100).map(page).collect();
    let other: Vec<(u64, &Page)> =
        others.iter().enumerate().map(|(index, page)| (index as u64, &page.0)).collect();
    let mut ours = [Slot::default(); 100];
    let content = forked(
        &spill,
        || {
            for slot in slots {
                spill.free(slot);
            }
            spill.write(&other, &mut ours).expect("room beside what the child may read");
        },
        || {
            let mut found = Aligned([0; PAGE_BYTES]);
            let mut good = (0..100).all(|index| {
                spill.read(slots[index], index as u64, &mut found.0).is_ok() && found.0 == pages[index].0
            });
            // Its own pages, in the place of freed ones, and a child of its own.
            let mut own = [Slot::default(); 50];
            slots[..50].iter().for_each(|slot| spill.free(*slot));
            good &= spill.write(&other[..50], &mut own).is_ok();
            good &= forked(
                &spill,
                || (),
                || {
                    let mut found = Aligned([0; PAGE_BYTES]);
                    (0..50).all(|index| {
                        spill.read(own[index], index as u64, &mut found.0).is_ok()
                            && found.0 == others[index].0
                            && spill.read(slots[50 + index], 50 + index as u64, &mut found.0).is_ok()
                            && found.0 == pages[50 + index].0
                    })
                },
            );
            good
        },
    );
    assert!(content);
    let mut found = Aligned([0; PAGE_BYTES]);
    for index in 0..100 {
        spill.read(ours[index], index as u64, &mut found.0).expect("ours");
        assert!(found.0 == others[index].0);
    }
    // The child has ended: what it kept from being used again is free.
    let mut more = [Slot::default(); 156];
    let data = page(7);
    spill.write(&[(0, &data.0); 156], &mut more).expect("the freed slots");
    assert_eq!(spill.disk_bytes(), 1 << 20);
}

/// Lets this process's files be so long; a limit of its own process only.
fn limit(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct is borrowed for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
}

#[test]
fn a_disk_that_refuses_is_left_alone_and_its_gaps_are_used() {
    let directory = directory();
    let content = forked(
        &spill(&directory, 1 << 20),
        || (),
        || {
            let refused = SpillError::Device(libc::EFBIG);
            let spill = spill(&directory, 64 << 20);
            limit(256 << 12);
            let pages: Vec<Aligned> = (0..64).map(page).collect();
            let given: Vec<(u64, &Page)> =
                pages.iter().enumerate().map(|(index, page)| (index as u64, &page.0)).collect();
            let mut slots = [Slot::default(); 256];
            let mut good = slots.chunks_mut(64).all(|slots| spill.write(&given, slots) == Ok(()));
            // The file is as long as it may be: refused, and not asked again for a moment.
            let mut more = [Slot::default(); 64];
            let reached = spill.bytes();
            good &= spill.is_open() && spill.write(&given, &mut more) == Err(refused);
            good &= (0..100).all(|_| spill.write(&given, &mut more) == Err(refused));
            good &= spill.bytes() == reached && spill.disk_bytes() == 256 << 12;
            // Gaps shorter than what is otherwise worth a write.
            slots.iter().step_by(16).for_each(|slot| spill.free(*slot));
            good &= spill.write(&given[..16], &mut more) == Ok(()) && spill.is_open();
            let mut found = Aligned([0; PAGE_BYTES]);
            good &= (0..16).all(|index| {
                spill.read(more[index], index as u64, &mut found.0).is_ok() && found.0 == pages[index].0
            });
            good &= (0..256).filter(|index| index % 16 != 0).all(|index| {
                spill.read(slots[index], index as u64 % 64, &mut found.0).is_ok()
                    && found.0 == pages[index % 64].0
            });
            // There is room again.
            limit(libc::RLIM_INFINITY);
            std::thread::sleep(std::time::Duration::from_millis(150));
            good && spill.is_open() && spill.write(&given, &mut more) == Ok(())
        },
    );
    assert!(content);
}
