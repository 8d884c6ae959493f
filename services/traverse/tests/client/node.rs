// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients and nodes in one process, over real transports: the collections against their models, whatever happens to packets.
//!
//! - **Flow** node threads ◀── UDP or rings ──▶ client; between them, in some tests, [`Lossy`]: packets vanish, come twice, come
//!   late
//! - **Not here** how collections work: `structures/collections.rs`; what a node does with bad packets: `node_*.rs`

use crate::running::{self, Running};
use std::collections::{BTreeMap, HashMap as StdMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memlift_traverse::client::cache::Cache;
use memlift_traverse::client::choice::{Chooser, Way};
use memlift_traverse::client::{Client, ClientError, Config, Link, Request, Result, Routing, Shared};
use memlift_traverse::map;
use memlift_traverse::node::{Alone, BASE, NodeOptions};
use memlift_traverse::structures::bulk;
use memlift_traverse::structures::placement::{Order, Placement, SLAB_4K};
use memlift_traverse::structures::sink::ToHeap;
use memlift_traverse::structures::{Addend, HashMap, Heap, List, OrderedMap, Scratch, Walk, shipped};
use memlift_traverse::transport::shm::Shm;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::transport::{Peer, Transport, TransportError};
use memlift_traverse::wire::{Keys, Status};
use proptest::prelude::*;

const NODE_BYTES: u64 = 32 << 20;

fn options(base: u64) -> NodeOptions {
    NodeOptions { base, ..running::options(NODE_BYTES) }
}

fn over_udp(options: NodeOptions) -> (Running, SocketAddr) {
    let node = Running::udp(None, options);
    let at = node.at();
    (node, at)
}

fn name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("client-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn over_shm(options: NodeOptions) -> (Running, String) {
    let name = name();
    let shm = Shm::listen(&name).expect("a free name");
    (Running::start(options, Box::new(shm), Box::new(Alone)), name)
}

/// Loses, doubles and delays packets, both ways.
#[derive(Debug)]
struct Lossy {
    inner: Box<dyn Transport>,
    state: u64,
    held: VecDeque<(Peer, Vec<u8>)>,
    lost: Arc<AtomicU64>,
}

impl Lossy {
    fn new(inner: Box<dyn Transport>, seed: u64, lost: Arc<AtomicU64>) -> Lossy {
        Lossy { inner, state: seed, held: VecDeque::new(), lost }
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.state >> 33).is_multiple_of(many)
    }
}

impl Transport for Lossy {
    fn receive(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(Peer, &[u8]),
    ) -> std::result::Result<usize, TransportError> {
        let mut came = Vec::new();
        let got = self.inner.receive(most, &mut |peer, bytes| came.push((peer, bytes.to_vec())))?;
        for (peer, bytes) in came {
            if self.one_in(12) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            take(peer, &bytes);
            if self.one_in(12) {
                take(peer, &bytes);
            }
        }
        Ok(got)
    }

    fn send(&mut self, to: Peer, packet: &[u8]) -> std::result::Result<bool, TransportError> {
        if self.one_in(12) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
        if self.one_in(8) {
            self.held.push_back((to, packet.to_vec()));
            return Ok(true);
        }
        if self.one_in(12) {
            self.inner.send(to, packet)?;
        }
        self.inner.send(to, packet)
    }

    fn flush(&mut self) -> std::result::Result<(), TransportError> {
        // Packets that were held back leave after later ones.
        while self.held.len() > 3 || (!self.held.is_empty() && self.one_in(3)) {
            let (to, packet) = self.held.pop_front().expect("just seen");
            self.inner.send(to, &packet)?;
        }
        self.inner.flush()
    }

    fn wait(&mut self, at_most: Duration) -> std::result::Result<(), TransportError> {
        self.inner.wait(at_most)
    }

