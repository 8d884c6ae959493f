// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue under several members, and under members that die where it hurts.
//!
//! - **Method** forked children that end by `_exit` or SIGKILL at a known place; a second opening of the memfd as another process
//!   would have it

use super::*;
use rustix::event::{PollFd, PollFlags, poll};

fn queue(items_max: u64, bytes_max: u64) -> Queue {
    Queue::new(&QueueOptions { items_max, bytes_max: Some(bytes_max), ..QueueOptions::default() }).unwrap()
}

fn with_ledger(ledger: Ledger) -> Queue {
    Queue::new(&QueueOptions { bytes_max: Some(1 << 20), ledger, ..QueueOptions::default() }).unwrap()
}

/// The same queue as another process has it.
fn again(queue: &Queue) -> Queue {
    Queue::from_fds(queue.as_fds().map(|fd| fd.try_clone_to_owned().unwrap())).unwrap()
}

/// Runs `body` in a forked child, which dies by SIGKILL at its end.
fn dying(body: impl FnOnce()) {
    // SAFETY: the child only uses the queue and kills itself; glibc keeps its allocator usable across fork.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            unreachable!("killed");
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status), "the child did what it had to before it was killed");
        }
    }
}

fn now() -> Option<Instant> {
    Some(Instant::now())
}

/// Runs `body` in a forked child that may map `bytes` more; whether it succeeded.
fn with_addresses(bytes: u64, body: impl FnOnce() -> bool) -> bool {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let mapped = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    // SAFETY: the child only makes and uses queues and ends; glibc keeps its allocator usable across fork.
    match unsafe { libc::fork() } {
        0 => {
            let limit = libc::rlimit { rlim_cur: mapped + bytes, rlim_max: mapped + bytes };
            // SAFETY: the limit of this process.
            let is_set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0;
            let succeeded = is_set && body();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!succeeded)) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status == 0
        }
    }
}

#[test]
fn a_queue_fits_the_addresses_that_there_are() {
    let carries = |queue: &Queue, bytes: usize| {
        queue.put(&vec![7; bytes], now()).is_ok_and(|put| put)
            && queue.get(now()).is_ok_and(|item| item.is_some_and(|item| item.bytes() == bytes as u64))
    };
    assert!(with_addresses(1 << 30, || {
        let Ok(queue) = Queue::new(&QueueOptions::default()) else { return false };
        // A second one, and memory for the program.
        let second = Queue::new(&QueueOptions::default());
        let rest = Region::anonymous(256 << 20, &RegionOptions::default());
        second.is_ok() && rest.is_ok() && carries(&queue, 10 << 20)
    }));
    let of = |bytes| QueueOptions { bytes_max: Some(bytes), ..QueueOptions::default() };
    assert!(with_addresses(400 << 20, || {
        let Ok(queue) = Queue::new(&of(128 << 20)) else { return false };
        queue.stats().budget_bytes == 128 << 20 && carries(&queue, 100 << 20)
    }));
    assert!(with_addresses(256 << 20, || matches!(Queue::new(&of(1 << 30)), Err(Error::Memory(_)))));
}

#[test]
fn items_of_all_sizes_come_in_order_and_whole() {
    let queue = queue(0, 64 << 20);
    let other = again(&queue);
    let sizes = [0usize, 1, 63, 64, 65, 255, 256, 257, 4095, 4096, 70_000, 1_000_003];
    for round in 0..3u8 {
        for &size in &sizes {
            let item: Vec<u8> = (0..size).map(|i| (i as u8).wrapping_mul(31) ^ round).collect();
            assert!(queue.put(&item, now()).unwrap());
        }
        assert_eq!(queue.len(), sizes.len());
        for &size in &sizes {
            let item = other.get(now()).unwrap().expect("put before");
            let expected: Vec<u8> = (0..size).map(|i| (i as u8).wrapping_mul(31) ^ round).collect();
            assert!(item.to_vec().unwrap() == expected, "{size}");
        }
        assert!(other.get(now()).unwrap().is_none());
    }
    let stats = queue.stats();
    assert_eq!((stats.items, stats.writing, stats.reading, stats.viewed_bytes), (0, 0, 0, 0));
}

