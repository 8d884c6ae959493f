// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replicas of pools that another process writes, or nobody; and the memory that replicating and restoring take.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_persist::kv::Kv;
use memlift_persist::replicate::{
    FollowOptions, Follower, ReplicaOptions, history, restore, restore_watched,
};
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, Pool, check};

const PATIENCE: Duration = Duration::from_secs(60);

fn options(domain: Domain, readers_bytes: u64) -> Options {
    Options { heap_bytes: 1 << 20, max_bytes: 4 << 30, domain, readers_bytes, ..Options::default() }
}

fn url(folder: &Path) -> String {
    folder.to_str().expect("UTF-8").to_owned()
}

fn follow(path: &Path, place: &str) -> Follower {
    Follower::begin(path, place, &FollowOptions::default(), |_| true)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Checks a pool, and gives the count in it.
fn count(path: &Path) -> u64 {
    let report = check::check(path).expect("checked");
    assert!(report.sound(), "{:?}", report.findings);
    let pool = Pool::open(path, &Options::default()).expect("opened");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    let count = store
        .get(b"count")
        .expect("read")
        .map_or(0, |value| u64::from_le_bytes(value[..8].try_into().expect("8")));
    // Every transaction writes both.
    let same = store
        .get(b"again")
        .expect("read")
        .map_or(0, |value| u64::from_le_bytes(value[..8].try_into().expect("8")));
    assert_eq!(count, same);
    count
}

/// Counts on in both keys, with a value of a size that changes.
fn work(store: &Kv<'_>, count: u64) {
    let key = format!("key {}", count % 97).into_bytes();
    let keys: [&[u8]; 3] = [&key, b"count", b"again"];
    let done = store.write(&keys, |turn| {
        turn.set(&key, &vec![count as u8; (count * 37 % 20_000) as usize], 0)?;
        turn.set(b"count", &u64::to_le_bytes(count), 0)?;
        turn.set(b"again", &u64::to_le_bytes(count), 0)
    });
    done.expect("room");
}

#[test]
fn a_pool_is_replicated_beside_the_process_that_writes_it() {
    let folder = tempfile::tempdir().expect("a folder");
    for domain in [Domain::Pages, Domain::Lines] {
        let at = |what: &str| folder.path().join(format!("{domain:?} {what}"));
        let place = url(&at("replica"));
        let pool = Pool::create(at("pool"), &options(domain, 64 << 20)).expect("created");
        let store = Kv::open(&pool, Durability::Buffered).expect("a store");
        work(&store, 1);
        let mut follower = follow(&at("pool"), &place);
        let (told, stop) = (AtomicU64::new(1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let next = told.load(Ordering::Acquire) + 1;
                    work(&store, next);
                    told.store(next, Ordering::Release);
                }
            });
            let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for turn in 0..5 {
                    std::thread::sleep(Duration::from_millis(20));
                    let before = told.load(Ordering::Acquire);
                    let shipped = follower.round().expect("shipped").expect("something");
                    assert_eq!(shipped.snapshot, turn == 0, "{shipped:?}");
                    let target = at(&format!("restored {turn}"));
                    restore(&place, &target, None).unwrap_or_else(|error| panic!("{error}"));
                    let found = count(&target);
                    assert!(found >= before, "{domain:?}: {before} was committed, {found} is there");
                }
            }));
            stop.store(true, Ordering::Release);
            tested.unwrap();
        });
        // Nothing changes: nothing is sent.
        follower.round().expect("shipped");
        assert_eq!(follower.round().expect("looked at"), None);
        let sent = follower.status();
        assert!(sent.lag.is_some_and(|lag| lag < PATIENCE) && sent.segments >= 5, "{sent:?}");
        work(&store, told.load(Ordering::Acquire) + 1);
        drop(store);
        pool.close().expect("closed");
        // The writer is gone: what it left is sent.
        assert!(follower.round().expect("shipped").is_some());
        restore(&place, at("last"), None).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(count(&at("last")), told.load(Ordering::Acquire) + 1);
        let there = history(&place, || true).expect("listed");
        assert_eq!((there.stretches.len(), there.writers.len()), (1, 1), "{there:?}");
        assert!(there.missing.is_empty() && there.stretches[0].snapshots.len() == 1, "{there:?}");
        assert!(there.writers[0].owner.contains("pool, process"), "{there:?}");
    }
}

