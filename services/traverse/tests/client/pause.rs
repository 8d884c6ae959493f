// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that stands still in the middle of an operation, for as long as it takes others to use the memory again that it was
//! at.
//!
//! - **Flow** [`Paused`] is a client that, between two requests of one operation, lets something happen: others remove what it
//!   has found, the nodes' clock goes on past the grace, and the memory is used again
//! - **Order** nothing waits: a packet brings the clock
#![forbid(unsafe_code)]

use crate::running::{Running, options};
use std::net::UdpSocket;
use std::time::Duration;

use memlift_traverse::client::cache::Cache;
use memlift_traverse::client::{Client, ClientError, Result};
use memlift_traverse::node::{BASE, GRACE};
use memlift_traverse::structures::chain::Chain;
use memlift_traverse::structures::{HashMap, Heap, Key, OrderedMap, Outcome, Walk, Walked};
use memlift_traverse::wire::{Header, Keys, Kind};

/// Moves the node's clock past the grace, until this client has heard of it.
fn pass(node: &Running, client: &mut Client) {
    let clock = client.clock() + GRACE + 2;
    let mut packet = Vec::new();
    let header = Header { client: 1, sequence: 1, clock, ..Header::new(Kind::Map) };
    Keys::none().seal(&header, &[], &mut packet);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for _ in 0..1000 {
        socket.send_to(&packet, node.at()).expect("sent");
        client.read(BASE + 4096, 8).map(drop).unwrap_or_default();
        if client.clock() >= clock {
            return;
        }
    }
    panic!("the node does not follow the clock");
}

/// Request before which a client stands still.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Swap,
    Read,
}

/// A client that stands still once.
struct Paused<'a> {
    client: &'a mut Client,
    before: Before,
    meanwhile: Option<Box<dyn FnMut() + 'a>>,
}

impl Paused<'_> {
    fn at(&mut self, now: Before) {
        if now == self.before
            && let Some(mut meanwhile) = self.meanwhile.take()
        {
            meanwhile();
        }
    }
}

impl Heap for Paused<'_> {
    fn walk(&mut self, walk: &Walk) -> Result<Walked> {
        self.client.walk(walk)
    }
    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        self.at(Before::Read);
        self.client.read(address, bytes)
    }
    fn read_since(&mut self, address: u64, bytes: usize, since: u32) -> Result<Vec<u8>> {
        self.at(Before::Read);
        self.client.read_since(address, bytes, since)
    }
    fn clock(&mut self) -> u32 {
        self.client.clock()
    }
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.client.write(address, bytes)
    }
    fn retire(&mut self, blocks: &[(u64, u64)]) -> Result<()> {
        self.client.retire(blocks)
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64> {
        self.client.allocate(bytes)
    }
    fn free(&mut self, address: u64, bytes: u64) -> Result<()> {
        self.client.free(address, bytes)
    }
    fn compare_swap(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
    ) -> Result<std::result::Result<(), u64>> {
        self.at(Before::Swap);
        self.client.compare_swap(address, expected, fresh)
    }
    fn compare_swap_since(
        &mut self,
        address: u64,
        expected: u64,
        fresh: u64,
        since: u32,
    ) -> Result<std::result::Result<(), u64>> {
        self.at(Before::Swap);
        self.client.compare_swap_since(address, expected, fresh, since)
    }
}

/// Returns the address of a key's node.
fn node_of(client: &mut Client, map: &HashMap, key: u64) -> Option<u64> {
    map.scan(client).expect("a walk").into_iter().find(|seen| seen.key_word == key).map(|seen| seen.address)
}

#[test]
fn a_paused_replacement_does_not_take_out_who_has_the_memory_now() {
    let node = Running::udp(None, options(16 << 20));
    let (mut slow, mut quick) = (node.client(), node.client());
    let mut map = HashMap::create(&mut quick, 0).expect("room");
    let mut same = HashMap::open(map.handle());
    map.insert(&mut quick, 1, &[b'A'; 40]).expect("inserted");
    let place = node_of(&mut quick, &map, 1);
    let mut paused = Paused {
        client: &mut slow,
        before: Before::Swap,
        meanwhile: Some(Box::new(|| {
            assert!(map.remove(&mut quick, 1).expect("removed"));
            pass(&node, &mut quick);
            map.insert(&mut quick, 100, &[b'B'; 40]).expect("inserted");
            assert_eq!(node_of(&mut quick, &map, 100), place, "the memory is used again");
        })),
    };
    same.insert(&mut paused, 1, &[b'C'; 40]).expect("goes on");
    assert!(paused.meanwhile.is_none(), "it was paused");
    drop(paused);
    assert_eq!(same.get(&mut slow, 100).expect("an answer"), Some(vec![b'B'; 40]), "acknowledged, and gone");
    assert_eq!(same.get(&mut slow, 1).expect("an answer"), Some(vec![b'C'; 40]));
}

