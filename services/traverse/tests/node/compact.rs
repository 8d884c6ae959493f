// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A log that is made short while its node works, and killed at each step of that: nothing is lost, nothing is done twice.
//!
//! - **Flow** this program starts itself again as the node (`serve_as_the_node_of_another_test`), which kills itself at a step
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::node_world::small;
use memlift_spec::formats::walk::ApplyKind;
use memlift_traverse::client::{Client, Config, Request};
use memlift_traverse::node::{Alone, Compacting, Durability, Node, NodeOptions};
use memlift_traverse::structures::HashMap;
use memlift_traverse::transport::shm::Shm;
use memlift_traverse::wire::Status;

fn options(log: &Path) -> NodeOptions {
    NodeOptions { log: Some((log.to_owned(), Durability::Process)), ..small(1 << 32) }
}

#[test]
#[ignore = "the node of another test"]
fn serve_as_the_node_of_another_test() {
    let setting = |name: &str| std::env::var(name).expect("started by another test");
    let (node, _) = Node::open(options(Path::new(&setting("MEMLIFT_TEST_LOG")))).expect("a node");
    let transport = Shm::listen(&setting("MEMLIFT_TEST_NODE")).expect("a free name");
    let die = setting("MEMLIFT_TEST_DIE");
    let may_die = may_die(Path::new(&setting("MEMLIFT_TEST_LOG")));
    let mut shard = node.shard(Box::new(transport), Box::new(Alone));
    std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&AtomicBool::new(false)).expect("until killed"));
        loop {
            std::thread::sleep(Duration::from_millis(20));
            if !may_die.exists() {
                continue;
            }
            let mut at = |step: Compacting| {
                if format!("{step:?}") == die {
                    let id = rustix::process::getpid();
                    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("gone");
                }
            };
            node.compact_watched(&mut at).expect("made short");
        }
    });
}

/// Stops the other threads also where the test fails: else they would go on for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// There once a client is connected: a node may be gone again before anybody saw it.
fn may_die(log: &Path) -> PathBuf {
    log.with_extension("connected")
}

fn start(name: &str, log: &Path, die: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "compact::serve_as_the_node_of_another_test", "--ignored", "--nocapture"])
        .env("MEMLIFT_TEST_NODE", name)
        .env("MEMLIFT_TEST_LOG", log)
        .env("MEMLIFT_TEST_DIE", die)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

#[test]
fn a_file_beside_the_log_that_is_no_log_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let beside = folder.path().join("log.new");
    std::fs::write(&beside, "precious").expect("written");
    let (node, _) = Node::open(options(&log)).expect("a node");
    let refused = node.compact().expect_err("its place is taken").to_string();
    assert!(refused.contains("log.new"), "{refused}");
    assert_eq!(std::fs::read_to_string(&beside).expect("still there"), "precious");
    // The file that a killed compaction has left is used again.
    std::fs::copy(&log, &beside).expect("copied");
    node.compact().expect("made short").expect("done");
    assert!(!beside.exists());
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    assert!(Node::open(options(&fifo)).is_err(), "refused at once");
}

#[test]
fn a_node_listens_at_no_file_that_is_not_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("precious");
    let name = path.to_str().expect("text");
    std::fs::write(&path, "data").expect("written");
    let refused = Shm::listen(name).expect_err("a file lies there").to_string();
    assert!(refused.contains("a regular file"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "data");
    std::fs::remove_file(&path).expect("removed");
    let listening = Shm::listen(name).expect("free");
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "data").expect("written");
    drop(listening);
    assert_eq!(std::fs::read_to_string(&path).expect("not its own"), "data");
}

#[test]
fn a_node_that_is_killed_while_its_log_is_made_short_has_its_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let name = format!("compact-{}", std::process::id());
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let steps = ["Begun", "Copied", "Synced", "Renamed"];
    let (deaths, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut child = start(&name, &log, steps[0]);
    while Shm::connect(&name).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::scope(|scope| {
        // Whoever kills itself is started again, to die at the next step.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if child.try_wait().expect("asked").is_some() {
                    let died = deaths.fetch_add(1, Ordering::Relaxed) + 1;
                    child = start(&name, &log, steps.get(died).copied().unwrap_or("never"));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            child.kill().expect("killed");
            child.wait().expect("gone");
        });
        let _stops = Stops(&stop);
        let mut client = Client::shm(&[&name], config).expect("connected");
        std::fs::write(may_die(&log), "").expect("written");
        let mut map = HashMap::create(&mut client, 6).expect("a map");
        let counter = client.call(Request::allocate(0, 8)).expect("memory").address;
        let (mut count, mut after) = (0, 0);
        while after < 300 {
            let answer = client.call(Request::apply(ApplyKind::FetchAdd, counter, 1, 0)).expect("added");
            assert_eq!((answer.status, answer.value), (Status::Applied, count));
            let key = count % 500;
            map.insert(&mut client, key, &count.to_le_bytes()).expect("inserted");
            if key % 3 == 0 {
                map.remove(&mut client, key).expect("removed");
            }
            count += 1;
            after += u64::from(deaths.load(Ordering::Relaxed) == steps.len());
        }
        for count in count.saturating_sub(500)..count {
            let got = map.get(&mut client, count % 500).expect("asked");
            let right = count.to_le_bytes();
            let wanted = (count % 500 % 3 != 0).then_some(&right[..]);
            assert_eq!(got.as_deref(), wanted, "key {}", count % 500);
        }
    });
}

#[test]
fn a_log_stays_within_its_bound_and_gives_the_same_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let name = format!("bound-{}", std::process::id());
    let (node, _) = Node::open(options(&log)).expect("a node");
    let stop = AtomicBool::new(false);
    let mut shard = node.shard(Box::new(Shm::listen(&name).expect("a free name")), Box::new(Alone));
    const LIMIT: u64 = 64 << 10;
    let (longest, counter, more) = std::thread::scope(|scope| {
        let (stop, shard) = (&stop, &mut shard);
        scope.spawn(move || shard.serve(stop).expect("serves"));
        let _stops = Stops(stop);
        let mut client = Client::shm(&[&name], Config::default()).expect("connected");
        let counter = client.call(Request::allocate(0, 8)).expect("memory").address;
        let mut longest = 0;
        let mut free = Vec::new();
        for count in 0..20_000_u64 {
            let answer = client.call(Request::apply(ApplyKind::FetchAdd, counter, 1, 0)).expect("added");
            assert_eq!(answer.value, count);
            if count % 50 == 0 {
                free.push(client.call(Request::allocate(0, 64)).expect("memory").address);
                if free.len() > 20 {
                    client.call(Request::free(free.swap_remove(7), 64)).expect("free");
                }
                longest = longest.max(node.log_bytes().0);
                node.compact_beyond(LIMIT).expect("made short");
            }
        }
        let more = client.call(Request::allocate(0, 64)).expect("memory").address;
        client.call(Request::free(more, 64)).expect("free");
        (longest, counter, more)
    });
    // Between two looks a few thousand bytes are written.
    assert!(longest < 2 * LIMIT, "{longest} bytes");
    drop((shard, node));
    let (node, replayed) = Node::open(options(&log)).expect("the same node");
    assert!(replayed.records < 2_000 && replayed.cut_bytes == 0, "{replayed:?}");
    assert_eq!(node.memory().fetch_add(counter, 0), 20_000);
    assert_eq!(node.writer().allocator().allocate(0, 64), Some(more), "the allocator is where it was");
}
