// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real transports, and a node that is killed: with a log it has its data when it comes back, and remembers what it had answered.
//!
//! - **Flow** this program starts itself again as the node (`serve_as_the_node_of_another_test`), and kills it
#![forbid(unsafe_code)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::node_world::{Client, add, find, small};
use memlift_traverse::client::{ClientError, Config};
use memlift_traverse::node::{Alone, Durability, Node, NodeOptions};
use memlift_traverse::structures::HashMap;
use memlift_traverse::transport::shm::Shm;
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::transport::{Peer, Transport, TransportError};
use memlift_traverse::wire::{ApplyOperands, Kind, Status};

/// Lets the other side work.
fn rest() {
    std::thread::sleep(Duration::from_micros(200));
}

#[test]
#[ignore = "the node of another test"]
fn serve_as_the_node_of_another_test() {
    let name = std::env::var("MEMLIFT_TEST_NODE").expect("started by another test");
    let log = std::env::var("MEMLIFT_TEST_LOG").expect("started by another test");
    let options = NodeOptions { log: Some((log.into(), Durability::Process)), ..small(1 << 32) };
    let (node, _) = Node::open(options).expect("a node");
    let transport = Shm::listen(&name).expect("a free name");
    node.shard(Box::new(transport), Box::new(Alone)).serve(&AtomicBool::new(false)).expect("until killed");
}

