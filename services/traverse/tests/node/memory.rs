// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory comes back to its node: whoever took it, whoever gives it back, in whatever sizes, also after a restart.
//!
//! Each test uses several times as much memory as its node has, with little of it in use at a time.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::node_world::small;
use memlift_traverse::client::{Client, ClientError, Config, Request};
use memlift_traverse::memory::Usage;
use memlift_traverse::node::{Alone, Durability, Node, NodeOptions};
use memlift_traverse::structures::load::{self, OwnedKey};
use memlift_traverse::structures::{HashMap, Heap, Key, List, OrderedMap};
use memlift_traverse::transport::shm::Shm;

/// Bytes of a node.
const BYTES: u64 = 2 << 20;

/// Nobody is stopped in the middle of an operation here, so memory need not rest.
fn options(log: Option<&Path>) -> NodeOptions {
    let log = log.map(|path| (path.to_owned(), Durability::Process));
    NodeOptions { log, bytes: BYTES, grace_s: 0, ..small(1 << 32) }
}

fn connect(name: &str) -> Client {
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    Client::shm(&[name], config).expect("connected")
}

/// Runs with a node that serves at a name.
fn with_node<T>(test: &str, options: NodeOptions, run: impl FnOnce(&Node, &str) -> T) -> T {
    struct Stops<'a>(&'a AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let name = format!("memory-{test}-{}", std::process::id());
    let (node, _) = Node::open(options).expect("a node");
    let mut shard = node.shard(Box::new(Shm::listen(&name).expect("a free name")), Box::new(Alone));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&stop).expect("serves"));
        let _stops = Stops(&stop);
        run(&node, &name)
    })
}

