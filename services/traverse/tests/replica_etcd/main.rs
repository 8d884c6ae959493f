// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A replicated node in real processes with a real etcd: what is killed, stopped and started again, and what its clients hear.
//!
//! - **Flow** this program starts itself as the copies of node `a`; writers in threads note each change that was acknowledged (`world`)
//! - **Needs** etcd (`etcd_world`); without it each test says so and is skipped
//! - **Not here** etcd and addresses that fail (`faults`), networks that fail, and histories that are checked (`history`)
#![cfg(feature = "etcd")]

#[path = "../etcd_world/mod.rs"]
mod etcd_world;
mod faults;
mod history;
mod net;
mod world;

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, Config, Request};
use memlift_traverse::map::frame::{Frames, Protocol, Side};
use memlift_traverse::map::{Address, Authority, Source};
use memlift_traverse::node::{Cluster, ClusterOptions, NodeOptions};
use memlift_traverse::transport::udp::Udp;
use rustix::process::Signal;
use world::{LEASE_S, MEMORY, PATIENCE, WRITERS, World, Writers, under_writers, wait};

#[test]
#[ignore = "a copy of the node of another test"]
fn serve_as_a_copy_of_the_node_of_another_test() {
    world::serve();
}

#[test]
fn a_killed_primary_loses_no_acknowledged_change_and_none_is_made_twice() {
    let Some(world) = World::start(false) else { return };
    let [mut first, second] = world.two();
    under_writers(&world, |writers| {
        first.kill();
        world.map(|map| world.primary_of(map) == Some(second.at));
        writers.wait_for(100);
        // A third process takes the lost copy over; then the second one may die as well.
        let third = world.copy(0);
        wait("another backup", || second.is_listed());
        writers.wait_for(100);
        drop(second);
        world.map(|map| world.primary_of(map) == Some(third.at));
        writers.wait_for(100);
        third
    });
}

#[test]
fn changes_wait_for_a_killed_or_stopped_backup_until_etcd_lists_none_and_go_on() {
    let Some(world) = World::start(false) else { return };
    let [first, mut second] = world.two();
    under_writers(&world, |writers| {
        let epoch = world.map(|_| true).epoch();
        second.kill();
        writers.wait_for(100);
        let map = world.map(|map| map.epoch() > epoch);
        assert_eq!(map.node_named("a").expect("a").addresses.len(), 1, "no backup is listed");
        assert_eq!(world.primary_of(&map), Some(first.at));
        // One that stands still is no other.
        let second = world.copy(1);
        wait("another backup", || first.is_listed());
        second.signal(Signal::STOP);
        let begun = Instant::now();
        writers.wait_for(100);
        assert!(
            begun.elapsed() >= Duration::from_millis(500),
            "changes waited for the backup that was listed"
        );
        world.map(|map| map.node_named("a").is_some_and(|node| node.addresses.len() == 1));
        // It has missed changes: when it wakes up, it takes nothing over, and begins anew.
        second.signal(Signal::CONT);
        wait("another copy", || first.is_listed());
        writers.wait_for(100);
        second
    });
    drop(first);
}

#[test]
fn a_primary_that_stood_still_beyond_its_lease_answers_nothing_any_more() {
    let Some(world) = World::start(false) else { return };
    let [mut first, second] = world.two();
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    client.call(Request::write(word, &7u64.to_le_bytes())).expect("written");
    // Clients that only know the first process, and sent it requests while it stood still.
    let config = Config { deadline: Duration::from_secs(600), ..Config::default() };
    let connect = || Client::udp(&world.at[..1], config.clone()).unwrap_or_else(|error| panic!("{error}"));
    let (mut reader, mut writer) = (raw(&world, &mut connect()), raw(&world, &mut connect()));
    first.signal(Signal::STOP);
    reader.send(memlift_traverse::wire::Kind::Read, word, 8, &[]);
    writer.send(memlift_traverse::wire::Kind::Write, word, 0, &9u64.to_le_bytes());
    world.map(|map| world.primary_of(map) == Some(second.at));
    client.call(Request::write(word, &8u64.to_le_bytes())).expect("written by the new primary");
    first.signal(Signal::CONT);
    // It ends by itself as soon as it has read the map.
    wait("its end", || first.has_ended());
    assert_eq!(reader.answers(), 0, "a read of a primary without a lease");
    assert_eq!(writer.answers(), 0, "a change that the new primary does not have");
    let read = client.call(Request::read(word, 8)).expect("read").body;
    assert_eq!(read, 8u64.to_le_bytes());
    drop(second);
}

/// A socket that sends single requests to the first process, and counts what comes back.
struct Raw {
    socket: UdpSocket,
    header: memlift_traverse::wire::Header,
}

