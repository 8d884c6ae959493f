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
    // With redo what a lane does not take goes elsewhere.
    assert_eq!(refused, ["checkpoint", "shadow", "undo"].into());
}

/// A pool whose lanes are small.
fn far_pool(path: &std::path::Path, domain: Domain, sections: u32, behind: bool) -> Pool {
    let options = Options {
        heap_bytes: 1 << 20,
        max_bytes: 256 << 20,
        lane_bytes: 64 << 10,
        domain,
        sections,
        apply_behind: behind,
        ..Options::default()
    };
    Pool::create(path, &options).expect("created")
}

/// A transaction that a lane does not take goes through free slabs of the heap, which are free again afterwards.
#[test]
fn transactions_are_as_large_as_the_disk_has_room_for() {
    let folder = tempfile::tempdir().expect("a folder");
    const WORDS: u64 = 3 << 20;
    for (domain, sections, behind) in [
        (Domain::Pages, 1, false),
        (Domain::Lines, 1, true),
        (Domain::Pages, 4, false),
        (Domain::Lines, 4, false),
    ] {
        for durability in [Durability::Sync, Durability::Group, Durability::Buffered] {
            let path = folder.path().join("pool");
            let pool = far_pool(&path, domain, sections, behind);
            let how = TxOptions { durability, ..TxOptions::default() };
            let (words, many) = pool
                .tx_with(how, |t| {
                    let words = t.alloc_slice(&vec![0u64; WORDS as usize])?;
                    let many: Result<Vec<PPtr<u64>>> = (0..20_000u64).map(|at| t.alloc(at)).collect();
                    Ok::<_, Error>((words, many?))
                })
                .expect("committed");
            pool.apply().expect("applied");
            let free = pool.usage().1;
            let before = pool.header().heap_bytes;
            for turn in 1..=3u64 {
                // Every word of 24 MiB, and every small object, in a transaction.
                let outcome: Result<()> = pool.tx_with(how, |t| {
                    t.slice_mut(words)?.iter_mut().zip(0..).for_each(|(word, at)| *word = turn * at + 1);
                    many.iter().try_for_each(|one| t.get_mut(*one).map(|word| *word += turn))
                });
                outcome.expect("committed");
                // Undone, it leaves nothing.
                let undone: Result<()> = pool.tx_with(how, |t| {
                    t.slice_mut(words)?.fill(0);
                    Err(Error::Aborted("for the test".to_owned()))
                });
                assert!(matches!(undone, Err(Error::Aborted(_))));
            }
            pool.apply().expect("applied");
            let (heap, now) = pool.usage();
            assert!(
                heap - before <= 64 << 20 && now - free <= heap - before,
                "{before} {free}: {heap} {now}"
            );
            assert!(
                now + (1 << 20) >= free + (heap - before),
                "slabs do not come back: {free} of {before}, {now} of {heap}"
            );
            pool.close().expect("closed");
            let report = memlift_persist::check::check(&path).expect("checked");
            let damage =
                report.findings.iter().filter(|one| !one.to_string().contains("nothing leads to it"));
            assert_eq!(damage.count(), 1, "{:?}", report.findings); // the note on what is not met
            let pool = Pool::open(&path, &Options::default()).expect("opened");
            let right = pool.read(|r| {
                let all = r.slice(words)?.iter().zip(0..).all(|(word, at)| *word == 3 * at + 1);
                let mut small = many.iter().zip(0..);
                Ok::<_, Error>(all && small.all(|(one, at)| r.get(*one).is_ok_and(|word| *word == at + 6)))
            });
            assert!(right.expect("read"), "{domain:?}, {sections}, {durability:?}");
            drop(pool);
            std::fs::remove_file(&path).expect("removed");
        }
    }
}

/// A copy of a pool from before a transaction in free slabs was applied.
struct Crashed {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    bytes: Vec<u8>,
    words: memlift_persist::PSlice<u64>,
    /// Where the transaction's records lie in the file.
    records: Vec<usize>,
}

const AFTER: u64 = 0x0102_0304_0506_0708;

fn crashed(count: usize) -> Crashed {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = far_pool(&path, Domain::Lines, 1, false);
    let words = pool.tx(|t| t.alloc_slice(&vec![0u64; count])).expect("committed");
    pool.apply().expect("applied");
    let before = std::fs::read(&path).expect("read");
    pool.tx(|t| t.slice_mut(words).map(|words| words.fill(AFTER))).expect("committed");
    let mut bytes = std::fs::read(&path).expect("read");
    let header = pool.header();
    let start = (header.heap_start + words.offset()) as usize;
    let home = start..start + count * 8;
    drop(pool);
    // Every byte that the transaction stored to free slabs: neither what it changed nor the log.
    let heap = header.heap_start as usize;
    let changed = |at: &usize| before.get(*at) != Some(&bytes[*at]) && !home.contains(at);
    let records: Vec<usize> = (heap..bytes.len()).filter(changed).collect();
    // The state before it was applied: the heads are the old ones, and so is what it changed.
    for old in [8192..16384, home] {
        bytes[old.clone()].copy_from_slice(&before[old]);
    }
    let path = folder.path().join("copy");
    std::fs::write(&path, &bytes).expect("written");
    Crashed { _folder: folder, path, bytes, words, records }
}

