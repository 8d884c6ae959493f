// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log applied by a thread of the pool: many writers, small lanes, checksums, a copy of the file in the middle.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memlift_persist::{Domain, Error, Mechanism, Options, PPtr, Persist, Pool, TxOptions, View, check};

#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Root {
    sections: [PPtr<Counter>; SECTIONS],
}

/// All words are equal.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
struct Counter {
    words: [u64; 40],
    before: PPtr<Counter>,
}

const SECTIONS: usize = 3;
const ROUNDS: u64 = 1500;

fn options(mechanism: Mechanism, domain: Domain) -> Options {
    Options {
        heap_bytes: 1 << 20,
        max_bytes: 4 << 20,
        lanes: 1 + SECTIONS as u32,
        lane_bytes: 32 << 10,
        sections: SECTIONS as u32,
        mechanism,
        domain,
        apply_behind: true,
        ..Options::default()
    }
}

fn root(pool: &Pool) -> Result<Root, Error> {
    pool.read(|r| Ok(*r.get(r.root::<Root>()?.expect("a root"))?))
}

/// Puts the section's counter in another place, one higher.
fn step(pool: &Pool, section: u16, kept: PPtr<Counter>) -> Result<PPtr<Counter>, Error> {
    let options = TxOptions { sections: Some(&[section]), ..TxOptions::default() };
    pool.tx_with(options, |t| {
        let counter = *t.get(kept)?;
        let next = counter.words[0] + 1;
        if !next.is_multiple_of(7) {
            t.get_mut(kept)?.words = [next; 40];
            return Ok(kept);
        }
        if !counter.before.is_null() {
            t.free(counter.before)?;
        }
        let made = t.alloc_in(section, Counter { words: [next; 40], before: kept })?;
        Ok(made)
    })
}

fn values(path: &Path, options: &Options, places: &[PPtr<Counter>]) -> Vec<u64> {
    let pool = Pool::open(path, options).expect("opened");
    pool.read(|r| {
        let mut found = Vec::new();
        for place in places {
            let words = r.get(*place)?.words;
            assert!(words.iter().all(|word| *word == words[0]), "not whole");
            found.push(words[0]);
        }
        Ok::<_, Error>(found)
    })
    .expect("read")
}

/// Threads of this process that apply logs.
fn applying_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process has threads").flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "memlift-apply").count()
}

#[test]
fn nothing_is_lost_or_out_of_order() {
    let folder = tempfile::tempdir().expect("a folder");
    for (mechanism, domain) in [
        (Mechanism::Redo, Domain::Lines),
        (Mechanism::Redo, Domain::Pages),
        (Mechanism::Checkpoint, Domain::Lines),
        (Mechanism::Shadow, Domain::Lines),
    ] {
        let options = options(mechanism, domain);
        let path = folder.path().join(format!("{}-{domain:?}", mechanism.name()));
        let rounds = if domain == Domain::Pages { ROUNDS / 10 } else { ROUNDS };
        let pool = Pool::create(&path, &options).expect("created");
        pool.tx(|t| {
            let mut sections = [PPtr::NULL; SECTIONS];
            for (at, place) in sections.iter_mut().enumerate() {
                *place = t.alloc_in(at as u16, Counter { words: [0; 40], before: PPtr::NULL })?;
            }
            t.root_or(|_| Ok(Root { sections })).map(drop)
        })
        .expect("made");
        let first = root(&pool).expect("read").sections;
        let done: [AtomicU64; SECTIONS] = Default::default();
        let places: Vec<PPtr<Counter>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..SECTIONS)
                .map(|section| {
                    let (pool, done, mut place) = (&pool, &done, first[section]);
                    scope.spawn(move || {
                        for round in 0..rounds {
                            place = step(pool, section as u16, place).expect("committed");
                            done[section].store(round + 1, Ordering::Release);
                        }
                        place
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
        });
        assert!(done.iter().all(|one| one.load(Ordering::Acquire) == rounds));
        assert!(pool.applier_counters().home_bytes > 0, "the log has wrapped");
        // A thread has its name only once it runs.
        let wanted = usize::from(mechanism != Mechanism::Shadow);
        let since = Instant::now();
        while applying_threads() != wanted {
            assert!(since.elapsed() < Duration::from_secs(60), "{mechanism:?} {domain:?}: not {wanted}");
            std::thread::yield_now();
        }
        // As a process that dies: what was acknowledged is there.
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).expect("copied");
        assert_eq!(values(&copy, &options, &places), [rounds; SECTIONS], "{mechanism:?} {domain:?}");
        std::fs::remove_file(&copy).expect("removed");
        pool.close().expect("closed");
        assert_eq!(applying_threads(), 0, "closing ends the thread");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{:?}", report.findings);
        assert_eq!(values(&path, &options, &places), [rounds; SECTIONS]);
    }
}
