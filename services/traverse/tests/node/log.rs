// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node whose log is damaged does not start and loses nothing; one whose disk is full goes on reading.
//!
//! - **Flow** this program starts itself again as the node (`serve_as_the_node_of_another_test`), with a limit for its files
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::node_world::small;
use memlift_traverse::client::{Client, ClientError, Config};
use memlift_traverse::node::{
    Alone, Durability, LogEnd, LogError, Node, NodeError, NodeOptions, check_log, repair_log,
};
use memlift_traverse::structures::HashMap;
use memlift_traverse::structures::hash::Handle;
use memlift_traverse::transport::shm::Shm;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const KEYS: u64 = 400;

fn options(log: &Path, durability: Durability) -> NodeOptions {
    NodeOptions { log: Some((log.to_owned(), durability)), ..small(1 << 32) }
}

fn limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).expect("a limit for files");
}

#[test]
#[ignore = "the node of another test"]
fn serve_as_the_node_of_another_test() {
    let setting = |name: &str| std::env::var(name).expect("started by another test");
    let log = setting("MEMLIFT_TEST_LOG");
    let room = Path::new(&log).with_extension("room");
    // A file that may not grow is then an error, and no signal.
    let _stop = memlift_ground::ending::stop_on_signals().expect("signals");
    let (node, _) = Node::open(options(Path::new(&log), Durability::Process)).expect("a node");
    if !room.exists() {
        limit(Some(std::fs::metadata(&log).expect("there").len() + (100 << 10)));
    }
    let transport = Shm::listen(&setting("MEMLIFT_TEST_NODE")).expect("a free name");
    let mut shard = node.shard(Box::new(transport), Box::new(Alone));
    std::thread::spawn(move || {
        while !room.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        limit(getrlimit(Resource::Fsize).maximum);
    });
    shard.serve(&AtomicBool::new(false)).expect("until killed");
}

/// A process that ends with the test, however that ends.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a node's thread also where the test fails: else it would go on for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

fn start(name: &str, log: &Path) -> Process {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "log::serve_as_the_node_of_another_test", "--ignored", "--nocapture"])
        .env("MEMLIFT_TEST_NODE", name)
        .env("MEMLIFT_TEST_LOG", log)
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    while Shm::connect(name).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Process(child)
}

#[test]
fn a_node_whose_disk_is_full_reads_and_takes_changes_again_when_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("node.log");
    let name = format!("full-{}", std::process::id());
    let mut child = start(&name, &log);
    let config = Config { deadline: Duration::from_secs(60), ..Config::default() };
    let mut client = Client::shm(&[&name], Config { deadline: Duration::from_secs(2), ..config.clone() })
        .expect("connected");
    let mut map = HashMap::create(&mut client, 6).expect("a map");
    let mut known = 0_u64;
    // The change that finds the disk full is not answered; each one after it is refused.
    let (mut silent, mut refused) = (0, 0);
    while refused < 20 {
        match map.insert(&mut client, known, &[known as u8; 500]) {
            Ok(_) => known += 1,
            Err(ClientError::ReadOnly) => refused += 1,
            Err(ClientError::Silent { .. }) => silent += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(known < 2_000 && silent < 5, "the disk is never full");
    }
    for key in 0..known {
        assert_eq!(map.get(&mut client, key).expect("reads go on"), Some(vec![key as u8; 500]), "key {key}");
    }
    assert!(child.0.try_wait().expect("asked").is_none(), "the node runs");
    std::fs::write(log.with_extension("room"), "").expect("written");
    let end = Instant::now() + Duration::from_secs(60);
    let mut client = Client::shm(&[&name], config.clone()).expect("connected");
    let mut map = HashMap::open(map.handle());
    while let Err(error) = map.insert(&mut client, 10_000, b"room again") {
        assert!(matches!(error, ClientError::ReadOnly) && Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill();
    let mut child = start(&name, &log);
    let mut client = Client::shm(&[&name], config).expect("connected");
    for key in 0..known {
        let value = map.get(&mut client, key).expect("asked");
        assert_eq!(value, Some(vec![key as u8; 500]), "key {key} was acknowledged");
    }
    assert_eq!(map.get(&mut client, 10_000).expect("asked").as_deref(), Some(&b"room again"[..]));
    child.kill();
}

/// Makes a log of a map with [`KEYS`] entries; returns the map's handle.
fn filled(log: &Path, durability: Durability, compacted: bool) -> Handle {
    let name = format!("filled-{}-{compacted}-{durability:?}", std::process::id());
    let (node, _) = Node::open(options(log, durability)).expect("a node");
    let mut shard = node.shard(Box::new(Shm::listen(&name).expect("a free name")), Box::new(Alone));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&stop).expect("serves"));
        let _stops = Stops(&stop);
        let mut client = Client::shm(&[&name], Config::default()).expect("connected");
        let mut map = HashMap::create(&mut client, 6).expect("a map");
        for key in 0..KEYS {
            map.insert(&mut client, key, &key.to_le_bytes()).expect("inserted");
        }
        if compacted {
            node.compact().expect("made short").expect("nothing is in the way");
        }
        map.handle()
    })
}

