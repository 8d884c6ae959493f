// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses are of one memory: a node started again without its log, or a map made anew, has another one, and says so.
#![forbid(unsafe_code)]

use crate::running::{Running, options};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use memlift_traverse::client::ClientError;
use memlift_traverse::map::coordinator::{Coordinator, Options};
use memlift_traverse::map::{Join, Map, Member, Peer, Source};
use memlift_traverse::node::{Durability, NodeOptions};
use memlift_traverse::structures::{HashMap, Heap};

fn start(at: Option<SocketAddr>, log: Option<PathBuf>) -> Running {
    let log = log.map(|log| (log, Durability::Process));
    Running::udp(at, NodeOptions { log, ..options(16 << 20) })
}

/// Ends the node; where it was.
fn end(node: Running) -> SocketAddr {
    node.at()
}

fn is_other<T: std::fmt::Debug>(done: Result<T, ClientError>) {
    match done {
        Err(error @ ClientError::OtherMemory { .. }) => {
            assert!(error.to_string().contains("started again without its log"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_lost_its_memory_does_not_serve_the_old_addresses() {
    let node = start(None, None);
    let mut old = node.client();
    let mut users = HashMap::create(&mut old, 4).expect("room");
    users.insert(&mut old, "alice", b"alice@example.org").expect("inserted");
    let (handle, memory) = (users.handle(), old.memory_of(users.handle().heads));
    assert_ne!(memory, 0);
    let at = end(node);

    let node = start(Some(at), None);
    let mut new = node.client();
    let mut secrets = HashMap::create(&mut new, 4).expect("room");
    assert_eq!(secrets.handle(), handle, "the same addresses");
    secrets.insert(&mut new, "alice", b"another application's").expect("inserted");
    is_other(users.get(&mut old, "alice"));
    is_other(users.insert(&mut old, "bob", b"bob@example.org"));
    is_other(users.remove(&mut old, "alice"));
    is_other(users.scan(&mut old));
    is_other(old.read(handle.heads, 8));
    is_other(old.write(handle.heads, &[0; 8]));
    is_other(old.compare_swap(handle.heads, 0, 1));
    is_other(old.allocate(64));
    is_other(old.free(handle.heads, 128));
    is_other(new.check_memory(handle.heads, memory));
    new.check_memory(handle.heads, 0).expect("not to be checked");
    let own = new.memory_of(handle.heads);
    new.check_memory(handle.heads, own).expect("its own");
    assert_eq!(secrets.scan(&mut new).expect("an answer").len(), 1, "as the other application left it");
}

#[test]
fn a_node_that_kept_its_log_has_the_same_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let node = start(None, Some(log.clone()));
    let mut client = node.client();
    let mut map = HashMap::create(&mut client, 4).expect("room");
    map.insert(&mut client, 1, b"one").expect("inserted");
    let memory = client.memory_of(map.handle().heads);
    let at = end(node);
    let node = start(Some(at), Some(log));
    assert_eq!(map.get(&mut client, 1).expect("the old client goes on"), Some(b"one".to_vec()));
    map.insert(&mut client, 2, b"two").expect("and writes");
    node.client().check_memory(map.handle().heads, memory).expect("a new client opens the old handle");
}

fn coordinator(file: PathBuf) -> Coordinator {
    let options = Options { file, lease: Duration::from_millis(300), secret: None };
    Coordinator::start(&Peer::Tcp("127.0.0.1:0".to_owned()), options).expect("starts")
}

fn join(name: &str, port: u16, incarnation: u64, cluster: u64) -> Join {
    Join {
        name: name.to_owned(),
        addresses: vec![
            memlift_traverse::map::Address::resolve(&format!("127.0.0.1:{port}")).expect("an address"),
        ],
        incarnation,
        bytes: 64 << 20,
        recovered: cluster != 0,
        epoch: 0,
        tenant: 0,
        cluster,
    }
}

/// The file is lost: what is made anew is another cluster, and nodes of the old one are not taken into it.
#[test]
fn a_map_that_was_made_anew_is_another_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let source =
        |one: &Coordinator| Source::parse(&format!("coordinator:{}", one.address())).expect("a source");
    let first = coordinator(folder.path().join("map"));
    let a = Member::join(source(&first), join("a", 1, 11, 0)).expect("founds the cluster");
    let b = Member::join(source(&first), join("b", 2, 12, 0)).expect("joins it");
    let cluster = a.shared().map().cluster();
    assert!(cluster != 0 && b.shared().map().cluster() == cluster);
    assert_eq!(Map::decode(&first.map().encode()).expect("a map").cluster(), cluster);
    drop((a, b, first));

    std::fs::remove_file(folder.path().join("map")).expect("lost");
    let second = coordinator(folder.path().join("map"));
    let refused = Member::join(source(&second), join("a", 1, 13, cluster)).expect_err("a new cluster");
    assert!(refused.to_string().contains("made anew"), "{refused}");
    // Others found the new one, with the same addresses.
    let c = Member::join(source(&second), join("c", 3, 14, 0)).expect("founds another one");
    assert_ne!(c.shared().map().cluster(), cluster);
    let refused = Member::join(source(&second), join("b", 2, 15, cluster)).expect_err("another cluster");
    assert!(refused.to_string().contains("belongs to cluster"), "{refused}");
    // Whoever follows the old map does not take the new one for a later epoch of it.
    let old = Map::empty().join(&join("a", 1, 11, 0)).expect("a map").0;
    let shared = memlift_traverse::map::Shared::new(old, None);
    let mut newer = Map::empty();
    for (name, port) in [("c", 3), ("d", 4), ("e", 5)] {
        newer = newer.join(&join(name, port, 20, 0)).expect("a map").0;
    }
    assert!(newer.epoch() > shared.map().epoch() && !shared.publish(newer));
}