fn raw(world: &World, client: &mut Client) -> Raw {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(world.at[0]).expect("connected");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later");
    let number = now.as_nanos() as u64;
    let header = memlift_traverse::wire::Header {
        client: number,
        incarnation: 1,
        sequence: 1,
        settled: 1,
        sender: number,
        nonce: number,
        epoch: client.epoch(),
        session: (now.as_secs() - 1) << 32,
        ..memlift_traverse::wire::Header::new(memlift_traverse::wire::Kind::Read)
    };
    let mut raw = Raw { socket, header };
    // It is answered as long as its node is the primary.
    raw.send(memlift_traverse::wire::Kind::Map, 0, 0, &[]);
    assert_eq!(raw.answers(), 1);
    raw
}

impl Raw {
    fn send(&mut self, kind: memlift_traverse::wire::Kind, address: u64, value: u64, body: &[u8]) {
        let header = memlift_traverse::wire::Header { kind, address, value, ..self.header };
        let mut packet = Vec::new();
        memlift_traverse::wire::Keys::none().seal(&header, body, &mut packet);
        self.socket.send(&packet).expect("sent");
    }

    fn answers(&mut self) -> usize {
        let mut bytes = [0; 8192];
        let mut count = 0;
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let packet = memlift_traverse::wire::Packet::parse(&bytes[..length]).expect("a packet");
            // That it may not answer is no answer.
            count += usize::from(packet.header.status != memlift_traverse::wire::Status::NoLease);
        }
        count
    }
}

#[test]
fn both_copies_start_again_from_their_logs_with_all_that_was_acknowledged() {
    let Some(world) = World::start(true) else { return };
    let [mut first, mut second] = world.two();
    let mut client = world.client();
    let writers = Writers::new(&mut client);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS as usize)
            .map(|index| {
                let (world, writers) = (&world, &writers);
                scope.spawn(move || writers.run(world, index))
            })
            .collect();
        writers.wait_for(100);
        first.kill();
        second.kill();
        // The one that had been the backup first, and alone: its log has everything, too.
        let second = world.copy(1);
        world.map(|map| world.primary_of(map) == Some(second.at));
        writers.wait_for(50);
        let first = world.copy(0);
        wait("a backup", || second.is_listed());
        writers.wait_for(50);
        // Both again, and now the one that had been the primary comes back alone.
        let (mut first, mut second) = (first, second);
        second.kill();
        first.kill();
        let second = world.copy(1);
        world.map(|map| world.primary_of(map) == Some(second.at));
        writers.wait_for(50);
        writers.stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("a writer"));
        writers.check(&world);
        drop(first);
    });
}

#[test]
fn whoever_asks_for_a_copy_is_checked() {
    let Some(world) = World::start(false) else { return };
    let first = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(first.at));
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], b"MLCO\x01\0\0\0", b""] {
        let mut stream = TcpStream::connect(first.at).expect("it listens");
        // It may have been cut off already.
        let _ = stream.write_all(nonsense);
    }
    let connect = || {
        let stream = TcpStream::connect(first.at).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Frames::greet(stream, Protocol::Replica, None, Side::Client).expect("greeted")
    };
    let hello = |version: u16, name: &str, bytes: u64, address: &str| {
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [
            &[1][..],
            &version.to_le_bytes(),
            &7u64.to_le_bytes(),
            &[0],
            &bytes.to_le_bytes(),
            &text(name),
            &text(address),
        ]
        .concat()
    };
    let own = first.at.to_string();
    for (wrong, part) in [
        (hello(2, "a", MEMORY, "127.0.0.1:9"), "version"),
        (hello(1, "b", MEMORY, "127.0.0.1:9"), "node a"),
        (hello(1, "a", MEMORY - 4096, "127.0.0.1:9"), "memory"),
        (hello(1, "a", MEMORY, "localhost:9"), "address"),
        (hello(1, "a", MEMORY, "127.0.0.1:0"), "address"),
        (hello(1, "a", MEMORY, &own), "address"),
    ] {
        let mut frames = connect();
        frames.send(&wrong).expect("sent");
        let answer = frames.receive().expect("an answer");
        let text = String::from_utf8_lossy(&answer[2..]).into_owned();
        assert!(answer[0] == 5 && text.contains(part), "{part}: {text}");
    }
    // One that claims to have what there is not, and one that says something else than it may.
    for lie in [[&[2][..], &(u64::MAX - 1).to_le_bytes()].concat(), vec![1, 2, 3], vec![]] {
        let mut frames = connect();
        frames.send(&hello(1, "a", MEMORY, "127.0.0.1:9")).expect("sent");
        assert_eq!(frames.receive().expect("the begin")[0], 1);
        frames.send(&lie).expect("sent");
        while frames.receive().is_ok() {}
    }
    let second = world.copy(1);
    wait("a backup", || first.is_listed());
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    client.call(Request::write(word, &7u64.to_le_bytes())).expect("written");
    drop(second);
}