#[test]
fn limits_on_items_and_bytes_are_kept() {
    let few = queue(2, 1 << 20);
    assert!(few.put(b"a", now()).unwrap() && few.put(&[1; 500], now()).unwrap());
    assert!(!few.put(b"c", now()).unwrap() && !few.put(&[1; 500], now()).unwrap());
    assert_eq!(few.get(now()).unwrap().unwrap().to_vec().unwrap(), b"a");
    assert!(few.put(b"c", now()).unwrap());

    let small = queue(0, 1 << 20);
    assert!(matches!(small.put(&vec![0; 2 << 20], now()), Err(Error::MessageTooLarge { .. })));
    let mut fitted = 0;
    while small.put(&vec![7; 100_000], now()).unwrap() {
        fitted += 1;
    }
    assert!((6..=10).contains(&fitted), "{fitted}");
    let held: Vec<Item> = (0..fitted).map(|_| small.get(now()).unwrap().unwrap()).collect();
    assert!(held.last().unwrap().is_crowded());
    assert!(!small.put(&vec![7; 100_000], now()).unwrap(), "what is looked at still takes its room");
    drop(held);
    assert!(small.put(&vec![7; 300_000], now()).unwrap(), "blocks of other sizes lose their memory first");
    assert!(small.stats().memory_bytes <= 1 << 20);
}

#[test]
fn many_members_lose_and_double_nothing() {
    const EACH: u64 = 2000;
    let queue = queue(16, 8 << 20);
    let sum = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for producer in 0..3u64 {
            let queue = again(&queue);
            scope.spawn(move || {
                for i in 0..EACH {
                    let mut item = vec![0; if i % 7 == 0 { 9000 } else { 8 }];
                    item[..8].copy_from_slice(&(producer * EACH + i).to_le_bytes());
                    assert!(queue.put(&item, None).unwrap());
                }
            });
        }
        for _ in 0..3 {
            let (queue, sum) = (again(&queue), &sum);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let item = queue.get(None).unwrap().unwrap().to_vec().unwrap();
                    sum.fetch_add(u64::from_le_bytes(item[..8].try_into().unwrap()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), (0..3 * EACH).sum::<u64>());
    assert!(queue.is_empty());
}

#[test]
fn what_the_dead_held_comes_back() {
    let queue = queue(2, 1 << 20);
    dying(|| {
        // One being written, and one taken and looked at.
        queue.put(&[1; 1000], None).unwrap();
        std::mem::forget(queue.get(None).unwrap().unwrap());
        std::mem::forget(queue.reserve(200_000, None).unwrap().unwrap());
    });
    let stats = queue.stats();
    assert_eq!((stats.writing, stats.reading), (1, 1), "nobody has looked yet");
    assert!(queue.put(&[2; 400_000], now()).unwrap());
    assert!(queue.put(&[3; 300_000], now()).unwrap(), "a putter without room looks for the dead");
    let stats = queue.stats();
    assert_eq!((stats.writing, stats.reading, stats.items), (0, 0, 2));
    assert_eq!(queue.get(now()).unwrap().unwrap().bytes(), 400_000);
}

#[test]
fn who_dies_inside_the_lock_is_followed_by_the_next() {
    let queue = queue(0, 16 << 20);
    for i in 0..50u8 {
        queue.put(&[i; 300], None).unwrap();
    }
    for state in [FREE, WRITING] {
        dying(|| {
            let own = queue.0.own().unwrap();
            let guard = lock::lock(&queue.0.head().lock, &own.turn, &own.member, &queue.0.region, None);
            let table = queue.0.table();
            // Half of a put: the books say other things than the slots.
            let place = table.reserve(300, own.member.identity).unwrap().unwrap();
            table.slot(place.slot).unwrap().state.store(state, Ordering::Relaxed);
            queue.0.head().taken.store(77, Ordering::Relaxed);
            queue.0.head().put.store(0, Ordering::Relaxed);
            std::mem::forget(guard);
        });
        queue.put(&[0xee; 300], None).unwrap();
    }
    let mut seen = Vec::new();
    while let Some(item) = queue.get(now()).unwrap() {
        seen.push(item.to_vec().unwrap()[0]);
    }
    let known: Vec<u8> = (0..50).chain([0xee; 2]).collect();
    seen.retain(|byte| known.contains(byte));
    let ours: Vec<u8> = seen.iter().copied().filter(|&byte| byte < 50).collect();
    assert_eq!(ours, (0..50).collect::<Vec<u8>>(), "in order, none lost, none twice");
    assert_eq!(seen.iter().filter(|&&byte| byte == 0xee).count(), 2);
}

#[test]
fn who_stands_still_inside_the_lock_costs_the_others_their_time_and_no_more() {
    let queue = queue(0, 16 << 20);
    queue.put(&[1; 300], None).unwrap();
    let own = queue.0.own().unwrap();
    // Another thread of this process here; one of another process is waited for by the same clock.
    let guard = lock::lock(&queue.0.head().lock, &own.turn, &own.member, &queue.0.region, None);
    let soon = || Some(Instant::now() + Duration::from_millis(5));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(queue.get(soon()).unwrap().is_none());
            assert!(!queue.put(&[2; 300], soon()).unwrap());
            assert!(!queue.put(&[2; 300_000], soon()).unwrap());
        });
    });
    // And of another process, by the word alone.
    std::mem::forget(guard);
    let free = std::sync::Mutex::new(());
    let holder = lock::lock(&queue.0.head().lock, &free, &own.member, &queue.0.region, soon());
    assert!(holder.is_none(), "its holder lives");
    queue.0.head().lock.store(0, Ordering::Release);
    assert!(lock::lock(&queue.0.head().lock, &free, &own.member, &queue.0.region, soon()).is_some());
}