#[test]
fn a_closed_pool_is_opened_only_when_it_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let change = |number: u64| {
        let pool = Pool::open_or_create(at("pool"), &options(Domain::Pages, 0)).expect("opened");
        let store = Kv::open(&pool, Durability::Sync).expect("a store");
        work(&store, number);
    };
    (1..60).for_each(change);
    let mut follower = follow(&at("pool"), &place);
    assert!(follower.round().expect("shipped").expect("something").snapshot);
    // Nobody can open it now, and nobody wants to.
    let locked = Pool::open(at("pool"), &Options { read_only: true, ..Options::default() }).expect("opened");
    assert_eq!(follower.round().expect("not opened"), None);
    drop(locked);
    change(60);
    let shipped = follower.round().expect("shipped").expect("something");
    assert!(!shipped.snapshot && shipped.pages < 60, "{shipped:?}");
    assert_eq!(follower.round().expect("not opened"), None);
    // Opened and closed, and nothing changed.
    Pool::open(at("pool"), &options(Domain::Pages, 0)).expect("opened").close().expect("closed");
    assert_eq!(follower.round().expect("looked at"), None);
    drop(follower);
    let mut other = follow(&at("pool"), &place);
    let shipped = other.round().expect("shipped").expect("the first is never empty");
    assert_eq!((shipped.snapshot, shipped.pages), (false, 0));
    restore(&place, at("restored"), None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(count(&at("restored")), 60);
    // Another pool under the same name does not get into the replica.
    std::fs::remove_file(at("pool")).expect("removed");
    change(1);
    let refused = other.round();
    assert!(
        matches!(&refused, Err(Error::Argument { what }) if what.contains("another pool")),
        "{refused:?}"
    );
}

#[test]
fn pools_that_cannot_be_followed_are_refused_with_a_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let begin =
        |path: &Path| Follower::begin(path, &url(&at("replica")), &FollowOptions::default(), |_| true);
    let pool = Pool::create(at("pool"), &options(Domain::Pages, 0)).expect("created");
    assert!(matches!(begin(&at("pool")), Err(Error::InUse { .. })));
    drop(pool);
    let shadow = Options { mechanism: Mechanism::Shadow, ..options(Domain::Pages, 0) };
    Pool::create(at("shadow"), &shadow).expect("created");
    assert!(matches!(begin(&at("shadow")), Err(Error::Argument { .. })));
    assert!(matches!(begin(&at("nothing")), Err(Error::File { .. })));
    assert!(!at("replica").exists(), "nothing was claimed");
}

#[test]
fn whoever_waits_can_end_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let pool = Pool::create(at("pool"), &options(Domain::Pages, 0)).expect("created");
    let store = Kv::open(&pool, Durability::Buffered).expect("a store");
    (1..400).for_each(|number| work(&store, number));
    drop(store);
    drop(pool);
    let goes_on = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&goes_on);
    let mut follower = Follower::begin(at("pool"), &place, &FollowOptions::default(), move |_| {
        theirs.load(Ordering::Acquire)
    })
    .expect("claimed");
    follower.round().expect("shipped");
    goes_on.store(false, Ordering::Release);
    let pool = Pool::open(at("pool"), &options(Domain::Pages, 0)).expect("opened");
    pool.close().expect("closed");
    assert!(matches!(follower.round(), Err(Error::Aborted(_))));
    let stopped = restore_watched(&place, at("restored"), None, |_| false);
    assert!(matches!(stopped, Err(Error::Aborted(_))) && !at("restored").exists(), "{stopped:?}");
    let most = Arc::new(AtomicU64::new(0));
    let heard = Arc::clone(&most);
    let done = restore_watched(&place, at("restored"), None, move |fetched| {
        assert!(fetched.done <= fetched.total);
        heard.fetch_max(fetched.total, Ordering::AcqRel);
        true
    });
    assert_eq!(done.expect("restored").bytes, most.load(Ordering::Acquire));
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 3, "no other file");
}