impl Crashed {
    /// Recovers it in memory: the words are all of the transaction, or none of it.
    fn recovered(&self) -> Result<bool> {
        let pool = Pool::open(
            &self.path,
            &Options { domain: Domain::Lines, read_only: true, ..Options::default() },
        )?;
        let all = pool.read(|r| Ok::<_, Error>(r.slice(self.words)?.to_vec()))?;
        let done = all[0] == AFTER;
        assert!(all.iter().all(|word| *word == if done { AFTER } else { 0 }), "a part of a transaction");
        Ok(done)
    }

    /// Flips bits of the records, one in `step`; each is refused as damage of the log.
    fn flip(&self, step: usize) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&self.path).expect("opened");
        assert!(self.recovered().expect("recovered"));
        let mut flips = 0;
        for bit in (0..self.records.len() * 8).step_by(step) {
            let at = self.records[bit / 8];
            let before = self.bytes[at];
            file.write_all_at(&[before ^ 1 << (bit % 8)], at as u64).expect("written");
            match self.recovered() {
                Err(Error::LogDamaged { transactions: 1, .. }) => flips += 1,
                other => panic!("bit {} of byte {at:#x}: {other:?}", bit % 8),
            }
            file.write_all_at(&[before], at as u64).expect("written");
        }
        assert!(flips > 100, "{flips}");
        assert!(self.recovered().expect("recovered"));
    }
}

#[test]
fn each_bit_of_what_lies_in_free_slabs_is_damage_of_the_log() {
    let crashed = crashed(20_000);
    crashed.flip(crashed.records.len() * 8 / 500);
}

#[test]
#[ignore = "an hour"]
fn soak_each_bit_of_what_lies_in_free_slabs() {
    crashed(8_000).flip(1);
}

/// The part in free slabs is checked like the log: a copy of the file from before it was applied, with one bit flipped, is refused.
#[test]
fn damage_of_what_lies_in_free_slabs_is_damage_of_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let pool = far_pool(&path, Domain::Lines, 1, false);
    let words = pool.tx(|t| t.alloc_slice(&vec![0u64; 100_000])).expect("committed");
    pool.apply().expect("applied");
    let before = std::fs::read(&path).expect("read");
    pool.tx(|t| t.slice_mut(words).map(|words| words.fill(0x0102_0304_0506_0708))).expect("committed");
    let after = std::fs::read(&path).expect("read");
    let start = (pool.header().heap_start + words.offset()) as usize;
    let home = start..start + 800_000;
    drop(pool);
    // The state before it was applied: the heads are the old ones, and so is what it changed.
    let mut crashed = after.clone();
    for old in [8192..16384, home.clone()] {
        crashed[old.clone()].copy_from_slice(&before[old]);
    }
    let copy = folder.path().join("copy");
    let open = |bytes: &[u8]| {
        std::fs::write(&copy, bytes).expect("written");
        Pool::open(&copy, &Options { domain: Domain::Lines, ..Options::default() })
    };
    let pool = open(&crashed).expect("recovered");
    assert_eq!(pool.recovered().transactions, 1);
    assert!(
        pool.read(|r| r.slice(words).map(|all| all.iter().all(|word| *word == 0x0102_0304_0506_0708)))
            .expect("read")
    );
    drop(pool);
    // One bit of the part elsewhere.
    let places: Vec<usize> = (0..after.len() / 16384)
        .map(|slab| slab * 16384)
        .filter(|at| {
            before.get(*at..at + 16384) != Some(&after[*at..at + 16384])
                && !(home.start - 16_384..home.end).contains(at)
        })
        .collect();
    let mut refused = 0;
    for at in places {
        let mut damaged = crashed.clone();
        damaged[at + 5_000] ^= 4;
        match open(&damaged) {
            Err(Error::LogDamaged { transactions: 1, .. }) => {
                refused += 1;
                let repaired = folder.path().join(format!("repaired {at}"));
                memlift_persist::repair::repair_accepting_loss(std::slice::from_ref(&copy), &repaired)
                    .expect("repaired");
                let pool = Pool::open(&repaired, &Options::default()).expect("opened");
                assert!(
                    pool.read(|r| r.slice(words).map(|all| all.iter().all(|word| *word == 0))).expect("read")
                );
            }
            Err(error) => panic!("{error}"),
            Ok(_) => {}
        }
    }
    assert!(refused > 0);
}
