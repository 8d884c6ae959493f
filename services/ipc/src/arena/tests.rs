// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::payload::Payload;
use proptest::prelude::*;
use std::process::exit;
use std::time::{Duration, Instant};

const SOON: Option<Duration> = Some(Duration::from_secs(10));

fn arena(bytes: u64) -> Arena {
    Arena::new(None, ArenaOptions { bytes_max: Some(bytes), ..ArenaOptions::default() }).unwrap()
}

fn put(arena: &Arena, bytes: &[u8], reads: Option<u32>) -> Handle {
    arena.put(&Outgoing::from(bytes), reads, Some(Instant::now())).unwrap().expect("there is room")
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not come about");
}

/// Runs `child` in a forked process, and waits for it. True if it returned true.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the closure, which takes no lock that another thread of the test can hold, and exits.
    match unsafe { libc::fork() } {
        0 => exit(i32::from(!std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false))),
        pid => status(pid) == 0,
    }
}

fn status(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status is writable, and the process is a child of this one.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn a_value_is_read_where_it_lies_and_its_memory_comes_back() {
    let arena = arena(1 << 20);
    let value: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
    let handle = put(&arena, &value, None);
    let handle = Handle::from_bytes(&handle.to_vec()).unwrap();
    let (view, again) = (get(&handle, SOON).unwrap(), get(&handle, SOON).unwrap());
    assert_eq!(view.to_vec(), value);
    assert_eq!(view.as_ptr(), again.as_ptr(), "the same memory, not a copy");
    arena.release(&handle);
    assert!(matches!(get(&handle, SOON), Err(Error::Expired { .. })));
    assert_eq!(arena.stats().ending_bytes, 200_000, "views keep it");
    drop(view);
    assert_eq!(again.to_vec(), value);
    drop(again);
    assert_eq!((arena.stats().used_bytes, arena.stats().values), (0, 0));
}

#[test]
fn readers_cannot_write_and_the_size_is_fixed() {
    let arena = arena(1 << 20);
    let [data, directory] = &arena.0.shared.shown;
    for fd in [data, directory] {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                fd,
                0,
            )
        };
        assert!(mapped.is_err(), "a reader's descriptor maps for loads only");
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
    }
}

#[test]
fn a_counted_value_goes_after_its_last_reading() {
    let arena = arena(1 << 20);
    let handle = put(&arena, &[7; 5000], Some(2));
    for _ in 0..2 {
        assert_eq!(arena.stats().values, 1);
        drop(get(&handle, SOON).unwrap());
    }
    assert_eq!(arena.stats().values, 0);
    assert!(matches!(get(&handle, SOON), Err(Error::Expired { .. })));
}

#[test]
fn readings_of_a_process_that_has_ended_count() {
    let arena = arena(1 << 20);
    let handle = put(&arena, &[7; 5000], Some(2));
    assert!(in_child(|| get(&handle, SOON).is_ok_and(|view| view.to_vec() == [7; 5000])));
    wait_until(|| arena.stats().readers == 0);
    assert_eq!(arena.stats().values, 1);
    drop(get(&handle, SOON).unwrap());
    assert_eq!(arena.stats().values, 0);
}

#[test]
fn a_reader_that_is_killed_gives_its_memory_back() {
    let arena = arena(64 << 10);
    let handle = put(&arena, &[1; 60_000], Some(1));
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child takes a view, tells of it and waits to be killed; it touches nothing of this test's other threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: without pointers; the child ends with the test, however that ends.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let view = get(&handle, SOON);
        rustix::io::write(&writer, &[u8::from(view.is_ok())]).unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    let mut said = [0];
    rustix::io::read(&reader, &mut said).unwrap();
    assert_eq!(said, [1]);
    let soon = Instant::now() + Duration::from_millis(50);
    assert!(
        arena.put(&Outgoing::from(&[2; 60_000][..]), None, Some(soon)).unwrap().is_none(),
        "it is in use"
    );
    // SAFETY: the child that this test made.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let late = Instant::now() + Duration::from_secs(20);
    assert!(arena.put(&Outgoing::from(&[2; 60_000][..]), None, Some(late)).unwrap().is_some());
    status(pid);
}

#[test]
fn a_writer_without_room_goes_on_when_a_view_ends() {
    let arena = arena(64 << 10);
    let handle = put(&arena, &[1; 60_000], Some(1));
    let view = get(&handle, SOON).unwrap();
    std::thread::scope(|threads| {
        let putter = threads.spawn(|| arena.put(&Outgoing::from(&[2; 60_000][..]), None, None));
        wait_until(|| arena.0.shared.books.with(|books| books.waiting) == 1);
        drop(view);
        assert!(putter.join().unwrap().unwrap().is_some());
    });
}

