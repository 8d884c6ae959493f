// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many threads commit in company: all commits are there, hardens are shared, and when the log cannot be written, nobody sleeps
//! on.
//!
//! - **Not here** crashes: the simulator's tests

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memlift_persist::{Domain, Durability, Error, Options, Pool, TxOptions, View};

const THREADS: u64 = 8;

fn options() -> Options {
    Options {
        domain: Domain::Pages,
        heap_bytes: 1 << 20,
        max_bytes: 1 << 24,
        group_wait: Duration::from_millis(2),
        ..Options::default()
    }
}

fn add(pool: &Pool, durability: Durability) -> Result<u64, Error> {
    pool.tx_with(TxOptions { durability, sections: None }, |t| {
        let root = t.root_or(|_| Ok(0u64))?;
        *t.get_mut(root)? += 1;
        Ok(*t.get(root)?)
    })
}

fn count(path: &Path) -> u64 {
    let pool = Pool::open(path, &options()).expect("opened");
    pool.read(|r| r.root::<u64>()?.map_or(Ok(0), |root| r.get(root).copied())).expect("read")
}

#[test]
fn threads_in_company_lose_nothing_and_share_their_hardens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = Pool::create(&path, &options()).expect("created");
    add(&pool, Durability::Sync).expect("the root");
    let before = pool.counters().hardens;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..100 {
                    // Most wait for company; some do not.
                    let durability = match (thread + turn) % 25 {
                        0 => Durability::Sync,
                        1 => Durability::Buffered,
                        _ => Durability::Group,
                    };
                    add(pool, durability).expect("committed");
                }
            });
        }
    });
    let hardens = pool.counters().hardens - before;
    assert!(hardens < THREADS * 100, "{hardens} hardens for {} commits", THREADS * 100);
    pool.close().expect("closed");
    assert_eq!(count(&path), 1 + THREADS * 100);
}

/// Puts a pipe where the pool has its file, so that whatever it writes or syncs from now on fails.
fn break_file(path: &Path) {
    let (_, pipe) = std::io::pipe().expect("a pipe");
    let file = std::fs::read_dir("/proc/self/fd")
        .expect("/proc")
        .filter_map(Result::ok)
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path))
        .map(|entry| entry.file_name().to_string_lossy().parse::<i32>().expect("a number"));
    let mut broken = 0;
    for number in file {
        // SAFETY: dup2 touches no memory; the descriptor's number stays the pool's, which closes it.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&pipe), number) }, number);
        broken += 1;
    }
    assert!(broken > 0, "the pool's file is open");
}

#[test]
fn when_the_log_cannot_be_written_every_member_of_a_group_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("a path").join("pool");
    let pool = Pool::create(&path, &options()).expect("created");
    add(&pool, Durability::Sync).expect("the root");
    let acknowledged = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let error = loop {
                    match add(&pool, Durability::Group) {
                        Ok(_) => acknowledged.fetch_add(1, Ordering::Relaxed),
                        Err(error) => break error,
                    };
                };
                assert!(matches!(error, Error::Stopped { .. }), "{error}");
            });
        }
        while acknowledged.load(Ordering::Relaxed) < 200 {
            std::thread::yield_now();
        }
        break_file(&path);
    });
    assert!(matches!(add(&pool, Durability::Sync), Err(Error::Stopped { .. })));
    drop(pool);
    let (found, least) = (count(&path), acknowledged.load(Ordering::Relaxed));
    assert!((least..=least + THREADS).contains(&found), "{found} found, {least} acknowledged");
}
