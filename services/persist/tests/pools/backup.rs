// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies of a pool in use: each is a whole pool of one moment, whoever writes meanwhile.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memlift_persist::kv::Kv;
use memlift_persist::{BackupOptions, Domain, Durability, Error, Mechanism, Options, Pool, View, check};

const ACCOUNTS: u64 = 64;
const START: u64 = 1_000;

fn options(mechanism: Mechanism, domain: Domain, sections: u32) -> Options {
    let max_bytes = 256 << 20;
    Options {
        mechanism,
        domain,
        sections,
        heap_bytes: 2 << 20,
        max_bytes,
        lane_bytes: 1 << 20,
        ..Options::default()
    }
}

fn account(number: u64) -> Vec<u8> {
    format!("account {number}").into_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Moves money between accounts, counts, and puts and removes values of all sizes, in a transaction each.
fn work(pool: &Pool, thread: u64, told: &AtomicU64, stop: &AtomicBool) {
    let store = Kv::open(pool, Durability::Sync).expect("a store");
    let mut dice = thread + 1;
    let mut next = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 11) % below
    };
    for count in 1.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let (from, to, sum) = (account(next(ACCOUNTS)), account(next(ACCOUNTS)), next(50));
        let bytes = [next(100), next(3_000), next(40_000)][next(3) as usize];
        let (mine, other) = (format!("count {thread}").into_bytes(), format!("value {thread} {}", next(300)));
        let keys: Vec<&[u8]> = vec![&from, &to, &mine, other.as_bytes()];
        let moved = store.write(&keys, |turn| {
            if from != to {
                let before = turn.get_with(&from, |value, _| number(value))?.expect("an account");
                turn.set(&from, &before.wrapping_sub(sum).to_le_bytes(), 0)?;
                let before = turn.get_with(&to, |value, _| number(value))?.expect("an account");
                turn.set(&to, &before.wrapping_add(sum).to_le_bytes(), 0)?;
            }
            turn.set(&mine, &u64::to_le_bytes(count), 0)?;
            turn.set(other.as_bytes(), &vec![count as u8; bytes as usize], 0)
        });
        moved.expect("room");
        told.store(count, Ordering::Release);
    }
}

/// A copy of one moment is sound, no money came or went, and each thread's count is as far as it had told.
fn is_of_one_moment(path: &Path, told: &[u64]) {
    let report = check::check(path).expect("checked");
    assert!(report.sound(), "{:?}", report.findings);
    let pool = Pool::open(path, &Options::default()).expect("opened");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    let get = |key: &[u8]| number(&store.get(key).expect("read").expect("there"));
    let sum = (0..ACCOUNTS).fold(0u64, |sum, one| sum.wrapping_add(get(&account(one))));
    assert_eq!(sum, ACCOUNTS * START);
    for (thread, told) in told.iter().enumerate() {
        assert!(get(format!("count {thread}").as_bytes()) >= *told, "thread {thread}: {told} was told");
    }
    // It is a pool like any other.
    store.set(b"new", b"value", 0).expect("room");
    assert_eq!(store.remove(&[b"new", &account(0)]).expect("removed"), 2);
}

#[test]
fn a_copy_is_of_one_moment_whoever_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    for (at, mechanism) in Mechanism::ALL.into_iter().enumerate() {
        for (domain, sections) in [(Domain::Pages, 4), (Domain::Lines, 4), (Domain::Pages, 1)] {
            let path = folder.path().join(format!("{at} {domain:?} {sections}"));
            let pool = Pool::create(&path, &options(mechanism, domain, sections)).expect("created");
            let store = Kv::open(&pool, Durability::Sync).expect("a store");
            for one in 0..ACCOUNTS {
                store.set(&account(one), &START.to_le_bytes(), 0).expect("room");
            }
            for thread in 0..2 {
                store.set(format!("count {thread}").as_bytes(), &[0; 8], 0).expect("room");
            }
            // Without checksums everything is copied while the log waits: that takes a while.
            for one in 0..if domain == Domain::Lines { 600 } else { 0 } {
                store.set(format!("large {one}").as_bytes(), &[1; 100_000], 0).expect("room");
            }
            let (told, stop) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
            std::thread::scope(|scope| {
                let writers: Vec<_> = (told.iter().enumerate())
                    .map(|(thread, told)| {
                        let (pool, stop) = (&pool, &stop);
                        scope.spawn(move || work(pool, thread as u64, told, stop))
                    })
                    .collect();
                let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    for turn in 0..3 {
                        let target = folder.path().join(format!("{at} {domain:?} {sections} copy {turn}"));
                        let before: Vec<u64> = told.iter().map(|one| one.load(Ordering::Acquire)).collect();
                        let done = pool.backup(&target, BackupOptions::default(), |_, _| true);
                        let done = done.expect("copied");
                        assert!(done.copied > 0 && done.rounds > 0, "{done:?}");
                        is_of_one_moment(&target, &before);
                    }
                }));
                // On a busy machine one may not have begun.
                let is_waited_for = || told.iter().any(|one| one.load(Ordering::Acquire) == 0);
                while is_waited_for() && !writers.iter().any(|writer| writer.is_finished()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                stop.store(true, Ordering::Release);
                copied.unwrap();
            });
            assert!(told.iter().all(|one| one.load(Ordering::Acquire) > 0));
            pool.close().expect("closed");
        }
    }
}