#[test]
fn a_full_arena_evicts_the_oldest_that_nobody_reads() {
    let options =
        ArenaOptions { bytes_max: Some(64 << 10), when_full: WhenFull::Evict, ..ArenaOptions::default() };
    let arena = Arena::new(None, options).unwrap();
    let handles: Vec<Handle> = (0..3).map(|i| put(&arena, &[i; 20_000], None)).collect();
    let held = get(&handles[0], SOON).unwrap();
    let fourth = put(&arena, &[3; 20_000], None);
    assert!(matches!(get(&handles[1], SOON), Err(Error::Expired { .. })), "the oldest that nobody reads");
    assert_eq!(get(&handles[2], SOON).unwrap().to_vec(), [2; 20_000]);
    assert_eq!(get(&fourth, SOON).unwrap().to_vec(), [3; 20_000]);
    assert_eq!(held.to_vec(), [0; 20_000]);
    assert_eq!(arena.stats().evicted, 1);
}

/// A fork's child has the views of its parent before it, so they last until both are gone.
#[test]
fn a_view_that_a_child_inherited_is_not_used_again() {
    let arena = arena(64 << 10);
    let first = put(&arena, &[1; 30_000], Some(1));
    let view = get(&first, SOON).unwrap();
    let (go, gone) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child only reads the view and a pipe, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut byte = [0];
        rustix::io::read(&go, &mut byte).unwrap();
        exit(i32::from(view.to_vec() != [1; 30_000]));
    }
    let pointer = view.as_ptr();
    drop(view);
    // Another value is taken and ended meanwhile, and no value comes to lie where the child still reads.
    for round in 0..20 {
        let other = put(&arena, &[100 + round; 20_000], Some(1));
        assert_ne!(get(&other, SOON).unwrap().as_ptr(), pointer);
    }
    rustix::io::write(&gone, &[1]).unwrap();
    assert_eq!(status(pid), 0, "the child saw other bytes");
    wait_until(|| {
        arena.stats();
        arena.0.shared.books.with(|books| books.used_bytes) == 0
    });
}

#[test]
fn a_forked_child_takes_values_and_cannot_put() {
    let arena = arena(1 << 20);
    let handle = put(&arena, &[9; 100], None);
    let mine = get(&handle, SOON).unwrap();
    let right = in_child(|| {
        let refused = arena.put(&Outgoing::from(&[1][..]), None, None);
        matches!(refused, Err(Error::NotWriter))
            && get(&handle, SOON).is_ok_and(|view| view.to_vec() == [9; 100])
    });
    assert!(right);
    assert_eq!(mine.to_vec(), [9; 100]);
    assert_eq!(get(&handle, SOON).unwrap().to_vec(), [9; 100], "the child's end changed nothing here");
}

#[test]
fn what_a_reader_sees_outlives_the_arena() {
    let arena = arena(1 << 20);
    let handle = put(&arena, &[5; 3000], None);
    let ((has_view, viewed), (is_closed, closed)) =
        (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
    // A reader in a process of its own: in this one, other tests fork and connect, and their doing so ends sessions that hung up.
    // SAFETY: the child reads the value and pipes, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let view = get(&handle, SOON);
        rustix::io::write(&viewed, &[1]).unwrap();
        rustix::io::read(&is_closed, &mut [0]).unwrap();
        let learns = matches!(get(&handle, SOON), Err(Error::Closed { .. }));
        exit(i32::from(!learns || !view.is_ok_and(|view| view.to_vec() == [5; 3000])));
    }
    drop(viewed);
    rustix::io::read(&has_view, &mut [0]).unwrap();
    // The second time without readers in the books: they have been hung up on.
    arena.close();
    let seats: Vec<u64> =
        arena.0.shared.books.with(|books| books.seats.iter().map(|seat| seat.number).collect());
    for number in seats {
        drop(arena.0.shared.books.with(|books| books.leave(number)));
    }
    arena.close();
    arena.trim();
    rustix::io::write(&closed, &[1]).unwrap();
    assert_eq!(status(pid), 0, "it sees what it saw, and learns that the arena was closed");
    assert!(matches!(arena.put(&Outgoing::from(&[1][..]), None, None), Err(Error::Closed { .. })));
    assert!(in_child(|| matches!(get(&handle, SOON), Err(Error::ServerUnavailable { .. }))), "to others");
}

#[test]
fn what_the_machine_has_no_memory_for_is_refused_each_time_and_counts_nothing() {
    let more = (memlift_ground::region::Headroom::read().bytes * 2).clamp(1 << 30, 1 << 39);
    let arena = arena(1 << 40);
    let handle = put(&arena, &[5; 3000], None);
    let before = arena.stats();
    for _ in 0..2 {
        let refused = arena.reserve(more, None).map(|room| room.is_some());
        assert!(matches!(refused, Err(Error::Memory(_))), "{refused:?}");
        assert_eq!(arena.stats(), before);
    }
    assert_eq!(get(&handle, SOON).unwrap().to_vec(), [5; 3000]);
}

