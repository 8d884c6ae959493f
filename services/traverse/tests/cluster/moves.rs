// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges that move between real processes while they are read, walked and added to; and each of the processes killed at each
//! step.
//!
//! - **Flow** this program starts itself as coordinator and nodes (`serve_as_…`), which talk over loopback; clients are threads
//!   here. A node that is told to dies by SIGKILL as soon as it sees itself at a step
//! - **Order** each addition's answer is what was there before: over all clients these are 0, 1, 2 … without a gap and without
//!   one twice, and the sum that is left is their number. What a reader sees never goes back
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster_world::{LONG, MEMORY, SHORT, World};
use crate::node_world::{add, find};
use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, ClientError, Request};
use memlift_traverse::map::MapError;
use memlift_traverse::structures::{Scratch, Walk};
use memlift_traverse::wire::Status;

const COUNTERS: usize = 16;
const LIST: u64 = 24;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    u64::from_le_bytes(word)
}

/// Data that the clients work on: counters, and a list whose last node's value is a counter too.
#[derive(Clone)]
struct Work {
    counters: Vec<u64>,
    list: Vec<u64>,
}

impl Work {
    /// At the first node, with more around it that has to be copied.
    fn prepare(client: &mut Client) -> Work {
        let mut allocate = |bytes| client.call(Request::allocate(0, bytes)).expect("memory").address;
        let counters: Vec<u64> = (0..COUNTERS).map(|_| allocate(8)).collect();
        let list: Vec<u64> = (0..LIST).map(|_| allocate(32)).collect();
        let blocks: Vec<u64> = (0..256).map(|_| allocate(4096)).collect();
        for block in blocks {
            client.call(Request::write(block, &[0x5a; 1024])).expect("written");
        }
        for (key, at) in list.iter().enumerate() {
            let next = list.get(key + 1).copied().unwrap_or(0);
            let node = words(&[key as u64, 0, next, at + 8]);
            client.call(Request::write(*at, &node)).expect("written");
        }
        Work { counters, list }
    }
}

/// Values found before each addition, by address.
type Seen = BTreeMap<u64, Vec<u64>>;

/// Additions, reads and walks until told to stop.
fn load(mut client: Client, work: &Work, stop: &AtomicBool, seed: usize) -> Seen {
    let mut seen = Seen::new();
    let mut read: BTreeMap<u64, u64> = BTreeMap::new();
    let (find, add) = (Arc::new(find()), Arc::new(add()));
    let walk = |program, key| Walk { program, start: work.list[0], scratch: Scratch(words(&[key, 1])) };
    let mut turn = seed;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let counter = work.counters[turn * 7 % COUNTERS];
        let key = (turn * 5) as u64 % LIST;
        let requests = [
            Request::apply(ApplyKind::FetchAdd, counter, 1, 0),
            Request::walk(&walk(add.clone(), key)),
            Request::read(counter, 8),
            Request::walk(&walk(find.clone(), key)),
        ];
        let mut answers = client.call_many(requests.clone());
        // Reads say at once that their node is down; what changes something is asked for until the node is back.
        for index in [2, 3] {
            while matches!(answers[index], Err(ClientError::Map(MapError::Down { .. }))) {
                std::thread::sleep(Duration::from_millis(20));
                answers[index] = client.call(requests[index].clone());
            }
        }
        let mut answers = answers.into_iter().map(|one| one.unwrap_or_else(|error| panic!("{error}")));
        let mut next = || answers.next().expect("four");
        for address in [counter, work.list[key as usize] + 8] {
            let answer = next();
            assert_eq!(answer.status, Status::Applied);
            seen.entry(address).or_default().push(answer.value);
        }
        let (bytes, found) = (next(), next());
        assert_eq!((bytes.status, found.status), (Status::Done, Status::Done));
        for (address, value) in [
            (counter, word(&bytes.body)),
            (work.list[key as usize] + 8, word(&found.body[8.min(found.body.len())..])),
        ] {
            let before = read.insert(address, value).unwrap_or(0);
            assert!(before <= value, "{address:#x} went back from {before} to {value}");
        }
    }
    seen
}

