// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps whose entries expire or are evicted: against a model, by several clients, over a restart, and swept by their node.
//!
//! - **Clock** tests that wait do so by the node's clock, which has seconds
//! - **Not here** packets that are lost: an expiring map sends the same requests as a hash map (`client/node.rs`)
#![forbid(unsafe_code)]

use std::collections::HashMap as StdMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::node::{Alone, BASE, Durability, Node, NodeOptions};
use memlift_traverse::structures::expiring::{Handle, Sweep, Terms, Ttl};
use memlift_traverse::structures::{Addend, ExpiringMap, HashMap, Heap, Image, Key};
use memlift_traverse::sweep::{Reached, Sweeper};
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::Keys;

/// A node, its thread and its sweeper's.
struct Running {
    node: Node,
    place: String,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(options: NodeOptions, sweeps: bool) -> Running {
        let udp =
            Udp::bind("127.0.0.1:0".parse().expect("an address"), !options.keys.is_empty()).expect("a port");
        let place = udp.address().to_string();
        let keys = options.keys.clone();
        let (node, _) = Node::open(options).expect("memory");
        let stop = Arc::new(AtomicBool::new(false));
        let mut shard = node.shard(Box::new(udp), Box::new(Alone));
        let stopped = Arc::clone(&stop);
        let mut threads = vec![std::thread::spawn(move || shard.serve(&stopped).expect("it serves"))];
        if sweeps {
            let reached = Reached::Places(vec![place.clone()]);
            let mut sweeper = Sweeper::new(node.clone(), reached, keys, Arc::clone(&stop));
            threads.push(std::thread::spawn(move || sweeper.serve()));
        }
        Running { node, place, stop, threads }
    }

    fn client(&self) -> Client {
        Client::reach(&[&self.place], Config { deadline: Duration::from_secs(20), ..Config::default() })
            .expect("the node answers")
    }

    /// Bytes that tenants have, without those that rest.
    fn live(&self) -> u64 {
        self.node.writer().usage_now().live
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let served = thread.join();
            assert!(std::thread::panicking() || served.is_ok(), "the node panicked");
        }
    }
}

fn options() -> NodeOptions {
    NodeOptions {
        base: BASE,
        bytes: 32 << 20,
        prefault: false,
        workspaces: Some(8),
        ..NodeOptions::default()
    }
}