#[test]
fn large_objects_and_growth_come_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let mut wide = options(Mechanism::Redo, Domain::Pages, 2);
    (wide.max_bytes, wide.lane_bytes) = (1 << 30, 4 << 20);
    let pool = Pool::create(&path, &wide).expect("created");
    let words: Vec<u64> = (0..10 << 20).collect();
    let root = pool.tx(|t| t.alloc_slice(&words)).expect("80 MiB");
    let store = Kv::open(&pool, Durability::Buffered).expect("a store");
    for key in 0..200u64 {
        store.set(&key.to_be_bytes(), &vec![key as u8; 100_000], 0).expect("room");
    }
    for key in (0..200u64).step_by(2) {
        store.remove(&[&key.to_be_bytes()]).expect("removed");
    }
    let target = folder.path().join("copy");
    pool.backup(&target, BackupOptions::default(), |_, _| true).expect("copied");
    pool.close().expect("closed");
    // Nothing leads to the array, in both.
    let findings = |path: &Path| format!("{:?}", check::check(path).expect("checked").findings);
    assert_eq!(findings(&target), findings(&path));
    let copy = Pool::open(&target, &wide).expect("opened");
    let store = Kv::open(&copy, Durability::Sync).expect("a store");
    for key in 0..200u64 {
        let found = store.get(&key.to_be_bytes()).expect("read");
        assert_eq!(found, (key % 2 == 1).then(|| vec![key as u8; 100_000]));
    }
    copy.read(|r| r.slice(root).map(|found| assert!(found == words))).expect("the large one");
}

#[test]
fn nothing_is_overwritten_and_what_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    Kv::open(&pool, Durability::Sync).expect("a store").set(b"key", &[7; 5_000], 0).expect("room");
    let target = folder.path().join("theirs");
    std::fs::write(&target, "not ours").expect("written");
    let found = pool.backup(&target, BackupOptions::default(), |_, _| true);
    assert!(matches!(found, Err(Error::Exists { .. })), "{found:?}");
    assert_eq!(std::fs::read(&target).expect("there"), b"not ours");
    let found = pool.backup(folder.path().join("pool"), BackupOptions::default(), |_, _| true);
    assert!(matches!(found, Err(Error::Exists { .. })), "{found:?}");
    let found = pool.backup(folder.path().join("copy"), BackupOptions::default(), |_, _| false);
    assert!(matches!(found, Err(Error::Aborted(_))), "{found:?}");
    let slow = BackupOptions { bytes_per_second: NonZeroU64::new(1 << 20) };
    let start = std::time::Instant::now();
    let done = pool.backup(folder.path().join("slow"), slow, |_, _| true).expect("copied");
    let least =
        std::time::Duration::from_secs_f64((done.copied - done.held_bytes) as f64 / f64::from(1 << 20));
    assert!(start.elapsed() >= least, "{:?} for {done:?}", start.elapsed());
    let names = std::fs::read_dir(folder.path()).expect("read").map(|one| one.expect("there").file_name());
    let names: BTreeSet<_> = names.collect();
    assert_eq!(names, ["pool", "slow", "theirs"].map(Into::into).into());
    drop(pool);
    // Of a pool that is only read, too.
    let read_only = Options { read_only: true, ..Options::default() };
    let pool = Pool::open(&path, &read_only).expect("opened");
    pool.backup(folder.path().join("copy"), BackupOptions::default(), |_, _| true).expect("copied");
    let copy = Pool::open(folder.path().join("copy"), &Options::default()).expect("opened");
    let store = Kv::open(&copy, Durability::Sync).expect("a store");
    assert_eq!(store.get(b"key").expect("read").as_deref(), Some(&[7; 5_000][..]));
}

#[test]
fn a_damaged_page_is_named_and_not_copied() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let store = Kv::open(&pool, Durability::Sync).expect("a store");
    for key in 0..100u64 {
        store.set(&key.to_be_bytes(), format!("a value {key:080}").as_bytes(), 0).expect("room");
    }
    pool.apply().expect("applied");
    let bytes = std::fs::read(&path).expect("read");
    let at = bytes.windows(20).rposition(|part| part == &b"a value 000000000000"[..]).expect("in the heap");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.write_all_at(b"b", at as u64).expect("damaged");
    let found = pool.backup(folder.path().join("copy"), BackupOptions::default(), |_, _| true);
    assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
    assert!(!folder.path().join("copy").exists());
}
