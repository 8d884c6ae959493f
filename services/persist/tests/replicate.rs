// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replicas in a folder: what was shipped comes back, whoever writes, is killed, or damages objects meanwhile.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use memlift_persist::kv::Kv;
use memlift_persist::replicate::{self, ReplicaOptions, Restored, parse_utc, restore};
use memlift_persist::{
    BackupOptions, Domain, Durability, Error, Mechanism, Options, Pool, TxOptions, View, check,
};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn options(mechanism: Mechanism, domain: Domain, sections: u32) -> Options {
    let (heap_bytes, max_bytes) = (1 << 20, 1 << 30);
    Options { mechanism, domain, sections, heap_bytes, max_bytes, ..Options::default() }
}

/// Ships as soon as somebody waits.
fn lazily() -> ReplicaOptions {
    ReplicaOptions { interval: HOUR, ..ReplicaOptions::default() }
}

fn often() -> ReplicaOptions {
    ReplicaOptions { interval: Duration::from_millis(3), ..ReplicaOptions::default() }
}

fn url(folder: &Path) -> String {
    folder.to_str().expect("UTF-8").to_owned()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Checks a restored pool and gives its entries.
fn entries(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let report = check::check(path).expect("checked");
    assert!(report.sound(), "{:?}", report.findings);
    let pool = Pool::open(path, &Options::default()).expect("opened");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    let keys = keys(&store);
    keys.into_iter().map(|key| (key.clone(), store.get(&key).expect("read").expect("there"))).collect()
}

fn keys(store: &Kv<'_>) -> Vec<Vec<u8>> {
    let names = (0..4_000u64).map(|one| format!("key {one}").into_bytes());
    let known = [b"count".to_vec(), b"new".to_vec()];
    known.into_iter().chain(names).filter(|key| store.get(key).expect("read").is_some()).collect()
}

fn restored(url: &str, target: &Path, at: Option<SystemTime>) -> Restored {
    restore(url, target, at).unwrap_or_else(|error| panic!("{error}"))
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder.join("log"))
        .expect("listed")
        .map(|one| one.expect("there").path())
        .collect();
    found.sort();
    found
}

/// Seeded random numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// Puts and removes values of all sizes until told to stop, and counts.
fn work(store: &Kv<'_>, dice: &mut Dice, told: &AtomicU64, stop: &AtomicBool, most: u64) {
    for count in told.load(Ordering::Acquire) + 1..=most {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let key = format!("key {}", dice.below(300)).into_bytes();
        let bytes = [dice.below(100), dice.below(3_000), dice.below(60_000)][dice.below(3) as usize];
        let keys: [&[u8]; 2] = [&key, b"count"];
        let put = dice.below(4) > 0;
        let done = store.write(&keys, |turn| {
            if put {
                turn.set(&key, &vec![count as u8; bytes as usize], 0)?;
            } else {
                turn.remove(&key)?;
            }
            turn.set(b"count", &u64::to_le_bytes(count), 0)
        });
        done.expect("room");
        told.store(count, Ordering::Release);
    }
}

