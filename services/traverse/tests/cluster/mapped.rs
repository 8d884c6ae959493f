// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes whose ports are mapped: others reach them at one address, and their packets come from another.
//!
//! - **Flow** client and nodes ─▶ [`forward`] for each node, with a socket for each sender, as a translation of addresses has ─▶ node
//! - **Order** a strict forwarder drops what comes back from others than its node, as stateful filters do
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::node_world::{add, find};
use memlift_traverse::client::{Client, Config, Request};
use memlift_traverse::map::coordinator::Options;
use memlift_traverse::map::{Coordinator, Order, Peer, Source};
use memlift_traverse::node::{Cluster, ClusterOptions, Counter, NodeOptions};
use memlift_traverse::structures::{Scratch, Walk};
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::{Keys, Status};

const MEMORY: u64 = 4 << 20;
const TURN: Duration = Duration::from_millis(5);

fn any_port() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(TURN)).expect("set");
    socket
}

/// Forwards until told to stop.
fn forward(front: &UdpSocket, to: SocketAddr, strict: bool, stop: &AtomicBool) {
    let mut senders: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
    front.set_read_timeout(Some(Duration::from_micros(200))).expect("set");
    let mut bytes = [0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = front.recv_from(&mut bytes) {
            let back = senders.entry(from).or_insert_with(|| {
                let socket = any_port();
                if strict {
                    socket.connect(to).expect("connected");
                }
                socket.set_nonblocking(true).expect("set");
                socket
            });
            let _ = if strict { back.send(&bytes[..length]) } else { back.send_to(&bytes[..length], to) };
        }
        for (sender, back) in &senders {
            while let Ok((length, _)) = back.recv_from(&mut bytes) {
                let _ = front.send_to(&bytes[..length], sender);
            }
        }
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A list over two nodes is walked, changed, and moved, all through forwarders.
fn works(keys: &Keys, tenant: u32, strict: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let peer = format!("unix:{}", folder.path().join("coordinator").display());
    let options = Options { file: folder.path().join("map"), lease: Duration::from_secs(60), secret: None };
    let _coordinator =
        Coordinator::start(&Peer::parse(&peer).expect("an address"), options).expect("started");
    let source = Source::parse(&format!("coordinator:{peer}")).expect("a source");
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = Ends(stop);
        let (mut nodes, mut places_at) = (Vec::new(), Vec::new());
        for name in ["a", "b"] {
            let (udp, front) =
                (Udp::bind("127.0.0.1:0".parse().expect("one"), false).expect("a port"), any_port());
            let speaker = udp.speaker().expect("shared");
            let own = speaker.local_addr().expect("bound");
            let advertised = front.local_addr().expect("bound");
            places_at.push(advertised);
            scope.spawn(move || forward(&front, own, strict, stop));
            let node = NodeOptions {
                bytes: MEMORY,
                prefault: false,
                workspaces: Some(8),
                keys: keys.clone(),
                ..NodeOptions::default()
            };
            let addresses = vec![memlift_traverse::map::Address::Udp(advertised)];
            let options = ClusterOptions { node, source: source.clone(), name: name.to_owned(), addresses };
            let (mut cluster, _) = Cluster::open(options, Some(speaker)).expect("joined");
            nodes.push(cluster.node().clone());
            let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
            scope.spawn(move || shard.serve(stop).expect("serves"));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    cluster.turn(TURN).expect("follows the map");
                }
            });
        }
        let mut authority = source.connect().expect("a coordinator");
        while authority.read().expect("a map").nodes().len() < 2 {
            std::thread::sleep(TURN);
        }
        let config =
            Config { keys: keys.clone(), tenant, deadline: Duration::from_secs(20), ..Config::default() };
        let mut client = Client::udp(&places_at, config).expect("connected");
        let mut allocate = |node| client.call(Request::allocate(node, 32)).expect("memory").address;
        let places: Vec<u64> = (0..8).map(|at| allocate(at % 2)).collect();
        for (key, place) in places.iter().enumerate() {
            let next = places.get(key + 1).copied().unwrap_or(0);
            client
                .call(Request::write(*place, &words(&[key as u64, 70 + key as u64, next, place + 8])))
                .expect("written");
        }
        let (find, add) = (Arc::new(find()), Arc::new(add()));
        let walk = |client: &mut Client, program: &Arc<_>, key: u64, value: u64| {
            let walk = Walk {
                program: Arc::clone(program),
                start: places[0],
                scratch: Scratch(words(&[key, value])),
            };
            client.call(Request::walk(&walk)).unwrap_or_else(|error| panic!("key {key}: {error}"))
        };
        for key in 0..8 {
            let found = walk(&mut client, &find, key, 0);
            assert_eq!((found.status, &found.body[8..]), (Status::Done, &[70 + key as u8][..]), "key {key}");
            let added = walk(&mut client, &add, key, 3);
            assert_eq!((added.status, added.value), (Status::Applied, 70 + key), "key {key}");
        }
        let again = client.counts().again;
        for key in 0..8 {
            assert_eq!(walk(&mut client, &find, key, 0).body[8..], [73 + key as u8], "key {key}");
        }
        assert!(!strict || client.counts().again < again + 8, "a client learns that answers are lost");
        let sent_on: u64 = nodes.iter().map(|node| node.stats().read().get(Counter::Forwarded)).sum();
        assert!(sent_on > 8 && nodes.iter().all(|node| node.stats().read().get(Counter::Foreign) == 0));
        // The range of one node moves to the other one.
        let base = authority.read().expect("a map").ranges()[0].base;
        authority.order(&Order::Plan { base, bytes: MEMORY, to: "b".to_owned() }).expect("planned");
        while authority.read().expect("a map").ranges()[0].owner != Some(memlift_traverse::map::NodeId(1)) {
            std::thread::sleep(TURN);
        }
        assert_eq!(walk(&mut client, &find, 6, 0).body[8..], [79]);
        drop(ends);
    });
}

/// Ends the threads, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn nodes_whose_ports_are_mapped_are_known_by_the_clusters_number() {
    works(&Keys::none(), 0, false);
}

#[test]
fn nodes_whose_ports_are_mapped_are_known_by_their_key() {
    let text = format!("7 {}\nnodes {}\n", "ab".repeat(32), "cd".repeat(32));
    works(&Keys::parse(&text).expect("keys"), 7, false);
}

#[test]
fn walks_go_on_through_the_client_where_answers_of_other_nodes_do_not_arrive() {
    works(&Keys::none(), 0, true);
}