/// Waits until nothing rests any more; returns how the memory is used, without `largest_free`.
fn rested(node: &Node) -> Usage {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let usage = node.writer().usage();
        if usage.retired == 0 || Instant::now() > end {
            return Usage { largest_free: 0, ..usage };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_key_is_updated_for_ever() {
    with_node("update", options(None), |node, name| {
        let mut client = connect(name);
        let mut map = HashMap::create(&mut client, 4).expect("a map");
        let before = rested(node);
        for round in 0..60_u8 {
            map.insert(&mut client, 7, &vec![round; 300 << 10]).expect("memory that is used again");
        }
        assert_eq!(map.get(&mut client, 7).expect("asked"), Some(vec![59; 300 << 10]));
        assert!(map.remove(&mut client, 7).expect("removed"));
        assert_eq!(rested(node), before);
    });
}

#[test]
fn many_keys_are_updated_together_for_ever() {
    with_node("batches", options(None), |node, name| {
        let mut client = connect(name);
        let before = rested(node);
        let mut map = HashMap::create(&mut client, 6).expect("a map");
        let mut sorted = OrderedMap::create(&mut client, 24).expect("a map");
        for round in 0..80_usize {
            let values: Vec<Vec<u8>> =
                (0..300).map(|key| vec![round as u8; (key * 7 + round) % 400]).collect();
            let pairs: Vec<(Key<'_>, &[u8])> =
                values.iter().enumerate().map(|(key, value)| (Key::from(key as u64), &value[..])).collect();
            let fresh = map.insert_many(&mut client, &pairs).expect("memory that is used again");
            assert_eq!(fresh, if round == 0 { 300 } else { 0 });
            for (key, value) in &pairs {
                assert_eq!(map.get(&mut client, *key).expect("asked").as_deref(), Some(*value));
            }
            let value = [round as u8; 24];
            let pairs: Vec<(u64, &[u8])> = (0..400).map(|key| (key * 3, &value[..])).collect();
            let fresh = sorted.insert_many(&mut client, &pairs).expect("memory that is used again");
            assert_eq!(fresh, if round == 0 { 400 } else { 0 });
            assert_eq!(sorted.range(&mut client, 0..=u64::MAX, u64::MAX).expect("asked").len(), 400);
        }
        // More than there is room for: what was not linked comes back, whatever was.
        let large = vec![1; 40_000];
        let pairs: Vec<(Key<'_>, &[u8])> = (0..200).map(|key| (Key::from(1000 + key), &large[..])).collect();
        let full = map.insert_many(&mut client, &pairs).expect_err("more than there is room for");
        assert!(matches!(full, ClientError::Full { .. }), "{full}");
        map.drop(&mut client).expect("dropped");
        sorted.drop(&mut client).expect("dropped");
        assert_eq!(rested(node), before);
    });
}

#[test]
fn what_one_client_puts_in_another_takes_out() {
    with_node("queue", options(None), |node, name| {
        let (mut producer, mut consumer) = (connect(name), connect(name));
        let mut put = HashMap::create(&mut producer, 8).expect("a map");
        let mut take = HashMap::open(put.handle());
        let before = rested(node);
        for key in 0..25_000_u64 {
            put.insert(&mut producer, key, &[1; 100]).expect("memory that is used again");
            if key >= 500 {
                assert!(take.remove(&mut consumer, key - 500).expect("removed"));
            }
        }
        for key in 24_500..25_000_u64 {
            assert!(take.remove(&mut consumer, key).expect("removed"));
        }
        assert_eq!(rested(node), before);
    });
}

#[test]
fn clients_that_come_and_go_leave_nothing() {
    with_node("short", options(None), |node, name| {
        let mut first = connect(name);
        let handle = HashMap::create(&mut first, 4).expect("a map").handle();
        let ordered = OrderedMap::create(&mut first, 8).expect("a map").handle();
        let before = rested(node);
        for turn in 0..150_u64 {
            let mut client = connect(name);
            let (mut map, mut ordered) = (HashMap::open(handle), OrderedMap::open(ordered));
            map.insert(&mut client, turn, &[2; 40]).expect("memory");
            ordered.insert(&mut client, turn, &turn.to_le_bytes()).expect("memory");
            assert!(map.remove(&mut client, turn).expect("removed"));
            assert!(ordered.remove(&mut client, turn).expect("removed"));
            // A client that ends has sent what it had to say: the answer to this comes after those.
            client.read(handle.heads, 8).expect("read");
        }
        assert_eq!(rested(node), before);
    });
}

#[test]
fn memory_of_one_size_serves_another() {
    with_node("sizes", options(None), |node, name| {
        let mut client = connect(name);
        let mut map = HashMap::create(&mut client, 10).expect("a map");
        let before = rested(node);
        for (bytes, node_bytes) in [(100_usize, 128), (300, 336), (5, 32), (3000, 3024), (70_000, 70_032)] {
            let mut count = 0_u64;
            let full = loop {
                match map.insert(&mut client, count, &vec![3; bytes]) {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, ClientError::Full { .. }), "{full}");
            let room = BYTES - (8 << 10) - (64 << 10);
            assert!(count >= room / node_bytes * 95 / 100, "{count} values of {bytes} bytes");
            (0..count).for_each(|key| assert!(map.remove(&mut client, key).expect("removed")));
            assert_eq!(rested(node), before, "after values of {bytes} bytes");
        }
    });
}

#[test]
fn collections_are_dropped_whole() {
    with_node("drop", options(None), |node, name| {
        let mut client = connect(name);
        let before = rested(node);
        for round in 0..6_u64 {
            let pairs =
                (0..4000_u64).map(|key| Ok((OwnedKey::Number(key), vec![4; (key * 7 % 300) as usize])));
            let hash = load::hash(&mut client, pairs, None, |_| {}).expect("loaded");
            let mut hash = HashMap::open(hash);
            let names = (0..500_u64).map(|key| Ok((OwnedKey::Bytes(vec![5; 1 + key as usize % 90]), [6; 9])));
            let named = HashMap::open(load::hash(&mut client, names, Some(3), |_| {}).expect("loaded"));
            let rows = (0..3000_u64).map(|key| Ok((key * 3, key.to_le_bytes())));
            let mut ordered = OrderedMap::open(load::ordered(&mut client, rows, 8, |_| {}).expect("loaded"));
            let rows = (0..3000_u64).map(|key| Ok((key * 3, [7; 20])));
            let mut records = OrderedMap::open(load::ordered(&mut client, rows, 20, |_| {}).expect("loaded"));
            let mut list = List::create(&mut client).expect("a list");
            for key in 0..100 + round {
                hash.insert(&mut client, key * 5, &[8; 777]).expect("memory");
                hash.remove(&mut client, key * 5 + 1).expect("removed");
                ordered.insert(&mut client, key, &[9; 8]).expect("memory");
                records.insert(&mut client, key, &[9; 20]).expect("memory");
                records.remove(&mut client, key * 2).expect("removed");
                list.push_front(&mut client, key, &[1; 33]).expect("memory");
                list.push_back(&mut client, key, &[]).expect("memory");
            }
            hash.drop(&mut client).expect("dropped");
            named.drop(&mut client).expect("dropped");
            ordered.drop(&mut client).expect("dropped");
            records.drop(&mut client).expect("dropped");
            list.drop(&mut client).expect("dropped");
            OrderedMap::create(&mut client, 8)
                .expect("a map")
                .drop(&mut client)
                .expect("an empty one is dropped");
            assert_eq!(rested(node), before, "round {round}");
        }
    });
}

#[test]
fn a_block_comes_back_once() {
    with_node("once", options(None), |node, name| {
        let mut client = connect(name);
        let at = client.allocate(1000).expect("memory");
        let kept = client.allocate(64).expect("memory");
        client.free(at, 1000).expect("free");
        assert!(matches!(client.free(at, 1000), Err(ClientError::Forbidden { .. })), "twice");
        assert!(matches!(client.free(at + 16, 16), Err(ClientError::Forbidden { .. })), "a part of it");
        assert!(matches!(client.free(kept + 8, 8), Err(ClientError::Forbidden { .. })), "no multiple of 16");
        assert!(matches!(client.free(kept, u64::MAX), Err(ClientError::Forbidden { .. })), "no size");
        client.retire(&[(kept, 64)]).expect("said");
        assert!(matches!(client.free(kept, 64), Err(ClientError::Forbidden { .. })), "retired before");
        let hostile = Request::retire(&[(kept, 64), (0, 0), (u64::MAX, u64::MAX), (at, 1 << 41)]);
        assert!(matches!(client.call(hostile), Err(ClientError::Forbidden { .. })));
        assert_eq!(rested(node).free, BYTES);
    });
}

#[test]
fn a_restarted_node_has_given_out_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let mut handles = Vec::new();
    let mut known: Option<Usage> = None;
    for start in 0..6_u64 {
        let bytes = if start < 3 { BYTES } else { 2 * BYTES };
        let used = with_node("restart", NodeOptions { bytes, ..options(Some(&log)) }, |node, name| {
            let usage = rested(node);
            if let Some(known) = known {
                assert_eq!(usage.live, known.live, "start {start}");
                assert_eq!(usage.live + usage.free + usage.waste, bytes);
            }
            let mut client = connect(name);
            let mut map = HashMap::create(&mut client, 6).expect("a map");
            handles.push(map.handle());
            for key in 0..600_u64 {
                map.insert(&mut client, key, &vec![5; (key * 37 % 900) as usize]).expect("memory");
                if key % 3 == 0 {
                    map.remove(&mut client, key / 2).expect("removed");
                }
            }
            if start % 2 == 1 {
                node.compact().expect("made short");
                map.remove(&mut client, 599).expect("removed");
            }
            // Memory that rests when the node ends rests again when it starts.
            client.read(map.handle().heads, 8).expect("read");
            node.writer().usage()
        });
        known = Some(Usage { live: used.live, ..used });
    }
    with_node("restart", NodeOptions { bytes: 2 * BYTES, ..options(Some(&log)) }, |node, name| {
        let mut client = connect(name);
        for handle in handles {
            HashMap::open(handle).drop(&mut client).expect("dropped");
        }
        assert_eq!(rested(node).free, 2 * BYTES);
    });
}