#[test]
fn the_memory_of_a_closed_arena_goes_with_the_last_view() {
    let arena = arena(1 << 20);
    let inode = rustix::fs::fstat(arena.0.shared.data.as_fd().unwrap()).unwrap().st_ino;
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()))
    };
    let handle = put(&arena, &[5; 3000], None);
    let view = get(&handle, SOON).unwrap();
    drop(arena);
    assert_eq!(view.to_vec(), [5; 3000]);
    assert!(is_mapped());
    drop(view);
    assert!(!is_mapped());
}

#[test]
fn the_latest_value_is_what_a_slow_follower_gets() {
    let arena = arena(1 << 20);
    let publish = |value: u8| {
        let mut room = arena.reserve(1000, None).unwrap().unwrap();
        room.write(0, &Outgoing::from(&[value; 1000][..])).unwrap();
        assert!(matches!(arena.publish("weights", room, Slow::Wait, None).unwrap(), Published::Done(_)));
    };
    publish(1);
    let follower = Subscription::open(arena.address(), "weights", None, SOON).unwrap();
    let next = |limit: u64| follower.next(Some(Instant::now() + Duration::from_millis(limit))).unwrap();
    let first = next(10_000).unwrap();
    assert_eq!((first.value.to_vec(), first.number), (vec![1; 1000], 1));
    assert!(next(20).is_none());
    // It has asked for one, so it gets the next; then only the latest of those that follow.
    (2..=9).for_each(publish);
    assert_eq!(next(10_000).unwrap().value.to_vec()[0], 2);
    let last = next(10_000).unwrap();
    assert_eq!((last.value.to_vec()[0], last.number, last.missed), (9, 9, 6));
    drop((first, last));
    wait_until(|| arena.stats().values == 1);
}

#[test]
fn a_follower_learns_that_the_arena_was_closed() {
    let arena = arena(1 << 20);
    let follower = Subscription::open(arena.address(), "x", None, SOON).unwrap();
    arena.close();
    let late = Instant::now() + Duration::from_secs(10);
    assert!(matches!(follower.next(Some(late)), Err(Error::PeerDied { .. })));
}

#[test]
fn every_value_comes_in_order_and_a_full_follower_stops_the_publisher() {
    let arena = arena(1 << 20);
    let publish = |value: u8, slow: Slow, until: Option<Instant>| {
        let mut room = arena.reserve(1000, None).unwrap().unwrap();
        room.write(0, &Outgoing::from(&[value; 1000][..])).unwrap();
        matches!(arena.publish("steps", room, slow, until).unwrap(), Published::Done(_))
    };
    let follower = Subscription::open(arena.address(), "steps", Some(2), SOON).unwrap();
    wait_until(|| {
        arena.0.shared.books.with(|books| {
            let following = books.seats.first().and_then(|seat| seat.following.as_ref());
            following.is_some_and(|following| !following.is_full())
        })
    });
    let mut put = 0;
    while publish(put, Slow::Wait, Some(Instant::now() + Duration::from_millis(100))) {
        put += 1;
    }
    assert!((2..=4).contains(&put), "{put}: as many as may wait, and those under way");
    assert_eq!(arena.slow_subscriber("steps"), Some(std::process::id()));
    for value in 0..put {
        let update = follower.next(Some(Instant::now() + Duration::from_secs(10))).unwrap().unwrap();
        assert_eq!((update.value.to_vec()[0], update.missed), (value, 0));
    }
    for value in 0..10 {
        assert!(publish(value, Slow::Drop, Some(Instant::now())));
    }
    let mut seen = Vec::new();
    while let Some(update) = follower.next(Some(Instant::now() + Duration::from_millis(200))).unwrap() {
        seen.push((update.value.to_vec()[0], update.missed));
    }
    assert_eq!(seen.last().map(|seen| seen.0), Some(9));
    assert_eq!(seen.last().map(|seen| seen.1 as usize), Some(10 - seen.len()));
    drop(arena);
    assert!(matches!(follower.next(None), Err(Error::PeerDied { .. })), "the arena's end is noticed");
}

#[test]
fn memory_goes_back_when_it_is_not_needed() {
    let arena = arena(8 << 20);
    let handle = put(&arena, &[1; 4 << 20], Some(1));
    assert!(arena.stats().memory_bytes >= 4 << 20);
    drop(get(&handle, SOON).unwrap());
    arena.stats();
    arena.trim();
    assert_eq!(arena.stats().memory_bytes, 0);
    let fd = arena.0.shared.data.as_fd().unwrap();
    assert_eq!(rustix::fs::fstat(fd).unwrap().st_blocks, 0, "the kernel agrees");
    let again = put(&arena, &[3; 4 << 20], None);
    assert_eq!(get(&again, SOON).unwrap().to_vec(), vec![3; 4 << 20]);
}