fn logged(log: &Path) -> NodeOptions {
    NodeOptions { log: Some((log.to_owned(), Durability::Process)), ..options() }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const FOREVER: Terms = Terms { ttl_s: 0, entries_max: 0, bytes_max: 0 };

#[test]
fn without_a_clock_it_is_a_map() {
    let mut heap = Image::new(1 << 32, 8 << 20);
    let map = ExpiringMap::create(&mut heap, 4, FOREVER).expect("room");
    let (mut model, mut draw) = (StdMap::new(), 7_u64);
    for _ in 0..3000 {
        draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let (key, what) = (draw >> 33 & 63, draw >> 50 & 7);
        let name = format!("key {key}");
        let value = vec![draw as u8; (draw >> 40 & 31) as usize];
        let number = key % 2 == 0;
        let key = if number { Key::Number(key) } else { Key::Bytes(name.as_bytes()) };
        let known = model.get(&name).cloned();
        match what {
            0 => assert_eq!(map.take(&mut heap, key).expect("taken"), model.remove(&name)),
            1 => assert_eq!(map.remove(&mut heap, key).expect("removed"), model.remove(&name).is_some()),
            2 => {
                let kept = map.insert_new(&mut heap, key, &value, Ttl::OfMap).expect("room");
                assert_eq!(kept, known);
                model.entry(name.clone()).or_insert(value);
            }
            3 => {
                let pairs = [(key, &value[..]), (Key::Number(1000), b"x")];
                map.insert_many(&mut heap, &pairs, Ttl::Never).expect("room");
                model.insert(name.clone(), value);
                model.insert("key 1000".to_owned(), b"x".to_vec());
            }
            4 => {
                assert_eq!(
                    map.insert(&mut heap, key, &value, Ttl::Seconds(9)).expect("room"),
                    known.is_none()
                );
                model.insert(name.clone(), value);
            }
            5 => assert_eq!(map.get_many(&mut heap, &[key]).expect("read"), vec![known]),
            _ => assert_eq!(map.get(&mut heap, key).expect("read"), known),
        }
        assert_eq!(map.live_entries(&mut heap).expect("read"), model.len() as u64);
    }
    let again = ExpiringMap::open(&mut heap, map.handle()).expect("it is there");
    assert_eq!(again.terms(), &FOREVER);
    again.clear(&mut heap).expect("cleared");
    assert_eq!(map.live_entries(&mut heap).expect("read"), 0);
    let handle = map.handle();
    ExpiringMap::drop(&mut heap, handle).expect("dropped");
    assert!(matches!(ExpiringMap::open(&mut heap, handle), Err(ClientError::Corrupt { .. })));
    assert!(ExpiringMap::find(&mut heap, handle.map.heads).expect("read").is_none(), "heads are no terms");
}

#[test]
fn an_entry_is_gone_after_its_time_for_every_way_to_ask() {
    let node = Running::start(options(), false);
    let (mut client, mut other) = (node.client(), node.client());
    let map = ExpiringMap::create(&mut client, 4, Terms { ttl_s: 1, ..FOREVER }).expect("room");
    let seen = ExpiringMap::open(&mut other, map.handle()).expect("it is there");
    let begun = Instant::now();
    map.insert(&mut client, 1_u64, b"short", Ttl::OfMap).expect("room");
    map.insert(&mut client, "long", b"long", Ttl::Seconds(1000)).expect("room");
    map.insert(&mut client, 3_u64, &5_u64.to_le_bytes(), Ttl::OfMap).expect("room");
    map.insert(&mut client, 4_u64, b"always", Ttl::Never).expect("room");
    assert_eq!(seen.get(&mut other, 1_u64).expect("read").as_deref(), Some(&b"short"[..]));
    let left = |map: &ExpiringMap, client: &mut Client, key| map.ttl(client, key).expect("read");
    assert!(matches!(left(&seen, &mut other, Key::Number(1)), Some(Some(1..=3))));
    assert!(matches!(left(&seen, &mut other, Key::from("long")), Some(Some(995..=1002))));
    assert_eq!(left(&seen, &mut other, Key::Number(4)), Some(None));
    until("it expires", || seen.get(&mut other, 1_u64).expect("read").is_none());
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(left(&map, &mut client, Key::Number(1)), None);
    until("the number expires", || seen.get(&mut other, 3_u64).expect("read").is_none());
    assert_eq!(map.add(&mut client, 3, 1_u64).expect("asked"), None, "an expired number is not added to");
    assert_eq!(map.get_many(&mut client, &[Key::Number(1), Key::Number(4)]).expect("read")[0], None);
    assert_eq!(map.live_entries(&mut client).expect("read"), 2);
    assert!(!map.remove(&mut client, 1_u64).expect("removed"), "it was not there any more");
    assert_eq!(map.take(&mut client, 3_u64).expect("taken"), None);
    // Its key is free: a put is of a new entry, for each way to put.
    map.insert(&mut client, 1_u64, b"new", Ttl::OfMap).expect("room");
    until("it expires again", || seen.get(&mut other, 1_u64).expect("read").is_none());
    assert_eq!(map.insert_new(&mut client, 1_u64, b"newer", Ttl::OfMap).expect("room"), None);
    until("it expires once more", || seen.get(&mut other, 1_u64).expect("read").is_none());
    assert!(map.insert(&mut client, 1_u64, b"newest", Ttl::Never).expect("room"));
    assert_eq!(seen.get(&mut other, "long").expect("read").as_deref(), Some(&b"long"[..]));
    assert_eq!(seen.get(&mut other, 4_u64).expect("read").as_deref(), Some(&b"always"[..]));
}

#[test]
fn numbers_are_added_to_and_keep_their_time() {
    let node = Running::start(options(), false);
    let mut client = node.client();
    let map = ExpiringMap::create(&mut client, 2, Terms { entries_max: 100, ..FOREVER }).expect("room");
    map.insert(&mut client, 7_u64, &40_u64.to_le_bytes(), Ttl::Seconds(500)).expect("room");
    assert_eq!(map.add(&mut client, 7, 2_u64).expect("added"), Some(40));
    assert_eq!(map.get(&mut client, 7_u64).expect("read"), Some(42_u64.to_le_bytes().to_vec()));
    assert!(matches!(map.ttl(&mut client, 7_u64).expect("read"), Some(Some(490..=502))));
    assert_eq!(map.add(&mut client, 8, 2_u64).expect("asked"), None);
}

#[test]
fn the_node_gives_the_memory_of_expired_entries_back_without_a_client() {
    let node = Running::start(NodeOptions { grace_s: 1, ..options() }, true);
    let mut client = node.client();
    let map = ExpiringMap::create(&mut client, 8, Terms { ttl_s: 1, ..FOREVER }).expect("room");
    let plain = HashMap::create(&mut client, 4).expect("room").handle();
    HashMap::open(plain).insert(&mut client, 1_u64, &[1; 100]).expect("room");
    let empty = node.live();
    let values: Vec<Vec<u8>> = (0..2000_usize).map(|key| vec![key as u8; key % 3000]).collect();
    let pairs: Vec<(Key<'_>, &[u8])> =
        values.iter().enumerate().map(|(key, value)| (Key::Number(key as u64), &value[..])).collect();
    map.insert_many(&mut client, &pairs, Ttl::OfMap).expect("room");
    map.insert(&mut client, 5_000_u64, b"stays", Ttl::Never).expect("room");
    let handle = map.handle();
    drop(client);
    assert!(node.live() > empty + 2_000_000);
    until("the memory comes back", || node.live() <= empty + 64);
    let mut client = node.client();
    let map = ExpiringMap::open(&mut client, handle).expect("it is there");
    assert_eq!(map.get(&mut client, 5_000_u64).expect("read").as_deref(), Some(&b"stays"[..]));
    assert_eq!(HashMap::open(plain).get(&mut client, 1_u64).expect("read"), Some(vec![1; 100]));
    ExpiringMap::drop(&mut client, handle).expect("dropped");
    until("nothing is swept any more", || node.node.declared().is_empty());
}

#[test]
fn a_bounded_map_keeps_what_is_used_and_its_bound() {
    let node = Running::start(options(), false);
    let mut client = node.client();
    let terms = Terms { entries_max: 500, bytes_max: 0, ttl_s: 0 };
    let map = ExpiringMap::create(&mut client, 6, terms).expect("room");
    let hot: Vec<Key<'_>> = (0..100_u64).map(Key::Number).collect();
    for key in 0..500_u64 {
        map.insert(&mut client, key, &key.to_le_bytes(), Ttl::OfMap).expect("room");
    }
    assert_eq!(
        map.live_entries(&mut client).expect("read"),
        500,
        "as many as it may have are no reason to evict"
    );
    // A use is noted once in eight seconds.
    std::thread::sleep(Duration::from_secs(9));
    assert!(map.get_many(&mut client, &hot).expect("read").iter().all(Option::is_some));
    for key in 1000..1300_u64 {
        map.insert(&mut client, key, &key.to_le_bytes(), Ttl::OfMap).expect("room");
        assert_eq!(
            map.get(&mut client, key).expect("read"),
            Some(key.to_le_bytes().to_vec()),
            "what was put is there"
        );
    }
    let live = map.live_entries(&mut client).expect("read");
    assert!((495..=500).contains(&live), "{live}");
    let kept = map.get_many(&mut client, &hot).expect("read").iter().flatten().count();
    assert!(kept >= 75, "{kept} of 100 entries that were used stayed");
    let cold: Vec<Key<'_>> = (100..500_u64).map(Key::Number).collect();
    let kept = map.get_many(&mut client, &cold).expect("read").iter().flatten().count();
    // Of 300 victims chosen blindly, some 70 would be new, 50 used, and 220 unused entries would stay.
    assert!(kept <= 130, "{kept} of 400 entries that were not used stayed");
}

#[test]
fn a_map_may_be_bounded_by_its_memory() {
    let node = Running::start(options(), false);
    let mut client = node.client();
    let empty = node.live();
    let terms = Terms { bytes_max: 1 << 20, ..FOREVER };
    let map = ExpiringMap::create(&mut client, 6, terms).expect("room");
    let base = node.live();
    let value = |key: usize| vec![key as u8; key * 37 % 5000];
    for chunk in 0..20 {
        let values: Vec<Vec<u8>> = (0..100).map(|key| value(chunk * 100 + key)).collect();
        let pairs: Vec<(Key<'_>, &[u8])> = values
            .iter()
            .enumerate()
            .map(|(key, value)| (Key::Number((chunk * 100 + key) as u64), &value[..]))
            .collect();
        map.insert_many(&mut client, &pairs, Ttl::OfMap).expect("room");
        client.settle().expect("answered");
        let taken = node.live() - base;
        assert!(taken <= 1 << 20, "{taken} bytes");
    }
    assert!(node.live() - base > 9 << 16, "most of the bound is used");
    let large = vec![0; 1 << 20];
    let refused = map.insert(&mut client, 1_u64, &large, Ttl::OfMap);
    assert!(matches!(refused, Err(ClientError::TooLong { what: "an entry", .. })), "{refused:?}");
    ExpiringMap::drop(&mut client, map.handle()).expect("dropped");
    client.settle().expect("answered");
    assert_eq!(node.live(), empty);
}

#[test]
fn several_clients_share_a_bound_and_the_sweep_corrects_its_count() {
    let node = Running::start(options(), false);
    let mut client = node.client();
    let map = ExpiringMap::create(&mut client, 6, Terms { entries_max: 300, ..FOREVER }).expect("room");
    let handle = map.handle();
    std::thread::scope(|scope| {
        for own in 0..4_u64 {
            let mut client = node.client();
            scope.spawn(move || {
                let map = ExpiringMap::open(&mut client, handle).expect("it is there");
                for key in 0..400_u64 {
                    map.insert(&mut client, key * 4 + own, b"value", Ttl::OfMap).expect("room");
                    if key % 5 == 0 {
                        map.remove(&mut client, key * 4 + own).expect("removed");
                    }
                }
            });
        }
    });
    let live = map.live_entries(&mut client).expect("read");
    assert!((200..=304).contains(&live), "{live}");
    let counted = |client: &mut Client| {
        u64::from_le_bytes(client.read(handle.terms + 48, 8).expect("read").try_into().expect("eight bytes"))
    };
    assert_eq!(counted(&mut client), live, "each entry was counted once");
    // A client that ended between its change and its count.
    client.fetch_add(handle.terms + 48, Addend::Signed(1 << 20)).expect("added");
    let mut sweep = Sweep::default();
    while !map.sweep(&mut client, &mut sweep).expect("swept").ended {}
    assert_eq!(counted(&mut client), live);
    assert_eq!(map.live_entries(&mut client).expect("read"), live, "the wrong count has evicted nothing");
}

#[test]
fn a_sweep_over_a_map_that_grows_leaves_its_count_right() {
    let node = Running::start(options(), false);
    let mut client = node.client();
    let map = ExpiringMap::create(&mut client, 6, Terms { entries_max: 400, ..FOREVER }).expect("room");
    let put = |client: &mut Client, keys: std::ops::Range<u64>| {
        keys.for_each(|key| assert!(map.insert(client, key, b"value", Ttl::OfMap).expect("room")));
    };
    put(&mut client, 0..50);
    let mut sweep = Sweep::default();
    // 1, 2, 4, 8 and 16 of 64 chains.
    for _ in 0..5 {
        assert!(!map.sweep(&mut client, &mut sweep).expect("swept").ended);
    }
    put(&mut client, 50..350);
    while !map.sweep(&mut client, &mut sweep).expect("swept").ended {}
    put(&mut client, 350..1000);
    let live = map.live_entries(&mut client).expect("read");
    assert!((396..=400).contains(&live), "{live}");
}

/// A map at its bound has the same size before and after each put, but no sweep of several steps sees one moment of it.
#[test]
fn sweeps_over_a_map_whose_entries_are_replaced_leave_its_count_right() {
    const MOST: u64 = 2000;
    let node = Running::start(options(), false);
    let mut client = node.client();
    let map = ExpiringMap::create(&mut client, 11, Terms { entries_max: MOST, ..FOREVER }).expect("room");
    let put = |client: &mut Client, keys: std::ops::Range<u64>| {
        keys.for_each(|key| assert!(map.insert(client, key, b"value", Ttl::OfMap).expect("room")));
    };
    put(&mut client, 0..MOST);
    let (mut sweep, mut next, mut ended, mut steps) = (Sweep::default(), MOST, 0, 0);
    while ended < 5 {
        ended += u32::from(map.sweep(&mut client, &mut sweep).expect("swept").ended);
        steps += 1;
        put(&mut client, next..next + 300);
        next += 300;
        let live = map.live_entries(&mut client).expect("read");
        assert_eq!(live, MOST, "after {ended} sweeps");
    }
    assert!(steps > 20, "{steps}");
    // It rests. A client that ended between its change and its count had put an entry: the second sweep knows.
    client.fetch_add(map.handle().terms + 48, Addend::Signed(-1)).expect("added");
    for _ in 0..3 {
        while !map.sweep(&mut client, &mut sweep).expect("swept").ended {}
    }
    put(&mut client, next..next + 1);
    assert_eq!(map.live_entries(&mut client).expect("read"), MOST);
}

#[test]
fn times_terms_and_the_sweep_survive_a_restart_and_a_short_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let version =
        || u32::from_le_bytes(std::fs::read(&log).expect("a log")[8..12].try_into().expect("four bytes"));
    let handle: Handle;
    {
        let node = Running::start(logged(&log), false);
        let mut client = node.client();
        // The start of the node is a record of this version.
        assert_eq!(version(), 7, "earlier releases refuse it by name");
        let map = ExpiringMap::create(&mut client, 4, Terms { ttl_s: 3, ..FOREVER }).expect("room");
        for key in 0..50_u64 {
            map.insert(&mut client, key, b"goes", Ttl::OfMap).expect("room");
        }
        map.insert(&mut client, 50_u64, b"stays", Ttl::Seconds(10_000)).expect("room");
        handle = map.handle();
    }
    {
        let node = Running::start(logged(&log), false);
        assert_eq!(node.node.declared(), vec![(0, handle.terms, true)]);
        node.node.compact().expect("shortened").expect("it has a log");
        assert_eq!(version(), 7);
        // Declared while a compaction is over: both are there at the next start.
        let mut client = node.client();
        let other = ExpiringMap::create(&mut client, 2, FOREVER).expect("room");
        assert_eq!(node.node.declared().len(), 2);
        ExpiringMap::drop(&mut client, other.handle()).expect("dropped");
        client.settle().expect("answered");
        assert_eq!(node.node.declared().len(), 1, "its node forgets it with its memory");
    }
    let node = Running::start(NodeOptions { grace_s: 1, ..logged(&log) }, true);
    assert_eq!(node.node.declared(), vec![(0, handle.terms, true)]);
    let mut client = node.client();
    let map = ExpiringMap::open(&mut client, handle).expect("it is there");
    assert_eq!(map.terms().ttl_s, 3);
    until("they expire", || map.get(&mut client, 7_u64).expect("read").is_none());
    until("they are swept", || {
        let chains = HashMap::open(handle.map).scan(&mut client).expect("read");
        chains.len() == 1
    });
    assert_eq!(map.get(&mut client, 50_u64).expect("read").as_deref(), Some(&b"stays"[..]));
}

#[test]
fn nodes_with_keys_sweep_the_maps_of_each_tenant() {
    let keys = Keys::none().with(3, [3; 32]).with(4, [4; 32]);
    let node = Running::start(NodeOptions { keys: keys.clone(), grace_s: 1, ..options() }, true);
    for tenant in [3, 4] {
        let config = Config { tenant, keys: keys.only(tenant), ..Config::default() };
        let mut client = Client::reach(&[&node.place], config).expect("the node answers");
        let map = ExpiringMap::create(&mut client, 2, Terms { ttl_s: 1, ..FOREVER }).expect("room");
        map.insert(&mut client, 1_u64, b"value", Ttl::OfMap).expect("room");
        let handle = map.handle();
        until("it is swept", || HashMap::open(handle.map).scan(&mut client).expect("read").is_empty());
    }
}

#[test]
fn what_was_not_declared_by_its_tenant_is_not_swept() {
    let node = Running::start(options(), true);
    let mut client = node.client();
    let at = client.allocate(64).expect("room");
    for wrong in [at + 4, 0, BASE + (1 << 40)] {
        assert!(client.declare(wrong).is_err(), "{wrong:#x}");
    }
    // Bytes that are no terms.
    client.write(at, &[0xff; 64]).expect("written");
    client.declare(at).expect("the address is its own");
    until("the sweep finds that nothing is there", || node.node.declared().is_empty());
    // A map that looks as if it had its heads elsewhere: the sweep may do what its tenant may do.
    let map = ExpiringMap::create(&mut client, 2, Terms { ttl_s: 1, ..FOREVER }).expect("room");
    client.write(map.handle().terms + 8, &(1_u64 << 60).to_le_bytes()).expect("written");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(HashMap::create(&mut client, 2).expect("room").get(&mut client, 1_u64).expect("read"), None);
}