#[test]
fn a_forked_child_is_a_member_of_its_own() {
    let queue = queue(0, 1 << 20);
    queue.put(&[5; 1000], None).unwrap();
    let held = queue.get(None).unwrap().unwrap();
    dying(|| {
        drop(held_copy(&held));
        queue.put(b"from the child", None).unwrap();
    });
    assert_eq!(queue.get(now()).unwrap().unwrap().to_vec().unwrap(), b"from the child");
    assert_eq!(queue.stats().reading, 1, "the child's copy of an item was not its to give back");
    assert_eq!(held.to_vec().unwrap(), [5; 1000]);
    drop(held);
    assert_eq!(queue.stats().reading, 0);
}

/// The copy of `held` that a fork made, as the child drops it.
fn held_copy(held: &Item) -> Item {
    // SAFETY: the child's copy; the original is never dropped there, since the child is killed.
    unsafe { std::ptr::read(held) }
}

#[test]
fn spoilt_books_are_an_error() {
    let spoil: [fn(&Queue); 4] = [
        |queue| {
            let table = queue.0.table();
            table.slot(0).unwrap().offset.store(u64::MAX - 10, Ordering::Relaxed);
        },
        |queue| queue.0.table().slot(0).unwrap().bytes.store(1 << 40, Ordering::Relaxed),
        |queue| queue.0.table().slot(0).unwrap().state.store(9, Ordering::Relaxed),
        |queue| queue.0.table().slot(0).unwrap().class.store(159, Ordering::Relaxed),
    ];
    for spoil in spoil {
        let queue = queue(0, 1 << 20);
        queue.put(&[1; 1000], None).unwrap();
        spoil(&queue);
        assert!(matches!(queue.get(now()), Err(Error::PeerFault { .. })));
    }
    let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let opened = |memfd: &OwnedFd| {
        let bell = queue(0, 1 << 20).as_fds()[1].try_clone_to_owned().unwrap();
        Queue::from_fds([memfd.try_clone().unwrap(), bell])
    };
    assert!(opened(&memfd).is_err());
    rustix::fs::ftruncate(&memfd, POOL_AT + 4096).unwrap();
    assert!(opened(&memfd).is_err(), "not sealed, no queue");
}

/// Returns true if the queue's descriptor is readable.
fn rings(queue: &Queue) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(queue.readiness().unwrap(), PollFlags::IN)];
    poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_while_something_waits() {
    let queue = queue(0, 1 << 20);
    let other = again(&queue);
    queue.put(b"before it is watched", None).unwrap();
    assert!(rings(&other) && rings(&queue), "what was there before counts");
    for item in [&b"short"[..], &[7; 500]] {
        other.put(item, None).unwrap();
        assert!(rings(&queue));
        drop(queue.get(now()).unwrap().unwrap());
        assert!(rings(&other), "one is left");
    }
    drop(other.get(now()).unwrap().unwrap());
    assert!(!rings(&queue) && !rings(&other));
    assert!(queue.get(now()).unwrap().is_none() && !rings(&queue));
    let reserved = queue.reserve(500, None).unwrap().unwrap();
    assert!(!rings(&other), "it is not there yet");
    reserved.publish().unwrap();
    assert!(rings(&other));
}

