// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions of more ranges than a record's header counts: committed, recovered, and applied in each way.

use memlift_persist::{Domain, Durability, Error, Mechanism, Options, PPtr, Pool, Result, TxOptions, View};

const RANGES: u64 = 70_000;

/// A pool, and objects in it whose pointers are kept in an array.
fn pool(path: &std::path::Path, mechanism: Mechanism, domain: Domain, behind: bool) -> Result<Pool> {
    let options = Options {
        heap_bytes: 16 << 20,
        max_bytes: 64 << 20,
        lanes: 2,
        lane_bytes: 16 << 20,
        mechanism,
        domain,
        apply_behind: behind,
        ..Options::default()
    };
    Pool::create(path, &options)
}

/// One transaction makes all objects and an array of their pointers.
fn make(pool: &Pool) -> Result<()> {
    pool.tx(|t| {
        let mut all = Vec::with_capacity(RANGES as usize);
        for at in 0..RANGES {
            all.push(t.alloc(at)?.offset());
        }
        let list = t.alloc_slice(&all)?;
        let root = t.alloc([list.offset(), list.len()])?;
        t.set_root(root)
    })
}

/// One transaction changes every object.
fn add(pool: &Pool, durability: Durability) -> Result<()> {
    pool.tx_with(TxOptions { durability, ..TxOptions::default() }, |t| {
        let [offset, count] = *t.get(t.root::<[u64; 2]>()?.expect("made"))?;
        let all = t.slice(memlift_persist::PSlice::<u64>::from_raw(offset, count))?.to_vec();
        for one in all {
            *t.get_mut(PPtr::<u64>::from_offset(one))? += RANGES;
        }
        Ok(())
    })
}

fn sum(pool: &Pool) -> Result<u64> {
    pool.read(|r| {
        let [offset, count] = *r.get(r.root::<[u64; 2]>()?.expect("made"))?;
        let all = r.slice(memlift_persist::PSlice::<u64>::from_raw(offset, count))?;
        all.iter().try_fold(0, |sum, one| Ok(sum + r.get(PPtr::<u64>::from_offset(*one))?))
    })
}

#[test]
fn more_ranges_than_the_header_counts_are_one_transaction() {
    let wanted = |adds: u64| (0..RANGES).sum::<u64>() + adds * RANGES * RANGES;
    for (mechanism, domain, behind) in [
        (Mechanism::Redo, Domain::Lines, false),
        (Mechanism::Redo, Domain::Lines, true),
        (Mechanism::Redo, Domain::Pages, false),
        (Mechanism::Undo, Domain::Lines, false),
    ] {
        let what = format!("{mechanism:?} {domain:?} {behind}");
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("a.pool"), folder.path().join("b.pool"));
        let pool = pool(&path, mechanism, domain, behind).expect("created");
        make(&pool).unwrap_or_else(|error| panic!("{what}: {error}"));
        add(&pool, Durability::Sync).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(sum(&pool).expect("read"), wanted(1), "{what}");
        std::fs::copy(&path, &copy).expect("copied");
        add(&pool, Durability::Group).expect("committed");
        pool.apply().expect("applied");
        let refused: Result<()> = pool.tx(|t| {
            let [offset, count] = *t.get(t.root::<[u64; 2]>()?.expect("made"))?;
            let all = t.slice(memlift_persist::PSlice::<u64>::from_raw(offset, count))?.to_vec();
            for one in all {
                *t.get_mut(PPtr::<u64>::from_offset(one))? = 0;
            }
            Err(Error::Aborted("as intended".to_owned()))
        });
        assert!(matches!(refused, Err(Error::Aborted(_))));
        pool.close().expect("closed");
        let options = Options { domain, max_bytes: 64 << 20, ..Options::default() };
        let recovered = Pool::open(&copy, &options).expect("opened");
        assert!(mechanism == Mechanism::Undo || recovered.recovered().transactions >= 1, "{what}");
        assert_eq!(sum(&recovered).expect("read"), wanted(1), "{what}");
        let closed = Pool::open(&path, &options).expect("opened");
        assert_eq!(sum(&closed).expect("read"), wanted(2), "{what}");
        for pool in [recovered, closed] {
            drop(pool);
        }
        assert!(memlift_persist::check::summary(&path).expect("looked at").sound(), "{what}");
    }
}

/// A transaction that a lane does not take is refused before anything of it is written, whatever it holds.
#[test]
fn what_a_lane_does_not_take_is_refused_and_the_pool_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut refused = std::collections::BTreeSet::new();
    for mechanism in Mechanism::ALL {
        for (lane_bytes, domain) in
            [(16 << 10, Domain::Pages), (64 << 10, Domain::Pages), (64 << 10, Domain::Lines)]
        {
            for durability in [Durability::Sync, Durability::Group, Durability::Buffered] {
                let path =
                    folder.path().join(format!("{mechanism:?} {lane_bytes} {domain:?} {durability:?}"));
                let options = Options {
                    heap_bytes: 1 << 20,
                    max_bytes: 128 << 20,
                    lane_bytes,
                    mechanism,
                    domain,
                    ..Options::default()
                };
                let pool = Pool::create(&path, &options).expect("created");
                let count = pool.tx(|t| {
                    let count = t.alloc(0u64)?;
                    t.set_root(count)?;
                    Ok::<_, Error>(count)
                });
                let count = count.expect("committed");
                let mut done = 0;
                let how = TxOptions { durability, ..TxOptions::default() };
                for bytes in [100, 3_000, 30_000, 300_000, 3 << 20, 16 << 20] {
                    // One object, and many: they take other ways to the log.
                    for each in [bytes, 64] {
                        let outcome = pool.tx_with(how, |t| {
                            *t.get_mut(count)? += 1;
                            let values = vec![7u8; each];
                            let made: Result<Vec<_>> = (0..bytes.min(1 << 20) / each.min(1 << 20))
                                .map(|_| t.alloc_slice(&values))
                                .collect();
                            made.map(|made| made.len())
                        });
                        match outcome {
                            Ok(_) => done += 1,
                            Err(Error::TooLarge { .. }) => drop(refused.insert(mechanism.name())),
                            Err(error) => {
                                panic!("{mechanism:?}, {lane_bytes}, {durability:?}, {bytes}: {error}")
                            }
                        }
                        assert_eq!(pool.read(|r| Ok::<_, Error>(*r.get(count)?)).expect("read"), done);
                    }
                }
                pool.close().expect("closed");
                let pool = Pool::open(&path, &options).expect("opened");
                assert_eq!(pool.read(|r| Ok::<_, Error>(*r.get(count)?)).expect("read"), done);
                drop(pool);
                std::fs::remove_file(&path).expect("removed");
            }
        }
    }
    assert_eq!(refused.len(), Mechanism::ALL.len(), "{refused:?}");
}
