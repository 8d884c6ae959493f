// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readers beside a writer: each sees one moment, whoever writes, grows, compacts, or dies.
#![forbid(unsafe_code)]

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_persist::kv::Kv;
use memlift_persist::{
    BackupOptions, Domain, Durability, Error, Mechanism, Options, PSlice, Pool, View, check, dump,
};

const ACCOUNTS: u64 = 512;
const START: u64 = 1_000;
/// Names the pool to a child of these tests.
const CHILD: &str = "MEMLIFT_TEST_READERS";

fn options(mechanism: Mechanism, domain: Domain, sections: u32) -> Options {
    Options {
        mechanism,
        domain,
        sections,
        heap_bytes: 1 << 20,
        max_bytes: 512 << 20,
        lane_bytes: 8 << 20,
        readers_bytes: 64 << 20,
        ..Options::default()
    }
}

fn reading() -> Options {
    Options { read_only: true, ..Options::default() }
}

fn account(number: u64) -> Vec<u8> {
    // So long that the accounts lie in many slabs.
    format!("account {number:0500}").into_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// A store with accounts.
fn fill(pool: &Pool) {
    let store = Kv::open(pool, Durability::Sync).expect("a store");
    for one in 0..ACCOUNTS {
        store.set(&account(one), &START.to_le_bytes(), 0).expect("room");
    }
    store.set(b"count", &[0; 8], 0).expect("room");
}

/// Moves money between accounts, counts, and puts and removes values of all sizes, in a transaction each, until `goes_on` says no.
fn work(pool: &Pool, mut goes_on: impl FnMut(u64) -> bool) {
    let store = Kv::open(pool, Durability::Sync).expect("a store");
    let mut dice = 1u64;
    let mut next = |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 11) % below
    };
    let mut count = number(&store.get(b"count").expect("read").expect("there"));
    loop {
        count += 1;
        let (from, to, sum) = (account(next(ACCOUNTS)), account(next(ACCOUNTS)), next(50));
        let bytes = [next(100), next(3_000), next(40_000), next(400_000)][next(4) as usize];
        let other = format!("value {}", next(60));
        let keys: Vec<&[u8]> = vec![&from, &to, b"count", other.as_bytes()];
        let moved = store.write(&keys, |turn| {
            if from != to {
                let before = turn.get_with(&from, |value, _| number(value))?.expect("an account");
                turn.set(&from, &before.wrapping_sub(sum).to_le_bytes(), 0)?;
                let before = turn.get_with(&to, |value, _| number(value))?.expect("an account");
                turn.set(&to, &before.wrapping_add(sum).to_le_bytes(), 0)?;
            }
            turn.set(b"count", &u64::to_le_bytes(count), 0)?;
            if count.is_multiple_of(5) {
                return turn.remove(other.as_bytes()).map(drop);
            }
            turn.set(other.as_bytes(), &vec![count as u8; bytes as usize], 0)
        });
        moved.expect("room");
        if !goes_on(count) {
            return;
        }
    }
}

/// Says so when it goes, by a panic too.
struct Says<'a>(&'a AtomicBool);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads the whole snapshot; gives the writer's count. It is of one moment: no money came or went, and values are whole.
fn read_all(pool: &Pool) -> Result<u64, Error> {
    let store = Kv::open(pool, Durability::Sync)?;
    let mut sum = 0u64;
    for one in 0..ACCOUNTS {
        sum = sum.wrapping_add(number(&store.get(&account(one))?.expect("an account")));
    }
    assert_eq!(sum, ACCOUNTS * START);
    for one in 0..60 {
        if let Some(value) = store.get(format!("value {one}").as_bytes())? {
            assert!(value.windows(2).all(|pair| pair[0] == pair[1]), "value {one} is torn");
        }
    }
    Ok(number(&store.get(b"count")?.expect("there")))
}

