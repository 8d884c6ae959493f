// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compaction: nothing is lost or changed, whoever writes meanwhile and whenever it is killed, and the disk gets back what is free.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlift_persist::kv::Kv;
use memlift_persist::raw::Table;
use memlift_persist::{Domain, Durability, Error, Mechanism, Options, Pool, check};

/// Set for a test of this program that runs as a child: the pool's path.
const CHILD: &str = "MEMLIFT_TEST_POOL";

fn options(mechanism: Mechanism, domain: Domain, sections: u32) -> Options {
    Options { mechanism, domain, sections, heap_bytes: 4 << 20, lane_bytes: 1 << 20, ..Options::default() }
}

fn disk_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).expect("there").blocks() * 512
}

/// Keys up to 8 bytes, and longer ones that have bytes of their own.
fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(2) {
        number.to_be_bytes().to_vec()
    } else {
        format!("a longer key {number:08}").into_bytes()
    }
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 7919 % 3000) as usize]
}

fn put(store: &Kv<'_>, entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
    let all: Vec<_> = entries.collect();
    for some in all.chunks(40) {
        let some: Vec<(&[u8], &[u8])> = some.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        store.set_many(&some).expect("room");
    }
}

/// Every tenth of so many entries is left.
fn sparse(store: &Kv<'_>, entries: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    put(store, (0..entries).map(|number| (key(number), value(number))));
    let gone: Vec<Vec<u8>> = (0..entries).filter(|number| number % 10 != 3).map(key).collect();
    for some in gone.chunks(100) {
        store.remove(&some.iter().map(|key| &key[..]).collect::<Vec<_>>()).expect("removed");
    }
    (0..entries).filter(|number| number % 10 == 3).map(|number| (key(number), value(number))).collect()
}

fn is_whole(store: &Kv<'_>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut found = BTreeMap::new();
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    store
        .scan(all, |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .expect("read");
    assert!(found == *model, "{} entries, {} wanted", found.len(), model.len());
    assert_eq!(store.len().expect("read"), model.len() as u64);
    for (key, value) in model {
        assert!(store.get(key).expect("read").as_ref() == Some(value), "{key:?}");
    }
}

#[test]
fn a_store_of_which_little_is_left_takes_little_of_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let domains = [Domain::Lines, Domain::Pages];
    let all = Mechanism::ALL.into_iter().flat_map(|one| domains.map(|domain| (one, domain)));
    // Undo syncs the file for each entry.
    for (mechanism, domain) in all.filter(|one| *one != (Mechanism::Undo, Domain::Pages)) {
        for sections in [1, 4] {
            let path = folder.path().join(format!("{} {domain:?} {sections}", mechanism.name()));
            let options = options(mechanism, domain, sections);
            let pool = Pool::create(&path, &options).expect("created");
            let store = Kv::open(&pool, Durability::Buffered).expect("a store");
            let model = sparse(&store, 8000);
            let live: u64 = model.iter().map(|(key, value)| (key.len() + value.len() + 64) as u64).sum();
            let mut seen = (0, 0);
            let done = pool.compact(|done, total| seen = (done, total)).expect("compacted");
            is_whole(&store, &model);
            assert!(done.moved > 100 && done.freed > 100, "{mechanism:?}: {done:?}");
            assert!(seen.1 >= 800 && seen.0 <= seen.1, "{seen:?}");
            assert_eq!(done.after, disk_bytes(&path));
            // Lanes that were written keep their blocks.
            let lanes = u64::from(options.lanes) * options.lane_bytes + (256 << 10);
            if mechanism != Mechanism::Shadow {
                let heap = done.after.saturating_sub(lanes);
                assert!(heap <= live * 3 / 2, "{mechanism:?} {domain:?}: {heap} for {live}, {done:?}");
            }
            let again = pool.compact(|_, _| {}).expect("compacted");
            assert!(again.moved <= done.moved / 8, "{again:?} after {done:?}");
            pool.close().expect("closed");
            // Opening gives nothing back its blocks.
            let pool = Pool::open(&path, &options).expect("opened");
            assert!(disk_bytes(&path) <= again.after, "{mechanism:?}: {} after {again:?}", disk_bytes(&path));
            let store = Kv::open(&pool, Durability::Buffered).expect("a store");
            is_whole(&store, &model);
            // Holes are used again.
            let mut model = model;
            model.extend((100_000..103_000).map(|number| (key(number), value(number))));
            put(&store, model.clone().into_iter());
            is_whole(&store, &model);
            pool.close().expect("closed");
            let report = check::check(&path).expect("checked");
            assert!(report.sound(), "{mechanism:?} {domain:?}: {:?}", report.findings);
        }
    }
}

#[test]
fn what_a_hole_had_before_is_stored_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in [Mechanism::Redo, Mechanism::Undo, Mechanism::Checkpoint] {
        let path = folder.path().join(mechanism.name());
        let options = Options { lane_bytes: 8 << 20, ..options(mechanism, Domain::Lines, 1) };
        let pool = Pool::create(&path, &options).expect("created");
        // Slots of 256 bytes begin where slots of 16 bytes have part of their bitmap: all ones in both.
        let ones = [u64::MAX; 32];
        let all =
            pool.tx(|t| (0..500).map(|_| t.alloc(ones)).collect::<Result<Vec<_>, Error>>()).expect("room");
        pool.tx(|t| all.iter().try_for_each(|one| t.free(*one))).expect("freed");
        let done = pool.compact(|_, _| {}).expect("compacted");
        assert!(done.after < done.before, "{mechanism:?}: {done:?}");
        let small = pool
            .tx(|t| (0..4000).map(|one: u64| t.alloc(one)).collect::<Result<Vec<_>, Error>>())
            .expect("room");
        pool.close().expect("closed");
        let pool = Pool::open(&path, &options).expect("opened");
        pool.tx(|t| small.iter().try_for_each(|one| t.free(*one))).expect("every one is there");
        pool.close().expect("closed");
    }
}