#[test]
fn who_hears_the_bell_finds_the_item() {
    let queue = queue(0, 1 << 20);
    assert!(!rings(&queue));
    let other = again(&queue);
    let (rung, heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A put that is slow between its bell and its item.
            let own = other.0.own().unwrap();
            let slow = other.0.locked(own, |table| {
                let place = table.reserve(4, own.member.identity)?.unwrap();
                table.bell.set(true);
                rung.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                table.publish(place.slot)
            });
            slow.unwrap();
        });
        heard.recv().unwrap();
        assert!(rings(&queue));
        assert!(queue.get(now()).unwrap().is_some());
    });
}

#[test]
fn whoever_dies_with_the_bell_in_hand_leaves_no_silent_item() {
    // Where a member may die as it puts the first item or takes the last one, by what it has done until then.
    let rung_only: fn(&Table<'_>) = |table| table.bell.set(true);
    let put_and_no_more: fn(&Table<'_>) = |table| {
        table.bell.set(true);
        let place = table.reserve(4, 77).unwrap().unwrap();
        let slot = table.slot(place.slot).unwrap();
        slot.number.store(1 << 40, Ordering::Relaxed);
        slot.state.store(READY, Ordering::Relaxed);
    };
    for (die, waits) in [(rung_only, false), (put_and_no_more, true)] {
        let queue = queue(0, 1 << 20);
        assert!(!rings(&queue));
        dying(|| {
            let own = queue.0.own().unwrap();
            let guard = lock::lock(&queue.0.head().lock, &own.turn, &own.member, &queue.0.region, None);
            die(&queue.0.table());
            std::mem::forget(guard);
        });
        assert!(rings(&queue), "somebody looks");
        assert_eq!(queue.get(now()).unwrap().is_some(), waits);
        assert!(!rings(&queue), "nobody looks for ever at what is not there");
    }
}

#[test]
fn tasks_are_joined_and_those_of_the_dead_count_as_done() {
    let queue = with_ledger(Ledger::Tasks);
    assert!(queue.join(now()).unwrap() && !queue.task_done().unwrap());
    for item in [&b"a"[..], &[1; 500], b"c"] {
        queue.put(item, None).unwrap();
    }
    assert!(!queue.join(now()).unwrap());
    let other = again(&queue);
    drop((queue.get(None).unwrap(), other.get(None).unwrap()));
    assert!(queue.task_done().unwrap() && queue.task_done().unwrap(), "its own, and one that it was handed");
    assert!(!queue.task_done().unwrap() && !queue.join(now()).unwrap(), "one waits");
    dying(|| drop(queue.get(None).unwrap().unwrap()));
    assert!(queue.join(None).unwrap(), "whoever had the last one is dead");
    assert!(!queue.task_done().unwrap());

    queue.put(b"d", None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(other.get(None).unwrap().is_some());
            assert!(other.task_done().unwrap());
        });
        assert!(queue.join(None).unwrap());
    });
    assert!(again(&queue).join(now()).unwrap(), "a new member owes nothing");
}

#[test]
fn the_call_of_a_dead_worker_is_told_once() {
    let queue = with_ledger(Ledger::Calls);
    let identity = |queue: &Queue| queue.identity().unwrap();
    let told = again(&queue);
    let ends: [fn(&Queue); 3] = [
        |_| {},
        |queue| queue.settle_call().unwrap(),
        // Noted, and not yet taken.
        |queue| queue.0.locked(queue.0.own().unwrap(), |table| table.owe(queue.identity()?, 40)).unwrap(),
    ];
    for (end, expected) in ends.into_iter().zip([Some(3), None, None]) {
        queue.put_labelled(&[5; 300], [3, 9], None).unwrap();
        queue.put_labelled(b"short", [40, 8], None).unwrap();
        let shared =
            Queue::new(&QueueOptions { bytes_max: Some(1 << 16), ..QueueOptions::default() }).unwrap();
        dying(|| {
            let item = queue.get(None).unwrap().unwrap();
            assert_eq!((item.label(), item.bytes()), ([3, 9], 300));
            end(&queue);
            shared.put(&identity(&queue).to_le_bytes(), None).unwrap();
        });
        let own = shared.get(now()).unwrap().unwrap().to_vec().unwrap();
        let worker = u32::from_le_bytes(own.try_into().unwrap());
        let next = again(&queue);
        assert_eq!(told.lost(identity(&next)).unwrap(), None, "a living worker that took nothing");
        assert_eq!(told.lost(worker).unwrap(), expected);
        assert_eq!(told.lost(worker).unwrap(), None, "once");
        assert_eq!(told.get(now()).unwrap().unwrap().label(), [40, 8]);
        told.settle_call().unwrap();
    }
}
