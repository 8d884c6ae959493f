// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node that is started with an older copy of its log gives addresses again. It refuses clients and handles that know more than the copy.
#![forbid(unsafe_code)]

use crate::running::{Running, options};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::map::coordinator::{Coordinator, Options};
use memlift_traverse::map::{Address, Peer, Source};
use memlift_traverse::node::{Cluster, ClusterError, ClusterOptions, Durability, NodeOptions};
use memlift_traverse::structures::{HashMap, Heap, OrderedMap, hash};
use memlift_traverse::transport::udp::Udp;
use memlift_traverse::wire::Stamp;

fn start(at: Option<SocketAddr>, log: &Path) -> Running {
    Running::udp(at, NodeOptions { log: Some((log.to_owned(), Durability::Process)), ..options(16 << 20) })
}

/// Starts the node again at the same address, with its log as it is, or with this one.
fn again(node: Running, log: &Path, copy: Option<&Path>) -> Running {
    let at = node.at();
    drop(node);
    if let Some(copy) = copy {
        std::fs::copy(copy, log).expect("copied back");
    }
    start(Some(at), log)
}

fn is_older<T: std::fmt::Debug>(done: Result<T, ClientError>) {
    match done {
        Err(error @ ClientError::OlderLog { .. }) => {
            assert!(error.to_string().contains("older than what the node had acknowledged"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

fn created(client: &mut Client, value: &[u8]) -> (HashMap, hash::Handle, Stamp) {
    let mut map = HashMap::create(client, 4).expect("room");
    map.insert(client, "alice", value).expect("inserted");
    let (handle, stamp) = (map.handle(), client.stamp_of(map.handle().heads));
    assert_ne!(stamp, Stamp::default());
    (map, handle, stamp)
}

struct World {
    _folder: tempfile::TempDir,
    log: PathBuf,
    copy: PathBuf,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, copy) = (folder.path().join("node.log"), folder.path().join("copy.log"));
        World { _folder: folder, log, copy }
    }

    fn copy(&self) {
        std::fs::copy(&self.log, &self.copy).expect("copied");
    }
}

/// The restored node has the map from before the copy. It lacks the later one, whose addresses are another application's.
fn check_restored(
    node: &Running,
    old: &mut Client,
    mut before: (HashMap, hash::Handle, Stamp),
    after: (HashMap, hash::Handle, Stamp),
) {
    let mut other = node.client();
    let mut secrets = HashMap::create(&mut other, 4).expect("room");
    assert_eq!(secrets.handle(), after.1, "the address is given again");
    secrets.insert(&mut other, "alice", b"another application's").expect("inserted");

    let mut users = after.0;
    is_older(users.get(old, "alice"));
    is_older(users.insert(old, "bob", b"bob@example.org"));
    is_older(users.remove(old, "alice"));
    is_older(users.scan(old));
    is_older(old.read(after.1.heads, 8));
    is_older(old.write(after.1.heads, &[0; 8]));
    is_older(old.compare_swap(after.1.heads, 0, 1));
    is_older(old.allocate(64));
    is_older(old.free(after.1.heads, 128));
    // The client may have seen later changes of the first map, too.
    is_older(before.0.get(old, "alice"));

    let mut new = node.client();
    is_older(new.check_stamp(after.1.heads, after.2));
    new.check_stamp(before.1.heads, before.2).expect("the copy has it");
    let found = HashMap::open(before.1).get(&mut new, "alice").expect("an answer");
    assert_eq!(found.as_deref(), Some(&b"before"[..]));
    assert_eq!(secrets.scan(&mut other).expect("an answer").len(), 1, "as the other application left it");
}

#[test]
fn a_copy_of_the_running_nodes_log_is_older() {
    let world = World::new();
    let node = start(None, &world.log);
    let mut old = node.client();
    let before = created(&mut old, b"before");
    world.copy();
    let after = created(&mut old, b"after");
    let node = again(node, &world.log, Some(&world.copy));
    check_restored(&node, &mut old, before, after);
}

#[test]
fn a_copy_from_before_the_last_starts_is_older() {
    let world = World::new();
    let node = start(None, &world.log);
    let mut old = node.client();
    let mut before = created(&mut old, b"before");
    world.copy();
    let node = again(again(node, &world.log, None), &world.log, None);
    assert_eq!(before.0.get(&mut old, "alice").expect("the client goes on").as_deref(), Some(&b"before"[..]));
    let after = created(&mut old, b"after");
    let node = again(node, &world.log, Some(&world.copy));
    check_restored(&node, &mut old, before, after);
}

/// The copy itself has served since, and has made more changes than were lost.
#[test]
fn a_copy_stays_older_when_it_has_gone_on() {
    let world = World::new();
    let node = start(None, &world.log);
    let mut old = node.client();
    let before = created(&mut old, b"before");
    world.copy();
    let mut after = created(&mut old, b"after");
    let node = again(node, &world.log, Some(&world.copy));
    let mut other = node.client();
    let mut secrets = HashMap::create(&mut other, 4).expect("room");
    for key in 0..200_u64 {
        secrets.insert(&mut other, key, b"another application's").expect("inserted");
    }
    drop(other);
    node.node.compact().expect("compacted").expect("there is a log");
    let node = again(again(node, &world.log, None), &world.log, None);
    is_older(after.0.get(&mut old, "alice"));
    let mut new = node.client();
    is_older(new.check_stamp(after.1.heads, after.2));
    new.check_stamp(before.1.heads, before.2).expect("the copy has it");
}

/// A power cut with durability process takes the log's last records.
#[test]
fn a_log_that_lost_its_end_is_older() {
    let world = World::new();
    let node = start(None, &world.log);
    let mut old = node.client();
    let before = created(&mut old, b"before");
    let bytes = std::fs::metadata(&world.log).expect("a log").len();
    let mut after = created(&mut old, b"after");
    let mut reader = node.client();
    let found = after.0.get(&mut reader, "alice").expect("an answer");
    assert_eq!(found.as_deref(), Some(&b"after"[..]));
    let at = node.at();
    drop(node);
    let log = std::fs::OpenOptions::new().write(true).open(&world.log).expect("a log");
    log.set_len(bytes).expect("cut");
    let node = start(Some(at), &world.log);
    // Clients that have only read know it as well.
    is_older(after.0.get(&mut reader, "alice"));
    check_restored(&node, &mut old, before, after);
}

#[test]
fn clients_and_handles_go_on_when_nothing_is_lost() {
    let world = World::new();
    let mut node = start(None, &world.log);
    let mut old = node.client();
    let mut made = Vec::new();
    for start in 0..6_u64 {
        made.push(created(&mut old, &start.to_le_bytes()));
        for key in 0..20 {
            made[0].0.insert(&mut old, key, &start.to_le_bytes()).expect("the client goes on");
        }
        if start % 2 == 1 {
            node.node.compact().expect("compacted").expect("there is a log");
        }
        node = again(node, &world.log, None);
        let mut new = node.client();
        for (at, (map, handle, stamp)) in made.iter_mut().enumerate() {
            new.check_stamp(handle.heads, *stamp).expect("nothing is lost");
            let found = map.get(&mut new, "alice").expect("an answer");
            assert_eq!(found.as_deref(), Some(&(at as u64).to_le_bytes()[..]));
        }
    }
}

/// A start that never joined leaves a log that has no data: the next one does not claim to have what the map says.
#[test]
fn a_log_with_nothing_but_starts_is_empty() {
    let world = World::new();
    let options =
        Options { file: world.log.with_extension("map"), lease: Duration::from_secs(1), secret: None };
    let coordinator = Coordinator::start(&Peer::Tcp("127.0.0.1:0".to_owned()), options).expect("starts");
    let source = Source::parse(&format!("coordinator:{}", coordinator.address())).expect("a source");
    let away = Source::parse("coordinator:127.0.0.1:1").expect("a source");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let first = InCluster::start(&source, free, &world.log).expect("joins").cluster.shared().map();
    let base = first.ranges().iter().find(|range| range.owner.is_some()).expect("a range").base;
    std::fs::remove_file(&world.log).expect("lost");
    assert!(InCluster::start(&away, free, &world.log).is_err());
    let node = InCluster::start(&source, free, &world.log).expect("joins as a new one");
    let map = node.cluster.shared().map();
    let lost = map.ranges().iter().find(|range| range.base == base).expect("it is there");
    assert_eq!(lost.owner, None, "lost, and not given again");
}

/// A node without a log has other memory after a restart, and says that.
#[test]
fn stamps_of_another_log_say_nothing() {
    let (first, second) = (World::new(), World::new());
    let node = start(None, &first.log);
    let mut client = node.client();
    let (_, handle, stamp) = created(&mut client, b"before");
    let node = start(None, &second.log);
    let mut client = node.client();
    client.check_stamp(handle.heads, stamp).expect("the number of the memory tells them apart");
}

struct InCluster {
    cluster: Cluster,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InCluster {
    fn start(source: &Source, at: SocketAddr, log: &Path) -> Result<InCluster, ClusterError> {
        InCluster::start_with(source, at, log, false)
    }

    fn start_with(
        source: &Source,
        at: SocketAddr,
        log: &Path,
        accept_older_log: bool,
    ) -> Result<InCluster, ClusterError> {
        let udp = Udp::bind(at, false).expect("a port");
        let speaker = udp.speaker().expect("shared");
        let node = NodeOptions {
            bytes: 16 << 20,
            prefault: false,
            workspaces: Some(8),
            log: Some((log.to_owned(), Durability::Process)),
            accept_older_log,
            ..NodeOptions::default()
        };
        let addresses = vec![Address::Udp(udp.address())];
        let options = ClusterOptions { node, source: source.clone(), name: "a".to_owned(), addresses };
        let (cluster, _) = Cluster::open(options, Some(speaker))?;
        let mut shard = cluster.node().shard(Box::new(udp), Box::new(cluster.shared().view()));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || shard.serve(&stopped).expect("it serves"));
        Ok(InCluster { cluster, stop, thread: Some(thread) })
    }
}

impl Drop for InCluster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_node_of_a_cluster_does_not_start_with_a_copy_from_before_its_last_start() {
    let world = World::new();
    let map = world.log.with_extension("map");
    let options = Options { file: map, lease: Duration::from_secs(1), secret: None };
    let coordinator = Coordinator::start(&Peer::Tcp("127.0.0.1:0".to_owned()), options).expect("starts");
    let source = Source::parse(&format!("coordinator:{}", coordinator.address())).expect("a source");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let node = InCluster::start(&source, free, &world.log).expect("joins");
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let mut client = Client::udp(&[free], config.clone()).expect("the node answers");
    let mut map = OrderedMap::create(&mut client, 8).expect("room");
    map.insert(&mut client, 1, &7_u64.to_le_bytes()).expect("inserted");
    world.copy();
    drop(node);
    let node = InCluster::start(&source, free, &world.log).expect("with its log");
    assert_eq!(map.get(&mut client, 1).expect("the client goes on"), Some(7_u64.to_le_bytes().to_vec()));
    let mut late = Client::udp(&[free], config.clone()).expect("the node answers");
    let lost = OrderedMap::create(&mut late, 8).expect("room");
    let lost_stamp = late.stamp_of(lost.handle().cell);
    let newest = world.log.with_extension("newest");
    std::fs::copy(&world.log, &newest).expect("copied");
    drop(node);

    std::fs::copy(&world.copy, &world.log).expect("copied back");
    let refused = InCluster::start(&source, free, &world.log).map(|node| node.cluster.id());
    match refused {
        Err(error @ ClusterError::OlderLog { .. }) => {
            let said = error.to_string();
            assert!(
                said.contains("older than the node's last start") && said.contains("--accept-older-log"),
                "{said}"
            );
        }
        other => panic!("{other:?}"),
    }
    std::fs::copy(&newest, &world.log).expect("copied back");
    let node = InCluster::start(&source, free, &world.log).expect("with the newest log");
    late.check_stamp(lost.handle().cell, lost_stamp).expect("nothing is lost");
    drop(node);

    // Whoever says so starts it with the copy: it has what the copy has, and refuses those that know more.
    std::fs::copy(&world.copy, &world.log).expect("copied back");
    let node = InCluster::start_with(&source, free, &world.log, true).expect("accepted");
    let mut anew = Client::udp(&[free], config.clone()).expect("the node answers");
    assert_eq!(map.get(&mut anew, 1).expect("in the copy"), Some(7_u64.to_le_bytes().to_vec()));
    let refused = anew.check_stamp(lost.handle().cell, lost_stamp);
    assert!(matches!(refused, Err(ClientError::OlderLog { .. })), "{refused:?}");
    let known = late.read(lost.handle().cell, 8);
    assert!(matches!(known, Err(ClientError::OlderLog { .. })), "{known:?}");
    drop(node);
    // From now on that is its log.
    let node = InCluster::start(&source, free, &world.log).expect("with the log that was accepted");
    assert_eq!(map.get(&mut anew, 1).expect("still there"), Some(7_u64.to_le_bytes().to_vec()));
    drop(node);
    let mut late = anew;

    // Without a log, the node has other addresses; clients that know its earlier starts go on.
    std::fs::remove_file(&world.log).expect("removed");
    let _node = InCluster::start(&source, free, &world.log).expect("as a new one");
    late.allocate(64).expect("the client goes on");
}