#[test]
fn a_snapshot_stays_and_a_new_one_has_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Checkpoint] {
        for domain in [Domain::Pages, Domain::Lines] {
            let path = folder.path().join(format!("{} {domain:?}", mechanism.name()));
            let pool = Pool::create(&path, &options(mechanism, domain, 1)).expect("created");
            let store = Kv::open(&pool, Durability::Sync).expect("a store");
            for key in 0..2_000u64 {
                store.set(&key.to_be_bytes(), &[1; 100], 0).expect("room");
            }
            let mut reader = Pool::open(&path, &reading()).expect("beside the writer");
            // A second one reads half of its snapshot before the change, and the first nothing.
            let half = Pool::open(&path, &reading()).expect("beside the writer");
            let seen = |pool: &Pool, key: u64| {
                Kv::open(pool, Durability::Sync).expect("a store").get(&key.to_be_bytes()).expect("read")
            };
            assert!((0..1_000).all(|key| seen(&half, key) == Some(vec![1; 100])));
            for key in 0..4_000u64 {
                store.set(&key.to_be_bytes(), &vec![2; 10 + key as usize % 300], 0).expect("room");
            }
            for key in (0..4_000u64).step_by(3) {
                store.remove(&[&key.to_be_bytes()]).expect("removed");
            }
            pool.compact(|_, _| {}).expect("compacted");
            for key in 0..4_000u64 {
                let old = (key < 2_000).then(|| vec![1; 100]);
                assert_eq!(seen(&reader, key), old, "{mechanism:?} {domain:?} {key}");
                assert_eq!(seen(&half, key), old, "{mechanism:?} {domain:?} {key}");
            }
            reader.refresh().expect("the writer is there");
            for key in 0..4_000u64 {
                let new = (key % 3 != 0).then(|| vec![2; 10 + key as usize % 300]);
                assert_eq!(seen(&reader, key), new, "{mechanism:?} {domain:?} {key}");
            }
            // Whoever looks at the file sees a sound pool too, and a copy of a snapshot is one.
            let report = check::check(&path).expect("beside the writer");
            assert!(report.sound() && report.root.is_some(), "{:?}", report.findings);
            let mut objects = 0;
            dump::dump(&path, &dump::Filter::default(), |_| {
                objects += 1;
                objects < 10_000
            })
            .expect("beside the writer");
            assert!(objects > 1_000);
            let copy = folder.path().join(format!("{} {domain:?} copy", mechanism.name()));
            reader.backup(&copy, BackupOptions::default(), |_, _| true).expect("copied");
            let copied = Pool::open(&copy, &Options::default()).expect("a pool");
            assert_eq!(seen(&copied, 3_998), Some(vec![2; 10 + 3_998 % 300]));
            Kv::open(&copied, Durability::Sync).expect("a store").set(b"new", b"value", 0).expect("room");
            copied.close().expect("closed");
            assert!(check::check(&copy).expect("checked").sound());
            // It only reads.
            let store = Kv::open(&reader, Durability::Sync).expect("a store");
            assert!(matches!(store.set(b"k", b"v", 0), Err(Error::ReadOnly)));
            pool.close().expect("closed");
        }
    }
}