fn start(name: &str, log: &std::path::Path) -> (Child, Shm) {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "restart::serve_as_the_node_of_another_test", "--ignored", "--nocapture"])
        .env("MEMLIFT_TEST_NODE", name)
        .env("MEMLIFT_TEST_LOG", log)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    loop {
        match Shm::connect(name) {
            Ok(shm) => return (child, shm),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn a_killed_node_has_its_data_when_it_starts_again_and_applies_nothing_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let name = format!("restart-{}", std::process::id());
    let (mut child, shm) = start(&name, &log);
    let mut client = Client::new(Box::new(shm), Peer::Ring(0), 3);
    client.upload(&find(), rest);
    client.upload(&add(), rest);
    let at = client.allocate(64, rest).header.address;
    client.write(at, &[5, 100, 0, at + 8], rest);
    let mut last = None;
    for expected in 100..110 {
        let header = client.walk_header(&add(), at);
        let words = [5u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
        let heard = client.ask(header, &words, rest);
        assert_eq!((heard.header.status, heard.header.value), (Status::Applied, expected));
        last = Some((header, words));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    let (mut child, shm) = start(&name, &log);
    let sequence = client.sequence;
    let mut client = Client::new(Box::new(shm), Peer::Ring(0), 3);
    client.sequence = sequence;
    let (header, words) = last.expect("ten");
    let heard = client.ask(header, &words, rest);
    assert_eq!(
        (heard.header.status, heard.header.value),
        (Status::Applied, 109),
        "what was answered is remembered"
    );
    let found = client.walk(&find(), at, &[5, 0], rest);
    assert_eq!((found.header.status, found.word(8)), (Status::Done, 110), "programs and data are back");
    assert_ne!(client.allocate(64, rest).header.address, at, "what was given is not given again");
    child.kill().expect("killed");
    child.wait().expect("gone");
}

#[test]
fn a_client_goes_on_with_a_node_that_was_started_again_in_the_middle() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("goes-on-{}", std::process::id());
    let log = folder.path().join("node.log");
    let (mut child, shm) = start(&name, &log);
    drop(shm);
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let mut client = memlift_traverse::client::Client::shm(&[&name], config).expect("connected");
    let mut map = HashMap::create(&mut client, 6).expect("a map");
    for round in 0..4_u64 {
        for key in 0..20 {
            map.insert(&mut client, round * 100 + key, &key.to_le_bytes()).expect("inserted");
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let (again, shm) = start(&name, &log);
        (child, _) = (again, shm);
        let all = (0..=round).flat_map(|round| (0..20).map(move |key| (round * 100 + key, key)));
        for (key, value) in all {
            let got = map.get(&mut client, key).expect("asked");
            assert_eq!(got.as_deref(), Some(&value.to_le_bytes()[..]), "key {key} after {round} restarts");
        }
    }
    // Another one without the data and the programs of the one before: to the client that knew the old one it is another memory.
    child.kill().expect("killed");
    child.wait().expect("gone");
    let (mut child, _) = start(&name, &folder.path().join("another.log"));
    let refused = HashMap::create(&mut client, 6).expect_err("addresses are of the old memory");
    assert!(matches!(refused, ClientError::OtherMemory { .. }), "{refused}");
    assert!(matches!(map.get(&mut client, 7_u64), Err(ClientError::OtherMemory { .. })));
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let mut client = memlift_traverse::client::Client::shm(&[&name], config).expect("connected");
    let mut map = HashMap::create(&mut client, 6).expect("another map");
    map.insert(&mut client, 7_u64, b"seven").expect("inserted");
    assert_eq!(map.get(&mut client, 7_u64).expect("asked").as_deref(), Some(&b"seven"[..]));
    assert!(client.counts().uploads > 0, "it is told the programs");
    child.kill().expect("killed");
    child.wait().expect("gone");
}

#[test]
fn shards_serve_rings_and_sockets_side_by_side() {
    let (node, _) = Node::open(small(1 << 32)).expect("a node");
    let name = format!("shards-{}", std::process::id());
    let stop = Arc::new(AtomicBool::new(false));
    let first = Shm::listen(&name).expect("a free name");
    assert!(matches!(Shm::listen(&name), Err(TransportError::System { .. })), "a name is taken once");
    let second = first.another().expect("another shard");
    let sockets = Udp::bind_shared("127.0.0.1:0".parse().unwrap(), false, 2).expect("two sockets");
    let at = sockets[0].address();
    let mut threads = Vec::new();
    let transports: Vec<Box<dyn Transport>> = [Box::new(first) as Box<dyn Transport>, Box::new(second)]
        .into_iter()
        .chain(sockets.into_iter().map(|socket| Box::new(socket) as Box<dyn Transport>))
        .collect();
    for transport in transports {
        let (mut shard, stop) = (node.shard(transport, Box::new(Alone)), stop.clone());
        threads.push(std::thread::spawn(move || shard.serve(&stop).expect("serves")));
    }
    let mut clients: Vec<Client> = (0..3)
        .map(|number| {
            Client::new(Box::new(Shm::connect(&name).expect("connects")), Peer::Ring(0), 10 + number)
        })
        .collect();
    for number in 0..3 {
        let socket = Udp::bind("127.0.0.1:0".parse().unwrap(), false).expect("a socket");
        clients.push(Client::new(Box::new(socket), Peer::Socket(at), 20 + number));
    }
    clients[0].upload(&add(), rest);
    let place = clients[0].allocate(64, rest).header.address;
    clients[0].write(place, &[5, 0, 0, place + 8], rest);
    let workers: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            std::thread::spawn(move || {
                for round in 0..50 {
                    if round % 2 == 0 {
                        assert_eq!(client.walk(&add(), place, &[5, 1], rest).header.status, Status::Applied);
                    } else {
                        let operands = ApplyOperands { kind: 2, address: place + 8, a: 1, b: 0 };
                        let header = client.request(Kind::Apply);
                        assert_eq!(
                            client.ask(header, &operands.bytes(), rest).header.status,
                            Status::Applied
                        );
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("right answers"));
    let mut client = Client::new(Box::new(Shm::connect(&name).expect("connects")), Peer::Ring(0), 30);
    assert_eq!(client.read(place + 8, rest), 300);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
}

#[test]
fn addresses_that_others_reach_need_keys_and_names_are_names() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(Udp::bind(everywhere, false), Err(TransportError::NotLoopback(_))));
    assert!(Udp::bind(everywhere, true).is_ok());
    assert!(matches!(Shm::listen("a b"), Err(TransportError::Name(_))));
    assert!(matches!(Shm::connect("nobody-listens-here"), Err(TransportError::System { .. })));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.sock");
    let path = path.to_str().expect("UTF-8");
    drop(Shm::listen(path).expect("a free path"));
    assert!(!std::path::Path::new(path).exists());
    let _again = Shm::listen(path).expect("free again");
    assert!(Shm::listen(path).is_err(), "somebody listens");
}