/// Counts the entries that a node has which starts with this log.
fn entries(log: &Path, handle: Handle) -> Result<usize, NodeError> {
    let name = format!("entries-{}-{}", std::process::id(), log.display().to_string().len());
    let (node, _) = Node::open(options(log, Durability::Process))?;
    let mut shard = node.shard(Box::new(Shm::listen(&name).expect("a free name")), Box::new(Alone));
    let stop = AtomicBool::new(false);
    Ok(std::thread::scope(|scope| {
        scope.spawn(|| shard.serve(&stop).expect("serves"));
        let _stops = Stops(&stop);
        let mut client = Client::shm(&[&name], Config::default()).expect("connected");
        let mut map = HashMap::open(handle);
        let keys: Vec<u64> = (0..KEYS).collect();
        // A log that ends before the map was made has nothing of it.
        let values = map.get_many(&mut client, &keys).unwrap_or_default();
        let right = |(key, value): (u64, Option<Vec<u8>>)| value.as_deref() == Some(&key.to_le_bytes());
        (0..).zip(values).filter(|one| right(one.clone())).count()
    }))
}

#[test]
fn a_damaged_log_is_refused_kept_and_repaired() {
    let folder = tempfile::tempdir().expect("a folder");
    let (log, out) = (folder.path().join("node.log"), folder.path().join("repaired.log"));
    for (durability, compacted) in [
        (Durability::Process, false),
        (Durability::Disk, false),
        (Durability::Process, true),
        (Durability::Disk, true),
    ] {
        let handle = filled(&log, durability, compacted);
        let good = std::fs::read(&log).expect("the log");
        assert_eq!(check_log(&log).expect("read").end, LogEnd::Whole);
        for (bytes, fill, third) in
            [(1, 0xff, 1), (64, 0, 1), (512, 0x3a, 1), (4096, 0, 1), (512, 0, 2), (1, 0x55, 0)]
        {
            let mut broken = good.clone();
            // Of a log that was made short only what lies before the snapshot's end is guarded by its last record.
            let at = (good.len() * third / 3).clamp(80, good.len() - bytes - 40);
            broken[at..at + bytes].iter_mut().for_each(|byte| *byte ^= fill | 1);
            std::fs::write(&log, &broken).expect("broken");
            let refused = match entries(&log, handle) {
                Err(NodeError::Log(error @ LogError::Damaged { .. })) => error.to_string(),
                other => {
                    panic!("{durability:?} {compacted}, {bytes} bytes at {at} of {}: {other:?}", good.len())
                }
            };
            assert!(refused.contains("at byte") && refused.contains("memlift node log repair"), "{refused}");
            assert_eq!(std::fs::read(&log).expect("there"), broken, "the file is left as it is");
            assert!(matches!(check_log(&log).expect("read").end, LogEnd::Damaged { .. }));
            if !compacted {
                let before = repair_log(&log, &out, false).expect("saved");
                let has = entries(&out, handle).expect("a node starts with it");
                std::fs::remove_file(&out).expect("there");
                let all = repair_log(&log, &out, true).expect("saved");
                let more = entries(&out, handle).expect("a node starts with it");
                std::fs::remove_file(&out).expect("there");
                assert!(before.left_out > 0 && all.records > before.records, "{before:?}, {all:?}");
                assert!(more > has && has < KEYS as usize, "{has} and {more} entries");
            }
        }
        std::fs::write(&log, &good).expect("whole");
        assert_eq!(entries(&log, handle).expect("whole"), KEYS as usize);
        std::fs::remove_file(&log).expect("there");
    }
}