#[test]
fn a_node_that_is_not_replicated_is_refused_the_name_of_one_that_is() {
    let Some(world) = World::start(false) else { return };
    let mut first = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(first.at));
    first.kill();
    world.map(|map| world.primary_of(map).is_none());
    let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
    let options = |name: &str| ClusterOptions {
        node: NodeOptions { bytes: MEMORY, prefault: false, ..NodeOptions::default() },
        source: world.server.source(),
        name: name.to_owned(),
        addresses: vec![Address::Udp(udp.address())],
    };
    let refused = Cluster::open(options("a"), None).expect_err("it is replicated").to_string();
    assert!(refused.contains("--replicate") && refused.contains("forget"), "{refused}");
    // Another name, and the same one after it was forgotten, are free.
    drop(Cluster::open(options("b"), None).expect("joined"));
    world.server.etcd().order(&memlift_traverse::map::Order::Forget("a".to_owned())).expect("forgotten");
    world.server.etcd().order(&memlift_traverse::map::Order::Forget("b".to_owned())).expect("forgotten");
    drop(Cluster::open(options("a"), None).expect("joined"));
    let without = Source::parse("coordinator:unix:/nowhere").expect("a source");
    let stop = AtomicBool::new(false);
    let speaker = udp.speaker().expect("shared");
    let options = ClusterOptions { source: without, ..options("a") };
    let refused = Cluster::open_replicated(&options, speaker, 1 << 30, &stop, &mut |_| {});
    assert!(refused.expect_err("no etcd").to_string().contains("--etcd"));
}

#[test]
#[ignore = "soak"]
fn soak_copies_are_killed_and_stopped_at_random_under_writers() {
    let Some(world) = World::start(false) else { return };
    let rounds = std::env::var("MEMLIFT_TEST_ROUNDS").map_or(12, |rounds| rounds.parse().expect("a number"));
    let seed = std::env::var("MEMLIFT_TEST_SEED").map_or_else(
        |_| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("later")
                .subsec_nanos()
                .into()
        },
        |seed| seed.parse().expect("a number"),
    );
    println!("MEMLIFT_TEST_SEED={seed}");
    let mut state: u64 = seed;
    // SplitMix64.
    let mut random = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    };
    let [first, second] = world.two();
    let mut copies = [first, second];
    under_writers(&world, |writers| {
        for round in 0..rounds {
            let of = random(2) as usize;
            let stops = random(2) == 0;
            let pause = Duration::from_millis(random(2 * LEASE_S * 1000));
            println!("round {round}: process {of} {}", if stops { "stops" } else { "dies" });
            if stops {
                copies[of].signal(Signal::STOP);
                std::thread::sleep(pause);
                copies[of].signal(Signal::CONT);
            } else {
                copies[of].kill();
            }
            // Both run again, and one is the backup of the other; then the next may fail.
            wait("two copies", || {
                for (index, copy) in copies.iter_mut().enumerate() {
                    if copy.has_ended() {
                        *copy = world.copy(index);
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
                let Ok(map) = world.server.etcd().read() else { return false };
                let primary = world.primary_of(&map);
                let both = map.node_named("a").is_some_and(|node| node.addresses.len() == 2);
                both && copies.iter().any(|copy| copy.is_listed() && primary == Some(copy.at))
            });
            writers.wait_for(50);
        }
    });
}

/// Prints the median and the 99th percentile of the time of an addition, in microseconds.
fn measure(what: &str, client: &mut Client, word: u64) {
    let mut times: Vec<Duration> = (0..5000)
        .map(|_| {
            let begun = Instant::now();
            client.call(Request::apply(ApplyKind::FetchAdd, word, 1, 0)).expect("added");
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let us = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    println!("{what}: median {:.0} us, p99 {:.0} us", us(50), us(99));
}

#[test]
#[ignore = "a measurement"]
fn measure_changes_and_a_fail_over() {
    let Some(world) = World::start(false) else { return };
    let mut first = world.copy(0);
    world.map(|map| world.primary_of(map) == Some(first.at));
    let mut client = world.client();
    let word = client.call(Request::allocate(0, 8)).expect("memory").address;
    measure("alone", &mut client, word);
    let second = world.copy(1);
    wait("a backup", || first.is_listed());
    measure("replicated", &mut client, word);
    let begun = Instant::now();
    first.kill();
    client.call(Request::apply(ApplyKind::FetchAdd, word, 1, 0)).expect("added");
    println!("fail-over: {:?} with a lease of {LEASE_S} s", begun.elapsed());
    drop(second);
}