#[test]
fn a_handle_of_another_time_is_refused() {
    let first = arena(1 << 20);
    let stale = put(&first, &[1; 10], None);
    let other = Handle { arena: [1, 2], ..stale.clone() };
    assert!(matches!(get(&other, SOON), Err(Error::Expired { .. })));
    let beyond = Handle { id: BlockId { block: u32::MAX, ..stale.id }, ..stale.clone() };
    assert!(matches!(get(&beyond, SOON), Err(Error::PeerFault { .. })));
    let foreign = Handle { uid: stale.uid + 1, ..stale.clone() };
    assert!(get(&foreign, SOON).is_err());
    assert!(get(&stale, SOON).is_ok());
}

/// A reader that writes anything into its table and its socket costs nobody else a wrong value.
#[test]
fn a_hostile_reader_changes_no_value() {
    use crate::handshake;
    use packet::{Packet, Welcome};
    let arena = arena(256 << 10);
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    rustix::net::connect(&socket, &arena.address().socket().unwrap()).unwrap();
    let greeting =
        handshake::receive::<{ size_of::<Welcome>() }>(&socket, rustix::net::RecvFlags::empty()).unwrap();
    let handshake::Received::Packet(_, _, descriptors) = greeting else { panic!("a welcome") };
    let [_, _, table] = handshake::expect::<3>(descriptors).unwrap();
    let bytes = layout::table_bytes(BLOCKS);
    let table = Region::from_fd(table, memlift_ground::region::Access::ReadWrite, bytes).unwrap();
    let noise: Vec<u8> = (0..bytes).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
    let mut held: Vec<(Payload, u8)> = Vec::new();
    for round in 0..200_u32 {
        table.whole().write_from(&noise).unwrap();
        let packet = Packet { block: round % 40, generation: u64::from(round % 7), ..Packet::new(round % 9) };
        // It is hung up on at the first packet that makes no sense.
        let _ = handshake::send_now(&socket, &packet, &[]);
        let value = round as u8;
        let soon = Some(Instant::now());
        if let Some(handle) = arena.put(&Outgoing::from(&[value; 5000][..]), Some(1), soon).unwrap()
            && let Ok(view) = get(&handle, SOON)
        {
            held.push((view, value));
        }
        for (view, value) in &held {
            assert_eq!(view.to_vec(), [*value; 5000]);
        }
        if held.len() > 10 {
            held.remove(0);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, Option<u32>),
    Get(usize),
    Drop(usize),
    Release(usize),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..20_000, proptest::option::of(1u32..3)).prop_map(|(bytes, reads)| Step::Put(bytes, reads)),
        3 => (0usize..100).prop_map(Step::Get),
        3 => (0usize..100).prop_map(Step::Drop),
        2 => (0usize..100).prop_map(Step::Release),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever is put, taken, dropped and released in whatever order: a view shows its value, a handle its value or that it is gone.
    #[test]
    fn views_show_their_values(steps in proptest::collection::vec(step(), 1..120)) {
        let arena = arena(128 << 10);
        let mut handles: Vec<(Handle, u8)> = Vec::new();
        let mut views: Vec<(Payload, u8, usize)> = Vec::new();
        let mut number = 0_u8;
        for step in steps {
            match step {
                Step::Put(bytes, reads) => {
                    number = number.wrapping_add(1);
                    let value = vec![number; bytes];
                    if let Some(handle) = arena.put(&Outgoing::from(value.as_slice()), reads, Some(Instant::now())).unwrap() {
                        handles.push((handle, number));
                    }
                }
                Step::Get(at) if !handles.is_empty() => {
                    let (handle, value) = &handles[at % handles.len()];
                    match get(handle, SOON) {
                        Ok(view) => views.push((view, *value, handle.bytes() as usize)),
                        Err(Error::Expired { .. }) => {}
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::Drop(at) if !views.is_empty() => {
                    let at = at % views.len();
                    views.swap_remove(at);
                }
                Step::Release(at) if !handles.is_empty() => {
                    let at = at % handles.len();
                    let (handle, _) = handles.swap_remove(at);
                    arena.release(&handle);
                }
                Step::Trim => arena.trim(),
                _ => {}
            }
            for (view, value, bytes) in &views {
                prop_assert_eq!(view.to_vec(), vec![*value; *bytes]);
            }
        }
        drop(views);
        for (handle, _) in &handles {
            arena.release(handle);
        }
        // A child that another test forked meanwhile has this process's sessions until it ends.
        let waited = Instant::now();
        while arena.stats().used_bytes != 0 && waited.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        prop_assert_eq!(arena.stats().used_bytes, 0);
    }
}
