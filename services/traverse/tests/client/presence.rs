// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A dead node costs what lies on it: others are connected to, allocated from and blamed for nothing.
#![forbid(unsafe_code)]

use crate::running::{Running, options};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::node::{BASE, NodeOptions};
use memlift_traverse::structures::{HashMap, Heap};

const BYTES: u64 = 16 << 20;

/// A node whose addresses are the `number`th ones.
fn start(at: Option<SocketAddr>, number: u64) -> Running {
    Running::udp(at, NodeOptions { base: BASE + number * BYTES, ..options(BYTES) })
}

fn number_of(address: u64) -> u64 {
    (address - BASE) / BYTES
}

#[test]
fn who_is_dead_costs_what_lies_on_it_and_comes_back() {
    let (one, dead) = (start(None, 0), start(None, 1));
    let places = [one.at(), dead.at()];
    let config = || Config { deadline: Duration::from_secs(2), ..Config::default() };
    let mut old = Client::udp(&places, config()).expect("both answer");
    let mut map = HashMap::create(&mut old, 4).expect("room");
    let there: Vec<u64> = (0..4).map(|_| old.allocate(64).expect("room")).collect();
    assert!(there.iter().any(|&at| number_of(at) == 0) && there.iter().any(|&at| number_of(at) == 1));
    drop(dead);

    let mut new = Client::udp(&places, config()).expect("one answers");
    for client in [&mut old, &mut new] {
        for _ in 0..20 {
            assert_eq!(number_of(client.allocate(64).expect("the other one has room")), 0);
        }
        let mut fresh = HashMap::create(client, 4).expect("room");
        fresh.insert(client, 1, b"one").expect("inserted");
        for &at in &there {
            match (number_of(at), client.read(at, 8)) {
                (0, read) => drop(read.expect("it lies on the living one")),
                (_, Err(ClientError::Silent { node, .. })) => assert_eq!(node, places[1].to_string()),
                (_, other) => panic!("{other:?}"),
            }
        }
    }
    if number_of(map.handle().heads) == 0 {
        assert_eq!(map.get(&mut new, 1).expect("an answer"), None);
    }

    // It comes back, and is allocated from again; to the client that knew it before it is another memory.
    let _back = start(Some(places[1]), 1);
    let until = Instant::now() + Duration::from_secs(60);
    while number_of(new.allocate(64).expect("room")) != 1 {
        assert!(Instant::now() < until, "nothing is allocated from it any more");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(old.read(there[0] | BYTES, 8), Err(ClientError::OtherMemory { .. })));
}

#[test]
fn none_that_answers_is_an_error_that_names_one() {
    let (one, two) = (start(None, 0), start(None, 1));
    let places = [one.at(), two.at()];
    drop((one, two));
    let config = Config { deadline: Duration::from_millis(500), ..Config::default() };
    match Client::udp(&places, config) {
        Err(ClientError::Silent { node, .. }) => assert!(places.iter().any(|at| at.to_string() == node)),
        other => panic!("{other:?}"),
    }
}
