// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pager at its limits: data that does not pack, budgets that change or are impossible, threads, signals, other users.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::pager_child::{Random, forked, in_child, outcome_of, start, under_every_mask};
use memlift_zmem::arena::Arena;
use memlift_zmem::block::OnOverflow;
use memlift_zmem::spill::Spill;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn write_noise(bytes: &mut [u8], seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
}

fn check_noise(bytes: &[u8], seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for word in bytes.chunks_exact(8) {
        assert_eq!(word, random.next().to_le_bytes(), "noise {seed}");
    }
}

#[test]
fn what_does_not_pack_is_spilled() {
    under_every_mask("limits::what_does_not_pack_is_spilled", || {
        let pager = start(12 * MIB, OnOverflow::Fail);
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        pager.spill_to(Spill::create(folder.path(), 1 << 30).expect("a file")).expect("the first");
        let mut arena = Arena::new(pager, 24 * MIB).expect("an arena");
        let pages = 24 * MIB / PAGE;
        for page in 0..pages {
            write_noise(&mut arena[page * PAGE..][..PAGE], page as u64);
        }
        let mut random = Random(99);
        for _ in 0..1000 {
            let page = random.below(pages);
            check_noise(&arena[page * PAGE..][..PAGE], page as u64);
        }
        let child = forked(pager, || {
            for page in 0..pages {
                check_noise(&arena[page * PAGE..][..PAGE], page as u64);
            }
        });
        child.wait();
        for page in 0..pages {
            check_noise(&arena[page * PAGE..][..PAGE], page as u64);
        }
        let numbers = pager.numbers();
        println!("{numbers:?}");
        assert!(numbers.pages_spilled > 2000, "{numbers:?}");
        assert!(
            numbers.present_bytes + numbers.native_bytes + numbers.store_bytes + numbers.table_bytes
                <= 13 * MIB
        );
    });
}

#[test]
fn what_is_read_in_order_keeps_its_place_in_the_file() {
    under_every_mask("limits::what_is_read_in_order_keeps_its_place_in_the_file", || {
        let pager = start(12 * MIB, OnOverflow::Fail);
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        pager.spill_to(Spill::create(folder.path(), 1 << 30).expect("a file")).expect("the first");
        let mut arena = Arena::new(pager, 24 * MIB).expect("an arena");
        let pages = 24 * MIB / PAGE;
        let mut seeds: Vec<u64> = (0..pages as u64).collect();
        for (page, seed) in seeds.iter().enumerate() {
            write_noise(&mut arena[page * PAGE..][..PAGE], *seed);
        }
        let mut spilled = [0; 4];
        for spilled in &mut spilled {
            for (page, seed) in seeds.iter().enumerate() {
                check_noise(&arena[page * PAGE..][..PAGE], *seed);
            }
            *spilled = pager.numbers().pages_spilled;
        }
        println!("{spilled:?} {:?}", pager.numbers());
        assert!(
            spilled[3] - spilled[0] < 3 * pages as u64 / 4,
            "what was only read is written again: {spilled:?}"
        );
        // Pages whose copies are in the file are written, given other access, inherited and dropped.
        for page in (0..pages).step_by(3) {
            check_noise(&arena[page * PAGE..][..PAGE], seeds[page]);
            seeds[page] += 100_000;
            write_noise(&mut arena[page * PAGE..][..PAGE], seeds[page]);
        }
        let base = arena.as_ptr() as usize;
        pager.protect(base, 8 * MIB, libc::PROT_READ).expect("mapped");
        let child = forked(pager, || {
            for (page, seed) in seeds.iter().enumerate() {
                check_noise(&arena[page * PAGE..][..PAGE], *seed);
            }
        });
        child.wait();
        pager.protect(base, 8 * MIB, libc::PROT_READ | libc::PROT_WRITE).expect("mapped");
        pager.advise(base + 4 * MIB, MIB, libc::MADV_DONTNEED).expect("mapped");
        for (page, seed) in seeds.iter().enumerate() {
            let contents = &arena[page * PAGE..][..PAGE];
            if (4 * MIB..5 * MIB).contains(&(page * PAGE)) {
                assert!(contents.iter().all(|byte| *byte == 0), "page {page}");
            } else {
                check_noise(contents, *seed);
            }
        }
    });
}

fn impossible(name: &str, on_overflow: OnOverflow) {
    let outcome = outcome_of(
        name,
        |_| {},
        || {
            let pager = start(16 * MIB, on_overflow);
            let mut arena = Arena::new(pager, 64 * MIB).expect("an arena");
            for page in 0..64 * MIB / PAGE {
                write_noise(&mut arena[page * PAGE..][..PAGE], page as u64);
            }
            panic!("64 MiB of noise fit into 16 MiB");
        },
    );
    if let Some((text, status)) = outcome {
        assert_eq!(status.code(), Some(75), "{text}");
        assert!(text.contains("more than its budget"), "{text}");
    }
}