#[test]
fn every_snapshot_is_of_one_moment_whoever_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, domain, readers_bytes) in [
        (Mechanism::Redo, Domain::Pages, 64 << 20),
        (Mechanism::Redo, Domain::Lines, 64 << 20),
        (Mechanism::Checkpoint, Domain::Lines, 64 << 20),
        // So little is kept that snapshots are taken back while they are read.
        (Mechanism::Redo, Domain::Lines, 256 << 10),
        (Mechanism::Redo, Domain::Pages, 4096),
    ] {
        let path = folder.path().join(format!("{} {domain:?} {readers_bytes}", mechanism.name()));
        let options =
            Options { readers_bytes, apply_behind: domain == Domain::Lines, ..options(mechanism, domain, 2) };
        let pool = Pool::create(&path, &options).expect("created");
        fill(&pool);
        let (told, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (gone, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let stopping = Says(&stop);
            scope.spawn(|| {
                let _ending = Says(&ended);
                work(&pool, |count| {
                    told.store(count, Ordering::Release);
                    !stop.load(Ordering::Acquire)
                });
            });
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut reader = loop {
                            match Pool::open(&path, &reading()) {
                                Err(Error::SnapshotGone { .. }) => drop(gone.fetch_add(1, Ordering::Relaxed)),
                                opened => break opened.expect("beside the writer"),
                            }
                            assert!(!ended.load(Ordering::Acquire), "the writer failed");
                        };
                        let mut whole = 0;
                        let until = Instant::now() + Duration::from_millis(1500);
                        while Instant::now() < until || whole + gone.load(Ordering::Relaxed) < 3 {
                            assert!(!ended.load(Ordering::Acquire), "the writer failed");
                            let before = told.load(Ordering::Acquire);
                            match reader.refresh().and_then(|()| read_all(&reader)) {
                                Ok(count) => {
                                    assert!(count >= before, "{count} after {before} was told");
                                    // Nothing of it changes.
                                    match read_all(&reader) {
                                        Ok(again) => assert_eq!(again, count),
                                        Err(error) => {
                                            assert!(matches!(error, Error::SnapshotGone { .. }), "{error}")
                                        }
                                    }
                                    whole += 1;
                                }
                                Err(Error::SnapshotGone { .. }) => drop(gone.fetch_add(1, Ordering::Relaxed)),
                                Err(other) => panic!("{other}"),
                            }
                        }
                        whole
                    })
                })
                .collect();
            let whole: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            drop(stopping);
            if readers_bytes >= 64 << 20 {
                assert!(whole.iter().all(|whole| *whole > 0), "{whole:?}");
                assert_eq!(gone.load(Ordering::Relaxed), 0, "there was room for all pages");
            } else {
                assert!(gone.load(Ordering::Relaxed) > 0, "{mechanism:?} {domain:?}: nothing was taken back");
            }
        });
        pool.close().expect("closed");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{:?}", report.findings);
    }
}

/// A test of this program in another process, which ends with this value.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn child(test: &str, path: &Path) -> Other {
    let started = Command::new(std::env::current_exe().expect("a path"))
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::null())
        .spawn();
    Other(started.expect("it starts"))
}

fn path_of_child() -> PathBuf {
    PathBuf::from(std::env::var_os(CHILD).expect("run by another test"))
}

#[test]
#[ignore = "runs as a child, and is killed"]
fn child_writes() {
    let pool = loop {
        match Pool::open(path_of_child(), &options(Mechanism::Redo, Domain::Lines, 2)) {
            Err(Error::InUse { .. }) => std::thread::sleep(Duration::from_millis(1)), // a reader looks whether it is there
            opened => break opened.expect("opened"),
        }
    };
    work(&pool, |_| true);
}

#[test]
#[ignore = "runs as a child, and is killed"]
fn child_reads() {
    let mut pool = Pool::open(path_of_child(), &reading()).expect("beside the writer");
    loop {
        read_all(&pool).expect("there is room for all pages");
        pool.refresh().expect("a new one");
    }
}