#[test]
fn what_was_shipped_is_restored_whoever_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, domain, sections) in [
        (Mechanism::Redo, Domain::Pages, 4),
        (Mechanism::Redo, Domain::Lines, 1),
        (Mechanism::Checkpoint, Domain::Pages, 1),
        (Mechanism::Checkpoint, Domain::Lines, 1),
    ] {
        let name = format!("{} {domain:?}", mechanism.name());
        let at = |what: &str| folder.path().join(format!("{name} {what}"));
        let place = url(&at("replica"));
        let pool = Pool::create(at("pool"), &options(mechanism, domain, sections)).expect("created");
        let store = Kv::open(&pool, Durability::Group).expect("a store");
        let replication = pool.replicate(&place, &often()).expect("claimed");
        let (told, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (told, stop) = (&told, &stop);
            let store = &store;
            scope.spawn(move || work(store, &mut Dice(7), told, stop, u64::MAX));
            let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for turn in 0..6 {
                    std::thread::sleep(Duration::from_millis(30));
                    let before = told.load(Ordering::Acquire);
                    replication.wait(PATIENCE).expect("shipped");
                    let target = at(&format!("restored {turn}"));
                    restored(&place, &target, None);
                    let count = entries(&target).get(&b"count"[..]).map_or(0, |value| number(value));
                    assert!(count >= before, "{name}: {before} was told, {count} is there");
                    if turn == 3 {
                        pool.compact(|_, _| {}).expect("compacted");
                    }
                }
            }));
            stop.store(true, Ordering::Release);
            tested.unwrap();
        });
        drop(store);
        replication.finish(PATIENCE).expect("shipped");
        pool.backup(at("backup"), BackupOptions::default(), |_, _| true).expect("copied");
        pool.close().expect("closed");
        restored(&place, &at("last"), None);
        let (ours, theirs) =
            (std::fs::read(at("last")).expect("read"), std::fs::read(at("backup")).expect("read"));
        assert_eq!(ours.len(), theirs.len());
        // A backup by pages has those in use only: the others may hold anything.
        let differ = |(a, b): (&[u8], &[u8])| a != b && b.iter().any(|byte| *byte != 0);
        if domain == Domain::Pages {
            let pages = ours.chunks(4096).zip(theirs.chunks(4096));
            let odd: Vec<usize> =
                pages.enumerate().filter(|(_, pair)| differ(*pair)).map(|(page, _)| page).collect();
            assert_eq!(odd, [] as [usize; 0], "{name}");
        }
        assert_eq!(entries(&at("last")), entries(&at("backup")), "{name}");
    }
}

#[test]
fn large_objects_growth_and_types_come_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let wide = Options { lane_bytes: 4 << 20, ..options(Mechanism::Redo, Domain::Pages, 2) };
    let pool = Pool::create(at("pool"), &wide).expect("created");
    let replication = pool.replicate(&place, &lazily()).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    let words: Vec<u64> = (0..9 << 20).collect();
    let root = pool.tx(|t| t.alloc_slice(&words)).expect("72 MiB, more than a zone");
    let far = pool.tx(|t| {
        let many: Vec<_> = (0..3_000u64).map(|one| t.alloc_slice(&[one; 500])).collect::<Result<_, _>>()?;
        Ok::<_, Error>(many)
    });
    let far = far.expect("12 MB, more than a lane");
    replication.wait(PATIENCE).expect("shipped");
    pool.tx(|t| t.free_slice(root)).expect("freed");
    let again = pool.tx(|t| t.alloc_slice(&words[1..])).expect("again");
    pool.apply().expect("applied");
    replication.finish(PATIENCE).expect("shipped");
    pool.close().expect("closed");
    restored(&place, &at("restored"), None);
    let report = |path: &Path| format!("{:?}", check::check(path).expect("checked").findings);
    assert_eq!(report(&at("restored")), report(&at("pool")));
    let copy = Pool::open(at("restored"), &wide).expect("opened");
    copy.read(|r| {
        assert!(r.slice(again)? == &words[1..]);
        for (one, slice) in (0..).zip(&far) {
            assert!(r.slice(*slice)? == [one; 500]);
        }
        Ok::<_, Error>(())
    })
    .expect("read");
}