#[test]
fn an_impossible_budget_is_said_in_words() {
    impossible("limits::an_impossible_budget_is_said_in_words", OnOverflow::Fail);
}

#[test]
fn a_pause_has_an_end() {
    impossible("limits::a_pause_has_an_end", OnOverflow::Pause { limit_s: 1 });
}

/// Threads write and check their own pages and read the others', while the budget changes all the time.
fn threads(seconds: u64) {
    let pager = start(24 * MIB, OnOverflow::Pause { limit_s: 60 });
    let pages = 48 * MIB / PAGE;
    let arena = Arena::new(pager, pages * PAGE).expect("an arena");
    let base = arena.as_ptr() as usize;
    let stop = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                let mut random = Random(thread as u64 * 77 + 5);
                let mut versions = vec![0u64; pages];
                while !stop.load(Ordering::Relaxed) {
                    let page = random.below(pages / 4) * 4 + thread;
                    let words = (base + page * PAGE) as *mut u64;
                    let version = versions[page];
                    for index in (0..PAGE / 8).step_by(7) {
                        // SAFETY: the page is this thread's to write; others read it as volatile words.
                        let found = unsafe { words.add(index).read_volatile() };
                        let expected =
                            if version == 0 { 0 } else { version << 32 | (page * 512 + index) as u64 };
                        assert_eq!(found, expected, "page {page} word {index}");
                    }
                    if random.below(2) == 0 {
                        versions[page] += 1;
                        for index in (0..PAGE / 8).step_by(7) {
                            let value = versions[page] << 32 | (page * 512 + index) as u64;
                            // SAFETY: the page is this thread's to write, and the index lies within it.
                            unsafe { words.add(index).write_volatile(value) };
                        }
                    }
                    let other = (base + random.below(pages) * PAGE) as *const u64;
                    // SAFETY: a word of the arena; whoever writes it writes whole words.
                    let low = unsafe { other.read_volatile() } as u32 as usize;
                    assert!(low == 0 || low == (other as usize - base) / 8, "another page's word");
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (registry, block) = (pager.job().registry(), pager.job().block());
        let mut random = Random(3);
        for _ in 0..seconds * 1000 {
            registry.set_total(block, (20 + random.below(24)) * MIB).expect("the machine has room");
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} rounds, {:?}", rounds.load(Ordering::Relaxed), pager.numbers());
    assert!(rounds.load(Ordering::Relaxed) > 1000);
}

#[test]
fn threads_agree_while_the_budget_changes() {
    under_every_mask("limits::threads_agree_while_the_budget_changes", || threads(1));
}

/// While the kernel compacts memory, it migrates pages that are just leaving or coming back.
#[test]
fn threads_agree_while_the_kernel_compacts_memory() {
    const COMPACT: &str = "/proc/sys/vm/compact_memory";
    in_child("limits::threads_agree_while_the_kernel_compacts_memory", || {
        if let Err(error) = std::fs::write(COMPACT, "1") {
            eprintln!("not run: {COMPACT}: {error}");
            return;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::fs::write(COMPACT, "1").expect("it was writable");
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            threads(2);
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn what_is_written_while_a_page_comes_back_stays() {
    under_every_mask("limits::what_is_written_while_a_page_comes_back_stays", || {
        let pager = start(12 * MIB, OnOverflow::Fail);
        let pages = 24 * MIB / PAGE;
        let arena = Arena::new(pager, pages * PAGE).expect("an arena");
        let base = arena.as_ptr() as usize;
        // SAFETY: words of the arena; each is written by one thread.
        let word =
            |page: usize, index: usize| unsafe { &*((base + page * PAGE) as *const AtomicUsize).add(index) };
        for page in 0..pages {
            for index in 0..PAGE / 8 {
                word(page, index).store(page % 1000 + index % 7, Ordering::Relaxed);
            }
        }
        let (at, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (at, stop) = (&at, &stop);
                scope.spawn(move || {
                    let (mut written, mut random) = (vec![0; pages], Random(thread as u64 + 9));
                    while !stop.load(Ordering::Relaxed) {
                        // About where the run of faults is.
                        let page = (at.load(Ordering::Relaxed) + random.below(130)) % pages;
                        let place = word(page, 8 + thread);
                        if written[page] != 0 {
                            assert_eq!(place.load(Ordering::Relaxed), written[page], "page {page}");
                        }
                        written[page] = written[page].max(1 << 20) + 1;
                        place.store(written[page], Ordering::Relaxed);
                    }
                    for (page, written) in written.iter().enumerate().filter(|(_, written)| **written != 0) {
                        assert_eq!(word(page, 8 + thread).load(Ordering::Relaxed), *written, "page {page}");
                    }
                });
            }
            for _ in 0..8 {
                for page in 0..pages {
                    at.store(page, Ordering::Relaxed);
                    assert_eq!(word(page, 500).load(Ordering::Relaxed), page % 1000 + 500 % 7, "page {page}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("{:?}", pager.numbers());
    });
}

static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touch(_: i32) {
    let count = TOUCHED.fetch_add(1, Ordering::Relaxed);
    let words = BASE.load(Ordering::Relaxed) as *mut u64;
    let at = (count * 7919 % 4096) * 512;
    // SAFETY: the word lies in the arena that BASE names, and only the handler writes this one.
    unsafe {
        let found = words.add(at + 1).read_volatile();
        assert!(found == 0 || found == at as u64 + 1, "a handler found another's word");
        words.add(at + 1).write_volatile(at as u64 + 1);
    }
}

#[test]
fn handlers_touch_pages_at_any_moment() {
    under_every_mask("limits::handlers_touch_pages_at_any_moment", || {
        let pager = start(10 * MIB, OnOverflow::Fail);
        let arena = Arena::new(pager, 16 * MIB).expect("an arena");
        let base = arena.as_ptr() as usize;
        BASE.store(base, Ordering::Relaxed);
        // SAFETY: the handler is async-signal-safe: it touches atomics and the arena.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = touch as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
            let every = libc::timeval { tv_sec: 0, tv_usec: 300 };
            let timer = libc::itimerval { it_interval: every, it_value: every };
            assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()), 0);
        }
        let mut random = Random(11);
        for _ in 0..40_000 {
            let page = random.below(4096);
            let word = (base + page * PAGE) as *mut u64;
            // SAFETY: a word that only this loop writes.
            unsafe {
                let found = word.read_volatile();
                assert!(found == 0 || found == page as u64 + 1, "page {page} holds {found}");
                word.write_volatile(page as u64 + 1);
            }
            if random.below(8) == 0 {
                let bytes = (1 + random.below(600)) * PAGE;
                let start = pager.map(bytes, libc::PROT_READ | libc::PROT_WRITE, None).expect("mapped");
                // SAFETY: mapped just now.
                unsafe { (start as *mut u64).write_volatile(1) };
                pager.unmap(start, bytes).expect("unmapped");
            }
        }
        // SAFETY: stops the timer.
        unsafe {
            let timer: libc::itimerval = std::mem::zeroed();
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        }
        println!("{} handlers, {:?}", TOUCHED.load(Ordering::Relaxed), pager.numbers());
        assert!(TOUCHED.load(Ordering::Relaxed) > 10);
        // The handler may run in another thread still.
        std::mem::forget(arena);
    });
}

/// CPU time of this thread, nanoseconds.
fn cpu_ns() -> usize {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as usize * 1_000_000_000 + time.tv_nsec as usize
}

/// CPU time of the thread at the last signal.
static LAST_NS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: i32) {
    const LATE_NS: usize = 200_000_000;
    let now = cpu_ns();
    let late = now - LAST_NS.swap(now, Ordering::Relaxed) > LATE_NS;
    let line = if late { "a signal came late\n" } else { "" };
    // SAFETY: the text is a constant of this length; the call is async-signal-safe.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Memory that packs in no way is tried page by page, for seconds, before the job is found not to fit.
#[test]
fn a_signal_does_not_wait_until_every_page_was_tried() {
    for mask in ["", "uffd,uffd_kernel"] {
        let outcome = outcome_of(
            "limits::a_signal_does_not_wait_until_every_page_was_tried",
            |command| {
                command.env("MEMLIFT_DISABLE", mask);
            },
            || {
                let pager = start(128 * MIB, OnOverflow::Pause { limit_s: 1 });
                let mut arena = Arena::new(pager, 160 * MIB).expect("an arena");
                // SAFETY: the handler is async-signal-safe; the thread that gets the signals is this one, which does not end.
                let thread = unsafe {
                    libc::signal(libc::SIGUSR1, on_signal as *const () as usize);
                    libc::pthread_self()
                };
                LAST_NS.store(cpu_ns(), Ordering::Relaxed);
                std::thread::spawn(move || {
                    loop {
                        std::thread::sleep(Duration::from_millis(20));
                        // SAFETY: the thread lives as long as this process.
                        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                    }
                });
                for page in 0..160 * MIB / PAGE {
                    write_noise(&mut arena[page * PAGE..][..PAGE], page as u64);
                }
                unreachable!("it does not fit");
            },
        );
        let Some((text, status)) = outcome else { return };
        assert_eq!(status.code(), Some(75), "{text}");
        assert!(!text.contains("late"), "{text}");
    }
}