/// A reader beside a writer that is about to open the pool; `waits` hears of each try in vain.
fn beside(path: &Path, mut waits: impl FnMut()) -> Pool {
    loop {
        match Pool::open(path, &reading()) {
            Ok(found) if found.is_beside() => return found,
            // The child has not opened it yet, or is about to let others read.
            Ok(_) | Err(Error::InUse { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        waits();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A writer dies, and the next one recovers and goes on: no reader of the first mixes the two.
#[test]
fn a_snapshot_ends_with_its_writer() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Lines, 2)).expect("created");
    fill(&pool);
    pool.close().expect("closed");
    let mut ended = 0;
    for round in 0..12 {
        let mut first = child("readers::child_writes", &path);
        let deadline = Instant::now() + Duration::from_secs(60);
        let reader = beside(&path, || {
            let ended = first.0.try_wait().expect("asked").is_some();
            assert!(Instant::now() < deadline && !ended, "the writer does not write");
        });
        if round % 2 == 0 {
            read_all(&reader).expect("the writer lives");
        }
        first.0.kill().expect("killed");
        let second = child("readers::child_writes", &path);
        drop(first);
        loop {
            match read_all(&reader) {
                // It has what it had read by then.
                Ok(_) if round % 2 == 0 => break,
                Ok(_) => {}
                Err(Error::SnapshotGone { .. }) => {
                    ended += 1;
                    break;
                }
                Err(other) => panic!("{other}"),
            }
            assert!(Instant::now() < deadline);
        }
        drop(second);
    }
    assert!(ended > 0);
}

/// A reader that asks while a writer closes the pool learns that its snapshot is gone; one that opens it gets it.
#[test]
fn a_writer_that_closes_the_pool_is_no_error_of_readers() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().join("pool");
    let options = options(Mechanism::Redo, Domain::Lines, 2);
    let pool = Pool::create(&path, &options).expect("created");
    fill(&pool);
    pool.close().expect("closed");
    let read_only = Options { wait: Duration::from_secs(60), ..reading() };
    let gone = AtomicU64::new(0);
    for round in 0..12 {
        let writer = Pool::open(&path, &Options { wait: Duration::from_secs(60), ..options.clone() });
        let writer = writer.expect("the readers have closed it");
        std::thread::scope(|scope| {
            for opens in [false, true] {
                let (path, read_only, gone) = (&path, &read_only, &gone);
                let mut reader = Pool::open(path, read_only).expect("opened");
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(60);
                    loop {
                        assert!(Instant::now() < deadline);
                        if opens {
                            drop(reader);
                            reader = loop {
                                match Pool::open(path, read_only) {
                                    Err(Error::SnapshotGone { .. }) => {} // closed while it is opened
                                    opened => break opened.expect("opened"),
                                }
                            };
                            if !reader.is_beside() {
                                break; // nobody writes: it has the file itself
                            }
                            continue;
                        }
                        match reader.refresh() {
                            Ok(()) => {}
                            Err(Error::SnapshotGone { .. }) => {
                                gone.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(500 * (round % 10)));
            writer.close().expect("closed");
        });
    }
    assert_eq!(gone.into_inner(), 12);
}

#[test]
fn a_writer_that_is_stopped_is_not_waited_for() {
    use rustix::process::{Pid, Signal, kill_process};
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Lines, 2)).expect("created");
    fill(&pool);
    pool.close().expect("closed");
    let writer = child("readers::child_writes", &path);
    let mut reader = beside(&path, || {});
    let before = read_all(&reader).expect("the writer lives");
    let process = Pid::from_child(&writer.0);
    kill_process(process, Signal::STOP).expect("stopped");
    // Each of its threads stops when it sees the signal.
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.expect("a thread").path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", writer.0.id())).expect("the writer is there");
    while !tasks().all(is_stopped) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = reader.refresh().expect_err("nobody answers");
    assert!(late.to_string().contains("did not answer"), "{late}");
    assert_eq!(read_all(&reader).expect("it has what it had"), before);
    kill_process(process, Signal::CONT).expect("it goes on");
    // The answer that came too late is not taken for one to this request.
    reader.refresh().expect("it answers");
    let first = read_all(&reader).expect("a new one");
    reader.refresh().expect("it answers");
    assert!(first >= before && read_all(&reader).expect("a new one") >= first);
}

#[test]
fn readers_that_die_leave_nothing() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Lines, 2)).expect("created");
    fill(&pool);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Says(&stop);
        let writer = scope.spawn(|| work(&pool, |_| !stop.load(Ordering::Acquire)));
        for round in 0..12 {
            let mut reader = child("readers::child_reads", &path);
            std::thread::sleep(Duration::from_millis(20 + round * 5));
            assert!(reader.0.try_wait().expect("asked").is_none(), "a reader ended by itself");
        }
        // More than there are places, one after the other, and as many as there are at once.
        for _ in 0..600 {
            drop(Pool::open(&path, &reading()).expect("a place"));
        }
        let all: Vec<Pool> = (0..240).map(|_| Pool::open(&path, &reading()).expect("a place")).collect();
        let one_more = Pool::open(&path, &reading()).expect_err("no place is left");
        assert!(one_more.to_string().contains("240 readers"), "{one_more}");
        drop(all);
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = Pool::open(&path, &reading()) {
            assert!(Instant::now() < deadline, "{error}");
        }
        assert!(!writer.is_finished());
        drop(stopping);
        writer.join().unwrap();
        // Nothing is kept for them: blocks of the file are given back, which waits for every snapshot.
        let store = Kv::open(&pool, Durability::Sync).expect("a store");
        for one in 0..60 {
            store.remove(&[format!("value {one}").as_bytes()]).expect("removed");
        }
        let first = pool.compact(|_, _| {}).expect("compacted");
        loop {
            let done = pool.compact(|_, _| {}).expect("compacted");
            if done.after + (2 << 20) < first.before {
                break;
            }
            assert!(Instant::now() < deadline, "{first:?} {done:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    pool.close().expect("closed");
}

#[test]
fn who_may_not_read_is_told_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let alone = Options { readers_bytes: 0, ..options(Mechanism::Redo, Domain::Pages, 1) };
    let pool = Pool::create(&path, &alone).expect("created");
    let refused = Pool::open(&path, &reading()).expect_err("nobody may");
    assert!(matches!(refused, Error::InUse { .. }) && refused.to_string().contains("readers"), "{refused}");
    pool.close().expect("closed");
    for mechanism in [Mechanism::Undo, Mechanism::Shadow] {
        let path = folder.path().join(mechanism.name());
        let refused = Pool::create(&path, &options(mechanism, Domain::Pages, 1)).expect_err("no such pool");
        assert!(refused.to_string().contains("only redo and checkpoint pools"), "{refused}");
    }
    // A pool that was closed is read alone, and has nothing newer.
    let mut closed = Pool::open(&path, &reading()).expect("opened");
    closed.refresh().expect("nothing to do");
    assert!(matches!(Pool::open(&path, &alone), Err(Error::InUse { .. })), "its reader locks it");
    drop(closed);
    // A snapshot outlives its writer as far as it was read, and there is no new one.
    let pool = Pool::open(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("opened");
    fill(&pool);
    let mut reader = Pool::open(&path, &reading()).expect("beside the writer");
    read_all(&reader).expect("read");
    pool.close().expect("closed");
    read_all(&reader).expect("it was read before");
    let gone = reader.refresh().expect_err("nobody writes");
    assert!(matches!(gone, Error::SnapshotGone { .. }), "{gone}");
    read_all(&reader).expect("it stays as it was");
    // The next writer is found.
    let pool = Pool::open(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("opened");
    work(&pool, |count| count < 20);
    reader.refresh().expect("there is a writer again");
    assert_eq!(read_all(&reader).expect("read"), 20);
    pool.close().expect("closed");
}

/// A page in the middle of a large object is damaged on the disk: it is an error each time, in this snapshot and the next.
#[test]
fn damage_in_a_snapshot_is_never_a_value() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let content = vec![0x5a5a_1234_9876_0000_u64; 100_000];
    let words = pool.tx(|t| t.alloc_slice(&content)).expect("800 KB");
    pool.apply().expect("applied");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("a file");
    let whole = std::fs::read(&path).expect("read");
    let place = pool.header().heap_start + words.offset() + 400_000;
    file.write_all_at(&[whole[place as usize] ^ 1], place).expect("damaged");
    let mut reader = Pool::open(&path, &reading()).expect("beside the writer");
    let part = |pool: &Pool, from: u64| {
        // A pointer to its first words leads to the object, and so do all of its words.
        pool.read(|r| r.slice(PSlice::<u64>::from_raw(words.offset(), from)).map(<[u64]>::len))
    };
    for _ in 0..2 {
        for _ in 0..3 {
            assert_eq!(part(&reader, 8).expect("a page that is whole"), 8);
            let damaged = part(&reader, 100_000).expect_err("damage");
            assert!(matches!(damaged, Error::Corrupt { .. }), "{damaged}");
        }
        reader.refresh().expect("a new one");
    }
}

fn socket_of(path: &Path) -> SocketAddr {
    let about = std::fs::metadata(path).expect("a file");
    SocketAddr::from_abstract_name(format!("memlift-pool-{:x}-{:x}", about.dev(), about.ino()))
        .expect("a name")
}

#[test]
fn what_a_stranger_says_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    fill(&pool);
    // As a reader: nothing, too little, nonsense, and a request without the file.
    let silent = UnixStream::connect_addr(&socket_of(&path)).expect("connected");
    let whole = [&b"MLREAD01"[..], &[0; 8]].concat();
    for said in [&b"x"[..], &[0xff; 16], &whole, &[whole.clone(), whole.clone()].concat()] {
        let mut stranger = UnixStream::connect_addr(&socket_of(&path)).expect("connected");
        stranger.write_all(said).expect("sent");
        let mut heard = Vec::new();
        let end = std::io::Read::read_to_end(&mut stranger, &mut heard);
        assert!(heard.is_empty(), "{said:?} was answered: {end:?}");
        read_all(&Pool::open(&path, &reading()).expect("others are served")).expect("read");
    }
    drop(silent);
    pool.close().expect("closed");
    // As a writer: the name is free while a pool without readers is open.
    let alone = Options { readers_bytes: 0, ..options(Mechanism::Redo, Domain::Pages, 1) };
    let _pool = Pool::open(&path, &alone).expect("opened");
    let listener = UnixListener::bind_addr(&socket_of(&path)).expect("the name is free");
    let answer = |status: u32, index: u32, words: [u64; 3]| {
        let mut bytes = b"MLREAD01".to_vec();
        bytes.extend(status.to_le_bytes());
        bytes.extend(index.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    for said in [
        Vec::new(),
        vec![7; 40],
        answer(0, 0, [1, 1, 1]),
        answer(0, u32::MAX, [1, u64::MAX, u64::MAX]),
        answer(9, 0, [0; 3]),
        answer(2, 0, [0; 3]),
    ] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut socket, _) = listener.accept().expect("connected");
                let _ = std::io::Read::read(&mut socket, &mut [0; 16]);
                socket.write_all(&said).expect("sent");
            });
            Pool::open(&path, &reading()).expect_err("it is no writer");
        });
    }
}

/// A large array of words goes up by one in each transaction, and the heap grows beside it.
#[test]
fn large_objects_and_growth_are_seen_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options(Mechanism::Redo, Domain::Pages, 1)).expect("created");
    let words = pool.tx(|t| t.alloc_slice(&vec![0u64; 1 << 20])).expect("8 MiB");
    let mut reader = Pool::open(&path, &reading()).expect("beside the writer");
    for round in 1..4u64 {
        pool.tx(|t| {
            t.slice_mut(words)?.iter_mut().for_each(|word| *word = round);
            t.alloc_slice(&vec![round; 1 << 19]).map(drop)
        })
        .expect("room");
        let all = |pool: &Pool, value: u64| {
            pool.read(|r| Ok::<_, Error>(r.slice(words)?.iter().all(|word| *word == value))).expect("read")
        };
        assert!(all(&reader, round - 1), "{round}");
        reader.refresh().expect("a new one");
        assert!(all(&reader, round) && all(&reader, round), "{round}");
    }
}