#[test]
fn a_paused_change_of_an_ordered_map_does_not_bring_an_old_root_back() {
    let node = Running::udp(None, options(16 << 20));
    let (mut slow, mut quick) = (node.client(), node.client());
    let mut map = OrderedMap::create(&mut quick, 8).expect("room");
    let mut same = OrderedMap::open(map.handle());
    let cell = map.handle().cell;
    map.insert(&mut quick, 1, &[1; 8]).expect("inserted");
    let root = quick.read(cell, 8).expect("the root");
    let mut added = Vec::new();
    let mut paused = Paused {
        client: &mut slow,
        before: Before::Swap,
        meanwhile: Some(Box::new(|| {
            for key in 2..200 {
                map.insert(&mut quick, key, &[2; 8]).expect("inserted");
                added.push(key);
                if quick.read(cell, 8).expect("the root") == root {
                    return;
                }
                pass(&node, &mut quick);
            }
            panic!("the root's memory was not used again");
        })),
    };
    same.insert(&mut paused, 1000, &[3; 8]).expect("goes on");
    assert!(paused.meanwhile.is_none(), "it was paused");
    drop(paused);
    for key in added.into_iter().chain([1, 1000]) {
        assert!(same.get(&mut slow, key).expect("an answer").is_some(), "key {key} is lost");
    }
}

#[test]
fn a_paused_get_does_not_read_what_lies_there_now() {
    let node = Running::udp(None, options(16 << 20));
    let (mut slow, mut quick) = (node.client(), node.client());
    let mut map = HashMap::create(&mut quick, 0).expect("room");
    map.insert(&mut quick, 1, &[b'A'; 40]).expect("inserted");
    let (chain, place) = (map.chain(Key::Number(1)), node_of(&mut quick, &map, 1));
    let mut paused = Paused {
        client: &mut slow,
        before: Before::Read,
        meanwhile: Some(Box::new(|| {
            assert!(map.remove(&mut quick, 1).expect("removed"));
            pass(&node, &mut quick);
            map.insert(&mut quick, 100, &[b'B'; 40]).expect("inserted");
            assert_eq!(node_of(&mut quick, &map, 100), place, "the memory is used again");
        })),
    };
    let walked = paused.walk(&chain.find_walk(Key::Number(1), false).expect("a walk")).expect("found");
    let found = Chain::found(&mut paused, Key::Number(1), false, walked);
    assert!(matches!(found, Err(ClientError::Outdated)), "{found:?}");
    assert_eq!(chain.get(&mut paused, Key::Number(1), false).expect("an answer"), None);
}

#[test]
fn a_walk_at_the_client_does_not_mix_what_was_read_before_with_what_lies_there_now() {
    let node = Running::udp(None, options(16 << 20));
    let (mut slow, mut quick) = (node.client(), node.client());
    let mut map = HashMap::create(&mut quick, 0).expect("room");
    // Each node has a piece of the cache for itself.
    for key in 1..=3 {
        map.insert(&mut quick, key, &[key as u8; 200]).expect("inserted");
    }
    let place = node_of(&mut quick, &map, 2).expect("there");
    let walk = map.chain(Key::Number(3)).find_walk(Key::Number(3), false).expect("a walk");
    let mut cache = Cache::new(1 << 20, Duration::from_secs(3600));
    assert_eq!(slow.walk_locally(&mut cache, &walk).expect("there").0.outcome, Outcome::Done);
    // The middle node goes, and its memory is used for the last one, which is cached too.
    assert!(map.remove(&mut quick, 2).expect("removed"));
    pass(&node, &mut quick);
    map.insert(&mut quick, 77, &[77; 200]).expect("inserted");
    assert_eq!(node_of(&mut quick, &map, 77), Some(place), "the memory is used again");
    pass(&node, &mut slow);
    slow.fetch_range(&mut cache, place, 256).expect("read");
    assert_eq!(
        slow.walk_locally(&mut cache, &walk).expect("an answer").0.outcome,
        Outcome::Done,
        "key 3 is there"
    );
}