#[test]
fn only_what_changed_is_sent_also_by_the_next_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let pool = Pool::create(at("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Buffered).expect("a store");
    for key in 0..2_000 {
        store.set(format!("key {key}").as_bytes(), &[1; 5_000], 0).expect("room");
    }
    drop(store);
    pool.close().expect("closed");
    let pool = Pool::open(at("pool"), &Options { read_only: true, ..Options::default() }).expect("opened");
    let first = pool.replicate_once(&place, &lazily()).expect("shipped");
    assert!(first.snapshot && first.pages > 2_000, "{first:?}");
    let second = pool.replicate_once(&place, &lazily()).expect("shipped");
    assert!(!second.snapshot && second.pages == 0, "{second:?}");
    drop(pool);
    let pool = Pool::open(at("pool"), &Options::default()).expect("opened");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    store.set(b"key 7", &[2; 5_000], 0).expect("room");
    let replication = pool.replicate(&place, &lazily()).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    let after = |number: usize| std::fs::metadata(&segments(&at("replica"))[number]).expect("there").len();
    // Two claims and two segments before; a claim, a segment.
    assert_eq!(segments(&at("replica")).len(), 6);
    assert!(after(5) < 40 * 4096, "{} bytes for a value of 5,000", after(5));
    store.set(b"key 8", &[3; 5_000], 0).expect("room");
    replication.wait(PATIENCE).expect("shipped");
    assert!(after(6) < 40 * 4096, "{} bytes for a value of 5,000", after(6));
    drop(store);
    replication.finish(PATIENCE).expect("nothing is left");
    assert_eq!(segments(&at("replica")).len(), 7);
    pool.close().expect("closed");
    restored(&place, &at("restored"), None);
    assert_eq!(entries(&at("restored")), entries(&at("pool")));
    // A restored pool goes on where the replica is, and may have it.
    let pool = Pool::open(at("restored"), &Options::default()).expect("opened");
    let once = pool.replicate_once(&place, &lazily()).expect("shipped");
    assert!(!once.snapshot && once.pages < 40, "{once:?}");
}

#[test]
fn a_restore_has_the_state_of_the_time_that_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let pool = Pool::create(at("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Replicated).expect("a store");
    let early = SystemTime::now();
    std::thread::sleep(Duration::from_millis(2));
    let replication = pool.replicate(&place, &lazily()).expect("claimed");
    let mut told = Vec::new();
    for count in 1..=20u64 {
        store.set(b"count", &count.to_le_bytes(), 0).expect("replicated");
        told.push((SystemTime::now(), count));
        std::thread::sleep(Duration::from_millis(2));
    }
    for (time, count) in &told {
        let target = at(&format!("restored {count}"));
        let done = restored(&place, &target, Some(*time));
        assert!(done.time <= *time, "{done:?}");
        assert_eq!(entries(&target), [(b"count".to_vec(), count.to_le_bytes().to_vec())].into());
        // The time that is told is one that can be asked for.
        let again = at(&format!("again {count}"));
        assert_eq!(restored(&place, &again, Some(done.time)).sequence, done.sequence);
    }
    let refused = restore(&place, at("early"), Some(early));
    assert!(matches!(refused, Err(Error::Replica { .. })), "{refused:?}");
    assert!(!at("early").exists());
    drop(replication);
    let refused = store.set(b"count", &[0; 8], 0);
    assert!(matches!(refused, Err(Error::NotReplicated { .. })), "{refused:?}");
}

#[test]
fn of_two_writers_the_later_one_has_the_replica() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let pool = Pool::create(at("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Replicated).expect("a store");
    let replication = pool.replicate(&place, &lazily()).expect("claimed");
    store.set(b"count", b"first", 0).expect("replicated");
    restored(&place, &at("twin"), None);
    let twin = Pool::open(at("twin"), &Options::default()).expect("opened");
    let other = twin.replicate(&place, &lazily()).expect("claimed");
    Kv::open(&twin, Durability::Replicated).expect("a store").set(b"count", b"twin", 0).expect("replicated");
    let refused = store.set(b"count", b"second", 0).expect_err("the replica is the twin's");
    let text = refused.to_string();
    assert!(
        matches!(refused, Error::NotReplicated { .. }) && text.contains(at("twin").to_str().unwrap()),
        "{text}"
    );
    assert!(replication.ended().is_some_and(|why| why.contains("belongs to another process")));
    // The first one has its later commits in its file only.
    assert_eq!(store.get(b"count").expect("read").as_deref(), Some(&b"second"[..]));
    restored(&place, &at("restored"), None);
    assert_eq!(entries(&at("restored"))[&b"count"[..]], b"twin");
    // Back again.
    drop((replication, store));
    pool.close().expect("closed");
    let pool = Pool::open(at("pool"), &Options::default()).expect("opened");
    let replication = pool.replicate(&place, &lazily()).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    assert!(matches!(other.wait(PATIENCE), Ok(())), "it had nothing to ship");
    twin.tx_with(TxOptions { durability: Durability::Sync, sections: None }, |t| t.alloc_slice(&[1u64]))
        .expect("room");
    assert!(matches!(other.wait(PATIENCE), Err(Error::NotReplicated { .. })));
    restored(&place, &at("last"), None);
    assert_eq!(entries(&at("last"))[&b"count"[..]], b"second");
}

#[test]
fn a_replica_of_another_pool_and_pools_without_replicas_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let pool = Pool::create(at("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let first = pool.replicate(&place, &lazily()).expect("claimed");
    let again = pool.replicate(&place, &lazily());
    assert!(matches!(again, Err(Error::Argument { .. })), "{again:?}");
    let other = Pool::create(at("other"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let refused = other.replicate(&place, &lazily());
    assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
    for mechanism in [Mechanism::Undo, Mechanism::Shadow] {
        let path = at(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism, Domain::Pages, 1)).expect("created");
        let refused = pool.replicate(&url(&at("third")), &lazily());
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
    }
    assert!(!at("third").exists());
    first.wait(PATIENCE).expect("shipped");
    std::fs::write(at("theirs"), "not ours").expect("written");
    assert!(matches!(restore(&place, at("theirs"), None), Err(Error::Exists { .. })));
    assert_eq!(std::fs::read(at("theirs")).expect("there"), b"not ours");
    assert!(restore(&url(&at("nothing")), at("new"), None).is_err() && !at("new").exists());
    std::fs::create_dir(at("empty")).expect("made");
    let refused = restore(&url(&at("empty")), at("new"), None);
    assert!(matches!(refused, Err(Error::NoReplica { .. })) && !at("new").exists(), "{refused:?}");
    // A transaction that asks for a replica where there is none is told so.
    let refused = other.tx_with(TxOptions { durability: Durability::Replicated, sections: None }, |t| {
        t.alloc_slice(&[1u64])
    });
    assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
}

/// A claim, a snapshot with count 0 and nine segments, one for each count, and the moment of each.
fn history(folder: &Path) -> Vec<SystemTime> {
    let pool =
        Pool::create(folder.join("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    store.set(b"count", &[0; 8], 0).expect("room");
    let replication = pool.replicate(&url(&folder.join("replica")), &lazily()).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    let mut told = vec![SystemTime::now()];
    for count in 1..10u64 {
        std::thread::sleep(Duration::from_millis(2));
        store.set(b"count", &count.to_le_bytes(), 0).expect("room");
        replication.wait(PATIENCE).expect("shipped");
        told.push(SystemTime::now());
    }
    told
}

/// Damages a segment's file, given what all of them had and the number of this one.
type Damage = fn(&Path, &[Vec<u8>], usize);

#[test]
fn damage_and_gaps_are_errors_that_name_the_last_good_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let (told, place) = (history(folder.path()), url(&at("replica")));
    let files = segments(&at("replica"));
    assert_eq!(files.len(), 11);
    let pristine: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("read")).collect();
    let damages: [(&str, Damage); 4] = [
        ("gone", |file, _, _| std::fs::remove_file(file).expect("removed")),
        ("a flipped bit of a page", |file, was, at| {
            let mut bytes = was[at].clone();
            *bytes.last_mut().expect("pages") ^= 4;
            std::fs::write(file, bytes).expect("written");
        }),
        ("cut off", |file, was, at| std::fs::write(file, &was[at][..was[at].len() - 100]).expect("written")),
        ("an older segment", |file, was, at| std::fs::write(file, &was[at - 1]).expect("written")),
    ];
    for (what, damage) in damages {
        for bad in [5, 9] {
            // Files: claim, snapshot with count 0, then counts 1 to 9.
            damage(&files[bad], &pristine, bad);
            let error = restore(&place, at("new"), None).expect_err(what).to_string();
            assert!(!at("new").exists());
            let time = error.split("up to ").nth(1).unwrap_or_else(|| panic!("{error}"));
            let target = at(&format!("{what} {bad}"));
            restored(&place, &target, Some(parse_utc(time).expect("a time")));
            assert_eq!(number(&entries(&target)[&b"count"[..]]), bad as u64 - 2, "{what}: {error}");
            // A moment that the damaged segment may be of is an error; an earlier one is not.
            let of_it = restore(&place, at("new"), Some(told[bad - 1]));
            assert!(of_it.is_err() && !at("new").exists(), "{what}: {of_it:?}");
            let target = at(&format!("{what} {bad} before"));
            restored(&place, &target, Some(told[bad - 3]));
            assert_eq!(number(&entries(&target)[&b"count"[..]]), bad as u64 - 3);
            std::fs::write(&files[bad], &pristine[bad]).expect("mended");
        }
    }
    restored(&place, &at("whole"), None);
    assert_eq!(number(&entries(&at("whole"))[&b"count"[..]]), 9);
}

#[test]
fn hostile_objects_give_errors_and_no_other_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    history(folder.path());
    let place = url(&at("replica"));
    let files = segments(&at("replica"));
    let mut dice = Dice(99);
    for turn in 0..300 {
        let file = &files[dice.below(files.len() as u64) as usize];
        let was = std::fs::read(file).expect("read");
        let mut bytes = was.clone();
        match dice.below(4) {
            0 => bytes.truncate(dice.below(was.len() as u64) as usize),
            1 => bytes.extend(vec![dice.below(256) as u8; 1 + dice.below(5_000) as usize]),
            2 => {
                let at = dice.below(was.len().min(400) as u64) as usize;
                bytes[at] = dice.below(256) as u8;
            }
            _ => {
                let at = dice.below(was.len() as u64) as usize;
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        std::fs::write(file, &bytes).expect("written");
        let target = at(&format!("restored {turn}"));
        match restore(&place, &target, None) {
            Ok(_) => assert_eq!(number(&entries(&target)[&b"count"[..]]), 9, "{}", file.display()),
            Err(Error::Replica { .. }) => assert!(!target.exists()),
            Err(other) => panic!("{other}"),
        }
        std::fs::write(file, &was).expect("mended");
    }
}

#[test]
fn a_gap_before_the_last_snapshot_costs_only_what_lies_before_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let told = history(folder.path());
    let place = url(&at("replica"));
    // A process that finds a gap begins anew, with a snapshot.
    std::fs::remove_file(&segments(&at("replica"))[5]).expect("removed");
    let pool = Pool::open(at("pool"), &Options::default()).expect("opened");
    let once = pool.replicate_once(&place, &lazily()).expect("shipped");
    assert!(once.snapshot, "{once:?}");
    drop(pool);
    restored(&place, &at("last"), None);
    assert_eq!(number(&entries(&at("last"))[&b"count"[..]]), 9);
    restored(&place, &at("before"), Some(told[2]));
    assert_eq!(number(&entries(&at("before"))[&b"count"[..]]), 2);
    assert!(restore(&place, at("within"), Some(told[7])).is_err());
}

#[test]
fn what_is_too_old_is_removed_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |what: &str| folder.path().join(what);
    let place = url(&at("replica"));
    let retain = Duration::from_millis(300);
    let pool = Pool::create(at("pool"), &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    for key in 0..3_000 {
        store.set(format!("key {key}").as_bytes(), &[1; 5_000], 0).expect("room");
    }
    let replication = pool.replicate(&place, &ReplicaOptions { retain, ..lazily() }).expect("claimed");
    replication.wait(PATIENCE).expect("shipped");
    let parts = || std::fs::read_dir(at("replica/parts")).expect("listed").count();
    assert!(parts() > 0, "the snapshot is too large for one object");
    std::fs::write(at("replica/log/theirs"), "theirs").expect("written");
    std::fs::write(at("replica/theirs"), "theirs").expect("written");
    let begin = Instant::now();
    let mut told = Vec::new();
    let mut most = 0;
    while begin.elapsed() < retain * 8 {
        let count = told.len() as u64;
        store.set(b"count", &count.to_le_bytes(), 0).expect("room");
        replication.wait(PATIENCE).expect("shipped");
        told.push((SystemTime::now(), count));
        most = most.max(segments(&at("replica")).len());
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = segments(&at("replica")).len();
    assert!(left < told.len(), "{left} of {} segments are left, {most} were there at most", told.len());
    // The first claim stays, and what is not ours.
    assert!(at("replica/log/00000000000000000001").exists());
    assert!(at("replica/log/theirs").exists() && at("replica/theirs").exists());
    let horizon = SystemTime::now() - retain;
    for (time, count) in told.iter().filter(|(time, _)| *time >= horizon).step_by(3) {
        let target = at(&format!("restored {count}"));
        restored(&place, &target, Some(*time));
        assert_eq!(number(&entries(&target)[&b"count"[..]]), *count);
    }
    assert!(restore(&place, at("old"), Some(told[0].0)).is_err());
}

/// Commits until it is killed; each number that is printed is in the replica.
#[test]
#[ignore = "a child of `kills`"]
fn child() {
    let (Ok(path), Ok(place)) = (std::env::var("MEMLIFT_TEST_POOL"), std::env::var("MEMLIFT_TEST_REPLICA"))
    else {
        return;
    };
    let pool = Pool::open_or_create(path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("opened");
    let store = Kv::open(&pool, Durability::Group).expect("a store");
    let _replication = pool.replicate(&place, &often()).expect("claimed");
    let replicated = Kv::open(&pool, Durability::Replicated).expect("a store");
    let count = store.get(b"count").expect("read").map_or(0, |value| number(&value));
    let told = AtomicU64::new(count);
    let (mut dice, stop) = (Dice(count + 5), AtomicBool::new(false));
    loop {
        let most = told.load(Ordering::Acquire) + 1 + dice.below(4);
        work(&store, &mut dice, &told, &stop, most - 1);
        work(&replicated, &mut dice, &told, &stop, most);
        println!("{most}");
    }
}

#[test]
fn nothing_replicated_is_lost_when_the_writer_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    kills(folder.path(), &url(&folder.path().join("replica")), &[]);
}

/// An S3 server, which ends with this.
struct Moto(std::process::Child);

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_replicated_is_lost_when_the_store_is_an_s3_server() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/setup");
    let made = Command::new(setup).arg("moto").output().expect("started");
    if !made.status.success() {
        return println!("not run: no moto: {}", String::from_utf8_lossy(&made.stderr));
    }
    let python = String::from_utf8(made.stdout).expect("a path");
    let script = r#"
import time, urllib.request
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/words", method="PUT")).close()
print(f"http://{host}:{port}", flush=True)
time.sleep(3600)
"#;
    let child =
        Command::new(python.trim()).args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut moto = Moto(child.expect("started"));
    let mut lines = BufReader::new(moto.0.stdout.take().expect("piped")).lines();
    let address = lines.next().expect("an address").expect("text");
    let environment = [
        ("AWS_ENDPOINT", address.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "us-east-1"),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    kills(folder.path(), "s3://words/served", &environment);
}

/// The same in a store that the environment names, an emulator for instance: MEMLIFT_TEST_STORE=az://words/served with Azurite's settings.
#[test]
#[ignore = "soak"]
fn soak_nothing_replicated_is_lost_in_the_store_that_the_environment_names() {
    let Ok(place) = std::env::var("MEMLIFT_TEST_STORE") else {
        return println!("not run: MEMLIFT_TEST_STORE names no store");
    };
    kills(tempfile::tempdir().expect("a folder").path(), &place, &[]);
}

/// Name and value of a variable of the environment.
type Setting<'a> = (&'a str, &'a str);

/// Asks a store in a process of its own.
#[test]
#[ignore = "a child of `stores_are_asked_by_plain_http_where_the_environment_allows_it`"]
fn asking_child() {
    let Ok(place) = std::env::var("MEMLIFT_TEST_REPLICA") else { return };
    assert!(replicate::history(&place, || true).is_err(), "the store refuses everything");
}

#[test]
fn stores_are_asked_by_plain_http_where_the_environment_allows_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    listener.set_nonblocking(true).expect("set");
    let account = format!(
        r#"{{"gcs_base_url":"{address}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#
    );
    let stores: [(&str, &str, &[Setting<'_>]); 3] = [
        (
            "s3://words/kv",
            "AWS_ALLOW_HTTP",
            &[("AWS_ENDPOINT", &address), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")],
        ),
        (
            "az://words/kv",
            "AZURE_ALLOW_HTTP",
            &[
                ("AZURE_STORAGE_ENDPOINT", &address),
                ("AZURE_STORAGE_ACCOUNT_NAME", "a"),
                ("AZURE_STORAGE_ACCOUNT_KEY", "YQ=="),
            ],
        ),
        ("gs://words/kv", "GOOGLE_ALLOW_HTTP", &[("GOOGLE_SERVICE_ACCOUNT_KEY", &account)]),
    ];
    for (place, allows, environment) in stores {
        for allowed in ["true", "false"] {
            let mut child = child_of("asking_child", Path::new(""), place, environment);
            let mut child = child.env(allows, allowed).stdout(Stdio::null()).spawn().expect("started");
            let mut asked = 0;
            let status = loop {
                // Whoever connects is refused, and does not try again.
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).expect("set");
                    let mut request = [0; 4096];
                    let read = stream.read(&mut request).expect("a request");
                    asked += u32::from(request[..read].starts_with(b"GET /"));
                    let reply = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    stream.write_all(reply).expect("sent");
                }
                if let Some(status) = child.try_wait().expect("a child") {
                    break status;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{place}");
            assert_eq!(asked > 0, allowed == "true", "{place}: {allowed}");
        }
    }
}

/// Restores in a process of its own: the store's settings are in its environment.
#[test]
#[ignore = "a child of `kills`"]
fn restoring_child() {
    let (Ok(path), Ok(place)) = (std::env::var("MEMLIFT_TEST_POOL"), std::env::var("MEMLIFT_TEST_REPLICA"))
    else {
        return;
    };
    restored(&place, Path::new(&path), None);
}

fn child_of(name: &str, path: &Path, place: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env("MEMLIFT_TEST_POOL", path).env("MEMLIFT_TEST_REPLICA", place);
    command.envs(environment.iter().copied());
    command
}

/// Kills a writer at random moments, restores, and compares with what it had told.
fn kills(folder: &Path, place: &str, environment: &[(&str, &str)]) {
    let at = |what: &str| folder.join(what);
    let mut dice = Dice(
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64 | 1,
    );
    let mut last = 0;
    for turn in 0..6 {
        // The disk is lost, too, every other time: the pool is what was restored.
        let path = at(&format!("pool {}", turn / 2));
        let mut child =
            child_of("child", &path, place, environment).stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut told = last;
        let wanted = 1 + dice.below(20);
        let mut seen = 0;
        while seen < wanted
            && let Some(line) = lines.next()
        {
            if let Ok(count) = line.expect("text").trim().parse() {
                (told, seen) = (count, seen + 1);
            }
        }
        std::thread::sleep(Duration::from_micros(dice.below(20_000)));
        child.kill().expect("killed");
        child.wait().expect("gone");
        for line in lines.map_while(Result::ok) {
            told = line.trim().parse().unwrap_or(told);
        }
        assert!(seen == wanted, "the child ended by itself");
        let target = if turn % 2 == 1 { at(&format!("pool {}", turn / 2 + 1)) } else { at("looked at") };
        let done = child_of("restoring_child", &target, place, environment).output().expect("started");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        let found = entries(&target);
        let count = number(&found[&b"count"[..]]);
        assert!(count >= told, "{told} was told to be in the replica, {count} is there");
        last = told;
        if turn % 2 == 0 {
            std::fs::remove_file(&target).expect("removed");
        }
    }
}