    fn packet_bytes(&self) -> usize {
        self.inner.packet_bytes()
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    Remove(u64),
    Get(u64),
    Add(u64, u64),
    Range(u64, u64),
}

fn operations(most: usize) -> impl Strategy<Value = Vec<Operation>> {
    let key = 0_u64..80;
    let one = prop_oneof![
        5 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Operation::Insert(key, value)),
        2 => key.clone().prop_map(Operation::Remove),
        3 => key.clone().prop_map(Operation::Get),
        1 => (key.clone(), any::<u64>()).prop_map(|(key, by)| Operation::Add(key, by)),
        2 => (key.clone(), key).prop_map(|(a, b)| Operation::Range(a, b)),
    ];
    proptest::collection::vec(one, 0..most)
}

/// The same operations on both collections and on a model.
fn play(client: &mut Client, operations: &[Operation]) {
    let mut hash = HashMap::create(client, 3).expect("room");
    let mut ordered = OrderedMap::create(client, 8).expect("room");
    let mut model = BTreeMap::new();
    for operation in operations {
        match *operation {
            Operation::Insert(key, value) => {
                let fresh = model.insert(key, value).is_none();
                assert_eq!(
                    hash.insert(client, key, &value.to_le_bytes()).expect("room"),
                    fresh,
                    "{operation:?}"
                );
                assert_eq!(
                    ordered.insert(client, key, &value.to_le_bytes()).expect("room"),
                    fresh,
                    "{operation:?}"
                );
            }
            Operation::Remove(key) => {
                let there = model.remove(&key).is_some();
                assert_eq!(hash.remove(client, key).expect("an answer"), there, "{operation:?}");
                assert_eq!(ordered.remove(client, key).expect("an answer"), there, "{operation:?}");
            }
            Operation::Get(key) => {
                let value = model.get(&key).map(|value| value.to_le_bytes().to_vec());
                assert_eq!(hash.get(client, key).expect("an answer"), value, "{operation:?}");
                assert_eq!(ordered.get(client, key).expect("an answer"), value, "{operation:?}");
            }
            Operation::Add(key, by) => {
                let old = model.get(&key).copied();
                if old.is_some_and(|old| old.checked_add(by).is_none()) {
                    let refused = hash.add(client, key, by);
                    assert!(matches!(refused, Err(ClientError::Overflow { .. })), "{refused:?}");
                    continue;
                }
                assert_eq!(hash.add(client, key, by).expect("an answer"), old, "{operation:?}");
                if let Some(value) = model.get_mut(&key) {
                    *value += by;
                    ordered.insert(client, key, &value.to_le_bytes()).expect("room");
                }
            }
            Operation::Range(first, last) => {
                let found = ordered.range(client, first..=last, 1000).expect("an answer");
                let right: Vec<(u64, Vec<u8>)> = model
                    .iter()
                    .filter(|(key, _)| (first..=last).contains(key))
                    .map(|(&key, value)| (key, value.to_le_bytes().to_vec()))
                    .collect();
                let sum = right.iter().fold(0_i64, |sum, (_, value)| {
                    sum.wrapping_add(i64::from_le_bytes(value[..].try_into().expect("eight bytes")))
                });
                let all = ordered.aggregate_wrapping(client, first..=last).expect("an answer");
                assert_eq!((all.sum, all.count), (sum, right.len() as u64), "{operation:?}");
                assert_eq!(found, right, "{operation:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn collections_answer_as_their_models_over_udp(operations in operations(120)) {
        let (_node, at) = over_udp(options(BASE));
        play(&mut Client::udp(&[at], Config::default()).expect("a node"), &operations);
    }

    #[test]
    fn collections_answer_as_their_models_over_rings(operations in operations(120)) {
        let (_node, name) = over_shm(options(BASE));
        play(&mut Client::shm(&[&name], Config::default()).expect("a node"), &operations);
    }

    #[test]
    fn collections_answer_as_their_models_whatever_is_lost(operations in operations(16), seed: u64) {
        let lost = Arc::new(AtomicU64::new(0));
        let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
        let at = udp.address();
        let lossy = Lossy::new(Box::new(udp), seed, lost.clone());
        let _node = Running::start(options(BASE), Box::new(lossy), Box::new(Alone));
        let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
        let lossy = Lossy::new(Box::new(udp), !seed, lost.clone());
        let link = Link { transport: Box::new(lossy), nodes: vec![("lossy".to_owned(), Peer::Socket(at))] };
        let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
        let mut client = Client::connect(vec![link], config).expect("a node");
        play(&mut client, &operations);
        prop_assert!(operations.len() < 12 || lost.load(Ordering::Relaxed) > 0);
    }
}

/// Two nodes that know of each other; the ranges of their addresses.
fn pair() -> (Vec<Running>, Vec<SocketAddr>, map::Map) {
    let sockets: Vec<Udp> = (0..2)
        .map(|_| Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port"))
        .collect();
    let at: Vec<SocketAddr> = sockets.iter().map(Udp::address).collect();
    let node = |index: usize| map::Node {
        id: map::NodeId(index as u16),
        name: format!("node{index}"),
        addresses: vec![map::Address::Udp(at[index])],
        state: map::State::Up,
        incarnation: 1,
    };
    let range = |index: usize| map::Range {
        base: BASE + index as u64 * NODE_BYTES,
        bytes: NODE_BYTES,
        owner: Some(map::NodeId(index as u16)),
        since: 1,
        permissions: map::Permissions::READ_WRITE,
        tenant: 0,
    };
    let map = map::Map::new(1, vec![node(0), node(1)], vec![range(0), range(1)]).expect("a map");
    let nodes = sockets
        .into_iter()
        .enumerate()
        .map(|(index, socket)| {
            let view = map::Shared::new(map.clone(), Some(map::NodeId(index as u16))).view();
            Running::start(options(BASE + index as u64 * NODE_BYTES), Box::new(socket), Box::new(view))
        })
        .collect();
    (nodes, at, map)
}

#[test]
fn walks_of_collections_end_when_they_are_done_whatever_their_budget() {
    let (_nodes, at, map) = pair();
    let config = Config { iterations: 50, hops: 2, deadline: Duration::from_secs(60), ..Config::default() };
    let mut client = Client::udp(&at, config).expect("two nodes");
    client.use_map(&map);
    // Two chains for all of it, whose nodes lie on both nodes in turn.
    let mut hash = HashMap::create(&mut client, 1).expect("room");
    let mut list = List::create(&mut client).expect("room");
    let mut ordered = OrderedMap::create(&mut client, 8).expect("room");
    for key in 0..400_u64 {
        hash.insert(&mut client, key, &[key as u8; 100]).expect("room");
        list.push_back(&mut client, key, &[1; 300]).expect("room");
        ordered.insert(&mut client, key * 7 % 400, &key.to_le_bytes()).expect("room");
        // Uses up what is left of a turn at one node, so that the next insert goes to the other one.
        client.allocate(16).expect("room");
    }
    assert_eq!(hash.scan(&mut client).expect("all of it").len(), 400);
    assert_eq!(list.scan(&mut client).expect("all of it").len(), 400);
    let sum = list.sum(&mut client).expect("all of it");
    assert_eq!((sum.count, sum.sum), (400, 399 * 200));
    assert_eq!(ordered.range(&mut client, 0..=u64::MAX, u64::MAX).expect("all of it").len(), 400);
    let sum = ordered.aggregate(&mut client, 0..=u64::MAX).expect("all of it");
    assert_eq!((sum.count, sum.sum), (400, 399 * 200));
    assert_eq!(hash.get(&mut client, 399).expect("found"), Some(vec![143; 100]));
    assert!(hash.remove(&mut client, 399).expect("found") && client.counts().continued > 50);
    // A number is added to, or stays as it is.
    let word = client.place(&5_u64.to_le_bytes()).expect("room");
    for (addend, before) in [(Addend::Unsigned(u64::MAX - 5), 5), (Addend::Less(3), u64::MAX)] {
        assert_eq!(client.fetch_add(word, addend).expect("fits"), before);
    }
    for addend in [Addend::Unsigned(4), Addend::Less(u64::MAX), Addend::Signed(i64::MIN)] {
        let told = client.fetch_add(word, addend);
        assert!(matches!(told, Err(ClientError::Overflow { .. })), "{addend:?}: {told:?}");
    }
    assert_eq!(client.fetch_add(word, Addend::Signed(3)).expect("fits"), u64::MAX - 3);
    // A program of the user's own is limited by its budget.
    let scratch = Scratch::new().with(0, u64::MAX).with(24, list.head());
    let own = Walk { program: shipped::STL_FORWARD_LIST.program(), start: list.head(), scratch };
    assert!(matches!(client.walk(&own), Err(ClientError::Budget { .. } | ClientError::Hops { .. })));
}

#[test]
fn walks_go_from_node_to_node_and_changes_reach_their_owner() {
    let (nodes, at, map) = pair();
    let mut client = Client::udp(&at, Config::default()).expect("two nodes");
    client.use_map(&map);
    assert_eq!(client.epoch(), 1);
    // Slabs are taken from both nodes in turn, so chains and paths cross.
    let operations: Vec<Operation> = (0..600_u64)
        .map(|turn| match turn % 5 {
            0..3 => Operation::Insert(turn * 7 % 300, turn),
            3 => Operation::Remove(turn * 3 % 300),
            _ => Operation::Range(turn % 100, 250),
        })
        .collect();
    play(&mut client, &operations);
    let mut list = List::create(&mut client).expect("room");
    let mut pools = [client.allocate(4096).expect("room"), client.allocate(4096).expect("room")];
    pools.sort_unstable();
    assert!(
        pools[0] < BASE + NODE_BYTES && pools[1] >= BASE + NODE_BYTES,
        "one piece on each node: {pools:x?}"
    );
    for number in 0..100 {
        list.push_back(&mut client, number, b"x").expect("room");
    }
    // A chain that changes nodes with each hop, walked without the client.
    let chain: Vec<u64> = (0..40).map(|hop| pools[hop % 2] + hop as u64 * 64).collect();
    for (hop, &place) in chain.iter().enumerate() {
        let next = chain.get(hop + 1).copied().unwrap_or(0);
        let words = [next, 1000 + hop as u64];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        client.write(place, &bytes).expect("written");
    }
    let scratch = Scratch::new().with(0, 1039).with(24, chain[0]);
    let walk = Walk { program: shipped::STL_FORWARD_LIST.program(), start: chain[0], scratch };
    let before: u64 = nodes
        .iter()
        .map(|node| node.node.stats().read().get(memlift_traverse::node::Counter::Forwarded))
        .sum();
    let answer = client.call(Request::walk(&walk)).expect("an answer");
    assert_eq!((answer.status, answer.scratch().word(16), answer.visits), (Status::Done, chain[39], 1));
    let after: u64 = nodes
        .iter()
        .map(|node| node.node.stats().read().get(memlift_traverse::node::Counter::Forwarded))
        .sum();
    assert_eq!(after - before, 39, "one packet per crossing");
    assert_eq!(list.sum(&mut client).expect("an answer").sum, 99 * 100 / 2);

    // The same through the client each time.
    let mut bounce =
        Client::udp(&at, Config { routing: Routing::Bounce, ..Config::default() }).expect("two nodes");
    bounce.use_map(&map);
    let answer = bounce.call(Request::walk(&walk)).expect("an answer");
    assert_eq!((answer.status, answer.visits), (Status::Done, 40), "each crossing comes back");
    assert_eq!(bounce.counts().continued, 39);

    // Too many crossings are an error that says so.
    let mut few = Client::udp(&at, Config { hops: 3, ..Config::default() }).expect("two nodes");
    few.use_map(&map);
    let refused = few.call(Request::walk(&walk));
    assert!(matches!(refused, Err(ClientError::Hops { hops: 3, .. })), "{refused:?}");
}

#[test]
fn long_walks_are_sent_on_and_endless_ones_ended() {
    for (rings, visit) in [(false, 100), (true, 7)] {
        let settings = NodeOptions { iterations_per_visit: visit, ..options(BASE) };
        let (_node, mut client) = if rings {
            let (node, name) = over_shm(settings);
            (node, Client::shm(&[&name], Config { iterations: 20_000, ..Config::default() }).expect("a node"))
        } else {
            let (node, at) = over_udp(settings);
            (node, Client::udp(&[at], Config { iterations: 20_000, ..Config::default() }).expect("a node"))
        };
        let base = client.allocate(1 << 20).expect("room");
        let mut placement = Placement::new(&[(base, 1 << 20)], SLAB_4K, Order::Random(5));
        let mut sink = ToHeap::new(&mut client);
        let value = |key: u64| {
            let mut value = key.to_le_bytes().to_vec();
            value.resize(240, key as u8);
            value
        };
        let pairs = (0..2000).map(|key| Ok((key, value(key))));
        let handle = bulk::ordered(pairs, 240, &mut placement, &mut sink, |_| {}).expect("room");
        sink.finish().expect("written");
        let map = OrderedMap::open(handle);
        let all = map.range(&mut client, 0..=u64::MAX, u64::MAX).expect("an answer of half a megabyte");
        assert_eq!(all, (0..2000).map(|key| (key, value(key))).collect::<Vec<_>>());
        assert!(client.counts().continued >= 2000 / u64::from(visit));
        // A cycle.
        let place = client.allocate(64).expect("room");
        client.write(place, &[place.to_le_bytes(), 5_u64.to_le_bytes()].concat()).expect("written");
        let scratch = Scratch::new().with(0, 9).with(24, place);
        let walk = Walk { program: shipped::STL_FORWARD_LIST.program(), start: place, scratch };
        let ended = client.walk(&walk);
        assert!(matches!(ended, Err(ClientError::Budget { iterations: 20_000, .. })), "{ended:?}");
    }
}

#[test]
fn many_are_under_way_and_come_back_in_order() {
    let (_node, name) = over_shm(options(BASE));
    let mut client = Client::shm(&[&name], Config { window: 32, ..Config::default() }).expect("a node");
    let mut map = HashMap::create(&mut client, 6).expect("room");
    for key in 0..300_u64 {
        map.insert(&mut client, key, &(key * key).to_le_bytes()).expect("room");
    }
    let keys: Vec<u64> = (0..400).rev().collect();
    let values = map.get_many(&mut client, &keys).expect("answers");
    for (&key, value) in keys.iter().zip(values) {
        assert_eq!(value, (key < 300).then(|| (key * key).to_le_bytes().to_vec()));
    }
    let object: Vec<u8> = (0..8192_u32).map(|byte| (byte * 7) as u8).collect();
    map.insert(&mut client, "object", &object).expect("room");
    assert_eq!(
        map.get(&mut client, "object").expect("an answer").as_deref(),
        Some(&object[..]),
        "8 KiB in one walk"
    );
    assert_eq!(client.under_way(), 0);
}

#[test]
fn futures_need_no_executor_of_ours() {
    let (_node, at) = over_udp(options(BASE));
    let mut client = Client::udp(&[at], Config::default()).expect("a node");
    let place = client.allocate(4096).expect("room");
    let shared = Shared::new(client);
    let mut calls: Vec<_> = (0..64_u64)
        .map(|turn| Box::pin(shared.call(Request::write(place + turn * 8, &turn.to_le_bytes()))))
        .collect();
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    while !calls.is_empty() {
        calls.retain_mut(|call| match call.as_mut().poll(&mut context) {
            std::task::Poll::Ready(answer) => {
                assert_eq!(answer.expect("an answer").status, Status::Done);
                false
            }
            std::task::Poll::Pending => true,
        });
    }
    let mut dropped = Box::pin(shared.call(Request::read(place, 8)));
    assert!(dropped.as_mut().poll(&mut context).is_pending() || shared.lock().under_way() == 0);
    drop(dropped);
    let read = shared.lock().read(place, 512).expect("an answer");
    let right: Vec<u8> = (0..64_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(read, right);
}

#[test]
fn each_change_happens_once_however_often_it_is_sent() {
    let lost = Arc::new(AtomicU64::new(0));
    let (_node, at) = over_udp(options(BASE));
    let mut clean = Client::udp(&[at], Config::default()).expect("a node");
    let mut map = HashMap::create(&mut clean, 0).expect("room");
    map.insert(&mut clean, 1, &0_u64.to_le_bytes()).expect("room");
    let handle = map.handle();
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let lost = lost.clone();
            scope.spawn(move || {
                let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a port");
                let lossy = Lossy::new(Box::new(udp), seed, lost);
                let link =
                    Link { transport: Box::new(lossy), nodes: vec![("node".to_owned(), Peer::Socket(at))] };
                let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
                let mut client = Client::connect(vec![link], config).expect("a node");
                let mut map = HashMap::open(handle);
                for _ in 0..60 {
                    map.add(&mut client, 1, 1_u64).expect("an answer").expect("it is there");
                }
            });
        }
    });
    let value = map.get(&mut clean, 1).expect("an answer").expect("it is there");
    assert_eq!(value, 180_u64.to_le_bytes());
    assert!(lost.load(Ordering::Relaxed) > 0, "nothing was lost: nothing was tried");
}

#[test]
fn errors_say_what_to_do() {
    let (node, at) = over_udp(NodeOptions { bytes: 4 << 20, ..options(BASE) });
    let mut client = Client::udp(&[at], Config { deadline: Duration::from_millis(300), ..Config::default() })
        .expect("a node");
    let full = client.allocate(1 << 30);
    assert!(matches!(full, Err(ClientError::Full { bytes: 0x4000_0000 })), "{full:?}");
    let nowhere = client.read(8, 8);
    assert!(matches!(nowhere, Err(ClientError::Nowhere { address: 8, .. })), "{nowhere:?}");
    let place = client.allocate(64).expect("room");
    let mut other =
        Client::udp(&[at], Config { tenant: 7, deadline: Duration::from_millis(300), ..Config::default() })
            .expect("a node");
    let forbidden = other.read(place, 8);
    assert!(matches!(forbidden, Err(ClientError::Forbidden { tenant: 7, .. })), "{forbidden:?}");
    let walk =
        OrderedMap::open(memlift_traverse::structures::ordered::Handle { cell: place, value_bytes: 8 })
            .handle()
            .get_walk(1);
    client.write(place, &(BASE + (64 << 20)).to_le_bytes()).expect("written");
    let wild = client.walk(&walk);
    assert!(
        matches!(wild, Err(ClientError::Nowhere { .. } | ClientError::Forbidden { .. })),
        "a pointer out of all memory: {wild:?}"
    );
    drop(node);
    let silent = client.read(place, 8);
    assert!(matches!(&silent, Err(ClientError::Silent { attempts, .. }) if *attempts > 1), "{silent:?}");
    assert!(silent.expect_err("nobody is there").to_string().contains("see whether it runs"));
}

#[test]
fn tenants_with_keys_are_told_apart() {
    let keys = Keys::none().with(1, [1; 32]).with(2, [2; 32]);
    let udp = Udp::bind("127.0.0.1:0".parse().expect("an address"), true).expect("a port");
    let at = udp.address();
    let _node = Running::start(NodeOptions { keys, ..options(BASE) }, Box::new(udp), Box::new(Alone));
    let config = |tenant, key| Config {
        tenant,
        keys: Keys::none().with(tenant, [key; 32]),
        deadline: Duration::from_millis(300),
        ..Config::default()
    };
    let mut one = Client::udp(&[at], config(1, 1)).expect("the right key");
    let mut map = HashMap::create(&mut one, 2).expect("room");
    map.insert(&mut one, 5, b"of one").expect("room");
    assert_eq!(map.get(&mut one, 5).expect("an answer").as_deref(), Some(&b"of one"[..]));
    let mut two = Client::udp(&[at], config(2, 2)).expect("the right key");
    let stolen = HashMap::open(map.handle()).get(&mut two, 5);
    assert!(matches!(stolen, Err(ClientError::Forbidden { tenant: 2, .. })), "{stolen:?}");
    for (tenant, key) in [(1, 9), (3, 1)] {
        let wrong = Client::udp(&[at], config(tenant, key));
        assert!(matches!(wrong, Err(ClientError::WrongKey { .. })), "{wrong:?}");
    }
    let without = Client::udp(&[at], Config { keys: Keys::none(), ..config(1, 1) });
    assert!(matches!(without, Err(ClientError::WrongKey { .. } | ClientError::Silent { .. })), "{without:?}");
}

#[test]
fn many_clients_count_together() {
    let (_node, name) = over_shm(options(BASE));
    let mut client = Client::shm(&[&name], Config::default()).expect("a node");
    let handle = HashMap::create(&mut client, 1).expect("room").handle();
    let ordered = OrderedMap::create(&mut client, 8).expect("room").handle();
    let mut right = StdMap::new();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let name = &name;
            scope.spawn(move || -> Result<()> {
                let mut client = Client::shm(&[name], Config::default())?;
                let (mut map, mut tree) = (HashMap::open(handle), OrderedMap::open(ordered));
                for round in 0..40 {
                    let key = round * 3 + thread;
                    assert!(map.insert(&mut client, key, &round.to_le_bytes())?);
                    assert!(tree.insert(&mut client, key, &round.to_le_bytes())?);
                    if round % 4 == 0 {
                        assert!(map.remove(&mut client, key)? && tree.remove(&mut client, key)?);
                    }
                }
                Ok(())
            });
        }
        for key in 0..120_u64 {
            if key / 3 % 4 != 0 {
                right.insert(key, (key / 3).to_le_bytes().to_vec());
            }
        }
    });
    let (mut map, tree) = (HashMap::open(handle), OrderedMap::open(ordered));
    for key in 0..130 {
        assert_eq!(map.get(&mut client, key).expect("an answer"), right.get(&key).cloned(), "{key}");
        assert_eq!(tree.get(&mut client, key).expect("an answer"), right.get(&key).cloned(), "{key}");
    }
}