#[test]
fn tables_of_other_languages_move_too() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism, Domain::Lines, 1)).expect("created");
        let tables: Vec<Table> = pool
            .tx(|t| {
                let tables = (0..3).map(|_| Table::create(t)).collect::<Result<Vec<_>, _>>()?;
                let root = memlift_persist::raw::root_or(t)?;
                t.get_mut(root)?.names = tables[0].offset();
                Ok::<_, Error>(tables)
            })
            .expect("made");
        let entries = 4000;
        for number in 0..entries {
            let table = tables[number as usize % 3];
            pool.tx(|t| table.put(t, &key(number), &value(number))).expect("room");
        }
        for number in (0..entries).filter(|number| number % 10 != 3) {
            let table = tables[number as usize % 3];
            assert!(pool.tx(|t| table.remove(t, &key(number))).expect("removed"));
        }
        let order = |table: Table| {
            let batch = pool.read(|r| table.batch(r, None, usize::MAX, usize::MAX)).expect("read");
            batch.expect("from the start")
        };
        let before: Vec<_> = tables.iter().map(|table| order(*table)).collect();
        let done = pool.compact(|_, _| {}).expect("compacted");
        assert!(done.moved > 100 && done.freed > 20, "{mechanism:?}: {done:?}");
        for (table, before) in tables.iter().zip(&before) {
            assert!(order(*table) == *before, "{mechanism:?}: in the order of insertion, as before");
            pool.read(|r| table.check(r)).expect("all links agree");
        }
        assert!(before.iter().flatten().all(|(key, value)| tables.iter().any(|table| {
            pool.read(|r| Ok::<_, Error>(table.get(r, key)?.map(<[u8]>::to_vec))).expect("read").as_ref()
                == Some(value)
        })));
        pool.close().expect("closed");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
    }
}

#[test]
fn others_write_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = folder.path().join(mechanism.name());
        let pool = Pool::create(&path, &options(mechanism, Domain::Lines, 4)).expect("created");
        let store = Kv::open(&pool, Durability::Buffered).expect("a store");
        let mut model = sparse(&store, 8000);
        let over = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let store = Kv::open(&pool, Durability::Buffered).expect("a store");
                let mut written = 0;
                while !over.load(Ordering::Relaxed) || written < 500 {
                    let number = 1_000_000 + written;
                    store.set(&key(number), &value(number), 0).expect("room");
                    if written >= 100 {
                        store.remove(&[&key(number - 100)]).expect("removed");
                    }
                    written += 1;
                }
                written
            });
            for _ in 0..3 {
                pool.compact(|_, _| {}).expect("compacted");
            }
            over.store(true, Ordering::Relaxed);
            writer.join().expect("no panic")
        });
        model.extend(
            (1_000_000 + written - 100..1_000_000 + written).map(|number| (key(number), value(number))),
        );
        is_whole(&store, &model);
        pool.close().expect("closed");
        let report = check::check(&path).expect("checked");
        assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
    }
}

#[test]
fn a_compaction_that_is_killed_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for mechanism in Mechanism::ALL {
        let path = folder.path().join(mechanism.name());
        let options = options(mechanism, Domain::Lines, 2);
        let pool = Pool::create(&path, &options).expect("created");
        let model = sparse(&Kv::open(&pool, Durability::Buffered).expect("a store"), 6000);
        pool.close().expect("closed");
        let whole = std::fs::read(&path).expect("read");
        for round in 0..6 {
            std::fs::write(&path, &whole).expect("put back");
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["compact::child_compacts", "--exact", "--ignored", "--nocapture"])
                .env(CHILD, &path)
                .stdout(Stdio::null())
                .spawn()
                .expect("it starts");
            std::thread::sleep(Duration::from_millis(3 + 6 * round));
            child.kill().expect("killed");
            child.wait().expect("it ended");
            let pool = Pool::open(&path, &options).expect("opened");
            let store = Kv::open(&pool, Durability::Buffered).expect("a store");
            is_whole(&store, &model);
            pool.compact(|_, _| {}).expect("it goes on");
            is_whole(&store, &model);
            pool.close().expect("closed");
            let report = check::check(&path).expect("checked");
            assert!(report.sound(), "{mechanism:?}: {:?}", report.findings);
        }
    }
}

#[test]
#[ignore = "runs as a child, and is killed"]
fn child_compacts() {
    let path = PathBuf::from(std::env::var_os(CHILD).expect("run by another test"));
    let mechanism = Mechanism::ALL.into_iter().find(|one| path.ends_with(one.name())).expect("a mechanism");
    let pool = Pool::open(&path, &options(mechanism, Domain::Lines, 2)).expect("opened");
    loop {
        pool.compact(|_, _| {}).expect("compacted");
    }
}