fn child(name: &str, folder: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env("MEMLIFT_TEST_FOLDER", folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("started")
}

fn said(lines: &mut impl Iterator<Item = std::io::Result<String>>, what: &str) -> String {
    lines.map(|line| line.expect("text")).find(|line| line.contains(what)).expect(what)
}

/// Replicates a pool until its standard input ends.
#[test]
#[ignore = "a child of `a_living_writer_is_not_sent_away_by_mistake`"]
fn replicating_child() {
    let Ok(folder) = std::env::var("MEMLIFT_TEST_FOLDER") else { return };
    let at = |what: &str| Path::new(&folder).join(what);
    let pool = Pool::create(at("pool"), &options(Domain::Pages, 64 << 20)).expect("created");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    work(&store, 1);
    let often = ReplicaOptions { interval: Duration::from_millis(3), ..ReplicaOptions::default() };
    let replication = pool.replicate(&url(&at("replica")), &often).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    println!("ready");
    std::io::stdin().lines().next();
    work(&store, 2);
    let refused = replication.wait(PATIENCE).expect_err("another one has it");
    println!("refused {refused}");
}

#[test]
fn a_living_writer_is_not_sent_away_by_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let mut child = child("replicating_child", folder.path());
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    said(&mut lines, "ready");
    let refused = Follower::begin(at("pool"), &place, &FollowOptions::default(), |_| true);
    let number = format!("process {}", child.id());
    assert!(matches!(&refused, Err(Error::Argument { what }) if what.contains(&number)), "{refused:?}");
    let taking = FollowOptions { take_over: true, ..FollowOptions::default() };
    let mut follower = Follower::begin(at("pool"), &place, &taking, |_| true).expect("taken over");
    follower.round().expect("shipped");
    writeln!(child.stdin.take().expect("piped")).expect("said");
    let refused = said(&mut lines, "refused");
    assert!(
        refused.contains("belongs to another process") && refused.contains("stop the other one"),
        "{refused}"
    );
    assert!(child.wait().expect("ended").success());
    assert!(follower.round().expect("shipped").is_some());
    restore(&place, at("restored"), None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(count(&at("restored")), 2);
}

/// Anonymous and shared memory of this process, bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("there");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
    };
    of("RssAnon:") + of("RssShmem:")
}

/// The most memory that this process has while `work` runs, above what it has before.
fn most_memory<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let (before, stop, most) = (memory(), AtomicBool::new(false), AtomicU64::new(0));
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                most.fetch_max(memory(), Ordering::AcqRel);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let done = work();
        stop.store(true, Ordering::Release);
        done
    });
    (done, most.load(Ordering::Acquire).saturating_sub(before))
}

/// Says how much memory following, replicating and restoring a pool of 300 MB take.
#[test]
#[ignore = "a child of `memory_does_not_grow_with_the_pool`"]
fn measured_child() {
    let Ok(folder) = std::env::var("MEMLIFT_TEST_FOLDER") else { return };
    let at = |what: &str| Path::new(&folder).join(what);
    let small = Options { mirror_bytes: Some(8 << 20), ..options(Domain::Pages, 0) };
    let pool = Pool::create(at("pool"), &small).expect("created");
    let store = Kv::open(&pool, Durability::Buffered).expect("a store");
    for number in 0..300u64 {
        let value: Vec<u8> = (0..1 << 17).flat_map(|at| (number << 32 | at).to_le_bytes()).collect();
        store.set(format!("large {number}").as_bytes(), &value, 0).expect("room");
    }
    drop(store);
    pool.close().expect("closed");
    let (bytes, following) = most_memory(|| {
        let mut follower = follow(&at("pool"), &url(&at("followed")));
        follower.round().expect("shipped").expect("something").bytes
    });
    assert!(bytes > 300 << 20, "{bytes}");
    let (_, replicating) = most_memory(|| {
        let pool = Pool::open(at("pool"), &small).expect("opened");
        let lazily = ReplicaOptions { interval: PATIENCE, ..ReplicaOptions::default() };
        let replication = pool.replicate(&url(&at("replica")), &lazily).expect("claimed");
        replication.finish(PATIENCE).expect("shipped");
    });
    // It changes faster than it is sent: many pages are left when the log waits for the last ones.
    let (_, changing) = most_memory(|| {
        let pool = Pool::open(at("pool"), &small).expect("opened");
        let store = Kv::open(&pool, Durability::Buffered).expect("a store");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    let value = vec![number as u8; 1 << 20];
                    store.set(format!("large {}", number % 300).as_bytes(), &value, 0).expect("room");
                }
            });
            let often = ReplicaOptions { interval: Duration::from_millis(1), ..ReplicaOptions::default() };
            let replication = pool.replicate(&url(&at("busy")), &often).expect("claimed");
            (0..3).for_each(|_| replication.wait(PATIENCE).expect("shipped"));
            stop.store(true, Ordering::Release);
        });
    });
    let (_, restoring) =
        most_memory(|| restore(&url(&at("replica")), at("restored"), None).expect("restored"));
    println!("memory {following} {replicating} {changing} {restoring}");
}

#[test]
fn memory_does_not_grow_with_the_pool() {
    const MOST: u64 = 104 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let started = Instant::now();
    let mut child = child("measured_child", folder.path());
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = said(&mut lines, "memory ");
    println!("{line} in {:?}", started.elapsed());
    let found: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(found.len() == 4 && found.iter().all(|bytes| *bytes < MOST), "{line}");
    assert!(child.wait().expect("ended").success());
}