#[test]
fn walks_at_the_client_answer_as_those_at_the_node() {
    let (_node, name) = over_shm(options(BASE));
    let mut client = Client::shm(&[&name], Config::default()).expect("a node");
    let room = 512 << 10;
    let base = client.allocate(room).expect("room");
    let mut placement = Placement::new(&[(base, room)], SLAB_4K, Order::Random(9));
    let mut sink = ToHeap::new(&mut client);
    let pairs = (0..5000_u64).map(|key| Ok((key * 2, key.to_le_bytes())));
    let handle = bulk::ordered(pairs, 8, &mut placement, &mut sink, |_| {}).expect("room");
    sink.finish().expect("written");
    // The paper's cache: 6 % of the data.
    let mut chooser = Chooser::new(Cache::new(room as usize * 6 / 100, Duration::from_secs(1)));
    let mut ways = [0; 3];
    for turn in 0..200_u64 {
        let key = turn * 37 % 10_100;
        let right = (key % 2 == 0 && key < 10_000).then(|| (key / 2).to_le_bytes().to_vec());
        let (walked, way) =
            chooser.walk(&mut client, &handle.get_walk(key), Some((base, room))).expect("an answer");
        ways[way as usize] += 1;
        assert_eq!(handle.found(&walked), right, "{key} {way:?}");
        let range = handle.range_walk(key..=key + 50, 1000);
        let cached = chooser.walk_by(&mut client, &range, None, Way::Cached).expect("an answer");
        let remote = chooser.walk_by(&mut client, &range, None, Way::Remote).expect("an answer");
        assert_eq!(handle.pairs(&cached).expect("pairs"), handle.pairs(&remote).expect("pairs"), "{key}");
    }
    assert!(ways.iter().all(|&times| times > 0), "each way is measured: {ways:?}");
    assert!(chooser.cache.bytes() <= room as usize * 6 / 100 && chooser.cache.hits > 0);
    let explained = chooser.explain(&client, &handle.get_walk(0), None);
    assert!(explained.contains("ordered_get") && explained.contains("range is not known"), "{explained}");
    // A change is seen by the next walk, though the rest of the tree is cached.
    let mut map = OrderedMap::open(handle);
    map.insert(&mut client, 4, &77_u64.to_le_bytes()).expect("room");
    let (walked, _) = client.walk_locally(&mut chooser.cache, &handle.get_walk(4)).expect("an answer");
    assert_eq!(handle.found(&walked), Some(77_u64.to_le_bytes().to_vec()));
}