/// Checks that each addition was made once, and nothing else was; returns how many there were.
fn check(world: &World, all: Vec<Seen>) -> usize {
    let mut found: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (address, values) in all.into_iter().flatten() {
        for value in values {
            assert!(found.entry(address).or_default().insert(value), "{address:#x}: {value} was there twice");
        }
    }
    let mut client = world.client();
    let mut count = 0;
    for (address, values) in &found {
        let answer = client.call(Request::read(*address, 8)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(word(&answer.body), values.len() as u64, "the sum at {address:#x}");
        assert!(values.iter().copied().eq(0..values.len() as u64), "a gap at {address:#x}: {values:?}");
        count += values.len();
    }
    count
}

/// Stops the load also where the test fails: else it would go on for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves a range under load, and lets something happen meanwhile; returns the name of the range's owner in the end.
fn moved(nodes: usize, dies: &[(usize, &str)], happens: impl FnOnce(&mut World, u64)) -> String {
    let mut world = World::start(nodes, dies, if dies.is_empty() { LONG } else { SHORT });
    let mut client = world.client();
    let work = Work::prepare(&mut client);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..2)
            .map(|seed| {
                let (client, work, stop) = (world.client(), work.clone(), &stop);
                scope.spawn(move || load(client, &work, stop, seed * 31))
            })
            .collect();
        let stops = Stops(&stop);
        std::thread::sleep(Duration::from_millis(100));
        let base = 1 << 32;
        let id = world.plan(base, MEMORY, "b");
        happens(&mut world, id);
        let owner = world.over(id, base);
        std::thread::sleep(Duration::from_millis(300));
        drop(stops);
        let all: Vec<Seen> = loads.into_iter().map(|load| load.join().expect("right answers")).collect();
        let count = check(&world, all);
        assert!(count > 100, "{count} additions");
        println!("{count} additions, the range is {owner}'s");
        owner
    })
}

#[test]
fn a_range_moves_between_processes_under_load() {
    assert_eq!(moved(2, &[], |_, _| {}), "b");
}

/// The source or the target dies at a step, and is started again where it was. A node looks at its steps now and then: on a busy
/// machine it may not see itself at one, and then the move is made again.
fn dies(node: usize, step: &'static str) -> String {
    loop {
        let mut seen = true;
        let owner = moved(2, &[(node, step)], |world, id| {
            let mut moving = Instant::now();
            while !world.nodes[node].died() {
                if !world.is_over(id) {
                    moving = Instant::now();
                } else if moving.elapsed() > Duration::from_secs(5) {
                    seen = false;
                    world.nodes[node].kill();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let again = world.node(node, "never");
            world.nodes[node] = again;
        });
        if seen {
            return owner;
        }
    }
}

#[test]
fn a_source_that_dies_before_the_change_of_the_map_keeps_its_range() {
    for step in ["copying", "draining", "sealing"] {
        assert_eq!(dies(0, step), "a", "{step}");
    }
}

#[test]
fn a_target_that_dies_before_the_change_of_the_map_gets_nothing() {
    for step in ["accepted", "half"] {
        assert_eq!(dies(1, step), "a", "{step}");
    }
}

#[test]
fn whoever_dies_at_the_change_of_the_map_it_is_whole_at_one_of_them() {
    for (node, step) in [(0, "committing"), (1, "sealed")] {
        let owner = dies(node, step);
        println!("{step}: {owner}");
    }
}

#[test]
fn after_the_change_of_the_map_the_range_is_the_targets_whoever_dies() {
    for (node, step) in [(0, "given"), (1, "taken")] {
        assert_eq!(dies(node, step), "b", "{step}");
    }
}

#[test]
fn a_coordinator_that_dies_in_a_move_holds_it_up_and_no_more() {
    let owner = moved(2, &[], |world, _| {
        world.coordinator.kill();
        std::thread::sleep(Duration::from_millis(700));
        world.coordinator = World::coordinator(world.folder.path(), world.lease);
    });
    // The leases that were running go on, so nobody counts as down meanwhile.
    assert_eq!(owner, "b");
}

#[test]
fn a_coordinator_that_stands_still_in_a_move_holds_up_the_range_and_no_other() {
    let owner = moved(2, &[], |world, _| {
        world.coordinator.signal(rustix::process::Signal::STOP);
        let mut client = world.client();
        let other = client.call(Request::allocate(1, 64)).expect("at the other node").address;
        for before in 0..200 {
            let answer =
                client.call(Request::apply(ApplyKind::FetchAdd, other, 1, 0)).expect("another range");
            assert_eq!(answer.value, before);
        }
        world.coordinator.signal(rustix::process::Signal::CONT);
    });
    assert_eq!(owner, "b");
}
